//! The rules of NIP-01, 09, 40 and 62 upon the tables. Runs inside a transaction that somebody else ends.

mod erasure;
mod requests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::is_expired;
use grasp_core::{Identifier, Version, deletion};
use nostr::event::{Event, EventId};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::{Connection, OptionalExtension, named_params, params};

use super::keys::{Digest, Keys, Position, seconds};
use super::search::Expired;
use crate::store::rules::{Rules, keeps_versions};
use crate::store::{Commit, Refusal, Saved};

/// Rows that one transaction erases, about, so that others need not wait for long.
const ROWS_PER_STEP: usize = 5_000;

/// One connection, seen through the rules.
pub(super) struct Ledger<'a> {
    pub(super) conn: &'a Connection,
    pub(super) keys: &'a Keys,
    pub(super) rules: &'a Rules,
    pending: RefCell<Vec<Listing>>,
    /// Up to when expired events were looked for in this transaction.
    buried: Cell<Option<Timestamp>>,
    /// Rows that this transaction may still erase before the rest is left to another.
    erasable: Cell<usize>,
    /// Requests of this transaction that are not carried out to the end.
    unfinished: RefCell<Vec<Arc<Event>>>,
    /// The names of repositories of which something was taken away, until a commit reports them.
    affected: RefCell<BTreeSet<Identifier>>,
}

/// An event's place in one of its lists, in the order in which the file has them.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Listing {
    list: Digest,
    at: Position,
    kind: u16,
    seq: i64,
}

/// What is known of an event before it is stored.
pub(super) enum Verdict {
    /// Nothing speaks against it.
    Welcome,
    /// It is here, or was a deletion request that is no longer served.
    Known,
    /// A version that wins over it took its place, and is not served.
    Superseded,
    /// It must not be stored.
    Refused(Refusal),
    /// Its author deleted it, with this request.
    Deleted(i64),
}

/// A served event, without its text.
struct Served {
    seq: i64,
    at: Position,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(conn: &'a Connection, keys: &'a Keys, rules: &'a Rules) -> Self {
        let (pending, buried, affected, unfinished) = Default::default();
        let erasable = Cell::new(ROWS_PER_STEP);
        Self { conn, keys, rules, pending, buried, erasable, unfinished, affected }
    }

    /// Writes down what was put off; to be called before the transaction is committed.
    ///
    /// An event belongs to several lists, each somewhere else in the file. Entering those of a whole group in the
    /// order of the file touches every page once.
    pub(super) fn finish(&self) -> rusqlite::Result<()> {
        let mut pending = self.pending.take();
        pending.sort_unstable();
        let mut enter = self.conn.prepare_cached(
            "INSERT OR IGNORE INTO lists (list, newest, id, kind, seq) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for Listing { list, at, kind, seq } in pending {
            enter.execute(params![list, at.newest(), at.id(), kind, seq])?;
        }
        Ok(())
    }

    /// Saves events in order, after burying some of what has expired by now. Returns the requests among them that must
    /// be [gone on with](Self::go_on).
    pub(super) fn save(
        &self,
        events: &[Arc<Event>],
        now: Timestamp,
    ) -> rusqlite::Result<(Commit, Vec<Arc<Event>>)> {
        self.expire(now)?;
        let saved = events.iter().map(|event| self.save_one(event, now));
        let saved = saved.collect::<rusqlite::Result<_>>()?;
        Ok((Commit { saved, affected: self.affected.take() }, self.unfinished.take()))
    }

    /// Judges one event without touching anything. Expects that nothing expired is left, or is only asked for advice.
    pub(super) fn judge(&self, event: &Event, now: Timestamp) -> rusqlite::Result<Verdict> {
        if event.kind.is_ephemeral() {
            return Ok(Verdict::Refused(Refusal::Ephemeral));
        }
        if is_expired(event, now) {
            return Ok(Verdict::Refused(Refusal::Expired));
        }
        if self.is_known(event)? {
            return Ok(Verdict::Known);
        }
        if self.has_vanished(event)? {
            return Ok(Verdict::Refused(Refusal::Vanished));
        }
        if let Some(blocker) = self.blocker(event)? {
            return Ok(Verdict::Deleted(blocker));
        }
        if self.is_delisted(event)? {
            return Ok(Verdict::Superseded);
        }
        let refusal = self.deletion_refusal(event, now)?;
        Ok(refusal.map_or(Verdict::Welcome, Verdict::Refused))
    }

    /// Returns those of these events that are served.
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

    /// Superseded versions of a coordinate, winner first, as JSON.
    pub(super) fn superseded(&self, coordinate: &Coordinate) -> rusqlite::Result<Vec<String>> {
        let key = self.keys.coordinate(coordinate);
        self.conn
            .prepare_cached(
                "SELECT json FROM superseded WHERE coordinate = ?1 ORDER BY newest, id",
            )?
            .query_map([key], |row| row.get(0))?
            .collect()
    }

    /// Takes versions that are older than this one out of service, and notes that they stay away.
    pub(super) fn delist(&self, coordinate: &Coordinate, by: Version) -> rusqlite::Result<u64> {
        let (key, by) = (self.keys.coordinate(coordinate), Position::of_version(by));
        let mut gone = 0;
        if let Some(head) = self.head(&key)?.filter(|head| head.at > by) {
            self.erase(head.seq)?;
            gone += 1;
        }
        if self.delisted_by(&key)?.is_none_or(|known| by < known) {
            self.conn
                .prepare_cached(
                    "INSERT OR REPLACE INTO delisted (coordinate, newest, id) VALUES (?1, ?2, ?3)",
                )?
                .execute(params![key, by.newest(), by.id()])?;
        }
        Ok(gone)
    }

    /// The version before which a coordinate was delisted.
    pub(super) fn delisted_by(&self, coordinate: &Digest) -> rusqlite::Result<Option<Position>> {
        self.conn
            .prepare_cached("SELECT newest, id FROM delisted WHERE coordinate = ?1")?
            .query_row([coordinate], Position::read)
            .optional()
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
        match self.judge(event, now)? {
            Verdict::Welcome => self.admit(event, now),
            Verdict::Known => Ok(Saved::Duplicate),
            Verdict::Superseded => Ok(Saved::Superseded),
            Verdict::Refused(refusal) => Ok(Saved::Refused(refusal)),
            Verdict::Deleted(blocker) => {
                self.note_use(blocker, now)?;
                Ok(Saved::Refused(Refusal::Deleted))
            }
        }
    }

    fn admit(&self, event: &Arc<Event>, now: Timestamp) -> rusqlite::Result<Saved> {
        let Some(coordinate) = deletion::coordinate(event) else {
            self.insert(event, None)?;
            self.obey(event, now)?;
            return Ok(Saved::Stored);
        };
        let key = self.keys.coordinate(&coordinate);
        match self.head(&key)? {
            Some(head) if head.at < Position::of(event) && !self.end(&head, now)? => {
                self.shelve(event, &key)?;
                return Ok(Saved::Superseded);
            }
            // It may have been taken away just now.
            Some(head) => self.supersede(&head, &key)?,
            None => {}
        }
        self.unshelve(event)?;
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
        self.pending.borrow_mut().extend(lists.map(|list| Listing { list, at, kind, seq }));
        if let Some(key) = coordinate {
            self.conn
                .prepare_cached("INSERT INTO heads (coordinate, seq) VALUES (?1, ?2)")?
                .execute(params![key, seq])?;
        }
        if let Some(end) = event.tags.expiration() {
            self.conn
                .prepare_cached("INSERT INTO expirations (at, seq) VALUES (?1, ?2)")?
                .execute([seconds(end.as_secs()), seq])?;
        }
        Ok(())
    }

    fn is_known(&self, event: &Event) -> rusqlite::Result<bool> {
        Ok(self.served(event.id.as_bytes())?.is_some() || self.is_retired(event)?)
    }

    fn served(&self, id: &[u8; 32]) -> rusqlite::Result<Option<Served>> {
        self.conn
            .prepare_cached("SELECT newest, id, seq FROM events WHERE id = ?1")?
            .query_row([id], Served::read)
            .optional()
    }

    fn head(&self, coordinate: &Digest) -> rusqlite::Result<Option<Served>> {
        self.conn
            .prepare_cached(
                "SELECT newest, id, events.seq FROM heads JOIN events USING (seq)
                 WHERE coordinate = ?1",
            )?
            .query_row([coordinate], Served::read)
            .optional()
    }

    /// Takes a version out of service because a better one is here.
    fn supersede(&self, head: &Served, coordinate: &Digest) -> rusqlite::Result<()> {
        match self.erase(head.seq)? {
            Some(loser) => self.shelve(&loser, coordinate),
            None => Ok(()),
        }
    }

    /// Keeps a superseded version for rollback, if its kind deserves that, within the bound per coordinate.
    fn shelve(&self, event: &Event, coordinate: &Digest) -> rusqlite::Result<()> {
        if !keeps_versions(event.kind) {
            return Ok(());
        }
        let at = Position::of(event);
        let end = event.tags.expiration().map(|end| seconds(end.as_secs()));
        self.conn
            .prepare_cached(
                "INSERT OR IGNORE INTO superseded (coordinate, newest, id, pubkey, expires_at, json)
                 VALUES (:coordinate, :newest, :id, :pubkey, :end, :json)",
            )?
            .execute(named_params! {
                ":coordinate": coordinate,
                ":newest": at.newest(),
                ":id": at.id(),
                ":pubkey": event.pubkey.as_bytes(),
                ":end": end,
                ":json": event.as_json(),
            })?;
        let kept = i64::try_from(self.rules.kept_versions).unwrap_or(i64::MAX);
        self.conn
            .prepare_cached(
                "DELETE FROM superseded WHERE seq IN (SELECT seq FROM superseded
                 WHERE coordinate = ?1 ORDER BY newest, id LIMIT -1 OFFSET ?2)",
            )?
            .execute(params![coordinate, kept])?;
        Ok(())
    }

    fn unshelve(&self, event: &Event) -> rusqlite::Result<()> {
        if keeps_versions(event.kind) {
            self.conn
                .prepare_cached("DELETE FROM superseded WHERE id = ?1")?
                .execute([event.id.as_bytes()])?;
        }
        Ok(())
    }
}

impl Served {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { at: Position::read(row)?, seq: row.get(2)? })
    }
}
