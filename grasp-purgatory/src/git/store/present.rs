//! A store whose packs are in a pack storage: what is on disk is a cache, which is filled before it is read.
//!
//! A pack is in the pack storage before the commit that names it, and for a day after the last commit that did. So any
//! process that reads the row of a repository finds its packs, and one that has read an old row does too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use grasp_core::resources::Claimant;
use grasp_core::{Mono, RepoId};
use tokio::task::JoinSet;

use super::repair::{READ_TIMEOUT, file_of, is_as_committed};
use super::unpacking::{Quarantine, move_packs};
use super::{RepoGuard, RepoStore, remove_garbage, unnamed_files};
use crate::database::{Commit, Pack, RepoRow};
use crate::git::blocking;
use crate::git::check::{Objects, Proofs};
use crate::git::error::GitError;
use crate::git::layout::{self, RepoDir};
use crate::git::packs::cache::InUse;
use crate::git::packs::{self, KINDS, PackCache, PackFigures, PackStorageError, Soundness};

/// Times that the row of a repository is read because packs of it were replaced while they were downloaded.
const MAX_ROWS: usize = 4;

/// Times that a pack is downloaded that came damaged.
const MAX_DOWNLOADS: usize = 2;

impl Present {
    /// Returns the size of the packs.
    pub(in crate::git) fn bytes(&self) -> u64 {
        bytes_of(&self.row)
    }
}

/// Returns the size of the packs of a repository.
pub(super) fn bytes_of(row: &RepoRow) -> u64 {
    row.packs.iter().map(|pack| pack.bytes).sum()
}

/// A repository whose packs are on disk, and stay there while this is kept.
#[derive(Clone, Debug)]
pub(in crate::git) struct Present {
    pub(in crate::git) row: RepoRow,
    /// Packs that the row names and the pack storage does not have.
    pub(in crate::git) lost: BTreeSet<Pack>,
    pub(in crate::git) in_use: Arc<InUse>,
}

impl RepoStore {
    /// Returns the pack storage and its bound on disk.
    pub fn packs(&self) -> Option<&PackCache> {
        self.inner.packs.as_ref()
    }

    /// Returns figures of the pack storage, if there is one. Stores that share it have the same figures.
    pub fn pack_figures(&self) -> Option<PackFigures> {
        self.packs().map(PackCache::figures)
    }

    /// Brings the packs that a repository's row names onto disk; `None` without a pack storage: they are there.
    ///
    /// A pack that the pack storage does not have is no error here. Git reports the objects that it does not find, as it
    /// does when a file was lost.
    pub(in crate::git) async fn present(&self, repo: &RepoId) -> Result<Option<Present>, GitError> {
        let Some(cache) = self.packs() else {
            return Ok(None);
        };
        let dir = self.dir(repo);
        let in_use = Arc::new(cache.enter(self.endpoint(), &dir).await);
        let row = self.row(repo).await?;
        if self.absent(&dir, row.packs.clone()).await?.is_empty() {
            cache.hit();
            self.remove_replaced(repo, &dir, &row).await?;
            return Ok(Some(Present {
                row,
                lost: BTreeSet::new(),
                in_use,
            }));
        }
        cache.missed();
        // Others may wait for the same packs, so it goes on if this reader leaves.
        let download = self.clone().download(repo.clone(), in_use.clone());
        let (row, lost) = match tokio::spawn(download).await {
            Ok(downloaded) => downloaded?,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return Err(GitError::Stopping),
        };
        Ok(Some(Present { row, lost, in_use }))
    }

    /// Returns the objects of a repository, all of them on disk.
    pub(in crate::git) async fn objects(&self, repo: &RepoId) -> Result<Objects, GitError> {
        let in_use = self.present(repo).await?.map(|present| present.in_use);
        Ok(Objects {
            in_use,
            ..Objects::of(self, self.dir(repo))
        })
    }

    /// Returns those of these packs that are not on disk with their index.
    async fn absent(
        &self,
        dir: &RepoDir,
        packs: BTreeSet<Pack>,
    ) -> Result<BTreeSet<Pack>, GitError> {
        let dir = dir.clone();
        blocking(move || {
            let is_absent = |pack: &Pack| {
                let file = file_of(&dir, pack);
                !is_as_committed(&file, pack) || !file.with_extension("idx").exists()
            };
            Ok(packs.into_iter().filter(is_absent).collect())
        })
        .await
    }

    /// Downloads what a repository lacks, one reader at a time. Returns its row and the packs that the pack storage lacks.
    async fn download(
        self,
        repo: RepoId,
        in_use: Arc<InUse>,
    ) -> Result<(RepoRow, BTreeSet<Pack>), GitError> {
        let (Some(cache), dir) = (self.packs(), self.dir(&repo)) else {
            return Err(GitError::NoView);
        };
        let _turn = cache.transfer(&in_use).await;
        let mut lost = BTreeSet::new();
        for _ in 0..MAX_ROWS {
            // Another reader may have brought them, or others have taken their place.
            let row = self.row(&repo).await?;
            let absent = self.absent(&dir, row.packs.clone()).await?;
            if absent.is_subset(&lost) {
                self.measure(&dir, 0).await?;
                return Ok((row, absent));
            }
            let (scratch, name) = (self.scratch(), repo.clone());
            let created = dir.clone();
            blocking(move || created.create(&name, &scratch)).await?;
            self.measure(&dir, absent.iter().map(|pack| pack.bytes).sum())
                .await?;
            lost = self.download_all(&repo, absent).await?;
        }
        Err(GitError::Outdated)
    }

    /// Downloads packs; returns those that the pack storage does not have, or has damaged.
    async fn download_all(
        &self,
        repo: &RepoId,
        packs: BTreeSet<Pack>,
    ) -> Result<BTreeSet<Pack>, GitError> {
        let mut downloads = JoinSet::new();
        for pack in packs {
            let (store, repo) = (self.clone(), repo.clone());
            downloads.spawn(async move {
                let is_here = store.download_one(&repo, &pack).await?;
                Ok::<_, GitError>((!is_here).then_some(pack))
            });
        }
        let mut lost = BTreeSet::new();
        while let Some(ended) = downloads.join_next().await {
            lost.extend(ended.map_err(|_| GitError::Stopping)??);
        }
        Ok(lost)
    }

    async fn download_one(&self, repo: &RepoId, pack: &Pack) -> Result<bool, GitError> {
        let (Some(cache), dir) = (self.packs(), self.dir(repo)) else {
            return Ok(false);
        };
        let _slot = cache.download_slot().await;
        for _ in 0..MAX_DOWNLOADS {
            let Some((copy, soundness)) = self.copy_of(&dir, pack).await? else {
                return Ok(false);
            };
            match soundness {
                Soundness::Damaged => continue,
                Soundness::Unindexed => self.index(&copy_file(&copy, pack)).await?,
                Soundness::Sound => {}
            }
            // A pack that was replaced meanwhile must not come back: what is only in it is not the repository's.
            let _landing = cache.landing(self.endpoint(), &dir).await;
            if self.row(repo).await?.packs.contains(pack) {
                let to = dir.objects();
                blocking(move || move_packs(&copy.objects(), &to)).await?;
            }
            return Ok(true);
        }
        tracing::error!(%repo, pack = pack.name, "a pack is damaged in the pack storage");
        Ok(false)
    }

    /// Downloads the files of a pack to a place of their own, as they are; `None` if the pack is not there.
    pub(super) async fn copy_of(
        &self,
        dir: &RepoDir,
        pack: &Pack,
    ) -> Result<Option<(Quarantine, Soundness)>, GitError> {
        let Some(cache) = self.packs() else {
            return Ok(None);
        };
        let scratch = self.scratch();
        let copy = blocking(move || Quarantine::create(scratch)).await?;
        let file = copy_file(&copy, pack);
        let get = |kind: &str| {
            let file = file.with_extension(kind);
            let key = packs::pack_key(self.endpoint(), dir, &file);
            async move { cache.storage().get(&key, &file).await }
        };
        let (is_there, ..) = tokio::try_join!(get("pack"), get("idx"), get("rev"))?;
        if !is_there {
            return Ok(None);
        }
        let bytes = pack.bytes;
        let soundness = blocking(move || packs::check_pack(&file, bytes)).await?;
        Ok(Some((copy, soundness)))
    }

    /// Makes the index of a pack that is being brought onto disk.
    pub(super) async fn index(&self, file: &Path) -> Result<(), GitError> {
        const COMMAND: &str = "index-pack";
        let index = file.with_extension("idx");
        blocking(move || layout::remove(&index)).await?;
        let command = self
            .git()
            .command(COMMAND)
            .repository(&self.workbench())
            .arg(file);
        let command = command.claimed_by(Claimant::server()).limit(READ_TIMEOUT);
        command.run(Vec::new()).await?.success(COMMAND).map(drop)
    }

    /// Removes packs that others have taken the place of, unless the repository is being changed.
    async fn remove_replaced(
        &self,
        repo: &RepoId,
        dir: &RepoDir,
        row: &RepoRow,
    ) -> Result<(), GitError> {
        let (named, place) = (row.packs.clone(), dir.clone());
        let unnamed = blocking(move || unnamed_files(&place, &named)).await?;
        let Ok(_held) = self.lock_of(dir.key()).try_lock_owned() else {
            return Ok(());
        };
        if unnamed.is_empty() || self.inner.unsettled.lock().contains(dir.key()) {
            return Ok(());
        }
        let (named, place) = (self.row(repo).await?.packs, dir.clone());
        self.count_removal();
        blocking(move || remove_garbage(&place, &named)).await?;
        self.measure(dir, 0).await
    }

    /// Notes the size of a repository on disk, which is about to grow by so many bytes.
    pub(super) async fn measure(&self, dir: &RepoDir, more: u64) -> Result<(), GitError> {
        let Some(cache) = self.packs() else {
            return Ok(());
        };
        let place = dir.clone();
        let bytes = blocking(move || match place.path().is_dir() {
            true => layout::size(place.path()),
            false => Ok(0),
        });
        cache.resize(self.endpoint(), dir, bytes.await?.saturating_add(more));
        Ok(())
    }

    /// Notes the sizes of all repositories on disk.
    pub(super) async fn measure_all(&self) -> Result<(), GitError> {
        if self.packs().is_none() {
            return Ok(());
        }
        let layout = self.layout().clone();
        let repositories = blocking(move || {
            let mut repositories = Vec::new();
            for shard in layout::list(&layout.repositories())? {
                for rest in layout::list(&shard)? {
                    let key = format!("{}{}", layout::name(&shard), layout::name(&rest));
                    repositories.push(layout.dir_of_key(key));
                }
            }
            Ok(repositories)
        });
        for dir in repositories.await? {
            self.measure(&dir, 0).await?;
        }
        Ok(())
    }
}

/// Returns the file of a pack in a place of its own.
pub(super) fn copy_file(copy: &Quarantine, pack: &Pack) -> PathBuf {
    copy.objects()
        .join("pack")
        .join(format!("{}.pack", pack.name))
}

/// Uploads.
impl RepoStore {
    /// Stores packs that are on disk in the pack storage, if there is one. The caller holds the repository's lock.
    pub(super) async fn upload(&self, dir: &RepoDir, packs: &[Pack]) -> Result<(), GitError> {
        for pack in packs {
            let file = file_of(dir, pack);
            self.upload_files(&file, |file| packs::pack_key(self.endpoint(), dir, file))
                .await?;
        }
        Ok(())
    }

    /// Stores a pack with its indexes.
    pub(super) async fn upload_files(
        &self,
        pack: &Path,
        key: impl Fn(&Path) -> String,
    ) -> Result<(), GitError> {
        let Some(cache) = self.packs() else {
            return Ok(());
        };
        for kind in KINDS {
            self.inner
                .unnamed_objects
                .lock()
                .forget(&key(&pack.with_extension(kind)));
        }
        Ok(cache.storage().put_pack(pack, key).await?)
    }

    /// Removes the files of a pack from the pack storage.
    pub(super) async fn delete_pack(&self, dir: &RepoDir, pack: &Pack) -> Result<(), GitError> {
        let Some(cache) = self.packs() else {
            return Ok(());
        };
        for kind in KINDS {
            let file = file_of(dir, pack).with_extension(kind);
            cache
                .storage()
                .delete(&packs::pack_key(self.endpoint(), dir, &file))
                .await?;
        }
        Ok(())
    }

    /// Returns those of these packs that the pack storage does not have as they were committed. What can be read on disk
    /// is stored again.
    pub(super) async fn restore_objects(
        &self,
        dir: &RepoDir,
        named: &BTreeSet<Pack>,
    ) -> Result<BTreeSet<Pack>, GitError> {
        let Some(cache) = self.packs() else {
            return Ok(BTreeSet::new());
        };
        let prefix = packs::repo_prefix(self.endpoint(), dir);
        let listed = match named.is_empty() {
            true => BTreeMap::new(),
            false => cache.storage().list(&prefix).await?,
        };
        let mut lost = BTreeSet::new();
        for pack in named {
            let size = |kind: &str| {
                listed
                    .get(&format!("{prefix}{}.{kind}", pack.name))
                    .copied()
            };
            if size("pack") == Some(pack.bytes) && size("idx").is_some() {
                continue;
            }
            if self.upload_again(dir, pack).await? {
                tracing::warn!(
                    pack = pack.name,
                    "stored a pack again that the pack storage had lost"
                );
            } else if size("pack") != Some(pack.bytes) {
                lost.insert(pack.clone());
            }
        }
        Ok(lost)
    }

    /// Stores a pack again if it is on disk as it was committed, and returns whether it is.
    pub(super) async fn upload_again(&self, dir: &RepoDir, pack: &Pack) -> Result<bool, GitError> {
        let (file, bytes) = (file_of(dir, pack), pack.bytes);
        let found = blocking(move || match file.exists() {
            true => packs::check_pack(&file, bytes),
            false => Ok(Soundness::Damaged),
        });
        if found.await? != Soundness::Sound {
            return Ok(false);
        }
        self.upload(dir, std::slice::from_ref(pack)).await?;
        Ok(true)
    }
}

/// One writer after another.
impl RepoStore {
    /// Begins to change repositories, which another process may have changed before: forgets what that may have made
    /// wrong, and lists the uploads that wait for their event. Without a pack storage there is no other process.
    ///
    /// To be called before anything is changed, each time that this process becomes the one that writes.
    pub async fn became_writer(&self) -> Result<(), GitError> {
        let Some(cache) = self.packs() else {
            return Ok(());
        };
        if !cache.storage().is_ours().await? {
            if !self.database().packs(self.endpoint()).await?.is_empty() {
                return Err(PackStorageError::Foreign.into());
            }
            cache.storage().claim().await?;
        }
        self.inner.unnamed_objects.lock().clear();
        self.inner.unsettled.lock().clear();
        self.count_removal();
        cache.unsettle_all();
        self.list_staged().await
    }

    /// Deletes objects from the pack storage that nothing has named for a day, and returns their number. For the one
    /// process that writes.
    pub async fn sweep(&self, now: Mono) -> Result<usize, GitError> {
        let Some(cache) = self.packs() else {
            return Ok(0);
        };
        let named = self.database().packs(self.endpoint()).await?;
        let named: BTreeMap<String, (RepoId, BTreeSet<Pack>)> = named
            .into_iter()
            .map(|(repo, packs)| (self.dir(&repo).key().to_owned(), (repo, packs)))
            .collect();
        let prefix = packs::packs_prefix(self.endpoint());
        // What is stored and named meanwhile counts as unnamed until the next list, which is before its time is over.
        let is_unnamed = |key: &str| {
            let of_repo = key
                .strip_prefix(&prefix)
                .and_then(|rest| rest.split_once('/'));
            of_repo.is_none_or(|(dir, file)| {
                named
                    .get(dir)
                    .is_none_or(|(_, packs)| !names_file(packs, file))
            })
        };
        let listed = cache.storage().list_where(&prefix, is_unnamed).await?;
        let mut keys: BTreeSet<String> = listed.into_keys().collect();
        keys.extend(self.unknown_staged_keys().await?);
        let due = self.inner.unnamed_objects.lock().listed(now, keys);
        let mut deleted = 0;
        for key in due {
            // Whoever stores an object and names it holds this lock from before to after.
            let dir = key.split('/').nth(2).unwrap_or_default();
            let _held = self.lock_of(dir).lock_owned().await;
            if !self.inner.unnamed_objects.lock().contains(&key) {
                continue;
            }
            let repo = named.get(dir).map(|(repo, _)| repo.clone());
            if !self.is_named_now(&key, repo).await? {
                cache.storage().delete(&key).await?;
                deleted += 1;
            }
            self.inner.unnamed_objects.lock().forget(&key);
        }
        Ok(deleted)
    }

    /// Returns whether a commit names an object by now. Fails if another process writes: it may name one at any time.
    ///
    /// Between the list of objects and this, this process may have been suspended and another may have written.
    async fn is_named_now(&self, key: &str, repo: Option<RepoId>) -> Result<bool, GitError> {
        // A commit of nothing checks the lease.
        let _ = self.database().commit(Commit::default()).await?;
        let prefix = packs::packs_prefix(self.endpoint());
        let of_repo = key
            .strip_prefix(&prefix)
            .and_then(|rest| rest.split_once('/'));
        let Some((dir, file)) = of_repo else {
            return Ok(false);
        };
        let repo = match repo {
            Some(repo) => Some(repo),
            // One that did not exist when the objects were listed.
            None => {
                let all = self.database().all(self.endpoint()).await?;
                all.into_iter().find(|repo| self.dir(repo).key() == dir)
            }
        };
        let Some(repo) = repo else { return Ok(false) };
        Ok(names_file(&self.row(&repo).await?.packs, file))
    }
}

/// Returns whether a file belongs to one of these packs.
fn names_file(packs: &BTreeSet<Pack>, file: &str) -> bool {
    file.rsplit_once('.')
        .is_some_and(|(name, _)| packs.iter().any(|pack| pack.name == name))
}

impl RepoGuard {
    /// Returns the objects of the repository, all of them on disk.
    pub(super) async fn objects(&self) -> Result<Objects, GitError> {
        self.is_present.get_or_try_init(|| self.bring()).await?;
        let objects = Objects::of(&self.store, self.dir.clone());
        Ok(Objects {
            in_use: self.in_use.clone(),
            ..objects
        })
    }

    /// Brings packs onto disk. What is served is proven then: it was whole when it came to be served.
    ///
    /// Without that proof every check would walk all histories, and every push would be packed with all of its own.
    pub(super) async fn bring(&self) -> Result<(), GitError> {
        let present = self.store.present(&self.repo).await?;
        let Some(Present { row, lost, .. }) = present else {
            return Ok(());
        };
        let proofs = self.dir.proofs();
        if !lost.is_empty() || self.blocking(move || Ok(proofs.exists())).await? {
            return Ok(());
        }
        let tips = row.tips();
        if tips.is_empty() {
            Ok(())
        } else {
            self.remember(tips).await
        }
    }

    /// Compares what is on disk with the database before the first change since this process writes.
    pub(super) async fn settle_cached(&self) -> Result<(), GitError> {
        let (Some(cache), Some(in_use)) = (self.store.packs(), &self.in_use) else {
            return Ok(());
        };
        if cache.set_settled(in_use, true) {
            return Ok(());
        }
        let settled = self.compare_with_row().await;
        if settled.is_err() {
            cache.set_settled(in_use, false);
        }
        settled
    }
    async fn compare_with_row(&self) -> Result<(), GitError> {
        let (store, dir, named) = (
            self.store.clone(),
            self.dir.clone(),
            self.row().await?.packs,
        );
        self.blocking(move || {
            Proofs::forget(&dir)?;
            let unnamed = unnamed_files(&dir, &named)?;
            if !unnamed.is_empty() {
                // What was found to be whole with objects that go now is looked at again.
                store.count_removal();
            }
            unnamed.iter().try_for_each(|file| layout::remove(file))
        })
        .await
    }
}
