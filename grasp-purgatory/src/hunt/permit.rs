//! Concurrency and rate limits for one host, with a fair queue.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::Admit;

/// Limits for one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitConfig {
    /// Concurrent uses. Default: 5.
    pub at_once: NonZeroUsize,
    /// Starts per [`per`](Self::per). Default: 30.
    pub starts: NonZeroUsize,
    /// The period that `starts` is counted over. Default: 1 minute.
    pub per: Duration,
    /// Maximum length of the queue, over all keys. Default: 10,000.
    pub max_waiting: usize,
}

impl Default for PermitConfig {
    fn default() -> Self {
        const AT_ONCE: NonZeroUsize = NonZeroUsize::new(5).expect("five is not zero");
        const STARTS: NonZeroUsize = NonZeroUsize::new(30).expect("thirty is not zero");
        Self { at_once: AT_ONCE, starts: STARTS, per: Duration::from_secs(60), max_waiting: 10_000 }
    }
}

/// The permission to use the host once, for `key`.
///
/// Not `Copy`. Give it back with [`Permits::release`] also after a failure: a permit that is dropped
/// stays taken.
#[must_use = "a permit that is not released stays taken"]
#[derive(Debug, PartialEq, Eq)]
pub struct Permit<K> {
    key: K,
}

impl<K> Permit<K> {
    /// Returns the key that the host is used for.
    pub const fn key(&self) -> &K {
        &self.key
    }
}

/// The result of [`Permits::admit`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<K> {
    /// Start now.
    Go(Permit<K>),
    /// The rate limit is reached or the host is paused; not before this time.
    Wait(Mono),
    /// All permits are taken or due to queued keys: only [`Permits::enqueue`] leads to one.
    Full,
}

/// The result of [`Permits::enqueue`].
#[must_use = "it holds permits that may start now"]
#[derive(Debug, PartialEq, Eq)]
pub enum Enqueued<K> {
    /// Queued. Holds the permits that may start now, the new one perhaps among them.
    InLine(Vec<Permit<K>>),
    /// The queue is full; the key was not queued.
    Full,
}

/// Permits for one host: limited in number and in starts per minute, with a fair queue.
///
/// Every key (for example a repository) has a queue of its own, and keys are served in turn, so that a key
/// with a thousand entries delays one with a single entry by at most one start per round. No polling:
/// [`enqueue`](Self::enqueue), [`release`](Self::release) and, at [`next_deadline`], [`due`] return
/// the permits that may start.
///
/// [`next_deadline`]: Self::next_deadline
/// [`due`]: Self::due
///
/// ```
/// use std::num::NonZeroUsize;
/// use grasp_core::Mono;
/// use grasp_purgatory::hunt::{Enqueued, Admission, PermitConfig, Permits};
///
/// let one = NonZeroUsize::new(1).unwrap();
/// let mut host = Permits::new(PermitConfig { at_once: one, ..PermitConfig::default() });
/// let now = Mono::from_secs(1);
///
/// let Admission::Go(first) = host.admit(now, "alpha") else { panic!("the host is idle") };
/// assert_eq!(host.enqueue(now, "beta"), Enqueued::InLine(vec![]));
///
/// let started = host.release(now, first);
/// assert_eq!(started[0].key(), &"beta");
/// # for permit in started { let _ = host.release(now, permit); }
/// ```
#[derive(Debug)]
pub struct Permits<K> {
    config: PermitConfig,
    window: RateWindow,
    in_use: usize,
    /// Each key with queued entries, once, in the order in which they are served.
    round: VecDeque<K>,
    queued: BTreeMap<K, usize>,
    waiting: usize,
    /// Start times of the current uses, by key.
    started_at: BTreeMap<K, VecDeque<Mono>>,
    /// Permits in use that wait for one more start, served before the queue.
    continuing: VecDeque<Permit<K>>,
}

impl<K: Ord + Clone> Permits<K> {
    /// Returns the permits of an idle host.
    pub const fn new(config: PermitConfig) -> Self {
        Self {
            config,
            window: RateWindow::new(config.starts, config.per),
            in_use: 0,
            round: VecDeque::new(),
            queued: BTreeMap::new(),
            waiting: 0,
            started_at: BTreeMap::new(),
            continuing: VecDeque::new(),
        }
    }

    /// Changes the limits. Permits stay taken, and earlier starts still count.
    pub fn set_limits(&mut self, at_once: NonZeroUsize, starts: NonZeroUsize) {
        self.config.at_once = at_once;
        self.config.starts = starts;
        self.window.set_max(starts);
    }

    /// Returns the current limits.
    pub const fn limits(&self) -> PermitConfig {
        self.config
    }

    /// Counts one more start for work in progress, ahead of the queue.
    ///
    /// The permit is returned at once, or first by [`due`](Self::due) as soon as the rate limit allows.
    pub fn continue_with(&mut self, now: Mono, permit: Permit<K>) -> Vec<Permit<K>> {
        self.use_ended(now, &permit.key);
        self.continuing.push_back(permit);
        self.due(now)
    }

    /// Takes a permit if one is free and no key is queued.
    pub fn admit(&mut self, now: Mono, key: K) -> Admission<K> {
        if self.is_saturated() {
            return Admission::Full;
        }
        match self.window.check(now) {
            Admit::Wait(until) => Admission::Wait(until),
            Admit::Go if self.waiting > 0 || !self.continuing.is_empty() => Admission::Full,
            Admit::Go => self.start(now, key).map_or(Admission::Full, Admission::Go),
        }
    }

    /// Queues one more start for `key`, and returns the permits that may start.
    pub fn enqueue(&mut self, now: Mono, key: K) -> Enqueued<K> {
        if self.waiting >= self.config.max_waiting {
            return Enqueued::Full;
        }
        let queued = self.queued.entry(key.clone()).or_insert(0);
        if *queued == 0 {
            self.round.push_back(key);
        }
        *queued += 1;
        self.waiting += 1;
        Enqueued::InLine(self.due(now))
    }

    /// Gives back a permit of this host, and returns those that may start in its place.
    #[must_use = "these may start now"]
    pub fn release(&mut self, now: Mono, permit: Permit<K>) -> Vec<Permit<K>> {
        debug_assert!(self.in_use > 0, "a permit of another host was released");
        self.use_ended(now, &permit.key);
        self.in_use = self.in_use.saturating_sub(1);
        self.due(now)
    }

    /// Returns the permits that may start now: first those of [`continue_with`](Self::continue_with), then the queue.
    #[must_use = "these may start now"]
    pub fn due(&mut self, now: Mono) -> Vec<Permit<K>> {
        let mut started = Vec::new();
        while !self.continuing.is_empty() && self.window.admit(now) == Admit::Go {
            let Some(permit) = self.continuing.pop_front() else { break };
            self.started_at.entry(permit.key.clone()).or_default().push_back(now);
            started.push(permit);
        }
        while !self.is_saturated() && self.window.check(now) == Admit::Go {
            let Some(key) = self.next_key() else { break };
            started.extend(self.start(now, key));
        }
        started
    }

    /// Removes `key` from the queue, gives back its permits that wait for one more start, and returns those that
    /// may start in their place. Permits in use are not affected.
    #[must_use = "these may start now"]
    pub fn withdraw(&mut self, now: Mono, key: &K) -> Vec<Permit<K>> {
        if let Some(queued) = self.queued.remove(key) {
            self.waiting -= queued;
            self.round.retain(|other| other != key);
        }
        let before = self.continuing.len();
        self.continuing.retain(|permit| permit.key != *key);
        self.in_use -= before - self.continuing.len();
        self.due(now)
    }

    /// Prevents starts before `until`, for example for a `Retry-After`. The later of two pauses counts.
    pub fn pause_until(&mut self, until: Mono) {
        self.window.pause_until(until);
    }

    /// Returns when to call [`due`](Self::due), if a permit can become free by time alone.
    pub fn next_deadline(&self) -> Option<Mono> {
        let waits_for_time =
            !self.continuing.is_empty() || (self.waiting > 0 && !self.is_saturated());
        waits_for_time.then(|| self.window.reopens_at())
    }

    /// Returns the length of the queue, over all keys.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the queued keys in the order of their next starts.
    pub fn line(&self) -> impl Iterator<Item = &K> {
        self.round.iter()
    }

    /// Returns the number of permits in use.
    pub const fn in_use(&self) -> usize {
        self.in_use
    }

    const fn is_saturated(&self) -> bool {
        self.in_use >= self.config.at_once.get()
    }

    /// Makes a permit; the only place that does, so that every start is counted.
    fn start(&mut self, now: Mono, key: K) -> Option<Permit<K>> {
        match self.window.admit(now) {
            Admit::Go => {
                self.in_use += 1;
                self.started_at.entry(key.clone()).or_default().push_back(now);
                Some(Permit { key })
            }
            Admit::Wait(_) => None,
        }
    }

    /// Records the end of a use. Its start counts from now, because the host may have seen it this late.
    fn use_ended(&mut self, now: Mono, key: &K) {
        let Some(started_at) = self.started_at.get_mut(key) else { return };
        if let Some(start) = started_at.pop_front() {
            self.window.postpone(start, now);
        }
        if started_at.is_empty() {
            self.started_at.remove(key);
        }
    }

    /// Takes the next key from the queue; it moves to the end if it has further entries.
    fn next_key(&mut self) -> Option<K> {
        let key = self.round.pop_front()?;
        let left = self.queued.remove(&key)?.saturating_sub(1);
        if left > 0 {
            self.queued.insert(key.clone(), left);
            self.round.push_back(key.clone());
        }
        self.waiting -= 1;
        Some(key)
    }
}

/// An exact sliding window: every period of `length` (its end excluded) holds at most `max` starts.
///
/// Keeps the starts of the current period only. The limit can be [changed](Self::set_max); earlier
/// starts still count.
///
/// ```
/// use std::{num::NonZeroUsize, time::Duration};
/// use grasp_core::Mono;
/// use grasp_core::limits::Admit;
/// use grasp_purgatory::hunt::RateWindow;
///
/// let two = NonZeroUsize::new(2).unwrap();
/// let mut window = RateWindow::new(two, Duration::from_secs(60));
/// assert_eq!(window.admit(Mono::from_secs(0)), Admit::Go);
/// assert_eq!(window.admit(Mono::from_secs(9)), Admit::Go);
/// assert_eq!(window.admit(Mono::from_secs(10)), Admit::Wait(Mono::from_secs(60)));
/// assert_eq!(window.admit(Mono::from_secs(60)), Admit::Go);
/// ```
#[derive(Clone, Debug)]
pub struct RateWindow {
    max: NonZeroUsize,
    length: Duration,
    /// The starts that may still count, oldest first.
    starts: VecDeque<Mono>,
    paused_until: Mono,
}

impl RateWindow {
    /// Returns a window without starts.
    pub const fn new(max: NonZeroUsize, length: Duration) -> Self {
        Self { max, length, starts: VecDeque::new(), paused_until: Mono::ZERO }
    }

    /// Counts one start if the limit allows it.
    pub fn admit(&mut self, now: Mono) -> Admit {
        let verdict = self.check(now);
        if verdict == Admit::Go {
            while self.starts.front().is_some_and(|at| *at + self.length <= now) {
                self.starts.pop_front();
            }
            self.starts.push_back(now);
        }
        verdict
    }

    /// Moves a start to a later time, because the other side may have seen it that late.
    pub fn postpone(&mut self, start: Mono, to: Mono) {
        if let Ok(position) = self.starts.binary_search(&start) {
            self.starts.remove(position);
            let after = self.starts.partition_point(|at| *at <= to);
            self.starts.insert(after, to);
        }
    }

    /// Changes the maximum number of starts.
    pub fn set_max(&mut self, max: NonZeroUsize) {
        self.max = max;
    }

    /// Returns the maximum number of starts.
    pub const fn max(&self) -> NonZeroUsize {
        self.max
    }

    /// Prevents starts before `until`, for example for a `Retry-After`. The later of two pauses counts.
    pub fn pause_until(&mut self, until: Mono) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Returns what [`admit`](Self::admit) would, without counting a start.
    pub fn check(&self, now: Mono) -> Admit {
        Admit::not_before(self.reopens_at(), now)
    }

    /// Returns the earliest time of the next start; it may be in the past.
    pub fn reopens_at(&self) -> Mono {
        let blocking = self.starts.len().checked_sub(self.max.get());
        let blocking_start = blocking.and_then(|index| self.starts.get(index));
        let freed = blocking_start.map_or(Mono::ZERO, |at| *at + self.length);
        freed.max(self.paused_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(at_once: usize, starts: usize) -> Permits<&'static str> {
        Permits::new(PermitConfig {
            at_once: NonZeroUsize::new(at_once).unwrap(),
            starts: NonZeroUsize::new(starts).unwrap(),
            ..PermitConfig::default()
        })
    }

    fn enqueue(host: &mut Permits<&'static str>, now: Mono, key: &'static str) {
        assert_eq!(host.enqueue(now, key), Enqueued::InLine(vec![]));
    }

    fn go(host: &mut Permits<&'static str>, now: Mono, key: &'static str) -> Permit<&'static str> {
        match host.admit(now, key) {
            Admission::Go(permit) => permit,
            other => panic!("expected a permit, got {other:?}"),
        }
    }

    /// Uses the host one start at a time until the queue is empty, and returns the order of the keys.
    fn command(
        host: &mut Permits<&'static str>,
        running: Permit<&'static str>,
    ) -> Vec<&'static str> {
        let mut command = Vec::new();
        let mut running = vec![running];
        while let Some(permit) = running.pop() {
            running.extend(host.release(Mono::ZERO, permit));
            command.extend(running.iter().map(|permit| *permit.key()));
        }
        command
    }

    #[test]
    fn limits_concurrent_uses() {
        let mut host = host(2, 100);
        let first = go(&mut host, Mono::ZERO, "a");
        let _second = go(&mut host, Mono::ZERO, "a");
        assert_eq!(host.admit(Mono::ZERO, "a"), Admission::Full);
        assert_eq!(host.release(Mono::ZERO, first), vec![]);
        let _third = go(&mut host, Mono::ZERO, "a");
    }

    #[test]
    fn limits_starts_while_permits_are_free() {
        let mut host = host(5, 1);
        let permit = go(&mut host, Mono::ZERO, "a");
        assert_eq!(host.release(Mono::ZERO, permit), vec![]);
        let reopens = Mono::from_secs(60);
        assert_eq!(host.admit(Mono::from_secs(1), "a"), Admission::Wait(reopens));
        let _permit = go(&mut host, reopens, "a");
    }

    #[test]
    fn a_release_starts_the_next_key() {
        let mut host = host(1, 100);
        let permit = go(&mut host, Mono::ZERO, "a");
        enqueue(&mut host, Mono::ZERO, "b");
        assert_eq!(host.release(Mono::ZERO, permit), vec![Permit { key: "b" }]);
    }

    #[test]
    fn keys_are_served_in_turn() {
        let mut host = host(1, 100);
        let running = go(&mut host, Mono::ZERO, "x");
        for key in ["a", "a", "a", "b", "c", "c"] {
            enqueue(&mut host, Mono::ZERO, key);
        }
        assert_eq!(command(&mut host, running), ["a", "b", "c", "a", "c", "a"]);
    }

    #[test]
    fn a_new_key_does_not_overtake_the_queue() {
        let mut host = host(2, 1);
        let _first = go(&mut host, Mono::ZERO, "a");
        enqueue(&mut host, Mono::ZERO, "b");
        // The rate limit allows a start again, and "b" was first.
        assert_eq!(host.admit(Mono::from_secs(60), "c"), Admission::Full);
        assert_eq!(host.due(Mono::from_secs(60)), vec![Permit { key: "b" }]);
    }

    #[test]
    fn the_deadline_is_set_only_if_time_can_free_a_permit() {
        let mut host = host(1, 1);
        assert_eq!(host.next_deadline(), None);
        let permit = go(&mut host, Mono::from_secs(5), "a");
        enqueue(&mut host, Mono::from_secs(5), "b");
        assert_eq!(host.next_deadline(), None, "only a release can help");
        assert_eq!(host.release(Mono::from_secs(6), permit), vec![]);
        let reopens = Mono::from_secs(66);
        assert_eq!(host.next_deadline(), Some(reopens), "the host may have seen it at its end");
        assert_eq!(host.due(reopens), vec![Permit { key: "b" }]);
    }

    #[test]
    fn nothing_starts_before_the_pause_ends() {
        let mut host = host(5, 30);
        host.pause_until(Mono::from_secs(60));
        enqueue(&mut host, Mono::ZERO, "a");
        assert_eq!(host.next_deadline(), Some(Mono::from_secs(60)));
        assert_eq!(host.due(Mono::from_secs(59)), vec![]);
        assert_eq!(host.due(Mono::from_secs(60)), vec![Permit { key: "a" }]);
    }

    #[test]
    fn a_withdrawn_key_is_skipped() {
        let mut host = host(1, 100);
        let running = go(&mut host, Mono::ZERO, "x");
        for key in ["a", "b", "a"] {
            enqueue(&mut host, Mono::ZERO, key);
        }
        assert_eq!(host.withdraw(Mono::ZERO, &"a"), vec![]);
        assert_eq!(host.waiting(), 1);
        assert_eq!(command(&mut host, running), ["b"]);
    }

    #[test]
    fn work_in_progress_continues_before_the_queue() {
        let mut host = host(1, 1);
        let first = go(&mut host, Mono::ZERO, "a");
        enqueue(&mut host, Mono::ZERO, "b");
        assert_eq!(host.continue_with(Mono::from_secs(1), first), vec![]);
        assert_eq!(host.next_deadline(), Some(Mono::from_secs(61)));
        assert_eq!(host.due(Mono::from_secs(60)), vec![]);
        let mut started = host.due(Mono::from_secs(61));
        assert_eq!(started, vec![Permit { key: "a" }]);
        assert_eq!(host.in_use(), 1);
        assert_eq!(host.release(Mono::from_secs(62), started.remove(0)), vec![]);
        assert_eq!(host.due(Mono::from_secs(122)), vec![Permit { key: "b" }]);
    }

    #[test]
    fn withdrawing_a_key_frees_its_continuing_permit() {
        let mut host = host(1, 2);
        let first = go(&mut host, Mono::ZERO, "a");
        let mut started = host.continue_with(Mono::ZERO, first);
        assert_eq!(host.continue_with(Mono::ZERO, started.remove(0)), vec![]);
        enqueue(&mut host, Mono::ZERO, "b");
        assert_eq!(host.withdraw(Mono::from_secs(60), &"a"), vec![Permit { key: "b" }]);
        assert_eq!(host.in_use(), 1);
    }

    #[test]
    fn changed_limits_apply_at_once() {
        let mut host = host(1, 1);
        let _first = go(&mut host, Mono::ZERO, "a");
        enqueue(&mut host, Mono::ZERO, "b");
        host.set_limits(NonZeroUsize::new(2).unwrap(), NonZeroUsize::new(3).unwrap());
        assert_eq!(host.due(Mono::ZERO), vec![Permit { key: "b" }]);
        host.set_limits(NonZeroUsize::new(1).unwrap(), NonZeroUsize::new(1).unwrap());
        assert_eq!(host.admit(Mono::from_secs(60), "c"), Admission::Full);
    }

    #[test]
    fn a_full_queue_takes_no_further_key() {
        let mut host = Permits::new(PermitConfig { max_waiting: 1, ..PermitConfig::default() });
        host.pause_until(Mono::from_secs(1));
        assert_eq!(host.enqueue(Mono::ZERO, "a"), Enqueued::InLine(vec![]));
        assert_eq!(host.enqueue(Mono::ZERO, "b"), Enqueued::Full);
        assert_eq!(host.waiting(), 1);
    }
}

#[cfg(test)]
mod window_tests {
    use super::*;

    fn window(max: usize, secs: u64) -> RateWindow {
        RateWindow::new(NonZeroUsize::new(max).unwrap(), Duration::from_secs(secs))
    }

    #[test]
    fn a_postponed_start_counts_for_longer() {
        let mut window = window(2, 60);
        assert_eq!(window.admit(Mono::from_secs(0)), Admit::Go);
        assert_eq!(window.admit(Mono::from_secs(1)), Admit::Go);
        window.postpone(Mono::from_secs(0), Mono::from_secs(5));
        assert_eq!(window.check(Mono::from_secs(60)), Admit::Wait(Mono::from_secs(61)));
        assert_eq!(window.admit(Mono::from_secs(61)), Admit::Go);
        assert_eq!(window.check(Mono::from_secs(61)), Admit::Wait(Mono::from_secs(65)));
    }

    #[test]
    fn a_changed_limit_counts_earlier_starts() {
        let mut window = window(4, 60);
        for second in 0..4 {
            assert_eq!(window.admit(Mono::from_secs(second)), Admit::Go);
        }
        window.set_max(NonZeroUsize::new(2).unwrap());
        assert_eq!(window.check(Mono::from_secs(61)), Admit::Wait(Mono::from_secs(62)));
        window.set_max(NonZeroUsize::new(5).unwrap());
        assert_eq!(window.admit(Mono::from_secs(4)), Admit::Go);
        assert_eq!(window.check(Mono::from_secs(5)), Admit::Wait(Mono::from_secs(60)));
    }

    #[test]
    fn the_next_start_waits_until_the_oldest_no_longer_counts() {
        let mut window = window(30, 60);
        for second in 0..30 {
            assert_eq!(window.admit(Mono::from_secs(second)), Admit::Go);
        }
        let reopens = Mono::from_secs(60);
        assert_eq!(window.admit(Mono::from_secs(31)), Admit::Wait(reopens));
        assert_eq!(window.admit(reopens), Admit::Go);
        assert_eq!(window.admit(reopens), Admit::Wait(Mono::from_secs(61)));
    }

    #[test]
    fn refused_starts_do_not_count() {
        let mut window = window(1, 10);
        assert_eq!(window.admit(Mono::ZERO), Admit::Go);
        for second in 1..10 {
            let waiting = Admit::Wait(Mono::from_secs(10));
            assert_eq!(window.admit(Mono::from_secs(second)), waiting);
        }
        assert_eq!(window.admit(Mono::from_secs(10)), Admit::Go);
    }

    #[test]
    fn a_pause_applies_to_an_empty_window() {
        let mut window = window(5, 60);
        window.pause_until(Mono::from_secs(90));
        window.pause_until(Mono::from_secs(30));
        assert_eq!(window.admit(Mono::from_secs(89)), Admit::Wait(Mono::from_secs(90)));
        assert_eq!(window.admit(Mono::from_secs(90)), Admit::Go);
    }

    #[test]
    fn memory_is_bounded_by_the_limit() {
        let mut window = window(3, 1);
        for second in 0..1_000 {
            assert_eq!(window.admit(Mono::from_secs(second)), Admit::Go);
        }
        assert!(window.starts.len() <= 3);
    }
}
