//! Taking events out: one by one, by time, or because somebody asked.

use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::{Ledger, Served};
use crate::store::rows;
use crate::store::rules::repository_names;
use crate::store::sqlite::keys::{Position, seconds};

/// How many events one turn of a sweep takes out, so that saves waiting behind it are not kept for long.
const SWEEP_TURN: usize = 500;

/// What one turn of a sweep did.
pub(in crate::store::sqlite) struct Swept {
    /// Events taken out, served ones and kept versions.
    pub(in crate::store::sqlite) events: u64,
    /// Whether another turn would find more.
    pub(in crate::store::sqlite) more: bool,
}

impl Ledger<'_> {
    /// Takes events out of service, and out of what is kept for rollback.
    pub(in crate::store::sqlite) fn remove(&self, ids: &[EventId]) -> rusqlite::Result<u64> {
        let mut removed = 0;
        for id in ids {
            if let Some(served) = self.served(id.as_bytes())? {
                self.erase(served.seq)?;
                removed += 1;
            }
            removed += self
                .conn
                .prepare_cached("DELETE FROM superseded WHERE id = ?1")?
                .execute([id.as_bytes()])? as u64;
        }
        Ok(removed)
    }

    /// Empties every table but the file's secret.
    pub(in crate::store::sqlite) fn forget_everything(&self) -> rusqlite::Result<()> {
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

    /// Buries some of what has expired, once for all who share the transaction. What is left is not served either.
    pub(super) fn expire(&self, now: Timestamp) -> rusqlite::Result<()> {
        if self.buried.get().is_none_or(|until| until < now) {
            self.bury(now)?;
            self.buried.set(Some(now));
        }
        Ok(())
    }

    /// Takes a version away if it has expired and was not buried yet; says whether it has.
    pub(super) fn end(&self, head: &Served, now: Timestamp) -> rusqlite::Result<bool> {
        let has_ended = self
            .conn
            .prepare_cached("SELECT 1 FROM expirations WHERE seq = ?1 AND at <= ?2")?
            .exists([head.seq, seconds(now.as_secs())])?;
        Ok(has_ended && self.take_away(head.seq)?)
    }

    /// Whether this transaction has erased as much as one should.
    pub(super) fn has_erased_enough(&self) -> bool {
        self.erasable.get() == 0
    }

    /// Does one turn of reclaiming: the expired, then deletion requests that are past their term.
    pub(in crate::store::sqlite) fn sweep(&self, now: Timestamp) -> rusqlite::Result<Swept> {
        let turns = [self.bury(now)?, self.retire(now)?, self.forget(now)?];
        Ok(Swept {
            events: turns.iter().map(|turn| turn.events).sum(),
            more: turns.iter().any(|turn| turn.more),
        })
    }

    /// Deletes a served event with everything that points at it.
    pub(super) fn erase(&self, seq: i64) -> rusqlite::Result<Option<Event>> {
        // Row numbers grow, so the oldest that was put off tells whether this one was.
        if self.pending.borrow().first().is_some_and(|first| first.seq <= seq) {
            self.finish()?;
        }
        let json: Option<String> = self
            .conn
            .prepare_cached("DELETE FROM events WHERE seq = ?1 RETURNING json")?
            .query_row([seq], |row| row.get(0))
            .optional()?;
        let Some(event) = json.and_then(|json| Event::from_json(json).ok()) else {
            return Ok(None);
        };
        self.erasable.set(self.erasable.get().saturating_sub(rows(&event)));
        let at = Position::of(&event);
        let mut strike = self
            .conn
            .prepare_cached("DELETE FROM lists WHERE list = ?1 AND newest = ?2 AND id = ?3")?;
        for list in self.keys.lists(&event) {
            strike.execute(params![list, at.newest(), at.id()])?;
        }
        if let Some(coordinate) = grasp_core::deletion::coordinate(&event) {
            self.conn
                .prepare_cached("DELETE FROM heads WHERE coordinate = ?1 AND seq = ?2")?
                .execute(params![self.keys.coordinate(&coordinate), seq])?;
        }
        if let Some(end) = event.tags.expiration() {
            self.conn
                .prepare_cached("DELETE FROM expirations WHERE at = ?1 AND seq = ?2")?
                .execute([seconds(end.as_secs()), seq])?;
        }
        Ok(Some(event))
    }

    /// Deletes a served event that no other version takes the place of, and notes whose git data it was about. Says
    /// whether it was there.
    pub(super) fn take_away(&self, seq: i64) -> rusqlite::Result<bool> {
        let Some(event) = self.erase(seq)? else { return Ok(false) };
        self.affected.borrow_mut().extend(repository_names(&event));
        Ok(true)
    }

    fn bury(&self, now: Timestamp) -> rusqlite::Result<Swept> {
        let now = seconds(now.as_secs());
        let mut buried = 0;
        let due = self.due("SELECT seq FROM expirations WHERE at <= ?1", now)?;
        for seq in due.iter().take_while(|_| !self.has_erased_enough()) {
            self.take_away(*seq)?;
            buried += 1;
        }
        let copies = self.due("SELECT seq FROM superseded WHERE expires_at <= ?1", now)?;
        for seq in &copies {
            self.conn.prepare_cached("DELETE FROM superseded WHERE seq = ?1")?.execute([seq])?;
        }
        let more = buried < due.len() || due.len().max(copies.len()) == SWEEP_TURN;
        Ok(Swept { events: (buried + copies.len()) as u64, more })
    }

    /// Stops serving deletion requests that nobody needed for long; their gates stay.
    fn retire(&self, now: Timestamp) -> rusqlite::Result<Swept> {
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
        Ok(Swept { events, more: due.len() == SWEEP_TURN })
    }

    /// Drops requests, with their gates, that blocked nothing for longer than anybody remembers.
    fn forget(&self, now: Timestamp) -> rusqlite::Result<Swept> {
        let due = self.due(
            "SELECT seq FROM requests WHERE retired = 1 AND clock <= ?1",
            seconds(self.rules.forgotten_before(now)),
        )?;
        for request in &due {
            for forget in
                ["DELETE FROM gates WHERE request = ?1", "DELETE FROM requests WHERE seq = ?1"]
            {
                self.conn.prepare_cached(forget)?.execute([request])?;
            }
        }
        Ok(Swept { events: 0, more: due.len() == SWEEP_TURN })
    }

    /// Up to one turn's worth of row numbers that are due.
    fn due(&self, sql: &str, by: i64) -> rusqlite::Result<Vec<i64>> {
        self.conn.prepare_cached(sql)?.query_map([by], |row| row.get(0))?.take(SWEEP_TURN).collect()
    }
}
