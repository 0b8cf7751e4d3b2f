//! What one client, and all clients together, may ask of the relay.

use super::Setting;
use crate::config::codec::{Bytes, Count, Time};

pub(super) const RELAY: &[Setting] = settings! { "relay." at [settings.relay];
    event_bytes: Bytes,
        "Largest event, as the JSON text a client sends; a state (30618) may have 1 MiB in any case. Valid patches reach \
         about 150 KiB.";
    message_bytes: Bytes,
        "Largest websocket message; a bigger one ends the connection. Peers ask with long lists of values.";
    subscription_id_chars: Count, "Longest subscription id, in characters.";
    subscriptions: Count, "Open subscriptions per connection; a COUNT under way takes a slot too.";
    filters: Count, "Filters in one REQ or COUNT.";
    filter_values: Count, "Values in one filter, all its lists together; ten times as many in one REQ or COUNT.";
    subscription_bytes: Bytes,
        "Bytes of filter text that one connection's open subscriptions may hold.";
    total_subscription_bytes: Bytes,
        "Bytes that the filters of all connections' open subscriptions, and of their COUNTs under way, may take: their \
         text and 128 for each value.";
    max_limit: Count,
        "Most events a filter is answered with from history, whatever its `limit` says.";
    default_limit: Count, "Events a filter without `limit` is answered with from history.";
    live_queue_events: Count,
        "Live events waiting for one connection; one more closes the subscription it was meant for.";
    live_queue_bytes: Bytes,
        "Bytes of live events waiting for one connection; the same consequence.";
    settle: Time,
        "How long after the end of history an event may still come again through the live path, to be told apart.";
    neg_sessions: Count, "Open negentropy sessions per connection.";
    neg_items: Count, "Items in the set of one negentropy session.";
    neg_connection_items: Count, "Items in all negentropy sessions of one connection.";
    neg_total_items: Count,
        "Items in all negentropy sessions of all connections, at 40 bytes each.";
    neg_waiting_bytes: Bytes,
        "Bytes of negentropy messages of all connections that may wait for their turn.";
    neg_idle: Time, "How long a negentropy session may go unused.";
    neg_frame_bytes: Bytes,
        "Largest negentropy answer in bytes, before hex. From 4,096 to 500,000.";
    neg_jobs: Count, "Negentropy sets built or compared at once, on threads of their own.";
    messages_per_minute: Count,
        "Messages of any kind per connection and minute. Those above are refused one by one; as many refused \
         again, and the connection is closed.";
    events_per_minute: Count, "EVENTs per connection and minute.";
    events_per_minute_per_ip: Count,
        "EVENTs per address (IPv4) or /64 (IPv6) and minute, over all its connections.";
    queries_per_minute: Count,
        "REQ, COUNT and NEG-OPEN per connection and minute; going on with a negentropy session is free.";
    auth_keys: Count, "Keys that one connection may authenticate as (NIP-42).";
    auth_failures: Count, "AUTHs that may fail before the connection is closed.";
    auth_window: Time, "How far the clock of an authenticating client may be off.";
    ingest_batch: Count,
        "Events of one connection handed to ingest at once; as many again may wait, then its socket is not read.";
    connections: Count, "Websockets at once.";
    tcp_connections: Count,
        "TCP connections at once, websockets included. Beyond it, new ones wait in the listener's backlog.";
    connections_per_ip: Count,
        "Connections at once per address (IPv4) or /64 (IPv6). A trusted proxy's own address is not counted, the \
         address it forwards for is.";
    header_timeout: Time,
        "How long a request head may take, and how long an idle keep-alive connection is kept.";
    header_bytes: Bytes, "Largest request head in bytes.";
    ping_after: Time, "Silence after which a websocket is pinged.";
    idle_timeout: Time, "Silence after which a websocket is closed.";
    write_timeout: Time, "How long one write may be stuck before its connection is given up.";
    grace: Time, "How long a shutdown waits for connections to finish.";
};

pub(super) const RELATED: &[Setting] = settings! { "relay." at [settings.fan_out];
    related_window (window): Time,
        "How long events that belong to something accepted are counted before counting begins anew.";
    related_per_author_count (author.count): Count, "Such events of one author within that time.";
    related_per_author_bytes (author.bytes): Bytes, "Bytes of one author's such events within that time.";
    related_per_root_count (root.count): Count,
        "Such events on one repository, or on whatever else a thread begins with, within that time.";
    related_per_root_bytes (root.bytes): Bytes, "Bytes of such events on one root within that time.";
};
