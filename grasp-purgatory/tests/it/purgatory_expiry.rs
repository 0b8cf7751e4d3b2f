//! Expiry: every hold ends, and no event expires whose data is here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::admission::Policy;
use grasp_core::kinds::ANNOUNCEMENT;
use grasp_core::limits::PeerText;
use grasp_core::{Mono, Now};
use grasp_purgatory::hunt::{FetchError, HuntReport};
use grasp_purgatory::{Bound, Config, Input, Output, Phase, Purgatory, Record};
use nostr::event::{Event, EventId, Signature, Tag};
use nostr::types::Timestamp;

use crate::model_events::*;
use crate::model_world::World;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

fn wait(world: &mut World, length: Duration) {
    world.wait(length).unwrap();
}

/// Returns a model with a served repository, so that states are held without an announcement.
fn served() -> World {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    world
}

#[test]
fn a_state_expires_after_thirty_minutes_and_not_before() {
    let mut world = served();
    let waiting = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&waiting).unwrap();
    let (now, end) = (
        world.now.unix,
        world.core.expires(&ALICE.repo("x")).unwrap(),
    );
    assert_eq!(end, now + MINUTE * 30);
    assert_eq!(
        (world.core.expiring(end - SECOND), world.core.expiring(end)),
        (0, 1)
    );
    wait(&mut world, MINUTE * 30 - SECOND);
    assert!(world.core.holds(&waiting.id));
    wait(&mut world, SECOND);
    assert!(!world.core.holds(&waiting.id));
}

#[test]
fn the_expiry_of_many_events_at_once_takes_linear_time() {
    const HELD_EVENTS: u32 = 20_000;
    let now = Now::new(Mono::ZERO, Timestamp::from_secs(START));
    let held = (0..HELD_EVENTS).map(|n| {
        let id = EventId::from_byte_array(std::array::from_fn(|at| n.to_be_bytes()[at % 4]));
        let tags = [Tag::identifier(n.to_string())];
        let signature = Signature::from_slice(&[0; 64]).unwrap();
        let event = Event::new(id, ALICE.key(), now.unix, ANNOUNCEMENT, tags, "", signature);
        Record::Held {
            event: Arc::new(event),
            phase: Phase::Waiting,
            since: now.unix,
            until: now.unix,
        }
    });
    let mut core = Purgatory::restore(
        Config::default(),
        Policy::new(US.parse().unwrap()),
        held,
        now,
    );
    let started = Instant::now();
    let outputs = core.handle(now, Input::Tick);
    let tasks = outputs
        .effects
        .iter()
        .filter(|output| matches!(output, Output::RunTask(_)))
        .count();
    assert_eq!(
        (tasks, core.counts().pending_tasks),
        (HELD_EVENTS as usize, HELD_EVENTS as usize)
    );
    // It takes a fraction of a second, and many times as long if each is compared with all others.
    assert!(started.elapsed() < SECOND * 5, "{:?}", started.elapsed());
}

#[test]
fn data_that_comes_after_the_expiry_still_releases() {
    let mut world = served();
    let waiting = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&waiting).unwrap();
    wait(&mut world, HOUR * 5);
    assert_eq!(world.core.wanting(Phase::Expired), [ALICE.repo("x")].into());
    assert!(world.core.wanting(Phase::Waiting).is_empty());
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    assert!(world.serves(&waiting));
}

#[test]
fn an_expired_state_waits_anew_for_a_user_and_not_for_another_relay() {
    let mut world = served();
    let waiting = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&waiting).unwrap();
    wait(&mut world, HOUR);
    world.hunts.clear();
    assert!(world.sync(&waiting).unwrap().is_accepted);
    assert!(!world.core.holds(&waiting.id) && world.hunts.is_empty());
    world.send(&waiting).unwrap();
    assert!(world.core.holds(&waiting.id) && world.hunts.len() == 1);
    wait(&mut world, MINUTE * 29);
    assert!(world.core.holds(&waiting.id));
}

#[test]
fn a_fetch_that_is_running_extends_the_time() {
    let mut world = served();
    let waiting = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&waiting).unwrap();
    world
        .handle(Input::FetchStarted {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    wait(&mut world, HOUR * 2);
    assert!(world.core.holds(&waiting.id));
    world
        .handle(Input::FetchEnded {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    assert!(
        world.core.holds(&waiting.id),
        "the fetched objects are checked first"
    );
    world.run().unwrap();
    wait(&mut world, SECOND);
    assert!(!world.core.holds(&waiting.id));
}

#[test]
fn an_authorised_push_gives_its_state_and_its_repository_the_full_time() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    let (pushed, other) = (
        state(ALICE, "x", 1, &[("main", 1)]),
        state(ALICE, "x", 2, &[("a", 2)]),
    );
    for event in [&announced, &pushed, &other] {
        world.send(event).unwrap();
    }
    wait(&mut world, MINUTE * 20);
    let events = [pushed.id].into();
    world
        .handle(Input::PushAuthorised {
            repo: ALICE.repo("x"),
            events,
        })
        .unwrap();
    wait(&mut world, MINUTE * 20);
    assert!(world.core.holds(&announced.id) && world.core.holds(&pushed.id));
    assert!(world.view(&ALICE.repo("x")).is_some());
    assert!(!world.core.holds(&other.id));
}

#[test]
fn an_announcement_loses_its_view_first_and_is_forgotten_a_day_later() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    wait(&mut world, MINUTE * 30);
    assert!(world.view(&ALICE.repo("x")).is_none());
    assert!(
        world.core.holds(&announced.id),
        "not fetched anew each time it is offered"
    );
    wait(&mut world, HOUR * 24 - SECOND);
    assert!(world.core.holds(&announced.id));
    wait(&mut world, SECOND);
    assert!(!world.core.holds(&announced.id));
}

#[test]
fn a_new_state_revives_an_expired_announcement_with_its_view_and_full_time() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    wait(&mut world, HOUR * 20);
    let signed = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    assert!(world.view(&ALICE.repo("x")).unwrap().is_empty());
    wait(&mut world, MINUTE * 29);
    assert!(world.push(&ALICE.repo("x"), &signed).unwrap());
    assert!(world.serves(&announced));
}

#[test]
fn an_authorised_state_and_a_replacement_each_restart_the_announcements_time() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    wait(&mut world, MINUTE * 29);
    world.send(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    wait(&mut world, MINUTE * 29);
    assert!(world.view(&ALICE.repo("x")).is_some());
    world.send(&announcement(ALICE, "x", 2, &[])).unwrap();
    wait(&mut world, MINUTE * 29);
    assert!(world.view(&ALICE.repo("x")).is_some());
    wait(&mut world, MINUTE);
    assert!(world.view(&ALICE.repo("x")).is_none());
}

#[test]
fn data_found_for_an_expired_state_brings_back_its_expired_repository() {
    let mut world = World::new();
    let (announced, signed) = (
        announcement(ALICE, "x", 0, &[]),
        state(ALICE, "x", 1, &[("main", 1)]),
    );
    world.send(&announced).unwrap();
    world.send(&signed).unwrap();
    wait(&mut world, HOUR * 2);
    assert!(world.view(&ALICE.repo("x")).is_none());
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(world.serves(&announced) && world.serves(&signed));
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(1)
    );
}

#[test]
fn expiry_spares_a_repository_that_is_served_by_then() {
    let mut world = served();
    wait(&mut world, HOUR * 48);
    assert!(!world.view(&ALICE.repo("x")).unwrap().is_empty());
}

#[test]
fn the_number_of_expired_events_is_bounded_and_the_oldest_are_forgotten() {
    let config = Config {
        expired: Bound {
            count: 2,
            bytes: u64::MAX,
        },
        ..Config::default()
    };
    let mut world = World::with(config, Policy::new(US.parse().unwrap()));
    for name in ["a", "b", "c"] {
        world.send(&announcement(ALICE, name, 0, &[])).unwrap();
        wait(&mut world, MINUTE);
    }
    wait(&mut world, HOUR);
    assert_eq!(world.core.counts().expired, 2);
    assert!(world.core.announcement(&ALICE.repo("a")).is_none());
    assert!(world.view(&ALICE.repo("a")).is_none());
}

#[test]
fn time_passes_while_the_process_is_down() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    wait(&mut world, MINUTE * 10);
    world.restart(MINUTE * 10);
    assert!(world.view(&ALICE.repo("x")).is_some());
    wait(&mut world, MINUTE * 10);
    assert!(world.view(&ALICE.repo("x")).is_none());
    world.restart(HOUR * 24);
    wait(&mut world, SECOND);
    assert!(!world.core.holds(&announced.id));
}

#[test]
fn a_state_that_was_complete_before_a_power_cut_is_released_after_it() {
    let mut world = served();
    let waiting = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&waiting).unwrap();
    world.steps_until_power_cut = Some(1);
    assert!(world.fetch(&ALICE.repo("x"), &[2]).is_err());
    world.restart(HOUR);
    assert!(world.serves(&waiting));
}

#[test]
fn an_idle_purgatory_has_no_deadline() {
    let mut world = served();
    assert_eq!(world.core.next_deadline(), None);
    world.send(&state(ALICE, "x", 2, &[("main", 2)])).unwrap();
    assert_eq!(
        world.core.next_deadline(),
        Some(world.now.mono + MINUTE * 30)
    );
}

/// Returns a model with a repository and its state from another relay, whose hunt is queued.
fn with_queued_hunt() -> (World, Arc<Event>) {
    let mut world = World::new();
    world.sync(&announcement(ALICE, "x", 0, &[])).unwrap();
    let waiting = state(ALICE, "x", 1, &[("main", 1)]);
    world.sync(&waiting).unwrap();
    world
        .handle(Input::HuntWaiting {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    (world, waiting)
}

#[test]
fn nothing_expires_while_a_listed_server_has_not_been_asked() {
    let (mut world, waiting) = with_queued_hunt();
    world.wait(5 * HOUR).unwrap();
    assert!(world.core.holds(&waiting.id) && world.core.counts().states == 1);
    assert_eq!(
        world.replayed().counts(),
        world.core.counts(),
        "also after a restart"
    );
    world.wait(HOUR + MINUTE).unwrap();
    assert_eq!(world.core.counts().states, 0, "six hours are the longest");
}

#[test]
fn the_hold_time_begins_with_the_first_answer_and_lasts_until_all_were_asked() {
    let (mut world, _) = with_queued_hunt();
    world.wait(HOUR).unwrap();
    world
        .handle(Input::HuntAnswered {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(10 * MINUTE).unwrap();
    world
        .handle(Input::HuntEnded {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(19 * MINUTE).unwrap();
    assert_eq!(world.core.counts().states, 1);
    world.wait(2 * MINUTE).unwrap();
    assert_eq!(world.core.counts().states, 0);

    // If the first answer was long ago, the last one ends it at once.
    let (mut world, _) = with_queued_hunt();
    world
        .handle(Input::HuntAnswered {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(HOUR).unwrap();
    assert_eq!(world.core.counts().states, 1);
    world
        .handle(Input::HuntEnded {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(MINUTE).unwrap();
    assert_eq!(world.core.counts().states, 0);
}

/// Reports to purgatory that a git server gave less than it was asked for.
fn report_failure(world: &mut World, error: FetchError) {
    let (repo, url) = (
        ALICE.repo("x"),
        "https://git.example.com/x.git".parse().unwrap(),
    );
    if let Some(input) = (HuntReport::Failed { repo, url, error }).for_purgatory() {
        world.handle(input).unwrap();
    }
}

#[test]
fn a_server_that_does_not_answer_does_not_begin_the_hold_time() {
    let silent = [
        FetchError::Unreachable(PeerText::new("connection refused")),
        FetchError::RateLimited { retry_after: None },
        FetchError::Stalled,
        FetchError::Cancelled,
        FetchError::Internal(String::from("no process")),
    ];
    for error in silent {
        let (mut world, _) = with_queued_hunt();
        report_failure(&mut world, error.clone());
        world.wait(HOUR).unwrap();
        // The only server that lives was queued until now.
        world
            .handle(Input::HuntEnded {
                repo: ALICE.repo("x"),
            })
            .unwrap();
        world.wait(29 * MINUTE).unwrap();
        assert_eq!(world.core.counts().states, 1, "{error}");
        world.wait(2 * MINUTE).unwrap();
        assert_eq!(world.core.counts().states, 0, "{error}");
    }
    let (mut world, _) = with_queued_hunt();
    report_failure(&mut world, FetchError::Answered(PeerText::new("not found")));
    world.wait(HOUR).unwrap();
    world
        .handle(Input::HuntEnded {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(MINUTE).unwrap();
    assert_eq!(world.core.counts().states, 0, "it has answered");
}

#[test]
fn a_hunt_that_was_never_queued_changes_no_expiry() {
    let mut world = World::new();
    world.sync(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.sync(&state(ALICE, "x", 1, &[("main", 1)])).unwrap();
    for minutes in [10, 10, 9] {
        world.wait(minutes * MINUTE).unwrap();
        world
            .handle(Input::HuntAnswered {
                repo: ALICE.repo("x"),
            })
            .unwrap();
        world
            .handle(Input::HuntEnded {
                repo: ALICE.repo("x"),
            })
            .unwrap();
    }
    assert_eq!(world.core.counts().states, 1);
    world.wait(2 * MINUTE).unwrap();
    assert_eq!(world.core.counts().states, 0);
}

#[test]
fn events_received_or_pushed_after_the_first_answer_have_their_own_hold_time() {
    let (mut world, _) = with_queued_hunt();
    world
        .handle(Input::HuntAnswered {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(2 * HOUR).unwrap();
    let late = state(ALICE, "x", 2, &[("main", 2)]);
    world.sync(&late).unwrap();
    world
        .handle(Input::HuntWaiting {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world
        .handle(Input::HuntEnded {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(29 * MINUTE).unwrap();
    assert!(world.core.holds(&late.id));

    let (mut world, pushed) = with_queued_hunt();
    world
        .handle(Input::HuntAnswered {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(2 * HOUR).unwrap();
    let events = std::collections::BTreeSet::from([pushed.id]);
    world
        .handle(Input::PushAuthorised {
            repo: ALICE.repo("x"),
            events,
        })
        .unwrap();
    world
        .handle(Input::HuntEnded {
            repo: ALICE.repo("x"),
        })
        .unwrap();
    world.wait(29 * MINUTE).unwrap();
    assert!(world.core.holds(&pushed.id));
}

#[test]
fn the_refs_of_a_state_end_with_its_own_expiration() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    let tags = [
        ["d", "x"],
        ["refs/heads/main", &oid(1).to_string()],
        ["expiration", "1800000100"],
    ];
    let tags = tags.map(|tag| tag.map(str::to_owned).to_vec()).to_vec();
    let ends = ALICE.signs(30618, 1, tags);
    world.send(&ends).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(world.serves(&ends));
    world.wait(Duration::from_secs(99)).unwrap();
    assert_eq!(world.view(&ALICE.repo("x")).unwrap().len(), 1);
    // The store removes it with its refs, without telling purgatory.
    world.disk.remove(&ends.id);
    world.is_settled = false;
    assert!(world.view(&ALICE.repo("x")).unwrap().is_empty() && world.serves(&announced));
    world.wait(Duration::from_secs(1)).unwrap();
    assert!(!world.serves(&announced) && world.core.holds(&announced.id));
    assert!(world.view(&ALICE.repo("x")).unwrap().is_empty());
}
