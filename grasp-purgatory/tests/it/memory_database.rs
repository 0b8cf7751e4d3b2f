//! A database in memory, whose commits are atomic and survive restarts of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use grasp_core::quota::QuotaSubject;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RepoId};
use grasp_purgatory::database::{
    Addition, Commit, Committed, Conflict, Database, DatabaseError, DatabaseFuture, Forget,
    Generation, MaintainerChanges, Pack, ProposalChanges, RepoChange, RepoRow, RetiredRef, View,
    ViewChange, ViewHead,
};
use grasp_purgatory::git::Refs;
use grasp_purgatory::{CleanupTask, Phase, PushTarget, Record};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use tokio::sync::oneshot;

/// A database whose next commit can be made to fail or to conflict.
#[derive(Debug, Default)]
pub(crate) struct MemoryDatabase {
    content: Mutex<Content>,
    fault: Mutex<CommitFault>,
    gate: Mutex<Option<Gate>>,
    /// Times that the refs of a repository were read.
    reads_of_refs: AtomicUsize,
}

/// What a commit tells when it begins, and then waits for.
type Gate = (oneshot::Sender<()>, oneshot::Receiver<()>);

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
    repos: BTreeMap<(Endpoint, RepoId), RepoRow>,
    retired: BTreeMap<(Endpoint, RepoId), Vec<RetiredRef>>,
    last_generation: u64,
    pub(crate) events: BTreeSet<EventId>,
    /// Events that are refused.
    pub(crate) refused: BTreeSet<EventId>,
    rows: Rows,
    additions: Vec<Addition>,
    quotas: BTreeMap<QuotaSubject, u64>,
}

impl MemoryDatabase {
    /// Makes the next commit fail.
    pub(crate) fn fail_once(&self) {
        *self.fault.lock().unwrap() = CommitFault::Failure;
    }

    /// Holds the next commit: the first end tells that it has begun, the second lets it go on.
    pub(crate) fn hold_next(&self) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let (begun, has_begun) = oneshot::channel();
        let (proceed, may_proceed) = oneshot::channel();
        *self.gate.lock().unwrap() = Some((begun, may_proceed));
        (has_begun, proceed)
    }

    /// Puts a commit before the next one.
    pub(crate) fn put_before_next(&self, commit: Commit) {
        *self.fault.lock().unwrap() = CommitFault::Earlier(commit);
    }

    /// Refuses an event from now on.
    pub(crate) fn refuse(&self, id: EventId) {
        self.content().refused.insert(id);
    }

    #[cfg(feature = "object-store")]
    pub(crate) fn reads_of_refs(&self) -> usize {
        self.reads_of_refs.load(Ordering::SeqCst)
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    /// Sets the refs of a view as they are given, whether their objects are here or not.
    pub(crate) fn set_refs(&self, repo: &RepoId, refs: Refs) {
        let before = self.content().row(Endpoint::Repository, repo).view;
        let mut change = RepoChange::new(Endpoint::Repository, repo.clone());
        change.view = Some(ViewChange {
            from: before.as_ref().map(|view| view.generation),
            state: None,
            maintainers: BTreeSet::new(),
            shows: None,
            retired: Vec::new(),
            maintained: MaintainerChanges::between(before.as_ref(), &BTreeSet::new(), None),
            proposals: ProposalChanges::between(&before.unwrap_or_default().refs, &refs),
            to: Some(Arc::new(refs)),
        });
        let commit = Commit {
            repos: vec![change],
            ..Commit::default()
        };
        assert!(matches!(
            self.content().commit(&commit),
            Committed::Done { .. }
        ));
    }

    fn commit_with_fault(&self, commit: &Commit) -> Result<Committed, DatabaseError> {
        match std::mem::take(&mut *self.fault.lock().unwrap()) {
            CommitFault::None => {}
            CommitFault::Failure => return Err(DatabaseError::Failed("a scripted failure".into())),
            CommitFault::Earlier(earlier) => {
                assert!(matches!(
                    self.content().commit(&earlier),
                    Committed::Done { .. }
                ));
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
        commit
            .withdraw
            .iter()
            .for_each(|id| _ = self.events.remove(id));
        self.events.extend(commit.save.iter().map(|event| event.id));
        commit.repos.iter().for_each(|change| self.change(change));
        commit
            .records
            .iter()
            .for_each(|record| self.rows.apply(record));
        self.additions.extend(commit.additions.iter().cloned());
        for change in &commit.quotas {
            match change.bytes {
                Some(bytes) => _ = self.quotas.insert(change.subject.clone(), bytes),
                None => _ = self.quotas.remove(&change.subject),
            }
        }
        Committed::Done {
            affected: BTreeSet::new(),
            removed: BTreeSet::new(),
        }
    }

    fn conflict(&self, commit: &Commit) -> Option<Conflict> {
        for change in &commit.repos {
            let Some(view) = &change.view else { continue };
            let present = self.row(change.endpoint, &change.repo).view;
            if present.map(|view| view.generation) != view.from {
                return Some(Conflict::Moved(change.endpoint, change.repo.clone()));
            }
        }
        let ids = commit.save.iter().map(|event| event.id);
        let mut refused: BTreeSet<_> = ids.filter(|id| self.refused.contains(id)).collect();
        let saved: BTreeSet<_> = commit.save.iter().map(|event| event.id).collect();
        refused.extend(
            commit
                .require
                .iter()
                .filter(|id| !saved.contains(id) && !self.events.contains(id)),
        );
        (!refused.is_empty()).then_some(Conflict::Refused(refused))
    }

    fn change(&mut self, change: &RepoChange) {
        let key = (change.endpoint, change.repo.clone());
        let mut row = self.repos.remove(&key).unwrap_or_default();
        let mut retired_refs = self.retired.remove(&key).unwrap_or_default();
        if let Some(view) = &change.view {
            for retired in &view.retired {
                retired_refs.retain(|it| it.tip != retired.tip);
                retired_refs.push(retired.clone());
            }
            let before = row.view.take();
            let maintained =
                MaintainerChanges::between(before.as_ref(), &view.maintainers, view.shows);
            assert_eq!(view.maintained, maintained);
            let before = before.unwrap_or_default();
            let after = view.to.clone().unwrap_or_default();
            // The tables of refs of pull requests and of maintainers are kept by these alone.
            assert_eq!(
                view.proposals,
                ProposalChanges::between(&before.refs, &after)
            );
            if let Some(refs) = view.to.clone() {
                self.last_generation += 1;
                row.view = Some(View {
                    refs,
                    state: view.state,
                    generation: Generation(self.last_generation),
                    maintainers: view.maintainers.clone(),
                    shows: view.shows,
                });
            }
        }
        for pack in change.remove_packs.iter().chain(&change.add_packs) {
            row.packs.retain(|other| other.name != pack.name);
        }
        row.packs.extend(change.add_packs.iter().cloned());
        row.verified.extend(change.verified.clone());
        row.verified
            .retain(|name, _| row.packs.iter().any(|pack| pack.name == *name));
        retired_refs.retain(|retired| match &change.forget {
            Forget::Nothing => true,
            Forget::All => false,
            Forget::Before(time) => retired.since >= *time,
            Forget::Tips(tips) => !tips.contains(&retired.tip),
        });
        retired_refs.sort();
        if change.is_collected {
            row.garbage = None;
        }
        row.garbage = row.garbage.max(change.garbage);
        if row != RepoRow::default() {
            self.repos.insert(key.clone(), row);
        }
        if !retired_refs.is_empty() {
            self.retired.insert(key, retired_refs);
        }
    }

    fn row(&self, endpoint: Endpoint, repo: &RepoId) -> RepoRow {
        self.repos
            .get(&(endpoint, repo.clone()))
            .cloned()
            .unwrap_or_default()
    }

    fn of(&self, endpoint: Endpoint) -> impl Iterator<Item = (&RepoId, &RepoRow)> {
        let of_endpoint = self
            .repos
            .iter()
            .filter(move |((one, _), _)| *one == endpoint);
        of_endpoint.map(|((_, repo), row)| (repo, row))
    }

    fn all(&self, endpoint: Endpoint) -> BTreeSet<RepoId> {
        let has_any = |row: &RepoRow| row.view.is_some() || !row.packs.is_empty();
        let repos = self
            .of(endpoint)
            .filter(|(_, row)| has_any(row))
            .map(|(repo, _)| repo);
        let retired = self.retired.keys().filter(|(one, _)| *one == endpoint);
        repos
            .chain(retired.map(|(_, repo)| repo))
            .cloned()
            .collect()
    }
}

fn answer<'a, T: Send + 'a>(value: T) -> DatabaseFuture<'a, T> {
    Box::pin(std::future::ready(Ok(value)))
}

impl Database for MemoryDatabase {
    fn commit(&self, commit: Commit) -> DatabaseFuture<'_, Committed> {
        Box::pin(async move {
            let gate = self.gate.lock().unwrap().take();
            if let Some((begun, proceed)) = gate {
                begun.send(()).unwrap();
                proceed.await.unwrap();
            }
            self.commit_with_fault(&commit)
        })
    }

    fn view(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<View>> {
        self.reads_of_refs.fetch_add(1, Ordering::SeqCst);
        answer(self.content().row(endpoint, &repo).view)
    }

    fn view_head(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<ViewHead>> {
        let view = self.content().row(endpoint, &repo).view;
        answer(view.map(|view| ViewHead {
            generation: view.generation,
            state: view.state,
            shows: view.shows,
        }))
    }

    fn row(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, RepoRow> {
        self.reads_of_refs.fetch_add(1, Ordering::SeqCst);
        answer(self.content().row(endpoint, &repo))
    }

    fn packs_of(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, BTreeSet<Pack>> {
        answer(self.content().row(endpoint, &repo).packs)
    }

    fn retired(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Vec<RetiredRef>> {
        answer(
            self.content()
                .retired
                .get(&(endpoint, repo))
                .cloned()
                .unwrap_or_default(),
        )
    }

    fn packs(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeMap<RepoId, BTreeSet<Pack>>> {
        let content = self.content();
        let repos = content
            .of(endpoint)
            .filter(|(_, row)| !row.packs.is_empty());
        answer(
            repos
                .map(|(repo, row)| (repo.clone(), row.packs.clone()))
                .collect(),
        )
    }

    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
        let content = self.content();
        let served = content.of(endpoint).filter(|(_, row)| row.view.is_some());
        answer(served.map(|(repo, _)| repo.clone()).collect())
    }

    fn maintained(
        &self,
        endpoint: Endpoint,
        repo: RepoId,
        most: usize,
    ) -> DatabaseFuture<'_, Vec<PublicKey>> {
        let content = self.content();
        let mut owners = Vec::new();
        for (other, row) in content.of(endpoint) {
            let view = row.view.iter().find(|view| view.shows.is_none());
            if other.identifier == repo.identifier
                && view.is_some_and(|view| view.maintainers.contains(&repo.owner))
            {
                owners.push(other.owner);
            }
        }
        owners.truncate(most);
        answer(owners)
    }

    fn all(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<RepoId>> {
        answer(self.content().all(endpoint))
    }

    fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
        answer(self.content().rows.records())
    }

    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>> {
        let mut additions = self.content().additions.clone();
        additions.retain(|addition| addition.at >= since);
        answer(additions)
    }

    fn quotas(&self) -> DatabaseFuture<'_, BTreeMap<QuotaSubject, u64>> {
        answer(self.content().quotas.clone())
    }

    fn git_usage(&self, owner: Option<PublicKey>) -> DatabaseFuture<'_, BTreeMap<RepoId, u64>> {
        let mut usage: BTreeMap<RepoId, u64> = BTreeMap::new();
        for ((_, repo), row) in &self.content().repos {
            if owner.is_none_or(|owner| owner == repo.owner) && !row.packs.is_empty() {
                let bytes: u64 = row.packs.iter().map(|pack| pack.bytes).sum();
                *usage.entry(repo.clone()).or_default() += bytes;
            }
        }
        answer(usage)
    }

    fn git_bytes(&self) -> DatabaseFuture<'_, u64> {
        let content = self.content();
        let packs = content.repos.values().flat_map(|row| &row.packs);
        answer(packs.map(|pack| pack.bytes).sum())
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
            Record::Held {
                event,
                phase,
                since,
                until,
            } => {
                self.held.insert(
                    event.id,
                    HeldRow {
                        event,
                        phase,
                        since,
                        until,
                    },
                );
            }
            Record::Moved { id, phase, until } => {
                if let Some(row) = self.held.get_mut(&id) {
                    (row.phase, row.until) = (phase, until);
                }
            }
            Record::Gone { id } => _ = self.held.remove(&id),
            Record::Staged {
                id,
                tip,
                target,
                bytes,
                until,
            } => {
                let key = (id, tip, target.upload_key());
                self.staged.insert(key, (target, bytes, until));
                let of_event = self
                    .staged
                    .iter_mut()
                    .filter(|((other, ..), _)| *other == id);
                of_event.for_each(|(_, row)| row.2 = until);
            }
            Record::Unstaged { id, keep } => {
                self.staged
                    .retain(|(other, tip, _), _| *other != id || keep == Some(*tip));
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
        let staged = self
            .staged
            .iter()
            .map(|((id, tip, _), (target, bytes, until))| {
                let (target, bytes, until) = (target.clone(), *bytes, *until);
                Record::Staged {
                    id: *id,
                    tip: *tip,
                    target,
                    bytes,
                    until,
                }
            });
        let tasks = self
            .tasks
            .values()
            .map(|task| Record::TaskAdded { task: task.clone() });
        held.chain(staged).chain(tasks).collect()
    }
}
