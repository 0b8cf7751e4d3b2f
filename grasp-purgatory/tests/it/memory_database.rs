//! A database in memory, whose commits are atomic and survive restarts of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Oid, RepoId};
use grasp_purgatory::database::{
    Addition, Commit, Committed, Conflict, Database, DatabaseError, DatabaseFuture, FamilyChange,
    FamilyRow, Forget, Generation, Pack, RetiredRef, View, ViewChange,
};
use grasp_purgatory::git::Refs;
use grasp_purgatory::{CleanupTask, Phase, PushTarget, Record};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;

/// A database whose next commit can be made to fail or to conflict.
#[derive(Debug, Default)]
pub(crate) struct MemoryDatabase {
    content: Mutex<Content>,
    fault: Mutex<CommitFault>,
}

/// A fault of the next commit.
#[derive(Debug, Default)]
enum CommitFault {
    #[default]
    None,
    /// The commit fails without effect.
    Failure,
    /// Another commit happens first.
    Earlier(Commit),
}

/// The committed data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    families: BTreeMap<(Endpoint, Identifier), FamilyRow>,
    retired: BTreeMap<(Endpoint, Identifier), Vec<RetiredRef>>,
    last_generation: u64,
    pub(crate) events: BTreeSet<EventId>,
    /// Events that are refused.
    pub(crate) refused: BTreeSet<EventId>,
    rows: Rows,
    additions: Vec<Addition>,
}

impl MemoryDatabase {
    /// Makes the next commit fail.
    pub(crate) fn fail_once(&self) {
        *self.fault.lock().unwrap() = CommitFault::Failure;
    }

    /// Puts a commit before the next one.
    pub(crate) fn put_before_next(&self, commit: Commit) {
        *self.fault.lock().unwrap() = CommitFault::Earlier(commit);
    }

    /// Refuses an event from now on.
    pub(crate) fn refuse(&self, id: EventId) {
        self.content().refused.insert(id);
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    /// Sets the refs of a view as they are given, whether their objects are here or not.
    pub(crate) fn set_refs(&self, repo: &RepoId, refs: Refs) {
        let row = self.content().family(Endpoint::Repository, &repo.identifier);
        let from = row.views.get(&repo.owner).map(|view| view.generation);
        let to = Some(Arc::new(refs));
        let mut change = FamilyChange::new(Endpoint::Repository, repo.identifier.clone());
        let (owner, retired) = (repo.owner, Vec::new());
        change.views.push(ViewChange { owner, from, to, state: None, retired });
        let commit = Commit { families: vec![change], ..Commit::default() };
        assert!(matches!(self.content().commit(&commit), Committed::Done { .. }));
    }

    fn commit_with_fault(&self, commit: &Commit) -> Result<Committed, DatabaseError> {
        match std::mem::take(&mut *self.fault.lock().unwrap()) {
            CommitFault::None => {}
            CommitFault::Failure => return Err(DatabaseError::Failed("a scripted failure".into())),
            CommitFault::Earlier(earlier) => {
                assert!(matches!(self.content().commit(&earlier), Committed::Done { .. }));
            }
        }
        Ok(self.content().commit(commit))
    }
}

impl Content {
    /// Performs all of a commit, or nothing.
    pub(crate) fn commit(&mut self, commit: &Commit) -> Committed {
        if let Some(conflict) = self.conflict(commit) {
            return Committed::Conflict(conflict);
        }
        commit.withdraw.iter().for_each(|id| _ = self.events.remove(id));
        self.events.extend(commit.save.iter().map(|event| event.id));
        commit.families.iter().for_each(|family| self.change(family));
        commit.records.iter().for_each(|record| self.rows.apply(record));
        self.additions.extend(commit.additions.iter().cloned());
        Committed::Done { affected: BTreeSet::new() }
    }

    fn conflict(&self, commit: &Commit) -> Option<Conflict> {
        for family in &commit.families {
            let row = self.family(family.endpoint, &family.identifier);
            for view in &family.views {
                if row.views.get(&view.owner).map(|view| view.generation) != view.from {
                    let repo = RepoId::new(view.owner, family.identifier.clone());
                    return Some(Conflict::Moved(family.endpoint, repo));
                }
            }
        }
        let ids = commit.save.iter().map(|event| event.id);
        let mut refused: BTreeSet<_> = ids.filter(|id| self.refused.contains(id)).collect();
        let saved: BTreeSet<_> = commit.save.iter().map(|event| event.id).collect();
        refused.extend(
            commit.require.iter().filter(|id| !saved.contains(id) && !self.events.contains(id)),
        );
        (!refused.is_empty()).then_some(Conflict::Refused(refused))
    }

    fn change(&mut self, change: &FamilyChange) {
        let key = (change.endpoint, change.identifier.clone());
        let mut row = self.families.remove(&key).unwrap_or_default();
        let mut retired_refs = self.retired.remove(&key).unwrap_or_default();
        for view in &change.views {
            for retired in &view.retired {
                retired_refs.retain(|it| (it.owner, it.tip) != (retired.owner, retired.tip));
                retired_refs.push(retired.clone());
            }
            let before = row.views.remove(&view.owner);
            if let Some(refs) = &view.to {
                self.last_generation += 1;
                let generation = Generation(self.last_generation);
                let (refs, state) = (refs.clone(), view.state);
                let number = before.map_or(self.last_generation, |before| before.number);
                row.views.insert(view.owner, View { refs, state, generation, number });
            }
        }
        let is_same =
            |one: &Pack, other: &Pack| (&one.name, one.is_attic) == (&other.name, other.is_attic);
        for pack in change.remove_packs.iter().chain(&change.add_packs) {
            row.packs.retain(|other| !is_same(pack, other));
        }
        row.packs.extend(change.add_packs.iter().cloned());
        row.verified.extend(change.verified.clone());
        row.verified.retain(|name, _| row.packs.iter().any(|pack| pack.name == *name));
        retired_refs.retain(|retired| match &change.forget {
            Forget::Nothing => true,
            Forget::Of(owner) => retired.owner != *owner,
            Forget::Before(time) => retired.since >= *time,
            Forget::Tips(tips) => !tips.contains(&retired.tip),
        });
        if change.is_collected {
            row.garbage = None;
        }
        row.garbage = row.garbage.max(change.garbage);
        if row != FamilyRow::default() {
            self.families.insert(key.clone(), row);
        }
        if !retired_refs.is_empty() {
            self.retired.insert(key, retired_refs);
        }
    }

    fn family(&self, endpoint: Endpoint, identifier: &Identifier) -> FamilyRow {
        self.families.get(&(endpoint, identifier.clone())).cloned().unwrap_or_default()
    }

    fn of(&self, endpoint: Endpoint) -> impl Iterator<Item = (&Identifier, &FamilyRow)> {
        let of_endpoint = self.families.iter().filter(move |((one, _), _)| *one == endpoint);
        of_endpoint.map(|((_, identifier), row)| (identifier, row))
    }

    fn identifiers(&self, endpoint: Endpoint) -> BTreeSet<Identifier> {
        let has_any = |row: &FamilyRow| !row.views.is_empty() || !row.packs.is_empty();
        let families = self.of(endpoint).filter(|(_, row)| has_any(row));
        let retired = self.retired.keys().filter(|(one, _)| *one == endpoint);
        let retired = retired.map(|(_, identifier)| identifier);
        families.map(|(identifier, _)| identifier).chain(retired).cloned().collect()
    }
}

fn answer<'a, T: Send + 'a>(value: T) -> DatabaseFuture<'a, T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl Database for MemoryDatabase {
    fn commit(&self, commit: Commit) -> DatabaseFuture<'_, Committed> {
        Box::pin(async move { self.commit_with_fault(&commit) })
    }

    fn view(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<View>> {
        answer(self.content().family(endpoint, &repo.identifier).views.remove(&repo.owner))
    }

    fn family(&self, endpoint: Endpoint, identifier: Identifier) -> DatabaseFuture<'_, FamilyRow> {
        answer(self.content().family(endpoint, &identifier))
    }

    fn retired(
        &self,
        endpoint: Endpoint,
        identifier: Identifier,
    ) -> DatabaseFuture<'_, Vec<RetiredRef>> {
        answer(self.content().retired.get(&(endpoint, identifier)).cloned().unwrap_or_default())
    }

    fn packs(
        &self,
        endpoint: Endpoint,
    ) -> DatabaseFuture<'_, BTreeMap<Identifier, BTreeSet<Pack>>> {
        let content = self.content();
        let families = content.of(endpoint).filter(|(_, row)| !row.packs.is_empty());
        answer(families.map(|(identifier, row)| (identifier.clone(), row.packs.clone())).collect())
    }

    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
        let content = self.content();
        let views = content.of(endpoint).flat_map(|(identifier, row)| {
            row.views.keys().map(|owner| RepoId::new(*owner, identifier.clone()))
        });
        answer(views.collect())
    }

    fn identifiers(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        answer(self.content().identifiers(endpoint))
    }

    fn existing(
        &self,
        endpoint: Endpoint,
        identifiers: BTreeSet<Identifier>,
    ) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        answer(&self.content().identifiers(endpoint) & &identifiers)
    }

    fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
        answer(self.content().rows.records())
    }

    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>> {
        let mut additions = self.content().additions.clone();
        additions.retain(|addition| addition.at >= since);
        answer(additions)
    }
}

/// The rows that records amount to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    held: BTreeMap<EventId, HeldRow>,
    staged: BTreeMap<(EventId, Oid, String), (PushTarget, u64, Timestamp)>,
    tasks: BTreeMap<String, CleanupTask>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldRow {
    event: Arc<Event>,
    phase: Phase,
    since: Timestamp,
    until: Timestamp,
}

impl Rows {
    pub(crate) fn apply(&mut self, record: &Record) {
        match record.clone() {
            Record::Held { event, phase, since, until } => {
                self.held.insert(event.id, HeldRow { event, phase, since, until });
            }
            Record::Moved { id, phase, until } => {
                if let Some(row) = self.held.get_mut(&id) {
                    (row.phase, row.until) = (phase, until);
                }
            }
            Record::Gone { id, .. } => _ = self.held.remove(&id),
            Record::Staged { id, tip, target, bytes, until } => {
                let key = (id, tip, target.upload_key());
                self.staged.insert(key, (target, bytes, until));
                let of_event = self.staged.iter_mut().filter(|((other, ..), _)| *other == id);
                of_event.for_each(|(_, row)| row.2 = until);
            }
            Record::Unstaged { id, keep } => {
                self.staged.retain(|(other, tip, _), _| *other != id || keep == Some(*tip));
            }
            Record::TaskAdded { task } => _ = self.tasks.insert(task.key(), task),
            Record::TaskDone { task } => self.tasks.retain(|_, pending| *pending != task),
        }
    }

    /// Returns records that lead to these rows.
    pub(crate) fn records(&self) -> Vec<Record> {
        let held = self.held.values().map(|row| Record::Held {
            event: row.event.clone(),
            phase: row.phase,
            since: row.since,
            until: row.until,
        });
        let staged = self.staged.iter().map(|((id, tip, _), (target, bytes, until))| {
            let (target, bytes, until) = (target.clone(), *bytes, *until);
            Record::Staged { id: *id, tip: *tip, target, bytes, until }
        });
        let tasks = self.tasks.values().map(|task| Record::TaskAdded { task: task.clone() });
        held.chain(staged).chain(tasks).collect()
    }
}
