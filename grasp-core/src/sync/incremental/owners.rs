//! Whose root an event is.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::EventId;

use crate::RepoId;

/// The repositories of each root.
///
/// Nearly every root has one. It is kept in place, without a set of its own: there is an entry here for every
/// root there is.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners(BTreeMap<EventId, Set>);

#[derive(Clone, Debug)]
enum Set {
    One(RepoId),
    Many(BTreeSet<RepoId>),
}

impl Owners {
    pub(super) fn add(&mut self, root: EventId, repo: RepoId) {
        match self.0.get_mut(&root) {
            None => _ = self.0.insert(root, Set::One(repo)),
            Some(Set::Many(repos)) => _ = repos.insert(repo),
            Some(Set::One(one)) if *one == repo => {}
            Some(set @ Set::One(_)) => {
                let Set::One(one) = std::mem::replace(set, Set::Many(BTreeSet::new())) else {
                    return;
                };
                *set = Set::Many([one, repo].into());
            }
        }
    }

    pub(super) fn remove(&mut self, root: &EventId, repo: &RepoId) {
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

    pub(super) fn of(&self, root: &EventId) -> impl Iterator<Item = &RepoId> {
        let (one, many) = match self.0.get(root) {
            None => (None, None),
            Some(Set::One(repo)) => (Some(repo), None),
            Some(Set::Many(repos)) => (None, Some(repos)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}
