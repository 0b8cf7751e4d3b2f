//! What the server says about itself over HTTP: whether it is well, how it stands, and in numbers.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::get;
use grasp_relay::web;

use crate::overview::Overview;

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The routes, to be merged with those of the git host.
pub(crate) fn routes(overview: Overview, with_metrics: bool) -> Router {
    let mut routes = Router::new()
        .route("/health", get(health))
        .route("/status", get(status))
        .route("/status.json", get(status_json));
    if with_metrics {
        routes = routes.route("/metrics", get(metrics));
    }
    routes.with_state(overview)
}

async fn health(State(overview): State<Overview>) -> Response {
    let (status, text) = match overview.is_ready().await {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    };
    (status, [(CACHE_CONTROL, "no-store")], text).into_response()
}

async fn status(State(overview): State<Overview>) -> Response {
    let page = web::status(overview.name(), overview.root(), &overview.status().await);
    ([(CACHE_CONTROL, "no-store")], Html(page)).into_response()
}

async fn status_json(State(overview): State<Overview>) -> Response {
    let status = overview.status().await;
    let json = serde_json::to_string(&status).expect("strings and numbers always have a JSON form");
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    (headers, json).into_response()
}

async fn metrics(State(overview): State<Overview>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS)], overview.exposition().await).into_response()
}
