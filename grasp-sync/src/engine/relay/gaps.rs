//! Gaps: events that live subscriptions of ours should have brought, and did not.
//!
//! When an event reached the relay is not known; when it was signed is. So an event counts as a gap if it was signed
//! while everything wanted was listened to, and was found later by a catch-up or by the daily pass. What was signed
//! while nobody was connected, what is fetched for the first time and what our own relay had lost are no gaps.

use std::collections::VecDeque;
use std::time::Duration;

use grasp_core::admission::SyncPath;
use grasp_core::nostr::types::Timestamp;

/// Connections of one relay that are remembered.
const MAX_PERIODS: usize = 16;
/// How long an event may take to arrive live, and a dead connection to be noticed.
const LIVE_DELAY: Duration = Duration::from_secs(2 * 60);

/// How the events of a fetch are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Course {
    pub(in crate::engine) path: SyncPath,
    /// Up to when live subscriptions should have brought what it finds; `None` if it finds no gaps.
    pub(in crate::engine) gaps_until: Option<Timestamp>,
}

impl Course {
    /// Of what came on a live subscription.
    pub(in crate::engine) const LIVE: Self = Self { path: SyncPath::Live, gaps_until: None };
    /// Of what was not listened to before.
    pub(in crate::engine) const NEW: Self = Self { path: SyncPath::CatchUp, gaps_until: None };

    /// The same, of what was listened to until then.
    pub(in crate::engine) fn with_gaps_until(self, until: Timestamp) -> Self {
        Self { gaps_until: Some(until), ..self }
    }
}

/// The times in which everything wanted from a relay was listened to, over past connections of this process.
#[derive(Debug, Default)]
pub(in crate::engine) struct Listened(VecDeque<Period>);

#[derive(Clone, Copy, Debug)]
struct Period {
    from: Timestamp,
    until: Timestamp,
}

impl Period {
    /// Whether an event signed then should have come live.
    fn covers(self, at: Timestamp) -> bool {
        self.from <= at && at + LIVE_DELAY <= self.until
    }
}

impl Listened {
    /// A connection has ended on which everything was listened to from then on.
    pub(in crate::engine) fn ended(&mut self, from: Timestamp, until: Timestamp) {
        if self.0.len() >= MAX_PERIODS {
            self.0.pop_front();
        }
        self.0.push_back(Period { from, until });
    }

    /// What came in these times is no longer here.
    pub(in crate::engine) fn forget(&mut self) {
        self.0.clear();
    }

    /// Whether an event signed at this time is a gap. `current` is since when the present connection listens.
    pub(in crate::engine) fn is_gap(
        &self,
        course: Course,
        current: Option<Timestamp>,
        at: Timestamp,
    ) -> bool {
        let Some(until) = course.gaps_until else { return false };
        let current = current.map(|from| Period { from, until });
        self.0.iter().copied().chain(current).any(|period| period.covers(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_700_000_000 + secs)
    }

    #[test]
    fn only_what_was_signed_while_everything_was_listened_to_is_a_gap() {
        let mut listened = Listened::default();
        listened.ended(at(1_000), at(2_000));
        let course = Course::NEW.with_gaps_until(at(5_000));
        let is_gap = |secs| listened.is_gap(course, Some(at(4_000)), at(secs));
        assert!(is_gap(1_000) && is_gap(1_880) && is_gap(4_500));
        assert!(!is_gap(999) && !is_gap(1_881), "before it, and too late to arrive");
        assert!(!is_gap(3_000) && !is_gap(4_900), "nobody listened, and still on its way");
        assert!(!listened.is_gap(Course::NEW, Some(at(4_000)), at(1_500)));
    }

    #[test]
    fn only_so_many_connections_are_remembered() {
        let mut listened = Listened::default();
        for n in 0..100 {
            listened.ended(at(n * 1_000), at(n * 1_000 + 500));
        }
        assert_eq!(listened.0.len(), MAX_PERIODS);
        let course = Course::NEW.with_gaps_until(at(200_000));
        assert!(listened.is_gap(course, None, at(99_100)));
        assert!(!listened.is_gap(course, None, at(100)));
        listened.forget();
        assert!(!listened.is_gap(course, None, at(99_100)));
    }
}
