//! `git-receive-pack`: a push, from its first byte to the report.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use grasp_core::RepoId;
use grasp_core::push::{
    AuthorisedPush, Capabilities, CommandReader, OptionsReader, Progress, PushRequest, PushVerdict,
    RefReport, RefVerdict, encode_error, encode_progress, encode_report,
};
use grasp_purgatory::git::{Blame, GitError, Incoming};
use grasp_purgatory::{Door, Input};
use tokio::sync::mpsc;

use super::body::{BodyError, GitBody};
use super::{GitHttp, HttpError, NO_CACHE};

/// How often a client that waits hears that we are at it: some give up on a silent server.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

impl GitHttp {
    pub(super) async fn receive(
        self: &Arc<Self>,
        repo: RepoId,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response, HttpError> {
        let mut body = GitBody::new(headers, body, self.limits.push_bytes)?;
        match read_commands(&mut body).await? {
            Opening::Probe => Ok(result(Body::empty())),
            Opening::Unreadable { why, capabilities } => {
                body.drain().await?;
                Ok(result(encode_error(&why, capabilities).into()))
            }
            Opening::Push { request, rest } => {
                let (answer, parts) = mpsc::channel(4);
                let push = Push { git: Arc::clone(self), repo, request };
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
    while let Some(bytes) = body.next().await? {
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

/// Why a push that was understood did not happen.
enum Failed {
    /// The connection is gone, or what came is not what it should be.
    Body(BodyError),
    /// Git or the disk.
    Git(GitError),
    /// Our other parts.
    Ours(HttpError),
    /// Push options that could not be read.
    Options(String),
}

impl Failed {
    /// What the person who pushed reads.
    fn reason(&self) -> String {
        match self {
            Self::Body(error) => error.to_string(),
            Self::Git(error) if error.blame() != Blame::Us || error.is_disk_full() => {
                error.to_string()
            }
            Self::Git(_) | Self::Ours(_) => String::from("the server failed, try again"),
            Self::Options(why) => why.clone(),
        }
    }
}

impl Failed {
    /// Tells the operator, as loudly as it concerns them.
    fn log(&self) {
        match self {
            Self::Git(error) if error.blame() == Blame::Us => {
                tracing::error!(%error, "a push failed");
            }
            Self::Ours(error) => tracing::error!(%error, "a push failed"),
            Self::Git(_) | Self::Body(_) | Self::Options(_) => {
                tracing::debug!(reason = self.reason(), "a push was refused");
            }
        }
    }
}

impl From<GitError> for Failed {
    fn from(error: GitError) -> Self {
        Self::Git(error)
    }
}

impl From<BodyError> for Failed {
    fn from(error: BodyError) -> Self {
        Self::Body(error)
    }
}

impl From<HttpError> for Failed {
    fn from(error: HttpError) -> Self {
        Self::Ours(error)
    }
}

/// One push.
struct Push {
    git: Arc<GitHttp>,
    repo: RepoId,
    request: PushRequest,
}

/// What follows the commands.
struct Pack {
    body: GitBody,
    rest: Vec<u8>,
}

impl Push {
    /// Does it and reports, with a sign of life now and then.
    async fn run(self, pack: Pack, answer: mpsc::Sender<Vec<u8>>) {
        let capabilities = self.request.capabilities();
        let refs: Vec<_> = self.request.commands().iter().map(|c| c.name.clone()).collect();
        let work = self.work(pack);
        tokio::pin!(work);
        let mut signs = tokio::time::interval(SIGN_OF_LIFE);
        signs.tick().await;
        let reports = loop {
            tokio::select! {
                reports = &mut work => break reports,
                _ = signs.tick() => {
                    let sign = encode_progress("still working", capabilities);
                    if !sign.is_empty() {
                        let _ = answer.send(sign).await;
                    }
                }
            }
        };
        let reports = reports.unwrap_or_else(|failed| {
            let reason = failed.reason();
            failed.log();
            refs.into_iter().map(|name| RefReport { name, refusal: Some(reason.clone()) }).collect()
        });
        let _ = answer.send(encode_report(&reports, capabilities)).await;
    }

    async fn work(&self, mut pack: Pack) -> Result<Vec<RefReport>, Failed> {
        if self.request.capabilities().push_options {
            pack.pass_over_options().await?;
        }
        let refs = self.git.keeper.repos().refs(&self.repo).await?;
        let grounds = self.git.grounds(&self.repo, &self.request).await?;
        let early = grounds.judge(&self.request, &refs);
        if early.authorised.is_none() {
            pack.body.drain().await?;
            return self.nothing_to_do(&early).await;
        }
        let _at_work = self.git.keeper.at_work(&self.repo);
        let incoming = self.unpack(pack).await?;
        self.execute(incoming).await
    }

    /// Receives the pack into quarantine; `None` if the push only deletes.
    async fn unpack(&self, mut pack: Pack) -> Result<Option<Incoming>, Failed> {
        if self.request.commands().iter().all(|command| command.new.is_none()) {
            return Ok(None);
        }
        let incoming = self.git.keeper.repos().incoming(&self.repo).await?;
        let mut unpacking = incoming.unpack(self.git.limits.push_bytes).await?;
        unpacking.feed(&pack.rest).await?;
        while let Some(bytes) = pack.body.next().await? {
            unpacking.feed(&bytes).await?;
        }
        unpacking.finish().await?;
        Ok(Some(incoming))
    }

    /// Judges again under the lock, moves refs, and waits until what follows from it is served.
    async fn execute(&self, incoming: Option<Incoming>) -> Result<Vec<RefReport>, Failed> {
        let keeper = &self.git.keeper;
        let mut guard = keeper.repos().lock(&self.repo.identifier).await?;
        let refs = guard.refs(&self.repo.owner).await?;
        let grounds = self.git.grounds(&self.repo, &self.request).await?;
        let verdict = grounds.judge(&self.request, &refs);
        let Some(push) = &verdict.authorised else {
            drop(guard);
            return self.nothing_to_do(&verdict).await;
        };
        let events = self.events(&verdict, push);
        keeper.tell(Input::PushAuthorised { repo: self.repo.clone(), events }).await;
        let head = grounds.head_of(verdict.realises);
        let now = keeper.clock().now().unix;
        guard.accept(&self.repo.owner, push, incoming, head, now).await?;
        drop(guard);
        self.tell_staged(push).await;
        keeper.settle(&self.repo.identifier).await.map_err(HttpError::from)?;
        Ok(reports(&verdict))
    }

    /// Reports that everything is refused, or is as wanted already. In the latter case the state that says so may be
    /// about to be served: success is not reported before it is.
    async fn nothing_to_do(&self, verdict: &PushVerdict) -> Result<Vec<RefReport>, Failed> {
        if verdict.is_accepted() {
            let settled = self.git.keeper.settle(&self.repo.identifier).await;
            settled.map_err(HttpError::from)?;
        }
        Ok(reports(verdict))
    }

    /// The state and the pull requests that a push brings data for.
    fn events(
        &self,
        verdict: &PushVerdict,
        push: &AuthorisedPush,
    ) -> BTreeSet<nostr::event::EventId> {
        let proposals = push.execute().iter().filter_map(|command| event_of(&command.name));
        proposals.chain(verdict.realises).collect()
    }

    async fn tell_staged(&self, push: &AuthorisedPush) {
        for command in push.stage() {
            let (Some(id), Some(tip)) = (event_of(&command.name), command.new) else { continue };
            let door = Door::Repository(self.repo.clone());
            let bytes = self.git.keeper.repos().staged_bytes(&self.repo.identifier, id, tip).await;
            let bytes = bytes.unwrap_or_default();
            self.git.keeper.tell(Input::PushStaged { id, tip, door, bytes }).await;
        }
    }
}

impl Pack {
    async fn pass_over_options(&mut self) -> Result<(), Failed> {
        let mut options = OptionsReader::default();
        let mut bytes = Bytes::from(std::mem::take(&mut self.rest));
        loop {
            match options.feed(&bytes).map_err(|why| Failed::Options(why.to_string()))? {
                Some(rest) => {
                    self.rest = rest;
                    return Ok(());
                }
                None => {
                    let cut_off =
                        || Failed::Options(String::from("the push options are incomplete"));
                    bytes = self.body.next().await?.ok_or_else(cut_off)?;
                }
            }
        }
    }
}

fn event_of(name: &grasp_core::RefName) -> Option<nostr::event::EventId> {
    match name.namespace() {
        grasp_core::Namespace::Nostr(id) => Some(id),
        _ => None,
    }
}

fn reports(verdict: &PushVerdict) -> Vec<RefReport> {
    let report = |(name, verdict): &(grasp_core::RefName, RefVerdict)| RefReport {
        name: name.clone(),
        refusal: match verdict {
            RefVerdict::Refused(why) => Some(why.to_string()),
            RefVerdict::Satisfied | RefVerdict::Execute | RefVerdict::Stage => None,
        },
    };
    verdict.refs.iter().map(report).collect()
}
