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
mod import;
mod lease;
mod search;
mod tables;
#[cfg(feature = "tls")]
mod tls;
mod values;
mod writer;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};
use futures_util::{StreamExt, stream};
use grasp_purgatory::database::{Commit, Committed};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::types::Timestamp;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::connect::{DatabaseConnector, WRITER_SETTINGS, pool_failure};
use self::search::{Search, Unordered};
use self::tables::PostgresTables;
use self::values::{bytes, get, rows};
use self::writer::PostgresWriter;
use super::changes::Changes as _;
use super::changes::Wanted;
use super::engine::{DatabaseEngine, EngineStore, Query, StoreEngine, continue_request};
use super::keys::{Keys, Position};
use super::rules::{Rows as _, Rules as _, Verdict};
use super::{EventChunks, Inventory, StoreError, StoreFuture, StoreRules, commit_cost, failure};

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
        Self {
            rules: StoreRules::default(),
            readers: NonZeroUsize::MIN.saturating_add(7),
        }
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
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
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

/// Events per chunk of a query, and of what is counted or listed.
const MAX_CHUNK_EVENTS: usize = 500;
const MAX_SLICE: usize = 50_000;

/// Connections for the lease, the nodes and the feed.
const CONTROL_CONNECTIONS: usize = 2;

/// An [`EventStore`](super::EventStore) in a PostgreSQL database, which several processes read and one at a time writes.
///
/// Writes fail with [`StoreError::Fenced`] unless this store [holds the lease](Self::claim_lease).
pub type PostgresStore = EngineStore<PostgresEngine>;

/// The connections to a PostgreSQL database.
pub struct PostgresEngine {
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
    listener: AbortHandle,
    closed: AtomicBool,
}

impl PostgresStore {
    /// Connects to a database, which is created or migrated as needed; several processes may do so at the same time.
    ///
    /// Errors say where the database is and never the password.
    pub async fn connect(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let mut connector = DatabaseConnector::new(url)?;
        let (mut client, driver) = connector.first().await?;
        connect::migrate(&mut client).await?;
        let keys = Arc::new(RwLock::new(Arc::new(connect::load_keys(&client).await?)));
        let node_key = connect::load_node_key(&client).await?;
        let (commits, _) = watch::channel(lease::last_seq(&client).await?);
        driver.abort();
        let rules = Arc::new(options.rules);
        let epoch = Arc::new(AtomicU64::new(0));
        let writer_pool = connector.pool(1, WRITER_SETTINGS)?;
        let writer = PostgresWriter::start(
            writer_pool.clone(),
            Arc::clone(&keys),
            Arc::clone(&rules),
            Arc::clone(&epoch),
        );
        let listener = tokio::spawn(lease::listen(connector.clone(), commits.clone()));
        let engine = PostgresEngine {
            rules,
            keys,
            node_key,
            readers: connector.pool(options.readers.get(), &[])?,
            control: connector.pool(CONTROL_CONNECTIONS, &[])?,
            writer_pool,
            writer,
            epoch,
            commits,
            listener: listener.abort_handle(),
            closed: AtomicBool::new(false),
        };
        Ok(Self(Arc::new(engine)))
    }

    /// Returns the key by which nodes authenticate each other. It was drawn when the database was created.
    pub async fn node_key(&self) -> Result<[u8; 32], StoreError> {
        self.0.check_open()?;
        Ok(self.0.node_key)
    }
}

/// Time and id of an event.
type Item = (Timestamp, EventId);

fn item(at: Position) -> Item {
    (at.created_at(), at.event_id())
}

impl Drop for PostgresEngine {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl DatabaseEngine for PostgresEngine {
    async fn rows<T: Send + 'static>(&self, query: Query<T>) -> Result<Vec<T>, StoreError> {
        rows(&*self.reader().await?, query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let rows = commit_cost(&commit);
        let wanted = self.want(|keys, wanted| wanted.commit(keys, &commit));
        self.write(rows, wanted, move |tables| tables.commit(&commit))
            .await
    }
}

impl StoreEngine for PostgresEngine {
    type Tables<'a> = PostgresTables<'a>;

    fn want(&self, add: impl FnOnce(&Keys, &mut Wanted)) -> Wanted {
        let mut wanted = Wanted::default();
        // Nothing is written after the store is closed.
        if let Ok(keys) = self.keys() {
            add(&keys, &mut wanted);
        }
        wanted
    }

    async fn write<T, W>(&self, rows: usize, wanted: Wanted, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&PostgresTables<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.check_open()?;
        self.writer.perform(rows, wanted, work).await
    }

    fn try_write<W>(&self, wanted: Wanted, work: W)
    where
        W: FnOnce(&PostgresTables<'_>) -> Result<(), StoreError> + Send + 'static,
    {
        self.writer.try_perform(wanted, work);
    }

    async fn check(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> Result<Vec<Verdict>, StoreError> {
        let keys = self.keys()?;
        let wanted = self.want(|keys, wanted| {
            events.iter().for_each(|event| wanted.event(keys, event));
        });
        let mut tables = PostgresTables::new(&keys, &self.rules);
        tables.load(&*self.reader().await?, &wanted).await?;
        events
            .iter()
            .map(|event| tables.check(event, now))
            .collect()
    }

    fn keys(&self) -> Result<Arc<Keys>, StoreError> {
        self.check_open()?;
        self.keys
            .read()
            .map(|keys| Arc::clone(&keys))
            .map_err(|_| StoreError::Closed)
    }

    fn query(self: &Arc<Self>, filters: Vec<Filter>, now: Timestamp) -> EventChunks {
        let engine = Arc::clone(self);
        let search = engine
            .keys()
            .map(|keys| Search::new(&keys, filters, now, true));
        stream::unfold(Some(search), move |search| {
            let engine = Arc::clone(&engine);
            async move {
                let mut search = match search? {
                    Ok(search) => search,
                    Err(error) => return Some((Err(error), None)),
                };
                loop {
                    match engine.search(&mut search, MAX_CHUNK_EVENTS).await {
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
            let mut search = Search::new(&*self.keys()?, filters, now, false);
            let mut count = 0;
            while let Some(found) = self.search(&mut search, MAX_SLICE).await? {
                count += found.len() as u64;
            }
            Ok(count)
        })
    }

    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(async move {
            let keys = self.keys()?;
            let mut answers = vec![false; questions.len()];
            let first = |filters: Vec<Filter>| {
                let filters = filters.into_iter().map(|filter| filter.limit(1)).collect();
                Search::new(&keys, filters, now, false)
            };
            let searches = questions.into_iter().map(first).zip(&mut answers).collect();
            self.answer(searches).await?;
            Ok(answers)
        })
    }

    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory> {
        Box::pin(async move {
            let search = Search::new(&*self.keys()?, vec![filter], now, false);
            let items = match search.into_unordered() {
                Ok(all) => self.read_all(all, max).await?,
                Err(search) => self.read_in_order(search, max).await?,
            };
            let Some(mut items) = items else {
                return Ok(Inventory::TooMany);
            };
            items.sort();
            items.dedup();
            Ok(match items.len() > max {
                true => Inventory::TooMany,
                false => Inventory::Complete(items),
            })
        })
    }

    fn probe(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let last = Query::new(
                "SELECT seq FROM events ORDER BY seq DESC LIMIT 1",
                vec![],
                |row| row.unsigned(0),
            );
            self.rows(last).await.map(drop)
        })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.closed.store(true, Ordering::SeqCst);
            self.writer.stop().await;
            self.listener.abort();
            for pool in [&self.readers, &self.control, &self.writer_pool] {
                pool.close();
            }
            Ok(())
        })
    }
}

impl PostgresEngine {
    fn check_open(&self) -> Result<(), StoreError> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(StoreError::Closed),
            false => Ok(()),
        }
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
        let mut items = Vec::new();
        let most = max.saturating_add(1).min(MAX_SLICE);
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
                // When it was received is not known any more.
                let at = request.created_at;
                continue_request(self, request, at).await?;
            }
            None => {
                let id = EventId::from_byte_array(bytes(&row, 0)?);
                let forget = move |tables: &PostgresTables<'_>| tables.delete_unfinished(&id);
                self.write(1, Wanted::default(), forget).await?;
            }
        }
        Ok(true)
    }
}
