//! Reports of sync, in the log and in the metrics.

use std::sync::{Mutex, PoisonError};

use grasp_core::admission::SyncPath;
use grasp_core::limits::Health;
use grasp_relay::metrics::Metrics;
use grasp_relay::web::format_duration;
use grasp_sync::driver::Observer;
use grasp_sync::engine::{Report, Source};
use grasp_sync::index::ConnectionStatus;

use crate::metrics::sync::SyncMetrics;
use crate::rows::fault_text;

/// Logs and counts the reports of sync.
///
/// The lock is uncontended: all reports come from one task.
pub(crate) struct SyncObserver(Mutex<SyncMetrics>);

impl SyncObserver {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self(Mutex::new(SyncMetrics::new(metrics)))
    }
}

impl Observer for SyncObserver {
    fn report(&self, report: &Report) {
        log(report);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).record(report);
    }
}

/// Logs a report: problems that an operator should check as warnings, those that last as errors.
fn log(report: &Report) {
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
            tracing::warn!(
                %relay,
                attempt = failure.attempt,
                retry_in = %format_duration(failure.retry_in.as_secs()),
                "could not connect: {}",
                fault_text(*why)
            );
        }
        Report::Health { relay, health, failing_for } => match health {
            Health::Healthy => tracing::info!(%relay, "healthy"),
            Health::Degraded => tracing::debug!(%relay, ?health, "health"),
            Health::Dead => {
                let failing_for = format_duration(failing_for.as_secs());
                tracing::error!(%relay, %failing_for, "dead: connection attempts are rare from now on");
            }
        },
        Report::Stored { from: Source::Direct, .. } => {}
        Report::Stored { from: Source::Relay { relay, path }, count } => {
            tracing::debug!(%relay, ?path, count, "stored");
        }
        Report::Gap { relay, path: SyncPath::Daily, count } => {
            tracing::error!(%relay, count, "a lasting gap: the daily pass found events that live sync and catch-up missed");
        }
        Report::Gap { relay, count, .. } => {
            tracing::warn!(%relay, count, "a gap: catch-up found events that live sync missed");
        }
        report => log_relay_fault(report),
    }
}

/// Logs faults of relays, and every other report. Texts of relays are short and have no control characters.
fn log_relay_fault(report: &Report) {
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
        Report::Reliability { .. } => {}
        Report::CalledByName { relay } => {
            tracing::debug!(%relay, "the relay has few of the wanted events; asking by filters instead of a full comparison");
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use grasp_core::limits::PeerText;
    use grasp_core::{RelayUrl, RepoId};
    use grasp_sync::engine::{Failure, Fault};
    use grasp_sync::limits::Refusal;

    use super::*;

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log of these reports.
    fn logged(reports: &[Report]) -> String {
        let output = Output::default();
        let writer = output.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || writer.clone())
            .finish();
        let observer = SyncObserver::new(Metrics::default());
        tracing::subscriber::with_default(log, || {
            reports.iter().for_each(|report| observer.report(report));
        });
        let bytes = output.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn relay() -> RelayUrl {
        "wss://relay.example.com".parse().unwrap()
    }

    #[test]
    fn each_report_has_its_level() {
        let from = |path| Source::Relay { relay: relay(), path };
        let failure = Failure {
            attempt: 3,
            failing_for: Duration::from_secs(86_400),
            retry_in: Duration::from_secs(40),
        };
        let failed = Report::ConnectFailed { relay: relay(), why: Fault::Unreachable, failure };
        let repo = |name: &str| -> RepoId {
            format!(
                "30617:{}:{name}",
                "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
            )
            .parse()
            .unwrap()
        };
        let lacking = Report::Lacking { relay: relay(), repo: repo("grasp"), count: 7 };
        let gap = |path| Report::Gap { relay: relay(), path, count: 2 };
        let table = [
            (Report::Stored { from: from(SyncPath::Live), count: 1 }, "DEBUG", "stored"),
            (gap(SyncPath::CatchUp), " WARN", "a gap"),
            (gap(SyncPath::Daily), "ERROR", "a lasting gap"),
            (
                Report::Status { relay: relay(), status: ConnectionStatus::Syncing },
                " INFO",
                "connected",
            ),
            (failed, " WARN", "attempt=3 retry_in=40 seconds"),
            (lacking, " WARN", ":grasp\" count=7"),
        ];
        for (report, level, words) in table {
            let line = logged(&[report]);
            assert!(line.starts_with(level) && line.contains(words), "{level} {words}: {line}");
            assert!(line.contains("wss://relay.example.com"), "{line}");
        }
        let failing_for = Duration::from_secs(86_400);
        let dead = logged(&[Report::Health { relay: relay(), health: Health::Dead, failing_for }]);
        assert!(dead.starts_with("ERROR") && dead.contains("failing_for=1 day"), "{dead}");
    }

    #[test]
    fn texts_of_relays_are_short_and_on_one_line() {
        let text = PeerText::new(&format!("no\n ERROR all is lost {}", "x".repeat(100_000)));
        let refusal = Refusal::RetainedBytes { stated: None };
        let lines = logged(&[Report::Refused { relay: relay(), refusal, text }]);
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert!(lines.len() < 2_000, "{}", lines.len());
    }
}
