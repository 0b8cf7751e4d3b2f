//! What the server says about itself over HTTP: whether it is well, how it stands, and in numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::get;
use grasp_relay::web;

use crate::overview::Overview;

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the server lets nobody new in any more. Set once, when it is told to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draining(Arc<AtomicBool>);

impl Draining {
    /// From now on.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Desk {
    overview: Overview,
    draining: Draining,
}

/// The routes, to be merged with those of the git host.
pub(crate) fn routes(overview: Overview, draining: Draining, with_metrics: bool) -> Router {
    let mut routes = Router::new()
        .route("/health", get(health))
        .route("/status", get(status))
        .route("/status.json", get(status_json));
    if with_metrics {
        routes = routes.route("/metrics", get(metrics));
    }
    routes.with_state(Desk { overview, draining })
}

async fn health(State(desk): State<Desk>) -> Response {
    let (status, text) = if desk.draining.has_begun() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else if desk.overview.is_ready().await {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    };
    (status, [(CACHE_CONTROL, "no-store")], text).into_response()
}

async fn status(State(desk): State<Desk>) -> Response {
    let overview = &desk.overview;
    let page = web::status(overview.name(), overview.root(), &overview.status().await);
    ([(CACHE_CONTROL, "no-store")], Html(page)).into_response()
}

async fn status_json(State(desk): State<Desk>) -> Response {
    let status = desk.overview.status().await;
    let json = serde_json::to_string(&status).expect("strings and numbers always have a JSON form");
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    (headers, json).into_response()
}

async fn metrics(State(desk): State<Desk>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS)], desk.overview.exposition().await).into_response()
}
