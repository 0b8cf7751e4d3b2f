//! The rules of NIP-01, 09, 40 and 62 upon the rows of a store, within a transaction that the caller commits.
//!
//! A store implements [`Rows`], reading and writing single rows, and has [`Rules`] and [`Deletions`] by that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::{Needs, Outcome, Presence, Rejection, is_expired};
use grasp_core::deletion::{DeletionRequest, vanishes_from};
use grasp_core::{RepoId, Version, deletion, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::types::Value;

use super::keys::{Digest, Keys, Position, seconds};
use super::{SaveReport, StoreError, StoreRules, keeps_versions, noted_before, repositories_of};
use crate::store::keys::newest;

/// Rows that one transaction erases, approximately, so that other writers do not wait long.
const MAX_ERASED_ROWS: usize = 5_000;

/// Events and kept versions that one step of a sweep or of vanishing removes, so that saves queued behind it do not
/// wait long.
pub(crate) const STEP_EVENTS: usize = 500;

/// The result of one step of a sweep.
pub(crate) struct Swept {
    /// Removed events, served ones and kept versions.
    pub(crate) events: u64,
    pub(crate) has_more: bool,
}

/// The result of one step of carrying out a request.
pub(crate) struct Continued {
    pub(crate) is_done: bool,
    /// The repositories of which something was removed.
    pub(crate) affected: BTreeSet<RepoId>,
    /// The events that were removed.
    pub(crate) removed: BTreeSet<EventId>,
}

/// The result of checking an event against what is stored.
pub(crate) enum Verdict {
    Accepted,
    /// Nothing is to be done for it.
    Done(Outcome),
    /// Its author deleted it, with the request of this row.
    DeletedBy(i64),
}

impl From<Rejection> for Verdict {
    fn from(reason: Rejection) -> Self {
        Self::Done(reason.into())
    }
}

/// A served event without its text.
#[derive(Clone, Copy)]
pub(crate) struct Served {
    pub(crate) seq: i64,
    pub(crate) at: Position,
}

/// A record that refuses an author's event, or a coordinate.
#[derive(Clone, Copy)]
pub(crate) struct Gate {
    /// The row of the request.
    pub(crate) request: i64,
    /// Minus the time of the request.
    pub(crate) newest: i64,
}

/// What becomes of the refs that a removed event signed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Their objects go with them.
    Gone,
    /// Their tips are retired at this time.
    Retired(Timestamp),
    /// The same, but for the repositories of its author, which are withheld and stay as they are.
    Hidden(Timestamp),
    /// Its author deleted it at this time. An announcement takes its repository out of service, whose tips are retired; the
    /// objects of all else go with it.
    Deleted(Timestamp),
}

impl Removal {
    /// Returns the time at which the tips of refs are retired that an event of a kind signed for.
    pub(crate) fn retires(self, kind: Kind) -> Option<Timestamp> {
        match self {
            Self::Gone => None,
            Self::Retired(since) | Self::Hidden(since) => Some(since),
            Self::Deleted(since) => (kind == kinds::ANNOUNCEMENT).then_some(since),
        }
    }
}

/// What a transaction has done so far, and may still do.
pub(crate) struct Progress {
    /// The time up to which expired events were removed in this transaction.
    expired_until: Cell<Option<Timestamp>>,
    /// Rows that this transaction may still erase; the remainder is left to another.
    erase_budget: Cell<usize>,
    /// Requests of this transaction that are not fully applied.
    unfinished: RefCell<Vec<Arc<Event>>>,
    /// The repositories of which something was removed, until a commit reports them.
    affected: RefCell<BTreeSet<RepoId>>,
    /// The events that were removed without a replacement, until it is reported.
    removed: RefCell<BTreeSet<EventId>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            expired_until: Cell::default(),
            erase_budget: Cell::new(MAX_ERASED_ROWS),
            unfinished: RefCell::default(),
            affected: RefCell::default(),
            removed: RefCell::default(),
        }
    }
}

impl Progress {
    /// Counts rows that were erased.
    pub(crate) fn spend(&self, rows: usize) {
        self.erase_budget
            .set(self.erase_budget.get().saturating_sub(rows));
    }

    /// Returns whether this transaction has erased its share of rows.
    pub(crate) fn is_spent(&self) -> bool {
        self.erase_budget.get() == 0
    }

    /// Takes the repositories of which something was removed.
    pub(crate) fn take_affected(&self) -> BTreeSet<RepoId> {
        self.affected.take()
    }

    /// Takes the requests that are not fully applied.
    pub(crate) fn take_unfinished(&self) -> Vec<Arc<Event>> {
        self.unfinished.take()
    }

    /// Takes the events that were removed without a replacement.
    pub(crate) fn take_removed(&self) -> BTreeSet<EventId> {
        self.removed.take()
    }
}

/// The rows of a store within one transaction. Times are minus the time where they are called newest or until.
///
/// Lists of rows that are due have [`STEP_EVENTS`] at most; as many mean that there may be more.
pub(crate) trait Rows {
    fn keys(&self) -> &Keys;
    fn rules(&self) -> &StoreRules;
    fn progress(&self) -> &Progress;

    fn served(&self, id: &EventId) -> Result<Option<Served>, StoreError>;
    /// Returns an author's event that may be deleted: no request.
    fn deletable(&self, id: &EventId, author: &PublicKey) -> Result<Option<i64>, StoreError>;
    /// Returns whether an event or kept version, not expired, is of another author.
    fn is_foreign(&self, id: &EventId, author: &PublicKey, now: i64) -> Result<bool, StoreError>;
    fn head(&self, coordinate: &Digest) -> Result<Option<Served>, StoreError>;
    fn has_ended(&self, seq: i64, now: i64) -> Result<bool, StoreError>;
    fn expired_events(&self, now: i64) -> Result<Vec<i64>, StoreError>;
    /// Returns an author's events except requests to vanish.
    fn written_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError>;
    fn insert(&self, event: &Event, coordinate: Option<&Digest>) -> Result<(), StoreError>;
    /// Deletes a served event with all rows that refer to it, and counts what that costs.
    fn erase(&self, seq: i64) -> Result<Option<Event>, StoreError>;
    /// Executes a statement that every database understands, at once or before the transaction is committed.
    fn change(&self, sql: &'static str, values: Vec<Value>) -> Result<(), StoreError>;
    /// Removes the refs that an event signed for, which is being removed.
    fn remove_refs_of(&self, event: &Event, removal: Removal) -> Result<(), StoreError>;
    /// Erases the hidden events that a request of their author deletes, up to a time where versions are named.
    fn erase_hidden(&self, author: &PublicKey, request: i64, until: i64) -> Result<(), StoreError>;
    /// Erases the hidden events of an author.
    fn erase_hidden_by(&self, author: &PublicKey, until: i64) -> Result<(), StoreError>;
    /// Erases hidden events whose time has ended, for one step.
    fn erase_ended_hidden(&self, now: i64) -> Result<(), StoreError>;

    /// Keeps a version within the limit per coordinate, unless it is kept already.
    fn insert_copy(&self, event: &Event, coordinate: &Digest) -> Result<(), StoreError>;
    fn expired_copies(&self, now: i64) -> Result<Vec<i64>, StoreError>;
    fn copies_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError>;
    fn erase_copy(&self, seq: i64) -> Result<(), StoreError>;
    /// Deletes a kept version, of this author if one is given; returns whether it was there.
    fn delete_copy(&self, id: &EventId, author: Option<&PublicKey>) -> Result<bool, StoreError>;
    fn delete_copies(&self, coordinate: &Digest, until: i64) -> Result<(), StoreError>;

    fn is_retired(&self, author: &PublicKey, id: &EventId) -> Result<bool, StoreError>;
    fn requests_by(&self, author: &PublicKey, until: i64) -> Result<Vec<i64>, StoreError>;
    fn due_requests(&self, is_retired: bool, clock: i64) -> Result<Vec<i64>, StoreError>;
    /// Records a request apart from its event, which may be removed earlier; returns its row.
    fn record_request(&self, event: &Event, now: i64) -> Result<i64, StoreError>;
    /// Sets the time of last use, unless it is after `before`.
    fn use_request(&self, seq: i64, now: i64, before: i64) -> Result<(), StoreError>;
    /// Marks a request as no longer served; returns its id.
    fn retire_request(&self, seq: i64) -> Result<EventId, StoreError>;
    /// Deletes a request with its gates.
    fn forget_request(&self, seq: i64) -> Result<(), StoreError>;
    fn gate(&self, target: &Digest) -> Result<Option<Gate>, StoreError>;
    /// Gates a target by this request instead of an earlier one: equal requests cost no more than one.
    fn replace_gate(&self, target: &Digest, request: i64) -> Result<(), StoreError>;

    /// Returns until when an author vanished.
    fn vanished(&self, author: &PublicKey) -> Result<Option<i64>, StoreError>;
    /// Records that an author vanished, unless later already.
    fn vanish_author(&self, author: &PublicKey, until: i64) -> Result<(), StoreError>;
    /// Returns the version before which a coordinate was delisted.
    fn delisted_by(&self, coordinate: &Digest) -> Result<Option<Position>, StoreError>;
    fn put_delisted(&self, coordinate: &Digest, by: Position) -> Result<(), StoreError>;
    fn put_unfinished(&self, id: &EventId) -> Result<(), StoreError>;
    fn delete_unfinished(&self, id: &EventId) -> Result<(), StoreError>;
}

impl<R: Rows> Rules for R {}
impl<R: Rows> Deletions for R {}

/// Saving, replacing and reclaiming.
pub(crate) trait Rules: Rows + Sized {
    /// Saves events in order, after removing some expired ones. Returns the requests among them that must be
    /// [continued](Deletions::continue_request).
    fn save(
        &self,
        events: &[Arc<Event>],
        now: Timestamp,
    ) -> Result<(SaveReport, Vec<Arc<Event>>), StoreError> {
        self.expire(now)?;
        let saved = events.iter().map(|event| self.save_one(event, now));
        let saved = saved.collect::<Result<_, _>>()?;
        let progress = self.progress();
        let report = SaveReport {
            saved,
            affected: progress.take_affected(),
            removed: progress.take_removed(),
        };
        Ok((report, progress.take_unfinished()))
    }

    /// Checks one event and changes nothing.
    fn check(&self, event: &Event, now: Timestamp) -> Result<Verdict, StoreError> {
        if event.kind.is_ephemeral() {
            return Ok(Rejection::NeverStored.into());
        }
        if is_expired(event, now) {
            return Ok(Rejection::Expired.into());
        }
        if self.is_known(event)? {
            return Ok(Verdict::Done(Outcome::Duplicate(Presence::Stored)));
        }
        if self.has_vanished(event)? {
            return Ok(Rejection::Vanished.into());
        }
        if let Some(blocking_request) = self.blocking_request(event)? {
            return Ok(Verdict::DeletedBy(blocking_request));
        }
        if self.is_delisted(event)? {
            // A version that wins over it was delisted.
            return Ok(Verdict::Done(Outcome::Superseded));
        }
        let refusal = self.deletion_refusal(event, now)?;
        Ok(refusal.map_or(Verdict::Accepted, Verdict::from))
    }

    /// Returns whether an event is served, or would be if it were saved.
    fn would_serve(&self, event: &Event, now: Timestamp) -> Result<bool, StoreError> {
        match self.check(event, now)? {
            Verdict::Done(outcome) => Ok(outcome == Outcome::Duplicate(Presence::Stored)),
            Verdict::DeletedBy(_) => Ok(false),
            Verdict::Accepted => {
                let Some(coordinate) = deletion::coordinate(event) else {
                    return Ok(true);
                };
                let Some(head) = self.head(&self.keys().coordinate(&coordinate))? else {
                    return Ok(true);
                };
                let is_older = head.at > Position::of(event);
                Ok(is_older || self.has_ended(head.seq, seconds(now.as_secs()))?)
            }
        }
    }

    /// Removes versions that are older than this one, and records that they stay away.
    fn delist(
        &self,
        coordinate: &Coordinate,
        by: Version,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let key = self.keys().coordinate(coordinate);
        let by = Position::of_version(by);
        let mut gone = 0;
        if let Some(head) = self.head(&key)?.filter(|head| head.at > by) {
            // Its owner may come back.
            self.remove_served(head.seq, Removal::Retired(now))?;
            gone += 1;
        }
        if self.delisted_by(&key)?.is_none_or(|known| by < known) {
            self.put_delisted(&key, by)?;
        }
        Ok(gone)
    }

    /// Removes events from the served and from the kept ones.
    fn remove(&self, ids: &[EventId]) -> Result<u64, StoreError> {
        let mut removed = 0;
        for id in ids {
            if let Some(served) = self.served(id)? {
                self.erase(served.seq)?;
                removed += 1;
            }
            removed += u64::from(self.delete_copy(id, None)?);
        }
        Ok(removed)
    }

    /// Removes events that are held from now on. States are kept as versions, too: if their repository is announced again,
    /// they are served again, however late.
    fn withdraw(&self, ids: &[EventId]) -> Result<(), StoreError> {
        for id in ids {
            let Some(served) = self.served(id)? else {
                continue;
            };
            let Some(event) = self.erase(served.seq)? else {
                continue;
            };
            let coordinate = deletion::coordinate(&event).filter(|at| at.kind == kinds::STATE);
            if let Some(coordinate) = coordinate {
                self.insert_copy(&event, &self.keys().coordinate(&coordinate))?;
            }
        }
        Ok(())
    }

    /// Runs one step of reclaiming space: expired events, then deletion requests past their term.
    fn sweep(&self, now: Timestamp) -> Result<Swept, StoreError> {
        self.erase_ended_hidden(seconds(now.as_secs()))?;
        let turns = [
            self.remove_expired(now)?,
            self.retire_requests(now)?,
            self.forget_requests(now)?,
        ];
        Ok(Swept {
            events: turns.iter().map(|turn| turn.events).sum(),
            has_more: turns.iter().any(|turn| turn.has_more),
        })
    }

    /// Restarts the term of a request that has just blocked an event.
    fn note_use(&self, request: i64, now: Timestamp) -> Result<(), StoreError> {
        self.use_request(request, seconds(now.as_secs()), seconds(noted_before(now)))
    }

    /// Returns whether an event is stored, or was a deletion request that is no longer served.
    fn is_known(&self, event: &Event) -> Result<bool, StoreError> {
        if self.served(&event.id)?.is_some() {
            return Ok(true);
        }
        Ok(event.kind == Kind::EventDeletion && self.is_retired(&event.pubkey, &event.id)?)
    }

    fn is_delisted(&self, event: &Event) -> Result<bool, StoreError> {
        if !keeps_versions(event.kind) {
            return Ok(false);
        }
        let Some(coordinate) = deletion::coordinate(event) else {
            return Ok(false);
        };
        let by = self.delisted_by(&self.keys().coordinate(&coordinate))?;
        Ok(by.is_some_and(|by| by < Position::of(event)))
    }

    fn save_one(&self, event: &Arc<Event>, now: Timestamp) -> Result<Outcome, StoreError> {
        match self.check(event, now)? {
            Verdict::Accepted => self.store(event, now),
            Verdict::Done(outcome) => Ok(outcome),
            Verdict::DeletedBy(blocking_request) => {
                self.note_use(blocking_request, now)?;
                Ok(Rejection::Deleted.into())
            }
        }
    }

    fn store(&self, event: &Arc<Event>, now: Timestamp) -> Result<Outcome, StoreError> {
        let Some(coordinate) = deletion::coordinate(event) else {
            self.insert(event, None)?;
            self.handle_request(event, now)?;
            return Ok(Outcome::Stored);
        };
        let key = self.keys().coordinate(&coordinate);
        match self.head(&key)? {
            Some(head)
                if head.at < Position::of(event) && !self.remove_if_expired(&head, now)? =>
            {
                self.keep_version(event, &key)?;
                return Ok(Outcome::Superseded);
            }
            // The head may have been removed just now.
            Some(head) => self.supersede(&head, &key)?,
            None => {}
        }
        if keeps_versions(event.kind) {
            self.delete_copy(&event.id, None)?;
        }
        self.insert(event, Some(&key))?;
        Ok(Outcome::Stored)
    }

    /// Replaces a served version by a better one.
    fn supersede(&self, head: &Served, coordinate: &Digest) -> Result<(), StoreError> {
        match self.erase(head.seq)? {
            Some(loser) => self.keep_version(&loser, coordinate),
            None => Ok(()),
        }
    }

    /// Keeps a superseded version for rollback, if its kind is kept.
    fn keep_version(&self, event: &Event, coordinate: &Digest) -> Result<(), StoreError> {
        if keeps_versions(event.kind) {
            self.insert_copy(event, coordinate)
        } else {
            Ok(())
        }
    }

    /// Removes some expired events, once per transaction. Those that are left are not served either.
    fn expire(&self, now: Timestamp) -> Result<(), StoreError> {
        let expired_until = &self.progress().expired_until;
        if expired_until.get().is_none_or(|until| until < now) {
            self.remove_expired(now)?;
            expired_until.set(Some(now));
        }
        Ok(())
    }

    /// Removes a version that has expired; returns whether it has.
    fn remove_if_expired(&self, head: &Served, now: Timestamp) -> Result<bool, StoreError> {
        let has_ended = self.has_ended(head.seq, seconds(now.as_secs()))?;
        Ok(has_ended && self.remove_served(head.seq, Removal::Gone)?)
    }

    /// Deletes a served event without replacement; returns whether it was there.
    fn remove_served(&self, seq: i64, removal: Removal) -> Result<bool, StoreError> {
        Ok(self.take_served(seq, removal)?.is_some())
    }

    /// Takes a served event out of service, with the refs that it signed for, and records the repositories it named.
    fn take_served(&self, seq: i64, removal: Removal) -> Result<Option<Event>, StoreError> {
        let Some(event) = self.erase(seq)? else {
            return Ok(None);
        };
        self.remove_refs_of(&event, removal)?;
        self.note_unannounced(&event)?;
        let progress = self.progress();
        progress
            .affected
            .borrow_mut()
            .extend(repositories_of(&event));
        progress.removed.borrow_mut().insert(event.id);
        Ok(Some(event))
    }

    /// Takes note of an announcement that is not served any more, since other events may be here because of it.
    fn note_unannounced(&self, event: &Event) -> Result<(), StoreError> {
        if event.kind != kinds::ANNOUNCEMENT {
            return Ok(());
        }
        let Some(repo) = Needs::of(event).repo else {
            return Ok(());
        };
        self.change(
            "INSERT INTO unannounced (identifier, owner, event) VALUES (?1, ?2, ?3)
                 ON CONFLICT (identifier, owner) DO UPDATE SET event = excluded.event",
            vec![
                Value::Text(repo.identifier.to_string()),
                Value::Blob(repo.owner.to_bytes().to_vec()),
                Value::Blob(event.id.to_bytes().to_vec()),
            ],
        )
    }

    fn remove_expired(&self, now: Timestamp) -> Result<Swept, StoreError> {
        let until = seconds(now.as_secs());
        let mut removed = 0;
        let due = self.expired_events(until)?;
        for seq in due.iter().take_while(|_| !self.progress().is_spent()) {
            self.remove_served(*seq, Removal::Gone)?;
            removed += 1;
        }
        let copies = self.expired_copies(until)?;
        for seq in &copies {
            self.erase_copy(*seq)?;
        }
        let has_more = removed < due.len() || due.len().max(copies.len()) == STEP_EVENTS;
        Ok(Swept {
            events: (removed + copies.len()) as u64,
            has_more,
        })
    }

    /// Stops serving deletion requests that were not useful for long; their gates stay.
    fn retire_requests(&self, now: Timestamp) -> Result<Swept, StoreError> {
        let due = self.due_requests(false, seconds(self.rules().retired_before(now)))?;
        let mut events = 0;
        for request in &due {
            if let Some(served) = self.served(&self.retire_request(*request)?)? {
                self.erase(served.seq)?;
                events += 1;
            }
        }
        Ok(Swept {
            events,
            has_more: due.len() == STEP_EVENTS,
        })
    }

    /// Deletes requests with their gates after their gates were not useful for long, either.
    fn forget_requests(&self, now: Timestamp) -> Result<Swept, StoreError> {
        let due = self.due_requests(true, seconds(self.rules().forgotten_before(now)))?;
        due.iter()
            .try_for_each(|request| self.forget_request(*request))?;
        Ok(Swept {
            events: 0,
            has_more: due.len() == STEP_EVENTS,
        })
    }
}

/// Deletion requests of a vanishing author that one transaction erases; each may have thousands of targets.
const MAX_ERASED_REQUESTS: usize = 10;

/// Carrying out requests, and refusing what they gate.
pub(crate) trait Deletions: Rows + Sized {
    /// Applies a stored event that is a request. Its gates hold at once; erasing its targets may take further
    /// transactions.
    fn handle_request(&self, event: &Arc<Event>, now: Timestamp) -> Result<(), StoreError> {
        if self.rules().ignores_deletions {
            if event.kind == Kind::EventDeletion {
                // It ends like an unused one.
                self.record_request(event, seconds(now.as_secs()))?;
            }
            return Ok(());
        }
        match event.kind {
            Kind::EventDeletion => self.gate_targets(event, now)?,
            Kind::RequestToVanish => self.gate_author(event)?,
            _ => return Ok(()),
        }
        if !self.apply_request(event, now)? {
            self.put_unfinished(&event.id)?;
            self.progress()
                .unfinished
                .borrow_mut()
                .push(Arc::clone(event));
        }
        Ok(())
    }

    /// Continues a request in a transaction of its own.
    fn continue_request(&self, request: &Event, now: Timestamp) -> Result<Continued, StoreError> {
        let is_done = self.apply_request(request, now)?;
        if is_done {
            self.delete_unfinished(&request.id)?;
        }
        let progress = self.progress();
        Ok(Continued {
            is_done,
            affected: progress.take_affected(),
            removed: progress.take_removed(),
        })
    }

    /// Erases targets of a request within the limit of one transaction; returns whether none is left.
    fn apply_request(&self, request: &Event, now: Timestamp) -> Result<bool, StoreError> {
        match request.kind {
            Kind::EventDeletion => self.delete_targets(request, now),
            _ => self.vanish(request),
        }
    }

    /// Returns the reason for which a deletion request cannot be honoured; `None` for other kinds.
    fn deletion_refusal(
        &self,
        event: &Event,
        now: Timestamp,
    ) -> Result<Option<Rejection>, StoreError> {
        if event.kind != Kind::EventDeletion {
            return Ok(None);
        }
        let Ok(request) = DeletionRequest::parse(event) else {
            return Ok(Some(Rejection::TooManyTargets));
        };
        for id in &request.ids {
            if self.is_foreign(id, &event.pubkey, seconds(now.as_secs()))? {
                return Ok(Some(Rejection::ForeignDeletion));
            }
        }
        Ok(None)
    }

    /// Returns the request of its author that deletes this event; one of them, if there are several.
    fn blocking_request(&self, event: &Event) -> Result<Option<i64>, StoreError> {
        if !deletion::is_deletable(event.kind) {
            return Ok(None);
        }
        if let Some(gate) = self.gate(&self.keys().own_event(&event.pubkey, &event.id))? {
            return Ok(Some(gate.request));
        }
        let Some(coordinate) = deletion::coordinate(event) else {
            return Ok(None);
        };
        let gate = self.gate(&self.keys().coordinate(&coordinate))?;
        let covering = gate.filter(|gate| gate.newest <= newest(event.created_at));
        Ok(covering.map(|gate| gate.request))
    }

    /// Returns whether the author asked to vanish up to a time that includes this event.
    ///
    /// Requests to vanish are exempt: they prove the author's wish.
    fn has_vanished(&self, event: &Event) -> Result<bool, StoreError> {
        if event.kind == Kind::RequestToVanish {
            return Ok(false);
        }
        let until = self.vanished(&event.pubkey)?;
        Ok(until.is_some_and(|until| until <= newest(event.created_at)))
    }

    /// Records the gates of a deletion request.
    fn gate_targets(&self, event: &Event, now: Timestamp) -> Result<(), StoreError> {
        let Ok(request) = DeletionRequest::parse(event) else {
            return Ok(());
        };
        let now = seconds(now.as_secs());
        let number = self.record_request(event, now)?;
        for id in &request.ids {
            self.replace_gate(&self.keys().own_event(&event.pubkey, id), number)?;
        }
        for coordinate in &request.coordinates {
            let key = self.keys().coordinate(coordinate);
            match self.gate(&key)? {
                // The gate deletes more than this request would. It is still wanted, so its term restarts.
                Some(gate) if gate.newest < newest(event.created_at) => {
                    self.use_request(gate.request, now, now)?;
                }
                _ => self.replace_gate(&key, number)?,
            }
        }
        self.erase_hidden(&event.pubkey, number, newest(event.created_at))
    }

    /// Erases targets of a deletion request; returns whether none is left. Coordinates come first, those of announcements
    /// before those of states: a repository that goes as a whole is retained as a whole.
    fn delete_targets(&self, event: &Event, now: Timestamp) -> Result<bool, StoreError> {
        let request = DeletionRequest::parse(event).unwrap_or_default();
        for coordinate in &request.coordinates {
            if self.progress().is_spent() {
                return Ok(false);
            }
            self.delete_versions(coordinate, event, now)?;
        }
        for id in &request.ids {
            if self.progress().is_spent() {
                return Ok(false);
            }
            if let Some(seq) = self.deletable(id, &event.pubkey)? {
                self.remove_served(seq, Removal::Deleted(now))?;
            }
            self.delete_copy(id, Some(&event.pubkey))?;
        }
        Ok(true)
    }

    /// Removes every version of a coordinate that is not newer than the request.
    fn delete_versions(
        &self,
        coordinate: &Coordinate,
        request: &Event,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let key = self.keys().coordinate(coordinate);
        let until = newest(request.created_at);
        if let Some(head) = self.head(&key)?.filter(|head| head.at.newest() >= until) {
            self.remove_served(head.seq, Removal::Deleted(now))?;
        }
        self.delete_copies(&key, until)
    }

    /// Records that an author vanished up to the request, if the request includes this service.
    fn gate_author(&self, request: &Event) -> Result<(), StoreError> {
        match self.includes_this_service(request) {
            true => self.vanish_author(&request.pubkey, newest(request.created_at)),
            false => Ok(()),
        }
    }

    fn includes_this_service(&self, request: &Event) -> bool {
        vanishes_from(request, self.rules().service.as_ref())
    }

    /// Erases an author's events, kept versions, deletion requests and gates up to the request, if it includes this
    /// service. Returns whether nothing is left.
    fn vanish(&self, request: &Event) -> Result<bool, StoreError> {
        if !self.includes_this_service(request) {
            return Ok(true);
        }
        let author = &request.pubkey;
        let until = newest(request.created_at);
        self.erase_hidden_by(author, until)?;
        let written = self.written_by(author, until)?;
        for seq in &written {
            if self.progress().is_spent() {
                return Ok(false);
            }
            self.remove_served(*seq, Removal::Gone)?;
        }
        let copies = self.copies_by(author, until)?;
        copies.iter().try_for_each(|seq| self.erase_copy(*seq))?;
        let requests = self.requests_by(author, until)?;
        for seq in requests.iter().take(MAX_ERASED_REQUESTS) {
            self.forget_request(*seq)?;
        }
        Ok(written.len().max(copies.len()) < STEP_EVENTS && requests.len() <= MAX_ERASED_REQUESTS)
    }
}
