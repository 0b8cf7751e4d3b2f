//! The effects of a push on objects and refs of a view.

use std::collections::BTreeSet;

use grasp_core::Oid;
use grasp_core::resources::Claimant;
use grasp_purgatory::git::{Completeness, GitError, StagingLimits};

use crate::git_fixture::{
    Fixture, MAX_PACK_BYTES, Work, execute, files_below, git, judged, name, noise,
};

#[tokio::test]
async fn a_plain_clone_of_the_view_gets_what_was_pushed() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let first = work.commit("1");
    work.git(&["tag", "-a", "-m", "tagged", "v1"]);
    let tip = work.commit("2");
    let moves = [
        ("refs/heads/main", Some(tip)),
        ("refs/tags/v1", Some(work.rev("v1"))),
    ];
    fixture.push(&repo, &work, &moves).await.unwrap();
    assert_eq!(
        fixture.store.head(&repo).await.unwrap(),
        name("refs/heads/main")
    );

    let clone = fixture.dir.path().join("clone");
    let view = fixture.view(&repo).await;
    git(
        fixture.dir.path(),
        &["clone", "-q", view.to_str().unwrap(), "clone"],
        b"",
    )
    .unwrap();
    assert_eq!(
        git(&clone, &["rev-parse", "HEAD"], b"").unwrap(),
        tip.to_string()
    );
    assert_eq!(
        git(&clone, &["rev-parse", "v1^{}"], b"").unwrap(),
        first.to_string()
    );
    git(&clone, &["fsck", "--full", "--strict"], b"").unwrap();
    // Git reads the file of refs as it was written, with peeled tags.
    let peeled = git(&view, &["show-ref", "-d", "v1"], b"").unwrap();
    assert!(
        peeled.contains(&format!("{first} refs/tags/v1^{{}}")),
        "{peeled}"
    );
    git(&view, &["fsck", "--full", "--strict"], b"").unwrap();
}

#[tokio::test]
async fn a_chain_of_tags_is_peeled_up_to_a_limit() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    work.git(&["tag", "-a", "-m", "upon a commit", "1"]);
    for n in 2..=17 {
        work.git(&[
            "tag",
            "-a",
            "-m",
            "upon a tag",
            &n.to_string(),
            &(n - 1).to_string(),
        ]);
    }
    fixture
        .push(&repo, &work, &[("refs/tags/16", Some(work.rev("16")))])
        .await
        .unwrap();
    let peeled = git(&fixture.view(&repo).await, &["show-ref", "-d", "16"], b"").unwrap();
    assert!(
        peeled.contains(&format!("{tip} refs/tags/16^{{}}")),
        "{peeled}"
    );
    work.write("words", &b"many words\n".repeat(200_000));
    work.git(&["tag", "-a", "-F", "words", "large"]);
    let refused = [
        ("17", "too many tags upon tags"),
        ("16", ""),
        ("large", "a tag is too large"),
        ("1", ""),
    ];
    for (tag, why) in refused {
        let pushed = fixture
            .push(&repo, &work, &[("refs/tags/v", Some(work.rev(tag)))])
            .await;
        match pushed {
            Ok(_) => assert_eq!(why, "", "{tag}"),
            Err(GitError::BadPack(words)) => assert_eq!(words, why),
            Err(error) => panic!("{tag}: {error}"),
        }
    }
}

#[tokio::test]
async fn a_thin_pack_is_completed_with_objects_of_the_repository() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let text: String = (0..5_000).map(|n| format!("line {n}\n")).collect();
    work.write("text", text.as_bytes());
    let one = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(one))])
        .await
        .unwrap();
    work.write("text", format!("{text}and one more\n").as_bytes());
    let two = work.commit("2");
    let thin = work.thin_pack(two, one);
    assert!(
        thin.len() < 1_000,
        "a delta against an object that is not sent: {}",
        thin.len()
    );
    let incoming = fixture.receive(&repo, &thin).await.unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let push = judged(
        &guard.refs().await.unwrap(),
        &[("refs/heads/main", Some(two))],
    );
    execute(&mut guard, &push, Some(incoming)).await.unwrap();
    git(
        &fixture.view(&repo).await,
        &["fsck", "--full", "--strict"],
        b"",
    )
    .unwrap();
}

#[tokio::test]
async fn refs_are_created_updated_forced_and_deleted() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let one = work.commit("1");
    fixture
        .push(
            &repo,
            &work,
            &[
                ("refs/heads/main", Some(one)),
                ("refs/heads/dev", Some(one)),
            ],
        )
        .await
        .unwrap();
    let two = work.commit("2");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(two))])
        .await
        .unwrap();
    work.git(&["reset", "-q", "--hard", &one.to_string()]);
    let other = work.commit("other");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(other))])
        .await
        .unwrap();
    fixture
        .push(&repo, &work, &[("refs/heads/main", None)])
        .await
        .unwrap();
    let refs = fixture.store.refs(&repo).await.unwrap();
    assert_eq!(
        refs.into_iter().collect::<Vec<_>>(),
        [(name("refs/heads/dev"), one)]
    );
    assert_eq!(
        fixture.store.head(&repo).await.unwrap(),
        name("refs/heads/dev")
    );
}

#[tokio::test]
async fn a_branch_becomes_a_directory_in_one_push() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/foo", Some(tip))])
        .await
        .unwrap();
    let moves = [("refs/heads/foo", None), ("refs/heads/foo/bar", Some(tip))];
    fixture.push(&repo, &work, &moves).await.unwrap();
    let refs = fixture.store.refs(&repo).await.unwrap();
    assert_eq!(
        refs.into_keys().collect::<Vec<_>>(),
        [name("refs/heads/foo/bar")]
    );
    let back = [("refs/heads/foo/bar", None), ("refs/heads/foo", Some(tip))];
    fixture.push(&repo, &work, &back).await.unwrap();
    let refs = fixture.store.refs(&repo).await.unwrap();
    assert_eq!(
        refs.into_keys().collect::<Vec<_>>(),
        [name("refs/heads/foo")]
    );
}

#[tokio::test]
async fn a_push_judged_on_other_refs_moves_nothing() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(two))])
        .await
        .unwrap();
    let incoming = fixture.receive(&repo, &work.pack(&[one])).await.unwrap();
    let stale = judged(&Default::default(), &[("refs/heads/main", Some(one))]);
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let error = execute(&mut guard, &stale, Some(incoming))
        .await
        .unwrap_err();
    assert!(matches!(&error, GitError::Moved(moved) if *moved == name("refs/heads/main")));
    assert!(!error.is_ours(), "{error}");
    assert_eq!(
        guard
            .refs()
            .await
            .unwrap()
            .into_values()
            .collect::<Vec<_>>(),
        [two]
    );
}

#[tokio::test]
async fn tips_without_their_history_are_refused_and_leave_nothing() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let one = work.commit("1");
    let two = work.commit("2");
    let (tree, blob) = (work.rev("HEAD^{tree}"), work.rev("HEAD:file"));
    // The parent is missing; then a blob is, which a check of commits alone would not notice.
    for objects in [vec![two, tree, blob], vec![one, two, tree]] {
        let error = match fixture.receive(&repo, &work.pack_only(&objects)).await {
            Err(error) => error,
            Ok(incoming) => {
                let push = judged(&Default::default(), &[("refs/heads/main", Some(two))]);
                let mut guard = fixture.store.lock(&repo).await.unwrap();
                execute(&mut guard, &push, Some(incoming))
                    .await
                    .unwrap_err()
            }
        };
        assert!(!error.is_ours(), "{error}");
    }
    assert!(fixture.store.refs(&repo).await.unwrap().is_empty());
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let found = guard.check(&BTreeSet::from([two])).await.unwrap();
    assert!(!found.is_complete(), "{found:?}");
}

#[tokio::test]
async fn incomplete_history_is_distinguished_from_missing_tips() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let whole = work.commit("whole");
    work.git(&["checkout", "-q", "--orphan", "other"]);
    work.commit("parent");
    let broken = work.commit("broken");
    let absent: Oid = "ab".repeat(20).parse().unwrap();
    let mut incoming = fixture.receive(&repo, &work.pack(&[whole])).await.unwrap();
    // As a server with a shallow clone sends it: the tip without its history.
    std::fs::write(work.dir.path().join(".git/shallow"), format!("{broken}\n")).unwrap();
    let shallow = work.pack(&[broken]);
    std::fs::remove_file(work.dir.path().join(".git/shallow")).unwrap();
    unpack_unchecked(&incoming_dir(&fixture), &shallow);
    let tips = BTreeSet::from([whole, broken, absent]);
    let found = incoming.check(&tips).await.unwrap();
    let (missing, broken) = (BTreeSet::from([absent]), BTreeSet::from([broken]));
    assert_eq!(found, Completeness { missing, broken });
}

/// Returns the only directory in which a pack is being received.
fn incoming_dir(fixture: &Fixture) -> std::path::PathBuf {
    let dirs = std::fs::read_dir(fixture.root().join("incoming")).unwrap();
    dirs.map(|dir| dir.unwrap().path())
        .find(|dir| !files_below(dir).is_empty())
        .unwrap()
}

/// Adds a pack to a quarantine without checking it.
fn unpack_unchecked(objects: &std::path::Path, pack: &[u8]) {
    let file = objects.join("pack/pack-0000000000000000000000000000000000000000.pack");
    std::fs::write(&file, pack).unwrap();
    git(objects, &["index-pack", file.to_str().unwrap()], b"").unwrap();
}

#[tokio::test]
async fn a_tip_that_was_proven_complete_is_not_checked_again() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.commit("1");
    let tip = work.commit("2");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let dir = fixture.repo_dir(&repo);
    let proven = git(&dir, &["for-each-ref", "--format=%(objectname)"], b"").unwrap();
    assert_eq!(proven, tip.to_string());
    // Without its objects, only the remembered proof can say that the tip is complete, also after a restart.
    let fixture = fixture.restart().await;
    std::fs::remove_dir_all(dir.join("objects/pack")).unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    assert!(
        guard
            .check(&BTreeSet::from([tip]))
            .await
            .unwrap()
            .is_complete()
    );
}

#[tokio::test]
async fn malformed_packs_are_errors_of_the_peer() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    let pack = work.pack(&[tip]);
    let mut flipped = pack.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let truncated = &pack[..pack.len() / 2];
    for bytes in [&b"not a pack at all"[..], &flipped, truncated, b""] {
        let error = fixture.receive(&repo, bytes).await.unwrap_err();
        assert!(matches!(error, GitError::BadPack(_)), "{error:?}");
        assert!(!error.is_ours(), "{error}");
    }
}

#[tokio::test]
async fn objects_that_git_would_refuse_are_refused() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.write("blob", b"[core]\n");
    let blob = work.git(&["hash-object", "-w", "blob"]);
    // A tree that would write into the clone's own .git directory.
    let tree = git(
        work.dir.path(),
        &["mktree"],
        format!("100644 blob {blob}\t.git\n").as_bytes(),
    );
    let tree = tree.unwrap();
    let commit = work.git(&["commit-tree", &tree, "-m", "evil"]);
    let pack = work.pack_only(&[&blob, &tree, &commit].map(|oid| oid.parse().unwrap()));
    let error = fixture.receive(&repo, &pack).await.unwrap_err();
    assert!(
        matches!(&error, GitError::BadPack(why) if why.contains("hasDotgit")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_pack_over_the_limit_is_refused_and_leaves_nothing_behind() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.write("noise", &noise(200_000));
    let pack = work.pack(&[work.commit("1")]);
    let incoming = fixture
        .store
        .repository(&repo)
        .incoming(Claimant::default())
        .await
        .unwrap();
    let mut unpacking = incoming.unpack(10_000, MAX_PACK_BYTES).await.unwrap();
    let error = match unpacking.feed(&pack).await {
        Ok(()) => unpacking.finish().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(
        matches!(error, GitError::TooLarge { limit: 10_000 }),
        "{error:?}"
    );
    drop(incoming);
    let fixture = fixture.restart().await;
    assert_eq!(
        files_below(&fixture.root().join("incoming")),
        Vec::<std::path::PathBuf>::new()
    );
    assert!(fixture.store.refs(&repo).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_push_to_an_unknown_repository_is_refused() {
    let fixture = Fixture::new().await;
    let mut repo = fixture.repo("x").await;
    repo.identifier = "y".parse().unwrap();
    let error = fixture
        .store
        .repository(&repo)
        .incoming(Claimant::default())
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::NoView), "{error:?}");
    assert!(matches!(
        fixture.store.refs(&repo).await.unwrap_err(),
        GitError::NoView
    ));
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let absent = BTreeSet::from(["ab".repeat(20).parse().unwrap()]);
    assert!(!guard.check(&absent).await.unwrap().is_complete());
}

#[tokio::test]
async fn a_branch_may_point_only_at_a_commit() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.commit("1");
    let tree = work.rev("HEAD^{tree}");
    let error = fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tree))])
        .await
        .unwrap_err();
    assert!(matches!(error, GitError::NotACommit(_)), "{error:?}");
    assert!(
        fixture
            .push(&repo, &work, &[("refs/tags/tree", Some(tree))])
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn concurrent_pushes_to_one_repository_all_succeed() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let base = work.commit("base");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(base))])
        .await
        .unwrap();
    let moves = ["a", "b", "c", "d"].map(|branch| (branch, Some(work.commit(branch))));
    let names = moves.map(|(branch, _)| format!("refs/heads/{branch}"));
    let push = async |n: usize| fixture.push(&repo, &work, &[(&names[n], moves[n].1)]).await;
    let (a, b, c, d) = tokio::join!(push(0), push(1), push(2), push(3));
    for pushed in [a, b, c, d] {
        pushed.unwrap();
    }
    assert_eq!(
        fixture.store.refs(&repo).await.unwrap().len(),
        1 + moves.len()
    );
    git(&fixture.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn the_same_objects_may_be_pushed_twice() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/a", Some(tip))])
        .await
        .unwrap();
    fixture
        .push(&repo, &work, &[("refs/heads/b", Some(tip))])
        .await
        .unwrap();
    // An empty pack, as git sends it when the server has everything.
    let incoming = fixture.receive(&repo, &work.pack_only(&[])).await.unwrap();
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    let refs = guard.refs().await.unwrap();
    let push = judged(&refs, &[("refs/heads/c", Some(tip))]);
    execute(&mut guard, &push, Some(incoming)).await.unwrap();
    let packs = files_below(&fixture.root().join("repositories"))
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "pack"));
    assert_eq!(packs.count(), 1);
}

#[tokio::test]
async fn objects_that_no_ref_of_the_push_reaches_are_not_taken_in() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    work.write("unreferenced", b"in no signed state");
    let unreferenced: Oid = work
        .git(&["hash-object", "-w", "unreferenced"])
        .parse()
        .unwrap();
    let objects = [work.objects_of_last_commit(), vec![unreferenced]].concat();
    for is_prepared in [true, false] {
        let mut incoming = fixture
            .receive(&repo, &work.pack_only(&objects))
            .await
            .unwrap();
        let mut guard = fixture.store.lock(&repo).await.unwrap();
        let name = format!("refs/heads/{is_prepared}");
        let push = judged(&guard.refs().await.unwrap(), &[(&name, Some(tip))]);
        if is_prepared {
            incoming.check_all(&BTreeSet::from([tip])).await.unwrap();
            incoming.prepare(&push).await.unwrap();
        }
        execute(&mut guard, &push, Some(incoming)).await.unwrap();
        let view = fixture.view(&repo).await;
        git(&view, &["fsck", "--full", "--strict"], b"").unwrap();
        let found = git(&view, &["cat-file", "-e", &unreferenced.to_string()], b"");
        assert!(found.is_err(), "it is readable");
    }
}

#[tokio::test]
async fn a_large_pack_is_kept_as_received_if_all_of_it_is_needed() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    work.write("noise", &noise(17 << 20));
    let tip = work.commit("1");
    work.write("unreferenced", b"in no signed state");
    let unreferenced: Oid = work
        .git(&["hash-object", "-w", "unreferenced"])
        .parse()
        .unwrap();
    let needed = [work.objects_of_last_commit(), vec![work.rev("HEAD:noise")]].concat();
    for (more, is_kept_as_received) in [(vec![unreferenced], false), (vec![], true)] {
        let pack = work.pack_only(&[needed.clone(), more].concat());
        let mut incoming = fixture.receive(&repo, &pack).await.unwrap();
        let before = pack_files(&fixture);
        incoming.check_all(&BTreeSet::from([tip])).await.unwrap();
        let push = judged(&Default::default(), &[("refs/heads/main", Some(tip))]);
        incoming.prepare(&push).await.unwrap();
        assert_eq!(pack_files(&fixture) == before, is_kept_as_received);
    }
}

#[tokio::test]
async fn a_small_pack_is_kept_as_received_if_all_of_it_is_needed_or_present() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let text: String = (0..5_000).map(|n| format!("line {n}\n")).collect();
    work.write("text", text.as_bytes());
    let one = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(one))])
        .await
        .unwrap();
    work.write("text", format!("{text}and one more\n").as_bytes());
    let two = work.commit("2");
    work.write("unreferenced", b"in no signed state");
    let unreferenced: Oid = work
        .git(&["hash-object", "-w", "unreferenced"])
        .parse()
        .unwrap();
    let more = [
        work.objects_of_last_commit(),
        vec![work.rev("HEAD:text"), unreferenced],
    ]
    .concat();
    // Git adds what a thin pack is based on.
    for (pack, is_kept_as_received) in [
        (work.thin_pack(two, one), true),
        (work.pack(&[two]), true),
        (work.pack_only(&more), false),
    ] {
        let mut incoming = fixture.receive(&repo, &pack).await.unwrap();
        let before = pack_files(&fixture);
        incoming.check_all(&BTreeSet::from([two])).await.unwrap();
        let refs = fixture.store.refs(&repo).await.unwrap();
        incoming
            .prepare(&judged(&refs, &[("refs/heads/main", Some(two))]))
            .await
            .unwrap();
        assert_eq!(pack_files(&fixture) == before, is_kept_as_received);
    }
}

fn pack_files(fixture: &Fixture) -> BTreeSet<std::path::PathBuf> {
    let packs = files_below(&fixture.root().join("incoming")).into_iter();
    packs
        .filter(|file| file.extension().is_some_and(|kind| kind == "pack"))
        .collect()
}

#[tokio::test]
async fn a_prepared_upload_is_staged_without_packing_under_the_lock() {
    let limits = StagingLimits {
        bytes_per_event: 100_000,
        ..StagingLimits::default()
    };
    let (fixture, work) = (Fixture::limited(limits).await, Work::new());
    let repo = fixture.repo("x").await;
    let upload = format!("refs/nostr/{}", "a".repeat(64));
    let small = work.commit("1");
    work.write("noise", &noise(100_000));
    let large = work.commit("2");
    for (tip, fits) in [(small, true), (large, false)] {
        let mut incoming = fixture.receive(&repo, &work.pack(&[tip])).await.unwrap();
        incoming.check_all(&BTreeSet::from([tip])).await.unwrap();
        let push = judged(&Default::default(), &[(&upload, Some(tip))]);
        let received = pack_files(&fixture);
        match incoming.prepare(&push).await {
            Ok(()) => assert!(fits),
            Err(error) => {
                assert!(!fits && matches!(error, GitError::StagingFull), "{error:?}");
                continue;
            }
        }
        // Packing again would need them.
        received
            .iter()
            .for_each(|pack| std::fs::remove_file(pack).unwrap());
        let mut guard = fixture.store.lock(&repo).await.unwrap();
        execute(&mut guard, &push, Some(incoming)).await.unwrap();
        let event = upload.strip_prefix("refs/nostr/").unwrap();
        let staged = guard
            .staged(nostr::event::EventId::from_hex(event).unwrap())
            .await
            .unwrap();
        assert_eq!(staged, BTreeSet::from([tip]));
    }
}
