//! What the pages of one repository share: the request, the refs at its time, and the links above every content.

use grasp_core::nip34::Announcement;
use grasp_core::{ServiceIdentity, kinds};
use grasp_purgatory::database::View;
use maud::{Markup, html};
use nostr::filter::Filter;

use super::{PageError, PageRequest, Site, ThreadKind, revision};
use crate::web::frame::{FeedLink, Page};
use crate::web::{nostr_path, npub, npub_start, shown};

/// Everything that a page is made from: the request, and the refs at its time.
pub(crate) struct Context<'a> {
    pub(crate) site: &'a Site,
    pub(crate) request: &'a PageRequest,
    pub(crate) view: View,
}

impl Context<'_> {
    pub(crate) fn service(&self) -> &ServiceIdentity {
        self.site.host.policy.service()
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

    /// Returns the address of the page. Repositories have addresses without `.git`, too.
    pub(super) fn canonical(&self) -> String {
        let path = &self.request.path;
        match path.is_empty() {
            true => self.url(),
            false => format!("{}/{path}", self.url()),
        }
    }

    /// Returns the address of the repository at the web client.
    pub(super) fn client_address(&self) -> String {
        let path = nostr_path(self.service(), &self.request.address);
        format!("{}/{path}", self.site.settings.web_client)
    }

    /// Returns the link to a feed.
    pub(super) fn feed(&self, title: &'static str, name: &str) -> FeedLink {
        let path = format!("{}/feed/{name}.atom", self.base());
        FeedLink { title, path }
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
        ] {
            tabs.push((tab, name, path.into()));
        }
        // Before something is pushed nothing of the announcement is shown.
        if !refs.refs.is_empty() {
            tabs.push((Tab::Servers, "Servers", "/servers".into()));
        }
        tabs
    }

    /// Returns a page of this repository, with its name and links to the other pages above the content.
    pub(crate) fn page(&self, title: &str, tab: Tab, content: Markup) -> Page {
        let base = self.base();
        let repo = &self.request.address;
        let name = repo.identifier.as_str();
        let owner = npub_start(&repo.owner);
        let owner_path = format!("{}{}", self.site.frame.root(), npub(&repo.owner));
        let content = html! {
            p class="path" {
                a href=(owner_path) { (owner) } " / "
                a href=(base) { bdi { strong { (shown(name)) } } }
            }
            nav class="tabs" aria-label="Repository" {
                @for (this, label, path) in self.tabs() {
                    a href=(format!("{base}{path}")) aria-current=[(this == tab).then_some("page")] { (label) }
                }
            }
            (content)
        };
        let title = match title {
            "" => format!("{} by {owner}", shown(name)),
            title => format!("{title} · {}", shown(name)),
        };
        Page::new(title, &self.site.frame, content).at(self.canonical())
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
    pub(super) fn of(kind: ThreadKind) -> Self {
        match kind {
            ThreadKind::Issues => Self::Issues,
            ThreadKind::Pulls => Self::Pulls,
        }
    }
}
