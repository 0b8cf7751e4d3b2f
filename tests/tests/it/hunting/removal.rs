//! What the hunt brought goes when the event that it was for is withdrawn, without waiting for maintenance.

use grasp_core::RepoId;
use grasp_tests::{are_nodes_wanted, eventually_async, files};

use super::*;

/// Larger than everything else in a repository of these tests.
const LARGE: usize = 300_000;

/// Returns the bytes of all packs on disk; `None` with several nodes, whose disks are caches of the pack storage, which is
/// swept later.
fn bytes_on_disk(instance: &Instance) -> Option<u64> {
    if are_nodes_wanted() {
        return None;
    }
    let files = files(&instance.repositories());
    let packs = files
        .iter()
        .filter(|file| file.extension().is_some_and(|it| it == "pack"));
    let sizes = packs.filter_map(|pack| pack.metadata().ok());
    Some(sizes.map(|it| it.len()).sum())
}

async fn is_readable(instance: &Instance, repo: &RepoId, id: &str) -> bool {
    let url = instance.clone_url(repo);
    Workdir::init()
        .await
        .git(&["fetch", "-q", &url, id])
        .await
        .ok
}

/// Connections go to one node after the other.
async fn is_readable_anywhere(instance: &Instance, repo: &RepoId, id: &str) -> bool {
    let mut is_any = false;
    for _ in 0..3 {
        is_any |= is_readable(instance, repo, id).await;
    }
    is_any
}

/// Waits until a commit is neither readable by its id, at any node, nor on disk.
async fn until_gone(instance: &Instance, repo: &RepoId, id: &str) {
    let gone = async {
        while is_readable_anywhere(instance, repo, id).await {
            instance.settle("x").await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone)
        .await
        .expect("gone within a minute");
    let is_small = |bytes| bytes < LARGE as u64;
    eventually(|| bytes_on_disk(instance).is_none_or(is_small).then_some(())).await;
}

/// Holds a pull request by `bob` for a repository of `alice` until its commit was hunted, and returns both.
async fn hunted_pull_request(
    instance: &Instance,
    server: &GitServer,
    (alice, bob): (&Author, &Author),
) -> (Event, String) {
    let work = instance.host(alice, "x").await;
    let tip = work.commit_incompressible(LARGE).await;
    work.git(&["checkout", "-q", "--detach"]).await.expect_ok();
    server.host("fork", &work).await;
    let repo = alice.repo("x");
    let named = repo.to_string();
    let tags: [&[&str]; 3] = [
        &["a", &named],
        &["c", &tip],
        &["clone", &server.url("fork")],
    ];
    let proposal = bob.sign(1618, "please pull", &tags);
    instance.ingest_from_relay(vec![proposal.clone()]).await;
    instance.until_serves(&proposal).await;
    assert!(is_readable(instance, &repo, &tip).await);
    assert!(bytes_on_disk(instance).is_none_or(|bytes| bytes > LARGE as u64));
    (proposal, tip)
}

#[tokio::test]
async fn the_data_of_a_deleted_pull_request_is_removed() {
    let (instance, server) = (instance().await, GitServer::start().await);
    let (alice, bob) = (Author::new(), Author::new());
    let (proposal, tip) = hunted_pull_request(&instance, &server, (&alice, &bob)).await;
    let deletion = bob.later(1).sign(5, "", &[&["e", &proposal.id.to_hex()]]);
    instance.ingest_from_relay(vec![deletion]).await;
    until_gone(&instance, &alice.repo("x"), &tip).await;
}

#[tokio::test]
async fn the_data_of_a_pull_request_of_a_vanished_author_is_removed() {
    let (instance, server) = (instance().await, GitServer::start().await);
    let (alice, bob) = (Author::new(), Author::new());
    let (_, tip) = hunted_pull_request(&instance, &server, (&alice, &bob)).await;
    let vanish = bob.later(1).sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    instance.ingest_from_relay(vec![vanish]).await;
    until_gone(&instance, &alice.repo("x"), &tip).await;
}

/// Holds a state of which one commit was hunted and another is nowhere; returns it and the first.
async fn half_hunted_state(
    instance: &Instance,
    server: &GitServer,
    alice: &Author,
) -> (Event, String) {
    let work = Workdir::init().await;
    let first = work.commit("first").await;
    work.git(&["checkout", "-q", "--orphan", "dev"])
        .await
        .expect_ok();
    let large = work.commit_incompressible(LARGE).await;
    server.host("x", &work).await;
    let announcement = announce(alice, "x", instance, &[&server.url("x")]);
    let served = alice.state("x", &[(MAIN, &first)]);
    instance
        .ingest_from_relay(vec![announcement, served.clone()])
        .await;
    instance.until_serves(&served).await;
    let nowhere = "1".repeat(40);
    let refs = [
        (MAIN, first.as_str()),
        ("refs/heads/dev", &large),
        ("refs/heads/lost", &nowhere),
    ];
    let state = alice.later(1).state("x", &refs);
    instance.ingest_from_relay(vec![state.clone()]).await;
    let repo = alice.repo("x");
    eventually_async(async || is_readable(instance, &repo, &large).await.then_some(())).await;
    assert!(!instance.serves(&state).await);
    (state, large)
}

#[tokio::test]
async fn the_data_of_a_held_state_is_removed_when_its_author_deletes_it() {
    let (instance, server, alice) = (instance().await, GitServer::start().await, Author::new());
    let (state, tip) = half_hunted_state(&instance, &server, &alice).await;
    let deletion = alice.later(2).sign(5, "", &[&["e", &state.id.to_hex()]]);
    instance.ingest_from_relay(vec![deletion]).await;
    until_gone(&instance, &alice.repo("x"), &tip).await;
}
