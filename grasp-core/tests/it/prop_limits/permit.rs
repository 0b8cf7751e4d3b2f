use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::{Enqueued, Entry, Permit, PermitConfig, Permits};
use proptest::prelude::*;

use super::window::busiest;

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

/// A host and everything that was ever asked of it.
struct World {
    config: PermitConfig,
    permits: Permits<u8>,
    now: Mono,
    paused_until: Mono,
    running: Vec<Permit<u8>>,
    /// Uses under way that wait for one more start, by key.
    continuing: BTreeMap<u8, usize>,
    starts: Vec<Mono>,
    asked: BTreeMap<u8, usize>,
    served: BTreeMap<u8, usize>,
}

impl World {
    fn new(config: PermitConfig) -> Self {
        Self {
            config,
            permits: Permits::new(config),
            now: Mono::ZERO,
            paused_until: Mono::ZERO,
            running: Vec::new(),
            continuing: BTreeMap::new(),
            starts: Vec::new(),
            asked: BTreeMap::new(),
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
            Step::Pass(ms) => self.pass(Duration::from_millis(ms)),
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
            *self.asked.entry(key).or_default() += 1;
            self.started(started);
        }
    }

    fn admit(&mut self, key: u8) {
        if let Entry::Go(permit) = self.permits.admit(self.now, key) {
            assert_eq!(self.permits.waiting(), 0, "somebody was overtaken");
            *self.asked.entry(key).or_default() += 1;
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
        // What was withdrawn is not owed any more.
        let served = self.served.get(&key).copied().unwrap_or(0);
        self.asked.insert(key, served);
        let started = self.permits.withdraw(self.now, &key);
        self.started(started);
    }

    fn pass(&mut self, length: Duration) {
        self.now = self.now + length;
        let started = self.permits.due(self.now);
        self.started(started);
    }

    fn started(&mut self, permits: Vec<Permit<u8>>) {
        for permit in permits {
            assert!(self.now >= self.paused_until, "started during a pause");
            match self.continuing.get_mut(permit.key()).filter(|waiting| **waiting > 0) {
                // What continues comes before anything in line, its own key's turns included.
                Some(waiting) => *waiting -= 1,
                None => {
                    let waits = self.continuing.values().any(|waiting| *waiting > 0);
                    assert!(!waits, "overtaken by the line");
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

    /// Ends one use, or else lets time pass until somebody's turn.
    fn wind_down(&mut self) {
        if let Some(permit) = self.running.pop() {
            let started = self.permits.release(self.now, permit);
            self.started(started);
        } else if let Some(deadline) = self.permits.next_deadline() {
            self.pass(deadline - self.now);
        }
        self.check();
    }

    /// How often each key that still waits was served.
    fn served_of_the_waiting(&self) -> Vec<usize> {
        let served = |key| self.served.get(key).copied().unwrap_or(0);
        let counts = self.asked.iter().map(|(key, asked)| (asked, served(key)));
        counts.filter(|(asked, served)| *asked > served).map(|(_, served)| served).collect()
    }
}

proptest! {
    #![proptest_config(crate::config(512))]

    #[test]
    fn the_limits_hold_and_every_waiter_is_served(config in configs(), steps in steps()) {
        let mut world = World::new(config);
        for step in steps {
            world.take(step);
        }
        for _ in 0..4 * (world.permits.waiting() + world.permits.in_use()) {
            world.wind_down();
        }
        prop_assert!(busiest(&world.starts, config.per) <= config.starts.get());
        prop_assert_eq!(world.permits.waiting(), 0);
        prop_assert_eq!(world.permits.next_deadline(), None);
        world.asked.retain(|_, asked| *asked > 0);
        prop_assert_eq!(world.asked, world.served);
    }

    #[test]
    fn keys_that_wait_together_are_served_equally(
        config in configs(),
        line in prop::collection::vec(0..5_u8, 0..40),
    ) {
        let mut world = World::new(config);
        world.take(Step::Pause(1));
        for key in &line {
            world.take(Step::Enqueue(*key));
        }
        while world.permits.waiting() > 0 {
            world.wind_down();
            let served = world.served_of_the_waiting();
            let spread = served.iter().max().unwrap_or(&0) - served.iter().min().unwrap_or(&0);
            prop_assert!(spread <= 1, "{served:?}");
        }
    }
}
