//! Our store as a database of the ecosystem.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::types::Timestamp;
use nostr_database::error::Error;
use nostr_database::{
    DatabaseEventStatus, Features, NostrDatabase, RejectedReason, SaveEventStatus,
};

use crate::store::sqlite::SqliteStore;
use crate::store::{EventStore, Inventory, Refusal, Saved};

/// Our rules, not theirs, where the two differ: an empty list in a filter matches nothing, expired events are not
/// served, and deletion is as [`EventStore`] has it.
///
/// An id whose event is not here is always [`NotExistent`](DatabaseEventStatus::NotExistent), even if a deletion
/// request names it: only the event itself can tell whether that request was its author's. Saving it tells.
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
