//! Relays of other projects: synced from, and kept complete by a sidecar.
//!
//! Their programs are looked for in the folder that `GRASP_OTHER_RELAYS` names, else in `target/other_relays/bin` and in
//! `PATH`; tests without their program are skipped with a message. `just other-relays` installs them.
//!
//! Also tests the example of this crate, a relay with the syncer inside.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::RelayUrl;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::types::Timestamp;
use grasp_sync::driver::{Observer, RelayStatus};
use grasp_sync::engine::Report;
use grasp_sync::{Sidecar, Syncer};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::events::Author;
use crate::local::{Local, TEST_TIMEOUT};
use crate::scripted::HonestRelay;

/// A relay's program, and its arguments.
#[derive(Clone, Copy, Debug)]
enum Program {
    /// nostr-rs-relay: SQLite, no NIP-77.
    NostrRs,
    /// The relay of rust-nostr: in memory, with NIP-77.
    RustNostr,
}

struct OtherRelay {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for OtherRelay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Prints that a test was skipped, past what the test harness captures of one that passes: `.ci/run` counts these
/// lines.
fn skipped(why: &str) {
    std::io::stderr()
        .write_all(format!("skipped: {why}\n").as_bytes())
        .unwrap();
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::NostrRs => "nostr-rs-relay",
            Self::RustNostr => "rust-nostr-relay",
        }
    }

    fn find(self) -> Option<PathBuf> {
        let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/other_relays/bin");
        let named = std::env::var_os("GRASP_OTHER_RELAYS").unwrap_or_else(|| built.into());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(PathBuf::from(named)).chain(std::env::split_paths(&path));
        folders
            .map(|folder| folder.join(self.name()))
            .find(|program| program.is_file())
    }

    /// Starts it; `None` where it is not installed.
    async fn start(self) -> Option<OtherRelay> {
        let Some(program) = self.find() else {
            skipped(&format!(
                "{} is not installed (`just other-relays`)",
                self.name()
            ));
            return None;
        };
        let starting = OtherRelay::start(&program, |port, folder, command| match self {
            Self::NostrRs => {
                let config = folder.join("config.toml");
                let text = format!("[network]\naddress = \"127.0.0.1\"\nport = {port}\n");
                std::fs::write(&config, text).unwrap();
                command.arg("--config").arg(config).arg("--db").arg(folder);
            }
            Self::RustNostr => _ = command.arg(port.to_string()),
        });
        Some(starting.await)
    }
}

type Socket = WebSocketStream<TcpStream>;

impl OtherRelay {
    /// Runs a program that listens at a free port, and waits until it does.
    async fn start(program: &Path, configure: impl FnOnce(u16, &Path, &mut Command)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut command = Command::new(program);
        configure(port, folder.path(), &mut command);
        command
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let relay = Self {
            process: command.spawn().unwrap(),
            port,
            _folder: folder,
        };
        let asking = async {
            while relay.try_connect().await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, asking)
            .await
            .expect("the relay starts in time");
        relay
    }

    fn url(&self) -> RelayUrl {
        format!("ws://127.0.0.1:{}", self.port).parse().unwrap()
    }

    async fn try_connect(&self) -> Option<Socket> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.ok()?;
        Some(client_async(self.url().as_str(), stream).await.ok()?.0)
    }

    /// Publishes as any client does, and expects every event to be accepted.
    async fn publish(&self, events: &[Event]) {
        let mut socket = self.try_connect().await.unwrap();
        for event in events {
            socket
                .send(Message::text(json!(["EVENT", event]).to_string()))
                .await
                .unwrap();
            let answer = next_of_type(&mut socket, "OK").await;
            assert_eq!(answer[2], true, "{answer}");
        }
    }

    /// Returns how many of these events a client is served.
    async fn serves(&self, events: &[Event]) -> usize {
        let mut socket = self.try_connect().await.unwrap();
        let mut found = 0;
        for some in events.chunks(100) {
            let ids: Vec<_> = some.iter().map(|event| event.id.to_hex()).collect();
            let ask = json!(["REQ", "check", { "ids": ids, "limit": ids.len() }]);
            socket.send(Message::text(ask.to_string())).await.unwrap();
            while next_of_types(&mut socket, &["EVENT", "EOSE"]).await[0] == "EVENT" {
                found += 1;
            }
        }
        found
    }

    async fn until_serves(&self, events: &[Event]) {
        let asking = async {
            while self.serves(events).await < events.len() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(2 * TEST_TIMEOUT, asking)
            .await
            .expect("in time");
    }

    async fn until_gone(&self, event: &Event) {
        let asking = async {
            while self.serves(std::slice::from_ref(event)).await > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(2 * TEST_TIMEOUT, asking)
            .await
            .expect("in time");
    }
}

async fn next_of_type(socket: &mut Socket, message_type: &str) -> Value {
    next_of_types(socket, &[message_type]).await
}

async fn next_of_types(socket: &mut Socket, types: &[&str]) -> Value {
    loop {
        let message = tokio::time::timeout(TEST_TIMEOUT, socket.next())
            .await
            .expect("in time");
        let Message::Text(text) = message.unwrap().unwrap() else {
            continue;
        };
        let message: Value = serde_json::from_str(&text).unwrap();
        if types.iter().any(|one| message[0] == *one) {
            return message;
        }
    }
}

/// The reports of the engine.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<Report>>>);

impl Observer for Reports {
    fn report(&self, report: &Report) {
        self.0.lock().unwrap().push(report.clone());
    }
}

/// Returns a repository with more issues than a page holds, some in the same second, and a comment on every tenth.
fn repository_with_issues(author: &Author, relay: &RelayUrl) -> (Event, Vec<Event>) {
    let repo = author.repo("grasp").to_string();
    let began = Timestamp::now().as_secs() - 10_000;
    let issue = |n: u64| author.issue_at(&repo, &n.to_string(), began + n / 3);
    let issues: Vec<Event> = (0..700).map(issue).collect();
    let comments = issues
        .iter()
        .step_by(10)
        .map(|issue| author.comment(issue.id, "so it is"));
    let comments: Vec<Event> = comments.collect();
    (
        author.announcement("grasp", &[relay]),
        issues.into_iter().chain(comments).collect(),
    )
}

/// Syncs from it with a third of its events stored; asserts that the others arrive, and one that is published later.
async fn assert_synced_from(program: Program) {
    let Some(relay) = program.start().await else {
        return;
    };
    let author = Author::new();
    let (announcement, events) = repository_with_issues(&author, &relay.url());
    relay.publish(std::slice::from_ref(&announcement)).await;
    relay.publish(&events).await;
    let local = Local::new();
    let _ = local.publish(&announcement);
    events[..250]
        .iter()
        .for_each(|event| _ = local.publish(event));

    let mut settings = Local::settings(&[]);
    let reports = Reports::default();
    settings.observer = Arc::new(reports.clone());
    let syncer = Syncer::start(Arc::new(local.clone()), settings)
        .await
        .unwrap();
    local.until_has(&events.iter().collect::<Vec<_>>()).await;
    let is_done = |status: &RelayStatus| status.synced_at.is_some() && status.backlog == 0;
    let status = Local::until_status(&syncer, &relay.url(), is_done).await;
    let no_negentropy = |report: &Report| matches!(report, Report::NoNegentropy { .. });
    let paged = reports
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|report| no_negentropy(report))
        .count();
    println!("{}: {:?}, paged: {paged}", program.name(), status.counts);
    assert_eq!(status.counts.stored(), 520);
    match program {
        // Pages also contain events that are stored here already.
        Program::NostrRs => assert!(paged == 1 && status.counts.known >= 250),
        // Comparison does not; the comments, of which none was here, come by pages that overlap.
        Program::RustNostr => assert!(paged == 0 && status.counts.known <= 70),
    }

    let live = author.issue(&author.repo("grasp"), "live");
    relay.publish(std::slice::from_ref(&live)).await;
    local.until_has(&[&live]).await;
    syncer.stop().await;
}

/// Uses it as the local relay, with a sidecar that copies what another relay has, stored and live.
async fn assert_kept_complete(program: Program) {
    let Some(relay) = program.start().await else {
        return;
    };
    let author = Author::new();
    let there = HonestRelay::new([]);
    let remote = there.start().await;
    let (announcement, events) = repository_with_issues(&author, &remote.url());
    events
        .iter()
        .for_each(|event| _ = there.publish(event.clone()));
    relay.publish(std::slice::from_ref(&announcement)).await;

    let sidecar = Arc::new(Sidecar::start(relay.url()));
    let syncer = Syncer::start(sidecar, Local::settings(&[])).await.unwrap();
    relay.until_serves(&events).await;
    let live = author.issue(&author.repo("grasp"), "live");
    there.publish(live.clone());
    relay.until_serves(&[live]).await;
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_without_comparison_is_synced_from_by_pages() {
    assert_synced_from(Program::NostrRs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_comparison_sends_only_what_is_missing() {
    assert_synced_from(Program::RustNostr).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_keeps_an_sqlite_relay_complete() {
    assert_kept_complete(Program::NostrRs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_keeps_an_in_memory_relay_complete() {
    assert_kept_complete(Program::RustNostr).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_relay_keeps_itself_complete() {
    // Beside this test's folder, if all of the crate's tests are run.
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/embed");
    if !program.is_file() {
        return skipped("the example is not built (`cargo build --example embed`)");
    }
    let author = Author::new();
    let there = HonestRelay::new([]);
    let remote = there.start().await;
    let (_, events) = repository_with_issues(&author, &remote.url());
    // Two versions of the announcement, each with a relay that only it names.
    let mut named = HonestRelay::new([]).start().await;
    let outdated = HonestRelay::new([]).start().await;
    let announced = |seconds_ago, relay: RelayUrl| {
        let at = Timestamp::now() - Duration::from_secs(seconds_ago);
        let us = Local::us();
        let relays =
            ["relays", us.as_str(), remote.url().as_str(), relay.as_str()].map(String::from);
        let relays = relays.each_ref().map(String::as_str);
        author.sign_at(
            at,
            Kind::GitRepoAnnouncement,
            "",
            &[&["d", "grasp"], &relays],
        )
    };
    let announcement = announced(30, named.url());
    events
        .iter()
        .chain([&announcement])
        .for_each(|event| _ = there.publish(event.clone()));

    let example = OtherRelay::start(&program, |port, _, command| {
        let here = format!("127.0.0.1:{port}");
        command.args([
            "--trial",
            here.as_str(),
            "us.example",
            remote.url().as_str(),
        ]);
    });
    let mut example = example.await;
    example.until_serves(&events).await;
    example.publish(&[announced(90, outdated.url())]).await;
    let soon = (Timestamp::now().as_secs() + 3).to_string();
    let address = author.repo("grasp").to_string();
    let expiring: &[&[&str]] = &[&["a", &address], &["expiration", &soon]];
    let expiring = author.sign(Kind::GitIssue, "soon over", expiring);
    example.publish(std::slice::from_ref(&expiring)).await;
    let live = author.issue(&author.repo("grasp"), "live");
    there.publish(live.clone());
    example.until_serves(std::slice::from_ref(&live)).await;

    // What it loses is fetched again; what is deleted stays away.
    let deletion = author.sign(Kind::EventDeletion, "", &[&["e", &live.id.to_hex()]]);
    example.publish(&[deletion]).await;
    assert_eq!(example.serves(std::slice::from_ref(&live)).await, 0);
    example.until_gone(&expiring).await;
    let console = example.process.stdin.as_mut().unwrap();
    console.write_all(b"lose\n").unwrap();
    example.until_serves(&events).await;
    named.until(|received| received.connections > 0).await;
    assert_eq!(outdated.received().connections, 0);
}
