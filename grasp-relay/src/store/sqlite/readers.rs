//! Reader threads, each with a connection of its own, and the queries that run on them in slices.
//!
//! Every read is short: long scans are cut into slices and queue again, so that no slow client occupies a reader and
//! no snapshot lives long enough to keep the write-ahead log from restarting.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nostr::filter::Filter;
use nostr::types::Timestamp;
use rusqlite::{Connection, OptionalExtension};
use tokio::sync::{mpsc, oneshot};

use super::scan::IndexRow;
use super::search::{ReadBudget, SEEK_ROWS, SearchProgress, SlicedSearch};
use super::tables::SqliteTables;
use super::{SqliteEngine, connect, direct};
use crate::store::keys::Keys;
use crate::store::{StoreError, StoreRules, StoredEvent, failure};

/// Reads that may be queued before callers wait for a place in the queue.
const QUEUE_CAPACITY: usize = 1_024;

/// A handle to the reader threads.
pub(super) struct Readers {
    queue: mpsc::Sender<ReaderCommand>,
    count: usize,
}

type ReadTask = Box<dyn FnOnce(&Connection) + Send>;

enum ReaderCommand {
    Run(ReadTask),
    Stop(oneshot::Sender<()>),
}

impl Readers {
    pub(super) fn start(
        path: &Path,
        count: NonZeroUsize,
        cache: usize,
    ) -> Result<Self, StoreError> {
        let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
        let commands = Arc::new(Mutex::new(commands));
        for number in 0..count.get() {
            let conn = open_for_reading(path, cache)?;
            let commands = Arc::clone(&commands);
            thread::Builder::new()
                .name(format!("store-reader-{number}"))
                .spawn(move || work(conn, &commands))
                .map_err(failure)?;
        }
        Ok(Self {
            queue,
            count: count.get(),
        })
    }

    /// Reads from one snapshot; does nothing if the caller has stopped waiting by then.
    pub(super) async fn read<T, R>(
        &self,
        keys: &Arc<Keys>,
        rules: &Arc<StoreRules>,
        task: R,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        R: FnOnce(&SqliteTables<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let (keys, rules) = (Arc::clone(keys), Arc::clone(rules));
        let run = move |conn: &Connection| {
            if !reply.is_closed() {
                let read = snapshot(conn, &keys, &rules, task);
                let _ = reply.send(read);
            }
        };
        let sent = self.queue.send(ReaderCommand::Run(Box::new(run))).await;
        sent.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(failure)?
    }

    /// Finishes queued reads and ends the threads.
    pub(super) async fn stop(&self) {
        let mut ended = Vec::new();
        for _ in 0..self.count {
            let (done, finished) = oneshot::channel();
            if self.queue.send(ReaderCommand::Stop(done)).await.is_ok() {
                ended.push(finished);
            }
        }
        for finished in ended {
            // An error means that the thread has ended already.
            let _ = finished.await;
        }
    }
}

/// Opens a connection that writes nothing.
pub(super) fn open_for_reading(path: &Path, cache: usize) -> Result<Connection, StoreError> {
    let conn = connect(path, cache)?;
    conn.pragma_update(None, "query_only", true)
        .map_err(failure)?;
    Ok(conn)
}

pub(super) fn snapshot<T>(
    conn: &Connection,
    keys: &Keys,
    rules: &StoreRules,
    task: impl FnOnce(&SqliteTables<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let tx = conn.unchecked_transaction().map_err(failure)?;
    task(&SqliteTables::new(&tx, keys, rules))
}

fn work(conn: Connection, commands: &Mutex<mpsc::Receiver<ReaderCommand>>) {
    loop {
        let command = commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv();
        match command {
            Some(ReaderCommand::Run(task)) => {
                // A panic is a bug: it fails this read, whose caller gets an error, and the thread goes on.
                let _ = panic::catch_unwind(AssertUnwindSafe(|| task(&conn)));
            }
            Some(ReaderCommand::Stop(done)) => {
                drop(conn);
                let _ = done.send(());
                return;
            }
            None => return,
        }
    }
}

/// Events per chunk of a query: the default limit, and the event by which it is seen that there are more.
const MAX_CHUNK_EVENTS: usize = 512;

/// Rows found ahead of what is loaded: finding them is cheap, starting the search again is not.
const LOOKAHEAD_ROWS: usize = 2 * MAX_CHUNK_EVENTS;

/// A query between two chunks.
pub(super) struct QueryCursor {
    search: SlicedSearch,
    found: VecDeque<IndexRow>,
    finished: bool,
    /// The next chunk may be read on the thread that asks for it.
    is_short: bool,
}

type Delivered = (Result<Vec<StoredEvent>, StoreError>, Option<QueryCursor>);

impl QueryCursor {
    pub(super) fn new(filters: Vec<Filter>, now: Timestamp) -> Self {
        Self {
            is_short: direct::is_short(&filters),
            search: SlicedSearch::new(filters, now),
            found: VecDeque::new(),
            finished: false,
        }
    }

    /// Reads until there is a chunk, or nothing is left. Ends after an error.
    pub(super) async fn next(mut self, engine: &SqliteEngine) -> Option<Delivered> {
        while !(self.finished && self.found.is_empty()) {
            let is_short = std::mem::take(&mut self.is_short);
            let read = move |tables: &SqliteTables<'_>, budget: &mut ReadBudget| {
                let chunk = self.chunk(tables, budget)?;
                Ok((self, chunk))
            };
            let chunk;
            (self, chunk) = match engine.search(is_short, read).await {
                Ok(read) => read,
                Err(error) => return Some((Err(error), None)),
            };
            if !chunk.is_empty() {
                return Some((Ok(chunk), Some(self)));
            }
        }
        None
    }

    fn chunk(
        &mut self,
        tables: &SqliteTables<'_>,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<Vec<StoredEvent>> {
        if self.found.is_empty() && !self.finished {
            let mut found = Vec::new();
            let progress = self
                .search
                .advance(tables, LOOKAHEAD_ROWS, &mut found, budget)?;
            self.finished = progress == SearchProgress::Finished;
            self.found = found.into();
        }
        let mut chunk = Vec::new();
        let mut bytes = 0;
        while chunk.len() < MAX_CHUNK_EVENTS && bytes < budget.max_chunk_bytes() {
            let Some(found) = self.found.pop_front() else {
                break;
            };
            if let Some(event) = load(tables, &found)? {
                bytes += event.json.len();
                chunk.push(event);
            }
        }
        Ok(chunk)
    }
}

/// Loads an event that was found, unless it was removed since.
fn load(tables: &SqliteTables<'_>, found: &IndexRow) -> rusqlite::Result<Option<StoredEvent>> {
    let json: Option<Arc<str>> = tables
        .conn
        .prepare_cached("SELECT json FROM events WHERE seq = ?1 AND id = ?2")?
        .query_row((found.seq, found.at.id()), |row| {
            Ok(Arc::from(row.get_ref(0)?.as_str()?))
        })
        .optional()?;
    Ok(json.map(|json| StoredEvent {
        id: found.at.event_id(),
        created_at: found.at.created_at(),
        json,
    }))
}

/// Finds out, for each of several questions, whether any event matches.
pub(super) struct ExistsQuery {
    /// The filters of each question that were not tried yet. The first that matches answers it.
    questions: Vec<VecDeque<Filter>>,
    /// The answers so far; the question after them is in progress.
    answers: Vec<bool>,
    search: Option<SlicedSearch>,
    now: Timestamp,
}

impl ExistsQuery {
    pub(super) fn new(questions: Vec<Vec<Filter>>, now: Timestamp) -> Self {
        let questions = questions.into_iter().map(VecDeque::from).collect();
        Self {
            questions,
            answers: Vec::new(),
            search: None,
            now,
        }
    }

    /// Answers questions until all are answered, or the slice is over.
    pub(super) fn advance(
        &mut self,
        tables: &SqliteTables<'_>,
        budget: &mut ReadBudget,
    ) -> rusqlite::Result<SearchProgress> {
        while let Some(filters) = self.questions.get_mut(self.answers.len()) {
            if budget.is_spent() {
                return Ok(SearchProgress::Paused);
            }
            budget.spend(SEEK_ROWS);
            let search = match (self.search.take(), filters.pop_front()) {
                (Some(search), next) => {
                    next.into_iter().for_each(|next| filters.push_front(next));
                    Some(search)
                }
                (None, next) => {
                    next.map(|filter| SlicedSearch::new(vec![filter.limit(1)], self.now))
                }
            };
            let Some(mut search) = search else {
                self.answers.push(false);
                continue;
            };
            let mut found = Vec::new();
            let progress = search.advance(tables, 1, &mut found, budget)?;
            if !found.is_empty() {
                self.answers.push(true);
            } else if progress == SearchProgress::Paused {
                self.search = Some(search);
            }
        }
        Ok(SearchProgress::Finished)
    }

    pub(super) fn into_answers(self) -> Vec<bool> {
        self.answers
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nostr::event::{Event, EventBuilder, FinalizeEvent as _, Kind};
    use nostr::key::Keys as Signer;

    use super::*;
    use crate::store::EventStore as _;
    use crate::store::sqlite::{SqliteOptions, SqliteStore};

    /// Returns the number of events that a short read gives, and whether it used up its budget; `None` if it went to the
    /// reader threads.
    fn read_here(store: &SqliteStore, cursor: &mut QueryCursor) -> Option<(usize, bool)> {
        let engine = &store.0;
        let read = engine
            .direct
            .try_read(&engine.keys, &engine.rules, |tables, budget| {
                let chunk = cursor.chunk(tables, budget).map_err(failure)?;
                Ok((chunk.len(), budget.is_spent()))
            });
        Some(read.ok()?.unwrap())
    }

    #[tokio::test]
    async fn a_long_query_leaves_its_thread_soon_and_sends_the_next_ones_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let mut store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
        // Other work on the machine makes no read slow here.
        let engine = Arc::get_mut(&mut store.0).unwrap();
        engine.direct.slow_after = Duration::MAX;
        let signer = Signer::generate();
        let note = |nth: usize| -> Arc<Event> {
            let note = EventBuilder::new(Kind::TextNote, nth.to_string());
            Arc::new(note.finalize(&signer).unwrap())
        };
        let now = Timestamp::now();
        let saved = store.save((0..1_500).map(note).collect(), now).await;
        assert_eq!(saved.unwrap().len(), 1_500);
        let of_author = Filter::new().author(signer.public_key()).limit(20);
        let short = || QueryCursor::new(vec![of_author.clone()], now);
        // All events of the author are read, and none is found.
        let long = || QueryCursor::new(vec![of_author.clone().kind(Kind::from(7))], now);
        for _ in 0..40 {
            assert_eq!(read_here(&store, &mut short()), Some((20, false)));
        }
        let mut begun = long();
        assert!(begun.is_short);
        assert_eq!(read_here(&store, &mut begun), Some((0, true)));
        assert!(!begun.finished, "the whole list was read at once");
        for _ in 0..16 {
            assert_eq!(read_here(&store, &mut short()), None);
        }
        assert_eq!(read_here(&store, &mut short()), Some((20, false)));
        // It goes on at the reader threads.
        begun.is_short = false;
        assert!(begun.next(&store.0).await.is_none());
        let (found, _) = short().next(&store.0).await.unwrap();
        assert_eq!(found.unwrap().len(), 20);
        // What takes many values, or gives many events, is not tried.
        let many = QueryCursor::new(vec![of_author.clone().limit(500)], now);
        let wide = of_author.clone().kinds((0..1_000).map(Kind::from));
        assert!(!many.is_short && !QueryCursor::new(vec![wide], now).is_short);
        store.close().await.unwrap();
        assert_eq!(read_here(&store, &mut short()), None);
    }
}
