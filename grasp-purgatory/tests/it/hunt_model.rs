//! A hunt and a purgatory together, through random arrivals, failures and restarts: objects that some server has are
//! found, and their events are released.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use grasp_core::limits::PeerText;
use grasp_core::service::npub;
use grasp_core::{CloneUrl, Now, Oid, RelayUrl, RepoId};
use grasp_purgatory::git::Fetched;
use grasp_purgatory::hunt::{
    Advertisement, FetchError, HostClass, HostLimits, HuntConfig, HuntHandle, HuntReport, Scope,
    SyncContext, hunt,
};
use grasp_purgatory::{Phase, Want};
use nostr::event::Event;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::model_events::*;
use crate::model_world::{PowerCut, StepResult, World};

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
    /// Never answers.
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
    server: Arc<Server>,
    hunting: HuntHandle,
}

/// The server around a hunt. Of several, only that of the last start acts.
struct Server {
    state: Arc<Mutex<ServerState>>,
    changed: Arc<Notify>,
    start: usize,
}

struct ServerState {
    world: World,
    mirrors: BTreeMap<CloneUrl, Mirror>,
    starts: usize,
    has_lost_power: bool,
    violations: Vec<String>,
    begun: Instant,
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

impl ServerState {
    fn now(&self) -> Now {
        let began = Now::new(
            grasp_core::Mono::ZERO,
            nostr::types::Timestamp::from_secs(START),
        );
        began.after(self.begun.elapsed())
    }

    /// Performs a step of the server at the present time.
    fn step(&mut self, step: impl FnOnce(&mut World) -> StepResult) {
        let passed = self.now().mono - self.world.now.mono;
        if self
            .world
            .wait(passed)
            .and_then(|()| step(&mut self.world))
            .is_err()
        {
            self.has_lost_power = true;
        }
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
}

impl Server {
    /// Returns the state, unless the server was restarted or has lost power.
    fn state(&self) -> Option<MutexGuard<'_, ServerState>> {
        let state = self.state.lock().unwrap();
        (state.starts == self.start && !state.has_lost_power).then_some(state)
    }

    /// Performs a step, if the server runs.
    fn step(&self, step: impl FnOnce(&mut World) -> StepResult) {
        if let Some(mut state) = self.state() {
            state.step(step);
            self.changed.notify_one();
        }
    }

    /// Asks a mirror, and returns its behaviour and objects.
    async fn ask(&self, url: &CloneUrl) -> (Behaviour, BTreeSet<Oid>) {
        sleep(LATENCY).await;
        let (behaviour, objects) = {
            let state = self.state.lock().unwrap();
            let mirror = &state.mirrors[url];
            (mirror.behaviour, mirror.objects.clone())
        };
        if behaviour == Behaviour::Silent {
            std::future::pending().await
        }
        (behaviour, objects)
    }
}

impl SyncContext for Server {
    fn now(&self) -> Now {
        self.state.lock().unwrap().now()
    }

    async fn wants(&self, repo: &RepoId, scope: Scope) -> Option<Vec<Want>> {
        let mut wants = self.state()?.wants(repo);
        wants.retain(|want| scope == Scope::Everything || want.phase == Phase::Waiting);
        Some(wants)
    }

    async fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> Result<Advertisement, FetchError> {
        match self.ask(url).await {
            (Behaviour::Gone, _) => Err(FetchError::Unreachable(PeerText::new("gone"))),
            (Behaviour::Hides, _) => Ok(Advertisement::read([], wanted)),
            (_, objects) => {
                let refs = objects.iter().map(|oid| ("refs/heads/x", *oid));
                Ok(Advertisement::read(refs, wanted))
            }
        }
    }

    async fn classify(&self, _: &RelayUrl) -> Option<HostClass> {
        Some(HostClass::Grasp)
    }

    async fn fetch(
        &self,
        repo: &RepoId,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        _: oneshot::Sender<()>,
    ) -> Fetched {
        let (behaviour, objects) = self.ask(url).await;
        if behaviour == Behaviour::Gone || !oids.is_subset(&objects) {
            return Fetched::nothing(FetchError::Refused(PeerText::new("not our ref")));
        }
        let numbers: Vec<u8> = oids.iter().map(|oid| oid.as_bytes()[0]).collect();
        self.step(|world| world.fetch(repo, &numbers));
        Fetched {
            got: oids.clone(),
            error: None,
            bytes: 0,
        }
    }

    async fn repos(&self) -> BTreeSet<RepoId> {
        repos().into()
    }

    fn report(&self, report: &HuntReport) {
        if let Some(input) = report.for_purgatory() {
            self.step(|world| world.handle(input));
        }
        let (HuntReport::Complete { repo }, Some(mut state)) = (report, self.state()) else {
            return;
        };
        let mut wants = state.wants(repo);
        wants.retain(|want| want.phase == Phase::Waiting);
        if !wants.is_empty() && state.world.hunts.is_empty() {
            state.violations.push(format!("complete without {wants:?}"));
        }
    }
}

impl HuntModel {
    fn new() -> Self {
        Self::with(HuntConfig::default())
    }

    fn with(config: HuntConfig) -> Self {
        let addresses = [mirror(ALICE, "x"), mirror(BOB, "x"), mirror(ALICE, "y")];
        let empty = |address| {
            let mirror = Mirror {
                behaviour: Behaviour::Fine,
                objects: BTreeSet::new(),
            };
            (address, mirror)
        };
        let state = ServerState {
            world: World::new(),
            mirrors: addresses.into_iter().map(empty).collect(),
            starts: 0,
            has_lost_power: false,
            violations: Vec::new(),
            begun: Instant::now(),
        };
        Self::start(Arc::new(Mutex::new(state)), config)
    }

    /// Starts the server.
    fn start(state: Arc<Mutex<ServerState>>, config: HuntConfig) -> Self {
        let start = state.lock().unwrap().starts;
        let server = Arc::new(Server {
            state,
            changed: Arc::default(),
            start,
        });
        let hunting = hunt(config, server.clone());
        Self { server, hunting }
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.server.state.lock().unwrap()
    }

    async fn run_for(&mut self, length: Duration) -> StepResult {
        let end = Instant::now() + length;
        loop {
            let (next, begun) = {
                let mut state = self.state();
                state.step(|_| Ok(()));
                assert!(state.violations.is_empty(), "{:?}", state.violations);
                if state.has_lost_power {
                    return Err(PowerCut);
                }
                for (repo, after) in std::mem::take(&mut state.world.hunts) {
                    self.hunting.want(repo, after);
                }
                (state.world.core.next_deadline(), state.begun)
            };
            let deadline = next.map_or(end, |at| begun + at.since_start());
            let pause = deadline.min(end).saturating_duration_since(Instant::now());
            let has_changed = timeout(pause, self.server.changed.notified()).await.is_ok();
            if !has_changed && Instant::now() >= end {
                return Ok(());
            }
        }
    }

    /// Performs a step of the server.
    fn step(&self, step: impl FnOnce(&mut World) -> StepResult) -> StepResult {
        let mut state = self.state();
        state.step(step);
        if state.has_lost_power {
            Err(PowerCut)
        } else {
            Ok(())
        }
    }

    async fn restart(&mut self) {
        {
            // The tasks of the old hunt can do nothing any more.
            let mut state = self.state();
            state.starts += 1;
            state.has_lost_power = false;
            state.world.hunts.clear();
        }
        tokio::time::advance(MINUTE).await;
        {
            let mut state = self.state();
            let passed = state.now().mono - state.world.now.mono;
            state.world.restart(passed);
        }
        let state = self.server.state.clone();
        *self = Self::start(state, HuntConfig::default());
        self.run_for(Duration::ZERO).await.unwrap();
    }

    async fn scheduled(&self) -> usize {
        self.hunting.schedule().await.len()
    }

    async fn perform_action(&mut self, action: &Action) -> StepResult {
        match action {
            Action::Sync(event) => self.step(|world| world.sync(&EVENTS[*event]).map(drop))?,
            Action::Appear(address, object) => {
                let mut state = self.state();
                let mirror = state.mirrors.values_mut().nth(*address).unwrap();
                mirror.objects.insert(oid(*object));
            }
            Action::Behaviour(address, behaviour) => {
                let mut state = self.state();
                state.mirrors.values_mut().nth(*address).unwrap().behaviour = *behaviour;
            }
            Action::Wait(seconds) => self.run_for(Duration::from_secs(*seconds)).await?,
            Action::CutPower(steps) => self.state().world.steps_until_power_cut = Some(*steps),
            Action::Restart => self.restart().await,
        }
        Ok(())
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
async fn waiting() -> HuntModel {
    let mut model = HuntModel::new();
    for event in [0, 3] {
        model
            .step(|world| world.sync(&EVENTS[event]).map(drop))
            .unwrap();
    }
    model.run_for(Duration::from_secs(1)).await.unwrap();
    model
}

fn is_served(model: &HuntModel, event: usize) -> bool {
    model.state().world.disk.store.contains(&EVENTS[event].id)
}

#[tokio::test(start_paused = true)]
async fn data_that_appears_after_ten_minutes_is_released_within_two_more() {
    let mut model = waiting().await;
    model.run_for(10 * MINUTE).await.unwrap();
    assert!(!is_served(&model, 3));
    model.perform_action(&Action::Appear(0, 1)).await.unwrap();
    model.perform_action(&Action::Appear(1, 1)).await.unwrap();
    model.perform_action(&Action::Appear(2, 1)).await.unwrap();
    model
        .run_for(2 * MINUTE + Duration::from_secs(1))
        .await
        .unwrap();
    assert!(is_served(&model, 3) && is_served(&model, 0));
    assert_eq!(model.scheduled().await, 0);
}

#[tokio::test(start_paused = true)]
async fn events_whose_data_never_appears_expire_after_half_an_hour() {
    let mut model = waiting().await;
    model.run_for(29 * MINUTE).await.unwrap();
    assert_eq!(model.state().world.core.counts().states, 1);
    model.run_for(4 * MINUTE).await.unwrap();
    let counts = model.state().world.core.counts();
    assert_eq!(
        (counts.announcements, counts.states, counts.expired),
        (0, 0, 2)
    );
    assert_eq!(
        model.scheduled().await,
        0,
        "only the hourly pass looks for it now"
    );
    assert!(!is_served(&model, 0) && !is_served(&model, 3));
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_the_middle_of_a_hunt_loses_nothing() {
    let mut model = waiting().await;
    model.run_for(5 * MINUTE).await.unwrap();
    model.restart().await;
    assert_eq!(model.scheduled().await, 1, "rebuilt from the journal");
    for address in 0..3 {
        model
            .perform_action(&Action::Appear(address, 1))
            .await
            .unwrap();
    }
    model.run_for(Duration::from_secs(5)).await.unwrap();
    assert!(is_served(&model, 3));
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_hunt_is_queued_beyond_its_hold_time_is_released() {
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
    for address in 0..3 {
        model
            .perform_action(&Action::Appear(address, 1))
            .await
            .unwrap();
    }
    for event in [0, 2, 3, 7] {
        model
            .step(|world| world.sync(&EVENTS[event]).map(drop))
            .unwrap();
    }
    model.run_for(44 * MINUTE).await.unwrap();
    let served = [3, 7].map(|event| is_served(&model, event));
    assert!(served[0] != served[1], "one at a time");
    assert_eq!(
        model.state().world.core.counts().states,
        1,
        "the other has not expired"
    );
    model.run_for(2 * MINUTE).await.unwrap();
    assert!(is_served(&model, 3) && is_served(&model, 7));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn available_objects_are_found_and_their_events_released(actions in vec(action(), 1..40)) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(find_everything(&actions))?;
    }
}

async fn find_everything(actions: &[Action]) -> Result<(), TestCaseError> {
    let mut model = HuntModel::new();
    for action in actions {
        if model.perform_action(action).await.is_err() {
            model.restart().await;
        }
        let mut state = model.state();
        if state.world.is_idle() {
            state.world.check();
        }
    }
    {
        let mut state = model.state();
        state.world.steps_until_power_cut = None;
        // In the end every server has everything, and what is held is released soon.
        for mirror in state.mirrors.values_mut() {
            *mirror = Mirror {
                behaviour: Behaviour::Fine,
                objects: (1..8).map(oid).collect(),
            };
        }
    }
    model.run_for(70 * MINUTE).await.unwrap();
    {
        let mut state = model.state();
        state.world.check();
        for repo in repos() {
            let mut wants = state.wants(&repo);
            wants.retain(|want| !want.trusted.is_empty());
            prop_assert!(wants.is_empty(), "still wanted: {wants:?}");
        }
    }
    prop_assert_eq!(model.scheduled().await, 0);
    Ok(())
}
