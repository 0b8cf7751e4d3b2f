//! Collecting what no view shows any more.
//!
//! Every object of a family can be asked for by its id from each of its views. So what a force-push removed, what was
//! deleted, and the repository of an owner who vanished must leave the object store, though not all of it the disk:
//!
//! ```text
//!   reachable from a ref of some view, or wanted by what waits ──▶ objects/
//!   reachable from a ref that was retired in the last 90 days ───▶ attic/    which no view reads, until a maintainer of
//!                                                                            that repository wants it again
//!   anything else ───────────────────────────────────────────────▶ gone
//! ```
//!
//! Whatever takes a ref away marks the family; the next maintenance finds the mark, and repacks only if something became
//! unreachable. A crash at any point leaves the mark, and the next attempt does the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use grasp_core::nostr::types::Timestamp;
use grasp_core::{Identifier, Oid};
use nostr::key::PublicKey;

use super::{FamilyGuard, Needed, Quarantine, RepoStore};
use crate::database::{FamilyRow, Forget, Garbage, RetiredRef};
use crate::git::check::{Objects, Proofs, revisions};
use crate::git::command::GitCommand;
use crate::git::error::GitError;
use crate::git::layout::{self, Family};
use crate::git::refs::RETIRED_REFS_RETENTION;
use crate::git::{blocking, check};

pub(super) const PACK: &str = "pack-objects";

/// Timeout of a git process that lists or packs reachable objects.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The objects that a family keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Roots {
    /// Shown by a view, or wanted.
    shown: BTreeSet<Oid>,
    /// Tips of refs that were retired lately.
    retired: BTreeSet<Oid>,
    /// Uploads that may depend on the family, and their tips.
    staged: BTreeMap<Oid, PathBuf>,
    /// The same by owner, for owners of retired refs.
    owners: BTreeMap<PublicKey, OwnTips>,
}

/// The tips of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnTips {
    /// Branches and tags of the view.
    shown: BTreeSet<Oid>,
    retired: BTreeSet<Oid>,
}

/// The packs that take the place of all others.
#[derive(Debug)]
struct Packed {
    kept: Quarantine,
    attic: Quarantine,
}

impl RepoStore {
    /// Removes from a family what no view shows, nothing wants and no upload leans on, if anything was taken away
    /// since the last time. What was retired lately stays on disk, where no view reads it. Says whether it repacked.
    ///
    /// Packing takes no lock, so that no request waits for it, unless refs moved meanwhile.
    pub async fn collect(
        &self,
        identifier: &Identifier,
        wanted: &BTreeSet<Oid>,
        now: Timestamp,
    ) -> Result<bool, GitError> {
        let guard = self.lock(identifier).await?;
        let Some((garbage, mut roots)) = guard.roots(wanted, now).await? else { return Ok(false) };
        drop(guard);
        let reader = self.objects(identifier, Needed::All).await?;
        let is_moved = garbage == Garbage::Moved;
        if is_moved && !reader.has_unreachable(&roots.retired, &roots.shown).await? {
            let contained = reader.contained(&roots).await?;
            let guard = self.lock(identifier).await?;
            if guard.roots(wanted, now).await? == Some((garbage, roots)) {
                let mut change = guard.change();
                // Branches and tags of their owners contain them. Once those are retired, so are these with them.
                change.forget = Forget::Tips(contained);
                change.is_collected = true;
                guard.commit(change).await?;
            }
            return Ok(false);
        }
        let mut packed = reader.pack(self, &roots).await?;
        let mut guard = self.lock(identifier).await?;
        let Some((_, current)) = guard.roots(wanted, now).await? else { return Ok(false) };
        if current != roots {
            roots = current;
            packed = reader.pack(self, &roots).await?;
        }
        guard.replace(packed, roots, now).await?;
        Ok(true)
    }
}

impl FamilyGuard {
    /// Returns the objects to keep, if there may be something to collect.
    async fn roots(
        &self,
        wanted: &BTreeSet<Oid>,
        now: Timestamp,
    ) -> Result<Option<(Garbage, Roots)>, GitError> {
        // First the row: a view that goes meanwhile leaves its refs among the retired ones.
        let (row, retired) = (self.row().await?, self.retired_refs().await?);
        let oldest = now - RETIRED_REFS_RETENTION;
        let is_over = retired.iter().any(|retired| retired.since < oldest);
        let garbage = if is_over { Some(Garbage::Removed) } else { row.garbage };
        let Some(garbage) = garbage else { return Ok(None) };
        self.bring(Needed::All).await?;
        self.bring_staged().await?;
        let (family, wanted) = (self.family.clone(), wanted.clone());
        let roots =
            self.blocking(move || roots(&family, (&row, &retired), &wanted, oldest)).await?;
        Ok(Some((garbage, roots)))
    }

    /// Puts packs in the place of all objects.
    async fn replace(
        &mut self,
        packed: Packed,
        roots: Roots,
        now: Timestamp,
    ) -> Result<(), GitError> {
        let (store, family) = (self.store.clone(), self.family.clone());
        self.blocking(move || {
            Proofs::retain(&family, &roots.shown, &store.scratch())?;
            // What was found to be whole with objects that go now is looked at again.
            store.count_removal();
            Ok(())
        })
        .await?;
        let old = self.row().await?.packs;
        let mut change = self.change();
        change.is_collected = true;
        change.forget = Forget::Before(now - RETIRED_REFS_RETENTION);
        self.replace_packs(vec![(packed.kept, false), (packed.attic, true)], old, change).await
    }
}

impl FamilyGuard {
    /// Makes retired tips that the object store lacks readable again, with all that they need. Returns whether it did;
    /// it does not if they cannot be read.
    ///
    /// The attic has objects that were removed on purpose, so these tips must be wanted by the party that they were
    /// retired from.
    pub async fn restore(&mut self, tips: BTreeSet<Oid>) -> Result<bool, GitError> {
        let restored = match self.pack_retired(tips).await {
            Ok(Some(restored)) => restored,
            Ok(None) => return Ok(false),
            Err(error) => {
                tracing::warn!(%error, identifier = %self.identifier, "could not read retired objects");
                return Ok(false);
            }
        };
        let mut change = self.change();
        // The next collection removes the copy of the attic, and all of it if no ref comes to need it.
        change.garbage = Some(Garbage::Removed);
        self.replace_packs(vec![(restored, false)], BTreeSet::new(), change).await?;
        Ok(true)
    }

    /// Packs the objects that these tips need and views do not show, if the attic has the tips.
    async fn pack_retired(&self, tips: BTreeSet<Oid>) -> Result<Option<Quarantine>, GitError> {
        let (row, reader) = (self.row().await?, self.objects().await?);
        self.bring(Needed::All).await?;
        let (objects, attic) = (reader.family.objects(), self.family.attic());
        let tips = present(vec![attic.clone()], tips).await?;
        if tips.is_empty() {
            return Ok(None);
        }
        let shown = present(vec![objects], shown(&row)).await?;
        let command = reader.command(PACK).arg("--revs").reading_all(&[&attic]);
        pack(&self.store, command, revisions(&tips, &shown)).await.map(Some)
    }
}

impl Objects {
    /// Returns those of the retired tips that branches and tags of all their owners contain. Those of the attic are not
    /// among them: nothing else keeps them.
    async fn contained(&self, roots: &Roots) -> Result<BTreeSet<Oid>, GitError> {
        let (mut contained, mut kept) = (BTreeSet::new(), BTreeSet::new());
        for own in roots.owners.values() {
            let here = present(vec![self.family.objects()], own.retired.clone()).await?;
            kept.extend(&own.retired - &here);
            match self.has_unreachable(&here, &own.shown).await? {
                true => kept.extend(here),
                false => contained.extend(here),
            }
        }
        Ok(&contained - &kept)
    }

    /// Returns whether one of these tips is here and not reachable from what is shown.
    async fn has_unreachable(
        &self,
        tips: &BTreeSet<Oid>,
        shown: &BTreeSet<Oid>,
    ) -> Result<bool, GitError> {
        const COMMAND: &str = "rev-list";
        let here = present(vec![self.family.objects()], tips.clone()).await?;
        if here.is_empty() {
            return Ok(false);
        }
        let command = self.command(COMMAND).args(["--max-count=1", "--stdin"]);
        let input = revisions(&here, shown);
        let found = command.limit(COLLECT_TIMEOUT).run(input).await?.success(COMMAND)?;
        Ok(!found.is_empty())
    }

    async fn pack(&self, store: &RepoStore, roots: &Roots) -> Result<Packed, GitError> {
        let staged: Vec<&Path> = roots.staged.values().map(PathBuf::as_path).collect();
        // Objects of the uploads themselves are not taken along.
        let kept = self.command(PACK).args(["--local", "--revs"]).reading_all(&staged);
        let tips = roots.shown.iter().chain(roots.staged.keys());
        let kept = pack(store, kept, revisions(tips, [])).await?;
        let attic = self.family.attic();
        let retired = vec![self.family.objects(), attic.clone()];
        let retired = present(retired, roots.retired.clone()).await?;
        let command = self.command(PACK).arg("--revs").reading_all(&[&attic]);
        let attic = pack(store, command, revisions(&retired, &roots.shown)).await?;
        Ok(Packed { kept, attic })
    }
}

/// Those of these objects that are in one of these directories.
async fn present(places: Vec<PathBuf>, tips: BTreeSet<Oid>) -> Result<BTreeSet<Oid>, GitError> {
    blocking(move || {
        let missing = check::missing(&places, &tips)?;
        Ok(tips.difference(&missing).copied().collect())
    })
    .await
}

/// Packs what is fed to a command that packs objects, in a place of its own.
pub(super) async fn pack(
    store: &RepoStore,
    command: GitCommand,
    input: Vec<u8>,
) -> Result<Quarantine, GitError> {
    let scratch = store.scratch();
    let place = blocking(move || Quarantine::create(scratch)).await?;
    place.fill(command.limit(COLLECT_TIMEOUT), input).await?.success(PACK)?;
    Ok(place)
}

/// Returns the tips that views show.
fn shown(row: &FamilyRow) -> BTreeSet<Oid> {
    let refs = row.views.values().flat_map(|view| view.refs.refs.values());
    refs.map(|target| target.oid).collect()
}

fn roots(
    family: &Family,
    (row, retired): (&FamilyRow, &[RetiredRef]),
    wanted: &BTreeSet<Oid>,
    oldest: Timestamp,
) -> Result<Roots, GitError> {
    let mut shown = shown(row);
    let mut owners: BTreeMap<PublicKey, OwnTips> = BTreeMap::new();
    for retired in retired {
        owners.entry(retired.owner).or_default().retired.insert(retired.tip);
    }
    for (owner, own) in &mut owners {
        let refs = row.views.get(owner).into_iter().flat_map(|view| &view.refs.refs);
        let ruled = refs.filter(|(name, _)| name.is_branch_or_tag());
        own.shown.extend(ruled.map(|(_, target)| target.oid));
    }
    let retired = retired.iter().filter(|retired| retired.since >= oldest);
    let retired = retired.map(|retired| retired.tip).filter(|tip| !shown.contains(tip)).collect();
    let missing = check::missing(&[family.objects()], wanted)?;
    shown.extend(wanted.difference(&missing));
    Ok(Roots { shown, retired, staged: staged(family)?, owners })
}

fn staged(family: &Family) -> Result<BTreeMap<Oid, PathBuf>, GitError> {
    let mut staged = BTreeMap::new();
    for event in layout::list(&family.staging())? {
        for tip in layout::list(&event)? {
            staged.extend(layout::name(&tip).parse().ok().map(|oid: Oid| (oid, tip)));
        }
    }
    Ok(staged)
}
