//! The limits of a connection and of all connections together.

use std::time::Duration;

use grasp_core::Mono;

use super::hub::Capacity;

/// The limits of the relay. Those that NIP-11 has a field for are advertised from here.
///
/// The defaults suit the clients of the busiest known git relay and a peer that reconciles all its events. A request
/// that exceeds a limit is answered with the reason.
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
    /// Open subscriptions per connection; a running COUNT takes a slot, too.
    pub subscriptions: usize,
    /// Filters in one REQ or COUNT.
    pub filters: usize,
    /// Values in one filter, all its lists together; ten times as many in one REQ or COUNT.
    pub filter_values: usize,
    /// Bytes of filter text that one connection's open subscriptions may hold.
    pub subscription_bytes: usize,
    /// Bytes that the filters of all connections' open subscriptions and running COUNTs may take: their text and 384
    /// for each value. One address has at most a quarter.
    pub total_subscription_bytes: usize,
    /// Events from history per filter, also if its `limit` is higher.
    pub max_limit: usize,
    /// Events from history for a filter without `limit`.
    pub default_limit: usize,

    /// Live events queued for one connection; one more closes the subscription it is for.
    pub live_queue_events: usize,
    /// Bytes of live events queued for one connection; more close the subscription they are for.
    pub live_queue_bytes: usize,

    /// Open negentropy sessions per connection.
    pub neg_sessions: usize,
    /// Items in the set of one negentropy session.
    pub neg_items: usize,
    /// Items in all negentropy sessions of one connection.
    pub neg_connection_items: usize,
    /// Items in all negentropy sessions of all connections, at 40 bytes each. One address has at most a quarter.
    pub neg_total_items: usize,
    /// Bytes of queued negentropy messages of all connections. One address has at most a quarter.
    pub neg_waiting_bytes: usize,
    /// The idle time after which a negentropy session is closed.
    pub neg_idle: Duration,

    /// Messages of any type per connection and minute. Further ones are refused one by one; after as many refusals
    /// the connection is closed.
    pub messages_per_minute: u32,
    /// EVENTs per connection and minute.
    pub events_per_minute: u32,
    /// EVENTs per address (IPv4) and minute, over all its connections; half as many per /64 (IPv6). Fewer while other
    /// networks send many: all together may send four times as many.
    pub events_per_minute_per_ip: u32,
    /// REQ, COUNT and NEG-OPEN per connection and minute; NEG-MSG does not count.
    pub queries_per_minute: u32,
    /// Keys that one connection may authenticate as (NIP-42).
    pub auth_keys: usize,
    /// Failed AUTHs after which the connection is closed.
    pub auth_failures: u32,

    /// Open websockets.
    pub connections: usize,
    /// Open TCP connections, websockets included. Further ones wait in the listener's backlog.
    pub tcp_connections: usize,
    /// Open connections per address (IPv4) or /64 (IPv6). For a trusted proxy, the address that it forwards for
    /// counts.
    pub connections_per_ip: usize,
    /// The time that a request head may take, and that an idle keep-alive connection is kept.
    pub header_timeout: Duration,
    /// Silence after which a websocket is pinged.
    pub ping_after: Duration,
    /// Silence after which a websocket is closed.
    pub idle_timeout: Duration,
    /// The time that one write may make no progress before its connection is closed.
    pub write_timeout: Duration,
    /// The time that a shutdown waits for connections to finish.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            event_bytes: 256 * 1024,
            message_bytes: 5 * 1024 * 1024,
            subscriptions: 500,
            filters: 100,
            filter_values: 10_000,
            subscription_bytes: 5 * 1024 * 1024,
            total_subscription_bytes: 256 * 1024 * 1024,
            max_limit: 5_000,
            default_limit: 500,
            live_queue_events: 10_000,
            live_queue_bytes: 16 * 1024 * 1024,
            neg_sessions: 20,
            neg_items: 500_000,
            neg_connection_items: 1_000_000,
            neg_total_items: 4_000_000,
            neg_waiting_bytes: 64 * 1024 * 1024,
            neg_idle: Duration::from_secs(120),
            messages_per_minute: 12_000,
            events_per_minute: 6_000,
            events_per_minute_per_ip: 60_000,
            queries_per_minute: 1_200,
            auth_keys: 16,
            auth_failures: 10,
            connections: 4_096,
            tcp_connections: 8_192,
            connections_per_ip: 128,
            header_timeout: Duration::from_secs(10),
            ping_after: Duration::from_secs(45),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(60),
            grace: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Returns the capacity of the queue of one connection's live events.
    pub(crate) const fn live_queue(&self) -> Capacity {
        Capacity { events: self.live_queue_events, bytes: self.live_queue_bytes }
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// A rate limit that allows one minute's worth at once and refills steadily.
///
/// Each use costs `MINUTE / per_minute` of time, which avoids fractions.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    cost: Duration,
    /// The time at which the full allowance is available again.
    full_at: Mono,
}

impl Allowance {
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { cost: MINUTE / per_minute.max(1), full_at: Mono::ZERO }
    }

    /// Takes one, if there is one.
    #[must_use]
    pub(crate) fn take(&mut self, now: Mono) -> bool {
        let after = self.full_at.max(now) + self.cost;
        let granted = after - now <= MINUTE;
        if granted {
            self.full_at = after;
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minutes_worth_may_come_at_once_and_no_more() {
        let mut allowance = Allowance::new(60);
        let now = Mono::from_secs(1_000);
        assert!((0..60).all(|_| allowance.take(now)));
        assert!(!allowance.take(now));
    }

    #[test]
    fn it_fills_up_steadily() {
        let mut allowance = Allowance::new(60);
        let now = Mono::from_secs(1_000);
        while allowance.take(now) {}
        assert!(!allowance.take(now + Duration::from_millis(999)));
        assert!(allowance.take(now + Duration::from_secs(1)));
        assert!(!allowance.take(now + Duration::from_secs(1)));
    }

    proptest::proptest! {
        #[test]
        fn no_minute_grants_more_than_twice_its_worth(
            per_minute in 1u32..200,
            steps in proptest::collection::vec(0u64..2_000, 1..400),
        ) {
            let mut allowance = Allowance::new(per_minute);
            let mut now = Mono::from_secs(100);
            let mut granted = Vec::new();
            for step in steps {
                now = now + Duration::from_millis(step);
                if allowance.take(now) {
                    granted.push(now);
                }
            }
            for (first, start) in granted.iter().enumerate() {
                let within = granted.iter().skip(first).take_while(|at| **at - *start < MINUTE).count();
                proptest::prop_assert!(within <= 2 * per_minute as usize);
            }
        }
    }
}
