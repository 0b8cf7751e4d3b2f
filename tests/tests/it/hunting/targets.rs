//! The addresses that an event can make the hunt visit, and their number.

use std::num::NonZeroUsize;

use super::*;

#[tokio::test]
async fn forbidden_addresses_are_not_dialled() {
    // This instance does not connect to private addresses.
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.outbound = OutboundPolicy::default();
    })
    .await;
    let (server, alice) = (GitServer::start().await, Author::new());
    let (_work, commit) = hosted_at(&server, "x").await;
    let port = server.address().port();
    let mut clone_urls: Vec<String> = [
        "ext::sh -c touch% /tmp/owned",
        "file:///etc",
        "ssh://git@127.0.0.1/x.git",
        "git://127.0.0.1/x.git",
        "-oProxyCommand=x",
        "/etc",
    ]
    .map(str::to_owned)
    .to_vec();
    for host in [
        "127.0.0.1",
        "user:pass@127.0.0.1",
        "localhost",
        "[::1]",
        "2130706433",
        "10.0.0.1",
    ] {
        clone_urls.push(format!("http://{host}:{port}/x.git"));
    }
    clone_urls
        .extend((0..10_000).map(|n| format!("http://127.{}.{}.1:{port}/x.git", n / 250, n % 250)));
    let clone_urls: Vec<&str> = clone_urls.iter().map(String::as_str).collect();
    let announcement = announce(&alice, "x", &instance, &clone_urls);
    let state = alice.state("x", &[(MAIN, &commit)]);
    let outcomes = instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(
        server.requests().is_empty(),
        "{:?} after {outcomes:?}",
        server.requests()
    );
    assert!(!instance.serves(&state).await);
}

#[tokio::test]
async fn of_fifteen_hundred_clone_urls_few_are_visited_and_the_correct_one_is_found() {
    const MAX_CONCURRENT: usize = 8;
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.processes.remote_processes = NonZeroUsize::new(MAX_CONCURRENT).unwrap();
    })
    .await;
    // All of loopback leads to the first server, which has nothing; one URL leads to the other.
    let (empty, good) = (
        GitServer::at("0.0.0.0", Behaviour::Correct).await,
        GitServer::at("127.0.0.7", Behaviour::Correct).await,
    );
    let port = empty.address().port();
    let (_work, commit) = hosted_at(&good, "x").await;
    let mut clone_urls: Vec<String> = (0..1_500)
        .map(|n| format!("http://127.{}.{}.1:{port}/x.git", 1 + n / 250, n % 250))
        .collect();
    clone_urls.insert(12, good.url("x"));
    let clone_urls: Vec<&str> = clone_urls.iter().map(String::as_str).collect();
    let alice = Author::new();
    let announcement = announce(&alice, "x", &instance, &clone_urls);
    let state = alice.state("x", &[(MAIN, &commit)]);
    let start = Instant::now();
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    instance.until_serves(&state).await;
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
    let (visits, concurrent) = (empty.git_requests().len(), empty.max_open());
    assert!((1..=32).contains(&visits), "{visits} visits");
    assert!(
        concurrent <= MAX_CONCURRENT,
        "{concurrent} concurrent visits"
    );
    let figures = instance
        .purgatory()
        .hunting()
        .unwrap()
        .figures()
        .await
        .unwrap();
    assert!(
        figures.hosts.len() <= 32,
        "{} are remembered",
        figures.hosts.len()
    );
}
