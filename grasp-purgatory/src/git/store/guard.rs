//! A repository under its exclusive lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::nostr::types::Timestamp;
use grasp_core::push::{AuthorisedPush, PushCommand};
use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId};
use nostr::event::EventId;
use tokio::sync::OwnedMutexGuard;

use super::next_view::{NextView, WantedRefs, tips};
use super::{CopySource, Incoming, Repository, collect, pack_change, present, staging};
use crate::database::{
    Commit, Committed, Conflict, Forget, Garbage, RepoChange, RepoRow, RetiredRef,
};
use crate::git::check::{Completeness, Objects, Proofs};
use crate::git::command::Keep;
use crate::git::error::GitError;
use crate::git::layout;
use crate::git::packs::cache::InUse;
use crate::git::refs::Refs;
use crate::git::{CHANGES, blocking, check};

/// The right to change a repository: its view, its refs, its objects. Made by [`Repository::lock`].
#[derive(Debug)]
pub struct RepoGuard {
    pub(super) repository: Repository,
    pub(super) held: Held,
    /// Keeps the packs on disk, where they are a cache.
    in_use: Option<Arc<InUse>>,
    is_present: tokio::sync::OnceCell<()>,
}

/// The lock of a repository. Work that has begun keeps it to its own end, even if the guard is dropped meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Held(Arc<OwnedMutexGuard<()>>);

impl Held {
    /// Runs work on the disk.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, GitError> + Send + 'static,
    ) -> Result<T, GitError> {
        let held = self.clone();
        blocking(move || {
            let result = work();
            drop(held);
            result
        })
        .await
    }

    /// Keeps the lock for as long as a process runs.
    pub(super) fn kept(&self) -> Keep {
        self.0.clone()
    }
}

impl RepoGuard {
    /// Begins to change a repository whose lock is held: removes the packs that no commit names.
    pub(super) async fn begin(
        repository: Repository,
        held: OwnedMutexGuard<()>,
    ) -> Result<Self, GitError> {
        let in_use = match repository.store.stored() {
            Some(stored) => Some(stored.enter(&repository).await),
            None => None,
        };
        let guard = Self {
            repository,
            held: Held(Arc::new(held)),
            in_use,
            is_present: tokio::sync::OnceCell::new(),
        };
        pack_change::remove_unnamed(&guard).await?;
        Ok(guard)
    }

    /// Returns the repository that is locked.
    pub fn repo(&self) -> &RepoId {
        &self.repository.id
    }

    /// Returns all that is committed about the repository, but for its retired refs.
    pub async fn row(&self) -> Result<RepoRow, GitError> {
        self.repository.row().await
    }

    /// Returns the tips that were replaced lately.
    pub async fn retired_refs(&self) -> Result<Vec<RetiredRef>, GitError> {
        self.repository.retired_refs().await
    }

    /// Returns the refs of the repository.
    pub async fn refs(&self) -> Result<BTreeMap<RefName, Oid>, GitError> {
        self.repository.store.refs(&self.repository.id).await
    }

    /// Returns the objects of the repository, all of them on disk.
    pub(super) async fn objects(&self) -> Result<Objects, GitError> {
        self.is_present.get_or_try_init(|| self.bring()).await?;
        Ok(self.repository.objects_kept_by(self.in_use.clone()))
    }

    /// Brings packs onto disk, where that is a cache. What is served is proven then: it was whole when it came to be
    /// served.
    ///
    /// Without that proof every check would walk all histories, and every push would be packed with all of its own.
    pub(super) async fn bring(&self) -> Result<(), GitError> {
        let Some(present) = present(&self.repository).await? else {
            return Ok(());
        };
        let proofs = self.repository.dir.proofs();
        if !present.lost.is_empty() || self.held.run(move || Ok(proofs.exists())).await? {
            return Ok(());
        }
        self.remember(self.row().await?.tips()).await
    }

    /// A place for objects that are about to come.
    pub(super) async fn incoming(&self, claimant: Claimant) -> Result<Incoming, GitError> {
        let in_use = self.objects().await?.in_use;
        let repository = self.repository.clone();
        let making = self
            .held
            .run(move || Incoming::new(&repository, in_use, claimant));
        making.await
    }

    /// Takes tips with their whole history from another repository, of this store or another.
    pub async fn copy(
        &self,
        source: &CopySource,
        tips: &BTreeSet<Oid>,
    ) -> Result<Incoming, GitError> {
        let mut incoming = self.incoming(Claimant::default()).await?;
        incoming.fill_from(source.objects.clone(), tips).await?;
        Ok(incoming)
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

    /// Returns whether objects are missing, as far as that can be seen without walking through a history.
    ///
    /// Looks for the tips of all refs and for all proven tips. Each push and each fetch leaves a proof of a tip in the
    /// pack that it brought, so the loss of a pack shows even if newer tips are elsewhere.
    pub async fn lacks_tips(&self) -> Result<bool, GitError> {
        let shown = self.row().await?.tips();
        let dir = self.repository.dir.clone();
        let looking = self.held.run(move || {
            let proofs = Proofs::load(&dir)?;
            Ok(!check::missing(&[dir.objects()], &(&shown | proofs.tips()))?.is_empty())
        });
        looking.await
    }

    /// Notes that everything behind these tips is here.
    pub(super) async fn remember(&self, mut whole: BTreeSet<Oid>) -> Result<(), GitError> {
        if whole.is_empty() {
            return Ok(());
        }
        let dir = self.repository.dir.clone();
        let proofs = self.held.run(move || Proofs::load(&dir)).await?;
        whole.retain(|tip| !proofs.contains(tip));
        if whole.is_empty() {
            return Ok(());
        }
        // Tips of pull requests must not displace the proofs that branches depend on.
        let shown = match proofs.is_full_with(whole.len()) {
            true => check::proofs_to_keep(&self.row().await?),
            false => BTreeSet::new(),
        };
        let repository = self.repository.clone();
        let adding = self.held.run(move || {
            let scratch = repository.store.scratch();
            proofs.add(&repository.dir, whole, &shown, &scratch)
        });
        adding.await
    }

    /// Takes in the objects of a judged push: those that were signed for become readable, tips without an event are staged.
    pub async fn take_push(
        &mut self,
        push: &AuthorisedPush,
        mut incoming: Incoming,
    ) -> Result<(), GitError> {
        let all = tips(push.execute().iter().chain(push.stage()));
        incoming.check(&all).await?.required()?;
        staging::stage(self, push.stage(), &mut incoming).await?;
        let signed = tips(push.execute());
        if signed.is_empty() {
            return Ok(());
        }
        // A pack may bring more; only what was signed for becomes readable.
        let signed = incoming.into_part(&signed).await?;
        self.promote(signed).await
    }

    /// Makes what has arrived readable.
    pub async fn promote(&mut self, incoming: Incoming) -> Result<(), GitError> {
        pack_change::add(self, incoming.quarantine().objects()).await?;
        self.remember(incoming.into_whole()).await
    }

    /// The tips that wait for this event.
    pub async fn staged(&self, event: EventId) -> Result<BTreeSet<Oid>, GitError> {
        staging::staged(self, event).await
    }

    /// Takes a staged tip into the repository, now that its event has come. Says whether it was there.
    ///
    /// The tip can be read by its id from then on; a ref to it is made by [`RepoGuard::move_refs`].
    pub async fn promote_staged(&mut self, event: EventId, tip: Oid) -> Result<bool, GitError> {
        let Some(objects) = staging::bring(self, event, tip).await? else {
            return Ok(false);
        };
        pack_change::add(self, objects).await?;
        staging::discard(self, event, tip).await?;
        // The repository may have lost nothing since the upload was checked, but looking costs little.
        _ = self.check(&BTreeSet::from([tip])).await?;
        Ok(true)
    }

    /// Forgets one of the tips that wait for this event.
    pub async fn discard_staged_tip(&mut self, event: EventId, tip: Oid) -> Result<(), GitError> {
        staging::discard(self, event, tip).await
    }

    /// Makes few packs of many, if there are many; says whether there were. Nothing is thrown away.
    ///
    /// Each push brings a pack, and looking for an object may mean looking into every one.
    pub async fn compact(&mut self) -> Result<bool, GitError> {
        pack_change::compact(self).await
    }

    /// Makes an empty view unless there is one.
    pub async fn create_view(&mut self) -> Result<(), GitError> {
        if self.repository.store.has_view(&self.repository.id).await? {
            return Ok(());
        }
        let nothing = Refs::default();
        let at = Timestamp::from_secs(0);
        let Some(change) = NextView::default().plan(self.change(), None, nothing, at) else {
            return Ok(());
        };
        match self.commit(change).await {
            // A release was faster.
            Err(GitError::Outdated) => Ok(()),
            created => created,
        }
    }

    /// Moves refs, all or none, each from where the caller believes it to be. HEAD stays if it can.
    pub async fn move_refs(
        &mut self,
        changes: &[PushCommand],
        now: Timestamp,
    ) -> Result<(), GitError> {
        let view = self.repository.store.view(&self.repository.id).await?;
        let next = NextView::moved(&view, changes);
        let after = self.refs_after(&view.refs, &next).await?;
        match next.plan(self.change(), Some(&view), after, now) {
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
        let store = &self.repository.store;
        let reading = store
            .database()
            .view(store.endpoint(), self.repository.id.clone());
        let view = reading.await?;
        // The ref of a pull request makes no repository.
        let is_made = wanted.target.is_some() || wanted.shows.is_some();
        if view.is_none() && !is_made && store.endpoint() == Endpoint::Repository {
            return Ok(None);
        }
        let next = NextView::wanted(view.as_ref(), wanted);
        let before = view.as_ref().map(|view| view.refs.clone());
        let before = before.unwrap_or_default();
        let after = match wanted.shows {
            Some(_) => Refs::default(),
            None => self.refs_after(&before, &next).await?,
        };
        Ok(next.plan(self.change(), view.as_ref(), after, now))
    }

    /// Returns the refs after a change, if everything behind the new ones is here.
    async fn refs_after(&mut self, refs: &Refs, next: &NextView) -> Result<Refs, GitError> {
        // What is served was whole when it came to be served.
        let served: BTreeSet<_> = refs.refs.values().map(|target| target.oid).collect();
        let new: BTreeSet<_> = tips(&next.changes).difference(&served).copied().collect();
        self.check(&new).await?.required()?;
        let named = next.named_tips();
        let mut peeled = BTreeMap::new();
        if !named.is_empty() {
            let objects = self.objects().await?.dir.objects();
            let peeling = self.held.run(move || check::behind_tags(&objects, &named));
            peeled = peeling.await?;
        }
        refs.after(&next.changes, &next.head, &peeled)
    }

    /// Takes the repository out of service. Its tips are retired. That there is no view is fine.
    pub async fn retire(&mut self, now: Timestamp) -> Result<(), GitError> {
        let Some(view) = self.row().await?.view else {
            return Ok(());
        };
        let mut change = self.change();
        NextView::remove(&mut change, &view, Some(now));
        self.commit(change).await?;
        self.remove_cached_views().await?;
        self.remove_if_deserted().await
    }

    /// Removes the repository for good, with all its retired refs: its owner has deleted it, or vanished.
    pub async fn destroy(&mut self) -> Result<(), GitError> {
        let mut change = self.change();
        if let Some(view) = self.row().await?.view {
            NextView::remove(&mut change, &view, None);
        }
        change.forget = Forget::All;
        change.garbage = Some(Garbage::Removed);
        self.commit(change).await?;
        self.remove_cached_views().await?;
        self.remove_unless_referred_to(true).await
    }

    /// Removes what git read of a repository that is no longer served.
    async fn remove_cached_views(&self) -> Result<(), GitError> {
        let views = self.repository.dir.views();
        self.held.run(move || layout::remove(&views)).await
    }

    /// Forgets the retired refs. What is in service stays.
    pub async fn forget_retired(&mut self) -> Result<(), GitError> {
        let mut change = self.change();
        change.forget = Forget::All;
        change.garbage = Some(Garbage::Removed);
        self.commit(change).await?;
        self.remove_unless_referred_to(true).await
    }

    /// Marks the repository for a collection if it has one of these tips, and no ref and no retired tip contains it.
    pub async fn mark_unneeded(&mut self, tips: &BTreeSet<Oid>) -> Result<(), GitError> {
        let row = self.row().await?;
        if row.packs.is_empty() {
            return Ok(());
        }
        let mut needed = row.tips();
        let retired = self.retired_refs().await?;
        needed.extend(retired.into_iter().map(|retired| retired.tip));
        let objects = self.repository.objects().await?;
        if collect::are_contained(&objects, tips, &needed).await? {
            return Ok(());
        }
        let mut change = self.change();
        change.garbage = Some(Garbage::Removed);
        self.commit(change).await
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
        let staging = self.repository.dir.staging();
        let looking = self
            .held
            .run(move || Ok(!layout::list(&staging)?.is_empty()));
        if looking.await? || (!removed && self.repository.store.awaits(&self.repository.id)) {
            return Ok(());
        }
        pack_change::remove_all(self, row.packs).await
    }

    /// Returns a change of this repository.
    pub fn change(&self) -> RepoChange {
        RepoChange::new(self.repository.store.endpoint(), self.repository.id.clone())
    }

    /// Commits a change, if it is one. It keeps the lock to its end: until then it is not known which packs are named.
    pub(super) async fn commit(&self, change: RepoChange) -> Result<(), GitError> {
        if change.is_empty() {
            return Ok(());
        }
        let commit = Commit {
            repos: vec![change],
            ..Commit::default()
        };
        let database = self.repository.store.database().clone();
        let held = self.held.clone();
        tracing::trace!(target: CHANGES, "committing");
        let committing = tokio::spawn(async move {
            let committed = database.commit(commit).await;
            drop(held);
            committed
        });
        let committed = committing.await.map_err(|_| GitError::Stopping)??;
        tracing::trace!(target: CHANGES, "committed");
        match committed {
            Committed::Done { .. } => Ok(()),
            Committed::Conflict(Conflict::Moved(..) | Conflict::Refused(_)) => {
                Err(GitError::Outdated)
            }
        }
    }
}
