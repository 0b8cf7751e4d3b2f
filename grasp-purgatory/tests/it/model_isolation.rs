//! Non-interference: what keys outside a repository's reach publish and push under the same identifier changes nothing
//! about it.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use grasp_core::{Oid, RepoId};
use grasp_purgatory::CleanupTask;
use nostr::event::{Event, EventId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::model_disk::{View, hosted};
use crate::model_events::*;
use crate::model_world::World;

const MINUTE: Duration = Duration::from_secs(60);

/// Keys that nobody inside lists.
const EVE: Author = Author::numbered(5);
const MALLORY: Author = Author::numbered(6);

/// The events of one repository's reach: its owner, and those whom the owner lists.
static INSIDE: LazyLock<Vec<Arc<Event>>> = LazyLock::new(|| {
    let mut events = vec![
        announcement(ALICE, "x", 0, &[]),
        announcement(ALICE, "x", 1, &[BOB]),
        announcement(ALICE, "x", 9, &[CAROL]),
        announcement(BOB, "x", 0, &[ALICE]),
        announcement(BOB, "x", 2, &[ALICE, CAROL]),
        announcement(CAROL, "x", 1, &[BOB]),
        state(ALICE, "x", 3, &[("main", 1)]),
        state(ALICE, "x", 5, &[("main", 2), ("dev", 1)]),
        state(BOB, "x", 4, &[("main", 3)]),
        state(BOB, "x", 7, &[("main", 2), ("bob", 3)]),
        state(CAROL, "x", 6, &[("main", 4)]),
        pull_request(DAVE, 5, &[ALICE.repo("x")], 5),
        pull_request(BOB, 6, &[CAROL.repo("x")], 6),
    ];
    events.extend([
        deletion(ALICE, 20, &[&events[7]]),
        deletion_at(BOB, 6, 30618, "x"),
    ]);
    events
});

/// The events of others under the same identifier. They list the owner and her maintainers, and sign the same refs.
static OUTSIDE: LazyLock<Vec<Arc<Event>>> = LazyLock::new(|| {
    let mut events = vec![
        announcement(EVE, "x", 0, &[ALICE, BOB, CAROL]),
        announcement(EVE, "x", 8, &[MALLORY, ALICE]),
        announcement(MALLORY, "x", 0, &[EVE]),
        announcement(MALLORY, "x", 3, &[EVE, BOB]),
        state(EVE, "x", 2, &[("main", 1)]),
        state(EVE, "x", 30, &[("main", 4), ("bob", 3)]),
        state(MALLORY, "x", 31, &[("main", 2), ("dev", 1)]),
        pull_request(MALLORY, 5, &[EVE.repo("x")], 5),
        pull_request(DAVE, 6, &[MALLORY.repo("x"), EVE.repo("x")], 6),
    ];
    events.extend([
        deletion(EVE, 40, &[&events[5]]),
        deletion_at(MALLORY, 40, 30617, "x"),
    ]);
    events
});

#[derive(Clone, Debug)]
enum Action {
    Send(usize),
    Sync(usize),
    Fetch(Author, u8),
    Push(Author, usize),
    PushTip(Author, usize, u8),
    Wait(u64),
}

/// Returns actions with this many events: states and pull requests from these indexes on, and these repositories.
fn action(authors: [Author; 3], events: usize, first: [usize; 2]) -> BoxedStrategy<Action> {
    let [states, proposals] = first;
    let author = select(authors.to_vec());
    let push = (author.clone(), states..proposals);
    let push_tip = (author.clone(), proposals..proposals + 2, 5..7u8);
    prop_oneof![
        4 => (0..events).prop_map(Action::Send),
        4 => (0..events).prop_map(Action::Sync),
        4 => (author, 1..7u8).prop_map(|(author, object)| Action::Fetch(author, object)),
        3 => push.prop_map(|(author, event)| Action::Push(author, event)),
        2 => push_tip.prop_map(|(author, event, tip)| Action::PushTip(author, event, tip)),
    ]
    .boxed()
}

fn inside() -> BoxedStrategy<Action> {
    let action = action([ALICE, BOB, CAROL], INSIDE.len(), [6, 11]);
    prop_oneof![16 => action, 1 => (1..45u64).prop_map(Action::Wait)].boxed()
}

fn outside() -> BoxedStrategy<Action> {
    action([EVE, MALLORY, EVE], OUTSIDE.len(), [4, 7])
}

fn perform(world: &mut World, events: &[Arc<Event>], action: &Action) {
    match action {
        Action::Send(event) => _ = world.send(&events[*event]).unwrap(),
        Action::Sync(event) => _ = world.sync(&events[*event]).unwrap(),
        Action::Fetch(author, object) => world.fetch(&author.repo("x"), &[*object]).unwrap(),
        Action::Push(author, event) => {
            world.push(&author.repo("x"), &events[*event]).unwrap();
        }
        Action::PushTip(author, event, tip) => {
            world
                .push_tip(&author.repo("x"), events[*event].id, *tip)
                .unwrap();
        }
        Action::Wait(minutes) => {
            world
                .wait(MINUTE * u32::try_from(*minutes).unwrap())
                .unwrap();
        }
    }
    world.run().unwrap();
}

/// All that can be seen of the repositories inside.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Announcements, states and pull requests: served, and held.
    served: BTreeSet<EventId>,
    held: BTreeSet<EventId>,
    /// What is published, in order.
    published: Vec<EventId>,
    repos: Vec<SeenRepo>,
}

/// All that can be seen of one repository.
#[derive(Debug, PartialEq)]
struct SeenRepo {
    repo: RepoId,
    view: Option<View>,
    objects: BTreeSet<Oid>,
    survey: String,
    hunts: Vec<Option<Duration>>,
    tasks: Vec<CleanupTask>,
}

impl Seen {
    fn forget_hunts(&mut self) {
        for repo in &mut self.repos {
            repo.hunts.clear();
        }
    }
}

fn seen(world: &mut World) -> Seen {
    let all: BTreeSet<EventId> = INSIDE.iter().map(|event| event.id).collect();
    let store = &world.disk.store;
    let mut seen = Seen {
        served: all
            .iter()
            .filter(|id| store.contains(id))
            .copied()
            .collect(),
        held: all
            .iter()
            .filter(|id| world.core.contains(id))
            .copied()
            .collect(),
        published: world
            .published
            .iter()
            .filter(|id| all.contains(id))
            .copied()
            .collect(),
        repos: Vec::new(),
    };
    for repo in [ALICE, BOB, CAROL].map(|author| author.repo("x")) {
        let survey = format!("{:?}", world.survey(&repo));
        let hunts = world.hunts.iter().filter(|(hunted, _)| *hunted == repo);
        let tasks = world.tasks_run.iter().filter(|task| match task {
            CleanupTask::CreateView { repo: of } | CleanupTask::RemoveView { repo: of, .. } => {
                *of == repo
            }
            CleanupTask::ClearProposal { repos, .. } | CleanupTask::ClearObjects { repos, .. } => {
                repos.contains(&repo)
            }
        });
        seen.repos.push(SeenRepo {
            view: world.disk.git.view(&hosted(&repo)).cloned(),
            objects: world.objects(&repo),
            hunts: hunts.map(|(_, after)| *after).collect(),
            tasks: tasks.cloned().collect(),
            repo,
            survey,
        });
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_others_do_under_the_same_identifier_changes_nothing(
        history in vec((vec((outside(), proptest::option::of(0..6usize)), 0..5), inside()), 1..30),
        is_interrupted in any::<bool>(),
    ) {
        let mut alone = World::new();
        let mut among_others = World::new();
        for (others, action) in &history {
            for (action, steps) in others {
                among_others.steps_left = steps.filter(|_| is_interrupted);
                perform(&mut among_others, &OUTSIDE, action);
                among_others.steps_left = None;
            }
            perform(&mut alone, &INSIDE, action);
            perform(&mut among_others, &INSIDE, action);
            let mut expected = seen(&mut alone);
            let mut actual = seen(&mut among_others);
            // A survey that was under way does not know an event that came since, and begins a hunt for it at most.
            if is_interrupted {
                expected.forget_hunts();
                actual.forget_hunts();
            }
            prop_assert_eq!(expected, actual);
        }
        alone.check();
        among_others.check();
    }
}

#[test]
fn many_others_who_list_its_maintainers_hide_no_repository() {
    let mut world = World::new();
    let served = state(ALICE, "x", 2, &[("main", 1)]);
    world
        .send(&announcement(ALICE, "x", 0, &[BOB, CAROL]))
        .unwrap();
    world.send(&elsewhere(BOB, "x", 1, &[ALICE])).unwrap();
    world.send(&served).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    assert!(world.serves(&served));
    for number in 10..140 {
        let other = Author::numbered(number);
        let listing = announcement(other, "x", 3, &[BOB, CAROL]);
        world.send(&listing).unwrap();
        world.send(&state(other, "x", 4, &[("main", 9)])).unwrap();
        world.fetch(&other.repo("x"), &[9]).unwrap();
        assert!(world.serves(&listing));
    }
    let by_bob = state(BOB, "x", 5, &[("main", 2)]);
    world.send(&by_bob).unwrap();
    world.fetch(&ALICE.repo("x"), &[2]).unwrap();
    assert!(world.serves(&by_bob), "of a maintainer before them");
    // Her announcement is known by what it lists alone.
    let accepted = elsewhere(CAROL, "x", 6, &[BOB]);
    world.send(&accepted).unwrap();
    assert!(world.serves(&accepted));
    let by_carol = state(CAROL, "x", 7, &[("main", 3)]);
    world.send(&by_carol).unwrap();
    world.fetch(&ALICE.repo("x"), &[3]).unwrap();
    assert!(world.serves(&by_carol), "of a maintainer after them");
    assert_eq!(
        world.view(&ALICE.repo("x")).unwrap().get(&branch("main")),
        Some(&oid(3))
    );
    world.check();
}

#[test]
fn two_owners_of_one_name_share_no_objects() {
    let mut world = World::new();
    for by in [ALICE, EVE] {
        world.send(&announcement(by, "x", 0, &[])).unwrap();
        world.send(&state(by, "x", 1, &[("main", 1)])).unwrap();
    }
    world.fetch(&EVE.repo("x"), &[1]).unwrap();
    assert!(world.serves(&state(EVE, "x", 1, &[("main", 1)])));
    assert!(!world.serves(&state(ALICE, "x", 1, &[("main", 1)])));
    assert!(world.objects(&ALICE.repo("x")).is_empty());
    world.check();
}

#[test]
fn a_key_that_lists_an_owner_gets_none_of_her_states_until_she_lists_it() {
    let mut world = World::new();
    let hers = state(ALICE, "x", 1, &[("main", 1)]);
    world.send(&announcement(ALICE, "x", 0, &[])).unwrap();
    world.send(&hers).unwrap();
    world.fetch(&ALICE.repo("x"), &[1]).unwrap();
    let listing = announcement(EVE, "x", 0, &[ALICE]);
    world.send(&listing).unwrap();
    assert!(world.serves(&hers) && !world.serves(&listing));
    assert!(world.objects(&EVE.repo("x")).is_empty());
    world.send(&announcement(ALICE, "x", 2, &[EVE])).unwrap();
    assert!(world.serves(&listing));
    assert_eq!(world.view(&EVE.repo("x")), world.view(&ALICE.repo("x")));
    assert!(
        world.objects(&EVE.repo("x")).contains(&oid(1)),
        "it has a copy of its own"
    );
}
