//! Refs and HEAD of views after a state is applied. The database decides what was applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use grasp_core::push::PushCommand;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId};
use grasp_purgatory::database::{
    Commit, Committed, Conflict, Database, MaintainerChanges, Pack, ProposalChanges, RepoChange,
    ViewChange,
};
use grasp_purgatory::git::{
    GitError, Keep, Protocol, RETIRED_REFS_RETENTION, RefTarget, Service, WantedRefs,
};
use grasp_purgatory::{Phase, Record};
use nostr::event::{EventBuilder, EventId, FinalizeEvent, Kind};
use nostr::key::Keys;
use nostr::types::Timestamp;

use crate::git_fixture::{Fixture, MAX_PACK_BYTES, Work, files_below, git, name, new_repo, now};

fn target(refs: &[(&str, grasp_core::Oid)], head: Option<&str>) -> RefTarget {
    let refs = refs.iter().map(|(text, oid)| (name(text), *oid)).collect();
    RefTarget {
        refs,
        head: head.map(name),
        state: None,
    }
}

#[tokio::test]
async fn applying_makes_heads_and_tags_exactly_the_declared_ones() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    let moves = [
        ("refs/heads/old", Some(one)),
        ("refs/tags/gone", Some(one)),
        ("refs/heads/main", Some(two)),
    ];
    fixture.push(&repo, &work, &moves).await.unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let pull_request = RefName::new(&format!("refs/nostr/{}", "ab".repeat(32))).unwrap();
    let change = grasp_core::push::PushCommand {
        old: None,
        new: Some(one),
        name: pull_request.clone(),
    };
    guard.move_refs(&[change], now()).await.unwrap();
    let wanted = target(
        &[("refs/heads/main", one), ("refs/heads/new", two)],
        Some("refs/heads/new"),
    );
    fixture.apply(&mut guard, &wanted).await.unwrap();
    let expected = BTreeMap::from([
        (name("refs/heads/main"), one),
        (name("refs/heads/new"), two),
        (pull_request, one),
    ]);
    assert_eq!(guard.refs().await.unwrap(), expected);
    assert_eq!(fixture.store.refs(&repo).await.unwrap(), expected);
    let head = git(&fixture.view(&repo).await, &["symbolic-ref", "HEAD"], b"").unwrap();
    assert_eq!(head, "refs/heads/new");
}

#[tokio::test]
async fn a_state_whose_objects_are_not_here_changes_nothing() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let one = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(one))])
        .await
        .unwrap();
    let before = fixture.store.refs(&repo).await.unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    for text in ["ab".repeat(20), "ab".repeat(32)] {
        let absent = text.parse().unwrap();
        let wanted = target(&[("refs/heads/main", absent)], None);
        let error = fixture.apply(&mut guard, &wanted).await.unwrap_err();
        assert!(!error.is_ours(), "{error}");
    }
    assert_eq!(fixture.store.refs(&repo).await.unwrap(), before);
}

#[tokio::test]
async fn an_empty_state_deletes_all_refs_and_the_old_tips_can_be_restored() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    fixture
        .apply(&mut guard, &RefTarget::default())
        .await
        .unwrap();
    assert!(guard.refs().await.unwrap().is_empty());
    let head = fixture.store.head(&repo).await.unwrap();
    assert_eq!(
        head,
        name("refs/heads/main"),
        "an empty repository keeps its HEAD"
    );
    let retired = guard.retired_refs().await.unwrap();
    let retired: Vec<_> = retired.into_iter().map(|it| (it.tip, it.name)).collect();
    assert_eq!(retired, [(tip, name("refs/heads/main"))]);
    let seen = async || {
        let view = fixture.view(&repo).await;
        git(&view, &["for-each-ref", "--format=%(refname)"], b"").unwrap()
    };
    assert_eq!(seen().await, "", "git does not see what is retired");
    let before = target(&[("refs/heads/main", tip)], None);
    fixture.apply(&mut guard, &before).await.unwrap();
    assert_eq!(seen().await, "refs/heads/main");
    drop(guard);
    let later = Timestamp::from_secs(now().as_secs() + RETIRED_REFS_RETENTION.as_secs() + 1);
    fixture
        .store
        .repository(&repo)
        .collect(&Keep::at(later, BTreeSet::new()))
        .await
        .unwrap();
    assert!(
        fixture
            .store
            .repository(&repo)
            .retired_refs()
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(fixture.store.refs(&repo).await.unwrap(), before.refs);
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn thousands_of_refs_are_applied_at_once() {
    const BRANCHES: usize = 5_000;
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let mut stream = String::new();
    for n in 0..BRANCHES {
        stream.push_str(&format!(
            "commit refs/heads/b{n}\ncommitter A <a@example> {} +0000\ndata 1\nx\nM 644 inline f\ndata {}\n{n}\n\n",
            1_600_000_000 + n, n.to_string().len()
        ));
    }
    git(
        work.dir.path(),
        &["fast-import", "--quiet"],
        stream.as_bytes(),
    )
    .unwrap();
    let listed = work.git(&["for-each-ref", "--format=%(refname) %(objectname)"]);
    let refs: BTreeMap<_, _> = listed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(text, oid)| (name(text), oid.parse().unwrap()))
        .collect();
    assert_eq!(refs.len(), BRANCHES);
    let tips: Vec<_> = refs.values().copied().collect();
    let incoming = fixture.receive(&repo, &work.pack(&tips)).await.unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.promote(incoming).await.unwrap();
    let wanted = RefTarget {
        refs,
        ..RefTarget::default()
    };
    let started = Instant::now();
    fixture.apply(&mut guard, &wanted).await.unwrap();
    println!("{BRANCHES} new refs applied in {:?}", started.elapsed());
    assert_eq!(guard.refs().await.unwrap(), wanted.refs);
    assert_eq!(
        fixture.store.head(&repo).await.unwrap(),
        name("refs/heads/b0")
    );
    let mut fewer = wanted.clone();
    fewer.refs.pop_last();
    let started = Instant::now();
    fixture.apply(&mut guard, &fewer).await.unwrap();
    println!("one of {BRANCHES} refs deleted in {:?}", started.elapsed());
    let seen = git(
        &fixture.view(&repo).await,
        &["for-each-ref", "--format=x", "refs/heads"],
        b"",
    )
    .unwrap();
    assert_eq!(seen.lines().count(), BRANCHES - 1);
}

/// A view with one branch, and two more commits whose objects are here.
async fn view_and_two_commits(fixture: &Fixture) -> (RepoId, [Oid; 3]) {
    let (repo, work) = (fixture.repo("x").await, Work::new());
    let tips = ["1", "2", "3"].map(|content| work.commit(content));
    let incoming = fixture.receive(&repo, &work.pack(&tips)).await.unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.promote(incoming).await.unwrap();
    let first = target(&[("refs/heads/main", tips[0])], None);
    fixture.apply(&mut guard, &first).await.unwrap();
    (repo, tips)
}

/// Returns the change of a view to one branch.
async fn planned(fixture: &Fixture, repo: &RepoId, tip: Oid) -> RepoChange {
    let mut guard = fixture.store.lock(repo).await.unwrap();
    let branch = target(&[("refs/heads/main", tip)], None);
    let wanted = WantedRefs {
        target: Some(branch),
        ..WantedRefs::default()
    };
    guard.plan(&wanted, now()).await.unwrap().expect("a change")
}

#[tokio::test]
async fn a_commit_that_lost_the_race_changes_nothing() {
    let fixture = Fixture::new().await;
    let (repo, [_, two, three]) = view_and_two_commits(&fixture).await;
    let [won, mut lost] = [
        planned(&fixture, &repo, two).await,
        planned(&fixture, &repo, three).await,
    ];
    let won = Commit {
        repos: vec![won],
        ..Commit::default()
    };
    assert!(matches!(
        fixture.database.commit(won).await.unwrap(),
        Committed::Done { .. }
    ));
    let before = fixture.database.content().clone();
    lost.add_packs.push(Pack {
        name: "pack-x".into(),
        bytes: 1,
    });
    // Another repository of the name, an event and a record in the same commit.
    let mut other = RepoChange::new(Endpoint::Repository, new_repo("x"));
    other.view = Some(ViewChange {
        from: None,
        to: Some(Arc::default()),
        state: None,
        maintainers: BTreeSet::new(),
        shows: None,
        retired: Vec::new(),
        proposals: ProposalChanges::default(),
        maintained: MaintainerChanges::default(),
    });
    let event = Arc::new(
        EventBuilder::new(Kind::from_u16(1), "x")
            .finalize(&Keys::generate())
            .unwrap(),
    );
    let id = event.id;
    let record = Record::Held {
        event: event.clone(),
        phase: Phase::Waiting,
        since: now(),
        until: now(),
    };
    let commit = Commit {
        save: vec![event],
        repos: vec![other, lost],
        records: vec![record],
        ..Commit::default()
    };
    let committed = fixture.database.commit(commit.clone()).await.unwrap();
    let moved = Conflict::Moved(Endpoint::Repository, repo.clone());
    assert_eq!(committed, Committed::Conflict(moved));
    assert!(*fixture.database.content() == before);
    assert_eq!(
        fixture.store.refs(&repo).await.unwrap()[&name("refs/heads/main")],
        two
    );

    // Planned again, all of it happens, unless the store refuses the event.
    let again = planned(&fixture, &repo, three).await;
    let other = commit.repos[0].clone();
    let commit = Commit {
        repos: vec![other, again],
        ..commit
    };
    fixture.database.refuse(id);
    let before = fixture.database.content().clone();
    let committed = fixture.database.commit(commit.clone()).await.unwrap();
    assert_eq!(
        committed,
        Committed::Conflict(Conflict::Refused([id].into()))
    );
    assert!(*fixture.database.content() == before);
    fixture.database.content().refused.clear();
    assert!(matches!(
        fixture.database.commit(commit).await.unwrap(),
        Committed::Done { .. }
    ));
    assert_eq!(
        fixture.store.refs(&repo).await.unwrap()[&name("refs/heads/main")],
        three
    );
    assert!(fixture.database.content().events.contains(&id));
    assert_eq!(fixture.database.records().await.unwrap().len(), 1);
    assert_eq!(fixture.store.repositories().await.unwrap().len(), 2);
}

#[tokio::test]
async fn refs_keep_the_values_of_a_concurrent_commit() {
    let fixture = Fixture::new().await;
    let (repo, [one, two, three]) = view_and_two_commits(&fixture).await;
    let earlier = Commit {
        repos: vec![planned(&fixture, &repo, two).await],
        ..Commit::default()
    };
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let move_to_three = [PushCommand {
        old: Some(one),
        new: Some(three),
        name: name("refs/heads/main"),
    }];
    fixture.database.put_before_next(earlier);
    let error = guard.move_refs(&move_to_three, now()).await.unwrap_err();
    assert!(matches!(error, GitError::Outdated), "{error:?}");
    assert!(matches!(error, GitError::Outdated), "{error}");
    assert_eq!(guard.refs().await.unwrap()[&name("refs/heads/main")], two);
    // The second attempt reads that the ref has moved.
    let error = guard.move_refs(&move_to_three, now()).await.unwrap_err();
    assert!(matches!(error, GitError::Moved(_)), "{error:?}");
    fixture.database.fail_once();
    let wanted = target(&[("refs/heads/main", three)], None);
    let error = fixture.apply(&mut guard, &wanted).await.unwrap_err();
    assert!(matches!(error, GitError::Database(_)), "{error:?}");
    assert_eq!(guard.refs().await.unwrap()[&name("refs/heads/main")], two);
    fixture.apply(&mut guard, &wanted).await.unwrap();
    assert_eq!(guard.refs().await.unwrap(), wanted.refs);
}

#[tokio::test]
async fn git_never_serves_an_earlier_generation_after_a_commit() {
    let fixture = Fixture::new().await;
    let (repo, tips) = view_and_two_commits(&fixture).await;
    let mut views = BTreeSet::new();
    for (n, tip) in tips.iter().cycle().take(12).enumerate() {
        let branch = format!("refs/heads/{n}");
        let wanted = target(&[(&branch, *tip)], Some(&branch));
        let mut guard = fixture.store.lock(&repo).await.unwrap();
        fixture.apply(&mut guard, &wanted).await.unwrap();
        drop(guard);
        // Several at once, all of which find no directory of this generation.
        let ask = || fixture.advertised(&repo, Service::UploadPack, Protocol::V1);
        let (a, b, c) = tokio::join!(ask(), ask(), ask());
        for text in [a, b, c] {
            assert!(text.contains(&format!("{tip} {branch}")), "{text}");
            assert_eq!(
                text.matches("refs/heads/").count(),
                2,
                "one branch and HEAD: {text}"
            );
        }
        views.insert(fixture.view(&repo).await);
    }
    assert_eq!(views.len(), 12);
    // A process may be reading any of them; those that are too old for that are removed.
    let long_ago = SystemTime::now() - Duration::from_secs(60 * 60);
    for view in views.iter().take(5) {
        File::open(view).unwrap().set_modified(long_ago).unwrap();
    }
    let wanted = target(&[("refs/heads/main", tips[0])], None);
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    fixture.apply(&mut guard, &wanted).await.unwrap();
    fixture.view(&repo).await;
    for (n, view) in views.iter().enumerate() {
        assert_eq!(view.is_dir(), n >= 5, "{view:?}");
    }
    drop(guard);
    let fixture = fixture.restart().await;
    assert!(files_below(&fixture.root().join("views")).is_empty());
    assert_eq!(fixture.store.refs(&repo).await.unwrap(), wanted.refs);
    let text = fixture
        .advertised(&repo, Service::UploadPack, Protocol::V0)
        .await;
    assert!(
        text.contains(&format!("{} refs/heads/main", tips[0])),
        "{text}"
    );
}

/// The files of all packs of repositories.
fn packs(fixture: &Fixture) -> BTreeSet<PathBuf> {
    let files = files_below(&fixture.root().join("repositories")).into_iter();
    files
        .filter(|file| file.parent().is_some_and(|dir| dir.ends_with("pack")))
        .collect()
}

#[tokio::test]
async fn a_commit_keeps_the_lock_to_its_end_although_the_pusher_is_gone() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    let incoming = fixture.receive(&repo, &work.pack(&[tip])).await.unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let (begun, proceed) = fixture.database.hold_next();
    let pushing = tokio::spawn(async move { guard.promote(incoming).await });
    begun.await.unwrap();
    pushing.abort();
    assert!(pushing.await.unwrap_err().is_cancelled());
    // Whoever locked it now would remove the pack as one that no commit names.
    tokio::time::pause();
    let early = tokio::time::timeout(Duration::from_secs(1), fixture.store.lock(&repo)).await;
    assert!(early.is_err());
    tokio::time::resume();
    proceed.send(()).unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let found = guard.check(&BTreeSet::from([tip])).await.unwrap();
    assert!(found.is_complete(), "{found:?}");
}

#[tokio::test]
async fn packs_that_no_commit_names_are_removed_at_the_next_start_and_proofs_with_them() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let one = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(one))])
        .await
        .unwrap();
    let named = packs(&fixture);
    let proofs = fixture.repo_dir(&repo).join("packed-refs");
    assert!(proofs.exists());
    // The server crashes after the pack was moved into the repository, before the commit.
    let two = work.commit("2");
    fixture.database.fail_once();
    let error = fixture
        .push(&repo, &work, &[("refs/heads/main", Some(two))])
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::Database(_)), "{error:?}");
    assert!(packs(&fixture).len() > named.len());
    let fixture = fixture.restart().await;
    assert_eq!(packs(&fixture), named);
    assert!(!proofs.exists());
    assert_eq!(
        fixture.store.refs(&repo).await.unwrap()[&name("refs/heads/main")],
        one
    );
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    assert!(
        !guard
            .check(&BTreeSet::from([two]))
            .await
            .unwrap()
            .is_complete()
    );
    assert!(
        guard
            .check(&BTreeSet::from([one]))
            .await
            .unwrap()
            .is_complete()
    );
    drop(guard);
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(two))])
        .await
        .unwrap();
    let fixture = fixture.restart().await;
    assert!(proofs.exists(), "nothing was removed");
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn no_ref_is_set_to_objects_that_the_next_start_would_remove() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    let incoming = fixture.receive(&repo, &work.pack(&[tip])).await.unwrap();
    fixture.database.fail_once();
    let tips = BTreeSet::from([tip]);
    fixture
        .store
        .repository(&repo)
        .take_in(incoming, &tips)
        .await
        .unwrap_err();
    // The objects are on disk, and no commit names them.
    let lacking = fixture
        .store
        .repository(&repo)
        .lacking(&tips)
        .await
        .unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let wanted = target(&[("refs/heads/main", tip)], None);
    let applied = fixture.apply(&mut guard, &wanted).await;
    assert_eq!(applied.is_ok(), lacking.is_empty());
    drop(guard);
    let fixture = fixture.restart().await;
    let refs = fixture.store.refs(&repo).await.unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let found = guard.check(&refs.into_values().collect()).await.unwrap();
    assert!(found.is_complete(), "{found:?}");
    drop(guard);
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let fixture = fixture.restart().await;
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn a_repository_without_rows_is_removed_at_start() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (repo, kept) = (fixture.repo("empty").await, fixture.repo("kept").await);
    let tip = work.commit("1");
    fixture
        .push(&kept, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let left = new_repo("kept");
    drop(
        fixture
            .store
            .repository(&left)
            .incoming_for()
            .await
            .unwrap(),
    );
    let dir = fixture.repo_dir(&left);
    assert!(dir.is_dir());
    let fixture = fixture.restart().await;
    assert!(!dir.exists());
    assert!(fixture.repo_dir(&kept).is_dir());
    assert!(
        fixture.store.refs(&repo).await.unwrap().is_empty(),
        "a view needs no directory"
    );
    for repo in [&repo, &kept] {
        fixture
            .push(repo, &work, &[("refs/heads/new", Some(tip))])
            .await
            .unwrap();
        git(&fixture.view(repo).await, &["fsck", "--full"], b"").unwrap();
    }
}

#[tokio::test]
async fn a_repository_that_was_removed_and_comes_back_has_a_new_generation() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let generation = async || fixture.store.view(&repo).await.unwrap().generation;
    let mut seen = vec![generation().await];
    for is_destroyed in [false, true] {
        let view = fixture.view(&repo).await;
        assert!(view.is_dir());
        let mut guard = fixture.store.lock(&repo).await.unwrap();
        match is_destroyed {
            true => guard.destroy().await.unwrap(),
            false => guard.retire(now()).await.unwrap(),
        }
        assert!(!view.exists());
        assert!(matches!(
            fixture.store.view(&repo).await.unwrap_err(),
            GitError::NoView
        ));
        let other = fixture.repo("x").await;
        seen.push(fixture.store.view(&other).await.unwrap().generation);
        guard.create_view().await.unwrap();
        drop(guard);
        seen.push(generation().await);
        let text = fixture
            .advertised(&repo, Service::UploadPack, Protocol::V0)
            .await;
        assert!(!text.contains(&tip.to_string()), "{text}");
        fixture
            .push(&repo, &work, &[("refs/heads/main", Some(tip))])
            .await
            .unwrap();
        seen.push(generation().await);
        // Creating a view that exists changes nothing.
        fixture.create(&repo).await;
        assert_eq!(generation().await, *seen.last().unwrap());
    }
    assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
}

/// Commits a planned change, if there is one, and returns whether there was.
async fn commit_planned(fixture: &Fixture, repo: &RepoId, wanted: &WantedRefs) -> bool {
    let planned = fixture
        .store
        .lock(repo)
        .await
        .unwrap()
        .plan(wanted, now())
        .await
        .unwrap();
    let is_change = planned.is_some();
    let commit = Commit {
        repos: planned.into_iter().collect(),
        ..Commit::default()
    };
    let committed = fixture.database.commit(commit).await.unwrap();
    assert!(matches!(committed, Committed::Done { .. }));
    is_change
}

#[tokio::test]
async fn maintainers_and_state_are_remembered_with_the_refs_until_others_are_set() {
    let fixture = Fixture::new().await;
    let (repo, [one, two, three]) = view_and_two_commits(&fixture).await;
    let state = EventId::from_byte_array([1; 32]);
    let keys = [Keys::generate().public_key(), Keys::generate().public_key()];
    let branch = RefTarget {
        state: Some(state),
        ..target(&[("refs/heads/main", two)], None)
    };
    let wanted = WantedRefs {
        target: Some(branch),
        maintainers: Some([keys[0]].into()),
        ..WantedRefs::default()
    };
    assert!(commit_planned(&fixture, &repo, &wanted).await);
    assert!(
        !commit_planned(&fixture, &repo, &wanted).await,
        "the repository has them"
    );
    // A pull request, and a push, leave them as they are.
    let pull_request = EventId::from_byte_array([2; 32]);
    let proposals = BTreeMap::from([(pull_request, one)]);
    assert!(
        commit_planned(
            &fixture,
            &repo,
            &WantedRefs {
                proposals,
                ..Default::default()
            }
        )
        .await
    );
    let change = PushCommand {
        old: None,
        new: Some(three),
        name: name("refs/heads/other"),
    };
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.move_refs(&[change], now()).await.unwrap();
    drop(guard);
    let view = fixture.store.view(&repo).await.unwrap();
    assert_eq!(
        (view.state, view.maintainers),
        (Some(state), [keys[0]].into())
    );
    let refs = BTreeMap::from([
        (name("refs/heads/main"), two),
        (name("refs/heads/other"), three),
        (RefName::nostr(pull_request), one),
    ]);
    assert_eq!(view.refs.tips(), refs);
    // Other maintainers are a change by themselves.
    let wanted = WantedRefs {
        maintainers: Some(keys.into()),
        ..WantedRefs::default()
    };
    assert!(commit_planned(&fixture, &repo, &wanted).await);
    assert!(!commit_planned(&fixture, &repo, &wanted).await);
    let after = fixture.store.view(&repo).await.unwrap();
    assert!(after.generation > view.generation);
    assert_eq!((after.state, after.maintainers), (Some(state), keys.into()));
    assert_eq!(after.refs.tips(), refs);
}

#[tokio::test]
async fn a_planned_change_names_the_pull_requests_that_get_or_lose_a_ref() {
    let fixture = Fixture::new().await;
    let (repo, [one, two, _]) = view_and_two_commits(&fixture).await;
    let ids = [1, 2].map(|n| EventId::from_byte_array([n; 32]));
    let proposals = BTreeMap::from(ids.map(|id| (id, one)));
    let wanted = WantedRefs {
        proposals,
        ..WantedRefs::default()
    };
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let planned = guard.plan(&wanted, now()).await.unwrap().expect("a change");
    let added = ProposalChanges {
        added: ids.into(),
        ..ProposalChanges::default()
    };
    assert_eq!(planned.view.unwrap().proposals, added);
    drop(guard);
    assert!(commit_planned(&fixture, &repo, &wanted).await);
    // One moves, which changes neither; the database in memory compares all others with the refs.
    let wanted = WantedRefs {
        proposals: [(ids[0], two)].into(),
        ..WantedRefs::default()
    };
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let planned = guard.plan(&wanted, now()).await.unwrap().expect("a change");
    assert_eq!(planned.view.unwrap().proposals, ProposalChanges::default());
    let gone = PushCommand {
        old: Some(one),
        new: None,
        name: RefName::nostr(ids[1]),
    };
    guard.move_refs(&[gone], now()).await.unwrap();
    guard.retire(now()).await.unwrap();
}

#[tokio::test]
async fn the_ref_of_a_pull_request_makes_no_repository_and_a_state_does() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (repo, tip) = (new_repo("x"), work.commit("1"));
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
        .repository(&repo)
        .take_in(incoming, &[tip].into())
        .await
        .unwrap();
    let proposals = BTreeMap::from([(EventId::from_byte_array([1; 32]), tip)]);
    let mut wanted = WantedRefs {
        proposals,
        ..WantedRefs::default()
    };
    assert!(!commit_planned(&fixture, &repo, &wanted).await);
    assert!(!fixture.store.has_view(&repo).await.unwrap());
    wanted.target = Some(target(&[("refs/heads/main", tip)], None));
    assert!(commit_planned(&fixture, &repo, &wanted).await);
    assert_eq!(fixture.store.refs(&repo).await.unwrap().len(), 2);
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}
