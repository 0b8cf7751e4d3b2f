//! Events that a relay has offered by id, until they are here or given up, each with a budget of attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::memory::Memory;
use grasp_core::Mono;
use grasp_core::limits::BackoffPolicy;
use grasp_core::nostr::event::EventId;

use super::io::{JobId, SubId};
use super::reconcile::MAX_NEEDED;

/// Requests to one relay for one event.
const MAX_TRIES: u32 = 12;
/// The backoff of one event after failed requests: 30 seconds, doubling to 15 minutes.
const EVENT_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(30),
    cap: Duration::from_secs(15 * 60),
    ..BackoffPolicy::RELAY
};
/// Fewest events to which a relay is assumed to truncate an answer; half of the smallest limit known.
const MIN_TRUNCATED: usize = 50;
/// Time that a failure is remembered: longer than between full passes, or each would start again.
const FAILURE_MEMORY_SECS: u64 = 7 * 24 * 60 * 60;
/// Ids that one relay may offer and not have delivered.
const MAX_WANTED: usize = 2 * MAX_NEEDED;
/// Failures remembered for one relay.
const MAX_REMEMBERED: usize = 20_000;

/// The events that one relay has offered and not delivered yet.
///
/// They are forgotten with the connection, together with the jobs that want them. Failed requests are remembered
/// longer: a relay that offers an event and never delivers it is not asked more often for reconnecting often.
#[derive(Debug, Default)]
pub(super) struct Wants {
    wanted: BTreeMap<EventId, WantedId>,
    due: BTreeSet<(Mono, EventId)>,
    requests: BTreeMap<SubId, IdsRequest>,
    tried: Memory<EventId, Tried, MAX_REMEMBERED, FAILURE_MEMORY_SECS>,
}

/// One request for events by id.
#[derive(Debug, Default)]
struct IdsRequest {
    outstanding: BTreeSet<EventId>,
    received: usize,
}

#[derive(Debug)]
struct WantedId {
    jobs: BTreeSet<JobId>,
    phase: WantPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WantPhase {
    /// To be requested from then on.
    Due(Mono),
    /// Requested under this subscription.
    Requested(SubId),
    /// Delivered; the local relay is judging it.
    Delivered,
}

#[derive(Clone, Copy, Debug)]
struct Tried {
    times: u32,
    not_before: Mono,
}

/// An event that was requested and not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) event: EventId,
    /// The jobs that wait for it.
    pub(super) jobs: BTreeSet<JobId>,
    pub(super) is_first: bool,
    pub(super) is_given_up: bool,
}

/// The result of a request for events by id.
#[must_use]
#[derive(Debug)]
pub(super) struct IdsEnded {
    pub(super) missed: Vec<Missed>,
    /// The number of events to which the relay seems to truncate.
    pub(super) truncated_at: Option<usize>,
}

/// The result of wanting an event.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WantResult {
    /// It will be requested.
    Queued,
    /// It will be requested, though that failed before.
    QueuedAfterFailure,
    /// The same job wants it already.
    Already,
    /// Its budget is spent, or too many are wanted.
    GivenUp,
}

impl Wants {
    /// Returns the number of events that are offered and not here yet.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Returns whether an event is offered and not here yet.
    pub(super) fn has(&self, id: &EventId) -> bool {
        self.wanted.contains_key(id)
    }

    /// Adds an event that the relay offers, and the job that waits for it.
    pub(super) fn want(&mut self, now: Mono, id: EventId, job: Option<JobId>) -> WantResult {
        let tried = self.tried.get(&id).copied();
        let is_too_many = self.wanted.len() >= MAX_WANTED && !self.has(&id);
        if is_too_many || tried.is_some_and(|tried| tried.times >= MAX_TRIES) {
            return WantResult::GivenUp;
        }
        let at = tried.map_or(now, |tried| now.max(tried.not_before));
        let want = self.wanted.entry(id).or_insert_with(|| {
            self.due.insert((at, id));
            WantedId {
                jobs: BTreeSet::new(),
                phase: WantPhase::Due(at),
            }
        });
        match job {
            Some(job) if !want.jobs.insert(job) => WantResult::Already,
            _ if tried.is_some() => WantResult::QueuedAfterFailure,
            _ => WantResult::Queued,
        }
    }

    /// Takes up to `max` events that are due, to be requested under `sub`.
    pub(super) fn take_due(&mut self, now: Mono, sub: SubId, max: usize) -> BTreeSet<EventId> {
        let due = self.due.iter().take_while(|(at, _)| *at <= now).take(max);
        let ids: BTreeSet<_> = due.map(|(_, id)| *id).collect();
        for id in &ids {
            self.set_phase(*id, WantPhase::Requested(sub));
        }
        if !ids.is_empty() {
            self.requests.insert(
                sub,
                IdsRequest {
                    outstanding: ids.clone(),
                    received: 0,
                },
            );
        }
        ids
    }

    /// Notes that an event was delivered and is being judged.
    pub(super) fn delivered(&mut self, sub: SubId, id: EventId) {
        let Some(request) = self.requests.get_mut(&sub) else {
            return;
        };
        if request.outstanding.remove(&id) {
            request.received += 1;
            self.set_phase(id, WantPhase::Delivered);
        }
    }

    /// Ends a request by EOSE: what was not delivered has failed.
    ///
    /// If the answer may have been truncated, the rest is due again, in smaller requests. If the relay does not have
    /// it, too little will come of these to look truncated.
    pub(super) fn ended(&mut self, now: Mono, sub: SubId) -> IdsEnded {
        let short = self
            .requests
            .get(&sub)
            .filter(|request| !request.outstanding.is_empty());
        let truncated_at = short
            .map(|request| request.received)
            .filter(|received| *received >= MIN_TRUNCATED);
        if truncated_at.is_some() {
            self.returned(now, sub);
        }
        IdsEnded {
            missed: self.refused(now, sub),
            truncated_at,
        }
    }

    /// Ends a request that was refused for what it asks for: everything in it has failed.
    pub(super) fn refused(&mut self, now: Mono, sub: SubId) -> Vec<Missed> {
        let request = self.requests.remove(&sub).unwrap_or_default();
        request
            .outstanding
            .into_iter()
            .map(|event| self.failed(now, event))
            .collect()
    }

    /// Ends a request that was not accepted, which says nothing about the events: they are due again.
    pub(super) fn returned(&mut self, now: Mono, sub: SubId) {
        for id in self.requests.remove(&sub).unwrap_or_default().outstanding {
            self.set_phase(id, WantPhase::Due(now));
        }
    }

    /// Counts a failed attempt to get an event.
    pub(super) fn failed(&mut self, now: Mono, event: EventId) -> Missed {
        while self.tried.expire(now).is_some() {}
        let times = self.tried.get(&event).map_or(0, |tried| tried.times) + 1;
        let not_before = now + EVENT_BACKOFF.delay_after(times);
        self.tried.put(now, event, Tried { times, not_before });
        let is_given_up = times >= MAX_TRIES;
        let jobs = if is_given_up {
            self.forget(event)
        } else {
            self.set_phase(event, WantPhase::Due(not_before));
            self.wanted.get(&event).map(|want| want.jobs.clone())
        };
        let jobs = jobs.unwrap_or_default();
        Missed {
            event,
            jobs,
            is_first: times == 1,
            is_given_up,
        }
    }

    /// Gives up an event that came forged: the relay is not asked for it again. Returns the jobs that waited for it.
    pub(super) fn forged(&mut self, now: Mono, id: EventId) -> BTreeSet<JobId> {
        self.tried.put(
            now,
            id,
            Tried {
                times: MAX_TRIES,
                not_before: now,
            },
        );
        self.forget(id).unwrap_or_default()
    }

    /// Removes an event that is here, or never will be; returns the jobs that waited for it.
    pub(super) fn resolve(&mut self, id: EventId) -> BTreeSet<JobId> {
        self.tried.remove(&id);
        self.forget(id).unwrap_or_default()
    }

    /// Removes a job. Events that only it wanted are forgotten, unless requested.
    pub(super) fn abandon(&mut self, job: JobId) {
        self.wanted.retain(|id, want| {
            let was_its = want.jobs.remove(&job);
            let WantPhase::Due(at) = want.phase else {
                return true;
            };
            let keep = !was_its || !want.jobs.is_empty();
            if !keep {
                self.due.remove(&(at, *id));
            }
            keep
        });
    }

    /// Forgets everything that ends with the connection.
    pub(super) fn disconnected(&mut self) {
        self.wanted.clear();
        self.due.clear();
        self.requests.clear();
    }

    /// Returns one of the jobs that want an event.
    pub(super) fn job_waiting_for(&self, event: EventId) -> Option<JobId> {
        self.wanted.get(&event)?.jobs.first().copied()
    }

    /// Returns whether an event may be requested now.
    pub(super) fn is_due(&self, now: Mono) -> bool {
        self.due.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Returns whether all wanted events are backing off.
    pub(super) fn is_backing_off(&self, now: Mono) -> bool {
        self.wanted.len() == self.due.len() && !self.is_due(now)
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        self.due.first().map(|(at, _)| *at)
    }

    fn set_phase(&mut self, id: EventId, phase: WantPhase) {
        let Some(want) = self.wanted.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut want.phase, phase);
        self.unindex(id, before);
        if let WantPhase::Due(at) = phase {
            self.due.insert((at, id));
        }
    }

    fn forget(&mut self, id: EventId) -> Option<BTreeSet<JobId>> {
        let want = self.wanted.remove(&id)?;
        self.unindex(id, want.phase);
        Some(want.jobs)
    }

    /// Removes an event from the index of its phase.
    fn unindex(&mut self, id: EventId, phase: WantPhase) {
        match phase {
            WantPhase::Due(at) => _ = self.due.remove(&(at, id)),
            WantPhase::Requested(sub) => {
                if let Some(request) = self.requests.get_mut(&sub) {
                    request.outstanding.remove(&id);
                }
            }
            WantPhase::Delivered => {}
        }
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn check(&self) {
        let due = self
            .wanted
            .values()
            .filter(|want| matches!(want.phase, WantPhase::Due(_)))
            .count();
        assert_eq!(due, self.due.len(), "what is due is wanted");
        let requested = self
            .wanted
            .values()
            .filter(|want| matches!(want.phase, WantPhase::Requested(_)));
        let noted: usize = self
            .requests
            .values()
            .map(|request| request.outstanding.len())
            .sum();
        assert_eq!(requested.count(), noted, "what is asked for is wanted");
    }
}

#[cfg(test)]
mod tests;
