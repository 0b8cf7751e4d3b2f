//! A token bucket; and the rate limit for requests to one relay, which adapts
//! to refusals.

use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::{Admit, BackoffPolicy};

/// The longest pause.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);
/// Pauses after refusals. Relays count per minute; the five seconds allow for clocks and queues.
const PAUSE_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(65),
    cap: LONGEST_PAUSE,
    ..BackoffPolicy::RELAY
};
/// Minimum distances between requests after refusals.
const GAP_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(600),
    cap: Duration::from_secs(10),
    ..BackoffPolicy::RELAY
};
/// Time without refusal, from the end of the pause, after which refusals are forgotten.
const RECOVERY_PERIOD: Duration = Duration::from_secs(5 * 60);

/// A rate of starts, with bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Starts that are possible at once after an idle time.
    pub burst: u32,
    /// The time after which one more start is possible. Zero means no limit.
    pub every: Duration,
}

impl Rate {
    /// Two per second, for unknown software; some of it allows 120 requests per minute.
    pub const CAREFUL: Self = Self {
        burst: 60,
        every: Duration::from_millis(500),
    };

    /// Fifteen per second, for software with a limit of about 1,200 requests per minute: a burst and a minute of
    /// refill stay below it.
    pub const GENEROUS: Self = Self {
        burst: 240,
        every: Duration::from_micros(66_666),
    };

    /// Fifty per second, for software without a rate limit.
    pub const UNLIMITED: Self = Self {
        burst: 240,
        every: Duration::from_millis(20),
    };
}

/// Limits starts to a rate, with bursts.
///
/// Starts full. Over any period of length `t` it admits at most `burst + t / every` starts.
///
/// ```
/// use grasp_core::Mono;
/// use grasp_core::limits::Admit;
/// use grasp_sync::limits::{Rate, TokenBucket};
///
/// let mut bucket = TokenBucket::new(Rate { burst: 2, ..Rate::CAREFUL });
/// let now = Mono::from_secs(9);
/// assert_eq!(bucket.admit(now), Admit::Go);
/// assert_eq!(bucket.admit(now), Admit::Go);
/// assert_eq!(bucket.admit(now), Admit::Wait(Mono::from_millis(9_500)));
/// ```
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: Rate,
    /// The time at which it is full again: each start moves it by the time of one token.
    full_at: Mono,
}

impl TokenBucket {
    /// Returns a full bucket.
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            full_at: Mono::ZERO,
        }
    }

    /// Takes one token if there is one.
    pub fn admit(&mut self, now: Mono) -> Admit {
        let verdict = Admit::not_before(self.reopens_at(), now);
        if verdict == Admit::Go {
            self.full_at = self.full_at.max(now) + self.rate.every;
        }
        verdict
    }

    /// Returns the earliest time at which a token is available; it may be in the past.
    pub fn reopens_at(&self) -> Mono {
        let Rate { burst, every } = self.rate;
        self.full_at - every.saturating_mul(burst.saturating_sub(1))
    }
}

/// Limits the rate of background requests to one relay.
///
/// Without refusals the [`TokenBucket`] alone decides. A rate refusal pauses all requests; after the
/// pause they keep a minimum distance until the refusal is forgotten. Refusals during a pause are
/// ignored: they answer earlier requests.
///
/// ```
/// use std::time::Duration;
/// use grasp_core::Mono;
/// use grasp_core::limits::Admit;
/// use grasp_sync::limits::{Pace, Rate};
///
/// let mut pace = Pace::new(Rate::CAREFUL);
/// let now = Mono::from_secs(10);
/// assert_eq!(pace.admit(now), Admit::Go);
///
/// pace.refused(now);
/// let resume = now + Duration::from_secs(65);
/// assert_eq!(pace.admit(now), Admit::Wait(resume));
/// assert_eq!(pace.admit(resume), Admit::Go);
/// assert_eq!(pace.admit(resume), Admit::Wait(resume + Duration::from_millis(600)));
/// ```
#[derive(Clone, Debug)]
pub struct Pace {
    bucket: TokenBucket,
    last_start: Option<Mono>,
    paused_until: Mono,
    /// The number of refusals, and the end of the pause after the latest.
    refusals: Option<(u32, Mono)>,
}

impl Pace {
    /// Returns the pace of a relay that has not refused anything.
    pub const fn new(rate: Rate) -> Self {
        Self {
            bucket: TokenBucket::new(rate),
            last_start: None,
            paused_until: Mono::ZERO,
            refusals: None,
        }
    }

    /// Counts one request if the limits allow it.
    pub fn admit(&mut self, now: Mono) -> Admit {
        self.forget_old_refusals(now);
        match Admit::not_before(self.reopens_at(), now) {
            Admit::Go => {
                self.last_start = Some(now);
                self.bucket.admit(now)
            }
            wait @ Admit::Wait(_) => wait,
        }
    }

    /// Records a rate refusal of the relay.
    pub fn refused(&mut self, now: Mono) {
        self.forget_old_refusals(now);
        let (before, until) = self.refusals.unwrap_or((0, now));
        if now >= until {
            let until = now + PAUSE_BACKOFF.delay_after(before + 1);
            self.refusals = Some((before + 1, until));
            self.pause_until(until);
        }
    }

    /// Prevents requests before `until`. The later of two pauses counts.
    pub fn pause_until(&mut self, until: Mono) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Returns the earliest time of the next request; it may be in the past.
    pub fn reopens_at(&self) -> Mono {
        let after_gap = match (self.refusals, self.last_start) {
            (Some((refusals, _)), Some(last)) => last + GAP_BACKOFF.delay_after(refusals),
            _ => Mono::ZERO,
        };
        self.bucket
            .reopens_at()
            .max(after_gap)
            .max(self.paused_until)
    }

    /// Returns whether requests are paused.
    pub fn is_paused(&self, now: Mono) -> bool {
        now < self.paused_until
    }

    fn forget_old_refusals(&mut self, now: Mono) {
        self.refusals = self
            .refusals
            .filter(|(_, until)| now < *until + RECOVERY_PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(burst: u32, every_ms: u64) -> TokenBucket {
        TokenBucket::new(Rate {
            burst,
            every: Duration::from_millis(every_ms),
        })
    }

    /// Counts the starts that are admitted if one is tried in every millisecond of `[from, to)`.
    fn admitted_between(bucket: &mut TokenBucket, from: u64, to: u64) -> usize {
        let admitted = (from..to).filter(|ms| bucket.admit(Mono::from_millis(*ms)) == Admit::Go);
        admitted.count()
    }

    #[test]
    fn admits_a_burst_and_then_the_rate() {
        let mut bucket = bucket(60, 500);
        let burst = (0..100).filter(|_| bucket.admit(Mono::ZERO) == Admit::Go);
        assert_eq!(burst.count(), 60);
        assert_eq!(admitted_between(&mut bucket, 1, 10_001), 20);
    }

    #[test]
    fn does_not_drift_within_an_hour() {
        let mut bucket = bucket(1, 250);
        let mut starts = 0_u32;
        let mut at = Mono::ZERO;
        while at < Mono::from_secs(3_600) {
            match bucket.admit(at) {
                Admit::Go => starts += 1,
                Admit::Wait(until) => at = until,
            }
        }
        assert_eq!(starts, 4 * 3_600);
    }

    #[test]
    fn saves_at_most_the_burst() {
        let mut bucket = bucket(3, 500);
        let late = Mono::from_secs(1_000_000);
        let admitted = (0..10).filter(|_| bucket.admit(late) == Admit::Go);
        assert_eq!(admitted.count(), 3);
    }

    #[test]
    fn the_wait_is_exact_to_the_nanosecond() {
        let mut bucket = bucket(1, 67);
        assert_eq!(bucket.admit(Mono::ZERO), Admit::Go);
        let Admit::Wait(until) = bucket.admit(Mono::ZERO) else {
            panic!("the bucket is empty")
        };
        let just_before = until - Duration::from_nanos(1);
        assert_eq!(bucket.admit(just_before), Admit::Wait(until));
        assert_eq!(bucket.admit(until), Admit::Go);
    }

    #[test]
    fn a_rate_without_interval_is_unlimited() {
        let mut bucket = bucket(1, 0);
        assert!((0..100).all(|_| bucket.admit(Mono::ZERO) == Admit::Go));
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn wait_of(pace: &mut Pace, now: Mono) -> Duration {
        match pace.admit(now) {
            Admit::Go => Duration::ZERO,
            Admit::Wait(until) => until - now,
        }
    }

    #[test]
    fn careful_allows_sixty_at_once_and_then_two_a_second() {
        let mut pace = Pace::new(Rate::CAREFUL);
        assert!((0..60).all(|_| pace.admit(Mono::ZERO) == Admit::Go));
        assert_eq!(pace.admit(Mono::ZERO), Admit::Wait(Mono::from_millis(500)));
    }

    #[test]
    fn generous_allows_fifteen_a_second() {
        let mut pace = Pace::new(Rate::GENEROUS);
        assert!((0..240).all(|_| pace.admit(Mono::ZERO) == Admit::Go));
        let second = (1..=1_000).filter(|ms| pace.admit(Mono::from_millis(*ms)) == Admit::Go);
        assert_eq!(second.count(), 15);
    }

    #[test]
    fn refusals_during_a_pause_do_not_extend_it() {
        let mut pace = Pace::new(Rate::CAREFUL);
        pace.refused(Mono::ZERO);
        for second in 1..65 {
            pace.refused(Mono::from_secs(second));
        }
        assert!(pace.is_paused(Mono::from_secs(64)));
        assert_eq!(pace.admit(Mono::from_secs(65)), Admit::Go);
    }

    #[test]
    fn pauses_double_to_an_hour() {
        let mut pace = Pace::new(Rate::CAREFUL);
        let mut at = Mono::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pace.refused(at);
            pauses.push(wait_of(&mut pace, at).as_secs());
            at = pace.reopens_at();
        }
        assert_eq!(pauses, [65, 130, 260, 520, 1040, 2080, 3600, 3600]);
    }

    #[test]
    fn gaps_double_from_600_milliseconds_to_ten_seconds() {
        let mut pace = Pace::new(Rate::CAREFUL);
        let mut at = Mono::ZERO;
        let mut gaps = Vec::new();
        for _ in 0..7 {
            pace.refused(at);
            at = pace.reopens_at();
            assert_eq!(pace.admit(at), Admit::Go);
            gaps.push(wait_of(&mut pace, at).as_millis());
        }
        assert_eq!(gaps, [600, 1_200, 2_400, 4_800, 9_600, 10_000, 10_000]);
    }

    #[test]
    fn refusals_are_forgotten_five_minutes_after_the_pause() {
        let mut pace = Pace::new(Rate::CAREFUL);
        pace.refused(Mono::ZERO);
        pace.refused(Mono::from_secs(65));
        let resumed = Mono::from_secs(65 + 130);

        let forgotten = resumed + 5 * MINUTE;
        let mut asked = pace.clone();
        assert!((0..60).all(|_| asked.admit(forgotten) == Admit::Go));

        let mut refused = pace.clone();
        refused.refused(forgotten);
        assert_eq!(wait_of(&mut refused, forgotten).as_secs(), 65);

        let too_early = resumed + 4 * MINUTE;
        pace.refused(too_early);
        assert_eq!(wait_of(&mut pace, too_early).as_secs(), 260);
    }

    #[test]
    fn an_explicit_pause_does_not_slow_requests_down() {
        let mut pace = Pace::new(Rate::CAREFUL);
        pace.pause_until(Mono::from_secs(9));
        assert_eq!(pace.admit(Mono::ZERO), Admit::Wait(Mono::from_secs(9)));
        assert_eq!(pace.admit(Mono::from_secs(9)), Admit::Go);
        assert_eq!(pace.admit(Mono::from_secs(9)), Admit::Go);
    }
}
