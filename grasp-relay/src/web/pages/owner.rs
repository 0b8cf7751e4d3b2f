//! Addresses that people guess: the repositories of an owner, and help where nothing is.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use nostr::key::PublicKey;
use nostr::nips::nip19::FromBech32 as _;
use percent_encoding::percent_decode_str;

use super::{Caching, Page, Show, Site};
use crate::web::figures::RepoRow;
use crate::web::{RepositoryList, repository_rows, shown};

impl Site {
    /// Answers for a path below the mount where no repository is: with the owner's repositories, or 404 with help.
    pub(super) async fn not_found(&self, path: &str) -> Response {
        if self.settings.show == Show::Off {
            return (StatusCode::NOT_FOUND, "not found\n").into_response();
        }
        let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
        let path = path.trim_start_matches('/');
        let (owner, name) = path.split_once('/').unwrap_or((path, ""));
        let name = Some(name).filter(|name| !name.is_empty());
        let list = self.listing.rows().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the event store failed to list repositories");
            Default::default()
        });
        let owned = self.owned(owner).await;
        let owned: Vec<&RepoRow> = owned.rows.iter().collect();
        if name.is_none() && !owned.is_empty() {
            return self.owner(owner, &owned);
        }
        let named: Vec<&RepoRow> = list
            .rows
            .iter()
            .filter(|row| is_similar(&row.identifier, first_segment(name.unwrap_or(owner))))
            .collect();
        let content = html! {
            h1 { "Not found" }
            p { (reason(owner, name, !owned.is_empty())) }
            (suggestions("Repositories of this owner", &owned))
            (suggestions("Repositories with such a name", &named))
            p { "The " a href=(self.frame.root()) { "list of repositories" } " has all that this server hosts." }
        };
        Page::new("Not found", &self.frame, content)
            .with_status(StatusCode::NOT_FOUND)
            .into_response()
    }

    /// Returns the repositories of an owner; none if the text is no key.
    async fn owned(&self, owner: &str) -> RepositoryList {
        let Ok(key) = PublicKey::from_bech32(owner) else {
            return RepositoryList::default();
        };
        let owned = self.listing.of_owner(key).await;
        owned.unwrap_or_else(|error| {
            tracing::warn!(%error, "the event store failed to list the repositories of an owner");
            RepositoryList::default()
        })
    }

    /// Returns the page of an owner.
    fn owner(&self, owner: &str, rows: &[&RepoRow]) -> Response {
        let now = self.host.clock.now().unix.as_secs();
        let content = html! {
            h1 { "Repositories of " code { (owner) } }
            (repository_rows(rows, now))
            p { a href=(format!("{}/{owner}", self.settings.web_client)) rel="noopener" { "This owner in a web client" } }
        };
        Page::new(format!("Repositories of {owner}"), &self.frame, content)
            .cached(Caching::Revalidate)
            .into_response()
    }
}

fn first_segment(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Repositories that are suggested at most.
const MAX_SUGGESTIONS: usize = 20;

fn suggestions(title: &str, rows: &[&RepoRow]) -> Markup {
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
