//! CPU time that git uses for clients, counted by their networks.
//!
//! Limits of a process bound what one request costs; this bounds what a client network costs with one request after
//! the other. A process is charged when it ends, so a network can overdraw its share by what runs at once, which slots
//! and limits bound.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::Mono;
use grasp_core::resources::{Bounds, Claimant, Meter, Shortage};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::signal::unix::{SignalKind, signal};

/// The time after which CPU time that was used comes back.
pub(super) const PERIOD: Duration = Duration::from_secs(10 * 60);

/// CPU time that counts for each process beside what the kernel says, which counts in steps of 10 ms.
const START: Duration = Duration::from_millis(2);

/// CPU time that a network may use while it is free, however small its share.
const SMALLEST: Duration = Duration::from_secs(60);

/// Counts the CPU time of git by client networks. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct CpuMeter {
    milliseconds: Arc<Mutex<Meter>>,
    began: Instant,
}

/// The account that the processes of one command are charged to.
#[derive(Debug)]
pub(super) struct CpuAccount {
    meter: CpuMeter,
    claimant: Claimant,
}

impl CpuMeter {
    /// Creates a meter with this much CPU time for all clients in each [`PERIOD`].
    pub(super) fn new(total: Duration) -> Self {
        let total = milliseconds(total);
        let smallest = milliseconds(SMALLEST).min(total / 8);
        let meter = Meter::new(Bounds { smallest, ..Bounds::of(total) }, PERIOD);
        Self { milliseconds: Arc::new(Mutex::new(meter)), began: Instant::now() }
    }

    /// Opens the account of a process that is about to start, unless its claimant has used up its share. The server's
    /// own work is not counted, and what it does because of other servers is bounded by limits per host.
    pub(super) fn open(&self, claimant: Claimant) -> Result<Option<CpuAccount>, Shortage> {
        if claimant.network.is_none() {
            return Ok(None);
        }
        self.lock().spend(self.now(), &claimant, milliseconds(START))?;
        Ok(Some(CpuAccount { meter: self.clone(), claimant }))
    }

    fn now(&self) -> Mono {
        Mono::new(self.began.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Meter> {
        // Every change is complete when the lock is released.
        self.milliseconds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CpuAccount {
    /// Charges what a process that has not been reaped, and all that it started, have used.
    pub(super) fn charge(&self, pid: Pid) {
        let used = milliseconds(used_by(pid));
        self.meter.lock().charge(self.meter.now(), &self.claimant, used);
    }

    /// Waits until a child has ended, without reaping it.
    pub(super) async fn ended(&self, pid: Pid) {
        // Told of every child that ends from here on, so that none ends between a look and the wait.
        let Ok(mut ends) = signal(SignalKind::child()) else { return };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Ok(None) = waitid(WaitId::Pid(pid), look) {
            if ends.recv().await.is_none() {
                return;
            }
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the CPU time of a process, of its children that have ended, and of those that run.
#[cfg(target_os = "linux")]
fn used_by(pid: Pid) -> Duration {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let own = std::fs::read_to_string(path).map_or(Duration::ZERO, |stat| used(&stat));
    super::limits::children_of(pid).into_iter().fold(own, |sum, child| sum + used_by(child))
}

/// Returns nothing: only Linux tells.
#[cfg(not(target_os = "linux"))]
fn used_by(_: Pid) -> Duration {
    Duration::ZERO
}

/// Reads the CPU time of a process and of its children that have ended from `/proc/PID/stat`.
#[cfg(target_os = "linux")]
fn used(stat: &str) -> Duration {
    // Linux reports 100 ticks a second to programs, independent of its own clock.
    const TICK: Duration = Duration::from_millis(10);
    // The name, in parentheses, may contain anything. After it come the state, ten fields that do not matter here, and
    // the time in user and kernel mode: its own, and that of its children.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks = fields.skip(11).take(4).filter_map(|field| field.parse::<u32>().ok());
    TICK.saturating_mul(ticks.fold(0, u32::saturating_add))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs;
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use grasp_core::resources::ClientNetwork;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::git::{Git, GitError, Slots};

    fn at(net: u8) -> Claimant {
        Claimant::at(ClientNetwork::of(Ipv4Addr::new(198, 51, net, 1).into()))
    }

    #[test]
    fn the_time_of_a_process_and_its_children_is_read() {
        let stat = "7 (git) x (y)) S 1 7 7 0 -1 4194304 107 0 0 0 3 4 50 60 20 0 1 0 99 1 2";
        assert_eq!(used(stat), Duration::from_millis(1_170));
        assert_eq!(used(""), Duration::ZERO);
    }

    /// A program that is taken for git. Its child uses a second of CPU time; then it says so, and waits for its input
    /// to end.
    fn burning(dir: &Path) -> Git {
        let path = dir.join("git");
        let script = "[ \"$1\" = --version ] && echo git version 2.47.0 && exit\n\
                      /bin/sh -c 'ulimit -t 1; while :; do :; done' 2>/dev/null\necho; read end\n";
        fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Git::at(path, Slots { client_cpu: Duration::from_secs(4), ..Slots::default() }).unwrap()
    }

    fn used_in_all(git: &Git) -> u64 {
        let meter = git.client_cpu();
        meter.lock().usage(meter.now()).all
    }

    #[tokio::test]
    async fn a_network_that_used_its_share_is_refused_while_others_and_maintainers_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let git = burning(dir.path());
        git.command("x").claimed_by(at(1)).run(Vec::new()).await.unwrap();
        let used = used_in_all(&git);
        assert!((900..1_900).contains(&used), "{used} ms");
        let refused = git.command("x").claimed_by(at(1)).run(Vec::new()).await;
        assert!(matches!(refused, Err(GitError::Busy(Shortage::Network(_)))), "{refused:?}");
        for allowed in [at(2), at(1).with_authority(), Claimant::server()] {
            drop(git.command("x").claimed_by(allowed).spawn().await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_process_whose_client_has_gone_is_charged_too() {
        let dir = tempfile::tempdir().unwrap();
        let git = burning(dir.path());
        let mut process = git.command("x").claimed_by(at(1)).spawn().await.unwrap();
        let stdin = process.take_stdin();
        process.take_stdout().unwrap().read_exact(&mut [0]).await.unwrap();
        assert!(used_in_all(&git) < 100);
        drop(process);
        while used_in_all(&git) < 900 {
            tokio::task::yield_now().await;
        }
        drop(stdin);
    }
}
