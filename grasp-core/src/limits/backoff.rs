//! How long to leave a failing peer alone, and when to call it dead.

use std::time::Duration;

use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::Admit;
use crate::{Mono, Now};

/// The lengths that a [`Backoff`] is made of.
///
/// The default is the one for relay connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// The rest after the first failure; each further one doubles it. Default: 5 seconds.
    pub first: Duration,
    /// The longest rest of a peer that is not dead. Default: 1 hour.
    pub cap: Duration,
    /// A peer is dead once it has failed for this long without answering. Default: 24 hours.
    pub dead_after: Duration,
    /// The rest of a dead peer. Default: 24 hours, so one try a day.
    pub dead_retry: Duration,
    /// How long a peer must stay well before its failures are forgotten. Default: 5 minutes.
    ///
    /// A handshake alone proves little: a peer that accepts and drops us at once would otherwise be
    /// dialled in a tight loop. Zero forgets at the first success.
    pub settle: Duration,
}

impl BackoffPolicy {
    /// For relay connections.
    pub const RELAY: Self = Self {
        first: Duration::from_secs(5),
        cap: Duration::from_secs(60 * 60),
        dead_after: Duration::from_secs(24 * 60 * 60),
        dead_retry: Duration::from_secs(24 * 60 * 60),
        settle: Duration::from_secs(5 * 60),
    };

    /// For hunting git data: 20 seconds doubling to 2 minutes, and hourly once half an hour has
    /// brought nothing. What is found is found, so success needs no proof of staying.
    pub const GIT_HUNT: Self = Self {
        first: Duration::from_secs(20),
        cap: Duration::from_secs(2 * 60),
        dead_after: Duration::from_secs(30 * 60),
        dead_retry: Duration::from_secs(60 * 60),
        settle: Duration::ZERO,
    };

    /// The rest after one that lasted `rest`; never below `first`, even with a smaller `cap`.
    fn after(&self, rest: Duration) -> Duration {
        rest.saturating_mul(2).clamp(self.first, self.cap.max(self.first))
    }
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self::RELAY
    }
}

/// What a peer's recent past says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No failure on record.
    Healthy,
    /// Failed lately, or back for too short a time to be trusted.
    Degraded,
    /// Has failed for so long that it is tried only rarely.
    Dead,
}

/// When a failing peer may be tried again.
///
/// ```text
///            failed             connected            quiet for `settle`
///   Well ───────────▶ Resting ────────────▶ Settling ──────────────────▶ Well
///                     ▲  │ ▲                    │
///                     └──┘ └────────────────────┘ failed: the rest doubles
/// ```
///
/// A connection ends the *streak* that leads to [`Health::Dead`] at once, but shortens no rest: a
/// peer that flaps ends up at the cap, one that is gone ends up dead.
///
/// ```
/// use std::time::Duration;
/// use grasp_core::Mono;
/// use grasp_core::limits::{Admit, Backoff, BackoffPolicy, Health};
///
/// let mut relay = Backoff::new(BackoffPolicy::default());
/// relay.failed(Mono::from_secs(10));
/// assert_eq!(relay.admit(Mono::from_secs(11)), Admit::Wait(Mono::from_secs(15)));
/// relay.failed(Mono::from_secs(15));
/// assert_eq!(relay.admit(Mono::from_secs(16)), Admit::Wait(Mono::from_secs(25)));
///
/// relay.connected(Mono::from_secs(25));
/// assert_eq!(relay.health(Mono::from_secs(26)), Health::Degraded);
/// assert_eq!(relay.health(Mono::from_secs(25 + 300)), Health::Healthy);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    policy: BackoffPolicy,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Well,
    Resting {
        /// The present step of the doubling, even while a dead peer rests for longer.
        rest: Duration,
        /// From the streak's first failure to its latest, as far as this was watched.
        lasted: Duration,
        latest: Mono,
        retry_at: Mono,
    },
    Settling {
        rest: Duration,
        since: Mono,
    },
}

impl Backoff {
    /// A peer of which no ill is known.
    pub const fn new(policy: BackoffPolicy) -> Self {
        Self { policy, phase: Phase::Well }
    }

    /// A peer as it was left by an earlier process.
    ///
    /// The snapshot may be old or damaged: rests are brought within the policy, and a calendar that
    /// was set back cannot make a peer rest longer than the policy ever would.
    pub fn restore(policy: BackoffPolicy, now: Now, snapshot: &BackoffSnapshot) -> Self {
        let left = snapshot.retry_at.as_secs().saturating_sub(now.unix.as_secs());
        let longest = policy.dead_retry.max(policy.cap);
        let cap = policy.cap.max(policy.first);
        let phase = Phase::Resting {
            rest: Duration::from_millis(snapshot.rest_ms).clamp(policy.first, cap),
            lasted: Duration::from_secs(snapshot.failing_secs),
            latest: now.mono,
            retry_at: now.mono + Duration::from_secs(left).min(longest),
        };
        Self { policy, phase }
    }

    /// The peer failed: could not be reached, or was lost.
    ///
    /// Changes nothing while the peer rests: then nobody was to try, and a second report of one
    /// failure must not count twice.
    pub fn failed(&mut self, now: Mono) {
        let (rest, lasted) = match self.phase {
            Phase::Resting { retry_at, .. } if now < retry_at => return,
            Phase::Resting { rest, lasted, latest, .. } => {
                (self.policy.after(rest), lasted.saturating_add(now - latest))
            }
            Phase::Settling { rest, since } if !self.is_settled(since, now) => {
                (self.policy.after(rest), Duration::ZERO)
            }
            Phase::Well | Phase::Settling { .. } => (self.policy.first, Duration::ZERO),
        };
        let wait = if lasted >= self.policy.dead_after { self.policy.dead_retry } else { rest };
        self.phase = Phase::Resting { rest, lasted, latest: now, retry_at: now + wait };
    }

    /// The peer answered.
    ///
    /// Its failures are forgotten once it has stayed well for [`BackoffPolicy::settle`]. Changes
    /// nothing for a peer that is well or settling already.
    pub fn connected(&mut self, now: Mono) {
        if let Phase::Resting { rest, .. } = self.phase {
            self.phase = if self.policy.settle.is_zero() {
                Phase::Well
            } else {
                Phase::Settling { rest, since: now }
            };
        }
    }

    /// Forgets every failure, since something new makes trying worthwhile.
    pub fn fresh_start(&mut self) {
        self.phase = Phase::Well;
    }

    /// May it be tried now?
    pub fn admit(&self, now: Mono) -> Admit {
        match self.phase {
            Phase::Resting { retry_at, .. } => Admit::from(retry_at, now),
            Phase::Well | Phase::Settling { .. } => Admit::Go,
        }
    }

    /// The end of the present rest, if there is one.
    pub fn retry_at(&self) -> Option<Mono> {
        match self.phase {
            Phase::Resting { retry_at, .. } => Some(retry_at),
            Phase::Well | Phase::Settling { .. } => None,
        }
    }

    /// How long the present streak of failures has lasted, up to the latest of them; zero if there is none.
    pub fn failing_for(&self) -> Duration {
        match self.phase {
            Phase::Resting { lasted, .. } => lasted,
            Phase::Well | Phase::Settling { .. } => Duration::ZERO,
        }
    }

    /// What is to be thought of this peer.
    pub fn health(&self, now: Mono) -> Health {
        match self.phase {
            Phase::Well => Health::Healthy,
            Phase::Settling { since, .. } if self.is_settled(since, now) => Health::Healthy,
            Phase::Resting { lasted, .. } if lasted >= self.policy.dead_after => Health::Dead,
            Phase::Resting { .. } | Phase::Settling { .. } => Health::Degraded,
        }
    }

    /// What a later process must know so that a restart hammers nobody; nothing for a well peer.
    pub fn snapshot(&self, now: Now) -> Option<BackoffSnapshot> {
        match self.phase {
            Phase::Well => None,
            Phase::Settling { since, .. } if self.is_settled(since, now.mono) => None,
            Phase::Settling { rest, .. } => {
                Some(BackoffSnapshot::new(rest, Duration::ZERO, now.unix))
            }
            Phase::Resting { rest, lasted, retry_at, .. } => {
                let left = whole_seconds(retry_at - now.mono);
                let retry_at = Timestamp::from_secs(now.unix.as_secs().saturating_add(left));
                Some(BackoffSnapshot::new(rest, lasted, retry_at))
            }
        }
    }

    fn is_settled(&self, since: Mono, now: Mono) -> bool {
        now - since >= self.policy.settle
    }
}

/// A [`Backoff`] in calendar terms, to be kept on disk.
///
/// Only failures that were watched lead to death: the hours a process was down do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffSnapshot {
    /// The step that the doubling had reached, in milliseconds.
    pub rest_ms: u64,
    /// How long the present streak of failures had lasted, in seconds.
    pub failing_secs: u64,
    /// When the peer may be tried again.
    pub retry_at: Timestamp,
}

impl BackoffSnapshot {
    fn new(rest: Duration, lasted: Duration, retry_at: Timestamp) -> Self {
        Self {
            rest_ms: u64::try_from(rest.as_millis()).unwrap_or(u64::MAX),
            failing_secs: lasted.as_secs(),
            retry_at,
        }
    }
}

/// Rounds up: no rest becomes shorter by being written down.
fn whole_seconds(length: Duration) -> u64 {
    length.as_secs().saturating_add(u64::from(length.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    /// Fails at every allowed moment for `length`, and gives the moment of the last failure.
    fn fail_for(backoff: &mut Backoff, start: Mono, length: Duration) -> Mono {
        let mut at = start;
        backoff.failed(at);
        while let Some(next) = backoff.retry_at().filter(|next| *next - start <= length) {
            at = next;
            backoff.failed(at);
        }
        at
    }

    #[test]
    fn a_well_peer_may_be_tried_at_once() {
        let backoff = Backoff::new(BackoffPolicy::RELAY);
        assert_eq!(backoff.admit(Mono::ZERO), Admit::Go);
        assert_eq!(backoff.health(Mono::ZERO), Health::Healthy);
    }

    #[test]
    fn the_rest_doubles_from_five_seconds_up_to_an_hour() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let mut at = Mono::from_secs(100);
        let mut rests = Vec::new();
        for _ in 0..12 {
            backoff.failed(at);
            let next = backoff.retry_at().unwrap();
            rests.push((next - at).as_secs());
            at = next;
        }
        let expected = [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600];
        assert_eq!(rests, expected);
    }

    #[test]
    fn a_hunt_rests_twenty_seconds_then_at_most_two_minutes_then_an_hour() {
        let mut hunt = Backoff::new(BackoffPolicy::GIT_HUNT);
        let mut at = Mono::ZERO;
        let mut rests = Vec::new();
        for _ in 0..20 {
            hunt.failed(at);
            let next = hunt.retry_at().unwrap();
            rests.push((next - at).as_secs());
            at = next;
        }
        assert_eq!(rests[..5], [20, 40, 80, 120, 120]);
        assert_eq!(rests[19], 3600);
    }

    #[test]
    fn a_failure_reported_during_the_rest_changes_nothing() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        backoff.failed(Mono::ZERO);
        let before = backoff.clone();
        backoff.failed(Mono::from_secs(4));
        assert_eq!(backoff, before);
    }

    #[test]
    fn a_peer_is_dead_after_a_day_of_failure_and_then_tried_once_a_day() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let before = fail_for(&mut backoff, Mono::ZERO, 23 * HOUR);
        assert_eq!(backoff.health(before), Health::Degraded);

        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let last = fail_for(&mut backoff, Mono::ZERO, 25 * HOUR);
        assert_eq!(backoff.health(last), Health::Dead);
        assert_eq!(backoff.retry_at(), Some(last + 24 * HOUR));
    }

    #[test]
    fn a_handshake_alone_resets_no_rest() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        backoff.failed(Mono::ZERO);
        backoff.connected(Mono::from_secs(5));
        backoff.failed(Mono::from_secs(6));
        assert_eq!(backoff.retry_at(), Some(Mono::from_secs(16)));
    }

    #[test]
    fn five_quiet_minutes_reset_the_rest() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        backoff.failed(Mono::ZERO);
        backoff.connected(Mono::from_secs(5));
        backoff.failed(Mono::from_secs(305));
        assert_eq!(backoff.retry_at(), Some(Mono::from_secs(310)));
    }

    #[test]
    fn a_flapping_peer_reaches_the_cap_and_never_death() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let mut at = Mono::ZERO;
        for _ in 0..100 {
            backoff.failed(at);
            let next = backoff.retry_at().unwrap();
            backoff.connected(next);
            at = next + Duration::from_secs(30);
        }
        backoff.failed(at);
        assert_eq!(backoff.retry_at(), Some(at + HOUR));
        assert_eq!(backoff.health(at), Health::Degraded);
    }

    #[test]
    fn without_settling_time_one_success_is_enough() {
        let mut hunt = Backoff::new(BackoffPolicy::GIT_HUNT);
        hunt.failed(Mono::ZERO);
        hunt.connected(Mono::from_secs(20));
        assert_eq!(hunt, Backoff::new(BackoffPolicy::GIT_HUNT));
    }

    #[test]
    fn a_fresh_start_ends_the_rest() {
        let mut hunt = Backoff::new(BackoffPolicy::GIT_HUNT);
        hunt.failed(Mono::ZERO);
        hunt.fresh_start();
        assert_eq!(hunt.admit(Mono::ZERO), Admit::Go);
    }

    #[test]
    fn a_restart_neither_shortens_the_rest_nor_forgets_the_step() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let last = fail_for(&mut backoff, Mono::ZERO, Duration::from_secs(600));
        let before = Now::new(last + Duration::from_millis(1_500), Timestamp::from_secs(5_000));
        let json = serde_json::to_string(&backoff.snapshot(before).unwrap()).unwrap();

        let after = Now::new(Mono::from_secs(1), Timestamp::from_secs(5_010));
        let snapshot = serde_json::from_str(&json).unwrap();
        let mut restored = Backoff::restore(BackoffPolicy::RELAY, after, &snapshot);

        // The rest was 320 s, of which 1.5 s had passed and 10 s of downtime pass too.
        let retry_at = Mono::from_secs(1 + 319 - 10);
        assert_eq!(restored.retry_at(), Some(retry_at));
        restored.failed(retry_at);
        assert_eq!(restored.retry_at(), Some(retry_at + Duration::from_secs(640)));
    }

    #[test]
    fn a_dead_peer_is_still_dead_after_a_restart() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let last = fail_for(&mut backoff, Mono::ZERO, 25 * HOUR);
        let now = Now::new(last, Timestamp::from_secs(1_000_000));
        let snapshot = backoff.snapshot(now).unwrap();
        let restored =
            Backoff::restore(BackoffPolicy::RELAY, Now::new(Mono::ZERO, now.unix), &snapshot);
        assert_eq!(restored.health(Mono::ZERO), Health::Dead);
        assert_eq!(restored.retry_at(), Some(Mono::ZERO + 24 * HOUR));
    }

    #[test]
    fn downtime_of_ours_kills_no_peer() {
        let snapshot = BackoffSnapshot {
            rest_ms: 5_000,
            failing_secs: 0,
            retry_at: Timestamp::from_secs(1_000),
        };
        // Nor does the time for which this process has not known the peer.
        let up = Mono::ZERO + 48 * HOUR;
        let a_week_later = Now::new(up, Timestamp::from_secs(1_000 + 7 * 86_400));
        let mut restored = Backoff::restore(BackoffPolicy::RELAY, a_week_later, &snapshot);
        restored.failed(up);
        assert_eq!(restored.health(up), Health::Degraded);
    }

    #[test]
    fn a_damaged_snapshot_stays_within_the_policy() {
        let snapshot = BackoffSnapshot {
            rest_ms: u64::MAX,
            failing_secs: u64::MAX,
            retry_at: Timestamp::max(),
        };
        let now = Now::new(Mono::ZERO, Timestamp::from_secs(1));
        let restored = Backoff::restore(BackoffPolicy::RELAY, now, &snapshot);
        assert_eq!(restored.retry_at(), Some(Mono::ZERO + 24 * HOUR));
    }

    #[test]
    fn a_settled_peer_leaves_nothing_on_disk() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        backoff.failed(Mono::ZERO);
        backoff.connected(Mono::from_secs(5));
        let now = Now::new(Mono::from_secs(5), Timestamp::from_secs(100));
        assert!(backoff.snapshot(now).is_some());
        assert_eq!(backoff.snapshot(now.after(Duration::from_secs(300))), None);
    }
}
