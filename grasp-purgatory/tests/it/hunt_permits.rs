use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::Mono;
use grasp_purgatory::hunt::{Admission, Enqueued, Permit, PermitConfig, Permits};
use proptest::prelude::*;

use super::hunt_window::max_starts_per;

#[derive(Clone, Copy, Debug)]
enum Step {
    Enqueue(u8),
    Admit(u8),
    Release(prop::sample::Index),
    Continue(prop::sample::Index),
    Withdraw(u8),
    Pass(u64),
    Pause(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..5_u8).prop_map(Step::Enqueue),
        1 => (0..5_u8).prop_map(Step::Admit),
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
        2 => any::<prop::sample::Index>().prop_map(Step::Continue),
        1 => (0..5_u8).prop_map(Step::Withdraw),
        2 => (0..3_000_u64).prop_map(Step::Pass),
        1 => (0..2_000_u64).prop_map(Step::Pause),
    ];
    prop::collection::vec(step, 0..120)
}

fn configs() -> impl Strategy<Value = PermitConfig> {
    (1..5_usize, 1..6_usize, 1..5_000_u64).prop_map(|(at_once, starts, per)| PermitConfig {
        at_once: NonZeroUsize::new(at_once).unwrap(),
        starts: NonZeroUsize::new(starts).unwrap(),
        per: Duration::from_millis(per),
        max_waiting: 40,
    })
}

/// A host with a record of all uses.
struct Model {
    config: PermitConfig,
    permits: Permits<u8>,
    now: Mono,
    paused_until: Mono,
    running: Vec<Permit<u8>>,
    /// Uses that wait for one more start, by key.
    continuing: BTreeMap<u8, usize>,
    starts: Vec<Mono>,
    enqueued: BTreeMap<u8, usize>,
    served: BTreeMap<u8, usize>,
}

impl Model {
    fn new(config: PermitConfig) -> Self {
        Self {
            config,
            permits: Permits::new(config),
            now: Mono::ZERO,
            paused_until: Mono::ZERO,
            running: Vec::new(),
            continuing: BTreeMap::new(),
            starts: Vec::new(),
            enqueued: BTreeMap::new(),
            served: BTreeMap::new(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Enqueue(key) => self.enqueue(key),
            Step::Admit(key) => self.admit(key),
            Step::Release(index) => self.release(index),
            Step::Continue(index) => self.continue_with(index),
            Step::Withdraw(key) => self.withdraw(key),
            Step::Pass(ms) => self.advance(Duration::from_millis(ms)),
            Step::Pause(ms) => {
                let until = self.now + Duration::from_millis(ms);
                self.permits.pause_until(until);
                self.paused_until = self.paused_until.max(until);
            }
        }
        self.check();
    }

    fn enqueue(&mut self, key: u8) {
        if let Enqueued::InLine(started) = self.permits.enqueue(self.now, key) {
            *self.enqueued.entry(key).or_default() += 1;
            self.started(started);
        }
    }

    fn admit(&mut self, key: u8) {
        if let Admission::Go(permit) = self.permits.admit(self.now, key) {
            assert_eq!(self.permits.waiting(), 0, "a queued key was overtaken");
            *self.enqueued.entry(key).or_default() += 1;
            self.started(vec![permit]);
        }
    }

    fn release(&mut self, index: prop::sample::Index) {
        if !self.running.is_empty() {
            let permit = self.running.remove(index.index(self.running.len()));
            let started = self.permits.release(self.now, permit);
            self.started(started);
        }
    }

    fn continue_with(&mut self, index: prop::sample::Index) {
        if !self.running.is_empty() {
            let permit = self.running.remove(index.index(self.running.len()));
            *self.continuing.entry(*permit.key()).or_default() += 1;
            let started = self.permits.continue_with(self.now, permit);
            self.started(started);
        }
    }

    fn withdraw(&mut self, key: u8) {
        self.continuing.remove(&key);
        // A withdrawn key need not be served any more.
        let served = self.served.get(&key).copied().unwrap_or(0);
        self.enqueued.insert(key, served);
        let started = self.permits.withdraw(self.now, &key);
        self.started(started);
    }

    fn advance(&mut self, duration: Duration) {
        self.now = self.now + duration;
        let started = self.permits.due(self.now);
        self.started(started);
    }

    fn started(&mut self, permits: Vec<Permit<u8>>) {
        for permit in permits {
            assert!(self.now >= self.paused_until, "started during a pause");
            match self.continuing.get_mut(permit.key()).filter(|waiting| **waiting > 0) {
                // Continuing work comes before the queue, entries of its own key included.
                Some(waiting) => *waiting -= 1,
                None => {
                    let waits = self.continuing.values().any(|waiting| *waiting > 0);
                    assert!(!waits, "overtaken by the queue");
                    *self.served.entry(*permit.key()).or_default() += 1;
                }
            }
            self.starts.push(self.now);
            self.running.push(permit);
        }
    }

    fn check(&self) {
        let continuing: usize = self.continuing.values().sum();
        assert!(self.running.len() + continuing <= self.config.at_once.get());
        assert_eq!(self.running.len() + continuing, self.permits.in_use());
    }

    /// Ends one use, or else advances the time to the next deadline.
    fn wind_down(&mut self) {
        if let Some(permit) = self.running.pop() {
            let started = self.permits.release(self.now, permit);
            self.started(started);
        } else if let Some(deadline) = self.permits.next_deadline() {
            self.advance(deadline - self.now);
        }
        self.check();
    }

    /// Returns the number of starts of each key that is still queued.
    fn served_of_the_waiting(&self) -> Vec<usize> {
        let served = |key| self.served.get(key).copied().unwrap_or(0);
        let counts = self.enqueued.iter().map(|(key, enqueued)| (enqueued, served(key)));
        counts.filter(|(enqueued, served)| *enqueued > served).map(|(_, served)| served).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_limits_hold_and_every_queued_key_is_served(config in configs(), steps in steps()) {
        let mut model = Model::new(config);
        for step in steps {
            model.take(step);
        }
        for _ in 0..4 * (model.permits.waiting() + model.permits.in_use()) {
            model.wind_down();
        }
        prop_assert!(max_starts_per(&model.starts, config.per) <= config.starts.get());
        prop_assert_eq!(model.permits.waiting(), 0);
        prop_assert_eq!(model.permits.next_deadline(), None);
        model.enqueued.retain(|_, enqueued| *enqueued > 0);
        prop_assert_eq!(model.enqueued, model.served);
    }

    #[test]
    fn queued_keys_are_served_equally(
        config in configs(),
        line in prop::collection::vec(0..5_u8, 0..40),
    ) {
        let mut model = Model::new(config);
        model.take(Step::Pause(1));
        for key in &line {
            model.take(Step::Enqueue(*key));
        }
        while model.permits.waiting() > 0 {
            model.wind_down();
            let served = model.served_of_the_waiting();
            let spread = served.iter().max().unwrap_or(&0) - served.iter().min().unwrap_or(&0);
            prop_assert!(spread <= 1, "{served:?}");
        }
    }
}
