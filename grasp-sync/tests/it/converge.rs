//! All events that can be fetched arrive in the end, with relays of any behaviour.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grasp_sync::engine::Input;

use crate::sim::Sim;
use crate::sim::chance::Chance;
use crate::sim::world::{calm, obtainable, random};

const MINUTE: Duration = Duration::from_secs(60);

/// The time by which everything has been published.
const PUBLISHING_TIME: Duration = Duration::from_secs(75 * 60);
/// The time by which two full passes were made over every relay that is reachable for long enough.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(8 * 60 * 60);

/// Runs one world; returns what is missing, or too much.
fn run(seed: u64) -> Result<(), String> {
    let mut sim = random(seed);
    sim.handle(Input::FeedCaughtUp);
    // In every other world our own process restarts, up to twice.
    let mut chance = Chance::seeded(seed ^ 0xdead);
    let processes = chance.within(0, 5).saturating_sub(2);
    for process in 1..processes {
        sim.run_for(Duration::from_secs(chance.within(5, 40 * 60)));
        sim.crash(seed + process);
    }
    sim.run_for(PUBLISHING_TIME.saturating_sub(sim.now.mono.since_start()));
    let wanted = obtainable(&sim);
    let missing = |sim: &Sim| {
        wanted
            .iter()
            .filter(|id| !sim.local.stored.contains_key(id))
            .count()
    };
    while missing(&sim) > 0 && sim.now.mono.since_start() < CONVERGENCE_TIMEOUT {
        sim.run_for(15 * MINUTE);
    }
    let scripts: Vec<_> = sim.peers.values().map(|peer| &peer.script).collect();
    if missing(&sim) > 0 {
        return Err(format!(
            "{} of {} missing; {scripts:?}",
            missing(&sim),
            wanted.len()
        ));
    }
    for peer in sim.peers.values().filter(|peer| peer.script.is_open) {
        if peer.peak_subs > peer.script.subs {
            return Err(format!(
                "{} of {} subscriptions",
                peer.peak_subs, peer.script.subs
            ));
        }
    }
    Ok(())
}

/// Returns the worlds to try: the first thousand, or as many as `GRASP_SEEDS` says; `GRASP_SEED=n` replays one.
fn seeds() -> Range<u64> {
    let read = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    match read("GRASP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..read("GRASP_SEEDS").unwrap_or(1_000),
    }
}

/// Runs one world after another; returns the failures, by seed.
fn run_all(next: &AtomicU64, end: u64) -> Vec<String> {
    let mut failed = Vec::new();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return failed;
        }
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => failed.push(replay(seed, &why)),
            Err(_) => failed.push(replay(seed, "panics, as shown above")),
        }
    }
}

fn replay(seed: u64, why: &str) -> String {
    format!("GRASP_SEED={seed} cargo test -p grasp-sync --test it converge: {why}\n")
}

#[test]
fn every_world_converges_within_the_limits_of_its_relays() {
    let Range { start, end } = seeds();
    let next = AtomicU64::new(start);
    let workers = std::thread::available_parallelism().map_or(2, NonZero::get);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers)
            .map(|_| scope.spawn(|| run_all(&next, end)))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    assert!(
        failed.is_empty(),
        "{} of {} worlds:\n{}",
        failed.len(),
        end - start,
        failed.concat()
    );
}

/// In these, a request for everything was refused after full sync had ended, and its job was lost.
#[test]
fn jobs_for_everything_end_with_full_sync() {
    for seed in [2_893, 3_833] {
        assert_eq!(run(seed), Ok(()), "seed {seed}");
    }
}

/// Events published while we are subscribed are dated up to eleven days earlier; no full pass helps before two hours
/// have passed.
#[test]
fn with_reliable_relays_events_of_any_date_arrive_without_another_full_pass() {
    for seed in 0..100 {
        let mut sim = calm(seed);
        sim.handle(Input::FeedCaughtUp);
        sim.run_for(PUBLISHING_TIME + 5 * MINUTE);
        let wanted = obtainable(&sim);
        let missing = wanted
            .iter()
            .filter(|id| !sim.local.stored.contains_key(id))
            .count();
        let scripts: Vec<_> = sim.peers.values().map(|peer| &peer.script).collect();
        assert_eq!(missing, 0, "seed {seed}: of {}; {scripts:?}", wanted.len());
    }
}
