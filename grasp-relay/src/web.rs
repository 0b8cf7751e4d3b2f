//! Web pages: the landing page, a repository, the status of the server, and not found.
//!
//! Templates escape all values; pages load nothing from other hosts. Only the status page has a script, and it shows the
//! same without it. [`Page`] is what they share, [`Pages`] has those of repositories.

mod admin;
mod branding;
mod charts;
mod diff;
mod encoded;
mod feed;
pub mod figures;
mod frame;
pub mod history;
mod listing;
mod names;
mod pages;
pub mod render;
mod search;
mod servers;
mod status;
mod threads;

use std::fmt;

use grasp_core::nip34::Announcement;
use grasp_core::service::npub;
use grasp_core::{RefName, RepoId, ServiceIdentity};
use maud::{Markup, html};
use nostr::key::PublicKey;

pub use self::admin::admin;
pub use self::branding::{Accent, Branding, BrandingError, Icon};
pub use self::encoded::Caching;
pub(crate) use self::encoded::{EncodedPage, has_tag, not_modified};
use self::figures::RepositoryRow;
pub use self::frame::{Frame, Page, assets};
pub use self::listing::{Listing, RepositoryList};
pub(crate) use self::pages::{
    AGES_CHANGE_AFTER, CONFIRM_PATH, MAX_FORM_BYTES, PageRequest, Visitor,
};
pub use self::pages::{Confirm, PageSettings, Pages, RelayRows, Show, Surroundings};
pub(crate) use self::search::Search;
pub use self::status::{format_age, format_bytes, format_duration, status};
use crate::nostr::RelayInfo;
use crate::server::Config;

/// The content of a repository's page.
#[derive(Clone, Debug)]
pub struct RepositoryPage<'a> {
    /// The owner and identifier.
    pub repo: &'a RepoId,
    /// The announcement, once it is served.
    pub announcement: Option<&'a Announcement>,
    /// The branch that HEAD names.
    pub head: Option<&'a RefName>,
    /// The number of branches.
    pub branches: usize,
    /// The number of tags.
    pub tags: usize,
}

/// Limits the other git servers on a repository's page.
const MAX_OTHER_SERVERS: usize = 16;

/// Limits the repositories on the landing page.
const MAX_REPOSITORIES_SHOWN: usize = 100;

/// Returns the landing page of a server with these repositories; `now` is in Unix seconds.
pub(crate) fn landing(
    frame: &Frame,
    config: &Config,
    info: &RelayInfo,
    repositories: &RepositoryList,
    search: Option<&Search>,
    now: u64,
) -> Page {
    let Config {
        service, secure, ..
    } = config;
    let RelayInfo {
        name, description, ..
    } = info;
    let s = if *secure { "s" } else { "" };
    Page::new(
        name,
        frame,
        html! {
            h1 { (name) }
            p { (description) }
            p {
                "A push to this GRASP server is accepted exactly when a maintainer of the repository has signed for it."
            }
            h2 { "Repositories" }
            (search_form(frame.root(), search))
            @if let Some(search) = search {
                p role="status" {
                    (format_count(repositories.rows.len() as u64, "repository", "repositories")) " with “" bdi { (shown(&search.text)) } "”"
                    @if repositories.is_cut { " among the latest announced" } ". "
                    a href=(frame.root()) { "All repositories" }
                }
            }
            (repository_table(frame.root(), repositories, now))
            h2 { "Host a repository here" }
            p { "In a working copy of it, with the " code { "grasp" } " command:" }
            pre { "grasp push --server http" (s) "://" (service) }
            p { "That takes three steps, which clients such as " code { "ngit" } " take too:" }
            ol {
                li { "Announce it (NIP-34, kind 30617) with these two addresses:"
                    pre { "clone   http" (s) "://" (service) "/<your npub>/<name>.git\nrelays  ws" (s) "://" (service) }
                }
                li { "Sign its state (kind 30618): which commit each branch and tag is at." }
                li { "Push exactly that:"
                    pre { "git push http" (s) "://" (service) "/<your npub>/<name>.git main" }
                }
            }
        },
    )
}

/// Returns the landing page of a private service, which names no repository.
pub(crate) fn private_landing(frame: &Frame, config: &Config, info: &RelayInfo) -> Page {
    let RelayInfo {
        name, description, ..
    } = info;
    let s = if config.secure { "s" } else { "" };
    let content = html! {
        h1 { (name) }
        p { (description) }
        p { "This is a private GRASP server: only its members read and write here." }
        h2 { "For members" }
        p { "In a working copy, with the " code { "grasp" } " command and your key:" }
        pre { "grasp push --server http" (s) "://" (config.service) }
    };
    Page::new(name, frame, content).without_index()
}

fn search_form(root: &str, search: Option<&Search>) -> Markup {
    let text = search.map(|search| shown(&search.text));
    html! {
        form class="search" role="search" method="get" action=(root) {
            input type="search" name="q" maxlength="200" aria-label="Words of name, description, topic or owner" value=[text];
            button type="submit" { "Search" }
        }
    }
}

fn repository_table(root: &str, list: &RepositoryList, now: u64) -> Markup {
    let RepositoryList { rows, is_cut, .. } = list;
    if rows.is_empty() {
        return html! { p { "None yet." } };
    }
    let caption = match is_cut {
        true => format!(
            "The {} latest announced, the latest active first",
            rows.len()
        ),
        false => format!("{} hosted, the latest active first", rows.len()),
    };
    let first: Vec<&RepositoryRow> = rows.iter().take(MAX_REPOSITORIES_SHOWN).collect();
    html! {
        (captioned_rows(root, &caption, &first, now))
        @if rows.len() > MAX_REPOSITORIES_SHOWN { p class="small" { "The first " (MAX_REPOSITORIES_SHOWN) " are shown." } }
    }
}

/// Returns the table of an owner's repositories.
fn repository_rows(root: &str, list: &RepositoryList, now: u64) -> Markup {
    let count = list.rows.len();
    let more = if list.is_cut { "at least " } else { "" };
    let caption = format!("{more}{count} hosted, the latest active first");
    let shown: Vec<&RepositoryRow> = list.rows.iter().take(MAX_REPOSITORIES_SHOWN).collect();
    captioned_rows(root, &caption, &shown, now)
}

fn captioned_rows(root: &str, caption: &str, rows: &[&RepositoryRow], now: u64) -> Markup {
    html! {
        table {
            caption { (caption) }
            thead {
                tr {
                    th scope="col" { "name" } th scope="col" { "description" } th scope="col" { "owner" }
                    th scope="col" { "last active" }
                }
            }
            tbody {
                @for repo in rows {
                    tr {
                        td data-label="name" { a href=(repo.path) { (shown(&shortened(&repo.name, 80))) } }
                        td data-label="description" dir="auto" { (shown(&shortened(&repo.description, 200))) }
                        td data-label="owner" class="key" title=(repo.owner) {
                            a href=(format!("{root}{}", repo.owner)) { (shortened(&repo.owner, 12)) }
                        }
                        td data-label="last active" class="time" { (format_age(now, Some(repo.active_at))) }
                    }
                }
            }
        }
    }
}

/// Returns the start of a key as pages show it.
fn npub_start(key: &PublicKey) -> String {
    shortened(&npub(key), 12)
}

/// Returns a stranger's text as pages show it: without control characters, and without those that turn the direction of
/// the text around it.
fn shown(text: &str) -> String {
    let is_turning = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_hidden = |c: char| is_turning(c) || c.is_control() && c != '\n' && c != '\t';
    text.chars().filter(|c| !is_hidden(*c)).collect()
}

/// Cuts a text to this many characters.
fn shortened(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns a time, in Unix seconds, as a date. Pages that are kept show no ages, which would not change on them.
fn date(seconds: u64) -> Markup {
    let date = feed::date(nostr::types::Timestamp::from_secs(seconds));
    let day = date.get(..10).unwrap_or_default();
    html! { time datetime=(date) title=(date) { (day) } }
}

/// Returns the page of one repository.
pub fn repository(
    frame: &Frame,
    service: &ServiceIdentity,
    page_of: &RepositoryPage<'_>,
    secure: bool,
    web_client: &str,
) -> Page {
    let repo = page_of.repo;
    let clone = service.repo_url(repo, secure);
    let title = page_of.announcement.and_then(|a| a.name.as_deref());
    let title = title
        .filter(|name| !name.is_empty())
        .unwrap_or(repo.identifier.as_str());
    let nostr_path = nostr_path(service, repo);
    let title = shown(title);
    let client = web_client
        .split_once("://")
        .map_or(web_client, |(_, host)| host);
    Page::new(
        &title,
        frame,
        html! {
            h1 { (title) }
            @if let Some(description) = page_of.announcement.and_then(|a| a.description.as_deref()) {
                p dir="auto" { (shown(description)) }
            }
            @if page_of.announcement.is_none() {
                p { "This repository is announced, and nothing was pushed to it yet." }
            }
            h2 { "Clone" }
            pre { "git clone " (clone) }
            p { "or, with a client that speaks nostr:" }
            pre { "git clone nostr://" (nostr_path) }
            p { a href=(format!("{web_client}/{nostr_path}")) { "Issues, pull requests and code at " (client) } }
            h2 { "Branches and tags" }
            p { (format_count(page_of.branches, "branch", "branches")) ", " (format_count(page_of.tags, "tag", "tags"))
                @if let Some(head) = page_of.head {
                    "; " code { (head.as_str().trim_start_matches("refs/heads/")) } " is the default branch"
                }
                "."
            }
            p { "Owner: " code { (npub(&repo.owner)) } }
            @if let Some(announcement) = page_of.announcement {
                (other_servers(service, announcement))
            }
        },
    )
}

/// Returns the path of a repository in addresses of nostr: below `nostr://`, and at web clients.
fn nostr_path(service: &ServiceIdentity, repo: &RepoId) -> String {
    let path = service.repo_path(repo);
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".git").unwrap_or(name);
    let relay = service.to_string().replace('/', "%2F");
    format!("{}/{relay}/{name}", npub(&repo.owner))
}

/// Lists the other git servers that an announcement names.
fn other_servers(service: &ServiceIdentity, announcement: &Announcement) -> Markup {
    let others = announcement
        .clone
        .iter()
        .filter(|url| !service.is_own_url(url.as_str()));
    let others: Vec<_> = others.take(MAX_OTHER_SERVERS).collect();
    html! {
        @if !others.is_empty() {
            h2 { "Also hosted at" }
            ul { @for url in others { li { code { (url) } } } }
        }
    }
}

/// Formats a number with a noun in its singular or plural.
pub fn format_count<N: fmt::Display + PartialEq + From<u8>>(
    count: N,
    one: &str,
    many: &str,
) -> String {
    let name = if count == N::from(1) { one } else { many };
    format!("{count} {name}")
}

#[cfg(test)]
mod tests {
    use grasp_core::admission::Policy;
    use nostr::key::PublicKey;

    use super::*;
    use crate::nostr::{Limits, LiveInfo};
    use crate::web::figures::RepositoryRow;

    fn frame() -> Frame {
        Frame::new("/", "us", &Branding::default())
    }

    fn repo_id(name: &str) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([7; 32]), name.parse().unwrap())
    }

    #[test]
    fn values_are_escaped() {
        let repo = repo_id("<script>alert(1)<");
        let page_of = RepositoryPage {
            repo: &repo,
            announcement: None,
            head: None,
            branches: 0,
            tags: 0,
        };
        let us = "us.example".parse().unwrap();
        let page = repository(&frame(), &us, &page_of, true, "https://client.example").html();
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"));
        assert!(!landing_page("<b>", "\"><i>", false, &[], 0).contains("<i>"));
    }

    fn landing_page(
        name: &str,
        description: &str,
        secure: bool,
        repositories: &[RepositoryRow],
        now: u64,
    ) -> String {
        let (name, description) = (name.into(), description.into());
        let config = Config {
            service: "us.example".parse().unwrap(),
            secure,
            info: LiveInfo::default(),
            limits: Limits::default(),
            trusted_proxies: Vec::new(),
            node_key: None,
            pages: PageSettings::default(),
            private: None,
            policy: Policy::new("us.example".parse().unwrap()).into(),
        };
        let info = RelayInfo {
            name,
            description,
            ..RelayInfo::default()
        };
        landing(
            &frame(),
            &config,
            &info,
            &RepositoryList::new(repositories.to_vec(), false),
            None,
            now,
        )
        .html()
    }

    #[test]
    fn text_cannot_turn_the_direction_of_the_page() {
        assert_eq!(shown("a\u{202e}gpj.exe\u{2066}\0b"), "agpj.exeb");
        assert_eq!(shown("שלום 🦀"), "שלום 🦀");
    }

    #[test]
    fn push_instructions_name_the_public_address() {
        let page = landing_page("us", "", true, &[], 0);
        assert!(
            page.contains("grasp push --server https://us.example<"),
            "{page}"
        );
        assert!(page.contains("relays  wss://us.example<"), "{page}");
        let page = landing_page("us", "", false, &[], 0);
        assert!(
            page.contains("clone   http://us.example/&lt;your npub&gt;"),
            "{page}"
        );
    }

    #[test]
    fn repositories_are_listed_with_link_and_last_activity() {
        let row = RepositoryRow {
            name: "x".repeat(100),
            path: "/npub1x/y.git".into(),
            active_at: 100,
            ..RepositoryRow::default()
        };
        let page = landing_page("us", "", false, &[row], 220);
        assert!(
            page.contains("href=\"/npub1x/y.git\"") && page.contains("2 minutes ago"),
            "{page}"
        );
        assert!(page.contains(&format!("{}…<", "x".repeat(80))));
    }

    #[test]
    fn repositories_are_listed_with_their_owner() {
        let row = RepositoryRow {
            owner: format!("npub1{}", "q".repeat(58)),
            ..RepositoryRow::default()
        };
        let page = landing_page("us", "", false, &[row], 0);
        assert!(page.contains(">npub1qqqqqqq…<"), "{page}");
    }

    #[test]
    fn the_number_of_repositories_is_shown_only_if_all_were_counted() {
        let table = |is_cut| {
            repository_table(
                "/",
                &RepositoryList::new(vec![RepositoryRow::default()], is_cut),
                0,
            )
            .0
        };
        assert!(
            table(false).contains("1 hosted, the latest active first"),
            "{}",
            table(false)
        );
        assert!(table(true).contains("The 1 latest announced, the latest active first"));
        assert!(!table(true).contains("hosted"));
    }

    #[test]
    fn the_clone_command_has_the_public_address() {
        let service: ServiceIdentity = "us.example:8443/git".parse().unwrap();
        let repo = repo_id("my repo");
        let page_of = RepositoryPage {
            repo: &repo,
            announcement: None,
            head: None,
            branches: 1,
            tags: 2,
        };
        let page = repository(
            &frame(),
            &service,
            &page_of,
            false,
            "https://client.example",
        )
        .html();
        let url = format!(
            "http://us.example:8443/git/{}/my%20repo.git",
            npub(&repo.owner)
        );
        assert!(page.contains(&format!("git clone {url}")), "{page}");
        assert!(service.serves(&url.parse().unwrap(), &repo));
    }
}
