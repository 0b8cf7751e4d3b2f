//! When which identifier is hunted for next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::limits::{Backoff, BackoffPolicy};
use grasp_core::{Identifier, Mono};

use super::Scope;

/// The identifiers that are hunted for, each once.
///
/// ```text
///            enqueue                 start                    ended: left something that waits
///   (absent) ────────▶ Waiting(when) ──────▶ Running ─────────────────────────▶ Waiting(later)
///                       ▲  │ enqueue: sooner    │ │ ended: satisfied, nothing waits
///                       └──┘ and a fresh start  │ └────────────────────────────▶ (absent)
///                       ▲                       │ enqueue
///                       └───────────────────────┘ once the attempt has ended
/// ```
#[derive(Debug)]
pub(super) struct Queue {
    policy: BackoffPolicy,
    entries: BTreeMap<Identifier, Entry>,
    /// The entries that wait, by their time.
    times: BTreeSet<(Mono, Identifier)>,
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
    /// What the next attempt looks for.
    scope: Scope,
    /// Attempts that left something wanted since the last fresh start.
    attempts: u32,
    backoff: Backoff,
    /// Everything that the last attempt left came in its absence.
    settled: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// For its time to come.
    Waiting(Mono),
    /// An attempt is under way; something new has come since that is to be hunted for then.
    Running { again: Option<Mono> },
}

/// An attempt that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// For what.
    pub identifier: Identifier,
    /// What is looked for.
    pub scope: Scope,
    /// Which attempt it is since the last fresh start, from 1.
    pub attempt: u32,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing is left to look for.
    Satisfied,
    /// There was nothing to look for.
    Needless,
    /// Something still waits for its data.
    Wanting,
    /// Only what is looked for once an hour is left.
    Later,
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// Another, then.
    Attempt(Mono),
    /// None.
    Nothing,
}

impl Queue {
    /// A queue with nobody in it.
    pub(super) fn new(policy: BackoffPolicy) -> Self {
        Self { policy, entries: BTreeMap::new(), times: BTreeSet::new() }
    }

    /// Something new is wanted: earlier failures are forgotten, and the next attempt comes when the new thing wants it
    /// or when one was due anyway, whichever is sooner. Says whether the identifier is new here.
    pub(super) fn enqueue(&mut self, now: Mono, identifier: &Identifier, after: Duration) -> bool {
        let is_new = !self.entries.contains_key(identifier);
        let entry = self.entry(identifier, now + after);
        entry.attempts = 0;
        entry.backoff.fresh_start();
        self.hasten(identifier, now + after);
        is_new
    }

    /// The hourly turn of an identifier: everything is looked for, soon. Failures are not forgotten.
    pub(super) fn pull(&mut self, now: Mono, identifier: &Identifier) {
        self.entry(identifier, now).scope = Scope::Everything;
        self.hasten(identifier, now);
    }

    /// Moves the next attempt, if there is one to come, to a point that is sooner.
    pub(super) fn hasten(&mut self, identifier: &Identifier, at: Mono) {
        let Some(entry) = self.entries.get_mut(identifier) else { return };
        match &mut entry.stage {
            Stage::Running { again } => *again = Some(again.map_or(at, |other| other.min(at))),
            Stage::Waiting(when) if at < *when => {
                self.times.remove(&(*when, identifier.clone()));
                *when = at;
                self.times.insert((at, identifier.clone()));
            }
            Stage::Waiting(_) => {}
        }
    }

    /// Everything that was wanted came between two attempts. The next sees whether more is wanted since.
    pub(super) fn settle(&mut self, now: Mono, identifier: &Identifier) {
        if let Some(entry) = self.entries.get_mut(identifier) {
            entry.settled = true;
        }
        self.hasten(identifier, now);
    }

    /// Begins every attempt whose time has come.
    #[must_use = "an attempt that begins must end"]
    pub(super) fn start(&mut self, now: Mono) -> Vec<Start> {
        let mut started = Vec::new();
        while self.times.first().is_some_and(|(when, _)| *when <= now) {
            let Some((_, identifier)) = self.times.pop_first() else { break };
            let Some(entry) = self.entries.get_mut(&identifier) else { continue };
            entry.stage = Stage::Running { again: None };
            let scope = std::mem::take(&mut entry.scope);
            let attempt = entry.attempts.saturating_add(1);
            started.push(Start { identifier, scope, attempt });
        }
        started
    }

    /// Ends an attempt. Changes nothing if none is under way.
    pub(super) fn ended(&mut self, now: Mono, identifier: &Identifier, end: End) -> Follows {
        let Some(entry) = self.entries.get_mut(identifier) else { return Follows::Nothing };
        let Stage::Running { again } = entry.stage else { return Follows::Nothing };
        let next = match (end, again) {
            (_, Some(again)) => Some(again.max(now)),
            (End::Wanting, None) => {
                entry.attempts = entry.attempts.saturating_add(1);
                entry.backoff.failed(now);
                Some(entry.backoff.retry_at().unwrap_or(now))
            }
            (End::Satisfied | End::Needless | End::Later, None) => None,
        };
        entry.settled = false;
        match next {
            Some(when) => {
                entry.stage = Stage::Waiting(when);
                self.times.insert((when, identifier.clone()));
                Follows::Attempt(when)
            }
            None => {
                self.entries.remove(identifier);
                Follows::Nothing
            }
        }
    }

    /// When the next attempt is to begin.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.times.first().map(|(when, _)| *when)
    }

    /// Whether an attempt is under way.
    pub(super) fn is_running(&self, identifier: &Identifier) -> bool {
        let entry = self.entries.get(identifier);
        entry.is_some_and(|entry| matches!(entry.stage, Stage::Running { .. }))
    }

    /// How an attempt ends that finds nothing to look for.
    pub(super) fn needless(&self, identifier: &Identifier) -> End {
        let is_settled = self.entries.get(identifier).is_some_and(|entry| entry.settled);
        if is_settled { End::Satisfied } else { End::Needless }
    }

    /// How many attempts have left something wanted since the last fresh start.
    pub(super) fn attempts(&self, identifier: &Identifier) -> u32 {
        self.entries.get(identifier).map_or(0, |entry| entry.attempts)
    }

    /// Each identifier that is hunted for: attempts in vain, and when the next is, unless one is under way.
    pub(super) fn schedule(&self) -> impl Iterator<Item = (&Identifier, u32, Option<Mono>)> {
        self.entries.iter().map(|(identifier, entry)| match entry.stage {
            Stage::Waiting(when) => (identifier, entry.attempts, Some(when)),
            Stage::Running { .. } => (identifier, entry.attempts, None),
        })
    }

    fn entry(&mut self, identifier: &Identifier, when: Mono) -> &mut Entry {
        let (policy, times) = (self.policy, &mut self.times);
        self.entries.entry(identifier.clone()).or_insert_with(|| {
            times.insert((when, identifier.clone()));
            Entry {
                stage: Stage::Waiting(when),
                scope: Scope::Waiting,
                attempts: 0,
                backoff: Backoff::new(policy),
                settled: false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const USER: Duration = Duration::from_secs(180);
    const SYNC: Duration = Duration::from_millis(500);

    fn queue() -> Queue {
        Queue::new(BackoffPolicy::GIT_HUNT)
    }

    fn id(name: &str) -> Identifier {
        name.parse().unwrap()
    }

    fn names(started: &[Start]) -> Vec<&str> {
        started.iter().map(|start| start.identifier.as_str()).collect()
    }

    #[test]
    fn an_identifier_is_ready_at_its_time_and_not_before_nor_twice() {
        let mut queue = queue();
        assert!(queue.enqueue(Mono::ZERO, &id("x"), USER));
        assert_eq!(queue.next_deadline(), Some(Mono::from_secs(180)));
        assert!(queue.start(Mono::from_millis(179_999)).is_empty());
        assert_eq!(names(&queue.start(Mono::from_secs(180))), ["x"]);
        assert!(queue.is_running(&id("x")));
        assert!(queue.start(Mono::from_secs(9_999)).is_empty(), "it is under way");
    }

    #[test]
    fn the_schedule_says_when_and_how_often() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), USER);
        let x = id("x");
        assert_eq!(queue.schedule().collect::<Vec<_>>(), [(&x, 0, Some(Mono::from_secs(180)))]);
        let _ = queue.start(Mono::from_secs(180));
        assert_eq!(queue.schedule().next(), Some((&x, 0, None)));
        let Follows::Attempt(next) = queue.ended(Mono::from_secs(181), &x, End::Wanting) else {
            panic!("it goes on")
        };
        assert_eq!(queue.schedule().next(), Some((&x, 1, Some(next))));
    }

    #[test]
    fn a_burst_makes_one_attempt_half_a_second_after_its_first_event() {
        let mut queue = queue();
        for millis in [0, 100, 200, 499] {
            queue.enqueue(Mono::from_millis(millis), &id("x"), SYNC);
        }
        assert_eq!(names(&queue.start(Mono::from_millis(500))), ["x"]);
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn a_later_wish_never_delays_an_earlier_one() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), SYNC);
        queue.enqueue(Mono::ZERO, &id("x"), USER);
        assert_eq!(queue.next_deadline(), Some(Mono::from_millis(500)));
        queue.enqueue(Mono::ZERO, &id("y"), USER);
        queue.enqueue(Mono::ZERO, &id("y"), SYNC);
        assert_eq!(queue.start(Mono::from_millis(500)).len(), 2);
    }

    #[test]
    fn rests_double_from_twenty_seconds_to_two_minutes() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), Duration::ZERO);
        let mut now = Mono::ZERO;
        for rest in [20, 40, 80, 120, 120] {
            assert_eq!(queue.start(now).len(), 1);
            let next = now + Duration::from_secs(rest);
            assert_eq!(queue.ended(now, &id("x"), End::Wanting), Follows::Attempt(next));
            now = next;
        }
        assert_eq!(queue.start(now)[0].attempt, 6);
    }

    #[test]
    fn a_new_event_is_a_fresh_start() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), Duration::ZERO);
        let mut now = Mono::ZERO;
        for rest in [20, 40] {
            let _ = queue.start(now);
            assert_eq!(
                queue.ended(now, &id("x"), End::Wanting),
                Follows::Attempt(now + Duration::from_secs(rest))
            );
            now = now + Duration::from_secs(rest);
        }
        let _ = queue.start(now);
        let _ = queue.ended(now, &id("x"), End::Wanting);
        assert_eq!(queue.attempts(&id("x")), 3);

        queue.enqueue(now, &id("x"), SYNC);
        assert_eq!(queue.attempts(&id("x")), 0);
        assert_eq!(queue.next_deadline(), Some(now + SYNC));
        let started = queue.start(now + SYNC);
        assert_eq!(started[0].attempt, 1);
        let follows = queue.ended(now + SYNC, &id("x"), End::Wanting);
        assert_eq!(follows, Follows::Attempt(now + SYNC + Duration::from_secs(20)));
    }

    #[test]
    fn what_comes_during_an_attempt_gets_its_own_however_that_one_ends() {
        for end in [End::Satisfied, End::Needless, End::Wanting, End::Later] {
            let mut queue = queue();
            queue.enqueue(Mono::ZERO, &id("x"), Duration::ZERO);
            let _ = queue.start(Mono::ZERO);
            queue.enqueue(Mono::from_secs(1), &id("x"), SYNC);
            let follows = queue.ended(Mono::from_secs(9), &id("x"), end);
            assert_eq!(follows, Follows::Attempt(Mono::from_secs(9)), "{end:?}");
        }
    }

    #[test]
    fn it_is_gone_when_nothing_is_wanted() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), Duration::ZERO);
        let _ = queue.start(Mono::ZERO);
        assert_eq!(queue.ended(Mono::ZERO, &id("x"), End::Satisfied), Follows::Nothing);
        assert_eq!(queue.schedule().count(), 0);
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn the_hourly_turn_looks_for_everything_once() {
        let mut queue = queue();
        queue.pull(Mono::ZERO, &id("x"));
        let started = queue.start(Mono::ZERO);
        assert_eq!(started[0].scope, Scope::Everything);
        assert_eq!(queue.ended(Mono::ZERO, &id("x"), End::Later), Follows::Nothing);

        queue.enqueue(Mono::ZERO, &id("x"), USER);
        queue.pull(Mono::ZERO, &id("x"));
        assert_eq!(queue.start(Mono::ZERO)[0].scope, Scope::Everything);
        let _ = queue.ended(Mono::ZERO, &id("x"), End::Wanting);
        assert_eq!(queue.start(Mono::from_secs(20))[0].scope, Scope::Waiting);
    }

    #[derive(Clone, Debug)]
    enum Act {
        Enqueue(u8, u64),
        Pull(u8),
        Start,
        End(u8, u8),
        Pass(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (0..4u8, 0..200_000u64).prop_map(|(n, after)| Act::Enqueue(n, after)),
            1 => (0..4u8).prop_map(Act::Pull),
            3 => Just(Act::Start),
            3 => (0..4u8, 0..3u8).prop_map(|(n, end)| Act::End(n, end)),
            3 => (0..200_000u64).prop_map(Act::Pass),
        ]
    }

    proptest! {
        #[test]
        fn never_two_attempts_at_once_none_early_and_no_wish_forgotten(acts in vec(act(), 0..80)) {
            let mut queue = queue();
            let mut now = Mono::ZERO;
            let mut running = BTreeSet::new();
            // The latest point at which an attempt that has not begun must begin.
            let mut promised: BTreeMap<Identifier, Mono> = BTreeMap::new();
            for act in acts {
                match act {
                    Act::Enqueue(n, after) => {
                        let (name, after) = (id(&n.to_string()), Duration::from_millis(after));
                        queue.enqueue(now, &name, after);
                        let at = promised.get(&name).map_or(now + after, |p| (*p).min(now + after));
                        promised.insert(name, at);
                    }
                    Act::Pull(n) => {
                        queue.pull(now, &id(&n.to_string()));
                        promised.insert(id(&n.to_string()), now);
                    }
                    Act::Start => {
                        for start in queue.start(now) {
                            prop_assert!(running.insert(start.identifier.clone()), "two at once");
                            promised.remove(&start.identifier);
                        }
                        for (name, at) in &promised {
                            prop_assert!(running.contains(name) || now < *at, "forgotten");
                        }
                    }
                    Act::End(n, end) => {
                        let name = id(&n.to_string());
                        let end = [End::Satisfied, End::Wanting, End::Later][usize::from(end)];
                        if running.remove(&name) {
                            let follows = queue.ended(now, &name, end);
                            let left = promised.contains_key(&name) || end == End::Wanting;
                            prop_assert_eq!(matches!(follows, Follows::Attempt(_)), left);
                            if let Follows::Attempt(at) = follows {
                                prop_assert!(at >= now);
                            }
                        }
                    }
                    Act::Pass(millis) => now = now + Duration::from_millis(millis),
                }
            }
        }
    }
}
