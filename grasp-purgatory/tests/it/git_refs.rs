//! States applied to views: exactly, quickly, and with HEAD where it belongs.

use std::collections::BTreeMap;
use std::time::Instant;

use grasp_core::{RefName, RepoId};
use grasp_purgatory::git::{Blame, RETENTION, RefTarget};
use nostr::types::Timestamp;

use crate::git_fixture::{Work, World, files_below, git, name, now};

fn target(refs: &[(&str, grasp_core::Oid)], head: Option<&str>) -> RefTarget {
    let refs = refs.iter().map(|(text, oid)| (name(text), *oid)).collect();
    RefTarget { refs, head: head.map(name) }
}

#[tokio::test]
async fn applying_makes_heads_and_tags_exactly_the_declared_ones() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    let moves = [
        ("refs/heads/old", Some(one)),
        ("refs/tags/gone", Some(one)),
        ("refs/heads/main", Some(two)),
    ];
    world.push(&repo, &work, &moves).await.unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    let pull_request = RefName::new(&format!("refs/nostr/{}", "ab".repeat(32))).unwrap();
    let change =
        grasp_core::push::PushCommand { old: None, new: Some(one), name: pull_request.clone() };
    guard.move_refs(&repo.owner, &[change], None, now()).await.unwrap();
    let wanted =
        target(&[("refs/heads/main", one), ("refs/heads/new", two)], Some("refs/heads/new"));
    guard.apply(&repo.owner, &wanted, now()).await.unwrap();
    let expected = BTreeMap::from([
        (name("refs/heads/main"), one),
        (name("refs/heads/new"), two),
        (pull_request, one),
    ]);
    assert_eq!(guard.refs(&repo.owner).await.unwrap(), expected);
    assert_eq!(world.store.refs(&repo).await.unwrap(), expected);
    let head = git(&world.view(&repo), &["symbolic-ref", "HEAD"], b"").unwrap();
    assert_eq!(head, "refs/heads/new");
}

#[tokio::test]
async fn a_state_whose_objects_are_not_here_changes_nothing() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let one = work.commit("1");
    world.push(&repo, &work, &[("refs/heads/main", Some(one))]).await.unwrap();
    let before = world.store.refs(&repo).await.unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    for text in ["ab".repeat(20), "ab".repeat(32)] {
        let absent = text.parse().unwrap();
        let wanted = target(&[("refs/heads/main", absent)], None);
        let error = guard.apply(&repo.owner, &wanted, now()).await.unwrap_err();
        assert_eq!(error.blame(), Blame::Peer, "{error}");
    }
    assert_eq!(world.store.refs(&repo).await.unwrap(), before);
}

#[tokio::test]
async fn an_empty_state_deletes_all_and_the_old_tips_can_be_brought_back() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let tip = work.commit("1");
    world.push(&repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.apply(&repo.owner, &RefTarget::default(), now()).await.unwrap();
    assert!(guard.refs(&repo.owner).await.unwrap().is_empty());
    let head = world.store.head(&repo).await.unwrap();
    assert_eq!(head, Some(name("refs/heads/main")), "an empty repository keeps its HEAD");
    let view = world.view(&repo);
    let hidden = || git(&view, &["for-each-ref", "--format=%(objectname)"], b"").unwrap();
    assert_eq!(hidden(), tip.to_string());
    let before = target(&[("refs/heads/main", tip)], None);
    guard.apply(&repo.owner, &before, now()).await.unwrap();
    let later = Timestamp::from_secs(now().as_secs() + RETENTION.as_secs() + 1);
    guard.apply(&repo.owner, &before, later).await.unwrap();
    assert_eq!(
        git(&view, &["for-each-ref", "--format=%(refname)"], b"").unwrap(),
        "refs/heads/main"
    );
}

#[tokio::test]
async fn refs_that_an_operator_set_by_hand_do_not_outlast_the_next_state() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    world.push(&repo, &work, &[("refs/heads/main", Some(two))]).await.unwrap();
    let view = world.view(&repo);
    git(&view, &["update-ref", "refs/heads/main", &one.to_string()], b"").unwrap();
    git(&view, &["update-ref", "refs/heads/extra", &one.to_string()], b"").unwrap();
    assert_eq!(world.store.refs(&repo).await.unwrap()[&name("refs/heads/main")], one);
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    let wanted = target(&[("refs/heads/main", two)], None);
    guard.apply(&repo.owner, &wanted, now()).await.unwrap();
    assert_eq!(guard.refs(&repo.owner).await.unwrap(), wanted.refs);
    assert_eq!(git(&view, &["rev-parse", "refs/heads/main"], b"").unwrap(), two.to_string());
    assert!(git(&view, &["rev-parse", "--verify", "-q", "refs/heads/extra"], b"").is_err());
}

#[tokio::test]
async fn thousands_of_refs_are_applied_at_once() {
    const MANY: usize = 5_000;
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let mut stream = String::new();
    for n in 0..MANY {
        stream.push_str(&format!(
            "commit refs/heads/b{n}\ncommitter A <a@example> {} +0000\ndata 1\nx\nM 644 inline f\ndata {}\n{n}\n\n",
            1_600_000_000 + n, n.to_string().len()
        ));
    }
    git(work.dir.path(), &["fast-import", "--quiet"], stream.as_bytes()).unwrap();
    let listed = work.git(&["for-each-ref", "--format=%(refname) %(objectname)"]);
    let refs: BTreeMap<_, _> = listed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(text, oid)| (name(text), oid.parse().unwrap()))
        .collect();
    assert_eq!(refs.len(), MANY);
    let tips: Vec<_> = refs.values().copied().collect();
    let incoming = world.receive(&repo, &work.pack(&tips)).await.unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.promote(incoming).await.unwrap();
    let wanted = RefTarget { refs, head: None };
    let started = Instant::now();
    guard.apply(&repo.owner, &wanted, now()).await.unwrap();
    println!("{MANY} new refs applied in {:?}", started.elapsed());
    assert_eq!(guard.refs(&repo.owner).await.unwrap(), wanted.refs);
    assert_eq!(world.store.head(&repo).await.unwrap(), Some(name("refs/heads/b0")));
    let mut fewer = wanted.clone();
    fewer.refs.pop_last();
    let started = Instant::now();
    guard.apply(&repo.owner, &fewer, now()).await.unwrap();
    println!("one of {MANY} refs deleted in {:?}", started.elapsed());
    let seen = git(&world.view(&repo), &["for-each-ref", "--format=x", "refs/heads"], b"").unwrap();
    assert_eq!(seen.lines().count(), MANY - 1);
}

/// Leaves a view as a crash would between the decision and its execution.
fn decide_without_executing(world: &World, repo: &RepoId, refs: &str, head: &str) {
    let view = world.view(repo);
    let family = view.parent().unwrap().parent().unwrap();
    let family = family.strip_prefix(world.root().join("families")).unwrap();
    let family = family.to_str().unwrap().replace('/', "");
    let entry = world.root().join("journal").join(format!("{family}.{}", repo.owner.to_hex()));
    std::fs::create_dir(&entry).unwrap();
    std::fs::write(entry.join("packed-refs"), refs).unwrap();
    std::fs::write(entry.join("HEAD"), format!("ref: {head}\n")).unwrap();
}

#[tokio::test]
async fn what_was_decided_is_finished_at_the_next_start_or_by_the_next_to_come() {
    for restart in [true, false] {
        let (world, work) = (World::new().await, Work::new());
        let repo = world.repo("x").await;
        let tip = work.commit("1");
        world.push(&repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
        let refs = format!("# pack-refs with: peeled fully-peeled sorted \n{tip} refs/heads/new\n");
        decide_without_executing(&world, &repo, &refs, "refs/heads/new");
        let world = if restart { world.restart().await } else { world };
        let guard = world.store.lock(&repo.identifier).await.unwrap();
        let expected = BTreeMap::from([(name("refs/heads/new"), tip)]);
        assert_eq!(guard.refs(&repo.owner).await.unwrap(), expected, "restart: {restart}");
        assert_eq!(world.store.head(&repo).await.unwrap(), Some(name("refs/heads/new")));
        assert!(files_below(&world.root().join("journal")).is_empty());
    }
}
