//! Families and views: names, sharing, advertisements, creation and removal.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use grasp_core::resources::Claimant;
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::database::FamilyRow;
use grasp_purgatory::git::{
    GitError, Protocol, RETIRED_REFS_RETENTION, RefTarget, Service, StagingLimits,
};
use nostr::types::Timestamp;

use crate::git_fixture::{
    Fixture, MAX_PACK_BYTES, Work, files_below, git, installed_git, name, noise, now, open,
    pack_bytes,
};

#[tokio::test]
async fn an_empty_view_advertises_its_capabilities() {
    let fixture = Fixture::new().await;
    let repo = fixture.repo("x").await;
    let advertised = async |service| {
        let list = fixture.store.advertisement(&repo, (service, Protocol::V0)).await.unwrap();
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
    let v2 = fixture.advertised(&repo, Service::UploadPack, Protocol::V2).await;
    assert!(v2.lines().any(|line| line.contains("fetch=") && line.contains("filter")), "{v2}");
    assert!(v2.contains("version 2") && v2.contains("fetch=shallow"), "{v2}");
}

#[tokio::test]
async fn the_advertisement_has_head_and_no_internal_refs() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    fixture.push(&repo, &work, &[("refs/heads/dev", Some(one))]).await.unwrap();
    fixture.push(&repo, &work, &[("refs/heads/dev", Some(two))]).await.unwrap();
    for service in [Service::UploadPack, Service::ReceivePack] {
        let text = fixture.advertised(&repo, service, Protocol::V0).await;
        assert!(text.contains(&format!("{two} refs/heads/dev")), "{text}");
        assert!(!text.contains("refs/grasp") && !text.contains("refs/proven"), "{text}");
    }
    let text = fixture.advertised(&repo, Service::UploadPack, Protocol::V0).await;
    assert!(text.contains("symref=HEAD:refs/heads/dev"), "{text}");
}

#[tokio::test]
async fn views_of_a_family_store_history_once() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    work.write("noise", &noise(100_000));
    let tip = work.commit("1");
    fixture.push(&alice, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let before = pack_bytes(&fixture.root());
    let mut guard = fixture.store.lock(&bob.identifier).await.unwrap();
    let refs = guard.refs(&alice.owner).await.unwrap();
    let target = RefTarget { refs, ..RefTarget::default() };
    fixture.apply(&mut guard, &bob.owner, &target).await.unwrap();
    assert_eq!(pack_bytes(&fixture.root()), before);
    let view = fixture.view(&bob).await;
    git(fixture.dir.path(), &["clone", "-q", view.to_str().unwrap(), "bob"], b"").unwrap();
    git(&fixture.dir.path().join("bob"), &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn a_push_to_an_empty_view_is_offered_the_tips_of_the_family() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    let tip = work.commit("1");
    fixture.push(&alice, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let text = fixture.advertised(&bob, Service::ReceivePack, Protocol::V0).await;
    assert!(text.contains(&format!("{tip} .have")), "{text}");
    let other = fixture.repo("y").await;
    let text = fixture.advertised(&other, Service::ReceivePack, Protocol::V0).await;
    assert!(!text.contains(".have"), "{text}");
}

#[tokio::test]
async fn no_object_of_another_family_can_be_read() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (x, y) = (fixture.repo("x").await, fixture.repo("y").await);
    let tip = work.commit("1");
    fixture.push(&x, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let answer = fixture.fetch_v2(&y, &[tip]).await;
    assert!(String::from_utf8_lossy(&answer).contains("not our ref"));
}

#[tokio::test]
async fn every_identifier_has_its_own_directory() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let long = "ä".repeat(Identifier::MAX_BYTES / 2);
    let names = ["repo", "Repo", "日本 語 🦀", "...", "-rf", "a:b", "x.git", "CON", long.as_str()];
    let owner = fixture.repo("first").await.owner;
    let repos = names.map(|text| RepoId::new(owner, text.parse().unwrap()));
    for (n, repo) in repos.iter().enumerate() {
        fixture.create(repo).await;
        let tip = work.commit(&n.to_string());
        fixture.push(repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
        assert_eq!(fixture.store.refs(repo).await.unwrap()[&name("refs/heads/main")], tip);
    }
    let mut tips = BTreeSet::new();
    for repo in &repos {
        tips.extend(fixture.store.refs(repo).await.unwrap().into_values());
    }
    assert_eq!(tips.len(), repos.len());
    let found = fixture.store.repositories().await.unwrap();
    assert!(repos.iter().all(|repo| found.contains(repo)) && found.len() == repos.len() + 1);
    for path in files_below(&fixture.root()) {
        assert!(
            path.strip_prefix(fixture.root()).unwrap().to_str().unwrap().is_ascii(),
            "{path:?}"
        );
    }
}

#[tokio::test]
async fn hundreds_of_empty_views_are_made_without_a_process() {
    const VIEWS: u32 = 300;
    let fixture = Fixture::new().await;
    let owner = fixture.repo("first").await.owner;
    let started = Instant::now();
    for n in 0..VIEWS {
        fixture.create(&RepoId::new(owner, n.to_string().parse().unwrap())).await;
    }
    println!("an empty view in a family of its own takes {:?}", started.elapsed() / VIEWS);
    assert_eq!(fixture.store.repositories().await.unwrap().len(), VIEWS as usize + 1);
}

#[tokio::test]
async fn a_retired_view_is_not_served_and_is_removed_after_the_retention_time() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture.push(&repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    guard.retire_view(&repo.owner, now()).await.unwrap();
    assert!(!fixture.store.has_view(&repo).await.unwrap());
    let served = fixture
        .store
        .advertise(&repo, (Service::UploadPack, Protocol::V0), Claimant::default())
        .await;
    assert!(matches!(served.unwrap_err(), GitError::NoView));
    let families = fixture.store.identifiers().await.unwrap();
    assert_eq!(families, [repo.identifier.clone()].into());
    drop(guard);
    let collect = async |now| {
        fixture.store.collect(&repo.identifier, &BTreeSet::new(), now).await.unwrap();
        fixture.store.lock(&repo.identifier).await.unwrap()
    };
    let guard = collect(now()).await;
    assert_eq!(guard.retired_owners().await.unwrap(), [repo.owner].into());
    drop(guard);

    let later = Timestamp::from_secs(now().as_secs() + RETIRED_REFS_RETENTION.as_secs() + 1);
    let mut guard = collect(later).await;
    assert!(guard.retired_owners().await.unwrap().is_empty());
    guard.remove_if_deserted().await.unwrap();
    assert!(files_below(&fixture.root().join("families")).is_empty());
    guard.create_view(&repo.owner).await.unwrap();
    assert!(guard.refs(&repo.owner).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_destroyed_view_leaves_no_files_and_does_not_affect_other_views() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    let tip = work.commit("1");
    for repo in [&alice, &bob] {
        fixture.push(repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    }
    fixture.view(&alice).await;
    let mut guard = fixture.store.lock(&alice.identifier).await.unwrap();
    guard.retire_view(&alice.owner, now()).await.unwrap();
    guard.destroy_view(&alice.owner).await.unwrap();
    let hers = files_below(&fixture.root()).into_iter();
    let mut hers = hers.filter(|file| file.to_str().unwrap().contains(&alice.owner.to_hex()));
    assert_eq!(hers.next(), None);
    assert!(guard.retired_refs().await.unwrap().is_empty());
    git(&fixture.view(&bob).await, &["fsck", "--full"], b"").unwrap();
    guard.destroy_view(&bob.owner).await.unwrap();
    drop(guard);
    assert!(files_below(&fixture.root().join("families")).is_empty());
    fixture.create(&bob).await;
    assert!(fixture.store.refs(&bob).await.unwrap().is_empty());
}

/// Returns whether a directory was ever seen with fewer files than at first, until `is_gone` is set.
fn is_removed_in_parts(dir: &Path, is_gone: &AtomicBool) -> bool {
    let all = files_below(dir).len();
    while !is_gone.load(Ordering::SeqCst) {
        let seen = files_below(dir).len();
        // A listing during the rename sees fewer files too; then the directory no longer exists.
        if seen < all && dir.is_dir() {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn a_family_is_removed_atomically() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    let tip = work.commit("1");
    for repo in [&alice, &bob] {
        fixture.push(repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    }
    let family = fixture.family(&alice.identifier);
    let mut guard = fixture.store.lock(&alice.identifier).await.unwrap();
    guard.destroy_view(&alice.owner).await.unwrap();
    assert!(matches!(fixture.store.refs(&alice).await.unwrap_err(), GitError::NoView));
    assert!(family.join("objects").is_dir(), "bob's view needs it");
    for n in 0..5_000 {
        std::fs::write(family.join(format!("objects/{n}")), "").unwrap();
    }
    let is_gone = Arc::new(AtomicBool::new(false));
    let (watched, dir) = (is_gone.clone(), family.clone());
    let watcher = std::thread::spawn(move || is_removed_in_parts(&dir, &watched));
    guard.destroy_view(&bob.owner).await.unwrap();
    is_gone.store(true, Ordering::SeqCst);
    assert!(!watcher.join().unwrap());
    assert_eq!(fixture.store.family_row(&bob.identifier).await.unwrap(), FamilyRow::default());
    for dir in ["families", "incoming", "views"] {
        assert!(files_below(&fixture.root().join(dir)).is_empty(), "{dir}");
    }
}

#[tokio::test]
async fn a_family_without_a_view_is_listed_and_removed_once_no_upload_is_open() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let name: Identifier = "x".parse().unwrap();
    let tip = work.commit("1");
    let incoming = fixture.store.incoming_for(&name).await.unwrap();
    let mut unpacking = incoming.unpack(MAX_PACK_BYTES, MAX_PACK_BYTES).await.unwrap();
    unpacking.feed(&work.pack(&[tip])).await.unwrap();
    unpacking.finish().await.unwrap();
    fixture.store.lock(&name).await.unwrap().remove_if_deserted().await.unwrap();
    let empty = fixture.store.incoming_for(&name).await.unwrap();
    fixture.store.take_in(&name, empty, &BTreeSet::from([tip])).await.unwrap();
    let got = fixture.store.take_in(&name, incoming, &BTreeSet::from([tip])).await.unwrap();
    assert_eq!(got, BTreeSet::from([tip]), "the family was kept for the open upload");
    assert_eq!(fixture.store.identifiers().await.unwrap(), [name.clone()].into());
    fixture.store.lock(&name).await.unwrap().remove_if_deserted().await.unwrap();
    assert!(files_below(&fixture.root().join("families")).is_empty());
}

#[tokio::test]
async fn a_proof_that_relied_on_a_removed_family_is_checked_again() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let base = work.commit("base");
    fixture.push(&repo, &work, &[("refs/heads/main", Some(base))]).await.unwrap();
    let tip = work.commit("tip");
    let mut incoming =
        fixture.receive(&repo, &work.pack_only(&work.objects_of_last_commit())).await.unwrap();
    let tips = [tip].into();
    assert!(incoming.check(&tips).await.unwrap().is_complete());
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    guard.destroy_view(&repo.owner).await.unwrap();
    guard.create_view(&repo.owner).await.unwrap();
    guard.promote(incoming).await.unwrap();
    assert!(
        !guard.check(&tips).await.unwrap().is_complete(),
        "its parent was removed with the family"
    );
}

#[tokio::test]
async fn an_empty_view_leaves_no_files_when_it_expires() {
    let fixture = Fixture::new().await;
    let repo = fixture.repo("x").await;
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    guard.retire_view(&repo.owner, now()).await.unwrap();
    guard.retire_view(&repo.owner, now()).await.unwrap();
    assert!(files_below(&fixture.root().join("families")).is_empty());
}

#[tokio::test]
async fn a_directory_is_used_by_one_server_at_a_time() {
    let fixture = Fixture::new().await;
    let second =
        open(&fixture.root(), installed_git(), StagingLimits::default(), &fixture.database).await;
    assert!(matches!(second.unwrap_err(), GitError::InUse(_)));
}

#[tokio::test]
async fn a_directory_of_another_layout_is_refused() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    std::fs::write(root.join("version"), "grasp repositories 99\n").unwrap();
    drop(fixture.store);
    // A process that another test forks holds the lock until it executes its command.
    for _ in 0..1_000 {
        let again = open(&root, installed_git(), StagingLimits::default(), &fixture.database).await;
        match again.unwrap_err() {
            GitError::InUse(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            error => return assert!(matches!(error, GitError::Layout { .. }), "{error}"),
        }
    }
    panic!("the directory stays in use");
}

#[tokio::test]
async fn garbage_collection_by_an_operator_removes_nothing_from_a_view() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture.push(&repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let view = fixture.view(&repo).await;
    for dir in [fixture.family(&repo.identifier), view.clone()] {
        _ = git(&dir, &["gc", "-q", "--prune=now"], b"");
        _ = git(&dir, &["repack", "-a", "-d", "-q"], b"");
    }
    git(&view, &["fsck", "--full"], b"").unwrap();
    assert_eq!(fixture.store.refs(&repo).await.unwrap()[&name("refs/heads/main")], tip);
}

#[tokio::test]
async fn compacting_many_packs_loses_no_object() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let mut first = None;
    for n in 0..40 {
        let tip = work.commit(&n.to_string());
        let incoming =
            fixture.receive(&repo, &work.pack_only(&work.objects_of_last_commit())).await;
        let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
        guard.promote(incoming.unwrap()).await.unwrap();
        first = first.or(Some(tip));
    }
    let tip = work.rev("HEAD");
    let packs = || {
        files_below(&fixture.root())
            .into_iter()
            .filter(|f| f.extension().is_some_and(|e| e == "pack"))
            .count()
    };
    assert_eq!(packs(), 40);
    let mut guard = fixture.store.lock(&repo.identifier).await.unwrap();
    // No ref names any of them, and still none may be removed.
    assert!(guard.compact().await.unwrap());
    assert!(packs() < 10, "{}", packs());
    assert!(!guard.compact().await.unwrap(), "there is nothing left to do");
    let found = guard.check(&[tip, first.unwrap()].into()).await.unwrap();
    assert!(found.is_complete(), "{found:?}");
}
