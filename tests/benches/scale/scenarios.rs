//! The scenarios, each with its target on two cores.

use std::path::Path;
use std::time::{Duration, Instant};

use grasp_core::RepoId;
use grasp_relay::nostr::Limits;
use grasp_tests::{GitServer, Workdir, http, reserve_address};
use nostr::event::Event;
use serde_json::{Value, json};

use crate::connection::Connection;
use crate::content::{Content, MAIN};
use crate::open_relay::OpenRelay;
use crate::proxy::{Proxy, unresponsive_listener};
use crate::server::Server;

/// Pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Time after which a scenario has failed.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(15 * 60);

pub(crate) async fn run(is_chosen: impl Fn(&str) -> bool) {
    let (repositories, issues) = (
        number("GRASP_BENCH_REPOSITORIES", 1_000),
        number("GRASP_BENCH_ISSUES", 50_000),
    );
    if is_chosen("latency") {
        latency(20).await;
    }
    if is_chosen("small") {
        print_mirrored(
            "100 repositories, 500 issues",
            &mirror(100, 500, None).await,
            "15 s",
        );
    }
    if is_chosen("mirror") {
        let whole = mirror(repositories, issues, None).await;
        print_mirrored(
            &format!("{repositories} repositories, {issues} issues"),
            &whole,
            "150 s",
        );
        if is_chosen("restart") {
            let killed = mirror(repositories, issues, Some(repositories as u64 / 2)).await;
            print_mirrored(
                "the same, killed in the middle",
                &killed,
                "1.3 × the line above",
            );
            let ratio = killed.took.as_secs_f64() / whole.took.as_secs_f64();
            println!("  ratio                  {ratio:>10.2}   (wanted: 1.3)");
        }
    }
    if is_chosen("limited") {
        limited(100).await;
    }
    if is_chosen("silent") {
        one_unresponsive(repositories).await;
    }
    if is_chosen("live") {
        live(issues).await;
    }
    if is_chosen("unknown") {
        unknown_host(60).await;
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// The measurements of a server that mirrors others until it has everything.
struct Mirrored {
    took: Duration,
    repositories: Duration,
    peak_mb: f64,
    git_requests: f64,
    requests: String,
    attempts: String,
}

fn print_mirrored(what: &str, mirrored: &Mirrored, wanted: &str) {
    println!("{what}");
    println!(
        "  everything served in   {:>8.1} s   (wanted: {wanted})",
        mirrored.took.as_secs_f64()
    );
    println!(
        "  repositories in        {:>8.1} s",
        mirrored.repositories.as_secs_f64()
    );
    println!(
        "  peak memory            {:>8.0} MB  (wanted: 200)",
        mirrored.peak_mb
    );
    println!(
        "  git requests           {:>8.0}     (wanted: 2.5 per repository)",
        mirrored.git_requests
    );
    println!("  requests to relays     {}", mirrored.requests);
    println!("  attempts               {}", mirrored.attempts);
}

async fn mirror(repositories: usize, issues: usize, kill_at: Option<u64>) -> Mirrored {
    let dir = tempfile::tempdir().expect("a directory");
    let a = Server::with_bootstrap(&dir.path().join("a"), &[]);
    let b_address = free_address();
    let content = Content::new(repositories).await;
    let relays = [a.address.as_str(), b_address.as_str()];
    content
        .publish(&a, &relays, &|_, repo| clone_urls_at(&relays, repo))
        .await;
    Connection::publish_from_many(&a.address, &content.issues(issues, 1)).await;
    let wanted = json!({ "kinds": [1621] });
    assert_eq!(
        Connection::connect(&a.address).await.count(wanted).await,
        issues as u64
    );

    let began = Instant::now();
    let mut b = serve(&dir.path().join("b"), &b_address, &a.address, &[]);
    if let Some(served) = kill_at {
        until(&b, |status| status["repositories"].as_u64() >= Some(served)).await;
        b.restart(false);
    }
    measure(&b, &content, repositories, issues, began).await
}

/// Measures a server until it has all repositories and issues.
async fn measure(
    b: &Server,
    content: &Content,
    repositories: usize,
    issues: usize,
    began: Instant,
) -> Mirrored {
    let served = |status: &Value| status["repositories"].as_u64() >= Some(repositories as u64);
    until(b, served).await;
    let all_repositories = began.elapsed();
    let mut connection = Connection::connect(&b.address).await;
    while connection.count(json!({ "kinds": [1621] })).await < issues as u64 {
        assert!(began.elapsed() < SCENARIO_TIMEOUT, "{}", status(b).await);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let took = began.elapsed();
    for n in (0..repositories).step_by(repositories.div_ceil(10)) {
        assert!(content.is_served(b, n).await, "repository {n} has its refs");
    }
    let metrics = http(&b.address, "GET", "/metrics", &[]).await.body;
    let attempts = ["complete", "incomplete", "needless"].map(|result| {
        let of = format!("grasp_purgatory_sync_attempts_total{{result=\"{result}\"}}");
        format!("{} {result}", sum(&metrics, &of))
    });
    let requests = ["live", "page", "ids", "compare"].map(|request| {
        let of = |line: &&str| line.contains(&format!("request=\"{request}\""));
        let lines: Vec<&str> = metrics.lines().filter(of).collect();
        format!(
            "{} {request}",
            sum(&lines.join("\n"), "grasp_sync_requests_total")
        )
    });
    Mirrored {
        took,
        repositories: all_repositories,
        peak_mb: peak_mb(b.id()),
        git_requests: sum(&metrics, "grasp_purgatory_domain_requests_total"),
        requests: requests.join(", "),
        attempts: attempts.join(", "),
    }
}

/// Mirrors a server behind a proxy that responds 429 to every third git request.
async fn limited(repositories: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let (proxy, listen, b_address) = (Proxy::start().await, free_address(), free_address());
    let domain = ["--domain", &proxy.address].map(str::to_owned).to_vec();
    let mut a = Server::start(&listen, dir.path().join("a"), domain);
    proxy.forward_to(&listen);
    // The maintainers push to the server itself.
    a.address = listen;
    let content = Content::new(repositories).await;
    let relays = [proxy.address.as_str(), b_address.as_str()];
    content
        .publish(&a, &relays, &|_, repo| clone_urls_at(&relays, repo))
        .await;
    let began = Instant::now();
    let b = serve(&dir.path().join("b"), &b_address, &proxy.address, &[]);
    let mirrored = measure(&b, &content, repositories, 0, began).await;
    print_mirrored(
        &format!(
            "{repositories} repositories, every third git request refused by 429, Retry-After 1"
        ),
        &mirrored,
        "completes",
    );
    let (refused, during) = proxy.refused();
    println!("  responses of 429       {refused:>8}");
    println!("  begun while refused    {during:>8}     (wanted: 0)");
}

/// Mirrors repositories on three servers, one of which accepts connections and never responds.
async fn one_unresponsive(repositories: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let (unresponsive, b_address, c_address) = (
        unresponsive_listener().await,
        free_address(),
        free_address(),
    );
    let a = Server::with_bootstrap(&dir.path().join("a"), &[]);
    let content = Content::new(repositories).await;
    let relays = [a.address.as_str(), c_address.as_str(), b_address.as_str()];
    let clone_urls = |n: usize, repo: &RepoId| {
        // Each of the three comes first for a third of the repositories.
        let mut three = [
            a.address.as_str(),
            c_address.as_str(),
            unresponsive.as_str(),
        ];
        three.rotate_left(n % 3);
        clone_urls_at(&[three[0], three[1], three[2], b_address.as_str()], repo)
    };
    content.publish(&a, &relays, &clone_urls).await;
    let c = serve(&dir.path().join("c"), &c_address, &a.address, &[]);
    let enough = |status: &Value| status["repositories"].as_u64() >= Some(repositories as u64);
    until(&c, enough).await;
    let began = Instant::now();
    let b = serve(&dir.path().join("b"), &b_address, &a.address, &[]);
    let mirrored = measure(&b, &content, repositories, 0, began).await;
    let title = format!("{repositories} repositories, three servers, one unresponsive");
    print_mirrored(&title, &mirrored, "200 s");
}

/// Publishes issues, older than the reach of any live request, while a mirror is connected.
async fn live(issues: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b_address) = (
        Server::with_bootstrap(&dir.path().join("a"), &[]),
        free_address(),
    );
    let content = Content::new(100).await;
    let relays = [a.address.as_str(), b_address.as_str()];
    content
        .publish(&a, &relays, &|_, repo| clone_urls_at(&relays, repo))
        .await;
    let b = serve(&dir.path().join("b"), &b_address, &a.address, &[]);
    until(&b, |status| status["repositories"].as_u64() >= Some(100)).await;
    let is_live = |status: &Value| status["relays"].to_string().contains(r#""connected""#);
    until(&b, is_live).await;
    let events = content.issues(issues, 730);
    let began = Instant::now();
    Connection::publish_from_many(&a.address, &events).await;
    let (published, done) = (began.elapsed(), Instant::now());
    let mut connection = Connection::connect(&b.address).await;
    while connection.count(json!({ "kinds": [1621] })).await < issues as u64 {
        assert!(done.elapsed() < SCENARIO_TIMEOUT, "{}", status(&b).await);
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    println!(
        "{issues} issues dated over two years, published to a server with a live subscription"
    );
    println!(
        "  published in           {:>8.1} s",
        published.as_secs_f64()
    );
    let lag = done.elapsed().as_secs_f64();
    println!("  all served after       {lag:>8.1} s   (wanted: 10 s after the last OK)");
    println!("  peak memory            {:>8.0} MB", peak_mb(b.id()));
}

/// Mirrors from a git server of unknown software, with a relay that has the announcements.
async fn unknown_host(repositories: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let (host, b_address) = (GitServer::start().await, free_address());
    let content = Content::new(repositories).await;
    host.host("all", content.work()).await;
    (0..repositories).for_each(|n| host.alias(&format!("r{n}"), "all"));
    let own = [b_address.as_str()];
    let clone_urls = |n: usize, repo: &RepoId| {
        clone_urls_at(&own, repo)
            .into_iter()
            .chain([host.url(&format!("r{n}"))])
            .collect()
    };
    let mut events: Vec<Event> = content.announcements(&own, &clone_urls);
    events.extend(content.states());
    let relay = OpenRelay::with_software("open", Limits::default(), events).await;
    let began = Instant::now();
    let b = serve(
        &dir.path().join("b"),
        &b_address,
        &relay.address().to_string(),
        &[],
    );
    let mirrored = measure(&b, &content, repositories, 0, began).await;
    print_mirrored(
        &format!("{repositories} repositories at an unknown host"),
        &mirrored,
        "150 s",
    );
    let begun = host.git_requests();
    let minute = Duration::from_secs(60);
    let within = |from: Instant| {
        begun
            .iter()
            .filter(move |at| **at >= from && **at < from + minute)
    };
    let most = begun
        .iter()
        .map(|from| within(*from).count())
        .max()
        .unwrap_or(0);
    println!("  in the busiest minute  {most:>8}     (wanted: 30 at most)");
}

/// Measures the time from the end of a push to one server until another serves its state.
async fn latency(rounds: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b_address) = (
        Server::with_bootstrap(&dir.path().join("a"), &[]),
        free_address(),
    );
    let b = serve(&dir.path().join("b"), &b_address, &a.address, &[]);
    until(&b, |status| {
        status["relays"].to_string().contains(r#""connected""#)
    })
    .await;
    let mut connection = Connection::connect(&b.address).await;
    connection
        .subscribe(json!({ "kinds": [30618], "limit": 0 }))
        .await;
    let mut publish = Connection::connect(&a.address).await;
    let (owner, work) = (grasp_tests::Author::new(), Workdir::init().await);
    let services = [a.service(), b.service()];
    let (mut new, mut updates) = (Vec::new(), Vec::new());
    for n in 0..rounds {
        let name = format!("r{n}");
        for (version, took) in [(0, &mut new), (1, &mut updates)] {
            let commit = work.commit(&format!("{version} of {name}")).await;
            let state = owner.later(version).state(&name, &[(MAIN, &commit)]);
            if version == 0 {
                publish
                    .publish(&[owner.announce_on(&name, &services)])
                    .await;
            }
            publish.publish(std::slice::from_ref(&state)).await;
            let url = a.clone_url(&owner.repo(&name));
            let refs = format!("{commit}:{MAIN}");
            work.git(&["push", "-q", &url, &refs]).await.expect_ok();
            let pushed = Instant::now();
            let served = connection.until_received([state.id].into()).await;
            took.push(served.saturating_duration_since(pushed));
        }
    }
    println!("push to one server until another serves it, after the push, {rounds} rounds");
    for (what, took, wanted) in [("new repository", new, 150), ("update", updates, 120)] {
        let [p50, p95] = [50, 95].map(|percent| percentile(&took, percent).as_millis());
        println!("  {what:<16} p50 {p50:>4} ms, p95 {p95:>4} ms   (wanted: p50 {wanted} ms)");
    }
}

fn percentile(took: &[Duration], percent: usize) -> Duration {
    let mut sorted = took.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

/// Starts a server at an address that others know before it runs.
fn serve(data: &Path, address: &str, bootstrap: &str, more: &[&str]) -> Server {
    let known = format!("ws://{bootstrap}");
    let arguments = ["--bootstrap", &known]
        .into_iter()
        .chain(more.iter().copied());
    Server::start(
        address,
        data.to_owned(),
        arguments.map(str::to_owned).collect(),
    )
}

fn free_address() -> String {
    reserve_address([127, 0, 0, 1]).to_string()
}

/// Returns the clone URLs of a repository at each of these addresses.
fn clone_urls_at(addresses: &[&str], repo: &RepoId) -> Vec<String> {
    let url = |address: &&str| {
        let service: grasp_core::ServiceIdentity = address.parse().expect("an address");
        service.repo_url(repo, false)
    };
    addresses.iter().map(url).collect()
}

async fn status(server: &Server) -> Value {
    let body = http(&server.address, "GET", "/status.json", &[]).await.body;
    serde_json::from_str(&body).unwrap_or_default()
}

async fn until(server: &Server, condition: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    loop {
        let status = status(server).await;
        if condition(&status) {
            return;
        }
        assert!(began.elapsed() < SCENARIO_TIMEOUT, "{status}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the sum of a metric over its labels.
fn sum(metrics: &str, name: &str) -> f64 {
    let values = metrics.lines().filter(|line| line.starts_with(name));
    values
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .fold(0.0, |a, b| a + b)
}

/// Returns the peak memory of a process.
fn peak_mb(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}
