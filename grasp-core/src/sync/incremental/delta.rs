//! What a batch of changes did to the targets, exactly.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::EventId;

use super::SyncIndex;
use crate::sync::index::{RelaySyncNeeds, RepoSyncNeeds, SyncLevel};
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
    /// Whether the targets are as they were.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn relay(&mut self, relay: &RelayUrl, was: bool, is: bool) {
        match (was, is) {
            (false, true) => _ = self.discovered.insert(relay.clone()),
            (true, false) => _ = self.retired.insert(relay.clone()),
            _ => {}
        }
    }

    fn repo(
        &mut self,
        relay: &RelayUrl,
        repo: RepoId,
        was: Option<SyncLevel>,
        is: Option<SyncLevel>,
    ) {
        // No level is less than any level.
        let (side, level) = match is.cmp(&was) {
            std::cmp::Ordering::Greater => (&mut self.added, is),
            std::cmp::Ordering::Less => (&mut self.removed, was),
            std::cmp::Ordering::Equal => return,
        };
        if let Some(level) = level {
            needs_at(side, relay).repos.insert(repo, level);
        }
    }

    fn root(&mut self, relay: &RelayUrl, root: EventId, was: bool, is: bool) {
        let side = match (was, is) {
            (false, true) => &mut self.added,
            (true, false) => &mut self.removed,
            _ => return,
        };
        needs_at(side, relay).root_events.insert(root);
    }
}

fn needs_at<'a>(
    side: &'a mut BTreeMap<RelayUrl, RelaySyncNeeds>,
    relay: &RelayUrl,
) -> &'a mut RelaySyncNeeds {
    side.entry(relay.clone()).or_default()
}

/// How everything stood before it was first touched in this batch.
#[derive(Default)]
pub(super) struct Before {
    relays: BTreeMap<RelayUrl, RelayBefore>,
    roots: BTreeMap<EventId, BTreeMap<RelayUrl, bool>>,
}

struct RelayBefore {
    was_target: bool,
    repos: BTreeMap<RepoId, Option<SyncLevel>>,
}

impl Before {
    /// Notes a repository and its roots at these relays, before they change there.
    pub(super) fn remember(
        &mut self,
        index: &SyncIndex,
        repo: &RepoId,
        needs: &RepoSyncNeeds,
        relays: &[RelayUrl],
    ) {
        for relay in relays {
            let seen = self
                .relays
                .entry(relay.clone())
                .or_insert_with(|| RelayBefore {
                    was_target: index.relays.contains_key(relay),
                    repos: BTreeMap::new(),
                });
            seen.repos
                .entry(repo.clone())
                .or_insert_with(|| needs.level_at(relay));
        }
        for root in &needs.root_events {
            self.remember_root(index, *root, relays);
        }
    }

    /// Notes whether a root is wanted from these relays, before that changes.
    pub(super) fn remember_root<'a>(
        &mut self,
        index: &SyncIndex,
        root: EventId,
        relays: impl IntoIterator<Item = &'a RelayUrl>,
    ) {
        let seen = self.roots.entry(root).or_default();
        for relay in relays {
            if !seen.contains_key(relay) {
                seen.insert(relay.clone(), index.wants_root(relay, &root));
            }
        }
    }

    /// Holds what was against what is.
    pub(super) fn compare(self, index: &SyncIndex) -> SyncDelta {
        let mut delta = SyncDelta::default();
        for (relay, before) in self.relays {
            delta.relay(&relay, before.was_target, index.relays.contains_key(&relay));
            for (repo, was) in before.repos {
                let is = index.level_at(&relay, &repo);
                delta.repo(&relay, repo, was, is);
            }
        }
        for (root, relays) in self.roots {
            for (relay, was) in relays {
                delta.root(&relay, root, was, index.wants_root(&relay, &root));
            }
        }
        delta
    }
}
