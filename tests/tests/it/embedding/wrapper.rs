//! What a database relay tells sync, also when its database removes, loses and fails.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::StreamExt as _;
use grasp_core::admission::{Origin, Retry};
use grasp_core::{Verified, kinds};
use grasp_sync::Syncer;
use grasp_sync::database::DatabaseRelay;
use grasp_sync::local::{BoxStream, InventoryFailed, News, SyncedRelay, Taken};
use grasp_tests::Author;
use nostr::event::{Event, EventId, Kind, Signature};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use nostr_database::error::Error;
use nostr_database::{DatabaseEventStatus, Features, NostrDatabase, SaveEventStatus};
use nostr_memory::prelude::MemoryDatabase;

use super::{Elsewhere, own, until_complete};

type Relay = DatabaseRelay<MemoryDatabase>;

fn relay() -> Relay {
    DatabaseRelay::new(MemoryDatabase::unbounded(), own())
}

/// Returns a feed whose stored events were read.
async fn caught_up<D: NostrDatabase>(relay: &DatabaseRelay<D>) -> BoxStream<'static, News> {
    let mut news = relay.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    while news.next().await != Some(News::CaughtUp) {}
    news
}

#[tokio::test]
async fn every_removal_of_an_announcement_retires_its_repository() {
    let alice = Author::new();
    let address = alice.repo("x").to_string();
    let deletion = alice.later(1).sign(5, "", &[&["a", &address]]);
    let vanish = alice.later(1).sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    for request in [Some(deletion), Some(vanish), None] {
        let relay = relay();
        let announcement = alice.announce("x", &own());
        relay.save_event(&announcement).await.unwrap();
        let news = caught_up(&relay).await;
        match &request {
            Some(event) => assert!(relay.save_event(event).await.unwrap().is_success()),
            None => relay.wipe().await.unwrap(),
        }
        // A request is streamed itself, before what it removes.
        let before = usize::from(request.is_some());
        let told: Vec<News> = news.skip(before).take(1).collect().await;
        assert_eq!(told, [News::Retired(alice.repo("x"))], "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_a_relay_lost_are_fetched_again() {
    let elsewhere = Elsewhere::start().await;
    let relay = relay();
    let syncer = Syncer::start(Arc::new(relay.clone()), elsewhere.settings())
        .await
        .unwrap();
    until_complete(&syncer).await;
    let lost = &elsewhere.issues[7];
    let filter = Filter::new().id(lost.id);
    relay.database().delete(filter).await.unwrap();
    relay.lost_events();
    elsewhere.until_has(&relay, lost).await;
    syncer.stop().await;
}

/// Makes an issue that nobody signed. The database does not check it.
fn unsigned_issue(n: u64) -> Event {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&n.to_be_bytes());
    Event::new(
        EventId::from_byte_array(id),
        PublicKey::from_byte_array([1; 32]),
        Timestamp::from_secs(n),
        Kind::GitIssue,
        [],
        "",
        Signature::from_slice(&[0; 64]).unwrap(),
    )
}

#[tokio::test]
async fn a_feed_that_fell_behind_ends_and_a_new_one_is_complete() {
    /// One more than may wait.
    const SAVED: u64 = 8_193;
    let relay = relay();
    let mut paused = caught_up(&relay).await;
    for n in 0..SAVED {
        relay.save_event(&unsigned_issue(n)).await.unwrap();
    }
    assert_eq!(paused.next().await, None);
    let mut streamed = BTreeSet::new();
    let mut anew = relay.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    while let Some(News::Accepted(event)) = anew.next().await {
        streamed.insert(event.id);
    }
    assert_eq!(streamed.len() as u64, SAVED);
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A database that fails a number of times.
#[derive(Debug)]
struct Failing {
    events: MemoryDatabase,
    failures: AtomicU32,
}

impl Failing {
    /// Fails while failures are left.
    fn attempt<'a, T: 'a>(&self, answer: Answer<'a, T>) -> Answer<'a, T> {
        let left = self.failures.load(Ordering::Relaxed);
        if left == 0 {
            return answer;
        }
        self.failures.store(left - 1, Ordering::Relaxed);
        Box::pin(async { Err(Error::storage("the disk is gone")) })
    }
}

impl NostrDatabase for Failing {
    fn backend(&self) -> &'static str {
        "failing"
    }

    fn features(&self) -> Features {
        self.events.features()
    }

    fn save_event<'a>(&'a self, event: &'a Event) -> Answer<'a, SaveEventStatus> {
        self.attempt(self.events.save_event(event))
    }

    fn check_id<'a>(&'a self, event_id: &'a EventId) -> Answer<'a, DatabaseEventStatus> {
        self.attempt(self.events.check_id(event_id))
    }

    fn event_by_id<'a>(&'a self, event_id: &'a EventId) -> Answer<'a, Option<Event>> {
        self.attempt(self.events.event_by_id(event_id))
    }

    fn count(&self, filter: Filter) -> Answer<'_, usize> {
        self.attempt(self.events.count(filter))
    }

    fn query(&self, filter: Filter) -> Answer<'_, BTreeSet<Event>> {
        self.attempt(self.events.query(filter))
    }

    fn negentropy_items(&self, filter: Filter) -> Answer<'_, Vec<(EventId, Timestamp)>> {
        self.attempt(self.events.negentropy_items(filter))
    }

    fn delete(&self, filter: Filter) -> Answer<'_, ()> {
        self.attempt(self.events.delete(filter))
    }

    fn wipe(&self) -> Answer<'_, ()> {
        self.attempt(self.events.wipe())
    }
}

#[tokio::test]
async fn a_database_that_fails_is_asked_again() {
    let alice = Author::new();
    let announcement = alice.announce("x", &own());
    let issue = alice.issue(&alice.repo("x"), "it fails");
    let events = MemoryDatabase::unbounded();
    events.save_event(&announcement).await.unwrap();
    let database = Failing {
        events,
        failures: AtomicU32::new(1),
    };
    let relay = DatabaseRelay::new(database, own());
    let fail_next = || relay.database().failures.store(1, Ordering::Relaxed);

    // The feed repeats a page.
    let mut news = relay.accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    let first = news.next().await;
    assert_eq!(first, Some(News::Accepted(Arc::new(announcement))));

    // An event that could not be judged or saved is offered again soon.
    let verified = Verified::check(Arc::new(issue)).unwrap();
    let offer = || relay.ingest(vec![verified.clone()], Origin::anonymous());
    fail_next();
    assert_eq!(offer().await, [Taken::Refused(Retry::Soon)]);
    assert_eq!(offer().await, [Taken::Stored]);

    // A list is never cut.
    let list = || relay.inventory(Filter::new().kind(Kind::GitIssue));
    fail_next();
    assert_eq!(list().await, Err(InventoryFailed::Unreadable));
    assert_eq!(list().await.map(|rows| rows.len()), Ok(1));
}
