//! Three servers that list each other under a day's traffic in short: what they take, minute by minute.
//!
//! ```sh
//! cargo bench -p grasp-tests --bench soak                              # half an hour
//! GRASP_SOAK_MINUTES=3 cargo bench -p grasp-tests --bench soak         # a look
//! GRASP_SOAK_RATE=40 cargo bench -p grasp-tests --bench soak           # ten times the actions in a second
//! GRASP_SOAK_CSV=soak.csv cargo bench -p grasp-tests --bench soak      # figures for a plot
//! ```
//!
//! Each server is a process of its own and the very command that operators run. People announce, push, propose,
//! discuss and delete, each at one server or another; now and then a server is told to stop, or killed, and comes
//! back. At the end all must serve the same events and the same refs.

#[path = "soak/day.rs"]
mod day;
#[path = "soak/figures.rs"]
mod figures;
#[path = "soak/relay.rs"]
mod relay;
#[path = "soak/server.rs"]
mod server;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use day::Day;
use figures::Figures;
use server::Server;

/// Actions of clients in a second, if `GRASP_SOAK_RATE` says nothing.
const DEFAULT_ACTIONS_PER_SECOND: u64 = 4;
/// How often is looked.
const LOOK: Duration = Duration::from_secs(15);
/// How long equality may take once nobody does anything any more.
const PATIENCE: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return grasp_bin::run();
    }
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS; // `cargo test --benches` only wants to know that it builds
    }
    let minutes = number("GRASP_SOAK_MINUTES").unwrap_or(30);
    let rate = number("GRASP_SOAK_RATE").unwrap_or(DEFAULT_ACTIONS_PER_SECOND).max(1);
    let interval = Duration::from_secs(1) / u32::try_from(rate).unwrap_or(u32::MAX);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(soak(Duration::from_secs(minutes * 60), interval))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

async fn soak(length: Duration, interval: Duration) -> ExitCode {
    let dir = tempfile::tempdir().expect("a directory");
    let first = Server::knowing(&dir.path().join("0"), &[]);
    let known = format!("ws://{}", first.address);
    let [second, third] =
        [1, 2].map(|n: u8| Server::knowing(&dir.path().join(n.to_string()), &[&known]));
    let mut servers = [first, second, third];
    let mut day = Day::begin(&servers).await;
    let mut csv = std::env::var_os("GRASP_SOAK_CSV")
        .map(|path| std::fs::File::create(path).expect("a file for the figures"));
    println!("{}", Figures::heading());
    let (began, mut looked) = (Instant::now(), Instant::now());
    let mut history = Vec::new();
    let mut steps = 0_u32;
    while began.elapsed() < length {
        let share = began.elapsed().as_secs_f64() / length.as_secs_f64();
        day.step(&mut servers, share).await;
        steps += 1;
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            let figures = Figures::of(&servers);
            let row = figures.row(began.elapsed());
            println!("{row}");
            if let Some(csv) = &mut csv {
                writeln!(csv, "{}", row.split_whitespace().collect::<Vec<_>>().join(","))
                    .expect("figures are written");
            }
            history.push(figures);
        }
        // People do not wait for how long the machine took for the last one.
        tokio::time::sleep_until((began + interval * steps).into()).await;
    }
    println!("{}", day.told());
    let equal = day.until_equal(&servers, PATIENCE).await;
    println!("{}", Figures::of(&servers).row(began.elapsed()));
    println!("{}", figures::growth(&history));
    match equal {
        Ok(took) => {
            println!("all three serve the same events and refs, {took:.1?} after the last word")
        }
        Err(difference) => println!("NOT EQUAL: {difference}"),
    }
    drop(servers);
    ExitCode::SUCCESS
}
