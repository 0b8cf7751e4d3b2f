//! The incremental index equals a derivation from scratch, and reports every difference.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::sync::{
    IndexChange, RelayState, RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds, RootId, SyncDelta,
    SyncIndex, SyncLevel, UserNeeds, compute_actions, derive_relay_targets,
};
use grasp_core::{RelayUrl, RepoId, Version, kinds};
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::prop_sync_world::{
    Targets, any_level, any_relay, any_repo, any_root, any_version, bootstrap, us,
};

fn any_change() -> impl Strategy<Value = IndexChange> {
    let relays = btree_set(any_relay(), 0..4).prop_map(|relays| relays.into_iter().collect());
    let announced = (any_repo(), any_version(), relays, any_level());
    let unlisted = (any_repo(), any_version(), any_level());
    let root = (any_root(), vec(any_repo(), 1..3));
    let user_relays = (any_author(), btree_set(any_relay(), 0..4));
    prop_oneof![
        4 => announced.prop_map(|(repo, version, relays, level)| IndexChange::Announced { repo, version, relays, level }),
        1 => unlisted.prop_map(|(repo, version, level)| IndexChange::Unlisted { repo, version, level }),
        2 => any_repo().prop_map(|repo| IndexChange::Retired { repo }),
        6 => root.prop_map(|(root, repos)| IndexChange::RootAdded { author: author_of(&root), root, repos }),
        2 => user_relays.prop_map(|(author, relays)| IndexChange::UserRelays { author, relays }),
        2 => any_root().prop_map(|root| IndexChange::RootRemoved { root }),
    ]
}

fn author(n: u8) -> PublicKey {
    PublicKey::from_byte_array([100 + n; 32])
}

/// One of a few authors.
fn any_author() -> impl Strategy<Value = PublicKey> {
    (0..3u8).prop_map(author)
}

/// Returns the author of a root, which never changes; `None` for some.
fn author_of(root: &RootId) -> Option<PublicKey> {
    let bytes = root.event();
    let [first, .., last] = bytes.as_bytes();
    (*last > 0).then(|| author(*first))
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

/// The greatest announcement of a repository, and its relays if it is followed.
struct Announced {
    version: (SyncLevel, Version),
    relays: Option<BTreeSet<RelayUrl>>,
}

/// A simple model of the index.
#[derive(Default)]
struct Model {
    announced: BTreeMap<RepoId, Announced>,
    roots: BTreeSet<(RootId, RepoId)>,
    authors: BTreeMap<PublicKey, UserNeeds>,
}

impl Model {
    fn apply(&mut self, change: IndexChange) {
        match change {
            IndexChange::Announced {
                repo,
                version,
                relays,
                level,
            } => {
                let relays = Some(relays.into_iter().collect());
                let version = (level, version);
                self.announce(repo, Announced { version, relays });
            }
            IndexChange::Unlisted {
                repo,
                version,
                level,
            } => {
                let version = (level, version);
                let relays = None;
                self.announce(repo, Announced { version, relays });
            }
            IndexChange::Retired { repo } => {
                self.announced.remove(&repo);
            }
            IndexChange::RootAdded {
                root,
                repos,
                author,
            } => {
                self.roots
                    .extend(repos.into_iter().map(|repo| (root, repo)));
                if let Some(author) = author {
                    self.authors.entry(author).or_default().roots.insert(root);
                }
            }
            IndexChange::UserRelays { author, relays } => {
                self.authors.entry(author).or_default().relays = relays;
            }
            IndexChange::RootRemoved { root } => {
                self.roots.retain(|(have, _)| *have != root);
                for needs in self.authors.values_mut() {
                    needs.roots.remove(&root);
                }
            }
            other => unreachable!("{other:?} is not in this model"),
        }
    }

    fn announce(&mut self, repo: RepoId, new: Announced) {
        let known = self.announced.get(&repo);
        if known.is_none_or(|known| known.version <= new.version) {
            self.announced.insert(repo, new);
        }
    }

    fn targets(&self) -> Targets {
        let mut repos = RepoSyncIndex::new();
        for (repo, announced) in &self.announced {
            let Some(relays) = &announced.relays else {
                continue;
            };
            let mut needs = RepoSyncNeeds::new(announced.version.0, relays.iter().cloned());
            let own = self.roots.iter().filter(|(_, owner)| owner == repo);
            needs.root_events.extend(own.map(|(root, _)| *root));
            repos.insert(repo.clone(), needs);
        }
        derive_relay_targets(&repos, &self.authors, &us(), &bootstrap())
    }
}

fn derived(index: &SyncIndex) -> Targets {
    derive_relay_targets(index.repos(), &index.authors(), &us(), &bootstrap())
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

/// Announcements of which equal versions are equal.
fn any_announcements() -> impl Strategy<Value = Vec<IndexChange>> {
    let key = |change: &IndexChange| match change {
        IndexChange::Announced { repo, version, .. }
        | IndexChange::Unlisted { repo, version, .. } => {
            Some((repo.clone(), version.created_at, version.id))
        }
        _ => None,
    };
    vec(any_change(), 1..40).prop_map(move |mut changes| {
        let mut seen = BTreeSet::new();
        changes.retain(|change| key(change).is_some_and(|key| seen.insert(key)));
        changes
    })
}

/// Returns an event of its own for each number.
fn reply(n: usize) -> RootId {
    EventId::from_byte_array([100 + n as u8; 32]).into()
}

fn member(n: usize) -> Coordinate {
    Coordinate {
        kind: kinds::SOFTWARE,
        public_key: PublicKey::from_byte_array([1; 32]),
        identifier: n.to_string(),
    }
}

/// Roots, and replies to any of them or of each other, also in two threads or to an event that never comes.
fn any_threads() -> impl Strategy<Value = Vec<IndexChange>> {
    let roots = btree_map(any_root(), vec(any_repo(), 1..3), 1..6);
    let replies = vec(vec(any::<Index>(), 1..4), 0..8);
    let user_relays = vec(btree_set(any_relay(), 0..3), 3);
    (roots, replies, user_relays).prop_map(|(roots, replies, user_relays)| {
        let never = EventId::from_byte_array([99; 32]).into();
        let mut events: Vec<RootId> = roots.keys().copied().chain([never]).collect();
        let mut changes = Vec::new();
        for (n, relays) in user_relays.into_iter().enumerate() {
            let author = author(n as u8);
            changes.push(IndexChange::UserRelays { author, relays });
        }
        for (root, repos) in roots {
            let author = author_of(&root);
            changes.push(IndexChange::RootAdded {
                root,
                repos,
                author,
            });
        }
        for (n, to) in replies.into_iter().enumerate() {
            let to = to.iter().map(|event| *event.get(&events)).collect();
            let reply = reply(n);
            changes.push(IndexChange::Replied { reply, to });
            events.push(reply);
        }
        changes
    })
}

/// Addressable events, each of which names repositories, other ones, or both.
fn any_members() -> impl Strategy<Value = Vec<IndexChange>> {
    let named = (vec(any_repo(), 0..3), vec(0..8_usize, 0..3));
    vec(named, 0..7).prop_map(|members| {
        let mut changes = Vec::new();
        for (n, (repos, of)) in members.into_iter().enumerate() {
            let of = of.into_iter().map(member).collect();
            let member = member(n);
            changes.push(IndexChange::MemberAdded { member, repos, of });
        }
        changes
    })
}

/// What a feed of stored events tells. Each at least once.
fn any_feed() -> impl Strategy<Value = Vec<IndexChange>> {
    let parts = (any_announcements(), any_threads(), any_members());
    parts.prop_map(|(announcements, threads, members)| [announcements, threads, members].concat())
}

/// Returns all that may be removed: repositories, roots and replies.
fn removals(feed: &[IndexChange]) -> Vec<IndexChange> {
    let mut removals = Vec::new();
    for change in feed {
        match change {
            IndexChange::Announced { repo, .. } => {
                removals.push(IndexChange::Retired { repo: repo.clone() });
            }
            IndexChange::RootAdded { root, .. } | IndexChange::Replied { reply: root, .. } => {
                removals.push(IndexChange::RootRemoved { root: *root });
            }
            _ => {}
        }
    }
    removals
}

/// Returns whether a removal has to come after this change, because it undoes it.
fn is_before(change: &IndexChange, removal: &IndexChange) -> bool {
    match (change, removal) {
        (
            IndexChange::Announced { repo, .. } | IndexChange::Unlisted { repo, .. },
            IndexChange::Retired { repo: removed },
        ) => repo == removed,
        (
            IndexChange::RootAdded { root, .. } | IndexChange::Replied { reply: root, .. },
            IndexChange::RootRemoved { root: removed },
        ) => root == removed,
        _ => false,
    }
}

/// A feed and some removals, and the same in another order with repetitions.
fn any_two_orders() -> impl Strategy<Value = (Vec<IndexChange>, Vec<IndexChange>)> {
    let feed_and_removals = any_feed().prop_flat_map(|feed| {
        let some = prop::sample::subsequence(removals(&feed), 0..=removals(&feed).len().min(4));
        (Just(feed), some)
    });
    let shuffled = feed_and_removals.prop_flat_map(|(feed, removals)| {
        let repeated = [feed.clone(), feed.clone()].concat();
        let places = vec(any::<Index>(), removals.len());
        (
            Just((feed, removals)),
            Just(repeated).prop_shuffle(),
            places,
        )
    });
    shuffled.prop_map(|((feed, removals), mut other, places)| {
        for (removal, place) in removals.iter().zip(places) {
            let last = other.iter().rposition(|change| is_before(change, removal));
            let earliest = last.map_or(0, |last| last + 1);
            let place = earliest + place.index(other.len() - earliest + 1);
            other.insert(place, removal.clone());
        }
        ([feed, removals].concat(), other)
    })
}

proptest! {
    #[test]
    fn any_order_and_repetition_of_the_feed_gives_the_same_index(
        (feed, shuffled) in any_two_orders(),
    ) {
        let mut index = SyncIndex::new(us(), bootstrap());
        index.apply(feed);
        let mut other = SyncIndex::new(us(), bootstrap());
        for change in shuffled {
            other.apply([change]);
        }
        prop_assert_eq!(index.repos(), other.repos());
        prop_assert_eq!(view(&index), view(&other));
    }

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
            prop_assert_eq!(view(&index), derived(&index));
        }
    }

    #[test]
    fn a_delta_is_exactly_the_difference(batches in any_batches()) {
        let mut index = SyncIndex::new(us(), bootstrap());
        for batch in batches {
            let before = view(&index);
            let delta = index.apply(batch);
            let after = view(&index);
            prop_assert_eq!(&after, &derived(&index));
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
    fn the_relays_of_authors_add_their_roots_and_nothing_else(batches in any_batches()) {
        let with_user_relays: Vec<_> = batches.into_iter().flatten().collect();
        let is_of_user = |change: &IndexChange| matches!(change, IndexChange::UserRelays { .. });
        let without = with_user_relays.iter().filter(|change| !is_of_user(change)).cloned();
        let mut plain = SyncIndex::new(us(), bootstrap());
        plain.apply(without);
        let mut index = SyncIndex::new(us(), bootstrap());
        index.apply(with_user_relays);
        let authors = index.authors();
        for (relay, more) in surplus(&view(&index), &view(&plain)) {
            prop_assert!(more.repos.is_empty() && more.coordinates.is_empty());
            for root in &more.root_events {
                let author = author_of(root).unwrap();
                prop_assert!(authors[&author].relays.contains(&relay));
            }
        }
        prop_assert_eq!(surplus(&view(&plain), &view(&index)), Targets::new());
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
