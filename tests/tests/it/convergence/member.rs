//! One of several servers, which can be stopped, killed and started again.

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

use super::network::with_short_delays;

/// Variables that make a process of this test binary a member, with its directory, address and bootstrap relays.
const DIR_VAR: &str = "GRASP_TEST_MEMBER_DIR";
const ADDRESS_VAR: &str = "GRASP_TEST_MEMBER_ADDRESS";
const OTHERS_VAR: &str = "GRASP_TEST_MEMBER_OTHERS";

/// Prefix of a member's lines in the output of a test binary.
const LINE_PREFIX: &str = "> ";

/// A data directory, an address, and the server that runs there at present.
pub(super) struct Member {
    dir: TempDir,
    address: SocketAddr,
    others: Vec<SocketAddr>,
    settings: Settings,
    running: Running,
}

enum Running {
    Stopped,
    InProcess(Box<Instance>),
    Process(Child, ChildStdin, BufReader<ChildStdout>),
}

impl Member {
    pub(super) fn new(address: SocketAddr, others: Vec<SocketAddr>, settings: Settings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            dir,
            address,
            others,
            settings,
            running: Running::Stopped,
        }
    }

    pub(super) fn client(&self) -> ServerClient {
        ServerClient::at(self.address)
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces the bootstrap relays.
    pub(super) fn set_bootstrap(&mut self, others: &[SocketAddr]) {
        self.others = others.to_vec();
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the server in this process.
    pub(super) async fn start(&mut self) {
        let (address, others) = (self.address, self.others.clone());
        let instance = run(self.dir.path(), address, &others, self.settings.clone()).await;
        self.running = Running::InProcess(Box::new(instance));
    }

    /// Stops a server in this process gracefully.
    pub(super) async fn stop(&mut self) {
        if let Running::InProcess(instance) = std::mem::replace(&mut self.running, Running::Stopped)
        {
            instance.stop().await;
        }
    }

    /// Returns the driver of purgatory, if the server runs in this process.
    pub(super) fn purgatory(&self) -> &PurgatoryDriver {
        match &self.running {
            Running::InProcess(instance) => instance.purgatory(),
            _ => panic!("the server does not run in this process"),
        }
    }

    /// Returns the status of another member at this one.
    pub(super) async fn status_of(&self, other: &Self) -> Option<RelayStatus> {
        let Running::InProcess(instance) = &self.running else {
            return None;
        };
        let status = instance.server().syncer().await?.status().await;
        status
            .relays
            .get(&other.client().relay_url().parse().unwrap())
            .cloned()
    }

    /// Starts the server as a process.
    pub(super) fn spawn(&mut self) {
        let others: Vec<_> = self.others.iter().map(SocketAddr::to_string).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "convergence::member::serves_until_it_is_killed"])
            .args(["--ignored", "--nocapture"])
            .env(DIR_VAR, self.dir.path())
            .env(ADDRESS_VAR, self.address.to_string())
            .env(OTHERS_VAR, others.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        self.running = Running::Process(child, input, BufReader::new(output));
        assert!(self.wait_for_line(), "the server is ready");
    }

    /// Kills the process by SIGKILL, if it runs.
    pub(super) fn kill(&mut self) {
        if let Running::Process(child, ..) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.running = Running::Stopped;
    }

    /// Returns whether the server runs.
    pub(super) fn is_running(&mut self) -> bool {
        match &mut self.running {
            Running::Process(child, ..) => child.try_wait().unwrap().is_none(),
            Running::InProcess(_) => true,
            Running::Stopped => false,
        }
    }

    /// Makes the process kill itself after this number of clock readings; 0 means never.
    pub(super) fn kill_after(&mut self, readings: u64) -> bool {
        let Running::Process(_, input, _) = &mut self.running else {
            return false;
        };
        writeln!(input, "{readings}").is_ok() && self.wait_for_line()
    }

    /// Waits for the next line of the process, and returns whether it came before the process ended.
    fn wait_for_line(&mut self) -> bool {
        let Running::Process(_, _, output) = &mut self.running else {
            return false;
        };
        output
            .lines()
            .map_while(Result::ok)
            .any(|line| line.contains(LINE_PREFIX))
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
        let urls = others
            .iter()
            .map(|other| format!("ws://{other}").parse().unwrap());
        settings.sync.engine.bootstrap = urls.collect();
    })
    .await
}

#[test]
#[ignore = "the server process of the tests of this module"]
fn serves_until_it_is_killed() {
    let var = |name: &str| std::env::var(name).ok();
    let (Some(dir), Some(address), Some(others)) =
        (var(DIR_VAR), var(ADDRESS_VAR), var(OTHERS_VAR))
    else {
        return;
    };
    let others = others.split(',').filter(|other| !other.is_empty());
    let others: Vec<SocketAddr> = others.map(|other| other.parse().unwrap()).collect();
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let settings = Settings {
        clock: crashing_clock(Arc::clone(&left)),
        ..Settings::one_process()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _instance = runtime.block_on(run(
        Path::new(&dir),
        address.parse().unwrap(),
        &others,
        settings,
    ));
    let answer = || {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{LINE_PREFIX}")
            .and_then(|()| output.flush())
            .unwrap();
    };
    answer();
    // Until the test process ends.
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let readings: u64 = line.parse().unwrap();
        left.store(
            if readings == 0 { u64::MAX } else { readings },
            Ordering::SeqCst,
        );
        answer();
    }
    std::process::exit(0);
}

/// Returns a clock that kills the process after this number of readings.
fn crashing_clock(left: Arc<AtomicU64>) -> Clock {
    let system = Clock::system();
    Clock::new(move || {
        if left.fetch_sub(1, Ordering::SeqCst) == 1 {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        system.now()
    })
}
