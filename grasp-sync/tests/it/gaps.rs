//! Gaps: events that an open live subscription should have brought, and no others.

use grasp_core::admission::SyncPath;
use grasp_core::nostr::event::Event;
use grasp_sync::engine::{Frame, Input, Report, Said, Source};

use crate::setup::{HOUR, MINUTE, Setup, defaults, secs};
use crate::sim::event;
use crate::sim::local::{Local, our_url};
use crate::sim::script::{Quirk, Script};
use crate::sim::world::{relay, repo};

/// Returns the gaps that were reported, by the path on which each was found.
fn gaps(setup: &Setup) -> Vec<(SyncPath, usize)> {
    let gaps = setup.sim.reports.iter().filter_map(|report| match report {
        Report::Gap { path, count, .. } => Some((*path, *count)),
        _ => None,
    });
    gaps.collect()
}

fn stored_on(setup: &Setup, wanted: SyncPath) -> usize {
    let counts = setup.sim.reports.iter().map(|report| match report {
        Report::Stored {
            from: Source::Relay { path, .. },
            count,
        } if *path == wanted => *count,
        _ => 0,
    });
    counts.sum()
}

/// Adds an issue to relay 0 that is signed now, without sending it to live subscriptions.
fn withheld(setup: &mut Setup) -> Event {
    let issue = setup.chance_issue_dated(0);
    setup.peer().events.insert(issue.id, issue.clone());
    issue
}

#[test]
fn an_event_missed_by_an_open_subscription_is_a_gap() {
    let script = Script {
        connection_secs: Some((600, 600)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 3);
    setup.run(5 * MINUTE);
    let missed = withheld(&mut setup);
    setup.run(6 * MINUTE);
    assert!(setup.sim.conns.len() > 1 && setup.sim.local.stored.contains_key(&missed.id));
    assert_eq!(gaps(&setup), [(SyncPath::CatchUp, 1)]);
}

#[test]
fn an_event_published_while_disconnected_is_not_a_gap() {
    let script = Script {
        connection_secs: Some((600, 600)),
        down_secs: Some((590, 900)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 3);
    setup.run(12 * MINUTE);
    let missed = withheld(&mut setup);
    setup.run(8 * MINUTE);
    assert!(setup.sim.local.stored.contains_key(&missed.id));
    assert_eq!(
        (gaps(&setup), stored_on(&setup, SyncPath::CatchUp)),
        (vec![], 4)
    );
}

#[test]
fn an_event_found_by_the_daily_pass_is_a_gap() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    setup.run(10 * HOUR);
    let missed = withheld(&mut setup);
    setup.run(16 * HOUR);
    assert!(setup.sim.local.stored.contains_key(&missed.id));
    assert_eq!(gaps(&setup), [(SyncPath::Daily, 1)]);
    assert_eq!(stored_on(&setup, SyncPath::Daily), 1);
}

#[test]
fn events_of_new_repositories_after_a_failed_daily_pass_are_not_counted_as_daily() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    setup.run(HOUR);
    // From now on no daily pass succeeds.
    setup.peer().script.quirk = |_, frame| match frame {
        Frame::NegOpen { sub, .. } => {
            let text = "error: negentropy disabled".to_owned();
            Quirk::Says(vec![Said::NegErr { sub: *sub, text }])
        }
        Frame::Subscribe {
            sub,
            path: SyncPath::Daily,
            ..
        } => {
            let text = "computer says no".to_owned();
            Quirk::Says(vec![Said::Closed { sub: *sub, text }])
        }
        _ => Quirk::None,
    };
    setup.run(26 * HOUR).forget();
    let other = repo(&mut setup.chance, "other");
    let at = setup.sim.now.unix.as_secs();
    for n in 0..5 {
        let issue = event::issue(
            &mut setup.chance,
            at - 9_000 + n,
            std::slice::from_ref(&other),
        );
        setup.peer().events.insert(issue.id, issue);
    }
    let listed = [relay(0), our_url()];
    let announced = event::announcement(&mut setup.chance, &other, at, &listed);
    setup.sim.accept(announced);
    setup.run(MINUTE);
    assert_eq!(
        (gaps(&setup), stored_on(&setup, SyncPath::CatchUp)),
        (vec![], 5)
    );
}

#[test]
fn refilling_our_own_relay_counts_no_gaps() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR);
    for _ in 0..5 {
        setup.publish_issue();
        setup.run(MINUTE);
    }
    setup.run(HOUR).forget();
    let mut kept = Local::default();
    let announcement = setup
        .sim
        .local
        .stored
        .values()
        .find(|one| one.kind.as_u16() == 30_617);
    let _ = kept.direct(announcement.unwrap().clone());
    setup.sim.local = kept;
    setup.sim.handle(Input::FeedLost);
    setup.run(MINUTE);
    assert_eq!(setup.here(), 26);
    assert_eq!(
        (gaps(&setup), stored_on(&setup, SyncPath::Daily)),
        (vec![], 0)
    );
    assert_eq!(stored_on(&setup, SyncPath::CatchUp), 25);
}

#[test]
fn events_missed_during_our_restart_are_not_gaps() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    setup.run(HOUR);
    let missed = withheld(&mut setup);
    setup.run(secs(200)).forget();
    setup.sim.crash(5);
    setup.run(MINUTE);
    assert!(setup.sim.local.stored.contains_key(&missed.id));
    assert_eq!(
        (gaps(&setup), stored_on(&setup, SyncPath::CatchUp)),
        (vec![], 1)
    );
}
