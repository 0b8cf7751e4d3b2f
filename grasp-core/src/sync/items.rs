//! The wanted, pending and confirmed items.

use std::collections::{BTreeMap, BTreeSet};

use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::roots::{RootId, RootSet};
use crate::{RelayUrl, RepoId, ServiceIdentity};

/// The wanted items by repository: the source of every target.
pub type RepoSyncIndex = BTreeMap<RepoId, RepoSyncNeeds>;

/// The part of a repository's events that is wanted. The greater level includes the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncLevel {
    /// States only: the announcement is held until its git data is here.
    StateOnly,
    /// All events that refer to the repository or one of its roots.
    Full,
}

/// The wanted items of one repository, and the relays to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoSyncNeeds {
    /// The relays of the newest announcement.
    pub relays: BTreeSet<RelayUrl>,
    /// Patches, pull requests and issues of it. A held repository may have some, because an event can also name a
    /// stored one; they are requested once the level is [`SyncLevel::Full`].
    pub root_events: BTreeSet<RootId>,
    /// Part of its events that is wanted.
    pub level: SyncLevel,
}

impl RepoSyncNeeds {
    /// Returns the needs of a repository without roots.
    pub fn new(level: SyncLevel, relays: impl IntoIterator<Item = RelayUrl>) -> Self {
        Self {
            relays: relays.into_iter().collect(),
            root_events: BTreeSet::new(),
            level,
        }
    }

    /// Returns the roots to request: none while only states are wanted.
    pub fn wanted_roots(&self) -> impl Iterator<Item = &RootId> {
        let wanted = self.level == SyncLevel::Full;
        self.root_events.iter().filter(move |_| wanted)
    }

    /// Returns the level for a relay; `None` if the repository does not list it.
    pub(super) fn level_at(&self, relay: &RelayUrl) -> Option<SyncLevel> {
        self.relays.contains(relay).then_some(self.level)
    }
}

/// The roots of one user, and the relays from which these are wanted, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserNeeds {
    /// The user's relays.
    pub relays: BTreeSet<RelayUrl>,
    /// The user's roots, wanted or not.
    pub roots: BTreeSet<RootId>,
}

/// The items of a batch.
pub type PendingItems = RelaySyncNeeds;

/// Repositories and roots of one relay: wanted, pending or confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelaySyncNeeds {
    /// Repositories with their levels.
    pub repos: BTreeMap<RepoId, SyncLevel>,
    /// Roots and replies.
    pub root_events: RootSet,
    /// Addressable and replaceable events of the repositories; events that name only one of these are requested by it.
    pub coordinates: BTreeSet<Coordinate>,
}

impl RelaySyncNeeds {
    /// Returns these repositories and their roots, without coordinates.
    pub(super) fn of(repos: &[(&RepoId, &RepoSyncNeeds)]) -> Self {
        let roots = repos.iter().flat_map(|(_, needs)| needs.wanted_roots());
        Self {
            root_events: roots.copied().collect(),
            repos: repos
                .iter()
                .map(|(repo, needs)| ((*repo).clone(), needs.level))
                .collect(),
            coordinates: BTreeSet::new(),
        }
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.repos.is_empty() && self.root_events.is_empty() && self.coordinates.is_empty()
    }

    /// Returns whether the repository is included at this level or above.
    pub fn includes_repo(&self, repo: &RepoId, level: SyncLevel) -> bool {
        self.repos.get(repo).is_some_and(|have| *have >= level)
    }

    /// Returns the repositories at exactly this level.
    pub fn repos_at(&self, level: SyncLevel) -> impl Iterator<Item = &RepoId> {
        self.repos
            .iter()
            .filter(move |(_, have)| **have == level)
            .map(|(repo, _)| repo)
    }

    /// Returns the items that are not in `other`; a repository stays if `other` has it at a lower level.
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
            coordinates: self
                .coordinates
                .difference(&other.coordinates)
                .cloned()
                .collect(),
        }
    }

    /// Adds all items of `other`; the greater level of a repository stays.
    pub fn include(&mut self, other: Self) {
        for (repo, level) in other.repos {
            let have = self.repos.entry(repo).or_insert(level);
            *have = level.max(*have);
        }
        self.root_events.include(&other.root_events);
        self.coordinates.extend(other.coordinates);
    }

    /// Removes items that are not in `target`, and lowers levels to its levels.
    pub fn restrict_to(&mut self, target: &Self) {
        self.repos.retain(|repo, level| {
            let wanted = target.repos.get(repo);
            *level = wanted.map_or(*level, |wanted| (*level).min(*wanted));
            wanted.is_some()
        });
        self.root_events.restrict_to(&target.root_events);
        self.coordinates
            .retain(|member| target.coordinates.contains(member));
    }
}

/// Returns the wanted items by relay, for every relay that a repository lists, and for those of authors with a wanted
/// root.
///
/// Our own service is never a target. Bootstrap relays always are, possibly without items, for their announcements.
/// [`SyncIndex`](super::SyncIndex) computes the same incrementally.
///
/// ```
/// use std::collections::BTreeSet;
/// use grasp_core::{RelayUrl, RepoId, ServiceIdentity};
/// use grasp_core::sync::{RepoSyncIndex, RepoSyncNeeds, SyncLevel, derive_relay_targets};
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let us: ServiceIdentity = "us.example".parse()?;
/// let other: RelayUrl = "wss://other.example".parse()?;
/// let needs = RepoSyncNeeds::new(SyncLevel::Full, ["wss://us.example".parse()?, other.clone()]);
///
/// let repos = RepoSyncIndex::from([(repo.clone(), needs)]);
/// let targets = derive_relay_targets(&repos, &Default::default(), &us, &BTreeSet::new());
/// assert!(targets[&other].includes_repo(&repo, SyncLevel::Full));
/// assert_eq!(targets.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn derive_relay_targets(
    repos: &RepoSyncIndex,
    authors: &BTreeMap<PublicKey, UserNeeds>,
    service: &ServiceIdentity,
    bootstrap: &BTreeSet<RelayUrl>,
) -> BTreeMap<RelayUrl, RelaySyncNeeds> {
    let mut wanted: BTreeMap<&RelayUrl, Vec<_>> =
        bootstrap.iter().map(|relay| (relay, Vec::new())).collect();
    for entry @ (_, needs) in repos {
        for relay in &needs.relays {
            wanted.entry(relay).or_default().push(entry);
        }
    }
    let mut targets: BTreeMap<RelayUrl, RelaySyncNeeds> = BTreeMap::new();
    for (relay, repos) in wanted {
        targets.insert(relay.clone(), RelaySyncNeeds::of(&repos));
    }
    let all: RootSet = repos
        .values()
        .flat_map(|needs| needs.wanted_roots().copied())
        .collect();
    for author in authors.values() {
        let own: RootSet = author.roots.iter().copied().collect();
        let mut roots = all.clone();
        roots.restrict_to(&own);
        for relay in author.relays.iter().filter(|_| !roots.is_empty()) {
            let needs = targets.entry(relay.clone()).or_default();
            needs.root_events.include(&roots);
        }
    }
    targets.retain(|relay, _| !service.is_own_url(relay.as_str()));
    targets
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
    fn states_only_does_not_include_everything() {
        let target = needs(&[(1, Full), (2, StateOnly)], &[]);
        let have = needs(&[(1, StateOnly), (2, Full)], &[]);
        assert_eq!(target.without(&have), needs(&[(1, Full)], &[]));
    }

    #[test]
    fn a_union_keeps_the_greater_level() {
        let mut have = needs(&[(1, Full), (2, StateOnly)], &[1, 2]);
        have.include(needs(&[(1, StateOnly), (2, Full), (3, Full)], &[2, 3]));
        assert_eq!(have, needs(&[(1, Full), (2, Full), (3, Full)], &[1, 2, 3]));
    }

    #[test]
    fn restriction_removes_and_lowers() {
        let mut have = needs(&[(1, Full), (2, StateOnly), (3, Full)], &[1, 2]);
        have.restrict_to(&needs(&[(1, StateOnly), (2, Full), (4, Full)], &[2, 3]));
        assert_eq!(have, needs(&[(1, StateOnly), (2, StateOnly)], &[2]));
    }

    #[test]
    fn roots_of_a_held_repository_are_not_wanted() {
        let mut needs = RepoSyncNeeds::new(StateOnly, []);
        needs.root_events.insert(root(1));
        assert_eq!(needs.wanted_roots().count(), 0);
        needs.level = Full;
        assert_eq!(needs.wanted_roots().collect::<Vec<_>>(), [&root(1)]);
    }

    fn relay(name: &str) -> RelayUrl {
        format!("wss://{name}.example").parse().unwrap()
    }

    fn repo_needs(level: SyncLevel, relays: &[&str], roots: &[u8]) -> RepoSyncNeeds {
        RepoSyncNeeds {
            root_events: roots.iter().copied().map(root).collect(),
            ..RepoSyncNeeds::new(level, relays.iter().map(|name| relay(name)))
        }
    }

    fn derive(repos: &RepoSyncIndex, bootstrap: &[&str]) -> BTreeMap<RelayUrl, RelaySyncNeeds> {
        let us = "us.example".parse().unwrap();
        let bootstrap = bootstrap.iter().map(|name| relay(name)).collect();
        derive_relay_targets(repos, &BTreeMap::new(), &us, &bootstrap)
    }

    #[test]
    fn every_listed_relay_is_a_target() {
        let repos = RepoSyncIndex::from([
            (repo(1), repo_needs(Full, &["a", "b"], &[1, 2])),
            (repo(2), repo_needs(Full, &["b"], &[2, 3])),
        ]);
        let targets = derive(&repos, &[]);
        assert_eq!(targets.len(), 2);
        assert_eq!(targets[&relay("a")].repos, [(repo(1), Full)].into());
        assert_eq!(targets[&relay("a")].root_events, [root(1), root(2)].into());
        assert_eq!(
            targets[&relay("b")].root_events,
            [root(1), root(2), root(3)].into()
        );
    }

    #[test]
    fn a_held_repository_is_requested_without_its_roots() {
        let repos = RepoSyncIndex::from([(repo(1), repo_needs(StateOnly, &["a"], &[1]))]);
        let target = &derive(&repos, &[])[&relay("a")];
        assert_eq!(target.repos, [(repo(1), StateOnly)].into());
        assert!(target.root_events.is_empty());
    }

    #[test]
    fn our_own_service_is_never_a_target() {
        let mut listed = repo_needs(Full, &["us", "a"], &[]);
        listed
            .relays
            .insert("ws://us.example:80/below".parse().unwrap());
        let targets = derive(&RepoSyncIndex::from([(repo(1), listed)]), &["us"]);
        assert_eq!(targets.into_keys().collect::<Vec<_>>(), [relay("a")]);
    }

    #[test]
    fn bootstrap_relays_are_targets_without_items() {
        assert!(derive(&RepoSyncIndex::new(), &["boot"])[&relay("boot")].is_empty());
    }
}
