//! Several servers whose packs are in one pack storage.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_core::{Mono, Oid, RepoId};
use grasp_purgatory::git::{
    Keep, NamedFiles, PackCache, PackStorage, PackStorageOptions, Protocol, RepoFiles, RepoStore,
    StagingLimits,
};
use nostr::event::EventId;
use tempfile::TempDir;

use crate::git_fixture::{Fixture, Work, files_below, git, installed_git, noise, open, pack_bytes};
use crate::memory_database::MemoryDatabase;
use crate::s3_server::S3Server;

/// A size of the cache that no test reaches.
pub(crate) const CACHE_BYTES: u64 = 1 << 40;

/// A database and the pack storage that it uses, shared by several servers.
pub(crate) struct Site {
    pub(crate) database: Arc<MemoryDatabase>,
    pub(crate) storage: Storage,
}

pub(crate) enum Storage {
    S3(S3Server),
    Directory(TempDir),
}

impl Storage {
    /// Opens the storage with a timeout of requests.
    pub(crate) fn open(&self, timeout: Duration) -> PackStorage {
        let (url, variables) = match self {
            Self::S3(server) => (server.url(), server.variables()),
            Self::Directory(dir) => (format!("file://{}", dir.path().display()), [].into()),
        };
        PackStorage::open(&url, &PackStorageOptions { variables, timeout }).unwrap()
    }

    /// The directory that all objects are in.
    pub(crate) fn objects(&self) -> PathBuf {
        match self {
            Self::S3(server) => server.objects(),
            Self::Directory(dir) => dir.path().to_owned(),
        }
    }
}

impl Site {
    pub(crate) async fn on_s3() -> Self {
        let storage = Storage::S3(S3Server::start().await);
        Self {
            database: Arc::default(),
            storage,
        }
    }

    fn in_directory() -> Self {
        let storage = Storage::Directory(tempfile::tempdir().unwrap());
        Self {
            database: Arc::default(),
            storage,
        }
    }

    pub(crate) fn server(&self) -> &S3Server {
        match &self.storage {
            Storage::S3(server) => server,
            Storage::Directory(_) => panic!("no server"),
        }
    }

    /// Starts a server that only reads, with a cache of this many bytes.
    pub(crate) async fn reader_with(&self, cache: u64) -> Fixture {
        let packs = PackCache::new(self.storage.open(Duration::from_secs(20)), cache);
        self.node(packs).await
    }

    pub(crate) async fn reader(&self) -> Fixture {
        self.reader_with(CACHE_BYTES).await
    }

    /// Starts a server that has become the writer.
    pub(crate) async fn writer(&self) -> Fixture {
        let fixture = self.reader().await;
        fixture.store.became_writer().await.unwrap();
        fixture
    }

    pub(crate) async fn node(&self, packs: PackCache) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let (endpoint, limits) = (Endpoint::Repository, StagingLimits::default());
        let (root, database) = (dir.path().join("git"), self.database.clone());
        let store = RepoStore::open(
            &root,
            endpoint,
            installed_git(),
            limits,
            database,
            Some(packs),
        );
        Fixture {
            store: store.await.unwrap(),
            dir,
            database: self.database.clone(),
        }
    }

    /// Returns the stored files of packs with this extension.
    pub(crate) fn stored(&self, kind: &str) -> Vec<PathBuf> {
        let mut files = files_below(&self.storage.objects().join("packs"));
        files.retain(|file| file.extension().is_some_and(|it| it == kind));
        files
    }

    fn staged(&self) -> Vec<PathBuf> {
        files_below(&self.storage.objects().join("staging"))
    }
}

/// A repository with one commit.
pub(crate) async fn repository(writer: &Fixture, name: &str) -> (RepoId, Work, Oid) {
    let (repo, work) = (writer.repo(name).await, Work::new());
    let tip = work.commit(name);
    writer
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    (repo, work, tip)
}

/// Returns whether a server sends this object with its history.
pub(crate) async fn serves(fixture: &Fixture, repo: &RepoId, tip: Oid) -> bool {
    let answer = fixture.fetch_v2(repo, &[tip]).await;
    answer.windows(8).any(|window| window == b"packfile")
}

fn event(n: u8) -> (EventId, String) {
    let id = EventId::from_byte_array([n; 32]);
    (id, format!("refs/nostr/{id}"))
}

fn cached_packs(fixture: &Fixture) -> u64 {
    pack_bytes(&fixture.root().join("repositories"))
}

/// Waits until work in the background has made a condition true.
async fn eventually(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .expect("in time");
}

#[tokio::test]
async fn a_reader_serves_what_was_pushed_to_the_writer() {
    for site in [Site::on_s3().await, Site::in_directory()] {
        let (writer, reader) = (site.writer().await, site.reader().await);
        let (repo, work, first) = repository(&writer, "x").await;
        assert!(serves(&reader, &repo, first).await);
        let second = work.commit("second");
        writer
            .push(&repo, &work, &[("refs/heads/main", Some(second))])
            .await
            .unwrap();
        assert!(serves(&reader, &repo, second).await);
        let view = reader.view(&repo).await;
        git(&view, &["fsck", "--full", "--strict"], b"").unwrap();
        assert_eq!(
            git(&view, &["rev-parse", "main"], b"").unwrap(),
            second.to_string()
        );
        // Each push has stored only its new objects.
        assert_eq!(
            (site.stored("pack").len(), site.stored("idx").len()),
            (2, 2)
        );
    }
}

#[tokio::test]
async fn directories_of_a_pack_storage_can_be_read_by_their_owner_only() {
    let site = Site::in_directory();
    let writer = site.writer().await;
    let (repo, work, _) = repository(&writer, "x").await;
    let staged = work.commit("contribution");
    writer
        .push(&repo, &work, &[(&event(1).1, Some(staged))])
        .await
        .unwrap();
    let mut checked = 0;
    for file in site.stored("pack").into_iter().chain(site.staged()) {
        let above = file
            .ancestors()
            .skip(1)
            .take_while(|dir| *dir != site.storage.objects());
        for dir in above {
            let mode = std::fs::metadata(dir).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", dir.display());
            checked += 1;
        }
    }
    assert!(checked > 6, "{checked}");
}

#[tokio::test]
async fn packs_that_were_replaced_leave_the_disk_of_readers() {
    let site = Site::on_s3().await;
    let (writer, reader) = (site.writer().await, site.reader().await);
    let (repo, work, _) = repository(&writer, "x").await;
    let mut tip = Oid::ZERO;
    for n in 0..40 {
        tip = work.commit(&n.to_string());
        writer
            .push(&repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
    }
    assert!(serves(&reader, &repo, tip).await);
    let before = cached_packs(&reader);
    assert!(
        writer
            .store
            .lock(&repo)
            .await
            .unwrap()
            .compact()
            .await
            .unwrap()
    );
    assert!(serves(&reader, &repo, tip).await);
    assert!(serves(&reader, &repo, tip).await);
    let row = writer.store.row(&repo).await.unwrap();
    let named: u64 = row.packs.iter().map(|pack| pack.bytes).sum();
    assert!(named < before);
    assert_eq!(cached_packs(&reader), named);
    // Clients that began before may still read the old ones from the pack storage.
    assert!(site.stored("pack").len() > 40);
}

#[tokio::test]
async fn sixteen_readers_cause_one_download_of_each_pack() {
    let site = Site::on_s3().await;
    let (writer, reader) = (site.writer().await, site.reader().await);
    let (repo, work, first) = repository(&writer, "x").await;
    let second = work.commit("second");
    writer
        .push(&repo, &work, &[("refs/heads/main", Some(second))])
        .await
        .unwrap();
    let reader = Arc::new(reader);
    let readers: Vec<_> = (0..16)
        .map(|_| {
            let (reader, repo) = (reader.clone(), repo.clone());
            tokio::spawn(async move {
                assert!(
                    serves(&reader, &repo, first).await && serves(&reader, &repo, second).await
                );
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(site.server().count("GET", ".pack"), 2);
    let figures = reader.store.pack_figures().unwrap();
    assert_eq!(figures.hits + figures.misses, 32);
    assert!(figures.misses >= 1 && figures.hits >= 16, "{figures:?}");
}

#[tokio::test]
async fn the_cache_is_bounded_and_keeps_what_is_in_use() {
    let site = Site::on_s3().await;
    let writer = site.writer().await;
    let mut repos = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let (repo, work, _) = repository(&writer, name).await;
        work.write("noise", &noise(50_000));
        let tip = work.commit("large");
        writer
            .push(&repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
        repos.push((repo, tip));
    }
    let bound = 500_000;
    let reader = site.reader_with(bound).await;
    let first = repos[0].0.to_string();
    let is_first_cached = || {
        let files = files_below(&reader.root().join("repositories")).into_iter();
        let mut names = files.filter(|file| file.ends_with("repository"));
        names.any(|file| std::fs::read_to_string(file).is_ok_and(|name| name == first))
    };
    // A client that reads slowly.
    let slow = reader
        .store
        .upload_pack(&repos[0].0, Protocol::V2, Claimant::default());
    let slow = slow.await.unwrap();
    for (repo, tip) in repos.iter().cycle().skip(1).take(9) {
        assert!(serves(&reader, repo, *tip).await);
        let figures = || reader.store.pack_figures().unwrap();
        eventually(|| figures().cached_bytes <= bound).await;
        assert!(is_first_cached(), "it is in use");
    }
    assert!(
        reader.store.pack_figures().unwrap().misses >= 6,
        "repositories were evicted and downloaded again"
    );
    drop(slow);
    for (repo, tip) in repos.iter().skip(1) {
        assert!(serves(&reader, repo, *tip).await);
    }
    eventually(|| !is_first_cached()).await;
    eventually(|| cached_packs(&reader) <= bound).await;
}

#[tokio::test]
async fn a_writer_works_with_a_cache_of_size_zero() {
    let site = Site::on_s3().await;
    let writer = site.reader_with(0).await;
    writer.store.became_writer().await.unwrap();
    let (repo, work, first) = repository(&writer, "x").await;
    let mut tip = first;
    for n in 0..3 {
        eventually(|| cached_packs(&writer) == 0).await;
        tip = work.commit(&n.to_string());
        writer
            .push(&repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
        assert!(serves(&writer, &repo, tip).await);
    }
    let bytes = writer.store.repository(&repo).bytes().await.unwrap();
    let stored: u64 = site
        .stored("pack")
        .iter()
        .map(|it| it.metadata().unwrap().len())
        .sum();
    assert_eq!(
        bytes, stored,
        "the size is that of the named packs, wherever they are"
    );
    let tips = BTreeSet::from([tip, first]);
    assert!(
        writer
            .store
            .repository(&repo)
            .lacking(&tips)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_new_writer_stores_only_what_is_new() {
    let site = Site::on_s3().await;
    let old = site.writer().await;
    let (repo, work, _) = repository(&old, "x").await;
    work.write("noise", &noise(100_000));
    let large = work.commit("large");
    old.push(&repo, &work, &[("refs/heads/main", Some(large))])
        .await
        .unwrap();
    let new = site.writer().await;
    let small = work.commit("small");
    new.push(&repo, &work, &[("refs/heads/main", Some(small))])
        .await
        .unwrap();
    let sizes: Vec<u64> = site
        .stored("pack")
        .iter()
        .map(|it| it.metadata().unwrap().len())
        .collect();
    assert_eq!(
        sizes.iter().filter(|size| **size > 100_000).count(),
        1,
        "{sizes:?}"
    );
}

#[tokio::test]
async fn packs_larger_than_one_request_are_stored_and_served() {
    for site in [Site::on_s3().await, Site::in_directory()] {
        let (writer, reader) = (site.writer().await, site.reader().await);
        let (repo, work, _) = repository(&writer, "x").await;
        work.write("noise", &noise(5_000_000));
        let tip = work.commit("large");
        writer
            .push(&repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
        assert!(serves(&reader, &repo, tip).await);
        git(&reader.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    }
}

#[tokio::test]
async fn staged_uploads_are_available_to_the_next_writer() {
    for site in [Site::on_s3().await, Site::in_directory()] {
        let old = site.writer().await;
        let (repo, work, base) = repository(&old, "x").await;
        let (tip, dropped) = (work.commit("contribution"), work.commit("unrecorded"));
        let ((id, reference), (_, unrecorded)) = (event(1), event(2));
        old.push(&repo, &work, &[(&reference, Some(tip))])
            .await
            .unwrap();
        old.push(&repo, &work, &[(&unrecorded, Some(dropped))])
            .await
            .unwrap();
        let bytes = old
            .store
            .repository(&repo)
            .staged_bytes(id, tip)
            .await
            .unwrap();

        let new = site.writer().await;
        let kept = BTreeSet::from([(id, tip)]);
        assert_eq!(new.store.forget_staged_but(kept).await.unwrap(), 1);
        assert_eq!(
            new.store
                .repository(&repo)
                .staged_bytes(id, tip)
                .await
                .unwrap(),
            bytes
        );
        assert_eq!(
            pack_bytes(&new.root().join("staging")),
            0,
            "nothing was downloaded yet"
        );
        assert!(!serves(&new, &repo, tip).await, "its event has not come");
        let mut guard = new.store.lock(&repo).await.unwrap();
        assert_eq!(guard.staged(id).await.unwrap(), BTreeSet::from([tip]));
        assert!(guard.promote_staged(id, tip).await.unwrap());
        assert!(guard.staged(id).await.unwrap().is_empty());
        drop(guard);
        assert!(serves(&new, &repo, tip).await && serves(&new, &repo, base).await);
        assert_eq!(site.staged(), [] as [PathBuf; 0]);

        // The old writer becomes the writer again, and reads staging anew.
        old.store.became_writer().await.unwrap();
        let guard = old.store.lock(&repo).await.unwrap();
        assert!(guard.staged(id).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_collection_keeps_commits_that_uploads_of_an_earlier_writer_need() {
    let site = Site::on_s3().await;
    let old = site.writer().await;
    let (repo, work, base) = repository(&old, "x").await;
    let needed = work.commit("needed");
    old.push(&repo, &work, &[("refs/heads/main", Some(needed))])
        .await
        .unwrap();
    let tip = work.commit("contribution");
    let (id, reference) = event(1);
    old.push(&repo, &work, &[(&reference, Some(tip))])
        .await
        .unwrap();
    let new = site.writer().await;
    new.push(&repo, &work, &[("refs/heads/main", Some(base))])
        .await
        .unwrap();
    new.store.became_writer().await.unwrap();
    let now = crate::git_fixture::now();
    assert!(
        new.store
            .repository(&repo)
            .collect(&Keep::purging(now))
            .await
            .unwrap()
    );
    let mut guard = new.store.lock(&repo).await.unwrap();
    assert!(guard.promote_staged(id, tip).await.unwrap());
    assert!(
        guard
            .check(&BTreeSet::from([tip]))
            .await
            .unwrap()
            .is_complete()
    );
}

#[tokio::test]
async fn a_process_that_becomes_the_writer_again_forgets_its_proofs_and_packs() {
    let site = Site::on_s3().await;
    let one = site.writer().await;
    let (repo, work, base) = repository(&one, "x").await;
    let removed = work.commit("removed");
    one.push(&repo, &work, &[("refs/heads/main", Some(removed))])
        .await
        .unwrap();
    let (mut changed, now) = (site.writer().await, crate::git_fixture::now());
    changed
        .push(&repo, &work, &[("refs/heads/main", Some(base))])
        .await
        .unwrap();
    let mut guard = changed.store.lock(&repo).await.unwrap();
    guard.forget_retired().await.unwrap();
    drop(guard);
    assert!(
        changed
            .store
            .repository(&repo)
            .collect(&Keep::at(now, BTreeSet::new()))
            .await
            .unwrap()
    );
    changed = one;
    changed.store.became_writer().await.unwrap();
    let tips = BTreeSet::from([base, removed]);
    let changed = changed.store.repository(&repo);
    let lacking = changed.lacking(&tips).await.unwrap();
    assert_eq!(lacking, BTreeSet::from([removed]));
}

#[tokio::test]
async fn a_sweep_deletes_packs_that_no_commit_has_named_for_a_day() {
    for site in [Site::on_s3().await, Site::in_directory()] {
        let (writer, day) = (site.writer().await, Duration::from_secs(24 * 60 * 60));
        let (repo, work, tip) = repository(&writer, "x").await;
        let (gone, _, _) = repository(&writer, "gone").await;
        let (_, reference) = event(1);
        let staged = work.commit("staged");
        writer
            .push(&repo, &work, &[(&reference, Some(staged))])
            .await
            .unwrap();
        let start = Mono::from_secs(1_000);
        assert_eq!(writer.store.sweep(start).await.unwrap(), 0);
        let mut guard = writer.store.lock(&gone).await.unwrap();
        guard.destroy().await.unwrap();
        drop(guard);
        assert_eq!(site.stored("pack").len(), 2);
        assert_eq!(
            writer.store.sweep(start + day).await.unwrap(),
            0,
            "it was named until now"
        );
        assert_eq!(writer.store.sweep(start + day + day / 2).await.unwrap(), 0);
        assert_eq!(site.stored("pack").len(), 2);
        assert!(writer.store.sweep(start + day * 2).await.unwrap() >= 2);
        assert_eq!(site.stored("pack").len(), 1);
        assert_eq!(
            site.staged()
                .iter()
                .filter(|it| it.extension().unwrap() == "pack")
                .count(),
            1
        );
        assert!(serves(&site.reader().await, &repo, tip).await);
    }
}

#[tokio::test]
async fn an_object_that_is_stored_again_is_not_swept() {
    let site = Site::on_s3().await;
    let (writer, day) = (site.writer().await, Duration::from_secs(24 * 60 * 60));
    let (repo, work, tip) = repository(&writer, "x").await;
    let mut guard = writer.store.lock(&repo).await.unwrap();
    guard.destroy().await.unwrap();
    drop(guard);
    let start = Mono::from_secs(1_000);
    assert_eq!(writer.store.sweep(start).await.unwrap(), 0);
    writer.create(&repo).await;
    writer
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    assert_eq!(
        site.stored("pack").len(),
        1,
        "the same pack has the same name"
    );
    assert_eq!(writer.store.sweep(start + day * 2).await.unwrap(), 0);
    assert!(serves(&site.reader().await, &repo, tip).await);
}

#[tokio::test]
async fn a_cache_that_was_removed_while_running_is_filled_again() {
    let site = Site::on_s3().await;
    let (writer, reader) = (site.writer().await, site.reader().await);
    let (repo, work, tip) = repository(&writer, "x").await;
    for fixture in [&writer, &reader] {
        assert!(serves(fixture, &repo, tip).await);
        for dir in ["repositories", "views"] {
            std::fs::remove_dir_all(fixture.root().join(dir)).unwrap();
        }
        assert!(serves(fixture, &repo, tip).await);
    }
    let next = work.commit("next");
    writer
        .push(&repo, &work, &[("refs/heads/main", Some(next))])
        .await
        .unwrap();
    assert!(serves(&reader, &repo, next).await);
}

#[tokio::test]
async fn packs_and_uploads_of_one_machine_are_moved_to_a_pack_storage() {
    let site = Site::on_s3().await;
    let dir = tempfile::tempdir().unwrap();
    let (root, database) = (dir.path().join("git"), &site.database);
    let limits = StagingLimits::default();
    let store = open(&root, installed_git(), limits, database)
        .await
        .unwrap();
    let single = Fixture {
        dir,
        database: database.clone(),
        store,
    };
    let (repo, work, tip) = repository(&single, "x").await;
    let (id, reference) = event(1);
    let upload = work.commit("contribution");
    single
        .push(&repo, &work, &[(&reference, Some(upload))])
        .await
        .unwrap();
    let endpoint = Endpoint::Repository;
    let mut named = NamedFiles::read(&**database, endpoint).await.unwrap();
    named.uploads.insert((repo.clone(), id, upload));
    let files = RepoFiles::new(&root, endpoint, installed_git(), database.clone());
    let storage = site.storage.open(Duration::from_secs(20));
    assert!(files.store_in(&storage, &named).await.unwrap().is_empty());
    let writer = site.writer().await;
    assert!(serves(&writer, &repo, tip).await);
    let mut guard = writer.store.lock(&repo).await.unwrap();
    assert!(guard.promote_staged(id, upload).await.unwrap());
    drop(guard);
    assert!(serves(&site.reader().await, &repo, upload).await);
}
