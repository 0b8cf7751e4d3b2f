//! The inputs and outputs of the engine.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Retry, SyncPath};
use grasp_core::limits::{EoseHint, Health, PeerText};
use grasp_core::{RelayUrl, RepoId, nostr};
use nostr::event::{Event, EventId};
use nostr::filter::{Filter, MatchEventOptions};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::facts::RelayFacts;
use super::relay::RelayRecord;
use crate::limits::Refusal;
use grasp_core::sync::{ConnectionStatus, IndexChange};

/// An input of the engine. Exhaustive on purpose, like [`Output`]: a driver that is written for one version knows them all.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Input {
    /// The local relay has accepted an event, or dropped something.
    Accepted(Accepted),
    /// The local relay's feed has delivered everything that was stored.
    FeedCaughtUp,
    /// The local relay has lost some of what it had.
    FeedLost,
    /// The records of an earlier process. Must be the first input.
    Restored(Vec<RelayRecord>),
    /// A requested connection is open.
    Connected {
        relay: RelayUrl,
        conn: ConnId,
        /// The address that answered, if known: networks have shares of the connections.
        address: Option<IpAddr>,
        facts: RelayFacts,
    },
    /// A requested connection failed.
    ConnectFailed {
        relay: RelayUrl,
        conn: ConnId,
        why: Fault,
    },
    /// A connection is lost. Not sent for one that the engine itself has ended.
    Disconnected { relay: RelayUrl, conn: ConnId },
    /// A relay sent a message.
    Heard {
        relay: RelayUrl,
        conn: ConnId,
        said: Said,
    },
    /// The local relay has judged delivered events. Every row of [`Said::Delivered`] comes back in one of these.
    Ingested {
        relay: RelayUrl,
        conn: ConnId,
        sub: SubId,
        judged: Vec<Judged>,
    },
    /// The local relay has judged events that it was offered again.
    Reoffered { judged: Vec<Judged> },
    /// The inventory of the local relay, in any order.
    Inventory {
        request: InventoryId,
        /// Everything it has that matches, or that it could not tell.
        items: Result<Vec<Row>, InventoryFailed>,
    },
    /// The bootstrap relays are to be these from now on, as in [`Config::bootstrap`](super::Config::bootstrap). The
    /// others are followed for as long as a repository names them.
    Bootstrap(Vec<RelayUrl>),
    /// A full pass of this relay is to begin now; without a connection it is dialled at once, whatever its backoff.
    /// Ignored for a relay that is not followed.
    SyncNow { relay: RelayUrl },
    /// Everything that a relay has for these filters is to be fetched once, over its connection if it has one. Nothing
    /// of it stays open. Ends with [`Output::Visited`].
    Visit {
        relay: RelayUrl,
        /// Never used twice.
        id: VisitId,
        /// Filters for repositories and roots, without a window or a limit.
        filters: Vec<Filter>,
    },
    /// A visit is to end, if it has not. No output follows from it.
    EndVisit { id: VisitId },
    /// Time has passed.
    Tick,
}

/// Something that the local relay has accepted, or dropped.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The event, if it is one: others may have waited for it.
    pub event: Option<EventId>,
    /// True if it is new and no judgement counts it: a client published it, or it was held until now. False if it was
    /// stored by [`Input::Ingested`] or [`Input::Reoffered`], whose outcome says so.
    pub is_uncounted: bool,
    /// The change of what is wanted; see [`index_change`](super::index_change).
    pub change: Option<IndexChange>,
}

/// A message of a relay, in the order in which messages came.
///
/// Events themselves are not part of it: the driver's workers parse them, match them with their subscription and
/// verify them. The engine only learns that they came, and at once, so that an EOSE cannot overtake them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Said {
    /// Events that match the subscription. Not verified yet: these rows move cursors and nothing else.
    Delivered {
        sub: SubId,
        /// All of them, known or not.
        rows: Vec<Delivered>,
    },
    /// EOSE.
    Eose {
        sub: SubId,
        /// True if that was everything (NIP-67), if the relay said so.
        hint: Option<EoseHint>,
    },
    /// CLOSED.
    Closed { sub: SubId, text: String },
    /// NOTICE.
    Notice { text: String },
    /// NEG-MSG.
    NegMsg {
        sub: SubId,
        /// The message, decoded from hex.
        message: Vec<u8>,
    },
    /// NEG-ERR.
    NegErr { sub: SubId, text: String },
    /// AUTH: a challenge. The driver keeps the latest.
    Challenge,
    /// OK, to our answer to the challenge.
    Authenticated { accepted: bool },
}

/// The time and id of an event, as cursors and set comparison need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Its `created_at`.
    pub at: Timestamp,
    /// Its id.
    pub id: EventId,
}

/// An event that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Its time and id.
    pub row: Row,
    /// The filters of its request that it matches.
    pub places: Places,
}

/// Some filters of a request, by position.
///
/// A relay truncates its answer to each filter separately. Several histories can share a request only if it is known
/// which of them an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places(u32);

impl Places {
    pub(super) const MAX: usize = 32;

    /// Returns the filters that match the event.
    pub fn of(filters: &[Filter], event: &Event) -> Self {
        let options = MatchEventOptions::default();
        Self::from_iter(
            filters
                .iter()
                .map(|filter| filter.match_event(event, options)),
        )
    }

    /// Returns whether no filter matches.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the filter at this position matches.
    pub(super) fn has(self, place: usize) -> bool {
        u32::try_from(place).is_ok_and(|place| self.0.checked_shr(place).unwrap_or(0) & 1 == 1)
    }
}

impl FromIterator<bool> for Places {
    /// Builds the set from whether each filter matches, in order.
    fn from_iter<I: IntoIterator<Item = bool>>(matches: I) -> Self {
        let bits = matches.into_iter().take(Self::MAX).enumerate();
        Self(bits.fold(0, |places, (place, is_match)| {
            places | u32::from(is_match) << place
        }))
    }
}

/// The judgement of one delivered event.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The event.
    pub row: Row,
    /// The judgement.
    pub outcome: Outcome,
}

/// The local relay's judgement of an event.
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
        /// The time after which another offer may succeed.
        retry: Retry,
        /// The event, if it was refused for want of a dependency: it is offered again when that arrives.
        event: Option<Arc<Event>>,
    },
}

/// The reason why no connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fault {
    /// No answer in time; or our own network is down.
    Unreachable,
    /// The host name does not exist. Not: the resolver did not answer.
    NoSuchHost,
    /// The certificate is not accepted.
    Certificate(Flaw),
    /// The TLS handshake failed.
    Tls,
    /// The server does not speak websocket.
    Protocol,
    /// The outbound policy forbids the address.
    Forbidden,
    /// The relay is a private service (GRASP-08).
    Private,
    /// The server is there, but its NIP-11 document could not be read: it may be a private service.
    NoDocument,
}

/// The reason why a certificate is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Flaw {
    /// No trusted authority has signed it.
    Untrusted,
    /// It was issued for another name.
    OtherName,
    /// It has expired, or is not valid yet; or a clock is wrong.
    OutOfDate,
    /// Any other fault.
    Invalid,
}

/// The local relay could not list what it has. An empty list would mean that it has nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InventoryFailed {
    /// The list cannot be read now. It is asked for once more, later; then the history is fetched by pages.
    Unreadable,
    /// The list is too large to be made, now or later. The history is fetched by pages, which need no list.
    TooLarge,
}

/// Something to be done. Never blocks: the result comes back as an [`Input`].
///
/// Exhaustive on purpose, like [`Input`], [`Said`], [`Frame`] and [`Outcome`]: an action that a driver does not know would
/// be left undone in silence. A new one breaks its build instead.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Output {
    /// Fetch the relay's NIP-11 document, then open a websocket, unless it is a private service (GRASP-08).
    Connect {
        relay: RelayUrl,
        conn: ConnId,
        /// True if the operator configured this relay, rather than an event naming it.
        configured: bool,
        /// True if the websocket is not to be opened while the document cannot be read. The attempt fails then with
        /// [`Fault::NoDocument`]. A relay that answers without a document has none.
        needs_document: bool,
    },
    /// End a connection, or an attempt.
    Disconnect { relay: RelayUrl, conn: ConnId },
    Send {
        relay: RelayUrl,
        conn: ConnId,
        frame: Frame,
    },
    /// Ask the local relay for its inventory of a filter.
    FetchInventory {
        request: InventoryId,
        filter: Box<Filter>,
    },
    /// Write this record, replacing the relay's earlier one.
    Persist(Box<RelayRecord>),
    /// Offer these events to the local relay again.
    Reoffer {
        /// The events, verified before.
        events: Vec<Arc<Event>>,
    },
    /// A visit has ended.
    Visited { id: VisitId, outcome: VisitOutcome },
    /// Report to the operator: log, metrics, status page.
    Report(Report),
}

/// One frame to a relay.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Frame {
    /// REQ.
    Subscribe {
        sub: SubId,
        filters: Vec<Filter>,
        /// The path under which its events are handed to the local relay.
        path: SyncPath,
    },
    /// CLOSE.
    Unsubscribe { sub: SubId },
    /// NEG-OPEN.
    NegOpen {
        sub: SubId,
        filter: Box<Filter>,
        /// The message, to be encoded as hex.
        message: Vec<u8>,
    },
    /// NEG-MSG.
    NegMsg {
        sub: SubId,
        /// The message, to be encoded as hex.
        message: Vec<u8>,
    },
    /// NEG-CLOSE.
    NegClose { sub: SubId },
    /// AUTH: answer the latest challenge with the service key.
    Authenticate,
}

impl Frame {
    /// Returns the request that it makes, if any.
    pub(super) fn request(&self) -> Option<Request> {
        match self {
            Self::Subscribe {
                path: SyncPath::Live,
                ..
            } => Some(Request::Live),
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

/// One subscription or NIP-77 session on one connection. Never used twice.
///
/// Its text is the subscription id on the wire; a message with any other id is not ours.
///
/// ```
/// use grasp_sync::engine::SubId;
///
/// assert_eq!(SubId::parse("g7").unwrap().to_string(), "g7");
/// assert!(SubId::parse("g07").is_none() && SubId::parse("7").is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubId(pub(crate) u64);

/// One attempt to connect, and the connection that comes of it. Inputs that carry an older one change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(super) u64);

/// One request for the local relay's inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InventoryId(pub(super) u64);

/// One visit of a relay. Chosen by the one who asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VisitId(pub u64);

/// The outcome of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisitOutcome {
    /// The relay gave all that it has for the filters.
    Complete,
    /// It did not: there was no connection or it ended, or the relay refused a request or failed to answer.
    Failed,
}

/// Identifies a batch in logs and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) u64);

impl fmt::Display for SubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl SubId {
    /// Reads the one spelling that we send.
    pub fn parse(text: &str) -> Option<Self> {
        let sub = Self(text.strip_prefix('g')?.parse().ok()?);
        (sub.to_string() == text).then_some(sub)
    }
}

/// One job: the history of one filter. The jobs of a batch follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId {
    pub(super) batch: BatchId,
    pub(super) number: u64,
}

/// One request of the live set, over all the subscriptions that it is sent as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LiveId(pub(super) u64);

/// The source of ids: one counter for all, so that no two are equal.
#[derive(Debug, Default)]
pub(super) struct Ids(u64);

impl Ids {
    /// Returns a new id of a kind, as in `ids.next(SubId)`.
    pub(super) fn next<T>(&mut self, kind: fn(u64) -> T) -> T {
        self.0 += 1;
        kind(self.0)
    }
}

/// An occurrence for the log, a metric or the status page.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
#[non_exhaustive]
pub enum Report {
    /// A relay is followed from now on: it has become a target, or has a visit.
    Discovered { relay: RelayUrl },
    /// A relay is not followed any more. If it is followed for something else from now on, [`Self::Discovered`] follows.
    Retired { relay: RelayUrl },
    /// The status of a connection has changed.
    Status {
        relay: RelayUrl,
        status: ConnectionStatus,
    },
    /// The health of a relay has changed.
    Health {
        relay: RelayUrl,
        health: Health,
        /// The time for which it has failed, across restarts of this process.
        failing_for: Duration,
    },
    /// An attempt to connect failed.
    ConnectFailed {
        relay: RelayUrl,
        why: Fault,
        failure: Failure,
    },
    /// New events were stored.
    Stored { from: Source, count: usize },
    /// Events turned up that an open live subscription should have brought.
    Gap {
        relay: RelayUrl,
        /// The way they were found; after a daily pass the gap was a lasting one.
        path: SyncPath,
        count: usize,
    },
    /// A relay lacks events of ours about a repository.
    Lacking {
        relay: RelayUrl,
        repo: RepoId,
        /// Events that it is known to lack since the last full pass began.
        count: usize,
    },
    /// The reliability of a relay so far. Reported when it is followed again, when a connection ends, and after each
    /// full pass.
    Reliability {
        relay: RelayUrl,
        seen: PeerReliability,
    },
    /// A relay gave all it has for a batch of repositories and roots.
    BatchConfirmed {
        relay: RelayUrl,
        batch: BatchId,
        repos: usize,
        roots: usize,
        method: SyncMethod,
    },
    /// A relay does not support set reconciliation (NIP-77): its history is fetched by pages. Reported once, until it
    /// does.
    NoNegentropy {
        relay: RelayUrl,
        refusal: Refusal,
        /// The relay's text, if any.
        text: PeerText,
    },
    /// A relay that was paged supports reconciliation again.
    Negentropy { relay: RelayUrl },
    /// A relay refused something, or sent a notice. Reported once per connection for each meaning.
    Refused {
        relay: RelayUrl,
        refusal: Refusal,
        /// The relay's text.
        text: PeerText,
    },
    /// A relay offered an event and never delivered it. It is not asked for it again for some days.
    GaveUp { relay: RelayUrl, event: EventId },
    /// A relay's connection was ended in favour of another that waits for one. It waits for its next turn.
    GaveWay { relay: RelayUrl },
    /// A relay's connection was ended because it brought forged events. Its backoff grows each time.
    Forged { relay: RelayUrl, count: usize },
    /// One second holds more events than a relay shows, however it is asked.
    GapSecond { relay: RelayUrl, at: Timestamp },
    /// A GRASP server has too little of what is wanted here for full sync: it is asked by filters again.
    FullSyncEnded { relay: RelayUrl },
    /// A relay was sent a request.
    Requested { relay: RelayUrl, request: Request },
    /// A live subscription was interrupted. Events that were published then are asked for by date, so one with an
    /// older date is found only by the next full pass.
    Interrupted {
        relay: RelayUrl,
        /// Interruptions since the last completed full pass began.
        times: usize,
    },
    /// A connection's live filters were rebuilt as fewer.
    Consolidated {
        relay: RelayUrl,
        /// Filters before.
        before: usize,
        /// Filters after.
        after: usize,
    },
}

/// The way in which the history of a batch was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SyncMethod {
    /// At least one part by pages that end with EOSE.
    ReqEose,
    /// All of it by set reconciliation (NIP-77).
    Negentropy,
}

/// A request, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Request {
    /// REQ that stays open.
    Live,
    /// REQ for a page of stored events.
    Page,
    /// REQ for events by id.
    Ids,
    /// NEG-OPEN.
    Compare,
}

/// The source of stored events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are documented where the name does not say it all"
)]
pub enum Source {
    /// A client of the local relay.
    Direct,
    /// Another relay.
    Relay { relay: RelayUrl, path: SyncPath },
}

/// The state after a failed attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Failed attempts since the relay was last connected, this one included.
    pub attempt: u32,
    /// Time since the first of them.
    pub failing_for: Duration,
    /// Time to the next attempt.
    pub retry_in: Duration,
}

/// The reliability of a relay, across restarts of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PeerReliability {
    /// Attempts to connect.
    pub attempts: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Failed attempts since it was last connected.
    pub consecutive_failures: u32,
    /// The last time at which it was connected.
    pub last_success_at: Option<Timestamp>,
    /// Time connected.
    pub up: Duration,
    /// Time not connected.
    pub down: Duration,
    /// Events it was the first to bring.
    pub received: u64,
    /// Our events that it was compared with, counted at each comparison.
    pub compared: u64,
    /// Those of them that it lacked.
    pub lacking: u64,
    /// Our events that it lacks, by repository, as of the last full pass.
    pub missing: BTreeMap<RepoId, u64>,
}

impl PeerReliability {
    /// Returns the share of time connected, from 0 to 1; `None` before any time has passed.
    pub fn uptime(&self) -> Option<f64> {
        let all = self.up + self.down;
        (!all.is_zero()).then(|| self.up.as_secs_f64() / all.as_secs_f64())
    }

    /// Returns the share of events it had, of those it brought and those it was compared with, from 0 to 1; `None`
    /// before any comparison.
    pub fn coverage(&self) -> Option<f64> {
        let all = self.received.saturating_add(self.compared);
        (self.compared > 0).then(|| 1.0 - self.lacking as f64 / all as f64)
    }
}
