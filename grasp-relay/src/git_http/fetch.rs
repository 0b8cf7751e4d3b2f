//! Clones and fetches: `info/refs`, which advertises refs and capabilities, and `git-upload-pack`, one round of a fetch.

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use grasp_purgatory::git::{GitError, Protocol, Service};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

use super::body::{BodyError, GitOutput, RequestBody};
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
        let RepoRequest { repos, repo, claimant, .. } = request;
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
            let answer = self.advertisement(request, service).await?;
            let body = |answer: Vec<u8>| self.buffers.body(claimant, [prefix, &answer].concat());
            match answer.and_then(body) {
                Some(body) => body,
                None => {
                    let process = repos.advertise(repo, service, *claimant).await?;
                    let buffer = self.buffers.try_take(claimant);
                    GitOutput::new(process, |_| {})?.into_body(Bytes::from_static(prefix), buffer)
                }
            }
        };
        Ok((NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response())
    }

    /// Returns an advertisement that needs no git process; `None` for a repository that lacks objects, of which git
    /// leaves out the refs that need them, so that a push brings them.
    async fn advertisement(
        &self,
        request: &RepoRequest,
        service: (Service, Protocol),
    ) -> Result<Option<Vec<u8>>, GitError> {
        match self.purgatory.is_damaged(request.endpoint, &request.repo) {
            true => Ok(None),
            false => request.repos.advertisement(&request.repo, service).await,
        }
    }

    pub(super) async fn upload(
        &self,
        request: &RepoRequest,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response, HttpError> {
        let RepoRequest { repos, repo, endpoint, claimant } = request;
        let (max_bytes, stall) = (self.limits.fetch_request_bytes, self.limits.stall);
        let mut body = RequestBody::new(headers, body, max_bytes, stall)?;
        // No process for a client that sends nothing, or slowly; most requests are short.
        let first = body.gather(Vec::new(), GATHERED_BYTES).await?;
        if protocol(headers) == Protocol::V2 && !self.purgatory.is_damaged(*endpoint, repo) {
            let answer = repos.ls_refs(repo, &first).await?;
            if let Some(body) = answer.and_then(|answer| self.buffers.body(claimant, answer)) {
                return Ok(upload_pack_result(body));
            }
        }
        let mut process = repos.upload_pack(repo, protocol(headers), *claimant).await?;
        let input = process.take_stdin();
        let (purgatory, endpoint, repo) = (self.purgatory.clone(), *endpoint, repo.clone());
        let suspect = move |words: &str| purgatory.suspect(endpoint, &repo, words);
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
            return Ok(upload_pack_result(Body::from(error_packet(&output.end().await?.words))));
        }
        Ok(upload_pack_result(output.into_body(first, self.buffers.try_take(claimant))))
    }
}

fn upload_pack_result(body: Body) -> Response {
    let content_type = "application/x-git-upload-pack-result";
    (NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// Returns the protocol version that a client asks for.
fn protocol(headers: &HeaderMap) -> Protocol {
    let value = headers.get("git-protocol").and_then(|value| value.to_str().ok());
    value.map_or(Protocol::V0, Protocol::from_header)
}

/// Writes the request to git while the answer is being sent. Ends with the client, with git, or with the request.
async fn feed(
    input: Option<ChildStdin>,
    first: Vec<u8>,
    mut body: RequestBody,
) -> Result<(), BodyError> {
    let Some(mut input) = input else { return Ok(()) };
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
    let Some(line) = words.lines().last() else { return Bytes::new() };
    let line: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    let line = format!("ERR {line}\n");
    Bytes::from(format!("{:04x}{line}", line.len() + 4))
}
