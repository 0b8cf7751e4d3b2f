//! The journal of purgatory: every change, written before its effects.
//!
//! A [`Record`] is one change. Replaying all records gives the same purgatory, and so does the shorter list of
//! [`Purgatory::snapshot`](crate::Purgatory::snapshot).

use std::sync::Arc;

use grasp_core::Oid;
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::purgatory::{CleanupTask, EndReason, Phase, PushTarget};

#[cfg(feature = "driver")]
pub use self::sqlite::{Journal, JournalError};

/// Version of the records that this release writes, and the newest that it reads.
const VERSION: u32 = 1;

/// One change of purgatory. Names that differ from the written ones are given by `serde`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub enum Record {
    /// An event is held until then. It is written whole: no other server may have it.
    Held {
        #[serde(with = "shared")]
        event: Arc<Event>,
        phase: Phase,
        /// Missing in records of earlier releases, whose events are not held for longer.
        #[serde(default = "epoch")]
        since: Timestamp,
        until: Timestamp,
    },
    /// The phase of an event changed, or its end.
    Moved { id: EventId, phase: Phase, until: Timestamp },
    /// An event is no longer held.
    Gone {
        id: EventId,
        #[serde(rename = "why")]
        reason: EndReason,
    },
    /// An upload of this size waits for an event. All uploads for the event wait until then.
    Staged { id: EventId, tip: Oid, target: PushTarget, bytes: u64, until: Timestamp },
    /// The uploads for an event wait no longer, but for the tip to keep.
    Unstaged { id: EventId, keep: Option<Oid> },
    /// A task is pending, also after a restart.
    #[serde(rename = "owed")]
    TaskAdded {
        #[serde(rename = "chore")]
        task: CleanupTask,
    },
    /// A task is no longer pending.
    #[serde(rename = "settled")]
    TaskDone {
        #[serde(rename = "chore")]
        task: CleanupTask,
    },
}

fn epoch() -> Timestamp {
    Timestamp::from_secs(0)
}

/// The reason why a line cannot be read as a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// No release wrote such a line.
    #[error("not a journal record")]
    Malformed(#[from] serde_json::Error),
    /// A newer release wrote it.
    #[error("a journal record of version {0}; this release reads up to {VERSION}")]
    Newer(u32),
}

/// A line of the journal; `R` is a reference for writing.
#[derive(Serialize, Deserialize)]
struct Line<R> {
    v: u32,
    record: R,
}

#[derive(Deserialize)]
struct LineVersion {
    v: u32,
}

impl Record {
    /// Encodes the record as one line of text.
    pub fn encode(&self) -> Result<String, RecordError> {
        Ok(serde_json::to_string(&Line { v: VERSION, record: self })?)
    }

    /// Decodes a line that this or an earlier release wrote.
    pub fn decode(line: &str) -> Result<Self, RecordError> {
        let LineVersion { v } = serde_json::from_str(line)?;
        if v > VERSION {
            return Err(RecordError::Newer(v));
        }
        Ok(serde_json::from_str::<Line<Self>>(line)?.record)
    }
}

/// Serialises a shared event like the event itself.
mod shared {
    use std::sync::Arc;

    use nostr::event::Event;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(event: &Arc<Event>, to: S) -> Result<S::Ok, S::Error> {
        event.as_ref().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Event>, D::Error> {
        Event::deserialize(from).map(Arc::new)
    }
}

/// The journal in one SQLite file: a batch is on disk completely when `append` returns, or not at all.
#[cfg(feature = "driver")]
mod sqlite {
    use std::path::Path;

    use rusqlite::{Connection, Transaction, TransactionBehavior, params};

    use super::{Record, RecordError};

    /// Marks the file as a journal ("grpu"), so that no other database is opened as one.
    const APPLICATION_ID: i32 = 0x6772_7075;

    /// Size of a journal below which it is never compacted.
    const MIN_COMPACTED_BYTES: u64 = 8 * 1024 * 1024;

    /// Growth of a journal, as a multiple of its compacted size, from which on it is compacted.
    const COMPACTION_FACTOR: u64 = 3;

    /// The records of one purgatory on disk.
    ///
    /// ```
    /// use grasp_purgatory::Purgatory;
    /// use grasp_purgatory::journal::Journal;
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("purgatory.db");
    /// let (mut journal, records) = Journal::open(&path).unwrap();
    /// assert!(records.is_empty());
    /// journal.append(&[]).unwrap();
    /// if journal.is_long() {
    ///     // journal.compact(&purgatory.snapshot())
    /// }
    /// ```
    #[derive(Debug)]
    pub struct Journal {
        conn: Connection,
        /// Size of all records in the file.
        bytes: u64,
        /// Size of the records after the last compaction.
        compacted: u64,
    }

    /// The reason why the journal cannot be used.
    #[derive(Debug, thiserror::Error)]
    #[non_exhaustive]
    #[allow(missing_docs, reason = "the names say it all")]
    pub enum JournalError {
        /// The disk or the file failed, and nothing was written.
        #[error("the journal cannot be read or written")]
        Database(#[from] rusqlite::Error),
        /// The file is no journal.
        #[error("the file is a database of another application")]
        NotOurs,
        /// A record is damaged, or written by a newer release.
        #[error("journal record {number} cannot be read")]
        Record { number: i64, source: RecordError },
        /// A record cannot be encoded.
        #[error("a journal record cannot be encoded")]
        Unwritable(#[source] RecordError),
    }

    impl Journal {
        /// Opens or creates a journal for this process alone, and reads it.
        pub fn open(path: &Path) -> Result<(Self, Vec<Record>), JournalError> {
            let mut conn = Connection::open(path)?;
            // Takes effect only in an empty file.
            conn.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
            // Exclusive first: then the log needs no shared memory beside it.
            conn.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            conn.pragma_update(None, "journal_mode", "WAL")?;
            conn.pragma_update(None, "synchronous", "FULL")?;
            conn.pragma_update(None, "journal_size_limit", 0)?;
            prepare(&mut conn)?;
            let (records, bytes) = read(&conn)?;
            Ok((Self { conn, bytes, compacted: bytes }, records))
        }

        /// Writes changes in one transaction. Blocks until they are on disk.
        pub fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
            if records.is_empty() {
                return Ok(());
            }
            let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let written = write(&tx, records)?;
            tx.commit()?;
            self.bytes = self.bytes.saturating_add(written);
            Ok(())
        }

        /// Returns whether the journal has grown enough to be compacted.
        pub fn is_long(&self) -> bool {
            let longest = self.compacted.saturating_mul(COMPACTION_FACTOR);
            self.bytes > MIN_COMPACTED_BYTES.max(longest)
        }

        /// Replaces everything written so far by a snapshot.
        pub fn compact(&mut self, snapshot: &[Record]) -> Result<(), JournalError> {
            let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            tx.execute("DELETE FROM record", [])?;
            self.bytes = write(&tx, snapshot)?;
            tx.commit()?;
            self.compacted = self.bytes;
            // Frees one page per row that is read.
            let mut vacuum = self.conn.prepare("PRAGMA incremental_vacuum")?;
            let mut pages = vacuum.query([])?;
            while pages.next()?.is_some() {}
            self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
            Ok(())
        }
    }

    /// Creates the table if it is missing, and refuses files of other applications.
    fn prepare(conn: &mut Connection) -> Result<(), JournalError> {
        let owner: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let tables: i64 =
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables > 0 && owner != APPLICATION_ID {
            return Err(JournalError::NotOurs);
        }
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.execute_batch(
            "CREATE TABLE IF NOT EXISTS record (number INTEGER PRIMARY KEY, line TEXT NOT NULL) STRICT",
        )?;
        Ok(tx.commit()?)
    }

    fn read(conn: &Connection) -> Result<(Vec<Record>, u64), JournalError> {
        let mut query = conn.prepare("SELECT number, line FROM record ORDER BY number")?;
        let mut rows = query.query([])?;
        let (mut records, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let (number, line): (i64, String) = (row.get(0)?, row.get(1)?);
            let record =
                Record::decode(&line).map_err(|source| JournalError::Record { number, source })?;
            bytes += line.len() as u64;
            records.push(record);
        }
        Ok((records, bytes))
    }

    fn write(tx: &Transaction<'_>, records: &[Record]) -> Result<u64, JournalError> {
        let mut insert = tx.prepare_cached("INSERT INTO record (line) VALUES (?1)")?;
        let mut bytes = 0;
        for record in records {
            let line = record.encode().map_err(JournalError::Unwritable)?;
            bytes += line.len() as u64;
            insert.execute(params![line])?;
        }
        Ok(bytes)
    }
}
