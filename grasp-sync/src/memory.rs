//! Values by key, bounded in number and in time.

use std::hash::Hash;
use std::time::Duration;

use grasp_core::Mono;
use lru::LruCache;

/// Up to `MAX` values by key, in the order of their arrival; the oldest makes room. Each is to be forgotten after `SECS`
/// seconds.
#[derive(Debug)]
pub(crate) struct Memory<K: Hash + Eq, V, const MAX: usize, const SECS: u64>(
    /// The values and their ends. Unbounded, since a bounded one allocates all of its room.
    LruCache<K, (Mono, V)>,
);

impl<K: Hash + Eq, V, const MAX: usize, const SECS: u64> Default for Memory<K, V, MAX, SECS> {
    fn default() -> Self {
        Self(LruCache::unbounded())
    }
}

impl<K: Hash + Eq, V, const MAX: usize, const SECS: u64> Memory<K, V, MAX, SECS> {
    /// Adds or renews a value; returns the one that makes room for it.
    pub(crate) fn put(&mut self, now: Mono, key: K, value: V) -> Option<(K, V)> {
        self.0.put(key, (now + Duration::from_secs(SECS), value));
        let is_full = self.0.len() > MAX;
        is_full
            .then(|| self.0.pop_lru())
            .flatten()
            .map(|(key, (_, value))| (key, value))
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.0.peek(key).map(|(_, value)| value)
    }

    /// Returns a value to be changed; the time at which it is forgotten stays.
    #[cfg(feature = "driver")]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.peek_mut(key).map(|(_, value)| value)
    }

    /// Returns how long a value is still to be remembered, if it is.
    pub(crate) fn time_left(&self, now: Mono, key: &K) -> Option<Duration> {
        let (until, _) = self.0.peek(key)?;
        (now < *until).then(|| *until - now)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.0.pop(key).map(|(_, value)| value)
    }

    /// Removes and returns a value that is too old.
    pub(crate) fn expire(&mut self, now: Mono) -> Option<(K, V)> {
        self.deadline().filter(|until| *until <= now)?;
        self.0.pop_lru().map(|(key, (_, value))| (key, value))
    }

    /// Returns when the next value will be too old.
    pub(crate) fn deadline(&self) -> Option<Mono> {
        self.0.peek_lru().map(|(_, (until, _))| *until)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Mono = Mono::from_secs(100);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_oldest_value_makes_room() {
        let mut memory = Memory::<_, _, 2, 60>::default();
        assert_eq!(memory.put(T0, 'a', 1), None);
        assert_eq!(memory.put(T0, 'b', 2), None);
        assert_eq!(memory.put(T0, 'a', 3), None, "renewed");
        assert_eq!(memory.put(T0, 'c', 4), Some(('b', 2)));
        assert_eq!(
            (memory.get(&'a'), memory.get(&'b'), memory.len()),
            (Some(&3), None, 2)
        );
        assert_eq!((memory.remove(&'a'), memory.remove(&'a')), (Some(3), None));
    }

    #[test]
    fn a_value_is_forgotten_after_its_time() {
        let mut memory = Memory::<_, _, 9, 60>::default();
        memory.put(T0, 'a', 1);
        memory.put(T0 + MINUTE / 2, 'b', 2);
        assert_eq!(memory.deadline(), Some(T0 + MINUTE));
        assert_eq!(memory.time_left(T0 + MINUTE / 2, &'a'), Some(MINUTE / 2));
        assert_eq!(memory.expire(T0 + MINUTE / 2), None);
        assert_eq!(memory.time_left(T0 + MINUTE, &'a'), None);
        assert_eq!(memory.expire(T0 + MINUTE), Some(('a', 1)));
        assert_eq!((memory.expire(T0 + MINUTE), memory.len()), (None, 1));
    }
}
