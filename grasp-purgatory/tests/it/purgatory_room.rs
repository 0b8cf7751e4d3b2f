//! The limits of one identifier, under which anyone may announce a repository.

use grasp_core::admission::Policy;
use grasp_purgatory::Config;

use crate::model_events::*;
use crate::model_world::World;

/// Authors who list each other, the first of them all.
fn group() -> Vec<Author> {
    (20..25).map(Author::numbered).collect()
}

fn world(config: Config) -> World {
    World::with(config, Policy::new(US.parse().unwrap()))
}

/// Announces a repository of each author of the group.
fn announce_group(world: &mut World) {
    let group = group();
    let (first, others) = group.split_first().unwrap();
    world.send(&announcement(*first, "x", 0, others)).unwrap();
    for other in others {
        world.send(&announcement(*other, "x", 0, &[*first])).unwrap();
    }
}

fn shown(world: &World, by: Author) -> usize {
    world.view(&by.repo("x")).map_or(0, |refs| refs.len())
}

/// Returns how many refs each author of the group shows, in order.
fn shown_by_group(world: &World) -> Vec<usize> {
    let mut shown: Vec<usize> = group().into_iter().map(|by| shown(world, by)).collect();
    shown[1..].sort_by(|one, other| other.cmp(one));
    shown
}

#[test]
fn a_state_is_shown_by_as_many_views_of_other_owners_as_there_is_room_for() {
    let mut world = world(Config { refs_per_identifier: 8, ..Config::default() });
    world.fetch("x", &[1, 2, 3, 4]).unwrap();
    announce_group(&mut world);
    let refs = [("a", 1), ("b", 2), ("c", 3), ("d", 4)];
    let group = group();
    let large = state(group[0], "x", 1, &refs);
    world.send(&large).unwrap();
    assert!(world.serves(&large));
    assert_eq!(shown_by_group(&world), [4, 4, 4, 0, 0]);
    let is_served = |by: &Author| world.serves(&announcement(*by, "x", 0, &[group[0]]));
    assert_eq!(group[1..].iter().filter(|by| is_served(by)).count(), 2);
    // Another owner is not affected.
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    let signed = state(ALICE, "x", 1, &refs);
    world.send(&signed).unwrap();
    assert!(world.serves(&signed));
    assert_eq!(shown(&world, ALICE), 4);
    // A smaller state leaves room for the others.
    world.send(&state(group[0], "x", 2, &refs[..2])).unwrap();
    assert_eq!(shown_by_group(&world), [2, 2, 2, 2, 2]);
    let grown = state(group[0], "x", 3, &refs[..3]);
    world.send(&grown).unwrap();
    assert!(world.serves(&grown), "views of others do not hold it up");
    assert_eq!(shown_by_group(&world), [3, 3, 3, 0, 0]);
    let is_served = |by: &Author| world.serves(&announcement(*by, "x", 0, &[group[0]]));
    assert!(group[1..].iter().all(is_served), "a served announcement stays");
}

#[test]
fn a_view_that_would_fill_an_identifier_stays_empty() {
    let mut world = world(Config { refs_per_identifier: 8, ..Config::default() });
    world.fetch("x", &[1, 2, 3]).unwrap();
    let group = group();
    world.send(&announcement(group[0], "x", 0, &group[1..])).unwrap();
    let signed = state(group[0], "x", 1, &[("a", 1), ("b", 2), ("c", 3)]);
    world.send(&signed).unwrap();
    for other in &group[1..] {
        world.send(&announcement(*other, "x", 0, &[group[0]])).unwrap();
    }
    let shown: Vec<usize> = group.iter().map(|by| shown(&world, *by)).collect();
    assert_eq!(shown, [3, 3, 3, 0, 0]);
    assert!(world.serves(&announcement(group[2], "x", 0, &[group[0]])));
    assert!(!world.serves(&announcement(group[3], "x", 0, &[group[0]])));
}

#[test]
fn maintainers_of_the_oldest_views_have_a_reserve() {
    let mut world = world(Config { state_bytes_per_identifier: 2_500, ..Config::default() });
    world.fetch("x", &[1, 2]).unwrap();
    for by in [ALICE, BOB] {
        world.send(&announcement(by, "x", 0, &[])).unwrap();
        world.send(&state(by, "x", 1, &[("main", 1)])).unwrap();
    }
    let grown = |by| state(by, "x", 2, &[("main", 1), ("more", 2), ("yet-more", 2)]);
    world.oldest.insert(ALICE.repo("x"));
    world.send(&grown(BOB)).unwrap();
    assert!(!world.serves(&grown(BOB)) && world.core.holds(&grown(BOB).id));
    world.send(&grown(ALICE)).unwrap();
    assert!(world.serves(&grown(ALICE)));
    // Less of one author is room for another.
    world.send(&deletion(ALICE, 3, &[&grown(ALICE)])).unwrap();
    world.send(&deletion(ALICE, 4, &[&state(ALICE, "x", 1, &[("main", 1)])])).unwrap();
    assert!(world.serves(&grown(BOB)));
}

#[test]
fn each_of_the_oldest_views_has_its_part_in_any_case() {
    let mut world = world(Config { refs_per_identifier: 32, ..Config::default() });
    world.fetch("x", &[1]).unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let refs = names.map(|name| (name, 1));
    announce_group(&mut world);
    world.send(&state(group()[0], "x", 1, &refs)).unwrap();
    assert_eq!(shown_by_group(&world), [8, 8, 8, 8, 8], "all room is in use");
    world.oldest.extend(group().into_iter().chain([ALICE]).map(|by| by.repo("x")));
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&elsewhere(BOB, "x", 0, &[ALICE])).unwrap();
    for (at, count) in [(1, 1), (2, 2), (3, 3), (4, 1)] {
        let signed = state(BOB, "x", at, &refs[..count]);
        world.send(&signed).unwrap();
        assert!(world.serves(&signed));
        let expected = if count <= 2 { count } else { 0 };
        assert_eq!(shown(&world, ALICE), expected, "one of sixteen parts is two refs");
    }
}

#[test]
fn states_of_one_identifier_are_limited_in_size() {
    let mut world = world(Config { state_bytes_per_identifier: 3_000, ..Config::default() });
    world.fetch("x", &[1]).unwrap();
    let signed = [ALICE, BOB, CAROL].map(|by| state(by, "x", 1, &[("main", 1)]));
    for (by, signed) in [ALICE, BOB, CAROL].into_iter().zip(&signed) {
        world.send(&announcement(by, "x", 0, &[])).unwrap();
        world.send(signed).unwrap();
    }
    assert_eq!(signed.each_ref().map(|signed| world.serves(signed)), [true, true, false]);
    world.send(&deletion(BOB, 2, &[&signed[1]])).unwrap();
    assert_eq!(signed.each_ref().map(|signed| world.serves(signed)), [true, false, true]);
}

#[test]
fn pull_requests_to_some_views_leave_room_for_those_to_others() {
    let mut world = world(Config { proposals_per_identifier: 6, ..Config::default() });
    world.fetch("x", &[1, 9]).unwrap();
    for (by, listed) in [(ALICE, &[BOB][..]), (BOB, &[ALICE]), (CAROL, &[])] {
        world.send(&announcement(by, "x", 0, listed)).unwrap();
    }
    for by in [ALICE, CAROL] {
        world.send(&state(by, "x", 1, &[("main", 1)])).unwrap();
    }
    let requests = [2, 3, 4, 5].map(|at| pull_request(DAVE, at, &[ALICE.repo("x")], 9));
    requests.iter().for_each(|request| _ = world.send(request).unwrap());
    assert_eq!(requests.map(|request| world.serves(&request)), [true, true, true, false]);
    let other = pull_request(DAVE, 6, &[CAROL.repo("x")], 9);
    world.send(&other).unwrap();
    assert!(world.serves(&other));
}
