//! Everything this server accepts, for those inside it who must know: stored first, then live, without an end.
//!
//! ```text
//!   listen ──▶ read the store ──▶ CaughtUp ──▶ live ─┐
//!     ▲                                             │ the queue overflowed
//!     └─────────────────────────────────────────────┘
//! ```
//!
//! A consumer that falls behind loses nothing of what is read from the store: what no longer fits its queue is read from
//! there again. Of what it only listens to, it gets deletion requests so: they say what else is there no more.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use grasp_core::{Mono, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;

use crate::clock::Clock;
use crate::nostr::Hub;
use crate::nostr::delivery::{Half, half};
use crate::nostr::hub::{Capacity, Counted, Heard, Listener};
use crate::store::{EventStore, Inventory, StoreError, StoredEvent};

/// How much may wait for the consumer before the rest is left to the store.
const QUEUE: Capacity = Capacity { events: 4_096, bytes: 16 * 1024 * 1024 };
/// How long after reading the store an event of it may still come through the live path.
const SETTLE: Duration = Duration::from_secs(10);
/// Pause before a failed read is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Ids remembered beyond twice the number of stored events before those of vanished events are forgotten.
const SPARE_IDS: usize = 10_000;

/// What the feed says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// An event that is served.
    Event(Arc<Event>),
    /// Everything that was stored when the feed began has been given. Said once.
    CaughtUp,
}

/// Makes feeds of accepted events.
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
    /// A feed of what this store holds and this hub publishes.
    pub fn new(store: Arc<dyn EventStore>, hub: Hub, clock: Clock) -> Self {
        Self { store, hub, clock, queue: QUEUE }
    }

    /// The same with another bound on what may wait for the consumer.
    #[must_use]
    pub fn with_queue(self, queue: Capacity) -> Self {
        Self { queue, ..self }
    }

    /// Accepted events of these kinds: everything stored, newest first, then [`Accepted::CaughtUp`], then
    /// everything accepted later. Ends only when the store closes.
    pub fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, Accepted> {
        let filter = Filter::new().kinds(kinds.iter().copied());
        self.read(filter.clone(), filter.clone(), filter)
    }

    /// The same, but of what is accepted later, all kinds. Whoever falls behind may miss some that are neither of these
    /// kinds nor requests to delete or to vanish, and hear of older requests.
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
            round: 0,
            phase: Phase::Begin,
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
    /// What is read from the store first.
    stored: Filter,
    /// What is read from it after the queue overflowed; all of the former, and perhaps more.
    again: Filter,
    /// What is listened to; all of both.
    live: Filter,
    listener: Listener,
    /// From the first subscription on.
    counted: Option<Counted>,
    /// The current subscription; what is queued for an earlier one is in the store.
    round: u64,
    phase: Phase,
    /// Everything given so far, so that reading again gives only what was missed.
    given: HashSet<Half>,
    /// How many more may be remembered before those of vanished events are forgotten.
    spare: usize,
    /// What the last reading saw, until it has settled.
    just_read: HashSet<Half>,
    settled_at: Mono,
    caught_up: bool,
}

enum Phase {
    Begin,
    Reading(Pages, VecDeque<StoredEvent>),
    Live,
}

type Pages = BoxStream<'static, Result<Vec<StoredEvent>, StoreError>>;

impl Reader {
    async fn next(&mut self) -> Option<Accepted> {
        loop {
            match &mut self.phase {
                Phase::Begin => self.begin().await,
                Phase::Reading(_, waiting) => {
                    if let Some(stored) = waiting.pop_front() {
                        if let Some(event) = self.read(&stored) {
                            return Some(Accepted::Event(event));
                        }
                    } else if let Some(accepted) = self.turn_page().await? {
                        return Some(accepted);
                    }
                }
                Phase::Live => {
                    let heard = self.listener.next().await;
                    if let Some(event) = self.hear(heard).await {
                        return Some(Accepted::Event(event));
                    }
                }
            }
        }
    }

    /// Listens first and reads then, so that nothing falls between the two.
    async fn begin(&mut self) {
        self.listener.unsubscribe(self.round).await;
        self.counted.get_or_insert_with(|| self.feed.hub.feed());
        self.round += 1;
        self.listener.subscribe(self.round, vec![self.live.clone()].into()).await;
        let wanted = if self.caught_up { &self.again } else { &self.stored };
        let pages = self.feed.store.query(vec![wanted.clone()], self.feed.clock.now().unix);
        self.just_read.clear();
        self.phase = Phase::Reading(pages, VecDeque::new());
    }

    /// Takes the next page, or the end. `None` ends the feed with its store.
    async fn turn_page(&mut self) -> Option<Option<Accepted>> {
        let Phase::Reading(pages, waiting) = &mut self.phase else {
            return Some(None);
        };
        match pages.next().await {
            Some(Ok(page)) => waiting.extend(page),
            Some(Err(StoreError::Closed)) => return None,
            Some(Err(error)) => {
                tracing::error!(%error, "the feed could not read the store, trying again");
                tokio::time::sleep(RETRY).await;
                self.phase = Phase::Begin;
            }
            None => {
                self.settled_at = self.feed.clock.now().mono + SETTLE;
                self.phase = Phase::Live;
                let first = !std::mem::replace(&mut self.caught_up, true);
                return Some(first.then_some(Accepted::CaughtUp));
            }
        }
        Some(None)
    }

    fn read(&mut self, stored: &StoredEvent) -> Option<Arc<Event>> {
        self.just_read.insert(half(&stored.id));
        if !self.given.insert(half(&stored.id)) {
            return None;
        }
        match Event::from_json(stored.json.as_bytes()) {
            Ok(event) => Some(Arc::new(event)),
            Err(error) => {
                tracing::error!(%error, id = %stored.id, "a stored event cannot be read");
                None
            }
        }
    }

    async fn hear(&mut self, heard: Heard) -> Option<Arc<Event>> {
        match heard {
            Heard::Event { subscription, published } if subscription == self.round => {
                let event = &published.event;
                if self.feed.clock.now().mono >= self.settled_at {
                    self.just_read = HashSet::new();
                }
                if self.just_read.remove(&half(&event.id)) {
                    return None;
                }
                if self.again.kinds.as_ref().is_some_and(|kinds| kinds.contains(&event.kind)) {
                    self.remember(&event.id).await;
                }
                Some(event.clone())
            }
            Heard::Overflow { subscription } if subscription == self.round => {
                self.phase = Phase::Begin;
                None
            }
            _ => None,
        }
    }

    /// Remembers an id; now and then forgets those of events that are no longer stored.
    async fn remember(&mut self, id: &EventId) {
        self.given.insert(half(id));
        if self.given.len() <= self.spare {
            return;
        }
        let now = self.feed.clock.now().unix;
        let inventory = self.feed.store.inventory(self.again.clone(), now, usize::MAX).await;
        if let Ok(Inventory::Complete(items)) = inventory {
            let stored: HashSet<_> = items.iter().map(|(_, id)| half(id)).collect();
            self.given.retain(|id| stored.contains(id));
        }
        self.spare = self.given.len().saturating_mul(2).saturating_add(SPARE_IDS);
    }
}
