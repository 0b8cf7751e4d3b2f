//! Events that only the relays of users have (GRASP-03).

use std::time::Duration;

use grasp_relay::instance::{OutboxMode, PrivateSettings};
use grasp_tests::{Author, Instance, PlainRelay, Settings, Workdir, eventually, eventually_async};
use nostr::event::Event;

const MAIN: &str = "refs/heads/main";

/// Starts a server that asks an index relay for relay lists.
async fn asking(index: &PlainRelay) -> Instance {
    Instance::with_settings_and(Settings::one_process(), |settings| {
        settings.outbound.allow_private = true;
        settings.sync.outbox.mode = OutboxMode::On;
        settings.sync.outbox.index_relays = Some(vec![index.url().parse().unwrap()]);
        settings.sync.outbox.pass = Duration::from_secs(1);
    })
    .await
}

/// Starts a server that only syncs with other servers.
async fn other() -> Instance {
    Instance::with_settings_and(Settings::one_process(), |settings| {
        settings.outbound.allow_private = true;
    })
    .await
}

/// Returns the parts of GRASP that a server says it runs.
async fn grasps(server: &Instance) -> String {
    let accept = [("accept", "application/nostr+json")];
    let document = server.get("/", &accept).await.body;
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    document["supported_grasps"].to_string()
}

fn relay_list(author: &Author, relay: &PlainRelay) -> Event {
    author.sign(10_002, "", &[&["r", &relay.url()]])
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_only_the_relay_of_a_user_has_reach_all_servers() {
    let (alice, bob, carol) = (Author::new(), Author::new(), Author::new());
    let repo = alice.repo("x");
    let issue = bob.issue(&repo, "it fails");
    let id = issue.id.to_hex();
    let comment = bob
        .later(1)
        .sign(1_111, "still", &[&["E", &id], &["e", &id]]);
    let reaction = carol.sign(7, "+", &[&["e", &id]]);
    let unrelated = carol.sign(1, "good morning", &[]);
    let stored = vec![comment.clone(), reaction.clone(), unrelated.clone()];
    let home = PlainRelay::start(stored).await;
    let list = relay_list(&bob, &home);
    let index = PlainRelay::start(vec![list.clone()]).await;
    let a = asking(&index).await;
    let b = other().await;
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    for server in [&a, &b] {
        server.ingest(vec![announced.clone(), state.clone()]).await;
        work.git(&["push", &server.clone_url(&repo), "main"])
            .await
            .expect_ok();
    }
    a.ingest(vec![issue.clone()]).await;
    for event in [&list, &comment, &reaction] {
        a.until_serves(event).await;
    }
    for event in [&issue, &comment, &reaction] {
        b.until_serves(event).await;
    }
    assert!(!a.serves(&unrelated).await);
    assert!(grasps(&a).await.contains("GRASP-03"));
    assert!(!grasps(&b).await.contains("GRASP-03"));
    let metrics = a.get("/metrics", &[]).await.body;
    assert!(
        metrics.contains("grasp_sync_outbox_relays 1\n"),
        "{metrics}"
    );
    let figures = metrics.lines();
    let mut figures = figures.filter(|line| line.starts_with("grasp_sync_outbox_"));
    assert!(figures.all(|line| !line.contains('{')), "{metrics}");
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_server_asks_no_relay_of_a_user() {
    let (alice, bob) = (Author::new(), Author::new());
    let index = PlainRelay::start(Vec::new()).await;
    let public_index = PlainRelay::start(Vec::new()).await;
    let home = PlainRelay::start(Vec::new()).await;
    let public_home = PlainRelay::start(Vec::new()).await;
    let members = [alice.key(), bob.key()];
    let private = Instance::with_settings_and(Settings::one_process(), |settings| {
        settings.outbound.allow_private = true;
        settings.sync.outbox.index_relays = Some(vec![index.url().parse().unwrap()]);
        settings.private = PrivateSettings {
            enabled: true,
            members: members.into(),
            ..PrivateSettings::default()
        };
    })
    .await;
    let public = asking(&public_index).await;
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    for (server, home) in [(&private, &home), (&public, &public_home)] {
        let announced = alice.announce("x", &server.service());
        let state = alice.state("x", &[(MAIN, &commit)]);
        server.ingest(vec![announced, state]).await;
        let url = server.clone_url(&alice.repo("x"));
        let header = format!(
            "http.extraHeader=Authorization: {}",
            alice.authorization(&url)
        );
        work.git(&["-c", &header, "push", "-q", &url, "main"])
            .await
            .expect_ok();
        let issue = bob.issue(&alice.repo("x"), "it fails");
        server
            .ingest(vec![issue.clone(), relay_list(&bob, home)])
            .await;
        server.until_serves(&issue).await;
    }
    eventually(|| (public_index.connections() > 0).then_some(())).await;
    eventually(|| (public_home.connections() > 0).then_some(())).await;
    assert_eq!((index.connections(), home.connections()), (0, 0));
    assert!(!grasps(&private).await.contains("GRASP-03"));
    private.stop().await;
    public.stop().await;
    assert_eq!((index.connections(), home.connections()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_relay_lists_reaches_few_relays() {
    let named = PlainRelay::start(Vec::new()).await;
    let index = PlainRelay::start(Vec::new()).await;
    let server = Instance::with_settings_and(Settings::one_process(), |settings| {
        settings.outbound.allow_private = true;
        settings.sync.outbox.mode = OutboxMode::On;
        settings.sync.outbox.index_relays = Some(vec![index.url().parse().unwrap()]);
    })
    .await;
    let alice = Author::new();
    server.host(&alice, "x").await;
    let issue = alice.issue(&alice.repo("x"), "it fails");
    server.ingest(vec![issue.clone()]).await;
    for n in 0..40 {
        let eve = Author::new();
        let comment = eve.sign(1_111, "me, too", &[&["E", &issue.id.to_hex()]]);
        let urls: Vec<String> = (0..100)
            .map(|k| format!("{}/{n}/{k}", named.url()))
            .collect();
        let tags: Vec<[&str; 2]> = urls.iter().map(|url| ["r", url.as_str()]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(<[&str; 2]>::as_slice).collect();
        let list = eve.sign(10_002, "", &tags);
        let outcomes = server.ingest(vec![comment, list]).await;
        assert!(outcomes.iter().all(|one| one.answer().is_accepted));
    }
    let all = "grasp_sync_outbox_relays 160\n";
    eventually_async(|| async {
        let metrics = server.get("/metrics", &[]).await.body;
        metrics.contains(all).then_some(())
    })
    .await;
    eventually(|| (named.connections() > 0).then_some(())).await;
    // In one pass one of them is new for lists and one for history, each with a request for its document.
    let connections = named.connections();
    assert!(connections <= 4, "{connections} connections");
    server.stop().await;
}
