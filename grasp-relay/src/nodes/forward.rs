//! Requests that a node passes to the writer, and those that it takes from other nodes.
//!
//! Nodes authenticate each other by the [`NodeKey`], and name the client that a request is for, so that the writer
//! applies the limits of that client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, post};
use axum::{Extension, Json};
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, join_all};
use grasp_core::Verified;
use grasp_core::admission::{Origin, Outcome, Rejection};
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_purgatory::resources::SharedPool;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use nostr::event::Event;
use nostr::key::PublicKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};

use super::NODE_TIMEOUT;
use crate::ingest::{Ingest, Turn, verify_then};
use crate::metrics::Metrics;
use crate::nostr::Hub;
use crate::role::{Role, RoleWatch};
use crate::server::{FromNode, NodeKey, shared_pool};
use crate::store::postgres::{LEASE, NodeRow};

/// The time that a request waits for a writer: a lease, and the start of the next writer.
const WRITER_TIMEOUT: Duration = Duration::from_secs(LEASE.as_secs() + 3);

/// The time that a connection to another node may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The time after which a node that acknowledges no byte counts as unreachable.
const SILENCE_TIMEOUT: Duration = LEASE;

/// The time that the writer may take to judge a batch of events.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that another node may take to publish ephemeral events.
const EPHEMERAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Ephemeral events that are passed on in one request.
const EPHEMERAL_BATCH: usize = 256;

/// The pause before events are sent again to a writer that did not take them.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Pushes that one node passes on at the same time. Each occupies a connection to the writer.
const PUSHES_AT_ONCE: usize = 96;

/// Batches of events that one node passes on at the same time. Each occupies a connection and a place in the writer's
/// ingest, so the networks of clients share them.
const BATCHES_AT_ONCE: usize = 24;

/// Largest batch of events in bytes: what one connection of a client may queue.
const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

const EVENTS_PATH: &str = "/node/events";
const EPHEMERAL_PATH: &str = "/node/ephemeral";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Headers of one connection, which are not passed on.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
];

/// Events of a client that its node passes to the writer.
#[derive(Serialize, Deserialize)]
struct ClientEvents<E = Event> {
    authenticated: Vec<PublicKey>,
    events: Vec<E>,
}

/// The reason for which another node did not answer as it should, for the log.
type ForwardError = Box<dyn std::error::Error + Send + Sync>;

/// Passes requests to the writer. Clones share its connections.
#[derive(Clone)]
pub(super) struct Forwarder {
    client: Client<HttpConnector, Body>,
    key: NodeKey,
    roles: RoleWatch,
    hub: Hub,
    metrics: Metrics,
    /// Pushes under way.
    pushes: SharedPool,
    /// Batches of events under way.
    batches: SharedPool,
}

impl Forwarder {
    pub(super) fn new(key: NodeKey, roles: RoleWatch, hub: Hub, metrics: Metrics) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(BATCHES_AT_ONCE)
            .build(connector(SILENCE_TIMEOUT));
        let pushes = shared_pool(PUSHES_AT_ONCE);
        let batches = shared_pool(BATCHES_AT_ONCE);
        Self {
            client,
            key,
            roles,
            hub,
            metrics,
            pushes,
            batches,
        }
    }

    /// Returns these routes with those for other nodes. Pushes are passed to the writer.
    pub(super) fn routes(&self, routes: Router) -> Router {
        let state = Arc::new(self.clone());
        let own = Router::new()
            .route(EVENTS_PATH, post(take_events))
            .route(EPHEMERAL_PATH, post(take_ephemeral))
            .with_state(Arc::clone(&state));
        routes
            .layer(from_fn_with_state(state, pass_pushes))
            .merge(own)
    }

    /// Returns a route whose requests are all passed to the writer.
    pub(super) fn to_writer(&self, route: MethodRouter) -> MethodRouter {
        route.layer(from_fn_with_state(Arc::new(self.clone()), pass_to_writer))
    }

    /// Sends a request to a node.
    async fn send(
        &self,
        node: &str,
        (path, body): (&str, Bytes),
        network: Option<ClientNetwork>,
        within: Duration,
    ) -> Result<Bytes, ForwardError> {
        let mut request = Request::post(format!("{}{path}", node.trim_end_matches('/')))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))?;
        self.sign(request.headers_mut(), network);
        let answer = async {
            let response = self.client.request(request).await;
            let response =
                response.map_err(|error| format!("the node cannot be reached: {error}"))?;
            if !response.status().is_success() {
                return Err(format!("the node answered {}", response.status()).into());
            }
            Ok(axum::body::to_bytes(Body::new(response.into_body()), MAX_BATCH_BYTES).await?)
        };
        tokio::time::timeout(within, answer)
            .await
            .map_err(|_| "the node took too long")?
    }

    /// Adds the key of the nodes and the client that a request is for.
    fn sign(&self, headers: &mut HeaderMap, network: Option<ClientNetwork>) {
        headers.insert(NodeKey::HEADER, self.key.header());
        headers.remove(FORWARDED_FOR);
        let address = network.map(|network| network.address().to_string());
        let value = address.and_then(|address| HeaderValue::from_str(&address).ok());
        headers.extend(value.map(|value| (FORWARDED_FOR, value)));
    }

    /// Judges and stores events here or at the writer. They are sent again if the writer changes meanwhile.
    async fn ingest_at_writer(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> Vec<Outcome> {
        if events.is_empty() {
            return Vec::new();
        }
        let count = events.len();
        let failed = || vec![Outcome::from(Rejection::Internal); count];
        let deadline = tokio::time::Instant::now() + WRITER_TIMEOUT;
        let mut encoded: Option<Bytes> = None;
        loop {
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let Some(role) = self.roles.with_writer(left).await else {
                return failed();
            };
            let node = match &role {
                Role::Writer(writer) => return writer.ingest.ingest_verified(events, origin).await,
                Role::Reader { writer: Some(node) } => Arc::clone(node),
                Role::Reader { writer: None } => continue,
            };
            let Origin::Client {
                authenticated,
                network,
            } = &origin
            else {
                return failed();
            };
            let body = match &encoded {
                Some(body) => body.clone(),
                None => encoded.insert(encode(authenticated, &events).await).clone(),
            };
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let place = self
                .batches
                .wait(&Claimant::maybe_at(*network), 1, left)
                .await;
            let Ok(place) = place else { return failed() };
            let sent = self
                .send(&node, (EVENTS_PATH, body), *network, EVENTS_TIMEOUT)
                .await;
            drop(place);
            let error = match sent.and_then(|answer| decode(&answer, count)) {
                Ok(outcomes) => return outcomes,
                Err(error) => error,
            };
            if tokio::time::Instant::now() >= deadline {
                tracing::warn!(%error, %node, "could not forward events to the writer");
                return failed();
            }
            tracing::debug!(%error, %node, "could not forward events to the writer; trying again");
            // The writer may have stepped back before this node has noticed.
            self.roles.changed_from(&role, RETRY_PAUSE).await;
        }
    }

    /// Passes ephemeral events that this node has accepted to all other nodes that are up.
    pub(super) async fn pass_ephemeral(
        self,
        mut accepted: broadcast::Receiver<Arc<Event>>,
        (own, nodes): (Arc<str>, watch::Receiver<Arc<[NodeRow]>>),
    ) {
        loop {
            let mut events = match accepted.recv().await {
                Ok(event) => vec![event],
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return,
            };
            while events.len() < EPHEMERAL_BATCH {
                match accepted.try_recv() {
                    Ok(event) => events.push(event),
                    Err(TryRecvError::Lagged(_)) => {}
                    Err(_) => break,
                }
            }
            let events: Vec<&Event> = events.iter().map(|event| &**event).collect();
            let Ok(body) = serde_json::to_vec(&events).map(Bytes::from) else {
                continue;
            };
            let others: BTreeSet<String> = {
                let nodes = nodes.borrow();
                let is_up = |row: &&NodeRow| row.seen < NODE_TIMEOUT && row.address != *own;
                nodes
                    .iter()
                    .filter(is_up)
                    .map(|row| row.address.clone())
                    .collect()
            };
            // An ephemeral event that does not arrive is lost, as it is for a client that is not connected.
            join_all(others.iter().map(|node| {
                self.send(
                    node,
                    (EPHEMERAL_PATH, body.clone()),
                    None,
                    EPHEMERAL_TIMEOUT,
                )
            }))
            .await;
        }
    }

    /// Passes a request to the writer as it comes, and its answer back.
    ///
    /// A writer that loses its lease before it answers is not waited for.
    async fn pass(&self, request: Request, (role, writer): (&Role, &str)) -> Response {
        let network = request.extensions().get::<ClientNetwork>().copied();
        let Ok(slot) = self.pushes.try_take(&Claimant::maybe_at(network), 1) else {
            return unavailable("too many pushes from this network at this node\n");
        };
        let (parts, body) = request.into_parts();
        let path = parts
            .extensions
            .get::<OriginalUri>()
            .map_or(&parts.uri, |original| &original.0);
        let path = path.path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = format!("{}{path}", writer.trim_end_matches('/')).parse::<Uri>() else {
            return unavailable("the writer has no usable address\n");
        };
        let mut passed = Request::new(body);
        (*passed.method_mut(), *passed.uri_mut()) = (parts.method, uri);
        *passed.headers_mut() = parts.headers;
        remove_hop_by_hop(passed.headers_mut());
        passed.headers_mut().remove(header::HOST);
        self.sign(passed.headers_mut(), network);
        let answer = tokio::select! {
            answer = self.client.request(passed) => answer,
            _ = self.roles.changed_from(role, Duration::MAX) => {
                return unavailable("the writer has changed, try again\n");
            }
        };
        match answer {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                remove_hop_by_hop(&mut head.headers);
                // The slot is free when the answer was sent, its client is gone, or the writer has lost its lease. Git
                // takes a report without its end for a failure.
                let roles = self.roles.clone();
                let role = role.clone();
                let lost = async move { roles.changed_from(&role, Duration::MAX).await };
                let body = Body::new(body)
                    .into_data_stream()
                    .take_until(Box::pin(lost));
                let body = body.map(move |part| {
                    let _slot = &slot;
                    part
                });
                head.headers.remove(header::CONTENT_LENGTH);
                Response::from_parts(head, Body::from_stream(body))
            }
            Err(error) => {
                tracing::warn!(%error, %writer, "could not forward a push to the writer");
                unavailable("the writer cannot be reached, try again\n")
            }
        }
    }
}

impl Ingest for Forwarder {
    fn ingest_verified(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(self.ingest_at_writer(events, origin))
    }

    /// Counts forged events here: the writer, which counts all others, does not get them.
    fn ingest_in_turn(
        &self,
        events: Vec<Event>,
        origin: Origin,
        turn: Turn,
    ) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let at_writer = |genuine| self.ingest_at_writer(genuine, origin.clone());
            let outcomes = verify_then(events, turn, at_writer).await;
            let forged = Outcome::from(Rejection::Forged);
            let is_forged = |outcome: &&Outcome| **outcome == forged;
            self.metrics
                .count_outcomes(&origin, outcomes.iter().filter(is_forged));
            outcomes
        })
    }
}

/// Connects to other nodes. A connection fails once the other end acknowledges no byte for this long.
fn connector(silence: Duration) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    connector.set_keepalive(Some(CONNECT_TIMEOUT));
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    connector.set_tcp_user_timeout(Some(silence));
    connector
}

/// Encodes a batch. Events with many tags take long, so a thread of its own does it.
async fn encode(authenticated: &[PublicKey], events: &[Verified<Arc<Event>>]) -> Bytes {
    let authenticated = authenticated.to_vec();
    let events: Vec<Arc<Event>> = events.iter().map(|event| Arc::clone(event)).collect();
    let encode = move || {
        let events = events.iter().map(|event| &**event).collect();
        serde_json::to_vec(&ClientEvents {
            authenticated,
            events,
        })
        .unwrap_or_default()
    };
    tokio::task::spawn_blocking(encode)
        .await
        .unwrap_or_default()
        .into()
}

/// Parses a request of another node, on a thread of its own.
async fn parse<T: DeserializeOwned + Send + 'static>(request: Request) -> Option<T> {
    let body = axum::body::to_bytes(request.into_body(), MAX_BATCH_BYTES)
        .await
        .ok()?;
    tokio::task::spawn_blocking(move || serde_json::from_slice(&body).ok())
        .await
        .ok()?
}

fn decode(answer: &[u8], count: usize) -> Result<Vec<Outcome>, ForwardError> {
    let outcomes: Vec<Outcome> = serde_json::from_slice(answer)?;
    match outcomes.len() == count {
        true => Ok(outcomes),
        false => Err("another number of outcomes than of events".into()),
    }
}

/// Passes pushes to the writer, and everything else on.
async fn pass_pushes(
    State(forwarder): State<Arc<Forwarder>>,
    request: Request,
    next: Next,
) -> Response {
    match is_push(&request) {
        true => pass_to_writer(State(forwarder), request, next).await,
        false => next.run(request).await,
    }
}

/// Passes a request to the writer, unless this node is it or another node has passed it here.
async fn pass_to_writer(
    State(forwarder): State<Arc<Forwarder>>,
    request: Request,
    next: Next,
) -> Response {
    if request.extensions().get::<FromNode>().is_some() {
        return next.run(request).await;
    }
    let role = forwarder.roles.with_writer(WRITER_TIMEOUT).await;
    match &role {
        Some(
            role @ Role::Reader {
                writer: Some(writer),
            },
        ) => forwarder.pass(request, (role, writer)).await,
        Some(Role::Writer(_)) => next.run(request).await,
        Some(Role::Reader { writer: None }) | None => {
            unavailable("no node is the writer at the moment, try again\n")
        }
    }
}

/// Returns whether a request is one of a push: its advertisement, or the push itself.
fn is_push(request: &Request) -> bool {
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    match request.method() == Method::POST {
        true => path.ends_with("/git-receive-pack"),
        false => path.ends_with("/info/refs") && query.contains("git-receive-pack"),
    }
}

/// Judges and stores events that another node has taken from a client.
async fn take_events(
    State(forwarder): State<Arc<Forwarder>>,
    node: Option<Extension<FromNode>>,
    network: Option<Extension<ClientNetwork>>,
    request: Request,
) -> Response {
    if node.is_none() {
        return StatusCode::NOT_FOUND.into_response();
    }
    let Some(writer) = forwarder.roles.writer() else {
        return StatusCode::MISDIRECTED_REQUEST.into_response();
    };
    let Some(ClientEvents {
        authenticated,
        events,
    }) = parse::<ClientEvents>(request).await
    else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let network = network.map(|Extension(network)| network);
    // A batch that was begun is finished, even if the other node is gone.
    let ingest = async move {
        writer
            .ingest
            .ingest(
                events,
                Origin::Client {
                    authenticated,
                    network,
                },
            )
            .await
    };
    match tokio::spawn(ingest).await {
        Ok(outcomes) => Json(outcomes).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Publishes ephemeral events that another node has accepted.
async fn take_ephemeral(
    State(forwarder): State<Arc<Forwarder>>,
    node: Option<Extension<FromNode>>,
    request: Request,
) -> Response {
    if node.is_none() {
        return StatusCode::NOT_FOUND.into_response();
    }
    let Some(events) = parse::<Vec<Event>>(request).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    for event in events {
        forwarder.hub.publish(Arc::new(event)).await;
    }
    StatusCode::NO_CONTENT.into_response()
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn unavailable(text: &'static str) -> Response {
    (
        StatusCode::SERVICE_UNAVAILABLE,
        [(header::RETRY_AFTER, "5")],
        text,
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent as _, Kind};

    use super::*;
    use crate::metrics::table::REJECTIONS;

    /// A writer that counts the batches in its hands and finishes none.
    async fn busy_writer(arrived: watch::Sender<Vec<String>>) -> String {
        let take = move |headers: HeaderMap| async move {
            let client = headers[FORWARDED_FOR].to_str().unwrap().to_owned();
            arrived.send_modify(|clients| clients.push(client));
            std::future::pending::<()>().await;
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route(EVENTS_PATH, post(take));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn batches_under_way_are_bounded_and_shared_by_client_networks() {
        let (arrived, mut seen) = watch::channel(Vec::new());
        let writer = busy_writer(arrived).await;
        let (_role, roles) = watch::channel(Role::Reader {
            writer: Some(writer.into()),
        });
        let (key, roles) = (NodeKey::new([1; 32]), RoleWatch::new(roles));
        let forwarder = Forwarder::new(key, roles, Hub::of_node(), Metrics::default());
        let event = EventBuilder::new(Kind::TextNote, "a")
            .finalize(&nostr::key::Keys::generate())
            .unwrap();
        let send = |from: [u8; 4]| {
            let network = Some(ClientNetwork::of(from.into()));
            let origin = Origin::Client {
                authenticated: Vec::new(),
                network,
            };
            let (forwarder, event) = (forwarder.clone(), event.clone());
            tokio::spawn(async move { forwarder.ingest(vec![event], origin).await });
        };
        (0..200).for_each(|_| send([192, 0, 2, 1]));
        let is_share = |clients: &Vec<String>| clients.len() >= BATCHES_AT_ONCE / 5;
        tokio::time::timeout(EVENTS_TIMEOUT, seen.wait_for(is_share))
            .await
            .unwrap()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(
            seen.borrow().len() <= BATCHES_AT_ONCE / 4,
            "{}",
            seen.borrow().len()
        );
        send([198, 51, 100, 1]);
        let has_other =
            |clients: &Vec<String>| clients.iter().any(|client| client == "198.51.100.1");
        tokio::time::timeout(EVENTS_TIMEOUT, seen.wait_for(has_other))
            .await
            .unwrap()
            .unwrap();
        for network in 0..=255 {
            (0..4).for_each(|_| send([10, network, 0, 1]));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(
            seen.borrow().len() <= BATCHES_AT_ONCE,
            "{}",
            seen.borrow().len()
        );
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_node_that_reads_nothing_is_given_up() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silence = Duration::from_millis(500);
        let client = Client::builder(TokioExecutor::new()).build(connector(silence));
        // Far more than the buffers of both ends, and no pause after which it would be sent again.
        let chunk = || Ok::<_, std::io::Error>(Bytes::from_static(&[0; 65_536]));
        let body = Body::from_stream(futures_util::stream::repeat_with(chunk));
        let request = Request::post(format!("http://{address}/"))
            .body(body)
            .unwrap();
        let passing = tokio::spawn(client.request(request));
        // The connection stays open, and nobody reads from it.
        let (_stream, _) = listener.accept().await.unwrap();
        let passed = tokio::time::timeout(silence * 40, passing).await;
        assert!(passed.expect("it ends").unwrap().is_err());
    }

    /// A writer that begins an answer to a push with this text and does not end it.
    async fn slow_writer(begins_with: &'static str) -> String {
        let answer = move || async move {
            let first = Ok::<_, std::io::Error>(begins_with);
            let first = futures_util::stream::iter([first]);
            Body::from_stream(first.chain(futures_util::stream::pending()))
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/x.git/git-receive-pack", post(answer));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn the_answer_to_a_push_ends_when_its_writer_loses_the_lease() {
        let writer: Arc<str> = slow_writer("unpack ok").await.into();
        let of = |writer: &Arc<str>| Role::Reader {
            writer: Some(Arc::clone(writer)),
        };
        let (role, roles) = watch::channel(of(&writer));
        let (key, roles) = (NodeKey::new([1; 32]), RoleWatch::new(roles));
        let forwarder = Forwarder::new(key, roles, Hub::of_node(), Metrics::default());
        let push = Request::post("/x.git/git-receive-pack")
            .body(Body::empty())
            .unwrap();
        let answer = forwarder.pass(push, (&of(&writer), &writer)).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let mut body = answer.into_body().into_data_stream();
        assert_eq!(body.next().await.unwrap().unwrap(), "unpack ok");
        role.send_replace(Role::Reader { writer: None });
        let next = tokio::time::timeout(EVENTS_TIMEOUT, body.next()).await;
        assert!(next.expect("the answer ends").is_none());
    }

    #[tokio::test]
    async fn forged_events_are_counted_and_not_passed_on() {
        let (_role, roles) = watch::channel(Role::Reader { writer: None });
        let metrics = Metrics::default();
        let (key, roles) = (NodeKey::new([1; 32]), RoleWatch::new(roles));
        let forwarder = Forwarder::new(key, roles, Hub::of_node(), metrics.clone());
        let keys = nostr::key::Keys::generate();
        let mut event = EventBuilder::new(Kind::TextNote, "a")
            .finalize(&keys)
            .unwrap();
        event.content = "b".into();
        let outcomes = forwarder.ingest(vec![event], Origin::anonymous()).await;
        assert_eq!(outcomes, [Rejection::Forged.into()]);
        assert_eq!(metrics.value(&REJECTIONS, &["forged"]), Some(1.0));
    }
}
