//! A scripted world around a purgatory: performs what it wants done, in order, and may lose power at any moment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{
    Answer, Hold, Needs, Origin, Outcome, Policy, Rejection, SyncPath, Verdict, judge,
};
use grasp_core::nip34::Announcement;
use grasp_core::{Identifier, Mono, Now, Oid, RepoId, Version, kinds};
use grasp_purgatory::{
    CleanupTask, Config, HoldOutcome, Input, Purgatory, PushTarget, Record, Stage,
};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;

use crate::model_disk::Disk;
use crate::model_drive::Task;
use crate::model_events::{START, US, name, oid, verified};

/// The power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PowerCut;

pub(crate) type Powered<T = ()> = Result<T, PowerCut>;

pub(crate) struct World {
    pub(crate) policy: Policy,
    pub(crate) config: Config,
    pub(crate) now: Now,
    pub(crate) core: Purgatory,
    pub(crate) disk: Disk,
    /// How many more things happen before the power goes.
    pub(crate) fuse: Option<usize>,
    /// Which stage fails, how often.
    pub(crate) failing: Option<(Stage, usize)>,
    /// How many tasks fail before they succeed.
    pub(crate) failing_tasks: usize,
    /// What somebody was told is kept.
    pub(crate) promised: BTreeMap<EventId, Arc<Event>>,
    pub(crate) published: Vec<EventId>,
    pub(crate) hunts: Vec<(Identifier, Option<Duration>)>,
    pub(crate) tasks_run: Vec<CleanupTask>,
    /// Everything the core was told since it began, and what it answered; if anybody asked for it.
    pub(crate) transcript: Option<Vec<(Now, Input, String)>>,
    pub(crate) tasks: VecDeque<Task>,
    /// What tasks came to, and the core has not heard.
    pub(crate) news: VecDeque<Input>,
    /// How many more steps are taken before the world turns to something else.
    pub(crate) patience: Option<usize>,
    pub(crate) failed: bool,
    /// Nothing but releases has changed what is to be shown since nothing was under way.
    pub(crate) is_settled: bool,
    pub(crate) answer: Option<HoldOutcome>,
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
            fuse: None,
            failing: None,
            failing_tasks: 0,
            promised: BTreeMap::new(),
            published: Vec::new(),
            hunts: Vec::new(),
            tasks_run: Vec::new(),
            transcript: None,
            tasks: VecDeque::new(),
            news: VecDeque::new(),
            patience: None,
            failed: false,
            is_settled: true,
            answer: None,
            offered: None,
        }
    }

    // What people and servers do.

    /// A user sends an event; everything that follows from it at once follows.
    pub(crate) fn send(&mut self, event: &Arc<Event>) -> Powered<Answer> {
        self.offer(event, Origin::anonymous())
    }

    /// Another relay offers an event.
    pub(crate) fn sync(&mut self, event: &Arc<Event>) -> Powered<Answer> {
        let relay = "wss://them.example".parse().unwrap();
        self.offer(event, Origin::Sync { relay, path: SyncPath::Live })
    }

    fn offer(&mut self, event: &Arc<Event>, origin: Origin) -> Powered<Answer> {
        let facts = self.facts(event);
        let checked = verified(event);
        let verdict = judge(&self.policy, self.now.unix, &origin, checked.as_ref(), &facts);
        let outcome = match verdict {
            // The store itself is the gate for what was taken back, and holding asks it first.
            Verdict::Hold(_) | Verdict::Store { .. } if self.disk.store.is_deleted(event) => {
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

    fn hold(&mut self, event: &Arc<Event>, hold: Hold, origin: Origin) -> Powered<Outcome> {
        self.answer = None;
        self.is_settled &= event.kind != kinds::ANNOUNCEMENT;
        self.offered = Some(event.clone());
        self.turn(Input::Held { event: event.clone(), hold, origin })?;
        Ok(match self.answer.take() {
            Some(HoldOutcome::Held) => Outcome::Held,
            Some(HoldOutcome::Full) => Rejection::Quota.into(),
            Some(HoldOutcome::Superseded) => Outcome::Superseded,
            other => panic!("no answer for {event:?}: {other:?}"),
        })
    }

    /// What the relay does without purgatory: replacements, announcements for discovery, deletions.
    fn store_directly(&mut self, event: &Arc<Event>) -> Powered<Outcome> {
        self.spark()?;
        self.is_settled = false;
        if event.kind == kinds::DELETION {
            self.disk.delete(event);
            self.spark()?;
            self.turn(Input::Deleted { request: event.clone() })?;
            // The relay says so of every repository that a deletion touched; here it is any.
            for identifier in ["x", "y"] {
                self.turn(Input::Changed { identifier: name(identifier) })?;
            }
            return Ok(Outcome::Stored);
        }
        self.disk.store.save(event);
        self.spark()?;
        if let Some(identifier) = Needs::of(event).identifier {
            self.turn(Input::Changed { identifier })?;
        }
        Ok(Outcome::Stored)
    }

    fn delist(&mut self, event: &Arc<Event>, keep: bool) -> Powered<Outcome> {
        self.is_settled = false;
        let repo = Announcement::parse(event).unwrap().repo;
        let before = self.disk.store.version_at(event).map(|stored| stored.id);
        if keep {
            self.disk.store.save(event);
        } else if let Some(id) = before {
            self.disk.remove(&id);
        }
        self.spark()?;
        self.turn(Input::Delisted { repo, by: Version::of(event) })?;
        Ok(Verdict::Delist { keep }.outcome())
    }

    /// Objects come in by a fetch.
    pub(crate) fn fetch(&mut self, identifier: &str, objects: &[u8]) -> Powered {
        let identifier = name(identifier);
        self.turn(Input::FetchStarted { identifier: identifier.clone() })?;
        self.receive(&identifier, objects.iter().map(|n| oid(*n)))?;
        self.turn(Input::FetchEnded { identifier })?;
        self.run()
    }

    /// A maintainer pushes exactly what a state that is kept here declares; `false` if that is not allowed.
    pub(crate) fn push(&mut self, repo: &RepoId, event: &Event) -> Powered<bool> {
        let candidates = self.core.candidates(&repo.identifier);
        let candidate = candidates.into_iter().find(|c| c.state.version.id == event.id);
        let Some(state) = candidate.map(|c| c.state).filter(|state| self.may_push(repo, state))
        else {
            return Ok(false);
        };
        let events = BTreeSet::from([event.id]);
        self.turn(Input::PushAuthorised { repo: repo.clone(), events })?;
        self.receive(&repo.identifier, state.tips().unwrap())?;
        self.turn(Input::Changed { identifier: repo.identifier.clone() })?;
        self.run()?;
        Ok(true)
    }

    /// Somebody pushes to `refs/nostr/<id>`, and hears whether that is kept.
    pub(crate) fn push_tip(&mut self, repo: &RepoId, id: EventId, tip: u8) -> Powered<bool> {
        let tip = oid(tip);
        match self.core.tip_of(&id) {
            Some(wanted) if wanted != tip => return Ok(false),
            Some(_) => {
                self.receive(&repo.identifier, [tip])?;
                self.turn(Input::Changed { identifier: repo.identifier.clone() })?;
            }
            None if self.disk.store.contains(&id) => return Ok(false),
            None => {
                let target = PushTarget::Repository(repo.clone());
                self.disk.git.staging.entry(id).or_default().insert(tip, target.clone());
                self.spark()?;
                self.turn(Input::PushStaged { id, tip, target, bytes: 100, network: None })?;
                self.run()?;
                return Ok(self.core.keeps_upload(&id, &tip));
            }
        }
        self.run()?;
        Ok(true)
    }

    fn receive(&mut self, to: &Identifier, objects: impl IntoIterator<Item = Oid>) -> Powered {
        self.disk.git.objects.entry(to.clone()).or_default().extend(objects);
        self.spark()
    }

    /// Time passes, and whatever is due on the way happens.
    pub(crate) fn wait(&mut self, length: Duration) -> Powered {
        let end = self.now.after(length);
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end.mono) {
            self.now = self.now.after(due - self.now.mono);
            // Announcements expire.
            self.is_settled = false;
            self.turn(Input::Tick)?;
            self.run()?;
        }
        self.now = end;
        Ok(())
    }

    /// The process is gone, and comes back after a while.
    pub(crate) fn restart(&mut self, after: Duration) {
        self.fuse = None;
        self.now = self.now.after(after);
        self.patience = None;
        self.tasks.clear();
        self.news.clear();
        self.core = self.replayed();
        self.check_moment();
        self.disk.git.keep_staged(&self.core.staged());
        self.turn(Input::Started).unwrap();
        let served = self.disk.store.announcements(&["x", "y"].map(name).into());
        for event in served {
            let identifier = Announcement::parse(&event).unwrap().repo.identifier;
            self.turn(Input::Changed { identifier }).unwrap();
        }
        self.run().unwrap();
    }

    /// The purgatory that the journal amounts to.
    pub(crate) fn replayed(&self) -> Purgatory {
        self.restored(self.disk.journal.clone())
    }

    /// The purgatory that records amount to.
    pub(crate) fn restored(&self, records: Vec<Record>) -> Purgatory {
        Purgatory::restore(self.config.clone(), self.policy.clone(), records, self.now)
    }
}
