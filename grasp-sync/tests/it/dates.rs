//! Events of any date arrive when they are published.

use grasp_core::nostr::event::Event;
use grasp_core::sync::ConnectionStatus;
use grasp_sync::engine::{Config, Report};

use crate::setup::{By, HOUR, MINUTE, Setup, by, defaults, secs};
use crate::sim::script::{Neg, Script};
use crate::sim::world::{relay, repo};
use crate::sim::{START, event};

/// Publishes an issue that is dated a week ago, and asserts that it arrives within seconds and without a request for it.
fn assert_arrives_live(setup: &mut Setup) {
    let fetches = |setup: &Setup| {
        let starts = setup.starts();
        by(&starts, By::Page).len() + by(&starts, By::Neg).len() + by(&starts, By::Ids).len()
    };
    setup.forget();
    let issue = setup.publish_old_issue();
    // Before the window ends in which its thread is noticed.
    setup.run(std::time::Duration::from_millis(45));
    let before = fetches(setup);
    setup.run(secs(1));
    assert!(setup.has(&issue), "{:?}", setup.status());
    assert_eq!(before, 0, "{:?}", setup.starts());
}

fn interruptions(setup: &Setup) -> usize {
    let reported = setup
        .sim
        .reports
        .iter()
        .rev()
        .find_map(|report| match report {
            Report::Interrupted { times, .. } => Some(*times),
            _ => None,
        });
    reported.unwrap_or(0)
}

fn quick(script: Script) -> Script {
    Script {
        latency_ms: (1, 5),
        ..script
    }
}

#[test]
fn old_events_arrive_live_after_the_first_connect() {
    let mut setup = Setup::announced(defaults(), quick(Script::default()), 20);
    setup.run(MINUTE);
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
    assert_eq!(interruptions(&setup), 0);
    assert_arrives_live(&mut setup);
}

#[test]
fn old_events_arrive_live_after_a_quick_reconnect() {
    let script = Script {
        connection_secs: Some((600, 600)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), quick(script), 20);
    setup.run(11 * MINUTE);
    assert_eq!(setup.sim.conns.len(), 2);
    assert_arrives_live(&mut setup);
}

/// Adds issues of several ages to relay 0 that are published while it is not connected.
fn published_meanwhile(setup: &mut Setup) -> Vec<Event> {
    let mut events = Vec::new();
    for age in [0, 3_600, 7 * 24 * 3_600] {
        let issue = setup.chance_issue_dated(age);
        setup.peer().events.insert(issue.id, issue.clone());
        events.push(issue);
    }
    events
}

#[test]
fn old_events_published_during_a_reconnect_are_found_by_a_comparison_after_the_catch_up() {
    let connection_secs = Some((600, 600));
    let filters = quick(Script {
        connection_secs,
        ..Script::default()
    });
    let full_sync = Script {
        connection_secs,
        ..mirror()
    };
    for (config, script) in [(defaults(), filters), (whole_config(), full_sync)] {
        let mut setup = Setup::announced(config, script, 100);
        setup.run(9 * MINUTE);
        setup.peer().script.down_secs = Some((600, 660));
        setup.run(secs(90));
        let missed = published_meanwhile(&mut setup);
        setup.peer().script.connection_secs = None;
        setup.forget().run(3 * MINUTE);
        assert_eq!(setup.sim.conns.len(), 2);
        assert!(missed.iter().all(|issue| setup.has(issue)));
        assert_eq!(interruptions(&setup), 0, "nothing is missing");
        let gaps = setup.count_reports(|report| matches!(report, Report::Gap { .. }));
        assert_eq!(gaps, 0, "nothing shows that these were published before");
    }
}

#[test]
fn an_unstable_relay_is_compared_once_an_hour() {
    let script = Script {
        connection_secs: Some((360, 360)),
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), quick(script), 20);
    setup.run(5 * MINUTE).forget();
    setup.run(4 * HOUR);
    assert!(setup.sim.conns.len() > 30);
    let starts = setup.starts();
    let announcements = by(&starts, By::Neg)
        .into_iter()
        .filter(|one| one.is_layer_one());
    assert_eq!(announcements.count(), 4);
    let missed = published_meanwhile(&mut setup);
    setup.run(2 * HOUR);
    assert!(missed.iter().all(|issue| setup.has(issue)));
}

#[test]
fn old_events_arrive_live_after_our_own_restart() {
    let mut setup = Setup::announced(defaults(), quick(Script::default()), 20);
    setup.run(10 * MINUTE);
    setup.sim.crash(9);
    setup.run(MINUTE);
    assert_arrives_live(&mut setup);
}

#[test]
fn old_events_arrive_live_after_a_consolidation() {
    let mut config = defaults();
    config.consolidation_threshold = 12;
    let mut setup = Setup::announced(config, quick(Script::default()), 0);
    setup.run(MINUTE);
    for _ in 0..30 {
        setup.publish_issue();
        setup.run(secs(7));
    }
    assert!(setup.count_reports(|report| matches!(report, Report::Consolidated { .. })) >= 2);
    assert_eq!(
        interruptions(&setup),
        0,
        "the old stay open until the new are in force"
    );
    setup.run(MINUTE);
    assert_arrives_live(&mut setup);
}

#[test]
fn old_events_arrive_live_across_the_default_consolidation_threshold() {
    let mut setup = Setup::announced(defaults(), quick(Script::default()), 0);
    setup.run(MINUTE);
    let mut sizes = Vec::new();
    // A thread has three filters, the repository three.
    for _ in 0..60 {
        setup.publish_issue();
        setup.run(secs(7));
        sizes.extend(setup.sim.reports.iter().filter_map(|report| match report {
            Report::Consolidated { before, after, .. } => Some((*before, *after)),
            _ => None,
        }));
        assert_eq!(
            interruptions(&setup),
            0,
            "the old stay open until the new are in force"
        );
        assert_arrives_live(&mut setup);
    }
    let &[(before, after), ..] = &sizes[..] else {
        panic!("no consolidation")
    };
    assert!((66..=70).contains(&before) && after <= 6, "{sizes:?}");
    assert!(sizes.len() <= 4, "rebuilt rarely: {sizes:?}");
}

#[test]
fn old_events_arrive_during_a_consolidation() {
    let mut config = defaults();
    config.consolidation_threshold = 12;
    let script = Script {
        latency_ms: (200, 200),
        ..Script::default()
    };
    let mut setup = Setup::announced(config, script, 0);
    setup.run(MINUTE);
    let rebuilds =
        |setup: &Setup| setup.count_reports(|report| matches!(report, Report::Consolidated { .. }));
    let mut published = Vec::new();
    while rebuilds(&setup) < 3 {
        published.push(setup.publish_old_issue());
        setup.run(std::time::Duration::from_millis(150));
        assert!(setup.now().since_start() < HOUR);
    }
    setup.run(secs(30));
    assert!(published.iter().all(|issue| setup.has(issue)));
    assert_eq!(interruptions(&setup), 0);
    assert_eq!(
        setup.count_reports(|report| matches!(report, Report::Gap { .. })),
        0
    );
}

#[test]
fn old_events_arrive_live_after_the_daily_pass() {
    let mut setup = Setup::announced(defaults(), quick(Script::default()), 20);
    setup.run(26 * HOUR);
    assert_arrives_live(&mut setup);
}

#[test]
fn the_daily_pass_resets_the_count_of_interruptions_without_nip77() {
    let neg = Neg::Unknown;
    let script = Script {
        connection_secs: Some((6 * 3600, 6 * 3600)),
        neg,
        ..Script::default()
    };
    let mut setup = Setup::announced(defaults(), quick(script), 20);
    setup.run(22 * HOUR);
    assert_eq!(interruptions(&setup), 3);
    setup.run(7 * HOUR);
    assert_eq!(interruptions(&setup), 1);
}

fn mirror() -> Script {
    quick(Script {
        is_grasp: true,
        software: Some("grasp-relay"),
        ..Script::default()
    })
}

fn whole_config() -> Config {
    let mut config = defaults();
    config.full_sync_above = Some(8_000);
    config
}

#[test]
fn old_events_arrive_live_in_full_sync() {
    let mut setup = Setup::announced(whole_config(), mirror(), 100);
    setup.run(MINUTE);
    assert_arrives_live(&mut setup);
}

#[test]
fn old_events_arrive_live_after_a_change_to_full_sync() {
    let mut setup = Setup::announced(whole_config(), mirror(), 10);
    setup.run(MINUTE);
    for _ in 0..100 {
        setup.publish_issue();
    }
    setup.run(MINUTE);
    let starts = setup.starts();
    let is_all = |start: &&&crate::setup::Start| {
        start.filters[0].generic_tags.is_empty() && start.filters[0].kinds.is_none()
    };
    assert_eq!(by(&starts, By::Live).iter().filter(is_all).count(), 1);
    assert_eq!(interruptions(&setup), 0);
    assert_arrives_live(&mut setup);
}

#[test]
fn old_events_arrive_live_in_full_sync_after_a_quick_reconnect() {
    let script = Script {
        connection_secs: Some((600, 600)),
        ..mirror()
    };
    let mut setup = Setup::announced(whole_config(), script, 100);
    setup.run(11 * MINUTE);
    assert_eq!(setup.sim.conns.len(), 2);
    assert_arrives_live(&mut setup);
}

#[test]
fn old_events_arrive_live_after_full_sync_was_refused() {
    let script = Script {
        wants_names: true,
        ..mirror()
    };
    let mut setup = Setup::announced(whole_config(), script, 100);
    setup.run(5 * MINUTE);
    assert_arrives_live(&mut setup);
}

#[test]
fn old_events_arrive_live_without_support_of_limit_zero() {
    let script = Script {
        takes_zero: false,
        ..quick(Script::default())
    };
    let mut setup = Setup::announced(defaults(), script, 20);
    setup.run(MINUTE);
    assert_arrives_live(&mut setup);
}

/// Adds comments to the last of five hundred threads, some of which are polled.
fn old_comments(setup: &mut Setup) -> Vec<Event> {
    let roots: Vec<_> = setup.sim.peers[&relay(0)].events.keys().copied().collect();
    let mut comments = Vec::new();
    for root in roots.into_iter().step_by(25) {
        let comment = event::comment(&mut setup.chance, START - 600_000, root, "e");
        setup.sim.publish_after(secs(0), &relay(0), comment.clone());
        comments.push(comment);
    }
    comments
}

fn with_all_slots_used(neg: Neg) -> Setup {
    let script = Script {
        subs: 10,
        neg,
        ..Script::default()
    };
    let mut config = defaults();
    config.values_per_filter = 10;
    let mut setup = Setup::announced(config, script, 500);
    setup.run(30 * MINUTE);
    setup
}

#[test]
fn old_events_arrive_by_polls_without_room_for_a_subscription() {
    let mut setup = with_all_slots_used(Neg::Speaks);
    let comments = old_comments(&mut setup);
    setup.run(secs(2));
    assert!(
        !comments.iter().all(|comment| setup.has(comment)),
        "not all have a subscription"
    );
    setup.run(12 * MINUTE);
    assert!(comments.iter().all(|comment| setup.has(comment)));
}

#[test]
fn old_events_of_a_new_repository_arrive_live_although_threads_use_all_slots() {
    let mut setup = with_all_slots_used(Neg::Unknown);
    setup.repo = repo(&mut setup.chance, "another");
    setup.announce(&[relay(0)]);
    setup.run(MINUTE);
    assert_arrives_live(&mut setup);
}

#[test]
fn old_events_arrive_by_the_daily_pass_without_negentropy_and_that_is_reported() {
    let mut setup = with_all_slots_used(Neg::Unknown);
    assert!(interruptions(&setup) > 0);
    let comments = old_comments(&mut setup);
    setup.run(25 * HOUR);
    assert!(comments.iter().all(|comment| setup.has(comment)));
}
