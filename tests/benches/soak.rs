//! Resource use of three servers that list each other under mixed traffic, sampled over time.
//!
//! ```sh
//! cargo bench -p grasp-tests --bench soak                              # half an hour
//! GRASP_SOAK_MINUTES=3 cargo bench -p grasp-tests --bench soak         # a short run
//! GRASP_SOAK_RATE=40 cargo bench -p grasp-tests --bench soak           # ten times the operations in a second
//! GRASP_SOAK_CSV=soak.csv cargo bench -p grasp-tests --bench soak      # figures for a plot
//! ```
//!
//! Each server is a process of its own, the command that operators run. Authors announce, push, propose,
//! discuss and delete, each at a random server; now and then a server is stopped or killed, and started
//! again. At the end all must serve the same events and the same refs.

#[path = "soak/figures.rs"]
mod figures;
#[path = "soak/relay.rs"]
mod relay;
#[path = "soak/server.rs"]
mod server;
#[path = "soak/workload.rs"]
mod workload;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use figures::Figures;
use server::Server;
use workload::Workload;

/// Operations in a second, unless `GRASP_SOAK_RATE` sets them.
const DEFAULT_RATE: u64 = 4;
/// Interval of samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(15);
/// Time for the servers to converge after the last operation.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return grasp_bin::run();
    }
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS; // `cargo test --benches` only checks that it builds
    }
    let minutes = number("GRASP_SOAK_MINUTES").unwrap_or(30);
    let rate = number("GRASP_SOAK_RATE").unwrap_or(DEFAULT_RATE).max(1);
    let interval = Duration::from_secs(1) / u32::try_from(rate).unwrap_or(u32::MAX);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(soak(Duration::from_secs(minutes * 60), interval))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

async fn soak(length: Duration, interval: Duration) -> ExitCode {
    let dir = tempfile::tempdir().expect("a directory");
    let first = Server::with_bootstrap(&dir.path().join("0"), &[]);
    let known = format!("ws://{}", first.address);
    let [second, third] =
        [1, 2].map(|n: u8| Server::with_bootstrap(&dir.path().join(n.to_string()), &[&known]));
    let mut servers = [first, second, third];
    let mut workload = Workload::start(&servers).await;
    let mut csv = std::env::var_os("GRASP_SOAK_CSV")
        .map(|path| std::fs::File::create(path).expect("a file for the figures"));
    println!("{}", Figures::heading());
    let (began, mut sampled) = (Instant::now(), Instant::now());
    let mut history = Vec::new();
    let mut steps = 0_u32;
    while began.elapsed() < length {
        let share = began.elapsed().as_secs_f64() / length.as_secs_f64();
        workload.step(&mut servers, share).await;
        steps += 1;
        if sampled.elapsed() >= SAMPLE_INTERVAL {
            sampled = Instant::now();
            let figures = Figures::of(&servers);
            let row = figures.row(began.elapsed());
            println!("{row}");
            if let Some(csv) = &mut csv {
                writeln!(
                    csv,
                    "{}",
                    row.split_whitespace().collect::<Vec<_>>().join(",")
                )
                .expect("figures are written");
            }
            history.push(figures);
        }
        // The rate of operations does not depend on how long the last one took.
        tokio::time::sleep_until((began + interval * steps).into()).await;
    }
    println!("{}", workload.summary());
    let converged = workload
        .until_converged(&servers, CONVERGENCE_TIMEOUT)
        .await;
    println!("{}", Figures::of(&servers).row(began.elapsed()));
    println!("{}", figures::growth(&history));
    match converged {
        Ok(took) => {
            println!(
                "all three serve the same events and refs, {took:.1?} after the last operation"
            )
        }
        Err(difference) => println!("NOT CONVERGED: {difference}"),
    }
    drop(servers);
    ExitCode::SUCCESS
}
