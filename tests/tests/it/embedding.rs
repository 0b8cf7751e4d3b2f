//! Sync embedded in relays on databases of rust-nostr, with a whole server elsewhere.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use grasp_core::admission::{Origin, Retry};
use grasp_core::{RelayUrl, RepoId, ServiceIdentity, Verified, kinds};
use grasp_sync::database::DatabaseRelay;
use grasp_sync::driver::NotFollowed;
use grasp_sync::engine::Report;
use grasp_sync::local::{InventoryFailed, News, SyncedRelay, Taken};
use grasp_sync::{Settings, Syncer};
use grasp_tests::{Author, Instance, Workdir, eventually_async};
use nostr::event::{Event, Kind};
use nostr::filter::Filter;
use nostr_database::NostrDatabase;
use nostr_lmdb::NostrLmdb;
use nostr_memory::prelude::MemoryDatabase;
use nostr_sqlite::store::NostrSqlite;

#[path = "../../../grasp-sync/examples/nostr_sqlite.rs"]
mod example;
mod wrapper;

/// The address of the relay that sync is embedded in. Nobody listens there.
fn own() -> ServiceIdentity {
    "127.0.0.1:1".parse().unwrap()
}

/// A server with a repository that lists the embedding relay too, and its issues.
struct Elsewhere {
    server: Instance,
    alice: Author,
    repo: RepoId,
    issues: Vec<Event>,
}

impl Elsewhere {
    async fn start() -> Self {
        let server = Instance::start().await;
        let (alice, work) = (Author::new(), Workdir::init().await);
        let repo = alice.repo("x");
        let commit = work.commit("first").await;
        let announcement = alice.announce_on("x", &[server.service(), own()]);
        let state = alice.state("x", &[("refs/heads/main", &commit)]);
        server.ingest(vec![announcement, state]).await;
        work.git(&["push", &server.clone_url(&repo), "main"])
            .await
            .expect_ok();
        let issue = |n: u64| alice.earlier(n).issue(&repo, &n.to_string());
        let issues: Vec<Event> = (0..300).map(issue).collect();
        server.ingest(issues.clone()).await;
        Self {
            server,
            alice,
            repo,
            issues,
        }
    }

    fn relay_url(&self) -> RelayUrl {
        self.server.relay_url().parse().unwrap()
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new(own()).with_bootstrap([self.relay_url()]);
        settings.outbound.allow_private = true;
        settings
    }

    /// Waits until a relay has an event.
    async fn until_has<D: NostrDatabase>(&self, relay: &DatabaseRelay<D>, event: &Event) {
        eventually_async(async || relay.event_by_id(&event.id).await.unwrap()).await;
    }
}

async fn until_complete(syncer: &Syncer) -> u64 {
    let waiting = syncer.until_complete();
    let status = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    let status = status.expect("in time");
    let other = |(relay, _): &(&RelayUrl, _)| !own().is_own_url(relay.as_str());
    let relays: Vec<_> = status.relays.iter().filter(other).collect();
    assert!(
        relays.iter().all(|(_, one)| one.is_complete()),
        "{status:?}"
    );
    relays.iter().map(|(_, one)| one.counts.stored()).sum()
}

async fn count(database: &impl NostrDatabase, kind: Kind) -> usize {
    let filter = Filter::new().kind(kind).limit(100_000);
    database.query(filter).await.unwrap().len()
}

/// Syncs into this database: what is stored elsewhere, what is published, and what is deleted.
async fn assert_kept_complete(database: impl NostrDatabase) {
    let elsewhere = Elsewhere::start().await;
    let relay = DatabaseRelay::new(database, own());
    let mut news = relay.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    assert_eq!(news.next().await, Some(News::CaughtUp));
    let syncer = Syncer::start(Arc::new(relay.clone()), elsewhere.settings())
        .await
        .unwrap();
    let stored = until_complete(&syncer).await;
    assert!(stored >= 300, "{stored} of 302");
    assert_eq!(count(&relay, kinds::STATE).await, 1);
    assert_eq!(count(&relay, Kind::GitIssue).await, 300);

    let live = elsewhere.alice.issue(&elsewhere.repo, "live");
    elsewhere.server.ingest(vec![live.clone()]).await;
    elsewhere.until_has(&relay, &live).await;

    // A deletion elsewhere removes the issue here, and sync learns of it.
    let id = live.id.to_hex();
    let deletion = elsewhere.alice.sign(5, "", &[&["e", &id], &["k", "1621"]]);
    elsewhere.server.ingest(vec![deletion.clone()]).await;
    elsewhere.until_has(&relay, &deletion).await;
    while news.next().await.unwrap() != News::Removed(live.id) {}
    // So does the relay's own removal of the repository.
    let announcements = Filter::new().kind(kinds::ANNOUNCEMENT);
    relay.delete(announcements).await.unwrap();
    let retired = News::Retired(elsewhere.repo.clone());
    while news.next().await.unwrap() != retired {}
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_nostr_sqlite_is_kept_complete() {
    let database = NostrSqlite::builder().in_memory().build().await.unwrap();
    assert_kept_complete(database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_nostr_lmdb_is_kept_complete() {
    let folder = tempfile::tempdir().unwrap();
    let database = NostrLmdb::open(folder.path()).await.unwrap();
    assert_kept_complete(database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_on_nostr_memory_is_kept_complete() {
    assert_kept_complete(MemoryDatabase::unbounded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_on_nostr_sqlite_continues_after_a_restart() {
    let elsewhere = Elsewhere::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events.db");
    let from = vec![elsewhere.relay_url()];
    for is_restarted in [false, true] {
        let started = example::start(&file, own(), from.clone(), false).await;
        let (relay, syncer) = started.unwrap();
        let stored = until_complete(&syncer).await;
        assert_eq!(stored == 0, is_restarted, "{stored} stored");
        assert_eq!(count(&relay, Kind::GitIssue).await, 300);
        syncer.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_that_match_too_much_to_be_listed_are_fetched_by_pages() {
    let elsewhere = Elsewhere::start().await;
    let relay = DatabaseRelay::new(MemoryDatabase::unbounded(), own()).with_max_rows(100);
    // Of these issues a list would be cut.
    for issue in &elsewhere.issues[..200] {
        relay.save_event(issue).await.unwrap();
    }
    let syncer = Syncer::start(Arc::new(relay.clone()), elsewhere.settings())
        .await
        .unwrap();
    until_complete(&syncer).await;
    assert_eq!(count(&relay, Kind::GitIssue).await, 300);
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_syncer_takes_orders_while_it_runs() {
    let elsewhere = Elsewhere::start().await;
    let relay = DatabaseRelay::new(MemoryDatabase::unbounded(), own());
    let mut settings = elsewhere.settings();
    settings.engine.bootstrap.clear();
    let syncer = Syncer::start(Arc::new(relay.clone()), settings)
        .await
        .unwrap();
    let there = elsewhere.relay_url();
    assert_eq!(syncer.sync_now(&there).await, Err(NotFollowed));
    assert_eq!(until_complete(&syncer).await, 0);

    let mut reports = syncer.reports();
    syncer.set_bootstrap([there.clone()]).await;
    assert_eq!(
        reports.next().await,
        Some(Report::Discovered {
            relay: there.clone()
        })
    );
    assert!(until_complete(&syncer).await >= 300);
    // An event that is lost past the wrapper is found by a full pass.
    let lost = &elsewhere.issues[7];
    relay
        .database()
        .delete(Filter::new().id(lost.id))
        .await
        .unwrap();
    syncer.sync_now(&there).await.unwrap();
    elsewhere.until_has(&relay, lost).await;
    syncer.set_bootstrap([]).await;
    until_complete(&syncer).await;
    let followed = syncer.status().await.relays;
    assert!(followed.contains_key(&there), "its repository names it");
    syncer.stop().await;
    assert!(syncer.status().await.relays.is_empty());
}

#[tokio::test]
async fn a_database_relay_takes_only_what_belongs_to_its_repositories() {
    let relay = DatabaseRelay::new(MemoryDatabase::unbounded(), own())
        .with_rule(|event| match event.content.contains("spam") {
            true => Err(Retry::Never),
            false => Ok(()),
        })
        .with_max_rows(4);
    let (alice, bob) = (Author::new(), Author::new());
    let elsewhere = "elsewhere.example".parse().unwrap();
    let repo = alice.repo("x");
    let issue = bob.issue(&repo, "it fails");
    let comment = |to: &Event| bob.sign(1111, "so it is", &[&["E", &to.id.to_hex()]]);
    let expired = bob.sign(1621, "", &[&["a", &repo.to_string()], &["expiration", "1"]]);
    let other = Taken::Refused(Retry::AfterDependency);
    let table = [
        (alice.announce("y", &elsewhere), other),
        (issue.clone(), other),
        (alice.announce("x", &own()), Taken::Stored),
        (bob.state("x", &[]), Taken::Stored),
        (bob.state("y", &[]), other),
        (issue.clone(), Taken::Stored),
        (issue.clone(), Taken::Known),
        (comment(&issue), Taken::Stored),
        (comment(&bob.issue(&alice.repo("y"), "")), other),
        (bob.issue(&repo, "spam"), Taken::Refused(Retry::Never)),
        (expired, Taken::Refused(Retry::Never)),
    ];
    assert_takes(&relay, &table).await;
    let all = relay.inventory(Filter::new()).await;
    assert_eq!(
        all,
        Err(InventoryFailed::TooLarge),
        "a list that was cut is no list"
    );
    let issues = relay.inventory(Filter::new().kind(Kind::GitIssue)).await;
    assert_eq!(issues.unwrap().len(), 1);
    let none = relay.inventory(Filter::new().ids([])).await;
    assert_eq!(none, Ok(Vec::new()));
}

/// Offers these events one after another, and compares the answers.
async fn assert_takes(relay: &DatabaseRelay<MemoryDatabase>, table: &[(Event, Taken)]) {
    for (event, wanted) in table {
        let verified = Verified::check(Arc::new(event.clone())).unwrap();
        let taken = relay.ingest(vec![verified], Origin::anonymous()).await;
        assert_eq!(taken, [*wanted], "{event:?}");
    }
}

#[tokio::test]
async fn a_database_relay_that_follows_unlisted_repositories_keeps_its_rule() {
    let relay = DatabaseRelay::new(MemoryDatabase::unbounded(), own())
        .following_unlisted()
        .with_rule(|event| match event.content.contains("spam") {
            true => Err(Retry::Never),
            false => Ok(()),
        });
    let alice = Author::new();
    let elsewhere = "elsewhere.example".parse().unwrap();
    let issue = alice.issue(&alice.repo("x"), "it fails");
    let spam = alice.issue(&alice.repo("x"), "spam");
    let table = [
        (issue.clone(), Taken::Refused(Retry::AfterDependency)),
        (alice.announce("x", &elsewhere), Taken::Stored),
        (issue, Taken::Stored),
        (alice.state("x", &[]), Taken::Stored),
        (spam, Taken::Refused(Retry::Never)),
    ];
    assert_takes(&relay, &table).await;
}

#[tokio::test]
async fn more_removals_than_a_list_may_have_are_streamed() {
    let relay = DatabaseRelay::new(MemoryDatabase::unbounded(), own()).with_max_rows(4);
    let alice = Author::new();
    let issues: Vec<Event> = (0..20)
        .map(|n| alice.earlier(n).issue(&alice.repo("x"), ""))
        .collect();
    for issue in &issues {
        relay.save_event(issue).await.unwrap();
    }
    let mut news = relay.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    while news.next().await != Some(News::CaughtUp) {}
    relay
        .delete(Filter::new().kind(Kind::GitIssue))
        .await
        .unwrap();
    let removed: Vec<News> = news.take(20).collect().await;
    for issue in &issues {
        assert!(removed.contains(&News::Removed(issue.id)), "{removed:?}");
    }
}

#[tokio::test]
async fn expired_announcements_are_retired_unless_a_newer_one_replaced_them() {
    let relay = DatabaseRelay::new(MemoryDatabase::unbounded(), own());
    let alice = Author::new();
    let soon = (nostr::types::Timestamp::now().as_secs() + 2).to_string();
    let expires: &[&[&str]] = &[&["expiration", &soon]];
    let replaced = alice.earlier(10).announce_with("replaced", &own(), expires);
    for event in [
        replaced,
        alice.announce("replaced", &own()),
        alice.announce_with("x", &own(), expires),
    ] {
        relay.save_event(&event).await.unwrap();
    }
    let news = relay.accepted(&kinds::SELF_SUBSCRIPTION_KINDS).skip(3);
    let retired: Vec<News> = news.take(1).collect().await;
    assert_eq!(retired, [News::Retired(alice.repo("x"))]);
}
