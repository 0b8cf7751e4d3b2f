//! The decisions of sync: which relay to ask for what, and when. No I/O, no clock, no lock.

mod auth;
mod backlog;
#[cfg(any(test, feature = "test-util"))]
mod check;
mod config;
mod connections;
mod context;
mod discovery;
mod facts;
mod fetch;
mod filter;
mod full_sync;
mod health;
mod history;
mod ids;
mod intake;
mod io;
mod job;
mod live;
mod missing;
mod reconcile;
mod record;
mod rejected;
mod relay;
mod relays;
mod report;
mod retry;
mod session;
mod subs;
mod suspended;

use std::collections::BTreeMap;

use crate::index::SyncIndex;
use grasp_core::resources::Pool;
use grasp_core::{Mono, Now, RelayUrl};

pub use self::config::Config;
use self::connections::Connections;
use self::context::EngineState;
use self::discovery::Discovery;
pub use self::discovery::index_change;
pub use self::facts::RelayFacts;
#[cfg(feature = "driver")]
pub(crate) use self::filter::{split, split_by_kind};
use self::history::Rng;
pub use self::ids::{BatchId, ConnId, InventoryId, SubId};
pub use self::io::{
    Accepted, Delivered, Fault, Flaw, Frame, Input, InventoryFailed, Judged, Outcome, Output,
    Places, Row, Said,
};
#[cfg(test)]
pub(crate) use self::record::COVERAGE_CAPACITY;
use self::record::Records;
pub use self::record::RelayRecord;
use self::rejected::Rejected;
use self::relay::Relay;
pub use self::report::{Failure, PeerReliability, Report, Request, Source, SyncMethod};
pub use self::suspended::Parked;

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
    /// The relays that are followed, shared out between the owners that name them.
    followed: Pool,
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
            ids: ids::Ids::default(),
            rng: Rng::seeded(config.seed),
            inventories: BTreeMap::new(),
            held_items: BTreeMap::new(),
            wanted: 0,
            config,
        };
        let mut engine = Self {
            discovery: Discovery::new(&shared.config),
            connections: Connections::new(&shared.config),
            followed: Pool::new(connections::bounds(relays::MAX_FOLLOWED)),
            shared,
            relays: BTreeMap::new(),
            records: Records::default(),
            is_full: false,
            out: Vec::new(),
        };
        let bootstrap: Vec<_> = engine.shared.index.relays().cloned().collect();
        // Makes the first deadline due at once, though nothing has happened yet.
        engine.connections.waits = !bootstrap.is_empty();
        bootstrap.into_iter().for_each(|relay| engine.follow(now, relay, None));
        engine
    }

    /// Handles an input.
    #[must_use = "what is not done is lost"]
    pub fn handle(&mut self, now: Now, input: Input) -> Vec<Output> {
        match input {
            Input::Accepted(accepted) => self.accepted(now, accepted),
            Input::FeedCaughtUp => {
                let changes = self.discovery.caught_up();
                self.apply(now, changes);
                if self.shared.index.repos().is_empty() {
                    self.begin_anew(now, history::RelayHistory::is_resumed);
                }
            }
            Input::FeedLost => self.begin_anew(now, |_| true),
            Input::Restored(records) => self.restored(now, records),
            Input::Connected { relay, conn, address, facts } => {
                self.connected(now, &relay, conn, address, &facts);
            }
            Input::ConnectFailed { relay, conn, why } => {
                self.with_relay(now, &relay, |link, ctx| link.failed(ctx, conn, why));
            }
            Input::Disconnected { relay, conn } => {
                self.with_relay(now, &relay, |link, ctx| link.lost(ctx, conn));
            }
            Input::Heard { relay, conn, said } => {
                self.with_relay(now, &relay, |link, ctx| {
                    if let Some(session) = link.session(conn) {
                        session.handle_message(ctx, said);
                    }
                });
            }
            Input::Ingested { relay, conn, sub, judged } => {
                self.ingested(now, &relay, conn, sub, judged);
            }
            Input::Reoffered { judged } => self.reoffered(now, judged),
            Input::Inventory { request, items } => self.inventory(now, request, items),
            Input::Tick => self.tick(now),
        }
        if let Some(changes) = self.discovery.take_if_due(now.mono) {
            self.apply(now, changes);
        }
        self.dial(now);
        std::mem::take(&mut self.out)
    }

    /// Returns when to send the next [`Input::Tick`], if ever. Ask again after each [`handle`](Self::handle).
    pub fn next_deadline(&self) -> Option<Mono> {
        let relays = self.relays.values().filter_map(|relay| relay.deadline);
        let dials = self.connections.deadline(self.handshakes());
        let others = [self.discovery.deadline(), self.shared.rejected.deadline(), dials];
        relays.chain(others.into_iter().flatten()).min()
    }
}
