//! The search for events that match several filters, in slices.
//!
//! Between two slices a search holds only a place in serving order, so an abandoned search costs nothing, and one
//! that examines a million events lets other reads pass. In exchange it is not a snapshot: events stored meanwhile
//! may or may not be found, events removed meanwhile are not.

use std::collections::HashSet;
use std::vec;

use nostr::event::EventId;
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use rusqlite::OptionalExtension;

use super::scan::{self, IndexRow, Merge, ValueLookup};
use super::tables::SqliteTables;
use crate::store::conditions::{Bounds, Conditions, IndexChoice};
use crate::store::keys::{Digest, Position, seconds};
use crate::store::matches_nothing;

/// The cost of opening a list or looking up a key, in rows of an index.
pub(super) const SEEK_ROWS: usize = 5;

/// The cost of reading an event itself, in rows of an index.
const EVENT_READ_ROWS: usize = 10;

/// Bytes of an event's text that cost as much to read as a row of an index.
const BYTES_PER_ROW: usize = 200;

/// The remaining cost that a slice may have, in rows of an index.
///
/// A slice lasts some ten milliseconds at most; longer reads queue again, so that short ones do not wait for them. A short
/// read lasts a millisecond at most, because it occupies a thread that serves other connections.
#[derive(Debug)]
pub(super) struct ReadBudget {
    rows: usize,
    is_short: bool,
}

impl ReadBudget {
    /// Returns the budget of one slice on a reader thread.
    pub(super) const fn of_slice() -> Self {
        Self {
            rows: 20_000,
            is_short: false,
        }
    }

    /// Returns the budget of a read on the thread of its caller.
    pub(super) const fn of_short_read() -> Self {
        Self {
            rows: 1_000,
            is_short: true,
        }
    }

    pub(super) fn spend(&mut self, rows: usize) {
        self.rows = self.rows.saturating_sub(rows);
    }

    /// Returns whether this is a read on the thread of its caller.
    pub(super) const fn is_short(&self) -> bool {
        self.is_short
    }

    /// Returns the bytes of JSON that are loaded, unless a single event is longer.
    pub(super) const fn max_chunk_bytes(&self) -> usize {
        match self.is_short {
            true => 128 * 1024,
            false => 1024 * 1024,
        }
    }

    /// Spends the cost of an event of which this many bytes were read.
    pub(super) fn spend_event(&mut self, bytes: usize) {
        self.spend(EVENT_READ_ROWS + bytes / BYTES_PER_ROW);
    }

    pub(super) const fn is_spent(&self) -> bool {
        self.rows == 0
    }

    /// Ends the slice.
    fn end(&mut self) {
        self.rows = 0;
    }
}

/// A search in progress.
pub(super) struct SlicedSearch {
    /// Filters that are not planned yet.
    filters: vec::IntoIter<Filter>,
    plans: Vec<SlicedPlan>,
    now: Timestamp,
}

/// The end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum SearchProgress {
    /// There may be more.
    Paused,
    /// Everything was found.
    Finished,
}

impl SlicedSearch {
    pub(super) fn new(filters: Vec<Filter>, now: Timestamp) -> Self {
        Self {
            filters: filters.into_iter(),
            plans: Vec::new(),
            now,
        }
    }

    /// Appends the next events, until there are `wanted` or the budget is spent.
    pub(super) fn advance(
        &mut self,
        tables: &SqliteTables<'_>,
        wanted: usize,
        found: &mut Vec<IndexRow>,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<SearchProgress> {
        if !self.prepare(tables, wanted, budget)? {
            return Ok(SearchProgress::Paused);
        }
        let expired = Expired::by(tables, self.now)?;
        let share = wanted / self.plans.len().max(1);
        let mut scans = Vec::with_capacity(self.plans.len());
        for plan in &mut self.plans {
            let mut scan = Scan::open(tables, plan, share)?;
            scan.advance(tables, &expired, budget)?;
            scans.push(scan);
        }
        while found.len() < wanted && !scans.iter().any(Scan::is_stalled) {
            let Some(next) = scans.iter().filter_map(|scan| scan.head).min() else {
                return Ok(SearchProgress::Finished);
            };
            found.push(next);
            for scan in &mut scans {
                if scan.head.is_some_and(|head| head.at == next.at) {
                    scan.consume();
                    scan.advance(tables, &expired, budget)?;
                }
            }
        }
        Ok(SearchProgress::Paused)
    }

    /// Appends the next events as reconciliation needs them, and sorts all of them once nothing is left.
    pub(super) fn list(
        &mut self,
        tables: &SqliteTables<'_>,
        wanted: usize,
        items: &mut Vec<(Timestamp, EventId)>,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<SearchProgress> {
        let mut found = Vec::new();
        let progress = self.advance(tables, wanted, &mut found, budget)?;
        items.extend(
            found
                .iter()
                .map(|found| (found.at.created_at(), found.at.event_id())),
        );
        if progress == SearchProgress::Finished {
            // The items are nearly in reverse order, which makes this sort fast.
            items.reverse();
            items.sort();
        }
        Ok(progress)
    }

    /// Plans the filters and looks up those with many values; returns whether all of that is done.
    fn prepare(
        &mut self,
        tables: &SqliteTables<'_>,
        wanted: usize,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<bool> {
        while !budget.is_spent() {
            let Some(filter) = self.filters.next() else {
                break;
            };
            let kept = budget.is_short().then(|| filter.clone());
            match plan(tables, filter, budget)? {
                Planned::Plan(plan) => self.plans.push(*plan),
                Planned::MatchesNothing => {}
                Planned::TooLong => {
                    // Only a short read leaves a plan to the next slice.
                    let filters: Vec<_> = kept.into_iter().chain(self.filters.by_ref()).collect();
                    self.filters = filters.into_iter();
                    budget.end();
                }
            }
        }
        let mut is_ready = self.filters.len() == 0;
        for plan in self.plans.iter_mut().filter(|plan| plan.remaining > 0) {
            if let CandidateSource::Gathered(lookup) = &mut plan.source {
                let wanted = wanted.min(plan.remaining);
                is_ready &= lookup.advance(tables, plan.bounds, wanted, budget)?;
            }
        }
        Ok(is_ready)
    }
}

/// Expired events that were not removed yet.
enum Expired {
    Few(HashSet<i64>),
    /// Too many to be read in every slice.
    Many(i64),
}

/// Expired events that are read at the start of a slice.
const MAX_CACHED_EXPIRED: usize = 500;

impl Expired {
    fn by(tables: &SqliteTables<'_>, now: Timestamp) -> rusqlite::Result<Self> {
        let now = seconds(now.as_secs());
        let few: HashSet<i64> = tables
            .conn
            .prepare_cached("SELECT seq FROM expirations WHERE at <= ?1")?
            .query_map([now], |row| row.get(0))?
            .take(MAX_CACHED_EXPIRED)
            .collect::<Result<_, _>>()?;
        Ok(if few.len() < MAX_CACHED_EXPIRED {
            Self::Few(few)
        } else {
            Self::Many(now)
        })
    }

    fn contains(&self, tables: &SqliteTables<'_>, seq: i64) -> rusqlite::Result<bool> {
        match self {
            Self::Few(few) => Ok(few.contains(&seq)),
            Self::Many(now) => tables
                .conn
                .prepare_cached("SELECT 1 FROM expirations WHERE seq = ?1 AND at <= ?2")?
                .exists([seq, *now]),
        }
    }
}

/// One filter within a slice.
struct Scan<'c> {
    rows: Candidates<'c>,
    conditions: &'c RemainingConditions,
    after: &'c mut Position,
    remaining: &'c mut usize,
    head: Option<IndexRow>,
}

enum Candidates<'c> {
    Merged(Merge<'c>),
    Gathered {
        found: Box<dyn Iterator<Item = &'c IndexRow> + 'c>,
        is_cut: bool,
    },
    None,
}

impl<'c> Scan<'c> {
    fn open(
        tables: &SqliteTables<'c>,
        plan: &'c mut SlicedPlan,
        wanted: usize,
    ) -> rusqlite::Result<Self> {
        let after = plan.bounds.after;
        let wanted = wanted.min(plan.remaining);
        let rows = match &plan.source {
            _ if plan.remaining == 0 => Candidates::None,
            CandidateSource::Everything => {
                Candidates::Merged(Merge::open(tables, None, plan.bounds, wanted)?)
            }
            CandidateSource::Lists(lists) => {
                Candidates::Merged(Merge::open(tables, Some(lists), plan.bounds, wanted)?)
            }
            CandidateSource::Gathered(lookup) => Candidates::Gathered {
                found: Box::new(lookup.after(after)),
                is_cut: lookup.is_cut(),
            },
        };
        Ok(Self {
            rows,
            conditions: &plan.conditions,
            after: &mut plan.bounds.after,
            remaining: &mut plan.remaining,
            head: None,
        })
    }

    /// Finds the next event that matches, unless the budget ends first.
    fn advance(
        &mut self,
        tables: &SqliteTables<'_>,
        expired: &Expired,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<()> {
        while self.head.is_none() && *self.remaining > 0 && !budget.is_spent() {
            let Some(found) = self.rows.next()? else {
                if self.rows.is_all() {
                    *self.remaining = 0;
                }
                return Ok(());
            };
            budget.spend(1);
            let again = found.at == *self.after;
            let is_over = again || expired.contains(tables, found.seq)?;
            if !is_over && self.conditions.admits(tables, &found, budget)? {
                self.head = Some(found);
            } else {
                *self.after = found.at;
            }
        }
        Ok(())
    }

    fn consume(&mut self) {
        if let Some(head) = self.head.take() {
            *self.after = head.at;
            *self.remaining -= 1;
        }
    }

    /// Returns whether this scan is neither at its end nor at an event, so that another slice must go on.
    fn is_stalled(&self) -> bool {
        self.head.is_none() && *self.remaining > 0
    }
}

impl Candidates<'_> {
    fn next(&mut self) -> rusqlite::Result<Option<IndexRow>> {
        match self {
            Self::Merged(merge) => merge.next(),
            Self::Gathered { found, .. } => Ok(found.next().copied()),
            Self::None => Ok(None),
        }
    }

    /// Returns whether nothing follows the last of these.
    const fn is_all(&self) -> bool {
        !matches!(self, Self::Gathered { is_cut: true, .. })
    }
}

/// A filter, ready to be read from an index.
pub(super) struct SlicedPlan {
    pub(super) source: CandidateSource,
    pub(super) conditions: RemainingConditions,
    pub(super) bounds: Bounds,
    /// The number of events the filter may still return.
    pub(super) remaining: usize,
}

/// The source of candidates, in serving order.
pub(super) enum CandidateSource {
    /// All events.
    Everything,
    /// A few lists, merged as they are read.
    Lists(Vec<Digest>),
    /// Many lists or ids, looked up one after the other over several slices.
    Gathered(ValueLookup),
}

/// Conditions, some of which the chosen index implies.
pub(super) struct RemainingConditions {
    conditions: Conditions,
    chosen: IndexChoice,
}

/// Rows counted when indexes are compared: few at first, then more while no index has shown to be short.
const PROBE_ROWS: [usize; 3] = [64, 512, 2_048];

/// Lists of one filter that are opened anew in each slice; a filter with more is looked up value by value.
const MAX_MERGED_LISTS: usize = 32;

/// A filter that was to be planned.
pub(super) enum Planned {
    Plan(Box<SlicedPlan>),
    MatchesNothing,
    /// Comparing the indexes takes longer than a short read may.
    TooLong,
}

/// Plans a filter.
///
/// An empty list, `limit: 0` and an empty time window match nothing. So does a filter with `search`, because ignoring
/// the condition would give a wrong answer.
pub(super) fn plan(
    tables: &SqliteTables<'_>,
    filter: Filter,
    budget: &mut ReadBudget,
) -> rusqlite::Result<Planned> {
    if matches_nothing(&filter) {
        return Ok(Planned::MatchesNothing);
    }

    let (bounds, ids) = (Bounds::of(&filter), filter.ids.clone());
    let remaining = filter.limit.unwrap_or(usize::MAX);
    let conditions = Conditions::of(filter);
    let (chosen, source) = match ids {
        Some(ids) => (
            IndexChoice::Ids,
            CandidateSource::Gathered(ValueLookup::of_ids(ids)),
        ),
        None => match smallest_index(tables, &conditions, &bounds, budget)? {
            Some(smallest) => smallest,
            None => return Ok(Planned::TooLong),
        },
    };
    let conditions = RemainingConditions { conditions, chosen };
    Ok(Planned::Plan(Box::new(SlicedPlan {
        source,
        conditions,
        bounds,
        remaining,
    })))
}

impl RemainingConditions {
    fn admits(
        &self,
        tables: &SqliteTables<'_>,
        found: &IndexRow,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<bool> {
        let Self { conditions, chosen } = self;
        if !conditions.admit_kind(found.kind) {
            return Ok(false);
        }
        if !conditions.need_event(*chosen) {
            return Ok(true);
        }
        let admitted = tables
            .conn
            .prepare_cached("SELECT pubkey, json FROM events WHERE seq = ?1")?
            .query_row([found.seq], |row| {
                budget.spend_event(0);
                let is_of_author =
                    conditions.admit_author(&PublicKey::from_byte_array(row.get(0)?));
                if !is_of_author || !conditions.need_tags(*chosen) {
                    return Ok(is_of_author);
                }
                let text = row.get_ref(1)?.as_str()?;
                budget.spend_event(text.len());
                Ok(conditions.admit_tags(text))
            })
            .optional()?;
        Ok(admitted.unwrap_or(false))
    }
}

/// Returns the index that promises the fewest candidates, and its lists; `None` if finding it takes longer than a short
/// read may.
fn smallest_index(
    tables: &SqliteTables<'_>,
    conditions: &Conditions,
    bounds: &Bounds,
    budget: &mut ReadBudget,
) -> rusqlite::Result<Option<(IndexChoice, CandidateSource)>> {
    let chosen = match conditions.choices()[..] {
        [] => return Ok(Some((IndexChoice::Everything, CandidateSource::Everything))),
        [only] => Some(only),
        ref choices => compare(tables, conditions, bounds, choices, budget)?,
    };
    let Some(chosen) = chosen else {
        return Ok(None);
    };
    let lists: Vec<Digest> = conditions.lists(tables.keys, chosen).collect();
    budget.spend(lists.len());
    let source = match lists.len() {
        0..=MAX_MERGED_LISTS => CandidateSource::Lists(lists),
        _ => CandidateSource::Gathered(ValueLookup::of_lists(lists)),
    };
    Ok(Some((chosen, source)))
}

/// Compares indexes by counting a few of their rows, as many as the budget allows.
fn compare(
    tables: &SqliteTables<'_>,
    conditions: &Conditions,
    bounds: &Bounds,
    choices: &[IndexChoice],
    budget: &mut ReadBudget,
) -> rusqlite::Result<Option<IndexChoice>> {
    let mut best = IndexChoice::Everything;
    for most in PROBE_ROWS {
        if budget.is_short() && most * choices.len() > budget.rows {
            return Ok(None);
        }
        let mut fewest = most;
        for choice in choices {
            let lists = conditions.lists(tables.keys, *choice);
            let rows = scan::count_up_to(tables, lists, bounds, fewest)?;
            budget.spend(rows.saturating_add(SEEK_ROWS));
            if rows < fewest {
                (fewest, best) = (rows, *choice);
            }
        }
        if fewest < most {
            return Ok(Some(best));
        }
    }
    Ok(Some(choices.first().copied().unwrap_or(best)))
}
