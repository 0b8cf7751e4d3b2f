//! What purgatory wants done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::nip34::State;
use grasp_core::{Identifier, Oid, RepoId};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use serde::{Deserialize, Serialize};

use super::staging::PushTarget;
use crate::journal::Record;

/// Something to be done.
///
/// Outputs are performed in their order. All records of a turn come first; they are written together or not at all,
/// and nothing of what follows may begin before they are on disk. Several turns may share one write, if their order
/// is kept. When records cannot be written the core knows more than the disk, and must be given up and restored.
/// `Survey`, `Apply` and `Store` are tasks whose end is an input; everything else is done when the next output is
/// looked at.
#[derive(Clone, Debug)]
pub enum Output {
    /// Write this down.
    Journal(Record),
    /// Do this, and say [`Input::Done`](super::Input::Done) or
    /// [`Input::ChoreFailed`](super::Input::ChoreFailed). Doing it twice is the same as doing it once.
    Do(Chore),
    /// Tell whoever offered the event. Comes once for each [`Input::Held`](super::Input::Held).
    Answer {
        /// The event.
        id: EventId,
        /// What became of it.
        kept: Kept,
    },
    /// Look at an identifier and come back with [`Input::Surveyed`](super::Input::Surveyed).
    Survey {
        /// Which.
        identifier: Identifier,
    },
    /// Make git be so. Views that do not exist yet are made. The refs of one view move together; of several, some may
    /// have moved when it fails, and doing it again finishes it.
    Apply {
        /// Under which identifier.
        identifier: Identifier,
        /// Branches, tags and HEAD of these views.
        views: Vec<ViewTarget>,
        /// Refs of these pull requests.
        proposals: Vec<ProposalRef>,
    },
    /// Store events, then withdraw others. Git already is as they say. When it fails, some of it may have been done,
    /// and doing it again finishes it.
    Store {
        /// Under which identifier.
        identifier: Identifier,
        /// To be stored, in this order: announcements, states from the oldest, pull requests.
        events: Vec<Arc<Event>>,
        /// To be served no longer. They are kept here until they can be served again.
        withdraw: Vec<EventId>,
    },
    /// Tell whoever listens: these are served now.
    Publish {
        /// In the order they were stored.
        events: Vec<Arc<Event>>,
    },
    /// Go and get git data for an identifier, with a fresh start: earlier failures are forgotten.
    Hunt {
        /// Which.
        identifier: Identifier,
        /// When to begin, unless a hunt is due sooner. `None`: as soon as a burst of events allows.
        after: Option<Duration>,
    },
    /// Something worth counting or logging that changed nothing. What did change something is a record.
    Report(Report),
}

/// What became of an event that was to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It waits, durably. A [`Output::Publish`] may follow at once.
    Held,
    /// Newer versions of its author wait already.
    Superseded,
    /// There is no room.
    Full,
    /// It is nothing that waits for git data.
    Unreadable,
}

/// What one view must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewTarget {
    /// The view.
    pub repo: RepoId,
    /// The state that it shows; without one it has no branches and no tags.
    pub state: Option<State>,
}

/// Where the tip of a pull request must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposalRef {
    /// The pull request.
    pub id: EventId,
    /// Its author.
    pub author: PublicKey,
    /// Its tip, under `refs/nostr/<id>`.
    pub tip: Oid,
    /// In these views.
    pub repos: BTreeSet<RepoId>,
    /// In one of these families its objects are, from where they are brought to the views that lack them and have
    /// history in common with it. A tip that is in none of them is passed over; what is about to be stored is never
    /// such a one.
    pub families: BTreeSet<Identifier>,
    /// Where the tip waits in staging, from where its objects are taken into the families first. Every contributor's
    /// place among them gets the ref too.
    pub staged: Vec<PushTarget>,
}

/// Making or removing something that only purgatory accounts for. Owed until it is done, also across a crash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chore {
    /// Have an empty view for a repository, unless it has one.
    CreateView {
        /// The repository.
        repo: RepoId,
    },
    /// Take a view out of service, into retention.
    ///
    /// To be looked at again under the lock of the family: the view stays if a stored announcement asks us to host
    /// the repository.
    RemoveView {
        /// The repository.
        repo: RepoId,
        /// Whether it goes although a push to it is under way, which then fails: its owner took it back. One that has
        /// only expired waits for the push, and the chore fails for now.
        #[serde(default)]
        at_once: bool,
    },
    /// Drop what is in staging for a pull request but the tips to keep, and `refs/nostr/<id>` from any view where it
    /// is neither one of these nor the tip of a stored event of that id.
    ClearProposal {
        /// The pull request.
        id: EventId,
        /// These stay.
        keep: BTreeSet<Oid>,
        /// Under these names; elsewhere there is nothing of it.
        #[serde(default)]
        names: BTreeSet<Identifier>,
    },
}

/// What a chore is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thing {
    View(RepoId),
    Proposal(EventId),
}

impl Chore {
    pub(super) fn thing(&self) -> Thing {
        match self {
            Self::CreateView { repo } | Self::RemoveView { repo, .. } => Thing::View(repo.clone()),
            Self::ClearProposal { id, .. } => Thing::Proposal(*id),
        }
    }
}

/// Something that happened and changed nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// There was no room for an event.
    TurnedAway {
        /// The event.
        id: EventId,
    },
    /// The driver failed at something that will be tried again.
    Failed {
        /// Under which identifier.
        identifier: Identifier,
        /// At what.
        at: Stage,
    },
    /// A chore is to be tried again.
    ChoreFailed {
        /// The chore.
        chore: Chore,
    },
}

/// One of the three steps of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking at store and git.
    Survey,
    /// Setting refs.
    Apply,
    /// Storing events.
    Store,
}

/// What one turn comes to: records first, then everything else.
#[derive(Debug, Default)]
pub(super) struct Turn {
    records: Vec<Record>,
    effects: Vec<Output>,
    /// What this turn has already asked to be surveyed.
    pub(super) asked: BTreeSet<Identifier>,
}

impl Turn {
    pub(super) fn write(&mut self, record: Record) {
        self.records.push(record);
    }

    pub(super) fn act(&mut self, output: Output) {
        self.effects.push(output);
    }

    pub(super) fn into_outputs(self) -> Vec<Output> {
        self.records.into_iter().map(Output::Journal).chain(self.effects).collect()
    }
}
