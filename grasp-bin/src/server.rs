//! A server, built from its parts.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use grasp_core::RelayUrl;
use grasp_core::admission::FanOut;
use grasp_core::service::Endpoint;
use grasp_purgatory::database::Database;
use grasp_purgatory::git::{Fetcher, RepoStore};
use grasp_purgatory::hunt::{Classify, HostClass, HuntConfig, HuntParts};
use grasp_relay::ingest::{Budgets, Pipeline};
use grasp_relay::metrics::{CountedIngest, Metrics, count_requests};
use grasp_relay::nostr::{Hub, RelayInfo};
use grasp_relay::purgatory::{PurgatoryDriver, PurgatoryParts};
use grasp_relay::server::{Config, Parts, serve};
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, Store, StoreRules};
use grasp_relay::web::Listing;
use grasp_relay::{Clock, git_http};
use grasp_sync::driver::{self, RecordFile};
use grasp_sync::{LocalRelay, Syncer};
use nostr::key::Keys;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::files::{self, create_private_dir};
use crate::http;
use crate::metrics::{self, SyncObserver};
use crate::overview::Overview;
use crate::own_relay::OwnRelay;
use crate::settings::{Settings, Sync};

/// File of the database in the data directory.
pub(crate) const DATABASE: &str = "grasp.db";

/// File of the records about other relays in the data directory.
pub(crate) const RELAY_RECORDS: &str = "relays.jsonl";

/// Interval between deletions of expired events.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// A server whose parts run; [`Server::serve`] accepts connections.
pub struct Server {
    parts: Parts,
    purgatory: PurgatoryDriver,
    syncer: Option<Arc<Syncer>>,
    overview: Overview,
    _sweeper: JoinSet<()>,
}

impl Server {
    /// Opens all parts of a server, and creates its data directory if there is none.
    pub async fn open(settings: &Settings, clock: Clock) -> Result<Self> {
        let store = open_store(settings).await?;
        Self::open_on(settings, store, clock).await
    }

    /// Opens all parts of a server on the caller's database.
    pub async fn open_on(settings: &Settings, store: Arc<dyn Store>, clock: Clock) -> Result<Self> {
        let (hub, metrics, policy) = (Hub::start(), Metrics::default(), settings.policy.clone());
        let records = store.records().await.context("could not read the database")?;
        let repos = open_repos(settings, store.clone()).await?;
        let store: Arc<dyn EventStore> = store;
        let purgatory = PurgatoryParts {
            hunt: Some(hunt_parts(settings, &repos, metrics.clone())?),
            contributors: open_contributors(settings, &repos).await?,
            repos,
            store: Arc::clone(&store),
            hub: hub.clone(),
            policy: policy.clone(),
            clock: clock.clone(),
            repository_bytes: settings.git.repository_bytes,
        };
        let config = settings.purgatory.clone();
        let purgatory = PurgatoryDriver::start(purgatory, config, records).await;
        let ingest = Pipeline {
            store: Arc::clone(&store),
            git: Arc::new(purgatory.clone()),
            hub: hub.clone(),
            policy,
            fan_out: Mutex::new(FanOut::new(settings.fan_out)),
            budgets: Budgets::default(),
            clock: clock.clone(),
        };
        let mut sweeper = JoinSet::new();
        sweeper.spawn(sweep(Arc::clone(&store), clock.clone()));
        let keys = files::service_key(&settings.service_key())?;
        let listing = listing(&purgatory);
        let overview =
            Overview::of_server(settings, &purgatory, &hub, listing.clone(), metrics.clone());
        let extra = http::routes(overview.clone(), settings.metrics)
            .merge(git_http::routes(purgatory.clone(), settings.git.clone()));
        let extra = count_requests(extra, metrics.clone());
        let ingest = Arc::new(CountedIngest::new(ingest, metrics.clone()));
        let config = relay_config(settings, &keys);
        let parts = Parts { store, ingest, hub, listing, config, clock, extra };
        let own = Arc::new(OwnRelay::new(parts.clone(), purgatory.clone()));
        let clock = parts.clock.clone();
        let clock = driver::Clock::new(move || clock.now());
        // Unlisted repositories are followed too: admission decides what is stored, and an archive stores some of them.
        let syncer = start_sync(settings, own, clock, keys, metrics, true).await?;
        overview.set_syncer(syncer.clone());
        Ok(Self { parts, purgatory, syncer, overview, _sweeper: sweeper })
    }

    /// Returns the parts that serve requests.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Returns the source of the status.
    pub(crate) fn overview(&self) -> &Overview {
        &self.overview
    }

    /// Returns the driver of purgatory.
    pub fn purgatory(&self) -> &PurgatoryDriver {
        &self.purgatory
    }

    /// Returns the driver of sync, if sync is enabled.
    pub fn syncer(&self) -> Option<&Syncer> {
        self.syncer.as_deref()
    }

    /// Serves until `shutdown` resolves, then lets open requests finish within the grace period.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<()> {
        serve(listener, self.parts.clone(), shutdown).await.context("the server failed")
    }

    /// Closes all parts; everything that was acknowledged is on disk.
    pub async fn close(self) -> Result<()> {
        if let Some(syncer) = &self.syncer {
            syncer.stop().await;
        }
        let store = Arc::clone(&self.parts.store);
        drop(self);
        store.close().await.context("the store did not close")
    }
}

/// Returns the list of repositories that pages show.
fn listing(purgatory: &PurgatoryDriver) -> Listing {
    let (store, clock) = (Arc::clone(purgatory.store()), purgatory.clock().clone());
    let policy = purgatory.policy().clone();
    Listing::new(store, policy.service.clone(), clock, move |announced| policy.hosts(announced))
}

/// Returns the parts of the hunt for git data.
fn hunt_parts(settings: &Settings, repos: &RepoStore, metrics: Metrics) -> Result<HuntParts> {
    let fetcher = Fetcher::new(repos.clone(), settings.outbound, settings.fetch)
        .trusting(files::roots_for_git(settings)?);
    let observer = Arc::new(move |report: &_| metrics::record_hunt(&metrics, report));
    // As many visits as processes, so that no visit waits for a process after its start.
    let config = HuntConfig { at_once: settings.processes.remote_pace, ..settings.hunt.clone() };
    let (outbound, roots) = (settings.outbound, files::roots_for_relays(settings)?);
    let classify: Classify = Arc::new(move |relay: RelayUrl| {
        let roots = roots.clone();
        Box::pin(async move {
            let facts = driver::relay_information(&relay, outbound, &roots).await?;
            Some(if facts.is_grasp { HostClass::Grasp } else { HostClass::Unknown })
        })
    });
    Ok(HuntParts { config, fetcher, observer, classify })
}

fn relay_config(settings: &Settings, keys: &Keys) -> Config {
    let info = RelayInfo { service_key: Some(keys.public_key()), ..settings.info() };
    Config {
        service: settings.policy.service.clone(),
        secure: settings.git.secure,
        info,
        limits: settings.relay.clone(),
        trusted_proxies: settings.trusted_proxies.clone(),
    }
}

/// Opens the database, and creates its directory if there is none.
pub async fn open_store(settings: &Settings) -> Result<Arc<dyn Store>> {
    let dir = &settings.data_dir;
    create_private_dir(dir).with_context(|| {
        format!("could not create {}; choose another directory with --data-dir", dir.display())
    })?;
    refuse_old_layout(dir)?;
    let rules =
        StoreRules { service: Some(settings.policy.service.clone()), ..StoreRules::default() };
    let options = SqliteOptions { rules, ..settings.sqlite.clone() };
    let file = dir.join(DATABASE);
    let store = SqliteStore::open(&file, options);
    Ok(Arc::new(store.with_context(|| format!("could not open {}", file.display()))?))
}

/// Refuses the data of versions before 0.2, which kept events and refs apart.
fn refuse_old_layout(dir: &Path) -> Result<()> {
    let old = ["events.db", "purgatory.db"].map(|file| dir.join(file));
    if let Some(old) = old.iter().find(|file| file.exists()) {
        bail!(
            "{} is of a version before 0.2, whose data cannot be read; choose a new directory with --data-dir: other \
             servers bring back what they have, and the rest can be pushed again",
            old.display()
        );
    }
    Ok(())
}

/// Starts sync with other relays, if it is enabled.
pub(crate) async fn start_sync(
    settings: &Settings,
    local: Arc<dyn LocalRelay>,
    clock: driver::Clock,
    keys: Keys,
    metrics: Metrics,
    follow_unlisted: bool,
) -> Result<Option<Arc<Syncer>>> {
    let Sync { enabled: true, mut engine, limits } = settings.sync.clone() else {
        return Ok(None);
    };
    engine.follow_unlisted |= follow_unlisted;
    let file = settings.data_dir.join(RELAY_RECORDS);
    let sync = grasp_sync::Settings {
        engine,
        clock,
        outbound: settings.outbound,
        roots: files::roots_for_relays(settings)?,
        limits,
        keys: Some(keys),
        records: Box::new(RecordFile::new(&file)),
        observer: Arc::new(SyncObserver(metrics)),
    };
    let started = Syncer::start(local, sync).await;
    let syncer = started.with_context(|| format!("could not open {}", file.display()))?;
    Ok(Some(Arc::new(syncer)))
}

/// Opens the repositories on disk, with the git program.
pub(crate) async fn open_repos(
    settings: &Settings,
    database: Arc<dyn Database>,
) -> Result<RepoStore> {
    let git = settings.git().context("could not find a usable git")?;
    tracing::info!(version = %git.version(), "found git");
    let dir = settings.repositories();
    RepoStore::open(&dir, Endpoint::Repository, git, settings.staging(), database, None)
        .await
        .with_context(|| format!("could not open {}", dir.display()))
}

/// Opens the repositories of contributors, if they are enabled, with the same limits of git processes.
pub(crate) async fn open_contributors(
    settings: &Settings,
    repos: &RepoStore,
) -> Result<Option<RepoStore>> {
    if !settings.policy.contributor_proposals {
        return Ok(None);
    }
    let dir = settings.repositories().join("prs");
    let (git, database) = (repos.git().clone(), Arc::clone(repos.database()));
    RepoStore::open(&dir, Endpoint::PullRequests, git, settings.staging(), database, None)
        .await
        .map(Some)
        .with_context(|| format!("could not open {}", dir.display()))
}

/// Deletes expired events at intervals.
async fn sweep(store: Arc<dyn EventStore>, clock: Clock) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        interval.tick().await;
        match store.sweep(clock.now().unix).await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "deleted expired events"),
            Err(error) => tracing::warn!(%error, "could not delete expired events"),
        }
    }
}
