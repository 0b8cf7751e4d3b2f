//! Authority is never wider than what people said.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::MaintainerModel::{Plain, Reciprocal};
use grasp_core::maintainers::Rosters;
use grasp_core::nip34::{Role, RoleRecord, Roster, Tenure};
use nostr::key::PublicKey;
use proptest::prelude::*;

use crate::events::key;

fn person() -> impl Strategy<Value = PublicKey> {
    (0u8..6).prop_map(key)
}

fn listed() -> impl Strategy<Value = Roster> {
    prop::collection::btree_set(person(), 0..4).prop_map(Roster::Listed)
}

fn roles() -> impl Strategy<Value = Roster> {
    let role = prop::sample::select(vec![Role::Lead, Role::Maintainer, Role::Moderator]);
    let tenure = prop::sample::select(vec![
        Tenure::Active,
        Tenure::Active,
        Tenure::Ended,
        Tenure::Deferred,
        Tenure::Void,
    ]);
    let record =
        (role, person(), tenure).prop_map(|(role, key, tenure)| RoleRecord { role, key, tenure });
    prop::collection::vec(record, 1..4).prop_map(Roster::Roles)
}

fn rosters() -> impl Strategy<Value = Rosters> {
    prop::collection::btree_map(person(), prop_oneof![listed(), roles()], 0..6)
}

fn plain_rosters() -> impl Strategy<Value = Rosters> {
    prop::collection::btree_map(person(), listed(), 0..6)
}

/// Whoever can be reached from one key by listings at all.
fn reachable(from: PublicKey, rosters: &Rosters) -> BTreeSet<PublicKey> {
    let mut seen = BTreeSet::from([from]);
    loop {
        let more: Vec<_> =
            seen.iter().filter_map(|key| rosters.get(key)).flat_map(Roster::listed).collect();
        let before = seen.len();
        seen.extend(more);
        if seen.len() == before {
            return seen;
        }
    }
}

/// Whose announcement counts, by following leads.
fn root(selected: PublicKey, rosters: &Rosters) -> Option<PublicKey> {
    let mut at = selected;
    for _ in 0..=rosters.len() {
        let roster = rosters.get(&at)?;
        match Vec::from_iter(roster.leads())[..] {
            [] if at == selected && roster.author_is_active(&at) => return Some(at),
            [lead] if lead == at => return Some(at),
            [lead] => at = lead,
            _ => return None,
        }
    }
    None
}

/// The rule as it is said, tried on everybody until nothing changes: listed by a member, listing a member, active.
fn by_repetition(selected: PublicKey, rosters: &Rosters) -> BTreeSet<PublicKey> {
    let mut confirmed = BTreeSet::from_iter(root(selected, rosters));
    loop {
        let joins = |(key, roster): &(&PublicKey, &Roster)| {
            roster.author_is_active(key)
                && confirmed.iter().any(|member| roster.lists(member))
                && confirmed.iter().any(|m| rosters.get(m).is_some_and(|r| r.lists(key)))
        };
        let more: Vec<_> = rosters.iter().filter(joins).map(|(key, _)| *key).collect();
        let before = confirmed.len();
        confirmed.extend(more);
        if confirmed.len() == before {
            return confirmed;
        }
    }
}

#[test]
fn a_long_chain_of_acceptances_costs_no_more_than_its_length() {
    // Everybody is invited at once, and each accepts only the one before: the worst order there is.
    let person = |n: u32| {
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        PublicKey::from_byte_array(bytes)
    };
    const PEOPLE: u32 = 20_000;
    let everybody = (1..PEOPLE).map(person).collect();
    let mut rosters = Rosters::from([(person(0), Roster::Listed(everybody))]);
    rosters.extend((1..PEOPLE).map(|n| (person(n), Roster::Listed([person(n - 1)].into()))));
    let say = Reciprocal.maintainers(&person(0), &rosters);
    assert_eq!(say.len(), PEOPLE as usize);
}

proptest! {
    #[test]
    fn the_reciprocal_say_is_what_repeating_the_rule_comes_to(selected in person(), rosters in rosters()) {
        let say = Reciprocal.maintainers(&selected, &rosters);
        prop_assert_eq!(say, by_repetition(selected, &rosters));
    }

    #[test]
    fn nobody_has_a_say_without_a_listing_that_leads_to_them(selected in person(), rosters in rosters()) {
        for model in [Plain, Reciprocal] {
            let say = model.maintainers(&selected, &rosters);
            prop_assert!(say.is_subset(&reachable(selected, &rosters)));
        }
    }

    #[test]
    fn whoever_left_by_their_own_word_has_no_say(selected in person(), rosters in rosters()) {
        for model in [Plain, Reciprocal] {
            for member in model.maintainers(&selected, &rosters) {
                prop_assert!(rosters.get(&member).is_none_or(|roster| roster.author_is_active(&member)));
            }
        }
    }

    #[test]
    fn reciprocal_members_have_announced_and_are_tied_to_each_other(selected in person(), rosters in rosters()) {
        let confirmed = Reciprocal.maintainers(&selected, &rosters);
        let mut roots = 0;
        for member in &confirmed {
            let own = rosters.get(member);
            prop_assert!(own.is_some(), "confirmed without an announcement");
            let others = || confirmed.iter().filter(|other| *other != member);
            let lists_back = others().any(|other| own.unwrap().lists(other));
            let is_listed = others().any(|other| rosters[other].lists(member));
            roots += usize::from(!(lists_back && is_listed));
        }
        prop_assert!(roots <= 1, "only the root may stand alone");
    }

    #[test]
    fn an_unannounced_repository_has_no_maintainers(selected in person(), mut rosters in rosters()) {
        rosters.remove(&selected);
        for model in [Plain, Reciprocal] {
            prop_assert!(model.maintainers(&selected, &rosters).is_empty());
        }
    }

    #[test]
    fn one_more_listing_takes_nobodys_say_away(selected in person(), rosters in plain_rosters(), by in person(), whom in person()) {
        let mut more: BTreeMap<_, _> = rosters.clone();
        if let Some(Roster::Listed(keys)) = more.get_mut(&by) {
            keys.insert(whom);
        }
        for model in [Plain, Reciprocal] {
            let before = model.maintainers(&selected, &rosters);
            let after = model.maintainers(&selected, &more);
            prop_assert!(before.is_subset(&after));
        }
    }

    #[test]
    fn the_reciprocal_say_is_never_wider_than_the_plain_one(selected in person(), rosters in plain_rosters()) {
        let strict = Reciprocal.maintainers(&selected, &rosters);
        prop_assert!(strict.is_subset(&Plain.maintainers(&selected, &rosters)));
    }

    #[test]
    fn inviting_somebody_gives_them_nothing_until_they_list_back(selected in person(), rosters in plain_rosters(), guest in person()) {
        let mut inviting = rosters.clone();
        let Some(Roster::Listed(keys)) = inviting.get_mut(&selected) else { return Ok(()) };
        keys.insert(guest);
        let before = Reciprocal.maintainers(&selected, &rosters);
        let after = Reciprocal.maintainers(&selected, &inviting);
        let accepts = rosters.get(&guest).is_some_and(|own| before.iter().any(|member| own.lists(member)));
        prop_assert!(accepts || before == after);
    }
}
