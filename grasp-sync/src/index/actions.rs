//! The decision on new subscriptions.

use std::collections::BTreeMap;

use nostr::filter::Filter;

use super::budget::RequestBudget;
use super::filters::build_layer2_and_layer3_filters;
use super::items::RelaySyncNeeds;
use super::pending::{PendingBatch, PendingItems, PendingSyncIndex};
use super::state::{RelayState, RelaySyncIndex};
use grasp_core::RelayUrl;

/// New items to request from a connected relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddFilters {
    /// Relay to ask.
    pub relay: RelayUrl,
    /// Items of the batch that this becomes.
    pub items: PendingItems,
}

impl AddFilters {
    /// Builds the filters for these items.
    pub fn filters(&self, budget: &RequestBudget) -> Vec<Filter> {
        build_layer2_and_layer3_filters(&self.items, None, budget)
    }
}

/// Returns the items that are wanted and neither pending nor confirmed: target − pending − confirmed.
///
/// Relays that are not connected are left out; they are asked when they connect. Announcements (layer 1) and
/// the catch-up of confirmed items are decided with the connection, not here.
///
/// The targets may be those of all relays, or only those that a change has added
/// ([`SyncDelta::added`](super::SyncDelta::added)): if nothing was open before the change, the result is the same.
///
/// ```
/// use std::collections::BTreeMap;
/// use grasp_core::{RelayUrl, RepoId};
/// use grasp_sync::index::{PendingSyncIndex, RelayState, RelaySyncIndex, RelaySyncNeeds, SyncLevel, compute_actions};
/// use nostr::types::Timestamp;
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:grasp").parse()?;
/// let relay: RelayUrl = "wss://other.example".parse()?;
/// let needs = RelaySyncNeeds { repos: [(repo, SyncLevel::Full)].into(), ..Default::default() };
/// let targets = BTreeMap::from([(relay.clone(), needs.clone())]);
///
/// let mut relays = RelaySyncIndex::from([(relay.clone(), RelayState::new(false))]);
/// let pending = PendingSyncIndex::new();
/// assert!(compute_actions(&targets, &pending, &relays).is_empty(), "not connected");
///
/// let state = relays.get_mut(&relay).unwrap();
/// let _ = state.connected(Timestamp::from_secs(1_700_000_000));
/// assert_eq!(compute_actions(&targets, &pending, &relays)[0].items, needs);
///
/// relays.get_mut(&relay).unwrap().confirm(needs);
/// assert!(compute_actions(&targets, &pending, &relays).is_empty(), "confirmed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compute_actions(
    targets: &BTreeMap<RelayUrl, RelaySyncNeeds>,
    pending: &PendingSyncIndex,
    confirmed: &RelaySyncIndex,
) -> Vec<AddFilters> {
    targets
        .iter()
        .filter_map(|(relay, target)| {
            let batches = pending.get(relay).map_or(&[][..], Vec::as_slice);
            let items = new_items(target, batches, confirmed.get(relay)?)?;
            let relay = relay.clone();
            Some(AddFilters { relay, items })
        })
        .collect()
}

/// Returns the difference for one relay; `None` if it is empty or the relay is not connected.
fn new_items(
    target: &RelaySyncNeeds,
    pending: &[PendingBatch],
    state: &RelayState,
) -> Option<PendingItems> {
    if !state.connection_status().is_connected() {
        return None;
    }
    let mut new = target.without(&state.confirmed);
    for batch in pending {
        if new.is_empty() {
            break;
        }
        new = new.without(&batch.items);
    }
    (!new.is_empty()).then_some(new)
}

#[cfg(test)]
mod tests {
    use nostr::event::EventId;
    use nostr::key::PublicKey;
    use nostr::types::Timestamp;

    use super::super::{BatchId, History, PartId, SyncLevel};
    use super::*;
    use grasp_core::RepoId;

    fn needs(repos: &[(u8, SyncLevel)], roots: &[u8]) -> RelaySyncNeeds {
        let repo = |n| RepoId::new(PublicKey::from_byte_array([n; 32]), "r".parse().unwrap());
        RelaySyncNeeds {
            repos: repos.iter().map(|(n, level)| (repo(*n), *level)).collect(),
            root_events: roots.iter().map(|n| EventId::from_byte_array([*n; 32]).into()).collect(),
            ..RelaySyncNeeds::default()
        }
    }

    fn connected() -> RelayState {
        let mut state = RelayState::new(false);
        let _ = state.connected(Timestamp::from_secs(1));
        state
    }

    fn actions(
        target: &RelaySyncNeeds,
        batches: Vec<PendingBatch>,
        state: RelayState,
    ) -> Vec<AddFilters> {
        let relay: RelayUrl = "wss://a.example".parse().unwrap();
        compute_actions(
            &[(relay.clone(), target.clone())].into(),
            &[(relay.clone(), batches)].into(),
            &[(relay, state)].into(),
        )
    }

    fn batch(items: RelaySyncNeeds) -> PendingBatch {
        PendingBatch::new(BatchId(1), items, [PartId(1)])
    }

    use SyncLevel::{Full, StateOnly};

    #[test]
    fn requests_only_items_neither_pending_nor_confirmed() {
        let mut state = connected();
        state.confirm(needs(&[(1, Full)], &[1]));
        let batches = vec![batch(needs(&[(2, Full)], &[])), batch(needs(&[], &[2]))];
        let target = needs(&[(1, Full), (2, Full), (3, Full)], &[1, 2, 3]);
        let actions = actions(&target, batches, state);
        assert_eq!(actions.len(), 1);
        assert_eq!(actions[0].items, needs(&[(3, Full)], &[3]));
    }

    #[test]
    fn requests_a_promoted_repository_in_full() {
        let mut state = connected();
        state.confirm(needs(&[(1, StateOnly)], &[]));
        let batches = vec![batch(needs(&[(2, StateOnly)], &[]))];
        let target = needs(&[(1, Full), (2, Full)], &[]);
        assert_eq!(actions(&target, batches, state)[0].items, target);
    }

    #[test]
    fn asks_only_connected_relays() {
        let target = needs(&[(1, Full)], &[]);
        let asked = |state: &RelayState| !actions(&target, vec![], state.clone()).is_empty();
        let mut state = RelayState::new(true);
        assert!(!asked(&state));
        state.connecting();
        assert!(!asked(&state));
        let _ = state.connected(Timestamp::from_secs(1));
        assert!(asked(&state));
        state.history_ended(History::BatchesFailed);
        assert!(asked(&state));
        state.history_ended(History::Complete);
        assert!(asked(&state));
        state.disconnected(Timestamp::from_secs(2));
        assert!(!asked(&state));
    }

    #[test]
    fn does_not_ask_a_relay_without_state() {
        let relay: RelayUrl = "wss://a.example".parse().unwrap();
        let targets = [(relay, needs(&[(1, Full)], &[]))].into();
        assert!(compute_actions(&targets, &BTreeMap::new(), &BTreeMap::new()).is_empty());
    }
}
