//! Syncs 20,000 events from a running server into a relay on nostr-sqlite and into one on a `HashMap`, twice.
//!
//! `GRASP` names the program of the server.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use embedding::MapRelay;
use grasp_sync::core::nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use grasp_sync::core::nostr::filter::Filter;
use grasp_sync::core::nostr::key::Keys;
use grasp_sync::core::nostr::types::Timestamp;
use grasp_sync::core::outbound::OutboundPolicy;
use grasp_sync::core::{RelayUrl, RepoId, ServiceIdentity};
use grasp_sync::database::DatabaseRelay;
use grasp_sync::database::nostr_database::NostrDatabase;
use grasp_sync::driver::{Client, Limits, Outbound, RecordFile, Roots};
use grasp_sync::{Settings, SyncedRelay, Syncer};
use nostr_sqlite::store::NostrSqlite;

const ISSUES: u64 = 20_000;
const PUBLISHERS: u64 = 16;

/// The address of the relay that sync is embedded in. Nobody listens there.
fn own() -> ServiceIdentity {
    "127.0.0.1:1".parse().unwrap()
}

struct Server {
    process: Child,
    host: String,
    _data: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = free.local_addr().unwrap().to_string();
        drop(free);
        let data = tempfile::tempdir().unwrap();
        let program = std::env::var_os("GRASP").expect("GRASP names the server's program");
        let process = Command::new(program)
            .args(["serve", "--listen", &host, "--domain", &host, "--data-dir"])
            .arg(data.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self {
            process,
            host,
            _data: data,
        };
        let began = Instant::now();
        while TcpStream::connect(&server.host).is_err() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the server does not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn relay(&self) -> RelayUrl {
        format!("ws://{}", self.host).parse().unwrap()
    }

    async fn publish(&self, events: &[Event]) {
        let outbound = Outbound::new(OutboundPolicy::default(), &Roots::default());
        let mut client = Client::connect(&self.relay(), &outbound, &Limits::default())
            .await
            .unwrap();
        for event in events {
            let (accepted, text) = client.publish(event).await.unwrap();
            assert!(accepted, "{text}");
        }
    }
}

fn sign(keys: &Keys, kind: Kind, at: u64, content: &str, tags: &[&[&str]]) -> Event {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(kind, content)
        .tags(tags)
        .custom_created_at(Timestamp::from_secs(at))
        .finalize(keys)
        .unwrap()
}

fn git(folder: &Path, args: &[&str]) -> String {
    let who = [
        "-c",
        "user.name=alice",
        "-c",
        "user.email=alice@example.com",
    ];
    let output = Command::new("git")
        .args(who)
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Starts a server with a repository that lists the embedding relay too, and its issues.
async fn server_with_issues() -> Server {
    let server = Server::start();
    let keys = Keys::parse(&"01".repeat(32)).unwrap();
    let now = Timestamp::now().as_secs();
    let repo = RepoId::new(keys.public_key(), "x".parse().unwrap());
    let service: ServiceIdentity = server.host.parse().unwrap();
    let clone = format!("http://{service}{}", service.repo_path(&repo));
    let work = tempfile::tempdir().unwrap();
    git(work.path(), &["init", "-q", "-b", "main"]);
    git(
        work.path(),
        &["commit", "-q", "--allow-empty", "-m", "first"],
    );
    let commit = git(work.path(), &["rev-parse", "HEAD"]);
    let relays = ["relays", server.relay().as_str(), "ws://127.0.0.1:1"].map(str::to_owned);
    let relays: Vec<&str> = relays.iter().map(String::as_str).collect();
    let announcement: [&[&str]; 3] = [&["d", "x"], &["clone", &clone], &relays];
    let state: [&[&str]; 3] = [
        &["d", "x"],
        &["refs/heads/main", &commit],
        &["HEAD", "ref: refs/heads/main"],
    ];
    let announcement = sign(&keys, Kind::GitRepoAnnouncement, now, "", &announcement);
    let state = sign(&keys, Kind::RepoState, now, "", &state);
    server.publish(&[announcement, state]).await;
    git(work.path(), &["push", "-q", &clone, "main"]);
    let address = repo.to_string();
    let mut publishing = Vec::new();
    for publisher in 0..PUBLISHERS {
        let issues = (0..ISSUES).filter(|n| n % PUBLISHERS == publisher);
        let sign_one = |n: u64| {
            sign(
                &keys,
                Kind::GitIssue,
                now - n / 7,
                &n.to_string(),
                &[&["a", &address]],
            )
        };
        let issues: Vec<Event> = issues.map(sign_one).collect();
        publishing.push(async {
            server.publish(&issues).await;
            drop(issues)
        });
    }
    futures_util::future::join_all(publishing).await;
    server
}

/// Syncs a relay until it has everything; returns how many events were new.
async fn sync(server: &Server, relay: Arc<dyn SyncedRelay>, records: &Path) -> u64 {
    let mut settings = Settings::new(own())
        .with_bootstrap([server.relay()])
        .with_records(RecordFile::new(records));
    settings.outbound.allow_private = true;
    let syncer = Syncer::start(relay, settings).await.unwrap();
    let began = Instant::now();
    let waiting = tokio::time::timeout(Duration::from_secs(300), syncer.until_complete());
    let status = waiting.await.expect("complete in time");
    let there = &status.relays[&server.relay()];
    assert!(there.is_complete() && there.gaps == 0, "{there:?}");
    let new = there.counts.stored();
    println!(
        "{new} new events in {:?}, {} failures",
        began.elapsed(),
        there.failures
    );
    syncer.stop().await;
    new
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_of_strangers_are_kept_complete() {
    let server = server_with_issues().await;
    let folder = tempfile::tempdir().unwrap();
    let issues = Filter::new().kind(Kind::GitIssue);

    for is_restarted in [false, true] {
        let file = folder.path().join("events.db");
        let database = NostrSqlite::builder().in_file(file).build().await.unwrap();
        let relay = DatabaseRelay::new(database, own());
        let records = folder.path().join("sqlite.jsonl");
        let new = sync(&server, Arc::new(relay.clone()), &records).await;
        let rows = relay.inventory(issues.clone()).await.unwrap();
        assert_eq!(rows.len() as u64, ISSUES);
        assert_eq!(new == 0, is_restarted, "{new} new events");
        if is_restarted {
            // What clients publish is saved by the same trait, without another dependency.
            let issue = sign(&Keys::generate(), Kind::GitIssue, 1, "", &[]);
            assert!(relay.save_event(&issue).await.unwrap().is_success());
            let rows = relay.inventory(issues.clone()).await.unwrap();
            assert_eq!(rows.len() as u64, ISSUES + 1);
        }
    }
    // A restart loses what is in memory, and the records do not hide that.
    for _ in 0..2 {
        let relay = Arc::new(MapRelay::default());
        let records = folder.path().join("map.jsonl");
        let new = sync(&server, relay.clone(), &records).await;
        assert_eq!(relay.find(&issues).len() as u64, ISSUES);
        assert!(new >= ISSUES, "{new} new events");
    }
}
