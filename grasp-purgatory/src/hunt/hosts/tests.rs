use std::collections::BTreeSet;

use nostr::key::PublicKey;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn limits(at_once: usize, starts: usize) -> HostLimits {
    HostLimits {
        at_once: NonZeroUsize::new(at_once).unwrap(),
        starts: NonZeroUsize::new(starts).unwrap(),
        ..HostLimits::default()
    }
}

fn hosts_with(at_once: usize, starts: usize) -> Hosts {
    Hosts::new(&HuntConfig {
        per_host: limits(at_once, starts),
        ..HuntConfig::default()
    })
}

fn host(name: &str) -> Host {
    name.parse().unwrap()
}

fn id(name: &str) -> RepoId {
    RepoId::new(PublicKey::from_byte_array([1; 32]), name.parse().unwrap())
}

fn names(permits: &[Permit]) -> Vec<&str> {
    permits
        .iter()
        .map(|permit| permit.repo.identifier.as_str())
        .collect()
}

#[test]
fn no_more_than_five_at_once() {
    let mut hosts = Hosts::new(&HuntConfig::default());
    let (now, git) = (Mono::ZERO, host("git.example.com"));
    let mut permits: Vec<_> = (0..5).map(|_| hosts.admit(now, &git, &id("x"))).collect();
    assert!(permits.iter().all(Option::is_some));
    assert!(hosts.admit(now, &git, &id("x")).is_none());
    assert!(
        hosts
            .admit(now, &host("other.example.com"), &id("x"))
            .is_some()
    );
    let _ = hosts.release(now, permits.pop().unwrap().unwrap());
    assert!(hosts.admit(now, &git, &id("x")).is_some());
}

#[test]
fn no_more_than_thirty_in_any_minute() {
    let mut hosts = Hosts::new(&HuntConfig::default());
    let git = host("git.example.com");
    for second in 0..30 {
        let now = Mono::from_secs(second);
        let permit = hosts.admit(now, &git, &id("x")).expect("within the limit");
        let _ = hosts.release(now, permit);
    }
    assert!(hosts.admit(Mono::from_secs(59), &git, &id("x")).is_none());
    let permit = hosts
        .admit(Mono::from_secs(60), &git, &id("x"))
        .expect("one has aged out");
    let _ = hosts.release(Mono::from_secs(60), permit);
    assert!(hosts.admit(Mono::from_secs(60), &git, &id("x")).is_none());
}

#[test]
fn repositories_take_turns_independent_of_their_number_of_addresses() {
    let mut hosts = hosts_with(1, 100);
    let (now, git) = (Mono::ZERO, host("git.example.com"));
    let mut permit = hosts.admit(now, &git, &id("first"));
    let mut more_of_a = 2;
    for name in ["a", "b", "c"] {
        assert!(hosts.enqueue(now, &git, &id(name)).unwrap().is_empty());
    }
    let mut order = Vec::new();
    while let Some(current) = permit.take() {
        order.push(current.repo.identifier.to_string());
        if current.repo == id("a") && more_of_a > 0 {
            more_of_a -= 1;
            assert!(hosts.enqueue(now, &git, &id("a")).unwrap().is_empty());
        }
        permit = hosts.release(now, current).pop();
    }
    assert_eq!(order, ["first", "a", "b", "c", "a", "a"]);
}

#[test]
fn a_start_follows_a_release_or_the_rate_limit_or_is_immediate() {
    let mut hosts = hosts_with(1, 2);
    let git = host("git.example.com");
    let now = hosts.enqueue(Mono::ZERO, &git, &id("a")).unwrap();
    assert_eq!(names(&now), ["a"], "an idle server is asked at once");
    assert!(
        hosts
            .enqueue(Mono::ZERO, &git, &id("b"))
            .unwrap()
            .is_empty()
    );
    assert_eq!(hosts.next_deadline(), None, "only a release helps");

    let next = hosts.release(Mono::from_secs(1), now.into_iter().next().unwrap());
    assert_eq!(names(&next), ["b"]);
    assert!(
        hosts
            .enqueue(Mono::from_secs(1), &git, &id("c"))
            .unwrap()
            .is_empty()
    );
    assert!(
        hosts
            .release(Mono::from_secs(2), next.into_iter().next().unwrap())
            .is_empty()
    );
    assert_eq!(
        hosts.next_deadline(),
        Some(Mono::from_secs(61)),
        "only time helps"
    );
    assert!(hosts.due(Mono::from_secs(60)).is_empty());
    assert_eq!(names(&hosts.due(Mono::from_secs(61))), ["c"]);
    assert_eq!(hosts.next_deadline(), None);
}

#[test]
fn a_withdrawn_request_is_not_started() {
    let mut hosts = hosts_with(1, 100);
    let (now, git) = (Mono::ZERO, host("git.example.com"));
    let permit = hosts.admit(now, &git, &id("a")).unwrap();
    let _ = hosts.enqueue(now, &git, &id("b"));
    hosts.withdraw(&git, &id("b"));
    assert!(hosts.release(now, permit).is_empty());
}

#[test]
fn a_pause_applies_to_queued_and_new_requests() {
    let mut hosts = hosts_with(5, 30);
    let git = host("git.example.com");
    hosts.limited(Mono::ZERO, &git, Mono::ZERO, Mono::from_secs(90));
    assert!(hosts.admit(Mono::from_secs(1), &git, &id("a")).is_none());
    assert!(
        hosts
            .enqueue(Mono::from_secs(1), &git, &id("a"))
            .unwrap()
            .is_empty()
    );
    assert_eq!(hosts.next_deadline(), Some(Mono::from_secs(90)));
    assert_eq!(names(&hosts.due(Mono::from_secs(90))), ["a"]);
}

#[test]
fn a_server_can_have_limits_of_its_own() {
    let hosts = BTreeMap::from([(host("big.example.com"), limits(2, 100))]);
    let config = HuntConfig {
        per_host: limits(1, 100),
        hosts,
        ..HuntConfig::default()
    };
    let mut hosts = Hosts::new(&config);
    for (name, most) in [("big.example.com", 2), ("small.example.com", 1)] {
        let admitted = (0..5).filter_map(|_| hosts.admit(Mono::ZERO, &host(name), &id("x")));
        assert_eq!(admitted.count(), most, "{name}");
    }
}

#[test]
fn the_limits_of_grasp_servers_apply_as_soon_as_the_class_is_known() {
    let mut hosts = hosts_with(1, 1);
    let (now, git) = (Mono::ZERO, host("git.example.com"));
    assert!(hosts.must_classify(now, &git));
    assert!(
        !hosts.must_classify(now, &git),
        "one request for the class is enough"
    );
    let _first = hosts.admit(now, &git, &id("a")).unwrap();
    for name in ["b", "c"] {
        assert!(hosts.enqueue(now, &git, &id(name)).unwrap().is_empty());
    }
    assert_eq!(
        names(&hosts.classified(now, &git, HostClass::Grasp)),
        ["b", "c"]
    );
    let figures: Vec<_> = hosts.figures().map(|(_, figures)| figures).collect();
    assert_eq!(
        (figures[0].class, figures[0].per_minute),
        (HostClass::Grasp, 600)
    );
    assert!(!hosts.must_classify(now + CLASS_LIFETIME - MINUTE, &git));
    assert!(hosts.must_classify(now + CLASS_LIFETIME, &git));
    // The host has another class by then.
    let _ = hosts.classified(now + CLASS_LIFETIME, &git, HostClass::Unknown);
    assert!(hosts.admit(now + CLASS_LIFETIME, &git, &id("d")).is_none());
}

#[test]
fn the_class_of_a_server_with_configured_limits_is_not_requested() {
    let git = host("big.example.com");
    let hosts = BTreeMap::from([(git.clone(), limits(2, 100))]);
    let mut hosts = Hosts::new(&HuntConfig {
        hosts,
        ..HuntConfig::default()
    });
    assert!(!hosts.must_classify(Mono::ZERO, &git));
    let _ = hosts.classified(Mono::ZERO, &git, HostClass::Grasp);
    assert!(
        hosts
            .figures()
            .all(|(_, figures)| figures.per_minute == 100)
    );
}

#[test]
fn the_rate_is_halved_after_a_rate_limit_and_recovers_slowly() {
    let mut hosts = hosts_with(8, 80);
    let git = host("git.example.com");
    let at = |hosts: &mut Hosts, second| {
        let _ = hosts.state(Mono::from_secs(second), &git);
        let figures = hosts.figures().next().unwrap().1;
        figures.per_minute
    };
    assert_eq!(at(&mut hosts, 0), 80);
    let ten = Mono::from_secs(10);
    hosts.limited(ten, &git, Mono::ZERO, ten);
    assert_eq!(at(&mut hosts, 10), 40);
    hosts.limited(Mono::from_secs(11), &git, Mono::from_secs(9), ten);
    assert_eq!(at(&mut hosts, 11), 40, "an answer to the same burst");
    hosts.limited(Mono::from_secs(12), &git, Mono::from_secs(11), ten);
    assert_eq!(at(&mut hosts, 12), 20);
    for second in [13, 14, 15] {
        hosts.limited(Mono::from_secs(second), &git, Mono::from_secs(second), ten);
    }
    assert_eq!(at(&mut hosts, 15), 10, "an eighth is the minimum");
    assert_eq!(at(&mut hosts, 74), 10);
    assert_eq!(at(&mut hosts, 75), 20);
    assert_eq!(at(&mut hosts, 15 + 7 * 60), 80);
    assert_eq!(at(&mut hosts, 15 + 70 * 60), 80);
}

#[test]
fn positions_refer_to_the_shortest_queue() {
    let mut hosts = hosts_with(1, 2);
    let (slow, fast) = (host("slow.example.com"), host("fast.example.com"));
    for git in [&slow, &fast] {
        let _ = hosts.admit(Mono::ZERO, git, &id("x"));
    }
    for name in ["a", "b", "c"] {
        let _ = hosts.enqueue(Mono::ZERO, &slow, &id(name));
    }
    let _ = hosts.enqueue(Mono::ZERO, &fast, &id("c"));
    let positions = hosts.positions();
    let of = |name| positions[&id(name)];
    assert_eq!(
        of("b"),
        QueuePosition {
            wait: Duration::ZERO,
            position: 2
        }
    );
    assert_eq!(
        of("c"),
        QueuePosition {
            wait: Duration::ZERO,
            position: 1
        }
    );
    assert!(!positions.contains_key(&id("x")));
}

#[test]
fn guesses_have_a_budget_per_server_and_minute() {
    let mut hosts = Hosts::new(&HuntConfig::default());
    let git = host("git.example.com");
    let asked = (0..10)
        .filter(|_| hosts.may_guess(Mono::ZERO, &git))
        .count();
    assert_eq!(asked, 6);
    assert!(hosts.may_guess(Mono::ZERO, &host("other.example.com")));
    assert!(hosts.may_guess(Mono::from_secs(60), &git));
}

#[test]
fn ten_thousand_servers_are_not_all_remembered() {
    let mut hosts = Hosts::new(&HuntConfig::default());
    for n in 0..10_000_u64 {
        let now = Mono::from_secs(n);
        let permit = hosts
            .admit(now, &host(&format!("h{n}.example.com")), &id("x"))
            .unwrap();
        let _ = hosts.release(now, permit);
        let _ = hosts.due(now);
    }
    assert!(
        hosts.hosts.len() <= MAX_HOSTS_KEPT + 1,
        "{}",
        hosts.hosts.len()
    );
}

const GIT: &str = "git.example.com";

/// One host with these limits.
struct OneHost {
    hosts: Hosts,
    git: Host,
}

impl OneHost {
    fn new(limits: HostLimits) -> Self {
        let hosts = Hosts::new(&HuntConfig {
            per_host: limits,
            ..HuntConfig::default()
        });
        Self {
            hosts,
            git: host(GIT),
        }
    }

    fn admit(&mut self, now: Mono, name: &str) -> Option<Permit> {
        self.hosts.admit(now, &self.git, &id(name))
    }

    fn enqueue(&mut self, now: Mono, name: &str) {
        assert_eq!(self.hosts.enqueue(now, &self.git, &id(name)), Some(vec![]));
    }

    fn release(&mut self, now: Mono, permit: Permit) -> Vec<String> {
        self.hosts
            .release(now, permit)
            .into_iter()
            .map(|permit| permit.repo.identifier.to_string())
            .collect()
    }

    fn due(&mut self, now: Mono) -> Vec<String> {
        self.hosts
            .due(now)
            .into_iter()
            .map(|permit| permit.repo.identifier.to_string())
            .collect()
    }

    fn pause_until(&mut self, until: Mono) {
        self.hosts.state(Mono::ZERO, &self.git).starts.paused_until = until;
    }

    fn figures(&self) -> HostFigures {
        self.hosts
            .figures()
            .next()
            .map(|(_, figures)| figures)
            .unwrap_or_default()
    }
}

#[test]
fn a_visit_that_has_begun_continues_before_the_queue() {
    let mut one = OneHost::new(limits(1, 1));
    let first = one.admit(Mono::ZERO, "a").unwrap();
    one.enqueue(Mono::ZERO, "b");
    assert_eq!(one.hosts.continue_with(Mono::from_secs(1), first), vec![]);
    assert_eq!(one.hosts.next_deadline(), Some(Mono::from_secs(61)));
    assert!(one.due(Mono::from_secs(60)).is_empty());
    let mut started = one.hosts.due(Mono::from_secs(61));
    assert_eq!(names(&started), ["a"]);
    assert_eq!(one.figures().in_flight, 1);
    assert!(
        one.release(Mono::from_secs(62), started.remove(0))
            .is_empty()
    );
    assert_eq!(one.due(Mono::from_secs(122)), ["b"]);
}

#[test]
fn withdrawing_a_visit_that_waits_to_continue_unblocks_the_queue() {
    let mut one = OneHost::new(limits(1, 2));
    let first = one.admit(Mono::ZERO, "a").unwrap();
    let mut started = one.hosts.continue_with(Mono::ZERO, first);
    assert_eq!(
        one.hosts.continue_with(Mono::ZERO, started.remove(0)),
        vec![]
    );
    one.enqueue(Mono::ZERO, "b");
    one.hosts.withdraw(&host(GIT), &id("a"));
    assert_eq!(one.due(Mono::from_secs(60)), ["b"]);
    assert_eq!(one.figures().in_flight, 1);
}

#[test]
fn a_full_queue_takes_no_further_repository() {
    let mut one = OneHost::new(HostLimits::default());
    one.pause_until(Mono::from_secs(1));
    (0..MAX_QUEUED).for_each(|n| one.enqueue(Mono::ZERO, &n.to_string()));
    assert_eq!(one.hosts.enqueue(Mono::ZERO, &host(GIT), &id("b")), None);
    assert_eq!(one.figures().waiting, MAX_QUEUED);
}

/// Returns the largest number of starts in any period of this length.
fn max_starts_per(starts: &[Mono], length: Duration) -> usize {
    let within = |from: Mono| move |at: &&Mono| **at >= from && **at < from + length;
    let counts = starts
        .iter()
        .map(|from| starts.iter().filter(within(*from)).count());
    counts.max().unwrap_or(0)
}

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
    vec(step, 0..120)
}

fn configs() -> impl Strategy<Value = HostLimits> {
    (1..5_usize, 1..6_usize, 1..5_000_u64).prop_map(|(at_once, starts, per)| HostLimits {
        per: Duration::from_millis(per),
        ..limits(at_once, starts)
    })
}

/// A host with a record of all uses. Each repo is queued once at a time.
struct Model {
    config: HostLimits,
    one: OneHost,
    now: Mono,
    paused_until: Mono,
    running: Vec<Permit>,
    /// Repositories of visits that wait for one more start.
    continuing: BTreeSet<RepoId>,
    queued: BTreeSet<RepoId>,
    starts: Vec<Mono>,
    served: BTreeMap<RepoId, usize>,
}

impl Model {
    fn new(config: HostLimits) -> Self {
        Self {
            config,
            one: OneHost::new(config),
            now: Mono::ZERO,
            paused_until: Mono::ZERO,
            running: Vec::new(),
            continuing: BTreeSet::new(),
            queued: BTreeSet::new(),
            starts: Vec::new(),
            served: BTreeMap::new(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Enqueue(key) => self.enqueue(&id(&key.to_string())),
            Step::Admit(key) => self.admit(&id(&key.to_string())),
            Step::Release(index) if !self.running.is_empty() => {
                let permit = self.running.remove(index.index(self.running.len()));
                self.release(permit);
            }
            Step::Continue(index) if !self.running.is_empty() => {
                let permit = self.running.remove(index.index(self.running.len()));
                self.continue_with(permit);
            }
            Step::Release(_) | Step::Continue(_) => {}
            Step::Withdraw(key) => {
                let repo = id(&key.to_string());
                self.continuing.remove(&repo);
                self.queued.remove(&repo);
                self.one.hosts.withdraw(&self.one.git, &repo);
            }
            Step::Pass(ms) => self.advance(Duration::from_millis(ms)),
            Step::Pause(ms) => {
                self.paused_until = self.paused_until.max(self.now + Duration::from_millis(ms));
                self.one.pause_until(self.paused_until);
            }
        }
        self.check();
    }

    fn waits(&self, repo: &RepoId) -> bool {
        self.queued.contains(repo) || self.continuing.contains(repo)
    }

    fn enqueue(&mut self, repo: &RepoId) {
        if self.waits(repo) {
            return;
        }
        if let Some(started) = self.one.hosts.enqueue(self.now, &self.one.git, repo) {
            self.queued.insert(repo.clone());
            self.started(started);
        }
    }

    fn admit(&mut self, repo: &RepoId) {
        if let Some(permit) = self.one.hosts.admit(self.now, &self.one.git, repo) {
            assert!(
                self.queued.is_empty() && self.continuing.is_empty(),
                "overtaken"
            );
            self.queued.insert(repo.clone());
            self.started(vec![permit]);
        }
    }

    fn release(&mut self, permit: Permit) {
        let started = self.one.hosts.release(self.now, permit);
        self.started(started);
    }

    fn continue_with(&mut self, permit: Permit) {
        if self.waits(&permit.repo) {
            return self.release(permit);
        }
        self.continuing.insert(permit.repo.clone());
        let started = self.one.hosts.continue_with(self.now, permit);
        self.started(started);
    }

    fn advance(&mut self, duration: Duration) {
        self.now = self.now + duration;
        let started = self.one.hosts.due(self.now);
        self.started(started);
    }

    fn started(&mut self, permits: Vec<Permit>) {
        for permit in permits {
            assert!(self.now >= self.paused_until, "started during a pause");
            if !self.continuing.remove(&permit.repo) {
                assert!(self.continuing.is_empty(), "overtaken by the queue");
                assert!(self.queued.remove(&permit.repo), "not asked for");
                *self.served.entry(permit.repo.clone()).or_default() += 1;
            }
            self.starts.push(self.now);
            self.running.push(permit);
        }
    }

    fn check(&self) {
        assert!(self.running.len() <= self.config.at_once.get());
        assert_eq!(self.running.len(), self.one.figures().in_flight);
        assert_eq!(
            self.queued.len() + self.continuing.len(),
            self.one.figures().waiting
        );
    }

    /// Ends one use, or else advances the time to the next deadline.
    fn wind_down(&mut self) {
        if let Some(permit) = self.running.pop() {
            self.release(permit);
        } else if let Some(deadline) = self.one.hosts.next_deadline() {
            self.advance(deadline - self.now);
        }
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_limits_hold_and_every_queued_repository_is_served(
        config in configs(),
        steps in steps(),
    ) {
        let mut model = Model::new(config);
        for step in steps {
            model.take(step);
        }
        for _ in 0..4 * (model.queued.len() + model.continuing.len() + model.running.len()) {
            model.wind_down();
        }
        prop_assert!(max_starts_per(&model.starts, config.per) <= config.starts.get());
        prop_assert_eq!(model.one.figures().waiting, 0);
        prop_assert_eq!(model.one.hosts.next_deadline(), None);
    }

    #[test]
    fn none_is_served_twice_while_another_waits(
        config in configs(),
        addresses in vec(0..8_usize, 5),
    ) {
        let mut model = Model::new(config);
        model.take(Step::Pause(1));
        let mut left: BTreeMap<RepoId, usize> =
            addresses.iter().enumerate().map(|(n, count)| (id(&n.to_string()), *count)).collect();
        // The starts of all when a repository was queued.
        let mut before = BTreeMap::new();
        while left.values().any(|count| *count > 0) {
            for (repo, count) in left.iter_mut().filter(|(_, count)| **count > 0) {
                let is_running = model.running.iter().any(|permit| permit.repo == *repo);
                if !is_running && !model.waits(repo) {
                    before.insert(repo.clone(), model.served.clone());
                    model.enqueue(repo);
                    *count -= 1;
                }
            }
            model.wind_down();
            for (other, served) in &model.served {
                let waiting = model.queued.iter().filter(|repo| *repo != other);
                for repo in waiting {
                    let already = before[repo].get(other).copied().unwrap_or_default();
                    prop_assert!(served - already <= 1, "{other} overtook {repo}");
                }
            }
        }
    }
}

fn most(max: usize) -> NonZeroUsize {
    NonZeroUsize::new(max).unwrap()
}

#[test]
fn a_postponed_start_counts_for_longer() {
    let mut window = RateWindow::new(MINUTE);
    assert!(window.admit(Mono::from_secs(0), most(2)));
    assert!(window.admit(Mono::from_secs(1), most(2)));
    window.postpone(Mono::from_secs(0), Mono::from_secs(5));
    assert_eq!(window.reopens_at(most(2)), Mono::from_secs(61));
    assert!(window.admit(Mono::from_secs(61), most(2)));
    assert_eq!(window.reopens_at(most(2)), Mono::from_secs(65));
}

#[test]
fn a_changed_limit_counts_earlier_starts() {
    let mut window = RateWindow::new(MINUTE);
    for second in 0..4 {
        assert!(window.admit(Mono::from_secs(second), most(4)));
    }
    assert_eq!(window.reopens_at(most(2)), Mono::from_secs(62));
    assert!(window.admit(Mono::from_secs(4), most(5)));
    assert_eq!(window.reopens_at(most(5)), Mono::from_secs(60));
}

#[test]
fn memory_is_bounded_by_the_limit() {
    let mut window = RateWindow::new(Duration::from_secs(1));
    for second in 0..1_000 {
        assert!(window.admit(Mono::from_secs(second), most(3)));
    }
    assert!(window.starts.len() <= 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_period_exceeds_the_limit_and_no_start_is_refused_needlessly(
        max in 1..8_usize,
        length in 0..5_000_u64,
        steps in vec(0..2_000_u64, 0..80),
    ) {
        let length = Duration::from_millis(length);
        let mut window = RateWindow::new(length);
        let mut now = Mono::ZERO;
        let mut starts = Vec::new();
        for step in steps {
            now = now + Duration::from_millis(step);
            let recent = starts.iter().filter(|at| **at + length > now).count();
            if window.admit(now, most(max)) {
                prop_assert!(recent < max);
                starts.push(now);
            } else {
                prop_assert!(recent >= max && window.reopens_at(most(max)) > now);
            }
        }
        if !length.is_zero() {
            prop_assert!(max_starts_per(&starts, length) <= max);
        }
    }
}
