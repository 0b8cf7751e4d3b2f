//! HTTP routes of the status: `/health`, `/status`, `/status.json`, `/usage` and `/metrics`; and the page of administration.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::instance::overview::Overview;
use crate::web;
use crate::web::figures::Status;

/// Limits concurrent connections to the status of a sidecar.
const MAX_STATUS_CONNECTIONS: usize = 32;

/// Limits the time until the head of a request is here; the whole request may take twice as long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a connection could not be accepted.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Path of the usage of an owner, below the mount.
const USAGE_PATH: &str = "/usage";

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the route of the page of administration, which a sidecar has not.
pub(crate) fn admin_route(overview: &Overview) -> Router {
    let page = web::admin(overview.frame());
    Router::new().route("/admin", get(async move || page))
}

/// Returns the routes, to be merged with those of the git host if there is one.
pub(crate) fn routes(overview: Overview, with_metrics: bool) -> Router {
    let mut routes = Router::new()
        .route("/health", get(health))
        .route("/status", get(status))
        .route("/status.json", get(status_json))
        .route(USAGE_PATH, get(usage));
    if with_metrics {
        routes = routes.route("/metrics", get(metrics));
    }
    routes.with_state(overview)
}

/// Serves the routes of a sidecar, with few connections and short timeouts.
pub(crate) async fn serve_status(listener: TcpListener, routes: Router) {
    let permits = Arc::new(Semaphore::new(MAX_STATUS_CONNECTIONS));
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            continue;
        };
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIMEOUT)
            .keep_alive(false);
        let service = TowerToHyperService::new(routes.clone());
        tokio::spawn(async move {
            let serving = server.serve_connection(TokioIo::new(stream), service);
            let _ = timeout(2 * REQUEST_TIMEOUT, serving).await;
            drop(permit);
        });
    }
}

async fn health(State(overview): State<Overview>) -> Response {
    let mut text = String::new();
    let damaged = overview.damaged();
    if overview.is_private() && !damaged.is_empty() {
        // Everybody may ask this, and names of repositories are for members.
        text.push_str("degraded: git objects are missing on disk\n");
    } else if !damaged.is_empty() {
        text.push_str(&degraded(&damaged));
    }
    if let Some(trouble) = overview.certificate_trouble() {
        text.push_str(&format!("degraded: {trouble}\n"));
    }
    let status = match overview.is_ready().await {
        false => {
            text = "not ready\n".into();
            StatusCode::SERVICE_UNAVAILABLE
        }
        true if text.is_empty() => {
            text = well(overview.certificate_days_left());
            StatusCode::OK
        }
        true if overview.fails_when_degraded() => StatusCode::SERVICE_UNAVAILABLE,
        // Everything else is served, so the server stays in service.
        true => StatusCode::OK,
    };
    (status, [(CACHE_CONTROL, "no-store")], text).into_response()
}

/// Says that all is well, and for how many days the TLS certificate is valid if the server has one.
fn well(certificate_days_left: Option<u64>) -> String {
    match certificate_days_left {
        Some(days) => format!("ok; certificate: {days} days\n"),
        None => "ok\n".to_owned(),
    }
}

/// Names some of the damaged repositories, in one line.
fn degraded(damaged: &[String]) -> String {
    const MAX_NAMED: usize = 10;
    let named = damaged
        .iter()
        .take(MAX_NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let more = if damaged.len() > MAX_NAMED {
        ", ..."
    } else {
        ""
    };
    format!("degraded: git objects are missing on disk: {named}{more}\n")
}

/// Returns a status for everybody: where the nodes are is for the operator, who has the admin socket.
fn public(mut status: Status) -> Status {
    for (number, node) in (1..).zip(&mut status.nodes) {
        node.address = format!("node {number}");
    }
    status
}

async fn status(State(overview): State<Overview>) -> Response {
    let status = public(overview.status().await);
    web::status(&overview.name(), overview.frame(), &status).into_response()
}

async fn status_json(State(overview): State<Overview>) -> Response {
    json(&public(overview.status().await))
}

/// Returns the git data of the key that authorized the request (NIP-98), with its quotas.
async fn usage(State(overview): State<Overview>, headers: HeaderMap) -> Response {
    let header = headers.get(AUTHORIZATION).map(HeaderValue::to_str);
    let header = header.and_then(Result::ok).unwrap_or_default();
    let owner = match overview.authorized(header, USAGE_PATH) {
        Ok(owner) => owner,
        Err(refusal) => {
            let headers = [(WWW_AUTHENTICATE, "Nostr"), (CACHE_CONTROL, "no-store")];
            return (StatusCode::UNAUTHORIZED, headers, format!("{refusal}\n")).into_response();
        }
    };
    match overview.usage_of(owner).await {
        Ok(rows) => json(&rows),
        Err(error) => {
            tracing::error!(error, "could not read how much git data is stored");
            (StatusCode::SERVICE_UNAVAILABLE, "try again later\n").into_response()
        }
    }
}

fn json(value: &impl Serialize) -> Response {
    let json = serde_json::to_string(value).expect("strings and numbers always have a JSON form");
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, json).into_response()
}

async fn metrics(State(overview): State<Overview>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS)], overview.exposition().await).into_response()
}

#[cfg(test)]
mod tests {
    use crate::web::figures::NodeStatus;

    use super::*;

    #[test]
    fn a_status_for_everybody_has_no_addresses_of_nodes() {
        let node = |address: &str| NodeStatus {
            address: address.into(),
            ..NodeStatus::default()
        };
        let nodes = vec![node("http://10.0.0.1:7335"), node("http://10.0.0.2:7335")];
        let shown = public(Status {
            nodes,
            ..Status::default()
        });
        let names: Vec<_> = shown
            .nodes
            .iter()
            .map(|node| node.address.as_str())
            .collect();
        assert_eq!(names, ["node 1", "node 2"]);
    }
}
