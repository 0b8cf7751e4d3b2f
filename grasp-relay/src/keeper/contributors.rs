//! The places of contributors: repositories of nothing but their pull requests (GRASP-06).

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::{Identifier, Oid, RefName, RepoId};
use grasp_purgatory::git::{GitError, RepoStore};
use nostr::event::EventId;

use super::at_work::Workers;
use super::git::KeepError;
use super::lane::Hands;

impl Hands {
    /// Points `refs/nostr/<id>` of a contributor's place at the tip that they brought there.
    pub(super) async fn place_contribution(
        &self,
        place: &RepoId,
        id: EventId,
        tip: Oid,
    ) -> Result<(), KeepError> {
        let Some(repos) = &self.parts.contributors else { return Ok(()) };
        let mut guard = repos.lock(&place.identifier).await?;
        guard.create_view(&place.owner).await?;
        guard.promote_staged(id, tip).await?;
        if guard.check(&BTreeSet::from([tip])).await?.is_complete() {
            self.set_proposals(&mut guard, place, &BTreeMap::from([(id, tip)])).await?;
        }
        Ok(())
    }

    /// The pull requests that have a ref at a contributor's place of this name.
    pub(super) async fn contributions(
        &self,
        identifier: &Identifier,
    ) -> Result<BTreeSet<EventId>, KeepError> {
        let mut found = BTreeSet::new();
        let Some(repos) = &self.parts.contributors else { return Ok(found) };
        let guard = repos.lock(identifier).await?;
        for owner in guard.owners().await? {
            found.extend(guard.refs(&owner).await?.keys().filter_map(RefName::event));
        }
        Ok(found)
    }
}

/// Removes the places of a name that have no refs, and everything of that name with the last of them. While somebody
/// pushes there, nothing is removed: whoever comes last looks again.
pub(super) async fn vacate(
    repos: &RepoStore,
    workers: &Workers,
    name: &Identifier,
) -> Result<(), GitError> {
    let mut guard = repos.lock(name).await?;
    if workers.any_under(name) {
        return Ok(());
    }
    for owner in guard.owners().await? {
        if guard.refs(&owner).await?.is_empty() {
            guard.destroy_view(&owner).await?;
        }
    }
    guard.remove_if_deserted().await
}
