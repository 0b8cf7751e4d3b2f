//! Questions about the file as a whole.

use super::SqliteStore;
use super::ledger::Ledger;
use crate::store::StoreError;

/// What an examination of the file found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Integrity {
    /// Nothing is wrong.
    Sound,
    /// What is wrong, in SQLite's words and ours.
    Damaged(Vec<String>),
}

impl SqliteStore {
    /// Examines the whole file: its pages, its indexes, and whether they speak of the same events.
    ///
    /// Takes as long as reading everything does, while the store goes on working.
    pub async fn integrity_check(&self) -> Result<Integrity, StoreError> {
        let faults = self.shared.read(examine).await?;
        Ok(match faults.is_empty() {
            true => Integrity::Sound,
            false => Integrity::Damaged(faults),
        })
    }
}

fn examine(ledger: &Ledger<'_>) -> rusqlite::Result<Vec<String>> {
    let report = "PRAGMA integrity_check";
    let mut faults: Vec<String> =
        ledger.conn.prepare(report)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    faults.retain(|line| line != "ok");
    for table in ["lists", "heads", "expirations"] {
        let stray =
            format!("SELECT count(*) FROM {table} WHERE seq NOT IN (SELECT seq FROM events)");
        let count: i64 = ledger.conn.query_row(&stray, [], |row| row.get(0))?;
        if count > 0 {
            faults.push(format!("{count} rows of {table} speak of events that are not there"));
        }
    }
    Ok(faults)
}
