//! Two servers that keep each other complete.

use grasp_core::RepoId;
use grasp_sync::engine::Config;
use grasp_tests::{Author, Instance, ServerClient, Workdir};

async fn instance(bootstrap: &[&Instance]) -> Instance {
    instance_with(bootstrap, |_| {}).await
}

async fn instance_with(bootstrap: &[&Instance], choose: impl FnOnce(&mut Config)) -> Instance {
    Instance::with(|settings| {
        let sync = &mut settings.sync;
        let urls = bootstrap.iter().map(|other| other.relay_url().parse().unwrap());
        sync.engine.bootstrap = urls.collect();
        choose(&mut sync.engine);
        settings.outbound.allow_private = true;
    })
    .await
}

/// Two servers with a repository that names them both; the second follows the first.
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
            work.git(&["push", &server.clone_url(&repo), "main"]).await.expect_ok();
        }
        Self { a, b, alice, repo, published: 0 }
    }

    /// Publishes an issue at the first server that was signed so long ago, and sees it at the second.
    async fn arrives(&mut self, seconds_ago: u64) {
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

const WEEK: u64 = 7 * 24 * 60 * 60;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_dated_a_week_ago_arrives_live_and_after_a_quick_return() {
    let mut pair = Pair::start(|_| {}).await;
    pair.arrives(0).await;
    pair.arrives(WEEK).await;
    let Pair { a, b, alice, repo, published } = pair;
    let a = a.restart_with(|_| {}).await;
    let mut pair = Pair { a, b, alice, repo, published };
    // Whatever arrives shows that it is connected again.
    pair.arrives(0).await;
    pair.arrives(WEEK).await;
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_dated_a_week_ago_arrives_live_after_a_rebuild() {
    let few = |engine: &mut Config| {
        (engine.consolidation_threshold, engine.whole_from) = (6, None);
        engine.discovery_window = std::time::Duration::from_millis(100);
    };
    let mut pair = Pair::start(few).await;
    let rebuilds = "grasp_sync_consolidations_total{";
    while !pair.b.get("/metrics", &[]).await.body.contains(rebuilds) {
        assert!(pair.published < 1_000, "nothing is rebuilt");
        pair.arrives(0).await;
    }
    for _ in 0..8 {
        pair.arrives(WEEK).await;
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_dated_a_week_ago_arrives_live_in_full_mode() {
    let soon = |engine: &mut Config| {
        engine.whole_from = Some(1_000);
        engine.discovery_window = std::time::Duration::from_millis(100);
    };
    let mut pair = Pair::start(soon).await;
    for _ in 0..8 {
        pair.arrives(0).await;
        pair.arrives(WEEK).await;
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_has_the_other_gets_stored_and_live() {
    let a = instance(&[]).await;
    let b = instance(&[&a]).await;
    let alice = Author::new();
    let repo = alice.repo("x");
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    let state = alice.state("x", &[("refs/heads/main", &commit)]);
    a.ingest(vec![announced.clone(), state.clone()]).await;
    work.git(&["push", &a.clone_url(&repo), "main"]).await.expect_ok();
    let issue = alice.issue(&repo, "it does not work");
    let comment = alice.sign(1111, "it does for me", &[&["E", &issue.id.to_hex()]]);
    a.ingest(vec![issue.clone(), comment.clone()]).await;
    a.until_serves(&comment).await;

    // The announcement and its state wait there for the git data, which comes by a push.
    let mut news = b.purgatory().news();
    let holds = |name: &str| {
        let name = name.parse().unwrap();
        b.purgatory().ask(move |held| !held.candidates(&name).is_empty())
    };
    while !holds("x").await.unwrap() {
        let _ = tokio::time::timeout(std::time::Duration::from_millis(50), news.recv()).await;
    }
    work.git(&["push", &b.clone_url(&repo), "main"]).await.expect_ok();
    for event in [&announced, &state, &issue, &comment] {
        b.until_serves(event).await;
    }

    let live = alice.later(1).issue(&repo, "live");
    a.ingest(vec![live.clone()]).await;
    b.until_serves(&live).await;

    // And the other way round, for the announcement names them both.
    let back = alice.later(2).issue(&repo, "the other way");
    b.ingest(vec![back.clone()]).await;
    a.until_serves(&back).await;
    a.stop().await;
    b.stop().await;
}

/// A working copy of one commit and this many annotated tags, each an object of its own, without any ref: git is then
/// quick to push them. The tags with their objects, and the commit.
async fn tagged(count: usize) -> (Workdir, Vec<(String, String)>) {
    let work = Workdir::init().await;
    let who = "alice <alice@example.com> 1700000000 +0000";
    let mut stream = format!("commit refs/heads/main\ncommitter {who}\ndata 5\nfirst\n");
    for n in 0..count {
        stream += &format!("tag v{n}\nfrom refs/heads/main\ntagger {who}\ndata 3\ntag\n");
    }
    work.pipe(&["fast-import", "--quiet"], stream.as_bytes()).await;
    let listed = work.git(&["for-each-ref", "--format=%(refname) %(objectname)"]).await.expect_ok();
    let refs = listed.lines().map(|line| line.split_once(' ').unwrap());
    let refs = refs.map(|(name, oid)| (name.to_owned(), oid.to_owned())).collect();
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
    let named: Vec<_> = refs.iter().map(|(name, oid)| (name.as_str(), oid.as_str())).collect();
    let state = alice.state("x", &named);
    assert!(state.as_json().len() > 300 * 1024);
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    ServerClient::at(a.address()).publish_all(&[&announced, &state]).await;
    let specs: Vec<_> = refs.iter().map(|(name, oid)| format!("{oid}:{name}")).collect();
    let url = a.clone_url(&repo);
    let push = ["push", "-q", &url].into_iter().chain(specs.iter().map(String::as_str));
    work.git(&push.collect::<Vec<_>>()).await.expect_ok();
    a.until_serves(&state).await;
    b.until_serves(&state).await;
    let listed = a.refs(&repo).await;
    assert_eq!(listed.lines().filter(|line| line.contains("refs/tags/")).count(), 10_000);
    assert_eq!(b.refs(&repo).await, listed);
    a.stop().await;
    b.stop().await;
}
