//! Objects that were here and are here no more: a pack that was deleted, or that a disk has lost.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::{Identifier, Oid};
use nostr::key::PublicKey;

use super::{FamilyGuard, RepoStore};
use crate::git::check::{Objects, Proofs};
use crate::git::error::GitError;
use crate::git::{blocking, read};

impl FamilyGuard {
    /// The owners of views that lack objects, as far as that can be seen without walking through a history.
    ///
    /// Looks for the tips of all refs and for all proven tips. Each push and each fetch leaves a proof of a tip in the
    /// pack that it brought, so the loss of a pack shows even if newer tips are elsewhere; which views need that pack
    /// is then not known, and all are named.
    pub async fn damaged_views(&self) -> Result<BTreeSet<PublicKey>, GitError> {
        let mut tips: BTreeMap<PublicKey, BTreeSet<Oid>> = BTreeMap::new();
        for owner in self.owners().await? {
            tips.insert(owner, self.refs(&owner).await?.into_values().collect());
        }
        let family = self.family.clone();
        self.blocking(move || {
            let proofs = Proofs::load(&family)?;
            let wanted = tips.values().flatten().chain(proofs.tips()).copied().collect();
            let lost = read::missing(&[family.objects()], &wanted)?;
            if !lost.is_disjoint(proofs.tips()) {
                return Ok(tips.into_keys().collect());
            }
            tips.retain(|_, tips| !tips.is_disjoint(&lost));
            Ok(tips.into_keys().collect())
        })
        .await
    }
}

impl RepoStore {
    /// Returns the owners of views whose history lacks objects. Walks through all of it, without regard to earlier proofs.
    pub async fn broken_views(
        &self,
        identifier: &Identifier,
    ) -> Result<BTreeSet<PublicKey>, GitError> {
        let family = self.family(identifier);
        let objects = Objects::of(self, family.clone());
        let mut broken = BTreeSet::new();
        for owner in blocking(move || super::owners(&family)).await? {
            let repo = grasp_core::RepoId::new(owner, identifier.clone());
            let tips: Vec<_> = self.refs(&repo).await?.into_values().collect();
            if !tips.is_empty() && !objects.is_whole(&tips).await? {
                broken.insert(owner);
            }
        }
        Ok(broken)
    }
}
