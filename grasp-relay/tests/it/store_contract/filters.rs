use std::sync::Arc;

use futures_util::StreamExt;
use grasp_core::Version;
use grasp_core::admission::Outcome;
use grasp_core::nip34::References;
use grasp_relay::store::{EventStore, Inventory};
use nostr::event::{Event, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::nips::nip01::Coordinate;

use crate::store_events::*;

async fn all_stored(store: &dyn EventStore, events: &[Arc<Event>]) {
    let saved = store.save(events.to_vec(), time(NOW)).await.unwrap();
    assert!(saved.iter().all(|saved| *saved == Outcome::Stored));
}

fn tag(name: char) -> SingleLetterTag {
    SingleLetterTag::from_char(name).unwrap()
}

pub(super) async fn newest_first_and_ties_by_lowest_id(store: &dyn EventStore) {
    let events = [
        ALICE.writes(1).at(10).id(9).done(),
        BOB.writes(7).at(20).id(5).done(),
        ALICE.writes(7).at(20).id(3).done(),
        BOB.writes(1).at(20).id(4).done(),
        ALICE.writes(1).at(30).id(8).done(),
    ];
    all_stored(store, &events).await;
    let order = [id(8), id(3), id(4), id(5), id(9)];
    assert_eq!(find(store, Filter::new()).await, order);
    let kinds = Filter::new().kinds([Kind::from_u16(1), Kind::from_u16(7)]);
    assert_eq!(find(store, kinds).await, order);
    let authors = Filter::new().authors([ALICE.key(), BOB.key()]);
    assert_eq!(find(store, authors).await, order);
    assert_eq!(find(store, Filter::new().ids(order)).await, order);
}

pub(super) async fn a_filter_without_conditions_matches_everything(store: &dyn EventStore) {
    let events = [
        ALICE.writes(1).done(),
        BOB.writes(62).done(),
        BOB.writes(5).done(),
    ];
    all_stored(store, &events).await;
    assert_eq!(find(store, Filter::new()).await.len(), 3);
}

pub(super) async fn any_value_of_a_list_and_every_condition(store: &dyn EventStore) {
    let mut events = Vec::new();
    for author in [ALICE, BOB] {
        for kind in [1, 7] {
            for (t, r) in [("x", "u"), ("x", "v"), ("y", "u")] {
                events.push(author.writes(kind).tag("t", t).tag("r", r).done());
            }
        }
    }
    all_stored(store, &events).await;
    let base = || Filter::new().author(ALICE.key()).kind(Kind::from_u16(1));
    let mut found = Vec::new();
    for filter in [
        base(),
        base().hashtag("x"),
        base().hashtags(["x", "y"]),
        base().hashtag("x").reference("v"),
        base().hashtag("y").reference("v"),
        base()
            .ids(events.iter().map(|event| event.id))
            .reference("u"),
        Filter::new().hashtag("y"),
        Filter::new().hashtag("x").kind(Kind::from_u16(7)),
        Filter::new().hashtag("x").author(BOB.key()).reference("u"),
        Filter::new().hashtag("none"),
    ] {
        found.push(find(store, filter).await.len());
    }
    assert_eq!(found, [3, 2, 3, 1, 0, 2, 4, 4, 2, 0]);
}

pub(super) async fn since_and_until_include_their_second(store: &dyn EventStore) {
    let events: Vec<_> = (1..=5)
        .map(|at| ALICE.writes(1).at(at).id(at).tag("t", "x").done())
        .collect();
    all_stored(store, &events).await;
    for filter in [
        Filter::new(),
        Filter::new().kind(Kind::TextNote),
        Filter::new().author(ALICE.key()),
        Filter::new().hashtag("x"),
        Filter::new().ids(events.iter().map(|event| event.id)),
    ] {
        let within = filter.clone().since(time(2)).until(time(4));
        assert_eq!(find(store, within).await, [id(4), id(3), id(2)]);
        assert_eq!(find(store, filter.clone().since(time(5))).await, [id(5)]);
        assert_eq!(find(store, filter.clone().until(time(1))).await, [id(1)]);
        assert!(
            find(store, filter.since(time(4)).until(time(3)))
                .await
                .is_empty()
        );
    }
}

pub(super) async fn the_limit_takes_the_newest(store: &dyn EventStore) {
    let events: Vec<_> = (1..=9)
        .map(|n| ALICE.writes(1).at(n).id(n).tag("t", n % 3).done())
        .collect();
    all_stored(store, &events).await;
    let any = || Filter::new().hashtags(["0", "1", "2"]);
    assert_eq!(find(store, any().limit(2)).await, [id(9), id(8)]);
    assert_eq!(find(store, Filter::new().limit(2)).await, [id(9), id(8)]);
    assert_eq!(find(store, any().limit(1_000)).await.len(), 9);
    assert_eq!(
        store.count(vec![any().limit(2)], time(NOW)).await.unwrap(),
        2
    );
    let items = inventory_at(store, any().limit(2), NOW).await;
    assert_eq!(items, [(time(8), id(8)), (time(9), id(9))]);
}

pub(super) async fn a_limit_cuts_ties_by_lowest_id(store: &dyn EventStore) {
    let events: Vec<_> = (1..=20)
        .rev()
        .map(|n| ALICE.writes(1).at(50).id(n).tag("t", n % 5).done())
        .collect();
    all_stored(store, &events).await;
    let values: Vec<String> = (0..5).map(|n| n.to_string()).collect();
    for filter in [Filter::new(), Filter::new().hashtags(values)] {
        assert_eq!(find(store, filter.limit(3)).await, [id(1), id(2), id(3)]);
    }
}

pub(super) async fn limit_zero_matches_nothing(store: &dyn EventStore) {
    let event = ALICE.writes(1).done();
    stored(store, &event).await;
    for filter in [Filter::new(), Filter::new().id(event.id)] {
        assert!(find(store, filter.limit(0)).await.is_empty());
    }
}

pub(super) async fn empty_lists_match_nothing(store: &dyn EventStore) {
    stored(store, &ALICE.writes(1).tag("t", "x").done()).await;
    let no_values: [String; 0] = [];
    for filter in [
        Filter::new().ids([]),
        Filter::new().authors([]),
        Filter::new().kinds([]),
        Filter::new().custom_tags(tag('t'), no_values),
        Filter::new().hashtag("x").kinds([]),
    ] {
        assert!(find(store, filter.clone()).await.is_empty(), "{filter:?}");
        assert_eq!(
            store.count(vec![filter.clone()], time(NOW)).await.unwrap(),
            0
        );
        assert!(inventory_at(store, filter, NOW).await.is_empty());
    }
}

pub(super) async fn search_matches_nothing(store: &dyn EventStore) {
    stored(store, &ALICE.writes(1).done()).await;
    assert!(find(store, Filter::new().search("text")).await.is_empty());
    let others = vec![Filter::new().search("text"), Filter::new()];
    assert_eq!(find_at(store, others, NOW).await.len(), 1);
}

pub(super) async fn no_filter_matches_nothing(store: &dyn EventStore) {
    stored(store, &ALICE.writes(1).done()).await;
    assert!(find_at(store, Vec::new(), NOW).await.is_empty());
    assert_eq!(store.count(Vec::new(), time(NOW)).await.unwrap(), 0);
}

pub(super) async fn tag_names_are_case_sensitive(store: &dyn EventStore) {
    let lower = ALICE.writes(1111).tag("e", "x").done();
    let upper = ALICE.writes(1111).tag("E", "x").done();
    all_stored(store, &[Arc::clone(&lower), Arc::clone(&upper)]).await;
    assert_eq!(
        find(store, Filter::new().custom_tag(tag('e'), "x")).await,
        [lower.id]
    );
    assert_eq!(
        find(store, Filter::new().custom_tag(tag('E'), "x")).await,
        [upper.id]
    );
}

pub(super) async fn only_the_first_value_of_a_tag_counts(store: &dyn EventStore) {
    let event = ALICE
        .writes(1)
        .raw_tag(&["t", "first", "second"])
        .raw_tag(&["r"])
        .raw_tag(&["long", "word"])
        .done();
    stored(store, &event).await;
    assert_eq!(find(store, Filter::new().hashtag("first")).await.len(), 1);
    assert!(
        find(store, Filter::new().hashtag("second"))
            .await
            .is_empty()
    );
    assert!(find(store, Filter::new().reference("")).await.is_empty());
    assert!(
        find(store, Filter::new().custom_tag(tag('l'), "word"))
            .await
            .is_empty()
    );
}

pub(super) async fn long_and_empty_tag_values_are_found_exactly(store: &dyn EventStore) {
    let long = "x".repeat(5_000);
    let longer = format!("{long}x");
    let events: Vec<_> = [long.as_str(), longer.as_str(), ""]
        .iter()
        .map(|value| ALICE.writes(1).tag("r", value).done())
        .collect();
    all_stored(store, &events).await;
    for (event, value) in events.iter().zip([long.as_str(), longer.as_str(), ""]) {
        assert_eq!(
            find(store, Filter::new().reference(value)).await,
            [event.id]
        );
    }
}

pub(super) async fn several_filters_give_each_event_once_in_order(store: &dyn EventStore) {
    let events: Vec<_> = (1..=6)
        .map(|n| ALICE.writes(1).at(n).id(n).tag("t", n % 2).done())
        .collect();
    all_stored(store, &events).await;
    let filters = vec![
        Filter::new().hashtag("0"),
        Filter::new().until(time(4)),
        Filter::new().ids([id(3), id(6)]),
        Filter::new().kinds([]),
    ];
    let found = find_at(store, filters.clone(), NOW).await;
    let found: Vec<_> = found.iter().map(|event| event.id).collect();
    assert_eq!(found, [id(6), id(4), id(3), id(2), id(1)]);
    assert_eq!(store.count(filters, time(NOW)).await.unwrap(), 5);
}

pub(super) async fn each_filter_has_its_own_limit(store: &dyn EventStore) {
    let events: Vec<_> = (1..=6)
        .map(|n| ALICE.writes(1).at(n).id(n).tag("t", n % 2).done())
        .collect();
    all_stored(store, &events).await;
    let filters = vec![
        Filter::new().limit(2),
        Filter::new().hashtag("0").limit(2),
        Filter::new().hashtag("1").limit(1),
    ];
    let found = find_at(store, filters, NOW).await;
    let found: Vec<_> = found.iter().map(|event| event.id).collect();
    assert_eq!(found, [id(6), id(5), id(4)]);
}

pub(super) async fn a_filter_may_have_tens_of_thousands_of_values(store: &dyn EventStore) {
    let events: Vec<_> = (0..50)
        .map(|n| ALICE.writes(1).at(n + 1).id(n).tag("t", n).done())
        .collect();
    all_stored(store, &events).await;
    let ids = Filter::new().ids((0..40_000).map(id));
    assert_eq!(find(store, ids).await.len(), 50);
    let values = (0..40_000).map(|n: u64| n.to_string());
    let newest = find(store, Filter::new().hashtags(values).limit(3)).await;
    assert_eq!(newest, [id(49), id(48), id(47)]);
}

pub(super) async fn a_large_answer_is_complete_in_several_chunks(store: &dyn EventStore) {
    let events: Vec<_> = (0..5_000)
        .map(|n| ALICE.writes(1).at(n / 7 + 1).id(n).tag("t", n % 40).done())
        .collect();
    all_stored(store, &events).await;
    let values = (0..20).map(|n| n.to_string());
    for (filter, size) in [
        (Filter::new(), 5_000),
        (Filter::new().hashtags(values), 2_500),
    ] {
        let (mut chunks, mut found) = (0, Vec::new());
        let mut answer = store.query(vec![filter], time(NOW));
        while let Some(chunk) = answer.next().await {
            chunks += 1;
            found.extend(
                chunk
                    .unwrap()
                    .into_iter()
                    .map(|e| (std::cmp::Reverse(e.created_at), e.id)),
            );
        }
        assert!(chunks > 1);
        assert_eq!(found.len(), size);
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
    }
}

pub(super) async fn an_event_that_matches_by_several_values_is_given_once(store: &dyn EventStore) {
    let twice = ALICE
        .writes(1)
        .tag("t", "x")
        .tag("t", "y")
        .tag("t", "x")
        .done();
    stored(store, &twice).await;
    let filter = Filter::new().hashtags(["x", "y", "z"]);
    assert_eq!(find(store, filter.clone()).await, [twice.id]);
    assert_eq!(store.count(vec![filter], time(NOW)).await.unwrap(), 1);
}

pub(super) async fn an_inventory_is_oldest_first(store: &dyn EventStore) {
    let events = [
        ALICE.writes(1).at(10).id(9).done(),
        BOB.writes(7).at(20).id(5).tag("t", "x").done(),
        ALICE.writes(7).at(20).id(3).tag("t", "x").done(),
    ];
    all_stored(store, &events).await;
    let all = [(time(10), id(9)), (time(20), id(3)), (time(20), id(5))];
    assert_eq!(inventory_at(store, Filter::new(), NOW).await, all);
    assert_eq!(
        inventory_at(store, Filter::new().hashtag("x"), NOW).await,
        all[1..]
    );
}

pub(super) async fn an_inventory_above_its_limit_is_refused(store: &dyn EventStore) {
    let events: Vec<_> = (0..4).map(|n| ALICE.writes(1).id(n).done()).collect();
    all_stored(store, &events).await;
    let up_to = async |max| {
        store
            .inventory(Filter::new(), time(NOW), max)
            .await
            .unwrap()
    };
    assert!(matches!(up_to(4).await, Inventory::Complete(items) if items.len() == 4));
    assert_eq!(up_to(3).await, Inventory::TooMany);
    assert_eq!(up_to(0).await, Inventory::TooMany);
}

pub(super) async fn an_author_with_many_kinds_is_served_in_order(store: &dyn EventStore) {
    let events: Vec<_> = (0..60)
        .map(|n| ALICE.writes(1_100 + (n % 20) as u16).at(n + 1).id(n).done())
        .collect();
    all_stored(store, &events).await;
    stored(store, &BOB.writes(1).done()).await;
    let found = find(store, Filter::new().author(ALICE.key())).await;
    assert_eq!(found, (0..60).rev().map(id).collect::<Vec<_>>());
}

pub(super) async fn references_are_looked_up_by_key(store: &dyn EventStore) {
    let at =
        |kind: u16, name: &str| Coordinate::new(Kind::from_u16(kind), ALICE.key()).identifier(name);
    let note = ALICE.writes(1).done();
    let old = ALICE.writes(30_617).at(10).tag("d", "x").done();
    let new = ALICE.writes(30_617).at(11).tag("d", "x").done();
    let list = ALICE.writes(10_317).done();
    let others = BOB.writes(30_617).tag("d", "y").done();
    let ended = ALICE
        .writes(30_023)
        .tag("d", "z")
        .tag("expiration", NOW)
        .done();
    for event in [&note, &old, &new, &list, &others] {
        stored(store, event).await;
    }
    let saved = store
        .save(vec![ended.clone()], time(NOW - 1))
        .await
        .unwrap();
    assert_eq!(saved, [Outcome::Stored]);
    let named = References {
        ids: [note.id, old.id, ended.id, id(7)].into(),
        coordinates: [
            at(30_617, "x"),
            at(30_617, "y"),
            at(10_317, ""),
            at(30_023, "z"),
        ]
        .into(),
    };
    let present = store.present(named, time(NOW)).await.unwrap();
    assert_eq!(present.ids, [note.id].into());
    let versions = [
        (at(30_617, "x"), Version::of(&new)),
        (at(10_317, ""), Version::of(&list)),
    ];
    assert_eq!(present.versions, versions.into());
}
