//! A token bucket in whole numbers: nothing drifts, however long it runs.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Admit;
use crate::Mono;

/// So many tokens in each stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that come in during [`per`](Self::per).
    pub tokens: NonZeroU32,
    /// The stretch that `tokens` is counted over. Zero means no limit.
    pub per: Duration,
}

impl Rate {
    /// So many tokens a second.
    pub const fn per_second(tokens: NonZeroU32) -> Self {
        Self { tokens, per: Duration::from_secs(1) }
    }
}

/// Saves up to `burst` tokens, one of which each start costs.
///
/// Starts full. Over any stretch of length `t` it lets through at most `burst + rate · t`.
///
/// ```
/// use std::num::NonZeroU32;
/// use grasp_core::Mono;
/// use grasp_core::limits::{Admit, Rate, TokenBucket};
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
    full: u128,
    /// What is saved, in parts so small that each nanosecond brings a whole number of them:
    /// `rate.tokens` parts come in per nanosecond, and one token is `rate.per` nanoseconds of parts.
    parts: u128,
    /// When `parts` was counted.
    counted: Mono,
}

impl TokenBucket {
    /// A full bucket.
    pub const fn new(burst: NonZeroU32, rate: Rate) -> Self {
        let full = rate.per.as_nanos().saturating_mul(burst.get() as u128);
        Self { rate, full, parts: full, counted: Mono::ZERO }
    }

    /// Asks for one token, and takes it when the answer is [`Admit::Go`].
    pub fn admit(&mut self, now: Mono) -> Admit {
        let verdict = self.check(now);
        if verdict == Admit::Go {
            self.parts = self.saved(now).saturating_sub(self.price());
            self.counted = self.counted.max(now);
        }
        verdict
    }

    /// What [`admit`](Self::admit) would say, without taking a token.
    fn check(&self, now: Mono) -> Admit {
        Admit::from(self.reopens_at(), now)
    }

    /// The earliest point at which a token is there; past if one is there now.
    pub fn reopens_at(&self) -> Mono {
        let missing = self.price().saturating_sub(self.parts);
        let nanos = missing.div_ceil(u128::from(self.rate.tokens.get()));
        self.counted + from_nanos(nanos)
    }

    /// Parts that one token costs.
    const fn price(&self) -> u128 {
        self.rate.per.as_nanos()
    }

    fn saved(&self, now: Mono) -> u128 {
        let elapsed = (now - self.counted).as_nanos();
        let gained = elapsed.saturating_mul(u128::from(self.rate.tokens.get()));
        self.parts.saturating_add(gained).min(self.full)
    }
}

fn from_nanos(nanos: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let secs = u64::try_from(nanos / SECOND).unwrap_or(u64::MAX);
    let rest = u32::try_from(nanos % SECOND).unwrap_or(0);
    Duration::new(secs, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(burst: u32, tokens: u32, per: Duration) -> TokenBucket {
        let tokens = NonZeroU32::new(tokens).unwrap();
        TokenBucket::new(NonZeroU32::new(burst).unwrap(), Rate { tokens, per })
    }

    /// Starts that get through when somebody asks in every millisecond of `[from, to)`.
    fn greedy(bucket: &mut TokenBucket, from: u64, to: u64) -> usize {
        let asks = (from..to).filter(|ms| bucket.admit(Mono::from_millis(*ms)) == Admit::Go);
        asks.count()
    }

    #[test]
    fn a_burst_goes_through_and_then_the_rate_rules() {
        let mut bucket = bucket(60, 2, Duration::from_secs(1));
        let burst = (0..100).filter(|_| bucket.admit(Mono::ZERO) == Admit::Go);
        assert_eq!(burst.count(), 60);
        assert_eq!(greedy(&mut bucket, 1, 10_001), 20);
    }

    #[test]
    fn thirds_of_a_second_do_not_drift_in_an_hour() {
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
    fn no_more_than_the_burst_is_saved() {
        let mut bucket = bucket(3, 2, Duration::from_secs(1));
        let late = Mono::from_secs(1_000_000);
        let saved = (0..10).filter(|_| bucket.admit(late) == Admit::Go);
        assert_eq!(saved.count(), 3);
    }

    #[test]
    fn the_wait_is_exact() {
        let mut bucket = bucket(1, 15, Duration::from_secs(1));
        assert_eq!(bucket.admit(Mono::ZERO), Admit::Go);
        let Admit::Wait(until) = bucket.admit(Mono::ZERO) else { panic!("the bucket is empty") };
        let just_before = until - Duration::from_nanos(1);
        assert_eq!(bucket.check(just_before), Admit::Wait(until));
        assert_eq!(bucket.check(until), Admit::Go);
    }

    #[test]
    fn a_rate_over_no_time_is_no_limit() {
        let mut bucket = bucket(1, 1, Duration::ZERO);
        assert!((0..100).all(|_| bucket.admit(Mono::ZERO) == Admit::Go));
    }
}
