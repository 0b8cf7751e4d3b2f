//! Jobs: the history of one filter each, fetched by reconciliation or by pages until it is proven.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::limits::{Ending, Next, Pager, PagerConfig, RETRY_DELAY, Refusal};
use grasp_core::Mono;
use grasp_core::limits::{BackoffPolicy, EoseHint};
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{FilterHash, Proof};

use super::filter::{CompactFilter, Layer};
use super::io::{InventoryFailed, Row, SubId};
use super::reconcile::{ReconcileStep, Reconciliation};
use super::retry::WantResult;

/// The method of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobMethod {
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
pub(super) struct FilterJob {
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
    pager: Option<Box<Pager>>,
    /// Pages received, and rows of the last.
    pages: u32,
    last_page: usize,
    /// Requests with rows that are not judged yet.
    pub(super) unjudged: BTreeSet<SubId>,
    /// Offered events that are neither here nor given up.
    pub(super) outstanding: usize,
    /// Events offered, and those not delivered on the first request.
    offered: usize,
    missed: usize,
    /// True if something was given up or left to parts: the job ends, but proves nothing.
    pub(super) is_partial: bool,
    once: Once,
    /// Failures in a row.
    failures: u32,
    /// Refusals for want of room in a row.
    room_refusals: u32,
    /// Splits by time that led to this part.
    pub(super) splits: u32,
}

/// Steps that are taken at most once.
#[derive(Clone, Copy, Debug, Default)]
struct Once {
    /// Sent again after a temporary fault.
    was_retried: bool,
    /// Opened again after the relay closed an idle session.
    was_reopened: bool,
    /// Sent again after authenticating.
    is_authenticated: bool,
    /// Listed again after the local relay could not.
    was_listed_again: bool,
}

/// The phase of a job.
#[derive(Debug)]
pub(super) enum JobPhase {
    /// Waits for a slot and for the pace.
    Queued(JobMethod),
    /// The local relay is asked for its inventory. The slot of the session to come is taken.
    Listing(SubId),
    /// The sets are being compared.
    Comparing {
        sub: SubId,
        reconciliation: Box<Reconciliation>,
        /// The message to send next, as soon as that is allowed.
        outgoing: Option<Vec<u8>>,
    },
    /// A page is requested.
    Paging {
        sub: SubId,
        /// Rows received.
        rows: Vec<Row>,
    },
    /// Everything was requested; events received or offered are still to be judged.
    AwaitingJudgement,
    /// Waits until a backoff ends.
    BackingOff {
        until: Mono,
        /// The method to queue for then.
        then: JobMethod,
    },
}

/// Refusals for want of room in a row after which something backs off. Each refusal lowers our budget, so an honest
/// relay soon has room.
pub(super) const MAX_ROOM_REFUSALS: u32 = 4;
/// Splits by time after which a set that is still too large is paged: each costs two requests, and a relay that
/// compares so little is paged through quickly.
pub(super) const MAX_TIME_SPLITS: u32 = 8;
/// The backoff of jobs and live requests after refusals and losses: 65 seconds, doubling to an hour.
pub(super) const REQUEST_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: RETRY_DELAY,
    ..BackoffPolicy::RELAY
};
/// Rows of one page, as a multiple of its limit, above which a relay is flooding.
const FLOOD_FACTOR: usize = 8;
/// Rows of a page that may be full, from a relay that does not advertise its limit.
const MIN_FULL_PAGE: usize = 50;
/// Offers below which missing deliveries say nothing about the relay.
const MIN_TELLING_OFFERS: usize = 20;

/// The step that a job takes next; the session takes it within its budgets.
#[must_use]
#[derive(Debug)]
pub(super) enum JobStep {
    /// End it if nothing is outstanding.
    Check,
    Queue(JobMethod),
    BackOff(Duration, JobMethod),
    /// Give up for now: a poll ends, any other job backs off.
    Fail,
    /// Authenticate, and queue it for then.
    Authenticate(JobMethod),
    /// Suspend its layer, and queue it.
    Suspend(JobMethod),
    /// Queue it as pages: the relay does not reconcile, or fails to.
    NoNegentropy,
    /// Continue with pages: the relay offers much and delivers little, or there is no list to compare it with.
    SwitchToPages,
    /// Split its window in two.
    SplitByTime(JobMethod),
    /// Split the values of its filter in two.
    SplitByContent,
    /// Split its pages into parts that share requests: there are many.
    SplitPages,
    /// Suspend its filter, which cannot be split.
    GiveUpFilter,
    /// Replace full sync by filters.
    FallBackToFilters,
    /// Fetch these seconds in parts, each of which holds more than a page; then the job may be complete.
    FillGaps(Vec<Timestamp>),
}

impl FilterJob {
    pub(super) fn new(compact: CompactFilter, began: Timestamp) -> Self {
        Self {
            layer: compact.layer,
            hash: OnceCell::new(),
            original: None,
            compact,
            began,
            phase: JobPhase::Queued(JobMethod::Reconcile),
            pager: None,
            unjudged: BTreeSet::new(),
            pages: 0,
            last_page: 0,
            outstanding: 0,
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
        let splits = self.splits + 1;
        let original = Some(self.original_hash());
        let part = Self::new(CompactFilter::new(filter, None), self.began);
        Self {
            splits,
            original,
            ..part
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
        (
            self.compact.without_ids.since,
            self.compact.without_ids.until,
        )
    }

    /// Decides on the next step after its page or session was refused.
    pub(super) fn refused(&mut self, refusal: Refusal) -> JobStep {
        match self.phase {
            JobPhase::Paging { .. } => self.page_refused(refusal),
            _ => self.session_refused(refusal),
        }
    }

    /// Decides on the next step after its page was not answered, for a reason that is none of its own.
    pub(super) fn page_returned(&mut self) -> JobStep {
        let next = self.page_failed();
        self.advance(next)
    }

    fn page_refused(&mut self, refusal: Refusal) -> JobStep {
        let next = self.page_failed();
        if self.layer == Layer::All && refusal.is_about_the_filter() {
            return JobStep::FallBackToFilters;
        }
        match refusal {
            Refusal::Rate => self.advance(next),
            _ if refusal.is_for_room() && self.may_retry_for_room() => self.advance(next),
            Refusal::Transient if !std::mem::replace(&mut self.once.was_retried, true) => {
                JobStep::BackOff(RETRY_DELAY, JobMethod::Page)
            }
            Refusal::AuthRequired => JobStep::Authenticate(JobMethod::Page),
            Refusal::Policy => JobStep::Suspend(JobMethod::Page),
            Refusal::Malformed => JobStep::SplitByContent,
            Refusal::SetTooLarge => JobStep::SplitByTime(JobMethod::Page),
            Refusal::FilterCount | Refusal::Unknown => JobStep::GiveUpFilter,
            _ => JobStep::Fail,
        }
    }

    fn session_refused(&mut self, refusal: Refusal) -> JobStep {
        match refusal {
            Refusal::Rate => JobStep::Queue(JobMethod::Reconcile),
            _ if refusal.is_for_room() && self.may_retry_for_room() => {
                JobStep::Queue(JobMethod::Reconcile)
            }
            Refusal::SetTooLarge => JobStep::SplitByTime(JobMethod::Reconcile),
            Refusal::NegClosed if !std::mem::replace(&mut self.once.was_reopened, true) => {
                JobStep::Queue(JobMethod::Reconcile)
            }
            Refusal::AuthRequired => JobStep::Authenticate(JobMethod::Reconcile),
            // This is about the filter, or about reconciling it; its pages will show.
            Refusal::NegClosed | Refusal::NegProtocol | Refusal::Malformed | Refusal::Policy => {
                JobStep::Queue(JobMethod::Page)
            }
            _ => JobStep::NoNegentropy,
        }
    }

    /// Backs off after a failure, longer each time. Full sync falls back to filters.
    pub(super) fn failed(&mut self) -> JobStep {
        if self.layer == Layer::All {
            return JobStep::FallBackToFilters;
        }
        self.failures = self.failures.saturating_add(1);
        let method = if self.pager.is_some() {
            JobMethod::Page
        } else {
            JobMethod::Reconcile
        };
        JobStep::BackOff(REQUEST_BACKOFF.delay_after(self.failures), method)
    }

    /// Decides on the next step without the list of what is stored here. A second try may find the local relay at work again;
    /// pages need no list. Full sync has no pages.
    pub(super) fn not_listed(&mut self, why: Option<InventoryFailed>) -> JobStep {
        let is_passing = why == Some(InventoryFailed::Unreadable);
        let is_first = is_passing && !std::mem::replace(&mut self.once.was_listed_again, true);
        match is_first || self.layer == Layer::All {
            true => JobStep::Fail,
            false => JobStep::SwitchToPages,
        }
    }

    /// Counts a refusal for want of room; returns whether to retry at once.
    fn may_retry_for_room(&mut self) -> bool {
        self.room_refusals += 1;
        self.room_refusals <= MAX_ROOM_REFUSALS
    }

    /// Returns the next page as a filter; `None` if the cursor is at its end.
    pub(super) fn next_page(&mut self, limit: usize) -> Option<Filter> {
        let (since, until) = self.window();
        let pager = self.pager.get_or_insert_with(|| {
            Box::new(Pager::new(PagerConfig {
                limit,
                since,
                ..PagerConfig::default()
            }))
        });
        let Next::Ask(page) = pager.next() else {
            self.pager = None;
            return None;
        };
        let until = until.into_iter().chain(page.until).min();
        Some(Filter {
            until,
            limit: Some(page.limit),
            ..self.filter()
        })
    }

    /// Adds rows of a page; returns `false` if there are too many.
    #[must_use]
    pub(super) fn delivered(&mut self, new: impl Iterator<Item = Row>, limit: usize) -> bool {
        let JobPhase::Paging { sub, rows } = &mut self.phase else {
            return true;
        };
        self.unjudged.insert(*sub);
        rows.extend(new);
        rows.len() <= limit.saturating_mul(FLOOD_FACTOR)
    }

    /// Ends a page by EOSE.
    pub(super) fn page_ended(&mut self, hint: Option<EoseHint>, limit: usize) -> JobStep {
        let (JobPhase::Paging { rows, .. }, Some(pager)) = (&mut self.phase, &mut self.pager)
        else {
            return self.advance(None);
        };
        let rows = std::mem::take(rows);
        self.pages = self.pages.saturating_add(1);
        self.last_page = rows.len();
        (self.failures, self.room_refusals) = (0, 0);
        self.once.was_retried = false;
        let next = pager.page_ended_with(rows.into_iter().map(|row| (row.at, row.id)), hint);
        match next {
            Next::Ask(_) if self.is_long(limit) => JobStep::SplitPages,
            _ => self.advance(Some(next)),
        }
    }

    /// Ends a page in any other way.
    fn page_failed(&mut self) -> Option<Next> {
        self.pager.as_mut().map(|pager| pager.page_failed())
    }

    /// Continues after a page: the next page, the end, or a failure.
    fn advance(&mut self, next: Option<Next>) -> JobStep {
        match next {
            Some(Next::Ask(_)) => JobStep::Queue(JobMethod::Page),
            Some(Next::Done(Ending::Exhausted)) => {
                let gaps = self.gap_seconds();
                if self.layer == Layer::All && !gaps.is_empty() {
                    return JobStep::FallBackToFilters;
                }
                self.phase = JobPhase::AwaitingJudgement;
                self.is_partial |= !gaps.is_empty();
                JobStep::FillGaps(gaps)
            }
            Some(Next::Done(Ending::PageBound | Ending::NoProgress)) | None => {
                self.pager = None;
                JobStep::Fail
            }
        }
    }

    /// Returns whether pages keep coming full, so that several at a time are worth it.
    fn is_long(&self, limit: usize) -> bool {
        let is_full =
            self.last_page >= limit || (self.pages > 2 && self.last_page >= MIN_FULL_PAGE);
        is_full && self.splits == 0 && self.gap_seconds().is_empty()
    }

    /// Returns the seconds that held more events than the relay showed.
    fn gap_seconds(&self) -> Vec<Timestamp> {
        self.pager
            .iter()
            .flat_map(|pager| pager.gaps())
            .copied()
            .collect()
    }

    /// Notes that it is sent again after authenticating; returns whether it was before.
    pub(super) fn authenticate(&mut self) -> bool {
        std::mem::replace(&mut self.once.is_authenticated, true)
    }

    /// Returns whether it is sent only after authenticating.
    pub(super) fn needs_auth(&self) -> bool {
        self.once.is_authenticated
    }

    /// Reads a message of the session; returns how the session ends, once it does. A message out of turn is ignored.
    pub(super) fn receive(&mut self, message: &[u8]) -> Option<ReconcileStep> {
        let JobPhase::Comparing {
            reconciliation,
            outgoing: outgoing @ None,
            ..
        } = &mut self.phase
        else {
            return None;
        };
        match reconciliation.receive(message) {
            ReconcileStep::Reply(reply) => {
                *outgoing = Some(reply);
                None
            }
            end => Some(end),
        }
    }

    /// Takes the NIP-77 message that is ready to be sent.
    pub(super) fn take_neg_message(&mut self) -> Option<(SubId, Vec<u8>)> {
        let JobPhase::Comparing { sub, outgoing, .. } = &mut self.phase else {
            return None;
        };
        Some((*sub, outgoing.take()?))
    }

    /// Counts the events that a comparison found missing, by the result of wanting each.
    pub(super) fn wants(&mut self, results: impl Iterator<Item = WantResult>) -> JobStep {
        self.phase = JobPhase::AwaitingJudgement;
        for result in results {
            let is_queued = self.wants_again(result);
            self.offered += usize::from(is_queued);
            self.missed += usize::from(result == WantResult::QueuedAfterFailure);
        }
        if self.delivers_too_little() {
            JobStep::SwitchToPages
        } else {
            JobStep::Check
        }
    }

    /// Waits for an event if it will be requested; returns whether it will.
    pub(super) fn wants_again(&mut self, result: WantResult) -> bool {
        let is_queued = matches!(result, WantResult::Queued | WantResult::QueuedAfterFailure);
        self.outstanding += usize::from(is_queued);
        self.is_partial |= result == WantResult::GivenUp;
        is_queued
    }

    /// Counts an offered event that was not delivered; returns whether pages are better.
    #[must_use]
    pub(super) fn missed_one(&mut self) -> bool {
        self.missed += 1;
        self.delivers_too_little()
    }

    /// Forgets what was offered, to be paged.
    pub(super) fn forget_offers(&mut self) {
        (self.outstanding, self.offered, self.missed) = (0, 0, 0);
    }

    /// Returns whether the relay offers ids and delivers hardly any, so that pages are better.
    fn delivers_too_little(&self) -> bool {
        self.offered >= MIN_TELLING_OFFERS && self.missed * 10 >= self.offered * 9
    }

    /// Returns whether everything requested has been judged.
    pub(super) fn is_complete(&self) -> bool {
        let is_waiting = self.outstanding > 0 || !self.unjudged.is_empty();
        matches!(self.phase, JobPhase::AwaitingJudgement) && !is_waiting
    }

    /// Returns the proof that its end gives. Full sync proves nothing about items that will be wanted later.
    pub(super) fn proof(&self, now: Timestamp) -> Option<Proof> {
        if self.is_partial || self.layer == Layer::All {
            return None;
        }
        let (since, until) = self.window();
        Some(Proof {
            filter: self.hash(),
            since: since.unwrap_or(Timestamp::from_secs(0)),
            until: until.unwrap_or(self.began),
            at: now,
        })
    }

    /// Returns whether its history comes by pages.
    pub(super) fn is_paged(&self) -> bool {
        self.pager.is_some()
    }

    /// Returns whether it is a full comparison that waits to start.
    pub(super) fn is_queued_comparison(&self) -> bool {
        self.layer == Layer::All && matches!(self.phase, JobPhase::Queued(JobMethod::Reconcile))
    }

    /// Returns whether its session waits for us: for the local relay's inventory, or for permission to send.
    pub(super) fn waits_for_us(&self) -> bool {
        matches!(self.phase, JobPhase::Listing(_)) || self.has_neg_message()
    }

    /// Returns whether it makes progress, rather than waiting for a backoff or a suspension to end.
    pub(super) fn is_at_work(&self, is_suspended: bool, are_wants_backing_off: bool) -> bool {
        match self.phase {
            JobPhase::BackingOff { .. } => false,
            JobPhase::Queued(_) => !is_suspended,
            JobPhase::AwaitingJudgement => !self.unjudged.is_empty() || !are_wants_backing_off,
            JobPhase::Listing(_) | JobPhase::Comparing { .. } | JobPhase::Paging { .. } => true,
        }
    }

    /// Returns whether a NIP-77 message is ready to be sent.
    pub(super) fn has_neg_message(&self) -> bool {
        matches!(
            &self.phase,
            JobPhase::Comparing {
                outgoing: Some(_),
                ..
            }
        )
    }

    /// Returns the subscription or session that is open for it.
    pub(super) fn sub(&self) -> Option<SubId> {
        match &self.phase {
            JobPhase::Listing(sub)
            | JobPhase::Comparing { sub, .. }
            | JobPhase::Paging { sub, .. } => Some(*sub),
            _ => None,
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

    use super::super::io::Ids;
    use super::*;

    fn job_for(filter: Filter) -> FilterJob {
        let compact = CompactFilter::new(filter, None);
        FilterJob::new(compact, Timestamp::from_secs(900))
    }

    fn job() -> FilterJob {
        job_for(build_announcement_filter(None))
    }

    fn row(at: u64, n: u8) -> Row {
        Row {
            at: Timestamp::from_secs(at),
            id: EventId::from_byte_array([n; 32]),
        }
    }

    fn page(job: &mut FilterJob, rows: &[Row]) -> JobStep {
        job.phase = JobPhase::Paging {
            sub: Ids::default().next(SubId),
            rows: Vec::new(),
        };
        assert!(job.delivered(rows.iter().copied(), 500));
        job.page_ended(None, 500)
    }

    #[test]
    fn pages_stay_within_the_window_and_carry_a_limit() {
        let filter = build_announcement_filter(Some(Timestamp::from_secs(5)));
        let mut job = job_for(filter.until(Timestamp::from_secs(50)));
        let first = job.next_page(100).unwrap();
        assert_eq!(
            (first.until, first.limit),
            (Some(Timestamp::from_secs(50)), Some(100))
        );
        let _ = page(&mut job, &[row(30, 1), row(20, 2)]);
        let second = job.next_page(100).unwrap();
        assert_eq!(
            (second.since, second.until),
            (first.since, Some(Timestamp::from_secs(20)))
        );
    }

    #[test]
    fn a_job_is_complete_only_when_all_rows_are_judged() {
        let mut job = job();
        let _ = job.next_page(100);
        let _ = page(&mut job, &[row(30, 1)]);
        let sub = Ids::default().next(SubId);
        job.phase = JobPhase::Paging {
            sub,
            rows: Vec::new(),
        };
        let step = job.page_ended(Some(EoseHint::Finish), 500);
        assert!(matches!(step, JobStep::FillGaps(gaps) if gaps.is_empty()));
        assert!(!job.is_complete());
        job.unjudged.remove(&sub);
        assert!(job.is_complete());
        let proof = job.proof(Timestamp::from_secs(1_000)).unwrap();
        assert_eq!(proof.until, Timestamp::from_secs(900));
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
        job.phase = JobPhase::Paging {
            sub: Ids::default().next(SubId),
            rows: Vec::new(),
        };
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
