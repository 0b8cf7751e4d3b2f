//! Limits of one git process, enforced by the kernel, and CPU time that git uses for clients, counted by their networks.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::Mono;
use grasp_core::resources::{Bounds, Claimant, Meter, Shortage};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, setpriority_process, waitid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// The priority of work without authority, in steps below that of the server (`nice`).
const UNTRUSTED_NICE: i32 = 10;

/// CPU time that a process may use for clients without authority, independent of the size of its data.
const LEAST_CPU: Duration = Duration::from_secs(10);

/// The same for maintainers and the server itself.
const LEAST_CPU_WITH_AUTHORITY: Duration = Duration::from_secs(60);

/// CPU time that a process may use for each MiB of its data. Git unpacks and checks 3 to 10 MiB in a second.
const CPU_PER_MIB: Duration = Duration::from_secs(2);

/// Sets the limits that are its first four arguments, and becomes the command that the rest is. A system that does
/// not know one of them does without. A process at the limit of a file's size gets an error and no signal, and can say
/// so. Memory and CPU time are bounded softly: [`ProcessLimits::raise`] can raise them.
const LIMITED: &str = "trap '' XFSZ; ulimit -S -d \"$0\"; ulimit -f \"$1\"; ulimit -S -t \"$2\"; \
                       [ -z \"$3\" ] || ulimit -S -s \"$3\"; shift 3; exec \"$@\"";

/// Limits of one process, and of each of its children; none where nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessLimits {
    /// Memory, in bytes.
    pub(in crate::git) memory: Option<u64>,
    /// The size of any file it writes, in bytes.
    pub(super) file: Option<u64>,
    /// CPU time.
    pub(super) cpu: Option<Duration>,
    /// The stack of each thread, in bytes. Memory bounds the stacks of all threads but the first.
    pub(super) stack: Option<u64>,
}

impl ProcessLimits {
    /// Limits CPU time by the size of the data that is worked on.
    pub(super) fn for_data(claimant: &Claimant, bytes: u64) -> Self {
        Self {
            cpu: Some(cpu_for(claimant, bytes)),
            ..Self::default()
        }
    }

    /// Returns the program, or a shell that limits itself before it becomes the program. Limits that can be set from
    /// outside are left to [`raise`](Self::raise), which spares the shell.
    pub(super) fn command(&self, program: &Path) -> Command {
        const KIB: u64 = 1024;
        const BLOCK: u64 = 512;
        if !self.needs_shell() {
            return Command::new(program);
        }
        let number =
            |limit: Option<u64>| limit.map_or(String::from("unlimited"), |n| n.to_string());
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", LIMITED])
            .arg(number(self.memory.map(|bytes| bytes / KIB)))
            .arg(number(self.file.map(|bytes| bytes / BLOCK)))
            .arg(number(self.cpu.map(|time| time.as_secs().max(1))))
            .arg(
                self.stack
                    .map_or(String::new(), |bytes| (bytes / KIB).to_string()),
            )
            .arg(program);
        command
    }

    /// Returns whether the process must set a limit itself before it becomes git. CPU time can be limited once it runs: it
    /// has used next to none by then.
    fn needs_shell(&self) -> bool {
        match cfg!(target_os = "linux") {
            true => Self { cpu: None, ..*self } != Self::default(),
            false => *self != Self::default(),
        }
    }

    /// Sets the limits of a process that has just been started, unless it has them.
    pub(super) fn apply(&self, child: &Child) {
        if let (false, Some(pid)) = (self.needs_shell(), pid(child)) {
            self.raise(pid);
        }
    }

    /// Raises the limits of memory and CPU time of a process that runs.
    #[cfg(target_os = "linux")]
    pub(super) fn raise(&self, pid: Pid) {
        use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

        let cpu = self.cpu.map(|time| time.as_secs().max(1));
        for (resource, limit) in [(Resource::Data, self.memory), (Resource::Cpu, cpu)] {
            let Some(limit) = limit else { continue };
            // The child has our own hard limits, which may not be exceeded.
            let maximum = getrlimit(resource).maximum;
            let current = Some(maximum.map_or(limit, |maximum| limit.min(maximum)));
            // A process that is gone needs no limit.
            _ = prlimit(Some(pid), resource, Rlimit { current, maximum });
        }
    }

    /// Does nothing: where limits cannot be raised they are as high as they may become from the start.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn raise(&self, _: Pid) {}

    /// Raises them for a process and all that it has started; what it starts from now on has them, too.
    pub(super) fn raise_all(&self, pid: Pid) {
        self.raise(pid);
        // A child that was started before that is found now; one that is started later has its parent's limits.
        children_of(pid)
            .into_iter()
            .for_each(|child| self.raise_all(child));
    }
}

/// Returns the processes that a process has started, whichever of its threads did. Empty if it is gone; only Linux tells.
pub(super) fn children_of(pid: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let lists = tasks
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| task.path().join("children"));
    let texts = lists.map(|list| std::fs::read_to_string(list).unwrap_or_default());
    let pids = |text: String| {
        let ids = text.split_whitespace().filter_map(|id| id.parse().ok());
        ids.filter_map(Pid::from_raw).collect::<Vec<_>>()
    };
    texts.flat_map(pids).collect()
}

/// Returns the CPU time that a process may use for so many bytes of data.
fn cpu_for(claimant: &Claimant, bytes: u64) -> Duration {
    const MIB: u64 = 1024 * 1024;
    let least = if claimant.has_authority {
        LEAST_CPU_WITH_AUTHORITY
    } else {
        LEAST_CPU
    };
    let mebibytes = u32::try_from(bytes / MIB).unwrap_or(u32::MAX);
    least.saturating_add(CPU_PER_MIB.saturating_mul(mebibytes))
}

/// Lowers the priority of a process and all that it starts.
pub(super) fn give_way(child: &Child) {
    if let Some(pid) = pid(child) {
        // A process that has ended is no failure.
        _ = setpriority_process(Some(pid), UNTRUSTED_NICE);
    }
}

/// Returns whether a process or a child that it reported reached its limit of CPU time.
pub(super) fn is_cpu_exhausted(status: ExitStatus, words: &[u8]) -> bool {
    let signal = Signal::XCPU.as_raw();
    let told = format!("died of signal {signal}");
    status.signal() == Some(signal) || words.windows(told.len()).any(|w| w == told.as_bytes())
}

/// Returns the id of a process that was not reaped.
pub(super) fn pid(child: &Child) -> Option<Pid> {
    child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw)
}

/// The time after which CPU time that was used comes back.
pub(super) const CPU_PERIOD: Duration = Duration::from_secs(10 * 60);

/// CPU time that counts for each process beside what the kernel says, which counts in steps of 10 ms.
const CPU_PER_START: Duration = Duration::from_millis(2);

/// CPU time that a network may use while it is free, however small its share.
const SMALLEST_CPU_SHARE: Duration = Duration::from_secs(60);

/// Counts the CPU time of git by client networks, of its processes and of this one. Clones share it.
///
/// Limits of a process bound what one request costs; this bounds what a client network costs with one request after
/// the other. A process is charged when it ends, so a network can overdraw its share by what runs at once, which slots
/// and limits bound.
#[derive(Clone, Debug)]
pub(super) struct CpuMeter {
    microseconds: Arc<Mutex<Meter>>,
    began: Instant,
}

/// The account that the processes of one command are charged to.
#[derive(Debug)]
pub(super) struct CpuAccount {
    meter: CpuMeter,
    claimant: Claimant,
}

impl CpuMeter {
    /// Creates a meter with this much CPU time for all clients in each [`CPU_PERIOD`].
    pub(super) fn new(total: Duration) -> Self {
        Self::within(Bounds::of(microseconds(total)))
    }

    /// Creates a meter of which nothing is kept for claimants with authority.
    pub(super) fn without_reserve(total: Duration) -> Self {
        Self::within(Bounds {
            reserve: 0,
            ..Bounds::of(microseconds(total))
        })
    }

    fn within(bounds: Bounds) -> Self {
        let smallest = microseconds(SMALLEST_CPU_SHARE).min(bounds.total / 8);
        let meter = Meter::new(Bounds { smallest, ..bounds }, CPU_PERIOD);
        Self {
            microseconds: Arc::new(Mutex::new(meter)),
            began: Instant::now(),
        }
    }

    /// Returns whether at least half of all CPU time is used.
    pub(super) fn is_half_used(&self) -> bool {
        let mut meter = self.microseconds.lock();
        meter.usage(self.now()).all * 2 >= meter.bounds().total
    }

    /// Opens the account of a process that is about to start, unless its claimant has used up its share. The server's
    /// own work is not counted, and what it does because of other servers is bounded by limits per host.
    pub(super) fn open(&self, claimant: Claimant) -> Result<Option<CpuAccount>, Shortage> {
        self.open_with(claimant, CPU_PER_START)
    }

    /// Does the same for work that costs this much beside what is measured.
    pub(super) fn open_with(
        &self,
        claimant: Claimant,
        cost: Duration,
    ) -> Result<Option<CpuAccount>, Shortage> {
        if claimant.network.is_none() {
            return Ok(None);
        }
        self.microseconds
            .lock()
            .spend(self.now(), &claimant, microseconds(cost))?;
        Ok(self.account(claimant))
    }

    /// Returns the account of a claimant, whether it has used up its share or not.
    pub(super) fn account(&self, claimant: Claimant) -> Option<CpuAccount> {
        claimant.network.map(|_| CpuAccount {
            meter: self.clone(),
            claimant,
        })
    }

    fn now(&self) -> Mono {
        Mono::new(self.began.elapsed())
    }
}

impl CpuAccount {
    /// Charges what a process that has not been reaped, and all that it started, have used.
    pub(super) fn charge(&self, pid: Pid) {
        self.charge_time(used_by(pid));
    }

    /// Charges time that was used.
    pub(super) fn charge_time(&self, used: Duration) {
        let used = microseconds(used);
        self.meter
            .microseconds
            .lock()
            .charge(self.meter.now(), &self.claimant, used);
    }

    /// Waits until a child has ended, without reaping it.
    pub(super) async fn ended(&self, pid: Pid) {
        // Told of every child that ends from here on, so that none ends between a look and the wait.
        let Ok(mut ends) = signal(SignalKind::child()) else {
            return;
        };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Ok(None) = waitid(WaitId::Pid(pid), look) {
            if ends.recv().await.is_none() {
                return;
            }
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the CPU time of a process, of its children that have ended, and of those that run. Only Linux tells.
fn used_by(pid: Pid) -> Duration {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let own = std::fs::read_to_string(path).map_or(Duration::ZERO, |stat| used(&stat));
    children_of(pid)
        .into_iter()
        .fold(own, |sum, child| sum + used_by(child))
}

/// Reads the CPU time of a process and of its children that have ended from `/proc/PID/stat`.
fn used(stat: &str) -> Duration {
    // Linux reports 100 ticks a second to programs, independent of its own clock.
    const TICK: Duration = Duration::from_millis(10);
    // The name, in parentheses, may contain anything. After it come the state, ten fields that do not matter here, and
    // the time in user and kernel mode: its own, and that of its children.
    let fields = stat
        .rsplit_once(')')
        .map_or("", |(_, fields)| fields)
        .split_whitespace();
    let ticks = fields
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse::<u32>().ok());
    TICK.saturating_mul(ticks.fold(0, u32::saturating_add))
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use grasp_core::resources::ClientNetwork;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn shell(limits: ProcessLimits, script: &str) -> Command {
        let mut command = limits.command(Path::new("/bin/sh"));
        command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    #[test]
    fn half_of_the_time_is_used_once_all_networks_have_used_it() {
        let at = |address: &str| Claimant::at(ClientNetwork::of(address.parse().unwrap()));
        let meter = CpuMeter::without_reserve(Duration::from_secs(100));
        let charge = |address, seconds| {
            let account = meter.account(at(address)).unwrap();
            account.charge_time(Duration::from_secs(seconds));
        };
        charge("192.0.2.1", 25);
        charge("198.51.100.1", 24);
        assert!(!meter.is_half_used());
        // A little more than half, because time that was used comes back.
        charge("203.0.113.1", 2);
        assert!(meter.is_half_used());
    }

    #[tokio::test]
    async fn a_process_that_uses_up_its_cpu_time_ends() {
        let limits = ProcessLimits {
            cpu: Some(Duration::from_secs(1)),
            ..Default::default()
        };
        let mut burning = shell(limits, "while :; do :; done").spawn().unwrap();
        limits.apply(&burning);
        let status = burning.wait().await.unwrap();
        assert!(is_cpu_exhausted(status, b""), "{status}");
        let child = b"error: index-pack died of signal 24\nfatal: index-pack failed";
        let mut content = shell(ProcessLimits::default(), "exit 1").spawn().unwrap();
        let status = content.wait().await.unwrap();
        assert!(is_cpu_exhausted(status, child) && !is_cpu_exhausted(status, b"fatal: x"));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_limits_of_a_running_process_can_be_raised() {
        let (memory, cpu) = (Some(64 << 20), Some(Duration::from_secs(10)));
        let limits = ProcessLimits {
            memory,
            cpu,
            ..Default::default()
        };
        let mut child = shell(limits, "ulimit -S -d; read go; ulimit -S -d; ulimit -S -t").spawn();
        let child = child.as_mut().unwrap();
        let more = ProcessLimits {
            memory: Some(128 << 20),
            cpu: Some(Duration::from_secs(99)),
            ..limits
        };
        let mut stdout = child.stdout.take().unwrap();
        let mut first = [0; 6];
        stdout.read_exact(&mut first).await.unwrap();
        more.raise(pid(child).unwrap());
        child
            .stdin
            .take()
            .unwrap()
            .write_all(b"go\n")
            .await
            .unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).await.unwrap();
        assert_eq!(
            (&first[..], rest.as_str()),
            (&b"65536\n"[..], "131072\n99\n")
        );
        child.wait().await.unwrap();
    }

    #[test]
    fn cpu_time_grows_with_the_data_and_is_longer_for_maintainers() {
        let (client, maintainer) = (Claimant::default(), Claimant::server());
        let seconds = |claimant, mib: u64| cpu_for(claimant, mib << 20).as_secs();
        assert_eq!([0, 1, 100].map(|mib| seconds(&client, mib)), [10, 12, 210]);
        assert_eq!(seconds(&maintainer, 1), 62);
        assert_eq!(
            cpu_for(&client, u64::MAX).as_secs(),
            10 + 2 * u64::from(u32::MAX)
        );
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod cpu_tests {
    use std::net::Ipv4Addr;
    use std::path::Path;

    use grasp_core::resources::ClientNetwork;
    use tokio::io::AsyncReadExt;

    use super::super::binary::tests::write_program;
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

    /// Creates a program in place of git. Its child uses a second of CPU time; then it prints a line, and waits for its input
    /// to end.
    fn cpu_intensive_git(dir: &Path) -> Git {
        let path = dir.join("git");
        let script = "[ \"$1\" = --version ] && echo git version 2.47.0 && exit\n\
                      /bin/sh -c 'ulimit -t 1; while :; do :; done' 2>/dev/null\necho; read end\n";
        write_program(&path, &format!("#!/bin/sh\n{script}"));
        Git::at(
            path,
            Slots {
                client_cpu: Duration::from_secs(4),
                ..Slots::default()
            },
        )
        .unwrap()
    }

    fn used_in_all(git: &Git) -> u64 {
        let meter = &git.pools.client_cpu;
        meter.microseconds.lock().usage(meter.now()).all / 1_000
    }

    #[tokio::test]
    async fn a_network_that_used_its_share_is_refused_while_others_and_maintainers_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let git = cpu_intensive_git(dir.path());
        git.command("x")
            .claimed_by(at(1))
            .run(Vec::new())
            .await
            .unwrap();
        let used = used_in_all(&git);
        assert!((500..1_900).contains(&used), "{used} ms");
        let refused = git.command("x").claimed_by(at(1)).run(Vec::new()).await;
        assert!(
            matches!(refused, Err(GitError::Busy(Shortage::Network(_)))),
            "{refused:?}"
        );
        for allowed in [at(2), at(1).with_authority(), Claimant::server()] {
            drop(git.command("x").claimed_by(allowed).spawn().await.unwrap());
        }
    }

    #[tokio::test]
    async fn a_process_whose_client_has_gone_is_charged_too() {
        let dir = tempfile::tempdir().unwrap();
        let git = cpu_intensive_git(dir.path());
        let mut process = git.command("x").claimed_by(at(1)).spawn().await.unwrap();
        let stdin = process.take_stdin();
        process
            .take_stdout()
            .unwrap()
            .read_exact(&mut [0])
            .await
            .unwrap();
        assert!(used_in_all(&git) < 100);
        drop(process);
        while used_in_all(&git) < 500 {
            tokio::task::yield_now().await;
        }
        drop(stdin);
    }
}
