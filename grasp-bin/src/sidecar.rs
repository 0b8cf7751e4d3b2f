//! `grasp sidecar`: keeps a relay complete that knows nothing of it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use grasp_core::{Mono, RelayUrl, ServiceIdentity};
use grasp_relay::Clock;
use grasp_relay::metrics::{Metrics, table};
use grasp_relay::web::figures::{Intake, Status};
use grasp_sync::{Roots, Sidecar, Syncer, driver};
use tokio::net::TcpListener;

use crate::admin::{AdminSocket, Answer, Answers, Question};
use crate::config::{Config, Loaded};
use crate::http::{self, Stands};
use crate::key;
use crate::metrics;
use crate::notify;
use crate::pace::Pace;
use crate::roots;
use crate::rows;
use crate::server::start_sync;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::wire::Place;

/// Stands beside a relay until it is told to stop.
pub(crate) fn run(loaded: Loaded, relay: Option<RelayUrl>) -> Result<()> {
    loaded.start_log();
    let config = loaded.config;
    let Some(relay) = relay.or_else(|| config.sidecar_relay.clone()) else {
        bail!("which relay? Say --relay ws://…, or sidecar.relay in the settings");
    };
    if !config.settings.sync.enabled {
        bail!("sync.enabled = false leaves a sidecar nothing to do");
    }
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(stand_beside(config, relay))
}

async fn stand_beside(config: Config, relay: RelayUrl) -> Result<()> {
    let signals = Signals::listen();
    let service = match &config.domain {
        Some(domain) => domain.clone(),
        None => name_of(&relay)?,
    };
    let admin = AdminSocket::claim(&config.admin_socket())?;
    let mut settings = config.settings.reached_at(service);
    // The relay may have anything, and be asked for all of that by nobody.
    settings.sync.engine.whole_from = None;
    let keys = key::load_or_create(&settings.service_key())?;
    let roots = roots::for_relays(&settings)?;
    let local = Arc::new(Sidecar::trusting(relay.clone(), &roots));
    let watched = match config.sidecar_listen {
        Some(at) => {
            Some(TcpListener::bind(at).await.with_context(|| format!("cannot listen at {at}"))?)
        }
        None => None,
    };
    let metrics = Metrics::default();
    let syncer =
        start_sync(&settings, local, driver::Clock::system(), keys, metrics.clone(), false).await?;
    let syncer = syncer.context("there is nothing to sync with")?;
    let view = View::new(relay, roots, metrics, &settings, Arc::clone(&syncer));
    let watched_at = watched.as_ref().and_then(|listener| listener.local_addr().ok());
    welcome(&view, &settings, watched_at);
    let answering = admin.answer(view.clone());
    let routes = http::routes(view, settings.metrics);
    let watching = watched.map(|listener| tokio::spawn(http::serve_watchers(listener, routes)));
    let heartbeat = notify::ready();
    signals.told_to_stop().await;
    if let Some(watching) = watching {
        watching.abort();
    }
    drop((answering, heartbeat));
    syncer.stop().await;
    tracing::info!("stopped, everything that was learned about relays is on disk");
    Ok(())
}

/// What others call a relay if nobody says otherwise: what we call it.
fn name_of(relay: &RelayUrl) -> Result<ServiceIdentity> {
    let (_, name) = relay.as_str().split_once("://").context("no address of a relay")?;
    name.trim_end_matches('/').parse().context("its address is no name; say --domain")
}

fn welcome(view: &View, settings: &Settings, watched_at: Option<SocketAddr>) {
    let (data, bootstrap) = (settings.data_dir.display(), &settings.sync.engine.bootstrap);
    let text = format!(
        "grasp {} keeps a relay complete\n\
         \x20 relay   {}\n\
         \x20 name    {} (what announcements call it; --domain changes that)\n\
         \x20 from    the relays that its repositories name{}\n\
         \x20 data    {data}\n\
         \x20 watch   grasp status --watch --data-dir {data}\n\
         {}\
         \x20 stop    Ctrl-C\n",
        env!("CARGO_PKG_VERSION"),
        view.relay,
        view.service,
        bootstrap.iter().map(|url| format!(", {url}")).collect::<String>(),
        watched_at.map_or_else(String::new, |at| format!("  status  http://{at}/status\n")),
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// What can be seen of a sidecar.
#[derive(Clone)]
struct View {
    relay: RelayUrl,
    roots: Roots,
    metrics: Metrics,
    service: String,
    syncer: Arc<Syncer>,
    clock: Clock,
    started: u64,
    pace: Arc<Mutex<Pace>>,
}

impl View {
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
            pace: Arc::new(Mutex::new(Pace::new(now.mono))),
        }
    }

    async fn status(&self) -> Status {
        let seen = self.syncer.status().await.relays;
        let sum = |of: fn(&grasp_sync::driver::Counts) -> u64| {
            seen.values().map(|relay| of(&relay.counts)).sum::<u64>()
        };
        let intake = Intake {
            stored: sum(|counts| counts.stored()),
            held: sum(|counts| counts.held),
            known: sum(|counts| counts.known),
            rejected: sum(|counts| counts.refused + counts.forged),
        };
        let now = self.clock.now();
        let per_second = self.pace(now.mono, intake.stored);
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            service: self.service.clone(),
            beside: Some(self.relay.to_string()),
            now: now.unix.as_secs(),
            started: self.started,
            ready: self.is_there().await,
            intake,
            events_per_minute: 60.0 * per_second,
            relays: seen.iter().map(rows::relay_row).collect(),
            ..Status::default()
        }
    }

    /// New events per second, lately.
    fn pace(&self, now: Mono, new: u64) -> f64 {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).per_second(now, new)
    }

    /// Whether the relay can be connected to.
    async fn is_there(&self) -> bool {
        match Place::parse(self.relay.as_str()) {
            Some(place) => place.connect(&self.roots).await.is_ok(),
            None => false,
        }
    }
}

impl Stands for View {
    fn name(&self) -> &str {
        &self.service
    }

    fn root(&self) -> &str {
        "/"
    }

    async fn is_ready(&self) -> bool {
        self.is_there().await
    }

    async fn status(&self) -> Status {
        self.status().await
    }

    async fn exposition(&self) -> String {
        self.metrics.set(&table::BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        self.metrics.set(&table::STARTED, &[], self.started as f64);
        let own = [&table::BUILD, &table::STARTED];
        let metrics: Vec<_> = own.into_iter().chain(metrics::sync::ALL.iter().copied()).collect();
        self.metrics.render(&metrics)
    }
}

impl Answers for View {
    async fn answer(&self, question: Question) -> Answer {
        match question {
            Question::Status => Answer::Status(Box::new(self.status().await)),
            Question::Repositories | Question::Waiting => {
                let relay = &self.relay;
                Answer::Failed(format!("a sidecar hosts nothing itself; ask the relay, {relay}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_called_what_its_address_says() {
        let name = |url: &str| name_of(&url.parse().unwrap()).unwrap().to_string();
        assert_eq!(name("ws://127.0.0.1:7777"), "127.0.0.1:7777");
        assert_eq!(name("wss://relay.example.com/"), "relay.example.com");
        assert_eq!(name("wss://relay.example.com/inbox"), "relay.example.com/inbox");
    }
}
