//! Checking the events of a store one by one: whether each is what its author signed.

use std::collections::BTreeSet;

use grasp_core::Verified;
use nostr::event::{Event, EventId};
use rusqlite::types::Value;
use serde::Serialize;

use super::changes::{GitRows, blob, integer};
use super::engine::{Columns, DatabaseEngine, EngineStore, Query, StoreEngine};
use super::{StoreError, StoreFuture};

/// Events that are read at once.
const EVENTS_PER_READ: i64 = 1_000;

/// Events that one transaction drops.
const EVENTS_PER_DROP: usize = 1_000;

/// The kind that marks events while they are dropped; no event has it.
const DROPPED_KIND: i64 = -1;

/// Where an event is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventTable {
    /// Served events.
    Served,
    /// Replaced versions, which are kept for rollback.
    Replaced,
    /// Events that wait for git data.
    Waiting,
}

impl EventTable {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Served, Self::Replaced, Self::Waiting];

    /// Returns the statement that reads the next events after an id.
    fn next_sql(self) -> &'static str {
        match self {
            Self::Served => "SELECT id, json FROM events WHERE id > ?1 ORDER BY id LIMIT ?2",
            Self::Replaced => "SELECT id, json FROM superseded WHERE id > ?1 ORDER BY id LIMIT ?2",
            Self::Waiting => "SELECT id, event FROM held WHERE id > ?1 ORDER BY id LIMIT ?2",
        }
    }
}

/// An event as it is stored, which may be damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// The id that it is found by.
    pub id: EventId,
    /// Its text.
    pub json: String,
}

/// The reason why a stored event is not what its author signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventFault {
    /// The text is not an event.
    #[error("it cannot be read")]
    Unreadable,
    /// The text is another event.
    #[error("it is stored under the id of another event")]
    WrongId,
    /// The id is not the hash of the event, or the signature is not by its author.
    #[error("its id or its signature does not verify")]
    Forged,
}

impl EventRow {
    /// Verifies the event; returns what is wrong with it.
    pub fn fault(&self) -> Option<EventFault> {
        let Ok(event) = Event::from_json(&self.json) else {
            return Some(EventFault::Unreadable);
        };
        if event.id != self.id {
            return Some(EventFault::WrongId);
        }
        match Verified::check(event) {
            Ok(_) => None,
            Err(_) => Some(EventFault::Forged),
        }
    }
}

/// Stored events, one by one.
pub trait StoredEvents: Send + Sync {
    /// Returns the next events of a table after an id, in the order of their ids; the first ones without an id. None are
    /// left if there are none.
    fn events_after(
        &self,
        table: EventTable,
        after: Option<EventId>,
    ) -> StoreFuture<'_, Vec<EventRow>>;
}

/// Dropping damaged events.
pub trait DropEvents: Send + Sync {
    /// Drops damaged events of a table, with everything that leads to them. Nothing is remembered about them: they may be
    /// stored again. Reads whole tables, and must not run beside a server, which would not learn of it.
    fn drop_events(&self, table: EventTable, ids: BTreeSet<EventId>) -> StoreFuture<'_, ()>;
}

impl<E: DatabaseEngine> StoredEvents for EngineStore<E> {
    fn events_after(
        &self,
        table: EventTable,
        after: Option<EventId>,
    ) -> StoreFuture<'_, Vec<EventRow>> {
        let after = after.map_or_else(Vec::new, |id| id.as_bytes().to_vec());
        let values = vec![Value::Blob(after), integer(EVENTS_PER_READ)];
        let read = |row: &dyn Columns| {
            Ok(EventRow {
                id: row.event_id(0)?,
                json: row.text(1)?,
            })
        };
        Box::pin(self.0.rows(Query::new(table.next_sql(), values, read)))
    }
}

impl<E: StoreEngine> DropEvents for EngineStore<E> {
    fn drop_events(&self, table: EventTable, ids: BTreeSet<EventId>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let ids: Vec<_> = ids.into_iter().collect();
            for some in ids.chunks(EVENTS_PER_DROP) {
                let some = some.to_vec();
                let drop = move |tables: &E::Tables<'_>| drop_rows(tables, table, &some);
                let wanted = self.0.want(|_, _| ());
                self.0.write(EVENTS_PER_DROP, wanted, drop).await?;
            }
            Ok(())
        })
    }
}

/// Deletes the rows of events without reading them. Rows that lead to served events are found by reading their tables
/// once: what a damaged event says about itself cannot be relied on.
fn drop_rows(tables: &impl GitRows, table: EventTable, ids: &[EventId]) -> Result<(), StoreError> {
    let statement = match table {
        EventTable::Served => "UPDATE events SET kind = ?2 WHERE id = ?1",
        EventTable::Replaced => "DELETE FROM superseded WHERE id = ?1",
        EventTable::Waiting => "DELETE FROM held WHERE id = ?1",
    };
    for id in ids {
        let mut values = vec![blob(id.as_bytes())];
        if table == EventTable::Served {
            values.push(integer(DROPPED_KIND));
        }
        tables.change(statement, values)?;
    }
    if table != EventTable::Served {
        return Ok(());
    }
    for statement in [
        "DELETE FROM lists WHERE seq IN (SELECT seq FROM events WHERE kind = ?1)",
        "DELETE FROM heads WHERE seq IN (SELECT seq FROM events WHERE kind = ?1)",
        "DELETE FROM expirations WHERE seq IN (SELECT seq FROM events WHERE kind = ?1)",
        "DELETE FROM events WHERE kind = ?1",
    ] {
        tables.change(statement, vec![integer(DROPPED_KIND)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent as _, Kind};
    use nostr::key::Keys;

    use super::*;

    #[test]
    fn an_event_is_sound_as_its_author_signed_it_and_in_no_other_form() {
        let builder = EventBuilder::new(Kind::from_u16(1621), "it does not build");
        let event = builder.finalize(&Keys::generate()).unwrap();
        let stored = |id: EventId, json: String| EventRow { id, json }.fault();
        let json = event.as_json();
        assert_eq!(stored(event.id, json.clone()), None);
        let other = EventId::from_byte_array([7; 32]);
        assert_eq!(stored(other, json.clone()), Some(EventFault::WrongId));
        let changed = json.replace("build", "burst");
        assert_eq!(stored(event.id, changed), Some(EventFault::Forged));
        let cut = json[..json.len() / 2].to_owned();
        assert_eq!(stored(event.id, cut), Some(EventFault::Unreadable));
        let sig = event.sig.to_string();
        let forged = json.replace(&sig[..8], "00000000");
        assert_eq!(stored(event.id, forged), Some(EventFault::Forged));
    }
}
