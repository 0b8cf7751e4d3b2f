//! Shares of owners and networks in the connections.

use std::collections::BTreeSet;
use std::net::IpAddr;

use grasp_core::RelayUrl;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::key::PublicKey;
use grasp_core::sync::{IndexChange, SyncLevel};
use grasp_sync::engine::{Input, Report, VisitId, VisitOutcome};

use crate::setup::{HOUR, MINUTE, Setup, defaults, secs, version};
use crate::sim::peer::Peer;
use crate::sim::script::{Neg, Script};
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
    setup.tell(change.clone());
    change
}

/// Returns the relays of this list that are connected.
fn connected(setup: &Setup, among: &[RelayUrl]) -> usize {
    among.iter().filter(|url| setup.is_connected(url)).count()
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

/// The same, where the relays of users are followed.
fn setup_with_users(connections: usize) -> Setup {
    let mut config = defaults();
    config.connections = connections;
    config.follows_user_relays = true;
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
    setup.tell(change);
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
    changes.into_iter().for_each(|change| setup.tell(change));
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

/// Makes these the relays of a user who has a root that is wanted here.
fn named_by_an_author(setup: &mut Setup, author: u8, relays: &[RelayUrl]) {
    for url in relays {
        let peer = Peer::new(Script::default(), []);
        setup.sim.peers.insert(url.clone(), peer);
    }
    let root = EventId::from_byte_array([author; 32]).into();
    let author = PublicKey::from_byte_array([author; 32]);
    setup.tell(IndexChange::RootAdded {
        root,
        repos: vec![setup.repo.clone()],
        author: Some(author),
    });
    let relays = relays.iter().cloned().collect();
    setup.tell(IndexChange::UserRelays { author, relays });
}

#[test]
fn relays_of_users_take_nothing_from_those_of_repositories() {
    let mut setup = setup_with_users(16);
    setup.want(SyncLevel::Full);
    let relays = many_relays(60);
    for (n, url) in relays.iter().enumerate() {
        named_by_an_author(&mut setup, n as u8, std::slice::from_ref(url));
    }
    setup.run(30 * MINUTE);
    assert_eq!(connected(&setup, &relays), 4, "a quarter");
    // One that is held finds a connection at once, too.
    let held: RelayUrl = "wss://y.example".parse().unwrap();
    let peer = Peer::new(Script::default(), []);
    setup.sim.peers.insert(held.clone(), peer);
    let repo = repo(&mut setup.chance, "held");
    setup.tell(IndexChange::Announced {
        repo,
        version: version(),
        relays: vec![held.clone()],
        level: SyncLevel::StateOnly,
    });
    let served: Vec<RelayUrl> = (0..7)
        .map(|n| format!("wss://z{n}.example").parse().unwrap())
        .collect();
    for url in &served {
        served_by_another(&mut setup, std::slice::from_ref(url));
    }
    setup.run(MINUTE);
    assert_eq!(connected(&setup, &served), 7);
    assert_eq!(connected(&setup, &relays), 4);
    assert_eq!(connected(&setup, &[held]), 1);
}

#[test]
fn relays_of_one_user_have_a_quarter_of_theirs() {
    let mut setup = setup_with_users(64);
    setup.want(SyncLevel::Full);
    let relays = many_relays(60);
    named_by_an_author(&mut setup, 1, &relays);
    setup.run(10 * MINUTE);
    assert_eq!(connected(&setup, &relays), 4);
}

#[test]
fn visits_have_connections_of_their_own_and_wait_for_one_only_so_long() {
    let mut setup = setup_with_users(16);
    let silent = Script {
        neg: Neg::Silent,
        silent_one_in: Some(1),
        ..Script::default()
    };
    let visited = many_relays(3);
    for (n, url) in visited.iter().enumerate() {
        let peer = Peer::new(silent.clone(), []);
        setup.sim.peers.insert(url.clone(), peer);
        let filters = vec![Filter::new().event(EventId::from_byte_array([1; 32]))];
        setup.sim.handle(Input::Visit {
            relay: url.clone(),
            id: VisitId(n as u64),
            filters,
        });
    }
    setup.run(secs(5));
    assert_eq!(
        connected(&setup, &visited),
        2,
        "an eighth, and the third waits"
    );
    let served: Vec<RelayUrl> = (0..20)
        .map(|n| format!("wss://z{n}.example").parse().unwrap())
        .collect();
    for url in &served {
        served_by_another(&mut setup, std::slice::from_ref(url));
    }
    setup.run(MINUTE);
    assert_eq!(connected(&setup, &served), 10);
    assert_eq!(connected(&setup, &visited), 2);
    assert_eq!(setup.sim.visited, []);
    // The third found none in time, so that others may have its turn.
    setup.run(secs(55));
    assert_eq!(setup.sim.visited, [(VisitId(2), VisitOutcome::Failed)]);
}

#[test]
fn visits_are_begun_among_many_relays_that_never_answer() {
    let mut setup = setup_with_users(64);
    setup.want(SyncLevel::Full);
    // The names of relays that nobody can be reached at.
    for (author, relays) in many_relays(2_000).chunks(8).enumerate() {
        named_by_an_author(&mut setup, author as u8, relays);
        relays
            .iter()
            .for_each(|url| _ = setup.sim.peers.remove(url));
    }
    setup.run(10 * MINUTE);
    let home: RelayUrl = "wss://z.example".parse().unwrap();
    let peer = Peer::new(Script::default(), []);
    setup.sim.peers.insert(home.clone(), peer);
    setup.sim.handle(Input::Visit {
        relay: home,
        id: VisitId(1),
        filters: vec![Filter::new().event(EventId::from_byte_array([1; 32]))],
    });
    setup.run(secs(10));
    assert_eq!(setup.sim.visited, [(VisitId(1), VisitOutcome::Complete)]);
}
