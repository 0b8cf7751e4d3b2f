//! The route `/`: a websocket, the NIP-11 document or the landing page, by the headers of the request.

use std::sync::Arc;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Extension, Request, State, WebSocketUpgrade};
use axum::http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse as _, Response};
use grasp_core::resources::{Claimant, ClientNetwork};
use tokio::sync::{Semaphore, watch};

use super::limiter::ConnectionLimiter;
use super::{Config, Peer, Stage};
use crate::nostr::connection::{self, ConnectionContext};
use crate::web::{self, LandingPage, Listing};

const NOSTR_JSON: &str = "application/nostr+json";

/// Bytes that an idle websocket costs for each direction; longer messages take more while they last.
const SOCKET_BUFFER: usize = 8 * 1024;

/// The state of the route.
pub(super) struct Root {
    pub(super) context: Arc<ConnectionContext>,
    pub(super) config: Config,
    pub(super) listing: Listing,
    pub(super) limiter: ConnectionLimiter,
    pub(super) websocket_slots: Arc<Semaphore>,
    pub(super) stage: watch::Receiver<Stage>,
}

impl Root {
    /// Returns the landing page; without repositories if the store fails.
    async fn page(&self) -> Response {
        let rows = self.listing.rows().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the event store failed to list repositories; the landing page shows none");
            Arc::default()
        });
        let Config { service, secure, info, .. } = &self.config;
        let page = LandingPage {
            name: &info.name,
            description: &info.description,
            service,
            secure: *secure,
            repositories: &rows,
            now: self.context.clock.now().unix.as_secs(),
        };
        Html(web::landing(&page)).into_response()
    }

    /// Opens a websocket, or returns the status and the text of a refusal.
    fn open(
        &self,
        peer: Arc<Peer>,
        network: ClientNetwork,
        headers: &HeaderMap,
        upgrade: WebSocketUpgrade,
    ) -> Result<Response, (StatusCode, &'static str)> {
        if *self.stage.borrow() != Stage::Running {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "stopping\n"));
        }
        let place = self
            .limiter
            .admit_forwarded(peer.address.ip(), headers)
            .ok_or((StatusCode::TOO_MANY_REQUESTS, "too many connections from this address\n"))?;
        let slot = self.websocket_slots.clone().try_acquire_owned();
        let slot = slot.map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n"))?;
        let mut challenge = [0; 16];
        getrandom::fill(&mut challenge)
            .map_err(|_| (StatusCode::INTERNAL_SERVER_ERROR, "no random numbers available\n"))?;
        let challenge = format!("{:032x}", u128::from_be_bytes(challenge));
        let most = self.config.limits.message_bytes;
        let (context, stage) = (self.context.clone(), self.stage.clone());
        Ok(upgrade
            .max_message_size(most)
            .max_frame_size(most)
            .read_buffer_size(SOCKET_BUFFER)
            .write_buffer_size(SOCKET_BUFFER)
            .on_upgrade(move |socket| async move {
                let (claimant, message) = (Claimant::at(network), peer.message.clone());
                connection::run(socket, context, claimant, message, stage, challenge).await;
                drop((peer, place, slot));
            }))
    }
}

pub(super) async fn at_root(
    State(root): State<Arc<Root>>,
    Extension(peer): Extension<Arc<Peer>>,
    Extension(network): Extension<ClientNetwork>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    match upgrade {
        Ok(upgrade) => root.open(peer, network, &headers, upgrade).unwrap_or_else(|refusal| {
            let (status, text) = refusal;
            (status, [(RETRY_AFTER, "30")], text).into_response()
        }),
        Err(rejection) if headers.contains_key(UPGRADE) => rejection.into_response(),
        Err(_) if accepts_nostr_json(&headers) => {
            let document = root.config.info.document(&root.config.limits);
            ([(CONTENT_TYPE, NOSTR_JSON)], document).into_response()
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

fn accepts_nostr_json(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.to_ascii_lowercase().contains(NOSTR_JSON))
}
