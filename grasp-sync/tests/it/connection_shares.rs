//! Shares of owners and networks in the connections.

use std::collections::BTreeSet;
use std::net::IpAddr;

use grasp_core::RelayUrl;
use grasp_core::sync::{IndexChange, SyncLevel};
use grasp_sync::engine::{Accepted, Input, Report};

use crate::setup::{HOUR, MINUTE, Setup, defaults, version};
use crate::sim::peer::Peer;
use crate::sim::script::Script;
use crate::sim::world::{relay, repo};

/// Serves a repository of another owner that lists these relays, all of which answer.
fn served_by_another(setup: &mut Setup, relays: &[RelayUrl]) -> IndexChange {
    for url in relays {
        setup
            .sim
            .peers
            .insert(url.clone(), Peer::new(Script::default(), []));
    }
    let repo = repo(&mut setup.chance, "other");
    let relays = relays.to_vec();
    let change = IndexChange::Announced {
        repo,
        version: version(),
        relays,
        level: SyncLevel::Full,
    };
    tell(setup, change.clone());
    change
}

fn tell(setup: &mut Setup, change: IndexChange) {
    let accepted = Accepted {
        event: None,
        is_uncounted: false,
        change: Some(change),
    };
    setup.sim.handle(Input::Accepted(accepted));
}

/// Returns the relays of this list that are connected.
fn connected(setup: &Setup, among: &[RelayUrl]) -> usize {
    let stands = |url: &RelayUrl| {
        let mut conns = setup.sim.conns.iter().filter(|(to, _)| to == url);
        conns.any(|(_, conn)| setup.sim.peers[url].is_connected(*conn))
    };
    among.iter().filter(|url| stands(url)).count()
}

/// Returns relays whose names sort before those of all others.
fn many_relays(count: usize) -> Vec<RelayUrl> {
    (0..count)
        .map(|n| format!("wss://a{n}.example").parse().unwrap())
        .collect()
}

fn setup(connections: usize) -> Setup {
    let mut config = defaults();
    config.connections = connections;
    Setup::new(config, Script::default(), 5)
}

#[test]
fn relays_of_one_owner_leave_connections_for_others_also_after_a_restart() {
    let mut setup = setup(16);
    let relays = many_relays(60);
    let change = served_by_another(&mut setup, &relays);
    setup.run(10 * MINUTE);
    assert_eq!(connected(&setup, &relays), 4, "a quarter");
    setup.announce(&[relay(0)]);
    setup.run(MINUTE);
    assert_eq!(connected(&setup, &[relay(0)]), 1);
    setup.sim.crash(7);
    tell(&mut setup, change);
    setup.run(10 * MINUTE);
    assert_eq!(
        (connected(&setup, &[relay(0)]), connected(&setup, &relays)),
        (1, 4)
    );
}

#[test]
fn many_names_of_one_address_leave_connections_for_others_also_after_a_restart() {
    let mut setup = setup(16);
    let relays = many_relays(60);
    let address: IpAddr = "198.51.100.7".parse().unwrap();
    let mut changes = Vec::new();
    for url in &relays {
        setup.sim.addresses.insert(url.clone(), address);
        changes.push(served_by_another(&mut setup, std::slice::from_ref(url)));
    }
    setup.run(10 * MINUTE);
    assert_eq!(connected(&setup, &relays), 4, "half of the half of its /24");
    setup.announce(&[relay(0)]);
    setup.run(MINUTE);
    assert_eq!(connected(&setup, &[relay(0)]), 1);
    let dials = setup.sim.dials.len();
    setup.sim.crash(7);
    changes
        .into_iter()
        .for_each(|change| tell(&mut setup, change));
    setup.run(MINUTE);
    assert_eq!(
        (connected(&setup, &[relay(0)]), connected(&setup, &relays)),
        (1, 4)
    );
    let again = setup.sim.dials.len() - dials;
    assert!(
        again < 10,
        "their addresses are remembered: {again} attempts"
    );
}

#[test]
fn relays_without_a_connection_get_one_in_turn() {
    let mut setup = setup(8);
    let all = many_relays(20);
    for url in &all {
        served_by_another(&mut setup, std::slice::from_ref(url));
    }
    setup.run(5 * MINUTE);
    assert_eq!(connected(&setup, &all), 8);
    for _ in 0..60 {
        setup.run(MINUTE);
        assert!(connected(&setup, &all) <= 8);
    }
    let had: BTreeSet<_> = setup.sim.conns.iter().map(|(url, _)| url.clone()).collect();
    assert_eq!(had.len(), 20, "{had:?}");
    let gave_way = setup.count_reports(|report| matches!(report, Report::GaveWay { .. }));
    assert!((12..=60).contains(&gave_way), "{gave_way} within an hour");
    setup.run(HOUR);
}

#[test]
fn unreachable_relays_do_not_end_other_connections() {
    let mut setup = setup(8);
    let there = many_relays(8);
    for url in &there {
        served_by_another(&mut setup, std::slice::from_ref(url));
    }
    setup.run(5 * MINUTE);
    for n in 0..20 {
        let change = served_by_another(
            &mut setup,
            &[format!("wss://z{n}.example").parse().unwrap()],
        );
        let IndexChange::Announced { relays, .. } = change else {
            panic!()
        };
        relays
            .iter()
            .for_each(|url| _ = setup.sim.peers.remove(url));
    }
    setup.run(3 * HOUR);
    assert_eq!(
        setup.count_reports(|report| matches!(report, Report::GaveWay { .. })),
        0
    );
    assert_eq!(connected(&setup, &there), 8);
}
