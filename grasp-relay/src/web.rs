//! Web pages: the landing page, a repository, the status of the server, and not found.
//!
//! Templates escape all values; pages load nothing from other hosts. Only the status page has a script, and it shows the
//! same without it.

pub mod figures;
mod repositories;
mod status;

use std::fmt;

use grasp_core::nip34::Announcement;
use grasp_core::service::npub;
use grasp_core::{RefName, RepoId, ServiceIdentity};
use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use self::repositories::{Listing, RepositoryList};
pub use self::status::{format_age, format_bytes, format_duration, status};
use crate::nostr::RelayInfo;
use crate::server::Config;

const STYLE: &str = include_str!("web/style.css");

/// Allows only the styles and scripts in the page itself, and requests to this server.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// A web client for nostr repositories.
const WEB_CLIENT: &str = "https://gitworkshop.dev";

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
pub fn landing(config: &Config, repositories: &RepositoryList, now: u64) -> String {
    let Config { service, secure, info: RelayInfo { name, description, .. }, .. } = config;
    let s = if *secure { "s" } else { "" };
    page(
        name,
        &root(service),
        html! {
            h1 { (name) }
            p { (description) }
            p {
                "A push to this GRASP server is accepted exactly when a maintainer of the repository has signed for it."
            }
            h2 { "Repositories" }
            (repository_table(repositories, now))
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

fn repository_table(RepositoryList { rows, is_cut }: &RepositoryList, now: u64) -> Markup {
    if rows.is_empty() {
        return html! { p { "None yet." } };
    }
    html! {
        table {
            caption {
                @if *is_cut { "The " (rows.len()) " latest announced" } @else { (rows.len()) " hosted" }
                ", the latest active first"
            }
            thead {
                tr {
                    th scope="col" { "name" } th scope="col" { "description" } th scope="col" { "owner" }
                    th scope="col" { "last active" }
                }
            }
            tbody {
                @for repo in rows.iter().take(MAX_REPOSITORIES_SHOWN) {
                    tr {
                        td data-label="name" { a href=(repo.path) { (shortened(&repo.name, 80)) } }
                        td data-label="description" { (shortened(&repo.description, 200)) }
                        td data-label="owner" class="key" title=(repo.owner) { (shortened(&repo.owner, 12)) }
                        td data-label="last active" class="time" { (format_age(now, Some(repo.active_at))) }
                    }
                }
            }
        }
        @if rows.len() > MAX_REPOSITORIES_SHOWN { p class="small" { "The first " (MAX_REPOSITORIES_SHOWN) " are shown." } }
    }
}

/// Cuts a text to this many characters.
fn shortened(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns the path of the landing page.
fn root(service: &ServiceIdentity) -> String {
    format!("{}/", service.mount_path())
}

/// Returns the page of one repository.
pub fn repository(service: &ServiceIdentity, page_of: &RepositoryPage<'_>, secure: bool) -> String {
    let repo = page_of.repo;
    let clone = service.repo_url(repo, secure);
    let title = page_of.announcement.and_then(|a| a.name.as_deref());
    let title = title.filter(|name| !name.is_empty()).unwrap_or(repo.identifier.as_str());
    let encoded = service.repo_path(repo);
    let name = encoded.rsplit('/').next().and_then(|last| last.strip_suffix(".git")).unwrap_or("");
    let nostr_path =
        format!("{}/{}/{name}", npub(&repo.owner), service.to_string().replace('/', "%2F"));
    page(
        title,
        &root(service),
        html! {
            h1 { (title) }
            @if let Some(description) = page_of.announcement.and_then(|a| a.description.as_deref()) {
                p { (description) }
            }
            @if page_of.announcement.is_none() {
                p { "This repository is announced, and nothing was pushed to it yet." }
            }
            h2 { "Clone" }
            pre { "git clone " (clone) }
            p { "or, with a client that speaks nostr:" }
            pre { "git clone nostr://" (nostr_path) }
            p { a href=(format!("{WEB_CLIENT}/{nostr_path}")) { "Issues, pull requests and code at gitworkshop.dev" } }
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

/// Lists the other git servers that an announcement names.
fn other_servers(service: &ServiceIdentity, announcement: &Announcement) -> Markup {
    let others = announcement.clone.iter().filter(|url| !service.is_own_url(url.as_str()));
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

/// Returns the page for an unknown address.
pub fn not_found(service: &ServiceIdentity) -> String {
    page(
        "Not found",
        &root(service),
        html! {
            h1 { "Not found" }
            p { "Nothing is at this address. Repositories are at " code { "/<npub>/<name>.git" } "." }
        },
    )
}

fn page(title: &str, root: &str, body: Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(CONTENT_SECURITY_POLICY);
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                nav aria-label="Pages" {
                    a href=(root) { "Repositories" }
                    a href=(format!("{root}status")) { "Status" }
                }
                main { (body) }
                footer { "grasp " (env!("CARGO_PKG_VERSION")) }
            }
        }
    }
    .into_string()
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;
    use crate::nostr::Limits;
    use crate::web::figures::RepoRow;

    fn repo_id(name: &str) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([7; 32]), name.parse().unwrap())
    }

    #[test]
    fn values_are_escaped() {
        let repo = repo_id("<script>alert(1)<");
        let page_of =
            RepositoryPage { repo: &repo, announcement: None, head: None, branches: 0, tags: 0 };
        let page = repository(&"us.example".parse().unwrap(), &page_of, true);
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"));
        assert!(!landing_page("<b>", "\"><i>", false, &[], 0).contains("<i>"));
    }

    fn landing_page(
        name: &str,
        description: &str,
        secure: bool,
        repositories: &[RepoRow],
        now: u64,
    ) -> String {
        let (name, description) = (name.into(), description.into());
        let config = Config {
            service: "us.example".parse().unwrap(),
            secure,
            info: RelayInfo { name, description, ..RelayInfo::default() },
            limits: Limits::default(),
            trusted_proxies: Vec::new(),
            node_key: None,
        };
        landing(&config, &RepositoryList { rows: repositories.to_vec(), is_cut: false }, now)
    }

    #[test]
    fn push_instructions_name_the_public_address() {
        let page = landing_page("us", "", true, &[], 0);
        assert!(page.contains("grasp push --server https://us.example<"), "{page}");
        assert!(page.contains("relays  wss://us.example<"), "{page}");
        let page = landing_page("us", "", false, &[], 0);
        assert!(page.contains("clone   http://us.example/&lt;your npub&gt;"), "{page}");
    }

    #[test]
    fn repositories_are_listed_with_link_and_last_activity() {
        let row = RepoRow {
            name: "x".repeat(100),
            path: "/npub1x/y.git".into(),
            active_at: 100,
            ..RepoRow::default()
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
        let row = RepoRow { owner: format!("npub1{}", "q".repeat(58)), ..RepoRow::default() };
        let page = landing_page("us", "", false, &[row], 0);
        assert!(page.contains(">npub1qqqqqqq…<"), "{page}");
    }

    #[test]
    fn the_number_of_repositories_is_shown_only_if_all_were_counted() {
        let table = |is_cut| {
            repository_table(&RepositoryList { rows: vec![RepoRow::default()], is_cut }, 0).0
        };
        assert!(table(false).contains("1 hosted, the latest active first"), "{}", table(false));
        assert!(table(true).contains("The 1 latest announced, the latest active first"));
        assert!(!table(true).contains("hosted"));
    }

    #[test]
    fn the_not_found_page_links_below_the_mount_path() {
        let page = not_found(&"us.example/git".parse().unwrap());
        assert!(page.contains("href=\"/git/\"") && page.contains("href=\"/git/status\""), "{page}");
    }

    #[test]
    fn the_clone_command_has_the_public_address() {
        let service: ServiceIdentity = "us.example:8443/git".parse().unwrap();
        let repo = repo_id("my repo");
        let page_of =
            RepositoryPage { repo: &repo, announcement: None, head: None, branches: 1, tags: 2 };
        let page = repository(&service, &page_of, false);
        let url = format!("http://us.example:8443/git/{}/my%20repo.git", npub(&repo.owner));
        assert!(page.contains(&format!("git clone {url}")), "{page}");
        assert!(service.serves(&url.parse().unwrap(), &repo));
    }
}
