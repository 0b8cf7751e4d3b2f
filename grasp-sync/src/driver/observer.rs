//! Receivers of the engine's reports: logs, metrics, tests.

use crate::index::ConnectionStatus;
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
                tracing::info!(%relay, "no repository names this relay any more")
            }
            Report::Status { relay, status } => match status {
                ConnectionStatus::Syncing => tracing::info!(%relay, "connected"),
                ConnectionStatus::Connected => tracing::info!(%relay, "complete and live"),
                ConnectionStatus::ConnectedHistoricSyncFailures => {
                    tracing::warn!(%relay, "live, but some history could not be fetched");
                }
                status => tracing::debug!(%relay, ?status, "connection"),
            },
            Report::ConnectFailed { relay, why, failure } => {
                let (attempt, retry_in) = (failure.attempt, failure.retry_in);
                tracing::warn!(%relay, attempt, ?retry_in, "could not connect: {why}");
            }
            Report::Health { relay, health: Health::Dead, failing_for } => {
                tracing::error!(%relay, ?failing_for, "dead: connection attempts are rare from now on");
            }
            Report::Health { relay, health, .. } => tracing::debug!(%relay, ?health, "health"),
            Report::Stored { from: Source::Relay { relay, path }, count } => {
                tracing::debug!(%relay, ?path, count, "stored");
            }
            Report::Gap { relay, path: SyncPath::Daily, count } => {
                tracing::error!(%relay, count, "a lasting gap: the daily pass found events that live sync and catch-up missed");
            }
            Report::Gap { relay, count, .. } => {
                tracing::warn!(%relay, count, "a gap: catch-up found events that live sync missed");
            }
            Report::Stored { from: Source::Direct, .. } | Report::Reliability { .. } => {}
            report => log_fault(report),
        }
    }
}

/// Logs faults of relays, and every other report. Texts of relays are short and have no control characters.
fn log_fault(report: &Report) {
    match report {
        Report::NoNegentropy { relay, refusal, text } => {
            let refusal = refusal.label();
            tracing::warn!(%relay, refusal, text = text.as_str(), "no set reconciliation; fetching by pages");
        }
        Report::Refused { relay, refusal, text } => {
            tracing::warn!(%relay, refusal = refusal.label(), text = text.as_str(), "refused");
        }
        Report::Lacking { relay, repo, count } => {
            // Any author can name a repository, with any characters.
            let repo = repo.to_string().escape_debug().to_string();
            tracing::warn!(%relay, repo, count, "the relay lacks events that this server has");
        }
        Report::GaveUp { relay, event } => {
            tracing::warn!(%relay, %event, "the relay offered an event and did not deliver it");
        }
        Report::Forged { relay, count } => {
            tracing::warn!(%relay, count, "disconnected: its events do not verify");
        }
        Report::GapSecond { relay, at } => {
            tracing::warn!(%relay, %at, "one second has more events than the relay returns");
        }
        Report::Requested { relay, request } => tracing::trace!(%relay, ?request, "requested"),
        other => tracing::debug!(report = ?other, "sync"),
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

    use grasp_core::limits::PeerText;

    use super::*;
    use crate::engine::{Failure, Fault};
    use crate::limits::Refusal;

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
            (gap(SyncPath::Daily), "ERROR", "a lasting gap"),
            (
                Report::Status { relay: relay(), status: ConnectionStatus::Syncing },
                " INFO",
                "connected",
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

    #[test]
    fn texts_of_relays_are_short_and_on_one_line() {
        let relay = "wss://relay.example".parse().unwrap();
        let text = PeerText::new(&format!("no\n ERROR all is lost {}", "x".repeat(100_000)));
        let refusal = Refusal::RetainedBytes { stated: None };
        let lines = logged(&Report::Refused { relay, refusal, text });
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert!(lines.len() < 2_000, "{}", lines.len());
    }
}
