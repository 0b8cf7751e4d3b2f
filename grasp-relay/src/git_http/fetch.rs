//! Fetches: lists of refs, and `git-upload-pack`, which answers while it still reads the request.

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use grasp_purgatory::driver::lacks_objects;
use grasp_purgatory::git::{Protocol, Service};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

use super::body::{self, BodyError, GitOutput, RequestBody};
use super::{GitHttp, HttpError, NO_CACHE, RepoRequest};

/// Bytes of a request that are awaited before git is started.
const GATHERED_BYTES: usize = 64 * 1024;

impl GitHttp {
    pub(super) async fn advertise(
        &self,
        request: &RepoRequest,
        service: Service,
        parts: &Parts,
    ) -> Result<Response, HttpError> {
        let RepoRequest {
            repos,
            repo,
            claimant,
            ..
        } = request;
        let name = service.name();
        let content_type = format!("application/x-{name}-advertisement");
        let prefix = packet(&format!("# service={name}\n")) + "0000";
        let body = if parts.method == Method::HEAD {
            Body::empty()
        } else {
            let service = (service, protocol(&parts.headers));
            let list = repos.advertisement(repo, service, *claimant).await?;
            body::of_list(prefix.into(), list).await?
        };
        Ok((NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response())
    }

    pub(super) async fn upload(
        &self,
        request: &RepoRequest,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response, HttpError> {
        let RepoRequest {
            repos,
            repo,
            endpoint,
            claimant,
            ..
        } = request;
        let max_bytes = self.limits.fetch_request_bytes;
        let stall = self.limits.stall;
        let mut body = RequestBody::new(headers, body, max_bytes, stall)?;
        // No process for a client that sends nothing, or slowly; most requests are short.
        let first = body.gather(Vec::new(), GATHERED_BYTES).await?;
        if protocol(headers) == Protocol::V2 {
            if let Some(list) = repos.ls_refs(repo, &first, *claimant).await? {
                let body = body::of_list(Bytes::new(), list).await?;
                return Ok(upload_pack_result(body));
            }
        }
        let mut process = repos
            .upload_pack(repo, protocol(headers), *claimant)
            .await?;
        let input = process.take_stdin();
        let purgatory = self.roles.purgatory();
        let endpoint = *endpoint;
        let repo = repo.clone();
        let damaged = repo.clone();
        let checker = purgatory.clone();
        let served_by = repos.clone();
        let suspect = move |words: &str| {
            served_by.note_serving(&repo, words);
            if let Some(purgatory) = &checker {
                purgatory.suspect(endpoint, &repo, words);
            }
        };
        let mut output = GitOutput::new(process, suspect)?;
        let mut feeding = tokio::spawn(feed(input, first, body));
        // Git writes once it has read the request. Until then a broken request can have its own status.
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
            let words = output.end().await?.words;
            let is_known = purgatory.is_some_and(|it| it.is_damaged(endpoint, &damaged));
            let is_damaged = is_known || lacks_objects(&words);
            let text = if is_damaged {
                REPAIRING
            } else {
                words.as_str()
            };
            return Ok(upload_pack_result(Body::from(error_packet(text))));
        }
        Ok(upload_pack_result(
            output.into_body(first, self.buffers.try_take(claimant)),
        ))
    }
}

/// The answer to a fetch of objects that are missing on disk.
const REPAIRING: &str =
    "the server lacks objects of this repository and is repairing it; try again in a minute";

fn upload_pack_result(body: Body) -> Response {
    let content_type = "application/x-git-upload-pack-result";
    (NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// Returns the protocol version that a client asks for.
fn protocol(headers: &HeaderMap) -> Protocol {
    let value = headers
        .get("git-protocol")
        .and_then(|value| value.to_str().ok());
    value.map_or(Protocol::V0, Protocol::from_header)
}

/// Writes the request to git while the answer is being sent. Ends with the client, with git, or with the request.
async fn feed(
    input: Option<ChildStdin>,
    first: Vec<u8>,
    mut body: RequestBody,
) -> Result<(), BodyError> {
    let Some(mut input) = input else {
        return Ok(());
    };
    let mut next = Some(Bytes::from(first));
    while let Some(bytes) = next {
        if input.write_all(&bytes).await.is_err() {
            return Ok(()); // git has read all it wants, or has ended
        }
        next = body.next_or_drain().await?;
    }
    Ok(())
}

/// Returns the last line that git wrote about a request that it did not answer, as a packet that clients show; empty if
/// git wrote nothing.
fn error_packet(words: &str) -> Bytes {
    let Some(line) = words.lines().last() else {
        return Bytes::new();
    };
    let line: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    packet(&format!("ERR {line}\n")).into()
}

/// Returns a line in the framing of git's protocol.
fn packet(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}
