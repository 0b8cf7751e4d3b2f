//! Values that wait for keys, limited in number.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

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
    /// Adds a value that waits for a key. Returns the pair that was evicted for it.
    pub(super) fn add(&mut self, group: G, key: K, value: V) -> Option<(K, V)> {
        let waiting = (key.clone(), Some(value.clone()));
        if self.values.contains_key(&waiting) {
            return None;
        }
        let evicted = match self.order.len() >= CAPACITY {
            true => self.evict(),
            false => None,
        };
        self.arrivals += 1;
        let position = (group, self.arrivals);
        self.update_group(group, |all| {
            all.values.insert(waiting, position);
            all.order.insert(position, (key, value));
            *all.sizes.entry(group).or_default() += 1;
        });
        evicted
    }

    /// Removes and returns the values that wait for a key.
    pub(super) fn take(&mut self, key: &K) -> BTreeSet<V> {
        let from = self.values.range((key.clone(), None)..);
        let waiting = from.take_while(|((one, _), _)| one == key);
        let positions: Vec<_> = waiting.map(|(_, position)| *position).collect();
        let taken = positions.into_iter().filter_map(|at| self.remove_at(at));
        taken.map(|(_, value)| value).collect()
    }

    /// Removes a value that waits for a key.
    pub(super) fn remove(&mut self, key: &K, value: &V) {
        let waiting = (key.clone(), Some(value.clone()));
        if let Some(position) = self.values.get(&waiting).copied() {
            self.remove_at(position);
        }
    }

    /// Returns whether no value waits.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.values.is_empty() && self.rank.is_empty()
    }

    fn evict(&mut self) -> Option<(K, V)> {
        let (_, Reverse(oldest), group) = self.rank.last().copied()?;
        self.remove_at((group, oldest))
    }

    fn remove_at(&mut self, position: (G, u64)) -> Option<(K, V)> {
        let group = position.0;
        self.update_group(group, |all| {
            let (key, value) = all.order.remove(&position)?;
            all.values.remove(&(key.clone(), Some(value.clone())));
            if let Some(size) = all.sizes.get_mut(&group) {
                *size = size.saturating_sub(1);
                if *size == 0 {
                    all.sizes.remove(&group);
                }
            }
            Some((key, value))
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
        waiters.add(0, "other", 'd');
        waiters.remove(&"other", &'d');
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
        let evicted: Vec<_> = (0..101)
            .filter_map(|group| waiters.add(group, group, ()))
            .collect();
        assert_eq!(evicted, [(0, ())], "the oldest");
        assert!(waiters.take(&0).is_empty());
        assert!((1..101).all(|key| waiters.take(&key).len() == 1));
    }
}
