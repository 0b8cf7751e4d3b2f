//! What is wanted, what is under way, and what has been had: three plain maps.

mod pending;
mod relay;

use std::collections::{BTreeMap, BTreeSet};

use nostr::nips::nip01::Coordinate;

pub use self::pending::{
    BatchId, BatchProgress, PartId, PendingBatch, PendingItems, PendingSyncIndex, SyncMethod,
};
pub use self::relay::{ConnectionStatus, History, RETENTION, RelayState, RelaySyncIndex, Resume};
use super::root::RootId;
use super::roots::RootSet;
use crate::{RelayUrl, RepoId};

/// What we want, by repository: the source that every target is derived from.
pub type RepoSyncIndex = BTreeMap<RepoId, RepoSyncNeeds>;

/// How much of a repository is wanted. The greater level includes the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncLevel {
    /// Its states only: the announcement is held until its git data is here.
    StateOnly,
    /// Everything that tags the repository or one of its roots.
    Full,
}

/// What one repository needs, and whom its announcement says to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoSyncNeeds {
    /// The relays of its newest announcement; replaced with it, never merged.
    pub relays: BTreeSet<RelayUrl>,
    /// Patches, pull requests and issues about it. A held repository may already have some, because an event
    /// can name it beside an accepted one; they are asked about once the level is [`SyncLevel::Full`].
    pub root_events: BTreeSet<RootId>,
    /// How much of it is wanted.
    pub level: SyncLevel,
}

impl RepoSyncNeeds {
    /// A repository without roots yet.
    pub fn new(level: SyncLevel, relays: impl IntoIterator<Item = RelayUrl>) -> Self {
        Self { relays: relays.into_iter().collect(), root_events: BTreeSet::new(), level }
    }

    /// The roots to ask others about: none while only states are wanted.
    pub fn wanted_roots(&self) -> impl Iterator<Item = &RootId> {
        let wanted = self.level == SyncLevel::Full;
        self.root_events.iter().filter(move |_| wanted)
    }

    /// How much of the repository this relay is to be asked for, if anything.
    pub(super) fn level_at(&self, relay: &RelayUrl) -> Option<SyncLevel> {
        self.relays.contains(relay).then_some(self.level)
    }
}

/// Repositories and roots as one relay sees them: wanted from it, pending there, or confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelaySyncNeeds {
    /// Repositories, each with how much of it.
    pub repos: BTreeMap<RepoId, SyncLevel>,
    /// Root events.
    pub root_events: RootSet,
    /// Addressable and replaceable events that belong to the repositories. What names only one of these is asked for
    /// by it.
    pub coordinates: BTreeSet<Coordinate>,
}

impl RelaySyncNeeds {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.repos.is_empty() && self.root_events.is_empty() && self.coordinates.is_empty()
    }

    /// Whether the repository is in it at this level or above.
    pub fn includes_repo(&self, repo: &RepoId, level: SyncLevel) -> bool {
        self.repos.get(repo).is_some_and(|have| *have >= level)
    }

    /// The repositories at exactly this level.
    pub fn repos_at(&self, level: SyncLevel) -> impl Iterator<Item = &RepoId> {
        self.repos.iter().filter(move |(_, have)| **have == level).map(|(repo, _)| repo)
    }

    /// What is in here and not in `other`; a repository stays if `other` has less of it.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        let missing = |(repo, level): &(&RepoId, &SyncLevel)| !other.includes_repo(repo, **level);
        Self {
            repos: self
                .repos
                .iter()
                .filter(missing)
                .map(|(repo, level)| (repo.clone(), *level))
                .collect(),
            root_events: self.root_events.without(&other.root_events),
            coordinates: self.coordinates.difference(&other.coordinates).cloned().collect(),
        }
    }

    /// Adds all of `other`; of a repository in both the greater level stays.
    pub fn include(&mut self, other: Self) {
        for (repo, level) in other.repos {
            let have = self.repos.entry(repo).or_insert(level);
            *have = level.max(*have);
        }
        self.root_events.include(&other.root_events);
        self.coordinates.extend(other.coordinates);
    }

    /// Drops whatever `target` does not want, and lowers levels to what it wants.
    pub fn restrict_to(&mut self, target: &Self) {
        self.repos.retain(|repo, level| {
            let wanted = target.repos.get(repo);
            *level = wanted.map_or(*level, |wanted| (*level).min(*wanted));
            wanted.is_some()
        });
        self.root_events.restrict_to(&target.root_events);
        self.coordinates.retain(|member| target.coordinates.contains(member));
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

    fn root(n: u8) -> RootId {
        EventId::from_byte_array([n; 32]).into()
    }

    fn needs(repos: &[(u8, SyncLevel)], roots: &[u8]) -> RelaySyncNeeds {
        RelaySyncNeeds {
            repos: repos.iter().map(|(n, level)| (repo(*n), *level)).collect(),
            root_events: roots.iter().copied().map(root).collect(),
            coordinates: BTreeSet::new(),
        }
    }

    use SyncLevel::{Full, StateOnly};

    #[test]
    fn having_the_states_is_not_having_everything() {
        let target = needs(&[(1, Full), (2, StateOnly)], &[]);
        let have = needs(&[(1, StateOnly), (2, Full)], &[]);
        assert_eq!(target.without(&have), needs(&[(1, Full)], &[]));
    }

    #[test]
    fn the_greater_level_survives_a_union() {
        let mut have = needs(&[(1, Full), (2, StateOnly)], &[1, 2]);
        have.include(needs(&[(1, StateOnly), (2, Full), (3, Full)], &[2, 3]));
        assert_eq!(have, needs(&[(1, Full), (2, Full), (3, Full)], &[1, 2, 3]));
    }

    #[test]
    fn restriction_drops_and_lowers_but_never_adds() {
        let mut have = needs(&[(1, Full), (2, StateOnly), (3, Full)], &[1, 2]);
        have.restrict_to(&needs(&[(1, StateOnly), (2, Full), (4, Full)], &[2, 3]));
        assert_eq!(have, needs(&[(1, StateOnly), (2, StateOnly)], &[2]));
    }

    #[test]
    fn roots_of_a_held_repository_wait_for_its_promotion() {
        let mut needs = RepoSyncNeeds::new(StateOnly, []);
        needs.root_events.insert(root(1));
        assert_eq!(needs.wanted_roots().count(), 0);
        needs.level = Full;
        assert_eq!(needs.wanted_roots().collect::<Vec<_>>(), [&root(1)]);
    }
}
