//! A repository under its exclusive lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::nostr::types::Timestamp;
use grasp_core::push::{AuthorisedPush, PushCommand};
use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId};
use nostr::event::EventId;
use nostr::key::PublicKey;
use tokio::sync::OwnedMutexGuard;

use super::collect::pack;
use super::unpacking::{Quarantine, move_packs};
use super::{Incoming, RepoStore};
use crate::database::{
    Commit, Committed, Conflict, Forget, Garbage, Pack, ProposalChanges, RepoChange, RepoRow,
    RetiredRef, View, ViewChange,
};
use crate::git::check::{Completeness, Objects, Proofs};
use crate::git::error::GitError;
use crate::git::layout::{self, RepoDir};
use crate::git::packs::cache::InUse;
use crate::git::refs::{RefTarget, Refs};
use crate::git::{CHANGES, blocking, check};

/// As many packs as are worth the work of putting them together.
const MANY_PACKS: usize = 32;

/// The right to change a repository: its views, their refs, its objects. Made by [`RepoStore::lock`].
///
/// Work that has begun on disk keeps the lock until it is done, even if the guard is dropped meanwhile.
#[derive(Debug)]
pub struct RepoGuard {
    pub(super) store: RepoStore,
    pub(super) repo: RepoId,
    pub(super) dir: RepoDir,
    held: Arc<OwnedMutexGuard<()>>,
    /// Keeps the packs on disk, where they are a cache.
    pub(super) in_use: Option<Arc<InUse>>,
    pub(super) is_present: tokio::sync::OnceCell<()>,
}

/// The refs that a repository shall have.
#[derive(Clone, Debug, Default)]
pub struct WantedRefs {
    /// Branches and tags, exactly; `None` leaves them as they are.
    pub target: Option<RefTarget>,
    /// Pull requests whose ref shall point at this tip.
    pub proposals: BTreeMap<EventId, Oid>,
    /// The maintainers to remember; `None` leaves them as they are.
    pub maintainers: Option<BTreeSet<PublicKey>>,
    /// The owner of the repository to be an address of. No ref stays then.
    pub shows: Option<PublicKey>,
}

impl RepoGuard {
    pub(super) fn new(
        store: RepoStore,
        repo: RepoId,
        dir: RepoDir,
        (held, in_use): (OwnedMutexGuard<()>, Option<Arc<InUse>>),
    ) -> Self {
        let is_present = tokio::sync::OnceCell::new();
        Self {
            store,
            repo,
            dir,
            held: Arc::new(held),
            in_use,
            is_present,
        }
    }

    /// Returns the repository that is locked.
    pub fn repo(&self) -> &RepoId {
        &self.repo
    }

    /// Returns all that is committed about the repository, but for its retired refs.
    pub async fn row(&self) -> Result<RepoRow, GitError> {
        self.store.row(&self.repo).await
    }

    /// Returns the tips that were replaced lately.
    pub async fn retired_refs(&self) -> Result<Vec<RetiredRef>, GitError> {
        self.store.retired_refs(&self.repo).await
    }

    /// Returns the refs of the repository.
    pub async fn refs(&self) -> Result<BTreeMap<RefName, Oid>, GitError> {
        self.store.refs(&self.repo).await
    }

    /// A place for objects that are about to come.
    pub(super) async fn incoming(&self, claimant: Claimant) -> Result<Incoming, GitError> {
        let Objects { dir, in_use, .. } = self.objects().await?;
        let (store, name) = (self.store.clone(), self.repo.clone());
        self.blocking(move || Incoming::new(&store, (dir, in_use), &name, claimant))
            .await
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

    /// Makes what has arrived readable.
    pub async fn promote(&mut self, incoming: Incoming) -> Result<(), GitError> {
        let from = incoming.quarantine().objects();
        self.add_packs(move |dir| move_packs(&from, &dir.objects()))
            .await?;
        self.remember(incoming.into_whole()).await
    }

    /// Moves packs into the repository, and names them.
    pub(super) async fn add_packs(
        &self,
        work: impl FnOnce(&RepoDir) -> Result<Vec<Pack>, GitError> + Send + 'static,
    ) -> Result<(), GitError> {
        let (store, dir) = (self.store.clone(), self.dir.clone());
        let name = self.repo.clone();
        let unsettled = self.store.unsettle(&self.dir);
        let moved = self.blocking(move || {
            dir.create(&name, &store.scratch())?;
            work(&dir)
        });
        let mut change = self.change();
        change.add_packs = moved.await?;
        self.store.upload(&self.dir, &change.add_packs).await?;
        self.commit(change).await?;
        unsettled.settle();
        self.store.measure(&self.dir, 0).await
    }

    /// Removes the packs that no commit names, which a change that was not finished has left.
    ///
    /// They must not be taken for objects of the repository: the next start would remove them under the refs to them.
    pub(super) async fn settle(&self) -> Result<(), GitError> {
        let (store, dir, named) = (
            self.store.clone(),
            self.dir.clone(),
            self.row().await?.packs,
        );
        self.blocking(move || {
            // What was found to be whole with objects that go now is looked at again.
            store.count_removal();
            super::remove_garbage(&dir, &named)
        })
        .await
    }
}

/// Refs.
impl RepoGuard {
    /// Makes an empty view unless there is one.
    pub async fn create_view(&mut self) -> Result<(), GitError> {
        if self.row().await?.view.is_some() {
            return Ok(());
        }
        let mut change = self.change();
        change.view = Some(ViewChange {
            from: None,
            to: Some(Arc::default()),
            state: None,
            maintainers: BTreeSet::new(),
            shows: None,
            retired: Vec::new(),
            proposals: ProposalChanges::default(),
        });
        match self.commit(change).await {
            // A release was faster.
            Err(GitError::Outdated) => Ok(()),
            created => created,
        }
    }

    /// Moves refs, all or none, each from where the caller believes it to be.
    ///
    /// HEAD goes to `head` if that branch then exists; else it stays if it can, else it goes to a usual branch.
    pub async fn move_refs(
        &mut self,
        changes: &[PushCommand],
        head: Option<&RefName>,
        now: Timestamp,
    ) -> Result<(), GitError> {
        let view = self.store.view(&self.repo).await?;
        let next = NextView {
            changes: changes.to_vec(),
            head: head.cloned(),
            state: view.state,
            maintainers: view.maintainers.clone(),
            shows: view.shows,
        };
        match self.plan_from(Some(view), next, now).await? {
            Some(change) => self.commit(change).await,
            None => Ok(()),
        }
    }

    /// Returns the change that leads to these refs, if everything behind them is here; `None` if the repository has them.
    /// A view that does not exist is made.
    pub async fn plan(
        &mut self,
        wanted: &WantedRefs,
        now: Timestamp,
    ) -> Result<Option<RepoChange>, GitError> {
        let (database, endpoint) = (self.store.database(), self.store.endpoint());
        let view = database.view(endpoint, self.repo.clone()).await?;
        let target = wanted.target.as_ref();
        // The ref of a pull request makes no repository.
        let is_made = target.is_some() || wanted.shows.is_some();
        if view.is_none() && !is_made && endpoint == Endpoint::Repository {
            return Ok(None);
        }
        if wanted.shows.is_some() {
            return self.plan_address(view, wanted, now);
        }
        let current = view
            .as_ref()
            .map(|view| view.refs.tips())
            .unwrap_or_default();
        let mut changes = target
            .map(|target| target.changes(&current))
            .unwrap_or_default();
        for (id, tip) in &wanted.proposals {
            let name = RefName::nostr(*id);
            let old = current.get(&name).copied();
            if old != Some(*tip) {
                changes.push(PushCommand {
                    old,
                    new: Some(*tip),
                    name,
                });
            }
        }
        let state = match target {
            Some(target) => target.state,
            None => view.as_ref().and_then(|view| view.state),
        };
        let maintainers = match &wanted.maintainers {
            Some(maintainers) => maintainers.clone(),
            None => view
                .as_ref()
                .map(|view| view.maintainers.clone())
                .unwrap_or_default(),
        };
        let head = target.and_then(|target| target.head.clone());
        let shows = match &wanted.maintainers {
            Some(_) => None,
            None => view.as_ref().and_then(|view| view.shows),
        };
        self.plan_from(
            view,
            NextView {
                changes,
                head,
                state,
                maintainers,
                shows,
            },
            now,
        )
        .await
    }

    /// Returns the change that makes the repository an address of another one. Its tips are retired.
    fn plan_address(
        &self,
        view: Option<View>,
        wanted: &WantedRefs,
        now: Timestamp,
    ) -> Result<Option<RepoChange>, GitError> {
        let from = view.as_ref().map(|view| view.generation);
        let before = view.unwrap_or_default();
        let after = Refs {
            refs: BTreeMap::new(),
            ..Refs::clone(&before.refs)
        };
        let maintainers = wanted.maintainers.clone().unwrap_or_default();
        let is_same = before.shows == wanted.shows && before.maintainers == maintainers;
        if is_same && after == *before.refs {
            return Ok(None);
        }
        let mut change = self.change();
        change.garbage = (!before.refs.refs.is_empty()).then_some(Garbage::Moved);
        change.view = Some(ViewChange {
            from,
            state: None,
            maintainers,
            shows: wanted.shows,
            retired: retired(before.refs.retired_by(&after), now),
            proposals: ProposalChanges::between(&before.refs, &after),
            to: Some(Arc::new(after)),
        });
        Ok(Some(change))
    }

    async fn plan_from(
        &mut self,
        view: Option<View>,
        next: NextView,
        now: Timestamp,
    ) -> Result<Option<RepoChange>, GitError> {
        let NextView {
            changes,
            head,
            state,
            maintainers,
            shows,
        } = next;
        let from = view.as_ref().map(|view| view.generation);
        let is_same = view.as_ref().is_some_and(|view| {
            view.state == state && view.maintainers == maintainers && view.shows == shows
        });
        let refs = view.map(|view| view.refs).unwrap_or_default();
        // What is served was whole when it came to be served.
        let served: BTreeSet<_> = refs.refs.values().map(|target| target.oid).collect();
        let new: BTreeSet<_> = tips(&changes).difference(&served).copied().collect();
        self.check(&new).await?.required()?;
        let named = named_tips(&changes);
        let peeled = match named.is_empty() {
            true => BTreeMap::new(),
            false => {
                let objects = self.objects().await?.dir.objects();
                self.blocking(move || check::behind_tags(&objects, &named))
                    .await?
            }
        };
        let after = refs.after(&changes, head.as_ref(), &peeled)?;
        if is_same && after == *refs {
            return Ok(None);
        }
        let mut change = self.change();
        change.garbage = garbage_of(&changes);
        change.view = Some(ViewChange {
            from,
            state,
            maintainers,
            shows,
            retired: retired(refs.retired_by(&after), now),
            proposals: ProposalChanges::between(&refs, &after),
            to: Some(Arc::new(after)),
        });
        Ok(Some(change))
    }

    /// Takes the repository out of service. Its tips are retired. That there is no view is fine.
    pub async fn retire(&mut self, now: Timestamp) -> Result<(), GitError> {
        let Some(view) = self.row().await?.view else {
            return Ok(());
        };
        let retired = retired(view.refs.retired_by(&Refs::default()), now);
        let mut change = self.without_view(&view);
        change.garbage = (!view.refs.refs.is_empty()).then_some(Garbage::Removed);
        if let Some(view) = &mut change.view {
            view.retired = retired;
        }
        self.commit(change).await?;
        self.remove_cached_views().await?;
        self.remove_if_deserted().await
    }

    /// Removes the repository for good, with all its retired refs: its owner has deleted it, or vanished.
    pub async fn destroy(&mut self) -> Result<(), GitError> {
        let mut change = match self.row().await?.view {
            Some(view) => self.without_view(&view),
            None => self.change(),
        };
        (change.forget, change.garbage) = (Forget::All, Some(Garbage::Removed));
        self.commit(change).await?;
        self.remove_cached_views().await?;
        self.remove_unless_referred_to(true).await
    }

    /// Returns the change that removes a view.
    fn without_view(&self, view: &View) -> RepoChange {
        let mut change = self.change();
        change.view = Some(ViewChange {
            from: Some(view.generation),
            to: None,
            state: None,
            maintainers: BTreeSet::new(),
            shows: None,
            retired: Vec::new(),
            proposals: ProposalChanges::between(&view.refs, &Refs::default()),
        });
        change
    }

    /// Removes what git read of a repository that is no longer served.
    async fn remove_cached_views(&self) -> Result<(), GitError> {
        let dir = self.dir.clone();
        self.blocking(move || layout::remove(&dir.views())).await
    }

    /// Forgets the retired refs. What is in service stays.
    pub async fn forget_retired(&mut self) -> Result<(), GitError> {
        let mut change = self.change();
        (change.forget, change.garbage) = (Forget::All, Some(Garbage::Removed));
        self.commit(change).await?;
        self.remove_unless_referred_to(true).await
    }

    /// Removes the repository if nothing refers to it any more and nothing is on its way to it: no view, no retired ref,
    /// nothing staged, nothing being received.
    pub async fn remove_if_deserted(&mut self) -> Result<(), GitError> {
        self.remove_unless_referred_to(false).await
    }

    /// The same; what is being received does not count if it is `removed`: it would keep what was just taken away.
    async fn remove_unless_referred_to(&mut self, removed: bool) -> Result<(), GitError> {
        let row = self.row().await?;
        if row.view.is_some() || !self.retired_refs().await?.is_empty() {
            return Ok(());
        }
        let dir = self.dir.clone();
        let is_staged = self.blocking(move || Ok(!layout::list(&dir.staging())?.is_empty()));
        let is_awaited = || self.store.inner.arrivals.is_active(&self.repo);
        if is_staged.await? || (!removed && is_awaited()) {
            return Ok(());
        }
        let mut change = self.change();
        change.remove_packs = row.packs.into_iter().collect();
        change.is_collected = true;
        let unsettled = self.store.unsettle(&self.dir);
        self.commit(change).await?;
        let (store, dir) = (self.store.clone(), self.dir.clone());
        self.blocking(move || {
            store.count_removal();
            layout::remove(&dir.views())?;
            store.remove_whole(dir.path())
        })
        .await?;
        unsettled.settle();
        self.store.measure(&self.dir, 0).await
    }

    /// Returns a change of this repository.
    pub fn change(&self) -> RepoChange {
        RepoChange::new(self.store.endpoint(), self.repo.clone())
    }

    /// Commits a change, if it is one.
    pub(super) async fn commit(&self, change: RepoChange) -> Result<(), GitError> {
        if change.is_empty() {
            return Ok(());
        }
        let _landing = match self.store.packs() {
            Some(cache) if !change.remove_packs.is_empty() => {
                Some(cache.landing(self.store.endpoint(), &self.dir).await)
            }
            _ => None,
        };
        let commit = Commit {
            repos: vec![change],
            ..Commit::default()
        };
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
impl RepoGuard {
    /// Makes few packs of many, if there are many; says whether there were. Nothing is thrown away.
    ///
    /// Each push brings a pack, and looking for an object may mean looking into every one.
    pub async fn compact(&mut self) -> Result<bool, GitError> {
        let small = packs_to_join(self.row().await?.packs);
        if small.is_empty() {
            return Ok(false);
        }
        let input: String = small
            .iter()
            .map(|pack| format!("{}.pack\n", pack.name))
            .collect();
        let command = self.objects().await?.command("pack-objects");
        let command = command.arg("--stdin-packs").keeping(self.held.clone());
        let joined = pack(&self.store, command, input.into_bytes()).await?;
        self.replace_packs(joined, small, self.change()).await?;
        Ok(true)
    }

    /// Puts packs in the place of others, together with another change.
    pub(super) async fn replace_packs(
        &self,
        new: Quarantine,
        old: BTreeSet<Pack>,
        mut change: RepoChange,
    ) -> Result<(), GitError> {
        let dir = self.dir.clone();
        let unsettled = self.store.unsettle(&self.dir);
        let added = self.blocking(move || move_packs(&new.objects(), &dir.objects()));
        let added = added.await?;
        self.store.upload(&self.dir, &added).await?;
        change.remove_packs = old
            .into_iter()
            .filter(|pack| !added.contains(pack))
            .collect();
        change.add_packs = added;
        self.commit(change).await?;
        let (dir, named) = (self.dir.clone(), self.row().await?.packs);
        self.blocking(move || {
            super::unnamed_files(&dir, &named)?
                .iter()
                .try_for_each(|file| layout::remove(file))
        })
        .await?;
        unsettled.settle();
        self.store.measure(&self.dir, 0).await
    }

    pub(super) async fn remember(&self, mut whole: BTreeSet<Oid>) -> Result<(), GitError> {
        if whole.is_empty() {
            return Ok(());
        }
        let (store, dir) = (self.store.clone(), self.dir.clone());
        let proofs = self.blocking(move || Proofs::load(&dir)).await?;
        whole.retain(|tip| !proofs.contains(tip));
        if whole.is_empty() {
            return Ok(());
        }
        // Tips of pull requests must not displace the proofs that branches depend on.
        let shown = match proofs.is_full_with(whole.len()) {
            true => check::proofs_to_keep(&self.row().await?),
            false => BTreeSet::new(),
        };
        let dir = self.dir.clone();
        self.blocking(move || proofs.add(&dir, whole, &shown, &store.scratch()))
            .await
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

/// The refs that a repository gets.
struct NextView {
    /// Changes of single refs.
    changes: Vec<PushCommand>,
    /// The branch that HEAD should name.
    head: Option<RefName>,
    /// The state event that declares branches and tags.
    state: Option<EventId>,
    maintainers: BTreeSet<PublicKey>,
    /// The owner of the repository that it is an address of.
    shows: Option<PublicKey>,
}

fn retired(tips: BTreeMap<Oid, RefName>, since: Timestamp) -> Vec<RetiredRef> {
    tips.into_iter()
        .map(|(tip, name)| RetiredRef { tip, name, since })
        .collect()
}

/// Returns the garbage that these changes may leave.
fn garbage_of(changes: &[PushCommand]) -> Option<Garbage> {
    let takes = |change: &&PushCommand| change.old.is_some() && change.old != change.new;
    let garbage = changes
        .iter()
        .filter(takes)
        .map(|change| match change.name.event() {
            Some(_) => Garbage::Removed,
            None => Garbage::Moved,
        });
    garbage.max()
}

/// The objects that these commands move refs to.
fn tips<'a>(commands: impl IntoIterator<Item = &'a PushCommand>) -> BTreeSet<Oid> {
    commands
        .into_iter()
        .filter_map(|command| command.new)
        .collect()
}

fn named_tips(commands: &[PushCommand]) -> BTreeMap<RefName, Oid> {
    let named = commands
        .iter()
        .filter_map(|command| Some((command.name.clone(), command.new?)));
    named.collect()
}

impl RepoGuard {
    /// Returns whether objects are missing, as far as that can be seen without walking through a history.
    ///
    /// Looks for the tips of all refs and for all proven tips. Each push and each fetch leaves a proof of a tip in the
    /// pack that it brought, so the loss of a pack shows even if newer tips are elsewhere.
    pub async fn lacks_tips(&self) -> Result<bool, GitError> {
        let shown = self.row().await?.tips();
        let dir = self.dir.clone();
        self.blocking(move || {
            let proofs = Proofs::load(&dir)?;
            Ok(!check::missing(&[dir.objects()], &(&shown | proofs.tips()))?.is_empty())
        })
        .await
    }
}

impl RepoStore {
    /// Returns whether the history of refs lacks objects. Walks through all of it, without regard to earlier proofs.
    pub async fn is_broken(&self, repo: &RepoId) -> Result<bool, GitError> {
        let objects = self.objects(repo).await?;
        let tips: Vec<_> = self.row(repo).await?.tips().into_iter().collect();
        Ok(!tips.is_empty() && !objects.is_whole(&tips).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(sizes: &[u64]) -> Vec<u64> {
        let pack = |(n, bytes): (usize, &u64)| Pack {
            name: format!("pack-{n:04}"),
            bytes: *bytes,
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
