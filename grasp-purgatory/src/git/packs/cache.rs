//! The repositories on disk as a cache: which may be removed, and when.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_core::service::Endpoint;
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

use super::{PackFigures, PackStorage};
use crate::git::blocking;
use crate::git::layout::{self, RepoDir};

/// A pack storage, and a bound for the packs that are kept on disk. Clones share it; the stores of all endpoints are
/// opened with one.
#[derive(Clone, Debug)]
pub struct PackCache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    storage: PackStorage,
    max_bytes: u64,
    state: Mutex<CacheState>,
    next_scratch: AtomicU64,
    downloads: Semaphore,
}

/// Packs that are downloaded at a time.
const MAX_DOWNLOADS: usize = 16;

impl PackCache {
    /// Bytes of packs that are kept on disk unless the operator says otherwise.
    pub const DEFAULT_BYTES: u64 = 20 * 1024 * 1024 * 1024;

    /// Keeps packs in a pack storage, and at most so many bytes of them on disk, beside what is in use.
    pub fn new(storage: PackStorage, max_bytes: u64) -> Self {
        let next_scratch = AtomicU64::new(0);
        let state = Mutex::default();
        let downloads = Semaphore::new(MAX_DOWNLOADS);
        let inner = Inner {
            storage,
            max_bytes,
            state,
            next_scratch,
            downloads,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns the pack storage.
    pub fn storage(&self) -> &PackStorage {
        &self.inner.storage
    }

    /// Returns figures for the status.
    pub fn figures(&self) -> PackFigures {
        PackFigures {
            cached_bytes: self.inner.state.lock().bytes,
            ..*self.storage().figures.lock()
        }
    }

    /// Begins to use a repository. If it is being removed, waits for the end of that.
    pub(in crate::git) async fn enter(&self, endpoint: Endpoint, dir: &RepoDir) -> InUse {
        loop {
            let entered = self.inner.state.lock().enter(key_of(endpoint, dir), dir);
            match entered {
                Ok(()) => {
                    return InUse {
                        cache: self.clone(),
                        key: key_of(endpoint, dir),
                    };
                }
                Err(removal) => drop(removal.lock().await),
            }
        }
    }

    /// Waits for its turn to download packs of a repository.
    pub(in crate::git) async fn transfer(&self, in_use: &InUse) -> OwnedMutexGuard<()> {
        let repositories = self
            .inner
            .state
            .lock()
            .repositories
            .get(&in_use.key)
            .map(|it| it.transfer.clone());
        repositories.unwrap_or_default().lock_owned().await
    }

    /// Waits until a pack may be downloaded.
    pub(in crate::git) async fn download_slot(&self) -> Option<SemaphorePermit<'_>> {
        self.inner.downloads.acquire().await.ok()
    }

    /// Notes the size of a repository on disk, and makes room if that is too much with all others.
    pub(in crate::git) fn resize(&self, endpoint: Endpoint, dir: &RepoDir, bytes: u64) {
        self.inner
            .state
            .lock()
            .resize(key_of(endpoint, dir), dir, bytes);
        self.evict_soon();
    }

    pub(in crate::git) fn hit(&self) {
        self.storage().figures.lock().hits += 1;
    }

    pub(in crate::git) fn missed(&self) {
        self.storage().figures.lock().misses += 1;
    }

    fn evict_soon(&self) {
        let state = self.inner.state.lock();
        let is_over = state.bytes > self.inner.max_bytes;
        drop(state);
        if let (true, Ok(runtime)) = (is_over, tokio::runtime::Handle::try_current()) {
            runtime.spawn(self.clone().evict());
        }
    }

    /// Removes the repositories that were used least recently until the bound is kept.
    async fn evict(self) {
        while let Some((key, dir, removal)) = self.next_to_remove() {
            let number = self.inner.next_scratch.fetch_add(1, Ordering::Relaxed);
            let scratch = dir.layout().incoming().join(format!("evicted-{number}"));
            let removed = blocking(move || {
                layout::remove(&dir.views())?;
                layout::rename(dir.path(), &scratch)?;
                layout::remove(&scratch)
            });
            if let Err(error) = removed.await {
                tracing::warn!(%error, "could not remove a repository from the cache of packs");
            }
            self.inner.state.lock().removed(&key);
            drop(removal);
        }
    }

    fn next_to_remove(&self) -> Option<(CacheKey, RepoDir, OwnedMutexGuard<()>)> {
        let mut state = self.inner.state.lock();
        let key = state.next_to_remove(self.inner.max_bytes)?;
        let entry = state.repositories.get(&key)?;
        // Only users transfer files, and it has none.
        let removal = entry.transfer.clone().try_lock_owned().ok()?;
        Some((key, entry.dir.clone(), removal))
    }
}

type Lock = Arc<tokio::sync::Mutex<()>>;

/// A repository, by its endpoint and the key of its directory.
type CacheKey = (Endpoint, String);

fn key_of(endpoint: Endpoint, dir: &RepoDir) -> CacheKey {
    (endpoint, dir.key().to_owned())
}

/// The repositories on disk. A plain value: whoever evicts or downloads asks it first.
#[derive(Debug, Default)]
struct CacheState {
    repositories: BTreeMap<CacheKey, Cached>,
    bytes: u64,
    uses: u64,
}

#[derive(Debug)]
struct Cached {
    dir: RepoDir,
    bytes: u64,
    /// Processes, guards and downloads that need it.
    users: usize,
    /// The number of its last use among all.
    last_use: u64,
    is_leaving: bool,
    /// Held while its files are downloaded or removed.
    transfer: Lock,
}

impl CacheState {
    fn entry(&mut self, key: CacheKey, dir: &RepoDir) -> &mut Cached {
        self.repositories.entry(key).or_insert_with(|| Cached {
            dir: dir.clone(),
            bytes: 0,
            users: 0,
            last_use: 0,
            is_leaving: false,
            transfer: Lock::default(),
        })
    }

    /// Counts a user; returns the lock to wait for if the repository is being removed.
    fn enter(&mut self, key: CacheKey, dir: &RepoDir) -> Result<(), Lock> {
        let entry = self.entry(key, dir);
        if entry.is_leaving {
            return Err(entry.transfer.clone());
        }
        entry.users += 1;
        Ok(())
    }

    fn leave(&mut self, key: &CacheKey) {
        self.uses += 1;
        let Some(entry) = self.repositories.get_mut(key) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        entry.last_use = self.uses;
        if entry.users == 0 && entry.bytes == 0 {
            self.repositories.remove(key);
        }
    }

    /// Notes the size of a repository.
    fn resize(&mut self, key: CacheKey, dir: &RepoDir, bytes: u64) {
        let entry = self.entry(key, dir);
        let before = std::mem::replace(&mut entry.bytes, bytes);
        self.bytes = self.bytes.saturating_sub(before).saturating_add(bytes);
    }

    /// Returns the repository to remove next: of those that are not in use the one that was so least recently, while there
    /// are more bytes than these.
    fn next_to_remove(&mut self, max_bytes: u64) -> Option<CacheKey> {
        if self.bytes <= max_bytes {
            return None;
        }
        let idle = self
            .repositories
            .iter_mut()
            .filter(|(_, it)| it.users == 0 && !it.is_leaving);
        let (key, oldest) = idle.min_by_key(|(_, entry)| entry.last_use)?;
        oldest.is_leaving = true;
        Some(key.clone())
    }

    fn removed(&mut self, key: &CacheKey) {
        let bytes = self.repositories.remove(key).map_or(0, |entry| entry.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// A use of a repository. Its files stay on disk until the last one is dropped.
#[derive(Debug)]
pub(in crate::git) struct InUse {
    cache: PackCache,
    key: CacheKey,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.cache.inner.state.lock().leave(&self.key);
        self.cache.evict_soon();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::git::layout::Layout;

    fn dir(name: &str) -> RepoDir {
        Layout::new(Path::new("/r")).dir_of_key(name.repeat(64))
    }

    fn key(name: &str) -> CacheKey {
        key_of(Endpoint::Repository, &dir(name))
    }

    fn used(state: &mut CacheState, name: &str, bytes: u64) {
        assert!(state.enter(key(name), &dir(name)).is_ok());
        state.resize(key(name), &dir(name), bytes);
        state.leave(&key(name));
    }

    #[test]
    fn removes_the_repository_that_was_used_least_recently() {
        let mut state = CacheState::default();
        for name in ["a", "b", "c", "a"] {
            used(&mut state, name, 10);
        }
        assert_eq!(state.next_to_remove(30), None);
        assert_eq!(state.next_to_remove(15), Some(key("b")));
        state.removed(&key("b"));
        assert_eq!(state.bytes, 20);
        assert_eq!(state.next_to_remove(15), Some(key("c")));
        state.removed(&key("c"));
        assert_eq!(state.next_to_remove(15), None);
    }

    #[test]
    fn removes_nothing_that_is_in_use_however_large_it_is() {
        let mut state = CacheState::default();
        assert!(state.enter(key("a"), &dir("a")).is_ok());
        assert!(state.enter(key("a"), &dir("a")).is_ok());
        state.resize(key("a"), &dir("a"), 100);
        assert_eq!(state.next_to_remove(10), None);
        state.leave(&key("a"));
        assert_eq!(state.next_to_remove(10), None);
        state.leave(&key("a"));
        assert_eq!(state.next_to_remove(10), Some(key("a")));
        assert_eq!(state.next_to_remove(10), None, "it is being removed");
    }

    #[test]
    fn a_repository_that_is_being_removed_is_waited_for() {
        let mut state = CacheState::default();
        used(&mut state, "a", 100);
        assert_eq!(state.next_to_remove(10), Some(key("a")));
        assert!(state.enter(key("a"), &dir("a")).is_err());
        state.removed(&key("a"));
        assert!(state.enter(key("a"), &dir("a")).is_ok());
    }

    #[test]
    fn a_repository_without_files_is_forgotten() {
        let mut state = CacheState::default();
        used(&mut state, "a", 0);
        assert!(state.repositories.is_empty());
    }
}
