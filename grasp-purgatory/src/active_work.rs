//! Work in progress, which keeps what it is about from being removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::RepoId;
use parking_lot::Mutex;

/// Counts the work in progress. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveWork(Arc<Mutex<BTreeMap<RepoId, usize>>>);

/// Work in progress on a repository, until dropped.
#[derive(Debug)]
pub struct WorkGuard {
    active_work: ActiveWork,
    repo: RepoId,
}

impl ActiveWork {
    pub(crate) fn begin(&self, repo: &RepoId) -> WorkGuard {
        *self.0.lock().entry(repo.clone()).or_default() += 1;
        WorkGuard {
            active_work: self.clone(),
            repo: repo.clone(),
        }
    }

    pub(crate) fn is_active(&self, repo: &RepoId) -> bool {
        self.0.lock().contains_key(repo)
    }
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        let mut count = self.active_work.0.lock();
        match count.get_mut(&self.repo) {
            Some(active_work) if *active_work > 1 => *active_work -= 1,
            _ => _ = count.remove(&self.repo),
        }
    }
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;

    #[test]
    fn work_ends_with_the_last_guard() {
        let active_work = ActiveWork::default();
        let repo = RepoId::new(PublicKey::from_byte_array([1; 32]), "x".parse().unwrap());
        let one = active_work.begin(&repo);
        let two = active_work.begin(&repo);
        drop(one);
        assert!(active_work.is_active(&repo));
        drop(two);
        assert!(!active_work.is_active(&repo));
    }
}
