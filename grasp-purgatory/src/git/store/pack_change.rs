//! Changes of the packs of a repository: the files first, then the commit that names them. What no commit names goes,
//! whatever has left it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use grasp_core::RepoId;

use super::collect::pack;
use super::unpacking::Quarantine;
use super::{RepoGuard, measure};
use crate::database::{Pack, RepoChange};
use crate::git::check::Proofs;
use crate::git::error::GitError;
use crate::git::layout::{self, Layout, RepoDir};

/// As many packs as are worth the work of putting them together.
const MANY_PACKS: usize = 32;

/// Time after which no git process writes a file that it has begun.
const LONGEST_PACKING: Duration = Duration::from_secs(60 * 60);

/// Moves the packs of an object directory into the repository.
pub(super) async fn add(guard: &RepoGuard, from: PathBuf) -> Result<(), GitError> {
    let mut change = guard.change();
    change.add_packs = move_in(guard, from).await?;
    guard.commit(change).await?;
    measure(&guard.repository).await
}

/// Puts packs in the place of others, together with another change.
pub(super) async fn replace(
    guard: &RepoGuard,
    new: Quarantine,
    old: BTreeSet<Pack>,
    mut change: RepoChange,
) -> Result<(), GitError> {
    let added = move_in(guard, new.objects()).await?;
    let removed = old.into_iter().filter(|pack| !added.contains(pack));
    change.remove_packs = removed.collect();
    change.add_packs = added;
    guard.commit(change).await?;
    let named = guard.repository.packs().await?;
    let dir = guard.repository.dir.clone();
    let removing = guard
        .held
        .run(move || remove_files(&unnamed_files(&dir, &named)?));
    removing.await?;
    measure(&guard.repository).await
}

/// Forgets packs whose files are lost and that nothing needs.
pub(super) async fn forget_lost(guard: &RepoGuard, lost: BTreeSet<Pack>) -> Result<(), GitError> {
    let mut change = guard.change();
    change.remove_packs = lost.into_iter().collect();
    guard.commit(change).await?;
    measure(&guard.repository).await
}

/// Removes the repository with all of its packs.
pub(super) async fn remove_all(guard: &RepoGuard, packs: BTreeSet<Pack>) -> Result<(), GitError> {
    let mut change = guard.change();
    change.remove_packs = packs.into_iter().collect();
    change.is_collected = true;
    guard.commit(change).await?;
    let repository = guard.repository.clone();
    let removing = guard.held.run(move || {
        repository.store.count_removal();
        layout::remove(&repository.dir.views())?;
        repository.store.remove_whole(repository.dir.path())
    });
    removing.await?;
    measure(&guard.repository).await
}

/// Removes the packs that no commit names: those of a change that was not finished, and those that another process has
/// replaced.
///
/// They must not be taken for objects of the repository: the next start would remove them under the refs to them.
pub(super) async fn remove_unnamed(guard: &RepoGuard) -> Result<(), GitError> {
    let packs = guard.repository.dir.objects().join("pack");
    let looking = guard.held.run(move || Ok(layout::list(&packs)?.is_empty()));
    if looking.await? {
        return Ok(());
    }
    let named = guard.repository.packs().await?;
    let repository = guard.repository.clone();
    let removing = guard.held.run(move || {
        let mut unnamed = unnamed_files(&repository.dir, &named)?;
        unnamed.retain(|file| !is_being_written(file));
        if unnamed.is_empty() {
            return Ok(false);
        }
        // What was found to be whole with objects that go now is looked at again.
        repository.store.count_removal();
        Proofs::forget(&repository.dir)?;
        remove_files(&unnamed)?;
        Ok(true)
    });
    if removing.await? {
        measure(&guard.repository).await?;
    }
    Ok(())
}

/// Makes few packs of many, if there are many; says whether there were. Nothing is thrown away.
pub(super) async fn compact(guard: &RepoGuard) -> Result<bool, GitError> {
    let small = packs_to_join(guard.repository.packs().await?);
    if small.is_empty() {
        return Ok(false);
    }
    let mut input = String::new();
    for pack in &small {
        input.push_str(&pack.name);
        input.push_str(".pack\n");
    }
    let command = guard.objects().await?.command("pack-objects");
    let command = command.arg("--stdin-packs").keeping(guard.held.kept());
    let joined = pack(&guard.repository.store, command, input.into_bytes()).await?;
    replace(guard, joined, small, guard.change()).await?;
    Ok(true)
}

/// Moves packs from an object directory into the repository and, if there is one, to the pack storage.
async fn move_in(guard: &RepoGuard, from: PathBuf) -> Result<Vec<Pack>, GitError> {
    let repository = guard.repository.clone();
    let moving = guard.held.run(move || {
        repository.create()?;
        move_packs(&from, &repository.dir.objects())
    });
    let moved = moving.await?;
    if let Some(stored) = guard.repository.store.stored() {
        stored.upload(&guard.repository, &moved).await?;
    }
    Ok(moved)
}

/// Moves all packs from one object directory to another, which may be read meanwhile, and returns them. They are on disk
/// when this returns.
///
/// An index is moved after its pack, for git takes a pack to be there when its index is.
pub(super) fn move_packs(from: &Path, to: &Path) -> Result<Vec<Pack>, GitError> {
    let target = to.join("pack");
    let is_new = !target.is_dir();
    layout::create_dir(&target)?;
    let mut files = layout::list(&from.join("pack"))?;
    files.retain(|path| !layout::name(path).starts_with("tmp_") && !is_of_empty_pack(path));
    files.sort_by_key(|path| path.extension().is_some_and(|kind| kind == "idx"));
    let mut packs = Vec::new();
    for file in &files {
        if file.extension().is_some_and(|kind| kind == "pack") {
            packs.push(Pack {
                name: stem(file).to_owned(),
                bytes: layout::size(file)?,
            });
        }
    }
    for file in &files {
        // One of the same name has the same objects. It may be there without its index, or damaged.
        layout::rename(file, &target.join(layout::name(file)))?;
    }
    layout::sync(&target)?;
    if is_new {
        layout::sync(to)?;
    }
    Ok(packs)
}

/// Returns whether this file belongs to a pack without objects: a header and a checksum.
fn is_of_empty_pack(file: &Path) -> bool {
    const EMPTY: u64 = 12 + 20;
    let pack = file.with_extension("pack");
    pack.metadata()
        .is_ok_and(|metadata| metadata.len() <= EMPTY)
}

/// Removes the packs that no commit names, and repositories without a named pack. Nothing may run meanwhile.
pub(super) fn remove_unnamed_below(
    layout: &Layout,
    named: &BTreeMap<RepoId, BTreeSet<Pack>>,
) -> Result<(), GitError> {
    let mut by_key = BTreeMap::new();
    for (repo, packs) in named {
        by_key.insert(layout.dir(repo).key().to_owned(), packs);
    }
    for shard in layout::list(&layout.repositories())? {
        for rest in layout::list(&shard)? {
            let key = format!("{}{}", layout::name(&shard), layout::name(&rest));
            let Some(packs) = by_key.get(&key) else {
                layout::remove(&rest)?;
                continue;
            };
            let dir = layout.dir_of_key(key);
            let unnamed = unnamed_files(&dir, packs)?;
            if !unnamed.is_empty() {
                // Proofs may depend on what they contain.
                Proofs::forget(&dir)?;
                remove_files(&unnamed)?;
            }
        }
    }
    Ok(())
}

/// Returns the files of packs of a repository that are not among these.
pub(super) fn unnamed_files(
    dir: &RepoDir,
    named: &BTreeSet<Pack>,
) -> Result<Vec<PathBuf>, GitError> {
    let names: BTreeSet<&str> = named.iter().map(|pack| pack.name.as_str()).collect();
    let mut files = layout::list(&dir.objects().join("pack"))?;
    files.retain(|file| !names.contains(stem(file)));
    Ok(files)
}

/// Returns whether a git process may be writing a file: packing takes no lock.
fn is_being_written(file: &Path) -> bool {
    let modified = fs::metadata(file).and_then(|metadata| metadata.modified());
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    layout::name(file).starts_with("tmp_") && age.is_none_or(|age| age < LONGEST_PACKING)
}

fn remove_files(files: &[PathBuf]) -> Result<(), GitError> {
    files.iter().try_for_each(|file| layout::remove(file))
}

/// Returns the name of a file without its extension.
fn stem(file: &Path) -> &str {
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    stem.unwrap_or_default()
}

/// Returns the packs to put together so that of all that are left each has twice the size of all smaller ones together;
/// none if there are few.
fn packs_to_join(packs: BTreeSet<Pack>) -> BTreeSet<Pack> {
    if packs.len() < MANY_PACKS {
        return BTreeSet::new();
    }
    let mut packs: Vec<Pack> = packs.into_iter().collect();
    packs.sort_by_key(|pack| pack.bytes);
    let mut smaller = 0_u64;
    let mut joined = 0;
    for (number, pack) in packs.iter().enumerate() {
        if number > 0 && pack.bytes < smaller.saturating_mul(2) {
            joined = number + 1;
        }
        smaller = smaller.saturating_add(pack.bytes);
    }
    packs.into_iter().take(joined).collect()
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
