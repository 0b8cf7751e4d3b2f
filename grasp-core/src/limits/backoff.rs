//! The growing pause after failures, and the verdict that a peer is dead.

use std::time::Duration;

use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::Admit;
use crate::{Mono, Now};

/// The durations of a [`Backoff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// Pause after the first failure; each further failure doubles it. Default: 5 seconds.
    pub first: Duration,
    /// Longest pause of a peer that is not dead. Default: 1 hour.
    pub cap: Duration,
    /// Duration of failures without success after which a peer is dead. Default: 24 hours.
    pub dead_after: Duration,
    /// Pause of a dead peer. Default: 24 hours, so one try a day.
    pub dead_retry: Duration,
    /// Time that a connection must last before earlier failures are forgotten. Default: 5 minutes.
    ///
    /// A handshake alone proves little: a peer that accepts connections and drops them at once would
    /// otherwise be dialled in a tight loop. Zero forgets at the first success.
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

    /// For hunting git data: 20 seconds doubling to 2 minutes, and hourly after half an hour of failures. A success
    /// resets at once.
    pub const GIT_HUNT: Self = Self {
        first: Duration::from_secs(20),
        cap: Duration::from_secs(2 * 60),
        dead_after: Duration::from_secs(30 * 60),
        dead_retry: Duration::from_secs(60 * 60),
        settle: Duration::ZERO,
    };

    /// Returns the pause after this many failures in a row, for retries that keep only their number.
    pub fn delay_after(&self, failures: u32) -> Duration {
        let factor = 1_u32
            .checked_shl(failures.saturating_sub(1))
            .unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.cap)
    }

    /// Returns the pause after one of `delay`; never below `first`, even with a smaller `cap`.
    fn next_delay(&self, delay: Duration) -> Duration {
        delay
            .saturating_mul(2)
            .clamp(self.first, self.cap.max(self.first))
    }
}

/// The state of a peer, by its recent failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// No failure on record.
    #[default]
    Healthy,
    /// Failed recently, or has been connected for less than [`BackoffPolicy::settle`].
    Degraded,
    /// Failed for [`BackoffPolicy::dead_after`], and is tried rarely.
    Dead,
}

/// Decides when a failing peer may be tried again.
///
/// ```text
///           failed              connected             lasts for `settle`
/// Healthy ───────────▶ Waiting ────────────▶ Recovering ─────────────────▶ Healthy
///                      ▲  │ ▲                    │
///                      └──┘ └────────────────────┘ failed: the pause doubles
/// ```
///
/// A connection ends the streak of failures that leads to [`Health::Dead`], but shortens no pause: an
/// unstable peer ends up at the cap, an unreachable one ends up dead.
///
/// ```
/// use std::time::Duration;
/// use grasp_core::Mono;
/// use grasp_core::limits::{Admit, Backoff, BackoffPolicy, Health};
///
/// let mut relay = Backoff::new(BackoffPolicy::RELAY);
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
    phase: BackoffPhase,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BackoffPhase {
    Healthy,
    Waiting {
        /// The current step of the doubling, also while a dead peer waits for longer.
        delay: Duration,
        /// Time from the first failure of the streak to the latest one that this process saw.
        failing_for: Duration,
        failed_at: Mono,
        retry_at: Mono,
    },
    Recovering {
        delay: Duration,
        since: Mono,
    },
}

impl Backoff {
    /// Returns the backoff of a peer without failures.
    pub const fn new(policy: BackoffPolicy) -> Self {
        Self {
            policy,
            phase: BackoffPhase::Healthy,
        }
    }

    /// Restores the backoff of an earlier process.
    ///
    /// The snapshot may be old or damaged: pauses are brought within the policy, also if the calendar
    /// clock was set back.
    pub fn restore(policy: BackoffPolicy, now: Now, snapshot: &BackoffSnapshot) -> Self {
        let remaining = snapshot
            .retry_at
            .as_secs()
            .saturating_sub(now.unix.as_secs());
        let longest_pause = policy.dead_retry.max(policy.cap);
        let cap = policy.cap.max(policy.first);
        let phase = BackoffPhase::Waiting {
            delay: Duration::from_millis(snapshot.delay_ms).clamp(policy.first, cap),
            failing_for: Duration::from_secs(snapshot.failing_secs),
            failed_at: now.mono,
            retry_at: now.mono + Duration::from_secs(remaining).min(longest_pause),
        };
        Self { policy, phase }
    }

    /// Records that the peer could not be reached, or was lost. Returns the end of the pause.
    ///
    /// Ignored during a pause, so that a second report of the same failure does not count.
    pub fn failed(&mut self, now: Mono) -> Mono {
        let (delay, failing_for) = match self.phase {
            BackoffPhase::Waiting { retry_at, .. } if now < retry_at => return retry_at,
            BackoffPhase::Waiting {
                delay,
                failing_for,
                failed_at,
                ..
            } => (
                self.policy.next_delay(delay),
                failing_for.saturating_add(now - failed_at),
            ),
            BackoffPhase::Recovering { delay, since } if !self.has_recovered(since, now) => {
                (self.policy.next_delay(delay), Duration::ZERO)
            }
            BackoffPhase::Healthy | BackoffPhase::Recovering { .. } => {
                (self.policy.first, Duration::ZERO)
            }
        };
        let pause = if failing_for >= self.policy.dead_after {
            self.policy.dead_retry
        } else {
            delay
        };
        let retry_at = now + pause;
        self.phase = BackoffPhase::Waiting {
            delay,
            failing_for,
            failed_at: now,
            retry_at,
        };
        retry_at
    }

    /// Records that the peer answered.
    ///
    /// Its failures are forgotten once the connection has lasted for [`BackoffPolicy::settle`].
    pub fn connected(&mut self, now: Mono) {
        if let BackoffPhase::Waiting { delay, .. } = self.phase {
            self.phase = if self.policy.settle.is_zero() {
                BackoffPhase::Healthy
            } else {
                BackoffPhase::Recovering { delay, since: now }
            };
        }
    }

    /// Forgets every failure.
    pub fn fresh_start(&mut self) {
        self.phase = BackoffPhase::Healthy;
    }

    /// Returns whether the peer may be tried now.
    pub fn admit(&self, now: Mono) -> Admit {
        match self.phase {
            BackoffPhase::Waiting { retry_at, .. } => Admit::not_before(retry_at, now),
            BackoffPhase::Healthy | BackoffPhase::Recovering { .. } => Admit::Go,
        }
    }

    /// Returns the end of the current pause.
    pub fn retry_at(&self) -> Option<Mono> {
        match self.phase {
            BackoffPhase::Waiting { retry_at, .. } => Some(retry_at),
            BackoffPhase::Healthy | BackoffPhase::Recovering { .. } => None,
        }
    }

    /// Returns the time from the first to the latest failure of the current streak.
    pub fn failing_for(&self) -> Duration {
        match self.phase {
            BackoffPhase::Waiting { failing_for, .. } => failing_for,
            BackoffPhase::Healthy | BackoffPhase::Recovering { .. } => Duration::ZERO,
        }
    }

    /// Returns the state of the peer.
    pub fn health(&self, now: Mono) -> Health {
        match self.phase {
            BackoffPhase::Healthy => Health::Healthy,
            BackoffPhase::Recovering { since, .. } if self.has_recovered(since, now) => {
                Health::Healthy
            }
            BackoffPhase::Waiting { failing_for, .. } if failing_for >= self.policy.dead_after => {
                Health::Dead
            }
            BackoffPhase::Waiting { .. } | BackoffPhase::Recovering { .. } => Health::Degraded,
        }
    }

    /// Returns what a later process needs to continue the pause; `None` for a healthy peer.
    pub fn snapshot(&self, now: Now) -> Option<BackoffSnapshot> {
        match self.phase {
            BackoffPhase::Healthy => None,
            BackoffPhase::Recovering { since, .. } if self.has_recovered(since, now.mono) => None,
            BackoffPhase::Recovering { delay, .. } => {
                Some(BackoffSnapshot::new(delay, Duration::ZERO, now.unix))
            }
            BackoffPhase::Waiting {
                delay,
                failing_for,
                retry_at,
                ..
            } => {
                let remaining = whole_seconds(retry_at - now.mono);
                let retry_at = Timestamp::from_secs(now.unix.as_secs().saturating_add(remaining));
                Some(BackoffSnapshot::new(delay, failing_for, retry_at))
            }
        }
    }

    fn has_recovered(&self, since: Mono, now: Mono) -> bool {
        now - since >= self.policy.settle
    }
}

/// A [`Backoff`] in calendar time, for storage.
///
/// The time during which no process runs does not count towards death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffSnapshot {
    /// The step that the doubling had reached, in milliseconds.
    pub delay_ms: u64,
    /// Duration of the streak of failures, in seconds.
    pub failing_secs: u64,
    /// Time of the next try.
    pub retry_at: Timestamp,
}

impl BackoffSnapshot {
    fn new(delay: Duration, failing_for: Duration, retry_at: Timestamp) -> Self {
        Self {
            delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            failing_secs: failing_for.as_secs(),
            retry_at,
        }
    }
}

/// Rounds up, so that storing shortens no pause.
fn whole_seconds(length: Duration) -> u64 {
    length
        .as_secs()
        .saturating_add(u64::from(length.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    /// Fails at every allowed time for `length`, and returns the time of the last failure.
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
    fn a_new_peer_may_be_tried_at_once() {
        let backoff = Backoff::new(BackoffPolicy::RELAY);
        assert_eq!(backoff.admit(Mono::ZERO), Admit::Go);
        assert_eq!(backoff.health(Mono::ZERO), Health::Healthy);
    }

    #[test]
    fn the_pause_doubles_from_five_seconds_to_an_hour() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let mut at = Mono::from_secs(100);
        let mut delays = Vec::new();
        for _ in 0..12 {
            backoff.failed(at);
            let next = backoff.retry_at().unwrap();
            delays.push((next - at).as_secs());
            at = next;
        }
        let expected = [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600];
        assert_eq!(delays, expected);
    }

    #[test]
    fn a_number_of_failures_gives_the_same_pause_as_their_record() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let mut at = Mono::ZERO;
        for failures in 1..=12 {
            backoff.failed(at);
            let next = backoff.retry_at().unwrap();
            assert_eq!(BackoffPolicy::RELAY.delay_after(failures), next - at);
            at = next;
        }
        assert_eq!(
            BackoffPolicy::RELAY.delay_after(u32::MAX),
            BackoffPolicy::RELAY.cap
        );
    }

    #[test]
    fn a_hunt_pauses_for_up_to_two_minutes_and_then_an_hour() {
        let mut hunt = Backoff::new(BackoffPolicy::GIT_HUNT);
        let mut at = Mono::ZERO;
        let mut delays = Vec::new();
        for _ in 0..20 {
            hunt.failed(at);
            let next = hunt.retry_at().unwrap();
            delays.push((next - at).as_secs());
            at = next;
        }
        assert_eq!(delays[..5], [20, 40, 80, 120, 120]);
        assert_eq!(delays[19], 3600);
    }

    #[test]
    fn ignores_a_failure_during_the_pause() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        backoff.failed(Mono::ZERO);
        let before = backoff.clone();
        backoff.failed(Mono::from_secs(4));
        assert_eq!(backoff, before);
    }

    #[test]
    fn a_peer_is_dead_after_a_day_of_failures_and_tried_daily() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let before = fail_for(&mut backoff, Mono::ZERO, 23 * HOUR);
        assert_eq!(backoff.health(before), Health::Degraded);

        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let last = fail_for(&mut backoff, Mono::ZERO, 25 * HOUR);
        assert_eq!(backoff.health(last), Health::Dead);
        assert_eq!(backoff.retry_at(), Some(last + 24 * HOUR));
    }

    #[test]
    fn a_handshake_alone_does_not_reset_the_pause() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        backoff.failed(Mono::ZERO);
        backoff.connected(Mono::from_secs(5));
        backoff.failed(Mono::from_secs(6));
        assert_eq!(backoff.retry_at(), Some(Mono::from_secs(16)));
    }

    #[test]
    fn five_connected_minutes_reset_the_pause() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        backoff.failed(Mono::ZERO);
        backoff.connected(Mono::from_secs(5));
        backoff.failed(Mono::from_secs(305));
        assert_eq!(backoff.retry_at(), Some(Mono::from_secs(310)));
    }

    #[test]
    fn an_unstable_peer_reaches_the_cap_and_is_never_dead() {
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
    fn one_success_resets_if_settle_is_zero() {
        let mut hunt = Backoff::new(BackoffPolicy::GIT_HUNT);
        hunt.failed(Mono::ZERO);
        hunt.connected(Mono::from_secs(20));
        assert_eq!(hunt, Backoff::new(BackoffPolicy::GIT_HUNT));
    }

    #[test]
    fn a_fresh_start_ends_the_pause() {
        let mut hunt = Backoff::new(BackoffPolicy::GIT_HUNT);
        hunt.failed(Mono::ZERO);
        hunt.fresh_start();
        assert_eq!(hunt.admit(Mono::ZERO), Admit::Go);
    }

    #[test]
    fn a_restart_keeps_the_pause_and_the_step() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let last = fail_for(&mut backoff, Mono::ZERO, Duration::from_secs(600));
        let before = Now::new(
            last + Duration::from_millis(1_500),
            Timestamp::from_secs(5_000),
        );
        let json = serde_json::to_string(&backoff.snapshot(before).unwrap()).unwrap();

        let later = Now::new(Mono::from_secs(1), Timestamp::from_secs(5_010));
        let snapshot = serde_json::from_str(&json).unwrap();
        let mut restored = Backoff::restore(BackoffPolicy::RELAY, later, &snapshot);

        // The pause was 320 s, of which 1.5 s had passed; 10 s of downtime pass too.
        let retry_at = Mono::from_secs(1 + 319 - 10);
        assert_eq!(restored.retry_at(), Some(retry_at));
        restored.failed(retry_at);
        assert_eq!(
            restored.retry_at(),
            Some(retry_at + Duration::from_secs(640))
        );
    }

    #[test]
    fn a_dead_peer_is_still_dead_after_a_restart() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        let last = fail_for(&mut backoff, Mono::ZERO, 25 * HOUR);
        let now = Now::new(last, Timestamp::from_secs(1_000_000));
        let snapshot = backoff.snapshot(now).unwrap();
        let restored = Backoff::restore(
            BackoffPolicy::RELAY,
            Now::new(Mono::ZERO, now.unix),
            &snapshot,
        );
        assert_eq!(restored.health(Mono::ZERO), Health::Dead);
        assert_eq!(restored.retry_at(), Some(Mono::ZERO + 24 * HOUR));
    }

    #[test]
    fn downtime_of_the_process_makes_no_peer_dead() {
        let snapshot = BackoffSnapshot {
            delay_ms: 5_000,
            failing_secs: 0,
            retry_at: Timestamp::from_secs(1_000),
        };
        // Neither does the time before this process knew the peer.
        let up = Mono::ZERO + 48 * HOUR;
        let a_week_later = Now::new(up, Timestamp::from_secs(1_000 + 7 * 86_400));
        let mut restored = Backoff::restore(BackoffPolicy::RELAY, a_week_later, &snapshot);
        restored.failed(up);
        assert_eq!(restored.health(up), Health::Degraded);
    }

    #[test]
    fn a_damaged_snapshot_stays_within_the_policy() {
        let snapshot = BackoffSnapshot {
            delay_ms: u64::MAX,
            failing_secs: u64::MAX,
            retry_at: Timestamp::max(),
        };
        let now = Now::new(Mono::ZERO, Timestamp::from_secs(1));
        let restored = Backoff::restore(BackoffPolicy::RELAY, now, &snapshot);
        assert_eq!(restored.retry_at(), Some(Mono::ZERO + 24 * HOUR));
    }

    #[test]
    fn a_recovered_peer_has_no_snapshot() {
        let mut backoff = Backoff::new(BackoffPolicy::RELAY);
        backoff.failed(Mono::ZERO);
        backoff.connected(Mono::from_secs(5));
        let now = Now::new(Mono::from_secs(5), Timestamp::from_secs(100));
        assert!(backoff.snapshot(now).is_some());
        assert_eq!(backoff.snapshot(now.after(Duration::from_secs(300))), None);
    }
}
