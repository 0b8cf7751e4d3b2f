//! How many objects may come.

use super::*;

const MOST: u64 = 50;
const FEW: FetchLimits = FetchLimits { objects: MOST, ..DEFAULT };
const DEFAULT: FetchLimits = FetchLimits {
    bytes: 1 << 30,
    objects: 1_000_000,
    memory: 1 << 30,
    listing: Duration::from_secs(60),
    silence: Duration::from_secs(60),
    longest: Duration::from_secs(60),
};

/// A commit with so many files, each with a text of its own.
async fn commit_of(files: usize, work: &Workdir, text: &str) -> String {
    for number in 0..files {
        std::fs::write(work.path().join(number.to_string()), format!("{text} {number}")).unwrap();
    }
    work.git(&["add", "."]).await.expect_ok();
    work.commit(text).await
}

fn too_many() -> Fetched {
    Fetched::nothing(FetchError::TooManyObjects { limit: MOST })
}

#[tokio::test]
async fn a_pack_of_more_objects_than_may_come_does_not_come() {
    let (server, place) = (GitServer::start().await, Place::new(LOOPBACK, FEW).await);
    let work = Workdir::init().await;
    let few = commit_of(40, &work, "few").await;
    server.host("x", &work).await;
    assert_eq!(place.fetch(&server.url("x"), &[&few]).await.got, set(&[&few]));
    let many = commit_of(60, &work, "many").await;
    server.host("x", &work).await;
    assert_eq!(place.fetch(&server.url("x"), &[&many]).await, too_many());
    assert!(place.lacks(&many).await);
    // Nobody has to bring all of it at once.
    let place = Place::new(LOOPBACK, DEFAULT).await;
    assert_eq!(place.fetch(&server.url("x"), &[&many]).await.got, set(&[&many]));
}

#[tokio::test]
async fn who_only_says_that_there_are_so_many_is_stopped_before_the_pack_ends() {
    let (server, place) = (GitServer::start().await, Place::new(LOOPBACK, FEW).await);
    let (_work, _, second) = served(&server).await;
    server.set_behaviour(Behaviour::WrongObjectCount(u32::MAX));
    let start = Instant::now();
    assert_eq!(place.fetch(&server.url("x"), &[&second]).await, too_many());
    assert!(start.elapsed() < FEW.silence / 2, "it was not waited for: {:?}", start.elapsed());
    until(|| place.files() == 0).await;
}

#[tokio::test]
async fn who_says_that_there_are_fewer_than_come_brings_nothing() {
    let (server, place) = (GitServer::start().await, Place::new(LOOPBACK, FEW).await);
    let work = Workdir::init().await;
    let many = commit_of(200, &work, "many").await;
    server.host("x", &work).await;
    server.set_behaviour(Behaviour::WrongObjectCount(1));
    let fetched = place.fetch(&server.url("x"), &[&many]).await;
    assert!(matches!(fetched.error, Some(FetchError::Broken(_))), "{fetched:?}");
    assert!(fetched.got.is_empty());
    until(|| place.files() == 0).await;
}

#[tokio::test]
async fn what_came_is_counted_again_if_git_does_not_tell_how_many_come() {
    let server = GitServer::start().await;
    let work = Workdir::init().await;
    let many = commit_of(200, &work, "many").await;
    server.host("x", &work).await;
    let silent = silent_git();
    let git = Git::find(silent.path().as_os_str(), Slots::default()).unwrap();
    let place = Place::with_git(git, LOOPBACK, FEW).await;
    assert_eq!(place.fetch(&server.url("x"), &[&many]).await, too_many());
    until(|| place.files() == 0).await;
}

/// A git that tells nothing of its own doing.
fn silent_git() -> TempDir {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let git = std::env::split_paths(&path).map(|dir| dir.join("git")).find(|git| git.is_file());
    let script = format!("#!/bin/sh\nunset GIT_TRACE\nexec {} \"$@\"\n", git.unwrap().display());
    let program = dir.path().join("git");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    dir
}
