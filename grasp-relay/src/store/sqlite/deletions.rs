//! Deletion requests and requests to vanish: which events they gate, which they remove, and for how long they count.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::Identifier;
use grasp_core::deletion::{self, DeletionRequest, VanishScope};
use nostr::event::{Event, Kind};
use nostr::types::Timestamp;
use rusqlite::{ToSql, params};

use super::schema::{Digest, newest, seconds};
use super::tables::Tables;
use crate::store::{Refusal, noted_before};

/// Events and kept versions of a vanishing author that one transaction erases.
const MAX_ERASED_EVENTS: usize = 500;

/// Deletion requests of a vanishing author that one transaction erases; each may have thousands of targets.
const MAX_ERASED_REQUESTS: usize = 10;

/// A record that refuses an author's event, or a coordinate.
struct Gate {
    /// The row of the request.
    request: i64,
    /// Minus the time of the request.
    newest: i64,
}

impl Tables<'_> {
    /// Applies a stored event that is a request. Its gates hold at once; erasing its targets may take further
    /// transactions.
    pub(super) fn handle_request(
        &self,
        event: &Arc<Event>,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        match event.kind {
            Kind::EventDeletion => self.gate_targets(event, now)?,
            Kind::RequestToVanish => self.gate_author(event)?,
            _ => return Ok(()),
        }
        if !self.apply_request(event)? {
            self.execute(
                "INSERT OR IGNORE INTO unfinished (id) VALUES (?1)",
                [event.id.as_bytes()],
            )?;
            self.unfinished.borrow_mut().push(Arc::clone(event));
        }
        Ok(())
    }

    /// Continues a request in a transaction of its own. Returns whether it is done, and the names of repositories of
    /// which something was removed.
    pub(super) fn continue_request(
        &self,
        request: &Event,
    ) -> rusqlite::Result<(bool, BTreeSet<Identifier>)> {
        let is_done = self.apply_request(request)?;
        if is_done {
            self.execute("DELETE FROM unfinished WHERE id = ?1", [request.id.as_bytes()])?;
        }
        Ok((is_done, self.affected.take()))
    }

    /// Returns a stored request that is not fully applied, if there is one.
    pub(super) fn next_unfinished(&self) -> rusqlite::Result<Option<Event>> {
        self.conn.execute("DELETE FROM unfinished WHERE id NOT IN (SELECT id FROM events)", [])?;
        let json: Option<String> =
            self.find("SELECT json FROM events JOIN unfinished USING (id) LIMIT 1", [], |row| {
                row.get(0)
            })?;
        Ok(json.and_then(|json| Event::from_json(json).ok()))
    }

    /// Erases targets of a request within the limit of one transaction; returns whether none is left.
    fn apply_request(&self, request: &Event) -> rusqlite::Result<bool> {
        match request.kind {
            Kind::EventDeletion => self.delete_targets(request),
            _ => self.vanish(request),
        }
    }

    /// Returns the reason for which a deletion request cannot be honoured; `None` for other kinds.
    pub(super) fn deletion_refusal(
        &self,
        event: &Event,
        now: Timestamp,
    ) -> rusqlite::Result<Option<Refusal>> {
        if event.kind != Kind::EventDeletion {
            return Ok(None);
        }
        let Ok(request) = DeletionRequest::parse(event) else {
            return Ok(Some(Refusal::TooManyTargets));
        };
        let mut foreign = self.conn.prepare_cached(
            "SELECT 1 FROM events WHERE id = ?1 AND pubkey <> ?2
                AND NOT EXISTS (SELECT 1 FROM expirations WHERE at <= ?3 AND expirations.seq = events.seq)
             UNION ALL
             SELECT 1 FROM superseded WHERE id = ?1 AND pubkey <> ?2 AND ifnull(expires_at > ?3, TRUE)",
        )?;
        for id in &request.ids {
            let now = seconds(now.as_secs());
            if foreign.exists(params![id.as_bytes(), event.pubkey.as_bytes(), now])? {
                return Ok(Some(Refusal::ForeignDeletion));
            }
        }
        Ok(None)
    }

    /// Returns the request of its author that deletes this event; one of them, if there are several.
    pub(super) fn blocking_request(&self, event: &Event) -> rusqlite::Result<Option<i64>> {
        if !deletion::is_deletable(event.kind) {
            return Ok(None);
        }
        if let Some(gate) = self.gate(&self.keys.own_event(&event.pubkey, &event.id))? {
            return Ok(Some(gate.request));
        }
        let Some(coordinate) = deletion::coordinate(event) else { return Ok(None) };
        let gate = self.gate(&self.keys.coordinate(&coordinate))?;
        let covering = gate.filter(|gate| gate.newest <= newest(event.created_at));
        Ok(covering.map(|gate| gate.request))
    }

    fn gate(&self, target: &Digest) -> rusqlite::Result<Option<Gate>> {
        self.find(
            "SELECT requests.seq, newest FROM gates JOIN requests ON requests.seq = gates.request
                 WHERE target = ?1",
            [target],
            |row| Ok(Gate { request: row.get(0)?, newest: row.get(1)? }),
        )
    }

    /// Restarts the term of a request that has just blocked an event.
    pub(super) fn note_use(&self, request: i64, now: Timestamp) -> rusqlite::Result<()> {
        self.execute(
            "UPDATE requests SET clock = ?2 WHERE seq = ?1 AND clock <= ?3",
            [request, seconds(now.as_secs()), seconds(noted_before(now))],
        )?;
        Ok(())
    }

    /// Returns whether a deletion request was stored before and is no longer served.
    pub(super) fn is_retired(&self, event: &Event) -> rusqlite::Result<bool> {
        if event.kind != Kind::EventDeletion {
            return Ok(false);
        }
        self.exists(
            "SELECT 1 FROM requests WHERE pubkey = ?1 AND id = ?2 AND retired = 1",
            params![event.pubkey.as_bytes(), event.id.as_bytes()],
        )
    }

    /// Returns whether the author asked to vanish up to a time that includes this event.
    ///
    /// Requests to vanish are exempt: they prove the author's wish.
    pub(super) fn has_vanished(&self, event: &Event) -> rusqlite::Result<bool> {
        if event.kind == Kind::RequestToVanish {
            return Ok(false);
        }
        self.exists(
            "SELECT 1 FROM vanished WHERE pubkey = ?1 AND newest <= ?2",
            params![event.pubkey.as_bytes(), newest(event.created_at)],
        )
    }

    /// Records the gates of a deletion request.
    fn gate_targets(&self, event: &Event, now: Timestamp) -> rusqlite::Result<()> {
        let Ok(request) = DeletionRequest::parse(event) else {
            return Ok(());
        };
        let number = self.record(event, now)?;
        for id in &request.ids {
            self.replace_gate(&self.keys.own_event(&event.pubkey, id), number)?;
        }
        for coordinate in &request.coordinates {
            let key = self.keys.coordinate(coordinate);
            match self.gate(&key)? {
                Some(gate) if gate.newest < newest(event.created_at) => {
                    // The gate deletes more than this request would. It is still wanted, so its term restarts.
                    self.execute(
                        "UPDATE requests SET clock = max(clock, ?2) WHERE seq = ?1",
                        [gate.request, seconds(now.as_secs())],
                    )?;
                }
                _ => self.replace_gate(&key, number)?,
            }
        }
        Ok(())
    }

    /// Erases targets of a deletion request; returns whether none is left.
    fn delete_targets(&self, event: &Event) -> rusqlite::Result<bool> {
        let request = DeletionRequest::parse(event).unwrap_or_default();
        for id in &request.ids {
            if self.is_erase_budget_spent() {
                return Ok(false);
            }
            self.delete_id(id.as_bytes(), event)?;
        }
        for coordinate in &request.coordinates {
            if self.is_erase_budget_spent() {
                return Ok(false);
            }
            self.delete_versions(&self.keys.coordinate(coordinate), event)?;
        }
        Ok(true)
    }

    /// Gates a target by this request instead of an earlier one: equal requests cost no more than one.
    fn replace_gate(&self, target: &Digest, request: i64) -> rusqlite::Result<()> {
        self.execute("DELETE FROM gates WHERE target = ?1", [target])?;
        self.execute(
            "INSERT INTO gates (target, request) VALUES (?1, ?2)",
            params![target, request],
        )?;
        Ok(())
    }

    /// Records the request apart from its event, which may be removed earlier.
    fn record(&self, event: &Event, now: Timestamp) -> rusqlite::Result<i64> {
        self.conn
            .prepare_cached(
                "INSERT INTO requests (pubkey, id, newest, clock) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (pubkey, id) DO UPDATE SET clock = excluded.clock, retired = 0
                 RETURNING seq",
            )?
            .query_row(
                params![
                    event.pubkey.as_bytes(),
                    event.id.as_bytes(),
                    newest(event.created_at),
                    seconds(now.as_secs())
                ],
                |row| row.get(0),
            )
    }

    fn delete_id(&self, id: &[u8; 32], request: &Event) -> rusqlite::Result<()> {
        let target: Option<i64> = self.find(
            "SELECT seq FROM events WHERE id = ?1 AND pubkey = ?2 AND kind NOT IN (5, 62)",
            params![id, request.pubkey.as_bytes()],
            |row| row.get(0),
        )?;
        if let Some(seq) = target {
            self.remove_served(seq)?;
        }
        self.execute(
            "DELETE FROM superseded WHERE id = ?1 AND pubkey = ?2",
            params![id, request.pubkey.as_bytes()],
        )?;
        Ok(())
    }

    /// Removes every version of a coordinate that is not newer than the request.
    fn delete_versions(&self, coordinate: &[u8; 16], request: &Event) -> rusqlite::Result<()> {
        let until = newest(request.created_at);
        if let Some(head) = self.head(coordinate)? {
            if head.at.newest() >= until {
                self.remove_served(head.seq)?;
            }
        }
        self.execute(
            "DELETE FROM superseded WHERE coordinate = ?1 AND newest >= ?2",
            params![coordinate, until],
        )?;
        Ok(())
    }

    /// Records that an author vanished up to the request, if the request includes this service.
    fn gate_author(&self, request: &Event) -> rusqlite::Result<()> {
        if self.includes_this_service(request) {
            self.execute(
                "INSERT INTO vanished (pubkey, newest) VALUES (?1, ?2)
                     ON CONFLICT (pubkey) DO UPDATE SET newest = min(newest, excluded.newest)",
                params![request.pubkey.as_bytes(), newest(request.created_at)],
            )?;
        }
        Ok(())
    }

    fn includes_this_service(&self, request: &Event) -> bool {
        VanishScope::parse(request).includes(self.rules.service.as_ref())
    }

    /// Erases an author's events, kept versions, deletion requests and gates up to the request, if it includes this
    /// service. Returns whether nothing is left.
    fn vanish(&self, request: &Event) -> rusqlite::Result<bool> {
        if !self.includes_this_service(request) {
            return Ok(true);
        }
        self.flush()?;
        let (author, until) = (request.pubkey.as_bytes(), newest(request.created_at));
        let list = self.keys.author(&request.pubkey);
        let some = |sql: &str, whose: &dyn ToSql| -> rusqlite::Result<Vec<i64>> {
            let mut statement = self.conn.prepare_cached(sql)?;
            let rows = statement.query_map(params![whose, until], |row| row.get(0))?;
            rows.take(MAX_ERASED_EVENTS).collect()
        };
        let written = "SELECT seq FROM lists WHERE list = ?1 AND newest >= ?2 AND kind <> 62";
        let written = some(written, &list)?;
        for seq in &written {
            if self.is_erase_budget_spent() {
                return Ok(false);
            }
            self.remove_served(*seq)?;
        }
        let copies = "SELECT seq FROM superseded WHERE pubkey = ?1 AND newest >= ?2";
        let copies = some(copies, author)?;
        for seq in &copies {
            self.execute("DELETE FROM superseded WHERE seq = ?1", [seq])?;
        }
        let requests = "SELECT seq FROM requests WHERE pubkey = ?1 AND newest >= ?2";
        let requests = some(requests, author)?;
        for seq in requests.iter().take(MAX_ERASED_REQUESTS) {
            for forget in
                ["DELETE FROM gates WHERE request = ?1", "DELETE FROM requests WHERE seq = ?1"]
            {
                self.execute(forget, [seq])?;
            }
        }
        Ok(written.len().max(copies.len()) < MAX_ERASED_EVENTS
            && requests.len() <= MAX_ERASED_REQUESTS)
    }
}
