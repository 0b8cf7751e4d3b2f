//! Facts that admission needs, and the lookups that provide them.

use nostr::event::Event;
use nostr::key::PublicKey;
use serde::{Deserialize, Serialize};

use crate::event::Version;
use crate::kinds;
use crate::nip34::{Announcement, References};
use crate::repo::{Identifier, RelayUrl};
use crate::resources::{Claimant, ClientNetwork};

/// The source of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client of this relay.
    Client {
        /// Keys that the client proved to have (NIP-42).
        authenticated: Vec<PublicKey>,
        /// The client's network; `None` for the operator's own tools.
        network: Option<ClientNetwork>,
    },
    /// Another relay, by sync.
    #[allow(missing_docs)]
    Sync { relay: RelayUrl, path: SyncPath },
}

/// The part of sync that brought an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncPath {
    /// A live subscription.
    Live,
    /// The catch-up after a connection was made.
    CatchUp,
    /// The daily pass.
    Daily,
}

impl Origin {
    /// Returns a client without proven keys.
    pub const fn anonymous() -> Self {
        Self::Client { authenticated: Vec::new(), network: None }
    }

    /// Returns the claimant that an event's cost is accounted to: for sync, the server itself.
    pub fn claimant(&self) -> Claimant {
        match self {
            Self::Client { network, .. } => Claimant::maybe_at(*network),
            Self::Sync { .. } => Claimant::server(),
        }
    }

    /// Returns whether the client proved to be this author.
    pub(super) fn is_author(&self, author: &PublicKey) -> bool {
        matches!(self, Self::Client { authenticated, .. } if authenticated.contains(author))
    }

    /// Returns whether sync brought the event.
    pub fn is_sync(&self) -> bool {
        matches!(self, Self::Sync { .. })
    }
}

/// Limits the coordinates, and the ids, that are looked up for one event. Honest events name fewer.
const MAX_COORDINATES: usize = 64;
const MAX_IDS: usize = 256;

/// The lookups that an event needs before it can be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// All announcements and states with this identifier, stored and held.
    pub identifier: Option<Identifier>,
    /// Events to look up.
    pub references: References,
    /// Stored events that name this one, by its id or its coordinate, are looked up too.
    pub named_by_others: bool,
}

impl Needs {
    /// Returns the lookups for an event.
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

/// The facts about an event. The default has none.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The event itself, if it is here already.
    pub known: Option<Presence>,
    /// The stored version of the same replaceable or addressable event, or the version that took it out of service.
    pub latest: Option<Version>,
    /// Announcements with its identifier, at most one stored and one held per author.
    pub announcements: Vec<KnownAnnouncement>,
    /// Bytes of the stored ones among them.
    pub announcement_bytes: usize,
    /// Stored events that it names (first values of `a`, `A`, `e`, `E`, `q`).
    pub named: References,
    /// It names, or is named by, a stored event.
    pub related: bool,
    /// Its author takes part in stored repositories or threads.
    pub author_known: bool,
    /// A limit of purgatory is reached for it.
    pub over_quota: bool,
}

/// The place where an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// Stored and served.
    Stored,
    /// Acknowledged and held in purgatory.
    Held,
}

/// An announcement that is here.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct KnownAnnouncement {
    pub announcement: Announcement,
    pub presence: Presence,
}
