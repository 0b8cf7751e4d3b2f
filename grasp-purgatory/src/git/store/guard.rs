//! A family under its exclusive lock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use grasp_core::nostr::types::Timestamp;
use grasp_core::push::{AuthorisedPush, PushCommand};
use grasp_core::{Identifier, Oid, RefName, RepoId};
use nostr::key::PublicKey;
use tokio::sync::OwnedMutexGuard;

use super::collect::Mark;
use super::unpacking::move_objects;
use super::{Incoming, RepoStore};
use crate::git::check::{Completeness, Objects, Proofs};
use crate::git::error::GitError;
use crate::git::layout::{self, Family};
use crate::git::refs::{Pending, RefTarget, Snapshot, Wish};
use crate::git::{blocking, never_stops, read};

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
}

impl FamilyGuard {
    pub(super) async fn new(
        store: RepoStore,
        identifier: Identifier,
        family: Family,
        held: OwnedMutexGuard<()>,
    ) -> Result<Self, GitError> {
        let guard = Self { store, identifier, family, held: Arc::new(held) };
        guard.recover().await?;
        Ok(guard)
    }

    /// Makes an empty view unless there is one.
    pub async fn create_view(&mut self, owner: &PublicKey) -> Result<(), GitError> {
        let repo = self.repo(owner);
        let (store, family) = (self.store.clone(), self.family.clone());
        self.blocking(move || {
            family.create(&repo.identifier, &store.scratch())?;
            family.create_view(&repo, &store.scratch())
        })
        .await
    }

    /// Returns the owners of the family's views.
    pub async fn owners(&self) -> Result<Vec<PublicKey>, GitError> {
        let family = self.family.clone();
        self.blocking(move || super::owners(&family)).await
    }

    /// The refs that clients see.
    pub async fn refs(&self, owner: &PublicKey) -> Result<BTreeMap<RefName, Oid>, GitError> {
        self.snapshot(owner).await.map(|snapshot| snapshot.visible())
    }

    /// Checks the histories of these tips. Complete ones are remembered.
    pub async fn check(&mut self, tips: &BTreeSet<Oid>) -> Result<Completeness, GitError> {
        let objects = Objects::of(&self.store, self.family.clone());
        let findings = objects.examine(tips).await?;
        self.remember(findings.whole.clone()).await?;
        Ok(findings.completeness())
    }

    /// Makes the branches and tags of a view exactly these, if everything behind them is here.
    pub async fn apply(
        &mut self,
        owner: &PublicKey,
        target: &RefTarget,
        now: Timestamp,
    ) -> Result<(), GitError> {
        let snapshot = self.snapshot(owner).await?;
        let changes = target.changes(&snapshot.visible());
        self.move_from(owner, snapshot, changes, target.head.clone(), now).await
    }

    /// Executes a judged push: takes the objects in, moves the refs of the view, stages tips without an event.
    ///
    /// The judgement must have been made on refs read under this guard. No ref moves unless all do.
    pub async fn accept(
        &mut self,
        owner: &PublicKey,
        push: &AuthorisedPush,
        incoming: Option<Incoming>,
        head: Option<&RefName>,
        now: Timestamp,
    ) -> Result<(), GitError> {
        if let Some(mut incoming) = incoming {
            let tips = tips(push.execute().iter().chain(push.stage()));
            incoming.check(&tips).await?.required()?;
            self.stage(push.stage(), &mut incoming).await?;
            let signed = self::tips(push.execute());
            if !signed.is_empty() {
                // A pack may bring more; only what was signed for becomes readable.
                let signed = incoming.into_part(&signed).await?;
                self.promote(signed).await?;
            }
        }
        self.move_refs(owner, push.execute(), head, now).await
    }

    /// Makes what has arrived readable from every view of the family.
    pub async fn promote(&mut self, incoming: Incoming) -> Result<(), GitError> {
        let (from, to) = (incoming.quarantine().objects(), self.family.objects());
        self.blocking(move || {
            // The family may have been removed while its objects were on their way.
            if to.is_dir() { move_objects(&from, &to) } else { Err(GitError::NoView) }
        })
        .await?;
        self.remember(incoming.into_whole()).await
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
        let snapshot = self.snapshot(owner).await?;
        self.move_from(owner, snapshot, changes.to_vec(), head.cloned(), now).await
    }

    async fn move_from(
        &mut self,
        owner: &PublicKey,
        snapshot: Snapshot,
        changes: Vec<PushCommand>,
        head: Option<RefName>,
        now: Timestamp,
    ) -> Result<(), GitError> {
        // What a view serves was whole when it came to be served.
        let served: BTreeSet<_> = snapshot.visible().into_values().collect();
        let new = tips(&changes).difference(&served).copied().collect();
        self.check(&new).await?.required()?;
        let (store, family, owner) = (self.store.clone(), self.family.clone(), *owner);
        self.blocking(move || {
            let view = family.view(&owner);
            let behind = read::behind_tags(&view, &named_tips(&changes))?;
            let wish = Wish { changes: &changes, head: head.as_ref(), now };
            let next = snapshot.after(&wish, &behind)?;
            if let Some(mark) = mark(&changes) {
                mark.leave(&family)?;
            }
            if next != snapshot {
                let pending = Pending::of(family.journal(&owner), view);
                pending.commit(&next, &store.scratch(), never_stops)?;
            }
            Ok(())
        })
        .await
    }

    /// Makes few packs of many, if there are many; says whether there were. Nothing is thrown away.
    ///
    /// Each push brings a pack, and looking for an object may mean looking into every one.
    pub async fn compact(&mut self) -> Result<bool, GitError> {
        const COMMAND: &str = "repack";
        let packs = self.family.objects().join("pack");
        let count = self.blocking(move || count_packs(&packs)).await?;
        if count < MANY_PACKS {
            return Ok(false);
        }
        self.store
            .git()
            .command(COMMAND)
            .args(["--geometric=2", "-d", "-q"])
            .repository(&self.store.layout().workbench())
            .writing_objects(&self.family.objects())
            .keeping(self.held.clone())
            .run(Vec::new())
            .await?
            .success(COMMAND)?;
        Ok(true)
    }

    /// Returns all refs of a view, after every change decided about them.
    async fn snapshot(&self, owner: &PublicKey) -> Result<Snapshot, GitError> {
        self.recover().await?;
        self.store.snapshot(&self.repo(owner)).await
    }

    /// Finishes transactions that were decided. An error of the disk may have left one without a crash.
    async fn recover(&self) -> Result<(), GitError> {
        let family = self.family.clone();
        self.blocking(move || {
            let left = Pending::left_behind(family.layout())?.into_iter();
            left.filter(|it| it.is_of(&family)).try_for_each(|it| it.roll_forward(never_stops))
        })
        .await
    }

    pub(super) fn repo(&self, owner: &PublicKey) -> RepoId {
        RepoId::new(*owner, self.identifier.clone())
    }

    pub(super) async fn remember(&self, whole: BTreeSet<Oid>) -> Result<(), GitError> {
        let (store, family) = (self.store.clone(), self.family.clone());
        self.blocking(move || Proofs::add(&family, whole, &store.scratch())).await
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

fn count_packs(dir: &Path) -> Result<usize, GitError> {
    let files = layout::list(dir)?;
    Ok(files.iter().filter(|file| layout::name(file).ends_with(".pack")).count())
}

/// Returns whether these changes may leave objects that no view shows.
fn mark(changes: &[PushCommand]) -> Option<Mark> {
    let takes = |change: &&PushCommand| change.old.is_some() && change.old != change.new;
    let marks = changes.iter().filter(takes).map(|change| match change.name.event() {
        Some(_) => Mark::Removed,
        None => Mark::Moved,
    });
    marks.max()
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
