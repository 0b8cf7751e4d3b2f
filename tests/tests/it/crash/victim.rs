//! The server that dies.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use grasp_core::{RepoId, ServiceIdentity};
use grasp_purgatory::driver::JOURNAL;
use grasp_purgatory::git::{CHANGES, GitError};
use grasp_relay::Clock;
use grasp_tests::{Instance, Settings};
use nostr::event::{Event, EventId};
use rustix::process::{Signal, getpid, kill_process};
use tempfile::TempDir;
use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};

/// Tells a process of this very binary to be the victim, and where.
const DIR: &str = "GRASP_TEST_CRASH_DIR";
const ADDRESS: &str = "GRASP_TEST_CRASH_ADDRESS";
/// At which reading of its clock it dies, at which step of its journal, and at which change of git data on disk; 0 for
/// never.
const AT_READING: &str = "GRASP_TEST_CRASH_AT_READING";
const AT_STEP: &str = "GRASP_TEST_CRASH_AT_STEP";
const AT_CHANGE: &str = "GRASP_TEST_CRASH_AT_CHANGE";

/// When it dies by its own hand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Death {
    Never,
    AtReading(u64),
    AtStep(u64),
    /// Counted from the request to repair.
    AtChange(u64),
}

/// Marks what the victim says, among what a test binary says.
const MARK: &str = "> ";

/// A place and an address for a server, and the process that is it at present.
pub(super) struct Victim {
    dir: TempDir,
    address: SocketAddr,
    running: Option<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Victim {
    pub(super) fn new() -> Self {
        // Free a moment ago, and nobody else asks for this very one.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Self { dir: tempfile::tempdir().unwrap(), address, running: None }
    }

    /// Starts it; whether it lived to say so.
    pub(super) fn start(&mut self, at: Death) -> bool {
        let (reading, step, change) = match at {
            Death::Never => (0, 0, 0),
            Death::AtReading(number) => (number, 0, 0),
            Death::AtStep(number) => (0, number, 0),
            Death::AtChange(number) => (0, 0, number),
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::victim::serves_until_it_dies", "--ignored", "--nocapture"])
            .env(DIR, self.dir.path())
            .env(ADDRESS, self.address.to_string())
            .env(AT_READING, reading.to_string())
            .env(AT_STEP, step.to_string())
            .env(AT_CHANGE, change.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        self.running = Some((child, input, BufReader::new(output)));
        self.hear().is_some()
    }

    /// Ends it, if it has not ended itself.
    pub(super) fn kill(&mut self) {
        if let Some((mut child, ..)) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(super) fn service(&self) -> ServiceIdentity {
        self.address.to_string().parse().unwrap()
    }

    pub(super) fn clone_url(&self, repo: &RepoId) -> String {
        format!("http://{}{}", self.address, self.service().repo_path(repo))
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn repositories(&self) -> PathBuf {
        self.dir.path().join("git")
    }

    /// Sends an event; whether it was accepted, or `None` if nobody said.
    pub(super) fn send(&mut self, event: &Event) -> Option<bool> {
        self.say(&event.as_json())?;
        self.hear()?.parse().ok()
    }

    /// Whether an event is served, and whether it is held.
    pub(super) fn ask(&mut self, event: &Event) -> (bool, bool) {
        self.say(&event.id.to_hex()).unwrap();
        let answer = self.hear().unwrap();
        let (served, held) = answer.split_once(' ').unwrap();
        (served.parse().unwrap(), held.parse().unwrap())
    }

    /// Repairs a repository, and waits until nothing is missing. Returns the number of changes on disk that this took,
    /// or what went wrong; `None` if it died.
    pub(super) fn repair(&mut self, name: &str) -> Option<Result<u64, String>> {
        self.say(&format!("repair {name}"))?;
        let answer = self.hear()?;
        Some(answer.parse().map_err(|_| answer))
    }

    pub(super) fn run_maintenance(&mut self) {
        self.say("round").unwrap();
        self.hear().unwrap();
    }

    /// How often the clock was read, and how many steps the journal took.
    pub(super) fn points(&mut self) -> (u64, u64) {
        self.say("points").unwrap();
        let answer = self.hear().unwrap();
        let (readings, steps) = answer.split_once(' ').unwrap();
        (readings.parse().unwrap(), steps.parse().unwrap())
    }

    fn say(&mut self, line: &str) -> Option<()> {
        writeln!(self.running.as_mut()?.1, "{line}").ok()
    }

    /// The next thing that it says; `None` once it is dead.
    fn hear(&mut self) -> Option<String> {
        let output = &mut self.running.as_mut()?.2;
        output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once(MARK)?.1.to_owned()))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
#[ignore = "the process that is killed by the tests above"]
fn serves_until_it_dies() {
    let var = |name: &str| std::env::var(name).ok();
    let at = |name: &str| var(name).map(|number| Countdown::new(number.parse().unwrap()));
    let (Some(dir), Some(address)) = (var(DIR), var(ADDRESS)) else { return };
    let (Some(readings), Some(steps)) = (at(AT_READING), at(AT_STEP)) else { return };
    let Some(changes) = at(AT_CHANGE) else { return };
    let is_repairing = Arc::new(AtomicBool::new(false));
    let tripwire = Tripwire {
        steps: steps.clone(),
        changes: changes.clone(),
        is_repairing: is_repairing.clone(),
    };
    tracing::subscriber::set_global_default(tripwire).unwrap();
    let clock = deadly(readings.clone());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (settings, address) = (Settings { clock, ..Settings::default() }, address.parse());
        let to_loopback =
            |settings: &mut grasp_bin::Settings| settings.outbound.allow_private = true;
        let instance =
            Instance::at_with(Path::new(&dir), address.unwrap(), settings, to_loopback).await;
        let answer = |text: String| {
            let mut output = std::io::stdout().lock();
            writeln!(output, "{MARK}{text}").unwrap();
            output.flush().unwrap();
        };
        answer(String::from("ready"));
        for line in std::io::stdin().lines().map_while(Result::ok) {
            answer(match line.as_str() {
                "round" => instance.purgatory().run_maintenance().await.is_ok().to_string(),
                "points" => format!("{} {}", readings.count(), steps.count()),
                line if line.starts_with("repair ") => {
                    is_repairing.store(true, Ordering::SeqCst);
                    match repair(&instance, &line["repair ".len()..]).await {
                        Ok(()) => changes.count().to_string(),
                        Err(error) => format!("{error:?}"),
                    }
                }
                line => about(&instance, line).await,
            });
        }
    });
}

async fn repair(instance: &Instance, name: &str) -> Result<(), GitError> {
    let (purgatory, name) = (instance.purgatory(), name.parse().unwrap());
    purgatory.repair(&name).await?;
    grasp_tests::eventually(|| (!purgatory.lacks_objects(&name)).then_some(())).await;
    Ok(())
}

/// Takes an event, or tells about one by its id.
async fn about(instance: &Instance, line: &str) -> String {
    if let Ok(event) = Event::from_json(line) {
        let answer = instance.ingest(vec![event]).await[0].answer();
        // What a stored event leads to may come later; those who wait for its answer do not know.
        return answer.accepted.to_string();
    }
    let id = EventId::from_hex(line).unwrap();
    let held = instance.purgatory().ask(move |purgatory| purgatory.holds(&id)).await.unwrap();
    format!("{} {held}", instance.serves_id(id).await)
}

/// Counts, and ends everything at one number.
#[derive(Clone)]
struct Countdown {
    count: Arc<AtomicU64>,
    end: u64,
}

impl Countdown {
    fn new(end: u64) -> Self {
        Self { count: Arc::default(), end }
    }

    fn next(&self) {
        if self.count.fetch_add(1, Ordering::SeqCst) + 1 == self.end {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

/// A clock whose n-th reading is the end.
fn deadly(readings: Countdown) -> Clock {
    let system = Clock::system();
    Clock::new(move || {
        readings.next();
        system.now()
    })
}

/// Hears of every step of the journal and every change on disk before the next is taken.
struct Tripwire {
    steps: Countdown,
    changes: Countdown,
    /// Only changes of a repair count.
    is_repairing: Arc<AtomicBool>,
}

impl Subscriber for Tripwire {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        [JOURNAL, CHANGES].contains(&metadata.target())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        match event.metadata().target() {
            JOURNAL => self.steps.next(),
            _ if self.is_repairing.load(Ordering::SeqCst) => self.changes.next(),
            _ => {}
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
