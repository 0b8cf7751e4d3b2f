//! A token bucket in whole numbers, so that it does not drift.

use std::num::NonZeroU32;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::Admit;

/// A number of tokens per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that are added per [`per`](Self::per).
    pub tokens: NonZeroU32,
    /// The period. Zero means no limit.
    pub per: Duration,
}

impl Rate {
    /// `tokens` per second.
    pub const fn per_second(tokens: NonZeroU32) -> Self {
        Self { tokens, per: Duration::from_secs(1) }
    }
}

/// Limits starts to a rate, with bursts of up to `burst`.
///
/// Starts full. Over any period of length `t` it admits at most `burst + rate · t` starts.
///
/// ```
/// use std::num::NonZeroU32;
/// use grasp_core::Mono;
/// use grasp_core::limits::Admit;
/// use grasp_sync::limits::{Rate, TokenBucket};
///
/// let two = NonZeroU32::new(2).unwrap();
/// let mut bucket = TokenBucket::new(two, Rate::per_second(two));
/// let now = Mono::from_secs(9);
/// assert_eq!(bucket.admit(now), Admit::Go);
/// assert_eq!(bucket.admit(now), Admit::Go);
/// assert_eq!(bucket.admit(now), Admit::Wait(Mono::from_millis(9_500)));
/// ```
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: Rate,
    capacity: u128,
    /// The content, in parts so small that each nanosecond adds a whole number of them:
    /// `rate.tokens` parts are added per nanosecond, and one token is `rate.per` nanoseconds of parts.
    parts: u128,
    /// Time of the last change of `parts`.
    updated_at: Mono,
}

impl TokenBucket {
    /// Returns a full bucket.
    pub const fn new(burst: NonZeroU32, rate: Rate) -> Self {
        let capacity = rate.per.as_nanos().saturating_mul(burst.get() as u128);
        Self { rate, capacity, parts: capacity, updated_at: Mono::ZERO }
    }

    /// Takes one token if there is one.
    pub fn admit(&mut self, now: Mono) -> Admit {
        let verdict = self.check(now);
        if verdict == Admit::Go {
            self.parts = self.parts_at(now).saturating_sub(self.parts_per_token());
            self.updated_at = self.updated_at.max(now);
        }
        verdict
    }

    /// Returns what [`admit`](Self::admit) would, without taking a token.
    fn check(&self, now: Mono) -> Admit {
        Admit::not_before(self.reopens_at(), now)
    }

    /// Returns the earliest time at which a token is available; it may be in the past.
    pub fn reopens_at(&self) -> Mono {
        let missing = self.parts_per_token().saturating_sub(self.parts);
        let nanos = missing.div_ceil(u128::from(self.rate.tokens.get()));
        self.updated_at + from_nanos(nanos)
    }

    /// Returns the parts that make one token.
    const fn parts_per_token(&self) -> u128 {
        self.rate.per.as_nanos()
    }

    fn parts_at(&self, now: Mono) -> u128 {
        let elapsed = (now - self.updated_at).as_nanos();
        let added = elapsed.saturating_mul(u128::from(self.rate.tokens.get()));
        self.parts.saturating_add(added).min(self.capacity)
    }
}

fn from_nanos(nanos: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let secs = u64::try_from(nanos / SECOND).unwrap_or(u64::MAX);
    let subsec_nanos = u32::try_from(nanos % SECOND).unwrap_or(0);
    Duration::new(secs, subsec_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(burst: u32, tokens: u32, per: Duration) -> TokenBucket {
        let tokens = NonZeroU32::new(tokens).unwrap();
        TokenBucket::new(NonZeroU32::new(burst).unwrap(), Rate { tokens, per })
    }

    /// Counts the starts that are admitted if one is tried in every millisecond of `[from, to)`.
    fn admitted_between(bucket: &mut TokenBucket, from: u64, to: u64) -> usize {
        let admitted = (from..to).filter(|ms| bucket.admit(Mono::from_millis(*ms)) == Admit::Go);
        admitted.count()
    }

    #[test]
    fn admits_a_burst_and_then_the_rate() {
        let mut bucket = bucket(60, 2, Duration::from_secs(1));
        let burst = (0..100).filter(|_| bucket.admit(Mono::ZERO) == Admit::Go);
        assert_eq!(burst.count(), 60);
        assert_eq!(admitted_between(&mut bucket, 1, 10_001), 20);
    }

    #[test]
    fn does_not_drift_within_an_hour() {
        let mut bucket = bucket(1, 3, Duration::from_secs(1));
        let mut starts = 0_u32;
        let mut at = Mono::ZERO;
        while at < Mono::from_secs(3_600) {
            match bucket.admit(at) {
                Admit::Go => starts += 1,
                Admit::Wait(until) => at = until,
            }
        }
        assert_eq!(starts, 3 * 3_600);
    }

    #[test]
    fn saves_at_most_the_burst() {
        let mut bucket = bucket(3, 2, Duration::from_secs(1));
        let late = Mono::from_secs(1_000_000);
        let admitted = (0..10).filter(|_| bucket.admit(late) == Admit::Go);
        assert_eq!(admitted.count(), 3);
    }

    #[test]
    fn the_wait_is_exact_to_the_nanosecond() {
        let mut bucket = bucket(1, 15, Duration::from_secs(1));
        assert_eq!(bucket.admit(Mono::ZERO), Admit::Go);
        let Admit::Wait(until) = bucket.admit(Mono::ZERO) else { panic!("the bucket is empty") };
        let just_before = until - Duration::from_nanos(1);
        assert_eq!(bucket.check(just_before), Admit::Wait(until));
        assert_eq!(bucket.check(until), Admit::Go);
    }

    #[test]
    fn a_rate_over_zero_time_is_unlimited() {
        let mut bucket = bucket(1, 1, Duration::ZERO);
        assert!((0..100).all(|_| bucket.admit(Mono::ZERO) == Admit::Go));
    }
}
