//! Sync for a relay of another kind, with status pages and the admin socket.

use std::sync::Arc;

use grasp_core::{RelayUrl, ServiceIdentity};
use grasp_sync::{Sidecar, Syncer, driver};
use tokio::net::TcpListener;

use super::OutboxMode;
use super::admin::{AdminSocket, AdminTask};
use super::error::{Explain as _, InstanceError, MustAct, Result};
use super::overview::Overview;
use super::server::{start_sync, with_icon};
use super::settings::Settings;
use super::sync_once::DISCOVERY_WINDOW;
use super::{files, http};
use crate::metrics::Metrics;
use crate::web;

/// Sync for a relay of another kind. Runs until it is closed.
pub struct RelaySidecar {
    syncer: Arc<Syncer>,
    overview: Overview,
    metrics: bool,
}

impl RelaySidecar {
    /// Starts to sync a relay. One that runs once fails if the relay cannot be reached, and asks no relays of users.
    pub async fn open(settings: &Settings, relay: RelayUrl, runs_once: bool) -> Result<Self> {
        let mut settings = with_icon(settings)?;
        // A full comparison needs a relay that stores nothing but repositories; this one may store anything.
        settings.sync.engine.full_sync_above = None;
        let keys = files::service_key(&settings.service_key())?;
        let roots = files::roots_for_relays(&settings)?;
        let local = Arc::new(Sidecar::trusting(relay.clone(), &roots));
        if runs_once {
            // The relays of users are asked over hours.
            settings.sync.outbox.mode = OutboxMode::Off;
            // Short, because a user or a cron job waits.
            settings.sync.engine.discovery_window = DISCOVERY_WINDOW;
            settings.sync.engine.reply_window = DISCOVERY_WINDOW;
            if !local.is_reachable().await {
                return Err(InstanceError::other_server(format!(
                    "could not connect to {relay}; is the relay running?"
                )));
            }
        }
        let metrics = Metrics::default();
        let overview = Overview::of_sidecar(&settings, relay, Arc::clone(&local), metrics.clone());
        let clock = driver::Clock::system();
        let syncer = start_sync(&settings, local, clock, keys, metrics, false).await?;
        let syncer = syncer.context("sync did not start")?;
        overview.set_syncer(Some(Arc::clone(&syncer)));
        Ok(Self {
            syncer,
            overview,
            metrics: settings.metrics,
        })
    }

    /// Returns the driver of sync.
    pub fn syncer(&self) -> &Syncer {
        &self.syncer
    }

    /// Starts to answer requests at the admin socket.
    pub fn answer(&self, socket: AdminSocket) -> AdminTask {
        socket.answer(self.overview.clone(), None)
    }

    /// Serves the pages of the status until it is dropped.
    pub fn serve_status(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + use<> {
        let assets = web::assets(self.overview.frame());
        let routes = http::routes(self.overview.clone(), self.metrics).merge(assets);
        http::serve_status(listener, routes)
    }

    /// Stops. What is known about relays is on disk then.
    pub async fn close(self) {
        self.syncer.stop().await;
    }

    /// Returns the public address of a relay if none is set: the one that it is connected to.
    pub fn service_of(relay: &RelayUrl) -> Result<ServiceIdentity> {
        let (_, name) = relay
            .as_str()
            .split_once("://")
            .context("not the address of a relay")?;
        name.trim_end_matches('/').parse().or_ask(
            MustAct::Operator,
            || "could not derive the domain from the relay's address; set --domain",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_the_address_of_the_relay() {
        let name = |url: &str| {
            RelaySidecar::service_of(&url.parse().unwrap())
                .unwrap()
                .to_string()
        };
        assert_eq!(name("ws://127.0.0.1:7777"), "127.0.0.1:7777");
        assert_eq!(name("wss://relay.example.com/"), "relay.example.com");
        assert_eq!(
            name("wss://relay.example.com/inbox"),
            "relay.example.com/inbox"
        );
    }
}
