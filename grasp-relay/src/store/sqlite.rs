//! The database of a server in one SQLite file: events, refs, packs and the records of purgatory.
//!
//! ```text
//!  commit, save, sweep ──▶ queue ──▶ one writer thread: everything queued, one transaction, one fsync
//!  query, count, …     ──▶ queue ──▶ a few reader threads, each its own snapshot, in short turns
//! ```
//!
//! Nothing blocks an async thread, readers and the writer do not wait for each other (write-ahead log), and a save is
//! answered only after its transaction is on the disk.

mod git;
mod reader;
mod readers;
mod scan;
mod search;
mod tables;
mod wal;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
use rusqlite::Connection;

pub use self::reader::{SqliteReader, is_damage};
use self::readers::{ExistsQuery, QueryCursor, Readers};
use self::scan::IndexRow;
use self::search::{ReadBudget, SearchProgress, SlicedSearch};
use self::tables::SqliteTables;
use self::wal::Wal;
use self::writer::SqliteWriter;
use super::changes::Changes;
use super::keys::Keys;
use super::rules::{Deletions, Rows, Rules, Verdict};
use super::{
    EventChunks, EventStore, Inventory, MAX_TASK_ROWS, Present, Refusal, SaveReport, StoreError,
    StoreFuture, StoreRules, commit_cost, fits, write_cost,
};

/// Events removed in one transaction, so that saves queued behind it do not wait long.
const REMOVALS_PER_COMMIT: usize = 500;

/// Keys looked up in one read.
const KEYS_PER_READ: usize = 1_000;

/// The time that a connection waits for a lock, which only another process can hold for long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a [`SqliteStore`].
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The rules for deletion, vanishing and rollback.
    pub rules: StoreRules,
    /// The number of reader threads; each costs a connection and up to `reader_cache` of memory.
    pub readers: NonZeroUsize,
    /// Bytes of the file that one reader caches.
    pub reader_cache: usize,
    /// Bytes of the file that the writer caches; more makes large imports faster.
    pub writer_cache: usize,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            rules: StoreRules::default(),
            readers: NonZeroUsize::MIN.saturating_add(3),
            reader_cache: 2 * 1024 * 1024,
            writer_cache: 16 * 1024 * 1024,
        }
    }
}

/// The result of [`SqliteStore::integrity_check`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Integrity {
    /// No fault was found.
    Sound,
    /// One line per fault.
    Damaged(Vec<String>),
}

/// An [`EventStore`] in one SQLite file.
///
/// ```
/// use std::sync::Arc;
///
/// use futures_util::StreamExt;
/// use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
/// use grasp_relay::store::{EventStore, Saved};
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind};
/// use nostr::filter::Filter;
/// use nostr::key::Keys;
/// use nostr::types::Timestamp;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let dir = tempfile::tempdir().unwrap();
/// let store = SqliteStore::open(&dir.path().join("grasp.db"), SqliteOptions::default()).unwrap();
///
/// let issue = EventBuilder::new(Kind::from_u16(1621), "it does not build")
///     .finalize(&Keys::generate())
///     .unwrap();
/// let now = Timestamp::now();
/// let saved = store.save(vec![Arc::new(issue.clone())], now).await.unwrap();
/// assert_eq!(saved, [Saved::Stored]);
///
/// let mut found = store.query(vec![Filter::new().kind(issue.kind).limit(10)], now);
/// let chunk = found.next().await.unwrap().unwrap();
/// assert_eq!(chunk[0].id, issue.id);
/// # });
/// ```
pub struct SqliteStore {
    inner: Arc<SqliteInner>,
}

struct SqliteInner {
    path: PathBuf,
    rules: Arc<StoreRules>,
    keys: Arc<Keys>,
    writer: SqliteWriter,
    readers: Readers,
    closed: AtomicBool,
}

impl SqliteStore {
    /// Opens a file, which is created or migrated as needed; its directory must exist.
    ///
    /// Blocks the thread until that is done.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let mut conn = connect(path, options.writer_cache)?;
        tables::migrate(&mut conn)?;
        let keys = tables::load_keys(&conn).map_err(failure)?;
        let rules = Arc::new(options.rules);
        finish_requests(&mut conn, &keys, &rules).map_err(failure)?;
        let readers = Readers::start(path, options.readers, options.reader_cache)?;
        let checkpointer = connect(path, 0)?;
        let writer = Wal::start(path, checkpointer)
            .and_then(|wal| SqliteWriter::start(conn, wal, keys.clone(), Arc::clone(&rules)))
            .map_err(|error| StoreError::Engine(Box::new(error)))?;
        let inner = SqliteInner {
            path: path.to_owned(),
            rules,
            keys: Arc::new(keys),
            writer,
            readers,
            closed: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Deletes all events, kept versions, and records of deletion and vanishing.
    pub async fn forget_everything(&self) -> Result<(), StoreError> {
        self.inner.write(1, |tables| tables.forget_everything()).await
    }

    /// Checks the whole file: its pages, its indexes, and whether they name the same events.
    ///
    /// Reads everything, while the store goes on working.
    pub async fn integrity_check(&self) -> Result<Integrity, StoreError> {
        let faults = self.inner.read(examine).await?;
        Ok(match faults.is_empty() {
            true => Integrity::Sound,
            false => Integrity::Damaged(faults),
        })
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.inner.path)
            .field("rules", &self.inner.rules)
            .finish_non_exhaustive()
    }
}

impl EventStore for SqliteStore {
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
                let save = move |tables: &SqliteTables<'_>| tables.save(&batch, now);
                let (SaveReport { saved, affected }, unfinished) =
                    self.inner.write(weight, save).await?;
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
            let judge = move |tables: &SqliteTables<'_>| {
                events.iter().map(|event| tables.check(event, now)).collect::<Result<Vec<_>, _>>()
            };
            let verdicts = self.inner.read(judge).await?.into_iter();
            let refusal = |verdict| match verdict {
                Verdict::Accepted | Verdict::Duplicate | Verdict::Superseded => None,
                Verdict::Refused(refusal) => Some(refusal),
                Verdict::DeletedBy(by) => {
                    let note = move |tables: &SqliteTables<'_>| tables.note_use(by, now);
                    self.inner.writer.try_perform(note);
                    Some(Refusal::Deleted)
                }
            };
            Ok(verdicts.map(refusal).collect())
        })
    }

    fn query(&self, filters: Vec<Filter>, now: Timestamp) -> EventChunks {
        let inner = Arc::clone(&self.inner);
        let cursor = QueryCursor::new(filters, now);
        stream::unfold(Some(cursor), move |cursor| {
            let inner = Arc::clone(&inner);
            async move { cursor?.next(&inner).await }
        })
        .boxed()
    }

    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let mut search = SlicedSearch::new(filters, now);
            let mut count = 0;
            loop {
                let (found, progress);
                (search, found, progress) = self.inner.search(search, usize::MAX).await?;
                count += found.len() as u64;
                if progress == SearchProgress::Finished {
                    return Ok(count);
                }
            }
        })
    }

    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(async move {
            let mut query = ExistsQuery::new(questions, now);
            loop {
                let progress;
                (query, progress) = self
                    .inner
                    .read(move |tables| {
                        let progress = query.advance(tables)?;
                        Ok((query, progress))
                    })
                    .await?;
                if progress == SearchProgress::Finished {
                    return Ok(query.into_answers());
                }
            }
        })
    }

    fn present(&self, named: References, now: Timestamp) -> StoreFuture<'_, Present> {
        Box::pin(async move {
            let mut present = Present::default();
            let (ids, coordinates): (Vec<_>, Vec<_>) =
                (named.ids.into_iter().collect(), named.coordinates.into_iter().collect());
            for batch in ids.chunks(KEYS_PER_READ) {
                let batch = batch.to_vec();
                let find = move |tables: &SqliteTables<'_>| tables.served_of(&batch, now);
                present.ids.extend(self.inner.read(find).await?);
            }
            for batch in coordinates.chunks(KEYS_PER_READ) {
                let batch = batch.to_vec();
                let find = move |tables: &SqliteTables<'_>| tables.versions_at(batch, now);
                present.versions.extend(self.inner.read(find).await?);
            }
            Ok(present)
        })
    }

    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory> {
        Box::pin(async move {
            let mut search = SlicedSearch::new(vec![filter], now);
            let mut items = Vec::new();
            loop {
                let wanted = (max - items.len()).saturating_add(1);
                let progress;
                (search, items, progress) = self
                    .inner
                    .read(move |tables| {
                        let progress = search.list(tables, wanted, &mut items)?;
                        Ok((search, items, progress))
                    })
                    .await?;
                if items.len() > max {
                    return Ok(Inventory::TooMany);
                }
                if progress == SearchProgress::Finished {
                    return Ok(Inventory::Complete(items));
                }
            }
        })
    }

    fn superseded(&self, coordinate: Coordinate) -> StoreFuture<'_, Vec<Event>> {
        Box::pin(async move {
            let kept = self.inner.read(move |tables| tables.superseded(&coordinate)).await?;
            let parsed = kept.iter().map(Event::from_json);
            parsed.collect::<Result<_, _>>().map_err(|error| StoreError::Engine(Box::new(error)))
        })
    }

    fn remove(&self, ids: Vec<EventId>) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            self.inner.check_open()?;
            let mut removed = 0;
            for batch in ids.chunks(REMOVALS_PER_COMMIT) {
                let batch = batch.to_vec();
                let remove = move |tables: &SqliteTables<'_>| tables.remove(&batch);
                removed += self.inner.write(REMOVALS_PER_COMMIT, remove).await?;
            }
            Ok(removed)
        })
    }

    fn delist(&self, coordinate: Coordinate, by: Version, _: Timestamp) -> StoreFuture<'_, u64> {
        self.inner.write(1, move |tables| tables.delist(&coordinate, by))
    }

    fn delisted(
        &self,
        coordinates: Vec<Coordinate>,
    ) -> StoreFuture<'_, BTreeMap<Coordinate, Version>> {
        Box::pin(self.inner.read(move |tables| {
            let mut found = BTreeMap::new();
            for coordinate in coordinates {
                let by = tables.delisted_by(&tables.keys.coordinate(&coordinate))?;
                found.extend(by.map(|by| (coordinate, by.version())));
            }
            Ok(found)
        }))
    }

    fn sweep(&self, now: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let mut events = 0;
            loop {
                let swept = self.inner.write(1, move |tables| tables.sweep(now)).await?;
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
            // The writer stops last: closing the last connection removes the write-ahead log.
            self.inner.readers.stop().await;
            self.inner.writer.stop().await;
            Ok(())
        })
    }
}

impl Database for SqliteStore {
    fn commit(&self, commit: Commit) -> DatabaseFuture<'_, Committed> {
        let rows = commit_cost(&commit);
        let written = self.inner.write(rows, move |tables| tables.commit(&commit));
        Box::pin(async move { Ok(written.await?) })
    }

    fn view(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<View>> {
        self.inner.look_up(move |tables| tables.view(endpoint, &repo))
    }

    fn family(&self, endpoint: Endpoint, identifier: Identifier) -> DatabaseFuture<'_, FamilyRow> {
        self.inner.look_up(move |tables| tables.family(endpoint, &identifier))
    }

    fn packs(
        &self,
        endpoint: Endpoint,
    ) -> DatabaseFuture<'_, BTreeMap<Identifier, BTreeSet<Pack>>> {
        self.inner.look_up(move |tables| tables.packs(endpoint))
    }

    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>> {
        self.inner.look_up(move |tables| tables.repositories(endpoint))
    }

    fn identifiers(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        self.inner.look_up(move |tables| tables.identifiers(endpoint))
    }

    fn existing(
        &self,
        endpoint: Endpoint,
        identifiers: BTreeSet<Identifier>,
    ) -> DatabaseFuture<'_, BTreeSet<Identifier>> {
        self.inner.look_up(move |tables| tables.existing(endpoint, identifiers))
    }

    fn records(&self) -> DatabaseFuture<'_, Vec<Record>> {
        self.inner.look_up(|tables| tables.records())
    }

    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>> {
        self.inner.look_up(move |tables| tables.additions(since))
    }
}

impl SqliteInner {
    /// Reads for a [`Database`].
    fn look_up<T, R>(&self, read: R) -> DatabaseFuture<'_, T>
    where
        T: Send + 'static,
        R: FnOnce(&SqliteTables<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        Box::pin(async move { Ok(self.read(read).await?) })
    }

    fn write<T, W>(&self, weight: usize, work: W) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
        W: FnOnce(&SqliteTables<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        Box::pin(async move {
            self.check_open()?;
            self.writer.perform(weight, work).await
        })
    }

    /// Applies a request to the end; other writers get in between its steps.
    async fn finish(&self, request: Arc<Event>) -> Result<BTreeSet<Identifier>, StoreError> {
        let mut affected = BTreeSet::new();
        loop {
            let request = Arc::clone(&request);
            let continue_request =
                move |tables: &SqliteTables<'_>| tables.continue_request(&request);
            let (is_done, names) = self.write(MAX_TASK_ROWS, continue_request).await?;
            affected.extend(names);
            if is_done {
                return Ok(affected);
            }
        }
    }

    async fn read<T, R>(&self, task: R) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnOnce(&SqliteTables<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.check_open()?;
        self.readers.read(&self.keys, &self.rules, task).await
    }

    async fn search(
        &self,
        mut search: SlicedSearch,
        wanted: usize,
    ) -> Result<(SlicedSearch, Vec<IndexRow>, SearchProgress), StoreError> {
        self.read(move |tables| {
            let mut found = Vec::new();
            let progress =
                search.advance(tables, wanted, &mut found, &mut ReadBudget::of_slice())?;
            Ok((search, found, progress))
        })
        .await
    }

    fn check_open(&self) -> Result<(), StoreError> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(StoreError::Closed),
            false => Ok(()),
        }
    }
}

/// Applies the requests that the last process did not finish.
fn finish_requests(conn: &mut Connection, keys: &Keys, rules: &StoreRules) -> rusqlite::Result<()> {
    loop {
        let tx = conn.transaction()?;
        let tables = SqliteTables::new(&tx, keys, rules);
        let Some(request) = tables.next_unfinished()? else { break };
        tables.continue_request(&request)?;
        tables.flush()?;
        drop(tables);
        tx.commit()?;
    }
    Ok(())
}

/// Opens a connection with the settings that all connections share.
fn connect(path: &Path, cache: usize) -> Result<Connection, StoreError> {
    let conn = Connection::open(path).map_err(failure)?;
    let cache_kib = i64::try_from(cache / 1024).unwrap_or(i64::MAX);
    let max_wal = i64::try_from(wal::MAX_WAL_BYTES).unwrap_or(i64::MAX);
    let set = || {
        conn.busy_timeout(BUSY_TIMEOUT)?;
        conn.set_prepared_statement_cache_capacity(64);
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.pragma_update(None, "journal_size_limit", max_wal)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        conn.pragma_update(None, "cache_size", -cache_kib)
    };
    set().map_err(failure)?;
    Ok(conn)
}

fn examine(tables: &SqliteTables<'_>) -> rusqlite::Result<Vec<String>> {
    let report = "PRAGMA integrity_check";
    let mut faults: Vec<String> =
        tables.conn.prepare(report)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    faults.retain(|line| line != "ok");
    for table in ["lists", "heads", "expirations"] {
        let stray =
            format!("SELECT count(*) FROM {table} WHERE seq NOT IN (SELECT seq FROM events)");
        let count: i64 = tables.conn.query_row(&stray, [], |row| row.get(0))?;
        if count > 0 {
            faults.push(format!("{count} rows of {table} refer to events that do not exist"));
        }
    }
    Ok(faults)
}

fn failure(error: rusqlite::Error) -> StoreError {
    StoreError::Engine(Box::new(error))
}
