//! `git-receive-pack`: how a push begins.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use grasp_core::push::{Capabilities, CommandReader, Progress, PushRequest, encode_error};
use tokio::sync::mpsc;

use super::body::{BodyError, GitBody};
use super::push::{Pack, Push};
use super::{GitHttp, HttpError, NO_CACHE, Seat};

impl GitHttp {
    pub(super) async fn receive(
        self: &Arc<Self>,
        seat: Seat,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response, HttpError> {
        let (most, stall) = (self.limits.push_bytes, self.limits.stall);
        let mut body = GitBody::new(headers, body, most, stall)?;
        match read_commands(&mut body).await? {
            Opening::Probe => Ok(result(Body::empty())),
            Opening::Unreadable { why, capabilities } => {
                body.drain().await;
                Ok(result(encode_error(&why, capabilities).into()))
            }
            Opening::Push { request, rest } => {
                let (answer, parts) = mpsc::channel(4);
                let push = Push { git: Arc::clone(self), seat, request };
                tokio::spawn(push.run(Pack { body, rest }, answer));
                Ok(result(Body::from_stream(stream::unfold(parts, |mut parts| async move {
                    let part: Vec<u8> = parts.recv().await?;
                    Some((Ok::<_, std::convert::Infallible>(Bytes::from(part)), parts))
                }))))
            }
        }
    }
}

fn result(body: Body) -> Response {
    let content_type = "application/x-git-receive-pack-result";
    (NO_CACHE, [(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// How a request to push begins.
enum Opening {
    /// A question whether a big push may come. It authorises nothing.
    Probe,
    /// Commands that could not be understood.
    Unreadable { why: String, capabilities: Capabilities },
    /// Commands, and the first bytes of what follows them.
    Push { request: PushRequest, rest: Vec<u8> },
}

async fn read_commands(body: &mut GitBody) -> Result<Opening, BodyError> {
    let mut reader = CommandReader::default();
    while let Some(bytes) = body.next_or_drain().await? {
        match reader.feed(&bytes) {
            Ok(Progress::More) => {}
            Ok(Progress::Probe) => return Ok(Opening::Probe),
            Ok(Progress::Complete { request, rest }) => return Ok(Opening::Push { request, rest }),
            Err(why) => {
                let capabilities = reader.capabilities();
                return Ok(Opening::Unreadable { why: why.to_string(), capabilities });
            }
        }
    }
    let why = String::from("the list of refs is incomplete");
    Ok(Opening::Unreadable { why, capabilities: reader.capabilities() })
}
