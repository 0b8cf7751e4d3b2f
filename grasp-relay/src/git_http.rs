//! Git over HTTP: the smart protocol for every repository that is held or served here.
//!
//! ```text
//!  GET  …/info/refs?service=…   fetch ──▶ refs from the database
//!  POST …/git-upload-pack       fetch ──▶ git, both directions at once
//!  POST …/git-receive-pack      push  ──▶ judge ─▶ unpack ─▶ lock, judge again, take in ─▶ settle ─▶ report
//!  GET  ….git                   the page of the repository
//! ```
//!
//! Below `/prs/` are the repositories of contributors, if the operator enables them: each exists, empty until its
//! owner pushes a pull request there (GRASP-06).
//!
//! `grasp_core::push` judges a push. Git only unpacks; purgatory moves the refs, with the events that sign them.

mod body;
mod fetch;
mod push;
mod push_facts;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use grasp_core::RepoId;
use grasp_core::admission::Policy;
use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_core::service::{Endpoint, GitPath};
use grasp_purgatory::driver::PurgatoryDriver;
use grasp_purgatory::git::{GitError, RepoStore, Service};
use nostr::event::Event;
use nostr::filter::Filter;

use self::body::{BodyError, ResponseBuffers};
use self::push::CommandMemory;
use crate::clock::Clock;
use crate::policy::LivePolicy;
use crate::role::RoleWatch;
use crate::server::end_with;
use crate::store::{self, EventStore};
use crate::web::{CONFIRM_PATH, MAX_FORM_BYTES, PageRequest, Pages, Visitor};

/// Limits of requests of git clients.
#[derive(Clone, Debug)]
pub struct GitLimits {
    /// Largest pack of one push, in bytes.
    pub push_bytes: u64,
    /// Git data that the repositories of one name may have together, in bytes.
    pub repository_bytes: u64,
    /// Memory for unpacking one push, which also bounds the number of its objects. A push gets memory by its size and
    /// its share of [`Slots::unpack_memory`](grasp_purgatory::git::Slots::unpack_memory).
    pub push_memory: u64,
    /// Refs of pull requests up to which pushes to a repository add more.
    pub pushed_proposals: usize,
    /// Largest request of a fetch, in bytes; it contains only names of objects.
    pub fetch_request_bytes: u64,
    /// Time that a client may send next to nothing in the middle of a request.
    pub stall: Duration,
    /// Interval of progress messages to a client that waits for its push: some give up on a silent server.
    pub sign_of_life: Duration,
    /// Pages show `https` addresses, because clients connect over TLS.
    pub secure: bool,
}

impl Default for GitLimits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            push_bytes: 2_048 * MIB,
            repository_bytes: 16_384 * MIB,
            push_memory: 768 * MIB,
            pushed_proposals: 10_000,
            fetch_request_bytes: 64 * MIB,
            stall: Duration::from_secs(60),
            sign_of_life: Duration::from_secs(5),
            secure: false,
        }
    }
}

/// The repositories that are served, and what their pages and addresses follow from.
#[derive(Clone)]
pub struct GitHost {
    /// Hosted repositories.
    pub repos: RepoStore,
    /// Repositories of contributors for their pull requests, if enabled (GRASP-06).
    pub contributors: Option<RepoStore>,
    /// Served events.
    pub store: Arc<dyn EventStore>,
    /// The settings of admission.
    pub policy: LivePolicy,
    /// The clock of the server.
    pub clock: Clock,
}

struct GitHttp {
    host: GitHost,
    roles: RoleWatch,
    limits: GitLimits,
    pages: Pages,
    buffers: ResponseBuffers,
    command_memory: CommandMemory,
}

/// The repository that a request is for, and the store that it is in.
#[derive(Clone)]
struct RepoRequest {
    repos: RepoStore,
    /// As the client names it.
    address: RepoId,
    /// The one that is served there.
    repo: RepoId,
    endpoint: Endpoint,
    /// The party that git works for.
    claimant: Claimant,
}

impl GitHttp {
    /// Finds a repository. At the endpoint of contributors every repository exists, if that endpoint is enabled.
    async fn find(
        &self,
        address: RepoId,
        endpoint: Endpoint,
        network: Option<ClientNetwork>,
    ) -> Result<Option<RepoRequest>, GitError> {
        let repos = match endpoint {
            Endpoint::Repository => Some(&self.host.repos),
            Endpoint::PullRequests => self.host.contributors.as_ref(),
        };
        let Some(repos) = repos.cloned() else {
            return Ok(None);
        };
        let Some(repo) = repos.resolve(&address).await? else {
            return Ok(None);
        };
        let claimant = Claimant::maybe_at(network);
        Ok(Some(RepoRequest {
            repos,
            address,
            repo,
            endpoint,
            claimant,
        }))
    }

    /// Returns whether the operator keeps a repository, or the one that it is an address of, out of service.
    fn is_withheld(&self, policy: &Policy, request: &RepoRequest) -> bool {
        match request.endpoint {
            Endpoint::Repository => {
                policy.withholds(&request.address) || policy.withholds(&request.repo)
            }
            Endpoint::PullRequests => policy.bans.authors.contains(&request.repo.owner),
        }
    }

    /// Waits until the operator takes a repository out of service.
    fn until_withheld(self: &Arc<Self>, request: &RepoRequest) -> BoxFuture<'static, ()> {
        let git = Arc::clone(self);
        let request = request.clone();
        Box::pin(async move {
            let policy = git.host.policy.clone();
            policy
                .until(|policy| git.is_withheld(policy, &request))
                .await;
        })
    }

    /// Answers where no repository is: with a page, or with plain text, which git shows to its user.
    async fn not_found(&self, path: &str, parts: &Parts) -> Response {
        if path.ends_with("/info/refs") {
            return (StatusCode::NOT_FOUND, NO_CACHE, NOT_ANNOUNCED).into_response();
        }
        self.pages.not_found(path, &visitor(parts)).await
    }

    /// Answers the button below a page that has to be confirmed.
    async fn confirm(&self, parts: &Parts, body: Body) -> Response {
        let claimant = Claimant::maybe_at(parts.extensions.get().copied());
        match axum::body::to_bytes(body, MAX_FORM_BYTES).await {
            Ok(form) => self.pages.confirm(&claimant, &form),
            Err(_) => (StatusCode::PAYLOAD_TOO_LARGE, "the form is too long\n").into_response(),
        }
    }

    /// Reads stored events.
    async fn events(&self, filter: Filter) -> Result<Vec<Event>, HttpError> {
        let now = self.host.clock.now().unix;
        Ok(store::events(&*self.host.store, filter, now).await?)
    }

    /// Returns purgatory, if this process is the writer.
    fn purgatory(&self) -> Result<PurgatoryDriver, HttpError> {
        self.roles.purgatory().ok_or(HttpError::NotWriter)
    }
}

/// Returns the routes of all repositories, to be merged below the mount. A path that names no repository is not found.
///
/// Pushes are served while this process is the writer.
pub fn routes(host: GitHost, roles: RoleWatch, limits: GitLimits, pages: Pages) -> Router {
    let buffers = ResponseBuffers::default();
    let command_memory = CommandMemory::default();
    let git = GitHttp {
        host,
        roles,
        limits,
        pages,
        buffers,
        command_memory,
    };
    Router::new().fallback(serve).with_state(Arc::new(git))
}

async fn serve(State(git): State<Arc<GitHttp>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let path = path.as_str();
    if path == CONFIRM_PATH && parts.method == Method::POST {
        return git.confirm(&parts, body).await;
    }
    let Some((repo, endpoint, action)) = route(&parts.method, &parts.uri) else {
        return git.not_found(path, &parts).await;
    };
    let network = parts.extensions.get().copied();
    let request = match git.find(repo, endpoint, network).await {
        Ok(Some(request)) => request,
        Ok(None) => return git.not_found(path, &parts).await,
        Err(error) => return git_failed(&error),
    };
    if git.is_withheld(&git.host.policy.now(), &request) {
        return withheld();
    }
    let answered = match action {
        Action::Page if request.endpoint == Endpoint::PullRequests => {
            Ok(git.not_found("", &parts).await)
        }
        Action::Page => Ok(git.pages.serve(page_request(request, &parts)).await),
        Action::Advertise(service) => git.advertise(&request, service, &parts).await,
        Action::Upload => {
            let withheld = git.until_withheld(&request);
            let response = git.upload(&request, &parts.headers, body).await;
            response.map(|response| end_with(response, withheld))
        }
        Action::Receive => git.receive(request, &parts.headers, body).await,
        Action::Dumb => Ok((StatusCode::FORBIDDEN, NO_CACHE, DUMB_PROTOCOL).into_response()),
        Action::WrongMethod { allow } => Ok(method_not_allowed(allow)),
        Action::NotFound => return git.not_found(path, &parts).await,
    };
    match answered {
        Ok(response) => response,
        Err(HttpError::Git(GitError::NoView)) => git.not_found(path, &parts).await,
        Err(error) => error.into_response(),
    }
}

/// Returns the request for a page of a repository.
fn page_request(request: RepoRequest, parts: &Parts) -> PageRequest {
    let rest = GitPath::parse(parts.uri.path()).map(|path| path.rest);
    PageRequest {
        repos: request.repos,
        address: request.address,
        repo: request.repo,
        visitor: visitor(parts),
        path: rest.unwrap_or_default(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
    }
}

/// Returns who sent a request.
fn visitor(parts: &Parts) -> Visitor {
    Visitor {
        claimant: Claimant::maybe_at(parts.extensions.get().copied()),
        headers: parts.headers.clone(),
    }
}

/// The part of a repository that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Show a page: that of the repository, or one of its content.
    Page,
    /// Advertise refs and capabilities of a service.
    Advertise(Service),
    /// Send objects (`git-upload-pack`).
    Upload,
    /// Receive objects (`git-receive-pack`).
    Receive,
    /// The dumb protocol, which is not supported.
    Dumb,
    /// The path exists for other methods.
    WrongMethod {
        /// The methods that are allowed.
        allow: &'static str,
    },
    /// A path that no repository has.
    NotFound,
}

/// Returns the repository, its endpoint and the action of a request; `None` if the path names no repository.
fn route(method: &Method, uri: &Uri) -> Option<(RepoId, Endpoint, Action)> {
    let GitPath {
        repo,
        endpoint,
        rest,
    } = GitPath::parse(uri.path())?;
    Some((
        repo,
        endpoint,
        action(method, &rest, uri.query().unwrap_or_default()),
    ))
}

fn action(method: &Method, rest: &str, query: &str) -> Action {
    let reads = *method == Method::GET || *method == Method::HEAD;
    let posts = *method == Method::POST;
    match rest {
        "" if reads => Action::Page,
        "info/refs" if reads => service(query).map_or(Action::Dumb, Action::Advertise),
        "git-upload-pack" if posts => Action::Upload,
        "git-receive-pack" if posts => Action::Receive,
        "" | "info/refs" => Action::WrongMethod { allow: "GET, HEAD" },
        "git-upload-pack" | "git-receive-pack" => Action::WrongMethod { allow: "POST" },
        "HEAD" => Action::Dumb,
        _ if rest.starts_with("objects/") => Action::Dumb,
        _ if reads => Action::Page,
        _ => Action::NotFound,
    }
}

/// Returns the service that a query names; other parameters are ignored.
fn service(query: &str) -> Option<Service> {
    let pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs
        .filter(|(key, _)| key == "service")
        .find_map(|(_, value)| Service::parse(&value))
}

/// A failure before git has answered.
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
    Unavailable(#[from] grasp_purgatory::driver::Unavailable),
    /// The role has changed since the request came.
    #[error("this node is no longer the writer, try again")]
    NotWriter,
}

impl HttpError {
    /// Returns whether the client may still be sending its request, which it does before it reads the answer.
    fn leaves_body(&self) -> bool {
        matches!(
            self,
            Self::Body(BodyError::Broken | BodyError::TooLarge) | Self::Git(_)
        )
    }

    fn into_response(self) -> Response {
        let status = match &self {
            Self::Git(error) => return git_failed(error),
            Self::Body(BodyError::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(BodyError::Encoding) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Body(BodyError::Stalled(_)) => StatusCode::REQUEST_TIMEOUT,
            Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::NotWriter => return unavailable(format!("{self}\n")),
            Self::Output(_) | Self::Store(_) | Self::Unavailable(_) => {
                tracing::error!(error = %self, "a git request failed");
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let text = if status.is_server_error() {
            SERVER_FAILED.into()
        } else {
            format!("{self}\n")
        };
        (status, NO_CACHE, text).into_response()
    }
}

const NO_CACHE: [(header::HeaderName, HeaderValue); 1] =
    [(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];

const NOT_ANNOUNCED: &str = "no repository is announced under this address; one is <server>/<npub>/<name>.git, and \
                             `grasp push` or another client for git on nostr announces it\n";

const WITHHELD: &str = "this repository is not available on this server\n";

fn withheld() -> Response {
    (StatusCode::NOT_FOUND, NO_CACHE, WITHHELD).into_response()
}

const DUMB_PROTOCOL: &str = "the dumb HTTP protocol is not supported; use git 1.6.6 or later\n";

const SERVER_FAILED: &str = "the server failed, try again\n";

const PACKS_UNAVAILABLE: &str = "the server cannot read its packs at the moment, try again later\n";

/// Value of `Retry-After` for a client that was refused because the server is busy or has lost the role of the writer.
const RETRY_AFTER_SECONDS: &str = "10";

fn unavailable(text: String) -> Response {
    let headers = [(header::RETRY_AFTER, RETRY_AFTER_SECONDS)];
    (StatusCode::SERVICE_UNAVAILABLE, NO_CACHE, headers, text).into_response()
}

fn git_failed(error: &GitError) -> Response {
    if let GitError::Busy(_) | GitError::TooExpensive { .. } = error {
        tracing::debug!(%error, "a git request was refused");
        return unavailable(format!("{error}\n"));
    }
    tracing::error!(%error, "a git request failed");
    if let GitError::PackStorage(_) = error {
        return unavailable(String::from(PACKS_UNAVAILABLE));
    }
    (StatusCode::INTERNAL_SERVER_ERROR, NO_CACHE, SERVER_FAILED).into_response()
}

fn method_not_allowed(allow: &'static str) -> Response {
    (
        StatusCode::METHOD_NOT_ALLOWED,
        [(header::ALLOW, allow)],
        "method not allowed\n",
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_methods() {
        let cases = [
            (Method::GET, "", "", Action::Page),
            (
                Method::HEAD,
                "info/refs",
                "service=git-upload-pack",
                Action::Advertise(Service::UploadPack),
            ),
            (
                Method::GET,
                "info/refs",
                "x=y&service=git-receive-pack&z",
                Action::Advertise(Service::ReceivePack),
            ),
            (Method::GET, "info/refs", "", Action::Dumb),
            (
                Method::GET,
                "info/refs",
                "service=git-upload-archive",
                Action::Dumb,
            ),
            (
                Method::GET,
                "info/refs",
                "xservice=git-upload-pack",
                Action::Dumb,
            ),
            (Method::GET, "HEAD", "", Action::Dumb),
            (Method::GET, "objects/info/packs", "", Action::Dumb),
            (Method::POST, "git-upload-pack", "", Action::Upload),
            (Method::POST, "git-receive-pack", "", Action::Receive),
            (
                Method::GET,
                "git-receive-pack",
                "",
                Action::WrongMethod { allow: "POST" },
            ),
            (
                Method::PUT,
                "",
                "",
                Action::WrongMethod { allow: "GET, HEAD" },
            ),
            (Method::GET, "tree/main/src", "", Action::Page),
            (Method::POST, "tree/main/src", "", Action::NotFound),
        ];
        for (method, rest, query, expected) in cases {
            assert_eq!(
                action(&method, rest, query),
                expected,
                "{method} {rest}?{query}"
            );
        }
    }

    #[tokio::test]
    async fn a_lost_role_is_answered_with_the_reason_and_a_time_to_retry() {
        let response = HttpError::NotWriter.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], RETRY_AFTER_SECONDS);
        let body = axum::body::to_bytes(response.into_body(), 1_024)
            .await
            .unwrap();
        assert_eq!(body, "this node is no longer the writer, try again\n");
    }
}
