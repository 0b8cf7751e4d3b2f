//! The limit of objects in a fetch.

use super::*;

const MAX_OBJECTS: u64 = 50;
const WITH_OBJECT_LIMIT: FetchLimits = FetchLimits {
    objects: MAX_OBJECTS,
    ..DEFAULT
};
const DEFAULT: FetchLimits = FetchLimits {
    bytes: 1 << 30,
    objects: 1_000_000,
    memory: 1 << 30,
    listing: Duration::from_secs(60),
    silence: Duration::from_secs(60),
    longest: Duration::from_secs(60),
};

/// Commits this number of files, each with a different text.
async fn commit_of(files: usize, work: &Workdir, text: &str) -> String {
    for number in 0..files {
        std::fs::write(
            work.path().join(number.to_string()),
            format!("{text} {number}"),
        )
        .unwrap();
    }
    work.git(&["add", "."]).await.expect_ok();
    work.commit(text).await
}

/// Asserts that a fetch was refused for its objects. How many bytes had come by then depends on the speed of git.
fn assert_too_many(fetched: &Fetched) {
    let expected = FetchError::TooManyObjects { limit: MAX_OBJECTS };
    assert_eq!(
        (&fetched.got, fetched.error.as_ref()),
        (&set(&[]), Some(&expected))
    );
}

#[tokio::test]
async fn a_pack_with_too_many_objects_is_refused() {
    let (server, fixture) = (
        GitServer::start().await,
        FetchFixture::new(LOOPBACK, WITH_OBJECT_LIMIT).await,
    );
    let work = Workdir::init().await;
    let few = commit_of(40, &work, "few").await;
    server.host("x", &work).await;
    assert_eq!(
        fixture.fetch(&server.url("x"), &[&few]).await.got,
        set(&[&few])
    );
    let many = commit_of(60, &work, "many").await;
    server.host("x", &work).await;
    assert_too_many(&fixture.fetch(&server.url("x"), &[&many]).await);
    assert!(fixture.lacks(&many).await);
    // With the default limit the same fetch succeeds.
    let fixture = FetchFixture::new(LOOPBACK, DEFAULT).await;
    assert_eq!(
        fixture.fetch(&server.url("x"), &[&many]).await.got,
        set(&[&many])
    );
}

#[tokio::test]
async fn a_pack_header_with_too_many_objects_is_refused_before_the_pack_ends() {
    let (server, fixture) = (
        GitServer::start().await,
        FetchFixture::new(LOOPBACK, WITH_OBJECT_LIMIT).await,
    );
    let (_work, _, second) = host_two_commits(&server).await;
    server.set_behaviour(Behaviour::WrongObjectCount(u32::MAX));
    let start = Instant::now();
    assert_too_many(&fixture.fetch(&server.url("x"), &[&second]).await);
    assert!(
        start.elapsed() < WITH_OBJECT_LIMIT.silence / 2,
        "refused before the timeout: {:?}",
        start.elapsed()
    );
    until(|| fixture.files() == 0).await;
}

#[tokio::test]
async fn a_pack_header_with_too_few_objects_is_refused() {
    let (server, fixture) = (
        GitServer::start().await,
        FetchFixture::new(LOOPBACK, WITH_OBJECT_LIMIT).await,
    );
    let work = Workdir::init().await;
    let many = commit_of(200, &work, "many").await;
    server.host("x", &work).await;
    server.set_behaviour(Behaviour::WrongObjectCount(1));
    let fetched = fixture.fetch(&server.url("x"), &[&many]).await;
    assert!(
        matches!(fetched.error, Some(FetchError::Broken(_))),
        "{fetched:?}"
    );
    assert!(fetched.got.is_empty());
    until(|| fixture.files() == 0).await;
}

#[tokio::test]
async fn objects_are_counted_after_the_fetch_if_git_writes_no_trace() {
    let server = GitServer::start().await;
    let work = Workdir::init().await;
    let many = commit_of(200, &work, "many").await;
    server.host("x", &work).await;
    let quiet = git_without_trace();
    let git = Git::find(quiet.path().as_os_str(), Slots::default()).unwrap();
    let fixture = FetchFixture::with_git(git, LOOPBACK, WITH_OBJECT_LIMIT).await;
    assert_too_many(&fixture.fetch(&server.url("x"), &[&many]).await);
    until(|| fixture.files() == 0).await;
}

/// Returns a directory with a git that writes no trace.
fn git_without_trace() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let git = std::env::split_paths(&path)
        .map(|dir| dir.join("git"))
        .find(|git| git.is_file());
    let script = format!(
        "#!/bin/sh\nunset GIT_TRACE\nexec {} \"$@\"\n",
        git.unwrap().display()
    );
    let program = dir.path().join("git");
    grasp_tests::write_program(&program, &script);
    dir
}
