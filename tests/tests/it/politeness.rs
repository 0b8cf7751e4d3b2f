//! Other people's git servers are treated well, whatever happens here.

use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_purgatory::hunt::HostLimits;
use grasp_tests::{Author, Behaviour, GitServer, Instance, Workdir};
use nostr::event::Event;

use crate::hunting::{MAIN, announce, hosted_at, instance, wait_until, with_short_delays};

#[tokio::test]
async fn no_server_is_asked_for_more_than_its_limits() {
    const REPOS: usize = 24;
    let per = Duration::from_millis(1_500);
    let starts = NonZeroUsize::new(12).unwrap();
    let limits = HostLimits { at_once: three(), starts, per };
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
        instance.ingest_from_relay(vec![announcement, states[n].clone()]).await;
    }
    for state in &states {
        instance.until_serves(state).await;
    }
    assert!(server.max_open() <= 3, "{} at once", server.max_open());
    let begun = server.conversations();
    assert_eq!(begun.len(), REPOS, "one fetch by object id each");
    // A conversation is counted when it is begun here, and seen there a few moments later.
    let slack = Duration::from_millis(500);
    for some in begun.windows(13) {
        assert!(some[12] - some[0] >= per - slack, "{:?}", some[12] - some[0]);
    }
}

fn three() -> NonZeroUsize {
    NonZeroUsize::new(3).unwrap()
}

#[tokio::test]
async fn a_server_that_asks_for_less_is_left_alone_as_long_as_it_says() {
    const PAUSE: u64 = 2;
    let (instance, server, alice) = (instance().await, GitServer::start().await, Author::new());
    let (_work, commit) = hosted_at(&server, "x").await;
    server.set_behaviour(Behaviour::RateLimited(PAUSE));
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance.ingest_from_relay(vec![announcement, state.clone()]).await;
    wait_until(|| !server.requests().is_empty()).await;
    server.set_behaviour(Behaviour::Correct);
    instance.until_serves(&state).await;
    let asked = server.requests();
    // The answer is on its way for a moment before the pause begins.
    assert!(asked[1].at - asked[0].at >= Duration::from_secs(PAUSE), "{asked:?}");
}

#[tokio::test]
async fn a_restart_with_a_thousand_names_waiting_asks_for_no_more_than_any_other_time() {
    const REPOS: usize = 1_000;
    const MINUTES: Duration = Duration::from_secs(600);
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        // Nothing is hunted for before the restart.
        settings.hunt.leading_edge = MINUTES;
    })
    .await;
    let (busy, quiet) = (
        GitServer::at("127.0.0.1", Behaviour::Correct).await,
        GitServer::at("127.0.0.2", Behaviour::Correct).await,
    );
    let makers = [(); 4].map(|()| Author::new());
    let (mut announcements, mut states) = (Vec::new(), Vec::new());
    for n in 0..REPOS {
        let (author, name) = (&makers[n % makers.len()], format!("r{n}"));
        announcements.push(announce(author, &name, &instance, &[&busy.url(&name)]));
        states.push(author.state(&name, &[(MAIN, &"d".repeat(40))]));
    }
    instance.ingest_from_relay(announcements).await;
    instance.ingest_from_relay(states).await;
    assert_eq!(queued(&instance).await, REPOS);
    assert!(busy.requests().is_empty());

    let soon = Duration::from_millis(100);
    let instance = instance.restart_with(|settings| settings.hunt.leading_edge = soon).await;
    wait_until(|| busy.conversations().len() >= 30).await;
    // A thousand names at one server keep nobody from another.
    let (_work, commit) = hosted_at(&quiet, "new").await;
    let state = makers[0].state("new", &[(MAIN, &commit)]);
    let announcement = announce(&makers[0], "new", &instance, &[&quiet.url("new")]);
    instance.ingest_from_relay(vec![announcement, state.clone()]).await;
    instance.until_serves(&state).await;

    assert_eq!(queued(&instance).await, REPOS, "all are still wanted");
    assert!(busy.max_open() <= 5, "{} at once", busy.max_open());
    assert_eq!(busy.conversations().len(), 30, "that is enough for a minute");
}

/// How many names are hunted for.
async fn queued(instance: &Instance) -> usize {
    instance.purgatory().hunting().unwrap().schedule().await.len()
}

#[tokio::test]
async fn a_restart_with_many_names_waiting_is_no_stampede() {
    const REPOS: usize = 24;
    let (server, alice) = (GitServer::start().await, Author::new());
    let limits = HostLimits {
        at_once: three(),
        starts: NonZeroUsize::new(1_000).unwrap(),
        ..HostLimits::default()
    };
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.hunt.per_host = limits;
        // Nothing is hunted for before the restart.
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
        instance.ingest_from_relay(vec![announcement, states[n].clone()]).await;
    }
    assert!(server.requests().is_empty());
    let short = Duration::from_millis(100);
    let instance = instance.restart_with(|settings| settings.hunt.leading_edge = short).await;
    for state in &states {
        instance.until_serves(state).await;
    }
    assert!(server.max_open() <= 3, "{} at once", server.max_open());
}
