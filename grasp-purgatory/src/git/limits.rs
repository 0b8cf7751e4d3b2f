//! Limits of one git process, enforced by the kernel.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use grasp_core::resources::Claimant;
use rustix::process::{Pid, Signal, setpriority_process};
use tokio::process::{Child, Command};

/// The priority of work for strangers, in steps below that of the server (`nice`).
const STRANGERS_PRIORITY: i32 = 10;

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
        Self { cpu: Some(cpu_for(claimant, bytes)), ..Self::default() }
    }

    /// Returns the program, or a shell that limits itself before it becomes the program.
    pub(super) fn command(&self, program: &Path) -> Command {
        const KIB: u64 = 1024;
        const BLOCK: u64 = 512;
        if *self == Self::default() {
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
            .arg(self.stack.map_or(String::new(), |bytes| (bytes / KIB).to_string()))
            .arg(program);
        command
    }

    /// Raises the limits of memory and CPU time of a process that runs. Only Linux can.
    #[cfg(target_os = "linux")]
    pub(super) fn raise(&self, child: &Child) {
        if let Some(pid) = pid(child) {
            self.raise_one(pid);
        }
    }

    /// Raises them for a process and all that it has started; what it starts from now on has them, too.
    #[cfg(target_os = "linux")]
    pub(super) fn raise_all(&self, pid: Pid) {
        self.raise_one(pid);
        // A child that was started before that is found now; one that is started later has its parent's limits.
        children_of(pid).into_iter().for_each(|child| self.raise_all(child));
    }

    #[cfg(target_os = "linux")]
    fn raise_one(&self, pid: Pid) {
        use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

        let cpu = self.cpu.map(|time| time.as_secs());
        for (resource, limit) in [(Resource::Data, self.memory), (Resource::Cpu, cpu)] {
            let Some(limit) = limit else { continue };
            // The child has our own hard limits, which may not be exceeded.
            let maximum = getrlimit(resource).maximum;
            let current = Some(maximum.map_or(limit, |maximum| limit.min(maximum)));
            // A process that is gone needs no limit.
            _ = prlimit(Some(pid), resource, Rlimit { current, maximum });
        }
    }

    /// Does nothing: limits are as high as they may become from the start.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn raise(&self, _: &Child) {}

    /// Does nothing, for the same reason.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn raise_all(&self, _: Pid) {}
}

/// Returns the processes that a process has started, whichever of its threads did. Empty if it is gone.
#[cfg(target_os = "linux")]
pub(super) fn children_of(pid: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let lists = tasks.into_iter().flatten().flatten().map(|task| task.path().join("children"));
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
    let least = if claimant.has_authority { LEAST_CPU_WITH_AUTHORITY } else { LEAST_CPU };
    let mebibytes = u32::try_from(bytes / MIB).unwrap_or(u32::MAX);
    least.saturating_add(CPU_PER_MIB.saturating_mul(mebibytes))
}

/// Lowers the priority of a process and all that it starts.
pub(super) fn give_way(child: &Child) {
    if let Some(pid) = pid(child) {
        // A process that has ended is no failure.
        _ = setpriority_process(Some(pid), STRANGERS_PRIORITY);
    }
}

/// Returns whether a process or a child that it reported reached its limit of CPU time.
pub(super) fn is_cpu_exhausted(status: ExitStatus, words: &[u8]) -> bool {
    let signal = Signal::XCPU.as_raw();
    let told = format!("died of signal {signal}");
    status.signal() == Some(signal) || words.windows(told.len()).any(|w| w == told.as_bytes())
}

fn pid(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn shell(limits: ProcessLimits, script: &str) -> Command {
        let mut command = limits.command(Path::new("/bin/sh"));
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    #[tokio::test]
    async fn a_process_that_burns_its_cpu_time_ends() {
        let limits = ProcessLimits { cpu: Some(Duration::from_secs(1)), ..Default::default() };
        let mut burning = shell(limits, "while :; do :; done").spawn().unwrap();
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
        let limits = ProcessLimits { memory, cpu, ..Default::default() };
        let mut child = shell(limits, "ulimit -S -d; read go; ulimit -S -d; ulimit -S -t").spawn();
        let child = child.as_mut().unwrap();
        let more =
            ProcessLimits { memory: Some(128 << 20), cpu: Some(Duration::from_secs(99)), ..limits };
        let mut stdout = child.stdout.take().unwrap();
        let mut first = [0; 6];
        stdout.read_exact(&mut first).await.unwrap();
        more.raise(child);
        child.stdin.take().unwrap().write_all(b"go\n").await.unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).await.unwrap();
        assert_eq!((&first[..], rest.as_str()), (&b"65536\n"[..], "131072\n99\n"));
        child.wait().await.unwrap();
    }

    #[test]
    fn cpu_time_grows_with_the_data_and_is_longer_for_maintainers() {
        let (stranger, maintainer) = (Claimant::default(), Claimant::server());
        let seconds = |claimant, mib: u64| cpu_for(claimant, mib << 20).as_secs();
        assert_eq!([0, 1, 100].map(|mib| seconds(&stranger, mib)), [10, 12, 210]);
        assert_eq!(seconds(&maintainer, 1), 62);
        assert_eq!(cpu_for(&stranger, u64::MAX).as_secs(), 10 + 2 * u64::from(u32::MAX));
    }
}
