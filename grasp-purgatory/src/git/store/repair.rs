//! Packs that are lost or damaged: found by comparing the disk with the database, and by reading them.
//!
//! A pack whose file is gone or has another size is *lost*. A pack with unreadable objects becomes one, after the others
//! were packed anew. Its row stays until every view is whole again without it, so that a restart does not forget that
//! something is missing. The hunt brings the missing objects as it brings those of a new state.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use git2::{Odb, OdbLookupFlags};
use grasp_core::nostr::types::Timestamp;
use grasp_core::{Oid, RepoId};

use super::collect::pack;
use super::present::copy_file;
use super::unpacking::move_packs;
use super::{RepoGuard, RepoStore, layout};
use crate::database::Pack;
use crate::git::blocking;
use crate::git::chains::PackIndex;
use crate::git::check::{Objects, Proofs};
use crate::git::error::GitError;
use crate::git::layout::RepoDir;
use crate::git::packs::{self, Soundness};

/// Timeout of reading one pack.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(60 * 60);

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

impl RepoStore {
    /// Looks for objects that are missing on disk, and makes caches of the repository anew. Histories are walked if `walk`, and
    /// if a pack is lost.
    pub async fn inspect(&self, repo: &RepoId, walk: bool) -> Result<Inspection, GitError> {
        let mut guard = self.lock(repo).await?;
        let is_cache = self.packs().is_some();
        let lost = if is_cache {
            guard.restore_cache(walk).await?
        } else {
            guard.restore_files().await?
        };
        if lost.is_empty() && !walk {
            // They are compared with the list of the pack storage; looking into them would download all.
            let is_broken = !is_cache && guard.lacks_tips().await?;
            return Ok(Inspection {
                is_broken,
                lost: BTreeSet::new(),
            });
        }
        drop(guard);
        let is_broken = self.is_broken(repo).await?;
        if !is_broken && !lost.is_empty() {
            let guard = self.lock(repo).await?;
            let mut change = guard.change();
            change.remove_packs = lost.into_iter().collect();
            guard.commit(change).await?;
            return Ok(Inspection::default());
        }
        Ok(Inspection {
            is_broken,
            lost: lost.into_iter().map(|pack| pack.name).collect(),
        })
    }

    /// Reads all packs of a repository that were not read since this time. Objects of a damaged pack that can be read are packed
    /// anew, and the pack is removed. Returns the names of damaged packs.
    pub async fn verify(
        &self,
        repo: &RepoId,
        before: Timestamp,
        now: Timestamp,
    ) -> Result<BTreeSet<String>, GitError> {
        // Packs without an index get one, or are lost.
        self.lock(repo).await?.restore_files().await?;
        let row = self.row(repo).await?;
        let mut damaged = BTreeSet::new();
        for pack in row.packs {
            if row.verified.get(&pack.name).is_some_and(|at| *at >= before) {
                continue;
            }
            if !self.is_sound(repo, &pack).await? {
                self.salvage(repo, &pack).await?;
                damaged.insert(pack.name);
                continue;
            }
            let guard = self.lock(repo).await?;
            let mut change = guard.change();
            change.verified = Some((pack.name, now));
            guard.commit(change).await?;
        }
        Ok(damaged)
    }

    /// Reads a pack as a whole. One that is lost is not damaged.
    async fn is_sound(&self, repo: &RepoId, pack: &Pack) -> Result<bool, GitError> {
        const COMMAND: &str = "index-pack";
        if self.packs().is_some() {
            return self.is_stored_sound(repo, pack).await;
        }
        let dir = self.dir(repo);
        let file = file_of(&dir, pack);
        if !is_as_committed(&file, pack) {
            return Ok(true);
        }
        let command = Objects::of(self, dir)
            .command(COMMAND)
            .arg("--verify")
            .arg(&file);
        let finished = command.limit(READ_TIMEOUT).run(Vec::new()).await?;
        Ok(finished.status.success())
    }

    /// Reads a pack of the pack storage as a whole. If it is damaged there and not on disk, it is stored again.
    async fn is_stored_sound(&self, repo: &RepoId, pack: &Pack) -> Result<bool, GitError> {
        let dir = self.dir(repo);
        let Some((copy, soundness)) = self.copy_of(&dir, pack).await? else {
            return Ok(true);
        };
        let _guard = self.lock(repo).await?;
        match soundness {
            Soundness::Sound => Ok(true),
            Soundness::Unindexed => {
                let file = copy_file(&copy, pack);
                self.index(&file).await?;
                let key = |file: &Path| packs::pack_key(self.endpoint(), &dir, file);
                self.upload_files(&file, key).await?;
                Ok(true)
            }
            Soundness::Damaged => self.upload_again(&dir, pack).await,
        }
    }

    /// Packs the readable objects of a damaged pack anew, and removes it from the disk and from the pack storage.
    async fn salvage(&self, repo: &RepoId, damaged: &Pack) -> Result<(), GitError> {
        let dir = self.dir(repo);
        let file = file_of(&dir, damaged);
        let copy = self.copy_of(&dir, damaged).await?.map(|(copy, _)| copy);
        let (index, objects) = match &copy {
            Some(copy) => (
                copy_file(copy, damaged).with_extension("idx"),
                copy.objects(),
            ),
            None => (file.with_extension("idx"), dir.objects()),
        };
        let place = objects.clone();
        let readable = blocking(move || readable_objects(&index, &place)).await?;
        let input: String = readable.iter().map(|oid| format!("{oid}\n")).collect();
        let reader = self.objects(repo).await?;
        let command = reader.command("pack-objects").reading_all(&[&objects]);
        let saved = pack(self, command, input.into_bytes()).await?;
        let from = saved.objects();
        let guard = self.lock(repo).await?;
        guard
            .add_packs(move |dir| move_packs(&from, &dir.objects()))
            .await?;
        // After the commit: until then nothing else has what can be read of it.
        guard.blocking(move || remove_pack(&file)).await?;
        self.delete_pack(&dir, damaged).await
    }
}

impl RepoGuard {
    /// Makes missing files of a cached repository that can be made, and returns the packs that the pack storage lacks. If
    /// `read`, packs on disk are read, and damaged ones removed so that they are downloaded again.
    async fn restore_cache(&mut self, read: bool) -> Result<BTreeSet<Pack>, GitError> {
        let named = self.row().await?.packs;
        let lost = self.store.restore_objects(&self.dir, &named).await?;
        let (store, dir, is_lost) = (self.store.clone(), self.dir.clone(), !lost.is_empty());
        self.blocking(move || {
            dir.remove_broken_views()?;
            store.layout().restore_workbench()?;
            let mut is_changed = is_lost;
            for pack in named.iter().filter(|_| read) {
                let file = file_of(&dir, pack);
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
                // Proofs may depend on what they contained.
                Proofs::forget(&dir)?;
                store.count_removal();
            }
            Ok(())
        })
        .await?;
        Ok(lost)
    }

    /// Makes missing files of the repository that can be made, and returns the packs that are lost.
    async fn restore_files(&mut self) -> Result<BTreeSet<Pack>, GitError> {
        let packs = self.row().await?.packs;
        let (store, dir) = (self.store.clone(), self.dir.clone());
        let (name, named) = (self.repo.clone(), packs.clone());
        let (lost, unindexed) = self
            .blocking(move || {
                if !named.is_empty() {
                    dir.create(&name, &store.scratch())?;
                }
                dir.remove_broken_views()?;
                store.layout().restore_workbench()?;
                for pack in &named {
                    remove_if_neither_indexed_nor_intact(&file_of(&dir, pack))?;
                }
                let is_lost = |pack: &&Pack| !is_as_committed(&file_of(&dir, pack), pack);
                let lost: BTreeSet<Pack> = named.iter().filter(is_lost).cloned().collect();
                if !lost.is_empty() {
                    // Proofs may depend on what they contained.
                    Proofs::forget(&dir)?;
                    store.count_removal();
                }
                let found = named.difference(&lost).map(|pack| file_of(&dir, pack));
                let unindexed: Vec<_> = found
                    .filter(|file| !file.with_extension("idx").exists())
                    .collect();
                Ok((lost, unindexed))
            })
            .await?;
        for file in unindexed {
            const COMMAND: &str = "index-pack";
            let command = Objects::of(&self.store, self.dir.clone())
                .command(COMMAND)
                .arg(file);
            command
                .limit(READ_TIMEOUT)
                .run(Vec::new())
                .await?
                .success(COMMAND)?;
        }
        Ok(lost)
    }
}

pub(super) fn file_of(dir: &RepoDir, pack: &Pack) -> PathBuf {
    dir.objects()
        .join("pack")
        .join(format!("{}.pack", pack.name))
}

pub(super) fn is_as_committed(file: &Path, pack: &Pack) -> bool {
    file.metadata()
        .is_ok_and(|metadata| metadata.len() == pack.bytes)
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
