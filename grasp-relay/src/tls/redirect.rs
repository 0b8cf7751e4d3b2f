//! Plain HTTP beside TLS: redirects, and answers to HTTP-01 challenges.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use grasp_core::ServiceIdentity;

use super::Certificates;

#[derive(Clone)]
struct Redirect {
    certificates: Certificates,
    /// The public address, as `git.example.com`. The `Host` of a request may be anything.
    authority: String,
}

/// Returns the routes of plain HTTP.
pub(crate) fn redirect_routes(service: &ServiceIdentity, certificates: &Certificates) -> Router {
    let redirect = Redirect {
        certificates: certificates.clone(),
        authority: service.authority(),
    };
    Router::new()
        .route("/.well-known/acme-challenge/{token}", get(challenge))
        .fallback(elsewhere)
        .with_state(redirect)
}

async fn challenge(State(redirect): State<Redirect>, Path(token): Path<String>) -> Response {
    match redirect.certificates.answer(&token).await {
        Some(answer) => answer.into_response(),
        None => (StatusCode::NOT_FOUND, "no such challenge is pending\n").into_response(),
    }
}

async fn elsewhere(State(redirect): State<Redirect>, uri: Uri) -> Response {
    let status = redirect.certificates.status();
    if status.validity.is_none() {
        let why = status
            .problem
            .unwrap_or_else(|| "it is being ordered".into());
        let text = format!("this server has no TLS certificate yet: {why}\n");
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "60")], text).into_response();
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let target = format!("https://{}{path}", redirect.authority);
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, target)]).into_response()
}
