//! Who wants this event? An index over all live filters, so that the answer costs what it finds.
//!
//! Every filter is filed under the values of its most telling list: ids, then the tags that name an event or a
//! repository, then authors, then other tags, then kinds. An event is looked up under its own id, author, kind and
//! tag values, and only the few subscriptions found there are held against it. Ten thousand subscriptions to other
//! repositories are therefore never looked at.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;

use super::query::Facts;

/// One subscription of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subscriber {
    /// The connection, or the feed.
    pub listener: u64,
    /// Its subscription.
    pub subscription: u64,
}

type Shelf<K> = HashMap<K, BTreeSet<Subscriber>>;

/// All live subscriptions, filed under what they want.
///
/// ```
/// use grasp_relay::nostr::subscriptions::{Index, Subscriber};
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind};
/// use nostr::filter::Filter;
/// use nostr::key::Keys;
///
/// let mut index = Index::default();
/// let alice = Subscriber { listener: 1, subscription: 1 };
/// index.insert(alice, vec![Filter::new().kind(Kind::GitIssue)].into());
///
/// let issue = EventBuilder::new(Kind::GitIssue, "it is broken").finalize(&Keys::generate())?;
/// assert_eq!(index.wanting(&issue), [alice]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Index {
    subscriptions: BTreeMap<Subscriber, Arc<[Filter]>>,
    ids: Shelf<EventId>,
    authors: Shelf<PublicKey>,
    kinds: Shelf<Kind>,
    tags: HashMap<SingleLetterTag, Shelf<Box<str>>>,
    /// Those that ask for everything, or for everything of some time.
    all: BTreeSet<Subscriber>,
}

/// The list of a filter that it is filed under.
enum Heading<'a> {
    Ids(&'a BTreeSet<EventId>),
    Tag(SingleLetterTag, &'a BTreeSet<String>),
    Authors(&'a BTreeSet<PublicKey>),
    Kinds(&'a BTreeSet<Kind>),
    All,
}

impl Index {
    /// Files a subscription; one of the same name is replaced.
    pub fn insert(&mut self, subscriber: Subscriber, filters: Arc<[Filter]>) {
        self.remove(subscriber);
        for filter in filters.iter() {
            self.file(subscriber, filter);
        }
        self.subscriptions.insert(subscriber, filters);
    }

    /// Takes a subscription out; says whether it was there.
    pub fn remove(&mut self, subscriber: Subscriber) -> bool {
        let Some(filters) = self.subscriptions.remove(&subscriber) else {
            return false;
        };
        for filter in filters.iter() {
            self.unfile(subscriber, filter);
        }
        true
    }

    /// Takes all subscriptions of one listener out.
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

    /// Everybody who wants this event, each once.
    pub fn wanting(&self, event: &Event) -> Vec<Subscriber> {
        let facts = Facts::of(event);
        let mut found = self.candidates(&facts);
        found.sort_unstable();
        found.dedup();
        found.retain(|subscriber| {
            let filters = self.subscriptions.get(subscriber);
            filters.is_some_and(|filters| facts.match_any(filters))
        });
        found
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    fn candidates(&self, facts: &Facts<'_>) -> Vec<Subscriber> {
        let event = facts.event;
        let shelves = [
            self.ids.get(&event.id),
            self.authors.get(&event.pubkey),
            self.kinds.get(&event.kind),
            Some(&self.all),
        ];
        let by_tag = facts.tags.iter().filter_map(|(name, value)| self.tags.get(name)?.get(*value));
        shelves.into_iter().flatten().chain(by_tag).flatten().copied().collect()
    }

    fn file(&mut self, subscriber: Subscriber, filter: &Filter) {
        match heading(filter) {
            Heading::Ids(ids) => put(&mut self.ids, ids.iter().copied(), subscriber),
            Heading::Authors(keys) => put(&mut self.authors, keys.iter().copied(), subscriber),
            Heading::Kinds(kinds) => put(&mut self.kinds, kinds.iter().copied(), subscriber),
            Heading::Tag(name, values) => {
                let values = values.iter().map(|value| value.as_str().into());
                put(self.tags.entry(name).or_default(), values, subscriber);
            }
            Heading::All => {
                self.all.insert(subscriber);
            }
        }
    }

    fn unfile(&mut self, subscriber: Subscriber, filter: &Filter) {
        match heading(filter) {
            Heading::Ids(ids) => take(&mut self.ids, ids, subscriber),
            Heading::Authors(keys) => take(&mut self.authors, keys, subscriber),
            Heading::Kinds(kinds) => take(&mut self.kinds, kinds, subscriber),
            Heading::Tag(name, values) => {
                if let Some(shelf) = self.tags.get_mut(&name) {
                    take(shelf, values.iter().map(String::as_str), subscriber);
                }
            }
            Heading::All => {
                self.all.remove(&subscriber);
            }
        }
    }
}

/// Picks the list that is shared by the fewest events. An empty one is filed nowhere: it wants nothing.
fn heading(filter: &Filter) -> Heading<'_> {
    let tag = filter
        .generic_tags
        .iter()
        .min_by_key(|(name, values)| (!names_one_thing(**name), values.len()));
    match (&filter.ids, tag, &filter.authors, &filter.kinds) {
        (Some(ids), ..) => Heading::Ids(ids),
        (_, Some((name, values)), ..) if names_one_thing(*name) => Heading::Tag(*name, values),
        (_, _, Some(keys), _) => Heading::Authors(keys),
        (_, Some((name, values)), ..) => Heading::Tag(*name, values),
        (_, _, _, Some(kinds)) => Heading::Kinds(kinds),
        _ => Heading::All,
    }
}

/// Tags whose value is one event, one repository or one file: few events share it.
const fn names_one_thing(name: SingleLetterTag) -> bool {
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

fn put<K: Eq + Hash>(shelf: &mut Shelf<K>, keys: impl Iterator<Item = K>, subscriber: Subscriber) {
    for key in keys {
        shelf.entry(key).or_default().insert(subscriber);
    }
}

fn take<'a, K, Q>(
    shelf: &mut Shelf<K>,
    keys: impl IntoIterator<Item = &'a Q>,
    subscriber: Subscriber,
) where
    K: Eq + Hash + std::borrow::Borrow<Q>,
    Q: Eq + Hash + ?Sized + 'a,
{
    for key in keys {
        let Some(subscribers) = shelf.get_mut(key) else {
            continue;
        };
        subscribers.remove(&subscriber);
        if subscribers.is_empty() {
            shelf.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
