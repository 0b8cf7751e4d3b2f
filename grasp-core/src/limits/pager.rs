//! One filter's whole history, page by page, from a relay whose page size nobody knows.

use std::collections::BTreeSet;

use nostr::event::EventId;
use nostr::types::Timestamp;

/// The page that most relays cut at.
const COMMON_PAGE: usize = 500;

/// The `limit` to ask history pages with, for a relay that advertises this `max_limit`.
///
/// ```
/// use grasp_core::limits::history_limit;
///
/// assert_eq!(history_limit(None), 500);
/// assert_eq!(history_limit(Some(100)), 100);
/// assert_eq!(history_limit(Some(5_000)), 500);
/// ```
pub fn history_limit(max_limit: Option<usize>) -> usize {
    max_limit.unwrap_or(COMMON_PAGE).clamp(1, COMMON_PAGE)
}

/// What a relay says with EOSE about the answer before it (NIP-67).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EoseHint {
    /// Everything that matches was sent.
    Finish,
    /// There may be more.
    More,
}

impl EoseHint {
    /// Reads a hint; `None` for one that is not known, which says nothing.
    pub fn read(text: &str) -> Option<Self> {
        [Self::Finish, Self::More].into_iter().find(|hint| hint.as_str() == text)
    }

    /// The hint as it goes over the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::More => "more",
        }
    }
}

/// How far a [`Pager`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagerConfig {
    /// Rows asked for per page; see [`history_limit`]. Default: 500.
    pub limit: usize,
    /// The fewest rows to which a relay is believed to cut a page. Default: 50, half of the smallest
    /// cut known.
    ///
    /// Decides only whether a page full of one second, all of it known, may hide more of that second.
    /// Lower is safer and reports more gaps.
    pub smallest_page: usize,
    /// Pages asked for, failed ones included, before giving up. Default: 2,000.
    pub max_pages: u32,
    /// Ids of one second that are kept to recognise them. Default: 10,000.
    pub max_ties: usize,
    /// The filter's own `since`: below it there is nothing to ask for. Default: none.
    pub since: Option<Timestamp>,
}

impl Default for PagerConfig {
    fn default() -> Self {
        Self {
            limit: COMMON_PAGE,
            smallest_page: 50,
            max_pages: 2_000,
            max_ties: 10_000,
            since: None,
        }
    }
}

/// The next page to ask for: the filter with these two fields added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Only rows up to and including this second. The first page has none, since events dated in
    /// the future exist.
    pub until: Option<Timestamp>,
    /// At most so many rows.
    pub limit: usize,
}

/// What a [`Pager`] wants.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another page.
    Ask(PageRequest),
    /// Nothing more.
    Done(Ending),
}

/// Why no further page is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The relay has shown that nothing older is there. Seconds in [`Pager::gaps`] are still open.
    Exhausted,
    /// As many pages as allowed were asked for; what is older is unknown.
    PageBound,
    /// The relay answers with rows that were not asked for, and with nothing else that is new.
    NoProgress,
}

/// A second that holds more events than the relay shows in a page.
///
/// Ask for it again split up, by kind, author or tag value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GapSecond {
    /// The second.
    pub at: Timestamp,
}

/// The cursor of one filter.
///
/// Relays give the newest rows first, but cut pages at a length of their own, hide rows after
/// cutting, and order equal seconds as they like. So a short page proves nothing; the end is proven
/// by a page that brings nothing new. Each page therefore starts *at* the oldest second seen, not
/// below it, and only ids of that one second are remembered: whatever is older must be new.
///
/// ```text
///   page brings an unseen id ──▶ again, from its oldest second
///   page brings known ids only ─▶ again, from the second below; the left second may be a gap
///   page brings nothing ────────▶ exhausted
///   page failed ────────────────▶ the same page again
/// ```
///
/// A known-only page is nearly always the end, but a relay that hides rows, or stops early, looks
/// the same; the one page more makes sure. The second left behind becomes a gap if its page was as
/// long as one that may have been cut ([`PagerConfig::smallest_page`]), or if something older turns
/// up that an uncut page would have shown.
///
/// Complete means: every event was delivered or lies in a [`GapSecond`], provided that the relay
/// orders by time, honours `until`, shows at least one row as long as it has one to show, and does
/// not cut its very oldest second below `smallest_page`.
///
/// ```
/// use grasp_core::limits::{Ending, Next, Pager, PagerConfig};
/// use nostr::{event::EventId, types::Timestamp};
///
/// let row = |at, id| (Timestamp::from_secs(at), EventId::from_byte_array([id; 32]));
/// let mut pager = Pager::new(PagerConfig::default());
/// let _ = pager.page_ended([row(30, 1), row(20, 2)]);
/// let _ = pager.page_ended([row(20, 2)]);
/// assert_eq!(pager.page_ended([]), Next::Done(Ending::Exhausted));
/// ```
#[derive(Clone, Debug)]
pub struct Pager {
    config: PagerConfig,
    until: Option<Timestamp>,
    /// Ids delivered at the second `until`; empty when nothing of it was delivered yet.
    ties: BTreeSet<EventId>,
    /// A second left behind as complete, unless something older proves that its page was cut.
    suspect: Option<Timestamp>,
    pages: u32,
    gaps: Vec<GapSecond>,
    ending: Option<Ending>,
}

impl Pager {
    /// A history of which nothing was asked yet.
    pub const fn new(config: PagerConfig) -> Self {
        Self {
            config,
            until: None,
            ties: BTreeSet::new(),
            suspect: None,
            pages: 0,
            gaps: Vec::new(),
            ending: None,
        }
    }

    /// A page ended with EOSE, having delivered these rows.
    ///
    /// They must be all that the relay sent for this filter, before any are dropped as known.
    pub fn page_ended(&mut self, rows: impl IntoIterator<Item = (Timestamp, EventId)>) -> Next {
        self.page_ended_with(rows, None)
    }

    /// The same, with what the relay said about it (NIP-67).
    ///
    /// That everything was sent ends the history without a page that confirms it. That there is more, although nothing
    /// new came, means a second that cannot be paged through.
    pub fn page_ended_with(
        &mut self,
        rows: impl IntoIterator<Item = (Timestamp, EventId)>,
        hint: Option<EoseHint>,
    ) -> Next {
        if self.ending.is_none() {
            self.pages = self.pages.saturating_add(1);
            let page = self.read(rows);
            match (hint, page.oldest) {
                (Some(EoseHint::Finish), _) if !page.has_strays => self.finish_at(page),
                (Some(EoseHint::More), Some(second)) if !page.has_unseen && !page.has_strays => {
                    self.gaps.push(GapSecond { at: second });
                    self.step_below(second);
                }
                // A relay that shows nothing of what it says to have is not believed to be at the end.
                (Some(EoseHint::More), None) => self.end(Ending::NoProgress),
                _ => self.advance(page),
            }
            self.enforce_page_bound();
        }
        self.next()
    }

    /// Nothing older is there. Something older than a second that was left behind shows that its page was cut.
    fn finish_at(&mut self, page: Page) {
        if page.has_unseen {
            self.confirm_suspect();
        }
        self.finish_proven();
    }

    /// A page ended in any other way; whatever it delivered moves no cursor.
    pub fn page_failed(&mut self) -> Next {
        if self.ending.is_none() {
            self.pages = self.pages.saturating_add(1);
            self.enforce_page_bound();
        }
        self.next()
    }

    /// What to do next. Asking changes nothing.
    pub fn next(&self) -> Next {
        self.ending.map_or_else(
            || Next::Ask(PageRequest { until: self.until, limit: self.config.limit }),
            Next::Done,
        )
    }

    /// The seconds that hold more than was delivered, newest first.
    pub fn gaps(&self) -> &[GapSecond] {
        &self.gaps
    }

    fn read(&self, rows: impl IntoIterator<Item = (Timestamp, EventId)>) -> Page {
        let mut page = Page::default();
        for (at, id) in rows {
            if self.until.is_some_and(|until| at > until)
                || self.config.since.is_some_and(|since| at < since)
            {
                page.has_strays = true;
                continue;
            }
            page.rows += 1;
            page.has_unseen |= !self.ties.contains(&id);
            page.note_tie(at, id, self.config.max_ties);
        }
        page
    }

    fn advance(&mut self, page: Page) {
        match page.oldest {
            Some(oldest) if page.has_unseen => self.go_on_from(oldest, page.ties),
            _ if page.has_strays => self.end(Ending::NoProgress),
            // Nothing but known rows: all of them lie in the second asked from.
            Some(second) => self.leave(second, page.rows),
            None => self.finish_proven(),
        }
    }

    fn go_on_from(&mut self, oldest: Timestamp, ties: BTreeSet<EventId>) {
        self.confirm_suspect();
        if self.until == Some(oldest) {
            self.ties.extend(ties);
        } else {
            self.ties = ties;
            self.until = Some(oldest);
        }
        if self.ties.len() > self.config.max_ties {
            self.gaps.push(GapSecond { at: oldest });
            self.step_below(oldest);
        }
    }

    fn leave(&mut self, second: Timestamp, rows: usize) {
        if rows >= self.config.smallest_page.min(self.config.limit) {
            self.gaps.push(GapSecond { at: second });
        } else {
            self.suspect = Some(second);
        }
        self.step_below(second);
    }

    fn step_below(&mut self, second: Timestamp) {
        let floor = self.config.since.unwrap_or_else(Timestamp::zero);
        if second <= floor {
            return self.finish_proven();
        }
        self.until = Some(Timestamp::from_secs(second.as_secs().saturating_sub(1)));
        self.ties.clear();
    }

    /// Nothing older is there, so the last page was not cut.
    fn finish_proven(&mut self) {
        self.suspect = None;
        self.end(Ending::Exhausted);
    }

    fn enforce_page_bound(&mut self) {
        if self.ending.is_none() && self.pages >= self.config.max_pages {
            self.end(Ending::PageBound);
        }
    }

    fn end(&mut self, ending: Ending) {
        self.confirm_suspect();
        self.ties.clear();
        self.ending = Some(ending);
    }

    fn confirm_suspect(&mut self) {
        let gap = self.suspect.take().map(|at| GapSecond { at });
        self.gaps.extend(gap);
    }
}

/// What matters of one page.
#[derive(Default)]
struct Page {
    rows: usize,
    has_unseen: bool,
    /// Rows outside the range that was asked for.
    has_strays: bool,
    oldest: Option<Timestamp>,
    /// The ids of the oldest second.
    ties: BTreeSet<EventId>,
}

impl Page {
    /// Keeps the ids of the oldest second so far, and one more than `max` at most.
    fn note_tie(&mut self, at: Timestamp, id: EventId, max: usize) {
        if self.oldest.is_none_or(|oldest| at < oldest) {
            self.oldest = Some(at);
            self.ties.clear();
        }
        if self.oldest == Some(at) && self.ties.len() <= max {
            self.ties.insert(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at: u64, id: u8) -> (Timestamp, EventId) {
        (Timestamp::from_secs(at), EventId::from_byte_array([id; 32]))
    }

    fn pager(smallest_page: usize) -> Pager {
        Pager::new(PagerConfig { smallest_page, ..PagerConfig::default() })
    }

    fn ask(until: u64) -> Next {
        Next::Ask(PageRequest { until: Some(Timestamp::from_secs(until)), limit: 500 })
    }

    fn gaps(pager: &Pager) -> Vec<u64> {
        pager.gaps().iter().map(|gap| gap.at.as_secs()).collect()
    }

    const EXHAUSTED: Next = Next::Done(Ending::Exhausted);

    #[test]
    fn the_first_page_has_no_until_and_an_explicit_limit() {
        let first = Next::Ask(PageRequest { until: None, limit: 500 });
        assert_eq!(pager(50).next(), first);
    }

    #[test]
    fn an_empty_relay_is_exhausted_by_one_page() {
        assert_eq!(pager(50).page_ended([]), EXHAUSTED);
    }

    #[test]
    fn pages_overlap_in_the_oldest_second() {
        let mut pager = pager(50);
        assert_eq!(pager.page_ended([row(9, 1), row(7, 2)]), ask(7));
        assert_eq!(pager.page_ended([row(7, 2), row(7, 3), row(4, 4)]), ask(4));
    }

    #[test]
    fn a_short_page_does_not_prove_the_end() {
        let mut pager = pager(50);
        assert_eq!(pager.page_ended([row(9, 1)]), ask(9));
        assert_eq!(pager.page_ended([row(9, 1)]), ask(8));
        assert_eq!(pager.page_ended([row(3, 2)]), ask(3));
    }

    #[test]
    fn known_rows_and_then_nothing_are_the_end_without_a_gap() {
        let mut pager = pager(50);
        let _ = pager.page_ended([row(9, 1)]);
        let _ = pager.page_ended([row(9, 1)]);
        assert_eq!(pager.page_ended([]), EXHAUSTED);
        assert_eq!(pager.gaps(), []);
    }

    #[test]
    fn a_full_page_of_one_known_second_is_a_gap_and_is_stepped_over() {
        let mut pager = pager(3);
        let burst = [row(9, 1), row(9, 2), row(9, 3)];
        assert_eq!(pager.page_ended(burst), ask(9));
        assert_eq!(pager.page_ended(burst), ask(8));
        assert_eq!(gaps(&pager), [9]);
        assert_eq!(pager.page_ended([]), EXHAUSTED);
    }

    #[test]
    fn a_second_in_changing_order_is_asked_again_while_it_brings_new_ids() {
        let mut pager = pager(2);
        assert_eq!(pager.page_ended([row(9, 1), row(9, 2)]), ask(9));
        assert_eq!(pager.page_ended([row(9, 3), row(9, 1)]), ask(9));
        assert_eq!(pager.page_ended([row(9, 2), row(9, 3)]), ask(8));
    }

    #[test]
    fn an_older_row_that_a_short_page_should_have_shown_proves_a_gap() {
        let mut pager = pager(50);
        let _ = pager.page_ended([row(9, 1)]);
        let _ = pager.page_ended([row(9, 1)]);
        let _ = pager.page_ended([row(8, 2)]);
        assert_eq!(gaps(&pager), [9]);
    }

    #[test]
    fn a_failed_page_is_asked_again_from_the_same_place() {
        let mut pager = pager(50);
        let _ = pager.page_ended([row(9, 1), row(7, 2)]);
        assert_eq!(pager.page_failed(), ask(7));
        assert_eq!(pager.page_ended([row(7, 2), row(7, 3)]), ask(7));
    }

    #[test]
    fn a_relay_that_ignores_until_is_given_up() {
        let mut pager = pager(50);
        let newest = [row(9, 1), row(8, 2)];
        assert_eq!(pager.page_ended(newest), ask(8));
        assert_eq!(pager.page_ended(newest), Next::Done(Ending::NoProgress));
    }

    #[test]
    fn pages_are_bounded_failed_ones_included() {
        let mut pager = Pager::new(PagerConfig { max_pages: 3, ..PagerConfig::default() });
        assert_eq!(pager.page_ended([row(9, 1)]), ask(9));
        assert_eq!(pager.page_failed(), ask(9));
        assert_eq!(pager.page_failed(), Next::Done(Ending::PageBound));
    }

    #[test]
    fn giving_up_admits_what_was_not_proven() {
        let mut pager = Pager::new(PagerConfig { max_pages: 2, ..PagerConfig::default() });
        let _ = pager.page_ended([row(9, 1)]);
        assert_eq!(pager.page_ended([row(9, 1)]), Next::Done(Ending::PageBound));
        assert_eq!(gaps(&pager), [9]);
    }

    #[test]
    fn a_second_too_full_to_remember_becomes_a_gap() {
        let mut pager = Pager::new(PagerConfig { max_ties: 3, ..PagerConfig::default() });
        let burst = (0..200).map(|id| row(9, id));
        assert_eq!(pager.page_ended(burst), ask(8));
        assert_eq!(gaps(&pager), [9]);
    }

    #[test]
    fn nothing_is_asked_below_the_filters_own_since() {
        let mut pager = Pager::new(PagerConfig {
            since: Some(Timestamp::from_secs(9)),
            ..PagerConfig::default()
        });
        assert_eq!(pager.page_ended([row(9, 1)]), ask(9));
        assert_eq!(pager.page_ended([row(9, 1)]), EXHAUSTED);
        assert_eq!(pager.gaps(), []);
    }

    #[test]
    fn the_first_second_of_all_is_the_end() {
        let mut pager = pager(50);
        let _ = pager.page_ended([row(0, 1)]);
        assert_eq!(pager.page_ended([row(0, 1)]), EXHAUSTED);
    }

    #[test]
    fn an_ended_pager_stays_ended() {
        let mut pager = pager(50);
        assert_eq!(pager.page_ended([]), EXHAUSTED);
        assert_eq!(pager.page_ended([row(9, 1)]), EXHAUSTED);
        assert_eq!(pager.page_failed(), EXHAUSTED);
    }

    fn row_at(at: u64, n: u8) -> (Timestamp, EventId) {
        (Timestamp::from_secs(at), EventId::from_byte_array([n; 32]))
    }

    #[test]
    fn finish_ends_a_history_without_a_page_that_confirms_it() {
        let mut pager = Pager::new(PagerConfig::default());
        let more = pager.page_ended_with([row_at(30, 1), row_at(20, 2)], Some(EoseHint::More));
        assert!(matches!(more, Next::Ask(_)));
        let done = pager.page_ended_with([row_at(20, 2), row_at(9, 3)], Some(EoseHint::Finish));
        assert_eq!((done, pager.gaps()), (Next::Done(Ending::Exhausted), &[][..]));
    }

    #[test]
    fn more_without_anything_new_is_a_second_that_cannot_be_paged_through() {
        let mut pager = Pager::new(PagerConfig::default());
        let _ = pager.page_ended_with([row_at(20, 1), row_at(20, 2)], Some(EoseHint::More));
        let next = pager.page_ended_with([row_at(20, 1), row_at(20, 2)], Some(EoseHint::More));
        let Next::Ask(below) = next else { panic!("{next:?}") };
        assert_eq!(below.until, Some(Timestamp::from_secs(19)));
        assert_eq!(pager.gaps(), [GapSecond { at: Timestamp::from_secs(20) }]);
        let none = pager.page_ended_with([], Some(EoseHint::More));
        assert_eq!(none, Next::Done(Ending::NoProgress), "it is not believed to be the end");
    }

    #[test]
    fn finish_proves_nothing_if_rows_came_that_were_not_asked_for() {
        let mut pager = Pager::new(PagerConfig::default());
        let _ = pager.page_ended([row_at(20, 1)]);
        let next = pager.page_ended_with([row_at(50, 2)], Some(EoseHint::Finish));
        assert_eq!(next, Next::Done(Ending::NoProgress));
    }
}
