//! The replies of each root, the coordinates of each repository, and those of both that came before what they name.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::RepoId;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::roots::RootId;

/// Maximum number of replies per thread that are requested by id. Events that name the root are requested anyway.
const MAX_REPLIES: usize = 500;

/// Maximum number of replies that wait for the event that they answer. Relays send new events first, so replies come
/// before their roots. Beyond it, the one that has waited longest is removed.
const MAX_WAITING_REPLIES: usize = 50_000;

/// Roots and their replies, at any depth.
#[derive(Clone, Debug, Default)]
pub(super) struct Threads {
    /// The root of each reply's thread.
    pub(super) roots: BTreeMap<RootId, RootId>,
    /// Number of replies per root.
    sizes: BTreeMap<RootId, usize>,
    /// Replies by the unknown event that they answer.
    pub(super) waiting: Waiters<RootId, RootId, (), MAX_WAITING_REPLIES>,
}

impl Threads {
    /// Adds a reply to a thread; `false` if the thread is full.
    pub(super) fn add(&mut self, root: RootId, reply: RootId) -> bool {
        let size = self.sizes.entry(root).or_default();
        if *size >= MAX_REPLIES {
            return false;
        }
        *size += 1;
        self.roots.insert(reply, root);
        true
    }

    /// Removes an event. Replies to it stay, because they may still be served.
    pub(super) fn remove(&mut self, event: &RootId) {
        let Some(root) = self.roots.remove(event) else {
            return;
        };
        if let Entry::Occupied(mut size) = self.sizes.entry(root) {
            match *size.get() {
                ..=1 => _ = size.remove(),
                _ => *size.get_mut() -= 1,
            }
        }
    }
}

/// Maximum number of coordinates per repository.
pub(super) const MAX_PER_REPO: usize = 500;
/// Maximum number of repositories per coordinate.
const MAX_REPOS_PER_MEMBER: usize = 8;
/// Maximum number of coordinates, those of repositories that are not announced included.
const MAX_MEMBERS: usize = 50_000;
/// Maximum number of coordinates that wait for a member that they name. Beyond it, the author with most loses one.
const MAX_WAITING_MEMBERS: usize = 10_000;

/// The coordinates of each repository, announced or not.
#[derive(Clone, Debug, Default)]
pub(super) struct Members {
    repos: BTreeMap<Coordinate, BTreeSet<RepoId>>,
    by_repo: BTreeMap<RepoId, BTreeSet<Coordinate>>,
    /// Coordinates by the coordinate that they name and that is not a member yet, grouped by author.
    pub(super) waiting: Waiters<Coordinate, Coordinate, PublicKey, MAX_WAITING_MEMBERS>,
}

impl Members {
    /// Returns whether a coordinate is a member of any repository.
    pub(super) fn contains(&self, member: &Coordinate) -> bool {
        self.repos.contains_key(member)
    }

    pub(super) fn repos_of(&self, member: &Coordinate) -> impl Iterator<Item = &RepoId> {
        self.repos.get(member).into_iter().flatten()
    }

    pub(super) fn of(&self, repo: &RepoId) -> impl Iterator<Item = &Coordinate> {
        self.by_repo.get(repo).into_iter().flatten()
    }

    /// Adds a member to a repository; `false` if it was a member, or a limit is reached.
    pub(super) fn add(&mut self, member: &Coordinate, repo: &RepoId) -> bool {
        let is_known = self.contains(member);
        let of_repo = self.by_repo.get(repo).map_or(0, BTreeSet::len);
        let of_member = self.repos.get(member).map_or(0, BTreeSet::len);
        let is_full = of_repo >= MAX_PER_REPO || of_member >= MAX_REPOS_PER_MEMBER;
        if is_full || (!is_known && self.repos.len() >= MAX_MEMBERS) {
            return false;
        }
        self.by_repo
            .entry(repo.clone())
            .or_default()
            .insert(member.clone());
        self.repos
            .entry(member.clone())
            .or_default()
            .insert(repo.clone())
    }
}

/// Values that wait for a key, each in a group.
///
/// A client can name keys that never come, so a full collection still accepts values: the largest group loses its oldest
/// value, and of groups of the same size the one with the oldest.
#[derive(Clone, Debug)]
pub(super) struct Waiters<K, V, G, const CAPACITY: usize> {
    /// The position of each value in that order. `None` comes before every value of a key.
    values: BTreeMap<(K, Option<V>), (G, u64)>,
    /// The values of each group in order of arrival.
    order: BTreeMap<(G, u64), (K, V)>,
    sizes: BTreeMap<G, usize>,
    /// The groups by size and oldest arrival.
    rank: BTreeSet<(usize, Reverse<u64>, G)>,
    arrivals: u64,
}

impl<K, V, G, const CAPACITY: usize> Default for Waiters<K, V, G, CAPACITY> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            order: BTreeMap::new(),
            sizes: BTreeMap::new(),
            rank: BTreeSet::new(),
            arrivals: 0,
        }
    }
}

impl<K, V, G, const CAPACITY: usize> Waiters<K, V, G, CAPACITY>
where
    K: Ord + Clone,
    V: Ord + Clone,
    G: Ord + Copy,
{
    /// Adds a value that waits for a key.
    pub(super) fn add(&mut self, group: G, key: K, value: V) {
        let waiting = (key.clone(), Some(value.clone()));
        if self.values.contains_key(&waiting) {
            return;
        }
        if self.order.len() >= CAPACITY {
            self.evict();
        }
        self.arrivals += 1;
        let position = (group, self.arrivals);
        self.update_group(group, |all| {
            all.values.insert(waiting, position);
            all.order.insert(position, (key, value));
            *all.sizes.entry(group).or_default() += 1;
        });
    }

    /// Removes and returns the values that wait for a key.
    pub(super) fn take(&mut self, key: &K) -> BTreeSet<V> {
        let from = self.values.range((key.clone(), None)..);
        let waiting = from.take_while(|((one, _), _)| one == key);
        let positions: Vec<_> = waiting.map(|(_, position)| *position).collect();
        positions
            .into_iter()
            .filter_map(|position| self.remove(position))
            .collect()
    }

    fn evict(&mut self) {
        let Some((_, Reverse(oldest), group)) = self.rank.last().copied() else {
            return;
        };
        self.remove((group, oldest));
    }

    fn remove(&mut self, position: (G, u64)) -> Option<V> {
        let group = position.0;
        self.update_group(group, |all| {
            let (key, value) = all.order.remove(&position)?;
            all.values.remove(&(key, Some(value.clone())));
            if let Some(size) = all.sizes.get_mut(&group) {
                *size = size.saturating_sub(1);
                if *size == 0 {
                    all.sizes.remove(&group);
                }
            }
            Some(value)
        })
    }

    /// Changes the values of a group, and updates its rank.
    fn update_group<T>(&mut self, group: G, change: impl FnOnce(&mut Self) -> T) -> T {
        if let Some(rank) = self.rank_of(group) {
            self.rank.remove(&rank);
        }
        let changed = change(self);
        let rank = self.rank_of(group);
        self.rank.extend(rank);
        changed
    }

    fn rank_of(&self, group: G) -> Option<(usize, Reverse<u64>, G)> {
        let size = self.sizes.get(&group)?;
        let (first, _) = self.order.range((group, 0)..=(group, u64::MAX)).next()?;
        Some((*size, Reverse(first.1), group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_once() {
        let mut waiters = Waiters::<_, _, _, 9>::default();
        for value in ['a', 'b', 'a'] {
            waiters.add(0, "key", value);
        }
        waiters.add(0, "other", 'c');
        assert_eq!(waiters.take(&"key"), ['a', 'b'].into());
        assert!(waiters.take(&"key").is_empty());
        assert_eq!(
            (waiters.order.len(), waiters.rank.len(), waiters.sizes[&0]),
            (1, 1, 1)
        );
        assert_eq!(waiters.take(&"other"), ['c'].into());
        assert!(waiters.order.is_empty() && waiters.rank.is_empty() && waiters.sizes.is_empty());
    }

    #[test]
    fn a_full_collection_evicts_from_the_largest_group_then_the_oldest() {
        let mut waiters = Waiters::<_, _, _, 100>::default();
        waiters.add("honest", 1_000_000, ());
        for key in 0..10_000 {
            waiters.add("large", key, ());
        }
        assert_eq!(waiters.order.len(), 100);
        assert_eq!(
            waiters.take(&1_000_000).len(),
            1,
            "the largest group is evicted from first"
        );
        assert!(waiters.take(&0).is_empty() && !waiters.take(&9_999).is_empty());
        let mut waiters = Waiters::<_, _, _, 100>::default();
        (0..101).for_each(|group| waiters.add(group, group, ()));
        assert!(waiters.take(&0).is_empty(), "the oldest");
        assert!((1..101).all(|key| waiters.take(&key).len() == 1));
    }
}
