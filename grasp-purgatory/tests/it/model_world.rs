//! A model of the server around a purgatory: performs its outputs in order, and may lose power at any step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{
    Answer, Hold, Origin, Outcome, Policy, Rejection, SyncPath, Verdict, judge,
};
use grasp_core::nip34::Announcement;
use grasp_core::{Mono, Now, Oid, RepoId, Version, kinds};
use grasp_purgatory::{
    CleanupTask, Config, HoldOutcome, Input, Purgatory, PushTarget, Record, Stage, WakeCause,
};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;

use crate::model_disk::{Disk, hosted};
use crate::model_drive::Task;
use crate::model_events::{START, US, oid, verified};
use crate::model_queries::of;

/// The power was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PowerCut;

pub(crate) type StepResult<T = ()> = Result<T, PowerCut>;

pub(crate) struct World {
    pub(crate) policy: Policy,
    pub(crate) config: Config,
    pub(crate) now: Now,
    pub(crate) core: Purgatory,
    pub(crate) disk: Disk,
    /// Steps until the power is cut.
    pub(crate) steps_until_power_cut: Option<usize>,
    /// The stage that fails, and the number of failures.
    pub(crate) failing: Option<(Stage, usize)>,
    /// Number of tasks that fail before they succeed.
    pub(crate) failing_tasks: usize,
    /// Events that were acknowledged as held.
    pub(crate) acknowledged: BTreeMap<EventId, Arc<Event>>,
    pub(crate) published: Vec<EventId>,
    pub(crate) hunts: Vec<(RepoId, Option<Duration>)>,
    pub(crate) tasks_run: Vec<CleanupTask>,
    /// All inputs of the core and its outputs, if they are recorded.
    pub(crate) transcript: Option<Vec<(Now, Input, String)>>,
    pub(crate) tasks: VecDeque<Task>,
    /// Results of tasks that the core has not handled.
    pub(crate) results: VecDeque<Input>,
    /// Steps until the next action begins, if it interrupts this one.
    pub(crate) steps_left: Option<usize>,
    pub(crate) failed: bool,
    /// Only releases have changed the expected refs since the model was idle.
    pub(crate) is_settled: bool,
    pub(crate) answer: Option<HoldOutcome>,
    /// The event that is being held is from another relay.
    pub(crate) is_sync: bool,
    /// Events of clients that were answered as held, until it is told what became of them.
    pub(crate) undecided: BTreeSet<EventId>,
    /// What became of them.
    pub(crate) decisions: BTreeMap<EventId, HoldOutcome>,
    /// What became of the events of callers, by caller.
    pub(crate) settled: BTreeMap<u64, BTreeMap<EventId, HoldOutcome>>,
    /// Whether the upload for an event was kept.
    pub(crate) uploads: BTreeMap<EventId, bool>,
    /// Source of the order of tasks and results; the first comes first without one.
    pub(crate) seed: Option<u64>,
    pub(crate) offered: Option<Arc<Event>>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Config::default(), Policy::new(US.parse().unwrap()))
    }

    pub(crate) fn with(config: Config, policy: Policy) -> Self {
        let now = Now::new(Mono::ZERO, Timestamp::from_secs(START));
        Self {
            core: Purgatory::restore(config.clone(), policy.clone(), [], now),
            policy,
            config,
            now,
            disk: Disk::default(),
            steps_until_power_cut: None,
            failing: None,
            failing_tasks: 0,
            acknowledged: BTreeMap::new(),
            published: Vec::new(),
            hunts: Vec::new(),
            tasks_run: Vec::new(),
            transcript: None,
            tasks: VecDeque::new(),
            results: VecDeque::new(),
            steps_left: None,
            failed: false,
            is_settled: true,
            answer: None,
            is_sync: false,
            undecided: BTreeSet::new(),
            decisions: BTreeMap::new(),
            settled: BTreeMap::new(),
            uploads: BTreeMap::new(),
            seed: None,
            offered: None,
        }
    }

    // Actions of clients and servers.

    /// Handles an event of a client, and everything that follows at once.
    pub(crate) fn send(&mut self, event: &Arc<Event>) -> StepResult<Answer> {
        self.offer(event, Origin::anonymous())
    }

    /// Handles an event of another relay.
    pub(crate) fn sync(&mut self, event: &Arc<Event>) -> StepResult<Answer> {
        let relay = "wss://them.example".parse().unwrap();
        self.offer(
            event,
            Origin::Sync {
                relay,
                path: SyncPath::Live,
            },
        )
    }

    fn offer(&mut self, event: &Arc<Event>, origin: Origin) -> StepResult<Answer> {
        let facts = self.facts(event);
        let checked = verified(event);
        let verdict = judge(
            &self.policy,
            self.now.unix,
            &origin,
            checked.as_ref(),
            &facts,
        );
        let outcome = match verdict {
            // The store refuses deleted events, and holding asks it first.
            Verdict::Hold(_) | Verdict::Store { .. } if self.disk.store.refuses(event) => {
                Rejection::Deleted.into()
            }
            Verdict::Hold(hold) => self.hold(event, hold, origin)?,
            Verdict::Store { .. } => self.store_directly(event)?,
            Verdict::Delist { keep } => self.delist(event, keep)?,
            other => other.outcome(),
        };
        self.run()?;
        Ok(outcome.answer())
    }

    fn hold(&mut self, event: &Arc<Event>, hold: Hold, origin: Origin) -> StepResult<Outcome> {
        self.answer = None;
        self.is_sync = origin.is_sync();
        self.is_settled &= event.kind != kinds::ANNOUNCEMENT;
        self.offered = Some(event.clone());
        self.handle(Input::Held {
            event: event.clone(),
            hold,
            origin,
        })?;
        Ok(match self.answer.take() {
            Some(HoldOutcome::Held) => Outcome::Held,
            Some(HoldOutcome::Full) => Rejection::Quota.into(),
            Some(HoldOutcome::Superseded) => Outcome::Superseded,
            other => panic!("no answer for {event:?}: {other:?}"),
        })
    }

    /// Stores an event without purgatory: replacements, announcements for discovery, deletions.
    fn store_directly(&mut self, event: &Arc<Event>) -> StepResult<Outcome> {
        self.step()?;
        self.is_settled = false;
        if event.kind == kinds::DELETION {
            let affected = self.disk.delete(event);
            self.step()?;
            self.handle(Input::Deleted {
                request: event.clone(),
            })?;
            for repo in affected {
                self.step()?;
                self.handle(Input::Changed { repo: repo.clone() })?;
                self.wake(&repo)?;
            }
            return Ok(Outcome::Stored);
        }
        self.disk.store.save(event);
        self.step()?;
        if event.kind == kinds::ANNOUNCEMENT {
            self.announcement_stored(event)?;
        }
        Ok(Outcome::Stored)
    }

    fn announcement_stored(&mut self, event: &Event) -> StepResult {
        let repo = Announcement::parse(event).unwrap().repo;
        self.wake(&repo)?;
        self.handle(Input::Changed { repo })
    }

    /// Surveys the repositories that the announcement of this one may concern.
    fn wake(&mut self, repo: &RepoId) -> StepResult {
        for repo in self.concerned(repo, WakeCause::Announcement) {
            self.handle(Input::Changed { repo })?;
        }
        Ok(())
    }

    fn delist(&mut self, event: &Arc<Event>, keep: bool) -> StepResult<Outcome> {
        self.is_settled = false;
        let repo = Announcement::parse(event).unwrap().repo;
        if keep {
            self.disk.store.save(event);
        }
        self.disk.delist(event);
        self.step()?;
        self.handle(Input::Delisted {
            repo,
            by: Version::of(event),
        })?;
        if keep {
            self.announcement_stored(event)?;
        }
        Ok(Verdict::Delist { keep }.outcome())
    }

    /// Receives objects by a fetch for a repository.
    pub(crate) fn fetch(&mut self, repo: &RepoId, objects: &[u8]) -> StepResult {
        let repo = &self.resolve(repo);
        self.handle(Input::FetchStarted { repo: repo.clone() })?;
        self.receive(repo, objects.iter().map(|n| oid(*n)))?;
        self.handle(Input::FetchEnded { repo: repo.clone() })?;
        self.run()
    }

    /// Pushes exactly the refs of a held state as a maintainer; returns `false` if that is not allowed.
    pub(crate) fn push(&mut self, repo: &RepoId, event: &Event) -> StepResult<bool> {
        let repo = &self.resolve(repo);
        let candidates = self.core.candidates(repo, &self.maintainers(repo));
        let candidate = candidates
            .into_iter()
            .find(|c| c.state.version.id == event.id);
        let Some(state) = candidate
            .map(|c| c.state)
            .filter(|state| self.may_push(repo, state))
        else {
            return Ok(false);
        };
        let events = BTreeSet::from([event.id]);
        self.handle(Input::PushAuthorised {
            repo: repo.clone(),
            events,
        })?;
        self.receive(repo, state.tips().unwrap())?;
        self.handle(Input::Changed { repo: repo.clone() })?;
        self.run()?;
        Ok(true)
    }

    /// Pushes to `refs/nostr/<id>`, and returns whether the upload is kept.
    pub(crate) fn push_tip(&mut self, repo: &RepoId, id: EventId, tip: u8) -> StepResult<bool> {
        let repo = &self.resolve(repo);
        let tip = oid(tip);
        match self.core.tip_of(&id) {
            Some(wanted) if wanted != tip => return Ok(false),
            Some(_) => {
                self.receive(repo, [tip])?;
                self.handle(Input::Changed { repo: repo.clone() })?;
            }
            None if self.disk.store.contains(&id) => return Ok(false),
            None => {
                let target = PushTarget::Repository(repo.clone());
                self.disk.git.stage(id, tip, target.clone());
                self.step()?;
                self.handle(Input::PushStaged {
                    id,
                    tip,
                    target,
                    bytes: 100,
                    network: None,
                })?;
                let is_kept = self.uploads.remove(&id).expect("an answer");
                assert_eq!(is_kept, self.core.keeps_upload(&id, &tip));
                self.run()?;
                return Ok(self.core.keeps_upload(&id, &tip));
            }
        }
        self.run()?;
        Ok(true)
    }

    /// Returns the repository that is served at an address.
    fn resolve(&self, address: &RepoId) -> RepoId {
        let view = self.disk.git.view(&hosted(address));
        view.and_then(|view| view.shows)
            .map_or(address.clone(), |owner| of(owner, address))
    }

    fn receive(&mut self, to: &RepoId, objects: impl IntoIterator<Item = Oid>) -> StepResult {
        self.disk.git.repo_mut(&hosted(to)).objects.extend(objects);
        self.step()
    }

    /// Lets time pass, and handles every deadline on the way.
    pub(crate) fn wait(&mut self, length: Duration) -> StepResult {
        let end = self.now.after(length);
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end.mono) {
            self.now = self.now.after(due - self.now.mono);
            // Announcements expire.
            self.is_settled = false;
            self.handle(Input::Tick)?;
            self.run()?;
        }
        self.now = end;
        Ok(())
    }

    /// Ends the process and starts it again after a time.
    pub(crate) fn restart(&mut self, after: Duration) {
        self.steps_until_power_cut = None;
        self.now = self.now.after(after);
        self.steps_left = None;
        self.tasks.clear();
        self.results.clear();
        self.undecided.clear();
        self.core = self.replayed();
        self.check_always();
        self.disk.git.keep_staged(&self.core.staged());
        self.handle(Input::Started).unwrap();
        // Maintenance follows for everything that is served or on disk.
        let served = self.disk.store.of_kind(kinds::ANNOUNCEMENT);
        let served = served.map(|event| Announcement::parse(event).unwrap().repo);
        let on_disk = self.disk.git.repos.keys().map(|(_, repo)| repo.clone());
        let repos: BTreeSet<RepoId> = served.chain(on_disk).collect();
        for repo in repos {
            self.handle(Input::Changed { repo }).unwrap();
        }
        self.run().unwrap();
    }

    /// Returns the purgatory that the journal restores.
    pub(crate) fn replayed(&self) -> Purgatory {
        self.restored(self.disk.journal.clone())
    }

    /// Returns the purgatory that records restore.
    pub(crate) fn restored(&self, records: Vec<Record>) -> Purgatory {
        Purgatory::restore(self.config.clone(), self.policy.clone(), records, self.now)
    }
}
