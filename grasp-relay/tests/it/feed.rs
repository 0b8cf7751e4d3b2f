//! The feed of accepted events.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use grasp_core::admission::Outcome;
use grasp_relay::nostr::Hub;
use grasp_relay::nostr::hub::Capacity;
use grasp_relay::store::EventStore as _;
use grasp_relay::{Accepted, Clock, Feed};
use nostr::event::{Event, EventId, Kind};
use nostr::types::Timestamp;

use crate::support::memory_store::MemoryStore;
use crate::support::{in_time, note};

struct Fixture {
    store: Arc<MemoryStore>,
    hub: Hub,
    feed: Feed,
}

impl Fixture {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let hub = Hub::start();
        let feed = Feed::new(store.clone(), hub.clone(), Clock::system());
        Self { store, hub, feed }
    }

    async fn put(&self, event: Arc<Event>) {
        let saved = self
            .store
            .save(vec![event], Timestamp::now())
            .await
            .expect("a store");
        assert_eq!(saved, [Outcome::Stored]);
    }

    async fn accept(&self, event: Event) -> EventId {
        let id = event.id;
        let event = Arc::new(event);
        self.put(event.clone()).await;
        self.hub.publish(event).await;
        id
    }
}

async fn next(feed: &mut BoxStream<'static, Accepted>) -> Option<EventId> {
    match in_time(feed.next()).await.expect("no end") {
        Accepted::Event(event) => Some(event.id),
        Accepted::CaughtUp => None,
        Accepted::Removed(events) => panic!("{events:?}"),
    }
}

#[tokio::test]
async fn a_feed_is_not_counted_as_a_subscription() {
    let fixture = Fixture::new();
    let mut feed = fixture.feed.accepted(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, None);
    let stats = fixture.hub.stats().await;
    assert_eq!((stats.listeners, stats.subscriptions), (1, 0), "{stats:?}");
}

#[tokio::test]
async fn gives_stored_events_then_caught_up_then_live_events() {
    let fixture = Fixture::new();
    let stored = fixture.accept(note(1, "stored")).await;
    fixture.accept(note(2, "not asked for")).await;
    let mut feed = fixture.feed.accepted(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, Some(stored));
    assert_eq!(next(&mut feed).await, None);
    fixture.accept(note(2, "not asked for")).await;
    let live = fixture.accept(note(1, "live")).await;
    assert_eq!(next(&mut feed).await, Some(live));
}

#[tokio::test]
async fn an_event_published_during_the_reading_is_delivered_once() {
    let fixture = Fixture::new();
    let first = fixture.accept(note(1, "a")).await;
    let racing = Arc::new(note(1, "b"));
    fixture.put(racing.clone()).await;
    let mut feed = fixture.feed.accepted(&[Kind::from(1)]);
    let mut given = BTreeSet::from([next(&mut feed).await]);
    // Committed before the reading, published in the middle of it.
    fixture.hub.publish(racing.clone()).await;
    given.insert(next(&mut feed).await);
    assert_eq!(given, BTreeSet::from([Some(first), Some(racing.id)]));
    assert_eq!(next(&mut feed).await, None);
    let last = fixture.accept(note(1, "c")).await;
    assert_eq!(next(&mut feed).await, Some(last));
}

#[tokio::test]
async fn a_slow_consumer_gets_every_event_once() {
    let fixture = Fixture::new();
    let queue = Capacity {
        events: 5,
        bytes: 1_000_000,
    };
    let mut feed = fixture
        .feed
        .clone()
        .with_queue(queue)
        .accepted(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, None);
    let mut expected = BTreeSet::new();
    let mut given = Vec::new();
    for round in 0..20 {
        for nth in 0..(round % 4) * 6 + 1 {
            expected.insert(Some(
                fixture.accept(note(1, &format!("{round} {nth}"))).await,
            ));
        }
        given.push(next(&mut feed).await);
    }
    while given.len() < expected.len() {
        given.push(next(&mut feed).await);
    }
    let unique: BTreeSet<_> = given.iter().copied().collect();
    assert_eq!(unique.len(), given.len(), "an event was delivered twice");
    assert_eq!(unique, expected);
    let last = fixture.accept(note(1, "last")).await;
    assert_eq!(next(&mut feed).await, Some(last));
}

#[tokio::test]
async fn a_slow_consumer_of_all_kinds_gets_every_removal() {
    let fixture = Fixture::new();
    let queue = Capacity {
        events: 5,
        bytes: 1_000_000,
    };
    let feed = fixture.feed.clone().with_queue(queue);
    let mut feed = feed.accepted_then_all(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, None);
    let mut expected = BTreeSet::new();
    for nth in 0..20 {
        let id = fixture.accept(note(1_111, &nth.to_string())).await;
        fixture.hub.publish_removed(BTreeSet::from([id])).await;
        expected.insert(id);
    }
    let mut removed = BTreeSet::new();
    while removed != expected {
        if let Accepted::Removed(events) = in_time(feed.next()).await.expect("no end") {
            removed.extend(events.iter().copied());
        }
    }
}

#[tokio::test]
async fn an_event_that_was_removed_and_stored_again_is_delivered_again() {
    let fixture = Fixture::new();
    let mut feed = fixture.feed.accepted(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, None);
    let event = note(1, "back and forth");
    let id = fixture.accept(event.clone()).await;
    assert_eq!(next(&mut feed).await, Some(id));
    fixture.store.remove(vec![id]).await.expect("removed");
    fixture.accept(event).await;
    assert_eq!(next(&mut feed).await, Some(id));
}
