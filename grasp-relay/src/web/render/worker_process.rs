//! Worker processes: few, each for many jobs, killed at the first sign of trouble.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use grasp_purgatory::git::PageWork;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::job::{ANSWER_HEAD, Job, MAX_TEXT, parse_head};

/// Time that a worker has for a job, and that a page waits for a worker.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// Workers at the same time.
const MAX_WORKERS: usize = 2;

/// Jobs after which a worker is replaced.
const MAX_JOBS: u32 = 1_000;

/// The worker processes of a server.
pub(super) struct Workers {
    program: PathBuf,
    slots: Semaphore,
    idle: Mutex<Vec<Worker>>,
}

struct Worker {
    _child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    jobs: u32,
}

impl Workers {
    /// Creates workers that are `<program> render`. None runs until there is a job.
    pub(super) fn new(program: PathBuf) -> Self {
        Self {
            program,
            slots: Semaphore::new(MAX_WORKERS),
            idle: Mutex::default(),
        }
    }

    /// Returns a text as HTML; `None` if no worker was free or the worker failed, too, which is then gone.
    pub(super) async fn render(&self, job: &Job<'_>, work: &PageWork) -> Option<String> {
        if job.text().len() > MAX_TEXT {
            return None;
        }
        let _slot = timeout(TIMEOUT, self.slots.acquire()).await.ok()?.ok()?;
        let mut worker = match self.take_idle() {
            Some(worker) => worker,
            None => self.start()?,
        };
        let start = Instant::now();
        let answer = timeout(TIMEOUT, worker.perform(&job.encode())).await;
        let Some((cpu, html)) = answer.ok().flatten() else {
            tracing::debug!("a worker that renders pages failed, and was killed");
            work.charge(start.elapsed());
            return None;
        };
        work.charge(cpu);
        worker.jobs += 1;
        if worker.jobs < MAX_JOBS {
            self.idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(worker);
        }
        (!html.is_empty()).then_some(html)
    }

    fn take_idle(&self) -> Option<Worker> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.pop()
    }

    fn start(&self) -> Option<Worker> {
        let mut command = Command::new(&self.program);
        command
            .arg("render")
            .env_clear()
            // The allocator of static binaries would take a gigabyte of addresses at once, which counts as memory.
            .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!(%error, program = %self.program.display(), "no worker that renders pages could be started");
                return None;
            }
        };
        Some(Worker {
            stdin: child.stdin.take()?,
            stdout: child.stdout.take()?,
            _child: child,
            jobs: 0,
        })
    }
}

impl Worker {
    /// Performs a job: returns the CPU time and the HTML.
    async fn perform(&mut self, job: &[u8]) -> Option<(Duration, String)> {
        self.stdin.write_all(job).await.ok()?;
        self.stdin.flush().await.ok()?;
        let mut head = [0; ANSWER_HEAD];
        self.stdout.read_exact(&mut head).await.ok()?;
        let (cpu, length) = parse_head(head)?;
        let mut html = vec![0; length];
        self.stdout.read_exact(&mut html).await.ok()?;
        Some((cpu, String::from_utf8(html).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use grasp_core::resources::Claimant;
    use grasp_purgatory::git::{Git, Slots};

    use super::*;

    const JOB: Job<'static> = Job::Code {
        file_name: "a.rs",
        text: "fn",
    };

    /// Writes a worker, by a process of its own: a file that this process has open for writing could not be executed.
    fn worker(dir: &Path, script: &str) -> Workers {
        let path = dir.join("worker");
        let write = "printf '%s' \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let mut shell = std::process::Command::new("/bin/sh");
        let script = format!("#!/bin/sh\n{script}\n");
        let written = shell.args(["-c", write]).arg(&path).arg(script).status();
        assert!(written.unwrap().success());
        Workers::new(path)
    }

    async fn rendered_by(script: &str) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        let git = Git::find(&path, Slots::default()).unwrap();
        let work = git.begin_page(Claimant::server()).await.unwrap();
        let workers = worker(dir.path(), script);
        let html = workers.render(&JOB, &work).await;
        let is_kept = !workers.idle.lock().unwrap().is_empty();
        assert_eq!(is_kept, html.is_some(), "{script}");
        html
    }

    #[tokio::test]
    async fn a_worker_that_fails_in_any_way_is_killed_and_the_text_stays_plain() {
        for script in [
            "exit 1",
            "kill -SEGV $$",
            "read x; exit 0",
            "exec sleep 60",
            // A length beyond the bound, an answer that is cut, and one that is not text.
            "printf '\\0\\0\\0\\0\\0\\0\\0\\1\\377\\377\\377\\377'; exec sleep 60",
            "printf '\\0\\0\\0\\0\\0\\0\\0\\1\\0\\0\\0\\7abc'",
            "printf '\\0\\0\\0\\0\\0\\0\\0\\1\\0\\0\\0\\1\\377'; exec sleep 60",
        ] {
            assert_eq!(rendered_by(script).await, None, "{script}");
        }
    }

    #[tokio::test]
    async fn the_answer_of_a_worker_is_taken() {
        let script = "printf '\\0\\0\\0\\0\\0\\0\\0\\1\\0\\0\\0\\3<b>'; exec sleep 60";
        assert_eq!(rendered_by(script).await, Some("<b>".into()));
    }

    #[tokio::test]
    async fn no_program_and_too_much_text_are_no_failure() {
        let git = Git::find(&std::env::var_os("PATH").unwrap(), Slots::default()).unwrap();
        let work = git.begin_page(Claimant::server()).await.unwrap();
        let workers = Workers::new("/nowhere/grasp".into());
        assert_eq!(workers.render(&JOB, &work).await, None);
        let text = "x".repeat(MAX_TEXT + 1);
        let large = Job::Code {
            file_name: "a.rs",
            text: &text,
        };
        assert_eq!(workers.render(&large, &work).await, None);
    }
}
