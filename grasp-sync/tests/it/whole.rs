//! Full sync: a GRASP server that carries much of what we carry is asked for all that it has, as long as that is
//! worth it.

use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_sync::engine::{Config, Report};

use crate::sim::script::{Neg, Script};
use crate::sim::world::{relay, repo};
use crate::sim::{START, event};
use crate::stage::{By, HOUR, MINUTE, Stage, Start, by, defaults, secs};

const THREADS: usize = 100;

fn config() -> Config {
    Config { whole_from: Some(8_000), ..defaults() }
}

fn grasp() -> Script {
    Script { is_grasp: true, software: Some("grasp-relay"), ..Script::default() }
}

fn is_whole(filter: &Filter) -> bool {
    filter.generic_tags.is_empty() && filter.kinds.is_none() && filter.ids.is_none()
}

/// Returns the requests for all that the relay has.
fn whole(starts: &[Start], sort: By) -> usize {
    by(starts, sort).iter().filter(|start| start.filters.iter().any(is_whole)).count()
}

/// Returns the number of values in filters, over all requests.
fn named(starts: &[Start]) -> usize {
    let filters = starts.iter().flat_map(|start| &start.filters);
    filters.flat_map(|filter| filter.generic_tags.values()).map(|values| values.len()).sum()
}

/// Returns the number of events requested by id.
fn fetched(stage: &Stage) -> usize {
    by(&stage.starts(), By::Ids).iter().filter_map(|start| start.filters[0].limit).sum()
}

fn was_called_by_name(stage: &Stage) -> bool {
    stage.count_reports(|report| matches!(report, Report::CalledByName { .. })) > 0
}

/// Sets up a server with many threads, some with a reply that names nothing else.
fn stage(config: Config, script: Script) -> Stage {
    let mut stage = Stage::announced(config, script, THREADS);
    let roots: Vec<_> = stage.peer().events.keys().copied().collect();
    for root in roots.into_iter().take(30) {
        let comment = event::comment(&mut stage.chance, START - 50, root, "E");
        stage.peer().events.insert(comment.id, comment);
    }
    stage
}

/// Adds this many threads of other repositories to it.
fn strangers(stage: &mut Stage, count: usize) {
    let other = repo(&mut stage.chance, "other");
    for n in 0..count {
        let at = START - 90_000 + n as u64;
        let issue = event::issue(&mut stage.chance, at, std::slice::from_ref(&other));
        stage.peer().events.insert(issue.id, issue);
    }
}

fn comment_on_some_root(stage: &mut Stage) -> Event {
    let root = *stage.peer().events.keys().next().unwrap();
    let at = stage.sim.now.unix.as_secs();
    event::comment(&mut stage.chance, at, root, "E")
}

#[test]
fn many_threads_are_had_and_listened_to_without_naming_one() {
    let mut stage = stage(config(), grasp());
    stage.run(MINUTE);
    assert_eq!(stage.here(), 1 + THREADS + 30);
    let starts = stage.starts();
    assert_eq!((whole(&starts, By::Live), whole(&starts, By::Page)), (1, 0));
    assert!(whole(&starts, By::Neg) > 0);
    assert!(named(&starts) <= 6 + 30, "{}: the repository, and answers to answers", named(&starts));
    let comment = comment_on_some_root(&mut stage);
    stage.sim.publish_after(secs(0), &relay(0), comment.clone());
    stage.run(secs(1));
    assert!(stage.sim.local.stored.contains_key(&comment.id), "comes live");
}

#[test]
fn the_daily_pass_of_two_mirrors_is_one_comparison() {
    let mut stage = stage(config(), grasp());
    stage.run(MINUTE).forget();
    stage.run(26 * HOUR);
    let starts = stage.starts();
    assert_eq!((whole(&starts, By::Neg), named(&starts)), (1, 0), "{starts:?}");
    assert!(!was_called_by_name(&stage));
}

#[test]
fn what_a_short_absence_missed_is_had_without_naming_one() {
    let script = Script { life_secs: Some((600, 601)), ..grasp() };
    let mut stage = stage(config(), script);
    stage.run(5 * MINUTE).forget();
    stage.run(20 * MINUTE);
    let starts = stage.starts();
    assert!(whole(&starts, By::Page) > 0 && whole(&starts, By::Live) > 0);
    assert_eq!(named(&starts), 0);
}

#[test]
fn one_more_thread_is_asked_for_by_name_and_heard_of_with_the_rest() {
    let mut stage = stage(config(), grasp());
    stage.run(MINUTE).forget();
    let issue = stage.publish_issue();
    let early = event::comment(&mut stage.chance, START - 5, issue.id, "e");
    stage.peer().events.insert(early.id, early.clone());
    stage.run(secs(20));
    assert!(stage.sim.local.stored.contains_key(&early.id), "its past is fetched");
    let starts = stage.starts();
    assert_eq!((by(&starts, By::Live).len(), whole(&starts, By::Neg)), (0, 0), "{starts:?}");
}

#[test]
fn few_threads_and_other_relays_are_asked_by_name() {
    let far_off = Config { whole_from: Some(100_000), ..defaults() };
    for (config, script) in
        [(far_off, grasp()), (defaults(), grasp()), (config(), Script::default())]
    {
        let mut stage = stage(config, script);
        stage.run(MINUTE);
        let starts = stage.starts();
        assert_eq!(stage.here(), 1 + THREADS + 30);
        assert_eq!(whole(&starts, By::Live) + whole(&starts, By::Neg), 0);
        assert!(named(&starts) >= 3 * THREADS);
    }
}

#[test]
fn a_server_that_wants_names_is_told_them_and_not_asked_again() {
    let mut stage = stage(config(), Script { wants_names: true, ..grasp() });
    stage.run(5 * MINUTE);
    assert_eq!(stage.here(), 1 + THREADS + 30);
    assert!(was_called_by_name(&stage));
    stage.forget().run(HOUR);
    let starts = stage.starts();
    assert_eq!(whole(&starts, By::Live) + whole(&starts, By::Neg), 0);
    let comment = comment_on_some_root(&mut stage);
    stage.sim.publish_after(secs(0), &relay(0), comment.clone());
    stage.run(secs(1));
    assert!(stage.sim.local.stored.contains_key(&comment.id), "comes live");
}

#[test]
fn a_server_that_does_not_compare_is_paged_by_name() {
    let mut stage = stage(config(), Script { neg: Neg::Unknown, ..grasp() });
    stage.run(5 * MINUTE);
    assert_eq!(stage.here(), 1 + THREADS + 30);
    assert_eq!(whole(&stage.starts(), By::Page), 0);
}

#[test]
fn a_server_with_much_that_nobody_wants_is_asked_by_name() {
    let mut stage = stage(config(), Script { page: 100, ..grasp() });
    strangers(&mut stage, 900);
    stage.run(5 * MINUTE);
    assert_eq!(stage.here(), 1 + THREADS + 30);
    assert!(was_called_by_name(&stage));
    assert!(fetched(&stage) <= 1_000 + THREADS + 30);
}

#[test]
fn a_server_with_far_too_much_is_asked_by_name_before_anything_of_it_is_fetched() {
    let mut stage = stage(config(), grasp());
    strangers(&mut stage, 3_000);
    stage.run(5 * MINUTE);
    assert_eq!(stage.here(), 1 + THREADS + 30);
    assert!(named(&stage.starts()) >= 3 * THREADS);
    assert!(fetched(&stage) < 2 * THREADS);
    assert!(
        !was_called_by_name(&stage),
        "that it has much says nothing about what it will bring live"
    );
}

#[test]
fn a_little_that_nobody_wants_is_fetched_once_and_remembered() {
    let mut stage = stage(config(), grasp());
    strangers(&mut stage, 150);
    stage.run(5 * MINUTE).forget();
    assert!(!was_called_by_name(&stage));
    stage.run(26 * HOUR);
    let starts = stage.starts();
    assert_eq!((whole(&starts, By::Neg), by(&starts, By::Ids).len()), (1, 0));
}

#[test]
fn a_flood_that_nobody_wants_ends_the_listening_to_everything() {
    let mut stage = stage(config(), grasp());
    stage.run(MINUTE).forget();
    let other = repo(&mut stage.chance, "other");
    for n in 0..600 {
        let at = stage.sim.now.unix.as_secs();
        let issue = event::issue(&mut stage.chance, at, std::slice::from_ref(&other));
        stage.sim.publish_after(secs(n / 10), &relay(0), issue);
    }
    let comment = comment_on_some_root(&mut stage);
    stage.sim.publish_after(secs(90), &relay(0), comment.clone());
    stage.run(2 * MINUTE);
    assert!(was_called_by_name(&stage));
    assert!(named(&stage.starts()) >= 3 * THREADS);
    assert!(stage.sim.local.stored.contains_key(&comment.id), "comes live");
}
