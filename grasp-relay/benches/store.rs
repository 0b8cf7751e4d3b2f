//! The speed of event stores on a real disk: `cargo bench -p grasp-relay --bench store`.
//!
//! An argument sets the number of events (default 100,000, at least 6,000 so that every repository has some). The
//! databases of the crates `nostr-sqlite` and `nostr-lmdb`, and with the feature `postgres` our other store, run the same
//! workload beside ours. Where the disk decides they alternate in rounds of half a second, so that a disk that is slow
//! for a while is slow for all of them.
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "store/databases.rs"]
mod databases;
#[path = "store/events.rs"]
mod events;
#[path = "store/measure.rs"]
mod measure;
#[cfg(feature = "postgres")]
#[allow(dead_code, unreachable_pub, reason = "shared with tests")]
#[path = "../../tests/src/postgres.rs"]
mod postgres;
#[path = "store/processor.rs"]
mod processor;
#[cfg(feature = "postgres")]
#[allow(unreachable_pub, reason = "shared with tests")]
#[path = "../../tests/src/reserved.rs"]
mod reserved;
#[path = "store/workload.rs"]
mod workload;

use events::Dataset;
use measure::Figure;
use workload::{Candidate, ROWS};

fn main() {
    let wanted = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let count = wanted.unwrap_or(100_000).max(6_000);
    // Not the system's directory for temporary files, which may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();

    println!("writing and signing {count} events");
    let dataset = Dataset::generate(count);
    println!(
        "on {}, fdatasync of 4 KiB: {}",
        dir.display(),
        measure::fdatasync(dir)
    );

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let candidates = runtime.block_on(workload::run(databases::ALL, dir, &dataset));
    print(&candidates);
    println!(
        "at the end, fdatasync of 4 KiB: {}",
        measure::fdatasync(dir)
    );
}

fn print(candidates: &[Candidate]) {
    print!("\n{:<40}", "");
    for candidate in candidates {
        print!("{:>26}", candidate.name);
    }
    println!("{:>12}", "wanted");
    for (row, (title, wanted)) in ROWS.iter().enumerate() {
        print!("{title:<40}");
        let ours = &candidates[0].figures[row];
        for (index, candidate) in candidates.iter().enumerate() {
            print!(
                "{:>26}",
                shown(&candidate.figures[row], (index > 0).then_some(ours))
            );
        }
        println!("{wanted:>12}");
    }
    for candidate in candidates.iter().filter(|candidate| candidate.late > 0) {
        let Candidate {
            name, late, held, ..
        } = candidate;
        println!(
            "{name} took too long to load: {late} events were left out, so queries are about {held}"
        );
    }
    println!("[n]: only n samples were taken, because each takes long");
}

fn shown(figure: &Figure, ours: Option<&Figure>) -> String {
    let Some(value) = figure.value else {
        return "not measured: too slow".to_owned();
    };
    let mut text = if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    };
    if let Some(samples) = figure.samples {
        text = format!("{text} [{samples}]");
    }
    if let Some(ours) = ours.and_then(|ours| ours.value) {
        text = format!("{text} ({:.2}x)", value / ours);
    }
    text
}
