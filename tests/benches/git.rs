//! Clones and pushes of this server and of `git http-backend` behind the same HTTP server.
//!
//! ```sh
//! cargo bench -p grasp-tests --bench git                                            # minutes, and some 10 GB of disk
//! GRASP_BENCH_MB=100 GRASP_BENCH_ROUNDS=10 cargo bench -p grasp-tests --bench git   # a shorter one
//! ```
//!
//! Each server is a process of its own, so its memory is its own; the memory of its git processes is printed beside it. The
//! servers alternate, and every figure is a median: a busy machine slows both. `GRASP_BENCH_MB=0` leaves out the
//! large repository.

#[path = "git/backend.rs"]
mod backend;
#[path = "git/load.rs"]
mod load;
#[path = "git/memory.rs"]
mod memory;
#[path = "git/responses.rs"]
mod responses;
#[path = "git/server.rs"]
mod server;

use std::path::Path;
use std::time::{Duration, Instant};

use load::{LargeRepo, SmallRepo};
use memory::{Memory, MemorySampler};
use server::{Kind, Server};

fn main() {
    if let Some(kind) = Kind::from_env() {
        return server::run(kind);
    }
    if !std::env::args().any(|argument| argument == "--bench") {
        return; // `cargo test --benches` only checks that it builds
    }
    let Some(backend) = backend::program() else {
        println!("git http-backend is not installed: nothing to compare with, skipped");
        return;
    };
    println!("git http-backend at {}", backend.display());
    let dir = tempfile::tempdir().expect("a directory");
    let servers = [Kind::Grasp, Kind::Backend].map(|kind| Server::start(kind, dir.path()));
    latency(&servers, dir.path());
    if number("GRASP_BENCH_MB", DEFAULT_MB) > 0 {
        throughput(&servers, dir.path());
    }
}

const DEFAULT_MB: usize = 500;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// Measures the time of whole git commands in small repositories.
fn latency(servers: &[Server; 2], dir: &Path) {
    let rounds = number("GRASP_BENCH_ROUNDS", 40);
    let mut small = servers
        .each_ref()
        .map(|server| SmallRepo::host(server, dir));
    let mut times: [[Vec<Duration>; 3]; 2] = Default::default();
    for round in 0..rounds {
        // The server that goes first in this round goes second in the next.
        for which in [round % 2, (round + 1) % 2] {
            let (small, times) = (&mut small[which], &mut times[which]);
            small.prepare_push(&servers[which], round);
            times[0].push(timed(|| small.push()));
            times[1].push(timed(|| small.clone_again(round)));
            times[2].push(timed(|| small.fetch_nothing()));
        }
    }
    println!(
        "\nwhole git commands, small repository, median of {rounds}\n  {:24} {:>11} {:>14} {:>7}  wanted",
        "", "grasp", "http-backend", "ratio"
    );
    let wanted = [
        ("push", "≤ 1.00"),
        ("clone", "≤ 1.20"),
        ("fetch of nothing new", "≤ 1.00"),
    ];
    for (position, (what, wanted)) in wanted.iter().enumerate() {
        let [ours, theirs] = times.each_mut().map(|times| median(&mut times[position]));
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        println!(
            "  {what:24} {:>11.1?} {:>14.1?} {ratio:>7.2}  {wanted}",
            ours, theirs
        );
    }
    let [ours, theirs] = &small;
    responses::compare([(&servers[0], ours), (&servers[1], theirs)]);
}

/// Measures bytes per second and memory with one large repository.
fn throughput(servers: &[Server; 2], dir: &Path) {
    let megabytes = number("GRASP_BENCH_MB", DEFAULT_MB);
    let big = LargeRepo::create(dir, megabytes);
    println!(
        "\n{megabytes} MB                              grasp   http-backend   ratio, wanted ≥ 0.90"
    );
    println!(
        "  (wanted growth of the server itself: ≤ 32 MB, however many operations run at once)"
    );
    for at_once in [1, 3] {
        let pushed = servers.each_ref().map(|server| {
            let sampler = MemorySampler::start(server.id());
            let time = timed(|| big.push(server, at_once));
            (time, sampler.stop())
        });
        report(
            &format!("push, {at_once} at once"),
            megabytes * at_once,
            pushed,
        );
    }
    for (at_once, rounds) in [(1, 5), (4, 3), (16, 1)] {
        let mut times: [Vec<Duration>; 2] = Default::default();
        let mut memory = [Memory::default(); 2];
        for round in 0..rounds {
            for which in [round % 2, (round + 1) % 2] {
                let sampler = MemorySampler::start(servers[which].id());
                times[which].push(timed(|| big.read(&servers[which], at_once)));
                memory[which] = memory[which].max(sampler.stop());
            }
        }
        let [ours, theirs] = times.each_mut().map(|times| median(times));
        let what = format!("clone, {at_once} at once");
        report(
            &what,
            megabytes * at_once,
            [(ours, memory[0]), (theirs, memory[1])],
        );
    }
}

fn report(what: &str, megabytes: usize, [ours, theirs]: [(Duration, Memory); 2]) {
    let speed = |time: Duration| megabytes as f64 / time.as_secs_f64();
    let ratio = speed(ours.0) / speed(theirs.0);
    println!(
        "  {what:20} MB/s {:>13.0} {:>14.0} {ratio:>7.2}",
        speed(ours.0),
        speed(theirs.0)
    );
    println!(
        "  {:20} RSS + {:>10.1} MB {:>11.1} MB",
        "", ours.1.server, theirs.1.server
    );
    println!(
        "  {:20} git RSS {:>8.1} MB {:>11.1} MB",
        "", ours.1.children, theirs.1.children
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
