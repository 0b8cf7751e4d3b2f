//! A running git, with everything it started.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::command::Keep;
use super::error::GitError;
use super::limits::{self, CpuAccount, ProcessLimits};
use crate::resources::Holding;

/// Limit of the output of a command that runs to its end; more is an error.
const MAX_OUTPUT: usize = 16 * 1024 * 1024;

/// Time for git to clean up after a request to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for the children of a killed git to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of checks for them.
const KILL_POLL_INTERVAL: Duration = Duration::from_millis(2);

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
    _slot: Option<Holding>,
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
        (slot, cpu): (Option<Holding>, Option<CpuAccount>),
        keep: Vec<Keep>,
    ) -> Self {
        let group = limits::pid(&child);
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let output = tokio::spawn(read(child.stderr.take(), group, watch));
        let running = Running {
            child,
            group,
            output,
            cpu,
            _slot: slot,
            _keep: keep,
        };
        Self {
            name,
            stdin,
            stdout,
            running: Some(running),
        }
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
        let stdin = self.stdin.take();
        let stdout = self.stdout.take();
        let feed = async move {
            if let Some(mut stdin) = stdin {
                // Git may know enough before it has read everything; its exit status tells.
                _ = stdin.write_all(&input).await;
            }
        };
        let ((), output) = tokio::join!(feed, bounded(stdout));
        let stdout = output.map_err(|source| GitError::Spawn {
            command: self.name,
            source,
        })?;
        let finished = self.ended().await?;
        Ok(Finished { stdout, ..finished })
    }

    async fn ended(&mut self) -> Result<Finished, GitError> {
        let name = self.name;
        let failed = |source| GitError::Spawn {
            command: name,
            source,
        };
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
        let output = timeout(KILL_TIMEOUT, &mut running.output).await;
        let ErrorOutput {
            last,
            too_many,
            claimed_objects,
        } = output.ok().and_then(Result::ok).unwrap_or_default();
        self.running = None;
        if let Some(limit) = too_many {
            return Err(GitError::TooMany { limit });
        }
        if limits::is_cpu_exhausted(status, &last) {
            return Err(GitError::TooExpensive { command: name });
        }
        let words = String::from_utf8_lossy(&last).trim().to_owned();
        Ok(Finished {
            status,
            stdout: Vec::new(),
            words,
            claimed_objects,
        })
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
        _ = timeout(STOP_TIMEOUT, self.child.wait()).await;
        self.signal(Signal::KILL);
        _ = self.child.wait().await;
        _ = timeout(KILL_TIMEOUT, self.gone()).await;
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
        while self
            .group
            .is_some_and(|group| test_kill_process_group(group).is_ok())
        {
            sleep(KILL_POLL_INTERVAL).await;
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
        stdout
            .take(more_than_allowed)
            .read_to_end(&mut output)
            .await?;
    }
    if output.len() > MAX_OUTPUT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(output)
}

/// Bytes of git's error output that are kept.
const MAX_KEPT: usize = 8 * 1024;

/// Bytes of a line that are read.
const MAX_LINE: usize = 1024;

/// Text before the version and the number of objects of a pack.
const CLAIM: &str = "--pack_header=";

/// The error output.
#[derive(Debug, Default)]
struct ErrorOutput {
    /// The end of it.
    last: Vec<u8>,
    /// The limit of objects, if a pack claimed more.
    too_many: Option<u64>,
    /// The most objects that a pack claimed, if that was listened for.
    claimed_objects: Option<u64>,
}

/// What the error output is watched for.
#[derive(Debug, Default)]
pub(in crate::git) struct OutputWatch {
    /// A pack with more objects than these ends the group.
    pub(in crate::git) most_objects: Option<u64>,
    /// Told when another server has begun to answer.
    pub(in crate::git) answered: Option<oneshot::Sender<()>>,
    /// Limits that the group has once a pack comes, and the memory that it holds until then.
    pub(in crate::git) until_pack: Option<(ProcessLimits, Holding)>,
}

/// Time within which another server must begin to send a pack. Large repositories without bitmaps take minutes.
const PACK_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Prefix of a traced response header.
const HEADER: &[u8] = b"<= Recv header";

/// Reads the error output to its end.
async fn read(
    stderr: Option<impl AsyncRead + Unpin>,
    group: Option<Pid>,
    mut watch: OutputWatch,
) -> ErrorOutput {
    let mut output = ErrorOutput::default();
    let mut line = Vec::new();
    let Some(mut stderr) = stderr else {
        return output;
    };
    let mut buffer = [0; 4096];
    let deadline = Instant::now() + PACK_TIMEOUT;
    loop {
        let read = match watch.until_pack {
            Some(_) => timeout_at(deadline, stderr.read(&mut buffer)).await,
            None => Ok(stderr.read(&mut buffer).await),
        };
        let Ok(read) = read else {
            // The memory that is held until a pack comes is for others, too.
            watch.until_pack = None;
            group.map(|group| kill_process_group(group, Signal::TERM));
            continue;
        };
        let Ok(count @ 1..) = read else { break };
        let new = buffer.get(..count).unwrap_or_default();
        output.last.extend(new);
        let excess = output.last.len().saturating_sub(MAX_KEPT);
        output.last.drain(..excess);
        // A header cut in two by the buffer is one of several.
        if new.windows(HEADER.len()).any(|window| window == HEADER) {
            watch.answered.take().map(|answered| answered.send(()));
        }
        let Some(most) = watch.most_objects else {
            continue;
        };
        output.claimed_objects = output.claimed_objects.max(highest_claim(&mut line, new));
        if let (Some(_), Some(group)) = (output.claimed_objects, group) {
            watch
                .until_pack
                .take()
                .inspect(|(limits, _)| limits.raise_all(group));
        }
        let is_too_many = output.claimed_objects.is_some_and(|claimed| claimed > most);
        if is_too_many && output.too_many.replace(most).is_none() {
            // It may be gone already, which is what is wanted.
            group.map(|group| kill_process_group(group, Signal::TERM));
        }
    }
    output
}

/// The most objects that any line which ends here claims. What follows the last end is kept for the next time.
fn highest_claim(line: &mut Vec<u8>, heard: &[u8]) -> Option<u64> {
    let mut highest = None;
    for byte in heard {
        match byte {
            b'\n' => {
                highest = highest.max(claim(&String::from_utf8_lossy(line)));
                line.clear();
            }
            _ if line.len() < MAX_LINE => line.push(*byte),
            _ => {}
        }
    }
    highest
}

/// Returns the number of objects that a pack claims to have, if this line is git's own trace of the command that reads the
/// pack. The same text in a header or a message of the other server is in lines that begin differently.
fn claim(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let is_time = words.next()?.starts_with(|c: char| c.is_ascii_digit());
    let is_command = words.next()?.starts_with("run-command.c:");
    (is_time && is_command).then_some(())?;
    let (_, header) = line.split_once(CLAIM)?;
    let (_version, number) = header.split_once(',')?;
    let end = number
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(number.len());
    number.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Stdio;

    use grasp_core::resources::{Bounds, Claimant};
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::resources::SharedPool;

    const LINE: &str = "11:12:15.647642 run-command.c:666       trace: run_command: git index-pack --stdin \
                        --fix-thin '--keep=fetch-pack 25463 on vm' --pack_header=2,4711 --strict";

    #[test]
    fn the_announced_object_count_is_found_in_output_of_any_pieces() {
        assert_eq!(claim(LINE), Some(4711));
        let header =
            "11:12:15.647642 http.c:845 <= Recv header: X: run-command.c:1 --pack_header=2,9";
        let message = "remote: run-command.c:666 --pack_header=2,9";
        for nothing in [
            "",
            "--pack_header=2",
            "1 run-command.c:1 --pack_header=2,x",
            header,
            message,
        ] {
            assert_eq!(claim(nothing), None, "{nothing}");
        }
        let text = format!("remote: hello\n{LINE}\nremote: --pack_header=2,3\n");
        for size in 1..text.len() {
            let mut line = Vec::new();
            let pieces = text.as_bytes().chunks(size);
            let highest = pieces
                .filter_map(|piece| highest_claim(&mut line, piece))
                .max();
            assert_eq!(highest, Some(4711), "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_kept() {
        let mut line = Vec::new();
        for _ in 0..100 {
            assert_eq!(highest_claim(&mut line, &[b'x'; 4096]), None);
        }
        assert_eq!(line.len(), MAX_LINE);
    }

    #[tokio::test]
    async fn the_first_header_is_an_answer() {
        for (said, is_answer) in [
            (
                "05:26:11.8 http.c:872   <= Recv header: HTTP/1.1 200 OK\n",
                true,
            ),
            (
                "05:26:11.8 http.c:872   => Send header: GET /x HTTP/1.1\n",
                false,
            ),
        ] {
            let (answered, mut is_answered) = oneshot::channel();
            let watch = OutputWatch {
                answered: Some(answered),
                ..OutputWatch::default()
            };
            let _ = read(Some(said.as_bytes()), None, watch).await;
            assert_eq!(is_answered.try_recv().is_ok(), is_answer, "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_of_a_list_is_given_back_if_no_pack_comes() {
        let pool = SharedPool::new(Bounds {
            reserve: 0,
            ..Bounds::of(24)
        });
        let held = pool.try_take(&Claimant::default(), 24).unwrap();
        let until_pack = Some((ProcessLimits::default(), held));
        let (said_to, words) = tokio::io::duplex(64);
        let listening = tokio::spawn(read(
            Some(words),
            None,
            OutputWatch {
                until_pack,
                ..OutputWatch::default()
            },
        ));
        tokio::time::advance(PACK_TIMEOUT / 2).await;
        tokio::task::yield_now().await;
        assert_eq!(pool.usage().all, 24);
        tokio::time::advance(PACK_TIMEOUT).await;
        tokio::task::yield_now().await;
        assert_eq!(pool.usage().all, 0);
        drop(said_to);
        let _ = listening.await.unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_pack_raises_the_limits_of_the_group_and_gives_back_the_memory_of_the_list() {
        let limits = |mib: u64| ProcessLimits {
            memory: Some(mib << 20),
            ..Default::default()
        };
        // The shell starts another, which prints a line at its start, and in the end its limit.
        let script = "/bin/sh -c 'echo; read go; ulimit -S -d'; ulimit -S -d";
        let mut command = limits(16).command(Path::new("/bin/sh"));
        command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        stdout.read_exact(&mut [0]).await.unwrap();
        let group = child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pool = SharedPool::new(Bounds {
            reserve: 0,
            ..Bounds::of(24)
        });
        for said in ["remote: hello\n", &format!("{LINE}\n")] {
            let held = pool.try_take(&Claimant::default(), 24).unwrap();
            let until_pack = Some((limits(96), held));
            let (most_objects, (said_to, words)) = (Some(9_999), tokio::io::duplex(4096));
            let watch = OutputWatch {
                most_objects,
                until_pack,
                ..OutputWatch::default()
            };
            let listening = tokio::spawn(read(Some(words), group, watch));
            let mut said_to = said_to;
            said_to.write_all(said.as_bytes()).await.unwrap();
            if said.contains(CLAIM) {
                // It is given back while git still runs.
                while pool.usage().all > 0 {
                    tokio::task::yield_now().await;
                }
            }
            drop(said_to);
            let _ = listening.await.unwrap();
            assert_eq!(pool.usage().all, 0);
        }
        stdin.write_all(b"go\n").await.unwrap();
        let mut limits = String::new();
        stdout.read_to_string(&mut limits).await.unwrap();
        assert_eq!(limits, "98304\n98304\n");
        child.wait().await.unwrap();
    }

    #[tokio::test]
    async fn only_a_process_that_announces_too_many_objects_is_stopped() {
        for (most, too_many) in [(None, false), (Some(4711), false), (Some(4710), true)] {
            let said = format!("{LINE}\nfatal: end");
            let watch = OutputWatch {
                most_objects: most,
                ..OutputWatch::default()
            };
            let output = read(Some(said.as_bytes()), None, watch).await;
            assert_eq!(output.too_many.is_some(), too_many, "{most:?}");
            assert!(output.last.ends_with(b"fatal: end"));
        }
    }
}
