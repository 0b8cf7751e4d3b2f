//! Jobs: the history of one filter each, fetched by reconciliation or by pages until it is proven; and groups of jobs
//! that complete together.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use crate::limits::{Next, Pager, PagerConfig};
use grasp_core::Mono;
use grasp_core::limits::EoseHint;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{BatchId, FilterHash, PendingBatch, Proof, Proven};

use super::compact_filter::CompactFilter;
use super::ids::{GroupId, InventoryId, JobId, LiveId, SubId};
use super::io::Row;
use super::layer::Layer;
use super::reconcile::Reconciliation;
use super::relay::CountAs;

/// The purpose of a group of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Layer 1, once per connection.
    Announcements,
    /// Confirmed items, from the loss of the connection on.
    CatchUp,
    /// New repositories and roots; the batch is in the pending index.
    Batch(BatchId),
    /// Events published while a live request was not open.
    MissedLive(LiveId),
    /// Events of a live request for which there is no room.
    Poll(LiveId),
}

impl Purpose {
    /// Returns whether history is complete only when it is.
    pub(super) fn is_history(self) -> bool {
        !matches!(self, Self::Poll(_))
    }
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) purpose: Purpose,
    pub(super) began: Timestamp,
    /// The way in which its events are counted.
    pub(super) count_as: CountAs,
    /// What is outstanding; in the pending index for a [`Purpose::Batch`].
    pub(super) tracker: Option<PendingBatch>,
}

/// The method of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Method {
    /// NIP-77, then fetches by id.
    Reconcile,
    /// Requests page by page.
    Page,
}

/// Fetches everything that a relay has for one filter.
///
/// ```text
///   Queued(Reconcile) ─▶ Listing ─▶ Comparing ─▶ AwaitingJudgement ─▶ proven
///        │ ▲                │           │                │ offered, not delivered
///        │ └── refused ─────┴───────────┤                │
///        ▼                              ▼                ▼
///   Queued(Page) ◀──▶ Paging ──────────────────▶ AwaitingJudgement ─▶ proven
///        ▲              │ failed
///    BackingOff ◀───────┘
/// ```
#[derive(Debug)]
pub(super) struct Job {
    pub(super) group: GroupId,
    pub(super) layer: Layer,
    /// The filter with its window, without a limit.
    compact: CompactFilter,
    /// The hash of the filter, computed when first needed: that takes writing the filter out.
    hash: OnceCell<FilterHash>,
    /// The hash of the filter that this is a part of.
    original: Option<FilterHash>,
    /// The time at which it began; younger events come live.
    pub(super) began: Timestamp,
    pub(super) phase: JobPhase,
    /// The cursor, once pages are requested.
    pub(super) pager: Option<Box<Pager>>,
    /// Pages received, and rows of the last.
    pages: u32,
    last_page: usize,
    /// Requests with rows that are not judged yet.
    pub(super) unjudged: BTreeSet<SubId>,
    /// Offered events that are neither here nor given up.
    pub(super) outstanding: usize,
    /// Another job for the same filter, which ends this one with it.
    pub(super) waits_for: Option<JobId>,
    /// Events offered, and those not delivered on the first request.
    pub(super) offered: usize,
    pub(super) missed: usize,
    /// True if something was given up or left to parts: the job ends, but proves nothing.
    pub(super) is_partial: bool,
    pub(super) once: Once,
    /// Failures in a row.
    pub(super) failures: u32,
    /// Refusals for want of room in a row.
    pub(super) room_refusals: u32,
    /// Splits by time that led to this part.
    pub(super) splits: u32,
}

/// Steps that are taken at most once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Once {
    /// Sent again after a temporary fault.
    pub(super) retried: bool,
    /// Opened again after the relay closed an idle session.
    pub(super) reopened: bool,
    /// Sent again after authenticating.
    pub(super) authenticated: bool,
}

/// The phase of a job.
#[derive(Debug)]
pub(super) enum JobPhase {
    /// Waits for a slot and for the pace.
    Queued(Method),
    /// The local relay is asked for its inventory.
    Listing {
        /// The session to come; its slot is taken.
        sub: SubId,
        request: InventoryId,
    },
    /// The sets are being compared.
    Comparing {
        sub: SubId,
        reconciliation: Box<Reconciliation>,
        /// The message to send next, as soon as that is allowed.
        outgoing: Option<NegMessage>,
    },
    /// A page is requested.
    Paging {
        sub: SubId,
        /// Rows received.
        rows: Vec<Row>,
    },
    /// Everything was requested; events received or offered are still to be judged.
    AwaitingJudgement,
    /// Waits for the answer to our authentication.
    AwaitingAuth(Method),
    /// Waits until a backoff ends.
    BackingOff {
        until: Mono,
        /// The method to queue for then.
        then: Method,
    },
}

/// A NIP-77 message that is ready to be sent.
#[derive(Debug)]
pub(super) enum NegMessage {
    /// NEG-OPEN.
    Open(Vec<u8>),
    /// NEG-MSG.
    Reply(Vec<u8>),
}

/// Refusals for want of room in a row after which something backs off. Each refusal lowers our budget, so an honest
/// relay soon has room.
pub(super) const MAX_ROOM_REFUSALS: u32 = 4;
/// Rows of one page, as a multiple of its limit, above which a relay is flooding.
const FLOOD_FACTOR: usize = 8;
/// Rows of a page that may be full, from a relay that does not advertise its limit.
const MIN_FULL_PAGE: usize = 50;
/// Offers below which missing deliveries say nothing about the relay.
const MIN_TELLING_OFFERS: usize = 20;

impl Job {
    pub(super) fn new(
        group: GroupId,
        layer: Layer,
        compact: CompactFilter,
        began: Timestamp,
    ) -> Self {
        Self {
            group,
            layer,
            hash: OnceCell::new(),
            original: None,
            compact,
            began,
            phase: JobPhase::Queued(Method::Reconcile),
            pager: None,
            unjudged: BTreeSet::new(),
            pages: 0,
            last_page: 0,
            outstanding: 0,
            waits_for: None,
            offered: 0,
            missed: 0,
            is_partial: false,
            once: Once::default(),
            failures: 0,
            room_refusals: 0,
            splits: 0,
        }
    }

    /// Returns a job for a part of this one.
    pub(super) fn part(&self, filter: Filter) -> Self {
        let (layer, compact) = (Layer::of(&filter), CompactFilter::new(filter, None));
        let original = Some(self.original_hash());
        Self {
            splits: self.splits + 1,
            original,
            ..Self::new(self.group, layer, compact, self.began)
        }
    }

    /// Returns the hash of the filter that this job began with: refused events are remembered for it.
    pub(super) fn original_hash(&self) -> FilterHash {
        self.original.unwrap_or_else(|| self.hash())
    }

    pub(super) fn hash(&self) -> FilterHash {
        *self.hash.get_or_init(|| FilterHash::of(&self.filter()))
    }

    pub(super) fn filter(&self) -> Filter {
        self.compact.filter()
    }

    /// Returns the ends of the window, if it has any.
    pub(super) fn window(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.compact.without_ids().since, self.compact.without_ids().until)
    }

    /// Counts a refusal for want of room; returns whether to retry at once.
    #[must_use]
    pub(super) fn may_retry_for_room(&mut self) -> bool {
        self.room_refusals += 1;
        self.room_refusals <= MAX_ROOM_REFUSALS
    }

    /// Returns the next page as a filter; `None` if the cursor is at its end.
    pub(super) fn next_page(&mut self, limit: usize) -> Option<Filter> {
        let (since, until) = self.window();
        let pager = self.pager.get_or_insert_with(|| {
            Box::new(Pager::new(PagerConfig { limit, since, ..PagerConfig::default() }))
        });
        let Next::Ask(page) = pager.next() else { return None };
        let until = until.into_iter().chain(page.until).min();
        Some(Filter { until, limit: Some(page.limit), ..self.filter() })
    }

    /// Adds rows of a page; returns `false` if there are too many.
    #[must_use]
    pub(super) fn delivered(&mut self, new: impl Iterator<Item = Row>, limit: usize) -> bool {
        let JobPhase::Paging { sub, rows } = &mut self.phase else { return true };
        self.unjudged.insert(*sub);
        rows.extend(new);
        rows.len() <= limit.saturating_mul(FLOOD_FACTOR)
    }

    /// Ends a page by EOSE.
    pub(super) fn page_ended(&mut self, hint: Option<EoseHint>) -> Option<Next> {
        let JobPhase::Paging { rows, .. } = &mut self.phase else { return None };
        let rows = std::mem::take(rows);
        let pager = self.pager.as_mut()?;
        self.pages = self.pages.saturating_add(1);
        self.last_page = rows.len();
        (self.failures, self.room_refusals) = (0, 0);
        self.once.retried = false;
        Some(pager.page_ended_with(rows.into_iter().map(|row| (row.at, row.id)), hint))
    }

    /// Ends a page in any other way.
    pub(super) fn page_failed(&mut self) -> Option<Next> {
        self.pager.as_mut().map(|pager| pager.page_failed())
    }

    /// Returns whether pages keep coming full, so that several at a time are worth it.
    pub(super) fn is_long(&self, limit: usize) -> bool {
        let is_full =
            self.last_page >= limit || (self.pages > 2 && self.last_page >= MIN_FULL_PAGE);
        is_full && self.splits == 0 && self.gap_seconds().is_empty()
    }

    /// Returns the seconds that held more events than the relay showed.
    pub(super) fn gap_seconds(&self) -> Vec<Timestamp> {
        let gaps = self.pager.iter().flat_map(|pager| pager.gaps());
        gaps.map(|gap| gap.at).collect()
    }

    /// Returns whether the relay offers ids and delivers hardly any, so that pages are better.
    pub(super) fn delivers_too_little(&self) -> bool {
        self.offered >= MIN_TELLING_OFFERS && self.missed * 10 >= self.offered * 9
    }

    /// Returns whether everything requested has been judged.
    pub(super) fn is_complete(&self) -> bool {
        let is_waiting =
            self.outstanding > 0 || self.waits_for.is_some() || !self.unjudged.is_empty();
        matches!(self.phase, JobPhase::AwaitingJudgement) && !is_waiting
    }

    /// Returns the proof that its end gives. Full sync proves nothing about items that will be wanted later.
    pub(super) fn proof(&self, now: Timestamp) -> Option<Proof> {
        if self.is_partial || self.layer == Layer::All {
            return None;
        }
        let proven = if self.pager.is_some() { Proven::Exhausted } else { Proven::Reconciled };
        let (since, until) = self.window();
        Some(Proof {
            filter: self.hash(),
            since: since.unwrap_or(Timestamp::from_secs(0)),
            until: until.unwrap_or(self.began),
            proven,
            at: now,
        })
    }

    /// Returns whether a NIP-77 message is ready to be sent.
    pub(super) fn has_neg_message(&self) -> bool {
        matches!(&self.phase, JobPhase::Comparing { outgoing: Some(_), .. })
    }

    /// Returns whether that message opens its session.
    pub(super) fn is_opening(&self) -> bool {
        matches!(&self.phase, JobPhase::Comparing { outgoing: Some(NegMessage::Open(_)), .. })
    }

    /// Returns the subscription or session that is open for it.
    pub(super) fn sub(&self) -> Option<SubId> {
        match &self.phase {
            JobPhase::Listing { sub, .. }
            | JobPhase::Comparing { sub, .. }
            | JobPhase::Paging { sub, .. } => Some(*sub),
            JobPhase::Queued(_)
            | JobPhase::AwaitingJudgement
            | JobPhase::AwaitingAuth(_)
            | JobPhase::BackingOff { .. } => None,
        }
    }
}

/// Returns a filter for events by id, with a limit: some relays truncate without one.
pub(super) fn by_ids(ids: impl IntoIterator<Item = EventId>) -> Filter {
    let filter = Filter::new().ids(ids);
    let count = filter.ids.as_ref().map_or(0, |ids| ids.len());
    filter.limit(count)
}

#[cfg(test)]
mod tests {
    use grasp_core::sync::build_announcement_filter;

    use super::super::ids::Ids;
    use super::*;

    fn job_for(filter: Filter) -> Job {
        let (layer, compact) = (Layer::of(&filter), CompactFilter::new(filter, None));
        Job::new(Ids::default().group(), layer, compact, Timestamp::from_secs(900))
    }

    fn job() -> Job {
        job_for(build_announcement_filter(None))
    }

    fn row(at: u64, n: u8) -> Row {
        Row { at: Timestamp::from_secs(at), id: EventId::from_byte_array([n; 32]) }
    }

    fn page(job: &mut Job, rows: &[Row]) -> Next {
        let sub = Ids::default().sub();
        job.phase = JobPhase::Paging { sub, rows: vec![] };
        assert!(job.delivered(rows.iter().copied(), 500));
        job.page_ended(None).unwrap()
    }

    #[test]
    fn pages_stay_within_the_window_and_carry_a_limit() {
        let filter = build_announcement_filter(Some(Timestamp::from_secs(5)));
        let mut job = job_for(filter.until(Timestamp::from_secs(50)));
        let first = job.next_page(100).unwrap();
        assert_eq!((first.until, first.limit), (Some(Timestamp::from_secs(50)), Some(100)));
        let _ = page(&mut job, &[row(30, 1), row(20, 2)]);
        let second = job.next_page(100).unwrap();
        assert_eq!((second.since, second.until), (first.since, Some(Timestamp::from_secs(20))));
    }

    #[test]
    fn a_job_is_complete_only_when_all_rows_are_judged() {
        let mut job = job();
        let _ = job.next_page(100);
        let _ = page(&mut job, &[row(30, 1)]);
        job.phase = JobPhase::AwaitingJudgement;
        assert!(!job.is_complete());
        job.unjudged.clear();
        assert!(job.is_complete());
        let proof = job.proof(Timestamp::from_secs(1_000)).unwrap();
        assert_eq!((proof.until, proof.proven), (Timestamp::from_secs(900), Proven::Exhausted));
    }

    #[test]
    fn a_partial_job_proves_nothing() {
        let mut job = job();
        job.is_partial = true;
        assert_eq!(job.proof(Timestamp::from_secs(1_000)), None);
    }

    #[test]
    fn a_page_without_end_is_a_flood() {
        let mut job = job();
        let _ = job.next_page(100);
        job.phase = JobPhase::Paging { sub: Ids::default().sub(), rows: vec![] };
        assert!(job.delivered([row(1, 1); 800].into_iter(), 100));
        assert!(!job.delivered([row(1, 1); 1].into_iter(), 100));
    }

    #[test]
    fn delivering_a_tenth_of_twenty_offers_is_too_little() {
        let mut job = job();
        (job.offered, job.missed) = (20, 17);
        assert!(!job.delivers_too_little());
        job.missed = 18;
        assert!(job.delivers_too_little());
        (job.offered, job.missed) = (19, 19);
        assert!(!job.delivers_too_little());
    }
}
