//! The effects of maintainer sets, and of changes to them, on states and refs.

use grasp_core::MaintainerModel;
use grasp_core::admission::Policy;
use grasp_purgatory::Config;

use crate::model_disk::hosted;
use crate::model_events::*;
use crate::model_world::World;

#[test]
fn a_state_is_applied_to_every_view_that_its_author_maintains() {
    let mut world = World::new();
    let announcements = [
        announcement(ALICE, "x", 0, &[BOB]),
        announcement(BOB, "x", 0, &[ALICE]),
    ];
    for announced in &announcements {
        world.send(announced).unwrap();
    }
    world.send(&announcement(DAVE, "x", 0, &[])).unwrap();
    let signed = state(BOB, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    assert!(world.push(&ALICE.repo("x"), &signed).unwrap());
    assert!(
        announcements
            .iter()
            .all(|announced| world.serves(announced))
    );
    assert_eq!(world.view(&BOB.repo("x")).unwrap()[&branch("main")], oid(1));
    assert!(
        world.view(&DAVE.repo("x")).unwrap().is_empty(),
        "not his repository"
    );
}

#[test]
fn a_state_older_than_another_maintainers_winner_is_served_without_moving_refs() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&announcement(BOB, "x", 0, &[ALICE])).unwrap();
    let (older, winner) = (
        state(ALICE, "x", 1, &[("main", 1)]),
        state(BOB, "x", 2, &[("main", 2)]),
    );
    world.send(&winner).unwrap();
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    world.send(&older).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(world.serves(&older) && world.serves(&winner));
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(2)
    );
}

#[test]
fn states_completed_together_move_refs_once_and_are_stored_from_the_oldest() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    // He has no repository here, so that hers releases both.
    world.send(&elsewhere(BOB, "x", 0, &[ALICE])).unwrap();
    let (older, newer) = (
        state(ALICE, "x", 1, &[("main", 1)]),
        state(BOB, "x", 2, &[("main", 2)]),
    );
    world.send(&newer).unwrap();
    world.send(&older).unwrap();
    world.published.clear();
    world.fetch(&ALICE.repo("x"), &[1, 2]).unwrap();
    let states: Vec<_> = world
        .published
        .iter()
        .filter(|id| [older.id, newer.id].contains(id))
        .collect();
    assert_eq!(states, [&older.id, &newer.id]);
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(2)
    );
}

#[test]
fn a_stored_state_whose_objects_are_gone_is_not_shown_until_they_are_here_again() {
    let mut world = World::new();
    let repo = ALICE.repo("x");
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&elsewhere(BOB, "x", 0, &[ALICE])).unwrap();
    let (his, hers) = (
        state(BOB, "x", 1, &[("main", 1)]),
        state(ALICE, "x", 2, &[("main", 2)]),
    );
    world.send(&his).unwrap();
    world.send(&hers).unwrap();
    world.fetch(&repo, &[1, 2]).unwrap();
    assert!(world.serves(&his) && world.serves(&hers));
    world
        .disk
        .git
        .repo_mut(&hosted(&repo))
        .objects
        .remove(&oid(1));
    world.send(&deletion(ALICE, 3, &[&hers])).unwrap();
    assert!(world.view(&repo).unwrap().is_empty());
    world.fetch(&repo, &[1]).unwrap();
    assert_eq!(world.view(&repo).unwrap()[&branch("main")], oid(1));
}

#[test]
fn within_one_second_the_lower_id_wins() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1, 2]).unwrap();
    let mut states = [
        state(ALICE, "x", 1, &[("main", 1)]),
        state(ALICE, "x", 1, &[("main", 2)]),
    ];
    states.sort_by_key(|event| event.id);
    world.send(&states[1]).unwrap();
    assert!(world.serves(&states[1]));
    world.send(&states[0]).unwrap();
    assert!(world.serves(&states[0]) && !world.serves(&states[1]));
}

#[test]
fn an_invitation_alone_moves_nothing_and_its_acceptance_does() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1, 2]).unwrap();
    // Bob has a repository of the same identifier that alice does not maintain.
    world.send(&announcement(BOB, "x", 0, &[])).unwrap();
    let fork = state(BOB, "x", 2, &[("main", 2)]);
    world.send(&fork).unwrap();
    assert!(!world.serves(&fork), "her objects are not his");
    world.fetch(&BOB.repo("x"), &[2]).unwrap();
    assert!(world.serves(&fork));
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(1),
        "no takeover"
    );
    world.send(&announcement(BOB, "x", 3, &[ALICE])).unwrap();
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(2)
    );
}

#[test]
fn in_the_plain_model_a_listed_key_needs_only_a_state() {
    let mut policy = Policy::new(US.parse().unwrap());
    policy.model = MaintainerModel::Plain;
    let mut world = World::with(Config::default(), policy);
    let announced = announcement(ALICE, "x", 0, &[BOB]);
    world.send(&announced).unwrap();
    let signed = state(BOB, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    assert!(world.push(&ALICE.repo("x"), &signed).unwrap());
    assert!(world.serves(&announced) && world.serves(&signed));
}

#[test]
fn states_of_a_removed_maintainer_no_longer_set_the_refs() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&announcement(BOB, "x", 0, &[ALICE])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    let bobs = state(BOB, "x", 2, &[("main", 2)]);
    world.send(&bobs).unwrap();
    world.fetch(&ALICE.repo("x"), &[1, 2]).unwrap();
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(2)
    );

    world.send(&announcement(ALICE, "x", 3, &[])).unwrap();
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(1)
    );
    assert_eq!(
        world.view(&BOB.repo("x")).unwrap()[&branch("main")],
        oid(2),
        "his own"
    );
    // A later state of his changes only his own view.
    let later = state(BOB, "x", 4, &[("main", 2), ("dev", 1)]);
    world.send(&later).unwrap();
    assert!(world.serves(&later));
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(1)
    );
}

#[test]
fn a_repository_without_a_state_of_a_maintainer_is_held_again() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&announcement(BOB, "x", 0, &[ALICE])).unwrap();
    world.send(&state(BOB, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let alone = announcement(ALICE, "x", 2, &[]);
    world.send(&alone).unwrap();
    assert!(!world.serves(&alone) && world.core.holds(&alone.id));
    assert!(world.view(&ALICE.repo("x")).unwrap().is_empty());
    // Her own state releases it.
    world.send(&state(ALICE, "x", 3, &[("main", 1)])).unwrap();
    assert!(world.serves(&alone));
}

#[test]
fn a_held_announcement_is_replaced_by_a_newer_one_and_still_not_served() {
    let mut world = World::new();
    let (old, new) = (
        announcement(ALICE, "x", 0, &[]),
        announcement(ALICE, "x", 1, &[BOB]),
    );
    world.send(&old).unwrap();
    world.send(&new).unwrap();
    assert!(world.core.holds(&new.id) && !world.core.holds(&old.id) && !world.serves(&new));
    let answer = world.send(&old).unwrap();
    assert_eq!(
        answer.message,
        "replaced: have a newer version of this event"
    );
}

#[test]
fn an_announcement_for_discovery_grants_no_view() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    let discovered = elsewhere(BOB, "x", 0, &[ALICE]);
    world.send(&discovered).unwrap();
    assert!(world.serves(&discovered));
    assert!(world.view(&BOB.repo("x")).is_none());
    let signed = state(BOB, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    assert!(
        world.push(&ALICE.repo("x"), &signed).unwrap(),
        "but it is his acceptance"
    );
}

#[test]
fn a_delisted_repository_loses_its_view() {
    let mut world = World::new();
    let held = announcement(ALICE, "x", 0, &[]);
    world.send(&held).unwrap();
    world.send(&elsewhere(ALICE, "x", 1, &[])).unwrap();
    assert!(!world.core.holds(&held.id));
    assert!(world.view(&ALICE.repo("x")).is_none());

    let served = announcement(BOB, "y", 0, &[]);
    world.send(&served).unwrap();
    world.send(&state(BOB, "y", 1, &[("main", 1)])).unwrap();
    world.fetch(&BOB.repo("y"), &[1]).unwrap();
    world.send(&elsewhere(BOB, "y", 2, &[])).unwrap();
    assert!(!world.serves(&served));
    assert!(world.view(&BOB.repo("y")).is_none());
}
