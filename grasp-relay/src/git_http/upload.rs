//! `git-upload-pack`: one round of a fetch.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use grasp_purgatory::git::Protocol;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

use super::advertise::protocol;
use super::body::{BodyError, GitBody};
use super::stream::Output;
use super::{GitHttp, HttpError, NO_CACHE, Seat};

/// Bytes of a request that are awaited before git is started.
const GATHERED: usize = 64 * 1024;

impl GitHttp {
    pub(super) async fn upload(
        &self,
        seat: &Seat,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response, HttpError> {
        let (most, stall) = (self.limits.fetch_request_bytes, self.limits.stall);
        let mut body = GitBody::new(headers, body, most, stall)?;
        // No process for a client that sends nothing, or slowly; most requests are short.
        let first = body.gather(Vec::new(), GATHERED).await?;
        if protocol(headers) == Protocol::V2 && !self.keeper.is_damaged(seat.endpoint, &seat.repo) {
            let answer = seat.repos.ls_refs(&seat.repo, &first).await?;
            if let Some(body) = answer.and_then(|answer| self.spool.body(&seat.claimant, answer)) {
                return Ok(result(body));
            }
        }
        let upload = seat.repos.upload_pack(&seat.repo, protocol(headers), seat.claimant);
        let mut process = upload.await?;
        let input = process.take_stdin();
        let (keeper, endpoint, repo) = (self.keeper.clone(), seat.endpoint, seat.repo.clone());
        let suspect = move |words: &str| keeper.suspect(endpoint, &repo, words);
        let mut output = Output::of(process, suspect)?;
        let mut feeding = tokio::spawn(feed(input, first, body));
        // Git speaks when it has read what it is asked. Until then a broken request can have its own status.
        let first = tokio::select! {
            biased;
            first = output.next() => first,
            fed = &mut feeding => match fed {
                Ok(Err(error)) => return Err(error.into()),
                _ => output.next().await,
            },
        };
        let first = first.map_err(HttpError::Output)?;
        if first.is_empty() {
            return Ok(result(Body::from(last_words(&output.end().await?.words))));
        }
        Ok(result(output.into_body(first, self.spool.room(&seat.claimant))))
    }
}

fn result(body: Body) -> Response {
    let content_type = "application/x-git-upload-pack-result";
    (NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// Hands the request to git while its answer is being sent. Ends with the client, with git, or with the request.
async fn feed(
    input: Option<ChildStdin>,
    first: Vec<u8>,
    mut body: GitBody,
) -> Result<(), BodyError> {
    let Some(mut input) = input else { return Ok(()) };
    let mut next = Some(Bytes::from(first));
    while let Some(bytes) = next {
        if input.write_all(&bytes).await.is_err() {
            return Ok(()); // git has read all it wants, or is gone
        }
        next = body.next_or_drain().await?;
    }
    Ok(())
}

/// What git thinks of a request that it did not answer, as a packet that clients show; nothing if it was content.
fn last_words(words: &str) -> Bytes {
    let Some(line) = words.lines().last() else { return Bytes::new() };
    let line: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    let line = format!("ERR {line}\n");
    Bytes::from(format!("{:04x}{line}", line.len() + 4))
}
