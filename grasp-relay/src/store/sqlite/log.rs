//! Keeping the write-ahead log short.
//!
//! Commits go to the log; copying them into the file is a second, slower write. A thread of its own does most of that
//! beside the writer. Only when the log has grown long all the same does the writer wait for the rest, after which
//! the log begins anew.

use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;

use rusqlite::Connection;

/// Pages of log that are worth copying.
const WORTHWHILE: i64 = 4_000;

/// Pages of log after which the writer waits until all is copied.
const LONG: i64 = 4 * WORTHWHILE;

/// Bytes of the log's file that are kept for reuse.
pub(super) const KEPT: u32 = 16 * 1024 * 1024;

/// Watches the log on behalf of the writer.
pub(super) struct Log {
    copier: SyncSender<()>,
    /// Held by whoever copies: two cannot at once, and the second would be turned away.
    copying: Arc<Mutex<()>>,
}

/// How long the log is, in pages.
struct Length {
    whole: i64,
    copied: i64,
}

impl Log {
    /// Starts the thread that copies; it ends when this is dropped.
    pub(super) fn watch(conn: Connection) -> std::io::Result<Self> {
        let (copier, calls) = mpsc::sync_channel(1);
        let copying = Arc::new(Mutex::new(()));
        let turn = Arc::clone(&copying);
        thread::Builder::new().name("store-log".to_owned()).spawn(move || {
            while calls.recv().is_ok() {
                let _copying = turn.lock();
                tell(checkpoint(&conn, "PASSIVE"));
            }
        })?;
        Ok(Self { copier, copying })
    }

    /// To be called after each commit.
    pub(super) fn grown(&self, writer: &Connection) {
        // NOOP copies nothing and only tells the length.
        let Some(length) = tell(checkpoint(writer, "NOOP")) else {
            return;
        };
        if length.whole > LONG {
            // Waits for the thread, and for readers of the moment, whose turns are short.
            let _copying = self.copying.lock();
            tell(checkpoint(writer, "RESTART"));
        } else if length.whole - length.copied > WORTHWHILE {
            // If the thread is busy it will be called again.
            let _ = self.copier.try_send(());
        }
    }

    /// Copies everything and leaves an empty log.
    pub(super) fn empty(self, writer: &Connection) {
        let _copying = self.copying.lock();
        tell(checkpoint(writer, "TRUNCATE"));
    }
}

fn checkpoint(conn: &Connection, mode: &str) -> rusqlite::Result<Length> {
    conn.prepare_cached(&format!("PRAGMA wal_checkpoint({mode})"))?
        .query_row([], |row| Ok(Length { whole: row.get(1)?, copied: row.get(2)? }))
}

/// A log that cannot be copied is no reason to stop writing to it, but somebody should know.
fn tell(done: rusqlite::Result<Length>) -> Option<Length> {
    done.inspect_err(|error| tracing::warn!(%error, "the event store's log stays long")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::connect;

    #[test]
    fn however_much_is_written_the_log_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.db");
        let writer = connect(&path, 1024 * 1024).unwrap();
        writer.execute_batch("CREATE TABLE notes (text)").unwrap();
        let log = Log::watch(connect(&path, 0).unwrap()).unwrap();
        let page = "x".repeat(4_000);
        let mut longest = 0;
        for _ in 0..60 {
            let tx = writer.unchecked_transaction().unwrap();
            for _ in 0..1_000 {
                tx.execute("INSERT INTO notes VALUES (?1)", [&page]).unwrap();
            }
            tx.commit().unwrap();
            log.grown(&writer);
            longest = longest.max(checkpoint(&writer, "NOOP").unwrap().whole);
        }
        assert!(longest <= LONG + 1_100, "{longest}");
        log.empty(&writer);
        assert_eq!(checkpoint(&writer, "NOOP").unwrap().whole, 0);
    }
}
