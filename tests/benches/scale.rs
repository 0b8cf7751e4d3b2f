//! A new server mirrors others at the scale that the design is made for.
//!
//! ```sh
//! cargo bench -p grasp-tests --bench scale                   # everything, about 20 minutes
//! cargo bench -p grasp-tests --bench scale -- mirror live    # some of it
//! ```
//!
//! Each server is a process of its own, the command that operators run, with default settings except for its port,
//! private targets and, behind a proxy, its address. `GRASP_BENCH_REPOSITORIES` (1,000) and `GRASP_BENCH_ISSUES`
//! (50,000) set the size of the large scenarios; wanted figures are those for the defaults.

#[path = "scale/connection.rs"]
mod connection;
#[path = "scale/content.rs"]
mod content;
#[path = "sync/open_relay.rs"]
#[allow(
    clippy::unwrap_used,
    dead_code,
    reason = "the sync bench allows it, and uses more of it"
)]
mod open_relay;
#[path = "scale/proxy.rs"]
mod proxy;
#[path = "scale/scenarios.rs"]
mod scenarios;
#[path = "soak/server.rs"]
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return grasp_bin::run();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS; // `cargo test --benches` only checks that it builds
    }
    let chosen: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.contains(&name);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(scenarios::run(is_chosen));
    ExitCode::SUCCESS
}
