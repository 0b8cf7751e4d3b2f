//! The parts that only the writer has, from start to end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use grasp_core::RelayUrl;
use grasp_core::admission::FanOut;
use grasp_purgatory::driver::{Classify, HuntParts, PurgatoryDriver, PurgatoryParts};
use grasp_purgatory::git::RepoStore;
use grasp_purgatory::hunt::{HostClass, HuntConfig};
use grasp_sync::Syncer;
use grasp_sync::driver::{self, Outbound};
use nostr::key::Keys;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::{CommonParts, fetcher, start_sync};
use crate::Clock;
use crate::git_http::GitHost;
use crate::ingest::{Budgets, Ingest, ListedMaintainers, Pipeline};
use crate::instance::error::{Explain as _, Result};
use crate::instance::files;
use crate::instance::identity::{Identity, Publisher};
use crate::instance::metrics;
use crate::instance::overview::Overview;
use crate::instance::own_relay::OwnRelay;
use crate::instance::settings::Settings;
use crate::metrics::Metrics;
use crate::nostr::Hub;
use crate::policy::Enforcer;
use crate::purgatory::ServedEvents;
use crate::role::Writer;
use crate::store::EventStore;

/// Interval between deletions of expired events.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The parts that only the writer has: admission, purgatory, hunt and sync.
pub(crate) struct OwnWriter {
    pub(super) base: CommonParts,
    overview: Overview,
    running: Mutex<Option<RunningParts>>,
}

struct RunningParts {
    syncer: Option<Arc<Syncer>>,
    /// The tasks that remove expired events, enforce the policy, and tell who the service is.
    _tasks: JoinSet<()>,
}

impl OwnWriter {
    pub(super) fn new(base: CommonParts, overview: Overview) -> Self {
        Self {
            base,
            overview,
            running: Mutex::default(),
        }
    }

    pub(super) async fn syncer(&self) -> Option<Arc<Syncer>> {
        self.running.lock().await.as_ref()?.syncer.clone()
    }

    /// Starts purgatory with its hunt, from what the database has.
    async fn start_purgatory(&self) -> Result<PurgatoryDriver> {
        let CommonParts {
            settings,
            host,
            hub,
            metrics,
            database,
            keys,
            ..
        } = &self.base;
        let records = database.records().await;
        let records = records.context("could not read the database")?;
        let relay = ServedEvents {
            store: Arc::clone(&host.store),
            hub: hub.clone(),
            clock: host.clock.clone(),
            members: self.base.members(),
            policy: host.policy.clone(),
        };
        let parts = PurgatoryParts {
            hunt: Some(hunt_parts(settings, &host.repos, keys, metrics.clone())?),
            contributors: host.contributors.clone(),
            repos: host.repos.clone(),
            relay: Arc::new(relay),
            policy: host.policy.clone(),
            quotas: settings.quotas(),
        };
        Ok(PurgatoryDriver::start(parts, settings.purgatory.clone(), records).await)
    }

    /// Starts the parts of the writer.
    pub(super) async fn start_parts(&self) -> Result<Writer> {
        let CommonParts {
            settings,
            host,
            hub,
            metrics,
            keys,
            ..
        } = &self.base;
        let GitHost {
            store,
            policy,
            clock,
            ..
        } = host.clone();
        // The last writer may have changed it after this process looked.
        let loaded = self.base.policy.load(&*self.base.policies).await;
        loaded.context("could not read what operators decided")?;
        let purgatory = self.start_purgatory().await?;
        let ingest = Pipeline {
            store: Arc::clone(&store),
            git: Arc::new(purgatory.clone()),
            hub: hub.clone(),
            policy,
            fan_out: std::sync::Mutex::new(FanOut::new(settings.fan_out)),
            budgets: Budgets::default(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            members: self.base.members(),
            maintainers: ListedMaintainers::default(),
        };
        let ingest: Arc<dyn Ingest> = Arc::new(ingest);
        let mut tasks = JoinSet::new();
        tasks.spawn(sweep(store, hub.clone(), clock.clone()));
        tasks.spawn(self.enforcer(&purgatory).run());
        if let Some(identity) = Identity::of(settings) {
            let publisher = self.publisher(Arc::clone(&ingest))?;
            tasks.spawn(publisher.announce(identity, settings.listed_index_relays()));
        }
        let own = self.base.parts(Arc::clone(&ingest), Router::new());
        let own = Arc::new(OwnRelay::new(own, purgatory.clone()));
        let clock = driver::Clock::new(move || clock.now());
        // Unlisted repositories are followed too: admission decides what is stored, and an archive stores some of them.
        let syncer = start_sync(settings, own, clock, keys.clone(), metrics.clone(), true).await?;
        self.overview.set_syncer(syncer.clone());
        *self.running.lock().await = Some(RunningParts {
            syncer,
            _tasks: tasks,
        });
        Ok(Writer { ingest, purgatory })
    }

    /// Returns the means to tell who the service is.
    fn publisher(&self, ingest: Arc<dyn Ingest>) -> Result<Publisher> {
        let CommonParts {
            settings,
            host,
            keys,
            ..
        } = &self.base;
        let roots = files::roots_for_relays(settings)?;
        Ok(Publisher {
            keys: keys.clone(),
            store: Arc::clone(&host.store),
            ingest,
            clock: host.clock.clone(),
            outbound: Outbound::new(settings.outbound, &roots),
        })
    }

    /// Returns what hides and restores events as operators decide.
    fn enforcer(&self, purgatory: &PurgatoryDriver) -> Enforcer {
        Enforcer {
            store: Arc::clone(&self.base.policies),
            policy: Arc::clone(&self.base.policy),
            hub: self.base.hub.clone(),
            git: Arc::new(purgatory.clone()),
            clock: self.base.host.clock.clone(),
        }
    }

    /// Stops sync; the other parts end with their last use.
    pub(super) async fn stop_parts(&self) {
        self.overview.set_syncer(None);
        let running = self.running.lock().await.take();
        if let Some(syncer) = running.and_then(|parts| parts.syncer) {
            syncer.stop().await;
        }
    }
}

/// Returns the parts of the hunt for git data.
fn hunt_parts(
    settings: &Settings,
    repos: &RepoStore,
    keys: &Keys,
    metrics: Metrics,
) -> Result<HuntParts> {
    let fetcher = fetcher(settings, repos, keys)?;
    let observer = Arc::new(move |report: &_| metrics::record_hunt(&metrics, report));
    // As many requests as processes, so that no request waits for a process after its start.
    let config = HuntConfig {
        at_once: settings.processes.remote_processes,
        ..settings.hunt.clone()
    };
    let outbound = settings.outbound;
    let roots = files::roots_for_relays(settings)?;
    let classify: Classify = Arc::new(move |relay: RelayUrl| {
        let roots = roots.clone();
        Box::pin(async move {
            let facts = driver::relay_information(&relay, outbound, &roots).await?;
            Some(if facts.is_grasp {
                HostClass::Grasp
            } else {
                HostClass::Unknown
            })
        })
    });
    Ok(HuntParts {
        config,
        fetcher,
        observer,
        classify,
    })
}

/// Deletes events whose expiration has passed (NIP-40), at intervals.
async fn sweep(store: Arc<dyn EventStore>, hub: Hub, clock: Clock) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        interval.tick().await;
        match store.sweep(clock.now().unix).await {
            Ok(swept) if swept.events == 0 => {}
            Ok(swept) => {
                let deleted = swept.events;
                tracing::info!(
                    deleted,
                    "deleted events whose expiration has passed (NIP-40)"
                );
                hub.publish_removed(swept.removed).await;
            }
            Err(error) => {
                tracing::warn!(%error, "could not delete events whose expiration has passed")
            }
        }
    }
}
