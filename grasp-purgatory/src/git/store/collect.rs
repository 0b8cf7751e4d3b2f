//! Collecting what nothing refers to any more.
//!
//! Every object of a repository can be asked for by its id. What was deleted, and what its owner or its author took back,
//! must leave the object store. Tips that newer ones replaced stay for 90 days, for their owner to go back to:
//!
//! ```text
//!   reachable from a ref, or wanted by what waits ─────────────┐
//!   reachable from a tip that was replaced in the last 90 days ┴─▶ objects/
//!   anything else ────────────────────────────────────────────────▶ gone
//! ```
//!
//! Whatever takes a ref away marks the repository. A removal is collected at once, the rest by the next maintenance. A
//! crash at any point leaves the mark, and the next attempt does the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use grasp_core::nostr::types::Timestamp;
use grasp_core::{Oid, RepoId};

use super::{Quarantine, RepoGuard, RepoStore};
use crate::database::{Forget, Garbage, RepoRow, RetiredRef};
use crate::git::check::{Objects, Proofs, revisions};
use crate::git::command::GitCommand;
use crate::git::error::GitError;
use crate::git::layout::{self, RepoDir};
use crate::git::refs::RETIRED_REFS_RETENTION;
use crate::git::{blocking, check};

pub(super) const PACK: &str = "pack-objects";

/// Timeout of a git process that lists or packs reachable objects.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The objects that a repository keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Roots {
    /// Shown by a ref, or wanted.
    shown: BTreeSet<Oid>,
    /// Shown by a branch or tag.
    ruled: BTreeSet<Oid>,
    /// Tips that were replaced lately.
    retired: BTreeSet<Oid>,
    /// Uploads that may depend on the repository, and their tips.
    staged: BTreeMap<Oid, PathBuf>,
}

/// What a collection keeps besides what refs and uploads need.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// Tips that held events wait for.
    pub wanted: BTreeSet<Oid>,
    /// Tips that were replaced after this time.
    pub retired_since: Timestamp,
}

impl Keep {
    /// Keeps what is wanted, and what was replaced within the time of retention.
    pub fn at(now: Timestamp, wanted: BTreeSet<Oid>) -> Self {
        Self {
            wanted,
            retired_since: now - RETIRED_REFS_RETENTION,
        }
    }

    /// Keeps nothing but what refs and uploads need.
    pub fn purging(now: Timestamp) -> Self {
        Self {
            wanted: BTreeSet::new(),
            retired_since: now + Duration::from_secs(1),
        }
    }
}

impl RepoStore {
    /// Removes from a repository what no ref shows, nothing wants and no upload leans on, if anything was taken away since
    /// the last time. Returns whether it repacked.
    ///
    /// Packing takes no lock, so that no request waits for it, unless refs moved meanwhile.
    pub async fn collect(&self, repo: &RepoId, keep: &Keep) -> Result<bool, GitError> {
        let guard = self.lock(repo).await?;
        let Some((garbage, mut roots)) = guard.roots(keep).await? else {
            return Ok(false);
        };
        drop(guard);
        let reader = self.objects(repo).await?;
        if garbage == Garbage::Moved {
            // Replaced tips are kept, so there is nothing to remove until their time is over.
            let contained = reader.contained(&roots.retired, &roots.ruled).await?;
            let guard = self.lock(repo).await?;
            if guard.roots(keep).await? == Some((garbage, roots.clone())) {
                let mut change = guard.change();
                change.is_collected = true;
                // Branches and tags contain them. Once those are retired, so are these with them.
                change.forget = Forget::Tips(contained);
                guard.commit(change).await?;
            }
            return Ok(false);
        }
        let mut packed = reader.pack(self, &roots).await?;
        let mut guard = self.lock(repo).await?;
        let Some((_, current)) = guard.roots(keep).await? else {
            return Ok(false);
        };
        if current != roots {
            roots = current;
            packed = reader.pack(self, &roots).await?;
        }
        guard.replace(packed, &roots, keep.retired_since).await?;
        Ok(true)
    }
}

impl RepoStore {
    /// Removes everything from a repository that no ref and no upload needs, replaced tips included. Returns whether it
    /// became smaller.
    pub async fn purge(&self, repo: &RepoId, now: Timestamp) -> Result<bool, GitError> {
        let guard = self.lock(repo).await?;
        let before = guard.row().await?;
        if before.packs.is_empty() {
            return Ok(false);
        }
        let mut change = guard.change();
        change.garbage = Some(Garbage::Removed);
        guard.commit(change).await?;
        drop(guard);
        self.collect(repo, &Keep::purging(now)).await?;
        let bytes = |row: &RepoRow| -> u64 { row.packs.iter().map(|pack| pack.bytes).sum() };
        Ok(bytes(&self.row(repo).await?) < bytes(&before))
    }
}

impl RepoGuard {
    /// Returns the objects to keep, if there may be something to collect.
    async fn roots(&self, keep: &Keep) -> Result<Option<(Garbage, Roots)>, GitError> {
        // First the row: a view that goes meanwhile leaves its tips among the retired ones.
        let row = self.row().await?;
        let retired = self.retired_refs().await?;
        let is_over = retired
            .iter()
            .any(|retired| retired.since < keep.retired_since);
        let garbage = if is_over {
            Some(Garbage::Removed)
        } else {
            row.garbage
        };
        let Some(garbage) = garbage else {
            return Ok(None);
        };
        self.bring().await?;
        self.bring_staged().await?;
        let (dir, keep) = (self.dir.clone(), keep.clone());
        let roots = self
            .blocking(move || roots(&dir, &row, &retired, &keep))
            .await?;
        Ok(Some((garbage, roots)))
    }

    /// Puts a pack in the place of all objects.
    async fn replace(
        &mut self,
        packed: Quarantine,
        roots: &Roots,
        retired_since: Timestamp,
    ) -> Result<(), GitError> {
        let (store, dir) = (self.store.clone(), self.dir.clone());
        let kept = &roots.shown | &roots.retired;
        self.blocking(move || {
            Proofs::retain(&dir, &kept, &store.scratch())?;
            // What was found to be whole with objects that go now is looked at again.
            store.count_removal();
            Ok(())
        })
        .await?;
        let old = self.row().await?.packs;
        let mut change = self.change();
        change.is_collected = true;
        change.forget = Forget::Before(retired_since);
        self.replace_packs(packed, old, change).await
    }
}

impl Objects {
    /// Returns those of these commits that are here and reachable from branches and tags.
    async fn contained(
        &self,
        tips: &BTreeSet<Oid>,
        ruled: &BTreeSet<Oid>,
    ) -> Result<BTreeSet<Oid>, GitError> {
        const COMMAND: &str = "rev-list";
        let here = present(self.dir.objects(), tips.clone()).await?;
        if here.is_empty() {
            return Ok(here);
        }
        // With --no-walk only the tips themselves are listed, and a tag as the commit behind it.
        let list =
            async |arguments: &[&str], up_to: &BTreeSet<Oid>| -> Result<BTreeSet<Oid>, GitError> {
                let command = self.command(COMMAND).args(arguments);
                let output = command
                    .limit(COLLECT_TIMEOUT)
                    .run(revisions(&here, up_to))
                    .await?
                    .success(COMMAND)?;
                let lines = String::from_utf8_lossy(&output).into_owned();
                Ok(lines.lines().filter_map(|line| line.parse().ok()).collect())
            };
        let commits = &list(&["--no-walk=unsorted", "--stdin"], &BTreeSet::new()).await? & &here;
        let outside = list(&["--stdin"], ruled).await?;
        Ok(&commits - &outside)
    }

    async fn pack(&self, store: &RepoStore, roots: &Roots) -> Result<Quarantine, GitError> {
        let staged: Vec<&Path> = roots.staged.values().map(PathBuf::as_path).collect();
        let retired = present(self.dir.objects(), roots.retired.clone()).await?;
        // Objects of the uploads themselves are not taken along.
        let command = self
            .command(PACK)
            .args(["--local", "--revs"])
            .reading_all(&staged);
        let tips = roots
            .shown
            .iter()
            .chain(&retired)
            .chain(roots.staged.keys());
        pack(store, command, revisions(tips, [])).await
    }
}

/// Those of these objects that are in a directory.
async fn present(objects: PathBuf, tips: BTreeSet<Oid>) -> Result<BTreeSet<Oid>, GitError> {
    blocking(move || {
        let missing = check::missing(&[objects], &tips)?;
        Ok(&tips - &missing)
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
    place
        .fill(command.limit(COLLECT_TIMEOUT), input)
        .await?
        .success(PACK)?;
    Ok(place)
}

fn roots(
    dir: &RepoDir,
    row: &RepoRow,
    retired: &[RetiredRef],
    keep: &Keep,
) -> Result<Roots, GitError> {
    let mut shown = row.tips();
    let missing = check::missing(&[dir.objects()], &keep.wanted)?;
    shown.extend(keep.wanted.difference(&missing));
    let kept = retired
        .iter()
        .filter(|retired| retired.since >= keep.retired_since);
    let retired = kept
        .map(|retired| retired.tip)
        .filter(|tip| !shown.contains(tip))
        .collect();
    let refs = row.view.iter().flat_map(|view| &view.refs.refs);
    let ruled = refs
        .filter(|(name, _)| name.is_branch_or_tag())
        .map(|(_, target)| target.oid)
        .collect();
    Ok(Roots {
        shown,
        ruled,
        retired,
        staged: staged(dir)?,
    })
}

fn staged(dir: &RepoDir) -> Result<BTreeMap<Oid, PathBuf>, GitError> {
    let mut staged = BTreeMap::new();
    for event in layout::list(&dir.staging())? {
        for tip in layout::list(&event)? {
            staged.extend(layout::name(&tip).parse().ok().map(|oid: Oid| (oid, tip)));
        }
    }
    Ok(staged)
}
