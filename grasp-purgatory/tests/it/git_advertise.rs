//! Advertisements that the store writes equal those that git writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::RepoId;
use grasp_core::push::encode_pkt;
use grasp_core::resources::Claimant;
use grasp_purgatory::git::{GitProcess, Protocol, RefList, Refs, Service, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::git_fixture::{Fixture, Work, name};
#[cfg(feature = "object-store")]
use crate::git_packs::{self, Site};

/// Upper bound of the size of one chunk of a list.
const MAX_CHUNK: usize = 40 * 1024;

const CLIENT: Claimant = Claimant {
    network: None,
    author: None,
    has_authority: false,
};

const PROTOCOLS: [Protocol; 3] = [Protocol::V0, Protocol::V1, Protocol::V2];

async fn output_of(mut process: GitProcess) -> String {
    let mut answer = String::new();
    process
        .take_stdout()
        .unwrap()
        .read_to_string(&mut answer)
        .await
        .unwrap();
    process.finish().await.unwrap();
    answer
}

/// Returns the whole text of a list.
async fn text_of(list: RefList) -> String {
    let pieces = pieces_of(list).await;
    assert!(
        pieces
            .iter()
            .all(|piece| !piece.is_empty() && piece.len() < MAX_CHUNK)
    );
    String::from_utf8(pieces.concat()).unwrap()
}

async fn pieces_of(mut list: RefList) -> Vec<Arc<[u8]>> {
    let mut pieces = Vec::new();
    while let Some(piece) = list.next_piece().await.unwrap() {
        pieces.push(piece);
    }
    pieces
}

async fn assert_advertised_as_by_git(fixture: &Fixture, repo: &RepoId) {
    for service in [Service::UploadPack, Service::ReceivePack] {
        for protocol in PROTOCOLS {
            let service = (service, protocol);
            let own = fixture
                .store
                .advertisement(repo, service, CLIENT)
                .await
                .unwrap();
            let git = fixture
                .store
                .advertise(repo, service, Claimant::default())
                .await
                .unwrap();
            let (own, git) = (text_of(own).await, output_of(git).await);
            // Git before version 2.41 does not tell its capabilities for an empty repository.
            let is_silent = matches!(git.as_str(), "0000" | "000eversion 1\n0000");
            match is_silent {
                true => assert!(own.contains(" capabilities^{}\0"), "{service:?}: {own}"),
                false => assert_eq!(own, git, "{service:?}"),
            }
        }
    }
}

fn ls_refs(capabilities: &[&str], arguments: &[&str]) -> Vec<u8> {
    let mut request = Vec::new();
    encode_pkt(b"command=ls-refs\n", &mut request);
    capabilities
        .iter()
        .for_each(|line| encode_pkt(line.as_bytes(), &mut request));
    request.extend_from_slice(b"0001");
    arguments
        .iter()
        .for_each(|line| encode_pkt(line.as_bytes(), &mut request));
    request.extend_from_slice(b"0000");
    request
}

async fn assert_listed_as_by_git(fixture: &Fixture, repo: &RepoId) {
    let many: Vec<String> = (0..3_000)
        .map(|n| format!("ref-prefix refs/heads/{n}\n"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let arguments: [&[&str]; 13] = [
        &[],
        &["peel\n", "symrefs\n"],
        &[
            "peel",
            "symrefs",
            "unborn",
            "ref-prefix HEAD",
            "ref-prefix refs/heads/",
        ],
        &["symrefs\n", "ref-prefix refs/tags/\n", "ref-prefix HEA\n"],
        &[
            "peel\n",
            "ref-prefix refs/heads/ma\n",
            "ref-prefix refs/heads/main\n",
        ],
        &[
            "peel\n",
            "ref-prefix refs/heads/main\n",
            "ref-prefix refs/heads/ma\n",
        ],
        &["ref-prefix refs/heads/main\n"; 3],
        &[
            "ref-prefix refs/tags/v1-\n",
            "ref-prefix refs/tags/v1\n",
            "ref-prefix refs/heads/ma/\n",
            "ref-prefix refs/tags/v\n",
            "ref-prefix refs/tags/v1\n",
            "ref-prefix refs/heads/zzz\n",
        ],
        &["ref-prefix refs/nostr/\n", "ref-prefix refs/grasp/\n"],
        &["ref-prefix nothing\n"],
        &["ref-prefix \n"],
        &[
            "ref-prefix refs/heads/main\n",
            "ref-prefix \n",
            "ref-prefix refs/tags/\n",
        ],
        &many,
    ];
    for arguments in arguments {
        let request = ls_refs(&["agent=git/2.40", "object-format=sha1"], arguments);
        let own = fixture
            .store
            .ls_refs(repo, &request, CLIENT)
            .await
            .unwrap()
            .expect("an answer");
        let claimant = Claimant::default();
        let mut git = fixture
            .store
            .upload_pack(repo, Protocol::V2, claimant)
            .await
            .unwrap();
        let mut input = git.take_stdin().unwrap();
        input.write_all(&request).await.unwrap();
        drop(input);
        let shown = &arguments[..arguments.len().min(8)];
        assert!(text_of(own).await == output_of(git).await, "{shown:?}");
    }
}

/// A repository with branches, a tag, a tag of a tag, a pull request and a replaced tip.
async fn repository(fixture: &Fixture) -> RepoId {
    let (repo, work) = (fixture.repo("x").await, Work::new());
    let (one, two) = (work.commit("1"), work.commit("2"));
    work.git(&["tag", "-a", "-m", "first", "v1", &one.to_string()]);
    work.git(&["tag", "-a", "-m", "of a tag", "v1-signed", "v1"]);
    let pull_request = format!("refs/nostr/{}", "ab".repeat(32));
    let moves = [
        ("refs/heads/main", Some(one)),
        ("refs/heads/ma/in", Some(two)),
        ("refs/tags/light", Some(one)),
        ("refs/tags/v1", Some(work.rev("v1"))),
        ("refs/tags/v1-signed", Some(work.rev("v1-signed"))),
        (pull_request.as_str(), Some(two)),
    ];
    fixture.push(&repo, &work, &moves[..5]).await.unwrap();
    fixture
        .push(&repo, &work, &[("refs/heads/main", Some(two))])
        .await
        .unwrap();
    let change = grasp_core::push::PushCommand {
        old: None,
        new: Some(two),
        name: pull_request.parse().unwrap(),
    };
    let mut guard = fixture.store.lock(&repo).await.unwrap();
    guard
        .move_refs(&[change], crate::git_fixture::now())
        .await
        .unwrap();
    repo
}

#[tokio::test]
async fn an_empty_repository_is_advertised_as_by_git() {
    let fixture = Fixture::new().await;
    let repo = fixture.repo("x").await;
    assert_advertised_as_by_git(&fixture, &repo).await;
    assert_listed_as_by_git(&fixture, &repo).await;
}

#[tokio::test]
async fn refs_peeled_tags_and_head_are_advertised_as_by_git() {
    let fixture = Fixture::new().await;
    let repo = repository(&fixture).await;
    assert_advertised_as_by_git(&fixture, &repo).await;
    assert_listed_as_by_git(&fixture, &repo).await;
}

#[tokio::test]
async fn a_head_without_its_branch_is_advertised_as_by_git() {
    let fixture = Fixture::new().await;
    let repo = repository(&fixture).await;
    let refs = Refs::clone(&fixture.store.view(&repo).await.unwrap().refs);
    fixture.database.set_refs(
        &repo,
        Refs {
            head: name("refs/heads/unborn"),
            ..refs
        },
    );
    let text = fixture
        .advertised(&repo, Service::UploadPack, Protocol::V0)
        .await;
    assert!(!text.contains("HEAD"), "{text}");
    assert_advertised_as_by_git(&fixture, &repo).await;
    assert_listed_as_by_git(&fixture, &repo).await;
}

#[tokio::test]
async fn lists_of_many_chunks_equal_those_of_git() {
    let fixture = Fixture::new().await;
    let repo = repository(&fixture).await;
    let mut refs = Refs::clone(&fixture.store.view(&repo).await.unwrap().refs);
    let targets: Vec<_> = refs.refs.values().copied().collect();
    for (n, target) in targets.iter().cycle().take(5_000).enumerate() {
        // Only tags may point at tags.
        let namespace = if target.peeled.is_some() {
            "tags"
        } else {
            "heads"
        };
        refs.refs
            .insert(name(&format!("refs/{namespace}/{n}")), *target);
    }
    fixture.database.set_refs(&repo, refs);
    let service = (Service::UploadPack, Protocol::V0);
    let list = fixture
        .store
        .advertisement(&repo, service, CLIENT)
        .await
        .unwrap();
    let chunks = pieces_of(list).await.len();
    assert!(chunks > 5, "{chunks}");
    assert_advertised_as_by_git(&fixture, &repo).await;
    assert_listed_as_by_git(&fixture, &repo).await;
}

#[tokio::test]
async fn refs_without_objects_are_left_out_for_a_client_that_pushes() {
    let fixture = Fixture::new().await;
    let repo = repository(&fixture).await;
    let here = fixture.store.refs(&repo).await.unwrap();
    let mut refs = Refs::clone(&fixture.store.view(&repo).await.unwrap().refs);
    let lost = Target {
        oid: "cd".repeat(20).parse().unwrap(),
        peeled: None,
    };
    for text in ["refs/heads/a", "refs/heads/z", "refs/tags/lost"] {
        refs.refs.insert(name(text), lost);
    }
    fixture.database.set_refs(&repo, refs);
    for protocol in PROTOCOLS {
        let service = (Service::ReceivePack, protocol);
        let own = text_of(
            fixture
                .store
                .advertisement(&repo, service, CLIENT)
                .await
                .unwrap(),
        )
        .await;
        assert_eq!(own.matches(" refs/").count(), here.len(), "{own}");
        assert!(!own.contains(&lost.oid.to_string()), "{own}");
    }
    // A client that fetches is told of them: its fetch fails, instead of bringing less than there was.
    for protocol in [Protocol::V0, Protocol::V1] {
        let service = (Service::UploadPack, protocol);
        let text = text_of(
            fixture
                .store
                .advertisement(&repo, service, CLIENT)
                .await
                .unwrap(),
        )
        .await;
        assert!(
            text.contains(&format!("{} refs/heads/a\n", lost.oid)),
            "{text}"
        );
    }
}

#[cfg(feature = "object-store")]
#[tokio::test]
async fn a_node_reads_refs_once_for_each_generation() {
    let site = Site::on_s3().await;
    let writer = site.writer().await;
    let (repo, work, first) = git_packs::repository(&writer, "x").await;
    let requests = async || {
        let list = (Service::ReceivePack, Protocol::V0);
        let list = writer.store.advertisement(&repo, list, CLIENT).await;
        let list = text_of(list.unwrap()).await;
        let git = (Service::UploadPack, Protocol::V0);
        let git = writer.store.advertise(&repo, git, CLIENT).await;
        (list, output_of(git.unwrap()).await)
    };
    let second = work.commit("second");
    for tip in [first, second] {
        if tip == second {
            let main = ("refs/heads/main", Some(tip));
            writer.push(&repo, &work, &[main]).await.unwrap();
        }
        let (list, git) = requests().await;
        let shown = format!("{tip} refs/heads/main");
        assert!(
            list.contains(&shown) && git.contains(&shown),
            "{list} {git}"
        );
        let reads = site.database.reads_of_refs();
        for _ in 0..4 {
            assert_eq!(requests().await, (list.clone(), git.clone()));
        }
        assert_eq!(site.database.reads_of_refs(), reads);
    }
}

#[tokio::test]
async fn other_requests_are_left_to_git() {
    let fixture = Fixture::new().await;
    let repo = repository(&fixture).await;
    let mut fetch = Vec::new();
    encode_pkt(b"command=fetch", &mut fetch);
    fetch.extend_from_slice(b"00010000");
    let listed = ls_refs(&[], &["peel"]);
    for request in [
        fetch.as_slice(),
        &listed[..listed.len() - 1],
        b"0000",
        b"",
        &ls_refs(&[], &["surprise"]),
        &ls_refs(&["object-format=sha256"], &["peel"]),
    ] {
        assert!(
            fixture
                .store
                .ls_refs(&repo, request, CLIENT)
                .await
                .unwrap()
                .is_none(),
            "{request:?}"
        );
    }
    assert!(
        fixture
            .store
            .ls_refs(&repo, &listed, CLIENT)
            .await
            .unwrap()
            .is_some()
    );
}

/// Adds this number of branches.
async fn add_branches(fixture: &Fixture, repo: &RepoId, count: usize) {
    let mut refs = Refs::clone(&fixture.store.view(repo).await.unwrap().refs);
    let target = refs.refs[&name("refs/heads/main")];
    for n in 0..count {
        refs.refs.insert(name(&format!("refs/heads/{n}")), target);
    }
    fixture.database.set_refs(repo, refs);
}

#[tokio::test]
async fn a_list_is_encoded_once_for_each_generation() {
    let fixture = Fixture::new().await;
    let repo = repository(&fixture).await;
    add_branches(&fixture, &repo, 2_000).await;
    for service in [Service::UploadPack, Service::ReceivePack] {
        let list = async || {
            let service = (service, Protocol::V0);
            pieces_of(
                fixture
                    .store
                    .advertisement(&repo, service, CLIENT)
                    .await
                    .unwrap(),
            )
            .await
        };
        let (first, second) = (list().await, list().await);
        assert!(
            first
                .iter()
                .zip(&second)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        );
        let count = fixture.store.refs(&repo).await.unwrap().len();
        add_branches(&fixture, &repo, 2_000 + count).await;
        let third = list().await;
        assert!(
            !third
                .iter()
                .any(|piece| first.iter().any(|old| Arc::ptr_eq(piece, old)))
        );
        assert!(third.len() > first.len());
    }
}

#[tokio::test]
async fn a_list_for_pushes_follows_the_packs() {
    let fixture = Fixture::new().await;
    let repo = repository(&fixture).await;
    let service = (Service::ReceivePack, Protocol::V0);
    let list = async || {
        text_of(
            fixture
                .store
                .advertisement(&repo, service, CLIENT)
                .await
                .unwrap(),
        )
        .await
    };
    assert!(list().await.contains("refs/heads/main"));
    std::fs::remove_dir_all(fixture.repo_dir(&repo).join("objects/pack")).unwrap();
    assert!(!list().await.contains("refs/heads/main"));
}

#[tokio::test]
async fn many_prefixes_take_little_time() {
    let fixture = Fixture::new().await;
    let repo = repository(&fixture).await;
    let prefixes: Vec<String> = (0..60_000).map(|n| format!("ref-prefix {n:x}x")).collect();
    let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    let request = ls_refs(&[], &prefixes);
    let start = Instant::now();
    let list = fixture
        .store
        .ls_refs(&repo, &request, CLIENT)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(text_of(list).await, "0000");
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
}
