//! How fast something goes.

use std::collections::VecDeque;
use std::time::Duration;

use grasp_core::Mono;

/// How long ago a look may be that counts.
const MEMORY: Duration = Duration::from_secs(60);

/// Looks that are closer together are one.
const GAP: Duration = Duration::from_secs(1);

/// A total as it was seen now and then, so that it can be said how fast it grows.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    looks: VecDeque<(Mono, u64)>,
}

impl Pace {
    /// Begins at nothing, now.
    pub(crate) fn new(now: Mono) -> Self {
        Self { looks: VecDeque::from([(now, 0)]) }
    }

    /// Notes what the total is now; how much it grows per second, by the last minute or by what there is of it.
    pub(crate) fn per_second(&mut self, now: Mono, total: u64) -> f64 {
        // The oldest look but one shows whether the oldest is still needed.
        while self.looks.get(1).is_some_and(|(at, _)| now - *at >= MEMORY) {
            self.looks.pop_front();
        }
        let (since, before) = self.looks.front().copied().unwrap_or((now, total));
        if self.looks.back().is_none_or(|(at, _)| now - *at >= GAP) {
            self.looks.push_back((now, total));
        }
        total.saturating_sub(before) as f64 / (now - since).max(GAP).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minute_counts_and_what_was_before_does_not() {
        let mut pace = Pace::new(Mono::ZERO);
        assert_eq!(pace.per_second(Mono::from_secs(10), 100), 10.0);
        for second in 11..=200 {
            pace.per_second(Mono::from_secs(second), 100);
        }
        assert_eq!(pace.per_second(Mono::from_secs(201), 100), 0.0);
        assert!(pace.looks.len() < 70);
    }

    #[test]
    fn whoever_asks_rarely_hears_of_the_time_since_the_last_look() {
        let mut pace = Pace::new(Mono::ZERO);
        pace.per_second(Mono::from_secs(1_000), 50);
        assert_eq!(pace.per_second(Mono::from_secs(2_000), 1_050), 1.0);
    }
}
