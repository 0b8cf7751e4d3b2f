//! How much each git server is asked for, and who is next in line.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::limits::{Admit, Enqueued, Entry, Permit, PermitConfig, Permits, RateWindow};
use grasp_core::{Host, Identifier, Mono};

use super::HuntConfig;

/// Servers of which nothing needs to be remembered are looked for when there are more than this.
const MANY: usize = 1_024;

/// The stretch over which guesses are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// The right to have one conversation with a server, for one identifier. Handed back to [`Throttle::release`].
#[must_use = "a pass that is not released stays taken"]
#[derive(Debug)]
pub(super) struct Pass {
    host: Host,
    permit: Permit<Identifier>,
}

impl Pass {
    /// With whom.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// For what.
    pub(super) fn identifier(&self) -> &Identifier {
        self.permit.key()
    }
}

/// How things stand with one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFigures {
    /// Conversations under way.
    pub in_flight: usize,
    /// Turns in line.
    pub waiting: usize,
    /// Conversations ever begun, as long as the server is remembered.
    pub requests: u64,
}

/// A line for each server: so many conversations at once, so many per minute, identifiers taking turns.
///
/// Nobody polls. [`enqueue`](Self::enqueue), [`release`](Self::release) and, at
/// [`next_deadline`](Self::next_deadline), [`due`](Self::due) name those whose turn it is.
#[derive(Debug)]
pub(super) struct Throttle {
    per_host: PermitConfig,
    others: BTreeMap<Host, PermitConfig>,
    guesses: NonZeroUsize,
    lines: BTreeMap<Host, Line>,
    /// How many servers there are when it is next worth looking for some to forget.
    crowded: usize,
}

#[derive(Debug)]
struct Line {
    permits: Permits<Identifier>,
    /// The stretch over which conversations are counted.
    per: Duration,
    guesses: RateWindow,
    /// When everything that was counted here no longer counts.
    forgettable: Mono,
    requests: u64,
}

impl Throttle {
    /// Nobody has been asked for anything.
    pub(super) fn new(config: &HuntConfig) -> Self {
        Self {
            per_host: config.per_host,
            others: config.hosts.clone(),
            guesses: config.guesses_per_minute,
            lines: BTreeMap::new(),
            crowded: MANY,
        }
    }

    /// Lets one conversation begin now, or says that the server is throttled; nobody in line is overtaken.
    pub(super) fn admit(
        &mut self,
        now: Mono,
        host: &Host,
        identifier: &Identifier,
    ) -> Option<Pass> {
        let line = self.line(now, host);
        match line.permits.admit(now, identifier.clone()) {
            Entry::Go(permit) => Some(line.begin(now, host, permit)),
            Entry::Wait(_) | Entry::Full => None,
        }
    }

    /// Takes one more turn in the line of a server; `None` if the line is full. Those whose turn it is now are named.
    pub(super) fn enqueue(
        &mut self,
        now: Mono,
        host: &Host,
        identifier: &Identifier,
    ) -> Option<Vec<Pass>> {
        let line = self.line(now, host);
        match line.permits.enqueue(now, identifier.clone()) {
            Enqueued::InLine(permits) => Some(line.begin_all(now, host, permits)),
            Enqueued::Full => None,
        }
    }

    /// Ends a conversation, and names those whose turn it is now.
    #[must_use = "these may start now"]
    pub(super) fn release(&mut self, now: Mono, pass: Pass) -> Vec<Pass> {
        let Pass { host, permit } = pass;
        let line = self.line(now, &host);
        let permits = line.permits.release(now, permit);
        line.begin_all(now, &host, permits)
    }

    /// Gives up every turn that an identifier has in the line of a server.
    pub(super) fn withdraw(&mut self, host: &Host, identifier: &Identifier) {
        if let Some(line) = self.lines.get_mut(host) {
            line.permits.withdraw(identifier);
        }
    }

    /// Has a server left alone until then. Of two such wishes the later counts.
    pub(super) fn pause(&mut self, now: Mono, host: &Host, until: Mono) {
        let line = self.line(now, host);
        line.permits.pause_until(until);
        line.forgettable = line.forgettable.max(until);
    }

    /// Whether a server may be asked for something that it does not advertise; counts it if so.
    pub(super) fn may_guess(&mut self, now: Mono, host: &Host) -> bool {
        let line = self.line(now, host);
        line.forgettable = line.forgettable.max(now + MINUTE);
        line.guesses.admit(now) == Admit::Go
    }

    /// Those whose turn time has brought.
    #[must_use = "these may start now"]
    pub(super) fn due(&mut self, now: Mono) -> Vec<Pass> {
        let mut passes = Vec::new();
        for (host, line) in &mut self.lines {
            if line.permits.next_deadline().is_some_and(|at| at <= now) {
                let permits = line.permits.due(now);
                passes.extend(line.begin_all(now, host, permits));
            }
        }
        passes
    }

    /// When to ask for those [`due`](Self::due), if time alone brings anybody's turn.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.lines.values().filter_map(|line| line.permits.next_deadline()).min()
    }

    /// How things stand with each server that is remembered.
    pub(super) fn figures(&self) -> impl Iterator<Item = (&Host, HostFigures)> {
        self.lines.iter().map(|(host, line)| {
            let (in_flight, waiting) = (line.permits.in_use(), line.permits.waiting());
            (host, HostFigures { in_flight, waiting, requests: line.requests })
        })
    }

    fn line(&mut self, now: Mono, host: &Host) -> &mut Line {
        if self.lines.len() > self.crowded {
            self.lines.retain(|other, line| other == host || !line.is_forgettable(now));
            self.crowded = MANY.max(self.lines.len() * 2);
        }
        let config = self.others.get(host).copied().unwrap_or(self.per_host);
        let guesses = self.guesses;
        self.lines.entry(host.clone()).or_insert_with(|| Line {
            permits: Permits::new(config),
            per: config.per,
            guesses: RateWindow::new(guesses, MINUTE),
            forgettable: now + config.per,
            requests: 0,
        })
    }
}

impl Line {
    fn begin(&mut self, now: Mono, host: &Host, permit: Permit<Identifier>) -> Pass {
        self.requests = self.requests.saturating_add(1);
        self.forgettable = self.forgettable.max(now + self.per);
        Pass { host: host.clone(), permit }
    }

    fn begin_all(&mut self, now: Mono, host: &Host, permits: Vec<Permit<Identifier>>) -> Vec<Pass> {
        permits.into_iter().map(|permit| self.begin(now, host, permit)).collect()
    }

    fn is_forgettable(&self, now: Mono) -> bool {
        self.forgettable <= now && self.permits.in_use() == 0 && self.permits.waiting() == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn limits(at_once: usize, starts: usize) -> PermitConfig {
        PermitConfig {
            at_once: NonZeroUsize::new(at_once).unwrap(),
            starts: NonZeroUsize::new(starts).unwrap(),
            ..PermitConfig::default()
        }
    }

    fn throttle(at_once: usize, starts: usize) -> Throttle {
        Throttle::new(&HuntConfig { per_host: limits(at_once, starts), ..HuntConfig::default() })
    }

    fn host(name: &str) -> Host {
        name.parse().unwrap()
    }

    fn id(name: &str) -> Identifier {
        name.parse().unwrap()
    }

    fn names(passes: &[Pass]) -> Vec<&str> {
        passes.iter().map(|pass| pass.identifier().as_str()).collect()
    }

    #[test]
    fn no_more_than_five_at_once() {
        let mut throttle = Throttle::new(&HuntConfig::default());
        let (now, git) = (Mono::ZERO, host("git.example.com"));
        let mut passes: Vec<_> = (0..5).map(|_| throttle.admit(now, &git, &id("x"))).collect();
        assert!(passes.iter().all(Option::is_some));
        assert!(throttle.admit(now, &git, &id("x")).is_none());
        assert!(throttle.admit(now, &host("other.example.com"), &id("x")).is_some());
        let _ = throttle.release(now, passes.pop().unwrap().unwrap());
        assert!(throttle.admit(now, &git, &id("x")).is_some());
    }

    #[test]
    fn no_more_than_thirty_in_any_minute() {
        let mut throttle = Throttle::new(&HuntConfig::default());
        let git = host("git.example.com");
        for second in 0..30 {
            let now = Mono::from_secs(second);
            let pass = throttle.admit(now, &git, &id("x")).expect("within the limit");
            let _ = throttle.release(now, pass);
        }
        assert!(throttle.admit(Mono::from_secs(59), &git, &id("x")).is_none());
        let pass = throttle.admit(Mono::from_secs(60), &git, &id("x")).expect("one has aged out");
        let _ = throttle.release(Mono::from_secs(60), pass);
        assert!(throttle.admit(Mono::from_secs(60), &git, &id("x")).is_none());
    }

    #[test]
    fn identifiers_take_turns() {
        let mut throttle = throttle(1, 100);
        let (now, git) = (Mono::ZERO, host("git.example.com"));
        let mut pass = throttle.admit(now, &git, &id("first"));
        for name in ["a", "a", "a", "b", "c"] {
            assert!(throttle.enqueue(now, &git, &id(name)).unwrap().is_empty());
        }
        let mut order = Vec::new();
        while let Some(current) = pass.take() {
            order.push(current.identifier().to_string());
            pass = throttle.release(now, current).pop();
        }
        assert_eq!(order, ["first", "a", "b", "c", "a", "a"]);
    }

    #[test]
    fn a_turn_comes_with_a_release_with_time_or_at_once_and_never_without_cause() {
        let mut throttle = throttle(1, 2);
        let git = host("git.example.com");
        let now = throttle.enqueue(Mono::ZERO, &git, &id("a")).unwrap();
        assert_eq!(names(&now), ["a"], "an idle server is asked at once");
        assert!(throttle.enqueue(Mono::ZERO, &git, &id("b")).unwrap().is_empty());
        assert_eq!(throttle.next_deadline(), None, "only a release helps");

        let next = throttle.release(Mono::from_secs(1), now.into_iter().next().unwrap());
        assert_eq!(names(&next), ["b"]);
        assert!(throttle.enqueue(Mono::from_secs(1), &git, &id("c")).unwrap().is_empty());
        assert!(throttle.release(Mono::from_secs(2), next.into_iter().next().unwrap()).is_empty());
        assert_eq!(throttle.next_deadline(), Some(Mono::from_secs(60)), "only time helps");
        assert!(throttle.due(Mono::from_secs(59)).is_empty());
        assert_eq!(names(&throttle.due(Mono::from_secs(60))), ["c"]);
        assert_eq!(throttle.next_deadline(), None);
    }

    #[test]
    fn whoever_gives_up_is_not_served() {
        let mut throttle = throttle(1, 100);
        let (now, git) = (Mono::ZERO, host("git.example.com"));
        let pass = throttle.admit(now, &git, &id("a")).unwrap();
        let _ = throttle.enqueue(now, &git, &id("b"));
        throttle.withdraw(&git, &id("b"));
        assert!(throttle.release(now, pass).is_empty());
    }

    #[test]
    fn a_pause_holds_for_those_in_line_and_for_newcomers() {
        let mut throttle = throttle(5, 30);
        let git = host("git.example.com");
        throttle.pause(Mono::ZERO, &git, Mono::from_secs(90));
        assert!(throttle.admit(Mono::from_secs(1), &git, &id("a")).is_none());
        assert!(throttle.enqueue(Mono::from_secs(1), &git, &id("a")).unwrap().is_empty());
        assert_eq!(throttle.next_deadline(), Some(Mono::from_secs(90)));
        assert_eq!(names(&throttle.due(Mono::from_secs(90))), ["a"]);
    }

    #[test]
    fn a_server_can_have_limits_of_its_own() {
        let hosts = BTreeMap::from([(host("big.example.com"), limits(2, 100))]);
        let config = HuntConfig { per_host: limits(1, 100), hosts, ..HuntConfig::default() };
        let mut throttle = Throttle::new(&config);
        for (name, most) in [("big.example.com", 2), ("small.example.com", 1)] {
            let admitted = (0..5).filter_map(|_| throttle.admit(Mono::ZERO, &host(name), &id("x")));
            assert_eq!(admitted.count(), most, "{name}");
        }
    }

    #[test]
    fn guesses_have_a_budget_per_server_and_minute() {
        let mut throttle = Throttle::new(&HuntConfig::default());
        let git = host("git.example.com");
        let asked = (0..10).filter(|_| throttle.may_guess(Mono::ZERO, &git)).count();
        assert_eq!(asked, 6);
        assert!(throttle.may_guess(Mono::ZERO, &host("other.example.com")));
        assert!(throttle.may_guess(Mono::from_secs(60), &git));
    }

    #[test]
    fn ten_thousand_servers_are_not_all_remembered() {
        let mut throttle = Throttle::new(&HuntConfig::default());
        for n in 0..10_000_u64 {
            let now = Mono::from_secs(n);
            let pass = throttle.admit(now, &host(&format!("h{n}.example.com")), &id("x")).unwrap();
            let _ = throttle.release(now, pass);
        }
        assert!(throttle.lines.len() <= MANY + 1, "{}", throttle.lines.len());
    }

    #[derive(Clone, Debug)]
    enum Act {
        Admit(u8),
        Enqueue(u8),
        Release(usize),
        Pass(u64),
        Pause(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            2 => (0..4u8).prop_map(Act::Admit),
            4 => (0..4u8).prop_map(Act::Enqueue),
            3 => (0..8usize).prop_map(Act::Release),
            2 => (0..30_000u64).prop_map(Act::Pass),
            1 => (0..90_000u64).prop_map(Act::Pause),
        ]
    }

    proptest! {
        #[test]
        fn no_window_is_over_its_limit_and_everybody_in_line_is_served(
            acts in vec(act(), 0..120),
            at_once in 1..4usize,
            starts in 1..6usize,
        ) {
            let mut throttle = throttle(at_once, starts);
            let git = host("git.example.com");
            let (mut now, mut paused) = (Mono::ZERO, Mono::ZERO);
            let (mut held, mut begun): (Vec<Pass>, Vec<Mono>) = (Vec::new(), Vec::new());
            let mut waiting = 0_usize;
            for act in acts {
                let new = match act {
                    Act::Admit(n) => {
                        let pass = throttle.admit(now, &git, &id(&n.to_string()));
                        waiting += usize::from(pass.is_some());
                        pass.into_iter().collect()
                    }
                    Act::Enqueue(n) => {
                        waiting += 1;
                        throttle.enqueue(now, &git, &id(&n.to_string())).unwrap()
                    }
                    Act::Release(n) if !held.is_empty() => {
                        let pass = held.swap_remove(n % held.len());
                        throttle.release(now, pass)
                    }
                    Act::Release(_) => Vec::new(),
                    Act::Pass(millis) => {
                        now = now + Duration::from_millis(millis);
                        throttle.due(now)
                    }
                    Act::Pause(millis) => {
                        paused = paused.max(now + Duration::from_millis(millis));
                        throttle.pause(now, &git, paused);
                        Vec::new()
                    }
                };
                prop_assert!(new.is_empty() || now >= paused, "asked during a pause");
                waiting -= new.len();
                begun.extend(new.iter().map(|_| now));
                held.extend(new);
                prop_assert!(held.len() <= at_once);
                let in_window = begun.iter().filter(|at| **at + MINUTE > now).count();
                prop_assert!(in_window <= starts);
            }
            // Whatever still waits is served once time passes and passes come back.
            for _ in 0..500 {
                let mut new: Vec<Pass> = Vec::new();
                for pass in held.drain(..) {
                    new.extend(throttle.release(now, pass));
                }
                now = throttle.next_deadline().map_or(now, |at| at.max(now));
                new.extend(throttle.due(now));
                waiting -= new.len();
                held = new;
            }
            prop_assert_eq!(waiting, 0);
        }
    }
}
