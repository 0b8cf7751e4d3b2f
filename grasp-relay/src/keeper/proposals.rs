//! The refs of pull requests, and the objects behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_core::push::PushCommand;
use grasp_core::resources::Claimant;
use grasp_core::{Identifier, Oid, RefName, RepoId};
use grasp_purgatory::git::{FamilyGuard, RepoStore};
use grasp_purgatory::{ProposalRef, PushTarget};
use nostr::event::EventId;

use super::disk::Addition;
use super::git::KeepError;
use super::lane::Hands;

/// Tips that are remembered as having nothing in common with a family.
const MAX_UNRELATED: usize = 10_000;

/// Tips of pull requests that have no history in common with a family that they are addressed to, so that they are
/// not compared at every survey. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Unrelated(Arc<Mutex<BTreeSet<(Identifier, Oid)>>>);

impl Unrelated {
    fn note(&self, family: &Identifier, tip: Oid) {
        let mut known = self.lock();
        if known.len() >= MAX_UNRELATED {
            known.clear();
        }
        known.insert((family.clone(), tip));
    }

    fn contains(&self, family: &Identifier, tip: Oid) -> bool {
        self.lock().contains(&(family.clone(), tip))
    }

    /// Has the tips of a family compared again: it may have got more history.
    pub(super) fn forget(&self, family: &Identifier) {
        self.lock().retain(|(known, _)| known != family);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(Identifier, Oid)>> {
        // A set is whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hands {
    /// Points `refs/nostr/<id>` at the tips in every view that shall have them, wherever the tips are now.
    ///
    /// The refs of one view are written once, however many there are. One lock at a time: whoever carries something
    /// the other way may be waiting.
    pub(super) async fn place_proposals(
        &self,
        proposals: Vec<ProposalRef>,
    ) -> Result<(), KeepError> {
        let mut by_view: BTreeMap<RepoId, BTreeMap<EventId, Oid>> = BTreeMap::new();
        for proposal in &proposals {
            self.promote(proposal).await?;
            for repo in self.bring(proposal).await? {
                by_view.entry(repo).or_default().insert(proposal.id, proposal.tip);
            }
        }
        for (repo, tips) in by_view {
            let mut guard = self.parts.repos.lock(&repo.identifier).await?;
            self.set_proposals(&mut guard, &repo, &tips).await?;
        }
        Ok(())
    }

    /// Takes what waits in staging into its families.
    async fn promote(&self, proposal: &ProposalRef) -> Result<(), KeepError> {
        for came in &proposal.staged {
            match came {
                PushTarget::Repository(from) => {
                    let mut guard = self.parts.repos.lock(&from.identifier).await?;
                    guard.promote_staged(proposal.id, proposal.tip).await?;
                }
                PushTarget::Contributor(place) => {
                    self.place_contribution(place, proposal.id, proposal.tip).await?;
                }
            }
        }
        Ok(())
    }

    /// Brings the objects of a pull request to the families that lack them and have history in common with it. Returns
    /// the views whose family has them now.
    async fn bring(&self, proposal: &ProposalRef) -> Result<Vec<RepoId>, KeepError> {
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

    /// Copies what a pull request needs to a family, if they have history in common and its author may add so much.
    async fn copy(
        &self,
        guard: &mut FamilyGuard,
        from: (&RepoStore, &Identifier),
        to: &RepoId,
        proposal: &ProposalRef,
    ) -> Result<bool, KeepError> {
        let (family, now) = (&to.identifier, self.parts.clock.now().mono);
        let claimant = Claimant::default().signed_by(proposal.author);
        let Some(incoming) = self.parts.repos.copy(from, to, proposal.tip).await? else {
            self.unrelated.note(family, proposal.tip);
            return Ok(false);
        };
        let bytes = incoming.bytes().await?;
        let room = self.disk.room(now, family, &claimant, Addition::Hunted);
        let left = self.disk.family_room(&self.parts.repos, family).await?;
        if bytes > room.min(left) {
            tracing::debug!(id = %proposal.id, %family, "no room for a pull request from elsewhere");
            self.unrelated.note(family, proposal.tip);
            return Ok(false);
        }
        guard.promote(incoming).await?;
        self.disk.charge(now, family, &claimant, (Addition::Hunted, bytes));
        Ok(true)
    }

    /// A family that has a tip with its whole history.
    async fn family_with<'a>(
        &'a self,
        families: &'a BTreeSet<Identifier>,
        tip: Oid,
    ) -> Result<Option<(&'a RepoStore, &'a Identifier)>, KeepError> {
        for store in self.stores() {
            for identifier in families {
                if store.lacking(identifier, &BTreeSet::from([tip])).await?.is_empty() {
                    return Ok(Some((store, identifier)));
                }
            }
        }
        Ok(None)
    }

    /// Points `refs/nostr/<id>` of a view at these tips, in one step.
    pub(super) async fn set_proposals(
        &self,
        guard: &mut FamilyGuard,
        repo: &RepoId,
        tips: &BTreeMap<EventId, Oid>,
    ) -> Result<(), KeepError> {
        let refs = guard.refs(&repo.owner).await?;
        let changes = tips.iter().filter_map(|(id, tip)| {
            let name = RefName::nostr(*id);
            let old = refs.get(&name).copied();
            (old != Some(*tip)).then_some(PushCommand { old, new: Some(*tip), name })
        });
        let changes: Vec<PushCommand> = changes.collect();
        if !changes.is_empty() {
            guard.move_refs(&repo.owner, &changes, None, self.parts.clock.now().unix).await?;
        }
        Ok(())
    }
}
