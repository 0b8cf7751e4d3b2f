//! The search over the list of repositories.

use std::collections::BTreeSet;

use nostr::event::EventId;

use super::RepositoryList;
use super::figures::RepositoryRow;

/// The words of one search.
const MAX_WORDS: usize = 8;

/// The characters of a search that are read.
const MAX_CHARS: usize = 200;

/// The words that somebody searches for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Search {
    /// As it was written.
    pub(crate) text: String,
    words: Vec<String>,
}

impl Search {
    /// Reads a search from a query such as `q=a+b`; `None` if it has no word.
    pub(crate) fn of_query(query: &str) -> Option<Self> {
        let mut pairs = url::form_urlencoded::parse(query.as_bytes());
        let (_, text) = pairs.find(|(name, _)| name == "q")?;
        let text: String = text.chars().take(MAX_CHARS).collect();
        let words = text.split_whitespace().take(MAX_WORDS);
        let words: Vec<String> = words.map(str::to_lowercase).collect();
        (!words.is_empty()).then_some(Self { text, words })
    }

    /// Reads the search of a filter (NIP-50). Words such as `language:en` are for relays that know them, and mean nothing
    /// here.
    pub(crate) fn of_filter(text: &str) -> Self {
        let text: String = text.chars().take(MAX_CHARS).collect();
        let is_word = |word: &&str| !is_extension(word);
        let words = text.split_whitespace().filter(is_word).take(MAX_WORDS);
        let words = words.map(str::to_lowercase).collect();
        Self { text, words }
    }

    /// Returns the announcements of the repositories that [`of_list`](Self::of_list) returns.
    pub(crate) fn announcements(&self, list: &RepositoryList) -> BTreeSet<EventId> {
        let found = self.of_list(list).rows;
        found.iter().filter_map(|row| row.announcement).collect()
    }

    /// Returns the repositories that have all words in name, identifier, description, topics or owner. Those that have
    /// them in the name come first, otherwise the order stays.
    pub(crate) fn of_list(&self, list: &RepositoryList) -> RepositoryList {
        let mut named = Vec::new();
        let mut others = Vec::new();
        for row in &list.rows {
            let name = format!("{} {}", row.name, row.identifier).to_lowercase();
            if self.words.iter().all(|word| name.contains(word)) {
                named.push(row.clone());
                continue;
            }
            let all = format!("{name} {}", more(row)).to_lowercase();
            if self.words.iter().all(|word| all.contains(word)) {
                others.push(row.clone());
            }
        }
        named.extend(others);
        RepositoryList::new(named, list.is_cut)
    }
}

/// Returns whether a word is a key and a value, as in `language:en`. An address is none.
fn is_extension(word: &str) -> bool {
    let key = word.split_once(':').map(|(key, _)| key);
    let is_key = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase());
    key.is_some_and(is_key) && !word.contains("://")
}

fn more(row: &RepositoryRow) -> String {
    format!("{} {} {}", row.description, row.topics.join(" "), row.owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, description: &str, topics: &[&str]) -> RepositoryRow {
        RepositoryRow {
            owner: "npub1owner".into(),
            identifier: name.into(),
            name: name.into(),
            description: description.into(),
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            ..RepositoryRow::default()
        }
    }

    fn found(query: &str) -> Vec<String> {
        let rows = vec![
            row("Alpha", "a relay in Rust", &["nostr"]),
            row("relay", "something", &[]),
            row("beta", "ÜBER", &[]),
        ];
        let list = RepositoryList::new(rows, false);
        let search = Search::of_query(query).unwrap_or_default();
        let found = search.of_list(&list).rows.into_iter();
        found.map(|row| row.name).collect()
    }

    #[test]
    fn every_word_must_be_somewhere_and_names_come_first() {
        assert_eq!(found("q=relay"), ["relay", "Alpha"]);
        assert_eq!(found("q=RUST+relay"), ["Alpha"]);
        assert_eq!(found("q=nostr"), ["Alpha"]);
        assert_eq!(found("q=%C3%BCber"), ["beta"]);
        assert_eq!(found("q=owner+beta"), ["beta"]);
        assert!(found("q=nothing").is_empty());
    }

    #[test]
    fn extensions_of_the_search_of_a_filter_are_ignored() {
        let words = |text: &str| Search::of_filter(text).words;
        assert_eq!(words("Relay include:spam language:en"), ["relay"]);
        assert_eq!(
            words("wss://relay.example c++:"),
            ["wss://relay.example", "c++:"]
        );
        assert!(words("domain:x").is_empty());
        assert_eq!(words(&"a ".repeat(10_000)).len(), MAX_WORDS);
    }

    #[test]
    fn search_without_words_is_none() {
        for query in ["", "q=", "q=+++", "x=a"] {
            assert_eq!(Search::of_query(query), None, "{query}");
        }
        let long = format!("q={}", "a+".repeat(10_000));
        assert_eq!(Search::of_query(&long).unwrap().words.len(), MAX_WORDS);
    }
}
