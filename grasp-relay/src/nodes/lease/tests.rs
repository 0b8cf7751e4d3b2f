use super::*;

const START: Mono = Mono::from_secs(100);

fn other() -> Arc<str> {
    "http://b:7334".into()
}

/// Returns a node that became the writer at the start.
fn writer() -> Lease {
    let mut lease = Lease::new(START);
    assert_eq!(lease.handle(START, Input::Time), [Output::Claim]);
    assert_eq!(
        lease.handle(START, Input::Held),
        [Output::Follow(None), Output::Start]
    );
    assert_eq!(lease.handle(START, Input::Started), []);
    lease
}

#[test]
fn a_free_lease_makes_a_writer_that_renews_every_second() {
    let mut lease = writer();
    assert_eq!(lease.next_deadline(), Some(START + CLAIM_INTERVAL));
    let later = START + CLAIM_INTERVAL;
    assert_eq!(lease.handle(later, Input::Time), [Output::Claim]);
    assert_eq!(lease.handle(later, Input::Time), [], "one claim at a time");
    assert_eq!(lease.handle(later, Input::Held), []);
}

#[test]
fn a_writer_that_cannot_renew_steps_back_when_its_lease_may_have_expired() {
    let mut lease = writer();
    let now = loop {
        let now = lease.next_deadline().expect("a deadline");
        let outputs = lease.handle(now, Input::Time);
        if outputs.contains(&Output::Stop) {
            break now;
        }
        lease.handle(now, Input::ClaimFailed);
    };
    assert_eq!(now, START + LEASE);
    assert_eq!(lease.handle(now, Input::Stopped), [Output::Follow(None)]);
    assert_eq!(lease.handle(now + LEASE, Input::Time), [Output::Claim]);
}

#[test]
fn the_lease_counts_from_the_claim_and_not_from_its_answer() {
    let mut lease = Lease::new(START);
    lease.handle(START, Input::Time);
    lease.handle(START + Duration::from_secs(4), Input::Held);
    lease.handle(START + Duration::from_secs(4), Input::Started);
    let outputs = lease.handle(START + LEASE, Input::Time);
    assert!(outputs.contains(&Output::Stop), "{outputs:?}");
}

#[test]
fn a_reader_claims_again_when_the_lease_of_the_writer_ends() {
    let mut lease = Lease::new(START);
    lease.handle(START, Input::Time);
    let remaining = Duration::from_millis(300);
    let outputs = lease.handle(START, Input::HeldBy(other(), remaining));
    assert_eq!(outputs, [Output::Follow(Some(other()))]);
    assert_eq!(lease.next_deadline(), Some(START + remaining));
    lease.handle(START + remaining, Input::Time);
    assert_eq!(
        lease.handle(START + remaining, Input::HeldBy(other(), LEASE)),
        []
    );
}

#[test]
fn a_writer_that_lost_its_lease_stops_and_follows_the_new_one() {
    let mut lease = writer();
    let now = START + CLAIM_INTERVAL;
    assert_eq!(lease.handle(now, Input::Time), [Output::Claim]);
    assert_eq!(
        lease.handle(now, Input::HeldBy(other(), LEASE)),
        [Output::Stop]
    );
    assert_eq!(
        lease.handle(now, Input::Stopped),
        [Output::Follow(Some(other()))]
    );
}

#[test]
fn parts_that_start_after_the_lease_was_lost_are_stopped() {
    let mut lease = Lease::new(START);
    lease.handle(START, Input::Time);
    lease.handle(START, Input::Held);
    let outputs = lease.handle(START + LEASE, Input::Time);
    assert_eq!(outputs, [], "the parts do not run yet");
    assert_eq!(lease.handle(START + LEASE, Input::Started), [Output::Stop]);
    assert_eq!(
        lease.handle(START + LEASE, Input::Stopped),
        [Output::Follow(None)]
    );
}

#[test]
fn a_node_that_cannot_start_to_write_leaves_it_to_others() {
    let mut lease = Lease::new(START);
    lease.handle(START, Input::Time);
    lease.handle(START, Input::Held);
    assert_eq!(lease.handle(START, Input::StartFailed), [Output::Release]);
    assert_eq!(lease.next_deadline(), Some(START + CLAIM_INTERVAL));
}

#[test]
fn a_process_that_stops_gives_the_lease_back_after_its_parts_have_stopped() {
    let mut lease = writer();
    assert_eq!(lease.handle(START, Input::Shutdown), [Output::Stop]);
    assert_eq!(lease.handle(START, Input::Stopped), [Output::Release]);
    assert_eq!(lease.next_deadline(), None);
    let mut starting = Lease::new(START);
    starting.handle(START, Input::Time);
    starting.handle(START, Input::Held);
    assert_eq!(starting.handle(START, Input::Shutdown), []);
    assert_eq!(starting.handle(START, Input::Started), [Output::Stop]);
    assert_eq!(starting.handle(START, Input::Stopped), [Output::Release]);
}

#[test]
fn a_renewal_that_is_answered_after_the_end_is_given_back() {
    let mut lease = writer();
    lease.handle(START + CLAIM_INTERVAL, Input::Time);
    lease.handle(START + CLAIM_INTERVAL, Input::Shutdown);
    assert_eq!(
        lease.handle(START + CLAIM_INTERVAL, Input::Held),
        [Output::Release]
    );
}

/// Many nodes and one lease in virtual time: nodes die, hang and come back, claims are slow or lost.
mod simulated {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use proptest::test_runner::TestRng;

    use super::*;
    use crate::nodes::CLAIM_TIMEOUT;

    /// Longest start of the writer's parts.
    const MAX_START: Duration = Duration::from_millis(400);

    /// Longest time from a claim to its answer.
    const MAX_ANSWER: Duration = Duration::from_millis(80);

    /// The lease as the database keeps it.
    #[derive(Default)]
    struct Row {
        epoch: u64,
        holder: Option<usize>,
        expires: Mono,
    }

    struct SimulatedNode {
        lease: Lease,
        /// The epoch under which it writes.
        epoch: Option<u64>,
        /// True if the parts of the writer run.
        is_writing: bool,
        follows: Option<usize>,
        is_alive: bool,
        /// The number of its process.
        life: u64,
        /// The node is hung until this time.
        hangs_until: Mono,
    }

    enum Event {
        /// The end of something that a process began, which only that process handles.
        Answered(usize, u64, Input, Option<u64>),
        Started(usize, u64),
        Stopped(usize, u64),
        Dies(usize),
        Returns(usize),
        Hangs(usize, Duration),
    }

    struct World {
        now: Mono,
        row: Row,
        nodes: Vec<SimulatedNode>,
        queue: BTreeMap<(Mono, u64), Event>,
        sequence: u64,
        rng: TestRng,
        claims: u64,
        loses_claims: bool,
        /// The last time at which a node could commit.
        written_at: Mono,
        longest_gap: Duration,
    }

    fn name(node: usize) -> Arc<str> {
        node.to_string().into()
    }

    impl World {
        fn new(nodes: usize, rng: TestRng) -> Self {
            let node = |_| SimulatedNode {
                lease: Lease::new(START),
                epoch: None,
                is_writing: false,
                follows: None,
                is_alive: true,
                life: 0,
                hangs_until: START,
            };
            Self {
                now: START,
                row: Row {
                    expires: START,
                    ..Row::default()
                },
                nodes: (0..nodes).map(node).collect(),
                queue: BTreeMap::new(),
                sequence: 0,
                rng,
                claims: 0,
                loses_claims: true,
                written_at: START,
                longest_gap: Duration::ZERO,
            }
        }

        fn random(&mut self, below: Duration) -> Duration {
            Duration::from_micros(self.rng.next_u64() % (below.as_micros() as u64 + 1))
        }

        fn schedule(&mut self, after: Duration, event: Event) {
            self.sequence += 1;
            self.queue.insert((self.now + after, self.sequence), event);
        }

        /// Answers a claim as the database does: by its own clock, in one step.
        fn claim(&mut self, node: usize) {
            let life = self.nodes[node].life;
            self.claims += 1;
            let after = self.random(MAX_ANSWER);
            if self.loses_claims && self.rng.next_u64() % 50 < 1 {
                return self.schedule(
                    CLAIM_TIMEOUT,
                    Event::Answered(node, life, Input::ClaimFailed, None),
                );
            }
            let is_own =
                self.row.holder == Some(node) && self.nodes[node].epoch == Some(self.row.epoch);
            let is_free = self.row.holder.is_none() || self.row.expires <= self.now;
            if !is_own && !is_free {
                let holder = self.row.holder.map(name).unwrap_or_default();
                let remaining = self.row.expires - self.now;
                return self.schedule(
                    after,
                    Event::Answered(node, life, Input::HeldBy(holder, remaining), None),
                );
            }
            if !is_own {
                self.row.epoch += 1;
            }
            (self.row.holder, self.row.expires) = (Some(node), self.now + LEASE);
            let epoch = self.row.epoch;
            self.schedule(after, Event::Answered(node, life, Input::Held, Some(epoch)));
        }

        fn input(&mut self, node: usize, input: Input) {
            let (now, life) = (self.now, self.nodes[node].life);
            for output in self.nodes[node].lease.handle(now, input) {
                match output {
                    Output::Claim => self.claim(node),
                    Output::Start => {
                        let after = self.random(MAX_START);
                        self.schedule(after, Event::Started(node, life));
                    }
                    Output::Stop => {
                        self.nodes[node].is_writing = false;
                        let after = self.random(MAX_START);
                        self.schedule(after, Event::Stopped(node, life));
                    }
                    Output::Follow(other) => {
                        self.nodes[node].follows = other.and_then(|name| name.parse().ok());
                    }
                    Output::Release => {
                        if self.row.holder == Some(node)
                            && self.nodes[node].epoch == Some(self.row.epoch)
                        {
                            self.row.expires = self.now;
                        }
                    }
                }
            }
        }

        fn happen(&mut self, event: Event) {
            let (Event::Answered(node, ..)
            | Event::Started(node, _)
            | Event::Stopped(node, _)
            | Event::Dies(node)
            | Event::Returns(node)
            | Event::Hangs(node, _)) = event;
            let hangs_until = self.nodes[node].hangs_until;
            if hangs_until > self.now {
                match event {
                    Event::Dies(_) | Event::Returns(_) => {}
                    Event::Hangs(..) => return,
                    later => return self.schedule(hangs_until - self.now, later),
                }
            }
            match event {
                Event::Dies(_) => {
                    let now = self.now;
                    let dead = &mut self.nodes[node];
                    (dead.lease, dead.epoch, dead.is_writing) = (Lease::new(now), None, false);
                    (dead.is_alive, dead.hangs_until) = (false, now);
                    dead.life += 1;
                }
                // Of two deaths within seven seconds, the first return counts.
                Event::Returns(_) if self.nodes[node].is_alive => {}
                Event::Returns(_) => {
                    let now = self.now;
                    (self.nodes[node].is_alive, self.nodes[node].lease) = (true, Lease::new(now));
                }
                _ if !self.nodes[node].is_alive => {}
                Event::Answered(_, life, ..)
                | Event::Started(_, life)
                | Event::Stopped(_, life)
                    if life != self.nodes[node].life => {}
                Event::Hangs(_, time) => self.nodes[node].hangs_until = self.now + time,
                Event::Answered(_, _, input, epoch) => {
                    self.nodes[node].epoch = epoch.or(self.nodes[node].epoch);
                    self.input(node, input);
                }
                Event::Started(..) => {
                    self.nodes[node].is_writing = true;
                    self.input(node, Input::Started);
                }
                Event::Stopped(..) => self.input(node, Input::Stopped),
            }
        }

        /// Runs until a time. Every node commits all the time; the database takes what is under the lease's epoch.
        fn run(&mut self, until: Mono) {
            loop {
                let deadlines = self
                    .nodes
                    .iter()
                    .enumerate()
                    .filter(|(_, node)| node.is_alive);
                let next = deadlines
                    .filter_map(|(n, node)| {
                        Some((
                            node.lease
                                .next_deadline()?
                                .max(node.hangs_until)
                                .max(self.now),
                            n,
                        ))
                    })
                    .min();
                let event = self.queue.keys().next().map(|(at, _)| *at);
                let at = next
                    .map(|(at, _)| at)
                    .into_iter()
                    .chain(event)
                    .min()
                    .unwrap_or(until);
                if at >= until {
                    return self.observe(until);
                }
                self.observe(at);
                if event == Some(at) {
                    if let Some((_, event)) = self.queue.pop_first() {
                        self.happen(event);
                    }
                } else if let Some((_, node)) = next {
                    self.input(node, Input::Time);
                }
            }
        }

        /// Notes which node could commit since the last step. The database allows at most one.
        fn observe(&mut self, now: Mono) {
            let can_commit = |node: &&SimulatedNode| {
                node.is_alive
                    && node.is_writing
                    && node.hangs_until <= self.now
                    && node.epoch == Some(self.row.epoch)
            };
            if self.nodes.iter().any(|node| can_commit(&node)) {
                self.longest_gap = self.longest_gap.max(self.now - self.written_at);
                self.written_at = now;
            }
            self.now = now;
        }

        fn writers(&self) -> Vec<usize> {
            let writing = |n: &usize| self.nodes[*n].is_alive && self.nodes[*n].is_writing;
            (0..self.nodes.len()).filter(writing).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn after_any_failures_there_is_one_writer_that_all_nodes_follow(
            count in prop_oneof![Just(1_usize), 2..6_usize, Just(100)],
            faults in prop::collection::vec((0..60_000_u64, any::<u8>(), any::<u16>()), 0..40),
            seed in any::<[u8; 32]>(),
        ) {
            let rng = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed);
            let mut world = World::new(count, rng);
            for (at, kind, which) in faults {
                let (at, node) = (Duration::from_millis(at), usize::from(which) % count);
                match kind % 3 {
                    0 => {
                        world.schedule(at, Event::Dies(node));
                        world.schedule(at + Duration::from_secs(7), Event::Returns(node));
                    }
                    1 => world.schedule(at, Event::Hangs(node, Duration::from_secs(30))),
                    _ => world.schedule(at, Event::Hangs(node, Duration::from_millis(700))),
                }
            }
            world.run(START + Duration::from_secs(95));
            // The last fault is over, and no claim is lost any more: a lease, and the claims after it.
            world.loses_claims = false;
            world.run(START + Duration::from_secs(110));
            let writers = world.writers();
            prop_assert_eq!(writers.len(), 1, "{:?}", writers);
            let writer = writers[0];
            prop_assert_eq!(world.nodes[writer].epoch, Some(world.row.epoch));
            for (n, node) in world.nodes.iter().enumerate().filter(|(n, _)| *n != writer) {
                prop_assert_eq!(node.follows, Some(writer), "node {}", n);
            }
        }

        #[test]
        fn a_writer_that_dies_is_replaced_within_a_lease_and_a_second(
            count in prop_oneof![2..6_usize, Just(100)],
            at in 3_000..20_000_u64,
            seed in any::<[u8; 32]>(),
        ) {
            let rng = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed);
            let mut world = World { loses_claims: false, ..World::new(count, rng) };
            world.run(START + Duration::from_millis(at));
            world.longest_gap = Duration::ZERO;
            let Some(writer) = world.row.holder else { return Ok(()) };
            world.schedule(Duration::ZERO, Event::Dies(writer));
            world.run(START + Duration::from_millis(at) + Duration::from_secs(20));
            let bound = LEASE + Duration::from_secs(1);
            prop_assert!(world.longest_gap <= bound, "{:?}", world.longest_gap);
        }
    }

    #[test]
    fn a_hundred_nodes_claim_a_hundred_times_a_second() {
        let rng = TestRng::deterministic_rng(prop::test_runner::RngAlgorithm::ChaCha);
        let mut world = World::new(100, rng);
        world.run(START + Duration::from_secs(60));
        assert!((5_000..=7_500).contains(&world.claims), "{}", world.claims);
    }
}
