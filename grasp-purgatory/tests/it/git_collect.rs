//! Objects that no ref shows any more: replaced ones stay for a while, removed ones leave the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::service::Endpoint;
use grasp_core::{Oid, RepoId};
use grasp_purgatory::database::{
    Commit, Committed, Database as _, Garbage, MaintainerChanges, ProposalChanges, RepoChange,
    RepoRow, ViewChange,
};
use grasp_purgatory::git::{
    Git, GitError, Keep, RETIRED_REFS_RETENTION, RefTarget, Refs, RepoStore, Slots, StagingLimits,
};
use nostr::event::EventId;
use nostr::types::Timestamp;

use crate::git_fixture::{
    Fixture, MAX_PACK_BYTES, Work, files_below, git, installed_git, new_repo, noise, now,
    pack_bytes,
};

const MAIN: &str = "refs/heads/main";

async fn collect(fixture: &Fixture, repo: &RepoId, now: Timestamp) -> bool {
    fixture
        .store
        .repository(repo)
        .collect(&Keep::at(now, BTreeSet::new()))
        .await
        .unwrap()
}

/// Returns the tips that were replaced.
async fn retired(fixture: &Fixture, repo: &RepoId) -> BTreeSet<Oid> {
    let retired = fixture.store.repository(repo).retired_refs().await.unwrap();
    retired.into_iter().map(|retired| retired.tip).collect()
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
async fn a_replaced_tip_is_readable_by_its_id_for_the_retention_time_and_gone_after_it() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.write("noise", &noise(100_000));
    let removed = work.commit("removed");
    fixture
        .push(&repo, &work, &[(MAIN, Some(removed))])
        .await
        .unwrap();
    work.git(&["rm", "-q", "noise"]);
    let stays = unrelated(&work, "stays");
    fixture
        .push(&repo, &work, &[(MAIN, Some(stays))])
        .await
        .unwrap();

    assert!(
        !collect(&fixture, &repo, now()).await,
        "there is nothing to remove"
    );
    assert_eq!(fixture.store.row(&repo).await.unwrap().garbage, None);
    assert_eq!(retired(&fixture, &repo).await, [removed].into());
    let fixture = fixture.restart().await;
    let end = now() + RETIRED_REFS_RETENTION;
    assert!(!collect(&fixture, &repo, end).await);
    assert!(is_readable(&fixture, &repo, removed).await);
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();

    assert!(collect(&fixture, &repo, end + Duration::from_secs(1)).await);
    assert!(
        !is_readable(&fixture, &repo, removed).await && is_readable(&fixture, &repo, stays).await
    );
    assert!(pack_bytes(&fixture.root()) < 10_000);
    assert!(retired(&fixture, &repo).await.is_empty());
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    assert!(
        !collect(&fixture, &repo, end + Duration::from_secs(2)).await,
        "nothing is left to do"
    );
    // It can be pushed again.
    fixture
        .push(&repo, &work, &[("refs/heads/again", Some(removed))])
        .await
        .unwrap();
    assert!(is_readable(&fixture, &repo, removed).await);
}

#[tokio::test]
async fn a_purge_removes_all_that_no_ref_needs_at_once() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let replaced = work.commit("replaced");
    fixture
        .push(&repo, &work, &[(MAIN, Some(replaced))])
        .await
        .unwrap();
    let stays = unrelated(&work, "stays");
    fixture
        .push(&repo, &work, &[(MAIN, Some(stays))])
        .await
        .unwrap();
    let unused = unrelated(&work, "unused");
    let incoming = fixture.receive(&repo, &work.pack(&[unused])).await.unwrap();
    fixture
        .store
        .repository(&repo)
        .take_in(incoming, &[unused].into())
        .await
        .unwrap();
    collect(&fixture, &repo, now()).await;
    for tip in [replaced, unused, stays] {
        assert!(is_readable(&fixture, &repo, tip).await);
    }
    assert!(fixture.store.repository(&repo).purge(now()).await.unwrap());
    for tip in [replaced, unused] {
        assert!(!is_readable(&fixture, &repo, tip).await);
    }
    assert!(retired(&fixture, &repo).await.is_empty());
    assert!(is_readable(&fixture, &repo, stays).await);
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    assert!(
        !fixture.store.repository(&repo).purge(now()).await.unwrap(),
        "there is nothing left to remove"
    );
    assert!(
        !fixture
            .store
            .repository(&new_repo("x"))
            .purge(now())
            .await
            .unwrap(),
        "nothing is there"
    );
}

/// Takes branches and tags away as the database does with the state that signed for them.
async fn delete_state(fixture: &Fixture, repo: &RepoId) {
    let view = fixture.store.view(repo).await.unwrap();
    let mut left = Refs::clone(&view.refs);
    left.refs.retain(|name, _| !name.is_branch_or_tag());
    let mut change = RepoChange::new(Endpoint::Repository, repo.clone());
    change.garbage = Some(Garbage::Removed);
    change.view = Some(ViewChange {
        from: Some(view.generation),
        state: None,
        maintained: MaintainerChanges::default(),
        maintainers: view.maintainers,
        shows: view.shows,
        retired: Vec::new(),
        proposals: ProposalChanges::between(&view.refs, &left),
        to: Some(Arc::new(left)),
    });
    let commit = Commit {
        repos: vec![change],
        ..Commit::default()
    };
    let committed = fixture.database.commit(commit).await.unwrap();
    assert!(matches!(committed, Committed::Done { .. }));
}

#[tokio::test]
async fn objects_of_a_deleted_state_are_gone_at_once_and_those_of_replaced_ones_stay() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let replaced = work.commit("replaced");
    fixture
        .push(&repo, &work, &[(MAIN, Some(replaced))])
        .await
        .unwrap();
    work.write("noise", &noise(100_000));
    let deleted = unrelated(&work, "deleted");
    fixture
        .push(&repo, &work, &[(MAIN, Some(deleted))])
        .await
        .unwrap();
    delete_state(&fixture, &repo).await;
    assert!(
        is_readable(&fixture, &repo, deleted).await,
        "until it is collected"
    );
    assert!(collect(&fixture, &repo, now()).await);
    assert!(!is_readable(&fixture, &repo, deleted).await);
    assert!(pack_bytes(&fixture.root()) < 10_000);
    assert!(is_readable(&fixture, &repo, replaced).await);
    assert_eq!(retired(&fixture, &repo).await, [replaced].into());
    apply(&fixture, &repo, replaced).await.unwrap();
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn what_was_fetched_for_a_withdrawn_event_is_removed_unless_something_contains_it() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let first = work.commit("first");
    let shown = work.commit("shown");
    fixture
        .push(&repo, &work, &[(MAIN, Some(shown))])
        .await
        .unwrap();
    let fetched = unrelated(&work, "fetched");
    work.git(&["tag", "-m", "a tag", "tag", &shown.to_string()]);
    let tag: Oid = work.git(&["rev-parse", "tag"]).trim().parse().unwrap();
    let repository = fixture.store.repository(&repo);
    let nowhere: Oid = "ab".repeat(20).parse().unwrap();
    let cases = [(None, first, false), (None, nowhere, false)];
    let cases = cases
        .into_iter()
        .chain([(Some(fetched), fetched, true), (Some(tag), tag, true)]);
    for (brought, tip, is_removed) in cases {
        if let Some(brought) = brought {
            let incoming = fixture
                .receive(&repo, &work.pack(&[brought]))
                .await
                .unwrap();
            repository
                .take_in(incoming, &[brought].into())
                .await
                .unwrap();
        }
        let mut guard = fixture.store.lock(&repo).await.unwrap();
        guard.mark_unneeded(&[shown, tip].into()).await.unwrap();
        drop(guard);
        let row = fixture.store.row(&repo).await.unwrap();
        assert_eq!(row.garbage == Some(Garbage::Removed), is_removed, "{tip}");
        assert_eq!(collect(&fixture, &repo, now()).await, is_removed, "{tip}");
        assert!(!is_removed || !is_readable(&fixture, &repo, tip).await);
        assert!(is_readable(&fixture, &repo, first).await);
    }
}

#[tokio::test]
async fn objects_of_a_deleted_state_stay_while_a_held_event_wants_them() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("deleted");
    fixture
        .push(&repo, &work, &[(MAIN, Some(tip))])
        .await
        .unwrap();
    delete_state(&fixture, &repo).await;
    let keep = Keep::at(now(), [tip, "ab".repeat(20).parse().unwrap()].into());
    assert!(
        fixture
            .store
            .repository(&repo)
            .collect(&keep)
            .await
            .unwrap()
    );
    apply(&fixture, &repo, tip).await.unwrap();
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

/// Sets the branch of a repository to a tip, as a release does.
async fn apply(fixture: &Fixture, repo: &RepoId, tip: Oid) -> Result<(), GitError> {
    let refs = BTreeMap::from([(MAIN.parse().unwrap(), tip)]);
    let mut guard = fixture.store.lock(repo).await?;
    let target = RefTarget {
        refs,
        ..RefTarget::default()
    };
    fixture.apply(&mut guard, &target).await
}

#[tokio::test]
async fn a_retired_history_is_shown_again_without_a_fetch_until_its_owner_vanishes() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    work.commit("old");
    let removed = work.commit("removed");
    fixture
        .push(&alice, &work, &[(MAIN, Some(removed))])
        .await
        .unwrap();
    let stays = unrelated(&work, "stays");
    for repo in [&alice, &bob] {
        fixture
            .push(repo, &work, &[(MAIN, Some(stays))])
            .await
            .unwrap();
        collect(&fixture, repo, now()).await;
    }
    apply(&fixture, &alice, removed).await.unwrap();
    assert!(is_readable(&fixture, &alice, removed).await);
    git(&fixture.view(&alice).await, &["fsck", "--full"], b"").unwrap();
    // The other owner of the name has nothing of it.
    let error = apply(&fixture, &bob, removed).await.unwrap_err();
    assert!(
        matches!(error, GitError::Incomplete { count: 1 }),
        "{error}"
    );
    assert!(!is_readable(&fixture, &bob, removed).await);

    // The same after the repository was out of service, unless its owner has vanished.
    for is_destroyed in [false, true] {
        let mut guard = fixture.store.lock(&alice).await.unwrap();
        match is_destroyed {
            true => guard.destroy().await.unwrap(),
            false => guard.retire(now()).await.unwrap(),
        }
        drop(guard);
        collect(&fixture, &alice, now()).await;
        fixture.create(&alice).await;
        assert_eq!(
            apply(&fixture, &alice, removed).await.is_err(),
            is_destroyed
        );
        assert_eq!(is_readable(&fixture, &alice, removed).await, !is_destroyed);
        assert!(is_readable(&fixture, &bob, stays).await);
    }
}

#[tokio::test]
async fn retired_refs_are_forgotten_and_what_is_in_service_stays() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let removed = work.commit("removed");
    fixture
        .push(&repo, &work, &[(MAIN, Some(removed))])
        .await
        .unwrap();
    let stays = unrelated(&work, "stays");
    fixture
        .push(&repo, &work, &[(MAIN, Some(stays))])
        .await
        .unwrap();
    fixture
        .store
        .lock(&repo)
        .await
        .unwrap()
        .forget_retired()
        .await
        .unwrap();
    assert!(retired(&fixture, &repo).await.is_empty());
    assert!(collect(&fixture, &repo, now()).await);
    assert!(
        !is_readable(&fixture, &repo, removed).await && is_readable(&fixture, &repo, stays).await
    );
}

#[tokio::test]
async fn ordinary_pushes_are_not_repacked() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    for n in 0..3 {
        let tip = work.commit(&n.to_string());
        fixture
            .push(&repo, &work, &[(MAIN, Some(tip))])
            .await
            .unwrap();
    }
    let before = files_below(&fixture.root().join("repositories"));
    let row = fixture.store.row(&repo).await.unwrap();
    let replaced = retired(&fixture, &repo).await;
    assert_eq!((replaced.len(), row.garbage), (2, Some(Garbage::Moved)));
    assert!(!collect(&fixture, &repo, now()).await);
    let packs = |files: &[std::path::PathBuf]| {
        files
            .iter()
            .filter(|f| f.extension().is_some_and(|e| e == "pack"))
            .count()
    };
    assert_eq!(
        packs(&files_below(&fixture.root().join("repositories"))),
        packs(&before)
    );
    // The new tip contains the old ones, so nothing is retained.
    let row = fixture.store.row(&repo).await.unwrap();
    assert_eq!(
        (retired(&fixture, &repo).await, row.garbage),
        (BTreeSet::new(), None)
    );
}

#[tokio::test]
async fn ordinary_pushes_do_not_shorten_the_retention_of_removed_commits() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let removed = work.commit("removed");
    fixture
        .push(&repo, &work, &[(MAIN, Some(removed))])
        .await
        .unwrap();
    let first = unrelated(&work, "first");
    fixture
        .push(&repo, &work, &[(MAIN, Some(first))])
        .await
        .unwrap();
    assert!(!collect(&fixture, &repo, now()).await);
    let second = work.commit("second");
    fixture
        .push(&repo, &work, &[(MAIN, Some(second))])
        .await
        .unwrap();
    assert!(!collect(&fixture, &repo, now()).await);
    assert!(retired(&fixture, &repo).await.contains(&removed));
    assert_eq!(fixture.store.row(&repo).await.unwrap().garbage, None);
    // A later removal does not end the retention of this one.
    let other = unrelated(&work, "other");
    fixture
        .push(&repo, &work, &[(MAIN, Some(other))])
        .await
        .unwrap();
    delete_state(&fixture, &repo).await;
    assert!(collect(&fixture, &repo, now()).await);
    assert!(
        is_readable(&fixture, &repo, removed).await && !is_readable(&fixture, &repo, other).await
    );
}

#[tokio::test]
async fn a_replaced_tip_that_a_branch_contains_is_not_retained_beside_one_that_none_contains() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let removed = work.commit("removed");
    fixture
        .push(&repo, &work, &[(MAIN, Some(removed))])
        .await
        .unwrap();
    let first = unrelated(&work, "first");
    fixture
        .push(&repo, &work, &[(MAIN, Some(first))])
        .await
        .unwrap();
    let second = work.commit("second");
    fixture
        .push(&repo, &work, &[(MAIN, Some(second))])
        .await
        .unwrap();
    assert!(!collect(&fixture, &repo, now()).await);
    // Else every later push is retained, too, and the end of each one's time is a repack.
    assert_eq!(retired(&fixture, &repo).await, [removed].into());
}

#[tokio::test]
async fn a_deleted_tag_object_is_retained_although_a_branch_contains_its_commit() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    work.git(&["tag", "-a", "-m", "tagged", "v1"]);
    let tag = work.rev("v1");
    let moves = [(MAIN, Some(tip)), ("refs/tags/v1", Some(tag))];
    fixture.push(&repo, &work, &moves).await.unwrap();
    fixture
        .push(&repo, &work, &[("refs/tags/v1", None)])
        .await
        .unwrap();
    collect(&fixture, &repo, now()).await;
    assert_eq!(retired(&fixture, &repo).await, [tag].into());
    assert!(is_readable(&fixture, &repo, tag).await);
}

#[tokio::test]
async fn replaced_commits_are_retained_although_another_owner_had_them_and_vanished() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    let removed = work.commit("removed");
    for repo in [&alice, &bob] {
        fixture
            .push(repo, &work, &[(MAIN, Some(removed))])
            .await
            .unwrap();
    }
    let stays = unrelated(&work, "stays");
    fixture
        .push(&alice, &work, &[(MAIN, Some(stays))])
        .await
        .unwrap();
    fixture
        .store
        .lock(&bob)
        .await
        .unwrap()
        .destroy()
        .await
        .unwrap();
    collect(&fixture, &alice, now()).await;
    assert_eq!(retired(&fixture, &alice).await, [removed].into());
    assert!(is_readable(&fixture, &alice, removed).await);
}

#[tokio::test]
async fn commits_of_a_vanished_owner_are_deleted_at_once_and_other_owners_of_the_name_keep_theirs()
{
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (alice, bob) = (fixture.repo("x").await, fixture.repo("x").await);
    work.write("noise", &noise(100_000));
    let hers = work.commit("hers");
    fixture
        .push(&alice, &work, &[(MAIN, Some(hers))])
        .await
        .unwrap();
    work.git(&["rm", "-q", "noise"]);
    let common = unrelated(&work, "common");
    // One of her tips is retired before.
    for repo in [&alice, &bob] {
        fixture
            .push(repo, &work, &[(MAIN, Some(common))])
            .await
            .unwrap();
        collect(&fixture, repo, now()).await;
    }
    assert!(pack_bytes(&fixture.root()) > 100_000);
    assert!(!is_readable(&fixture, &bob, hers).await);
    fixture
        .store
        .lock(&alice)
        .await
        .unwrap()
        .destroy()
        .await
        .unwrap();
    assert_eq!(fixture.store.row(&alice).await.unwrap(), RepoRow::default());
    assert!(
        pack_bytes(&fixture.root()) < 10_000,
        "nothing of hers is kept for later"
    );
    assert!(is_readable(&fixture, &bob, common).await);
    git(&fixture.view(&bob).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn a_deleted_pull_request_frees_its_disk_space_at_once() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let base = work.commit("base");
    fixture
        .push(&repo, &work, &[(MAIN, Some(base))])
        .await
        .unwrap();
    work.write("noise", &noise(100_000));
    let (tip, id) = (work.commit("proposed"), EventId::from_byte_array([1; 32]));
    let name = grasp_core::RefName::nostr(id);
    fixture
        .push(&repo, &work, &[(name.as_str(), Some(tip))])
        .await
        .unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.promote_staged(id, tip).await.unwrap();
    let set = |old, new| grasp_core::push::PushCommand {
        old,
        new,
        name: name.clone(),
    };
    guard
        .move_refs(&[set(None, Some(tip))], now())
        .await
        .unwrap();
    guard
        .move_refs(&[set(Some(tip), None)], now())
        .await
        .unwrap();
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
    fixture
        .push(&repo, &work, &[(MAIN, Some(base))])
        .await
        .unwrap();
    let (tip, id) = (work.commit("proposed"), EventId::from_byte_array([1; 32]));
    let name = grasp_core::RefName::nostr(id);
    fixture
        .push(&repo, &work, &[(name.as_str(), Some(tip))])
        .await
        .unwrap();
    let other = unrelated(&work, "other");
    fixture
        .push(&repo, &work, &[(MAIN, Some(other))])
        .await
        .unwrap();
    assert!(fixture.store.repository(&repo).purge(now()).await.unwrap());
    assert!(!is_readable(&fixture, &repo, tip).await);
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.promote_staged(id, tip).await.unwrap();
    assert!(
        guard
            .check(&BTreeSet::from([tip]))
            .await
            .unwrap()
            .is_complete()
    );
}

#[tokio::test]
async fn a_destroyed_repository_keeps_only_what_its_uploads_need() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let base = work.commit("base");
    fixture
        .push(&repo, &work, &[(MAIN, Some(base))])
        .await
        .unwrap();
    let (tip, id) = (work.commit("proposed"), EventId::from_byte_array([1; 32]));
    let name = grasp_core::RefName::nostr(id);
    fixture
        .push(&repo, &work, &[(name.as_str(), Some(tip))])
        .await
        .unwrap();
    work.write("noise", &noise(100_000));
    let later = work.commit("later");
    fixture
        .push(&repo, &work, &[(MAIN, Some(later))])
        .await
        .unwrap();
    fixture
        .store
        .lock(&repo)
        .await
        .unwrap()
        .destroy()
        .await
        .unwrap();
    assert_eq!(
        fixture.store.row(&repo).await.unwrap().garbage,
        Some(Garbage::Removed)
    );
    assert!(collect(&fixture, &repo, now()).await);
    assert!(pack_bytes(&fixture.root()) < 10_000);
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    assert!(guard.promote_staged(id, tip).await.unwrap());
    assert!(
        guard
            .check(&BTreeSet::from([tip]))
            .await
            .unwrap()
            .is_complete()
    );
    guard.remove_if_deserted().await.unwrap();
    assert!(files_below(&fixture.root().join("repositories")).is_empty());
}

#[tokio::test]
async fn tips_are_copied_to_any_repository_without_objects_that_it_has() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (x, fork, other) = (
        fixture.repo("x").await,
        fixture.repo("x").await,
        fixture.repo("y").await,
    );
    work.write("noise", &noise(100_000));
    let base = work.commit("base");
    for repo in [&x, &fork] {
        fixture
            .push(repo, &work, &[(MAIN, Some(base))])
            .await
            .unwrap();
    }
    let tip = work.commit("proposed");
    let secret = work.commit("not asked for");
    let moves = [
        ("refs/heads/proposed", Some(tip)),
        ("refs/heads/secret", Some(secret)),
    ];
    fixture.push(&x, &work, &moves).await.unwrap();
    work.git(&["rm", "-q", "noise"]);
    let unrelated = unrelated(&work, "unrelated");
    fixture
        .push(&other, &work, &[(MAIN, Some(unrelated))])
        .await
        .unwrap();

    let tips = BTreeSet::from([tip]);
    for without in [&fork, &other, &new_repo("x")] {
        assert!(
            fixture
                .store
                .repository(without)
                .source(&tips)
                .await
                .unwrap()
                .is_none()
        );
    }
    let source = fixture
        .store
        .repository(&x)
        .source(&tips)
        .await
        .unwrap()
        .expect("it has them");
    for (to, has_base) in [(&fork, true), (&other, false)] {
        let mut guard = fixture.store.lock(to).await.unwrap();
        let copied = guard.copy(&source, &tips).await.unwrap();
        let bytes = copied.bytes().await.unwrap();
        assert_eq!(bytes < 10_000, has_base, "{bytes}");
        guard.promote(copied).await.unwrap();
        assert!(guard.check(&tips).await.unwrap().is_complete());
        assert!(
            !guard
                .check(&BTreeSet::from([secret]))
                .await
                .unwrap()
                .is_complete()
        );
    }
    // The copy does not depend on what it was copied from.
    fixture
        .store
        .lock(&x)
        .await
        .unwrap()
        .destroy()
        .await
        .unwrap();
    for to in [&fork, &other] {
        apply(&fixture, to, tip).await.unwrap();
        git(&fixture.view(to).await, &["fsck", "--full"], b"").unwrap();
    }
}

/// Returns a git that notes where each command that packs objects writes them.
fn recording_git(dir: &Path, log: &Path) -> Git {
    let program = dir.join("git");
    let path = std::env::var_os("PATH").unwrap();
    let installed = std::env::split_paths(&path)
        .map(|dir| dir.join("git"))
        .find(|path| path.is_file())
        .unwrap();
    let note = format!(
        "[ \"$1\" = pack-objects ] && echo \"$GIT_OBJECT_DIRECTORY\" >> {}",
        log.display()
    );
    let script = format!("#!/bin/sh\n{note}\nexec {} \"$@\"\n", installed.display());
    // By another process: one that is started meanwhile would inherit the open file, which then cannot be executed.
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let mut shell = std::process::Command::new("/bin/sh");
    let written = shell.args(["-c", write]).arg(&program).arg(script).status();
    assert!(written.unwrap().success());
    Git::at(program, Slots::default()).unwrap()
}

/// What is written to a repository without its lock is removed by whoever locks it.
#[tokio::test]
async fn a_copy_writes_nothing_to_the_repository_that_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let recording = recording_git(dir.path(), &log);
    let fixture = Fixture::with_git(recording, StagingLimits::default()).await;
    let work = Work::new();
    let from = fixture.repo("x").await;
    let to = fixture.repo("x").await;
    let tip = work.commit("tip");
    fixture
        .push(&from, &work, &[(MAIN, Some(tip))])
        .await
        .unwrap();
    let tips = BTreeSet::from([tip]);
    let source = fixture.store.repository(&from).source(&tips).await.unwrap();
    let guard = fixture.store.lock(&to).await.unwrap();
    std::fs::write(&log, "").unwrap();
    guard
        .copy(&source.expect("it has them"), &tips)
        .await
        .unwrap();
    let incoming = fixture.root().join("incoming");
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(!written.is_empty());
    for place in written.lines() {
        assert!(place.starts_with(incoming.to_str().unwrap()), "{place:?}");
    }
}

#[tokio::test]
async fn tips_without_their_history_are_not_copied() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let parent = work.commit("parent");
    fixture
        .push(&repo, &work, &[(MAIN, Some(parent))])
        .await
        .unwrap();
    let first = files_below(&fixture.repo_dir(&repo).join("objects"));
    let tip = work.commit("tip");
    fixture
        .push(&repo, &work, &[(MAIN, Some(tip))])
        .await
        .unwrap();
    assert!(
        fixture
            .store
            .repository(&repo)
            .source(&[tip].into())
            .await
            .unwrap()
            .is_some()
    );
    // The pack with the parent is lost.
    first
        .iter()
        .for_each(|file| std::fs::remove_file(file).unwrap());
    std::fs::remove_file(fixture.repo_dir(&repo).join("packed-refs")).unwrap();
    assert!(
        fixture
            .store
            .repository(&repo)
            .source(&[tip].into())
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn tips_are_copied_from_the_store_of_pull_requests() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let (repo, contributor) = (fixture.repo("x").await, new_repo("x"));
    let (root, limits) = (fixture.dir.path().join("prs"), StagingLimits::default());
    let (endpoint, database) = (Endpoint::PullRequests, fixture.database.clone());
    let opened = RepoStore::open(&root, endpoint, installed_git(), limits, database, None);
    let contributors = opened.await.unwrap();
    let tip = work.commit("proposed");
    let incoming = contributors
        .repository(&contributor)
        .incoming_for()
        .await
        .unwrap();
    let mut unpacking = incoming
        .unpack(MAX_PACK_BYTES, MAX_PACK_BYTES)
        .await
        .unwrap();
    unpacking.feed(&work.pack(&[tip])).await.unwrap();
    unpacking.finish().await.unwrap();
    let tips = BTreeSet::from([tip]);
    assert_eq!(
        contributors
            .repository(&contributor)
            .take_in(incoming, &tips)
            .await
            .unwrap(),
        tips
    );
    // The same id at the other endpoint is another repository.
    assert!(
        fixture
            .store
            .repository(&contributor)
            .source(&tips)
            .await
            .unwrap()
            .is_none()
    );
    let source = contributors
        .repository(&contributor)
        .source(&tips)
        .await
        .unwrap()
        .expect("it has them");
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let copied = guard.copy(&source, &tips).await.unwrap();
    guard.promote(copied).await.unwrap();
    drop(guard);
    apply(&fixture, &repo, tip).await.unwrap();
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

/// Lets a pull request that contains a branch's tip come before another tip replaces that one, and go after it.
async fn with_pull_request(is_tip_of_branch: bool) {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let removed = work.commit("removed");
    fixture
        .push(&repo, &work, &[(MAIN, Some(removed))])
        .await
        .unwrap();
    let tip = if is_tip_of_branch {
        removed
    } else {
        work.commit("proposed")
    };
    let id = EventId::from_byte_array([1; 32]);
    let name = grasp_core::RefName::nostr(id);
    fixture
        .push(&repo, &work, &[(name.as_str(), Some(tip))])
        .await
        .unwrap();
    let set = |old, new| grasp_core::push::PushCommand {
        old,
        new,
        name: name.clone(),
    };
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard.promote_staged(id, tip).await.unwrap();
    guard
        .move_refs(&[set(None, Some(tip))], now())
        .await
        .unwrap();
    drop(guard);
    let stays = unrelated(&work, "stays");
    fixture
        .push(&repo, &work, &[(MAIN, Some(stays))])
        .await
        .unwrap();
    collect(&fixture, &repo, now()).await;
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard
        .move_refs(&[set(Some(tip), None)], now())
        .await
        .unwrap();
    drop(guard);
    assert!(collect(&fixture, &repo, now()).await);
    assert_eq!(is_readable(&fixture, &repo, tip).await, is_tip_of_branch);
    assert_eq!(retired(&fixture, &repo).await, [removed].into());
    assert!(is_readable(&fixture, &repo, removed).await);
}

#[tokio::test]
async fn commits_of_a_deleted_pull_request_are_retained_if_a_branch_had_them() {
    with_pull_request(true).await;
}

#[tokio::test]
async fn a_replaced_tip_is_retained_although_a_deleted_pull_request_contained_it() {
    with_pull_request(false).await;
}

#[tokio::test]
async fn a_crash_during_a_collection_leaves_the_repository_collected_or_unchanged() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let removed = work.commit("removed");
    fixture
        .push(&repo, &work, &[(MAIN, Some(removed))])
        .await
        .unwrap();
    let stays = unrelated(&work, "stays");
    fixture
        .push(&repo, &work, &[(MAIN, Some(stays))])
        .await
        .unwrap();
    let before = fixture.store.row(&repo).await.unwrap();
    fixture.database.fail_once();
    fixture
        .store
        .repository(&repo)
        .collect(&Keep::purging(now()))
        .await
        .unwrap_err();
    assert_eq!(fixture.store.row(&repo).await.unwrap(), before);
    let fixture = fixture.restart().await;
    assert_eq!(
        packs_on_disk(&fixture),
        before.packs.iter().map(|pack| pack.name.clone()).collect()
    );
    assert!(
        is_readable(&fixture, &repo, removed).await && is_readable(&fixture, &repo, stays).await
    );
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
    assert!(
        fixture.store.repository(&repo).purge(now()).await.unwrap(),
        "it is done again"
    );
    assert!(
        !is_readable(&fixture, &repo, removed).await && is_readable(&fixture, &repo, stays).await
    );
    let row = fixture.store.row(&repo).await.unwrap();
    assert_eq!(
        packs_on_disk(&fixture),
        row.packs.into_iter().map(|pack| pack.name).collect()
    );
}

/// The names of all packs of repositories.
fn packs_on_disk(fixture: &Fixture) -> BTreeSet<String> {
    let files = files_below(&fixture.root().join("repositories")).into_iter();
    let packs = files.filter(|file| file.extension().is_some_and(|kind| kind == "pack"));
    packs
        .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}
