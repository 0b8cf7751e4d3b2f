//! Time as an argument, so that rules do not read a clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use nostr::types::Timestamp;

/// A point on the monotonic clock, counted from the start of the process.
///
/// Deadlines and pauses are computed with these; they never go backwards. Tests build them from numbers:
/// `Mono::from_secs(5)`.
///
/// ```
/// use std::time::Duration;
/// use grasp_core::Mono;
///
/// let start = Mono::from_secs(5);
/// assert_eq!(start + Duration::from_secs(2), Mono::from_secs(7));
/// assert_eq!(Mono::from_secs(7) - start, Duration::from_secs(2));
/// assert_eq!(start - Mono::from_secs(7), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(Duration);

impl Mono {
    /// The start of the process.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// Returns the time `since_start` after the start of the process.
    pub const fn new(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// Returns the time `secs` seconds after the start of the process.
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// Returns the time `millis` milliseconds after the start of the process.
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// Returns the time since the start of the process.
    pub const fn since_start(self) -> Duration {
        self.0
    }
}

impl Add<Duration> for Mono {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for Mono {
    type Output = Self;
    /// Saturates at [`Mono::ZERO`].
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }
}

impl Sub for Mono {
    type Output = Duration;
    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Mono {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{}.{:03}s", self.0.as_secs(), self.0.subsec_millis())
    }
}

/// One reading of both clocks.
///
/// `mono` is for deadlines, `unix` for filters and comparisons with `created_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock.
    pub mono: Mono,
    /// The calendar clock, in unix seconds.
    pub unix: Timestamp,
}

impl Now {
    /// Combines readings of both clocks.
    pub const fn new(mono: Mono, unix: Timestamp) -> Self {
        Self { mono, unix }
    }

    /// Advances both clocks by the same duration, for simulations.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        // The calendar advances with the whole seconds of the monotonic clock.
        let before = self.mono.since_start().as_secs();
        let mono = self.mono + duration;
        let passed = mono.since_start().as_secs() - before;
        Self {
            mono,
            unix: Timestamp::from_secs(self.unix.as_secs().saturating_add(passed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_advance_together() {
        let now = Now::new(Mono::from_millis(1_900), Timestamp::from_secs(100));
        let later = now.after(Duration::from_millis(200));
        assert_eq!(
            later,
            Now::new(Mono::from_millis(2_100), Timestamp::from_secs(101))
        );
    }
}
