//! A node: one of several processes that are one server, on a database and packs that they share.

use std::sync::Arc;
use std::time::Duration;

use bitcoin_hashes::sha256;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use grasp_core::Mono;
use nostr::key::{Keys, SecretKey};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};

use super::{CommonParts, OwnWriter, Server, tls};
use crate::Clock;
use crate::git_http::GitHost;
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::files;
use crate::instance::overview::Overview;
use crate::instance::settings::Settings;
use crate::nodes::{NODE_TIMEOUT, Node, NodeParts, Report, StartError, WriterParts, check_clock};
use crate::nostr::Hub;
use crate::role::Writer;
use crate::server::{NodeKey, Parts};
use crate::store::StoreRules;
use crate::store::postgres::{NodeRow, PostgresOptions, PostgresStore};
use crate::tls::TlsStore;
use crate::web::figures::NodeStatus;

/// The time that a process waits to become the writer, where it cannot do without.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that the object store may take to answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The time for which the result of a probe counts.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// The report of a node to the others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeReport {
    /// The last event that was published to its subscriptions.
    seq: u64,
    /// Its status, without what the database and the reports of other nodes say about it.
    #[serde(flatten)]
    status: NodeStatus,
}

/// Opens a node of a server.
pub(super) async fn open(settings: &Settings, clock: Clock) -> Result<Server> {
    let address = settings
        .node_address
        .as_ref()
        .ok_or_else(|| InstanceError::operator("node_address is not set"))?;
    let settings = &super::with_icon(settings)?;
    create_data_dir(settings)?;
    let store = connect(settings).await?;
    let key = store
        .node_key()
        .await
        .context("could not read the database")?;
    compare_clocks(&store, &clock).await?;
    let keys = match &settings.service_key {
        Some(file) => files::service_key(file)?,
        None => service_key(&key)?,
    };
    let key = NodeKey::new(key);
    let hub = Hub::of_node();
    let tls_store: Arc<dyn TlsStore> = Arc::clone(&store) as _;
    let shared = (Arc::clone(&store) as _, hub.clone());
    let base = CommonParts::open(settings, shared, clock.clone(), (keys, Some(key))).await?;
    let base = base.with_certificates(tls::certificates(settings, Some(tls_store.clone())));
    let address: Arc<str> = address.as_str().trim_end_matches('/').into();
    let parts = NodeParts {
        store,
        hub,
        address,
        key,
        clock,
        metrics: base.metrics.clone(),
        report: report(base.clone()),
    };
    let mut node = Node::new(parts)
        .await
        .context("could not read the database")?;
    let view = NodeView::of(&node);
    let roles = node.roles().clone();
    let mut keeper = base.keep(Some(tls_store), roles.clone())?;
    let overview = Overview::of_server(&base, roles.clone(), Some(view));
    let management = super::management::open(&base, &overview)?;
    keeper.spawn(management.clone().follow());
    let parts = Parts {
        management: Some(node.pass_to_writer(management.route())),
        ..base.service_parts(node.ingest(), &roles, &overview, |it| node.routes(it))
    };
    let writer = Arc::new(OwnWriter::new(base, overview.clone()));
    node.run(writer.clone());
    Ok(Server {
        parts,
        roles,
        writer,
        overview,
        management,
        node: Some(Arc::new(node)),
        _keeper: keeper,
    })
}

async fn compare_clocks(store: &PostgresStore, clock: &Clock) -> Result<()> {
    let time = store.time().await.context("could not read the database")?;
    check_clock(clock.now().unix, time)?;
    Ok(())
}

fn create_data_dir(settings: &Settings) -> Result<()> {
    files::create_private_dir(&settings.data_dir).with_context(|| {
        format!(
            "could not create {}; choose another directory with --data-dir",
            settings.data_dir.display()
        )
    })
}

/// Connects to the database of the settings.
pub(crate) async fn connect(settings: &Settings) -> Result<Arc<PostgresStore>> {
    let database = settings.database.as_ref();
    let database = database.ok_or_else(|| InstanceError::operator("database is not set"))?;
    let rules = StoreRules {
        service: Some(settings.policy.service.clone()),
        ignores_deletions: settings.policy.archive.ignores_deletions,
        ..StoreRules::default()
    };
    let options = PostgresOptions {
        rules,
        ..PostgresOptions::default()
    };
    let store = PostgresStore::connect(database.url(), options).await;
    Ok(Arc::new(store.with_context(|| {
        format!("could not use the database {database}")
    })?))
}

/// Returns the key that all nodes of a server sign with, unless the operator gives them a file with one.
fn service_key(node_key: &[u8; 32]) -> Result<Keys> {
    let seed = [b"service key of grasp nodes".as_slice(), node_key].concat();
    let secret = SecretKey::from_slice(sha256::Hash::hash(&seed).as_byte_array())
        .map_err(|_| InstanceError::operator("the database has no usable key"))?;
    Ok(Keys::new(secret))
}

/// Returns the source of this node's report.
fn report(base: CommonParts) -> Report {
    Arc::new(move |seq| {
        let base = base.clone();
        async move {
            let figures = base.pack_figures();
            let status = NodeStatus {
                version: env!("CARGO_PKG_VERSION").into(),
                sockets: base.hub.stats().await.sockets as u64,
                cache_hits: figures.hits,
                cache_misses: figures.misses,
                cache_bytes: figures.cached_bytes,
                uploads: figures.uploading,
                ..NodeStatus::default()
            };
            serde_json::to_string(&NodeReport { seq, status }).unwrap_or_default()
        }
        .boxed()
    })
}

/// The nodes of a server, as one of them sees them.
pub(crate) struct NodeView {
    address: Arc<str>,
    nodes: watch::Receiver<Arc<[NodeRow]>>,
    /// The time and the result of the last probe of the object store.
    probed: Mutex<Option<(Mono, bool)>>,
}

impl NodeView {
    /// Returns the view of a node that has started.
    fn of(node: &Node) -> Self {
        Self {
            address: Arc::clone(node.address()),
            nodes: node.nodes(),
            probed: Mutex::default(),
        }
    }

    /// Returns the status of all nodes that have reported within the last day.
    pub(crate) fn rows(&self) -> Vec<NodeStatus> {
        let nodes = self.nodes.borrow().clone();
        let reports: Vec<NodeReport> = nodes
            .iter()
            .map(|node| serde_json::from_str(&node.report).unwrap_or_default())
            .collect();
        let newest = reports
            .iter()
            .map(|report| report.seq)
            .max()
            .unwrap_or_default();
        let status = |(node, report): (&NodeRow, NodeReport)| NodeStatus {
            address: node.address.clone(),
            is_writer: node.is_writer,
            is_up: node.seen < NODE_TIMEOUT,
            seen: node.seen.as_secs(),
            lag: newest.saturating_sub(report.seq),
            ..report.status
        };
        nodes.iter().zip(reports).map(status).collect()
    }

    /// Returns the number of events that this node has still to publish.
    pub(crate) fn own_lag(&self) -> u64 {
        self.rows()
            .iter()
            .find(|row| *row.address == *self.address)
            .map_or(0, |row| row.lag)
    }

    /// Returns whether the object store of the packs answers.
    pub(crate) async fn packs_answer(&self, base: &CommonParts) -> bool {
        let Some(packs) = &base.packs else {
            return true;
        };
        let mut last = self.probed.lock().await;
        let now = base.host.clock.now().mono;
        if let Some((at, answered)) = *last {
            if now - at < PROBE_INTERVAL {
                return answered;
            }
        }
        let probe = tokio::time::timeout(PROBE_TIMEOUT, packs.storage().probe()).await;
        let answered = matches!(probe, Ok(Ok(())));
        *last = Some((now, answered));
        answered
    }
}

impl WriterParts for OwnWriter {
    fn start(&self) -> BoxFuture<'_, Result<Writer, StartError>> {
        Box::pin(async move {
            let GitHost {
                repos,
                contributors,
                ..
            } = &self.base.host;
            for store in std::iter::once(repos).chain(contributors) {
                store.became_writer().await?;
            }
            self.start_parts().await.map_err(StartError::from)
        })
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.stop_parts())
    }
}

impl Server {
    /// Waits until this process is the writer, for work that only the writer does.
    pub async fn until_writer(&self) -> Result<()> {
        self.roles()
            .until_writer(TAKEOVER_TIMEOUT)
            .await
            .then_some(())
            .context("another node is the writer, and does this by itself")
    }
}
