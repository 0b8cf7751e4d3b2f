//! Lookups of events at coordinates, and of announcements by the keys that they list.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::Outcome;
use grasp_core::{RepoId, Version};
use grasp_relay::store::EventStore;
use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use crate::store_events::*;

const CAROL: Author = Author(3);
const DAVE: Author = Author(4);

fn at(author: Author, kind: u16, name: &str) -> Coordinate {
    Coordinate::new(Kind::from_u16(kind), author.key()).identifier(name)
}

/// Returns the ids of the events at coordinates.
async fn heads_at(store: &dyn EventStore, at: &[Coordinate], now: u64) -> BTreeSet<EventId> {
    let found = store.heads(at.to_vec(), time(now)).await.unwrap();
    let ids: BTreeSet<_> = found.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), found.len(), "each once");
    ids
}

pub(super) async fn the_served_versions_at_coordinates_are_found(store: &dyn EventStore) {
    let version = |author: Author, kind, name: &str, number| {
        author
            .writes(kind)
            .at(number)
            .id(number)
            .tag("d", name)
            .done()
    };
    let newest = version(ALICE, 30_617, "x", 3);
    for event in [
        version(ALICE, 30_617, "x", 2),
        newest.clone(),
        version(ALICE, 30_617, "y", 4),
        version(ALICE, 30_618, "x", 5),
        version(BOB, 30_617, "x", 6),
        ALICE.writes(10_002).id(7).done(),
        version(ALICE, 1, "x", 8),
    ] {
        stored(store, &event).await;
    }
    let own = at(ALICE, 30_617, "x");
    assert_eq!(
        store.heads(vec![own.clone()], time(NOW)).await.unwrap(),
        [Event::clone(&newest)]
    );
    let asked = [
        own.clone(),
        at(ALICE, 30_618, "x"),
        at(BOB, 30_617, "x"),
        at(ALICE, 10_002, ""),
        at(BOB, 30_618, "x"),
        at(ALICE, 30_617, ""),
        at(CAROL, 30_617, "x"),
    ];
    assert_eq!(
        heads_at(store, &asked, NOW).await,
        BTreeSet::from([3, 5, 6, 7].map(id))
    );
    assert_eq!(heads_at(store, &[], NOW).await, BTreeSet::new());
    // The kept version does not take the place of one that is deleted.
    stored(store, &ALICE.writes(5).tag("e", newest.id).done()).await;
    assert_eq!(heads_at(store, &[own], NOW).await, BTreeSet::new());
}

pub(super) async fn expired_versions_at_coordinates_are_not_found(store: &dyn EventStore) {
    let version = |author: Author, number| author.writes(30_617).id(number).tag("d", "x");
    let ending = version(ALICE, 1).tag("expiration", NOW + 10).done();
    for event in [&ending, &version(BOB, 2).done()] {
        stored(store, event).await;
    }
    let asked = [at(ALICE, 30_617, "x"), at(BOB, 30_617, "x")];
    let both = BTreeSet::from([id(1), id(2)]);
    assert_eq!(heads_at(store, &asked, NOW + 9).await, both);
    assert_eq!(
        heads_at(store, &asked, NOW + 10).await,
        BTreeSet::from([id(2)])
    );
    assert_eq!(
        heads_at(store, &asked, NOW).await,
        both,
        "nothing is removed by a lookup"
    );
}

pub(super) async fn many_coordinates_are_looked_up_at_once(store: &dyn EventStore) {
    let announced = |n: u64| ALICE.writes(30_617).id(n).tag("d", n).done();
    let events: Vec<_> = (0..2_600).step_by(2).map(announced).collect();
    store.save(events, time(NOW)).await.unwrap();
    let asked: Vec<_> = (0..2_600)
        .map(|n| at(ALICE, 30_617, &n.to_string()))
        .collect();
    let expected: BTreeSet<_> = (0..2_600).step_by(2).map(id).collect();
    assert_eq!(heads_at(store, &asked, NOW).await, expected);
}

/// Returns an announcement of `x` that lists keys, at a time before [`NOW`].
fn listing(author: Author, age: u64, listed: &[Author]) -> Arc<Event> {
    let mut tag = vec!["maintainers".to_owned()];
    tag.extend(listed.iter().map(|one| one.key().to_hex()));
    let tag: Vec<&str> = tag.iter().map(String::as_str).collect();
    author
        .writes(30_617)
        .at(NOW - age)
        .tag("d", "x")
        .raw_tag(&tag)
        .done()
}

/// Returns the authors who list a key under `x`, up to a number.
async fn first(store: &dyn EventStore, key: Author, most: usize) -> Vec<PublicKey> {
    let repo = RepoId::new(key.key(), "x".parse().unwrap());
    store.listing(repo, most).await.unwrap()
}

async fn assert_listed_by(store: &dyn EventStore, key: Author, authors: &[Author]) {
    let authors: Vec<_> = authors.iter().map(|author| author.key()).collect();
    assert_eq!(first(store, key, 100).await, authors);
}

/// Asserts the same in any order.
async fn assert_listed_by_all(store: &dyn EventStore, key: Author, authors: &[Author]) {
    let authors: BTreeSet<_> = authors.iter().map(|author| author.key()).collect();
    let found = first(store, key, 100).await;
    assert_eq!(found.len(), authors.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), authors);
}

pub(super) async fn authors_who_list_a_key_are_found_newest_first(store: &dyn EventStore) {
    assert_listed_by(store, ALICE, &[]).await;
    stored(store, &listing(CAROL, 5, &[ALICE, BOB])).await;
    stored(store, &listing(DAVE, 9, &[ALICE])).await;
    stored(store, &listing(BOB, 1, &[ALICE, BOB, CAROL])).await;
    stored(store, &listing(ALICE, 7, &[])).await;
    assert_listed_by(store, ALICE, &[BOB, CAROL, DAVE]).await;
    assert_listed_by(store, BOB, &[BOB, CAROL]).await;
    assert_listed_by(store, CAROL, &[BOB]).await;
    assert_listed_by(store, DAVE, &[]).await;
}

pub(super) async fn no_more_authors_who_list_a_key_are_found_than_asked_for(
    store: &dyn EventStore,
) {
    let events: Vec<_> = (10..60)
        .map(|n| listing(Author(n), 100 - u64::from(n), &[ALICE]))
        .collect();
    store.save(events, time(NOW)).await.unwrap();
    let all: Vec<_> = (10..60).rev().map(|n| Author(n).key()).collect();
    for most in [0, 1, 7, 50, 51, usize::MAX] {
        assert_eq!(first(store, ALICE, most).await, all[..most.min(50)]);
    }
}

pub(super) async fn a_key_is_listed_under_one_identifier_only(store: &dyn EventStore) {
    let key = ALICE.key().to_hex();
    let elsewhere = BOB
        .writes(30_617)
        .tag("d", "y")
        .raw_tag(&["maintainers", &key])
        .done();
    let nameless = CAROL.writes(30_617).raw_tag(&["maintainers", &key]).done();
    let state = CAROL
        .writes(30_618)
        .tag("d", "x")
        .raw_tag(&["maintainers", &key])
        .done();
    for event in [&elsewhere, &nameless, &state, &listing(DAVE, 1, &[ALICE])] {
        stored(store, event).await;
    }
    assert_listed_by(store, ALICE, &[DAVE]).await;
    let other = RepoId::new(ALICE.key(), "y".parse().unwrap());
    assert_eq!(store.listing(other, 9).await.unwrap(), [BOB.key()]);
}

pub(super) async fn a_key_is_listed_by_its_role_as_maintainer(store: &dyn EventStore) {
    let (alice, bob) = (ALICE.key().to_hex(), BOB.key().to_hex());
    let announced = |author: Author| author.writes(30_617).tag("d", "x");
    for event in [
        announced(Author(10)).raw_tag(&["M", &alice]),
        announced(Author(11)).raw_tag(&["m", &alice]),
        announced(Author(12)).raw_tag(&["o", &alice]),
        // Ended.
        announced(Author(13)).raw_tag(&["m", &alice, "1", "2"]),
        // Roles win.
        announced(Author(14))
            .raw_tag(&["m", &bob])
            .raw_tag(&["maintainers", &alice]),
        announced(Author(15)).raw_tag(&["p", &alice]),
        announced(Author(16)).raw_tag(&["maintainers", "nobody", &alice, &alice]),
    ] {
        stored(store, &event.done()).await;
    }
    assert_listed_by_all(store, ALICE, &[10, 11, 16].map(Author)).await;
    assert_listed_by_all(store, BOB, &[Author(14)]).await;
}

pub(super) async fn a_newer_announcement_lists_what_it_says(store: &dyn EventStore) {
    for (author, age) in [(BOB, 10), (CAROL, 11), (DAVE, 12)] {
        stored(store, &listing(author, age, &[ALICE])).await;
    }
    stored(store, &listing(BOB, 9, &[CAROL])).await;
    assert_listed_by(store, ALICE, &[CAROL, DAVE]).await;
    assert_listed_by(store, CAROL, &[BOB]).await;
    stored(store, &listing(CAROL, 9, &[ALICE, DAVE])).await;
    assert_listed_by(store, ALICE, &[CAROL, DAVE]).await;
    // An older version comes too late.
    assert_eq!(
        save(store, &listing(BOB, 11, &[ALICE])).await,
        Outcome::Superseded
    );
    assert_listed_by(store, ALICE, &[CAROL, DAVE]).await;
    stored(store, &listing(BOB, 8, &[ALICE])).await;
    assert_listed_by(store, ALICE, &[BOB, CAROL, DAVE]).await;
    assert_listed_by(store, CAROL, &[]).await;
}

pub(super) async fn an_announcement_that_is_gone_lists_nobody(store: &dyn EventStore) {
    let authors = [10, 11, 12, 13, 14, 15].map(Author);
    let ending = authors[4]
        .writes(30_617)
        .tag("d", "x")
        .tag("expiration", NOW + 10);
    let ending = ending
        .raw_tag(&["maintainers", &ALICE.key().to_hex()])
        .done();
    for author in authors {
        let event = if author == authors[4] {
            ending.clone()
        } else {
            listing(author, 9, &[ALICE])
        };
        stored(store, &event).await;
    }
    assert_listed_by_all(store, ALICE, &authors).await;
    let by_id = authors[0]
        .writes(5)
        .tag("e", listing(authors[0], 9, &[ALICE]).id);
    stored(store, &by_id.done()).await;
    assert_listed_by_all(store, ALICE, &authors[1..]).await;
    let coordinate = format!("30617:{}:x", authors[1].key());
    stored(store, &authors[1].writes(5).tag("a", coordinate).done()).await;
    assert_listed_by_all(store, ALICE, &authors[2..]).await;
    stored(
        store,
        &authors[2].writes(62).tag("relay", "ALL_RELAYS").done(),
    )
    .await;
    assert_listed_by_all(store, ALICE, &authors[3..]).await;
    let removed = listing(authors[3], 9, &[ALICE]);
    assert_eq!(store.remove(vec![removed.id]).await.unwrap(), 1);
    assert_listed_by_all(store, ALICE, &authors[4..]).await;
    assert_eq!(store.sweep(time(NOW + 10)).await.unwrap().events, 1);
    assert_listed_by_all(store, ALICE, &authors[5..]).await;
    let by = Version::of(&listing(authors[5], 8, &[]));
    assert_eq!(
        store
            .delist(
                at(authors[5], 30_617, "x"),
                by,
                nostr::types::Timestamp::from_secs(1)
            )
            .await
            .unwrap(),
        1
    );
    assert_listed_by_all(store, ALICE, &[]).await;
    // What was removed without a trace may come back.
    stored(store, &removed).await;
    assert_listed_by_all(store, ALICE, &[authors[3]]).await;
}
