//! The database that events, refs, packs and the records of purgatory are committed to.
//!
//! A [`Commit`] is one transaction: all of it is durable when it returns, or none of it has happened. Files below the
//! directory of the repositories are packs, which are written before the commit that names them, and caches of what is
//! in the database. So there is nothing to finish after a crash: what no commit names is garbage.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::quota::QuotaSubject;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use crate::git::Refs;
use crate::purgatory::Record;

/// The version of a view's refs. Each change gives it a higher one, which no view had before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// The refs of a repository as they were committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub struct View {
    pub refs: Arc<Refs>,
    /// The state event whose branches and tags these are.
    pub state: Option<EventId>,
    pub generation: Generation,
    /// The maintainers when the refs were last changed. Whoever is no longer one may have left states behind.
    pub maintainers: BTreeSet<PublicKey>,
    /// The owner of the repository that is shown here, if that is another one of the same identifier. This one is then
    /// an address of it and has no refs of its own.
    pub shows: Option<PublicKey>,
}

/// A view without its refs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of `View`")]
pub struct ViewHead {
    pub generation: Generation,
    pub state: Option<EventId>,
    pub shows: Option<PublicKey>,
}

/// A pack of a repository. Its name is the hash of its content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pack {
    /// The file name without extension, such as `pack-0123…`.
    pub name: String,
    /// Size of the pack, without its index.
    pub bytes: u64,
}

/// The tip of a branch or tag that was moved or removed. Its objects are kept for a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct RetiredRef {
    pub tip: Oid,
    pub name: RefName,
    pub since: Timestamp,
}

/// The reason why a repository may have objects that no ref shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Garbage {
    /// A branch or tag was moved or deleted. Usually its old history is part of the new one.
    Moved,
    /// Something was removed for good.
    Removed,
}

/// The committed state of a repository. Not its retired refs, which few need and which may be more than all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub struct RepoRow {
    /// `None` while nothing is announced: objects may come before.
    pub view: Option<View>,
    pub packs: BTreeSet<Pack>,
    /// The time at which each pack was last read as a whole, by name.
    pub verified: BTreeMap<String, Timestamp>,
    /// Set by changes that may leave garbage, cleared by its collection.
    pub garbage: Option<Garbage>,
}

impl RepoRow {
    /// Returns the tips of all refs.
    pub fn tips(&self) -> BTreeSet<Oid> {
        let refs = self.view.iter().flat_map(|view| view.refs.refs.values());
        refs.map(|target| target.oid).collect()
    }
}

/// Changes of one repository.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub struct RepoChange {
    pub endpoint: Endpoint,
    pub repo: RepoId,
    pub view: Option<ViewChange>,
    pub add_packs: Vec<Pack>,
    pub remove_packs: Vec<Pack>,
    /// A pack that was read as a whole at this time.
    pub verified: Option<(String, Timestamp)>,
    /// Raises the mark of the repository.
    pub garbage: Option<Garbage>,
    /// Clears the mark of the repository, before it is raised.
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
    /// All of them.
    All,
    /// Those that were retired before this time.
    Before(Timestamp),
    /// Those with these tips.
    Tips(BTreeSet<Oid>),
}

impl RepoChange {
    /// Returns a change of a repository that changes nothing yet.
    pub fn new(endpoint: Endpoint, repo: RepoId) -> Self {
        Self {
            endpoint,
            repo,
            view: None,
            add_packs: Vec::new(),
            remove_packs: Vec::new(),
            verified: None,
            garbage: None,
            is_collected: false,
            forget: Forget::Nothing,
        }
    }

    /// Returns whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::new(self.endpoint, self.repo.clone())
    }
}

/// The change of the refs of a repository.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewChange {
    /// The generation that the change is based on; `None` if there is no view.
    pub from: Option<Generation>,
    /// The new refs; `None` removes the view.
    pub to: Option<Arc<Refs>>,
    /// The state event whose branches and tags they are. With it they go, in the transaction that removes it.
    pub state: Option<EventId>,
    /// The maintainers at the time of the change.
    pub maintainers: BTreeSet<PublicKey>,
    /// The owner of the repository that this one is an address of.
    pub shows: Option<PublicKey>,
    /// Branches and tags that are retired by it.
    pub retired: Vec<RetiredRef>,
    /// Pull requests that get a ref by it, and those that lose theirs.
    pub proposals: ProposalChanges,
    /// Keys that maintain the repository by it, and those that no longer do.
    pub maintained: MaintainerChanges,
}

/// Pull requests whose refs a change sets and removes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProposalChanges {
    /// Those that have a ref now and had none.
    pub added: BTreeSet<EventId>,
    /// Those that had a ref and have none now.
    pub removed: BTreeSet<EventId>,
}

impl ProposalChanges {
    /// Compares the refs before and after a change.
    pub fn between(before: &Refs, after: &Refs) -> Self {
        let of = |refs: &Refs| -> BTreeSet<EventId> {
            refs.refs.keys().filter_map(RefName::event).collect()
        };
        let before = of(before);
        let after = of(after);
        Self {
            added: &after - &before,
            removed: &before - &after,
        }
    }
}

/// Keys that a change of a view makes maintainers of a served repository, and keys that it makes none.
///
/// An address has none of its own: its maintainers are those of the repository that it shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintainerChanges {
    /// Those that are maintainers now and were none.
    pub added: BTreeSet<PublicKey>,
    /// Those that were maintainers and are none now.
    pub removed: BTreeSet<PublicKey>,
}

impl MaintainerChanges {
    /// Compares a view with the maintainers after a change, and with what it is an address of then.
    pub fn between(
        before: Option<&View>,
        maintainers: &BTreeSet<PublicKey>,
        shows: Option<PublicKey>,
    ) -> Self {
        let none = BTreeSet::new();
        let before = before.filter(|view| view.shows.is_none());
        let before = before.map_or(&none, |view| &view.maintainers);
        let after = if shows.is_none() { maintainers } else { &none };
        Self {
            added: after - before,
            removed: before - after,
        }
    }
}

/// The way on which git data comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataSource {
    /// A client sends it.
    Pushed,
    /// The server fetches or copies it because of an event.
    Hunted,
}

/// Git data that was added to a repository, for the limits of a day.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub struct Addition {
    /// The full hour in which it came.
    pub at: Timestamp,
    pub repo: RepoId,
    /// The author of the event that it came for, where a signature says so.
    pub author: Option<PublicKey>,
    /// It came for a maintainer of a served repository.
    pub has_authority: bool,
    pub source: DataSource,
    pub bytes: u64,
}

/// A quota that the operator gives to an owner or a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaChange {
    /// The owner or repository.
    pub subject: QuotaSubject,
    /// Bytes that it may have; `None` for the quota of the settings.
    pub bytes: Option<u64>,
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
    /// Changes of git data, at most one for each repository.
    pub repos: Vec<RepoChange>,
    /// Changes of purgatory.
    pub records: Vec<Record>,
    /// Git data that came. Additions that differ in bytes alone are summed up; those that are more than two days older
    /// than a new one are forgotten.
    pub additions: Vec<Addition>,
    /// Quotas that the operator changes.
    pub quotas: Vec<QuotaChange>,
    /// The time at which events are saved.
    pub now: Timestamp,
}

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Committed {
    /// Everything is durable.
    Done {
        /// Repositories whose events were removed by it.
        affected: BTreeSet<RepoId>,
        /// Events that were removed without a replacement, such as expired ones; not those that it withdraws.
        removed: BTreeSet<EventId>,
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

    /// Returns a view without its refs, which are not read.
    fn view_head(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Option<ViewHead>> {
        let view = self.view(endpoint, repo);
        Box::pin(async move {
            let view = view.await?;
            Ok(view.map(|view| ViewHead {
                generation: view.generation,
                state: view.state,
                shows: view.shows,
            }))
        })
    }

    /// Returns all that is committed about a repository, but for its retired refs.
    fn row(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, RepoRow>;

    /// Returns the packs of a repository.
    fn packs_of(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, BTreeSet<Pack>> {
        let row = self.row(endpoint, repo);
        Box::pin(async move { Ok(row.await?.packs) })
    }

    /// Returns the retired refs of a repository, in order.
    fn retired(&self, endpoint: Endpoint, repo: RepoId) -> DatabaseFuture<'_, Vec<RetiredRef>>;

    /// Returns the packs of all repositories.
    fn packs(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeMap<RepoId, BTreeSet<Pack>>>;

    /// Returns the repositories that have a view, in no particular order.
    fn repositories(&self, endpoint: Endpoint) -> DatabaseFuture<'_, Vec<RepoId>>;

    /// Returns the owners of repositories that have a view and are maintained by the owner of this one, under its
    /// identifier: up to a number, those first that this key has maintained for longest. Addresses are not among them.
    fn maintained(
        &self,
        endpoint: Endpoint,
        repo: RepoId,
        most: usize,
    ) -> DatabaseFuture<'_, Vec<PublicKey>>;

    /// Returns all repositories that have a view, a pack or a retired ref.
    fn all(&self, endpoint: Endpoint) -> DatabaseFuture<'_, BTreeSet<RepoId>>;

    /// Returns the records from which purgatory is restored.
    fn records(&self) -> DatabaseFuture<'_, Vec<Record>>;

    /// Returns the additions since a time, oldest first.
    fn additions(&self, since: Timestamp) -> DatabaseFuture<'_, Vec<Addition>>;

    /// Returns the quotas that the operator gave.
    fn quotas(&self) -> DatabaseFuture<'_, BTreeMap<QuotaSubject, u64>>;

    /// Returns the bytes of the packs of each repository, at both endpoints together: those of an owner, or all.
    fn git_usage(&self, owner: Option<PublicKey>) -> DatabaseFuture<'_, BTreeMap<RepoId, u64>>;

    /// Returns the bytes of all packs.
    fn git_bytes(&self) -> DatabaseFuture<'_, u64>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::Target;

    fn target() -> Target {
        Target {
            oid: Oid::Sha1([1; 20]),
            peeled: None,
        }
    }

    fn with_proposals(ids: impl IntoIterator<Item = u16>) -> Refs {
        let mut refs = Refs::default();
        refs.refs
            .insert("refs/heads/main".parse().unwrap(), target());
        for id in ids {
            refs.refs.insert(RefName::nostr(event(id)), target());
        }
        refs
    }

    fn event(n: u16) -> EventId {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(bytes)
    }

    #[test]
    fn changes_of_proposals_are_those_that_only_one_side_has() {
        let changes = ProposalChanges::between(&with_proposals([1, 2]), &with_proposals([2, 3]));
        assert_eq!(changes.added, [event(3)].into());
        assert_eq!(changes.removed, [event(1)].into());
        let same = with_proposals([1]);
        assert_eq!(
            ProposalChanges::between(&same, &same),
            ProposalChanges::default()
        );
    }
}
