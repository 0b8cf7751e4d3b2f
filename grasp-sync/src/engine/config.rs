//! The engine's settings.

use std::time::Duration;

use crate::index::RequestBudget;
use crate::limits::REQUEST_WATCHDOG;
use grasp_core::limits::BackoffPolicy;
use grasp_core::{RelayUrl, ServiceIdentity};

/// The settings of a [`SyncEngine`](super::SyncEngine).
#[derive(Clone, Debug)]
pub struct Config {
    /// Our own service; never a target.
    pub own: ServiceIdentity,
    /// Relays to sync from whether a repository names them or not. Default: none.
    pub bootstrap: Vec<RelayUrl>,
    /// The seed of randomness. The same seed and the same inputs give the same outputs. Default: 0.
    pub seed: u64,
    /// True if there is a service key to authenticate with (NIP-42). Default: no.
    pub can_authenticate: bool,
    /// Time for which newly accepted repositories and roots are collected before they are acted on. Counted from the
    /// first, never started over. Default: 5 seconds.
    pub discovery_window: Duration,
    /// Pause in the feed that ends the collecting early; five times as long if the last ended less than a window ago.
    /// Default: 50 milliseconds.
    pub discovery_quiet: Duration,
    /// Time for which replies are collected before their own replies are asked for. Default: 15 seconds.
    pub reply_window: Duration,
    /// Relays of one repository that are followed. Default: 64.
    pub relays_per_repo: usize,
    /// True if repositories are followed whose announcement does not list the local relay. For a relay whose own
    /// rules decide what is kept, such as a GRASP server. Enforced by the driver. Default: no.
    pub follow_unlisted: bool,
    /// True if announcements are compared again after a restart, even if they were proven complete: for a local relay
    /// that does not tell what it holds ([`tells_held`](crate::LocalRelay::tells_held), which the driver asks).
    /// Default: no.
    pub recheck_announcements: bool,
    /// Values per filter at a relay of which neither the software nor the longest message is known; ten times as many
    /// where one is. Bytes are a further limit, reached with some 490 event ids. Default: 100.
    pub values_per_filter: usize,
    /// Live filters on one connection above which they are rebuilt as fewer. Default: 70.
    pub consolidation_threshold: usize,
    /// Bytes of filters above which another GRASP server is asked for all that it has (full sync). For a relay that,
    /// like such a server, has nothing but repositories and what belongs to them, since what it has is then compared
    /// too. Default: never.
    pub whole_from: Option<usize>,
    /// Time that a request may go without an answer. Default: 120 seconds.
    pub watchdog: Duration,
    /// Backoff of failing relays.
    pub backoff: BackoffPolicy,
    /// Connections at the same time, bootstrap relays not counted; half of them at most to relays that only held
    /// announcements name, a quarter to those of one owner, and to one network half of what is free. Relays that find no
    /// room take turns. Default: 512.
    pub connections: usize,
    /// Connections to one host, with any path. Default: 8.
    pub connections_per_host: usize,
    /// Shortest time between the starts of two handshakes. Default: 250 milliseconds.
    pub handshake_gap: Duration,
    /// The earliest and the latest time of a full pass, counted from the last. Default: 23 and 25 hours.
    pub full_pass: (Duration, Duration),
    /// Delay of writing a relay's record after a change. Default: 5 seconds.
    pub persist_after: Duration,
}

impl Config {
    /// Returns the defaults for this service.
    pub fn new(own: ServiceIdentity) -> Self {
        Self {
            own,
            bootstrap: Vec::new(),
            seed: 0,
            can_authenticate: false,
            discovery_window: Duration::from_secs(5),
            discovery_quiet: Duration::from_millis(50),
            reply_window: Duration::from_secs(15),
            relays_per_repo: 64,
            follow_unlisted: false,
            recheck_announcements: false,
            values_per_filter: RequestBudget::default().values_per_filter,
            consolidation_threshold: 70,
            whole_from: None,
            watchdog: REQUEST_WATCHDOG,
            backoff: BackoffPolicy::RELAY,
            connections: 512,
            connections_per_host: 8,
            handshake_gap: Duration::from_millis(250),
            full_pass: (Duration::from_secs(23 * 60 * 60), Duration::from_secs(25 * 60 * 60)),
            persist_after: Duration::from_secs(5),
        }
    }
}
