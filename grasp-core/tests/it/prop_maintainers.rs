//! Maintainer sets are never larger than the announcements allow.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::maintainers::MaintainerModel::{Plain, Reciprocal};
use grasp_core::maintainers::{Lookup, MAX_MAINTAINERS, MaintainerLists};
use grasp_core::nip34::{Announcement, MaintainerList};
use nostr::key::PublicKey;
use proptest::prelude::*;

use crate::events::{event, key};

fn any_key() -> impl Strategy<Value = PublicKey> {
    (0u8..6).prop_map(key)
}

type Tags = Vec<Vec<String>>;

fn listed() -> impl Strategy<Value = Tags> {
    let tag = |key: PublicKey| vec!["maintainers".to_owned(), key.to_string()];
    prop::collection::vec(any_key().prop_map(tag), 0..4)
}

fn roles() -> impl Strategy<Value = Tags> {
    let role = prop::sample::select(vec!["M", "m", "o"]);
    let times = prop::sample::select(vec!["", "", "0 5", "0 defer", "nonsense"]);
    let tag = (role, any_key(), times).prop_map(|(role, key, times)| {
        let times = times.split_whitespace().map(str::to_owned);
        [role.to_owned(), key.to_string()]
            .into_iter()
            .chain(times)
            .collect()
    });
    prop::collection::vec(tag, 1..4)
}

/// Returns the maintainer lists of announcements with these tags.
fn parsed(tags: impl Strategy<Value = Tags>) -> impl Strategy<Value = MaintainerLists> {
    let list = |(author, mut tags): (u8, Tags)| {
        tags.push(vec!["d".to_owned(), "x".to_owned()]);
        let announcement = Announcement::parse(&event(30617, author, 1, 1, &tags)).unwrap();
        (key(author), announcement.maintainer_list)
    };
    prop::collection::btree_map(0u8..6, tags, 0..6)
        .prop_map(move |all| all.into_iter().map(list).collect())
}

fn maintainer_lists() -> impl Strategy<Value = MaintainerLists> {
    parsed(prop_oneof![listed(), roles()])
}

fn lists_without_roles() -> impl Strategy<Value = MaintainerLists> {
    parsed(listed())
}

fn list_of(listed: BTreeSet<PublicKey>) -> MaintainerList {
    MaintainerList {
        listed,
        ..MaintainerList::default()
    }
}

/// Returns the keys that listings lead to from one key.
fn reachable(from: PublicKey, maintainer_lists: &MaintainerLists) -> BTreeSet<PublicKey> {
    let mut seen = BTreeSet::from([from]);
    loop {
        let more: Vec<_> = seen
            .iter()
            .filter_map(|key| maintainer_lists.get(key))
            .flat_map(|list| list.listed.clone())
            .collect();
        let before = seen.len();
        seen.extend(more);
        if seen.len() == before {
            return seen;
        }
    }
}

/// Returns the key whose announcement counts, by following leads.
fn root(selected: PublicKey, maintainer_lists: &MaintainerLists) -> Option<PublicKey> {
    let mut at = selected;
    for _ in 0..=maintainer_lists.len() {
        let maintainer_list = maintainer_lists.get(&at)?;
        match Vec::from_iter(maintainer_list.leads.clone())[..] {
            [] if at == selected && !maintainer_list.author_left => return Some(at),
            [lead] if lead == at => return Some(at),
            [lead] => at = lead,
            _ => return None,
        }
    }
    None
}

/// Applies the rule to every key until nothing changes: listed by a member, listing a member, active.
fn by_repetition(selected: PublicKey, maintainer_lists: &MaintainerLists) -> BTreeSet<PublicKey> {
    let mut confirmed = BTreeSet::from_iter(root(selected, maintainer_lists));
    loop {
        let joins = |(key, maintainer_list): &(&PublicKey, &MaintainerList)| {
            !maintainer_list.author_left
                && confirmed.iter().any(|member| maintainer_list.lists(member))
                && confirmed
                    .iter()
                    .any(|m| maintainer_lists.get(m).is_some_and(|r| r.lists(key)))
        };
        let more: Vec<_> = maintainer_lists
            .iter()
            .filter(joins)
            .map(|(key, _)| *key)
            .collect();
        let before = confirmed.len();
        confirmed.extend(more);
        if confirmed.len() == before {
            return confirmed;
        }
    }
}

#[test]
fn a_long_chain_of_listings_ends_at_the_maximum_number_of_maintainers() {
    // Every key is listed at once, and each lists only the one before: the worst order.
    let numbered = |n: u32| {
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        PublicKey::from_byte_array(bytes)
    };
    const KEYS: u32 = 20_000;
    let all_keys = (1..KEYS).map(numbered).collect();
    let mut maintainer_lists = MaintainerLists::from([(numbered(0), list_of(all_keys))]);
    maintainer_lists.extend((1..KEYS).map(|n| (numbered(n), list_of([numbered(n - 1)].into()))));
    let maintainers = Reciprocal.maintainers(&numbered(0), &maintainer_lists);
    assert_eq!(maintainers.len(), MAX_MAINTAINERS);
}

proptest! {
    #[test]
    fn reading_outward_gives_the_same_set_and_reads_nothing_else(
        selected in any_key(), maintainer_lists in maintainer_lists(), stranger in any_key(), other in maintainer_lists(),
    ) {
        for model in [Plain, Reciprocal] {
            let mut read: BTreeMap<PublicKey, Option<MaintainerList>> = BTreeMap::new();
            let reach = loop {
                let reach = model.reach(&selected, |key| match read.get(key) {
                    None => Lookup::Unread,
                    Some(None) => Lookup::Absent,
                    Some(Some(list)) => Lookup::Read(list),
                });
                if reach.unread.is_empty() {
                    break reach;
                }
                read.extend(reach.unread.iter().map(|key| (*key, maintainer_lists.get(key).cloned())));
            };
            prop_assert_eq!(&reach.maintainers, &model.maintainers(&selected, &maintainer_lists));
            // Whatever a key outside of the reach announces changes nothing.
            if !read.contains_key(&stranger) {
                let mut more = maintainer_lists.clone();
                more.extend(other.get(&stranger).map(|list| (stranger, list.clone())));
                prop_assert_eq!(reach.maintainers, model.maintainers(&selected, &more));
            }
        }
    }

    #[test]
    fn the_reciprocal_set_equals_repeating_the_rule(selected in any_key(), maintainer_lists in maintainer_lists()) {
        let maintainers = Reciprocal.maintainers(&selected, &maintainer_lists);
        prop_assert_eq!(maintainers, by_repetition(selected, &maintainer_lists));
    }

    #[test]
    fn every_maintainer_is_reachable_by_listings(selected in any_key(), maintainer_lists in maintainer_lists()) {
        for model in [Plain, Reciprocal] {
            let maintainers = model.maintainers(&selected, &maintainer_lists);
            prop_assert!(maintainers.is_subset(&reachable(selected, &maintainer_lists)));
        }
    }

    #[test]
    fn a_key_that_left_is_not_a_maintainer(selected in any_key(), maintainer_lists in maintainer_lists()) {
        for model in [Plain, Reciprocal] {
            for member in model.maintainers(&selected, &maintainer_lists) {
                prop_assert!(maintainer_lists.get(&member).is_none_or(|maintainer_list| !maintainer_list.author_left));
            }
        }
    }

    #[test]
    fn reciprocal_maintainers_have_announced_and_list_each_other(selected in any_key(), maintainer_lists in maintainer_lists()) {
        let confirmed = Reciprocal.maintainers(&selected, &maintainer_lists);
        let mut roots = 0;
        for member in &confirmed {
            let own = maintainer_lists.get(member);
            prop_assert!(own.is_some(), "confirmed without an announcement");
            let others = || confirmed.iter().filter(|other| *other != member);
            let lists_back = others().any(|other| own.unwrap().lists(other));
            let is_listed = others().any(|other| maintainer_lists[other].lists(member));
            roots += usize::from(!(lists_back && is_listed));
        }
        prop_assert!(roots <= 1, "only the root may be without a mutual listing");
    }

    #[test]
    fn an_unannounced_repository_has_no_maintainers(selected in any_key(), mut maintainer_lists in maintainer_lists()) {
        maintainer_lists.remove(&selected);
        for model in [Plain, Reciprocal] {
            prop_assert!(model.maintainers(&selected, &maintainer_lists).is_empty());
        }
    }

    #[test]
    fn one_more_listing_removes_no_maintainer(selected in any_key(), maintainer_lists in lists_without_roles(), by in any_key(), listed_key in any_key()) {
        let mut more: BTreeMap<_, _> = maintainer_lists.clone();
        if let Some(list) = more.get_mut(&by) {
            list.listed.insert(listed_key);
        }
        for model in [Plain, Reciprocal] {
            let before = model.maintainers(&selected, &maintainer_lists);
            let after = model.maintainers(&selected, &more);
            prop_assert!(before.is_subset(&after));
        }
    }

    #[test]
    fn the_reciprocal_set_is_within_the_plain_set(selected in any_key(), maintainer_lists in lists_without_roles()) {
        let strict = Reciprocal.maintainers(&selected, &maintainer_lists);
        prop_assert!(strict.is_subset(&Plain.maintainers(&selected, &maintainer_lists)));
    }

    #[test]
    fn a_listed_key_is_no_maintainer_until_it_lists_back(selected in any_key(), maintainer_lists in lists_without_roles(), invited in any_key()) {
        let mut inviting = maintainer_lists.clone();
        let Some(list) = inviting.get_mut(&selected) else { return Ok(()) };
        list.listed.insert(invited);
        let before = Reciprocal.maintainers(&selected, &maintainer_lists);
        let after = Reciprocal.maintainers(&selected, &inviting);
        let accepts = maintainer_lists.get(&invited).is_some_and(|own| before.iter().any(|member| own.lists(member)));
        prop_assert!(accepts || before == after);
    }
}
