//! Metrics of the server.
#![expect(missing_docs, reason = "the help texts say the same")]

use super::Metric;

pub const EVENTS: Metric = Metric::counter(
    "grasp_events_total",
    "Events received, by source (client, live, catch_up, daily) and outcome.",
    &["source", "outcome"],
);

pub const REJECTIONS: Metric =
    Metric::counter("grasp_events_rejected_total", "Events refused, by reason.", &["reason"]);

pub const INGEST: Metric = Metric::histogram(
    "grasp_ingest_seconds",
    "Time from the arrival of a batch of events to its verdicts, which are durable.",
    &[],
);

pub const REQUESTS: Metric = Metric::counter(
    "grasp_http_requests_total",
    "HTTP requests except those of the relay's address, by what was requested and the class of the status.",
    &["what", "class"],
);

pub const REQUEST_TIME: Metric = Metric::histogram(
    "grasp_http_request_seconds",
    "Time from an HTTP request to the start of its response; for a push, until its commands were read.",
    &["what"],
);

pub const REQUESTS_OPEN: Metric = Metric::gauge(
    "grasp_http_requests_open",
    "HTTP requests whose response has not started, by what was requested.",
    &["what"],
);

pub const SOCKETS: Metric =
    Metric::gauge("grasp_relay_websockets", "Open websockets of clients.", &[]);

pub const LISTENERS: Metric = Metric::gauge(
    "grasp_relay_listeners",
    "Connections and feeds that have or had a subscription.",
    &[],
);

pub const SUBSCRIPTIONS: Metric =
    Metric::gauge("grasp_relay_subscriptions", "Live subscriptions of clients.", &[]);

pub const STORED: Metric = Metric::gauge(
    "grasp_store_events",
    "Events that are served, counted at most once a minute.",
    &[],
);

pub const REPOSITORIES: Metric = Metric::gauge(
    "grasp_repositories",
    "Repositories whose announcement is served, counted at most once a minute.",
    &[],
);

pub const STORE_BYTES: Metric =
    Metric::gauge("grasp_store_bytes", "Bytes of the event store's files, its log included.", &[]);

pub const GIT_BYTES: Metric = Metric::gauge(
    "grasp_git_bytes",
    "Bytes of git data on disk: repositories, and uploads that wait for their event.",
    &[],
);

pub const DISK_BYTES: Metric = Metric::gauge(
    "grasp_disk_bytes",
    "Bytes of all data on disk: events, git data and records.",
    &[],
);

pub const DAMAGED: Metric = Metric::gauge(
    "grasp_repositories_damaged",
    "Repositories whose git objects are not all on disk any more.",
    &[],
);

pub const STORE_UP: Metric = Metric::gauge(
    "grasp_store_up",
    "1 if the event store answered the last query, otherwise 0.",
    &[],
);

pub const HELD: Metric = Metric::gauge(
    "grasp_purgatory_held",
    "Events that wait for their git data, by kind (announcement, state, proposal).",
    &["kind"],
);

pub const HELD_BYTES: Metric = Metric::gauge(
    "grasp_purgatory_bytes",
    "Approximate bytes of events that wait for their git data.",
    &[],
);

pub const EXPIRED: Metric = Metric::gauge(
    "grasp_purgatory_expired",
    "Events that expired without their git data and are remembered.",
    &[],
);

pub const STAGED: Metric =
    Metric::gauge("grasp_purgatory_staged", "Events that uploads wait for.", &[]);

pub const STAGED_BYTES: Metric = Metric::gauge(
    "grasp_purgatory_staged_bytes",
    "Bytes of uploads that wait for their event.",
    &[],
);

pub const PENDING_CLEANUP: Metric = Metric::gauge(
    "grasp_purgatory_cleanup_tasks",
    "Cleanup tasks: data on disk that is still to be created or removed.",
    &[],
);

pub const PURGATORY_UP: Metric = Metric::gauge(
    "grasp_purgatory_up",
    "1 if purgatory works, 0 while its records cannot be written.",
    &[],
);

pub const BUILD: Metric =
    Metric::gauge("grasp_build_info", "Always 1; the label is the version of grasp.", &["version"]);

pub const STARTED: Metric =
    Metric::gauge("grasp_start_time_seconds", "Start of the process, in Unix seconds.", &[]);

pub const MEMORY: Metric =
    Metric::gauge("grasp_process_resident_bytes", "Resident memory of the process (Linux).", &[]);

pub const FILES: Metric = Metric::gauge(
    "grasp_process_open_files",
    "Open files and sockets of the process (Linux).",
    &[],
);

/// All metrics of the server, in the order of the reference.
pub const ALL: &[&Metric] = &[
    &BUILD,
    &STARTED,
    &MEMORY,
    &FILES,
    &EVENTS,
    &REJECTIONS,
    &INGEST,
    &SOCKETS,
    &LISTENERS,
    &SUBSCRIPTIONS,
    &REQUESTS,
    &REQUEST_TIME,
    &REQUESTS_OPEN,
    &STORED,
    &REPOSITORIES,
    &STORE_BYTES,
    &GIT_BYTES,
    &DISK_BYTES,
    &DAMAGED,
    &STORE_UP,
    &HELD,
    &HELD_BYTES,
    &EXPIRED,
    &STAGED,
    &STAGED_BYTES,
    &PENDING_CLEANUP,
    &PURGATORY_UP,
];
