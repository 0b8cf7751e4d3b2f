//! The parts of a server, put together.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use grasp_core::RelayUrl;
use grasp_core::admission::FanOut;
use grasp_purgatory::git::{Fetcher, RepoStore};
use grasp_purgatory::hunt::{HostClass, HuntConfig};
use grasp_purgatory::journal::sqlite::Journal;
use grasp_relay::ingest::{Budgets, Pipeline};
use grasp_relay::keeper::{Classify, HuntParts, Keeper, KeeperParts};
use grasp_relay::metrics::{Counted, Metrics, count_requests};
use grasp_relay::nostr::{Hub, RelayInfo};
use grasp_relay::server::{Config, Parts, serve};
use grasp_relay::store::rules::Rules;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, StoreError};
use grasp_relay::{Clock, git_http};
use grasp_sync::driver::{self, RecordFile};
use grasp_sync::{LocalRelay, Syncer};
use nostr::key::Keys;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::http;
use crate::key;
use crate::metrics;
use crate::observer::SyncObserver;
use crate::overview::Overview;
use crate::own_relay::OwnRelay;
use crate::place::create_privately;
use crate::roots;
use crate::settings::{Settings, Store, Sync};

/// How often what time has made worthless is thrown away.
const SWEEP: Duration = Duration::from_secs(60);

/// A server with everything open, listening to nothing yet.
pub struct Server {
    parts: Parts,
    keeper: Keeper,
    syncer: Option<Arc<Syncer>>,
    overview: Overview,
    sweeper: JoinHandle<()>,
}

impl Server {
    /// Opens everything that the settings name, and creates what is not there yet.
    pub async fn open(settings: &Settings, clock: Clock) -> Result<Self> {
        let store = open_store(settings).await?;
        Self::open_on(settings, store, clock).await
    }

    /// The same on a store of the caller's.
    pub async fn open_on(
        settings: &Settings,
        store: Arc<dyn EventStore>,
        clock: Clock,
    ) -> Result<Self> {
        let (hub, metrics, policy) = (Hub::start(), Metrics::default(), settings.policy());
        let repos = open_repos(settings).await?;
        let keeper = KeeperParts {
            hunt: Some(hunt(settings, &repos, metrics.clone())?),
            contributors: open_contributors(settings, &repos).await?,
            repos,
            store: Arc::clone(&store),
            hub: hub.clone(),
            policy: policy.clone(),
            clock: clock.clone(),
        };
        let keeper = start_keeper(settings, keeper).await?;
        let ingest = Pipeline {
            store: Arc::clone(&store),
            git: Arc::new(keeper.clone()),
            hub: hub.clone(),
            policy,
            fan_out: Mutex::new(FanOut::new(settings.fan_out)),
            budgets: Budgets::default(),
            clock: clock.clone(),
        };
        let sweeper = tokio::spawn(sweep(Arc::clone(&store), clock.clone()));
        let keys = key::load_or_create(&settings.service_key())?;
        let overview = Overview::new(settings, &keeper, &hub, metrics.clone());
        let extra = http::routes(overview.clone(), settings.metrics)
            .merge(git_http::routes(keeper.clone(), settings.git.clone()));
        let extra = count_requests(extra, metrics.clone());
        let ingest = Arc::new(Counted::new(ingest, metrics.clone()));
        let config = presented(settings, &keys);
        let listing = overview.listing();
        let parts = Parts { store, ingest, hub, listing, config, clock, extra };
        let own = Arc::new(OwnRelay::new(parts.clone(), keeper.clone()));
        let clock = parts.clock.clone();
        let clock = driver::Clock::new(move || clock.now());
        // What is kept here is for our own rules to say; an archive keeps what does not list us.
        let syncer = start_sync(settings, own, clock, keys, metrics, true).await?;
        overview.follow(syncer.clone());
        Ok(Self { parts, keeper, syncer, overview, sweeper })
    }

    /// What the server is made of.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// How everything stands.
    pub(crate) fn overview(&self) -> &Overview {
        &self.overview
    }

    /// What holds events and git data in step.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// What keeps our events in step with other relays, if anything does.
    pub fn syncer(&self) -> Option<&Syncer> {
        self.syncer.as_deref()
    }

    /// Serves until `shutdown` resolves, then lets everybody finish within the grace period.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<()> {
        serve(listener, self.parts.clone(), shutdown).await.context("the server failed")
    }

    /// Closes everything; whatever was acknowledged is on disk.
    pub async fn close(self) -> Result<()> {
        if let Some(syncer) = &self.syncer {
            syncer.stop().await;
        }
        self.sweeper.abort();
        let store = Arc::clone(&self.parts.store);
        drop(self);
        store.close().await.context("the store did not close")
    }
}

/// What goes and gets git data.
fn hunt(settings: &Settings, repos: &RepoStore, metrics: Metrics) -> Result<HuntParts> {
    let fetcher = Fetcher::new(repos.clone(), settings.outbound, settings.fetch)
        .trusting(roots::for_git(settings)?);
    let observer = Arc::new(move |report: &_| metrics::hunt::note(&metrics, report));
    // As many conversations as there may be processes: whoever waits for one has not begun.
    let config =
        HuntConfig { at_once: settings.processes.slots().remote_pace, ..settings.hunt.clone() };
    let (outbound, roots) = (settings.outbound, roots::for_relays(settings)?);
    let classify: Classify = Arc::new(move |relay: RelayUrl| {
        let roots = roots.clone();
        Box::pin(async move {
            let facts = driver::relay_information(&relay, outbound, &roots).await?;
            Some(if facts.is_grasp { HostClass::Grasp } else { HostClass::Unknown })
        })
    });
    Ok(HuntParts { config, fetcher, observer, classify })
}

fn presented(settings: &Settings, keys: &Keys) -> Config {
    let info = RelayInfo { service_key: Some(keys.public_key()), ..settings.info() };
    Config {
        service: settings.service.clone(),
        secure: settings.git.secure,
        info,
        limits: settings.relay.clone(),
        trusted_proxies: settings.trusted_proxies.clone(),
    }
}

/// Opens the chosen event store.
pub async fn open_store(settings: &Settings) -> Result<Arc<dyn EventStore>> {
    let dir = &settings.data_dir;
    create_privately(dir).with_context(|| {
        format!("could not create {}; choose another place with --data-dir", dir.display())
    })?;
    let rules = Rules { service: Some(settings.service.clone()), ..Rules::default() };
    open_chosen(settings, rules)
        .await
        .with_context(|| format!("could not open the event store in {}", dir.display()))
}

async fn open_chosen(settings: &Settings, rules: Rules) -> Result<Arc<dyn EventStore>, StoreError> {
    let dir = &settings.data_dir;
    Ok(match settings.store {
        Store::Sqlite => {
            let options = SqliteOptions { rules, ..settings.sqlite.clone() };
            Arc::new(SqliteStore::open(&dir.join("events.db"), options)?)
        }
        #[cfg(feature = "nostr-sqlite")]
        Store::NostrSqlite => {
            let file = dir.join("nostr-sqlite.db");
            Arc::new(grasp_relay::store::adapter::open_nostr_sqlite(&file, &rules).await?)
        }
        #[cfg(feature = "nostr-lmdb")]
        Store::NostrLmdb => {
            let place = dir.join("nostr-lmdb");
            Arc::new(grasp_relay::store::adapter::open_nostr_lmdb(&place, &rules).await?)
        }
    })
}

async fn start_keeper(settings: &Settings, parts: KeeperParts) -> Result<Keeper> {
    let file = settings.data_dir.join("purgatory.db");
    let (journal, records) =
        Journal::open(&file).with_context(|| format!("could not open {}", file.display()))?;
    Ok(Keeper::start(parts, settings.purgatory.clone(), journal, records).await)
}

/// Begins to keep our events in step with other relays, if that is wanted.
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
    let file = settings.data_dir.join("relays.jsonl");
    let sync = grasp_sync::Settings {
        engine,
        clock,
        outbound: settings.outbound,
        roots: roots::for_relays(settings)?,
        limits,
        keys: Some(keys),
        records: Box::new(RecordFile::new(&file)),
        observer: Arc::new(SyncObserver::new(metrics)),
    };
    let started = Syncer::start(local, sync).await;
    let syncer = started.with_context(|| format!("could not open {}", file.display()))?;
    Ok(Some(Arc::new(syncer)))
}

/// The repositories on disk, and the git that works on them.
async fn open_repos(settings: &Settings) -> Result<RepoStore> {
    let git = settings.git().context("could not find a usable git")?;
    tracing::info!(version = %git.version(), "found git");
    let dir = settings.repositories();
    RepoStore::open(&dir, git, settings.staging())
        .await
        .with_context(|| format!("could not open {}", dir.display()))
}

/// The places of contributors, if they may have some. They wait in the same lines for the same git.
async fn open_contributors(settings: &Settings, repos: &RepoStore) -> Result<Option<RepoStore>> {
    if !settings.contributor_proposals {
        return Ok(None);
    }
    let dir = settings.repositories().join("prs");
    RepoStore::open_to_all(&dir, repos.git().clone(), settings.staging())
        .await
        .map(Some)
        .with_context(|| format!("could not open {}", dir.display()))
}

/// Throws away, now and then, what has expired.
async fn sweep(store: Arc<dyn EventStore>, clock: Clock) {
    let mut pause = tokio::time::interval(SWEEP);
    loop {
        pause.tick().await;
        match store.sweep(clock.now().unix).await {
            Ok(0) => {}
            Ok(gone) => tracing::info!(gone, "swept expired events"),
            Err(error) => tracing::warn!(%error, "could not sweep"),
        }
    }
}
