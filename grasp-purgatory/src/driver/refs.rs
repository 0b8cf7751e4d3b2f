//! Refs and views on disk, changed as purgatory decides: views of repositories, refs of pull requests, and the
//! repositories of contributors (GRASP-06), which contain nothing but their pull requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::deletion::vanishes_from;
use grasp_core::nip34::{Announcement, Proposal};
use grasp_core::push::PushCommand;
use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Oid, RefName, RepoId, kinds};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use parking_lot::Mutex;

use super::queue::Executor;
use crate::active_work::ActiveWork;
use crate::database::{Commit, Committed, Conflict, FamilyChange, Source};
use crate::git::{FamilyGuard, GitError, RefTarget, RepoStore, WantedRefs};
use crate::purgatory::Record;
use crate::{CleanupTask, Input, ProposalRef, PushTarget, ViewTarget};

/// Tips that are remembered as unrelated to a family.
const MAX_UNRELATED: usize = 10_000;

/// Attempts to commit a release while other releases change the same views.
const MAX_ATTEMPTS: usize = 8;

impl Executor {
    /// Sets refs, and stores and withdraws events; returns the end of that.
    pub(super) async fn release(
        &self,
        identifier: Identifier,
        refs: (Vec<ViewTarget>, Vec<ProposalRef>),
        events: (Vec<Arc<Event>>, Vec<EventId>),
    ) -> Input {
        match self.try_release(&identifier, refs, events).await {
            Ok(refused) => Input::Released { identifier, refused },
            Err(error) => {
                tracing::error!(%error, %identifier, "refs could not be set and events not be stored");
                Input::ReleaseFailed { identifier }
            }
        }
    }

    /// Does so in one transaction. Returns the events that the store refuses; then nothing has changed.
    async fn try_release(
        &self,
        identifier: &Identifier,
        (views, proposals): (Vec<ViewTarget>, Vec<ProposalRef>),
        (events, withdraw): (Vec<Arc<Event>>, Vec<EventId>),
    ) -> Result<BTreeSet<EventId>, GitError> {
        let mut wanted: BTreeMap<(Endpoint, RepoId), WantedRefs> = BTreeMap::new();
        for ViewTarget { repo, state } in views {
            let target = match &state {
                Some(state) => {
                    RefTarget::of(state).ok_or(GitError::Incomplete { count: state.refs.len() })?
                }
                None => RefTarget::default(),
            };
            wanted.entry((Endpoint::Repository, repo)).or_default().target = Some(target);
        }
        for proposal in &proposals {
            for view in self.bring_proposal(proposal).await? {
                wanted.entry(view).or_default().proposals.insert(proposal.id, proposal.tip);
            }
        }
        self.limit_proposals(identifier, &mut wanted).await?;
        let states = wanted.values().filter_map(|wanted| wanted.target.as_ref()?.state);
        let require: Vec<_> = states.chain(proposals.iter().map(|it| it.id)).collect();
        let gone = |event: &Arc<Event>| Record::Gone { id: event.id };
        let records: Vec<Record> = events.iter().map(gone).collect();
        for _ in 0..MAX_ATTEMPTS {
            let commit = Commit {
                save: events.clone(),
                require: require.clone(),
                withdraw: withdraw.clone(),
                families: self.plan(&wanted, &events).await?,
                records: records.clone(),
                now: self.parts.relay.now().unix,
                ..Commit::default()
            };
            match self.commit(commit).await? {
                Committed::Done { affected } => {
                    for identifier in affected {
                        self.tell(Input::Changed { identifier }).await;
                    }
                    return Ok(BTreeSet::new());
                }
                Committed::Conflict(Conflict::Refused(refused)) => return Ok(refused),
                // Another release has set the ref of a pull request meanwhile.
                Committed::Conflict(Conflict::Moved(..)) => {}
            }
        }
        Err(GitError::Outdated)
    }

    /// Leaves out pull requests for which there is no room under another identifier, which this release has not surveyed.
    async fn limit_proposals(
        &self,
        identifier: &Identifier,
        wanted: &mut BTreeMap<(Endpoint, RepoId), WantedRefs>,
    ) -> Result<(), GitError> {
        let others = wanted.iter_mut().filter(|((_, repo), _)| repo.identifier != *identifier);
        for ((endpoint, repo), wanted) in others {
            let Some(store) = self.parts.store_of(*endpoint) else { continue };
            let row = store.family_row(&repo.identifier).await?;
            if !row.has_room_for_proposals(&repo.owner, wanted.proposals.len()) {
                wanted.proposals.clear();
            }
        }
        Ok(())
    }

    /// Returns the changes that lead to these refs. A view of a state that is stored, and whose objects were removed since,
    /// stays as it is: it must not hold up the release of `events`.
    async fn plan(
        &self,
        wanted: &BTreeMap<(Endpoint, RepoId), WantedRefs>,
        events: &[Arc<Event>],
    ) -> Result<Vec<FamilyChange>, GitError> {
        let now = self.parts.relay.now().unix;
        let mut families: BTreeMap<(Endpoint, &Identifier), FamilyChange> = BTreeMap::new();
        for ((endpoint, repo), wanted) in wanted {
            let Some(store) = self.parts.store_of(*endpoint) else { continue };
            let mut guard = store.lock(&repo.identifier).await?;
            let key = (*endpoint, &repo.identifier);
            let family = families.entry(key).or_insert_with(|| guard.change());
            let state = wanted.target.as_ref().and_then(|target| target.state);
            match guard.plan(&repo.owner, wanted, now).await {
                Err(error @ GitError::Incomplete { .. })
                    if state.is_some() && !events.iter().any(|event| Some(event.id) == state) =>
                {
                    tracing::warn!(%error, %repo, "a served state cannot be shown");
                }
                planned => planned?.into_iter().for_each(|change| family.push(change)),
            }
        }
        Ok(families.into_values().filter(|family| !family.is_empty()).collect())
    }

    pub(super) async fn try_task(&self, task: &CleanupTask) -> Result<(), GitError> {
        match task {
            CleanupTask::CreateView { repo } => {
                let mut guard = self.parts.repos.lock(&repo.identifier).await?;
                guard.create_view(&repo.owner).await?;
            }
            CleanupTask::RemoveView { repo, is_immediate } => {
                self.remove_view(repo, *is_immediate).await?;
            }
            CleanupTask::ClearProposal { id, keep, names } => {
                self.clear_proposal(*id, keep, names).await?;
            }
        }
        Ok(())
    }

    /// Takes a view out of service, unless a stored announcement still lists this server. Work in progress is waited for
    /// unless `is_immediate`: a slow push must not keep the view in service.
    async fn remove_view(&self, repo: &RepoId, is_immediate: bool) -> Result<(), GitError> {
        let mut guard = self.parts.repos.lock(&repo.identifier).await?;
        let filter = Filter::new()
            .kind(kinds::ANNOUNCEMENT)
            .author(repo.owner)
            .identifier(repo.identifier.as_str());
        let stored = self.events(filter).await?;
        let announced = stored.iter().filter_map(|event| Announcement::parse(event).ok());
        if announced.into_iter().any(|announcement| self.parts.policy.hosts(&announcement)) {
            return Ok(());
        }
        if !is_immediate && self.active_work.is_active(&repo.identifier, repo.owner) {
            return Err(GitError::InProgress);
        }
        match self.has_vanished(&repo.owner).await? {
            true => guard.destroy_view(&repo.owner).await,
            false => guard.retire_view(&repo.owner, self.parts.relay.now().unix).await,
        }
    }

    /// Returns whether an author has requested to vanish, so that none of their data is retired.
    pub(super) async fn has_vanished(&self, author: &PublicKey) -> Result<bool, GitError> {
        let requests = self.events(Filter::new().kind(kinds::VANISH).author(*author)).await?;
        let us = Some(&self.parts.policy.service);
        Ok(requests.iter().any(|request| vanishes_from(request, us)))
    }

    /// Removes uploads and refs of a pull request, but for the tips to keep and the ref of a served event.
    async fn clear_proposal(
        &self,
        id: EventId,
        keep: &BTreeSet<Oid>,
        names: &BTreeSet<Identifier>,
    ) -> Result<(), GitError> {
        let served = self.events(Filter::new().id(id)).await?.into_iter();
        let served = served.filter_map(|event| Some(Proposal::parse(&event).ok()?.tip));
        let stay: BTreeSet<Oid> = keep.iter().copied().chain(served).collect();
        for store in self.parts.stores() {
            for name in names {
                let mut guard = store.lock(name).await?;
                for tip in guard.staged(id).await?.difference(keep) {
                    guard.discard_staged_tip(id, *tip).await?;
                }
                self.clear_refs(&mut guard, id, &stay).await?;
            }
        }
        if let Some(repos) = &self.parts.contributors {
            for name in names {
                remove_empty(repos, &self.active_work, name).await?;
            }
        }
        Ok(())
    }

    /// Deletes `refs/nostr/<id>` from the views of a family where it points at another tip.
    async fn clear_refs(
        &self,
        guard: &mut FamilyGuard,
        id: EventId,
        stay: &BTreeSet<Oid>,
    ) -> Result<(), GitError> {
        let (name, now) = (RefName::nostr(id), self.parts.relay.now().unix);
        for (owner, view) in guard.row().await?.views {
            let tip = view.refs.refs.get(&name).map(|target| target.oid);
            if tip.is_none_or(|tip| stay.contains(&tip)) {
                continue;
            }
            let change = PushCommand { old: tip, new: None, name: name.clone() };
            guard.move_refs(&owner, &[change], None, now).await?;
        }
        Ok(())
    }
}

/// Tips of pull requests that have no history in common with a family that they are addressed to, so that they are
/// not compared at every survey. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Unrelated(Arc<Mutex<BTreeSet<(Identifier, Oid)>>>);

impl Unrelated {
    fn note(&self, family: &Identifier, tip: Oid) {
        let mut known = self.0.lock();
        if known.len() >= MAX_UNRELATED {
            known.clear();
        }
        known.insert((family.clone(), tip));
    }

    fn contains(&self, family: &Identifier, tip: Oid) -> bool {
        self.0.lock().contains(&(family.clone(), tip))
    }

    /// Forgets the tips of a family, which may have got more history.
    pub(super) fn forget(&self, family: &Identifier) {
        self.0.lock().retain(|(known, _)| known != family);
    }
}

impl Executor {
    /// Brings the objects of a pull request to every family that it belongs to. Returns the views that get its ref.
    ///
    /// Only one lock is held at a time, since another queue may hold the other.
    async fn bring_proposal(
        &self,
        proposal: &ProposalRef,
    ) -> Result<Vec<(Endpoint, RepoId)>, GitError> {
        let (id, tip) = (proposal.id, proposal.tip);
        let mut views = Vec::new();
        for target in &proposal.staged {
            let (endpoint, repo) = match target {
                PushTarget::Repository(repo) => (Endpoint::Repository, repo),
                PushTarget::Contributor(place) => (Endpoint::PullRequests, place),
            };
            let Some(store) = self.parts.store_of(endpoint) else { continue };
            let mut guard = store.lock(&repo.identifier).await?;
            guard.promote_staged(id, tip).await?;
            // A contributor's repository has only what was pushed to it.
            if endpoint == Endpoint::PullRequests
                && guard.check(&BTreeSet::from([tip])).await?.is_complete()
            {
                views.push((endpoint, repo.clone()));
            }
        }
        let copied = self.copy_to_families(proposal).await?.into_iter();
        views.extend(copied.map(|repo| (Endpoint::Repository, repo)));
        Ok(views)
    }

    /// Copies the objects of a pull request to the families that lack them and have history in common with it. Returns the
    /// views whose family has them now.
    async fn copy_to_families(&self, proposal: &ProposalRef) -> Result<Vec<RepoId>, GitError> {
        let tip = proposal.tip;
        let mut repos: Vec<&RepoId> = proposal.repos.iter().collect();
        repos.retain(|repo| !self.unrelated.contains(&repo.identifier, tip));
        if repos.is_empty() {
            return Ok(Vec::new());
        }
        let Some((store, source)) = self.family_with(&proposal.families, tip).await? else {
            tracing::debug!(id = %proposal.id, "the tip of a pull request is in none of its families");
            return Ok(Vec::new());
        };
        let mut ready = Vec::new();
        for repo in repos {
            let mut guard = self.parts.repos.lock(&repo.identifier).await?;
            let is_here = guard.check(&BTreeSet::from([tip])).await?.is_complete();
            if is_here || self.copy(&mut guard, (store, source), repo, proposal).await? {
                ready.push(repo.clone());
            }
        }
        Ok(ready)
    }

    /// Copies the objects of a pull request to a family, if they have history in common and its author's limit allows it.
    async fn copy(
        &self,
        guard: &mut FamilyGuard,
        from: (&RepoStore, &Identifier),
        to: &RepoId,
        proposal: &ProposalRef,
    ) -> Result<bool, GitError> {
        let (family, now) = (&to.identifier, self.parts.relay.now());
        let claimant = Claimant::default().signed_by(proposal.author);
        let Some(incoming) = self.parts.repos.copy(from, guard, proposal.tip).await? else {
            self.unrelated.note(family, proposal.tip);
            return Ok(false);
        };
        let bytes = incoming.bytes().await?;
        if bytes > self.hunted_room(family, &claimant).await? {
            tracing::debug!(id = %proposal.id, %family, "no room for a pull request from elsewhere");
            self.unrelated.note(family, proposal.tip);
            return Ok(false);
        }
        guard.promote(incoming).await?;
        self.disk.charge(now, family, &claimant, (Source::Hunted, bytes));
        Ok(true)
    }

    /// Returns the bytes by which a family may grow on the account of a claimant, other than by a push.
    pub(super) async fn hunted_room(
        &self,
        family: &Identifier,
        claimant: &Claimant,
    ) -> Result<u64, GitError> {
        let today = self.disk.room(self.parts.relay.now().mono, family, claimant, Source::Hunted);
        Ok(today.min(self.disk.family_room(&self.parts.repos, family, claimant).await?))
    }

    /// Returns a family that has a tip with its whole history.
    async fn family_with<'a>(
        &'a self,
        families: &'a BTreeSet<Identifier>,
        tip: Oid,
    ) -> Result<Option<(&'a RepoStore, &'a Identifier)>, GitError> {
        for store in self.parts.stores() {
            for identifier in families {
                if store.lacking(identifier, &BTreeSet::from([tip])).await?.is_empty() {
                    return Ok(Some((store, identifier)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the pull requests that have a ref in a contributor's repository of this identifier.
    pub(super) async fn contributions(
        &self,
        identifier: &Identifier,
    ) -> Result<BTreeSet<EventId>, GitError> {
        let Some(repos) = &self.parts.contributors else { return Ok(BTreeSet::new()) };
        let views = repos.family_row(identifier).await?.views;
        // The last pull request of a repository may have been deleted.
        if views.values().any(|view| view.refs.refs.is_empty()) {
            remove_empty(repos, &self.active_work, identifier).await?;
        }
        let names = views.values().flat_map(|view| view.refs.refs.keys());
        Ok(names.filter_map(RefName::event).collect())
    }
}

/// Removes the contributors' repositories of an identifier that have no refs and are not being pushed to, and the family
/// with the last of them.
pub(super) async fn remove_empty(
    repos: &RepoStore,
    active_work: &ActiveWork,
    name: &Identifier,
) -> Result<(), GitError> {
    let mut guard = repos.lock(name).await?;
    for (owner, view) in guard.row().await?.views {
        if view.refs.refs.is_empty() && !active_work.is_active(name, owner) {
            guard.destroy_view(&owner).await?;
        }
    }
    if active_work.is_active_under(name) {
        return Ok(());
    }
    guard.remove_if_deserted().await
}
