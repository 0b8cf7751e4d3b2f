//! Packs that are lost or damaged: found by comparing the disk with the database, and by reading them.
//!
//! A pack whose file is gone or has another size is *lost*. A pack with unreadable objects becomes one, after the others
//! were packed anew. Its row stays until every view is whole again without it, so that a restart does not forget that
//! something is missing. The hunt brings the missing objects as it brings those of a new state.

use std::collections::BTreeSet;
use std::path::Path;

use git2::{Odb, OdbLookupFlags};
use grasp_core::Oid;
use grasp_core::nostr::types::Timestamp;

use super::collect::pack;
use super::examination::{PackFault, READ_TIMEOUT, fault_of, visible_fault};
use super::stored::{StoredPacks, copy_file};
use super::{RepoGuard, Repository, layout, pack_change};
use crate::database::Pack;
use crate::git::blocking;
use crate::git::chains::PackIndex;
use crate::git::check::{Proofs, revisions};
use crate::git::error::GitError;
use crate::git::packs::{self, Soundness};

/// Objects that are read as a whole to find the damaged ones. Larger ones are fetched again with them.
const MAX_OBJECT_BYTES: usize = 256 * 1024 * 1024;

/// The state of a repository's objects on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Refs lack objects.
    pub is_broken: bool,
    /// Names of packs that are not on disk as they were committed.
    pub lost: BTreeSet<String>,
}

/// Looks for objects that are missing on disk, and makes caches of the repository anew. Histories are walked if `walk`, and
/// if a pack is lost.
pub(super) async fn inspect(repository: &Repository, walk: bool) -> Result<Inspection, GitError> {
    let guard = repository.lock().await?;
    let lost = match repository.store.stored() {
        Some(stored) => restore_cache(&guard, stored, walk).await?,
        None => restore_files(&guard).await?,
    };
    if lost.is_empty() && !walk {
        // They are compared with the list of the pack storage; looking into them would download all.
        let is_cache = repository.store.stored().is_some();
        return Ok(Inspection {
            is_broken: !is_cache && guard.lacks_tips().await?,
            lost: BTreeSet::new(),
        });
    }
    drop(guard);
    let is_broken = repository.is_broken().await?;
    if !is_broken && !lost.is_empty() {
        pack_change::forget_lost(&repository.lock().await?, lost).await?;
        return Ok(Inspection::default());
    }
    Ok(Inspection {
        is_broken,
        lost: lost.into_iter().map(|pack| pack.name).collect(),
    })
}

/// Reads all packs that were not read since this time. Objects of a damaged pack that can be read are packed anew, and the
/// pack is removed. Returns the names of damaged packs.
pub(super) async fn verify(
    repository: &Repository,
    before: Timestamp,
    now: Timestamp,
) -> Result<BTreeSet<String>, GitError> {
    // Packs without an index get one, or are lost.
    let guard = repository.lock().await?;
    restore_files(&guard).await?;
    drop(guard);
    let row = repository.row().await?;
    let mut damaged = BTreeSet::new();
    for pack in row.packs {
        if row.verified.get(&pack.name).is_some_and(|at| *at >= before) {
            continue;
        }
        if !is_sound(repository, &pack).await? {
            salvage(repository, &pack).await?;
            damaged.insert(pack.name);
            continue;
        }
        let guard = repository.lock().await?;
        let mut change = guard.change();
        change.verified = Some((pack.name, now));
        guard.commit(change).await?;
    }
    Ok(damaged)
}

/// Reads a pack as a whole. One that is lost is not damaged.
async fn is_sound(repository: &Repository, pack: &Pack) -> Result<bool, GitError> {
    if let Some(stored) = repository.store.stored() {
        return stored.is_sound(repository, pack).await;
    }
    let fault = fault_of(&repository.objects_kept_by(None), pack).await?;
    Ok(fault.is_none_or(|fault| fault == PackFault::Lost))
}

/// Packs the readable objects of a damaged pack anew, and removes it from the disk and from the pack storage.
async fn salvage(repository: &Repository, damaged: &Pack) -> Result<(), GitError> {
    let file = repository.dir.pack(&damaged.name);
    let stored = repository.store.stored();
    let mut index = file.with_extension("idx");
    let mut objects = repository.dir.objects();
    let mut copied = None;
    if let Some(stored) = stored {
        copied = stored.copy_of(repository, damaged).await?;
    }
    if let Some((copy, _)) = &copied {
        index = copy_file(copy, damaged).with_extension("idx");
        objects = copy.objects();
    }
    let place = objects.clone();
    let readable = blocking(move || readable_objects(&index, &place)).await?;
    let reader = repository.objects().await?;
    let command = reader.command("pack-objects").reading_all(&[&objects]);
    let saved = pack(&repository.store, command, revisions(&readable, [])).await?;
    let guard = repository.lock().await?;
    pack_change::add(&guard, saved.objects()).await?;
    // After the commit: until then nothing else has what can be read of it.
    guard.held.run(move || remove_pack(&file)).await?;
    if let Some(stored) = stored {
        stored.delete(repository, damaged).await?;
    }
    Ok(())
}

/// Makes missing files of a cached repository that can be made, and returns the packs that the pack storage lacks. If
/// `read`, packs on disk are read, and damaged ones removed so that they are downloaded again.
async fn restore_cache(
    guard: &RepoGuard,
    stored: &StoredPacks,
    read: bool,
) -> Result<BTreeSet<Pack>, GitError> {
    let named = guard.repository.packs().await?;
    let lost = stored.restore(&guard.repository, &named).await?;
    let repository = guard.repository.clone();
    let is_lost = !lost.is_empty();
    let restoring = guard.held.run(move || {
        repository.dir.remove_broken_views()?;
        repository.store.layout().restore_workbench()?;
        let mut is_changed = is_lost;
        for pack in named.iter().filter(|_| read) {
            let file = repository.dir.pack(&pack.name);
            let found = packs::check_pack(&file, pack.bytes);
            if file.exists() && !matches!(found, Ok(Soundness::Sound)) {
                tracing::warn!(
                    pack = pack.name,
                    "a cached pack is damaged; it is downloaded again"
                );
                remove_pack(&file)?;
                is_changed = true;
            }
        }
        if is_changed {
            forget_proofs(&repository)?;
        }
        Ok(())
    });
    restoring.await?;
    Ok(lost)
}

/// Makes missing files of the repository that can be made, and returns the packs that are lost.
async fn restore_files(guard: &RepoGuard) -> Result<BTreeSet<Pack>, GitError> {
    let named = guard.repository.packs().await?;
    let repository = guard.repository.clone();
    let restoring = guard.held.run(move || {
        if !named.is_empty() {
            repository.create()?;
        }
        repository.dir.remove_broken_views()?;
        repository.store.layout().restore_workbench()?;
        let mut lost = BTreeSet::new();
        let mut unindexed = Vec::new();
        for pack in named {
            let file = repository.dir.pack(&pack.name);
            remove_if_neither_indexed_nor_intact(&file)?;
            match visible_fault(&file, &pack) {
                Some(PackFault::Lost) => _ = lost.insert(pack),
                Some(_) => unindexed.push(file),
                None => {}
            }
        }
        if !lost.is_empty() {
            forget_proofs(&repository)?;
        }
        Ok((lost, unindexed))
    });
    let (lost, unindexed) = restoring.await?;
    let objects = guard.repository.objects_kept_by(None);
    for file in unindexed {
        const COMMAND: &str = "index-pack";
        let command = objects.command(COMMAND).arg(file).limit(READ_TIMEOUT);
        command.run(Vec::new()).await?.success(COMMAND)?;
    }
    Ok(lost)
}

/// Forgets what was proven with objects that are lost.
fn forget_proofs(repository: &Repository) -> Result<(), GitError> {
    Proofs::forget(&repository.dir)?;
    repository.store.count_removal();
    Ok(())
}

/// Returns the objects of a pack that can be read, from it or from another one.
fn readable_objects(index: &Path, objects: &Path) -> Result<Vec<Oid>, GitError> {
    let mut readable = Vec::new();
    if !index.exists() {
        return Ok(readable);
    }
    let odb = Odb::new()?;
    odb.add_disk_alternate(&objects.to_string_lossy())?;
    let ids = PackIndex::open(index).and_then(|index| index.ids());
    for oid in ids.map_err(|source| GitError::io("read", index, source))? {
        let Ok(id) = git2::Oid::from_bytes(&oid) else {
            continue;
        };
        let is_small = odb
            .read_header(id)
            .is_ok_and(|(size, _)| size <= MAX_OBJECT_BYTES);
        if is_small && odb.exists_ext(id, OdbLookupFlags::NO_REFRESH) && odb.read(id).is_ok() {
            readable.push(Oid::Sha1(oid));
        }
    }
    Ok(readable)
}

/// Removes a damaged pack without an index, of which nothing can be read: its removal was not finished, or its index was
/// lost, too.
fn remove_if_neither_indexed_nor_intact(file: &Path) -> Result<(), GitError> {
    if file.with_extension("idx").exists() || !file.exists() || packs::is_intact(file)? {
        return Ok(());
    }
    remove_pack(file)
}

/// Removes the files of a pack, its index first: git takes a pack to be there when its index is.
fn remove_pack(file: &Path) -> Result<(), GitError> {
    ["idx", "rev", "pack"]
        .iter()
        .try_for_each(|kind| layout::remove(&file.with_extension(kind)))
}
