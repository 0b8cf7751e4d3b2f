//! At most so many starts in any stretch of time.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::Duration;

use super::Admit;
use crate::Mono;

/// An exact sliding window: every stretch of `length` (its end excluded) holds at most `max` starts.
///
/// It remembers the last `max` starts and nothing else: the next may come once the oldest of them
/// has left the window.
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
    /// The latest starts, oldest first, never more than `max`.
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
            if self.starts.len() >= self.max.get() {
                self.starts.pop_front();
            }
            self.starts.push_back(now);
        }
        verdict
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
        let freed = match self.starts.front() {
            Some(oldest) if self.starts.len() >= self.max.get() => *oldest + self.length,
            _ => Mono::ZERO,
        };
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
        assert_eq!(window.starts.len(), 3);
    }
}
