//! Limits of each git server, queues of identifiers for it, and the slots for requests.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::limits::Admit;
use grasp_core::{CloneUrl, Host, Identifier, Mono};

use super::HuntConfig;
use super::permit::RateWindow;
use super::permit::{Admission, Enqueued, Permit, PermitConfig, Permits};

/// Servers of which nothing needs to be remembered are looked for when there are more than this.
const MAX_HOSTS_KEPT: usize = 1_024;

/// The stretch over which guesses are counted, and after which a server that asked for less is asked a little more.
const MINUTE: Duration = Duration::from_secs(60);

/// Validity of a server's class.
const CLASS_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Delay before a server without an answer is classified again.
const CLASSIFY_RETRY: Duration = MINUTE;

/// A host has all of its limits at this many shares, and never fewer than one.
const ALL_SHARES: usize = 8;

/// The permission for one request to a host, for one identifier. Given back to [`Throttle::release`].
#[must_use = "a pass that is not released stays taken"]
#[derive(Debug)]
pub(super) struct HostPermit {
    host: Host,
    permit: Permit<Identifier>,
}

impl HostPermit {
    /// Returns the host.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the identifier.
    pub(super) fn identifier(&self) -> &Identifier {
        self.permit.key()
    }
}

/// The kind of a git server, which decides its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostClass {
    /// A forge, or a server that has not said what it is.
    #[default]
    Unknown,
    /// A GRASP server, by its NIP-11 document: made to be asked by others of its kind.
    Grasp,
}

/// Limits and use of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFigures {
    /// The kind of server.
    pub class: HostClass,
    /// Conversations under way.
    pub in_flight: usize,
    /// Queued visits.
    pub waiting: usize,
    /// Conversations ever begun, as long as the server is remembered.
    pub requests: u64,
    /// Conversations that may begin within a minute, at present.
    pub per_minute: usize,
}

/// Limits and a queue for each host: requests at once and per minute, identifiers served in turn.
///
/// Nothing polls. [`enqueue`](Self::enqueue), [`release`](Self::release) and, at
/// [`next_deadline`](Self::next_deadline), [`due`](Self::due) return the permits that were granted.
///
/// A server that asks for less has its limits halved, down to an eighth; each minute without such an answer gives an
/// eighth back.
#[derive(Debug)]
pub(super) struct Throttle {
    per_host: PermitConfig,
    grasp: PermitConfig,
    overrides: BTreeMap<Host, PermitConfig>,
    guesses: NonZeroUsize,
    hosts: BTreeMap<Host, HostLimits>,
    /// Number of servers from which on idle ones are dropped.
    crowded: usize,
}

#[derive(Debug)]
struct HostLimits {
    permits: Permits<Identifier>,
    /// The limits while nothing is held back.
    full: PermitConfig,
    class: HostClass,
    /// Time of the next classification; `None` if the operator has set the limits.
    classify_at: Option<Mono>,
    /// The part of its limits that the server has, of [`ALL_SHARES`].
    shares: usize,
    /// Time of the last change of `shares`.
    shares_since: Mono,
    guesses: RateWindow,
    /// Time from which nothing that was counted matters.
    forgettable: Mono,
    requests: u64,
}

impl Throttle {
    /// No server has been asked for anything.
    pub(super) fn new(config: &HuntConfig) -> Self {
        Self {
            per_host: config.per_host,
            grasp: config.per_grasp_host,
            overrides: config.hosts.clone(),
            guesses: config.guesses_per_minute,
            hosts: BTreeMap::new(),
            crowded: MAX_HOSTS_KEPT,
        }
    }

    /// Grants a permit now, or returns `None` if the host is throttled; queued visits are not overtaken.
    pub(super) fn admit(
        &mut self,
        now: Mono,
        host: &Host,
        identifier: &Identifier,
    ) -> Option<HostPermit> {
        let line = self.line(now, host);
        match line.permits.admit(now, identifier.clone()) {
            Admission::Go(permit) => Some(line.begin(now, host, permit)),
            Admission::Wait(_) | Admission::Full => None,
        }
    }

    /// Queues one more visit to a host; `None` if the queue is full. Returns the permits granted now.
    pub(super) fn enqueue(
        &mut self,
        now: Mono,
        host: &Host,
        identifier: &Identifier,
    ) -> Option<Vec<HostPermit>> {
        let line = self.line(now, host);
        match line.permits.enqueue(now, identifier.clone()) {
            Enqueued::InLine(permits) => Some(line.begin_all(now, host, permits)),
            Enqueued::Full => None,
        }
    }

    /// Counts one more request of a visit under way, ahead of the queue.
    #[must_use = "these may start now"]
    pub(super) fn continue_with(&mut self, now: Mono, pass: HostPermit) -> Vec<HostPermit> {
        let HostPermit { host, permit } = pass;
        let line = self.line(now, &host);
        let permits = line.permits.continue_with(now, permit);
        line.begin_all(now, &host, permits)
    }

    /// Gives back a permit, and returns those granted in its place.
    #[must_use = "these may start now"]
    pub(super) fn release(&mut self, now: Mono, pass: HostPermit) -> Vec<HostPermit> {
        let HostPermit { host, permit } = pass;
        let line = self.line(now, &host);
        let permits = line.permits.release(now, permit);
        line.begin_all(now, &host, permits)
    }

    /// Removes the queued visits of an identifier to a host, and returns the permits granted now.
    #[must_use = "these may start now"]
    pub(super) fn withdraw(
        &mut self,
        now: Mono,
        host: &Host,
        identifier: &Identifier,
    ) -> Vec<HostPermit> {
        let Some(line) = self.hosts.get_mut(host) else { return Vec::new() };
        let permits = line.permits.withdraw(now, identifier);
        line.begin_all(now, host, permits)
    }

    /// Pauses a host until then, and lowers its limits. `began` is the start of the request in
    /// which it said so: several answers to the same burst halve its limits once.
    pub(super) fn limited(&mut self, now: Mono, host: &Host, began: Mono, until: Mono) {
        let line = self.line(now, host);
        line.permits.pause_until(until);
        line.forgettable = line.forgettable.max(until);
        if line.shares == ALL_SHARES || began >= line.shares_since {
            // The minutes of a pause are no minutes without complaint.
            line.set_shares((line.shares / 2).max(1), now.max(until));
        }
    }

    /// Returns whether it is time to classify a host; then it is not for a while.
    pub(super) fn must_classify(&mut self, now: Mono, host: &Host) -> bool {
        let line = self.line(now, host);
        let is_due = line.classify_at.is_some_and(|at| at <= now);
        if is_due {
            line.classify_at = Some(now + CLASSIFY_RETRY);
        }
        is_due
    }

    /// Sets the class of a host, and returns the permits granted now.
    #[must_use = "these may start now"]
    pub(super) fn classified(
        &mut self,
        now: Mono,
        host: &Host,
        class: HostClass,
    ) -> Vec<HostPermit> {
        let full = match class {
            HostClass::Unknown => self.per_host,
            HostClass::Grasp => self.grasp,
        };
        let Some(line) = self.hosts.get_mut(host) else { return Vec::new() };
        if line.classify_at.is_none() {
            return Vec::new();
        }
        line.classify_at = Some(now + CLASS_LIFETIME);
        (line.class, line.full) = (class, full);
        line.set_shares(line.shares, line.shares_since);
        let permits = line.permits.due(now);
        line.begin_all(now, host, permits)
    }

    /// Returns whether a server may be asked for an object that it does not advertise, and counts it if so.
    pub(super) fn may_guess(&mut self, now: Mono, host: &Host) -> bool {
        let line = self.line(now, host);
        line.forgettable = line.forgettable.max(now + MINUTE);
        line.guesses.admit(now) == Admit::Go
    }

    /// Returns the permits that time has granted.
    #[must_use = "these may start now"]
    pub(super) fn due(&mut self, now: Mono) -> Vec<HostPermit> {
        let mut due = Vec::new();
        for (host, line) in &mut self.hosts {
            line.recover(now);
            if line.permits.waiting() > 0 || line.permits.next_deadline().is_some() {
                let permits = line.permits.due(now);
                due.extend(line.begin_all(now, host, permits));
            }
        }
        due
    }

    /// Returns the time to call [`due`](Self::due), if time alone grants a permit.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.hosts
            .values()
            .flat_map(|line| [line.permits.next_deadline(), line.recovers_at()])
            .flatten()
            .min()
    }

    /// Limits and use of each server that is remembered.
    pub(super) fn figures(&self) -> impl Iterator<Item = (&Host, HostFigures)> {
        self.hosts.iter().map(|(host, line)| {
            let figures = HostFigures {
                class: line.class,
                in_flight: line.permits.in_use(),
                waiting: line.permits.waiting(),
                requests: line.requests,
                per_minute: line.per_minute(),
            };
            (host, figures)
        })
    }

    /// Returns the best position of each queued identifier, from 1, and the time until its permit if
    /// every request takes no time.
    pub(super) fn positions(&self) -> BTreeMap<&Identifier, Position> {
        let mut positions: BTreeMap<&Identifier, Position> = BTreeMap::new();
        for line in self.hosts.values() {
            let per_minute = line.per_minute().max(1);
            for (index, identifier) in line.permits.line().enumerate() {
                let minutes = u32::try_from(index / per_minute).unwrap_or(u32::MAX);
                let new = Position { position: index + 1, wait: MINUTE.saturating_mul(minutes) };
                let known = positions.entry(identifier).or_insert(new);
                *known = (*known).min(new);
            }
        }
        positions
    }

    fn line(&mut self, now: Mono, host: &Host) -> &mut HostLimits {
        if self.hosts.len() > self.crowded {
            self.hosts.retain(|other, line| other == host || !line.is_forgettable(now));
            self.crowded = MAX_HOSTS_KEPT.max(self.hosts.len() * 2);
        }
        let chosen = self.overrides.get(host).copied();
        let full = chosen.unwrap_or(self.per_host);
        let guesses = self.guesses;
        let line = self.hosts.entry(host.clone()).or_insert_with(|| HostLimits {
            permits: Permits::new(full),
            full,
            class: HostClass::Unknown,
            classify_at: chosen.is_none().then_some(now),
            shares: ALL_SHARES,
            shares_since: now,
            guesses: RateWindow::new(guesses, MINUTE),
            forgettable: now + full.per,
            requests: 0,
        });
        line.recover(now);
        line
    }
}

/// A place in the line of a git server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The least time until the permit.
    pub wait: Duration,
    /// The position in the queue, from 1.
    pub position: usize,
}

impl HostLimits {
    fn begin(&mut self, now: Mono, host: &Host, permit: Permit<Identifier>) -> HostPermit {
        self.requests = self.requests.saturating_add(1);
        self.forgettable = self.forgettable.max(now + self.full.per);
        HostPermit { host: host.clone(), permit }
    }

    fn begin_all(
        &mut self,
        now: Mono,
        host: &Host,
        permits: Vec<Permit<Identifier>>,
    ) -> Vec<HostPermit> {
        permits.into_iter().map(|permit| self.begin(now, host, permit)).collect()
    }

    fn is_forgettable(&self, now: Mono) -> bool {
        self.forgettable <= now && self.permits.in_use() == 0 && self.permits.waiting() == 0
    }

    /// Returns the time of the next raise of the limits, if an identifier is queued.
    fn recovers_at(&self) -> Option<Mono> {
        let helps = self.permits.waiting() > 0 && self.shares < ALL_SHARES;
        helps.then(|| self.shares_since + MINUTE)
    }

    /// Gives back what was held from the server, a share for each minute without complaint.
    fn recover(&mut self, now: Mono) {
        while self.shares < ALL_SHARES && self.shares_since + MINUTE <= now {
            self.set_shares(self.shares + 1, self.shares_since + MINUTE);
        }
    }

    fn set_shares(&mut self, shares: usize, since: Mono) {
        (self.shares, self.shares_since) = (shares, since);
        let part = |all: NonZeroUsize| {
            NonZeroUsize::new(all.get().saturating_mul(shares) / ALL_SHARES)
                .unwrap_or(NonZeroUsize::MIN)
        };
        self.permits.set_limits(part(self.full.at_once), part(self.full.starts));
    }

    /// Conversations that may begin within a minute.
    fn per_minute(&self) -> usize {
        let PermitConfig { starts, per, .. } = self.permits.limits();
        let per_minute = starts.get() as f64 * MINUTE.as_secs_f64() / per.as_secs_f64().max(0.001);
        per_minute as usize
    }
}

/// A limited number of slots for requests, granted to identifiers in turn.
///
/// A permit of a host waits here for a slot, so that the clock of a request
/// starts when the request does.
#[derive(Debug)]
pub(super) struct FetchSlots {
    most: NonZeroUsize,
    busy: usize,
    /// Each identifier that waits, once, in the order in which they come up.
    round: VecDeque<Identifier>,
    waiting: BTreeMap<Identifier, VecDeque<(CloneUrl, HostPermit)>>,
}

impl FetchSlots {
    /// Creates free slots.
    pub(super) fn new(most: NonZeroUsize) -> Self {
        Self { most, busy: 0, round: VecDeque::new(), waiting: BTreeMap::new() }
    }

    /// Queues a request for a slot.
    pub(super) fn enqueue(&mut self, url: CloneUrl, pass: HostPermit) {
        let identifier = pass.identifier().clone();
        let line = self.waiting.entry(identifier.clone()).or_default();
        if line.is_empty() {
            self.round.push_back(identifier);
        }
        line.push_back((url, pass));
    }

    /// Queues the next request of a visit that has begun, before those of others.
    pub(super) fn enqueue_first(&mut self, url: CloneUrl, pass: HostPermit) {
        let identifier = pass.identifier().clone();
        self.round.retain(|other| *other != identifier);
        self.round.push_front(identifier.clone());
        self.waiting.entry(identifier).or_default().push_front((url, pass));
    }

    /// Takes a free slot for the next request; it is busy until [`release`](Self::release).
    #[must_use = "a hand that is not used stays busy"]
    pub(super) fn next(&mut self) -> Option<(CloneUrl, HostPermit)> {
        if self.busy >= self.most.get() {
            return None;
        }
        let identifier = self.round.pop_front()?;
        let line = self.waiting.get_mut(&identifier)?;
        let next = line.pop_front()?;
        if line.is_empty() {
            self.waiting.remove(&identifier);
        } else {
            self.round.push_back(identifier);
        }
        self.busy += 1;
        Some(next)
    }

    /// Frees a slot.
    pub(super) fn release(&mut self) {
        self.busy = self.busy.saturating_sub(1);
    }

    /// An identifier waits for nothing any more; its permits are to be released.
    #[must_use = "a pass that is not released stays taken"]
    pub(super) fn withdraw(&mut self, identifier: &Identifier) -> Vec<HostPermit> {
        let Some(line) = self.waiting.remove(identifier) else { return Vec::new() };
        self.round.retain(|other| other != identifier);
        line.into_iter().map(|(_, pass)| pass).collect()
    }

    /// Returns the number of waiting identifiers.
    pub(super) fn waiting(&self) -> usize {
        self.round.len()
    }

    /// Returns the number of busy slots.
    pub(super) fn busy(&self) -> usize {
        self.busy
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

    fn names(permits: &[HostPermit]) -> Vec<&str> {
        permits.iter().map(|pass| pass.identifier().as_str()).collect()
    }

    #[test]
    fn no_more_than_five_at_once() {
        let mut throttle = Throttle::new(&HuntConfig::default());
        let (now, git) = (Mono::ZERO, host("git.example.com"));
        let mut permits: Vec<_> = (0..5).map(|_| throttle.admit(now, &git, &id("x"))).collect();
        assert!(permits.iter().all(Option::is_some));
        assert!(throttle.admit(now, &git, &id("x")).is_none());
        assert!(throttle.admit(now, &host("other.example.com"), &id("x")).is_some());
        let _ = throttle.release(now, permits.pop().unwrap().unwrap());
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
        let mut command = Vec::new();
        while let Some(current) = pass.take() {
            command.push(current.identifier().to_string());
            pass = throttle.release(now, current).pop();
        }
        assert_eq!(command, ["first", "a", "b", "c", "a", "a"]);
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
        assert_eq!(throttle.next_deadline(), Some(Mono::from_secs(61)), "only time helps");
        assert!(throttle.due(Mono::from_secs(60)).is_empty());
        assert_eq!(names(&throttle.due(Mono::from_secs(61))), ["c"]);
        assert_eq!(throttle.next_deadline(), None);
    }

    #[test]
    fn whoever_gives_up_is_not_served() {
        let mut throttle = throttle(1, 100);
        let (now, git) = (Mono::ZERO, host("git.example.com"));
        let pass = throttle.admit(now, &git, &id("a")).unwrap();
        let _ = throttle.enqueue(now, &git, &id("b"));
        assert!(throttle.withdraw(now, &git, &id("b")).is_empty());
        assert!(throttle.release(now, pass).is_empty());
    }

    #[test]
    fn a_pause_holds_for_those_in_line_and_for_newcomers() {
        let mut throttle = throttle(5, 30);
        let git = host("git.example.com");
        throttle.limited(Mono::ZERO, &git, Mono::ZERO, Mono::from_secs(90));
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
    fn grasp_servers_are_asked_for_more_from_the_moment_they_are_known() {
        let mut throttle = throttle(1, 1);
        let (now, git) = (Mono::ZERO, host("git.example.com"));
        assert!(throttle.must_classify(now, &git));
        assert!(!throttle.must_classify(now, &git), "one question is enough");
        let _first = throttle.admit(now, &git, &id("a")).unwrap();
        for name in ["b", "c"] {
            assert!(throttle.enqueue(now, &git, &id(name)).unwrap().is_empty());
        }
        assert_eq!(names(&throttle.classified(now, &git, HostClass::Grasp)), ["b", "c"]);
        let figures: Vec<_> = throttle.figures().map(|(_, figures)| figures).collect();
        assert_eq!((figures[0].class, figures[0].per_minute), (HostClass::Grasp, 600));
        assert!(!throttle.must_classify(now + CLASS_LIFETIME - MINUTE, &git));
        assert!(throttle.must_classify(now + CLASS_LIFETIME, &git));
        // It is something else by then.
        let _ = throttle.classified(now + CLASS_LIFETIME, &git, HostClass::Unknown);
        assert!(throttle.admit(now + CLASS_LIFETIME, &git, &id("d")).is_none());
    }

    #[test]
    fn a_server_with_limits_of_its_own_is_not_asked_what_it_is() {
        let git = host("big.example.com");
        let hosts = BTreeMap::from([(git.clone(), limits(2, 100))]);
        let mut throttle = Throttle::new(&HuntConfig { hosts, ..HuntConfig::default() });
        assert!(!throttle.must_classify(Mono::ZERO, &git));
        let _ = throttle.classified(Mono::ZERO, &git, HostClass::Grasp);
        assert!(throttle.figures().all(|(_, figures)| figures.per_minute == 100));
    }

    #[test]
    fn a_server_that_asks_for_less_gets_half_and_slowly_more_again() {
        let mut throttle = throttle(8, 80);
        let git = host("git.example.com");
        let at = |throttle: &mut Throttle, second| {
            let _ = throttle.line(Mono::from_secs(second), &git);
            let figures = throttle.figures().next().unwrap().1;
            figures.per_minute
        };
        assert_eq!(at(&mut throttle, 0), 80);
        let ten = Mono::from_secs(10);
        throttle.limited(ten, &git, Mono::ZERO, ten);
        assert_eq!(at(&mut throttle, 10), 40);
        throttle.limited(Mono::from_secs(11), &git, Mono::from_secs(9), ten);
        assert_eq!(at(&mut throttle, 11), 40, "an answer to the same burst");
        throttle.limited(Mono::from_secs(12), &git, Mono::from_secs(11), ten);
        assert_eq!(at(&mut throttle, 12), 20);
        for second in [13, 14, 15] {
            throttle.limited(Mono::from_secs(second), &git, Mono::from_secs(second), ten);
        }
        assert_eq!(at(&mut throttle, 15), 10, "an eighth is the least");
        assert_eq!(at(&mut throttle, 74), 10);
        assert_eq!(at(&mut throttle, 75), 20);
        assert_eq!(at(&mut throttle, 15 + 7 * 60), 80);
        assert_eq!(at(&mut throttle, 15 + 70 * 60), 80);
    }

    #[test]
    fn positions_name_the_shortest_line() {
        let mut throttle = throttle(1, 2);
        let (slow, fast) = (host("slow.example.com"), host("fast.example.com"));
        for git in [&slow, &fast] {
            let _ = throttle.admit(Mono::ZERO, git, &id("x"));
        }
        for name in ["a", "b", "c"] {
            let _ = throttle.enqueue(Mono::ZERO, &slow, &id(name));
        }
        let _ = throttle.enqueue(Mono::ZERO, &fast, &id("c"));
        let positions = throttle.positions();
        let of = |name| positions[&id(name)];
        assert_eq!(of("b"), Position { wait: Duration::ZERO, position: 2 });
        assert_eq!(of("c"), Position { wait: Duration::ZERO, position: 1 });
        assert!(!positions.contains_key(&id("x")));
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
        assert!(throttle.hosts.len() <= MAX_HOSTS_KEPT + 1, "{}", throttle.hosts.len());
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
            let (mut held, mut begun): (Vec<HostPermit>, Vec<Mono>) = (Vec::new(), Vec::new());
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
                        throttle.limited(now, &git, now, paused);
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
            // Whatever still waits is served once time passes and permits come back.
            for _ in 0..500 {
                let mut new: Vec<HostPermit> = Vec::new();
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

#[cfg(test)]
mod slot_tests {
    use grasp_core::Mono;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::HuntConfig;
    use super::super::throttle::Throttle;
    use super::*;

    fn pass(name: &str, n: usize) -> (CloneUrl, HostPermit) {
        let url: CloneUrl = format!("https://h{n}.example.com/x.git").parse().unwrap();
        let mut throttle = Throttle::new(&HuntConfig::default());
        let pass = throttle.admit(Mono::ZERO, &url.host(), &name.parse().unwrap());
        (url, pass.expect("nobody was asked yet"))
    }

    fn slots(most: usize) -> FetchSlots {
        FetchSlots::new(NonZeroUsize::new(most).unwrap())
    }

    #[test]
    fn identifiers_take_turns_however_much_one_of_them_wants() {
        let mut slots = slots(9);
        for (n, name) in ["a", "a", "a", "b", "c"].into_iter().enumerate() {
            let (url, pass) = pass(name, n);
            slots.enqueue(url, pass);
        }
        let next = std::iter::from_fn(|| slots.next());
        let command: Vec<_> = next.map(|(_, pass)| pass.identifier().to_string()).collect();
        assert_eq!(command, ["a", "b", "c", "a", "a"]);
    }

    #[test]
    fn a_visit_that_has_begun_goes_on_before_others_begin() {
        let mut slots = slots(9);
        for (n, name) in ["a", "b", "b"].into_iter().enumerate() {
            let (url, pass) = pass(name, n);
            slots.enqueue(url, pass);
        }
        let (url, pass) = pass("b", 7);
        slots.enqueue_first(url.clone(), pass);
        assert_eq!(slots.next().unwrap().0, url);
        let next = std::iter::from_fn(|| slots.next());
        let command: Vec<_> = next.map(|(_, pass)| pass.identifier().to_string()).collect();
        assert_eq!(command, ["a", "b", "b"]);
    }

    #[test]
    fn whoever_gives_up_gets_its_passes_back_and_no_turn() {
        let mut slots = slots(9);
        for (n, name) in ["a", "b", "a"].into_iter().enumerate() {
            let (url, pass) = pass(name, n);
            slots.enqueue(url, pass);
        }
        assert_eq!(slots.withdraw(&"a".parse().unwrap()).len(), 2);
        assert_eq!(slots.next().unwrap().1.identifier().as_str(), "b");
        assert!(slots.next().is_none());
    }

    proptest! {
        #[test]
        fn never_more_hands_than_there_are_and_nobody_waits_for_ever(
            acts in vec((0..4u8, 0..3u8), 0..80),
            most in 1..4usize,
        ) {
            let mut slots = slots(most);
            let (mut busy, mut enqueued, mut served) = (0_usize, 0_usize, 0_usize);
            for (n, (name, act)) in acts.into_iter().enumerate() {
                match act {
                    0 => {
                        let (url, pass) = pass(&name.to_string(), n);
                        slots.enqueue(url, pass);
                        enqueued += 1;
                    }
                    1 if busy > 0 => {
                        slots.release();
                        busy -= 1;
                    }
                    _ => {
                        let begun = usize::from(slots.next().is_some());
                        (busy, served) = (busy + begun, served + begun);
                    }
                }
                prop_assert!(busy <= most && slots.busy() == busy);
            }
            (0..busy).for_each(|_| slots.release());
            while slots.next().is_some() {
                served += 1;
                slots.release();
            }
            prop_assert_eq!(served, enqueued);
            prop_assert_eq!(slots.waiting(), 0);
        }
    }
}
