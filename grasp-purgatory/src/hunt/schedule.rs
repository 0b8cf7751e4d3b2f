//! The schedule of attempts, and the hourly pull.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use grasp_core::limits::{Backoff, BackoffPolicy};
use grasp_core::{Mono, Now, RepoId};

use super::{HuntConfig, Scope};

/// The repos that are hunted for, each once.
///
/// ```text
///            enqueue                 start                    ended: left something that waits
///   (absent) ────────▶ Waiting       ──────▶ Running ─────────────────────────▶ Waiting, for longer
///                       ▲  │ enqueue: sooner    │ │ ended: satisfied, nothing waits
///                       └──┘ and a fresh start  │ └────────────────────────────▶ (absent)
///                       ▲                       │ enqueue
///                       └───────────────────────┘ once the attempt has ended
/// ```
///
/// An attempt that has asked every server that could be asked at once, and waits for permits of others, is
/// *waiting for hosts*. It has not failed: nothing is counted until those servers were asked. Something new begins another
/// attempt beside it, and so does the backoff if servers were asked without success.
#[derive(Debug)]
pub(super) struct Schedule {
    policy: BackoffPolicy,
    leading_edge: Duration,
    debounce: Duration,
    entries: BTreeMap<RepoId, ScheduledHunt>,
    /// The next attempts of all entries that are not running.
    times: BTreeSet<(Mono, RepoId)>,
}

#[derive(Debug)]
struct ScheduledHunt {
    phase: AttemptPhase,
    /// The next attempt. Something new that came during one is hunted for then.
    next: Option<Mono>,
    /// The start of the last attempt.
    began: Option<Mono>,
    /// The scope of the next attempt.
    scope: Scope,
    /// Unsuccessful attempts since the last reset.
    attempts: u32,
    backoff: Backoff,
    /// All objects that the last attempt left have arrived since.
    is_satisfied: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptPhase {
    Waiting,
    Running,
    WaitingForHosts,
}

/// An attempt that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub repo: RepoId,
    pub scope: Scope,
    /// The number since the last reset, from 1.
    pub attempt: u32,
}

/// The end of an attempt.
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

impl Schedule {
    pub(super) fn new(config: &HuntConfig) -> Self {
        Self {
            policy: config.backoff,
            leading_edge: config.leading_edge,
            debounce: config.debounce,
            entries: BTreeMap::new(),
            times: BTreeSet::new(),
        }
    }

    /// Something new is wanted: earlier failures are forgotten, and the next attempt comes when the new thing wants it
    /// or when one was due anyway, whichever is sooner.
    pub(super) fn enqueue(&mut self, now: Mono, repo: &RepoId, after: Option<Duration>) {
        let leading_edge = self.leading_edge;
        let debounce = self.debounce;
        let entry = self.entry(repo);
        entry.attempts = 0;
        entry.backoff.fresh_start();
        // The first event of a burst is hunted for at once, those that follow together.
        let when = match (after, entry.phase, entry.began) {
            (Some(after), ..) => now + after,
            (None, AttemptPhase::Running, _) => now + debounce,
            (None, _, Some(began)) => (now + leading_edge).max(began + debounce),
            (None, _, None) => now + leading_edge,
        };
        self.hasten(repo, when);
    }

    /// Starts the hourly pull of a repository soon, with everything in its scope. Failures are not forgotten.
    pub(super) fn pull(&mut self, now: Mono, repo: &RepoId) {
        self.entry(repo).scope = Scope::Everything;
        self.hasten(repo, now);
    }

    /// Everything that was wanted came between two attempts. The next sees whether more is wanted since.
    pub(super) fn satisfied(&mut self, now: Mono, repo: &RepoId) {
        if let Some(entry) = self.entries.get_mut(repo) {
            entry.is_satisfied = true;
            self.hasten(repo, now);
        }
    }

    /// Begins every attempt whose time has come.
    #[must_use = "an attempt that begins must end"]
    pub(super) fn start(&mut self, now: Mono) -> Vec<Start> {
        let mut started = Vec::new();
        while self.times.first().is_some_and(|(when, _)| *when <= now) {
            let Some((_, repo)) = self.times.pop_first() else {
                break;
            };
            let Some(entry) = self.entries.get_mut(&repo) else {
                continue;
            };
            (entry.phase, entry.next, entry.began) = (AttemptPhase::Running, None, Some(now));
            let scope = std::mem::take(&mut entry.scope);
            started.push(Start {
                repo,
                scope,
                attempt: entry.attempts.saturating_add(1),
            });
        }
        started
    }

    /// Makes a running attempt wait for permits of hosts. Servers that were asked and did not
    /// have it are asked again after a backoff, without counting: they may have it by then.
    pub(super) fn wait_for_hosts(&mut self, now: Mono, repo: &RepoId, were_asked: bool) {
        let Some(entry) = self.entries.get_mut(repo) else {
            return;
        };
        entry.phase = AttemptPhase::WaitingForHosts;
        let retry = were_asked.then(|| entry.backoff.failed(now));
        entry.next = entry.next.into_iter().chain(retry).min();
        self.times
            .extend(entry.next.map(|when| (when, repo.clone())));
    }

    /// Ends an attempt, and returns the time of the next. Changes nothing if none is running or waiting for hosts.
    pub(super) fn ended(&mut self, now: Mono, repo: &RepoId, end: End) -> Option<Mono> {
        let entry = self.entries.get_mut(repo)?;
        if entry.phase == AttemptPhase::Waiting {
            return None;
        }
        if let Some(next) = entry.next {
            self.times.remove(&(next, repo.clone()));
        }
        entry.next = match (entry.next, end) {
            (Some(next), _) => Some(next.max(now)),
            (None, End::Wanting) => {
                entry.attempts = entry.attempts.saturating_add(1);
                Some(entry.backoff.failed(now))
            }
            (None, End::Satisfied | End::Needless | End::Later) => {
                self.entries.remove(repo);
                return None;
            }
        };
        (entry.phase, entry.is_satisfied) = (AttemptPhase::Waiting, false);
        self.times
            .extend(entry.next.map(|when| (when, repo.clone())));
        entry.next
    }

    /// Returns whether nothing is hunted for.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the start of the next attempt.
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        self.times.first().map(|(when, _)| *when)
    }

    /// Returns whether an attempt is running.
    pub(super) fn is_running(&self, repo: &RepoId) -> bool {
        self.phase(repo) == Some(AttemptPhase::Running)
    }

    /// Returns whether an attempt waits for permits of hosts.
    pub(super) fn waits_for_hosts(&self, repo: &RepoId) -> bool {
        self.phase(repo) == Some(AttemptPhase::WaitingForHosts)
    }

    fn phase(&self, repo: &RepoId) -> Option<AttemptPhase> {
        self.entries.get(repo).map(|entry| entry.phase)
    }

    /// Returns the end of an attempt that found nothing to look for.
    pub(super) fn needless(&self, repo: &RepoId) -> End {
        let is_satisfied = self
            .entries
            .get(repo)
            .is_some_and(|entry| entry.is_satisfied);
        if is_satisfied {
            End::Satisfied
        } else {
            End::Needless
        }
    }

    /// Returns the number of unsuccessful attempts since the last reset.
    pub(super) fn attempts(&self, repo: &RepoId) -> u32 {
        self.entries.get(repo).map_or(0, |entry| entry.attempts)
    }

    /// Returns each repository with its failed attempts, and the next one unless one is running or waiting for hosts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RepoId, u32, Option<Mono>)> {
        self.entries.iter().map(|(repo, entry)| {
            let next = entry.next.filter(|_| entry.phase == AttemptPhase::Waiting);
            (repo, entry.attempts, next)
        })
    }

    /// Moves the next attempt to a point that is sooner.
    fn hasten(&mut self, repo: &RepoId, at: Mono) {
        let Some(entry) = self.entries.get_mut(repo) else {
            return;
        };
        if entry.next.is_some_and(|next| next <= at) {
            return;
        }
        let before = entry.next.replace(at);
        if entry.phase != AttemptPhase::Running {
            before.map(|before| self.times.remove(&(before, repo.clone())));
            self.times.insert((at, repo.clone()));
        }
    }

    fn entry(&mut self, repo: &RepoId) -> &mut ScheduledHunt {
        let policy = self.policy;
        self.entries
            .entry(repo.clone())
            .or_insert_with(|| ScheduledHunt {
                phase: AttemptPhase::Waiting,
                next: None,
                began: None,
                scope: Scope::Waiting,
                attempts: 0,
                backoff: Backoff::new(policy),
                is_satisfied: false,
            })
    }
}

/// Every repo has its second in the hour, given by its name: the same in every hour and after every start, and
/// all of them spread evenly.
#[derive(Debug)]
pub(super) struct HourlyPull {
    every: Duration,
    /// The next pull of each repository.
    times: BTreeSet<(Mono, RepoId)>,
    /// Time of the next listing of repositories.
    list_at: Mono,
}

impl HourlyPull {
    pub(super) fn new(every: Duration, now: Mono) -> Self {
        Self {
            every: every.max(Duration::from_secs(1)),
            times: BTreeSet::new(),
            list_at: now,
        }
    }

    /// Returns whether it is time to list the repos; then it is not for another interval.
    pub(super) fn must_list(&mut self, now: Mono) -> bool {
        let is_due = self.list_at <= now;
        if is_due {
            self.list_at = now + self.every;
        }
        is_due
    }

    /// Pulls these from now on.
    pub(super) fn listed(&mut self, now: Now, repos: BTreeSet<RepoId>) {
        let every = self.every.as_secs();
        let time = |repo: &RepoId| {
            let mut hasher = DefaultHasher::new();
            repo.hash(&mut hasher);
            let second = (hasher.finish() % every + every - now.unix.as_secs() % every) % every;
            now.mono + Duration::from_secs(if second == 0 { every } else { second })
        };
        self.times = repos.into_iter().map(|repo| (time(&repo), repo)).collect();
    }

    /// Returns the repos that became due since the last call, each once however long ago that was.
    pub(super) fn due(&mut self, now: Mono) -> Vec<RepoId> {
        let mut due = Vec::new();
        while self.times.first().is_some_and(|(at, _)| *at <= now) {
            let Some((mut at, repo)) = self.times.pop_first() else {
                break;
            };
            while at <= now {
                at = at + self.every;
            }
            self.times.insert((at, repo.clone()));
            due.push(repo);
        }
        due
    }

    /// Returns the time of the next due repo or listing.
    pub(super) fn next_deadline(&self) -> Mono {
        self.times
            .first()
            .map_or(self.list_at, |(at, _)| self.list_at.min(*at))
    }
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const USER: Duration = Duration::from_secs(180);
    const DEBOUNCE: Duration = Duration::from_millis(500);
    const EDGE: Duration = Duration::from_millis(20);
    const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

    fn queue() -> Schedule {
        Schedule::new(&HuntConfig::default())
    }

    fn id(name: &str) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([1; 32]), name.parse().unwrap())
    }

    fn names(started: &[Start]) -> Vec<&str> {
        started
            .iter()
            .map(|start| start.repo.identifier.as_str())
            .collect()
    }

    #[test]
    fn a_repository_is_ready_at_its_time_and_not_before_nor_twice() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), Some(USER));
        assert_eq!(queue.next_deadline(), Some(Mono::from_secs(180)));
        assert!(queue.start(Mono::from_millis(179_999)).is_empty());
        assert_eq!(names(&queue.start(Mono::from_secs(180))), ["x"]);
        assert!(queue.is_running(&id("x")));
        assert!(
            queue.start(Mono::from_secs(9_999)).is_empty(),
            "it is under way"
        );
    }

    #[test]
    fn the_schedule_says_when_and_how_often() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), Some(USER));
        let x = id("x");
        assert_eq!(
            queue.iter().collect::<Vec<_>>(),
            [(&x, 0, Some(Mono::from_secs(180)))]
        );
        let _ = queue.start(Mono::from_secs(180));
        assert_eq!(queue.iter().next(), Some((&x, 0, None)));
        let Some(next) = queue.ended(Mono::from_secs(181), &x, End::Wanting) else {
            panic!("it goes on")
        };
        assert_eq!(queue.iter().next(), Some((&x, 1, Some(next))));
    }

    #[test]
    fn the_first_event_of_a_burst_is_hunted_for_at_once_and_the_others_together() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), None);
        queue.enqueue(Mono::from_millis(10), &id("x"), None);
        assert_eq!(names(&queue.start(Mono::ZERO + EDGE)), ["x"]);
        for millis in [30, 100, 200, 499] {
            queue.enqueue(Mono::from_millis(millis), &id("x"), None);
        }
        let ended = queue.ended(Mono::from_millis(500), &id("x"), End::Satisfied);
        assert_eq!(ended, Some(Mono::from_millis(530)));
        assert_eq!(names(&queue.start(Mono::from_millis(530))), ["x"]);
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn an_event_begins_at_once_if_nothing_is_queued_and_not_sooner_than_the_debounce_otherwise() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), None);
        let began = Mono::ZERO + EDGE;
        assert_eq!(queue.start(began).len(), 1);
        assert_eq!(queue.ended(began, &id("x"), End::Satisfied), None);
        let second = Mono::from_millis(100);
        queue.enqueue(second, &id("x"), None);
        assert_eq!(
            queue.next_deadline(),
            Some(second + EDGE),
            "nothing was queued"
        );
        let began = second + EDGE;
        assert_eq!(queue.start(began).len(), 1);
        let _ = queue.ended(began, &id("x"), End::Wanting);
        queue.enqueue(began, &id("x"), None);
        assert_eq!(
            queue.next_deadline(),
            Some(began + DEBOUNCE),
            "another attempt was queued"
        );
    }

    #[test]
    fn a_queued_attempt_is_not_counted_until_it_ends() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), AT_ONCE);
        let _ = queue.start(Mono::ZERO);
        queue.wait_for_hosts(Mono::ZERO, &id("x"), false);
        assert!(queue.waits_for_hosts(&id("x")) && !queue.is_running(&id("x")));
        assert_eq!(
            queue.next_deadline(),
            None,
            "only its start or a new event changes that"
        );
        assert!(queue.start(Mono::from_secs(3_600)).is_empty());
        assert_eq!(queue.attempts(&id("x")), 0);

        let mut other = self::queue();
        other.enqueue(Mono::ZERO, &id("x"), AT_ONCE);
        let _ = other.start(Mono::ZERO);
        other.wait_for_hosts(Mono::ZERO, &id("x"), true);
        assert_eq!(
            other.next_deadline(),
            Some(Mono::from_secs(20)),
            "servers that were asked are asked again"
        );

        let hour = Mono::from_secs(3_600);
        queue.enqueue(hour, &id("x"), None);
        assert_eq!(queue.start(hour + EDGE)[0].attempt, 1);
        queue.wait_for_hosts(Mono::ZERO, &id("x"), false);
        let follows = queue.ended(hour, &id("x"), End::Wanting);
        assert_eq!(follows, Some(hour + Duration::from_secs(20)));
        assert_eq!(queue.attempts(&id("x")), 1);
    }

    #[test]
    fn a_later_request_never_delays_an_earlier_one() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), None);
        queue.enqueue(Mono::ZERO, &id("x"), Some(USER));
        assert_eq!(queue.next_deadline(), Some(Mono::ZERO + EDGE));
        queue.enqueue(Mono::ZERO, &id("y"), Some(USER));
        queue.enqueue(Mono::ZERO, &id("y"), None);
        assert_eq!(queue.start(Mono::from_millis(500)).len(), 2);
    }

    #[test]
    fn pauses_double_from_twenty_seconds_to_two_minutes() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), AT_ONCE);
        let mut now = Mono::ZERO;
        for rest in [20, 40, 80, 120, 120] {
            assert_eq!(queue.start(now).len(), 1);
            let next = now + Duration::from_secs(rest);
            assert_eq!(queue.ended(now, &id("x"), End::Wanting), Some(next));
            now = next;
        }
        assert_eq!(queue.start(now)[0].attempt, 6);
    }

    #[test]
    fn a_new_event_is_a_fresh_start() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), AT_ONCE);
        let mut now = Mono::ZERO;
        for rest in [20, 40] {
            let _ = queue.start(now);
            assert_eq!(
                queue.ended(now, &id("x"), End::Wanting),
                Some(now + Duration::from_secs(rest))
            );
            now = now + Duration::from_secs(rest);
        }
        let _ = queue.start(now);
        let _ = queue.ended(now, &id("x"), End::Wanting);
        assert_eq!(queue.attempts(&id("x")), 3);

        let now = now + DEBOUNCE;
        queue.enqueue(now, &id("x"), None);
        assert_eq!(queue.attempts(&id("x")), 0);
        assert_eq!(queue.next_deadline(), Some(now + EDGE));
        let started = queue.start(now + EDGE);
        assert_eq!(started[0].attempt, 1);
        let follows = queue.ended(now + EDGE, &id("x"), End::Wanting);
        assert_eq!(follows, Some(now + EDGE + Duration::from_secs(20)));
    }

    #[test]
    fn an_event_during_an_attempt_gets_another_attempt() {
        for end in [End::Satisfied, End::Needless, End::Wanting, End::Later] {
            let mut queue = queue();
            queue.enqueue(Mono::ZERO, &id("x"), AT_ONCE);
            let _ = queue.start(Mono::ZERO);
            queue.enqueue(Mono::from_secs(1), &id("x"), None);
            let follows = queue.ended(Mono::from_secs(9), &id("x"), end);
            assert_eq!(follows, Some(Mono::from_secs(9)), "{end:?}");
        }
    }

    #[test]
    fn a_repository_without_wants_is_removed() {
        let mut queue = queue();
        queue.enqueue(Mono::ZERO, &id("x"), AT_ONCE);
        let _ = queue.start(Mono::ZERO);
        assert_eq!(queue.ended(Mono::ZERO, &id("x"), End::Satisfied), None);
        assert_eq!(queue.iter().count(), 0);
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn the_hourly_attempt_includes_expired_events() {
        let mut queue = queue();
        queue.pull(Mono::ZERO, &id("x"));
        let started = queue.start(Mono::ZERO);
        assert_eq!(started[0].scope, Scope::Everything);
        assert_eq!(queue.ended(Mono::ZERO, &id("x"), End::Later), None);

        queue.enqueue(Mono::ZERO, &id("x"), Some(USER));
        queue.pull(Mono::ZERO, &id("x"));
        assert_eq!(queue.start(Mono::ZERO)[0].scope, Scope::Everything);
        let _ = queue.ended(Mono::ZERO, &id("x"), End::Wanting);
        assert_eq!(queue.start(Mono::from_secs(20))[0].scope, Scope::Waiting);
    }

    #[derive(Clone, Debug)]
    enum Act {
        Enqueue(u8, u64),
        HourlyPull(u8),
        Start,
        End(u8, u8),
        Pass(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (0..4u8, 0..200_000u64).prop_map(|(n, after)| Act::Enqueue(n, after)),
            1 => (0..4u8).prop_map(Act::HourlyPull),
            3 => Just(Act::Start),
            3 => (0..4u8, 0..3u8).prop_map(|(n, end)| Act::End(n, end)),
            3 => (0..200_000u64).prop_map(Act::Pass),
        ]
    }

    proptest! {
        #[test]
        fn attempts_do_not_overlap_or_start_early_and_none_is_lost(acts in vec(act(), 0..80)) {
            let mut queue = queue();
            let mut now = Mono::ZERO;
            let mut running = BTreeSet::new();
            // The latest point at which an attempt that has not begun must begin.
            let mut promised: BTreeMap<RepoId, Mono> = BTreeMap::new();
            for act in acts {
                match act {
                    Act::Enqueue(n, after) => {
                        let (name, after) = (id(&n.to_string()), Duration::from_millis(after));
                        queue.enqueue(now, &name, Some(after));
                        let at = promised.get(&name).map_or(now + after, |p| (*p).min(now + after));
                        promised.insert(name, at);
                    }
                    Act::HourlyPull(n) => {
                        queue.pull(now, &id(&n.to_string()));
                        promised.insert(id(&n.to_string()), now);
                    }
                    Act::Start => {
                        for start in queue.start(now) {
                            prop_assert!(running.insert(start.repo.clone()), "two at once");
                            promised.remove(&start.repo);
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
                            prop_assert_eq!(follows.is_some(), left);
                            if let Some(at) = follows {
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

#[cfg(test)]
mod pull_tests {
    use nostr::key::PublicKey;
    use nostr::types::Timestamp;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(unix: u64) -> Now {
        Now::new(Mono::from_secs(unix), Timestamp::from_secs(unix))
    }

    fn names(count: usize) -> BTreeSet<RepoId> {
        let owner = PublicKey::from_byte_array([1; 32]);
        (0..count)
            .map(|n| RepoId::new(owner, n.to_string().parse().unwrap()))
            .collect()
    }

    #[test]
    fn hourly_attempts_are_spread_over_the_hour() {
        let mut pull = HourlyPull::new(HOUR, Mono::ZERO);
        pull.listed(at(0), names(6_000));
        let per_minute: Vec<_> = (1..=60)
            .map(|minute| pull.due(Mono::from_secs(minute * 60)).len())
            .collect();
        assert_eq!(per_minute.iter().sum::<usize>(), 6_000);
        assert!(
            per_minute.iter().all(|count| (50..=160).contains(count)),
            "{per_minute:?}"
        );
    }

    #[test]
    fn a_restart_does_not_move_the_hourly_attempts() {
        let turn = |started: u64| {
            let mut pull = HourlyPull::new(HOUR, Mono::from_secs(started));
            pull.listed(at(started), names(1));
            (started + 1..)
                .find(|second| !pull.due(Mono::from_secs(*second)).is_empty())
                .unwrap()
        };
        assert_eq!(turn(7_200), turn(7_190 - 3_600) + 3_600);
    }

    #[test]
    fn repositories_are_listed_at_the_start_and_every_hour() {
        let mut pull = HourlyPull::new(HOUR, Mono::from_secs(50));
        assert!(pull.must_list(Mono::from_secs(50)));
        assert!(!pull.must_list(Mono::from_secs(3_649)));
        assert_eq!(pull.next_deadline(), Mono::from_secs(3_650));
        assert!(pull.must_list(Mono::from_secs(3_650)));
    }

    proptest! {
        #[test]
        fn every_repository_has_one_attempt_in_every_hour(
            pauses in vec(0..5_000_u64, 1..60),
        ) {
            let mut pull = HourlyPull::new(HOUR, Mono::from_secs(1_000));
            pull.listed(at(1_000), names(20));
            let (mut now, mut given): (u64, BTreeMap<RepoId, u64>) = (1_000, BTreeMap::new());
            let mut hours = 0;
            for pause in pauses {
                now += pause;
                hours += u64::from(pause >= 3_600);
                for repo in pull.due(Mono::from_secs(now)) {
                    *given.entry(repo).or_default() += 1;
                }
            }
            // After a delay of more than an hour one attempt is made, not all that were missed.
            let least = ((now - 1_000) / 3_600).saturating_sub(hours);
            for repo in names(20) {
                let turns = given.get(&repo).copied().unwrap_or_default();
                prop_assert!((least..=least + hours + 1).contains(&turns), "{turns} {least}");
            }
        }

        #[test]
        fn something_is_due_at_every_deadline(start in 0..9_999_u64) {
            let mut pull = HourlyPull::new(HOUR, Mono::from_secs(start));
            pull.listed(at(start), names(5));
            pull.must_list(Mono::from_secs(start));
            let deadline = pull.next_deadline().since_start().as_secs();
            prop_assert!(deadline > start && deadline <= start + 3_600);
            prop_assert!(pull.due(Mono::from_secs(deadline - 1)).is_empty());
            prop_assert!(!pull.due(Mono::from_secs(deadline)).is_empty());
        }
    }
}
