//! The parts of a relay's history, in order: repositories whose maintainers read there, then threads.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::key::PublicKey;
use grasp_core::outbox::{People, RelayList, ThreadNo};
use grasp_core::sync::{
    RequestBudget, RootId, tagged_one_of_our_repo_event_filters,
    tagged_one_of_our_root_event_filters, tagged_with_a_coordinate_filters,
};
use grasp_core::{RelayUrl, RepoId};

use super::authors::Authors;

/// Repositories or events of one group. A thread is not divided, so that a group may have more events.
const GROUP: usize = 100;

/// The last item that was asked for in a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CycleCursor {
    Repo(RepoId),
    /// The last repository.
    Repos,
    Thread(ThreadNo),
}

/// All that groups are made of.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) people: &'a People,
    pub(super) authors: &'a Authors,
    pub(super) fallback: &'a RelayList,
}

/// The events of a thread that are asked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Root,
    All,
}

impl Scope<'_> {
    /// Returns the filters of the group after the cursor, or of the first, and the cursor after it; `None` at the end.
    pub(super) fn next(
        &self,
        relay: &RelayUrl,
        cursor: Option<&CycleCursor>,
    ) -> Option<(Vec<Filter>, CycleCursor)> {
        let after = match cursor {
            None => None,
            Some(CycleCursor::Repo(repo)) => Some(repo),
            Some(CycleCursor::Repos) => return self.next_threads(relay, None),
            Some(CycleCursor::Thread(last)) => return self.next_threads(relay, Some(*last)),
        };
        let repos = self.next_repos(relay, after);
        let Some(last) = repos.last() else {
            return self.next_threads(relay, None);
        };
        let budget = RequestBudget::default();
        let filters = tagged_one_of_our_repo_event_filters(repos.iter().copied(), None, &budget);
        let cursor = if repos.len() < GROUP {
            CycleCursor::Repos
        } else {
            CycleCursor::Repo((*last).clone())
        };
        Some((filters, cursor))
    }

    /// Returns the next repositories of maintainers who read at the relay.
    fn next_repos(&self, relay: &RelayUrl, after: Option<&RepoId>) -> BTreeSet<&RepoId> {
        let mut repos = BTreeSet::new();
        for (author, _) in self.authors.eligible() {
            if !self.reads_at(author, relay) {
                continue;
            }
            for repo in self.people.maintained_by(author) {
                if Some(repo) > after {
                    repos.insert(repo);
                }
                if repos.len() > GROUP {
                    repos.pop_last();
                }
            }
        }
        repos
    }

    fn next_threads(
        &self,
        relay: &RelayUrl,
        after: Option<ThreadNo>,
    ) -> Option<(Vec<Filter>, CycleCursor)> {
        let threads = self.threads(relay, after);
        let mut ids: Vec<RootId> = Vec::new();
        let mut coordinates = BTreeSet::new();
        let mut last = None;
        for (thread, part) in threads {
            if ids.len() >= GROUP {
                break;
            }
            last = Some(thread);
            ids.extend(self.people.root(thread).map(RootId::from));
            if part == Part::All {
                ids.extend(self.people.descendants(thread).map(RootId::from));
                coordinates.extend(self.people.coordinates(thread));
            }
        }
        let budget = RequestBudget::default();
        let mut filters = tagged_one_of_our_root_event_filters(&ids, None, &budget);
        filters.extend(tagged_with_a_coordinate_filters(coordinates, &budget));
        Some((filters, CycleCursor::Thread(last?)))
    }

    /// Returns the next threads: those that authors take part in who may have written there, and the roots of
    /// repositories whose maintainers read there.
    fn threads(&self, relay: &RelayUrl, after: Option<ThreadNo>) -> BTreeMap<ThreadNo, Part> {
        let mut threads = BTreeMap::new();
        let mut repos = BTreeSet::new();
        for (author, _) in self.authors.eligible() {
            if self.takes_part_at(author, relay) {
                for thread in self.people.threads_of(author) {
                    if Some(thread) > after {
                        insert(&mut threads, thread, Part::All);
                    }
                }
            }
            if self.reads_at(author, relay) {
                repos.extend(self.people.maintained_by(author));
            }
        }
        for repo in repos {
            for thread in self.people.threads_of_repo(repo, after).take(GROUP) {
                insert(&mut threads, thread, Part::Root);
            }
        }
        threads
    }

    fn takes_part_at(&self, author: &PublicKey, relay: &RelayUrl) -> bool {
        let list = self.relay_list(author);
        list.is_some_and(|one| one.of_participant().any(|named| named == relay))
    }

    fn reads_at(&self, author: &PublicKey, relay: &RelayUrl) -> bool {
        let list = self.relay_list(author);
        list.is_some_and(|one| one.read.contains(relay))
    }

    /// Returns the relays that count as those of an author.
    pub(super) fn relay_list(&self, author: &PublicKey) -> Option<&RelayList> {
        let author = self.authors.get(author)?;
        let fallback = author.uses_fallback.then_some(self.fallback);
        author.relay_list().or(fallback)
    }
}

/// Adds a thread, of which the first are kept.
fn insert(threads: &mut BTreeMap<ThreadNo, Part>, thread: ThreadNo, part: Part) {
    let known = threads.entry(thread).or_insert(part);
    *known = part.max(*known);
    if threads.len() > GROUP {
        threads.pop_last();
    }
}
