//! `RootSet` behaves like a `BTreeSet`.

use std::collections::BTreeSet;

use grasp_core::sync::{RootId, RootSet};
use nostr::event::EventId;
use proptest::collection::vec;
use proptest::prelude::*;

/// Roots that are spread evenly, close together at one end, or equal but for their last bytes.
fn any_root() -> impl Strategy<Value = RootId> {
    let bytes = prop_oneof![
        any::<[u8; 32]>(),
        any::<u8>().prop_map(|n| [n / 64; 32]),
        any::<u16>().prop_map(|n| {
            let mut bytes = [0x55; 32];
            bytes[30..].copy_from_slice(&n.to_be_bytes());
            bytes
        }),
    ];
    bytes.prop_map(|bytes| EventId::from_byte_array(bytes).into())
}

fn any_roots(most: usize) -> impl Strategy<Value = Vec<RootId>> {
    vec(any_root(), 0..most)
}

fn both(roots: &[RootId]) -> (RootSet, BTreeSet<RootId>) {
    let roots = roots.iter().copied();
    (roots.clone().collect(), roots.collect())
}

fn listed(roots: &RootSet) -> Vec<RootId> {
    roots.iter().copied().collect()
}

proptest! {
    #[test]
    fn holds_and_finds_the_added_roots(roots in any_roots(400), others in any_roots(50)) {
        let (set, tree) = both(&roots);
        prop_assert_eq!(listed(&set), tree.iter().copied().collect::<Vec<_>>());
        for root in roots.iter().chain(&others) {
            prop_assert_eq!(set.contains(root), tree.contains(root));
        }
    }

    #[test]
    fn differences_and_unions_equal_those_of_btree_set(many in any_roots(400), few in any_roots(15), shared in 0..5usize) {
        let few = [&few[..], &many[..many.len().min(shared)]].concat();
        let ((many, many_tree), (few, few_tree)) = (both(&many), both(&few));
        prop_assert_eq!(listed(&many.without(&few)), Vec::from_iter(&many_tree - &few_tree));
        prop_assert_eq!(listed(&few.without(&many)), Vec::from_iter(&few_tree - &many_tree));
        let (mut union, mut common) = (few.clone(), few);
        union.include(&many);
        common.restrict_to(&many);
        prop_assert_eq!(listed(&union), Vec::from_iter(&many_tree | &few_tree));
        prop_assert_eq!(listed(&common), Vec::from_iter(&many_tree & &few_tree));
    }
}
