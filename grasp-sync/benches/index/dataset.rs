//! Repositories, roots and relays at the target scale of the index, the same on every run.

#![allow(dead_code, reason = "each bench uses its part")]

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::sync::{
    IndexChange, PendingItems, RelayState, RelaySyncNeeds, RootId, SyncIndex, SyncLevel,
    compute_actions, derive_relay_targets,
};
use grasp_core::{RelayUrl, RepoId, ServiceIdentity, Version};
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::types::Timestamp;

/// The state of each relay.
pub(crate) type States = BTreeMap<RelayUrl, RelayState>;

pub(crate) const REPOS: usize = 1_000;
pub(crate) const ROOTS_PER_REPO: usize = 50;
pub(crate) const RELAYS: usize = 100;
pub(crate) const RELAYS_PER_REPO: usize = 5;

pub(crate) fn us() -> ServiceIdentity {
    "us.example".parse().expect("a good address")
}

pub(crate) fn relay(n: usize) -> RelayUrl {
    format!("wss://relay-{n}.example")
        .parse()
        .expect("a good URL")
}

/// Returns the index of `repos` repositories, added one after the other.
pub(crate) fn filled_index(repos: usize) -> SyncIndex {
    let mut index = SyncIndex::new(us(), []);
    for n in 0..repos {
        index.apply(changes_of(n));
    }
    index
}

/// Returns the changes of one repository: its announcement, then its roots.
pub(crate) fn changes_of(n: usize) -> impl Iterator<Item = IndexChange> {
    let others = (0..RELAYS_PER_REPO).map(|i| relay((n * 7 + i * 19) % RELAYS));
    let ours = "wss://us.example".parse().expect("a good URL");
    let announced = IndexChange::Announced {
        repo: repo(n),
        version: Version {
            created_at: Timestamp::from_secs(1),
            id: EventId::from_byte_array([0; 32]),
        },
        relays: others.chain([ours]).collect(),
        level: SyncLevel::Full,
    };
    let roots = (0..ROOTS_PER_REPO).map(move |i| IndexChange::RootAdded {
        root: root(n, i),
        repos: vec![repo(n)],
        author: None,
    });
    [announced].into_iter().chain(roots)
}

/// Returns the changes that remove a repository and its roots.
pub(crate) fn undoing(n: usize) -> impl Iterator<Item = IndexChange> {
    let roots = (0..ROOTS_PER_REPO).map(move |i| IndexChange::RootRemoved { root: root(n, i) });
    roots.chain([IndexChange::Retired { repo: repo(n) }])
}

/// Returns all relays, connected and without confirmed items.
pub(crate) fn connected_relays() -> States {
    (0..RELAYS)
        .map(|n| {
            let mut state = RelayState::new(false);
            let _ = state.connected(Timestamp::from_secs(1_700_000_000));
            (relay(n), state)
        })
        .collect()
}

/// Returns all actions, derived from scratch.
pub(crate) fn whole(index: &SyncIndex, relays: &States) -> Vec<(RelayUrl, PendingItems)> {
    actions(
        &derive_relay_targets(index.repos(), &index.authors(), &us(), &BTreeSet::new()),
        relays,
    )
}

/// Returns the items to request from each relay, if none is pending.
pub(crate) fn actions(
    targets: &BTreeMap<RelayUrl, RelaySyncNeeds>,
    relays: &States,
) -> Vec<(RelayUrl, PendingItems)> {
    let one = |(relay, target): (&RelayUrl, &RelaySyncNeeds)| {
        Some((
            relay.clone(),
            compute_actions(target, [], relays.get(relay)?)?,
        ))
    };
    targets.iter().filter_map(one).collect()
}

pub(crate) fn confirm(relays: &mut States, actions: Vec<(RelayUrl, PendingItems)>) {
    for (relay, items) in actions {
        let state = relays.get_mut(&relay).expect("only known relays are asked");
        state.confirm(items);
    }
}

fn repo(n: usize) -> RepoId {
    let identifier = format!("repository-{n}").parse().expect("a good name");
    RepoId::new(PublicKey::from_byte_array(spread(n)), identifier)
}

fn root(repo: usize, n: usize) -> RootId {
    EventId::from_byte_array(spread(repo * ROOTS_PER_REPO + n)).into()
}

/// Spreads a number over 32 bytes so that neighbours end up far apart, as hashes do.
fn spread(n: usize) -> [u8; 32] {
    let mut state = n as u64;
    let mut bytes = [0; 32];
    for part in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        part.copy_from_slice(&(mixed ^ (mixed >> 31)).to_be_bytes());
    }
    bytes
}
