//! Visits: filters that are fetched once from a relay, which is left then.

use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_sync::engine::{Frame, Input, InventoryFailed, Report, Said, VisitId, VisitOutcome};

use crate::setup::{By, HOUR, MINUTE, Setup, by, defaults, secs};
use crate::sim::START;
use crate::sim::event;
use crate::sim::peer::Peer;
use crate::sim::script::{Neg, Quirk, Script};
use crate::sim::world::relay;

fn about(issue: EventId) -> Filter {
    Filter::new().custom_tag(SingleLetterTag::UPPERCASE_E, issue.to_hex())
}

fn visit(setup: &mut Setup, n: usize, id: u64, filters: Vec<Filter>) {
    setup.sim.handle(Input::Visit {
        relay: relay(n),
        id: VisitId(id),
        filters,
    });
}

/// Sets up an issue that is here, and relay 1 with comments on it.
fn setup(script: Script, comments: u64) -> (Setup, Filter) {
    let mut config = defaults();
    config.follows_user_relays = true;
    let mut setup = Setup::announced(config, Script::default(), 0);
    let issue = setup.chance_issue_dated(50_000);
    setup.sim.accept(issue.clone());
    let comments: Vec<Event> = (0..comments)
        .map(|n| event::comment(&mut setup.chance, START - 10_000 + n, issue.id, "E"))
        .collect();
    let peer = Peer::new(script, comments);
    setup.sim.peers.insert(relay(1), peer);
    setup.run(HOUR).forget();
    assert_eq!(setup.here(), 2);
    (setup, about(issue.id))
}

const COMPLETE: VisitOutcome = VisitOutcome::Complete;
const FAILED: VisitOutcome = VisitOutcome::Failed;

#[test]
fn a_visit_fetches_its_filters_confirms_nothing_and_leaves() {
    for neg in [Neg::Speaks, Neg::Disabled, Neg::Silent, Neg::Small(9)] {
        let script = Script {
            neg,
            page: 7,
            ..Script::default()
        };
        let (mut setup, filter) = setup(script, 30);
        visit(&mut setup, 1, 1, vec![filter]);
        setup.run(10 * MINUTE);
        assert_eq!(setup.here(), 32, "{neg:?}");
        assert_eq!(setup.sim.visited, [(VisitId(1), COMPLETE)], "{neg:?}");
        let starts = setup.starts_at(&relay(1));
        assert!(by(&starts, By::Live).is_empty());
        assert!(
            !starts
                .iter()
                .any(|one| one.by != By::Ids && one.is_layer_one())
        );
        let confirms = |report: &Report| matches!(report, Report::BatchConfirmed { relay: at, .. } if *at == relay(1));
        assert_eq!(setup.count_reports(confirms), 0);
        assert!(!setup.is_connected(&relay(1)));
        let record = &setup.sim.records[&relay(1)];
        assert_eq!(record.proofs.iter().count(), 0);
        let retired =
            |report: &Report| matches!(report, Report::Retired { relay: at } if *at == relay(1));
        assert_eq!(setup.count_reports(retired), 1);
        setup.run(30 * HOUR);
        assert_eq!(setup.dials_of(&relay(1)), 1, "and stays away");
    }
}

#[test]
fn visits_that_follow_one_another_share_a_connection() {
    let (mut setup, filter) = setup(Script::default(), 3);
    for id in 0..5 {
        visit(&mut setup, 1, id, vec![filter.clone()]);
        setup.run(secs(4));
        assert_eq!(setup.sim.visited.last(), Some(&(VisitId(id), COMPLETE)));
        assert!(setup.is_connected(&relay(1)));
    }
    assert_eq!(setup.dials_of(&relay(1)), 1);
    setup.run(secs(5));
    assert!(!setup.is_connected(&relay(1)));
}

#[test]
fn a_visit_shares_the_connection_of_a_relay_that_is_a_target() {
    let (mut setup, filter) = setup(Script::default(), 3);
    setup.announce(&[relay(0), relay(1)]);
    setup.run(MINUTE);
    let missed = event::comment(
        &mut setup.chance,
        START,
        EventId::from_byte_array([9; 32]),
        "E",
    );
    visit(&mut setup, 1, 1, vec![filter, about(missed.id)]);
    setup.run(MINUTE);
    assert_eq!(setup.sim.visited, [(VisitId(1), COMPLETE)]);
    assert_eq!(setup.dials_of(&relay(1)), 1);
    assert!(setup.is_connected(&relay(1)));
}

#[test]
fn a_visit_goes_on_where_its_relay_becomes_a_target_or_ceases_to_be() {
    let (mut setup, filter) = setup(slow(), 30);
    visit(&mut setup, 1, 1, vec![filter]);
    setup.run(secs(20));
    assert!(setup.sim.visited.is_empty());
    setup.announce(&[relay(0), relay(1)]);
    setup.run(secs(20));
    assert!(setup.sim.visited.is_empty());
    setup.announce(&[relay(0)]);
    setup.run(HOUR);
    assert_eq!(setup.sim.visited, [(VisitId(1), COMPLETE)]);
    assert!(!setup.is_connected(&relay(1)));
}

/// Returns the script of a relay that takes a minute for thirty events.
fn slow() -> Script {
    Script {
        latency_ms: (2_000, 2_001),
        page: 2,
        neg: Neg::Disabled,
        ..Script::default()
    }
}

fn refuses(_: usize, frame: &Frame) -> Quirk {
    match frame {
        Frame::Subscribe { sub, .. } => {
            let text = "restricted: members only".to_owned();
            Quirk::Says(vec![Said::Closed { sub: *sub, text }])
        }
        Frame::NegOpen { sub, .. } => {
            let text = "error: not supported".to_owned();
            Quirk::Says(vec![Said::NegErr { sub: *sub, text }])
        }
        _ => Quirk::None,
    }
}

fn knows_no_filter(_: usize, frame: &Frame) -> Quirk {
    match frame {
        Frame::Subscribe { sub, .. } => {
            let text = "error: oops".to_owned();
            Quirk::Says(vec![Said::Closed { sub: *sub, text }])
        }
        _ => Quirk::None,
    }
}

#[test]
fn a_failed_visit_says_so_and_leaves() {
    let down = Script {
        down_secs: Some((0, 100 * 60 * 60)),
        ..Script::default()
    };
    let silent = Script {
        silent_one_in: Some(1),
        ..Script::default()
    };
    let restricted = Script {
        quirk: refuses,
        ..Script::default()
    };
    let confused = Script {
        quirk: knows_no_filter,
        neg: Neg::Disabled,
        ..Script::default()
    };
    let cut = Script {
        connection_secs: Some((1, 2)),
        latency_ms: (900, 1_000),
        ..Script::default()
    };
    for script in [down, silent, restricted, confused, cut] {
        let (mut setup, filter) = setup(script.clone(), 30);
        visit(&mut setup, 1, 1, vec![filter]);
        setup.run(10 * MINUTE);
        assert_eq!(setup.sim.visited, [(VisitId(1), FAILED)], "{script:?}");
        assert_eq!(setup.dials_of(&relay(1)), 1, "{script:?}");
        assert!(!setup.is_connected(&relay(1)), "{script:?}");
    }
}

#[test]
fn a_visit_fails_at_once_while_its_relay_is_in_its_backoff() {
    let script = Script {
        down_secs: Some((0, 100 * 60 * 60)),
        ..Script::default()
    };
    let (mut setup, filter) = setup(script, 3);
    visit(&mut setup, 1, 1, vec![filter.clone()]);
    setup.run(secs(2));
    visit(&mut setup, 1, 2, vec![filter]);
    assert_eq!(
        setup.sim.visited,
        [(VisitId(1), FAILED), (VisitId(2), FAILED)]
    );
    setup.run(MINUTE);
    assert_eq!(setup.dials_of(&relay(1)), 1);
}

#[test]
fn a_visit_can_be_ended() {
    let silent = Script {
        silent_one_in: Some(1),
        ..Script::default()
    };
    let (mut setup, filter) = setup(silent, 3);
    visit(&mut setup, 1, 1, vec![filter]);
    setup.run(secs(2));
    setup.sim.handle(Input::EndVisit { id: VisitId(1) });
    setup.run(secs(5));
    assert!(!setup.is_connected(&relay(1)));
    setup.run(HOUR);
    assert_eq!(setup.sim.visited, []);
    assert_eq!(setup.dials_of(&relay(1)), 1);
}

#[test]
fn a_visit_asks_for_something_and_never_for_everything_nor_us() {
    let (mut setup, filter) = setup(Script::default(), 3);
    visit(&mut setup, 1, 1, vec![]);
    visit(&mut setup, 1, 2, vec![filter.clone(), Filter::new()]);
    let us = crate::sim::local::our_url();
    let id = VisitId(3);
    setup.sim.handle(Input::Visit {
        relay: us.clone(),
        id,
        filters: vec![filter],
    });
    let outcomes = [(VisitId(1), COMPLETE), (VisitId(2), FAILED), (id, FAILED)];
    assert_eq!(setup.sim.visited, outcomes);
    setup.run(MINUTE);
    assert_eq!(setup.dials_of(&relay(1)) + setup.dials_of(&us), 0);
}

#[test]
fn what_the_local_relay_loses_is_visited_for_again() {
    let (mut setup, filter) = setup(slow(), 30);
    visit(&mut setup, 1, 1, vec![filter]);
    setup.run(secs(20));
    assert!(setup.here() > 2 && setup.here() < 32);
    let comment = grasp_core::nostr::event::Kind::Comment;
    setup.sim.local.stored.retain(|_, one| one.kind != comment);
    setup.sim.handle(Input::FeedLost);
    setup.run(HOUR);
    assert_eq!((setup.here(), setup.sim.visited.len()), (32, 1));
}

#[test]
fn a_visit_goes_on_by_pages_if_what_is_here_cannot_be_listed() {
    let script = Script {
        neg: Neg::Speaks,
        ..Script::default()
    };
    let (mut setup, filter) = setup(script, 30);
    setup.sim.local.not_listed = Some(InventoryFailed::TooLarge);
    visit(&mut setup, 1, 1, vec![filter]);
    setup.run(10 * MINUTE);
    assert_eq!(setup.here(), 32);
    assert_eq!(setup.sim.visited, [(VisitId(1), COMPLETE)]);
}
