//! A server process that kills itself at a chosen point.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use grasp_core::policy::PolicyList;
use grasp_core::{RepoId, ServiceIdentity};
use grasp_purgatory::driver::JOURNAL;
use grasp_purgatory::git::{CHANGES, GitError};
use grasp_relay::Clock;
use grasp_relay::store::policy::{AuditEntry, PolicyAction, PolicyChange, PolicyChanged};
use grasp_tests::{Instance, Settings, reserve_address};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use rustix::process::{Signal, getpid, kill_process};
use tempfile::TempDir;
use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};

/// Variables that make a process of this test binary the server, with its directory and address.
const DIR_VAR: &str = "GRASP_TEST_CRASH_DIR";
const ADDRESS_VAR: &str = "GRASP_TEST_CRASH_ADDRESS";
/// Variables with the clock reading, the journal step and the change of git data on disk at which it crashes; 0 means
/// never.
const AT_READING_VAR: &str = "GRASP_TEST_CRASH_AT_READING";
const AT_STEP_VAR: &str = "GRASP_TEST_CRASH_AT_STEP";
const AT_CHANGE_VAR: &str = "GRASP_TEST_CRASH_AT_CHANGE";

/// The point at which the server kills itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum CrashPoint {
    Never,
    AtReading(u64),
    AtStep(u64),
    /// The change with this number since the request to repair.
    AtChange(u64),
}

/// Prefix of the server's lines in the output of a test binary.
const LINE_PREFIX: &str = "> ";

/// A data directory and an address of a server, and its process while it runs.
pub(super) struct CrashingServer {
    dir: TempDir,
    address: SocketAddr,
    running: Option<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl CrashingServer {
    pub(super) fn new() -> Self {
        let address = reserve_address([127, 0, 0, 1]);
        Self {
            dir: tempfile::tempdir().unwrap(),
            address,
            running: None,
        }
    }

    /// Starts the server, and returns whether it got ready before it crashed.
    pub(super) fn start(&mut self, at: CrashPoint) -> bool {
        let (reading, step, change) = match at {
            CrashPoint::Never => (0, 0, 0),
            CrashPoint::AtReading(number) => (number, 0, 0),
            CrashPoint::AtStep(number) => (0, number, 0),
            CrashPoint::AtChange(number) => (0, 0, number),
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "crash::crashing_server::serves_until_it_crashes",
                "--ignored",
                "--nocapture",
            ])
            .env(DIR_VAR, self.dir.path())
            .env(ADDRESS_VAR, self.address.to_string())
            .env(AT_READING_VAR, reading.to_string())
            .env(AT_STEP_VAR, step.to_string())
            .env(AT_CHANGE_VAR, change.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        self.running = Some((child, input, BufReader::new(output)));
        self.read_line().is_some()
    }

    /// Kills the server, if it runs.
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

    /// Publishes an event, and returns whether it was accepted; `None` if the server crashed.
    pub(super) fn publish(&mut self, event: &Event) -> Option<bool> {
        self.write_line(&event.as_json())?;
        self.read_line()?.parse().ok()
    }

    /// Sends a line, such as a decision of an operator, and returns the answer; `None` if the server crashed.
    pub(super) fn ask(&mut self, line: &str) -> Option<String> {
        self.write_line(line)?;
        self.read_line()
    }

    /// Returns whether an event is served, and whether it is held.
    pub(super) fn status(&mut self, event: &Event) -> (bool, bool) {
        self.write_line(&event.id.to_hex()).unwrap();
        let answer = self.read_line().unwrap();
        let (served, held) = answer.split_once(' ').unwrap();
        (served.parse().unwrap(), held.parse().unwrap())
    }

    /// Repairs a repository, and waits until nothing is missing. Returns the number of changes on disk that this took,
    /// or the error; `None` if the server crashed.
    pub(super) fn repair(&mut self, name: &str) -> Option<Result<u64, String>> {
        self.write_line(&format!("repair {name}"))?;
        let answer = self.read_line()?;
        Some(answer.parse().map_err(|_| answer))
    }

    pub(super) fn run_maintenance(&mut self) {
        self.write_line("maintenance").unwrap();
        self.read_line().unwrap();
    }

    /// Returns the numbers of clock readings and journal steps so far.
    pub(super) fn crash_points(&mut self) -> (u64, u64) {
        self.write_line("points").unwrap();
        let answer = self.read_line().unwrap();
        let (readings, steps) = answer.split_once(' ').unwrap();
        (readings.parse().unwrap(), steps.parse().unwrap())
    }

    fn write_line(&mut self, line: &str) -> Option<()> {
        writeln!(self.running.as_mut()?.1, "{line}").ok()
    }

    /// Reads the next line of the server; `None` once it has ended.
    fn read_line(&mut self) -> Option<String> {
        let output = &mut self.running.as_mut()?.2;
        output
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once(LINE_PREFIX)?.1.to_owned()))
    }
}

impl Drop for CrashingServer {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
#[ignore = "the server process of the tests above"]
fn serves_until_it_crashes() {
    let var = |name: &str| std::env::var(name).ok();
    let at = |name: &str| var(name).map(|number| Countdown::new(number.parse().unwrap()));
    let (Some(dir), Some(address)) = (var(DIR_VAR), var(ADDRESS_VAR)) else {
        return;
    };
    let (Some(readings), Some(steps)) = (at(AT_READING_VAR), at(AT_STEP_VAR)) else {
        return;
    };
    let Some(changes) = at(AT_CHANGE_VAR) else {
        return;
    };
    let is_repairing = Arc::new(AtomicBool::new(false));
    let subscriber = CrashSubscriber {
        steps: steps.clone(),
        changes: changes.clone(),
        is_repairing: is_repairing.clone(),
    };
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let clock = crashing_clock(readings.clone());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (settings, address) = (
            Settings {
                clock,
                ..Settings::default()
            },
            address.parse(),
        );
        let to_loopback =
            |settings: &mut grasp_relay::instance::Settings| settings.outbound.allow_private = true;
        let instance =
            Instance::at_with(Path::new(&dir), address.unwrap(), settings, to_loopback).await;
        let answer = |text: String| {
            let mut output = std::io::stdout().lock();
            writeln!(output, "{LINE_PREFIX}{text}").unwrap();
            output.flush().unwrap();
        };
        answer(String::from("ready"));
        for line in std::io::stdin().lines().map_while(Result::ok) {
            answer(match line.as_str() {
                "maintenance" => instance
                    .purgatory()
                    .run_maintenance()
                    .await
                    .is_ok()
                    .to_string(),
                "points" => format!("{} {}", readings.count(), steps.count()),
                line if line.starts_with("repair ") => {
                    is_repairing.store(true, Ordering::SeqCst);
                    match repair(&instance, &line["repair ".len()..]).await {
                        Ok(()) => changes.count().to_string(),
                        Err(error) => format!("{error:?}"),
                    }
                }
                line => match decision(line) {
                    Some(action) => decide(&instance, action).await.to_string(),
                    None => publish_or_query(&instance, line).await,
                },
            });
        }
    });
}

async fn repair(instance: &Instance, name: &str) -> Result<(), GitError> {
    let purgatory = instance.purgatory();
    let all = purgatory.repos().all().await?;
    let repo = all
        .into_iter()
        .find(|repo| repo.identifier.as_str() == name)
        .unwrap();
    purgatory.repair(&repo).await?;
    // A fetch that fails on a loaded machine is tried again after a minute.
    let complete = async {
        while purgatory.lacks_objects(&repo) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(200), complete).await;
    in_time.expect("the repository is repaired");
    Ok(())
}

/// Reads a decision of an operator: `ban`, `unban`, `hold` or `restore`, with a key or a repository.
fn decision(line: &str) -> Option<PolicyAction> {
    let (word, subject) = line.split_once(' ')?;
    let reason = String::new();
    Some(match word {
        "ban" => PolicyAction::Add {
            subject: PolicyList::BannedAuthor.subject(subject).ok()?,
            reason,
        },
        "unban" => PolicyAction::Remove(PolicyList::BannedAuthor.subject(subject).ok()?),
        "hold" => PolicyAction::Hold {
            repo: subject.parse().ok()?,
            reason,
            until: Timestamp::now() + Duration::from_secs(3_600),
        },
        "restore" => PolicyAction::Restore(subject.parse().ok()?),
        _ => return None,
    })
}

/// Carries out a decision, and returns whether it is in force.
async fn decide(instance: &Instance, action: PolicyAction) -> bool {
    let audit = AuditEntry {
        actor: "local:0".to_owned(),
        via: "socket".to_owned(),
        auth: None,
        method: "test".to_owned(),
        params: "[]".to_owned(),
        error: None,
    };
    let change = PolicyChange {
        at: Timestamp::now(),
        actions: vec![action],
        audit,
        auth_until: None,
    };
    let changed = instance.server().change_policy(change).await;
    changed.is_ok_and(|changed| changed == PolicyChanged::Done)
}

/// Publishes an event, or reports the status of one by its id.
async fn publish_or_query(instance: &Instance, line: &str) -> String {
    if let Ok(event) = Event::from_json(line) {
        let answer = instance.ingest(vec![event]).await[0].answer();
        // Effects of a stored event may follow after its answer.
        return answer.is_accepted.to_string();
    }
    let id = EventId::from_hex(line).unwrap();
    let held = instance
        .purgatory()
        .ask(move |purgatory| purgatory.holds(&id))
        .await
        .unwrap();
    format!("{} {held}", instance.serves_id(id).await)
}

/// A counter that kills the process at one number.
#[derive(Clone)]
struct Countdown {
    count: Arc<AtomicU64>,
    end: u64,
}

impl Countdown {
    fn new(end: u64) -> Self {
        Self {
            count: Arc::default(),
            end,
        }
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

/// Returns a clock whose n-th reading kills the process.
fn crashing_clock(readings: Countdown) -> Clock {
    let system = Clock::system();
    Clock::new(move || {
        readings.next();
        system.now()
    })
}

/// Counts every step of the journal and every change on disk, before the next one.
struct CrashSubscriber {
    steps: Countdown,
    changes: Countdown,
    /// Whether changes on disk count: only those of a repair do.
    is_repairing: Arc<AtomicBool>,
}

impl Subscriber for CrashSubscriber {
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
