//! The relay end to end, on one machine: client, sockets, pipeline, store and fan-out in one process.
//!
//! `cargo bench -p grasp-relay --bench relay` prints all rows; `-- publish`, `req`, `live` or `neg` those alone. Set
//! `GRASP_BENCH_EVENTS`, `GRASP_BENCH_SUBSCRIBERS` and `GRASP_BENCH_NEG` to smaller numbers for a quick run, and
//! `GRASP_BENCH_DIR` to choose the disk.

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

/// Returns the rate and the processor time of each, the client's part included.
fn figures(count: usize, took: Duration, worked: f64) -> String {
    let each = worked * 1e6 / count as f64;
    format!("{}   {each:>5.0} µs CPU", per_second(count, took))
}

fn main() {
    let events = setting("GRASP_BENCH_EVENTS", 20_000);
    let subscribers = setting("GRASP_BENCH_SUBSCRIBERS", 10_000);
    let items = setting("GRASP_BENCH_NEG", 50_000);
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let is_chosen = |rows: &str| {
        let mut names = chosen.iter().filter(|name| !name.starts_with('-'));
        let has_names = names.clone().next().is_some();
        !has_names || names.any(|name| name == rows)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        if is_chosen("publish") {
            ingest::run(events).await;
        }
        if is_chosen("req") {
            requests::run(events).await;
        }
        if is_chosen("live") {
            fan_out::publish_cost(subscribers).await;
            fan_out::run(subscribers).await;
        }
        if is_chosen("neg") {
            reconcile::run(items).await;
        }
    });
}
