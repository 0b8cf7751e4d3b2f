//! Two servers that sync with each other.

use std::collections::BTreeSet;

use grasp_core::{RelayUrl, RepoId};
use grasp_sync::engine::Config;
use grasp_tests::{Author, Instance, ServerClient, Workdir, eventually_async};

async fn instance(bootstrap: &[&Instance]) -> Instance {
    instance_with(bootstrap, |_| {}).await
}

async fn instance_with(bootstrap: &[&Instance], choose: impl FnOnce(&mut Config)) -> Instance {
    Instance::with(|settings| {
        let sync = &mut settings.sync;
        let urls = bootstrap
            .iter()
            .map(|other| other.relay_url().parse().unwrap());
        sync.engine.bootstrap = urls.collect();
        choose(&mut sync.engine);
        settings.outbound.allow_private = true;
    })
    .await
}

/// Two servers and a repository that names both; the second one has the first as bootstrap relay.
struct Pair {
    a: Instance,
    b: Instance,
    alice: Author,
    repo: RepoId,
    published: u64,
}

impl Pair {
    async fn start(choose: impl FnOnce(&mut Config)) -> Self {
        let a = instance(&[]).await;
        let b = instance_with(&[&a], choose).await;
        let (alice, work) = (Author::new(), Workdir::init().await);
        let repo = alice.repo("x");
        let commit = work.commit("first").await;
        let announced = alice.announce_on("x", &[a.service(), b.service()]);
        let state = alice.state("x", &[("refs/heads/main", &commit)]);
        for server in [&b, &a] {
            server.ingest(vec![announced.clone(), state.clone()]).await;
            work.git(&["push", &server.clone_url(&repo), "main"])
                .await
                .expect_ok();
        }
        Self {
            a,
            b,
            alice,
            repo,
            published: 0,
        }
    }

    /// Publishes an issue of this age at the first server, and waits until the second serves it.
    async fn publish_and_wait(&mut self, seconds_ago: u64) {
        self.published += 1;
        let text = format!("issue {}", self.published);
        let issue = self.alice.earlier(seconds_ago).issue(&self.repo, &text);
        self.a.ingest(vec![issue.clone()]).await;
        self.b.until_serves(&issue).await;
    }

    async fn stop(self) {
        self.a.stop().await;
        self.b.stop().await;
    }
}

const WEEK_SECONDS: u64 = 7 * 24 * 60 * 60;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_dated_a_week_ago_arrives_live_and_after_a_reconnect() {
    let mut pair = Pair::start(|_| {}).await;
    pair.publish_and_wait(0).await;
    pair.publish_and_wait(WEEK_SECONDS).await;
    let Pair {
        a,
        b,
        alice,
        repo,
        published,
    } = pair;
    let a = a.restart_with(|_| {}).await;
    let mut pair = Pair {
        a,
        b,
        alice,
        repo,
        published,
    };
    // A new event shows that the servers are connected again.
    pair.publish_and_wait(0).await;
    pair.publish_and_wait(WEEK_SECONDS).await;
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_dated_a_week_ago_arrives_live_after_a_consolidation() {
    let consolidating = |engine: &mut Config| {
        (engine.consolidation_threshold, engine.full_sync_above) = (6, None);
        engine.discovery_window = std::time::Duration::from_millis(100);
    };
    let mut pair = Pair::start(consolidating).await;
    let rebuilds = "grasp_sync_consolidations_total{";
    while !pair.b.get("/metrics", &[]).await.body.contains(rebuilds) {
        assert!(pair.published < 1_000, "no consolidation");
        pair.publish_and_wait(0).await;
    }
    for _ in 0..8 {
        pair.publish_and_wait(WEEK_SECONDS).await;
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_dated_a_week_ago_arrives_live_in_full_sync() {
    let full_sync = |engine: &mut Config| {
        engine.full_sync_above = Some(1_000);
        engine.discovery_window = std::time::Duration::from_millis(100);
    };
    let mut pair = Pair::start(full_sync).await;
    for _ in 0..8 {
        pair.publish_and_wait(0).await;
        pair.publish_and_wait(WEEK_SECONDS).await;
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_and_live_events_of_one_server_reach_the_other() {
    let a = instance(&[]).await;
    let b = instance(&[&a]).await;
    let alice = Author::new();
    let repo = alice.repo("x");
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    let state = alice.state("x", &[("refs/heads/main", &commit)]);
    a.ingest(vec![announced.clone(), state.clone()]).await;
    work.git(&["push", &a.clone_url(&repo), "main"])
        .await
        .expect_ok();
    let issue = alice.issue(&repo, "an issue");
    let comment = alice.sign(1111, "a comment", &[&["E", &issue.id.to_hex()]]);
    a.ingest(vec![issue.clone(), comment.clone()]).await;
    a.until_serves(&comment).await;

    // The other server holds the announcement and its state until the git data is pushed.
    let mut changes = b.purgatory().news();
    let holds = || {
        let (repo, maintainers) = (repo.clone(), BTreeSet::from([repo.owner]));
        b.purgatory()
            .ask(move |held| !held.candidates(&repo, &maintainers).is_empty())
    };
    while !holds().await.unwrap() {
        let _ = tokio::time::timeout(std::time::Duration::from_millis(50), changes.recv()).await;
    }
    work.git(&["push", &b.clone_url(&repo), "main"])
        .await
        .expect_ok();
    for event in [&announced, &state, &issue, &comment] {
        b.until_serves(event).await;
    }

    let live = alice.later(1).issue(&repo, "live");
    a.ingest(vec![live.clone()]).await;
    b.until_serves(&live).await;

    // Events also go in the other direction, because the announcement names both servers.
    let back = alice.later(2).issue(&repo, "the other direction");
    b.ingest(vec![back.clone()]).await;
    a.until_serves(&back).await;
    a.stop().await;
    b.stop().await;
}

/// Returns the sum of all series of a metric whose line contains this text.
async fn sum_of_metric(server: &Instance, name: &str, label: &str) -> u64 {
    let metrics = server.get("/metrics", &[]).await.body;
    let is_series = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(label);
    let values = metrics
        .lines()
        .filter(is_series)
        .filter_map(|line| line.rsplit_once(' '));
    values
        .map(|(_, value)| value.parse::<f64>().unwrap() as u64)
        .sum()
}

/// Waits until a server has counted as many accepted events as it serves, and asserts that it counts no more.
async fn assert_counts_what_it_serves(server: &Instance) {
    let served = ServerClient::at(server.address())
        .events()
        .await
        .unwrap()
        .len() as u64;
    eventually_async(|| async {
        let counted = sum_of_metric(server, "grasp_sync_events_total", "").await;
        assert!(counted <= served, "{counted} counted, {served} served");
        (counted == served).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_event_is_counted_once_on_both_servers() {
    let a = instance(&[]).await;
    // Its bootstrap relay may be private, git servers may not: it gets git data only by a push.
    let first: RelayUrl = a.relay_url().parse().unwrap();
    let b = Instance::with(|settings| settings.sync.engine.bootstrap = vec![first]).await;
    let (alice, work) = (Author::new(), Workdir::init().await);
    let repo = alice.repo("x");
    let commit = work.commit("first").await;
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    let state = alice.state("x", &[("refs/heads/main", &commit)]);
    // A client sends everything to both. One holds it until its push, and is offered it by the other meanwhile.
    for server in [&b, &a] {
        ServerClient::at(server.address())
            .publish_all(&[&announced, &state])
            .await;
    }
    work.git(&["push", &a.clone_url(&repo), "main"])
        .await
        .expect_ok();
    eventually_async(|| async {
        let known = sum_of_metric(&b, "grasp_events_total", "duplicate").await;
        (known >= 2).then_some(())
    })
    .await;
    work.git(&["push", &b.clone_url(&repo), "main"])
        .await
        .expect_ok();
    let both = alice.issue(&repo, "sent to both");
    ServerClient::at(b.address()).publish_all(&[&both]).await;
    ServerClient::at(a.address()).publish_all(&[&both]).await;
    let one = alice.later(1).issue(&repo, "sent to one");
    ServerClient::at(a.address()).publish_all(&[&one]).await;
    for server in [&a, &b] {
        for event in [&announced, &state, &both, &one] {
            server.until_serves(event).await;
        }
        assert_counts_what_it_serves(server).await;
    }
    a.stop().await;
    b.stop().await;
}

/// Returns a working directory with a commit and this number of annotated tags, each an object of its own, and the refs with
/// their objects. The refs themselves are removed, which makes pushes faster.
async fn tagged(count: usize) -> (Workdir, Vec<(String, String)>) {
    let work = Workdir::init().await;
    let tagger = "alice <alice@example.com> 1700000000 +0000";
    let mut stream = format!("commit refs/heads/main\ncommitter {tagger}\ndata 5\nfirst\n");
    for n in 0..count {
        stream += &format!("tag v{n}\nfrom refs/heads/main\ntagger {tagger}\ndata 3\ntag\n");
    }
    work.pipe(&["fast-import", "--quiet"], stream.as_bytes())
        .await;
    let listed = work
        .git(&["for-each-ref", "--format=%(refname) %(objectname)"])
        .await
        .expect_ok();
    let refs = listed.lines().map(|line| line.split_once(' ').unwrap());
    let refs = refs
        .map(|(name, oid)| (name.to_owned(), oid.to_owned()))
        .collect();
    work.git(&["pack-refs", "--all"]).await.expect_ok();
    std::fs::remove_file(work.path().join(".git/packed-refs")).unwrap();
    (work, refs)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_of_5000_tags_is_hosted_synced_and_hunted() {
    let a = instance(&[]).await;
    let b = instance(&[&a]).await;
    let alice = Author::new();
    let repo = alice.repo("x");
    let (work, refs) = tagged(5_000).await;
    let named: Vec<_> = refs
        .iter()
        .map(|(name, oid)| (name.as_str(), oid.as_str()))
        .collect();
    let state = alice.state("x", &named);
    assert!(state.as_json().len() > 300 * 1024);
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    ServerClient::at(a.address())
        .publish_all(&[&announced, &state])
        .await;
    let specs: Vec<_> = refs
        .iter()
        .map(|(name, oid)| format!("{oid}:{name}"))
        .collect();
    let url = a.clone_url(&repo);
    let push = ["push", "-q", &url]
        .into_iter()
        .chain(specs.iter().map(String::as_str));
    work.git(&push.collect::<Vec<_>>()).await.expect_ok();
    a.until_serves(&state).await;
    b.until_serves(&state).await;
    let listed = a.refs(&repo).await;
    assert_eq!(
        listed
            .lines()
            .filter(|line| line.contains("refs/tags/"))
            .count(),
        10_000
    );
    assert_eq!(b.refs(&repo).await, listed);
    a.stop().await;
    b.stop().await;
}
