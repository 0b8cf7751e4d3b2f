//! The installed `git`: where it is, whether it will do, and how many may run at once.

use std::ffi::OsStr;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use grasp_core::resources::Bounds;

use super::command::GitCommand;
use super::error::BinaryError;
use super::limits::{CPU_PERIOD, CpuMeter};
use super::serving::SERVING_MEMORY_BYTES;
use crate::resources::SharedPool;

/// A release of git: its first two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GitVersion(u32, u32);

impl GitVersion {
    /// The oldest with everything needed: it connects to addresses that it is given instead of looking them up
    /// (`http.curloptResolve`).
    pub const OLDEST: Self = Self(2, 37);

    /// Reads the answer of `git --version`.
    fn parse(said: &str) -> Option<Self> {
        let mut numbers = said.strip_prefix("git version ")?.split('.');
        Some(Self(
            numbers.next()?.parse().ok()?,
            numbers.next()?.trim().parse().ok()?,
        ))
    }
}

impl fmt::Display for GitVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Limits of concurrent git processes, and of their memory for data that others send. Claims beyond it
/// wait; [`grasp_core::resources`] says how it is shared.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Processes that check and repack. Half of them are kept for pushes of maintainers and the server's own work. As many
    /// steps for clients are performed within this process.
    pub local_processes: NonZeroUsize,
    /// Processes that serve clients.
    pub client_processes: NonZeroUsize,
    /// Processes that talk to other servers.
    pub remote_processes: NonZeroUsize,
    /// Memory of all processes that unpack pushes, in bytes. Three quarters are kept for maintainers.
    pub unpack_memory: u64,
    /// Memory of all processes that talk to other servers, in bytes.
    pub remote_memory: u64,
    /// CPU time of all processes for clients in ten minutes. A quarter is kept for maintainers.
    pub client_cpu: Duration,
    /// Pages that are made at the same time.
    pub pages: NonZeroUsize,
    /// CPU time for all pages in ten minutes.
    pub page_cpu: Duration,
}

impl Default for Slots {
    /// Two processes per processor, sixteen per processor for clients, and as many for other servers; 1.5 GiB for
    /// pushes and 3 GiB for what other servers send; all the CPU time that there is. One page per processor, and a quarter
    /// of the CPU time.
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        let cpus = available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let all_cpu = CPU_PERIOD.saturating_mul(u32::try_from(cpus.get()).unwrap_or(u32::MAX));
        let times = |n: usize| cpus.saturating_mul(NonZeroUsize::new(n).unwrap_or(cpus));
        Self {
            local_processes: times(2),
            client_processes: times(16),
            remote_processes: times(16),
            unpack_memory: 1_536 * MIB,
            remote_memory: 3_072 * MIB,
            client_cpu: all_cpu,
            pages: cpus,
            page_cpu: all_cpu / 4,
        }
    }
}

/// Memory of all processes that read what other servers advertise, in bytes: eight requests, or two to servers
/// that have very many refs. What a server advertises costs it nothing, so this is less than for objects.
const TOTAL_LISTING_MEMORY_BYTES: u64 = 192 * 1024 * 1024;

/// Memory of all lists of refs that are encoded and sent for clients, in bytes.
const TOTAL_LIST_MEMORY_BYTES: u64 = 64 * 1024 * 1024;

/// Memory that one list takes at most from what all of them may have, however many refs it has.
pub(super) const MAX_LIST_CLAIM_BYTES: u64 = TOTAL_LIST_MEMORY_BYTES / 8;

/// The pool that a process takes its slot from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessPool {
    /// Processes that check and repack.
    Local,
    /// Processes that serve clients.
    Client,
    /// Processes that talk to other servers.
    Remote,
}

/// The installed git, checked, with the pools that its processes are taken from. Clones share them.
#[derive(Clone, Debug)]
pub struct Git {
    program: Arc<Path>,
    version: GitVersion,
    pub(super) pools: Arc<Pools>,
}

/// The resources of git processes.
#[derive(Debug)]
pub(super) struct Pools {
    local_processes: SharedPool,
    client_processes: SharedPool,
    remote_processes: SharedPool,
    /// Memory for unpacking pushes, in bytes.
    pub(super) unpack_memory: SharedPool,
    /// Memory for what other servers send, in bytes.
    pub(super) remote_memory: SharedPool,
    /// Memory for reading what other servers advertise, in bytes.
    pub(super) listing_memory: SharedPool,
    /// Steps of this process for clients that are performed at the same time.
    pub(super) client_steps: SharedPool,
    /// Memory for lists of refs that are being encoded and sent, in bytes.
    pub(super) list_memory: SharedPool,
    /// Memory of processes that serve clients, in bytes.
    pub(super) serving_memory: SharedPool,
    /// CPU time for clients.
    pub(super) client_cpu: CpuMeter,
    /// Pages that are being made.
    pub(super) pages: SharedPool,
    /// CPU time for pages.
    pub(super) page_cpu: CpuMeter,
}

impl Pools {
    fn new(slots: Slots) -> Self {
        let Slots {
            local_processes,
            client_processes,
            remote_processes,
            unpack_memory,
            remote_memory,
            client_cpu,
            pages,
            page_cpu,
        } = slots;
        let processes = |count: NonZeroUsize| Bounds::of(count.get() as u64);
        let local = processes(local_processes);
        Self {
            local_processes: SharedPool::new(Bounds {
                reserve: local.total / 2,
                ..local
            }),
            client_processes: SharedPool::new(processes(client_processes)),
            remote_processes: SharedPool::new(Bounds {
                reserve: 0,
                ..processes(remote_processes)
            }),
            unpack_memory: SharedPool::new(Bounds {
                reserve: unpack_memory / 4 * 3,
                // A lone push without authority may have half of what all of these may have.
                smallest: unpack_memory / 8,
                ..Bounds::of(unpack_memory)
            }),
            remote_memory: SharedPool::new(Bounds {
                reserve: 0,
                ..Bounds::of(remote_memory)
            }),
            listing_memory: SharedPool::new(Bounds {
                reserve: 0,
                ..Bounds::of(TOTAL_LISTING_MEMORY_BYTES)
            }),
            client_steps: SharedPool::new(processes(local_processes)),
            list_memory: SharedPool::new(Bounds {
                reserve: 0,
                smallest: MAX_LIST_CLAIM_BYTES,
                ..Bounds::of(TOTAL_LIST_MEMORY_BYTES)
            }),
            serving_memory: SharedPool::new(Bounds {
                reserve: 0,
                ..Bounds::of(SERVING_MEMORY_BYTES)
            }),
            client_cpu: CpuMeter::new(client_cpu),
            pages: SharedPool::new(Bounds {
                reserve: 0,
                ..processes(pages)
            }),
            page_cpu: CpuMeter::without_reserve(page_cpu),
        }
    }
}

impl Git {
    /// Finds `git` in the directories of `search` (the form of `$PATH`) and checks its version.
    pub fn find(search: &OsStr, slots: Slots) -> Result<Self, BinaryError> {
        let program = std::env::split_paths(search)
            .map(|dir| dir.join("git"))
            .find(|path| path.is_absolute() && path.is_file())
            .ok_or_else(|| BinaryError::NotFound(search.to_string_lossy().into_owned()))?;
        Self::at(program, slots)
    }

    /// Takes the `git` at this path and checks its version.
    pub fn at(program: PathBuf, slots: Slots) -> Result<Self, BinaryError> {
        let output = std::process::Command::new(&program)
            .arg("--version")
            .env_clear()
            .stdin(std::process::Stdio::null())
            .output()
            .map_err(|source| BinaryError::Run {
                program: program.clone(),
                source,
            })?;
        let said = String::from_utf8_lossy(&output.stdout);
        let Some(version) = GitVersion::parse(&said) else {
            return Err(BinaryError::NotGit {
                program,
                said: said.chars().take(80).collect(),
            });
        };
        if version < GitVersion::OLDEST {
            return Err(BinaryError::TooOld(version));
        }
        Ok(Self {
            program: program.into(),
            version,
            pools: Arc::new(Pools::new(slots)),
        })
    }

    /// The installed git.
    pub fn version(&self) -> GitVersion {
        self.version
    }

    /// Begins a command line. It will run in the sandbox that [`GitCommand`] describes.
    pub fn command(&self, subcommand: &'static str) -> GitCommand {
        GitCommand::new(self, subcommand)
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn processes(&self, pool: ProcessPool) -> &SharedPool {
        match pool {
            ProcessPool::Local => &self.pools.local_processes,
            ProcessPool::Client => &self.pools.client_processes,
            ProcessPool::Remote => &self.pools.remote_processes,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes a program, by a process of its own: a child that another test starts meanwhile would inherit the open file,
    /// and a program that is open for writing cannot be executed.
    pub(in crate::git) fn write_program(path: &Path, script: &str) {
        let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let mut shell = std::process::Command::new("/bin/sh");
        let written = shell.args(["-c", write]).arg(path).arg(script).status();
        assert!(written.unwrap().success());
    }

    /// Creates a program that prints the version of some git.
    fn fake_git(dir: &Path, says: &str) -> PathBuf {
        let path = dir.join("git");
        write_program(&path, &format!("#!/bin/sh\necho '{says}'\n"));
        path
    }

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        let cases = [
            ("git version 2.34.1\n", Some((2, 34))),
            ("git version 2.39.5 (Apple Git-154)\n", Some((2, 39))),
            ("git version 2.50\n", Some((2, 50))),
            ("git version 3.0.0.rc1\n", Some((3, 0))),
            ("git version two", None),
            ("hg 6.0", None),
        ];
        for (said, expected) in cases {
            let expected = expected.map(|(major, minor)| GitVersion(major, minor));
            assert_eq!(GitVersion::parse(said), expected, "{said}");
        }
    }

    #[test]
    fn an_old_git_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        fake_git(dir.path(), "git version 2.36.6");
        let error = Git::find(dir.path().as_os_str(), Slots::default()).unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("git 2.36 is too old; install git 2.37 or newer"),
            "{said}"
        );
        fake_git(dir.path(), "git version 2.37.0");
        Git::find(dir.path().as_os_str(), Slots::default()).unwrap();
    }

    #[test]
    fn another_program_named_git_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = fake_git(dir.path(), "hello");
        let error = Git::at(path, Slots::default()).unwrap_err();
        assert!(matches!(error, BinaryError::NotGit { .. }), "{error}");
    }

    #[test]
    fn a_missing_git_is_an_error_that_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let error = Git::find(dir.path().as_os_str(), Slots::default()).unwrap_err();
        assert!(
            error.to_string().contains("install git 2.37 or newer"),
            "{error}"
        );
    }
}
