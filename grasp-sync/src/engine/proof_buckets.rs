//! Proofs of confirmed items that survive a restart and the arrival of new items.
//!
//! Requests hold as many items as fit, in order; one more item moves all that follow into other requests. So proofs
//! are not kept by request but by bucket: an item always belongs to the same bucket, and a bucket's proof names
//! everything in it. A new item changes its own bucket and no other.

use std::collections::BTreeMap;

use crate::index::{
    Coverage, CoverageSet, FilterHash, Proof, Proven, RelaySyncNeeds, RootId, SyncLevel,
};
use grasp_core::RepoId;
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_core::nostr::nips::nip01::Coordinate;
use grasp_core::nostr::types::Timestamp;

const ROOT_BUCKETS: u8 = 128;
const REPO_BUCKETS: u8 = 32;

/// The bucket of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Bucket {
    Repos(u8),
    Roots(u8),
    Members(u8),
}

impl Bucket {
    fn of_root(root: &RootId) -> Self {
        let [first, ..] = *root.event().as_bytes();
        Self::Roots(first % ROOT_BUCKETS)
    }

    fn of_member(member: &Coordinate) -> Self {
        let [first, ..] = fnv1a(member.to_string().bytes());
        Self::Members(first % REPO_BUCKETS)
    }

    /// Hashes the name too: one owner may have many repositories.
    fn of_repo(repo: &RepoId) -> Self {
        let bucket_hash = repo.identifier.as_str().bytes();
        let bytes = repo.owner.as_bytes().iter().copied().chain(bucket_hash);
        let [first, ..] = fnv1a(bytes);
        Self::Repos(first % REPO_BUCKETS)
    }
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> [u8; 4] {
    let mix = |sum: u32, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    bytes.fold(0x811c_9dc5, mix).to_be_bytes()
}

fn buckets(items: &RelaySyncNeeds) -> BTreeMap<Bucket, RelaySyncNeeds> {
    let mut buckets: BTreeMap<Bucket, RelaySyncNeeds> = BTreeMap::new();
    for (repo, level) in &items.repos {
        let bucket = buckets.entry(Bucket::of_repo(repo)).or_default();
        bucket.repos.insert(repo.clone(), *level);
    }
    for member in &items.coordinates {
        let bucket = buckets.entry(Bucket::of_member(member)).or_default();
        bucket.coordinates.insert(member.clone());
    }
    let mut roots: BTreeMap<Bucket, Vec<RootId>> = BTreeMap::new();
    for root in &items.root_events {
        roots.entry(Bucket::of_root(root)).or_default().push(*root);
    }
    for (bucket, roots) in roots {
        buckets.entry(bucket).or_default().root_events = roots.into_iter().collect();
    }
    buckets
}

/// Returns the hash of everything in a bucket: that of a filter which is never sent.
fn bucket_hash(items: &RelaySyncNeeds) -> FilterHash {
    let listed = |level| items.repos_at(level).map(RepoId::to_string);
    let filter = Filter::new()
        .events(items.root_events.iter().map(RootId::event))
        .custom_tags(SingleLetterTag::LOWERCASE_A, listed(SyncLevel::Full))
        .custom_tags(SingleLetterTag::LOWERCASE_D, listed(SyncLevel::StateOnly));
    // No bucket has both repositories and coordinates.
    let members = items.coordinates.iter().map(Coordinate::to_string);
    FilterHash::of(&filter.custom_tags(SingleLetterTag::UPPERCASE_A, members))
}

/// Returns proofs for confirmed items that are complete up to `until`.
pub(super) fn proofs(
    confirmed: &RelaySyncNeeds,
    until: Timestamp,
    at: Timestamp,
) -> impl Iterator<Item = Proof> {
    let since = Timestamp::from_secs(0);
    let one = move |items: RelaySyncNeeds| Proof {
        filter: bucket_hash(&items),
        since,
        until,
        proven: Proven::Reconciled,
        at,
    };
    buckets(confirmed).into_values().map(one)
}

/// Items of a target that are proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProvenItems {
    pub(super) items: RelaySyncNeeds,
    /// The time up to which all of them are complete.
    pub(super) until: Timestamp,
    /// The time of the oldest proof.
    pub(super) at: Timestamp,
}

/// Returns the items of a target that are proven, by proofs no older than `oldest`.
pub(super) fn proven(
    target: &RelaySyncNeeds,
    coverage: &CoverageSet,
    oldest: Timestamp,
) -> Option<ProvenItems> {
    let mut found: Option<ProvenItems> = None;
    for items in buckets(target).into_values() {
        let Coverage::Proven(Proof { until, at, .. }) = coverage.since(&bucket_hash(&items), None)
        else {
            continue;
        };
        if at < oldest {
            continue;
        }
        let nothing = RelaySyncNeeds::default();
        let all = found.get_or_insert(ProvenItems { items: nothing, until, at });
        all.items.include(items);
        (all.until, all.at) = (all.until.min(until), all.at.min(at));
    }
    found
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::EventId;
    use grasp_core::nostr::key::PublicKey;

    use super::*;

    const UNTIL: Timestamp = Timestamp::from_secs(900);
    const AT: Timestamp = Timestamp::from_secs(500);

    fn root(n: u32) -> RootId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
        EventId::from_byte_array(id).into()
    }

    fn repo(n: u8) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([7; 32]), format!("repo-{n}").parse().unwrap())
    }

    fn items(repos: std::ops::Range<u8>, roots: std::ops::Range<u32>) -> RelaySyncNeeds {
        RelaySyncNeeds {
            repos: repos.map(|n| (repo(n), SyncLevel::Full)).collect(),
            root_events: roots.map(root).collect(),
            ..RelaySyncNeeds::default()
        }
    }

    fn covered(items: &RelaySyncNeeds) -> CoverageSet {
        let mut set = CoverageSet::with_capacity(500);
        proofs(items, UNTIL, AT).for_each(|proof| set.add(proof));
        set
    }

    #[test]
    fn proven_items_are_found_again_with_their_time() {
        let all = items(0..20, 0..3_000);
        let found = ProvenItems { items: all.clone(), until: UNTIL, at: AT };
        assert_eq!(proven(&all, &covered(&all), AT), Some(found));
        assert_eq!(proven(&all, &covered(&all), AT + 1u64), None, "too old");
        assert_eq!(proven(&RelaySyncNeeds::default(), &covered(&all), AT), None);
    }

    #[test]
    fn a_new_item_unproves_only_its_own_bucket() {
        let coverage = covered(&items(0..20, 0..3_000));
        let more = items(0..21, 0..3_001);
        let found = proven(&more, &coverage, AT).unwrap().items;
        assert!(found.root_events.len() > 2_950, "{}", found.root_events.len());
        assert!(found.repos.len() >= 16, "{}", found.repos.len());
        assert!(!found.root_events.contains(&root(3_000)) && !found.repos.contains_key(&repo(20)));
    }

    #[test]
    fn a_repository_fetched_in_part_is_not_proven_in_full() {
        let mut had = items(0..1, 0..0);
        had.repos.insert(repo(0), SyncLevel::StateOnly);
        assert_eq!(proven(&items(0..1, 0..0), &covered(&had), AT), None);
    }

    #[test]
    fn all_proofs_fit_a_record() {
        let all = items(0..255, 0..20_000);
        let count = proofs(&all, UNTIL, AT).count();
        let buckets = usize::from(ROOT_BUCKETS) + usize::from(REPO_BUCKETS);
        assert!((buckets - 4..=buckets).contains(&count), "{count} of {buckets}");
        assert!(2 * count < super::super::record::COVERAGE_CAPACITY);
    }
}
