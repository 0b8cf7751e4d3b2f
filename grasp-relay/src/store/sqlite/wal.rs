//! Keeping the write-ahead log short.
//!
//! Commits go to the log; checkpointing them into the file is a second, slower write. A thread of its own does most of that
//! beside the writer. Only when the log has committed long all the same does the writer wait for the conditions, after which
//! the log begins anew.
//!
//! A commit that writes over bytes the file has already is durable several times sooner than one that makes the file
//! longer, which the file system must note in a journal that it shares with everybody. So the file is made longer
//! ahead of the log, in large steps, and kept when the log begins anew.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

/// Pages of log that are worth checkpointing: the more of them, the more often one page of the file stands for several.
const CHECKPOINT_PAGES: i64 = 16_000;

/// Pages of log after which the writer waits until all is copied.
const RESTART_PAGES: i64 = 2 * CHECKPOINT_PAGES;

/// How long it waits for readers. Their turns are much shorter, except for an examination of the whole file, and that
/// is no reason to keep everybody else from writing.
const RESTART_BUSY_TIMEOUT: Duration = Duration::from_millis(200);

/// Bytes of one page in the log, its header included, and of the log's own header.
const FRAME_BYTES: u64 = 4_096 + 24;
const HEADER_BYTES: u64 = 32;

/// Bytes by which the log's file is made longer at once, at most.
const MAX_GROWTH_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of the log's file that are kept for reuse: all it ever needs.
pub(super) const MAX_WAL_BYTES: u64 = RESTART_PAGES.unsigned_abs() * FRAME_BYTES;

/// Watches the log on behalf of the writer.
pub(super) struct Wal {
    checkpointer: SyncSender<()>,
    /// Held by whoever copies: two cannot at once, and the second would be turned away.
    checkpointing: Arc<Mutex<()>>,
    thread: JoinHandle<()>,
    file: File,
    /// Pages in the log when it was last looked at.
    length: u64,
    /// The length at which the writer waits: more than usual, after it has waited in vain.
    restart_at: i64,
}

/// What SQLite says after a checkpoint.
struct Checkpoint {
    /// Somebody was in the way.
    is_busy: bool,
    /// Pages of the log, and how many of them are in the file as well.
    length: i64,
    copied: i64,
}

impl Wal {
    /// Starts the thread that copies; it ends when this is dropped. The database must be open for writing already.
    pub(super) fn start(path: &Path, conn: Connection) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push("-wal");
        let file = OpenOptions::new().write(true).open(name)?;
        let (checkpointer, calls) = mpsc::sync_channel(1);
        let checkpointing = Arc::new(Mutex::new(()));
        let turn = Arc::clone(&checkpointing);
        let thread = thread::Builder::new().name("store-log".to_owned()).spawn(move || {
            while calls.recv().is_ok() {
                let _copying = turn.lock();
                log_failure(checkpoint(&conn, "PASSIVE"));
            }
        })?;
        Ok(Self { checkpointer, checkpointing, thread, file, length: 0, restart_at: RESTART_PAGES })
    }

    /// Makes the file longer than the log, if the log is about to reach its end.
    ///
    /// To be called within a transaction that has begun to write and has not written yet: nobody else can add to the
    /// log then, so what lies beyond the file's end is nobody's. Zeros are no log; SQLite stops reading at them.
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
            tracing::warn!(%error, "the event store's log could not be made longer");
        }
    }

    /// To be called after each commit.
    pub(super) fn committed(&mut self, writer: &Connection) {
        // NOOP copies nothing and only tells the length.
        let Some(log) = log_failure(checkpoint(writer, "NOOP")) else {
            return;
        };
        self.length = u64::try_from(log.length).unwrap_or(0);
        if log.length > self.restart_at {
            let is_restarted = log_failure(self.restart(writer)).is_some_and(|log| !log.is_busy);
            self.restart_at =
                if is_restarted { RESTART_PAGES } else { log.length + CHECKPOINT_PAGES };
        } else if log.length - log.copied > CHECKPOINT_PAGES {
            // If the thread is busy it will be called again.
            let _ = self.checkpointer.try_send(());
        }
    }

    /// Copies what is left and begins anew, once neither the thread nor a reader is in the way.
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
    conn.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?.query_row([], |row| {
        Ok(Checkpoint { is_busy: row.get(0)?, length: row.get(1)?, copied: row.get(2)? })
    })
}

/// A log that cannot be copied is no reason to stop writing to it, but somebody should know.
fn log_failure(done: rusqlite::Result<Checkpoint>) -> Option<Checkpoint> {
    done.inspect_err(|error| tracing::warn!(%error, "the event store's log stays long")).ok()
}

#[cfg(test)]
mod tests {
    use rusqlite::{Transaction, TransactionBehavior};

    use super::*;
    use crate::store::sqlite::connect;

    #[test]
    fn however_much_is_written_the_log_begins_anew() {
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
                tx.execute("INSERT INTO notes VALUES (?1)", [&page]).unwrap();
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
    fn the_file_grows_in_few_large_steps_and_what_lies_ahead_is_not_taken_for_log() {
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
            tx.execute("INSERT INTO notes VALUES (?1)", ["x".repeat(20_000)]).unwrap();
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
    fn a_long_look_at_the_file_hinders_nobody_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let writer = connect(&path, 1024 * 1024).unwrap();
        writer.execute_batch("CREATE TABLE notes (text)").unwrap();
        let mut log = Wal::start(&path, connect(&path, 0).unwrap()).unwrap();
        let reader = connect(&path, 0).unwrap();
        let look = reader.unchecked_transaction().unwrap();
        look.query_row("SELECT count(*) FROM notes", [], |_| Ok(())).unwrap();
        let note = "x".repeat(4_096 * usize::try_from(RESTART_PAGES + 100).unwrap());
        writer.execute("INSERT INTO notes VALUES (?1)", [note]).unwrap();
        log.committed(&writer);
        assert!(log.restart_at > RESTART_PAGES, "the next wait is put off");
        drop(look);
        log.restart_at = RESTART_PAGES;
        log.committed(&writer);
        assert_eq!(log.restart_at, RESTART_PAGES);
        writer.execute("INSERT INTO notes VALUES ('x')", []).unwrap();
        assert!(checkpoint(&writer, "NOOP").unwrap().length < 100);
    }
}
