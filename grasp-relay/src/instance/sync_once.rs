//! Fetching everything that some relays have, once.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::sync::ConnectionStatus;
use grasp_core::{Now, RelayUrl};
use grasp_sync::driver::RelayStatus;
use nostr::types::Timestamp;

use super::OutboxMode;
use super::error::{InstanceError, Result};
use super::server::Server;
use super::settings::Settings;
use crate::Clock;
use crate::web::figures::Status;

/// Time in which newly found repositories are collected into one batch: short, because the user waits.
pub(super) const DISCOVERY_WINDOW: Duration = Duration::from_secs(1);

/// Limits the backoff between two attempts to connect: short, because the user waits.
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// Time that a relay must be complete before it counts as done: its events may lead to more requests.
const DONE_AFTER: Duration = Duration::from_secs(4);

/// The status of each relay.
pub type RelayStatuses = BTreeMap<RelayUrl, RelayStatus>;

/// A server that fetches what some relays have, within a time limit, and serves nothing.
pub struct SyncOnce {
    server: Server,
    from: Vec<RelayUrl>,
    limit: Duration,
    began: Now,
}

impl SyncOnce {
    /// Starts to fetch everything that these relays have into the data of these settings.
    pub async fn start(settings: &Settings, from: &[RelayUrl], limit: Duration) -> Result<Self> {
        let service = &settings.policy.service;
        if let Some(relay) = from.iter().find(|relay| service.is_own_url(relay.as_str())) {
            return Err(InstanceError::caller(format!(
                "{relay} is this server itself by its domain, {service}; choose another --from"
            )));
        }
        let mut settings = settings.clone();
        settings.sync.enabled = true;
        // Only the named relays are asked.
        settings.sync.outbox.mode = OutboxMode::Off;
        settings.sync.engine.bootstrap = from.to_vec();
        settings.sync.engine.relays_per_repo = 0;
        settings.sync.engine.discovery_window = DISCOVERY_WINDOW;
        settings.sync.engine.backoff.cap = MAX_BACKOFF;
        settings.sync.engine.backoff.dead_retry = MAX_BACKOFF;
        let server = Server::open(&settings, Clock::system()).await?;
        server.until_writer().await?;
        let began = server.parts().clock.now();
        Ok(Self {
            server,
            from: from.to_vec(),
            limit,
            began,
        })
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the status of the relays.
    pub async fn relays(&self) -> RelayStatuses {
        match self.server.syncer().await {
            Some(syncer) => syncer.status().await.relays,
            None => RelayStatuses::new(),
        }
    }

    /// Returns whether nothing more is expected from the relays, or the time limit is reached.
    pub fn has_ended(&self, relays: &RelayStatuses) -> bool {
        let now = self.server.parts().clock.now();
        if now.mono - self.began.mono > self.limit {
            return true;
        }
        let give_up_at = self.began.unix + self.limit;
        self.from.iter().all(|relay| {
            let status = relays.get(relay);
            status.is_some_and(|one| is_done(now.unix, one) || is_given_up(give_up_at, one))
        })
    }

    /// Ends, and returns the status of the server.
    pub async fn close(self) -> Result<Status> {
        let status = self.server.status().await;
        self.server.close().await?;
        Ok(status)
    }
}

/// Returns whether no more events are expected from a relay.
fn is_done(now: Timestamp, relay: &RelayStatus) -> bool {
    let is_synced = relay.connection == ConnectionStatus::Connected
        || relay.connection == ConnectionStatus::ConnectedHistoricSyncFailures;
    is_synced && relay.backlog == 0 && relay.since + DONE_AFTER < now
}

/// Returns whether the next attempt to connect is after the time limit: its certificate is bad, or it is not a relay.
fn is_given_up(limit: Timestamp, relay: &RelayStatus) -> bool {
    relay.failed.is_some_and(|failed| failed.retry_at > limit)
}
