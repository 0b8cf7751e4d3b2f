//! The time of held events: it ends, and is longer while servers that may have their data have not been asked.

use grasp_core::{Identifier, RepoId};
use nostr::event::EventId;
use nostr::types::Timestamp;

use super::held::HeldEvent;
use super::io::Outputs;
use super::{CleanupTask, Config, Phase, Purgatory};

impl Purgatory {
    pub(super) fn tick(&mut self, out: &mut Outputs) {
        self.last_sweep = self.now.mono;
        self.releases.retry(out, self.now.mono, self.now.unix);
        self.tasks.retry(out, self.now.mono);
        let waited = self.overdue(Phase::Waiting);
        waited.into_iter().for_each(|id| self.expire(out, id));
        let expired = self.overdue(Phase::Expired);
        expired.into_iter().for_each(|id| self.drop_event(out, id, false));
        let uploads = self
            .staging
            .iter()
            .filter(|(id, staged)| staged.until <= self.now.unix && !self.shares_time_of_event(id));
        let uploads: Vec<_> = uploads.map(|(id, _)| *id).collect();
        uploads.into_iter().for_each(|id| self.drop_uploads(out, id));
    }

    /// Returns the next end of a phase or an upload.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        let phases = [Phase::Waiting, Phase::Expired].into_iter();
        let ends = phases.filter_map(|phase| Some(self.held.deadlines(phase).next()?.0));
        let uploads = self.staging.iter().filter(|(id, _)| !self.shares_time_of_event(id));
        ends.chain(uploads.map(|(_, staged)| staged.until)).min()
    }

    /// Returns whether the event of an upload waits itself; then the upload ends with it.
    fn shares_time_of_event(&self, id: &EventId) -> bool {
        self.held.get(id).is_some_and(HeldEvent::is_waiting)
    }

    /// Returns the events whose phase has ended and that no fetch or release under way may concern.
    fn overdue(&self, phase: Phase) -> Vec<EventId> {
        let is_busy = |held: &HeldEvent| {
            held.identifiers().into_iter().any(|identifier| self.releases.is_busy(identifier))
        };
        let ends = self.held.deadlines(phase).take_while(|(end, _)| *end <= self.now.unix);
        ends.filter(|(_, held)| !is_busy(held)).map(|(_, held)| held.id()).collect()
    }

    /// Extends the time of events while servers that may have their data have not been asked yet.
    pub(super) fn hunt_waiting(&mut self, out: &mut Outputs, identifier: &Identifier) {
        let longest = self.config.hold_at_most.max(self.config.hold_for);
        let waiting = self.held.of(identifier).filter(|held| held.is_waiting());
        let extended = waiting.filter(|held| held.until < held.since + longest);
        let ends: Vec<_> = extended.map(|held| (held.id(), held.since + longest)).collect();
        for (id, until) in ends {
            self.held.set_phase(out, id, Phase::Waiting, until);
        }
    }

    /// Notes the first answer: from then on, events with extended time have their usual time.
    pub(super) fn hunt_answered(&mut self, identifier: &Identifier) {
        if self.extended(identifier).next().is_some() {
            self.releases.answered(identifier, self.now.unix);
        }
    }

    /// Ends the extended time of events as if they had been received with the first answer: every server was asked.
    pub(super) fn hunt_ended(&mut self, out: &mut Outputs, identifier: &Identifier) {
        let first_answer = self.releases.take_first_answer(identifier);
        let (now, hold_for) = (self.now.unix, self.config.hold_for);
        // Events received after the first answer have their own time.
        let end = |since: Timestamp| first_answer.map_or(now, |at| at.max(since)) + hold_for;
        let extended = self.extended(identifier);
        let ends: Vec<_> = extended.map(|held| (held.id(), end(held.since).max(now))).collect();
        for (id, until) in ends {
            self.held.set_phase(out, id, Phase::Waiting, until);
        }
    }

    /// Returns the events with more than their usual time left.
    fn extended(&self, identifier: &Identifier) -> impl Iterator<Item = &HeldEvent> {
        let usual = self.hold_until();
        self.held.of(identifier).filter(move |held| held.is_waiting() && held.until > usual)
    }

    /// Ends the time in which an event is hunted for, and keeps the number of expired ones within its limit.
    fn expire(&mut self, out: &mut Outputs, id: EventId) {
        let Some(held) = self.held.get(&id) else { return };
        let repo: Option<RepoId> = held.announcement().map(|a| a.repo.clone());
        let Config { remember_for, retry_expired_for, expired: limit, .. } = self.config;
        let term = if repo.is_some() { remember_for } else { retry_expired_for };
        self.held.set_phase(out, id, Phase::Expired, self.now.unix + term);
        if let Some(repo) = repo {
            self.tasks.add(out, CleanupTask::RemoveView { repo, at_once: false });
        }
        while !self.held.expired().is_within(limit) {
            let first = self.held.deadlines(Phase::Expired).next().map(|(_, held)| held.id());
            let Some(id) = first else { return };
            self.drop_event(out, id, false);
        }
    }
}
