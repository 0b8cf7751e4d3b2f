//! Receivers of the engine's reports: logs, metrics, tests.

use grasp_core::admission::SyncPath;
use grasp_core::limits::Health;

use crate::engine::{Report, Source};

/// Receives the engine's reports as they happen. Must not block.
pub trait Observer: Send + Sync + 'static {
    /// Handles one report.
    fn report(&self, report: &Report);
}

/// Writes reports to the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

impl Observer for Log {
    fn report(&self, report: &Report) {
        match report {
            Report::Discovered { relay } => tracing::info!(%relay, "following a relay"),
            Report::Retired { relay } => {
                tracing::info!(%relay, "no longer following this relay: no repository names it")
            }
            Report::Status { relay, status } => tracing::info!(%relay, ?status, "connection"),
            Report::Health { relay, health: Health::Dead, failing_for } => {
                tracing::error!(%relay, ?failing_for, "dead: it is tried once a day from now on");
            }
            Report::Health { relay, health, .. } => tracing::info!(%relay, ?health, "health"),
            Report::ConnectFailed { relay, why, failure } => {
                tracing::warn!(%relay, ?why, attempt = failure.attempt, retry_in = ?failure.retry_in, "could not connect");
            }
            Report::Stored { from: Source::Direct, .. } => {}
            Report::Stored { from: Source::Relay { relay, path }, count } => {
                tracing::debug!(%relay, ?path, count, "stored");
            }
            Report::Gap { relay, path: SyncPath::Daily, count } => {
                tracing::error!(%relay, count, "sustained sync gap: the daily pass found what live sync and catching up missed");
            }
            Report::Gap { relay, count, .. } => {
                tracing::warn!(%relay, count, "sync gap: catching up found what live sync missed");
            }
            Report::Lacking { relay, repo, count } => {
                // Names of repositories come from events, and may contain anything.
                let repo = repo.to_string().escape_debug().to_string();
                tracing::warn!(%relay, repo, count, "relay lacks events that we have");
            }
            Report::NoNegentropy { relay, refusal, text } => {
                let refusal = refusal.label();
                tracing::warn!(%relay, refusal, text = text.as_str(), "relay without NIP-77: fetching its history by pages");
            }
            Report::Refused { relay, refusal, text } => {
                tracing::warn!(%relay, refusal = refusal.label(), text = text.as_str(), "refused");
            }
            Report::GaveUp { relay, event } => {
                tracing::warn!(%relay, %event, "relay offered an event and never delivered it");
            }
            Report::Forged { relay, count } => {
                tracing::warn!(%relay, count, "disconnected: its events do not verify");
            }
            Report::GapSecond { relay, at } => {
                tracing::warn!(%relay, %at, "relay does not return all events of one second");
            }
            Report::Requested { relay, request } => tracing::trace!(%relay, ?request, "requested"),
            other => tracing::debug!(report = ?other, "sync"),
        }
    }
}

/// Ignores all reports.
impl Observer for () {
    fn report(&self, _: &Report) {}
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use crate::index::ConnectionStatus;

    use super::*;
    use crate::engine::{Failure, Fault};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(report: &Report) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, || Log.report(report));
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_report_has_the_level_that_the_design_gives_it() {
        let relay = || "wss://relay.example".parse().unwrap();
        let from = |path| Source::Relay { relay: relay(), path };
        let gap = |path| Report::Gap { relay: relay(), path, count: 2 };
        let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        let repo = format!("30617:{owner}:grasp").parse().unwrap();
        let day = Duration::from_secs(86_400);
        let failure = Failure { attempt: 3, failing_for: day, retry_in: Duration::from_secs(40) };
        let table = [
            (Report::Stored { from: from(SyncPath::Live), count: 1 }, "DEBUG", "stored"),
            (gap(SyncPath::CatchUp), " WARN", "count=2"),
            (gap(SyncPath::Daily), "ERROR", "sustained"),
            (
                Report::Status { relay: relay(), status: ConnectionStatus::Syncing },
                " INFO",
                "Syncing",
            ),
            (
                Report::ConnectFailed { relay: relay(), why: Fault::Unreachable, failure },
                " WARN",
                "attempt=3 retry_in=40s",
            ),
            (
                Report::Health { relay: relay(), health: Health::Dead, failing_for: day },
                "ERROR",
                "failing_for=86400s",
            ),
            (Report::Lacking { relay: relay(), repo, count: 7 }, " WARN", ":grasp\" count=7"),
        ];
        for (report, level, words) in table {
            let line = logged(&report);
            assert!(line.starts_with(level) && line.contains(words), "{level} {words}: {line}");
            assert!(line.contains("wss://relay.example"), "{line}");
        }
    }
}
