//! The events of one subscription: stored ones first, then live ones, each once.
//!
//! A subscription receives live events before its history is read, so that there is no gap between the two.
//! [`Delivery`] defers early live events until the end of history and drops those that history contained;
//! [`Completeness`] computes the hint of EOSE (NIP-67); [`ReadLimiter`] shares the store's readers between client
//! networks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use grasp_core::Mono;
use grasp_core::limits::EoseHint;
use grasp_core::resources::{Bounds, Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use nostr::event::EventId;
use nostr::filter::Filter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::hub::{Capacity, Published};
use super::limits::Limits;
use crate::store::{StoreError, StoredEvent};

/// The progress of one subscription from history to live.
///
/// *Reading* until [`caught_up`](Self::caught_up); then *settling*, because an event of history may be published a
/// moment after its commit; then *live* at the first event after that time.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// The part of every EVENT message before the event.
    prefix: String,
    phase: DeliveryPhase,
    capacity: Capacity,
}

#[derive(Clone, Debug)]
enum DeliveryPhase {
    Reading { sent: Sent, early: Vec<Arc<Published>>, early_bytes: usize },
    Settling { sent: Sent, until: Mono },
    Live,
}

/// The ids that history contained.
type Sent = HashSet<IdPrefix>;

/// The first half of an id: long enough against collisions by intent.
pub(crate) type IdPrefix = [u8; 16];

/// The handling of a live event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum LiveAction {
    Send,
    /// Keep it until the end of history.
    Defer,
    /// Drop it: history contained it.
    Skip,
    /// End the subscription: too many events wait for the end of history.
    Overflow,
}

impl Delivery {
    pub(crate) fn new(prefix: String, limits: &Limits) -> Self {
        Self {
            prefix,
            phase: DeliveryPhase::Reading { sent: Sent::new(), early: Vec::new(), early_bytes: 0 },
            capacity: Capacity { events: limits.live_queue_events, bytes: limits.live_queue_bytes },
        }
    }

    /// Returns an EVENT message.
    pub(crate) fn frame(&self, json: &str) -> String {
        [&self.prefix, json, "]"].concat()
    }

    /// Records that history contained this event.
    pub(crate) fn stored(&mut self, id: &EventId) {
        if let DeliveryPhase::Reading { sent, .. } = &mut self.phase {
            sent.insert(id_prefix(id));
        }
    }

    /// Ends history; returns the deferred events that are still to be sent.
    pub(crate) fn caught_up(&mut self, now: Mono, limits: &Limits) -> Vec<Arc<Published>> {
        match std::mem::replace(&mut self.phase, DeliveryPhase::Live) {
            DeliveryPhase::Reading { sent, mut early, .. } => {
                early.retain(|published| !sent.contains(&id_prefix(&published.event.id)));
                self.phase = DeliveryPhase::Settling { sent, until: now + limits.settle };
                early
            }
            other => {
                self.phase = other;
                Vec::new()
            }
        }
    }

    /// Decides how to handle a live event.
    pub(crate) fn live(&mut self, now: Mono, published: &Arc<Published>) -> LiveAction {
        match &mut self.phase {
            DeliveryPhase::Reading { early, early_bytes, .. } => {
                *early_bytes = early_bytes.saturating_add(published.json.len());
                if early.len() >= self.capacity.events || *early_bytes > self.capacity.bytes {
                    return LiveAction::Overflow;
                }
                early.push(published.clone());
                LiveAction::Defer
            }
            DeliveryPhase::Settling { sent, until } if now < *until => {
                if sent.remove(&id_prefix(&published.event.id)) {
                    LiveAction::Skip
                } else {
                    LiveAction::Send
                }
            }
            DeliveryPhase::Settling { .. } => {
                self.phase = DeliveryPhase::Live;
                LiveAction::Send
            }
            DeliveryPhase::Live => LiveAction::Send,
        }
    }
}

pub(crate) fn id_prefix(id: &EventId) -> IdPrefix {
    let mut prefix = [0; 16];
    prefix.copy_from_slice(&id.as_bytes()[..16]);
    prefix
}

/// Returns the filters for the store: with a bounded `limit` each, and without those that want no history.
pub(crate) fn history_filters(filters: &[Filter], limits: &Limits) -> Vec<Filter> {
    filters
        .iter()
        .filter(|filter| filter.limit != Some(0))
        .map(|filter| {
            let limit = filter.limit.unwrap_or(limits.default_limit);
            filter.clone().limit(limit.min(limits.max_limit))
        })
        .collect()
}

/// Counts the events that are sent of one history.
///
/// For a single filter the store is asked for one event more than is sent, which shows exactly whether there are
/// more. Several filters share their answer: if fewer events were sent than the smallest limit, no filter was cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completeness {
    limit: usize,
    is_single: bool,
    sent: usize,
    is_cut: bool,
}

impl Completeness {
    /// Starts the answer to filters, and adapts the limits of `wanted`, which the store is asked.
    pub(crate) fn begin(filters: &[Filter], wanted: &mut [Filter]) -> Self {
        let limit = wanted.iter().filter_map(|filter| filter.limit).min();
        // A filter without history is never complete.
        let limit = limit.filter(|_| filters.len() == wanted.len()).unwrap_or(0);
        let is_single = filters.len() == 1 && limit > 0;
        if let ([only], true) = (wanted, is_single) {
            only.limit = Some(limit.saturating_add(1));
        }
        Self { limit, is_single, sent: 0, is_cut: false }
    }

    /// Returns whether one more event is sent.
    pub(crate) fn admit(&mut self) -> bool {
        self.is_cut |= self.is_single && self.sent >= self.limit;
        self.sent += usize::from(!self.is_cut);
        !self.is_cut
    }

    /// Returns the hint for EOSE.
    pub(crate) fn hint(&self) -> EoseHint {
        let is_more = if self.is_single { self.is_cut } else { self.sent >= self.limit };
        if is_more { EoseHint::More } else { EoseHint::Finish }
    }
}

/// Concurrent reads of all clients, each in short slices. One address has a quarter of what others leave, so that a
/// new client waits for a few slices only.
const MAX_CONCURRENT_READS: u64 = 32;

/// Concurrent reads of one connection.
const MAX_READS_PER_CONNECTION: usize = 2;

/// The time that a read waits for its permit.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits the concurrent reads of all connections.
#[derive(Clone, Debug)]
pub(crate) struct ReadLimiter {
    permits: SharedPool,
}

/// Limits the concurrent reads of one connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionReadLimiter {
    permits: SharedPool,
    own: Arc<Semaphore>,
    claimant: Claimant,
}

/// The permit for one read, released when dropped.
pub(super) struct ReadPermit {
    _own: OwnedSemaphorePermit,
    _permit: Holding,
}

/// A read that got no permit in time, or failed.
pub(super) enum ReadFailure {
    Busy,
    Store(StoreError),
}

impl ReadLimiter {
    pub(crate) fn new() -> Self {
        let bounds = Bounds { reserve: 0, ..Bounds::of(MAX_CONCURRENT_READS) };
        Self { permits: SharedPool::new(bounds) }
    }

    pub(super) fn of_connection(&self, network: ClientNetwork) -> ConnectionReadLimiter {
        ConnectionReadLimiter {
            permits: self.permits.clone(),
            own: Arc::new(Semaphore::new(MAX_READS_PER_CONNECTION)),
            claimant: Claimant::at(network),
        }
    }
}

impl ConnectionReadLimiter {
    /// Waits for a permit.
    pub(super) async fn acquire(&self) -> Option<ReadPermit> {
        let own = self.own.clone().acquire_owned().await.ok()?;
        let permit = self.permits.wait(&self.claimant, 1, READ_TIMEOUT).await.ok()?;
        Some(ReadPermit { _own: own, _permit: permit })
    }

    /// Reads a history page by page, each with a permit of its own.
    pub(super) fn paged(
        &self,
        pages: BoxStream<'static, Result<Vec<StoredEvent>, StoreError>>,
    ) -> impl Stream<Item = Result<Vec<StoredEvent>, ReadFailure>> + use<> {
        stream::unfold(Some((pages, self.clone())), |reading| async move {
            let (mut pages, reads) = reading?;
            let Some(permit) = reads.acquire().await else {
                return Some((Err(ReadFailure::Busy), None));
            };
            let page = pages.next().await?;
            drop(permit);
            Some(match page {
                Ok(events) => (Ok(events), Some((pages, reads))),
                Err(error) => (Err(ReadFailure::Store(error)), None),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use nostr::event::{EventBuilder, FinalizeEvent, Kind};
    use nostr::key::Keys;
    use std::time::Duration;

    use super::*;

    fn limits() -> Limits {
        Limits { live_queue_events: 3, settle: Duration::from_secs(10), ..Limits::default() }
    }

    fn notes() -> [Arc<Published>; 5] {
        let keys = Keys::generate();
        [0, 1, 2, 3, 4].map(|nth| {
            let note = EventBuilder::new(Kind::from(1), nth.to_string()).finalize(&keys);
            Arc::new(Published::new(Arc::new(note.expect("signed"))))
        })
    }

    #[test]
    fn what_history_brought_does_not_come_again() {
        let [old, racing, late, fresh, other] = notes();
        let (now, limits) = (Mono::from_secs(5), limits());
        let mut delivery = Delivery::new(String::new(), &limits);
        assert_eq!(delivery.live(now, &racing), LiveAction::Defer);
        assert_eq!(delivery.live(now, &fresh), LiveAction::Defer);
        assert_eq!(delivery.live(now, &other), LiveAction::Defer);
        for stored in [&old, &racing, &late] {
            delivery.stored(&stored.event.id);
        }
        assert_eq!(delivery.caught_up(now, &limits), [fresh, other]);
        // Committed before history was read, published after its end.
        assert_eq!(delivery.live(now, &late), LiveAction::Skip);
    }

    #[test]
    fn memory_of_history_ends_with_the_settling_time() {
        let [old, other, ..] = notes();
        let (now, limits) = (Mono::from_secs(5), limits());
        let mut delivery = Delivery::new(String::new(), &limits);
        delivery.stored(&old.event.id);
        assert!(delivery.caught_up(now, &limits).is_empty());
        assert_eq!(delivery.live(now, &other), LiveAction::Send);
        assert_eq!(delivery.live(now + limits.settle, &old), LiveAction::Send);
        assert!(matches!(delivery.phase, DeliveryPhase::Live));
    }

    #[test]
    fn too_much_before_the_end_of_history_is_an_overflow() {
        let [a, b, c, d, _] = notes();
        let mut delivery = Delivery::new(String::new(), &limits());
        for kept in [a, b, c] {
            assert_eq!(delivery.live(Mono::ZERO, &kept), LiveAction::Defer);
        }
        assert_eq!(delivery.live(Mono::ZERO, &d), LiveAction::Overflow);
    }

    #[test]
    fn history_is_bounded_by_filter_and_left_out_where_not_wanted() {
        let limits = Limits { max_limit: 50, default_limit: 20, ..Limits::default() };
        let filters = [
            Filter::new(),
            Filter::new().limit(7),
            Filter::new().limit(0),
            Filter::new().limit(usize::MAX),
        ];
        let limits: Vec<_> =
            history_filters(&filters, &limits).iter().map(|filter| filter.limit).collect();
        assert_eq!(limits, [Some(20), Some(7), Some(50)]);
    }

    /// What is sent, and what is said at the end, if the store has so many for these limits.
    fn answered(limits: &[usize], found: usize) -> (usize, EoseHint) {
        let filters: Vec<_> = limits.iter().map(|limit| Filter::new().limit(*limit)).collect();
        let mut wanted: Vec<_> =
            filters.iter().filter(|filter| filter.limit != Some(0)).cloned().collect();
        let mut answer = Completeness::begin(&filters, &mut wanted);
        let most: usize = wanted.iter().filter_map(|filter| filter.limit).sum();
        let sent = (0..found.min(most)).filter(|_| answer.admit()).count();
        (sent, answer.hint())
    }

    #[test]
    fn a_single_filter_is_told_exactly_and_sent_no_more_than_its_limit() {
        use EoseHint::{Finish, More};
        let table = [(0, 0, Finish), (4, 4, Finish), (5, 5, Finish), (6, 5, More), (90, 5, More)];
        for (found, sent, hint) in table {
            assert_eq!(answered(&[5], found), (sent, hint), "{found}");
        }
    }

    #[test]
    fn of_several_filters_everything_was_sent_if_it_is_less_than_any_limit() {
        assert_eq!(answered(&[5, 9], 4), (4, EoseHint::Finish));
        assert_eq!(answered(&[5, 9], 5), (5, EoseHint::More));
        assert_eq!(answered(&[0], 3), (0, EoseHint::More), "nothing was query for");
        assert_eq!(answered(&[0, 9], 3), (3, EoseHint::More));
    }

    fn at(address: &str) -> ClientNetwork {
        ClientNetwork::of(address.parse().unwrap())
    }

    #[tokio::test]
    async fn one_address_leaves_turns_for_others() {
        let reads = ReadLimiter::new();
        let mut held = Vec::new();
        for _ in 0..20 {
            let connection = reads.of_connection(at("198.51.100.1"));
            held.extend(connection.acquire().now_or_never().flatten());
            held.extend(connection.acquire().now_or_never().flatten());
        }
        assert_eq!(held.len(), 8);
        let other = reads.of_connection(at("192.0.2.1"));
        assert!(other.acquire().now_or_never().flatten().is_some());
        drop(held);
        assert_eq!(reads.permits.usage().all, 0);
    }

    #[tokio::test]
    async fn one_connection_reads_two_pages_at_once() {
        let connection = ReadLimiter::new().of_connection(at("192.0.2.1"));
        let first = connection.acquire().now_or_never().flatten();
        let second = connection.acquire().now_or_never().flatten();
        assert!(first.is_some() && second.is_some());
        assert!(connection.acquire().now_or_never().is_none());
        drop(first);
        assert!(connection.acquire().now_or_never().flatten().is_some());
    }
}
