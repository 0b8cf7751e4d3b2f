//! The endpoint of NIP-86: `POST` to the address of the relay, authorized by NIP-98.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::management::rules::{CallRefusal, Request, response};
use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, post};
use grasp_core::Mono;
use grasp_core::http_auth::{HttpAuthRule, judge_header};
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_purgatory::resources::SharedPool;
use lru::LruCache;
use nostr::key::PublicKey;
use serde_json::Value;

use super::{CallError, CallOrigin, Management};
use crate::nostr::Allowance;
use crate::server::shared_pool;

/// Calls of one key in a minute, by network: whoever repeats a call of another key uses up nothing of it elsewhere.
const CALLS_PER_KEY: u32 = 60;

/// Calls of one network in a minute, of any keys.
const CALLS_PER_NETWORK: u32 = 600;

/// Calls with a wrong authorization of one network in a minute.
const FAILURES_PER_NETWORK: u32 = 20;

/// Keys, and networks, whose calls are counted; beyond it those that have not called for longest are forgotten.
const MAX_COUNTED: NonZeroUsize = NonZeroUsize::new(1 << 14).expect("not zero");

/// Bodies that are read at the same time. One address has at most a quarter.
const BODIES_AT_ONCE: usize = 64;

/// The time that a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The route of administration, to be merged with what else is at the address of the relay.
pub type ManagementRoute = MethodRouter;

/// How often keys and networks called lately.
pub(super) struct Rates {
    keys: Mutex<LruCache<(PublicKey, Option<ClientNetwork>), Allowance>>,
    networks: Mutex<LruCache<Option<ClientNetwork>, NetworkRates>>,
    bodies: SharedPool,
}

struct NetworkRates {
    calls: Allowance,
    failures: Allowance,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            keys: Mutex::new(LruCache::new(MAX_COUNTED)),
            networks: Mutex::new(LruCache::new(MAX_COUNTED)),
            bodies: shared_pool(BODIES_AT_ONCE),
        }
    }
}

impl Rates {
    /// Counts a call; returns whether the network may make it.
    fn admits_network(&self, now: Mono, network: Option<ClientNetwork>) -> bool {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = networks.get_or_insert_mut(network, NetworkRates::default);
        // A network with too many failures is not listened to until it may fail again.
        rates.failures.clone().take(now) && rates.calls.take(now)
    }

    fn count_failure(&self, now: Mono, network: Option<ClientNetwork>) {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = networks.get_or_insert_mut(network, NetworkRates::default);
        let _ = rates.failures.take(now);
    }

    /// Counts a call; returns whether the key may make it.
    fn admits_key(&self, now: Mono, key: PublicKey, network: Option<ClientNetwork>) -> bool {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let allowance = keys.get_or_insert_mut((key, network), || Allowance::new(CALLS_PER_KEY));
        allowance.take(now)
    }
}

impl Default for NetworkRates {
    fn default() -> Self {
        Self {
            calls: Allowance::new(CALLS_PER_NETWORK),
            failures: Allowance::new(FAILURES_PER_NETWORK),
        }
    }
}

/// The reason for which a request is not a call.
enum Unreadable {
    NotManagement,
    TooMany,
    TooLarge,
    TooSlow,
    Unauthorized(String),
}

impl Unreadable {
    fn response(&self) -> Response {
        match self {
            Self::NotManagement => {
                let text = "expected Content-Type: application/nostr+json+rpc (NIP-86)";
                answer(StatusCode::UNSUPPORTED_MEDIA_TYPE, Err(text))
            }
            Self::TooMany => {
                let text = "too many calls; try again in a minute";
                let mut response = answer(StatusCode::TOO_MANY_REQUESTS, Err(text));
                let headers = response.headers_mut();
                headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
                response
            }
            Self::TooLarge => answer(
                StatusCode::PAYLOAD_TOO_LARGE,
                Err("the request has more than 64 KiB"),
            ),
            Self::TooSlow => answer(
                StatusCode::REQUEST_TIMEOUT,
                Err("the request did not arrive"),
            ),
            Self::Unauthorized(why) => unauthorized(why),
        }
    }
}

impl Management {
    /// Returns the route.
    pub fn route(&self) -> ManagementRoute {
        post(take_call).with_state(self.clone())
    }

    pub(super) async fn answer(&self, request: HttpRequest) -> Response {
        let read = self.prove(request).await;
        let (origin, body) = match read {
            Ok(read) => read,
            Err(unreadable) => return unreadable.response(),
        };
        let request = match Request::parse(&body) {
            Ok(request) => request,
            Err(error) => return answer(StatusCode::BAD_REQUEST, Err(&error.to_string())),
        };
        match self.call(origin, &request).await {
            Ok(result) => answer(StatusCode::OK, Ok(&result)),
            Err(error) => failure(&error),
        }
    }

    /// Reads the body of a request, and finds out whose it is.
    async fn prove(&self, request: HttpRequest) -> Result<(CallOrigin, Bytes), Unreadable> {
        let (parts, body) = request.into_parts();
        if !is_management(&parts.headers) {
            return Err(Unreadable::NotManagement);
        }
        let network = parts.extensions.get::<ClientNetwork>().copied();
        let rates = &self.0.rates;
        let now = self.0.parts.clock.now();
        if !rates.admits_network(now.mono, network) {
            return Err(Unreadable::TooMany);
        }
        let Some(authorization) = authorization(&parts.headers) else {
            rates.count_failure(now.mono, network);
            let why = "the call has to be authorized (NIP-98)";
            return Err(Unreadable::Unauthorized(why.to_owned()));
        };
        let body = self.read_body(&parts.headers, body, network).await?;
        let origin = match self.origin_of(authorization, &body) {
            Ok(origin) => origin,
            Err(why) => {
                rates.count_failure(now.mono, network);
                return Err(Unreadable::Unauthorized(why));
            }
        };
        match origin {
            CallOrigin::Signed(auth) if !rates.admits_key(now.mono, auth.author, network) => {
                Err(Unreadable::TooMany)
            }
            CallOrigin::Session(key) if !rates.admits_key(now.mono, key, network) => {
                Err(Unreadable::TooMany)
            }
            _ => Ok((origin, body)),
        }
    }

    async fn read_body(
        &self,
        headers: &HeaderMap,
        body: Body,
        network: Option<ClientNetwork>,
    ) -> Result<Bytes, Unreadable> {
        let length = headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok());
        let length: Option<usize> = length.and_then(|length| length.parse().ok());
        if length.is_some_and(|length| length > Request::MAX_BYTES) {
            return Err(Unreadable::TooLarge);
        }
        let claimant = Claimant::maybe_at(network);
        let Ok(_slot) = self.0.rates.bodies.try_take(&claimant, 1) else {
            return Err(Unreadable::TooMany);
        };
        let read = axum::body::to_bytes(body, Request::MAX_BYTES);
        match tokio::time::timeout(BODY_TIMEOUT, read).await {
            Ok(read) => read.map_err(|_| Unreadable::TooLarge),
            Err(_) => Err(Unreadable::TooSlow),
        }
    }

    /// Returns whose a request is, by its authorization.
    fn origin_of(&self, authorization: &str, body: &[u8]) -> Result<CallOrigin, String> {
        let parts = &self.0.parts;
        let now = parts.clock.now().unix;
        let Some((scheme, token)) = authorization.split_once(' ') else {
            return Err("the Authorization header is neither `Nostr` nor `Bearer`".to_owned());
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            let key = self.0.sessions.judge(token.trim(), now);
            let key = key.ok_or("the session has ended; sign in again")?;
            return Ok(CallOrigin::Session(key));
        }
        let rule = HttpAuthRule::management(&parts.service, body);
        let auth = judge_header(authorization, &rule, now);
        auth.map(CallOrigin::Signed)
            .map_err(|error| error.to_string())
    }
}

async fn take_call(State(management): State<Management>, request: HttpRequest) -> Response {
    management.answer(request).await
}

/// Returns whether a request is one of NIP-86, by its content type.
fn is_management(headers: &HeaderMap) -> bool {
    let given = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = given.and_then(|value| value.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case(Request::CONTENT_TYPE))
}

/// Returns the only authorization of a request.
fn authorization(headers: &HeaderMap) -> Option<&str> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    match (given.next(), given.next()) {
        (Some(one), None) => one.to_str().ok(),
        _ => None,
    }
}

fn failure(error: &CallError) -> Response {
    let text = error.reported();
    match error {
        CallError::Refused(CallRefusal::Unsigned) | CallError::Replayed => unauthorized(&text),
        CallError::Refused(refusal) if refusal.is_about_rights() => {
            answer(StatusCode::FORBIDDEN, Err(&text))
        }
        CallError::Database(_) => answer(StatusCode::INTERNAL_SERVER_ERROR, Err(&text)),
        // Clients of NIP-86 read the error in the answer.
        CallError::Refused(_) | CallError::Invalid(_) | CallError::Failed(_) => {
            answer(StatusCode::OK, Err(&text))
        }
    }
}

fn unauthorized(why: &str) -> Response {
    let mut response = answer(StatusCode::UNAUTHORIZED, Err(why));
    let challenge = HeaderValue::from_static("Nostr");
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

fn answer(status: StatusCode, result: Result<&Value, &str>) -> Response {
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
    ];
    (status, headers, response(result)).into_response()
}
