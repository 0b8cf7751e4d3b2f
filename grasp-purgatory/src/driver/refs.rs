//! Refs, changed as purgatory decides: those of a repository, and those of the repositories of contributors (GRASP-06),
//! which contain nothing but their pull requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::deletion::vanishes_from;
use grasp_core::nip34::{Announcement, Proposal};
use grasp_core::push::PushCommand;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId, kinds};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use parking_lot::Mutex;

use super::queue::Executor;
use crate::active_work::ActiveWork;
use crate::database::{Commit, Committed, Conflict, Garbage, RepoChange};
use crate::git::{GitError, Keep, RefTarget, RepoGuard, RepoStore, WantedRefs};
use crate::purgatory::Record;
use crate::{CleanupTask, Input, ProposalRef, RefsTarget, StateTarget};

/// Tips that are remembered as unavailable.
const MAX_UNAVAILABLE: usize = 10_000;

/// Attempts to commit a release while other releases change the same repositories.
const MAX_ATTEMPTS: usize = 8;

/// The refs that repositories shall have.
type AllWanted = BTreeMap<(Endpoint, RepoId), WantedRefs>;

impl Executor {
    /// Sets refs, and stores and withdraws events; returns the end of that.
    pub(super) async fn release(
        &self,
        repo: RepoId,
        refs: RefsTarget,
        events: Vec<Arc<Event>>,
        withdraw: Vec<EventId>,
    ) -> Input {
        let released = self.try_release(&repo, refs, &events, withdraw).await;
        self.collect_removed(&repo).await;
        match released {
            Ok(refused) => Input::Released { repo, refused },
            Err(error) => {
                tracing::error!(%error, %repo, "refs could not be set and events not be stored");
                Input::ReleaseFailed { repo }
            }
        }
    }

    /// Does so in one transaction. Returns the events that the store refuses; then nothing has changed.
    async fn try_release(
        &self,
        repo: &RepoId,
        refs: RefsTarget,
        events: &[Arc<Event>],
        withdraw: Vec<EventId>,
    ) -> Result<BTreeSet<EventId>, GitError> {
        // Between staging and its ref, nothing refers to the objects of a pull request.
        let mut work = Vec::new();
        for (_, place) in refs.proposals.iter().flat_map(|proposal| &proposal.places) {
            work.push(self.active_work.begin(place));
        }
        let wanted = self.wanted_refs(repo, &refs).await?;
        let states = wanted
            .values()
            .filter_map(|wanted| wanted.target.as_ref()?.state);
        let require: Vec<_> = states
            .chain(refs.proposals.iter().map(|it| it.id))
            .collect();
        let records: Vec<Record> = events
            .iter()
            .map(|event| Record::Gone { id: event.id })
            .collect();
        for _ in 0..MAX_ATTEMPTS {
            let commit = Commit {
                save: events.to_vec(),
                require: require.clone(),
                withdraw: withdraw.clone(),
                repos: self.plan(&wanted).await?,
                records: records.clone(),
                now: self.parts.relay.now().unix,
                ..Commit::default()
            };
            match self.commit(commit).await? {
                Committed::Done { affected, removed } => {
                    self.parts.relay.removed(removed).await;
                    for proposal in &refs.proposals {
                        self.unavailable.forget_tip(proposal.tip);
                    }
                    self.wake_affected(affected).await;
                    return Ok(BTreeSet::new());
                }
                Committed::Conflict(Conflict::Refused(refused)) => return Ok(refused),
                // A push has set the ref of a pull request meanwhile.
                Committed::Conflict(Conflict::Moved(..)) => {}
            }
        }
        Err(GitError::Outdated)
    }

    /// Returns the wanted refs of the repository and of contributors, after staged objects were taken in.
    async fn wanted_refs(&self, repo: &RepoId, refs: &RefsTarget) -> Result<AllWanted, GitError> {
        let mut wanted = AllWanted::new();
        let own = wanted
            .entry((Endpoint::Repository, repo.clone()))
            .or_default();
        own.maintainers = Some(refs.maintainers.clone());
        own.shows = refs.shows;
        own.target = match &refs.state {
            StateTarget::Unchanged => None,
            StateTarget::Nothing => Some(RefTarget::default()),
            StateTarget::Show(state) => {
                let target = RefTarget::of(state);
                Some(target.ok_or(GitError::Incomplete {
                    count: state.refs.len(),
                })?)
            }
        };
        for proposal in &refs.proposals {
            for place in self.take_staged(proposal).await? {
                let refs = wanted.entry(place).or_default();
                refs.proposals.insert(proposal.id, proposal.tip);
            }
        }
        Ok(wanted)
    }

    /// Takes the objects of a pull request out of staging. Returns the places that have them.
    ///
    /// Only one lock is held at a time, since another queue may hold the other.
    async fn take_staged(
        &self,
        proposal: &ProposalRef,
    ) -> Result<Vec<(Endpoint, RepoId)>, GitError> {
        let mut ready = Vec::new();
        for (endpoint, repo) in &proposal.places {
            let Some(store) = self.parts.store_of(*endpoint) else {
                continue;
            };
            let mut guard = store.lock(repo).await?;
            guard.promote_staged(proposal.id, proposal.tip).await?;
            if guard
                .check(&BTreeSet::from([proposal.tip]))
                .await?
                .is_complete()
            {
                ready.push((*endpoint, repo.clone()));
            }
        }
        Ok(ready)
    }

    /// Returns the changes that lead to these refs.
    async fn plan(&self, wanted: &AllWanted) -> Result<Vec<RepoChange>, GitError> {
        let now = self.parts.relay.now().unix;
        let mut changes = Vec::new();
        for ((endpoint, repo), wanted) in wanted {
            let Some(store) = self.parts.store_of(*endpoint) else {
                continue;
            };
            let mut guard = store.lock(repo).await?;
            changes.extend(guard.plan(wanted, now).await?);
        }
        Ok(changes)
    }

    pub(super) async fn try_task(&self, task: &CleanupTask) -> Result<(), GitError> {
        match task {
            CleanupTask::CreateView { repo } => {
                self.parts.repos.lock(repo).await?.create_view().await?;
            }
            CleanupTask::RemoveView { repo, is_immediate } => {
                self.remove_view(repo, *is_immediate).await?;
                self.collect_removed(repo).await;
            }
            CleanupTask::ClearProposal { id, keep, repos } => {
                self.clear_proposal(*id, keep, repos).await?;
            }
            CleanupTask::ClearObjects { tips, repos, .. } => {
                for repo in repos {
                    self.clear_objects(repo, tips).await?;
                }
            }
        }
        Ok(())
    }

    /// Removes the objects of these tips from a repository, where nothing else needs them.
    pub(super) async fn clear_objects(
        &self,
        repo: &RepoId,
        tips: &BTreeSet<Oid>,
    ) -> Result<(), GitError> {
        for store in self.parts.stores() {
            store.lock(repo).await?.mark_unneeded(tips).await?;
        }
        self.collect_removed(repo).await;
        Ok(())
    }

    /// Takes a repository out of service, unless a stored announcement still lists this server. Work in progress is
    /// waited for unless `is_immediate`: a slow push must not keep the repository in service.
    async fn remove_view(&self, repo: &RepoId, is_immediate: bool) -> Result<(), GitError> {
        let mut guard = self.parts.repos.lock(repo).await?;
        let coordinate = announcement_of(repo);
        let stored = self.parts.relay.heads(vec![coordinate]).await?;
        let announced = stored
            .iter()
            .filter_map(|event| Announcement::parse(event).ok());
        let policy = self.parts.policy.now();
        let is_hosted = announced
            .into_iter()
            .any(|announcement| policy.hosts(&announcement));
        // What is withheld is kept for the case that it comes back, unless its owner vanished.
        let is_kept = policy.withholds(repo) && !self.has_vanished(&repo.owner).await?;
        if is_hosted || is_kept {
            return Ok(());
        }
        if !is_immediate && self.active_work.is_active(repo) {
            return Err(GitError::InProgress);
        }
        // Its owner may announce it again.
        match self.has_vanished(&repo.owner).await? {
            true => guard.destroy().await,
            false => guard.retire(self.parts.relay.now().unix).await,
        }
    }

    /// Removes the repositories of an author who vanishes that are not served, so that no survey would find out: those that
    /// are withheld, and those that are retained. An owner who came back before a ban has not vanished again.
    pub(super) async fn remove_unserved(&self, author: PublicKey) {
        let repos = match self.parts.repos.all().await {
            Ok(repos) => repos,
            Err(error) => {
                tracing::warn!(%error, "could not look for repositories of an author who vanishes");
                return;
            }
        };
        for repo in repos.into_iter().filter(|repo| repo.owner == author) {
            if let Err(error) = self.remove_if_unserved(&repo).await {
                tracing::warn!(%error, %repo, "could not remove a repository whose owner vanishes");
            }
            self.wake_affected([repo]).await;
        }
    }

    async fn remove_if_unserved(&self, repo: &RepoId) -> Result<(), GitError> {
        if self.parts.policy.now().withholds(repo) {
            return self.remove_view(repo, true).await;
        }
        let mut guard = self.parts.repos.lock(repo).await?;
        let is_retained = guard.row().await?.view.is_none();
        match is_retained && self.has_vanished(&repo.owner).await? {
            true => guard.forget_retired().await,
            false => Ok(()),
        }
    }

    /// Returns whether an author has requested to vanish, so that none of their data is retired.
    pub(super) async fn has_vanished(&self, author: &PublicKey) -> Result<bool, GitError> {
        if self.parts.policy.now().archive.ignores_deletions {
            return Ok(false);
        }
        let requests = self
            .events(Filter::new().kind(kinds::VANISH).author(*author))
            .await?;
        let us = Some(self.parts.policy.service());
        Ok(requests.iter().any(|request| vanishes_from(request, us)))
    }

    /// Removes uploads and refs of a pull request, but for the tips to keep and the ref of a served event.
    async fn clear_proposal(
        &self,
        id: EventId,
        keep: &BTreeSet<Oid>,
        repos: &BTreeSet<RepoId>,
    ) -> Result<(), GitError> {
        let served = self.events(Filter::new().id(id)).await?.into_iter();
        let served = served.filter_map(|event| Some(Proposal::parse(&event).ok()?.tip));
        let stay: BTreeSet<Oid> = keep.iter().copied().chain(served).collect();
        for store in self.parts.stores() {
            for repo in repos {
                let mut guard = store.lock(repo).await?;
                for tip in guard.staged(id).await?.difference(keep) {
                    guard.discard_staged_tip(id, *tip).await?;
                }
                self.clear_ref(&mut guard, id, &stay).await?;
            }
        }
        for repo in repos {
            self.collect_removed(repo).await;
            if let Some(store) = &self.parts.contributors {
                remove_empty(store, &self.active_work, repo).await?;
            }
        }
        Ok(())
    }

    /// Deletes `refs/nostr/<id>` from a repository where it points at another tip.
    async fn clear_ref(
        &self,
        guard: &mut RepoGuard,
        id: EventId,
        stay: &BTreeSet<Oid>,
    ) -> Result<(), GitError> {
        let name = RefName::nostr(id);
        let now = self.parts.relay.now().unix;
        let Some(view) = guard.row().await?.view else {
            return Ok(());
        };
        let tip = view.refs.refs.get(&name).map(|target| target.oid);
        if tip.is_none_or(|tip| stay.contains(&tip)) {
            return Ok(());
        }
        let change = PushCommand {
            old: tip,
            new: None,
            name,
        };
        guard.move_refs(&[change], now).await
    }

    /// Removes from disk what was removed for good: it can be read by its id until then.
    pub(super) async fn collect_removed(&self, repo: &RepoId) {
        for store in self.parts.stores() {
            if let Err(error) = self.try_collect_removed(store, repo).await {
                tracing::warn!(%error, %repo, "could not remove objects that nothing refers to");
            }
        }
    }

    async fn try_collect_removed(&self, store: &RepoStore, repo: &RepoId) -> Result<(), GitError> {
        let row = store.row(repo).await?;
        if row.garbage != Some(Garbage::Removed) || row.packs.is_empty() {
            return Ok(());
        }
        let keep = self.keep(repo, &row).await?;
        if store.repository(repo).collect(&keep).await? {
            tracing::debug!(%repo, "removed objects that nothing refers to");
        }
        Ok(())
    }

    /// Returns what a collection keeps besides what refs need.
    pub(super) async fn keep(
        &self,
        repo: &RepoId,
        row: &crate::database::RepoRow,
    ) -> Result<Keep, GitError> {
        let mut maintainers: BTreeSet<PublicKey> = BTreeSet::from([repo.owner]);
        maintainers.extend(row.view.iter().flat_map(|view| &view.maintainers));
        let asked = repo.clone();
        let wanted = self
            .ask(move |purgatory| purgatory.wanted_tips(&asked, &maintainers))
            .await?;
        Ok(Keep::at(self.parts.relay.now().unix, wanted))
    }

    /// Returns the pull requests that have a ref in a contributor's repository.
    pub(super) async fn contributions(&self, repo: &RepoId) -> Result<BTreeSet<EventId>, GitError> {
        let Some(store) = &self.parts.contributors else {
            return Ok(BTreeSet::new());
        };
        let Some(view) = store.row(repo).await?.view else {
            return Ok(BTreeSet::new());
        };
        // The last pull request of a repository may have been deleted.
        if view.refs.refs.is_empty() {
            remove_empty(store, &self.active_work, repo).await?;
        }
        Ok(view.refs.refs.keys().filter_map(RefName::event).collect())
    }
}

/// Returns the coordinate of the announcement of a repository.
pub(super) fn announcement_of(repo: &RepoId) -> Coordinate {
    Coordinate::new(kinds::ANNOUNCEMENT, repo.owner).identifier(repo.identifier.as_str())
}

/// Tips of served pull requests that no other repository here has, or for which there was no room, so that they are not
/// looked for at every survey. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Unavailable(Arc<Mutex<BTreeSet<(RepoId, Oid)>>>);

impl Unavailable {
    pub(super) fn note(&self, repo: &RepoId, tip: Oid) {
        let mut known = self.0.lock();
        if known.len() >= MAX_UNAVAILABLE {
            known.clear();
        }
        known.insert((repo.clone(), tip));
    }

    pub(super) fn contains(&self, repo: &RepoId, tip: Oid) -> bool {
        self.0.lock().contains(&(repo.clone(), tip))
    }

    /// Forgets a tip that has come to a repository.
    fn forget_tip(&self, tip: Oid) {
        self.0.lock().retain(|(_, known)| *known != tip);
    }

    /// Forgets what was noted about a repository.
    pub(super) fn forget(&self, repo: &RepoId) {
        self.0.lock().retain(|(known, _)| known != repo);
    }
}

/// Removes a contributor's repository that has no refs and is not being pushed to.
pub(super) async fn remove_empty(
    store: &RepoStore,
    active_work: &ActiveWork,
    repo: &RepoId,
) -> Result<(), GitError> {
    let mut guard = store.lock(repo).await?;
    let row = guard.row().await?;
    if active_work.is_active(repo) {
        return Ok(());
    }
    match row.view {
        Some(view) if view.refs.refs.is_empty() => guard.destroy().await,
        Some(_) => Ok(()),
        None => guard.remove_if_deserted().await,
    }
}
