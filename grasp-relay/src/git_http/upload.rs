//! `git-upload-pack`: one round of a fetch.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use grasp_core::RepoId;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

use super::advertise::protocol;
use super::body::GitBody;
use super::{GitHttp, HttpError, NO_CACHE, stream};

impl GitHttp {
    pub(super) async fn upload(
        &self,
        repo: &RepoId,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response, HttpError> {
        let mut body = GitBody::new(headers, body, self.limits.fetch_request_bytes)?;
        // A body that is broken from its first byte on gets its status; later there is none left to give.
        let first = body.next().await?.unwrap_or_default();
        let mut process = self.keeper.repos().upload_pack(repo, protocol(headers)).await?;
        if let Some(input) = process.take_stdin() {
            tokio::spawn(feed(input, first, body));
        }
        let content_type = "application/x-git-upload-pack-result";
        let body = stream::body(process, b"")?;
        Ok((NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response())
    }
}

/// Hands the request to git while its answer is being sent. Ends with the client, with git, or with the request.
async fn feed(mut input: ChildStdin, first: axum::body::Bytes, mut body: GitBody) {
    let mut next = Some(first);
    while let Some(bytes) = next {
        if input.write_all(&bytes).await.is_err() {
            return; // git has read all it wants, or is gone
        }
        next = match body.next().await {
            Ok(next) => next,
            Err(error) => {
                tracing::debug!(%error, "a fetch request ended early");
                return;
            }
        };
    }
}
