//! Refs and views, made as purgatory wants them.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nip34::{Announcement, Proposal};
use grasp_core::push::PushCommand;
use grasp_core::{Identifier, Oid, RefName, RepoId, kinds};
use grasp_purgatory::git::{FamilyGuard, GitError, RefTarget};
use grasp_purgatory::{Chore, Door, ProposalRef, ViewTarget};
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
        drop(guard);
        for proposal in proposals {
            self.place_proposal(&proposal).await?;
        }
        Ok(())
    }

    /// Points `refs/nostr/<id>` at the tip in every view that shall have it, wherever the tip is now.
    ///
    /// One lock at a time: whoever carries something the other way may be waiting.
    async fn place_proposal(&self, proposal: &ProposalRef) -> Result<(), KeepError> {
        let ProposalRef { id, tip, repos, families, staged } = proposal;
        if let Some(Door::Repository(from) | Door::Contributor(from)) = staged {
            let mut guard = self.parts.repos.lock(&from.identifier).await?;
            guard.promote_staged(*id, *tip).await?;
        }
        let Some(source) = self.family_with(families, *tip).await? else {
            tracing::debug!(%id, "the tip of a pull request is in none of its families");
            return Ok(());
        };
        for repo in repos {
            let mut guard = self.parts.repos.lock(&repo.identifier).await?;
            if !guard.check(&BTreeSet::from([*tip])).await?.is_complete() {
                let incoming = self.parts.repos.copy(&source, repo, *tip).await?;
                guard.promote(incoming).await?;
            }
            self.set_proposal(&mut guard, repo, *id, *tip).await?;
        }
        Ok(())
    }

    /// A family that has a tip with its whole history.
    async fn family_with(
        &self,
        families: &BTreeSet<Identifier>,
        tip: Oid,
    ) -> Result<Option<Identifier>, KeepError> {
        for identifier in families {
            let mut guard = self.parts.repos.lock(identifier).await?;
            if guard.check(&BTreeSet::from([tip])).await?.is_complete() {
                return Ok(Some(identifier.clone()));
            }
        }
        Ok(None)
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

    /// Drops uploads and refs of a pull request, but for the tips to keep. What is served has its ref.
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
        let served = self.events(Filter::new().id(id)).await?.into_iter();
        let served = served.filter_map(|event| Proposal::parse(&event).ok()?.tip());
        self.clear_refs(id, &keep.iter().copied().chain(served).collect()).await
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
