//! The driver of purgatory while its records cannot be written.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Hold, Origin, Policy};
use grasp_core::quota::Quotas;
use grasp_core::service::Endpoint;
use grasp_core::{Mono, Now, RepoId};
use grasp_purgatory::database::{Commit, Database as _};
use grasp_purgatory::driver::{PurgatoryDriver, PurgatoryParts};
use grasp_purgatory::git::{Git, RepoStore, Slots, StagingLimits};
use grasp_purgatory::{Config, Counts, Input, Phase, Purgatory, Record};
use grasp_relay::Clock;
use grasp_relay::ingest::GitBackend;
use grasp_relay::nostr::Hub;
use grasp_relay::purgatory::ServedEvents;
use grasp_relay::store::EventStore as _;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::{Event, EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use tempfile::TempDir;

use crate::support::in_time;

fn policy() -> Policy {
    Policy::new("grasp.example".parse().unwrap())
}

fn announcement(keys: &Keys, name: &str) -> Arc<Event> {
    let event = EventBuilder::new(Kind::GitRepoAnnouncement, "").tag(Tag::identifier(name));
    Arc::new(event.finalize(keys).unwrap())
}

fn open(dir: &Path) -> SqliteStore {
    SqliteStore::open(&dir.join("grasp.db"), SqliteOptions::default()).unwrap()
}

/// Creates a database with held events that then refuses more pending tasks and held events than an SQL expression
/// allows.
async fn database(dir: &Path, waiting: &[Arc<Event>], max: &str) {
    let store = open(dir);
    let until = Timestamp::now() + Duration::from_secs(3_600);
    let held = |event: &Arc<Event>| Record::Held {
        event: event.clone(),
        phase: Phase::Waiting,
        since: until,
        until,
    };
    let commit = Commit {
        records: waiting.iter().map(held).collect(),
        ..Commit::default()
    };
    let _ = store.commit(commit).await.unwrap();
    store.close().await.unwrap();
    let full = ["held", "tasks"].map(|table| {
        format!(
            "CREATE TRIGGER full_{table} BEFORE INSERT ON {table}
                 WHEN (SELECT count(*) FROM held) + (SELECT count(*) FROM tasks) >= {max}
                 BEGIN SELECT RAISE(ABORT, 'the disk is full'); END;"
        )
    });
    let connection = rusqlite::Connection::open(dir.join("grasp.db")).unwrap();
    connection.execute_batch(&full.concat()).unwrap();
}

async fn start(dir: &Path) -> PurgatoryDriver {
    let git = Git::find(&std::env::var_os("PATH").unwrap(), Slots::default()).unwrap();
    let store = Arc::new(open(dir));
    let (limits, records) = (StagingLimits::default(), store.records().await.unwrap());
    let root = dir.join("git");
    let repos = RepoStore::open(
        &root,
        Endpoint::Repository,
        git,
        limits,
        store.clone(),
        None,
    );
    let parts = PurgatoryParts {
        repos: repos.await.unwrap(),
        contributors: None,
        relay: Arc::new(ServedEvents {
            members: None,
            store,
            hub: Hub::start(),
            clock: Clock::system(),
            policy: policy().into(),
        }),
        policy: policy().into(),
        quotas: Quotas::default(),
        hunt: None,
    };
    PurgatoryDriver::start(parts, Config::default(), records).await
}

/// Sends inputs until the queue is full.
async fn fill_queue(purgatory: &PurgatoryDriver, repo: &RepoId) {
    for _ in 0..10_000 {
        let sent = purgatory.tell(Input::Changed { repo: repo.clone() });
        if tokio::time::timeout(Duration::from_millis(500), sent)
            .await
            .is_err()
        {
            return;
        }
    }
    panic!("the queue is never full");
}

#[tokio::test]
async fn queries_are_answered_while_a_full_disk_blocks_the_queue() {
    let dir = TempDir::new().unwrap();
    database(dir.path(), &[], "0").await;
    let purgatory = start(dir.path()).await;
    let event = announcement(&Keys::generate(), "x");
    let repo = RepoId::new(event.pubkey, "x".parse().unwrap());
    let hold = || {
        GitBackend::hold(
            &purgatory,
            event.clone(),
            Hold::Announcement,
            Origin::anonymous(),
        )
    };
    let why = in_time(hold()).await.unwrap_err();
    assert!(
        why.to_string().contains("the database cannot be written"),
        "{why}"
    );
    fill_queue(&purgatory, &repo).await;
    assert!(!purgatory.can_write());
    in_time(purgatory.ask(|purgatory| purgatory.counts()))
        .await
        .unwrap();
    assert!(
        in_time(hold()).await.is_err(),
        "a new event is refused at once"
    );
    let waited = tokio::time::timeout(Duration::from_secs(20), purgatory.run_maintenance()).await;
    assert!(waited.unwrap().is_err(), "maintenance fails in time");
}

#[tokio::test]
async fn no_input_is_lost_while_the_disk_is_full_repeatedly() {
    const HELD_EVENTS: usize = 130;
    let (dir, keys) = (TempDir::new().unwrap(), Keys::generate());
    let waiting: Vec<_> = (0..HELD_EVENTS)
        .map(|n| announcement(&keys, &n.to_string()))
        .collect();
    // As if a hundred records were freed every second.
    let begin = Timestamp::now();
    let max = format!("{HELD_EVENTS} + 100 * max(0, unixepoch() - {begin} - 1)");
    database(dir.path(), &waiting, &max).await;
    let purgatory = start(dir.path()).await;
    for event in &waiting {
        let request = EventBuilder::new(Kind::EventDeletion, "").tag(Tag::event(event.id));
        let request = Arc::new(request.finalize(&keys).unwrap());
        purgatory.tell(Input::Deleted { request }).await;
    }
    let is_empty = |counts: Counts| counts.announcements == 0 && counts.pending_tasks == 0;
    // The answer of a query may be ahead of the database.
    let is_done = async || {
        let counts = purgatory.ask(|purgatory| purgatory.counts()).await.unwrap();
        let records = purgatory.repos().database().records().await.unwrap();
        let now = Now::new(Mono::ZERO, Timestamp::now());
        let restored = Purgatory::restore(Config::default(), policy(), records, now).counts();
        purgatory.can_write() && is_empty(counts) && is_empty(restored)
    };
    let done = async {
        while !is_done().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done)
        .await
        .expect("all tasks are done");
}
