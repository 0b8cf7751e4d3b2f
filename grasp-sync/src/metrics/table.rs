//! The table of the metrics.

use super::{Metric, MetricKind};

/// Relays that are followed.
pub(super) const TRACKED: Metric = Metric {
    name: "grasp_sync_relays_tracked",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Relays that are followed.",
};
/// Relays that are connected.
pub(super) const ONLINE: Metric = Metric {
    name: "grasp_sync_relays_connected",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Relays that are connected.",
};
/// Relays that have failed for so long that connection attempts are rare.
pub(super) const DEAD: Metric = Metric {
    name: "grasp_sync_relays_dead",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Relays that have failed for so long that connection attempts are rare.",
};
/// New events, by source (direct, live, catch_up, daily).
pub(super) const EVENTS: Metric = Metric {
    name: "grasp_sync_events_total",
    kind: MetricKind::Counter,
    labels: &["source"],
    help: "New events, by source (direct, live, catch_up, daily).",
};
/// State of the connection: 0 disconnected, 1 connecting, 2 fetching history, 3 complete and live, 4 live but some history could not be fetched.
pub(super) const CONNECTED: Metric = Metric {
    name: "grasp_sync_relay_connected",
    kind: MetricKind::Gauge,
    labels: &["relay"],
    help: "State of the connection: 0 disconnected, 1 connecting, 2 fetching history, 3 complete and live, 4 live but some history could not be fetched.",
};
/// Health of the relay: 1 healthy, 2 degraded, 3 dead.
pub(super) const HEALTH: Metric = Metric {
    name: "grasp_sync_relay_status",
    kind: MetricKind::Gauge,
    labels: &["relay"],
    help: "Health of the relay: 1 healthy, 2 degraded, 3 dead.",
};
/// Failed attempts to connect since the last success.
pub(super) const FAILURES: Metric = Metric {
    name: "grasp_sync_relay_failures",
    kind: MetricKind::Gauge,
    labels: &["relay"],
    help: "Failed attempts to connect since the last success.",
};
/// Attempts to connect, by result (success, failure).
pub(super) const ATTEMPTS: Metric = Metric {
    name: "grasp_sync_connection_attempts_total",
    kind: MetricKind::Counter,
    labels: &["relay", "result"],
    help: "Attempts to connect, by result (success, failure).",
};
/// Events that an open live subscription should have delivered and that a catch-up or the daily pass found.
pub(super) const GAPS: Metric = Metric {
    name: "grasp_sync_gap_events_total",
    kind: MetricKind::Counter,
    labels: &["relay"],
    help: "Events that an open live subscription should have delivered and that a catch-up or the daily pass found.",
};
/// New events that the relay sent.
pub(super) const RECEIVED: Metric = Metric {
    name: "grasp_sync_relay_events_total",
    kind: MetricKind::Counter,
    labels: &["relay"],
    help: "New events that the relay sent.",
};
/// Time that the relay was connected, updated when a connection ends and after each daily pass.
pub(super) const UP: Metric = Metric {
    name: "grasp_sync_relay_up_seconds_total",
    kind: MetricKind::Counter,
    labels: &["relay"],
    help: "Time that the relay was connected, updated when a connection ends and after each daily pass.",
};
/// Time that the relay was not connected, updated at the same times.
pub(super) const DOWN: Metric = Metric {
    name: "grasp_sync_relay_down_seconds_total",
    kind: MetricKind::Counter,
    labels: &["relay"],
    help: "Time that the relay was not connected, updated at the same times.",
};
/// Share of time that the relay was connected, from 0 to 1.
pub(super) const UPTIME: Metric = Metric {
    name: "grasp_sync_relay_uptime_ratio",
    kind: MetricKind::Gauge,
    labels: &["relay"],
    help: "Share of time that the relay was connected, from 0 to 1.",
};
/// Share of events that the relay had, of those it sent and those of ours it was compared with, from 0 to 1.
pub(super) const COVERAGE: Metric = Metric {
    name: "grasp_sync_relay_coverage_ratio",
    kind: MetricKind::Gauge,
    labels: &["relay"],
    help: "Share of events that the relay had, of those it sent and those of ours it was compared with, from 0 to 1.",
};
/// Events of repositories that list the relay, and that it lacks, as of the last full pass; up to 1000 of a repository.
pub(super) const MISSING: Metric = Metric {
    name: "grasp_sync_relay_missing",
    kind: MetricKind::Gauge,
    labels: &["relay"],
    help: "Events of repositories that list the relay, and that it lacks, as of the last full pass; up to 1000 of a repository.",
};
/// 1 for a relay whose history is fetched by pages, because it does not support NIP-77.
pub(super) const PAGED: Metric = Metric {
    name: "grasp_sync_relay_without_negentropy",
    kind: MetricKind::Gauge,
    labels: &["relay"],
    help: "1 for a relay whose history is fetched by pages, because it does not support NIP-77.",
};
/// Refusals by relays (CLOSED, NOTICE, OK), once per connection for each meaning.
pub(super) const REFUSALS: Metric = Metric {
    name: "grasp_sync_refusals_total",
    kind: MetricKind::Counter,
    labels: &["meaning"],
    help: "Refusals by relays (CLOSED, NOTICE, OK), once per connection for each meaning.",
};
/// Consolidations of live subscriptions.
pub(super) const CONSOLIDATIONS: Metric = Metric {
    name: "grasp_sync_consolidations_total",
    kind: MetricKind::Counter,
    labels: &["relay"],
    help: "Consolidations of live subscriptions.",
};
/// Requests sent to a relay, by kind: REQ that stays open (live), for a page (page) or for ids (ids), and NEG-OPEN (compare).
pub(super) const REQUESTS: Metric = Metric {
    name: "grasp_sync_requests_total",
    kind: MetricKind::Counter,
    labels: &["relay", "request"],
    help: "Requests sent to a relay, by kind: REQ that stays open (live), for a page (page) or for ids (ids), and NEG-OPEN (compare).",
};
/// Interruptions of live subscriptions since the last full pass. Events that were published meanwhile with an older date come with the next full pass.
pub(super) const INTERRUPTIONS: Metric = Metric {
    name: "grasp_sync_relay_interruptions",
    kind: MetricKind::Gauge,
    labels: &["relay"],
    help: "Interruptions of live subscriptions since the last full pass. Events that were published meanwhile with an older date come with the next full pass.",
};

/// Users who take part in served repositories, and whose relays are asked (GRASP-03).
pub(super) const OUTBOX_AUTHORS: Metric = Metric {
    name: "grasp_sync_outbox_authors",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Users who take part in served repositories, and whose relays are asked (GRASP-03).",
};
/// Relays that are asked for history because a user names them.
pub(super) const OUTBOX_RELAYS: Metric = Metric {
    name: "grasp_sync_outbox_relays",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Relays that are asked for history because a user names them.",
};
/// Relays of users whose history is being read, part by part.
pub(super) const OUTBOX_CURSORS: Metric = Metric {
    name: "grasp_sync_outbox_cursors",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Relays of users whose history is being read, part by part.",
};
/// Relays of users that are asked for history at the moment.
pub(super) const OUTBOX_WORKERS: Metric = Metric {
    name: "grasp_sync_outbox_workers",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Relays of users that are asked for history at the moment.",
};

/// All metrics of sync.
pub const ALL: &[&Metric] = &[
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
    &MISSING,
    &PAGED,
    &REFUSALS,
    &CONSOLIDATIONS,
    &REQUESTS,
    &INTERRUPTIONS,
    &OUTBOX_AUTHORS,
    &OUTBOX_RELAYS,
    &OUTBOX_CURSORS,
    &OUTBOX_WORKERS,
];
