//! Failures of the server itself are retried, and leave nothing half done.

use std::collections::BTreeSet;
use std::time::Duration;

use grasp_core::RepoId;
use grasp_core::admission::{Hold, Origin};
use grasp_purgatory::{CleanupTask, Input, Output, Outputs, Stage};
use nostr::event::Event;

use crate::model_drive::Task;
use crate::model_events::*;
use crate::model_world::World;

/// Returns a model with a held announcement and its state, which lacks object 1.
fn waiting() -> (World, std::sync::Arc<Event>) {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    let signed = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&signed).unwrap();
    (world, signed)
}

#[test]
fn a_state_is_released_by_a_retry_after_a_failure_at_any_stage() {
    for stage in [Stage::Survey, Stage::Release] {
        let (mut world, signed) = waiting();
        world.failing = Some((stage, 2));
        world.fetch(&ALICE.repo("x"), &[1]).unwrap();
        assert!(world.serves(&signed), "{stage:?}");
        assert_eq!(
            world.now.mono.since_start(),
            world.config.retry_after * 2,
            "{stage:?}"
        );
    }
}

#[test]
fn a_pass_ends_although_changes_arrive_after_it_began() {
    let (mut world, _) = waiting();
    let x = ALICE.repo("x");
    let changed = || Input::Changed {
        repo: ALICE.repo("x"),
    };
    let surveyed = || Input::Surveyed {
        repo: ALICE.repo("x"),
        survey: Default::default(),
    };
    world.run().unwrap();
    let now = world.now;
    _ = world.core.handle(now, changed());
    let settle = Input::Settle {
        repo: ALICE.repo("x"),
        caller: 7,
        events: BTreeSet::new(),
    };
    let second = world.core.handle(now, settle);
    assert!(
        !asks_for_survey(&second, &x),
        "the second change waits for the pass that runs"
    );
    let mut passes = 0;
    let mut is_settled = false;
    while !is_settled {
        _ = world.core.handle(now, changed());
        let next = world.core.handle(now, surveyed());
        assert!(asks_for_survey(&next, &x), "another follows at once");
        let mut effects = next.effects.iter();
        is_settled = effects.any(|output| matches!(output, Output::Settled { caller: 7, .. }));
        passes += 1;
        assert!(passes < 10, "it never ends");
    }
    assert_eq!(
        passes, 2,
        "the one that ran, and the one that saw the change"
    );
}

/// Returns whether outputs include a survey of a repository.
fn asks_for_survey(outputs: &Outputs, repo: &RepoId) -> bool {
    let mut effects = outputs.effects.iter();
    effects.any(|output| matches!(output, Output::Survey { repo: one } if one == repo))
}

/// Performs steps until a release is the next task.
fn run_to_release(world: &mut World) {
    for _ in 0..20 {
        if matches!(world.tasks.front(), Some(Task::Release(_))) {
            world.steps_left = None;
            return;
        }
        world.steps_left = Some(1);
        world.run().unwrap();
    }
    panic!("no release follows");
}

#[test]
fn a_release_that_the_store_refuses_changes_nothing() {
    let (mut world, first) = waiting();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(world.serves(&first));
    let refused = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&refused).unwrap();
    world.steps_left = Some(0);
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    run_to_release(&mut world);
    world.disk.delete(&deletion(ALICE, 3, &[&refused]));
    let before = (world.disk.git.views(), world.published.clone());
    world.run().unwrap();
    assert!(!world.core.holds(&refused.id) && !world.serves(&refused));
    assert_eq!(world.disk.git.views(), before.0);
    assert_eq!(world.published, before.1);
    assert!(world.serves(&first), "what it was to replace is served");
    world.check();
    world.check_journal();
}

#[test]
fn a_release_with_a_refused_event_is_repeated_without_it() {
    let mut world = World::new();
    world.send(&announcement(ALICE, "x", 0, &[BOB])).unwrap();
    world.send(&elsewhere(BOB, "x", 0, &[ALICE])).unwrap();
    let (hers, his) = (
        state(ALICE, "x", 1, &[("main", 1)]),
        state(BOB, "x", 2, &[("main", 2)]),
    );
    world.send(&hers).unwrap();
    world.send(&his).unwrap();
    world.steps_left = Some(0);
    world.fetch(&ALICE.repo("x"), &[1, 2]).unwrap();
    run_to_release(&mut world);
    world.disk.delete(&deletion(BOB, 3, &[&his]));
    let before = world.disk.git.views();
    // The release itself, and nothing after it.
    world.steps_left = Some(1);
    world.run().unwrap();
    assert!(
        !world.serves(&hers) && !world.serves(&his),
        "all or nothing"
    );
    assert_eq!(world.disk.git.views(), before);
    world.steps_left = None;
    world.run().unwrap();
    assert!(world.serves(&hers) && !world.serves(&his) && !world.core.holds(&his.id));
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap()[&branch("main")],
        oid(1)
    );
    world.check();
    world.check_journal();
}

#[test]
fn a_power_cut_before_or_after_a_release_shows_all_of_it_or_nothing() {
    // The power is cut as the release begins, before its transaction, or after it and before its result is handled.
    for (steps_until_power_cut, is_served) in [(0, false), (1, false), (2, true)] {
        let (mut world, signed) = waiting();
        world.steps_left = Some(0);
        world.fetch(&ALICE.repo("x"), &[1]).unwrap();
        run_to_release(&mut world);
        world.steps_until_power_cut = Some(steps_until_power_cut);
        assert!(world.run().is_err());
        let shown = world.view(&ALICE.repo("x")).unwrap().get(&branch("main"));
        assert_eq!(
            (world.serves(&signed), shown.is_some()),
            (is_served, is_served)
        );
        assert_eq!(world.replayed().holds(&signed.id), !is_served);
        world.restart(Duration::ZERO);
        assert!(world.serves(&signed));
        world.check();
        world.check_journal();
    }
}

#[test]
fn an_expired_event_received_again_during_its_release_is_not_held_forever() {
    let (mut world, _) = waiting();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let signed = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&signed).unwrap();
    world.wait(world.config.hold_for).unwrap();
    world.steps_left = Some(0);
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    run_to_release(&mut world);
    // Released on disk; before that result is handled, a copy arrives that was judged earlier.
    world.steps_left = Some(1);
    world.run().unwrap();
    assert!(world.serves(&signed) && world.core.contains(&signed.id));
    let hold = Hold::State(vec![ALICE.repo("x")]);
    let origin = Origin::anonymous();
    world
        .handle(Input::Held {
            event: signed.clone(),
            hold,
            origin,
        })
        .unwrap();
    world.steps_left = None;
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
    world.handle(Input::Started).unwrap();
    world.steps_left = Some(0);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.steps_left = None;
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
    world.steps_until_power_cut = Some(1);
    assert!(
        world.wait(Duration::from_secs(1_800)).is_err(),
        "recorded, and not performed"
    );
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
    let remove = CleanupTask::RemoveView {
        repo: ALICE.repo("x"),
        is_immediate: false,
    };
    world.failing_tasks = 1;
    world.steps_left = Some(0);
    world.send(&deletion(ALICE, 1, &[&announced])).unwrap();
    world.send(&announcement(ALICE, "x", 2, &[])).unwrap();
    world.steps_left = None;
    world.tasks_run.clear();
    world.run().unwrap();
    world.wait(Duration::from_secs(60)).unwrap();
    assert!(!world.tasks_run.contains(&remove));
    assert!(world.view(&ALICE.repo("x")).is_some());
}

#[test]
fn an_upload_is_not_removed_by_a_cleanup_task_for_an_earlier_one() {
    let (mut world, _) = waiting();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let request = pull_request(DAVE, 2, &[ALICE.repo("x")], 9);
    world.push_tip(&ALICE.repo("x"), request.id, 7).unwrap();
    world.failing_tasks = 1;
    world.now = world.now.after(world.config.stage_for);
    world.handle(Input::Tick).unwrap();
    world.push_tip(&ALICE.repo("x"), request.id, 9).unwrap();
    world.wait(Duration::from_secs(60)).unwrap();
    world.send(&request).unwrap();
    assert!(world.serves(&request));
}

#[test]
fn one_input_causes_at_most_one_survey() {
    let (mut world, first) = waiting();
    let second = state(ALICE, "x", 2, &[("main", 2)]);
    world.send(&second).unwrap();
    let request = deletion(ALICE, 3, &[&first, &second]);
    let outputs = world.core.handle(world.now, Input::Deleted { request });
    let surveys = outputs
        .effects
        .iter()
        .filter(|output| matches!(output, Output::Survey { .. }));
    assert_eq!(surveys.count(), 1);
    let repo = ALICE.repo("x");
    let survey = Box::new(world.survey(&repo));
    let outputs = world
        .core
        .handle(world.now, Input::Surveyed { repo, survey });
    assert!(
        outputs.records.is_empty() && outputs.effects.is_empty(),
        "{outputs:?}"
    );
}

#[test]
fn an_unexpected_result_changes_nothing() {
    let (mut world, signed) = waiting();
    for input in [
        Input::Released {
            repo: ALICE.repo("x"),
            refused: [].into(),
        },
        Input::Released {
            repo: ALICE.repo("x"),
            refused: [signed.id].into(),
        },
        Input::ReleaseFailed {
            repo: ALICE.repo("x"),
        },
        Input::FetchEnded {
            repo: ALICE.repo("unknown"),
        },
        Input::TaskDone(CleanupTask::CreateView {
            repo: BOB.repo("x"),
        }),
    ] {
        world.handle(input).unwrap();
    }
    world.run().unwrap();
    assert!(world.core.holds(&signed.id) && !world.serves(&signed));
    // It does not end a task that is running either.
    world.steps_left = Some(2);
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    world.steps_left = None;
    world
        .handle(Input::Released {
            repo: ALICE.repo("x"),
            refused: [signed.id].into(),
        })
        .unwrap();
    world.run().unwrap();
    assert!(world.serves(&signed));
}
