//! The feed of accepted events.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use grasp_relay::nostr::Hub;
use grasp_relay::nostr::hub::Capacity;
use grasp_relay::store::{EventStore as _, Saved};
use grasp_relay::{Accepted, Clock, Feed};
use nostr::event::{Event, EventId, Kind};
use nostr::types::Timestamp;

use crate::support::memory_store::MemoryStore;
use crate::support::{in_time, note};

struct World {
    store: Arc<MemoryStore>,
    hub: Hub,
    feed: Feed,
}

impl World {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let hub = Hub::start();
        let feed = Feed::new(store.clone(), hub.clone(), Clock::system());
        Self { store, hub, feed }
    }

    async fn put(&self, event: Arc<Event>) {
        let saved = self.store.save(vec![event], Timestamp::now()).await.expect("a store");
        assert_eq!(saved, [Saved::Stored]);
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
    }
}

#[tokio::test]
async fn is_no_subscription_of_anybodys() {
    let world = World::new();
    let mut feed = world.feed.accepted(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, None);
    let stats = world.hub.stats().await;
    assert_eq!((stats.listeners, stats.subscriptions), (1, 0), "{stats:?}");
}

#[tokio::test]
async fn gives_what_is_stored_then_says_so_then_what_follows() {
    let world = World::new();
    let stored = world.accept(note(1, "stored")).await;
    world.accept(note(2, "not asked for")).await;
    let mut feed = world.feed.accepted(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, Some(stored));
    assert_eq!(next(&mut feed).await, None);
    world.accept(note(2, "not asked for")).await;
    let live = world.accept(note(1, "live")).await;
    assert_eq!(next(&mut feed).await, Some(live));
}

#[tokio::test]
async fn an_event_that_races_with_the_reading_comes_once() {
    let world = World::new();
    let first = world.accept(note(1, "a")).await;
    let racing = Arc::new(note(1, "b"));
    world.put(racing.clone()).await;
    let mut feed = world.feed.accepted(&[Kind::from(1)]);
    let mut given = BTreeSet::from([next(&mut feed).await]);
    // Committed before the reading, published in the middle of it.
    world.hub.publish(racing.clone()).await;
    given.insert(next(&mut feed).await);
    assert_eq!(given, BTreeSet::from([Some(first), Some(racing.id)]));
    assert_eq!(next(&mut feed).await, None);
    let last = world.accept(note(1, "c")).await;
    assert_eq!(next(&mut feed).await, Some(last));
}

#[tokio::test]
async fn a_consumer_that_falls_behind_misses_nothing_and_hears_nothing_twice() {
    let world = World::new();
    let queue = Capacity { events: 5, bytes: 1_000_000 };
    let mut feed = world.feed.clone().with_queue(queue).accepted(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, None);
    let mut expected = BTreeSet::new();
    let mut given = Vec::new();
    for round in 0..20 {
        for nth in 0..(round % 4) * 6 + 1 {
            expected.insert(Some(world.accept(note(1, &format!("{round} {nth}"))).await));
        }
        given.push(next(&mut feed).await);
    }
    while given.len() < expected.len() {
        given.push(next(&mut feed).await);
    }
    let unique: BTreeSet<_> = given.iter().copied().collect();
    assert_eq!(unique.len(), given.len(), "something came twice");
    assert_eq!(unique, expected);
    let last = world.accept(note(1, "last")).await;
    assert_eq!(next(&mut feed).await, Some(last));
}

#[tokio::test]
async fn who_listens_to_all_kinds_and_falls_behind_hears_of_deletions_nevertheless() {
    let world = World::new();
    let queue = Capacity { events: 5, bytes: 1_000_000 };
    let mut feed = world.feed.clone().with_queue(queue).accepted_then_all(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, None);
    let live = world.accept(note(5, "in time")).await;
    assert_eq!(next(&mut feed).await, Some(live));
    let mut expected = BTreeSet::new();
    for nth in 0..20 {
        expected.insert(Some(world.accept(note(5, &nth.to_string())).await));
    }
    let mut given = BTreeSet::new();
    for _ in 0..20 {
        assert!(given.insert(next(&mut feed).await), "something came twice");
    }
    assert_eq!(given, expected);
}

#[tokio::test]
async fn an_event_that_went_and_came_back_is_told_again() {
    let world = World::new();
    let mut feed = world.feed.accepted(&[Kind::from(1)]);
    assert_eq!(next(&mut feed).await, None);
    let event = note(1, "back and forth");
    let id = world.accept(event.clone()).await;
    assert_eq!(next(&mut feed).await, Some(id));
    world.store.remove(vec![id]).await.expect("removed");
    world.accept(event).await;
    assert_eq!(next(&mut feed).await, Some(id));
}
