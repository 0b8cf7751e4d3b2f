//! The databases that are measured.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
#[cfg(feature = "postgres")]
use grasp_relay::store::postgres::{PostgresOptions, PostgresStore};
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, Inventory};
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::types::Timestamp;

/// The operations of a database that are measured.
pub(crate) trait BenchDatabase: Send + Sync {
    /// Saves a batch durably, in the fastest way that the database has.
    fn save(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, ()>;
    /// Reads events, and returns their number.
    fn query(&self, filter: Filter) -> BoxFuture<'_, usize>;
    /// Reads the items that reconciliation needs, and returns their number.
    fn inventory(&self, filter: Filter) -> BoxFuture<'_, usize>;
    /// Closes the database, so that its files have their final size.
    fn close(&self) -> BoxFuture<'_, ()>;
}

pub(crate) type Open = fn(PathBuf, Timestamp) -> BoxFuture<'static, Arc<dyn BenchDatabase>>;

pub(crate) const ALL: &[(&str, Open)] = &[
    ("grasp", |dir, now| {
        Box::pin(async move {
            let store = SqliteStore::open(&dir.join("events.db"), SqliteOptions::default());
            Arc::new(Ours {
                store: store.unwrap(),
                now,
            }) as Arc<dyn BenchDatabase>
        })
    }),
    #[cfg(feature = "postgres")]
    ("grasp on PostgreSQL", |dir, now| {
        Box::pin(async move {
            // The server runs as another user.
            let open = || std::os::unix::fs::PermissionsExt::from_mode(0o755);
            let parents = dir.ancestors().take(2);
            parents.for_each(|dir| std::fs::set_permissions(dir, open()).unwrap());
            let server = crate::postgres::Postgres::durable_in(&dir).unwrap();
            let url = server.database();
            let store = PostgresStore::connect(&url, PostgresOptions::default());
            let store = store.await.unwrap();
            let _ = store.claim_lease("bench").await.unwrap();
            // It is stopped when this process ends.
            std::mem::forget(server);
            Arc::new(Ours { store, now }) as Arc<dyn BenchDatabase>
        })
    }),
    ("nostr-sqlite", |dir, _| {
        Box::pin(async move {
            let database =
                nostr_sqlite::store::NostrSqlite::builder().in_file(dir.join("events.db"));
            Arc::new(Theirs(database.build().await.unwrap())) as Arc<dyn BenchDatabase>
        })
    }),
    ("nostr-lmdb", |dir, _| {
        Box::pin(async move {
            let database = nostr_lmdb::NostrLmdb::open(dir).await;
            Arc::new(Theirs(database.unwrap())) as Arc<dyn BenchDatabase>
        })
    }),
];

struct Ours<S> {
    store: S,
    now: Timestamp,
}

impl<S: EventStore> BenchDatabase for Ours<S> {
    fn save(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, ()> {
        Box::pin(async { drop(self.store.save(events, self.now).await.unwrap()) })
    }

    fn query(&self, filter: Filter) -> BoxFuture<'_, usize> {
        Box::pin(async {
            let chunks = self.store.query(vec![filter], self.now);
            chunks
                .fold(0, async |sum, chunk| sum + chunk.unwrap().len())
                .await
        })
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, usize> {
        Box::pin(async {
            match self
                .store
                .inventory(filter, self.now, usize::MAX)
                .await
                .unwrap()
            {
                Inventory::Complete(items) => items.len(),
                Inventory::TooMany => 0,
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.store.close().await.unwrap() })
    }
}

/// A database of the ecosystem.
struct Theirs<D>(D);

impl<D: nostr_database::NostrDatabase> BenchDatabase for Theirs<D> {
    /// Saves with 64 calls at a time, which was the fastest.
    fn save(&self, events: Vec<Arc<Event>>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let saves = events
                .into_iter()
                .map(|event| async move { self.0.save_event(&event).await });
            let saves = futures_util::stream::iter(saves).buffer_unordered(64);
            let mut saves = std::pin::pin!(saves);
            while let Some(saved) = saves.next().await {
                saved.unwrap();
            }
        })
    }

    fn query(&self, filter: Filter) -> BoxFuture<'_, usize> {
        Box::pin(async { self.0.query(filter).await.unwrap().len() })
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, usize> {
        // Without a limit one of them silently stops at 10,000.
        let filter = filter.limit(10_000_000);
        Box::pin(async { self.0.negentropy_items(filter).await.unwrap().len() })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
