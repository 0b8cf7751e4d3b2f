//! `kill -9` during a repair: at each change on disk and around each commit. Objects that were readable before it are
//! readable after it, and the repair continues after a restart until it is complete.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use grasp_core::RepoId;
use grasp_tests::{Author, Instance, Leftovers, Workdir, eventually, files};

use super::MAIN;
use super::crashing_server::{CrashPoint, CrashingServer};

/// A server whose packs are damaged, and another one that has everything.
struct Fixture {
    server: CrashingServer,
    _other: Instance,
    work: Workdir,
    repo: RepoId,
    objects: Vec<String>,
    /// The data directory of the server before a repair.
    damaged: tempfile::TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let (mut server, alice, work) =
            (CrashingServer::new(), Author::new(), Workdir::init().await);
        let other = Instance::start().await;
        let announcement = alice.announce_on("x", &[server.service(), other.service()]);
        assert!(server.start(CrashPoint::Never) && server.publish(&announcement).unwrap());
        other.ingest(vec![announcement]).await;
        let repo = alice.repo("x");
        for n in 0..3 {
            let tip = work.commit(&format!("commit {n}")).await;
            let state = alice.later(n).state("x", &[(MAIN, &tip)]);
            assert!(server.publish(&state).unwrap());
            other.ingest(vec![state]).await;
            for url in [server.clone_url(&repo), other.clone_url(&repo)] {
                work.git(&["push", "-q", &url, "main"]).await.expect_ok();
            }
        }
        server.kill();
        damage(&server.repositories());
        let damaged = tempfile::tempdir().unwrap();
        copy(server.dir(), damaged.path());
        let listed = work
            .git(&["rev-list", "--objects", "--no-object-names", "main"])
            .await;
        let objects = listed.expect_ok().lines().map(str::to_owned).collect();
        Self {
            server,
            _other: other,
            work,
            repo,
            objects,
            damaged,
        }
    }

    /// Restores the data directory to its state before any repair.
    fn damage_again(&self) {
        let dir = self.server.dir();
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(path)
            } else {
                std::fs::remove_file(path)
            };
            removed.unwrap();
        }
        copy(self.damaged.path(), dir);
    }

    /// Returns the objects that git can read in the repository.
    async fn readable(&self) -> BTreeSet<&str> {
        let repository = repository(&self.server.repositories());
        let mut readable = BTreeSet::new();
        for oid in &self.objects {
            let repository = format!("--git-dir={}", repository.display());
            if self
                .work
                .git(&[&repository, "cat-file", "-p", oid])
                .await
                .ok
            {
                readable.insert(oid.as_str());
            }
        }
        readable
    }

    /// Checks that the server serves everything, and left nothing behind.
    async fn assert_complete(&mut self, at: CrashPoint) {
        let clone = Workdir::empty();
        let url = self.server.clone_url(&self.repo);
        clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
        clone.git(&["fsck", "--full", "--strict"]).await.expect_ok();
        let tip = self.work.git(&["rev-parse", "main"]).await.expect_ok();
        assert_eq!(
            clone.git(&["rev-parse", "HEAD"]).await.expect_ok(),
            tip,
            "after {at:?}"
        );
        self.server.run_maintenance();
        let root = self.server.repositories();
        let leftovers = eventually(|| {
            Some(Leftovers::below(&root)).filter(|leftovers| leftovers.processes.is_empty())
        });
        assert_eq!(leftovers.await, Leftovers::default(), "after {at:?}");
    }
}

/// Removes the first pack, and changes a byte in the middle of another.
fn damage(repositories: &Path) {
    let mut packs = files(&repositories.join("repositories"));
    packs.retain(|file| file.extension().is_some_and(|kind| kind == "pack"));
    packs.sort_by_key(|pack| std::fs::metadata(pack).unwrap().len());
    let [first, .., last] = packs.as_slice() else {
        panic!("{packs:?}")
    };
    std::fs::remove_file(first).unwrap();
    let mut bytes = std::fs::read(last).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    // Packs are read-only files, so the file is replaced.
    std::fs::remove_file(last).unwrap();
    std::fs::write(last, bytes).unwrap();
}

/// Returns the directory of the only repository.
fn repository(repositories: &Path) -> PathBuf {
    let found = files(&repositories.join("repositories"));
    let name = found
        .iter()
        .find(|file| file.ends_with("repository"))
        .unwrap();
    name.parent().unwrap().to_owned()
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&path, &target);
        } else if path.is_file() {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

// The other server responds while this thread waits for the crashing one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_that_is_killed_at_any_change_on_disk_loses_nothing_and_continues() {
    let mut fixture = Fixture::new().await;
    let before: BTreeSet<String> = fixture
        .readable()
        .await
        .into_iter()
        .map(str::to_owned)
        .collect();
    assert!(
        !before.is_empty() && before.len() < fixture.objects.len(),
        "some objects are lost"
    );
    assert!(fixture.server.start(CrashPoint::Never));
    let changes = fixture.server.repair("x").unwrap().unwrap();
    assert!(changes >= 20, "{changes}");
    fixture.assert_complete(CrashPoint::Never).await;
    fixture.server.kill();
    for point in 1..=changes {
        let at = CrashPoint::AtChange(point);
        fixture.damage_again();
        assert!(fixture.server.start(at));
        // The number of changes varies, so that the last points may not be reached.
        let is_completed = fixture.server.repair("x").is_some();
        fixture.server.kill();
        let readable = fixture.readable().await;
        let lost: Vec<_> = before
            .iter()
            .filter(|oid| !readable.contains(oid.as_str()))
            .collect();
        assert!(
            lost.is_empty(),
            "{lost:?} lost {at:?}, completed: {is_completed}"
        );
        assert!(
            fixture.server.start(CrashPoint::Never),
            "the server starts after a crash {at:?}"
        );
        let repaired = fixture.server.repair("x");
        assert!(
            matches!(repaired, Some(Ok(_))),
            "after {at:?}: {repaired:?}"
        );
        fixture.assert_complete(at).await;
        fixture.server.kill();
    }
}
