//! Whatever relays do, what can be had is had in the end.

use std::time::Duration;

use grasp_sync::engine::Input;

use crate::sim::Sim;
use crate::sim::world::{obtainable, random};

const MINUTE: Duration = Duration::from_secs(60);

/// By then everything has been published.
const ALL_SAID: Duration = Duration::from_secs(75 * 60);
/// By then two full passes have been made over every relay that can be reached for long enough.
const LATEST: Duration = Duration::from_secs(8 * 60 * 60);

/// Runs one world and says what is missing, or too much.
fn run(seed: u64) -> Result<(), String> {
    let mut sim = random(seed);
    sim.tell(Input::FeedCaughtUp);
    sim.run_for(ALL_SAID);
    let wanted = obtainable(&sim);
    let missing = |sim: &Sim| wanted.iter().filter(|id| !sim.local.stored.contains_key(id)).count();
    while missing(&sim) > 0 && sim.now.mono.since_start() < LATEST {
        sim.run_for(15 * MINUTE);
    }
    let scripts: Vec<_> = sim.peers.values().map(|peer| &peer.script).collect();
    if missing(&sim) > 0 {
        return Err(format!("{} of {} missing; {scripts:#?}", missing(&sim), wanted.len()));
    }
    for peer in sim.peers.values().filter(|peer| peer.script.is_open) {
        if peer.peak_subs > peer.script.subs {
            return Err(format!("{} of {} subscriptions", peer.peak_subs, peer.script.subs));
        }
    }
    Ok(())
}

/// How many worlds to try, and from which seed on; `GRASP_SEED=n` replays one.
fn seeds() -> std::ops::Range<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match read("GRASP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..read("GRASP_SEEDS").unwrap_or(200),
    }
}

#[test]
fn every_world_converges_and_no_relay_is_pressed() {
    for seed in seeds() {
        let outcome = std::panic::catch_unwind(|| run(seed));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(why)) => panic!("GRASP_SEED={seed}: {why}"),
            Err(panic) => {
                eprintln!("GRASP_SEED={seed} panics");
                std::panic::resume_unwind(panic);
            }
        }
    }
}
