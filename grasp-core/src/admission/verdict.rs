//! What becomes of an event.

use nostr::key::PublicKey;

use super::facts::Presence;
use crate::repo::RepoId;

/// What becomes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Stored and served.
    Accept(Acceptance),
    /// Acknowledged, and kept in purgatory until its git data is here.
    Hold(Hold),
    /// Passed on to whoever listens, never stored.
    Broadcast,
    /// Nothing to do.
    Known(Known),
    /// The owner takes the repository from us: it goes out of service.
    Delist {
        /// Whether the announcement itself is kept, because another one names its author.
        keep: bool,
    },
    /// Refused.
    Reject(Rejection),
}

impl Verdict {
    /// Whether the event belongs to something accepted, of which only so many may come.
    pub const fn counts_for_fan_out(&self) -> bool {
        matches!(self, Self::Accept(Acceptance::Related) | Self::Hold(Hold::Proposal))
    }
}

/// As what an event is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// An event that belongs to something accepted.
    Related,
    /// The next version of a hosted repository's announcement.
    Replacement,
    /// An event that speaks of git data where none is waited for.
    Promoted,
    /// An announcement that makes the maintainer graph complete: no view, no authority by itself.
    Discovery,
    /// An event that had nothing to wait for in purgatory: it is stored and served already.
    Released,
}

/// As what an event waits. If all that it waits for is here, it waits for the next survey only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// A repository that is not served yet; its empty view exists from now on.
    Announcement,
    /// A state for the views of these repositories.
    State(Vec<RepoId>),
    /// A pull request, for its tip.
    Proposal,
}

/// Why there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is stored.
    Stored,
    /// It is held.
    Held,
    /// A version that wins over it is here.
    Superseded,
}

impl From<Presence> for Known {
    fn from(presence: Presence) -> Self {
        match presence {
            Presence::Stored => Self::Stored,
            Presence::Held => Self::Held,
        }
    }
}

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// Its id or signature does not verify.
    Forged,
    /// It cannot be read as what its kind says.
    Malformed(String),
    /// Its time is over.
    Expired,
    /// It is dated too far ahead.
    TooFarAhead,
    /// Only its author may publish it (NIP-70).
    Protected,
    /// A repost with a protected event in it (NIP-70).
    ProtectedRepost,
    /// Its author deleted it.
    Deleted,
    /// Its author vanished.
    Vanished,
    /// Its author or repository is not welcome.
    Banned,
    /// An announcement that does not ask us to host, with the places it names.
    NotListed {
        /// Its `clone` values.
        clone: Vec<String>,
        /// Its `relays` values.
        relays: Vec<String>,
    },
    /// A state of a repository that nobody announced.
    NoAnnouncement,
    /// A state by somebody who may not sign any.
    NotMaintainer(PublicKey),
    /// It belongs to nothing that is accepted here.
    Unrelated,
    /// A profile or relay list of an author who takes no part in anything that is accepted here.
    UnknownAuthor,
    /// Its kind is never stored.
    NeverStored,
    /// A deletion request that names somebody else's event.
    ForeignDeletion,
    /// A deletion request with too many targets.
    TooManyTargets,
    /// Too much is waiting already.
    Quota,
    /// Its author has brought too much, or too much hangs on what it belongs to, for one day.
    Crowded,
    /// The client's network has had its share of lookups, or everybody together has had theirs.
    Busy,
    /// We failed.
    Internal,
}

/// For how long a refusal holds for that very event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// For ever: a syncer need not fetch that id again.
    Forever,
    /// Until something it depends on arrives.
    UntilDependency,
    /// Until we feel better: try again soon.
    Briefly,
}

impl Rejection {
    /// Whether something stored later could turn this refusal.
    pub fn is_reversible(&self) -> bool {
        *self != Self::TooFarAhead && self.lasting() == Lasting::UntilDependency
    }

    /// For how long this refusal holds.
    pub fn lasting(&self) -> Lasting {
        match self {
            Self::Forged
            | Self::Malformed(_)
            | Self::Expired
            | Self::Protected
            | Self::ProtectedRepost
            | Self::Deleted
            | Self::Vanished
            | Self::Banned
            | Self::NeverStored
            | Self::ForeignDeletion
            | Self::TooManyTargets => Lasting::Forever,
            // An announcement that lists somebody else is welcome once its author is invited.
            Self::NotListed { .. }
            | Self::NoAnnouncement
            | Self::NotMaintainer(_)
            | Self::Unrelated
            | Self::UnknownAuthor
            | Self::TooFarAhead => Lasting::UntilDependency,
            Self::Quota | Self::Crowded | Self::Busy | Self::Internal => Lasting::Briefly,
        }
    }
}
