//! Gaps: events that a live subscription should have brought, and did not.
//!
//! The time at which an event reached a relay is unknown; the time at which it was signed is not. An event counts as
//! a gap if it was signed while everything wanted was subscribed to, and was found later by a catch-up or the daily
//! pass. Events signed while we were not connected, first fetches, and events that the local relay had lost are no
//! gaps.

use std::collections::VecDeque;
use std::time::Duration;

use grasp_core::admission::SyncPath;
use grasp_core::nostr::types::Timestamp;

const MAX_PERIODS: usize = 16;
/// Time that an event may take to arrive live, and a dead connection to be noticed.
const LIVE_DELAY: Duration = Duration::from_secs(2 * 60);

/// The way in which the events of a fetch are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountAs {
    pub(super) path: SyncPath,
    /// The time up to which a live subscription should have brought them; `None` if none of them can be a gap.
    pub(super) gaps_until: Option<Timestamp>,
}

impl CountAs {
    /// Events of a live subscription.
    pub(super) const LIVE: Self = Self { path: SyncPath::Live, gaps_until: None };
    /// Events that were not subscribed to before.
    pub(super) const NEW: Self = Self { path: SyncPath::CatchUp, gaps_until: None };

    /// Counts events signed before `until` as gaps.
    pub(super) fn with_gaps_until(self, until: Timestamp) -> Self {
        Self { gaps_until: Some(until), ..self }
    }
}

/// The times in which everything wanted from a relay was subscribed to, over past connections of this process.
#[derive(Debug, Default)]
pub(super) struct ListeningTimes(VecDeque<(Timestamp, Timestamp)>);

impl ListeningTimes {
    /// Adds a connection that has ended.
    pub(super) fn ended(&mut self, from: Timestamp, until: Timestamp) {
        if self.0.len() >= MAX_PERIODS {
            self.0.pop_front();
        }
        self.0.push_back((from, until));
    }

    /// Returns whether an event signed at `at` is a gap. `current` is the time since which the open connection is
    /// subscribed.
    pub(super) fn is_gap(
        &self,
        count_as: CountAs,
        current: Option<Timestamp>,
        at: Timestamp,
    ) -> bool {
        let Some(until) = count_as.gaps_until else { return false };
        let current = current.map(|from| (from, until));
        let mut periods = self.0.iter().copied().chain(current);
        periods.any(|(from, until)| from <= at && at + LIVE_DELAY <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_700_000_000 + secs)
    }

    #[test]
    fn only_events_signed_while_subscribed_are_gaps() {
        let mut listening_times = ListeningTimes::default();
        listening_times.ended(at(1_000), at(2_000));
        let count_as = CountAs::NEW.with_gaps_until(at(5_000));
        let is_gap = |secs| listening_times.is_gap(count_as, Some(at(4_000)), at(secs));
        assert!(is_gap(1_000) && is_gap(1_880) && is_gap(4_500));
        assert!(!is_gap(999) && !is_gap(1_881), "before it, and too late to arrive");
        assert!(!is_gap(3_000) && !is_gap(4_900), "not subscribed, and still in transit");
        assert!(!listening_times.is_gap(CountAs::NEW, Some(at(4_000)), at(1_500)));
    }

    #[test]
    fn the_number_of_remembered_connections_is_bounded() {
        let mut listening_times = ListeningTimes::default();
        for n in 0..100 {
            listening_times.ended(at(n * 1_000), at(n * 1_000 + 500));
        }
        assert_eq!(listening_times.0.len(), MAX_PERIODS);
        let count_as = CountAs::NEW.with_gaps_until(at(200_000));
        assert!(listening_times.is_gap(count_as, None, at(99_100)));
        assert!(!listening_times.is_gap(count_as, None, at(100)));
        listening_times = ListeningTimes::default();
        assert!(!listening_times.is_gap(count_as, None, at(99_100)));
    }
}
