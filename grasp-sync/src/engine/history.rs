//! One filter's history, by reconciliation or by pages, up to its proof.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use grasp_core::Mono;
use grasp_core::limits::{EoseHint, Next, Pager, PagerConfig};
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{FilterHash, Proof, Proven};

use super::ids::{GroupId, InventoryId, JobId, SubId};
use super::io::Row;
use super::layer::Layer;
use super::lean::LeanFilter;
use super::reconcile::Reconciliation;

/// How a job is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Method {
    /// By NIP-77, then by ids.
    Reconcile,
    /// By plain requests, page after page.
    Page,
}

/// Fetches everything that a relay has for one filter.
///
/// ```text
///   Queued(Reconcile) ─▶ Listing ─▶ Comparing ─▶ Settling ─▶ proven
///        │ ▲                │           │            │ offered, not served
///        │ └── refused ─────┴───────────┤            │
///        ▼                              ▼            ▼
///   Queued(Page) ◀──▶ Paging ─────────────────▶ Settling ─▶ proven
///        ▲              │ failed
///     Resting ◀─────────┘
/// ```
#[derive(Debug)]
pub(super) struct Job {
    /// What it is part of.
    pub(super) group: GroupId,
    pub(super) layer: Layer,
    /// What to fetch, with its window, without a limit.
    lean: LeanFilter,
    /// The name of what it fetches, made when first needed: that takes writing the filter out.
    hash: OnceCell<FilterHash>,
    /// The name of what it is a part of.
    family: Option<FilterHash>,
    /// When it began: what is younger than this comes live.
    pub(super) asked: Timestamp,
    pub(super) phase: Phase,
    /// The cursor, once pages are asked for.
    pub(super) pager: Option<Box<Pager>>,
    /// Pages that came, and rows of the last.
    pages: u32,
    last_page: usize,
    /// Requests whose rows our relay has not judged yet.
    pub(super) unjudged: BTreeSet<SubId>,
    /// Offered events that are neither here nor given up.
    pub(super) left: usize,
    /// Another job, at work on the same, whose end is the end of this one too.
    pub(super) behind: Option<JobId>,
    /// Events offered, and those not served when first asked for.
    pub(super) offered: usize,
    pub(super) missed: usize,
    /// Something was given up, visibly, or left to parts: the job ends, but proves nothing.
    pub(super) is_partial: bool,
    /// What happens once at most.
    pub(super) once: Once,
    /// Failures in a row.
    pub(super) failures: u32,
    /// Refusals in a row for want of room.
    pub(super) squeezes: u32,
    /// How often what it is part of was cut by time.
    pub(super) cuts: u32,
}

/// What is tried only once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Once {
    /// After a passing fault.
    pub(super) retried: bool,
    /// After the relay had closed an idle session.
    pub(super) reopened: bool,
    /// After authenticating.
    pub(super) authenticated: bool,
}

/// Where a job stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// In line for a slot and for its turn.
    Queued(Method),
    /// Our own relay is being asked what it has.
    Listing {
        /// Names the session to come; its slot is taken.
        sub: SubId,
        /// The question.
        request: InventoryId,
    },
    /// The sets are being compared.
    Comparing {
        /// The session.
        sub: SubId,
        /// Our side of it.
        talk: Box<Reconciliation>,
        /// What is to be said next, as soon as that is allowed.
        say: Option<Say>,
    },
    /// A page is under way.
    Paging {
        /// The request.
        sub: SubId,
        /// What it has delivered.
        rows: Vec<Row>,
    },
    /// Everything was asked for; what came, or was offered, has yet to be judged.
    Settling,
    /// Waiting for an answer to our authentication.
    AwaitingAuth(Method),
    /// Left alone for a while.
    Resting {
        /// Until when.
        until: Mono,
        /// What then.
        then: Method,
    },
}

/// A NIP-77 message that is ready.
#[derive(Debug)]
pub(super) enum Say {
    /// The first.
    Open(Vec<u8>),
    /// Any other.
    Go(Vec<u8>),
}

/// How often in a row something may be refused for want of room before it rests. Each refusal makes our budget
/// smaller, so an honest relay soon has room; another would be asked round and round.
pub(super) const MOST_SQUEEZES: u32 = 4;
/// Rows of one page beyond which a relay is not paging but flooding.
const FLOOD: usize = 8;
/// A page that may be full, from a relay that does not say how long its pages are.
const SMALL_PAGE: usize = 50;
/// Fewer offers than this say nothing about a relay's honesty.
const TELLING_OFFERS: usize = 20;

impl Job {
    pub(super) fn new(group: GroupId, layer: Layer, lean: LeanFilter, asked: Timestamp) -> Self {
        Self {
            group,
            layer,
            hash: OnceCell::new(),
            family: None,
            lean,
            asked,
            phase: Phase::Queued(Method::Reconcile),
            pager: None,
            unjudged: BTreeSet::new(),
            pages: 0,
            last_page: 0,
            left: 0,
            behind: None,
            offered: 0,
            missed: 0,
            is_partial: false,
            once: Once::default(),
            failures: 0,
            squeezes: 0,
            cuts: 0,
        }
    }

    /// A part of it, as a job of its own.
    pub(super) fn part(&self, filter: Filter) -> Self {
        let (layer, lean) = (Layer::of(&filter), LeanFilter::keep(filter, None));
        let family = Some(self.family());
        Self { cuts: self.cuts + 1, family, ..Self::new(self.group, layer, lean, self.asked) }
    }

    /// The filter that it was at first: what is refused of a part is refused of the whole.
    pub(super) fn family(&self) -> FilterHash {
        self.family.unwrap_or_else(|| self.hash())
    }

    pub(super) fn hash(&self) -> FilterHash {
        *self.hash.get_or_init(|| FilterHash::of(&self.filter()))
    }

    pub(super) fn filter(&self) -> Filter {
        self.lean.filter()
    }

    /// The ends of the window to fetch, if it has any.
    pub(super) fn window(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.lean.rest().since, self.lean.rest().until)
    }

    /// The relay says that there is no room: whether that may be tried again at once.
    #[must_use]
    pub(super) fn may_squeeze(&mut self) -> bool {
        self.squeezes += 1;
        self.squeezes <= MOST_SQUEEZES
    }

    /// The next page as a filter; `None` if the cursor has come to its end.
    pub(super) fn next_page(&mut self, limit: usize) -> Option<Filter> {
        let (since, until) = self.window();
        let pager = self.pager.get_or_insert_with(|| {
            Box::new(Pager::new(PagerConfig { limit, since, ..PagerConfig::default() }))
        });
        let Next::Ask(page) = pager.next() else { return None };
        let until = until.into_iter().chain(page.until).min();
        Some(Filter { until, limit: Some(page.limit), ..self.filter() })
    }

    /// Rows came with a page; `false` if there are too many to be one.
    #[must_use]
    pub(super) fn delivered(&mut self, new: impl Iterator<Item = Row>, limit: usize) -> bool {
        let Phase::Paging { sub, rows } = &mut self.phase else { return true };
        self.unjudged.insert(*sub);
        rows.extend(new);
        rows.len() <= limit.saturating_mul(FLOOD)
    }

    /// A page ended properly.
    pub(super) fn page_ended(&mut self, hint: Option<EoseHint>) -> Option<Next> {
        let Phase::Paging { rows, .. } = &mut self.phase else { return None };
        let rows = std::mem::take(rows);
        let pager = self.pager.as_mut()?;
        self.pages = self.pages.saturating_add(1);
        self.last_page = rows.len();
        (self.failures, self.squeezes) = (0, 0);
        self.once.retried = false;
        Some(pager.page_ended_with(rows.into_iter().map(|row| (row.at, row.id)), hint))
    }

    /// A page ended in any other way.
    pub(super) fn page_failed(&mut self) -> Option<Next> {
        self.pager.as_mut().map(|pager| pager.page_failed())
    }

    /// Whether page after page comes full, so that it is worth asking for several at a time.
    pub(super) fn is_long(&self, limit: usize) -> bool {
        let is_full = self.last_page >= limit || (self.pages > 2 && self.last_page >= SMALL_PAGE);
        is_full && self.cuts == 0 && self.gap_seconds().is_empty()
    }

    /// The seconds that held more than the relay showed.
    pub(super) fn gap_seconds(&self) -> Vec<Timestamp> {
        let gaps = self.pager.iter().flat_map(|pager| pager.gaps());
        gaps.map(|gap| gap.at).collect()
    }

    /// Whether the relay offers ids and then serves hardly any: pages will do better.
    pub(super) fn is_led_astray(&self) -> bool {
        self.offered >= TELLING_OFFERS && self.missed * 10 >= self.offered * 9
    }

    /// Whether everything asked for has been judged.
    pub(super) fn is_settled(&self) -> bool {
        let is_waiting = self.left > 0 || self.behind.is_some() || !self.unjudged.is_empty();
        matches!(self.phase, Phase::Settling) && !is_waiting
    }

    /// What its end proves. That all of a relay was had says nothing about what will be wanted of it tomorrow.
    pub(super) fn proof(&self, now: Timestamp) -> Option<Proof> {
        if self.is_partial || self.layer == Layer::Whole {
            return None;
        }
        let proven = if self.pager.is_some() { Proven::Exhausted } else { Proven::Reconciled };
        let (since, until) = self.window();
        Some(Proof {
            filter: self.hash(),
            since: since.unwrap_or(Timestamp::from_secs(0)),
            until: until.unwrap_or(self.asked),
            proven,
            at: now,
        })
    }

    /// Whether a NIP-77 message is ready to be sent.
    pub(super) fn has_something_to_say(&self) -> bool {
        matches!(&self.phase, Phase::Comparing { say: Some(_), .. })
    }

    /// Whether that message is the first of its session.
    pub(super) fn has_opening(&self) -> bool {
        matches!(&self.phase, Phase::Comparing { say: Some(Say::Open(_)), .. })
    }

    /// The subscription or session that is open for it, if any.
    pub(super) fn sub(&self) -> Option<SubId> {
        match &self.phase {
            Phase::Listing { sub, .. }
            | Phase::Comparing { sub, .. }
            | Phase::Paging { sub, .. } => Some(*sub),
            Phase::Queued(_) | Phase::Settling | Phase::AwaitingAuth(_) | Phase::Resting { .. } => {
                None
            }
        }
    }
}

/// A request for events by id; the limit is said, since some relays cut short without one.
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
        let (layer, lean) = (Layer::of(&filter), LeanFilter::keep(filter, None));
        Job::new(Ids::default().group(), layer, lean, Timestamp::from_secs(900))
    }

    fn job() -> Job {
        job_for(build_announcement_filter(None))
    }

    fn row(at: u64, n: u8) -> Row {
        Row { at: Timestamp::from_secs(at), id: EventId::from_byte_array([n; 32]) }
    }

    fn page(job: &mut Job, rows: &[Row]) -> Next {
        let sub = Ids::default().sub();
        job.phase = Phase::Paging { sub, rows: vec![] };
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
    fn it_is_not_done_before_everything_delivered_was_judged() {
        let mut job = job();
        let _ = job.next_page(100);
        let _ = page(&mut job, &[row(30, 1)]);
        job.phase = Phase::Settling;
        assert!(!job.is_settled());
        job.unjudged.clear();
        assert!(job.is_settled());
        let proof = job.proof(Timestamp::from_secs(1_000)).unwrap();
        assert_eq!((proof.until, proof.proven), (Timestamp::from_secs(900), Proven::Exhausted));
    }

    #[test]
    fn what_was_given_up_leaves_no_proof() {
        let mut job = job();
        job.is_partial = true;
        assert_eq!(job.proof(Timestamp::from_secs(1_000)), None);
    }

    #[test]
    fn a_page_without_end_is_a_flood() {
        let mut job = job();
        let _ = job.next_page(100);
        job.phase = Phase::Paging { sub: Ids::default().sub(), rows: vec![] };
        assert!(job.delivered([row(1, 1); 800].into_iter(), 100));
        assert!(!job.delivered([row(1, 1); 1].into_iter(), 100));
    }

    #[test]
    fn a_tenth_of_twenty_offers_served_is_too_little() {
        let mut job = job();
        (job.offered, job.missed) = (20, 17);
        assert!(!job.is_led_astray());
        job.missed = 18;
        assert!(job.is_led_astray());
        (job.offered, job.missed) = (19, 19);
        assert!(!job.is_led_astray());
    }
}
