//! All repositories of a server on one disk.

mod collect;
mod guard;
mod incoming;
mod retired;
mod staging;
mod unpacking;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use grasp_core::resources::Claimant;
use grasp_core::{Identifier, Oid, RefName, RepoId};
use nostr::key::PublicKey;
use rustix::fs::{FlockOperation, flock};

pub use guard::FamilyGuard;
use incoming::Arrivals;
pub use incoming::Incoming;
pub use staging::StagingLimits;
pub(super) use unpacking::Quarantine;
pub use unpacking::Unpacking;

use super::advertise::Capabilities;
use super::binary::Git;
use super::error::GitError;
use super::layout::{self, Family, Layout, VERSION};
use super::refs::{Pending, Snapshot};
use super::{blocking, never_stops, read};

/// Number of locks from which on unused ones are dropped.
const MANY_LOCKS: usize = 1024;

/// All repositories of a server: families of shared objects, views with refs, and what waits outside.
///
/// Clones share everything. Reading takes no lock; changing goes through [`RepoStore::lock`].
#[derive(Clone, Debug)]
pub struct RepoStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    git: Git,
    staging: StagingLimits,
    /// Repositories that were never created are empty rather than absent.
    all_exist: bool,
    locks: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>,
    arrivals: Arrivals,
    next_scratch: AtomicU64,
    removals: AtomicU64,
    capabilities: tokio::sync::OnceCell<Capabilities>,
    // Held while the store is in use.
    _lock: File,
}

/// A count of removed families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Removals(u64);

impl RepoStore {
    /// Opens the directory, makes it if need be, and finishes what a crash has left unfinished.
    pub async fn open(root: &Path, git: Git, staging: StagingLimits) -> Result<Self, GitError> {
        Self::open_as(root, git, staging, false).await
    }

    /// Opens a directory in which every repository exists for its readers, empty until something is put there.
    /// Reading makes nothing.
    pub async fn open_to_all(
        root: &Path,
        git: Git,
        staging: StagingLimits,
    ) -> Result<Self, GitError> {
        Self::open_as(root, git, staging, true).await
    }

    async fn open_as(
        root: &Path,
        git: Git,
        staging: StagingLimits,
        all_exist: bool,
    ) -> Result<Self, GitError> {
        let root = root.to_owned();
        let (layout, lock) = blocking(move || prepare(&root)).await?;
        let inner = Inner {
            layout,
            git,
            staging,
            all_exist,
            locks: Mutex::default(),
            arrivals: Arrivals::default(),
            next_scratch: AtomicU64::new(0),
            removals: AtomicU64::new(0),
            capabilities: tokio::sync::OnceCell::new(),
            _lock: lock,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The capabilities of git, once it was asked for them.
    pub(super) fn capabilities(&self) -> &tokio::sync::OnceCell<Capabilities> {
        &self.inner.capabilities
    }

    /// A repository without refs and objects.
    pub(super) fn workbench(&self) -> PathBuf {
        self.inner.layout.workbench()
    }

    /// The git that works for this store.
    pub fn git(&self) -> &Git {
        &self.inner.git
    }

    /// Waits for its turn to change anything in the family of this identifier.
    ///
    /// Turns come in the order of asking. Other families are not affected.
    pub async fn lock(&self, identifier: &Identifier) -> Result<FamilyGuard, GitError> {
        let family = self.family(identifier);
        let held = self.lock_of(family.key()).lock_owned().await;
        FamilyGuard::new(self.clone(), identifier.clone(), family, held).await
    }

    /// Returns the limits of staging.
    pub fn staging_limits(&self) -> StagingLimits {
        self.inner.staging
    }

    /// A place for objects that are about to come for this repository, from this claimant.
    pub async fn incoming(&self, repo: &RepoId, claimant: Claimant) -> Result<Incoming, GitError> {
        let (store, family, owner) = (self.clone(), self.family(&repo.identifier), repo.owner);
        blocking(move || {
            if !family.view(&owner).is_dir() {
                return Err(GitError::NoView);
            }
            Incoming::new(&store, family, claimant)
        })
        .await
    }

    /// Takes a tip with its whole history from another family, of this store or another, for a repository that lacks
    /// it; `None` if they have no history in common.
    pub async fn copy(
        &self,
        (store, from): (&Self, &Identifier),
        to: &RepoId,
        tip: Oid,
    ) -> Result<Option<Incoming>, GitError> {
        let mut incoming = self.incoming(to, Claimant::default()).await?;
        let is_related = incoming.fill_from(store, store.family(from), tip).await?;
        Ok(is_related.then_some(incoming))
    }

    /// Returns whether a view exists.
    pub async fn has_view(&self, repo: &RepoId) -> Result<bool, GitError> {
        let view = self.view(repo);
        blocking(move || Ok(view.is_dir())).await
    }

    /// The refs that clients see.
    pub async fn refs(&self, repo: &RepoId) -> Result<BTreeMap<RefName, Oid>, GitError> {
        self.snapshot(repo).await.map(|snapshot| snapshot.visible())
    }

    /// The branch that HEAD names, whether it exists or not.
    pub async fn head(&self, repo: &RepoId) -> Result<Option<RefName>, GitError> {
        self.snapshot(repo).await.map(|snapshot| snapshot.head)
    }

    /// All views there are, in no particular order.
    pub async fn repositories(&self) -> Result<Vec<RepoId>, GitError> {
        let layout = self.inner.layout.clone();
        blocking(move || repositories(&layout)).await
    }

    /// The identifiers of all families there are, whether they have a view or not.
    pub async fn identifiers(&self) -> Result<Vec<Identifier>, GitError> {
        let layout = self.inner.layout.clone();
        blocking(move || Ok(families(&layout)?.iter().filter_map(identifier_of).collect())).await
    }

    /// Returns those of these identifiers that there is a family of.
    pub async fn existing(
        &self,
        mut identifiers: BTreeSet<Identifier>,
    ) -> Result<BTreeSet<Identifier>, GitError> {
        let layout = self.inner.layout.clone();
        blocking(move || {
            identifiers.retain(|identifier| layout.family(identifier).path().is_dir());
            Ok(identifiers)
        })
        .await
    }

    async fn snapshot(&self, repo: &RepoId) -> Result<Snapshot, GitError> {
        let (store, repo) = (self.clone(), repo.clone());
        blocking(move || read::snapshot(&store.seat(&repo))).await
    }

    /// Returns the directory that a repository is read from: its view, or the empty one where all exist. Reads the disk.
    pub(super) fn seat(&self, repo: &RepoId) -> PathBuf {
        let view = self.view(repo);
        let is_vacant = self.inner.all_exist && !view.is_dir();
        if is_vacant { self.inner.layout.workbench() } else { view }
    }

    pub(super) fn family(&self, identifier: &Identifier) -> Family {
        self.inner.layout.family(identifier)
    }

    pub(super) fn view(&self, repo: &RepoId) -> PathBuf {
        self.family(&repo.identifier).view(&repo.owner)
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

    /// Returns the number of removed families. Findings from before the last removal may be outdated.
    fn removals(&self) -> Removals {
        Removals(self.inner.removals.load(Ordering::SeqCst))
    }

    fn count_removal(&self) {
        self.inner.removals.fetch_add(1, Ordering::SeqCst);
    }

    fn lock_of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        // Nothing below can panic, and a map of locks is whole at any time.
        let mut locks = self.inner.locks.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Makes the top of the layout, claims it, clears what was being received and finishes what was decided.
fn prepare(root: &Path) -> Result<(Layout, File), GitError> {
    layout::create_dir(root)?;
    let root = fs::canonicalize(root).map_err(|source| GitError::io("find", root, source))?;
    let layout = Layout::new(&root);
    let lock = claim(&root, &layout)?;
    check_version(&root, &layout)?;
    layout::remove(&layout.incoming())?;
    for dir in [layout.families(), layout.staging(), layout.incoming(), layout.journal()] {
        layout::create_dir(&dir)?;
    }
    layout.create_workbench()?;
    for pending in Pending::left_behind(&layout)? {
        pending.roll_forward(never_stops)?;
    }
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
        return Err(GitError::Layout { path: root.to_owned(), found, known: VERSION });
    }
    Ok(())
}

fn repositories(layout: &Layout) -> Result<Vec<RepoId>, GitError> {
    let mut found = Vec::new();
    for family in families(layout)? {
        let Some(identifier) = identifier_of(&family) else {
            continue;
        };
        let owners = owners(&family)?.into_iter();
        found.extend(owners.map(|owner| RepoId::new(owner, identifier.clone())));
    }
    Ok(found)
}

fn owners(family: &Family) -> Result<Vec<PublicKey>, GitError> {
    let views = layout::list(&family.views())?.into_iter();
    Ok(views.filter_map(|view| PublicKey::from_hex(layout::name(&view)).ok()).collect())
}

fn families(layout: &Layout) -> Result<Vec<Family>, GitError> {
    let mut found = Vec::new();
    for shard in layout::list(&layout.families())? {
        let rests = layout::list(&shard)?.into_iter();
        let keys = rests.map(|rest| format!("{}{}", layout::name(&shard), layout::name(&rest)));
        found.extend(keys.map(|key| layout.family_of_key(key)));
    }
    Ok(found)
}

/// Returns the identifier that a family's directory records, if it is the right directory.
fn identifier_of(family: &Family) -> Option<Identifier> {
    let text = fs::read_to_string(family.identifier()).ok()?;
    let identifier = Identifier::new(&text).ok()?;
    (family.layout().family(&identifier).key() == family.key()).then_some(identifier)
}
