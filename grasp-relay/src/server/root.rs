//! The route `/`: a websocket, the NIP-11 document or the landing page, by the headers of the request.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, Request, State, WebSocketUpgrade};
use axum::http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse as _, Response};
use grasp_core::resources::ClientNetwork;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::limiter::{ConnectionLimiter, ConnectionPermit};
use super::{Config, ConnectionResources, Peer, Stage, semaphore};
use crate::nostr::connection::{self, ConnectionContext};
use crate::web::{self, LandingPage, Listing};

const NOSTR_JSON: &str = "application/nostr+json";

/// Bytes that an idle websocket costs for each direction; longer messages take more while they last.
const SOCKET_BUFFER: usize = 8 * 1024;

/// The state of the route.
pub(super) struct Root {
    context: Arc<ConnectionContext>,
    document: String,
    name: String,
    description: String,
    secure: bool,
    listing: Listing,
    limiter: ConnectionLimiter,
    websocket_slots: Arc<Semaphore>,
    stage: watch::Receiver<Stage>,
    alive: mpsc::Sender<Infallible>,
}

impl Root {
    pub(super) fn new(
        context: Arc<ConnectionContext>,
        config: &Config,
        listing: Listing,
        limiter: ConnectionLimiter,
        stage: watch::Receiver<Stage>,
        alive: mpsc::Sender<Infallible>,
    ) -> Self {
        Self {
            context,
            document: config.info.document(&config.limits),
            name: config.info.name.clone(),
            description: config.info.description.clone(),
            secure: config.secure,
            listing,
            limiter,
            websocket_slots: semaphore(config.limits.connections),
            stage,
            alive,
        }
    }

    /// Returns the landing page; without repositories if the store fails.
    async fn page(&self) -> Response {
        let rows = self.listing.rows().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the event store failed to list repositories; the landing page shows none");
            Arc::default()
        });
        let (service, now) =
            (&self.context.config.service, self.context.clock.now().unix.as_secs());
        let page = LandingPage {
            name: &self.name,
            description: &self.description,
            service,
            secure: self.secure,
            repositories: &rows,
            now,
        };
        Html(web::landing(&page)).into_response()
    }

    /// Returns a permit for one more websocket, or the refusal.
    fn admit(&self, peer: &Peer, headers: &HeaderMap) -> Result<WebSocketPermit, UpgradeRefusal> {
        if *self.stage.borrow() != Stage::Running {
            return Err(UpgradeRefusal::ShuttingDown);
        }
        let permit = self
            .limiter
            .admit_forwarded(peer.address.ip(), headers)
            .ok_or(UpgradeRefusal::TooManyFromAddress)?;
        let slot =
            self.websocket_slots.clone().try_acquire_owned().map_err(|_| UpgradeRefusal::Full)?;
        Ok(WebSocketPermit {
            resources: peer.resources.clone(),
            _permit: permit,
            _slot: slot,
            _alive: self.alive.clone(),
        })
    }
}

/// The resources that one websocket holds until it ends.
struct WebSocketPermit {
    resources: Arc<ConnectionResources>,
    _permit: ConnectionPermit,
    _slot: OwnedSemaphorePermit,
    _alive: mpsc::Sender<Infallible>,
}

/// The reason for which a websocket is not opened.
enum UpgradeRefusal {
    ShuttingDown,
    Full,
    TooManyFromAddress,
    NoRandomness,
}

impl UpgradeRefusal {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n"),
            Self::TooManyFromAddress => {
                (StatusCode::TOO_MANY_REQUESTS, "too many connections from this address\n")
            }
            Self::NoRandomness => {
                (StatusCode::INTERNAL_SERVER_ERROR, "no random numbers available\n")
            }
        };
        (status, [(RETRY_AFTER, "30")], text).into_response()
    }
}

pub(super) async fn at_root(
    State(root): State<Arc<Root>>,
    Extension(peer): Extension<Peer>,
    Extension(network): Extension<ClientNetwork>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    match upgrade {
        Ok(upgrade) => open(&root, (&peer, network), &headers, upgrade),
        Err(rejection) if headers.contains_key(UPGRADE) => rejection.into_response(),
        Err(_) if accepts_nostr_json(&headers) => {
            ([(CONTENT_TYPE, NOSTR_JSON)], root.document.clone()).into_response()
        }
        Err(_) => root.page().await,
    }
}

/// Answers a websocket upgrade with 404, and passes every other request on: a relay has one address (NIP-01).
pub(super) async fn refuse_websocket(request: Request, next: Next) -> Response {
    let upgrade = request.headers().get(UPGRADE).map(HeaderValue::as_bytes).unwrap_or_default();
    if upgrade.eq_ignore_ascii_case(b"websocket") {
        let text = "the relay is at the root of this service\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    }
    next.run(request).await
}

fn open(
    root: &Root,
    (peer, network): (&Peer, ClientNetwork),
    headers: &HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let (permit, challenge) =
        match root.admit(peer, headers).and_then(|permit| Ok((permit, challenge()?))) {
            Ok(admitted) => admitted,
            Err(refusal) => return refusal.into_response(),
        };
    let most = root.context.config.limits.message_bytes;
    let (context, stage) = (root.context.clone(), root.stage.clone());
    upgrade
        .max_message_size(most)
        .max_frame_size(most)
        .read_buffer_size(SOCKET_BUFFER)
        .write_buffer_size(SOCKET_BUFFER)
        .on_upgrade(move |socket| async move {
            // Held until the connection ends.
            let permit = permit;
            let message = permit.resources.message.clone();
            connection::run(socket, context, (network, message), stage, challenge).await;
            drop(permit);
        })
}

/// Returns sixteen random bytes as hex.
fn challenge() -> Result<String, UpgradeRefusal> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| UpgradeRefusal::NoRandomness)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn accepts_nostr_json(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.to_ascii_lowercase().contains(NOSTR_JSON))
}
