//! Keeps the write-ahead log short.
//!
//! Commits go to the log; copying them into the file (a checkpoint) is a second, slower write. A thread of its own
//! does most of that beside the writer. Only if the log grows long nevertheless does the writer wait for the
//! checkpoint, after which the log starts again at its beginning.
//!
//! A commit that overwrites bytes of the log file is durable several times sooner than one that makes the file
//! longer, which the file system records in its own journal. So the file is extended ahead of the log, in large
//! steps, and kept at that length.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

/// Pages of log that are worth a checkpoint: with more of them, one page of the file more often stands for several.
const CHECKPOINT_PAGES: i64 = 16_000;

/// Pages of log after which the writer waits for a checkpoint.
const RESTART_PAGES: i64 = 2 * CHECKPOINT_PAGES;

/// The time that a restart of the log waits for readers. Their reads are much shorter, except for an integrity check,
/// which must not stop writes.
const RESTART_BUSY_TIMEOUT: Duration = Duration::from_millis(200);

/// Bytes of one page in the log including its header, and of the log's own header.
const FRAME_BYTES: u64 = 4_096 + 24;
const HEADER_BYTES: u64 = 32;

/// Bytes by which the log file is extended at once, at most.
const MAX_GROWTH_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of the log file that are kept for reuse: all that it ever needs.
pub(super) const MAX_WAL_BYTES: u64 = RESTART_PAGES.unsigned_abs() * FRAME_BYTES;

/// The write-ahead log, from the writer's side.
pub(super) struct Wal {
    checkpointer: SyncSender<()>,
    /// Held during a checkpoint, because SQLite refuses a second one at the same time.
    checkpointing: Arc<Mutex<()>>,
    thread: JoinHandle<()>,
    file: File,
    /// Pages in the log after the last commit.
    length: u64,
    /// The length at which the writer waits; raised after a wait that failed.
    restart_at: i64,
}

/// SQLite's report on a checkpoint.
struct Checkpoint {
    /// Readers or another checkpoint were in the way.
    is_busy: bool,
    /// Pages of the log, and how many of them are in the file, too.
    length: i64,
    copied: i64,
}

impl Wal {
    /// Starts the checkpoint thread, which ends when this is dropped. The database must be open for writing.
    pub(super) fn start(path: &Path, conn: Connection) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push("-wal");
        let file = OpenOptions::new().write(true).open(name)?;
        let (checkpointer, calls) = mpsc::sync_channel(1);
        let checkpointing = Arc::new(Mutex::new(()));
        let turn = Arc::clone(&checkpointing);
        let thread = thread::Builder::new()
            .name("store-log".to_owned())
            .spawn(move || {
                while calls.recv().is_ok() {
                    let _copying = turn.lock();
                    log_failure(checkpoint(&conn, "PASSIVE"));
                }
            })?;
        Ok(Self {
            checkpointer,
            checkpointing,
            thread,
            file,
            length: 0,
            restart_at: RESTART_PAGES,
        })
    }

    /// Extends the log file, if the log is about to reach its end.
    ///
    /// Must be called in a transaction that holds the write lock and has not written yet: no other process can append
    /// to the log then. SQLite stops reading the log at zeros.
    pub(super) fn preallocate(&self) {
        let end = HEADER_BYTES + self.length * FRAME_BYTES;
        let step = end.min(MAX_GROWTH_BYTES);
        let longer = || {
            let have = self.file.metadata()?.len();
            if have < (end + step / 2).min(MAX_WAL_BYTES) {
                (&self.file).seek(SeekFrom::Start(have))?;
                let zeros = (end + step).min(MAX_WAL_BYTES).saturating_sub(have);
                io::copy(&mut io::repeat(0).take(zeros), &mut &self.file)?;
            }
            Ok::<_, io::Error>(())
        };
        if let Err(error) = longer() {
            tracing::warn!(%error, "the event store's write-ahead log could not be extended");
        }
    }

    /// Checkpoints if the log has grown enough; must be called after each commit.
    pub(super) fn committed(&mut self, writer: &Connection) {
        // NOOP copies nothing and only reports the length.
        let Some(log) = log_failure(checkpoint(writer, "NOOP")) else {
            return;
        };
        self.length = u64::try_from(log.length).unwrap_or(0);
        if log.length > self.restart_at {
            let is_restarted = log_failure(self.restart(writer)).is_some_and(|log| !log.is_busy);
            self.restart_at = if is_restarted {
                RESTART_PAGES
            } else {
                log.length + CHECKPOINT_PAGES
            };
        } else if log.length - log.copied > CHECKPOINT_PAGES {
            // A busy thread is called again after the next commit.
            let _ = self.checkpointer.try_send(());
        }
    }

    /// Copies the remaining pages and restarts the log, once neither the thread nor a reader is in the way.
    fn restart(&self, writer: &Connection) -> rusqlite::Result<Checkpoint> {
        let _copying = self.checkpointing.lock();
        writer.busy_timeout(RESTART_BUSY_TIMEOUT)?;
        let done = checkpoint(writer, "RESTART");
        writer.busy_timeout(super::BUSY_TIMEOUT)?;
        done
    }

    /// Ends the thread, copies everything and leaves an empty log.
    pub(super) fn close(self, writer: &Connection) {
        drop(self.checkpointer);
        // A thread that panicked has ended as well.
        let _ = self.thread.join();
        log_failure(checkpoint(writer, "TRUNCATE"));
    }
}

fn checkpoint(conn: &Connection, mode: &str) -> rusqlite::Result<Checkpoint> {
    conn.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?
        .query_row([], |row| {
            Ok(Checkpoint {
                is_busy: row.get(0)?,
                length: row.get(1)?,
                copied: row.get(2)?,
            })
        })
}

/// Logs a checkpoint that failed. Writing goes on, with a longer log.
fn log_failure(done: rusqlite::Result<Checkpoint>) -> Option<Checkpoint> {
    done.inspect_err(|error| tracing::warn!(%error, "the checkpoint of the event store's write-ahead log failed; the log grows")).ok()
}

#[cfg(test)]
mod tests {
    use rusqlite::{Transaction, TransactionBehavior};

    use super::*;
    use crate::store::sqlite::connect;

    #[test]
    fn the_log_restarts_under_continuous_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let writer = connect(&path, 1024 * 1024).unwrap();
        writer.execute_batch("CREATE TABLE notes (text)").unwrap();
        let mut log = Wal::start(&path, connect(&path, 0).unwrap()).unwrap();
        let page = "x".repeat(4_000);
        let mut longest = 0;
        for _ in 0..80 {
            let tx = writer.unchecked_transaction().unwrap();
            for _ in 0..1_000 {
                tx.execute("INSERT INTO notes VALUES (?1)", [&page])
                    .unwrap();
            }
            tx.commit().unwrap();
            log.committed(&writer);
            longest = longest.max(checkpoint(&writer, "NOOP").unwrap().length);
        }
        assert!(longest <= RESTART_PAGES + 1_100, "{longest}");
        log.close(&writer);
        assert_eq!(checkpoint(&writer, "NOOP").unwrap().length, 0);
    }

    #[test]
    fn the_file_grows_in_few_large_steps_and_preallocated_bytes_are_not_read_as_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let file = |name: &str| dir.path().join(name);
        let length = || std::fs::metadata(file("events.db-wal")).unwrap().len();
        let writer = connect(&path, 1024 * 1024).unwrap();
        writer.execute_batch("CREATE TABLE notes (text)").unwrap();
        let mut log = Wal::start(&path, connect(&path, 0).unwrap()).unwrap();
        let (mut lengths, notes) = (Vec::new(), 500);
        for _ in 0..notes {
            let tx = Transaction::new_unchecked(&writer, TransactionBehavior::Immediate).unwrap();
            log.preallocate();
            tx.execute("INSERT INTO notes VALUES (?1)", ["x".repeat(20_000)])
                .unwrap();
            tx.commit().unwrap();
            log.committed(&writer);
            lengths.push(length());
        }
        lengths.dedup();
        assert!(lengths.len() < 25, "{lengths:?}");
        assert!(HEADER_BYTES + log.length * FRAME_BYTES < length());
        // As a crash would leave it.
        std::fs::copy(&path, file("copy.db")).unwrap();
        std::fs::copy(file("events.db-wal"), file("copy.db-wal")).unwrap();
        let copy = connect(&file("copy.db"), 0).unwrap();
        let count = |sql| copy.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(count("SELECT count(*) FROM notes"), notes);
    }

    #[test]
    fn a_long_read_delays_the_writer_only_briefly() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let writer = connect(&path, 1024 * 1024).unwrap();
        writer.execute_batch("CREATE TABLE notes (text)").unwrap();
        let mut log = Wal::start(&path, connect(&path, 0).unwrap()).unwrap();
        let reader = connect(&path, 0).unwrap();
        let look = reader.unchecked_transaction().unwrap();
        look.query_row("SELECT count(*) FROM notes", [], |_| Ok(()))
            .unwrap();
        let note = "x".repeat(4_096 * usize::try_from(RESTART_PAGES + 100).unwrap());
        writer
            .execute("INSERT INTO notes VALUES (?1)", [note])
            .unwrap();
        log.committed(&writer);
        assert!(log.restart_at > RESTART_PAGES, "the next wait is put off");
        drop(look);
        log.restart_at = RESTART_PAGES;
        log.committed(&writer);
        assert_eq!(log.restart_at, RESTART_PAGES);
        writer
            .execute("INSERT INTO notes VALUES ('x')", [])
            .unwrap();
        assert!(checkpoint(&writer, "NOOP").unwrap().length < 100);
    }
}
