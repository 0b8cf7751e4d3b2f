//! The relay end to end, on one machine: client, sockets, pipeline, store and fan-out in one process.
//!
//! `cargo bench -p grasp-relay --bench relay`; set `GRASP_BENCH_EVENTS`, `GRASP_BENCH_SUBSCRIBERS` and
//! `GRASP_BENCH_NEG` to smaller numbers for a quick run, and `GRASP_BENCH_DIR` to choose the disk.

mod bench_relay;
mod client;
mod fan_out;
mod ingest;
#[path = "../store/processor.rs"]
mod processor;
mod reconcile;
mod requests;

use std::time::Duration;

/// Returns a number from the environment.
fn setting(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Prints one line of the report.
fn report(what: &str, figures: &str) {
    println!("{what:<52} {figures}");
}

fn per_second(count: usize, took: Duration) -> String {
    format!("{:>10.0} /s", count as f64 / took.as_secs_f64())
}

fn main() {
    let events = setting("GRASP_BENCH_EVENTS", 20_000);
    let subscribers = setting("GRASP_BENCH_SUBSCRIBERS", 10_000);
    let items = setting("GRASP_BENCH_NEG", 100_000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        ingest::run(events).await;
        requests::run(events).await;
        fan_out::publish_cost(subscribers).await;
        fan_out::run(subscribers).await;
        reconcile::run(items).await;
    });
}
