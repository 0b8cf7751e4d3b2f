use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::RepoId;
use grasp_core::admission::{Outcome, Rejection, Retry};
use grasp_core::deletion::MAX_TARGETS;
use grasp_relay::store::EventStore;
use nostr::event::{Event, Kind};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;

use super::US;
use crate::store_events::*;

const DELETED: Outcome = Outcome::Refused {
    reason: Rejection::Deleted,
    retry: Retry::Never,
};
const VANISHED: Outcome = Outcome::Refused {
    reason: Rejection::Vanished,
    retry: Retry::Never,
};
const FOREIGN: Outcome = Outcome::Refused {
    reason: Rejection::ForeignDeletion,
    retry: Retry::Never,
};

fn named(author: Author, kind: u16, identifier: &str) -> String {
    format!("{kind}:{}:{identifier}", author.key())
}

async fn assert_deleted(store: &dyn EventStore, event: &Arc<Event>) {
    assert!(!serves(store, event).await);
    assert_eq!(save(store, event).await, DELETED);
    assert!(!serves(store, event).await);
}

pub(super) async fn own_events_are_deleted_by_id_and_refused(store: &dyn EventStore) {
    let events: Vec<_> = [1, 1621, 10_002, 30_617]
        .map(|kind| ALICE.writes(kind).tag("d", "x").tag("t", "y").done())
        .into();
    let spared = ALICE.writes(1).tag("t", "y").done();
    for event in events.iter().chain([&spared]) {
        stored(store, event).await;
    }
    let mut request = ALICE.writes(5);
    for event in &events {
        request = request.tag("e", event.id);
    }
    stored(store, &request.done()).await;
    assert_eq!(find(store, Filter::new().hashtag("y")).await, [spared.id]);
    for event in &events {
        assert_deleted(store, event).await;
    }
}

pub(super) async fn own_versions_are_deleted_up_to_the_request(store: &dyn EventStore) {
    for (kind, name) in [
        (30_617, named(ALICE, 30_617, "x:y")),
        (10_002, named(ALICE, 10_002, "")),
        (10_003, format!("10003:{}", ALICE.key())),
    ] {
        let version = |at| ALICE.writes(kind).at(at).tag("d", "x:y").done();
        stored(store, &version(100)).await;
        stored(store, &ALICE.writes(5).at(100).tag("a", &name).done()).await;
        assert_deleted(store, &version(100)).await;
        assert_deleted(store, &version(99)).await;
        stored(store, &version(101)).await;
        stored(
            store,
            &ALICE
                .writes(5)
                .at(100)
                .tag("a", &name)
                .tag("t", "again")
                .done(),
        )
        .await;
        assert!(serves(store, &version(101)).await);
    }
}

pub(super) async fn a_deletion_may_come_before_its_target(store: &dyn EventStore) {
    let note = ALICE.writes(1).done();
    let state = ALICE.writes(30_618).at(100).tag("d", "x").done();
    let request = ALICE
        .writes(5)
        .at(100)
        .tag("e", note.id)
        .tag("a", named(ALICE, 30_618, "x"));
    stored(store, &request.done()).await;
    assert_deleted(store, &note).await;
    assert_deleted(store, &state).await;
    stored(store, &ALICE.writes(30_618).at(101).tag("d", "x").done()).await;
    stored(store, &ALICE.writes(30_618).at(100).tag("d", "y").done()).await;
}

pub(super) async fn a_deletion_that_names_another_authors_event_is_refused(store: &dyn EventStore) {
    let mine = ALICE.writes(1).done();
    let theirs = BOB.writes(1).done();
    stored(store, &mine).await;
    stored(store, &theirs).await;
    let request = ALICE.writes(5).tag("e", mine.id).tag("e", theirs.id).done();
    assert_eq!(save(store, &request).await, FOREIGN);
    for served in [&mine, &theirs] {
        assert!(serves(store, served).await);
    }
    assert!(!serves(store, &request).await);
}

pub(super) async fn an_unknown_event_of_another_author_is_not_gated(store: &dyn EventStore) {
    let theirs = BOB.writes(1).done();
    stored(store, &ALICE.writes(5).tag("e", theirs.id).done()).await;
    stored(store, &theirs).await;
    assert!(serves(store, &theirs).await);
}

pub(super) async fn coordinates_of_other_authors_are_ignored(store: &dyn EventStore) {
    let mine = ALICE.writes(1621).done();
    let theirs = BOB.writes(30_617).tag("d", "x").done();
    stored(store, &mine).await;
    stored(store, &theirs).await;
    let request = ALICE
        .writes(5)
        .tag("e", mine.id)
        .tag("a", named(BOB, 30_617, "x"));
    stored(store, &request.done()).await;
    assert_deleted(store, &mine).await;
    assert!(serves(store, &theirs).await);
}

pub(super) async fn deletions_cannot_be_deleted(store: &dyn EventStore) {
    let note = ALICE.writes(1).done();
    let request = ALICE.writes(5).tag("e", note.id).done();
    stored(store, &request).await;
    stored(store, &ALICE.writes(5).tag("e", request.id).done()).await;
    assert!(serves(store, &request).await);
    assert_deleted(store, &note).await;

    let late = ALICE.writes(5).tag("t", "late").done();
    stored(store, &ALICE.writes(5).tag("e", late.id).done()).await;
    stored(store, &late).await;
}

pub(super) async fn requests_to_vanish_cannot_be_deleted(store: &dyn EventStore) {
    let vanish = ALICE.writes(62).at(100).tag("relay", "ALL_RELAYS").done();
    stored(store, &vanish).await;
    stored(store, &ALICE.writes(5).at(101).tag("e", vanish.id).done()).await;
    assert!(serves(store, &vanish).await);
    assert_eq!(save(store, &ALICE.writes(1).at(100).done()).await, VANISHED);
}

pub(super) async fn too_many_targets_are_refused(store: &dyn EventStore) {
    let naming = |count: u64| {
        let targets = (0..count).map(id);
        targets
            .fold(ALICE.writes(5), |draft, id| draft.tag("e", id))
            .done()
    };
    let max = MAX_TARGETS as u64;
    let note = ALICE.writes(1).id(max - 1).done();
    stored(store, &note).await;
    let refused = Rejection::TooManyTargets.into();
    assert_eq!(save(store, &naming(max + 1)).await, refused);
    assert!(serves(store, &note).await);
    stored(store, &naming(max)).await;
    assert_deleted(store, &note).await;
}

pub(super) async fn kept_versions_are_deleted_too(store: &dyn EventStore) {
    let version = |at| ALICE.writes(30_617).at(at).id(at).tag("d", "x").done();
    for at in [1, 2, 3, 4] {
        stored(store, &version(at)).await;
    }
    let kept = async || {
        let coordinate = Coordinate::new(Kind::from_u16(30_617), ALICE.key()).identifier("x");
        store.superseded(coordinate).await.unwrap().len()
    };
    stored(store, &ALICE.writes(5).tag("e", id(3)).done()).await;
    assert_eq!(kept().await, 2);
    assert_eq!(
        save(store, &BOB.writes(5).tag("e", id(2)).done()).await,
        FOREIGN
    );
    stored(
        store,
        &ALICE
            .writes(5)
            .at(2)
            .tag("a", named(ALICE, 30_617, "x"))
            .done(),
    )
    .await;
    assert_eq!(kept().await, 0);
    assert!(serves(store, &version(4)).await);
}

pub(super) async fn an_older_version_may_follow_a_deletion_by_id(store: &dyn EventStore) {
    let older = ALICE.writes(10_002).at(1).done();
    let newer = ALICE.writes(10_002).at(2).done();
    stored(store, &newer).await;
    stored(store, &ALICE.writes(5).tag("e", newer.id).done()).await;
    stored(store, &older).await;
    assert_deleted(store, &newer).await;
    assert!(serves(store, &older).await);
}

pub(super) async fn a_vanished_author_is_forgotten_up_to_the_request(store: &dyn EventStore) {
    let written: Vec<_> = [
        ALICE.writes(1).at(99).tag("t", "x"),
        ALICE.writes(1621).at(100),
        ALICE.writes(10_002).at(50),
        ALICE.writes(30_617).at(60).tag("d", "x"),
        ALICE.writes(5).at(70).tag("e", id(9)),
    ]
    .map(Draft::done)
    .into();
    let theirs = BOB.writes(1).at(99).done();
    for event in written.iter().chain([&theirs]) {
        stored(store, event).await;
    }
    let vanish = ALICE.writes(62).at(100).tag("relay", "ALL_RELAYS").done();
    stored(store, &vanish).await;
    assert_eq!(find(store, Filter::new()).await, [vanish.id, theirs.id]);
    for event in &written {
        assert_eq!(save(store, event).await, VANISHED);
    }
    // An older vanish request does not undo a newer one.
    stored(
        store,
        &ALICE.writes(62).at(40).tag("relay", "ALL_RELAYS").done(),
    )
    .await;
    assert_eq!(save(store, &written[0]).await, VANISHED);
}

pub(super) async fn later_events_of_a_vanished_author_are_accepted(store: &dyn EventStore) {
    let later = ALICE.writes(1).at(101).done();
    stored(store, &later).await;
    stored(
        store,
        &ALICE.writes(62).at(100).tag("relay", "ALL_RELAYS").done(),
    )
    .await;
    assert!(serves(store, &later).await);
    stored(store, &ALICE.writes(1).at(102).done()).await;
}

pub(super) async fn a_vanish_request_to_another_relay_has_no_effect(store: &dyn EventStore) {
    let note = ALICE.writes(1).at(99).done();
    stored(store, &note).await;
    let vanish = ALICE
        .writes(62)
        .at(100)
        .tag("relay", "wss://elsewhere.example")
        .done();
    stored(store, &vanish).await;
    assert!(serves(store, &note).await && serves(store, &vanish).await);
    stored(store, &ALICE.writes(1).at(98).done()).await;
}

pub(super) async fn a_vanish_request_to_our_address_has_the_effect_of_all_relays(
    store: &dyn EventStore,
) {
    let note = ALICE.writes(1).at(99).done();
    stored(store, &note).await;
    let vanish = ALICE.writes(62).at(100);
    let vanish = vanish
        .tag("relay", "wss://elsewhere.example")
        .tag("relay", format!("wss://{US}/"));
    stored(store, &vanish.done()).await;
    assert!(!serves(store, &note).await);
    assert_eq!(save(store, &note).await, VANISHED);
}

pub(super) async fn vanishing_removes_deletion_requests_and_their_gates(store: &dyn EventStore) {
    let later = ALICE.writes(1).at(200).done();
    stored(store, &ALICE.writes(5).at(99).tag("e", later.id).done()).await;
    assert_eq!(save(store, &later).await, DELETED);
    stored(
        store,
        &ALICE.writes(62).at(100).tag("relay", "ALL_RELAYS").done(),
    )
    .await;
    stored(store, &later).await;
}

pub(super) async fn vanishing_removes_kept_versions(store: &dyn EventStore) {
    for at in [98, 99, 101] {
        stored(store, &ALICE.writes(30_617).at(at).tag("d", "x").done()).await;
    }
    stored(
        store,
        &ALICE.writes(62).at(100).tag("relay", "ALL_RELAYS").done(),
    )
    .await;
    let coordinate = Coordinate::new(Kind::from_u16(30_617), ALICE.key()).identifier("x");
    assert!(store.superseded(coordinate).await.unwrap().is_empty());
    assert_eq!(find(store, Filter::new()).await.len(), 2);
}

pub(super) async fn a_refusal_can_be_queried_before_saving(store: &dyn EventStore) {
    let note = ALICE.writes(1).done();
    let theirs = BOB.writes(1).at(99).done();
    let vanished = Author(3).writes(1).at(50).done();
    let request = ALICE.writes(5).tag("e", note.id).done();
    for event in [
        &request,
        &theirs,
        &Author(3)
            .writes(62)
            .at(50)
            .tag("relay", "ALL_RELAYS")
            .done(),
    ] {
        stored(store, event).await;
    }
    let before = find(store, Filter::new()).await;
    let foreign = ALICE.writes(5).tag("e", theirs.id).done();
    for (event, refusal) in [
        (note, Some(Rejection::Deleted)),
        (vanished, Some(Rejection::Vanished)),
        (foreign, Some(Rejection::ForeignDeletion)),
        (ALICE.writes(20_001).done(), Some(Rejection::NeverStored)),
        (
            ALICE.writes(1).tag("expiration", NOW).done(),
            Some(Rejection::Expired),
        ),
        (ALICE.writes(1).at(3).done(), None),
        (theirs, None),
        (request, None),
    ] {
        assert_eq!(store.refusal(event, time(NOW)).await.unwrap(), refusal);
    }
    assert_eq!(find(store, Filter::new()).await, before);
}

pub(super) async fn a_request_reports_the_repositories_that_lost_events(store: &dyn EventStore) {
    let of = |author: Author, name: &str| RepoId::new(author.key(), name.parse().unwrap());
    let to = |name: &str| of(ALICE, name).to_string();
    let by_bob = of(BOB, "z").to_string();
    let proposal = ALICE
        .writes(1618)
        .tag("a", to("y"))
        .tag("a", by_bob)
        .tag("c", "1".repeat(40));
    let (announced, proposal) = (
        ALICE.writes(30_617).at(NOW - 2).tag("d", "x").done(),
        proposal.done(),
    );
    let same_name = BOB.writes(30_617).tag("d", "x").done();
    let issue = ALICE.writes(1621).tag("a", to("w")).done();
    for event in [&announced, &proposal, &issue, &same_name] {
        stored(store, event).await;
    }
    let affected = async |request: Arc<Event>| {
        let commit = store.save_events(vec![request], time(NOW)).await.unwrap();
        assert_eq!(commit.saved, [Outcome::Stored]);
        (commit.affected, commit.removed)
    };
    // A replacement reports nothing.
    let none = (BTreeSet::new(), BTreeSet::new());
    let replacement = ALICE.writes(30_617).tag("d", "x").done();
    assert_eq!(affected(Arc::clone(&replacement)).await, none);
    let own = BTreeSet::from([of(ALICE, "x")]);
    assert_eq!(
        affected(ALICE.writes(5).tag("a", to("x")).done()).await,
        (own, BTreeSet::from([replacement.id]))
    );
    assert_eq!(
        affected(ALICE.writes(5).tag("e", announced.id).done()).await,
        none
    );
    // Those that it names, and its author's of the same names.
    let named = BTreeSet::from([of(ALICE, "y"), of(ALICE, "z"), of(BOB, "z")]);
    let vanish = ALICE.writes(62).at(NOW).tag("relay", "ALL_RELAYS").done();
    let (affected, removed) = affected(vanish).await;
    assert_eq!(affected, named);
    // Her deletion requests go too, but not what is Bob's.
    assert!(removed.is_superset(&BTreeSet::from([proposal.id, issue.id])));
    assert!(!removed.contains(&same_name.id));
}
