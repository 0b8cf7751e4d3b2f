//! A running git, with everything it started.

mod output;

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::command::Keep;
use super::error::GitError;
use super::limits::{self, CpuAccount, ProcessLimits};
use crate::resources::Holding;

use self::output::ErrorOutput;
pub(super) use self::output::OutputWatch;

/// Limit of the output of a command that runs to its end; more is an error.
const MAX_OUTPUT: usize = 16 * 1024 * 1024;

/// Time for git to clean up after a request to stop.
const GRACE: Duration = Duration::from_secs(2);

/// Time for the children of a killed git to end.
const LINGER: Duration = Duration::from_secs(1);

/// Interval of checks for them.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A running git process and the group of everything it started.
///
/// Dropping it stops and reaps the whole group in the background; its slot is free after that.
#[derive(Debug)]
pub struct GitProcess {
    name: &'static str,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    group: Option<Pid>,
    output: JoinHandle<ErrorOutput>,
    /// Charged once, before the process is reaped.
    cpu: Option<CpuAccount>,
    // Dropped last: the slot, and what the processes were working on.
    _slot: Holding,
    _keep: Vec<Keep>,
}

/// The end of a process.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its output; empty if it was read elsewhere.
    pub stdout: Vec<u8>,
    /// The end of what it said to people.
    pub words: String,
    /// The number of objects that a pack claimed to have, if that was listened for.
    pub(super) claimed_objects: Option<u64>,
}

impl GitProcess {
    pub(super) fn new(
        name: &'static str,
        mut child: Child,
        watch: OutputWatch,
        (slot, cpu): (Holding, Option<CpuAccount>),
        keep: Vec<Keep>,
    ) -> Self {
        let group = limits::pid(&child);
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let output = tokio::spawn(output::read(child.stderr.take(), group, watch));
        let running = Running { child, group, output, cpu, _slot: slot, _keep: keep };
        Self { name, stdin, stdout, running: Some(running) }
    }

    /// Takes the way in. Dropping it tells git that no more will come.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// Takes the way out.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// Lets the process use more than it was started with. Its children keep what they have.
    pub(super) fn raise(&self, limits: &ProcessLimits) {
        if let Some(group) = self.running.as_ref().and_then(|running| running.group) {
            limits.raise(group);
        }
    }

    /// Waits for the end. Streams that were not taken are closed first.
    pub async fn finish(mut self) -> Result<Finished, GitError> {
        self.stdin = None;
        self.stdout = None;
        self.ended().await
    }

    /// Feeds it, reads it and waits for its end, all at once.
    pub(super) async fn run(mut self, input: Vec<u8>) -> Result<Finished, GitError> {
        let (stdin, stdout) = (self.stdin.take(), self.stdout.take());
        let feed = async move {
            if let Some(mut stdin) = stdin {
                // Git may know enough before it has read everything; its exit status tells.
                _ = stdin.write_all(&input).await;
            }
        };
        let ((), output) = tokio::join!(feed, bounded(stdout));
        let stdout = output.map_err(|source| GitError::Spawn { command: self.name, source })?;
        let finished = self.ended().await?;
        Ok(Finished { stdout, ..finished })
    }

    async fn ended(&mut self) -> Result<Finished, GitError> {
        let name = self.name;
        let failed = |source| GitError::Spawn { command: name, source };
        let Some(running) = self.running.as_mut() else {
            return Err(failed(io::ErrorKind::NotFound.into()));
        };
        if let (Some(cpu), Some(group)) = (&running.cpu, running.group) {
            cpu.ended(group).await;
            running.charge();
        }
        let status = running.child.wait().await.map_err(failed)?;
        // Nothing that git started outlives it.
        running.signal(Signal::KILL);
        // A child that outlives git could keep the pipe open.
        let output = timeout(LINGER, &mut running.output).await;
        let ErrorOutput { last, too_many, claimed_objects } =
            output.ok().and_then(Result::ok).unwrap_or_default();
        self.running = None;
        if let Some(limit) = too_many {
            return Err(GitError::TooMany { limit });
        }
        if limits::is_cpu_exhausted(status, &last) {
            return Err(GitError::TooExpensive { command: name });
        }
        let words = String::from_utf8_lossy(&last).trim().to_owned();
        Ok(Finished { status, stdout: Vec::new(), words, claimed_objects })
    }
}

impl Drop for GitProcess {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(running.stop());
        }
    }
}

impl Drop for Running {
    /// The last resort, when there is no time left to ask nicely.
    fn drop(&mut self) {
        if self.child.id().is_some() {
            self.signal(Signal::KILL);
        }
    }
}

impl Running {
    /// Asks nicely first, so that git removes its temporary files; then does not ask.
    async fn stop(mut self) {
        self.charge();
        self.signal(Signal::TERM);
        _ = timeout(GRACE, self.child.wait()).await;
        self.signal(Signal::KILL);
        _ = self.child.wait().await;
        _ = timeout(LINGER, self.gone()).await;
        self.output.abort();
    }

    /// Charges the CPU time that was used so far. Children that are killed with git are not in its own sum later.
    fn charge(&mut self) {
        if let (Some(cpu), Some(pid), Some(_)) = (self.cpu.take(), self.group, self.child.id()) {
            cpu.charge(pid);
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The group may be gone already, which is what is wanted.
            _ = kill_process_group(group, signal);
        }
    }

    async fn gone(&self) {
        while self.group.is_some_and(|group| test_kill_process_group(group).is_ok()) {
            sleep(LOOK_AGAIN).await;
        }
    }
}

impl Finished {
    /// The output, if git was content; otherwise its last words as our failure.
    pub fn success(self, command: &'static str) -> Result<Vec<u8>, GitError> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        Err(GitError::failed(command, &self.words))
    }
}

async fn bounded(stdout: Option<ChildStdout>) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    if let Some(stdout) = stdout {
        let more_than_allowed = MAX_OUTPUT as u64 + 1;
        stdout.take(more_than_allowed).read_to_end(&mut output).await?;
    }
    if output.len() > MAX_OUTPUT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(output)
}
