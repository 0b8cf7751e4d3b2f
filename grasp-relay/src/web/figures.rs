//! The status of a server: for its page, its JSON and the command line.

use grasp_core::limits::ConnectionStatus;
use grasp_core::limits::Health;
use grasp_purgatory::Counts;
use nostr::event::EventId;
use serde::{Deserialize, Serialize};

use super::history::Series;
use super::status::{format_age, format_bytes, format_duration};

/// The status of a server or sidecar.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The version of grasp.
    pub version: String,
    /// The public address.
    pub service: String,
    /// The relay that a sidecar syncs; `None` for a server.
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
    pub git_bytes: u64,
    /// Bytes of all data on disk.
    pub disk_bytes: u64,
    /// Bytes of git data that all repositories may have; `None` for any number.
    pub git_quota_bytes: Option<u64>,
    /// Addresses of repositories whose git objects are not all on disk any more.
    pub damaged: Vec<String>,
    /// Days for which the TLS certificate is valid; `None` if the server does no TLS itself.
    pub certificate_days_left: Option<u64>,
    /// The reason why there is no TLS certificate, or why it was not renewed.
    pub certificate_problem: Option<String>,
    /// Websockets of clients.
    pub sockets: u64,
    /// Connections and feeds with a subscription.
    pub listeners: u64,
    /// Subscriptions of clients.
    pub subscriptions: u64,
    /// Events received since the start.
    pub intake: IntakeFigures,
    /// New events per minute, over the last minute.
    pub events_per_minute: f64,
    /// Events and uploads in purgatory.
    pub purgatory: PurgatoryFigures,
    /// The relays that are synced with.
    pub relays: Vec<RelayRow>,
    /// The nodes of the server, if it has several.
    pub nodes: Vec<NodeStatus>,
    /// Events, pushes, sync and hunt over the last hour and day.
    pub history: Vec<Series>,
    /// The relays and git servers around this one.
    pub neighbours: Vec<Neighbour>,
}

/// A host with a relay that is synced with, or with git servers of repositories that are hosted here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// The host.
    pub host: String,
    /// Its relay is connected.
    pub is_connected: bool,
    /// It has a relay that is followed.
    pub is_relay: bool,
    /// Events of ours that its relay lacks.
    pub missing: u64,
    /// Repositories with the same refs there.
    pub equal: u64,
    /// Repositories with other refs there.
    pub different: u64,
    /// Repositories that it did not answer for.
    pub unreachable: u64,
    /// Repositories that were not compared yet.
    pub unknown: u64,
}

impl Neighbour {
    /// Describes the host in a sentence.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        if self.is_relay {
            parts.push(match self.is_connected {
                true => "relay connected".to_owned(),
                false => "relay not connected".to_owned(),
            });
        }
        for (count, text) in [
            (self.missing, "events missing there"),
            (self.equal, "repositories in step"),
            (self.different, "with other refs"),
            (self.unreachable, "unreachable"),
            (self.unknown, "not compared yet"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {text}"));
            }
        }
        parts.join(", ")
    }
}

/// The status of one node of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The address at which the other nodes reach it.
    pub address: String,
    /// It admits events and pushes.
    pub is_writer: bool,
    /// It has reported within the last seconds.
    pub is_up: bool,
    /// Seconds since its last report.
    pub seen: u64,
    /// Its version of grasp.
    pub version: String,
    /// Events that are committed and not published to its subscriptions yet.
    pub lag: u64,
    /// Websockets of its clients.
    pub sockets: u64,
    /// Reads of repositories whose packs were in its cache.
    pub cache_hits: u64,
    /// Reads of repositories whose packs it had to download.
    pub cache_misses: u64,
    /// Bytes of packs in its cache.
    pub cache_bytes: u64,
    /// Packs that it is uploading.
    pub uploads: u64,
}

impl NodeStatus {
    /// Returns its role in a word.
    pub fn role(&self) -> &'static str {
        match (self.is_up, self.is_writer) {
            (false, _) => "down",
            (true, true) => "writer",
            (true, false) => "reader",
        }
    }

    /// Returns its cells in a table: a label and a text each.
    pub fn cells(&self) -> [(&'static str, String); 8] {
        [
            ("node", self.address.clone()),
            ("role", self.role().into()),
            ("last report", format!("{} ago", format_duration(self.seen))),
            ("version", self.version.clone()),
            ("events behind", self.lag.to_string()),
            ("connections", self.sockets.to_string()),
            (
                "pack cache",
                format!(
                    "{}, {} % hits",
                    format_bytes(self.cache_bytes),
                    self.cache_hit_percent()
                ),
            ),
            ("uploads", self.uploads.to_string()),
        ]
    }

    /// Returns the share of reads that found their packs in the cache, in percent.
    pub fn cache_hit_percent(&self) -> u64 {
        let all = self.cache_hits.saturating_add(self.cache_misses);
        (self.cache_hits * 100).checked_div(all).unwrap_or(100)
    }
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
#[serde(default)]
pub struct PurgatoryFigures {
    /// The numbers of held events, uploads and tasks.
    #[serde(flatten)]
    pub counts: Counts,
    /// Repository names whose git data is hunted for.
    pub hunting: u64,
    /// Names whose git data was fetched since the hunt was last idle.
    pub fetched: u64,
    /// Names in the queues of git servers.
    pub queued: u64,
    /// Names that leave the queues per minute, at the present limits of those servers.
    pub per_minute: u64,
    /// Seconds until the queues are empty, at that rate.
    pub seconds_left: Option<u64>,
    /// Seconds until the next attempt.
    pub next_attempt_in: Option<u64>,
    /// Events that expire within an hour.
    pub expiring: u64,
}

/// The status of one relay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RelayRow {
    /// The address.
    pub url: String,
    /// The state of the connection.
    pub state: ConnectionStatus,
    /// The start of that state, in Unix seconds.
    pub since: u64,
    /// The health by recent failures.
    pub health: Health,
    /// The last time that sync was complete, in Unix seconds.
    pub synced_at: Option<u64>,
    /// Events that it has offered or sent, before admission.
    pub backlog: u64,
    /// New events from this relay; held ones count once they are stored.
    pub stored: u64,
    /// Events that an open live subscription should have delivered and that a catch-up or the daily pass found.
    pub gaps: u64,
    /// Interruptions of live subscriptions since the last full pass; events published meanwhile with an older date come
    /// with the next one.
    pub interruptions: u64,
    /// The text of its last refusal, shortened.
    pub refusal: Option<String>,
    /// The reason why it cannot be connected to.
    pub failure: Option<String>,
    /// The next attempt to connect, in Unix seconds.
    pub retry_at: Option<u64>,
    /// The share of time that it was connected, from 0 to 1.
    pub uptime: Option<f64>,
    /// The share of events that it had, of those it sent and those of ours it was compared with, from 0 to 1.
    pub coverage: Option<f64>,
    /// The events of ours that it lacks, by repository, most first.
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

/// Limits the repositories in the text of missing events.
const MAX_MISSING_SHOWN: usize = 3;

/// A hosted repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryRow {
    /// The owner, as npub.
    pub owner: String,
    /// The identifier.
    pub identifier: String,
    /// The display name.
    pub name: String,
    /// The description.
    pub description: String,
    /// The topics that its owner named.
    #[serde(default)]
    pub topics: Vec<String>,
    /// The path on this server.
    pub path: String,
    /// The date of the newest announcement or state, in Unix seconds.
    pub active_at: u64,
    /// The number of branches and tags in the newest state of a maintainer.
    pub refs: u64,
    /// The announcement.
    #[serde(skip)]
    pub announcement: Option<EventId>,
}

/// The git data of owners or repositories, and what they may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageReport {
    /// Bytes of all repositories of the server.
    pub total_bytes: u64,
    /// Bytes that all repositories may have; `None` for any number.
    pub total_quota: Option<u64>,
    /// Owners or repositories, those with most first.
    pub rows: Vec<UsageRow>,
}

/// The git data of an owner or a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageRow {
    /// The owner, as npub.
    pub owner: String,
    /// The name of the repository; `None` for all of the owner.
    pub repository: Option<String>,
    /// Bytes of the packs, without their indexes.
    pub bytes: u64,
    /// Bytes that it may have.
    pub quota: u64,
    /// The operator gave this quota; otherwise it is that of the settings.
    pub is_given: bool,
    /// The number of repositories with git data.
    pub repositories: u64,
}

impl UsageRow {
    /// Returns whose git data it is: an npub, or `NPUB/NAME`.
    pub fn name(&self) -> String {
        match &self.repository {
            Some(name) => format!("{}/{name}", self.owner),
            None => self.owner.clone(),
        }
    }
}

/// A repository whose events wait for git data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitingRow {
    /// The owner, as npub.
    pub owner: String,
    /// The identifier.
    pub identifier: String,
    /// Events whose git data is hunted for.
    pub waiting: u64,
    /// Expired events, whose git data is hunted for at long intervals.
    pub expired: u64,
    /// Objects that the events name.
    pub tips: u64,
    /// Failed attempts.
    pub attempts: u64,
    /// Seconds until the next attempt; `None` if one is running or none is due.
    pub next_in: Option<u64>,
    /// The position in the shortest queue of a git server, from 1.
    pub position: Option<u64>,
    /// Least number of seconds in that queue.
    pub wait_seconds: Option<u64>,
    /// Seconds until the first of the events expires.
    pub expires_in: Option<u64>,
    /// Git servers that the events name.
    pub git_servers: Vec<String>,
}

impl RelayRow {
    /// Returns the label and text of each column of the list of relays.
    pub fn cells(&self, now: u64) -> [(&'static str, String); 11] {
        [
            ("relay", self.url.clone()),
            ("state", self.state_text().into()),
            ("health", format!("{:?}", self.health).to_lowercase()),
            ("synced", self.synced_text(now)),
            ("backlog", self.backlog.to_string()),
            ("new events", self.stored.to_string()),
            ("gaps", self.gaps.to_string()),
            ("up", percent(self.uptime)),
            ("coverage", percent(self.coverage)),
            ("missing", self.missing_text()),
            ("remark", self.remark(now)),
        ]
    }

    fn state_text(&self) -> &'static str {
        match self.state {
            ConnectionStatus::Disconnected => "disconnected",
            ConnectionStatus::Connecting => "connecting",
            ConnectionStatus::Syncing => "fetching history",
            ConnectionStatus::Connected => "complete, live",
            ConnectionStatus::ConnectedHistoricSyncFailures => "live, history incomplete",
        }
    }

    /// Formats the last time that sync was complete: `now` while the relay is complete and live.
    fn synced_text(&self, now: u64) -> String {
        match self.state {
            ConnectionStatus::Connected => "now".into(),
            _ => format_age(now, self.synced_at),
        }
    }

    /// Formats the number of missing events, with the repositories that most of them belong to.
    fn missing_text(&self) -> String {
        let all: u64 = self.missing.iter().map(|one| one.events).sum();
        let name = |one: &MissingRow| {
            let name = one
                .repository
                .splitn(3, ':')
                .nth(2)
                .unwrap_or(&one.repository);
            format!("{name} {}", one.events)
        };
        let named: Vec<_> = self
            .missing
            .iter()
            .take(MAX_MISSING_SHOWN)
            .map(name)
            .collect();
        let more = if self.missing.len() > named.len() {
            ", …"
        } else {
            ""
        };
        if all == 0 {
            String::new()
        } else {
            format!("{all} ({}{more})", named.join(", "))
        }
    }

    /// Returns the reason of a failed connection and the next try, or the last refusal, or the interruptions.
    fn remark(&self, now: u64) -> String {
        let retry_in = self
            .retry_at
            .map(|at| format_duration(at.saturating_sub(now)));
        let retry = retry_in.map(|time| format!("next try in {time}"));
        let connection: Vec<_> = self.failure.clone().into_iter().chain(retry).collect();
        match (&self.refusal, self.interruptions) {
            _ if !connection.is_empty() => connection.join("; "),
            (Some(refusal), _) => refusal.clone(),
            (None, 0) => String::new(),
            (None, times) => format!("{times} interruptions since the last full pass"),
        }
    }
}

/// One figure of the status, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The label.
    pub label: &'static str,
    /// The key of its value in the JSON.
    pub key: &'static str,
    /// The formatted value.
    pub text: String,
}

/// Returns a figure. Keys of numbers of bytes end with `bytes`.
fn figure(label: &'static str, key: &'static str, value: u64) -> Figure {
    let is_bytes = key.ends_with("bytes");
    Figure {
        label,
        key,
        text: if is_bytes {
            format_bytes(value)
        } else {
            value.to_string()
        },
    }
}

impl Status {
    /// Returns the number of connected relays.
    pub fn connected(&self) -> usize {
        self.relays
            .iter()
            .filter(|relay| relay.state.is_connected())
            .count()
    }

    /// Returns the figures by section, as page and command line show them. A sidecar stores nothing itself.
    pub fn sections(&self) -> Vec<(&'static str, Vec<Figure>)> {
        let received = vec![
            figure("Stored", "stored", self.intake.stored),
            figure("Held for git data", "held", self.intake.held),
            figure("Already known", "known", self.intake.known),
            figure("Refused", "rejected", self.intake.rejected),
            figure(
                "New per minute",
                "events_per_minute",
                self.events_per_minute.round() as u64,
            ),
        ];
        let received = ("Events received since the start", received);
        if self.beside.is_some() {
            return vec![received];
        }
        let mut stored = vec![
            figure("Repositories", "repositories", self.repositories),
            figure("Events", "events", self.events),
            figure("Event store", "store_bytes", self.store_bytes),
            figure("Git data", "git_bytes", self.git_bytes),
            figure("Total on disk", "disk_bytes", self.disk_bytes),
        ];
        if let Some(bytes) = self.git_quota_bytes {
            stored.push(figure("Git data allowed", "git_quota_bytes", bytes));
        }
        let PurgatoryFigures {
            counts,
            hunting,
            expiring,
            ..
        } = self.purgatory;
        let waiting = vec![
            figure(
                "Announcements",
                "announcements",
                counts.announcements as u64,
            ),
            figure("States", "states", counts.states as u64),
            figure("Pull requests", "proposals", counts.proposals as u64),
            figure("Names hunted for", "hunting", hunting),
            figure("Expire within an hour", "expiring", expiring),
            figure("Expired", "expired", counts.expired as u64),
            figure("Uploads", "staged", counts.staged as u64),
            figure("Size of uploads", "staged_bytes", counts.staged_bytes),
        ];
        vec![
            ("Stored data", stored),
            ("Clients", self.clients()),
            received,
            ("Waiting for git data", waiting),
        ]
    }

    fn clients(&self) -> Vec<Figure> {
        let mut clients = vec![
            figure("Connections", "sockets", self.sockets),
            figure("Subscriptions", "subscriptions", self.subscriptions),
        ];
        if let Some(days) = self.certificate_days_left {
            clients.push(figure(
                "TLS certificate, days left",
                "certificate_days_left",
                days,
            ));
        }
        clients
    }
}

impl PurgatoryFigures {
    /// Formats the progress of the hunt, if there is one.
    pub fn hunt_progress(&self) -> Option<String> {
        let (done, all) = (self.fetched, self.fetched + self.hunting);
        let next = match (self.seconds_left, self.next_attempt_in) {
            (Some(left), _) => format!(
                "{} queued, {} per minute, about {} left",
                self.queued,
                self.per_minute,
                format_duration(left.max(1))
            ),
            (None, Some(next)) => format!("next attempt in {}", format_duration(next)),
            (None, None) => "attempts are running".into(),
        };
        (self.hunting > 0).then(|| format!("{done} of {all}, {next}"))
    }
}

/// Formats a share as percent, rounded down.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| {
        format!("{:.1} %", (share * 1_000.0).floor() / 10.0)
    })
}
