//! The progress of each relay, on standard error.

use std::collections::BTreeMap;

use grasp_core::{Mono, RelayUrl};
use grasp_relay::web::format_duration;
use grasp_sync::driver::RelayStatus;
use grasp_sync::index::ConnectionStatus;
use indicatif::{MultiProgress, ProgressBar, ProgressFinish, ProgressStyle};

use crate::rate::Rate;

/// A progress bar for each relay on a terminal; elsewhere a line for each.
pub(super) struct ProgressBars {
    bars: MultiProgress,
    relays: Vec<(RelayUrl, ProgressBar, Rate)>,
}

impl ProgressBars {
    pub(super) fn new(relays: &[RelayUrl], now: Mono) -> Self {
        let bars = MultiProgress::new();
        let width = relays.iter().map(|relay| relay.as_str().len()).max().unwrap_or(0);
        let style = ProgressStyle::with_template("{prefix}  [{bar:24}] {percent:>3}% {msg}")
            .expect("the template is valid")
            .progress_chars("##.");
        let bar = |relay: &RelayUrl| {
            let bar = ProgressBar::new(1)
                .with_style(style.clone())
                .with_prefix(format!("{:<width$}", relay.as_str()))
                .with_finish(ProgressFinish::Abandon);
            (relay.clone(), bars.add(bar), Rate::new(now))
        };
        let relays = relays.iter().map(bar).collect();
        Self { bars, relays }
    }

    /// Returns whether bars are drawn, rather than lines printed.
    pub(super) fn are_drawn(&self) -> bool {
        !self.bars.is_hidden()
    }

    pub(super) fn show(&mut self, now: Mono, statuses: &BTreeMap<RelayUrl, RelayStatus>) {
        for (relay, bar, rate) in &mut self.relays {
            let progress = statuses
                .get(relay)
                .map(|status| Progress::new(status, rate.per_second(now, status.counts.judged())));
            if let Some(Progress { fetched, missing, .. }) = progress {
                // A length of 0 would be drawn as 100 %.
                bar.set_length((fetched + missing).max(1));
                bar.set_position(fetched);
            }
            let text = progress.map_or_else(|| "no attempt to connect yet".into(), |it| it.text());
            if bar.is_hidden() {
                eprintln!("{}  {text}", bar.prefix());
            }
            bar.set_message(text);
        }
    }
}

/// The progress of one relay.
#[derive(Clone, Copy, Debug)]
struct Progress {
    connection: ConnectionStatus,
    fetched: u64,
    /// Those of the fetched events that were new.
    new: u64,
    /// Events that are known to be missing.
    missing: u64,
    per_second: f64,
}

impl Progress {
    fn new(relay: &RelayStatus, per_second: f64) -> Self {
        Self {
            connection: relay.connection,
            fetched: relay.counts.judged(),
            new: relay.counts.stored() + relay.counts.held,
            missing: relay.wanted.max(relay.backlog),
            per_second,
        }
    }

    fn text(&self) -> String {
        let Self { fetched, new, missing, per_second, .. } = *self;
        let state = match self.connection {
            ConnectionStatus::Disconnected => "not connected",
            ConnectionStatus::Connecting => "connecting",
            ConnectionStatus::Syncing => {
                let known = fetched + missing;
                let left = self.time_left();
                return format!(
                    "{fetched} of {known} known events, {new} new, {per_second:.0}/s, {left}"
                );
            }
            ConnectionStatus::Connected => "complete",
            ConnectionStatus::ConnectedHistoricSyncFailures => "incomplete",
        };
        format!("{fetched} events, {new} new, {state}")
    }

    /// Formats the remaining time, which is unknown while pages are read.
    fn time_left(&self) -> String {
        match (self.missing, self.per_second) {
            (0, _) => "asking for more".into(),
            (_, rate) if rate < 0.1 => "time left unknown".into(),
            (left, rate) => format!("{} left", format_duration((left as f64 / rate).ceil() as u64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(fetched: u64, missing: u64, per_second: f64) -> Progress {
        Progress { connection: ConnectionStatus::Syncing, fetched, new: 5, missing, per_second }
    }

    #[test]
    fn progress_shows_fetched_events_rate_and_time_left() {
        assert_eq!(
            progress(250, 750, 50.0).text(),
            "250 of 1000 known events, 5 new, 50/s, 15 seconds left"
        );
        assert!(progress(0, 0, 0.0).text().ends_with("asking for more"));
        assert!(progress(10, 90, 0.0).text().ends_with("time left unknown"));
    }

    #[test]
    fn a_complete_relay_is_shown_as_complete() {
        let done = Progress { connection: ConnectionStatus::Connected, ..progress(8, 0, 1.0) };
        assert_eq!(done.text(), "8 events, 5 new, complete");
    }
}
