//! The events that repositories hunt for, as their last surveys found. None of it outlives the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::RepoId;
use grasp_core::nip34::State;
use nostr::event::EventId;

use super::judge::HuntedEvents;

/// The wanted events, by repository and by event.
#[derive(Debug, Default)]
pub(super) struct WantedEvents {
    by_repo: BTreeMap<RepoId, HuntedEvents>,
    by_event: BTreeMap<EventId, BTreeSet<RepoId>>,
}

impl WantedEvents {
    /// Sets what a repository hunts for.
    pub(super) fn set(&mut self, repo: &RepoId, wanted: HuntedEvents) {
        if let Some(before) = self.by_repo.remove(repo) {
            for id in before.held {
                self.remove_hunter(&id, repo);
            }
        }
        if wanted.held.is_empty() && wanted.served.is_none() {
            return;
        }
        for id in &wanted.held {
            self.by_event.entry(*id).or_default().insert(repo.clone());
        }
        self.by_repo.insert(repo.clone(), wanted);
    }

    fn remove_hunter(&mut self, id: &EventId, repo: &RepoId) {
        let Some(hunters) = self.by_event.get_mut(id) else {
            return;
        };
        hunters.remove(repo);
        if hunters.is_empty() {
            self.by_event.remove(id);
        }
    }

    /// Forgets an event that is no longer held.
    pub(super) fn forget(&mut self, id: &EventId) {
        for repo in self.by_event.remove(id).unwrap_or_default() {
            let Some(wanted) = self.by_repo.get_mut(&repo) else {
                continue;
            };
            wanted.held.remove(id);
            if wanted.held.is_empty() && wanted.served.is_none() {
                self.by_repo.remove(&repo);
            }
        }
    }

    pub(super) fn is_hunted(&self, repo: &RepoId, id: &EventId) -> bool {
        self.by_event
            .get(id)
            .is_some_and(|hunters| hunters.contains(repo))
    }

    /// Returns whether another repository hunts for an event.
    pub(super) fn is_hunted_elsewhere(&self, repo: &RepoId, id: &EventId) -> bool {
        self.by_event
            .get(id)
            .is_some_and(|hunters| hunters.iter().any(|hunter| hunter != repo))
    }

    /// Returns the held events that a repository hunts for.
    pub(super) fn of(&self, repo: &RepoId) -> impl Iterator<Item = EventId> {
        self.by_repo
            .get(repo)
            .into_iter()
            .flat_map(|wanted| wanted.held.iter().copied())
    }

    /// Returns the served state that a repository should show and lacks objects of.
    pub(super) fn served(&self, repo: &RepoId) -> Option<&Arc<State>> {
        self.by_repo.get(repo)?.served.as_ref()
    }

    /// Returns the repositories that hunt for an event.
    pub(super) fn hunters(&self, id: &EventId) -> BTreeSet<RepoId> {
        self.by_event.get(id).cloned().unwrap_or_default()
    }

    /// Returns every repository that hunts for something.
    pub(super) fn repos(&self) -> impl Iterator<Item = &RepoId> {
        self.by_repo.keys()
    }
}
