use std::collections::BTreeSet;

use grasp_core::resources::ClientNetwork;
use negentropy::NegentropyStorageVector;
use proptest::prelude::*;

use super::*;

const FRAME: u64 = 4_096;

/// Returns an id like a hash: fingerprints are sums, and sums of related numbers would collide.
fn id(nth: u32) -> EventId {
    EventId::from_byte_array(bitcoin_hashes::Sha256::hash(&nth.to_be_bytes()).to_byte_array())
}

fn set(items: &BTreeSet<(u64, u32)>) -> Snapshot {
    let mut items: Vec<_> = items
        .iter()
        .map(|(at, nth)| (Timestamp::from_secs(*at), id(*nth)))
        .collect();
    items.sort();
    let share = shared_pool(0)
        .try_take(&Claimant::server(), 0)
        .expect("nothing is free");
    Snapshot {
        items: Arc::new(items),
        _share: share,
    }
}

/// Returns a set of `count` items.
pub(in crate::nostr) fn snapshot(items: u32) -> Arc<Snapshot> {
    Arc::new(set(&(0..items).map(|nth| (0, nth)).collect()))
}

/// Reconciles as a client with the storage of the reference crate; returns the ids that each side lacks.
fn sync(client: &BTreeSet<(u64, u32)>, relay: &Snapshot) -> (BTreeSet<Id>, BTreeSet<Id>) {
    let mut storage = NegentropyStorageVector::new();
    for (at, nth) in client {
        storage
            .insert(*at, Id::from_byte_array(id(*nth).to_bytes()))
            .expect("open");
    }
    storage.seal().expect("sealed once");
    let mut client = Negentropy::borrowed(&storage, FRAME).expect("a frame limit");
    let (mut have, mut need) = (Vec::new(), Vec::new());
    let mut message = client.initiate().expect("first message");
    for _ in 0..200 {
        let answer = relay.answer(&message, FRAME).expect("a good message");
        assert!(answer.len() as u64 <= FRAME);
        match client
            .reconcile_with_ids(&answer, &mut have, &mut need)
            .expect("a good answer")
        {
            Some(next) => message = next,
            None => return (need.into_iter().collect(), have.into_iter().collect()),
        }
    }
    panic!("no end")
}

fn ids<'a>(items: impl Iterator<Item = &'a (u64, u32)>) -> BTreeSet<Id> {
    items
        .map(|(_, nth)| Id::from_byte_array(id(*nth).to_bytes()))
        .collect()
}

fn some_items() -> impl Strategy<Value = BTreeSet<(u64, u32)>> {
    prop::collection::btree_set(
        (0u32..600).prop_map(|nth| (u64::from(nth % 40), nth)),
        0..500,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_sides_learn_exactly_the_difference(ours in some_items(), theirs in some_items()) {
        let (need, have) = sync(&theirs, &set(&ours));
        prop_assert_eq!(need, ids(ours.difference(&theirs)));
        prop_assert_eq!(have, ids(theirs.difference(&ours)));
    }

    #[test]
    fn no_bytes_panic_or_answer_beyond_the_frame(message: Vec<u8>, ours in some_items()) {
        let message = [vec![VERSION], message].concat();
        if let Some(answer) = set(&ours).answer(&message, FRAME) {
            prop_assert!(answer.len() as u64 <= FRAME);
        }
    }
}

#[test]
fn absurd_counts_and_lengths_are_refused_before_anything_is_reserved() {
    let ours = set(&(0..100).map(|nth| (u64::from(nth), nth)).collect());
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    // An id list of 2^63 ids, of which none follow.
    let list = [&[VERSION, 0x00, 0x00, 0x02][..], &huge].concat();
    assert_eq!(ours.answer(&list, FRAME), None);
    // A bound with an id prefix of that length.
    let bound = [&[VERSION, 0x01][..], &huge].concat();
    assert_eq!(ours.answer(&bound, FRAME), None);
    // A mode that does not exist, and a fingerprint cut short.
    assert_eq!(ours.answer(&[VERSION, 0x00, 0x00, 0x07], FRAME), None);
    assert_eq!(ours.answer(&[VERSION, 0x00, 0x00, 0x01, 0xaa], FRAME), None);
    assert_eq!(ours.answer(&[], FRAME), None);
}

#[test]
fn another_version_is_answered_with_ours() {
    let ours = set(&BTreeSet::new());
    for version in [0x00, 0x60, 0x62, 0xff] {
        assert_eq!(ours.answer(&[version, 1, 2, 3], FRAME), Some(vec![VERSION]));
    }
}

#[tokio::test]
async fn one_network_leaves_items_for_others() {
    use nostr::event::{EventBuilder, FinalizeEvent as _, Kind};

    use crate::store::sqlite::{SqliteOptions, SqliteStore};
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&dir.path().join("events.db"), SqliteOptions::default()).unwrap();
    let keys = nostr::key::Keys::generate();
    let note = |n: u32| {
        EventBuilder::new(Kind::TextNote, n.to_string())
            .finalize(&keys)
            .unwrap()
    };
    let notes = (0..10).map(|n| Arc::new(note(n))).collect();
    let now = Timestamp::now();
    assert_eq!(store.save(notes, now).await.unwrap().len(), 10);
    let pool = NegentropyPool::new(&Limits {
        neg_total_items: 80,
        ..Limits::default()
    });
    let open = async |address: &str| {
        let claimant = Claimant::at(ClientNetwork::of(address.parse().unwrap()));
        let (id, message) = (SubId("n".into()), vec![VERSION, 0, 0, 2, 0]);
        pool.open(&claimant, &store, now, &id, Filter::new(), message)
            .await
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.extend(open("198.51.100.1").await);
    }
    assert_eq!(held.len(), 2, "a quarter of all");
    let (snapshot, reply) = open("192.0.2.1")
        .await
        .expect("another network has its own share");
    assert_eq!(
        (snapshot.len(), matches!(reply, Reply::NegMsg(..))),
        (10, true)
    );
    drop(snapshot);
    drop(held);
    assert_eq!(pool.items.usage().all, 0);
}
