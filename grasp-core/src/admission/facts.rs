//! What the rulebook must be told, and how to find out what that is.

use nostr::event::Event;
use nostr::key::PublicKey;

use crate::kinds;
use crate::nip34::{Announcement, References};
use crate::repo::{Identifier, RelayUrl};
use crate::resources::{Claimant, ClientNetwork};
use crate::version::Version;

/// Where an event came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client on a socket of ours.
    Client {
        /// Whom it proved to be (NIP-42).
        authenticated: Vec<PublicKey>,
        /// The network it came from, if it came from one.
        network: Option<ClientNetwork>,
    },
    /// Another relay that we asked.
    Sync {
        /// Which.
        relay: RelayUrl,
        /// How it came to us.
        path: SyncPath,
    },
}

/// By which way of syncing an event came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncPath {
    /// On a live subscription.
    Live,
    /// While catching up after a connection was made.
    CatchUp,
    /// In the daily pass over everything.
    Daily,
}

impl Origin {
    /// A client that proved nothing.
    pub const fn anonymous() -> Self {
        Self::Client { authenticated: Vec::new(), network: None }
    }

    /// Returns the party that an event's cost is accounted to. What we asked another relay for is our own doing.
    pub fn claimant(&self) -> Claimant {
        match self {
            Self::Client { network, .. } => Claimant::maybe_at(*network),
            Self::Sync { .. } => Claimant::server(),
        }
    }

    /// Whether whoever brings the event has proved to be this author.
    pub(super) fn is_author(&self, author: &PublicKey) -> bool {
        matches!(self, Self::Client { authenticated, .. } if authenticated.contains(author))
    }

    /// Whether a relay brought it.
    pub fn is_sync(&self) -> bool {
        matches!(self, Self::Sync { .. })
    }
}

/// Coordinates, and ids, that are looked up for one event. Honest events name fewer.
const MAX_COORDINATES: usize = 64;
const MAX_IDS: usize = 256;

/// What to look up before an event can be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// All announcements and states with this identifier, stored and held.
    pub identifier: Option<Identifier>,
    /// Whether any of these is stored.
    pub references: References,
    /// Whether some stored event names this one: by its id, or by its coordinate if it has one.
    pub named_by_others: bool,
}

impl Needs {
    /// What this event depends on.
    pub fn of(event: &Event) -> Self {
        let ruled = event.kind == kinds::ANNOUNCEMENT || event.kind == kinds::STATE;
        if ruled {
            let identifier = event.tags.identifier().and_then(|d| Identifier::new(&d).ok());
            return Self { identifier, references: References::default(), named_by_others: false };
        }
        let References { ids, coordinates } = References::of(event);
        let ids = ids.into_iter().take(MAX_IDS).collect();
        let coordinates = coordinates.into_iter().take(MAX_COORDINATES).collect();
        let references = References { ids, coordinates };
        Self { identifier: None, references, named_by_others: true }
    }
}

/// What is known about an event and around it. The default knows nothing.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// This very event is here already.
    pub known: Option<Presence>,
    /// The stored version of the same replaceable or addressable event, or the one that took it out of service.
    pub latest: Option<Version>,
    /// Announcements with its identifier, at most one stored and one held per author.
    pub announcements: Vec<KnownAnnouncement>,
    /// Bytes of the stored ones among them.
    pub announcement_bytes: usize,
    /// Those of the events it names that are stored (first values of `a`, `A`, `e`, `E`, `q`).
    pub named: References,
    /// Whether it names, or is named by, something stored.
    pub related: bool,
    /// Whether its author takes part in accepted repositories or threads.
    pub author_known: bool,
    /// Whether a bound on what may wait here is reached.
    pub over_quota: bool,
}

/// Whether an event is served or waits for its git data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Stored and served.
    Stored,
    /// Acknowledged, and waiting in purgatory.
    Held,
}

/// An announcement that is here.
#[derive(Clone, Debug)]
pub struct KnownAnnouncement {
    /// The announcement.
    pub announcement: Announcement,
    /// Whether it is served.
    pub presence: Presence,
}
