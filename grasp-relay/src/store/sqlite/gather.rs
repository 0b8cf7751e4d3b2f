//! Filters that name many values: each value is looked up once, over as many turns as that takes.
//!
//! Merging lists means to open all of them in each turn, which for ten thousand of them is most of a second. Here a
//! turn goes on where the last one ended, and only the first few rows in serving order are kept. Once those are handed
//! out, the lists are read again from there on.

use std::collections::BTreeSet;
use std::ops::Bound;

use nostr::event::EventId;

use super::budget::{Budget, SEEK};
use super::keys::{Digest, Position};
use super::ledger::Ledger;
use super::scan::{self, Bounds, Found};

/// Rows kept, at least and at most, of what many lists hold.
const MIN_WINDOW: usize = 500;
const MAX_WINDOW: usize = 50_000;

/// What a filter names by many values, being looked up.
pub(super) struct Gathering {
    names: Names,
    /// The next of the names to look up.
    next: usize,
    /// The first rows in serving order of what was looked up.
    first: BTreeSet<Found>,
    /// Whether rows were left out that come after those.
    is_cut: bool,
}

enum Names {
    Lists(Vec<Digest>),
    Ids(Vec<EventId>),
}

impl Gathering {
    pub(super) fn of_lists(lists: Vec<Digest>) -> Self {
        Self::of(Names::Lists(lists))
    }

    pub(super) fn of_ids(ids: BTreeSet<EventId>) -> Self {
        Self::of(Names::Ids(ids.into_iter().collect()))
    }

    fn of(names: Names) -> Self {
        Self { names, next: 0, first: BTreeSet::new(), is_cut: false }
    }

    /// Goes on looking up until everything is, or the budget is spent; says whether it is done.
    pub(super) fn go_on(
        &mut self,
        ledger: &Ledger<'_>,
        bounds: Bounds,
        wanted: usize,
        budget: &mut Budget,
    ) -> rusqlite::Result<bool> {
        if self.is_cut && self.is_done() && self.after(bounds.after).next().is_none() {
            (self.next, self.is_cut) = (0, false);
            self.first.clear();
        }
        let window = wanted.clamp(MIN_WINDOW, MAX_WINDOW);
        while !self.is_done() && !budget.is_spent() {
            self.look_up_next(ledger, bounds, window, budget)?;
        }
        Ok(self.is_done())
    }

    /// What was gathered of the rows after a place, in serving order.
    pub(super) fn after(&self, place: Position) -> impl Iterator<Item = &Found> {
        let place = Found { at: place, seq: i64::MAX, kind: u16::MAX };
        self.first.range((Bound::Excluded(place), Bound::Unbounded))
    }

    /// Whether there may be more than was gathered.
    pub(super) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn is_done(&self) -> bool {
        let names = match &self.names {
            Names::Lists(lists) => lists.len(),
            Names::Ids(ids) => ids.len(),
        };
        self.next >= names
    }

    fn look_up_next(
        &mut self,
        ledger: &Ledger<'_>,
        bounds: Bounds,
        window: usize,
        budget: &mut Budget,
    ) -> rusqlite::Result<()> {
        budget.spend(SEEK);
        match &self.names {
            Names::Ids(ids) => {
                let id = ids.get(self.next);
                let found = id.map(|id| scan::look_up(ledger, id, bounds)).transpose()?;
                self.first.extend(found.flatten());
            }
            Names::Lists(lists) => {
                let Some(list) = lists.get(self.next) else { return Ok(()) };
                let (first, is_cut) = (&mut self.first, &mut self.is_cut);
                let rows = scan::read_list(ledger, list, bounds, |found| {
                    let is_wanted = first.len() < window || first.last() > Some(&found);
                    first.extend(is_wanted.then_some(found));
                    if first.len() > window {
                        first.pop_last();
                    }
                    *is_cut |= first.len() >= window;
                    is_wanted
                })?;
                budget.spend(rows);
            }
        }
        self.next += 1;
        Ok(())
    }
}
