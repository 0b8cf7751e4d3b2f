//! How much of something one connection may do per minute.

use std::time::Duration;

use grasp_core::Mono;

const MINUTE: Duration = Duration::from_secs(60);

/// A bucket that holds one minute's worth and fills up steadily.
///
/// Each act takes `MINUTE / per_minute` of time out of it, so that it needs no fractions.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    cost: Duration,
    /// When the bucket would be full again if nothing more were taken.
    full_at: Mono,
}

impl Allowance {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { cost: MINUTE / per_minute.max(1), full_at: Mono::ZERO }
    }

    /// Takes one, if there is one.
    #[must_use]
    pub(crate) fn take(&mut self, now: Mono) -> bool {
        let after = self.full_at.max(now) + self.cost;
        let granted = after - now <= MINUTE;
        if granted {
            self.full_at = after;
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minutes_worth_may_come_at_once_and_no_more() {
        let mut allowance = Allowance::new(60);
        let now = Mono::from_secs(1_000);
        assert!((0..60).all(|_| allowance.take(now)));
        assert!(!allowance.take(now));
    }

    #[test]
    fn it_fills_up_steadily() {
        let mut allowance = Allowance::new(60);
        let now = Mono::from_secs(1_000);
        while allowance.take(now) {}
        assert!(!allowance.take(now + Duration::from_millis(999)));
        assert!(allowance.take(now + Duration::from_secs(1)));
        assert!(!allowance.take(now + Duration::from_secs(1)));
    }

    proptest::proptest! {
        #[test]
        fn no_minute_grants_more_than_twice_its_worth(
            per_minute in 1u32..200,
            steps in proptest::collection::vec(0u64..2_000, 1..400),
        ) {
            let mut allowance = Allowance::new(per_minute);
            let mut now = Mono::from_secs(100);
            let mut granted = Vec::new();
            for step in steps {
                now = now + Duration::from_millis(step);
                if allowance.take(now) {
                    granted.push(now);
                }
            }
            for (first, start) in granted.iter().enumerate() {
                let within = granted.iter().skip(first).take_while(|at| **at - *start < MINUTE).count();
                proptest::prop_assert!(within <= 2 * per_minute as usize);
            }
        }
    }
}
