//! What goes wrong on our side is tried again, and never half done.

use std::time::Duration;

use grasp_purgatory::{CleanupTask, Input, Output, Stage};
use nostr::event::Event;

use crate::model_events::*;
use crate::model_world::World;

/// A state that waits for object 1, and its announcement.
fn waiting() -> (World, std::sync::Arc<Event>) {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    let signed = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    (world, signed)
}

#[test]
fn whatever_stage_fails_the_state_stays_and_is_released_by_the_next_try() {
    for stage in [Stage::Survey, Stage::Apply, Stage::Store] {
        let (mut world, signed) = waiting();
        world.failing = Some((stage, 2));
        world.fetch("x", &[1]).unwrap();
        assert!(world.serves(&signed), "{stage:?}");
        assert_eq!(world.now.mono.since_start(), world.config.retry_after * 2, "{stage:?}");
    }
}

#[test]
fn a_pass_that_is_waited_for_ends_however_much_changes_after_it_began() {
    let (mut world, _) = waiting();
    let x = name("x");
    let changed = || Input::Changed { identifier: name("x") };
    let surveyed = || Input::Surveyed { identifier: name("x"), survey: Default::default() };
    world.run().unwrap();
    let now = world.now;
    _ = world.core.handle(now, changed());
    let second = world.core.handle(now, changed());
    assert!(!asks_for_survey(&second, &x), "the second change waits for the pass that runs");
    let pass = world.core.pending_pass(&x).unwrap();
    let mut passes = 0;
    while !world.core.pass_ended(&x, pass) {
        _ = world.core.handle(now, changed());
        let next = world.core.handle(now, surveyed());
        assert!(asks_for_survey(&next, &x), "another follows at once");
        passes += 1;
        assert!(passes < 10, "it never ends");
    }
    assert_eq!(passes, 2, "the one that ran, and the one that saw the change");
    assert!(world.core.pending_pass(&x).is_some_and(|next| !world.core.pass_ended(&x, next)));
}

/// Whether a turn asks for a survey.
fn asks_for_survey(turn: &[Output], identifier: &grasp_core::Identifier) -> bool {
    let asks =
        |output: &Output| matches!(output, Output::Survey { identifier: i } if i == identifier);
    turn.iter().any(asks)
}

#[test]
fn refs_follow_when_the_store_refuses_a_state_after_all() {
    let (mut world, _) = waiting();
    world.fetch("x", &[1]).unwrap();
    let refused = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&refused).unwrap();
    world.patience = Some(4);
    world.fetch("x", &[2]).unwrap();
    world.patience = None;
    assert_eq!(world.view(&ALICE.repo("x")).unwrap()[&branch("main")], oid(2));
    world.tasks.clear();
    world.turn(Input::Stored { identifier: name("x"), stored: [].into() }).unwrap();
    assert!(!world.core.holds(&refused.id));
    world.run().unwrap();
    assert_eq!(world.view(&ALICE.repo("x")).unwrap()[&branch("main")], oid(1));
}

#[test]
fn a_failed_cleanup_task_is_done_later() {
    let mut world = World::new();
    world.failing_tasks = 1;
    world.turn(Input::Started).unwrap();
    world.patience = Some(0);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.patience = None;
    assert!(world.view(&ALICE.repo("x")).is_none());
    assert_eq!(world.core.counts().pending_tasks, 1);
    world.run().unwrap();
    assert!(world.view(&ALICE.repo("x")).is_some());
    assert_eq!(world.core.counts().pending_tasks, 0);
}

#[test]
fn a_cleanup_task_that_was_pending_at_a_crash_is_done_after_it() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.fuse = Some(1);
    assert!(world.wait(Duration::from_secs(1_800)).is_err(), "written down, not done");
    assert!(world.view(&ALICE.repo("x")).is_some());
    world.restart(Duration::ZERO);
    assert!(world.view(&ALICE.repo("x")).is_none());
}

#[test]
fn a_cleanup_task_without_effect_does_not_undo_what_came_after_it() {
    let mut world = World::new();
    let announced = announcement(ALICE, "x", 0, &[]);
    world.send(&announced).unwrap();
    // The view could not be removed; then the owner comes back.
    let remove = CleanupTask::RemoveView { repo: ALICE.repo("x"), at_once: false };
    world.failing_tasks = 1;
    world.patience = Some(0);
    world.send(&deletion(ALICE, 1, &[&announced])).unwrap();
    world.send(&announcement(ALICE, "x", 2, &[])).unwrap();
    world.patience = None;
    world.tasks_run.clear();
    world.run().unwrap();
    world.wait(Duration::from_secs(60)).unwrap();
    assert!(!world.tasks_run.contains(&remove));
    assert!(world.view(&ALICE.repo("x")).is_some());
}

#[test]
fn an_upload_is_not_removed_by_a_cleanup_task_for_an_earlier_one() {
    let (mut world, _) = waiting();
    world.fetch("x", &[1]).unwrap();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.push_tip(&ALICE.repo("x"), request.id, 7).unwrap();
    world.failing_tasks = 1;
    world.now = world.now.after(world.config.stage_for);
    world.turn(Input::Tick).unwrap();
    world.push_tip(&ALICE.repo("x"), request.id, 9).unwrap();
    world.wait(Duration::from_secs(60)).unwrap();
    world.send(&request).unwrap();
    assert!(world.serves(&request));
}

#[test]
fn one_turn_asks_for_one_survey() {
    let (mut world, first) = waiting();
    let second = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&second).unwrap();
    let request = deletion(ALICE, 3, &[&first, &second]);
    let outputs = world.core.handle(world.now, Input::Deleted { request });
    let surveys = outputs.iter().filter(|output| matches!(output, Output::Survey { .. }));
    assert_eq!(surveys.count(), 1);
    let survey = world.survey(&name("x"));
    let outputs = world.core.handle(world.now, Input::Surveyed { identifier: name("x"), survey });
    assert!(outputs.is_empty(), "{outputs:?}");
}

#[test]
fn a_late_answer_that_nobody_waits_for_changes_nothing() {
    let (mut world, signed) = waiting();
    for input in [
        Input::Applied { identifier: name("x") },
        Input::Stored { identifier: name("x"), stored: [signed.id].into() },
        Input::StoreFailed { identifier: name("x") },
        Input::FetchEnded { identifier: name("nobody's") },
        Input::TaskDone(CleanupTask::CreateView { repo: BOB.repo("x") }),
    ] {
        world.turn(input).unwrap();
    }
    world.run().unwrap();
    assert!(world.core.holds(&signed.id) && !world.serves(&signed));
    // Nor does it end a step that is under way.
    world.patience = Some(2);
    world.fetch("x", &[1]).unwrap();
    world.patience = None;
    world.turn(Input::Stored { identifier: name("x"), stored: [].into() }).unwrap();
    world.run().unwrap();
    assert!(world.serves(&signed));
}
