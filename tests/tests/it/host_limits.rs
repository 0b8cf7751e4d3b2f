//! Limits of the hunt towards git servers.

use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_purgatory::hunt::HostLimits;
use grasp_tests::{Author, Behaviour, GitServer, Instance, Workdir};
use nostr::event::Event;

use crate::hunting::{MAIN, announce, hosted_at, instance, wait_until, with_short_delays};

#[tokio::test]
async fn requests_to_a_server_stay_within_its_limits() {
    const REPOS: usize = 24;
    let per = Duration::from_millis(1_500);
    let starts = NonZeroUsize::new(12).unwrap();
    let limits = HostLimits {
        at_once: NonZeroUsize::new(3).unwrap(),
        starts,
        per,
    };
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.hunt.per_host = limits;
    })
    .await;
    let (server, alice) = (GitServer::start().await, Author::new());
    let (work, commit) = hosted_at(&server, "r0").await;
    let mut states = Vec::new();
    for n in 0..REPOS {
        let name = format!("r{n}");
        server.host(&name, &work).await;
        let announcement = announce(&alice, &name, &instance, &[&server.url(&name)]);
        states.push(alice.state(&name, &[(MAIN, &commit)]));
        instance
            .ingest_from_relay(vec![announcement, states[n].clone()])
            .await;
    }
    for state in &states {
        instance.until_serves(state).await;
    }
    assert!(server.max_open() <= 3, "{} at once", server.max_open());
    let begun = server.git_requests();
    assert_eq!(begun.len(), REPOS, "one fetch by object id each");
    // A request is counted when it starts here, and reaches the server a moment later.
    let slack = Duration::from_millis(500);
    for some in begun.windows(13) {
        assert!(
            some[12] - some[0] >= per - slack,
            "{:?}",
            some[12] - some[0]
        );
    }
}

#[tokio::test]
async fn a_rate_limited_server_is_not_contacted_before_its_retry_after() {
    const RETRY_AFTER_SECONDS: u64 = 2;
    let (instance, server, alice) = (instance().await, GitServer::start().await, Author::new());
    let (_work, commit) = hosted_at(&server, "x").await;
    server.set_behaviour(Behaviour::RateLimited(RETRY_AFTER_SECONDS));
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    wait_until(|| !server.requests().is_empty()).await;
    server.set_behaviour(Behaviour::Correct);
    instance.until_serves(&state).await;
    let requests = server.requests();
    // The response takes a moment to arrive before the pause starts.
    let pause = requests[1].at - requests[0].at;
    assert!(
        pause >= Duration::from_secs(RETRY_AFTER_SECONDS),
        "{requests:?}"
    );
}

#[tokio::test]
async fn a_restart_with_a_thousand_held_names_keeps_to_the_limits() {
    const REPOS: usize = 1_000;
    const NEVER: Duration = Duration::from_secs(600);
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        // The hunt does not start before the restart.
        settings.hunt.leading_edge = NEVER;
    })
    .await;
    let (busy, idle) = (
        GitServer::at("127.0.0.1", Behaviour::Correct).await,
        GitServer::at("127.0.0.2", Behaviour::Correct).await,
    );
    let authors = [(); 4].map(|()| Author::new());
    let (mut announcements, mut states) = (Vec::new(), Vec::new());
    for n in 0..REPOS {
        let (author, name) = (&authors[n % authors.len()], format!("r{n}"));
        announcements.push(announce(author, &name, &instance, &[&busy.url(&name)]));
        states.push(author.state(&name, &[(MAIN, &"d".repeat(40))]));
    }
    instance.ingest_from_relay(announcements).await;
    instance.ingest_from_relay(states).await;
    assert_eq!(queued(&instance).await, REPOS);
    assert!(busy.requests().is_empty());

    let short = Duration::from_millis(100);
    let instance = instance
        .restart_with(|settings| settings.hunt.leading_edge = short)
        .await;
    wait_until(|| busy.git_requests().len() >= 30).await;
    // A thousand names at one server do not delay another server.
    let (_work, commit) = hosted_at(&idle, "new").await;
    let state = authors[0].state("new", &[(MAIN, &commit)]);
    let announcement = announce(&authors[0], "new", &instance, &[&idle.url("new")]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    instance.until_serves(&state).await;

    assert_eq!(queued(&instance).await, REPOS, "all names are still queued");
    assert!(busy.max_open() <= 5, "{} at once", busy.max_open());
    assert_eq!(busy.git_requests().len(), 30, "the limit per minute");
}

/// Returns the number of names in the hunt.
async fn queued(instance: &Instance) -> usize {
    instance
        .purgatory()
        .hunting()
        .unwrap()
        .schedule()
        .await
        .len()
}

#[tokio::test]
async fn a_restart_with_many_held_names_keeps_to_the_limit_of_concurrent_requests() {
    const REPOS: usize = 24;
    let (server, alice) = (GitServer::start().await, Author::new());
    let limits = HostLimits {
        at_once: NonZeroUsize::new(3).unwrap(),
        starts: NonZeroUsize::new(1_000).unwrap(),
        ..HostLimits::default()
    };
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.hunt.per_host = limits;
        // The hunt does not start before the restart.
        settings.hunt.leading_edge = Duration::from_secs(600);
    })
    .await;
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    server.host("all", &work).await;
    let mut states: Vec<Event> = Vec::new();
    for n in 0..REPOS {
        let name = format!("r{n}");
        server.alias(&name, "all");
        states.push(alice.state(&name, &[(MAIN, &commit)]));
        let announcement = announce(&alice, &name, &instance, &[&server.url(&name)]);
        instance
            .ingest_from_relay(vec![announcement, states[n].clone()])
            .await;
    }
    assert!(server.requests().is_empty());
    let short = Duration::from_millis(100);
    let instance = instance
        .restart_with(|settings| settings.hunt.leading_edge = short)
        .await;
    for state in &states {
        instance.until_serves(state).await;
    }
    assert!(server.max_open() <= 3, "{} at once", server.max_open());
}
