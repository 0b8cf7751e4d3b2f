//! The releases under way: one per identifier, in a circle of survey and release. None of it outlives the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::{Identifier, Mono};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;

use super::held::HeldEvent;
use super::io::{Output, Outputs, ProposalRef, Stage, Survey, ViewTarget};
use super::{CleanupTask, Purgatory, judge};

/// The number of one survey with all that follows from it. Later passes have higher numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PassNumber(u64);

/// The work under one identifier.
///
/// A crash loses nothing: events are held until they are served, and the survey after the restart finds the work again.
#[derive(Debug, Default)]
struct Release {
    /// The stage that was requested and has not ended, with the events that it stores.
    running: Option<(Stage, Vec<Arc<Event>>)>,
    /// The pass that runs, or ran last.
    pass: PassNumber,
    /// The pass that follows, if something changed after the survey of the current one.
    next: Option<PassNumber>,
    fetches: usize,
    retry_at: Option<Mono>,
    /// Time of the first answer of a git server to the hunt that waits for permits.
    first_answer: Option<Timestamp>,
}

impl Release {
    fn is_busy(&self) -> bool {
        self.fetches > 0 || self.running.is_some()
    }

    fn is_idle(&self) -> bool {
        !self.is_busy() && self.retry_at.is_none() && self.first_answer.is_none()
    }
}

/// All releases under way.
#[derive(Debug, Default)]
pub(super) struct Releases {
    by_identifier: BTreeMap<Identifier, Release>,
    /// Number of the last pass.
    passes: u64,
    /// Identifiers of pull requests under which nothing is announced or stored.
    vacant: BTreeSet<Identifier>,
    expirations: Expirations,
}

impl Releases {
    /// Requests a survey of an identifier, now or as soon as the running stage has ended.
    pub(super) fn request(&mut self, out: &mut Outputs, identifier: &Identifier) {
        let number = self.next_number();
        let release = self.entry(identifier);
        release.retry_at = None;
        match &release.running {
            None => {
                release.running = Some((Stage::Survey, Vec::new()));
                release.pass = release.next.take().unwrap_or(number);
                out.surveyed.insert(identifier.clone());
                out.push(Output::Survey { identifier: identifier.clone() });
            }
            // A survey that this very call requested will see everything.
            Some((Stage::Survey, _)) if out.surveyed.contains(identifier) => {}
            Some(_) => _ = release.next.get_or_insert(number),
        }
    }

    fn next_number(&mut self) -> PassNumber {
        self.passes += 1;
        PassNumber(self.passes)
    }

    fn entry(&mut self, identifier: &Identifier) -> &mut Release {
        self.by_identifier.entry(identifier.clone()).or_default()
    }

    /// Returns whether an event is part of a release that is under way.
    pub(super) fn is_releasing(&self, id: &EventId) -> bool {
        let running = self.by_identifier.values().filter_map(|release| release.running.as_ref());
        running.flat_map(|(_, events)| events).any(|event| event.id == *id)
    }

    /// Ends a stage if it is the running one, and returns its events.
    pub(super) fn stage_ended(
        &mut self,
        identifier: &Identifier,
        stage: Stage,
    ) -> Option<Vec<Arc<Event>>> {
        let release = self.by_identifier.get_mut(identifier)?;
        release.running.take_if(|(running, _)| *running == stage).map(|(_, events)| events)
    }

    /// Ends a stage that failed, to be tried again at this time.
    pub(super) fn stage_failed(&mut self, identifier: &Identifier, stage: Stage, retry_at: Mono) {
        if self.stage_ended(identifier, stage).is_some() {
            self.entry(identifier).retry_at = Some(retry_at);
        }
    }

    /// Sets refs and stores events, or ends the pass if there is nothing to do.
    pub(super) fn release(
        &mut self,
        out: &mut Outputs,
        identifier: &Identifier,
        (views, proposals): (Vec<ViewTarget>, Vec<ProposalRef>),
        (events, withdraw): (Vec<Arc<Event>>, Vec<EventId>),
    ) {
        let changes_events = !events.is_empty() || !withdraw.is_empty();
        if views.is_empty() && proposals.is_empty() && !changes_events {
            return self.end_pass(out, identifier);
        }
        // Objects that leave staging may complete other held events.
        if proposals.iter().any(|proposal| !proposal.staged.is_empty()) {
            self.repeat(identifier);
        }
        self.entry(identifier).running = Some((Stage::Release, events.clone()));
        let identifier = identifier.clone();
        out.push(Output::Release { identifier, views, proposals, events, withdraw });
    }

    /// Makes another pass follow the current one.
    pub(super) fn repeat(&mut self, identifier: &Identifier) {
        let number = self.next_number();
        self.entry(identifier).next.get_or_insert(number);
    }

    /// Ends a pass, and begins the next if something has changed since its survey.
    pub(super) fn end_pass(&mut self, out: &mut Outputs, identifier: &Identifier) {
        if self.by_identifier.get(identifier).is_some_and(|release| release.next.is_some()) {
            self.request(out, identifier);
        }
        self.drop_if_idle(identifier);
    }

    fn drop_if_idle(&mut self, identifier: &Identifier) {
        if self.by_identifier.get(identifier).is_some_and(Release::is_idle) {
            self.by_identifier.remove(identifier);
        }
    }

    pub(super) fn fetch_started(&mut self, identifier: &Identifier) {
        self.entry(identifier).fetches += 1;
    }

    pub(super) fn fetch_ended(&mut self, out: &mut Outputs, identifier: &Identifier) {
        let release = self.entry(identifier);
        release.fetches = release.fetches.saturating_sub(1);
        self.request(out, identifier);
    }

    /// Returns whether a fetch or a stage is under way.
    pub(super) fn is_busy(&self, identifier: &Identifier) -> bool {
        self.by_identifier.get(identifier).is_some_and(Release::is_busy)
    }

    /// Requests surveys again after failures, and where a served event expired by its own tag.
    pub(super) fn retry(&mut self, out: &mut Outputs, now: Mono, unix: Timestamp) {
        let due = |release: &Release| release.retry_at.is_some_and(|at| at <= now);
        let releases = self.by_identifier.iter().filter(|(_, release)| due(release));
        let mut identifiers: Vec<_> = releases.map(|(identifier, _)| identifier.clone()).collect();
        identifiers.extend(self.expirations.take_due(unix));
        identifiers.iter().for_each(|identifier| self.request(out, identifier));
    }

    pub(super) fn next_retry(&self) -> Option<Mono> {
        self.by_identifier.values().filter_map(|release| release.retry_at).min()
    }

    pub(super) fn next_expiration(&self) -> Option<Timestamp> {
        self.expirations.by_time.first().map(|(end, _)| *end)
    }

    /// Notes the time of a git server's first answer to a hunt that waits for permits.
    pub(super) fn answered(&mut self, identifier: &Identifier, at: Timestamp) {
        self.entry(identifier).first_answer.get_or_insert(at);
    }

    /// Returns the time of the first answer, and forgets it.
    pub(super) fn take_first_answer(&mut self, identifier: &Identifier) -> Option<Timestamp> {
        let first_answer = self.by_identifier.get_mut(identifier)?.first_answer.take();
        self.drop_if_idle(identifier);
        first_answer
    }

    /// Notes the results of a survey that outlast it. Only identifiers of held events can be vacant.
    pub(super) fn surveyed(
        &mut self,
        identifier: &Identifier,
        survey: &Survey,
        (has_held, now): (bool, Timestamp),
    ) {
        self.set_vacant(identifier, survey.is_vacant && has_held);
        self.expirations.remove(identifier);
        let served = survey.announcements.iter().chain(&survey.states).chain(&survey.proposals);
        self.expirations.add(identifier, served, now);
    }

    pub(super) fn served(
        &mut self,
        identifier: &Identifier,
        events: &[Arc<Event>],
        now: Timestamp,
    ) {
        self.expirations.add(identifier, events, now);
    }

    pub(super) fn set_vacant(&mut self, identifier: &Identifier, is_vacant: bool) {
        match is_vacant {
            true => _ = self.vacant.insert(identifier.clone()),
            false => _ = self.vacant.remove(identifier),
        }
    }

    pub(super) fn is_vacant(&self, identifier: &Identifier) -> bool {
        self.vacant.contains(identifier)
    }

    /// Returns the pass that sees everything that has happened so far, if one runs or follows.
    pub(super) fn pending_pass(&self, identifier: &Identifier) -> Option<PassNumber> {
        let release = self.by_identifier.get(identifier)?;
        release.running.as_ref().map(|_| release.next.unwrap_or(release.pass))
    }

    /// Returns whether a pass has ended: nothing runs, or a later one does.
    pub(super) fn pass_ended(&self, identifier: &Identifier, pass: PassNumber) -> bool {
        let release = self.by_identifier.get(identifier);
        release.is_none_or(|release| release.running.is_none() || release.pass > pass)
    }
}

/// The circle of survey and release.
impl Purgatory {
    pub(super) fn surveyed(&mut self, out: &mut Outputs, identifier: &Identifier, survey: &Survey) {
        if self.releases.stage_ended(identifier, Stage::Survey).is_none() {
            return self.releases.request(out, identifier);
        }
        let has_held = self.held.of(identifier).next().is_some();
        self.releases.surveyed(identifier, survey, (has_held, self.now.unix));
        // Usually removed by now; but the hint may have been lost with the earlier run.
        for id in &survey.refused {
            self.drop_with_view(out, *id, true);
        }
        let (now, until) = (self.now.unix, self.hold_until());
        let previous = survey.previous.iter().filter(|event| survey.complete.contains(&event.id));
        for event in previous {
            if self.held.get(&event.id).is_none() {
                self.held.hold(out, event, now, until);
            }
        }
        let rules = (&self.config, &self.policy);
        let plan = judge::plan(rules, (&self.held, &self.staging), identifier, survey);
        for id in &plan.gone {
            self.drop_event(out, *id, false);
        }
        for id in &plan.strays {
            let (keep, names) = (self.staging.tips(id), BTreeSet::from([identifier.clone()]));
            self.tasks.clear_proposal(out, *id, keep, names);
        }
        for repo in plan.orphans {
            self.tasks.add(out, CleanupTask::RemoveView { repo, is_immediate: true });
        }
        // Held before it is withdrawn: at no time is it lost.
        for event in &plan.withdraw {
            self.held.hold(out, event, now, until);
        }
        plan.authorised.iter().for_each(|id| self.held.authorise(*id));
        if plan.has_waiting_for_room && !plan.store.is_empty() {
            // What it replaces may leave room.
            self.releases.repeat(identifier);
        }
        let withdraw = plan.withdraw.iter().map(|event| event.id).chain(plan.outdated).collect();
        let (refs, events) = ((plan.views, plan.proposals), (plan.store, withdraw));
        self.releases.release(out, identifier, refs, events);
    }

    pub(super) fn released(
        &mut self,
        out: &mut Outputs,
        identifier: &Identifier,
        refused: &BTreeSet<EventId>,
    ) {
        let Some(events) = self.releases.stage_ended(identifier, Stage::Release) else { return };
        if !refused.is_empty() {
            for id in refused {
                self.drop_event(out, *id, true);
            }
            self.releases.repeat(identifier);
            return self.releases.end_pass(out, identifier);
        }
        for event in &events {
            self.drop_older(out, event.id);
            let names = self.identifiers_of(&event.id);
            // Its record was removed together with its release.
            self.held.released(event.id);
            self.event_ended(out, event.id, names, false);
        }
        self.releases.served(identifier, &events, self.now.unix);
        if !events.is_empty() {
            out.push(Output::Publish { events });
        }
        self.releases.end_pass(out, identifier);
    }

    /// Drops an event and the uploads that wait with it. Refs of a pull request that its author or the store has taken
    /// back may have been set by a push before.
    pub(super) fn drop_event(&mut self, out: &mut Outputs, id: EventId, is_taken_back: bool) {
        let Some(held) = self.held.get(&id) else { return };
        let may_have_refs = is_taken_back && held.proposal().is_some();
        let names = self.identifiers_of(&id);
        self.held.remove(out, id);
        self.event_ended(out, id, names, may_have_refs);
    }

    /// Drops the uploads of an event that is no longer held.
    fn event_ended(
        &mut self,
        out: &mut Outputs,
        id: EventId,
        names: BTreeSet<Identifier>,
        may_have_refs: bool,
    ) {
        for name in &names {
            if self.held.of(name).next().is_none() {
                self.releases.set_vacant(name, false);
            }
        }
        if self.staging.remove(out, id, None) || may_have_refs {
            self.tasks.clear_proposal(out, id, BTreeSet::new(), names);
        }
    }

    /// Drops an event and the view that only it asks for.
    pub(super) fn drop_with_view(&mut self, out: &mut Outputs, id: EventId, is_taken_back: bool) {
        let announcement = self.held.get(&id).and_then(HeldEvent::announcement);
        let repo = announcement.map(|announcement| announcement.repo.clone());
        self.drop_event(out, id, is_taken_back);
        if let Some(repo) = repo {
            self.tasks.add(out, CleanupTask::RemoveView { repo, is_immediate: true });
        }
    }

    /// Drops the states that lost to a newer one of their author, which is served now.
    fn drop_older(&mut self, out: &mut Outputs, served: EventId) {
        let Some(held) = self.held.get(&served) else { return };
        let Some(state) = held.state() else { return };
        let version = held.version();
        let states = self.held.states_by(&state.repo.identifier, held.author());
        let older = states.filter(|state| state.version() < version);
        let older: Vec<_> = older.map(HeldEvent::id).collect();
        older.into_iter().for_each(|id| self.drop_event(out, id, false));
    }
}

/// The next NIP-40 expiration of a served event under each identifier that has one: then its refs must be removed.
#[derive(Debug, Default)]
struct Expirations {
    by_identifier: BTreeMap<Identifier, Timestamp>,
    by_time: BTreeSet<(Timestamp, Identifier)>,
}

impl Expirations {
    fn remove(&mut self, identifier: &Identifier) {
        if let Some(end) = self.by_identifier.remove(identifier) {
            self.by_time.remove(&(end, identifier.clone()));
        }
    }

    /// Adds served events. Those that have already expired are skipped.
    fn add<'a>(
        &mut self,
        identifier: &Identifier,
        events: impl IntoIterator<Item = &'a Arc<Event>>,
        now: Timestamp,
    ) {
        let ends = events.into_iter().filter_map(|event| event.tags.expiration());
        let Some(end) = ends.filter(|end| *end > now).min() else { return };
        if self.by_identifier.get(identifier).is_none_or(|before| end < *before) {
            self.remove(identifier);
            self.by_identifier.insert(identifier.clone(), end);
            self.by_time.insert((end, identifier.clone()));
        }
    }

    /// Removes and returns the identifiers with an expired event; the survey that follows adds them again.
    fn take_due(&mut self, now: Timestamp) -> Vec<Identifier> {
        let mut due = Vec::new();
        while self.by_time.first().is_some_and(|(end, _)| *end <= now) {
            if let Some((_, identifier)) = self.by_time.pop_first() {
                self.by_identifier.remove(&identifier);
                due.push(identifier);
            }
        }
        due
    }
}
