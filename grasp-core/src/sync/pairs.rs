//! Any number of values by key.

use std::collections::BTreeSet;

/// A set of pairs, in the order of their keys.
///
/// Takes less memory than a map of sets where most keys have one value.
#[derive(Clone, Debug)]
pub struct Pairs<K, V>(BTreeSet<(K, Option<V>)>);

impl<K, V> Default for Pairs<K, V> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Clone, V: Ord + Clone> Pairs<K, V> {
    /// Returns whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a value of a key; returns whether it is new.
    pub fn insert(&mut self, key: K, value: V) -> bool {
        self.0.insert((key, Some(value)))
    }

    /// Returns whether a key has a value.
    pub fn contains(&self, key: &K, value: &V) -> bool {
        self.0.contains(&(key.clone(), Some(value.clone())))
    }

    /// Removes a value of a key.
    pub fn remove(&mut self, key: &K, value: &V) {
        self.0.remove(&(key.clone(), Some(value.clone())));
    }

    /// Removes a key, and returns its values.
    pub fn take(&mut self, key: &K) -> Vec<V> {
        let values: Vec<V> = self.of(key).cloned().collect();
        values.iter().for_each(|value| self.remove(key, value));
        values
    }

    /// Returns the values of a key.
    pub fn of<'a>(&'a self, key: &K) -> impl Iterator<Item = &'a V> + use<'a, K, V> {
        // `None` comes before every value.
        let (key, from) = (key.clone(), self.0.range((key.clone(), None)..));
        from.take_while(move |(one, _)| *one == key)
            .filter_map(|(_, value)| value.as_ref())
    }
}
