//! Adapters between [`EventStore`] and the trait `NostrDatabase` of the `nostr-database` crate, in both directions.
//!
//! [`SqliteStore`] implements [`NostrDatabase`], so that other projects can use it.
//! [`DatabaseStore`] runs this server on any other such database; the features `nostr-sqlite` and `nostr-lmdb` add
//! two of them.
//!
//! The trait has no batches, streams, kept versions, sweeping or clock, and the databases differ in deletion. The
//! consequences are listed in `tests/it/store_contract/faults.rs`, which the contract suite compares with what it
//! finds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use grasp_core::admission::is_expired;
use grasp_core::deletion::DeletionRequest;
use grasp_core::{Identifier, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use nostr_database::error::Error;
use nostr_database::{
    DatabaseEventStatus, Features, NostrDatabase, RejectedReason, SaveEventStatus,
};

#[cfg(any(feature = "nostr-lmdb", feature = "nostr-sqlite"))]
use super::StoreRules;
use super::sqlite::SqliteStore;
use super::{
    Commit, EventChunks, EventStore, Inventory, REPOSITORY_KINDS, Refusal, Saved, StoreError,
    StoreFuture, StoredEvent, matches_nothing, repository_names,
};

/// Events per chunk of a query.
const CHUNK: usize = 500;

/// The limit that means "all": one of the databases takes no limit for a limit of 10,000.
const NO_LIMIT: usize = u32::MAX as usize;

/// An [`EventStore`] on any [`NostrDatabase`].
///
/// Queries before and filters after each call make it as correct as that allows. Answers are held in memory as a
/// whole, and a batch is saved event by event.
#[derive(Debug)]
pub struct DatabaseStore<D> {
    inner: Arc<Inner<D>>,
}

#[derive(Debug)]
struct Inner<D> {
    database: D,
    closed: AtomicBool,
}

/// The database rejected an event without a reason that [`Saved`] has.
#[derive(Debug, thiserror::Error)]
#[error("the database refused an event: {0:?}")]
struct Unexplained(RejectedReason);

impl<D: NostrDatabase> DatabaseStore<D> {
    /// Wraps a database.
    pub fn new(database: D) -> Self {
        let inner = Inner { database, closed: AtomicBool::new(false) };
        Self { inner: Arc::new(inner) }
    }
}

impl<D: NostrDatabase> EventStore for DatabaseStore<D> {
    fn commit(&self, events: Vec<Arc<Event>>, now: Timestamp) -> StoreFuture<'_, Commit> {
        Box::pin(async move {
            let mut commit = Commit::default();
            for event in events {
                // The databases do not report what a request deleted, and afterwards it is gone.
                let targets = self.inner.names_behind(&event, now).await?;
                let saved = self.inner.save(&event, now).await?;
                if saved == Saved::Stored {
                    commit.affected.extend(targets);
                }
                commit.saved.push(saved);
            }
            Ok(commit)
        })
    }

    fn refusals(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<Option<Refusal>>> {
        Box::pin(async move {
            let mut refusals = Vec::with_capacity(events.len());
            for event in events {
                refusals.push(self.inner.refusal(&event, now).await?);
            }
            Ok(refusals)
        })
    }

    fn query(&self, filters: Vec<Filter>, now: Timestamp) -> EventChunks {
        let inner = Arc::clone(&self.inner);
        let found = async move { inner.find(filters, now).await };
        stream::once(found)
            .flat_map(|found| {
                let chunks = match found {
                    Ok(events) => chunks(events),
                    Err(error) => vec![Err(error)],
                };
                stream::iter(chunks)
            })
            .boxed()
    }

    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move { Ok(self.inner.find(filters, now).await?.len() as u64) })
    }

    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory> {
        Box::pin(async move {
            let found = self.inner.find(vec![filter], now).await?;
            if found.len() > max {
                return Ok(Inventory::TooMany);
            }
            let items = found.iter().map(|event| (event.created_at, event.id));
            Ok(Inventory::Complete(items.collect::<BTreeSet<_>>().into_iter().collect()))
        })
    }

    fn superseded(&self, _: Coordinate) -> StoreFuture<'_, Vec<Event>> {
        Box::pin(async { self.inner.open().map(|_| Vec::new()) })
    }

    fn remove(&self, ids: Vec<EventId>) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            let database = self.inner.open()?;
            // The databases would take an empty list for "everything".
            if ids.is_empty() {
                return Ok(0);
            }
            let named = Filter::new().ids(ids).limit(NO_LIMIT);
            let removed = database.query(named.clone()).await.map_err(failure)?;
            database.delete(named).await.map_err(failure)?;
            Ok(removed.len() as u64)
        })
    }

    fn sweep(&self, _: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async { self.inner.open().map(|_| 0) })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.closed.store(true, Ordering::SeqCst);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl<D: NostrDatabase> Inner<D> {
    fn open(&self) -> Result<&D, StoreError> {
        match self.closed.load(Ordering::SeqCst) {
            true => Err(StoreError::Closed),
            false => Ok(&self.database),
        }
    }

    async fn save(&self, event: &Event, now: Timestamp) -> Result<Saved, StoreError> {
        let database = self.open()?;
        if let Some(refusal) = refusal_by_itself(event, now) {
            return Ok(Saved::Refused(refusal));
        }
        let status = database.save_event(event).await.map_err(failure)?;
        let SaveEventStatus::Rejected(reason) = status else {
            return Ok(Saved::Stored);
        };
        match reason {
            RejectedReason::Duplicate => Ok(Saved::Duplicate),
            RejectedReason::Replaced => Ok(Saved::Superseded),
            RejectedReason::Ephemeral => Ok(Saved::Refused(Refusal::Ephemeral)),
            RejectedReason::Deleted => Ok(Saved::Refused(Refusal::Deleted)),
            RejectedReason::Expired => Ok(Saved::Refused(Refusal::Expired)),
            RejectedReason::Vanished => Ok(Saved::Refused(Refusal::Vanished)),
            RejectedReason::InvalidDelete => Ok(Saved::Refused(Refusal::ForeignDeletion)),
            RejectedReason::Other => Err(StoreError::Engine(Box::new(Unexplained(reason)))),
        }
    }

    async fn refusal(&self, event: &Event, now: Timestamp) -> Result<Option<Refusal>, StoreError> {
        let database = self.open()?;
        if let Some(refusal) = refusal_by_itself(event, now) {
            return Ok(Some(refusal));
        }
        match database.check_id(&event.id).await.map_err(failure)? {
            DatabaseEventStatus::Saved => return Ok(None),
            DatabaseEventStatus::Deleted => return Ok(Some(Refusal::Deleted)),
            DatabaseEventStatus::NotExistent => {}
        }
        let targets = match event.kind {
            Kind::EventDeletion => DeletionRequest::parse(event).unwrap_or_default().ids,
            _ => BTreeSet::new(),
        };
        let named = self.find(vec![Filter::new().ids(targets)], now).await?;
        let foreign = named.iter().any(|target| target.pubkey != event.pubkey);
        Ok(foreign.then_some(Refusal::ForeignDeletion))
    }

    /// Returns the names of repositories whose announcements, states or pull requests a request to delete or to
    /// vanish names.
    async fn names_behind(
        &self,
        request: &Event,
        now: Timestamp,
    ) -> Result<BTreeSet<Identifier>, StoreError> {
        let theirs = Filter::new().kinds(REPOSITORY_KINDS).author(request.pubkey);
        let filters = if request.kind == kinds::VANISH {
            vec![theirs.until(request.created_at)]
        } else if request.kind == kinds::DELETION {
            let DeletionRequest { ids, coordinates } =
                DeletionRequest::parse(request).unwrap_or_default();
            let names = coordinates.into_iter().map(|coordinate| coordinate.identifier);
            // May return a few names too many, which is harmless. An empty list matches nothing.
            vec![theirs.clone().identifiers(names), theirs.ids(ids)]
        } else {
            return Ok(BTreeSet::new());
        };
        Ok(self.find(filters, now).await?.iter().flat_map(repository_names).collect())
    }

    /// Returns the unexpired events that the filters match, in serving order.
    async fn find(
        &self,
        filters: Vec<Filter>,
        now: Timestamp,
    ) -> Result<BTreeSet<Event>, StoreError> {
        self.open()?;
        let mut found = BTreeSet::new();
        for filter in filters {
            found.extend(self.find_one(filter, now).await?);
        }
        Ok(found)
    }

    async fn find_one(&self, filter: Filter, now: Timestamp) -> Result<Vec<Event>, StoreError> {
        // The databases would take an empty list for "everything".
        if matches_nothing(&filter) {
            return Ok(Vec::new());
        }
        let wanted = filter.limit.unwrap_or(NO_LIMIT).min(NO_LIMIT);
        let mut asked = wanted;
        loop {
            let query = filter.clone().limit(asked);
            let mut found = self.database.query(query).await.map_err(failure)?;
            let whole = found.len() < asked;
            found.retain(|event| !is_expired(event, now));
            if whole || found.len() >= wanted || asked >= NO_LIMIT {
                return Ok(found.into_iter().take(wanted).collect());
            }
            // Expired events were counted against the limit.
            asked = asked.saturating_mul(2).min(NO_LIMIT);
        }
    }
}

/// Returns the reason to refuse an event that does not depend on the database.
fn refusal_by_itself(event: &Event, now: Timestamp) -> Option<Refusal> {
    if event.kind.is_ephemeral() {
        Some(Refusal::Ephemeral)
    } else if is_expired(event, now) {
        Some(Refusal::Expired)
    } else if event.kind == Kind::EventDeletion && DeletionRequest::parse(event).is_err() {
        Some(Refusal::TooManyTargets)
    } else {
        None
    }
}

fn chunks(events: BTreeSet<Event>) -> Vec<Result<Vec<StoredEvent>, StoreError>> {
    let stored = |event: &Event| StoredEvent {
        id: event.id,
        created_at: event.created_at,
        json: event.as_json().into(),
    };
    let events: Vec<Event> = events.into_iter().collect();
    let chunks = events.chunks(CHUNK);
    chunks.map(|chunk| Ok(chunk.iter().map(stored).collect())).collect()
}

fn failure(error: nostr_database::error::Error) -> StoreError {
    StoreError::Engine(Box::new(error))
}

/// Opens a `nostr-sqlite` file. It knows this service's address with `wss` only.
#[cfg(feature = "nostr-sqlite")]
pub async fn open_nostr_sqlite(
    path: &std::path::Path,
    rules: &StoreRules,
) -> Result<DatabaseStore<nostr_sqlite::store::NostrSqlite>, StoreError> {
    let mut builder = nostr_sqlite::store::NostrSqlite::builder().in_file(path);
    if let Some(us) = relay_url(rules) {
        builder = builder.relay_url(us);
    }
    let database = builder.build().await.map_err(failure)?;
    Ok(DatabaseStore::new(database))
}

/// Opens a `nostr-lmdb` directory. It knows this service's address with `wss` only.
#[cfg(feature = "nostr-lmdb")]
pub async fn open_nostr_lmdb(
    dir: &std::path::Path,
    rules: &StoreRules,
) -> Result<DatabaseStore<nostr_lmdb::NostrLmdb>, StoreError> {
    let mut builder = nostr_lmdb::NostrLmdb::builder(dir);
    if let Some(us) = relay_url(rules) {
        builder = builder.relay_url(us);
    }
    let database = builder.build().await.map_err(failure)?;
    Ok(DatabaseStore::new(database))
}

#[cfg(any(feature = "nostr-lmdb", feature = "nostr-sqlite"))]
/// Returns this service's address in the databases' type.
fn relay_url(rules: &StoreRules) -> Option<nostr::types::RelayUrl> {
    let ours = rules.service.as_ref()?.relay_url(true).ok()?;
    nostr::types::RelayUrl::parse(ours.as_str()).ok()
}

/// Keeps the rules of [`EventStore`] where the two traits differ: an empty list in a filter matches nothing, expired
/// events are not served, and deletion is stricter.
///
/// An id whose event is not stored is always [`NotExistent`](DatabaseEventStatus::NotExistent), even if a deletion
/// request names it: only the event itself shows whether that request was its author's, so only saving it does.
///
/// ```
/// use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind};
/// use nostr::filter::Filter;
/// use nostr::key::Keys;
/// use nostr_database::NostrDatabase;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let dir = tempfile::tempdir().unwrap();
/// let database: &dyn NostrDatabase =
///     &SqliteStore::open(&dir.path().join("events.db"), SqliteOptions::default()).unwrap();
/// let note = EventBuilder::new(Kind::TextNote, "hello").finalize(&Keys::generate()).unwrap();
/// assert!(database.save_event(&note).await.unwrap().is_success());
/// assert_eq!(database.query(Filter::new().id(note.id)).await.unwrap().first(), Some(&note));
/// # });
/// ```
impl NostrDatabase for SqliteStore {
    fn backend(&self) -> &'static str {
        "grasp"
    }

    fn features(&self) -> Features {
        Features {
            persistent: true,
            event_expiration: true,
            full_text_search: false,
            request_to_vanish: true,
        }
    }

    fn save_event<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Result<SaveEventStatus, Error>> {
        Box::pin(async move {
            let event = Arc::new(event.clone());
            let saved = self.save(vec![event], Timestamp::now()).await;
            let saved = saved.map_err(Error::storage)?;
            let status = saved.first().copied().map_or(SaveEventStatus::Success, status);
            Ok(status)
        })
    }

    fn check_id<'a>(
        &'a self,
        event_id: &'a EventId,
    ) -> BoxFuture<'a, Result<DatabaseEventStatus, Error>> {
        Box::pin(async move {
            let found = NostrDatabase::count(self, Filter::new().id(*event_id)).await?;
            Ok(match found {
                0 => DatabaseEventStatus::NotExistent,
                _ => DatabaseEventStatus::Saved,
            })
        })
    }

    fn event_by_id<'a>(
        &'a self,
        event_id: &'a EventId,
    ) -> BoxFuture<'a, Result<Option<Event>, Error>> {
        Box::pin(async move {
            let found = NostrDatabase::query(self, Filter::new().id(*event_id)).await?;
            Ok(found.into_iter().next())
        })
    }

    fn count(&self, filter: Filter) -> BoxFuture<'_, Result<usize, Error>> {
        Box::pin(async move {
            let count = EventStore::count(self, vec![filter], Timestamp::now()).await;
            let count = count.map_err(Error::storage)?;
            Ok(usize::try_from(count).unwrap_or(usize::MAX))
        })
    }

    fn query(&self, filter: Filter) -> BoxFuture<'_, Result<BTreeSet<Event>, Error>> {
        Box::pin(async move {
            let mut found = BTreeSet::new();
            let mut chunks = EventStore::query(self, vec![filter], Timestamp::now());
            while let Some(chunk) = chunks.next().await {
                for stored in chunk.map_err(Error::storage)? {
                    found.insert(Event::from_json(stored.json.as_bytes())?);
                }
            }
            Ok(found)
        })
    }

    fn negentropy_items(
        &self,
        filter: Filter,
    ) -> BoxFuture<'_, Result<Vec<(EventId, Timestamp)>, Error>> {
        Box::pin(async move { items(self, filter).await })
    }

    fn delete(&self, filter: Filter) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let items = items(self, filter).await?;
            let ids = items.into_iter().map(|(id, _)| id).collect();
            self.remove(ids).await.map(drop).map_err(Error::storage)
        })
    }

    fn wipe(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.forget_everything().await.map_err(Error::storage) })
    }
}

async fn items(store: &SqliteStore, filter: Filter) -> Result<Vec<(EventId, Timestamp)>, Error> {
    let inventory = store.inventory(filter, Timestamp::now(), usize::MAX).await;
    Ok(match inventory.map_err(Error::storage)? {
        Inventory::Complete(items) => items.into_iter().map(|(at, id)| (id, at)).collect(),
        Inventory::TooMany => Vec::new(),
    })
}

fn status(saved: Saved) -> SaveEventStatus {
    let reason = match saved {
        Saved::Stored => return SaveEventStatus::Success,
        Saved::Duplicate => RejectedReason::Duplicate,
        Saved::Superseded => RejectedReason::Replaced,
        Saved::Refused(refusal) => match refusal {
            Refusal::Deleted => RejectedReason::Deleted,
            Refusal::Vanished => RejectedReason::Vanished,
            Refusal::Expired => RejectedReason::Expired,
            Refusal::ForeignDeletion => RejectedReason::InvalidDelete,
            Refusal::Ephemeral => RejectedReason::Ephemeral,
            Refusal::TooManyTargets => RejectedReason::Other,
        },
    };
    SaveEventStatus::Rejected(reason)
}
