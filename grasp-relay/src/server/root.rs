//! What `/` is: a websocket, a NIP-11 document or a page, as the request asks.

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

use super::connections::{ConnectionLimiter, ConnectionPermit};
use super::{Config, Peer, Place, Stage, bounded};
use crate::nostr::connection::{self, Shared};
use crate::web::{self, LandingPage, Listing};

const NOSTR_JSON: &str = "application/nostr+json";

/// Bytes that a quiet websocket costs for each direction; longer messages take what they need while they last.
const SOCKET_BUFFER: usize = 8 * 1024;

/// Everything behind `/`.
pub(super) struct Root {
    shared: Arc<Shared>,
    document: String,
    name: String,
    description: String,
    secure: bool,
    listing: Listing,
    limiter: ConnectionLimiter,
    seats: Arc<Semaphore>,
    stage: watch::Receiver<Stage>,
    alive: mpsc::Sender<Infallible>,
}

impl Root {
    pub(super) fn new(
        shared: Arc<Shared>,
        config: &Config,
        listing: Listing,
        limiter: ConnectionLimiter,
        stage: watch::Receiver<Stage>,
        alive: mpsc::Sender<Infallible>,
    ) -> Self {
        Self {
            shared,
            document: config.info.document(&config.limits),
            name: config.info.name.clone(),
            description: config.info.description.clone(),
            secure: config.secure,
            listing,
            limiter,
            seats: bounded(config.limits.connections),
            stage,
            alive,
        }
    }

    /// The page at the root. Without an answer of the store it shows no repositories, which is better than no page.
    async fn page(&self) -> Response {
        let rows = self.listing.rows().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "could not list the repositories");
            Arc::default()
        });
        let (service, now) = (&self.shared.rules.service, self.shared.clock.now().unix.as_secs());
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

    /// A seat for one more websocket, or why there is none.
    fn seat(&self, peer: &Peer, headers: &HeaderMap) -> Result<Seat, Refusal> {
        if *self.stage.borrow() != Stage::Running {
            return Err(Refusal::ShuttingDown);
        }
        let permit = self
            .limiter
            .admit_forwarded(peer.address.ip(), headers)
            .ok_or(Refusal::TooManyOfYou)?;
        let seat = self.seats.clone().try_acquire_owned().map_err(|_| Refusal::Full)?;
        Ok(Seat {
            place: peer.place.clone(),
            _permit: permit,
            _seat: seat,
            _alive: self.alive.clone(),
        })
    }
}

/// What one websocket holds as long as it lives.
struct Seat {
    place: Arc<Place>,
    _permit: ConnectionPermit,
    _seat: OwnedSemaphorePermit,
    _alive: mpsc::Sender<Infallible>,
}

/// Why a websocket is not opened.
enum Refusal {
    ShuttingDown,
    Full,
    TooManyOfYou,
    NoEntropy,
}

impl Refusal {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n"),
            Self::TooManyOfYou => {
                (StatusCode::TOO_MANY_REQUESTS, "too many connections from this address\n")
            }
            Self::NoEntropy => (StatusCode::INTERNAL_SERVER_ERROR, "no randomness\n"),
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

/// Answers a websocket upgrade with 404, and lets every other request pass: a relay has one address (NIP-01).
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
    let (seat, challenge) = match root.seat(peer, headers).and_then(|seat| Ok((seat, challenge()?)))
    {
        Ok(admitted) => admitted,
        Err(refusal) => return refusal.into_response(),
    };
    let most = root.shared.rules.limits.message_bytes;
    let (shared, stage) = (root.shared.clone(), root.stage.clone());
    upgrade
        .max_message_size(most)
        .max_frame_size(most)
        .read_buffer_size(SOCKET_BUFFER)
        .write_buffer_size(SOCKET_BUFFER)
        .on_upgrade(move |socket| async move {
            // All of it is held until the connection ends.
            let seat = seat;
            let message = seat.place.message.clone();
            connection::run(socket, shared, (network, message), stage, challenge).await;
            drop(seat);
        })
}

/// Sixteen random bytes as hex.
fn challenge() -> Result<String, Refusal> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| Refusal::NoEntropy)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn accepts_nostr_json(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.to_ascii_lowercase().contains(NOSTR_JSON))
}
