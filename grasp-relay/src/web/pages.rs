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
mod addresses;
mod answer;
mod cache;
mod changes;
mod collaboration;
mod commit;
mod confirm;
mod content;
mod context;
mod download;
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
mod version;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use bitcoin_hashes::sha256;
use futures_util::future::BoxFuture;
use grasp_core::RepoId;
use grasp_core::resources::{Bounds, Claimant};
use grasp_purgatory::git::{GitError, PageWork, RepoStore};
use grasp_purgatory::resources::SharedPool;
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::key::PublicKey;

use self::about::LanguageCache;
use self::addresses::{lead_to_event, names};
use self::cache::PageCache;
use self::confirm::Confirmation;
pub(crate) use self::confirm::{CONFIRM_PATH, MAX_FORM_BYTES};
pub(crate) use self::context::{Context, Tab};
pub(crate) use self::owner::AGES_CHANGE_AFTER;
use self::revision::ReachCache;
pub(crate) use self::revision::encode;
use self::route::Route;
use self::version::RecentTags;
pub(crate) use self::version::Version;
use super::branding::Branding;
use super::encoded::{self, Caching, EncodedPage};
use super::figures::RelayRow;
use super::frame::{Frame, Page};
use super::render::Renderer;
use super::threads::ThreadKind;
use super::{Listing, Search};
use crate::git_http::GitHost;
use crate::in_step::InStep;
use crate::metrics::Metrics;
use crate::metrics::table::PAGES;
use crate::server::Config;
use crate::store::{self, StoreError};

/// Bytes of pages that are kept. With those of rendered texts they are 64 MiB.
const CACHE_BYTES: usize = 48 * 1024 * 1024;

/// Bytes of pages that are being sent to all clients, small ones not counted.
const SENDING_BYTES: u64 = 64 * 1024 * 1024;

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
    config: Config,
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
    /// Versions that were read lately, and turns to read them.
    recent: RecentTags,
    turns: SharedPool,
    downloads: SharedPool,
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
    /// Counts the pages that are asked for.
    pub metrics: Metrics,
}

/// How a page was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageResult {
    /// The client has the current one.
    NotModified,
    /// From memory.
    Kept,
    Made,
    /// With a button that shows it.
    Confirm,
    Refused,
}

impl PageResult {
    fn label(self) -> &'static str {
        match self {
            Self::NotModified => "304",
            Self::Kept => "kept",
            Self::Made => "made",
            Self::Confirm => "confirm",
            Self::Refused => "refused",
        }
    }
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
    /// A large file, which is not kept.
    Download {
        head: EncodedPage,
        bytes: u64,
        body: Body,
    },
}

/// A request for a page of a repository.
pub(crate) struct PageRequest {
    pub(crate) repos: RepoStore,
    /// The repository as the client names it.
    pub(crate) address: RepoId,
    /// The one that is served there.
    pub(crate) repo: RepoId,
    pub(crate) visitor: Visitor,
    /// The path below the repository, percent-encoded.
    pub(crate) path: String,
    pub(crate) query: String,
}

/// Who asks for a page, and what its client has and takes.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) claimant: Claimant,
    pub(crate) headers: HeaderMap,
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
            downloads: download::turns(host.repos.git().page_slots()),
            host,
            listing,
            config: config.clone(),
            secure: config.secure,
            settings: config.pages.clone(),
            renderer: Renderer::new(config.pages.renderer.clone()),
            reaches: ReachCache::new(),
            languages: LanguageCache::new(),
            cache: Mutex::new(PageCache::new(CACHE_BYTES)),
            confirmation: Confirmation::new(config),
            recent: RecentTags::new(),
            turns: version::turns(),
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
        let show = site.settings.show;
        let route = match show {
            Show::Off => None,
            Show::Full | Show::Basic => Route::parse(&request.path, &request.query, show),
        };
        let Some(route) = route else {
            return site.failed(&PageError::NotFound, &request).await;
        };
        match site.try_serve(&route, &request).await {
            Ok((response, result)) => {
                site.count(route.name(), result);
                response
            }
            Err(error) => {
                site.count_refusal(route.name(), &error);
                site.failed(&error, &request).await
            }
        }
    }

    /// Answers a request below an address where no repository is.
    pub(crate) async fn not_found(&self, path: &str, visitor: &Visitor) -> Response {
        self.0.not_found(path, visitor).await
    }

    /// Answers a search over the list of repositories.
    pub(crate) async fn search(&self, search: Search, visitor: &Visitor) -> Response {
        self.0.search(search, visitor).await
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

impl Site {
    async fn try_serve(
        &self,
        route: &Route,
        request: &PageRequest,
    ) -> Result<(Response, PageResult), PageError> {
        let view = request
            .repos
            .view_for(&request.repo, request.visitor.claimant);
        let context = Context {
            site: self,
            request,
            view: view.await?,
        };
        let subject = route.find(&context).await?;
        let (version, took) = self.version(route, &context, &subject).await?;
        let tag = format!("{}-{}", self.stamp, version.tag);
        if encoded::has_tag(&request.visitor.headers, &tag) {
            let response = encoded::not_modified(&tag, version.caching);
            return Ok((response, PageResult::NotModified));
        }
        // By what the address means: parameters that no page has do not make another one.
        let key = format!("{} {route:?}", request.address);
        if let Some(page) = self.kept(&key, &tag) {
            let response = self.send(&page, &request.visitor).await?;
            return Ok((response, PageResult::Kept));
        }
        if version.is_costly && !self.is_confirmed(request) {
            return Ok((self.ask_to_confirm(request), PageResult::Confirm));
        }
        // Free is what a client or the cache has: all else pays for the reading of its version, too.
        let git = self.host.repos.git();
        git.charge_page(request.visitor.claimant, took);
        let work = self.begin(&request.visitor).await?;
        let made = match route.make(&context, &subject, &work).await {
            // It is as expensive the next time, so this is kept, too.
            Err(PageError::Git(GitError::TooExpensive { .. })) => {
                Made::Page(self.too_large(request))
            }
            made => made?,
        };
        let made = match made {
            Made::Download { head, bytes, body } => {
                let head = head.tagged(version.caching, tag);
                let response = answer::download(&head, bytes, body);
                return Ok((response, PageResult::Made));
            }
            made => made,
        };
        let encoded = work.run(move || made.encode(version.caching, tag)).await?;
        drop(work);
        self.cache().insert(key, encoded.clone());
        let response = self.send(&encoded, &request.visitor).await?;
        Ok((response, PageResult::Made))
    }

    /// Counts a page that was asked for.
    fn count(&self, page: &str, result: PageResult) {
        let metrics = &self.surroundings.metrics;
        metrics.add(&PAGES, &[page, result.label()], 1);
    }

    /// Counts a page that was refused for now; what is not found or fails is none.
    fn count_refusal(&self, page: &str, error: &PageError) {
        if let PageError::Git(GitError::Busy(_)) = error {
            self.count(page, PageResult::Refused);
        }
    }

    /// Counts a page that is not shown, and logs why if it was not refused.
    fn note_refusal(&self, page: &str, error: &PageError) {
        self.count_refusal(page, error);
        match error {
            PageError::Git(GitError::Busy(_)) => {
                tracing::debug!(%error, page, "a page was refused")
            }
            error => tracing::warn!(%error, page, "a page failed"),
        }
    }

    /// Waits for the slot of a page.
    async fn begin(&self, visitor: &Visitor) -> Result<Work, PageError> {
        let git = self.host.repos.git();
        Ok(git.begin_page(visitor.claimant).await?)
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
        let Visitor { claimant, headers } = &request.visitor;
        !is_needed || self.confirmation.is_in(claimant, headers, now)
    }

    fn ask_to_confirm(&self, request: &PageRequest) -> Response {
        let query = match request.query.as_str() {
            "" => String::new(),
            query => format!("?{query}"),
        };
        let base = self.host.policy.service().repo_path(&request.address);
        confirm::button(&self.frame, &format!("{base}/{}{query}", request.path))
    }

    /// Reads served events.
    pub(crate) async fn events(&self, filter: Filter) -> Result<Vec<Event>, StoreError> {
        let now = self.host.clock.now().unix;
        store::events(&*self.host.store, filter, now).await
    }
}

/// The work of a page, as its makers name it.
pub(crate) type Work = PageWork;
