//! The feed of accepted events for consumers inside the process: stored ones first, then live ones, without an end.
//!
//! ```text
//!   listen ──▶ read the store ──▶ CaughtUp ──▶ live ─┐
//!     ▲                                             │ the queue overflowed
//!     └─────────────────────────────────────────────┘
//! ```
//!
//! A consumer that falls behind loses nothing that is read from the store: events beyond its queue are read from there
//! again. Of the events that it only subscribes to it gets deletion requests that way, which name what was removed.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use grasp_core::{Mono, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;

use crate::clock::Clock;
use crate::nostr::Hub;
use crate::nostr::delivery::{IdPrefix, id_prefix};
use crate::nostr::hub::{Capacity, CountGuard, HubMessage, Listener};
use crate::store::{EventStore, Inventory, StoreError, StoredEvent};

/// The queue of one consumer; events beyond it are read from the store again.
const QUEUE_CAPACITY: Capacity = Capacity { events: 4_096, bytes: 16 * 1024 * 1024 };
/// The time after reading the store for which its events are recognised when they come again live.
const SETTLE: Duration = Duration::from_secs(10);
/// The pause after a failed read.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Ids that are kept beyond twice the number of stored events, before ids of removed events are dropped.
const SPARE_IDS: usize = 10_000;

/// A message of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// An event that is served.
    Event(Arc<Event>),
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
        Self { store, hub, clock, queue: QUEUE_CAPACITY }
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
        self.read(filter.clone(), filter.clone(), filter)
    }

    /// Streams stored events of these kinds, then accepted events of all kinds.
    ///
    /// A consumer that falls behind may miss events that are neither of these kinds nor requests to delete or to
    /// vanish, and may receive older requests.
    pub fn accepted_then_all(&self, kinds: &[Kind]) -> BoxStream<'static, Accepted> {
        let stored = Filter::new().kinds(kinds.iter().copied());
        let again = stored.clone().kinds([kinds::DELETION, kinds::VANISH]);
        self.read(stored, again, Filter::new())
    }

    fn read(&self, stored: Filter, again: Filter, live: Filter) -> BoxStream<'static, Accepted> {
        let reader = Reader {
            listener: self.hub.listen(self.queue),
            counted: None,
            feed: self.clone(),
            stored,
            again,
            live,
            subscription_id: 0,
            phase: FeedPhase::Begin,
            given: HashSet::new(),
            spare: SPARE_IDS,
            just_read: HashSet::new(),
            settled_at: Mono::ZERO,
            caught_up: false,
        };
        stream::unfold(reader, |mut reader| async {
            let next = reader.next().await?;
            Some((next, reader))
        })
        .boxed()
    }
}

struct Reader {
    feed: Feed,
    /// Read from the store at first.
    stored: Filter,
    /// Read from the store after the queue overflowed; includes `stored`.
    again: Filter,
    /// Subscribed to; includes both.
    live: Filter,
    listener: Listener,
    /// Set with the first subscription.
    counted: Option<CountGuard>,
    /// The current subscription; events that are queued for an earlier one are in the store.
    subscription_id: u64,
    phase: FeedPhase,
    /// The events sent so far, so that reading again sends only what was missed.
    given: HashSet<IdPrefix>,
    /// The number of ids at which those of removed events are dropped.
    spare: usize,
    /// The events of the last read, until it has settled.
    just_read: HashSet<IdPrefix>,
    settled_at: Mono,
    caught_up: bool,
}

enum FeedPhase {
    Begin,
    Reading(Pages, VecDeque<StoredEvent>),
    Live,
}

type Pages = BoxStream<'static, Result<Vec<StoredEvent>, StoreError>>;

impl Reader {
    async fn next(&mut self) -> Option<Accepted> {
        loop {
            match &mut self.phase {
                FeedPhase::Begin => self.begin().await,
                FeedPhase::Reading(_, waiting) => {
                    if let Some(stored) = waiting.pop_front() {
                        if let Some(event) = self.read(&stored) {
                            return Some(Accepted::Event(event));
                        }
                    } else if let Some(accepted) = self.next_page().await? {
                        return Some(accepted);
                    }
                }
                FeedPhase::Live => {
                    let message = self.listener.next().await;
                    if let Some(event) = self.on_hub_message(message).await {
                        return Some(Accepted::Event(event));
                    }
                }
            }
        }
    }

    /// Subscribes first and reads then, so that there is no gap.
    async fn begin(&mut self) {
        self.listener.unsubscribe(self.subscription_id).await;
        self.counted.get_or_insert_with(|| self.feed.hub.feed());
        self.subscription_id += 1;
        self.listener.subscribe(self.subscription_id, vec![self.live.clone()].into()).await;
        let wanted = if self.caught_up { &self.again } else { &self.stored };
        let pages = self.feed.store.query(vec![wanted.clone()], self.feed.clock.now().unix);
        self.just_read.clear();
        self.phase = FeedPhase::Reading(pages, VecDeque::new());
    }

    /// Reads the next page, or the end. `None` ends the feed with its store.
    async fn next_page(&mut self) -> Option<Option<Accepted>> {
        let FeedPhase::Reading(pages, waiting) = &mut self.phase else {
            return Some(None);
        };
        match pages.next().await {
            Some(Ok(page)) => waiting.extend(page),
            Some(Err(StoreError::Closed)) => return None,
            Some(Err(error)) => {
                tracing::error!(%error, "the feed could not read the event store; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
                self.phase = FeedPhase::Begin;
            }
            None => {
                self.settled_at = self.feed.clock.now().mono + SETTLE;
                self.phase = FeedPhase::Live;
                let first = !std::mem::replace(&mut self.caught_up, true);
                return Some(first.then_some(Accepted::CaughtUp));
            }
        }
        Some(None)
    }

    fn read(&mut self, stored: &StoredEvent) -> Option<Arc<Event>> {
        self.just_read.insert(id_prefix(&stored.id));
        if !self.given.insert(id_prefix(&stored.id)) {
            return None;
        }
        match Event::from_json(stored.json.as_bytes()) {
            Ok(event) => Some(Arc::new(event)),
            Err(error) => {
                tracing::error!(%error, id = %stored.id, "a stored event cannot be parsed; the feed skips it");
                None
            }
        }
    }

    async fn on_hub_message(&mut self, message: HubMessage) -> Option<Arc<Event>> {
        match message {
            HubMessage::Event { subscription, published }
                if subscription == self.subscription_id =>
            {
                let event = &published.event;
                if self.feed.clock.now().mono >= self.settled_at {
                    self.just_read = HashSet::new();
                }
                if self.just_read.remove(&id_prefix(&event.id)) {
                    return None;
                }
                if self.again.kinds.as_ref().is_some_and(|kinds| kinds.contains(&event.kind)) {
                    self.remember(&event.id).await;
                }
                Some(event.clone())
            }
            HubMessage::Overflow { subscription } if subscription == self.subscription_id => {
                self.phase = FeedPhase::Begin;
                None
            }
            _ => None,
        }
    }

    /// Records an id; from time to time drops those of events that are no longer stored.
    async fn remember(&mut self, id: &EventId) {
        self.given.insert(id_prefix(id));
        if self.given.len() <= self.spare {
            return;
        }
        let now = self.feed.clock.now().unix;
        let inventory = self.feed.store.inventory(self.again.clone(), now, usize::MAX).await;
        if let Ok(Inventory::Complete(items)) = inventory {
            let stored: HashSet<_> = items.iter().map(|(_, id)| id_prefix(id)).collect();
            self.given.retain(|id| stored.contains(id));
        }
        self.spare = self.given.len().saturating_mul(2).saturating_add(SPARE_IDS);
    }
}
