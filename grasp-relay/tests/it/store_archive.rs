//! A store that does not carry out deletions, in every database.

use futures_util::future::BoxFuture;
use grasp_core::admission::Outcome;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, StoreRules};
use nostr::filter::Filter;
use nostr::types::Timestamp;

use crate::store_contract::block_on;
use crate::store_events::*;

const DAY: u64 = 24 * 60 * 60;

fn rules() -> StoreRules {
    StoreRules {
        ignores_deletions: true,
        ..crate::store_contract::rules()
    }
}

fn requests_are_stored_for_a_while_and_not_carried_out(
    store: &dyn EventStore,
) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        let note = ALICE.writes(1).id(1).at(NOW - 10).done();
        let late = ALICE.writes(1).id(2).at(NOW - 9).done();
        stored(store, &note).await;
        let deletion = ALICE
            .writes(5)
            .id(3)
            .tag("e", note.id)
            .tag("e", late.id)
            .done();
        stored(store, &deletion).await;
        let vanish = ALICE.writes(62).id(4).tag("relay", "ALL_RELAYS").done();
        stored(store, &vanish).await;
        stored(store, &late).await;
        let mut served = find(store, Filter::new()).await;
        served.sort();
        let mut all = vec![note.id, late.id, deletion.id, vanish.id];
        all.sort();
        assert_eq!(served, all);
        // A request that does nothing is served as long as any that was not used.
        let later = Timestamp::from_secs(NOW + 31 * DAY);
        store.sweep(later).await.unwrap();
        let again = store.save(vec![deletion.clone()], later).await.unwrap();
        assert!(matches!(again[..], [Outcome::Duplicate(_)]), "{again:?}");
        assert!(!find(store, Filter::new()).await.contains(&deletion.id));
        assert!(find(store, Filter::new()).await.contains(&note.id));
    })
}

#[test]
fn sqlite_ignores_deletions_if_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        rules: rules(),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&dir.path().join("events.db"), options).unwrap();
    block_on(requests_are_stored_for_a_while_and_not_carried_out(&store));
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_ignores_deletions_if_told_to() {
    use grasp_relay::store::postgres::{PostgresOptions, PostgresStore};

    let Some(server) = crate::support::postgres::Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let options = PostgresOptions {
            rules: rules(),
            ..PostgresOptions::default()
        };
        let store = PostgresStore::connect(&url, options).await.unwrap();
        let _ = store.claim_lease("a").await.unwrap();
        requests_are_stored_for_a_while_and_not_carried_out(&store).await;
    });
}
