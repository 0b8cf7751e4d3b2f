//! Requests for relay lists.

use std::time::Duration;

use grasp_core::outbox::Fact;
use grasp_sync::outbox::{Input, OutboxConfig};

use super::world::{World, announced, answer, key, list, relay, repo, root};
use crate::setup::{HOUR, MINUTE, secs};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[test]
fn nothing_is_asked_before_the_feed_has_caught_up() {
    let mut world = World::new(&["index"], &[]);
    world.learn([announced(1)]).list(list(1, 1, &["a"]));
    world.run(HOUR);
    assert_eq!(world.outbox.next_deadline(), None);
    assert!(world.fetches.is_empty() && world.follows.is_empty() && world.visits.is_empty());
    world.catch_up();
    assert_eq!(world.sources(), [relay("a")]);
}

#[test]
fn without_eligible_authors_there_is_no_deadline() {
    let mut world = World::new(&["index"], &["fallback"]);
    // A list and an answer of strangers, and an issue of a repository that is not served.
    world
        .list(list(5, 1, &["a"]))
        .learn([answer(30, 6, 99), root(20, 7, 2)]);
    world.catch_up().run(DAY);
    assert_eq!(world.outbox.next_deadline(), None);
    assert!(world.fetches.is_empty());
    world.learn([announced(1)]);
    assert_eq!(world.fetches.len(), 1);
    world.found(&[1], &[1]);
    world.learn([Fact::Retired { repo: repo(1) }]);
    assert_eq!(world.outbox.next_deadline(), None);
}

#[test]
fn an_author_who_joins_is_asked_for_in_the_next_pass() {
    let mut world = World::new(&["index"], &[]);
    world
        .learn([announced(1)])
        .catch_up()
        .found(&[1], &[1])
        .run(secs(5));
    world.learn([root(20, 2, 1)]).run(secs(54));
    assert_eq!(world.fetches.len(), 1);
    world.run(secs(1));
    assert_eq!(world.fetches[1].authors, [key(2)]);
    assert_eq!(world.times(), [0, 60]);
}

#[test]
fn authors_without_a_list_are_asked_for_at_index_and_bootstrap_relays() {
    let mut config = OutboxConfig::new("us.example.com".parse().unwrap());
    config.index_relays = vec![relay("index")];
    config.bootstrap = vec![relay("bootstrap")];
    let mut world = World::with(config);
    world.learn([announced(1)]).catch_up().found(&[], &[]);
    world.run(MINUTE).found(&[], &[]);
    assert_eq!(world.sources(), [relay("bootstrap"), relay("index")]);
    assert!(world.fetches.iter().all(|fetch| fetch.configured));
    world.handle(Input::Bootstrap(vec![relay("other")]));
    world.run(MINUTE);
    assert_eq!(world.sources()[2], relay("other"));
}

#[test]
fn one_new_relay_is_asked_per_pass_and_the_operators_first() {
    let mut world = World::new(&["index"], &[]);
    world.learn([announced(1), announced(2), announced(3)]);
    world
        .list(list(1, 1, &["a", "b", "c"]))
        .list(list(2, 1, &["c"]));
    world.catch_up();
    for _ in 0..5 {
        let authors: Vec<u32> = (1..=3).collect();
        world.found(&authors, &authors).run(MINUTE);
    }
    assert_eq!(
        world.sources(),
        [relay("index"), relay("c"), relay("a"), relay("b")]
    );
    assert_eq!(world.times(), [0, 60, 120, 180]);
    assert!(!world.fetches[1].configured);
}

#[test]
fn a_request_has_a_hundred_authors_and_only_one_is_under_way() {
    let mut world = World::new(&["index"], &[]);
    world.learn((1..=250).map(announced)).catch_up();
    world.run(secs(20));
    assert_eq!(world.fetches.len(), 1);
    for wanted in [2, 3, 3] {
        let all: Vec<u32> = (1..=250).collect();
        world.found(&all, &all).run(secs(1));
        assert_eq!(world.fetches.len(), wanted);
    }
    let sizes: Vec<_> = world
        .fetches
        .iter()
        .map(|fetch| fetch.authors.len())
        .collect();
    assert_eq!(sizes, [100, 100, 50]);
    assert_eq!(world.times(), [0, 21, 22]);
}

#[test]
fn a_relay_that_had_the_list_is_asked_again_after_a_day() {
    let mut world = World::new(&["index"], &[]);
    world.learn((1..=50).map(announced)).catch_up();
    let all: Vec<u32> = (1..=50).collect();
    world.found(&all, &all).run(DAY - DAY / 20 - MINUTE);
    assert_eq!(world.fetches.len(), 1);
    let mut asked = 0;
    for _ in 0..2 * DAY.as_secs() / 20 / 60 + 5 {
        let before = world.fetches.len();
        world.run(MINUTE);
        if world.fetches.len() > before {
            asked += world.fetches[before].authors.len();
            world.found(&all, &all);
        }
    }
    assert_eq!(asked, 50);
    assert!(world.fetches.len() > 20, "not all at once");
}

#[test]
fn a_missing_list_is_asked_for_after_pauses_that_double_to_an_hour() {
    let mut world = World::new(&["index"], &[]);
    world.learn([announced(1)]).catch_up();
    for minutes in [5, 10, 20, 40, 60, 60] {
        world.found(&[], &[]).run(minutes * MINUTE - secs(1));
        let before = world.fetches.len();
        world.run(secs(1));
        assert_eq!(world.fetches.len(), before + 1, "after {minutes} minutes");
    }
    world.found(&[1], &[1]).run(DAY - DAY / 20 - MINUTE);
    assert_eq!(world.fetches.len(), 7, "a day after it was found");
}

#[test]
fn a_relay_that_fails_is_asked_for_nobody_until_its_pause_ends() {
    let mut world = World::new(&["index"], &[]);
    world.learn((1..=150).map(announced)).catch_up();
    for minutes in [5, 10, 20, 40, 60, 60] {
        let before = world.fetches.len();
        world.failed().run(minutes * MINUTE - secs(1));
        assert_eq!(world.fetches.len(), before);
        world.run(secs(1));
        assert_eq!(world.fetches.len(), before + 1, "after {minutes} minutes");
    }
}

#[test]
fn a_relay_without_eose_has_failed_after_half_a_minute() {
    let mut world = World::new(&["index", "other"], &[]);
    world.learn([announced(1)]).catch_up();
    let silent = world.fetches[0].clone();
    world.run(MINUTE);
    assert_eq!(world.sources(), [relay("index"), relay("other")]);
    world.found(&[], &[]);
    // Late, so that it changes nothing.
    let outcome = grasp_sync::outbox::FetchOutcome::Failed;
    world.handle(Input::Fetched {
        id: silent.id,
        outcome,
    });
    world.run(5 * MINUTE);
    assert_eq!(world.sources()[2], relay("index"));
    assert_eq!(world.times(), [0, 60, 360]);
}

#[test]
fn relays_that_never_answer_do_not_delay_those_of_the_operator() {
    let mut world = World::new(&["index"], &[]);
    world.learn((1..=200).map(announced));
    // A hundred users name four relays each that never answer; the others have lists elsewhere.
    for user in 1..=100 {
        let names = [0, 1, 2, 3].map(|n| format!("a-{user}-{n}"));
        world.list(list(user, 1, &names.each_ref().map(String::as_str)));
    }
    world.catch_up().found(&[], &[]);
    // Until all four hundred were asked, one per minute.
    let mut asked_at = Vec::new();
    for _ in 0..7 * 60 * 60 {
        world.run(secs(1));
        let last = world.fetches.last().unwrap();
        if last.source == relay("index") && asked_at.last() != Some(&last.at) {
            asked_at.push(last.at);
            world.found(&[], &[]);
        }
    }
    assert!(world.fetches.len() > 500, "{}", world.fetches.len());
    // What is due at the index relay waits for the end of one request and the next pass.
    let pauses = asked_at.windows(2).map(|two| two[1] - two[0]);
    let longest = pauses.max().unwrap();
    assert!(longest <= HOUR + 2 * MINUTE, "{longest:?}");
    // A user who joins is asked for there within two minutes.
    world.learn([announced(201)]).run(2 * MINUTE);
    let asked = world.fetches.iter().rev().take(6);
    let mut asked = asked.filter(|fetch| fetch.source == relay("index"));
    assert!(asked.any(|fetch| fetch.authors.contains(&key(201))));
}

#[test]
fn a_new_list_is_followed_in_the_same_round_to_each_relay_once() {
    let mut world = World::new(&["index"], &[]);
    // Another author has made the relay known.
    world
        .learn([announced(1), announced(2)])
        .list(list(2, 1, &["a"]));
    world
        .catch_up()
        .found(&[], &[])
        .run(MINUTE)
        .found(&[2], &[2]);
    assert_eq!(world.sources(), [relay("index"), relay("a")]);
    world.run(4 * MINUTE);
    assert_eq!(world.sources().len(), 3, "the list is asked for again");
    world
        .list(list(1, 1, &["a"]))
        .found(&[1], &[1])
        .run(secs(1));
    assert_eq!(world.sources()[3], relay("a"));
    assert_eq!(world.fetches[3].authors, [key(1)]);
    world.found(&[1], &[1]).run(HOUR);
    assert_eq!(world.fetches.len(), 4);
}

#[test]
fn lists_that_change_all_the_time_do_not_lead_to_more_requests() {
    let mut world = World::new(&["index"], &[]);
    world.learn([announced(1)]).catch_up().found(&[1], &[1]);
    let mut answered = 1;
    for at in 0..600 {
        let name = if at % 2 == 0 { "a" } else { "b" };
        world.list(list(1, at, &[name])).run(secs(1));
        if world.fetches.len() > answered {
            answered += 1;
            world.found(&[1], &[1]);
        }
    }
    assert!(world.fetches.len() <= 3, "{:?}", world.sources());
}

#[test]
fn everything_is_asked_for_again_when_events_were_lost() {
    let mut world = World::new(&["index"], &[]);
    world
        .learn([announced(1)])
        .catch_up()
        .found(&[1], &[1])
        .run(secs(90));
    world.handle(Input::Lost);
    world.run(secs(30));
    assert_eq!(world.times(), [0, 120]);
}

#[test]
fn the_pause_of_a_relay_survives_that_nobody_needs_it() {
    let mut world = World::new(&["index"], &[]);
    world
        .learn([announced(1), announced(3)])
        .list(list(3, 1, &["a"]));
    world
        .catch_up()
        .failed()
        .run(MINUTE)
        .found(&[3], &[3])
        .run(secs(10));
    world.learn([Fact::Retired { repo: repo(1) }]).run(MINUTE);
    world.learn([announced(2)]).run(MINUTE);
    assert_eq!(world.sources(), [relay("index"), relay("a")]);
    world.run(2 * MINUTE);
    assert_eq!(
        world.sources(),
        [relay("index"), relay("a"), relay("index")]
    );
    assert_eq!(world.times(), [0, 60, 300]);
}
