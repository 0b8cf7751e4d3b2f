//! Checks and copies of repositories by a process that only reads them, whether a server uses them or not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RepoId};
use nostr::event::EventId;

use super::check_version;
use super::examination::{PackFault, fault_of, is_as_committed, visible_fault};
use super::pack_change::remove_unnamed_below;
use crate::database::{Database, Pack, RepoRow};
use crate::git::binary::Git;
use crate::git::blocking;
use crate::git::check::Objects;
use crate::git::error::GitError;
use crate::git::layout::{self, Layout, RepoDir, VERSION};
use crate::git::packs::{self, PackStorage};
use crate::purgatory::{PushTarget, Record};

/// Times that a repository is examined while its packs are replaced by a running server.
const MAX_EXAMINATIONS: usize = 4;

/// The files of all repositories at one endpoint, for checks and backups. Nothing of them is changed.
#[derive(Clone)]
pub struct RepoFiles {
    layout: Layout,
    endpoint: Endpoint,
    git: Git,
    database: Arc<dyn Database>,
}

/// The state of a repository on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examination {
    /// It is served.
    pub is_served: bool,
    /// The history of its refs lacks objects.
    pub is_broken: bool,
    /// Number of packs that the database names.
    pub packs: usize,
    /// Packs with faults, by name.
    pub faults: BTreeMap<String, PackFault>,
}

impl Examination {
    /// Returns whether nothing is missing or damaged.
    pub fn is_sound(&self) -> bool {
        !self.is_broken && self.faults.is_empty()
    }
}

/// The packs and uploads of one endpoint that a database names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFiles {
    /// Packs by repository.
    pub packs: BTreeMap<RepoId, BTreeSet<Pack>>,
    /// Uploads that wait for their event.
    pub uploads: BTreeSet<(RepoId, EventId, Oid)>,
}

impl NamedFiles {
    /// Reads the names from a database.
    pub async fn read(database: &dyn Database, endpoint: Endpoint) -> Result<Self, GitError> {
        let packs = database.packs(endpoint).await?;
        let uploads = database
            .records()
            .await?
            .into_iter()
            .filter_map(|record| match record {
                Record::Staged {
                    id, tip, target, ..
                } => upload(endpoint, id, tip, target),
                _ => None,
            });
        Ok(Self {
            packs,
            uploads: uploads.collect(),
        })
    }
}

fn upload(
    endpoint: Endpoint,
    id: EventId,
    tip: Oid,
    target: PushTarget,
) -> Option<(RepoId, EventId, Oid)> {
    match (endpoint, target) {
        (Endpoint::Repository, PushTarget::Repository(repo))
        | (Endpoint::PullRequests, PushTarget::Contributor(repo)) => Some((repo, id, tip)),
        _ => None,
    }
}

/// The names of packs that are not on disk as they were committed, by repository.
pub type LostPacks = BTreeMap<RepoId, BTreeSet<String>>;

impl RepoFiles {
    /// Selects the repositories below a directory, as a database names them.
    pub fn new(root: &Path, endpoint: Endpoint, git: Git, database: Arc<dyn Database>) -> Self {
        // Git runs in the directory of a repository, where a relative path means something else.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        Self {
            layout: Layout::new(&root),
            endpoint,
            git,
            database,
        }
    }

    /// Returns the endpoint that these repositories are served at.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Returns the identifiers of all repositories.
    pub async fn all(&self) -> Result<BTreeSet<RepoId>, GitError> {
        Ok(self.database.all(self.endpoint).await?)
    }

    /// Compares the packs of a repository with the database, reads each of them as a whole, and walks all histories.
    pub async fn examine(&self, repo: &RepoId) -> Result<Examination, GitError> {
        let mut row = self.row(repo).await?;
        for _ in 1..MAX_EXAMINATIONS {
            let examination = self.examine_row(repo, &row).await;
            if examination.as_ref().is_ok_and(Examination::is_sound) {
                return examination;
            }
            let current = self.row(repo).await?;
            if current.packs == row.packs && current.view == row.view {
                return examination;
            }
            row = current;
        }
        self.examine_row(repo, &row).await
    }

    async fn row(&self, repo: &RepoId) -> Result<RepoRow, GitError> {
        Ok(self.database.row(self.endpoint, repo.clone()).await?)
    }

    async fn examine_row(&self, repo: &RepoId, row: &RepoRow) -> Result<Examination, GitError> {
        let dir = self.layout.dir(repo);
        let mut found = Examination {
            is_served: row.view.is_some(),
            packs: row.packs.len(),
            ..Examination::default()
        };
        for pack in &row.packs {
            if let Some(fault) = fault_of(&self.objects(&dir), pack).await? {
                found.faults.insert(pack.name.clone(), fault);
            }
        }
        let is_there = dir.objects().is_dir() && dir.path().join("HEAD").exists();
        let tips: Vec<_> = row.tips().into_iter().collect();
        if !tips.is_empty() {
            found.is_broken = !is_there || !self.objects(&dir).is_whole(&tips).await?;
        }
        Ok(found)
    }

    fn objects(&self, dir: &RepoDir) -> Objects {
        let git = self.git.clone();
        let claimant = Claimant::server();
        Objects {
            git,
            dir: dir.clone(),
            incoming: None,
            in_use: None,
            claimant,
        }
    }

    /// Copies these packs and uploads below another directory, by hard links if it is on the same file system. What was
    /// copied by an earlier attempt stays, and what is not named is removed. Returns the packs that were not there; `None`
    /// if files were replaced meanwhile, so that the names must be read again.
    pub async fn copy_to(
        &self,
        root: &Path,
        named: NamedFiles,
    ) -> Result<Option<LostPacks>, GitError> {
        let from = self.layout.clone();
        let to = Layout::new(root);
        let root = root.to_owned();
        let copied = blocking(move || copy_all(&from, (&root, &to), &named)).await?;
        if copied.packs.is_empty() && copied.uploads.is_empty() {
            return Ok(Some(LostPacks::new()));
        }
        // A file that is not there was replaced, or it is lost.
        let current = NamedFiles::read(&*self.database, self.endpoint).await?;
        let is_lost = |(repo, pack): &(RepoId, Pack)| {
            current
                .packs
                .get(repo)
                .is_some_and(|packs| packs.contains(pack))
        };
        let are_lost = copied.packs.iter().all(is_lost);
        if !are_lost || !copied.uploads.is_subset(&current.uploads) {
            return Ok(None);
        }
        let mut lost = LostPacks::new();
        for (repo, pack) in copied.packs {
            lost.entry(repo).or_default().insert(pack.name);
        }
        Ok(Some(lost))
    }

    /// Stores these packs and uploads in a pack storage, for servers that share it. Returns the packs that are not on
    /// disk as they were committed.
    pub async fn store_in(
        &self,
        storage: &PackStorage,
        named: &NamedFiles,
    ) -> Result<LostPacks, GitError> {
        if !storage.is_ours().await? {
            storage.claim().await?;
        }
        let mut lost = LostPacks::new();
        for (repo, packs) in &named.packs {
            let dir = self.layout.dir(repo);
            for pack in packs {
                let file = dir.pack(&pack.name);
                if visible_fault(&file, pack).is_some() {
                    lost.entry(repo.clone())
                        .or_default()
                        .insert(pack.name.clone());
                    continue;
                }
                let key = |file: &Path| packs::pack_key(self.endpoint, &dir, file);
                storage.put_pack(&file, key).await?;
            }
        }
        let staging = self.layout.staging();
        let prefix = packs::staging_prefix(self.endpoint);
        for (repo, event, tip) in &named.uploads {
            let place = self.layout.dir(repo).staged_tip(event, tip);
            let above = place.strip_prefix(&staging).unwrap_or(&place);
            let above = above.display().to_string();
            for file in blocking(move || layout::list(&place.join("pack"))).await? {
                if file.extension().is_some_and(|kind| kind == "pack") {
                    let key = |file: &Path| format!("{prefix}{above}/{}", layout::name(file));
                    storage.put_pack(&file, key).await?;
                }
            }
        }
        Ok(lost)
    }

    /// Copies all files below another directory, none by a link: neither place changes with the other.
    pub async fn install(&self, root: &Path) -> Result<(), GitError> {
        let from = self.layout.version();
        let from = from.parent().unwrap_or(root).to_owned();
        let to = root.to_owned();
        blocking(move || {
            layout::copy_tree(&from, &to, |from, to| fs::copy(from, to).map(drop))?;
            layout::sync_tree(&to)
        })
        .await
    }
}

/// Named files that were not there to be copied.
#[derive(Debug, Default)]
struct NotCopied {
    packs: BTreeSet<(RepoId, Pack)>,
    uploads: BTreeSet<(RepoId, EventId, Oid)>,
}

fn copy_all(
    from: &Layout,
    (root, to): (&Path, &Layout),
    named: &NamedFiles,
) -> Result<NotCopied, GitError> {
    if from.version().exists() {
        check_version(from.version().parent().unwrap_or(root), from)?;
    }
    layout::create_dir(root)?;
    layout::write_synced(&to.version(), VERSION.as_bytes())?;
    for dir in [to.repositories(), to.staging()] {
        layout::create_dir(&dir)?;
    }
    let mut missing = NotCopied::default();
    for (repo, packs) in &named.packs {
        let source = from.dir(repo);
        let target = to.dir(repo);
        target.create(repo, &root.join("incoming"))?;
        for pack in packs {
            if !copy_pack(&source.pack(&pack.name), &target.pack(&pack.name), pack)? {
                missing.packs.insert((repo.clone(), pack.clone()));
            }
        }
    }
    for (repo, event, tip) in &named.uploads {
        let place = |layout: &Layout| layout.dir(repo).staged_tip(event, tip);
        if !copy_upload(&place(from), &place(to))? {
            missing.uploads.insert((repo.clone(), *event, *tip));
        }
    }
    remove_unnamed_below(to, &named.packs)?;
    layout::sync_tree(root)?;
    Ok(missing)
}

/// Copies a pack with its index, and returns whether it was there.
fn copy_pack(from: &Path, to: &Path, pack: &Pack) -> Result<bool, GitError> {
    if visible_fault(to, pack).is_none() {
        return Ok(true);
    }
    if !is_as_committed(from, pack) {
        return Ok(false);
    }
    layout::create_dir(to.parent().unwrap_or(to))?;
    for kind in ["rev", "idx"] {
        // Both can be made from the pack.
        copy_file(&from.with_extension(kind), &to.with_extension(kind))?;
    }
    Ok(copy_file(from, to)? && is_as_committed(to, pack))
}

/// Copies the files of an upload, and returns whether all of it was there.
fn copy_upload(from: &Path, to: &Path) -> Result<bool, GitError> {
    if to.is_dir() {
        return Ok(true);
    }
    let is_copied = from.is_dir() && is_found(layout::copy_tree(from, to, link_or_copy))?;
    // It may have been removed meanwhile.
    if !is_copied || !from.is_dir() {
        layout::remove(to)?;
        return Ok(false);
    }
    Ok(true)
}

/// Copies a file, and returns whether it was there.
fn copy_file(from: &Path, to: &Path) -> Result<bool, GitError> {
    is_found(link_or_copy(from, to).map_err(|source| GitError::io("copy", from, source)))
}

/// Gives a file a second name, or copies it where that cannot be.
fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    if to.exists() {
        fs::remove_file(to)?;
    }
    fs::hard_link(from, to).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Err(error),
        _ => fs::copy(from, to).map(drop),
    })
}

/// Returns whether what was copied was there.
fn is_found(copied: Result<(), GitError>) -> Result<bool, GitError> {
    match copied {
        Err(GitError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        copied => copied.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::quota::QuotaSubject;
    use nostr::key::PublicKey;
    use nostr::types::Timestamp;
    use parking_lot::Mutex;

    use super::*;
    use crate::database::{
        Addition, Commit, Committed, DatabaseError, DatabaseFuture, RetiredRef, View,
    };
    use crate::git::binary::Slots;

    /// A database that names packs.
    #[derive(Default)]
    struct Names(Mutex<BTreeMap<RepoId, BTreeSet<Pack>>>);

    impl Names {
        fn set(&self, packs: &BTreeMap<RepoId, BTreeSet<Pack>>) {
            self.0.lock().clone_from(packs);
        }
    }

    fn answer<T: Default + Send + 'static>() -> DatabaseFuture<'static, T> {
        Box::pin(async { Ok(T::default()) })
    }

    impl Database for Names {
        fn commit(&self, _: Commit) -> DatabaseFuture<'_, Committed> {
            Box::pin(async { Err(DatabaseError::Closed) })
        }

        fn view(&self, _: Endpoint, _: RepoId) -> DatabaseFuture<'_, Option<View>> {
            answer()
        }

        fn row(&self, _: Endpoint, repo: RepoId) -> DatabaseFuture<'_, RepoRow> {
            let packs = self.0.lock();
            let packs = packs.get(&repo).cloned().unwrap_or_default();
            Box::pin(async {
                Ok(RepoRow {
                    packs,
                    ..RepoRow::default()
                })
            })
        }

        fn retired(&self, _: Endpoint, _: RepoId) -> DatabaseFuture<'_, Vec<RetiredRef>> {
            answer()
        }

        fn packs(&self, _: Endpoint) -> DatabaseFuture<'_, BTreeMap<RepoId, BTreeSet<Pack>>> {
            let packs = self.0.lock().clone();
            Box::pin(async { Ok(packs) })
        }

        fn repositories(&self, _: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
            answer()
        }

        fn maintained(
            &self,
            _: Endpoint,
            _: RepoId,
            _: usize,
        ) -> DatabaseFuture<'_, Vec<PublicKey>> {
            answer()
        }

        fn all(&self, _: Endpoint) -> DatabaseFuture<'_, BTreeSet<RepoId>> {
            answer()
        }

        fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
            answer()
        }

        fn additions(&self, _: Timestamp) -> DatabaseFuture<'_, Vec<Addition>> {
            answer()
        }

        fn quotas(&self) -> DatabaseFuture<'_, BTreeMap<QuotaSubject, u64>> {
            answer()
        }

        fn git_usage(&self, _: Option<PublicKey>) -> DatabaseFuture<'_, BTreeMap<RepoId, u64>> {
            answer()
        }

        fn git_bytes(&self) -> DatabaseFuture<'_, u64> {
            answer()
        }
    }

    const CONTENT: &[u8] = b"pack";

    fn repo() -> RepoId {
        RepoId::new(PublicKey::from_byte_array([1; 32]), "x".parse().unwrap())
    }

    fn named(names: &[&str]) -> BTreeMap<RepoId, BTreeSet<Pack>> {
        let pack = |name: &&str| Pack {
            name: (*name).to_owned(),
            bytes: CONTENT.len() as u64,
        };
        BTreeMap::from([(repo(), names.iter().map(pack).collect())])
    }

    fn write_pack(root: &Path, name: &str) {
        let dir = Layout::new(root).dir(&repo()).objects().join("pack");
        fs::create_dir_all(&dir).unwrap();
        for kind in ["pack", "idx"] {
            fs::write(dir.join(format!("{name}.{kind}")), CONTENT).unwrap();
        }
    }

    fn packs_below(root: &Path) -> Vec<String> {
        let dir = Layout::new(root).dir(&repo()).objects().join("pack");
        layout::list(&dir)
            .unwrap()
            .iter()
            .map(|file| layout::name(file).to_owned())
            .collect()
    }

    #[tokio::test]
    async fn a_replaced_pack_makes_a_copy_outdated_and_a_lost_one_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        let database = Arc::new(Names::default());
        let git = Git::find(&std::env::var_os("PATH").unwrap(), Slots::default()).unwrap();
        let files = RepoFiles::new(
            &source,
            Endpoint::Repository,
            git,
            Arc::clone(&database) as _,
        );
        let copy = |packs: &[&str]| {
            files.copy_to(
                &target,
                NamedFiles {
                    packs: named(packs),
                    ..NamedFiles::default()
                },
            )
        };
        write_pack(&source, "pack-1");
        write_pack(&source, "pack-3");
        // The names were read before pack-2 was replaced by pack-3.
        database.set(&named(&["pack-1", "pack-3"]));
        assert_eq!(copy(&["pack-1", "pack-2"]).await.unwrap(), None);
        assert_eq!(copy(&["pack-3"]).await.unwrap(), Some(LostPacks::new()));
        assert_eq!(packs_below(&target), ["pack-3.idx", "pack-3.pack"]);
        // The database still names pack-2, which is not there.
        database.set(&named(&["pack-2", "pack-3"]));
        let lost = BTreeMap::from([(repo(), BTreeSet::from(["pack-2".to_owned()]))]);
        assert_eq!(copy(&["pack-2", "pack-3"]).await.unwrap(), Some(lost));
    }

    #[tokio::test]
    async fn an_examination_tells_lost_from_damaged_packs() {
        let dir = tempfile::tempdir().unwrap();
        let database = Arc::new(Names::default());
        database.set(&named(&["pack-1", "pack-2"]));
        let git = Git::find(&std::env::var_os("PATH").unwrap(), Slots::default()).unwrap();
        let files = RepoFiles::new(dir.path(), Endpoint::Repository, git, database as _);
        write_pack(dir.path(), "pack-1");
        let found = files.examine(&repo()).await.unwrap();
        let faults = [("pack-1", PackFault::Damaged), ("pack-2", PackFault::Lost)];
        let faults = faults.map(|(name, fault)| (name.to_owned(), fault));
        assert_eq!(found.faults, BTreeMap::from(faults));
        assert!(!found.is_sound());
    }
}
