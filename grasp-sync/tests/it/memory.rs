//! Records that survive restarts: refused events, coverage, health; and reports about the origin of events.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Retry, SyncPath};
use grasp_core::nostr::event::Event;
use grasp_core::{Mono, RepoId};
use grasp_sync::engine::{
    Delivered, Input, Judged, Outcome, PeerReliability, RelayRecord, Report, Said, Source,
};

use crate::setup::{By, HOUR, MINUTE, Setup, by, defaults, secs};
use crate::sim::local::Local;
use crate::sim::peer::Peer;
use crate::sim::script::Script;
use crate::sim::world::{relay, repo};
use crate::sim::{START, Sim, event};

/// Adds announcements of other repositories to relay 0.
fn add_other_announcements(setup: &mut Setup, count: usize) {
    for n in 0..count {
        let other = repo(&mut setup.chance, &format!("other-{n}"));
        let listed = [relay(0)];
        let event = event::announcement(&mut setup.chance, &other, START - 900, &listed);
        setup.peer().events.insert(event.id, event);
    }
}

fn fetched_ids(setup: &Setup) -> usize {
    let starts = setup.starts();
    by(&starts, By::Ids)
        .iter()
        .map(|start| start.filters[0].ids.as_ref().unwrap().len())
        .sum()
}

#[test]
fn refused_events_are_not_downloaded_again_by_the_next_pass() {
    let script = Script {
        software: Some("strfry"),
        ..Script::default()
    };
    let mut setup = Setup::new(defaults(), script, 5);
    add_other_announcements(&mut setup, 40);
    setup.announce(&[relay(0)]);
    setup.run(HOUR);
    assert_eq!(fetched_ids(&setup), 45);
    setup.forget().run(26 * HOUR);
    assert!(!by(&setup.starts(), By::Neg).is_empty(), "there was a pass");
    assert_eq!(fetched_ids(&setup), 0);
}

#[test]
fn a_comment_that_arrives_before_its_issue_is_offered_again() {
    let mut setup = Setup::announced(defaults(), Script::default(), 0);
    setup
        .sim
        .peers
        .insert(relay(1), Peer::new(Script::default(), []));
    setup.announce(&[relay(0), relay(1)]);
    setup.run(MINUTE);
    // It names the repository only by a quote that the local relay does not count, and its issue, which is not here
    // yet.
    let issue = setup.chance_issue_dated(0);
    let at = setup.sim.now.unix.as_secs();
    let comment = event::comment(&mut setup.chance, at, issue.id, "E");
    let (judged, _) = setup.sim.local.ingest(vec![comment.clone()]);
    let conn = setup.sim.conns[0].1;
    let sub = setup.live_subs()[0];
    let places = [true].into_iter().collect();
    let rows = vec![grasp_sync::engine::Delivered {
        row: crate::sim::row(&comment),
        places,
    }];
    setup.receive(conn, grasp_sync::engine::Said::Delivered { sub, rows });
    setup.sim.handle(Input::Ingested {
        relay: relay(0),
        conn,
        sub,
        judged,
    });
    setup.run(secs(30));
    assert!(!setup.sim.local.stored.contains_key(&comment.id));
    setup.sim.accept(issue);
    setup.run(secs(1));
    assert!(setup.sim.local.stored.contains_key(&comment.id));
}

#[test]
fn a_restart_continues_from_the_records_of_the_last_process() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR);
    let records = setup.sim.records.values().cloned().collect::<Vec<_>>();
    assert_eq!(records.len(), 1);
    let text = serde_json::to_string(&records).unwrap();
    let records = serde_json::from_str(&text).unwrap();

    // The same relays and the same store, an hour later.
    let mut again = Setup::new(defaults(), Script::default(), 20);
    again.sim.local = setup.sim.local.clone();
    again.sim.now = setup.sim.now.after(HOUR);
    again.sim.handle(Input::Restored(records));
    again.forget();
    for event in again.sim.local.stored.clone().into_values() {
        again
            .sim
            .handle(Input::Accepted(crate::sim::accepted(&event, false)));
    }
    again.run(MINUTE);
    let starts = again.starts();
    assert!(by(&starts, By::Neg).is_empty(), "nothing is compared again");
    let pages = by(&starts, By::Page);
    let hour_ago = setup.sim.now.unix - 2 * HOUR;
    assert!(!pages.is_empty());
    assert!(
        pages
            .iter()
            .all(|page| page.filters[0].since.unwrap() >= hour_ago)
    );
    let issue = again.publish_issue();
    again.run(secs(10));
    assert!(again.sim.local.stored.contains_key(&issue.id));
}

#[test]
fn announcements_are_compared_again_after_a_restart_if_configured() {
    for recheck_announcements in [false, true] {
        let mut config = defaults();
        config.recheck_announcements = recheck_announcements;
        let mut setup = Setup::announced(config, Script::default(), 20);
        setup.run(HOUR).forget();
        setup.sim.crash(9);
        setup.run(MINUTE);
        let starts = setup.starts();
        let compared = by(&starts, By::Neg);
        assert_eq!(compared.len(), usize::from(recheck_announcements));
        assert!(
            compared
                .iter()
                .all(|one| one.is_layer_one() && one.filters[0].since.is_none())
        );
    }
}

#[test]
fn coverage_is_void_if_the_local_store_was_lost() {
    let mut config = defaults();
    config.bootstrap = vec![relay(0)];
    let mut setup = Setup::new(config, Script::default(), 20);
    setup.announce(&[relay(0)]);
    let announcement = setup.sim.local.stored.values().next().unwrap().clone();
    setup.peer().events.insert(announcement.id, announcement);
    setup.run(HOUR);
    assert_eq!(setup.here(), 21);

    // The store is lost, but the records of relays are not.
    setup.sim.local = Local::default();
    setup.sim.crash(9);
    setup.run(MINUTE);
    assert_eq!(setup.here(), 21);
}

#[test]
fn a_new_repository_at_a_restart_does_not_void_the_coverage_of_others() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR).forget();
    // In between other requests.
    let other = repo(&mut setup.chance, "another");
    let at = setup.sim.now.unix.as_secs();
    let listed = [relay(0), crate::sim::local::our_url()];
    let announced = event::announcement(&mut setup.chance, &other, at, &listed);
    setup.sim.local.direct(announced);
    setup.sim.crash(9);
    setup.run(MINUTE);
    let starts = setup.starts();
    let compared: Vec<_> = by(&starts, By::Neg)
        .into_iter()
        .chain(by(&starts, By::Page))
        .collect();
    let afresh = compared
        .iter()
        .flat_map(|start| &start.filters)
        .filter(|one| one.since.is_none());
    for filter in afresh {
        let text = filter.as_json();
        assert!(
            text.contains(":another") && !text.contains(":grasp"),
            "{text}"
        );
        assert!(!text.contains("#e") && !text.contains("#E"), "{text}");
    }
    assert!(
        compared
            .iter()
            .any(|start| start.filters.iter().any(|one| one.since.is_none()))
    );
}

#[test]
fn an_interrupted_catch_up_is_repeated_by_the_next_process() {
    let script = Script {
        connection_secs: Some((300, 300)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 20);
    setup.run(secs(302));
    // The relay is gone; events published now are missed.
    let missed = setup.chance_issue_dated(0);
    setup.peer().events.insert(missed.id, missed.clone());
    setup.peer().script.silent_one_in = Some(1);
    let conns = setup.sim.conns.len();
    while setup.sim.conns.len() == conns {
        setup.run(secs(1));
    }
    setup.run(secs(20));
    assert!(
        !setup.sim.local.stored.contains_key(&missed.id),
        "it sends nothing"
    );
    setup.peer().script.silent_one_in = None;
    setup.sim.crash(5);
    setup.run(MINUTE);
    assert!(setup.sim.local.stored.contains_key(&missed.id));
}

#[test]
fn a_restart_ends_no_pause() {
    let script = Script {
        starts_per_minute: Some(2),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 20);
    let refused = |report: &Report| matches!(report, Report::Refused { .. });
    while setup.count_reports(refused) == 0 {
        setup.run(Duration::from_millis(100));
    }
    // The simulation panics on any request that is sent too early.
    for _ in 0..5 {
        setup.sim.crash(1);
        setup.run(secs(5));
    }
    setup.forget().run(2 * MINUTE);
    assert!(!setup.starts().is_empty(), "the pause has an end");
}

#[test]
fn a_restart_keeps_the_backoff_of_relays() {
    let script = Script {
        down_secs: Some((0, 1_000_000)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script.clone(), 0);
    setup.run(2 * HOUR);
    let records = setup.sim.records.values().cloned().collect::<Vec<_>>();
    let mut again = Setup::new(defaults(), script, 0);
    again.sim.now = setup.sim.now.after(secs(10));
    again.sim.handle(Input::Restored(records));
    again.announce(&[relay(0)]);
    let begin = again.sim.now.mono;
    again.run(HOUR + MINUTE);
    let waits: Vec<_> = again.sim.dials.iter().map(|(at, _)| *at - begin).collect();
    assert_eq!(waits.len(), 1, "{waits:?}");
    assert!(waits[0] > 5 * MINUTE);
}

#[test]
fn retiring_a_relay_and_listing_it_again_keeps_its_backoff() {
    let script = Script {
        down_secs: Some((0, 1_000_000)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 0);
    setup.run(2 * HOUR);
    let before = setup.sim.dials.len();
    for _ in 0..10 {
        setup.announce(&[]);
        setup.run(secs(20));
        setup.announce(&[relay(0)]);
        setup.run(secs(20));
    }
    assert!(setup.sim.dials.len() <= before + 1);
}

/// Returns the last reliability report of relay 0.
fn reliability(setup: &Setup) -> PeerReliability {
    let mut reported = setup.sim.reports.iter().filter_map(|report| match report {
        Report::Reliability { seen, .. } => Some(seen.clone()),
        _ => None,
    });
    reported.next_back().unwrap()
}

fn stored_by(sim: &Sim, source: impl Fn(&Source) -> bool) -> usize {
    let counts = sim.reports.iter().map(|report| match report {
        Report::Stored { from, count } if source(from) => *count,
        _ => 0,
    });
    counts.sum()
}

#[test]
fn the_source_of_every_event_is_reported() {
    let script = Script {
        connection_secs: Some((300, 300)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 20);
    setup.run(MINUTE);
    setup.publish_issue();
    setup.run(secs(10));
    let path = |wanted: SyncPath| move |source: &Source| matches!(source, Source::Relay { path, .. } if *path == wanted);
    assert_eq!(stored_by(&setup.sim, |source| *source == Source::Direct), 1);
    assert_eq!(stored_by(&setup.sim, path(SyncPath::CatchUp)), 20);
    assert_eq!(stored_by(&setup.sim, path(SyncPath::Live)), 1);
    let gap = |report: &Report| matches!(report, Report::Gap { .. });
    assert_eq!(setup.count_reports(gap), 0, "a first fetch is no gap");

    // Published at a moment without a subscription, so it is not a gap.
    let cut = Mono::from_secs(301) + Duration::from_millis(700);
    let wait = (cut - setup.now()).as_secs();
    setup.run(secs(wait));
    let missed = setup.chance_issue_dated(0);
    setup
        .sim
        .publish_after(Duration::from_secs(1), &relay(0), missed.clone());
    setup.run(MINUTE);
    assert!(setup.sim.local.stored.contains_key(&missed.id));
    assert_eq!(setup.count_reports(gap), 0);
    assert_eq!(stored_by(&setup.sim, path(SyncPath::CatchUp)), 21);
    let seen = reliability(&setup);
    assert_eq!((seen.attempts, seen.failures), (1, 0));
    assert_eq!(seen.received, 21);
    assert!(seen.uptime().unwrap() > 0.9);
}

/// Delivers an event live from relay 0, with this judgement of the local relay.
fn delivered_live(setup: &mut Setup, event: &Event, outcome: Outcome) {
    let (conn, sub) = (setup.sim.conns[0].1, setup.live_subs()[0]);
    let row = crate::sim::row(event);
    let rows = vec![Delivered {
        row,
        places: [true].into_iter().collect(),
    }];
    setup.receive(conn, Said::Delivered { sub, rows });
    let judged = vec![Judged { row, outcome }];
    setup.sim.handle(Input::Ingested {
        relay: relay(0),
        conn,
        sub,
        judged,
    });
}

#[test]
fn a_held_event_is_counted_by_the_path_on_which_it_arrived() {
    let mut setup = Setup::announced(defaults(), Script::default(), 0);
    setup.run(MINUTE);
    let held = setup.chance_issue_dated(0);
    delivered_live(&mut setup, &held, Outcome::Held);
    setup.run(5 * HOUR).forget();
    // The driver has long forgotten that a relay delivered it.
    setup
        .sim
        .handle(Input::Accepted(crate::sim::accepted(&held, true)));
    let live = Source::Relay {
        relay: relay(0),
        path: SyncPath::Live,
    };
    assert_eq!(stored_by(&setup.sim, |source| *source == live), 1);
    assert_eq!(stored_by(&setup.sim, |source| *source == Source::Direct), 0);
}

#[test]
fn a_reoffered_event_is_counted_by_the_path_on_which_it_arrived() {
    let mut setup = Setup::announced(defaults(), Script::default(), 0);
    setup.run(MINUTE);
    let (early, late) = (setup.chance_issue_dated(0), setup.chance_issue_dated(0));
    for event in [&early, &late] {
        let waiting = Some(Arc::new(event.clone()));
        let retry = Retry::AfterDependency;
        delivered_live(
            &mut setup,
            event,
            Outcome::Refused {
                retry,
                event: waiting,
            },
        );
    }
    setup.forget();
    let judged = |event, outcome| {
        vec![Judged {
            row: crate::sim::row(event),
            outcome,
        }]
    };
    setup.sim.handle(Input::Reoffered {
        judged: judged(&early, Outcome::Stored),
    });
    setup.sim.handle(Input::Reoffered {
        judged: judged(&late, Outcome::Held),
    });
    let live = Source::Relay {
        relay: relay(0),
        path: SyncPath::Live,
    };
    assert_eq!(stored_by(&setup.sim, |source| *source == live), 1);
    setup
        .sim
        .handle(Input::Accepted(crate::sim::accepted(&late, true)));
    assert_eq!(stored_by(&setup.sim, |source| *source == live), 2);
}

#[test]
fn an_event_is_counted_once_though_the_feed_brings_it_before_its_judgement() {
    let mut setup = Setup::announced(defaults(), Script::default(), 0);
    setup.run(MINUTE);
    let issue = setup.chance_issue_dated(0);
    let (retry, event) = (Retry::AfterDependency, Some(Arc::new(issue.clone())));
    delivered_live(&mut setup, &issue, Outcome::Refused { retry, event });
    setup.forget();
    setup
        .sim
        .handle(Input::Accepted(crate::sim::accepted(&issue, false)));
    delivered_live(&mut setup, &issue, Outcome::Stored);
    assert_eq!(stored_by(&setup.sim, |_| true), 1);
}

#[test]
fn an_event_that_is_stored_after_its_connection_ended_is_counted() {
    let mut setup = Setup::announced(defaults(), Script::default(), 0);
    setup.run(MINUTE);
    let conn = setup.sim.conns[0].1;
    let sub = setup.live_subs()[0];
    let row = crate::sim::row(&setup.chance_issue_dated(0));
    let rows = vec![Delivered {
        row,
        places: [true].into_iter().collect(),
    }];
    setup.receive(conn, Said::Delivered { sub, rows });
    setup.sim.handle(Input::Disconnected {
        relay: relay(0),
        conn,
    });
    setup.forget();
    let judged = vec![Judged {
        row,
        outcome: Outcome::Stored,
    }];
    setup.sim.handle(Input::Ingested {
        relay: relay(0),
        conn,
        sub,
        judged,
    });
    assert_eq!(stored_by(&setup.sim, |source| *source != Source::Direct), 1);
}

#[test]
fn events_that_a_relay_lacks_lower_its_coverage() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR);
    for _ in 0..5 {
        let issue = setup.chance_issue_dated(0);
        setup.sim.accept(issue);
    }
    setup.run(26 * HOUR);
    let seen = reliability(&setup);
    // At first only the announcement was compared, which it lacks; a day later all of the issues as well.
    assert_eq!((seen.received, seen.compared, seen.lacking), (20, 27, 7));
    assert!((seen.coverage().unwrap() - 40.0 / 47.0).abs() < 1e-9);
}

/// Adds issues of ours that relay 0 lacks, in the repository and in another that lists it too.
fn with_issues_of_our_own(setup: &mut Setup) -> [(RepoId, u64); 2] {
    let (first, second) = (setup.repo.clone(), repo(&mut setup.chance, "second"));
    let at = setup.sim.now.unix.as_secs();
    let listed = [relay(0), crate::sim::local::our_url()];
    let announced = event::announcement(&mut setup.chance, &second, at, &listed);
    setup.sim.accept(announced);
    for (repo, count) in [(&first, 5), (&second, 2)] {
        for _ in 0..count {
            let issue = event::issue(&mut setup.chance, at, std::slice::from_ref(repo));
            setup.sim.accept(issue);
        }
    }
    [(first, 5), (second, 2)]
}

#[test]
fn events_that_a_relay_lacks_are_counted_by_repository_and_across_restarts() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR);
    let missing = with_issues_of_our_own(&mut setup);
    setup.run(26 * HOUR);
    let before = setup.sim.engine.records(setup.sim.now)[0].seen.clone();
    assert_eq!(before.missing, missing.clone().into());
    restart(&mut setup);
    let after = reliability(&setup);
    assert_eq!(after.missing, missing.into());
    assert!(after.attempts == before.attempts && after.compared == before.compared);
    assert!(after.up > 20 * HOUR, "{:?}", after.up);
}

#[test]
fn events_that_a_relay_lacks_are_not_added_up_over_passes() {
    let mut setup = Setup::announced(defaults(), Script::default(), 20);
    setup.run(HOUR);
    let missing = with_issues_of_our_own(&mut setup);
    for _ in 0..3 {
        setup.run(26 * HOUR);
        let seen = setup.sim.engine.records(setup.sim.now)[0].seen.clone();
        assert_eq!(seen.missing, missing.clone().into());
    }
}

/// Writes the records as on disk, and starts another process with them.
fn restart(setup: &mut Setup) {
    let text = serde_json::to_string(&setup.sim.records.values().collect::<Vec<_>>()).unwrap();
    let kept: Vec<RelayRecord> = serde_json::from_str(&text).unwrap();
    setup.sim.records = kept
        .into_iter()
        .map(|one| (one.relay.clone(), one))
        .collect();
    setup.forget();
    setup.sim.crash(7);
}

#[test]
fn failures_in_a_row_and_the_last_success_survive_a_restart() {
    let script = Script {
        connection_secs: Some((600, 600)),
        down_secs: Some((590, 100_000)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), script, 3);
    setup.run(20 * MINUTE);
    let seen = setup.sim.engine.records(setup.sim.now)[0].seen.clone();
    let ago = setup.sim.now.unix.as_secs() - seen.last_success_at.unwrap().as_secs();
    assert!((590..=600).contains(&ago), "{ago}");
    assert!(seen.consecutive_failures > 3, "{seen:?}");
    restart(&mut setup);
    let after = reliability(&setup);
    assert_eq!(after.consecutive_failures, seen.consecutive_failures);
    assert_eq!(after.last_success_at, seen.last_success_at);
    setup.run(HOUR);
    let attempts = setup.sim.reports.iter().filter_map(|report| match report {
        Report::ConnectFailed { failure, .. } => Some(failure.attempt),
        _ => None,
    });
    assert_eq!(attempts.min(), Some(seen.consecutive_failures + 1));
}

#[test]
fn events_that_a_mirror_lacks_are_counted_in_full_sync() {
    let mut config = defaults();
    config.full_sync_above = Some(1_000);
    let script = Script {
        is_grasp: true,
        ..Script::default()
    };
    let mut setup = Setup::announced(config, script, 30);
    setup.run(HOUR);
    let missing = with_issues_of_our_own(&mut setup);
    // The mirror need not have events of repositories that do not list it.
    let (other, at) = (
        repo(&mut setup.chance, "elsewhere"),
        setup.sim.now.unix.as_secs(),
    );
    let announced = event::announcement(
        &mut setup.chance,
        &other,
        at,
        &[crate::sim::local::our_url()],
    );
    setup.sim.accept(announced);
    let issue = event::issue(&mut setup.chance, at, &[other]);
    setup.sim.accept(issue);
    setup.forget().run(26 * HOUR);
    let starts = setup.starts();
    assert!(
        by(&starts, By::Neg)
            .iter()
            .any(|one| one.filters[0].as_json() == "{}"),
        "as a whole"
    );
    let seen = setup.sim.engine.records(setup.sim.now)[0].seen.clone();
    assert_eq!(seen.missing, missing.into());
    assert!(
        seen.coverage()
            .is_some_and(|share| share > 0.5 && share < 1.0),
        "{seen:?}"
    );
}
