//! Where accepted events live: one trait, several houses.
//!
//! An [`EventStore`] keeps NIP-01, NIP-09, NIP-40 and NIP-62 by itself, atomically with each save, so that no
//! order of arrival and no crash can leave it in a state those rules forbid. It does not judge whether an event
//! is *wanted*; that is admission's work.
//!
//! [`sqlite`] is the one to serve from, [`memory`] the one to test with, and [`adapter`] leads to the databases of the
//! ecosystem and from there to us.

pub mod adapter;
pub mod sqlite;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use grasp_core::admission::Needs;
use grasp_core::nip34::{Announcement, Proposal, References};
use grasp_core::{Identifier, ServiceIdentity, Version, deletion, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

/// What became of one event that was offered to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Saved {
    /// Written now, durably, and served from now on.
    Stored,
    /// The very same event was stored before.
    Duplicate,
    /// A version that wins over this one (newer, or as old with a lower id) is served.
    Superseded,
    /// The store keeps no such event.
    Refused(Refusal),
}

/// The outcome of one [`EventStore::commit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// One answer per event, in their order.
    pub saved: Vec<Saved>,
    /// The names of repositories of which announcements, states or pull requests were taken out of service: deleted,
    /// vanished or expired. What a newer version has replaced does not count.
    pub affected: BTreeSet<Identifier>,
}

/// Why the store will not keep an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its author asked for its deletion (NIP-09).
    Deleted,
    /// Its author asked to vanish after writing it (NIP-62).
    Vanished,
    /// Its time is over (NIP-40).
    Expired,
    /// A deletion request that names somebody else's event; none of it is honoured.
    ForeignDeletion,
    /// A deletion request with more targets than anybody needs.
    TooManyTargets,
    /// Ephemeral kinds are passed on, never kept.
    Ephemeral,
}

/// One stored event, as text that can be sent as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its id.
    pub id: EventId,
    /// When its author says it was made.
    pub created_at: Timestamp,
    /// The event as compact JSON.
    pub json: Arc<str>,
}

impl StoredEvent {
    /// The event itself.
    pub fn event(&self) -> Result<Event, StoreError> {
        Event::from_json(&*self.json).map_err(|error| StoreError::Engine(Box::new(error)))
    }
}

/// The served events of one filter as set reconciliation wants them: no content, only what orders them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inventory {
    /// All of them, oldest first, ties by lowest id.
    Complete(Vec<(Timestamp, EventId)>),
    /// More than the caller was ready to take.
    TooMany,
}

/// What is served of events that were asked for by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Those of the ids that are served.
    pub ids: BTreeSet<EventId>,
    /// The served version of each coordinate that has one.
    pub versions: BTreeMap<Coordinate, Version>,
}

/// Why the store could not answer. Always our fault, never the peer's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The engine underneath failed.
    #[error("the event store failed")]
    Engine(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The file was written by a newer release.
    #[error("the event store has schema {found}, this release knows up to {known}")]
    NewerSchema {
        /// What the file says.
        found: u32,
        /// What we can read.
        known: u32,
    },
    /// Events that wait for git data cannot be written down.
    #[error(transparent)]
    Journal(crate::keeper::Gone),
    /// The store is shutting down.
    #[error("the event store is closed")]
    Closed,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What an operator decides about deletion, vanishing and rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRules {
    /// The address this relay is known by: a request to vanish that names it is obeyed.
    ///
    /// Requests for all relays are obeyed without one too.
    pub service: Option<ServiceIdentity>,
    /// How many superseded versions of one announcement or state are kept for rollback.
    pub kept_versions: usize,
    /// How long a deletion request is served after it was received, or last removed or blocked something.
    pub deletions_served: Duration,
    /// How much longer its targets stay refused after it is no longer served.
    pub deletions_gated: Duration,
}

impl Default for StoreRules {
    fn default() -> Self {
        Self {
            service: None,
            kept_versions: 64,
            deletions_served: 30 * DAY,
            deletions_gated: 180 * DAY,
        }
    }
}

impl StoreRules {
    /// A request last useful at this time or earlier is no longer served.
    pub(crate) fn retired_before(&self, now: Timestamp) -> u64 {
        ago(now, self.deletions_served)
    }

    /// A request last useful at this time or earlier no longer refuses anything.
    pub(crate) fn forgotten_before(&self, now: Timestamp) -> u64 {
        ago(now, self.deletions_served.saturating_add(self.deletions_gated))
    }
}

/// A request that was useful after this time is not noted as useful again: a flood of blocked events stays cheap.
pub(crate) fn noted_before(now: Timestamp) -> u64 {
    ago(now, DAY)
}

fn ago(now: Timestamp, length: Duration) -> u64 {
    now.as_secs().saturating_sub(length.as_secs())
}

/// Says whether superseded versions of this kind are kept: repository announcements and states.
pub(crate) fn keeps_versions(kind: Kind) -> bool {
    kind == kinds::ANNOUNCEMENT || kind == kinds::STATE
}

/// The kinds that speak of git data.
pub(crate) const REPOSITORY_KINDS: [Kind; 4] =
    [kinds::ANNOUNCEMENT, kinds::STATE, kinds::PULL_REQUEST, kinds::PULL_REQUEST_UPDATE];

/// Returns the names of the repositories whose git data an event speaks of; none for other kinds.
pub(crate) fn repository_names(event: &Event) -> BTreeSet<Identifier> {
    if !REPOSITORY_KINDS.contains(&event.kind) {
        return BTreeSet::new();
    }
    let proposal = Proposal::parse(event).ok();
    let addressed = proposal.into_iter().flat_map(|proposal| proposal.repos);
    Needs::of(event).identifier.into_iter().chain(addressed.map(|repo| repo.identifier)).collect()
}

/// Says whether no event can match: a list is empty, its times exclude each other, or it is one we do not answer.
pub(crate) fn matches_nothing(filter: &Filter) -> bool {
    filter.ids.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.authors.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.kinds.as_ref().is_some_and(BTreeSet::is_empty)
        || filter.generic_tags.values().any(BTreeSet::is_empty)
        || filter.search.is_some()
        || filter.limit == Some(0)
        || filter.since > filter.until.or(Some(Timestamp::max()))
}

/// Says whether an event has a tag of this name with one of these values.
pub(crate) fn has_tag(event: &Event, name: SingleLetterTag, values: &BTreeSet<String>) -> bool {
    event.tags.iter().any(|tag| {
        tag.single_letter_tag() == Some(name)
            && tag.content().is_some_and(|value| values.contains(value))
    })
}

/// All that a filter finds, whole.
pub async fn events(
    store: &dyn EventStore,
    filter: Filter,
    now: Timestamp,
) -> Result<Vec<Event>, StoreError> {
    let chunks: Vec<_> = store.query(vec![filter], now).try_collect().await?;
    chunks.into_iter().flatten().map(|stored| stored.event()).collect()
}

/// Reads the announcements of these names one after the other, and says how many bytes that took.
///
/// Anybody may announce under any name: whoever wants to know who maintains what must not hold them all as events.
pub async fn announcements(
    store: &dyn EventStore,
    names: impl IntoIterator<Item = &Identifier>,
    now: Timestamp,
) -> Result<Vec<(Announcement, usize)>, StoreError> {
    let names: Vec<String> = names.into_iter().map(ToString::to_string).collect();
    let mut announcements = Vec::new();
    if names.is_empty() {
        return Ok(announcements);
    }
    let filter = Filter::new().kind(kinds::ANNOUNCEMENT).identifiers(names);
    let mut found = store.query(vec![filter], now);
    while let Some(chunk) = found.try_next().await? {
        for stored in chunk {
            let parsed = Announcement::parse(&stored.event()?);
            announcements.extend(parsed.ok().map(|parsed| (parsed, stored.json.len())));
        }
    }
    Ok(announcements)
}

/// Returns about how many rows of an index storing an event is worth.
pub(crate) fn write_cost(event: &Event) -> usize {
    /// Rows of an event without tags.
    const BASE_ROWS: usize = 4;
    /// Bytes of text that take as long to write as a row.
    const BYTES_PER_ROW: usize = 256;
    let values = event.tags.iter().flat_map(|tag| tag.as_slice());
    let bytes = event.content.len() + values.map(String::len).sum::<usize>();
    let indexed = event.tags.iter().filter(|tag| tag.single_letter_tag().is_some());
    // Each target of a deletion request is gated, too, in two indexes.
    let rows_per_tag = if event.kind == kinds::DELETION { 3 } else { 1 };
    BASE_ROWS + indexed.count() * rows_per_tag + bytes / BYTES_PER_ROW
}

/// Returns the filter for the event at a coordinate. It also matches one that carries the identifier in a second `d` tag.
fn coordinate_filter(coordinate: Coordinate) -> Filter {
    let filter = Filter::new().kind(coordinate.kind).author(coordinate.public_key);
    let has_tag = coordinate.kind.is_addressable() && !coordinate.identifier.is_empty();
    if has_tag { filter.identifier(coordinate.identifier) } else { filter }
}

/// A durable set of events under the rules of NIP-01, 09, 40 and 62.
pub trait EventStore: Send + Sync + 'static {
    /// Saves events in order; resolves once every one of them is durable, with one answer each and what that took
    /// out of service.
    fn commit(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Commit, StoreError>>;

    /// Saves events as [`commit`](Self::commit) does, for callers who keep no git data.
    fn save(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Saved>, StoreError>> {
        Box::pin(async move { Ok(self.commit(events, now).await?.saved) })
    }

    /// Says whether [`save`](Self::save) would refuse this event for what is already known.
    ///
    /// Changes nothing that is served. If a deletion request is the reason, it counts as useful now and is kept longer.
    fn refusal(
        &self,
        event: Arc<Event>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<Refusal>, StoreError>>;

    /// Answers [`refusal`](Self::refusal) for several events, in their order.
    fn refusals(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Option<Refusal>>, StoreError>> {
        Box::pin(async move {
            let mut refusals = Vec::with_capacity(events.len());
            for event in events {
                refusals.push(self.refusal(event, now).await?);
            }
            Ok(refusals)
        })
    }

    /// Served events that match any of the filters: newest first, ties by lowest id, each once, in chunks.
    ///
    /// Each filter has its own `limit`. Empty lists and filters with `search` match nothing. It is not a snapshot: what is
    /// stored while the answer is read may or may not be in it. Dropping the stream ends the work.
    fn query(
        &self,
        filters: Vec<Filter>,
        now: Timestamp,
    ) -> BoxStream<'static, Result<Vec<StoredEvent>, StoreError>>;

    /// How many events [`query`](Self::query) would answer with.
    fn count(&self, filters: Vec<Filter>, now: Timestamp)
    -> BoxFuture<'_, Result<u64, StoreError>>;

    /// For each question, whether any served event matches any of its filters.
    ///
    /// No filters match nothing. One call for many questions costs few turns of a reader.
    fn exists(
        &self,
        questions: Vec<Vec<Filter>>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(questions.len());
            for filters in questions {
                let filters = filters.into_iter().map(|filter| filter.limit(1)).collect();
                answers.push(self.count(filters, now).await? > 0);
            }
            Ok(answers)
        })
    }

    /// Finds out which of these events are served.
    ///
    /// Looks them up by their keys where the engine can: what it costs depends on how many are asked for, not on how
    /// much is stored.
    fn present(
        &self,
        named: References,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Present, StoreError>> {
        Box::pin(async move {
            let mut filters: Vec<Filter> =
                named.coordinates.iter().cloned().map(coordinate_filter).collect();
            filters.push(Filter::new().ids(named.ids.iter().copied()));
            let mut present = Present::default();
            let mut found = self.query(filters, now);
            while let Some(chunk) = found.try_next().await? {
                for stored in chunk {
                    let event = stored.event()?;
                    present.ids.extend(named.ids.get(&event.id));
                    let at = deletion::coordinate(&event);
                    let at = at.filter(|at| named.coordinates.contains(at));
                    present.versions.extend(at.map(|at| (at, Version::of(&event))));
                }
            }
            Ok(present)
        })
    }

    /// What is served for this filter, without loading it; gives up beyond `max` items.
    fn inventory(
        &self,
        filter: Filter,
        now: Timestamp,
        max: usize,
    ) -> BoxFuture<'_, Result<Inventory, StoreError>>;

    /// Superseded versions of an addressable event that are kept for rollback (kinds 30617 and 30618), winner first.
    fn superseded(&self, coordinate: Coordinate) -> BoxFuture<'_, Result<Vec<Event>, StoreError>>;

    /// Takes events out of service without leaving a gate behind: they may come back. Says how many there were.
    ///
    /// Superseded versions with these ids go too. What deletion requests among them have deleted stays refused.
    fn remove(&self, ids: Vec<EventId>) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Takes versions of a coordinate that are older than this one out of service, and keeps them away: their author
    /// replaced them by a version that is not wanted here. Says how many were served.
    ///
    /// The default keeps nothing away.
    fn delist(
        &self,
        coordinate: Coordinate,
        by: Version,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let coordinates = BTreeSet::from([coordinate]);
            let named = References { coordinates, ..References::default() };
            let served = self.present(named, now).await?.versions.into_values();
            let older: Vec<_> = served.filter(|version| *version < by).map(|v| v.id).collect();
            if older.is_empty() { Ok(0) } else { self.remove(older).await }
        })
    }

    /// Returns the versions before which these coordinates were [delisted](Self::delist).
    fn delisted(
        &self,
        _: Vec<Coordinate>,
    ) -> BoxFuture<'_, Result<BTreeMap<Coordinate, Version>, StoreError>> {
        Box::pin(std::future::ready(Ok(BTreeMap::new())))
    }

    /// Reclaims what time has made worthless: expired events, unused deletion requests past their term.
    ///
    /// Says how many events went. It only saves space: what has expired is not served anyway.
    fn sweep(&self, now: Timestamp) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Finishes what was promised and stops; later calls answer [`StoreError::Closed`].
    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}
