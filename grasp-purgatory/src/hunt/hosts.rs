//! Limits of each git server, and the queue of repositories for it.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::{Host, Mono, RepoId};

use super::HuntConfig;

/// Servers of which nothing needs to be remembered are forgotten when there are more than this.
const MAX_HOSTS_KEPT: usize = 1_024;

/// Identifiers that wait for one host.
const MAX_QUEUED: usize = 10_000;

/// The stretch over which guesses are counted, and after which a server that asked for less is asked a little more.
const MINUTE: Duration = Duration::from_secs(60);

/// Validity of a server's class.
const CLASS_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Delay before a server without an answer is classified again.
const CLASSIFY_RETRY: Duration = MINUTE;

/// A host has all of its limits at this many shares, and never fewer than one.
const ALL_SHARES: usize = 8;

/// Limits of requests to one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Concurrent requests. Default: 5.
    pub at_once: NonZeroUsize,
    /// Starts per [`per`](Self::per). Default: 30.
    pub starts: NonZeroUsize,
    /// The period that `starts` is counted over. Default: 1 minute.
    pub per: Duration,
}

impl Default for HostLimits {
    fn default() -> Self {
        const AT_ONCE: NonZeroUsize = NonZeroUsize::new(5).expect("five is not zero");
        const STARTS: NonZeroUsize = NonZeroUsize::new(30).expect("thirty is not zero");
        Self {
            at_once: AT_ONCE,
            starts: STARTS,
            per: MINUTE,
        }
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
    /// Requests under way.
    pub in_flight: usize,
    /// Queued visits.
    pub waiting: usize,
    /// Requests ever begun, as long as the server is remembered.
    pub requests: u64,
    /// Requests that may begin within a minute, at present.
    pub per_minute: usize,
}

/// A position in the queue of a git server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePosition {
    /// The least time until the permit.
    pub wait: Duration,
    /// The position in the queue, from 1.
    pub position: usize,
}

/// The permission for one request to a host, for one repository.
///
/// Give it back with [`Hosts::release`] also after a failure: a permit that is dropped stays taken.
#[must_use = "a permit that is not released stays taken"]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Permit {
    pub(super) host: Host,
    pub(super) repo: RepoId,
    granted: Mono,
}

impl Permit {
    pub(super) fn visit(&self) -> HostVisitId {
        HostVisitId {
            host: self.host.clone(),
            repo: self.repo.clone(),
        }
    }
}

/// Identifies a visit: a repository has one at a time to each host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HostVisitId {
    pub(super) host: Host,
    pub(super) repo: RepoId,
}

/// Limits and a queue for each host: requests at once and per minute, repos served in turn.
///
/// A repository is queued once, so that one with a thousand addresses at a host delays one with a single address by
/// at most one start per round. Nothing polls: [`enqueue`](Self::enqueue), [`release`](Self::release) and, at
/// [`next_deadline`](Self::next_deadline), [`due`](Self::due) return the permits that were granted.
///
/// A server that asks for less has its limits halved, down to an eighth; each minute without such an answer gives an
/// eighth back.
#[derive(Debug)]
pub(super) struct Hosts {
    per_host: HostLimits,
    grasp: HostLimits,
    overrides: BTreeMap<Host, HostLimits>,
    guesses: NonZeroUsize,
    hosts: BTreeMap<Host, HostState>,
}

#[derive(Debug)]
struct HostState {
    /// The limits while nothing is held back.
    full: HostLimits,
    class: HostClass,
    /// Time of the next classification; `None` if the operator has set the limits.
    classify_at: Option<Mono>,
    /// The part of its limits that the server has, of [`ALL_SHARES`].
    shares: usize,
    /// Time of the last change of `shares`.
    shares_since: Mono,
    starts: RateWindow,
    guesses: RateWindow,
    in_use: usize,
    /// Identifiers that wait for a permit, those of visits that have begun first.
    queue: VecDeque<RepoId>,
    requests: u64,
}

impl Hosts {
    /// No server has been asked for anything.
    pub(super) fn new(config: &HuntConfig) -> Self {
        Self {
            per_host: config.per_host,
            grasp: config.per_grasp_host,
            overrides: config.hosts.clone(),
            guesses: config.guesses_per_minute,
            hosts: BTreeMap::new(),
        }
    }

    /// Grants a permit now, or returns `None` if the host is throttled; queued visits are not overtaken.
    pub(super) fn admit(&mut self, now: Mono, host: &Host, repo: &RepoId) -> Option<Permit> {
        let state = self.state(now, host);
        (state.queue.is_empty() && state.start(now)).then(|| Permit {
            host: host.clone(),
            repo: repo.clone(),
            granted: now,
        })
    }

    /// Queues a visit to a host; `None` if the queue is full. Returns the permits granted now.
    pub(super) fn enqueue(&mut self, now: Mono, host: &Host, repo: &RepoId) -> Option<Vec<Permit>> {
        let state = self.state(now, host);
        if state.queue.len() >= MAX_QUEUED {
            return None;
        }
        state.queue.push_back(repo.clone());
        Some(state.grant(now, host))
    }

    /// Exchanges a permit for one for the next request of the same visit, ahead of the queue: at once, or first by
    /// [`due`](Self::due).
    #[must_use = "these may start now"]
    pub(super) fn continue_with(&mut self, now: Mono, permit: Permit) -> Vec<Permit> {
        let state = self.state(now, &permit.host);
        state.end(now, permit.granted);
        state.queue.push_front(permit.repo);
        state.grant(now, &permit.host)
    }

    /// Gives back a permit, and returns those granted in its place.
    #[must_use = "these may start now"]
    pub(super) fn release(&mut self, now: Mono, permit: Permit) -> Vec<Permit> {
        let state = self.state(now, &permit.host);
        state.end(now, permit.granted);
        state.grant(now, &permit.host)
    }

    /// Removes a repository from the queue of a host.
    pub(super) fn withdraw(&mut self, host: &Host, repo: &RepoId) {
        if let Some(state) = self.hosts.get_mut(host) {
            state.queue.retain(|queued| queued != repo);
        }
    }

    /// Pauses a host until then, and lowers its limits. `began` is the start of the request in
    /// which it said so: several answers to the same burst halve its limits once.
    pub(super) fn limited(&mut self, now: Mono, host: &Host, began: Mono, until: Mono) {
        let state = self.state(now, host);
        state.starts.paused_until = state.starts.paused_until.max(until);
        if state.shares == ALL_SHARES || began >= state.shares_since {
            // The minutes of a pause are no minutes without complaint.
            (state.shares, state.shares_since) = ((state.shares / 2).max(1), now.max(until));
        }
    }

    /// Returns whether it is time to classify a host; then it is not for a while.
    pub(super) fn must_classify(&mut self, now: Mono, host: &Host) -> bool {
        let state = self.state(now, host);
        let is_due = state.classify_at.is_some_and(|at| at <= now);
        if is_due {
            state.classify_at = Some(now + CLASSIFY_RETRY);
        }
        is_due
    }

    /// Sets the class of a host, and returns the permits granted now.
    #[must_use = "these may start now"]
    pub(super) fn classified(&mut self, now: Mono, host: &Host, class: HostClass) -> Vec<Permit> {
        let full = match class {
            HostClass::Unknown => self.per_host,
            HostClass::Grasp => self.grasp,
        };
        let state = self.hosts.get_mut(host);
        let Some(state) = state.filter(|state| state.classify_at.is_some()) else {
            return Vec::new();
        };
        state.classify_at = Some(now + CLASS_LIFETIME);
        (state.class, state.full) = (class, full);
        state.grant(now, host)
    }

    /// Returns whether a server may be asked for an object that it does not advertise, and counts it if so.
    pub(super) fn may_guess(&mut self, now: Mono, host: &Host) -> bool {
        let most = self.guesses;
        self.state(now, host).guesses.admit(now, most)
    }

    /// Returns the permits that time has granted, and forgets idle servers if there are many.
    #[must_use = "these may start now"]
    pub(super) fn due(&mut self, now: Mono) -> Vec<Permit> {
        if self.hosts.len() > MAX_HOSTS_KEPT {
            self.hosts.retain(|_, state| !state.is_forgettable(now));
        }
        let granted = self.hosts.iter_mut().flat_map(|(host, state)| {
            state.recover(now);
            state.grant(now, host)
        });
        granted.collect()
    }

    /// Returns the time to call [`due`](Self::due), if time alone grants a permit.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.hosts
            .values()
            .filter_map(HostState::next_deadline)
            .min()
    }

    /// Limits and use of each server that is remembered.
    pub(super) fn figures(&self) -> impl Iterator<Item = (&Host, HostFigures)> {
        self.hosts.iter().map(|(host, state)| {
            let figures = HostFigures {
                class: state.class,
                in_flight: state.in_use,
                waiting: state.queue.len(),
                requests: state.requests,
                per_minute: state.per_minute(),
            };
            (host, figures)
        })
    }

    /// Returns the best position of each queued repo, from 1, and the time until its permit if
    /// every request takes no time.
    pub(super) fn positions(&self) -> BTreeMap<&RepoId, QueuePosition> {
        let mut positions: BTreeMap<&RepoId, QueuePosition> = BTreeMap::new();
        for state in self.hosts.values() {
            let per_minute = state.per_minute().max(1);
            for (index, repo) in state.queue.iter().enumerate() {
                let minutes = u32::try_from(index / per_minute).unwrap_or(u32::MAX);
                let wait = MINUTE.saturating_mul(minutes);
                let new = QueuePosition {
                    position: index + 1,
                    wait,
                };
                let known = positions.entry(repo).or_insert(new);
                *known = (*known).min(new);
            }
        }
        positions
    }

    fn state(&mut self, now: Mono, host: &Host) -> &mut HostState {
        let chosen = self.overrides.get(host).copied();
        let full = chosen.unwrap_or(self.per_host);
        let state = self.hosts.entry(host.clone()).or_insert_with(|| HostState {
            full,
            class: HostClass::Unknown,
            classify_at: chosen.is_none().then_some(now),
            shares: ALL_SHARES,
            shares_since: now,
            starts: RateWindow::new(full.per),
            guesses: RateWindow::new(MINUTE),
            in_use: 0,
            queue: VecDeque::new(),
            requests: 0,
        });
        state.recover(now);
        state
    }
}

impl HostState {
    /// Counts one start if the limits allow it now.
    fn start(&mut self, now: Mono) -> bool {
        let starts = self.share_of(self.full.starts);
        let starts_now =
            self.in_use < self.share_of(self.full.at_once).get() && self.starts.admit(now, starts);
        if starts_now {
            self.in_use += 1;
            self.requests = self.requests.saturating_add(1);
        }
        starts_now
    }

    /// Records the end of a use. Its start counts from now, because the host may have seen it this late.
    fn end(&mut self, now: Mono, granted: Mono) {
        debug_assert!(self.in_use > 0, "a permit of another host was released");
        self.in_use = self.in_use.saturating_sub(1);
        self.starts.postpone(granted, now);
    }

    /// Grants permits to the queue as long as the limits allow it.
    fn grant(&mut self, now: Mono, host: &Host) -> Vec<Permit> {
        let mut granted = Vec::new();
        while !self.queue.is_empty() && self.start(now) {
            granted.extend(self.queue.pop_front().map(|repo| Permit {
                host: host.clone(),
                repo,
                granted: now,
            }));
        }
        granted
    }

    /// Returns when time alone grants a permit or raises the limits, if a repository is queued.
    fn next_deadline(&self) -> Option<Mono> {
        if self.queue.is_empty() {
            return None;
        }
        let has_room = self.in_use < self.share_of(self.full.at_once).get();
        let reopens = has_room.then(|| self.starts.reopens_at(self.share_of(self.full.starts)));
        let recovers = (self.shares < ALL_SHARES).then(|| self.shares_since + MINUTE);
        reopens.into_iter().chain(recovers).min()
    }

    fn is_forgettable(&self, now: Mono) -> bool {
        let is_idle = self.in_use == 0 && self.queue.is_empty();
        is_idle && self.starts.is_forgettable(now) && self.guesses.is_forgettable(now)
    }

    /// Gives back what was held from the server, a share for each minute without complaint.
    fn recover(&mut self, now: Mono) {
        while self.shares < ALL_SHARES && self.shares_since + MINUTE <= now {
            (self.shares, self.shares_since) = (self.shares + 1, self.shares_since + MINUTE);
        }
    }

    /// Returns the part of a limit that the server has.
    fn share_of(&self, limit: NonZeroUsize) -> NonZeroUsize {
        let part = limit.get().saturating_mul(self.shares) / ALL_SHARES;
        NonZeroUsize::new(part).unwrap_or(NonZeroUsize::MIN)
    }

    /// Returns the number of requests that may begin within a minute.
    fn per_minute(&self) -> usize {
        let starts = self.share_of(self.full.starts).get() as f64;
        (starts * MINUTE.as_secs_f64() / self.full.per.as_secs_f64().max(0.001)) as usize
    }
}

/// An exact sliding window: every period of `length` (its end excluded) holds at most so many starts.
///
/// Keeps the starts of the current period only. The limit may change; earlier starts still count.
#[derive(Clone, Debug)]
struct RateWindow {
    length: Duration,
    /// The starts that may still count, oldest first.
    starts: VecDeque<Mono>,
    /// Nothing starts before this time, for example because of a `Retry-After`.
    paused_until: Mono,
}

impl RateWindow {
    const fn new(length: Duration) -> Self {
        Self {
            length,
            starts: VecDeque::new(),
            paused_until: Mono::ZERO,
        }
    }

    /// Counts one start if fewer than `max` count now.
    fn admit(&mut self, now: Mono, max: NonZeroUsize) -> bool {
        let is_open = self.reopens_at(max) <= now;
        if is_open {
            while self
                .starts
                .front()
                .is_some_and(|at| *at + self.length <= now)
            {
                self.starts.pop_front();
            }
            self.starts.push_back(now);
        }
        is_open
    }

    /// Moves a start to a later time, because the other side may have seen it that late.
    fn postpone(&mut self, start: Mono, to: Mono) {
        if let Ok(position) = self.starts.binary_search(&start) {
            self.starts.remove(position);
            let after = self.starts.partition_point(|at| *at <= to);
            self.starts.insert(after, to);
        }
    }

    /// Returns the earliest time of the next start; it may be in the past.
    fn reopens_at(&self, max: NonZeroUsize) -> Mono {
        let blocking = self.starts.len().checked_sub(max.get());
        let blocking_start = blocking.and_then(|index| self.starts.get(index));
        let freed = blocking_start.map_or(Mono::ZERO, |at| *at + self.length);
        freed.max(self.paused_until)
    }

    /// Returns whether nothing that was counted matters any more.
    fn is_forgettable(&self, now: Mono) -> bool {
        let last = self
            .starts
            .back()
            .map_or(Mono::ZERO, |at| *at + self.length);
        last.max(self.paused_until) <= now
    }
}

#[cfg(test)]
mod tests;
