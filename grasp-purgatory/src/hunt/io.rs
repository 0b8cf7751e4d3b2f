//! What the hunter is told and wants done.

use std::collections::BTreeSet;
use std::time::Duration;

use grasp_core::limits::PeerText;
use grasp_core::outbound::Forbidden;
use grasp_core::{CloneUrl, Host, Identifier, Oid, RelayUrl};

use super::HostClass;
use super::plan::Advertisement;
use crate::purgatory::{self, Want};

/// One conversation with a server, as the hunter knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Errand(pub(super) u64);

/// What an attempt looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// What waits in purgatory.
    #[default]
    Waiting,
    /// That, what purgatory has given up, and what is served and lacks objects nevertheless.
    Everything,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Something new waits for its objects under an identifier.
    Wanted {
        /// Where.
        identifier: Identifier,
        /// When to begin, unless a hunt is due sooner. `None`: as soon as a burst of events allows.
        after: Option<Duration>,
    },
    /// [`Output::Brief`] is answered: what is wanted and not here. `None` if that could not be learned.
    Briefed {
        /// Where.
        identifier: Identifier,
        /// Each with those of its tips alone that are not here with their whole history.
        wants: Option<Vec<Want>>,
    },
    /// [`Output::List`] is done.
    Listed {
        /// Which.
        errand: Errand,
        /// What the server has, or why that could not be learned.
        result: Result<Advertisement, Trouble>,
    },
    /// The server of an [`Output::Fetch`] has begun to answer.
    Answered {
        /// Which.
        errand: Errand,
    },
    /// [`Output::Classify`] is answered. `None` if the host did not say what it is.
    Classified {
        /// The host.
        host: Host,
        /// The kind of server.
        class: Option<HostClass>,
    },
    /// [`Output::Fetch`] is done.
    Fetched {
        /// Which.
        errand: Errand,
        /// What is here now, with its whole history. Whoever waits for it has been told.
        got: BTreeSet<Oid>,
        /// What went wrong with the rest.
        trouble: Option<Trouble>,
    },
    /// [`Output::Count`] is answered: every identifier that is to be looked after.
    Counted {
        /// All of them.
        identifiers: BTreeSet<Identifier>,
    },
    /// The time of [`next_deadline`](super::Hunter::next_deadline) has come.
    Tick,
}

/// Something to be done. Each but `Cancel` and `Report` is a task whose end is an input, whatever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Find out what is wanted under an identifier and not here.
    Brief {
        /// Which.
        identifier: Identifier,
        /// How far to look.
        scope: Scope,
    },
    /// Ask a server what it has.
    List {
        /// Which conversation this is.
        errand: Errand,
        /// For what.
        identifier: Identifier,
        /// Whom.
        url: CloneUrl,
        /// Which of these it has matters.
        wanted: BTreeSet<Oid>,
    },
    /// Get objects with their whole history.
    Fetch {
        /// Which conversation this is.
        errand: Errand,
        /// For what.
        identifier: Identifier,
        /// From whom.
        url: CloneUrl,
        /// Which.
        oids: BTreeSet<Oid>,
    },
    /// Find out what kind of git server a host is.
    Classify {
        /// The host.
        host: Host,
        /// The relay that it has if it is a GRASP server.
        relay: RelayUrl,
    },
    /// Give up a conversation; its end is told nevertheless.
    Cancel {
        /// Which.
        errand: Errand,
    },
    /// Find out which identifiers are to be looked after every hour.
    Count,
    /// Something worth counting or logging.
    Report(Report),
}

/// Why a server gave us less than it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// It may not be gone to.
    #[error("not gone to: {0}")]
    Forbidden(#[from] Forbidden),
    /// It cannot be found or does not answer.
    #[error("unreachable: {0}")]
    Unreachable(PeerText),
    /// It asks for fewer requests.
    #[error("asked to slow down")]
    Limited {
        /// How long it wants to be left alone, if it says so.
        retry_after: Option<Duration>,
    },
    /// It has no such repository, or is in trouble itself.
    #[error("answered: {0}")]
    Answered(PeerText),
    /// It does not give what it was asked for.
    #[error("refused: {0}")]
    Refused(PeerText),
    /// What it gave is damaged or lacks history.
    #[error("gave something incomplete: {0}")]
    Broken(PeerText),
    /// It gave more than may be taken.
    #[error("gave too much")]
    TooLarge,
    /// It advertised more refs than are read.
    #[error("advertised too many refs")]
    LongList,
    /// It gave more objects than may be taken.
    #[error("gave more than {limit} objects")]
    TooMany {
        /// How many may be taken.
        limit: u64,
    },
    /// It went silent.
    #[error("went silent")]
    Stalled,
    /// The conversation was given up.
    #[error("given up")]
    Cancelled,
    /// Something is wrong on our side.
    #[error("our own trouble: {0}")]
    Ours(String),
}

impl Trouble {
    /// Whether the objects that were asked for are the cause, so that asking for other ones may help.
    pub fn is_about_the_objects(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Broken(_) | Self::TooLarge | Self::TooMany { .. })
    }
}

/// Something worth counting or logging.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// An identifier is hunted for from now on.
    Queued {
        /// Which.
        identifier: Identifier,
        /// When the first attempt begins; `None` for at once.
        after: Option<Duration>,
    },
    /// An attempt begins.
    Started {
        /// For what.
        identifier: Identifier,
        /// Which one since the last fresh start, from 1.
        attempt: u32,
    },
    /// Everything that was wanted is here; the identifier is hunted for no longer.
    Complete {
        /// Which.
        identifier: Identifier,
    },
    /// Nothing was wanted when an attempt began: it came by itself, was given up, or all is well.
    Needless {
        /// Under what.
        identifier: Identifier,
    },
    /// A listed server has not been asked yet, because it is not this identifier's turn there.
    InLine {
        /// Which.
        identifier: Identifier,
    },
    /// A host has said what kind of git server it is.
    Classified {
        /// The host.
        host: Host,
        /// The kind of server.
        class: HostClass,
    },
    /// An attempt ended and left something wanted, or something new is wanted since.
    Incomplete {
        /// Which.
        identifier: Identifier,
        /// Attempts without success so far.
        attempts: u32,
        /// How long until the next; without one the hourly turn goes on with it.
        next: Option<Duration>,
    },
    /// Objects came.
    Fetched {
        /// For what.
        identifier: Identifier,
        /// From where.
        url: CloneUrl,
        /// How many tips.
        oids: usize,
    },
    /// A server gave less than it was asked for.
    Failed {
        /// For what.
        identifier: Identifier,
        /// Which.
        url: CloneUrl,
        /// Why.
        trouble: Trouble,
    },
    /// A server is left alone.
    Paused {
        /// Which.
        host: Host,
        /// For how long.
        length: Duration,
    },
}

impl Report {
    /// What purgatory needs to know of it: how long events wait depends on whether servers were asked.
    pub fn for_purgatory(&self) -> Option<purgatory::Input> {
        Some(match self {
            Self::InLine { identifier } => {
                purgatory::Input::HuntWaiting { identifier: identifier.clone() }
            }
            Self::Failed { trouble: Trouble::Limited { .. }, .. } => return None,
            Self::Failed { identifier, .. } | Self::Fetched { identifier, .. } => {
                purgatory::Input::HuntAnswered { identifier: identifier.clone() }
            }
            Self::Complete { identifier }
            | Self::Needless { identifier }
            | Self::Incomplete { identifier, .. } => {
                purgatory::Input::HuntEnded { identifier: identifier.clone() }
            }
            _ => return None,
        })
    }
}
