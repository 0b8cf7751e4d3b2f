//! Archived repositories, which do not list this service (GRASP-05).

use grasp_core::outbound::OutboundPolicy;
use grasp_tests::{Author, GitServer, Instance, Workdir};

use crate::hunting::{MAIN, hosted_at};

#[tokio::test]
async fn an_archived_repository_is_served_and_read_only() {
    let archive = Instance::with(|settings| {
        settings.outbound = OutboundPolicy::everywhere();
        settings.policy.archive.everything = true;
    })
    .await;
    let (server, alice, bob) = (GitServer::start().await, Author::new(), Author::new());
    let (work, first) = hosted_at(&server, "x").await;
    let (clone, repo) = (server.url("x"), alice.repo("x"));
    let tags: [&[&str]; 3] = [
        &["d", "x"],
        &["clone", &clone],
        &["relays", "wss://elsewhere.net"],
    ];
    let announcement = alice.sign(30617, "", &tags);
    let state = alice.state("x", &[(MAIN, &first)]);
    archive
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    archive.until_serves(&state).await;

    // Git data of an archived repository comes from its own servers only, also if its maintainer signed it.
    let second = work.commit("second").await;
    let next = alice.later(1).state("x", &[(MAIN, &second)]);
    archive.ingest(vec![next.clone()]).await;
    let request = bob.pull_request(&repo, &second);
    archive.ingest(vec![request.clone()]).await;
    let (url, tip) = (
        archive.clone_url(&repo),
        format!("main:refs/nostr/{}", request.id),
    );
    for what in ["main", &tip] {
        let error = work.git(&["push", &url, what]).await.expect_refused();
        assert!(error.contains("this is a read-only copy"), "{error}");
    }
    assert!(!archive.serves(&next).await && !archive.serves(&request).await);
    server.host("x", &work).await;
    let newest = alice.later(2).state("x", &[(MAIN, &second)]);
    archive.ingest_from_relay(vec![newest.clone()]).await;
    archive.until_serves(&newest).await;

    let document = archive
        .get("/", &[("Accept", "application/nostr+json")])
        .await
        .body;
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let curation = document["curation"].as_str().unwrap_or_default();
    assert!(curation.contains("read-only"), "{document}");
}

#[tokio::test]
async fn an_owner_who_lists_an_archive_may_push_to_it() {
    let archive = Instance::with(|settings| settings.policy.archive.everything = true).await;
    let alice = Author::new();
    archive.host(&alice, "x").await;
    assert!(archive.refs(&alice.repo("x")).await.contains(MAIN));
}

#[tokio::test]
async fn an_archive_may_keep_what_authors_delete() {
    let archive = Instance::with(|settings| {
        settings.policy.archive.everything = true;
        settings.policy.archive.ignores_deletions = true;
    })
    .await;
    let alice = Author::new();
    let work = archive.host(&alice, "x").await;
    let repo = alice.repo("x");
    let before = archive.refs(&repo).await;
    assert!(before.contains(MAIN), "{before}");
    let coordinate = repo.to_string();
    let deletion = alice.later(5).sign(5, "", &[&["a", &coordinate]]);
    archive.ingest(vec![deletion.clone()]).await;
    let vanish = alice.later(5).sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    archive.ingest(vec![vanish.clone()]).await;
    assert!(archive.serves(&deletion).await && archive.serves(&vanish).await);
    // Nothing is removed by maintenance or a restart, either.
    let archive = archive.restart().await;
    assert_eq!(archive.refs(&repo).await, before);
    let clone = Workdir::empty();
    let url = archive.clone_url(&repo);
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
    assert_eq!(
        clone.git(&["rev-parse", "HEAD"]).await.expect_ok(),
        work.git(&["rev-parse", "HEAD"]).await.expect_ok()
    );
    let accept = [("Accept", "application/nostr+json")];
    let document = archive.get("/", &accept).await.body;
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let nips = document["supported_nips"].as_array().unwrap();
    assert!(
        !nips.contains(&9.into()) && !nips.contains(&62.into()),
        "{nips:?}"
    );
    assert!(nips.contains(&11.into()));
}
