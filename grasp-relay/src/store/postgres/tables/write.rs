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

/// Returns a column of rows as an array.
fn column<R, T>(rows: &[R], value: impl Fn(&R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

macro_rules! statement {
    ($sql:expr, $($value:expr),*) => {
        Statement { sql: $sql, values: vec![$(Box::new($value)),*] }
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
        let values: Vec<_> = values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
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
    let calls = statements.iter().map(|(statement, values)| client.execute(statement, values));
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
        let new = self.events.iter().filter_map(|(seq, row)| Some((*seq, row, row.new.as_ref()?)));
        let mut new: Vec<(i64, &EventRow, &Vec<Digest>)> = new.collect();
        if new.is_empty() {
            return;
        }
        new.sort_unstable_by_key(|(seq, ..)| *seq);
        statements.push(statement!(
            "INSERT INTO events (seq, newest, id, pubkey, kind, json) SELECT * FROM
                unnest($1::BIGINT[], $2::BIGINT[], $3::BYTEA[], $4::BYTEA[], $5::INTEGER[], $6::TEXT[])",
            column(&new, |(seq, ..)| *seq),
            column(&new, |(_, row, _)| row.at.newest()),
            column(&new, |(_, row, _)| row.at.id().to_vec()),
            column(&new, |(_, row, _)| row.pubkey.to_bytes().to_vec()),
            column(&new, |(_, row, _)| i32::from(row.kind)),
            column(&new, |(_, row, _)| row.json.clone().unwrap_or_default())
        ));
        let entries = new.iter().flat_map(|(seq, row, lists)| {
            lists.iter().map(|list| (*list, row.at, i32::from(row.kind), *seq))
        });
        let mut entries: Vec<(Digest, Position, i32, i64)> = entries.collect();
        // In the order of the index.
        entries.sort_unstable();
        statements.push(statement!(
            "INSERT INTO lists (list, newest, id, kind, seq) SELECT * FROM
                unnest($1::BYTEA[], $2::BIGINT[], $3::BYTEA[], $4::INTEGER[], $5::BIGINT[])",
            column(&entries, |(list, ..)| list.to_vec()),
            column(&entries, |(_, at, ..)| at.newest()),
            column(&entries, |(_, at, ..)| at.id().to_vec()),
            column(&entries, |(.., kind, _)| *kind),
            column(&entries, |(.., seq)| *seq)
        ));
        let ends: Vec<_> = new.iter().filter_map(|(seq, row, _)| Some((row.ends?, *seq))).collect();
        if !ends.is_empty() {
            let (ends, seqs): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
            statements.push(statement!(
                "INSERT INTO expirations (at, seq) SELECT * FROM unnest($1::BIGINT[], $2::BIGINT[])",
                ends,
                seqs
            ));
        }
    }

    fn write_heads(&self, changed: &Changed, statements: &mut Vec<Statement>) {
        let (mut gone, mut coordinates, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
        for coordinate in &changed.heads {
            match self.heads.get(coordinate) {
                Some(seq) => {
                    coordinates.push(coordinate.to_vec());
                    seqs.push(*seq);
                }
                None => gone.push(coordinate.to_vec()),
            }
        }
        if !gone.is_empty() {
            statements.push(statement!("DELETE FROM heads WHERE coordinate = ANY($1)", gone));
        }
        if !seqs.is_empty() {
            statements.push(statement!(
                "INSERT INTO heads (coordinate, seq)
                    SELECT * FROM unnest($1::BYTEA[], $2::BIGINT[])
                    ON CONFLICT (coordinate) DO UPDATE SET seq = excluded.seq",
                coordinates,
                seqs
            ));
        }
    }

    fn write_copies(&self, changed: &Changed, statements: &mut Vec<Statement>) {
        if !changed.erased_copies.is_empty() {
            let erased = changed.erased_copies.clone();
            statements.push(statement!("DELETE FROM superseded WHERE seq = ANY($1)", erased));
        }
        let new = self.copies.iter().filter_map(|(seq, row)| Some((*seq, row, row.new.as_ref()?)));
        let new: Vec<_> = new.collect();
        if new.is_empty() {
            return;
        }
        statements.push(statement!(
            "INSERT INTO superseded (seq, coordinate, newest, id, pubkey, expires_at, json)
                SELECT * FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BIGINT[], $4::BYTEA[],
                    $5::BYTEA[], $6::BIGINT[], $7::TEXT[])",
            column(&new, |(seq, ..)| *seq),
            column(&new, |(_, row, _)| row.coordinate.to_vec()),
            column(&new, |(_, row, _)| row.at.newest()),
            column(&new, |(_, row, _)| row.at.id().to_vec()),
            column(&new, |(_, row, _)| row.pubkey.to_bytes().to_vec()),
            column(&new, |(_, row, _)| row.ends),
            column(&new, |(.., json)| (*json).clone())
        ));
    }

    fn write_requests(&self, changed: &Changed, statements: &mut Vec<Statement>) {
        if !changed.forgotten_requests.is_empty() {
            let seqs = || changed.forgotten_requests.clone();
            statements.push(statement!("DELETE FROM gates WHERE request = ANY($1)", seqs()));
            statements.push(statement!("DELETE FROM requests WHERE seq = ANY($1)", seqs()));
        }
        let requests: Vec<_> = changed
            .requests
            .iter()
            .filter_map(|seq| Some((*seq, self.requests.get(seq)?)))
            .collect();
        if !requests.is_empty() {
            statements.push(statement!(
                "INSERT INTO requests (seq, pubkey, id, newest, clock, retired)
                    SELECT * FROM unnest($1::BIGINT[], $2::BYTEA[], $3::BYTEA[], $4::BIGINT[],
                        $5::BIGINT[], $6::BIGINT[])
                    ON CONFLICT (seq) DO UPDATE SET clock = excluded.clock, retired = excluded.retired",
                column(&requests, |(seq, _)| *seq),
                column(&requests, |(_, row)| row.pubkey.to_bytes().to_vec()),
                column(&requests, |(_, row)| row.id.to_bytes().to_vec()),
                column(&requests, |(_, row)| row.newest),
                column(&requests, |(_, row)| row.clock),
                column(&requests, |(_, row)| i64::from(row.is_retired))
            ));
        }
        if changed.gates.is_empty() {
            return;
        }
        let replaced: Vec<_> = changed.gates.iter().map(|target| target.to_vec()).collect();
        statements.push(statement!("DELETE FROM gates WHERE target = ANY($1)", replaced));
        let gates = changed.gates.iter();
        let gates = gates.filter_map(|target| Some((target.to_vec(), *self.gates.get(target)?)));
        let (targets, requests): (Vec<_>, Vec<_>) = gates.unzip();
        statements.push(statement!(
            "INSERT INTO gates (target, request) SELECT * FROM unnest($1::BYTEA[], $2::BIGINT[])",
            targets,
            requests
        ));
    }

    fn write_others(&self, changed: &Changed, statements: &mut Vec<Statement>) {
        let vanished = changed.vanished.iter();
        let vanished = vanished
            .filter_map(|author| Some((author.to_bytes().to_vec(), *self.vanished.get(author)?)));
        let (authors, until): (Vec<_>, Vec<_>) = vanished.unzip();
        if !authors.is_empty() {
            statements.push(statement!(
                "INSERT INTO vanished (pubkey, newest) SELECT * FROM unnest($1::BYTEA[], $2::BIGINT[])
                    ON CONFLICT (pubkey) DO UPDATE SET newest = excluded.newest",
                authors,
                until
            ));
        }
        let delisted = changed.delisted.iter();
        let delisted: Vec<_> =
            delisted.filter_map(|key| Some((key.to_vec(), self.delisted.get(key)?))).collect();
        if !delisted.is_empty() {
            statements.push(statement!(
                "INSERT INTO delisted (coordinate, newest, id)
                    SELECT * FROM unnest($1::BYTEA[], $2::BIGINT[], $3::BYTEA[])
                    ON CONFLICT (coordinate) DO UPDATE SET newest = excluded.newest, id = excluded.id",
                column(&delisted, |(key, _)| key.clone()),
                column(&delisted, |(_, by)| by.newest()),
                column(&delisted, |(_, by)| by.id().to_vec())
            ));
        }
        for (sql, ids) in [
            (
                "INSERT INTO unfinished (id) SELECT * FROM unnest($1::BYTEA[]) ON CONFLICT DO NOTHING",
                &changed.unfinished,
            ),
            ("DELETE FROM unfinished WHERE id = ANY($1)", &changed.finished),
        ] {
            if !ids.is_empty() {
                let ids: Vec<_> = ids.iter().map(|id| id.to_bytes().to_vec()).collect();
                statements.push(statement!(sql, ids));
            }
        }
        if changed.generation {
            statements.push(statement!("UPDATE generations SET last = $1", self.last_generation));
        }
    }
}

fn erase(changed: &Changed, statements: &mut Vec<Statement>) {
    let erased = &changed.erased;
    if erased.is_empty() {
        return;
    }
    let seqs: Vec<_> = erased.iter().map(|row| row.seq).collect();
    statements.push(statement!("DELETE FROM events WHERE seq = ANY($1)", seqs));
    let entries: Vec<_> =
        erased.iter().flat_map(|row| row.lists.iter().map(|list| (*list, row.at))).collect();
    statements.push(statement!(
        "DELETE FROM lists USING unnest($1::BYTEA[], $2::BIGINT[], $3::BYTEA[]) d(list, newest, id)
            WHERE lists.list = d.list AND lists.newest = d.newest AND lists.id = d.id",
        column(&entries, |(list, _)| list.to_vec()),
        column(&entries, |(_, at)| at.newest()),
        column(&entries, |(_, at)| at.id().to_vec())
    ));
    let ended: Vec<_> = erased.iter().filter(|row| row.has_end).map(|row| row.seq).collect();
    if !ended.is_empty() {
        statements.push(statement!("DELETE FROM expirations WHERE seq = ANY($1)", ended));
    }
}
