//! The same targets as from scratch, at the price of each change.

mod delta;
mod owners;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::EventId;

use self::delta::Before;
pub use self::delta::SyncDelta;
use self::owners::Owners;
use self::waiting::WaitingRoots;
use super::index::{RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds, SyncLevel};
use super::targets::needs_of;
use crate::{RelayUrl, RepoId, ServiceIdentity};

/// Something our own relay has accepted, held, released or dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// A repository was announced, or announced anew: relays and level replace what was there.
    Announced {
        /// Which one.
        repo: RepoId,
        /// All relays of the announcement; ours among them does no harm.
        relays: BTreeSet<RelayUrl>,
        /// How much of it is wanted.
        level: SyncLevel,
    },
    /// A held repository was promoted, or the reverse. Nothing, if it is not announced.
    LevelChanged {
        /// Which one.
        repo: RepoId,
        /// How much of it is wanted from now on.
        level: SyncLevel,
    },
    /// A repository is no longer ours to keep.
    Retired {
        /// Which one.
        repo: RepoId,
    },
    /// A root event was accepted.
    RootAdded {
        /// The event.
        root: EventId,
        /// All repositories that it names.
        repos: BTreeSet<RepoId>,
    },
    /// A root event was deleted, or expired.
    RootRemoved {
        /// The event.
        root: EventId,
    },
}

/// What we want, by repository and by relay, kept in step.
///
/// Its per-relay view is at any moment what [`derive_relay_targets`](super::derive_relay_targets) would say of
/// [`Self::repos`], yet a change costs only what it touches: items × relays per repository. The view holds no
/// roots of its own; they are looked up through the repositories, so that a root wanted from a hundred relays
/// is stored once.
///
/// ```
/// use grasp_core::{RelayUrl, RepoId};
/// use grasp_core::sync::{IndexChange, SyncIndex, SyncLevel};
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let relay: RelayUrl = "wss://other.example".parse()?;
/// let mut index = SyncIndex::new("us.example".parse()?, []);
///
/// let announced = IndexChange::Announced {
///     repo: repo.clone(),
///     relays: [relay.clone()].into(),
///     level: SyncLevel::StateOnly,
/// };
/// let delta = index.apply([announced]);
/// assert!(delta.discovered.contains(&relay));
///
/// let delta = index.apply([IndexChange::LevelChanged { repo: repo.clone(), level: SyncLevel::Full }]);
/// assert_eq!(delta.added[&relay].repos[&repo], SyncLevel::Full);
///
/// let delta = index.apply([IndexChange::Retired { repo }]);
/// assert!(delta.retired.contains(&relay));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SyncIndex {
    own: ServiceIdentity,
    bootstrap: BTreeSet<RelayUrl>,
    repos: RepoSyncIndex,
    /// Who lists a relay. Bootstrap relays stay, listed or not; we are never among them.
    relays: BTreeMap<RelayUrl, BTreeSet<RepoId>>,
    /// Whose root an event is, announced repository or not.
    owners: Owners,
    waiting: WaitingRoots,
}

impl SyncIndex {
    /// An index of nothing but the bootstrap relays.
    pub fn new(own: ServiceIdentity, bootstrap: impl IntoIterator<Item = RelayUrl>) -> Self {
        let bootstrap: BTreeSet<_> = bootstrap
            .into_iter()
            .filter(|relay| !own.is_us(relay.as_str()))
            .collect();
        Self {
            own,
            relays: bootstrap
                .iter()
                .map(|relay| (relay.clone(), BTreeSet::new()))
                .collect(),
            bootstrap,
            repos: RepoSyncIndex::new(),
            owners: Owners::default(),
            waiting: WaitingRoots::default(),
        }
    }

    /// Makes the changes, in order, and tells exactly what they did to the targets as a whole.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = IndexChange>) -> SyncDelta {
        let mut before = Before::default();
        for change in changes {
            self.make(change, &mut before);
        }
        before.compare(self)
    }

    /// Everything wanted, by repository. Our own relay is listed nowhere.
    pub fn repos(&self) -> &RepoSyncIndex {
        &self.repos
    }

    /// The relays that anything is wanted from, and the bootstrap relays.
    pub fn relays(&self) -> impl Iterator<Item = &RelayUrl> {
        self.relays.keys()
    }

    /// Everything wanted from one relay, written out; `None` if it is no target.
    pub fn target(&self, relay: &RelayUrl) -> Option<RelaySyncNeeds> {
        let listed = self.relays.get(relay)?;
        let entries: Vec<_> = listed
            .iter()
            .filter_map(|repo| self.repos.get_key_value(repo))
            .collect();
        Some(needs_of(&entries))
    }

    fn make(&mut self, change: IndexChange, before: &mut Before) {
        match change {
            IndexChange::Announced {
                repo,
                relays,
                level,
            } => self.announced(repo, relays, level, before),
            IndexChange::LevelChanged { repo, level } => self.level_changed(&repo, level, before),
            IndexChange::Retired { repo } => self.retired(repo, before),
            IndexChange::RootAdded { root, repos } => {
                for repo in repos {
                    self.root_added(root, repo, before);
                }
            }
            IndexChange::RootRemoved { root } => self.root_removed(&root, before),
        }
    }

    fn announced(
        &mut self,
        repo: RepoId,
        mut relays: BTreeSet<RelayUrl>,
        level: SyncLevel,
        before: &mut Before,
    ) {
        relays.retain(|relay| self.is_foreign(relay));
        if !self.repos.contains_key(&repo) {
            let needs = RepoSyncNeeds {
                root_events: self.waiting.take(&repo),
                ..RepoSyncNeeds::new(level, [])
            };
            self.repos.insert(repo.clone(), needs);
        }
        self.rewrite(&repo, relays, level, before);
    }

    fn level_changed(&mut self, repo: &RepoId, level: SyncLevel, before: &mut Before) {
        if let Some(needs) = self.repos.get(repo) {
            let relays = needs.relays.clone();
            self.rewrite(repo, relays, level, before);
        }
    }

    /// Its roots wait for a new announcement: our relay still has them and will not tell us again.
    fn retired(&mut self, repo: RepoId, before: &mut Before) {
        self.rewrite(&repo, BTreeSet::new(), SyncLevel::StateOnly, before);
        if let Some(needs) = self.repos.remove(&repo) {
            for root in needs.root_events {
                if !self.waiting.add(&repo, root) {
                    self.owners.remove(&root, &repo);
                }
            }
        }
    }

    fn root_added(&mut self, root: EventId, repo: RepoId, before: &mut Before) {
        let kept = match self.repos.get(&repo) {
            Some(needs) => {
                before.remember_root(self, root, needs.relays.iter());
                true
            }
            None => self.waiting.add(&repo, root),
        };
        if let Some(needs) = self.repos.get_mut(&repo) {
            needs.root_events.insert(root);
        }
        if kept {
            self.owners.add(root, repo);
        }
    }

    fn root_removed(&mut self, root: &EventId, before: &mut Before) {
        let owners: Vec<RepoId> = self.owners.of(root).cloned().collect();
        for needs in owners.iter().filter_map(|repo| self.repos.get(repo)) {
            before.remember_root(self, *root, needs.relays.iter());
        }
        for repo in &owners {
            match self.repos.get_mut(repo) {
                Some(needs) => _ = needs.root_events.remove(root),
                None => self.waiting.remove(repo, root),
            }
            self.owners.remove(root, repo);
        }
    }

    /// Gives an announced repository new relays and a new level.
    fn rewrite(
        &mut self,
        repo: &RepoId,
        relays: BTreeSet<RelayUrl>,
        level: SyncLevel,
        before: &mut Before,
    ) {
        let Some(old) = self.repos.get(repo) else {
            return;
        };
        let level_at = |relay| relays.contains(relay).then_some(level);
        let touched: Vec<RelayUrl> = old
            .relays
            .union(&relays)
            .filter(|relay| old.level_at(relay) != level_at(relay))
            .cloned()
            .collect();
        before.remember(self, repo, old, &touched);
        for relay in &touched {
            if relays.contains(relay) {
                self.list(relay, repo);
            } else {
                self.unlist(relay, repo);
            }
        }
        if let Some(needs) = self.repos.get_mut(repo) {
            needs.relays = relays;
            needs.level = level;
        }
    }

    fn list(&mut self, relay: &RelayUrl, repo: &RepoId) {
        let listed = self.relays.entry(relay.clone()).or_default();
        listed.insert(repo.clone());
    }

    fn unlist(&mut self, relay: &RelayUrl, repo: &RepoId) {
        let Some(listed) = self.relays.get_mut(relay) else {
            return;
        };
        listed.remove(repo);
        if listed.is_empty() && !self.bootstrap.contains(relay) {
            self.relays.remove(relay);
        }
    }

    /// A relay in the view is known not to be us, which spares parsing its address again.
    fn is_foreign(&self, relay: &RelayUrl) -> bool {
        self.relays.contains_key(relay) || !self.own.is_us(relay.as_str())
    }

    fn level_at(&self, relay: &RelayUrl, repo: &RepoId) -> Option<SyncLevel> {
        self.repos.get(repo)?.level_at(relay)
    }

    /// Whether some repository wants this root from this relay.
    fn wants_root(&self, relay: &RelayUrl, root: &EventId) -> bool {
        self.owners
            .of(root)
            .any(|repo| self.level_at(relay, repo) == Some(SyncLevel::Full))
    }
}

#[cfg(test)]
mod tests;
