//! Pages of repositories: who may have one now, what it costs, and how it is kept.
//!
//! ```text
//!  request ─▶ Route ─▶ version from the row ─▶ the client has it: 304
//!                                           ─▶ it is kept: sent as it is
//!                                           ─▶ under load and costly: a button
//!                                           ─▶ slot and CPU account ─▶ made, compressed, kept, sent
//! ```
//!
//! Pages that are not kept draw on slots and on CPU time of their own ([`Slots::page_cpu`]), so that neither crawlers nor a
//! page that is expensive to make delay git or the relay.
//!
//! [`Slots::page_cpu`]: grasp_purgatory::git::Slots::page_cpu

mod about;
mod cache;
mod changes;
mod collaboration;
mod commit;
mod confirm;
mod content;
mod feeds;
mod file;
mod log;
mod owner;
mod refs;
mod repository_page;
mod revision;
mod route;
mod thread_page;
mod tree;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bitcoin_hashes::sha256;
use futures_util::future::BoxFuture;
use futures_util::stream;
use grasp_core::nip34::Announcement;
use grasp_core::resources::{Bounds, Claimant};
use grasp_core::{RepoId, ServiceIdentity, kinds};
use grasp_purgatory::database::View;
use grasp_purgatory::git::{GitError, PageWork, RepoStore};
use grasp_purgatory::resources::SharedPool;
use maud::{Markup, html};
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::key::PublicKey;

use self::about::LanguageCache;
use self::cache::PageCache;
use self::confirm::Confirmation;
pub(crate) use self::confirm::{CONFIRM_PATH, MAX_FORM_BYTES};
use self::revision::ReachCache;
pub(crate) use self::revision::encode;
use self::route::Route;
use super::branding::Branding;
use super::encoded::{self, Caching, EncodedBody, EncodedPage};
use super::figures::RelayRow;
use super::frame::{Frame, Page};
use super::render::Renderer;
use super::threads::ThreadKind;
use super::{Listing, npub_start};
use crate::git_http::GitHost;
use crate::in_step::InStep;
use crate::server::Config;
use crate::store::{self, StoreError};

/// Bytes of pages that are kept. With those of rendered texts they are 64 MiB.
const CACHE_BYTES: usize = 48 * 1024 * 1024;

/// Bytes of pages that are being sent to all clients, small ones not counted.
const SENDING_BYTES: u64 = 64 * 1024 * 1024;

/// The largest body that is not counted among those.
const SMALL_BODY: usize = 64 * 1024;

/// Bytes that a connection gets at once.
const CHUNK: usize = 16 * 1024;

/// Which pages there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Show {
    /// The list of repositories, and the content of each.
    #[default]
    Full,
    /// The list, and a short page for each repository.
    Basic,
    /// None but the status.
    Off,
}

/// When visitors have to confirm that they want an expensive page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confirm {
    /// While pages use half of the CPU time that they may use.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Settings of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSettings {
    /// Which pages there are.
    pub show: Show,
    /// When visitors have to confirm.
    pub confirm: Confirm,
    /// The web client that pages link to for what they cannot do, such as answering.
    pub web_client: String,
    /// The program whose command `render` makes HTML of Markdown and colours code, with the feature `pages`. Without one
    /// both are shown as plain text.
    pub renderer: Option<PathBuf>,
    /// The icon and the colour.
    pub branding: Branding,
}

impl Default for PageSettings {
    fn default() -> Self {
        Self {
            show: Show::default(),
            confirm: Confirm::default(),
            web_client: "https://gitworkshop.dev".into(),
            renderer: None,
            branding: Branding::default(),
        }
    }
}

/// Returns a text that changes with everything that all pages of a server follow from.
fn stamp(frame: &Frame, config: &Config) -> String {
    let PageSettings {
        show, web_client, ..
    } = &config.pages;
    let more = format!("{show:?} {web_client} {}", config.secure);
    let hash = sha256::Hash::hash(more.as_bytes()).to_string();
    format!("{}-{}", frame.version(), hash.get(..8).unwrap_or_default())
}

/// The pages of repositories. Cheap to clone.
#[derive(Clone)]
pub struct Pages(Arc<Site>);

/// What pages are made from.
pub(crate) struct Site {
    pub(crate) host: GitHost,
    pub(crate) listing: Listing,
    pub(crate) secure: bool,
    pub(crate) settings: PageSettings,
    /// What all pages share.
    pub(crate) frame: Frame,
    /// A text that changes with everything that all pages follow from.
    stamp: String,
    pub(crate) renderer: Renderer,
    reaches: ReachCache,
    languages: LanguageCache,
    cache: Mutex<PageCache>,
    confirmation: Confirmation,
    sending: SharedPool,
    surroundings: Surroundings,
}

/// Returns the relays that are synced with, as the status shows them.
pub type RelayRows = Arc<dyn Fn() -> BoxFuture<'static, Vec<RelayRow>> + Send + Sync>;

/// What pages show of other servers.
#[derive(Clone, Default)]
pub struct Surroundings {
    /// The comparison of refs with other servers, if it runs.
    pub in_step: Option<InStep>,
    /// The relays that are synced with.
    pub relays: Option<RelayRows>,
    /// The key of the service, which is its name in NIP-05.
    pub service_key: Option<PublicKey>,
}

/// What was made for a request.
pub(crate) enum Made {
    Page(Page),
    /// Something for programs.
    Text {
        content_type: &'static str,
        text: String,
    },
    /// Content of a repository.
    File(EncodedPage),
}

/// A request for a page of a repository.
pub(crate) struct PageRequest {
    pub(crate) repos: RepoStore,
    /// The repository as the client names it.
    pub(crate) address: RepoId,
    /// The one that is served there.
    pub(crate) repo: RepoId,
    pub(crate) claimant: Claimant,
    /// The path below the repository, percent-encoded.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
}

/// Everything that a page is made from: the request, and the refs at its time.
pub(crate) struct Context<'a> {
    pub(crate) site: &'a Site,
    pub(crate) request: &'a PageRequest,
    pub(crate) view: View,
}

/// What decides whether a page that a client or the cache has is the current one.
pub(crate) struct Version {
    /// Changes whenever the page may.
    pub(crate) tag: String,
    pub(crate) caching: Caching,
    /// Expensive to make, and there are very many such pages: asked for under load, it has to be confirmed.
    pub(crate) is_costly: bool,
}

impl Version {
    /// Returns the version of a page that follows from the refs of a repository.
    pub(crate) fn of_view(view: &View) -> Self {
        Self {
            tag: format!("g{}", view.generation.0),
            caching: Caching::Revalidate,
            is_costly: false,
        }
    }
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing is at this address.
    #[error("not found")]
    NotFound,
}

impl Pages {
    /// Creates the pages of hosted repositories.
    pub fn new(
        host: GitHost,
        listing: Listing,
        config: &Config,
        surroundings: Surroundings,
    ) -> Self {
        let frame = config.frame();
        Self(Arc::new(Site {
            stamp: stamp(&frame, config),
            frame,
            host,
            listing,
            secure: config.secure,
            settings: config.pages.clone(),
            renderer: Renderer::new(config.pages.renderer.clone()),
            reaches: ReachCache::new(),
            languages: LanguageCache::new(),
            cache: Mutex::new(PageCache::new(CACHE_BYTES)),
            confirmation: Confirmation::new(config),
            surroundings,
            sending: SharedPool::new(Bounds {
                reserve: 0,
                smallest: SENDING_BYTES / 8,
                ..Bounds::of(SENDING_BYTES)
            }),
        }))
    }

    /// Answers a request for a page of a repository.
    pub(crate) async fn serve(&self, request: PageRequest) -> Response {
        let site = &*self.0;
        match site.try_serve(&request).await {
            Ok(response) => response,
            Err(error) => site.failed(&error, &request).await,
        }
    }

    /// Answers a request below an address where no repository is.
    pub(crate) async fn not_found(&self, path: &str) -> Response {
        self.0.not_found(path).await
    }

    /// Returns the routes that belong to no repository, to be merged below the mount: where the page of an event is, and the
    /// name of the service (NIP-05).
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/e/{event}", get(lead_to_event))
            .route("/.well-known/nostr.json", get(names))
            .with_state(self.clone())
    }

    /// Answers the press of the button that confirms.
    pub(crate) fn confirm(&self, claimant: &Claimant, form: &[u8]) -> Response {
        let site = &*self.0;
        let now = site.host.clock.now().unix.as_secs();
        let root = site.frame.root();
        site.confirmation.confirm(claimant, form, now, root)
    }
}

/// Leads to the page of an event.
async fn lead_to_event(State(pages): State<Pages>, Path(event): Path<String>) -> Response {
    let site = &*pages.0;
    if site.settings.show != Show::Full {
        return site.not_found("e").await;
    }
    match site.event_address(&event).await {
        Ok(address) => {
            let mut response = StatusCode::FOUND.into_response();
            encoded::insert_text(response.headers_mut(), header::LOCATION, &address);
            response
        }
        Err(PageError::NotFound) => site.not_found("e").await,
        Err(error) => {
            tracing::error!(%error, "the page of an event could not be found");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Answers which key has a name here (NIP-05). The only name is `_`, the service itself.
async fn names(State(pages): State<Pages>, RawQuery(query): RawQuery) -> Response {
    let site = &*pages.0;
    let name = route::parameter(&query.unwrap_or_default(), "name");
    let key = site.surroundings.service_key;
    let key = key.filter(|_| name.as_deref().is_none_or(|name| name == "_"));
    let scheme = if site.secure { "wss" } else { "ws" };
    let relay = format!("{scheme}://{}", site.host.policy.service);
    let body = match key {
        Some(key) => serde_json::json!({
            "names": { "_": key.to_hex() },
            "relays": { key.to_hex(): [relay] },
        }),
        None => serde_json::json!({ "names": {} }),
    };
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (content_type, body.to_string()).into_response()
}

impl Site {
    async fn try_serve(&self, request: &PageRequest) -> Result<Response, PageError> {
        if self.settings.show == Show::Off {
            return Err(PageError::NotFound);
        }
        let route = Route::parse(&request.path, &request.query, self.settings.show);
        let route = route.ok_or(PageError::NotFound)?;
        let view = request.repos.view_for(&request.repo, request.claimant);
        let context = Context {
            site: self,
            request,
            view: view.await?,
        };
        let subject = route.find(&context).await?;
        let version = route.version(&context, &subject).await?;
        let tag = format!("{}-{}", self.stamp, version.tag);
        if encoded::has_tag(&request.headers, &tag) {
            return Ok(encoded::not_modified(&tag, version.caching));
        }
        // By what the address means: parameters that no page has do not make another one.
        let key = format!("{} {route:?}", request.address);
        if let Some(page) = self.kept(&key, &tag) {
            return self.send(&page, request).await;
        }
        if version.is_costly && !self.is_confirmed(request) {
            return Ok(self.ask_to_confirm(request));
        }
        let work = self.begin(request).await?;
        let made = match route.make(&context, &subject, &work).await {
            // It is as expensive the next time, so this is kept, too.
            Err(PageError::Git(GitError::TooExpensive { .. })) => {
                Made::Page(self.too_large(request))
            }
            made => made?,
        };
        let encoded = work.run(move || made.encode(version.caching, tag)).await?;
        drop(work);
        self.cache().insert(key, encoded.clone());
        self.send(&encoded, request).await
    }

    /// Waits for the slot of a page.
    async fn begin(&self, request: &PageRequest) -> Result<Work, PageError> {
        let git = self.host.repos.git();
        Ok(git.begin_page(request.claimant).await?)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, PageCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self, key: &str, tag: &str) -> Option<EncodedPage> {
        self.cache().get(key, tag)
    }

    /// Returns whether a visitor need not confirm, or has confirmed.
    fn is_confirmed(&self, request: &PageRequest) -> bool {
        let is_needed = match self.settings.confirm {
            Confirm::Always => true,
            Confirm::Never => false,
            Confirm::Auto => self.host.repos.git().are_pages_under_load(),
        };
        let now = self.host.clock.now().unix.as_secs();
        let claimant = &request.claimant;
        !is_needed || self.confirmation.is_in(claimant, &request.headers, now)
    }

    fn ask_to_confirm(&self, request: &PageRequest) -> Response {
        let query = match request.query.as_str() {
            "" => String::new(),
            query => format!("?{query}"),
        };
        let base = self.host.policy.service.repo_path(&request.address);
        confirm::button(&self.frame, &format!("{base}/{}{query}", request.path))
    }

    /// Sends a page. Large ones count until the client has them.
    pub(crate) async fn send(
        &self,
        page: &EncodedPage,
        request: &PageRequest,
    ) -> Result<Response, PageError> {
        let claimant = request.claimant;
        let mut response = if page.is_ready_for(&request.headers) {
            page.response(&request.headers)
        } else {
            let (page, headers) = (page.clone(), request.headers.clone());
            let work = self.host.repos.git().begin_page(claimant).await?;
            work.run(move || page.response(&headers)).await?
        };
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

    async fn failed(&self, error: &PageError, request: &PageRequest) -> Response {
        let service = &self.host.policy.service;
        match error {
            PageError::NotFound | PageError::Git(GitError::NoView) => {
                let path = service.repo_path(&request.address);
                let mount = service.mount_path();
                self.not_found(path.strip_prefix(&mount).unwrap_or(&path))
                    .await
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
                    &service.repo_url(&request.address, self.secure),
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
    fn too_large(&self, request: &PageRequest) -> Page {
        let url = self
            .host
            .policy
            .service
            .repo_url(&request.address, self.secure);
        let content = html! {
            h1 { "This is too large to be shown here" }
            p { "Clone the repository to see it:" }
            pre { "git clone " (url) }
        };
        Page::new("Too large to be shown", &self.frame, content)
            .with_status(StatusCode::PAYLOAD_TOO_LARGE)
    }

    /// Reads served events.
    pub(crate) async fn events(&self, filter: Filter) -> Result<Vec<Event>, StoreError> {
        let now = self.host.clock.now().unix;
        store::events(&*self.host.store, filter, now).await
    }
}

impl Context<'_> {
    pub(crate) fn service(&self) -> &ServiceIdentity {
        &self.site.host.policy.service
    }

    /// Returns the path of the repository's page, without a slash at its end.
    pub(crate) fn base(&self) -> String {
        self.service().repo_path(&self.request.address)
    }

    /// Returns the announcement of the repository, once it is served.
    pub(crate) async fn announcement(&self) -> Result<Option<Announcement>, PageError> {
        let repo = &self.request.address;
        let filter = Filter::new()
            .kind(kinds::ANNOUNCEMENT)
            .author(repo.owner)
            .identifier(repo.identifier.as_str())
            .limit(1);
        let events = self.site.events(filter).await?;
        let first = events.first();
        Ok(first.and_then(|event| Announcement::parse(event).ok()))
    }

    /// Returns the pages that each page links to, with their names and paths.
    fn tabs(&self) -> Vec<(Tab, &'static str, String)> {
        let mut tabs = vec![(Tab::Code, "Overview", String::new())];
        let refs = &self.view.refs;
        if refs.refs.contains_key(&refs.head) {
            let head = refs.head.as_str().trim_start_matches("refs/heads/");
            let head = revision::encode(head);
            tabs.push((Tab::Files, "Files", format!("/tree/{head}")));
            tabs.push((Tab::Log, "Commits", format!("/log/{head}")));
        }
        for (tab, name, path) in [
            (Tab::Refs, "Branches and tags", "/refs"),
            (Tab::Issues, "Issues", "/issues"),
            (Tab::Pulls, "Pull requests", "/pulls"),
            (Tab::Servers, "Servers", "/servers"),
        ] {
            tabs.push((tab, name, path.into()));
        }
        tabs
    }

    /// Returns a page of this repository, with its name and links to the other pages above the content.
    pub(crate) fn page(&self, title: &str, tab: Tab, content: Markup) -> Page {
        let base = self.base();
        let repo = &self.request.address;
        let name = repo.identifier.as_str();
        let owner = npub_start(&repo.owner);
        let owner_path = format!("{}{}", self.site.frame.root(), super::npub(&repo.owner));
        let content = html! {
            p class="path" {
                a href=(owner_path) { (owner) } " / "
                a href=(base) { bdi { strong { (super::shown(name)) } } }
            }
            nav class="tabs" aria-label="Repository" {
                @for (this, label, path) in self.tabs() {
                    a href=(format!("{base}{path}")) aria-current=[(this == tab).then_some("page")] { (label) }
                }
            }
            (content)
        };
        let title = match title {
            "" => format!("{} by {owner}", super::shown(name)),
            title => format!("{title} · {}", super::shown(name)),
        };
        Page::new(title, &self.site.frame, content)
    }
}

/// The pages that every page of a repository links to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    /// The page of the repository.
    Code,
    /// The files of the default branch.
    Files,
    /// The commits of the default branch.
    Log,
    /// Branches and tags.
    Refs,
    Issues,
    Pulls,
    Servers,
}

impl Tab {
    /// Returns the one of a list of threads.
    fn of(kind: ThreadKind) -> Self {
        match kind {
            ThreadKind::Issues => Self::Issues,
            ThreadKind::Pulls => Self::Pulls,
        }
    }
}

impl Made {
    /// Compresses what was made, to be sent and kept.
    fn encode(self, caching: Caching, tag: String) -> EncodedPage {
        let encoded = match self {
            Self::Page(page) => page.encode(None),
            Self::Text { content_type, text } => {
                let body = EncodedBody::new(text.into_bytes());
                EncodedPage::file(content_type, false, body)
            }
            Self::File(file) => file,
        };
        EncodedPage {
            caching,
            tag: Some(tag),
            ..encoded
        }
    }
}

/// Seconds after which a client that was refused may ask again.
const RETRY_AFTER: Duration = Duration::from_secs(60);

fn busy(frame: &Frame, url: &str) -> Response {
    let content = html! {
        h1 { "Too many pages at the moment" }
        p { "Pages have used the processor time that they may use. Try again in a minute. Cloning works:" }
        pre { "git clone " (url) }
    };
    let page = Page::new("Too many pages at the moment", frame, content)
        .cached(Caching::NoStore)
        .with_status(StatusCode::SERVICE_UNAVAILABLE);
    let mut response = page.into_response();
    let seconds = HeaderValue::from(RETRY_AFTER.as_secs());
    response.headers_mut().insert(header::RETRY_AFTER, seconds);
    response
}

/// The work of a page, as its makers name it.
pub(crate) type Work = PageWork;
