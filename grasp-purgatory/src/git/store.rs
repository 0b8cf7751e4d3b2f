//! All repositories of a server on one disk, as the database names them.

mod collect;
mod files;
mod guard;
mod incoming;
mod present;
mod repair;
mod staging;
mod unpacking;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use grasp_core::resources::{Bounds, Claimant};
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

pub use collect::Keep;
pub use files::{Examination, LostPacks, NamedFiles, PackFault, RepoFiles};
pub use guard::{RepoGuard, WantedRefs};
pub use incoming::Incoming;
pub(super) use present::Present;
pub use repair::Inspection;
pub use staging::StagingLimits;
pub(super) use unpacking::Quarantine;
pub use unpacking::Unpacking;

use super::advertise::{Capabilities, ListCache};
use super::binary::Git;
use super::blocking;
use super::cache::BoundedCache;
use super::check::{Objects, Proofs};
use super::error::GitError;
use super::layout::{self, Layout, RepoDir, VERSION};
use super::packs::{PackCache, UnnamedObjects};
use crate::active_work::ActiveWork;
use crate::database::{Database, Pack, RepoRow, RetiredRef, View, ViewHead};
use crate::resources::{Holding, SharedPool};

/// Number of locks from which on unused ones are dropped.
const MANY_LOCKS: usize = 1024;

/// Bytes of views that are kept in memory, so that not every request parses all refs of its repository.
const VIEW_CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// CPU time for reading one ref of a view from the database, which reads in threads of its own.
const CPU_PER_READ_REF: Duration = Duration::from_nanos(500);

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
    packs: Option<PackCache>,
    locks: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// Turns of pushes and uploads, by the keys of their repositories.
    turns: Mutex<BTreeMap<String, Weak<SharedPool>>>,
    /// What is being received.
    arrivals: ActiveWork,
    /// Keys of repositories whose packs on disk may be others than the named ones.
    unsettled: Mutex<BTreeSet<String>>,
    unnamed_objects: Mutex<UnnamedObjects>,
    next_scratch: AtomicU64,
    removals: AtomicU64,
    capabilities: tokio::sync::OnceCell<Capabilities>,
    /// Views that were read lately, by the key of their repository.
    views: Mutex<BoundedCache<String, View>>,
    /// Lists of refs that were encoded lately.
    lists: ListCache,
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

/// A change of packs that is not finished. If it never is, who locks the repository next removes what is left of it.
#[must_use]
struct Unsettled {
    store: RepoStore,
    key: String,
}

impl Unsettled {
    /// Notes that the packs on disk are those that are named.
    fn settle(self) {
        self.store.inner.unsettled.lock().remove(&self.key);
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

/// A repository that has what another one lacks.
#[derive(Clone, Debug)]
pub struct CopySource {
    objects: Objects,
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
            packs,
            locks: Mutex::default(),
            turns: Mutex::default(),
            arrivals: ActiveWork::default(),
            unsettled: Mutex::default(),
            unnamed_objects: Mutex::default(),
            next_scratch: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            capabilities: tokio::sync::OnceCell::new(),
            views: Mutex::new(BoundedCache::new(VIEW_CACHE_BYTES)),
            lists: ListCache::default(),
            _lock: lock,
        };
        let store = Self {
            inner: Arc::new(inner),
        };
        store.measure_all().await?;
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

    /// Waits for its turn to change anything in a repository.
    ///
    /// Turns come in the order of asking. Other repositories are not affected.
    pub async fn lock(&self, repo: &RepoId) -> Result<RepoGuard, GitError> {
        let dir = self.dir(repo);
        let held = self.lock_of(dir.key()).lock_owned().await;
        let is_unsettled = self.inner.unsettled.lock().contains(dir.key());
        let unsettled = is_unsettled.then(|| self.unsettle(&dir));
        let in_use = match self.packs() {
            Some(cache) => Some(Arc::new(cache.enter(self.endpoint(), &dir).await)),
            None => None,
        };
        let guard = RepoGuard::new(self.clone(), repo.clone(), dir, (held, in_use));
        guard.settle_cached().await?;
        if let Some(unsettled) = unsettled {
            guard.settle().await?;
            unsettled.settle();
        }
        Ok(guard)
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
        let turns = self.turns_of(key);
        let turn = turns
            .wait(claimant, 1, timeout)
            .await
            .map_err(GitError::Busy)?;
        Ok(Turn {
            _turn: turn,
            _turns: turns,
        })
    }

    fn turns_of(&self, key: String) -> Arc<SharedPool> {
        let mut all = self.inner.turns.lock();
        if let Some(turns) = all.get(&key).and_then(Weak::upgrade) {
            return turns;
        }
        if all.len() > MANY_LOCKS {
            all.retain(|_, turns| turns.strong_count() > 0);
        }
        let one = Bounds {
            reserve: 0,
            ..Bounds::of(1)
        };
        let turns = Arc::new(SharedPool::new(one));
        all.insert(key, Arc::downgrade(&turns));
        turns
    }

    /// Returns the limits of staging.
    pub fn staging_limits(&self) -> StagingLimits {
        self.inner.staging
    }

    /// A place for objects that are about to come for this repository, from this claimant.
    pub async fn incoming(&self, repo: &RepoId, claimant: Claimant) -> Result<Incoming, GitError> {
        if self.committed(repo).await?.is_none() {
            return Err(GitError::NoView);
        }
        if self.packs().is_some() {
            return self.lock(repo).await?.incoming(claimant).await;
        }
        let (store, repo) = (self.clone(), repo.clone());
        blocking(move || Incoming::new(&store, (store.dir(&repo), None), &repo, claimant)).await
    }

    /// A place for objects that are fetched for a repository. It need not be served yet: the objects may be what it
    /// takes.
    pub async fn incoming_for(&self, repo: &RepoId) -> Result<Incoming, GitError> {
        // A removal of the repository that is under way ends first.
        let guard = self.lock(repo).await?;
        // The fetch has no authority: any client's event may name the server.
        guard.incoming(Claimant::default()).await
    }

    /// Takes tips with their whole history from another repository, of this store or another, for one that lacks them.
    /// The caller holds the lock of the repository that they are for.
    pub async fn copy(
        &self,
        source: &CopySource,
        to: &RepoGuard,
        tips: &BTreeSet<Oid>,
    ) -> Result<Incoming, GitError> {
        let mut incoming = to.incoming(Claimant::default()).await?;
        incoming.fill_from(source.objects.clone(), tips).await?;
        Ok(incoming)
    }

    /// Returns a repository to copy from, if it has these tips with their whole history. Takes no lock.
    pub async fn source(
        &self,
        repo: &RepoId,
        tips: &BTreeSet<Oid>,
    ) -> Result<Option<CopySource>, GitError> {
        if self.row(repo).await?.packs.is_empty() {
            return Ok(None);
        }
        let objects = self.objects(repo).await?;
        let is_complete = objects.examine(tips).await?.is_complete();
        Ok(is_complete.then_some(CopySource { objects }))
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
    async fn view_head(&self, repo: &RepoId) -> Result<Option<ViewHead>, GitError> {
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

    /// Returns the tips that were replaced lately.
    pub async fn retired_refs(&self, repo: &RepoId) -> Result<Vec<RetiredRef>, GitError> {
        Ok(self
            .inner
            .database
            .retired(self.inner.endpoint, repo.clone())
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

    /// Returns a directory in which git reads a repository as it is committed now. What is returned with it keeps it
    /// there.
    pub(super) async fn readable(
        &self,
        repo: &RepoId,
    ) -> Result<(PathBuf, Option<Present>), GitError> {
        let mut view = self.view(repo).await?;
        let present = self.present(repo).await?;
        if let Some(of_row) = present.as_ref().and_then(|it| it.row.view.as_ref()) {
            // The refs of the same moment as the packs.
            view = of_row.clone();
        }
        let (store, dir) = (self.clone(), self.dir(repo));
        let readable = blocking(move || {
            if !dir.objects().is_dir() {
                return Ok(store.workbench());
            }
            let scratch = store.scratch();
            match dir.cached_view(&view.refs, view.generation, &scratch) {
                // The directory is a cache: git finds the objects of every list of refs that was sent without it.
                Err(error) if error.is_disk_full() => {
                    layout::remove(&scratch)?;
                    Ok(dir.path().to_owned())
                }
                cached => cached,
            }
        });
        Ok((readable.await?, present))
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

    /// Notes that packs of a repository are about to change. The caller holds its lock.
    fn unsettle(&self, dir: &RepoDir) -> Unsettled {
        self.inner.unsettled.lock().insert(dir.key().to_owned());
        Unsettled {
            store: self.clone(),
            key: dir.key().to_owned(),
        }
    }

    fn count_removal(&self) {
        self.inner.removals.fetch_add(1, Ordering::SeqCst);
    }

    fn lock_of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.inner.locks.lock();
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() > MANY_LOCKS {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
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
    check_version(&root, &layout)?;
    for dir in [layout.incoming(), layout.views()] {
        layout::remove(&dir)?;
        layout::create_dir(&dir)?;
    }
    for dir in [layout.repositories(), layout.staging()] {
        layout::create_dir(&dir)?;
    }
    layout.create_workbench()?;
    remove_unnamed(&layout, named)?;
    Ok((layout, lock))
}

fn claim(root: &Path, layout: &Layout) -> Result<File, GitError> {
    let path = layout.lock();
    let file = File::create(&path).map_err(|source| GitError::io("create", &path, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(GitError::InUse(root.to_owned())),
        Err(error) => Err(GitError::io("lock", path, error.into())),
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

/// Removes the packs that no commit names, and repositories without a named pack.
fn remove_unnamed(
    layout: &Layout,
    named: &BTreeMap<RepoId, BTreeSet<Pack>>,
) -> Result<(), GitError> {
    let named: BTreeMap<String, &BTreeSet<Pack>> = named
        .iter()
        .map(|(repo, packs)| (layout.dir(repo).key().to_owned(), packs))
        .collect();
    for shard in layout::list(&layout.repositories())? {
        for rest in layout::list(&shard)? {
            let key = format!("{}{}", layout::name(&shard), layout::name(&rest));
            match named.get(&key) {
                Some(packs) => remove_garbage(&layout.dir_of_key(key), packs)?,
                None => layout::remove(&rest)?,
            }
        }
    }
    Ok(())
}

/// Removes the packs of a repository that a crash has left. Proofs may depend on what they contain.
fn remove_garbage(dir: &RepoDir, named: &BTreeSet<Pack>) -> Result<(), GitError> {
    let unnamed = unnamed_files(dir, named)?;
    if unnamed.is_empty() {
        return Ok(());
    }
    Proofs::forget(dir)?;
    unnamed.iter().try_for_each(|file| layout::remove(file))
}

/// Returns the files of packs of a repository that are not among these.
fn unnamed_files(dir: &RepoDir, named: &BTreeSet<Pack>) -> Result<Vec<PathBuf>, GitError> {
    let names: BTreeSet<&str> = named.iter().map(|pack| pack.name.as_str()).collect();
    let mut files = layout::list(&dir.objects().join("pack"))?;
    files.retain(|file| {
        let stem = file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or_default();
        !names.contains(stem)
    });
    Ok(files)
}
