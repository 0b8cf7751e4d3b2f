//! The status of each relay, for operators.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::admission::SyncPath;
use grasp_core::limits::{Health, PeerText};
use grasp_core::nostr::types::Timestamp;
use grasp_core::{Mono, Now, RelayUrl};

use crate::engine::{Fault, Input, Judged, Outcome, PeerReliability, Report, Said, Source};
use crate::outbox::OutboxStats;
use grasp_core::sync::ConnectionStatus;

/// The status of sync.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// The time of this status.
    pub at: Timestamp,
    /// Every relay that is followed.
    pub relays: BTreeMap<RelayUrl, RelayStatus>,
    /// Figures of the outbox, if it runs.
    pub outbox: Option<OutboxStats>,
    /// True while the local relay streams what is stored, or news of it are collected: they may lead to more requests.
    pub is_collecting: bool,
}

/// The status of one relay. Counts are of this process.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RelayStatus {
    /// The status of the connection.
    pub connection: ConnectionStatus,
    /// The time of its last change.
    pub since: Timestamp,
    /// The health of the relay.
    pub health: Health,
    /// The time at which everything requested was last here.
    pub synced_at: Option<Timestamp>,
    /// Events received and not judged yet.
    pub backlog: u64,
    /// Events offered and not fetched yet, as far as known.
    pub wanted: u64,
    /// Judgements of received events.
    pub counts: Counts,
    /// Events that an open live subscription should have delivered and that a catch-up or the daily pass found.
    pub gaps: u64,
    /// Interruptions of live subscriptions since the last full pass; events that were published then with an older
    /// date come with the next.
    pub interruptions: u64,
    /// Connections made.
    pub connects: u64,
    /// Attempts to connect that failed.
    pub failures: u64,
    /// Batches of repositories and threads that it gave completely.
    pub batches: u64,
    /// Its last refusal, in its own words.
    pub last_refusal: Option<PeerText>,
    /// The last attempt to connect, if it failed.
    pub failed: Option<Failed>,
    /// The time before which no attempt to connect is made, if it failed before.
    pub retry_at: Option<Timestamp>,
    /// Its last reliability report.
    pub reliability: Option<PeerReliability>,
}

/// A failed attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The fault.
    pub why: Fault,
    /// Failed attempts since the relay was last connected.
    pub attempts: u32,
    /// The time of the next attempt.
    pub retry_at: Timestamp,
}

/// Events that a relay delivered, by judgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// New, by a live subscription.
    pub live: u64,
    /// New, by a catch-up.
    pub catch_up: u64,
    /// New, by a daily pass.
    pub daily: u64,
    /// Held until their git data is here.
    pub held: u64,
    /// Known already.
    pub known: u64,
    /// Refused by the local relay.
    pub refused: u64,
    /// Forged.
    pub forged: u64,
}

impl Counts {
    /// Returns the number of new events.
    pub fn stored(&self) -> u64 {
        self.live + self.catch_up + self.daily
    }

    /// Returns the number of judged events.
    pub fn judged(&self) -> u64 {
        self.stored() + self.held + self.known + self.refused + self.forged
    }

    fn add(&mut self, judged: &[Judged]) {
        for one in judged {
            match one.outcome {
                // Counted by a report, which has the path.
                Outcome::Stored => {}
                Outcome::Held => self.held += 1,
                Outcome::Known => self.known += 1,
                Outcome::Refused { .. } => self.refused += 1,
                Outcome::Forged => self.forged += 1,
            }
        }
    }

    fn add_stored(&mut self, path: SyncPath, count: usize) {
        let place = match path {
            SyncPath::Live => &mut self.live,
            SyncPath::CatchUp => &mut self.catch_up,
            SyncPath::Daily => &mut self.daily,
        };
        *place += count as u64;
    }
}

/// An attempt to connect that is further away is not waited for.
const SOON: Duration = Duration::from_secs(30);

impl RelayStatus {
    /// Returns whether everything that is wanted from it is here.
    pub fn is_complete(&self) -> bool {
        self.connection == ConnectionStatus::Connected && self.backlog == 0
    }

    /// Returns whether nothing more is to be expected from it within half a minute.
    fn has_settled(&self, now: Timestamp) -> bool {
        match self.connection {
            ConnectionStatus::Connected | ConnectionStatus::ConnectedHistoricSyncFailures => {
                self.backlog == 0
            }
            ConnectionStatus::Disconnected => self.retry_at.is_some_and(|at| at > now + SOON),
            ConnectionStatus::Connecting | ConnectionStatus::Syncing => false,
        }
    }

    /// Returns the number of failed attempts since the relay was last connected, also by an earlier process.
    pub fn consecutive_failures(&self) -> u32 {
        match (&self.failed, &self.reliability) {
            (Some(failed), _) => failed.attempts,
            (None, Some(seen)) => seen.consecutive_failures,
            (None, None) => 0,
        }
    }

    fn set_connection(&mut self, now: Timestamp, connection: ConnectionStatus) {
        let is_made = !self.connection.is_connected() && connection.is_connected();
        self.connects += u64::from(is_made);
        (self.connection, self.since) = (connection, now);
        match connection {
            ConnectionStatus::Connected => self.synced_at = Some(now),
            ConnectionStatus::Disconnected => self.backlog = 0,
            ConnectionStatus::Syncing => {
                self.failed = None;
                if let Some(seen) = &mut self.reliability {
                    seen.consecutive_failures = 0;
                }
            }
            _ => {}
        }
    }
}

impl Status {
    /// Returns whether every relay that is followed has given everything. It may not be for long: a repository that is
    /// announced leads to more requests.
    pub fn is_complete(&self) -> bool {
        !self.is_collecting && self.relays.values().all(RelayStatus::is_complete)
    }

    /// Returns whether nothing more is to be expected soon.
    pub(super) fn has_settled(&self) -> bool {
        !self.is_collecting && self.relays.values().all(|relay| relay.has_settled(self.at))
    }

    /// Sets when relays are dialled again.
    pub(super) fn retries<'a>(
        &mut self,
        now: Now,
        retries: impl Iterator<Item = (&'a RelayUrl, Option<Mono>)>,
    ) {
        for (relay, retry_at) in retries {
            let retry_at = retry_at.map(|at| now.unix + (at - now.mono));
            self.with(relay, |known| known.retry_at = retry_at);
        }
    }

    /// Sets the number of events that each relay has offered and not delivered yet.
    pub(super) fn wanted<'a>(&mut self, wanted: impl Iterator<Item = (&'a RelayUrl, usize)>) {
        for (relay, count) in wanted {
            self.with(relay, |known| known.wanted = count as u64);
        }
    }

    /// Updates from an input of the engine.
    pub(super) fn note_input(&mut self, input: &Input) {
        match input {
            Input::Heard {
                relay,
                said: Said::Delivered { rows, .. },
                ..
            } => {
                self.with(relay, |known| known.backlog += rows.len() as u64);
            }
            Input::Ingested { relay, judged, .. } => self.with(relay, |known| {
                known.backlog = known.backlog.saturating_sub(judged.len() as u64);
                known.counts.add(judged);
            }),
            _ => {}
        }
    }

    /// Updates from a report of the engine.
    pub(super) fn note_report(&mut self, now: Timestamp, report: &Report) {
        match report {
            Report::Discovered { relay } => {
                let new = RelayStatus {
                    since: now,
                    ..RelayStatus::default()
                };
                self.relays.entry(relay.clone()).or_insert(new);
            }
            Report::Retired { relay } => _ = self.relays.remove(relay),
            Report::Stored {
                from: Source::Relay { relay, path },
                count,
            } => {
                self.with(relay, |known| known.counts.add_stored(*path, *count));
            }
            Report::Status { relay, status } => {
                self.with(relay, |known| known.set_connection(now, *status))
            }
            Report::Health { relay, health, .. } => {
                self.with(relay, |known| known.health = *health);
            }
            Report::ConnectFailed {
                relay,
                why,
                failure,
            } => {
                let failed = Failed {
                    why: *why,
                    attempts: failure.attempt,
                    retry_at: now + failure.retry_in,
                };
                self.with(relay, |known| {
                    known.failures += 1;
                    known.failed = Some(failed);
                });
            }
            Report::Gap { relay, count, .. } => {
                self.with(relay, |known| known.gaps += *count as u64);
            }
            Report::Interrupted { relay, times } => {
                self.with(relay, |known| known.interruptions = *times as u64);
            }
            Report::Reliability { relay, seen } => {
                self.with(relay, |known| known.reliability = Some(seen.clone()));
            }
            Report::Lacking { relay, repo, count } => self.with(relay, |known| {
                let seen = known.reliability.get_or_insert_default();
                seen.missing.insert(repo.clone(), *count as u64);
            }),
            Report::BatchConfirmed { relay, .. } => self.with(relay, |known| known.batches += 1),
            Report::NoNegentropy { relay, text, .. } | Report::Refused { relay, text, .. } => {
                self.with(relay, |known| known.last_refusal = Some(text.clone()));
            }
            _ => {}
        }
    }

    fn with(&mut self, relay: &RelayUrl, note: impl FnOnce(&mut RelayStatus)) {
        if let Some(known) = self.relays.get_mut(relay) {
            note(known);
        }
    }
}

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
            Report::ConnectFailed {
                relay,
                why,
                failure,
            } => {
                let attempt = failure.attempt;
                let retry_in = failure.retry_in;
                tracing::warn!(%relay, attempt, ?retry_in, "could not connect: {why}");
            }
            Report::Health {
                relay,
                health: Health::Dead,
                failing_for,
            } => {
                tracing::error!(%relay, ?failing_for, "dead: one connection attempt a day from now on");
            }
            Report::Health { relay, health, .. } => tracing::debug!(%relay, ?health, "health"),
            Report::Stored {
                from: Source::Relay { relay, path },
                count,
            } => {
                tracing::debug!(%relay, ?path, count, "stored events of a relay");
            }
            Report::Gap {
                relay,
                path: SyncPath::Daily,
                count,
            } => {
                tracing::error!(%relay, count, "a lasting gap: the daily pass found events that live sync and catch-up missed");
            }
            Report::Gap { relay, count, .. } => {
                tracing::warn!(%relay, count, "a gap: catch-up found events that live sync missed");
            }
            Report::Stored {
                from: Source::Direct,
                ..
            }
            | Report::Reliability { .. } => {}
            report => log_fault(report),
        }
    }
}

/// Logs faults of relays, and every other report. Texts of relays are short and have no control characters.
fn log_fault(report: &Report) {
    match report {
        Report::NoNegentropy {
            relay,
            refusal,
            text,
        } => {
            let refusal = refusal.label();
            let text = text.as_str();
            tracing::warn!(%relay, refusal, text, "the relay does not support NIP-77; fetching history by pages");
        }
        Report::Refused {
            relay,
            refusal,
            text,
        } => {
            tracing::warn!(%relay, refusal = refusal.label(), text = text.as_str(), "the relay refused a request");
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
        let from = |path| Source::Relay {
            relay: relay(),
            path,
        };
        let gap = |path| Report::Gap {
            relay: relay(),
            path,
            count: 2,
        };
        let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        let repo = format!("30617:{owner}:grasp").parse().unwrap();
        let day = Duration::from_secs(86_400);
        let failure = Failure {
            attempt: 3,
            failing_for: day,
            retry_in: Duration::from_secs(40),
        };
        let table = [
            (
                Report::Stored {
                    from: from(SyncPath::Live),
                    count: 1,
                },
                "DEBUG",
                "stored events",
            ),
            (gap(SyncPath::CatchUp), " WARN", "count=2"),
            (gap(SyncPath::Daily), "ERROR", "a lasting gap"),
            (
                Report::Status {
                    relay: relay(),
                    status: ConnectionStatus::Syncing,
                },
                " INFO",
                "connected",
            ),
            (
                Report::ConnectFailed {
                    relay: relay(),
                    why: Fault::Unreachable,
                    failure,
                },
                " WARN",
                "attempt=3 retry_in=40s",
            ),
            (
                Report::Health {
                    relay: relay(),
                    health: Health::Dead,
                    failing_for: day,
                },
                "ERROR",
                "failing_for=86400s",
            ),
            (
                Report::Lacking {
                    relay: relay(),
                    repo,
                    count: 7,
                },
                " WARN",
                ":grasp\" count=7",
            ),
        ];
        for (report, level, words) in table {
            let line = logged(&report);
            assert!(
                line.starts_with(level) && line.contains(words),
                "{level} {words}: {line}"
            );
            assert!(line.contains("wss://relay.example"), "{line}");
        }
    }

    #[test]
    fn texts_of_relays_are_short_and_on_one_line() {
        let relay = "wss://relay.example".parse().unwrap();
        let text = PeerText::new(&format!("no\n ERROR all is lost {}", "x".repeat(100_000)));
        let refusal = Refusal::RetainedBytes { stated: None };
        let lines = logged(&Report::Refused {
            relay,
            refusal,
            text,
        });
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert!(lines.len() < 2_000, "{}", lines.len());
    }
}
