//! Requests for history.

use std::time::Duration;

use grasp_core::nostr::nips::nip01::Coordinate;
use grasp_core::outbox::{Fact, Named};
use grasp_core::{Mono, kinds};
use grasp_sync::outbox::{Input, OutboxConfig};

use super::world::{World, announced, answer, id, key, list, relay, repo, root};
use crate::setup::{HOUR, MINUTE, secs};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn filters(tags: [&str; 3], values: &[String]) -> Vec<String> {
    let values = values.join("\",\"");
    tags.iter()
        .map(|tag| format!("{{\"#{tag}\":[\"{values}\"]}}"))
        .collect()
}

#[test]
fn participants_are_asked_for_where_they_write_then_where_they_read() {
    let mut world = World::new(&[], &[]);
    world.learn([announced(1), root(20, 1, 1), answer(30, 2, 20)]);
    world.list(list(2, 1, &["<r1", "<r2", ">w1", "both", "<r3"]));
    world.catch_up().run(5 * MINUTE);
    let relays: Vec<_> = world.visited_relays();
    assert_eq!(relays.len(), 4);
    for name in ["both", "w1", "r1", "r2"] {
        assert!(relays.contains(&relay(name)), "{name}");
    }
}

#[test]
fn a_participant_is_asked_for_by_the_whole_thread() {
    let mut world = World::new(&[], &[]);
    let at = Box::new(Coordinate {
        kind: kinds::SOFTWARE_RELEASE,
        public_key: key(2),
        identifier: "app".to_owned(),
    });
    let release = Fact::Descendant {
        id: id(31),
        author: key(2),
        coordinate: Some(at.clone()),
        names: vec![Named::Event(id(20))],
    };
    world.learn([announced(1), root(20, 1, 1), answer(30, 2, 20), release]);
    world.list(list(2, 1, &[">w"])).catch_up();
    let ids = [20, 30, 31].map(|n| id(n).to_hex());
    let mut wanted = filters(["e", "E", "q"], &ids);
    wanted.extend(filters(["a", "A", "q"], &[at.to_string()]));
    assert_eq!(world.visits[0].filters, wanted);
}

#[test]
fn maintainers_are_asked_for_by_repository_and_roots_where_they_read() {
    let mut world = World::new(&[], &[]);
    world.learn([
        announced(1),
        root(20, 2, 1),
        root(21, 3, 1),
        answer(30, 2, 20),
    ]);
    world.list(list(1, 1, &["<in", ">out"])).catch_up();
    assert_eq!(world.visited_relays(), [relay("in")]);
    let of_repo = filters(["a", "A", "q"], &[repo(1).to_string()]);
    assert_eq!(world.visits[0].filters, of_repo);
    world.visited(true);
    let of_roots = filters(["e", "E", "q"], &[20, 21].map(|n| id(n).to_hex()));
    assert_eq!(world.visits[1].filters, of_roots);
    world.visited(true).run(HOUR);
    assert_eq!(world.visits.len(), 2);
}

/// Returns a world with three groups at one relay.
fn three_groups() -> World {
    let mut world = World::new(&[], &[]);
    world.learn([announced(1)]);
    world.learn((1_000..1_250).map(|n| root(n, 2, 1)));
    world.list(list(2, 1, &[">w"])).catch_up();
    world
}

#[test]
fn a_group_follows_the_one_before_at_once_and_a_cycle_the_next_day() {
    let mut world = three_groups();
    let start = world.now;
    for _ in 0..3 {
        world.run(secs(1)).visited(true);
    }
    assert_eq!(world.visits.len(), 3);
    assert_eq!(world.outbox.stats().cursors, 0);
    world.run(DAY - secs(1));
    assert_eq!(world.visits.len(), 3);
    world.run(secs(1));
    let times: Vec<_> = world.visits.iter().map(|visit| visit.at - start).collect();
    assert_eq!(times, [secs(0), secs(1), secs(2), DAY + secs(3)]);
    let mut asked: Vec<&String> = world.visits[..3]
        .iter()
        .flat_map(|one| &one.filters)
        .collect();
    assert_eq!(asked.len(), 9);
    asked.dedup();
    assert_eq!(asked.len(), 9, "each group asks for others");
    assert_eq!(world.visits[3].filters, world.visits[0].filters);
}

#[test]
fn the_next_group_follows_one_that_failed_after_five_minutes() {
    let mut world = three_groups();
    world.visited(false).run(5 * MINUTE - secs(1));
    assert_eq!(world.visits.len(), 1);
    assert_eq!(
        (world.outbox.stats().cursors, world.outbox.stats().workers),
        (1, 0)
    );
    world.run(secs(1));
    assert_eq!(world.visits.len(), 2);
    assert_ne!(world.visits[0].filters, world.visits[1].filters);
}

#[test]
fn a_visit_without_an_end_is_ended_after_a_quarter_of_an_hour() {
    let mut world = three_groups();
    world.run(15 * MINUTE - secs(1));
    assert!(world.ended.is_empty());
    world.run(secs(1));
    assert_eq!(world.ended, [world.visits[0].id]);
    world.visited(true);
    assert_eq!(world.visits.len(), 1, "its end comes too late");
    world.run(5 * MINUTE);
    assert_eq!(world.visits.len(), 2);
}

#[test]
fn one_new_relay_is_asked_for_history_per_pass_and_that_of_most_users_first() {
    let mut world = World::new(&[], &[]);
    world.learn([announced(1), root(20, 2, 1), root(21, 3, 1)]);
    world
        .list(list(2, 1, &[">a", ">b"]))
        .list(list(3, 1, &[">b"]));
    world.catch_up();
    assert_eq!(world.visited_relays(), [relay("b")]);
    world.run(MINUTE - secs(1));
    assert_eq!(world.visits.len(), 1);
    world.run(secs(1));
    assert_eq!(world.visited_relays(), [relay("b"), relay("a")]);
}

#[test]
fn a_limited_number_of_relays_is_asked_at_the_same_time() {
    let mut config = OutboxConfig::new("us.example.com".parse().unwrap());
    config.pass = secs(20);
    let mut world = World::with(config);
    world.learn([announced(1)]);
    for n in 2..=41 {
        let name = format!(">r{n}");
        world.learn([root(n, n, 1)]).list(list(n, 1, &[&name]));
    }
    world.catch_up();
    // Passes follow so fast that no visit ends before the one in which the 33rd relay would be new.
    world.run(40 * secs(20));
    assert_eq!(world.outbox.stats().workers, 32);
    assert_eq!(world.visits.len(), 32);
    let first = world.visits[0].id;
    world.handle(Input::Visited {
        id: first,
        is_complete: true,
    });
    assert_eq!(world.visits.len(), 33);
    assert_eq!(world.outbox.stats().relays, 40);
}

#[test]
fn a_relay_that_nobody_names_any_more_is_left_at_once() {
    let mut world = three_groups();
    let visit = world.visits[0].id;
    world.list(list(2, 2, &[">other"]));
    assert_eq!(world.ended, [visit]);
    assert_eq!(world.outbox.stats().relays, 1);
    world.run(MINUTE);
    assert_eq!(world.visited_relays(), [relay("w"), relay("other")]);
    assert!(world.now > Mono::from_secs(60));
    world.learn([Fact::Retired { repo: repo(1) }]);
    assert_eq!(world.ended.len(), 2);
    assert_eq!(world.outbox.stats(), Default::default());
}

#[test]
fn cycles_begin_anew_when_events_were_lost() {
    let mut world = three_groups();
    for _ in 0..3 {
        world.visited(true);
    }
    world.handle(Input::Lost);
    assert_eq!(world.visits[3].filters, world.visits[0].filters);
}
