//! Any web page may talk to us: CORS headers on every answer (GRASP-01).

use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, HeaderName, HeaderValue,
};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

const HEADERS: [(HeaderName, &str); 4] = [
    (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
    (ACCESS_CONTROL_ALLOW_HEADERS, "Content-Type, Authorization, Git-Protocol"),
    (ACCESS_CONTROL_EXPOSE_HEADERS, "WWW-Authenticate"),
];

/// Answers OPTIONS on any path, and marks every other answer, errors included.
pub(super) async fn share_with_everybody(request: Request, next: Next) -> Response {
    let mut response = if request.method() == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
