//! The rows that a transaction needs, in memory.
//!
//! All rows that a group of tasks may read or change are loaded by a few array queries, which travel together. The
//! rules decide upon them without waiting. What changed is written by a few array statements, which travel together
//! with the commit: a transaction is two round trips, however many events it saves.

mod load;
mod write;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use grasp_core::deletion;
use grasp_purgatory::database::Generation;
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use rusqlite::types::Value;

pub(super) use self::write::Statement;
use super::values::Param;
use crate::store::changes::{GitRows, RepoKey, blob, integer, time};
use crate::store::engine::Unreadable;
use crate::store::hiding::{
    ERASE_ENDED_HIDDEN_SQL, ERASE_HIDDEN_BY_SQL, ERASE_HIDDEN_SQL, erased_hidden,
};
use crate::store::keys::{Digest, Keys, Position, newest, seconds};
use crate::store::policy::UsedAuth;
use crate::store::rules::{Gate, Progress, Removal, Rows, STEP_EVENTS, Served};
use crate::store::{StoreError, StoreRules, failure, write_cost};

/// The rows of one transaction.
pub(crate) struct PostgresTables<'a> {
    keys: &'a Keys,
    rules: &'a StoreRules,
    progress: Progress,
    rows: RefCell<WorkingSet>,
}

/// Rows as they are, or as they will be after the transaction. Rows that are not here do not exist, or are not needed.
#[derive(Default)]
struct WorkingSet {
    last_seq: i64,
    last_generation: i64,
    events: HashMap<i64, EventRow>,
    event_ids: HashMap<EventId, i64>,
    heads: HashMap<Digest, i64>,
    copies: HashMap<i64, CopyRow>,
    copy_ids: HashMap<EventId, i64>,
    /// The kept versions of each coordinate, best first.
    copies_at: HashMap<Digest, BTreeSet<(Position, i64)>>,
    requests: HashMap<i64, RequestRow>,
    request_ids: HashMap<(PublicKey, EventId), i64>,
    gates: HashMap<Digest, i64>,
    vanished: HashMap<PublicKey, i64>,
    delisted: HashMap<Digest, Position>,
    views: HashMap<RepoKey, i64>,
    used_auth: HashSet<EventId>,
    /// Some events were hidden before this transaction.
    has_hidden: bool,
    changed: Changed,
}

/// What the transaction changes besides rows that are new.
#[derive(Default)]
struct Changed {
    erased: Vec<Erased>,
    heads: HashSet<Digest>,
    erased_copies: Vec<i64>,
    requests: HashSet<i64>,
    forgotten_requests: Vec<i64>,
    gates: HashSet<Digest>,
    vanished: HashSet<PublicKey>,
    delisted: HashSet<Digest>,
    unfinished: Vec<EventId>,
    finished: Vec<EventId>,
    /// Statements about refs, packs and purgatory, in their order.
    statements: Vec<Statement>,
    /// Events that were removed; their refs are to be removed, too.
    refs_of: Vec<(Event, Removal)>,
    has_generation: bool,
}

/// An event that was stored before this transaction and is no longer.
struct Erased {
    seq: i64,
    at: Position,
    lists: Vec<Digest>,
    has_end: bool,
}

struct EventRow {
    at: Position,
    pubkey: PublicKey,
    kind: u16,
    ends: Option<i64>,
    /// `None` if only its existence is needed.
    json: Option<String>,
    /// The lists of an event that this transaction inserts.
    new: Option<Vec<Digest>>,
}

/// A version that is kept for rollback.
struct CopyRow {
    coordinate: Digest,
    at: Position,
    pubkey: PublicKey,
    ends: Option<i64>,
    /// The text of one that this transaction inserts.
    new: Option<String>,
}

struct RequestRow {
    pubkey: PublicKey,
    id: EventId,
    newest: i64,
    clock: i64,
    is_retired: bool,
    is_new: bool,
}

impl<'a> PostgresTables<'a> {
    pub(super) fn new(keys: &'a Keys, rules: &'a StoreRules) -> Self {
        let (progress, rows) = Default::default();
        Self {
            keys,
            rules,
            progress,
            rows,
        }
    }

    /// Returns the number of the last event that was given one.
    pub(super) fn last_seq(&mut self) -> i64 {
        self.rows.get_mut().last_seq
    }

    /// Returns whether any events are hidden, or may be by this transaction.
    fn has_hidden(&self) -> bool {
        let rows = self.rows.borrow();
        rows.has_hidden || !rows.changed.statements.is_empty()
    }

    /// Takes the events whose refs are to be removed.
    pub(super) fn take_refs_of(&mut self) -> Vec<(Event, Removal)> {
        std::mem::take(&mut self.rows.get_mut().changed.refs_of)
    }
}

impl WorkingSet {
    fn next_seq(&mut self) -> i64 {
        self.last_seq += 1;
        self.last_seq
    }

    fn add_copy(&mut self, seq: i64, copy: CopyRow) {
        self.copy_ids.insert(copy.at.event_id(), seq);
        self.copies_at
            .entry(copy.coordinate)
            .or_default()
            .insert((copy.at, seq));
        self.copies.insert(seq, copy);
    }

    fn erase_copy(&mut self, seq: i64) -> bool {
        let Some(copy) = self.copies.remove(&seq) else {
            return false;
        };
        self.copy_ids.remove(&copy.at.event_id());
        let at_coordinate = self.copies_at.get_mut(&copy.coordinate);
        at_coordinate.map(|copies| copies.remove(&(copy.at, seq)));
        if copy.new.is_none() {
            self.changed.erased_copies.push(seq);
        }
        true
    }

    /// Returns kept versions that a condition holds for, best first.
    fn copies_where(&self, holds: impl Fn(&CopyRow) -> bool) -> Vec<i64> {
        let found = self.copies.iter().filter(|(_, copy)| holds(copy));
        let mut found: Vec<_> = found.map(|(seq, copy)| (copy.at, *seq)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, seq)| seq).collect()
    }

    /// Returns requests that a condition holds for, for one step.
    fn requests_where(&self, holds: impl Fn(&RequestRow) -> bool) -> Vec<i64> {
        let found = self.requests.iter().filter(|(_, request)| holds(request));
        let mut found: Vec<_> = found.map(|(seq, _)| *seq).collect();
        found.sort_unstable();
        step(found)
    }
}

fn step(mut rows: Vec<i64>) -> Vec<i64> {
    rows.truncate(STEP_EVENTS);
    rows
}

impl Rows for PostgresTables<'_> {
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
        let rows = self.rows.borrow();
        let seq = rows.event_ids.get(id);
        Ok(seq.and_then(|seq| {
            Some(Served {
                seq: *seq,
                at: rows.events.get(seq)?.at,
            })
        }))
    }

    fn deletable(&self, id: &EventId, author: &PublicKey) -> Result<Option<i64>, StoreError> {
        let rows = self.rows.borrow();
        let Some(seq) = rows.event_ids.get(id) else {
            return Ok(None);
        };
        let row = rows.events.get(seq);
        let may_go = |row: &EventRow| row.pubkey == *author && ![5, 62].contains(&row.kind);
        Ok(row.is_some_and(may_go).then_some(*seq))
    }

    fn is_foreign(&self, id: &EventId, author: &PublicKey, now: i64) -> Result<bool, StoreError> {
        let rows = self.rows.borrow();
        let lives = |ends: Option<i64>| ends.is_none_or(|end| end > now);
        let event = rows.event_ids.get(id).and_then(|seq| rows.events.get(seq));
        let copy = rows.copy_ids.get(id).and_then(|seq| rows.copies.get(seq));
        Ok(
            event.is_some_and(|row| row.pubkey != *author && lives(row.ends))
                || copy.is_some_and(|row| row.pubkey != *author && lives(row.ends)),
        )
    }

    fn head(&self, coordinate: &Digest) -> Result<Option<Served>, StoreError> {
        let rows = self.rows.borrow();
        let seq = rows.heads.get(coordinate);
        Ok(seq.and_then(|seq| {
            Some(Served {
                seq: *seq,
                at: rows.events.get(seq)?.at,
            })
        }))
    }

    fn has_ended(&self, seq: i64, now: i64) -> Result<bool, StoreError> {
        let rows = self.rows.borrow();
        let ends = rows.events.get(&seq).and_then(|row| row.ends);
        Ok(ends.is_some_and(|end| end <= now))
    }

    fn expired_events(&self, now: i64) -> Result<Vec<i64>, StoreError> {
        let rows = self.rows.borrow();
        let ended = rows
            .events
            .iter()
            .filter_map(|(seq, row)| Some((row.ends?, *seq)));
        let mut ended: Vec<_> = ended.filter(|(end, _)| *end <= now).collect();
        ended.sort_unstable();
        Ok(step(ended.into_iter().map(|(_, seq)| seq).collect()))
    }

    fn written_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError> {
        let rows = self.rows.borrow();
        let is_due = |row: &EventRow| {
            let is_loaded = row.json.is_some();
            is_loaded && row.pubkey == *author && row.at.newest() >= until && row.kind != 62
        };
        let due = rows.events.iter().filter(|(_, row)| is_due(row));
        let mut due: Vec<_> = due.map(|(seq, row)| (row.at, *seq)).collect();
        due.sort_unstable();
        Ok(step(due.into_iter().map(|(_, seq)| seq).collect()))
    }

    fn insert(&self, event: &Event, coordinate: Option<&Digest>) -> Result<(), StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        let seq = rows.next_seq();
        let mut lists: Vec<_> = self.keys.lists(event).collect();
        lists.sort_unstable();
        lists.dedup();
        let row = EventRow {
            at: Position::of(event),
            pubkey: event.pubkey,
            kind: event.kind.as_u16(),
            ends: event.tags.expiration().map(|end| seconds(end.as_secs())),
            json: Some(event.as_json()),
            new: Some(lists),
        };
        rows.events.insert(seq, row);
        rows.event_ids.insert(event.id, seq);
        if let Some(coordinate) = coordinate {
            rows.heads.insert(*coordinate, seq);
            rows.changed.heads.insert(*coordinate);
        }
        Ok(())
    }

    fn erase(&self, seq: i64) -> Result<Option<Event>, StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        let Some(row) = rows.events.remove(&seq) else {
            return Ok(None);
        };
        rows.event_ids.remove(&row.at.event_id());
        let event = Event::from_json(row.json.unwrap_or_default()).map_err(failure)?;
        self.progress.spend(write_cost(&event));
        if let Some(coordinate) = deletion::coordinate(&event) {
            let key = self.keys.coordinate(&coordinate);
            if rows.heads.get(&key) == Some(&seq) {
                rows.heads.remove(&key);
            }
            rows.changed.heads.insert(key);
        }
        if row.new.is_none() {
            let lists = self.keys.lists(&event).collect();
            let has_end = row.ends.is_some();
            rows.changed.erased.push(Erased {
                seq,
                at: row.at,
                lists,
                has_end,
            });
        }
        Ok(Some(event))
    }

    fn change(&self, sql: &'static str, values: Vec<Value>) -> Result<(), StoreError> {
        let values = values
            .into_iter()
            .map(|value| Box::new(Param(value)) as _)
            .collect();
        let statement = Statement { sql, values };
        self.rows.borrow_mut().changed.statements.push(statement);
        Ok(())
    }

    fn remove_refs_of(&self, event: &Event, removal: Removal) -> Result<(), StoreError> {
        if crate::store::REPOSITORY_KINDS.contains(&event.kind) {
            self.rows
                .borrow_mut()
                .changed
                .refs_of
                .push((event.clone(), removal));
        }
        Ok(())
    }

    fn erase_hidden(&self, author: &PublicKey, request: i64, until: i64) -> Result<(), StoreError> {
        match self.has_hidden() {
            true => self.change(ERASE_HIDDEN_SQL, erased_hidden(author, request, until)),
            false => Ok(()),
        }
    }

    fn erase_hidden_by(&self, author: &PublicKey, until: i64) -> Result<(), StoreError> {
        let values = vec![blob(author.as_bytes()), integer(until)];
        self.change(ERASE_HIDDEN_BY_SQL, values)
    }

    fn erase_ended_hidden(&self, now: i64) -> Result<(), StoreError> {
        match self.has_hidden() {
            true => self.change(ERASE_ENDED_HIDDEN_SQL, vec![integer(now)]),
            false => Ok(()),
        }
    }

    fn insert_copy(&self, event: &Event, coordinate: &Digest) -> Result<(), StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        if !rows.copy_ids.contains_key(&event.id) {
            let seq = rows.next_seq();
            let row = CopyRow {
                coordinate: *coordinate,
                at: Position::of(event),
                pubkey: event.pubkey,
                ends: event.tags.expiration().map(|end| seconds(end.as_secs())),
                new: Some(event.as_json()),
            };
            rows.add_copy(seq, row);
        }
        let kept = rows.copies_at.get(coordinate).into_iter().flatten();
        let too_many: Vec<_> = kept
            .skip(self.rules.kept_versions)
            .map(|(_, seq)| *seq)
            .collect();
        for seq in too_many {
            rows.erase_copy(seq);
        }
        Ok(())
    }

    fn expired_copies(&self, now: i64) -> Result<Vec<i64>, StoreError> {
        let rows = self.rows.borrow();
        Ok(step(rows.copies_where(|copy| {
            copy.ends.is_some_and(|end| end <= now)
        })))
    }

    fn copies_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError> {
        let rows = self.rows.borrow();
        let is_due = |copy: &CopyRow| copy.pubkey == *author && copy.at.newest() >= until;
        Ok(step(rows.copies_where(is_due)))
    }

    fn erase_copy(&self, seq: i64) -> Result<(), StoreError> {
        self.rows.borrow_mut().erase_copy(seq);
        Ok(())
    }

    fn delete_copy(&self, id: &EventId, author: Option<&PublicKey>) -> Result<bool, StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        let Some(seq) = rows.copy_ids.get(id).copied() else {
            return Ok(false);
        };
        let copy = rows.copies.get(&seq);
        let is_meant = copy.is_some_and(|copy| author.is_none_or(|author| copy.pubkey == *author));
        Ok(is_meant && rows.erase_copy(seq))
    }

    fn delete_copies(&self, coordinate: &Digest, until: i64) -> Result<(), StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        let kept = rows.copies_at.get(coordinate).into_iter().flatten();
        let due = kept.filter(|(at, _)| at.newest() >= until);
        for seq in due.map(|(_, seq)| *seq).collect::<Vec<_>>() {
            rows.erase_copy(seq);
        }
        Ok(())
    }

    fn is_retired(&self, author: &PublicKey, id: &EventId) -> Result<bool, StoreError> {
        let rows = self.rows.borrow();
        let known = rows.request_ids.get(&(*author, *id));
        Ok(known
            .and_then(|seq| rows.requests.get(seq))
            .is_some_and(|row| row.is_retired))
    }

    fn requests_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError> {
        let rows = self.rows.borrow();
        Ok(rows.requests_where(|row| row.pubkey == *author && row.newest >= until))
    }

    fn due_requests(&self, is_retired: bool, clock: i64) -> Result<Vec<i64>, StoreError> {
        let rows = self.rows.borrow();
        Ok(rows.requests_where(|row| row.is_retired == is_retired && row.clock <= clock))
    }

    fn record_request(&self, event: &Event, now: i64) -> Result<i64, StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        let known = rows.request_ids.get(&(event.pubkey, event.id)).copied();
        let seq = known.unwrap_or_else(|| rows.next_seq());
        rows.request_ids.insert((event.pubkey, event.id), seq);
        let row = rows.requests.entry(seq).or_insert_with(|| RequestRow {
            pubkey: event.pubkey,
            id: event.id,
            newest: newest(event.created_at),
            clock: now,
            is_retired: false,
            is_new: true,
        });
        (row.clock, row.is_retired) = (now, false);
        rows.changed.requests.insert(seq);
        Ok(seq)
    }

    fn use_request(&self, seq: i64, now: i64, before: i64) -> Result<(), StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        if let Some(row) = rows
            .requests
            .get_mut(&seq)
            .filter(|row| row.clock <= before)
        {
            row.clock = now;
            rows.changed.requests.insert(seq);
        }
        Ok(())
    }

    fn retire_request(&self, seq: i64) -> Result<EventId, StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        let row = rows
            .requests
            .get_mut(&seq)
            .ok_or_else(|| failure(Unreadable("a request")))?;
        row.is_retired = true;
        rows.changed.requests.insert(seq);
        Ok(row.id)
    }

    fn forget_request(&self, seq: i64) -> Result<(), StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        rows.gates.retain(|_, request| *request != seq);
        if let Some(row) = rows.requests.remove(&seq) {
            rows.request_ids.remove(&(row.pubkey, row.id));
            if !row.is_new {
                rows.changed.forgotten_requests.push(seq);
            }
        }
        Ok(())
    }

    fn gate(&self, target: &Digest) -> Result<Option<Gate>, StoreError> {
        let rows = self.rows.borrow();
        let request = rows.gates.get(target);
        let gate = |request: &i64| {
            let newest = rows.requests.get(request)?.newest;
            Some(Gate {
                request: *request,
                newest,
            })
        };
        Ok(request.and_then(gate))
    }

    fn replace_gate(&self, target: &Digest, request: i64) -> Result<(), StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        rows.gates.insert(*target, request);
        rows.changed.gates.insert(*target);
        Ok(())
    }

    fn vanished(&self, author: &PublicKey) -> Result<Option<i64>, StoreError> {
        Ok(self.rows.borrow().vanished.get(author).copied())
    }

    fn vanish_author(&self, author: &PublicKey, until: i64) -> Result<(), StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        let known = rows.vanished.entry(*author).or_insert(until);
        *known = until.min(*known);
        rows.changed.vanished.insert(*author);
        Ok(())
    }

    fn delisted_by(&self, coordinate: &Digest) -> Result<Option<Position>, StoreError> {
        Ok(self.rows.borrow().delisted.get(coordinate).copied())
    }

    fn put_delisted(&self, coordinate: &Digest, by: Position) -> Result<(), StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        rows.delisted.insert(*coordinate, by);
        rows.changed.delisted.insert(*coordinate);
        Ok(())
    }

    fn put_unfinished(&self, id: &EventId) -> Result<(), StoreError> {
        self.rows.borrow_mut().changed.unfinished.push(*id);
        Ok(())
    }

    fn delete_unfinished(&self, id: &EventId) -> Result<(), StoreError> {
        self.rows.borrow_mut().changed.finished.push(*id);
        Ok(())
    }
}

impl GitRows for PostgresTables<'_> {
    fn generation(&self, key: &RepoKey) -> Result<Option<Generation>, StoreError> {
        let rows = self.rows.borrow();
        Ok(rows
            .views
            .get(key)
            .map(|generation| Generation(generation.unsigned_abs())))
    }

    fn next_generation(&self, key: &RepoKey) -> Result<i64, StoreError> {
        let rows = &mut *self.rows.borrow_mut();
        rows.last_generation += 1;
        rows.changed.has_generation = true;
        rows.views.insert(key.clone(), rows.last_generation);
        Ok(rows.last_generation)
    }

    fn use_auth(&self, auth: &UsedAuth) -> Result<bool, StoreError> {
        let is_new = self.rows.borrow_mut().used_auth.insert(auth.id);
        if is_new {
            let remember = "INSERT INTO auth_seen (id, until) VALUES (?1, ?2)";
            let values = vec![blob(auth.id.as_bytes()), time(auth.until)];
            self.change(remember, values)?;
        }
        Ok(is_new)
    }

    fn view_removed(&self, key: &RepoKey) {
        self.rows.borrow_mut().views.remove(key);
    }
}
