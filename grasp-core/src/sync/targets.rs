//! From "which relays does a repository name" to "what is a relay to be asked for".

use std::collections::{BTreeMap, BTreeSet};

use super::index::{RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds};
use super::root::RootId;
use crate::{RelayUrl, RepoId, ServiceIdentity};

/// Inverts the index: for each relay that a repository names, all that is wanted from it.
///
/// We are never a target ourselves. Bootstrap relays always are, if only with empty needs: their announcements
/// are worth having. From scratch this costs as much as there is; [`SyncIndex`](super::SyncIndex) keeps the same
/// answer up to date at the price of each change.
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
/// let targets = derive_relay_targets(&RepoSyncIndex::from([(repo.clone(), needs)]), &us, &BTreeSet::new());
/// assert!(targets[&other].includes_repo(&repo, SyncLevel::Full));
/// assert_eq!(targets.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn derive_relay_targets(
    repos: &RepoSyncIndex,
    own: &ServiceIdentity,
    bootstrap: &BTreeSet<RelayUrl>,
) -> BTreeMap<RelayUrl, RelaySyncNeeds> {
    let mut relays: BTreeSet<&RelayUrl> = bootstrap.iter().collect();
    relays.extend(repos.values().flat_map(|needs| &needs.relays));
    relays.retain(|relay| !own.is_us(relay.as_str()));
    let place: BTreeMap<&RelayUrl, usize> = relays.into_iter().zip(0..).collect();
    let places_of = |needs: &RepoSyncNeeds| -> Vec<usize> {
        let places = needs.relays.iter().filter_map(|relay| place.get(relay));
        places.copied().collect()
    };
    let wanted: Vec<_> =
        repos.iter().map(|(repo, needs)| (repo, needs, places_of(needs))).collect();
    let gathered = gather(&wanted, place.len());
    place.into_keys().cloned().zip(gathered).collect()
}

/// A repository, its needs, and the places of the relays to ask.
type Wanted<'a> = (&'a RepoId, &'a RepoSyncNeeds, Vec<usize>);

/// Hands every repository and every root to each of its relays, in order: sets are cheap to build from what is
/// sorted, and sorting once costs less than once per relay.
fn gather(wanted: &[Wanted<'_>], places: usize) -> impl Iterator<Item = RelaySyncNeeds> + use<> {
    let mut gathered = vec![(Vec::new(), Vec::new()); places];
    for (repo, needs, places) in wanted {
        for place in places {
            gathered[*place].0.push(((*repo).clone(), needs.level));
        }
    }
    let mut roots: Vec<(RootId, &[usize])> = Vec::new();
    for (_, needs, places) in wanted {
        roots.extend(needs.wanted_roots().map(|root| (*root, places.as_slice())));
    }
    roots.sort_unstable_by_key(|(root, _)| *root);
    for (root, places) in roots {
        for place in places {
            gathered[*place].1.push(root);
        }
    }
    gathered.into_iter().map(|(repos, roots)| RelaySyncNeeds {
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
    fn every_listed_relay_is_asked_for_the_repository_and_its_roots() {
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
    fn a_held_repository_is_asked_for_without_its_roots() {
        let repos = RepoSyncIndex::from([(repo(1), needs(StateOnly, &["a"], &[1]))]);
        let target = &derive(&repos, &[])[&relay("a")];
        assert_eq!(target.repos, [(repo(1), StateOnly)].into());
        assert!(target.root_events.is_empty());
    }

    #[test]
    fn we_never_ask_ourselves_not_even_as_a_bootstrap() {
        let mut listed = needs(Full, &["us", "a"], &[]);
        listed.relays.insert("ws://us.example:80/below".parse().unwrap());
        let targets = derive(&RepoSyncIndex::from([(repo(1), listed)]), &["us"]);
        assert_eq!(targets.into_keys().collect::<Vec<_>>(), [relay("a")]);
    }

    #[test]
    fn bootstrap_relays_are_targets_without_a_need() {
        assert!(derive(&RepoSyncIndex::new(), &["boot"])[&relay("boot")].is_empty());
    }
}
