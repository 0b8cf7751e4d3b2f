//! An index of all live filters, so that the cost of a lookup depends on its result only.
//!
//! Every filter is indexed by the values of its most specific list: ids, then tags that name an event or a
//! repository, then authors, then other tags, then kinds. An event is looked up by its id, author, kind and tag
//! values, and only the subscriptions found there are compared with it. Ten thousand subscriptions to other
//! repositories are not visited.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;

/// One subscription of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subscriber {
    /// The connection or feed.
    pub(super) listener: u64,
    pub(super) subscription: u64,
}

/// A value of an event, by which the subscriptions are found that may want the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Id(EventId),
    Author(PublicKey),
    Kind(Kind),
    /// With the hash of the value; two values of one hash only cost a comparison.
    Tag(SingleLetterTag, u64),
    /// Every event has it: of filters without any list.
    Any,
}

/// All live subscriptions, indexed by their filters.
#[derive(Clone, Debug, Default)]
pub(super) struct SubscriptionIndex {
    subscriptions: BTreeMap<Subscriber, Arc<[Filter]>>,
    keys: HashMap<Key, BTreeSet<Subscriber>>,
    hasher: RandomState,
}

impl SubscriptionIndex {
    /// Adds a subscription; one of the same key is replaced.
    pub(super) fn insert(&mut self, subscriber: Subscriber, filters: Arc<[Filter]>) {
        self.remove(subscriber);
        for key in filters
            .iter()
            .flat_map(|filter| keys_of(&self.hasher, filter))
        {
            self.keys.entry(key).or_default().insert(subscriber);
        }
        self.subscriptions.insert(subscriber, filters);
    }

    pub(super) fn remove(&mut self, subscriber: Subscriber) {
        let filters = self.subscriptions.remove(&subscriber).unwrap_or_default();
        for key in filters
            .iter()
            .flat_map(|filter| keys_of(&self.hasher, filter))
        {
            let Some(subscribers) = self.keys.get_mut(&key) else {
                continue;
            };
            subscribers.remove(&subscriber);
            if subscribers.is_empty() {
                self.keys.remove(&key);
            }
        }
    }

    /// Removes all subscriptions of one listener.
    pub(super) fn remove_listener(&mut self, listener: u64) {
        let [first, last] = [0, u64::MAX].map(|subscription| Subscriber {
            listener,
            subscription,
        });
        let gone: Vec<_> = self
            .subscriptions
            .range(first..=last)
            .map(|(key, _)| *key)
            .collect();
        for subscriber in gone {
            self.remove(subscriber);
        }
    }

    /// Returns the subscriptions that match this event, each once.
    pub(super) fn matching(&self, event: &Event) -> Vec<Subscriber> {
        let tagged = TaggedEvent::of(event);
        let mut found = self.candidates(&tagged);
        found.sort_unstable();
        found.dedup();
        found.retain(|subscriber| {
            let filters = self.subscriptions.get(subscriber);
            filters.is_some_and(|filters| tagged.matches_any(filters))
        });
        found
    }

    /// Returns the number of subscriptions.
    pub(super) fn len(&self) -> usize {
        self.subscriptions.len()
    }

    fn candidates(&self, TaggedEvent { event, tags }: &TaggedEvent<'_>) -> Vec<Subscriber> {
        let tags = tags
            .iter()
            .map(|(name, value)| Key::Tag(*name, self.hasher.hash_one(value)));
        [
            Key::Id(event.id),
            Key::Author(event.pubkey),
            Key::Kind(event.kind),
            Key::Any,
        ]
        .into_iter()
        .chain(tags)
        .filter_map(|key| self.keys.get(&key))
        .flatten()
        .copied()
        .collect()
    }
}

/// Returns the values of the list of a filter that the fewest events share. An empty list has none: it matches nothing.
fn keys_of(hasher: &RandomState, filter: &Filter) -> Vec<Key> {
    let tag = filter
        .generic_tags
        .iter()
        .min_by_key(|(name, values)| (!is_specific(**name), values.len()));
    let tagged = |name: SingleLetterTag, values: &BTreeSet<String>| {
        values
            .iter()
            .map(|value| Key::Tag(name, hasher.hash_one(value.as_str())))
            .collect()
    };
    match (&filter.ids, tag, &filter.authors, &filter.kinds) {
        (Some(ids), ..) => ids.iter().copied().map(Key::Id).collect(),
        (_, Some((name, values)), ..) if is_specific(*name) => tagged(*name, values),
        (_, _, Some(authors), _) => authors.iter().copied().map(Key::Author).collect(),
        (_, Some((name, values)), ..) => tagged(*name, values),
        (_, _, _, Some(kinds)) => kinds.iter().copied().map(Key::Kind).collect(),
        _ => vec![Key::Any],
    }
}

/// Returns whether a tag's value is one event, one repository or one file, which few events share.
const fn is_specific(name: SingleLetterTag) -> bool {
    matches!(
        name,
        SingleLetterTag::LOWERCASE_A
            | SingleLetterTag::UPPERCASE_A
            | SingleLetterTag::LOWERCASE_E
            | SingleLetterTag::UPPERCASE_E
            | SingleLetterTag::LOWERCASE_Q
            | SingleLetterTag::LOWERCASE_D
    )
}

/// An event with its tags extracted once, for comparison with many filters.
#[derive(Clone, Debug)]
struct TaggedEvent<'a> {
    event: &'a Event,
    tags: Vec<(SingleLetterTag, &'a str)>,
}

impl<'a> TaggedEvent<'a> {
    fn of(event: &'a Event) -> Self {
        let tags = event.tags.iter();
        Self {
            event,
            tags: tags
                .filter_map(|tag| Some((tag.single_letter_tag()?, tag.content()?)))
                .collect(),
        }
    }

    /// Returns whether any of the filters matches.
    fn matches_any(&self, filters: &[Filter]) -> bool {
        filters.iter().any(|filter| self.matches(filter))
    }

    /// Returns whether a filter matches by NIP-01: an empty list matches nothing.
    fn matches(&self, filter: &Filter) -> bool {
        let event = self.event;
        filter
            .ids
            .as_ref()
            .is_none_or(|ids| ids.contains(&event.id))
            && filter
                .authors
                .as_ref()
                .is_none_or(|keys| keys.contains(&event.pubkey))
            && filter
                .kinds
                .as_ref()
                .is_none_or(|kinds| kinds.contains(&event.kind))
            && filter.since.is_none_or(|since| event.created_at >= since)
            && filter.until.is_none_or(|until| event.created_at <= until)
            && self.matches_tags(filter)
    }

    fn matches_tags(&self, filter: &Filter) -> bool {
        filter.generic_tags.iter().all(|(name, values)| {
            let mut tags = self.tags.iter();
            tags.any(|(tag, value)| tag == name && values.contains(*value))
        })
    }
}

#[cfg(test)]
mod tests;
