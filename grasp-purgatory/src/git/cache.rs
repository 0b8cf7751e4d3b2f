//! Values that were made lately, bounded in bytes.

use std::collections::BTreeMap;

/// Bytes that count for each value beside its own.
const BYTES_PER_VALUE: u64 = 512;

/// Values by key, bounded in bytes. The one that was not used for longest makes room for another.
#[derive(Debug)]
pub(super) struct BoundedCache<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    /// Keys by their last use.
    by_use: BTreeMap<u64, K>,
    /// Bytes of all values.
    bytes: u64,
    max_bytes: u64,
    /// The number of the last use.
    last_use: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: u64,
    used: u64,
}

impl<K: Ord + Clone, V: Clone> BoundedCache<K, V> {
    pub(super) const fn new(max_bytes: u64) -> Self {
        Self {
            entries: BTreeMap::new(),
            by_use: BTreeMap::new(),
            bytes: 0,
            max_bytes,
            last_use: 0,
        }
    }

    /// Returns a value, which counts as its use.
    pub(super) fn get(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.get_mut(key)?;
        self.last_use += 1;
        self.by_use.remove(&entry.used);
        entry.used = self.last_use;
        self.by_use.insert(self.last_use, key.clone());
        Some(entry.value.clone())
    }

    /// Adds a value of this size, unless it is larger than all values may be together.
    pub(super) fn insert(&mut self, key: K, value: V, bytes: u64) {
        self.remove(&key);
        let bytes = bytes.saturating_add(BYTES_PER_VALUE);
        if bytes > self.max_bytes {
            return;
        }
        while self.bytes + bytes > self.max_bytes {
            let Some(oldest) = self.by_use.values().next().cloned() else {
                break;
            };
            self.remove(&oldest);
        }
        self.last_use += 1;
        self.bytes += bytes;
        self.by_use.insert(self.last_use, key.clone());
        self.entries.insert(
            key,
            Entry {
                value,
                bytes,
                used: self.last_use,
            },
        );
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1_000;

    #[test]
    fn the_value_that_was_not_used_for_longest_makes_room() {
        let mut cache = BoundedCache::new(3 * (SIZE + BYTES_PER_VALUE));
        for key in ["a", "b", "c"] {
            cache.insert(key, key, SIZE);
        }
        assert_eq!(cache.get(&"a"), Some("a"));
        cache.insert("d", "d", SIZE);
        let kept = ["a", "b", "c", "d"].map(|key| cache.get(&key).is_some());
        assert_eq!(kept, [true, false, true, true]);
        cache.insert("a", "new", SIZE);
        assert_eq!((cache.get(&"a"), cache.entries.len()), (Some("new"), 3));
        assert_eq!(cache.bytes, cache.max_bytes);
    }

    #[test]
    fn a_value_that_is_too_large_takes_no_room_from_others() {
        let mut cache = BoundedCache::new(SIZE + BYTES_PER_VALUE);
        cache.insert("a", 1, SIZE);
        cache.insert("b", 2, SIZE + 1);
        assert_eq!((cache.get(&"a"), cache.get(&"b")), (Some(1), None));
        cache.insert("a", 3, u64::MAX);
        assert_eq!((cache.get(&"a"), cache.bytes), (None, 0));
    }
}
