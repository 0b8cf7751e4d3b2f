//! The events that exist: repositories, and the issues about them, as numbers.

use std::collections::HashMap;

use grasp_core::nostr::event::{Event, EventId, Signature, Tag};
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_core::nostr::key::PublicKey;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{IndexChange, SyncLevel};
use grasp_core::{RelayUrl, RepoId, kinds};
use grasp_sync::engine::Row;

use crate::setup::version;
use crate::sim::START;
use crate::sim::chance::Chance;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// The announcement of a repository.
    Repo(usize),
    /// An issue.
    Root(usize),
}

pub(super) fn url(n: usize) -> RelayUrl {
    format!("wss://r{n}.example").parse().unwrap()
}

pub(super) struct Facts {
    repos: Vec<(RepoId, EventId)>,
    roots: Vec<(usize, Timestamp, EventId)>,
    /// Issues by repository.
    by_repo: Vec<Vec<usize>>,
    by_id: HashMap<EventId, Item>,
    by_name: HashMap<String, usize>,
    relays: usize,
    chance: Chance,
}

impl Facts {
    pub(super) fn new(repos: usize, roots: usize, relays: usize) -> Self {
        let chance = Chance::seeded(5);
        let mut facts = Self {
            repos: Vec::new(),
            roots: Vec::new(),
            by_repo: vec![Vec::new(); repos],
            by_id: HashMap::new(),
            by_name: HashMap::new(),
            relays,
            chance,
        };
        for n in 0..repos {
            let owner = PublicKey::from_byte_array(facts.chance.bytes());
            let repo = RepoId::new(owner, format!("repo-{n}").parse().unwrap());
            let id = EventId::from_byte_array(facts.chance.bytes());
            facts.by_name.insert(repo.to_string(), n);
            facts.by_id.insert(id, Item::Repo(n));
            facts.repos.push((repo, id));
        }
        let years = 2 * 365 * 24 * 60 * 60;
        for n in 0..roots {
            let at = START - 1 - facts.chance.within(0, years);
            facts.add_root(n % repos, at);
        }
        facts
    }

    pub(super) fn add_root(&mut self, repo: usize, at: u64) -> usize {
        let (n, id) = (
            self.roots.len(),
            EventId::from_byte_array(self.chance.bytes()),
        );
        self.roots.push((repo, Timestamp::from_secs(at), id));
        self.by_repo[repo].push(n);
        self.by_id.insert(id, Item::Root(n));
        n
    }

    pub(super) fn repo(&self, n: usize) -> &RepoId {
        &self.repos[n].0
    }

    pub(super) fn repos(&self) -> usize {
        self.repos.len()
    }

    pub(super) fn repo_of(&self, root: usize) -> usize {
        self.roots[root].0
    }

    pub(super) fn find(&self, id: &EventId) -> Option<Item> {
        self.by_id.get(id).copied()
    }

    /// Returns the two other relays that a repository names.
    pub(super) fn relays_of(&self, repo: usize) -> [usize; 2] {
        [
            repo % self.relays,
            (repo + 1 + repo / self.relays) % self.relays,
        ]
    }

    pub(super) fn row(&self, item: Item) -> Row {
        match item {
            Item::Repo(n) => Row {
                at: Timestamp::from_secs(START - 500),
                id: self.repos[n].1,
            },
            Item::Root(n) => Row {
                at: self.roots[n].1,
                id: self.roots[n].2,
            },
        }
    }

    pub(super) fn announced(&self, n: usize, level: SyncLevel) -> IndexChange {
        let relays = self.relays_of(n).into_iter().map(url).collect();
        IndexChange::Announced {
            repo: self.repos[n].0.clone(),
            version: version(),
            relays,
            level,
        }
    }

    /// Returns a complete issue.
    pub(super) fn issue(&self, n: usize) -> Event {
        let (repo, at, id) = self.roots[n];
        let tag = Tag::parse(["a".to_owned(), self.repos[repo].0.to_string()]).unwrap();
        let sig = Signature::from_slice(&[0; 64]).unwrap();
        let author = PublicKey::from_byte_array([7; 32]);
        Event::new(id, author, at, kinds::ISSUE, vec![tag], String::new(), sig)
    }

    /// Returns which of these events match a filter, ignoring its window.
    pub(super) fn matching(&self, filter: &Filter, has: impl Fn(usize) -> bool) -> Vec<Item> {
        if let Some(ids) = &filter.ids {
            return ids.iter().filter_map(|id| self.find(id)).collect();
        }
        let of_repo = |n: &usize| self.by_repo[*n].iter().map(|root| Item::Root(*root));
        let theirs = || (0..self.repos()).filter(|n| has(*n));
        match (filter.generic_tags.iter().next(), &filter.kinds) {
            (None, Some(_)) => theirs().map(Item::Repo).collect(),
            (None, None) => theirs()
                .flat_map(|n| of_repo(&n).chain([Item::Repo(n)]))
                .collect(),
            (Some((&SingleLetterTag::LOWERCASE_A, names)), _) => {
                let named = names.iter().filter_map(|name| self.by_name.get(name));
                named.filter(|n| has(**n)).flat_map(of_repo).collect()
            }
            // No thread has replies.
            (Some(_), _) => Vec::new(),
        }
    }

    /// Returns whether an issue matches.
    pub(super) fn matches(&self, filter: &Filter, root: usize) -> bool {
        let is_after = filter.since.is_none_or(|since| self.roots[root].1 >= since);
        let name = || self.repos[self.repo_of(root)].0.to_string();
        is_after
            && match (
                filter.generic_tags.iter().next(),
                &filter.kinds,
                &filter.ids,
            ) {
                (None, None, None) => true,
                (Some((&SingleLetterTag::LOWERCASE_A, names)), _, _) => names.contains(&name()),
                _ => false,
            }
    }
}
