//! Changes of repositories that the server reports to sync.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use grasp_core::kinds;
use grasp_core::nostr::types::Timestamp;
use grasp_purgatory::driver::RepoNews;
use grasp_relay::ingest::Outcome;
use grasp_relay::instance::OwnRelay;
use grasp_sync::local::{News, SyncedRelay};
use grasp_tests::{Author, Instance, Workdir, are_nodes_wanted};

#[tokio::test]
async fn a_held_and_a_removed_repository_are_reported() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let purgatory = instance.purgatory();
    let mut changes = purgatory.news();
    let announcement = alice.announce("x", &instance.service());
    instance.ingest(vec![announcement.clone()]).await;
    assert_eq!(
        changes.recv().await,
        Ok(RepoNews::Held(announcement.clone().into()))
    );
    let held = purgatory
        .ask(|purgatory| purgatory.held_announcements())
        .await
        .unwrap();
    assert_eq!(held, [announcement.into()]);

    let elsewhere = "elsewhere.example".parse().unwrap();
    instance
        .ingest(vec![alice.later(1).announce("x", &elsewhere)])
        .await;
    assert_eq!(changes.recv().await, Ok(RepoNews::Removed(alice.repo("x"))));
    let held = purgatory
        .ask(|purgatory| purgatory.held_announcements())
        .await
        .unwrap();
    assert!(held.is_empty());
}

#[tokio::test]
async fn a_delisted_repository_is_reported() {
    let instance = Instance::start().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let mut changes = instance.purgatory().news();

    let elsewhere = "elsewhere.example".parse().unwrap();
    instance
        .ingest(vec![alice.later(1).announce("x", &elsewhere)])
        .await;
    assert_eq!(changes.recv().await, Ok(RepoNews::Removed(alice.repo("x"))));
}

fn own_relay(instance: &Instance) -> OwnRelay {
    OwnRelay::new(
        instance.server().parts().clone(),
        instance.purgatory().clone(),
    )
}

#[tokio::test]
async fn sync_gets_every_change_of_a_repository() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let announced = alice.announce("x", &instance.service());
    instance.ingest(vec![announced.clone()]).await;
    let mut news = own_relay(&instance).accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    assert_eq!(
        news.next().await,
        Some(News::Held(announced.clone().into()))
    );
    assert_eq!(news.next().await, Some(News::CaughtUp));

    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let state = alice.state("x", &[("refs/heads/main", &commit)]);
    instance.ingest(vec![state.clone()]).await;
    work.git(&["push", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    let issue = alice.later(1).issue(&alice.repo("x"), "an issue");
    let comment = alice
        .later(2)
        .sign(1111, "why?", &[&["E", &issue.id.to_hex()]]);
    instance.ingest(vec![issue.clone(), comment.clone()]).await;
    for event in [&announced, &state, &issue, &comment] {
        assert_eq!(
            news.next().await,
            Some(News::Accepted(event.clone().into()))
        );
    }

    let delete = alice.later(3).sign(5, "", &[&["e", &issue.id.to_hex()]]);
    instance.ingest(vec![delete.clone()]).await;
    let mut deleted = [news.next().await, news.next().await];
    // On several nodes an event comes by the database, and what it removed does not wait for that.
    if are_nodes_wanted() {
        deleted.sort_by_key(|news| matches!(news, Some(News::Removed(_))));
    }
    let removed = News::Removed(issue.id);
    let accepted = News::Accepted(delete.into());
    assert_eq!(deleted, [Some(accepted), Some(removed)]);

    let elsewhere = "elsewhere.example".parse().unwrap();
    instance
        .ingest(vec![alice.later(4).announce("x", &elsewhere)])
        .await;
    assert_eq!(news.next().await, Some(News::Retired(alice.repo("x"))));
}

#[tokio::test]
async fn sync_gets_addressable_members_of_any_kind_after_a_restart() {
    let instance = Instance::start().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let repo = alice.repo("x").to_string();
    let article = alice
        .later(1)
        .sign(30_023, "an article", &[&["d", "intro"], &["a", &repo]]);
    let app = alice
        .later(1)
        .sign(32_267, "an app", &[&["d", "app"], &["a", &repo]]);
    let named = format!("30023:{}:intro", alice.key().to_hex());
    let page = alice
        .later(2)
        .sign(30_818, "about it", &[&["d", "page"], &["a", &named]]);
    let list = alice.later(2).sign(10_018, "", &[&["a", &repo]]);
    let members = [article, app, page, list];
    for member in &members {
        assert_eq!(
            instance.ingest(vec![member.clone()]).await,
            [Outcome::Stored]
        );
    }
    let mut news = own_relay(&instance).accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    let mut received = Vec::new();
    while received.last() != Some(&News::CaughtUp) {
        received.push(news.next().await.unwrap());
    }
    for member in members {
        let streamed = received
            .iter()
            .filter(|one| **one == News::Accepted(member.clone().into()));
        assert_eq!(streamed.count(), 1, "kind {}", member.kind);
    }
}

#[tokio::test]
async fn sync_gets_the_removal_of_expired_and_vanished_threads() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    instance
        .ingest(vec![alice.announce("x", &instance.service())])
        .await;
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    instance
        .ingest(vec![alice.state("x", &[("refs/heads/main", &commit)])])
        .await;
    work.git(&["push", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();

    let repo = alice.repo("x").to_string();
    let end = (Timestamp::now() + Duration::from_secs(4)).to_string();
    let brief = bob
        .later(1)
        .sign(1621, "brief", &[&["a", &repo], &["expiration", &end]]);
    let (issue, other) = (
        bob.issue(&alice.repo("x"), "mine"),
        alice.issue(&alice.repo("x"), "hers"),
    );
    instance
        .ingest(vec![brief.clone(), issue.clone(), other])
        .await;
    let mut news = own_relay(&instance).accepted(&kinds::SELF_SUBSCRIPTION_KINDS);
    while news.next().await != Some(News::CaughtUp) {}
    while instance.serves(&brief).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let vanish = bob.later(9).sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    instance.ingest(vec![vanish.clone()]).await;
    let mut received = Vec::new();
    let gone = [brief.id, issue.id].map(News::Removed);
    while !gone.iter().all(|news| received.contains(news)) {
        received.push(news.next().await.unwrap());
    }
    let removed = received
        .iter()
        .filter(|news| matches!(news, News::Removed(_)))
        .count();
    assert_eq!(removed, 2, "events of other authors stay: {received:?}");
}

#[tokio::test]
async fn when_a_state_expires_its_refs_go_back_to_the_state_before_at_once() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let before = work.git(&["rev-parse", "main"]).await.expect_ok();
    let commit = work.commit("for a few seconds").await;
    let end = (Timestamp::now() + Duration::from_secs(4)).to_string();
    let tags: &[&[&str]] = &[
        &["d", "x"],
        &["refs/heads/main", &commit],
        &["expiration", &end],
    ];
    let brief = alice.later(1).sign(30618, "", tags);
    instance.ingest(vec![brief.clone()]).await;
    work.git(&["push", &url, "main"]).await.expect_ok();
    assert!(instance.serves(&brief).await);
    while instance.serves(&brief).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let gone = Instant::now();
    while !instance
        .refs(&alice.repo("x"))
        .await
        .contains(before.trim())
    {
        assert!(gone.elapsed() < Duration::from_secs(5), "the refs follow");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
