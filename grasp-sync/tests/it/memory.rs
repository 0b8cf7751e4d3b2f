//! What is remembered: refused events, coverage, health; and reports about the origin of events.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Retry, SyncPath};
use grasp_core::nostr::event::Event;
use grasp_core::{Mono, RepoId};
use grasp_sync::engine::{
    Config, Delivered, Input, Judged, Outcome, PeerReliability, RelayRecord, Report, Said, Source,
};

use crate::sim::local::Local;
use crate::sim::peer::Peer;
use crate::sim::script::Script;
use crate::sim::world::{relay, repo};
use crate::sim::{START, Sim, event};
use crate::stage::{By, HOUR, MINUTE, Stage, by, defaults, secs};

/// Adds announcements of other repositories to relay 0.
fn add_strangers(stage: &mut Stage, count: usize) {
    for n in 0..count {
        let other = repo(&mut stage.chance, &format!("other-{n}"));
        let listed = [relay(0)];
        let event = event::announcement(&mut stage.chance, &other, START - 900, &listed);
        stage.peer().events.insert(event.id, event);
    }
}

fn fetched_ids(stage: &Stage) -> usize {
    let starts = stage.starts();
    by(&starts, By::Ids).iter().map(|start| start.filters[0].ids.as_ref().unwrap().len()).sum()
}

#[test]
fn refused_events_are_not_downloaded_again_by_the_next_pass() {
    let script = Script { software: Some("strfry"), ..Script::default() };
    let mut stage = Stage::new(defaults(), script, 5);
    add_strangers(&mut stage, 40);
    stage.announce(&[relay(0)]);
    stage.run(HOUR);
    assert_eq!(fetched_ids(&stage), 45);
    stage.forget().run(26 * HOUR);
    assert!(!by(&stage.starts(), By::Neg).is_empty(), "there was a pass");
    assert_eq!(fetched_ids(&stage), 0);
}

#[test]
fn a_comment_that_comes_before_its_issue_is_offered_again() {
    let mut stage = Stage::announced(defaults(), Script::default(), 0);
    stage.sim.peers.insert(relay(1), Peer::new(Script::default(), []));
    stage.announce(&[relay(0), relay(1)]);
    stage.run(MINUTE);
    // It names the repository only by a quote that the local relay does not count, and its issue, which is not here
    // yet.
    let issue = stage.chance_issue_dated(0);
    let at = stage.sim.now.unix.as_secs();
    let comment = event::comment(&mut stage.chance, at, issue.id, "E");
    let (judged, _) = stage.sim.local.ingest(vec![comment.clone()]);
    let conn = stage.sim.conns[0].1;
    let sub = stage.live_subs()[0];
    let places = [true].into_iter().collect();
    let rows = vec![grasp_sync::engine::Delivered { row: crate::sim::row(&comment), places }];
    stage.hear(conn, grasp_sync::engine::Said::Delivered { sub, rows });
    stage.sim.tell(Input::Ingested { relay: relay(0), conn, sub, judged });
    stage.run(secs(30));
    assert!(!stage.sim.local.stored.contains_key(&comment.id));
    stage.sim.accept(issue);
    stage.run(secs(1));
    assert!(stage.sim.local.stored.contains_key(&comment.id));
}

#[test]
fn a_restart_takes_up_where_the_last_process_left_off() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(HOUR);
    let records = stage.sim.records.values().cloned().collect::<Vec<_>>();
    assert_eq!(records.len(), 1);
    let text = serde_json::to_string(&records).unwrap();
    let records = serde_json::from_str(&text).unwrap();

    // The same relays and the same store, an hour later.
    let mut again = Stage::new(defaults(), Script::default(), 20);
    again.sim.local = stage.sim.local.clone();
    again.sim.now = stage.sim.now.after(HOUR);
    again.sim.tell(Input::Restored(records));
    again.forget();
    for event in again.sim.local.stored.clone().into_values() {
        again.sim.tell(Input::Accepted(crate::sim::accepted(&event, false)));
    }
    again.run(MINUTE);
    let starts = again.starts();
    assert!(by(&starts, By::Neg).is_empty(), "nothing is compared again");
    let pages = by(&starts, By::Page);
    let hour_ago = stage.sim.now.unix - 2 * HOUR;
    assert!(!pages.is_empty());
    assert!(pages.iter().all(|page| page.filters[0].since.unwrap() >= hour_ago));
    let issue = again.publish_issue();
    again.run(secs(10));
    assert!(again.sim.local.stored.contains_key(&issue.id));
}

#[test]
fn announcements_are_compared_again_after_a_restart_if_the_relay_does_not_tell_what_it_holds() {
    for recheck_announcements in [false, true] {
        let config = Config { recheck_announcements, ..defaults() };
        let mut stage = Stage::announced(config, Script::default(), 20);
        stage.run(HOUR).forget();
        stage.sim.crash(9);
        stage.run(MINUTE);
        let starts = stage.starts();
        let compared = by(&starts, By::Neg);
        assert_eq!(compared.len(), usize::from(recheck_announcements));
        assert!(compared.iter().all(|one| one.is_layer_one() && one.filters[0].since.is_none()));
    }
}

#[test]
fn what_was_fetched_counts_only_as_long_as_it_is_here() {
    let config = Config { bootstrap: vec![relay(0)], ..defaults() };
    let mut stage = Stage::new(config, Script::default(), 20);
    stage.announce(&[relay(0)]);
    let announcement = stage.sim.local.stored.values().next().unwrap().clone();
    stage.peer().events.insert(announcement.id, announcement);
    stage.run(HOUR);
    assert_eq!(stage.here(), 21);

    // The store is lost, but the records of relays are not.
    stage.sim.local = Local::default();
    stage.sim.crash(9);
    stage.run(MINUTE);
    assert_eq!(stage.here(), 21);
}

#[test]
fn one_more_repository_after_a_restart_unproves_no_other() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(HOUR).forget();
    // In between other requests.
    let other = repo(&mut stage.chance, "another");
    let at = stage.sim.now.unix.as_secs();
    let listed = [relay(0), crate::sim::local::our_url()];
    let announced = event::announcement(&mut stage.chance, &other, at, &listed);
    stage.sim.local.direct(announced);
    stage.sim.crash(9);
    stage.run(MINUTE);
    let starts = stage.starts();
    let compared: Vec<_> = by(&starts, By::Neg).into_iter().chain(by(&starts, By::Page)).collect();
    let afresh = compared.iter().flat_map(|start| &start.filters).filter(|one| one.since.is_none());
    for filter in afresh {
        let text = filter.as_json();
        assert!(text.contains(":another") && !text.contains(":grasp"), "{text}");
        assert!(!text.contains("#e") && !text.contains("#E"), "{text}");
    }
    assert!(compared.iter().any(|start| start.filters.iter().any(|one| one.since.is_none())));
}

#[test]
fn a_process_that_dies_while_catching_up_leaves_that_to_the_next() {
    let script = Script { life_secs: Some((300, 300)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 20);
    stage.run(secs(302));
    // The relay is gone; events published now are missed.
    let missed = stage.chance_issue_dated(0);
    stage.peer().events.insert(missed.id, missed.clone());
    stage.peer().script.silent_one_in = Some(1);
    let conns = stage.sim.conns.len();
    while stage.sim.conns.len() == conns {
        stage.run(secs(1));
    }
    stage.run(secs(20));
    assert!(!stage.sim.local.stored.contains_key(&missed.id), "it says nothing");
    stage.peer().script.silent_one_in = None;
    stage.sim.crash(5);
    stage.run(MINUTE);
    assert!(stage.sim.local.stored.contains_key(&missed.id));
}

#[test]
fn a_restart_ends_no_pause() {
    let script = Script { starts_per_minute: Some(2), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 20);
    let refused = |report: &Report| matches!(report, Report::Refused { .. });
    while stage.count_reports(refused) == 0 {
        stage.run(Duration::from_millis(100));
    }
    // The simulation panics on any request that is sent too early.
    for _ in 0..5 {
        stage.sim.crash(1);
        stage.run(secs(5));
    }
    stage.forget().run(2 * MINUTE);
    assert!(!stage.starts().is_empty(), "the pause has an end");
}

#[test]
fn a_restart_hammers_nobody() {
    let script = Script { down_secs: Some((0, 1_000_000)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script.clone(), 0);
    stage.run(2 * HOUR);
    let records = stage.sim.records.values().cloned().collect::<Vec<_>>();
    let mut again = Stage::new(defaults(), script, 0);
    again.sim.now = stage.sim.now.after(secs(10));
    again.sim.tell(Input::Restored(records));
    again.announce(&[relay(0)]);
    let begin = again.sim.now.mono;
    again.run(HOUR + MINUTE);
    let waits: Vec<_> = again.sim.dials.iter().map(|(at, _)| *at - begin).collect();
    assert_eq!(waits.len(), 1, "{waits:?}");
    assert!(waits[0] > 5 * MINUTE);
}

#[test]
fn retiring_a_relay_and_taking_it_up_again_resets_nothing() {
    let script = Script { down_secs: Some((0, 1_000_000)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 0);
    stage.run(2 * HOUR);
    let before = stage.sim.dials.len();
    for _ in 0..10 {
        stage.announce(&[]);
        stage.run(secs(20));
        stage.announce(&[relay(0)]);
        stage.run(secs(20));
    }
    assert!(stage.sim.dials.len() <= before + 1);
}

/// Returns the last reliability report of relay 0.
fn reliability(stage: &Stage) -> PeerReliability {
    let mut told = stage.sim.reports.iter().filter_map(|report| match report {
        Report::Reliability { seen, .. } => Some(seen.clone()),
        _ => None,
    });
    told.next_back().unwrap()
}

fn stored_by(sim: &Sim, source: impl Fn(&Source) -> bool) -> usize {
    let counts = sim.reports.iter().map(|report| match report {
        Report::Stored { from, count } if source(from) => *count,
        _ => 0,
    });
    counts.sum()
}

#[test]
fn where_every_event_came_from_is_told() {
    let script = Script { life_secs: Some((300, 300)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), script, 20);
    stage.run(MINUTE);
    stage.publish_issue();
    stage.run(secs(10));
    let path = |wanted: SyncPath| move |source: &Source| matches!(source, Source::Relay { path, .. } if *path == wanted);
    assert_eq!(stored_by(&stage.sim, |source| *source == Source::Direct), 1);
    assert_eq!(stored_by(&stage.sim, path(SyncPath::CatchUp)), 20);
    assert_eq!(stored_by(&stage.sim, path(SyncPath::Live)), 1);
    let gap = |report: &Report| matches!(report, Report::Gap { .. });
    assert_eq!(stage.count_reports(gap), 0, "a first fetch is no gap");

    // Published at a moment without a subscription, so no gap of the relay.
    let cut = Mono::from_secs(301) + Duration::from_millis(700);
    let wait = (cut - stage.now()).as_secs();
    stage.run(secs(wait));
    let missed = stage.chance_issue_dated(0);
    stage.sim.publish_after(Duration::from_secs(1), &relay(0), missed.clone());
    stage.run(MINUTE);
    assert!(stage.sim.local.stored.contains_key(&missed.id));
    assert_eq!(stage.count_reports(gap), 0);
    assert_eq!(stored_by(&stage.sim, path(SyncPath::CatchUp)), 21);
    let seen = reliability(&stage);
    assert_eq!((seen.attempts, seen.failures), (1, 0));
    assert_eq!(seen.received, 21);
    assert!(seen.uptime().unwrap() > 0.9);
}

/// Delivers an event live from relay 0, with this judgement of the local relay.
fn delivered_live(stage: &mut Stage, event: &Event, outcome: Outcome) {
    let (conn, sub) = (stage.sim.conns[0].1, stage.live_subs()[0]);
    let row = crate::sim::row(event);
    let rows = vec![Delivered { row, places: [true].into_iter().collect() }];
    stage.hear(conn, Said::Delivered { sub, rows });
    let judged = vec![Judged { row, outcome }];
    stage.sim.tell(Input::Ingested { relay: relay(0), conn, sub, judged });
}

#[test]
fn what_is_held_for_hours_counts_by_the_path_on_which_it_came() {
    let mut stage = Stage::announced(defaults(), Script::default(), 0);
    stage.run(MINUTE);
    let held = stage.chance_issue_dated(0);
    delivered_live(&mut stage, &held, Outcome::Held);
    stage.run(5 * HOUR).forget();
    // The driver has long forgotten that a relay delivered it.
    stage.sim.tell(Input::Accepted(crate::sim::accepted(&held, true)));
    let live = Source::Relay { relay: relay(0), path: SyncPath::Live };
    assert_eq!(stored_by(&stage.sim, |source| *source == live), 1);
    assert_eq!(stored_by(&stage.sim, |source| *source == Source::Direct), 0);
}

#[test]
fn what_is_offered_again_counts_by_the_path_on_which_it_came() {
    let mut stage = Stage::announced(defaults(), Script::default(), 0);
    stage.run(MINUTE);
    let (early, late) = (stage.chance_issue_dated(0), stage.chance_issue_dated(0));
    for event in [&early, &late] {
        let waiting = Some(Arc::new(event.clone()));
        let retry = Retry::AfterDependency;
        delivered_live(&mut stage, event, Outcome::Refused { retry, event: waiting });
    }
    stage.forget();
    let judged = |event, outcome| vec![Judged { row: crate::sim::row(event), outcome }];
    stage.sim.tell(Input::Reoffered { judged: judged(&early, Outcome::Stored) });
    stage.sim.tell(Input::Reoffered { judged: judged(&late, Outcome::Held) });
    let live = Source::Relay { relay: relay(0), path: SyncPath::Live };
    assert_eq!(stored_by(&stage.sim, |source| *source == live), 1);
    stage.sim.tell(Input::Accepted(crate::sim::accepted(&late, true)));
    assert_eq!(stored_by(&stage.sim, |source| *source == live), 2);
}

#[test]
fn what_a_relay_lacks_of_ours_counts_against_it() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(HOUR);
    for _ in 0..5 {
        let issue = stage.chance_issue_dated(0);
        stage.sim.accept(issue);
    }
    stage.run(26 * HOUR);
    let seen = reliability(&stage);
    // At first only the announcement was compared, which it lacks; a day later all of the issues as well.
    assert_eq!((seen.received, seen.compared, seen.lacking), (20, 27, 7));
    assert!((seen.coverage().unwrap() - 40.0 / 47.0).abs() < 1e-9);
}

/// Adds issues of ours that relay 0 lacks, in the repository and in another that lists it too.
fn with_issues_of_our_own(stage: &mut Stage) -> [(RepoId, u64); 2] {
    let (first, second) = (stage.repo.clone(), repo(&mut stage.chance, "second"));
    let at = stage.sim.now.unix.as_secs();
    let listed = [relay(0), crate::sim::local::our_url()];
    let announced = event::announcement(&mut stage.chance, &second, at, &listed);
    stage.sim.accept(announced);
    for (repo, count) in [(&first, 5), (&second, 2)] {
        for _ in 0..count {
            let issue = event::issue(&mut stage.chance, at, std::slice::from_ref(repo));
            stage.sim.accept(issue);
        }
    }
    [(first, 5), (second, 2)]
}

#[test]
fn what_a_relay_lacks_is_counted_by_repository_and_over_restarts() {
    let mut stage = Stage::announced(defaults(), Script::default(), 20);
    stage.run(HOUR);
    let missing = with_issues_of_our_own(&mut stage);
    stage.run(26 * HOUR);
    let before = stage.sim.engine.records(stage.sim.now)[0].seen.clone();
    assert_eq!(before.missing, missing.clone().into());
    // The record is serialized, as on disk.
    let text = serde_json::to_string(&stage.sim.records.values().collect::<Vec<_>>()).unwrap();
    let kept: Vec<RelayRecord> = serde_json::from_str(&text).unwrap();
    stage.sim.records = kept.into_iter().map(|one| (one.relay.clone(), one)).collect();
    stage.forget();
    stage.sim.crash(7);
    let after = reliability(&stage);
    assert_eq!(after.missing, missing.into());
    assert!(after.attempts == before.attempts && after.compared == before.compared);
    assert!(after.up > 20 * HOUR, "{:?}", after.up);
}

#[test]
fn what_a_mirror_lacks_counts_where_all_is_compared_at_once() {
    let config = Config { whole_from: Some(1_000), ..defaults() };
    let script = Script { is_grasp: true, ..Script::default() };
    let mut stage = Stage::announced(config, script, 30);
    stage.run(HOUR);
    let missing = with_issues_of_our_own(&mut stage);
    // The mirror need not have events of repositories that do not list it.
    let (other, at) = (repo(&mut stage.chance, "elsewhere"), stage.sim.now.unix.as_secs());
    let announced =
        event::announcement(&mut stage.chance, &other, at, &[crate::sim::local::our_url()]);
    stage.sim.accept(announced);
    let issue = event::issue(&mut stage.chance, at, &[other]);
    stage.sim.accept(issue);
    stage.forget().run(26 * HOUR);
    let starts = stage.starts();
    assert!(by(&starts, By::Neg).iter().any(|one| one.filters[0].as_json() == "{}"), "as a whole");
    let seen = stage.sim.engine.records(stage.sim.now)[0].seen.clone();
    assert_eq!(seen.missing, missing.into());
    assert!(seen.coverage().is_some_and(|share| share > 0.5 && share < 1.0), "{seen:?}");
}
