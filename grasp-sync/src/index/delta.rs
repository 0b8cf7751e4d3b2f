//! The difference that a batch of changes makes to the targets.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use nostr::nips::nip01::Coordinate;

use super::SyncIndex;
use crate::index::RootId;
use crate::index::{RelaySyncNeeds, RepoSyncNeeds};
use grasp_core::{RelayUrl, RepoId};

/// The difference between the targets before and after a batch of changes.
///
/// Items that were added and removed within the batch are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncDelta {
    /// Items that are newly wanted, or at a higher level.
    pub added: BTreeMap<RelayUrl, RelaySyncNeeds>,
    /// Items that are no longer wanted at this level. A repository may still be wanted at a lower one.
    pub removed: BTreeMap<RelayUrl, RelaySyncNeeds>,
    /// Relays that became targets.
    pub discovered: BTreeSet<RelayUrl>,
    /// Relays that are no longer targets. Never a bootstrap relay.
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
            // `None` is less than any level.
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

/// Roots that are added to or removed from each relay.
type RootsByRelay<'a> = BTreeMap<&'a RelayUrl, Vec<RootId>>;

/// Builds each set at once, which is cheaper than inserting one by one.
fn set_roots(roots_by_relay: RootsByRelay<'_>, side: &mut BTreeMap<RelayUrl, RelaySyncNeeds>) {
    for (relay, roots) in roots_by_relay {
        let needs = side.entry(relay.clone()).or_default();
        needs.root_events = roots.into_iter().collect();
    }
}

/// The targets before the batch, as far as it changes them.
#[derive(Default)]
pub(super) struct Before {
    relays: BTreeMap<RelayUrl, bool>,
    /// Level and relays of a repository; its roots are recorded separately.
    repos: BTreeMap<RepoId, Option<RepoSyncNeeds>>,
    /// The relays from which a root was wanted.
    roots: BTreeMap<RootId, BTreeSet<RelayUrl>>,
    members: BTreeMap<Coordinate, BTreeSet<RelayUrl>>,
}

impl Before {
    /// Records whether a relay is a target, before that changes.
    pub(super) fn relay(&mut self, index: &SyncIndex, relay: &RelayUrl) {
        let is_target = index.relays.contains_key(relay);
        self.relays.entry(relay.clone()).or_insert(is_target);
    }

    /// Records a repository with its roots, before its relays or level change.
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

    /// Records the relays for a coordinate, unless recorded before.
    pub(super) fn member(&mut self, index: &SyncIndex, member: &Coordinate) {
        let wanted_from = || index.member_wanted_from(member).into_owned();
        self.members.entry(member.clone()).or_insert_with(wanted_from);
    }

    /// Records the relays of a root, before its repositories change.
    pub(super) fn root(&mut self, index: &SyncIndex, root: &RootId) {
        self.roots.entry(*root).or_insert_with(|| index.wanted_from(root).into_owned());
    }

    /// Compares the recorded targets with the current ones.
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
        // Most of the many roots have the same relays before and after.
        let mut groups: BTreeMap<_, Vec<RootId>> = BTreeMap::new();
        for (root, was) in &self.roots {
            let group = (was, index.wanted_from(root));
            groups.entry(group).or_default().push(*root);
        }
        let (mut added, mut removed) = (RootsByRelay::new(), RootsByRelay::new());
        for ((was, is), roots) in &groups {
            for relay in is.difference(was) {
                added.entry(relay).or_default().extend(roots);
            }
            for relay in was.difference(is) {
                removed.entry(relay).or_default().extend(roots);
            }
        }
        set_roots(added, &mut delta.added);
        set_roots(removed, &mut delta.removed);
    }
}
