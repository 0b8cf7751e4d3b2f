//! The gate of a private service (GRASP-08): requests of strangers end here, before anything is looked up or read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use grasp_core::ServiceIdentity;
use grasp_core::private::member_of_request;
use grasp_core::resources::{Claimant, ClientNetwork};
use hyper::body::{Frame, SizeHint};
use nostr::key::PublicKey;

use super::{FromNode, Server};
use crate::ingest::SharedMeter;
use crate::private::Private;

/// Authorizations that one IPv4 address may have verified in a minute. A clone needs three.
const VERIFICATIONS_PER_MINUTE: u64 = 6_000;

/// The divisor of the total for a single address.
const SHARE_OF_ONE: u64 = 4;

/// Paths below the mount that everybody may request: the NIP-11 document, the landing page and the websocket, NIP-05,
/// what pages load, the empty page of administration, whose calls are authorized by themselves, and whether the server works.
fn is_public(path: &str) -> bool {
    matches!(
        path,
        "" | "/" | "/.well-known/nostr.json" | "/admin" | "/health" | "/robots.txt"
    ) || path.starts_with("/-/")
}

/// Returns the meter of verified authorizations.
pub(super) fn verifications() -> SharedMeter {
    SharedMeter::per_minute(VERIFICATIONS_PER_MINUTE * SHARE_OF_ONE)
}

/// Passes on what is public, and requests of members until they end or their member is removed. Every other request gets
/// the same answer, whatever it is for and whatever is wrong with it.
pub(super) async fn admit(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let config = &server.context.config;
    let Some(private) = &config.private else {
        return next.run(request).await;
    };
    let path = request.uri().path();
    let below = path.strip_prefix(&config.service.mount_path());
    let is_of_node = request.extensions().get::<FromNode>().is_some();
    if is_of_node || below.is_some_and(is_public) {
        return next.run(request).await;
    }
    let Some(member) = member_of(&server, private, &request) else {
        return unauthorized(&config.service);
    };
    let mut removed: BoxFuture<'static, ()> =
        Box::pin(private.members.clone().until_removed(member));
    tokio::select! {
        biased;
        () = &mut removed => unauthorized(&config.service),
        response = next.run(request) => {
            end_with(response, removed)
        }
    }
}

/// Returns the member that a request is of.
fn member_of(server: &Server, private: &Private, request: &Request) -> Option<PublicKey> {
    let mut given = request.headers().get_all(AUTHORIZATION).iter();
    let (Some(authorization), None) = (given.next(), given.next()) else {
        return None;
    };
    let now = server.context.clock.now();
    let network = request.extensions().get::<ClientNetwork>().copied();
    let claimant = Claimant::maybe_at(network);
    if !server.verifications.spend(now.mono, &claimant, 1) {
        return None;
    }
    let root = private.origin.root_of(request.uri().path());
    let members = private.members.current();
    member_of_request(authorization.to_str().ok()?, &root, &members, now.unix)
}

/// The one answer to all that are not let in.
fn unauthorized(service: &ServiceIdentity) -> Response {
    let mut response = StatusCode::UNAUTHORIZED.into_response();
    let challenge = format!("Nostr realm=\"{service}\", method=\"GET\"");
    if let Ok(challenge) = HeaderValue::from_str(&challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Has the body of a response break off at an end: its member is removed, or what it sends is taken out of service.
pub(crate) fn end_with(response: Response, end: BoxFuture<'static, ()>) -> Response {
    response.map(|body| {
        let is_over = false;
        Body::new(EndingBody { body, end, is_over })
    })
}

/// A body that breaks off at an end.
struct EndingBody {
    body: Body,
    end: BoxFuture<'static, ()>,
    is_over: bool,
}

impl HttpBody for EndingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.end.as_mut().poll(context).is_ready() {
            self.is_over = true;
            // What makes the rest, such as git, ends too.
            self.body = Body::empty();
            let error = std::io::Error::other("the response may go on no longer");
            return Poll::Ready(Some(Err(axum::Error::new(error))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        !self.is_over && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_gated_that_is_not_named_as_public() {
        for path in [
            "",
            "/",
            "/.well-known/nostr.json",
            "/admin",
            "/health",
            "/-/icon.svg",
        ] {
            assert!(is_public(path), "{path}");
        }
        for path in [
            "/npub1x/a.git",
            "/npub1x/a.git/info/refs",
            "/npub1x/a/info/refs",
            "/npub1x",
            "/status",
            "/status.json",
            "/metrics",
            "/e/0",
            "/prs/npub1x/a.git",
            "//",
            "/health/",
            "/healthy",
            "/.well-known/",
            "/unknown",
        ] {
            assert!(!is_public(path), "{path}");
        }
    }

    #[test]
    fn the_answer_to_strangers_names_the_service_and_nothing_else() {
        let response = unauthorized(&"git.example:8443/m".parse().unwrap());
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(
            response.headers()[WWW_AUTHENTICATE],
            "Nostr realm=\"git.example:8443/m\", method=\"GET\""
        );
        assert_eq!(response.body().size_hint().exact(), Some(0));
    }
}
