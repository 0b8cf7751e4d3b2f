//! The progress of each relay, as bars on standard error.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};

use grasp_core::sync::ConnectionStatus;
use grasp_core::{Mono, RelayUrl};
use grasp_relay::web::format_duration;
use grasp_sync::driver::RelayStatus;

use crate::rate::Rate;

/// Letters of a bar.
const WIDTH: u64 = 24;

/// A line for each relay, redrawn in place on a terminal.
pub(super) struct ProgressBars {
    relays: Vec<(RelayUrl, Rate)>,
    widest: usize,
    are_drawn: bool,
    lines: usize,
}

impl ProgressBars {
    pub(super) fn new(relays: &[RelayUrl], now: Mono) -> Self {
        Self {
            widest: relays.iter().map(|relay| relay.as_str().len()).max().unwrap_or(0),
            relays: relays.iter().map(|relay| (relay.clone(), Rate::new(now))).collect(),
            are_drawn: std::io::stderr().is_terminal(),
            lines: 0,
        }
    }

    /// Returns whether the bars are drawn in place.
    pub(super) fn are_drawn(&self) -> bool {
        self.are_drawn
    }

    pub(super) fn show(&mut self, now: Mono, seen: &BTreeMap<RelayUrl, RelayStatus>) {
        let mut text = String::new();
        if self.are_drawn && self.lines > 0 {
            text.push_str(&format!("\x1b[{}A\x1b[J", self.lines));
        }
        for (relay, pace) in &mut self.relays {
            let progress = seen.get(relay).map(|one| Progress {
                pace: pace.per_second(now, one.counts.judged()),
                ..Progress::of(one)
            });
            let told =
                progress.map_or_else(|| "no attempt to connect yet".into(), |one| one.line());
            text.push_str(&format!("{:<width$}  {told}\n", relay.as_str(), width = self.widest));
        }
        self.lines = self.relays.len();
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// The progress of one relay.
#[derive(Clone, Copy, Debug)]
struct Progress {
    connection: ConnectionStatus,
    /// Events that are here and judged.
    fetched: u64,
    /// Those of them that were new.
    new: u64,
    /// Events that are known to be missing.
    left: u64,
    /// Events per second.
    pace: f64,
}

impl Progress {
    fn of(relay: &RelayStatus) -> Self {
        Self {
            connection: relay.connection,
            fetched: relay.counts.judged(),
            new: relay.counts.stored() + relay.counts.held,
            left: relay.wanted.max(relay.backlog),
            pace: 0.0,
        }
    }

    fn line(&self) -> String {
        let Self { fetched, new, left, pace, .. } = *self;
        let state = match self.connection {
            ConnectionStatus::Disconnected => "not connected",
            ConnectionStatus::Connecting => "connecting",
            ConnectionStatus::Syncing => {
                let known = fetched + left;
                let bar = bar(fetched, known);
                return format!(
                    "{bar} {fetched} of {known} known events, {new} new, {pace:.0}/s, {}",
                    self.rest()
                );
            }
            ConnectionStatus::Connected => "complete",
            ConnectionStatus::ConnectedHistoricSyncFailures => "incomplete",
        };
        format!("{} {fetched} events, {new} new, {state}", bar(fetched, fetched + left))
    }

    /// Formats the remaining time, which is unknown while pages are read.
    fn rest(&self) -> String {
        match (self.left, self.pace) {
            (0, _) => "asking for more".into(),
            (_, pace) if pace < 0.1 => "time left unknown".into(),
            (left, pace) => format!("{} left", format_duration((left as f64 / pace).ceil() as u64)),
        }
    }
}

fn bar(done: u64, of: u64) -> String {
    let full = (done * WIDTH).checked_div(of).unwrap_or(0).min(WIDTH);
    let letters = (0..WIDTH).map(|at| if at < full { '#' } else { '.' });
    format!("[{}] {:>3}%", letters.collect::<String>(), (done * 100).checked_div(of).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(fetched: u64, left: u64, pace: f64) -> Progress {
        Progress { connection: ConnectionStatus::Syncing, fetched, new: 5, left, pace }
    }

    #[test]
    fn a_bar_says_what_is_known_fetched_how_fast_and_how_long_it_will_take() {
        assert_eq!(
            progress(250, 750, 50.0).line(),
            "[######..................]  25% 250 of 1000 known events, 5 new, 50/s, 15 seconds left"
        );
        assert!(progress(0, 0, 0.0).line().ends_with("asking for more"));
        assert!(progress(10, 90, 0.0).line().ends_with("time left unknown"));
    }

    #[test]
    fn a_relay_that_is_done_says_so() {
        let done = Progress { connection: ConnectionStatus::Connected, ..progress(8, 0, 1.0) };
        assert_eq!(done.line(), format!("[{}] 100% 8 events, 5 new, complete", "#".repeat(24)));
    }
}
