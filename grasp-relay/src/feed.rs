//! The feed of accepted events for consumers inside the process: stored ones first, then live ones, without an end.
//!
//! ```text
//!   listen ──▶ read the store ──▶ CaughtUp ──▶ live ─┐
//!     ▲                                             │ the queue overflowed
//!     └─────────────────────────────────────────────┘
//! ```
//!
//! A consumer that falls behind loses nothing that is read from the store: events beyond its queue are read from there
//! again. Removals have a queue of their own, so that it misses none of them either.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::nostr::Hub;
use crate::nostr::delivery::{IdPrefix, RecentHistory, id_prefix};
use crate::nostr::hub::{Capacity, HubMessage, Listener};
use crate::store::{EventChunks, EventStore, Inventory, StoreError};

/// The queue of one consumer; events beyond it are read from the store again.
const QUEUE_CAPACITY: Capacity = Capacity {
    events: 4_096,
    bytes: 16 * 1024 * 1024,
};
/// The only subscription of a feed's listener.
const SUBSCRIPTION: u64 = 0;
/// The pause after a failed read.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Ids that are kept beyond twice the number of stored events, before ids of removed events are dropped.
const SPARE_IDS: usize = 10_000;

/// A message of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// An event that is served.
    Event(Arc<Event>),
    /// These events were deleted, vanished or expired. Expired events are removed with the next write, or after a minute.
    Removed(Arc<[EventId]>),
    /// Everything that was stored at the start of the feed has been sent. Sent once.
    CaughtUp,
}

/// Creates feeds of accepted events.
///
/// ```no_run
/// # async fn example(store: std::sync::Arc<dyn grasp_relay::store::EventStore>, hub: grasp_relay::nostr::Hub) {
/// use futures_util::StreamExt as _;
/// use grasp_relay::{Accepted, Clock, Feed};
/// use nostr::event::Kind;
///
/// let feed = Feed::new(store, hub, Clock::system());
/// let mut announcements = feed.accepted(&[Kind::GitRepoAnnouncement]);
/// while let Some(Accepted::Event(event)) = announcements.next().await {
///     println!("{}", event.id);
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct Feed {
    store: Arc<dyn EventStore>,
    hub: Hub,
    clock: Clock,
    queue: Capacity,
}

impl Feed {
    /// Creates feeds of the events that this store holds and this hub publishes.
    pub fn new(store: Arc<dyn EventStore>, hub: Hub, clock: Clock) -> Self {
        Self {
            store,
            hub,
            clock,
            queue: QUEUE_CAPACITY,
        }
    }

    /// Sets the capacity of a consumer's queue.
    #[must_use]
    pub fn with_queue(self, queue: Capacity) -> Self {
        Self { queue, ..self }
    }

    /// Streams accepted events of these kinds: everything stored, newest first, then [`Accepted::CaughtUp`], then
    /// everything accepted later. Ends only when the store closes.
    pub fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, Accepted> {
        let filter = Filter::new().kinds(kinds.iter().copied());
        let listener = self.hub.listen(self.queue);
        self.read(listener, filter.clone(), filter)
    }

    /// Streams stored events of these kinds, then accepted events of all kinds and [removed](Accepted::Removed) ones.
    ///
    /// A consumer that falls behind may miss events of other kinds, but no removals.
    pub fn accepted_then_all(&self, kinds: &[Kind]) -> BoxStream<'static, Accepted> {
        let stored = Filter::new().kinds(kinds.iter().copied());
        let listener = self.hub.listen(self.queue).with_removals();
        self.read(listener, stored, Filter::new())
    }

    fn read(
        &self,
        listener: Listener,
        stored: Filter,
        live: Filter,
    ) -> BoxStream<'static, Accepted> {
        let (output, accepted) = mpsc::channel(1);
        let reader = Reader {
            listener,
            feed: self.clone(),
            stored,
            live,
            given: HashSet::new(),
            spare: SPARE_IDS,
            history: RecentHistory::default(),
            output,
        };
        tokio::spawn(reader.run());
        stream::unfold(accepted, |mut accepted| async {
            let next = accepted.recv().await?;
            Some((next, accepted))
        })
        .boxed()
    }
}

/// The task behind one stream. It ends, by `None`, when the store closes or the consumer is gone.
struct Reader {
    feed: Feed,
    listener: Listener,
    /// Read from the store, again after the queue overflowed.
    stored: Filter,
    /// Subscribed to; includes what is read.
    live: Filter,
    /// The events sent so far, so that reading again sends only what was missed.
    given: HashSet<IdPrefix>,
    /// The number of ids at which those of removed events are dropped.
    spare: usize,
    /// The events of the last read.
    history: RecentHistory,
    output: mpsc::Sender<Accepted>,
}

impl Reader {
    async fn run(mut self) -> Option<Infallible> {
        let _counted = self.feed.hub.feed();
        self.subscribe_and_read().await?;
        self.send(Accepted::CaughtUp).await?;
        loop {
            self.follow().await?;
            self.subscribe_and_read().await?;
        }
    }

    /// Subscribes first and reads then, so that there is no gap. Tries again if the store fails.
    async fn subscribe_and_read(&mut self) -> Option<()> {
        self.listener
            .subscribe(SUBSCRIPTION, vec![self.live.clone()].into())
            .await;
        self.history = RecentHistory::default();
        let mut pages = self.query();
        while let Some(page) = pages.next().await {
            match page {
                Ok(page) => {
                    for stored in page {
                        self.send_stored(&stored.id, &stored.json).await?;
                    }
                }
                Err(StoreError::Closed) => return None,
                Err(error) => {
                    tracing::error!(%error, "the feed could not read the event store; trying again");
                    tokio::time::sleep(RETRY_DELAY).await;
                    pages = self.query();
                }
            }
        }
        self.history.end(self.feed.clock.now().mono);
        Some(())
    }

    fn query(&self) -> EventChunks {
        let now = self.feed.clock.now().unix;
        self.feed.store.query(vec![self.stored.clone()], now)
    }

    /// Sends live events until the queue overflows.
    async fn follow(&mut self) -> Option<()> {
        loop {
            let now = self.feed.clock.now().mono;
            let settles_at = self.history.settles_at();
            let message = tokio::select! {
                message = self.listener.next() => message,
                () = self.output.closed() => return None,
                () = tokio::time::sleep(settles_at.unwrap_or(now) - now), if settles_at.is_some() => {
                    self.history.settle(self.feed.clock.now().mono);
                    continue;
                }
            };
            let published = match message {
                HubMessage::Event { published, .. } => published,
                HubMessage::Removed(events) => {
                    for id in &*events {
                        self.given.remove(&id_prefix(id));
                    }
                    self.send(Accepted::Removed(events)).await?;
                    continue;
                }
                HubMessage::Subscribed { .. } | HubMessage::Overflow { .. } => return Some(()),
            };
            let event = &published.event;
            if self.history.take(self.feed.clock.now().mono, &event.id) {
                continue;
            }
            if self
                .stored
                .kinds
                .as_ref()
                .is_some_and(|kinds| kinds.contains(&event.kind))
            {
                self.remember(&event.id).await;
            }
            self.send(Accepted::Event(event.clone())).await?;
        }
    }

    async fn send_stored(&mut self, id: &EventId, json: &str) -> Option<()> {
        self.history.insert(id);
        if !self.given.insert(id_prefix(id)) {
            return Some(());
        }
        match Event::from_json(json.as_bytes()) {
            Ok(event) => self.send(Accepted::Event(Arc::new(event))).await,
            Err(error) => {
                tracing::error!(%error, %id, "a stored event cannot be parsed; the feed skips it");
                Some(())
            }
        }
    }

    async fn send(&self, accepted: Accepted) -> Option<()> {
        self.output.send(accepted).await.ok()
    }

    /// Records an id; from time to time drops those of events that are no longer stored.
    async fn remember(&mut self, id: &EventId) {
        self.given.insert(id_prefix(id));
        if self.given.len() <= self.spare {
            return;
        }
        let now = self.feed.clock.now().unix;
        let inventory = self
            .feed
            .store
            .inventory(self.stored.clone(), now, usize::MAX)
            .await;
        if let Ok(Inventory::Complete(items)) = inventory {
            let stored: HashSet<_> = items.iter().map(|(_, id)| id_prefix(id)).collect();
            self.given.retain(|id| stored.contains(id));
        }
        self.spare = self.given.len().saturating_mul(2).saturating_add(SPARE_IDS);
    }
}
