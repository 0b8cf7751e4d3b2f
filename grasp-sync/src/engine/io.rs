//! What the engine is told, and what it asks for.

use std::net::IpAddr;
use std::sync::Arc;

use grasp_core::admission::{Lasting, SyncPath};
use grasp_core::limits::EoseHint;
use grasp_core::sync::IndexChange;
use grasp_core::{RelayUrl, nostr};
use nostr::event::{Event, EventId};
use nostr::filter::{Filter, MatchEventOptions};
use nostr::types::Timestamp;

use super::facts::RelayFacts;
use super::ids::{ConnId, InventoryId, SubId};
use super::record::RelayRecord;
use super::report::{Report, Request};

/// Something that has happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Our own relay has taken something in, or let it go.
    Accepted(Accepted),
    /// Everything that our own relay had stored has been told.
    FeedCaughtUp,
    /// Our own relay has lost some of what it had.
    FeedLost,
    /// What an earlier process knew about relays. To be told before anything else.
    Restored(Vec<RelayRecord>),
    /// A connection that was asked for stands.
    Connected {
        /// To whom.
        relay: RelayUrl,
        /// Which attempt.
        conn: ConnId,
        /// The address that answered, if it is known: networks have shares of the connections.
        address: Option<IpAddr>,
        /// What the relay says about itself.
        facts: RelayFacts,
    },
    /// A connection that was asked for could not be made.
    ConnectFailed {
        /// To whom.
        relay: RelayUrl,
        /// Which attempt.
        conn: ConnId,
        /// Why not.
        why: Fault,
    },
    /// A connection is lost, by whoever's doing. Not told of one that the engine itself has ended.
    Disconnected {
        /// To whom.
        relay: RelayUrl,
        /// Which one.
        conn: ConnId,
    },
    /// A relay said something.
    Heard {
        /// Who.
        relay: RelayUrl,
        /// On which connection.
        conn: ConnId,
        /// What.
        said: Said,
    },
    /// Our own relay has judged delivered events. Every row of [`Said::Delivered`] comes back in one of these,
    /// whatever became of it.
    Ingested {
        /// Who delivered them.
        relay: RelayUrl,
        /// On which connection.
        conn: ConnId,
        /// Under which subscription.
        sub: SubId,
        /// What became of each.
        judged: Vec<Judged>,
    },
    /// Our own relay has judged events that it was offered again.
    Reoffered {
        /// What became of each.
        judged: Vec<Judged>,
    },
    /// Our own relay has said what it has. The items may come in any order.
    Inventory {
        /// Which question this answers.
        request: InventoryId,
        /// Everything it has that matches, or that it could not tell.
        items: Result<Vec<Row>, InventoryFailed>,
    },
    /// Time has passed.
    Tick,
}

/// What our own relay has taken in, or let go.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The event, if it is one: others may have waited for it.
    pub event: Option<EventId>,
    /// Whether a client brought it, rather than this engine.
    pub direct: bool,
    /// What it changes about what is wanted; see [`index_change`](super::index_change).
    pub change: Option<IndexChange>,
}

/// What a relay said, in the order in which it said it.
///
/// Events themselves are not among it: they are parsed, checked against their subscription and verified by the
/// driver's workers. Only that they came is told here, and at once, so that it cannot be overtaken by the EOSE.
#[derive(Clone, Debug)]
pub enum Said {
    /// Events came that match the subscription. Not verified yet: these rows move cursors and nothing else.
    Delivered {
        /// Under which subscription.
        sub: SubId,
        /// All of them, known or not.
        rows: Vec<Delivered>,
    },
    /// EOSE.
    Eose {
        /// Of which subscription.
        sub: SubId,
        /// Whether that was everything (NIP-67), if the relay said so.
        hint: Option<EoseHint>,
    },
    /// CLOSED.
    Closed {
        /// Of which subscription.
        sub: SubId,
        /// In these words.
        text: String,
    },
    /// NOTICE.
    Notice {
        /// In these words.
        text: String,
    },
    /// NEG-MSG.
    NegMsg {
        /// Of which session.
        sub: SubId,
        /// Decoded from its hex.
        message: Vec<u8>,
    },
    /// NEG-ERR.
    NegErr {
        /// Of which session.
        sub: SubId,
        /// In these words.
        text: String,
    },
    /// AUTH: a challenge. The driver keeps the latest.
    Challenge,
    /// OK, to our answer to the challenge.
    Authenticated {
        /// Whether it was good enough.
        accepted: bool,
    },
}

/// An event, as far as cursors and sets care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Its `created_at`.
    pub at: Timestamp,
    /// Its id.
    pub id: EventId,
}

/// An event that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Which one.
    pub row: Row,
    /// Which filters of its request it matches.
    pub places: Places,
}

/// Some filters of a request, by their places in it.
///
/// A relay cuts its answer to each filter on its own. Several histories can share a request only if it is known
/// which of them an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places(u32);

impl Places {
    /// The most filters that a request of ours has.
    pub(super) const MOST: usize = 32;

    /// The filters that match the event.
    pub fn of(filters: &[Filter], event: &Event) -> Self {
        let options = MatchEventOptions::default();
        Self::from_iter(filters.iter().map(|filter| filter.match_event(event, options)))
    }

    /// Whether none does.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the filter at this place does.
    pub(super) fn has(self, place: usize) -> bool {
        u32::try_from(place).is_ok_and(|place| self.0.checked_shr(place).unwrap_or(0) & 1 == 1)
    }
}

impl FromIterator<bool> for Places {
    /// From whether each filter matches, in their order.
    fn from_iter<I: IntoIterator<Item = bool>>(matches: I) -> Self {
        let bits = matches.into_iter().take(Self::MOST).enumerate();
        Self(bits.fold(0, |places, (place, is_match)| places | u32::from(is_match) << place))
    }
}

/// What became of one delivered event.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Which one.
    pub row: Row,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of an event at our own relay.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is stored, and was not before.
    Stored,
    /// It is held until its git data is here.
    Held,
    /// It was here already, or a version that wins over it.
    Known,
    /// Its id or signature does not verify.
    Forged,
    /// It was refused.
    Refused {
        /// For how long that holds.
        lasting: Lasting,
        /// The event itself if it was refused for want of something: it is offered again when that arrives.
        event: Option<Arc<Event>>,
    },
}

/// Why no connection was made, by who is likely to be at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nobody answered, in time or at all; or our own network is down.
    Unreachable,
    /// The name does not exist. Not: the resolver could not be asked.
    NoSuchHost,
    /// The certificate is not to be believed.
    Certificate(Flaw),
    /// The TLS handshake came to nothing.
    Tls,
    /// Whoever answered speaks no websocket.
    Protocol,
    /// The address is one that may not be dialled.
    Forbidden,
    /// It is there, and only for its own people (GRASP-08).
    Private,
}

/// Why a certificate is not to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flaw {
    /// Nobody whom we trust has signed it.
    Untrusted,
    /// It was made for another name.
    OtherName,
    /// It has expired, or does not hold yet; or a clock is wrong.
    OutOfDate,
    /// Something else is wrong with it.
    Invalid,
}

/// The local relay could not say what it has. An empty list would mean something else: that it has nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InventoryFailed;

/// Something to be done. Never waits for anything: what comes of it returns as an [`Input`].
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Connect, and fetch what the relay says about itself (NIP-11).
    Connect {
        /// To whom.
        relay: RelayUrl,
        /// What to call the connection.
        conn: ConnId,
        /// Whether the operator configured this relay, rather than somebody's event.
        configured: bool,
    },
    /// End a connection, or an attempt.
    Disconnect {
        /// To whom.
        relay: RelayUrl,
        /// Which one.
        conn: ConnId,
    },
    /// Send a frame.
    Send {
        /// To whom.
        relay: RelayUrl,
        /// On which connection.
        conn: ConnId,
        /// What.
        frame: Frame,
    },
    /// Ask the local relay what it has for this filter.
    FetchInventory {
        /// What to call the question.
        request: InventoryId,
        /// What to look for.
        filter: Box<Filter>,
    },
    /// Keep this on disk, in place of what was kept for this relay.
    Persist(Box<RelayRecord>),
    /// Offer these events to the local relay once more.
    Reoffer {
        /// The events, verified before.
        events: Vec<Arc<Event>>,
    },
    /// Tell the operator: log, metrics, status page.
    Report(Report),
}

/// One frame to one relay.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// REQ.
    Subscribe {
        /// Under this name.
        sub: SubId,
        /// For these.
        filters: Vec<Filter>,
        /// As what events that come of it are to be handed to the local relay.
        path: SyncPath,
    },
    /// CLOSE.
    Unsubscribe {
        /// Which one.
        sub: SubId,
    },
    /// NEG-OPEN.
    NegOpen {
        /// Under this name.
        sub: SubId,
        /// For this.
        filter: Box<Filter>,
        /// To be encoded as hex.
        message: Vec<u8>,
    },
    /// NEG-MSG.
    NegMsg {
        /// Of which session.
        sub: SubId,
        /// To be encoded as hex.
        message: Vec<u8>,
    },
    /// NEG-CLOSE.
    NegClose {
        /// Which session.
        sub: SubId,
    },
    /// AUTH: answer the latest challenge with the service key.
    Authenticate,
}

impl Frame {
    /// What it asks for, if anything.
    pub(super) fn request(&self) -> Option<Request> {
        match self {
            Self::Subscribe { path: SyncPath::Live, .. } => Some(Request::Live),
            Self::Subscribe { filters, .. } => match filters.iter().any(|one| one.ids.is_some()) {
                true => Some(Request::Ids),
                false => Some(Request::Page),
            },
            Self::NegOpen { .. } => Some(Request::Compare),
            Self::Unsubscribe { .. } | Self::NegMsg { .. } | Self::NegClose { .. } => None,
            Self::Authenticate => None,
        }
    }
}
