//! Views out of service: kept for a while, for people, and then forgotten.

use std::collections::BTreeSet;
use std::path::PathBuf;

use grasp_core::nostr::types::Timestamp;
use nostr::key::PublicKey;

use super::collect::{Mark, forget_retired_tips};
use super::{FamilyGuard, RepoStore};
use crate::git::error::GitError;
use crate::git::layout::{self, Family};
use crate::git::refs::RETENTION;

impl FamilyGuard {
    /// Takes a view out of service. Its files stay until [`FamilyGuard::forget_retired`].
    ///
    /// One that never had refs is not worth keeping. That there is no view is fine.
    pub async fn retire_view(&mut self, owner: &PublicKey, now: Timestamp) -> Result<(), GitError> {
        let (store, family, owner) = (self.store.clone(), self.family.clone(), *owner);
        self.blocking(move || {
            let view = family.view(&owner);
            if !view.is_dir() {
                return Ok(());
            }
            if !view.join("packed-refs").exists() {
                store.remove_whole(&view)?;
                return store.remove_if_deserted(&family);
            }
            let name = format!("{}.{}", owner.to_hex(), now.as_secs());
            Mark::Removed.leave(&family)?;
            layout::create_dir(&family.retired())?;
            layout::rename(&view, &family.retired().join(name))?;
            [family.retired(), family.views(), family.path().to_owned()]
                .iter()
                .try_for_each(|dir| layout::sync(dir))
        })
        .await
    }

    /// Removes a view for good, with all its retired forms: its owner has asked to vanish.
    ///
    /// Objects that other views share stay; without any other view the whole family goes.
    pub async fn destroy_view(&mut self, owner: &PublicKey) -> Result<(), GitError> {
        let (store, family, owner) = (self.store.clone(), self.family.clone(), *owner);
        self.blocking(move || {
            forget_retired_tips(&family, &owner)?;
            store.remove_whole(&family.view(&owner))?;
            store.remove_retired_of(&family, &owner)?;
            store.remove_if_deserted(&family)
        })
        .await
    }

    /// Returns the owners of retired views.
    pub async fn retired_owners(&self) -> Result<BTreeSet<PublicKey>, GitError> {
        let family = self.family.clone();
        self.blocking(move || {
            let names = layout::list(&family.retired())?;
            let owner = |path: &PathBuf| Some(parse(layout::name(path))?.0);
            Ok(names.iter().filter_map(owner).collect())
        })
        .await
    }

    /// Forgets the retired views of an owner at once. One in service stays.
    pub async fn forget_retired_of(&mut self, owner: &PublicKey) -> Result<(), GitError> {
        let (store, family, owner) = (self.store.clone(), self.family.clone(), *owner);
        self.blocking(move || {
            forget_retired_tips(&family, &owner)?;
            store.remove_retired_of(&family, &owner)?;
            store.remove_if_deserted(&family)
        })
        .await
    }

    /// Removes the family if nothing refers to it any more and nothing is on its way to it: no view, none retired,
    /// nothing staged, nothing being received.
    pub async fn remove_if_deserted(&mut self) -> Result<(), GitError> {
        let (store, family) = (self.store.clone(), self.family.clone());
        self.blocking(move || match store.inner.arrivals.any_for(&family) {
            true => Ok(()),
            false => store.remove_if_deserted(&family),
        })
        .await
    }

    /// Forgets tips that no ref of a view names any more, and whose time is over.
    pub async fn forget_old_tips(&mut self, now: Timestamp) -> Result<(), GitError> {
        for owner in self.owners().await? {
            // Every transaction leaves them out, also one that changes nothing else.
            self.move_refs(&owner, &[], None, now).await?;
        }
        Ok(())
    }

    /// Forgets retired views whose time is over.
    pub async fn forget_retired(&mut self, now: Timestamp) -> Result<(), GitError> {
        let (store, family) = (self.store.clone(), self.family.clone());
        self.blocking(move || {
            let oldest = now.as_secs().saturating_sub(RETENTION.as_secs());
            for path in layout::list(&family.retired())? {
                if parse(layout::name(&path)).is_some_and(|(_, since)| since < oldest) {
                    Mark::Removed.leave(&family)?;
                    store.remove_whole(&path)?;
                }
            }
            Ok(())
        })
        .await
    }
}

impl RepoStore {
    /// Removes a family that nothing refers to: no view, none retired, nothing staged.
    pub(super) fn remove_if_deserted(&self, family: &Family) -> Result<(), GitError> {
        if !family.path().is_dir() {
            return Ok(());
        }
        for place in [family.views(), family.retired(), family.staging()] {
            if !layout::list(&place)?.is_empty() {
                return Ok(());
            }
        }
        self.count_removal();
        self.remove_whole(family.path())
    }

    fn remove_retired_of(&self, family: &Family, owner: &PublicKey) -> Result<(), GitError> {
        retired(family, owner)?.iter().try_for_each(|path| self.remove_whole(path))
    }
}

/// The retired views of an owner.
fn retired(family: &Family, owner: &PublicKey) -> Result<Vec<PathBuf>, GitError> {
    let owner = owner.to_hex();
    let mut all = layout::list(&family.retired())?;
    all.retain(|path| layout::name(path).split('.').next() == Some(owner.as_str()));
    Ok(all)
}

/// Returns the owner of a retired view and the time, by the name of its directory.
pub(super) fn parse(name: &str) -> Option<(PublicKey, u64)> {
    let (owner, since) = name.split_once('.')?;
    Some((PublicKey::from_hex(owner).ok()?, since.parse().ok()?))
}
