//! One server of several, that comes and goes.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_purgatory::driver::PurgatoryDriver;
use grasp_relay::Clock;
use grasp_sync::driver::RelayStatus;
use grasp_tests::{Instance, ServerClient, Settings};
use rustix::process::{Signal, getpid, kill_process};
use tempfile::TempDir;

use super::net::with_short_delays;

/// Tells a process of this very binary to be a member, and where, and who the others are.
const DIR: &str = "GRASP_TEST_MEMBER_DIR";
const ADDRESS: &str = "GRASP_TEST_MEMBER_ADDRESS";
const OTHERS: &str = "GRASP_TEST_MEMBER_OTHERS";

/// Marks what a member says, among what a test binary says.
const MARK: &str = "> ";

/// A place, an address, and what runs there at present.
pub(super) struct Member {
    dir: TempDir,
    address: SocketAddr,
    others: Vec<SocketAddr>,
    settings: Settings,
    running: Running,
}

enum Running {
    Nothing,
    Here(Box<Instance>),
    Process(Child, ChildStdin, BufReader<ChildStdout>),
}

impl Member {
    pub(super) fn new(address: SocketAddr, others: Vec<SocketAddr>, settings: Settings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, address, others, settings, running: Running::Nothing }
    }

    pub(super) fn client(&self) -> ServerClient {
        ServerClient::at(self.address)
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Knows nobody but these from the start.
    pub(super) fn know_only(&mut self, others: &[SocketAddr]) {
        self.others = others.to_vec();
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs it in this process.
    pub(super) async fn start(&mut self) {
        let (address, others) = (self.address, self.others.clone());
        let instance = run(self.dir.path(), address, &others, self.settings.clone()).await;
        self.running = Running::Here(Box::new(instance));
    }

    /// Ends it as it should be ended.
    pub(super) async fn stop(&mut self) {
        if let Running::Here(instance) = std::mem::replace(&mut self.running, Running::Nothing) {
            instance.stop().await;
        }
    }

    /// What keeps its events and git data in step, if it runs in this process.
    pub(super) fn purgatory(&self) -> &PurgatoryDriver {
        match &self.running {
            Running::Here(instance) => instance.purgatory(),
            _ => panic!("it does not run here"),
        }
    }

    /// What it thinks of another.
    pub(super) async fn thinks_of(&self, other: &Self) -> Option<RelayStatus> {
        let Running::Here(instance) = &self.running else { return None };
        let status = instance.server().syncer().await?.status().await;
        status.relays.get(&other.client().relay_url().parse().unwrap()).cloned()
    }

    /// Runs it as a process.
    pub(super) fn spawn(&mut self) {
        let others: Vec<_> = self.others.iter().map(SocketAddr::to_string).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "whole::member::serves_until_it_is_killed"])
            .args(["--ignored", "--nocapture"])
            .env(DIR, self.dir.path())
            .env(ADDRESS, self.address.to_string())
            .env(OTHERS, others.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        self.running = Running::Process(child, input, BufReader::new(output));
        assert!(self.hears(), "it is up");
    }

    /// `kill -9`, if it lives.
    pub(super) fn kill(&mut self) {
        if let Running::Process(child, ..) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.running = Running::Nothing;
    }

    /// Whether its process lives.
    pub(super) fn lives(&mut self) -> bool {
        match &mut self.running {
            Running::Process(child, ..) => child.try_wait().unwrap().is_none(),
            Running::Here(_) => true,
            Running::Nothing => false,
        }
    }

    /// Has it kill itself when it next reads its clock for that many times; 0 for not at all.
    pub(super) fn arm(&mut self, readings: u64) -> bool {
        let Running::Process(_, input, _) = &mut self.running else { return false };
        writeln!(input, "{readings}").is_ok() && self.hears()
    }

    /// Waits for its next word; whether it lived to say it.
    fn hears(&mut self) -> bool {
        let Running::Process(_, _, output) = &mut self.running else { return false };
        output.lines().map_while(Result::ok).any(|line| line.contains(MARK))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn run(
    dir: &Path,
    address: SocketAddr,
    others: &[SocketAddr],
    settings: Settings,
) -> Instance {
    Instance::at_with(dir, address, settings, |settings| {
        with_short_delays(settings);
        let urls = others.iter().map(|other| format!("ws://{other}").parse().unwrap());
        settings.sync.engine.bootstrap = urls.collect();
    })
    .await
}

#[test]
#[ignore = "the process that is killed by the tests of this module"]
fn serves_until_it_is_killed() {
    let var = |name: &str| std::env::var(name).ok();
    let (Some(dir), Some(address), Some(others)) = (var(DIR), var(ADDRESS), var(OTHERS)) else {
        return;
    };
    let others = others.split(',').filter(|other| !other.is_empty());
    let others: Vec<SocketAddr> = others.map(|other| other.parse().unwrap()).collect();
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let settings = Settings { clock: deadly(Arc::clone(&left)), ..Settings::one_process() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _instance =
        runtime.block_on(run(Path::new(&dir), address.parse().unwrap(), &others, settings));
    let answer = || {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{MARK}").and_then(|()| output.flush()).unwrap();
    };
    answer();
    // Until whoever started it is gone.
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let readings: u64 = line.parse().unwrap();
        left.store(if readings == 0 { u64::MAX } else { readings }, Ordering::SeqCst);
        answer();
    }
    std::process::exit(0);
}

/// A clock that may be read so many times.
fn deadly(left: Arc<AtomicU64>) -> Clock {
    let system = Clock::system();
    Clock::new(move || {
        if left.fetch_sub(1, Ordering::SeqCst) == 1 {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        system.now()
    })
}
