//! Families and views: names, sharing, advertisements, coming and going.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use grasp_core::resources::Claimant;
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::database::FamilyRow;
use grasp_purgatory::git::{GitError, Protocol, RETENTION, RefTarget, Service, StagingLimits};
use nostr::types::Timestamp;

use crate::git_fixture::{
    PLENTY, Work, World, files_below, git, installed_git, name, noise, now, open, pack_bytes,
};

#[tokio::test]
async fn an_empty_view_advertises_what_it_can_do() {
    let world = World::new().await;
    let repo = world.repo("x").await;
    let advertised = async |service| {
        let list = world.store.advertisement(&repo, (service, Protocol::V0)).await.unwrap();
        String::from_utf8(list.collect::<Vec<_>>().concat()).unwrap()
    };
    let fetch = advertised(Service::UploadPack).await;
    for word in [
        "capabilities^{}",
        "allow-tip-sha1-in-want",
        "allow-reachable-sha1-in-want",
        "filter",
        "multi_ack_detailed",
        "side-band-64k",
        "shallow",
        "ofs-delta",
        "no-progress",
        "object-format=sha1",
    ] {
        assert!(fetch.contains(word), "{word} in {fetch}");
    }
    let push = advertised(Service::ReceivePack).await;
    for word in [
        "capabilities^{}",
        "report-status",
        "report-status-v2",
        "delete-refs",
        "side-band-64k",
        "ofs-delta",
        "atomic",
        "quiet",
        "object-format=sha1",
        "push-options",
    ] {
        assert!(push.contains(word), "{word} in {push}");
    }
    assert!(!push.contains("push-cert"));
    let v2 = world.advertised(&repo, Service::UploadPack, Protocol::V2).await;
    assert!(v2.lines().any(|line| line.contains("fetch=") && line.contains("filter")), "{v2}");
    assert!(v2.contains("version 2") && v2.contains("fetch=shallow"), "{v2}");
}

#[tokio::test]
async fn the_advertisement_names_head_and_hides_what_is_internal() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    world.push(&repo, &work, &[("refs/heads/dev", Some(one))]).await.unwrap();
    world.push(&repo, &work, &[("refs/heads/dev", Some(two))]).await.unwrap();
    for service in [Service::UploadPack, Service::ReceivePack] {
        let text = world.advertised(&repo, service, Protocol::V0).await;
        assert!(text.contains(&format!("{two} refs/heads/dev")), "{text}");
        assert!(!text.contains("refs/grasp") && !text.contains("refs/proven"), "{text}");
    }
    let text = world.advertised(&repo, Service::UploadPack, Protocol::V0).await;
    assert!(text.contains("symref=HEAD:refs/heads/dev"), "{text}");
}

#[tokio::test]
async fn views_of_a_family_store_history_once() {
    let (world, work) = (World::new().await, Work::new());
    let (alice, bob) = (world.repo("x").await, world.repo("x").await);
    work.write("noise", &noise(100_000));
    let tip = work.commit("1");
    world.push(&alice, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let before = pack_bytes(&world.root());
    let mut guard = world.store.lock(&bob.identifier).await.unwrap();
    let refs = guard.refs(&alice.owner).await.unwrap();
    let target = RefTarget { refs, ..RefTarget::default() };
    guard.apply(&bob.owner, &target, now()).await.unwrap();
    assert_eq!(pack_bytes(&world.root()), before);
    let view = world.view(&bob).await;
    git(world.dir.path(), &["clone", "-q", view.to_str().unwrap(), "bob"], b"").unwrap();
    git(&world.dir.path().join("bob"), &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn who_pushes_to_an_empty_view_is_told_what_the_family_has() {
    let (world, work) = (World::new().await, Work::new());
    let (alice, bob) = (world.repo("x").await, world.repo("x").await);
    let tip = work.commit("1");
    world.push(&alice, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let text = world.advertised(&bob, Service::ReceivePack, Protocol::V0).await;
    assert!(text.contains(&format!("{tip} .have")), "{text}");
    let other = world.repo("y").await;
    let text = world.advertised(&other, Service::ReceivePack, Protocol::V0).await;
    assert!(!text.contains(".have"), "{text}");
}

#[tokio::test]
async fn no_object_of_another_family_can_be_read() {
    let (world, work) = (World::new().await, Work::new());
    let (x, y) = (world.repo("x").await, world.repo("y").await);
    let tip = work.commit("1");
    world.push(&x, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let answer = world.fetch_v2(&y, &[tip]).await;
    assert!(String::from_utf8_lossy(&answer).contains("not our ref"));
}

#[tokio::test]
async fn any_identifier_has_a_place_of_its_own() {
    let (world, work) = (World::new().await, Work::new());
    let long = "ä".repeat(Identifier::MAX_BYTES / 2);
    let names = ["repo", "Repo", "日本 語 🦀", "...", "-rf", "a:b", "x.git", "CON", long.as_str()];
    let owner = world.repo("first").await.owner;
    let repos = names.map(|text| RepoId::new(owner, text.parse().unwrap()));
    for (n, repo) in repos.iter().enumerate() {
        world.create(repo).await;
        let tip = work.commit(&n.to_string());
        world.push(repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
        assert_eq!(world.store.refs(repo).await.unwrap()[&name("refs/heads/main")], tip);
    }
    let mut tips = BTreeSet::new();
    for repo in &repos {
        tips.extend(world.store.refs(repo).await.unwrap().into_values());
    }
    assert_eq!(tips.len(), repos.len());
    let found = world.store.repositories().await.unwrap();
    assert!(repos.iter().all(|repo| found.contains(repo)) && found.len() == repos.len() + 1);
    for path in files_below(&world.root()) {
        assert!(path.strip_prefix(world.root()).unwrap().to_str().unwrap().is_ascii(), "{path:?}");
    }
}

#[tokio::test]
async fn hundreds_of_empty_views_are_made_without_a_process() {
    const MANY: u32 = 300;
    let world = World::new().await;
    let owner = world.repo("first").await.owner;
    let started = Instant::now();
    for n in 0..MANY {
        world.create(&RepoId::new(owner, n.to_string().parse().unwrap())).await;
    }
    println!("an empty view in a family of its own takes {:?}", started.elapsed() / MANY);
    assert_eq!(world.store.repositories().await.unwrap().len(), MANY as usize + 1);
}

#[tokio::test]
async fn a_retired_view_is_kept_out_of_service_until_it_is_forgotten() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let tip = work.commit("1");
    world.push(&repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.retire_view(&repo.owner, now()).await.unwrap();
    assert!(!world.store.has_view(&repo).await.unwrap());
    let served = world
        .store
        .advertise(&repo, (Service::UploadPack, Protocol::V0), Claimant::default())
        .await;
    assert!(matches!(served.unwrap_err(), GitError::NoView));
    let families = world.store.identifiers().await.unwrap();
    assert_eq!(families, [repo.identifier.clone()].into());
    drop(guard);
    let collect = async |now| {
        world.store.collect(&repo.identifier, &BTreeSet::new(), now).await.unwrap();
        world.store.lock(&repo.identifier).await.unwrap()
    };
    let guard = collect(now()).await;
    assert_eq!(guard.retired_owners().await.unwrap(), [repo.owner].into());
    drop(guard);

    let later = Timestamp::from_secs(now().as_secs() + RETENTION.as_secs() + 1);
    let mut guard = collect(later).await;
    assert!(guard.retired_owners().await.unwrap().is_empty());
    guard.remove_if_deserted().await.unwrap();
    assert!(files_below(&world.root().join("families")).is_empty());
    guard.create_view(&repo.owner).await.unwrap();
    assert!(guard.refs(&repo.owner).await.unwrap().is_empty());
}

#[tokio::test]
async fn who_vanishes_leaves_nothing_and_takes_nothing_from_others() {
    let (world, work) = (World::new().await, Work::new());
    let (alice, bob) = (world.repo("x").await, world.repo("x").await);
    let tip = work.commit("1");
    for repo in [&alice, &bob] {
        world.push(repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    }
    world.view(&alice).await;
    let mut guard = world.store.lock(&alice.identifier).await.unwrap();
    guard.retire_view(&alice.owner, now()).await.unwrap();
    guard.destroy_view(&alice.owner).await.unwrap();
    let hers = files_below(&world.root()).into_iter();
    let mut hers = hers.filter(|file| file.to_str().unwrap().contains(&alice.owner.to_hex()));
    assert_eq!(hers.next(), None);
    assert!(guard.row().await.unwrap().retired.is_empty());
    git(&world.view(&bob).await, &["fsck", "--full"], b"").unwrap();
    guard.destroy_view(&bob.owner).await.unwrap();
    drop(guard);
    assert!(files_below(&world.root().join("families")).is_empty());
    world.create(&bob).await;
    assert!(world.store.refs(&bob).await.unwrap().is_empty());
}

/// Whether a directory was ever seen with less in it than before, while it went away.
fn went_piece_by_piece(dir: &Path, is_gone: &AtomicBool) -> bool {
    let whole = files_below(dir).len();
    while !is_gone.load(Ordering::SeqCst) {
        let seen = files_below(dir).len();
        // Who looks while it is moved away sees less too; then it is not there any more.
        if seen < whole && dir.is_dir() {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_family_goes_as_a_whole_or_not_at_all() {
    let (world, work) = (World::new().await, Work::new());
    let (alice, bob) = (world.repo("x").await, world.repo("x").await);
    let tip = work.commit("1");
    for repo in [&alice, &bob] {
        world.push(repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    }
    let family = world.family(&alice.identifier);
    let mut guard = world.store.lock(&alice.identifier).await.unwrap();
    guard.destroy_view(&alice.owner).await.unwrap();
    assert!(matches!(world.store.refs(&alice).await.unwrap_err(), GitError::NoView));
    assert!(family.join("objects").is_dir(), "it is needed");
    for n in 0..5_000 {
        std::fs::write(family.join(format!("objects/{n}")), "").unwrap();
    }
    let is_gone = Arc::new(AtomicBool::new(false));
    let (watched, dir) = (is_gone.clone(), family.clone());
    let watcher = std::thread::spawn(move || went_piece_by_piece(&dir, &watched));
    guard.destroy_view(&bob.owner).await.unwrap();
    is_gone.store(true, Ordering::SeqCst);
    assert!(!watcher.join().unwrap());
    assert_eq!(world.store.family_row(&bob.identifier).await.unwrap(), FamilyRow::default());
    for dir in ["families", "incoming", "views"] {
        assert!(files_below(&world.root().join(dir)).is_empty(), "{dir}");
    }
}

#[tokio::test]
async fn a_family_without_a_view_is_known_and_goes_once_nothing_is_on_its_way_to_it() {
    let (world, work) = (World::new().await, Work::new());
    let name: Identifier = "x".parse().unwrap();
    let tip = work.commit("1");
    let incoming = world.store.incoming_for(&name).await.unwrap();
    let mut unpacking = incoming.unpack(PLENTY, PLENTY).await.unwrap();
    unpacking.feed(&work.pack(&[tip])).await.unwrap();
    unpacking.finish().await.unwrap();
    world.store.lock(&name).await.unwrap().remove_if_deserted().await.unwrap();
    let in_vain = world.store.incoming_for(&name).await.unwrap();
    world.store.take_in(&name, in_vain, &BTreeSet::from([tip])).await.unwrap();
    let got = world.store.take_in(&name, incoming, &BTreeSet::from([tip])).await.unwrap();
    assert_eq!(got, BTreeSet::from([tip]), "the place was kept for it");
    assert_eq!(world.store.identifiers().await.unwrap(), [name.clone()].into());
    world.store.lock(&name).await.unwrap().remove_if_deserted().await.unwrap();
    assert!(files_below(&world.root().join("families")).is_empty());
}

#[tokio::test]
async fn what_was_whole_with_a_family_that_is_gone_is_looked_at_again() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let base = work.commit("base");
    world.push(&repo, &work, &[("refs/heads/main", Some(base))]).await.unwrap();
    let tip = work.commit("tip");
    let mut incoming =
        world.receive(&repo, &work.pack_only(&work.objects_of_last_commit())).await.unwrap();
    let tips = [tip].into();
    assert!(incoming.check(&tips).await.unwrap().is_complete());
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.destroy_view(&repo.owner).await.unwrap();
    guard.create_view(&repo.owner).await.unwrap();
    guard.promote(incoming).await.unwrap();
    assert!(!guard.check(&tips).await.unwrap().is_complete(), "its parent went with the family");
}

#[tokio::test]
async fn an_unfilled_view_leaves_nothing_when_it_expires() {
    let world = World::new().await;
    let repo = world.repo("x").await;
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.retire_view(&repo.owner, now()).await.unwrap();
    guard.retire_view(&repo.owner, now()).await.unwrap();
    assert!(files_below(&world.root().join("families")).is_empty());
}

#[tokio::test]
async fn one_directory_serves_one_server() {
    let world = World::new().await;
    let second =
        open(&world.root(), installed_git(), StagingLimits::default(), &world.database).await;
    assert!(matches!(second.unwrap_err(), GitError::InUse(_)));
}

#[tokio::test]
async fn a_directory_of_another_layout_is_left_alone() {
    let world = World::new().await;
    let root = world.root();
    std::fs::write(root.join("version"), "grasp repositories 99\n").unwrap();
    drop(world.store);
    // A process that another test starts has the lock, too, until it becomes the command that it is for.
    for _ in 0..1_000 {
        let again = open(&root, installed_git(), StagingLimits::default(), &world.database).await;
        match again.unwrap_err() {
            GitError::InUse(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            error => return assert!(matches!(error, GitError::Layout { .. }), "{error}"),
        }
    }
    panic!("the directory stays in use");
}

#[tokio::test]
async fn collecting_garbage_by_hand_takes_nothing_from_a_view() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let tip = work.commit("1");
    world.push(&repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let view = world.view(&repo).await;
    for dir in [world.family(&repo.identifier), view.clone()] {
        _ = git(&dir, &["gc", "-q", "--prune=now"], b"");
        _ = git(&dir, &["repack", "-a", "-d", "-q"], b"");
    }
    git(&view, &["fsck", "--full"], b"").unwrap();
    assert_eq!(world.store.refs(&repo).await.unwrap()[&name("refs/heads/main")], tip);
}

#[tokio::test]
async fn many_packs_become_few_and_lose_nothing() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let mut first = None;
    for n in 0..40 {
        let tip = work.commit(&n.to_string());
        let incoming = world.receive(&repo, &work.pack_only(&work.objects_of_last_commit())).await;
        let mut guard = world.store.lock(&repo.identifier).await.unwrap();
        guard.promote(incoming.unwrap()).await.unwrap();
        first = first.or(Some(tip));
    }
    let tip = work.rev("HEAD");
    let packs = || {
        files_below(&world.root())
            .into_iter()
            .filter(|f| f.extension().is_some_and(|e| e == "pack"))
            .count()
    };
    assert_eq!(packs(), 40);
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    // No ref names any of them, and still nothing may go.
    assert!(guard.compact().await.unwrap());
    assert!(packs() < 10, "{}", packs());
    assert!(!guard.compact().await.unwrap(), "there is nothing left to do");
    let found = guard.check(&[tip, first.unwrap()].into()).await.unwrap();
    assert!(found.is_complete(), "{found:?}");
}
