//! A search: several filters read as one, in turns.
//!
//! Between two turns nothing is held but a place in serving order, so a search that nobody continues costs nothing,
//! and one that examines a million events lets others pass. The price: it is not a snapshot. What is stored meanwhile
//! may or may not be found, what is removed meanwhile is not.

use std::collections::HashSet;
use std::slice;

use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use rusqlite::OptionalExtension;

use super::keys::{Position, seconds};
use super::ledger::Ledger;
use super::plan::{Plan, Rest, Source, plan};
use super::scan::{Found, Merge, look_up};
use crate::store::rules::has_tag;

/// What one turn may spend, in rows of an index.
const TURN: usize = 50_000;

/// What it costs to look at the event itself, in rows of an index.
const LOOK: usize = 10;

/// A search in progress.
pub(super) struct Search {
    state: State,
    now: Timestamp,
}

enum State {
    Fresh(Vec<Filter>),
    Planned(Vec<Plan>),
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Turn {
    /// There may be more.
    Paused,
    /// Everything was found.
    Finished,
}

impl Search {
    pub(super) fn new(filters: Vec<Filter>, now: Timestamp) -> Self {
        Self { state: State::Fresh(filters), now }
    }

    /// Appends what is found next, until `wanted` events are there or the turn is over.
    pub(super) fn turn(
        &mut self,
        ledger: &Ledger<'_>,
        wanted: usize,
        found: &mut Vec<Found>,
    ) -> rusqlite::Result<Turn> {
        let expired = expired(ledger, self.now)?;
        let plans = self.plans(ledger)?;
        let mut budget = TURN;
        let mut scans = Vec::with_capacity(plans.len());
        for plan in plans {
            let mut scan = Scan::open(ledger, plan, wanted)?;
            scan.advance(ledger, &expired, &mut budget)?;
            scans.push(scan);
        }
        while found.len() < wanted && !scans.iter().any(Scan::is_stalled) {
            let Some(next) = scans.iter().filter_map(|scan| scan.head).min() else {
                return Ok(Turn::Finished);
            };
            found.push(next);
            for scan in &mut scans {
                if scan.head.is_some_and(|head| head.at == next.at) {
                    scan.consume();
                    scan.advance(ledger, &expired, &mut budget)?;
                }
            }
        }
        Ok(Turn::Paused)
    }

    /// Appends what is found next as reconciliation wants it, and puts everything in order once nothing is left.
    pub(super) fn list(
        &mut self,
        ledger: &Ledger<'_>,
        wanted: usize,
        items: &mut Vec<(Timestamp, EventId)>,
    ) -> rusqlite::Result<Turn> {
        let mut found = Vec::new();
        let turn = self.turn(ledger, wanted, &mut found)?;
        items.extend(found.iter().map(|found| (found.at.created_at(), found.at.event_id())));
        if turn == Turn::Finished {
            // Nearly the other way round already, which this sort makes use of.
            items.reverse();
            items.sort();
        }
        Ok(turn)
    }

    fn plans(&mut self, ledger: &Ledger<'_>) -> rusqlite::Result<&mut [Plan]> {
        if let State::Fresh(filters) = &mut self.state {
            let mut plans = Vec::with_capacity(filters.len());
            for filter in filters.drain(..) {
                plans.extend(plan(ledger, filter)?);
            }
            self.state = State::Planned(plans);
        }
        match &mut self.state {
            State::Planned(plans) => Ok(plans),
            State::Fresh(_) => Ok(&mut []),
        }
    }
}

/// Events that have ended and were not swept yet.
fn expired(ledger: &Ledger<'_>, now: Timestamp) -> rusqlite::Result<HashSet<i64>> {
    ledger
        .conn
        .prepare_cached("SELECT seq FROM expirations WHERE at <= ?1")?
        .query_map([seconds(now.as_secs())], |row| row.get(0))?
        .collect()
}

/// One filter within a turn.
struct Scan<'c> {
    rows: Candidates<'c>,
    rest: &'c Rest,
    after: &'c mut Position,
    remaining: &'c mut usize,
    head: Option<Found>,
}

enum Candidates<'c> {
    Merged(Merge<'c>),
    Sorted(slice::Iter<'c, Found>),
    None,
}

impl<'c> Scan<'c> {
    fn open(ledger: &Ledger<'c>, plan: &'c mut Plan, wanted: usize) -> rusqlite::Result<Self> {
        if let Source::Ids(ids) = &plan.source {
            plan.source = Source::Sorted(look_up(ledger, ids, plan.bounds)?);
        }
        let after = plan.bounds.after;
        let wanted = wanted.min(plan.remaining);
        let rows = match &plan.source {
            _ if plan.remaining == 0 => Candidates::None,
            Source::Everything => {
                Candidates::Merged(Merge::open(ledger, None, plan.bounds, wanted)?)
            }
            Source::Lists(lists) => {
                Candidates::Merged(Merge::open(ledger, Some(lists), plan.bounds, wanted)?)
            }
            Source::Sorted(found) => {
                let examined = found.partition_point(|found| found.at <= after);
                Candidates::Sorted(found.get(examined..).unwrap_or_default().iter())
            }
            Source::Ids(_) => Candidates::None,
        };
        Ok(Self {
            rows,
            rest: &plan.rest,
            after: &mut plan.bounds.after,
            remaining: &mut plan.remaining,
            head: None,
        })
    }

    /// Finds the next event that matches, unless the budget ends first.
    fn advance(
        &mut self,
        ledger: &Ledger<'_>,
        expired: &HashSet<i64>,
        budget: &mut usize,
    ) -> rusqlite::Result<()> {
        while self.head.is_none() && *self.remaining > 0 && *budget > 0 {
            let Some(found) = self.rows.next()? else {
                *self.remaining = 0;
                return Ok(());
            };
            *budget = budget.saturating_sub(self.rest.cost());
            let again = found.at == *self.after;
            if !again && !expired.contains(&found.seq) && self.rest.admits(ledger, &found)? {
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

    /// Neither at its end nor at an event: what comes next is for another turn to find.
    fn is_stalled(&self) -> bool {
        self.head.is_none() && *self.remaining > 0
    }
}

impl Candidates<'_> {
    fn next(&mut self) -> rusqlite::Result<Option<Found>> {
        match self {
            Self::Merged(merge) => merge.next(),
            Self::Sorted(found) => Ok(found.next().copied()),
            Self::None => Ok(None),
        }
    }
}

impl Rest {
    /// What it costs to check these conditions.
    fn cost(&self) -> usize {
        if self.needs_event() { LOOK } else { 1 }
    }

    fn needs_event(&self) -> bool {
        self.authors.is_some() || !self.tags.is_empty()
    }

    fn admits(&self, ledger: &Ledger<'_>, found: &Found) -> rusqlite::Result<bool> {
        if self.kinds.as_ref().is_some_and(|kinds| !kinds.contains(&found.kind)) {
            return Ok(false);
        }
        if !self.needs_event() {
            return Ok(true);
        }
        let admitted = ledger
            .conn
            .prepare_cached("SELECT pubkey, json FROM events WHERE seq = ?1")?
            .query_row([found.seq], |row| {
                Ok(self.admits_author(row.get(0)?) && self.admits_tags(row.get_ref(1)?.as_str()?))
            })
            .optional()?;
        Ok(admitted.unwrap_or(false))
    }

    fn admits_author(&self, author: [u8; 32]) -> bool {
        let author = PublicKey::from_byte_array(author);
        self.authors.as_ref().is_none_or(|authors| authors.contains(&author))
    }

    fn admits_tags(&self, json: &str) -> bool {
        if self.tags.is_empty() {
            return true;
        }
        let Ok(event) = Event::from_json(json) else {
            return false;
        };
        self.tags.iter().all(|(name, values)| has_tag(&event, *name, values))
    }
}
