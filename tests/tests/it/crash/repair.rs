//! `kill -9` during a repair: at each change on disk and around each commit. What could be read before can be read after
//! it, and the repair goes on after a restart until everything is here again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use grasp_core::RepoId;
use grasp_tests::{Author, Instance, Leftovers, Workdir, eventually, files};

use super::MAIN;
use super::victim::{Death, Victim};

/// A server whose packs are damaged, and another one that has everything.
struct Scene {
    victim: Victim,
    _other: Instance,
    work: Workdir,
    repo: RepoId,
    objects: Vec<String>,
    /// The data directory of the victim as it is before a repair.
    damaged: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let (mut victim, alice, work) = (Victim::new(), Author::new(), Workdir::init().await);
        let other = Instance::start().await;
        let announcement = alice.announce_on("x", &[victim.service(), other.service()]);
        assert!(victim.start(Death::Never) && victim.send(&announcement).unwrap());
        other.ingest(vec![announcement]).await;
        let repo = alice.repo("x");
        for n in 0..3 {
            let tip = work.commit(&format!("commit {n}")).await;
            let state = alice.later(n).state("x", &[(MAIN, &tip)]);
            assert!(victim.send(&state).unwrap());
            other.ingest(vec![state]).await;
            for url in [victim.clone_url(&repo), other.clone_url(&repo)] {
                work.git(&["push", "-q", &url, "main"]).await.expect_ok();
            }
        }
        victim.kill();
        damage(&victim.repositories());
        let damaged = tempfile::tempdir().unwrap();
        copy(victim.dir(), damaged.path());
        let listed = work.git(&["rev-list", "--objects", "--no-object-names", "main"]).await;
        let objects = listed.expect_ok().lines().map(str::to_owned).collect();
        Self { victim, _other: other, work, repo, objects, damaged }
    }

    /// Puts the data directory back to what it was before any repair.
    fn damage_again(&self) {
        let dir = self.victim.dir();
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

    /// Returns the objects that git can read in the family.
    async fn readable(&self) -> BTreeSet<&str> {
        let family = family(&self.victim.repositories());
        let mut readable = BTreeSet::new();
        for oid in &self.objects {
            let family = format!("--git-dir={}", family.display());
            if self.work.git(&[&family, "cat-file", "-p", oid]).await.ok {
                readable.insert(oid.as_str());
            }
        }
        readable
    }

    /// Checks that the server serves everything, and has nothing left over.
    async fn check_whole(&mut self, at: Death) {
        let clone = Workdir::empty();
        let url = self.victim.clone_url(&self.repo);
        clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
        clone.git(&["fsck", "--full", "--strict"]).await.expect_ok();
        let tip = self.work.git(&["rev-parse", "main"]).await.expect_ok();
        assert_eq!(clone.git(&["rev-parse", "HEAD"]).await.expect_ok(), tip, "after {at:?}");
        self.victim.run_maintenance();
        let root = self.victim.repositories();
        let litter = eventually(|| {
            Some(Leftovers::below(&root)).filter(|litter| litter.processes.is_empty())
        });
        assert_eq!(litter.await, Leftovers::default(), "after {at:?}");
    }
}

/// Removes the first pack, and changes a byte in the middle of another.
fn damage(repositories: &Path) {
    let mut packs = files(&repositories.join("families"));
    packs.retain(|file| file.extension().is_some_and(|kind| kind == "pack"));
    packs.sort_by_key(|pack| std::fs::metadata(pack).unwrap().len());
    let [first, .., last] = packs.as_slice() else { panic!("{packs:?}") };
    std::fs::remove_file(first).unwrap();
    let mut bytes = std::fs::read(last).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    // The file itself may not be written; one in its place may.
    std::fs::remove_file(last).unwrap();
    std::fs::write(last, bytes).unwrap();
}

/// Returns the directory of the only family.
fn family(repositories: &Path) -> PathBuf {
    let found = files(&repositories.join("families"));
    let name = found.iter().find(|file| file.ends_with("identifier")).unwrap();
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

// The other server answers while this thread waits for the victim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_that_is_killed_at_any_change_on_disk_loses_nothing_and_goes_on() {
    let mut scene = Scene::new().await;
    let before: BTreeSet<String> = scene.readable().await.into_iter().map(str::to_owned).collect();
    assert!(!before.is_empty() && before.len() < scene.objects.len(), "some are lost, some not");
    assert!(scene.victim.start(Death::Never));
    let changes = scene.victim.repair("x").unwrap().unwrap();
    assert!(changes >= 20, "{changes}");
    scene.check_whole(Death::Never).await;
    scene.victim.kill();
    for point in 1..=changes {
        let at = Death::AtChange(point);
        scene.damage_again();
        assert!(scene.victim.start(at));
        // The number of changes is not always the same, so that the last points may not be reached.
        let survived = scene.victim.repair("x").is_some();
        scene.victim.kill();
        let readable = scene.readable().await;
        let lost: Vec<_> = before.iter().filter(|oid| !readable.contains(oid.as_str())).collect();
        assert!(lost.is_empty(), "{lost:?} lost {at:?}, survived: {survived}");
        assert!(scene.victim.start(Death::Never), "it starts after dying {at:?}");
        let repaired = scene.victim.repair("x");
        assert!(matches!(repaired, Some(Ok(_))), "after {at:?}: {repaired:?}");
        scene.check_whole(at).await;
        scene.victim.kill();
    }
}
