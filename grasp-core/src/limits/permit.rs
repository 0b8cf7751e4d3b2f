//! Who may use one host now, and who is next in line.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::time::Duration;

use super::{Admit, RateWindow};
use crate::Mono;

/// How much one host is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitConfig {
    /// Uses under way at the same time. Default: 5.
    pub at_once: NonZeroUsize,
    /// Starts within any stretch of [`per`](Self::per). Default: 30.
    pub starts: NonZeroUsize,
    /// The stretch that `starts` is counted over. Default: 1 minute.
    pub per: Duration,
    /// Turns that may wait in line, over all keys; beyond it the line is full. Default: 10,000.
    pub max_waiting: usize,
}

impl Default for PermitConfig {
    fn default() -> Self {
        const AT_ONCE: NonZeroUsize = NonZeroUsize::new(5).expect("five is not zero");
        const STARTS: NonZeroUsize = NonZeroUsize::new(30).expect("thirty is not zero");
        Self { at_once: AT_ONCE, starts: STARTS, per: Duration::from_secs(60), max_waiting: 10_000 }
    }
}

/// The right to use the host once, for `key`.
///
/// Cannot be copied. Hand it back with [`Permits::release`], whatever became of the work: a permit
/// that is dropped instead stays taken.
#[must_use = "a permit that is not released stays taken"]
#[derive(Debug, PartialEq, Eq)]
pub struct Permit<K> {
    key: K,
}

impl<K> Permit<K> {
    /// On whose behalf the host is used.
    pub const fn key(&self) -> &K {
        &self.key
    }
}

/// The answer to somebody who will not stand in line.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Entry<K> {
    /// Start now.
    Go(Permit<K>),
    /// The window is used up or the host is paused; not before this point.
    Wait(Mono),
    /// Every permit is out, or owed to those in line: only [`Permits::enqueue`] leads to one.
    Full,
}

/// The answer to somebody who stands in line.
#[must_use = "it holds the permits of those who may start now"]
#[derive(Debug, PartialEq, Eq)]
pub enum Enqueued<K> {
    /// In line. Those who may start now are named, the newcomer perhaps among them.
    InLine(Vec<Permit<K>>),
    /// The line is full; the turn was not taken in.
    Full,
}

/// Permits for one host: so many at once, so many per minute, and a fair line.
///
/// Every key (say, a repository) has its own queue of turns; keys take turns one by one, so a key
/// with a thousand turns delays one with a single turn by one start at most per round. Nobody polls:
/// [`enqueue`](Self::enqueue), [`release`](Self::release) and, at [`next_deadline`], [`due`] name
/// those who may start.
///
/// [`next_deadline`]: Self::next_deadline
/// [`due`]: Self::due
///
/// ```
/// use std::num::NonZeroUsize;
/// use grasp_core::Mono;
/// use grasp_core::limits::{Enqueued, Entry, PermitConfig, Permits};
///
/// let one = NonZeroUsize::new(1).unwrap();
/// let mut host = Permits::new(PermitConfig { at_once: one, ..PermitConfig::default() });
/// let now = Mono::from_secs(1);
///
/// let Entry::Go(first) = host.admit(now, "alpha") else { panic!("the host is idle") };
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
    /// Each key that has turns left, once, in the order in which they come up.
    round: VecDeque<K>,
    turns: BTreeMap<K, usize>,
    waiting: usize,
    /// When the uses under way began, by key.
    began: BTreeMap<K, VecDeque<Mono>>,
    /// Permits that are out and wait for one more start. They come before everything in line.
    continuing: VecDeque<Permit<K>>,
}

impl<K: Ord + Clone> Permits<K> {
    /// An idle host.
    pub const fn new(config: PermitConfig) -> Self {
        Self {
            config,
            window: RateWindow::new(config.starts, config.per),
            in_use: 0,
            round: VecDeque::new(),
            turns: BTreeMap::new(),
            waiting: 0,
            began: BTreeMap::new(),
            continuing: VecDeque::new(),
        }
    }

    /// Changes the limits. Permits that are out stay out, and starts so far still count.
    pub fn set_limits(&mut self, at_once: NonZeroUsize, starts: NonZeroUsize) {
        self.config.at_once = at_once;
        self.config.starts = starts;
        self.window.set_max(starts);
    }

    /// The limits in force.
    pub const fn limits(&self) -> PermitConfig {
        self.config
    }

    /// Counts one more start for work that is under way. It never waits behind the line: the permit comes back at
    /// once, or from [`due`](Self::due) before any other as soon as the window opens.
    pub fn continue_with(&mut self, now: Mono, permit: Permit<K>) -> Vec<Permit<K>> {
        self.ended(now, &permit.key);
        self.continuing.push_back(permit);
        self.due(now)
    }

    /// Asks for a permit now or not at all; never overtakes anybody in line.
    pub fn admit(&mut self, now: Mono, key: K) -> Entry<K> {
        if self.is_saturated() {
            return Entry::Full;
        }
        match self.window.check(now) {
            Admit::Wait(until) => Entry::Wait(until),
            Admit::Go if self.waiting > 0 || !self.continuing.is_empty() => Entry::Full,
            Admit::Go => self.start(now, key).map_or(Entry::Full, Entry::Go),
        }
    }

    /// Takes in one more turn for `key`, behind the turns that it has already.
    pub fn enqueue(&mut self, now: Mono, key: K) -> Enqueued<K> {
        if self.waiting >= self.config.max_waiting {
            return Enqueued::Full;
        }
        let turns = self.turns.entry(key.clone()).or_insert(0);
        if *turns == 0 {
            self.round.push_back(key);
        }
        *turns += 1;
        self.waiting += 1;
        Enqueued::InLine(self.due(now))
    }

    /// Takes a permit back, and names those who may start in its place.
    ///
    /// The permit must be one of this host's own.
    #[must_use = "these may start now"]
    pub fn release(&mut self, now: Mono, permit: Permit<K>) -> Vec<Permit<K>> {
        debug_assert!(self.in_use > 0, "a permit of another host was released");
        self.ended(now, &permit.key);
        self.in_use = self.in_use.saturating_sub(1);
        self.due(now)
    }

    /// Those who may start now, in their order: first what continues, then the line.
    #[must_use = "these may start now"]
    pub fn due(&mut self, now: Mono) -> Vec<Permit<K>> {
        let mut started = Vec::new();
        while !self.continuing.is_empty() && self.window.admit(now) == Admit::Go {
            let Some(permit) = self.continuing.pop_front() else { break };
            self.began.entry(permit.key.clone()).or_default().push_back(now);
            started.push(permit);
        }
        while !self.is_saturated() && self.window.check(now) == Admit::Go {
            let Some(key) = self.next_turn() else { break };
            started.extend(self.start(now, key));
        }
        started
    }

    /// Removes every turn that `key` has in line, takes back its permits that wait to continue, and names those who
    /// may start in their place. Permits in use are not affected.
    #[must_use = "these may start now"]
    pub fn withdraw(&mut self, now: Mono, key: &K) -> Vec<Permit<K>> {
        if let Some(turns) = self.turns.remove(key) {
            self.waiting -= turns;
            self.round.retain(|other| other != key);
        }
        let before = self.continuing.len();
        self.continuing.retain(|permit| permit.key != *key);
        self.in_use -= before - self.continuing.len();
        self.due(now)
    }

    /// Lets nobody start before `until`, as a `Retry-After` demands. Of two pauses the later counts.
    pub fn pause_until(&mut self, until: Mono) {
        self.window.pause_until(until);
    }

    /// When to ask for those [`due`](Self::due), if time alone can bring somebody's turn.
    pub fn next_deadline(&self) -> Option<Mono> {
        let time_helps = !self.continuing.is_empty() || (self.waiting > 0 && !self.is_saturated());
        time_helps.then(|| self.window.reopens_at())
    }

    /// Turns in line, over all keys.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// The keys in line in the order of their next turns.
    pub fn line(&self) -> impl Iterator<Item = &K> {
        self.round.iter()
    }

    /// Permits that are out.
    pub const fn in_use(&self) -> usize {
        self.in_use
    }

    const fn is_saturated(&self) -> bool {
        self.in_use >= self.config.at_once.get()
    }

    /// The one place where a permit is made, so that none escapes the window.
    fn start(&mut self, now: Mono, key: K) -> Option<Permit<K>> {
        match self.window.admit(now) {
            Admit::Go => {
                self.in_use += 1;
                self.began.entry(key.clone()).or_default().push_back(now);
                Some(Permit { key })
            }
            Admit::Wait(_) => None,
        }
    }

    /// A use has ended. The host may have seen its start as late as that, so that it counts from here.
    fn ended(&mut self, now: Mono, key: &K) {
        let Some(began) = self.began.get_mut(key) else { return };
        if let Some(start) = began.pop_front() {
            self.window.postpone(start, now);
        }
        if began.is_empty() {
            self.began.remove(key);
        }
    }

    /// Takes the turn that is up; its key goes to the end of the round if it has more.
    fn next_turn(&mut self) -> Option<K> {
        let key = self.round.pop_front()?;
        let left = self.turns.remove(&key)?.saturating_sub(1);
        if left > 0 {
            self.turns.insert(key.clone(), left);
            self.round.push_back(key.clone());
        }
        self.waiting -= 1;
        Some(key)
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
            Entry::Go(permit) => permit,
            other => panic!("expected a permit, got {other:?}"),
        }
    }

    /// Uses the host one start at a time until the line is empty, and gives the order of the keys.
    fn order(host: &mut Permits<&'static str>, running: Permit<&'static str>) -> Vec<&'static str> {
        let mut order = Vec::new();
        let mut running = vec![running];
        while let Some(permit) = running.pop() {
            running.extend(host.release(Mono::ZERO, permit));
            order.extend(running.iter().map(|permit| *permit.key()));
        }
        order
    }

    #[test]
    fn no_more_than_the_limit_run_at_once() {
        let mut host = host(2, 100);
        let first = go(&mut host, Mono::ZERO, "a");
        let _second = go(&mut host, Mono::ZERO, "a");
        assert_eq!(host.admit(Mono::ZERO, "a"), Entry::Full);
        assert_eq!(host.release(Mono::ZERO, first), vec![]);
        let _third = go(&mut host, Mono::ZERO, "a");
    }

    #[test]
    fn starts_are_rationed_even_when_permits_are_free() {
        let mut host = host(5, 1);
        let permit = go(&mut host, Mono::ZERO, "a");
        assert_eq!(host.release(Mono::ZERO, permit), vec![]);
        let reopens = Mono::from_secs(60);
        assert_eq!(host.admit(Mono::from_secs(1), "a"), Entry::Wait(reopens));
        let _permit = go(&mut host, reopens, "a");
    }

    #[test]
    fn a_release_starts_the_next_in_line() {
        let mut host = host(1, 100);
        let permit = go(&mut host, Mono::ZERO, "a");
        enqueue(&mut host, Mono::ZERO, "b");
        assert_eq!(host.release(Mono::ZERO, permit), vec![Permit { key: "b" }]);
    }

    #[test]
    fn keys_take_turns_however_many_each_has() {
        let mut host = host(1, 100);
        let running = go(&mut host, Mono::ZERO, "x");
        for key in ["a", "a", "a", "b", "c", "c"] {
            enqueue(&mut host, Mono::ZERO, key);
        }
        assert_eq!(order(&mut host, running), ["a", "b", "c", "a", "c", "a"]);
    }

    #[test]
    fn a_newcomer_does_not_overtake_the_line() {
        let mut host = host(2, 1);
        let _first = go(&mut host, Mono::ZERO, "a");
        enqueue(&mut host, Mono::ZERO, "b");
        // The window is open again, yet it belongs to "b".
        assert_eq!(host.admit(Mono::from_secs(60), "c"), Entry::Full);
        assert_eq!(host.due(Mono::from_secs(60)), vec![Permit { key: "b" }]);
    }

    #[test]
    fn the_deadline_is_the_windows_and_only_when_time_helps() {
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
    fn a_paused_host_starts_nobody_until_the_pause_ends() {
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
        assert_eq!(order(&mut host, running), ["b"]);
    }

    #[test]
    fn work_under_way_continues_before_the_line() {
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
    fn a_key_withdrawn_while_it_waits_to_continue_frees_its_permit() {
        let mut host = host(1, 2);
        let first = go(&mut host, Mono::ZERO, "a");
        let mut started = host.continue_with(Mono::ZERO, first);
        assert_eq!(host.continue_with(Mono::ZERO, started.remove(0)), vec![]);
        enqueue(&mut host, Mono::ZERO, "b");
        assert_eq!(host.withdraw(Mono::from_secs(60), &"a"), vec![Permit { key: "b" }]);
        assert_eq!(host.in_use(), 1);
    }

    #[test]
    fn changed_limits_hold_at_once() {
        let mut host = host(1, 1);
        let _first = go(&mut host, Mono::ZERO, "a");
        enqueue(&mut host, Mono::ZERO, "b");
        host.set_limits(NonZeroUsize::new(2).unwrap(), NonZeroUsize::new(3).unwrap());
        assert_eq!(host.due(Mono::ZERO), vec![Permit { key: "b" }]);
        host.set_limits(NonZeroUsize::new(1).unwrap(), NonZeroUsize::new(1).unwrap());
        assert_eq!(host.admit(Mono::from_secs(60), "c"), Entry::Full);
    }

    #[test]
    fn a_full_line_takes_nobody_in() {
        let mut host = Permits::new(PermitConfig { max_waiting: 1, ..PermitConfig::default() });
        host.pause_until(Mono::from_secs(1));
        assert_eq!(host.enqueue(Mono::ZERO, "a"), Enqueued::InLine(vec![]));
        assert_eq!(host.enqueue(Mono::ZERO, "b"), Enqueued::Full);
        assert_eq!(host.waiting(), 1);
    }
}
