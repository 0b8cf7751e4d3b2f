//! Atom feeds of a repository.

use grasp_core::{Namespace, kinds};
use nostr::event::Event;
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::revision::{self, encode};
use super::{Context, Made, PageError, Work, log, refs};
use crate::web::feed::{ATOM, Entry, Feed};
use crate::web::names::Names;
use crate::web::threads::{ThreadKind, nevent};
use crate::web::{npub_start, shortened, shown};

/// Entries of a feed.
const MAX_ENTRIES: usize = 50;

/// Characters of the text of an entry.
const MAX_SUMMARY_CHARS: usize = 1_000;

/// Returns the feed of the commits of the default branch.
pub(super) async fn commits(context: &Context<'_>, work: &Work) -> Result<Made, PageError> {
    let refs = &context.view.refs;
    let branch = refs.head.as_str().trim_start_matches("refs/heads/");
    let url = context.url();
    let mut feed = Feed {
        id: format!("{url}/commits.atom"),
        title: format!("{}: commits of {}", context.name(), shown(branch)),
        own_link: format!("{url}/feed/commits.atom"),
        link: format!("{url}/log/{}", encode(branch)),
        entries: Vec::new(),
    };
    let Some(target) = refs.refs.get(&refs.head) else {
        return Ok(atom(&feed));
    };
    let tip = target.peeled.unwrap_or(target.oid);
    for commit in log::list(context, work, tip, MAX_ENTRIES).await?.commits {
        let link = format!("{url}/commit/{}", commit.oid);
        feed.entries.push(Entry {
            id: link.clone(),
            title: shown(&commit.subject),
            link,
            author: shown(&commit.author),
            at: Timestamp::from_secs(commit.date),
            summary: shown(&commit.subject),
        });
    }
    Ok(atom(&feed))
}

/// Returns the feed of the tags.
pub(super) async fn tags(context: &Context<'_>, work: &Work) -> Result<Made, PageError> {
    let feed = tag_feed(context, work, "tags").await?;
    Ok(atom(&feed))
}

async fn tag_feed(context: &Context<'_>, work: &Work, name: &str) -> Result<Feed, PageError> {
    let url = context.url();
    let mut feed = Feed {
        id: format!("{url}/{name}.atom"),
        title: format!("{}: {name}", context.name()),
        own_link: format!("{url}/feed/{name}.atom"),
        link: format!("{url}/refs"),
        entries: Vec::new(),
    };
    let owner = npub_start(&context.request.address.owner);
    for row in refs::list(context, work, &["refs/tags/"], MAX_ENTRIES).await? {
        let Namespace::Tag(tag) = row.name.namespace() else {
            continue;
        };
        let address = encode(&revision::name_of(&context.view, &row.name));
        let (at, subject) = row.about.unwrap_or_default();
        feed.entries.push(Entry {
            // A tag that is moved is another entry.
            id: format!("{url}/tree/{address}#{}", row.oid),
            title: shown(tag),
            link: format!("{url}/tree/{address}"),
            author: owner.clone(),
            at: Timestamp::from_secs(at),
            summary: shown(&shortened(&subject, MAX_SUMMARY_CHARS)),
        });
    }
    feed.entries.truncate(MAX_ENTRIES);
    Ok(feed)
}

/// Returns the feed of the issues, or of the patches and pull requests.
pub(super) async fn threads(context: &Context<'_>, kind: ThreadKind) -> Result<Made, PageError> {
    let reader = context.threads().await?;
    let list = reader.list(kind).await?;
    let authors = list.rows.iter().map(|(root, _)| root.author);
    let names = reader.names(authors.collect()).await?;
    let url = context.url();
    let link = format!("{url}/{}", kind.path());
    let mut feed = Feed {
        id: format!("{link}.atom"),
        title: format!("{}: {}", context.name(), kind.title()),
        own_link: format!("{url}/feed/{}.atom", kind.path()),
        link: link.clone(),
        entries: Vec::new(),
    };
    for (root, summary) in list.rows.iter().take(MAX_ENTRIES) {
        let name = nevent(&root.id);
        feed.entries.push(Entry {
            id: format!("nostr:{name}"),
            title: shown(&summary.title),
            link: format!("{link}/{name}"),
            author: author(&root.author, &names),
            at: root.version.created_at,
            summary: shown(&shortened(&root.text, MAX_SUMMARY_CHARS)),
        });
    }
    Ok(atom(&feed))
}

/// Returns the feed of the releases; of the tags if maintainers published none.
pub(super) async fn releases(context: &Context<'_>, work: &Work) -> Result<Made, PageError> {
    let releases = context.releases().await?;
    if releases.is_empty() {
        let feed = tag_feed(context, work, "releases").await?;
        return Ok(atom(&feed));
    }
    let url = context.url();
    let mut feed = Feed {
        id: format!("{url}/releases.atom"),
        title: format!("{}: releases", context.name()),
        own_link: format!("{url}/feed/releases.atom"),
        link: url.clone(),
        entries: Vec::new(),
    };
    let client = &context.site.settings.web_client;
    for event in releases {
        let name = nevent(&event.id);
        let version = event.tags.iter().find(|tag| tag.kind() == "version");
        let identifier = event.tags.iter().find(|tag| tag.kind() == "d");
        let title = version.or(identifier).and_then(|tag| tag.content());
        feed.entries.push(Entry {
            id: format!("nostr:{name}"),
            title: shown(&shortened(title.unwrap_or("release"), 200)),
            link: format!("{client}/{name}"),
            author: author(&event.pubkey, &Names::default()),
            at: event.created_at,
            summary: shown(&shortened(&event.content, MAX_SUMMARY_CHARS)),
        });
    }
    Ok(atom(&feed))
}

fn atom(feed: &Feed) -> Made {
    Made::Text {
        content_type: ATOM,
        text: feed.xml(),
    }
}

/// Returns a person as text: its name for itself, and the beginning of its key.
fn author(key: &PublicKey, names: &Names) -> String {
    let start = npub_start(key);
    match names.get(key) {
        Some(name) => format!("{} ({start})", shown(name)),
        None => start,
    }
}

impl Context<'_> {
    /// Returns the name of the repository.
    pub(super) fn name(&self) -> String {
        shown(self.request.address.identifier.as_str())
    }

    /// Returns the address of the repository.
    pub(super) fn url(&self) -> String {
        let service = self.service();
        service.repo_url(&self.request.address, self.site.secure)
    }

    /// Reads the releases of the repository by its maintainers (NIP-82), the newest first.
    pub(super) async fn releases(&self) -> Result<Vec<Event>, PageError> {
        let reader = self.threads().await?;
        let maintainers = reader.scope().maintainers().clone();
        if maintainers.is_empty() {
            return Ok(Vec::new());
        }
        let repos = reader.scope().coordinates().iter();
        let repos: Vec<String> = repos.map(ToString::to_string).collect();
        let tag = SingleLetterTag::LOWERCASE_A;
        // A release names its application, which names the repository.
        let software = Filter::new()
            .kind(kinds::SOFTWARE)
            .authors(maintainers.clone())
            .custom_tags(tag, repos.clone());
        let software = self.site.events(software.limit(MAX_ENTRIES)).await?;
        let applications = software.iter().filter_map(Event::coordinate);
        let mut names = repos;
        names.extend(applications.map(|it| it.to_string()));
        let filter = Filter::new()
            .kind(kinds::SOFTWARE_RELEASE)
            .authors(maintainers)
            .custom_tags(tag, names)
            .limit(MAX_ENTRIES);
        Ok(self.site.events(filter).await?)
    }
}
