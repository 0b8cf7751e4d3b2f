//! Files that are lost or damaged on disk are fetched from another server, within a minute and without an operator.

use std::path::PathBuf;

use grasp_tests::{Author, Settings, files};

use super::network::{Hosted, MAIN, Network};

/// Starts two servers with a repository of three pushes, each in a pack of its own.
async fn two_with_a_history() -> (Network, Hosted) {
    let network = Network::with_settings(2, &Settings::one_process()).await;
    let alice = Author::new().earlier(5_000);
    let hosted = network.host(0, &alice, "x").await;
    for n in 1..3 {
        let tip = hosted.work.commit(&format!("next {n}")).await;
        let state = alice.later(n).state("x", &[(MAIN, &tip)]);
        network.at(0).publish_all(&[&state]).await;
        hosted.push(&network.at(0), &["main"]).await;
        network
            .convergence()
            .serving([&state])
            .with_refs(&hosted.repo, &[(MAIN, &tip)])
            .wait()
            .await;
    }
    (network, hosted)
}

fn git_dir(network: &Network) -> PathBuf {
    network.members[1].dir().join("git")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_deleted_file_is_restored() {
    let (network, hosted) = two_with_a_history().await;
    hosted.clone_until_complete(&network.at(1)).await;
    let mut lost = files(&git_dir(&network));
    lost.retain(|file| !file.ends_with("lock"));
    assert!(
        lost.iter()
            .filter(|file| file.extension().is_some_and(|it| it == "pack"))
            .count()
            > 1
    );
    for file in lost {
        // Earlier repairs may have replaced it.
        if std::fs::remove_file(&file).is_ok() {
            hosted.clone_until_complete(&network.at(1)).await;
        }
    }
    let health = network.at(1).get("/health").await;
    assert!(health.ends_with("ok\n"), "{health}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_byte_is_found_and_repaired() {
    let (network, hosted) = two_with_a_history().await;
    let all = files(&git_dir(&network));
    let packs: Vec<_> = all
        .iter()
        .filter(|it| it.extension().is_some_and(|it| it == "pack"))
        .collect();
    for pack in packs {
        let mut bytes = std::fs::read(pack).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        let mut permissions = std::fs::metadata(pack).unwrap().permissions();
        #[allow(clippy::permissions_set_readonly_false, reason = "a file of the test")]
        permissions.set_readonly(false);
        std::fs::set_permissions(pack, permissions).unwrap();
        std::fs::write(pack, bytes).unwrap();
    }
    let purgatory = network.members[1].purgatory();
    let (repos, now) = (purgatory.repos(), purgatory.relay().now().unix);
    let damaged = repos
        .repository(&hosted.repo)
        .verify(now + 1, now)
        .await
        .unwrap();
    assert!(damaged.len() > 1, "{damaged:?}");
    purgatory.run_maintenance().await.unwrap();
    hosted.clone_until_complete(&network.at(1)).await;
    let damaged = repos
        .repository(&hosted.repo)
        .verify(now + 1, now)
        .await
        .unwrap();
    assert!(damaged.is_empty(), "{damaged:?}");
}
