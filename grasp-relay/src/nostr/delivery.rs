//! The events of one subscription: stored ones first, then live ones, each once.
//!
//! A subscription receives live events before its history is read, so that there is no gap between the two.
//! [`Delivery`] defers early live events until the end of history and drops those that history contained;
//! [`Reads`] limits the reads of a connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use grasp_core::Mono;
use grasp_core::limits::EoseHint;
use grasp_core::resources::Claimant;
use grasp_purgatory::resources::{Holding, SharedPool};
use nostr::event::EventId;
use nostr::filter::Filter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::hub::{Capacity, Published};
use super::limits::Limits;
use crate::store::{StoreError, StoredEvent};

/// The time after the end of history for which its events are recognised when they come again live.
pub(crate) const HISTORY_RETENTION: Duration = Duration::from_secs(10);

/// Bytes in memory for each id that a history has room for.
const BYTES_PER_ID: usize = 20;

/// The first half of an id: long enough against collisions by intent.
pub(crate) type IdPrefix = [u8; 16];

pub(crate) fn id_prefix(id: &EventId) -> IdPrefix {
    let mut prefix = [0; 16];
    prefix.copy_from_slice(&id.as_bytes()[..16]);
    prefix
}

/// The events of a history that was read while live events came.
///
/// An event of it may be published a moment after its commit, so they are remembered for [`HISTORY_RETENTION`] after
/// its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentHistory {
    ids: HashSet<IdPrefix>,
    settled_at: Option<Mono>,
}

impl RecentHistory {
    pub(crate) fn insert(&mut self, id: &EventId) {
        self.ids.insert(id_prefix(id));
    }

    /// Ends the history.
    pub(crate) fn end(&mut self, now: Mono) {
        self.settled_at = Some(now + HISTORY_RETENTION);
    }

    /// Returns the time at which the events are forgotten, once the history has ended.
    pub(crate) fn settles_at(&self) -> Option<Mono> {
        self.settled_at.filter(|_| self.bytes() > 0)
    }

    /// Forgets the events if it is time.
    pub(crate) fn settle(&mut self, now: Mono) {
        if self.settled_at.is_some_and(|at| now >= at) {
            *self = Self::default();
        }
    }

    /// Returns whether history contained a live event, which is true once.
    pub(crate) fn take(&mut self, now: Mono, id: &EventId) -> bool {
        self.settle(now);
        self.ids.remove(&id_prefix(id))
    }

    /// Returns the bytes that the events take in memory.
    fn bytes(&self) -> usize {
        self.ids.capacity().saturating_mul(BYTES_PER_ID)
    }
}

/// The progress of one subscription from history to live.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// The part of every EVENT message before the event.
    prefix: String,
    answer: Completeness,
    history: RecentHistory,
    /// Live events that came before the end of history.
    early: Option<Vec<Arc<Published>>>,
    early_bytes: usize,
    capacity: Capacity,
}

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
    /// Starts the answer to filters. Returns the filters for the store, too.
    pub(crate) fn begin(
        prefix: String,
        filters: &[Filter],
        limits: &Limits,
    ) -> (Self, Vec<Filter>) {
        let (answer, wanted) = Completeness::begin(filters, limits);
        let delivery = Self {
            prefix,
            answer,
            history: RecentHistory::default(),
            early: Some(Vec::new()),
            early_bytes: 0,
            capacity: limits.live_queue(),
        };
        (delivery, wanted)
    }

    /// Returns an EVENT message.
    pub(crate) fn frame(&self, json: &str) -> String {
        [&self.prefix, json, "]"].concat()
    }

    /// Records that history contained this event; returns whether it is sent.
    pub(crate) fn stored(&mut self, id: &EventId) -> bool {
        let is_sent = self.answer.admit();
        if is_sent {
            self.history.insert(id);
        }
        is_sent
    }

    /// Ends history. Returns the hint for EOSE (NIP-67), and the deferred events, to be handled as if they came now.
    pub(crate) fn caught_up(&mut self, now: Mono) -> (EoseHint, Vec<Arc<Published>>) {
        self.history.end(now);
        (self.answer.hint(), self.early.take().unwrap_or_default())
    }

    /// Returns the bytes that the events of history take in memory.
    pub(crate) fn history_bytes(&self) -> usize {
        self.history.bytes()
    }

    /// Returns the time at which the events of history are forgotten, once it has ended.
    pub(crate) fn settles_at(&self) -> Option<Mono> {
        self.history.settles_at()
    }

    /// Forgets the events of history if it is time.
    pub(crate) fn settle(&mut self, now: Mono) {
        self.history.settle(now);
    }

    /// Decides how to handle a live event.
    pub(crate) fn live(&mut self, now: Mono, published: &Arc<Published>) -> LiveAction {
        if let Some(early) = &mut self.early {
            self.early_bytes = self.early_bytes.saturating_add(published.json.len());
            if early.len() >= self.capacity.events || self.early_bytes > self.capacity.bytes {
                return LiveAction::Overflow;
            }
            early.push(published.clone());
            return LiveAction::Defer;
        }
        match self.history.take(now, &published.event.id) {
            true => LiveAction::Skip,
            false => LiveAction::Send,
        }
    }
}

/// Counts the events that are sent of one history.
///
/// For a single filter the store is asked for one event more than is sent, which shows exactly whether there are
/// more. Several filters share their answer: if fewer events were sent than the smallest limit, no filter was cut.
#[derive(Clone, Copy, Debug)]
struct Completeness {
    limit: usize,
    is_single: bool,
    sent: usize,
    is_cut: bool,
}

impl Completeness {
    /// Starts the answer to filters. Returns the filters for the store, too: with a bounded `limit` each, and without
    /// those that want no history.
    fn begin(filters: &[Filter], limits: &Limits) -> (Self, Vec<Filter>) {
        let wanted = filters.iter().filter(|filter| filter.limit != Some(0));
        let bounded = |filter: &Filter| {
            let limit = filter.limit.unwrap_or(limits.default_limit);
            filter.clone().limit(limit.min(limits.max_limit))
        };
        let mut wanted: Vec<_> = wanted.map(bounded).collect();
        let limit = wanted.iter().filter_map(|filter| filter.limit).min();
        // A filter without history is never complete.
        let limit = limit.filter(|_| filters.len() == wanted.len()).unwrap_or(0);
        let is_single = filters.len() == 1 && limit > 0;
        if let ([only], true) = (&mut wanted[..], is_single) {
            only.limit = Some(limit.saturating_add(1));
        }
        (
            Self {
                limit,
                is_single,
                sent: 0,
                is_cut: false,
            },
            wanted,
        )
    }

    /// Returns whether one more event is sent.
    fn admit(&mut self) -> bool {
        self.is_cut |= self.is_single && self.sent >= self.limit;
        self.sent += usize::from(!self.is_cut);
        !self.is_cut
    }

    /// Returns the hint for EOSE.
    fn hint(&self) -> EoseHint {
        let is_more = if self.is_single {
            self.is_cut
        } else {
            self.sent >= self.limit
        };
        if is_more {
            EoseHint::More
        } else {
            EoseHint::Finish
        }
    }
}

/// Concurrent reads of all clients, each in short slices. One address has a quarter of what others leave, so that a
/// new client waits for a few slices only.
pub(super) const MAX_CONCURRENT_READS: usize = 32;

/// Concurrent reads of one connection.
const MAX_READS_PER_CONNECTION: usize = 2;

/// The time that a read waits for its permit.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The refusal of a read that got no permit in time.
pub(super) const BUSY: &str =
    "rate-limited: this network uses its share of this relay, try again later";

/// Logs a failure of the store, and returns the refusal for the client.
pub(super) fn store_failed(error: &StoreError) -> &'static str {
    tracing::error!(%error, "the event store failed to answer a client");
    "error: the event store failed"
}

/// Limits the concurrent reads of one connection.
#[derive(Clone, Debug)]
pub(super) struct Reads {
    all: SharedPool,
    own: Arc<Semaphore>,
    claimant: Claimant,
}

impl Reads {
    /// Limits reads within those of all connections.
    pub(super) fn new(all: SharedPool, claimant: Claimant) -> Self {
        Self {
            all,
            own: Arc::new(Semaphore::new(MAX_READS_PER_CONNECTION)),
            claimant,
        }
    }

    /// Waits for a permit, released when dropped.
    pub(super) async fn acquire(&self) -> Result<(OwnedSemaphorePermit, Holding), &'static str> {
        let own = self.own.clone().acquire_owned().await.map_err(|_| BUSY)?;
        let read = self
            .all
            .wait(&self.claimant, 1, READ_TIMEOUT)
            .await
            .map_err(|_| BUSY)?;
        Ok((own, read))
    }

    /// Reads a history page by page, each with a permit of its own. Ends with the first failure.
    pub(super) fn paged(
        &self,
        pages: BoxStream<'static, Result<Vec<StoredEvent>, StoreError>>,
    ) -> impl Stream<Item = Result<Vec<StoredEvent>, &'static str>> + use<> {
        stream::unfold(Some((pages, self.clone())), |reading| async move {
            let (mut pages, reads) = reading?;
            let page = match reads.acquire().await {
                Ok(_permit) => pages.next().await?.map_err(|error| store_failed(&error)),
                Err(busy) => Err(busy),
            };
            let reading = page.is_ok().then_some((pages, reads));
            Some((page, reading))
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use nostr::event::{EventBuilder, FinalizeEvent, Kind};
    use nostr::key::Keys;

    use super::*;
    use crate::server::shared_pool;
    use grasp_core::resources::ClientNetwork;

    fn delivery() -> Delivery {
        let limits = Limits {
            live_queue_events: 3,
            ..Limits::default()
        };
        Delivery::begin(String::new(), &[Filter::new()], &limits).0
    }

    fn notes() -> [Arc<Published>; 5] {
        let keys = Keys::generate();
        [0, 1, 2, 3, 4].map(|nth| {
            let note = EventBuilder::new(Kind::from(1), nth.to_string()).finalize(&keys);
            Arc::new(Published::new(Arc::new(note.expect("signed"))))
        })
    }

    #[test]
    fn events_of_history_are_not_delivered_again_live() {
        let [old, racing, late, fresh, other] = notes();
        let now = Mono::from_secs(5);
        let mut delivery = delivery();
        assert_eq!(delivery.live(now, &racing), LiveAction::Defer);
        assert_eq!(delivery.live(now, &fresh), LiveAction::Defer);
        assert_eq!(delivery.live(now, &other), LiveAction::Defer);
        for stored in [&old, &racing, &late] {
            assert!(delivery.stored(&stored.event.id));
        }
        let (_, mut early) = delivery.caught_up(now);
        early.retain(|published| delivery.live(now, published) == LiveAction::Send);
        assert_eq!(early, [fresh, other]);
        // Committed before history was read, published after its end.
        assert_eq!(delivery.live(now, &late), LiveAction::Skip);
    }

    #[test]
    fn memory_of_history_ends_with_the_settling_time() {
        let [old, other, ..] = notes();
        let now = Mono::from_secs(5);
        let mut delivery = delivery();
        assert!(delivery.stored(&old.event.id));
        assert!(delivery.caught_up(now).1.is_empty());
        assert_eq!(delivery.live(now, &other), LiveAction::Send);
        assert_eq!(
            delivery.live(now + HISTORY_RETENTION, &old),
            LiveAction::Send
        );
        assert!(delivery.history.ids.is_empty());
    }

    #[test]
    fn memory_of_history_is_counted_and_ends_without_a_live_event() {
        let mut delivery = delivery();
        assert_eq!(delivery.history_bytes(), 0);
        for note in notes() {
            assert!(delivery.stored(&note.event.id));
        }
        assert!(delivery.history_bytes() >= 5 * BYTES_PER_ID);
        let now = Mono::from_secs(5);
        delivery.settle(now + HISTORY_RETENTION);
        assert!(delivery.history_bytes() > 0 && delivery.settles_at().is_none());
        assert!(delivery.caught_up(now).1.is_empty());
        let at = delivery.settles_at().expect("history has ended");
        assert_eq!(at, now + HISTORY_RETENTION);
        delivery.settle(now);
        assert!(delivery.history_bytes() > 0);
        delivery.settle(at);
        assert_eq!((delivery.history_bytes(), delivery.settles_at()), (0, None));
    }

    #[test]
    fn too_much_before_the_end_of_history_is_an_overflow() {
        let [a, b, c, d, _] = notes();
        let mut delivery = delivery();
        for kept in [a, b, c] {
            assert_eq!(delivery.live(Mono::ZERO, &kept), LiveAction::Defer);
        }
        assert_eq!(delivery.live(Mono::ZERO, &d), LiveAction::Overflow);
    }

    #[test]
    fn history_is_bounded_by_filter_and_left_out_where_not_wanted() {
        let limits = Limits {
            max_limit: 50,
            default_limit: 20,
            ..Limits::default()
        };
        let filters = [
            Filter::new(),
            Filter::new().limit(7),
            Filter::new().limit(0),
            Filter::new().limit(usize::MAX),
        ];
        let (_, wanted) = Completeness::begin(&filters, &limits);
        let limits: Vec<_> = wanted.iter().map(|filter| filter.limit).collect();
        assert_eq!(limits, [Some(20), Some(7), Some(50)]);
    }

    /// Returns the number of events sent and the EOSE hint, if the store has `found` events for these limits.
    fn answered(limits: &[usize], found: usize) -> (usize, EoseHint) {
        let filters: Vec<_> = limits
            .iter()
            .map(|limit| Filter::new().limit(*limit))
            .collect();
        let (mut answer, wanted) = Completeness::begin(&filters, &Limits::default());
        let max: usize = wanted.iter().filter_map(|filter| filter.limit).sum();
        let sent = (0..found.min(max)).filter(|_| answer.admit()).count();
        (sent, answer.hint())
    }

    #[test]
    fn the_hint_of_a_single_filter_is_exact_and_its_limit_holds() {
        use EoseHint::{Finish, More};
        let table = [
            (0, 0, Finish),
            (4, 4, Finish),
            (5, 5, Finish),
            (6, 5, More),
            (90, 5, More),
        ];
        for (found, sent, hint) in table {
            assert_eq!(answered(&[5], found), (sent, hint), "{found}");
        }
    }

    #[test]
    fn several_filters_are_finished_if_fewer_events_than_any_limit_were_sent() {
        assert_eq!(answered(&[5, 9], 4), (4, EoseHint::Finish));
        assert_eq!(answered(&[5, 9], 5), (5, EoseHint::More));
        assert_eq!(
            answered(&[0], 3),
            (0, EoseHint::More),
            "nothing was requested"
        );
        assert_eq!(answered(&[0, 9], 3), (3, EoseHint::More));
    }

    fn reads(all: &SharedPool, address: &str) -> Reads {
        let network = ClientNetwork::of(address.parse().unwrap());
        Reads::new(all.clone(), Claimant::at(network))
    }

    #[tokio::test]
    async fn one_address_leaves_reads_for_others() {
        let all = shared_pool(MAX_CONCURRENT_READS);
        let mut held = Vec::new();
        for _ in 0..20 {
            let connection = reads(&all, "198.51.100.1");
            held.extend(connection.acquire().now_or_never());
            held.extend(connection.acquire().now_or_never());
        }
        assert_eq!(held.len(), 8);
        assert!(
            reads(&all, "192.0.2.1")
                .acquire()
                .now_or_never()
                .is_some_and(|it| it.is_ok())
        );
        drop(held);
        assert_eq!(all.usage().all, 0);
    }

    #[tokio::test]
    async fn one_connection_reads_two_pages_at_once() {
        let connection = reads(&shared_pool(MAX_CONCURRENT_READS), "192.0.2.1");
        let first = connection.acquire().now_or_never();
        let second = connection.acquire().now_or_never();
        assert!(first.is_some() && second.is_some());
        assert!(connection.acquire().now_or_never().is_none());
        drop(first);
        assert!(
            connection
                .acquire()
                .now_or_never()
                .is_some_and(|it| it.is_ok())
        );
    }
}
