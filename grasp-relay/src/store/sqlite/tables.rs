//! The tables of events, refs, packs and purgatory within a transaction that the caller commits.

use std::cell::RefCell;

use grasp_core::deletion;
use grasp_purgatory::database::Generation;
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use rusqlite::types::{FromSql, Value};
use rusqlite::{
    CachedStatement, Connection, OptionalExtension, Params, Row, ToSql, named_params, params,
    params_from_iter,
};

use crate::store::changes::{Changes, GitRows, RepoKey, blob, integer, refs_removal};
use crate::store::engine::{Columns, Query};
use crate::store::git::views_signed_by;
use crate::store::hiding::{
    ERASE_ENDED_HIDDEN_SQL, ERASE_HIDDEN_BY_SQL, ERASE_HIDDEN_SQL, erased_hidden,
};
use crate::store::keys::{Digest, Keys, Position, newest, seconds};
use crate::store::policy::UsedAuth;
use crate::store::rules::{Gate, Progress, Removal, Rows, STEP_EVENTS, Served};
use crate::store::{StoreError, StoreRules, failure, write_cost};

/// Selects a request that is not fully applied. `CROSS` reads `unfinished` first, which is empty or small: SQLite's planner
/// would read all events.
const UNFINISHED_SQL: &str = "SELECT json FROM unfinished CROSS JOIN events USING (id) LIMIT 1";

/// The tables of the store within one transaction.
pub(crate) struct SqliteTables<'a> {
    pub(super) conn: &'a Connection,
    pub(super) keys: &'a Keys,
    pub(super) rules: &'a StoreRules,
    pub(super) progress: Progress,
    pending: RefCell<Vec<ListEntry>>,
    /// The events that were inserted or erased.
    touched: RefCell<Vec<EventId>>,
}

/// An event's row in one of its lists, ordered as in the file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ListEntry {
    list: Digest,
    at: Position,
    kind: u16,
    seq: i64,
}

impl<'a> SqliteTables<'a> {
    pub(super) fn new(conn: &'a Connection, keys: &'a Keys, rules: &'a StoreRules) -> Self {
        Self {
            conn,
            keys,
            rules,
            progress: Progress::default(),
            pending: RefCell::default(),
            touched: RefCell::default(),
        }
    }

    /// Takes the events that were inserted or erased.
    pub(super) fn take_touched(&self) -> Vec<EventId> {
        self.touched.take()
    }

    fn statement(&self, sql: &str) -> Result<CachedStatement<'_>, StoreError> {
        self.conn.prepare_cached(sql).map_err(failure)
    }

    /// Executes a cached statement; returns the number of changed rows.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> Result<usize, StoreError> {
        self.statement(sql)?.execute(params).map_err(failure)
    }

    /// Returns whether a cached statement finds a row.
    pub(super) fn exists(&self, sql: &str, params: impl Params) -> Result<bool, StoreError> {
        self.statement(sql)?.exists(params).map_err(failure)
    }

    /// Reads the first row of a cached statement, if there is one.
    pub(super) fn find<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, StoreError> {
        self.statement(sql)?
            .query_row(params, read)
            .optional()
            .map_err(failure)
    }

    /// Returns the column of a cached statement that finds one row.
    pub(super) fn only<T: FromSql>(&self, sql: &str, params: impl Params) -> Result<T, StoreError> {
        self.statement(sql)?
            .query_row(params, |row| row.get(0))
            .map_err(failure)
    }

    /// Returns the row numbers that a cached statement finds, for one step.
    fn step(&self, sql: &str, params: &[&dyn ToSql]) -> Result<Vec<i64>, StoreError> {
        let mut statement = self.statement(sql)?;
        let rows = statement
            .query_map(params, |row| row.get(0))
            .map_err(failure)?;
        rows.take(STEP_EVENTS)
            .collect::<Result<_, _>>()
            .map_err(failure)
    }

    /// Writes the deferred list rows; must be called before the transaction is committed.
    ///
    /// An event belongs to several lists, each elsewhere in the file. Writing those of a whole group in file order
    /// touches every page once.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut pending = self.pending.take();
        pending.sort_unstable();
        let mut enter = self.statement(
            "INSERT OR IGNORE INTO lists (list, newest, id, kind, seq) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for ListEntry {
            list,
            at,
            kind,
            seq,
        } in pending
        {
            let row = params![list, at.newest(), at.id(), kind, seq];
            enter.execute(row).map_err(failure)?;
        }
        Ok(())
    }

    /// Returns a stored request that is not fully applied, if there is one.
    pub(super) fn next_unfinished(&self) -> Result<Option<Event>, StoreError> {
        self.execute(
            "DELETE FROM unfinished WHERE id NOT IN (SELECT id FROM events)",
            [],
        )?;
        let json: Option<String> = self.find(UNFINISHED_SQL, [], |row| row.get(0))?;
        Ok(json.and_then(|json| Event::from_json(json).ok()))
    }
}

/// Returns the rows of a query.
pub(super) fn rows<T>(conn: &Connection, query: Query<T>) -> Result<Vec<T>, StoreError> {
    let Query {
        sql,
        keys,
        values,
        read,
        ..
    } = query;
    // Without arrays the statement is executed for each key.
    let mut statement = conn
        .prepare_cached(&sql.replace("ANY(?1)", "?1"))
        .map_err(failure)?;
    let most = if keys.is_some() { 1 } else { usize::MAX };
    let keys = keys.map_or(vec![None], |keys| keys.into_iter().map(Some).collect());
    let mut found = Vec::new();
    for key in keys {
        let values = key.iter().chain(&values);
        let mut rows = statement.query(params_from_iter(values)).map_err(failure)?;
        let last = found.len().saturating_add(most);
        while found.len() < last {
            let Some(row) = rows.next().map_err(failure)? else {
                break;
            };
            found.push(read(row)?);
        }
    }
    Ok(found)
}

impl Rows for SqliteTables<'_> {
    fn keys(&self) -> &Keys {
        self.keys
    }

    fn rules(&self) -> &StoreRules {
        self.rules
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn served(&self, id: &EventId) -> Result<Option<Served>, StoreError> {
        self.find(
            "SELECT newest, id, seq FROM events WHERE id = ?1",
            [id.as_bytes()],
            read_served,
        )
    }

    fn deletable(&self, id: &EventId, author: &PublicKey) -> Result<Option<i64>, StoreError> {
        self.find(
            "SELECT seq FROM events WHERE id = ?1 AND pubkey = ?2 AND kind NOT IN (5, 62)",
            params![id.as_bytes(), author.as_bytes()],
            |row| row.get(0),
        )
    }

    fn is_foreign(&self, id: &EventId, author: &PublicKey, now: i64) -> Result<bool, StoreError> {
        self.exists(
            "SELECT 1 FROM events WHERE id = ?1 AND pubkey <> ?2
                AND NOT EXISTS (SELECT 1 FROM expirations WHERE at <= ?3 AND expirations.seq = events.seq)
             UNION ALL
             SELECT 1 FROM superseded WHERE id = ?1 AND pubkey <> ?2 AND ifnull(expires_at > ?3, TRUE)",
            params![id.as_bytes(), author.as_bytes(), now],
        )
    }

    fn head(&self, coordinate: &Digest) -> Result<Option<Served>, StoreError> {
        self.find(
            "SELECT newest, id, events.seq FROM heads JOIN events USING (seq)
                 WHERE coordinate = ?1",
            [coordinate],
            read_served,
        )
    }

    fn has_ended(&self, seq: i64, now: i64) -> Result<bool, StoreError> {
        self.exists(
            "SELECT 1 FROM expirations WHERE seq = ?1 AND at <= ?2",
            [seq, now],
        )
    }

    fn expired_events(&self, now: i64) -> Result<Vec<i64>, StoreError> {
        self.step("SELECT seq FROM expirations WHERE at <= ?1", &[&now])
    }

    fn written_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError> {
        self.flush()?;
        self.step(
            "SELECT seq FROM lists WHERE list = ?1 AND newest >= ?2 AND kind <> 62",
            &[&self.keys.author(author), &until],
        )
    }

    fn insert(&self, event: &Event, coordinate: Option<&Digest>) -> Result<(), StoreError> {
        let at = Position::of(event);
        let kind = event.kind.as_u16();
        self.execute(
            "INSERT INTO events (newest, id, pubkey, kind, json) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                at.newest(),
                at.id(),
                event.pubkey.as_bytes(),
                kind,
                event.as_json()
            ],
        )?;
        self.touched.borrow_mut().push(event.id);
        let seq = self.conn.last_insert_rowid();
        let lists = self.keys.lists(event);
        self.pending
            .borrow_mut()
            .extend(lists.map(|list| ListEntry {
                list,
                at,
                kind,
                seq,
            }));
        if let Some(key) = coordinate {
            self.execute(
                "INSERT INTO heads (coordinate, seq) VALUES (?1, ?2)",
                params![key, seq],
            )?;
        }
        if let Some(end) = event.tags.expiration() {
            self.execute(
                "INSERT INTO expirations (at, seq) VALUES (?1, ?2)",
                [seconds(end.as_secs()), seq],
            )?;
        }
        Ok(())
    }

    fn erase(&self, seq: i64) -> Result<Option<Event>, StoreError> {
        // Row numbers grow, so the first deferred one shows whether this one is deferred, too.
        if self
            .pending
            .borrow()
            .first()
            .is_some_and(|first| first.seq <= seq)
        {
            self.flush()?;
        }
        let json: Option<String> = self.find(
            "DELETE FROM events WHERE seq = ?1 RETURNING json",
            [seq],
            |row| row.get(0),
        )?;
        let Some(event) = json.and_then(|json| Event::from_json(json).ok()) else {
            return Ok(None);
        };
        self.touched.borrow_mut().push(event.id);
        self.progress.spend(write_cost(&event));
        let at = Position::of(&event);
        let mut delete =
            self.statement("DELETE FROM lists WHERE list = ?1 AND newest = ?2 AND id = ?3")?;
        for list in self.keys.lists(&event) {
            delete
                .execute(params![list, at.newest(), at.id()])
                .map_err(failure)?;
        }
        if let Some(coordinate) = deletion::coordinate(&event) {
            self.execute(
                "DELETE FROM heads WHERE coordinate = ?1 AND seq = ?2",
                params![self.keys.coordinate(&coordinate), seq],
            )?;
        }
        if let Some(end) = event.tags.expiration() {
            self.execute(
                "DELETE FROM expirations WHERE at = ?1 AND seq = ?2",
                [seconds(end.as_secs()), seq],
            )?;
        }
        Ok(Some(event))
    }

    fn change(&self, sql: &'static str, values: Vec<Value>) -> Result<(), StoreError> {
        self.execute(sql, params_from_iter(values))?;
        Ok(())
    }

    fn remove_refs_of(&self, event: &Event, removal: Removal) -> Result<(), StoreError> {
        let Some(query) = views_signed_by(event) else {
            return Ok(());
        };
        for signed in rows(self.conn, query)? {
            if let Some(change) = refs_removal(event, signed, removal) {
                self.change_repo(&change)?;
            }
        }
        Ok(())
    }

    fn erase_hidden(&self, author: &PublicKey, request: i64, until: i64) -> Result<(), StoreError> {
        self.change(ERASE_HIDDEN_SQL, erased_hidden(author, request, until))
    }

    fn erase_hidden_by(&self, author: &PublicKey, until: i64) -> Result<(), StoreError> {
        let values = vec![blob(author.as_bytes()), integer(until)];
        self.change(ERASE_HIDDEN_BY_SQL, values)
    }

    fn erase_ended_hidden(&self, now: i64) -> Result<(), StoreError> {
        self.change(ERASE_ENDED_HIDDEN_SQL, vec![integer(now)])
    }

    fn insert_copy(&self, event: &Event, coordinate: &Digest) -> Result<(), StoreError> {
        let at = Position::of(event);
        let end = event.tags.expiration().map(|end| seconds(end.as_secs()));
        self.execute(
            "INSERT OR IGNORE INTO superseded (coordinate, newest, id, pubkey, expires_at, json)
                 VALUES (:coordinate, :newest, :id, :pubkey, :end, :json)",
            named_params! {
                ":coordinate": coordinate,
                ":newest": at.newest(),
                ":id": at.id(),
                ":pubkey": event.pubkey.as_bytes(),
                ":end": end,
                ":json": event.as_json(),
            },
        )?;
        let kept = i64::try_from(self.rules.kept_versions).unwrap_or(i64::MAX);
        self.execute(
            "DELETE FROM superseded WHERE seq IN (SELECT seq FROM superseded
                 WHERE coordinate = ?1 ORDER BY newest, id LIMIT -1 OFFSET ?2)",
            params![coordinate, kept],
        )?;
        Ok(())
    }

    fn expired_copies(&self, now: i64) -> Result<Vec<i64>, StoreError> {
        self.step("SELECT seq FROM superseded WHERE expires_at <= ?1", &[&now])
    }

    fn copies_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError> {
        let copies = "SELECT seq FROM superseded WHERE pubkey = ?1 AND newest >= ?2";
        self.step(copies, &[author.as_bytes(), &until])
    }

    fn erase_copy(&self, seq: i64) -> Result<(), StoreError> {
        self.execute("DELETE FROM superseded WHERE seq = ?1", [seq])?;
        Ok(())
    }

    fn delete_copy(&self, id: &EventId, author: Option<&PublicKey>) -> Result<bool, StoreError> {
        let id = id.as_bytes();
        let deleted = match author {
            None => self.execute("DELETE FROM superseded WHERE id = ?1", [id])?,
            Some(author) => self.execute(
                "DELETE FROM superseded WHERE id = ?1 AND pubkey = ?2",
                params![id, author.as_bytes()],
            )?,
        };
        Ok(deleted > 0)
    }

    fn delete_copies(&self, coordinate: &Digest, until: i64) -> Result<(), StoreError> {
        self.execute(
            "DELETE FROM superseded WHERE coordinate = ?1 AND newest >= ?2",
            params![coordinate, until],
        )?;
        Ok(())
    }

    fn is_retired(&self, author: &PublicKey, id: &EventId) -> Result<bool, StoreError> {
        self.exists(
            "SELECT 1 FROM requests WHERE pubkey = ?1 AND id = ?2 AND retired = 1",
            params![author.as_bytes(), id.as_bytes()],
        )
    }

    fn requests_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError> {
        let requests = "SELECT seq FROM requests WHERE pubkey = ?1 AND newest >= ?2";
        self.step(requests, &[author.as_bytes(), &until])
    }

    fn due_requests(&self, is_retired: bool, clock: i64) -> Result<Vec<i64>, StoreError> {
        let due = "SELECT seq FROM requests WHERE retired = ?1 AND clock <= ?2";
        self.step(due, &[&is_retired, &clock])
    }

    fn record_request(&self, event: &Event, now: i64) -> Result<i64, StoreError> {
        let (author, id) = (event.pubkey.as_bytes(), event.id.as_bytes());
        self.only(
            "INSERT INTO requests (pubkey, id, newest, clock) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (pubkey, id) DO UPDATE SET clock = excluded.clock, retired = 0
                 RETURNING seq",
            params![author, id, newest(event.created_at), now],
        )
    }

    fn use_request(&self, seq: i64, now: i64, before: i64) -> Result<(), StoreError> {
        self.execute(
            "UPDATE requests SET clock = ?2 WHERE seq = ?1 AND clock <= ?3",
            [seq, now, before],
        )?;
        Ok(())
    }

    fn retire_request(&self, seq: i64) -> Result<EventId, StoreError> {
        let id = self.only(
            "UPDATE requests SET retired = 1 WHERE seq = ?1 RETURNING id",
            [seq],
        )?;
        Ok(EventId::from_byte_array(id))
    }

    fn forget_request(&self, seq: i64) -> Result<(), StoreError> {
        for forget in [
            "DELETE FROM gates WHERE request = ?1",
            "DELETE FROM requests WHERE seq = ?1",
        ] {
            self.execute(forget, [seq])?;
        }
        Ok(())
    }

    fn gate(&self, target: &Digest) -> Result<Option<Gate>, StoreError> {
        self.find(
            "SELECT requests.seq, newest FROM gates JOIN requests ON requests.seq = gates.request
                 WHERE target = ?1",
            [target],
            |row| {
                Ok(Gate {
                    request: row.get(0)?,
                    newest: row.get(1)?,
                })
            },
        )
    }

    fn replace_gate(&self, target: &Digest, request: i64) -> Result<(), StoreError> {
        self.execute("DELETE FROM gates WHERE target = ?1", [target])?;
        self.execute(
            "INSERT INTO gates (target, request) VALUES (?1, ?2)",
            params![target, request],
        )?;
        Ok(())
    }

    fn vanished(&self, author: &PublicKey) -> Result<Option<i64>, StoreError> {
        self.find(
            "SELECT newest FROM vanished WHERE pubkey = ?1",
            [author.as_bytes()],
            |row| row.get(0),
        )
    }

    fn vanish_author(&self, author: &PublicKey, until: i64) -> Result<(), StoreError> {
        self.execute(
            "INSERT INTO vanished (pubkey, newest) VALUES (?1, ?2)
                 ON CONFLICT (pubkey) DO UPDATE SET newest = min(newest, excluded.newest)",
            params![author.as_bytes(), until],
        )?;
        Ok(())
    }

    fn delisted_by(&self, coordinate: &Digest) -> Result<Option<Position>, StoreError> {
        self.find(
            "SELECT newest, id FROM delisted WHERE coordinate = ?1",
            [coordinate],
            position,
        )
    }

    fn put_delisted(&self, coordinate: &Digest, by: Position) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR REPLACE INTO delisted (coordinate, newest, id) VALUES (?1, ?2, ?3)",
            params![coordinate, by.newest(), by.id()],
        )?;
        Ok(())
    }

    fn put_unfinished(&self, id: &EventId) -> Result<(), StoreError> {
        self.execute(
            "INSERT OR IGNORE INTO unfinished (id) VALUES (?1)",
            [id.as_bytes()],
        )?;
        Ok(())
    }

    fn delete_unfinished(&self, id: &EventId) -> Result<(), StoreError> {
        self.execute("DELETE FROM unfinished WHERE id = ?1", [id.as_bytes()])?;
        Ok(())
    }
}

impl Columns for Row<'_> {
    fn value(&self, at: usize) -> Result<Value, StoreError> {
        self.get(at).map_err(failure)
    }
}

fn read_served(row: &Row<'_>) -> rusqlite::Result<Served> {
    Ok(Served {
        at: position(row)?,
        seq: row.get(2)?,
    })
}

/// Reads the secret of the file, from which the keys of its indexes are made.
pub(super) fn load_keys(conn: &Connection) -> rusqlite::Result<Keys> {
    let salt: [u8; 64] = conn.query_row("SELECT salt FROM secret", [], |row| row.get(0))?;
    Ok(Keys::new(&salt))
}

/// Reads the columns `newest, id`, which come first in every statement that has them.
pub(super) fn position(row: &Row<'_>) -> rusqlite::Result<Position> {
    Ok(Position::new(row.get(0)?, row.get(1)?))
}

impl GitRows for SqliteTables<'_> {
    fn generation(&self, key: &RepoKey) -> Result<Option<Generation>, StoreError> {
        self.find(
            "SELECT generation FROM views WHERE endpoint = ?1 AND identifier = ?2 AND owner = ?3",
            params_from_iter(key.values([])),
            |row| Ok(Generation(row.get::<_, i64>(0)?.unsigned_abs())),
        )
    }

    fn next_generation(&self, _: &RepoKey) -> Result<i64, StoreError> {
        self.only("UPDATE generations SET last = last + 1 RETURNING last", [])
    }

    fn use_auth(&self, auth: &UsedAuth) -> Result<bool, StoreError> {
        let added = self.execute(
            "INSERT INTO auth_seen (id, until) VALUES (?1, ?2) ON CONFLICT (id) DO NOTHING",
            params![auth.id.as_bytes(), seconds(auth.until.as_secs())],
        )?;
        Ok(added > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::migrations;
    use super::*;
    use crate::store::engine::LISTING_SQL;

    #[test]
    fn looking_for_unfinished_requests_does_not_read_all_events() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrations::migrate(&mut conn).unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {UNFINISHED_SQL}");
        let first: String = conn.query_row(&explain, [], |row| row.get(3)).unwrap();
        assert_eq!(first, "SCAN unfinished");
    }

    #[test]
    fn the_authors_who_list_a_key_are_read_in_the_order_of_the_list() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrations::migrate(&mut conn).unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {LISTING_SQL}");
        let mut statement = conn.prepare(&explain).unwrap();
        let plan = statement.query_map(params![[0u8; 16], 1], |row| row.get(3));
        let plan: Vec<String> = plan.unwrap().map(Result::unwrap).collect();
        assert_eq!(plan.len(), 2, "{plan:?}");
        assert!(
            plan.iter().all(|step| step.starts_with("SEARCH")),
            "{plan:?}"
        );
    }
}
