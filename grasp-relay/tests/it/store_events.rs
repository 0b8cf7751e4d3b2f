//! Events for tests of stores, which check neither ids nor signatures.

use std::sync::Arc;

use futures_util::StreamExt;
use grasp_core::admission::Outcome;
use grasp_relay::store::{EventStore, Inventory};
use nostr::event::{Event, EventId, Kind, Signature, Tag};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;

/// The time of all tests, unless they set another.
pub(crate) const NOW: u64 = 1_800_000_000;

pub(crate) const DAY: u64 = 24 * 60 * 60;

pub(crate) const ALICE: Author = Author(1);
pub(crate) const BOB: Author = Author(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Author(pub(crate) u8);

impl Author {
    pub(crate) fn key(self) -> PublicKey {
        PublicKey::from_byte_array([self.0; 32])
    }

    /// Begins an event of this author, a second before [`NOW`].
    pub(crate) fn writes(self, kind: u16) -> Draft {
        Draft {
            author: self,
            kind,
            at: NOW - 1,
            id: None,
            tags: Vec::new(),
        }
    }
}

/// A builder of events. The id is computed unless it is set.
#[derive(Clone)]
pub(crate) struct Draft {
    author: Author,
    kind: u16,
    at: u64,
    id: Option<u64>,
    tags: Vec<Tag>,
}

impl Draft {
    pub(crate) fn at(mut self, at: u64) -> Self {
        self.at = at;
        self
    }

    /// Sets the id; ids are in the order of these numbers.
    pub(crate) fn id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    pub(crate) fn tag(mut self, name: &str, value: impl ToString) -> Self {
        self.tags
            .push(Tag::parse([name, &value.to_string()]).unwrap());
        self
    }

    pub(crate) fn raw_tag(mut self, tag: &[&str]) -> Self {
        self.tags.push(Tag::parse(tag.iter().copied()).unwrap());
        self
    }

    pub(crate) fn done(self) -> Arc<Event> {
        let (author, at) = (self.author.key(), Timestamp::from_secs(self.at));
        let kind = Kind::from_u16(self.kind);
        let content = "some text, \"quoted\" \u{1f980}";
        let computed = EventId::compute(
            &author,
            &at,
            &kind,
            &self.tags.clone().into_iter().collect(),
            content,
        );
        let id = self.id.map_or(computed, id);
        let signature = Signature::from_byte_array([7; 64]);
        Arc::new(Event::new(
            id, author, at, kind, self.tags, content, signature,
        ))
    }
}

pub(crate) fn id(number: u64) -> EventId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    EventId::from_byte_array(bytes)
}

pub(crate) fn time(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

pub(crate) async fn save_at(store: &dyn EventStore, event: &Arc<Event>, now: u64) -> Outcome {
    let saved = store
        .save(vec![Arc::clone(event)], time(now))
        .await
        .unwrap();
    assert_eq!(saved.len(), 1);
    saved[0].clone()
}

pub(crate) async fn save(store: &dyn EventStore, event: &Arc<Event>) -> Outcome {
    save_at(store, event, NOW).await
}

pub(crate) async fn stored(store: &dyn EventStore, event: &Arc<Event>) {
    assert_eq!(save(store, event).await, Outcome::Stored);
}

pub(crate) async fn find_at(store: &dyn EventStore, filters: Vec<Filter>, now: u64) -> Vec<Event> {
    let mut found = Vec::new();
    let mut chunks = store.query(filters, time(now));
    while let Some(chunk) = chunks.next().await {
        for event in chunk.unwrap() {
            let parsed = Event::from_json(event.json.as_bytes()).unwrap();
            assert_eq!((parsed.id, parsed.created_at), (event.id, event.created_at));
            found.push(parsed);
        }
    }
    found
}

pub(crate) async fn find(store: &dyn EventStore, filter: Filter) -> Vec<EventId> {
    let found = find_at(store, vec![filter], NOW).await;
    found.iter().map(|event| event.id).collect()
}

pub(crate) async fn serves(store: &dyn EventStore, event: &Event) -> bool {
    !find(store, Filter::new().id(event.id)).await.is_empty()
}

pub(crate) async fn inventory_at(
    store: &dyn EventStore,
    filter: Filter,
    now: u64,
) -> Vec<(Timestamp, EventId)> {
    match store
        .inventory(filter, time(now), usize::MAX)
        .await
        .unwrap()
    {
        Inventory::Complete(items) => items,
        Inventory::TooMany => panic!("no inventory has more than usize::MAX items"),
    }
}
