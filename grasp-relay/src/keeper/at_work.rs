//! Who is at work on which repository, so that nothing is taken away below their hands.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_core::{Identifier, RepoId};

/// How many are at work on each repository.
#[derive(Clone, Debug, Default)]
pub(super) struct Workers(Arc<Mutex<BTreeMap<RepoId, usize>>>);

/// Somebody at work, until this is dropped.
#[derive(Debug)]
pub struct AtWork {
    workers: Workers,
    repo: RepoId,
}

impl Workers {
    pub(super) fn begin(&self, repo: &RepoId) -> AtWork {
        *self.count().entry(repo.clone()).or_default() += 1;
        AtWork { workers: self.clone(), repo: repo.clone() }
    }

    pub(super) fn any(&self, repo: &RepoId) -> bool {
        self.count().contains_key(repo)
    }

    /// Whether anybody is at work on a repository of this name.
    pub(super) fn any_under(&self, name: &Identifier) -> bool {
        self.count().keys().any(|repo| repo.identifier == *name)
    }

    fn count(&self) -> MutexGuard<'_, BTreeMap<RepoId, usize>> {
        // Counting cannot panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut count = self.workers.count();
        match count.get_mut(&self.repo) {
            Some(workers) if *workers > 1 => *workers -= 1,
            _ => _ = count.remove(&self.repo),
        }
    }
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;

    #[test]
    fn the_last_to_leave_ends_the_work() {
        let workers = Workers::default();
        let repo = RepoId::new(PublicKey::from_byte_array([1; 32]), "x".parse().unwrap());
        let (one, two) = (workers.begin(&repo), workers.begin(&repo));
        drop(one);
        assert!(workers.any(&repo) && workers.any_under(&repo.identifier));
        drop(two);
        assert!(!workers.any(&repo) && !workers.any_under(&repo.identifier));
    }
}
