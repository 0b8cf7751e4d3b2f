//! What the server itself counts and measures.

use super::Metric;

/// Events brought to us, by where they came from and what became of them.
pub const EVENTS: Metric = Metric::counter(
    "grasp_events_total",
    "Events brought to this server, by where from (client, live, catch_up, daily) and what became of them.",
    &["source", "outcome"],
);

/// Why events were refused.
pub const REJECTIONS: Metric =
    Metric::counter("grasp_events_rejected_total", "Events refused, by reason.", &["reason"]);

/// How long a batch of events takes from arrival to its verdicts.
pub const INGEST: Metric = Metric::times(
    "grasp_ingest_seconds",
    "How long a batch of events takes from arrival to durable verdicts.",
    &[],
);

/// Requests to the git host and the pages.
pub const REQUESTS: Metric = Metric::counter(
    "grasp_http_requests_total",
    "HTTP requests beside the relay's own address, by what was asked and the class of the answer.",
    &["what", "class"],
);

/// How long such requests take until their answer begins.
pub const REQUEST_TIME: Metric = Metric::times(
    "grasp_http_request_seconds",
    "How long an HTTP request takes until its answer begins; for a push, until its commands were read.",
    &["what"],
);

/// Requests that are being answered.
pub const REQUESTS_OPEN: Metric = Metric::gauge(
    "grasp_http_requests_open",
    "HTTP requests whose answer has not begun, by what was asked.",
    &["what"],
);

/// Websockets that are open.
pub const SOCKETS: Metric =
    Metric::gauge("grasp_relay_websockets", "Websockets of clients that are open.", &[]);

/// Clients with subscriptions.
pub const LISTENERS: Metric = Metric::gauge(
    "grasp_relay_listeners",
    "Connections and feeds that have or had a subscription.",
    &[],
);

/// Their subscriptions.
pub const SUBSCRIPTIONS: Metric =
    Metric::gauge("grasp_relay_subscriptions", "Live subscriptions of clients.", &[]);

/// Events that are served.
pub const STORED: Metric = Metric::gauge(
    "grasp_store_events",
    "Events that are served, counted at most once a minute.",
    &[],
);

/// Repositories that are served.
pub const REPOSITORIES: Metric = Metric::gauge(
    "grasp_repositories",
    "Repositories whose announcement is served, counted at most once a minute.",
    &[],
);

/// What the store takes on disk.
pub const STORE_BYTES: Metric =
    Metric::gauge("grasp_store_bytes", "Bytes of the event store's files, its log included.", &[]);

/// Git data on disk.
pub const GIT_BYTES: Metric = Metric::gauge(
    "grasp_git_bytes",
    "Bytes of git data on disk: repositories, and uploads that wait for their event.",
    &[],
);

/// Everything on disk.
pub const DISK_BYTES: Metric = Metric::gauge(
    "grasp_disk_bytes",
    "Bytes of everything that is kept on disk: events, git data and records.",
    &[],
);

/// Repositories that lack objects.
pub const DAMAGED: Metric = Metric::gauge(
    "grasp_repositories_damaged",
    "Repositories whose git objects are not all on disk any more.",
    &[],
);

/// Whether the store answers.
pub const STORE_UP: Metric = Metric::gauge(
    "grasp_store_up",
    "Whether the event store answered the last question: 1 or 0.",
    &[],
);

/// Events that wait for their git data.
pub const HELD: Metric = Metric::gauge(
    "grasp_purgatory_held",
    "Events that wait for their git data, by kind (announcement, state, proposal).",
    &["kind"],
);

/// What they take.
pub const HELD_BYTES: Metric = Metric::gauge(
    "grasp_purgatory_bytes",
    "Bytes of events that wait for their git data, roughly.",
    &[],
);

/// Expired events that are remembered.
pub const SHELVED: Metric = Metric::gauge(
    "grasp_purgatory_shelved",
    "Events that expired without their git data and are remembered.",
    &[],
);

/// Uploads that wait.
pub const STAGED: Metric =
    Metric::gauge("grasp_purgatory_staged", "Events that uploads wait for.", &[]);

/// What they take.
pub const STAGED_BYTES: Metric = Metric::gauge(
    "grasp_purgatory_staged_bytes",
    "Bytes of uploads that wait for their event.",
    &[],
);

/// Chores that are owed.
pub const OWED: Metric = Metric::gauge(
    "grasp_purgatory_chores_owed",
    "Things to be made or removed on disk that are not done yet.",
    &[],
);

/// Whether purgatory works.
pub const PURGATORY_UP: Metric = Metric::gauge(
    "grasp_purgatory_up",
    "Whether purgatory takes orders: 1, or 0 while its journal cannot be written.",
    &[],
);

/// What runs.
pub const BUILD: Metric =
    Metric::gauge("grasp_build_info", "Always 1; the label says what runs.", &["version"]);

/// Since when.
pub const STARTED: Metric =
    Metric::gauge("grasp_start_time_seconds", "When the process started, in Unix time.", &[]);

/// Memory.
pub const MEMORY: Metric =
    Metric::gauge("grasp_process_resident_bytes", "Memory that the process takes (Linux).", &[]);

/// Open files.
pub const FILES: Metric = Metric::gauge(
    "grasp_process_open_files",
    "Files and sockets that the process has open (Linux).",
    &[],
);

/// All of them, in the order of the reference.
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
    &SHELVED,
    &STAGED,
    &STAGED_BYTES,
    &OWED,
    &PURGATORY_UP,
];
