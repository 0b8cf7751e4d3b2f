//! Objects that nothing names, and the time from which on they may be deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::Mono;

/// Time for which an object is kept that nothing names: longer than any clone may last that reads it, and than a change
/// between its upload and its commit.
pub(in crate::git) const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Objects that are remembered. Those beyond are deleted later.
const MAX_REMEMBERED: usize = 1_000_000;

/// The objects that nothing named when they were last listed, and since when.
#[derive(Debug, Default)]
pub(in crate::git) struct UnnamedObjects(BTreeMap<String, Mono>);

impl UnnamedObjects {
    /// Takes the keys that nothing names now, and returns those of which that was so for the whole retention.
    pub(in crate::git) fn listed(&mut self, now: Mono, keys: BTreeSet<String>) -> Vec<String> {
        self.0.retain(|key, _| keys.contains(key));
        for key in keys {
            if self.0.len() >= MAX_REMEMBERED {
                break;
            }
            self.0.entry(key).or_insert(now);
        }
        let is_due = |since: &Mono| *since + RETENTION <= now;
        self.0.iter().filter(|(_, since)| is_due(since)).map(|(key, _)| key.clone()).collect()
    }

    /// Returns whether nothing was stored under a key since it was found to be unnamed.
    pub(in crate::git) fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Notes that something is stored under a key, or that it was deleted.
    pub(in crate::git) fn forget(&mut self, key: &str) {
        self.0.remove(key);
    }

    pub(in crate::git) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn an_object_is_due_only_after_the_retention() {
        let (mut unnamed, start) = (UnnamedObjects::default(), Mono::from_secs(5));
        assert!(unnamed.listed(start, keys(&["a"])).is_empty());
        let almost = start + RETENTION - Duration::from_secs(1);
        assert!(unnamed.listed(almost, keys(&["a", "b"])).is_empty());
        assert_eq!(unnamed.listed(start + RETENTION, keys(&["a", "b"])), ["a"]);
    }

    #[test]
    fn the_time_begins_anew_when_an_object_was_named_or_stored_meanwhile() {
        let (mut unnamed, start) = (UnnamedObjects::default(), Mono::from_secs(5));
        assert!(unnamed.listed(start, keys(&["a", "b"])).is_empty());
        assert!(unnamed.listed(start, keys(&["b"])).is_empty());
        unnamed.forget("b");
        assert!(!unnamed.contains("b"));
        assert!(unnamed.listed(start + RETENTION, keys(&["a", "b"])).is_empty());
        assert_eq!(unnamed.listed(start + RETENTION * 2, keys(&["a", "b"])), ["a", "b"]);
    }
}
