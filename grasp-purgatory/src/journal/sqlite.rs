//! The journal in one SQLite file: a batch is on disk whole when `append` returns, or not at all.

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::{Record, RecordError};

/// Marks the file as ours ("grpu"), against opening somebody else's database.
const APPLICATION_ID: i32 = 0x6772_7075;

/// A journal below this is never worth making shorter.
const SHORT: u64 = 8 * 1024 * 1024;

/// How many times the size of what it amounts to a journal may have.
const SLACK: u64 = 3;

/// The records of one purgatory on disk.
///
/// ```
/// use grasp_purgatory::Purgatory;
/// use grasp_purgatory::journal::sqlite::Journal;
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
    /// The size of all records in the file.
    bytes: u64,
    /// The size of the records after they were last made few.
    compacted: u64,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The disk or the file failed us: what was to be written is not.
    #[error("the journal cannot be read or written")]
    Database(#[from] rusqlite::Error),
    /// The file belongs to something else.
    #[error("the file is a database of another application")]
    NotOurs,
    /// A record is damaged, or written by a newer release.
    #[error("journal record {number} cannot be read")]
    Record {
        /// Which.
        number: i64,
        /// Why.
        source: RecordError,
    },
    /// A record cannot be written down.
    #[error("a change cannot be written down")]
    Unwritable(#[source] RecordError),
}

impl Journal {
    /// Opens or makes a journal, for this process alone, and reads it.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), JournalError> {
        let mut conn = Connection::open(path)?;
        // Takes effect only before there is anything in the file.
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

    /// Whether the journal has grown far beyond what it amounts to.
    pub fn is_long(&self) -> bool {
        self.bytes > SHORT.max(self.compacted.saturating_mul(SLACK))
    }

    /// Puts a snapshot in the place of everything written so far.
    pub fn compact(&mut self, snapshot: &[Record]) -> Result<(), JournalError> {
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        tx.execute("DELETE FROM record", [])?;
        self.bytes = write(&tx, snapshot)?;
        tx.commit()?;
        self.compacted = self.bytes;
        // Frees one page per row that it is asked for.
        let mut vacuum = self.conn.prepare("PRAGMA incremental_vacuum")?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {}
        self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(())
    }
}

/// Makes the table, unless it is there; refuses files of others.
fn prepare(conn: &mut Connection) -> Result<(), JournalError> {
    let owner: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
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
