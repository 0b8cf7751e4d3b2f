//! A set of proofs covers exactly the windows that were added.

use grasp_core::sync::{FilterHash, Proof, ProofSet};
use nostr::filter::Filter;
use nostr::types::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;

fn filter(n: u8) -> FilterHash {
    FilterHash::of(&Filter::new().identifier(n.to_string()))
}

fn any_proof() -> impl Strategy<Value = Proof> {
    let secs = |most: u64| (0..most).prop_map(Timestamp::from_secs);
    (0..3u8, secs(30), secs(30), secs(100)).prop_map(|(n, since, until, at)| Proof {
        filter: filter(n),
        since,
        until,
        at,
    })
}

/// Returns the end of coverage from `since` on, over touching proofs.
fn covered_until(proofs: &[Proof], filter: FilterHash, since: Timestamp) -> Option<Timestamp> {
    let step = |from: Timestamp| {
        let reaching = proofs
            .iter()
            .filter(|p| p.filter == filter && p.since <= from && from <= p.until);
        reaching.map(|proof| proof.until).max()
    };
    let mut end = step(since)?;
    while let Some(further) = step(end).filter(|further| *further > end) {
        end = further;
    }
    Some(end)
}

proptest! {
    #[test]
    fn coverage_ends_with_the_last_touching_proof(proofs in vec(any_proof(), 0..20), since in 0..30u64) {
        let mut set = ProofSet::with_capacity(100);
        proofs.iter().for_each(|proof| set.add(*proof));
        let since = Timestamp::from_secs(since);
        for n in 0..3 {
            let covered = set.since(&filter(n), Some(since));
            if let Some(proof) = covered {
                let parts = proofs.iter().filter(|part| part.filter == proof.filter);
                let ages: Vec<_> = parts.map(|part| part.at).collect();
                prop_assert!(ages.contains(&proof.at), "no age is made up");
            }
            let covered = covered.map(|proof| proof.until);
            prop_assert_eq!(covered, covered_until(&proofs, filter(n), since));
        }
    }

    #[test]
    fn the_number_is_limited_and_serialisation_round_trips(
        proofs in vec(any_proof(), 0..40),
        capacity in 0..6usize,
    ) {
        let mut set = ProofSet::with_capacity(capacity);
        proofs.iter().for_each(|proof| set.add(*proof));
        prop_assert!(set.iter().count() <= capacity);
        let text = serde_json::to_string(&set).unwrap();
        prop_assert_eq!(serde_json::from_str::<ProofSet>(&text).unwrap(), set);
    }
}
