//! The incremental index equals a derivation from scratch, and reports every difference.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::{RelayUrl, RepoId};
use grasp_sync::index::{
    IndexChange, RelayState, RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds, RootId, SyncDelta,
    SyncIndex, SyncLevel, compute_actions, derive_relay_targets,
};
use nostr::types::Timestamp;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use crate::prop_sync_world::{Targets, any_level, any_relay, any_repo, any_root, bootstrap, us};

fn any_change() -> impl Strategy<Value = IndexChange> {
    let relays = btree_set(any_relay(), 0..4).prop_map(|relays| relays.into_iter().collect());
    let announced = (any_repo(), relays, any_level());
    prop_oneof![
        4 => announced.prop_map(|(repo, relays, level)| IndexChange::Announced { repo, relays, level }),
        2 => any_repo().prop_map(|repo| IndexChange::Retired { repo }),
        6 => (any_root(), vec(any_repo(), 1..3)).prop_map(|(root, repos)| IndexChange::RootAdded { root, repos }),
        2 => any_root().prop_map(|root| IndexChange::RootRemoved { root }),
    ]
}

/// Changes with replies, whose repositories depend on all earlier changes.
fn any_change_or_reply() -> impl Strategy<Value = IndexChange> {
    let replied = (any_root(), vec(any_root(), 1..3));
    prop_oneof![
        4 => any_change(),
        1 => replied.prop_map(|(reply, to)| IndexChange::Replied { reply, to }),
    ]
}

fn any_batches() -> impl Strategy<Value = Vec<Vec<IndexChange>>> {
    vec(vec(any_change_or_reply(), 1..8), 1..12)
}

/// A simple model of the index.
#[derive(Default)]
struct Model {
    announced: BTreeMap<RepoId, (BTreeSet<RelayUrl>, SyncLevel)>,
    roots: BTreeSet<(RootId, RepoId)>,
}

impl Model {
    fn apply(&mut self, change: IndexChange) {
        match change {
            IndexChange::Announced {
                repo,
                relays,
                level,
            } => {
                self.announced
                    .insert(repo, (relays.into_iter().collect(), level));
            }
            IndexChange::Retired { repo } => {
                self.announced.remove(&repo);
            }
            IndexChange::RootAdded { root, repos } => {
                self.roots
                    .extend(repos.into_iter().map(|repo| (root, repo)));
            }
            IndexChange::RootRemoved { root } => self.roots.retain(|(have, _)| *have != root),
            IndexChange::Replied { .. } | IndexChange::MemberAdded { .. } => {
                unreachable!("neither replies nor members in this model")
            }
        }
    }

    fn targets(&self) -> Targets {
        let needs = |(repo, (relays, level)): (&RepoId, &(BTreeSet<RelayUrl>, SyncLevel))| {
            let mut needs = RepoSyncNeeds::new(*level, relays.iter().cloned());
            let own = self.roots.iter().filter(|(_, owner)| owner == repo);
            needs.root_events.extend(own.map(|(root, _)| *root));
            (repo.clone(), needs)
        };
        let repos: RepoSyncIndex = self.announced.iter().map(needs).collect();
        derive_relay_targets(&repos, &us(), &bootstrap())
    }
}

fn view(index: &SyncIndex) -> Targets {
    let target = |relay: &RelayUrl| (relay.clone(), index.target(relay).unwrap());
    index.relays().map(target).collect()
}

/// Returns the items in `to` that are not in `from`, without relays for which there are none.
fn surplus(to: &Targets, from: &Targets) -> Targets {
    let none = RelaySyncNeeds::default();
    to.iter()
        .map(|(relay, needs)| {
            (
                relay.clone(),
                needs.without(from.get(relay).unwrap_or(&none)),
            )
        })
        .filter(|(_, needs)| !needs.is_empty())
        .collect()
}

fn relays_only_in(one: &Targets, other: &Targets) -> BTreeSet<RelayUrl> {
    one.keys()
        .filter(|relay| !other.contains_key(*relay))
        .cloned()
        .collect()
}

fn connected(targets: &Targets) -> BTreeMap<RelayUrl, RelayState> {
    let state = |needs: &RelaySyncNeeds| {
        let mut state = RelayState::new(false);
        let _ = state.connected(Timestamp::from_secs(1));
        state.confirm(needs.clone());
        state
    };
    targets
        .iter()
        .map(|(relay, needs)| (relay.clone(), state(needs)))
        .collect()
}

proptest! {
    #[test]
    fn the_view_equals_a_derivation_from_scratch(
        batches in vec(vec(any_change(), 1..8), 1..12),
    ) {
        let mut index = SyncIndex::new(us(), bootstrap());
        let mut model = Model::default();
        for batch in batches {
            index.apply(batch.clone());
            batch.into_iter().for_each(|change| model.apply(change));
            prop_assert_eq!(view(&index), model.targets());
            prop_assert_eq!(view(&index), derive_relay_targets(index.repos(), &us(), &bootstrap()));
        }
    }

    #[test]
    fn a_delta_is_exactly_the_difference(batches in any_batches()) {
        let mut index = SyncIndex::new(us(), bootstrap());
        for batch in batches {
            let before = view(&index);
            let delta = index.apply(batch);
            let after = view(&index);
            prop_assert_eq!(&after, &derive_relay_targets(index.repos(), &us(), &bootstrap()));
            prop_assert_eq!(delta, SyncDelta {
                added: surplus(&after, &before),
                removed: surplus(&before, &after),
                discovered: relays_only_in(&after, &before),
                retired: relays_only_in(&before, &after),
            });
        }
    }

    #[test]
    fn the_added_items_are_all_that_is_to_be_requested(batches in any_batches(), last in vec(any_change(), 1..8)) {
        let mut index = SyncIndex::new(us(), bootstrap());
        index.apply(batches.into_iter().flatten());
        let mut relays = connected(&view(&index));
        let delta = index.apply(last);
        for relay in &delta.discovered {
            relays.extend(connected(&[(relay.clone(), RelaySyncNeeds::default())].into()));
        }
        let actions = |targets: &Targets| -> Targets {
            let one = |(relay, target): (&RelayUrl, _)| {
                Some((relay.clone(), compute_actions(target, [], relays.get(relay)?)?))
            };
            targets.iter().filter_map(one).collect()
        };
        prop_assert_eq!(actions(&delta.added), actions(&view(&index)));
    }

    #[test]
    fn one_batch_and_many_give_the_same_index(batches in any_batches()) {
        let mut stepwise = SyncIndex::new(us(), bootstrap());
        batches.iter().for_each(|batch| _ = stepwise.apply(batch.clone()));
        let mut at_once = SyncIndex::new(us(), bootstrap());
        let delta = at_once.apply(batches.into_iter().flatten());
        prop_assert_eq!(view(&at_once), view(&stepwise));
        prop_assert!(delta.removed.is_empty() && delta.retired.is_empty());
    }
}
