//! All repositories of a server on one disk, as the database names them.

mod collect;
mod examination;
mod families;
mod files;
mod guard;
mod incoming;
mod next_view;
mod pack_change;
mod repair;
mod repository;
mod staging;
mod stored;
mod unpacking;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use grasp_core::resources::{Bounds, Claimant};
use grasp_core::service::Endpoint;
use grasp_core::{Mono, Oid, RefName, RepoId};
use nostr::event::EventId;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FlockOperation, flock};

pub use collect::Keep;
pub use examination::PackFault;
pub use files::{Examination, LostPacks, NamedFiles, RepoFiles};
pub use guard::RepoGuard;
pub use incoming::{CopySource, Incoming};
pub use next_view::WantedRefs;
pub use repair::Inspection;
pub use repository::Repository;
pub use staging::StagingLimits;
pub(super) use unpacking::Quarantine;
pub use unpacking::Unpacking;

use self::stored::{Present, StoredPacks};
use super::advertise::{Capabilities, ListCache};
use super::binary::Git;
use super::blocking;
use super::cache::BoundedCache;
use super::error::GitError;
use super::layout::{self, Layout, RepoDir, VERSION};
use super::packs::{PackCache, PackFigures};
use crate::active_work::{ActiveWork, WorkGuard};
use crate::database::{Database, Pack, RepoRow, View, ViewHead};
use crate::resources::{Holding, SharedPool};

/// Number of locks from which on unused ones are dropped.
const MANY_LOCKS: usize = 1024;

/// Bytes of views that are kept in memory, so that not every request parses all refs of its repository.
const VIEW_CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// CPU time for reading one ref of a view from the database, which reads in threads of its own.
const CPU_PER_READ_REF: Duration = Duration::from_nanos(500);

/// How long an open waits for the lock of its directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between two attempts to take that lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// All repositories of a server at one endpoint: their objects, their refs, and what waits outside.
///
/// The database says which views and packs there are. Clones share everything. Reading takes no lock; changing goes
/// through [`RepoStore::lock`].
#[derive(Clone)]
pub struct RepoStore {
    inner: Arc<Inner>,
}

struct Inner {
    layout: Layout,
    endpoint: Endpoint,
    database: Arc<dyn Database>,
    git: Git,
    staging: StagingLimits,
    /// The pack storage, if packs are in one.
    stored: Option<StoredPacks>,
    /// Locks, by the keys of their repositories.
    locks: Mutex<SharedByKey<tokio::sync::Mutex<()>>>,
    /// Turns of pushes and uploads, by the keys of their repositories.
    turns: Mutex<SharedByKey<SharedPool>>,
    /// What is being received.
    arrivals: ActiveWork,
    next_scratch: AtomicU64,
    removals: AtomicU64,
    capabilities: tokio::sync::OnceCell<Capabilities>,
    /// Views that were read lately, by the key of their repository.
    views: Mutex<BoundedCache<String, View>>,
    /// Lists of refs that were encoded lately.
    lists: ListCache,
    /// Keys of repositories with objects that git puts together in memory when it serves them.
    needs_object_memory: Mutex<BTreeSet<String>>,
    // Held while the store is in use.
    _lock: File,
}

impl std::fmt::Debug for RepoStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepoStore")
            .field("layout", &self.inner.layout)
            .finish_non_exhaustive()
    }
}

/// The turn of a push or an upload. The next one comes when it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Turn {
    _turn: Holding,
    /// All that wait for the same turn share it.
    _turns: Arc<SharedPool>,
}

/// A count of removed packs and repositories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Removals(u64);

impl RepoStore {
    /// Opens the directory of an endpoint, makes it if need be, and removes what the database does not name. With `packs`
    /// the directory is a cache of a pack storage that other processes may write to; see [`RepoStore::became_writer`].
    ///
    /// At [`Endpoint::PullRequests`] every repository exists for its readers, empty until something is put there.
    pub async fn open(
        root: &Path,
        endpoint: Endpoint,
        git: Git,
        staging: StagingLimits,
        database: Arc<dyn Database>,
        packs: Option<PackCache>,
    ) -> Result<Self, GitError> {
        let named = database.packs(endpoint).await?;
        let root = root.to_owned();
        let (layout, lock) = blocking(move || prepare(&root, &named)).await?;
        let inner = Inner {
            layout,
            endpoint,
            database,
            git,
            staging,
            stored: packs.map(StoredPacks::new),
            locks: Mutex::default(),
            turns: Mutex::default(),
            arrivals: ActiveWork::default(),
            next_scratch: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            capabilities: tokio::sync::OnceCell::new(),
            views: Mutex::new(BoundedCache::new(VIEW_CACHE_BYTES)),
            lists: ListCache::default(),
            needs_object_memory: Mutex::default(),
            _lock: lock,
        };
        let store = Self {
            inner: Arc::new(inner),
        };
        if let Some(stored) = store.stored() {
            stored.measure_all(&store).await?;
        }
        Ok(store)
    }

    /// The capabilities of git, once it was asked for them.
    pub(super) fn capabilities(&self) -> &tokio::sync::OnceCell<Capabilities> {
        &self.inner.capabilities
    }

    /// Lists of refs that were encoded lately.
    pub(super) fn lists(&self) -> &ListCache {
        &self.inner.lists
    }

    /// Keys of repositories with objects that git puts together in memory when it serves them.
    pub(super) fn needs_object_memory(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.inner.needs_object_memory.lock()
    }

    /// A repository without refs and objects.
    pub(super) fn workbench(&self) -> PathBuf {
        self.inner.layout.workbench()
    }

    /// A repository with a HEAD and nothing else.
    pub(super) fn detached(&self) -> PathBuf {
        self.inner.layout.detached()
    }

    /// The git that works for this store.
    pub fn git(&self) -> &Git {
        &self.inner.git
    }

    /// Returns the endpoint that these repositories are served at.
    pub fn endpoint(&self) -> Endpoint {
        self.inner.endpoint
    }

    /// Returns the database that names these repositories.
    pub fn database(&self) -> &Arc<dyn Database> {
        &self.inner.database
    }

    /// The pack storage, if packs are in one. The disk is a cache of it then.
    fn stored(&self) -> Option<&StoredPacks> {
        self.inner.stored.as_ref()
    }

    /// Returns figures of the pack storage, if there is one. Stores that share it have the same figures.
    pub fn pack_figures(&self) -> Option<PackFigures> {
        self.stored().map(StoredPacks::figures)
    }

    /// Begins to change repositories, which another process may have changed before: forgets what that may have made
    /// wrong, and lists the uploads that wait for their event. Without a pack storage there is no other process.
    ///
    /// To be called before anything is changed, each time that this process becomes the one that writes.
    pub async fn became_writer(&self) -> Result<(), GitError> {
        match self.stored() {
            Some(stored) => stored.became_writer(self).await,
            None => Ok(()),
        }
    }

    /// Deletes objects from the pack storage that nothing has named for a day, and returns their number. For the one
    /// process that writes.
    pub async fn sweep(&self, now: Mono) -> Result<usize, GitError> {
        match self.stored() {
            Some(stored) => stored.sweep(self, now).await,
            None => Ok(0),
        }
    }

    /// Returns a repository, whether it exists or not.
    pub fn repository(&self, repo: &RepoId) -> Repository {
        Repository {
            store: self.clone(),
            id: repo.clone(),
            dir: self.dir(repo),
        }
    }

    /// Waits for its turn to change anything in a repository; see [`Repository::lock`].
    pub async fn lock(&self, repo: &RepoId) -> Result<RepoGuard, GitError> {
        self.repository(repo).lock().await
    }

    /// Waits for the turn to push to a repository. One signed push is judged and carried out at a time, those with
    /// authority first; others by networks in turn.
    pub async fn push_turn(
        &self,
        repo: &RepoId,
        claimant: &Claimant,
        timeout: Duration,
    ) -> Result<Turn, GitError> {
        self.turn(format!("{}.push", self.dir(repo).key()), claimant, timeout)
            .await
    }

    /// Waits for the turn to stage an upload that nobody signed for. It delays no push: only one upload at a time waits for
    /// the lock of the repository.
    pub async fn upload_turn(
        &self,
        repo: &RepoId,
        claimant: &Claimant,
        timeout: Duration,
    ) -> Result<Turn, GitError> {
        self.turn(
            format!("{}.upload", self.dir(repo).key()),
            claimant,
            timeout,
        )
        .await
    }

    async fn turn(
        &self,
        key: String,
        claimant: &Claimant,
        timeout: Duration,
    ) -> Result<Turn, GitError> {
        let one = Bounds {
            reserve: 0,
            ..Bounds::of(1)
        };
        let turns = shared(&mut self.inner.turns.lock(), &key, || SharedPool::new(one));
        let turn = turns
            .wait(claimant, 1, timeout)
            .await
            .map_err(GitError::Busy)?;
        Ok(Turn {
            _turn: turn,
            _turns: turns,
        })
    }

    /// Returns the limits of staging.
    pub fn staging_limits(&self) -> StagingLimits {
        self.inner.staging
    }

    /// Returns the repository that is served at an address: that of the address itself, or the one that it shows. `None`
    /// if nothing is.
    pub async fn resolve(&self, address: &RepoId) -> Result<Option<RepoId>, GitError> {
        if self.inner.endpoint == Endpoint::PullRequests {
            return Ok(Some(address.clone()));
        }
        let Some(head) = self.view_head(address).await? else {
            return Ok(None);
        };
        let Some(owner) = head.shows else {
            return Ok(Some(address.clone()));
        };
        let shown = RepoId::new(owner, address.identifier.clone());
        Ok(self.has_view(&shown).await?.then_some(shown))
    }

    /// Returns whether a view exists.
    pub async fn has_view(&self, repo: &RepoId) -> Result<bool, GitError> {
        Ok(self.view_head(repo).await?.is_some())
    }

    /// Returns the refs of a repository.
    pub async fn refs(&self, repo: &RepoId) -> Result<BTreeMap<RefName, Oid>, GitError> {
        Ok(self.view(repo).await?.refs.tips())
    }

    /// Returns the branch that HEAD names, whether it exists or not.
    pub async fn head(&self, repo: &RepoId) -> Result<RefName, GitError> {
        Ok(self.view(repo).await?.refs.head.clone())
    }

    /// Returns a view; an empty one where all repositories exist.
    pub async fn view(&self, repo: &RepoId) -> Result<View, GitError> {
        match self.committed(repo).await? {
            Some(view) => Ok(view),
            None if self.inner.endpoint == Endpoint::PullRequests => Ok(View::default()),
            None => Err(GitError::NoView),
        }
    }

    /// Returns a view for a client. If it has to be read from the database, that is one step of the client.
    pub async fn view_for(&self, repo: &RepoId, claimant: Claimant) -> Result<View, GitError> {
        if let Some(view) = self.cached(repo).await? {
            return Ok(view);
        }
        let step = self.git().begin_step(claimant).await?;
        // Another request of the same client may have read it meanwhile.
        if let Some(view) = self.cached(repo).await? {
            return Ok(view);
        }
        let view = self.view(repo).await?;
        let count = u32::try_from(view.refs.refs.len()).unwrap_or(u32::MAX);
        step.charge(CPU_PER_READ_REF.saturating_mul(count));
        Ok(view)
    }

    async fn committed(&self, repo: &RepoId) -> Result<Option<View>, GitError> {
        if let Some(view) = self.cached(repo).await? {
            return Ok(Some(view));
        }
        let view = self
            .inner
            .database
            .view(self.inner.endpoint, repo.clone())
            .await?;
        let key = self.dir(repo).key().to_owned();
        let mut views = self.inner.views.lock();
        match &view {
            Some(view) => views.insert(key, view.clone(), view.refs.memory()),
            None => views.remove(&key),
        }
        Ok(view)
    }

    /// Returns a view from memory, if it has not changed since it was read.
    async fn cached(&self, repo: &RepoId) -> Result<Option<View>, GitError> {
        let Some(head) = self.view_head(repo).await? else {
            return Ok(None);
        };
        let view = self
            .inner
            .views
            .lock()
            .get(&self.dir(repo).key().to_owned());
        Ok(view.filter(|view| view.generation == head.generation))
    }

    /// Returns a view that exists, without its refs.
    pub(crate) async fn view_head(&self, repo: &RepoId) -> Result<Option<ViewHead>, GitError> {
        Ok(self
            .inner
            .database
            .view_head(self.inner.endpoint, repo.clone())
            .await?)
    }

    /// Returns all that is committed about a repository, but for its retired refs.
    pub async fn row(&self, repo: &RepoId) -> Result<RepoRow, GitError> {
        Ok(self
            .inner
            .database
            .row(self.inner.endpoint, repo.clone())
            .await?)
    }

    /// Returns the repositories that have a view, in no particular order.
    pub async fn repositories(&self) -> Result<Vec<RepoId>, GitError> {
        Ok(self
            .inner
            .database
            .repositories(self.inner.endpoint)
            .await?)
    }

    /// Returns all repositories, whether they have a view or not.
    pub async fn all(&self) -> Result<BTreeSet<RepoId>, GitError> {
        Ok(self.inner.database.all(self.inner.endpoint).await?)
    }

    pub(super) fn dir(&self, repo: &RepoId) -> RepoDir {
        self.inner.layout.dir(repo)
    }

    fn layout(&self) -> &Layout {
        &self.inner.layout
    }

    /// A path that nothing has, for something that is then renamed to its place.
    fn scratch(&self) -> PathBuf {
        let number = self.inner.next_scratch.fetch_add(1, Ordering::Relaxed);
        self.inner.layout.incoming().join(number.to_string())
    }

    /// Removes a directory with all that is in it, or nothing: what a crash leaves of it lies where the next start
    /// clears up. That it is not there is fine.
    fn remove_whole(&self, path: &Path) -> Result<(), GitError> {
        let scratch = self.scratch();
        match fs::rename(path, &scratch) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(GitError::io("remove", path, error)),
            Ok(()) => layout::remove(&scratch),
        }
    }

    /// Returns the number of removals. Findings from before the last one may be outdated.
    fn removals(&self) -> Removals {
        Removals(self.inner.removals.load(Ordering::SeqCst))
    }

    fn count_removal(&self) {
        self.inner.removals.fetch_add(1, Ordering::SeqCst);
    }

    fn lock_of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        shared(&mut self.inner.locks.lock(), key, Default::default)
    }

    /// Notes that objects are being received for a repository, which keeps it.
    fn begin_arrival(&self, repo: &RepoId) -> WorkGuard {
        self.inner.arrivals.begin(repo)
    }

    /// Returns whether objects are being received for a repository.
    fn awaits(&self, repo: &RepoId) -> bool {
        self.inner.arrivals.is_active(repo)
    }

    /// Drops staged uploads that are not among these, and returns their number.
    ///
    /// For the start, before any push: a run that ended between receiving an upload and journaling it has
    /// promised nothing for it.
    pub async fn forget_staged_but(
        &self,
        keep: BTreeSet<(EventId, Oid)>,
    ) -> Result<usize, GitError> {
        let staging = self.layout().staging();
        let gone = blocking(move || staging::remove_others(&staging, &keep)).await?;
        if let Some(stored) = self.stored() {
            stored.delete_uploads(self, &gone).await;
        }
        Ok(gone.len())
    }
}

/// Values by key, each for as long as it is used.
type SharedByKey<T> = BTreeMap<String, Weak<T>>;

/// Returns the value of a key, which is made unless it is in use.
fn shared<T>(values: &mut SharedByKey<T>, key: &str, make: impl FnOnce() -> T) -> Arc<T> {
    if let Some(value) = values.get(key).and_then(Weak::upgrade) {
        return value;
    }
    if values.len() > MANY_LOCKS {
        values.retain(|_, value| value.strong_count() > 0);
    }
    let value = Arc::new(make());
    values.insert(key.to_owned(), Arc::downgrade(&value));
    value
}

/// Brings the packs of a repository onto disk; `None` where they are there.
async fn present(repository: &Repository) -> Result<Option<Present>, GitError> {
    match repository.store.stored() {
        Some(stored) => Ok(Some(stored.bring(repository).await?)),
        None => Ok(None),
    }
}

/// Notes the size of a repository on disk, where that is a cache.
async fn measure(repository: &Repository) -> Result<(), GitError> {
    match repository.store.stored() {
        Some(stored) => stored.measure(repository, 0).await,
        None => Ok(()),
    }
}

/// Makes the top of the layout, claims it, and removes what was being received and what the database does not name.
fn prepare(
    root: &Path,
    named: &BTreeMap<RepoId, BTreeSet<Pack>>,
) -> Result<(Layout, File), GitError> {
    layout::create_dir(root)?;
    let root = fs::canonicalize(root).map_err(|source| GitError::io("find", root, source))?;
    let layout = Layout::new(&root);
    let lock = claim(&root, &layout)?;
    let has_families = families::are_in(&layout);
    if !has_families {
        check_version(&root, &layout)?;
    }
    for dir in [layout.incoming(), layout.views()] {
        layout::remove(&dir)?;
        layout::create_dir(&dir)?;
    }
    if has_families {
        tracing::info!(root = %root.display(), "giving each repository its own packs");
        families::divide(&layout, named)?;
        layout::write_synced(&layout.version(), VERSION.as_bytes())?;
        layout::sync(&root)?;
    }
    families::remove(&layout)?;
    for dir in [layout.repositories(), layout.staging()] {
        layout::create_dir(&dir)?;
    }
    layout.create_workbench()?;
    pack_change::remove_unnamed_below(&layout, named)?;
    Ok((layout, lock))
}

/// Takes the lock of the directory. A process that another thread has just started holds copies of the server's files
/// until it executes its program, so the lock of a server that has ended may outlive it for a moment.
fn claim(root: &Path, layout: &Layout) -> Result<File, GitError> {
    let path = layout.lock();
    let file = File::create(&path).map_err(|source| GitError::io("create", &path, source))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_RETRY_INTERVAL);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(GitError::InUse(root.to_owned())),
            Err(error) => return Err(GitError::io("lock", path, error.into())),
        }
    }
}

fn check_version(root: &Path, layout: &Layout) -> Result<(), GitError> {
    let path = layout.version();
    if !path.exists() {
        layout::write_synced(&path, VERSION.as_bytes())?;
        return layout::sync(root);
    }
    let found = fs::read_to_string(&path).map_err(|source| GitError::io("read", &path, source))?;
    if found != VERSION {
        return Err(GitError::Layout {
            path: root.to_owned(),
            found,
            known: VERSION,
        });
    }
    Ok(())
}
