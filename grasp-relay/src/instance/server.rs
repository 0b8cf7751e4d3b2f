//! A server, built from its parts.

mod management;
pub(crate) mod node;
pub(super) mod tls;
mod writer;

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use grasp_core::service::Endpoint;
use grasp_purgatory::database::Database;
use grasp_purgatory::git::{Fetcher, PackCache, PackFigures, PackStorage, RepoStore};
use grasp_sync::driver::{self, RecordFile};
use grasp_sync::{SyncedRelay, Syncer};
use nostr::key::Keys;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::writer::OwnWriter;
use crate::git_http::GitHost;
use crate::in_step::InStep;
use crate::ingest::Ingest;
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::files::{self, create_private_dir};
use crate::instance::http;
use crate::instance::metrics::SyncObserver;
use crate::instance::overview::Overview;
use crate::instance::private::{PrivateService, authorize};
use crate::instance::settings::{Settings, Sync};
use crate::management::Management;
use crate::metrics::{Metrics, count_requests};
use crate::nodes::Node;
use crate::nostr::{Hub, InfoOwner};
use crate::policy::{LivePolicy, PolicyOwner};
use crate::private::Members;
use crate::role::{Role, RoleWatch};
use crate::server::{Config, Listeners, NodeKey, Parts, serve};
use crate::store::policy::{PolicyChange, PolicyChanged};
use crate::store::sqlite::{SqliteOptions, SqliteStore};
use crate::store::{Store, StoreRules};
use crate::tls::{Certificates, TlsStore};
use crate::web::figures::Status;
use crate::web::{Listing, Pages, RelayRows, Show, Surroundings};
use crate::{Clock, git_http};

/// File of the database in the data directory.
pub(crate) const DATABASE: &str = "grasp.db";

/// File of the records about other relays in the data directory.
pub(crate) const RELAY_RECORDS: &str = "relays.jsonl";

/// A server whose parts run; [`Server::serve`] accepts connections.
pub struct Server {
    parts: Parts,
    roles: RoleWatch,
    writer: Arc<OwnWriter>,
    overview: Overview,
    management: Management,
    /// The node, if the server has several.
    node: Option<Arc<Node>>,
    /// The tasks that keep the TLS certificate, and follow what operators decide.
    _keeper: JoinSet<()>,
}

impl Server {
    /// Opens all parts of a server, and creates its data directory if there is none.
    pub async fn open(settings: &Settings, clock: Clock) -> Result<Self> {
        if settings.database.is_some() {
            return node::open(settings, clock).await;
        }
        let store = open_store(settings).await?;
        Self::open_on(settings, store, clock).await
    }

    /// Opens all parts of the only process of a server on the caller's database.
    pub async fn open_on(settings: &Settings, store: Arc<dyn Store>, clock: Clock) -> Result<Self> {
        let settings = &with_icon(settings)?;
        let keys = files::service_key(&settings.service_key())?;
        let base = CommonParts::open(settings, (store, Hub::start()), clock, (keys, None)).await?;
        let base = base.with_certificates(tls::certificates(settings, None));
        let (role, roles) = watch::channel(Role::Reader { writer: None });
        let roles = RoleWatch::new(roles);
        let mut keeper = base.keep(None, roles.clone())?;
        let overview = Overview::of_server(&base, roles.clone(), None);
        let writer = Arc::new(OwnWriter::new(base.clone(), overview.clone()));
        let started = writer.start_parts().await?;
        let management = management::open(&base, &overview)?;
        keeper.spawn(management.clone().follow());
        let ingest = started.ingest.clone();
        let parts = Parts {
            management: Some(management.route()),
            ..base.service_parts(ingest, &roles, &overview, |routes| routes)
        };
        role.send_replace(Role::Writer(started));
        Ok(Self {
            parts,
            roles,
            writer,
            overview,
            management,
            node: None,
            _keeper: keeper,
        })
    }

    /// Returns the parts that serve requests.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Returns the status.
    pub async fn status(&self) -> Status {
        self.overview.status().await
    }

    /// Returns the source of the status.
    pub(crate) fn overview(&self) -> &Overview {
        &self.overview
    }

    /// Returns the administration.
    pub(crate) fn management(&self) -> &Management {
        &self.management
    }

    /// Shows the role of this process; it is always the writer unless the server has several nodes.
    pub fn roles(&self) -> &RoleWatch {
        &self.roles
    }

    /// Returns the driver of sync, if this process is the writer and sync is enabled.
    pub async fn syncer(&self) -> Option<Arc<Syncer>> {
        self.writer.syncer().await
    }

    /// Returns the certificate for the listeners with TLS; `None` if TLS is off.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.overview.certificates()
    }

    /// Has an operator change the policy, which is in force at this process when this returns.
    pub async fn change_policy(&self, change: PolicyChange) -> Result<PolicyChanged> {
        let base = &self.writer.base;
        let changed = base.policies.change_policy(change).await;
        let changed = changed.context("could not store the change")?;
        let loaded = base.policy.load(&*base.policies).await;
        loaded.context("could not read the database")?;
        Ok(changed)
    }

    /// Serves until `shutdown` resolves, then lets open requests finish within the grace period.
    pub async fn serve(
        &self,
        listeners: impl Into<Listeners>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<()> {
        serve(listeners, self.parts.clone(), shutdown)
            .await
            .context("the server failed")
    }

    /// Closes all parts; everything that was acknowledged is durable.
    pub async fn close(self) -> Result<()> {
        match &self.node {
            Some(node) => node.stop().await,
            None => self.writer.stop_parts().await,
        }
        let store = Arc::clone(&self.parts.store);
        drop(self);
        store.close().await.context("the store did not close")
    }
}

/// The parts of a server that do not depend on its role. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CommonParts {
    pub(crate) settings: Arc<Settings>,
    pub(crate) host: GitHost,
    pub(crate) hub: Hub,
    pub(crate) metrics: Metrics,
    pub(crate) listing: Listing,
    /// The TLS certificate, if the server does TLS by itself.
    pub(crate) certificates: Option<Certificates>,
    /// The comparison of refs with other servers, unless there are no pages that show it.
    pub(crate) in_step: Option<InStep>,
    pub(crate) database: Arc<dyn Database>,
    /// The texts of NIP-11.
    info: Arc<InfoOwner>,
    /// What operators change while the server runs.
    pub(crate) policy: Arc<PolicyOwner>,
    /// Where that is stored.
    pub(crate) policies: Arc<dyn Store>,
    /// The members, if the service is private.
    private: Option<PrivateService>,
    packs: Option<PackCache>,
    keys: Keys,
    config: Config,
}

impl CommonParts {
    /// Opens the repositories of a database, which publishes through this hub, with the keys of the service and of its nodes.
    async fn open(
        settings: &Settings,
        (store, hub): (Arc<dyn Store>, Hub),
        clock: Clock,
        (keys, node_key): (Keys, Option<NodeKey>),
    ) -> Result<Self> {
        let packs = open_packs(settings)?;
        let repos = open_repos(settings, store.clone(), packs.clone()).await?;
        let contributors = open_contributors(settings, &repos, packs.clone()).await?;
        let mut policy = settings.policy.clone();
        policy.members_only = settings.private.enabled;
        policy.service_key = Some(keys.public_key());
        let database: Arc<dyn Database> = store.clone();
        let policies = store.clone();
        let policy = Arc::new(PolicyOwner::new(policy));
        policy
            .load(&*policies)
            .await
            .context("could not read the database")?;
        let host = GitHost {
            repos,
            contributors,
            store,
            policy: policy.live(),
            clock,
        };
        let private = PrivateService::start(settings, &host)?;
        let info = Arc::new(InfoOwner::new(settings.info(keys.public_key())));
        let mut config = relay_config(settings, &info, node_key, host.policy.clone());
        config.private = private.as_ref().map(|service| service.private.clone());
        Ok(Self {
            settings: Arc::new(settings.clone()),
            listing: listing(&host),
            certificates: None,
            in_step: start_in_step(settings, &host, &keys)?,
            private,
            host,
            hub,
            metrics: Metrics::default(),
            policy,
            policies,
            database,
            info,
            packs,
            config,
            keys,
        })
    }

    /// Adds the TLS certificate.
    fn with_certificates(self, certificates: Option<Certificates>) -> Self {
        Self {
            certificates,
            ..self
        }
    }

    /// Starts to keep the TLS certificate, with what nodes share, and to follow what operators decide.
    fn keep(&self, shared: Option<Arc<dyn TlsStore>>, roles: RoleWatch) -> Result<JoinSet<()>> {
        let clock = self.host.clock.clone();
        let is_node = shared.is_some();
        let mut tasks = tls::keep(
            &self.settings,
            self.certificates.clone(),
            shared,
            roles,
            clock,
        )?;
        self.follow_policy(&mut tasks, is_node);
        Ok(tasks)
    }

    /// Has the list of repositories follow what operators decide, and the policy what they decide at other nodes.
    fn follow_policy(&self, tasks: &mut JoinSet<()>, is_node: bool) {
        let listing = self.listing.clone();
        let mut live = self.host.policy.clone();
        tasks.spawn(async move {
            loop {
                let _ = live.next().await;
                listing.forget().await;
            }
        });
        if is_node {
            let policy = Arc::clone(&self.policy);
            let policies = Arc::clone(&self.policies);
            tasks.spawn(async move { policy.follow(&*policies).await });
        }
    }

    /// Returns the name that the server has at this moment.
    pub(crate) fn name(&self) -> String {
        self.config.info.now().name.clone()
    }

    /// Returns the members, if the service is private.
    fn members(&self) -> Option<Members> {
        let service = self.private.as_ref()?;
        Some(service.private.members.clone())
    }

    /// Returns figures of the packs and their cache; zeros if there is no object store.
    pub(crate) fn pack_figures(&self) -> PackFigures {
        self.packs
            .as_ref()
            .map(PackCache::figures)
            .unwrap_or_default()
    }

    /// Returns the pages.
    fn pages(&self, overview: &Overview) -> Pages {
        let rows = overview.clone();
        let relays: RelayRows = Arc::new(move || {
            let overview = rows.clone();
            Box::pin(async move { overview.relays().await })
        });
        let surroundings = Surroundings {
            in_step: self.in_step.clone(),
            relays: Some(relays),
            service_key: Some(self.keys.public_key()),
            metrics: self.metrics.clone(),
        };
        let host = self.host.clone();
        let listing = self.listing.clone();
        Pages::new(host, listing, &self.config, surroundings)
    }

    /// Returns the routes beside the relay.
    fn routes(&self, roles: &RoleWatch, overview: &Overview, pages: &Pages) -> Router {
        let of_no_repository = pages.routes();
        let limits = self.settings.git.clone();
        let host = self.host.clone();
        let git = git_http::routes(host, roles.clone(), limits, pages.clone());
        let routes = http::routes(overview.clone(), self.settings.metrics);
        let routes = routes.merge(http::admin_route(overview));
        let routes = routes.merge(of_no_repository).merge(git);
        count_requests(routes, self.metrics.clone())
    }

    /// Returns the parts that serve a relay, git and pages; their routes are within those that `around` returns.
    fn service_parts(
        &self,
        ingest: Arc<dyn Ingest>,
        roles: &RoleWatch,
        overview: &Overview,
        around: impl FnOnce(Router) -> Router,
    ) -> Parts {
        let pages = self.pages(overview);
        let routes = around(self.routes(roles, overview, &pages));
        Parts {
            pages: Some(pages),
            ..self.parts(ingest, routes)
        }
    }

    /// Returns the parts that serve requests, with this ingest and these routes.
    fn parts(&self, ingest: Arc<dyn Ingest>, extra: Router) -> Parts {
        Parts {
            store: Arc::clone(&self.host.store),
            ingest,
            hub: self.hub.clone(),
            listing: self.listing.clone(),
            config: self.config.clone(),
            clock: self.host.clock.clone(),
            pages: None,
            management: None,
            extra,
        }
    }
}

/// Starts the comparison of refs with other servers, if pages show it.
fn start_in_step(settings: &Settings, host: &GitHost, keys: &Keys) -> Result<Option<InStep>> {
    if settings.pages.show != Show::Full {
        return Ok(None);
    }
    let fetcher = fetcher(settings, &host.repos, keys)?;
    Ok(Some(InStep::start(host.clone(), fetcher, settings.in_step)))
}

/// Returns the list of repositories that pages show.
fn listing(host: &GitHost) -> Listing {
    let GitHost {
        store,
        policy,
        clock,
        ..
    } = host.clone();
    Listing::new(store, policy.service().clone(), clock, move |announced| {
        policy.now().hosts(announced)
    })
}

/// Returns what fetches from other git servers. A private service is a member of other private ones.
fn fetcher(settings: &Settings, repos: &RepoStore, keys: &Keys) -> Result<Fetcher> {
    let roots = files::roots_for_relays(settings)?;
    let authorize = settings
        .private
        .enabled
        .then(|| authorize(keys.clone(), settings.outbound, roots));
    let fetcher = Fetcher::new(repos.clone(), settings.outbound, settings.fetch);
    let fetcher = fetcher.trusting(files::roots_for_git(settings)?);
    Ok(fetcher.authorizing(authorize))
}

fn relay_config(
    settings: &Settings,
    info: &InfoOwner,
    node_key: Option<NodeKey>,
    policy: LivePolicy,
) -> Config {
    Config {
        service: settings.policy.service.clone(),
        secure: settings.git.secure,
        info: info.live(),
        limits: settings.relay.clone(),
        trusted_proxies: settings.trusted_proxies.clone(),
        node_key,
        pages: settings.pages.clone(),
        private: None,
        policy,
    }
}

/// Returns the settings with the icon of pages, if they name a file.
pub(super) fn with_icon(settings: &Settings) -> Result<Settings> {
    let mut settings = settings.clone();
    if let Some(icon) = files::page_icon(&settings)? {
        settings.pages.branding.icon = Some(icon);
    }
    Ok(settings)
}

/// Opens the database, and creates its directory if there is none.
pub async fn open_store(settings: &Settings) -> Result<Arc<dyn Store>> {
    let dir = &settings.data_dir;
    create_private_dir(dir).with_context(|| {
        format!(
            "could not create {}; choose another directory with --data-dir",
            dir.display()
        )
    })?;
    refuse_old_layout(dir)?;
    let rules = StoreRules {
        service: Some(settings.policy.service.clone()),
        ignores_deletions: settings.policy.archive.ignores_deletions,
        ..StoreRules::default()
    };
    let options = SqliteOptions {
        rules,
        ..settings.sqlite.clone()
    };
    let file = dir.join(DATABASE);
    let store = SqliteStore::open(&file, options);
    Ok(Arc::new(store.with_context(|| {
        format!("could not open {}", file.display())
    })?))
}

/// Refuses the data of versions before 0.2, which kept events and refs apart.
fn refuse_old_layout(dir: &Path) -> Result<()> {
    let old = ["events.db", "purgatory.db"].map(|file| dir.join(file));
    if let Some(old) = old.iter().find(|file| file.exists()) {
        return Err(InstanceError::operator(format!(
            "{} is of a version before 0.2, whose data cannot be read; choose a new directory with --data-dir: other \
             servers bring back what they have, and the rest can be pushed again",
            old.display()
        )));
    }
    Ok(())
}

/// Starts sync with other relays, if it is enabled.
pub(crate) async fn start_sync(
    settings: &Settings,
    local: Arc<dyn SyncedRelay>,
    clock: driver::Clock,
    keys: Keys,
    metrics: Metrics,
    follow_unlisted: bool,
) -> Result<Option<Arc<Syncer>>> {
    let Sync {
        enabled: true,
        mut engine,
        limits,
        ..
    } = settings.sync.clone()
    else {
        return Ok(None);
    };
    engine.follow_unlisted |= follow_unlisted;
    engine.is_private = settings.private.enabled;
    let file = settings.data_dir.join(RELAY_RECORDS);
    let mut sync = grasp_sync::Settings::new(engine.own.clone())
        .with_keys(keys)
        .with_records(RecordFile::new(&file))
        .with_observer(SyncObserver(metrics));
    sync.engine = engine;
    sync.clock = clock;
    sync.outbound = settings.outbound;
    sync.roots = files::roots_for_relays(settings)?;
    sync.limits = limits;
    sync.outbox = settings.outbox();
    let started = Syncer::start(local, sync).await;
    let syncer = started.with_context(|| format!("could not open {}", file.display()))?;
    Ok(Some(Arc::new(syncer)))
}

/// Opens the object store of the packs, if there is one, and the cache of it.
fn open_packs(settings: &Settings) -> Result<Option<PackCache>> {
    let Some(url) = &settings.packs else {
        return Ok(None);
    };
    let storage = PackStorage::open(url.as_str(), &settings.pack_storage)
        .with_context(|| format!("could not use {url}"))?;
    Ok(Some(PackCache::new(storage, settings.pack_cache_bytes)))
}

/// Opens the repositories on disk, with the git program.
pub(crate) async fn open_repos(
    settings: &Settings,
    database: Arc<dyn Database>,
    packs: Option<PackCache>,
) -> Result<RepoStore> {
    let git = settings.git().context("could not find a usable git")?;
    tracing::info!(version = %git.version(), "found git");
    let dir = settings.repositories();
    RepoStore::open(
        &dir,
        Endpoint::Repository,
        git,
        settings.staging(),
        database,
        packs,
    )
    .await
    .with_context(|| format!("could not open {}", dir.display()))
}

/// Opens the repositories of contributors, if they are enabled, with the same limits of git processes.
pub(crate) async fn open_contributors(
    settings: &Settings,
    repos: &RepoStore,
    packs: Option<PackCache>,
) -> Result<Option<RepoStore>> {
    if !settings.policy.contributor_proposals {
        return Ok(None);
    }
    let dir = settings.repositories().join("prs");
    let git = repos.git().clone();
    let database = Arc::clone(repos.database());
    RepoStore::open(
        &dir,
        Endpoint::PullRequests,
        git,
        settings.staging(),
        database,
        packs,
    )
    .await
    .map(Some)
    .with_context(|| format!("could not open {}", dir.display()))
}
