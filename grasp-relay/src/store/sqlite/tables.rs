//! The rules of NIP-01, 09, 40 and 62 on the tables, within a transaction that the caller commits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::is_expired;
use grasp_core::{Identifier, Version, deletion};
use nostr::event::{Event, EventId};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::{Connection, OptionalExtension, Params, Row, named_params, params};

use super::schema::{Digest, Keys, Position, seconds};
use super::search::Expired;
use crate::store::{
    Refusal, SaveReport, Saved, StoreRules, keeps_versions, repository_names, write_cost,
};

/// Rows that one transaction erases, approximately, so that other writers do not wait long.
const MAX_ERASED_ROWS: usize = 5_000;

/// Events that one step of a sweep removes, so that saves queued behind it do not wait long.
const SWEEP_BATCH: usize = 500;

/// The result of one step of a sweep.
pub(super) struct Swept {
    /// Removed events, served ones and kept versions.
    pub(super) events: u64,
    pub(super) more: bool,
}

/// The tables of the store within one transaction.
pub(super) struct Tables<'a> {
    pub(super) conn: &'a Connection,
    pub(super) keys: &'a Keys,
    pub(super) rules: &'a StoreRules,
    pending: RefCell<Vec<ListEntry>>,
    /// The time up to which expired events were removed in this transaction.
    expired_until: Cell<Option<Timestamp>>,
    /// Rows that this transaction may still erase; the remainder is left to another.
    erase_budget: Cell<usize>,
    /// Requests of this transaction that are not fully applied.
    pub(super) unfinished: RefCell<Vec<Arc<Event>>>,
    /// The names of repositories of which something was removed, until a commit reports them.
    pub(super) affected: RefCell<BTreeSet<Identifier>>,
}

/// An event's row in one of its lists, ordered as in the file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ListEntry {
    list: Digest,
    pub(super) at: Position,
    kind: u16,
    pub(super) seq: i64,
}

/// The result of checking an event against what is stored.
pub(super) enum Verdict {
    Accepted,
    /// It is stored, or was a deletion request that is no longer served.
    Duplicate,
    /// A version that wins over it was delisted.
    Superseded,
    Refused(Refusal),
    /// Its author deleted it, with the request of this row.
    DeletedBy(i64),
}

/// A served event without its text.
pub(super) struct Served {
    pub(super) seq: i64,
    pub(super) at: Position,
}

impl<'a> Tables<'a> {
    pub(super) fn new(conn: &'a Connection, keys: &'a Keys, rules: &'a StoreRules) -> Self {
        let (pending, expired_until, affected, unfinished) = Default::default();
        let erase_budget = Cell::new(MAX_ERASED_ROWS);
        Self { conn, keys, rules, pending, expired_until, erase_budget, unfinished, affected }
    }

    /// Executes a cached statement; returns the number of changed rows.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.conn.prepare_cached(sql)?.execute(params)
    }

    /// Returns whether a cached statement finds a row.
    pub(super) fn exists(&self, sql: &str, params: impl Params) -> rusqlite::Result<bool> {
        self.conn.prepare_cached(sql)?.exists(params)
    }

    /// Reads the first row of a cached statement, if there is one.
    pub(super) fn find<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.conn.prepare_cached(sql)?.query_row(params, read).optional()
    }

    /// Writes the deferred list rows; must be called before the transaction is committed.
    ///
    /// An event belongs to several lists, each elsewhere in the file. Writing those of a whole group in file order
    /// touches every page once.
    pub(super) fn flush(&self) -> rusqlite::Result<()> {
        let mut pending = self.pending.take();
        pending.sort_unstable();
        let mut enter = self.conn.prepare_cached(
            "INSERT OR IGNORE INTO lists (list, newest, id, kind, seq) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for ListEntry { list, at, kind, seq } in pending {
            enter.execute(params![list, at.newest(), at.id(), kind, seq])?;
        }
        Ok(())
    }

    /// Saves events in order, after removing some expired ones. Returns the requests among them that must be
    /// [continued](Self::continue_request).
    pub(super) fn save(
        &self,
        events: &[Arc<Event>],
        now: Timestamp,
    ) -> rusqlite::Result<(SaveReport, Vec<Arc<Event>>)> {
        self.expire(now)?;
        let saved = events.iter().map(|event| self.save_one(event, now));
        let saved = saved.collect::<rusqlite::Result<_>>()?;
        Ok((SaveReport { saved, affected: self.affected.take() }, self.unfinished.take()))
    }

    /// Checks one event and changes nothing.
    pub(super) fn check(&self, event: &Event, now: Timestamp) -> rusqlite::Result<Verdict> {
        if event.kind.is_ephemeral() {
            return Ok(Verdict::Refused(Refusal::Ephemeral));
        }
        if is_expired(event, now) {
            return Ok(Verdict::Refused(Refusal::Expired));
        }
        if self.is_known(event)? {
            return Ok(Verdict::Duplicate);
        }
        if self.has_vanished(event)? {
            return Ok(Verdict::Refused(Refusal::Vanished));
        }
        if let Some(blocking_request) = self.blocking_request(event)? {
            return Ok(Verdict::DeletedBy(blocking_request));
        }
        if self.is_delisted(event)? {
            return Ok(Verdict::Superseded);
        }
        let refusal = self.deletion_refusal(event, now)?;
        Ok(refusal.map_or(Verdict::Accepted, Verdict::Refused))
    }

    /// Returns the ids that are served.
    pub(super) fn served_of(
        &self,
        ids: &[EventId],
        now: Timestamp,
    ) -> rusqlite::Result<Vec<EventId>> {
        let expired = Expired::by(self, now)?;
        let mut found = Vec::new();
        for id in ids {
            let Some(Served { seq, .. }) = self.served(id.as_bytes())? else { continue };
            if !expired.contains(self, seq)? {
                found.push(*id);
            }
        }
        Ok(found)
    }

    /// Returns the served versions of these coordinates.
    pub(super) fn versions_at(
        &self,
        coordinates: Vec<Coordinate>,
        now: Timestamp,
    ) -> rusqlite::Result<Vec<(Coordinate, Version)>> {
        let expired = Expired::by(self, now)?;
        let mut found = Vec::new();
        for coordinate in coordinates {
            let head = self.head(&self.keys.coordinate(&coordinate))?;
            let Some(Served { at, seq }) = head else { continue };
            if !expired.contains(self, seq)? {
                found.push((coordinate, at.version()));
            }
        }
        Ok(found)
    }

    /// Returns the superseded versions of a coordinate, winner first, as JSON.
    pub(super) fn superseded(&self, coordinate: &Coordinate) -> rusqlite::Result<Vec<String>> {
        let key = self.keys.coordinate(coordinate);
        self.conn
            .prepare_cached(
                "SELECT json FROM superseded WHERE coordinate = ?1 ORDER BY newest, id",
            )?
            .query_map([key], |row| row.get(0))?
            .collect()
    }

    /// Removes versions that are older than this one, and records that they stay away.
    pub(super) fn delist(&self, coordinate: &Coordinate, by: Version) -> rusqlite::Result<u64> {
        let (key, by) = (self.keys.coordinate(coordinate), Position::of_version(by));
        let mut gone = 0;
        if let Some(head) = self.head(&key)?.filter(|head| head.at > by) {
            self.remove_served(head.seq)?;
            gone += 1;
        }
        if self.delisted_by(&key)?.is_none_or(|known| by < known) {
            self.execute(
                "INSERT OR REPLACE INTO delisted (coordinate, newest, id) VALUES (?1, ?2, ?3)",
                params![key, by.newest(), by.id()],
            )?;
        }
        Ok(gone)
    }

    /// Returns the version before which a coordinate was delisted.
    pub(super) fn delisted_by(&self, coordinate: &Digest) -> rusqlite::Result<Option<Position>> {
        self.find(
            "SELECT newest, id FROM delisted WHERE coordinate = ?1",
            [coordinate],
            Position::read,
        )
    }

    fn is_delisted(&self, event: &Event) -> rusqlite::Result<bool> {
        if !keeps_versions(event.kind) {
            return Ok(false);
        }
        let Some(coordinate) = deletion::coordinate(event) else { return Ok(false) };
        let by = self.delisted_by(&self.keys.coordinate(&coordinate))?;
        Ok(by.is_some_and(|by| by < Position::of(event)))
    }

    fn save_one(&self, event: &Arc<Event>, now: Timestamp) -> rusqlite::Result<Saved> {
        match self.check(event, now)? {
            Verdict::Accepted => self.store(event, now),
            Verdict::Duplicate => Ok(Saved::Duplicate),
            Verdict::Superseded => Ok(Saved::Superseded),
            Verdict::Refused(refusal) => Ok(Saved::Refused(refusal)),
            Verdict::DeletedBy(blocking_request) => {
                self.note_use(blocking_request, now)?;
                Ok(Saved::Refused(Refusal::Deleted))
            }
        }
    }

    fn store(&self, event: &Arc<Event>, now: Timestamp) -> rusqlite::Result<Saved> {
        let Some(coordinate) = deletion::coordinate(event) else {
            self.insert(event, None)?;
            self.handle_request(event, now)?;
            return Ok(Saved::Stored);
        };
        let key = self.keys.coordinate(&coordinate);
        match self.head(&key)? {
            Some(head)
                if head.at < Position::of(event) && !self.remove_if_expired(&head, now)? =>
            {
                self.keep_version(event, &key)?;
                return Ok(Saved::Superseded);
            }
            // The head may have been removed just now.
            Some(head) => self.supersede(&head, &key)?,
            None => {}
        }
        self.drop_kept_version(event)?;
        self.insert(event, Some(&key))?;
        Ok(Saved::Stored)
    }

    fn insert(&self, event: &Event, coordinate: Option<&Digest>) -> rusqlite::Result<()> {
        let at = Position::of(event);
        let kind = event.kind.as_u16();
        let seq = self
            .conn
            .prepare_cached(
                "INSERT INTO events (newest, id, pubkey, kind, json) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .insert(params![
                at.newest(),
                at.id(),
                event.pubkey.as_bytes(),
                kind,
                event.as_json()
            ])?;
        let lists = self.keys.lists(event);
        self.pending.borrow_mut().extend(lists.map(|list| ListEntry { list, at, kind, seq }));
        if let Some(key) = coordinate {
            self.execute("INSERT INTO heads (coordinate, seq) VALUES (?1, ?2)", params![key, seq])?;
        }
        if let Some(end) = event.tags.expiration() {
            self.execute(
                "INSERT INTO expirations (at, seq) VALUES (?1, ?2)",
                [seconds(end.as_secs()), seq],
            )?;
        }
        Ok(())
    }

    fn is_known(&self, event: &Event) -> rusqlite::Result<bool> {
        Ok(self.served(event.id.as_bytes())?.is_some() || self.is_retired(event)?)
    }

    fn served(&self, id: &[u8; 32]) -> rusqlite::Result<Option<Served>> {
        self.find("SELECT newest, id, seq FROM events WHERE id = ?1", [id], Served::read)
    }

    pub(super) fn head(&self, coordinate: &Digest) -> rusqlite::Result<Option<Served>> {
        self.find(
            "SELECT newest, id, events.seq FROM heads JOIN events USING (seq)
                 WHERE coordinate = ?1",
            [coordinate],
            Served::read,
        )
    }

    /// Replaces a served version by a better one.
    fn supersede(&self, head: &Served, coordinate: &Digest) -> rusqlite::Result<()> {
        match self.erase(head.seq)? {
            Some(loser) => self.keep_version(&loser, coordinate),
            None => Ok(()),
        }
    }

    /// Keeps a superseded version for rollback, if its kind is kept, within the limit per coordinate.
    fn keep_version(&self, event: &Event, coordinate: &Digest) -> rusqlite::Result<()> {
        if !keeps_versions(event.kind) {
            return Ok(());
        }
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

    fn drop_kept_version(&self, event: &Event) -> rusqlite::Result<()> {
        if keeps_versions(event.kind) {
            self.execute("DELETE FROM superseded WHERE id = ?1", [event.id.as_bytes()])?;
        }
        Ok(())
    }
}

impl Tables<'_> {
    /// Removes events from the served and from the kept ones.
    pub(super) fn remove(&self, ids: &[EventId]) -> rusqlite::Result<u64> {
        let mut removed = 0;
        for id in ids {
            if let Some(served) = self.served(id.as_bytes())? {
                self.erase(served.seq)?;
                removed += 1;
            }
            removed +=
                self.execute("DELETE FROM superseded WHERE id = ?1", [id.as_bytes()])? as u64;
        }
        Ok(removed)
    }

    /// Empties every table except the file's secret.
    pub(super) fn forget_everything(&self) -> rusqlite::Result<()> {
        self.pending.take();
        for table in [
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
        ] {
            self.conn.execute(&format!("DELETE FROM {table}"), [])?;
        }
        Ok(())
    }

    /// Removes some expired events, once per transaction. Those that are left are not served either.
    pub(super) fn expire(&self, now: Timestamp) -> rusqlite::Result<()> {
        if self.expired_until.get().is_none_or(|until| until < now) {
            self.remove_expired(now)?;
            self.expired_until.set(Some(now));
        }
        Ok(())
    }

    /// Removes a version that has expired; returns whether it has.
    pub(super) fn remove_if_expired(
        &self,
        head: &Served,
        now: Timestamp,
    ) -> rusqlite::Result<bool> {
        let has_ended = self.exists(
            "SELECT 1 FROM expirations WHERE seq = ?1 AND at <= ?2",
            [head.seq, seconds(now.as_secs())],
        )?;
        Ok(has_ended && self.remove_served(head.seq)?)
    }

    /// Returns whether this transaction has erased its share of rows.
    pub(super) fn is_erase_budget_spent(&self) -> bool {
        self.erase_budget.get() == 0
    }

    /// Runs one step of reclaiming space: expired events, then deletion requests past their term.
    pub(super) fn sweep(&self, now: Timestamp) -> rusqlite::Result<Swept> {
        let turns =
            [self.remove_expired(now)?, self.retire_requests(now)?, self.forget_requests(now)?];
        Ok(Swept {
            events: turns.iter().map(|turn| turn.events).sum(),
            more: turns.iter().any(|turn| turn.more),
        })
    }

    /// Deletes a served event with all rows that refer to it.
    pub(super) fn erase(&self, seq: i64) -> rusqlite::Result<Option<Event>> {
        // Row numbers grow, so the first deferred one shows whether this one is deferred, too.
        if self.pending.borrow().first().is_some_and(|first| first.seq <= seq) {
            self.flush()?;
        }
        let json: Option<String> =
            self.find("DELETE FROM events WHERE seq = ?1 RETURNING json", [seq], |row| row.get(0))?;
        let Some(event) = json.and_then(|json| Event::from_json(json).ok()) else {
            return Ok(None);
        };
        self.erase_budget.set(self.erase_budget.get().saturating_sub(write_cost(&event)));
        let at = Position::of(&event);
        let mut delete = self
            .conn
            .prepare_cached("DELETE FROM lists WHERE list = ?1 AND newest = ?2 AND id = ?3")?;
        for list in self.keys.lists(&event) {
            delete.execute(params![list, at.newest(), at.id()])?;
        }
        if let Some(coordinate) = grasp_core::deletion::coordinate(&event) {
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

    /// Deletes a served event without replacement, with the refs that it signed for, and records the repositories it named. Returns whether it was
    /// there.
    pub(super) fn remove_served(&self, seq: i64) -> rusqlite::Result<bool> {
        let Some(event) = self.erase(seq)? else { return Ok(false) };
        self.remove_refs_of(&event)?;
        self.affected.borrow_mut().extend(repository_names(&event));
        Ok(true)
    }

    fn remove_expired(&self, now: Timestamp) -> rusqlite::Result<Swept> {
        let now = seconds(now.as_secs());
        let mut removed = 0;
        let due = self.due("SELECT seq FROM expirations WHERE at <= ?1", now)?;
        for seq in due.iter().take_while(|_| !self.is_erase_budget_spent()) {
            self.remove_served(*seq)?;
            removed += 1;
        }
        let copies = self.due("SELECT seq FROM superseded WHERE expires_at <= ?1", now)?;
        for seq in &copies {
            self.execute("DELETE FROM superseded WHERE seq = ?1", [seq])?;
        }
        let more = removed < due.len() || due.len().max(copies.len()) == SWEEP_BATCH;
        Ok(Swept { events: (removed + copies.len()) as u64, more })
    }

    /// Stops serving deletion requests that were not useful for long; their gates stay.
    fn retire_requests(&self, now: Timestamp) -> rusqlite::Result<Swept> {
        let due = self.due(
            "SELECT seq FROM requests WHERE retired = 0 AND clock <= ?1",
            seconds(self.rules.retired_before(now)),
        )?;
        let mut events = 0;
        for request in &due {
            let id: [u8; 32] = self
                .conn
                .prepare_cached("UPDATE requests SET retired = 1 WHERE seq = ?1 RETURNING id")?
                .query_row([request], |row| row.get(0))?;
            if let Some(served) = self.served(&id)? {
                self.erase(served.seq)?;
                events += 1;
            }
        }
        Ok(Swept { events, more: due.len() == SWEEP_BATCH })
    }

    /// Deletes requests with their gates after their gates were not useful for long, either.
    fn forget_requests(&self, now: Timestamp) -> rusqlite::Result<Swept> {
        let due = self.due(
            "SELECT seq FROM requests WHERE retired = 1 AND clock <= ?1",
            seconds(self.rules.forgotten_before(now)),
        )?;
        for request in &due {
            for forget in
                ["DELETE FROM gates WHERE request = ?1", "DELETE FROM requests WHERE seq = ?1"]
            {
                self.execute(forget, [request])?;
            }
        }
        Ok(Swept { events: 0, more: due.len() == SWEEP_BATCH })
    }

    /// Returns the row numbers that are due, for one step.
    fn due(&self, sql: &str, by: i64) -> rusqlite::Result<Vec<i64>> {
        self.conn
            .prepare_cached(sql)?
            .query_map([by], |row| row.get(0))?
            .take(SWEEP_BATCH)
            .collect()
    }
}

impl Served {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { at: Position::read(row)?, seq: row.get(2)? })
    }
}
