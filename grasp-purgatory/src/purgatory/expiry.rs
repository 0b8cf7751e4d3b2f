//! Nothing waits for ever.

use std::collections::BTreeSet;

use grasp_core::{Identifier, RepoId};
use nostr::event::EventId;
use nostr::types::Timestamp;

use super::Purgatory;
use super::desk::Desk;
use super::entry::{Entry, Phase, Why};
use super::output::{Chore, Output, Turn};
use super::staging::Placeholder;
use crate::journal::Record;

impl Purgatory {
    pub(super) fn on_tick(&mut self, out: &mut Turn) {
        self.swept = self.now.mono;
        self.retry(out);
        let ended = self.endings.take_over(self.now.unix);
        ended.iter().for_each(|identifier| self.ask(out, identifier));
        let waited = self.overdue(Phase::Waiting);
        waited.into_iter().for_each(|id| self.shelve(out, id));
        let shelved = self.overdue(Phase::Shelved);
        shelved.into_iter().for_each(|id| self.forget(out, id, Why::Forgotten));
        self.drop_placeholders(out);
    }

    /// The next end of anything.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        let phases = [Phase::Waiting, Phase::Shelved].into_iter();
        let entries = phases.filter_map(|phase| self.ledger.deadlines(phase).next());
        let uploads = self.ledger.staging().iter().filter(|(id, _)| !self.is_signed_for(id));
        entries.map(|(end, _)| end).chain(uploads.map(|(_, upload)| upload.until)).min()
    }

    /// Whether a fetch or a release is under way that may concern an entry.
    fn is_busy(&self, entry: &Entry) -> bool {
        let desks = entry.identifiers().into_iter().filter_map(|name| self.desks.get(name));
        desks.into_iter().any(|desk| desk.is_busy())
    }

    /// Whether the event that an upload waited for waits here itself; then they share its time.
    fn is_signed_for(&self, id: &EventId) -> bool {
        self.ledger.entry(id).is_some_and(|entry| entry.phase == Phase::Waiting)
    }

    fn overdue(&self, phase: Phase) -> Vec<EventId> {
        let ends = self.ledger.deadlines(phase).take_while(|(end, _)| *end <= self.now.unix);
        ends.filter(|(_, entry)| !self.is_busy(entry)).map(|(_, entry)| entry.id()).collect()
    }

    /// While servers have not been asked yet, what waits for them does not end before its longest time.
    pub(super) fn on_hunt_in_line(&mut self, out: &mut Turn, identifier: &Identifier) {
        let longest = self.config.longest_wait.max(self.config.wait);
        let waiting = self.ledger.family(identifier).filter(|e| e.phase == Phase::Waiting);
        let ends = waiting.map(|entry| (entry.id(), entry.until, entry.since + longest));
        let longer: Vec<_> = ends.filter(|(_, until, end)| until < end).collect();
        for (id, _, until) in longer {
            self.record(out, Record::Moved { id, phase: Phase::Waiting, until });
        }
    }

    /// From the first answer on, what waits in line has its usual time.
    pub(super) fn on_hunt_answered(&mut self, identifier: &Identifier) {
        if self.waits_in_line(identifier).next().is_some() {
            let desk = self.desks.entry(identifier.clone()).or_default();
            desk.first_answer.get_or_insert(self.now.unix);
        }
    }

    /// Every server was asked: what waited for that ends as if it had come with the first answer.
    pub(super) fn on_hunt_ended(&mut self, out: &mut Turn, identifier: &Identifier) {
        let desk = self.desks.get_mut(identifier);
        let first_answer = desk.and_then(|desk| desk.first_answer.take());
        if self.desks.get(identifier).is_some_and(Desk::is_clear) {
            self.desks.remove(identifier);
        }
        let (now, wait) = (self.now.unix, self.config.wait);
        // What came after the first answer has its own time.
        let end = |since: Timestamp| first_answer.map_or(now, |at| at.max(since)) + wait;
        let waiting = self.waits_in_line(identifier);
        let ends: Vec<_> = waiting.map(|entry| (entry.id(), end(entry.since).max(now))).collect();
        for (id, until) in ends {
            self.record(out, Record::Moved { id, phase: Phase::Waiting, until });
        }
    }

    /// What has more than its usual time, because servers have not been asked yet.
    fn waits_in_line(&self, identifier: &Identifier) -> impl Iterator<Item = &Entry> {
        let usual = self.end_of_wait();
        let entries = self.ledger.family(identifier);
        entries.filter(move |entry| entry.phase == Phase::Waiting && entry.until > usual)
    }

    /// Ends the time in which an event is hunted for. It is not forgotten yet.
    fn shelve(&mut self, out: &mut Turn, id: EventId) {
        let Some(entry) = self.ledger.entry(&id) else { return };
        let repo: Option<RepoId> = entry.announcement().map(|a| a.repo.clone());
        let term = if repo.is_some() { self.config.soft } else { self.config.wanted };
        let until = self.now.unix + term;
        self.record(out, Record::Moved { id, phase: Phase::Shelved, until });
        if let Some(repo) = repo {
            self.owe(out, Chore::RemoveView { repo, at_once: false });
        }
        self.keep_shelf_in_bounds(out);
    }

    fn keep_shelf_in_bounds(&mut self, out: &mut Turn) {
        while !self.ledger.books().shelved().is_within(self.config.shelf) {
            let first = self.ledger.deadlines(Phase::Shelved).next().map(|(_, entry)| entry.id());
            let Some(id) = first else { return };
            self.forget(out, id, Why::Evicted);
        }
    }

    fn drop_placeholders(&mut self, out: &mut Turn) {
        let is_over = |id: &EventId, placeholder: &Placeholder| {
            placeholder.until <= self.now.unix && !self.is_signed_for(id)
        };
        let staged = self.ledger.staging().iter();
        let over: Vec<_> = staged.filter(|(id, p)| is_over(id, p)).map(|(id, _)| *id).collect();
        for id in over {
            let names = self.names_of(&id);
            self.record(out, Record::Unstaged { id, keep: None });
            self.clear(out, id, BTreeSet::new(), names);
        }
    }

    /// Tries again what failed.
    fn retry(&mut self, out: &mut Turn) {
        let now = self.now.mono;
        let due = |retry: Option<grasp_core::Mono>| retry.is_some_and(|at| at <= now);
        let desks = self.desks.iter().filter(|(_, desk)| due(desk.retry));
        let identifiers: Vec<_> = desks.map(|(identifier, _)| identifier.clone()).collect();
        identifiers.iter().for_each(|identifier| self.ask(out, identifier));
        if due(self.chores_again) {
            self.chores_again = None;
            self.ledger.owed().for_each(|chore| out.act(Output::Do(chore.clone())));
        }
    }
}
