//! Copying the file of a single machine into an empty database.

use std::path::{Path, PathBuf};
use std::pin::pin;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::mpsc;
use tokio_postgres::Transaction;
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::ToSql;

use super::values::{Param, get};
use super::{ImportReport, PostgresStore, connect};
use crate::store::sqlite::SqliteReader;
use crate::store::{StoreError, failure};

/// The tables, which have the same columns in both databases.
const TABLES: [&str; 35] = [
    "secret",
    "events",
    "lists",
    "heads",
    "expirations",
    "superseded",
    "requests",
    "gates",
    "vanished",
    "delisted",
    "unfinished",
    "states",
    "views",
    "proposal_refs",
    "maintained",
    "generations",
    "packs",
    "retired_refs",
    "garbage",
    "held",
    "staged",
    "tasks",
    "additions",
    "quotas",
    "policy",
    "policy_version",
    "held_repos",
    "hidden",
    "hidden_causes",
    "unannounced",
    "audit",
    "roles",
    "role_members",
    "auth_seen",
    "overrides",
];

/// Rows that are read before they are written.
const ROWS_AHEAD: usize = 1_000;

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the database is not empty: the table {0} has rows")]
    NotEmpty(&'static str),
    #[error("a node uses the database; stop all nodes, and wait until their lease has expired")]
    InUse,
}

impl PostgresStore {
    /// Copies all tables of a single machine's file into this database, in one transaction. The database must be
    /// empty, and no node may use it: its secret becomes that of the file.
    pub async fn import(&self, sqlite: &Path) -> Result<ImportReport, StoreError> {
        let mut client = self.0.control().await?;
        let tx = client.transaction().await.map_err(failure)?;
        // Nodes that start wait for this lock. No node may become the writer meanwhile.
        let lock = format!("SET LOCAL statement_timeout = 0; {}", connect::LOCK_SQL);
        tx.batch_execute(&lock).await.map_err(failure)?;
        check_free(&tx).await?;
        let mut report = ImportReport::default();
        for table in TABLES {
            let copied = copy(&tx, sqlite, table).await?;
            match table {
                "events" => report.events = copied,
                "superseded" => report.superseded = copied,
                "views" => report.repositories = copied,
                "packs" => report.packs = copied,
                "held" => report.held = copied,
                _ => {}
            }
        }
        let last = "UPDATE counters SET last_seq = (SELECT coalesce(max(seq), 0) FROM
            (SELECT seq FROM events UNION ALL SELECT seq FROM superseded
                UNION ALL SELECT seq FROM requests) s)";
        tx.batch_execute(last).await.map_err(failure)?;
        tx.batch_execute("SELECT pg_notify('grasp_commits', '0')")
            .await
            .map_err(failure)?;
        tx.commit().await.map_err(failure)?;
        self.0.set_keys(connect::load_keys(&client).await?)?;
        Ok(report)
    }
}

/// Refuses a database that is in use or has rows.
async fn check_free(tx: &Transaction<'_>) -> Result<(), StoreError> {
    let lease = "SELECT expires > clock_timestamp() FROM lease FOR UPDATE";
    let row = tx.query_one(lease, &[]).await.map_err(failure)?;
    let nodes = "SELECT EXISTS (SELECT 1 FROM nodes
        WHERE seen > clock_timestamp() - INTERVAL '10 seconds')";
    let nodes = tx.query_one(nodes, &[]).await.map_err(failure)?;
    if get(&row, 0)? || get(&nodes, 0)? {
        return Err(failure(Refused::InUse));
    }
    for table in TABLES
        .into_iter()
        .filter(|table| !is_made_with_schema(table))
    {
        let any = format!("SELECT EXISTS (SELECT 1 FROM {table})");
        let row = tx.query_one(&any, &[]).await.map_err(failure)?;
        if get(&row, 0)? {
            return Err(failure(Refused::NotEmpty(table)));
        }
    }
    Ok(())
}

fn is_made_with_schema(table: &str) -> bool {
    ["secret", "generations", "policy_version"].contains(&table)
}

async fn copy(tx: &Transaction<'_>, sqlite: &Path, table: &str) -> Result<u64, StoreError> {
    if is_made_with_schema(table) {
        tx.batch_execute(&format!("DELETE FROM {table}"))
            .await
            .map_err(failure)?;
    }
    let all = tx
        .prepare(&format!("SELECT * FROM {table}"))
        .await
        .map_err(failure)?;
    let names: Vec<_> = all.columns().iter().map(|column| column.name()).collect();
    let types: Vec<_> = all
        .columns()
        .iter()
        .map(|column| column.type_().clone())
        .collect();
    let count = names.len();
    let names = names.join(", ");
    let (rows, mut received) = mpsc::channel(ROWS_AHEAD);
    let path = sqlite.to_owned();
    let select = format!("SELECT {names} FROM {table}");
    let reading = tokio::task::spawn_blocking(move || read_rows(&path, &select, count, &rows));
    let sink = tx
        .copy_in(&format!("COPY {table} ({names}) FROM STDIN BINARY"))
        .await;
    let mut writer = pin!(BinaryCopyInWriter::new(sink.map_err(failure)?, &types));
    while let Some(row) = received.recv().await {
        let row: Vec<Param> = row;
        let values: Vec<_> = row
            .iter()
            .map(|value| value as &(dyn ToSql + Sync))
            .collect();
        writer.as_mut().write(&values).await.map_err(failure)?;
    }
    reading.await.map_err(failure)??;
    writer.finish().await.map_err(failure)
}

fn read_rows(
    path: &PathBuf,
    select: &str,
    columns: usize,
    rows: &mpsc::Sender<Vec<Param>>,
) -> Result<(), StoreError> {
    // Its checks: the file exists, is of this version, and a log that a killed server left is read.
    drop(SqliteReader::open(path)?);
    let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let conn = conn.map_err(failure)?;
    conn.pragma_update(None, "query_only", true)
        .map_err(failure)?;
    let mut statement = conn.prepare(select).map_err(failure)?;
    let mut found = statement.query([]).map_err(failure)?;
    while let Some(row) = found.next().map_err(failure)? {
        let values = (0..columns).map(|at| row.get::<_, Value>(at).map(Param));
        let values = values.collect::<Result<_, _>>().map_err(failure)?;
        if rows.blocking_send(values).is_err() {
            // The other side failed and says why.
            return Ok(());
        }
    }
    Ok(())
}
