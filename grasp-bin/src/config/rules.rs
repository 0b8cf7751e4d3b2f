//! What is possible alone and impossible together.

use std::time::Duration;

use grasp_relay::nostr::Limits;

use super::Config;

/// Something that does not hold.
pub(super) struct Broken {
    /// The settings it is about.
    pub(super) keys: &'static [&'static str],
    /// What would have to hold.
    pub(super) why: &'static str,
}

/// Events that are dated later than this are legal clients' clocks, not lies.
const LEAST_AHEAD: Duration = Duration::from_secs(60);

/// Every rule that a configuration breaks.
pub(super) fn broken(config: &Config) -> Vec<Broken> {
    let rules = relay(config).into_iter().chain(kept(config)).chain(elsewhere(config));
    rules.filter(|(holds, ..)| !holds).map(|(_, keys, why)| Broken { keys, why }).collect()
}

/// Whether a rule holds, what it is about, and what it says.
type Rule = (bool, &'static [&'static str], &'static str);

fn relay(config: &Config) -> Vec<Rule> {
    let relay = &config.settings.relay;
    vec![
        (
            relay.event_bytes <= relay.message_bytes,
            &["relay.event_bytes", "relay.message_bytes"],
            "an event must fit into a message: relay.event_bytes is above relay.message_bytes",
        ),
        (
            relay.default_limit <= relay.max_limit,
            &["relay.default_limit", "relay.max_limit"],
            "relay.default_limit is above relay.max_limit",
        ),
        (
            relay.subscription_bytes <= relay.total_subscription_bytes,
            &["relay.subscription_bytes", "relay.total_subscription_bytes"],
            "relay.subscription_bytes is above relay.total_subscription_bytes",
        ),
        (
            relay.neg_items <= relay.neg_connection_items
                && relay.neg_connection_items <= relay.neg_total_items,
            &["relay.neg_items", "relay.neg_connection_items", "relay.neg_total_items"],
            "relay.neg_items, relay.neg_connection_items and relay.neg_total_items must not fall",
        ),
        (
            Limits::NEG_FRAMES.contains(&relay.neg_frame_bytes),
            &["relay.neg_frame_bytes"],
            "relay.neg_frame_bytes must be from 4096 to 500000",
        ),
        (
            relay.connections <= relay.tcp_connections,
            &["relay.connections", "relay.tcp_connections"],
            "websockets are TCP connections: relay.connections is above relay.tcp_connections",
        ),
        (
            relay.ping_after < relay.idle_timeout,
            &["relay.ping_after", "relay.idle_timeout"],
            "a connection must be pinged before it counts as idle: relay.ping_after is not below relay.idle_timeout",
        ),
    ]
}

fn kept(config: &Config) -> Vec<Rule> {
    let settings = &config.settings;
    let (purgatory, staging) = (&settings.purgatory, &settings.staging);
    vec![
        (
            settings.max_ahead >= LEAST_AHEAD,
            &["max_ahead"],
            "max_ahead is below a minute, by which clients' clocks may legally run ahead",
        ),
        (
            purgatory.per_author.bytes <= purgatory.in_all.bytes
                && purgatory.per_author.count <= purgatory.in_all.count,
            &[
                "purgatory.per_author_count",
                "purgatory.per_author_bytes",
                "purgatory.in_all_count",
                "purgatory.in_all_bytes",
            ],
            "one author may not have more waiting than may wait in all",
        ),
        (
            purgatory.per_identifier.bytes <= purgatory.in_all.bytes
                && purgatory.per_identifier.count <= purgatory.in_all.count,
            &[
                "purgatory.per_identifier_count",
                "purgatory.per_identifier_bytes",
                "purgatory.in_all_count",
                "purgatory.in_all_bytes",
            ],
            "under one name there may not be more waiting than may wait in all",
        ),
        (
            staging.bytes_per_event <= staging.bytes_per_family
                && staging.bytes_per_family <= purgatory.staged.bytes,
            &[
                "git.staged_bytes_per_event",
                "git.staged_bytes_per_family",
                "purgatory.staged_bytes",
            ],
            "git.staged_bytes_per_event, git.staged_bytes_per_family and purgatory.staged_bytes must not fall",
        ),
    ]
}

fn elsewhere(config: &Config) -> Vec<Rule> {
    let limits = &config.settings.sync.limits;
    let (sync, hunt) = (&config.settings.sync.engine, &config.settings.hunt);
    vec![
        (
            sync.full_pass.0 <= sync.full_pass.1,
            &["sync.full_pass_earliest", "sync.full_pass_latest"],
            "sync.full_pass_earliest is later than sync.full_pass_latest",
        ),
        (
            sync.backoff.first <= sync.backoff.cap,
            &["sync.backoff_first", "sync.backoff_cap"],
            "sync.backoff_first is above sync.backoff_cap",
        ),
        (
            limits.ping_after < limits.idle_timeout,
            &["sync.ping_after", "sync.idle_timeout"],
            "a relay must be asked before it is taken for lost: sync.ping_after is not below sync.idle_timeout",
        ),
        (
            hunt.backoff.first <= hunt.backoff.cap,
            &["hunt.backoff_first", "hunt.backoff_cap"],
            "hunt.backoff_first is above hunt.backoff_cap",
        ),
        (
            limits.handshake_timeout < sync.handshake_limit,
            &["sync.handshake_timeout", "sync.handshake_limit"],
            "sync.handshake_timeout is not below sync.handshake_limit, after which nobody waits for it",
        ),
        (
            sync.ledger.retained_bytes >= sync.ledger.transient_bytes.saturating_mul(2),
            &["sync.retained_bytes", "sync.transient_bytes"],
            "sync.retained_bytes is below twice sync.transient_bytes: nothing could be listened to",
        ),
        (
            sync.ledger.reserve + sync.ledger.transient_floor < sync.ledger.unadvertised,
            &["sync.slots_unadvertised", "sync.slots_reserve", "sync.slots_transient"],
            "sync.slots_unadvertised leaves nothing for live subscriptions beside sync.slots_reserve and sync.slots_transient",
        ),
    ]
}
