//! Refs and views, made as purgatory wants them.

use std::collections::BTreeSet;

use grasp_core::deletion::VanishScope;
use grasp_core::nip34::{Announcement, Proposal};
use grasp_core::push::PushCommand;
use grasp_core::{Identifier, Oid, RefName, RepoId, kinds};
use grasp_purgatory::git::{FamilyGuard, GitError, RefTarget, RepoStore};
use grasp_purgatory::{CleanupTask, ProposalRef, ViewTarget};
use nostr::event::EventId;
use nostr::filter::Filter;
use nostr::key::PublicKey;

use super::contributors::vacate;
use super::lane::Hands;
use crate::store::StoreError;

/// Why something could not be made so. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeepError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a state names no objects")]
    NoObjects,
    #[error("a view is in use")]
    Busy,
    #[error("purgatory is closed")]
    Gone,
}

impl Hands {
    /// Sets branches, tags and HEAD of views, and the refs of pull requests. Doing it again changes nothing, so what
    /// an error or a crash leaves half done is finished by the next attempt.
    pub(super) async fn apply(
        &self,
        identifier: &Identifier,
        views: Vec<ViewTarget>,
        proposals: Vec<ProposalRef>,
    ) -> Result<(), KeepError> {
        let now = self.parts.clock.now().unix;
        let mut guard = self.parts.repos.lock(identifier).await?;
        for ViewTarget { repo, state } in views {
            guard.create_view(&repo.owner).await?;
            let target = match &state {
                Some(state) => RefTarget::of(state).ok_or(KeepError::NoObjects)?,
                None => RefTarget::default(),
            };
            guard.apply(&repo.owner, &target, now).await?;
        }
        drop(guard);
        self.place_proposals(proposals).await
    }

    /// All stores of repositories.
    pub(super) fn stores(&self) -> impl Iterator<Item = &RepoStore> {
        std::iter::once(&self.parts.repos).chain(&self.parts.contributors)
    }

    pub(super) async fn try_chore(&self, chore: &CleanupTask) -> Result<(), KeepError> {
        match chore {
            CleanupTask::CreateView { repo } => {
                let mut guard = self.parts.repos.lock(&repo.identifier).await?;
                guard.create_view(&repo.owner).await?;
            }
            CleanupTask::RemoveView { repo, at_once } => self.remove_view(repo, *at_once).await?,
            CleanupTask::ClearProposal { id, keep, names } => {
                self.clear_proposal(*id, keep, names).await?;
            }
        }
        Ok(())
    }

    /// Takes a view out of service, unless a stored announcement still asks us to host it. A push that is under way is
    /// waited for unless it is to go at once: a sender who takes their time must not keep it in service.
    async fn remove_view(&self, repo: &RepoId, at_once: bool) -> Result<(), KeepError> {
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
        if !at_once && self.workers.any(repo) {
            return Err(KeepError::Busy);
        }
        match self.has_vanished(&repo.owner).await? {
            true => Ok(guard.destroy_view(&repo.owner).await?),
            false => Ok(guard.retire_view(&repo.owner, self.parts.clock.now().unix).await?),
        }
    }

    /// Whether somebody has asked us to forget them: then nothing of theirs is kept for later.
    pub(super) async fn has_vanished(&self, author: &PublicKey) -> Result<bool, KeepError> {
        let requests = self.events(Filter::new().kind(kinds::VANISH).author(*author)).await?;
        let us = Some(&self.parts.policy.service);
        Ok(requests.iter().any(|request| VanishScope::parse(request).includes(us)))
    }

    /// Drops uploads and refs of a pull request, but for the tips to keep. What is served has its ref.
    async fn clear_proposal(
        &self,
        id: EventId,
        keep: &BTreeSet<Oid>,
        names: &BTreeSet<Identifier>,
    ) -> Result<(), KeepError> {
        let served = self.events(Filter::new().id(id)).await?.into_iter();
        let served = served.filter_map(|event| Some(Proposal::parse(&event).ok()?.tip));
        let stay: BTreeSet<Oid> = keep.iter().copied().chain(served).collect();
        for store in self.stores() {
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
                vacate(repos, &self.workers, name).await?;
            }
        }
        Ok(())
    }

    /// Deletes `refs/nostr/<id>` from the views of a family where it points at anything else.
    async fn clear_refs(
        &self,
        guard: &mut FamilyGuard,
        id: EventId,
        stay: &BTreeSet<Oid>,
    ) -> Result<(), KeepError> {
        let (name, now) = (RefName::nostr(id), self.parts.clock.now().unix);
        for owner in guard.owners().await? {
            let tip = guard.refs(&owner).await?.get(&name).copied();
            if tip.is_none_or(|tip| stay.contains(&tip)) {
                continue;
            }
            let change = PushCommand { old: tip, new: None, name: name.clone() };
            guard.move_refs(&owner, &[change], None, now).await?;
        }
        Ok(())
    }
}
