//! An index of all live filters, so that the cost of a lookup depends on its result only.
//!
//! Every filter is indexed by the values of its most specific list: ids, then tags that name an event or a
//! repository, then authors, then other tags, then kinds. An event is looked up by its id, author, kind and tag
//! values, and only the subscriptions found there are compared with it. Ten thousand subscriptions to other
//! repositories are not visited.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;

/// One subscription of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subscriber {
    /// The connection or feed.
    pub listener: u64,
    /// The subscription of that listener.
    pub subscription: u64,
}

type KeyIndex<K> = HashMap<K, BTreeSet<Subscriber>>;

/// All live subscriptions, indexed by their filters.
///
/// ```
/// use grasp_relay::nostr::subscriptions::{SubscriptionIndex, Subscriber};
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind};
/// use nostr::filter::Filter;
/// use nostr::key::Keys;
///
/// let mut index = SubscriptionIndex::default();
/// let alice = Subscriber { listener: 1, subscription: 1 };
/// index.insert(alice, vec![Filter::new().kind(Kind::GitIssue)].into());
///
/// let issue = EventBuilder::new(Kind::GitIssue, "it is broken").finalize(&Keys::generate())?;
/// assert_eq!(index.matching(&issue), [alice]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SubscriptionIndex {
    subscriptions: BTreeMap<Subscriber, Arc<[Filter]>>,
    ids: KeyIndex<EventId>,
    authors: KeyIndex<PublicKey>,
    kinds: KeyIndex<Kind>,
    tags: HashMap<SingleLetterTag, KeyIndex<Box<str>>>,
    /// Subscriptions without any list: to everything, or to everything of some time.
    all: BTreeSet<Subscriber>,
}

/// The list by which a filter is indexed.
enum IndexedList<'a> {
    Ids(&'a BTreeSet<EventId>),
    Tag(SingleLetterTag, &'a BTreeSet<String>),
    Authors(&'a BTreeSet<PublicKey>),
    Kinds(&'a BTreeSet<Kind>),
    All,
}

impl SubscriptionIndex {
    /// Adds a subscription; one of the same key is replaced.
    pub fn insert(&mut self, subscriber: Subscriber, filters: Arc<[Filter]>) {
        self.remove(subscriber);
        for filter in filters.iter() {
            self.insert_filter(subscriber, filter);
        }
        self.subscriptions.insert(subscriber, filters);
    }

    /// Removes a subscription; returns whether it was there.
    pub fn remove(&mut self, subscriber: Subscriber) -> bool {
        let Some(filters) = self.subscriptions.remove(&subscriber) else {
            return false;
        };
        for filter in filters.iter() {
            self.remove_filter(subscriber, filter);
        }
        true
    }

    /// Removes all subscriptions of one listener.
    pub fn remove_listener(&mut self, listener: u64) {
        let all = Subscriber { listener, subscription: 0 }..=Subscriber {
            listener,
            subscription: u64::MAX,
        };
        let gone: Vec<_> =
            self.subscriptions.range(all).map(|(subscriber, _)| *subscriber).collect();
        for subscriber in gone {
            self.remove(subscriber);
        }
    }

    /// Returns the subscriptions that match this event, each once.
    pub fn matching(&self, event: &Event) -> Vec<Subscriber> {
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
    pub fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// Returns whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    fn candidates(&self, tagged: &TaggedEvent<'_>) -> Vec<Subscriber> {
        let event = tagged.event;
        let lists = [
            self.ids.get(&event.id),
            self.authors.get(&event.pubkey),
            self.kinds.get(&event.kind),
            Some(&self.all),
        ];
        let by_tag =
            tagged.tags.iter().filter_map(|(name, value)| self.tags.get(name)?.get(*value));
        lists.into_iter().flatten().chain(by_tag).flatten().copied().collect()
    }

    fn insert_filter(&mut self, subscriber: Subscriber, filter: &Filter) {
        match indexed_list(filter) {
            IndexedList::Ids(ids) => put(&mut self.ids, ids.iter().copied(), subscriber),
            IndexedList::Authors(keys) => put(&mut self.authors, keys.iter().copied(), subscriber),
            IndexedList::Kinds(kinds) => put(&mut self.kinds, kinds.iter().copied(), subscriber),
            IndexedList::Tag(name, values) => {
                let values = values.iter().map(|value| value.as_str().into());
                put(self.tags.entry(name).or_default(), values, subscriber);
            }
            IndexedList::All => {
                self.all.insert(subscriber);
            }
        }
    }

    fn remove_filter(&mut self, subscriber: Subscriber, filter: &Filter) {
        match indexed_list(filter) {
            IndexedList::Ids(ids) => take(&mut self.ids, ids, subscriber),
            IndexedList::Authors(keys) => take(&mut self.authors, keys, subscriber),
            IndexedList::Kinds(kinds) => take(&mut self.kinds, kinds, subscriber),
            IndexedList::Tag(name, values) => {
                if let Some(index) = self.tags.get_mut(&name) {
                    take(index, values.iter().map(String::as_str), subscriber);
                }
            }
            IndexedList::All => {
                self.all.remove(&subscriber);
            }
        }
    }
}

/// Picks the list that the fewest events share. An empty list is indexed nowhere: it matches nothing.
fn indexed_list(filter: &Filter) -> IndexedList<'_> {
    let tag = filter
        .generic_tags
        .iter()
        .min_by_key(|(name, values)| (!is_specific(**name), values.len()));
    match (&filter.ids, tag, &filter.authors, &filter.kinds) {
        (Some(ids), ..) => IndexedList::Ids(ids),
        (_, Some((name, values)), ..) if is_specific(*name) => IndexedList::Tag(*name, values),
        (_, _, Some(keys), _) => IndexedList::Authors(keys),
        (_, Some((name, values)), ..) => IndexedList::Tag(*name, values),
        (_, _, _, Some(kinds)) => IndexedList::Kinds(kinds),
        _ => IndexedList::All,
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

fn put<K: Eq + Hash>(
    index: &mut KeyIndex<K>,
    keys: impl Iterator<Item = K>,
    subscriber: Subscriber,
) {
    for key in keys {
        index.entry(key).or_default().insert(subscriber);
    }
}

fn take<'a, K, Q>(
    index: &mut KeyIndex<K>,
    keys: impl IntoIterator<Item = &'a Q>,
    subscriber: Subscriber,
) where
    K: Eq + Hash + std::borrow::Borrow<Q>,
    Q: Eq + Hash + ?Sized + 'a,
{
    for key in keys {
        let Some(subscribers) = index.get_mut(key) else {
            continue;
        };
        subscribers.remove(&subscriber);
        if subscribers.is_empty() {
            index.remove(key);
        }
    }
}

/// An event with its tags extracted once, for comparison with many filters.
#[derive(Clone, Debug)]
pub(crate) struct TaggedEvent<'a> {
    pub(crate) event: &'a Event,
    pub(crate) tags: Vec<(SingleLetterTag, &'a str)>,
}

impl<'a> TaggedEvent<'a> {
    pub(crate) fn of(event: &'a Event) -> Self {
        let tags = event.tags.iter();
        Self {
            event,
            tags: tags.filter_map(|tag| Some((tag.single_letter_tag()?, tag.content()?))).collect(),
        }
    }

    /// Returns whether any of the filters matches.
    pub(crate) fn matches_any(&self, filters: &[Filter]) -> bool {
        filters.iter().any(|filter| self.matches(filter))
    }

    /// Returns whether a filter matches by NIP-01: an empty list matches nothing.
    pub(crate) fn matches(&self, filter: &Filter) -> bool {
        let event = self.event;
        filter.ids.as_ref().is_none_or(|ids| ids.contains(&event.id))
            && filter.authors.as_ref().is_none_or(|keys| keys.contains(&event.pubkey))
            && filter.kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind))
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
