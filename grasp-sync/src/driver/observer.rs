//! Whoever wants to know what happens: logs, metrics, tests.

use crate::engine::{Report, Source};

/// Is told what the engine reports, as it happens. Must not wait for anything.
pub trait Observer: Send + Sync + 'static {
    /// Something worth knowing happened.
    fn report(&self, report: &Report);
}

/// Writes reports to the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

impl Observer for Log {
    fn report(&self, report: &Report) {
        match report {
            Report::Discovered { relay } => tracing::info!(%relay, "following a relay"),
            Report::Retired { relay } => tracing::info!(%relay, "nobody needs this relay any more"),
            Report::Status { relay, status } => tracing::info!(%relay, ?status, "connection"),
            Report::Health { relay, health } => tracing::info!(%relay, ?health, "health"),
            Report::ConnectFailed { relay, why, failure } => {
                tracing::warn!(%relay, ?why, attempt = failure.attempt, retry_in = ?failure.retry_in, "could not connect");
            }
            Report::Stored { from: Source::Direct, .. } => {}
            Report::Stored { from: Source::Relay { relay, path }, count } => {
                tracing::debug!(%relay, ?path, count, "stored");
            }
            Report::Gap { relay, path, count } => {
                tracing::info!(%relay, ?path, count, "found what live sync had missed");
            }
            Report::NoNegentropy { relay, refusal, text } => {
                tracing::warn!(%relay, ?refusal, text = text.as_str(), "no set reconciliation here");
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
            Report::Requested { relay, request } => tracing::trace!(%relay, ?request, "requested"),
            other => tracing::debug!(report = ?other, "sync"),
        }
    }
}

/// Tells nobody.
impl Observer for () {
    fn report(&self, _: &Report) {}
}
