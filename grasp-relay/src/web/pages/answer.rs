//! How pages are sent, and what is answered instead of one.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use grasp_core::resources::Claimant;
use grasp_purgatory::git::GitError;
use maud::html;

use super::{Made, PageError, PageRequest, Site, Visitor, Work};
use crate::web::encoded::{Caching, EncodedBody, EncodedPage};
use crate::web::frame::{Frame, Page};

/// The largest body that is not counted among those that are being sent.
const SMALL_BODY: usize = 64 * 1024;

/// Bytes that a connection gets at once.
const CHUNK: usize = 16 * 1024;

impl Site {
    /// Sends a page. Large ones count until the client has them.
    pub(crate) async fn send(
        &self,
        page: &EncodedPage,
        visitor: &Visitor,
    ) -> Result<Response, PageError> {
        let claimant = visitor.claimant;
        let response = if page.is_ready_for(&visitor.headers) {
            page.response(&visitor.headers)
        } else {
            let page = page.clone();
            let headers = visitor.headers.clone();
            let work = self.begin(visitor).await?;
            work.run(move || page.response(&headers)).await?
        };
        self.counted(response, claimant).await
    }

    /// Sends a page that was just made, by the work that made it.
    pub(crate) async fn send_made(
        &self,
        page: &EncodedPage,
        work: &Work,
        visitor: &Visitor,
    ) -> Result<Response, PageError> {
        let page = page.clone();
        let headers = visitor.headers.clone();
        let response = work.run(move || page.response(&headers)).await?;
        self.counted(response, visitor.claimant).await
    }

    /// Lets the body of a response count until the client has it.
    async fn counted(
        &self,
        mut response: Response,
        claimant: Claimant,
    ) -> Result<Response, PageError> {
        let body = std::mem::take(response.body_mut());
        // The body is in memory already, as one piece.
        let bytes = axum::body::to_bytes(body, usize::MAX).await;
        *response.body_mut() = self.body(bytes.unwrap_or_default(), claimant)?;
        Ok(response)
    }

    /// Returns a body that counts until the client has it.
    pub(crate) fn body(&self, bytes: Bytes, claimant: Claimant) -> Result<Body, PageError> {
        if bytes.len() <= SMALL_BODY {
            return Ok(Body::from(bytes));
        }
        let amount = bytes.len() as u64;
        let held = self.sending.try_take(&claimant, amount);
        let held = held.map_err(GitError::Busy)?;
        // In pieces, because a connection takes whole ones out of what counts.
        let pieces = stream::unfold((bytes, held), |(mut rest, held)| async move {
            if rest.is_empty() {
                return None;
            }
            let piece = rest.split_to(CHUNK.min(rest.len()));
            Some((Ok::<_, std::io::Error>(piece), (rest, held)))
        });
        Ok(Body::from_stream(pieces))
    }

    pub(super) async fn failed(&self, error: &PageError, request: &PageRequest) -> Response {
        let service = self.host.policy.service();
        match error {
            PageError::NotFound | PageError::Git(GitError::NoView) => {
                let path = service.repo_path(&request.address);
                let mount = service.mount_path();
                let path = path.strip_prefix(&mount).unwrap_or(&path);
                self.not_found(path, &request.visitor).await
            }
            PageError::Git(error) if error.is_too_expensive() => {
                tracing::debug!(%error, "a page took too long");
                let page = self.too_large(request);
                page.cached(Caching::NoStore).into_response()
            }
            PageError::Git(GitError::Busy(_)) => {
                tracing::debug!(%error, "a page was refused");
                busy(
                    &self.frame,
                    Some(&service.repo_url(&request.address, self.secure)),
                )
            }
            error => {
                tracing::error!(%error, "a page failed");
                let content = html! {
                    h1 { "This page failed" }
                    p { "The log of the server has the cause. Cloning may work nevertheless:" }
                    pre { "git clone " (service.repo_url(&request.address, self.secure)) }
                };
                Page::new("This page failed", &self.frame, content)
                    .cached(Caching::NoStore)
                    .with_status(StatusCode::INTERNAL_SERVER_ERROR)
                    .into_response()
            }
        }
    }

    /// Returns the page of what takes too long to be shown.
    pub(super) fn too_large(&self, request: &PageRequest) -> Page {
        let url = self
            .host
            .policy
            .service()
            .repo_url(&request.address, self.secure);
        let content = html! {
            h1 { "This is too large to be shown here" }
            p { "Clone the repository to see it:" }
            pre { "git clone " (url) }
        };
        Page::new("Too large to be shown", &self.frame, content)
            .with_status(StatusCode::PAYLOAD_TOO_LARGE)
    }
}

impl Made {
    /// Compresses what was made, to be sent and kept.
    pub(super) fn encode(self, caching: Caching, tag: String) -> EncodedPage {
        let encoded = match self {
            Self::Page(page) => page.encode(None),
            Self::Text { content_type, text } => {
                let body = EncodedBody::new(text.into_bytes());
                EncodedPage::file(content_type, false, body)
            }
            Self::File(file) | Self::Download { head: file, .. } => file,
        };
        encoded.tagged(caching, tag)
    }
}

/// Answers with a body of this length after this head.
pub(super) fn download(head: &EncodedPage, bytes: u64, body: Body) -> Response {
    let mut response = head.response(&HeaderMap::new());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    *response.body_mut() = body;
    response
}

/// Seconds after which a client that was refused may ask again.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Refuses a page for now; `url` is that of the repository that it is of.
pub(super) fn busy(frame: &Frame, url: Option<&str>) -> Response {
    let content = html! {
        h1 { "Too many pages at the moment" }
        p { "Pages have used the processor time that they may use. Try again in a minute. Cloning works" (if url.is_some() { ":" } else { "." }) }
        @if let Some(url) = url { pre { "git clone " (url) } }
    };
    let page = Page::new("Too many pages at the moment", frame, content)
        .cached(Caching::NoStore)
        .with_status(StatusCode::SERVICE_UNAVAILABLE);
    let mut response = page.into_response();
    let seconds = HeaderValue::from(RETRY_AFTER.as_secs());
    response.headers_mut().insert(header::RETRY_AFTER, seconds);
    response
}
