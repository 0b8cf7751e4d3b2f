//! Other databases under the contract: they fail exactly where it is written that they do.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use futures_util::future::BoxFuture;
use grasp_relay::store::EventStore;
use grasp_relay::store::adapter::DatabaseStore;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};

use crate::store_contract::faults::KNOWN_FAULTS;
use crate::store_contract::{RULES, block_on, rules};

type Open = for<'p> fn(&'p Path) -> BoxFuture<'p, Box<dyn EventStore>>;

fn fails_exactly_where_listed(database: &str, open: Open) {
    let broken = |(rule, run): &(&'static str, crate::store_contract::Rule)| {
        let dir = tempfile::tempdir().unwrap();
        let kept = catch_unwind(AssertUnwindSafe(|| {
            block_on(async {
                let store = open(dir.path()).await;
                run(store.as_ref()).await;
            });
        }));
        kept.err().map(|_| *rule)
    };
    let found: BTreeSet<_> = RULES.iter().filter_map(broken).collect();
    let listed = KNOWN_FAULTS.iter().filter(|fault| fault.concerns(database));
    let listed: BTreeSet<_> = listed.map(|fault| fault.rule).collect();
    let unlisted: Vec<_> = found.difference(&listed).collect();
    let mended: Vec<_> = listed.difference(&found).collect();
    assert!(unlisted.is_empty() && mended.is_empty(), "unlisted: {unlisted:?}, mended: {mended:?}");
}

#[test]
fn every_listed_fault_is_about_a_rule() {
    for fault in KNOWN_FAULTS {
        assert!(RULES.iter().any(|(rule, _)| *rule == fault.rule), "{}", fault.rule);
        assert!(!fault.effect.is_empty(), "{}", fault.rule);
    }
}

#[test]
fn our_store_behind_the_trait_fails_only_for_what_the_trait_cannot_say() {
    fails_exactly_where_listed("grasp", |dir| {
        Box::pin(async move {
            let options = SqliteOptions { rules: rules(), ..SqliteOptions::default() };
            let store = SqliteStore::open(&dir.join("events.db"), options).unwrap();
            Box::new(DatabaseStore::new(store)) as Box<dyn EventStore>
        })
    });
}

#[cfg(feature = "nostr-sqlite")]
#[test]
fn nostr_sqlite_fails_where_listed() {
    fails_exactly_where_listed("nostr-sqlite", |dir| {
        Box::pin(async move {
            let path = dir.join("events.db");
            let store = grasp_relay::store::adapter::open_nostr_sqlite(&path, &rules()).await;
            Box::new(store.unwrap()) as Box<dyn EventStore>
        })
    });
}

#[cfg(feature = "nostr-lmdb")]
#[test]
fn nostr_lmdb_fails_where_listed() {
    fails_exactly_where_listed("nostr-lmdb", |dir| {
        Box::pin(async move {
            let store = grasp_relay::store::adapter::open_nostr_lmdb(dir, &rules()).await;
            Box::new(store.unwrap()) as Box<dyn EventStore>
        })
    });
}
