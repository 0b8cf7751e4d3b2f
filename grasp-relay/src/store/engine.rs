//! What the stores of all databases share: an engine executes statements, tasks and searches, and [`EngineStore`] makes
//! a store of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use grasp_core::admission::{Outcome, Rejection};
use grasp_core::nip34::References;
use grasp_core::{RepoId, Version};
use grasp_purgatory::database::{Commit, Committed};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::types::Value;
use serde::de::DeserializeOwned;

use super::changes::Wanted;
use super::changes::{Changes, blob, time};
use super::group::HEAVY_ROWS;
use super::keys::{Keys, Position};
use super::rules::{Continued, Deletions as _, Rows as _, Rules as _, Verdict};
use super::{
    EventChunks, EventStore, Inventory, ItemSet, MAX_TASK_ROWS, Present, SaveReport, StoreError,
    StoreFuture, SweepReport, failure, fits, write_cost,
};

/// Events removed in one transaction, so that saves queued behind it do not wait long.
const REMOVALS_PER_COMMIT: usize = 500;

/// Keys looked up in one read.
pub(crate) const KEYS_PER_READ: usize = 1_000;

/// Keys that are looked up on the thread of the caller: some tenths of a millisecond.
const MAX_SHORT_KEYS: usize = 128;

/// Selects the authors of a list in its own order, so that no more rows are read than are asked for.
pub(crate) const LISTING_SQL: &str = "SELECT e.pubkey FROM lists l JOIN events e ON e.seq = l.seq
    WHERE l.list = ?1 ORDER BY l.newest, l.id LIMIT ?2";

/// A row of a database.
pub(crate) trait Columns {
    fn value(&self, at: usize) -> Result<Value, StoreError>;
}

/// Reads a row.
pub(crate) type ReadRow<T> = fn(&dyn Columns) -> Result<T, StoreError>;

#[derive(Debug, thiserror::Error)]
#[error("the database has a row that is not readable: {0}")]
pub(crate) struct Unreadable(pub(crate) &'static str);

impl dyn Columns + '_ {
    pub(crate) fn integer(&self, at: usize) -> Result<i64, StoreError> {
        match self.value(at)? {
            Value::Integer(number) => Ok(number),
            _ => Err(failure(Unreadable("a number"))),
        }
    }

    /// Returns a number that was unsigned before it was written.
    pub(crate) fn unsigned(&self, at: usize) -> Result<u64, StoreError> {
        Ok(self.integer(at)?.unsigned_abs())
    }

    pub(crate) fn time(&self, at: usize) -> Result<Timestamp, StoreError> {
        Ok(Timestamp::from_secs(self.unsigned(at)?))
    }

    pub(crate) fn text(&self, at: usize) -> Result<String, StoreError> {
        match self.value(at)? {
            Value::Text(text) => Ok(text),
            _ => Err(failure(Unreadable("a text"))),
        }
    }

    /// Returns a text that has a type of its own.
    pub(crate) fn parse<T: FromStr>(&self, at: usize) -> Result<T, StoreError> {
        self.text(at)?
            .parse()
            .map_err(|_| failure(Unreadable("a name")))
    }

    pub(crate) fn json<T: DeserializeOwned>(&self, at: usize) -> Result<T, StoreError> {
        serde_json::from_str(&self.text(at)?).map_err(failure)
    }

    /// Returns an event from its JSON.
    pub(crate) fn event(&self, at: usize) -> Result<Event, StoreError> {
        Event::from_json(self.text(at)?).map_err(failure)
    }

    /// Returns bytes of one length; `None` for NULL and for none.
    pub(crate) fn bytes<const N: usize>(&self, at: usize) -> Result<Option<[u8; N]>, StoreError> {
        match self.value(at)? {
            Value::Null => Ok(None),
            Value::Blob(bytes) if bytes.is_empty() => Ok(None),
            Value::Blob(bytes) => bytes
                .try_into()
                .map(Some)
                .map_err(|_| failure(Unreadable("bytes"))),
            _ => Err(failure(Unreadable("bytes"))),
        }
    }

    /// Returns bytes that are not NULL.
    pub(crate) fn key<const N: usize>(&self, at: usize) -> Result<[u8; N], StoreError> {
        self.bytes(at)?.ok_or_else(|| failure(Unreadable("a key")))
    }

    /// Returns keys that were written one after the other.
    pub(crate) fn public_keys(&self, at: usize) -> Result<BTreeSet<PublicKey>, StoreError> {
        let Value::Blob(bytes) = self.value(at)? else {
            return Err(failure(Unreadable("keys")));
        };
        let mut keys = BTreeSet::new();
        for key in bytes.chunks(32) {
            let key = key.try_into().map_err(|_| failure(Unreadable("keys")))?;
            keys.insert(PublicKey::from_byte_array(key));
        }
        Ok(keys)
    }

    pub(crate) fn public_key(&self, at: usize) -> Result<PublicKey, StoreError> {
        Ok(PublicKey::from_byte_array(self.key(at)?))
    }

    pub(crate) fn event_id(&self, at: usize) -> Result<EventId, StoreError> {
        Ok(EventId::from_byte_array(self.key(at)?))
    }

    /// Returns the version of the columns `newest, id`.
    fn version(&self, at: usize) -> Result<Version, StoreError> {
        Ok(Position::new(self.integer(at)?, self.key(at + 1)?).version())
    }
}

/// A statement that every database executes. Its parameters are written `?1`.
pub(crate) struct Query<T> {
    pub(crate) sql: &'static str,
    /// Keys that the statement calls `ANY(?1)`, before the other values. It must find no more than one row for each.
    pub(crate) keys: Option<Vec<Value>>,
    pub(crate) values: Vec<Value>,
    pub(crate) read: ReadRow<T>,
    /// The rows are a few bytes each.
    has_small_rows: bool,
}

impl<T: Send + 'static> Query<T> {
    pub(crate) fn new(sql: &'static str, values: Vec<Value>, read: ReadRow<T>) -> Self {
        Self {
            sql,
            keys: None,
            values,
            read,
            has_small_rows: false,
        }
    }

    /// Notes that the rows are a few bytes each.
    fn of_small_rows(self) -> Self {
        Self {
            has_small_rows: true,
            ..self
        }
    }

    /// Returns whether this takes so little time that the thread of the caller can do it.
    pub(crate) fn is_short(&self) -> bool {
        let keys = self.keys.as_ref().map_or(usize::MAX, Vec::len);
        self.has_small_rows && keys <= MAX_SHORT_KEYS
    }

    /// Returns the rows of any number of keys.
    pub(crate) async fn rows_of(
        self,
        engine: &impl DatabaseEngine,
        keys: impl IntoIterator<Item = Value>,
    ) -> Result<Vec<T>, StoreError> {
        let keys: Vec<_> = keys.into_iter().collect();
        let mut found = Vec::new();
        for keys in keys.chunks(KEYS_PER_READ) {
            let keys = Some(keys.to_vec());
            let values = self.values.clone();
            found.extend(
                engine
                    .rows(Self {
                        keys,
                        values,
                        ..self
                    })
                    .await?,
            );
        }
        Ok(found)
    }
}

/// A database that executes statements.
pub(crate) trait DatabaseEngine: Send + Sync + 'static {
    /// Returns the rows of a query, all of one moment.
    fn rows<T: Send + 'static>(
        &self,
        query: Query<T>,
    ) -> impl Future<Output = Result<Vec<T>, StoreError>> + Send;

    fn commit(&self, commit: Commit) -> impl Future<Output = Result<Committed, StoreError>> + Send;
}

/// A database that keeps events, too.
pub(crate) trait StoreEngine: DatabaseEngine {
    /// The rows within one transaction.
    type Tables<'a>: Changes;

    /// Returns the rows that a write needs, if this database loads them before.
    fn want(&self, add: impl FnOnce(&Keys, &mut Wanted)) -> Wanted;

    /// Performs work of about this many rows in the next transaction, and returns its result once that is durable.
    fn write<T, W>(
        &self,
        rows: usize,
        wanted: Wanted,
        work: W,
    ) -> impl Future<Output = Result<T, StoreError>> + Send
    where
        T: Send + 'static,
        W: for<'a> FnOnce(&Self::Tables<'a>) -> Result<T, StoreError> + Send + 'static;

    /// Queues work without waiting for it; drops it if the queue is full.
    fn try_write<W>(&self, wanted: Wanted, work: W)
    where
        W: for<'a> FnOnce(&Self::Tables<'a>) -> Result<(), StoreError> + Send + 'static;

    /// Checks events and changes nothing.
    fn check(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Verdict>, StoreError>> + Send;

    /// Returns the number of transactions so far, if no other process changes the database.
    fn commits(&self) -> Option<u64> {
        None
    }

    /// Returns the keys of the indexes, unless the store is closed.
    fn keys(&self) -> Result<Arc<Keys>, StoreError>;

    fn query(self: &Arc<Self>, filters: Vec<Filter>, now: Timestamp) -> EventChunks;
    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64>;
    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>>;
    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory>;
    fn probe(&self) -> StoreFuture<'_, ()>;
    fn close(&self) -> StoreFuture<'_, ()>;

    /// Returns an inventory that may be kept; `None` beyond `max` items.
    fn item_set(
        &self,
        filter: Filter,
        now: Timestamp,
        max: usize,
    ) -> StoreFuture<'_, Option<ItemSet>> {
        Box::pin(async move { Ok(self.inventory(filter, now, max).await?.into_set()) })
    }
}

/// A store in the database of an engine.
pub struct EngineStore<E>(pub(super) Arc<E>);

impl<E> fmt::Debug for EngineStore<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineStore").finish_non_exhaustive()
    }
}

/// Tasks of one save that are queued at the same time, so that they can share a transaction.
const SAVES_AHEAD: usize = 4;

/// Divides events into tasks, in their order. Returns the rows of each.
fn save_tasks(events: Vec<Arc<Event>>) -> Vec<(usize, Vec<Arc<Event>>)> {
    let mut tasks = Vec::new();
    let mut batch = Vec::new();
    let mut rows = 0;
    for event in events {
        let cost = write_cost(&event);
        if !fits(rows, cost) {
            tasks.push((rows, std::mem::take(&mut batch)));
            rows = 0;
        }
        rows += cost;
        batch.push(event);
    }
    if !batch.is_empty() {
        tasks.push((rows, batch));
    }
    tasks
}

/// Applies a request to the end, and adds to the report what that removes; other writers get in between its steps.
pub(crate) async fn finish(
    engine: &impl StoreEngine,
    request: Arc<Event>,
    now: Timestamp,
    report: &mut SaveReport,
) -> Result<(), StoreError> {
    loop {
        let step = continue_request(engine, Arc::clone(&request), now).await?;
        report.affected.extend(step.affected);
        report.removed.extend(step.removed);
        if step.is_done {
            return Ok(());
        }
    }
}

/// Continues a request in a transaction of its own.
pub(crate) async fn continue_request(
    engine: &impl StoreEngine,
    request: Arc<Event>,
    now: Timestamp,
) -> Result<Continued, StoreError> {
    let wanted = engine.want(|keys, wanted| wanted.request(keys, &request));
    engine
        .write(MAX_TASK_ROWS, wanted, move |tables| {
            tables.continue_request(&request, now)
        })
        .await
}

/// Returns the versions that a statement finds at these coordinates.
async fn versions(
    engine: &impl StoreEngine,
    sql: &'static str,
    coordinates: impl IntoIterator<Item = Coordinate>,
    values: Vec<Value>,
) -> Result<BTreeMap<Coordinate, Version>, StoreError> {
    let keys = engine.keys()?;
    let coordinates = coordinates.into_iter();
    let mut at: BTreeMap<_, _> = coordinates.map(|at| (keys.coordinate(&at), at)).collect();
    let wanted: Vec<_> = at.keys().map(|key| blob(key)).collect();
    let read: ReadRow<_> = |row| Ok((row.key::<16>(2)?, row.version(0)?));
    let found = Query::new(sql, values, read)
        .of_small_rows()
        .rows_of(engine, wanted)
        .await?;
    Ok(found
        .into_iter()
        .filter_map(|(key, by)| Some((at.remove(&key)?, by)))
        .collect())
}

impl<E: StoreEngine> EventStore for EngineStore<E> {
    fn save_events(&self, events: Vec<Arc<Event>>, now: Timestamp) -> StoreFuture<'_, SaveReport> {
        Box::pin(async move {
            let tasks = save_tasks(events);
            let is_one = tasks.len() == 1;
            let mut tasks = tasks.into_iter();
            let mut report = SaveReport::default();
            let mut saves = FuturesOrdered::new();
            loop {
                while saves.len() < SAVES_AHEAD {
                    let Some((rows, batch)) = tasks.next() else {
                        break;
                    };
                    // Heavy tasks wait in one queue, which keeps their order.
                    let rows = if is_one { rows } else { rows.max(HEAVY_ROWS) };
                    let wanted = self.0.want(|keys, wanted| wanted.save(keys, &batch, now));
                    let save = move |tables: &E::Tables<'_>| tables.save(&batch, now);
                    saves.push_back(self.0.write(rows, wanted, save));
                }
                let Some(saved) = saves.next().await else {
                    return Ok(report);
                };
                let (saved, unfinished) = saved?;
                report.saved.extend(saved.saved);
                report.affected.extend(saved.affected);
                report.removed.extend(saved.removed);
                for request in unfinished {
                    finish(&*self.0, request, now, &mut report).await?;
                }
            }
        })
    }

    fn refusals(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<Option<Rejection>>> {
        Box::pin(async move {
            let verdicts = self.0.check(events.clone(), now).await?;
            let refusal = |(event, verdict): (Arc<Event>, _)| match verdict {
                Verdict::Done(Outcome::Refused { reason, .. }) => Some(reason),
                Verdict::Accepted | Verdict::Done(_) => None,
                Verdict::DeletedBy(request) => {
                    let wanted = self.0.want(|keys, wanted| wanted.event(keys, &event));
                    self.0
                        .try_write(wanted, move |tables| tables.note_use(request, now));
                    Some(Rejection::Deleted)
                }
            };
            Ok(events.into_iter().zip(verdicts).map(refusal).collect())
        })
    }

    fn commits(&self) -> Option<u64> {
        self.0.commits()
    }

    fn query(&self, filters: Vec<Filter>, now: Timestamp) -> EventChunks {
        self.0.query(filters, now)
    }

    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64> {
        self.0.count(filters, now)
    }

    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        self.0.exists(questions, now)
    }

    fn present(&self, named: References, now: Timestamp) -> StoreFuture<'_, Present> {
        Box::pin(async move {
            let ids = "SELECT id FROM events e WHERE id = ANY(?1) AND NOT EXISTS
                (SELECT 1 FROM expirations x WHERE x.seq = e.seq AND x.at <= ?2)";
            let wanted = named.ids.iter().map(|id| blob(id.as_bytes()));
            let ids = Query::new(ids, vec![time(now)], |row| row.event_id(0)).of_small_rows();
            let ids = ids.rows_of(&*self.0, wanted).await?.into_iter().collect();
            let heads = "SELECT newest, id, coordinate FROM heads h JOIN events e ON e.seq = h.seq
                WHERE coordinate = ANY(?1) AND NOT EXISTS
                (SELECT 1 FROM expirations x WHERE x.seq = e.seq AND x.at <= ?2)";
            let versions = versions(&*self.0, heads, named.coordinates, vec![time(now)]).await?;
            Ok(Present { ids, versions })
        })
    }

    fn heads(&self, coordinates: Vec<Coordinate>, now: Timestamp) -> StoreFuture<'_, Vec<Event>> {
        Box::pin(async move {
            let keys = self.0.keys()?;
            let sql = "SELECT json FROM heads h JOIN events e ON e.seq = h.seq
                WHERE coordinate = ANY(?1) AND NOT EXISTS
                (SELECT 1 FROM expirations x WHERE x.seq = e.seq AND x.at <= ?2)";
            let wanted: Vec<_> = coordinates
                .iter()
                .map(|at| blob(&keys.coordinate(at)))
                .collect();
            Query::new(sql, vec![time(now)], |row| row.event(0))
                .rows_of(&*self.0, wanted)
                .await
        })
    }

    fn keeps(&self, coordinate: Coordinate) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let key = self.0.keys()?.coordinate(&coordinate);
            let sql = "SELECT count(*) FROM (SELECT coordinate FROM heads WHERE coordinate = ?1
                UNION ALL SELECT coordinate FROM hidden WHERE coordinate = ?1) AS kept";
            let kept = Query::new(sql, vec![blob(&key)], |row| row.integer(0));
            Ok(self
                .0
                .rows(kept)
                .await?
                .first()
                .is_some_and(|count| *count > 0))
        })
    }

    fn listing(&self, repo: RepoId, most: usize) -> StoreFuture<'_, Vec<PublicKey>> {
        Box::pin(async move {
            let list = self.0.keys()?.listing(&repo);
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let values = vec![blob(&list), Value::Integer(most)];
            self.0
                .rows(Query::new(LISTING_SQL, values, |row| row.public_key(0)))
                .await
        })
    }

    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory> {
        self.0.inventory(filter, now, max)
    }

    fn item_set(
        &self,
        filter: Filter,
        now: Timestamp,
        max: usize,
    ) -> StoreFuture<'_, Option<ItemSet>> {
        self.0.item_set(filter, now, max)
    }

    fn superseded(&self, coordinate: Coordinate) -> StoreFuture<'_, Vec<Event>> {
        Box::pin(async move {
            let key = self.0.keys()?.coordinate(&coordinate);
            let sql = "SELECT json FROM superseded WHERE coordinate = ?1 ORDER BY newest, id";
            self.0
                .rows(Query::new(sql, vec![blob(&key)], |row| row.event(0)))
                .await
        })
    }

    fn remove(&self, ids: Vec<EventId>) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            self.0.keys()?;
            let mut removed = 0;
            for batch in ids.chunks(REMOVALS_PER_COMMIT) {
                let wanted = self.0.want(|_, wanted| wanted.remove(batch));
                let batch = batch.to_vec();
                let remove = move |tables: &E::Tables<'_>| tables.remove(&batch);
                removed += self.0.write(REMOVALS_PER_COMMIT, wanted, remove).await?;
            }
            Ok(removed)
        })
    }

    fn delist(&self, coordinate: Coordinate, by: Version, now: Timestamp) -> StoreFuture<'_, u64> {
        let wanted = self
            .0
            .want(|keys, wanted| wanted.coordinate(keys, &coordinate));
        Box::pin(
            self.0
                .write(1, wanted, move |tables| tables.delist(&coordinate, by, now)),
        )
    }

    fn delisted(
        &self,
        coordinates: Vec<Coordinate>,
    ) -> StoreFuture<'_, BTreeMap<Coordinate, Version>> {
        let sql = "SELECT newest, id, coordinate FROM delisted WHERE coordinate = ANY(?1)";
        Box::pin(versions(&*self.0, sql, coordinates, Vec::new()))
    }

    fn sweep(&self, now: Timestamp) -> StoreFuture<'_, SweepReport> {
        Box::pin(async move {
            let mut report = SweepReport::default();
            loop {
                let wanted = self.0.want(|_, wanted| wanted.sweep(now));
                let sweep = move |tables: &E::Tables<'_>| {
                    let swept = tables.sweep(now)?;
                    Ok((swept, tables.progress().take_removed()))
                };
                let (swept, removed) = self.0.write(1, wanted, sweep).await?;
                report.events += swept.events;
                report.removed.extend(removed);
                if !swept.has_more {
                    return Ok(report);
                }
            }
        })
    }

    fn probe(&self) -> StoreFuture<'_, ()> {
        self.0.probe()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.0.close()
    }
}
