//! Roots that came before their repository, or outlived it.

use std::collections::{BTreeMap, BTreeSet};

use crate::RepoId;
use crate::sync::root::RootId;

/// How many roots may wait. Anyone can name repositories that nobody has announced; who replays a relay's
/// events announcements first never comes near this.
pub(super) const MAX_WAITING_ROOTS: usize = 250_000;

/// Roots of repositories that are not announced, bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRoots {
    roots: BTreeMap<RepoId, BTreeSet<RootId>>,
    count: usize,
}

impl WaitingRoots {
    /// Keeps a root; `false` if there is no room.
    pub(super) fn add(&mut self, repo: &RepoId, root: RootId) -> bool {
        if self.count >= MAX_WAITING_ROOTS {
            return self
                .roots
                .get(repo)
                .is_some_and(|roots| roots.contains(&root));
        }
        if self.roots.entry(repo.clone()).or_default().insert(root) {
            self.count += 1;
        }
        true
    }

    pub(super) fn remove(&mut self, repo: &RepoId, root: &RootId) {
        let Some(roots) = self.roots.get_mut(repo) else {
            return;
        };
        if roots.remove(root) {
            self.count -= 1;
        }
        if roots.is_empty() {
            self.roots.remove(repo);
        }
    }

    pub(super) fn of(&self, repo: &RepoId) -> Option<&BTreeSet<RootId>> {
        self.roots.get(repo)
    }

    /// Hands over all roots of a repository.
    pub(super) fn take(&mut self, repo: &RepoId) -> BTreeSet<RootId> {
        let roots = self.roots.remove(repo).unwrap_or_default();
        self.count -= roots.len();
        roots
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::EventId;
    use nostr::key::PublicKey;

    use super::*;

    fn repo(n: u8) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([n; 32]), "r".parse().unwrap())
    }

    fn root(n: usize) -> RootId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(bytes).into()
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let mut waiting = WaitingRoots::default();
        assert!((0..MAX_WAITING_ROOTS).all(|n| waiting.add(&repo(1), root(n))));
        assert!(waiting.add(&repo(1), root(0)), "it is there already");
        assert!(!waiting.add(&repo(2), root(0)));
        waiting.remove(&repo(1), &root(0));
        waiting.remove(&repo(1), &root(0));
        assert!(waiting.add(&repo(2), root(0)));
        assert!(!waiting.add(&repo(2), root(1)));
        assert_eq!(waiting.take(&repo(1)).len(), MAX_WAITING_ROOTS - 1);
        assert!(waiting.add(&repo(2), root(1)));
    }
}
