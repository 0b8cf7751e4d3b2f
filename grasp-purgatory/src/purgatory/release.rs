//! The way out: survey, refs, events, and only then is anything gone from here.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::Identifier;
use nostr::event::{Event, EventId};

use super::Purgatory;
use super::desk::{Job, Pass, Step};
use super::entry::{Entry, Phase, What, Why};
use super::judge::{self, Plan};
use super::output::{Chore, Output, Report, Stage, Turn};
use crate::journal::Record;

impl Purgatory {
    /// Has an identifier looked at, now or as soon as the step that runs there has ended.
    pub(super) fn ask(&mut self, out: &mut Turn, identifier: &Identifier) {
        let number = self.number_pass();
        let desk = self.desks.entry(identifier.clone()).or_default();
        desk.retry = None;
        match desk.step {
            Step::Idle => {
                desk.step = Step::Surveying;
                desk.pass = desk.next.take().unwrap_or(number);
                out.asked.insert(identifier.clone());
                out.act(Output::Survey { identifier: identifier.clone() });
            }
            // A survey that was asked for in this very turn will see everything.
            Step::Surveying if out.asked.contains(identifier) => {}
            _ => _ = desk.next.get_or_insert(number),
        }
    }

    fn number_pass(&mut self) -> Pass {
        self.passes += 1;
        Pass(self.passes)
    }

    pub(super) fn on_surveyed(
        &mut self,
        out: &mut Turn,
        identifier: &Identifier,
        survey: &super::Survey,
    ) {
        let desk = self.desks.get_mut(identifier);
        if desk.and_then(|desk| desk.end(Stage::Survey)).is_none() {
            return self.ask(out, identifier);
        }
        match survey.is_vacant && self.ledger.family(identifier).next().is_some() {
            true => _ = self.vacant.insert(identifier.clone()),
            false => _ = self.vacant.remove(identifier),
        }
        self.endings.surveyed(identifier, survey, self.now.unix);
        // Usually gone by now; but the hint may have been lost with the earlier run.
        for id in &survey.refused {
            self.withdraw(out, *id);
        }
        let previous = survey.previous.iter();
        for event in previous.filter(|event| survey.complete.contains(&event.id)) {
            self.recall(out, event);
        }
        let plan = judge::plan(&self.policy, &self.ledger, identifier, survey);
        for (id, why) in &plan.gone {
            self.forget(out, *id, *why);
        }
        for id in &plan.strays {
            let keep = self.staged_tips(id);
            self.clear(out, *id, keep, BTreeSet::from([identifier.clone()]));
        }
        for repo in &plan.orphans {
            self.owe(out, Chore::RemoveView { repo: repo.clone(), at_once: true });
        }
        // Kept before it is withdrawn: at no time is it nowhere.
        for event in &plan.withdraw {
            self.record(out, self.held(event));
        }
        plan.authorised.iter().for_each(|id| self.room.authorise(*id));
        self.carry_out(out, identifier, plan);
    }

    /// Takes up a state that was served before, to be released like any other.
    fn recall(&mut self, out: &mut Turn, event: &Arc<Event>) {
        if self.ledger.entry(&event.id).is_none() {
            self.record(out, self.held(event));
        }
    }

    /// The record of an event that waits from now on.
    fn held(&self, event: &Arc<Event>) -> Record {
        let (since, until) = (self.now.unix, self.end_of_wait());
        Record::Held { event: event.clone(), phase: Phase::Waiting, since, until }
    }

    fn carry_out(&mut self, out: &mut Turn, identifier: &Identifier, plan: Plan) {
        let Plan { views, proposals, store, withdraw, .. } = plan;
        let withdraw = withdraw.iter().map(|event| event.id).collect();
        let job = Job { events: store, withdraw };
        if views.is_empty() && proposals.is_empty() {
            return self.store(out, identifier, job);
        }
        // What comes out of staging may be what something else here has waited for.
        let brings_objects = proposals.iter().any(|proposal| !proposal.staged.is_empty());
        let number = self.number_pass();
        let desk = self.desks.entry(identifier.clone()).or_default();
        desk.step = Step::Applying(job);
        desk.next = desk.next.or(brings_objects.then_some(number));
        out.act(Output::Apply { identifier: identifier.clone(), views, proposals });
    }

    pub(super) fn on_applied(&mut self, out: &mut Turn, identifier: &Identifier) {
        let Some(desk) = self.desks.get_mut(identifier) else { return };
        let Some(job) = desk.end(Stage::Apply) else { return };
        // What its author took back meanwhile is not stored. The survey that this caused will see to the refs.
        let kept = |id: &EventId| self.ledger.entry(id).is_some();
        let events = job.events.into_iter().filter(|event| kept(&event.id)).collect();
        self.store(out, identifier, Job { events, ..job });
    }

    fn store(&mut self, out: &mut Turn, identifier: &Identifier, job: Job) {
        if job.is_empty() {
            return self.rest(out, identifier);
        }
        out.act(Output::Store {
            identifier: identifier.clone(),
            events: job.events.clone(),
            withdraw: job.withdraw.clone(),
        });
        self.step(identifier, Step::Storing(job));
    }

    pub(super) fn on_stored(
        &mut self,
        out: &mut Turn,
        identifier: &Identifier,
        stored: &BTreeSet<EventId>,
    ) {
        let number = self.number_pass();
        let Some(desk) = self.desks.get_mut(identifier) else { return };
        let Some(job) = desk.end(Stage::Store) else { return };
        let (served, refused): (Vec<_>, Vec<_>) =
            job.events.into_iter().partition(|event| stored.contains(&event.id));
        // Refs may say what a refused state said.
        desk.next = desk.next.or((!refused.is_empty()).then_some(number));
        for event in &refused {
            self.forget(out, event.id, Why::Refused);
        }
        for event in &served {
            self.forget_older(out, event.id);
            self.forget(out, event.id, Why::Served);
        }
        self.endings.served(identifier, &served, self.now.unix);
        if !served.is_empty() {
            out.act(Output::Publish { events: served });
        }
        self.rest(out, identifier);
    }

    /// What failed is tried again after a while; what waits for it goes on waiting.
    pub(super) fn on_failed(&mut self, out: &mut Turn, identifier: &Identifier, at: Stage) {
        let Some(desk) = self.desks.get_mut(identifier) else { return };
        if desk.end(at).is_none() {
            return;
        }
        desk.retry = Some(self.now.mono + self.config.retry);
        out.act(Output::Report(Report::Failed { identifier: identifier.clone(), at }));
    }

    pub(super) fn on_fetch_started(&mut self, identifier: Identifier) {
        self.desks.entry(identifier).or_default().fetches += 1;
    }

    pub(super) fn on_fetch_ended(&mut self, out: &mut Turn, identifier: &Identifier) {
        if let Some(desk) = self.desks.get_mut(identifier) {
            desk.fetches = desk.fetches.saturating_sub(1);
        }
        self.ask(out, identifier);
    }

    fn step(&mut self, identifier: &Identifier, step: Step) {
        self.desks.entry(identifier.clone()).or_default().step = step;
    }

    /// Ends a pass, and begins the next if something has changed since its survey.
    fn rest(&mut self, out: &mut Turn, identifier: &Identifier) {
        let Some(desk) = self.desks.get_mut(identifier) else { return };
        if desk.next.is_some() {
            return self.ask(out, identifier);
        }
        if desk.is_clear() {
            self.desks.remove(identifier);
        }
    }

    /// Lets go of an entry, and of the uploads that waited with it.
    pub(super) fn forget(&mut self, out: &mut Turn, id: EventId, why: Why) {
        let Some(entry) = self.ledger.entry(&id) else { return };
        let is_proposal = entry.proposal().is_some();
        let names = self.names_of(&id);
        self.record(out, Record::Gone { id, why });
        for name in &names {
            if self.ledger.family(name).next().is_none() {
                self.vacant.remove(name);
            }
        }
        let was_staged = self.ledger.staging().of(&id).is_some();
        if was_staged {
            self.record(out, Record::Unstaged { id, keep: None });
        }
        // Its refs may have been set when its author or the event store said no.
        let may_have_refs = is_proposal && matches!(why, Why::Withdrawn | Why::Refused);
        if was_staged || may_have_refs {
            self.clear(out, id, BTreeSet::new(), names);
        }
    }

    /// States of the same author that have lost to one that is served now.
    fn forget_older(&mut self, out: &mut Turn, served: EventId) {
        let Some(entry) = self.ledger.entry(&served) else { return };
        let What::State(state) = &entry.what else { return };
        let version = entry.version();
        let states = self.ledger.states_by(&state.repo.identifier, entry.author());
        let older: Vec<_> =
            states.filter(|state| state.version() < version).map(Entry::id).collect();
        older.into_iter().for_each(|id| self.forget(out, id, Why::Superseded));
    }
}
