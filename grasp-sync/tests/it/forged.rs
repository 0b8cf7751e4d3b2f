//! Relays whose events do not verify.

use std::collections::BTreeMap;

use grasp_core::limits::Health;
use grasp_core::nostr::event::EventId;
use grasp_sync::engine::Report;

use crate::sim::peer::Peer;
use crate::sim::script::Script;
use crate::sim::world::relay;
use crate::stage::{By, HOUR, MINUTE, Stage, by, defaults};

/// Sets up a relay with this many issues, each of which it changes before sending.
fn forger(issues: usize) -> Stage {
    let mut stage = Stage::new(defaults(), Script::default(), issues);
    stage.sim.forgers.insert(relay(0));
    stage
}

#[test]
fn a_relay_that_floods_forged_events_is_left_alone_for_longer_each_time_and_dead_after_a_day() {
    let mut stage = forger(400);
    stage.announce(&[relay(0)]);
    stage.run(MINUTE);
    let is_degraded =
        |report: &Report| matches!(report, Report::Health { health: Health::Degraded, .. });
    assert!(stage.count_reports(is_degraded) > 0);
    let is_told = |report: &Report| matches!(report, Report::Forged { count: 100.., .. });
    assert!(stage.count_reports(is_told) > 0);
    stage.run(48 * HOUR);
    let is_dead = |report: &Report| matches!(report, Report::Health { health: Health::Dead, .. });
    assert_eq!(stage.count_reports(is_dead), 1);
    assert!(stage.sim.dials.len() < 50, "{}", stage.sim.dials.len());
}

#[test]
fn a_restart_does_not_forgive_a_relay_that_forges() {
    let mut stage = forger(400);
    stage.announce(&[relay(0)]);
    for restart in 0..8 {
        stage.run(5 * HOUR);
        stage.sim.crash(restart);
    }
    stage.run(MINUTE);
    let is_dead = |report: &Report| matches!(report, Report::Health { health: Health::Dead, .. });
    assert!(stage.count_reports(is_dead) > 0);
}

#[test]
fn an_id_that_came_forged_is_not_asked_for_again() {
    let mut stage = forger(40);
    stage.announce(&[relay(0)]);
    stage.run(3 * HOUR);
    let starts = stage.starts();
    let mut asked: BTreeMap<EventId, usize> = BTreeMap::new();
    for id in by(&starts, By::Ids).iter().flat_map(|start| start.filters[0].ids.iter().flatten()) {
        *asked.entry(*id).or_default() += 1;
    }
    assert!(asked.values().all(|times| *times == 1), "{asked:?}");
    assert_eq!(stage.here(), 1, "nothing but the announcement");
}

#[test]
fn the_event_itself_is_taken_from_a_relay_that_has_it() {
    let mut stage = forger(40);
    let events: Vec<_> = stage.peer().events.values().cloned().collect();
    stage.sim.peers.insert(relay(1), Peer::new(Script::default(), events));
    stage.announce(&[relay(0), relay(1)]);
    stage.run(HOUR);
    assert_eq!(stage.here(), 41);
}
