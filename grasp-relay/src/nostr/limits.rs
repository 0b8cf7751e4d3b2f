//! What one peer, and all peers together, may ask of us.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Every bound of the relay. What NIP-11 has a field for is advertised from here, so that it is always true.
///
/// The defaults are wide enough for the busiest known git relay's clients and for a peer that reconciles everything
/// it has; a limit that is hit is always answered with its reason.
///
/// ```
/// use grasp_relay::nostr::Limits;
///
/// let limits = Limits { subscriptions: 20, ..Limits::default() };
/// assert_eq!(limits.message_bytes, 5 * 1024 * 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest event, as the JSON text a client sends; a state (30618) may have 1 MiB in any case. Valid patches reach
    /// about 150 KiB.
    pub event_bytes: usize,
    /// Largest websocket message; a bigger one ends the connection. Peers ask with long lists of values.
    pub message_bytes: usize,
    /// Longest subscription id, in characters.
    pub subscription_id_chars: usize,
    /// Open subscriptions per connection; a COUNT under way takes a slot too.
    pub subscriptions: usize,
    /// Filters in one REQ or COUNT.
    pub filters: usize,
    /// Values in one filter, all its lists together; ten times as many in one REQ or COUNT.
    pub filter_values: usize,
    /// Bytes of filter text that one connection's open subscriptions may hold.
    pub subscription_bytes: usize,
    /// Bytes that the filters of all connections' open subscriptions, and of their COUNTs under way, may take: their
    /// text and 384 for each value. One address has at most a quarter.
    pub total_subscription_bytes: usize,
    /// Most events a filter is answered with from history, whatever its `limit` says.
    pub max_limit: usize,
    /// Events a filter without `limit` is answered with from history.
    pub default_limit: usize,

    /// Live events waiting for one connection; one more closes the subscription it was meant for.
    pub live_queue_events: usize,
    /// Bytes of live events waiting for one connection; the same consequence.
    pub live_queue_bytes: usize,
    /// How long after the end of history an event may still come again through the live path, to be told apart.
    pub settle: Duration,

    /// Open negentropy sessions per connection.
    pub neg_sessions: usize,
    /// Items in the set of one negentropy session.
    pub neg_items: usize,
    /// Items in all negentropy sessions of one connection.
    pub neg_connection_items: usize,
    /// Items in all negentropy sessions of all connections, at 40 bytes each. One address has at most a quarter.
    pub neg_total_items: usize,
    /// Bytes of negentropy messages of all connections that may wait for their turn. One address has at most a quarter.
    pub neg_waiting_bytes: usize,
    /// How long a negentropy session may go unused.
    pub neg_idle: Duration,
    /// Largest negentropy answer in bytes, before hex. Kept within [`Limits::NEG_FRAMES`].
    pub neg_frame_bytes: usize,
    /// Negentropy sets built or compared at once, on threads of their own. One address has at most a quarter.
    pub neg_jobs: usize,

    /// Messages of any kind per connection and minute. Those above are refused one by one; as many refused again,
    /// and the connection is closed.
    pub messages_per_minute: u32,
    /// EVENTs per connection and minute.
    pub events_per_minute: u32,
    /// EVENTs per address (IPv4) and minute, over all its connections; half as many per /64 (IPv6). Fewer while other
    /// networks send many: all together may send four times as many.
    pub events_per_minute_per_ip: u32,
    /// REQ, COUNT and NEG-OPEN per connection and minute; going on with a negentropy session is free.
    pub queries_per_minute: u32,
    /// Keys that one connection may authenticate as (NIP-42).
    pub auth_keys: usize,
    /// AUTHs that may fail before the connection is closed.
    pub auth_failures: u32,
    /// How far the clock of an authenticating client may be off.
    pub auth_window: Duration,

    /// Events of one connection handed to ingest at once; as many again may wait, then its socket is not read.
    pub ingest_batch: usize,

    /// Websockets at once.
    pub connections: usize,
    /// TCP connections at once, websockets included. Beyond it, new ones wait in the listener's backlog.
    pub tcp_connections: usize,
    /// Connections at once per address (IPv4) or /64 (IPv6). A trusted proxy's own address is not counted, the
    /// address it forwards for is.
    pub connections_per_ip: usize,
    /// How long a request head may take, and how long an idle keep-alive connection is kept.
    pub header_timeout: Duration,
    /// Largest request head in bytes.
    pub header_bytes: usize,
    /// Silence after which a websocket is pinged.
    pub ping_after: Duration,
    /// Silence after which a websocket is closed.
    pub idle_timeout: Duration,
    /// How long one write may be stuck before its connection is given up.
    pub write_timeout: Duration,
    /// How long a shutdown waits for connections to finish.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            event_bytes: 256 * 1024,
            message_bytes: 5 * 1024 * 1024,
            subscription_id_chars: 64,
            subscriptions: 500,
            filters: 100,
            filter_values: 10_000,
            subscription_bytes: 5 * 1024 * 1024,
            total_subscription_bytes: 256 * 1024 * 1024,
            max_limit: 5_000,
            default_limit: 500,
            live_queue_events: 10_000,
            live_queue_bytes: 16 * 1024 * 1024,
            settle: Duration::from_secs(10),
            neg_sessions: 20,
            neg_items: 500_000,
            neg_connection_items: 1_000_000,
            neg_total_items: 4_000_000,
            neg_waiting_bytes: 64 * 1024 * 1024,
            neg_idle: Duration::from_secs(120),
            neg_frame_bytes: 500_000,
            neg_jobs: 8,
            messages_per_minute: 12_000,
            events_per_minute: 6_000,
            events_per_minute_per_ip: 60_000,
            queries_per_minute: 1_200,
            auth_keys: 16,
            auth_failures: 10,
            auth_window: Duration::from_secs(600),
            ingest_batch: 256,
            connections: 4_096,
            tcp_connections: 8_192,
            connections_per_ip: 128,
            header_timeout: Duration::from_secs(10),
            header_bytes: 32 * 1024,
            ping_after: Duration::from_secs(45),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(60),
            grace: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Frames of negentropy that every peer can read.
    pub const NEG_FRAMES: RangeInclusive<usize> = 4_096..=500_000;

    /// The frame limit that negentropy is really given.
    pub(crate) fn neg_frame(&self) -> u64 {
        self.neg_frame_bytes.clamp(*Self::NEG_FRAMES.start(), *Self::NEG_FRAMES.end()) as u64
    }
}
