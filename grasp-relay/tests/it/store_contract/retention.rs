use std::sync::Arc;

use grasp_core::admission::{Outcome, Presence, Rejection, Retry};
use grasp_relay::store::EventStore;
use nostr::event::Event;
use nostr::filter::Filter;

use crate::store_events::*;

const DELETED: Outcome = Outcome::Refused {
    reason: Rejection::Deleted,
    retry: Retry::Never,
};
const SERVED_SECS: u64 = 30 * DAY;
const GATED_SECS: u64 = 180 * DAY;

/// Stores a deletion request for a note that has not arrived, and returns both.
async fn request(store: &dyn EventStore) -> (Arc<Event>, Arc<Event>) {
    let note = ALICE.writes(1).done();
    let request = ALICE.writes(5).tag("e", note.id).done();
    stored(store, &request).await;
    (request, note)
}

async fn swept(store: &dyn EventStore, now: u64) -> u64 {
    store.sweep(time(now)).await.unwrap().events
}

pub(super) async fn an_unused_deletion_request_is_served_for_its_term_only(store: &dyn EventStore) {
    let (request, _) = request(store).await;
    assert_eq!(swept(store, NOW + SERVED_SECS - 1).await, 0);
    assert!(serves(store, &request).await);
    assert_eq!(swept(store, NOW + SERVED_SECS).await, 1);
    assert!(!serves(store, &request).await);
}

pub(super) async fn the_targets_of_a_retired_request_stay_refused(store: &dyn EventStore) {
    let (_, note) = request(store).await;
    let end = NOW + SERVED_SECS + GATED_SECS;
    swept(store, end - 1).await;
    assert_eq!(save_at(store, &note, end - 1).await, DELETED);
}

pub(super) async fn a_forgotten_request_gates_nothing(store: &dyn EventStore) {
    let (request, note) = request(store).await;
    let end = NOW + SERVED_SECS + GATED_SECS;
    swept(store, end).await;
    assert_eq!(save_at(store, &note, end).await, Outcome::Stored);
    assert_eq!(save_at(store, &request, end).await, Outcome::Stored);
    assert!(!serves(store, &note).await);
}

pub(super) async fn the_term_of_a_request_that_was_used_begins_again(store: &dyn EventStore) {
    let (request, note) = request(store).await;
    let used = NOW + SERVED_SECS - DAY;
    assert_eq!(save_at(store, &note, used).await, DELETED);
    assert_eq!(swept(store, used + SERVED_SECS - 1).await, 0);
    assert!(serves(store, &request).await);
    assert_eq!(swept(store, used + SERVED_SECS).await, 1);

    let used = used + SERVED_SECS + GATED_SECS - 1;
    assert_eq!(save_at(store, &note, used).await, DELETED);
    let end = used + SERVED_SECS + GATED_SECS;
    swept(store, end - 1).await;
    assert_eq!(
        store
            .refusal(Arc::clone(&note), time(end - 1))
            .await
            .unwrap(),
        Some(Rejection::Deleted)
    );
}

pub(super) async fn querying_a_refusal_counts_as_use(store: &dyn EventStore) {
    let (request, note) = request(store).await;
    let asked = NOW + SERVED_SECS - DAY;
    let refusal = store.refusal(note, time(asked)).await.unwrap();
    assert_eq!(refusal, Some(Rejection::Deleted));
    assert_eq!(swept(store, asked + SERVED_SECS - 1).await, 0);
    assert!(serves(store, &request).await);
}

pub(super) async fn a_retired_request_is_still_known(store: &dyn EventStore) {
    let (request, _) = request(store).await;
    let later = NOW + SERVED_SECS;
    swept(store, later).await;
    assert_eq!(
        save_at(store, &request, later).await,
        Outcome::Duplicate(Presence::Stored)
    );
    assert!(find(store, Filter::new()).await.is_empty());
}

pub(super) async fn the_term_begins_with_the_receipt_and_not_the_date_of_the_request(
    store: &dyn EventStore,
) {
    let old = ALICE.writes(5).at(1).tag("e", id(1)).done();
    stored(store, &old).await;
    assert_eq!(swept(store, NOW + SERVED_SECS - 1).await, 0);
    assert!(serves(store, &old).await);
}

pub(super) async fn a_removed_request_still_gates_and_may_come_back(store: &dyn EventStore) {
    let (request, note) = request(store).await;
    assert_eq!(store.remove(vec![request.id]).await.unwrap(), 1);
    assert_eq!(save(store, &note).await, DELETED);
    stored(store, &request).await;
    assert!(serves(store, &request).await);
}

pub(super) async fn of_several_equal_requests_one_is_marked_as_used(store: &dyn EventStore) {
    let note = ALICE.writes(30_023).tag("d", "x").at(NOW - 9).done();
    let coordinate = format!("30023:{}:x", ALICE.key());
    let mut requests = Vec::new();
    for (age, name, target) in [
        (8, "a", coordinate.clone()),
        (2, "a", coordinate.clone()),
        (5, "a", coordinate.clone()),
        (7, "e", note.id.to_hex()),
        (6, "e", note.id.to_hex()),
    ] {
        let request = ALICE.writes(5).at(NOW - age).tag(name, target).done();
        stored(store, &request).await;
        requests.push(request);
    }
    assert_eq!(
        save_at(store, &note, NOW + SERVED_SECS - DAY).await,
        DELETED
    );
    swept(store, NOW + SERVED_SECS).await;
    let mut left = Vec::new();
    for request in &requests {
        left.push(serves(store, request).await);
    }
    assert_eq!(left, [false, false, false, false, true]);
    // The others gate nothing any more, but the target is refused as long as one of them would have refused it.
    let end = NOW + SERVED_SECS - DAY + SERVED_SECS + GATED_SECS;
    swept(store, end - 1).await;
    assert_eq!(save_at(store, &note, end - 1).await, DELETED);
}
