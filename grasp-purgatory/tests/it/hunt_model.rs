//! A hunter and a purgatory together, through random arrivals, failures and restarts: objects that some server has are
//! found, and their events are released.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use grasp_core::limits::PeerText;
use grasp_core::service::npub;
use grasp_core::{CloneUrl, Mono, Oid, RepoId};
use grasp_purgatory::hunt::HostLimits;
use grasp_purgatory::hunt::{
    Advertisement, FetchError, HostClass, HuntConfig, HuntReport, Hunter, Input, Output, Scope,
};
use grasp_purgatory::{Phase, Want};
use nostr::event::Event;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::hunt_sim::listed;
use crate::model_events::*;
use crate::model_world::{StepResult, World};

const MINUTE: Duration = Duration::from_secs(60);
const LATENCY: Duration = Duration::from_millis(200);

/// All events that other relays send.
static EVENTS: LazyLock<Vec<Arc<Event>>> = LazyLock::new(|| {
    vec![
        announcement(ALICE, "x", 0, &[BOB]),
        announcement(BOB, "x", 0, &[ALICE]),
        announcement(ALICE, "y", 0, &[]),
        state(ALICE, "x", 3, &[("main", 1)]),
        state(ALICE, "x", 5, &[("main", 2), ("dev", 3)]),
        state(BOB, "x", 4, &[("main", 4)]),
        state(BOB, "x", 7, &[("main", 2), ("bob", 4)]),
        state(ALICE, "y", 3, &[("main", 1)]),
        pull_request(DAVE, 5, &[ALICE.repo("x")], 6),
        pull_request(DAVE, 6, &[BOB.repo("x"), ALICE.repo("y")], 7),
    ]
});

/// The behaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Fine,
    Gone,
    /// Never answers; the driver cancels the request.
    Silent,
    /// Has everything, and advertises nothing.
    Hides,
}

/// A server that events name.
struct Mirror {
    behaviour: Behaviour,
    objects: BTreeSet<Oid>,
}

struct HuntModel {
    world: World,
    hunter: Hunter,
    mirrors: BTreeMap<CloneUrl, Mirror>,
    scheduled: BTreeMap<(Mono, u64), Input>,
    next_number: u64,
    fetching: BTreeMap<u64, (RepoId, BTreeSet<Oid>)>,
}

fn mirror(of: Author, identifier: &str) -> CloneUrl {
    format!("https://mirror.example/{}/{identifier}", npub(&of.key()))
        .parse()
        .unwrap()
}

/// Returns all repositories of the model.
fn repos() -> [RepoId; 3] {
    [ALICE.repo("x"), BOB.repo("x"), ALICE.repo("y")]
}

impl HuntModel {
    fn new() -> Self {
        Self::with(HuntConfig::default())
    }

    fn with(config: HuntConfig) -> Self {
        let world = World::new();
        let hunter = Hunter::new(config, world.now);
        let addresses = [mirror(ALICE, "x"), mirror(BOB, "x"), mirror(ALICE, "y")];
        let empty = || Mirror {
            behaviour: Behaviour::Fine,
            objects: BTreeSet::new(),
        };
        Self {
            world,
            hunter,
            mirrors: addresses
                .into_iter()
                .map(|address| (address, empty()))
                .collect(),
            scheduled: BTreeMap::new(),
            next_number: 0,
            fetching: BTreeMap::new(),
        }
    }

    fn run_for(&mut self, length: Duration) -> StepResult {
        let end = self.world.now.mono + length;
        self.forward_wants();
        loop {
            let task = self.scheduled.keys().next().map(|(at, _)| *at);
            let deadlines = [
                self.world.core.next_deadline(),
                self.hunter.next_deadline(),
                task,
            ];
            let next = deadlines
                .into_iter()
                .flatten()
                .min()
                .filter(|at| *at <= end);
            let Some(at) = next else { break };
            let at = at.max(self.world.now.mono);
            self.world.wait(at - self.world.now.mono)?;
            match self
                .scheduled
                .first_key_value()
                .filter(|((task, _), _)| *task <= at)
            {
                Some(_) => {
                    let ((_, number), input) = self.scheduled.pop_first().unwrap();
                    self.receive_objects(number)?;
                    self.handle(input);
                }
                None => self.handle(Input::Tick),
            }
            self.forward_wants();
        }
        self.world.wait(end - self.world.now.mono)
    }

    /// Gives the wants of purgatory to the hunter.
    fn forward_wants(&mut self) {
        for (repo, after) in std::mem::take(&mut self.world.hunts) {
            self.handle(Input::Wanted { repo, after });
        }
    }

    /// Gives a report of the hunter to purgatory.
    fn forward_report(&mut self, report: &HuntReport) {
        if let Some(input) = report.for_purgatory() {
            let _ = self.world.handle(input);
        }
    }

    fn handle(&mut self, input: Input) {
        for output in self.hunter.handle(self.world.now, input) {
            self.perform(output);
        }
    }

    fn schedule(&mut self, after: Duration, input: Input) -> u64 {
        let number = self.next_number;
        self.scheduled
            .insert((self.world.now.mono + after, number), input);
        self.next_number += 1;
        number
    }

    /// Adds the objects of a fetch, before its end is reported.
    fn receive_objects(&mut self, number: u64) -> StepResult {
        let Some((repo, objects)) = self.fetching.remove(&number) else {
            return Ok(());
        };
        let numbers: Vec<u8> = objects.iter().map(|oid| oid.as_bytes()[0]).collect();
        self.world.fetch(&repo, &numbers)
    }

    fn wants(&self, repo: &RepoId) -> Vec<Want> {
        let announcements = self.world.announcements_of(repo);
        let mut wants = self.world.core.wants(repo, &announcements);
        let here = self.world.objects(repo);
        for want in &mut wants {
            want.tips.retain(|tip| !here.contains(tip));
        }
        wants.retain(|want| !want.tips.is_empty());
        wants
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::ReadWants { repo, scope } => {
                let mut wants = self.wants(&repo);
                wants.retain(|want| scope == Scope::Everything || want.phase == Phase::Waiting);
                self.schedule(
                    Duration::ZERO,
                    Input::WantsRead {
                        repo,
                        wants: Some(wants),
                    },
                );
            }
            Output::List {
                request_id,
                url,
                wanted,
                ..
            } => {
                let mirror = &self.mirrors[&url];
                let refs = mirror.objects.iter().map(|oid| ("refs/heads/x", *oid));
                let (after, result) = match mirror.behaviour {
                    Behaviour::Fine => (LATENCY, Ok(Advertisement::read(refs, &wanted))),
                    Behaviour::Hides => (LATENCY, Ok(Advertisement::read([], &wanted))),
                    Behaviour::Gone => {
                        (LATENCY, Err(FetchError::Unreachable(PeerText::new("gone"))))
                    }
                    Behaviour::Silent => (MINUTE, Err(FetchError::Stalled)),
                };
                self.schedule(after, listed(request_id, result));
            }
            Output::Fetch {
                request_id,
                repo,
                url,
                oids,
            } => {
                let mirror = &self.mirrors[&url];
                let has_all = oids.is_subset(&mirror.objects);
                let (after, got, error) = match mirror.behaviour {
                    Behaviour::Fine | Behaviour::Hides if has_all => (LATENCY, oids, None),
                    Behaviour::Silent => (5 * MINUTE, BTreeSet::new(), Some(FetchError::Stalled)),
                    _ => {
                        let refused = FetchError::Refused(PeerText::new("not our ref"));
                        (LATENCY, BTreeSet::new(), Some(refused))
                    }
                };
                let fetched = Input::Ended {
                    request_id,
                    got: got.clone(),
                    error,
                };
                let number = self.schedule(after, fetched);
                self.fetching.insert(number, (repo, got));
            }
            Output::Classify { host, .. } => {
                self.schedule(
                    LATENCY,
                    Input::Classified {
                        host,
                        class: Some(HostClass::Grasp),
                    },
                );
            }
            Output::Cancel { .. } => {} // Its end is scheduled already.
            Output::ListRepos => {
                let repos = repos().into();
                self.schedule(Duration::ZERO, Input::ReposListed { repos });
            }
            Output::Report(report @ HuntReport::Complete { .. }) => {
                self.forward_report(&report);
                let HuntReport::Complete { repo } = report else {
                    unreachable!()
                };
                let mut wants = self.wants(&repo);
                wants.retain(|want| want.phase == Phase::Waiting);
                assert!(
                    wants.is_empty() || !self.world.hunts.is_empty(),
                    "{wants:?}"
                );
            }
            Output::Report(report) => self.forward_report(&report),
        }
    }

    fn restart(&mut self) {
        self.world.hunts.clear();
        self.world.restart(MINUTE);
        self.hunter = Hunter::new(HuntConfig::default(), self.world.now);
        self.scheduled.clear();
        self.fetching.clear();
        self.forward_wants();
    }

    fn perform_action(&mut self, action: &Action) -> StepResult {
        match action {
            Action::Sync(event) => self.world.sync(&EVENTS[*event]).map(drop),
            Action::Appear(address, object) => {
                let mirror = self.mirrors.values_mut().nth(*address).unwrap();
                mirror.objects.insert(oid(*object));
                Ok(())
            }
            Action::Behaviour(address, behaviour) => {
                self.mirrors.values_mut().nth(*address).unwrap().behaviour = *behaviour;
                Ok(())
            }
            Action::Wait(seconds) => self.run_for(Duration::from_secs(*seconds)),
            Action::CutPower(steps_until_power_cut) => {
                self.world.steps_until_power_cut = Some(*steps_until_power_cut);
                Ok(())
            }
            Action::Restart => {
                self.restart();
                Ok(())
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Sync(usize),
    Appear(usize, u8),
    Behaviour(usize, Behaviour),
    Wait(u64),
    CutPower(usize),
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    let behaviours = [
        Behaviour::Fine,
        Behaviour::Gone,
        Behaviour::Silent,
        Behaviour::Hides,
    ];
    let behaviour = proptest::sample::select(behaviours.to_vec());
    prop_oneof![
        5 => (0..EVENTS.len()).prop_map(Action::Sync),
        5 => (0..3usize, 1..8u8).prop_map(|(address, object)| Action::Appear(address, object)),
        2 => (0..3usize, behaviour).prop_map(|(address, behaviour)| Action::Behaviour(address, behaviour)),
        3 => (0..30u64).prop_map(Action::Wait),
        2 => (60..3_600u64).prop_map(Action::Wait),
        1 => (0..40usize).prop_map(Action::CutPower),
        1 => Just(Action::Restart),
    ]
}

/// Returns a model in which Alice's repository and its state are held, and no server has their data.
fn waiting() -> HuntModel {
    let mut model = HuntModel::new();
    for event in [0, 3] {
        model.world.sync(&EVENTS[event]).unwrap();
    }
    model.run_for(Duration::from_secs(1)).unwrap();
    model
}

fn is_served(model: &HuntModel, event: usize) -> bool {
    model.world.disk.store.contains(&EVENTS[event].id)
}

#[test]
fn data_that_appears_after_ten_minutes_is_released_within_two_more() {
    let mut model = waiting();
    model.run_for(10 * MINUTE).unwrap();
    assert!(!is_served(&model, 3));
    model.perform_action(&Action::Appear(0, 1)).unwrap();
    model.perform_action(&Action::Appear(1, 1)).unwrap();
    model.perform_action(&Action::Appear(2, 1)).unwrap();
    model.run_for(2 * MINUTE + Duration::from_secs(1)).unwrap();
    assert!(is_served(&model, 3) && is_served(&model, 0));
    assert_eq!(model.hunter.schedule_at(Mono::ZERO).count(), 0);
}

#[test]
fn events_whose_data_never_appears_expire_after_half_an_hour() {
    let mut model = waiting();
    model.run_for(29 * MINUTE).unwrap();
    assert_eq!(model.world.core.counts().states, 1);
    model.run_for(4 * MINUTE).unwrap();
    let counts = model.world.core.counts();
    assert_eq!(
        (counts.announcements, counts.states, counts.expired),
        (0, 0, 2)
    );
    assert_eq!(
        model.hunter.schedule_at(Mono::ZERO).count(),
        0,
        "only the hourly pass looks for it now"
    );
    assert!(!is_served(&model, 0) && !is_served(&model, 3));
}

#[test]
fn a_restart_in_the_middle_of_a_hunt_loses_nothing() {
    let mut model = waiting();
    model.run_for(5 * MINUTE).unwrap();
    model.restart();
    assert_eq!(
        model.hunter.schedule_at(Mono::ZERO).count(),
        1,
        "rebuilt from the journal"
    );
    (0..3).for_each(|address| model.perform_action(&Action::Appear(address, 1)).unwrap());
    model.run_for(Duration::from_secs(5)).unwrap();
    assert!(is_served(&model, 3));
}

#[test]
fn an_event_whose_hunt_is_queued_beyond_its_hold_time_is_released() {
    let slow = HostLimits {
        starts: NonZeroUsize::MIN,
        per: 45 * MINUTE,
        ..HostLimits::default()
    };
    let config = HuntConfig {
        per_host: slow,
        per_grasp_host: slow,
        ..HuntConfig::default()
    };
    let mut model = HuntModel::with(config);
    (0..3).for_each(|address| model.perform_action(&Action::Appear(address, 1)).unwrap());
    for event in [0, 2, 3, 7] {
        model.world.sync(&EVENTS[event]).unwrap();
    }
    model.run_for(44 * MINUTE).unwrap();
    let served = [3, 7].map(|event| is_served(&model, event));
    assert!(served[0] != served[1], "one at a time");
    assert_eq!(
        model.world.core.counts().states,
        1,
        "the other has not expired"
    );
    model.run_for(2 * MINUTE).unwrap();
    assert!(is_served(&model, 3) && is_served(&model, 7));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn available_objects_are_found_and_their_events_released(actions in vec(action(), 1..40)) {
        let mut model = HuntModel::new();
        for action in &actions {
            if model.perform_action(action).is_err() {
                model.restart();
            }
            if model.world.is_idle() {
                model.world.check();
            }
        }
        model.world.steps_until_power_cut = None;
        // In the end every server has everything, and what is held is released soon.
        for mirror in model.mirrors.values_mut() {
            *mirror = Mirror { behaviour: Behaviour::Fine, objects: (1..8).map(oid).collect() };
        }
        model.run_for(70 * MINUTE).unwrap();
        model.world.check();
        for repo in repos() {
            let mut wants = model.wants(&repo);
            wants.retain(|want| !want.trusted.is_empty());
            prop_assert!(wants.is_empty(), "still wanted: {wants:?}");
        }
        prop_assert_eq!(model.hunter.schedule_at(Mono::ZERO).count(), 0);
    }
}
