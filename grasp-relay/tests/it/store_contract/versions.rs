use std::sync::Arc;

use grasp_core::Version;
use grasp_core::admission::Outcome;
use grasp_relay::store::EventStore;
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;

use super::KEPT_VERSIONS;
use crate::store_events::*;

async fn kept(store: &dyn EventStore, kind: u16, identifier: &str) -> Vec<EventId> {
    let coordinate = Coordinate::new(Kind::from_u16(kind), ALICE.key()).identifier(identifier);
    let versions = store.superseded(coordinate).await.unwrap();
    versions.iter().map(|event| event.id).collect()
}

/// Asserts that the winner is served, and the loser is not, in either order of arrival.
async fn assert_wins(store: &dyn EventStore, winner: &Arc<Event>, loser: &Arc<Event>) {
    stored(store, loser).await;
    stored(store, winner).await;
    assert!(serves(store, winner).await && !serves(store, loser).await);
    assert_eq!(save(store, loser).await, Outcome::Superseded);
    store.remove(vec![winner.id, loser.id]).await.unwrap();

    stored(store, winner).await;
    assert_eq!(save(store, loser).await, Outcome::Superseded);
    assert!(serves(store, winner).await && !serves(store, loser).await);
}

pub(super) async fn the_newer_version_wins_in_any_order(store: &dyn EventStore) {
    for kind in [0, 3, 10_002, 30_023, 30_617, 30_618] {
        let older = ALICE.writes(kind).at(10).id(1).tag("d", "x").done();
        let newer = ALICE.writes(kind).at(11).id(2).tag("d", "x").done();
        assert_wins(store, &newer, &older).await;
        store.remove(vec![newer.id, older.id]).await.unwrap();
    }
}

pub(super) async fn in_the_same_second_the_lower_id_wins_in_any_order(store: &dyn EventStore) {
    for kind in [10_002, 30_618] {
        let higher = ALICE.writes(kind).at(10).id(2).tag("d", "x").done();
        let lower = ALICE.writes(kind).at(10).id(1).tag("d", "x").done();
        assert_wins(store, &lower, &higher).await;
        store.remove(vec![lower.id, higher.id]).await.unwrap();
    }
}

pub(super) async fn plain_replaceable_events_ignore_the_identifier(store: &dyn EventStore) {
    let older = ALICE.writes(10_002).at(10).tag("d", "x").done();
    let newer = ALICE.writes(10_002).at(11).tag("d", "y").done();
    assert_wins(store, &newer, &older).await;
}

pub(super) async fn addressable_events_are_distinguished_by_identifier(store: &dyn EventStore) {
    for draft in [
        ALICE.writes(30_617).tag("d", "x"),
        ALICE.writes(30_617).tag("d", "y"),
        ALICE.writes(30_617).tag("d", "x:y"),
        ALICE.writes(30_618).tag("d", "x"),
        BOB.writes(30_617).tag("d", "x"),
    ] {
        stored(store, &draft.done()).await;
    }
    assert_eq!(find(store, Filter::new()).await.len(), 5);
}

pub(super) async fn a_missing_identifier_is_an_empty_one(store: &dyn EventStore) {
    let missing = ALICE.writes(30_023).at(10).done();
    let empty = ALICE.writes(30_023).at(11).tag("d", "").done();
    let bare = ALICE
        .writes(30_023)
        .at(12)
        .raw_tag(&["d"])
        .tag("d", "x")
        .done();
    assert_wins(store, &empty, &missing).await;
    stored(store, &bare).await;
    assert_eq!(find(store, Filter::new()).await, [bare.id]);
}

pub(super) async fn ordinary_kinds_are_never_replaced(store: &dyn EventStore) {
    for kind in [1, 41, 1_621, 9_999, 40_000] {
        stored(store, &ALICE.writes(kind).at(10).tag("d", "x").done()).await;
        stored(store, &ALICE.writes(kind).at(11).tag("d", "x").done()).await;
    }
    assert_eq!(find(store, Filter::new()).await.len(), 10);
}

pub(super) async fn superseded_announcements_and_states_are_kept_but_not_served(
    store: &dyn EventStore,
) {
    for kind in [30_617, 30_618] {
        let version = |at| {
            ALICE
                .writes(kind)
                .at(at)
                .id(at)
                .tag("d", "x")
                .tag("t", "y")
                .done()
        };
        // 3 arrives when it is already superseded.
        for (at, saved) in [
            (1, Outcome::Stored),
            (2, Outcome::Stored),
            (4, Outcome::Stored),
            (3, Outcome::Superseded),
        ] {
            assert_eq!(save(store, &version(at)).await, saved);
        }
        assert_eq!(kept(store, kind, "x").await, [id(3), id(2), id(1)]);
        assert!(kept(store, kind, "y").await.is_empty());
        for filter in [
            Filter::new(),
            Filter::new().hashtag("y"),
            Filter::new().ids((1..=4).map(id)),
            Filter::new().kind(Kind::from_u16(kind)),
            Filter::new().author(ALICE.key()),
        ] {
            assert_eq!(find(store, filter.clone()).await, [id(4)]);
            assert_eq!(inventory_at(store, filter.clone(), NOW).await.len(), 1);
            assert_eq!(store.count(vec![filter], time(NOW)).await.unwrap(), 1);
        }
        store.remove((1..=4).map(id).collect()).await.unwrap();
        assert!(kept(store, kind, "x").await.is_empty());
    }
}

pub(super) async fn other_superseded_events_are_not_kept(store: &dyn EventStore) {
    for at in [10, 11] {
        stored(store, &ALICE.writes(30_023).at(at).tag("d", "x").done()).await;
    }
    assert!(kept(store, 30_023, "x").await.is_empty());
}

pub(super) async fn the_number_of_kept_versions_is_bounded(store: &dyn EventStore) {
    for at in [1, 3, 5, 7, 9, 2, 8] {
        let saved = save(
            store,
            &ALICE.writes(30_618).at(at).id(at).tag("d", "x").done(),
        )
        .await;
        assert!(matches!(saved, Outcome::Stored | Outcome::Superseded));
    }
    let kept = kept(store, 30_618, "x").await;
    assert_eq!(kept.len(), KEPT_VERSIONS);
    assert_eq!(kept, [id(8), id(7), id(5)]);
}

pub(super) async fn a_kept_version_is_stored_again_after_the_winner_is_deleted(
    store: &dyn EventStore,
) {
    let version = |at| ALICE.writes(30_618).at(at).id(at).tag("d", "x").done();
    for at in [1, 2, 3] {
        stored(store, &version(at)).await;
    }
    stored(store, &ALICE.writes(5).tag("e", id(3)).done()).await;
    assert_eq!(
        find(store, Filter::new().kind(Kind::from_u16(30_618))).await,
        []
    );
    assert_eq!(save(store, &version(2)).await, Outcome::Stored);
    assert!(serves(store, &version(2)).await);
    assert_eq!(kept(store, 30_618, "x").await, [id(1)]);
}

pub(super) async fn a_delisted_version_is_removed_and_refused(store: &dyn EventStore) {
    let version = |at, name: &str| ALICE.writes(30_617).at(at).tag("d", name).done();
    let (old, by, new) = (version(10, "x"), version(11, "x"), version(12, "x"));
    let other = version(9, "y");
    stored(store, &old).await;
    stored(store, &other).await;
    let at = Coordinate::new(Kind::from_u16(30_617), ALICE.key()).identifier("x");
    let delist = |by: &Arc<Event>| {
        store.delist(
            at.clone(),
            Version::of(by),
            nostr::types::Timestamp::from_secs(1),
        )
    };
    assert_eq!(delist(&by).await.unwrap(), 1);
    assert!(!serves(store, &old).await && serves(store, &other).await);
    assert_eq!(save(store, &old).await, Outcome::Superseded);
    assert_eq!(
        store.delisted(vec![at.clone()]).await.unwrap(),
        [(at.clone(), Version::of(&by))].into()
    );
    // An older delisting has no effect, and a newer version is accepted.
    assert_eq!(delist(&old).await.unwrap(), 0);
    assert_eq!(save(store, &old).await, Outcome::Superseded);
    stored(store, &new).await;
    assert_eq!(delist(&by).await.unwrap(), 0);
    assert!(serves(store, &new).await);
}
