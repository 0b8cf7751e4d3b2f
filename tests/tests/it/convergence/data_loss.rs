//! A server that has lost data gets it back from the others.

use std::path::Path;

use grasp_core::sync::ConnectionStatus;
use grasp_tests::{Author, eventually_async};

use super::network::{Hosted, MAIN, Network};
use super::threads::comment;

/// Starts three servers with a history that is older than the catch-up after a reconnect.
async fn three_with_a_history() -> (Network, Author, Hosted) {
    let (network, alice) = (Network::start(3).await, Author::new().earlier(5_000));
    let hosted = network.host(0, &alice, "x").await;
    network.convergence().serving(hosted.signed()).wait().await;
    let issue = alice.later(1).issue(&hosted.repo, "an issue");
    let reply = comment(&alice.later(2), &issue, &issue, "a comment");
    let nested = comment(&alice.later(3), &issue, &reply, "a reply");
    network.at(1).publish_all(&[&issue, &reply, &nested]).await;
    network
        .convergence()
        .serving([&issue, &reply, &nested])
        .wait()
        .await;
    (network, alice, hosted)
}

/// Deletes data of the third server while it is stopped, and waits until it has everything again.
async fn recovers_after(delete: impl FnOnce(&Path)) {
    let (mut network, alice, hosted) = three_with_a_history().await;
    let before = network.at(0).events().await.unwrap();
    network.members[2].stop().await;
    delete(network.members[2].dir());
    network.members[2].start().await;
    let convergence = network.convergence().serving(before.values());
    convergence
        .with_refs(&hosted.repo, &[(MAIN, &hosted.first)])
        .wait()
        .await;

    // Refs are back before connections are: an old event that is published now would wait for the daily pass.
    for by in 0..2 {
        let (one, other) = (&network.members[by], &network.members[2]);
        eventually_async(|| async {
            let status = one.status_of(other).await?;
            (status.connection == ConnectionStatus::Connected).then_some(())
        })
        .await;
    }

    // A push before the server has noticed the missing objects would be refused.
    hosted.clone_until_complete(&network.at(2)).await;

    // The server accepts new events and pushes.
    let next = hosted.work.commit("next").await;
    let state = alice.later(4).state("x", &[(MAIN, &next)]);
    network.at(2).publish_all(&[&state]).await;
    hosted.push(&network.at(2), &["main"]).await;
    network
        .convergence()
        .serving([&state])
        .with_refs(&hosted.repo, &[(MAIN, &next)])
        .wait()
        .await;
}

fn remove(dir: &Path, names: &[&str]) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if !names.iter().any(|one| name.starts_with(one)) {
            continue;
        }
        if entry.path().is_dir() {
            std::fs::remove_dir_all(entry.path()).unwrap();
        } else {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_any_data_recovers() {
    recovers_after(|dir| remove(dir, &[""])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_events_recovers_although_its_sync_records_are_complete() {
    recovers_after(|dir| remove(dir, &["grasp.db"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_repositories_recovers() {
    // The periodic pull notices it, after seconds in this test and after an hour by default.
    recovers_after(|dir| remove(dir, &["git"])).await;
}
