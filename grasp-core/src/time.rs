//! Time as an argument: a core never reads a clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use nostr::types::Timestamp;

/// A point on the monotonic clock, counted from the start of the process.
///
/// Waits and deadlines are made of these; they never go backwards and never meet a calendar.
/// Built from nothing in a test: `Mono::from_secs(5)`.
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

    /// A point `since_start` after the start of the process.
    pub const fn new(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// A point that many seconds after the start of the process.
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// A point that many milliseconds after the start of the process.
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// How long after the start of the process this point lies.
    pub const fn since_start(self) -> Duration {
        self.0
    }
}

impl Add<Duration> for Mono {
    type Output = Self;
    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }
}

impl Sub<Duration> for Mono {
    type Output = Self;
    /// Saturates at [`Mono::ZERO`].
    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(length))
    }
}

impl Sub for Mono {
    type Output = Duration;
    /// The time from `earlier` to `self`; zero if `earlier` is in fact later.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Mono {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{}.{:03}s", self.0.as_secs(), self.0.subsec_millis())
    }
}

/// One reading of both clocks, taken once per turn of a driver.
///
/// `mono` waits, `unix` goes into filters and is compared with `created_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock.
    pub mono: Mono,
    /// The calendar clock, in unix seconds.
    pub unix: Timestamp,
}

impl Now {
    /// Both clocks at once.
    pub const fn new(mono: Mono, unix: Timestamp) -> Self {
        Self { mono, unix }
    }

    /// Both clocks moved on by the same length; handy in simulations.
    #[must_use]
    pub fn after(self, length: Duration) -> Self {
        // Whole seconds of the calendar follow the whole seconds that the monotonic clock passes.
        let before = self.mono.since_start().as_secs();
        let mono = self.mono + length;
        let passed = mono.since_start().as_secs() - before;
        Self { mono, unix: Timestamp::from_secs(self.unix.as_secs().saturating_add(passed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_advance_together() {
        let now = Now::new(Mono::from_millis(1_900), Timestamp::from_secs(100));
        let later = now.after(Duration::from_millis(200));
        assert_eq!(later, Now::new(Mono::from_millis(2_100), Timestamp::from_secs(101)));
    }
}
