//! Holding of events, and their release.

use std::sync::Arc;

use grasp_core::admission::{Hold, Origin, Policy};
use grasp_core::resources::ClientNetwork;
use grasp_purgatory::{Bound, Config, HoldOutcome, Input, Stage};
use nostr::event::Event;

use crate::model_events::*;
use crate::model_world::World;

#[test]
fn a_new_repository_is_held_with_an_empty_view_until_a_push() {
    let mut world = World::new();
    let (repo, announced) = (ALICE.repo("x"), announcement(ALICE, "x", 0, &[]));
    let signed = state(ALICE, "x", 1, &[("main", 1)]);
    assert!(
        world
            .send(&announced)
            .unwrap()
            .message
            .starts_with("purgatory: ")
    );
    assert!(world.view(&repo).unwrap().is_empty());
    world.send(&signed).unwrap();
    assert!(!world.serves(&announced) && !world.serves(&signed));

    assert!(world.push(&repo, &signed).unwrap());
    assert!(world.serves(&announced) && world.serves(&signed));
    assert_eq!(world.published, [announced.id, signed.id]);
    assert!(!world.core.holds(&signed.id));
}

#[test]
fn fetched_data_releases_as_pushed_data_does() {
    let mut world = World::new();
    let signed = state(ALICE, "x", 1, &[("main", 1), ("dev", 2)]);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.sync(&signed).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(!world.serves(&signed), "half of the objects are missing");
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    assert!(world.serves(&signed));
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("dev")],
        oid(2)
    );
}

#[test]
fn a_state_whose_objects_are_here_is_applied_and_served_at_once() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let signed = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    assert!(world.serves(&signed));
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(1)
    );
    assert_eq!(world.decisions[&signed.id], HoldOutcome::Stored);
}

#[test]
fn senders_are_told_what_became_of_their_event() {
    let mut world = World::new();
    let older = state(ALICE, "x", 1, &[("main", 2)]);
    let newer = state(ALICE, "x", 2, &[("main", 1)]);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    // Nothing that happens decides before the newer one is stored.
    world.steps_left = Some(0);
    world.send(&older).unwrap();
    assert_eq!(world.decisions.get(&older.id), None);
    world.steps_left = None;
    world.send(&newer).unwrap();
    assert_eq!(world.decisions[&newer.id], HoldOutcome::Stored);
    assert_eq!(world.decisions[&older.id], HoldOutcome::Superseded);
    let waiting = state(ALICE, "x", 3, &[("main", 3)]);
    world.send(&waiting).unwrap();
    assert_eq!(world.decisions[&waiting.id], HoldOutcome::Held);
}

#[test]
fn callers_that_settle_are_told_what_became_of_their_events() {
    let mut world = World::new();
    let repo = ALICE.repo("x");
    let first = state(ALICE, "x", 1, &[("main", 1)]);
    let second = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.sync(&first).unwrap();
    world.fetch(&repo, &[1]).unwrap();
    world.sync(&second).unwrap();
    let unknown = state(BOB, "x", 3, &[("main", 1)]);
    let settle = Input::Settle {
        repo: repo.clone(),
        caller: 3,
        events: [first.id, second.id, unknown.id].into(),
    };
    world.handle(settle).unwrap();
    assert!(world.settled.is_empty(), "after the survey");
    world.run().unwrap();
    let outcomes = &world.settled[&3];
    assert_eq!(outcomes[&first.id], HoldOutcome::Stored);
    assert_eq!(outcomes[&second.id], HoldOutcome::Held);
    assert_eq!(outcomes[&unknown.id], HoldOutcome::Superseded);
}

#[test]
fn a_failed_pass_leaves_events_that_are_not_held_undecided() {
    let mut world = World::new();
    let repo = ALICE.repo("x");
    let first = state(ALICE, "x", 1, &[("main", 1)]);
    let second = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.sync(&first).unwrap();
    world.fetch(&repo, &[1]).unwrap();
    world.sync(&second).unwrap();
    world.failing = Some((Stage::Survey, 1));
    let settle = Input::Settle {
        repo: repo.clone(),
        caller: 4,
        events: [first.id, second.id].into(),
    };
    world.handle(settle).unwrap();
    world.run().unwrap();
    let expected = [(second.id, HoldOutcome::Held)];
    assert_eq!(world.settled[&4], expected.into());
}

#[test]
fn an_announcement_is_served_at_once_where_a_state_for_it_is_complete() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let accepted = announcement(BOB, "x", 2, &[ALICE]);
    world.send(&accepted).unwrap();
    assert!(world.serves(&accepted));
    assert_eq!(world.view(&BOB.repo("x")), world.view(&ALICE.repo("x")));
}

#[test]
fn an_older_state_is_released_when_its_data_comes_though_a_newer_one_waits() {
    let mut world = World::new();
    let older = state(ALICE, "x", 1, &[("main", 1)]);
    let newer = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&newer).unwrap();
    world.send(&older).unwrap();
    assert!(world.push(&ALICE.repo("x"), &older).unwrap());
    assert!(world.serves(&older) && world.core.holds(&newer.id));
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    assert!(world.serves(&newer) && !world.serves(&older));
}

#[test]
fn a_newer_state_that_waits_does_not_hide_the_served_one() {
    let mut world = World::new();
    let served = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&served).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    world.send(&state(ALICE, "x", 2, &[("main", 2)])).unwrap();
    assert!(world.serves(&served));
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(1)
    );
}

#[test]
fn held_states_older_than_a_served_one_of_their_author_are_dropped() {
    let mut world = World::new();
    let lost = state(ALICE, "x", 1, &[("main", 1)]);
    let newer = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&lost).unwrap();
    world.send(&newer).unwrap();
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    assert!(world.serves(&newer) && !world.core.holds(&lost.id));
    assert_eq!(world.core.counts().states, 0);
}

#[test]
fn a_state_with_a_malformed_object_id_is_held_without_a_hunt() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    let nonsense = ALICE.signs(
        30618,
        1,
        vec![
            vec!["d".to_owned(), "x".to_owned()],
            vec!["refs/heads/main".to_owned(), "abc123".to_owned()],
        ],
    );
    assert!(world.send(&nonsense).unwrap().is_accepted);
    assert!(world.core.holds(&nonsense.id));
    assert!(world.core.wants(&ALICE.repo("x"), &[]).is_empty());
}

#[test]
fn the_hunt_begins_later_for_events_of_clients_than_of_relays() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    assert!(
        world.hunts.is_empty(),
        "an announcement alone wants no objects"
    );
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.sync(&state(ALICE, "x", 2, &[("main", 2)])).unwrap();
    let user = world.config.user_delay;
    assert_eq!(
        world.hunts,
        [(ALICE.repo("x"), Some(user)), (ALICE.repo("x"), None)]
    );
}

#[test]
fn wants_name_the_missing_tips_and_the_clone_urls_of_maintainers() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&announcement(BOB, "x", 0, &[ALICE])).unwrap();
    world.send(&announcement(DAVE, "x", 0, &[])).unwrap();
    let signed = state(BOB, "x", 1, &[("main", 1), ("dev", 2)]);
    world.send(&signed).unwrap();
    let wants = |by: Author| {
        let repo = by.repo("x");
        world.core.wants(&repo, &world.announcements_of(&repo))
    };
    assert!(
        wants(ALICE).is_empty() && wants(DAVE).is_empty(),
        "his own repository hunts for it"
    );
    let wants = wants(BOB);
    let [want] = &wants[..] else {
        panic!("{wants:?}")
    };
    assert_eq!(
        (want.id, &want.tips[..]),
        (signed.id, &[oid(2), oid(1)][..])
    );
    let owners: Vec<_> = want.trusted.iter().map(|url| url.as_str()).collect();
    let mirror = |person: Author| {
        format!(
            "https://mirror.example/{}/x",
            grasp_core::service::npub(&person.key())
        )
    };
    assert_eq!(
        owners,
        [mirror(BOB), mirror(ALICE)],
        "the author's first, not Dave's, not ours"
    );
}

#[test]
fn only_the_newest_eight_states_of_an_author_are_held() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    let states: Vec<_> = (1..=9)
        .map(|n| state(ALICE, "x", n, &[("main", n as u8)]))
        .collect();
    for signed in &states[1..] {
        world.send(signed).unwrap();
    }
    let answer = world.send(&states[0]).unwrap();
    assert_eq!(
        answer.message,
        "replaced: have a newer version of this event"
    );
    assert!(!world.core.holds(&states[0].id));
    let tenth = state(ALICE, "x", 10, &[("main", 10)]);
    world.send(&tenth).unwrap();
    assert!(!world.core.holds(&states[1].id) && world.core.holds(&states[2].id));
    assert!(world.core.holds(&tenth.id));
}

/// Returns a model with a changed configuration.
fn bounded(set: impl Fn(&mut Config)) -> World {
    let mut config = Config::default();
    set(&mut config);
    World::with(config, Policy::new(US.parse().unwrap()))
}

const TWO_EVENTS: Bound = Bound {
    count: 2,
    bytes: u64::MAX,
};

#[test]
fn held_events_per_author_are_bounded() {
    let mut world = bounded(|config| config.per_author = TWO_EVENTS);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&announcement(ALICE, "y", 0, &[])).unwrap();
    let answer = world.send(&announcement(ALICE, "z", 0, &[])).unwrap();
    assert!(
        answer.message.starts_with("rate-limited: "),
        "{}",
        answer.message
    );
    assert!(world.view(&ALICE.repo("z")).is_none());
    assert!(
        world
            .send(&announcement(BOB, "z", 0, &[]))
            .unwrap()
            .is_accepted
    );
    assert!(
        world
            .send(&announcement(ALICE, "y", 1, &[]))
            .unwrap()
            .is_accepted,
        "in place of the old"
    );
}

#[test]
fn held_events_per_repository_are_bounded_and_those_of_other_owners_not_counted() {
    let mut world = bounded(|config| config.per_repo = TWO_EVENTS);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    assert!(
        !world
            .send(&state(ALICE, "x", 2, &[("main", 2)]))
            .unwrap()
            .is_accepted
    );
    for by in [BOB, CAROL, DAVE] {
        assert!(
            world
                .send(&announcement(by, "x", 0, &[]))
                .unwrap()
                .is_accepted
        );
        assert!(
            world
                .send(&state(by, "x", 1, &[("main", 1)]))
                .unwrap()
                .is_accepted
        );
    }
    assert!(
        world
            .send(&announcement(ALICE, "y", 0, &[]))
            .unwrap()
            .is_accepted
    );
}

#[test]
fn a_full_purgatory_still_holds_states_of_served_repositories() {
    let mut world = bounded(|config| {
        config.per_repo = TWO_EVENTS;
        config.total = Bound {
            count: 4,
            bytes: 1 << 20,
        };
    });
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    for (person, name) in [(BOB, "x"), (CAROL, "x"), (BOB, "y"), (CAROL, "z")] {
        assert!(
            world
                .send(&announcement(person, name, 0, &[]))
                .unwrap()
                .is_accepted
        );
    }
    assert!(
        !world
            .send(&state(BOB, "x", 2, &[("main", 2)]))
            .unwrap()
            .is_accepted
    );
    assert!(
        !world
            .send(&announcement(BOB, "w", 0, &[]))
            .unwrap()
            .is_accepted
    );
    assert!(
        world
            .send(&state(ALICE, "x", 3, &[("main", 3)]))
            .unwrap()
            .is_accepted
    );
    assert!(
        !world
            .send(&state(ALICE, "x", 4, &[("main", 4)]))
            .unwrap()
            .is_accepted,
        "bounded too"
    );
}

#[test]
fn held_events_are_bounded_in_total_and_a_release_makes_room() {
    let mut world = bounded(|config| config.total = TWO_EVENTS);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    let late = announcement(BOB, "y", 0, &[]);
    assert!(!world.send(&late).unwrap().is_accepted);
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(world.send(&late).unwrap().is_accepted);
}

#[test]
fn held_bytes_are_bounded() {
    let mut world = bounded(|config| {
        config.total = Bound {
            count: 100,
            bytes: 2_000,
        }
    });
    assert!(
        world
            .send(&announcement(ALICE, "x", 0, &[]))
            .unwrap()
            .is_accepted
    );
    let many: Vec<_> = (0..40).map(|_| BOB).collect();
    assert!(
        !world
            .send(&announcement(ALICE, "y", 0, &many))
            .unwrap()
            .is_accepted
    );
}

#[test]
fn the_core_itself_refuses_an_event_when_it_is_full() {
    let mut world = bounded(|config| config.total = Bound { count: 0, bytes: 0 });
    let event = announcement(ALICE, "x", 0, &[]);
    let held = Input::Held {
        event,
        hold: grasp_core::admission::Hold::Announcement,
        origin: grasp_core::admission::Origin::anonymous(),
    };
    world.handle(held).unwrap();
    assert_eq!(world.answer, Some(HoldOutcome::Full));
    assert!(world.disk.journal.is_empty());
}

#[test]
fn the_author_with_the_most_held_events_makes_room_for_others() {
    let mut world = bounded(|config| {
        config.total = Bound {
            count: 4,
            bytes: 1 << 20,
        }
    });
    for identifier in ["a", "b", "c"] {
        world
            .send(&announcement(ALICE, identifier, 0, &[]))
            .unwrap();
    }
    let waits = announcement(BOB, "d", 0, &[]);
    assert!(world.send(&waits).unwrap().is_accepted);
    assert!(
        !world
            .send(&announcement(ALICE, "e", 0, &[]))
            .unwrap()
            .is_accepted,
        "not for her own"
    );
    let newcomer = announcement(CAROL, "e", 0, &[]);
    assert!(world.send(&newcomer).unwrap().is_accepted);
    assert!(world.core.holds(&waits.id) && world.core.holds(&newcomer.id));
    assert_eq!(world.core.counts().announcements, 4);
    let views = ["a", "b", "c"].map(|name| world.view(&ALICE.repo(name)).is_some());
    assert_eq!(
        views.into_iter().filter(|there| *there).count(),
        2,
        "its view was removed"
    );
    // Authors with few events keep them, also after a restart.
    world.restart(std::time::Duration::ZERO);
    assert!(
        !world
            .send(&announcement(DAVE, "f", 0, &[]))
            .unwrap()
            .is_accepted
    );
    assert_eq!(world.core.counts().announcements, 4);
}

#[test]
fn one_network_leaves_room_in_purgatory_for_others() {
    let mut world = bounded(|config| {
        config.total = Bound {
            count: 40,
            bytes: 40 << 20,
        }
    });
    let at = |address: &str| Origin::Client {
        authenticated: Vec::new(),
        network: Some(ClientNetwork::of(address.parse().unwrap())),
    };
    let mut hold = |event: Arc<Event>, origin| {
        let input = Input::Held {
            event,
            hold: Hold::Announcement,
            origin,
        };
        world.handle(input).unwrap();
        world.run().unwrap();
        world.answer.take().unwrap()
    };
    let held = (0..100).filter(|n| {
        hold(
            announcement(Author::numbered(100 + n), &n.to_string(), 0, &[]),
            at("192.0.2.1"),
        ) == HoldOutcome::Held
    });
    assert_eq!(held.count(), 10, "a quarter");
    assert_eq!(
        hold(announcement(ALICE, "x", 0, &[]), at("198.51.100.1")),
        HoldOutcome::Held
    );
}
