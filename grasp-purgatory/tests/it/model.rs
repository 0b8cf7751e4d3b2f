//! Random histories with power cuts and failures at any step.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use grasp_core::RepoId;
use grasp_core::admission::Policy;
use grasp_purgatory::{Config, Purgatory, Stage};
use nostr::event::Event;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use crate::model_events::*;
use crate::model_world::{StepResult, World};

const MINUTE: Duration = Duration::from_secs(60);

/// All events of the histories.
static EVENTS: LazyLock<Vec<Arc<Event>>> = LazyLock::new(|| {
    let mut events = vec![
        announcement(ALICE, "x", 0, &[]),
        announcement(ALICE, "x", 1, &[BOB]),
        announcement(ALICE, "x", 9, &[CAROL]),
        announcement(BOB, "x", 0, &[ALICE]),
        announcement(BOB, "x", 2, &[ALICE, CAROL]),
        elsewhere(CAROL, "x", 0, &[BOB]),
        announcement(CAROL, "x", 1, &[BOB]),
        announcement(ALICE, "y", 0, &[]),
        state(ALICE, "x", 3, &[("main", 1)]),
        state(ALICE, "x", 5, &[("main", 2), ("dev", 1)]),
        state(ALICE, "x", 8, &[("main", 3)]),
        state(BOB, "x", 4, &[("main", 4)]),
        state(BOB, "x", 7, &[("main", 10), ("bob", 4)]),
        state(CAROL, "x", 6, &[("main", 5)]),
        state(ALICE, "y", 3, &[("main", 1)]),
        state(ALICE, "y", 4, &[]),
        pull_request(DAVE, 5, &[ALICE.repo("x")], 6),
        pull_request(DAVE, 6, &[BOB.repo("x"), ALICE.repo("y")], 7),
        pull_request(BOB, 6, &[CAROL.repo("x")], 8),
    ];
    events.extend([
        deletion(ALICE, 20, &[&events[10]]),
        deletion(DAVE, 20, &[&events[16]]),
        deletion_at(BOB, 6, 30618, "x"),
        led(ALICE, "x", 10, ALICE, &[BOB]),
        led(BOB, "x", 11, ALICE, &[BOB]),
        led(CAROL, "x", 12, ALICE, &[CAROL]),
        deletion_at(ALICE, 14, 30617, "x"),
    ]);
    events
});

/// Objects of states and where they can be fetched from: each author's in the repository of its own, from which others
/// copy them, or in those that the author maintains instead. Objects of pull requests come to all.
static OBJECTS: LazyLock<Vec<(Vec<RepoId>, u8)>> = LazyLock::new(|| {
    let only = |author: Author| vec![author.repo("x")];
    vec![
        (only(ALICE), 1),
        (only(ALICE), 2),
        (only(ALICE), 3),
        (only(BOB), 4),
        (only(CAROL), 5),
        (repos(), 6),
        (repos(), 7),
        (repos(), 8),
        (vec![ALICE.repo("y")], 1),
        (only(BOB), 10),
        (repos(), 9),
    ]
});

#[derive(Clone, Debug)]
enum Action {
    Send(usize),
    Sync(usize),
    /// Fetches one of the [`OBJECTS`], wherever it can be.
    Fetch(usize),
    FetchFor(RepoId, u8),
    Push(RepoId, usize),
    PushTip(RepoId, usize, u8),
    Wait(u64),
}

fn repos() -> Vec<RepoId> {
    let mut repos = vec![ALICE.repo("y")];
    repos.extend([ALICE, BOB, CAROL].map(|person| person.repo("x")));
    repos
}

fn action() -> impl Strategy<Value = Action> {
    let events = 0..EVENTS.len();
    let pushed = (select(repos()), 16..19usize, 6..10u8);
    prop_oneof![
        4 => events.clone().prop_map(Action::Send),
        4 => events.clone().prop_map(Action::Sync),
        2 => (0..OBJECTS.len()).prop_map(Action::Fetch),
        3 => (select(repos()), 1..11u8).prop_map(|(repo, object)| Action::FetchFor(repo, object)),
        3 => (select(repos()), 8..16usize).prop_map(|(repo, event)| Action::Push(repo, event)),
        2 => pushed.prop_map(|(repo, event, tip)| Action::PushTip(repo, event, tip)),
        1 => (1..45u64).prop_map(Action::Wait),
    ]
}

impl World {
    fn perform_action(&mut self, action: &Action) -> StepResult {
        match action {
            Action::Send(event) => self.send(&EVENTS[*event]).map(drop),
            Action::Sync(event) => self.sync(&EVENTS[*event]).map(drop),
            Action::Fetch(object) => {
                let (repos, object) = &OBJECTS[*object];
                for repo in repos
                    .iter()
                    .flat_map(|repo| self.hunting(repo))
                    .collect::<Vec<_>>()
                {
                    self.fetch(&repo, &[*object])?;
                }
                Ok(())
            }
            Action::FetchFor(repo, object) => self.fetch(repo, &[*object]),
            Action::Push(repo, event) => self.push(repo, &EVENTS[*event]).map(drop),
            Action::PushTip(repo, event, tip) => {
                self.push_tip(repo, EVENTS[*event].id, *tip).map(drop)
            }
            Action::Wait(minutes) => self.wait(MINUTE * u32::try_from(*minutes).unwrap()),
        }
    }

    /// Performs an action, and repeats it after a power cut.
    fn perform_with_restart(&mut self, action: &Action) {
        if self.perform_action(action).is_err() {
            self.restart(MINUTE);
            self.perform_action(action).unwrap();
        }
        self.steps_until_power_cut = None;
    }
}

/// A fault during one action.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    PowerCut(usize),
    Failure(Stage, usize),
    FailingTasks(usize),
    /// The next action begins after this many steps of this one.
    Interleaved(usize),
}

fn fault() -> impl Strategy<Value = Fault> {
    let stages = select(vec![Stage::Survey, Stage::Release]);
    prop_oneof![
        3 => Just(Fault::None),
        3 => (0..6usize).prop_map(Fault::Interleaved),
        1 => (1..4usize).prop_map(Fault::FailingTasks),
        2 => (0..40usize).prop_map(Fault::PowerCut),
        1 => (stages, 1..3usize).prop_map(|(stage, times)| Fault::Failure(stage, times)),
    ]
}

fn perform_with_fault(world: &mut World, fault: Fault, action: &Action) {
    match fault {
        Fault::None => {}
        Fault::PowerCut(after) => world.steps_until_power_cut = Some(after),
        Fault::Failure(stage, times) => world.failing = Some((stage, times)),
        Fault::FailingTasks(times) => world.failing_tasks = times,
        Fault::Interleaved(steps) => world.steps_left = Some(steps),
    }
    world.perform_with_restart(action);
    world.failing = None;
    world.failing_tasks = 0;
    world.steps_left = None;
}

/// Offers all events and objects again until nothing changes, as sync and the hunt do.
fn converge(world: &mut World, events: &[usize], objects: &[usize]) {
    for _ in 0..4 {
        for event in events {
            world.sync(&EVENTS[*event]).unwrap();
        }
        for object in objects {
            world.perform_action(&Action::Fetch(*object)).unwrap();
        }
    }
}

/// Returns the number of cases, which `PROPTEST_CASES` overrides.
fn cases() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(64),
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_invariants_hold_after_every_step_of_any_history(
        history in vec((action(), fault()), 1..40),
        seed in proptest::option::of(any::<u64>()),
    ) {
        let mut world = World::new();
        world.seed = seed;
        for (action, fault) in &history {
            perform_with_fault(&mut world, *fault, action);
            if world.is_idle() {
                world.check();
            }
        }
        world.run().unwrap();
        world.check();
        world.check_journal();
    }

    #[test]
    fn the_served_content_is_independent_of_the_order_of_arrival(
        events in subsequence((0..EVENTS.len()).collect::<Vec<_>>(), 8..EVENTS.len()),
        objects in subsequence((0..OBJECTS.len()).collect::<Vec<_>>(), 3..OBJECTS.len()),
        shuffles in [vec(any::<Index>(), 40), vec(any::<Index>(), 40)],
        faults in vec(fault(), 40),
        seed in proptest::option::of(any::<u64>()),
    ) {
        let contents = shuffles.map(|shuffle| {
            let actions = events.iter().map(|event| Action::Sync(*event));
            let mut actions: Vec<_> =
                actions.chain(objects.iter().map(|object| Action::Fetch(*object))).collect();
            let mut world = World::new();
            world.seed = seed;
            for (next, fault) in shuffle.iter().zip(&faults) {
                if !actions.is_empty() {
                    let action = actions.swap_remove(next.index(actions.len()));
                    perform_with_fault(&mut world, *fault, &action);
                }
            }
            converge(&mut world, &events, &objects);
            world.check();
            world.served_content()
        });
        let [one, other] = contents;
        prop_assert_eq!(one, other);
    }

    #[test]
    fn the_same_inputs_give_the_same_outputs(history in vec(action(), 1..40)) {
        let mut world = World::new();
        world.transcript = Some(Vec::new());
        history.iter().for_each(|action| world.perform_action(action).unwrap());
        let policy = Policy::new(US.parse().unwrap());
        let start = World::new().now;
        let mut again = Purgatory::restore(Config::default(), policy, [], start);
        for (now, input, outputs) in world.transcript.unwrap() {
            prop_assert_eq!(format!("{:?}", again.handle(now, input)), outputs);
        }
    }

    #[test]
    fn every_wait_ends_and_no_deadline_repeats(history in vec(action(), 1..25)) {
        let mut world = World::new();
        history.iter().for_each(|action| world.perform_action(action).unwrap());
        let mut ticks = 0;
        while let Some(due) = world.core.next_deadline() {
            prop_assert!(due > world.now.mono, "a deadline in the past");
            world.wait(due - world.now.mono).unwrap();
            ticks += 1;
            prop_assert!(ticks < 500, "deadlines never end");
        }
        prop_assert_eq!(world.core.counts(), Default::default());
        world.acknowledged.clear();
        world.check();
    }
}

/// Runs one history with all kinds of actions, with a power cut at each of its steps.
#[test]
fn a_power_cut_at_any_step_loses_nothing_and_leaves_nothing_half_done() {
    let history = [
        Action::Send(0),
        Action::Send(3),
        Action::Send(8),
        Action::PushTip(ALICE.repo("x"), 16, 9),
        Action::PushTip(ALICE.repo("x"), 16, 6),
        Action::Push(ALICE.repo("x"), 8),
        Action::Send(16),
        Action::Sync(11),
        Action::Sync(1),
        Action::Fetch(3),
        Action::Send(9),
        Action::Wait(31),
        Action::Fetch(1),
        Action::Send(7),
        Action::Send(17),
        Action::Fetch(6),
        Action::Send(15),
        Action::Send(2),
        Action::Send(20),
        Action::Send(21),
    ];
    let mut whole = World::new();
    history
        .iter()
        .for_each(|action| whole.perform_with_restart(action));
    whole.check();
    let mut cuts = 0;
    for steps_until_power_cut in 0.. {
        let mut world = World::new();
        world.steps_until_power_cut = Some(steps_until_power_cut);
        let cut = run_through(&mut world, &history);
        world.check();
        assert_eq!(
            world.served_content(),
            whole.served_content(),
            "cut at step {steps_until_power_cut}"
        );
        if !cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 150, "{cuts} cuts");
}

/// Performs a history, and returns whether the power was cut.
fn run_through(world: &mut World, history: &[Action]) -> bool {
    let mut cut = false;
    for action in history {
        if world.perform_action(action).is_err() {
            cut = true;
            world.restart(Duration::from_secs(1));
            world.check();
            world.check_journal();
            world.perform_action(action).unwrap();
        }
    }
    cut
}

/// Reads events that sync brings (`S5`) and objects that are fetched (`F3`), in order.
fn actions(text: &str) -> Vec<Action> {
    let action = |word: &str| match word.split_at(1) {
        ("S", number) => Action::Sync(number.parse().unwrap()),
        (_, number) => Action::Fetch(number.parse().unwrap()),
    };
    text.split(' ').map(action).collect()
}

/// Two orders of arrival that a random run has found (seed 4d97dea0 of an earlier model): an announcement came while the
/// release of the version before it was under way.
#[test]
fn an_announcement_replaces_the_version_that_is_being_released() {
    let late = actions(
        "S5 F3 S4 F7 S1 S0 F10 F6 S12 F9 S6 F4 F2 S17 S11 S2 S13 F5 S9 S7 S19 S10 S16 F0 S21",
    );
    let early = actions(
        "S0 F10 F9 F7 F6 F5 F4 F3 F2 F0 S21 S19 S17 S16 S13 S12 S11 S10 S9 S7 S6 S5 S4 S2 S1",
    );
    let events = [0, 1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 19, 21];
    let served_content = |actions: &[Action], at: usize, steps: usize| {
        let mut world = World::new();
        for (position, action) in actions.iter().enumerate() {
            let fault = if position == at {
                Fault::Interleaved(steps)
            } else {
                Fault::None
            };
            perform_with_fault(&mut world, fault, action);
        }
        converge(&mut world, &events, &[]);
        world.check();
        world.served_content()
    };
    let expected = served_content(&early, early.len(), 0);
    for actions in [&late, &early] {
        for (at, steps) in (10..20).flat_map(|at| (0..5).map(move |steps| (at, steps))) {
            assert_eq!(
                served_content(actions, at, steps),
                expected,
                "interleaved at {at} after {steps}"
            );
        }
    }
}
