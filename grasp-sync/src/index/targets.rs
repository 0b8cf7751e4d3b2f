//! Derivation of the targets of each relay from the relays of each repository.

use std::collections::{BTreeMap, BTreeSet};

use super::items::{RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds};
use super::root::RootId;
use grasp_core::{RelayUrl, RepoId, ServiceIdentity};

/// Returns the wanted items by relay, for every relay that a repository lists.
///
/// Our own service is never a target. Bootstrap relays always are, possibly without items, for their announcements.
/// [`SyncIndex`](super::SyncIndex) computes the same incrementally.
///
/// ```
/// use std::collections::BTreeSet;
/// use grasp_core::{RelayUrl, RepoId, ServiceIdentity};
/// use grasp_sync::index::{RepoSyncIndex, RepoSyncNeeds, SyncLevel, derive_relay_targets};
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let us: ServiceIdentity = "us.example".parse()?;
/// let other: RelayUrl = "wss://other.example".parse()?;
/// let needs = RepoSyncNeeds::new(SyncLevel::Full, ["wss://us.example".parse()?, other.clone()]);
///
/// let targets = derive_relay_targets(&RepoSyncIndex::from([(repo.clone(), needs)]), &us, &BTreeSet::new());
/// assert!(targets[&other].includes_repo(&repo, SyncLevel::Full));
/// assert_eq!(targets.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn derive_relay_targets(
    repos: &RepoSyncIndex,
    service: &ServiceIdentity,
    bootstrap: &BTreeSet<RelayUrl>,
) -> BTreeMap<RelayUrl, RelaySyncNeeds> {
    let mut relays: BTreeSet<&RelayUrl> = bootstrap.iter().collect();
    relays.extend(repos.values().flat_map(|needs| &needs.relays));
    relays.retain(|relay| !service.is_own_url(relay.as_str()));
    let position: BTreeMap<&RelayUrl, usize> = relays.into_iter().zip(0..).collect();
    let positions_of = |needs: &RepoSyncNeeds| -> Vec<usize> {
        let positions = needs.relays.iter().filter_map(|relay| position.get(relay));
        positions.copied().collect()
    };
    let wanted: Vec<_> =
        repos.iter().map(|(repo, needs)| (repo, needs, positions_of(needs))).collect();
    let by_relay = collect_by_relay(&wanted, position.len());
    position.into_keys().cloned().zip(by_relay).collect()
}

/// A repository, its needs, and the positions of its relays.
type Wanted<'a> = (&'a RepoId, &'a RepoSyncNeeds, Vec<usize>);

/// Adds every repository and root to each of its relays, in sorted order, because sets are cheap to build from sorted
/// items.
fn collect_by_relay(
    wanted: &[Wanted<'_>],
    positions: usize,
) -> impl Iterator<Item = RelaySyncNeeds> + use<> {
    let mut by_relay = vec![(Vec::new(), Vec::new()); positions];
    for (repo, needs, positions) in wanted {
        for position in positions {
            by_relay[*position].0.push(((*repo).clone(), needs.level));
        }
    }
    let mut roots: Vec<(RootId, &[usize])> = Vec::new();
    for (_, needs, positions) in wanted {
        roots.extend(needs.wanted_roots().map(|root| (*root, positions.as_slice())));
    }
    roots.sort_unstable_by_key(|(root, _)| *root);
    for (root, positions) in roots {
        for position in positions {
            by_relay[*position].1.push(root);
        }
    }
    by_relay.into_iter().map(|(repos, roots)| RelaySyncNeeds {
        repos: repos.into_iter().collect(),
        root_events: roots.into_iter().collect(),
        ..RelaySyncNeeds::default()
    })
}

#[cfg(test)]
mod tests {
    use nostr::event::EventId;
    use nostr::key::PublicKey;

    use super::super::SyncLevel::{self, Full, StateOnly};
    use super::*;

    fn relay(name: &str) -> RelayUrl {
        format!("wss://{name}.example").parse().unwrap()
    }

    fn repo(n: u8) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([n; 32]), "r".parse().unwrap())
    }

    fn root(n: u8) -> RootId {
        EventId::from_byte_array([n; 32]).into()
    }

    fn needs(level: SyncLevel, relays: &[&str], roots: &[u8]) -> RepoSyncNeeds {
        RepoSyncNeeds {
            root_events: roots.iter().copied().map(root).collect(),
            ..RepoSyncNeeds::new(level, relays.iter().map(|name| relay(name)))
        }
    }

    fn derive(repos: &RepoSyncIndex, bootstrap: &[&str]) -> BTreeMap<RelayUrl, RelaySyncNeeds> {
        let us = "us.example".parse().unwrap();
        let bootstrap = bootstrap.iter().map(|name| relay(name)).collect();
        derive_relay_targets(repos, &us, &bootstrap)
    }

    #[test]
    fn every_listed_relay_is_a_target() {
        let repos = RepoSyncIndex::from([
            (repo(1), needs(Full, &["a", "b"], &[1, 2])),
            (repo(2), needs(Full, &["b"], &[2, 3])),
        ]);
        let targets = derive(&repos, &[]);
        assert_eq!(targets.len(), 2);
        assert_eq!(targets[&relay("a")].repos, [(repo(1), Full)].into());
        assert_eq!(targets[&relay("a")].root_events, [root(1), root(2)].into());
        assert_eq!(targets[&relay("b")].root_events, [root(1), root(2), root(3)].into());
    }

    #[test]
    fn a_held_repository_is_requested_without_its_roots() {
        let repos = RepoSyncIndex::from([(repo(1), needs(StateOnly, &["a"], &[1]))]);
        let target = &derive(&repos, &[])[&relay("a")];
        assert_eq!(target.repos, [(repo(1), StateOnly)].into());
        assert!(target.root_events.is_empty());
    }

    #[test]
    fn our_own_service_is_never_a_target() {
        let mut listed = needs(Full, &["us", "a"], &[]);
        listed.relays.insert("ws://us.example:80/below".parse().unwrap());
        let targets = derive(&RepoSyncIndex::from([(repo(1), listed)]), &["us"]);
        assert_eq!(targets.into_keys().collect::<Vec<_>>(), [relay("a")]);
    }

    #[test]
    fn bootstrap_relays_are_targets_without_items() {
        assert!(derive(&RepoSyncIndex::new(), &["boot"])[&relay("boot")].is_empty());
    }
}
