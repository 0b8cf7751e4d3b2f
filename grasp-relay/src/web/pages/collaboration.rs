//! The pages of a repository that do not follow from its git data: threads, feeds, and the servers that are in step.

use bitcoin_hashes::{HashEngine as _, sha256};
use grasp_core::{RepoId, kinds};
use maud::html;
use nostr::event::{Event, EventId};
use nostr::filter::Filter;

use super::route::Reads;
use super::{Context, Made, PageError, Site, Tab, Version, Work, feeds, thread_page};
use crate::web::servers::{self, ServerRows};
use crate::web::threads::{
    self, ListQuery, ThreadKind, ThreadReader, nevent, parse_event, parse_repository, repository_at,
};

/// Seconds after which a page with names and ages of other events is made again.
const REFRESH_SECONDS: u64 = 600;

/// What a feed is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedKind {
    /// The default branch.
    Commits,
    Tags,
    Threads(ThreadKind),
    /// Releases that maintainers published, or else the tags.
    Releases,
}

/// A page of this part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Collaboration {
    /// The issues, or the patches and pull requests.
    List(ThreadKind, ListQuery),
    /// One of them.
    Thread(ThreadKind, EventId),
    /// The announced servers, and whether they are in step.
    Servers,
    ServersJson,
    Badge,
    Feed(FeedKind),
}

impl Collaboration {
    /// Returns the page that a path below a repository names; `None` if it names none.
    pub(super) fn parse(page: &str, rest: &str, query: &str) -> Option<Self> {
        let kind = match page {
            "issues" => Some(ThreadKind::Issues),
            "pulls" => Some(ThreadKind::Pulls),
            _ => None,
        };
        match (kind, page, rest) {
            (Some(kind), _, "") => Some(Self::List(kind, ListQuery::parse(query))),
            (Some(kind), _, event) => Some(Self::Thread(kind, parse_event(event)?)),
            (None, "servers", "") => Some(Self::Servers),
            (None, "servers.json", "") => Some(Self::ServersJson),
            (None, "badge.svg", "") => Some(Self::Badge),
            (None, "feed", "commits.atom") => Some(Self::Feed(FeedKind::Commits)),
            (None, "feed", "tags.atom") => Some(Self::Feed(FeedKind::Tags)),
            (None, "feed", "issues.atom") => {
                Some(Self::Feed(FeedKind::Threads(ThreadKind::Issues)))
            }
            (None, "feed", "pulls.atom") => Some(Self::Feed(FeedKind::Threads(ThreadKind::Pulls))),
            (None, "feed", "releases.atom") => Some(Self::Feed(FeedKind::Releases)),
            _ => None,
        }
    }

    /// Returns the name of the page in metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::List(..) => "threads",
            Self::Thread(..) => "thread",
            Self::Servers | Self::ServersJson => "servers",
            Self::Badge => "badge",
            Self::Feed(_) => "feed",
        }
    }

    /// Returns what the version of the page is read from.
    pub(super) fn reads(&self) -> Reads {
        match self {
            // A list has the same version whichever part of it is shown.
            Self::List(kind, _) | Self::Feed(FeedKind::Threads(kind)) => {
                Reads::Events(format!("list {kind:?}"))
            }
            Self::Thread(kind, id) => Reads::Events(format!("thread {kind:?} {id}")),
            Self::Feed(FeedKind::Releases) => Reads::Events("releases".into()),
            Self::Feed(FeedKind::Commits | FeedKind::Tags) => Reads::Refs,
            Self::Servers | Self::ServersJson | Self::Badge => Reads::More,
        }
    }

    /// Returns what decides whether the page is the current one.
    pub(super) async fn version(&self, context: &Context<'_>) -> Result<Version, PageError> {
        Ok(Version::revalidated(self.tag(context).await?))
    }

    /// Returns a text that changes whenever the page may.
    async fn tag(&self, context: &Context<'_>) -> Result<String, PageError> {
        let now = context.now() / REFRESH_SECONDS;
        Ok(match self {
            Self::List(kind, _) | Self::Feed(FeedKind::Threads(kind)) => {
                let reader = context.threads().await?;
                format!("{}-{now}", reader.version(*kind).await?)
            }
            Self::Thread(kind, id) => {
                let reader = context.threads().await?;
                // The changes of a pull request follow from its target branch, too.
                let generation = context.view.generation.0;
                let version = reader.thread_version(*id, *kind).await?;
                format!("{version}-g{generation}-{now}")
            }
            Self::Feed(FeedKind::Commits | FeedKind::Tags) => {
                format!("g{}", context.view.generation.0)
            }
            Self::Feed(FeedKind::Releases) => {
                let mut engine = sha256::HashEngine::default();
                for event in context.releases().await? {
                    engine.input(event.id.as_bytes());
                }
                format!("g{}-{}", context.view.generation.0, engine.finalize())
            }
            Self::Servers | Self::ServersJson | Self::Badge => {
                let rows = context.servers().await?;
                let hash = sha256::Hash::hash(servers::json(&rows).as_bytes());
                format!("{hash}-{}", context.now() / 60)
            }
        })
    }

    /// Makes the page.
    pub(super) async fn make(&self, context: &Context<'_>, work: &Work) -> Result<Made, PageError> {
        match self {
            // What git does for these is charged as it ends.
            Self::Thread(kind, id) => {
                let page = thread_page::make(context, work, *kind, *id).await?;
                return Ok(Made::Page(page));
            }
            Self::Feed(FeedKind::Commits) => return feeds::commits(context, work).await,
            Self::Feed(FeedKind::Tags) => return feeds::tags(context, work).await,
            Self::Feed(FeedKind::Releases) => return feeds::releases(context, work).await,
            _ => {}
        }
        let clock = &context.site.host.clock;
        let began = clock.now().mono;
        let made = self.made(context).await;
        work.charge(clock.now().mono - began);
        made
    }

    /// Makes a page that needs no git.
    async fn made(&self, context: &Context<'_>) -> Result<Made, PageError> {
        match self {
            Self::List(kind, query) => list(context, *kind, query).await,
            Self::Feed(FeedKind::Threads(kind)) => feeds::threads(context, *kind).await,
            Self::Thread(..) | Self::Feed(_) => Err(PageError::NotFound),
            Self::Servers => {
                let rows = context.servers().await?;
                let content = servers::table(&rows, context.now());
                let page = context.page("Servers", Tab::Servers, content);
                Ok(Made::Page(page))
            }
            Self::ServersJson => Ok(Made::Text {
                content_type: "application/json",
                text: servers::json(&context.servers().await?),
            }),
            Self::Badge => Ok(Made::Text {
                content_type: "image/svg+xml",
                text: servers::badge(&context.servers().await?),
            }),
        }
    }
}

async fn list(
    context: &Context<'_>,
    kind: ThreadKind,
    query: &ListQuery,
) -> Result<Made, PageError> {
    let reader = context.threads().await?;
    let list = reader.list(kind).await?;
    let authors = list.rows.iter().map(|(root, _)| root.author);
    let names = reader.names(authors.collect()).await?;
    let base = format!("{}/{}", context.base(), kind.path());
    let content = html! {
        (threads::list(&base, kind, &list, query, &names))
        p class="small" {
            a href={ (context.base()) "/feed/" (kind.path()) ".atom" } { "Atom feed" } " · "
            "to open one, use " a href=(context.client_address()) rel="noopener" { "a web client" } " or another nostr client"
        }
    };
    let page = context.page(kind.title(), Tab::of(kind), content);
    let mut page = page.with_feeds(vec![context.feed(kind.title(), kind.path())]);
    if *query != ListQuery::default() {
        page = page.without_index();
    }
    Ok(Made::Page(page))
}

impl Context<'_> {
    /// Returns the time in Unix seconds.
    fn now(&self) -> u64 {
        self.site.host.clock.now().unix.as_secs()
    }

    pub(super) async fn threads(&self) -> Result<ThreadReader<'_>, PageError> {
        let host = &self.site.host;
        let (model, now) = (host.policy.model(), host.clock.now().unix);
        let reader = ThreadReader::open(&*host.store, now, model, &self.request.repo);
        Ok(reader.await?)
    }

    /// Returns the announced servers with what is known of them, and notes the visit.
    async fn servers(&self) -> Result<ServerRows, PageError> {
        let announcement = self.announcement().await?.ok_or(PageError::NotFound)?;
        let surroundings = &self.site.surroundings;
        let steps = match &surroundings.in_step {
            Some(in_step) => in_step.visit(&announcement.repo),
            None => Default::default(),
        };
        let relays = match &surroundings.relays {
            Some(relays) => relays().await,
            None => Vec::new(),
        };
        Ok(ServerRows::of(
            self.service(),
            &announcement,
            &steps,
            &relays,
        ))
    }
}

impl Site {
    /// Returns where the page of an event is: here, or in a web client.
    pub(super) async fn event_address(&self, name: &str) -> Result<String, PageError> {
        if let Some(repo) = parse_repository(name) {
            if let Some(path) = self.repository_path(&repo).await? {
                return Ok(path);
            }
        }
        let Some(id) = parse_event(name) else {
            // Another name, such as `naddr1…`, is for the client to read.
            let is_name = name.len() <= 1_000 && name.bytes().all(|it| it.is_ascii_alphanumeric());
            let is_public = !name.starts_with("nsec") && !name.starts_with("ncryptsec");
            return match is_name && is_public && name.contains('1') {
                true => Ok(format!("{}/{name}", self.settings.web_client)),
                false => Err(PageError::NotFound),
            };
        };
        let found = self.events(Filter::new().id(id)).await?;
        if let Some(event) = found.first() {
            let repo = event.coordinate().and_then(|it| repository_at(&it));
            if let Some(repo) = repo {
                if let Some(path) = self.repository_path(&repo).await? {
                    return Ok(path);
                }
            }
            let root = match grasp_core::threads::root_named_by(event) {
                Some(root) if root != event.id => self.events(Filter::new().id(root)).await?,
                _ => Vec::new(),
            };
            for (root, anchor) in [(root.first(), true), (Some(event), false)] {
                let Some(root) = root else { continue };
                if let Some(path) = self.thread_path(root).await? {
                    let place = threads::anchor(&id);
                    return Ok(match anchor {
                        true => format!("{path}#{place}"),
                        false => path,
                    });
                }
            }
        }
        Ok(format!("{}/{}", self.settings.web_client, nevent(&id)))
    }

    /// Returns the path of the page of a repository, if it is hosted here and its announcement is served.
    async fn repository_path(&self, repo: &RepoId) -> Result<Option<String>, PageError> {
        let announced = Filter::new()
            .kind(kinds::ANNOUNCEMENT)
            .author(repo.owner)
            .identifier(repo.identifier.as_str());
        if self.events(announced.limit(1)).await?.is_empty() {
            return Ok(None);
        }
        let served = self.served_at(repo).await?;
        Ok(served.map(|_| self.host.policy.service().repo_path(repo)))
    }

    /// Returns the repository that is served at an address, unless the operator keeps it out of service.
    async fn served_at(&self, address: &RepoId) -> Result<Option<RepoId>, PageError> {
        let policy = self.host.policy.now();
        let repo = self.host.repos.resolve(address).await?;
        Ok(repo.filter(|repo| !policy.withholds(address) && !policy.withholds(repo)))
    }

    /// Returns the path of the page of a thread, if its repository is hosted here.
    async fn thread_path(&self, root: &Event) -> Result<Option<String>, PageError> {
        let kind = match root.kind {
            kind if kind == kinds::ISSUE => ThreadKind::Issues,
            kind if kind == kinds::PATCH || kind == kinds::PULL_REQUEST => ThreadKind::Pulls,
            _ => return Ok(None),
        };
        let mut named: Vec<_> = grasp_core::nip34::repo_refs(root).into_iter().collect();
        named.truncate(16);
        for repo in named {
            let Some(shown) = self.served_at(&repo).await? else {
                continue;
            };
            let now = self.host.clock.now().unix;
            let model = self.host.policy.model();
            let reader = ThreadReader::open(&*self.host.store, now, model, &shown).await?;
            if reader.thread(root.id, kind).await?.is_some() {
                let path = self.host.policy.service().repo_path(&repo);
                return Ok(Some(format!("{path}/{}/{}", kind.path(), nevent(&root.id))));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_one_path() {
        let id = EventId::from_slice(&[7; 32]).unwrap();
        let parse = |page, rest: &str| Collaboration::parse(page, rest, "state=closed");
        let query = ListQuery::parse("state=closed");
        let list = Collaboration::List(ThreadKind::Pulls, query);
        assert_eq!(parse("pulls", ""), Some(list));
        let thread = Collaboration::Thread(ThreadKind::Issues, id);
        assert_eq!(parse("issues", &nevent(&id)), Some(thread));
        assert_eq!(parse("badge.svg", ""), Some(Collaboration::Badge));
        for (page, rest) in [
            ("issues", "x"),
            ("issues", "nevent1"),
            ("servers", "x"),
            ("feed", "all.atom"),
            ("feed", ""),
        ] {
            assert_eq!(parse(page, rest), None, "{page}/{rest}");
        }
    }
}
