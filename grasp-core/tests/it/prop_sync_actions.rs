//! Target − pending − confirmed, item by item.

use std::collections::BTreeMap;

use grasp_core::RelayUrl;
use grasp_core::sync::{History, PendingItems, RelayState, compute_actions};
use nostr::types::Timestamp;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::prop_sync_world::{Targets, any_items, any_relay};

/// A relay in any phase, with any confirmed items.
fn any_state() -> impl Strategy<Value = RelayState> {
    (0..6usize, any_items()).prop_map(|(steps, confirmed)| {
        let transitions: [fn(&mut RelayState); 5] = [
            RelayState::connecting,
            |state| _ = state.connected(Timestamp::from_secs(9)),
            |state| state.history_ended(History::BatchesFailed),
            |state| state.history_ended(History::Complete),
            |state| state.disconnected(Timestamp::from_secs(10)),
        ];
        let mut state = RelayState::new(false);
        transitions
            .iter()
            .take(steps)
            .for_each(|step| step(&mut state));
        state.confirm(confirmed);
        state
    })
}

#[derive(Clone, Debug)]
struct World {
    targets: Targets,
    pending: BTreeMap<RelayUrl, Vec<PendingItems>>,
    relays: BTreeMap<RelayUrl, RelayState>,
}

impl World {
    fn actions(&self) -> BTreeMap<RelayUrl, PendingItems> {
        let one = |relay: &RelayUrl, target| {
            let pending = self.pending.get(relay).into_iter().flatten();
            compute_actions(target, pending, self.relays.get(relay)?)
        };
        let actions = self.targets.iter();
        actions
            .filter_map(|(relay, target)| Some((relay.clone(), one(relay, target)?)))
            .collect()
    }

    fn is_connected(&self, relay: &RelayUrl) -> bool {
        let state = self.relays.get(relay);
        state.is_some_and(|state| state.connection_status().is_connected())
    }
}

fn any_world() -> impl Strategy<Value = World> {
    let targets = btree_map(any_relay(), any_items(), 0..5);
    let pending = btree_map(any_relay(), vec(any_items(), 0..3), 0..5);
    let relays = btree_map(any_relay(), any_state(), 0..5);
    (targets, pending, relays).prop_map(|(targets, pending, relays)| World {
        targets,
        pending,
        relays,
    })
}

proptest! {
    #[test]
    fn requests_an_item_iff_wanted_and_neither_pending_nor_confirmed(world in any_world()) {
        let asked = world.actions();
        prop_assert!(asked.values().all(|items| !items.is_empty()));
        prop_assert!(asked.keys().all(|relay| world.targets.contains_key(relay)));
        for (relay, target) in &world.targets {
            let batches = world.pending.get(relay).into_iter().flatten();
            let confirmed = world.relays.get(relay).map(|state| &state.confirmed);
            let had: Vec<_> = batches.chain(confirmed).collect();
            let asked = asked.get(relay).cloned().unwrap_or_default();
            let is_connected = world.is_connected(relay);
            for (repo, level) in &target.repos {
                let have = had.iter().any(|items| items.includes_repo(repo, *level));
                prop_assert_eq!(asked.repos.get(repo) == Some(level), is_connected && !have);
            }
            for root in &target.root_events {
                let have = had.iter().any(|items| items.root_events.contains(root));
                prop_assert_eq!(asked.root_events.contains(root), is_connected && !have);
            }
            prop_assert!(asked.without(target).is_empty(), "only wanted items are requested");
        }
    }

    #[test]
    fn requests_nothing_once_pending(mut world in any_world()) {
        for (relay, items) in world.actions() {
            world.pending.entry(relay).or_default().push(items);
        }
        prop_assert_eq!(world.actions(), BTreeMap::new());
    }

    #[test]
    fn requests_nothing_once_confirmed(mut world in any_world()) {
        for (relay, items) in world.actions() {
            world.relays.get_mut(&relay).unwrap().confirm(items);
        }
        prop_assert_eq!(world.actions(), BTreeMap::new());
    }
}
