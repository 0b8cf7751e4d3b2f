//! What the operator should know.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::admission::SyncPath;
use grasp_core::limits::{Health, PeerText, Refusal};
use grasp_core::sync::{BatchId, ConnectionStatus, SyncMethod};
use grasp_core::{RelayUrl, RepoId, nostr};
use nostr::event::EventId;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::io::Fault;

/// Something worth a log line, a count, or a place on a status page.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Report {
    /// A relay has become a target.
    Discovered {
        /// Which.
        relay: RelayUrl,
    },
    /// Nobody needs a relay any more.
    Retired {
        /// Which.
        relay: RelayUrl,
    },
    /// A connection stands differently.
    Status {
        /// With whom.
        relay: RelayUrl,
        /// Where it stands now.
        status: ConnectionStatus,
    },
    /// A relay is to be thought of differently.
    Health {
        /// Of which.
        relay: RelayUrl,
        /// What is to be thought of it now.
        health: Health,
        /// How long it has failed, over restarts of this process too.
        failing_for: Duration,
    },
    /// An attempt to connect was in vain.
    ConnectFailed {
        /// To whom.
        relay: RelayUrl,
        /// What was wrong.
        why: Fault,
        /// How things stand after it.
        failure: Failure,
    },
    /// New events were stored, and where they came from.
    Stored {
        /// Where from.
        from: Source,
        /// How many.
        count: usize,
    },
    /// Events turned up that a live subscription on a standing connection should have brought.
    Gap {
        /// Where.
        relay: RelayUrl,
        /// How they were found; after a daily pass the gap was a lasting one.
        path: SyncPath,
        /// How many.
        count: usize,
    },
    /// A relay lacks events of ours about a repository.
    Lacking {
        /// Which relay.
        relay: RelayUrl,
        /// Which repository.
        repo: RepoId,
        /// Events that it is known to lack since the last full pass began.
        count: usize,
    },
    /// What has been seen of a relay so far. Told when it is taken up again, when a connection ends, and after each
    /// full pass.
    Reliability {
        /// Which.
        relay: RelayUrl,
        /// What.
        seen: PeerReliability,
    },
    /// A relay gave all it has for a batch of repositories and roots.
    BatchConfirmed {
        /// Which relay.
        relay: RelayUrl,
        /// Which batch.
        batch: BatchId,
        /// Repositories in it.
        repos: usize,
        /// Roots in it.
        roots: usize,
        /// How it was had.
        method: SyncMethod,
    },
    /// A relay does not reconcile sets (NIP-77): its history is fetched by pages. Told once, until it does.
    NoNegentropy {
        /// Where.
        relay: RelayUrl,
        /// What it meant.
        refusal: Refusal,
        /// What it said, if anything.
        text: PeerText,
    },
    /// A relay that was paged through reconciles again.
    Negentropy {
        /// Which.
        relay: RelayUrl,
    },
    /// A relay refused something, or remarked on it. Told once per connection for each meaning.
    Refused {
        /// Which.
        relay: RelayUrl,
        /// What it meant.
        refusal: Refusal,
        /// What it said.
        text: PeerText,
    },
    /// A relay offered an event and never delivered it. It is not asked for again for some days.
    GaveUp {
        /// Which relay.
        relay: RelayUrl,
        /// Which event.
        event: EventId,
    },
    /// A relay's connection was ended in favour of another that waits for one. It waits for its next turn.
    GaveWay {
        /// Which relay.
        relay: RelayUrl,
    },
    /// A relay's connection was ended because it brought forged events. The relay is left alone for longer each time.
    Forged {
        /// Which relay.
        relay: RelayUrl,
        /// How many.
        count: usize,
    },
    /// One second holds more events than a relay shows, however it is asked.
    GapSecond {
        /// Which relay.
        relay: RelayUrl,
        /// Which second.
        at: Timestamp,
    },
    /// A GRASP server has too little of what is wanted here to be asked for all of it: it is asked by name again.
    CalledByName {
        /// Which.
        relay: RelayUrl,
    },
    /// A relay was sent a request.
    Requested {
        /// Which relay.
        relay: RelayUrl,
        /// What for.
        request: Request,
    },
    /// Something was not listened to for a while. Events that were published then are asked for by date, so one with
    /// an older date is found only by the next full pass.
    Interrupted {
        /// At which relay.
        relay: RelayUrl,
        /// How often, since the last full pass began that came to its end.
        times: usize,
    },
    /// A connection's live filters were rebuilt as fewer.
    Consolidated {
        /// Which.
        relay: RelayUrl,
        /// Filters before.
        before: usize,
        /// Filters after.
        after: usize,
    },
}

/// A request, by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// REQ that stays open.
    Live,
    /// REQ for a page of what is stored.
    Page,
    /// REQ for events by id.
    Ids,
    /// NEG-OPEN.
    Compare,
}

/// Where stored events came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A client of our own relay.
    Direct,
    /// Another relay.
    Relay {
        /// Which.
        relay: RelayUrl,
        /// How.
        path: SyncPath,
    },
}

/// How things stand after an attempt to connect that was in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Attempts in vain since the relay was last there, this one included.
    pub attempt: u32,
    /// How long ago the first of them was.
    pub failing_for: Duration,
    /// How long it is left alone now.
    pub retry_in: Duration,
}

/// What has been seen of a relay, over restarts of this process too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerReliability {
    /// Attempts to connect.
    pub attempts: u64,
    /// Those that failed.
    pub failures: u64,
    /// Time connected.
    pub up: Duration,
    /// Time not connected.
    pub down: Duration,
    /// Events it was the first to bring.
    pub received: u64,
    /// Events of ours that it was compared with, counted at each comparison.
    pub compared: u64,
    /// Those of them that it turned out to lack.
    pub lacking: u64,
    /// Events of ours that it lacks, by repository, as the last full pass found them.
    pub missing: BTreeMap<RepoId, u64>,
}

impl PeerReliability {
    /// The share of time that it was there, from 0 to 1; `None` before any time has passed.
    pub fn uptime(&self) -> Option<f64> {
        let all = self.up + self.down;
        (!all.is_zero()).then(|| self.up.as_secs_f64() / all.as_secs_f64())
    }

    /// The share of events it had, of those it brought and those of ours it was compared with, from 0 to 1; `None`
    /// before any comparison.
    pub fn coverage(&self) -> Option<f64> {
        let all = self.received.saturating_add(self.compared);
        (self.compared > 0).then(|| 1.0 - self.lacking as f64 / all as f64)
    }
}
