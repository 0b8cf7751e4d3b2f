//! The packs of a store that are in a pack storage: what is on disk is a cache, which is filled before it is read.
//!
//! A pack is in the pack storage before the commit that names it, and for a day after the last commit that did. So any
//! process that reads the row of a repository finds its packs, and one that has read an old row does too.

mod uploads;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use grasp_core::resources::Claimant;
use grasp_core::{Mono, RepoId};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::examination::{READ_TIMEOUT, visible_fault};
use super::pack_change::{move_packs, unnamed_files};
use super::unpacking::Quarantine;
use super::{RepoGuard, RepoStore, Repository};
use crate::database::{Commit, Pack};
use crate::git::blocking;
use crate::git::error::GitError;
use crate::git::layout;
use crate::git::packs::cache::InUse;
use crate::git::packs::{
    self, KINDS, PackCache, PackFigures, PackStorage, PackStorageError, Soundness, UnnamedObjects,
};

/// Times that the packs of a repository are read because some were replaced while they were downloaded.
const MAX_READS: usize = 4;

/// Times that a pack is downloaded that came damaged.
const MAX_DOWNLOADS: usize = 2;

/// A repository whose packs are on disk, and stay there while this is kept.
#[derive(Clone, Debug)]
pub(super) struct Present {
    packs: BTreeSet<Pack>,
    /// Those of them that the pack storage does not have.
    pub(super) lost: BTreeSet<Pack>,
    pub(super) in_use: Arc<InUse>,
}

impl Present {
    /// Returns the size of the packs.
    pub(super) fn bytes(&self) -> u64 {
        self.packs.iter().map(|pack| pack.bytes).sum()
    }
}

/// The pack storage of a store, and the disk as its cache. Clones share it.
#[derive(Clone)]
pub(super) struct StoredPacks {
    cache: PackCache,
    unnamed: Arc<Mutex<UnnamedObjects>>,
}

impl StoredPacks {
    pub(super) fn new(cache: PackCache) -> Self {
        Self {
            cache,
            unnamed: Arc::default(),
        }
    }

    pub(super) fn figures(&self) -> PackFigures {
        self.cache.figures()
    }

    fn storage(&self) -> &PackStorage {
        self.cache.storage()
    }

    /// Begins to use a repository: its files stay on disk meanwhile.
    pub(super) async fn enter(&self, repository: &Repository) -> Arc<InUse> {
        let endpoint = repository.store.endpoint();
        Arc::new(self.cache.enter(endpoint, &repository.dir).await)
    }

    /// Brings the packs that are committed onto disk. Refs are not read: a repository may have very many, and every request
    /// comes here.
    ///
    /// A pack that the pack storage does not have is no error here. Git reports the objects that it does not find, as it
    /// does when a file was lost.
    pub(super) async fn bring(&self, repository: &Repository) -> Result<Present, GitError> {
        let in_use = self.enter(repository).await;
        let packs = repository.packs().await?;
        let absent = absent(repository, packs.clone()).await?;
        if absent.is_empty() {
            self.cache.hit();
            remove_replaced(repository, packs.clone()).await?;
            return Ok(Present {
                packs,
                lost: absent,
                in_use,
            });
        }
        self.cache.missed();
        // Others may wait for the same packs, so it goes on if this reader leaves.
        let download = self.clone().download(repository.clone(), in_use);
        match tokio::spawn(download).await {
            Ok(downloaded) => downloaded,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(GitError::Stopping),
        }
    }

    /// Downloads what a repository lacks, one reader at a time.
    async fn download(
        self,
        repository: Repository,
        in_use: Arc<InUse>,
    ) -> Result<Present, GitError> {
        let _turn = self.cache.transfer(&in_use).await;
        let mut lost = BTreeSet::new();
        for _ in 0..MAX_READS {
            // Another reader may have brought them, or others have taken their place.
            let packs = repository.packs().await?;
            let absent = absent(&repository, packs.clone()).await?;
            if absent.is_subset(&lost) {
                self.measure(&repository, 0).await?;
                // One that was replaced while it was downloaded is the repository's no more.
                remove_replaced(&repository, packs.clone()).await?;
                return Ok(Present {
                    packs,
                    lost: absent,
                    in_use,
                });
            }
            let created = repository.clone();
            blocking(move || created.create()).await?;
            let bytes = absent.iter().map(|pack| pack.bytes).sum();
            self.measure(&repository, bytes).await?;
            lost = self.download_all(&repository, absent).await?;
        }
        Err(GitError::Outdated)
    }

    /// Downloads packs; returns those that the pack storage does not have, or has damaged.
    async fn download_all(
        &self,
        repository: &Repository,
        packs: BTreeSet<Pack>,
    ) -> Result<BTreeSet<Pack>, GitError> {
        let mut downloads = JoinSet::new();
        for pack in packs {
            let stored = self.clone();
            let repository = repository.clone();
            downloads.spawn(async move {
                let is_here = stored.download_one(&repository, &pack).await?;
                Ok::<_, GitError>((!is_here).then_some(pack))
            });
        }
        let mut lost = BTreeSet::new();
        while let Some(ended) = downloads.join_next().await {
            lost.extend(ended.map_err(|_| GitError::Stopping)??);
        }
        Ok(lost)
    }

    async fn download_one(&self, repository: &Repository, pack: &Pack) -> Result<bool, GitError> {
        let _slot = self.cache.download_slot().await;
        for _ in 0..MAX_DOWNLOADS {
            let Some((copy, soundness)) = self.copy_of(repository, pack).await? else {
                return Ok(false);
            };
            match soundness {
                Soundness::Damaged => continue,
                Soundness::Unindexed => index(&repository.store, &copy_file(&copy, pack)).await?,
                Soundness::Sound => {}
            }
            if repository.packs().await?.contains(pack) {
                let to = repository.dir.objects();
                blocking(move || move_packs(&copy.objects(), &to)).await?;
            }
            return Ok(true);
        }
        tracing::error!(repo = %repository.id, pack = pack.name, "a pack is damaged in the pack storage");
        Ok(false)
    }

    /// Downloads the files of a pack to a place of their own, as they are; `None` if the pack is not there.
    pub(super) async fn copy_of(
        &self,
        repository: &Repository,
        pack: &Pack,
    ) -> Result<Option<(Quarantine, Soundness)>, GitError> {
        let scratch = repository.store.scratch();
        let copy = blocking(move || Quarantine::create(scratch)).await?;
        let file = copy_file(&copy, pack);
        let [main, index, reverse] = KINDS.map(|kind| file.with_extension(kind));
        let (is_there, ..) = tokio::try_join!(
            self.download_file(repository, &main),
            self.download_file(repository, &index),
            self.download_file(repository, &reverse),
        )?;
        if !is_there {
            return Ok(None);
        }
        let bytes = pack.bytes;
        let soundness = blocking(move || packs::check_pack(&file, bytes)).await?;
        Ok(Some((copy, soundness)))
    }

    async fn download_file(
        &self,
        repository: &Repository,
        file: &Path,
    ) -> Result<bool, PackStorageError> {
        self.storage().get(&key(repository, file), file).await
    }

    /// Notes the size of a repository on disk, which is about to grow by so many bytes.
    pub(super) async fn measure(&self, repository: &Repository, more: u64) -> Result<(), GitError> {
        let place = repository.dir.path().to_owned();
        let bytes = blocking(move || match place.is_dir() {
            true => layout::size(&place),
            false => Ok(0),
        });
        let bytes = bytes.await?.saturating_add(more);
        let endpoint = repository.store.endpoint();
        self.cache.resize(endpoint, &repository.dir, bytes);
        Ok(())
    }

    /// Notes the sizes of all repositories on disk.
    pub(super) async fn measure_all(&self, store: &RepoStore) -> Result<(), GitError> {
        let layout = store.layout().clone();
        let measuring = blocking(move || {
            let mut sizes = Vec::new();
            for shard in layout::list(&layout.repositories())? {
                for rest in layout::list(&shard)? {
                    let key = format!("{}{}", layout::name(&shard), layout::name(&rest));
                    sizes.push((layout.dir_of_key(key), layout::size(&rest)?));
                }
            }
            Ok(sizes)
        });
        for (dir, bytes) in measuring.await? {
            self.cache.resize(store.endpoint(), &dir, bytes);
        }
        Ok(())
    }

    /// Stores packs that are on disk. The caller holds the repository's lock.
    pub(super) async fn upload(
        &self,
        repository: &Repository,
        packs: &[Pack],
    ) -> Result<(), GitError> {
        for pack in packs {
            let file = repository.dir.pack(&pack.name);
            self.upload_file(&file, |file| key(repository, file))
                .await?;
        }
        Ok(())
    }

    /// Stores a pack with its indexes.
    async fn upload_file(
        &self,
        pack: &Path,
        key: impl Fn(&Path) -> String,
    ) -> Result<(), GitError> {
        for kind in KINDS {
            let key = key(&pack.with_extension(kind));
            self.unnamed.lock().forget(&key);
        }
        Ok(self.storage().put_pack(pack, key).await?)
    }

    /// Removes the files of a pack.
    pub(super) async fn delete(
        &self,
        repository: &Repository,
        pack: &Pack,
    ) -> Result<(), GitError> {
        let file = repository.dir.pack(&pack.name);
        for kind in KINDS {
            let key = key(repository, &file.with_extension(kind));
            self.storage().delete(&key).await?;
        }
        Ok(())
    }

    /// Returns those of these packs that the pack storage does not have as they were committed. What can be read on disk
    /// is stored again.
    pub(super) async fn restore(
        &self,
        repository: &Repository,
        named: &BTreeSet<Pack>,
    ) -> Result<BTreeSet<Pack>, GitError> {
        let prefix = packs::repo_prefix(repository.store.endpoint(), &repository.dir);
        let mut listed = BTreeMap::new();
        if !named.is_empty() {
            listed = self.storage().list(&prefix).await?;
        }
        let mut lost = BTreeSet::new();
        for pack in named {
            let bytes = listed.get(&format!("{prefix}{}.pack", pack.name));
            let is_stored = bytes == Some(&pack.bytes);
            if is_stored && listed.contains_key(&format!("{prefix}{}.idx", pack.name)) {
                continue;
            }
            if self.upload_again(repository, pack).await? {
                tracing::warn!(
                    pack = pack.name,
                    "stored a pack again that the pack storage had lost"
                );
            } else if !is_stored {
                lost.insert(pack.clone());
            }
        }
        Ok(lost)
    }

    /// Stores a pack again if it is on disk as it was committed, and returns whether it is.
    async fn upload_again(&self, repository: &Repository, pack: &Pack) -> Result<bool, GitError> {
        let file = repository.dir.pack(&pack.name);
        let bytes = pack.bytes;
        let found = blocking(move || match file.exists() {
            true => packs::check_pack(&file, bytes),
            false => Ok(Soundness::Damaged),
        });
        if found.await? != Soundness::Sound {
            return Ok(false);
        }
        self.upload(repository, std::slice::from_ref(pack)).await?;
        Ok(true)
    }

    /// Reads a pack as a whole. One that is lost is not damaged. One that is damaged only here is stored again.
    pub(super) async fn is_sound(
        &self,
        repository: &Repository,
        pack: &Pack,
    ) -> Result<bool, GitError> {
        let Some((copy, soundness)) = self.copy_of(repository, pack).await? else {
            return Ok(true);
        };
        let _guard = repository.lock().await?;
        match soundness {
            Soundness::Sound => Ok(true),
            Soundness::Unindexed => {
                let file = copy_file(&copy, pack);
                index(&repository.store, &file).await?;
                self.upload_file(&file, |file| key(repository, file))
                    .await?;
                Ok(true)
            }
            Soundness::Damaged => self.upload_again(repository, pack).await,
        }
    }

    /// Begins to change repositories, which another process may have changed before.
    pub(super) async fn became_writer(&self, store: &RepoStore) -> Result<(), GitError> {
        if !self.storage().is_ours().await? {
            let named = store.database().packs(store.endpoint()).await?;
            if !named.is_empty() {
                return Err(PackStorageError::Foreign.into());
            }
            self.storage().claim().await?;
        }
        self.unnamed.lock().clear();
        store.count_removal();
        self.list_uploads(store).await
    }

    /// Deletes objects that nothing has named for a day, and returns their number. For the one process that writes.
    pub(super) async fn sweep(&self, store: &RepoStore, now: Mono) -> Result<usize, GitError> {
        let mut named = BTreeMap::new();
        for (repo, packs) in store.database().packs(store.endpoint()).await? {
            named.insert(store.dir(&repo).key().to_owned(), (repo, packs));
        }
        let prefix = packs::packs_prefix(store.endpoint());
        // What is stored and named meanwhile counts as unnamed until the next list, which is before its time is over.
        let is_unnamed = |key: &str| {
            let Some((dir, file)) = split(&prefix, key) else {
                return true;
            };
            let of_repo = named.get(dir);
            of_repo.is_none_or(|(_, packs)| !names_file(packs, file))
        };
        let listed = self.storage().list_where(&prefix, is_unnamed).await?;
        let mut keys: BTreeSet<String> = listed.into_keys().collect();
        keys.extend(self.unknown_uploads(store).await?);
        let due = self.unnamed.lock().listed(now, keys);
        let mut deleted = 0;
        for key in due {
            // Whoever stores an object and names it holds this lock from before to after.
            let dir = key.split('/').nth(2).unwrap_or_default();
            let _held = store.lock_of(dir).lock_owned().await;
            if !self.unnamed.lock().contains(&key) {
                continue;
            }
            let repo = named.get(dir).map(|(repo, _)| repo.clone());
            if !is_named_now(store, &key, repo).await? {
                self.storage().delete(&key).await?;
                deleted += 1;
            }
            self.unnamed.lock().forget(&key);
        }
        Ok(deleted)
    }
}

/// Returns the key of a file of a pack.
fn key(repository: &Repository, file: &Path) -> String {
    packs::pack_key(repository.store.endpoint(), &repository.dir, file)
}

/// Returns the file of a pack in a place of its own.
pub(super) fn copy_file(copy: &Quarantine, pack: &Pack) -> PathBuf {
    let name = format!("{}.pack", pack.name);
    copy.objects().join("pack").join(name)
}

/// Makes the index of a pack that is being brought onto disk.
async fn index(store: &RepoStore, file: &Path) -> Result<(), GitError> {
    const COMMAND: &str = "index-pack";
    let index = file.with_extension("idx");
    blocking(move || layout::remove(&index)).await?;
    let command = store.git().command(COMMAND).repository(&store.workbench());
    let command = command
        .arg(file)
        .claimed_by(Claimant::server())
        .limit(READ_TIMEOUT);
    command.run(Vec::new()).await?.success(COMMAND).map(drop)
}

/// Returns those of these packs that are not on disk with their index.
async fn absent(
    repository: &Repository,
    mut packs: BTreeSet<Pack>,
) -> Result<BTreeSet<Pack>, GitError> {
    let dir = repository.dir.clone();
    blocking(move || {
        packs.retain(|pack| visible_fault(&dir.pack(&pack.name), pack).is_some());
        Ok(packs)
    })
    .await
}

/// Removes packs that others have taken the place of, unless the repository is being changed.
async fn remove_replaced(repository: &Repository, named: BTreeSet<Pack>) -> Result<(), GitError> {
    let dir = repository.dir.clone();
    let looking = blocking(move || Ok(!unnamed_files(&dir, &named)?.is_empty()));
    if !looking.await? {
        return Ok(());
    }
    let lock = repository.store.lock_of(repository.dir.key());
    if let Ok(held) = lock.try_lock_owned() {
        RepoGuard::begin(repository.clone(), held).await?;
    }
    Ok(())
}

/// Returns whether a commit names an object by now. Fails if another process writes: it may name one at any time.
///
/// Between the list of objects and this, this process may have been suspended and another may have written.
async fn is_named_now(
    store: &RepoStore,
    key: &str,
    repo: Option<RepoId>,
) -> Result<bool, GitError> {
    // A commit of nothing checks the lease.
    let _ = store.database().commit(Commit::default()).await?;
    let prefix = packs::packs_prefix(store.endpoint());
    let Some((dir, file)) = split(&prefix, key) else {
        return Ok(false);
    };
    let repo = match repo {
        Some(repo) => Some(repo),
        // One that did not exist when the objects were listed.
        None => {
            let all = store.database().all(store.endpoint()).await?;
            all.into_iter().find(|repo| store.dir(repo).key() == dir)
        }
    };
    let Some(repo) = repo else { return Ok(false) };
    let packs = store.repository(&repo).packs().await?;
    Ok(names_file(&packs, file))
}

/// Splits a key into the repository and the file; `None` for the key of an upload.
fn split<'a>(prefix: &str, key: &'a str) -> Option<(&'a str, &'a str)> {
    key.strip_prefix(prefix)?.split_once('/')
}

/// Returns whether a file belongs to one of these packs.
fn names_file(packs: &BTreeSet<Pack>, file: &str) -> bool {
    file.rsplit_once('.')
        .is_some_and(|(name, _)| packs.iter().any(|pack| pack.name == name))
}
