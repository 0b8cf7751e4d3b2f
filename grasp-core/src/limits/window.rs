//! At most so many starts in any stretch of time.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

use super::Admit;
use crate::Mono;

/// An exact sliding window: every stretch of `length` (its end excluded) holds at most `max` starts.
///
/// It remembers the starts of the current stretch and nothing else: the next may come once fewer than
/// `max` of them are left in it. The limit may be [changed](Self::set_max) on the way; starts that were
/// counted under another limit still count.
///
/// ```
/// use std::{num::NonZeroUsize, time::Duration};
/// use grasp_core::Mono;
/// use grasp_core::limits::{Admit, RateWindow};
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
    /// A window nobody has started in.
    pub const fn new(max: NonZeroUsize, length: Duration) -> Self {
        Self { max, length, starts: VecDeque::new(), paused_until: Mono::ZERO }
    }

    /// Asks for one start, and counts it when the answer is [`Admit::Go`].
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

    /// Counts a start from a later point on: the other side may have seen it as late as that.
    pub fn postpone(&mut self, start: Mono, to: Mono) {
        if let Ok(position) = self.starts.binary_search(&start) {
            self.starts.remove(position);
            let after = self.starts.partition_point(|at| *at <= to);
            self.starts.insert(after, to);
        }
    }

    /// Allows another number of starts from now on.
    pub fn set_max(&mut self, max: NonZeroUsize) {
        self.max = max;
    }

    /// How many starts any stretch may hold.
    pub const fn max(&self) -> NonZeroUsize {
        self.max
    }

    /// Lets nothing start before `until`, as a `Retry-After` demands. Of two pauses the later counts.
    pub fn pause_until(&mut self, until: Mono) {
        self.paused_until = self.paused_until.max(until);
    }

    /// What [`admit`](Self::admit) would say, without counting a start.
    pub fn check(&self, now: Mono) -> Admit {
        Admit::from(self.reopens_at(), now)
    }

    /// The earliest point at which the next start may happen; past if it may now.
    pub fn reopens_at(&self) -> Mono {
        let last_to_leave = self.starts.len().checked_sub(self.max.get());
        let leaves = last_to_leave.and_then(|index| self.starts.get(index));
        let freed = leaves.map_or(Mono::ZERO, |at| *at + self.length);
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
    fn a_postponed_start_leaves_later() {
        let mut window = window(2, 60);
        assert_eq!(window.admit(Mono::from_secs(0)), Admit::Go);
        assert_eq!(window.admit(Mono::from_secs(1)), Admit::Go);
        window.postpone(Mono::from_secs(0), Mono::from_secs(5));
        assert_eq!(window.check(Mono::from_secs(60)), Admit::Wait(Mono::from_secs(61)));
        assert_eq!(window.admit(Mono::from_secs(61)), Admit::Go);
        assert_eq!(window.check(Mono::from_secs(61)), Admit::Wait(Mono::from_secs(65)));
    }

    #[test]
    fn a_changed_limit_counts_the_starts_before_it() {
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
    fn the_next_start_waits_for_the_oldest_to_leave() {
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
    fn asking_in_vain_uses_nothing_up() {
        let mut window = window(1, 10);
        assert_eq!(window.admit(Mono::ZERO), Admit::Go);
        for second in 1..10 {
            let waiting = Admit::Wait(Mono::from_secs(10));
            assert_eq!(window.admit(Mono::from_secs(second)), waiting);
        }
        assert_eq!(window.admit(Mono::from_secs(10)), Admit::Go);
    }

    #[test]
    fn a_pause_holds_back_an_empty_window() {
        let mut window = window(5, 60);
        window.pause_until(Mono::from_secs(90));
        window.pause_until(Mono::from_secs(30));
        assert_eq!(window.admit(Mono::from_secs(89)), Admit::Wait(Mono::from_secs(90)));
        assert_eq!(window.admit(Mono::from_secs(90)), Admit::Go);
    }

    #[test]
    fn memory_is_bounded_by_the_allowed_starts() {
        let mut window = window(3, 1);
        for second in 0..1_000 {
            assert_eq!(window.admit(Mono::from_secs(second)), Admit::Go);
        }
        assert!(window.starts.len() <= 3);
    }
}
