//! A search: several filters read as one, in turns.
//!
//! Between two turns nothing is held but a place in serving order, so a search that nobody continues costs nothing,
//! and one that examines a million events lets others pass. The price: it is not a snapshot. What is stored meanwhile
//! may or may not be found, what is removed meanwhile is not.

use std::collections::HashSet;
use std::vec;

use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use rusqlite::OptionalExtension;

use super::budget::Budget;
use super::keys::{Position, seconds};
use super::ledger::Ledger;
use super::plan::{Plan, Rest, Source, plan};
use super::scan::{Found, Merge};
use crate::store::rules::has_tag;

/// A search in progress.
pub(super) struct Search {
    /// What is not planned yet.
    filters: vec::IntoIter<Filter>,
    plans: Vec<Plan>,
    now: Timestamp,
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
        Self { filters: filters.into_iter(), plans: Vec::new(), now }
    }

    /// Appends what is found next, until `wanted` events are there or the budget is spent.
    pub(super) fn turn(
        &mut self,
        ledger: &Ledger<'_>,
        wanted: usize,
        found: &mut Vec<Found>,
        budget: &mut Budget,
    ) -> rusqlite::Result<Turn> {
        if !self.prepare(ledger, wanted, budget)? {
            return Ok(Turn::Paused);
        }
        let expired = Expired::by(ledger, self.now)?;
        let share = wanted / self.plans.len().max(1);
        let mut scans = Vec::with_capacity(self.plans.len());
        for plan in &mut self.plans {
            let mut scan = Scan::open(ledger, plan, share)?;
            scan.advance(ledger, &expired, budget)?;
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
                    scan.advance(ledger, &expired, budget)?;
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
        let turn = self.turn(ledger, wanted, &mut found, &mut Budget::of_turn())?;
        items.extend(found.iter().map(|found| (found.at.created_at(), found.at.event_id())));
        if turn == Turn::Finished {
            // Nearly the other way round already, which this sort makes use of.
            items.reverse();
            items.sort();
        }
        Ok(turn)
    }

    /// Plans the filters and looks up what they name by many values; says whether all of that is done.
    fn prepare(
        &mut self,
        ledger: &Ledger<'_>,
        wanted: usize,
        budget: &mut Budget,
    ) -> rusqlite::Result<bool> {
        while !budget.is_spent() {
            let Some(filter) = self.filters.next() else { break };
            self.plans.extend(plan(ledger, filter, budget)?);
        }
        let mut is_ready = self.filters.len() == 0;
        for plan in self.plans.iter_mut().filter(|plan| plan.remaining > 0) {
            if let Source::Gathered(gathering) = &mut plan.source {
                let wanted = wanted.min(plan.remaining);
                is_ready &= gathering.go_on(ledger, plan.bounds, wanted, budget)?;
            }
        }
        Ok(is_ready)
    }
}

/// Events that have ended and were not swept yet.
pub(super) enum Expired {
    Few(HashSet<i64>),
    /// Too many to be read in every turn.
    Many(i64),
}

/// Expired events that are read at the beginning of a turn.
const FEW: usize = 500;

impl Expired {
    pub(super) fn by(ledger: &Ledger<'_>, now: Timestamp) -> rusqlite::Result<Self> {
        let now = seconds(now.as_secs());
        let few: HashSet<i64> = ledger
            .conn
            .prepare_cached("SELECT seq FROM expirations WHERE at <= ?1")?
            .query_map([now], |row| row.get(0))?
            .take(FEW)
            .collect::<Result<_, _>>()?;
        Ok(if few.len() < FEW { Self::Few(few) } else { Self::Many(now) })
    }

    pub(super) fn contains(&self, ledger: &Ledger<'_>, seq: i64) -> rusqlite::Result<bool> {
        match self {
            Self::Few(few) => Ok(few.contains(&seq)),
            Self::Many(now) => ledger
                .conn
                .prepare_cached("SELECT 1 FROM expirations WHERE seq = ?1 AND at <= ?2")?
                .exists([seq, *now]),
        }
    }
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
    Gathered {
        found: Box<dyn Iterator<Item = &'c Found> + 'c>,
        /// Whether another turn may gather more.
        is_cut: bool,
    },
    None,
}

impl<'c> Scan<'c> {
    fn open(ledger: &Ledger<'c>, plan: &'c mut Plan, wanted: usize) -> rusqlite::Result<Self> {
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
            Source::Gathered(gathering) => Candidates::Gathered {
                found: Box::new(gathering.after(after)),
                is_cut: gathering.is_cut(),
            },
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
        expired: &Expired,
        budget: &mut Budget,
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
            let is_over = again || expired.contains(ledger, found.seq)?;
            if !is_over && self.rest.admits(ledger, &found, budget)? {
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
            Self::Gathered { found, .. } => Ok(found.next().copied()),
            Self::None => Ok(None),
        }
    }

    /// Whether nothing can come after the last of these.
    const fn is_all(&self) -> bool {
        !matches!(self, Self::Gathered { is_cut: true, .. })
    }
}

impl Rest {
    fn needs_event(&self) -> bool {
        self.authors.is_some() || !self.tags.is_empty()
    }

    fn admits(
        &self,
        ledger: &Ledger<'_>,
        found: &Found,
        budget: &mut Budget,
    ) -> rusqlite::Result<bool> {
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
                budget.spend_look(0);
                if self.tags.is_empty() || !self.admits_author(row.get(0)?) {
                    return Ok(self.admits_author(row.get(0)?));
                }
                let text = row.get_ref(1)?.as_str()?;
                budget.spend_look(text.len());
                Ok(self.admits_tags(text))
            })
            .optional()?;
        Ok(admitted.unwrap_or(false))
    }

    fn admits_author(&self, author: [u8; 32]) -> bool {
        let author = PublicKey::from_byte_array(author);
        self.authors.as_ref().is_none_or(|authors| authors.contains(&author))
    }

    fn admits_tags(&self, json: &str) -> bool {
        let Ok(event) = Event::from_json(json) else {
            return false;
        };
        self.tags.iter().all(|(name, values)| has_tag(&event, *name, values))
    }
}
