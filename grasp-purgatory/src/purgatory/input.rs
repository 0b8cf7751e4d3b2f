//! What purgatory is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::{Hold, Origin};
use grasp_core::resources::ClientNetwork;
use grasp_core::{Identifier, Oid, RefName, RepoId, Version};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::output::Chore;
use super::staging::PushTarget;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// The driver is ready, after a start or a restart. Sent once, before anything else.
    ///
    /// Everything that is kept is looked at then. [`Input::Changed`] for each identifier with a stored announcement
    /// should follow at leisure: the earlier run may have ended between a change in the store and its hint.
    Started,
    /// An event was admitted that speaks of git data: a hosted announcement, a state or a pull request.
    ///
    /// Also if its data is here already: what is released at once is applied before it is stored like anything else.
    Held {
        /// The event.
        event: Arc<Event>,
        /// What the rulebook said about it.
        hold: Hold,
        /// Who brought it.
        origin: Origin,
    },
    /// Something that purgatory does not own changed under an identifier: an announcement or a state was stored,
    /// replaced or removed, or objects arrived by push or fetch.
    Changed {
        /// Where.
        identifier: Identifier,
    },
    /// [`Output::Survey`](super::Output::Survey) is answered.
    Surveyed {
        /// What was looked at.
        identifier: Identifier,
        /// What was found.
        survey: Survey,
    },
    /// The survey could not be made.
    SurveyFailed {
        /// Of what.
        identifier: Identifier,
    },
    /// [`Output::Apply`](super::Output::Apply) is done, all of it, durably.
    Applied {
        /// Where.
        identifier: Identifier,
    },
    /// It was not finished. Some of it may have been done.
    ApplyFailed {
        /// Where.
        identifier: Identifier,
    },
    /// [`Output::Store`](super::Output::Store) is done, durably.
    Stored {
        /// Where.
        identifier: Identifier,
        /// Those of the events that are in the store now, whether or not they were before.
        stored: BTreeSet<EventId>,
    },
    /// It was not finished. Some of it may have been done.
    StoreFailed {
        /// Where.
        identifier: Identifier,
    },
    /// A push was judged and is about to be executed.
    PushAuthorised {
        /// The repository that is pushed to.
        repo: RepoId,
        /// The state that it will realise and the pull requests whose tips it brings.
        events: BTreeSet<EventId>,
    },
    /// A push left a tip in staging, for an event that nobody has sent yet.
    PushStaged {
        /// The event.
        id: EventId,
        /// The tip.
        tip: Oid,
        /// Where it came in.
        target: PushTarget,
        /// How large its objects are.
        bytes: u64,
        /// The network that it came from, if that is known.
        network: Option<ClientNetwork>,
    },
    /// The hunt under an identifier has not asked every listed server yet: it is not its turn there.
    HuntInLine {
        /// The identifier.
        identifier: Identifier,
    },
    /// A git server has answered the hunt under an identifier.
    HuntAnswered {
        /// The identifier.
        identifier: Identifier,
    },
    /// The hunt under an identifier has asked every listed server, or is over.
    HuntEnded {
        /// The identifier.
        identifier: Identifier,
    },
    /// A fetch for an identifier is running, not merely queued.
    FetchStarted {
        /// The identifier.
        identifier: Identifier,
    },
    /// It ended, however it did.
    FetchEnded {
        /// The identifier.
        identifier: Identifier,
    },
    /// A deletion request (kind 5) was stored.
    Deleted {
        /// The request.
        request: Arc<Event>,
    },
    /// A request to vanish from here (kind 62) was stored.
    Vanished {
        /// Whose.
        author: PublicKey,
        /// Events up to and including this time are meant.
        until: Timestamp,
    },
    /// An owner published an announcement that no longer asks us to host the repository.
    Delisted {
        /// Which repository.
        repo: RepoId,
        /// The version that says so.
        by: Version,
    },
    /// A chore is done, or turned out to be unnecessary.
    Done(Chore),
    /// A chore could not be done now.
    ChoreFailed(Chore),
    /// The time of [`next_deadline`](super::Purgatory::next_deadline) has come.
    Tick,
}

/// How things stand under one identifier, in the event store and in git.
///
/// Read under the lock of the family, best kept until [`Input::Applied`]: then no push comes between. What is not
/// shown counts as gone; a survey that could not read everything has failed.
///
/// Purgatory keeps no copy of what others own. It is shown the whole of it whenever something may have changed, and
/// compares that with how things should be; so a hint that got lost costs time and nothing else.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The stored announcements of the identifiers that [`Purgatory::scope`](super::Purgatory::scope) names.
    pub announcements: Vec<Arc<Event>>,
    /// The stored states of the identifier, one per author.
    pub states: Vec<Arc<Event>>,
    /// Superseded states of authors who have none stored: their latest was deleted, and the one before counts again.
    pub previous: Vec<Arc<Event>>,
    /// The stored pull requests and updates addressed to repositories of the identifier. Those left out are not
    /// carried to views that became relevant for them.
    pub proposals: Vec<Arc<Event>>,
    /// The views of the identifier that exist, with all their refs.
    pub views: BTreeMap<RepoId, BTreeMap<RefName, Oid>>,
    /// Pull requests that have a ref in one of these views and are not stored.
    pub strays: BTreeSet<EventId>,
    /// Those of the [`candidates`](super::Purgatory::candidates) and of the previous states whose objects are all in
    /// the family, with their whole history; and those of the [`proposals`](super::Purgatory::proposals) for which that is so in one of
    /// theirs.
    pub complete: BTreeSet<EventId>,
    /// Whether nothing is announced or stored in git under the identifier, and nothing else was looked at. Until it is
    /// surveyed again, other identifiers do without it.
    pub is_vacant: bool,
    /// Those of the [`kept`](super::Purgatory::kept) events that the event store would refuse: deleted, vanished or
    /// past their own expiry.
    pub refused: BTreeSet<EventId>,
}
