//! A family under its exclusive lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::nostr::types::Timestamp;
use grasp_core::push::{AuthorisedPush, PushCommand};
use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Oid, RefName, RepoId};
use nostr::event::EventId;
use nostr::key::PublicKey;
use tokio::sync::OwnedMutexGuard;

use super::collect::pack;
use super::unpacking::{Quarantine, move_packs};
use super::{Incoming, Needed, RepoStore};
use crate::database::{
    Commit, Committed, Conflict, FamilyChange, FamilyRow, Forget, Garbage, Pack, RetiredRef, View,
    ViewChange,
};
use crate::git::check::{Completeness, Objects, Proofs};
use crate::git::error::GitError;
use crate::git::layout::{self, Family};
use crate::git::packs::cache::InUse;
use crate::git::refs::{RefTarget, Refs};
use crate::git::{CHANGES, blocking, check};

/// As many packs as are worth the work of putting them together.
const MANY_PACKS: usize = 32;

/// The right to change a family: its views, their refs, its objects. Made by [`RepoStore::lock`].
///
/// Work that has begun on disk keeps the lock until it is done, even if the guard is dropped meanwhile.
#[derive(Debug)]
pub struct FamilyGuard {
    pub(super) store: RepoStore,
    pub(super) identifier: Identifier,
    pub(super) family: Family,
    held: Arc<OwnedMutexGuard<()>>,
    /// Keeps the packs on disk, where they are a cache.
    pub(super) in_use: Option<Arc<InUse>>,
    pub(super) is_present: tokio::sync::OnceCell<()>,
}

/// The refs that a view shall have.
#[derive(Clone, Debug, Default)]
pub struct WantedRefs {
    /// Branches and tags, exactly; `None` leaves them as they are.
    pub target: Option<RefTarget>,
    /// Pull requests whose ref shall point at this tip.
    pub proposals: BTreeMap<EventId, Oid>,
}

impl FamilyGuard {
    pub(super) fn new(
        store: RepoStore,
        identifier: Identifier,
        family: Family,
        (held, in_use): (OwnedMutexGuard<()>, Option<Arc<InUse>>),
    ) -> Self {
        let is_present = tokio::sync::OnceCell::new();
        Self { store, identifier, family, held: Arc::new(held), in_use, is_present }
    }

    /// Returns all that is committed about the family, but for its retired refs.
    pub async fn row(&self) -> Result<FamilyRow, GitError> {
        self.store.family_row(&self.identifier).await
    }

    /// Returns the retired refs of the family.
    pub async fn retired_refs(&self) -> Result<Vec<RetiredRef>, GitError> {
        self.store.retired_refs(&self.identifier).await
    }

    /// Returns the owners of the family's views.
    pub async fn owners(&self) -> Result<Vec<PublicKey>, GitError> {
        Ok(self.row().await?.views.into_keys().collect())
    }

    /// Returns the refs of a view.
    pub async fn refs(&self, owner: &PublicKey) -> Result<BTreeMap<RefName, Oid>, GitError> {
        self.store.refs(&self.repo(owner)).await
    }

    /// A place for objects that are about to come.
    pub(super) async fn incoming(&self, claimant: Claimant) -> Result<Incoming, GitError> {
        let Objects { family, in_use, .. } = self.objects().await?;
        let (store, name) = (self.store.clone(), self.identifier.clone());
        self.blocking(move || Incoming::new(&store, (family, in_use), &name, claimant)).await
    }

    /// Checks the histories of these tips. Complete ones are remembered.
    pub async fn check(&mut self, tips: &BTreeSet<Oid>) -> Result<Completeness, GitError> {
        if tips.is_empty() {
            return Ok(Completeness::default());
        }
        let found = self.objects().await?.examine(tips).await?;
        self.remember(tips - &found.lacking()).await?;
        Ok(found)
    }

    /// Takes in the objects of a judged push: those that were signed for become readable, tips without an event are staged.
    pub async fn take_push(
        &mut self,
        push: &AuthorisedPush,
        mut incoming: Incoming,
    ) -> Result<(), GitError> {
        let tips = tips(push.execute().iter().chain(push.stage()));
        incoming.check(&tips).await?.required()?;
        self.stage(push.stage(), &mut incoming).await?;
        let signed = self::tips(push.execute());
        if signed.is_empty() {
            return Ok(());
        }
        // A pack may bring more; only what was signed for becomes readable.
        let signed = incoming.into_part(&signed).await?;
        self.promote(signed).await
    }

    /// Makes what has arrived readable from every view of the family.
    pub async fn promote(&mut self, incoming: Incoming) -> Result<(), GitError> {
        let from = incoming.quarantine().objects();
        self.add_packs(move |family| move_packs(&from, &family.objects(), false)).await?;
        self.remember(incoming.into_whole()).await
    }

    /// Moves packs into the family, and names them.
    pub(super) async fn add_packs(
        &self,
        work: impl FnOnce(&Family) -> Result<Vec<Pack>, GitError> + Send + 'static,
    ) -> Result<(), GitError> {
        let (store, family) = (self.store.clone(), self.family.clone());
        let name = self.identifier.clone();
        let unsettled = self.store.unsettle(&self.family);
        let moved = self.blocking(move || {
            family.create(&name, &store.scratch())?;
            work(&family)
        });
        let mut change = self.change();
        change.add_packs = moved.await?;
        self.store.upload(&self.family, &change.add_packs).await?;
        self.commit(change).await?;
        unsettled.settle();
        self.store.measure(&self.family, 0).await
    }

    /// Removes the packs that no commit names, which a change that was not finished has left.
    ///
    /// They must not be taken for objects of the family: the next start would remove them under the refs to them.
    pub(super) async fn settle(&self) -> Result<(), GitError> {
        let (store, family, named) =
            (self.store.clone(), self.family.clone(), self.row().await?.packs);
        self.blocking(move || {
            // What was found to be whole with objects that go now is looked at again.
            store.count_removal();
            super::remove_garbage(&family, &named)
        })
        .await
    }
}

/// Refs and views.
impl FamilyGuard {
    /// Makes an empty view unless there is one.
    pub async fn create_view(&mut self, owner: &PublicKey) -> Result<(), GitError> {
        let mut change = self.change();
        let to = Some(Arc::new(Refs::default()));
        let retired = Vec::new();
        change.views.push(ViewChange { owner: *owner, from: None, to, state: None, retired });
        match self.commit(change).await {
            Err(GitError::Outdated) => Ok(()),
            created => created,
        }
    }

    /// Moves refs of a view, all or none, each from where the caller believes it to be.
    ///
    /// HEAD goes to `head` if that branch then exists; else it stays if it can, else it goes to a usual branch.
    pub async fn move_refs(
        &mut self,
        owner: &PublicKey,
        changes: &[PushCommand],
        head: Option<&RefName>,
        now: Timestamp,
    ) -> Result<(), GitError> {
        let view = self.store.view(&self.repo(owner)).await?;
        let mut change = self.change();
        let wanted = (changes.to_vec(), head.cloned(), view.state);
        let planned = self.plan_from(owner, Some(view), wanted, now).await?;
        planned.into_iter().for_each(|view| change.push(view));
        self.commit(change).await
    }

    /// Returns the change that leads to these refs, if everything behind them is here, and the garbage that it may leave;
    /// `None` if the view has them. A view that does not exist is made.
    pub async fn plan(
        &mut self,
        owner: &PublicKey,
        wanted: &WantedRefs,
        now: Timestamp,
    ) -> Result<Option<(ViewChange, Option<Garbage>)>, GitError> {
        let (database, endpoint) = (self.store.database(), self.store.endpoint());
        let view = database.view(endpoint, self.repo(owner)).await?;
        let current = view.as_ref().map(|view| view.refs.tips()).unwrap_or_default();
        let target = wanted.target.as_ref();
        let mut changes = target.map(|target| target.changes(&current)).unwrap_or_default();
        changes.extend(wanted.proposals.iter().filter_map(|(id, tip)| {
            let name = RefName::nostr(*id);
            let old = current.get(&name).copied();
            (old != Some(*tip)).then_some(PushCommand { old, new: Some(*tip), name })
        }));
        // The ref of a pull request makes no repository.
        if view.is_none() && target.is_none() && endpoint == Endpoint::Repository {
            return Ok(None);
        }
        let state = match target {
            Some(target) => target.state,
            None => view.as_ref().and_then(|view| view.state),
        };
        let head = target.and_then(|target| target.head.clone());
        self.plan_from(owner, view, (changes, head, state), now).await
    }

    async fn plan_from(
        &mut self,
        owner: &PublicKey,
        view: Option<View>,
        (changes, head, state): (Vec<PushCommand>, Option<RefName>, Option<EventId>),
        now: Timestamp,
    ) -> Result<Option<(ViewChange, Option<Garbage>)>, GitError> {
        let from = view.as_ref().map(|view| view.generation);
        let is_same_state = view.as_ref().is_some_and(|view| view.state == state);
        let refs = view.map(|view| view.refs).unwrap_or_default();
        // What a view serves was whole when it came to be served.
        let served: BTreeSet<_> = refs.refs.values().map(|target| target.oid).collect();
        let new: BTreeSet<_> = tips(&changes).difference(&served).copied().collect();
        self.check(&new).await?.required()?;
        let named = named_tips(&changes);
        let peeled = match named.is_empty() {
            true => BTreeMap::new(),
            false => {
                let objects = self.objects().await?.family.objects();
                self.blocking(move || check::behind_tags(&objects, &named)).await?
            }
        };
        let next = refs.after(&changes, head.as_ref(), &peeled)?;
        if is_same_state && next == *refs {
            return Ok(None);
        }
        let retired = retired(owner, refs.retired_by(&next), now);
        let view = ViewChange { owner: *owner, from, to: Some(Arc::new(next)), state, retired };
        Ok(Some((view, garbage_of(&changes))))
    }

    /// Takes a view out of service. Its refs are retired. That there is no view is fine.
    pub async fn retire_view(&mut self, owner: &PublicKey, now: Timestamp) -> Result<(), GitError> {
        let Some(view) = self.row().await?.views.remove(owner) else { return Ok(()) };
        let from = Some(view.generation);
        let retired = retired(owner, view.refs.retired_by(&Refs::default()), now);
        let garbage = (!view.refs.refs.is_empty()).then_some(Garbage::Removed);
        let mut change = self.change();
        change.push((ViewChange { owner: *owner, from, to: None, state: None, retired }, garbage));
        self.commit(change).await?;
        self.remove_cached_views(*owner).await?;
        self.remove_if_deserted().await
    }

    /// Removes a view for good, with all its retired refs: its owner has asked to vanish.
    ///
    /// Objects that other views share stay; without any other view the whole family goes.
    pub async fn destroy_view(&mut self, owner: &PublicKey) -> Result<(), GitError> {
        let view = self.row().await?.views.remove(owner);
        let mut change = self.change();
        change.views.extend(view.map(|view| ViewChange {
            owner: *owner,
            from: Some(view.generation),
            to: None,
            state: None,
            retired: Vec::new(),
        }));
        (change.forget, change.garbage) = (Forget::Of(*owner), Some(Garbage::Removed));
        self.commit(change).await?;
        self.remove_cached_views(*owner).await?;
        self.remove_unless_referred_to(true).await
    }

    /// Removes what git read of a view that is no longer served.
    async fn remove_cached_views(&self, owner: PublicKey) -> Result<(), GitError> {
        let family = self.family.clone();
        self.blocking(move || family.remove_cached_views(&owner)).await
    }

    /// Returns the owners of retired refs.
    pub async fn retired_owners(&self) -> Result<BTreeSet<PublicKey>, GitError> {
        Ok(self.retired_refs().await?.iter().map(|retired| retired.owner).collect())
    }

    /// Forgets the retired refs of an owner. A view in service stays.
    pub async fn forget_retired_of(&mut self, owner: &PublicKey) -> Result<(), GitError> {
        let mut change = self.change();
        (change.forget, change.garbage) = (Forget::Of(*owner), Some(Garbage::Removed));
        self.commit(change).await?;
        self.remove_unless_referred_to(true).await
    }

    /// Removes the family if nothing refers to it any more and nothing is on its way to it: no view, no retired ref,
    /// nothing staged, nothing being received.
    pub async fn remove_if_deserted(&mut self) -> Result<(), GitError> {
        self.remove_unless_referred_to(false).await
    }

    /// The same; what is being received does not count if it is `removed`: it would keep what was just taken away.
    async fn remove_unless_referred_to(&mut self, removed: bool) -> Result<(), GitError> {
        let row = self.row().await?;
        if !row.views.is_empty() || !self.retired_refs().await?.is_empty() {
            return Ok(());
        }
        let family = self.family.clone();
        let is_staged = self.blocking(move || Ok(!layout::list(&family.staging())?.is_empty()));
        let is_awaited = || self.store.inner.arrivals.is_active_under(&self.identifier);
        if is_staged.await? || (!removed && is_awaited()) {
            return Ok(());
        }
        let mut change = self.change();
        change.remove_packs = row.packs.into_iter().collect();
        change.is_collected = true;
        let unsettled = self.store.unsettle(&self.family);
        self.commit(change).await?;
        let (store, family) = (self.store.clone(), self.family.clone());
        self.blocking(move || {
            store.count_removal();
            layout::remove(&family.views())?;
            store.remove_whole(family.path())
        })
        .await?;
        unsettled.settle();
        self.store.measure(&self.family, 0).await
    }

    /// Returns a change of this family.
    pub fn change(&self) -> FamilyChange {
        FamilyChange::new(self.store.endpoint(), self.identifier.clone())
    }

    /// Commits a change, if it is one.
    pub(super) async fn commit(&self, change: FamilyChange) -> Result<(), GitError> {
        if change.is_empty() {
            return Ok(());
        }
        let _landing = match self.store.packs() {
            Some(cache) if !change.remove_packs.is_empty() => {
                Some(cache.landing(self.store.endpoint(), &self.family).await)
            }
            _ => None,
        };
        let commit = Commit { families: vec![change], ..Commit::default() };
        tracing::trace!(target: CHANGES, "committing");
        let committed = self.store.database().commit(commit).await?;
        tracing::trace!(target: CHANGES, "committed");
        match committed {
            Committed::Done { .. } => Ok(()),
            Committed::Conflict(Conflict::Moved(..) | Conflict::Refused(_)) => {
                Err(GitError::Outdated)
            }
        }
    }
}

/// Packs.
impl FamilyGuard {
    /// Makes few packs of many, if there are many; says whether there were. Nothing is thrown away.
    ///
    /// Each push brings a pack, and looking for an object may mean looking into every one.
    pub async fn compact(&mut self) -> Result<bool, GitError> {
        let packs = self.row().await?.packs.into_iter().filter(|pack| !pack.is_attic).collect();
        let small = packs_to_join(packs);
        if small.is_empty() {
            return Ok(false);
        }
        let input: String = small.iter().map(|pack| format!("{}.pack\n", pack.name)).collect();
        let command = self.objects().await?.command("pack-objects");
        let command = command.arg("--stdin-packs").keeping(self.held.clone());
        let joined = pack(&self.store, command, input.into_bytes()).await?;
        self.replace_packs(vec![(joined, false)], small, self.change()).await?;
        Ok(true)
    }

    /// Puts packs in the place of others, of the attic where that is said, together with another change.
    pub(super) async fn replace_packs(
        &self,
        new: Vec<(Quarantine, bool)>,
        old: BTreeSet<Pack>,
        mut change: FamilyChange,
    ) -> Result<(), GitError> {
        let family = self.family.clone();
        let unsettled = self.store.unsettle(&self.family);
        let added = self.blocking(move || {
            let mut added = Vec::new();
            for (from, is_attic) in new {
                let to = if is_attic { family.attic() } else { family.objects() };
                added.extend(move_packs(&from.objects(), &to, is_attic)?);
            }
            Ok(added)
        });
        let added = added.await?;
        self.store.upload(&self.family, &added).await?;
        change.remove_packs = old.into_iter().filter(|pack| !added.contains(pack)).collect();
        change.add_packs = added;
        self.commit(change).await?;
        let (family, named) = (self.family.clone(), self.row().await?.packs);
        self.blocking(move || {
            super::unnamed_files(&family, &named)?.iter().try_for_each(|file| layout::remove(file))
        })
        .await?;
        unsettled.settle();
        self.store.measure(&self.family, 0).await
    }

    pub(super) fn repo(&self, owner: &PublicKey) -> RepoId {
        RepoId::new(*owner, self.identifier.clone())
    }

    pub(super) async fn remember(&self, mut whole: BTreeSet<Oid>) -> Result<(), GitError> {
        if whole.is_empty() {
            return Ok(());
        }
        let (store, family) = (self.store.clone(), self.family.clone());
        let proofs = self.blocking(move || Proofs::load(&family)).await?;
        whole.retain(|tip| !proofs.contains(tip));
        if whole.is_empty() {
            return Ok(());
        }
        // Tips of others must not displace the proofs that a view depends on.
        let shown = match proofs.is_full_with(whole.len()) {
            true => check::shares_of_views(&self.row().await?),
            false => BTreeSet::new(),
        };
        let family = self.family.clone();
        self.blocking(move || proofs.add(&family, whole, &shown, &store.scratch())).await
    }

    /// Runs work on the disk, which keeps the lock to its own end.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, GitError> + Send + 'static,
    ) -> Result<T, GitError> {
        let held = self.held.clone();
        blocking(move || {
            let result = work();
            drop(held);
            result
        })
        .await
    }
}

/// Returns the packs to put together so that of all that are left each has twice the size of all smaller ones together;
/// none if there are few.
fn packs_to_join(packs: BTreeSet<Pack>) -> BTreeSet<Pack> {
    if packs.len() < MANY_PACKS {
        return BTreeSet::new();
    }
    let mut packs: Vec<Pack> = packs.into_iter().collect();
    packs.sort_by_key(|pack| pack.bytes);
    let (mut smaller, mut joined) = (0_u64, 0);
    for (number, pack) in packs.iter().enumerate() {
        if number > 0 && pack.bytes < smaller.saturating_mul(2) {
            joined = number + 1;
        }
        smaller = smaller.saturating_add(pack.bytes);
    }
    packs.into_iter().take(joined).collect()
}

/// Returns the retired refs of an owner.
fn retired(owner: &PublicKey, tips: BTreeMap<Oid, RefName>, since: Timestamp) -> Vec<RetiredRef> {
    let retired = |(tip, name)| RetiredRef { owner: *owner, tip, name, since };
    tips.into_iter().map(retired).collect()
}

/// Returns the garbage that these changes may leave.
fn garbage_of(changes: &[PushCommand]) -> Option<Garbage> {
    let takes = |change: &&PushCommand| change.old.is_some() && change.old != change.new;
    let garbage = changes.iter().filter(takes).map(|change| match change.name.event() {
        Some(_) => Garbage::Removed,
        None => Garbage::Moved,
    });
    garbage.max()
}

/// The objects that these commands move refs to.
fn tips<'a>(commands: impl IntoIterator<Item = &'a PushCommand>) -> BTreeSet<Oid> {
    commands.into_iter().filter_map(|command| command.new).collect()
}

fn named_tips(commands: &[PushCommand]) -> BTreeMap<RefName, Oid> {
    let named = commands.iter().filter_map(|command| Some((command.name.clone(), command.new?)));
    named.collect()
}

impl FamilyGuard {
    /// The owners of views that lack objects, as far as that can be seen without walking through a history.
    ///
    /// Looks for the tips of all refs and for all proven tips. Each push and each fetch leaves a proof of a tip in the
    /// pack that it brought, so the loss of a pack shows even if newer tips are elsewhere; which views need that pack
    /// is then not known, and all are named.
    pub async fn damaged_views(&self) -> Result<BTreeSet<PublicKey>, GitError> {
        let views = self.row().await?.views.into_iter();
        let mut tips: BTreeMap<PublicKey, BTreeSet<Oid>> = views
            .map(|(owner, view)| (owner, view.refs.refs.values().map(|it| it.oid).collect()))
            .collect();
        let family = self.family.clone();
        self.blocking(move || {
            let proofs = Proofs::load(&family)?;
            let wanted = tips.values().flatten().chain(proofs.tips()).copied().collect();
            let lost = check::missing(&[family.objects()], &wanted)?;
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
        let objects = self.objects(identifier, Needed::Served).await?;
        let mut broken = BTreeSet::new();
        for (owner, view) in self.family_row(identifier).await?.views {
            let tips: Vec<_> = view.refs.refs.values().map(|target| target.oid).collect();
            if !tips.is_empty() && !objects.is_whole(&tips).await? {
                broken.insert(owner);
            }
        }
        Ok(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(sizes: &[u64]) -> Vec<u64> {
        let pack = |(n, bytes): (usize, &u64)| Pack {
            name: format!("pack-{n:04}"),
            bytes: *bytes,
            is_attic: false,
        };
        let joined = packs_to_join(sizes.iter().enumerate().map(pack).collect());
        let mut sizes: Vec<_> = joined.into_iter().map(|pack| pack.bytes).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn joins_small_packs_and_leaves_large_ones() {
        assert!(joined(&[1; 31]).is_empty());
        assert_eq!(joined(&[1; 32]).len(), 32);
        let mut sizes = vec![1; 31];
        sizes.extend([1_000, 5_000]);
        assert_eq!(joined(&sizes), [1; 31]);
    }
}
