//! Strategies for repositories, relays and items: few names, so that changes collide, some of them unusual.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::sync::{RelaySyncNeeds, RootId, SyncLevel};
use grasp_core::{RelayUrl, RepoId, ServiceIdentity, Version};
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// The wanted items by relay.
pub(crate) type Targets = BTreeMap<RelayUrl, RelaySyncNeeds>;

pub(crate) fn us() -> ServiceIdentity {
    "us.example".parse().unwrap()
}

pub(crate) fn bootstrap() -> BTreeSet<RelayUrl> {
    [relay("r0"), relay("us")].into()
}

pub(crate) fn relay(name: &str) -> RelayUrl {
    format!("wss://{name}.example").parse().unwrap()
}

/// One of a few relays; sometimes our own.
pub(crate) fn any_relay() -> impl Strategy<Value = RelayUrl> {
    const NAMES: &[&str] = &["r0", "r1", "r2", "r3", "us"];
    prop::sample::select(NAMES).prop_map(relay)
}

/// One of a few repositories; two owners share names.
pub(crate) fn any_repo() -> impl Strategy<Value = RepoId> {
    (1..3u8, prop::sample::select(&["a", "b", "a:b"][..])).prop_map(|(n, name)| repo(n, name))
}

/// A repository with any name: escapes, other scripts, too long for most relays.
pub(crate) fn odd_repo() -> impl Strategy<Value = RepoId> {
    let names = prop_oneof![
        2 => "[a-z]{1,12}",
        1 => "[ -~]{1,40}",
        4 => "[\\x01-\\x1f\"]{1,180}",
        1 => "\\PC{1,60}",
        3 => "[a-z\\x01-\\x09]{180,1024}",
    ];
    (1..4u8, names).prop_filter_map("no name", |(n, name)| {
        let identifier = name.parse().ok()?;
        Some(RepoId::new(PublicKey::from_byte_array([n; 32]), identifier))
    })
}

fn repo(n: u8, name: &str) -> RepoId {
    RepoId::new(PublicKey::from_byte_array([n; 32]), name.parse().unwrap())
}

/// One of a few roots, some of which differ only in their last bytes.
pub(crate) fn any_root() -> impl Strategy<Value = RootId> {
    (0..3u8, 0..4u8).prop_map(|(first, last)| {
        let mut bytes = [first; 32];
        bytes[31] = last;
        EventId::from_byte_array(bytes).into()
    })
}

pub(crate) fn any_level() -> impl Strategy<Value = SyncLevel> {
    prop::sample::select(&[SyncLevel::StateOnly, SyncLevel::Full][..])
}

/// One of a few versions, some of which were signed in the same second.
pub(crate) fn any_version() -> impl Strategy<Value = Version> {
    (0..3u64, 0..2u8).prop_map(|(second, id)| Version {
        created_at: Timestamp::from_secs(second),
        id: EventId::from_byte_array([id; 32]),
    })
}

pub(crate) fn any_items() -> impl Strategy<Value = RelaySyncNeeds> {
    items_of(any_repo(), 6)
}

/// At most `most` repositories, and twice as many roots.
pub(crate) fn items_of(
    repo: impl Strategy<Value = RepoId>,
    most: usize,
) -> impl Strategy<Value = RelaySyncNeeds> {
    let repos = btree_map(repo, any_level(), 0..=most);
    let roots = vec(any_root(), 0..=2 * most);
    (repos, roots).prop_map(|(repos, roots)| RelaySyncNeeds {
        repos,
        root_events: roots.into_iter().collect(),
        ..RelaySyncNeeds::default()
    })
}
