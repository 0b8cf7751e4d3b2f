//! The time of operations on the sync index, at its target scale and at ten times that.
//!
//! `cargo bench -p grasp-sync` prints each figure beside its target. Times are the shortest of many runs: other load of
//! the machine only adds to them.

#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

#[path = "index/dataset.rs"]
mod dataset;
#[path = "index/report.rs"]
mod report;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

use grasp_core::RelayUrl;
use grasp_core::sync::{
    PendingItems, RequestBudget, SyncIndex, build_layer2_and_layer3_filters, pack_requests,
};

use crate::dataset::{
    RELAYS, RELAYS_PER_REPO, REPOS, ROOTS_PER_REPO, States, actions, changes_of, confirm,
    connected_relays, filled_index, relay, undoing, whole,
};

/// The number of repositories in one batch, with all their roots.
const BATCH_REPOS: usize = 10;

fn main() {
    // `cargo test --all-targets` runs this without the flag, and wants no figures.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    at_target();
    at_ten_times();
}

fn at_target() {
    println!(
        "{REPOS} repositories x {ROOTS_PER_REPO} roots, {RELAYS} relays, {RELAYS_PER_REPO} each"
    );
    let wanted = Some(Duration::from_millis(25));
    let mut index = filled_index(REPOS);
    let mut relays = connected_relays();
    let took = quickest(41, || whole(&index, &relays));
    report::time("full derive + compute, all new", took, wanted);
    let actions = whole(&index, &relays);
    filters(&actions);
    confirm(&mut relays, actions);
    let took = quickest(41, || whole(&index, &relays));
    report::time("full derive + compute, all confirmed", took, wanted);
    let took = quickest(101, || index.target(&relay(0)));
    report::time("target of one relay, written out", took, None);
    let took = batch(&mut index, &relays);
    report::time(
        "incremental batch of 10 repositories",
        took,
        Some(Duration::from_millis(1)),
    );
}

fn at_ten_times() {
    println!(
        "{} repositories x {ROOTS_PER_REPO} roots, {RELAYS} relays, {RELAYS_PER_REPO} each",
        10 * REPOS
    );
    let mut index = filled_index(10 * REPOS);
    let mut relays = connected_relays();
    let took = quickest(3, || whole(&index, &relays));
    report::time("full derive + compute, all new", took, None);
    let actions = whole(&index, &relays);
    confirm(&mut relays, actions);
    let took = batch(&mut index, &relays);
    report::time(
        "incremental batch of 10 repositories",
        took,
        Some(Duration::from_millis(2)),
    );
}

/// Measures new repositories with all their roots, from the change of the index to the actions, with everything else
/// confirmed.
fn batch(index: &mut SyncIndex, relays: &States) -> Duration {
    let fresh = 1_000_000..1_000_000 + BATCH_REPOS;
    let changes: Vec<_> = fresh.clone().flat_map(changes_of).collect();
    let undo: Vec<_> = fresh.flat_map(undoing).collect();
    let timed = |_| {
        let changes = changes.clone();
        let start = Instant::now();
        let delta = index.apply(changes);
        let actions = actions(&delta.added, relays);
        let took = start.elapsed();
        let asked: usize = actions
            .iter()
            .map(|(_, items)| items.root_events.len())
            .sum();
        assert_eq!(asked, BATCH_REPOS * ROOTS_PER_REPO * RELAYS_PER_REPO);
        index.apply(undo.clone());
        took
    };
    (0..501).map(timed).min().unwrap_or_default()
}

fn filters(actions: &[(RelayUrl, PendingItems)]) {
    let by_count = RequestBudget::default();
    let by_bytes = by_count.with_values_per_filter(RequestBudget::MAX_VALUES_PER_FILTER);
    for (how, budget) in [("100 a filter", by_count), ("by bytes", by_bytes)] {
        let of = |items| build_layer2_and_layer3_filters(items, None, &budget);
        let build = || -> Vec<_> { actions.iter().map(|(_, items)| of(items)).collect() };
        let built = build();
        let sets = built
            .iter()
            .flatten()
            .flat_map(|filter| filter.generic_tags.values());
        let values: usize = sets.map(BTreeSet::len).sum();
        let took = quickest(11, build);
        report::rate(&format!("building filters, {how}"), values, took, Some(1.0));
        let pack = || -> usize {
            built
                .iter()
                .map(|f| pack_requests(f.clone(), &budget).len())
                .sum()
        };
        let took = quickest(5, pack);
        report::rate(&format!("packing them, {how}"), values, took, None);
        let filters: usize = built.iter().map(Vec::len).sum();
        println!(
            "    {values} values, {filters} filters, {} requests",
            pack()
        );
    }
}

/// Returns the shortest of `runs` runs, without the time to drop the result.
fn quickest<T>(runs: usize, mut work: impl FnMut() -> T) -> Duration {
    let timed = |_| {
        let start = Instant::now();
        let result = black_box(work());
        let took = start.elapsed();
        drop(result);
        took
    };
    (0..runs).map(timed).min().unwrap_or_default()
}
