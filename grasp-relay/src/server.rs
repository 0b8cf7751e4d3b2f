//! The HTTP server: the accept loop, the routes, CORS headers and shutdown.
//!
//! The relay, its NIP-11 document and its landing page share one address. Other routes come in as a router of their
//! own ([`Parts::extra`]) and get the same CORS headers, timeouts and shutdown.

mod limiter;
mod root;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, HeaderName, HeaderValue,
};
use axum::http::{Method, Request, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use grasp_core::ServiceIdentity;
use grasp_core::resources::Bounds;
use grasp_purgatory::resources::{Holding, SharedPool};
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use self::limiter::ConnectionLimiter;
pub use self::limiter::{AddressRange, AddressRangeError};
use self::root::Root;
use self::stream::WriteTimeoutStream;
pub(crate) use self::stream::{MAX_UNFINISHED_BYTES, UnfinishedMessage};
use crate::clock::Clock;
use crate::ingest::Ingest;
use crate::nostr::connection::ConnectionContext;
use crate::nostr::session::SessionConfig;
use crate::nostr::{Hub, Limits, RelayInfo};
use crate::store::EventStore;
use crate::web::Listing;

/// The pause after a failed accept, which usually means that the process is out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Largest request head in bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;

/// The parts of a server. The caller builds them, so that each can be replaced.
#[derive(Clone)]
pub struct Parts {
    /// The store that accepted events are read from.
    pub store: Arc<dyn EventStore>,
    /// The ingest of clients' events.
    pub ingest: Arc<dyn Ingest>,
    /// The fan-out of accepted events to live subscriptions.
    pub hub: Hub,
    /// The repositories on the landing page.
    pub listing: Listing,
    /// The configuration.
    pub config: Config,
    /// The source of time.
    pub clock: Clock,
    /// Further routes below the mount path. They must not overlap with `/`.
    pub extra: Router,
}

/// The configuration of the server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The public address; its mount path is where the routes are.
    pub service: ServiceIdentity,
    /// Shows addresses with TLS.
    pub secure: bool,
    /// The content of the NIP-11 document.
    pub info: RelayInfo,
    /// The limits.
    pub limits: Limits,
    /// The proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<AddressRange>,
}

/// The progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Running,
    /// No new connection is accepted; running ones finish.
    Draining,
    /// The grace period is over.
    Killed,
}

impl Stage {
    /// Waits until the server has reached this stage, or has ended.
    pub(crate) async fn reached(self, stage: &mut watch::Receiver<Self>) {
        let _ = stage.wait_for(|stage| *stage >= self).await;
    }
}

/// Serves until `shutdown` resolves, then lets connections finish within the grace period.
///
/// Returns when the last connection has ended, or the grace period is over; acknowledged events and pushes are
/// durable.
pub async fn serve(
    listener: TcpListener,
    parts: Parts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let server = Server::new(parts);
    server.accept_until(&listener, shutdown).await;
    server.drain(&listener).await;
    Ok(())
}

struct Server {
    router: Router,
    limits: Limits,
    limiter: ConnectionLimiter,
    slots: Arc<Semaphore>,
    websocket_slots: Arc<Semaphore>,
    stage: watch::Sender<Stage>,
    graceful: GracefulShutdown,
}

impl Server {
    fn new(parts: Parts) -> Self {
        let Parts { store, ingest, hub, listing, config, clock, extra } = parts;
        let (limits, service) = (config.limits.clone(), config.service.clone());
        let (stage, watcher) = watch::channel(Stage::Running);
        let session = SessionConfig { limits: limits.clone(), service: service.clone() };
        let limiter = ConnectionLimiter::new(
            limits.connections_per_ip,
            limits.tcp_connections,
            config.trusted_proxies.clone(),
        );
        let websocket_slots = semaphore(limits.connections);
        let root = Root {
            context: Arc::new(ConnectionContext::new(store, ingest, hub, clock, session)),
            config,
            listing,
            limiter: limiter.clone(),
            websocket_slots: websocket_slots.clone(),
            stage: watcher,
        };
        Self {
            router: routes(root, &service.mount_path(), extra),
            limiter,
            slots: semaphore(limits.tcp_connections),
            websocket_slots,
            stage,
            graceful: GracefulShutdown::new(),
            limits,
        }
    }

    async fn accept_until(&self, listener: &TcpListener, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return,
                (stream, peer, slot) = next_connection(listener, &self.slots) => self.accept(stream, peer, slot),
            }
        }
    }

    /// Serves one TCP connection in a task of its own.
    fn accept(&self, stream: TcpStream, address: SocketAddr, slot: Option<OwnedSemaphorePermit>) {
        let Some(place) = self.limiter.admit_peer(address.ip()) else {
            tokio::spawn(limiter::reject(stream, slot, limiter::TOO_MANY));
            return;
        };
        // Small responses must not wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let message = UnfinishedMessage::default();
        let stream = WriteTimeoutStream::new(stream, self.limits.write_timeout, message.clone());
        let router = self.router.clone();
        let peer = Arc::new(Peer { address, message, _place: place, _slot: slot });
        let limiter = self.limiter.clone();
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

    /// Lets connections finish. New ones, health checks among them, are answered with 503.
    async fn drain(self, listener: &TcpListener) {
        self.stage.send_replace(Stage::Draining);
        let slots = self.slots.clone();
        let rejected = async {
            loop {
                let (stream, _, slot) = next_connection(listener, &slots).await;
                tokio::spawn(limiter::reject(stream, slot, limiter::STOPPING));
            }
        };
        let finished = async {
            self.graceful.shutdown().await;
            // All slots are free once every websocket has ended.
            let all = self.limits.connections.try_into().unwrap_or(u32::MAX);
            let _ = self.websocket_slots.acquire_many(all).await;
        };
        let ended = tokio::select! {
            ended = tokio::time::timeout(self.limits.grace, finished) => ended,
            never = rejected => never,
        };
        if ended.is_err() {
            tracing::warn!("the grace period is over; closing the remaining connections");
        }
        self.stage.send_replace(Stage::Killed);
    }
}

/// The peer of a TCP connection, and what the connection holds until it ends, as a websocket, too.
#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    message: UnfinishedMessage,
    _place: Holding,
    _slot: Option<OwnedSemaphorePermit>,
}

/// Returns all routes; the mount path is empty or like `/a/b`. The relay is at the mount path only.
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
    routes.layer(axum::middleware::from_fn(add_cors_headers))
}

/// Returns an HTTP/1.1 server with limits for the time and size of a request head.
fn http(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(MAX_HEAD_BYTES);
    builder
}

/// Waits for a slot, then for a connection.
async fn next_connection(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, Option<OwnedSemaphorePermit>) {
    let slot = slots.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, slot),
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Returns a pool without a reserve.
pub(crate) fn shared_pool(total: usize) -> SharedPool {
    SharedPool::new(Bounds { reserve: 0, ..Bounds::of(total as u64) })
}

fn semaphore(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
}

const CORS_HEADERS: [(HeaderName, &str); 4] = [
    (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
    (ACCESS_CONTROL_ALLOW_HEADERS, "Content-Type, Authorization, Git-Protocol"),
    (ACCESS_CONTROL_EXPOSE_HEADERS, "WWW-Authenticate"),
];

/// Answers OPTIONS on any path, and adds the CORS headers that GRASP-01 demands to every response.
async fn add_cors_headers(request: axum::extract::Request, next: Next) -> Response {
    let mut response = if request.method() == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in CORS_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
