//! The releases under way: one per identifier, in a circle of survey and release. None of it outlives the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::{Identifier, Mono, Oid, RepoId};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::io::{Output, Outputs, ProposalRef, Record, Report, Stage, Survey, ViewTarget};

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
    pub(super) fn stage_failed(
        &mut self,
        out: &mut Outputs,
        identifier: &Identifier,
        stage: Stage,
        retry_at: Mono,
    ) {
        if self.stage_ended(identifier, stage).is_some() {
            self.entry(identifier).retry_at = Some(retry_at);
            let identifier = identifier.clone();
            out.push(Output::Report(Report::StageFailed { identifier, stage }));
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

/// An idempotent change of git data that stays pending until it is done, also across a crash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub enum CleanupTask {
    /// Create an empty view for a repository, unless it has one.
    CreateView { repo: RepoId },
    /// Take a view out of service, into retention.
    ///
    /// To be checked again under the lock of the family: the view stays if a stored announcement asks for it.
    RemoveView {
        repo: RepoId,
        /// Removes the view although a push to it is under way, which then fails: its owner withdrew it. Without it
        /// the task fails during a push: the announcement only expired.
        #[serde(default)]
        at_once: bool,
    },
    /// Remove from staging all tips of a pull request but those in `keep`, and `refs/nostr/<id>` from every view of
    /// these identifiers where it is neither one of these nor the tip of a stored event of that id.
    ClearProposal {
        id: EventId,
        keep: BTreeSet<Oid>,
        #[serde(default)]
        names: BTreeSet<Identifier>,
    },
}

/// The object of a task. Each has at most one pending task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TaskTarget {
    View(RepoId),
    Proposal(EventId),
}

impl CleanupTask {
    /// Returns the key of what the task is about. A task takes the place of the pending one with its key.
    pub fn key(&self) -> String {
        match self.target() {
            TaskTarget::View(repo) => format!("view {repo}"),
            TaskTarget::Proposal(id) => format!("proposal {id}"),
        }
    }

    fn target(&self) -> TaskTarget {
        match self {
            Self::CreateView { repo } | Self::RemoveView { repo, .. } => {
                TaskTarget::View(repo.clone())
            }
            Self::ClearProposal { id, .. } => TaskTarget::Proposal(*id),
        }
    }
}

/// The pending tasks.
#[derive(Debug, Default)]
pub(super) struct CleanupTasks {
    pending: BTreeMap<TaskTarget, CleanupTask>,
    /// Time at which failed tasks are tried again.
    pub(super) retry_at: Option<Mono>,
}

impl CleanupTasks {
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::TaskAdded { task } => _ = self.pending.insert(task.target(), task.clone()),
            Record::TaskDone { task } if self.is_pending(task) => {
                self.pending.remove(&task.target());
            }
            _ => {}
        }
    }

    fn record(&mut self, out: &mut Outputs, record: Record) {
        self.apply(&record);
        out.write(record);
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &CleanupTask> {
        self.pending.values()
    }

    fn is_pending(&self, task: &CleanupTask) -> bool {
        self.pending.get(&task.target()) == Some(task)
    }

    /// Adds a task in place of the pending one with the same target, and runs it.
    pub(super) fn add(&mut self, out: &mut Outputs, task: CleanupTask) {
        if !self.is_pending(&task) {
            self.drop_conflicting(out, &task.target());
            self.record(out, Record::TaskAdded { task: task.clone() });
        }
        out.push(Output::RunTask(task));
    }

    /// Clears a pull request but for the tips to keep, also under the names of the pending task for it.
    pub(super) fn clear_proposal(
        &mut self,
        out: &mut Outputs,
        id: EventId,
        keep: BTreeSet<Oid>,
        mut names: BTreeSet<Identifier>,
    ) {
        let pending = self.pending.get(&TaskTarget::Proposal(id));
        if let Some(CleanupTask::ClearProposal { names: more, .. }) = pending {
            names.extend(more.iter().cloned());
        }
        self.add(out, CleanupTask::ClearProposal { id, keep, names });
    }

    /// Drops the pending task of a target: repeated later, it would undo what is done now.
    pub(super) fn drop_conflicting(&mut self, out: &mut Outputs, target: &TaskTarget) {
        if let Some(task) = self.pending.get(target).cloned() {
            self.record(out, Record::TaskDone { task });
        }
    }

    pub(super) fn done(&mut self, out: &mut Outputs, task: CleanupTask) {
        if self.is_pending(&task) {
            self.record(out, Record::TaskDone { task });
        }
    }

    pub(super) fn failed(&mut self, out: &mut Outputs, task: CleanupTask, retry_at: Mono) {
        self.retry_at = Some(retry_at);
        out.push(Output::Report(Report::TaskFailed { task }));
    }

    pub(super) fn run_all(&self, out: &mut Outputs) {
        self.iter().for_each(|task| out.push(Output::RunTask(task.clone())));
    }

    /// Runs the pending tasks if it is time to try failed ones again.
    pub(super) fn retry(&mut self, out: &mut Outputs, now: Mono) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.run_all(out);
        }
    }
}
