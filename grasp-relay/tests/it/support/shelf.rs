//! A store of the plainest kind: a list, and a question asked of each of its events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use grasp_relay::store::{EventStore, Inventory, Refusal, Saved, StoreError, StoredEvent};
use nostr::event::{Event, EventId};
use nostr::filter::{Filter, MatchEventOptions};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use std::cmp::Reverse;

const CHUNK: usize = 50;

/// Events by what orders them: newest first, ties by lowest id.
type Events = BTreeMap<(Reverse<Timestamp>, EventId), Arc<Event>>;

#[derive(Default)]
pub(crate) struct Shelf(Mutex<Events>);

impl Shelf {
    /// Puts an event in; says whether it is new.
    pub(crate) fn put(&self, event: Arc<Event>) -> bool {
        let key = (Reverse(event.created_at), event.id);
        self.events().insert(key, event).is_none()
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.0.lock().expect("no panic")
    }

    fn matching(&self, filter: &Filter) -> Vec<Arc<Event>> {
        let empty = filter.ids.as_ref().is_some_and(|ids| ids.is_empty())
            || filter.kinds.as_ref().is_some_and(|kinds| kinds.is_empty())
            || filter.authors.as_ref().is_some_and(|keys| keys.is_empty());
        let events = self.events();
        let wanted = events
            .values()
            .filter(|event| !empty && filter.match_event(event, MatchEventOptions::new()));
        wanted
            .take(filter.limit.unwrap_or(usize::MAX))
            .cloned()
            .collect()
    }

    fn any(&self, filters: &[Filter]) -> Events {
        let events = filters.iter().flat_map(|filter| self.matching(filter));
        events
            .map(|event| ((Reverse(event.created_at), event.id), event))
            .collect()
    }
}

fn done<T: Send + 'static>(value: T) -> BoxFuture<'static, Result<T, StoreError>> {
    ready(Ok(value)).boxed()
}

impl EventStore for Shelf {
    fn save(
        &self,
        events: Vec<Arc<Event>>,
        _: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Saved>, StoreError>> {
        let saved = events.into_iter().map(|event| match self.put(event) {
            true => Saved::Stored,
            false => Saved::Duplicate,
        });
        done(saved.collect())
    }

    fn refusal(
        &self,
        _: Arc<Event>,
        _: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Refusal>, StoreError>> {
        done(None)
    }

    fn query(
        &self,
        filters: Vec<Filter>,
        _: Timestamp,
    ) -> BoxStream<'static, Result<Vec<StoredEvent>, StoreError>> {
        let events: Vec<_> = self.any(&filters).into_values().collect();
        let chunks: Vec<Vec<_>> = events.chunks(CHUNK).map(<[_]>::to_vec).collect();
        stream::iter(chunks)
            .map(|chunk| {
                let stored = chunk.into_iter().map(|event| StoredEvent {
                    id: event.id,
                    created_at: event.created_at,
                    json: event.as_json().into(),
                });
                Ok(stored.collect())
            })
            .boxed()
    }

    fn count(&self, filters: Vec<Filter>, _: Timestamp) -> BoxFuture<'_, Result<u64, StoreError>> {
        done(self.any(&filters).len() as u64)
    }

    fn inventory(
        &self,
        filter: Filter,
        _: Timestamp,
        max: usize,
    ) -> BoxFuture<'_, Result<Inventory, StoreError>> {
        let mut items: Vec<_> = self
            .matching(&filter)
            .iter()
            .map(|event| (event.created_at, event.id))
            .collect();
        items.sort();
        done(if items.len() > max {
            Inventory::TooMany
        } else {
            Inventory::Complete(items)
        })
    }

    fn superseded(&self, _: Coordinate) -> BoxFuture<'_, Result<Vec<Event>, StoreError>> {
        done(vec![])
    }

    fn remove(&self, ids: Vec<EventId>) -> BoxFuture<'_, Result<u64, StoreError>> {
        let before = self.events().len();
        self.events().retain(|(_, id), _| !ids.contains(id));
        done((before - self.events().len()) as u64)
    }

    fn sweep(&self, _: Timestamp) -> BoxFuture<'_, Result<u64, StoreError>> {
        done(0)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        done(())
    }
}
