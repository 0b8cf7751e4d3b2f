//! Taking stored events out of service for a while, and bringing them back, in steps that are transactions of their own.
//!
//! Hidden events stay under the power of their authors: a request to delete or to vanish erases them. When a cause no longer
//! holds, its events are saved again by the rules that new ones are saved by.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::{Outcome, Policy};
use grasp_core::deletion;
use grasp_core::policy::HiddenCause;
use grasp_core::{RepoId, kinds};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::types::Value;

use super::changes::{Changes, Wanted, blob, integer, text, time};
use super::engine::{Query, StoreEngine, finish};
use super::keys::{Keys, newest};
use super::policy::{HideStep, RestoreStep};
use super::rules::{Removal, Rules as _, STEP_EVENTS};
use super::{MAX_TASK_ROWS, SaveReport, StoreError, fits, repositories_of, write_cost};
use crate::store::policy::{PolicyRows as _, of_repo};

/// Erases the hidden events that a request of their author gates: by id, or as versions up to its time.
pub(crate) const ERASE_HIDDEN_SQL: &str = "DELETE FROM hidden WHERE pubkey = ?1
    AND (own IN (SELECT target FROM gates WHERE request = ?2)
        OR newest >= ?3 AND coordinate IN (SELECT target FROM gates WHERE request = ?2))";

/// Erases the hidden events of an author who vanishes. Requests to vanish are never hidden.
pub(crate) const ERASE_HIDDEN_BY_SQL: &str =
    "DELETE FROM hidden WHERE pubkey = ?1 AND newest >= ?2";

/// Erases the hidden events that are kept no longer.
pub(crate) const ERASE_ENDED_HIDDEN_SQL: &str = "DELETE FROM hidden WHERE id IN
    (SELECT id FROM hidden WHERE until <= ?1 ORDER BY until LIMIT 500)";

/// Selects the hidden events of a cause. What others refer to comes back last, so that it comes back with all of them.
const OF_CAUSE_SQL: &str =
    "SELECT json FROM hidden WHERE cause = ?1 ORDER BY place, newest DESC LIMIT ?2";

/// Returns the parameters of [`ERASE_HIDDEN_SQL`].
pub(crate) fn erased_hidden(author: &PublicKey, request: i64, until: i64) -> Vec<Value> {
    vec![blob(author.as_bytes()), integer(request), integer(until)]
}

/// The time from which and up to which events are hidden.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
}

impl<R: Changes> Hiding for R {}

/// Hiding events, and bringing them back.
pub(crate) trait Hiding: Changes {
    /// Hides events for a cause, as many as one transaction may; reports whether none is left.
    fn hide(&self, cause: &HiddenCause, term: Term) -> Result<HideStep, StoreError> {
        let due = self.to_hide(cause)?;
        if !due.is_empty() {
            self.note_cause(cause)?;
        }
        self.hide_served(&due, cause, term)
    }

    /// Hides served events for a cause, as many as one transaction may; reports whether none of a full step is left.
    fn hide_served(
        &self,
        due: &[i64],
        cause: &HiddenCause,
        term: Term,
    ) -> Result<HideStep, StoreError> {
        let removal = match cause {
            HiddenCause::Author(_) | HiddenCause::Repo(_) => Removal::Hidden(term.since),
            HiddenCause::Event(_) | HiddenCause::Unannounced(_) => Removal::Retired(term.since),
        };
        let mut hidden = 0;
        for seq in due {
            if self.progress().is_spent() {
                break;
            }
            if let Some(event) = self.take_served(*seq, removal)? {
                self.insert_hidden(&event, cause, term)?;
            }
            hidden += 1;
        }
        Ok(HideStep {
            is_done: hidden == due.len() && due.len() < STEP_EVENTS,
            affected: self.progress().take_affected(),
            removed: self.progress().take_removed(),
        })
    }

    /// Returns the served events that a cause hides, for one step.
    fn to_hide(&self, cause: &HiddenCause) -> Result<Vec<i64>, StoreError> {
        let repo = match cause {
            HiddenCause::Author(author) => return self.written_by(author, i64::MIN),
            HiddenCause::Event(id) => {
                return Ok(self.served(id)?.into_iter().map(|it| it.seq).collect());
            }
            HiddenCause::Repo(repo) => repo,
            // Those that depend on it are found outside of a transaction.
            HiddenCause::Unannounced(_) => return Ok(Vec::new()),
        };
        let mut due = Vec::new();
        for coordinate in coordinates_of(repo) {
            let head = self.head(&self.keys().coordinate(&coordinate))?;
            due.extend(head.map(|head| head.seq));
        }
        Ok(due)
    }

    /// Remembers that events may be hidden for a cause.
    fn note_cause(&self, cause: &HiddenCause) -> Result<(), StoreError> {
        self.change(
            "INSERT INTO hidden_causes (cause) VALUES (?1) ON CONFLICT (cause) DO NOTHING",
            vec![text(&cause.to_string())],
        )
    }

    /// Forgets a repository that was not announced, unless events are hidden because of that.
    fn forget_unannounced(&self, repo: &RepoId) -> Result<(), StoreError> {
        let cause = HiddenCause::Unannounced(repo.clone());
        self.change(
            "DELETE FROM unannounced WHERE identifier = ?1 AND owner = ?2
                 AND NOT EXISTS (SELECT 1 FROM hidden WHERE cause = ?3)",
            of_repo(repo, [text(&cause.to_string())]),
        )
    }

    fn insert_hidden(
        &self,
        event: &Event,
        cause: &HiddenCause,
        term: Term,
    ) -> Result<(), StoreError> {
        let coordinate = deletion::coordinate(event).map(|at| self.keys().coordinate(&at));
        self.change(
            "INSERT INTO hidden (id, pubkey, newest, own, coordinate, cause, place, since, until, json)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
                 ON CONFLICT (id) DO UPDATE SET cause = excluded.cause, until = excluded.until",
            vec![
                blob(event.id.as_bytes()),
                blob(event.pubkey.as_bytes()),
                integer(newest(event.created_at)),
                Value::Blob(own(self.keys(), event)),
                coordinate.map_or(Value::Null, |key| blob(&key)),
                text(&cause.to_string()),
                integer(place(event)),
                time(term.since),
                time(term.until),
                Value::Text(event.as_json()),
            ],
        )
    }

    /// Saves hidden events of a cause again, but for those that another cause hides, which they keep as theirs. Returns the
    /// requests among them that are to be continued.
    fn unhide(
        &self,
        events: &[Arc<Event>],
        policy: &Policy,
        now: Timestamp,
    ) -> Result<(RestoreStep, Vec<Arc<Event>>), StoreError> {
        let mut step = RestoreStep::default();
        for event in events {
            let id = blob(event.id.as_bytes());
            if let Some(other) = policy.hides(event) {
                self.note_cause(&other)?;
                let keep = "UPDATE hidden SET cause = ?2 WHERE id = ?1";
                self.change(keep, vec![id, text(&other.to_string())])?;
                continue;
            }
            self.change("DELETE FROM hidden WHERE id = ?1", vec![id])?;
            if self.save_one(event, now)? == Outcome::Stored {
                step.affected.extend(repositories_of(event));
                step.restored.push(Arc::clone(event));
            }
        }
        step.affected.extend(self.progress().take_affected());
        step.removed = self.progress().take_removed();
        Ok((step, self.progress().take_unfinished()))
    }

    /// Forgets a cause of which no event is hidden any more, and lets all processes know.
    fn forget_cause(&self, cause: &HiddenCause) -> Result<(), StoreError> {
        if let HiddenCause::Unannounced(repo) = cause {
            return self.forget_unannounced(repo);
        }
        let forget = "DELETE FROM hidden_causes WHERE cause = ?1";
        self.change(forget, vec![text(&cause.to_string())])?;
        self.raise_policy_version()
    }
}

/// Returns the coordinates of the events that a repository is: its announcement and its owner's state.
pub(crate) fn coordinates_of(repo: &RepoId) -> [Coordinate; 2] {
    [kinds::ANNOUNCEMENT, kinds::STATE]
        .map(|kind| Coordinate::new(kind, repo.owner).identifier(repo.identifier.as_str()))
}

/// Returns the hash by which a request of its author gates an event; nothing for what cannot be deleted.
fn own(keys: &Keys, event: &Event) -> Vec<u8> {
    match deletion::is_deletable(event.kind) {
        true => keys.own_event(&event.pubkey, &event.id).to_vec(),
        false => Vec::new(),
    }
}

/// Returns the place of an event in the order in which events come back.
fn place(event: &Event) -> i64 {
    match event.kind {
        kind if kind == kinds::ANNOUNCEMENT => 2,
        kind if kind == kinds::STATE => 1,
        _ => 0,
    }
}

/// Adds what hiding needs.
fn want_hidden(wanted: &mut Wanted, keys: &Keys, cause: &HiddenCause) {
    match cause {
        HiddenCause::Author(author) => {
            let list = keys.author(author);
            wanted.vanishing.push((list, author.to_bytes(), i64::MIN));
        }
        HiddenCause::Event(id) => wanted.remove(&[*id]),
        HiddenCause::Repo(repo) => {
            for coordinate in coordinates_of(repo) {
                wanted.coordinate(keys, &coordinate);
            }
        }
        HiddenCause::Unannounced(_) => {}
    }
}

/// Hides events for a cause in a transaction of its own.
pub(super) async fn hide_step<E: StoreEngine>(
    engine: &E,
    cause: HiddenCause,
    term: Term,
) -> Result<HideStep, StoreError> {
    let wanted = engine.want(|keys, wanted| want_hidden(wanted, keys, &cause));
    let work = move |tables: &E::Tables<'_>| tables.hide(&cause, term);
    engine.write(MAX_TASK_ROWS, wanted, work).await
}

/// Saves hidden events of a cause again in a transaction of its own.
pub(super) async fn restore_step<E: StoreEngine>(
    engine: &E,
    cause: HiddenCause,
    policy: Arc<Policy>,
    now: Timestamp,
) -> Result<RestoreStep, StoreError> {
    let most = i64::try_from(STEP_EVENTS).unwrap_or(i64::MAX);
    let values = vec![text(&cause.to_string()), integer(most)];
    let found = Query::new(OF_CAUSE_SQL, values, |row| row.event(0));
    let found = engine.rows(found).await?;
    let mut is_done = found.len() < STEP_EVENTS;
    let mut events = Vec::new();
    let mut rows = 0;
    for event in found {
        if !fits(rows, write_cost(&event)) {
            is_done = false;
            break;
        }
        rows += write_cost(&event);
        events.push(Arc::new(event));
    }
    let wanted = engine.want(|keys, wanted| {
        events.iter().for_each(|event| wanted.event(keys, event));
    });
    let work = move |tables: &E::Tables<'_>| {
        let (mut step, unfinished) = tables.unhide(&events, &policy, now)?;
        step.is_done = is_done;
        if is_done {
            tables.forget_cause(&cause)?;
        }
        Ok((step, unfinished))
    };
    let (mut step, unfinished) = engine.write(rows.max(1), wanted, work).await?;
    let mut report = SaveReport::default();
    for request in unfinished {
        finish(engine, request, now, &mut report).await?;
    }
    step.affected.extend(report.affected);
    step.removed.extend(report.removed);
    Ok(step)
}

/// Returns the causes for which events may be hidden.
pub(super) async fn causes(engine: &impl StoreEngine) -> Result<BTreeSet<HiddenCause>, StoreError> {
    let sql = "SELECT cause FROM hidden_causes";
    let causes = Query::new(sql, Vec::new(), |row| row.parse(0));
    Ok(engine.rows(causes).await?.into_iter().collect())
}

/// Returns which of these events are hidden.
pub(super) async fn hidden_among(
    engine: &impl StoreEngine,
    ids: Vec<EventId>,
) -> Result<BTreeSet<EventId>, StoreError> {
    let sql = "SELECT id FROM hidden WHERE id = ANY(?1)";
    let hidden = Query::new(sql, Vec::new(), |row| row.event_id(0));
    let keys = ids.iter().map(|id| blob(id.as_bytes()));
    Ok(hidden.rows_of(engine, keys).await?.into_iter().collect())
}
