//! Both ways between our stores and the ecosystem's: `nostr-database`'s trait.
//!
//! [`SqliteStore`](super::sqlite::SqliteStore) implements [`NostrDatabase`], so that other projects can use it.
//! [`DatabaseStore`] runs this server on any other such database; the features `nostr-sqlite` and `nostr-lmdb` bring
//! two of them along.
//!
//! The trait has no word for batches, streams, kept versions, sweeping or the time of day, and the databases have
//! views of their own on deletion. What that costs is listed in `tests/it/store_contract/faults.rs`, which the contract
//! suite holds to be neither more nor less than the truth.

#[cfg(any(feature = "nostr-lmdb", feature = "nostr-sqlite"))]
mod backends;
mod export;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use grasp_core::admission::is_expired;
use grasp_core::deletion::DeletionRequest;
use grasp_core::{Identifier, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use nostr_database::{DatabaseEventStatus, NostrDatabase, RejectedReason, SaveEventStatus};

#[cfg(feature = "nostr-lmdb")]
pub use self::backends::open_nostr_lmdb;
#[cfg(feature = "nostr-sqlite")]
pub use self::backends::open_nostr_sqlite;
use super::rules::{WITH_GIT_DATA, matches_nothing, repository_names};
use super::{Commit, EventStore, Inventory, Refusal, Saved, StoreError, StoredEvent};

/// Events delivered at once by a query.
const CHUNK: usize = 500;

/// Stands for "all": one of the databases takes no limit for a limit of 10,000.
const NO_LIMIT: usize = u32::MAX as usize;

/// An [`EventStore`] upon a database of the ecosystem.
///
/// Correct as far as asking before and filtering after can make it. Answers are held in memory whole, and a batch is
/// saved event by event.
#[derive(Debug)]
pub struct DatabaseStore<D> {
    inner: Arc<Inner<D>>,
}

#[derive(Debug)]
struct Inner<D> {
    database: D,
    closed: AtomicBool,
}

/// The database gave a reason that belongs to no answer of ours.
#[derive(Debug, thiserror::Error)]
#[error("the database refused an event: {0:?}")]
struct Unexplained(RejectedReason);

impl<D: NostrDatabase> DatabaseStore<D> {
    /// Takes a database into service.
    pub fn new(database: D) -> Self {
        let inner = Inner { database, closed: AtomicBool::new(false) };
        Self { inner: Arc::new(inner) }
    }
}

impl<D: NostrDatabase> EventStore for DatabaseStore<D> {
    fn commit(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Commit, StoreError>> {
        Box::pin(async move {
            let mut commit = Commit::default();
            for event in events {
                // The databases do not report what a request has deleted; afterwards it is gone.
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

    fn refusal(
        &self,
        event: Arc<Event>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Refusal>, StoreError>> {
        Box::pin(async move { self.inner.refusal(&event, now).await })
    }

    fn query(
        &self,
        filters: Vec<Filter>,
        now: Timestamp,
    ) -> BoxStream<'static, Result<Vec<StoredEvent>, StoreError>> {
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

    fn count(
        &self,
        filters: Vec<Filter>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move { Ok(self.inner.find(filters, now).await?.len() as u64) })
    }

    fn inventory(
        &self,
        filter: Filter,
        now: Timestamp,
        max: usize,
    ) -> BoxFuture<'_, Result<Inventory, StoreError>> {
        Box::pin(async move {
            let found = self.inner.find(vec![filter], now).await?;
            if found.len() > max {
                return Ok(Inventory::TooMany);
            }
            let items = found.iter().map(|event| (event.created_at, event.id));
            Ok(Inventory::Complete(items.collect::<BTreeSet<_>>().into_iter().collect()))
        })
    }

    fn superseded(&self, _: Coordinate) -> BoxFuture<'_, Result<Vec<Event>, StoreError>> {
        Box::pin(async { self.inner.open().map(|_| Vec::new()) })
    }

    fn remove(&self, ids: Vec<EventId>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let database = self.inner.open()?;
            // An empty list would mean everything to them.
            if ids.is_empty() {
                return Ok(0);
            }
            let named = Filter::new().ids(ids).limit(NO_LIMIT);
            let removed = database.query(named.clone()).await.map_err(failure)?;
            database.delete(named).await.map_err(failure)?;
            Ok(removed.len() as u64)
        })
    }

    fn sweep(&self, _: Timestamp) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async { self.inner.open().map(|_| 0) })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
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

    /// The names of repositories whose announcements, states or pull requests a request to delete or to vanish is
    /// about.
    async fn names_behind(
        &self,
        request: &Event,
        now: Timestamp,
    ) -> Result<BTreeSet<Identifier>, StoreError> {
        let theirs = Filter::new().kinds(WITH_GIT_DATA).author(request.pubkey);
        let filters = if request.kind == kinds::VANISH {
            vec![theirs.until(request.created_at)]
        } else if request.kind == kinds::DELETION {
            let DeletionRequest { ids, coordinates } =
                DeletionRequest::parse(request).unwrap_or_default();
            let names = coordinates.into_iter().map(|coordinate| coordinate.identifier);
            // Of names it may be a few too many, which does no harm. An empty list matches nothing.
            vec![theirs.clone().identifiers(names), theirs.ids(ids)]
        } else {
            return Ok(BTreeSet::new());
        };
        Ok(self.find(filters, now).await?.iter().flat_map(repository_names).collect())
    }

    /// What the filters match, in serving order, without what should not be there.
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
            // Expired events took places that others should have.
            asked = asked.saturating_mul(2).min(NO_LIMIT);
        }
    }
}

/// What an event is refused for whatever the database knows.
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
