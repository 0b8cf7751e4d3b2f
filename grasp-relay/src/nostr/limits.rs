//! The limits of a connection and of all connections together.

use std::time::Duration;

use bitcoin_hashes::sha256;
use grasp_core::Mono;
use nostr::key::PublicKey;
use serde::Serialize;

use super::codec::MAX_SUB_ID_CHARS;
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
    /// The limits per minute apply to clients at loopback addresses, too. Benchmarks turn it off.
    pub limits_loopback: bool,
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
            limits_loopback: true,
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
    /// Returns these limits without those per minute.
    pub(crate) fn without_rates(&self) -> Self {
        Self {
            messages_per_minute: u32::MAX,
            events_per_minute: u32::MAX,
            queries_per_minute: u32::MAX,
            ..self.clone()
        }
    }

    /// Returns the capacity of the queue of one connection's live events.
    pub(crate) const fn live_queue(&self) -> Capacity {
        Capacity {
            events: self.live_queue_events,
            bytes: self.live_queue_bytes,
        }
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
        Self {
            cost: MINUTE / per_minute.max(1),
            full_at: Mono::ZERO,
        }
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

/// The operator's description of the relay. [`RelayInfo::document`] adds the limits from [`Limits`].
///
/// ```
/// use grasp_relay::nostr::{Limits, RelayInfo};
///
/// let info = RelayInfo { name: "grasp.example".into(), ..RelayInfo::default() };
/// let card = info.document(&Limits::default());
/// assert!(card.contains(r#""supported_grasps":["GRASP-01"]"#));
/// assert!(card.contains(r#""max_limit":5000"#));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RelayInfo {
    /// The display name.
    pub name: String,
    /// The description, a few sentences.
    pub description: String,
    /// The operator's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pubkey: Option<PublicKey>,
    /// The key that the service itself signs with.
    #[serde(rename = "self", skip_serializing_if = "Option::is_none")]
    pub service_key: Option<PublicKey>,
    /// Another way to contact the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<String>,
    /// The address of an icon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icon: Option<String>,
    /// The name of the software.
    pub software: String,
    /// The version of the software.
    pub version: String,
    /// The NIPs that are supported.
    pub supported_nips: Vec<u16>,
    /// The GRASP documents that are supported, as `GRASP-01`.
    pub supported_grasps: Vec<String>,
    /// The criteria by which repositories are accepted, as text; never empty.
    pub repo_acceptance_criteria: String,
    /// The curation of events beyond spam control, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curation: Option<String>,
    /// The time by which an event may be ahead of the clock.
    #[serde(skip)]
    pub created_at_ahead: Duration,
    /// Whether only those may read that authenticate (NIP-42).
    #[serde(skip)]
    pub auth_required: bool,
}

impl Default for RelayInfo {
    fn default() -> Self {
        Self {
            name: "grasp".into(),
            description: "A nostr relay and git host for repositories announced here.".into(),
            pubkey: None,
            service_key: None,
            contact: None,
            icon: None,
            software: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            supported_nips: vec![1, 9, 11, 34, 40, 42, 45, 50, 62, 67, 70, 77],
            supported_grasps: vec!["GRASP-01".into()],
            repo_acceptance_criteria: "None".into(),
            curation: None,
            created_at_ahead: Duration::from_secs(900),
            auth_required: false,
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    info: &'a RelayInfo,
    limitation: serde_json::Value,
}

impl RelayInfo {
    /// Returns a text that changes with the name and the description.
    pub(crate) fn tag(&self) -> String {
        let texts = format!("{}\n{}", self.name, self.description);
        let hash = sha256::Hash::hash(texts.as_bytes()).to_string();
        hash.get(..8).unwrap_or_default().to_owned()
    }

    /// Returns the document as JSON.
    pub fn document(&self, limits: &Limits) -> String {
        let limitation = serde_json::json!({
            "max_message_length": limits.message_bytes,
            "max_subscriptions": limits.subscriptions,
            "max_subid_length": MAX_SUB_ID_CHARS,
            "max_limit": limits.max_limit,
            "default_limit": limits.default_limit.min(limits.max_limit),
            "auth_required": self.auth_required,
            "payment_required": false,
            // Only events that belong to an accepted repository are accepted.
            "restricted_writes": true,
            "created_at_upper_limit": self.created_at_ahead.as_secs(),
        });
        let document = Document {
            info: self,
            limitation,
        };
        serde_json::to_string(&document).expect("strings and numbers always have a JSON form")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_of_a_minute_may_be_used_at_once() {
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
        fn no_minute_grants_more_than_twice_its_budget(
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

    #[test]
    fn curation_is_absent_unless_there_is_some() {
        let plain = RelayInfo::default();
        assert!(!plain.document(&Limits::default()).contains("curation"));
        let curated = RelayInfo {
            curation: Some("no forks".into()),
            ..plain
        };
        let document = curated.document(&Limits::default());
        assert!(document.contains(r#""curation":"no forks""#));
    }

    #[test]
    fn eose_hints_are_advertised() {
        let document = RelayInfo::default().document(&Limits::default());
        let card: serde_json::Value = serde_json::from_str(&document).expect("JSON");
        let supported = card["supported_nips"].as_array().expect("a list");
        assert!(supported.contains(&67.into()), "{supported:?}");
    }

    #[test]
    fn keys_stand_as_hex_under_their_names() {
        let key = PublicKey::from_byte_array([0xab; 32]);
        let info = RelayInfo {
            pubkey: Some(key),
            service_key: Some(key),
            ..RelayInfo::default()
        };
        let card: serde_json::Value =
            serde_json::from_str(&info.document(&Limits::default())).expect("JSON");
        assert_eq!(card["pubkey"], "ab".repeat(32));
        assert_eq!(card["self"], "ab".repeat(32));
    }
}
