//! Deletions and vanish requests.

use std::sync::Arc;

use grasp_purgatory::Input;
use nostr::types::Timestamp;

use crate::model_disk::{hosted, proposal_ref};
use crate::model_events::*;
use crate::model_world::World;

#[test]
fn a_held_state_that_its_author_deletes_by_id_allows_no_push() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    let signed = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    world.send(&deletion(ALICE, 2, &[&signed])).unwrap();
    assert!(!world.core.holds(&signed.id));
    assert!(!world.push(&ALICE.repo("x"), &signed).unwrap());
    assert!(!world.send(&signed).unwrap().is_accepted);
}

#[test]
fn a_deletion_stored_before_a_power_cut_takes_effect_after_the_restart() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    let signed = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    world.steps_until_power_cut = Some(1);
    assert!(
        world
            .send(&deletion(ALICE, 2, &[&signed, &announced]))
            .is_err()
    );
    assert!(world.core.holds(&signed.id));
    world.restart(std::time::Duration::ZERO);
    assert!(!world.core.holds(&signed.id) && !world.core.holds(&announced.id));
    assert!(world.view(&ALICE.repo("x")).is_none());
}

#[test]
fn held_states_at_a_deleted_coordinate_are_dropped_up_to_the_time_of_the_request() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    let (before, after) = (
        state(ALICE, "x", 1, &[("a", 1)]),
        state(ALICE, "x", 3, &[("a", 2)]),
    );
    world.send(&before).unwrap();
    world.send(&after).unwrap();
    world.send(&deletion_at(ALICE, 2, 30618, "x")).unwrap();
    assert!(!world.core.holds(&before.id) && world.core.holds(&after.id));
}

#[test]
fn a_deletion_does_not_affect_held_events_of_other_authors() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    world
        .handle(Input::Deleted {
            request: deletion(BOB, 1, &[&announced]),
        })
        .unwrap();
    assert!(world.core.holds(&announced.id));
}

#[test]
fn deleting_a_held_announcement_removes_its_view() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    world.send(&deletion(ALICE, 1, &[&announced])).unwrap();
    assert!(world.view(&ALICE.repo("x")).is_none());
}

#[test]
fn deleting_the_served_state_restores_the_previous_one() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    let (first, second) = (
        state(ALICE, "x", 1, &[("a", 1)]),
        state(ALICE, "x", 2, &[("a", 2)]),
    );
    for event in [&announced, &first] {
        world.send(event).unwrap();
    }
    world.fetch(&ALICE.repo("x"), &[1, 2]).unwrap();
    world.send(&second).unwrap();
    world.send(&deletion(ALICE, 3, &[&second])).unwrap();
    assert!(world.serves(&announced) && world.serves(&first));
    assert_eq!(world.view(&ALICE.repo("x")).unwrap()[&branch("a")], oid(1));
}

#[test]
fn deleting_the_only_state_makes_the_repository_held_again() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    let only = state(ALICE, "x", 1, &[("a", 1)]);
    world.send(&announced).unwrap();
    world.send(&only).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    world.send(&deletion(ALICE, 2, &[&only])).unwrap();
    assert!(!world.serves(&announced) && world.core.holds(&announced.id));
    assert!(world.view(&ALICE.repo("x")).unwrap().is_empty());
    world.send(&state(ALICE, "x", 3, &[("a", 1)])).unwrap();
    assert!(world.serves(&announced));
}

#[test]
fn deleting_a_state_without_refs_makes_the_repository_and_its_addresses_held_again() {
    let mut world = World::new();
    let announced = led(ALICE, "x", 0, ALICE, &[]);
    let address = led(BOB, "x", 1, ALICE, &[]);
    let empty = state(ALICE, "x", 2, &[]);
    for event in [&announced, &address, &empty] {
        world.send(event).unwrap();
    }
    assert!(world.serves(&announced) && world.serves(&address));
    world.send(&deletion(ALICE, 3, &[&empty])).unwrap();
    for event in [&announced, &address] {
        assert!(!world.serves(event) && world.core.holds(&event.id));
    }
    let view = world.disk.git.view(&hosted(&ALICE.repo("x"))).unwrap();
    assert_eq!(view.state, None);
    world.check();
}

#[test]
fn a_view_whose_state_is_gone_from_the_store_forgets_it_though_it_has_no_refs() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    let empty = state(ALICE, "x", 1, &[]);
    world.send(&announced).unwrap();
    world.send(&empty).unwrap();
    world.send(&deletion(ALICE, 2, &[&empty])).unwrap();
    // As a removal left it that looked at refs alone.
    let repo = world.disk.git.repo_mut(&hosted(&ALICE.repo("x")));
    repo.view.as_mut().unwrap().state = Some(empty.id);
    let repo = ALICE.repo("x");
    world.handle(Input::Changed { repo: repo.clone() }).unwrap();
    world.run().unwrap();
    assert_eq!(world.disk.git.view(&hosted(&repo)).unwrap().state, None);
}

#[test]
fn a_deleted_pull_request_is_not_released_by_its_tip() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.send(&request).unwrap();
    world.send(&deletion(DAVE, 3, &[&request])).unwrap();
    world.fetch(&ALICE.repo("x"), &[9]).unwrap();
    assert!(!world.serves(&request) && !world.core.holds(&request.id));
}

#[test]
fn a_served_pull_request_that_its_author_deletes_loses_its_refs() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let [gone, stays] = [9, 8].map(|tip| pull_request(DAVE, 2, &[ALICE.repo("x")], tip));
    for event in [&gone, &stays] {
        world.send(event).unwrap();
    }
    world.fetch(&ALICE.repo("x"), &[9, 8]).unwrap();
    assert!(world.serves(&gone) && world.serves(&stays));
    world.send(&deletion(DAVE, 3, &[&gone])).unwrap();
    let view = world.view(&ALICE.repo("x")).unwrap();
    assert!(!view.contains_key(&proposal_ref(&gone.id)));
    assert!(
        view.contains_key(&proposal_ref(&stays.id)),
        "what is served keeps its ref"
    );
}

#[test]
fn a_vanish_request_drops_held_events_up_to_its_time() {
    let mut world = World::new();
    let (gone, stays) = (
        announcement(ALICE, "x", 0, &[]),
        announcement(BOB, "x", 0, &[]),
    );
    let later = announcement(ALICE, "y", 9, &[]);
    for event in [&gone, &stays, &later] {
        world.send(event).unwrap();
    }
    let until = Timestamp::from_secs(START + 5);
    world
        .handle(Input::Vanished {
            author: ALICE.key(),
            until,
        })
        .unwrap();
    world.run().unwrap();
    assert!(!world.core.holds(&gone.id) && world.view(&ALICE.repo("x")).is_none());
    assert!(world.core.holds(&stays.id) && world.core.holds(&later.id));
}

/// Performs an action up to a release whose result is not handled yet.
fn stop_after_the_release(world: &mut World, action: impl FnOnce(&mut World)) {
    world.steps_left = Some(3);
    action(world);
    world.steps_left = None;
    assert!(!world.is_idle());
}

#[test]
fn a_pull_request_deleted_before_the_result_of_its_release_is_handled_leaves_no_ref() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.send(&request).unwrap();
    stop_after_the_release(&mut world, |world| {
        world.fetch(&ALICE.repo("x"), &[9]).unwrap()
    });
    let main_and_tip = 2;
    assert_eq!(world.view(&ALICE.repo("x")).unwrap().len(), main_and_tip);
    world.send(&deletion(DAVE, 3, &[&request])).unwrap();
    assert!(!world.serves(&request));
    assert_eq!(world.view(&ALICE.repo("x")).unwrap().len(), 1);
}

#[test]
fn a_repository_delisted_during_its_release_is_not_served() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    stop_after_the_release(&mut world, |world| {
        world.fetch(&ALICE.repo("x"), &[1]).unwrap()
    });
    world.send(&elsewhere(ALICE, "x", 2, &[])).unwrap();
    assert!(!world.serves(&announced));
    assert!(world.view(&ALICE.repo("x")).is_none());
}

#[test]
fn a_state_deleted_before_the_result_of_its_release_is_handled_is_not_served() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    let signed = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&announced).unwrap();
    world.send(&signed).unwrap();
    stop_after_the_release(&mut world, |world| {
        world.fetch(&ALICE.repo("x"), &[1]).unwrap()
    });
    assert!(!world.view(&ALICE.repo("x")).unwrap().is_empty());
    world.send(&deletion(ALICE, 2, &[&signed])).unwrap();
    assert!(!world.serves(&signed) && !world.serves(&announced));
    assert!(world.view(&ALICE.repo("x")).unwrap().is_empty());
}

/// Sets the policy, and has what follows from it done.
fn decide(world: &mut World, banned: &[Author]) {
    let mut policy = world.policy.clone();
    policy.bans.authors = banned.iter().map(|author| author.key()).collect();
    world.policy = policy.clone();
    world.handle(Input::Policy(Arc::new(policy))).unwrap();
}

/// Has a repository surveyed, with what follows from that.
fn change(world: &mut World, author: Author) {
    let repo = author.repo("x");
    world.handle(Input::Changed { repo }).unwrap();
    world.run().unwrap();
}

#[test]
fn a_withheld_repository_stays_as_it_is_without_its_events() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    let signed = state(ALICE, "x", 1, &[("a", 1)]);
    for event in [&announced, &signed] {
        world.send(event).unwrap();
    }
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let before = world.view(&ALICE.repo("x")).cloned();
    assert!(before.is_some() && world.disk.store.contains(&signed.id));
    decide(&mut world, &[ALICE]);
    for event in [&announced, &signed] {
        world.disk.store.hide(&event.id);
    }
    change(&mut world, ALICE);
    assert_eq!(world.view(&ALICE.repo("x")).cloned(), before);
    for event in [&signed, &announced] {
        world.disk.store.save(event);
    }
    decide(&mut world, &[]);
    change(&mut world, ALICE);
    assert_eq!(world.view(&ALICE.repo("x")).cloned(), before);
    assert!(world.disk.store.contains(&announced.id));
}

#[test]
fn a_state_that_is_held_is_not_released_once_its_author_is_banned() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[BOB]);
    world.send(&announced).unwrap();
    world.send(&announcement(BOB, "x", 0, &[ALICE])).unwrap();
    let (first, banned) = (
        state(ALICE, "x", 1, &[("a", 1)]),
        state(BOB, "x", 2, &[("a", 2)]),
    );
    world.send(&first).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    world.send(&banned).unwrap();
    decide(&mut world, &[BOB]);
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    assert!(!world.disk.store.contains(&banned.id));
    assert!(world.disk.store.contains(&first.id));
    decide(&mut world, &[]);
    change(&mut world, ALICE);
    change(&mut world, BOB);
    assert!(world.disk.store.contains(&banned.id));
}
