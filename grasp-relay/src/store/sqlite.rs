//! The database of a server in one SQLite file: events, refs, packs and the records of purgatory.
//!
//! ```text
//!  commit, save, sweep ──▶ queue ──▶ one writer thread: everything queued, one transaction, one fsync
//!  query, exists, …    ──▶ a short read on the caller's thread; if that is not enough:
//!  query, count, …     ──▶ queue ──▶ a few reader threads, each its own snapshot, in short turns
//! ```
//!
//! Nothing blocks an async thread for longer than a short read, which is a millisecond; readers and the writer do not wait for each other (write-ahead log), and a save is
//! answered only after its transaction is on the disk.

mod direct;
mod kept;
mod migrations;
mod reader;
mod readers;
mod scan;
mod search;
mod tables;
mod wal;
mod writer;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use grasp_purgatory::database::{Commit, Committed};
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::types::Timestamp;
use rusqlite::{Connection, OptionalExtension as _};

use self::direct::DirectReaders;
use self::kept::{KeptSet, KeptSets};
pub use self::reader::{SqliteFile, SqliteReader, is_damage};
use self::readers::{ExistsQuery, QueryCursor, Readers};
use self::search::{ReadBudget, SearchProgress, SlicedSearch};
use self::tables::SqliteTables;
use self::wal::Wal;
use self::writer::SqliteWriter;
use super::changes::Changes as _;
use super::changes::Wanted;
use super::engine::{DatabaseEngine, EngineStore, Query, StoreEngine};
use super::keys::{self, Keys};
use super::rules::{Deletions, Rules, Verdict};
use super::{
    EventChunks, Inventory, ItemSet, StoreError, StoreFuture, StoreRules, commit_cost, failure,
};

/// The time that a connection waits for a lock, which only another process can hold for long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a [`SqliteStore`].
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The rules for deletion, vanishing and rollback.
    pub rules: StoreRules,
    /// The number of reader threads. Each costs a connection and up to `reader_cache` of memory, as does each processor,
    /// up to eight, for short reads on the threads of their callers.
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

/// An [`EventStore`](super::EventStore) in one SQLite file.
///
/// ```
/// use std::sync::Arc;
///
/// use futures_util::StreamExt;
/// use grasp_relay::ingest::Outcome;
/// use grasp_relay::store::EventStore;
/// use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
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
/// assert_eq!(saved, [Outcome::Stored]);
///
/// let mut found = store.query(vec![Filter::new().kind(issue.kind).limit(10)], now);
/// let chunk = found.next().await.unwrap().unwrap();
/// assert_eq!(chunk[0].id, issue.id);
/// # });
/// ```
pub type SqliteStore = EngineStore<SqliteEngine>;

/// An open SQLite file, with its writer and its readers.
pub struct SqliteEngine {
    rules: Arc<StoreRules>,
    keys: Arc<Keys>,
    writer: SqliteWriter,
    readers: Readers,
    direct: DirectReaders,
    kept: Mutex<KeptSets>,
    closed: AtomicBool,
    /// An operation has found the file to be damaged.
    damaged: AtomicBool,
}

impl SqliteStore {
    /// Opens a file, which is created or migrated as needed; its directory must exist. A file of an earlier schema is
    /// copied first, to the same name with `.schema-` and its version behind.
    ///
    /// Blocks the thread until that is done.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let mut conn = connect(path, options.writer_cache)?;
        migrations::migrate(&mut conn)?;
        let keys = tables::load_keys(&conn).map_err(failure)?;
        let rules = Arc::new(options.rules);
        finish_requests(&mut conn, &keys, &rules)?;
        let readers = Readers::start(path, options.readers, options.reader_cache)?;
        let direct = DirectReaders::open(path, options.reader_cache)?;
        let checkpointer = connect(path, 0)?;
        let writer = Wal::start(path, checkpointer)
            .and_then(|wal| SqliteWriter::start(conn, wal, keys.clone(), Arc::clone(&rules)))
            .map_err(failure)?;
        let engine = SqliteEngine {
            rules,
            keys: Arc::new(keys),
            writer,
            readers,
            direct,
            kept: Mutex::default(),
            closed: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
        };
        Ok(Self(Arc::new(engine)))
    }

    /// Checks the whole file: its pages, its indexes, and whether they name the same events.
    ///
    /// Returns one line per fault. Reads everything, while the store goes on working.
    pub async fn integrity_check(&self) -> Result<Vec<String>, StoreError> {
        self.0.search(false, |tables, _| examine(tables.conn)).await
    }
}

impl DatabaseEngine for SqliteEngine {
    async fn rows<T: Send + 'static>(&self, query: Query<T>) -> Result<Vec<T>, StoreError> {
        let is_short = query.is_short();
        self.read(is_short, move |tables, _| tables::rows(tables.conn, query))
            .await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let rows = commit_cost(&commit);
        let wanted = self.want(|keys, wanted| wanted.commit(keys, &commit));
        self.write(rows, wanted, move |tables| tables.commit(&commit))
            .await
    }
}

impl StoreEngine for SqliteEngine {
    type Tables<'a> = SqliteTables<'a>;

    fn want(&self, _: impl FnOnce(&Keys, &mut Wanted)) -> Wanted {
        Wanted::default()
    }

    async fn write<T, W>(&self, rows: usize, _: Wanted, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&SqliteTables<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.check_open()?;
        self.note_damage(self.writer.perform(rows, work).await)
    }

    fn try_write<W>(&self, _: Wanted, work: W)
    where
        W: FnOnce(&SqliteTables<'_>) -> Result<(), StoreError> + Send + 'static,
    {
        self.writer.try_perform(work);
    }

    async fn check(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> Result<Vec<Verdict>, StoreError> {
        self.read(false, move |tables, _| {
            events
                .iter()
                .map(|event| tables.check(event, now))
                .collect()
        })
        .await
    }

    fn commits(&self) -> Option<u64> {
        Some(self.writer.commits())
    }

    fn keys(&self) -> Result<Arc<Keys>, StoreError> {
        self.check_open()?;
        Ok(Arc::clone(&self.keys))
    }

    fn query(self: &Arc<Self>, filters: Vec<Filter>, now: Timestamp) -> EventChunks {
        let engine = Arc::clone(self);
        let cursor = QueryCursor::new(filters, now);
        stream::unfold(Some(cursor), move |cursor| {
            let engine = Arc::clone(&engine);
            async move { cursor?.next(&engine).await }
        })
        .boxed()
    }

    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let mut search = SlicedSearch::new(filters, now);
            let mut count = 0;
            loop {
                let (found, progress);
                (search, found, progress) = self
                    .search(false, move |tables, budget| {
                        let mut found = Vec::new();
                        let progress = search.advance(tables, usize::MAX, &mut found, budget)?;
                        Ok((search, found.len(), progress))
                    })
                    .await?;
                count += found as u64;
                if progress == SearchProgress::Finished {
                    return Ok(count);
                }
            }
        })
    }

    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(async move {
            // An event that names a stored one leaves nothing to ask.
            if questions.iter().all(Vec::is_empty) {
                self.check_open()?;
                return Ok(vec![false; questions.len()]);
            }
            let mut is_short = direct::are_short(&questions);
            let mut query = ExistsQuery::new(questions, now);
            loop {
                let progress;
                (query, progress) = self
                    .search(is_short, move |tables, budget| {
                        let progress = query.advance(tables, budget)?;
                        Ok((query, progress))
                    })
                    .await?;
                is_short = false;
                if progress == SearchProgress::Finished {
                    return Ok(query.into_answers());
                }
            }
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
                    .search(false, move |tables, budget| {
                        let progress = search.list(tables, wanted, &mut items, budget)?;
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

    fn item_set(
        &self,
        filter: Filter,
        now: Timestamp,
        max: usize,
    ) -> StoreFuture<'_, Option<ItemSet>> {
        Box::pin(async move {
            if !kept::can_be_kept(&filter) {
                return Ok(self.inventory(filter, now, max).await?.into_set());
            }
            self.check_open()?;
            let kept = self.kept().find(&filter, now);
            let set = match kept {
                Some(kept) => self.update(&filter, kept, now).await?,
                None => None,
            };
            let set = match set {
                Some(set) => set,
                None => match self.read_set(&filter, now, max).await? {
                    Some(set) => set,
                    None => return Ok(None),
                },
            };
            let items = Arc::clone(&set.items);
            self.kept().keep(filter, set);
            Ok((items.len() <= max).then_some(items))
        })
    }

    fn probe(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.search(false, |tables, _| read_from_disk(tables.conn))
                .await?;
            match self.damaged.load(Ordering::SeqCst) {
                true => Err(failure(Damaged)),
                false => Ok(()),
            }
        })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.closed.store(true, Ordering::SeqCst);
            // The writer stops last: closing the last connection removes the write-ahead log.
            self.readers.stop().await;
            self.direct.close();
            self.writer.stop().await;
            Ok(())
        })
    }
}

impl SqliteEngine {
    /// Reads from one snapshot: on this thread if the task is expected to be short and a connection is free, else on a
    /// reader thread.
    async fn read<T, R>(&self, is_short: bool, task: R) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnOnce(&SqliteTables<'_>, &mut ReadBudget) -> Result<T, StoreError> + Send + 'static,
    {
        self.check_open()?;
        let mut task = task;
        if is_short {
            task = match self.direct.try_read(&self.keys, &self.rules, task) {
                Ok(read) => return self.note_damage(read),
                Err(task) => task,
            };
        }
        let slice = move |tables: &SqliteTables<'_>| task(tables, &mut ReadBudget::of_slice());
        self.note_damage(self.readers.read(&self.keys, &self.rules, slice).await)
    }

    fn kept(&self) -> MutexGuard<'_, KeptSets> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the set of a filter; `None` beyond `max` items.
    async fn read_set(
        &self,
        filter: &Filter,
        now: Timestamp,
        max: usize,
    ) -> Result<Option<KeptSet>, StoreError> {
        // Before the set is read: what is committed meanwhile is looked up again.
        let mark = self.writer.touched().mark();
        let next_expiry = self.next_expiry(now).await?;
        let Some(items) = self.inventory(filter.clone(), now, max).await?.into_set() else {
            return Ok(None);
        };
        Ok(Some(KeptSet {
            items,
            mark,
            read_at: now,
            next_expiry,
        }))
    }

    /// Brings a set up to date; `None` if it has to be read anew.
    async fn update(
        &self,
        filter: &Filter,
        kept: KeptSet,
        now: Timestamp,
    ) -> Result<Option<KeptSet>, StoreError> {
        let noted = {
            let touched = self.writer.touched();
            touched.since(kept.mark).map(|ids| (ids, touched.mark()))
        };
        let Some((touched, mark)) = noted else {
            return Ok(None);
        };
        if touched.is_empty() {
            return Ok(Some(kept));
        }
        let next_expiry = self.next_expiry(now).await?;
        let of_touched = filter.clone().ids(touched.iter().copied());
        let inventory = self.inventory(of_touched, now, usize::MAX).await?;
        let Inventory::Complete(present) = inventory else {
            return Ok(None);
        };
        Ok(Some(KeptSet {
            items: Arc::new(kept.updated(&touched, present)),
            mark,
            read_at: now,
            next_expiry,
        }))
    }

    /// Returns the time at which the next stored event expires.
    async fn next_expiry(&self, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let now = keys::seconds(now.as_secs());
        let at: Option<i64> = self
            .search(false, move |tables, _| {
                let sql = "SELECT min(at) FROM expirations WHERE at > ?1";
                let mut statement = tables.conn.prepare_cached(sql)?;
                statement.query_row([now], |row| row.get(0))
            })
            .await?;
        Ok(at.map(|at| Timestamp::from_secs(at.unsigned_abs())))
    }

    /// Remembers that the file is damaged, if this result says so.
    fn note_damage<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if result.as_ref().is_err_and(|error| is_damage(error)) {
            self.damaged.store(true, Ordering::SeqCst);
        }
        result
    }

    /// Runs a slice of a search.
    async fn search<T, R>(&self, is_short: bool, slice: R) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnOnce(&SqliteTables<'_>, &mut ReadBudget) -> rusqlite::Result<T> + Send + 'static,
    {
        self.read(is_short, move |tables, budget| {
            slice(tables, budget).map_err(failure)
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

/// The file of the database was found to be damaged.
#[derive(Debug, thiserror::Error)]
#[error("the database is damaged; `grasp check` shows where")]
struct Damaged;

/// Reads the schema and the last event, past what this connection has in memory.
fn read_from_disk(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA shrink_memory")?;
    conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    let last = "SELECT json FROM events ORDER BY seq DESC LIMIT 1";
    let read: Option<String> = conn.query_row(last, [], |row| row.get(0)).optional()?;
    drop(read);
    Ok(())
}

/// Applies the requests that the last process did not finish.
fn finish_requests(
    conn: &mut Connection,
    keys: &Keys,
    rules: &StoreRules,
) -> Result<(), StoreError> {
    loop {
        let tx = conn.transaction().map_err(failure)?;
        let tables = SqliteTables::new(&tx, keys, rules);
        let Some(request) = tables.next_unfinished()? else {
            break;
        };
        // When it was received is not known any more.
        tables.continue_request(&request, request.created_at)?;
        tables.flush()?;
        drop(tables);
        tx.commit().map_err(failure)?;
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

fn examine(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let report = "PRAGMA integrity_check";
    let mut faults: Vec<String> = conn
        .prepare(report)?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    faults.retain(|line| line != "ok");
    for table in ["lists", "heads", "expirations"] {
        let stray =
            format!("SELECT count(*) FROM {table} WHERE seq NOT IN (SELECT seq FROM events)");
        let count: i64 = conn.query_row(&stray, [], |row| row.get(0))?;
        if count > 0 {
            faults.push(format!(
                "{count} rows of {table} refer to events that do not exist"
            ));
        }
    }
    Ok(faults)
}
