//! Roots and their repositories, announced or not.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::index::RootId;
use grasp_core::RepoId;

/// The repositories of each root.
///
/// There is an entry for every root, and nearly every root has one repository, so a single one is stored without a
/// set.
#[derive(Clone, Debug, Default)]
pub(super) struct RootRepos(BTreeMap<RootId, Repos>);

#[derive(Clone, Debug)]
enum Repos {
    One(RepoId),
    Many(BTreeSet<RepoId>),
}

impl RootRepos {
    pub(super) fn add(&mut self, root: RootId, repo: RepoId) {
        match self.0.entry(root) {
            Entry::Vacant(entry) => _ = entry.insert(Repos::One(repo)),
            Entry::Occupied(mut entry) => entry.get_mut().insert(repo),
        }
    }

    pub(super) fn remove(&mut self, root: &RootId, repo: &RepoId) {
        let empty = match self.0.get_mut(root) {
            None => false,
            Some(Repos::One(one)) => one == repo,
            Some(Repos::Many(repos)) => {
                repos.remove(repo);
                repos.is_empty()
            }
        };
        if empty {
            self.0.remove(root);
        }
    }

    /// Removes a root and returns its repositories.
    pub(super) fn take(&mut self, root: &RootId) -> BTreeSet<RepoId> {
        match self.0.remove(root) {
            None => BTreeSet::new(),
            Some(Repos::One(repo)) => [repo].into(),
            Some(Repos::Many(repos)) => repos,
        }
    }

    pub(super) fn of(&self, root: &RootId) -> impl Iterator<Item = &RepoId> {
        let (one, many) = match self.0.get(root) {
            None => (None, None),
            Some(Repos::One(repo)) => (Some(repo), None),
            Some(Repos::Many(repos)) => (None, Some(repos)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl Repos {
    fn insert(&mut self, repo: RepoId) {
        match self {
            Self::Many(repos) => _ = repos.insert(repo),
            Self::One(one) if *one == repo => {}
            Self::One(one) => *self = Self::Many([one.clone(), repo].into()),
        }
    }
}

/// Maximum number of waiting roots. Any client can name repositories that are not announced; a replay of a relay's
/// events with announcements first stays far below.
pub(super) const MAX_WAITING_ROOTS: usize = 250_000;

/// Roots of repositories that are not announced, limited in number.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRoots {
    roots: BTreeMap<RepoId, BTreeSet<RootId>>,
    count: usize,
}

impl WaitingRoots {
    /// Keeps a root; `false` if the limit is reached.
    pub(super) fn add(&mut self, repo: &RepoId, root: RootId) -> bool {
        if self.count >= MAX_WAITING_ROOTS {
            return self.roots.get(repo).is_some_and(|roots| roots.contains(&root));
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

    /// Removes and returns all roots of a repository.
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
    fn the_number_is_limited_and_removal_makes_room() {
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
