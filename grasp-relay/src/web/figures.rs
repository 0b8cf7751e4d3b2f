//! How a server stands, as figures: for its status page, its JSON, and whoever asks it from the command line.

use serde::{Deserialize, Serialize};

use super::status::{ago, span};

/// How a server stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What runs.
    pub version: String,
    /// The address that others reach it at.
    pub service: String,
    /// The relay that it stands beside, if it only keeps another relay complete.
    #[serde(default)]
    pub beside: Option<String>,
    /// When this was written down, in Unix time.
    pub now: u64,
    /// When the process started, in Unix time.
    pub started: u64,
    /// Whether everything that must work does.
    pub ready: bool,
    /// Events that are served.
    pub events: u64,
    /// Repositories that are served.
    pub repositories: u64,
    /// Bytes of the event store.
    pub store_bytes: u64,
    /// Bytes of git data: repositories, and uploads that wait.
    #[serde(default)]
    pub git_bytes: u64,
    /// Bytes of everything that is kept on disk.
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
    /// What came in since the process started.
    pub intake: Intake,
    /// Events that were new, per minute, lately.
    #[serde(default)]
    pub events_per_minute: f64,
    /// What waits for git data.
    pub purgatory: PurgatoryFigures,
    /// Every relay that is followed.
    pub relays: Vec<RelayRow>,
}

/// Events that came in since the process started, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intake {
    /// Stored.
    pub stored: u64,
    /// Held until their git data is here.
    pub held: u64,
    /// Known already, or older than what is here.
    pub known: u64,
    /// Refused.
    pub rejected: u64,
}

/// What waits for git data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgatoryFigures {
    /// Announcements.
    pub announcements: u64,
    /// States.
    pub states: u64,
    /// Pull requests and updates.
    pub proposals: u64,
    /// Expired, and remembered.
    pub shelved: u64,
    /// Uploads that wait for their event.
    pub staged: u64,
    /// What the waiting events take in memory.
    pub bytes: u64,
    /// What the uploads take on disk.
    pub staged_bytes: u64,
    /// Repository names whose git data is hunted for.
    pub hunting: u64,
    /// Names whose git data came, since there was last nothing to hunt for.
    #[serde(default)]
    pub hunted: u64,
    /// Names that wait for their turn at git servers.
    #[serde(default)]
    pub in_line: u64,
    /// Names whose turn comes within a minute, at the limits that those servers have now.
    #[serde(default)]
    pub per_minute: u64,
    /// Seconds until the last of them has its turn, at that rate.
    #[serde(default)]
    pub seconds_left: Option<u64>,
    /// Seconds until the next attempt to get some of it.
    #[serde(default)]
    pub next_attempt_in: Option<u64>,
    /// Events that expire within an hour.
    #[serde(default)]
    pub expiring: u64,
}

/// How things stand with one relay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayRow {
    /// Its address.
    pub url: String,
    /// Where the connection stands.
    pub state: RelayState,
    /// Since when, in Unix time.
    pub since: u64,
    /// What is to be thought of it.
    pub health: RelayHealth,
    /// When everything asked for was last here, in Unix time.
    pub synced_at: Option<u64>,
    /// Events that it has offered or sent and that are not judged yet.
    pub backlog: u64,
    /// Events that it brought and that were new. What waits for git data counts once it is stored.
    pub stored: u64,
    /// Events that live sync should have brought and a catch-up brought instead.
    pub gaps: u64,
    /// Times since the last full pass that something of it was not listened to: events that were published then with an
    /// older date come with the next full pass.
    #[serde(default)]
    pub interruptions: u64,
    /// What it last refused, in its own words, shortened.
    pub refusal: Option<String>,
    /// Why it cannot be connected to, if it cannot.
    #[serde(default)]
    pub trouble: Option<String>,
    /// When it is tried again, in Unix time, if it could not be connected to.
    #[serde(default)]
    pub retry_at: Option<u64>,
    /// The share of time that it was there, from 0 to 1.
    pub uptime: Option<f64>,
    /// The share of events that it had, of those it brought and those of ours it was compared with, from 0 to 1.
    #[serde(default)]
    pub coverage: Option<f64>,
    /// What it lacks of ours, by repository, most first.
    #[serde(default)]
    pub missing: Vec<MissingRow>,
}

/// What a relay lacks of one repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingRow {
    /// The repository, as `30617:<owner>:<identifier>`.
    pub repository: String,
    /// Events that we have and the relay lacks.
    pub events: u64,
}

/// Repositories of which it is written what a relay lacks.
const MAX_MISSING_SHOWN: usize = 3;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayState {
    /// Nobody is talking.
    #[default]
    Disconnected,
    /// An attempt is under way.
    Connecting,
    /// Connected; history is still being fetched.
    Syncing,
    /// Connected, history complete.
    Connected,
    /// Connected and live, but some history could not be had.
    Incomplete,
}

/// What is to be thought of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayHealth {
    /// No failure on record.
    #[default]
    Healthy,
    /// Failed lately.
    Degraded,
    /// Has failed for so long that it is tried only rarely.
    Dead,
}

/// One repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepoRow {
    /// Whose it is, as npub.
    pub owner: String,
    /// The name that addresses it.
    pub identifier: String,
    /// The name for people.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Where it is on this server, from the root.
    pub path: String,
    /// When it was last announced or its state last signed, in Unix time.
    pub active_at: u64,
    /// Branches and tags that the newest state of a keeper names.
    pub refs: u64,
}

/// One repository name under which something waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingRow {
    /// The name.
    pub identifier: String,
    /// Events that wait for git data, and are hunted for.
    pub hunted: u64,
    /// Events that expired, and are looked for now and then.
    pub wanted: u64,
    /// Objects that they name.
    pub tips: u64,
    /// Attempts to get them that were in vain.
    #[serde(default)]
    pub attempts: u64,
    /// Seconds until the next attempt; none if one is under way, or none is due.
    #[serde(default)]
    pub next_in: Option<u64>,
    /// The place in the shortest line of a git server, from 1, while a turn there is waited for.
    #[serde(default)]
    pub position: Option<u64>,
    /// Seconds until that turn comes, at least.
    #[serde(default)]
    pub turn_in: Option<u64>,
    /// Seconds until the first of the events expires.
    #[serde(default)]
    pub expires_in: Option<u64>,
    /// Git servers where those may be.
    pub places: Vec<String>,
}

impl RelayRow {
    /// Whether it is connected.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, RelayState::Syncing | RelayState::Connected | RelayState::Incomplete)
    }

    /// When everything asked for was last here, in words: all the time, while it is complete and live.
    pub fn synced(&self, now: u64) -> String {
        match self.state {
            RelayState::Connected => "now".into(),
            _ => ago(now, self.synced_at),
        }
    }

    /// The share of events that it had, in words.
    pub fn coverage(&self) -> String {
        self.coverage
            .map_or_else(String::new, |share| format!("{:.1} %", (share * 1_000.0).floor() / 10.0))
    }

    /// The share of time that it was there, in words.
    pub fn uptime(&self) -> String {
        self.uptime
            .map_or_else(String::new, |share| format!("{:.1} %", (share * 1_000.0).floor() / 10.0))
    }

    /// What it lacks, in words: all of it, and of which repositories most.
    pub fn lacks(&self) -> String {
        let all: u64 = self.missing.iter().map(|one| one.events).sum();
        let name = |one: &MissingRow| {
            let name = one.repository.splitn(3, ':').nth(2).unwrap_or(&one.repository);
            format!("{name} {}", one.events)
        };
        let named: Vec<_> = self.missing.iter().take(MAX_MISSING_SHOWN).map(name).collect();
        let more = if self.missing.len() > named.len() { ", …" } else { "" };
        if all == 0 { String::new() } else { format!("{all} ({}{more})", named.join(", ")) }
    }

    /// What an operator should know about it: why it cannot be reached and when it is tried again, or what it refused.
    pub fn remark(&self, now: u64) -> String {
        let retry = self.retry_at.map(|at| format!("next try in {}", span(at.saturating_sub(now))));
        match (&self.trouble, retry) {
            (Some(trouble), Some(retry)) => format!("{trouble}; {retry}"),
            (Some(trouble), None) => trouble.clone(),
            (None, Some(retry)) => retry,
            (None, None) => match (&self.refusal, self.interruptions) {
                (Some(refusal), _) => refusal.clone(),
                (None, 0) => String::new(),
                (None, times) => format!("listening interrupted {times}× since the last full pass"),
            },
        }
    }
}

impl RelayState {
    /// The state in words.
    pub fn words(self) -> &'static str {
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
    /// The health in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Dead => "dead",
        }
    }
}
