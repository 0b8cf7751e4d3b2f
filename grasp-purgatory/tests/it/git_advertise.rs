//! Advertisements written without git are those that git would send.

use grasp_core::RepoId;
use grasp_core::push::encode_pkt;
use grasp_core::resources::Claimant;
use grasp_purgatory::git::{GitProcess, Protocol, Service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::git_fixture::{Work, World, files_below};

const PROTOCOLS: [Protocol; 3] = [Protocol::V0, Protocol::V1, Protocol::V2];

async fn output_of(mut process: GitProcess) -> String {
    let mut answer = String::new();
    process.take_stdout().unwrap().read_to_string(&mut answer).await.unwrap();
    process.finish().await.unwrap();
    answer
}

async fn assert_advertised_as_by_git(world: &World, repo: &RepoId) {
    for service in [Service::UploadPack, Service::ReceivePack] {
        for protocol in PROTOCOLS {
            let service = (service, protocol);
            let own = world.store.advertisement(repo, service).await.unwrap().expect("an answer");
            let git = world.store.advertise(repo, service, Claimant::default()).await.unwrap();
            assert_eq!(String::from_utf8(own).unwrap(), output_of(git).await, "{service:?}");
        }
    }
}

fn ls_refs(capabilities: &[&str], arguments: &[&str]) -> Vec<u8> {
    let mut request = Vec::new();
    encode_pkt(b"command=ls-refs\n", &mut request);
    capabilities.iter().for_each(|line| encode_pkt(line.as_bytes(), &mut request));
    request.extend_from_slice(b"0001");
    arguments.iter().for_each(|line| encode_pkt(line.as_bytes(), &mut request));
    request.extend_from_slice(b"0000");
    request
}

async fn assert_listed_as_by_git(world: &World, repo: &RepoId) {
    let arguments: [&[&str]; 8] = [
        &[],
        &["peel\n", "symrefs\n"],
        &["peel", "symrefs", "unborn", "ref-prefix HEAD", "ref-prefix refs/heads/"],
        &["symrefs\n", "ref-prefix refs/tags/\n", "ref-prefix HEA\n"],
        &["peel\n", "ref-prefix refs/heads/ma\n", "ref-prefix refs/heads/main\n"],
        &["ref-prefix refs/nostr/\n", "ref-prefix refs/grasp/\n"],
        &["ref-prefix nothing\n"],
        &["ref-prefix \n"],
    ];
    for arguments in arguments {
        let request = ls_refs(&["agent=git/2.40", "object-format=sha1"], arguments);
        let own = world.store.ls_refs(repo, &request).await.unwrap().expect("an answer");
        let claimant = Claimant::default();
        let mut git = world.store.upload_pack(repo, Protocol::V2, claimant).await.unwrap();
        let mut input = git.take_stdin().unwrap();
        input.write_all(&request).await.unwrap();
        drop(input);
        assert_eq!(String::from_utf8(own).unwrap(), output_of(git).await, "{arguments:?}");
    }
}

/// A repository with branches, a tag, a tag of a tag, a pull request and a replaced tip.
async fn repository(world: &World) -> RepoId {
    let (repo, work) = (world.repo("x").await, Work::new());
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
    world.push(&repo, &work, &moves[..5]).await.unwrap();
    world.push(&repo, &work, &[("refs/heads/main", Some(two))]).await.unwrap();
    let change = grasp_core::push::PushCommand {
        old: None,
        new: Some(two),
        name: pull_request.parse().unwrap(),
    };
    let mut guard = world.store.lock(&repo.identifier).await.unwrap();
    guard.move_refs(&repo.owner, &[change], None, crate::git_fixture::now()).await.unwrap();
    repo
}

#[tokio::test]
async fn an_empty_repository_is_advertised_as_by_git() {
    let world = World::new().await;
    let repo = world.repo("x").await;
    assert_advertised_as_by_git(&world, &repo).await;
    assert_listed_as_by_git(&world, &repo).await;
}

#[tokio::test]
async fn refs_peeled_tags_and_head_are_advertised_as_by_git() {
    let world = World::new().await;
    let repo = repository(&world).await;
    assert_advertised_as_by_git(&world, &repo).await;
    assert_listed_as_by_git(&world, &repo).await;
}

#[tokio::test]
async fn a_head_without_its_branch_is_advertised_as_by_git() {
    let world = World::new().await;
    let repo = repository(&world).await;
    std::fs::write(world.view(&repo).join("HEAD"), "ref: refs/heads/unborn\n").unwrap();
    assert_advertised_as_by_git(&world, &repo).await;
    assert_listed_as_by_git(&world, &repo).await;
}

#[tokio::test]
async fn refs_without_objects_are_left_to_git_for_a_client_that_pushes() {
    let world = World::new().await;
    let repo = repository(&world).await;
    let packs = files_below(&world.root()).into_iter();
    let packs = packs.filter(|path| path.extension().is_some_and(|e| e == "pack" || e == "idx"));
    packs.for_each(|pack| std::fs::remove_file(pack).unwrap());
    let service = (Service::ReceivePack, Protocol::V0);
    assert_eq!(world.store.advertisement(&repo, service).await.unwrap(), None);
    // A client that fetches is told of them: its fetch fails, instead of bringing an empty repository.
    let service = (Service::UploadPack, Protocol::V0);
    assert!(world.store.advertisement(&repo, service).await.unwrap().is_some());
}

#[tokio::test]
async fn other_requests_and_refs_made_by_hand_are_left_to_git() {
    let world = World::new().await;
    let repo = repository(&world).await;
    let mut fetch = Vec::new();
    encode_pkt(b"command=fetch", &mut fetch);
    fetch.extend_from_slice(b"00010000");
    let listed = ls_refs(&[], &["peel"]);
    let too_many = vec!["ref-prefix a"; 2_000];
    for request in [
        fetch.as_slice(),
        &listed[..listed.len() - 1],
        b"0000",
        b"",
        &ls_refs(&[], &["surprise"]),
        &ls_refs(&["object-format=sha256"], &["peel"]),
        &ls_refs(&[], &too_many),
    ] {
        assert_eq!(world.store.ls_refs(&repo, request).await.unwrap(), None, "{request:?}");
    }
    assert!(world.store.ls_refs(&repo, &listed).await.unwrap().is_some());
    let view = world.view(&repo);
    crate::git_fixture::git(&view, &["update-ref", "refs/heads/hand", "main"], b"").unwrap();
    assert_eq!(world.store.ls_refs(&repo, &listed).await.unwrap(), None);
    let service = (Service::UploadPack, Protocol::V0);
    assert_eq!(world.store.advertisement(&repo, service).await.unwrap(), None);
}
