//! Concurrent operations on one repository.

use std::time::Duration;

use grasp_tests::wire::{ZERO_ID, push};
use grasp_tests::{
    AdjustableClock, Author, Fault, Instance, Leftovers, Settings, Workdir, read_response,
    request_head,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const MAIN: &str = "refs/heads/main";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_equal_concurrent_pushes_are_one_push() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    for round in 1..4 {
        let next = work.commit(&format!("round {round}")).await;
        let state = alice.later(round).state("x", &[(MAIN, &next)]);
        instance.ingest(vec![state.clone()]).await;
        let args = ["push", "--porcelain", &url, "main"];
        let (one, two) = tokio::join!(work.git(&args), work.git(&args));
        assert!(one.ok || two.ok, "{} {}", one.err, two.err);
        for push in [one, two].iter().filter(|push| !push.ok) {
            assert!(
                push.out.contains("[remote rejected]"),
                "{} {}",
                push.out,
                push.err
            );
        }
        assert!(instance.serves(&state).await);
        assert!(
            instance
                .refs(&alice.repo("x"))
                .await
                .contains(&format!("{next}\t{MAIN}"))
        );
        assert_eq!(instance.until_idle().await, Leftovers::default());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_two_different_concurrent_pushes_the_refs_match_the_served_state() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let base = work.git(&["rev-parse", "main"]).await.expect_ok();
    let (url, repo) = (instance.clone_url(&alice.repo("x")), alice.repo("x"));
    for round in 1..5 {
        let mut ends = Vec::new();
        for (which, seconds) in [("one", round * 10), ("two", round * 10 + 1)] {
            work.git(&["checkout", "-q", "--detach", &base])
                .await
                .expect_ok();
            let commit = work.commit(&format!("{which} {round}")).await;
            let state = alice.later(seconds).state("x", &[(MAIN, &commit)]);
            instance.ingest(vec![state.clone()]).await;
            ends.push((format!("+{commit}:{MAIN}"), commit, state));
        }
        let [first, second] = [0, 1].map(|which: usize| ["push", &url, &ends[which].0]);
        let (one, two) = tokio::join!(work.git(&first), work.git(&second));
        assert!(one.ok || two.ok, "{} {}", one.err, two.err);
        let refs = instance.refs(&repo).await;
        let mut served = Vec::new();
        for (_, commit, state) in &ends {
            if instance.serves(state).await {
                served.push(commit);
            }
        }
        assert_eq!(served.len(), 1, "an author has one state");
        assert!(
            refs.contains(&format!("{}\t{MAIN}", served[0])),
            "{refs}, served {served:?}"
        );
        if two.ok {
            assert_eq!(*served[0], ends[1].1, "the newer one was pushed");
        }
        assert_eq!(instance.until_idle().await, Leftovers::default());
    }
    let clone = Workdir::empty();
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
    clone.git(&["fsck", "--strict"]).await.expect_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_push_is_judged_on_the_refs_that_the_push_before_it_leaves() {
    let fault = Fault::default();
    let settings = Settings {
        store: Some(fault.store_wrapper()),
        ..Settings::one_process()
    };
    let instance = Instance::with_settings(settings).await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let base = work.git(&["rev-parse", "main"]).await.expect_ok();
    let url = instance.clone_url(&alice.repo("x"));
    let mut specs = Vec::new();
    for (which, later) in [("one", 1), ("two", 2)] {
        work.git(&["checkout", "-q", "--detach", &base])
            .await
            .expect_ok();
        let commit = work.commit(which).await;
        let state = alice.later(later).state("x", &[(MAIN, &commit)]);
        instance.ingest(vec![state]).await;
        specs.push(format!("+{commit}:{MAIN}"));
    }

    // The first has its turn, and the lock, while what it brought is committed.
    fault.hold_commits();
    let first = ["push", &url, &specs[0]];
    let second = ["push", &url, &specs[1]];
    let until_second_waits = async {
        fault.until_commit_is_held().await;
        let before = instance.leftovers().incoming;
        let pushing = work.git(&second);
        tokio::pin!(pushing);
        let is_received = async {
            for _ in 0..30 {
                instance
                    .leftovers_when(|left| left.incoming > before && left.processes.is_empty())
                    .await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            pushed = &mut pushing => panic!("it did not wait: {pushed:?}"),
            () = is_received => fault.let_commits_go(),
        }
        pushing.await
    };
    let (first, second) = tokio::join!(work.git(&first), until_second_waits);
    first.expect_ok();
    let why = second.expect_refused();
    assert!(why.contains("remote rejected"), "{why}");
    assert!(
        instance
            .refs(&alice.repo("x"))
            .await
            .contains(&specs[0][1..41])
    );
}

#[tokio::test]
async fn a_push_in_progress_is_not_affected_by_expiry() {
    let time = AdjustableClock::default();
    let instance = Instance::with_settings(time.settings()).await;
    let alice = Author::new();
    let work = Workdir::init().await;
    // Git starts after a quarter of a megabyte was received.
    let commit = work.commit_incompressible(1_000_000).await;
    let announcement = alice.announce("x", &instance.service());
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest(vec![announcement.clone(), state.clone()])
        .await;
    let request = push(&[(ZERO_ID, &commit, MAIN)], &work.pack(&["main"]).await);

    let address = instance.address().to_string();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let path = format!("{}/git-receive-pack", instance.path(&alice.repo("x")));
    let length = request.len().to_string();
    let head = request_head(&address, "POST", &path, &[("Content-Length", &length)]);
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
        .write_all(&request[..request.len() / 2])
        .await
        .unwrap();
    instance
        .leftovers_when(|leftovers| !leftovers.processes.is_empty())
        .await;

    // Far longer than the half hour for which events are held.
    time.advance(2 * 60 * 60);
    for _ in 0..3 {
        instance.settle("another").await;
    }
    assert_eq!(
        instance
            .get(&instance.path(&alice.repo("x")), &[])
            .await
            .status,
        200
    );

    stream
        .write_all(&request[request.len() / 2..])
        .await
        .unwrap();
    let answer = read_response(&mut stream).await;
    assert!(answer.body.contains(&format!("ok {MAIN}")), "{answer:?}");
    assert!(instance.serves(&announcement).await && instance.serves(&state).await);
    instance.purgatory().run_maintenance().await.unwrap();
    assert!(instance.refs(&alice.repo("x")).await.contains(&commit));
}

#[tokio::test]
async fn an_announcement_without_a_push_expires_and_returns_with_a_new_state() {
    let time = AdjustableClock::default();
    let instance = Instance::with_settings(time.settings()).await;
    let alice = Author::new();
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    instance
        .ingest(vec![alice.announce("x", &instance.service())])
        .await;
    let path = instance.path(&alice.repo("x"));
    assert_eq!(instance.get(&path, &[]).await.status, 200);
    time.advance(31 * 60);
    while instance.get(&path, &[]).await.status == 200 {
        instance.settle("another").await;
    }
    let state = alice.later(31 * 60).state("x", &[(MAIN, &commit)]);
    instance.ingest(vec![state.clone()]).await;
    work.git(&["push", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    assert!(instance.serves(&state).await);
    assert_eq!(instance.until_idle().await, Leftovers::default());
}
