//! Lists of repositories: those of an owner, those that are searched for, and help where nothing is.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bitcoin_hashes::sha256;
use maud::{Markup, html};
use nostr::key::PublicKey;
use nostr::nips::nip19::FromBech32 as _;
use percent_encoding::percent_decode_str;

use super::answer::busy;
use super::{Page, PageError, PageResult, Show, Site, Visitor, Work};
use crate::web::encoded::{Caching, has_tag, not_modified};
use crate::web::figures::RepositoryRow;
use crate::web::frame::Frame;
use crate::web::names::Names;
use crate::web::{self, RepositoryList, Search, npub, npub_start, repository_rows, shown};

/// Seconds after which the ages in a list are written anew.
pub(crate) const AGES_CHANGE_AFTER: u64 = 60;

impl Site {
    /// Answers for a path below the mount where no repository is: with the owner's repositories, or 404 with help.
    pub(super) async fn not_found(&self, path: &str, visitor: &Visitor) -> Response {
        if self.settings.show == Show::Off {
            return (StatusCode::NOT_FOUND, "not found\n").into_response();
        }
        let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
        let path = path.trim_start_matches('/');
        let (owner, name) = path.split_once('/').unwrap_or((path, ""));
        let name = Some(name).filter(|name| !name.is_empty());
        match self.guess(owner, name, visitor).await {
            Ok(response) => response,
            Err(error) if name.is_none() && PublicKey::from_bech32(owner).is_ok() => {
                self.note_refusal("owner", &error);
                busy(&self.frame, None)
            }
            // That nothing is there can be said without help, too.
            Err(error) => {
                self.note_refusal("help", &error);
                (StatusCode::NOT_FOUND, "not found\n").into_response()
            }
        }
    }

    async fn guess(
        &self,
        owner: &str,
        name: Option<&str>,
        visitor: &Visitor,
    ) -> Result<Response, PageError> {
        let work = self.begin(visitor).await?;
        let began = self.host.clock.now().mono;
        let key = PublicKey::from_bech32(owner).ok();
        let owned = match key {
            Some(key) => self.listing.of_owner(key).await?,
            None => RepositoryList::default(),
        };
        let list = self.listing.rows().await?;
        work.charge(self.host.clock.now().mono - began);
        if let Some(key) = key.filter(|_| name.is_none() && !owned.rows.is_empty()) {
            return self.owner(key, owned, &work, visitor).await;
        }
        let page = NoPage {
            frame: self.frame.clone(),
            owner: owner.to_owned(),
            name: name.map(str::to_owned),
            owned,
            list,
        };
        let encoded = work.run(move || page.page().encode(None)).await?;
        self.count("help", PageResult::Made);
        self.send_made(&encoded, &work, visitor).await
    }

    /// Returns the page of an owner.
    async fn owner(
        &self,
        key: PublicKey,
        owned: RepositoryList,
        work: &Work,
        visitor: &Visitor,
    ) -> Result<Response, PageError> {
        let unix = self.host.clock.now().unix;
        let names = Names::read(&*self.host.store, unix, BTreeSet::from([key])).await?;
        let name = names.get(&key).map_or_else(|| npub_start(&key), shown);
        let hash = sha256::Hash::hash(name.as_bytes()).to_string();
        let hash = hash.get(..8).unwrap_or_default();
        let age = unix.as_secs() / AGES_CHANGE_AFTER;
        let tag = format!("{}-{}-{hash}-{age}", self.stamp, owned.version);
        if has_tag(&visitor.headers, &tag) {
            self.count("owner", PageResult::NotModified);
            return Ok(not_modified(&tag, Caching::Revalidate));
        }
        let owner = npub(&key);
        let content = html! {
            h1 { "Repositories of " bdi { (name) } }
            p { code { (owner) } }
            (repository_rows(self.frame.root(), &owned, unix.as_secs()))
            p { a href=(format!("{}/{owner}", self.settings.web_client)) rel="noopener" { "This owner in a web client" } }
        };
        let page = Page::new(format!("Repositories of {name}"), &self.frame, content);
        let encoded = work.run(move || page.encode(Some(tag))).await?;
        self.count("owner", PageResult::Made);
        self.send_made(&encoded, work, visitor).await
    }

    /// Answers a search over the list of repositories.
    pub(super) async fn search(&self, search: Search, visitor: &Visitor) -> Response {
        match self.try_search(search, visitor).await {
            Ok(response) => response,
            Err(error) => {
                self.note_refusal("search", &error);
                busy(&self.frame, None)
            }
        }
    }

    async fn try_search(&self, search: Search, visitor: &Visitor) -> Result<Response, PageError> {
        let list = self.listing.rows().await?;
        let now = self.host.clock.now().unix.as_secs();
        let age = now / AGES_CHANGE_AFTER;
        let info = self.config.info.now();
        let tag = format!("{}-{}-{}-{age}", self.stamp, info.tag(), list.version);
        if has_tag(&visitor.headers, &tag) {
            self.count("search", PageResult::NotModified);
            return Ok(not_modified(&tag, Caching::Revalidate));
        }
        let key = format!("search {}", search.text);
        if let Some(page) = self.kept(&key, &tag) {
            self.count("search", PageResult::Kept);
            return self.send(&page, visitor).await;
        }
        let work = self.begin(visitor).await?;
        let frame = self.frame.clone();
        let config = self.config.clone();
        let made = work.run(move || {
            let found = search.of_list(&list);
            let page = web::landing(&frame, &config, &info, &found, Some(&search), now);
            page.without_index().encode(Some(tag))
        });
        let encoded = made.await?;
        self.cache().insert(key, encoded.clone());
        self.count("search", PageResult::Made);
        self.send_made(&encoded, &work, visitor).await
    }
}

/// What the page of an address follows from where nothing is.
struct NoPage {
    frame: Frame,
    owner: String,
    name: Option<String>,
    owned: RepositoryList,
    list: Arc<RepositoryList>,
}

impl NoPage {
    fn page(&self) -> Page {
        let meant = self.name.as_deref().unwrap_or(&self.owner);
        let is_meant = |row: &&RepositoryRow| is_similar(&row.identifier, first_segment(meant));
        let named: Vec<&RepositoryRow> = self.list.rows.iter().filter(is_meant).collect();
        let owned: Vec<&RepositoryRow> = self.owned.rows.iter().collect();
        let content = html! {
            h1 { "Not found" }
            p { (reason(&self.owner, self.name.as_deref(), !owned.is_empty())) }
            (suggestions("Repositories of this owner", &owned))
            (suggestions("Repositories with such a name", &named))
            p { "The " a href=(self.frame.root()) { "list of repositories" } " has all that this server hosts." }
        };
        Page::new("Not found", &self.frame, content).with_status(StatusCode::NOT_FOUND)
    }
}

fn first_segment(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Repositories that are suggested at most.
const MAX_SUGGESTIONS: usize = 20;

fn suggestions(title: &str, rows: &[&RepositoryRow]) -> Markup {
    html! {
        @if !rows.is_empty() {
            h2 { (title) }
            ul {
                @for row in rows.iter().take(MAX_SUGGESTIONS) {
                    li { a href=(row.path) { bdi { (shown(&row.identifier)) } } " by " code { (row.owner) } }
                }
            }
        }
    }
}

/// Returns what is wrong with an address, as far as that can be said.
fn reason(owner: &str, name: Option<&str>, has_repositories: bool) -> Markup {
    let is_key = owner.starts_with("npub1");
    let is_hex = owner.len() == 64 && owner.bytes().all(|byte| byte.is_ascii_hexdigit());
    html! {
        @if is_hex {
            "Repositories are at " code { "/<npub>/<name>.git" } ", and " code { (owner) }
            " is a key in hex. Write it as " code { "npub1…" } "."
        } @else if is_key && has_repositories {
            "This server has repositories of that owner, and nothing at this address."
        } @else if is_key && name.is_some() {
            "No repository of this name and owner is announced at this server."
        } @else if is_key {
            "This server has no repository of that owner."
        } @else {
            "Nothing is at this address. Repositories are at " code { "/<npub>/<name>.git" } "."
        }
    }
}

/// Returns whether a name could have been meant: the same but for case, punctuation and `.git`.
fn is_similar(identifier: &str, given: &str) -> bool {
    let plain = |text: &str| -> String {
        let text = text.strip_suffix(".git").unwrap_or(text).to_lowercase();
        text.chars().filter(|c| c.is_alphanumeric()).collect()
    };
    let given = plain(given);
    !given.is_empty() && plain(identifier) == given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_similar_but_for_case_and_punctuation() {
        assert!(is_similar("My Repo", "my-repo.git") && is_similar("übung", "Übung"));
        assert!(!is_similar("grasp", "gras") && !is_similar("--", ".git"));
    }

    #[test]
    fn a_key_in_hex_is_named_as_the_reason() {
        let text = reason(&"ab".repeat(32), None, false).0;
        assert!(text.contains("Write it as"), "{text}");
        assert!(!reason("<script>", None, false).0.contains("<script>"));
    }
}
