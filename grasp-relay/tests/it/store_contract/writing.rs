use std::sync::Arc;

use grasp_core::admission::{Outcome, Presence, Rejection};
use grasp_relay::store::{EventStore, Inventory, StoreError};
use nostr::filter::Filter;

use crate::store_events::*;

pub(super) async fn a_stored_event_is_found_as_it_was_written(store: &dyn EventStore) {
    let event = ALICE
        .writes(1621)
        .tag("a", "30617:x:y")
        .tag("subject", "it \\ fails\n")
        .raw_tag(&["alone"])
        .done();
    stored(store, &event).await;
    let found = find_at(store, vec![Filter::new().id(event.id)], NOW).await;
    assert_eq!(found, [Arc::unwrap_or_clone(event)]);
}

pub(super) async fn the_same_event_again_is_a_duplicate(store: &dyn EventStore) {
    let event = ALICE.writes(1).done();
    stored(store, &event).await;
    assert_eq!(
        save(store, &event).await,
        Outcome::Duplicate(Presence::Stored)
    );
    let twice = ALICE.writes(1).id(1).done();
    let batch = vec![Arc::clone(&twice), twice];
    let saved = store.save(batch, time(NOW)).await.unwrap();
    assert_eq!(
        saved,
        [Outcome::Stored, Outcome::Duplicate(Presence::Stored)]
    );
    assert_eq!(find(store, Filter::new()).await.len(), 2);
}

pub(super) async fn each_event_of_a_batch_gets_its_own_answer(store: &dyn EventStore) {
    let newer = ALICE.writes(10_002).at(NOW - 1).done();
    let older = ALICE.writes(10_002).at(NOW - 2).done();
    let ephemeral = ALICE.writes(20_001).done();
    let note = ALICE.writes(1).done();
    let deletion = ALICE.writes(5).tag("e", note.id).done();
    let batch = vec![newer, older, ephemeral, Arc::clone(&note), deletion, note];
    assert_eq!(
        store.save(batch, time(NOW)).await.unwrap(),
        [
            Outcome::Stored,
            Outcome::Superseded,
            Rejection::NeverStored.into(),
            Outcome::Stored,
            Outcome::Stored,
            Rejection::Deleted.into(),
        ]
    );
    assert!(store.save(Vec::new(), time(NOW)).await.unwrap().is_empty());
}

pub(super) async fn ephemeral_events_are_refused(store: &dyn EventStore) {
    for kind in [20_000, 29_999] {
        let event = ALICE.writes(kind).done();
        let refused = Rejection::NeverStored.into();
        assert_eq!(save(store, &event).await, refused);
        assert!(!serves(store, &event).await);
    }
}

pub(super) async fn a_removed_event_may_be_stored_again(store: &dyn EventStore) {
    let event = ALICE.writes(30_023).tag("d", "x").tag("t", "y").done();
    let other = ALICE.writes(1).tag("t", "y").done();
    stored(store, &event).await;
    stored(store, &other).await;
    assert_eq!(store.remove(vec![event.id, id(7)]).await.unwrap(), 1);
    let tagged = || Filter::new().hashtag("y");
    assert_eq!(find(store, tagged()).await, [other.id]);
    assert_eq!(store.count(vec![tagged()], time(NOW)).await.unwrap(), 1);
    stored(store, &event).await;
    assert_eq!(find(store, tagged()).await.len(), 2);
}

pub(super) async fn extreme_times_are_stored_and_found(store: &dyn EventStore) {
    let far = ALICE.writes(1).at(i64::MAX as u64).done();
    let first = ALICE.writes(1).at(0).done();
    stored(store, &first).await;
    stored(store, &far).await;
    let everything = Filter::new().since(time(0)).until(time(u64::MAX));
    assert_eq!(find(store, everything).await, [far.id, first.id]);
}

pub(super) async fn many_writers_at_once_all_get_their_events_stored(store: &dyn EventStore) {
    let events: Vec<_> = (0..300).map(|n| ALICE.writes(1).id(n).done()).collect();
    let saves = events.iter().map(|event| save(store, event));
    let saved = futures_util::future::join_all(saves).await;
    assert!(saved.iter().all(|saved| *saved == Outcome::Stored));
    assert_eq!(
        store.count(vec![Filter::new()], time(NOW)).await.unwrap(),
        300
    );
}

pub(super) async fn an_expired_event_is_never_served(store: &dyn EventStore) {
    let event = ALICE
        .writes(1)
        .tag("t", "x")
        .tag("expiration", NOW + 10)
        .done();
    stored(store, &event).await;
    for filter in [
        Filter::new(),
        Filter::new().id(event.id),
        Filter::new().hashtag("x"),
    ] {
        for (now, served) in [(NOW + 9, 1), (NOW + 10, 0), (NOW + 11, 0)] {
            assert_eq!(
                find_at(store, vec![filter.clone()], now).await.len(),
                served
            );
            assert_eq!(inventory_at(store, filter.clone(), now).await.len(), served);
            let counted = store.count(vec![filter.clone()], time(now)).await.unwrap();
            assert_eq!(counted, served as u64);
        }
    }
}

pub(super) async fn an_expired_event_is_refused(store: &dyn EventStore) {
    let refused = Rejection::Expired.into();
    let event = ALICE.writes(1).tag("expiration", NOW).done();
    assert_eq!(save(store, &event).await, refused);
    // Also when it is here and was not swept yet.
    assert_eq!(save_at(store, &event, NOW - 1).await, Outcome::Stored);
    assert_eq!(save(store, &event).await, refused);
    let nonsense = ALICE.writes(1).tag("expiration", "soon").done();
    stored(store, &nonsense).await;
}

pub(super) async fn a_sweep_removes_expired_events(store: &dyn EventStore) {
    for n in 0..3 {
        stored(
            store,
            &ALICE.writes(1).tag("expiration", NOW + n + 1).done(),
        )
        .await;
    }
    stored(store, &ALICE.writes(1).done()).await;
    assert_eq!(store.sweep(time(NOW)).await.unwrap().events, 0);
    assert_eq!(store.sweep(time(NOW + 2)).await.unwrap().events, 2);
    assert_eq!(store.sweep(time(NOW + 2)).await.unwrap().events, 0);
    assert_eq!(find(store, Filter::new()).await.len(), 2);
}

pub(super) async fn an_expired_version_gives_way_to_an_older_one(store: &dyn EventStore) {
    let winner = ALICE
        .writes(10_002)
        .at(NOW - 1)
        .tag("expiration", NOW + 1)
        .done();
    let older = ALICE.writes(10_002).at(NOW - 2).done();
    stored(store, &winner).await;
    assert_eq!(save(store, &older).await, Outcome::Superseded);
    assert_eq!(save_at(store, &older, NOW + 1).await, Outcome::Stored);
    assert!(serves(store, &older).await);
}

pub(super) async fn a_closed_store_returns_an_error(store: &dyn EventStore) {
    let event = ALICE.writes(1).done();
    stored(store, &event).await;
    store.close().await.unwrap();
    store.close().await.unwrap();
    let now = time(NOW);
    assert!(matches!(
        store.save(vec![event], now).await,
        Err(StoreError::Closed)
    ));
    assert!(matches!(
        store.count(vec![Filter::new()], now).await,
        Err(StoreError::Closed)
    ));
    let inventory: Result<Inventory, _> = store.inventory(Filter::new(), now, 9).await;
    assert!(matches!(inventory, Err(StoreError::Closed)));
    let mut chunks = store.query(vec![Filter::new()], now);
    let first = futures_util::StreamExt::next(&mut chunks).await;
    assert!(matches!(first, Some(Err(StoreError::Closed))));
}
