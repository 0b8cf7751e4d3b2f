//! Objects in, refs moved: what a push does to a view.

use std::collections::BTreeSet;

use grasp_core::Oid;
use grasp_core::resources::Claimant;
use grasp_purgatory::git::{Completeness, GitError, StagingLimits};

use crate::git_fixture::{PLENTY, Work, World, execute, files_below, git, judged, name, noise};

#[tokio::test]
async fn a_plain_clone_of_the_view_gets_what_was_pushed() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let first = work.commit("1");
    work.git(&["tag", "-a", "-m", "tagged", "v1"]);
    let tip = work.commit("2");
    let moves = [("refs/heads/main", Some(tip)), ("refs/tags/v1", Some(work.rev("v1")))];
    world.push(&repo, &work, &moves).await.unwrap();
    assert_eq!(world.store.head(&repo).await.unwrap(), name("refs/heads/main"));

    let clone = world.dir.path().join("clone");
    let view = world.view(&repo).await;
    git(world.dir.path(), &["clone", "-q", view.to_str().unwrap(), "clone"], b"").unwrap();
    assert_eq!(git(&clone, &["rev-parse", "HEAD"], b"").unwrap(), tip.to_string());
    assert_eq!(git(&clone, &["rev-parse", "v1^{}"], b"").unwrap(), first.to_string());
    git(&clone, &["fsck", "--full", "--strict"], b"").unwrap();
    // What git itself reads from our file is what we wrote into it, tags peeled.
    let peeled = git(&view, &["show-ref", "-d", "v1"], b"").unwrap();
    assert!(peeled.contains(&format!("{first} refs/tags/v1^{{}}")), "{peeled}");
    git(&view, &["fsck", "--full", "--strict"], b"").unwrap();
}

#[tokio::test]
async fn a_tag_is_followed_to_what_it_names_unless_that_takes_too_much() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let tip = work.commit("1");
    work.git(&["tag", "-a", "-m", "upon a commit", "1"]);
    for n in 2..=17 {
        work.git(&["tag", "-a", "-m", "upon a tag", &n.to_string(), &(n - 1).to_string()]);
    }
    world.push(&repo, &work, &[("refs/tags/16", Some(work.rev("16")))]).await.unwrap();
    let peeled = git(&world.view(&repo).await, &["show-ref", "-d", "16"], b"").unwrap();
    assert!(peeled.contains(&format!("{tip} refs/tags/16^{{}}")), "{peeled}");
    work.write("words", &b"many words\n".repeat(200_000));
    work.git(&["tag", "-a", "-F", "words", "large"]);
    let refused =
        [("17", "too many tags upon tags"), ("16", ""), ("large", "a tag is too large"), ("1", "")];
    for (tag, why) in refused {
        let pushed = world.push(&repo, &work, &[("refs/tags/v", Some(work.rev(tag)))]).await;
        match pushed {
            Ok(_) => assert_eq!(why, "", "{tag}"),
            Err(GitError::BadPack(words)) => assert_eq!(words, why),
            Err(error) => panic!("{tag}: {error}"),
        }
    }
}

#[tokio::test]
async fn a_thin_pack_is_completed_with_what_the_family_has() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let text: String = (0..5_000).map(|n| format!("line {n}\n")).collect();
    work.write("text", text.as_bytes());
    let one = work.commit("1");
    world.push(&repo, &work, &[("refs/heads/main", Some(one))]).await.unwrap();
    work.write("text", format!("{text}and one more\n").as_bytes());
    let two = work.commit("2");
    let thin = work.thin_pack(two, one);
    assert!(thin.len() < 1_000, "a delta against an object that is not sent: {}", thin.len());
    let incoming = world.receive(&repo, &thin).await.unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    let push = judged(&guard.refs(&repo.owner).await.unwrap(), &[("refs/heads/main", Some(two))]);
    execute(&mut guard, &repo.owner, &push, Some(incoming)).await.unwrap();
    git(&world.view(&repo).await, &["fsck", "--full", "--strict"], b"").unwrap();
}

#[tokio::test]
async fn refs_are_created_updated_forced_and_deleted() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let one = work.commit("1");
    world
        .push(&repo, &work, &[("refs/heads/main", Some(one)), ("refs/heads/dev", Some(one))])
        .await
        .unwrap();
    let two = work.commit("2");
    world.push(&repo, &work, &[("refs/heads/main", Some(two))]).await.unwrap();
    work.git(&["reset", "-q", "--hard", &one.to_string()]);
    let other = work.commit("other");
    world.push(&repo, &work, &[("refs/heads/main", Some(other))]).await.unwrap();
    world.push(&repo, &work, &[("refs/heads/main", None)]).await.unwrap();
    let refs = world.store.refs(&repo).await.unwrap();
    assert_eq!(refs.into_iter().collect::<Vec<_>>(), [(name("refs/heads/dev"), one)]);
    assert_eq!(world.store.head(&repo).await.unwrap(), name("refs/heads/dev"));
}

#[tokio::test]
async fn a_branch_becomes_a_directory_in_one_push() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let tip = work.commit("1");
    world.push(&repo, &work, &[("refs/heads/foo", Some(tip))]).await.unwrap();
    let moves = [("refs/heads/foo", None), ("refs/heads/foo/bar", Some(tip))];
    world.push(&repo, &work, &moves).await.unwrap();
    let refs = world.store.refs(&repo).await.unwrap();
    assert_eq!(refs.into_keys().collect::<Vec<_>>(), [name("refs/heads/foo/bar")]);
    let back = [("refs/heads/foo/bar", None), ("refs/heads/foo", Some(tip))];
    world.push(&repo, &work, &back).await.unwrap();
    let refs = world.store.refs(&repo).await.unwrap();
    assert_eq!(refs.into_keys().collect::<Vec<_>>(), [name("refs/heads/foo")]);
}

#[tokio::test]
async fn a_push_judged_on_other_refs_moves_nothing() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let (one, two) = (work.commit("1"), work.commit("2"));
    world.push(&repo, &work, &[("refs/heads/main", Some(two))]).await.unwrap();
    let incoming = world.receive(&repo, &work.pack(&[one])).await.unwrap();
    let stale = judged(&Default::default(), &[("refs/heads/main", Some(one))]);
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    let error = execute(&mut guard, &repo.owner, &stale, Some(incoming)).await.unwrap_err();
    assert!(matches!(&error, GitError::Moved(moved) if *moved == name("refs/heads/main")));
    assert!(!error.is_ours(), "{error}");
    assert_eq!(guard.refs(&repo.owner).await.unwrap().into_values().collect::<Vec<_>>(), [two]);
}

#[tokio::test]
async fn tips_without_their_history_are_refused_and_leave_nothing() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let one = work.commit("1");
    let two = work.commit("2");
    let (tree, blob) = (work.rev("HEAD^{tree}"), work.rev("HEAD:file"));
    // The parent lacks; then a blob lacks, which a look at the commits alone would not notice.
    for objects in [vec![two, tree, blob], vec![one, two, tree]] {
        let error = match world.receive(&repo, &work.pack_only(&objects)).await {
            Err(error) => error,
            Ok(incoming) => {
                let push = judged(&Default::default(), &[("refs/heads/main", Some(two))]);
                let mut guard = world.store.lock(&repo.identifier).await.unwrap();
                execute(&mut guard, &repo.owner, &push, Some(incoming)).await.unwrap_err()
            }
        };
        assert!(!error.is_ours(), "{error}");
    }
    assert!(world.store.refs(&repo).await.unwrap().is_empty());
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    let found = guard.check(&BTreeSet::from([two])).await.unwrap();
    assert!(!found.is_complete(), "{found:?}");
}

#[tokio::test]
async fn incomplete_history_is_told_apart_from_absent_tips() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let whole = work.commit("whole");
    work.git(&["checkout", "-q", "--orphan", "other"]);
    work.commit("parent");
    let broken = work.commit("broken");
    let absent: Oid = "ab".repeat(20).parse().unwrap();
    let mut incoming = world.receive(&repo, &work.pack(&[whole])).await.unwrap();
    // As a server would that hands out shallow history: everything but what is behind the tip.
    std::fs::write(work.dir.path().join(".git/shallow"), format!("{broken}\n")).unwrap();
    let shallow = work.pack(&[broken]);
    std::fs::remove_file(work.dir.path().join(".git/shallow")).unwrap();
    unpack_unchecked(&incoming_dir(&world), &shallow);
    let tips = BTreeSet::from([whole, broken, absent]);
    let found = incoming.check(&tips).await.unwrap();
    let expected = Completeness::Incomplete {
        missing: BTreeSet::from([absent]),
        broken: BTreeSet::from([broken]),
    };
    assert_eq!(found, expected);
}

/// The only directory in which something is being received.
fn incoming_dir(world: &World) -> std::path::PathBuf {
    let dirs = std::fs::read_dir(world.root().join("incoming")).unwrap();
    dirs.map(|dir| dir.unwrap().path()).find(|dir| !files_below(dir).is_empty()).unwrap()
}

/// Puts a pack where a careless fetch would.
fn unpack_unchecked(objects: &std::path::Path, pack: &[u8]) {
    let file = objects.join("pack/pack-0000000000000000000000000000000000000000.pack");
    std::fs::write(&file, pack).unwrap();
    git(objects, &["index-pack", file.to_str().unwrap()], b"").unwrap();
}

#[tokio::test]
async fn what_was_proven_once_is_not_walked_again() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    work.commit("1");
    let tip = work.commit("2");
    world.push(&repo, &work, &[("refs/heads/main", Some(tip))]).await.unwrap();
    let family = world.family(&repo.identifier);
    let proven = git(&family, &["for-each-ref", "--format=%(objectname)"], b"").unwrap();
    assert_eq!(proven, tip.to_string());
    // Without its objects only memory can say that the tip is whole; it does so after a restart too.
    let world = world.restart().await;
    std::fs::remove_dir_all(family.join("objects/pack")).unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    assert!(guard.check(&BTreeSet::from([tip])).await.unwrap().is_complete());
}

#[tokio::test]
async fn packs_that_lie_are_the_peers_fault() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let tip = work.commit("1");
    let pack = work.pack(&[tip]);
    let mut flipped = pack.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let truncated = &pack[..pack.len() / 2];
    for bytes in [&b"not a pack at all"[..], &flipped, truncated, b""] {
        let error = world.receive(&repo, bytes).await.unwrap_err();
        assert!(matches!(error, GitError::BadPack(_)), "{error:?}");
        assert!(!error.is_ours(), "{error}");
    }
}

#[tokio::test]
async fn objects_that_git_would_refuse_are_refused() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    work.write("blob", b"[core]\n");
    let blob = work.git(&["hash-object", "-w", "blob"]);
    // A tree that would write into the clone's own .git directory.
    let tree = git(work.dir.path(), &["mktree"], format!("100644 blob {blob}\t.git\n").as_bytes());
    let tree = tree.unwrap();
    let commit = work.git(&["commit-tree", &tree, "-m", "evil"]);
    let pack = work.pack_only(&[&blob, &tree, &commit].map(|oid| oid.parse().unwrap()));
    let error = world.receive(&repo, &pack).await.unwrap_err();
    assert!(matches!(&error, GitError::BadPack(why) if why.contains("hasDotgit")), "{error:?}");
}

#[tokio::test]
async fn a_pack_over_the_limit_is_refused_and_leaves_nothing_behind() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    work.write("noise", &noise(200_000));
    let pack = work.pack(&[work.commit("1")]);
    let incoming = world.store.incoming(&repo, Claimant::default()).await.unwrap();
    let mut unpacking = incoming.unpack(10_000, PLENTY).await.unwrap();
    let error = match unpacking.feed(&pack).await {
        Ok(()) => unpacking.finish().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, GitError::TooLarge { limit: 10_000 }), "{error:?}");
    drop(incoming);
    let world = world.restart().await;
    assert_eq!(files_below(&world.root().join("incoming")), Vec::<std::path::PathBuf>::new());
    assert!(world.store.refs(&repo).await.unwrap().is_empty());
}

#[tokio::test]
async fn nothing_arrives_for_a_repository_that_is_not_here() {
    let world = World::new().await;
    let mut repo = world.repo("x").await;
    repo.identifier = "y".parse().unwrap();
    let error = world.store.incoming(&repo, Claimant::default()).await.unwrap_err();
    assert!(matches!(error, GitError::NoView), "{error:?}");
    assert!(matches!(world.store.refs(&repo).await.unwrap_err(), GitError::NoView));
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    let absent = BTreeSet::from(["ab".repeat(20).parse().unwrap()]);
    assert!(!guard.check(&absent).await.unwrap().is_complete());
}

#[tokio::test]
async fn a_branch_points_at_commits_only() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    work.commit("1");
    let tree = work.rev("HEAD^{tree}");
    let error = world.push(&repo, &work, &[("refs/heads/main", Some(tree))]).await.unwrap_err();
    assert!(matches!(error, GitError::NotACommit(_)), "{error:?}");
    assert!(world.push(&repo, &work, &[("refs/tags/tree", Some(tree))]).await.is_ok());
}

#[tokio::test]
async fn pushes_to_one_family_take_turns_and_all_arrive() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let base = work.commit("base");
    world.push(&repo, &work, &[("refs/heads/main", Some(base))]).await.unwrap();
    let moves = ["a", "b", "c", "d"].map(|branch| (branch, Some(work.commit(branch))));
    let names = moves.map(|(branch, _)| format!("refs/heads/{branch}"));
    let push = async |n: usize| world.push(&repo, &work, &[(&names[n], moves[n].1)]).await;
    let (a, b, c, d) = tokio::join!(push(0), push(1), push(2), push(3));
    for pushed in [a, b, c, d] {
        pushed.unwrap();
    }
    assert_eq!(world.store.refs(&repo).await.unwrap().len(), 1 + moves.len());
    git(&world.view(&repo).await, &["fsck", "--full"], b"").unwrap();
}

#[tokio::test]
async fn the_same_objects_may_come_twice() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let tip = work.commit("1");
    world.push(&repo, &work, &[("refs/heads/a", Some(tip))]).await.unwrap();
    world.push(&repo, &work, &[("refs/heads/b", Some(tip))]).await.unwrap();
    // An empty pack, as git sends it when the server has everything.
    let incoming = world.receive(&repo, &work.pack_only(&[])).await.unwrap();
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    let refs = guard.refs(&repo.owner).await.unwrap();
    let push = judged(&refs, &[("refs/heads/c", Some(tip))]);
    execute(&mut guard, &repo.owner, &push, Some(incoming)).await.unwrap();
    let packs = files_below(&world.root().join("families"))
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "pack"));
    assert_eq!(packs.count(), 1);
}

#[tokio::test]
async fn objects_that_no_ref_of_the_push_reaches_are_not_taken_in() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let tip = work.commit("1");
    work.write("stowaway", b"nobody signed for this");
    let stowaway: Oid = work.git(&["hash-object", "-w", "stowaway"]).parse().unwrap();
    let objects = [work.objects_of_last_commit(), vec![stowaway]].concat();
    for is_prepared in [true, false] {
        let mut incoming = world.receive(&repo, &work.pack_only(&objects)).await.unwrap();
        let mut guard = world.store.lock(&repo.identifier).await.unwrap();
        let name = format!("refs/heads/{is_prepared}");
        let push = judged(&guard.refs(&repo.owner).await.unwrap(), &[(&name, Some(tip))]);
        if is_prepared {
            incoming.check_all(&BTreeSet::from([tip])).await.unwrap();
            incoming.prepare(&push).await.unwrap();
        }
        execute(&mut guard, &repo.owner, &push, Some(incoming)).await.unwrap();
        let view = world.view(&repo).await;
        git(&view, &["fsck", "--full", "--strict"], b"").unwrap();
        let found = git(&view, &["cat-file", "-e", &stowaway.to_string()], b"");
        assert!(found.is_err(), "it is readable");
    }
}

#[tokio::test]
async fn a_large_push_is_taken_as_it_came_if_all_of_it_is_needed() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    work.write("noise", &noise(17 << 20));
    let tip = work.commit("1");
    work.write("stowaway", b"nobody signed for this");
    let stowaway: Oid = work.git(&["hash-object", "-w", "stowaway"]).parse().unwrap();
    let needed = [work.objects_of_last_commit(), vec![work.rev("HEAD:noise")]].concat();
    for (more, is_taken_as_it_came) in [(vec![stowaway], false), (vec![], true)] {
        let pack = work.pack_only(&[needed.clone(), more].concat());
        let mut incoming = world.receive(&repo, &pack).await.unwrap();
        let before = pack_files(&world);
        incoming.check_all(&BTreeSet::from([tip])).await.unwrap();
        let push = judged(&Default::default(), &[("refs/heads/main", Some(tip))]);
        incoming.prepare(&push).await.unwrap();
        assert_eq!(pack_files(&world) == before, is_taken_as_it_came);
    }
}

#[tokio::test]
async fn a_small_push_is_taken_as_it_came_if_all_of_it_is_needed_or_here_already() {
    let (world, work) = (World::new().await, Work::new());
    let repo = world.repo("x").await;
    let text: String = (0..5_000).map(|n| format!("line {n}\n")).collect();
    work.write("text", text.as_bytes());
    let one = work.commit("1");
    world.push(&repo, &work, &[("refs/heads/main", Some(one))]).await.unwrap();
    work.write("text", format!("{text}and one more\n").as_bytes());
    let two = work.commit("2");
    work.write("stowaway", b"nobody signed for this");
    let stowaway: Oid = work.git(&["hash-object", "-w", "stowaway"]).parse().unwrap();
    let more = [work.objects_of_last_commit(), vec![work.rev("HEAD:text"), stowaway]].concat();
    // Git adds what a thin pack is based on.
    for (pack, is_taken_as_it_came) in [
        (work.thin_pack(two, one), true),
        (work.pack(&[two]), true),
        (work.pack_only(&more), false),
    ] {
        let mut incoming = world.receive(&repo, &pack).await.unwrap();
        let before = pack_files(&world);
        incoming.check_all(&BTreeSet::from([two])).await.unwrap();
        let refs = world.store.refs(&repo).await.unwrap();
        incoming.prepare(&judged(&refs, &[("refs/heads/main", Some(two))])).await.unwrap();
        assert_eq!(pack_files(&world) == before, is_taken_as_it_came);
    }
}

fn pack_files(world: &World) -> BTreeSet<std::path::PathBuf> {
    let packs = files_below(&world.root().join("incoming")).into_iter();
    packs.filter(|file| file.extension().is_some_and(|kind| kind == "pack")).collect()
}

#[tokio::test]
async fn what_was_prepared_is_staged_without_packing_under_the_lock() {
    let limits = StagingLimits { bytes_per_event: 100_000, ..StagingLimits::default() };
    let (world, work) = (World::limited(limits).await, Work::new());
    let repo = world.repo("x").await;
    let upload = format!("refs/nostr/{}", "a".repeat(64));
    let small = work.commit("1");
    work.write("noise", &noise(100_000));
    let large = work.commit("2");
    for (tip, fits) in [(small, true), (large, false)] {
        let mut incoming = world.receive(&repo, &work.pack(&[tip])).await.unwrap();
        incoming.check_all(&BTreeSet::from([tip])).await.unwrap();
        let push = judged(&Default::default(), &[(&upload, Some(tip))]);
        let received = pack_files(&world);
        match incoming.prepare(&push).await {
            Ok(()) => assert!(fits),
            Err(error) => {
                assert!(!fits && matches!(error, GitError::StagingFull), "{error:?}");
                continue;
            }
        }
        // Whoever packed again would need them.
        received.iter().for_each(|pack| std::fs::remove_file(pack).unwrap());
        let mut guard = world.store.lock(&repo.identifier).await.unwrap();
        execute(&mut guard, &repo.owner, &push, Some(incoming)).await.unwrap();
        let event = upload.strip_prefix("refs/nostr/").unwrap();
        let staged = guard.staged(nostr::event::EventId::from_hex(event).unwrap()).await.unwrap();
        assert_eq!(staged, BTreeSet::from([tip]));
    }
}
