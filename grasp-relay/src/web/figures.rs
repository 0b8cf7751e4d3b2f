//! The status of a server: for its page, its JSON and the command line.

use serde::{Deserialize, Serialize};

use super::status::{format_age, format_duration};

/// The status of a server or sidecar.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of grasp.
    pub version: String,
    /// The public address.
    pub service: String,
    /// The relay that a sidecar syncs; `None` for a server.
    #[serde(default)]
    pub beside: Option<String>,
    /// The time of this status, in Unix seconds.
    pub now: u64,
    /// The start of the process, in Unix seconds.
    pub started: u64,
    /// Everything that must work does.
    pub ready: bool,
    /// Number of events that are served.
    pub events: u64,
    /// Number of repositories that are served.
    pub repositories: u64,
    /// Bytes of the event store.
    pub store_bytes: u64,
    /// Bytes of git data: repositories, and uploads that wait for their event.
    #[serde(default)]
    pub git_bytes: u64,
    /// Bytes of all data on disk.
    #[serde(default)]
    pub disk_bytes: u64,
    /// Addresses of repositories whose git objects are not all on disk any more.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// Websockets of clients.
    #[serde(default)]
    pub sockets: u64,
    /// Connections and feeds with a subscription.
    pub listeners: u64,
    /// Subscriptions of clients.
    pub subscriptions: u64,
    /// Events received since the start.
    pub intake: IntakeFigures,
    /// New events per minute, over the last minute.
    #[serde(default)]
    pub events_per_minute: f64,
    /// Events and uploads in purgatory.
    pub purgatory: PurgatoryFigures,
    /// The relays that are synced with.
    pub relays: Vec<RelayRow>,
}

/// Events received since the start of the process, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntakeFigures {
    /// Events stored.
    pub stored: u64,
    /// Events held until their git data is here.
    pub held: u64,
    /// Events already known, or older than the stored version.
    pub known: u64,
    /// Events refused.
    pub rejected: u64,
}

/// Figures of purgatory and the hunt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgatoryFigures {
    /// Announcements held.
    pub announcements: u64,
    /// States held.
    pub states: u64,
    /// Pull requests and updates held.
    pub proposals: u64,
    /// Expired events that are remembered.
    pub expired: u64,
    /// Uploads that wait for their event.
    pub staged: u64,
    /// Bytes of held events in memory.
    pub bytes: u64,
    /// Bytes of uploads on disk.
    pub staged_bytes: u64,
    /// Repository names whose git data is hunted for.
    pub hunting: u64,
    /// Names whose git data was fetched since the hunt was last idle.
    #[serde(default)]
    pub hunted: u64,
    /// Names in the queues of git servers.
    #[serde(default)]
    pub in_line: u64,
    /// Names that leave the queues per minute, at the present limits of those servers.
    #[serde(default)]
    pub per_minute: u64,
    /// Seconds until the queues are empty, at that rate.
    #[serde(default)]
    pub seconds_left: Option<u64>,
    /// Seconds until the next attempt.
    #[serde(default)]
    pub next_attempt_in: Option<u64>,
    /// Events that expire within an hour.
    #[serde(default)]
    pub expiring: u64,
}

/// The status of one relay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayRow {
    /// The address.
    pub url: String,
    /// The state of the connection.
    pub state: RelayState,
    /// The start of that state, in Unix seconds.
    pub since: u64,
    /// The health by recent failures.
    pub health: RelayHealth,
    /// The last time that sync was complete, in Unix seconds.
    pub synced_at: Option<u64>,
    /// Events that it has offered or sent, before admission.
    pub backlog: u64,
    /// New events from this relay; held ones count once they are stored.
    pub stored: u64,
    /// Events that live sync missed and a catch-up found.
    pub gaps: u64,
    /// Interruptions of live subscriptions since the last full pass; events published meanwhile with an older date come
    /// with the next one.
    #[serde(default)]
    pub interruptions: u64,
    /// The text of its last refusal, shortened.
    pub refusal: Option<String>,
    /// The reason why it cannot be connected to.
    #[serde(default)]
    pub trouble: Option<String>,
    /// The next attempt to connect, in Unix seconds.
    #[serde(default)]
    pub retry_at: Option<u64>,
    /// The share of time that it was connected, from 0 to 1.
    pub uptime: Option<f64>,
    /// The share of events that it had, of those it sent and those of ours it was compared with, from 0 to 1.
    #[serde(default)]
    pub coverage: Option<f64>,
    /// The events of ours that it lacks, by repository, most first.
    #[serde(default)]
    pub missing: Vec<MissingRow>,
}

/// The number of events of one repository that a relay lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRow {
    /// The repository, as `30617:<owner>:<identifier>`.
    pub repository: String,
    /// The number of events.
    pub events: u64,
}

/// Limits the repositories in [`RelayRow::missing_text`].
const MAX_MISSING_SHOWN: usize = 3;

/// The state of a connection to a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayState {
    /// Not connected.
    #[default]
    Disconnected,
    /// Connecting.
    Connecting,
    /// Connected; history is still being fetched.
    Syncing,
    /// Connected, history complete.
    Connected,
    /// Connected and live, but some history could not be fetched.
    Incomplete,
}

/// The health of a relay by recent failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayHealth {
    /// No recent failure.
    #[default]
    Healthy,
    /// Failed recently.
    Degraded,
    /// Failed for so long that connection attempts are rare.
    Dead,
}

/// A hosted repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepoRow {
    /// The owner, as npub.
    pub owner: String,
    /// The identifier.
    pub identifier: String,
    /// The display name.
    pub name: String,
    /// The description.
    pub description: String,
    /// The path on this server.
    pub path: String,
    /// The date of the newest announcement or state, in Unix seconds.
    pub active_at: u64,
    /// The number of branches and tags in the newest state of a maintainer.
    pub refs: u64,
}

/// A repository name whose events wait for git data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingRow {
    /// The identifier.
    pub identifier: String,
    /// Events whose git data is hunted for.
    pub hunted: u64,
    /// Expired events, whose git data is looked for at long intervals.
    pub wanted: u64,
    /// Objects that the events name.
    pub tips: u64,
    /// Failed attempts.
    #[serde(default)]
    pub attempts: u64,
    /// Seconds until the next attempt; `None` if one is running or none is due.
    #[serde(default)]
    pub next_in: Option<u64>,
    /// The position in the shortest queue of a git server, from 1.
    #[serde(default)]
    pub position: Option<u64>,
    /// Least number of seconds in that queue.
    #[serde(default)]
    pub turn_in: Option<u64>,
    /// Seconds until the first of the events expires.
    #[serde(default)]
    pub expires_in: Option<u64>,
    /// Git servers that may have the objects.
    pub places: Vec<String>,
}

impl RelayRow {
    /// Returns whether the relay is connected.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, RelayState::Syncing | RelayState::Connected | RelayState::Incomplete)
    }

    /// Formats the last time that sync was complete: `now` while the relay is complete and live.
    pub fn synced_text(&self, now: u64) -> String {
        match self.state {
            RelayState::Connected => "now".into(),
            _ => format_age(now, self.synced_at),
        }
    }

    /// Formats the coverage.
    pub fn coverage_text(&self) -> String {
        percent(self.coverage)
    }

    /// Formats the uptime.
    pub fn uptime_text(&self) -> String {
        percent(self.uptime)
    }

    /// Formats the number of missing events, with the repositories that most of them belong to.
    pub fn missing_text(&self) -> String {
        let all: u64 = self.missing.iter().map(|one| one.events).sum();
        let name = |one: &MissingRow| {
            let name = one.repository.splitn(3, ':').nth(2).unwrap_or(&one.repository);
            format!("{name} {}", one.events)
        };
        let named: Vec<_> = self.missing.iter().take(MAX_MISSING_SHOWN).map(name).collect();
        let more = if self.missing.len() > named.len() { ", …" } else { "" };
        if all == 0 { String::new() } else { format!("{all} ({}{more})", named.join(", ")) }
    }

    /// Returns the reason of a failed connection and the next try, or the last refusal, or the interruptions.
    pub fn remark(&self, now: u64) -> String {
        let retry = self
            .retry_at
            .map(|at| format!("next try in {}", format_duration(at.saturating_sub(now))));
        match (&self.trouble, retry) {
            (Some(trouble), Some(retry)) => format!("{trouble}; {retry}"),
            (Some(trouble), None) => trouble.clone(),
            (None, Some(retry)) => retry,
            (None, None) => match (&self.refusal, self.interruptions) {
                (Some(refusal), _) => refusal.clone(),
                (None, 0) => String::new(),
                (None, times) => format!("{times} interruptions since the last full pass"),
            },
        }
    }
}

/// Formats a share as percent, rounded down.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{:.1} %", (share * 1_000.0).floor() / 10.0))
}

impl RelayState {
    /// Returns the state as text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::Connecting => "connecting",
            Self::Syncing => "fetching history",
            Self::Connected => "complete, live",
            Self::Incomplete => "live, history incomplete",
        }
    }
}

impl RelayHealth {
    /// Returns the health as text.
    pub fn text(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Dead => "dead",
        }
    }
}
