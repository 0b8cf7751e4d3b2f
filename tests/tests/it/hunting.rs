//! The hunt: git data is fetched from the servers that announcements and proposals name.

mod hourly;
mod removal;
mod targets;

use std::time::{Duration, Instant};

use grasp_core::outbound::OutboundPolicy;
use grasp_relay::instance::Settings;
use grasp_tests::{Author, Behaviour, GitServer, Instance, Workdir, eventually};
use nostr::event::Event;

pub(crate) const MAIN: &str = "refs/heads/main";

/// Starts an instance that may connect to loopback and has short delays.
pub(crate) async fn instance() -> Instance {
    Instance::with(with_short_delays).await
}

pub(crate) fn with_short_delays(settings: &mut Settings) {
    settings.outbound = OutboundPolicy::everywhere();
    settings.hunt.backoff.first = Duration::from_millis(300);
    settings.hunt.backoff.cap = Duration::from_millis(600);
    settings.hunt.answer_is_late = Duration::from_millis(500);
    settings.hunt.fetch_is_late = Duration::from_millis(500);
    settings.fetch.listing = Duration::from_secs(5);
    settings.fetch.memory = 128 * 1024 * 1024;
}

/// Announces a repository on an instance and with these further clone URLs.
pub(crate) fn announce(author: &Author, name: &str, on: &Instance, clone_urls: &[&str]) -> Event {
    announce_with(author, name, on, clone_urls, &[])
}

fn announce_with(
    author: &Author,
    name: &str,
    on: &Instance,
    clone_urls: &[&str],
    more: &[&[&str]],
) -> Event {
    let ours = on.clone_url(&author.repo(name));
    let clone: Vec<&str> = ["clone", &ours]
        .into_iter()
        .chain(clone_urls.iter().copied())
        .collect();
    let tags: [&[&str]; 3] = [&["d", name], &clone, &["relays", &on.relay_url()]];
    author.sign(30617, "", &[&tags, more].concat())
}

/// Hosts a repository of one commit on a server, and returns the commit.
pub(crate) async fn hosted_at(server: &GitServer, name: &str) -> (Workdir, String) {
    let work = Workdir::init().await;
    let commit = work.commit(name).await;
    server.host(name, &work).await;
    (work, commit)
}

#[tokio::test]
async fn a_state_is_served_with_git_data_of_another_server() {
    let (instance, server, alice) = (instance().await, GitServer::start().await, Author::new());
    let (_work, commit) = hosted_at(&server, "x").await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement.clone(), state.clone()])
        .await;
    let start = Instant::now();
    instance.until_serves(&state).await;
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "the hunt for the first event starts at once: {took:?}"
    );
    assert!(instance.serves(&announcement).await);
    let clone = Workdir::empty();
    clone
        .git(&["clone", "-q", &instance.clone_url(&alice.repo("x")), "."])
        .await
        .expect_ok();
    assert_eq!(clone.git(&["rev-parse", "HEAD"]).await.expect_ok(), commit);
}

#[tokio::test]
async fn git_data_beyond_the_repository_quota_is_not_kept() {
    keeps_only_what_fits(|settings| settings.git.repository_bytes = 400_000).await;
}

#[tokio::test]
async fn git_data_beyond_the_quota_of_its_owner_is_not_kept() {
    keeps_only_what_fits(|settings| settings.quota.owner_bytes = 400_000).await;
}

async fn keeps_only_what_fits(limit: fn(&mut Settings)) {
    let bounded = |settings: &mut Settings| {
        with_short_delays(settings);
        limit(settings);
    };
    let (instance, server) = (Instance::with(bounded).await, GitServer::start().await);
    let (alice, work) = (Author::new(), Workdir::init().await);
    let small = work.commit("small").await;
    let large = work.commit_incompressible(600_000).await;
    server.host("x", &work).await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &large)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    // The server is visited again because the first attempt failed.
    eventually(|| (server.git_requests().len() >= 3).then_some(())).await;
    assert!(!instance.serves(&state).await);
    let state = alice.later(1).state("x", &[(MAIN, &small)]);
    instance.ingest_from_relay(vec![state.clone()]).await;
    instance.until_serves(&state).await;
}

#[tokio::test]
async fn updates_are_fetched_too_also_from_another_instance() {
    let (from, to, alice) = (instance().await, instance().await, Author::new());
    let work = Workdir::init().await;
    let first = work.commit("first").await;
    let repo = alice.repo("x");
    let announcement = announce(&alice, "x", &to, &[&from.clone_url(&repo)]);
    let state = alice.state("x", &[(MAIN, &first)]);
    from.ingest(vec![alice.announce("x", &from.service()), state.clone()])
        .await;
    work.git(&["push", &from.clone_url(&repo), "main"])
        .await
        .expect_ok();
    to.ingest_from_relay(vec![announcement, state.clone()])
        .await;
    to.until_serves(&state).await;

    let second = work.commit("second").await;
    let state = alice.later(1).state("x", &[(MAIN, &second)]);
    from.ingest(vec![state.clone()]).await;
    work.git(&["push", &from.clone_url(&repo), "main"])
        .await
        .expect_ok();
    to.ingest_from_relay(vec![state.clone()]).await;
    to.until_serves(&state).await;
}

#[tokio::test]
async fn a_pull_request_is_fetched_from_the_clone_url_of_its_author() {
    let (instance, server) = (instance().await, GitServer::start().await);
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let tip = work.commit("a contribution").await;
    work.git(&["checkout", "-q", "--detach"]).await.expect_ok();
    server.host("fork", &work).await;
    let repo = alice.repo("x").to_string();
    let tags: [&[&str]; 3] = [&["a", &repo], &["c", &tip], &["clone", &server.url("fork")]];
    let proposal = bob.sign(1618, "please pull", &tags);
    instance.ingest_from_relay(vec![proposal.clone()]).await;
    instance.until_serves(&proposal).await;
    let url = instance.clone_url(&alice.repo("x"));
    let name = format!("refs/nostr/{}", proposal.id);
    let listed = work.git(&["ls-remote", &url, &name]).await.expect_ok();
    assert!(listed.starts_with(&tip), "{listed}");
}

#[tokio::test]
async fn a_pull_request_that_is_only_at_its_own_ref_is_fetched() {
    let (instance, server) = (instance().await, GitServer::start().await);
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let tip = work.commit("a contribution").await;
    let repo = alice.repo("x").to_string();
    let tags: [&[&str]; 3] = [&["a", &repo], &["c", &tip], &["clone", &server.url("fork")]];
    let proposal = bob.sign(1618, "please pull", &tags);
    work.git(&[
        "init",
        "-q",
        "--bare",
        &server.path("fork").to_string_lossy(),
    ])
    .await
    .expect_ok();
    let refspec = format!("HEAD:refs/nostr/{}", proposal.id);
    work.git(&[
        "push",
        "-q",
        &server.path("fork").to_string_lossy(),
        &refspec,
    ])
    .await
    .expect_ok();
    instance.ingest_from_relay(vec![proposal.clone()]).await;
    instance.until_serves(&proposal).await;
}

#[tokio::test]
async fn objects_of_several_servers_are_combined() {
    let (instance, alice) = (instance().await, Author::new());
    let one = GitServer::at("127.0.0.1", Behaviour::Correct).await;
    let two = GitServer::at("127.0.0.2", Behaviour::Correct).await;
    let (work, main) = hosted_at(&one, "x").await;
    work.git(&["checkout", "-q", "--orphan", "dev"])
        .await
        .expect_ok();
    let dev = work.commit("dev").await;
    work.git(&["branch", "-q", "-D", "main"]).await.expect_ok();
    two.host("x", &work).await;
    let announcement = announce(&alice, "x", &instance, &[&one.url("x"), &two.url("x")]);
    let state = alice.state("x", &[(MAIN, &main), ("refs/heads/dev", &dev)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    instance.until_serves(&state).await;
}

#[tokio::test]
async fn a_complete_state_is_released_while_a_newer_one_is_held() {
    let (instance, server, alice) = (instance().await, GitServer::start().await, Author::new());
    let (work, first) = hosted_at(&server, "x").await;
    let second = work.commit("second").await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let old = alice.state("x", &[(MAIN, &first)]);
    let new = alice.later(1).state("x", &[(MAIN, &second)]);
    instance
        .ingest_from_relay(vec![announcement, old.clone(), new.clone()])
        .await;
    instance.until_serves(&old).await;
    assert!(!instance.serves(&new).await);
    server.host("x", &work).await;
    instance.until_serves(&new).await;
}

#[tokio::test]
async fn a_state_of_one_maintainer_is_applied_to_the_views_of_all() {
    let (instance, server) = (instance().await, GitServer::start().await);
    let (alice, bob) = (Author::new(), Author::new());
    let (work, commit) = hosted_at(&server, "x").await;
    let clone_urls = [server.url("x")];
    let clone_urls = [clone_urls[0].as_str()];
    let named = |other: &Author| [String::from("maintainers"), other.key().to_hex()];
    let (by_alice, by_bob) = (named(&bob), named(&alice));
    let by_alice: Vec<&str> = by_alice.iter().map(String::as_str).collect();
    let by_bob: Vec<&str> = by_bob.iter().map(String::as_str).collect();
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![
            announce_with(&alice, "x", &instance, &clone_urls, &[&by_alice]),
            announce_with(&bob, "x", &instance, &clone_urls, &[&by_bob]),
            state.clone(),
        ])
        .await;
    instance.until_serves(&state).await;
    for owner in [&alice, &bob] {
        let url = instance.clone_url(&owner.repo("x"));
        // The repository of another maintainer follows that of the author.
        let follows = async {
            while !work
                .git(&["ls-remote", &url, MAIN])
                .await
                .expect_ok()
                .starts_with(&commit)
            {
                instance.settle("x").await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), follows)
            .await
            .expect("it follows in time");
    }
}

#[tokio::test]
async fn the_hunt_waits_for_a_user_who_may_push() {
    let (instance, server, alice) = (instance().await, GitServer::start().await, Author::new());
    let (_work, commit) = hosted_at(&server, "x").await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance.ingest(vec![announcement, state]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        server.requests().is_empty(),
        "no request within three minutes"
    );
}

#[tokio::test]
async fn git_data_that_appears_later_is_fetched_then() {
    let (instance, server, alice) = (instance().await, GitServer::start().await, Author::new());
    let work = Workdir::init().await;
    let commit = work.commit("late").await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    wait_until(|| server.git_requests().len() >= 2).await;
    assert!(!instance.serves(&state).await);
    server.host("x", &work).await;
    instance.until_serves(&state).await;
}

#[tokio::test]
async fn the_hunt_continues_after_a_restart() {
    let (instance, server, alice) = (instance().await, GitServer::start().await, Author::new());
    let work = Workdir::init().await;
    let commit = work.commit("late").await;
    let announcement = announce(&alice, "x", &instance, &[&server.url("x")]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    let instance = instance.restart().await;
    server.host("x", &work).await;
    instance.until_serves(&state).await;
}

#[tokio::test]
async fn faulty_servers_do_not_prevent_a_fetch_from_a_correct_one() {
    let (instance, alice) = (instance().await, Author::new());
    let honest = GitServer::at("127.0.0.9", Behaviour::Correct).await;
    let (work, first) = hosted_at(&honest, "x").await;
    let second = work.commit("second").await;
    honest.host("x", &work).await;
    let bad = [
        Behaviour::Unresponsive,
        Behaviour::UnresponsiveToFetch,
        Behaviour::SlowBytes,
        Behaviour::Redirects(String::from("http://169.254.169.254")),
        Behaviour::RateLimited(3_600),
        Behaviour::EndlessRefs,
        Behaviour::AdvertisesMissing(second.clone()),
        Behaviour::DamagedPack,
    ];
    let mut servers = Vec::new();
    for (n, behaviour) in (1..).zip(bad) {
        let server = GitServer::at(&format!("127.0.1.{n}"), Behaviour::Correct).await;
        server.host("x", &work).await;
        server.set_behaviour(behaviour);
        servers.push(server);
    }
    let shallow = GitServer::at("127.0.2.1", Behaviour::Correct).await;
    let from = format!("file://{}", work.path().display());
    let to = shallow.path("x").to_string_lossy().into_owned();
    work.git(&["clone", "-q", "--bare", "--depth=1", &from, &to])
        .await
        .expect_ok();
    servers.push(shallow);
    servers.push(honest);
    let clone_urls: Vec<String> = servers.iter().map(|server| server.url("x")).collect();
    let clone_urls: Vec<&str> = clone_urls.iter().map(String::as_str).collect();
    let announcement = announce(&alice, "x", &instance, &clone_urls);
    let state = alice.state("x", &[(MAIN, &second), ("refs/heads/old", &first)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    instance.until_serves(&state).await;
    for server in &servers {
        assert!(
            !server.requests().is_empty(),
            "{} was never visited",
            server.url("x")
        );
    }
}

#[tokio::test]
async fn a_server_with_too_many_objects_is_counted_and_another_is_visited() {
    let instance = Instance::with(|settings| {
        with_short_delays(settings);
        settings.fetch.objects = 100;
        // The second server is not visited because the first is late.
        settings.hunt.fetch_is_late = Duration::from_secs(600);
    })
    .await;
    let (oversized, correct) = (
        GitServer::at("127.0.0.8", Behaviour::Correct).await,
        GitServer::start().await,
    );
    let (work, commit) = hosted_at(&correct, "x").await;
    oversized.host("x", &work).await;
    oversized.set_behaviour(Behaviour::WrongObjectCount(101));
    let alice = Author::new();
    let clone_urls = [oversized.url("x"), correct.url("x")];
    let announcement = announce(
        &alice,
        "x",
        &instance,
        &clone_urls.each_ref().map(String::as_str),
    );
    let state = alice.state("x", &[(MAIN, &commit)]);
    instance
        .ingest_from_relay(vec![announcement, state.clone()])
        .await;
    instance.until_serves(&state).await;
    assert!(
        !oversized.requests().is_empty(),
        "the first URL is visited first"
    );
    let metrics = instance.get("/metrics", &[]).await.body;
    let expected = r#"grasp_purgatory_sync_failures_total{cause="too_many_objects"} 1"#;
    assert!(metrics.contains(expected), "{metrics}");
}

pub(crate) async fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition does not hold within twenty seconds");
}

async fn wait_until_purgatory(
    purgatory: &grasp_purgatory::driver::PurgatoryDriver,
    condition: impl Fn(&grasp_purgatory::Purgatory) -> bool + Copy + Send + 'static,
) {
    for _ in 0..2_000 {
        if purgatory.ask(condition).await.unwrap() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition does not hold within twenty seconds");
}
