//! Gaps: events that an open live subscription should have brought, and no others.

use grasp_core::admission::SyncPath;
use grasp_core::nostr::event::Event;
use grasp_sync::engine::{Frame, Input, Report, Said, Source};

use crate::sim::event;
use crate::sim::local::{Local, our_url};
use crate::sim::script::{Quirk, Script};
use crate::sim::world::{relay, repo};
use crate::stage::{HOUR, MINUTE, Stage, defaults, secs};

/// Returns the gaps that were reported, by the path on which each was found.
fn gaps(stage: &Stage) -> Vec<(SyncPath, usize)> {
    let gaps = stage.sim.reports.iter().filter_map(|report| match report {
        Report::Gap { path, count, .. } => Some((*path, *count)),
        _ => None,
    });
    gaps.collect()
}

fn stored_on(stage: &Stage, wanted: SyncPath) -> usize {
    let counts = stage.sim.reports.iter().map(|report| match report {
        Report::Stored { from: Source::Relay { path, .. }, count } if *path == wanted => *count,
        _ => 0,
    });
    counts.sum()
}

/// Adds an issue to relay 0 that is signed now, without sending it to live subscriptions.
fn withheld(stage: &mut Stage) -> Event {
    let issue = stage.chance_issue_dated(0);
    stage.peer().events.insert(issue.id, issue.clone());
    issue
}

#[test]
fn what_a_standing_subscription_did_not_bring_is_a_gap() {
    let script = Script { life_secs: Some((600, 600)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 3);
    stage.run(5 * MINUTE);
    let missed = withheld(&mut stage);
    stage.run(6 * MINUTE);
    assert!(stage.sim.conns.len() > 1 && stage.sim.local.stored.contains_key(&missed.id));
    assert_eq!(gaps(&stage), [(SyncPath::CatchUp, 1)]);
}

#[test]
fn what_came_while_the_connection_was_down_is_no_gap() {
    let script =
        Script { life_secs: Some((600, 600)), down_secs: Some((590, 900)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 3);
    stage.run(12 * MINUTE);
    let missed = withheld(&mut stage);
    stage.run(8 * MINUTE);
    assert!(stage.sim.local.stored.contains_key(&missed.id));
    assert_eq!((gaps(&stage), stored_on(&stage, SyncPath::CatchUp)), (vec![], 4));
}

#[test]
fn what_the_daily_pass_finds_is_a_lasting_gap() {
    let mut stage = Stage::announced(defaults(), Script::default(), 3);
    stage.run(10 * HOUR);
    let missed = withheld(&mut stage);
    stage.run(16 * HOUR);
    assert!(stage.sim.local.stored.contains_key(&missed.id));
    assert_eq!(gaps(&stage), [(SyncPath::Daily, 1)]);
    assert_eq!(stored_on(&stage, SyncPath::Daily), 1);
}

#[test]
fn what_is_discovered_after_an_incomplete_daily_pass_is_not_counted_as_daily() {
    let mut stage = Stage::announced(defaults(), Script::default(), 3);
    stage.run(HOUR);
    // From now on no daily pass succeeds.
    stage.peer().script.quirk = |_, frame| match frame {
        Frame::NegOpen { sub, .. } => {
            let text = "error: negentropy disabled".to_owned();
            Quirk::Says(vec![Said::NegErr { sub: *sub, text }])
        }
        Frame::Subscribe { sub, path: SyncPath::Daily, .. } => {
            let text = "computer says no".to_owned();
            Quirk::Says(vec![Said::Closed { sub: *sub, text }])
        }
        _ => Quirk::None,
    };
    stage.run(26 * HOUR).forget();
    let other = repo(&mut stage.chance, "other");
    let at = stage.sim.now.unix.as_secs();
    for n in 0..5 {
        let issue = event::issue(&mut stage.chance, at - 9_000 + n, std::slice::from_ref(&other));
        stage.peer().events.insert(issue.id, issue);
    }
    let listed = [relay(0), our_url()];
    let announced = event::announcement(&mut stage.chance, &other, at, &listed);
    stage.sim.accept(announced);
    stage.run(MINUTE);
    assert_eq!((gaps(&stage), stored_on(&stage, SyncPath::CatchUp)), (vec![], 5));
}

#[test]
fn refilling_our_own_emptied_relay_blames_nobody() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(HOUR);
    for _ in 0..5 {
        stage.publish_issue();
        stage.run(MINUTE);
    }
    stage.run(HOUR).forget();
    let mut kept = Local::default();
    let announcement = stage.sim.local.stored.values().find(|one| one.kind.as_u16() == 30_617);
    let _ = kept.direct(announcement.unwrap().clone());
    stage.sim.local = kept;
    stage.sim.tell(Input::FeedLost);
    stage.run(MINUTE);
    assert_eq!(stage.here(), 26);
    assert_eq!((gaps(&stage), stored_on(&stage, SyncPath::Daily)), (vec![], 0));
    assert_eq!(stored_on(&stage, SyncPath::CatchUp), 25);
}

#[test]
fn our_own_restart_is_no_relays_gap() {
    let mut stage = Stage::announced(defaults(), Script::default(), 3);
    stage.run(HOUR);
    let missed = withheld(&mut stage);
    stage.run(secs(200)).forget();
    stage.sim.crash(5);
    stage.run(MINUTE);
    assert!(stage.sim.local.stored.contains_key(&missed.id));
    assert_eq!((gaps(&stage), stored_on(&stage, SyncPath::CatchUp)), (vec![], 1));
}
