//! Refs and views, made as purgatory wants them.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nip34::Announcement;
use grasp_core::push::PushCommand;
use grasp_core::{Identifier, Oid, RefName, RepoId, kinds};
use grasp_purgatory::git::{FamilyGuard, GitError, RefTarget};
use grasp_purgatory::{Chore, ProposalRef, ViewTarget};
use nostr::event::EventId;
use nostr::filter::Filter;

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
        let mut elsewhere = Vec::new();
        for proposal in proposals {
            if proposal.staged.is_some() {
                guard.promote_staged(proposal.id, proposal.tip).await?;
            }
            let (here, others): (Vec<_>, Vec<_>) =
                proposal.repos.iter().cloned().partition(|repo| repo.identifier == *identifier);
            for repo in here {
                self.set_proposal(&mut guard, &repo, proposal.id, proposal.tip).await?;
            }
            elsewhere.extend(others.into_iter().map(|repo| (repo, proposal.id, proposal.tip)));
        }
        drop(guard);
        for (repo, id, tip) in elsewhere {
            self.carry_proposal(identifier, &repo, id, tip).await?;
        }
        Ok(())
    }

    /// Points `refs/nostr/<id>` of a view at the tip.
    async fn set_proposal(
        &self,
        guard: &mut FamilyGuard,
        repo: &RepoId,
        id: EventId,
        tip: Oid,
    ) -> Result<(), KeepError> {
        let name = RefName::nostr(id);
        let old = guard.refs(&repo.owner).await?.get(&name).copied();
        if old != Some(tip) {
            let change = PushCommand { old, new: Some(tip), name };
            guard.move_refs(&repo.owner, &[change], None, self.parts.clock.now().unix).await?;
        }
        Ok(())
    }

    /// Brings a tip from its own family to a repository of another name, and points the ref there.
    async fn carry_proposal(
        &self,
        from: &Identifier,
        to: &RepoId,
        id: EventId,
        tip: Oid,
    ) -> Result<(), KeepError> {
        let mut guard = self.parts.repos.lock(&to.identifier).await?;
        if !guard.check(&BTreeSet::from([tip])).await?.is_complete() {
            let incoming = self.parts.repos.copy(from, to, tip).await?;
            guard.promote(incoming).await?;
        }
        self.set_proposal(&mut guard, to, id, tip).await
    }

    pub(super) async fn try_chore(&self, chore: &Chore) -> Result<(), KeepError> {
        match chore {
            Chore::CreateView { repo } => {
                let mut guard = self.parts.repos.lock(&repo.identifier).await?;
                guard.create_view(&repo.owner).await?;
            }
            Chore::RemoveView { repo } => self.remove_view(repo).await?,
            Chore::ClearProposal { id, keep } => self.clear_proposal(*id, keep).await?,
        }
        Ok(())
    }

    /// Takes a view out of service, unless a stored announcement still asks us to host it.
    async fn remove_view(&self, repo: &RepoId) -> Result<(), KeepError> {
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
        if self.workers.any(repo) {
            return Err(KeepError::Busy);
        }
        Ok(guard.retire_view(&repo.owner, self.parts.clock.now().unix).await?)
    }

    /// Drops uploads and refs of a pull request, but for the tips to keep.
    async fn clear_proposal(&self, id: EventId, keep: &BTreeSet<Oid>) -> Result<(), KeepError> {
        let mut families: BTreeMap<Identifier, BTreeSet<Oid>> = BTreeMap::new();
        for (identifier, staged) in self.parts.repos.staged().await? {
            if staged.event == id {
                families.entry(identifier).or_default().insert(staged.tip);
            }
        }
        for (identifier, tips) in families {
            let mut guard = self.parts.repos.lock(&identifier).await?;
            for tip in tips.difference(keep) {
                guard.discard_staged_tip(id, *tip).await?;
            }
        }
        self.clear_refs(id, keep).await
    }

    /// Deletes `refs/nostr/<id>` wherever it points at anything else.
    async fn clear_refs(&self, id: EventId, keep: &BTreeSet<Oid>) -> Result<(), KeepError> {
        let name = RefName::nostr(id);
        let now = self.parts.clock.now().unix;
        for repo in self.parts.repos.repositories().await? {
            let tip = self.parts.repos.refs(&repo).await?.get(&name).copied();
            if tip.is_none_or(|tip| keep.contains(&tip)) {
                continue;
            }
            let mut guard = self.parts.repos.lock(&repo.identifier).await?;
            let change = PushCommand { old: tip, new: None, name: name.clone() };
            guard.move_refs(&repo.owner, &[change], None, now).await?;
        }
        Ok(())
    }
}
