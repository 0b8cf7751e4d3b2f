//! What a batch of changes did to the targets, exactly.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use nostr::nips::nip01::Coordinate;

use super::SyncIndex;
use crate::sync::index::{RelaySyncNeeds, RepoSyncNeeds};
use crate::sync::root::RootId;
use crate::{RelayUrl, RepoId};

/// The difference between the targets before and after a batch of changes.
///
/// What was added and removed again within the batch appears nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncDelta {
    /// What is wanted now and was not, or not at this level.
    pub added: BTreeMap<RelayUrl, RelaySyncNeeds>,
    /// What was wanted, at this level, and no longer is. A repository may still be wanted at a lower one.
    pub removed: BTreeMap<RelayUrl, RelaySyncNeeds>,
    /// Relays that have become targets.
    pub discovered: BTreeSet<RelayUrl>,
    /// Relays that nobody needs any more. Never a bootstrap relay.
    pub retired: BTreeSet<RelayUrl>,
}

impl SyncDelta {
    fn relay(&mut self, relay: &RelayUrl, was: bool, is: bool) {
        match (was, is) {
            (false, true) => _ = self.discovered.insert(relay.clone()),
            (true, false) => _ = self.retired.insert(relay.clone()),
            _ => {}
        }
    }

    fn repo(&mut self, repo: &RepoId, was: Option<&RepoSyncNeeds>, is: Option<&RepoSyncNeeds>) {
        for relay in was.into_iter().chain(is).flat_map(|needs| &needs.relays) {
            let was = was.and_then(|needs| needs.level_at(relay));
            let is = is.and_then(|needs| needs.level_at(relay));
            // No level is less than any level.
            let (side, level) = match is.cmp(&was) {
                Ordering::Greater => (&mut self.added, is),
                Ordering::Less => (&mut self.removed, was),
                Ordering::Equal => continue,
            };
            let needs = side.entry(relay.clone()).or_default();
            needs.repos.extend(level.map(|level| (repo.clone(), level)));
        }
    }
}

/// Roots on their way to or from each relay.
type Moves<'a> = BTreeMap<&'a RelayUrl, Vec<RootId>>;

/// Sets are cheap to build from what has been gathered, dear to build one by one.
fn settle(moves: Moves<'_>, side: &mut BTreeMap<RelayUrl, RelaySyncNeeds>) {
    for (relay, roots) in moves {
        let needs = side.entry(relay.clone()).or_default();
        needs.root_events = roots.into_iter().collect();
    }
}

/// How everything stood before the batch first touched it.
#[derive(Default)]
pub(super) struct Before {
    /// Whether a relay was a target.
    relays: BTreeMap<RelayUrl, bool>,
    /// Who was to be asked for a repository, and for how much; its roots are noted apart.
    repos: BTreeMap<RepoId, Option<RepoSyncNeeds>>,
    /// Which relays a root was wanted from.
    roots: BTreeMap<RootId, BTreeSet<RelayUrl>>,
    members: BTreeMap<Coordinate, BTreeSet<RelayUrl>>,
}

impl Before {
    /// Notes whether a relay is a target, before that changes.
    pub(super) fn relay(&mut self, index: &SyncIndex, relay: &RelayUrl) {
        let is_target = index.relays.contains_key(relay);
        self.relays.entry(relay.clone()).or_insert(is_target);
    }

    /// Notes a repository with its roots, before its relays or level change.
    pub(super) fn repo(&mut self, index: &SyncIndex, repo: &RepoId) {
        self.repos.entry(repo.clone()).or_insert_with(|| {
            let needs = index.repos.get(repo)?;
            Some(RepoSyncNeeds::new(needs.level, needs.relays.iter().cloned()))
        });
        for root in index.roots_of(repo) {
            self.root(index, root);
        }
        for member in index.members.of(repo) {
            self.member(index, member);
        }
    }

    /// Notes where what hangs on a coordinate is wanted from, unless noted.
    pub(super) fn member(&mut self, index: &SyncIndex, member: &Coordinate) {
        let wanted_from = || index.member_wanted_from(member).into_owned();
        self.members.entry(member.clone()).or_insert_with(wanted_from);
    }

    /// Notes a root, before its repositories change.
    pub(super) fn root(&mut self, index: &SyncIndex, root: &RootId) {
        self.roots.entry(*root).or_insert_with(|| index.wanted_from(root).into_owned());
    }

    /// Holds what was against what is.
    pub(super) fn compare(&self, index: &SyncIndex) -> SyncDelta {
        let mut delta = SyncDelta::default();
        for (relay, was) in &self.relays {
            delta.relay(relay, *was, index.relays.contains_key(relay));
        }
        for (repo, was) in &self.repos {
            delta.repo(repo, was.as_ref(), index.repos.get(repo));
        }
        self.compare_roots(index, &mut delta);
        self.compare_members(index, &mut delta);
        delta
    }

    fn compare_members(&self, index: &SyncIndex, delta: &mut SyncDelta) {
        for (member, was) in &self.members {
            let is = index.member_wanted_from(member);
            for relay in is.difference(was) {
                let needs = delta.added.entry(relay.clone()).or_default();
                needs.coordinates.insert(member.clone());
            }
            for relay in was.difference(&is) {
                let needs = delta.removed.entry(relay.clone()).or_default();
                needs.coordinates.insert(member.clone());
            }
        }
    }

    fn compare_roots(&self, index: &SyncIndex, delta: &mut SyncDelta) {
        // Roots are many, and most go the way of some other.
        let mut ways: BTreeMap<_, Vec<RootId>> = BTreeMap::new();
        for (root, was) in &self.roots {
            let way = (was, index.wanted_from(root));
            ways.entry(way).or_default().push(*root);
        }
        let (mut added, mut removed) = (Moves::new(), Moves::new());
        for ((was, is), roots) in &ways {
            for relay in is.difference(was) {
                added.entry(relay).or_default().extend(roots);
            }
            for relay in was.difference(is) {
                removed.entry(relay).or_default().extend(roots);
            }
        }
        settle(added, &mut delta.added);
        settle(removed, &mut delta.removed);
    }
}
