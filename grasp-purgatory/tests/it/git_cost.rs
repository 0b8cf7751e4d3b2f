//! The memory and time that received data may cost are bounded by its size.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::Oid;
use grasp_core::resources::Claimant;
use grasp_purgatory::git::{Git, GitError, Incoming, Protocol, Slots, StagingLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::git_fixture::{Fixture, MAX_PACK_BYTES, Work, git, new_repo, open};

/// Returns a commit whose tree has `length` versions of a file, and its pack, in which they are one chain of deltas.
fn chain(work: &Work, length: usize) -> (Oid, Vec<u8>) {
    let text: String = (0..200).map(|n| format!("line {n}\n")).collect();
    let mut input = String::from("feature done\n");
    for n in 1..=length {
        let text = format!("{text}version {n}\n");
        writeln!(input, "blob\nmark :{n}\ndata {}\n{text}", text.len()).unwrap();
    }
    input.push_str("commit refs/heads/chain\ncommitter a <a@b> 1 +0000\ndata 1\nx\n");
    for n in 1..=length {
        writeln!(input, "M 100644 :{n} {n}").unwrap();
    }
    input.push_str("done\n");
    git(
        work.dir.path(),
        &["fast-import", "--quiet", "--depth=4000"],
        input.as_bytes(),
    )
    .unwrap();
    let tip = work.rev("chain");
    (tip, work.pack_as_stored(tip))
}

async fn check(mut incoming: Incoming, tip: Oid) -> Result<(), GitError> {
    incoming.check_all(&BTreeSet::from([tip])).await
}

#[tokio::test]
async fn a_pack_with_a_long_chain_of_deltas_is_refused_before_it_is_read() {
    let fixture = Fixture::new().await;
    let repo = fixture.repo("x").await;
    for (length, is_refused) in [(251, false), (252, true)] {
        let (tip, pack) = chain(&Work::new(), length);
        let checked = check(fixture.receive(&repo, &pack).await.unwrap(), tip).await;
        let refused = matches!(checked, Err(GitError::LongChain { limit: 250 }));
        assert_eq!(refused, is_refused, "{length}: {checked:?}");
        assert_eq!(checked.is_ok(), !is_refused, "{length}: {checked:?}");
    }
}

#[tokio::test]
async fn a_long_chain_that_was_fetched_is_refused_as_well() {
    let fixture = Fixture::new().await;
    let (tip, pack) = chain(&Work::new(), 400);
    let repo = new_repo("x");
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
    unpacking.feed(&pack).await.unwrap();
    unpacking.finish().await.unwrap();
    let taken = fixture
        .store
        .repository(&repo)
        .take_in(incoming, &BTreeSet::from([tip]))
        .await;
    assert!(
        matches!(taken, Err(GitError::LongChain { .. })),
        "{taken:?}"
    );
}

/// Returns a commit with a message of `mebibytes` MiB, and its pack, in which that is compressed to almost nothing.
fn bomb(work: &Work, mebibytes: usize) -> (Oid, Vec<u8>) {
    work.commit("1");
    let mut commit = format!("tree {}\n", work.rev("HEAD^{tree}")).into_bytes();
    commit.extend_from_slice(b"author a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\n");
    commit.resize(commit.len() + (mebibytes << 20), b'x');
    let hash = ["hash-object", "-w", "-t", "commit", "--stdin"];
    let tip: Oid = git(work.dir.path(), &hash, &commit)
        .unwrap()
        .parse()
        .unwrap();
    (tip, work.pack(&[tip]))
}

#[tokio::test]
async fn a_small_pack_gets_little_memory_and_a_maintainers_gets_more() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let (_, pack) = bomb(&work, 80);
    assert!(pack.len() < 1 << 20);
    for (claimant, fits) in [(Claimant::default(), false), (Claimant::server(), true)] {
        let incoming = fixture
            .store
            .repository(&repo)
            .incoming(claimant)
            .await
            .unwrap();
        let mut unpacking = incoming
            .unpack(MAX_PACK_BYTES, MAX_PACK_BYTES)
            .await
            .unwrap();
        let unpacked = match unpacking.feed(&pack).await {
            Ok(()) => unpacking.finish().await,
            Err(error) => Err(error),
        };
        match unpacked {
            Ok(()) => assert!(fits),
            Err(GitError::BadPack(why)) => assert!(!fits && why.contains("memory"), "{why}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn the_memory_limit_grows_with_the_size_of_the_pack() {
    let fixture = Fixture::new().await;
    let repo = fixture.repo("x").await;
    // Two versions of a large file, one a delta of the other; then 10 MiB that no compression makes smaller.
    for (noise, fits) in [(0, false), (10 << 18, true)] {
        let work = Work::new();
        let text = b"0123456789abcde\n".repeat(40 << 16);
        work.write("large", &text);
        work.write("noise", &crate::git_fixture::noise(noise));
        work.commit("1");
        work.write("large", &[&text[..], b"more\n"].concat());
        let tip = work.commit("2");
        match fixture.receive(&repo, &work.pack(&[tip])).await {
            Ok(incoming) => assert!(fits && check(incoming, tip).await.is_ok()),
            Err(GitError::BadPack(why)) => assert!(!fits && why.contains("memory"), "{why}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn all_pushes_share_one_budget_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    // A quarter of it is for clients without authority: room for receiving one pack.
    let git = Git::find(
        &path,
        Slots {
            unpack_memory: 96 << 20,
            ..Slots::default()
        },
    )
    .unwrap();
    let store = open(dir.path(), git, StagingLimits::default(), &Arc::default())
        .await
        .unwrap();
    let repo = new_repo("x");
    let incoming = store.repository(&repo).incoming_for().await.unwrap();
    let first = incoming
        .unpack(MAX_PACK_BYTES, MAX_PACK_BYTES)
        .await
        .unwrap();
    let second = incoming.unpack(MAX_PACK_BYTES, MAX_PACK_BYTES);
    let mut second = std::pin::pin!(second);
    assert!(
        timeout(Duration::from_millis(50), &mut second)
            .await
            .is_err()
    );
    drop(first);
    second.await.unwrap();
}

#[tokio::test]
async fn slow_senders_do_not_block_pushes_that_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    // A quarter of it is for clients without authority: room for resolving the deltas of one pack while others are received.
    let git = Git::find(
        &path,
        Slots {
            unpack_memory: 600 << 20,
            ..Slots::default()
        },
    )
    .unwrap();
    let store = open(dir.path(), git, StagingLimits::default(), &Arc::default())
        .await
        .unwrap();
    let incoming = store
        .repository(&new_repo("x"))
        .incoming_for()
        .await
        .unwrap();
    let work = Work::new();
    let pack = work.pack(&[work.commit("1")]);
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut unpacking = incoming
            .unpack(MAX_PACK_BYTES, MAX_PACK_BYTES)
            .await
            .unwrap();
        unpacking.feed(&pack).await.unwrap();
        slow.push(unpacking);
    }
    let mut unpacking = incoming
        .unpack(MAX_PACK_BYTES, MAX_PACK_BYTES)
        .await
        .unwrap();
    unpacking.feed(&pack).await.unwrap();
    unpacking.finish().await.unwrap();
    drop(slow);
}

#[tokio::test]
async fn pushes_that_are_complete_do_not_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    // Room for receiving three packs of clients without authority, and for resolving the deltas of one.
    let git = Git::find(
        &path,
        Slots {
            unpack_memory: 352 << 20,
            ..Slots::default()
        },
    )
    .unwrap();
    let store = open(dir.path(), git, StagingLimits::default(), &Arc::default())
        .await
        .unwrap();
    let incoming = store
        .repository(&new_repo("x"))
        .incoming_for()
        .await
        .unwrap();
    let work = Work::new();
    let pack = work.pack(&[work.commit("1")]);
    let mut complete = Vec::new();
    for _ in 0..3 {
        let mut unpacking = incoming
            .unpack(MAX_PACK_BYTES, MAX_PACK_BYTES)
            .await
            .unwrap();
        unpacking.feed(&pack).await.unwrap();
        complete.push(unpacking);
    }
    let ending: Vec<_> = complete
        .into_iter()
        .map(|one| tokio::spawn(one.finish()))
        .collect();
    for one in ending {
        let ended = timeout(Duration::from_secs(30), one).await;
        ended.expect("no push waits for another").unwrap().unwrap();
    }
}

#[tokio::test]
async fn only_filters_that_cost_little_are_served() {
    let (fixture, work) = (Fixture::new().await, Work::new());
    let repo = fixture.repo("x").await;
    let tip = work.commit("1");
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(tip))])
        .await
        .unwrap();
    let sparse = format!("sparse:oid={tip}");
    for (filter, is_served) in [
        ("blob:none", true),
        ("blob:limit=1k", true),
        ("tree:1", true),
        ("object:type=commit", true),
        ("combine:blob:none+tree:1", false),
        (sparse.as_str(), false),
    ] {
        let answer = fetch_filtered(&fixture, &repo, tip, filter).await;
        let has_pack = answer.windows(4).any(|window| window == b"PACK");
        assert_eq!(
            has_pack,
            is_served,
            "{filter}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
}

async fn fetch_filtered(
    fixture: &Fixture,
    repo: &grasp_core::RepoId,
    tip: Oid,
    filter: &str,
) -> Vec<u8> {
    let pkt = |text: String| format!("{:04x}{text}", text.len() + 4);
    let request = [
        pkt(String::from("command=fetch")),
        String::from("0001"),
        pkt(format!("want {tip}\n")),
        pkt(format!("filter {filter}\n")),
        pkt(String::from("done\n")),
        String::from("0000"),
    ]
    .concat();
    let upload = fixture
        .store
        .upload_pack(repo, Protocol::V2, Claimant::default());
    let mut process = upload.await.unwrap();
    let mut stdin = process.take_stdin().unwrap();
    stdin.write_all(request.as_bytes()).await.unwrap();
    drop(stdin);
    let mut answer = Vec::new();
    process
        .take_stdout()
        .unwrap()
        .read_to_end(&mut answer)
        .await
        .unwrap();
    process.finish().await.unwrap();
    answer
}
