//! Compares the clock of a node with that of the database.

use std::time::Duration;

use grasp_core::{Mono, Now};
use nostr::types::Timestamp;

/// The difference between the two clocks that is tolerated.
const MAX_DRIFT: Duration = Duration::from_secs(60);

/// The interval of warnings while the clock is wrong.
const WARNING_INTERVAL: Duration = Duration::from_secs(3_600);

/// A clock that differs from that of the database: as the writer, the node would refuse events as too new, or drop
/// others as expired, that the nodes before it have served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the clock of this machine is {seconds} s {} the clock of the database; set both by a time service",
    if *.is_ahead { "ahead of" } else { "behind" }
)]
pub struct ClockDrift {
    /// The difference in seconds.
    pub seconds: u64,
    /// The clock of this machine shows the later time.
    pub is_ahead: bool,
}

/// Fails if the clocks of this machine and of the database differ by more than a minute.
pub fn check_clock(own: Timestamp, database: Timestamp) -> Result<(), ClockDrift> {
    let seconds = own.as_secs().abs_diff(database.as_secs());
    match seconds > MAX_DRIFT.as_secs() {
        true => Err(ClockDrift {
            seconds,
            is_ahead: own > database,
        }),
        false => Ok(()),
    }
}

/// A change worth logging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriftNews {
    /// The clock is wrong.
    Drifts(ClockDrift),
    /// The clock was wrong, and is no longer.
    IsRightAgain,
}

/// Decides when a wrong clock is worth a line in the log.
#[derive(Debug, Default)]
pub(super) struct DriftWatch {
    /// When the last warning was, while the clock is wrong.
    warned: Option<Mono>,
}

impl DriftWatch {
    /// Takes the time of both clocks.
    pub(super) fn handle(&mut self, own: Now, database: Timestamp) -> Option<DriftNews> {
        let Err(drift) = check_clock(own.unix, database) else {
            return self.warned.take().map(|_| DriftNews::IsRightAgain);
        };
        if self
            .warned
            .is_some_and(|at| own.mono - at < WARNING_INTERVAL)
        {
            return None;
        }
        self.warned = Some(own.mono);
        Some(DriftNews::Drifts(drift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000;

    /// Returns the news at a second of the database's clock, with a clock that is so much ahead or behind.
    fn at(watch: &mut DriftWatch, second: u64, drift: i64) -> Option<DriftNews> {
        let database = START + second;
        let own = Timestamp::from_secs(database.checked_add_signed(drift).unwrap());
        watch.handle(
            Now::new(Mono::from_secs(second), own),
            Timestamp::from_secs(database),
        )
    }

    #[test]
    fn a_clock_that_drifts_while_the_node_runs_is_reported_once_an_hour_until_it_is_right() {
        let mut watch = DriftWatch::default();
        assert_eq!(at(&mut watch, 0, 0), None);
        assert_eq!(at(&mut watch, 60, 60), None);
        let ahead = ClockDrift {
            seconds: 61,
            is_ahead: true,
        };
        assert_eq!(at(&mut watch, 120, 61), Some(DriftNews::Drifts(ahead)));
        assert_eq!(at(&mut watch, 180, 62), None);
        let more = ClockDrift {
            seconds: 300,
            is_ahead: true,
        };
        assert_eq!(
            at(&mut watch, 120 + 3_600, 300),
            Some(DriftNews::Drifts(more))
        );
        assert_eq!(at(&mut watch, 4_000, 1), Some(DriftNews::IsRightAgain));
        assert_eq!(at(&mut watch, 4_060, 1), None);
        let behind = ClockDrift {
            seconds: 90,
            is_ahead: false,
        };
        assert_eq!(at(&mut watch, 4_120, -90), Some(DriftNews::Drifts(behind)));
        let text = behind.to_string();
        assert!(
            text.contains("is 90 s behind the clock of the database"),
            "{text}"
        );
    }
}
