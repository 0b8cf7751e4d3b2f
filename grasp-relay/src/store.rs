//! The store of accepted events: the trait [`EventStore`] and what every implementation shares.
//!
//! A store keeps NIP-01, NIP-09, NIP-40 and NIP-62 by itself, atomically with each save, so that no order of arrival
//! and no crash can leave it in a state those rules forbid. It does not decide whether an event is *wanted*; that is
//! admission.
//!
//! [`sqlite`] is also the [`Database`] of git data and purgatory, so that events and
//! refs change together.

mod changes;
pub mod check;
mod conditions;
mod dependents;
mod engine;
mod git;
mod group;
mod hiding;
mod keys;
pub mod policy;
#[cfg(feature = "postgres")]
pub mod postgres;
mod rules;
pub mod sqlite;

pub use self::engine::EngineStore;
use self::policy::PolicyStore;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use grasp_core::admission::{Needs, Outcome, Rejection};
use grasp_core::nip34::{Proposal, References};
use grasp_core::{RepoId, ServiceIdentity, Version, kinds};
use grasp_purgatory::database::{Commit, Database, DatabaseError};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

/// The outcome of one [`EventStore::save_events`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaveReport {
    /// One outcome per event, in their order: stored, a duplicate, superseded or refused.
    pub saved: Vec<Outcome>,
    /// The repositories of which announcements, states or pull requests were deleted, vanished or expired.
    /// Versions that a newer one replaced do not count.
    pub affected: BTreeSet<RepoId>,
    /// The events that were deleted, vanished or expired. Versions that a newer one replaced do not count.
    pub removed: BTreeSet<EventId>,
}

/// The outcome of one [`EventStore::sweep`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// The number of removed events.
    pub events: u64,
    /// Those of them that had expired.
    pub removed: BTreeSet<EventId>,
}

/// One stored event, as text that can be sent as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// The event's id.
    pub id: EventId,
    /// The time that its author gave it.
    pub created_at: Timestamp,
    /// The event as compact JSON.
    pub json: Arc<str>,
}

impl StoredEvent {
    /// Parses the event.
    pub fn event(&self) -> Result<Event, StoreError> {
        Event::from_json(&*self.json).map_err(failure)
    }
}

/// The served events of one filter as set reconciliation needs them: times and ids only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inventory {
    /// All of them, oldest first, ties by lowest id.
    Complete(Vec<(Timestamp, EventId)>),
    /// More than the caller's limit.
    TooMany,
}

impl Inventory {
    /// Returns the complete inventory, to be shared.
    pub fn into_set(self) -> Option<ItemSet> {
        match self {
            Self::Complete(items) => Some(Arc::new(items)),
            Self::TooMany => None,
        }
    }
}

/// A complete inventory that several readers share: oldest first, ties by lowest id.
pub type ItemSet = Arc<Vec<(Timestamp, EventId)>>;

/// The events of one lookup by keys that are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The ids that are served.
    pub ids: BTreeSet<EventId>,
    /// The served version of each coordinate that has one.
    pub versions: BTreeMap<Coordinate, Version>,
}

/// A failure of the store, which the operator must look into; never the peer's fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database failed.
    #[error("the event store failed")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The file was written by a newer release.
    #[error(
        "a newer release has written the database (schema {found}; this one knows {known}); start the newer release again, \
         or put back the copy from before its first start, which loses what came since"
    )]
    NewerSchema {
        /// The schema of the file.
        found: u32,
        /// The newest schema that this release reads.
        known: u32,
    },
    /// Events that are held for git data cannot be journaled.
    #[error(transparent)]
    Journal(grasp_purgatory::driver::Unavailable),
    /// Another process writes now, or none does; nothing was changed.
    #[error("this process is no longer the writer")]
    Fenced,
    /// The store is shutting down.
    #[error("the event store is closed")]
    Closed,
}

impl From<StoreError> for DatabaseError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Closed => Self::Closed,
            StoreError::Fenced => Self::Fenced,
            error => Self::Failed(Box::new(error)),
        }
    }
}

impl From<DatabaseError> for StoreError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Closed => Self::Closed,
            DatabaseError::Fenced => Self::Fenced,
            error => Self::Engine(Box::new(error)),
        }
    }
}

/// Returns a failure of the database.
pub(crate) fn failure(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Engine(Box::new(error))
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The operator's rules for deletion, vanishing and rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRules {
    /// The address of this relay: a request to vanish that names it is carried out.
    ///
    /// Requests that name all relays are carried out without one, too.
    pub service: Option<ServiceIdentity>,
    /// The number of superseded versions of one announcement or state that are kept for rollback.
    pub kept_versions: usize,
    /// The time for which a deletion request is served after it was received, or last removed or blocked something.
    pub deletions_served: Duration,
    /// The additional time for which its targets stay refused after it is no longer served.
    pub deletions_gated: Duration,
    /// Requests to delete or to vanish are stored and not carried out, from now on.
    pub ignores_deletions: bool,
}

impl Default for StoreRules {
    fn default() -> Self {
        Self {
            service: None,
            kept_versions: 64,
            deletions_served: 30 * DAY,
            deletions_gated: 180 * DAY,
            ignores_deletions: false,
        }
    }
}

impl StoreRules {
    /// Returns the time of last use up to which a request is no longer served.
    pub(crate) fn retired_before(&self, now: Timestamp) -> u64 {
        ago(now, self.deletions_served)
    }

    /// Returns the time of last use up to which a request no longer refuses anything.
    pub(crate) fn forgotten_before(&self, now: Timestamp) -> u64 {
        ago(
            now,
            self.deletions_served.saturating_add(self.deletions_gated),
        )
    }
}

/// Returns the time of last use up to which a new use is recorded: at most one a day, so that a flood of blocked
/// events stays cheap.
pub(crate) fn noted_before(now: Timestamp) -> u64 {
    ago(now, DAY)
}

fn ago(now: Timestamp, length: Duration) -> u64 {
    now.as_secs().saturating_sub(length.as_secs())
}

/// Returns whether superseded versions of this kind are kept: repository announcements and states.
pub(crate) fn keeps_versions(kind: Kind) -> bool {
    kind == kinds::ANNOUNCEMENT || kind == kinds::STATE
}

/// The kinds that describe git data.
pub(crate) const REPOSITORY_KINDS: [Kind; 4] = [
    kinds::ANNOUNCEMENT,
    kinds::STATE,
    kinds::PULL_REQUEST,
    kinds::PULL_REQUEST_UPDATE,
];

/// Repositories of one pull request that are surveyed when it is removed.
const MAX_REPOS: usize = 16;

/// Returns the repositories whose git data an event describes: the one that it announces or whose state it is; those that
/// a pull request names, and its author's for pull requests. None for other kinds.
pub(crate) fn repositories_of(event: &Event) -> BTreeSet<RepoId> {
    let mut repos = BTreeSet::new();
    if !REPOSITORY_KINDS.contains(&event.kind) {
        return repos;
    }
    repos.extend(Needs::of(event).repo);
    let Ok(proposal) = Proposal::parse(event) else {
        return repos;
    };
    for named in proposal.repos.into_iter().take(MAX_REPOS) {
        repos.insert(RepoId::new(proposal.author, named.identifier.clone()));
        repos.insert(named);
    }
    repos
}

/// Returns whether no event can match: a list is empty, the times exclude each other, or the filter has a `search`,
/// which is not supported.
pub(crate) fn matches_nothing(filter: &Filter) -> bool {
    filter.ids.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.authors.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.kinds.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.generic_tags.values().any(BTreeSet::is_empty)
        || filter.search.is_some()
        || filter.limit == Some(0)
        || filter.since > filter.until.or(Some(Timestamp::max()))
}

/// Bytes of a text that count as a value.
const BYTES_PER_VALUE: usize = 256;

/// Returns the number of values in the lists of filters. A long one counts as several.
pub(crate) fn weight_of(filters: &[Filter]) -> usize {
    let mut weight = 0;
    for filter in filters {
        weight += filter.ids.as_ref().map_or(0, BTreeSet::len);
        weight += filter.authors.as_ref().map_or(0, BTreeSet::len);
        weight += filter.kinds.as_ref().map_or(0, BTreeSet::len);
        for values in filter.generic_tags.values() {
            for value in values {
                weight += 1 + value.len() / BYTES_PER_VALUE;
            }
        }
    }
    weight
}

/// Returns whether an event has a tag of this name with one of these values.
pub(crate) fn has_tag(event: &Event, name: SingleLetterTag, values: &BTreeSet<String>) -> bool {
    event.tags.iter().any(|tag| {
        tag.single_letter_tag() == Some(name)
            && tag.content().is_some_and(|value| values.contains(value))
    })
}

/// Collects and parses all events that a filter matches.
pub async fn events(
    store: &dyn EventStore,
    filter: Filter,
    now: Timestamp,
) -> Result<Vec<Event>, StoreError> {
    let chunks: Vec<_> = store.query(vec![filter], now).try_collect().await?;
    chunks
        .into_iter()
        .flatten()
        .map(|stored| stored.event())
        .collect()
}

/// Rows written by one task, unless a single event has more, so that other writers do not wait long.
const MAX_TASK_ROWS: usize = 5_000;

/// Returns whether more rows fit into a task that has this many.
const fn fits(rows_so_far: usize, rows: usize) -> bool {
    rows_so_far == 0 || rows_so_far + rows <= MAX_TASK_ROWS
}

/// Bytes of text that take as long to write as a row.
const BYTES_PER_ROW: usize = 256;

/// Returns the approximate number of rows that a commit writes.
fn commit_cost(commit: &Commit) -> usize {
    let views = commit
        .repos
        .iter()
        .filter_map(|change| change.view.as_ref());
    let refs = views.filter_map(|view| Some(view.to.as_ref()?.refs.len() * 64));
    let events: usize = commit.save.iter().map(|event| write_cost(event)).sum();
    events + refs.sum::<usize>() / BYTES_PER_ROW + commit.records.len() + 1
}

/// Returns the approximate number of index rows that storing an event costs.
pub(crate) fn write_cost(event: &Event) -> usize {
    /// Rows of an event without tags.
    const BASE_ROWS: usize = 4;
    let values = event.tags.iter().flat_map(|tag| tag.as_slice());
    let bytes = event.content.len() + values.map(String::len).sum::<usize>();
    let indexed = event
        .tags
        .iter()
        .filter(|tag| tag.single_letter_tag().is_some());
    // Each target of a deletion request is also written to two indexes of gates.
    let rows_per_tag = if event.kind == kinds::DELETION { 3 } else { 1 };
    let listed = keys::listed(event).len();
    BASE_ROWS + indexed.count() * rows_per_tag + listed + bytes / BYTES_PER_ROW
}

/// A call of an [`EventStore`].
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The answer to a query, in chunks.
pub type EventChunks = BoxStream<'static, Result<Vec<StoredEvent>, StoreError>>;

/// A store of events that is also the database of git data and purgatory, and has what operators decide.
pub trait Store: EventStore + Database + PolicyStore {}

impl<S: EventStore + Database + PolicyStore> Store for S {}

/// A durable set of events under the rules of NIP-01, 09, 40 and 62.
pub trait EventStore: Send + Sync + 'static {
    /// Saves events in order. Resolves once every one of them is durable.
    fn save_events(&self, events: Vec<Arc<Event>>, now: Timestamp) -> StoreFuture<'_, SaveReport>;

    /// Saves events as [`save_events`](Self::save_events) does, for callers who keep no git data.
    fn save(&self, events: Vec<Arc<Event>>, now: Timestamp) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move { Ok(self.save_events(events, now).await?.saved) })
    }

    /// Returns, for each event, the reason for which [`save`](Self::save) would refuse it, as far as it is known.
    ///
    /// Changes nothing that is served. A deletion request that is the reason counts as useful now and is kept longer.
    fn refusals(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<Option<Rejection>>>;

    /// Returns [`refusals`](Self::refusals) for one event.
    fn refusal(&self, event: Arc<Event>, now: Timestamp) -> StoreFuture<'_, Option<Rejection>> {
        Box::pin(async move { Ok(self.refusals(vec![event], now).await?.pop().flatten()) })
    }

    /// Returns a number that is another one after every change, before the caller of the change gets its result; `None` if
    /// other processes change the store, too. Events expire without a change.
    fn commits(&self) -> Option<u64> {
        None
    }

    /// Streams the served events that match any of the filters: newest first, ties by lowest id, each once, in
    /// chunks.
    ///
    /// Each filter has its own `limit`. Empty lists and filters with `search` match nothing. The stream is not a
    /// snapshot: events that are stored while it is read may or may not be in it. Dropping the stream ends the work.
    fn query(&self, filters: Vec<Filter>, now: Timestamp) -> EventChunks;

    /// Counts the events that [`query`](Self::query) would return.
    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64>;

    /// Returns, for each question, whether any served event matches any of its filters.
    ///
    /// No filters match nothing. One call for many questions costs few reads.
    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>>;

    /// Returns which of these events are served.
    ///
    /// Looks them up by their keys, so that the cost depends on the number of keys and not on the size of the store.
    fn present(&self, named: References, now: Timestamp) -> StoreFuture<'_, Present>;

    /// Returns the served events at these coordinates, in no particular order. Looks them up by their keys.
    fn heads(&self, coordinates: Vec<Coordinate>, now: Timestamp) -> StoreFuture<'_, Vec<Event>>;

    /// Returns whether an event at a coordinate is served, or is out of service and can be restored. All of one moment.
    fn keeps(&self, coordinate: Coordinate) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let heads = self
                .heads(vec![coordinate], Timestamp::from_secs(0))
                .await?;
            Ok(!heads.is_empty())
        })
    }

    /// Returns the authors of served announcements that list the owner of a repository under its identifier: up to a
    /// number, the newest first.
    fn listing(&self, repo: RepoId, most: usize) -> StoreFuture<'_, Vec<PublicKey>>;

    /// Lists what is served for this filter without loading it; gives up beyond `max` items.
    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory>;

    /// Returns the [inventory](Self::inventory) of a filter, which the store may keep and bring up to date for the next
    /// caller; `None` beyond `max` items.
    fn item_set(
        &self,
        filter: Filter,
        now: Timestamp,
        max: usize,
    ) -> StoreFuture<'_, Option<ItemSet>> {
        Box::pin(async move { Ok(self.inventory(filter, now, max).await?.into_set()) })
    }

    /// Returns the superseded versions of an addressable event that are kept for rollback (kinds 30617 and 30618),
    /// winner first.
    fn superseded(&self, coordinate: Coordinate) -> StoreFuture<'_, Vec<Event>>;

    /// Removes events without gating them: they may be stored again. Returns their number.
    ///
    /// Superseded versions with these ids are removed, too. Targets of deletion requests among them stay refused.
    fn remove(&self, ids: Vec<EventId>) -> StoreFuture<'_, u64>;

    /// Removes the versions of a coordinate that are older than this one, and refuses them from now on: their author
    /// replaced them by a version that is not wanted here. Returns the number of served ones.
    fn delist(&self, coordinate: Coordinate, by: Version, now: Timestamp) -> StoreFuture<'_, u64>;

    /// Returns the versions before which these coordinates were [delisted](Self::delist).
    fn delisted(
        &self,
        coordinates: Vec<Coordinate>,
    ) -> StoreFuture<'_, BTreeMap<Coordinate, Version>>;

    /// Reclaims space: expired events, and unused deletion requests past their term.
    ///
    /// Expired events are not served in any case.
    fn sweep(&self, now: Timestamp) -> StoreFuture<'_, SweepReport>;

    /// Fails if the database does not answer, or if anything was found that says that it is damaged: then or since the
    /// start, for damage does not heal.
    fn probe(&self) -> StoreFuture<'_, ()>;

    /// Finishes queued writes and stops; later calls fail with [`StoreError::Closed`].
    fn close(&self) -> StoreFuture<'_, ()>;
}
