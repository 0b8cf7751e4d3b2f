//! Kinds of pushes, with the real git.

use std::path::Path;
use std::time::Duration;

use grasp_relay::git_http::GitLimits;
use grasp_tests::wire::push;
use grasp_tests::{Author, Instance, Settings, Workdir, are_nodes_wanted, request_head};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MAIN: &str = "refs/heads/main";

#[tokio::test]
async fn an_atomic_push_succeeds_or_fails_as_a_whole() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let before = instance.refs(&alice.repo("x")).await;
    let next = work.commit("next").await;
    let state = alice.later(1).state("x", &[(MAIN, &next)]);
    instance.ingest(vec![state.clone()]).await;
    let request = bob.pull_request(&alice.repo("x"), &"d".repeat(40));
    instance.ingest(vec![request.clone()]).await;
    let wrong = format!("main:refs/nostr/{}", request.id);

    let error = work
        .git(&["push", "--atomic", &url, "main", &wrong])
        .await
        .expect_refused();
    assert!(error.contains("its event names commit"), "{error}");
    assert!(
        error.contains("main -> main (atomic push failed"),
        "{error}"
    );
    assert!(!instance.serves(&state).await);
    assert_eq!(instance.refs(&alice.repo("x")).await, before);

    let error = work
        .git(&["push", &url, "main", &wrong])
        .await
        .expect_refused();
    assert!(
        error.contains("main -> main\n"),
        "without --atomic the other ref moves: {error}"
    );
    assert!(instance.serves(&state).await);
}

#[tokio::test]
async fn a_push_without_effect_needs_no_state() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let path = instance.path(&alice.repo("x"));
    assert!(path.ends_with("/x.git"));
    // A client that saw older refs: git itself would not send this.
    let request = push(
        &[("1".repeat(40).as_str(), &tip, MAIN)],
        &work.pack(&["main"]).await,
    );
    let answer = instance
        .post(&alice.repo("x"), "git-receive-pack", &[], &request)
        .await;
    assert!(answer.body.contains(&format!("ok {MAIN}")), "{answer:?}");
    let gone = push(&[(&tip, "0".repeat(40).as_str(), "refs/heads/never")], b"");
    let answer = instance
        .post(&alice.repo("x"), "git-receive-pack", &[], &gone)
        .await;
    assert!(answer.body.contains("ok refs/heads/never"), "{answer:?}");
}

#[tokio::test]
async fn the_branch_of_head_can_be_deleted_and_a_branch_can_become_a_directory() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let below = "refs/heads/main/below";
    let next = work.commit("next").await;
    let tags: [&[&str]; 2] = [&["d", "x"], &[below, &next]];
    let state = alice.later(1).sign(30618, "", &tags);
    instance.ingest(vec![state.clone()]).await;
    let there = format!("{next}:{below}");
    work.git(&["push", &url, ":refs/heads/main", &there])
        .await
        .expect_ok();
    assert!(instance.serves(&state).await);
    let refs = instance.refs(&alice.repo("x")).await;
    assert!(
        refs.contains(&format!("{next}\t{below}")) && !refs.contains(&tip),
        "{refs}"
    );

    let state = alice.later(2).sign(30618, "", &[&["d", "x"]]);
    instance.ingest(vec![state.clone()]).await;
    assert!(
        instance.serves(&state).await,
        "a state without refs needs no objects"
    );
    assert_eq!(instance.refs(&alice.repo("x")).await, "");
}

#[tokio::test]
async fn every_protocol_version_works() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    for version in 0..3 {
        let protocol = format!("protocol.version={version}");
        let next = work.commit(&protocol).await;
        let state = alice.later(version + 1).state("x", &[(MAIN, &next)]);
        instance.ingest(vec![state.clone()]).await;
        work.git(&["-c", &protocol, "push", &url, "main"])
            .await
            .expect_ok();
        assert!(instance.serves(&state).await);
        let clone = Workdir::empty();
        clone
            .git(&["-c", &protocol, "clone", "-q", &url, "."])
            .await
            .expect_ok();
        assert_eq!(clone.git(&["rev-parse", "HEAD"]).await.expect_ok(), next);
        clone
            .git(&["-c", &protocol, "fetch", "-q", &url, &next])
            .await
            .expect_ok();
    }
}

#[tokio::test]
async fn a_push_from_a_shallow_clone_needs_only_what_the_server_lacks() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let second = work.commit("second").await;
    instance
        .ingest(vec![alice.later(1).state("x", &[(MAIN, &second)])])
        .await;
    work.git(&["push", "-q", &url, "main"]).await.expect_ok();

    let shallow = Workdir::empty();
    shallow
        .git(&["clone", "-q", "--depth=1", &url, "."])
        .await
        .expect_ok();
    let third = shallow.commit("third").await;
    assert_eq!(
        shallow
            .git(&["rev-list", "--count", "HEAD"])
            .await
            .expect_ok(),
        "2"
    );
    let state = alice.later(2).state("x", &[(MAIN, &third)]);
    instance.ingest(vec![state.clone()]).await;
    shallow.git(&["push", "-q", &url, "main"]).await.expect_ok();
    assert!(instance.serves(&state).await);
    let clone = Workdir::empty();
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
    assert_eq!(
        clone
            .git(&["rev-list", "--count", "HEAD"])
            .await
            .expect_ok(),
        "3"
    );
}

#[tokio::test]
async fn a_push_from_a_shallow_clone_without_its_history_is_refused_with_a_remedy() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    work.commit("only here").await;
    work.commit("the boundary").await;
    let shallow = Workdir::empty();
    let from = format!("file://{}", work.path().display());
    shallow
        .git(&["clone", "-q", "--depth=1", &from, "."])
        .await
        .expect_ok();
    let tip = shallow.commit("the tip").await;
    let before = instance.refs(&alice.repo("x")).await;
    let state = alice.later(1).state("x", &[(MAIN, &tip)]);
    instance.ingest(vec![state.clone()]).await;
    let url = instance.clone_url(&alice.repo("x"));
    let error = shallow
        .git(&["push", "-q", "-f", &url, "main"])
        .await
        .expect_refused();
    assert!(
        error.contains("the server lacks history that your shallow clone lacks too"),
        "{error}"
    );
    assert!(error.contains("git fetch --unshallow"), "{error}");
    assert_eq!(instance.refs(&alice.repo("x")).await, before);
    assert!(!instance.serves(&state).await);
}

#[tokio::test]
async fn a_pull_request_is_pushed_only_to_repositories_that_it_is_addressed_to() {
    let instance = Instance::start().await;
    let (alice, eve) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    instance.host(&eve, "x").await;
    let tip = work.commit("proposed").await;
    let request = Author::new().pull_request(&eve.repo("x"), &tip);
    instance.ingest(vec![request.clone()]).await;
    let push = async |to: &Author| {
        let name = format!("{tip}:refs/nostr/{}", request.id);
        work.git(&["push", "-q", &instance.clone_url(&to.repo("x")), &name])
            .await
    };
    let error = push(&alice).await.expect_refused();
    assert!(
        error.contains("its event is not a pull request for this URL"),
        "{error}"
    );
    push(&eve).await.expect_ok();
    assert!(instance.serves(&request).await);
    assert!(!instance.refs(&alice.repo("x")).await.contains("refs/nostr"));
}

#[tokio::test]
async fn of_several_uploads_for_an_event_the_signed_one_is_served() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let right = work.commit("right").await;
    let request = bob.pull_request(&alice.repo("x"), &right);
    let name = format!("refs/nostr/{}", request.id);
    let mut tips = vec![right.clone()];
    for text in ["eve", "mallory"] {
        tips.push(work.commit(text).await);
    }
    for tip in tips.iter().rev() {
        work.git(&["push", "--force", &url, &format!("{tip}:{name}")])
            .await
            .expect_ok();
    }
    assert_eq!(instance.leftovers().staged, 3);
    assert!(!instance.refs(&alice.repo("x")).await.contains("refs/nostr"));
    // A staged upload cannot be fetched.
    let clone = Workdir::empty();
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
    clone
        .git(&["fetch", "-q", &url, &right])
        .await
        .expect_refused();
    instance.ingest(vec![request.clone()]).await;
    assert!(instance.serves(&request).await);
    let refs = instance.refs(&alice.repo("x")).await;
    assert!(refs.contains(&format!("{right}\t{name}")), "{refs}");
    clone.git(&["fetch", "-q", &url, &right]).await.expect_ok();
    clone
        .git(&["fetch", "-q", &url, &tips[2]])
        .await
        .expect_refused();
    assert_eq!(
        instance
            .leftovers_when(|leftovers| leftovers.staged == 0)
            .await
            .staged,
        0
    );
    let error = work
        .git(&["push", &url, &format!(":{name}")])
        .await
        .expect_refused();
    assert!(error.contains("[remote rejected]"), "{error}");
}

#[tokio::test]
async fn progress_is_reported_to_a_client_that_is_still_sending() {
    let git = GitLimits {
        sign_of_life: Duration::from_millis(50),
        ..GitLimits::default()
    };
    let instance = Instance::with_settings(Settings {
        git,
        ..Settings::default()
    })
    .await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let next = work.commit("next").await;
    instance
        .ingest(vec![alice.later(1).state("x", &[(MAIN, &next)])])
        .await;
    let request = push(&[(&tip, &next, MAIN)], &work.pack(&["main"]).await);
    let address = instance.address().to_string();
    let path = format!("{}/git-receive-pack", instance.path(&alice.repo("x")));
    let length = request.len().to_string();
    let head = request_head(&address, "POST", &path, &[("Content-Length", &length)]);
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
        .write_all(&request[..request.len() - 5])
        .await
        .unwrap();
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains("still working") {
        assert!(
            stream.read_buf(&mut received).await.unwrap() > 0,
            "the response has not ended"
        );
    }
    stream
        .write_all(&request[request.len() - 5..])
        .await
        .unwrap();
    stream.read_to_end(&mut received).await.unwrap();
    let received = String::from_utf8_lossy(&received).into_owned();
    assert!(received.contains(&format!("ok {MAIN}")), "{received}");
}

/// Returns the number of transactions in the log of a database, each of which SQLite has synced once, and the log's
/// salts, which change when the log restarts.
fn logged_commits(dir: &Path) -> (usize, [u8; 8]) {
    let log = std::fs::read(dir.join("grasp.db-wal")).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let (page, salts) = (number(8) as usize, &log[16..24]);
    let frames = (32..)
        .step_by(24 + page)
        .take_while(|at| at + 24 + page <= log.len());
    // Frames of an older log have other salts. The last frame of a transaction has the size of the database.
    let is_commit = |at: &usize| log[at + 8..at + 16] == *salts && number(at + 4) != 0;
    (frames.filter(is_commit).count(), salts.try_into().unwrap())
}

#[tokio::test]
async fn a_push_commits_its_pack_and_then_refs_and_events_together() {
    if are_nodes_wanted() {
        return; // their database has no such log
    }
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let next = work.commit("next").await;
    let state = alice.later(1).state("x", &[(MAIN, &next)]);
    instance.ingest(vec![state.clone()]).await;
    let (before, salts) = logged_commits(instance.dir());
    work.git(&["push", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    let (after, same) = logged_commits(instance.dir());
    assert!(instance.serves(&state).await);
    assert_eq!(salts, same);
    assert_eq!(after - before, 2);
}
