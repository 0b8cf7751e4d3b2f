//! Where an event may send us, and how often.

use std::num::NonZeroUsize;

use super::*;

#[tokio::test]
async fn addresses_that_may_not_be_dialled_are_not() {
    // This one does not go to loopback for strangers.
    let instance = Instance::with(|settings| {
        hurried(settings);
        settings.outbound = OutboundPolicy::default();
    })
    .await;
    let (server, alice) = (GitServer::start().await, Author::new());
    let (_work, commit) = hosted_at(&server, "x").await;
    let port = server.address().port();
    let mut places: Vec<String> = [
        "ext::sh -c touch% /tmp/owned",
        "file:///etc",
        "ssh://git@127.0.0.1/x.git",
        "git://127.0.0.1/x.git",
        "-oProxyCommand=x",
        "/etc",
    ]
    .map(str::to_owned)
    .to_vec();
    for host in ["127.0.0.1", "user:pass@127.0.0.1", "localhost", "[::1]", "2130706433", "10.0.0.1"]
    {
        places.push(format!("http://{host}:{port}/x.git"));
    }
    places
        .extend((0..10_000).map(|n| format!("http://127.{}.{}.1:{port}/x.git", n / 250, n % 250)));
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let announcement = announce(&alice, "x", &instance, &places);
    let state = alice.state("x", &[(MAIN, &commit)]);
    let verdicts = instance.ingest_from_relay(vec![announcement, state.clone()]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(server.requests().is_empty(), "{:?} after {verdicts:?}", server.requests());
    assert!(!instance.serves(&state).await);
}

#[tokio::test]
async fn of_fifteen_hundred_places_few_are_asked_and_the_good_one_is_found() {
    const AT_ONCE: usize = 8;
    let instance = Instance::with(|settings| {
        hurried(settings);
        settings.processes.remote_pace = NonZeroUsize::new(AT_ONCE).unwrap();
    })
    .await;
    // All of loopback leads to the first, which has nothing; only one place leads to the other.
    let (everywhere, good) = (
        GitServer::at("0.0.0.0", Behaviour::Correct).await,
        GitServer::at("127.0.0.7", Behaviour::Correct).await,
    );
    let port = everywhere.address().port();
    let (_work, commit) = hosted_at(&good, "x").await;
    let mut places: Vec<String> = (0..1_500)
        .map(|n| format!("http://127.{}.{}.1:{port}/x.git", 1 + n / 250, n % 250))
        .collect();
    places.insert(12, good.url("x"));
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let alice = Author::new();
    let announcement = announce(&alice, "x", &instance, &places);
    let state = alice.state("x", &[(MAIN, &commit)]);
    let start = Instant::now();
    instance.ingest_from_relay(vec![announcement, state.clone()]).await;
    instance.until_serves(&state).await;
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let (asked, at_once) = (everywhere.conversations().len(), everywhere.max_open());
    assert!((1..=32).contains(&asked), "{asked} were asked");
    assert!(at_once <= AT_ONCE, "{at_once} at once");
    let figures = instance.purgatory().hunting().unwrap().figures().await.unwrap();
    assert!(figures.hosts.len() <= 32, "{} are remembered", figures.hosts.len());
}
