//! `info/refs`: the refs of a repository, and the capabilities of the server.

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use grasp_purgatory::git::{GitError, Protocol, Service};

use super::stream::Output;
use super::{GitHttp, HttpError, NO_CACHE, Seat};

impl GitHttp {
    pub(super) async fn advertise(
        &self,
        seat: &Seat,
        service: Service,
        parts: &Parts,
    ) -> Result<Response, HttpError> {
        let (prefix, content_type): (&'static [u8], _) = match service {
            Service::UploadPack => (
                b"001e# service=git-upload-pack\n0000",
                "application/x-git-upload-pack-advertisement",
            ),
            Service::ReceivePack => (
                b"001f# service=git-receive-pack\n0000",
                "application/x-git-receive-pack-advertisement",
            ),
        };
        let body = if parts.method == Method::HEAD {
            Body::empty()
        } else {
            let service = (service, protocol(&parts.headers));
            let answer = self.advertisement(seat, service).await?;
            let body =
                |answer: Vec<u8>| self.spool.body(&seat.claimant, [prefix, &answer].concat());
            match answer.and_then(body) {
                Some(body) => body,
                None => {
                    let process = seat.repos.advertise(&seat.repo, service, seat.claimant).await?;
                    let room = self.spool.room(&seat.claimant);
                    Output::of(process, |_| {})?.into_body(Bytes::from_static(prefix), room)
                }
            }
        };
        Ok((NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response())
    }

    /// Returns an advertisement that needs no git process. Of a repository that lacks objects git leaves out the refs
    /// that need them, so that a push brings them.
    async fn advertisement(
        &self,
        seat: &Seat,
        service: (Service, Protocol),
    ) -> Result<Option<Vec<u8>>, GitError> {
        match self.keeper.is_damaged(seat.endpoint, &seat.repo) {
            true => Ok(None),
            false => seat.repos.advertisement(&seat.repo, service).await,
        }
    }
}

/// The protocol version that a client asks for.
pub(super) fn protocol(headers: &HeaderMap) -> Protocol {
    let value = headers.get("git-protocol").and_then(|value| value.to_str().ok());
    value.map_or(Protocol::V0, Protocol::from_header)
}
