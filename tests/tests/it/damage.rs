//! Packs that are missing on disk are detected and reported.

use std::path::{Path, PathBuf};
use std::time::Duration;

use grasp_tests::{Author, Instance, Workdir, files};
use serde_json::Value;
use tempfile::TempDir;

const MAIN: &str = "refs/heads/main";

/// Returns the packs and indexes of all repositories, sorted by name.
fn packs(instance: &Instance) -> Vec<PathBuf> {
    let in_pack_dir = |file: &PathBuf| file.parent().is_some_and(|dir| dir.ends_with("pack"));
    let mut files = files(&instance.repositories().join("repositories"));
    files.retain(in_pack_dir);
    files.sort();
    files
}

/// Files that were moved away, and can be restored.
struct MovedFiles {
    dir: TempDir,
    from: Vec<PathBuf>,
}

impl MovedFiles {
    fn move_away(files: Vec<PathBuf>) -> Self {
        assert!(!files.is_empty());
        let moved = Self {
            dir: tempfile::tempdir().unwrap(),
            from: files,
        };
        moved
            .from
            .iter()
            .for_each(|file| std::fs::rename(file, moved.target(file)).unwrap());
        moved
    }

    fn restore(self) {
        self.from
            .iter()
            .for_each(|file| std::fs::rename(self.target(file), file).unwrap());
    }

    fn target(&self, file: &Path) -> PathBuf {
        self.dir.path().join(file.file_name().unwrap())
    }
}

async fn health(instance: &Instance) -> String {
    let answer = instance.get("/health", &[]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

async fn damaged(instance: &Instance) -> Value {
    let status: Value =
        serde_json::from_str(&instance.get("/status.json", &[]).await.body).unwrap();
    status["damaged"].clone()
}

async fn damaged_metric(instance: &Instance) -> String {
    let metrics = instance.get("/metrics", &[]).await.body;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("grasp_repositories_damaged "));
    line.unwrap().to_owned()
}

#[tokio::test]
async fn a_missing_pack_is_reported_when_a_fetch_fails_and_after_a_restart() {
    let (instance, alice) = (Instance::single_process().await, Author::new());
    instance.host(&alice, "x").await;
    let of_x = packs(&instance);
    instance.host(&alice, "y").await;
    instance.purgatory().run_maintenance().await.unwrap();
    assert_eq!(health(&instance).await, "ok\n");
    assert_eq!(
        damaged_metric(&instance).await,
        "grasp_repositories_damaged 0"
    );

    let moved = MovedFiles::move_away(of_x);
    let url = instance.clone_url(&alice.repo("x"));
    _ = Workdir::empty().git(&["clone", "-q", &url, "."]).await;
    let path = instance.path(&alice.repo("x"));
    let reported = async { while health(&instance).await == "ok\n" {} };
    tokio::time::timeout(Duration::from_secs(60), reported)
        .await
        .expect("reported in time");
    let expected = format!("degraded: git objects are missing on disk: {path}\n");
    assert_eq!(health(&instance).await, expected);
    assert_eq!(damaged(&instance).await, serde_json::json!([path]));
    assert_eq!(
        damaged_metric(&instance).await,
        "grasp_repositories_damaged 1"
    );

    let instance = instance.restart().await;
    instance.purgatory().run_maintenance().await.unwrap();
    assert_eq!(
        health(&instance).await,
        expected,
        "without a fetch since the start"
    );
    moved.restore();
    instance.purgatory().run_maintenance().await.unwrap();
    assert_eq!(health(&instance).await, "ok\n");
}

#[tokio::test]
async fn a_missing_old_pack_is_reported_although_the_tips_are_in_a_newer_one() {
    let (instance, alice) = (Instance::single_process().await, Author::new());
    let work = instance.host(&alice, "x").await;
    let first = packs(&instance);
    let tip = work.commit("second").await;
    instance
        .ingest(vec![alice.later(1).state("x", &[(MAIN, &tip)])])
        .await;
    work.git(&["push", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    assert!(packs(&instance).len() > first.len());
    MovedFiles::move_away(first);
    instance.purgatory().run_maintenance().await.unwrap();
    assert!(health(&instance).await.starts_with("degraded: "));
}
