//! Connections that owners and networks share.

use std::collections::BTreeSet;
use std::net::IpAddr;

use grasp_core::RelayUrl;
use grasp_sync::engine::{Accepted, Config, Input, Report};
use grasp_sync::index::{IndexChange, SyncLevel};

use crate::sim::peer::Peer;
use crate::sim::script::Script;
use crate::sim::world::{relay, repo};
use crate::stage::{HOUR, MINUTE, Stage, defaults};

/// Serves a repository of another owner that lists these relays, all of which answer.
fn served_by_another(stage: &mut Stage, relays: &[RelayUrl]) -> IndexChange {
    for url in relays {
        stage.sim.peers.insert(url.clone(), Peer::new(Script::default(), []));
    }
    let repo = repo(&mut stage.chance, "other");
    let relays = relays.iter().cloned().collect();
    let change = IndexChange::Announced { repo, relays, level: SyncLevel::Full };
    tell(stage, change.clone());
    change
}

fn tell(stage: &mut Stage, change: IndexChange) {
    let accepted = Accepted { event: None, direct: false, change: Some(change) };
    stage.sim.tell(Input::Accepted(accepted));
}

/// Returns the relays of this list that are connected.
fn connected(stage: &Stage, among: &[RelayUrl]) -> usize {
    let stands = |url: &RelayUrl| {
        let mut conns = stage.sim.conns.iter().filter(|(to, _)| to == url);
        conns.any(|(_, conn)| stage.sim.peers[url].stands(*conn))
    };
    among.iter().filter(|url| stands(url)).count()
}

/// Names that sort before those of all others.
fn crowd(count: usize) -> Vec<RelayUrl> {
    (0..count).map(|n| format!("wss://a{n}.example").parse().unwrap()).collect()
}

fn stage(connections: usize) -> Stage {
    Stage::new(Config { connections, ..defaults() }, Script::default(), 5)
}

#[test]
fn one_owners_relays_leave_connections_for_others_after_a_restart_too() {
    let mut stage = stage(16);
    let crowd = crowd(60);
    let change = served_by_another(&mut stage, &crowd);
    stage.run(10 * MINUTE);
    assert_eq!(connected(&stage, &crowd), 4, "a quarter");
    stage.announce(&[relay(0)]);
    stage.run(MINUTE);
    assert_eq!(connected(&stage, &[relay(0)]), 1);
    stage.sim.crash(7);
    tell(&mut stage, change);
    stage.run(10 * MINUTE);
    assert_eq!((connected(&stage, &[relay(0)]), connected(&stage, &crowd)), (1, 4));
}

#[test]
fn many_names_of_one_address_leave_connections_for_others_after_a_restart_too() {
    let mut stage = stage(16);
    let crowd = crowd(60);
    let address: IpAddr = "198.51.100.7".parse().unwrap();
    let mut changes = Vec::new();
    for url in &crowd {
        stage.sim.addresses.insert(url.clone(), address);
        changes.push(served_by_another(&mut stage, std::slice::from_ref(url)));
    }
    stage.run(10 * MINUTE);
    assert_eq!(connected(&stage, &crowd), 4, "half of the half of its /24");
    stage.announce(&[relay(0)]);
    stage.run(MINUTE);
    assert_eq!(connected(&stage, &[relay(0)]), 1);
    let dials = stage.sim.dials.len();
    stage.sim.crash(7);
    changes.into_iter().for_each(|change| tell(&mut stage, change));
    stage.run(MINUTE);
    assert_eq!((connected(&stage, &[relay(0)]), connected(&stage, &crowd)), (1, 4));
    let again = stage.sim.dials.len() - dials;
    assert!(again < 10, "where they lead is known: {again} attempts");
}

#[test]
fn relays_that_find_no_room_get_their_turn() {
    let mut stage = stage(8);
    let all = crowd(20);
    for url in &all {
        served_by_another(&mut stage, std::slice::from_ref(url));
    }
    stage.run(5 * MINUTE);
    assert_eq!(connected(&stage, &all), 8);
    for _ in 0..60 {
        stage.run(MINUTE);
        assert!(connected(&stage, &all) <= 8);
    }
    let had: BTreeSet<_> = stage.sim.conns.iter().map(|(url, _)| url.clone()).collect();
    assert_eq!(had.len(), 20, "{had:?}");
    let gave_way = stage.count_reports(|report| matches!(report, Report::GaveWay { .. }));
    assert!((12..=60).contains(&gave_way), "{gave_way} within an hour");
    stage.run(HOUR);
}

#[test]
fn relays_that_are_not_there_end_nobodys_turn() {
    let mut stage = stage(8);
    let there = crowd(8);
    for url in &there {
        served_by_another(&mut stage, std::slice::from_ref(url));
    }
    stage.run(5 * MINUTE);
    for n in 0..20 {
        let change =
            served_by_another(&mut stage, &[format!("wss://z{n}.example").parse().unwrap()]);
        let IndexChange::Announced { relays, .. } = change else { panic!() };
        relays.iter().for_each(|url| _ = stage.sim.peers.remove(url));
    }
    stage.run(3 * HOUR);
    assert_eq!(stage.count_reports(|report| matches!(report, Report::GaveWay { .. })), 0);
    assert_eq!(connected(&stage, &there), 8);
}
