//! Objects that we went to get ourselves.

use std::collections::BTreeSet;

use grasp_core::resources::Claimant;
use grasp_core::{Identifier, Oid};

use super::{Incoming, RepoStore};
use crate::git::check::Completeness;
use crate::git::error::GitError;
use crate::git::layout;

impl RepoStore {
    /// Returns the objects that are not here with their whole history.
    pub async fn lacking(
        &self,
        identifier: &Identifier,
        tips: &BTreeSet<Oid>,
    ) -> Result<BTreeSet<Oid>, GitError> {
        if tips.is_empty() || !self.family(identifier).objects().is_dir() {
            return Ok(tips.clone());
        }
        Ok(match self.lock(identifier).await?.check(tips).await? {
            Completeness::Complete => BTreeSet::new(),
            Completeness::Incomplete { missing, broken } => &missing | &broken,
        })
    }

    /// A place for objects that are about to come for an identifier. Nothing needs to be served under it yet: the
    /// objects may be what it takes.
    pub async fn incoming_for(&self, identifier: &Identifier) -> Result<Incoming, GitError> {
        let guard = self.lock(identifier).await?;
        let (store, family, name) = (self.clone(), guard.family.clone(), identifier.clone());
        guard
            .blocking(move || {
                family.create(&name, &store.scratch())?;
                // The fetch has no authority: any client's event may name the server.
                Incoming::new(&store, family, Claimant::default())
            })
            .await
    }

    /// Takes exactly what these tips need of what has arrived, if it is whole; says which of them are here now.
    ///
    /// The server may have sent more than was requested. None of that is kept: it could be read by its id.
    pub async fn take_in(
        &self,
        identifier: &Identifier,
        mut incoming: Incoming,
        tips: &BTreeSet<Oid>,
    ) -> Result<BTreeSet<Oid>, GitError> {
        let whole = match incoming.check(tips).await? {
            Completeness::Complete => tips.clone(),
            Completeness::Incomplete { missing, broken } => &(tips - &missing) - &broken,
        };
        if whole.is_empty() {
            drop(incoming);
            self.leave(identifier).await?;
            return Ok(whole);
        }
        let part = incoming.extract(&whole, None).await?;
        let mut guard = self.lock(identifier).await?;
        guard.promote(part).await?;
        guard.compact().await?;
        Ok(whole)
    }

    /// Removes the family again if it was made in vain.
    async fn leave(&self, identifier: &Identifier) -> Result<(), GitError> {
        let mut guard = self.lock(identifier).await?;
        let objects = guard.family.objects();
        let is_empty = guard.blocking(move || Ok(layout::list(&objects)?.is_empty())).await?;
        if is_empty { guard.remove_if_deserted().await } else { Ok(()) }
    }
}
