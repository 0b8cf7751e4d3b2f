//! What the server says about itself over HTTP: whether it is well, how it stands, and in numbers.

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

/// Those who watch a sidecar at once.
const WATCHERS: usize = 32;

/// How long one of them may take to ask.
const LOOK: Duration = Duration::from_secs(10);

/// Pause when nobody can be let in.
const AGAIN: Duration = Duration::from_millis(100);

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whoever can say how everything stands.
pub(crate) trait Stands: Clone + Send + Sync + 'static {
    /// Its name for people.
    fn name(&self) -> &str;

    /// Where its pages begin.
    fn root(&self) -> &str;

    /// Whether everything that must work does.
    fn is_ready(&self) -> impl Future<Output = bool> + Send;

    /// The addresses of repositories whose git objects are not all on disk any more.
    fn damaged(&self) -> Vec<String> {
        Vec::new()
    }

    /// How things stand.
    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Everything, in Prometheus' text form.
    fn exposition(&self) -> impl Future<Output = String> + Send;
}

/// The routes, to be merged with those of the git host if there is one.
pub(crate) fn routes<S: Stands>(overview: S, with_metrics: bool) -> Router {
    let mut routes = Router::new()
        .route("/health", get(health::<S>))
        .route("/status", get(status::<S>))
        .route("/status.json", get(status_json::<S>));
    if with_metrics {
        routes = routes.route("/metrics", get(metrics::<S>));
    }
    routes.with_state(overview)
}

/// Serves routes to a few who watch, for ever. Nobody of them may take long.
pub(crate) async fn serve_watchers(listener: TcpListener, routes: Router) {
    let seats = Arc::new(Semaphore::new(WATCHERS));
    while let Ok(seat) = Arc::clone(&seats).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(LOOK).keep_alive(false);
        let service = TowerToHyperService::new(routes.clone());
        tokio::spawn(async move {
            let serving = server.serve_connection(TokioIo::new(stream), service);
            let _ = timeout(2 * LOOK, serving).await;
            drop(seat);
        });
    }
}

async fn health<S: Stands>(State(overview): State<S>) -> Response {
    let (status, text) = match (overview.is_ready().await, overview.damaged()) {
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n".into()),
        (true, damaged) if damaged.is_empty() => (StatusCode::OK, "ok\n".into()),
        // Everything else is served: nothing is gained by taking the server out of service.
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

async fn status<S: Stands>(State(overview): State<S>) -> Response {
    let page = web::status(overview.name(), overview.root(), &overview.status().await);
    ([(CACHE_CONTROL, "no-store")], Html(page)).into_response()
}

async fn status_json<S: Stands>(State(overview): State<S>) -> Response {
    let status = overview.status().await;
    let json = serde_json::to_string(&status).expect("strings and numbers always have a JSON form");
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    (headers, json).into_response()
}

async fn metrics<S: Stands>(State(overview): State<S>) -> Response {
    ([(CONTENT_TYPE, PROMETHEUS)], overview.exposition().await).into_response()
}
