//! The database of a server that runs on several machines: events, refs, packs and the records of purgatory in
//! PostgreSQL.
//!
//! ```text
//!  commit, save, sweep ──▶ queue ──▶ one writer task, if this process holds the lease: everything queued, one
//!                                    transaction, two round trips
//!  query, count, …     ──▶ pool  ──▶ pages of an index, each one statement
//!  claim_lease, nodes  ──▶ two connections of their own, which never wait for the others
//! ```
//!
//! The rules are those of the [single machine's store](super::sqlite), and so are the tables.

mod connect;
mod git;
mod import;
mod lease;
mod schema;
mod search;
mod tables;
mod values;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use futures_util::{StreamExt, stream};
use grasp_core::nip34::References;
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, RepoId, Version};
use grasp_purgatory::Record;
use grasp_purgatory::database::{
    Addition, Commit, Committed, Database, DatabaseFuture, FamilyRow, Pack, View,
};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::types::ToSql;

use self::connect::{Connector, WRITER_SETTINGS, failure, pool_failure};
use self::search::{Search, Unordered};
use self::tables::{PostgresTables, Wanted};
use self::values::{bytes, get, position, slices};
use self::writer::PostgresWriter;
use super::changes::Changes as _;
use super::keys::{Keys, Position, seconds};
use super::rules::{Deletions as _, Rows as _, Rules as _, Verdict};
use super::{
    EventChunks, EventStore, Inventory, Present, Refusal, SaveReport, StoreError, StoreFuture,
    StoreRules, commit_cost, fits, write_cost,
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

/// Events removed in one transaction, so that saves queued behind it do not wait long.
const REMOVALS_PER_COMMIT: usize = 500;

/// Keys looked up by one statement.
const KEYS_PER_READ: usize = 1_000;

/// Events per chunk of a query, and of what is counted or listed.
const MAX_CHUNK_EVENTS: usize = 500;
const MAX_SLICE: usize = 50_000;

/// Connections for the lease, the nodes and the feed.
const CONTROL_CONNECTIONS: usize = 2;

/// An [`EventStore`] in a PostgreSQL database, which several processes read and one at a time writes.
///
/// Writes fail with [`StoreError::Fenced`] unless this store [holds the lease](Self::claim_lease).
pub struct PostgresStore {
    inner: Arc<PostgresInner>,
    listener: AbortHandle,
}

struct PostgresInner {
    place: String,
    rules: Arc<StoreRules>,
    keys: Arc<RwLock<Arc<Keys>>>,
    node_key: [u8; 32],
    readers: Pool,
    control: Pool,
    writer_pool: Pool,
    writer: PostgresWriter,
    /// The epoch of the lease that is held; zero if none is.
    epoch: Arc<AtomicU64>,
    commits: watch::Sender<u64>,
    closed: AtomicBool,
}

impl PostgresStore {
    /// Connects to a database, which is created or migrated as needed; several processes may do so at the same time.
    ///
    /// Errors say where the database is and never the password.
    pub async fn connect(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let mut connector = Connector::new(url)?;
        let (mut client, driver) = connector.first().await?;
        schema::migrate(&mut client).await?;
        let keys = Arc::new(RwLock::new(Arc::new(schema::load_keys(&client).await?)));
        let node_key = schema::load_node_key(&client).await?;
        let (commits, _) = watch::channel(lease::last_seq(&client).await?);
        driver.abort();
        let (rules, epoch) = (Arc::new(options.rules), Arc::new(AtomicU64::new(0)));
        let writer_pool = connector.pool(1, WRITER_SETTINGS)?;
        let writer = PostgresWriter::start(
            writer_pool.clone(),
            Arc::clone(&keys),
            Arc::clone(&rules),
            Arc::clone(&epoch),
        );
        let listener = tokio::spawn(lease::listen(connector.clone(), commits.clone()));
        let inner = PostgresInner {
            place: connector.to_string(),
            rules,
            keys,
            node_key,
            readers: connector.pool(options.readers.get(), &[])?,
            control: connector.pool(CONTROL_CONNECTIONS, &[])?,
            writer_pool,
            writer,
            epoch,
            commits,
            closed: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner), listener: listener.abort_handle() })
    }

    /// Returns the key by which nodes authenticate each other. It was drawn when the database was created.
    pub async fn node_key(&self) -> Result<[u8; 32], StoreError> {
        self.inner.check_open()?;
        Ok(self.inner.node_key)
    }
}

/// Time and id of an event.
type Item = (Timestamp, EventId);

fn item(at: Position) -> Item {
    (at.created_at(), at.event_id())
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("place", &self.inner.place)
            .field("rules", &self.inner.rules)
            .finish_non_exhaustive()
    }
}

impl EventStore for PostgresStore {
    fn save_events(&self, events: Vec<Arc<Event>>, now: Timestamp) -> StoreFuture<'_, SaveReport> {
        Box::pin(async move {
            let mut report = SaveReport::default();
            let mut events = events.into_iter().peekable();
            while events.peek().is_some() {
                let (mut batch, mut weight) = (Vec::new(), 0);
                while let Some(event) = events.next_if(|event| fits(weight, write_cost(event))) {
                    weight += write_cost(&event);
                    batch.push(event);
                }
                let batch = Arc::new(batch);
                let needed = Arc::clone(&batch);
                let (SaveReport { saved, affected }, unfinished) = self
                    .inner
                    .write(
                        weight,
                        move |keys, wanted| wanted.save(keys, &needed, now),
                        move |tables| tables.save(&batch, now),
                    )
                    .await?;
                report.saved.extend(saved);
                report.affected.extend(affected);
                for request in unfinished {
                    report.affected.extend(self.inner.finish(request).await?);
                }
            }
            Ok(report)
        })
    }

    fn refusals(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<Option<Refusal>>> {
        Box::pin(async move {
            let keys = self.inner.keys()?;
            let mut wanted = Wanted::default();
            events.iter().for_each(|event| wanted.event(&keys, event));
            let mut tables = PostgresTables::new(&keys, &self.inner.rules);
            tables.load(&*self.inner.reader().await?, &wanted).await?;
            let mut refusals = Vec::with_capacity(events.len());
            for event in events {
                refusals.push(match tables.check(&event, now)? {
                    Verdict::Accepted | Verdict::Duplicate | Verdict::Superseded => None,
                    Verdict::Refused(refusal) => Some(refusal),
                    Verdict::DeletedBy(by) => {
                        self.inner.writer.try_perform(
                            move |keys, wanted| wanted.event(keys, &event),
                            move |tables| tables.note_use(by, now),
                        );
                        Some(Refusal::Deleted)
                    }
                });
            }
            Ok(refusals)
        })
    }

    fn query(&self, filters: Vec<Filter>, now: Timestamp) -> EventChunks {
        let inner = Arc::clone(&self.inner);
        let search = inner.keys().map(|keys| Search::new(&keys, filters, now, true));
        stream::unfold(Some(search), move |search| {
            let inner = Arc::clone(&inner);
            async move {
                let mut search = match search? {
                    Ok(search) => search,
                    Err(error) => return Some((Err(error), None)),
                };
                loop {
                    match inner.search(&mut search, MAX_CHUNK_EVENTS).await {
                        Ok(Some(found)) if found.is_empty() => {}
                        Ok(Some(found)) => {
                            let chunk = found.into_iter().filter_map(|found| found.stored());
                            return Some((Ok(chunk.collect()), Some(Ok(search))));
                        }
                        Ok(None) => return None,
                        Err(error) => return Some((Err(error), None)),
                    }
                }
            }
        })
        .boxed()
    }

    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let mut search = Search::new(&*self.inner.keys()?, filters, now, false);
            let mut count = 0;
            while let Some(found) = self.inner.search(&mut search, MAX_SLICE).await? {
                count += found.len() as u64;
            }
            Ok(count)
        })
    }

    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(async move {
            let keys = self.inner.keys()?;
            let mut answers = vec![false; questions.len()];
            let first = |filters: Vec<Filter>| {
                let filters = filters.into_iter().map(|filter| filter.limit(1)).collect();
                Search::new(&keys, filters, now, false)
            };
            let searches = questions.into_iter().map(first).zip(&mut answers).collect();
            self.inner.answer(searches).await?;
            Ok(answers)
        })
    }

    fn present(&self, named: References, now: Timestamp) -> StoreFuture<'_, Present> {
        Box::pin(async move {
            let keys = self.inner.keys()?;
            let mut present = Present::default();
            let now = seconds(now.as_secs());
            let ids: Vec<_> = named.ids.iter().map(|id| id.to_bytes()).collect();
            for ids in ids.chunks(KEYS_PER_READ) {
                let sql = "SELECT id FROM events e WHERE id = ANY($1) AND NOT EXISTS
                    (SELECT 1 FROM expirations x WHERE x.seq = e.seq AND x.at <= $2)";
                for row in self.inner.rows(sql, &[&slices(ids), &now]).await? {
                    present.ids.insert(EventId::from_byte_array(bytes(&row, 0)?));
                }
            }
            let coordinates = named.coordinates.into_iter();
            let coordinates: BTreeMap<_, _> =
                coordinates.map(|at| (keys.coordinate(&at), at)).collect();
            let digests: Vec<_> = coordinates.keys().copied().collect();
            for digests in digests.chunks(KEYS_PER_READ) {
                let sql =
                    "SELECT newest, id, coordinate FROM heads h JOIN events e ON e.seq = h.seq
                    WHERE coordinate = ANY($1) AND NOT EXISTS
                    (SELECT 1 FROM expirations x WHERE x.seq = e.seq AND x.at <= $2)";
                for row in self.inner.rows(sql, &[&slices(digests), &now]).await? {
                    let at = coordinates.get(&bytes::<16>(&row, 2)?).cloned();
                    let version = position(&row, 0)?.version();
                    present.versions.extend(at.map(|at| (at, version)));
                }
            }
            Ok(present)
        })
    }

    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory> {
        Box::pin(async move {
            let search = Search::new(&*self.inner.keys()?, vec![filter], now, false);
            let items = match search.into_unordered() {
                Ok(all) => self.inner.read_all(all, max).await?,
                Err(search) => self.inner.read_in_order(search, max).await?,
            };
            let Some(mut items) = items else { return Ok(Inventory::TooMany) };
            items.sort();
            items.dedup();
            Ok(match items.len() > max {
                true => Inventory::TooMany,
                false => Inventory::Complete(items),
            })
        })
    }

    fn superseded(&self, coordinate: Coordinate) -> StoreFuture<'_, Vec<Event>> {
        Box::pin(async move {
            let key = self.inner.keys()?.coordinate(&coordinate);
            let sql = "SELECT json FROM superseded WHERE coordinate = $1 ORDER BY newest, id";
            let rows = self.inner.rows(sql, &[&&key[..]]).await?;
            rows.iter().map(|row| Event::from_json(get::<&str>(row, 0)?).map_err(failure)).collect()
        })
    }

    fn remove(&self, ids: Vec<EventId>) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            self.inner.check_open()?;
            let mut removed = 0;
            for batch in ids.chunks(REMOVALS_PER_COMMIT) {
                let (needed, batch) = (batch.to_vec(), batch.to_vec());
                removed += self
                    .inner
                    .write(
                        REMOVALS_PER_COMMIT,
                        move |_, wanted| wanted.remove(&needed),
                        move |tables| tables.remove(&batch),
                    )
                    .await?;
            }
            Ok(removed)
        })
    }

    fn delist(&self, coordinate: Coordinate, by: Version, _: Timestamp) -> StoreFuture<'_, u64> {
        let needed = coordinate.clone();
        Box::pin(self.inner.write(
            1,
            move |keys, wanted| wanted.coordinate(keys, &needed),
            move |tables| tables.delist(&coordinate, by),
        ))
    }

    fn delisted(
        &self,
        coordinates: Vec<Coordinate>,
    ) -> StoreFuture<'_, BTreeMap<Coordinate, Version>> {
        Box::pin(async move {
            let keys = self.inner.keys()?;
            let coordinates = coordinates.into_iter();
            let coordinates: BTreeMap<_, _> =
                coordinates.map(|at| (keys.coordinate(&at), at)).collect();
            let digests: Vec<_> = coordinates.keys().copied().collect();
            let sql = "SELECT newest, id, coordinate FROM delisted WHERE coordinate = ANY($1)";
            let mut found = BTreeMap::new();
            for row in self.inner.rows(sql, &[&slices(&digests)]).await? {
                let by: Position = position(&row, 0)?;
                let at = coordinates.get(&bytes::<16>(&row, 2)?).cloned();
                found.extend(at.map(|at| (at, by.version())));
            }
            Ok(found)
        })
    }

    fn sweep(&self, now: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let mut events = 0;
            loop {
                let rules = Arc::clone(&self.inner.rules);
                let needs = move |_: &Keys, wanted: &mut Wanted| wanted.sweep(&rules, now);
                let swept = self.inner.write(1, needs, move |tables| tables.sweep(now)).await?;
                events += swept.events;
                if !swept.more {
                    return Ok(events);
                }
            }
        })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.inner.closed.store(true, Ordering::SeqCst);
            self.inner.writer.stop().await;
            self.listener.abort();
            for pool in [&self.inner.readers, &self.inner.control, &self.inner.writer_pool] {
                pool.close();
            }
            Ok(())
        })
    }
}

impl Database for PostgresStore {
    fn commit(&self, commit: Commit) -> DatabaseFuture<'_, Committed> {
        let rows = commit_cost(&commit);
        let commit = Arc::new(commit);
        let needed = Arc::clone(&commit);
        let written = self.inner.write(
            rows,
            move |keys, wanted| wanted.commit(keys, &needed),
            move |tables| tables.commit(&commit),
        );
        Box::pin(async move { Ok(written.await?) })
    }

    fn view(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<View>> {
        Box::pin(async move { Ok(git::view(&*self.inner.reader().await?, endpoint, &repo).await?) })
    }

    fn family(&self, endpoint: Endpoint, identifier: Identifier) -> DatabaseFuture<'_, FamilyRow> {
        Box::pin(async move {
            Ok(git::family(&*self.inner.reader().await?, endpoint, &identifier).await?)
        })
    }

    fn packs(
        &self,
        endpoint: Endpoint,
    ) -> DatabaseFuture<'_, BTreeMap<Identifier, BTreeSet<Pack>>> {
        Box::pin(async move { Ok(git::packs(&*self.inner.reader().await?, endpoint).await?) })
    }

    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
        Box::pin(
            async move { Ok(git::repositories(&*self.inner.reader().await?, endpoint).await?) },
        )
    }

    fn identifiers(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        Box::pin(async move {
            Ok(git::identifiers(&*self.inner.reader().await?, endpoint, None).await?)
        })
    }

    fn existing(
        &self,
        endpoint: Endpoint,
        identifiers: BTreeSet<Identifier>,
    ) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        Box::pin(async move {
            let client = self.inner.reader().await?;
            Ok(git::identifiers(&client, endpoint, Some(identifiers)).await?)
        })
    }

    fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
        Box::pin(async move { Ok(git::records(&*self.inner.reader().await?).await?) })
    }

    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>> {
        Box::pin(async move { Ok(git::additions(&*self.inner.reader().await?, since).await?) })
    }
}

impl PostgresInner {
    fn check_open(&self) -> Result<(), StoreError> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(StoreError::Closed),
            false => Ok(()),
        }
    }

    fn keys(&self) -> Result<Arc<Keys>, StoreError> {
        self.check_open()?;
        self.keys.read().map(|keys| Arc::clone(&keys)).map_err(|_| StoreError::Closed)
    }

    /// Replaces the keys by those of a secret that was imported.
    fn set_keys(&self, keys: Keys) -> Result<(), StoreError> {
        *self.keys.write().map_err(|_| StoreError::Closed)? = Arc::new(keys);
        Ok(())
    }

    async fn reader(&self) -> Result<Object, StoreError> {
        self.check_open()?;
        self.readers.get().await.map_err(pool_failure)
    }

    async fn control(&self) -> Result<Object, StoreError> {
        self.check_open()?;
        self.control.get().await.map_err(pool_failure)
    }

    async fn rows(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        let client = self.reader().await?;
        let statement = client.prepare_cached(sql).await.map_err(failure)?;
        client.query(&statement, values).await.map_err(failure)
    }

    /// Reads the next pages of a search. Others get the connection between two of them.
    async fn search(
        &self,
        search: &mut Search,
        most: usize,
    ) -> Result<Option<Vec<search::Found>>, StoreError> {
        search.next(&*self.reader().await?, most).await
    }

    /// Reads times and ids of all events of a search; `None` if there are more than `max`.
    async fn read_in_order(
        &self,
        mut search: Search,
        max: usize,
    ) -> Result<Option<Vec<Item>>, StoreError> {
        let (mut items, most) = (Vec::new(), max.saturating_add(1).min(MAX_SLICE));
        while let Some(found) = self.search(&mut search, most).await? {
            items.extend(found.iter().map(|found| item(found.at)));
            if items.len() > max {
                return Ok(None);
            }
        }
        // They are nearly in reverse order, which makes a sort fast.
        items.reverse();
        Ok(Some(items))
    }

    /// The same by one statement, if there are few. Some items come several times.
    async fn read_all(
        &self,
        search: Unordered,
        max: usize,
    ) -> Result<Option<Vec<Item>>, StoreError> {
        let places = search.read(&*self.reader().await?, MAX_SLICE).await?;
        match places.len() < MAX_SLICE {
            true => Ok(Some(places.into_iter().map(item).collect())),
            // Others get the connection between two pages.
            false => self.read_in_order(search.in_order(), max).await,
        }
    }

    /// Finds out for each search whether it finds anything.
    async fn answer(&self, mut searches: Vec<(Search, &mut bool)>) -> Result<(), StoreError> {
        while !searches.is_empty() {
            let client = self.reader().await?;
            let mut open = Vec::new();
            for batch in searches.chunks_mut(MAX_CHUNK_EVENTS) {
                let pages = batch.iter_mut().map(|(search, _)| search.next(&client, 1));
                open.extend(futures_util::future::try_join_all(pages).await?);
            }
            let mut open = open.into_iter();
            searches.retain_mut(|(_, answer)| {
                let found = open.next().flatten();
                **answer = found.as_ref().is_some_and(|found| !found.is_empty());
                found.is_some_and(|found| found.is_empty())
            });
        }
        Ok(())
    }

    async fn write<T, N, W>(&self, weight: usize, needs: N, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        N: Fn(&Keys, &mut Wanted) + Send + 'static,
        W: FnOnce(&PostgresTables<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.check_open()?;
        self.writer.perform(weight, needs, work).await
    }

    /// Applies a request to the end; other writers get in between its steps.
    async fn finish(&self, request: Arc<Event>) -> Result<BTreeSet<Identifier>, StoreError> {
        let mut affected = BTreeSet::new();
        loop {
            let (is_done, names) = self.finish_step(&request).await?;
            affected.extend(names);
            if is_done {
                return Ok(affected);
            }
        }
    }

    async fn finish_step(
        &self,
        request: &Arc<Event>,
    ) -> Result<(bool, BTreeSet<Identifier>), StoreError> {
        let (needed, request) = (Arc::clone(request), Arc::clone(request));
        self.write(
            super::MAX_TASK_ROWS,
            move |keys, wanted| wanted.request(keys, &needed),
            move |tables| tables.continue_request(&request),
        )
        .await
    }

    /// Applies a step of a request that was not finished; returns whether there was one.
    async fn finish_next(&self) -> Result<bool, StoreError> {
        let client = self.control().await?;
        let next =
            "SELECT u.id, e.json FROM unfinished u LEFT JOIN events e ON e.id = u.id LIMIT 1";
        let Some(row) = client.query_opt(next, &[]).await.map_err(failure)? else {
            return Ok(false);
        };
        match get::<Option<&str>>(&row, 1)? {
            Some(json) => {
                let request = Arc::new(Event::from_json(json).map_err(failure)?);
                self.finish_step(&request).await?;
            }
            None => {
                let id = EventId::from_byte_array(bytes(&row, 0)?);
                self.write(1, |_, _| {}, move |tables| tables.delete_unfinished(&id)).await?;
            }
        }
        Ok(true)
    }
}
