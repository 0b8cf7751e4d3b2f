//! Reports to the operator.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::index::ConnectionStatus;
use crate::limits::Refusal;
use grasp_core::admission::SyncPath;
use grasp_core::limits::{Health, PeerText};
use grasp_core::{RelayUrl, RepoId, nostr};
use nostr::event::EventId;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::ids::BatchId;
use super::io::Fault;

/// An occurrence for the log, a metric or the status page.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
#[non_exhaustive]
pub enum Report {
    /// A relay has become a target.
    Discovered { relay: RelayUrl },
    /// A relay is no longer a target.
    Retired { relay: RelayUrl },
    /// The status of a connection has changed.
    Status { relay: RelayUrl, status: ConnectionStatus },
    /// The health of a relay has changed.
    Health {
        relay: RelayUrl,
        health: Health,
        /// The time for which it has failed, across restarts of this process.
        failing_for: Duration,
    },
    /// An attempt to connect failed.
    ConnectFailed { relay: RelayUrl, why: Fault, failure: Failure },
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
    Reliability { relay: RelayUrl, seen: PeerReliability },
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
    /// A relay's connection was ended because it brought forged events. The relay is left alone for longer each time.
    Forged { relay: RelayUrl, count: usize },
    /// One second holds more events than a relay shows, however it is asked.
    GapSecond { relay: RelayUrl, at: Timestamp },
    /// A GRASP server has too little of what is wanted here for full sync: it is asked by filters again.
    CalledByName { relay: RelayUrl },
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
pub enum SyncMethod {
    /// At least one part by pages that end with EOSE.
    ReqEose,
    /// All of it by set reconciliation (NIP-77).
    Negentropy,
}

/// A request, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub enum Source {
    /// A client of the local relay.
    Direct,
    /// Another relay.
    Relay { relay: RelayUrl, path: SyncPath },
}

/// The state after a failed attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
pub struct PeerReliability {
    /// Attempts to connect.
    pub attempts: u64,
    /// Failed attempts.
    pub failures: u64,
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
