//! Split filters match the same events as the whole and fit into the budget; so do the requests.

use std::collections::BTreeSet;

use grasp_core::kinds;
use grasp_core::sync::{
    MAX_SHARED_VALUE_BYTES, RelaySyncNeeds, RequestBudget, SyncLevel, build_announcement_filter,
    build_layer2_and_layer3_filters, pack_requests,
};
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::filter::{Filter, MatchEventOptions, SingleLetterTag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::prop_sync_world::{items_of, odd_repo};

fn odd_items() -> impl Strategy<Value = RelaySyncNeeds> {
    items_of(odd_repo(), 16)
}

fn any_budget() -> impl Strategy<Value = RequestBudget> {
    let bytes = || prop_oneof![Just(0usize), 8_000..12_000usize, Just(usize::MAX)];
    (1..50usize, bytes(), bytes(), 0..12usize).prop_map(|(values, filter, message, filters)| {
        RequestBudget::default()
            .with_values_per_filter(values * values)
            .lowered_to_filter_bytes(filter)
            .lowered_to_message_bytes(message)
            .lowered_to_filters_per_req(filters)
    })
}

fn any_since() -> impl Strategy<Value = Option<Timestamp>> {
    prop::option::of((0..6u64).prop_map(Timestamp::from_secs))
}

/// Returns the filters without limits.
fn unsplit(items: &RelaySyncNeeds, since: Option<Timestamp>) -> Vec<Filter> {
    let full: BTreeSet<_> = items
        .repos_at(SyncLevel::Full)
        .map(|repo| repo.to_string())
        .collect();
    let held = items
        .repos_at(SyncLevel::StateOnly)
        .map(|repo| repo.identifier.to_string());
    let roots: BTreeSet<_> = items
        .root_events
        .iter()
        .map(|root| root.event().to_hex())
        .collect();
    let tagged = |tag: char, values: &BTreeSet<String>| {
        Filter::new().custom_tags(SingleLetterTag::from_char(tag).unwrap(), values)
    };
    let mut filters = vec![Filter::new().kind(kinds::STATE).identifiers(held)];
    filters.extend(['a', 'A', 'q'].map(|tag| tagged(tag, &full)));
    filters.extend(['e', 'E', 'q'].map(|tag| tagged(tag, &roots)));
    filters
        .into_iter()
        .map(|filter| Filter { since, ..filter })
        .collect()
}

fn matched(filters: &[Filter], event: &Event) -> bool {
    let all = MatchEventOptions::new();
    filters.iter().any(|filter| filter.match_event(event, all))
}

/// An event whose tags refer to some of the items, correctly or not.
#[derive(Clone, Debug)]
struct Referring {
    kind: Kind,
    at: u64,
    tags: Vec<(char, Index)>,
}

impl Referring {
    fn at(&self, items: &[&RelaySyncNeeds]) -> Event {
        let repos = items.iter().flat_map(|items| items.repos.keys());
        let roots = items.iter().flat_map(|items| &items.root_events);
        let mut values = vec![String::from("foreign")];
        values.extend(repos.clone().map(|repo| repo.identifier.to_string()));
        values.extend(repos.map(|repo| repo.to_string()));
        values.extend(roots.map(|root| root.event().to_hex()));
        let tags = self.tags.iter().map(|(name, value)| {
            Tag::parse([name.to_string(), value.get(&values).clone()]).unwrap()
        });
        let keys = Keys::parse(&"1".repeat(64)).unwrap();
        EventBuilder::new(self.kind, "")
            .tags(tags)
            .custom_created_at(Timestamp::from_secs(self.at))
            .finalize(&keys)
            .unwrap()
    }
}

fn any_referring() -> impl Strategy<Value = Referring> {
    let kind = prop::sample::select(
        &[
            kinds::STATE,
            kinds::ANNOUNCEMENT,
            kinds::ISSUE,
            Kind::Comment,
        ][..],
    );
    let tag = (
        prop::sample::select(&['a', 'A', 'q', 'e', 'E', 'd', 'p'][..]),
        any::<Index>(),
    );
    (kind, 0..10u64, vec(tag, 0..4)).prop_map(|(kind, at, tags)| Referring { kind, at, tags })
}

/// Returns the filter with the longest window.
fn widest(filter: &Filter) -> Filter {
    let end = Timestamp::from_secs(u64::MAX);
    filter.clone().since(end).until(end).limit(usize::MAX)
}

fn values(filter: &Filter) -> impl Iterator<Item = &str> {
    filter.generic_tags.values().flatten().map(String::as_str)
}

fn is_long(value: &str) -> bool {
    value.len() > MAX_SHARED_VALUE_BYTES
}

proptest! {
    // Odd names are slow to generate; this many cases have found every fault that was planted so far.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn split_filters_match_the_same_events(
        items in odd_items(),
        since in any_since(),
        budget in any_budget(),
        events in vec(any_referring(), 1..12),
    ) {
        let parts = build_layer2_and_layer3_filters(&items, since, &budget);
        let whole = unsplit(&items, since);
        for event in events {
            let event = event.at(&[&items]);
            prop_assert_eq!(matched(&parts, &event), matched(&whole, &event), "{:?}", event);
        }
    }

    #[test]
    fn every_filter_fits_into_the_budget(items in odd_items(), since in any_since(), budget in any_budget()) {
        for filter in build_layer2_and_layer3_filters(&items, since, &budget) {
            prop_assert_eq!(filter.generic_tags.len(), 1);
            let count = values(&filter).count();
            prop_assert!((1..=budget.values_per_filter).contains(&count));
            prop_assert!(serde_json::to_string(&widest(&filter)).unwrap().len() <= budget.filter_bytes);
            prop_assert!(values(&filter).all(is_long) || !values(&filter).any(is_long));
        }
    }

    #[test]
    fn filters_are_filled(items in odd_items(), budget in any_budget()) {
        let filters = build_layer2_and_layer3_filters(&items, None, &budget);
        let tag = |filter: &Filter| *filter.generic_tags.keys().next().unwrap();
        for tag_of_interest in filters.iter().map(tag).collect::<BTreeSet<_>>() {
            let same: Vec<_> = filters.iter().filter(|filter| tag(filter) == tag_of_interest).collect();
            for pair in same.windows(2) {
                let next = values(pair[1]).next().unwrap();
                let kind = |filter: &Filter| (filter.kinds.clone(), values(filter).any(is_long));
                let is_id = |filter: &Filter| values(filter).all(|value| value.len() == 64);
                if kind(pair[0]) == kind(pair[1]) && is_id(pair[0]) == is_id(pair[1]) {
                    let grown = pair[0].clone().custom_tag(tag_of_interest, next);
                    let too_many = values(&grown).count() > budget.values_per_filter;
                    // One comma too many is counted.
                    prop_assert!(too_many || widest(&grown).as_json().len() + 1 > budget.filter_bytes);
                }
            }
        }
    }

    #[test]
    fn requests_hold_every_filter_within_the_budget(items in odd_items(), since in any_since(), budget in any_budget()) {
        let filters = build_layer2_and_layer3_filters(&items, since, &budget);
        let requests = pack_requests(filters.clone(), &budget);
        let mut packed: Vec<_> = requests.iter().flatten().cloned().collect();
        let mut wanted = filters;
        packed.sort();
        wanted.sort();
        prop_assert_eq!(packed, wanted);
        for request in requests {
            prop_assert!((1..=budget.filters_per_req).contains(&request.len()));
            let sub = "s".repeat(64);
            let frame: Vec<_> = request.iter().map(|f| serde_json::to_value(widest(f)).unwrap()).collect();
            let head = [serde_json::json!("REQ"), serde_json::json!(sub)];
            let message = serde_json::to_string(&[&head[..], &frame[..]].concat()).unwrap();
            prop_assert!(message.len() <= budget.message_bytes);
            let longs = request.iter().filter(|filter| values(filter).any(is_long)).count();
            prop_assert!(longs == 0 || longs == request.len());
        }
    }

    #[test]
    fn consolidated_filters_match_the_same_events(
        one in odd_items(),
        other in odd_items(),
        budget in any_budget(),
        events in vec(any_referring(), 1..12),
    ) {
        let build = |items: &RelaySyncNeeds| build_layer2_and_layer3_filters(items, None, &budget);
        let mut union = one.clone();
        union.include(other.clone());
        // States of a promoted repository come with layer 1, which stays open through a rebuild.
        let announcements = build_announcement_filter(None);
        let mut pieces = [build(&one), build(&other)].concat();
        pieces.push(announcements.clone());
        let mut rebuilt = build(&union);
        rebuilt.push(announcements);
        for event in events {
            let event = event.at(&[&one, &other]);
            prop_assert_eq!(matched(&rebuilt, &event), matched(&pieces, &event), "{:?}", event);
        }
    }
}
