//! Events in one SQLite file.
//!
//! ```text
//!  save, remove, sweep ──▶ queue ──▶ one writer thread: everything queued, one transaction, one fsync
//!  query, count, …     ──▶ queue ──▶ a few reader threads, each its own snapshot, in short turns
//! ```
//!
//! Nothing blocks an async thread, readers and the writer do not wait for each other (write-ahead log), and a save is
//! answered only after its transaction is on the disk.

mod budget;
mod delivery;
mod gather;
mod health;
mod inquiry;
mod keys;
mod ledger;
mod log;
mod plan;
mod readers;
mod scan;
mod schema;
mod search;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use grasp_core::nip34::References;
use grasp_core::{Identifier, Version};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::Connection;

use self::budget::Budget;
use self::delivery::Delivery;
pub use self::health::Integrity;
use self::inquiry::Inquiry;
use self::keys::Keys;
use self::ledger::{Ledger, Verdict};
use self::log::Log;
use self::readers::Readers;
use self::scan::Found;
use self::search::{Search, Turn};
use self::writer::Writer;
use super::rules::Rules;
use super::{Commit, EventStore, Inventory, Present, Refusal, StoreError, StoredEvent, rows};

/// Events removed in one transaction, so that saves waiting behind it are not kept for long.
const REMOVAL: usize = 500;

/// Rows written by one task, unless a single event has more, so that others need not wait for long.
const ROWS_PER_TASK: usize = 5_000;

/// Keys that one turn of a reader looks up.
const KEYS_PER_TURN: usize = 1_000;

/// How long a connection waits for a lock, which only another process can hold for long.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a [`SqliteStore`] uses the machine.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// What it does about deletion, vanishing and rollback.
    pub rules: Rules,
    /// How many threads read at the same time; each costs a connection and up to `reader_cache` of memory.
    pub readers: NonZeroUsize,
    /// Bytes of the file that one reader keeps in memory.
    pub reader_cache: usize,
    /// Bytes of the file that the writer keeps in memory; more makes large imports faster.
    pub writer_cache: usize,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            readers: NonZeroUsize::MIN.saturating_add(3),
            reader_cache: 2 * 1024 * 1024,
            writer_cache: 16 * 1024 * 1024,
        }
    }
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
/// let store = SqliteStore::open(&dir.path().join("events.db"), SqliteOptions::default()).unwrap();
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
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    rules: Arc<Rules>,
    keys: Arc<Keys>,
    writer: Writer,
    readers: Readers,
    closed: AtomicBool,
}

impl SqliteStore {
    /// Opens a file, which is made or brought up to date as needed; its directory must be there.
    ///
    /// Blocks for as long as that takes.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let mut conn = connect(path, options.writer_cache)?;
        schema::migrate(&mut conn)?;
        let keys = Keys::load(&conn).map_err(failure)?;
        let rules = Arc::new(options.rules);
        finish_requests(&mut conn, &keys, &rules).map_err(failure)?;
        let readers = Readers::start(path, options.readers, options.reader_cache)?;
        let copier = connect(path, 0)?;
        let writer = Log::watch(path, copier)
            .and_then(|log| Writer::start(conn, log, keys.clone(), Arc::clone(&rules)))
            .map_err(|error| StoreError::Engine(Box::new(error)))?;
        let shared = Shared {
            path: path.to_owned(),
            rules,
            keys: Arc::new(keys),
            writer,
            readers,
            closed: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Deletes everything: events, kept versions, and all memory of deletion and vanishing.
    pub async fn forget_everything(&self) -> Result<(), StoreError> {
        self.shared.write(1, |ledger| ledger.forget_everything()).await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.shared.path)
            .field("rules", &self.shared.rules)
            .finish_non_exhaustive()
    }
}

impl EventStore for SqliteStore {
    fn commit(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Commit, StoreError>> {
        Box::pin(async move {
            let mut commit = Commit::default();
            let mut events = events.into_iter().peekable();
            while events.peek().is_some() {
                let (mut some, mut weight) = (Vec::new(), 0);
                while let Some(event) = events.next_if(|event| fits(weight, rows(event))) {
                    weight += rows(&event);
                    some.push(event);
                }
                let save = move |ledger: &Ledger<'_>| ledger.save(&some, now);
                let (Commit { saved, affected }, unfinished) =
                    self.shared.write(weight, save).await?;
                commit.saved.extend(saved);
                commit.affected.extend(affected);
                for request in unfinished {
                    commit.affected.extend(self.shared.finish(request).await?);
                }
            }
            Ok(commit)
        })
    }

    fn refusal(
        &self,
        event: Arc<Event>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Refusal>, StoreError>> {
        Box::pin(
            async move { Ok(self.refusals(vec![event], now).await?.into_iter().next().flatten()) },
        )
    }

    fn refusals(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Option<Refusal>>, StoreError>> {
        Box::pin(async move {
            let judge = move |ledger: &Ledger<'_>| {
                events.iter().map(|event| ledger.judge(event, now)).collect::<Result<Vec<_>, _>>()
            };
            let verdicts = self.shared.read(judge).await?.into_iter();
            let refusal = |verdict| match verdict {
                Verdict::Welcome | Verdict::Known | Verdict::Superseded => None,
                Verdict::Refused(refusal) => Some(refusal),
                Verdict::Deleted(by) => {
                    let note = move |ledger: &Ledger<'_>| ledger.note_use(by, now);
                    self.shared.writer.suggest(note);
                    Some(Refusal::Deleted)
                }
            };
            Ok(verdicts.map(refusal).collect())
        })
    }

    fn query(
        &self,
        filters: Vec<Filter>,
        now: Timestamp,
    ) -> BoxStream<'static, Result<Vec<StoredEvent>, StoreError>> {
        let shared = Arc::clone(&self.shared);
        let delivery = Delivery::new(filters, now);
        stream::unfold(Some(delivery), move |delivery| {
            let shared = Arc::clone(&shared);
            async move { delivery?.next(&shared).await }
        })
        .boxed()
    }

    fn count(
        &self,
        filters: Vec<Filter>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut search = Search::new(filters, now);
            let mut count = 0;
            loop {
                let (found, turn);
                (search, found, turn) = self.shared.search(search, usize::MAX).await?;
                count += found.len() as u64;
                if turn == Turn::Finished {
                    return Ok(count);
                }
            }
        })
    }

    fn exists(
        &self,
        questions: Vec<Vec<Filter>>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            let mut inquiry = Inquiry::new(questions, now);
            loop {
                let turn;
                (inquiry, turn) = self
                    .shared
                    .read(move |ledger| {
                        let turn = inquiry.turn(ledger)?;
                        Ok((inquiry, turn))
                    })
                    .await?;
                if turn == Turn::Finished {
                    return Ok(inquiry.into_answers());
                }
            }
        })
    }

    fn present(
        &self,
        named: References,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Present, StoreError>> {
        Box::pin(async move {
            let mut present = Present::default();
            let (ids, coordinates): (Vec<_>, Vec<_>) =
                (named.ids.into_iter().collect(), named.coordinates.into_iter().collect());
            for some in ids.chunks(KEYS_PER_TURN) {
                let some = some.to_vec();
                let find = move |ledger: &Ledger<'_>| ledger.served_of(&some, now);
                present.ids.extend(self.shared.read(find).await?);
            }
            for some in coordinates.chunks(KEYS_PER_TURN) {
                let some = some.to_vec();
                let find = move |ledger: &Ledger<'_>| ledger.versions_at(some, now);
                present.versions.extend(self.shared.read(find).await?);
            }
            Ok(present)
        })
    }

    fn inventory(
        &self,
        filter: Filter,
        now: Timestamp,
        max: usize,
    ) -> BoxFuture<'_, Result<Inventory, StoreError>> {
        Box::pin(async move {
            let mut search = Search::new(vec![filter], now);
            let mut items = Vec::new();
            loop {
                let wanted = (max - items.len()).saturating_add(1);
                let turn;
                (search, items, turn) = self
                    .shared
                    .read(move |ledger| {
                        let turn = search.list(ledger, wanted, &mut items)?;
                        Ok((search, items, turn))
                    })
                    .await?;
                if items.len() > max {
                    return Ok(Inventory::TooMany);
                }
                if turn == Turn::Finished {
                    return Ok(Inventory::Complete(items));
                }
            }
        })
    }

    fn superseded(&self, coordinate: Coordinate) -> BoxFuture<'_, Result<Vec<Event>, StoreError>> {
        Box::pin(async move {
            let kept = self.shared.read(move |ledger| ledger.superseded(&coordinate)).await?;
            let parsed = kept.iter().map(Event::from_json);
            parsed.collect::<Result<_, _>>().map_err(|error| StoreError::Engine(Box::new(error)))
        })
    }

    fn remove(&self, ids: Vec<EventId>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            self.shared.open_only()?;
            let mut removed = 0;
            for some in ids.chunks(REMOVAL) {
                let some = some.to_vec();
                let remove = move |ledger: &Ledger<'_>| ledger.remove(&some);
                removed += self.shared.write(REMOVAL, remove).await?;
            }
            Ok(removed)
        })
    }

    fn delist(
        &self,
        coordinate: Coordinate,
        by: Version,
        _: Timestamp,
    ) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.shared.write(1, move |ledger| ledger.delist(&coordinate, by))
    }

    fn delisted(
        &self,
        coordinates: Vec<Coordinate>,
    ) -> BoxFuture<'_, Result<BTreeMap<Coordinate, Version>, StoreError>> {
        Box::pin(self.shared.read(move |ledger| {
            let mut found = BTreeMap::new();
            for coordinate in coordinates {
                let by = ledger.delisted_by(&ledger.keys.coordinate(&coordinate))?;
                found.extend(by.map(|by| (coordinate, by.version())));
            }
            Ok(found)
        }))
    }

    fn sweep(&self, now: Timestamp) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut events = 0;
            loop {
                let swept = self.shared.write(1, move |ledger| ledger.sweep(now)).await?;
                events += swept.events;
                if !swept.more {
                    return Ok(events);
                }
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.shared.closed.store(true, Ordering::SeqCst);
            // The writer goes last: the last connection to close tidies the log away.
            self.shared.readers.stop().await;
            self.shared.writer.stop().await;
            Ok(())
        })
    }
}

impl Shared {
    fn write<T, W>(&self, weight: usize, work: W) -> BoxFuture<'_, Result<T, StoreError>>
    where
        T: Send + 'static,
        W: FnOnce(&Ledger<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        Box::pin(async move {
            self.open_only()?;
            self.writer.perform(weight, work).await
        })
    }

    /// Carries a request out to the end, and lets others write between its steps.
    async fn finish(&self, request: Arc<Event>) -> Result<BTreeSet<Identifier>, StoreError> {
        let mut affected = BTreeSet::new();
        loop {
            let request = Arc::clone(&request);
            let go_on = move |ledger: &Ledger<'_>| ledger.go_on(&request);
            let (is_done, names) = self.write(ROWS_PER_TASK, go_on).await?;
            affected.extend(names);
            if is_done {
                return Ok(affected);
            }
        }
    }

    async fn read<T, R>(&self, errand: R) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnOnce(&Ledger<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.open_only()?;
        self.readers.read(&self.keys, &self.rules, errand).await
    }

    async fn search(
        &self,
        mut search: Search,
        wanted: usize,
    ) -> Result<(Search, Vec<Found>, Turn), StoreError> {
        self.read(move |ledger| {
            let mut found = Vec::new();
            let turn = search.turn(ledger, wanted, &mut found, &mut Budget::of_turn())?;
            Ok((search, found, turn))
        })
        .await
    }

    fn open_only(&self) -> Result<(), StoreError> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(StoreError::Closed),
            false => Ok(()),
        }
    }
}

/// Carries out what the last process began to.
fn finish_requests(conn: &mut Connection, keys: &Keys, rules: &Rules) -> rusqlite::Result<()> {
    loop {
        let tx = conn.transaction()?;
        let ledger = Ledger::new(&tx, keys, rules);
        let Some(request) = ledger.next_unfinished()? else { break };
        ledger.go_on(&request)?;
        ledger.finish()?;
        drop(ledger);
        tx.commit()?;
    }
    Ok(())
}

/// Whether more rows fit into a task of these.
const fn fits(weight: usize, rows: usize) -> bool {
    weight == 0 || weight + rows <= ROWS_PER_TASK
}

/// Opens a connection the way all of ours are.
fn connect(path: &Path, cache: usize) -> Result<Connection, StoreError> {
    let conn = Connection::open(path).map_err(failure)?;
    let cache_kib = i64::try_from(cache / 1024).unwrap_or(i64::MAX);
    let kept_log = i64::try_from(log::KEPT).unwrap_or(i64::MAX);
    let set = || {
        conn.busy_timeout(PATIENCE)?;
        conn.set_prepared_statement_cache_capacity(64);
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.pragma_update(None, "journal_size_limit", kept_log)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        conn.pragma_update(None, "cache_size", -cache_kib)
    };
    set().map_err(failure)?;
    Ok(conn)
}

fn failure(error: rusqlite::Error) -> StoreError {
    StoreError::Engine(Box::new(error))
}
