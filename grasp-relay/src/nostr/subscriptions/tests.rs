use nostr::event::{EventBuilder, FinalizeEvent, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use proptest::prelude::*;

use super::*;

fn subscriber(listener: u64, subscription: u64) -> Subscriber {
    Subscriber {
        listener,
        subscription,
    }
}

/// Returns one of few keys, so that random filters and events often match.
fn keys(nth: u8) -> Keys {
    Keys::parse(&format!("{:064x}", u64::from(nth) + 1)).expect("a secret key")
}

fn event(author: u8, kind: u16, tags: &[(char, u8)], at: u64) -> Event {
    EventBuilder::new(Kind::from(kind), "")
        .tags(
            tags.iter()
                .map(|(name, value)| Tag::custom(name.to_string(), [value.to_string()])),
        )
        .custom_created_at(Timestamp::from_secs(at))
        .finalize(&keys(author))
        .expect("signed")
}

fn some_event() -> impl Strategy<Value = Event> {
    let tag = (
        prop_oneof![Just('a'), Just('e'), Just('p'), Just('t')],
        0u8..3,
    );
    (0u8..3, 0u16..3, prop::collection::vec(tag, 0..4), 0u64..4)
        .prop_map(|(author, kind, tags, at)| event(author, kind, &tags, at))
}

fn some_filter(events: Vec<Event>) -> impl Strategy<Value = Filter> {
    let ids: Vec<_> = events.iter().map(|event| event.id).collect();
    let list = |range| prop::option::weighted(0.4, prop::collection::vec(range, 0..3));
    (
        prop::option::weighted(0.2, prop::collection::vec(prop::sample::select(ids), 0..3)),
        list(0u8..3),
        list(0u8..3),
        [list(0u8..3), list(0u8..3), list(0u8..3)],
        prop::option::weighted(0.3, 0u64..4),
    )
        .prop_map(|(ids, authors, kinds, tags, since)| {
            let mut filter = Filter::new();
            filter.ids = ids.map(|ids| ids.into_iter().collect());
            filter.authors =
                authors.map(|list| list.into_iter().map(|nth| keys(nth).public_key()).collect());
            filter.kinds =
                kinds.map(|list| list.into_iter().map(|n| Kind::from(u16::from(n))).collect());
            filter.since = since.map(Timestamp::from_secs);
            for (name, values) in ['a', 'p', 't'].into_iter().zip(tags) {
                let name = SingleLetterTag::from_char(name).expect("a letter");
                if let Some(values) = values {
                    filter = filter.custom_tags(name, values.iter().map(u8::to_string));
                }
            }
            filter
        })
}

fn some_world() -> impl Strategy<Value = (Vec<Event>, Vec<Vec<Filter>>)> {
    prop::collection::vec(some_event(), 1..6).prop_flat_map(|events| {
        let subscriptions = prop::collection::vec(
            prop::collection::vec(some_filter(events.clone()), 0..4),
            0..12,
        );
        (Just(events), subscriptions)
    })
}

proptest! {
    #[test]
    fn finds_exactly_those_whose_filters_match((events, subscriptions) in some_world(), gone in 0usize..12) {
        let mut index = SubscriptionIndex::default();
        for (nth, filters) in subscriptions.iter().enumerate() {
            index.insert(subscriber(nth as u64 % 3, nth as u64), filters.clone().into());
        }
        index.remove(subscriber(gone as u64 % 3, gone as u64));
        for event in &events {
            let mut expected: Vec<_> = subscriptions.iter().enumerate()
                .filter(|(nth, filters)| *nth != gone && TaggedEvent::of(event).matches_any(filters))
                .map(|(nth, _)| subscriber(nth as u64 % 3, nth as u64))
                .collect();
            expected.sort();
            prop_assert_eq!(index.matching(event), expected);
        }
    }

    #[test]
    fn the_index_is_empty_after_all_subscriptions_are_removed((_, subscriptions) in some_world()) {
        let mut index = SubscriptionIndex::default();
        for (nth, filters) in subscriptions.into_iter().enumerate() {
            index.insert(subscriber(nth as u64 % 3, nth as u64), filters.into());
        }
        (0..3).for_each(|listener| index.remove_listener(listener));
        prop_assert!(index.subscriptions.is_empty() && index.keys.is_empty());
    }
}

#[test]
fn a_subscription_of_the_same_name_replaces_the_old_one() {
    let mut index = SubscriptionIndex::default();
    index.insert(
        subscriber(1, 1),
        vec![Filter::new().kind(Kind::from(1))].into(),
    );
    index.insert(
        subscriber(1, 1),
        vec![Filter::new().kind(Kind::from(2))].into(),
    );
    assert_eq!(index.matching(&event(0, 1, &[], 0)), []);
    assert_eq!(index.matching(&event(0, 2, &[], 0)), [subscriber(1, 1)]);
}

#[test]
fn subscriptions_to_other_repositories_are_not_looked_at() {
    let mut index = SubscriptionIndex::default();
    for nth in 0..1_000 {
        let filter = Filter::new()
            .kinds([Kind::from(1), Kind::from(2)])
            .custom_tag(SingleLetterTag::LOWERCASE_A, format!("30617:{nth}"));
        index.insert(subscriber(nth, 1), vec![filter].into());
    }
    let event = event(0, 1, &[('a', 1), ('t', 2)], 0);
    assert_eq!(index.candidates(&TaggedEvent::of(&event)), []);
}

fn tagged_event() -> Event {
    EventBuilder::new(Kind::from(1), "")
        .tags([Tag::hashtag("x"), Tag::custom("E", ["root"])])
        .custom_created_at(Timestamp::from_secs(100))
        .finalize(&Keys::generate())
        .expect("signed")
}

#[test]
fn every_condition_must_hold_and_one_value_of_each_list() {
    let event = tagged_event();
    let tagged = TaggedEvent::of(&event);
    let at = Timestamp::from_secs;
    let hit = |filter: Filter| tagged.matches(&filter);
    assert!(hit(Filter::new()));
    assert!(hit(Filter::new()
        .id(event.id)
        .author(event.pubkey)
        .kinds([Kind::from(1), Kind::from(2)])));
    assert!(hit(Filter::new()
        .since(at(100))
        .until(at(100))
        .hashtags(["x", "y"])));
    assert!(hit(
        Filter::new().custom_tag(SingleLetterTag::UPPERCASE_E, "root")
    ));
    assert!(!hit(
        Filter::new().custom_tag(SingleLetterTag::LOWERCASE_E, "root")
    ));
    assert!(!hit(Filter::new().since(at(101))));
    assert!(!hit(Filter::new().until(at(99))));
    assert!(!hit(Filter::new().kind(Kind::from(1)).hashtag("y")));
    assert!(!hit(Filter::new().author(Keys::generate().public_key())));
}

#[test]
fn an_empty_list_matches_nothing() {
    let event = tagged_event();
    let tagged = TaggedEvent::of(&event);
    assert!(!tagged.matches(&Filter::new().ids([])));
    assert!(!tagged.matches(&Filter::new().authors([])));
    assert!(!tagged.matches(&Filter::new().kinds([])));
    assert!(!tagged.matches(&Filter::new().hashtags(Vec::<String>::new())));
    assert!(!tagged.matches_any(&[]));
}
