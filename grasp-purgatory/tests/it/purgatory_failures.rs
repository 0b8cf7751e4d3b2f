//! What goes wrong on our side is tried again, and never half done.

use std::time::Duration;

use grasp_core::admission::{Hold, Origin};
use grasp_purgatory::{CleanupTask, Input, Output, Stage};
use nostr::event::Event;

use crate::model_drive::Task;
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
    for stage in [Stage::Survey, Stage::Release] {
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

/// Goes on until a release is about to happen.
fn run_to_release(world: &mut World) {
    for _ in 0..20 {
        if matches!(world.tasks.front(), Some(Task::Release(_))) {
            world.patience = None;
            return;
        }
        world.patience = Some(1);
        world.run().unwrap();
    }
    panic!("nothing is released");
}

#[test]
fn a_release_that_the_store_refuses_changes_nothing() {
    let (mut world, first) = waiting();
    world.fetch("x", &[1]).unwrap();
    assert!(world.serves(&first));
    let refused = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&refused).unwrap();
    world.patience = Some(0);
    world.fetch("x", &[2]).unwrap();
    run_to_release(&mut world);
    world.disk.delete(&deletion(ALICE, 3, &[&refused]));
    let before = (world.disk.git.clone(), world.published.clone());
    world.run().unwrap();
    assert!(!world.core.holds(&refused.id) && !world.serves(&refused));
    assert_eq!(world.disk.git.views, before.0.views);
    assert_eq!(world.published, before.1);
    assert!(world.serves(&first), "what it was to replace is served");
    world.check();
    world.check_journal();
}

#[test]
fn what_was_to_be_released_together_with_a_refused_event_is_released_without_it() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&announcement(BOB, "x", 0, &[ALICE])).unwrap();
    let (hers, his) = (state(ALICE, "x", 1, &[("main", 1)]), state(BOB, "x", 2, &[("main", 2)]));
    world.send(&hers).unwrap();
    world.send(&his).unwrap();
    world.patience = Some(0);
    world.fetch("x", &[1, 2]).unwrap();
    run_to_release(&mut world);
    world.disk.delete(&deletion(BOB, 3, &[&his]));
    let before = world.disk.git.views.clone();
    // The release itself, and nothing after it.
    world.patience = Some(1);
    world.run().unwrap();
    assert!(!world.serves(&hers) && !world.serves(&his), "all or nothing");
    assert_eq!(world.disk.git.views, before);
    world.patience = None;
    world.run().unwrap();
    assert!(world.serves(&hers) && !world.serves(&his) && !world.core.holds(&his.id));
    for person in [ALICE, BOB] {
        assert_eq!(world.view(&person.repo("x")).unwrap()[&branch("main")], oid(1));
    }
    world.check();
    world.check_journal();
}

#[test]
fn a_power_cut_before_or_after_a_release_shows_all_of_it_or_nothing() {
    // The power goes as it begins, or once it is done and before anybody hears of it.
    for (fuse, is_served) in [(0, false), (1, true)] {
        let (mut world, signed) = waiting();
        world.patience = Some(0);
        world.fetch("x", &[1]).unwrap();
        run_to_release(&mut world);
        world.fuse = Some(fuse);
        assert!(world.run().is_err());
        let shown = world.view(&ALICE.repo("x")).unwrap().get(&branch("main"));
        assert_eq!((world.serves(&signed), shown.is_some()), (is_served, is_served));
        assert_eq!(world.replayed().holds(&signed.id), !is_served);
        world.restart(Duration::ZERO);
        assert!(world.serves(&signed));
        world.check();
        world.check_journal();
    }
}

#[test]
fn an_expired_event_that_comes_again_while_it_is_released_is_not_held_for_ever() {
    let (mut world, _) = waiting();
    world.fetch("x", &[1]).unwrap();
    let signed = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&signed).unwrap();
    world.wait(world.config.hold_for).unwrap();
    world.patience = Some(0);
    world.fetch("x", &[2]).unwrap();
    run_to_release(&mut world);
    // Released on disk; before that is heard of, a copy comes that was judged earlier.
    world.patience = Some(1);
    world.run().unwrap();
    assert!(world.serves(&signed) && world.core.contains(&signed.id));
    let hold = Hold::State(vec![ALICE.repo("x")]);
    let origin = Origin::anonymous();
    world.turn(Input::Held { event: signed.clone(), hold, origin }).unwrap();
    world.patience = None;
    world.run().unwrap();
    assert!(!world.core.contains(&signed.id));
    world.check();
    world.check_journal();
    world.restart(Duration::ZERO);
    assert!(world.serves(&signed) && !world.core.contains(&signed.id));
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
        Input::Released { identifier: name("x"), refused: [].into() },
        Input::Released { identifier: name("x"), refused: [signed.id].into() },
        Input::ReleaseFailed { identifier: name("x") },
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
    world.turn(Input::Released { identifier: name("x"), refused: [signed.id].into() }).unwrap();
    world.run().unwrap();
    assert!(world.serves(&signed));
}
