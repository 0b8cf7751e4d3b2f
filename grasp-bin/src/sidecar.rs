//! `grasp sidecar`: syncs a relay of another kind.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use grasp_core::{Mono, RelayUrl, ServiceIdentity};
use grasp_relay::Clock;
use grasp_relay::metrics::{Metrics, table};
use grasp_relay::web::figures::{IntakeFigures, Status};
use grasp_sync::{Roots, Sidecar, Syncer, driver};
use tokio::net::TcpListener;

use crate::admin::{AdminHandler, AdminRequest, AdminResponse, AdminSocket};
use crate::config::{Config, Loaded};
use crate::http::{self, StatusSource};
use crate::key;
use crate::metrics;
use crate::notify;
use crate::rate::Rate;
use crate::rows;
use crate::server::start_sync;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::trusted_roots;
use crate::wire::Place;

/// Runs a sidecar until a signal stops it.
pub(crate) fn run(loaded: Loaded, relay: Option<RelayUrl>) -> Result<()> {
    loaded.start_log();
    let config = loaded.config;
    let Some(relay) = relay.or_else(|| config.sidecar_relay.clone()) else {
        bail!("no relay is set; set --relay ws://…, or sidecar.relay in the settings");
    };
    if !config.settings.sync.enabled {
        bail!("a sidecar only syncs, and sync.enabled is false; remove that setting");
    }
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(sync_until_stopped(config, relay))
}

async fn sync_until_stopped(config: Config, relay: RelayUrl) -> Result<()> {
    let signals = Signals::listen();
    let service = match &config.domain {
        Some(domain) => domain.clone(),
        None => service_of(&relay)?,
    };
    let admin = AdminSocket::bind(&config.admin_socket())?;
    let mut settings = config.settings.reached_at(service);
    // A full comparison needs a relay that stores nothing but repositories; this one may store anything.
    settings.sync.engine.whole_from = None;
    let keys = key::load_or_create(&settings.service_key())?;
    let roots = trusted_roots::for_relays(&settings)?;
    let local = Arc::new(Sidecar::trusting(relay.clone(), &roots));
    let listener = match config.sidecar_listen {
        Some(at) => {
            Some(TcpListener::bind(at).await.with_context(|| format!("could not listen on {at}"))?)
        }
        None => None,
    };
    let metrics = Metrics::default();
    let syncer =
        start_sync(&settings, local, driver::Clock::system(), keys, metrics.clone(), false).await?;
    let syncer = syncer.context("sync did not start")?;
    let overview = SidecarOverview::new(relay, roots, metrics, &settings, Arc::clone(&syncer));
    let status_address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    print_addresses(&overview, &settings, status_address);
    let admin = admin.serve(overview.clone());
    let routes = http::routes(overview, settings.metrics);
    let status_server = listener.map(|it| tokio::spawn(http::serve_status(it, routes)));
    let heartbeat = notify::ready();
    signals.stop_requested().await;
    if let Some(status_server) = status_server {
        status_server.abort();
    }
    drop((admin, heartbeat));
    syncer.stop().await;
    tracing::info!("stopped; what is known about relays is on disk");
    Ok(())
}

/// Returns the public address of a relay if none is set: the one that it is connected to.
fn service_of(relay: &RelayUrl) -> Result<ServiceIdentity> {
    let (_, name) = relay.as_str().split_once("://").context("not the address of a relay")?;
    name.trim_end_matches('/')
        .parse()
        .context("could not derive the domain from the relay's address; set --domain")
}

fn print_addresses(sidecar: &SidecarOverview, settings: &Settings, status: Option<SocketAddr>) {
    let (data, bootstrap) = (settings.data_dir.display(), &settings.sync.engine.bootstrap);
    let text = format!(
        "grasp {} syncs a relay\n\
         \x20 relay   {}\n\
         \x20 domain  {} (the address in announcements; --domain changes it)\n\
         \x20 from    the relays that announcements name{}\n\
         \x20 data    {data}\n\
         \x20 watch   grasp status --watch --data-dir {data}\n\
         {}\
         \x20 stop    Ctrl-C\n",
        env!("CARGO_PKG_VERSION"),
        sidecar.relay,
        sidecar.service,
        bootstrap.iter().map(|url| format!(", {url}")).collect::<String>(),
        status.map_or_else(String::new, |at| format!("  status  http://{at}/status\n")),
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// The status of a sidecar.
#[derive(Clone)]
struct SidecarOverview {
    relay: RelayUrl,
    roots: Roots,
    metrics: Metrics,
    service: String,
    syncer: Arc<Syncer>,
    clock: Clock,
    started: u64,
    rate: Arc<Mutex<Rate>>,
}

impl SidecarOverview {
    fn new(
        relay: RelayUrl,
        roots: Roots,
        metrics: Metrics,
        settings: &Settings,
        syncer: Arc<Syncer>,
    ) -> Self {
        let clock = Clock::system();
        let now = clock.now();
        Self {
            relay,
            roots,
            metrics,
            service: settings.service.to_string(),
            syncer,
            clock,
            started: now.unix.as_secs(),
            rate: Arc::new(Mutex::new(Rate::new(now.mono))),
        }
    }

    /// Returns the new events per second over the last minute.
    fn new_per_second(&self, now: Mono, new: u64) -> f64 {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner).per_second(now, new)
    }
}

impl StatusSource for SidecarOverview {
    fn name(&self) -> &str {
        &self.service
    }

    fn root(&self) -> &str {
        "/"
    }

    /// Returns whether the relay can be connected to.
    async fn is_ready(&self) -> bool {
        match Place::parse(self.relay.as_str()) {
            Some(place) => place.connect(&self.roots).await.is_ok(),
            None => false,
        }
    }

    async fn status(&self) -> Status {
        let relays = self.syncer.status().await.relays;
        let sum = |of: fn(&grasp_sync::driver::Counts) -> u64| {
            relays.values().map(|relay| of(&relay.counts)).sum::<u64>()
        };
        let intake = IntakeFigures {
            stored: sum(|counts| counts.stored()),
            held: sum(|counts| counts.held),
            known: sum(|counts| counts.known),
            rejected: sum(|counts| counts.refused + counts.forged),
        };
        let now = self.clock.now();
        let per_second = self.new_per_second(now.mono, intake.stored);
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            service: self.service.clone(),
            beside: Some(self.relay.to_string()),
            now: now.unix.as_secs(),
            started: self.started,
            ready: self.is_ready().await,
            intake,
            events_per_minute: 60.0 * per_second,
            relays: relays.iter().map(rows::relay_row).collect(),
            ..Status::default()
        }
    }

    async fn exposition(&self) -> String {
        self.metrics.set(&table::BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        self.metrics.set(&table::STARTED, &[], self.started as f64);
        let own = [&table::BUILD, &table::STARTED];
        let metrics: Vec<_> = own.into_iter().chain(metrics::sync::ALL.iter().copied()).collect();
        self.metrics.render(&metrics)
    }
}

impl AdminHandler for SidecarOverview {
    async fn handle(&self, request: AdminRequest) -> AdminResponse {
        match request {
            AdminRequest::Status => AdminResponse::Status(Box::new(self.status().await)),
            AdminRequest::Repositories | AdminRequest::Waiting => {
                let relay = &self.relay;
                AdminResponse::Failed(format!("a sidecar hosts nothing; ask the relay, {relay}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_the_address_of_the_relay() {
        let name = |url: &str| service_of(&url.parse().unwrap()).unwrap().to_string();
        assert_eq!(name("ws://127.0.0.1:7777"), "127.0.0.1:7777");
        assert_eq!(name("wss://relay.example.com/"), "relay.example.com");
        assert_eq!(name("wss://relay.example.com/inbox"), "relay.example.com/inbox");
    }
}
