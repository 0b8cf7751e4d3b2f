//! HTTP routes of the status: `/health`, `/status`, `/status.json` and `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::get;
use grasp_relay::web;
use grasp_relay::web::figures::Status;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Limits concurrent connections to the status of a sidecar.
const MAX_STATUS_CONNECTIONS: usize = 32;

/// Limits the time until the head of a request is here; the whole request may take twice as long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a connection could not be accepted.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Supplies the content of the status routes.
pub(crate) trait StatusSource: Clone + Send + Sync + 'static {
    /// Returns the display name of the server.
    fn name(&self) -> &str;

    /// Returns the path that the pages are below.
    fn root(&self) -> &str;

    /// Returns whether everything that must work does.
    fn is_ready(&self) -> impl Future<Output = bool> + Send;

    /// Returns the addresses of repositories whose git objects are not all on disk any more.
    fn damaged(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the status.
    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Returns all metrics in the text format of Prometheus.
    fn exposition(&self) -> impl Future<Output = String> + Send;
}

/// Returns the routes, to be merged with those of the git host if there is one.
pub(crate) fn routes<S: StatusSource>(source: S, with_metrics: bool) -> Router {
    let mut routes = Router::new()
        .route("/health", get(health::<S>))
        .route("/status", get(status::<S>))
        .route("/status.json", get(status_json::<S>));
    if with_metrics {
        routes = routes.route("/metrics", get(metrics::<S>));
    }
    routes.with_state(source)
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
        server.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT).keep_alive(false);
        let service = TowerToHyperService::new(routes.clone());
        tokio::spawn(async move {
            let serving = server.serve_connection(TokioIo::new(stream), service);
            let _ = timeout(2 * REQUEST_TIMEOUT, serving).await;
            drop(permit);
        });
    }
}

async fn health<S: StatusSource>(State(source): State<S>) -> Response {
    let (status, text) = match (source.is_ready().await, source.damaged()) {
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n".into()),
        (true, damaged) if damaged.is_empty() => (StatusCode::OK, "ok\n".into()),
        // All other repositories are served, so the server stays in service.
        (true, damaged) => (StatusCode::OK, degraded(&damaged)),
    };
    (status, [(CACHE_CONTROL, "no-store")], text).into_response()
}

/// Names some of the damaged repositories, in one line.
fn degraded(damaged: &[String]) -> String {
    const MAX_NAMED: usize = 10;
    let named = damaged.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if damaged.len() > MAX_NAMED { ", ..." } else { "" };
    format!("degraded: git objects are missing on disk: {named}{more}\n")
}

async fn status<S: StatusSource>(State(source): State<S>) -> Response {
    let page = web::status(source.name(), source.root(), &source.status().await);
    ([(CACHE_CONTROL, "no-store")], Html(page)).into_response()
}

async fn status_json<S: StatusSource>(State(source): State<S>) -> Response {
    let status = source.status().await;
    let json = serde_json::to_string(&status).expect("strings and numbers always have a JSON form");
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    (headers, json).into_response()
}

async fn metrics<S: StatusSource>(State(source): State<S>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS)], source.exposition().await).into_response()
}
