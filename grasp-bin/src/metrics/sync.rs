//! Metrics of sync.

use std::collections::BTreeMap;

use grasp_core::RelayUrl;
use grasp_core::admission::SyncPath;
use grasp_core::limits::Health;
use grasp_relay::metrics::{Metric, Metrics};
use grasp_sync::engine::{Report, Request, Source};
use grasp_sync::index::ConnectionStatus;

pub(crate) const CONNECTED: Metric = Metric::gauge(
    "grasp_sync_relay_connected",
    "State of the connection: 0 disconnected, 1 connecting, 2 fetching history, 3 complete and live, 4 live but some history could not be fetched.",
    &["relay"],
);
pub(crate) const ATTEMPTS: Metric = Metric::counter(
    "grasp_sync_connection_attempts_total",
    "Attempts to connect, by result (success, failure).",
    &["relay", "result"],
);
pub(crate) const HEALTH: Metric = Metric::gauge(
    "grasp_sync_relay_status",
    "Health of the relay: 1 healthy, 2 degraded, 3 dead.",
    &["relay"],
);
pub(crate) const FAILURES: Metric = Metric::gauge(
    "grasp_sync_relay_failures",
    "Failed attempts to connect since the last success.",
    &["relay"],
);
pub(crate) const EVENTS: Metric = Metric::counter(
    "grasp_sync_events_total",
    "New events, by source (direct, live, catch_up, daily).",
    &["source"],
);
pub(crate) const GAPS: Metric = Metric::counter(
    "grasp_sync_gap_events_total",
    "Events that live sync missed and a catch-up found.",
    &["relay"],
);
pub(crate) const TRACKED: Metric =
    Metric::gauge("grasp_sync_relays_tracked", "Relays that are followed.", &[]);
pub(crate) const ONLINE: Metric =
    Metric::gauge("grasp_sync_relays_connected", "Relays that are connected.", &[]);
pub(crate) const DEAD: Metric = Metric::gauge(
    "grasp_sync_relays_dead",
    "Relays that have failed for so long that connection attempts are rare.",
    &[],
);
pub(crate) const UPTIME: Metric = Metric::gauge(
    "grasp_sync_relay_uptime_ratio",
    "Share of time that the relay was connected, from 0 to 1.",
    &["relay"],
);
pub(crate) const COVERAGE: Metric = Metric::gauge(
    "grasp_sync_relay_coverage_ratio",
    "Share of events that the relay had, of those it sent and those of ours it was compared with, from 0 to 1.",
    &["relay"],
);
pub(crate) const LACKING: Metric = Metric::gauge(
    "grasp_sync_relay_lacking",
    "Events of this server that the relay lacks, counted at each comparison.",
    &["relay"],
);
pub(crate) const RECEIVED: Metric =
    Metric::counter("grasp_sync_relay_events_total", "New events that the relay sent.", &["relay"]);
pub(crate) const UP: Metric = Metric::counter(
    "grasp_sync_relay_up_seconds_total",
    "Time that the relay was connected, updated when a connection ends and after each full pass.",
    &["relay"],
);
pub(crate) const DOWN: Metric = Metric::counter(
    "grasp_sync_relay_down_seconds_total",
    "Time that the relay was not connected, updated at the same times.",
    &["relay"],
);
pub(crate) const BATCHES: Metric = Metric::counter(
    "grasp_sync_batches_confirmed_total",
    "Batches of repositories and roots that were fetched completely.",
    &["relay"],
);
pub(crate) const PAGED: Metric = Metric::gauge(
    "grasp_sync_relay_without_negentropy",
    "1 for a relay whose history is fetched by pages, because it does not support NIP-77.",
    &["relay"],
);
pub(crate) const REFUSALS: Metric = Metric::counter(
    "grasp_sync_refusals_total",
    "Refusals by relays (CLOSED, NOTICE, OK), once per connection for each meaning.",
    &["meaning"],
);
pub(crate) const GIVEN_UP: Metric = Metric::counter(
    "grasp_sync_events_given_up_total",
    "Events that a relay offered and did not deliver.",
    &["relay"],
);
pub(crate) const FULL_SECONDS: Metric = Metric::counter(
    "grasp_sync_full_seconds_total",
    "Seconds of event time with more events than a relay returns for any request.",
    &["relay"],
);
pub(crate) const CONSOLIDATIONS: Metric = Metric::counter(
    "grasp_sync_consolidations_total",
    "Consolidations of live subscriptions.",
    &["relay"],
);
pub(crate) const REQUESTS: Metric = Metric::counter(
    "grasp_sync_requests_total",
    "Requests sent to a relay, by kind: REQ that stays open (live), for a page (page) or for ids (ids), and NEG-OPEN (compare).",
    &["relay", "request"],
);
pub(crate) const INTERRUPTIONS: Metric = Metric::gauge(
    "grasp_sync_relay_interruptions",
    "Interruptions of live subscriptions since the last full pass. Events that were published meanwhile with an older date come with the next full pass.",
    &["relay"],
);

/// All metrics of sync, in the order of the reference.
pub(crate) const ALL: &[&Metric] = &[
    &TRACKED,
    &ONLINE,
    &DEAD,
    &EVENTS,
    &CONNECTED,
    &HEALTH,
    &FAILURES,
    &ATTEMPTS,
    &GAPS,
    &RECEIVED,
    &UP,
    &DOWN,
    &UPTIME,
    &COVERAGE,
    &LACKING,
    &BATCHES,
    &PAGED,
    &REFUSALS,
    &GIVEN_UP,
    &FULL_SECONDS,
    &CONSOLIDATIONS,
    &REQUESTS,
    &INTERRUPTIONS,
];

/// Counts reports. Keeps the state of each relay for the totals.
pub(crate) struct SyncMetrics {
    metrics: Metrics,
    relays: BTreeMap<RelayUrl, LastReported>,
}

/// The last reported state of a relay.
#[derive(Clone, Copy)]
struct LastReported {
    status: ConnectionStatus,
    health: Health,
    failures: u32,
}

impl SyncMetrics {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics, relays: BTreeMap::new() }
    }

    /// Counts one report.
    pub(crate) fn record(&mut self, report: &Report) {
        let metrics = &self.metrics;
        match report {
            Report::Discovered { relay } => self.discovered(relay),
            Report::Retired { relay } => self.retired(relay),
            Report::Status { relay, status } => self.status_changed(relay, *status),
            Report::Health { relay, health, .. } => self.health_changed(relay, *health),
            Report::Stored { from, count } => {
                metrics.add(&EVENTS, &[source_label(from)], *count as u64);
                if let Source::Relay { relay, .. } = from {
                    metrics.add(&RECEIVED, &[relay.as_str()], *count as u64);
                }
            }
            Report::Gap { relay, count, .. } => {
                metrics.add(&GAPS, &[relay.as_str()], *count as u64);
            }
            Report::Reliability { relay, seen } => {
                let set = |metric, value: Option<f64>| {
                    if let Some(value) = value {
                        metrics.set(metric, &[relay.as_str()], value);
                    }
                };
                set(&UPTIME, seen.uptime());
                set(&COVERAGE, seen.coverage());
                set(&LACKING, Some(seen.lacking as f64));
                set(&UP, Some(seen.up.as_secs_f64()));
                set(&DOWN, Some(seen.down.as_secs_f64()));
            }
            Report::BatchConfirmed { relay, .. } => metrics.add(&BATCHES, &[relay.as_str()], 1),
            Report::NoNegentropy { relay, .. } => metrics.set(&PAGED, &[relay.as_str()], 1.0),
            Report::Negentropy { relay } => metrics.set(&PAGED, &[relay.as_str()], 0.0),
            Report::Refused { refusal, .. } => metrics.add(&REFUSALS, &[refusal.label()], 1),
            Report::GaveUp { relay, .. } => metrics.add(&GIVEN_UP, &[relay.as_str()], 1),
            Report::GapSecond { relay, .. } => metrics.add(&FULL_SECONDS, &[relay.as_str()], 1),
            Report::Consolidated { relay, .. } => {
                metrics.add(&CONSOLIDATIONS, &[relay.as_str()], 1);
            }
            Report::Requested { relay, request } => {
                metrics.add(&REQUESTS, &[relay.as_str(), request_label(*request)], 1);
            }
            Report::Interrupted { relay, times } => {
                metrics.set(&INTERRUPTIONS, &[relay.as_str()], *times as f64);
            }
            _ => {}
        }
    }

    fn discovered(&mut self, relay: &RelayUrl) {
        let new = LastReported {
            status: ConnectionStatus::Disconnected,
            health: Health::Healthy,
            failures: 0,
        };
        self.relays.entry(relay.clone()).or_insert(new);
        self.metrics.set(&CONNECTED, &[relay.as_str()], 0.0);
        self.metrics.set(&HEALTH, &[relay.as_str()], 1.0);
        self.update_totals();
    }

    fn retired(&mut self, relay: &RelayUrl) {
        self.relays.remove(relay);
        for metric in ALL.iter().filter(|metric| metric.labels.first() == Some(&"relay")) {
            self.metrics.remove(metric, relay.as_str());
        }
        self.update_totals();
    }

    fn status_changed(&mut self, relay: &RelayUrl, status: ConnectionStatus) {
        let Some(known) = self.relays.get_mut(relay) else { return };
        let was_trying = known.status == ConnectionStatus::Connecting;
        known.status = status;
        if was_trying {
            let result = if status.is_connected() { "success" } else { "failure" };
            known.failures = if status.is_connected() { 0 } else { known.failures + 1 };
            self.metrics.add(&ATTEMPTS, &[relay.as_str(), result], 1);
            self.metrics.set(&FAILURES, &[relay.as_str()], f64::from(known.failures));
        }
        self.metrics.set(&CONNECTED, &[relay.as_str()], connection_number(status));
        self.update_totals();
    }

    fn health_changed(&mut self, relay: &RelayUrl, health: Health) {
        let Some(known) = self.relays.get_mut(relay) else { return };
        known.health = health;
        let number = match health {
            Health::Healthy => 1.0,
            Health::Degraded => 2.0,
            Health::Dead => 3.0,
        };
        self.metrics.set(&HEALTH, &[relay.as_str()], number);
        self.update_totals();
    }

    fn update_totals(&self) {
        let count = |is_counted: fn(&LastReported) -> bool| {
            self.relays.values().filter(|relay| is_counted(relay)).count() as f64
        };
        self.metrics.set(&TRACKED, &[], self.relays.len() as f64);
        self.metrics.set(&ONLINE, &[], count(|relay| relay.status.is_connected()));
        self.metrics.set(&DEAD, &[], count(|relay| relay.health == Health::Dead));
    }
}

fn connection_number(status: ConnectionStatus) -> f64 {
    match status {
        ConnectionStatus::Disconnected => 0.0,
        ConnectionStatus::Connecting => 1.0,
        ConnectionStatus::Syncing => 2.0,
        ConnectionStatus::Connected => 3.0,
        ConnectionStatus::ConnectedHistoricSyncFailures => 4.0,
    }
}

fn request_label(request: Request) -> &'static str {
    match request {
        Request::Live => "live",
        Request::Page => "page",
        Request::Ids => "ids",
        Request::Compare => "compare",
    }
}

fn source_label(from: &Source) -> &'static str {
    match from {
        Source::Direct => "direct",
        Source::Relay { path: SyncPath::Live, .. } => "live",
        Source::Relay { path: SyncPath::CatchUp, .. } => "catch_up",
        Source::Relay { path: SyncPath::Daily, .. } => "daily",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use grasp_core::limits::PeerText;
    use grasp_sync::engine::PeerReliability;
    use grasp_sync::limits::Refusal;

    use super::*;

    fn recorded(reports: &[Report]) -> Metrics {
        let metrics = Metrics::default();
        let mut sync_metrics = SyncMetrics::new(metrics.clone());
        for report in reports {
            sync_metrics.record(report);
        }
        metrics
    }

    fn relay() -> RelayUrl {
        "wss://relay.example.com".parse().unwrap()
    }

    fn status(status: ConnectionStatus) -> Report {
        Report::Status { relay: relay(), status }
    }

    #[test]
    fn connection_states_are_numbers_and_attempts_are_counted() {
        use ConnectionStatus::{Connected, Connecting, Disconnected, Syncing};
        let name = relay();
        let mut reports = vec![Report::Discovered { relay: relay() }];
        reports.extend([Connecting, Disconnected, Connecting, Disconnected].map(status));
        let metrics = recorded(&reports);
        assert_eq!(metrics.value(&FAILURES, &[name.as_str()]), Some(2.0));
        assert_eq!(metrics.value(&CONNECTED, &[name.as_str()]), Some(0.0));
        assert_eq!(metrics.value(&ONLINE, &[]), Some(0.0));
        reports.extend(
            [Connecting, Syncing, Connected, Disconnected, Connecting, Syncing].map(status),
        );
        let metrics = recorded(&reports);
        assert_eq!(metrics.value(&ATTEMPTS, &[name.as_str(), "failure"]), Some(2.0));
        assert_eq!(metrics.value(&ATTEMPTS, &[name.as_str(), "success"]), Some(2.0));
        assert_eq!(metrics.value(&FAILURES, &[name.as_str()]), Some(0.0));
        assert_eq!(metrics.value(&CONNECTED, &[name.as_str()]), Some(2.0));
        assert_eq!(metrics.value(&ONLINE, &[]), Some(1.0));
        let failing = ConnectionStatus::ConnectedHistoricSyncFailures;
        assert_eq!((connection_number(Connected), connection_number(failing)), (3.0, 4.0));
    }

    #[test]
    fn a_dead_relay_is_counted_until_it_is_retired() {
        let mut reports = vec![
            Report::Discovered { relay: relay() },
            Report::Health {
                relay: relay(),
                health: Health::Dead,
                failing_for: Duration::from_secs(86_400),
            },
        ];
        let metrics = recorded(&reports);
        assert_eq!(metrics.value(&HEALTH, &[relay().as_str()]), Some(3.0));
        assert_eq!(
            (metrics.value(&TRACKED, &[]), metrics.value(&DEAD, &[])),
            (Some(1.0), Some(1.0))
        );
        reports.push(Report::Retired { relay: relay() });
        let metrics = recorded(&reports);
        assert_eq!(
            (metrics.value(&TRACKED, &[]), metrics.value(&DEAD, &[])),
            (Some(0.0), Some(0.0))
        );
        assert!(!metrics.render(ALL).contains("relay.example.com"));
    }

    #[test]
    fn events_are_counted_by_source_and_gaps_by_relay() {
        let from = |path| Source::Relay { relay: relay(), path };
        let metrics = recorded(&[
            Report::Stored { from: Source::Direct, count: 2 },
            Report::Stored { from: from(SyncPath::Live), count: 3 },
            Report::Stored { from: from(SyncPath::Daily), count: 4 },
            Report::Gap { relay: relay(), path: SyncPath::Daily, count: 4 },
        ]);
        for (source, count) in [("direct", 2.0), ("live", 3.0), ("daily", 4.0)] {
            assert_eq!(metrics.value(&EVENTS, &[source]), Some(count));
        }
        assert_eq!(metrics.value(&GAPS, &[relay().as_str()]), Some(4.0));
        assert_eq!(metrics.value(&RECEIVED, &[relay().as_str()]), Some(7.0));
    }

    #[test]
    fn requests_are_counted_by_relay_and_kind() {
        let sent = |request| Report::Requested { relay: relay(), request };
        let metrics = recorded(&[
            sent(Request::Live),
            sent(Request::Page),
            sent(Request::Page),
            Report::Interrupted { relay: relay(), times: 3 },
        ]);
        let name = relay();
        assert_eq!(metrics.value(&REQUESTS, &[name.as_str(), "live"]), Some(1.0));
        assert_eq!(metrics.value(&REQUESTS, &[name.as_str(), "page"]), Some(2.0));
        assert_eq!(metrics.value(&INTERRUPTIONS, &[name.as_str()]), Some(3.0));
    }

    #[test]
    fn reliability_is_shown_as_ratios() {
        let seen = PeerReliability {
            up: Duration::from_secs(30),
            down: Duration::from_secs(10),
            received: 1,
            compared: 3,
            lacking: 3,
            ..PeerReliability::default()
        };
        let metrics = recorded(&[Report::Reliability { relay: relay(), seen }]);
        assert_eq!(metrics.value(&UPTIME, &[relay().as_str()]), Some(0.75));
        assert_eq!(metrics.value(&COVERAGE, &[relay().as_str()]), Some(0.25));
        assert_eq!(metrics.value(&UP, &[relay().as_str()]), Some(30.0));
        assert_eq!(metrics.value(&DOWN, &[relay().as_str()]), Some(10.0));
    }

    #[test]
    fn texts_of_relays_are_no_labels() {
        let refusal = Refusal::RetainedBytes { stated: Some(77) };
        let text = PeerText::new("ERROR: text of a relay");
        let metrics = recorded(&[Report::Refused { relay: relay(), refusal, text }]);
        assert_eq!(metrics.value(&REFUSALS, &["retained_bytes"]), Some(1.0));
    }

    #[test]
    fn a_relay_that_supports_nip77_again_is_not_shown_as_paged() {
        let (refusal, text) = (Refusal::NegUnsupported, PeerText::new(""));
        let paged = Report::NoNegentropy { relay: relay(), refusal, text };
        let metrics = recorded(std::slice::from_ref(&paged));
        assert_eq!(metrics.value(&PAGED, &[relay().as_str()]), Some(1.0));
        let metrics = recorded(&[paged, Report::Negentropy { relay: relay() }]);
        assert_eq!(metrics.value(&PAGED, &[relay().as_str()]), Some(0.0));
    }
}
