//! The hourly pull for served repositories and expired events.

use super::*;

#[tokio::test]
async fn git_data_of_expired_events_is_fetched_by_the_hourly_pull() {
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.purgatory.hold_for = Duration::from_secs(1);
        settings.hunt.pull_every = Duration::from_secs(2);
    })
    .await;
    let (server, alice) = (GitServer::start().await, Author::new());
    let work = Workdir::init().await;
    let commit = work.commit("very late").await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement.clone(), state.clone()])
        .await;
    let purgatory = instance.purgatory();
    wait_until_purgatory(purgatory, |purgatory| purgatory.counts().expired == 2).await;
    server.host("x", &work).await;
    instance.until_serves(&state).await;
    assert!(instance.serves(&announcement).await);
}

#[tokio::test]
async fn objects_lost_on_disk_are_fetched_again() {
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.hunt.pull_every = Duration::from_secs(2);
    })
    .await;
    let (server, alice) = (GitServer::start().await, Author::new());
    let (work, commit) = hosted_at(&server, "x").await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    instance.until_serves(&state).await;
    delete_objects(&instance.dir().join("git/repositories"));
    let url = instance.clone_url(&alice.repo("x"));
    for _ in 0..200 {
        let clone = Workdir::empty();
        if clone.git(&["clone", "-q", &url, "."]).await.ok {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(work);
    panic!("the objects are not back within ten seconds");
}

#[tokio::test]
async fn a_repository_of_the_same_name_with_many_clone_urls_does_not_prevent_repair() {
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.hunt.pull_every = Duration::from_secs(2);
    })
    .await;
    let (server, alice, mallory) = (
        GitServer::start().await,
        Author::new(),
        Author::new().later(9),
    );
    let (_work, commit) = hosted_at(&server, "x").await;
    let clone_urls: Vec<String> = (0..400)
        .map(|n| format!("http://127.9.9.{}:{n}/", n % 250))
        .collect();
    let clone_urls: Vec<&str> = clone_urls.iter().map(String::as_str).collect();
    for (author, clone_urls) in [
        (&alice, &[server.url("x").as_str()][..]),
        (&mallory, &clone_urls),
    ] {
        let state = author.state("x", &[(MAIN, &commit)]);
        instance
            .ingest_from_relay(vec![
                announce(author, "x", &instance, clone_urls),
                state.clone(),
            ])
            .await;
        if author.key() == alice.key() {
            instance.until_serves(&state).await;
        }
    }
    delete_objects(&instance.dir().join("git/repositories"));
    let url = instance.clone_url(&alice.repo("x"));
    for _ in 0..200 {
        if Workdir::empty().git(&["clone", "-q", &url, "."]).await.ok {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the objects are not back within ten seconds");
}

#[tokio::test]
async fn objects_of_a_served_pull_request_are_fetched_again() {
    let instance = Instance::with_settings_and(grasp_tests::Settings::one_process(), |settings| {
        with_short_delays(settings);
        settings.hunt.pull_every = Duration::from_secs(2);
    })
    .await;
    let (server, fork) = (GitServer::start().await, GitServer::start().await);
    let (alice, bob) = (Author::new(), Author::new());
    let (work, commit) = hosted_at(&server, "x").await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    instance.until_serves(&state).await;
    // Only the server that the pull request names has the tip.
    let tip = work.commit("a contribution").await;
    fork.host("fork", &work).await;
    let repo = alice.repo("x").to_string();
    let tags: [&[&str]; 3] = [&["a", &repo], &["c", &tip], &["clone", &fork.url("fork")]];
    let proposal = bob.sign(1618, "please pull", &tags);
    instance.ingest_from_relay(vec![proposal.clone()]).await;
    instance.until_serves(&proposal).await;

    let before = fork.git_requests().len();
    delete_objects(&instance.dir().join("git/repositories"));
    let (url, name) = (
        instance.clone_url(&alice.repo("x")),
        format!("refs/nostr/{}", proposal.id),
    );
    for _ in 0..200 {
        let clone = Workdir::init().await;
        if clone.git(&["fetch", "-q", &url, &name]).await.ok {
            assert!(fork.git_requests().len() > before);
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the objects are not back within ten seconds");
}

/// Deletes the packs and packed refs of repositories.
fn delete_objects(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_view = path.ends_with("views");
        if path.is_dir() && !is_view {
            delete_objects(&path);
        } else if path.ends_with("packed-refs") || path.parent().unwrap().ends_with("pack") {
            std::fs::remove_file(path).unwrap();
        }
    }
}
