//! How things stand with each relay, for people to look at.

use std::collections::BTreeMap;

use grasp_core::RelayUrl;
use grasp_core::admission::SyncPath;
use grasp_core::limits::{Health, PeerText};
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::ConnectionStatus;

use crate::engine::{Fault, Input, Judged, Outcome, PeerReliability, Report, Said, Source};

/// How things stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Every relay that is followed.
    pub relays: BTreeMap<RelayUrl, RelayStatus>,
    /// Events that clients of the local relay brought since this process began.
    pub direct: u64,
}

/// How things stand with one relay. Counts are of this process.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayStatus {
    /// Where the connection stands.
    pub connection: ConnectionStatus,
    /// Since when it stands there.
    pub since: Timestamp,
    /// What is to be thought of the relay.
    pub health: Health,
    /// When everything asked for was last here.
    pub synced_at: Option<Timestamp>,
    /// Events that came and are not judged yet.
    pub backlog: u64,
    /// Events that it has and that are still to be fetched, as far as that is known beforehand.
    pub wanted: u64,
    /// What became of those that were judged.
    pub counts: Counts,
    /// Events that live sync should have brought, and a catch-up brought instead.
    pub gaps: u64,
    /// Times since the last full pass that something was not listened to; events that were published then with an
    /// older date come with the next full pass.
    pub interruptions: u64,
    /// REQ and NEG-OPEN frames that it was sent.
    pub requests: u64,
    /// Batches of repositories and threads that it gave completely.
    pub batches: u64,
    /// What it last refused, in its own words.
    pub last_refusal: Option<PeerText>,
    /// The last attempt to connect, if it was in vain: what was wrong, and when the next one is due.
    pub failed: Option<Failed>,
    /// What was last summed up about it.
    pub reliability: Option<PeerReliability>,
}

/// An attempt to connect that was in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// What was wrong.
    pub why: Fault,
    /// Attempts in vain since the relay was last there.
    pub attempts: u32,
    /// When the next attempt is due.
    pub retry_at: Timestamp,
}

/// Events that a relay delivered, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// New, and came live.
    pub live: u64,
    /// New, and came while catching up.
    pub catch_up: u64,
    /// New, and came in a daily pass.
    pub daily: u64,
    /// Held for want of git data.
    pub held: u64,
    /// Here already.
    pub known: u64,
    /// Refused by the local relay.
    pub refused: u64,
    /// Forged.
    pub forged: u64,
}

impl Counts {
    /// All that are new here.
    pub fn stored(&self) -> u64 {
        self.live + self.catch_up + self.daily
    }

    /// All that were judged.
    pub fn judged(&self) -> u64 {
        self.stored() + self.held + self.known + self.refused + self.forged
    }

    fn add(&mut self, judged: &[Judged]) {
        for one in judged {
            match one.outcome {
                // Told by a report, which knows the way it came.
                Outcome::Stored => {}
                Outcome::Held => self.held += 1,
                Outcome::Known => self.known += 1,
                Outcome::Refused { .. } => self.refused += 1,
                Outcome::Forged => self.forged += 1,
            }
        }
    }

    fn add_stored(&mut self, path: SyncPath, count: usize) {
        let place = match path {
            SyncPath::Live => &mut self.live,
            SyncPath::CatchUp => &mut self.catch_up,
            SyncPath::Daily => &mut self.daily,
        };
        *place += count as u64;
    }
}

impl RelayStatus {
    fn new(now: Timestamp) -> Self {
        Self {
            connection: ConnectionStatus::Disconnected,
            since: now,
            health: Health::Healthy,
            synced_at: None,
            backlog: 0,
            wanted: 0,
            counts: Counts::default(),
            gaps: 0,
            interruptions: 0,
            requests: 0,
            batches: 0,
            last_refusal: None,
            failed: None,
            reliability: None,
        }
    }

    fn stands(&mut self, now: Timestamp, connection: ConnectionStatus) {
        (self.connection, self.since) = (connection, now);
        match connection {
            ConnectionStatus::Connected => self.synced_at = Some(now),
            ConnectionStatus::Disconnected => self.backlog = 0,
            ConnectionStatus::Syncing => self.failed = None,
            _ => {}
        }
    }
}

impl Status {
    /// Notes what each relay has offered and not delivered yet.
    pub(super) fn wanted<'a>(&mut self, wanted: impl Iterator<Item = (&'a RelayUrl, usize)>) {
        for (relay, count) in wanted {
            self.with(relay, |known| known.wanted = count as u64);
        }
    }

    /// Notes what the engine is about to be told.
    pub(super) fn told(&mut self, input: &Input) {
        match input {
            Input::Heard { relay, said: Said::Delivered { rows, .. }, .. } => {
                if let Some(known) = self.relays.get_mut(relay) {
                    known.backlog += rows.len() as u64;
                }
            }
            Input::Ingested { relay, judged, .. } => {
                if let Some(known) = self.relays.get_mut(relay) {
                    known.backlog = known.backlog.saturating_sub(judged.len() as u64);
                    known.counts.add(judged);
                }
            }
            _ => {}
        }
    }

    /// Notes what the engine reports.
    pub(super) fn reported(&mut self, now: Timestamp, report: &Report) {
        match report {
            Report::Discovered { relay } => {
                self.relays.entry(relay.clone()).or_insert_with(|| RelayStatus::new(now));
            }
            Report::Retired { relay } => _ = self.relays.remove(relay),
            Report::Stored { from: Source::Direct, count } => self.direct += *count as u64,
            Report::Stored { from: Source::Relay { relay, path }, count } => {
                self.with(relay, |known| known.counts.add_stored(*path, *count));
            }
            Report::Status { relay, status } => {
                self.with(relay, |known| known.stands(now, *status))
            }
            Report::Health { relay, health, .. } => {
                self.with(relay, |known| known.health = *health);
            }
            Report::ConnectFailed { relay, why, failure } => {
                let failed = Failed {
                    why: *why,
                    attempts: failure.attempt,
                    retry_at: now + failure.retry_in,
                };
                self.with(relay, |known| known.failed = Some(failed));
            }
            Report::Gap { relay, count, .. } => {
                self.with(relay, |known| known.gaps += *count as u64);
            }
            Report::Interrupted { relay, times } => {
                self.with(relay, |known| known.interruptions = *times as u64);
            }
            Report::Requested { relay, .. } => self.with(relay, |known| known.requests += 1),
            Report::Reliability { relay, seen } => {
                self.with(relay, |known| known.reliability = Some(seen.clone()));
            }
            Report::Lacking { relay, repo, count } => self.with(relay, |known| {
                let seen = known.reliability.get_or_insert_default();
                seen.missing.insert(repo.clone(), *count as u64);
            }),
            Report::BatchConfirmed { relay, .. } => self.with(relay, |known| known.batches += 1),
            Report::NoNegentropy { relay, text, .. } | Report::Refused { relay, text, .. } => {
                self.with(relay, |known| known.last_refusal = Some(text.clone()));
            }
            _ => {}
        }
    }

    fn with(&mut self, relay: &RelayUrl, note: impl FnOnce(&mut RelayStatus)) {
        if let Some(known) = self.relays.get_mut(relay) {
            note(known);
        }
    }
}
