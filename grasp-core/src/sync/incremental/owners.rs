//! Whose root an event is.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::RepoId;
use crate::sync::root::RootId;

/// The repositories of each root.
///
/// Nearly every root has one. It is kept in place, without a set of its own: there is an entry here for every
/// root there is.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners(BTreeMap<RootId, Set>);

#[derive(Clone, Debug)]
enum Set {
    One(RepoId),
    Many(BTreeSet<RepoId>),
}

impl Owners {
    pub(super) fn add(&mut self, root: RootId, repo: RepoId) {
        match self.0.entry(root) {
            Entry::Vacant(entry) => _ = entry.insert(Set::One(repo)),
            Entry::Occupied(mut entry) => entry.get_mut().insert(repo),
        }
    }

    pub(super) fn remove(&mut self, root: &RootId, repo: &RepoId) {
        let empty = match self.0.get_mut(root) {
            None => false,
            Some(Set::One(one)) => one == repo,
            Some(Set::Many(repos)) => {
                repos.remove(repo);
                repos.is_empty()
            }
        };
        if empty {
            self.0.remove(root);
        }
    }

    /// Forgets a root and tells whose it was.
    pub(super) fn take(&mut self, root: &RootId) -> BTreeSet<RepoId> {
        match self.0.remove(root) {
            None => BTreeSet::new(),
            Some(Set::One(repo)) => [repo].into(),
            Some(Set::Many(repos)) => repos,
        }
    }

    pub(super) fn of(&self, root: &RootId) -> impl Iterator<Item = &RepoId> {
        let (one, many) = match self.0.get(root) {
            None => (None, None),
            Some(Set::One(repo)) => (Some(repo), None),
            Some(Set::Many(repos)) => (None, Some(repos)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl Set {
    fn insert(&mut self, repo: RepoId) {
        match self {
            Self::Many(repos) => _ = repos.insert(repo),
            Self::One(one) if *one == repo => {}
            Self::One(one) => *self = Self::Many([one.clone(), repo].into()),
        }
    }
}
