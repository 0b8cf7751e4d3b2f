//! Writing what a transaction changed, by a few statements that travel together.

use deadpool_postgres::ClientWrapper;
use futures_util::future::try_join_all;
use tokio_postgres::types::ToSql;

use super::{Changed, EventRow, PostgresTables, WorkingSet};
use crate::store::keys::{Digest, Position};
use crate::store::{StoreError, failure};

/// A statement that changes rows. Parameters are written `$1`, or `?1` by those who share it with SQLite.
pub(in crate::store::postgres) struct Statement {
    pub(in crate::store::postgres) sql: &'static str,
    pub(in crate::store::postgres) values: Vec<Box<dyn ToSql + Send + Sync>>,
}

/// Statements that travel together.
const PIPELINED: usize = 24;

macro_rules! statement {
    ($sql:expr, $($value:expr),*) => {
        Statement { sql: $sql, values: vec![$(Box::new($value)),*] }
    };
}

/// Adds a statement about rows, unless there are none. Each column of theirs is an array.
macro_rules! batch {
    ($statements:ident, $sql:expr, $rows:expr, $row:pat => $($value:expr),+) => {
        let rows: Vec<_> = $rows.into_iter().collect();
        if !rows.is_empty() {
            #[allow(unused_variables, reason = "a column is a part of the row")]
            let written = statement!($sql, $(rows.iter().map(|$row| $value).collect::<Vec<_>>()),+);
            $statements.push(written);
        }
    };
}

impl PostgresTables<'_> {
    /// Writes what was changed, tells those who listen, and commits.
    pub(in crate::store::postgres) async fn commit(
        &mut self,
        client: &ClientWrapper,
    ) -> Result<(), StoreError> {
        let mut statements = self.rows.get_mut().statements();
        if !statements.is_empty() {
            let last_seq = self.last_seq();
            statements.push(statement!("UPDATE counters SET last_seq = $1", last_seq));
            let notify = "SELECT pg_notify('grasp_commits', $1)";
            statements.push(statement!(notify, last_seq.to_string()));
        }
        execute(client, &statements, "COMMIT").await
    }

    /// Executes the statements about refs, packs and purgatory that wait, so that what follows sees them.
    pub(in crate::store::postgres) async fn flush_statements(
        &mut self,
        client: &ClientWrapper,
    ) -> Result<(), StoreError> {
        let statements = std::mem::take(&mut self.rows.get_mut().changed.statements);
        execute(client, &statements, "").await
    }
}

/// Executes statements in their order, and a last one without waiting for the others. If one of them fails, the
/// transaction does, whatever the last one is.
async fn execute(
    client: &ClientWrapper,
    statements: &[Statement],
    last: &str,
) -> Result<(), StoreError> {
    let mut prepared = Vec::with_capacity(statements.len());
    for Statement { sql, values } in statements {
        let sql = sql.replace('?', "$");
        let statement = client.prepare_cached(&sql).await.map_err(failure)?;
        let values: Vec<_> = values
            .iter()
            .map(|value| &**value as &(dyn ToSql + Sync))
            .collect();
        prepared.push((statement, values));
    }
    let (first, rest) = prepared.split_at(prepared.len() / PIPELINED * PIPELINED);
    for some in first.chunks(PIPELINED) {
        run(client, some).await.map_err(failure)?;
    }
    let (rest, last) = tokio::join!(run(client, rest), client.batch_execute(last));
    rest.map_err(failure)?;
    last.map_err(failure)
}

type Prepared<'a> = (tokio_postgres::Statement, Vec<&'a (dyn ToSql + Sync)>);

async fn run(
    client: &ClientWrapper,
    statements: &[Prepared<'_>],
) -> Result<(), tokio_postgres::Error> {
    let calls = statements
        .iter()
        .map(|(statement, values)| client.execute(statement, values));
    try_join_all(calls).await.map(drop)
}

impl WorkingSet {
    /// Returns the statements that write what was changed.
    fn statements(&mut self) -> Vec<Statement> {
        let changed = std::mem::take(&mut self.changed);
        let mut statements = Vec::new();
        erase(&changed, &mut statements);
        self.insert_events(&mut statements);
        self.write_heads(&changed, &mut statements);
        self.write_copies(&changed, &mut statements);
        self.write_requests(&changed, &mut statements);
        self.write_others(&changed, &mut statements);
        statements.extend(changed.statements);
        statements
    }

    fn insert_events(&self, statements: &mut Vec<Statement>) {
        let new = self
            .events
            .iter()
            .filter_map(|(seq, row)| Some((*seq, row, row.new.as_ref()?)));
        let mut new: Vec<(i64, &EventRow, &Vec<Digest>)> = new.collect();
        new.sort_unstable_by_key(|(seq, ..)| *seq);
        batch!(statements,
            "INSERT INTO events (seq, newest, id, pubkey, kind, json) SELECT * FROM
                unnest($1::BIGINT[], $2::BIGINT[], $3::BYTEA[], $4::BYTEA[], $5::INTEGER[], $6::TEXT[])",
            &new, (seq, row, _) => *seq, row.at.newest(), row.at.id().to_vec(),
            row.pubkey.to_bytes().to_vec(), i32::from(row.kind), row.json.clone().unwrap_or_default());
        let entries = new.iter().flat_map(|(seq, row, lists)| {
            lists
                .iter()
                .map(|list| (*list, row.at, i32::from(row.kind), *seq))
        });
        let mut entries: Vec<(Digest, Position, i32, i64)> = entries.collect();
        // In the order of the index.
        entries.sort_unstable();
        batch!(statements,
            "INSERT INTO lists (list, newest, id, kind, seq) SELECT * FROM
                unnest($1::BYTEA[], $2::BIGINT[], $3::BYTEA[], $4::INTEGER[], $5::BIGINT[])",
            entries, (list, at, kind, seq) =>
            list.to_vec(), at.newest(), at.id().to_vec(), *kind, *seq);
        let ends = new
            .iter()
            .filter_map(|(seq, row, _)| Some((row.ends?, *seq)));
        batch!(statements,
            "INSERT INTO expirations (at, seq) SELECT * FROM unnest($1::BIGINT[], $2::BIGINT[])",
            ends, (end, seq) => *end, *seq);
    }

    fn write_heads(&self, changed: &Changed, statements: &mut Vec<Statement>) {
        let gone = changed
            .heads
            .iter()
            .filter(|coordinate| !self.heads.contains_key(*coordinate));
        batch!(statements, "DELETE FROM heads WHERE coordinate = ANY($1)",
            gone, coordinate => coordinate.to_vec());
        let heads = changed
            .heads
            .iter()
            .filter_map(|at| Some((at, self.heads.get(at)?)));
        batch!(statements,
            "INSERT INTO heads (coordinate, seq)
                SELECT * FROM unnest($1::BYTEA[], $2::BIGINT[])
                ON CONFLICT (coordinate) DO UPDATE SET seq = excluded.seq",
            heads, (coordinate, seq) => coordinate.to_vec(), **seq);
    }

    fn write_copies(&self, changed: &Changed, statements: &mut Vec<Statement>) {
        batch!(statements, "DELETE FROM superseded WHERE seq = ANY($1)",
            &changed.erased_copies, seq => **seq);
        let new = self
            .copies
            .iter()
            .filter_map(|(seq, row)| Some((*seq, row, row.new.as_ref()?)));
        batch!(statements,
            "INSERT INTO superseded (seq, coordinate, newest, id, pubkey, expires_at, json)
                SELECT * FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BIGINT[], $4::BYTEA[],
                    $5::BYTEA[], $6::BIGINT[], $7::TEXT[])",
            new, (seq, row, json) => *seq, row.coordinate.to_vec(), row.at.newest(), row.at.id().to_vec(),
            row.pubkey.to_bytes().to_vec(), row.ends, (*json).clone());
    }

    fn write_requests(&self, changed: &Changed, statements: &mut Vec<Statement>) {
        for forget in [
            "DELETE FROM gates WHERE request = ANY($1)",
            "DELETE FROM requests WHERE seq = ANY($1)",
        ] {
            batch!(statements, forget, &changed.forgotten_requests, seq => **seq);
        }
        let requests = changed.requests.iter();
        let requests = requests.filter_map(|seq| Some((*seq, self.requests.get(seq)?)));
        batch!(statements,
            "INSERT INTO requests (seq, pubkey, id, newest, clock, retired)
                SELECT * FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BYTEA[], $4::BIGINT[],
                    $5::BIGINT[], $6::BIGINT[])
                ON CONFLICT (seq) DO UPDATE SET clock = excluded.clock, retired = excluded.retired",
            requests, (seq, row) => *seq, row.pubkey.to_bytes().to_vec(), row.id.to_bytes().to_vec(),
            row.newest, row.clock, i64::from(row.is_retired));
        batch!(statements, "DELETE FROM gates WHERE target = ANY($1)",
            &changed.gates, target => target.to_vec());
        let gates = changed.gates.iter();
        let gates = gates.filter_map(|target| Some((target, self.gates.get(target)?)));
        batch!(statements,
            "INSERT INTO gates (target, request) SELECT * FROM unnest($1::BYTEA[], $2::BIGINT[])",
            gates, (target, request) => target.to_vec(), **request);
    }

    fn write_others(&self, changed: &Changed, statements: &mut Vec<Statement>) {
        let vanished = changed.vanished.iter();
        let vanished = vanished.filter_map(|author| Some((author, self.vanished.get(author)?)));
        batch!(statements,
            "INSERT INTO vanished (pubkey, newest) SELECT * FROM unnest($1::BYTEA[], $2::BIGINT[])
                ON CONFLICT (pubkey) DO UPDATE SET newest = excluded.newest",
            vanished, (author, until) => author.to_bytes().to_vec(), **until);
        let delisted = changed.delisted.iter();
        let delisted = delisted.filter_map(|key| Some((key, self.delisted.get(key)?)));
        batch!(statements,
            "INSERT INTO delisted (coordinate, newest, id)
                SELECT * FROM unnest($1::BYTEA[], $2::BIGINT[], $3::BYTEA[])
                ON CONFLICT (coordinate) DO UPDATE SET newest = excluded.newest, id = excluded.id",
            delisted, (key, by) => key.to_vec(), by.newest(), by.id().to_vec());
        batch!(statements,
            "INSERT INTO unfinished (id) SELECT * FROM unnest($1::BYTEA[]) ON CONFLICT DO NOTHING",
            &changed.unfinished, id => id.to_bytes().to_vec());
        batch!(statements, "DELETE FROM unfinished WHERE id = ANY($1)",
            &changed.finished, id => id.to_bytes().to_vec());
        if changed.has_generation {
            statements.push(statement!(
                "UPDATE generations SET last = $1",
                self.last_generation
            ));
        }
    }
}

fn erase(changed: &Changed, statements: &mut Vec<Statement>) {
    let erased = &changed.erased;
    batch!(statements, "DELETE FROM events WHERE seq = ANY($1)", erased, row => row.seq);
    let entries = erased
        .iter()
        .flat_map(|row| row.lists.iter().map(|list| (list, row.at)));
    batch!(statements,
        "DELETE FROM lists USING unnest($1::BYTEA[], $2::BIGINT[], $3::BYTEA[]) d(list, newest, id)
            WHERE lists.list = d.list AND lists.newest = d.newest AND lists.id = d.id",
        entries, (list, at) => list.to_vec(), at.newest(), at.id().to_vec());
    let ended = erased.iter().filter(|row| row.has_end);
    batch!(statements, "DELETE FROM expirations WHERE seq = ANY($1)", ended, row => row.seq);
}
