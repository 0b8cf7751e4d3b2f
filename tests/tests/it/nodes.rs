//! Several nodes on one PostgreSQL and one pack storage are one server, also when some of them fail.

mod group;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::{Now, RepoId};
use grasp_relay::Clock;
use grasp_relay::instance::Server;
use grasp_tests::{
    Author, Convergence, Postgres, S3Fault, ServerClient, Workdir, eventually_async, http, post,
};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use self::group::{Group, settings};

const MAIN: &str = "refs/heads/main";

/// Time within which clients are served again after the writer was killed.
const FAILOVER_LIMIT: Duration = Duration::from_secs(6);

/// Publishes an event until it is accepted.
async fn publish(to: &ServerClient, event: &Event) {
    eventually_async(|| async { matches!(to.publish(event).await, Some(Ok(()))).then_some(()) })
        .await;
}

/// A repository to which commits are signed and pushed.
struct GrowingRepo {
    author: Author,
    name: String,
    work: Workdir,
    commits: Vec<String>,
}

impl GrowingRepo {
    async fn new(name: &str, at: &ServerClient) -> Self {
        let author = Author::new().earlier(1_000);
        publish(at, &author.announce(name, &at.service())).await;
        Self {
            author,
            name: name.into(),
            work: Workdir::init().await,
            commits: Vec::new(),
        }
    }

    fn repo(&self) -> RepoId {
        self.author.repo(&self.name)
    }

    /// Commits, signs the state at one client and pushes at another. Returns whether the push was acknowledged.
    async fn grow(&mut self, sign_at: &ServerClient, push_at: &ServerClient) -> bool {
        let number = self.commits.len() as u64 + 1;
        let commit = self.work.commit(&format!("{} {number}", self.name)).await;
        self.commits.push(commit.clone());
        let state = self
            .author
            .later(number)
            .state(&self.name, &[(MAIN, &commit)]);
        if !matches!(sign_at.publish(&state).await, Some(Ok(()))) {
            return false;
        }
        let url = push_at.clone_url(&self.repo());
        self.work.git(&["push", &url, "main"]).await.ok
    }

    /// Signs issues about the repository, each with a different text.
    fn issues(&self, count: usize) -> Vec<Event> {
        let coordinate = self.repo().to_string();
        let issue = |n| {
            self.author
                .sign(1621, &format!("issue {n}"), &[&["a", &coordinate]])
        };
        (0..count).map(issue).collect()
    }

    fn tip(&self) -> &str {
        self.commits.last().unwrap()
    }
}

/// Waits until all nodes serve the same events and refs, with this tip.
async fn until_converged(group: &Group, repo: &RepoId, tip: &str) {
    Convergence::of(&group.all())
        .with_refs(repo, &[(MAIN, tip)])
        .wait()
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_node_accepts_events_and_pushes_and_every_node_serves_them() {
    let Some(group) = Group::start(3).await else {
        return;
    };
    let mut x = GrowingRepo::new("x", &group.client()).await;
    for n in 0..6 {
        let (sign_at, push_at) = (group.node(n % 3), group.node((n + 1) % 3));
        assert!(x.grow(&sign_at, &push_at).await, "push {n}");
        // A push that one node acknowledged is served by all.
        for node in group.all() {
            let refs = node.refs(&x.repo()).await.unwrap();
            assert!(refs.contains(x.tip()), "{refs}");
            let clone = Workdir::empty();
            clone
                .git(&["clone", "-q", &node.clone_url(&x.repo()), "."])
                .await
                .expect_ok();
        }
    }
    until_converged(&group, &x.repo(), x.tip()).await;
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Subscribes to issues at a node, and reads the stored ones.
async fn subscribe(node: &ServerClient) -> Socket {
    let (mut socket, _) = connect_async(node.relay_url()).await.unwrap();
    let request = r#"["REQ","live",{"kinds":[1621]}]"#;
    socket.send(Message::text(request)).await.unwrap();
    loop {
        let Message::Text(text) = socket.next().await.unwrap().unwrap() else {
            continue;
        };
        if text.starts_with(r#"["EOSE""#) {
            return socket;
        }
    }
}

/// Asserts that a subscription gets these events next, in this order.
async fn assert_next(socket: &mut Socket, expected: &[Event]) {
    let expected: Vec<String> = expected.iter().map(|event| event.id.to_hex()).collect();
    let mut received = Vec::new();
    while received.len() < expected.len() {
        let Message::Text(text) = socket.next().await.unwrap().unwrap() else {
            continue;
        };
        let message: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(message[0], "EVENT", "{message}");
        received.push(message[2]["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(received, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn live_events_reach_the_subscriptions_of_every_node_once_and_in_order() {
    let Some(group) = Group::start(3).await else {
        return;
    };
    let mut x = GrowingRepo::new("x", &group.client()).await;
    assert!(x.grow(&group.node(0), &group.node(1)).await);
    let mut sockets = Vec::new();
    for node in group.all() {
        sockets.push(subscribe(&node).await);
    }
    let issues = x.issues(20);
    for (n, issue) in issues.iter().enumerate() {
        publish(&group.node(n % 3), issue).await;
    }
    for socket in &mut sockets {
        assert_next(socket, &issues).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_events_come_once_and_in_order_across_a_failover_and_a_database_restart() {
    let Some(mut group) = Group::start(3).await else {
        return;
    };
    let mut x = GrowingRepo::new("x", &group.client()).await;
    assert!(x.grow(&group.client(), &group.client()).await);
    let writer = group.until_ready().await;
    let others: Vec<ServerClient> = (0..3)
        .filter(|node| *node != writer)
        .map(|node| group.node(node))
        .collect();
    let mut sockets = Vec::new();
    for node in &others {
        sockets.push(subscribe(node).await);
    }
    let issues = x.issues(30);
    for (n, issue) in issues.iter().enumerate() {
        match n {
            10 => group.kill(writer),
            20 => tokio::task::block_in_place(|| group.postgres().restart()),
            _ => {}
        }
        publish(&others[n % 2], issue).await;
    }
    for socket in &mut sockets {
        assert_next(socket, &issues).await;
    }
    // No event is sent twice: the next one is new.
    let last = x
        .author
        .sign(1621, "the last", &[&["a", &x.repo().to_string()]]);
    publish(&others[0], &last).await;
    for socket in &mut sockets {
        assert_next(socket, std::slice::from_ref(&last)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_served_again_after_the_writer_is_killed_and_nothing_acknowledged_is_lost() {
    let Some(mut group) = Group::start(3).await else {
        return;
    };
    let mut x = GrowingRepo::new("x", &group.client()).await;
    assert!(x.grow(&group.client(), &group.client()).await);
    // An upload without its event was acknowledged, too.
    let bob = Author::new();
    x.work
        .git(&["checkout", "-q", "-b", "topic"])
        .await
        .expect_ok();
    let topic = x.work.commit("topic").await;
    let request = bob.sign(1618, "", &[&["a", &x.repo().to_string()], &["c", &topic]]);
    let target = format!("topic:refs/nostr/{}", request.id.to_hex());
    let url = group.client().clone_url(&x.repo());
    x.work.git(&["push", &url, &target]).await.expect_ok();
    x.work.git(&["checkout", "-q", "main"]).await.expect_ok();
    for _ in 0..2 {
        let writer = group.until_ready().await;
        group.kill(writer);
        let killed = Instant::now();
        assert!(x.grow(&group.client(), &group.client()).await);
        assert!(killed.elapsed() < FAILOVER_LIMIT, "{:?}", killed.elapsed());
        group.restart(writer);
        group.until_ready().await;
        until_converged(&group, &x.repo(), x.tip()).await;
    }
    publish(&group.client(), &request).await;
    let requested = (format!("refs/nostr/{}", request.id.to_hex()), topic);
    let refs = [
        (MAIN, x.tip()),
        (requested.0.as_str(), requested.1.as_str()),
    ];
    Convergence::of(&group.all())
        .with_refs(&x.repo(), &refs)
        .serving([&request])
        .wait()
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_writer_cannot_write_after_it_resumes() {
    let Some(group) = Group::start(3).await else {
        return;
    };
    let mut x = GrowingRepo::new("x", &group.client()).await;
    assert!(x.grow(&group.client(), &group.client()).await);
    let writer = group.until_ready().await;
    let other = (writer + 1) % group.len();
    group.suspend(writer);
    let suspended = Instant::now();
    eventually_async(|| async {
        let status = group.status(other).await?;
        let mut up = status
            .nodes
            .into_iter()
            .filter(|node| node.is_writer && node.is_up);
        up.find(|node| node.address != group.node_name(writer))
            .map(drop)
    })
    .await;
    loop {
        assert!(x.grow(&group.node(other), &group.node(other)).await);
        if suspended.elapsed() >= long_run().map_or(Duration::ZERO, |_| SUSPENSION) {
            break;
        }
    }
    let pushed = x.tip().to_owned();
    group.resume(writer);
    // Requests to it reach the new writer, or are refused.
    let next = x.grow(&group.node(writer), &group.node(writer)).await;
    let tip = if next { x.tip().to_owned() } else { pushed };
    let current = group.until_ready().await;
    assert_ne!(current, writer);
    if next {
        until_converged(&group, &x.repo(), &tip).await;
    }
    assert!(x.grow(&group.node(writer), &group.node(other)).await);
    until_converged(&group, &x.repo(), x.tip()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_database_loses_nothing_acknowledged() {
    let Some(group) = Group::start(2).await else {
        return;
    };
    let mut x = GrowingRepo::new("x", &group.client()).await;
    assert!(x.grow(&group.client(), &group.client()).await);
    let issues = x.issues(200);
    let sends = issues.chunks(25).map(|some| {
        let to = group.client();
        async move {
            let mut accepted = Vec::new();
            for issue in some {
                if matches!(to.publish(issue).await, Some(Ok(()))) {
                    accepted.push(issue.id);
                }
            }
            accepted
        }
    });
    let restart = async { tokio::task::block_in_place(|| group.postgres().restart()) };
    let (accepted, ()) = tokio::join!(join_all(sends), restart);
    let accepted: BTreeSet<EventId> = accepted.into_iter().flatten().collect();
    group.until_ready().await;
    for node in group.all() {
        let served: BTreeSet<EventId> = node.events().await.unwrap().into_keys().collect();
        let lost: Vec<_> = accepted.difference(&served).collect();
        assert!(lost.is_empty(), "{lost:?} of {}", accepted.len());
    }
    assert!(x.grow(&group.client(), &group.client()).await);
    until_converged(&group, &x.repo(), x.tip()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_pushes_through_different_nodes_the_signed_one_succeeds() {
    let Some(group) = Group::start(3).await else {
        return;
    };
    let author = Author::new().earlier(1_000);
    let (at, repo) = (group.client(), author.repo("x"));
    publish(&at, &author.announce("x", &at.service())).await;
    let first = Workdir::init().await;
    let base = first.commit("base").await;
    publish(&at, &author.state("x", &[(MAIN, &base)])).await;
    first
        .git(&["push", &at.clone_url(&repo), "main"])
        .await
        .expect_ok();
    // Sixteen clones, each with a commit of its own; the signed state names one of them.
    let mut clones = Vec::new();
    for n in 0..16 {
        let clone = Workdir::empty();
        clone
            .git(&["clone", "-q", &group.node(n % 3).clone_url(&repo), "."])
            .await
            .expect_ok();
        let tip = clone.commit(&format!("commit {n}")).await;
        clones.push((clone, tip));
    }
    let winner = clones[11].1.clone();
    publish(&at, &author.later(1).state("x", &[(MAIN, &winner)])).await;
    let pushes = clones.iter().enumerate().map(|(n, (clone, tip))| {
        let url = group.node(n % 3).clone_url(&repo);
        async move { (tip.clone(), clone.git(&["push", &url, "main"]).await.ok) }
    });
    let pushed: BTreeMap<String, bool> = join_all(pushes).await.into_iter().collect();
    let won: Vec<&String> = pushed
        .iter()
        .filter(|(_, ok)| **ok)
        .map(|(tip, _)| tip)
        .collect();
    assert_eq!(won, [&winner]);
    until_converged(&group, &repo, &winner).await;
}

/// Time for which nodes are killed at random, unless `GRASP_NODES_SECONDS` is set.
const RANDOM_KILLS_DURATION: Duration = Duration::from_secs(20);

/// Time for which a writer is suspended, if `GRASP_NODES_SECONDS` is set.
const SUSPENSION: Duration = Duration::from_secs(30);

fn long_run() -> Option<Duration> {
    let seconds = std::env::var("GRASP_NODES_SECONDS").ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Asserts that the served state of a repository equals its refs, unless they change meanwhile.
async fn assert_state_is_refs(node: &ServerClient, grower: &GrowingRepo) {
    let state = serde_json::json!({
        "kinds": [30618], "authors": [grower.author.key()], "#d": [grower.name],
    });
    let (repo, before) = (grower.repo(), node.refs(&grower.repo()).await);
    let states = node.matching(&state).await;
    let (Some(states), Some(refs), true) = (states, &before, before == node.refs(&repo).await)
    else {
        return;
    };
    for state in states.values() {
        let tag = state
            .tags
            .iter()
            .find(|tag| tag.as_slice()[0] == MAIN)
            .unwrap();
        assert!(
            refs.contains(&format!("{}\t{MAIN}", tag.as_slice()[1])),
            "{refs} {state:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_killed_at_random_lose_nothing_acknowledged() {
    let Some(mut group) = Group::start(3).await else {
        return;
    };
    let end = Instant::now() + long_run().unwrap_or(RANDOM_KILLS_DURATION);
    let mut growers = Vec::new();
    for name in ["x", "y"] {
        growers.push(GrowingRepo::new(name, &group.client()).await);
    }
    let (mut acknowledged, mut issues): (Vec<usize>, Vec<EventId>) = (vec![0; 2], Vec::new());
    let (mut round, mut slowest) = (0_usize, Duration::ZERO);
    while Instant::now() < end {
        let killed = (round * 7 + 1) % group.len();
        if round % 4 == 1 {
            group.kill(killed);
        }
        let began = Instant::now();
        for (grower, acknowledged) in growers.iter_mut().zip(&mut acknowledged) {
            if grower.grow(&group.client(), &group.client()).await {
                *acknowledged = grower.commits.len();
            }
            let issue = grower.author.sign(
                1621,
                &format!("issue {round}"),
                &[&["a", &grower.repo().to_string()]],
            );
            if matches!(group.client().publish(&issue).await, Some(Ok(()))) {
                issues.push(issue.id);
            }
        }
        slowest = slowest.max(began.elapsed());
        let (node, grower) = (round % group.len(), &growers[round % 2]);
        if group.is_running(node) {
            assert_state_is_refs(&group.node(node), grower).await;
        }
        if !group.is_running(killed) {
            group.restart(killed);
        }
        round += 1;
    }
    group.until_ready().await;
    for (grower, acknowledged) in growers.iter_mut().zip(acknowledged) {
        assert!(acknowledged > 0);
        // Every acknowledged commit is in the history that is served after one more push.
        assert!(grower.grow(&group.client(), &group.client()).await);
        until_converged(&group, &grower.repo(), grower.tip()).await;
    }
    for node in group.all() {
        let served = node.events().await.unwrap();
        assert!(issues.iter().all(|id| served.contains_key(id)));
    }
    eprintln!(
        "{round} rounds, {} issues acknowledged, slowest round {slowest:?}",
        issues.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_reach_the_writer_serves_what_is_committed_and_refuses_the_rest() {
    let Some(group) = Group::start(3).await else {
        return;
    };
    let mut x = GrowingRepo::new("x", &group.client()).await;
    assert!(x.grow(&group.client(), &group.client()).await);
    let writer = group.until_ready().await;
    let reader = (writer + 1) % group.len();
    group.cut(writer, true);
    // Events and pushes that clients send to the writer are served by the node that does not reach it.
    assert!(x.grow(&group.node(writer), &group.node(writer)).await);
    until_converged(&group, &x.repo(), x.tip()).await;
    let issue = x.author.sign(1621, "cut", &[&["a", &x.repo().to_string()]]);
    let refused = group
        .node(reader)
        .publish(&issue)
        .await
        .unwrap()
        .unwrap_err();
    assert!(refused.starts_with("error:"), "{refused}");
    let pushed = x
        .work
        .git(&["push", &group.node(reader).clone_url(&x.repo()), "main"])
        .await;
    assert!(!pushed.ok && pushed.err.contains("503"), "{}", pushed.err);
    group.cut(writer, false);
    publish(&group.node(reader), &issue).await;
    assert!(x.grow(&group.node(reader), &group.node(reader)).await);
    until_converged(&group, &x.repo(), x.tip()).await;
    assert_eq!(group.until_ready().await, writer);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_object_store_delay_or_fail_pushes_and_lose_nothing() {
    let Some(group) = Group::start(2).await else {
        return;
    };
    let mut x = GrowingRepo::new("x", &group.client()).await;
    assert!(x.grow(&group.client(), &group.client()).await);
    for fault in [
        S3Fault::Unavailable,
        S3Fault::LostAnswer,
        S3Fault::Slow(Duration::from_secs(1)),
    ] {
        group.packs().fail(2, ("PUT", ""), fault.clone());
        assert!(x.grow(&group.client(), &group.client()).await, "{fault:?}");
        group.packs().fail(2, ("GET", ".pack"), fault);
        until_converged(&group, &x.repo(), x.tip()).await;
        for node in group.all() {
            let clone = Workdir::empty();
            clone
                .git(&["clone", "-q", &node.clone_url(&x.repo()), "."])
                .await
                .expect_ok();
        }
    }
    let served = x.tip().to_owned();
    group.packs().script(|_, _| Some(S3Fault::Unavailable));
    assert!(!x.grow(&group.client(), &group.client()).await);
    for node in group.all() {
        assert!(node.refs(&x.repo()).await.unwrap().contains(&served));
        let address = node.service().to_string();
        eventually_async(|| async {
            (http(&address, "GET", "/health", &[]).await.status == 503).then_some(())
        })
        .await;
    }
    group.packs().heal();
    group.until_ready().await;
    let again = x
        .work
        .git(&["push", &group.client().clone_url(&x.repo()), "main"])
        .await;
    again.expect_ok();
    until_converged(&group, &x.repo(), x.tip()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_between_nodes_need_the_node_key() {
    let Some(group) = Group::start(1).await else {
        return;
    };
    let address = group.node(0).service().to_string();
    for (path, key) in [
        ("/node/events", ""),
        ("/node/ephemeral", &"0".repeat(64)[..]),
    ] {
        let answer = post(&address, path, &[("grasp-node-key", key)], b"[]").await;
        assert_eq!(answer.status, 404, "{path}");
    }
    assert_eq!(http(&address, "GET", "/health", &[]).await.body, "ok\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_database_and_pack_storage_contain_no_secrets() {
    let Some(postgres) = Postgres::durable() else {
        return;
    };
    let (dir, packs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let address = "127.0.0.1:1".parse().unwrap();
    let name = postgres.database();
    let name = name.rsplit('/').next().unwrap();
    let right = postgres.tcp_url(grasp_tests::PASSWORD, name);
    let packs = format!("file://{}", packs.path().display());
    let cases = [
        (
            postgres.tcp_url("wrong-password", name),
            packs.clone(),
            "password",
        ),
        (
            postgres.tcp_url(grasp_tests::PASSWORD, "nothing"),
            packs,
            "does not exist",
        ),
        (right, "file:///nowhere/at/all".into(), "does not exist"),
    ];
    for (database, packs, expected) in cases {
        let mut settings = settings(dir.path(), address, "127.0.0.1:1");
        settings.database = Some(database.parse().unwrap());
        settings.packs = Some(packs.parse().unwrap());
        let error = match Server::open(&settings, Clock::system()).await {
            Ok(_) => panic!("{database} {packs} was used"),
            Err(error) => error.in_one_line(),
        };
        assert!(error.contains(expected), "{error}");
        for secret in ["wrong-password", grasp_tests::PASSWORD] {
            assert!(!error.contains(secret), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_wrong_clock_does_not_start() {
    let Some(postgres) = Postgres::durable() else {
        return;
    };
    let (dir, packs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut settings = settings(dir.path(), "127.0.0.1:1".parse().unwrap(), "127.0.0.1:1");
    settings.database = Some(postgres.database().parse().unwrap());
    settings.packs = Some(
        format!("file://{}", packs.path().display())
            .parse()
            .unwrap(),
    );
    for (skew, expected) in [(3_600, "ahead of"), (-3_600, "behind")] {
        let (system, skew) = (Clock::system(), skew as i64);
        let clock = Clock::new(move || {
            let now = system.now();
            let unix = now.unix.as_secs().checked_add_signed(skew).unwrap();
            Now::new(now.mono, Timestamp::from_secs(unix))
        });
        let error = match Server::open(&settings, clock).await {
            Ok(_) => panic!("a node with a clock that is {skew} s off was started"),
            Err(error) => error.in_one_line(),
        };
        assert!(
            error.contains(expected) && error.contains("clock of the database"),
            "{error}"
        );
    }
    drop(Server::open(&settings, Clock::system()).await.unwrap());
}
