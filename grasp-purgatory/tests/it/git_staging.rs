//! Staged uploads cannot be read before their event is here.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::Oid;
use grasp_core::admission::Presence;
use grasp_core::push::{KnownProposal, PushView, authorise};
use grasp_purgatory::git::{GitError, StagingLimits};
use nostr::event::EventId;

use crate::git_fixture::{Fixture, Work, execute, git, judged, name, noise, now, request};

fn event(n: u8) -> (EventId, String) {
    let id = EventId::from_byte_array([n; 32]);
    (id, format!("refs/nostr/{id}"))
}

fn contains(answer: &[u8], text: &str) -> bool {
    answer
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn staged_objects_cannot_be_read_until_their_event_comes() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let base = work.commit("base");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(base))])
        .await
        .unwrap();
    let tip = work.commit("contribution");
    let (id, reference) = event(1);
    fixture
        .push(&repo, &work, &[(&reference, Some(tip))])
        .await
        .unwrap();

    assert_eq!(
        fixture
            .store
            .refs(&repo)
            .await
            .unwrap()
            .into_values()
            .collect::<Vec<_>>(),
        [base]
    );
    for hidden in [tip, work.rev("HEAD^{tree}"), work.rev("HEAD:file")] {
        let answer = fixture.fetch_v2(&repo, &[hidden]).await;
        assert!(
            contains(&answer, "not our ref"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert!(contains(
        &fixture.fetch_v2(&repo, &[base]).await,
        "packfile"
    ));

    let mut guard = fixture.store.lock(&repo).await.unwrap();
    assert!(
        !guard
            .check(&BTreeSet::from([tip]))
            .await
            .unwrap()
            .is_complete()
    );
    assert!(guard.promote_staged(id, tip).await.unwrap());
    assert!(
        guard
            .check(&BTreeSet::from([tip]))
            .await
            .unwrap()
            .is_complete()
    );
    assert!(guard.staged(id).await.unwrap().is_empty());
    assert!(
        !guard.promote_staged(id, tip).await.unwrap(),
        "it is no longer staged"
    );
    assert!(contains(&fixture.fetch_v2(&repo, &[tip]).await, "packfile"));
}

#[tokio::test]
async fn only_the_signed_refs_of_a_push_are_readable() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let signed = work.commit("signed");
    let unsigned = work.commit("unsigned");
    let (id, reference) = event(1);
    let moves = [
        ("refs/heads/main", Some(signed)),
        (reference.as_str(), Some(unsigned)),
    ];
    fixture.push(&repo, &work, &moves).await.unwrap();
    assert!(contains(
        &fixture.fetch_v2(&repo, &[signed]).await,
        "packfile"
    ));
    assert!(contains(
        &fixture.fetch_v2(&repo, &[unsigned]).await,
        "not our ref"
    ));
    let guard = fixture.store.lock(&repo).await.unwrap();
    assert_eq!(guard.staged(id).await.unwrap(), BTreeSet::from([unsigned]));
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn objects_pushed_for_a_refused_ref_are_not_readable() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let (signed, unsigned) = (work.commit("signed"), work.commit("unsigned"));
    let (id, reference) = event(1);
    let moves = [
        (reference.as_str(), Some(signed)),
        ("refs/heads/x", Some(unsigned)),
    ];
    let incoming = fixture
        .receive(&repo, &work.pack(&[unsigned]))
        .await
        .unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let refs = guard.refs().await.unwrap();
    let view = PushView {
        refs: &refs,
        maintainers: &BTreeSet::new(),
        candidates: &[],
        proposals: &BTreeMap::from([(id, KnownProposal::Tip(Presence::Held, signed))]),
    };
    let push = authorise(&request(&refs, &moves), &view)
        .authorised
        .unwrap();
    execute(&mut guard, &push, Some(incoming)).await.unwrap();
    assert!(contains(
        &fixture.fetch_v2(&repo, &[signed]).await,
        "packfile"
    ));
    assert!(contains(
        &fixture.fetch_v2(&repo, &[unsigned]).await,
        "not our ref"
    ));
}

#[tokio::test]
async fn a_refused_upload_leaves_nothing_behind() {
    let limits = StagingLimits {
        bytes_per_event: 1,
        ..Default::default()
    };
    let (fixture, work) = (Fixture::limited(limits).await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("too large");
    let error = fixture
        .push(&repo, &work, &[(&event(1).1, Some(tip))])
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::StagingFull), "{error:?}");
    assert_eq!(
        std::fs::read_dir(fixture.root().join("staging"))
            .unwrap()
            .count(),
        0
    );
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.destroy().await.unwrap();
    assert!(
        fixture.store.all().await.unwrap().is_empty(),
        "nothing keeps it"
    );
}

#[tokio::test]
async fn competing_tips_are_all_staged_and_survive_a_restart() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    let (id, reference) = event(7);
    for tip in [one, two, one] {
        fixture
            .push(&repo, &work, &[(&reference, Some(tip))])
            .await
            .unwrap();
    }
    let fixture = fixture.restart().await;
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    assert_eq!(guard.staged(id).await.unwrap(), BTreeSet::from([one, two]));
    guard.promote_staged(id, two).await.unwrap();
    let change = grasp_core::push::PushCommand {
        old: None,
        new: Some(two),
        name: name(&reference),
    };
    guard.move_refs(&[change], now()).await.unwrap();
    guard.discard_staged_tip(id, one).await.unwrap();
    assert!(guard.staged(id).await.unwrap().is_empty());
    assert_eq!(
        fixture.store.refs(&repo).await.unwrap()[&name(&reference)],
        two
    );
}

#[tokio::test]
async fn uploads_above_the_limits_are_refused_and_evict_no_others() {
    let limits = StagingLimits {
        tips_per_event: 2,
        bytes_per_event: 4_000,
        bytes_per_repo: 8_000,
        ..Default::default()
    };
    let (fixture, work) = (Fixture::limited(limits).await, Work::new());
    let repo = fixture.repo("x").await;
    let (id, reference) = event(1);
    let tips: Vec<Oid> = (0..3).map(|n| work.commit(&n.to_string())).collect();
    for tip in &tips[..2] {
        fixture
            .push(&repo, &work, &[(&reference, Some(*tip))])
            .await
            .unwrap();
    }
    let error = fixture
        .push(&repo, &work, &[(&reference, Some(tips[2]))])
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::StagingFull), "{error:?}");
    work.write("noise", &noise(2_000));
    let large = work.commit("large");
    let (_, other) = event(2);
    let error = fixture
        .push(&repo, &work, &[(&other, Some(large))])
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::StagingFull), "{error:?}");
    let guard = fixture.store.lock(&repo).await.unwrap();
    assert_eq!(
        guard.staged(id).await.unwrap(),
        tips[..2].iter().copied().collect()
    );
}

#[tokio::test]
async fn uploads_of_one_tip_for_many_events_are_packed_once_and_before_the_lock() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("contribution");
    let names: Vec<String> = (1..=32).map(|n| event(n).1).collect();
    let moves: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), Some(tip)))
        .collect();
    let mut incoming = fixture.receive(&repo, &work.pack(&[tip])).await.unwrap();
    let received: Vec<_> = std::fs::read_dir(fixture.root().join("incoming"))
        .unwrap()
        .collect();
    let push = judged(&BTreeMap::new(), &moves);
    incoming.check_all(&BTreeSet::from([tip])).await.unwrap();
    incoming.prepare(&push).await.unwrap();
    // Nothing can be packed from here on.
    received
        .into_iter()
        .for_each(|dir| std::fs::remove_dir_all(dir.unwrap().path()).unwrap());
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    execute(&mut guard, &push, Some(incoming)).await.unwrap();
    for n in 1..=32 {
        assert_eq!(
            guard.staged(event(n).0).await.unwrap(),
            BTreeSet::from([tip]),
            "{n}"
        );
    }
    assert!(guard.promote_staged(event(1).0, tip).await.unwrap());
    assert!(guard.promote_staged(event(2).0, tip).await.unwrap());
    assert!(
        guard
            .check(&BTreeSet::from([tip]))
            .await
            .unwrap()
            .is_complete()
    );
}
