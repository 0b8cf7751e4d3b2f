//! Copies of repositories that did not ask for one (GRASP-05).

use grasp_core::outbound::OutboundPolicy;
use grasp_tests::{Author, GitServer, Instance};

use crate::hunting::{MAIN, hosted_at};

#[tokio::test]
async fn a_copy_is_served_and_nobody_pushes_to_it() {
    let copies = Instance::with(|settings| {
        settings.outbound = OutboundPolicy { allow_private: true };
        settings.policy.archive.everything = true;
    })
    .await;
    let (server, alice, bob) = (GitServer::start().await, Author::new(), Author::new());
    let (work, first) = hosted_at(&server, "x").await;
    let (place, repo) = (server.url("x"), alice.repo("x"));
    let tags: [&[&str]; 3] = [&["d", "x"], &["clone", &place], &["relays", "wss://elsewhere.net"]];
    let announcement = alice.sign(30617, "", &tags);
    let state = alice.state("x", &[(MAIN, &first)]);
    copies.ingest_from_relay(vec![announcement, state.clone()]).await;
    copies.until_serves(&state).await;

    // Even what its maintainer has signed comes from where the repository is, and from nowhere else.
    let second = work.commit("second").await;
    let next = alice.later(1).state("x", &[(MAIN, &second)]);
    copies.ingest(vec![next.clone()]).await;
    let request = bob.pull_request(&repo, &second);
    copies.ingest(vec![request.clone()]).await;
    let (url, tip) = (copies.clone_url(&repo), format!("main:refs/nostr/{}", request.id));
    for what in ["main", &tip] {
        let said = work.git(&["push", &url, what]).await.expect_refused();
        assert!(said.contains("this is a read-only copy"), "{said}");
    }
    assert!(!copies.serves(&next).await && !copies.serves(&request).await);
    server.host("x", &work).await;
    let now = alice.later(2).state("x", &[(MAIN, &second)]);
    copies.ingest_from_relay(vec![now.clone()]).await;
    copies.until_serves(&now).await;

    let card = copies.get("/", &[("Accept", "application/nostr+json")]).await.body;
    let card: serde_json::Value = serde_json::from_str(&card).unwrap();
    let curation = card["curation"].as_str().unwrap_or_default();
    assert!(curation.contains("read-only"), "{card}");
}

#[tokio::test]
async fn who_lists_an_archive_may_push_to_it() {
    let copies = Instance::with(|settings| settings.policy.archive.everything = true).await;
    let alice = Author::new();
    copies.host(&alice, "x").await;
    assert!(copies.refs(&alice.repo("x")).await.contains(MAIN));
}
