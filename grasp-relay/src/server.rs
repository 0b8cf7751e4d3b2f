//! The HTTP server: the accept loop, the routes, CORS headers and shutdown.
//!
//! The relay, its NIP-11 document and its landing page share one address. Other routes come in as a router of their
//! own ([`Parts::extra`]) and get the same CORS headers, timeouts and shutdown.

mod blocked;
mod gate;
#[cfg(feature = "tls")]
mod http2;
mod limiter;
mod listeners;
mod stream;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, RawQuery, State, WebSocketUpgrade};
use axum::http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CONTENT_TYPE, HeaderName,
    HeaderValue, RETRY_AFTER, UPGRADE,
};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bitcoin_hashes::hmac::HmacEngine;
use bitcoin_hashes::{Hash as _, HashEngine as _, sha256};
use grasp_core::ServiceIdentity;
use grasp_core::resources::{Bounds, Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use self::blocked::{Blocks, ClientAddress};
pub(crate) use self::gate::end_with;
use self::limiter::ConnectionLimiter;
pub use self::limiter::{AddressRange, AddressRangeError};
pub use self::listeners::Listeners;
#[cfg(feature = "tls")]
pub use self::listeners::TlsListeners;
use self::listeners::{AcceptedConnection, Entrance};
use self::stream::WriteTimeoutStream;
pub(crate) use self::stream::{MAX_UNFINISHED_BYTES, UnfinishedMessage};
use crate::clock::Clock;
use crate::ingest::{Ingest, SharedMeter};
use crate::management::ManagementRoute;
use crate::nostr::connection::{self, ConnectionContext};
use crate::nostr::{Hub, Limits, LiveInfo};
use crate::policy::LivePolicy;
use crate::private::Private;
use crate::store::EventStore;
use crate::web::{
    self, AGES_CHANGE_AFTER, Caching, EncodedPage, Frame, Listing, PageSettings, Pages, Search,
    Show, Visitor,
};

const NOSTR_JSON: &str = "application/nostr+json";

/// Bytes that an idle websocket costs for each direction; longer messages take more while they last.
const SOCKET_BUFFER: usize = 8 * 1024;

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
    /// The pages of repositories, if there are any: searches draw on their processor time.
    pub pages: Option<Pages>,
    /// Administration by key (NIP-86), if there is any.
    pub management: Option<ManagementRoute>,
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
    pub info: LiveInfo,
    /// The limits.
    pub limits: Limits,
    /// The proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<AddressRange>,
    /// The key by which the nodes of this server authenticate each other, if there are several.
    pub node_key: Option<NodeKey>,
    /// Settings of pages.
    pub pages: PageSettings,
    /// The members, if only they may use the service (GRASP-08).
    pub private: Option<Private>,
    /// The settings of admission, which say who is blocked.
    pub policy: LivePolicy,
}

impl Config {
    /// Returns what the pages of the server share.
    pub(crate) fn frame(&self) -> Frame {
        let root = format!("{}/", self.service.mount_path());
        Frame::new(root, &self.info.now().name, &self.pages.branding)
    }
}

/// The key by which the nodes of one server authenticate each other. It is never shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeKey([u8; 32]);

impl NodeKey {
    /// The header that carries the key of a request.
    pub(crate) const HEADER: HeaderName = HeaderName::from_static("grasp-node-key");

    /// Makes a key of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the value of the header.
    #[cfg(feature = "postgres")]
    pub(crate) fn header(&self) -> HeaderValue {
        let text = faster_hex::hex_string(&self.0);
        let mut value = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }

    /// Returns a key for another purpose.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        let mut engine = HmacEngine::<sha256::HashEngine>::new(&self.0);
        engine.input(purpose.as_bytes());
        engine.finalize().to_byte_array()
    }

    /// Returns whether a request carries this key. The comparison takes the same time for any other key.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let given = headers
            .get(Self::HEADER)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let mut bytes = [0; 32];
        let is_hex = faster_hex::hex_decode(given, &mut bytes).is_ok() && given.len() == 64;
        let difference = bytes
            .iter()
            .zip(&self.0)
            .fold(0, |sum, (a, b)| sum | (a ^ b));
        is_hex && difference == 0
    }
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey")
    }
}

/// Marks a request of another node of this server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FromNode;

/// The progress of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShutdownStage {
    Running,
    /// No new connection is accepted; running ones finish.
    Draining,
    /// The grace period is over.
    Killed,
}

impl ShutdownStage {
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
    listeners: impl Into<Listeners>,
    parts: Parts,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let listeners = listeners.into();
    let Limits {
        connections,
        tcp_connections,
        connections_per_ip,
        ..
    } = parts.config.limits;
    let proxies = parts.config.trusted_proxies.clone();
    let limiter = ConnectionLimiter::new(connections_per_ip, tcp_connections, proxies);
    let server = Arc::new(Server {
        context: Arc::new(ConnectionContext::new(&parts)),
        listing: parts.listing,
        pages: parts.pages,
        frame: parts.config.frame(),
        blocks: Blocks::new(parts.config.policy.clone(), limiter.clone()),
        limiter,
        slots: semaphore(tcp_connections),
        websocket_slots: semaphore(connections),
        stage: watch::Sender::new(ShutdownStage::Running),
        landing: Mutex::default(),
        verifications: gate::verifications(),
    });
    let service = &parts.config.service;
    let routers = Routers {
        service: routes(
            server.clone(),
            &service.mount_path(),
            parts.management.unwrap_or_default(),
            parts.extra,
        ),
        #[cfg(feature = "tls")]
        redirect: listeners
            .certificates()
            .map(|certificates| crate::tls::redirect_routes(service, certificates))
            .unwrap_or_default(),
        #[cfg(feature = "tls")]
        certificates: listeners.certificates().cloned(),
    };
    let graceful = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = server.next_connection(&listeners) => server.accept(accepted, &routers, &graceful),
        }
    }
    server.drain(&listeners, graceful).await;
    Ok(())
}

struct Server {
    context: Arc<ConnectionContext>,
    listing: Listing,
    pages: Option<Pages>,
    /// What the landing page shares with other pages.
    frame: Frame,
    limiter: ConnectionLimiter,
    blocks: Blocks,
    slots: Arc<Semaphore>,
    websocket_slots: Arc<Semaphore>,
    stage: watch::Sender<ShutdownStage>,
    /// The landing page as it was made last.
    landing: Mutex<Option<EncodedPage>>,
    /// Authorizations of members that were verified, by client network.
    verifications: SharedMeter,
}

/// What `/` says to browsers where there are no pages.
const OFF: &str = "This is a GRASP server: a nostr relay and a git host. It shows no pages.\n";

/// What answers the requests of a connection, by its listener.
struct Routers {
    service: Router,
    #[cfg(feature = "tls")]
    redirect: Router,
    #[cfg(feature = "tls")]
    certificates: Option<crate::tls::Certificates>,
}

/// A TCP connection in its slot.
struct TcpConnection {
    accepted: AcceptedConnection,
    slot: Option<OwnedSemaphorePermit>,
}

impl TcpConnection {
    /// Sends an answer to a connection that is not served. A client that waits for TLS could not read it.
    async fn reject(self, answer: &'static [u8]) {
        if self.accepted.entrance.reads_plain_http() {
            limiter::reject(self.accepted.stream, self.slot, answer).await;
        }
    }
}

impl Server {
    /// Waits for a slot, then for a connection.
    async fn next_connection(&self, listeners: &Listeners) -> TcpConnection {
        let slot = self.slots.clone().acquire_owned().await.ok();
        loop {
            match listeners.accept().await {
                Ok(accepted) => return TcpConnection { accepted, slot },
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Serves one TCP connection in a task of its own. It is counted from here on, so before a TLS handshake.
    fn accept(&self, connection: TcpConnection, routers: &Routers, graceful: &GracefulShutdown) {
        let address = connection.accepted.address;
        if self.blocks.has(address.ip()) {
            return;
        }
        let Some(place) = self.limiter.admit_peer(address.ip()) else {
            tokio::spawn(connection.reject(limiter::TOO_MANY));
            return;
        };
        let TcpConnection { accepted, slot } = connection;
        // Small responses must not wait for the acknowledgement of the one before.
        let _ = accepted.stream.set_nodelay(true);
        let limits = self.context.config.limits.clone();
        let message = UnfinishedMessage::default();
        let stream =
            WriteTimeoutStream::new(accepted.stream, limits.write_timeout, message.clone());
        let peer = Arc::new(Peer {
            address,
            message,
            place: Mutex::new(Some(place)),
            _slot: slot,
        });
        let service = PeerService {
            router: routers.service.clone(),
            peer,
            limiter: self.limiter.clone(),
            node_key: self.context.config.node_key,
        };
        let watcher = graceful.watcher();
        match accepted.entrance {
            Entrance::Plain => {
                self.spawn(address, serve_http1(stream, service, limits, watcher));
            }
            #[cfg(feature = "tls")]
            Entrance::Redirect => {
                let router = routers.redirect.clone();
                let service = PeerService { router, ..service };
                self.spawn(address, serve_http1(stream, service, limits, watcher));
            }
            #[cfg(feature = "tls")]
            Entrance::Tls => {
                if let Some(certificates) = routers.certificates.clone() {
                    let served = serve_tls(stream, service, limits, watcher, certificates);
                    self.spawn(address, served);
                }
            }
        }
    }

    /// Serves a connection until it ends, or its address is blocked.
    fn spawn(&self, address: SocketAddr, served: impl Future<Output = ()> + Send + 'static) {
        let blocks = self.blocks.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = blocks.until(address.ip()) => {}
                () = served => {}
            }
        });
    }

    /// Lets connections finish. New ones, health checks among them, are answered with 503.
    async fn drain(&self, listeners: &Listeners, graceful: GracefulShutdown) {
        self.stage.send_replace(ShutdownStage::Draining);
        let limits = &self.context.config.limits;
        let rejected = async {
            loop {
                let connection = self.next_connection(listeners).await;
                tokio::spawn(connection.reject(limiter::STOPPING));
            }
        };
        let finished = async {
            graceful.shutdown().await;
            // All slots are free once every websocket has ended.
            let all = limits.connections.try_into().unwrap_or(u32::MAX);
            let _ = self.websocket_slots.acquire_many(all).await;
        };
        let ended = tokio::select! {
            ended = tokio::time::timeout(limits.grace, finished) => ended,
            never = rejected => never,
        };
        if ended.is_err() {
            tracing::warn!("the grace period is over; closing the remaining connections");
        }
        self.stage.send_replace(ShutdownStage::Killed);
    }

    /// Returns the landing page; without repositories if the store fails.
    async fn page(&self, visitor: Visitor, query: &str) -> Response {
        let info = self.context.config.info.now();
        if self.context.config.pages.show == Show::Off {
            return OFF.into_response();
        }
        if self.context.config.private.is_some() {
            return web::private_landing(&self.frame, &self.context.config, &info).into_response();
        }
        let search = Search::of_query(query);
        let search = match (&self.pages, search) {
            (Some(pages), Some(search)) => return pages.search(search, &visitor).await,
            (_, search) => search,
        };
        let rows = self.listing.rows().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the event store failed to list repositories; the landing page shows none");
            Arc::default()
        });
        let now = self.context.clock.now().unix.as_secs();
        if let Some(search) = search {
            let config = &self.context.config;
            let found = search.of_list(&rows);
            let page = web::landing(&self.frame, config, &info, &found, Some(&search), now);
            return page.without_index().into_response();
        }
        let age = now / AGES_CHANGE_AFTER;
        let tag = format!(
            "{}-{}-{}-{age}",
            self.frame.version(),
            info.tag(),
            rows.version
        );
        if web::has_tag(&visitor.headers, &tag) {
            return web::not_modified(&tag, Caching::Revalidate);
        }
        let mut last = self.landing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = last.as_ref().filter(|it| it.tag.as_ref() == Some(&tag)) {
            return page.response(&visitor.headers);
        }
        let config = &self.context.config;
        let page = web::landing(&self.frame, config, &info, &rows, None, now).encode(Some(tag));
        let response = page.response(&visitor.headers);
        *last = Some(page);
        response
    }

    /// Opens a websocket, or returns the status and the text of a refusal.
    fn open(
        &self,
        peer: Arc<Peer>,
        network: ClientNetwork,
        headers: &HeaderMap,
        upgrade: WebSocketUpgrade,
    ) -> Result<Response, (StatusCode, &'static str)> {
        if *self.stage.borrow() != ShutdownStage::Running {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "stopping\n"));
        }
        let place = self
            .limiter
            .admit_forwarded(peer.address.ip(), headers)
            .ok_or((
                StatusCode::TOO_MANY_REQUESTS,
                "too many connections from this address\n",
            ))?;
        let slot = self.websocket_slots.clone().try_acquire_owned();
        let slot = slot.map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n"))?;
        let mut challenge = [0; 16];
        getrandom::fill(&mut challenge).map_err(|_| {
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "no random numbers available\n",
            )
        })?;
        let challenge = format!("{:032x}", u128::from_be_bytes(challenge));
        let most = self.context.config.limits.message_bytes;
        let context = self.context.clone();
        let stage = self.stage.subscribe();
        let client = self.limiter.client(peer.address.ip(), headers);
        let blocks = self.blocks.clone();
        Ok(upgrade
            .max_message_size(most)
            .max_frame_size(most)
            .read_buffer_size(SOCKET_BUFFER)
            .write_buffer_size(SOCKET_BUFFER)
            .on_upgrade(move |socket| async move {
                let claimant = Claimant::at(network);
                let message = peer.message.clone();
                tokio::select! {
                    biased;
                    () = blocks.until(client) => {}
                    () = connection::run(socket, context, claimant, message, stage, challenge) => {}
                }
                drop((peer, place, slot));
            }))
    }
}

/// The peer of a TCP connection, and what the connection holds until it ends, as a websocket, too.
#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    message: UnfinishedMessage,
    /// The connection among those of its client network, unless it is one of a node.
    place: Mutex<Option<Holding>>,
    _slot: Option<OwnedSemaphorePermit>,
}

/// Answers the requests of one connection.
#[derive(Clone)]
struct PeerService {
    router: Router,
    peer: Arc<Peer>,
    limiter: ConnectionLimiter,
    node_key: Option<NodeKey>,
}

impl Service<Request<Incoming>> for PeerService {
    type Response = axum::http::Response<Body>;
    type Error = Infallible;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let address = self.peer.address.ip();
        let is_of_node = self
            .node_key
            .is_some_and(|key| key.is_in(request.headers()));
        let network = if is_of_node {
            // A node connects for many clients, whom it has counted.
            let mut place = self
                .peer
                .place
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            place.take();
            request.extensions_mut().insert(FromNode);
            self.limiter.network_at_node(address, request.headers())
        } else {
            let client = self.limiter.client(address, request.headers());
            request.extensions_mut().insert(ClientAddress(client));
            self.limiter.network(address, request.headers())
        };
        request.extensions_mut().insert(network);
        request.extensions_mut().insert(self.peer.clone());
        TowerToHyperService::new(self.router.clone()).call(request)
    }
}

/// Serves a connection with HTTP/1.1, which may become a websocket.
async fn serve_http1<S>(stream: S, service: PeerService, limits: Limits, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let address = service.peer.address;
    let connection = http(&limits)
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, %address, "connection ended early");
    }
}

/// Serves a connection after its TLS handshake, with the protocol that the client chose.
#[cfg(feature = "tls")]
async fn serve_tls<S>(
    stream: S,
    service: PeerService,
    limits: Limits,
    watcher: Watcher,
    certificates: crate::tls::Certificates,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let address = service.peer.address;
    let stream = match certificates.accept(stream).await {
        Ok(Some(stream)) => stream,
        // A challenge was answered.
        Ok(None) => return,
        Err(error) => {
            tracing::debug!(%error, %address, "TLS handshake failed");
            return;
        }
    };
    if stream.get_ref().1.alpn_protocol() != Some(crate::tls::HTTP2) {
        return serve_http1(stream, service, limits, watcher).await;
    }
    if let Err(error) = http2::serve(stream, service, &limits, watcher).await {
        tracing::debug!(%error, %address, "connection ended early");
    }
}

/// Returns all routes; the mount path is empty or like `/a/b`. The relay is at the mount path only.
fn routes(server: Arc<Server>, mount: &str, management: ManagementRoute, extra: Router) -> Router {
    let extra = extra.merge(web::assets(&server.frame));
    let extra = extra.layer(axum::middleware::from_fn(refuse_websocket));
    let gate = axum::middleware::from_fn_with_state(server.clone(), gate::admit);
    let blocked = axum::middleware::from_fn_with_state(server.blocks.clone(), blocked::refuse);
    let at_root = get(at_root).with_state(server).merge(management);
    let routes = match mount {
        "" => Router::new().route("/", at_root).merge(extra),
        _ => Router::new()
            .route(mount, at_root.clone())
            .route(&format!("{mount}/"), at_root)
            .merge(Router::new().nest(mount, extra)),
    };
    routes
        .layer(gate)
        .layer(blocked)
        .layer(axum::middleware::from_fn(add_cors_headers))
}

/// Answers with a websocket, the NIP-11 document or the landing page, by the headers of the request.
async fn at_root(
    State(server): State<Arc<Server>>,
    Extension(peer): Extension<Arc<Peer>>,
    Extension(network): Extension<ClientNetwork>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    match upgrade {
        Ok(upgrade) => server
            .open(peer, network, &headers, upgrade)
            .unwrap_or_else(|refusal| {
                let (status, text) = refusal;
                (status, [(RETRY_AFTER, "30")], text).into_response()
            }),
        Err(rejection) if headers.contains_key(UPGRADE) => rejection.into_response(),
        Err(_) if accepts_nostr_json(&headers) => {
            let Config { info, limits, .. } = &*server.context.config;
            let document = info.now().document(limits);
            ([(CONTENT_TYPE, NOSTR_JSON)], document).into_response()
        }
        Err(_) => {
            let claimant = Claimant::at(network);
            let visitor = Visitor { claimant, headers };
            server.page(visitor, &query.unwrap_or_default()).await
        }
    }
}

/// Answers a websocket upgrade with 404, and passes every other request on: a relay has one address (NIP-01).
async fn refuse_websocket(request: axum::extract::Request, next: Next) -> Response {
    let upgrade = request
        .headers()
        .get(UPGRADE)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    if upgrade.eq_ignore_ascii_case(b"websocket") {
        let text = "the relay is at the root of this service\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    }
    next.run(request).await
}

fn accepts_nostr_json(headers: &HeaderMap) -> bool {
    let mut accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.to_ascii_lowercase().contains(NOSTR_JSON))
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

/// Returns a pool without a reserve.
pub(crate) fn shared_pool(total: usize) -> SharedPool {
    SharedPool::new(Bounds {
        reserve: 0,
        ..Bounds::of(total as u64)
    })
}

fn semaphore(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
}

const CORS_HEADERS: [(HeaderName, &str); 4] = [
    (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
    (
        ACCESS_CONTROL_ALLOW_HEADERS,
        "Content-Type, Authorization, Git-Protocol",
    ),
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
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}
