//! How far sync is.

use std::fmt::Write as _;
use std::time::Duration;

use grasp_core::RelayUrl;
use grasp_core::sync::ConnectionStatus;
use grasp_sync::driver::RelayStatus;

use crate::instance::RelayStatuses;
use crate::web::{format_count, format_duration};

/// Returns the result of fetching from these relays, with the number of new events.
pub fn sync_result(from: &[RelayUrl], relays: &RelayStatuses, new: u64, took: Duration) -> String {
    let mut complete = 0;
    let mut others = String::new();
    for relay in from {
        match relays.get(relay) {
            Some(status) if status.is_complete() => complete += 1,
            Some(status) => {
                let _ = writeln!(others, "  {relay}: {}", reason_incomplete(status));
            }
            None => {
                let _ = writeln!(others, "  {relay}: no attempt to connect yet");
            }
        }
    }
    format!(
        "{complete} of {} complete, {} in {}\n{others}",
        format_count(from.len() as u64, "relay", "relays"),
        format_count(new, "new event", "new events"),
        format_duration(took.as_secs())
    )
}

/// Explains why a relay is incomplete.
fn reason_incomplete(relay: &RelayStatus) -> String {
    if let Some(failed) = relay.failed {
        return failed.why.to_string();
    }
    let refusal = relay
        .last_refusal
        .as_ref()
        .map(|text| text.as_str().to_owned());
    match (relay.connection, refusal) {
        (ConnectionStatus::ConnectedHistoricSyncFailures, Some(text)) => {
            format!("some of its history could not be fetched: {text}")
        }
        (ConnectionStatus::ConnectedHistoricSyncFailures, None) => {
            "some of its history could not be fetched".into()
        }
        (ConnectionStatus::Disconnected | ConnectionStatus::Connecting, _) => {
            "the connection was lost".into()
        }
        _ => "it was not complete within the time limit; set --timeout to wait longer".into(),
    }
}

/// Returns the number of events that are known to be missing.
pub fn missing_events(relay: &RelayStatus) -> u64 {
    relay.wanted.max(relay.backlog)
}

/// Returns how far sync with a relay is, at this number of events per second.
pub fn progress_text(relay: &RelayStatus, per_second: f64) -> String {
    let fetched = relay.counts.judged();
    let missing = missing_events(relay);
    let new = relay.counts.stored() + relay.counts.held;
    let state = match relay.connection {
        ConnectionStatus::Disconnected => "not connected",
        ConnectionStatus::Connecting => "connecting",
        ConnectionStatus::Syncing => {
            let known = fetched + missing;
            let left = match missing {
                0 => "asking for more".into(),
                // Unknown while pages are read.
                _ if per_second < 0.1 => "time left unknown".into(),
                _ => {
                    let seconds = (missing as f64 / per_second).ceil() as u64;
                    format!("{} left", format_duration(seconds))
                }
            };
            return format!(
                "{fetched} of {known} known events, {new} new, {per_second:.0}/s, {left}"
            );
        }
        ConnectionStatus::Connected => "complete",
        ConnectionStatus::ConnectedHistoricSyncFailures => "incomplete",
    };
    format!("{fetched} events, {new} new, {state}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(connection: ConnectionStatus, fetched: u64, wanted: u64) -> RelayStatus {
        let mut status = RelayStatus::default();
        status.connection = connection;
        status.counts.live = 5;
        status.counts.known = fetched - 5;
        status.wanted = wanted;
        status
    }

    #[test]
    fn progress_shows_fetched_events_rate_and_time_left() {
        let syncing = |fetched, wanted| relay(ConnectionStatus::Syncing, fetched, wanted);
        assert_eq!(
            progress_text(&syncing(250, 750), 50.0),
            "250 of 1000 known events, 5 new, 50/s, 15 seconds left"
        );
        assert!(progress_text(&syncing(5, 0), 0.0).ends_with("asking for more"));
        assert!(progress_text(&syncing(10, 90), 0.0).ends_with("time left unknown"));
    }

    #[test]
    fn a_complete_relay_is_shown_as_complete() {
        let done = relay(ConnectionStatus::Connected, 8, 0);
        assert_eq!(progress_text(&done, 1.0), "8 events, 5 new, complete");
    }
}
