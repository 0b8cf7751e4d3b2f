//! What no view shows any more leaves the object store, and later the disk.

use std::collections::BTreeSet;

use grasp_core::{Oid, RepoId};
use grasp_purgatory::database::Garbage;
use grasp_purgatory::git::RETENTION;
use nostr::event::EventId;
use nostr::types::Timestamp;

use crate::git_fixture::{Work, World, files_below, git, noise, now, pack_bytes};

const MAIN: &str = "refs/heads/main";

async fn collect(world: &World, repo: &RepoId, now: Timestamp) -> bool {
    world.store.collect(&repo.identifier, &BTreeSet::new(), now).await.unwrap()
}

async fn is_readable(world: &World, repo: &RepoId, oid: Oid) -> bool {
    let answer = world.fetch_v2(repo, &[oid]).await;
    answer.windows(8).any(|some| some == b"packfile")
}

/// A commit without a parent.
fn unrelated(work: &Work, content: &str) -> Oid {
    work.git(&["checkout", "-q", "--orphan", content]);
    work.commit(content)
}

#[tokio::test]
async fn what_a_force_push_removed_is_unreadable_and_kept_for_its_time() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    world.push(&repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let stays = unrelated(&work, "stays");
    world.push(&repo, &work, &[(MAIN, Some(stays))]).await.unwrap();
    assert!(is_readable(&world, &repo, removed).await, "until it is collected");

    assert!(collect(&world, &repo, now()).await);
    assert!(!is_readable(&world, &repo, removed).await && is_readable(&world, &repo, stays).await);
    git(&world.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    let bytes = pack_bytes(&world.root());
    assert!(bytes > 100_000, "an operator still finds it: {bytes}");
    let retired = world.store.family_row(&repo.identifier).await.unwrap().retired;
    let tips: Vec<_> = retired.iter().map(|retired| (retired.tip, retired.owner)).collect();
    assert_eq!(tips, [(removed, repo.owner)]);
    assert!(!collect(&world, &repo, now()).await, "once is enough");

    let later = Timestamp::from_secs(now().as_secs() + RETENTION.as_secs() + 1);
    assert!(collect(&world, &repo, later).await);
    assert!(pack_bytes(&world.root()) < 10_000);
    assert!(world.store.family_row(&repo.identifier).await.unwrap().retired.is_empty());
    assert!(is_readable(&world, &repo, stays).await);
    // It can be brought again.
    world.push(&repo, &work, &[("refs/heads/again", Some(removed))]).await.unwrap();
    assert!(is_readable(&world, &repo, removed).await);
}

#[tokio::test]
async fn ordinary_pushes_are_not_repacked() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    for n in 0..3 {
        let tip = work.commit(&n.to_string());
        world.push(&repo, &work, &[(MAIN, Some(tip))]).await.unwrap();
    }
    let before = files_below(&world.root().join("families"));
    let row = world.store.family_row(&repo.identifier).await.unwrap();
    assert_eq!((row.retired.len(), row.garbage), (2, Some(Garbage::Moved)));
    assert!(!collect(&world, &repo, now()).await);
    let packs = |files: &[std::path::PathBuf]| {
        files.iter().filter(|f| f.extension().is_some_and(|e| e == "pack")).count()
    };
    assert_eq!(packs(&files_below(&world.root().join("families"))), packs(&before));
    // What is shown contains what was moved away from, so there is nothing to keep for later.
    let row = world.store.family_row(&repo.identifier).await.unwrap();
    assert_eq!((row.retired, row.garbage), (vec![], None));
}

#[tokio::test]
async fn ordinary_pushes_do_not_shorten_the_time_of_what_was_removed_before() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    world.push(&repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let first = unrelated(&work, "first");
    world.push(&repo, &work, &[(MAIN, Some(first))]).await.unwrap();
    assert!(collect(&world, &repo, now()).await);
    let second = work.commit("second");
    world.push(&repo, &work, &[(MAIN, Some(second))]).await.unwrap();
    assert!(!collect(&world, &repo, now()).await);
    let row = world.store.family_row(&repo.identifier).await.unwrap();
    let tips: Vec<_> = row.retired.iter().map(|retired| retired.tip).collect();
    assert_eq!((tips, row.garbage), (vec![removed], None));
    // Whatever is removed for good later, this stays.
    let other = unrelated(&work, "other");
    world.push(&repo, &work, &[(MAIN, Some(other))]).await.unwrap();
    assert!(collect(&world, &repo, now()).await);
    assert!(pack_bytes(&world.root()) > 100_000);
}

#[tokio::test]
async fn what_was_removed_is_kept_for_its_time_though_another_owner_showed_it_and_vanished() {
    let (world, work) = (World::new().await, Work::new());
    let (alice, bob) = (world.repo("x").await, world.repo("x").await);
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    for repo in [&alice, &bob] {
        world.push(repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    }
    work.git(&["rm", "-q", "noise"]);
    let stays = unrelated(&work, "stays");
    world.push(&alice, &work, &[(MAIN, Some(stays))]).await.unwrap();
    assert!(!collect(&world, &alice, now()).await);
    let mut guard = world.store.lock(&bob.identifier).await.unwrap();
    guard.destroy_view(&bob.owner).await.unwrap();
    drop(guard);
    assert!(collect(&world, &alice, now()).await);
    assert!(!is_readable(&world, &alice, removed).await);
    assert!(pack_bytes(&world.root()) > 100_000, "an operator still finds it");
}

#[tokio::test]
async fn what_a_vanished_owner_had_is_not_readable_through_others_and_gone_from_disk() {
    let (world, work) = (World::new().await, Work::new());
    let (alice, bob) = (world.repo("x").await, world.repo("x").await);
    work.write("noise", &noise(100_000));
    let hers = work.commit("hers");
    world.push(&alice, &work, &[(MAIN, Some(hers))]).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let earlier = hers;
    let his = unrelated(&work, "his");
    world.push(&bob, &work, &[(MAIN, Some(his))]).await.unwrap();
    // Some of it was retired before.
    world.push(&alice, &work, &[(MAIN, Some(his))]).await.unwrap();
    assert!(collect(&world, &bob, now()).await);
    assert!(pack_bytes(&world.root()) > 100_000);
    let mut guard = world.store.lock(&alice.identifier).await.unwrap();
    guard.destroy_view(&alice.owner).await.unwrap();
    drop(guard);
    assert!(collect(&world, &bob, now()).await);
    assert!(!is_readable(&world, &bob, earlier).await && is_readable(&world, &bob, his).await);
    assert!(pack_bytes(&world.root()) < 10_000, "nothing of hers is kept for later");
    git(&world.view(&bob).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn a_pull_request_that_is_taken_back_frees_its_disk_at_once() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let base = work.commit("base");
    world.push(&repo, &work, &[(MAIN, Some(base))]).await.unwrap();
    work.write("noise", &noise(100_000));
    let (tip, id) = (work.commit("proposed"), EventId::from_byte_array([1; 32]));
    let name = grasp_core::RefName::nostr(id);
    world.push(&repo, &work, &[(name.as_str(), Some(tip))]).await.unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.promote_staged(id, tip).await.unwrap();
    let set = |old, new| grasp_core::push::PushCommand { old, new, name: name.clone() };
    guard.move_refs(&repo.owner, &[set(None, Some(tip))], None, now()).await.unwrap();
    guard.move_refs(&repo.owner, &[set(Some(tip), None)], None, now()).await.unwrap();
    drop(guard);
    assert!(pack_bytes(&world.root()) > 100_000);
    assert!(collect(&world, &repo, now()).await);
    assert!(pack_bytes(&world.root()) < 10_000);
    assert!(is_readable(&world, &repo, base).await);
}

#[tokio::test]
async fn uploads_that_lean_on_what_is_collected_stay_whole_and_unreadable() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let base = work.commit("base");
    world.push(&repo, &work, &[(MAIN, Some(base))]).await.unwrap();
    let (tip, id) = (work.commit("proposed"), EventId::from_byte_array([1; 32]));
    let name = grasp_core::RefName::nostr(id);
    world.push(&repo, &work, &[(name.as_str(), Some(tip))]).await.unwrap();
    let other = unrelated(&work, "other");
    world.push(&repo, &work, &[(MAIN, Some(other))]).await.unwrap();
    assert!(collect(&world, &repo, now()).await);
    assert!(!is_readable(&world, &repo, tip).await);
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.promote_staged(id, tip).await.unwrap();
    assert!(guard.check(&BTreeSet::from([tip])).await.unwrap().is_complete());
}

#[tokio::test]
async fn a_pull_request_is_copied_only_where_history_is_shared_and_only_what_is_lacking() {
    let (world, work) = (World::new().await, Work::new());
    let (x, fork, other) = (world.repo("x").await, world.repo("fork").await, world.repo("y").await);
    work.write("noise", &noise(100_000));
    let base = work.commit("base");
    for repo in [&x, &fork] {
        world.push(repo, &work, &[(MAIN, Some(base))]).await.unwrap();
    }
    let tip = work.commit("proposed");
    world.push(&x, &work, &[("refs/heads/proposed", Some(tip))]).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let unrelated = unrelated(&work, "unrelated");
    world.push(&other, &work, &[(MAIN, Some(unrelated))]).await.unwrap();

    let from = (&world.store, &x.identifier);
    let guard = world.store.lock(&other.identifier).await.unwrap();
    assert!(world.store.copy(from, &guard, tip).await.unwrap().is_none());
    let mut guard = world.store.lock(&fork.identifier).await.unwrap();
    let copied = world.store.copy(from, &guard, tip).await.unwrap().expect("it is a fork");
    let bytes = copied.bytes().await.unwrap();
    assert!(bytes < 10_000, "without the base: {bytes}");
    guard.promote(copied).await.unwrap();
    assert!(guard.check(&BTreeSet::from([tip])).await.unwrap().is_complete());
}

#[tokio::test]
async fn what_a_pull_request_contains_is_kept_for_its_time_once_a_branch_had_it() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    world.push(&repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    let name = grasp_core::RefName::nostr(EventId::from_byte_array([1; 32]));
    let set = |old, new| grasp_core::push::PushCommand { old, new, name: name.clone() };
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.move_refs(&repo.owner, &[set(None, Some(removed))], None, now()).await.unwrap();
    drop(guard);
    work.git(&["rm", "-q", "noise"]);
    let stays = unrelated(&work, "stays");
    world.push(&repo, &work, &[(MAIN, Some(stays))]).await.unwrap();
    collect(&world, &repo, now()).await;
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.move_refs(&repo.owner, &[set(Some(removed), None)], None, now()).await.unwrap();
    drop(guard);
    assert!(collect(&world, &repo, now()).await);
    assert!(!is_readable(&world, &repo, removed).await);
    assert!(pack_bytes(&world.root()) > 100_000, "an operator still finds it");
}

#[tokio::test]
async fn a_crash_while_collecting_leaves_everything_as_it_was_or_collected() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let removed = work.commit("removed");
    world.push(&repo, &work, &[(MAIN, Some(removed))]).await.unwrap();
    let stays = unrelated(&work, "stays");
    world.push(&repo, &work, &[(MAIN, Some(stays))]).await.unwrap();
    let before = world.store.family_row(&repo.identifier).await.unwrap();
    world.database.fail_once();
    world.store.collect(&repo.identifier, &BTreeSet::new(), now()).await.unwrap_err();
    assert_eq!(world.store.family_row(&repo.identifier).await.unwrap(), before);
    let world = world.restart().await;
    assert_eq!(packs_on_disk(&world), before.packs.iter().map(|pack| pack.name.clone()).collect());
    assert!(is_readable(&world, &repo, removed).await && is_readable(&world, &repo, stays).await);
    git(&world.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    assert!(collect(&world, &repo, now()).await, "the mark was kept");
    assert!(!is_readable(&world, &repo, removed).await && is_readable(&world, &repo, stays).await);
    let row = world.store.family_row(&repo.identifier).await.unwrap();
    assert_eq!(packs_on_disk(&world), row.packs.into_iter().map(|pack| pack.name).collect());
}

/// The names of all packs of families.
fn packs_on_disk(world: &World) -> BTreeSet<String> {
    let files = files_below(&world.root().join("families")).into_iter();
    let packs = files.filter(|file| file.extension().is_some_and(|kind| kind == "pack"));
    packs.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}
