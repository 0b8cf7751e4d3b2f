//! The decisions of sync: which relay to ask for what, and when. No I/O, no clock, no lock.
//!
//! The crate's front page has a whole run. A driver keeps the records of relays across restarts, and shows the reports:
//!
//! ```
//! use grasp_sync::engine::{
//!     BatchId, ConnId, Failure, Fault, Flaw, InventoryId, PeerReliability, RelayRecord, Report, Request,
//!     SuspendedLayer, SyncMethod,
//! };
//!
//! /// What a driver knows of work that it has begun: every answer carries the id of its question.
//! #[derive(Default)]
//! struct Begun {
//!     connections: Vec<ConnId>,
//!     inventories: Vec<InventoryId>,
//! }
//!
//! fn line(report: &Report) -> Option<String> {
//!     match report {
//!         Report::ConnectFailed { relay, why: Fault::Certificate(Flaw::OutOfDate), .. } => {
//!             Some(format!("{relay}: its certificate has expired"))
//!         }
//!         Report::ConnectFailed { relay, failure: Failure { attempt, retry_in, .. }, .. } => {
//!             Some(format!("{relay}: attempt {attempt} failed, the next is in {retry_in:?}"))
//!         }
//!         Report::BatchConfirmed { relay, batch, method: SyncMethod::Negentropy, .. } => {
//!             let batch: &BatchId = batch;
//!             Some(format!("{relay}: compared {batch:?}"))
//!         }
//!         Report::Requested { relay, request: Request::Page } => Some(format!("{relay}: a page")),
//!         Report::Reliability { relay, seen } => {
//!             let seen: &PeerReliability = seen;
//!             Some(format!("{relay}: has {:?} of all events", seen.coverage()))
//!         }
//!         _ => None,
//!     }
//! }
//!
//! /// Records are written as JSON by `RecordFile`; suspensions of requests are among them.
//! fn is_suspended(record: &RelayRecord) -> bool {
//!     let layers: &[SuspendedLayer] = &record.suspended;
//!     !layers.is_empty()
//! }
//!
//! assert_eq!(PeerReliability::default().uptime(), None);
//! # let _ = (line, is_suspended, Begun::default());
//! ```
//!
//! A visit fetches once what a relay has for some filters. This relay has nothing:
//!
//! ```
//! use std::collections::VecDeque;
//! use grasp_sync::core::nostr::event::EventId;
//! use grasp_sync::core::nostr::filter::Filter;
//! use grasp_sync::core::nostr::types::Timestamp;
//! use grasp_sync::core::{Mono, Now};
//! use grasp_sync::engine::{Config, Frame, Input, Output, RelayFacts, Said, SyncEngine, VisitId, VisitOutcome};
//!
//! let mut now = Now::new(Mono::ZERO, Timestamp::from_secs(1_800_000_000));
//! let mut config = Config::new("us.example".parse()?);
//! config.follows_user_relays = true;
//! let mut engine = SyncEngine::new(now, config);
//! let id = VisitId(1);
//! let filters = vec![Filter::new().event(EventId::from_byte_array([7; 32]))];
//! let visit = Input::Visit { relay: "wss://home.example".parse()?, id, filters };
//! let mut inputs = VecDeque::from([Input::FeedCaughtUp, visit]);
//! let mut ended = None;
//! while ended.is_none() {
//!     let input = match inputs.pop_front() {
//!         Some(input) => input,
//!         None => {
//!             now = now.after(engine.next_deadline().expect("a visit ends") - now.mono);
//!             Input::Tick
//!         }
//!     };
//!     for output in engine.handle(now, input) {
//!         match output {
//!             Output::Connect { relay, conn, .. } => {
//!                 inputs.push_back(Input::Connected { relay, conn, address: None, facts: RelayFacts::default() });
//!             }
//!             Output::FetchInventory { request, .. } => {
//!                 inputs.push_back(Input::Inventory { request, items: Ok(Vec::new()) });
//!             }
//!             // The relay does not compare sets, and is asked for pages then.
//!             Output::Send { relay, conn, frame: Frame::NegOpen { sub, .. } } => {
//!                 let said = Said::NegErr { sub, text: "error: negentropy is disabled".to_owned() };
//!                 inputs.push_back(Input::Heard { relay, conn, said });
//!             }
//!             Output::Send { relay, conn, frame: Frame::Subscribe { sub, .. } } => {
//!                 inputs.push_back(Input::Heard { relay, conn, said: Said::Eose { sub, hint: None } });
//!             }
//!             Output::Visited { id, outcome } => ended = Some((id, outcome)),
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(ended, Some((id, VisitOutcome::Complete)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod auth;
mod backlog;
#[cfg(any(test, feature = "test-util"))]
#[path = "../tests/it/check.rs"]
mod check;
mod connections;
mod discovery;
mod facts;
mod fetch;
mod filter;
mod full_sync;
mod health;
mod history;
mod intake;
mod io;
mod job;
mod judge;
mod live;
mod missing;
mod progress;
mod reconcile;
mod rejected;
mod relay;
mod relays;
mod retry;
mod session;
mod shares;
mod subs;
mod suspended;
mod visits;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::limits::BackoffPolicy;
use grasp_core::{Mono, Now, RelayUrl, ServiceIdentity};

use self::connections::Connections;
use self::discovery::Discovery;
pub use self::discovery::index_change;
pub use self::facts::RelayFacts;
#[cfg(feature = "driver")]
pub(crate) use self::filter::{split, split_by_kind};
use self::history::Rng;
pub use self::io::{
    Accepted, BatchId, ConnId, Delivered, Failure, Fault, Flaw, Frame, Input, InventoryFailed,
    InventoryId, Judged, Outcome, Output, PeerReliability, Places, Report, Request, Row, Said,
    Source, SubId, SyncMethod, VisitId, VisitOutcome,
};
use self::job::JobMethod;
use self::rejected::Rejected;
pub use self::relay::RelayRecord;
use self::relay::{EngineState, Records, Relay};
use self::shares::Shares;
pub use self::suspended::SuspendedLayer;
use self::visits::Visits;
use crate::limits::REQUEST_WATCHDOG;
use grasp_core::sync::{RequestBudget, SyncIndex};

/// Keeps one relay complete.
///
/// A pure state machine: [`handle`](Self::handle) takes what has happened and returns what is to be done;
/// [`next_deadline`](Self::next_deadline) returns when to send the next tick. The same seed and the same inputs give
/// the same outputs. Answers to something that has ended, and messages about something that was never requested,
/// change nothing.
#[derive(Debug)]
pub struct SyncEngine {
    shared: EngineState,
    relays: BTreeMap<RelayUrl, Relay>,
    discovery: Discovery,
    connections: Connections,
    /// The relays that are followed, shared out between the owners and users that name them.
    followed: Shares,
    records: Records,
    /// True if relays were left out for want of room.
    is_full: bool,
    out: Vec<Output>,
}

impl SyncEngine {
    /// Creates an engine that knows nothing but its settings.
    pub fn new(now: Now, config: Config) -> Self {
        let index = SyncIndex::new(config.own.clone(), config.bootstrap.iter().cloned());
        let shared = EngineState {
            index,
            rejected: Rejected::default(),
            origins: Default::default(),
            ids: io::Ids::default(),
            rng: Rng::seeded(config.seed),
            inventories: BTreeMap::new(),
            held_items: BTreeMap::new(),
            visits: Visits::default(),
            wanted: 0,
            config,
        };
        let mut engine = Self {
            discovery: Discovery::new(&shared.config),
            connections: Connections::new(&shared.config),
            followed: Shares::of_places(&shared.config),
            shared,
            relays: BTreeMap::new(),
            records: Records::default(),
            is_full: false,
            out: Vec::new(),
        };
        let bootstrap: Vec<_> = engine.shared.index.relays().cloned().collect();
        // Makes the first deadline due at once, though nothing has happened yet.
        engine.connections.is_waiting = !bootstrap.is_empty();
        bootstrap
            .into_iter()
            .for_each(|relay| engine.follow(now, relay, None));
        engine
    }

    /// Handles an input.
    #[must_use = "what is not done is lost"]
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Output> {
        match input {
            Input::Accepted(accepted) => self.accepted(now, accepted),
            Input::FeedCaughtUp => {
                let changes = self.discovery.caught_up();
                self.apply(now, changes, JobMethod::Reconcile);
                if self.shared.index.repos().is_empty() {
                    self.begin_anew(now, history::RelayHistory::is_resumed);
                }
            }
            Input::FeedLost => self.begin_anew(now, |_| true),
            Input::Restored(records) => self.restored(now, records),
            Input::Connected {
                relay,
                conn,
                address,
                facts,
            } => {
                self.connected(now, &relay, conn, address, &facts);
            }
            Input::ConnectFailed { relay, conn, why } => {
                self.with_relay(now, &relay, |link, ctx| link.failed(ctx, conn, why));
            }
            Input::Disconnected { relay, conn } => {
                self.with_relay(now, &relay, |link, ctx| link.lost(ctx, conn));
            }
            Input::Heard { relay, conn, said } => {
                self.with_relay(now, &relay, |link, ctx| link.heard(ctx, conn, said));
            }
            Input::Ingested {
                relay,
                conn,
                sub,
                judged,
            } => {
                self.ingested(now, &relay, conn, sub, judged);
            }
            Input::Reoffered { judged } => self.reoffered(now, judged),
            Input::Inventory { request, items } => self.inventory(now, request, items),
            Input::Bootstrap(relays) => self.set_bootstrap(now, relays),
            Input::SyncNow { relay } => self.sync_now(now, &relay),
            Input::Visit { relay, id, filters } => self.visit(now, relay, id, filters),
            Input::EndVisit { id } => self.end_visit(now, id),
            Input::Tick => self.tick(now),
        }
        if let Some(changes) = self.discovery.take_if_due(now.mono) {
            let method = self.discovery.history_method();
            self.apply(now, changes, method);
        }
        self.dial(now);
        std::mem::take(&mut self.out)
    }

    /// Returns whether changes of what is wanted are being collected, or the feed has not caught up yet: more will be
    /// requested than is now.
    pub fn is_collecting(&self) -> bool {
        self.discovery.is_collecting()
    }

    /// Returns when to send the next [`Input::Tick`], if ever. Ask again after each [`handle`](Self::handle).
    pub fn next_deadline(&self) -> Option<Mono> {
        let relays = self.relays.values().filter_map(|relay| relay.deadline);
        let dials = self.connections.deadline(self.handshakes());
        let others = [
            self.discovery.deadline(),
            self.shared.rejected.deadline(),
            dials,
        ];
        relays.chain(others.into_iter().flatten()).min()
    }
}

/// The settings of a [`SyncEngine`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Our own service; never a target.
    pub own: ServiceIdentity,
    /// Relays to sync from whether a repository names them or not. Default: none.
    pub bootstrap: Vec<RelayUrl>,
    /// Other relays that the operator names: they may be at private addresses, if anything is wanted from them.
    /// Default: none.
    pub named: BTreeSet<RelayUrl>,
    /// The seed of randomness. The same seed and the same inputs give the same outputs. Default: 0.
    pub seed: u64,
    /// True if there is a service key to authenticate with (NIP-42). Default: no.
    pub can_authenticate: bool,
    /// True if our service is private (GRASP-08): it syncs with other private services, too, if it can authenticate.
    /// Default: no.
    pub is_private: bool,
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
    /// True if the relays of users are followed for their roots, as
    /// [`IndexChange::UserRelays`](grasp_core::sync::IndexChange::UserRelays) tells, and visited; the author of each
    /// root is remembered then. Default: no.
    pub follows_user_relays: bool,
    /// True if announcements are compared again after a restart, even if they were proven complete: for a local relay
    /// that does not tell what it holds ([`tells_held`](crate::SyncedRelay::tells_held), which the driver asks).
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
    pub full_sync_above: Option<usize>,
    /// Time that a request may go without an answer. Default: 120 seconds.
    pub watchdog: Duration,
    /// Backoff of failing relays.
    pub backoff: BackoffPolicy,
    /// Connections at the same time, bootstrap relays not counted; half of them at most to relays that no served
    /// repository lists, a quarter to those of one owner, and to one network half of what is free. Relays that find no
    /// room take turns. If relays of users are followed, these have a quarter, and visits an eighth. Default: 512.
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
            named: BTreeSet::new(),
            seed: 0,
            can_authenticate: false,
            is_private: false,
            discovery_window: Duration::from_secs(5),
            discovery_quiet: Duration::from_millis(50),
            reply_window: Duration::from_secs(15),
            relays_per_repo: 64,
            follow_unlisted: false,
            follows_user_relays: false,
            recheck_announcements: false,
            values_per_filter: RequestBudget::default().values_per_filter,
            consolidation_threshold: 70,
            full_sync_above: None,
            watchdog: REQUEST_WATCHDOG,
            backoff: BackoffPolicy::RELAY,
            connections: 512,
            connections_per_host: 8,
            handshake_gap: Duration::from_millis(250),
            full_pass: (
                Duration::from_secs(23 * 60 * 60),
                Duration::from_secs(25 * 60 * 60),
            ),
            persist_after: Duration::from_secs(5),
        }
    }

    /// Returns whether private services (GRASP-08) are dialled: only another private service is one of their members.
    pub(crate) fn dials_private(&self) -> bool {
        self.is_private && self.can_authenticate
    }
}
