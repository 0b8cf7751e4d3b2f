//! An event that is published now arrives now, of any date.

use grasp_core::nostr::event::Event;
use grasp_sync::engine::{Config, Report};
use grasp_sync::index::ConnectionStatus;

use crate::sim::script::{Neg, Script};
use crate::sim::world::{relay, repo};
use crate::sim::{START, event};
use crate::stage::{By, HOUR, MINUTE, Stage, by, defaults, secs};

/// Publishes an issue that is dated a week ago, and expects it within seconds and without a request for it.
fn arrives_live(stage: &mut Stage) {
    let fetches = |stage: &Stage| {
        let starts = stage.starts();
        by(&starts, By::Page).len() + by(&starts, By::Neg).len() + by(&starts, By::Ids).len()
    };
    stage.forget();
    let issue = stage.publish_old_issue();
    // Before the window ends in which its thread is noticed.
    stage.run(std::time::Duration::from_millis(45));
    let before = fetches(stage);
    stage.run(secs(1));
    assert!(stage.has(&issue), "{:?}", stage.status());
    assert_eq!(before, 0, "{:?}", stage.starts());
}

fn interruptions(stage: &Stage) -> usize {
    let told = stage.sim.reports.iter().rev().find_map(|report| match report {
        Report::Interrupted { times, .. } => Some(*times),
        _ => None,
    });
    told.unwrap_or(0)
}

fn quick(script: Script) -> Script {
    Script { latency_ms: (1, 5), ..script }
}

#[test]
fn after_the_first_connect() {
    let mut stage = Stage::announced(defaults(), quick(Script::default()), 20);
    stage.run(MINUTE);
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
    assert_eq!(interruptions(&stage), 0);
    arrives_live(&mut stage);
}

#[test]
fn after_a_quick_return() {
    let script = Script { life_secs: Some((600, 600)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), quick(script), 20);
    stage.run(11 * MINUTE);
    assert_eq!(stage.sim.conns.len(), 2);
    assert_eq!(
        interruptions(&stage),
        1,
        "what was dated earlier and came in between is shown as unproven"
    );
    arrives_live(&mut stage);
}

#[test]
fn after_a_restart_of_our_own() {
    let mut stage = Stage::announced(defaults(), quick(Script::default()), 20);
    stage.run(10 * MINUTE);
    stage.sim.crash(9);
    stage.run(MINUTE);
    arrives_live(&mut stage);
}

#[test]
fn after_a_rebuild() {
    let config = Config { consolidation_threshold: 12, ..defaults() };
    let mut stage = Stage::announced(config, quick(Script::default()), 0);
    stage.run(MINUTE);
    for _ in 0..30 {
        stage.publish_issue();
        stage.run(secs(7));
    }
    assert!(stage.count_reports(|report| matches!(report, Report::Consolidated { .. })) >= 2);
    assert_eq!(interruptions(&stage), 0, "the old stay open until the new are in force");
    stage.run(MINUTE);
    arrives_live(&mut stage);
}

#[test]
fn during_a_rebuild() {
    let config = Config { consolidation_threshold: 12, ..defaults() };
    let script = Script { latency_ms: (200, 200), ..Script::default() };
    let mut stage = Stage::announced(config, script, 0);
    stage.run(MINUTE);
    let rebuilds =
        |stage: &Stage| stage.count_reports(|report| matches!(report, Report::Consolidated { .. }));
    let mut published = Vec::new();
    while rebuilds(&stage) < 3 {
        published.push(stage.publish_old_issue());
        stage.run(std::time::Duration::from_millis(150));
        assert!(stage.now().since_start() < HOUR);
    }
    stage.run(secs(30));
    assert!(published.iter().all(|issue| stage.has(issue)));
    assert_eq!(interruptions(&stage), 0);
    assert_eq!(stage.count_reports(|report| matches!(report, Report::Gap { .. })), 0);
}

#[test]
fn after_the_daily_pass() {
    let mut stage = Stage::announced(defaults(), quick(Script::default()), 20);
    stage.run(26 * HOUR);
    arrives_live(&mut stage);
}

#[test]
fn the_daily_pass_makes_up_for_interruptions() {
    let script = Script { life_secs: Some((6 * 3600, 6 * 3600)), ..Script::default() };
    let mut stage = Stage::announced(defaults(), quick(script), 20);
    stage.run(22 * HOUR);
    assert_eq!(interruptions(&stage), 3);
    stage.run(7 * HOUR);
    assert_eq!(interruptions(&stage), 1);
}

fn mirror() -> Script {
    quick(Script { is_grasp: true, software: Some("grasp-relay"), ..Script::default() })
}

fn whole_config() -> Config {
    Config { whole_from: Some(8_000), ..defaults() }
}

#[test]
fn in_full_mode_from_the_beginning() {
    let mut stage = Stage::announced(whole_config(), mirror(), 100);
    stage.run(MINUTE);
    arrives_live(&mut stage);
}

#[test]
fn in_full_mode_after_names_became_too_many() {
    let mut stage = Stage::announced(whole_config(), mirror(), 10);
    stage.run(MINUTE);
    for _ in 0..100 {
        stage.publish_issue();
    }
    stage.run(MINUTE);
    let starts = stage.starts();
    let is_all = |start: &&&crate::stage::Start| {
        start.filters[0].generic_tags.is_empty() && start.filters[0].kinds.is_none()
    };
    assert_eq!(by(&starts, By::Live).iter().filter(is_all).count(), 1);
    assert_eq!(interruptions(&stage), 0);
    arrives_live(&mut stage);
}

#[test]
fn in_full_mode_after_a_quick_return() {
    let script = Script { life_secs: Some((600, 600)), ..mirror() };
    let mut stage = Stage::announced(whole_config(), script, 100);
    stage.run(11 * MINUTE);
    assert_eq!(stage.sim.conns.len(), 2);
    arrives_live(&mut stage);
}

#[test]
fn when_full_mode_was_refused() {
    let script = Script { wants_names: true, ..mirror() };
    let mut stage = Stage::announced(whole_config(), script, 100);
    stage.run(5 * MINUTE);
    arrives_live(&mut stage);
}

#[test]
fn where_a_limit_of_zero_is_not_understood() {
    let script = Script { takes_zero: false, ..quick(Script::default()) };
    let mut stage = Stage::announced(defaults(), script, 20);
    stage.run(MINUTE);
    arrives_live(&mut stage);
}

/// Adds comments to the last of five hundred threads, some of which are polled.
fn old_comments(stage: &mut Stage) -> Vec<Event> {
    let roots: Vec<_> = stage.sim.peers[&relay(0)].events.keys().copied().collect();
    let mut comments = Vec::new();
    for root in roots.into_iter().step_by(25) {
        let comment = event::comment(&mut stage.chance, START - 600_000, root, "e");
        stage.sim.publish_after(secs(0), &relay(0), comment.clone());
        comments.push(comment);
    }
    comments
}

fn crowded(neg: Neg) -> Stage {
    let script = Script { subs: 10, neg, ..Script::default() };
    let config = Config { values_per_filter: 10, ..defaults() };
    let mut stage = Stage::announced(config, script, 500);
    stage.run(30 * MINUTE);
    stage
}

#[test]
fn with_the_next_poll_where_there_is_no_room_to_listen() {
    let mut stage = crowded(Neg::Speaks);
    let comments = old_comments(&mut stage);
    stage.run(secs(2));
    assert!(!comments.iter().all(|comment| stage.has(comment)), "not all are listened to");
    stage.run(12 * MINUTE);
    assert!(comments.iter().all(|comment| stage.has(comment)));
}

#[test]
fn for_a_new_repository_where_threads_have_taken_all_the_room() {
    let mut stage = crowded(Neg::Unknown);
    stage.repo = repo(&mut stage.chance, "another");
    stage.announce(&[relay(0)]);
    stage.run(MINUTE);
    arrives_live(&mut stage);
}

#[test]
fn with_the_daily_pass_where_polls_cannot_compare_and_that_is_shown() {
    let mut stage = crowded(Neg::Unknown);
    assert!(interruptions(&stage) > 0);
    let comments = old_comments(&mut stage);
    stage.run(25 * HOUR);
    assert!(comments.iter().all(|comment| stage.has(comment)));
}
