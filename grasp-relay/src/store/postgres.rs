//! The database of a server that runs on several machines: events, refs, packs and the records of purgatory in
//! PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::service::Endpoint;
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::database::{
    Commit, Committed, Database, DatabaseFuture, FamilyRow, Pack, View,
};
use grasp_purgatory::journal::Record;
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use tokio::sync::watch;

use super::{
    EventChunks, EventStore, Inventory, Refusal, SaveReport, StoreError, StoreFuture, StoreRules,
    StoredEvent,
};

/// The time for which a lease is held without being renewed.
pub const LEASE: Duration = Duration::from_secs(5);

/// The configuration of a [`PostgresStore`].
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The rules for deletion, vanishing and rollback.
    pub rules: StoreRules,
    /// The number of connections for reading.
    pub readers: NonZeroUsize,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { rules: StoreRules::default(), readers: NonZeroUsize::MIN.saturating_add(7) }
    }
}

/// The number of a lease. Each writer has a higher one than the writer before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The outcome of claiming the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum LeaseClaim {
    /// This store is the writer.
    Held(Epoch),
    /// Another one is.
    HeldBy {
        /// The name that it claimed the lease under.
        node: String,
        /// The time until its lease expires, unless it renews it.
        remaining: Duration,
    },
}

/// A node that reported itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub struct NodeRow {
    pub address: String,
    /// The time since its last report.
    pub seen: Duration,
    pub is_writer: bool,
    pub report: String,
}

/// The number of rows that [`PostgresStore::import`] copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct ImportReport {
    pub events: u64,
    pub superseded: u64,
    pub repositories: u64,
    pub packs: u64,
    pub held: u64,
}

/// An [`EventStore`] in a PostgreSQL database, which several processes read and one at a time writes.
#[derive(Debug)]
pub struct PostgresStore {}

impl PostgresStore {
    /// Connects to a database, which is migrated as needed.
    pub async fn connect(_url: &str, _options: PostgresOptions) -> Result<Self, StoreError> {
        todo!()
    }

    /// Acquires the writer's lease if it is free or expired, or renews it if this store holds it.
    pub async fn claim_lease(&self, _node: &str) -> Result<LeaseClaim, StoreError> {
        todo!()
    }

    /// Gives the lease back, if this store holds it.
    pub async fn release_lease(&self) -> Result<(), StoreError> {
        todo!()
    }

    /// Returns the epoch of the lease that this store writes under.
    pub fn epoch(&self) -> Option<Epoch> {
        todo!()
    }

    /// Returns the number of the last event that was stored.
    pub async fn last_seq(&self) -> Result<u64, StoreError> {
        todo!()
    }

    /// Returns events that were stored after the one of this number and still are, in the order of their commits.
    pub async fn stored_after(
        &self,
        _seq: u64,
        _max: usize,
    ) -> Result<Vec<(u64, StoredEvent)>, StoreError> {
        todo!()
    }

    /// Returns a receiver that changes after each commit of any process.
    pub fn commits(&self) -> watch::Receiver<u64> {
        todo!()
    }

    /// Records that a node is alive, and what it says about itself.
    pub async fn report_node(&self, _address: &str, _report: &str) -> Result<(), StoreError> {
        todo!()
    }

    /// Returns the nodes that reported within a day.
    pub async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        todo!()
    }

    /// Returns the key by which nodes authenticate each other.
    pub async fn node_key(&self) -> Result<[u8; 32], StoreError> {
        todo!()
    }

    /// Copies the file of a single machine into this database, which must be empty.
    pub async fn import(&self, _sqlite: &Path) -> Result<ImportReport, StoreError> {
        todo!()
    }
}

impl EventStore for PostgresStore {
    fn save_events(&self, _: Vec<Arc<Event>>, _: Timestamp) -> StoreFuture<'_, SaveReport> {
        todo!()
    }

    fn refusals(&self, _: Vec<Arc<Event>>, _: Timestamp) -> StoreFuture<'_, Vec<Option<Refusal>>> {
        todo!()
    }

    fn query(&self, _: Vec<Filter>, _: Timestamp) -> EventChunks {
        todo!()
    }

    fn count(&self, _: Vec<Filter>, _: Timestamp) -> StoreFuture<'_, u64> {
        todo!()
    }

    fn inventory(&self, _: Filter, _: Timestamp, _: usize) -> StoreFuture<'_, Inventory> {
        todo!()
    }

    fn superseded(&self, _: Coordinate) -> StoreFuture<'_, Vec<Event>> {
        todo!()
    }

    fn remove(&self, _: Vec<EventId>) -> StoreFuture<'_, u64> {
        todo!()
    }

    fn sweep(&self, _: Timestamp) -> StoreFuture<'_, u64> {
        todo!()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        todo!()
    }
}

impl Database for PostgresStore {
    fn commit(&self, _: Commit) -> DatabaseFuture<'_, Committed> {
        todo!()
    }

    fn view(&self, _: Endpoint, _: RepoId) -> DatabaseFuture<'_, Option<View>> {
        todo!()
    }

    fn family(&self, _: Endpoint, _: Identifier) -> DatabaseFuture<'_, FamilyRow> {
        todo!()
    }

    fn packs(&self, _: Endpoint) -> DatabaseFuture<'_, BTreeMap<Identifier, BTreeSet<Pack>>> {
        todo!()
    }

    fn repositories(&self, _: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
        todo!()
    }

    fn identifiers(&self, _: Endpoint) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        todo!()
    }

    fn existing(
        &self,
        _: Endpoint,
        _: BTreeSet<Identifier>,
    ) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        todo!()
    }

    fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
        todo!()
    }
}
