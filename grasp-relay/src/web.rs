//! Pages for people: what this is, one repository, how the server stands, and nothing here.
//!
//! Written with a template that escapes whatever it shows, without anything from elsewhere. Only the status page has a
//! script, and shows the same without it.

pub mod figures;
mod repositories;
mod status;

use std::fmt;

use grasp_core::nip34::Announcement;
use grasp_core::service::npub;
use grasp_core::{RefName, RepoId, ServiceIdentity};
use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use self::repositories::{Listed, Listing};
pub use self::status::{ago, size, span, status};

const STYLE: &str = include_str!("web/style.css");

/// Nothing from elsewhere, nothing but what stands in the page itself.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// A web client for repositories that live on nostr.
const WEB_CLIENT: &str = "https://gitworkshop.dev";

/// What is known of a repository when its page is asked for.
#[derive(Clone, Debug)]
pub struct RepositoryPage<'a> {
    /// The repository.
    pub repo: &'a RepoId,
    /// Its announcement, once it is served.
    pub announcement: Option<&'a Announcement>,
    /// The branch that HEAD names, and how many branches and tags there are.
    pub head: Option<&'a RefName>,
    /// Branches.
    pub branches: usize,
    /// Tags.
    pub tags: usize,
}

/// Other places of a repository that its page shows.
const MOST_PLACES: usize = 16;

/// Repositories that the page at the root shows.
const SHOWN: usize = 100;

/// What the page at the root shows.
#[derive(Clone, Copy, Debug)]
pub struct LandingPage<'a> {
    /// The server's name for people.
    pub name: &'a str,
    /// What it says about itself.
    pub description: &'a str,
    /// Where it is.
    pub service: &'a ServiceIdentity,
    /// Whether it is reached through TLS.
    pub secure: bool,
    /// The repositories.
    pub repositories: &'a Listed,
    /// When this is written, in Unix time.
    pub now: u64,
}

/// The page at the root.
pub fn landing(page_of: &LandingPage<'_>) -> String {
    let LandingPage { name, description, service, secure, repositories, now } = *page_of;
    let s = if secure { "s" } else { "" };
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
            (listed(repositories, now))
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

fn listed(Listed { rows, is_cut }: &Listed, now: u64) -> Markup {
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
                    th scope="col" { "name" } th scope="col" { "what it is" } th scope="col" { "owner" }
                    th scope="col" { "last active" }
                }
            }
            tbody {
                @for repo in rows.iter().take(SHOWN) {
                    tr {
                        td data-label="name" { a href=(repo.path) { (shortened(&repo.name, 80)) } }
                        td data-label="what it is" { (shortened(&repo.description, 200)) }
                        td data-label="owner" class="key" title=(repo.owner) { (shortened(&repo.owner, 12)) }
                        td data-label="last active" class="time" { (ago(now, Some(repo.active_at))) }
                    }
                }
            }
        }
        @if rows.len() > SHOWN { p class="small" { "The first " (SHOWN) " are shown." } }
    }
}

/// As many letters of a text as a table has room for.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Where our pages begin.
fn root(service: &ServiceIdentity) -> String {
    format!("{}/", service.mount_path())
}

/// The page of one repository.
pub fn repository(service: &ServiceIdentity, page_of: &RepositoryPage<'_>, secure: bool) -> String {
    let repo = page_of.repo;
    let clone = service.repo_url(repo, secure);
    let title = page_of.announcement.and_then(|a| a.name.as_deref());
    let title = title.filter(|name| !name.is_empty()).unwrap_or(repo.identifier.as_str());
    let encoded = service.repo_path(repo);
    let name = encoded.rsplit('/').next().and_then(|last| last.strip_suffix(".git")).unwrap_or("");
    let place = format!("{}/{}/{name}", npub(&repo.owner), service.to_string().replace('/', "%2F"));
    page(
        title,
        &root(service),
        html! {
            h1 { (title) }
            @if let Some(description) = page_of.announcement.and_then(|a| a.description.as_deref()) {
                p { (description) }
            }
            @if page_of.announcement.is_none() {
                p { "This repository is announced and waits for its first push." }
            }
            h2 { "Clone" }
            pre { "git clone " (clone) }
            p { "or, with a client that speaks nostr:" }
            pre { "git clone nostr://" (place) }
            p { a href=(format!("{WEB_CLIENT}/{place}")) { "Issues, pull requests and code at gitworkshop.dev" } }
            h2 { "What is in it" }
            p { (counted(page_of.branches, "branch", "branches")) ", " (counted(page_of.tags, "tag", "tags"))
                @if let Some(head) = page_of.head {
                    "; " code { (head.as_str().trim_start_matches("refs/heads/")) } " is checked out first"
                }
                "."
            }
            p { "Owner: " code { (npub(&repo.owner)) } }
            @if let Some(announcement) = page_of.announcement {
                (elsewhere(service, announcement))
            }
        },
    )
}

/// Other servers that carry the repository, by its own account.
fn elsewhere(service: &ServiceIdentity, announcement: &Announcement) -> Markup {
    let others = announcement.clone.iter().filter(|url| !service.is_us(url.as_str()));
    let others: Vec<_> = others.take(MOST_PLACES).collect();
    html! {
        @if !others.is_empty() {
            h2 { "Also hosted at" }
            ul { @for url in others { li { code { (url) } } } }
        }
    }
}

/// A number of things, with their name.
pub fn counted<N: fmt::Display + PartialEq + From<u8>>(count: N, one: &str, many: &str) -> String {
    let name = if count == N::from(1) { one } else { many };
    format!("{count} {name}")
}

/// The page for what is not here.
pub fn not_found(service: &ServiceIdentity) -> String {
    page(
        "Not here",
        &root(service),
        html! {
            h1 { "Not here" }
            p { "Nothing is at this address. That of a repository is " code { "/<npub>/<name>.git" } "." }
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
                meta http-equiv="Content-Security-Policy" content=(POLICY);
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
    use crate::web::figures::RepoRow;

    fn of(name: &str) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([7; 32]), name.parse().unwrap())
    }

    #[test]
    fn nothing_that_people_chose_becomes_markup() {
        let repo = of("<script>alert(1)<");
        let page_of =
            RepositoryPage { repo: &repo, announcement: None, head: None, branches: 0, tags: 0 };
        let page = repository(&"us.example".parse().unwrap(), &page_of, true);
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"));
        assert!(!front("<b>", "\"><i>", false, &[], 0).contains("<i>"));
    }

    fn front(
        name: &str,
        description: &str,
        secure: bool,
        repositories: &[RepoRow],
        now: u64,
    ) -> String {
        let service = &"us.example".parse().unwrap();
        let repositories = &Listed { rows: repositories.to_vec(), is_cut: false };
        landing(&LandingPage { name, description, service, secure, repositories, now })
    }

    #[test]
    fn how_to_push_is_told_with_addresses_that_work() {
        let page = front("us", "", true, &[], 0);
        assert!(page.contains("grasp push --server https://us.example<"), "{page}");
        assert!(page.contains("relays  wss://us.example<"), "{page}");
        let page = front("us", "", false, &[], 0);
        assert!(page.contains("clone   http://us.example/&lt;your npub&gt;"), "{page}");
    }

    #[test]
    fn repositories_are_listed_with_their_page_and_their_last_activity() {
        let row = RepoRow {
            name: "x".repeat(100),
            path: "/npub1x/y.git".into(),
            active_at: 100,
            ..RepoRow::default()
        };
        let page = front("us", "", false, &[row], 220);
        assert!(
            page.contains("href=\"/npub1x/y.git\"") && page.contains("2 minutes ago"),
            "{page}"
        );
        assert!(page.contains(&format!("{}…<", "x".repeat(80))));
    }

    #[test]
    fn repositories_of_one_name_are_told_apart_by_their_owner() {
        let row = RepoRow { owner: format!("npub1{}", "q".repeat(58)), ..RepoRow::default() };
        let page = front("us", "", false, &[row], 0);
        assert!(page.contains(">npub1qqqqqqq…<"), "{page}");
    }

    #[test]
    fn how_many_are_hosted_is_said_only_if_all_were_counted() {
        let said = |is_cut| listed(&Listed { rows: vec![RepoRow::default()], is_cut }, 0).0;
        assert!(said(false).contains("1 hosted, the latest active first"), "{}", said(false));
        assert!(said(true).contains("The 1 latest announced, the latest active first"));
        assert!(!said(true).contains("hosted"));
    }

    #[test]
    fn a_page_that_is_not_here_leads_back_below_the_mount() {
        let page = not_found(&"us.example/git".parse().unwrap());
        assert!(page.contains("href=\"/git/\"") && page.contains("href=\"/git/status\""), "{page}");
    }

    #[test]
    fn the_clone_command_is_where_we_serve() {
        let service: ServiceIdentity = "us.example:8443/git".parse().unwrap();
        let repo = of("my repo");
        let page_of =
            RepositoryPage { repo: &repo, announcement: None, head: None, branches: 1, tags: 2 };
        let page = repository(&service, &page_of, false);
        let url = format!("http://us.example:8443/git/{}/my%20repo.git", npub(&repo.owner));
        assert!(page.contains(&format!("git clone {url}")), "{page}");
        assert!(service.serves(&url.parse().unwrap(), &repo));
    }
}
