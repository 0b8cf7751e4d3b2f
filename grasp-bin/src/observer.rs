//! What sync reports, in the log and in the metrics.

use std::sync::{Mutex, PoisonError};

use grasp_core::admission::SyncPath;
use grasp_core::limits::Health;
use grasp_core::sync::ConnectionStatus;
use grasp_relay::metrics::Metrics;
use grasp_sync::driver::Observer;
use grasp_sync::engine::{Report, Source};

use crate::metrics::sync::SyncMeter;

/// Logs and counts what sync reports.
///
/// The lock is free but for the moment of one report: they all come from one loop.
pub(crate) struct SyncObserver(Mutex<SyncMeter>);

impl SyncObserver {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self(Mutex::new(SyncMeter::new(metrics)))
    }
}

impl Observer for SyncObserver {
    fn report(&self, report: &Report) {
        log(report);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(report);
    }
}

/// What is normal is quiet; what an operator should look at is a warning; what lasts is an error.
fn log(report: &Report) {
    match report {
        Report::Discovered { relay } => tracing::info!(%relay, "following a relay"),
        Report::Retired { relay } => tracing::info!(%relay, "nobody needs this relay any more"),
        Report::Status { relay, status } => match status {
            ConnectionStatus::Syncing => tracing::info!(%relay, "connected"),
            ConnectionStatus::Connected => tracing::info!(%relay, "complete and live"),
            ConnectionStatus::ConnectedHistoricSyncFailures => {
                tracing::warn!(%relay, "live, but some history could not be had");
            }
            status => tracing::debug!(%relay, ?status, "connection"),
        },
        Report::Health { relay, health } => match health {
            Health::Healthy => tracing::info!(%relay, "healthy"),
            Health::Degraded => tracing::warn!(%relay, "failing; it is left alone for a while"),
            Health::Dead => {
                tracing::error!(%relay, "dead: it failed for too long, and is tried once a day")
            }
        },
        Report::Stored { from: Source::Direct, .. } => {}
        Report::Stored { from: Source::Relay { relay, path }, count } => {
            tracing::debug!(%relay, ?path, count, "stored");
        }
        Report::Gap { relay, path: SyncPath::Daily, count } => {
            tracing::error!(%relay, count, "a lasting gap: the daily pass found what live sync and catching up missed");
        }
        Report::Gap { relay, count, .. } => {
            tracing::warn!(%relay, count, "a gap: catching up found what live sync missed");
        }
        report => log_oddity(report),
    }
}

/// What relays do that they should not, and everything else. Their words are bounded and without control characters.
fn log_oddity(report: &Report) {
    match report {
        Report::Reliability { relay, seen } if seen.lacking > 0 => {
            tracing::warn!(%relay, lacking = seen.lacking, "lacks events that we have");
        }
        Report::NoNegentropy { relay, refusal, text } => {
            tracing::warn!(%relay, ?refusal, text = text.as_str(), "no set reconciliation; fetching by pages");
        }
        Report::Refused { relay, refusal, text } => {
            tracing::warn!(%relay, ?refusal, text = text.as_str(), "refused");
        }
        Report::GaveUp { relay, event } => {
            tracing::warn!(%relay, %event, "offered an event and never delivered it");
        }
        Report::GapSecond { relay, at } => {
            tracing::warn!(%relay, %at, "one second holds more events than the relay shows");
        }
        other => tracing::debug!(report = ?other, "sync"),
    }
}
