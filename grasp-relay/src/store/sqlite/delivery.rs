//! Handing out what a search finds, a chunk at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use nostr::filter::Filter;
use nostr::types::Timestamp;
use rusqlite::OptionalExtension;

use super::Shared;
use super::budget::Budget;
use super::ledger::Ledger;
use super::scan::Found;
use super::search::{Search, Turn};
use crate::store::{StoreError, StoredEvent};

/// Events delivered at once by a query, at most.
const CHUNK: usize = 500;

/// Bytes of JSON delivered at once by a query, unless a single event is longer.
const CHUNK_BYTES: usize = 1024 * 1024;

/// Places found ahead of what is delivered: looking them up is cheap, starting over is not.
const LOOKAHEAD: usize = 2 * CHUNK;

/// A query between two chunks.
pub(super) struct Delivery {
    search: Search,
    found: VecDeque<Found>,
    finished: bool,
}

type Delivered = (Result<Vec<StoredEvent>, StoreError>, Option<Delivery>);

impl Delivery {
    pub(super) fn new(filters: Vec<Filter>, now: Timestamp) -> Self {
        Self { search: Search::new(filters, now), found: VecDeque::new(), finished: false }
    }

    /// Reads until there is something to deliver, or nothing more to find. Nothing follows an error.
    pub(super) async fn next(mut self, shared: &Shared) -> Option<Delivered> {
        while !(self.finished && self.found.is_empty()) {
            let read = move |ledger: &Ledger<'_>| {
                let chunk = self.chunk(ledger)?;
                Ok((self, chunk))
            };
            let chunk;
            (self, chunk) = match shared.read(read).await {
                Ok(read) => read,
                Err(error) => return Some((Err(error), None)),
            };
            if !chunk.is_empty() {
                return Some((Ok(chunk), Some(self)));
            }
        }
        None
    }

    fn chunk(&mut self, ledger: &Ledger<'_>) -> rusqlite::Result<Vec<StoredEvent>> {
        if self.found.is_empty() && !self.finished {
            let mut found = Vec::new();
            let turn = self.search.turn(ledger, LOOKAHEAD, &mut found, &mut Budget::of_turn())?;
            self.finished = turn == Turn::Finished;
            self.found = found.into();
        }
        let mut chunk = Vec::new();
        let mut bytes = 0;
        while chunk.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(found) = self.found.pop_front() else {
                break;
            };
            if let Some(event) = load(ledger, &found)? {
                bytes += event.json.len();
                chunk.push(event);
            }
        }
        Ok(chunk)
    }
}

/// Loads an event that was found, unless it is gone and its row is another's now.
fn load(ledger: &Ledger<'_>, found: &Found) -> rusqlite::Result<Option<StoredEvent>> {
    let json: Option<Arc<str>> = ledger
        .conn
        .prepare_cached("SELECT json FROM events WHERE seq = ?1 AND id = ?2")?
        .query_row((found.seq, found.at.id()), |row| Ok(Arc::from(row.get_ref(0)?.as_str()?)))
        .optional()?;
    Ok(json.map(|json| StoredEvent {
        id: found.at.event_id(),
        created_at: found.at.created_at(),
        json,
    }))
}
