//! The writer thread, which commits queued writes in groups.
//!
//! Everything that was queued while the last transaction was written goes into the next one, so that all share the
//! cost of making it durable. Callers get their result after the commit; if it fails, all of them get the error.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use nostr::event::EventId;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::mpsc;

use super::SqliteEngine;
use super::kept::TouchedEvents;
use super::tables::SqliteTables;
use super::wal::Wal;
use crate::store::group::{
    self, CommitGroup, HeavyShare, HeavyTasks, LastCommit, QUEUE_CAPACITY, WriteTask, WriterCommand,
};
use crate::store::keys::Keys;
use crate::store::{StoreError, StoreRules, failure};

/// A handle to the writer thread.
pub(super) struct SqliteWriter {
    queue: mpsc::Sender<Command>,
    commits: Arc<AtomicU64>,
    touched: Arc<Mutex<TouchedEvents>>,
}

type Task = Box<dyn WriteTask<SqliteEngine>>;
type Command = WriterCommand<Task>;

impl SqliteWriter {
    pub(super) fn start(
        conn: Connection,
        wal: Wal,
        keys: Keys,
        rules: Arc<StoreRules>,
    ) -> std::io::Result<Self> {
        let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
        let commits = Arc::<AtomicU64>::default();
        let touched = Arc::<Mutex<TouchedEvents>>::default();
        let thread = WriterThread {
            conn,
            commits: Arc::clone(&commits),
            touched: Arc::clone(&touched),
            wal,
            keys,
            rules,
            heavy: VecDeque::new(),
        };
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || thread.work(commands))?;
        Ok(Self {
            queue,
            commits,
            touched,
        })
    }

    /// Returns the number of transactions so far. One counts before its callers get their results.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// Returns the events that commits have stored or removed.
    pub(super) fn touched(&self) -> MutexGuard<'_, TouchedEvents> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs work in the next transaction and returns its result once that is durable.
    pub(super) async fn perform<T, W>(&self, rows: usize, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&SqliteTables<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (task, answer) = group::task::<SqliteEngine, _, _>(work);
        let sent = self.queue.send(WriterCommand::Perform(rows, task)).await;
        sent.map_err(|_| StoreError::Closed)?;
        answer.received().await
    }

    /// Queues work without waiting for it; drops it if the queue is full.
    pub(super) fn try_perform<W>(&self, work: W)
    where
        W: FnOnce(&SqliteTables<'_>) -> Result<(), StoreError> + Send + 'static,
    {
        let (task, _) = group::task::<SqliteEngine, _, _>(work);
        // A full queue means that there are more important things to write.
        let _ = self.queue.try_send(WriterCommand::Perform(1, task));
    }

    /// Finishes queued writes, closes the write-ahead log and ends the thread.
    pub(super) async fn stop(&self) {
        group::stop(&self.queue).await;
    }
}

/// The state of the writer thread.
struct WriterThread {
    conn: Connection,
    commits: Arc<AtomicU64>,
    touched: Arc<Mutex<TouchedEvents>>,
    wal: Wal,
    keys: Keys,
    rules: Arc<StoreRules>,
    /// Heavy tasks for later transactions.
    heavy: HeavyTasks<Task>,
}

impl WriterThread {
    fn work(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut last = LastCommit::default();
        let mut heavy_share = HeavyShare::default();
        let mut stopped = None;
        loop {
            let mut group = CommitGroup::default();
            if self.heavy.is_empty() {
                let Some(first) = commands.blocking_recv() else {
                    break;
                };
                group.take(first, &mut commands, &mut self.heavy);
            }
            group.gather(&mut commands, &mut self.heavy);
            let pause = last.pause(group.tasks.len() + self.heavy.len());
            if !pause.is_zero() {
                thread::sleep(pause);
                group.gather(&mut commands, &mut self.heavy);
            }
            let is_alone = group.tasks.is_empty();
            group.take_heavy(&mut self.heavy, heavy_share.next(is_alone));
            last = self.commit(group.tasks, &commands);
            stopped = stopped.or(group.stopped);
        }
        self.close();
        if let Some(done) = stopped {
            let _ = done.send(());
        }
    }

    fn commit(&mut self, mut group: Vec<Task>, commands: &mpsc::Receiver<Command>) -> LastCommit {
        let start = Instant::now();
        let ended = match self.transact(&mut group) {
            Ok(touched) => {
                let mut noted = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
                noted.note(touched);
                Ok(())
            }
            Err(error) => Err(Arc::new(error)),
        };
        if let Err(error) = &ended {
            let cause = std::error::Error::source(&**error).map(ToString::to_string);
            tracing::error!(%error, cause, waiting = group.len(), "the event store could not commit");
        }
        let last = LastCommit {
            callers: group.len() + self.heavy.len() + commands.len(),
            took: start.elapsed(),
        };
        self.commits.fetch_add(1, Ordering::AcqRel);
        for task in group {
            task.resolve(&ended);
        }
        self.wal.committed(&self.conn);
        last
    }

    /// Performs tasks in one transaction. Returns the events that it stores or removes.
    fn transact(&mut self, group: &mut [Task]) -> Result<Vec<EventId>, StoreError> {
        let tx = self
            .conn
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = tx.map_err(failure)?;
        self.wal.preallocate();
        let tables = SqliteTables::new(&tx, &self.keys, &self.rules);
        for task in group {
            task.perform(&tables)?;
        }
        tables.flush()?;
        let touched = tables.take_touched();
        drop(tables);
        tx.commit().map_err(failure)?;
        Ok(touched)
    }

    fn close(self) {
        self.wal.close(&self.conn);
        // Closing the last connection removes the log; the next start reads what is left in it.
        drop(self.conn);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use futures_util::future::join_all;

    use super::*;
    use crate::store::sqlite::{connect, migrations, tables};

    /// Starts a writer on a new file whose connection was prepared.
    fn writer(path: &Path, prepare: impl FnOnce(&Connection)) -> SqliteWriter {
        let mut conn = connect(path, 1024 * 1024).unwrap();
        migrations::migrate(&mut conn).unwrap();
        conn.execute_batch("CREATE TABLE notes (text)").unwrap();
        prepare(&conn);
        let keys = tables::load_keys(&conn).unwrap();
        let wal = Wal::start(path, connect(path, 0).unwrap()).unwrap();
        SqliteWriter::start(conn, wal, keys, Arc::default()).unwrap()
    }

    fn notes(path: &Path) -> i64 {
        let conn = connect(path, 0).unwrap();
        conn.query_row("SELECT count(*) FROM notes", [], |row| row.get(0))
            .unwrap()
    }

    fn note(tables: &SqliteTables<'_>, length: usize) -> Result<(), StoreError> {
        let text = "x".repeat(length);
        tables.execute("INSERT INTO notes VALUES (?1)", [text])?;
        Ok(())
    }

    /// Keeps the writer busy until it is released, so that other tasks queue.
    async fn hold(writer: &SqliteWriter, started: Sender<()>, go: Receiver<()>) {
        let held = writer.perform(1, move |tables| {
            started.send(()).unwrap();
            go.recv().unwrap();
            note(tables, 1)
        });
        held.await.unwrap();
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(work)
    }

    #[test]
    fn tasks_queued_during_a_write_share_the_next_transaction() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let writer = writer(&path, |_| ());
        let ((started, starts), (go, goes)) = (channel(), channel());
        let seen = (0..10).map(|_| {
            let path = path.clone();
            writer.perform(1, move |tables| {
                note(tables, 1)?;
                Ok(notes(&path))
            })
        });
        let queue = async {
            starts.recv().unwrap();
            tokio::join!(biased; join_all(seen), async { go.send(()).unwrap() }).0
        };
        let ((), seen) =
            block_on(async { tokio::join!(biased; hold(&writer, started, goes), queue) });
        // Each saw what the first had committed, and nothing of the others.
        let seen: Vec<i64> = seen.into_iter().map(Result::unwrap).collect();
        assert_eq!(seen, [1; 10]);
        assert_eq!(notes(&path), 11);
    }

    #[test]
    fn heavy_tasks_are_spread_and_light_ones_do_not_wait_for_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let writer = writer(&path, |_| ());
        let ((started, starts), (go, goes)) = (channel(), channel());
        let weights = [4_000, 4_000, 4_000, 4_000, 1];
        let seen = weights.map(|rows| {
            let path = path.clone();
            writer.perform(rows, move |tables| {
                note(tables, 1)?;
                Ok(notes(&path))
            })
        });
        let queue = async {
            starts.recv().unwrap();
            tokio::join!(biased; join_all(seen), async { go.send(()).unwrap() }).0
        };
        let ((), seen) =
            block_on(async { tokio::join!(biased; hold(&writer, started, goes), queue) });
        let seen: Vec<i64> = seen.into_iter().map(Result::unwrap).collect();
        // The light one went with the first two, the others after them.
        assert_eq!(seen, [1, 1, 4, 4, 1]);
    }

    #[test]
    fn when_the_disk_fails_every_caller_gets_the_error_and_nothing_is_stored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let writer = writer(&path, |conn| {
            conn.pragma_update(None, "max_page_count", 60).unwrap();
        });
        let ((started, starts), (go, goes)) = (channel(), channel());
        let lengths = [10, 10, 1_000_000, 10];
        let tasks = lengths.map(|length| writer.perform(1, move |tables| note(tables, length)));
        let queue = async {
            starts.recv().unwrap();
            tokio::join!(biased; join_all(tasks), async { go.send(()).unwrap() }).0
        };
        let ((), ended) =
            block_on(async { tokio::join!(biased; hold(&writer, started, goes), queue) });
        for answer in ended {
            assert!(matches!(answer, Err(StoreError::Engine(_))));
        }
        assert_eq!(notes(&path), 1);
        // Writing continues once there is room again.
        block_on(writer.perform(1, |tables| note(tables, 10))).unwrap();
        assert_eq!(notes(&path), 2);
    }

    #[test]
    fn stopping_finishes_what_was_queued_and_refuses_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let writer = writer(&path, |_| ());
        let queued = (0..5).map(|_| writer.perform(1, |tables| note(tables, 1)));
        let (done, ()) = block_on(async { tokio::join!(biased; join_all(queued), writer.stop()) });
        assert!(done.iter().all(Result::is_ok));
        let late = block_on(writer.perform(1, |tables| note(tables, 1)));
        assert!(matches!(late, Err(StoreError::Closed)));
        assert_eq!(notes(&path), 5);
    }
}
