//! A bounded collection of values that wait for keys.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Values that wait for a key, each in a group.
///
/// A client can name keys that never come, so a full collection still accepts values: the largest group loses its oldest
/// value, and of groups of the same size the one with the oldest.
#[derive(Clone, Debug)]
pub(super) struct Waiters<K, V, G> {
    capacity: usize,
    values: BTreeMap<K, BTreeMap<V, (G, u64)>>,
    /// The values of each group in order of arrival.
    order: BTreeMap<(G, u64), (K, V)>,
    sizes: BTreeMap<G, usize>,
    /// The groups by size and oldest arrival.
    rank: BTreeSet<(usize, Reverse<u64>, G)>,
    arrivals: u64,
}

impl<K, V, G> Waiters<K, V, G>
where
    K: Ord + Clone,
    V: Ord + Clone,
    G: Ord + Copy,
{
    /// Returns an empty collection for at most this many values.
    pub(super) const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            values: BTreeMap::new(),
            order: BTreeMap::new(),
            sizes: BTreeMap::new(),
            rank: BTreeSet::new(),
            arrivals: 0,
        }
    }

    /// Adds a value that waits for a key.
    pub(super) fn add(&mut self, group: G, key: K, value: V) {
        if self.values.get(&key).is_some_and(|waiting| waiting.contains_key(&value)) {
            return;
        }
        if self.order.len() >= self.capacity {
            self.evict();
        }
        self.arrivals += 1;
        let position = (group, self.arrivals);
        self.update_group(group, |all| {
            all.values.entry(key.clone()).or_default().insert(value.clone(), position);
            all.order.insert(position, (key, value));
            *all.sizes.entry(group).or_default() += 1;
        });
    }

    /// Removes and returns the values that wait for a key.
    pub(super) fn take(&mut self, key: &K) -> BTreeSet<V> {
        let waiting: Vec<_> = self.values.get(key).into_iter().flat_map(BTreeMap::values).collect();
        let positions: Vec<_> = waiting.into_iter().copied().collect();
        positions.into_iter().filter_map(|position| self.remove(position)).collect()
    }

    fn evict(&mut self) {
        let Some((_, Reverse(oldest), group)) = self.rank.last().copied() else { return };
        self.remove((group, oldest));
    }

    fn remove(&mut self, position: (G, u64)) -> Option<V> {
        let group = position.0;
        self.update_group(group, |all| {
            let (key, value) = all.order.remove(&position)?;
            if let Some(waiting) = all.values.get_mut(&key) {
                waiting.remove(&value);
                if waiting.is_empty() {
                    all.values.remove(&key);
                }
            }
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
        let mut waiters = Waiters::new(9);
        for value in ['a', 'b', 'a'] {
            waiters.add(0, "key", value);
        }
        waiters.add(0, "other", 'c');
        assert_eq!(waiters.take(&"key"), ['a', 'b'].into());
        assert!(waiters.take(&"key").is_empty());
        assert_eq!((waiters.order.len(), waiters.rank.len(), waiters.sizes[&0]), (1, 1, 1));
        assert_eq!(waiters.take(&"other"), ['c'].into());
        assert!(waiters.order.is_empty() && waiters.rank.is_empty() && waiters.sizes.is_empty());
    }

    #[test]
    fn a_full_collection_evicts_from_the_largest_group_then_the_oldest() {
        let mut waiters = Waiters::new(100);
        waiters.add("honest", 1_000_000, ());
        for key in 0..10_000 {
            waiters.add("crowd", key, ());
        }
        assert_eq!(waiters.order.len(), 100);
        assert_eq!(waiters.take(&1_000_000).len(), 1, "the crowd makes room for itself");
        assert!(waiters.take(&0).is_empty() && !waiters.take(&9_999).is_empty());
        let mut waiters = Waiters::new(100);
        (0..101).for_each(|group| waiters.add(group, group, ()));
        assert!(waiters.take(&0).is_empty(), "the oldest");
        assert!((1..101).all(|key| waiters.take(&key).len() == 1));
    }
}
