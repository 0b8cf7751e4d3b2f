//! One port for everything: the accept loop and the routes.
//!
//! The relay, its NIP-11 card and its landing page share one address. Whatever else the server offers comes in as
//! a router of its own ([`Parts::extra`]) and gets the same CORS headers, timeouts and shutdown.

mod connections;
mod cors;
mod patience;
mod root;
mod shares;
mod unfinished;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::routing::get;
use grasp_core::ServiceIdentity;
use grasp_core::resources::Bounds;
use grasp_purgatory::resources::SharedPool;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

pub use self::connections::{AddressRange, AddressRangeError};
use self::connections::{ConnectionLimiter, ConnectionPermit, RejectionReason};
use self::patience::Patient;
use self::root::Root;
pub(crate) use self::shares::Shares;
pub(crate) use self::unfinished::{UnfinishedMessage, UnfinishedMessages};
use crate::clock::Clock;
use crate::ingest::Ingest;
use crate::nostr::connection::Shared;
use crate::nostr::negentropy::Workshop;
use crate::nostr::reads::Reads;
use crate::nostr::session::Rules;
use crate::nostr::{Hub, Limits, RelayInfo};
use crate::store::EventStore;
use crate::web::Listing;

/// Pause after a failed accept: the usual cause is that the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of events that were sent and are not judged yet, of all connections together. One address has a quarter of
/// what others leave.
const INTAKE_BYTES: usize = 256 * 1024 * 1024;

/// Long messages that are read at once, of all connections together. One address has a quarter of what others leave.
const READINGS_AT_ONCE: usize = 4;

/// What a server is made of. The caller builds it, so that every piece can be another one.
#[derive(Clone)]
pub struct Parts {
    /// Where accepted events are read from.
    pub store: Arc<dyn EventStore>,
    /// Where events of clients go.
    pub ingest: Arc<dyn Ingest>,
    /// Where accepted events come out, for live subscriptions.
    pub hub: Hub,
    /// The repositories that the page at the root shows.
    pub listing: Listing,
    /// Everything that can be set.
    pub config: Config,
    /// The time.
    pub clock: Clock,
    /// More routes below the same mount. They must not overlap with `/`.
    pub extra: Router,
}

/// How the server presents itself and what it allows.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address that clients reach us at; its mount is where the routes are.
    pub service: ServiceIdentity,
    /// Whether clients reach us through TLS, so that the addresses that pages show begin as they must.
    pub secure: bool,
    /// What the NIP-11 document says.
    pub info: RelayInfo,
    /// Every bound.
    pub limits: Limits,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<AddressRange>,
}

/// How far the server's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Running,
    /// Nobody new is let in; everybody finishes.
    Draining,
    /// The grace period is over.
    Killed,
}

impl Stage {
    /// Waits until the server has come this far, or is gone.
    pub(crate) async fn reached(self, stage: &mut watch::Receiver<Self>) {
        let _ = stage.wait_for(|stage| *stage >= self).await;
    }
}

/// Serves until `shutdown` resolves, then lets everybody finish within the grace period.
///
/// Returns when the last connection is gone, or the grace period is over; whatever was acknowledged is durable.
pub async fn serve(
    listener: TcpListener,
    parts: Parts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    Server::new(parts).run(listener, shutdown).await
}

/// A server made of its parts, ready to run.
pub struct Server {
    router: Router,
    limits: Limits,
    limiter: ConnectionLimiter,
    slots: Arc<Semaphore>,
    stage: watch::Sender<Stage>,
    graceful: GracefulShutdown,
    /// Held by every websocket; when all are gone, the other end knows.
    alive: mpsc::Receiver<Infallible>,
}

impl Server {
    /// Puts the parts together. Nothing is listened to yet.
    pub fn new(parts: Parts) -> Self {
        let Parts { store, ingest, hub, listing, config, clock, extra } = parts;
        let limits = config.limits.clone();
        let (stage, watcher) = watch::channel(Stage::Running);
        let (token, alive) = mpsc::channel(1);
        let shared = Shared {
            store,
            ingest,
            hub,
            clock,
            workshop: Workshop::new(&limits),
            filter_room: shared_pool(limits.total_subscription_bytes),
            reads: Reads::new(),
            unfinished: UnfinishedMessages::new(),
            intake_room: shared_pool(INTAKE_BYTES),
            readings: shared_pool(READINGS_AT_ONCE),
            shares: Shares::new(limits.events_per_minute_per_ip),
            rules: Arc::new(Rules { limits: limits.clone(), service: config.service.clone() }),
        };
        let limiter = ConnectionLimiter::new(
            limits.connections_per_ip,
            limits.tcp_connections,
            config.trusted_proxies.clone(),
        );
        let root = Root::new(Arc::new(shared), &config, listing, limiter.clone(), watcher, token);
        Self {
            router: routes(root, &config.service.mount_path(), extra),
            limiter,
            slots: bounded(limits.tcp_connections),
            stage,
            graceful: GracefulShutdown::new(),
            alive,
            limits,
        }
    }

    /// Serves as [`serve`] does.
    pub async fn run(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        self.accept_until(&listener, shutdown).await;
        self.drain(&listener).await;
        Ok(())
    }

    async fn accept_until(&self, listener: &TcpListener, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return,
                (stream, peer, slot) = accept(listener, &self.slots) => self.welcome(stream, peer, slot),
            }
        }
    }

    /// Serves one TCP connection in a task of its own.
    fn welcome(&self, stream: TcpStream, address: SocketAddr, slot: Option<OwnedSemaphorePermit>) {
        let Some(permit) = self.limiter.admit_peer(address.ip()) else {
            tokio::spawn(connections::reject(stream, slot, RejectionReason::TooMany));
            return;
        };
        // Small answers must not wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let message = UnfinishedMessage::default();
        let stream = Patient::new(stream, self.limits.write_timeout, message.clone());
        let router = self.router.clone();
        let place = Arc::new(Place { _permit: permit, _slot: slot, message });
        let (peer, limiter) = (Peer { address, place }, self.limiter.clone());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            let network = limiter.network(address.ip(), request.headers());
            request.extensions_mut().insert(network);
            request.extensions_mut().insert(peer.clone());
            TowerToHyperService::new(router.clone()).call(request)
        });
        let connection = http(&self.limits)
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        let connection = self.graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, %address, "connection ended early");
            }
        });
    }

    /// Lets everybody finish. Whoever comes meanwhile, be it to ask whether all is well, hears what is going on.
    async fn drain(mut self, listener: &TcpListener) {
        self.stage.send_replace(Stage::Draining);
        let slots = self.slots.clone();
        let newcomers = async {
            loop {
                let (stream, _, slot) = accept(listener, &slots).await;
                tokio::spawn(connections::reject(stream, slot, RejectionReason::Stopping));
            }
        };
        let finished = async {
            // The routers hold a token for the websockets to come; there are none to come any more.
            drop(self.router);
            self.graceful.shutdown().await;
            let _ = self.alive.recv().await;
        };
        let ended = tokio::select! {
            ended = tokio::time::timeout(self.limits.grace, finished) => ended,
            never = newcomers => never,
        };
        if ended.is_err() {
            tracing::warn!("the grace period is over, closing what is left");
        }
        self.stage.send_replace(Stage::Killed);
    }
}

/// Who is at the other end of the TCP connection.
#[derive(Clone, Debug)]
struct Peer {
    address: SocketAddr,
    place: Arc<Place>,
}

/// What one TCP connection holds as long as it lives, as a websocket too.
#[derive(Debug)]
struct Place {
    _permit: ConnectionPermit,
    _slot: Option<OwnedSemaphorePermit>,
    message: UnfinishedMessage,
}

/// All routes; the mount is either empty or `/a/b`. The relay is at the mount alone.
fn routes(root: Root, mount: &str, extra: Router) -> Router {
    let extra = extra.layer(axum::middleware::from_fn(root::refuse_websocket));
    let at_root = get(root::at_root).with_state(Arc::new(root));
    let routes = match mount {
        "" => Router::new().route("/", at_root).merge(extra),
        _ => Router::new()
            .route(mount, at_root.clone())
            .route(&format!("{mount}/"), at_root)
            .merge(Router::new().nest(mount, extra)),
    };
    routes.layer(axum::middleware::from_fn(cors::share_with_everybody))
}

/// HTTP/1.1 with a bound on how long and how large a request head may be.
fn http(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        // hyper refuses to work with less.
        .max_buf_size(limits.header_bytes.max(8_192));
    builder
}

/// The next connection, once there is a slot for it.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, Option<OwnedSemaphorePermit>) {
    let slot = slots.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, slot),
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn shared_pool(total: usize) -> SharedPool {
    SharedPool::new(Bounds { reserve: 0, ..Bounds::of(total as u64) })
}

fn bounded(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
}
