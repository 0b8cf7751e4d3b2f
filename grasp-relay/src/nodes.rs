//! Several nodes that are one server: they share a database, one of them writes, all of them serve.
//!
//! ```text
//!   clients ──▶ any node ── REQ, COUNT, NEG, clones ──▶ database and packs
//!                   │
//!                   └────── EVENT, push ──▶ the writer ──commit──▶ database ──feed──▶ subscriptions of every node
//! ```
//!
//! The writer holds a lease in the database, which every commit checks. If it dies, another node gets the lease within
//! seconds, restores purgatory from the database and goes on.

mod drift;
mod forward;
mod lease;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::BoxFuture;
use grasp_core::Mono;
use nostr::event::Event;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

pub use self::drift::{ClockDrift, check_clock};
use self::drift::{DriftNews, DriftWatch};
use self::forward::Forwarder;
use self::lease::{Input, Lease, Output};
use crate::clock::Clock;
use crate::ingest::Ingest;
use crate::management::ManagementRoute;
use crate::metrics::Metrics;
use crate::nostr::Hub;
use crate::role::{Role, RoleWatch, Writer};
use crate::server::NodeKey;
use crate::store::postgres::{LeaseClaim, NodeRow, PostgresStore};
use crate::store::{StoreError, StoredEvent};

/// The time that the database may take to answer a claim.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which a node reports to the others.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which a node compares its clock with that of the database.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);

/// The time after which a node that has not reported is taken to be down.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a stopping node waits until its lease is given back.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The failure to start the parts of the writer.
pub type StartError = Box<dyn Error + Send + Sync>;

/// Starts and stops the parts that only the writer has.
pub trait WriterParts: Send + Sync + 'static {
    /// Starts them, from what the database has.
    fn start(&self) -> BoxFuture<'_, Result<Writer, StartError>>;

    /// Stops them. Their commits are refused from now on.
    fn stop(&self) -> BoxFuture<'_, ()>;
}

/// The parts of a node.
pub struct NodeParts {
    /// The database that all nodes share.
    pub store: Arc<PostgresStore>,
    /// The fan-out to the subscriptions of this node.
    pub hub: Hub,
    /// The address at which the other nodes reach this one, such as `http://node1:7334`.
    pub address: Arc<str>,
    /// The key of all nodes.
    pub key: NodeKey,
    /// The clock of the server.
    pub clock: Clock,
    /// Counts the forged events of this node's clients.
    pub metrics: Metrics,
    /// Returns the report of this node, for the status of all nodes.
    pub report: Report,
}

/// The source of a node's report; takes the number of the last event that the node has published.
pub type Report = Arc<dyn Fn(u64) -> BoxFuture<'static, String> + Send + Sync>;

/// A node. Its tasks end when it is dropped.
pub struct Node {
    driver: Driver,
    roles: RoleWatch,
    nodes: watch::Receiver<Arc<[NodeRow]>>,
    forwarder: Forwarder,
    stop: mpsc::Sender<oneshot::Sender<()>>,
    tasks: JoinSet<()>,
}

impl Node {
    /// Prepares a node, which follows the commits of all nodes and does not claim the lease yet.
    pub async fn new(parts: NodeParts) -> Result<Self, StoreError> {
        let NodeParts {
            store,
            hub,
            address,
            key,
            clock,
            metrics,
            report,
        } = parts;
        let (role, roles) = watch::channel(Role::Reader { writer: None });
        let roles = RoleWatch::new(roles);
        let forwarder = Forwarder::new(key, roles.clone(), hub.clone(), metrics);
        let (progress, position) = watch::channel(store.last_seq().await?);
        let (seen, nodes) = watch::channel(Arc::<[NodeRow]>::default());
        let driver = Driver {
            store,
            address,
            clock,
            role,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(Arc::clone(&driver.store), hub.clone(), progress));
        tasks.spawn(report_node(driver.clone(), report, position, seen));
        tasks.spawn(watch_clock(driver.clone()));
        let others = (Arc::clone(&driver.address), nodes.clone());
        tasks.spawn(forwarder.clone().pass_ephemeral(hub.ephemeral(), others));
        // Nothing is to be stopped before it runs.
        let (stop, _) = mpsc::channel(1);
        Ok(Self {
            driver,
            roles,
            nodes,
            forwarder,
            stop,
            tasks,
        })
    }

    /// Starts to claim the lease, with the parts to start when this node gets it.
    pub fn run(&mut self, writer: Arc<dyn WriterParts>) {
        let (stop, stops) = mpsc::channel(1);
        self.stop = stop;
        self.tasks.spawn(self.driver.clone().run(writer, stops));
    }

    /// Returns the address at which the other nodes reach this one.
    pub fn address(&self) -> &Arc<str> {
        &self.driver.address
    }

    /// Shows the role of this node.
    pub fn roles(&self) -> &RoleWatch {
        &self.roles
    }

    /// Returns an ingest that judges and stores events here or at the writer.
    pub fn ingest(&self) -> Arc<dyn Ingest> {
        Arc::new(self.forwarder.clone())
    }

    /// Returns these routes with those for other nodes. Pushes are passed to the writer.
    pub fn routes(&self, routes: Router) -> Router {
        self.forwarder.routes(routes)
    }

    /// Returns a route of administration whose calls are passed to the writer, where they are rated, too.
    pub fn pass_to_writer(&self, route: ManagementRoute) -> ManagementRoute {
        self.forwarder.to_writer(route)
    }

    /// Returns the nodes that have reported within the last day.
    pub fn nodes(&self) -> watch::Receiver<Arc<[NodeRow]>> {
        self.nodes.clone()
    }

    /// Stops the parts of the writer, and gives the lease back.
    pub async fn stop(&self) {
        let (reply, stopped) = oneshot::channel();
        if self.stop.send(reply).await.is_ok() {
            // Without an answer the lease expires by itself.
            let _ = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
        }
    }
}

/// The task that claims the lease and performs the decisions about it.
#[derive(Clone)]
struct Driver {
    store: Arc<PostgresStore>,
    address: Arc<str>,
    clock: Clock,
    role: watch::Sender<Role>,
}

/// The end of something that was performed.
enum Ended {
    Lease(Input),
    Started(Box<Writer>),
    Released,
}

impl Driver {
    async fn run(
        self,
        writer: Arc<dyn WriterParts>,
        mut stops: mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        let mut lease = Lease::new(self.now());
        let mut work: JoinSet<Ended> = JoinSet::new();
        let mut stopped = None;
        loop {
            let input = tokio::select! {
                Some(reply) = stops.recv(), if stopped.is_none() => {
                    stopped = Some(reply);
                    Input::Shutdown
                }
                Some(ended) = work.join_next(), if !work.is_empty() => match ended {
                    Ok(Ended::Lease(input)) => input,
                    Ok(Ended::Started(started)) => {
                        self.started(&mut lease, *started, (&writer, &mut work));
                        continue;
                    }
                    Ok(Ended::Released) => {
                        if let Some(reply) = stopped.take() {
                            let _ = reply.send(());
                            return;
                        }
                        continue;
                    }
                    Err(error) => {
                        tracing::error!(%error, "a task of this node failed");
                        Input::ClaimFailed
                    }
                },
                () = self.until(lease.next_deadline()) => Input::Time,
            };
            for output in lease.handle(self.now(), input) {
                self.perform(output, &writer, &mut work);
            }
        }
    }

    /// Takes up the role of the writer, unless the lease was lost while its parts were started.
    fn started(
        &self,
        lease: &mut Lease,
        started: Writer,
        (writer, work): (&Arc<dyn WriterParts>, &mut JoinSet<Ended>),
    ) {
        let outputs = lease.handle(self.now(), Input::Started);
        if outputs.is_empty() {
            tracing::info!("this node is the writer");
            self.role.send_replace(Role::Writer(started));
        }
        for output in outputs {
            self.perform(output, writer, work);
        }
    }

    fn perform(&self, output: Output, writer: &Arc<dyn WriterParts>, work: &mut JoinSet<Ended>) {
        let store = Arc::clone(&self.store);
        let writer = Arc::clone(writer);
        match output {
            Output::Claim => {
                let address = Arc::clone(&self.address);
                work.spawn(async move { Ended::Lease(claim(&store, &address).await) });
            }
            Output::Follow(other) => {
                let writer = other.as_deref();
                tracing::info!(
                    writer,
                    "this node is a reader and forwards events and pushes to the writer"
                );
                self.role.send_replace(Role::Reader { writer: other });
            }
            Output::Start => {
                work.spawn(async move {
                    match writer.start().await {
                        Ok(started) => Ended::Started(Box::new(started)),
                        Err(error) => {
                            tracing::error!(%error, "this node could not start to write");
                            Ended::Lease(Input::StartFailed)
                        }
                    }
                });
            }
            Output::Stop => {
                tracing::info!("this node is no longer the writer");
                self.role.send_replace(Role::Reader { writer: None });
                work.spawn(async move {
                    writer.stop().await;
                    Ended::Lease(Input::Stopped)
                });
            }
            Output::Release => {
                work.spawn(async move {
                    if let Err(error) = store.release_lease().await {
                        tracing::warn!(%error, "could not give the lease back; it expires by itself");
                    }
                    Ended::Released
                });
            }
        }
    }

    async fn until(&self, deadline: Option<Mono>) {
        match deadline {
            Some(at) => tokio::time::sleep(at - self.now()).await,
            None => std::future::pending().await,
        }
    }

    fn now(&self) -> Mono {
        self.clock.now().mono
    }
}

async fn claim(store: &PostgresStore, address: &str) -> Input {
    match tokio::time::timeout(CLAIM_TIMEOUT, store.claim_lease(address)).await {
        Ok(Ok(LeaseClaim::Held(_))) => Input::Held,
        Ok(Ok(LeaseClaim::HeldBy { node, remaining })) => Input::HeldBy(node.into(), remaining),
        Ok(Err(error)) => {
            tracing::warn!(%error, "could not claim the lease of the writer");
            Input::ClaimFailed
        }
        Err(_) => {
            tracing::warn!("the database does not answer a claim of the lease of the writer");
            Input::ClaimFailed
        }
    }
}

/// Reports this node to the others, and reads their reports.
async fn report_node(
    Driver { store, address, .. }: Driver,
    report: Report,
    position: watch::Receiver<u64>,
    seen: watch::Sender<Arc<[NodeRow]>>,
) {
    let mut interval = tokio::time::interval(REPORT_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let reported = async {
            let own = report(*position.borrow());
            store.report_node(&address, &own.await).await?;
            store.nodes().await
        };
        match reported.await {
            Ok(nodes) => _ = seen.send_replace(nodes.into()),
            Err(error) => tracing::debug!(%error, "could not report this node"),
        }
    }
}

/// Compares the clock of this node with that of the database for as long as the process runs, and logs a drift.
async fn watch_clock(Driver { store, clock, .. }: Driver) {
    let mut watch = DriftWatch::default();
    loop {
        tokio::time::sleep(CLOCK_INTERVAL).await;
        let database = match store.time().await {
            Ok(time) => time,
            Err(error) => {
                tracing::debug!(%error, "could not read the clock of the database");
                continue;
            }
        };
        match watch.handle(clock.now(), database) {
            Some(DriftNews::Drifts(drift)) => tracing::warn!("{drift}"),
            Some(DriftNews::IsRightAgain) => {
                tracing::info!("the clock of this machine is right again");
            }
            None => {}
        }
    }
}

/// Events that are read at once; of the largest, 25 MB.
const PAGE_EVENTS: usize = 100;

/// The time after which commits are looked for although the database has announced none.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a failed read.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Publishes what is committed after the given position, for as long as the process runs.
async fn follow(store: Arc<PostgresStore>, hub: Hub, position: watch::Sender<u64>) {
    let mut commits = store.commits();
    let mut seq = *position.borrow();
    loop {
        commits.mark_unchanged();
        let page = match store.stored_after(seq, PAGE_EVENTS).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "could not read the commits of the other nodes; trying again");
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        let is_last = page.len() < PAGE_EVENTS;
        for (at, stored) in page {
            publish(&hub, &stored).await;
            seq = at;
        }
        position.send_replace(seq);
        if is_last {
            // A commit since the read has marked the receiver as changed.
            let _ = tokio::time::timeout(LOOK_INTERVAL, commits.changed()).await;
        }
    }
}

async fn publish(hub: &Hub, stored: &StoredEvent) {
    match Event::from_json(stored.json.as_bytes()) {
        Ok(event) => hub.publish(Arc::new(event)).await,
        Err(error) => tracing::error!(%error, id = %stored.id, "a stored event cannot be parsed"),
    }
}
