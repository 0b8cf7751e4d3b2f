//! Events that a relay has offered by id, until they are here or given up, each with a budget of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::nostr::event::EventId;

use super::ids::{JobId, SubId};
use super::reconcile::MAX_NEEDED;

/// Times that one relay is asked for one event.
const MAX_TRIES: u32 = 12;
/// The rest after the first of them that brought nothing; each further one doubles it.
const FIRST_REST: Duration = Duration::from_secs(30);
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(15 * 60);
/// The fewest events to which a relay is believed to cut an answer; half of the smallest cut known.
const SMALLEST_CUT: usize = 50;
/// How long a failure is remembered: longer than from one full pass to the next, or each would begin anew.
const MEMORY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Ids that one relay may offer before some are here.
const MOST_WANTED: usize = 2 * MAX_NEEDED;
/// Failures remembered for one relay.
const MAX_REMEMBERED: usize = 20_000;

/// What one relay has offered and not delivered yet.
///
/// What is wanted ends with the connection, together with the jobs that want it. What was tried in vain is
/// remembered beyond it: a relay that offers an event and never delivers it is not asked more often for
/// reconnecting often.
#[derive(Debug, Default)]
pub(super) struct Wants {
    wanted: BTreeMap<EventId, Want>,
    due: BTreeSet<(Mono, EventId)>,
    asked: BTreeMap<SubId, Asked>,
    tried: BTreeMap<EventId, Tried>,
}

/// One request.
#[derive(Debug, Default)]
struct Asked {
    /// What has not come yet.
    left: BTreeSet<EventId>,
    came: usize,
}

#[derive(Debug)]
struct Want {
    jobs: BTreeSet<JobId>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// To be asked for, from then on.
    Due(Mono),
    /// Asked for under this subscription.
    Asked(SubId),
    /// Delivered; our relay is judging it.
    Judged,
}

#[derive(Clone, Copy, Debug)]
struct Tried {
    times: u32,
    not_before: Mono,
    forget_at: Mono,
}

/// An event that was asked for and did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) event: EventId,
    /// Who waits for it, or did.
    pub(super) jobs: BTreeSet<JobId>,
    pub(super) is_first: bool,
    pub(super) is_given_up: bool,
}

/// How a request for events by id ended.
#[must_use]
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) missed: Vec<Missed>,
    /// How many events the relay seems to send at most.
    pub(super) cut_at: Option<usize>,
}

/// Whether it is worth wanting an event.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanting {
    /// It will be asked for.
    Noted,
    /// It will be asked for, though it was in vain before.
    Doubtful,
    /// The same job wants it already.
    Already,
    /// Its budget is used up, or there are too many.
    GivenUp,
}

impl Wants {
    /// How many events are offered and not here yet.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Whether an event is offered and not here yet.
    pub(super) fn has(&self, id: &EventId) -> bool {
        self.wanted.contains_key(id)
    }

    /// A relay offers an event; a job may be waiting for it.
    pub(super) fn want(&mut self, now: Mono, id: EventId, job: Option<JobId>) -> Wanting {
        let tried = self.tried.get(&id).copied();
        let is_too_many = self.wanted.len() >= MOST_WANTED && !self.has(&id);
        if is_too_many || tried.is_some_and(|tried| tried.times >= MAX_TRIES) {
            return Wanting::GivenUp;
        }
        let at = tried.map_or(now, |tried| now.max(tried.not_before));
        let want = self.wanted.entry(id).or_insert_with(|| {
            self.due.insert((at, id));
            Want { jobs: BTreeSet::new(), phase: Phase::Due(at) }
        });
        match job {
            Some(job) if !want.jobs.insert(job) => Wanting::Already,
            _ if tried.is_some() => Wanting::Doubtful,
            _ => Wanting::Noted,
        }
    }

    /// Takes up to so many that may be asked for now, and notes under which name they are.
    pub(super) fn ask(&mut self, now: Mono, sub: SubId, most: usize) -> BTreeSet<EventId> {
        let due = self.due.iter().take_while(|(at, _)| *at <= now).take(most);
        let ids: BTreeSet<_> = due.map(|(_, id)| *id).collect();
        for id in &ids {
            self.set_phase(*id, Phase::Asked(sub));
        }
        if !ids.is_empty() {
            self.asked.insert(sub, Asked { left: ids.clone(), came: 0 });
        }
        ids
    }

    /// An event came; what our relay thinks of it is still to be heard.
    pub(super) fn delivered(&mut self, sub: SubId, id: EventId) {
        let Some(asked) = self.asked.get_mut(&sub) else { return };
        if asked.left.remove(&id) {
            asked.came += 1;
            self.set_phase(id, Phase::Judged);
        }
    }

    /// The request ended properly: what did not come with it was tried in vain.
    ///
    /// Unless so much came that the answer may have been cut: then the rest is asked for again, in smaller
    /// requests. If it is not there, too little will come of that to look cut.
    pub(super) fn ended(&mut self, now: Mono, sub: SubId) -> Ended {
        let came = self.asked.get(&sub).map_or(0, |asked| asked.came);
        let is_short = self.asked.get(&sub).is_some_and(|asked| !asked.left.is_empty());
        if is_short && came >= SMALLEST_CUT {
            self.returned(now, sub);
            return Ended { missed: Vec::new(), cut_at: Some(came) };
        }
        Ended { missed: self.refused(now, sub), cut_at: None }
    }

    /// The request was refused, for what it asks for: everything in it was tried in vain.
    pub(super) fn refused(&mut self, now: Mono, sub: SubId) -> Vec<Missed> {
        let asked = self.asked.remove(&sub).unwrap_or_default();
        asked.left.into_iter().map(|event| self.failed(now, event)).collect()
    }

    /// The request was not taken, which says nothing about the events: they are due again.
    pub(super) fn returned(&mut self, now: Mono, sub: SubId) {
        for id in self.asked.remove(&sub).unwrap_or_default().left {
            self.set_phase(id, Phase::Due(now));
        }
    }

    /// A try was in vain.
    pub(super) fn failed(&mut self, now: Mono, event: EventId) -> Missed {
        let times = self.tried.get(&event).map_or(0, |tried| tried.times) + 1;
        let doublings = 1u32.checked_shl(times - 1).unwrap_or(u32::MAX);
        let not_before = now + FIRST_REST.saturating_mul(doublings).min(LONGEST_REST);
        self.remember(event, Tried { times, not_before, forget_at: now + MEMORY });
        let is_given_up = times >= MAX_TRIES;
        let jobs = if is_given_up {
            self.forget(event)
        } else {
            self.set_phase(event, Phase::Due(not_before));
            self.wanted.get(&event).map(|want| want.jobs.clone())
        };
        let jobs = jobs.unwrap_or_default();
        Missed { event, jobs, is_first: times == 1, is_given_up }
    }

    /// The event came forged: the relay is not asked for it again. Tells which jobs waited for it.
    pub(super) fn forged(&mut self, now: Mono, id: EventId) -> BTreeSet<JobId> {
        self.remember(id, Tried { times: MAX_TRIES, not_before: now, forget_at: now + MEMORY });
        self.forget(id).unwrap_or_default()
    }

    /// The event is here, or will never be wanted: tells which jobs waited for it.
    pub(super) fn settled(&mut self, id: EventId) -> BTreeSet<JobId> {
        self.tried.remove(&id);
        self.forget(id).unwrap_or_default()
    }

    /// A job is over: nothing more is to be had for it. What only it wanted is forgotten, unless under way.
    pub(super) fn abandon(&mut self, job: JobId) {
        self.wanted.retain(|id, want| {
            let was_its = want.jobs.remove(&job);
            let Phase::Due(at) = want.phase else { return true };
            let keep = !was_its || !want.jobs.is_empty();
            if !keep {
                self.due.remove(&(at, *id));
            }
            keep
        });
    }

    /// The connection is gone, and with it everything under way.
    pub(super) fn disconnected(&mut self) {
        self.wanted.clear();
        self.due.clear();
        self.asked.clear();
    }

    /// One of the jobs that want an event.
    pub(super) fn a_job_of(&self, event: EventId) -> Option<JobId> {
        self.wanted.get(&event)?.jobs.first().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// Whether anything may be asked for now.
    pub(super) fn is_due(&self, now: Mono) -> bool {
        self.due.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Whether a job waits only for events that rest after having been tried in vain.
    pub(super) fn is_resting(&self, now: Mono) -> bool {
        self.wanted.len() == self.due.len() && !self.is_due(now)
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        self.due.first().map(|(at, _)| *at)
    }

    fn set_phase(&mut self, id: EventId, phase: Phase) {
        let Some(want) = self.wanted.get_mut(&id) else { return };
        let before = std::mem::replace(&mut want.phase, phase);
        self.leave(id, before);
        if let Phase::Due(at) = phase {
            self.due.insert((at, id));
        }
    }

    fn forget(&mut self, id: EventId) -> Option<BTreeSet<JobId>> {
        let want = self.wanted.remove(&id)?;
        self.leave(id, want.phase);
        Some(want.jobs)
    }

    /// Takes an event from where its phase has put it.
    fn leave(&mut self, id: EventId, phase: Phase) {
        match phase {
            Phase::Due(at) => _ = self.due.remove(&(at, id)),
            Phase::Asked(sub) => {
                if let Some(asked) = self.asked.get_mut(&sub) {
                    asked.left.remove(&id);
                }
            }
            Phase::Judged => {}
        }
    }

    fn remember(&mut self, id: EventId, tried: Tried) {
        self.tried.insert(id, tried);
        if self.tried.len() > MAX_REMEMBERED {
            let now = tried.forget_at - MEMORY;
            self.tried.retain(|_, tried| tried.forget_at > now);
        }
        while self.tried.len() > MAX_REMEMBERED {
            self.tried.pop_first();
        }
    }

    pub(super) fn check(&self) {
        let due = self.wanted.values().filter(|want| matches!(want.phase, Phase::Due(_))).count();
        assert_eq!(due, self.due.len(), "what is due is wanted");
        let asked = self.wanted.values().filter(|want| matches!(want.phase, Phase::Asked(_)));
        let noted: usize = self.asked.values().map(|asked| asked.left.len()).sum();
        assert_eq!(asked.count(), noted, "what is asked for is wanted");
    }
}

#[cfg(test)]
mod tests;
