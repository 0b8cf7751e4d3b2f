//! Repositories: names, isolation, advertisements, creation and removal.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::database::RepoRow;
use grasp_purgatory::git::{
    GitError, Keep, Protocol, RETIRED_REFS_RETENTION, RefTarget, Service, StagingLimits,
};
use nostr::types::Timestamp;

use crate::git_fixture::{
    Fixture, MAX_PACK_BYTES, Work, files_below, git, installed_git, name, new_repo, noise, now,
    open, pack_bytes,
};

#[tokio::test]
async fn an_empty_view_advertises_its_capabilities() {
    let fixture = Fixture::new().await;
    let repo = fixture.repo("x").await;
    let advertised = async |service| {
        let (service, claimant) = ((service, Protocol::V0), Claimant::default());
        let mut list = fixture
            .store
            .advertisement(&repo, service, claimant)
            .await
            .unwrap();
        let mut text = Vec::new();
        while let Some(piece) = list.next_piece().await.unwrap() {
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).unwrap()
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
    let v2 = fixture
        .advertised(&repo, Service::UploadPack, Protocol::V2)
        .await;
    assert!(
        v2.lines()
            .any(|line| line.contains("fetch=") && line.contains("filter")),
        "{v2}"
    );
    assert!(
        v2.contains("version 2") && v2.contains("fetch=shallow"),
        "{v2}"
    );
}

#[tokio::test]
async fn the_advertisement_has_head_and_no_internal_refs() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    fixture
        .push(&repo, &work, &[("refs/heads/dev", Some(one))])
        .await
        .unwrap();
    fixture
        .push(&repo, &work, &[("refs/heads/dev", Some(two))])
        .await
        .unwrap();
    for service in [Service::UploadPack, Service::ReceivePack] {
        let text = fixture.advertised(&repo, service, Protocol::V0).await;
        assert!(text.contains(&format!("{two} refs/heads/dev")), "{text}");
        assert!(
            !text.contains("refs/grasp") && !text.contains("refs/proven"),
            "{text}"
        );
    }
    let text = fixture
        .advertised(&repo, Service::UploadPack, Protocol::V0)
        .await;
    assert!(text.contains("symref=HEAD:refs/heads/dev"), "{text}");
}

#[tokio::test]
async fn two_owners_of_one_name_share_no_objects() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    work.write("noise", &noise(100_000));
    let tip = work.commit("1");
    fixture
        .push(&alice, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let target = RefTarget {
        refs: fixture.store.refs(&alice).await.unwrap(),
        ..Default::default()
    };
    let mut guard = fixture.store.lock(&bob).await.unwrap();
    let error = fixture.apply(&mut guard, &target).await.unwrap_err();
    assert!(
        matches!(error, GitError::Incomplete { count: 1 }),
        "{error}"
    );
    drop(guard);
    assert_eq!(fixture.store.repository(&bob).bytes().await.unwrap(), 0);
    let before = pack_bytes(&fixture.root());
    fixture
        .push(&bob, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    assert!(
        pack_bytes(&fixture.root()) > before + 100_000,
        "each has a copy of its own"
    );
    assert_ne!(fixture.repo_dir(&alice), fixture.repo_dir(&bob));
    std::fs::remove_dir_all(fixture.repo_dir(&alice)).unwrap();
    let view = fixture.view(&bob).await;
    git(
        fixture.dir.path(),
        &["clone", "-q", view.to_str().unwrap(), "bob"],
        b"",
    )
    .unwrap();
    git(&fixture.dir.path().join("bob"), &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn a_lock_of_one_repository_does_not_delay_other_owners_of_its_name() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    let tip = work.commit("1");
    let locked = fixture.store.lock(&alice).await.unwrap();
    let (client, timeout) = (Claimant::default(), Duration::from_secs(60));
    let pushing = fixture
        .store
        .push_turn(&alice, &client, timeout)
        .await
        .unwrap();
    fixture
        .push(&bob, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    drop(
        fixture
            .store
            .push_turn(&bob, &client, timeout)
            .await
            .unwrap(),
    );
    let waiting = fixture
        .store
        .push_turn(&alice, &client, Duration::from_millis(20));
    assert!(waiting.await.is_err(), "another push to it waits");
    drop(
        fixture
            .store
            .upload_turn(&alice, &client, timeout)
            .await
            .unwrap(),
    );
    let waiting = tokio::time::timeout(Duration::from_millis(20), fixture.store.lock(&alice));
    assert!(waiting.await.is_err(), "another one of its own waits");
    drop((locked, pushing));
}

#[tokio::test]
async fn maintainers_push_first_and_uploads_delay_no_push() {
    let fixture = Fixture::new().await;
    let (repo, timeout) = (fixture.repo("x").await, Duration::from_secs(60));
    let at = |net: u8| Claimant::at(ClientNetwork::of([198, 51, net, 1].into()));
    let uploading = fixture
        .store
        .upload_turn(&repo, &at(1), timeout)
        .await
        .unwrap();
    let pushing = fixture
        .store
        .push_turn(&repo, &at(1), timeout)
        .await
        .unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let claims = [at(1), at(1), at(2), at(3).with_authority()];
    for (number, claimant) in claims.into_iter().enumerate() {
        let (store, repo, sender) = (fixture.store.clone(), repo.clone(), sender.clone());
        tokio::spawn(async move {
            let turn = store.push_turn(&repo, &claimant, timeout).await.unwrap();
            sender.send(number).unwrap();
            drop(turn);
        });
        tokio::task::yield_now().await;
    }
    drop(pushing);
    let mut found = Vec::new();
    for _ in claims {
        found.push(order.recv().await.unwrap());
    }
    assert_eq!(found, [3, 0, 2, 1]);
    drop(uploading);
}

#[tokio::test]
async fn a_push_is_offered_the_tips_that_are_here_and_none_of_other_repositories() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    let tip = work.commit("1");
    // The hunt has brought it, and no ref shows it yet.
    let incoming = fixture.receive(&alice, &work.pack(&[tip])).await.unwrap();
    fixture
        .store
        .repository(&alice)
        .take_in(incoming, &[tip].into())
        .await
        .unwrap();
    let text = fixture
        .advertised(&alice, Service::ReceivePack, Protocol::V0)
        .await;
    assert!(text.contains(&format!("{tip} .have")), "{text}");
    let text = fixture
        .advertised(&bob, Service::ReceivePack, Protocol::V0)
        .await;
    assert!(!text.contains(".have"), "{text}");
}

#[tokio::test]
async fn no_object_of_another_repository_can_be_read() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (repo, same_name) = (fixture.repo("x").await, fixture.repo("x").await);
    let same_owner = RepoId::new(repo.owner, "y".parse().unwrap());
    fixture.create(&same_owner).await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    work.git(&["checkout", "-q", "--orphan", "other"]);
    let own = work.commit("own");
    for other in [&same_name, &same_owner] {
        for is_empty in [true, false] {
            if !is_empty {
                fixture
                    .push(other, &work, &[("refs/heads/main", Some(own))])
                    .await
                    .unwrap();
            }
            let answer = fixture.fetch_v2(other, &[tip]).await;
            assert!(String::from_utf8_lossy(&answer).contains("not our ref"));
        }
    }
}

#[tokio::test]
async fn every_repository_has_its_own_directory() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let long = "ä".repeat(Identifier::MAX_BYTES / 2);
    let names = [
        "repo",
        "Repo",
        "日本 語 🦀",
        "...",
        "-rf",
        "a:b",
        "x.git",
        "CON",
        long.as_str(),
    ];
    let owner = fixture.repo("first").await.owner;
    let repos = names.map(|text| RepoId::new(owner, text.parse().unwrap()));
    for (n, repo) in repos.iter().enumerate() {
        fixture.create(repo).await;
        let tip = work.commit(&n.to_string());
        fixture
            .push(repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
        assert_eq!(
            fixture.store.refs(repo).await.unwrap()[&name("refs/heads/main")],
            tip
        );
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
            path.strip_prefix(fixture.root())
                .unwrap()
                .to_str()
                .unwrap()
                .is_ascii(),
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
        fixture
            .create(&RepoId::new(owner, n.to_string().parse().unwrap()))
            .await;
    }
    println!("an empty repository takes {:?}", started.elapsed() / VIEWS);
    assert_eq!(
        fixture.store.repositories().await.unwrap().len(),
        VIEWS as usize + 1
    );
}

#[tokio::test]
async fn a_retired_view_is_not_served_and_is_removed_after_the_retention_time() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.retire(now()).await.unwrap();
    assert!(!fixture.store.has_view(&repo).await.unwrap());
    let served = fixture
        .store
        .advertise(
            &repo,
            (Service::UploadPack, Protocol::V0),
            Claimant::default(),
        )
        .await;
    assert!(matches!(served.unwrap_err(), GitError::NoView));
    assert_eq!(fixture.store.all().await.unwrap(), [repo.clone()].into());
    drop(guard);
    let collect = async |now| {
        fixture
            .store
            .repository(&repo)
            .collect(&Keep::at(now, BTreeSet::new()))
            .await
            .unwrap();
        fixture.store.lock(&repo).await.unwrap()
    };
    let guard = collect(now()).await;
    let retired = guard.retired_refs().await.unwrap();
    assert_eq!(
        retired
            .iter()
            .map(|retired| retired.tip)
            .collect::<Vec<_>>(),
        [tip]
    );
    drop(guard);
    fixture
        .store
        .lock(&repo)
        .await
        .unwrap()
        .remove_if_deserted()
        .await
        .unwrap();
    assert_eq!(fixture.store.all().await.unwrap(), [repo.clone()].into());

    let later = Timestamp::from_secs(now().as_secs() + RETIRED_REFS_RETENTION.as_secs() + 1);
    let mut guard = collect(later).await;
    assert!(guard.retired_refs().await.unwrap().is_empty());
    guard.remove_if_deserted().await.unwrap();
    assert!(files_below(&fixture.root().join("repositories")).is_empty());
    guard.create_view().await.unwrap();
    assert!(guard.refs().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_destroyed_repository_leaves_no_files_and_does_not_affect_others_of_its_name() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    let tip = work.commit("1");
    for repo in [&alice, &bob] {
        fixture
            .push(repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
    }
    let hers = [fixture.repo_dir(&alice), fixture.view(&alice).await];
    let mut guard = fixture.store.lock(&alice).await.unwrap();
    guard.retire(now()).await.unwrap();
    guard.destroy().await.unwrap();
    for path in hers {
        assert!(!path.exists(), "{path:?}");
    }
    assert!(guard.retired_refs().await.unwrap().is_empty());
    git(&fixture.view(&bob).await, &["fsck", "--full"], b"").unwrap();
    fixture
        .store
        .lock(&bob)
        .await
        .unwrap()
        .destroy()
        .await
        .unwrap();
    assert!(files_below(&fixture.root().join("repositories")).is_empty());
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
async fn a_repository_is_removed_atomically() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let dir = fixture.repo_dir(&repo);
    for n in 0..5_000 {
        std::fs::write(dir.join(format!("objects/{n}")), "").unwrap();
    }
    let is_gone = Arc::new(AtomicBool::new(false));
    let (watched, path) = (is_gone.clone(), dir.clone());
    let watcher = std::thread::spawn(move || is_removed_in_parts(&path, &watched));
    fixture
        .store
        .lock(&repo)
        .await
        .unwrap()
        .destroy()
        .await
        .unwrap();
    is_gone.store(true, Ordering::SeqCst);
    assert!(!watcher.join().unwrap());
    assert!(matches!(
        fixture.store.refs(&repo).await.unwrap_err(),
        GitError::NoView
    ));
    assert_eq!(fixture.store.row(&repo).await.unwrap(), RepoRow::default());
    for dir in ["repositories", "incoming", "views"] {
        assert!(files_below(&fixture.root().join(dir)).is_empty(), "{dir}");
    }
}

#[tokio::test]
async fn a_repository_without_a_view_is_listed_and_removed_once_no_upload_is_open() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = new_repo("x");
    let tip = work.commit("1");
    let incoming = fixture
        .store
        .repository(&repo)
        .incoming_for()
        .await
        .unwrap();
    let mut unpacking = incoming
        .unpack(MAX_PACK_BYTES, MAX_PACK_BYTES)
        .await
        .unwrap();
    unpacking.feed(&work.pack(&[tip])).await.unwrap();
    unpacking.finish().await.unwrap();
    fixture
        .store
        .lock(&repo)
        .await
        .unwrap()
        .remove_if_deserted()
        .await
        .unwrap();
    let empty = fixture
        .store
        .repository(&repo)
        .incoming_for()
        .await
        .unwrap();
    fixture
        .store
        .repository(&repo)
        .take_in(empty, &BTreeSet::from([tip]))
        .await
        .unwrap();
    let got = fixture
        .store
        .repository(&repo)
        .take_in(incoming, &BTreeSet::from([tip]))
        .await
        .unwrap();
    assert_eq!(
        got,
        BTreeSet::from([tip]),
        "it was kept for the open upload"
    );
    assert_eq!(fixture.store.all().await.unwrap(), [repo.clone()].into());
    fixture
        .store
        .lock(&repo)
        .await
        .unwrap()
        .remove_if_deserted()
        .await
        .unwrap();
    assert!(files_below(&fixture.root().join("repositories")).is_empty());
}

#[tokio::test]
async fn a_proof_that_relied_on_a_removed_repository_is_checked_again() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let base = work.commit("base");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(base))])
        .await
        .unwrap();
    let tip = work.commit("tip");
    let mut incoming = fixture
        .receive(&repo, &work.pack_only(&work.objects_of_last_commit()))
        .await
        .unwrap();
    let tips = [tip].into();
    assert!(incoming.check(&tips).await.unwrap().is_complete());
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.destroy().await.unwrap();
    guard.create_view().await.unwrap();
    guard.promote(incoming).await.unwrap();
    assert!(
        !guard.check(&tips).await.unwrap().is_complete(),
        "its parent was removed with the repository"
    );
}

#[tokio::test]
async fn an_empty_view_leaves_no_files_when_it_expires() {
    let fixture = Fixture::new().await;
    let repo = fixture.repo("x").await;
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.retire(now()).await.unwrap();
    guard.retire(now()).await.unwrap();
    assert!(files_below(&fixture.root().join("repositories")).is_empty());
}

#[tokio::test]
async fn a_directory_is_used_by_one_server_at_a_time() {
    let fixture = Fixture::new().await;
    let second = open(
        &fixture.root(),
        installed_git(),
        StagingLimits::default(),
        &fixture.database,
    )
    .await;
    assert!(matches!(second.unwrap_err(), GitError::InUse(_)));
}

#[tokio::test]
async fn a_directory_of_another_layout_is_refused() {
    let fixture = Fixture::new().await;
    let root = fixture.root();
    std::fs::write(root.join("version"), "grasp repositories 99\n").unwrap();
    drop(fixture.store);
    let again = open(
        &root,
        installed_git(),
        StagingLimits::default(),
        &fixture.database,
    )
    .await;
    let error = again.unwrap_err();
    assert!(matches!(error, GitError::Layout { .. }), "{error}");
}

#[tokio::test]
async fn garbage_collection_by_an_operator_removes_nothing_from_a_view() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let view = fixture.view(&repo).await;
    for dir in [fixture.repo_dir(&repo), view.clone()] {
        _ = git(&dir, &["gc", "-q", "--prune=now"], b"");
        _ = git(&dir, &["repack", "-a", "-d", "-q"], b"");
    }
    git(&view, &["fsck", "--full"], b"").unwrap();
    assert_eq!(
        fixture.store.refs(&repo).await.unwrap()[&name("refs/heads/main")],
        tip
    );
}

#[tokio::test]
async fn compacting_many_packs_loses_no_object() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let mut first = None;
    for n in 0..40 {
        let tip = work.commit(&n.to_string());
        let incoming = fixture
            .receive(&repo, &work.pack_only(&work.objects_of_last_commit()))
            .await;
        let mut guard = fixture.store.lock(&repo).await.unwrap();
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
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    // No ref names any of them, and still none may be removed.
    assert!(guard.compact().await.unwrap());
    assert!(packs() < 10, "{}", packs());
    assert!(
        !guard.compact().await.unwrap(),
        "there is nothing left to do"
    );
    let found = guard.check(&[tip, first.unwrap()].into()).await.unwrap();
    assert!(found.is_complete(), "{found:?}");
}
