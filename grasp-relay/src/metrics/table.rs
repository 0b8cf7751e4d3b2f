//! Metrics of the server.

crate::metrics! { pub ALL:
    BUILD = Gauge "grasp_build_info" ["version"]
        "Always 1; the label is the version of grasp.";
    STARTED = Gauge "grasp_start_time_seconds" []
        "Start of the process, in Unix seconds.";
    MEMORY = Gauge "grasp_process_resident_bytes" []
        "Resident memory of the process (Linux).";
    FILES = Gauge "grasp_process_open_files" []
        "Open files and sockets of the process (Linux).";
    EVENTS = Counter "grasp_events_total" ["source", "outcome"]
        "Events received, by source (client, live, catch_up, daily) and outcome.";
    REJECTIONS = Counter "grasp_events_rejected_total" ["reason"]
        "Events refused, by reason.";
    INGEST = Histogram "grasp_ingest_seconds" []
        "Time from the arrival of a batch of events to its verdicts, which are durable.";
    SOCKETS = Gauge "grasp_relay_websockets" []
        "Open websockets of clients.";
    LISTENERS = Gauge "grasp_relay_listeners" []
        "Connections and feeds that have or had a subscription.";
    SUBSCRIPTIONS = Gauge "grasp_relay_subscriptions" []
        "Live subscriptions of clients.";
    REQUESTS = Counter "grasp_http_requests_total" ["what", "class"]
        "HTTP requests except those of the relay's address, by what was requested and the class of the status.";
    REQUEST_TIME = Histogram "grasp_http_request_seconds" ["what"]
        "Time from an HTTP request to the start of its response; for a push, until its commands were read.";
    REQUESTS_OPEN = Gauge "grasp_http_requests_open" ["what"]
        "HTTP requests whose response has not started, by what was requested.";
    STORED = Gauge "grasp_store_events" []
        "Events that are served, counted at most once a minute.";
    REPOSITORIES = Gauge "grasp_repositories" []
        "Repositories whose announcement is served, counted at most once a minute.";
    STORE_BYTES = Gauge "grasp_store_bytes" []
        "Bytes of the event store's files, its log included.";
    GIT_BYTES = Gauge "grasp_git_bytes" []
        "Bytes of git data on disk: repositories, and uploads that wait for their event.";
    DISK_BYTES = Gauge "grasp_disk_bytes" []
        "Bytes of all data on disk: events, git data and records.";
    DAMAGED = Gauge "grasp_repositories_damaged" []
        "Repositories whose git objects are not all on disk any more.";
    STORE_UP = Gauge "grasp_store_up" []
        "1 if the event store answered the last query, otherwise 0.";
    HELD = Gauge "grasp_purgatory_held" ["kind"]
        "Events that wait for their git data, by kind (announcement, state, proposal).";
    HELD_BYTES = Gauge "grasp_purgatory_bytes" []
        "Approximate bytes of events that wait for their git data.";
    EXPIRED = Gauge "grasp_purgatory_expired" []
        "Events that expired without their git data and are remembered.";
    STAGED = Gauge "grasp_purgatory_staged" []
        "Events that uploads wait for.";
    STAGED_BYTES = Gauge "grasp_purgatory_staged_bytes" []
        "Bytes of uploads that wait for their event.";
    PENDING_CLEANUP = Gauge "grasp_purgatory_cleanup_tasks" []
        "Cleanup tasks: data on disk that is still to be created or removed.";
    PURGATORY_UP = Gauge "grasp_purgatory_up" []
        "1 if purgatory works, 0 while its records cannot be written.";
    IS_WRITER = Gauge "grasp_node_is_writer" []
        "1 if this node admits events and pushes, 0 if it passes them on. Always 1 for a single process.";
    FEED_LAG = Gauge "grasp_node_feed_lag" []
        "Events that are committed and not published to the subscriptions of this node yet.";
    PACK_CACHE_BYTES = Gauge "grasp_pack_cache_bytes" []
        "Bytes of packs from the object store on the disk of this node.";
    PACK_CACHE_READS = Counter "grasp_pack_cache_reads_total" ["result"]
        "Reads of repositories, by result: all packs were on disk (hit), or some were downloaded first (miss).";
    PACK_UPLOADING = Gauge "grasp_pack_uploads_open" []
        "Files of packs that this node is uploading to the object store.";
    PACK_FAILURES = Counter "grasp_pack_storage_failures_total" []
        "Requests to the object store that failed, however often they were repeated.";
}
