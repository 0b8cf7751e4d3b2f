//! Speed of one server that catches up with another, over real sockets, with verification and a store on disk.
//!
//! `cargo bench -p grasp-tests --bench sync` runs all; an argument after `--` chooses those that contain it, and
//! `GRASP_BENCH_EVENTS` sets the number of events. In `adopted` the server is a process of its own: this program, which
//! is `grasp` too, or the one that `GRASP_BENCH_PROGRAM` names.
#![allow(clippy::unwrap_used)]

#[path = "sync/black_box.rs"]
mod black_box;
#[path = "sync/counting_proxy.rs"]
mod counting_proxy;
#[path = "sync/open_relay.rs"]
mod open_relay;
#[path = "sync/sync_server.rs"]
mod sync_server;

use std::time::{Duration, Instant};

use grasp_relay::nostr::Limits;
use grasp_tests::Author;

use self::black_box::{Client, Process};
use self::counting_proxy::CountingProxy;
use self::open_relay::OpenRelay;
use self::sync_server::{SyncServer, Threads};

fn main() {
    if black_box::run_as_child() {
        return;
    }
    let chosen: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let is_chosen =
        |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()));
    let all = events();
    if is_chosen("fresh") {
        runtime.block_on(fresh("fresh", all, all / 10, Limits::default()));
    }
    if is_chosen("roots") {
        runtime.block_on(fresh("roots", all, all, Limits::default()));
    }
    if is_chosen("pages") {
        let limits = Limits {
            neg_sessions: 0,
            ..Limits::default()
        };
        runtime.block_on(fresh("pages", all / 5, all / 50, limits));
    }
    if is_chosen("equal") {
        runtime.block_on(resync("equal", all, 0));
    }
    if is_chosen("difference") {
        runtime.block_on(resync("difference", all, all / 100));
    }
    if is_chosen("live") {
        runtime.block_on(live());
    }
    if is_chosen("adopted") {
        runtime.block_on(adopted(20_000));
    }
}

fn events() -> usize {
    std::env::var("GRASP_BENCH_EVENTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(100_000)
}

/// Returns the processor time of this process, which other processes do not change.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

fn print_row(name: &str, figure: &str, wanted: &str) {
    println!("{name:<12} {figure:<70} {wanted}");
}

/// Syncs a server that has only its repositories with one that has everything: this number of roots, and comments on them
/// for the rest. On the busiest relay known one event in ten is a root.
async fn fresh(name: &str, count: usize, roots: usize, limits: Limits) {
    let threads = Threads::make(20, roots, count - roots);
    let source = OpenRelay::start(limits, threads.events()).await;
    let mut server = SyncServer::with_repos(&threads.owner, 20, source.service()).await;
    let (began, busy) = (Instant::now(), cpu_time());
    server.start_sync(&source.url()).await;
    server.until_has(count).await;
    let (took, busy) = (began.elapsed(), cpu_time() - busy);
    let rate = count as f64 / took.as_secs_f64();
    let each = busy.as_secs_f64() * 1e6 / count as f64;
    let figure = format!(
        "{count} events in {took:.2?}: {rate:.0} events/s; {each:.0} µs of CPU each, both sides"
    );
    print_row(
        name,
        &figure,
        if name == "pages" {
            ""
        } else {
            "wanted: 8,000/s"
        },
    );
    server.end().await;
}

/// Restarts a server that has all, or nearly all, events, without its records of what it fetched.
async fn resync(name: &str, count: usize, missing: usize) {
    let threads = Threads::make(20, count / 10, count - count / 10);
    let source = OpenRelay::start(Limits::default(), threads.events()).await;
    let proxy = CountingProxy::to(source.address()).await;
    let mut server = SyncServer::with_repos(&threads.owner, 20, proxy.service()).await;
    server
        .ingest(
            threads
                .events()
                .into_iter()
                .rev()
                .skip(missing)
                .rev()
                .collect(),
        )
        .await;
    let began = Instant::now();
    server.start_sync(&proxy.url()).await;
    server.until_has(count).await;
    server.until_synced(&proxy.url()).await;
    let (took, bytes) = (began.elapsed(), proxy.bytes());
    let wanted = if missing == 0 {
        "wanted: 400 ms, 32 KB"
    } else {
        ""
    };
    let kb = bytes as f64 / 1024.0;
    print_row(
        name,
        &format!("{count} events, {missing} missing: {took:.2?}, {kb:.1} KB"),
        wanted,
    );
    server.end().await;
}

/// Publishes events one by one at the source, and measures when they are served here.
async fn live() {
    let rounds = 1_000;
    let threads = Threads::make(20, 0, 0);
    let source = OpenRelay::start(Limits::default(), vec![]).await;
    let mut server = SyncServer::with_repos(&threads.owner, 20, source.service()).await;
    server.start_sync(&source.url()).await;
    server.until_synced(&source.url()).await;
    let more = Threads::make_for(&threads.owner, 20, rounds, 0).events();
    let mut times = Vec::new();
    for event in more {
        let mut waiter = server.wait_for(&event).await;
        let began = Instant::now();
        source.publish(event).await;
        waiter.served().await;
        times.push(began.elapsed());
    }
    times.sort();
    let at = |share: f64| times[((rounds - 1) as f64 * share) as usize];
    let figure = format!("p50 {:.2?}, p99 {:.2?}", at(0.5), at(0.99));
    print_row("live", &figure, "wanted: p99 10 ms");
    server.end().await;
}

/// Measures an adoption: all events are at a relay, and then the repositories are announced and pushed here.
async fn adopted(count: usize) {
    for software in ["grasp", "something"] {
        let owner = Author::new();
        let events = Threads::make_for(&owner, 20, count / 2, count / 2).events();
        let data = tempfile::tempdir().unwrap();
        let source = Process::source(software, &events);
        let server = Process::server(data.path(), &source.url);
        let mut client = Client::to(&server).await;
        let began = Instant::now();
        black_box::adopt(&server, &source, &owner, 20).await;
        let pushed = began.elapsed();
        let all = client.until_counts(&[1621, 1111], count).await;
        let took = began.elapsed();
        let figure = format!(
            "{count} events of a relay that calls itself {software}: {:.2?} after the last push, {:.2?} in all{}",
            took - pushed,
            took,
            if all { "" } else { " (timed out)" }
        );
        print_row("adopted", &figure, "wanted: 5 s");
        assert!(
            !all || client.count_served(&events).await == count,
            "counted and not served"
        );
    }
}
