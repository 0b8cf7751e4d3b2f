//! A hunter and a purgatory together, through random arrivals, failures and restarts: whatever is somewhere is found,
//! and what is found is released.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use grasp_core::limits::PeerText;
use grasp_core::nip34::Announcement;
use grasp_core::service::npub;
use grasp_core::{CloneUrl, Identifier, Mono, Oid};
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
use crate::model_world::{Powered, World};

const MINUTE: Duration = Duration::from_secs(60);
const LATENCY: Duration = Duration::from_millis(200);
const NAMES: [&str; 2] = ["x", "y"];

/// Everything that other relays bring.
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

/// How a server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Fine,
    Gone,
    /// Says nothing until the driver gives it up.
    Silent,
    /// Has everything, and advertises nothing.
    Hides,
}

/// A server that events name.
struct Mirror {
    mood: Mood,
    objects: BTreeSet<Oid>,
}

struct Chase {
    world: World,
    hunter: Hunter,
    mirrors: BTreeMap<CloneUrl, Mirror>,
    ends: BTreeMap<(Mono, u64), Input>,
    next_end: u64,
    fetching: BTreeMap<u64, (Identifier, BTreeSet<Oid>)>,
}

fn mirror(of: Person, identifier: &str) -> CloneUrl {
    format!("https://mirror.example/{}/{identifier}", npub(&of.key())).parse().unwrap()
}

impl Chase {
    fn new() -> Self {
        Self::with(HuntConfig::default())
    }

    fn with(config: HuntConfig) -> Self {
        let world = World::new();
        let hunter = Hunter::new(config, world.now);
        let places = [mirror(ALICE, "x"), mirror(BOB, "x"), mirror(ALICE, "y")];
        let empty = || Mirror { mood: Mood::Fine, objects: BTreeSet::new() };
        Self {
            world,
            hunter,
            mirrors: places.into_iter().map(|place| (place, empty())).collect(),
            ends: BTreeMap::new(),
            next_end: 0,
            fetching: BTreeMap::new(),
        }
    }

    fn run_for(&mut self, length: Duration) -> Powered {
        let end = self.world.now.mono + length;
        self.pass_on();
        loop {
            let task = self.ends.keys().next().map(|(at, _)| *at);
            let deadlines = [self.world.core.next_deadline(), self.hunter.next_deadline(), task];
            let next = deadlines.into_iter().flatten().min().filter(|at| *at <= end);
            let Some(at) = next else { break };
            let at = at.max(self.world.now.mono);
            self.world.wait(at - self.world.now.mono)?;
            match self.ends.first_key_value().filter(|((task, _), _)| *task <= at) {
                Some(_) => {
                    let ((_, number), input) = self.ends.pop_first().unwrap();
                    self.arrive(number)?;
                    self.tell(input);
                }
                None => self.tell(Input::Tick),
            }
            self.pass_on();
        }
        self.world.wait(end - self.world.now.mono)
    }

    /// What purgatory wants is told to the hunter.
    fn pass_on(&mut self) {
        for (identifier, after) in std::mem::take(&mut self.world.hunts) {
            self.tell(Input::Wanted { identifier, after });
        }
    }

    /// What the hunter reports is told to purgatory.
    fn pass_back(&mut self, report: &HuntReport) {
        if let Some(input) = report.for_purgatory() {
            let _ = self.world.turn(input);
        }
    }

    fn tell(&mut self, input: Input) {
        for output in self.hunter.handle(self.world.now, input) {
            self.perform(output);
        }
    }

    fn later(&mut self, after: Duration, input: Input) -> u64 {
        let number = self.next_end;
        self.ends.insert((self.world.now.mono + after, number), input);
        self.next_end += 1;
        number
    }

    /// The objects of a fetch come in, all of them before anybody hears of it.
    fn arrive(&mut self, number: u64) -> Powered {
        let Some((identifier, objects)) = self.fetching.remove(&number) else { return Ok(()) };
        let numbers: Vec<u8> = objects.iter().map(|oid| oid.as_bytes()[0]).collect();
        self.world.fetch(identifier.as_str(), &numbers)
    }

    fn wants(&self, identifier: &Identifier) -> Vec<Want> {
        let stored = self.world.disk.store.announcements(&BTreeSet::from([identifier.clone()]));
        let stored: Vec<_> = stored.iter().map(|e| Announcement::parse(e).unwrap()).collect();
        let mut wants = self.world.core.wants(identifier, &stored);
        let here = self.world.disk.git.objects.get(identifier);
        let is_here = |tip: &Oid| here.is_some_and(|here| here.contains(tip));
        wants.iter_mut().for_each(|want| want.tips.retain(|tip| !is_here(tip)));
        wants.retain(|want| !want.tips.is_empty());
        wants
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::ReadWants { identifier, scope } => {
                let mut wants = self.wants(&identifier);
                wants.retain(|want| scope == Scope::Everything || want.phase == Phase::Waiting);
                self.later(Duration::ZERO, Input::WantsRead { identifier, wants: Some(wants) });
            }
            Output::List { request_id, url, wanted, .. } => {
                let mirror = &self.mirrors[&url];
                let refs = mirror.objects.iter().map(|oid| ("refs/heads/x", *oid));
                let (after, result) = match mirror.mood {
                    Mood::Fine => (LATENCY, Ok(Advertisement::read(refs, &wanted))),
                    Mood::Hides => (LATENCY, Ok(Advertisement::read([], &wanted))),
                    Mood::Gone => (LATENCY, Err(FetchError::Unreachable(PeerText::new("gone")))),
                    Mood::Silent => (MINUTE, Err(FetchError::Stalled)),
                };
                self.later(after, listed(request_id, result));
            }
            Output::Fetch { request_id, identifier, url, oids } => {
                let mirror = &self.mirrors[&url];
                let has_all = oids.is_subset(&mirror.objects);
                let (after, got, error) = match mirror.mood {
                    Mood::Fine | Mood::Hides if has_all => (LATENCY, oids, None),
                    Mood::Silent => (5 * MINUTE, BTreeSet::new(), Some(FetchError::Stalled)),
                    _ => {
                        let refused = FetchError::Refused(PeerText::new("not our ref"));
                        (LATENCY, BTreeSet::new(), Some(refused))
                    }
                };
                let fetched = Input::Ended { request_id, got: got.clone(), error };
                let number = self.later(after, fetched);
                self.fetching.insert(number, (identifier, got));
            }
            Output::Classify { host, .. } => {
                self.later(LATENCY, Input::Classified { host, class: Some(HostClass::Grasp) });
            }
            Output::Cancel { .. } => {} // Its end comes in its own time.
            Output::ListIdentifiers => {
                let identifiers = NAMES.map(name).into();
                self.later(Duration::ZERO, Input::IdentifiersListed { identifiers });
            }
            Output::Report(report @ HuntReport::Complete { .. }) => {
                self.pass_back(&report);
                let HuntReport::Complete { identifier } = report else { unreachable!() };
                let mut wants = self.wants(&identifier);
                wants.retain(|want| want.phase == Phase::Waiting);
                assert!(wants.is_empty() || !self.world.hunts.is_empty(), "{wants:?}");
            }
            Output::Report(report) => self.pass_back(&report),
        }
    }

    fn restart(&mut self) {
        self.world.hunts.clear();
        self.world.restart(MINUTE);
        self.hunter = Hunter::new(HuntConfig::default(), self.world.now);
        self.ends.clear();
        self.fetching.clear();
        self.pass_on();
    }

    fn perform_deed(&mut self, deed: &Deed) -> Powered {
        match deed {
            Deed::Sync(event) => self.world.sync(&EVENTS[*event]).map(drop),
            Deed::Appear(place, object) => {
                let mirror = self.mirrors.values_mut().nth(*place).unwrap();
                mirror.objects.insert(oid(*object));
                Ok(())
            }
            Deed::Mood(place, mood) => {
                self.mirrors.values_mut().nth(*place).unwrap().mood = *mood;
                Ok(())
            }
            Deed::Wait(seconds) => self.run_for(Duration::from_secs(*seconds)),
            Deed::Cut(fuse) => {
                self.world.fuse = Some(*fuse);
                Ok(())
            }
            Deed::Restart => {
                self.restart();
                Ok(())
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Sync(usize),
    Appear(usize, u8),
    Mood(usize, Mood),
    Wait(u64),
    Cut(usize),
    Restart,
}

fn deed() -> impl Strategy<Value = Deed> {
    let moods = [Mood::Fine, Mood::Gone, Mood::Silent, Mood::Hides];
    let mood = proptest::sample::select(moods.to_vec());
    prop_oneof![
        5 => (0..EVENTS.len()).prop_map(Deed::Sync),
        5 => (0..3usize, 1..8u8).prop_map(|(place, object)| Deed::Appear(place, object)),
        2 => (0..3usize, mood).prop_map(|(place, mood)| Deed::Mood(place, mood)),
        3 => (0..30u64).prop_map(Deed::Wait),
        2 => (60..3_600u64).prop_map(Deed::Wait),
        1 => (0..40usize).prop_map(Deed::Cut),
        1 => Just(Deed::Restart),
    ]
}

/// Alice's repository and its state have come, and their data is nowhere.
fn waiting() -> Chase {
    let mut chase = Chase::new();
    for event in [0, 3] {
        chase.world.sync(&EVENTS[event]).unwrap();
    }
    chase.run_for(Duration::from_secs(1)).unwrap();
    chase
}

fn is_served(chase: &Chase, event: usize) -> bool {
    chase.world.disk.store.contains(&EVENTS[event].id)
}

#[test]
fn data_that_appears_after_ten_minutes_is_released_within_two_more() {
    let mut chase = waiting();
    chase.run_for(10 * MINUTE).unwrap();
    assert!(!is_served(&chase, 3));
    chase.perform_deed(&Deed::Appear(0, 1)).unwrap();
    chase.perform_deed(&Deed::Appear(1, 1)).unwrap();
    chase.perform_deed(&Deed::Appear(2, 1)).unwrap();
    chase.run_for(2 * MINUTE + Duration::from_secs(1)).unwrap();
    assert!(is_served(&chase, 3) && is_served(&chase, 0));
    assert_eq!(chase.hunter.schedule_at(Mono::ZERO).count(), 0);
}

#[test]
fn data_that_never_appears_is_given_up_after_half_an_hour() {
    let mut chase = waiting();
    chase.run_for(29 * MINUTE).unwrap();
    assert_eq!(chase.world.core.counts().states, 1);
    chase.run_for(4 * MINUTE).unwrap();
    let counts = chase.world.core.counts();
    assert_eq!((counts.announcements, counts.states, counts.expired), (0, 0, 2));
    assert_eq!(
        chase.hunter.schedule_at(Mono::ZERO).count(),
        0,
        "only the hourly turn looks for it now"
    );
    assert!(!is_served(&chase, 0) && !is_served(&chase, 3));
}

#[test]
fn a_restart_in_the_middle_of_a_hunt_loses_nothing() {
    let mut chase = waiting();
    chase.run_for(5 * MINUTE).unwrap();
    chase.restart();
    assert_eq!(chase.hunter.schedule_at(Mono::ZERO).count(), 1, "rebuilt from the journal");
    (0..3).for_each(|place| chase.perform_deed(&Deed::Appear(place, 1)).unwrap());
    chase.run_for(Duration::from_secs(5)).unwrap();
    assert!(is_served(&chase, 3));
}

#[test]
fn what_waits_for_its_turn_for_longer_than_its_time_is_released_nevertheless() {
    let slow = HostLimits { starts: NonZeroUsize::MIN, per: 45 * MINUTE, ..HostLimits::default() };
    let config = HuntConfig { per_host: slow, per_grasp_host: slow, ..HuntConfig::default() };
    let mut chase = Chase::with(config);
    (0..3).for_each(|place| chase.perform_deed(&Deed::Appear(place, 1)).unwrap());
    for event in [0, 2, 3, 7] {
        chase.world.sync(&EVENTS[event]).unwrap();
    }
    chase.run_for(44 * MINUTE).unwrap();
    let served = [3, 7].map(|event| is_served(&chase, event));
    assert!(served[0] != served[1], "one at a time");
    assert_eq!(chase.world.core.counts().states, 1, "the other has not expired");
    chase.run_for(2 * MINUTE).unwrap();
    assert!(is_served(&chase, 3) && is_served(&chase, 7));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_somewhere_is_found_and_what_is_found_is_released(deeds in vec(deed(), 1..40)) {
        let mut chase = Chase::new();
        for deed in &deeds {
            if chase.perform_deed(deed).is_err() {
                chase.restart();
            }
            if chase.world.is_quiet() {
                chase.world.check();
            }
        }
        chase.world.fuse = None;
        // In the end everybody has everything, and nobody who waits waits for long.
        for mirror in chase.mirrors.values_mut() {
            *mirror = Mirror { mood: Mood::Fine, objects: (1..8).map(oid).collect() };
        }
        chase.run_for(70 * MINUTE).unwrap();
        chase.world.check();
        for identifier in NAMES.map(name) {
            let mut wants = chase.wants(&identifier);
            wants.retain(|want| !want.trusted.is_empty());
            prop_assert!(wants.is_empty(), "still wanted: {wants:?}");
        }
        prop_assert_eq!(chase.hunter.schedule_at(Mono::ZERO).count(), 0);
    }
}
