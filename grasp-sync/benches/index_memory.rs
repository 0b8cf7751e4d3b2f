//! How much the sync index holds, counted by the allocator: apart from the times, which counting would spoil.

#[path = "index/report.rs"]
mod report;
#[path = "index/world.rs"]
mod world;

use peak_alloc::PeakAlloc;

use crate::world::{REPOS, confirm, connected_relays, filled_index, whole};

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
