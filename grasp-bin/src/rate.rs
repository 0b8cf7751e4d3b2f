//! The growth rate of a total.

use std::collections::VecDeque;
use std::time::Duration;

use grasp_core::Mono;

/// The period that a rate is computed over.
const WINDOW: Duration = Duration::from_secs(60);

/// The least time between two samples.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples of a total over the last minute.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    samples: VecDeque<(Mono, u64)>,
}

impl Rate {
    /// Starts with a total of 0 at this time.
    pub(crate) fn new(now: Mono) -> Self {
        Self { samples: VecDeque::from([(now, 0)]) }
    }

    /// Adds a sample and returns the growth per second, over the last minute or since the start.
    pub(crate) fn per_second(&mut self, now: Mono, total: u64) -> f64 {
        // The oldest sample but one shows whether the oldest is still needed.
        while self.samples.get(1).is_some_and(|(at, _)| now - *at >= WINDOW) {
            self.samples.pop_front();
        }
        let (since, before) = self.samples.front().copied().unwrap_or((now, total));
        if self.samples.back().is_none_or(|(at, _)| now - *at >= MIN_SAMPLE_INTERVAL) {
            self.samples.push_back((now, total));
        }
        total.saturating_sub(before) as f64 / (now - since).max(MIN_SAMPLE_INTERVAL).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_minute_counts() {
        let mut rate = Rate::new(Mono::ZERO);
        assert_eq!(rate.per_second(Mono::from_secs(10), 100), 10.0);
        for second in 11..=200 {
            rate.per_second(Mono::from_secs(second), 100);
        }
        assert_eq!(rate.per_second(Mono::from_secs(201), 100), 0.0);
        assert!(rate.samples.len() < 70);
    }

    #[test]
    fn rare_samples_count_since_the_last_one() {
        let mut rate = Rate::new(Mono::ZERO);
        rate.per_second(Mono::from_secs(1_000), 50);
        assert_eq!(rate.per_second(Mono::from_secs(2_000), 1_050), 1.0);
    }
}
