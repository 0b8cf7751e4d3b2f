//! A server that has lost its memory gets it back from the others.

use std::path::Path;

use grasp_sync::index::ConnectionStatus;
use grasp_tests::{Author, eventually_async};

use super::net::{Hosted, MAIN, Net};
use super::threads::comment;

/// Three servers with a history that is older than what anybody catches up with.
async fn three_with_a_history() -> (Net, Author, Hosted) {
    let (net, alice) = (Net::of(3).await, Author::new().earlier(5_000));
    let hosted = net.host(0, &alice, "x").await;
    net.equal().serving(hosted.signed()).wait().await;
    let issue = alice.later(1).issue(&hosted.repo, "what is this?");
    let reply = comment(&alice.later(2), &issue, &issue, "a test");
    let nested = comment(&alice.later(3), &issue, &reply, "of what?");
    net.at(1).publish_all(&[&issue, &reply, &nested]).await;
    net.equal().serving([&issue, &reply, &nested]).wait().await;
    (net, alice, hosted)
}

/// Empties the third server in a way, and has it come back.
async fn come_back_after(empty: impl FnOnce(&Path)) {
    let (mut net, alice, hosted) = three_with_a_history().await;
    let before = net.at(0).events().await.unwrap();
    net.members[2].stop().await;
    empty(net.members[2].dir());
    net.members[2].start().await;
    let equal = net.equal().serving(before.values());
    equal.with_refs(&hosted.repo, &[(MAIN, &hosted.first)]).wait().await;

    // Refs are back before the others are: what is published now is old, and would wait for the daily comparison.
    for by in 0..2 {
        let (one, other) = (&net.members[by], &net.members[2]);
        eventually_async(|| async {
            let status = one.thinks_of(other).await?;
            (status.connection == ConnectionStatus::Connected).then_some(())
        })
        .await;
    }

    // A push before the server has noticed that objects are gone would be refused for want of them.
    hosted.clone_until_whole(&net.at(2)).await;

    // It is a full member again.
    let next = hosted.work.commit("next").await;
    let state = alice.later(4).state("x", &[(MAIN, &next)]);
    net.at(2).publish_all(&[&state]).await;
    hosted.push(&net.at(2), &["main"]).await;
    net.equal().serving([&state]).with_refs(&hosted.repo, &[(MAIN, &next)]).wait().await;
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
async fn a_server_without_anything_rejoins() {
    come_back_after(|dir| remove(dir, &[""])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_events_rejoins_although_it_remembers_having_fetched_them() {
    come_back_after(|dir| remove(dir, &["grasp.db"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_repositories_gets_them_back() {
    // It is the regular look at everything that finds out; here it is not waited for an hour.
    come_back_after(|dir| remove(dir, &["git"])).await;
}
