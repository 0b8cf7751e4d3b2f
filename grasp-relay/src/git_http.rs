//! Git over HTTP: the smart protocol for every repository that is held or served here.
//!
//! ```text
//!  GET  …/info/refs?service=…   advertise ──▶ git
//!  POST …/git-upload-pack       upload    ──▶ git, both directions at once
//!  POST …/git-receive-pack      receive   ──▶ judge ─▶ unpack ─▶ lock, judge again, move refs ─▶ settle ─▶ report
//!  GET  ….git                   a page
//! ```
//!
//! Below `/prs/` contributors have places of their own, if the operator lets them: every one exists, empty until its
//! owner brings a pull request there (GRASP-06).
//!
//! A push is judged by `grasp_core::push`. Git only unpacks; refs are moved by us, exactly those that were judged.

mod advertise;
mod body;
mod judge;
mod outcome;
mod page;
mod progress;
mod push;
mod receive;
mod route;
mod stream;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use grasp_core::RepoId;
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_core::service::Endpoint;
use grasp_purgatory::git::{GitError, RepoStore};

use self::body::BodyError;
use self::route::Action;
use self::stream::Spool;
use crate::keeper::Keeper;
use crate::web;

/// What git clients may send.
#[derive(Clone, Debug)]
pub struct GitLimits {
    /// The largest pack that one push may bring.
    pub push_bytes: u64,
    /// Git data that the repositories of one name may have together, whoever adds it, in bytes.
    pub repository_bytes: u64,
    /// Memory that unpacking one push may take, which also bounds how many objects can come at once. What a push gets
    /// depends on its size and on its share of [`Slots::unpack_memory`](grasp_purgatory::git::Slots::unpack_memory).
    pub push_memory: u64,
    /// The largest request for a fetch; it holds only names of objects.
    pub fetch_request_bytes: u64,
    /// How long a client may send next to nothing in the middle of a request.
    pub stall: Duration,
    /// How often a client that waits for its push hears that we are at it: some give up on a silent server.
    pub sign_of_life: Duration,
    /// Whether others reach us over TLS, for the addresses that pages show.
    pub secure: bool,
}

impl Default for GitLimits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            push_bytes: 2_048 * MIB,
            repository_bytes: 16_384 * MIB,
            push_memory: 768 * MIB,
            fetch_request_bytes: 64 * MIB,
            stall: Duration::from_secs(60),
            sign_of_life: Duration::from_secs(5),
            secure: false,
        }
    }
}

/// Everything the routes need.
struct GitHttp {
    keeper: Keeper,
    limits: GitLimits,
    spool: Spool,
}

/// A repository that is there, and the store that it is in.
#[derive(Clone)]
struct Seat {
    repos: RepoStore,
    repo: RepoId,
    endpoint: Endpoint,
    /// The party that git works for.
    claimant: Claimant,
}

impl GitHttp {
    /// Finds a repository. At a contributor's endpoint every one exists, if there is such a endpoint at all.
    async fn seat(
        &self,
        repo: RepoId,
        endpoint: Endpoint,
        network: Option<ClientNetwork>,
    ) -> Result<Option<Seat>, GitError> {
        let repos = match endpoint {
            Endpoint::Repository => Some(self.keeper.repos()),
            Endpoint::PullRequests => self.keeper.contributors(),
        };
        let Some(repos) = repos.cloned() else { return Ok(None) };
        let is_there = endpoint == Endpoint::PullRequests || repos.has_view(&repo).await?;
        let claimant = Claimant::maybe_at(network);
        Ok(is_there.then_some(Seat { repos, repo, endpoint, claimant }))
    }

    /// A page for people; git shows plain text to whoever runs it.
    fn not_found(&self, is_git: bool) -> Response {
        if is_git {
            return (StatusCode::NOT_FOUND, NO_CACHE, NOT_ANNOUNCED).into_response();
        }
        let page = web::not_found(&self.keeper.policy().service);
        (StatusCode::NOT_FOUND, Html(page)).into_response()
    }
}

/// The routes of all repositories, to be merged below the mount. Whatever names none is not found.
pub fn routes(keeper: Keeper, limits: GitLimits) -> Router {
    Router::new().fallback(serve).with_state(Arc::new(GitHttp {
        keeper,
        limits,
        spool: Spool::default(),
    }))
}

async fn serve(State(git): State<Arc<GitHttp>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let is_git = parts.uri.path().ends_with("/info/refs");
    let Some((repo, endpoint, action)) = route::route(&parts.method, &parts.uri) else {
        return git.not_found(is_git);
    };
    let network = parts.extensions.get().copied();
    let seat = match git.seat(repo, endpoint, network).await {
        Ok(Some(seat)) => seat,
        Ok(None) => return git.not_found(is_git),
        Err(error) => return failed(&error),
    };
    let answered = match action {
        Action::Page if seat.endpoint == Endpoint::PullRequests => Ok(git.not_found(false)),
        Action::Page => git.page(&seat.repo).await,
        Action::Advertise(service) => git.advertise(&seat, service, &parts).await,
        Action::Upload => git.upload(&seat, &parts.headers, body).await,
        Action::Receive => git.receive(seat, &parts.headers, body).await,
        Action::Dumb => Ok(dumb()),
        Action::Refuse { allow } => Ok(method_not_allowed(allow)),
        Action::NotFound => Ok(git.not_found(false)),
    };
    answered.unwrap_or_else(|error| match error {
        HttpError::Git(GitError::NoView) => git.not_found(is_git),
        error => error.into_response(),
    })
}

/// Why a request has no git answer.
#[derive(Debug, thiserror::Error)]
enum HttpError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("git could not be read")]
    Output(#[source] std::io::Error),
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    #[error(transparent)]
    Gone(#[from] crate::keeper::Gone),
}

impl HttpError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Git(error) => return failed(error),
            Self::Body(BodyError::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(BodyError::Encoding) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Body(BodyError::Stalled(_)) => StatusCode::REQUEST_TIMEOUT,
            Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::Output(_) | Self::Store(_) | Self::Gone(_) => {
                tracing::error!(error = %self, "a git request failed");
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let text = if status.is_server_error() { OUR_FAULT.into() } else { format!("{self}\n") };
        (status, NO_CACHE, text).into_response()
    }
}

const NO_CACHE: [(header::HeaderName, HeaderValue); 1] =
    [(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];

const NOT_ANNOUNCED: &str = "no repository is announced under this address; one is <server>/<npub>/<name>.git, and \
                             `grasp push` or another client for git on nostr announces it\n";

const OUR_FAULT: &str = "the server failed, try again\n";

/// When a client that was told that the server is busy may try again, in seconds.
const RETRY_AFTER: &str = "10";

fn failed(error: &GitError) -> Response {
    if let GitError::Busy(_) | GitError::TooExpensive { .. } = error {
        tracing::debug!(%error, "a git request was given up");
        let headers = [(header::RETRY_AFTER, RETRY_AFTER)];
        let text = format!("{error}\n");
        return (StatusCode::SERVICE_UNAVAILABLE, NO_CACHE, headers, text).into_response();
    }
    tracing::error!(%error, "a git request failed");
    (StatusCode::INTERNAL_SERVER_ERROR, NO_CACHE, OUR_FAULT).into_response()
}

fn dumb() -> Response {
    let text = "only the smart protocol is spoken here; use a git that is not older than 1.6.6\n";
    (StatusCode::FORBIDDEN, NO_CACHE, text).into_response()
}

fn method_not_allowed(allow: &'static str) -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, allow)], "not this way\n").into_response()
}
