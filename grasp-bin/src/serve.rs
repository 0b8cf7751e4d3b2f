//! `grasp serve`: the parts of a server, put together.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use grasp_core::ServiceIdentity;
use grasp_core::admission::Policy;
use grasp_purgatory::git::{Git, RepoStore, Slots, StagingLimits};
use grasp_purgatory::journal::sqlite::Journal;
use grasp_relay::git_http::{self, GitLimits};
use grasp_relay::ingest::Pipeline;
use grasp_relay::keeper::{Keeper, KeeperParts};
use grasp_relay::nostr::{Hub, Limits, RelayInfo};
use grasp_relay::server::{Config, Parts, serve};
use grasp_relay::store::rules::Rules;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, StoreError};
use grasp_relay::{Clock, store};
use tokio::net::TcpListener;

use crate::cli::{Serve, Store};

/// How often what time has made worthless is thrown away.
const SWEEP: Duration = Duration::from_secs(60);

/// Runs the server until it is told to stop.
pub(crate) fn run(settings: &Serve) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("could not start the runtime")?;
    runtime.block_on(serve_until_told(settings))
}

async fn serve_until_told(settings: &Serve) -> Result<()> {
    let listener = TcpListener::bind(settings.listen)
        .await
        .with_context(|| format!("could not listen on {}", settings.listen))?;
    let service = identity(settings, &listener)?;
    let store = open_store(settings, &service).await?;
    let clock = Clock::system();
    let sweeper = tokio::spawn(sweep(Arc::clone(&store), clock.clone()));

    welcome(&service);
    let parts = parts(settings, service, Arc::clone(&store), clock).await?;
    serve(listener, parts, told_to_stop()).await.context("the server failed")?;

    sweeper.abort();
    store.close().await.context("the store did not close")?;
    tracing::info!("stopped, everything acknowledged is on disk");
    Ok(())
}

/// The address others know us by: the one that was set, or the one we listen on.
fn identity(settings: &Serve, listener: &TcpListener) -> Result<ServiceIdentity> {
    if let Some(domain) = &settings.domain {
        return Ok(domain.clone());
    }
    let address = listener.local_addr().context("could not learn where we listen")?;
    address.to_string().parse().context("could not make an address of where we listen")
}

async fn open_store(settings: &Serve, service: &ServiceIdentity) -> Result<Arc<dyn EventStore>> {
    let dir = &settings.data_dir;
    fs::create_dir_all(dir).with_context(|| format!("could not create {}", dir.display()))?;
    let ours = [true, false].into_iter().filter_map(|secure| service.relay_url(secure).ok());
    let vanish_relays =
        ours.filter_map(|url| store::rules::RelayUrl::parse(url.as_str()).ok()).collect();
    let rules = Rules { vanish_relays, ..Rules::default() };
    open_chosen(settings.store, dir, rules)
        .await
        .with_context(|| format!("could not open the event store in {}", dir.display()))
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

async fn parts(
    settings: &Serve,
    service: ServiceIdentity,
    store: Arc<dyn EventStore>,
    clock: Clock,
) -> Result<Parts> {
    let hub = Hub::start();
    let policy = Policy { model: settings.maintainers.into(), ..Policy::new(service.clone()) };
    let keeper = KeeperParts {
        repos: open_repos(settings).await?,
        store: Arc::clone(&store),
        hub: hub.clone(),
        policy: policy.clone(),
        clock: clock.clone(),
    };
    let file = settings.data_dir.join("purgatory.db");
    let (journal, records) =
        Journal::open(&file).with_context(|| format!("could not open {}", file.display()))?;
    let keeper = Keeper::start(keeper, Default::default(), journal, records).await;
    let ingest = Pipeline {
        store: Arc::clone(&store),
        git: Arc::new(keeper.clone()),
        hub: hub.clone(),
        policy,
        clock: clock.clone(),
    };
    let info = RelayInfo {
        name: service.to_string(),
        software: "grasp".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..RelayInfo::default()
    };
    let config = Config {
        service,
        info,
        limits: Limits::default(),
        trusted_proxies: Vec::new(),
        challenge_on_connect: false,
    };
    let extra = git_http::routes(keeper, GitLimits::default());
    Ok(Parts { store, ingest: Arc::new(ingest), hub, config, clock, extra })
}

/// The repositories on disk, and the git that works on them.
async fn open_repos(settings: &Serve) -> Result<RepoStore> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let git = Git::find(&path, Slots::default()).context("could not find a usable git")?;
    tracing::info!(version = %git.version(), "found git");
    let dir = settings.data_dir.join("git");
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

/// Tells the operator where everything is. Whether anybody reads it makes no difference.
fn welcome(service: &ServiceIdentity) {
    let text = format!(
        "grasp {} is up\n\
         \x20 relay   ws://{service}\n\
         \x20 page    http://{service}/\n\
         \x20 clone   http://{service}/<npub>/<name>.git\n\
         \x20 stop    Ctrl-C\n",
        env!("CARGO_PKG_VERSION")
    );
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Resolves when the operator or the system asks us to stop; asked twice, the process ends at once.
async fn told_to_stop() {
    signal().await;
    tracing::info!("stopping; once more to stop at once");
    tokio::spawn(async {
        signal().await;
        std::process::exit(130);
    });
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(not(unix))]
async fn signal() {
    let _ = tokio::signal::ctrl_c().await;
}
