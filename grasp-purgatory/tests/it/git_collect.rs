//! Objects that no view shows any more leave the object store, and later the disk.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::{Oid, RepoId};
use grasp_purgatory::database::Garbage;
use grasp_purgatory::git::{GitError, RETIRED_REFS_RETENTION, RefTarget};
use nostr::event::EventId;
use nostr::types::Timestamp;

use crate::git_fixture::{Fixture, Work, files_below, git, noise, now, pack_bytes};

const MAIN: &str = "refs/heads/main";

async fn collect(fixture: &Fixture, repo: &RepoId, now: Timestamp) -> bool {
    fixture.store.collect(&repo.identifier, &BTreeSet::new(), now).await.unwrap()
}

async fn is_readable(fixture: &Fixture, repo: &RepoId, oid: Oid) -> bool {
    let answer = fixture.fetch_v2(repo, &[oid]).await;
    answer.windows(8).any(|some| some == b"packfile")
}

/// A commit without a parent.
fn unrelated(work: &Work, content: &str) -> Oid {
    work.git(&["checkout", "-q", "--orphan", content]);
    work.commit(content)
}

#[tokio::test]
async fn commits_removed_by_a_force_push_are_unreadable_and_kept_for_the_retention_time() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    fixture.push(&repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let stays = unrelated(&work, "stays");
    fixture.push(&repo, &work, &[(MAIN, Some(stays))]).await.unwrap();
    assert!(is_readable(&fixture, &repo, removed).await, "until it is collected");

    assert!(collect(&fixture, &repo, now()).await);
    assert!(
        !is_readable(&fixture, &repo, removed).await && is_readable(&fixture, &repo, stays).await
    );
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    let bytes = pack_bytes(&fixture.root());
    assert!(bytes > 100_000, "an operator still finds it: {bytes}");
    let retired = fixture.store.retired_refs(&repo.identifier).await.unwrap();
    let tips: Vec<_> = retired.iter().map(|retired| (retired.tip, retired.owner)).collect();
    assert_eq!(tips, [(removed, repo.owner)]);
    assert!(!collect(&fixture, &repo, now()).await, "a second collection changes nothing");

    let later = Timestamp::from_secs(now().as_secs() + RETIRED_REFS_RETENTION.as_secs() + 1);
    assert!(collect(&fixture, &repo, later).await);
    assert!(pack_bytes(&fixture.root()) < 10_000);
    assert!(fixture.store.retired_refs(&repo.identifier).await.unwrap().is_empty());
    assert!(is_readable(&fixture, &repo, stays).await);
    // It can be pushed again.
    fixture.push(&repo, &work, &[("refs/heads/again", Some(removed))]).await.unwrap();
    assert!(is_readable(&fixture, &repo, removed).await);
}

/// Sets the branch of a view to a tip, as a release does.
async fn apply(fixture: &Fixture, repo: &RepoId, tip: Oid) -> Result<(), GitError> {
    let refs = BTreeMap::from([(MAIN.parse().unwrap(), tip)]);
    let mut guard = fixture.store.lock(&repo.identifier).await?;
    let target = RefTarget { refs, ..RefTarget::default() };
    fixture.apply(&mut guard, &repo.owner, &target).await
}

/// Brings back a retired tip, and returns whether it was there.
async fn restore(fixture: &Fixture, repo: &RepoId, tip: Oid) -> bool {
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    guard.restore([tip].into()).await.unwrap()
}

#[tokio::test]
async fn a_collected_history_can_be_brought_back_until_its_owner_vanishes() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    work.commit("old");
    let removed = work.commit("removed");
    fixture.push(&alice, &work, &[(MAIN, Some(removed))]).await.unwrap();
    let stays = unrelated(&work, "stays");
    for repo in [&alice, &bob] {
        fixture.push(repo, &work, &[(MAIN, Some(stays))]).await.unwrap();
    }
    assert!(collect(&fixture, &alice, now()).await);
    for repo in [&alice, &bob] {
        let error = apply(&fixture, repo, removed).await.unwrap_err();
        assert!(matches!(error, GitError::Incomplete { count: 1 }), "{error}");
    }
    assert!(!is_readable(&fixture, &bob, removed).await);

    assert!(restore(&fixture, &alice, removed).await);
    apply(&fixture, &alice, removed).await.unwrap();
    assert!(is_readable(&fixture, &alice, removed).await);
    git(&fixture.view(&alice).await, &["fsck", "--full"], b"").unwrap();
    assert!(collect(&fixture, &alice, now()).await, "the retired copy goes");
    assert!(is_readable(&fixture, &alice, removed).await);

    // The same after the view was out of service, unless its owner has vanished.
    for is_destroyed in [false, true] {
        let mut guard = fixture.store.lock(&alice.identifier).await.unwrap();
        match is_destroyed {
            true => guard.destroy_view(&alice.owner).await.unwrap(),
            false => guard.retire_view(&alice.owner, now()).await.unwrap(),
        }
        drop(guard);
        assert!(collect(&fixture, &alice, now()).await);
        fixture.create(&alice).await;
        assert_eq!(restore(&fixture, &alice, removed).await, !is_destroyed);
        assert_eq!(apply(&fixture, &alice, removed).await.is_err(), is_destroyed);
        assert_eq!(is_readable(&fixture, &bob, removed).await, !is_destroyed);
    }
}

#[tokio::test]
async fn ordinary_pushes_are_not_repacked() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    for n in 0..3 {
        let tip = work.commit(&n.to_string());
        fixture.push(&repo, &work, &[(MAIN, Some(tip))]).await.unwrap();
    }
    let before = files_below(&fixture.root().join("families"));
    let row = fixture.store.family_row(&repo.identifier).await.unwrap();
    let retired = fixture.store.retired_refs(&repo.identifier).await.unwrap();
    assert_eq!((retired.len(), row.garbage), (2, Some(Garbage::Moved)));
    assert!(!collect(&fixture, &repo, now()).await);
    let packs = |files: &[std::path::PathBuf]| {
        files.iter().filter(|f| f.extension().is_some_and(|e| e == "pack")).count()
    };
    assert_eq!(packs(&files_below(&fixture.root().join("families"))), packs(&before));
    // The new tip contains the old ones, so nothing is retained.
    let row = fixture.store.family_row(&repo.identifier).await.unwrap();
    let retired = fixture.store.retired_refs(&repo.identifier).await.unwrap();
    assert_eq!((retired, row.garbage), (vec![], None));
}

#[tokio::test]
async fn ordinary_pushes_do_not_shorten_the_retention_of_removed_commits() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    fixture.push(&repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let first = unrelated(&work, "first");
    fixture.push(&repo, &work, &[(MAIN, Some(first))]).await.unwrap();
    assert!(collect(&fixture, &repo, now()).await);
    let second = work.commit("second");
    fixture.push(&repo, &work, &[(MAIN, Some(second))]).await.unwrap();
    assert!(!collect(&fixture, &repo, now()).await);
    let row = fixture.store.family_row(&repo.identifier).await.unwrap();
    let retired = fixture.store.retired_refs(&repo.identifier).await.unwrap();
    let tips: Vec<_> = retired.iter().map(|retired| retired.tip).collect();
    assert_eq!((tips, row.garbage), (vec![removed], None));
    // A later removal does not end the retention of this one.
    let other = unrelated(&work, "other");
    fixture.push(&repo, &work, &[(MAIN, Some(other))]).await.unwrap();
    assert!(collect(&fixture, &repo, now()).await);
    assert!(pack_bytes(&fixture.root()) > 100_000);
}

#[tokio::test]
async fn removed_commits_are_retained_although_another_owner_had_them_and_vanished() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    for repo in [&alice, &bob] {
        fixture.push(repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    }
    work.git(&["rm", "-q", "noise"]);
    let stays = unrelated(&work, "stays");
    fixture.push(&alice, &work, &[(MAIN, Some(stays))]).await.unwrap();
    assert!(!collect(&fixture, &alice, now()).await);
    let mut guard = fixture.store.lock(&bob.identifier).await.unwrap();
    guard.destroy_view(&bob.owner).await.unwrap();
    drop(guard);
    assert!(collect(&fixture, &alice, now()).await);
    assert!(!is_readable(&fixture, &alice, removed).await);
    assert!(pack_bytes(&fixture.root()) > 100_000, "an operator still finds it");
}

#[tokio::test]
async fn commits_of_a_vanished_owner_are_deleted_and_unreadable_through_other_views() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    work.write("noise", &noise(100_000));
    let hers = work.commit("hers");
    fixture.push(&alice, &work, &[(MAIN, Some(hers))]).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let earlier = hers;
    let his = unrelated(&work, "his");
    fixture.push(&bob, &work, &[(MAIN, Some(his))]).await.unwrap();
    // One of her tips is retired before.
    fixture.push(&alice, &work, &[(MAIN, Some(his))]).await.unwrap();
    assert!(collect(&fixture, &bob, now()).await);
    assert!(pack_bytes(&fixture.root()) > 100_000);
    let mut guard = fixture.store.lock(&alice.identifier).await.unwrap();
    guard.destroy_view(&alice.owner).await.unwrap();
    drop(guard);
    assert!(collect(&fixture, &bob, now()).await);
    assert!(!is_readable(&fixture, &bob, earlier).await && is_readable(&fixture, &bob, his).await);
    assert!(pack_bytes(&fixture.root()) < 10_000, "nothing of hers is kept for later");
    git(&fixture.view(&bob).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn a_deleted_pull_request_frees_its_disk_space_at_once() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let base = work.commit("base");
    fixture.push(&repo, &work, &[(MAIN, Some(base))]).await.unwrap();
    work.write("noise", &noise(100_000));
    let (tip, id) = (work.commit("proposed"), EventId::from_byte_array([1; 32]));
    let name = grasp_core::RefName::nostr(id);
    fixture.push(&repo, &work, &[(name.as_str(), Some(tip))]).await.unwrap();
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    guard.promote_staged(id, tip).await.unwrap();
    let set = |old, new| grasp_core::push::PushCommand { old, new, name: name.clone() };
    guard.move_refs(&repo.owner, &[set(None, Some(tip))], None, now()).await.unwrap();
    guard.move_refs(&repo.owner, &[set(Some(tip), None)], None, now()).await.unwrap();
    drop(guard);
    assert!(pack_bytes(&fixture.root()) > 100_000);
    assert!(collect(&fixture, &repo, now()).await);
    assert!(pack_bytes(&fixture.root()) < 10_000);
    assert!(is_readable(&fixture, &repo, base).await);
}

#[tokio::test]
async fn uploads_based_on_collected_commits_stay_complete_and_unreadable() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let base = work.commit("base");
    fixture.push(&repo, &work, &[(MAIN, Some(base))]).await.unwrap();
    let (tip, id) = (work.commit("proposed"), EventId::from_byte_array([1; 32]));
    let name = grasp_core::RefName::nostr(id);
    fixture.push(&repo, &work, &[(name.as_str(), Some(tip))]).await.unwrap();
    let other = unrelated(&work, "other");
    fixture.push(&repo, &work, &[(MAIN, Some(other))]).await.unwrap();
    assert!(collect(&fixture, &repo, now()).await);
    assert!(!is_readable(&fixture, &repo, tip).await);
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    guard.promote_staged(id, tip).await.unwrap();
    assert!(guard.check(&BTreeSet::from([tip])).await.unwrap().is_complete());
}

#[tokio::test]
async fn a_pull_request_is_copied_only_to_forks_and_without_objects_that_they_have() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (x, fork, other) =
        (fixture.repo("x").await, fixture.repo("fork").await, fixture.repo("y").await);
    work.write("noise", &noise(100_000));
    let base = work.commit("base");
    for repo in [&x, &fork] {
        fixture.push(repo, &work, &[(MAIN, Some(base))]).await.unwrap();
    }
    let tip = work.commit("proposed");
    fixture.push(&x, &work, &[("refs/heads/proposed", Some(tip))]).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let unrelated = unrelated(&work, "unrelated");
    fixture.push(&other, &work, &[(MAIN, Some(unrelated))]).await.unwrap();

    let from = (&fixture.store, &x.identifier);
    let guard = fixture.store.lock(&other.identifier).await.unwrap();
    assert!(fixture.store.copy(from, &guard, tip).await.unwrap().is_none());
    let mut guard = fixture.store.lock(&fork.identifier).await.unwrap();
    let copied = fixture.store.copy(from, &guard, tip).await.unwrap().expect("it is a fork");
    let bytes = copied.bytes().await.unwrap();
    assert!(bytes < 10_000, "without the base: {bytes}");
    guard.promote(copied).await.unwrap();
    assert!(guard.check(&BTreeSet::from([tip])).await.unwrap().is_complete());
}

#[tokio::test]
async fn commits_of_a_pull_request_are_retained_if_a_branch_had_them() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    fixture.push(&repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    let name = grasp_core::RefName::nostr(EventId::from_byte_array([1; 32]));
    let set = |old, new| grasp_core::push::PushCommand { old, new, name: name.clone() };
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    guard.move_refs(&repo.owner, &[set(None, Some(removed))], None, now()).await.unwrap();
    drop(guard);
    work.git(&["rm", "-q", "noise"]);
    let stays = unrelated(&work, "stays");
    fixture.push(&repo, &work, &[(MAIN, Some(stays))]).await.unwrap();
    collect(&fixture, &repo, now()).await;
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    guard.move_refs(&repo.owner, &[set(Some(removed), None)], None, now()).await.unwrap();
    drop(guard);
    assert!(collect(&fixture, &repo, now()).await);
    assert!(!is_readable(&fixture, &repo, removed).await);
    assert!(pack_bytes(&fixture.root()) > 100_000, "an operator still finds it");
}

#[tokio::test]
async fn a_crash_during_a_collection_leaves_the_family_collected_or_unchanged() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let removed = work.commit("removed");
    fixture.push(&repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    let stays = unrelated(&work, "stays");
    fixture.push(&repo, &work, &[(MAIN, Some(stays))]).await.unwrap();
    let before = fixture.store.family_row(&repo.identifier).await.unwrap();
    fixture.database.fail_once();
    fixture.store.collect(&repo.identifier, &BTreeSet::new(), now()).await.unwrap_err();
    assert_eq!(fixture.store.family_row(&repo.identifier).await.unwrap(), before);
    let fixture = fixture.restart().await;
    assert_eq!(
        packs_on_disk(&fixture),
        before.packs.iter().map(|pack| pack.name.clone()).collect()
    );
    assert!(
        is_readable(&fixture, &repo, removed).await && is_readable(&fixture, &repo, stays).await
    );
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    assert!(collect(&fixture, &repo, now()).await, "the mark was kept");
    assert!(
        !is_readable(&fixture, &repo, removed).await && is_readable(&fixture, &repo, stays).await
    );
    let row = fixture.store.family_row(&repo.identifier).await.unwrap();
    assert_eq!(packs_on_disk(&fixture), row.packs.into_iter().map(|pack| pack.name).collect());
}

/// The names of all packs of families.
fn packs_on_disk(fixture: &Fixture) -> BTreeSet<String> {
    let files = files_below(&fixture.root().join("families")).into_iter();
    let packs = files.filter(|file| file.extension().is_some_and(|kind| kind == "pack"));
    packs.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}
