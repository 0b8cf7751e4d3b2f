//! Relays whose events do not verify.

use std::collections::BTreeMap;

use grasp_core::limits::Health;
use grasp_core::nostr::event::EventId;
use grasp_sync::engine::Report;

use crate::setup::{By, HOUR, MINUTE, Setup, by, defaults};
use crate::sim::peer::Peer;
use crate::sim::script::Script;
use crate::sim::world::relay;

/// Sets up a relay with this many issues, each of which it changes before sending.
fn forger(issues: usize) -> Setup {
    let mut setup = Setup::new(defaults(), Script::default(), issues);
    setup.sim.forgers.insert(relay(0));
    setup
}

#[test]
fn pauses_of_a_relay_that_forges_events_grow_until_it_is_dead() {
    let mut setup = forger(400);
    setup.announce(&[relay(0)]);
    setup.run(MINUTE);
    let is_degraded = |report: &Report| {
        matches!(
            report,
            Report::Health {
                health: Health::Degraded,
                ..
            }
        )
    };
    assert!(setup.count_reports(is_degraded) > 0);
    let is_reported = |report: &Report| matches!(report, Report::Forged { count: 100.., .. });
    assert!(setup.count_reports(is_reported) > 0);
    setup.run(48 * HOUR);
    let is_dead = |report: &Report| {
        matches!(
            report,
            Report::Health {
                health: Health::Dead,
                ..
            }
        )
    };
    assert_eq!(setup.count_reports(is_dead), 1);
    assert!(setup.sim.dials.len() < 50, "{}", setup.sim.dials.len());
}

#[test]
fn the_pauses_of_a_forging_relay_survive_a_restart() {
    let mut setup = forger(400);
    setup.announce(&[relay(0)]);
    for restart in 0..8 {
        setup.run(5 * HOUR);
        setup.sim.crash(restart);
    }
    setup.run(MINUTE);
    let is_dead = |report: &Report| {
        matches!(
            report,
            Report::Health {
                health: Health::Dead,
                ..
            }
        )
    };
    assert!(setup.count_reports(is_dead) > 0);
}

#[test]
fn an_id_that_was_forged_is_not_requested_again() {
    let mut setup = forger(40);
    setup.announce(&[relay(0)]);
    setup.run(3 * HOUR);
    let starts = setup.starts();
    let mut asked: BTreeMap<EventId, usize> = BTreeMap::new();
    for id in by(&starts, By::Ids)
        .iter()
        .flat_map(|start| start.filters[0].ids.iter().flatten())
    {
        *asked.entry(*id).or_default() += 1;
    }
    assert!(asked.values().all(|times| *times == 1), "{asked:?}");
    assert_eq!(setup.here(), 1, "nothing but the announcement");
}

#[test]
fn the_genuine_event_is_fetched_from_another_relay() {
    let mut setup = forger(40);
    let events: Vec<_> = setup.peer().events.values().cloned().collect();
    setup
        .sim
        .peers
        .insert(relay(1), Peer::new(Script::default(), events));
    setup.announce(&[relay(0), relay(1)]);
    setup.run(HOUR);
    assert_eq!(setup.here(), 41);
}
