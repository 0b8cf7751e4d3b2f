//! A sliding-window rate limit.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::Admit;

/// An exact sliding window: every period of `length` (its end excluded) holds at most `max` starts.
///
/// Keeps the starts of the current period only. The limit can be [changed](Self::set_max); earlier
/// starts still count.
///
/// ```
/// use std::{num::NonZeroUsize, time::Duration};
/// use grasp_core::Mono;
/// use grasp_core::limits::Admit;
/// use grasp_purgatory::hunt::RateWindow;
///
/// let two = NonZeroUsize::new(2).unwrap();
/// let mut window = RateWindow::new(two, Duration::from_secs(60));
/// assert_eq!(window.admit(Mono::from_secs(0)), Admit::Go);
/// assert_eq!(window.admit(Mono::from_secs(9)), Admit::Go);
/// assert_eq!(window.admit(Mono::from_secs(10)), Admit::Wait(Mono::from_secs(60)));
/// assert_eq!(window.admit(Mono::from_secs(60)), Admit::Go);
/// ```
#[derive(Clone, Debug)]
pub struct RateWindow {
    max: NonZeroUsize,
    length: Duration,
    /// The starts that may still count, oldest first.
    starts: VecDeque<Mono>,
    paused_until: Mono,
}

impl RateWindow {
    /// Returns a window without starts.
    pub const fn new(max: NonZeroUsize, length: Duration) -> Self {
        Self { max, length, starts: VecDeque::new(), paused_until: Mono::ZERO }
    }

    /// Counts one start if the limit allows it.
    pub fn admit(&mut self, now: Mono) -> Admit {
        let verdict = self.check(now);
        if verdict == Admit::Go {
            while self.starts.front().is_some_and(|at| *at + self.length <= now) {
                self.starts.pop_front();
            }
            self.starts.push_back(now);
        }
        verdict
    }

    /// Moves a start to a later time, because the other side may have seen it that late.
    pub fn postpone(&mut self, start: Mono, to: Mono) {
        if let Ok(position) = self.starts.binary_search(&start) {
            self.starts.remove(position);
            let after = self.starts.partition_point(|at| *at <= to);
            self.starts.insert(after, to);
        }
    }

    /// Changes the maximum number of starts.
    pub fn set_max(&mut self, max: NonZeroUsize) {
        self.max = max;
    }

    /// Returns the maximum number of starts.
    pub const fn max(&self) -> NonZeroUsize {
        self.max
    }

    /// Prevents starts before `until`, for example for a `Retry-After`. The later of two pauses counts.
    pub fn pause_until(&mut self, until: Mono) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Returns what [`admit`](Self::admit) would, without counting a start.
    pub fn check(&self, now: Mono) -> Admit {
        Admit::not_before(self.reopens_at(), now)
    }

    /// Returns the earliest time of the next start; it may be in the past.
    pub fn reopens_at(&self) -> Mono {
        let blocking = self.starts.len().checked_sub(self.max.get());
        let blocking_start = blocking.and_then(|index| self.starts.get(index));
        let freed = blocking_start.map_or(Mono::ZERO, |at| *at + self.length);
        freed.max(self.paused_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(max: usize, secs: u64) -> RateWindow {
        RateWindow::new(NonZeroUsize::new(max).unwrap(), Duration::from_secs(secs))
    }

    #[test]
    fn a_postponed_start_counts_for_longer() {
        let mut window = window(2, 60);
        assert_eq!(window.admit(Mono::from_secs(0)), Admit::Go);
        assert_eq!(window.admit(Mono::from_secs(1)), Admit::Go);
        window.postpone(Mono::from_secs(0), Mono::from_secs(5));
        assert_eq!(window.check(Mono::from_secs(60)), Admit::Wait(Mono::from_secs(61)));
        assert_eq!(window.admit(Mono::from_secs(61)), Admit::Go);
        assert_eq!(window.check(Mono::from_secs(61)), Admit::Wait(Mono::from_secs(65)));
    }

    #[test]
    fn a_changed_limit_counts_earlier_starts() {
        let mut window = window(4, 60);
        for second in 0..4 {
            assert_eq!(window.admit(Mono::from_secs(second)), Admit::Go);
        }
        window.set_max(NonZeroUsize::new(2).unwrap());
        assert_eq!(window.check(Mono::from_secs(61)), Admit::Wait(Mono::from_secs(62)));
        window.set_max(NonZeroUsize::new(5).unwrap());
        assert_eq!(window.admit(Mono::from_secs(4)), Admit::Go);
        assert_eq!(window.check(Mono::from_secs(5)), Admit::Wait(Mono::from_secs(60)));
    }

    #[test]
    fn the_next_start_waits_until_the_oldest_no_longer_counts() {
        let mut window = window(30, 60);
        for second in 0..30 {
            assert_eq!(window.admit(Mono::from_secs(second)), Admit::Go);
        }
        let reopens = Mono::from_secs(60);
        assert_eq!(window.admit(Mono::from_secs(31)), Admit::Wait(reopens));
        assert_eq!(window.admit(reopens), Admit::Go);
        assert_eq!(window.admit(reopens), Admit::Wait(Mono::from_secs(61)));
    }

    #[test]
    fn refused_starts_do_not_count() {
        let mut window = window(1, 10);
        assert_eq!(window.admit(Mono::ZERO), Admit::Go);
        for second in 1..10 {
            let waiting = Admit::Wait(Mono::from_secs(10));
            assert_eq!(window.admit(Mono::from_secs(second)), waiting);
        }
        assert_eq!(window.admit(Mono::from_secs(10)), Admit::Go);
    }

    #[test]
    fn a_pause_applies_to_an_empty_window() {
        let mut window = window(5, 60);
        window.pause_until(Mono::from_secs(90));
        window.pause_until(Mono::from_secs(30));
        assert_eq!(window.admit(Mono::from_secs(89)), Admit::Wait(Mono::from_secs(90)));
        assert_eq!(window.admit(Mono::from_secs(90)), Admit::Go);
    }

    #[test]
    fn memory_is_bounded_by_the_limit() {
        let mut window = window(3, 1);
        for second in 0..1_000 {
            assert_eq!(window.admit(Mono::from_secs(second)), Admit::Go);
        }
        assert!(window.starts.len() <= 3);
    }
}
