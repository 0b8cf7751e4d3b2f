//! Fetching the whole history of one filter by pages, from a relay of unknown page size.

use std::collections::BTreeSet;

use grasp_core::limits::EoseHint;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::types::Timestamp;

/// The page size that most relays limit to.
const COMMON_PAGE_ROWS: usize = 500;

/// Returns the `limit` for history pages from a relay that advertises this `max_limit`.
///
/// ```
/// use grasp_sync::limits::history_limit;
///
/// assert_eq!(history_limit(None), 500);
/// assert_eq!(history_limit(Some(100)), 100);
/// assert_eq!(history_limit(Some(5_000)), 500);
/// ```
pub fn history_limit(max_limit: Option<usize>) -> usize {
    max_limit
        .unwrap_or(COMMON_PAGE_ROWS)
        .clamp(1, COMMON_PAGE_ROWS)
}

/// Limits of a [`Pager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagerConfig {
    /// Rows per page; see [`history_limit`]. Default: 500.
    pub limit: usize,
    /// Smallest number of rows that a relay may cut a page at. Default: 50, half of the smallest known cut.
    ///
    /// Decides only whether a page of known rows of one second may hide further rows of that second.
    /// Lower is safer and reports more gaps.
    pub smallest_page: usize,
    /// Page requests, failed ones included, after which the pager gives up. Default: 2,000.
    pub max_pages: u32,
    /// Ids of one second that are kept to recognise repetitions. Default: 10,000.
    pub max_ties: usize,
    /// The filter's own `since`. Default: none.
    pub since: Option<Timestamp>,
}

impl Default for PagerConfig {
    fn default() -> Self {
        Self {
            limit: COMMON_PAGE_ROWS,
            smallest_page: 50,
            max_pages: 2_000,
            max_ties: 10_000,
            since: None,
        }
    }
}

/// The next page request: the filter with these two fields added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// Only rows up to and including this second. The first page has none, because some events have a
    /// date in the future.
    pub until: Option<Timestamp>,
    /// Maximum number of rows.
    pub limit: usize,
}

/// The next step of a [`Pager`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Request another page.
    Ask(PageRequest),
    /// The history has ended.
    Done(Ending),
}

/// The reason for which no further page is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The relay has shown that nothing older exists. Seconds in [`Pager::gaps`] are still open.
    Exhausted,
    /// The maximum number of pages was requested; older events are unknown.
    PageBound,
    /// The relay sends rows outside of the requested range and nothing new.
    NoProgress,
}

/// The position in the history of one filter.
///
/// Relays send the newest rows first, but cut pages at a length of their own, drop rows after
/// cutting, and order rows of the same second arbitrarily. A short page therefore proves nothing; the
/// end is proven by a page without new rows. Each page starts *at* the oldest second seen, not below
/// it, and only the ids of that second are kept: every older row must be new.
///
/// ```text
///   page with an unseen id ───▶ next page from its oldest second
///   page with known ids only ─▶ next page from the second below; the skipped second may be a gap
///   empty page ───────────────▶ exhausted
///   failed page ──────────────▶ the same page again
/// ```
///
/// A page of known rows is nearly always the end, but a relay that drops rows, or stops early, looks
/// the same; one further page decides. The skipped second becomes a gap if its page was at least
/// [`PagerConfig::smallest_page`] rows long, or if a later page brings an older row that an uncut
/// page would have held.
///
/// Complete means: every event was delivered or lies in a second of [`Self::gaps`], provided that the relay
/// orders by time, honours `until`, sends at least one row as long as it has one, and does not cut
/// its oldest second below `smallest_page`.
///
/// ```
/// use grasp_sync::limits::{Ending, Next, PageRequest, Pager, PagerConfig};
/// use grasp_core::nostr::{event::EventId, types::Timestamp};
///
/// let row = |at, id| (Timestamp::from_secs(at), EventId::from_byte_array([id; 32]));
/// let mut pager = Pager::new(PagerConfig::default());
/// assert_eq!(pager.next(), Next::Ask(PageRequest { until: None, limit: 500 }));
/// let _ = pager.page_ended([row(30, 1), row(20, 2)]);
/// let _ = pager.page_ended([row(20, 2)]);
/// assert_eq!(pager.page_ended([]), Next::Done(Ending::Exhausted));
/// ```
#[derive(Clone, Debug)]
pub struct Pager {
    config: PagerConfig,
    until: Option<Timestamp>,
    /// Ids delivered at the second `until`; empty if none was delivered yet.
    ties: BTreeSet<EventId>,
    /// A skipped second that is a gap if an older row proves that its page was cut.
    possible_gap: Option<Timestamp>,
    pages: u32,
    gaps: Vec<Timestamp>,
    ending: Option<Ending>,
}

impl Pager {
    /// Returns a pager before its first page.
    pub const fn new(config: PagerConfig) -> Self {
        Self {
            config,
            until: None,
            ties: BTreeSet::new(),
            possible_gap: None,
            pages: 0,
            gaps: Vec::new(),
            ending: None,
        }
    }

    /// Records a page that ended with EOSE.
    ///
    /// `rows` are all rows that the relay sent for this filter, known ones included.
    pub fn page_ended(&mut self, rows: impl IntoIterator<Item = (Timestamp, EventId)>) -> Next {
        self.page_ended_with(rows, None)
    }

    /// Records a page that ended with EOSE and a hint (NIP-67).
    ///
    /// `Finish` ends the history without a page that confirms it. `More` without new rows means that a
    /// second cannot be paged through.
    pub fn page_ended_with(
        &mut self,
        rows: impl IntoIterator<Item = (Timestamp, EventId)>,
        hint: Option<EoseHint>,
    ) -> Next {
        if self.ending.is_none() {
            self.pages = self.pages.saturating_add(1);
            let page = self.read(rows);
            match (hint, page.oldest) {
                (Some(EoseHint::Finish), _) if !page.has_rows_out_of_range => {
                    // A row older than a skipped second shows that the page of that second was cut.
                    if page.has_unseen {
                        self.record_possible_gap();
                    }
                    self.finish_exhausted();
                }
                (Some(EoseHint::More), Some(second))
                    if !page.has_unseen && !page.has_rows_out_of_range =>
                {
                    self.gaps.push(second);
                    self.step_below(second);
                }
                // A relay that announces more and sends nothing is not assumed to be at the end.
                (Some(EoseHint::More), None) => self.end(Ending::NoProgress),
                _ => self.advance(page),
            }
            self.enforce_page_bound();
        }
        self.next()
    }

    /// Records a page that failed; its rows are ignored.
    pub fn page_failed(&mut self) -> Next {
        if self.ending.is_none() {
            self.pages = self.pages.saturating_add(1);
            self.enforce_page_bound();
        }
        self.next()
    }

    /// Returns the next step, without changing the state.
    pub fn next(&self) -> Next {
        self.ending.map_or_else(
            || {
                Next::Ask(PageRequest {
                    until: self.until,
                    limit: self.config.limit,
                })
            },
            Next::Done,
        )
    }

    /// Returns the seconds that hold more events than the relay returns in a page, newest first. Split the request for
    /// one by kind, author or tag value.
    pub fn gaps(&self) -> &[Timestamp] {
        &self.gaps
    }

    fn read(&self, rows: impl IntoIterator<Item = (Timestamp, EventId)>) -> PageSummary {
        let mut page = PageSummary::default();
        for (at, id) in rows {
            if self.until.is_some_and(|until| at > until)
                || self.config.since.is_some_and(|since| at < since)
            {
                page.has_rows_out_of_range = true;
                continue;
            }
            page.rows += 1;
            page.has_unseen |= !self.ties.contains(&id);
            page.add_row(at, id, self.config.max_ties);
        }
        page
    }

    fn advance(&mut self, page: PageSummary) {
        match page.oldest {
            Some(oldest) if page.has_unseen => self.continue_from(oldest, page.ties),
            _ if page.has_rows_out_of_range => self.end(Ending::NoProgress),
            // All rows are known, so all of them lie in the requested second.
            Some(second) => self.skip_second(second, page.rows),
            None => self.finish_exhausted(),
        }
    }

    fn continue_from(&mut self, oldest: Timestamp, ties: BTreeSet<EventId>) {
        self.record_possible_gap();
        if self.until == Some(oldest) {
            self.ties.extend(ties);
        } else {
            self.ties = ties;
            self.until = Some(oldest);
        }
        if self.ties.len() > self.config.max_ties {
            self.gaps.push(oldest);
            self.step_below(oldest);
        }
    }

    fn skip_second(&mut self, second: Timestamp, rows: usize) {
        if rows >= self.config.smallest_page.min(self.config.limit) {
            self.gaps.push(second);
        } else {
            self.possible_gap = Some(second);
        }
        self.step_below(second);
    }

    fn step_below(&mut self, second: Timestamp) {
        let floor = self.config.since.unwrap_or_else(Timestamp::zero);
        if second <= floor {
            return self.finish_exhausted();
        }
        self.until = Some(Timestamp::from_secs(second.as_secs().saturating_sub(1)));
        self.ties.clear();
    }

    /// Ends the history; nothing older exists, so the last page was not cut.
    fn finish_exhausted(&mut self) {
        self.possible_gap = None;
        self.end(Ending::Exhausted);
    }

    fn enforce_page_bound(&mut self) {
        if self.ending.is_none() && self.pages >= self.config.max_pages {
            self.end(Ending::PageBound);
        }
    }

    fn end(&mut self, ending: Ending) {
        self.record_possible_gap();
        self.ties.clear();
        self.ending = Some(ending);
    }

    fn record_possible_gap(&mut self) {
        self.gaps.extend(self.possible_gap.take());
    }
}

/// A summary of one page.
#[derive(Default)]
struct PageSummary {
    rows: usize,
    has_unseen: bool,
    /// Rows outside of the requested range.
    has_rows_out_of_range: bool,
    oldest: Option<Timestamp>,
    /// The ids of the oldest second.
    ties: BTreeSet<EventId>,
}

impl PageSummary {
    /// Keeps the ids of the oldest second so far, at most one more than `max`.
    fn add_row(&mut self, at: Timestamp, id: EventId, max: usize) {
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
        Pager::new(PagerConfig {
            smallest_page,
            ..PagerConfig::default()
        })
    }

    fn ask(until: u64) -> Next {
        Next::Ask(PageRequest {
            until: Some(Timestamp::from_secs(until)),
            limit: 500,
        })
    }

    fn gaps(pager: &Pager) -> Vec<u64> {
        pager.gaps().iter().map(|gap| gap.as_secs()).collect()
    }

    const EXHAUSTED: Next = Next::Done(Ending::Exhausted);

    #[test]
    fn the_first_page_has_a_limit_and_no_until() {
        let first = Next::Ask(PageRequest {
            until: None,
            limit: 500,
        });
        assert_eq!(pager(50).next(), first);
    }

    #[test]
    fn an_empty_page_ends_the_history() {
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
    fn known_rows_and_then_none_end_without_a_gap() {
        let mut pager = pager(50);
        let _ = pager.page_ended([row(9, 1)]);
        let _ = pager.page_ended([row(9, 1)]);
        assert_eq!(pager.page_ended([]), EXHAUSTED);
        assert_eq!(pager.gaps(), []);
    }

    #[test]
    fn a_full_page_of_one_known_second_is_skipped_as_a_gap() {
        let mut pager = pager(3);
        let burst = [row(9, 1), row(9, 2), row(9, 3)];
        assert_eq!(pager.page_ended(burst), ask(9));
        assert_eq!(pager.page_ended(burst), ask(8));
        assert_eq!(gaps(&pager), [9]);
        assert_eq!(pager.page_ended([]), EXHAUSTED);
    }

    #[test]
    fn a_second_is_requested_again_while_it_brings_new_ids() {
        let mut pager = pager(2);
        assert_eq!(pager.page_ended([row(9, 1), row(9, 2)]), ask(9));
        assert_eq!(pager.page_ended([row(9, 3), row(9, 1)]), ask(9));
        assert_eq!(pager.page_ended([row(9, 2), row(9, 3)]), ask(8));
    }

    #[test]
    fn an_older_row_after_a_short_page_proves_a_gap() {
        let mut pager = pager(50);
        let _ = pager.page_ended([row(9, 1)]);
        let _ = pager.page_ended([row(9, 1)]);
        let _ = pager.page_ended([row(8, 2)]);
        assert_eq!(gaps(&pager), [9]);
    }

    #[test]
    fn a_failed_page_is_requested_again() {
        let mut pager = pager(50);
        let _ = pager.page_ended([row(9, 1), row(7, 2)]);
        assert_eq!(pager.page_failed(), ask(7));
        assert_eq!(pager.page_ended([row(7, 2), row(7, 3)]), ask(7));
    }

    #[test]
    fn stops_at_a_relay_that_ignores_until() {
        let mut pager = pager(50);
        let newest = [row(9, 1), row(8, 2)];
        assert_eq!(pager.page_ended(newest), ask(8));
        assert_eq!(pager.page_ended(newest), Next::Done(Ending::NoProgress));
    }

    #[test]
    fn the_number_of_pages_is_bounded() {
        let mut pager = Pager::new(PagerConfig {
            max_pages: 3,
            ..PagerConfig::default()
        });
        assert_eq!(pager.page_ended([row(9, 1)]), ask(9));
        assert_eq!(pager.page_failed(), ask(9));
        assert_eq!(pager.page_failed(), Next::Done(Ending::PageBound));
    }

    #[test]
    fn giving_up_reports_an_unproven_second_as_a_gap() {
        let mut pager = Pager::new(PagerConfig {
            max_pages: 2,
            ..PagerConfig::default()
        });
        let _ = pager.page_ended([row(9, 1)]);
        assert_eq!(pager.page_ended([row(9, 1)]), Next::Done(Ending::PageBound));
        assert_eq!(gaps(&pager), [9]);
    }

    #[test]
    fn a_second_with_too_many_ids_becomes_a_gap() {
        let mut pager = Pager::new(PagerConfig {
            max_ties: 3,
            ..PagerConfig::default()
        });
        let burst = (0..200).map(|id| row(9, id));
        assert_eq!(pager.page_ended(burst), ask(8));
        assert_eq!(gaps(&pager), [9]);
    }

    #[test]
    fn requests_nothing_before_the_since_of_the_filter() {
        let mut pager = Pager::new(PagerConfig {
            since: Some(Timestamp::from_secs(9)),
            ..PagerConfig::default()
        });
        assert_eq!(pager.page_ended([row(9, 1)]), ask(9));
        assert_eq!(pager.page_ended([row(9, 1)]), EXHAUSTED);
        assert_eq!(pager.gaps(), []);
    }

    #[test]
    fn second_zero_is_the_end() {
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

    #[test]
    fn finish_ends_the_history_at_once() {
        let mut pager = Pager::new(PagerConfig::default());
        let more = pager.page_ended_with([row(30, 1), row(20, 2)], Some(EoseHint::More));
        assert!(matches!(more, Next::Ask(_)));
        let done = pager.page_ended_with([row(20, 2), row(9, 3)], Some(EoseHint::Finish));
        assert_eq!(
            (done, pager.gaps()),
            (Next::Done(Ending::Exhausted), &[][..])
        );
    }

    #[test]
    fn more_without_new_rows_is_a_gap() {
        let mut pager = Pager::new(PagerConfig::default());
        let _ = pager.page_ended_with([row(20, 1), row(20, 2)], Some(EoseHint::More));
        let next = pager.page_ended_with([row(20, 1), row(20, 2)], Some(EoseHint::More));
        let Next::Ask(below) = next else {
            panic!("{next:?}")
        };
        assert_eq!(below.until, Some(Timestamp::from_secs(19)));
        assert_eq!(pager.gaps(), [Timestamp::from_secs(20)]);
        let none = pager.page_ended_with([], Some(EoseHint::More));
        assert_eq!(
            none,
            Next::Done(Ending::NoProgress),
            "it is not believed to be the end"
        );
    }

    #[test]
    fn finish_proves_nothing_with_rows_out_of_range() {
        let mut pager = Pager::new(PagerConfig::default());
        let _ = pager.page_ended([row(20, 1)]);
        let next = pager.page_ended_with([row(50, 2)], Some(EoseHint::Finish));
        assert_eq!(next, Next::Done(Ending::NoProgress));
    }
}
