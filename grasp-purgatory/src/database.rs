//! The database that events, refs, packs and the records of purgatory are committed to.
//!
//! A [`Commit`] is one transaction: all of it is durable when it returns, or none of it has happened. Files below the
//! directory of the repositories are packs, which are written before the commit that names them, and caches of what is
//! in the database. So there is nothing to finish after a crash: what no commit names is garbage.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Oid, RefName, RepoId};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use crate::git::Refs;
use crate::purgatory::Record;

/// The version of a view's refs. Each change gives it a higher one, which no view had before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The refs of a repository as they were committed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub struct View {
    pub refs: Arc<Refs>,
    /// The state event whose branches and tags these are.
    pub state: Option<EventId>,
    pub generation: Generation,
    /// Stays the same until the view is removed. Views that were created earlier have lower numbers.
    pub number: u64,
}

/// A pack of a family. Its name is the hash of its content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pack {
    /// The file name without extension, such as `pack-0123…`.
    pub name: String,
    /// Size of the pack, without its index.
    pub bytes: u64,
    /// No view reads it: it contains what only retired refs need.
    pub is_attic: bool,
}

/// A branch or tag that was moved or removed. Its objects are kept for a while, where no view reads them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct RetiredRef {
    pub owner: PublicKey,
    pub tip: Oid,
    pub name: RefName,
    pub since: Timestamp,
}

/// The reason why a family may have objects that no view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Garbage {
    /// A branch or tag was moved or deleted. Usually its old history is part of the new one.
    Moved,
    /// Something was removed for good.
    Removed,
}

/// The committed state of a family: all views of one identifier and the packs that they share. Not its retired refs,
/// which few need and which may be more than all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub struct FamilyRow {
    pub views: BTreeMap<PublicKey, View>,
    pub packs: BTreeSet<Pack>,
    /// The time at which each pack was last read as a whole, by name.
    pub verified: BTreeMap<String, Timestamp>,
    /// Set by changes that may leave garbage, cleared by its collection.
    pub garbage: Option<Garbage>,
}

/// Refs of pull requests in one view, up to which a push or a release of another identifier adds more.
const MAX_ADDED_PROPOSALS_PER_VIEW: usize = 10_000;

/// The same in all views of a family.
const MAX_ADDED_PROPOSALS: usize = 100_000;

impl FamilyRow {
    /// Returns whether a view may get refs of this number of further pull requests, by a push or by a release of another
    /// identifier.
    pub fn has_room_for_proposals(&self, owner: &PublicKey, number: usize) -> bool {
        let count =
            |view: &View| view.refs.refs.keys().filter(|name| name.event().is_some()).count();
        let in_view = self.views.get(owner).map_or(0, count);
        let in_family: usize = self.views.values().map(count).sum();
        in_view + number <= MAX_ADDED_PROPOSALS_PER_VIEW
            && in_family + number <= MAX_ADDED_PROPOSALS
    }
}

/// Changes of one family.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub struct FamilyChange {
    pub endpoint: Endpoint,
    pub identifier: Identifier,
    pub views: Vec<ViewChange>,
    pub add_packs: Vec<Pack>,
    pub remove_packs: Vec<Pack>,
    /// A pack that was read as a whole at this time.
    pub verified: Option<(String, Timestamp)>,
    /// Raises the mark of the family.
    pub garbage: Option<Garbage>,
    /// Clears the mark of the family, before it is raised.
    pub is_collected: bool,
    /// Retired refs to forget.
    pub forget: Forget,
}

/// A choice of retired refs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Forget {
    /// None of them.
    #[default]
    Nothing,
    /// Those of an owner.
    Of(PublicKey),
    /// Those that were retired before this time.
    Before(Timestamp),
    /// Those with these tips.
    Tips(BTreeSet<Oid>),
}

impl FamilyChange {
    /// Returns a change of a family that changes nothing yet.
    pub fn new(endpoint: Endpoint, identifier: Identifier) -> Self {
        Self {
            endpoint,
            identifier,
            views: Vec::new(),
            add_packs: Vec::new(),
            remove_packs: Vec::new(),
            verified: None,
            garbage: None,
            is_collected: false,
            forget: Forget::Nothing,
        }
    }

    /// Adds the change of a view, and the garbage that it may leave.
    pub fn push(&mut self, (view, garbage): (ViewChange, Option<Garbage>)) {
        self.views.push(view);
        self.garbage = self.garbage.max(garbage);
    }

    /// Returns whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::new(self.endpoint, self.identifier.clone())
    }
}

/// The change of one view.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewChange {
    /// The owner of the view.
    pub owner: PublicKey,
    /// The generation that the change is based on; `None` for a view that does not exist.
    pub from: Option<Generation>,
    /// The new refs; `None` removes the view.
    pub to: Option<Arc<Refs>>,
    /// The state event whose branches and tags they are. With it they go, in the transaction that removes it.
    pub state: Option<EventId>,
    /// Branches and tags that are retired by it.
    pub retired: Vec<RetiredRef>,
}

/// The way on which git data comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A client sends it.
    Pushed,
    /// The server fetches or copies it because of an event.
    Hunted,
}

/// Git data that was added to a family, for the limits of a day.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub struct Addition {
    /// The full hour in which it came.
    pub at: Timestamp,
    pub identifier: Identifier,
    /// The author of the event that it came for, where a signature says so.
    pub author: Option<PublicKey>,
    /// It came for a maintainer of a served repository.
    pub has_authority: bool,
    pub source: Source,
    pub bytes: u64,
}

/// Changes that happen together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// Events to save, all of them. Those that are stored already are left as they are.
    pub save: Vec<Arc<Event>>,
    /// Events that must be stored, or be saved with it: refs of the commit are signed by them. They may have been
    /// removed since its author looked.
    pub require: Vec<EventId>,
    /// Events to remove; they may be stored again.
    pub withdraw: Vec<EventId>,
    /// Changes of git data, at most one for each family.
    pub families: Vec<FamilyChange>,
    /// Changes of purgatory.
    pub records: Vec<Record>,
    /// Git data that came. Additions that differ in bytes alone are summed up; those that are more than two days older
    /// than a new one are forgotten.
    pub additions: Vec<Addition>,
    /// The time at which events are saved.
    pub now: Timestamp,
}

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Committed {
    /// Everything is durable. `affected` are other identifiers whose events were removed by it.
    Done {
        /// The identifiers.
        affected: BTreeSet<Identifier>,
    },
    /// Nothing has happened, because of the present state.
    Conflict(Conflict),
}

/// The reason why nothing of a commit has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The view of a repository has another generation.
    Moved(Endpoint, RepoId),
    /// The store refuses these events, or does not have them although they are required: they were deleted, expired
    /// or lost to other versions.
    Refused(BTreeSet<EventId>),
}

/// A failure of the database, which the operator must look into.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// It could not be read or written.
    #[error("the database failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Another process writes now, or none does; nothing was changed.
    #[error("this process is no longer the writer")]
    Fenced,
    /// It is shutting down.
    #[error("the database is closed")]
    Closed,
}

/// A call of a [`Database`].
pub type DatabaseFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, DatabaseError>> + Send + 'a>>;

/// Seconds after which additions are forgotten.
pub const ADDITIONS_KEPT: u64 = 2 * 24 * 60 * 60;

/// The commit point of a server.
///
/// Whatever removes an event from it removes the refs that the event signed for in the same transaction: all refs of a
/// deleted announcement, the branches and tags of a deleted state, the refs of a deleted pull request.
pub trait Database: Send + Sync + 'static {
    /// Performs all changes in one transaction. Resolves once they are durable.
    fn commit(&self, commit: Commit) -> DatabaseFuture<'_, Committed>;

    /// Returns the view of a repository.
    fn view(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<View>>;

    /// Returns all that is committed about a family, but for its retired refs.
    fn family(&self, endpoint: Endpoint, identifier: Identifier) -> DatabaseFuture<'_, FamilyRow>;

    /// Returns the retired refs of a family, in order.
    fn retired(
        &self,
        endpoint: Endpoint,
        identifier: Identifier,
    ) -> DatabaseFuture<'_, Vec<RetiredRef>>;

    /// Returns the packs of all families.
    fn packs(&self, endpoint: Endpoint)
    -> DatabaseFuture<'_, BTreeMap<Identifier, BTreeSet<Pack>>>;

    /// Returns all views, in no particular order.
    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>>;

    /// Returns the identifiers of all families that have a view, a pack or a retired ref.
    fn identifiers(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<Identifier>>;

    /// Returns those of these identifiers that have a family.
    fn existing(
        &self,
        endpoint: Endpoint,
        identifiers: BTreeSet<Identifier>,
    ) -> DatabaseFuture<'_, BTreeSet<Identifier>>;

    /// Returns the records from which purgatory is restored.
    fn records(&self) -> DatabaseFuture<'_, Vec<Record>>;

    /// Returns the additions since a time, oldest first.
    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>>;
}
