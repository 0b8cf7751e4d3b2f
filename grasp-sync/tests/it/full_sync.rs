//! Full sync: a GRASP server that has many of our repositories is asked for all of its events, as long as most of them
//! are wanted.

use grasp_core::admission::SyncPath;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_sync::engine::{Config, Frame, Report, Said};

use crate::setup::{By, HOUR, MINUTE, Setup, Start, by, defaults, secs};
use crate::sim::script::{Neg, Quirk, Script};
use crate::sim::world::{relay, repo};
use crate::sim::{START, event};

const THREADS: usize = 100;

fn config() -> Config {
    let mut config = defaults();
    config.full_sync_above = Some(8_000);
    config
}

fn grasp() -> Script {
    Script {
        is_grasp: true,
        software: Some("grasp-relay"),
        ..Script::default()
    }
}

fn is_whole(filter: &Filter) -> bool {
    filter.generic_tags.is_empty() && filter.kinds.is_none() && filter.ids.is_none()
}

/// Returns the requests for all that the relay has.
fn whole(starts: &[Start], kind: By) -> usize {
    by(starts, kind)
        .iter()
        .filter(|start| start.filters.iter().any(is_whole))
        .count()
}

/// Returns the number of values in filters, over all requests.
fn named(starts: &[Start]) -> usize {
    let filters = starts.iter().flat_map(|start| &start.filters);
    filters
        .flat_map(|filter| filter.generic_tags.values())
        .map(|values| values.len())
        .sum()
}

/// Returns the number of events requested by id.
fn fetched(setup: &Setup) -> usize {
    by(&setup.starts(), By::Ids)
        .iter()
        .filter_map(|start| start.filters[0].limit)
        .sum()
}

fn fell_back_to_filters(setup: &Setup) -> bool {
    setup.count_reports(|report| matches!(report, Report::FullSyncEnded { .. })) > 0
}

/// Sets up a server with many threads, some with a reply that names nothing else.
fn setup(config: Config, script: Script) -> Setup {
    let mut setup = Setup::announced(config, script, THREADS);
    let roots: Vec<_> = setup.peer().events.keys().copied().collect();
    for root in roots.into_iter().take(30) {
        let comment = event::comment(&mut setup.chance, START - 50, root, "E");
        setup.peer().events.insert(comment.id, comment);
    }
    setup
}

/// Adds this many threads of other repositories to it.
fn add_other_threads(setup: &mut Setup, count: usize) {
    let other = repo(&mut setup.chance, "other");
    for n in 0..count {
        let at = START - 90_000 + n as u64;
        let issue = event::issue(&mut setup.chance, at, std::slice::from_ref(&other));
        setup.peer().events.insert(issue.id, issue);
    }
}

fn comment_on_some_root(setup: &mut Setup) -> Event {
    let root = *setup.peer().events.keys().next().unwrap();
    let at = setup.sim.now.unix.as_secs();
    event::comment(&mut setup.chance, at, root, "E")
}

#[test]
fn events_that_a_request_dropped_while_it_is_replaced_are_compared() {
    let mut setup = Setup::announced(config(), grasp(), 25);
    setup.run(MINUTE).forget();
    let old = setup.live_subs();
    // The relay does not answer the new live request, for everything.
    setup.peer().script.quirk = |_, frame| match frame {
        Frame::Subscribe {
            path: SyncPath::Live,
            ..
        } => Quirk::Says(vec![]),
        _ => Quirk::None,
    };
    (0..10).for_each(|_| _ = setup.publish_issue());
    setup.run(secs(10));
    let (live, compared) = (
        whole(&setup.starts(), By::Live),
        whole(&setup.starts(), By::Neg),
    );
    assert_eq!((live, compared), (1, 0), "the switch to full sync");
    let dropped = setup.chance_issue_dated(7 * 24 * 60 * 60);
    setup.peer().events.insert(dropped.id, dropped.clone());
    let conn = setup.sim.conns.last().unwrap().1;
    for sub in old {
        let text = "error: live event buffer overflow".to_owned();
        setup.receive(conn, Said::Closed { sub, text });
    }
    setup.run(secs(20));
    assert!(setup.has(&dropped));
}

#[test]
fn many_threads_are_fetched_and_subscribed_without_naming_one() {
    let mut setup = setup(config(), grasp());
    setup.run(MINUTE);
    assert_eq!(setup.here(), 1 + THREADS + 30);
    let starts = setup.starts();
    assert_eq!((whole(&starts, By::Live), whole(&starts, By::Page)), (1, 0));
    assert!(whole(&starts, By::Neg) > 0);
    assert!(
        named(&starts) <= 6 + 30,
        "{}: the repository, and replies to replies",
        named(&starts)
    );
    let comment = comment_on_some_root(&mut setup);
    setup.sim.publish_after(secs(0), &relay(0), comment.clone());
    setup.run(secs(1));
    assert!(
        setup.sim.local.stored.contains_key(&comment.id),
        "arrives live"
    );
}

#[test]
fn the_daily_pass_of_two_mirrors_is_one_comparison() {
    let mut setup = setup(config(), grasp());
    setup.run(MINUTE).forget();
    setup.run(26 * HOUR);
    let starts = setup.starts();
    assert_eq!(
        (whole(&starts, By::Neg), named(&starts)),
        (1, 0),
        "{starts:?}"
    );
    assert!(!fell_back_to_filters(&setup));
}

#[test]
fn events_missed_by_a_short_disconnect_are_fetched_without_naming_one() {
    let script = Script {
        connection_secs: Some((600, 601)),
        ..grasp()
    };
    let mut setup = setup(config(), script);
    setup.run(5 * MINUTE).forget();
    setup.run(20 * MINUTE);
    let starts = setup.starts();
    assert!(whole(&starts, By::Page) > 0 && whole(&starts, By::Live) > 0);
    assert_eq!(named(&starts), 0);
}

#[test]
fn a_new_thread_is_fetched_by_id_and_needs_no_subscription() {
    let mut setup = setup(config(), grasp());
    setup.run(MINUTE).forget();
    let issue = setup.publish_issue();
    let early = event::comment(&mut setup.chance, START - 5, issue.id, "e");
    setup.peer().events.insert(early.id, early.clone());
    setup.run(secs(20));
    assert!(
        setup.sim.local.stored.contains_key(&early.id),
        "its past is fetched"
    );
    let starts = setup.starts();
    assert_eq!(
        (by(&starts, By::Live).len(), whole(&starts, By::Neg)),
        (0, 0),
        "{starts:?}"
    );
}

#[test]
fn filters_are_used_for_few_threads_and_for_other_relays() {
    let mut far_off = defaults();
    far_off.full_sync_above = Some(100_000);
    for (config, script) in [
        (far_off, grasp()),
        (defaults(), grasp()),
        (config(), Script::default()),
    ] {
        let mut setup = setup(config, script);
        setup.run(MINUTE);
        let starts = setup.starts();
        assert_eq!(setup.here(), 1 + THREADS + 30);
        assert_eq!(whole(&starts, By::Live) + whole(&starts, By::Neg), 0);
        assert!(named(&starts) >= 3 * THREADS);
    }
}

#[test]
fn a_server_that_refuses_full_sync_is_asked_by_filters() {
    let mut setup = setup(
        config(),
        Script {
            wants_names: true,
            ..grasp()
        },
    );
    setup.run(5 * MINUTE);
    assert_eq!(setup.here(), 1 + THREADS + 30);
    assert!(fell_back_to_filters(&setup));
    setup.forget().run(HOUR);
    let starts = setup.starts();
    assert_eq!(whole(&starts, By::Live) + whole(&starts, By::Neg), 0);
    let comment = comment_on_some_root(&mut setup);
    setup.sim.publish_after(secs(0), &relay(0), comment.clone());
    setup.run(secs(1));
    assert!(
        setup.sim.local.stored.contains_key(&comment.id),
        "arrives live"
    );
}

#[test]
fn a_server_without_nip77_is_paged_by_filters() {
    let mut setup = setup(
        config(),
        Script {
            neg: Neg::Unknown,
            ..grasp()
        },
    );
    setup.run(5 * MINUTE);
    assert_eq!(setup.here(), 1 + THREADS + 30);
    assert_eq!(whole(&setup.starts(), By::Page), 0);
}

#[test]
fn a_server_with_many_unwanted_events_is_asked_by_filters() {
    let mut setup = setup(
        config(),
        Script {
            page: 100,
            ..grasp()
        },
    );
    add_other_threads(&mut setup, 900);
    setup.run(5 * MINUTE);
    assert_eq!(setup.here(), 1 + THREADS + 30);
    assert!(fell_back_to_filters(&setup));
    assert!(fetched(&setup) <= 1_000 + THREADS + 30);
}

#[test]
fn a_server_with_far_too_many_events_is_asked_by_filters_before_a_fetch() {
    let mut setup = setup(config(), grasp());
    add_other_threads(&mut setup, 3_000);
    setup.run(5 * MINUTE);
    assert_eq!(setup.here(), 1 + THREADS + 30);
    assert!(named(&setup.starts()) >= 3 * THREADS);
    assert!(fetched(&setup) < 2 * THREADS);
    assert!(
        !fell_back_to_filters(&setup),
        "many stored events do not end the live subscription to everything"
    );
}

#[test]
fn a_few_unwanted_events_are_fetched_once_and_remembered() {
    let mut setup = setup(config(), grasp());
    add_other_threads(&mut setup, 150);
    setup.run(5 * MINUTE).forget();
    assert!(!fell_back_to_filters(&setup));
    setup.run(26 * HOUR);
    let starts = setup.starts();
    assert_eq!(
        (whole(&starts, By::Neg), by(&starts, By::Ids).len()),
        (1, 0)
    );
}

#[test]
fn a_flood_of_unwanted_live_events_ends_full_sync() {
    let mut setup = setup(config(), grasp());
    setup.run(MINUTE).forget();
    let other = repo(&mut setup.chance, "other");
    for n in 0..600 {
        let at = setup.sim.now.unix.as_secs();
        let issue = event::issue(&mut setup.chance, at, std::slice::from_ref(&other));
        setup.sim.publish_after(secs(n / 10), &relay(0), issue);
    }
    let comment = comment_on_some_root(&mut setup);
    setup
        .sim
        .publish_after(secs(90), &relay(0), comment.clone());
    setup.run(2 * MINUTE);
    assert!(fell_back_to_filters(&setup));
    assert!(named(&setup.starts()) >= 3 * THREADS);
    assert!(
        setup.sim.local.stored.contains_key(&comment.id),
        "arrives live"
    );
}

#[test]
fn events_lost_by_an_overflow_are_compared_although_the_last_comparison_was_just_now() {
    let mut setup = setup(
        config(),
        Script {
            latency_ms: (3_000, 3_001),
            ..grasp()
        },
    );
    let is_complete = |setup: &Setup| setup.here() == 1 + THREADS + 30;
    (0..300)
        .take_while(|_| !is_complete(setup.run(secs(1))))
        .for_each(drop);
    assert!(is_complete(setup.forget()));
    let (conn, text) = (
        setup.sim.conns.last().unwrap().1,
        "error: live event buffer overflow",
    );
    for sub in setup.live_subs() {
        setup.receive(
            conn,
            Said::Closed {
                sub,
                text: text.to_owned(),
            },
        );
    }
    // The live request and the announcements take twelve seconds; the pause of a slow comparison lasts longer.
    setup.run(secs(15));
    assert_eq!(whole(&setup.starts(), By::Neg), 1);
}
