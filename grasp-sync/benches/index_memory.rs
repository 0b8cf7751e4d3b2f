//! The memory of the sync index, counted by the allocator; separate from the times, which counting would change.

#[path = "index/dataset.rs"]
mod dataset;
#[path = "index/report.rs"]
mod report;

use peak_alloc::PeakAlloc;

use crate::dataset::{REPOS, confirm, connected_relays, filled_index, whole};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() {
    // `cargo test --all-targets` runs this without the flag, and wants no figures.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    for (repos, wanted) in [(REPOS, Some(12_000_000)), (10 * REPOS, None)] {
        println!("{repos} repositories");
        let empty = HEAP.current_usage();
        let index = filled_index(repos);
        let held = HEAP.current_usage() - empty;
        report::bytes("index", held, wanted);
        let mut relays = connected_relays();
        let actions = whole(&index, &relays);
        confirm(&mut relays, actions);
        let both = HEAP.current_usage() - empty;
        report::bytes("with everything confirmed at every relay", both, None);
    }
}
