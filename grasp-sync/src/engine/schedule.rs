//! The schedule of the daily pass, and the reproducible randomness in it.

use std::time::Duration;

use grasp_core::nostr::types::Timestamp;
use grasp_core::{Mono, Now};

/// The daily pass over one relay: at a random time within bounds, so that relays are not all asked at once.
#[derive(Clone, Debug)]
pub(super) struct Daily {
    pub(super) due: Mono,
    /// The end of the last pass.
    pub(super) last: Option<Timestamp>,
}

impl Daily {
    /// Schedules the next pass after the last one, perhaps of an earlier process.
    pub(super) fn since(
        now: Now,
        last: Option<Timestamp>,
        bounds: (Duration, Duration),
        rng: &mut Rng,
    ) -> Self {
        let wait = rng.between(bounds.0, bounds.1);
        // A clock that was set back makes no wait longer than the bounds.
        let passed = last.map_or(0, |last| now.unix.as_secs().saturating_sub(last.as_secs()));
        Self { due: now.mono + wait.saturating_sub(Duration::from_secs(passed)), last }
    }
}

/// A small generator (SplitMix64): seeded by the configuration, the same on every machine.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a duration from `least` up to, and not including, `most`; `least` if these leave no room.
    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let room = u64::try_from(most.saturating_sub(least).as_millis()).unwrap_or(u64::MAX);
        least + Duration::from_millis(self.next().checked_rem(room).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600;
    const BOUNDS: (Duration, Duration) =
        (Duration::from_secs(23 * HOUR), Duration::from_secs(25 * HOUR));

    fn at(secs: u64) -> Now {
        Now::new(Mono::from_secs(secs), Timestamp::from_secs(1_700_000_000 + secs))
    }

    #[test]
    fn the_pass_comes_after_23_to_25_hours_and_not_always_the_same() {
        let mut rng = Rng::seeded(1);
        let waits: Vec<_> =
            (0..200).map(|_| Daily::since(at(0), None, BOUNDS, &mut rng).due).collect();
        assert!(
            waits.iter().all(|due| (23 * HOUR..25 * HOUR).contains(&due.since_start().as_secs()))
        );
        let halves = waits.iter().filter(|due| **due < Mono::from_secs(24 * HOUR)).count();
        assert!((50..150).contains(&halves), "{halves} of 200 before 24 hours");
    }

    #[test]
    fn a_restart_does_not_delay_the_pass() {
        let mut rng = Rng::seeded(2);
        let last = Timestamp::from_secs(1_700_000_000 - 20 * HOUR);
        let daily = Daily::since(at(0), Some(last), BOUNDS, &mut rng);
        assert!((3 * HOUR..5 * HOUR).contains(&daily.due.since_start().as_secs()));
        let long_ago = Timestamp::from_secs(1_700_000_000 - 30 * HOUR);
        assert!(Daily::since(at(0), Some(long_ago), BOUNDS, &mut rng).due == Mono::ZERO);
    }

    #[test]
    fn the_next_pass_counts_from_the_end_of_the_last() {
        let mut rng = Rng::seeded(3);
        let daily = Daily::since(at(26 * HOUR), Some(at(26 * HOUR).unix), BOUNDS, &mut rng);
        assert!(daily.due >= Mono::from_secs(49 * HOUR));
        assert_eq!(daily.last, Some(at(26 * HOUR).unix));
    }
}
