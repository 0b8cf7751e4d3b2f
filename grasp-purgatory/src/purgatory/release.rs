//! The releases under way: one per repository, in a circle of survey and release. None of it outlives the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::{Mono, RepoId};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;

use super::held::HeldEvent;
use super::io::{HoldOutcome, Output, Outputs, RefsTarget, Stage, Survey, WakeCause};
use super::{CleanupTask, Purgatory, judge};

/// One survey with all that follows from it, and who waits for its end.
#[derive(Debug, Default)]
struct Pass {
    /// Events that were held before its survey and are not decided on.
    events: BTreeSet<EventId>,
    /// Callers that are told its end, each with the events that it asks about.
    callers: Vec<(u64, BTreeSet<EventId>)>,
    /// The events that callers ask about, as far as this pass found or made them stored.
    stored: BTreeSet<EventId>,
}

impl Pass {
    /// Notes which events that callers ask about are stored.
    fn note_stored<'a>(&mut self, events: impl IntoIterator<Item = &'a Arc<Event>>) {
        if self.callers.is_empty() {
            return;
        }
        for event in events {
            if self
                .callers
                .iter()
                .any(|(_, asked)| asked.contains(&event.id))
            {
                self.stored.insert(event.id);
            }
        }
    }
}

/// The work at one repository.
///
/// A crash loses nothing: events are held until they are served, and the survey after the restart finds the work again.
#[derive(Debug, Default)]
struct Release {
    /// The stage that was requested and has not ended, with the events that it stores.
    running: Option<(Stage, Vec<Arc<Event>>)>,
    /// The pass that runs.
    pass: Pass,
    /// The pass that follows, if something changed after the survey of the current one.
    next: Option<Pass>,
    /// Repositories to survey after the running release: they may copy what it brings.
    followers: BTreeSet<RepoId>,
    /// The running release decides about the addresses of the repository.
    changes_service: bool,
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
    by_repo: BTreeMap<RepoId, Release>,
    /// Events whose senders wait, with the repositories whose passes have not decided on them.
    undecided: BTreeMap<EventId, BTreeSet<RepoId>>,
    expirations: Expirations,
}

impl Releases {
    /// Requests a survey of a repository, now or as soon as the running stage has ended.
    pub(super) fn request(&mut self, out: &mut Outputs, repo: &RepoId) {
        let release = self.entry(repo);
        release.retry_at = None;
        match &release.running {
            None => {
                release.running = Some((Stage::Survey, Vec::new()));
                release.pass = release.next.take().unwrap_or_default();
                out.surveyed.insert(repo.clone());
                out.push(Output::Survey { repo: repo.clone() });
            }
            // A survey that this very call requested will see everything.
            Some((Stage::Survey, _)) if out.surveyed.contains(repo) => {}
            Some(_) => _ = release.next.get_or_insert_default(),
        }
    }

    /// Requests a survey, and tells a caller the end of the pass that sees everything that has happened so far. Later
    /// changes do not delay that.
    pub(super) fn settle(
        &mut self,
        out: &mut Outputs,
        repo: &RepoId,
        caller: u64,
        events: BTreeSet<EventId>,
    ) {
        self.request(out, repo);
        if let Some(pass) = self.pending_pass(repo) {
            pass.callers.push((caller, events));
        }
    }

    /// Tells what becomes of a held event, as soon as it is stored or dropped, or no pass under way at these repositories
    /// can release it.
    pub(super) fn decide(&mut self, out: &mut Outputs, id: EventId, repos: &BTreeSet<RepoId>) {
        if self.undecided.contains_key(&id) {
            return;
        }
        let mut deciding = BTreeSet::new();
        for repo in repos {
            if let Some(pass) = self.pending_pass(repo) {
                pass.events.insert(id);
                deciding.insert(repo.clone());
            }
        }
        if deciding.is_empty() {
            let outcome = HoldOutcome::Held;
            return out.push(Output::Decided { id, outcome });
        }
        self.undecided.insert(id, deciding);
    }

    /// Tells what became of an event, if that was not told.
    pub(super) fn decided(&mut self, out: &mut Outputs, id: EventId, outcome: HoldOutcome) {
        let Some(repos) = self.undecided.remove(&id) else {
            return;
        };
        for repo in &repos {
            let Some(release) = self.by_repo.get_mut(repo) else {
                continue;
            };
            release.pass.events.remove(&id);
            if let Some(next) = &mut release.next {
                next.events.remove(&id);
            }
        }
        out.push(Output::Decided { id, outcome });
    }

    /// Returns the pass that sees everything that has happened so far, if one runs or follows.
    fn pending_pass(&mut self, repo: &RepoId) -> Option<&mut Pass> {
        let release = self.by_repo.get_mut(repo)?;
        release.running.as_ref()?;
        match &mut release.next {
            Some(next) => Some(next),
            None => Some(&mut release.pass),
        }
    }

    /// Decides on the events of a pass that has ended and did not release them.
    fn pass_ended(&mut self, out: &mut Outputs, repo: &RepoId, pass: &Pass) {
        for id in &pass.events {
            let Some(repos) = self.undecided.get_mut(id) else {
                continue;
            };
            repos.remove(repo);
            if repos.is_empty() {
                self.decided(out, *id, HoldOutcome::Held);
            }
        }
    }

    fn entry(&mut self, repo: &RepoId) -> &mut Release {
        self.by_repo.entry(repo.clone()).or_default()
    }

    /// Returns whether an event is part of a release that is under way.
    pub(super) fn is_releasing(&self, id: &EventId) -> bool {
        let running = self
            .by_repo
            .values()
            .filter_map(|release| release.running.as_ref());
        running
            .flat_map(|(_, events)| events)
            .any(|event| event.id == *id)
    }

    /// Ends a stage if it is the running one, and returns its events.
    pub(super) fn stage_ended(&mut self, repo: &RepoId, stage: Stage) -> Option<Vec<Arc<Event>>> {
        let release = self.by_repo.get_mut(repo)?;
        release
            .running
            .take_if(|(running, _)| *running == stage)
            .map(|(_, events)| events)
    }

    /// Ends a stage that failed, to be tried again at this time. Returns the passes that end with it.
    fn stage_failed(&mut self, repo: &RepoId, stage: Stage, retry_at: Mono) -> Vec<Pass> {
        if self.stage_ended(repo, stage).is_none() {
            return Vec::new();
        }
        let release = self.entry(repo);
        release.retry_at = Some(retry_at);
        let mut failed = vec![std::mem::take(&mut release.pass)];
        if let Some(next) = &mut release.next {
            failed.push(std::mem::take(next));
        }
        failed
    }

    /// Sets refs and stores events.
    pub(super) fn release(
        &mut self,
        out: &mut Outputs,
        repo: &RepoId,
        refs: RefsTarget,
        events: Vec<Arc<Event>>,
        withdraw: Vec<EventId>,
    ) {
        // Objects that leave staging may complete other held events.
        if !refs.proposals.is_empty() {
            self.repeat(repo);
        }
        self.entry(repo).running = Some((Stage::Release, events.clone()));
        out.push(Output::Release {
            repo: repo.clone(),
            refs,
            events,
            withdraw,
        });
    }

    /// Makes the release that was begun a part of the pass.
    fn continue_pass(&mut self, repo: &RepoId, mut pass: Pass) {
        let release = self.entry(repo);
        let begun = std::mem::take(&mut release.pass);
        pass.events.extend(begun.events);
        pass.callers.extend(begun.callers);
        release.pass = pass;
    }

    /// Notes what follows from the next release.
    fn follow_up(&mut self, repo: &RepoId, followers: BTreeSet<RepoId>, changes_service: bool) {
        let release = self.entry(repo);
        release.followers = followers;
        release.changes_service = changes_service;
    }

    /// Returns whether the release that ended decides about the addresses of the repository.
    fn take_change_of_service(&mut self, repo: &RepoId) -> bool {
        let release = self.by_repo.get_mut(repo);
        release.is_some_and(|release| std::mem::take(&mut release.changes_service))
    }

    /// Takes the repositories to survey after a release.
    fn take_followers(&mut self, repo: &RepoId) -> BTreeSet<RepoId> {
        let release = self.by_repo.get_mut(repo);
        release
            .map(|release| std::mem::take(&mut release.followers))
            .unwrap_or_default()
    }

    /// Makes another pass follow the current one.
    pub(super) fn repeat(&mut self, repo: &RepoId) {
        self.entry(repo).next.get_or_insert_default();
    }

    /// Takes the pass out while its next step is decided on.
    fn take_pass(&mut self, repo: &RepoId) -> Pass {
        let release = self.by_repo.get_mut(repo);
        release
            .map(|release| std::mem::take(&mut release.pass))
            .unwrap_or_default()
    }

    /// Begins the next pass if something has changed since the survey of the one that ended.
    fn continue_with_next(&mut self, out: &mut Outputs, repo: &RepoId) {
        if self
            .by_repo
            .get(repo)
            .is_some_and(|release| release.next.is_some())
        {
            self.request(out, repo);
        }
        self.drop_if_idle(repo);
    }

    fn drop_if_idle(&mut self, repo: &RepoId) {
        if self.by_repo.get(repo).is_some_and(Release::is_idle) {
            self.by_repo.remove(repo);
        }
    }

    pub(super) fn fetch_started(&mut self, repo: &RepoId) {
        self.entry(repo).fetches += 1;
    }

    pub(super) fn fetch_ended(&mut self, out: &mut Outputs, repo: &RepoId) {
        let release = self.entry(repo);
        release.fetches = release.fetches.saturating_sub(1);
        self.request(out, repo);
    }

    /// Returns whether a fetch or a stage is under way.
    pub(super) fn is_busy(&self, repo: &RepoId) -> bool {
        self.by_repo.get(repo).is_some_and(Release::is_busy)
    }

    /// Requests surveys again after failures, and where a served event expired by its own tag.
    pub(super) fn retry(&mut self, out: &mut Outputs, now: Mono, unix: Timestamp) {
        let due = |release: &Release| release.retry_at.is_some_and(|at| at <= now);
        let releases = self.by_repo.iter().filter(|(_, release)| due(release));
        let mut repos: Vec<_> = releases.map(|(repo, _)| repo.clone()).collect();
        repos.extend(self.expirations.take_due(unix));
        repos.iter().for_each(|repo| self.request(out, repo));
    }

    pub(super) fn next_retry(&self) -> Option<Mono> {
        self.by_repo
            .values()
            .filter_map(|release| release.retry_at)
            .min()
    }

    pub(super) fn next_expiration(&self) -> Option<Timestamp> {
        self.expirations.by_time.first().map(|(end, _)| *end)
    }

    /// Notes the time of a git server's first answer to a hunt that waits for permits.
    pub(super) fn answered(&mut self, repo: &RepoId, at: Timestamp) {
        self.entry(repo).first_answer.get_or_insert(at);
    }

    /// Returns the time of the first answer, and forgets it.
    pub(super) fn take_first_answer(&mut self, repo: &RepoId) -> Option<Timestamp> {
        let first_answer = self.by_repo.get_mut(repo)?.first_answer.take();
        self.drop_if_idle(repo);
        first_answer
    }

    /// Notes the results of a survey that outlast it.
    pub(super) fn surveyed(&mut self, repo: &RepoId, survey: &Survey, now: Timestamp) {
        self.expirations.remove(repo);
        self.expirations.add(repo, survey.stored(), now);
    }

    pub(super) fn served(&mut self, repo: &RepoId, events: &[Arc<Event>], now: Timestamp) {
        self.expirations.add(repo, events, now);
    }
}

/// The circle of survey and release.
impl Purgatory {
    /// Ends a pass, tells what it decided, and begins the next if something has changed since its survey.
    fn end_pass(&mut self, out: &mut Outputs, repo: &RepoId, pass: Pass) {
        self.tell_end(out, repo, pass, true);
        self.releases.continue_with_next(out, repo);
    }

    /// Ends a stage that failed. The passes that wait for it fail with it: their data is served after a retry.
    pub(super) fn stage_failed(&mut self, out: &mut Outputs, repo: &RepoId, stage: Stage) {
        let retry_at = self.now.mono + self.config.retry_after;
        for pass in self.releases.stage_failed(repo, stage, retry_at) {
            self.tell_end(out, repo, pass, false);
        }
    }

    /// Tells the senders of events and the callers that wait for a pass what became of theirs.
    fn tell_end(&mut self, out: &mut Outputs, repo: &RepoId, pass: Pass, is_complete: bool) {
        self.releases.pass_ended(out, repo, &pass);
        for (caller, events) in pass.callers {
            let mut outcomes = BTreeMap::new();
            for id in events {
                if self.holds(&id) {
                    outcomes.insert(id, HoldOutcome::Held);
                } else if pass.stored.contains(&id) {
                    outcomes.insert(id, HoldOutcome::Stored);
                } else if is_complete {
                    outcomes.insert(id, HoldOutcome::Superseded);
                }
            }
            out.push(Output::Settled { caller, outcomes });
        }
    }

    /// Holds states that count again because their successors were deleted, if their objects are complete.
    fn hold_previous(&mut self, out: &mut Outputs, survey: &Survey) {
        for event in &survey.previous {
            if survey.complete.contains(&event.id) && self.held.get(&event.id).is_none() {
                self.held.hold(out, event, self.now.unix, self.hold_until());
            }
        }
    }

    pub(super) fn surveyed(&mut self, out: &mut Outputs, repo: &RepoId, survey: &Survey) {
        if self.releases.stage_ended(repo, Stage::Survey).is_none() {
            return self.releases.request(out, repo);
        }
        let mut pass = self.releases.take_pass(repo);
        pass.note_stored(survey.stored());
        self.releases.surveyed(repo, survey, self.now.unix);
        // Usually removed by now; but the hint may have been lost with the earlier run.
        for id in &survey.refused {
            self.drop_with_view(out, *id, true);
        }
        self.hold_previous(out, survey);
        let plan = judge::plan(
            &self.config,
            &self.policy,
            &self.held,
            &self.staging,
            repo,
            survey,
        );
        for id in &plan.gone {
            // The same event may have been stored on another way.
            if survey.stored().any(|event| event.id == *id) {
                self.releases.decided(out, *id, HoldOutcome::Stored);
            }
            self.drop_event(out, *id, false);
        }
        for id in &plan.strays {
            let keep = self.staging.tips(id);
            self.tasks
                .clear_proposal(out, *id, keep, [repo.clone()].into());
        }
        if plan.is_orphan {
            let task = CleanupTask::RemoveView {
                repo: repo.clone(),
                is_immediate: true,
            };
            self.tasks.add(out, task);
        }
        // Held before it is withdrawn: at no time is it lost.
        for event in &plan.withdraw {
            self.held.hold(out, event, self.now.unix, self.hold_until());
        }
        for id in &plan.authorised {
            self.held.authorise(*id);
        }
        for other in plan.releasing.iter().chain(&plan.left) {
            self.releases.request(out, other);
        }
        self.want(out, repo, plan.wanted);
        let mut withdraw: Vec<EventId> = plan.withdraw.iter().map(|event| event.id).collect();
        withdraw.extend(plan.outdated);
        if !plan.changes_refs && plan.store.is_empty() && withdraw.is_empty() {
            return self.end_pass(out, repo, pass);
        }
        self.releases
            .follow_up(repo, plan.followers, plan.changes_service);
        self.releases
            .release(out, repo, plan.refs, plan.store, withdraw);
        self.releases.continue_pass(repo, pass);
    }

    pub(super) fn released(
        &mut self,
        out: &mut Outputs,
        repo: &RepoId,
        refused: &BTreeSet<EventId>,
    ) {
        let Some(events) = self.releases.stage_ended(repo, Stage::Release) else {
            return;
        };
        let mut pass = self.releases.take_pass(repo);
        let followers = self.releases.take_followers(repo);
        let changes_service = self.releases.take_change_of_service(repo);
        if !refused.is_empty() {
            for id in refused {
                self.drop_event(out, *id, true);
            }
            self.releases.repeat(repo);
            return self.end_pass(out, repo, pass);
        }
        if changes_service {
            out.push(Output::Wake {
                repo: repo.clone(),
                cause: WakeCause::Announcement,
            });
        }
        for event in &events {
            self.drop_older(out, event.id);
            let repos = self.repos_of(&event.id);
            let announced = self.held.get(&event.id).and_then(HeldEvent::announcement);
            if let Some(announcement) = announced {
                // A survey that began while it was held has not read it from the store.
                let repo = announcement.repo.clone();
                out.push(Output::Wake {
                    repo,
                    cause: WakeCause::Announcement,
                });
            }
            // Its record was removed together with its release.
            self.held.released(event.id);
            self.event_ended(out, event.id, repos, false);
        }
        // Other repositories may show it, and copy its objects from here.
        for follower in followers {
            if follower != *repo {
                self.releases.request(out, &follower);
            }
            out.push(Output::Wake {
                repo: follower,
                cause: WakeCause::Content,
            });
        }
        self.releases.served(repo, &events, self.now.unix);
        pass.note_stored(&events);
        if !events.is_empty() {
            let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
            out.push(Output::Publish { events });
            for id in ids {
                self.releases.decided(out, id, HoldOutcome::Stored);
            }
        }
        self.end_pass(out, repo, pass);
    }

    /// Drops an event and the uploads that wait with it. Refs of a pull request that its author or the store has taken
    /// back may have been set by a push before.
    pub(super) fn drop_event(&mut self, out: &mut Outputs, id: EventId, is_taken_back: bool) {
        let Some(held) = self.held.get(&id) else {
            return;
        };
        let may_have_refs = is_taken_back && held.proposal().is_some();
        let tips = held.tips();
        let announced = held
            .announcement()
            .map(|announcement| announcement.repo.clone());
        let repos = self.repos_of(&id);
        let hunters = self.wanted.hunters(&id);
        self.held.remove(out, id);
        self.releases.decided(out, id, HoldOutcome::Superseded);
        if is_taken_back && !tips.is_empty() {
            let repos = &repos | &hunters;
            self.tasks
                .add(out, CleanupTask::ClearObjects { id, tips, repos });
        }
        self.event_ended(out, id, repos, may_have_refs);
        if let Some(repo) = announced {
            out.push(Output::Wake {
                repo,
                cause: WakeCause::Announcement,
            });
        }
    }

    /// Drops the uploads of an event that is no longer held.
    fn event_ended(
        &mut self,
        out: &mut Outputs,
        id: EventId,
        repos: BTreeSet<RepoId>,
        may_have_refs: bool,
    ) {
        self.wanted.forget(&id);
        if self.staging.remove(out, id, None) || may_have_refs {
            self.tasks.clear_proposal(out, id, BTreeSet::new(), repos);
        }
    }

    /// Drops an event and the view that only it asks for.
    pub(super) fn drop_with_view(&mut self, out: &mut Outputs, id: EventId, is_taken_back: bool) {
        let announcement = self.held.get(&id).and_then(HeldEvent::announcement);
        let repo = announcement.map(|announcement| announcement.repo.clone());
        self.drop_event(out, id, is_taken_back);
        if let Some(repo) = repo {
            self.tasks.add(
                out,
                CleanupTask::RemoveView {
                    repo,
                    is_immediate: true,
                },
            );
        }
    }

    /// Drops the states that lost to a newer one of their author, which is served now.
    fn drop_older(&mut self, out: &mut Outputs, served: EventId) {
        let Some(held) = self.held.get(&served) else {
            return;
        };
        let Some(state) = held.state() else { return };
        let version = held.version();
        let older = self
            .held
            .states(&state.repo)
            .filter(|state| state.version() < version);
        let older: Vec<_> = older.map(HeldEvent::id).collect();
        for id in older {
            self.drop_event(out, id, false);
        }
    }
}

/// The next NIP-40 expiration of a served event of each repository that has one: then its refs must be removed.
#[derive(Debug, Default)]
struct Expirations {
    by_repo: BTreeMap<RepoId, Timestamp>,
    by_time: BTreeSet<(Timestamp, RepoId)>,
}

impl Expirations {
    fn remove(&mut self, repo: &RepoId) {
        if let Some(end) = self.by_repo.remove(repo) {
            self.by_time.remove(&(end, repo.clone()));
        }
    }

    /// Adds served events. Those that have already expired are skipped.
    fn add<'a>(
        &mut self,
        repo: &RepoId,
        events: impl IntoIterator<Item = &'a Arc<Event>>,
        now: Timestamp,
    ) {
        let ends = events
            .into_iter()
            .filter_map(|event| event.tags.expiration());
        let Some(end) = ends.filter(|end| *end > now).min() else {
            return;
        };
        if self.by_repo.get(repo).is_none_or(|before| end < *before) {
            self.remove(repo);
            self.by_repo.insert(repo.clone(), end);
            self.by_time.insert((end, repo.clone()));
        }
    }

    /// Removes and returns the repositories with an expired event; the survey that follows adds them again.
    fn take_due(&mut self, now: Timestamp) -> Vec<RepoId> {
        let mut due = Vec::new();
        while self.by_time.first().is_some_and(|(end, _)| *end <= now) {
            if let Some((_, repo)) = self.by_time.pop_first() {
                self.by_repo.remove(&repo);
                due.push(repo);
            }
        }
        due
    }
}
