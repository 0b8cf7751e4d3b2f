//! History: which relay of a user is asked for which part of its history next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::{Mono, RelayUrl};

use super::groups::{CycleCursor, Scope};
use super::io::{Output, TaskId, TaskIds};

/// Visits at the same time.
const MAX_WORKERS: usize = 32;
/// Time after which a relay is asked for its history again.
const CYCLE_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// Time after which the next group follows one that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Time that a visit may take, waiting for a connection included: longer than any honest relay needs for a group.
const VISIT_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// A relay that users name.
#[derive(Debug)]
struct PassRelay {
    /// The number of users who name it.
    authors: u32,
    /// The position in its cycle, which is all that is kept of it; `None` at the beginning.
    cursor: Option<Box<CycleCursor>>,
    phase: CyclePhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CyclePhase {
    /// It was never asked.
    New,
    Waiting(Mono),
    Visited(TaskId),
}

/// The cycles of all relays: one worker per relay, a limited number at the same time, and one new relay per pass.
#[derive(Debug, Default)]
pub(super) struct Cycles {
    relays: BTreeMap<RelayUrl, PassRelay>,
    new: BTreeSet<RelayUrl>,
    waiting: BTreeSet<(Mono, RelayUrl)>,
    visits: BTreeMap<TaskId, (RelayUrl, Mono)>,
    allows_new: bool,
}

impl Cycles {
    pub(super) fn begin_pass(&mut self) {
        self.allows_new = true;
    }

    /// Notes that one more user names a relay.
    pub(super) fn add(&mut self, relay: &RelayUrl) {
        if let Some(known) = self.relays.get_mut(relay) {
            known.authors += 1;
            return;
        }
        self.new.insert(relay.clone());
        let new = PassRelay {
            authors: 1,
            cursor: None,
            phase: CyclePhase::New,
        };
        self.relays.insert(relay.clone(), new);
    }

    /// Notes that one user fewer names a relay.
    pub(super) fn remove(&mut self, relay: &RelayUrl, out: &mut Vec<Output>) {
        let Some(known) = self.relays.get_mut(relay) else {
            return;
        };
        known.authors = known.authors.saturating_sub(1);
        if known.authors > 0 {
            return;
        }
        match known.phase {
            CyclePhase::New => _ = self.new.remove(relay),
            CyclePhase::Waiting(at) => _ = self.waiting.remove(&(at, relay.clone())),
            CyclePhase::Visited(id) => {
                self.visits.remove(&id);
                out.push(Output::EndVisit { id });
            }
        }
        self.relays.remove(relay);
    }

    /// Begins what is due, as far as there are workers.
    pub(super) fn start_due(
        &mut self,
        now: Mono,
        scope: Scope<'_>,
        ids: &mut TaskIds,
        out: &mut Vec<Output>,
    ) {
        while self.visits.len() < MAX_WORKERS {
            let Some(relay) = self.take_due(now).or_else(|| self.take_new()) else {
                return;
            };
            self.start(now, &relay, scope, ids, out);
        }
    }

    /// Ends a visit, and begins the next group of that relay at once.
    pub(super) fn visited(
        &mut self,
        now: Mono,
        id: TaskId,
        is_complete: bool,
        scope: Scope<'_>,
        ids: &mut TaskIds,
        out: &mut Vec<Output>,
    ) {
        let Some((relay, _)) = self.visits.remove(&id) else {
            return;
        };
        if is_complete {
            self.start(now, &relay, scope, ids, out);
        } else {
            self.wait(&relay, now + FAILED_PAUSE);
        }
    }

    /// Ends the visits that take too long.
    pub(super) fn end_expired(&mut self, now: Mono, out: &mut Vec<Output>) {
        let visits = self.visits.iter();
        let expired = visits.filter(|(_, (_, deadline))| now >= *deadline);
        let expired: Vec<TaskId> = expired.map(|(id, _)| *id).collect();
        for id in expired {
            if let Some((relay, _)) = self.visits.remove(&id) {
                out.push(Output::EndVisit { id });
                self.wait(&relay, now + FAILED_PAUSE);
            }
        }
    }

    /// Begins all cycles anew.
    pub(super) fn restart(&mut self, now: Mono) {
        let relays: Vec<RelayUrl> = self
            .waiting
            .iter()
            .map(|(_, relay)| relay.clone())
            .collect();
        self.waiting.clear();
        for relay in self.relays.values_mut() {
            relay.cursor = None;
        }
        for relay in relays {
            self.wait(&relay, now);
        }
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let visits = self.visits.values().map(|(_, deadline)| *deadline);
        let has_worker = self.visits.len() < MAX_WORKERS;
        let waiting = self.waiting.first().filter(|_| has_worker);
        visits.chain(waiting.map(|(at, _)| *at)).min()
    }

    pub(super) fn len(&self) -> usize {
        self.relays.len()
    }

    pub(super) fn workers(&self) -> usize {
        self.visits.len()
    }

    /// Returns the number of cycles that have begun and not ended.
    pub(super) fn cursors(&self) -> usize {
        let relays = self.relays.values();
        relays.filter(|relay| relay.cursor.is_some()).count()
    }

    fn take_due(&mut self, now: Mono) -> Option<RelayUrl> {
        let is_due = self.waiting.first().is_some_and(|(at, _)| now >= *at);
        let due = if is_due {
            self.waiting.pop_first()
        } else {
            None
        };
        due.map(|(_, relay)| relay)
    }

    /// Takes the new relay that most users name.
    fn take_new(&mut self) -> Option<RelayUrl> {
        if !self.allows_new {
            return None;
        }
        let ranked = self.new.iter().map(|relay| {
            let authors = self.relays.get(relay).map(|known| known.authors);
            (authors, Reverse(relay))
        });
        let relay = ranked.max().map(|(_, Reverse(relay))| relay.clone())?;
        self.new.remove(&relay);
        self.allows_new = false;
        Some(relay)
    }

    /// Begins the next group of a relay, or ends its cycle.
    fn start(
        &mut self,
        now: Mono,
        relay: &RelayUrl,
        scope: Scope<'_>,
        ids: &mut TaskIds,
        out: &mut Vec<Output>,
    ) {
        let Some(known) = self.relays.get_mut(relay) else {
            return;
        };
        let Some((filters, cursor)) = scope.next(relay, known.cursor.as_deref()) else {
            known.cursor = None;
            return self.wait(relay, now + CYCLE_INTERVAL);
        };
        let id = ids.next();
        known.cursor = Some(Box::new(cursor));
        known.phase = CyclePhase::Visited(id);
        self.visits.insert(id, (relay.clone(), now + VISIT_TIMEOUT));
        let relay = relay.clone();
        out.push(Output::Visit { id, relay, filters });
    }

    fn wait(&mut self, relay: &RelayUrl, until: Mono) {
        if let Some(known) = self.relays.get_mut(relay) {
            known.phase = CyclePhase::Waiting(until);
            self.waiting.insert((until, relay.clone()));
        }
    }
}
