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

use grasp_core::Oid;
use grasp_core::nostr::types::Timestamp;

use super::{Quarantine, RepoGuard, RepoStore, Repository, pack_change, staging};
use crate::database::{Forget, Garbage, Pack, RepoRow, RetiredRef};
use crate::git::check::{Objects, Proofs, revisions};
use crate::git::command::GitCommand;
use crate::git::error::GitError;
use crate::git::layout::RepoDir;
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

/// Removes what no ref shows, nothing wants and no upload leans on, if anything was taken away since the last time.
pub(super) async fn collect(repository: &Repository, keep: &Keep) -> Result<bool, GitError> {
    let guard = repository.lock().await?;
    let Some((garbage, mut roots)) = find_roots(&guard, keep).await? else {
        return Ok(false);
    };
    drop(guard);
    let reader = repository.objects().await?;
    if garbage == Garbage::Moved {
        // Replaced tips are kept, so there is nothing to remove until their time is over.
        let contained = contained(&reader, &roots.retired, &roots.ruled).await?;
        let guard = repository.lock().await?;
        if find_roots(&guard, keep).await? == Some((garbage, roots)) {
            let mut change = guard.change();
            change.is_collected = true;
            // Branches and tags contain them. Once those are retired, so are these with them.
            change.forget = Forget::Tips(contained);
            guard.commit(change).await?;
        }
        return Ok(false);
    }
    let mut packed = pack_roots(repository, &reader, &roots).await?;
    let guard = repository.lock().await?;
    let Some((_, current)) = find_roots(&guard, keep).await? else {
        return Ok(false);
    };
    if current != roots {
        roots = current;
        packed = pack_roots(repository, &reader, &roots).await?;
    }
    replace_all(&guard, packed, &roots, keep.retired_since).await?;
    Ok(true)
}

/// Removes everything that no ref and no upload needs, replaced tips included. Returns whether anything became smaller.
pub(super) async fn purge(repository: &Repository, now: Timestamp) -> Result<bool, GitError> {
    let guard = repository.lock().await?;
    let before = repository.packs().await?;
    if before.is_empty() {
        return Ok(false);
    }
    let mut change = guard.change();
    change.garbage = Some(Garbage::Removed);
    guard.commit(change).await?;
    drop(guard);
    collect(repository, &Keep::purging(now)).await?;
    let after = repository.packs().await?;
    Ok(bytes_of(&after) < bytes_of(&before))
}

fn bytes_of(packs: &BTreeSet<Pack>) -> u64 {
    packs.iter().map(|pack| pack.bytes).sum()
}

/// Returns the objects to keep, if there may be something to collect.
async fn find_roots(guard: &RepoGuard, keep: &Keep) -> Result<Option<(Garbage, Roots)>, GitError> {
    // First the row: a view that goes meanwhile leaves its tips among the retired ones.
    let row = guard.row().await?;
    let retired = guard.retired_refs().await?;
    let is_over = retired
        .iter()
        .any(|retired| retired.since < keep.retired_since);
    let garbage = match is_over {
        true => Some(Garbage::Removed),
        false => row.garbage,
    };
    let Some(garbage) = garbage else {
        return Ok(None);
    };
    guard.bring().await?;
    let staged = staging::bring_all(guard).await?;
    let dir = guard.repository.dir.clone();
    let keep = keep.clone();
    let finding = guard
        .held
        .run(move || roots(&dir, &row, &retired, staged, &keep));
    Ok(Some((garbage, finding.await?)))
}

/// Puts a pack in the place of all objects.
async fn replace_all(
    guard: &RepoGuard,
    packed: Quarantine,
    roots: &Roots,
    retired_since: Timestamp,
) -> Result<(), GitError> {
    let repository = guard.repository.clone();
    let kept = &roots.shown | &roots.retired;
    let retaining = guard.held.run(move || {
        Proofs::retain(&repository.dir, &kept, &repository.store.scratch())?;
        // What was found to be whole with objects that go now is looked at again.
        repository.store.count_removal();
        Ok(())
    });
    retaining.await?;
    let old = guard.repository.packs().await?;
    let mut change = guard.change();
    change.is_collected = true;
    change.forget = Forget::Before(retired_since);
    pack_change::replace(guard, packed, old, change).await
}

/// Returns whether those of these tips that are here are others, or commits that others contain.
pub(super) async fn are_contained(
    objects: &Objects,
    tips: &BTreeSet<Oid>,
    others: &BTreeSet<Oid>,
) -> Result<bool, GitError> {
    let here = present(objects, &(tips - others)).await?;
    if here.is_empty() {
        return Ok(true);
    }
    let others = present(objects, others).await?;
    Ok(contained(objects, &here, &others).await? == here)
}

/// Returns those of these commits that are here and reachable from others, such as branches and tags.
async fn contained(
    objects: &Objects,
    tips: &BTreeSet<Oid>,
    ruled: &BTreeSet<Oid>,
) -> Result<BTreeSet<Oid>, GitError> {
    let here = present(objects, tips).await?;
    if here.is_empty() {
        return Ok(here);
    }
    // With --no-walk only the tips themselves are listed, and a tag as the commit behind it.
    let arguments = ["--no-walk=unsorted", "--stdin"];
    let listed = list(objects, &arguments, revisions(&here, [])).await?;
    let outside = list(objects, &["--stdin"], revisions(&here, ruled)).await?;
    Ok(&(&listed & &here) - &outside)
}

/// Returns the commits that git lists.
async fn list(
    objects: &Objects,
    arguments: &[&str],
    input: Vec<u8>,
) -> Result<BTreeSet<Oid>, GitError> {
    const COMMAND: &str = "rev-list";
    let command = objects.command(COMMAND).args(arguments);
    let finished = command.limit(COLLECT_TIMEOUT).run(input).await?;
    let output = finished.success(COMMAND)?;
    let lines = String::from_utf8_lossy(&output).into_owned();
    Ok(lines.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Packs the objects to keep in a place of their own.
async fn pack_roots(
    repository: &Repository,
    objects: &Objects,
    roots: &Roots,
) -> Result<Quarantine, GitError> {
    let staged: Vec<&Path> = roots.staged.values().map(PathBuf::as_path).collect();
    let retired = present(objects, &roots.retired).await?;
    // Objects of the uploads themselves are not taken along.
    let command = objects
        .command(PACK)
        .args(["--local", "--revs"])
        .reading_all(&staged);
    let tips = roots.shown.iter().chain(&retired);
    let tips = tips.chain(roots.staged.keys());
    pack(&repository.store, command, revisions(tips, [])).await
}

/// Returns those of these objects that are here.
async fn present(objects: &Objects, tips: &BTreeSet<Oid>) -> Result<BTreeSet<Oid>, GitError> {
    let place = objects.dir.objects();
    let tips = tips.clone();
    blocking(move || {
        let missing = check::missing(&[place], &tips)?;
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
    staged: BTreeMap<Oid, PathBuf>,
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
        staged,
    })
}
