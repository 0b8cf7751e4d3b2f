//! The parts of a server, put together.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use grasp_core::ServiceIdentity;
use grasp_core::admission::Policy;
use grasp_purgatory::git::{Fetcher, Git, RepoStore, Slots, StagingLimits};
use grasp_purgatory::journal::sqlite::Journal;
use grasp_relay::ingest::Pipeline;
use grasp_relay::keeper::{HuntParts, Keeper, KeeperParts};
use grasp_relay::nostr::{Hub, RelayInfo};
use grasp_relay::server::{Config, Parts, serve};
use grasp_relay::store::rules::Rules;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, StoreError};
use grasp_relay::{Clock, git_http, store};
use grasp_sync::Syncer;
use grasp_sync::driver::{Log, RecordFile};
use nostr::key::Keys;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::own_relay::OwnRelay;
use crate::service_key;
use crate::settings::{Hunt, Settings, Store, Sync};

/// How often what time has made worthless is thrown away.
const SWEEP: Duration = Duration::from_secs(60);

/// A server with everything open, listening to nothing yet.
pub struct Server {
    parts: Parts,
    keeper: Keeper,
    syncer: Option<Syncer>,
    sweeper: JoinHandle<()>,
}

impl Server {
    /// Opens everything that the settings name, and creates what is not there yet.
    pub async fn open(settings: &Settings, clock: Clock) -> Result<Self> {
        let store = open_store(settings).await?;
        let hub = Hub::start();
        let policy =
            Policy { model: settings.maintainers, ..Policy::new(settings.service.clone()) };
        let repos = open_repos(&settings.data_dir).await?;
        let keeper = KeeperParts {
            hunt: hunt(settings, &repos),
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
            clock: clock.clone(),
        };
        let sweeper = tokio::spawn(sweep(Arc::clone(&store), clock.clone()));
        let extra = git_http::routes(keeper.clone(), settings.git.clone());
        let keys = service_key::load(&settings.data_dir)?;
        let config = presented(settings, &keys);
        let parts = Parts { store, ingest: Arc::new(ingest), hub, config, clock, extra };
        let own = Arc::new(OwnRelay::new(parts.clone(), keeper.clone()));
        let syncer = start_sync(settings, own, keys).await?;
        Ok(Self { parts, keeper, syncer, sweeper })
    }

    /// What the server is made of.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What holds events and git data in step.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// What keeps our events in step with other relays, if anything does.
    pub fn syncer(&self) -> Option<&Syncer> {
        self.syncer.as_ref()
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

/// What goes and gets git data, if that is wanted.
fn hunt(settings: &Settings, repos: &RepoStore) -> Option<HuntParts> {
    let Hunt { hunter, limits } = settings.hunt.clone()?;
    let fetcher = Fetcher::new(repos.clone(), settings.outbound, limits);
    Some(HuntParts { config: hunter, fetcher })
}

fn presented(settings: &Settings, keys: &Keys) -> Config {
    let info = RelayInfo {
        name: settings.service.to_string(),
        service_key: Some(keys.public_key()),
        software: "grasp".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..RelayInfo::default()
    };
    Config {
        service: settings.service.clone(),
        info,
        limits: settings.relay.clone(),
        trusted_proxies: Vec::new(),
        challenge_on_connect: false,
    }
}

async fn open_store(settings: &Settings) -> Result<Arc<dyn EventStore>> {
    let dir = &settings.data_dir;
    fs::create_dir_all(dir).with_context(|| format!("could not create {}", dir.display()))?;
    open_chosen(settings.store, dir, rules(&settings.service))
        .await
        .with_context(|| format!("could not open the event store in {}", dir.display()))
}

/// A request to vanish may name us under either scheme.
fn rules(service: &ServiceIdentity) -> Rules {
    let ours = [true, false].into_iter().filter_map(|secure| service.relay_url(secure).ok());
    let vanish_relays =
        ours.filter_map(|url| store::rules::RelayUrl::parse(url.as_str()).ok()).collect();
    Rules { vanish_relays, ..Rules::default() }
}

async fn open_chosen(
    chosen: Store,
    dir: &Path,
    rules: Rules,
) -> Result<Arc<dyn EventStore>, StoreError> {
    Ok(match chosen {
        Store::Sqlite => {
            let options = SqliteOptions { rules, ..SqliteOptions::default() };
            Arc::new(SqliteStore::open(&dir.join("events.db"), options)?)
        }
        #[cfg(feature = "nostr-sqlite")]
        Store::NostrSqlite => {
            let file = dir.join("nostr-sqlite.db");
            Arc::new(store::adapter::open_nostr_sqlite(&file, &rules).await?)
        }
        #[cfg(feature = "nostr-lmdb")]
        Store::NostrLmdb => {
            let place = dir.join("nostr-lmdb");
            Arc::new(store::adapter::open_nostr_lmdb(&place, &rules).await?)
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
async fn start_sync(settings: &Settings, own: Arc<OwnRelay>, keys: Keys) -> Result<Option<Syncer>> {
    let Some(Sync { engine, limits }) = settings.sync.clone() else { return Ok(None) };
    let outbound = settings.outbound;
    let file = settings.data_dir.join("relays.jsonl");
    let settings = grasp_sync::Settings {
        engine,
        outbound,
        limits,
        keys: Some(keys),
        records: Box::new(RecordFile::new(&file)),
        observer: Arc::new(Log),
    };
    let started = Syncer::start(own, settings).await;
    started.map(Some).with_context(|| format!("could not open {}", file.display()))
}

/// The repositories on disk, and the git that works on them.
async fn open_repos(data_dir: &Path) -> Result<RepoStore> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let git = Git::find(&path, Slots::default()).context("could not find a usable git")?;
    tracing::info!(version = %git.version(), "found git");
    let dir = data_dir.join("git");
    RepoStore::open(&dir, git, StagingLimits::default())
        .await
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
