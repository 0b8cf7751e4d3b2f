//! Records of completely fetched history, so that a restart does not fetch it again.

use std::collections::BTreeMap;

use crate::RepoId;
use bitcoin_hashes::sha256;
use nostr::filter::{Filter, SingleLetterTag};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::items::{RelaySyncNeeds, SyncLevel};
use super::roots::RootId;

/// Identifies a filter independent of its window: the SHA-256 of its JSON without `since`, `until` and `limit`. The
/// lists of a filter are sorted sets, so that equal filters have equal JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FilterHash(sha256::Hash);

impl FilterHash {
    /// Returns the hash of a filter.
    pub fn of(filter: &Filter) -> Self {
        let content = Filter {
            since: None,
            until: None,
            limit: None,
            ..filter.clone()
        };
        Self(sha256::Hash::hash(content.as_json().as_bytes()))
    }
}

/// The record that a relay has sent all events for a filter within a time window: by pages up to one without new rows,
/// each ended by EOSE, or by a complete reconciliation. A short page or a timeout proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Proof {
    pub filter: FilterHash,
    /// Start of the window; zero for all history.
    pub since: Timestamp,
    /// End of the window: the time of the request.
    pub until: Timestamp,
    /// The time of the proof.
    pub at: Timestamp,
}

impl Proof {
    fn touches(&self, other: &Self) -> bool {
        self.filter == other.filter && self.since <= other.until && other.since <= self.until
    }

    fn contains(&self, other: &Self) -> bool {
        self.since <= other.since && other.until <= self.until
    }

    /// Joins two windows; the result is as old as its older part.
    fn joined(self, other: Self) -> Self {
        let (older, newer) = if other.at < self.at {
            (other, self)
        } else {
            (self, other)
        };
        let kept = if newer.contains(&older) { newer } else { older };
        Self {
            since: self.since.min(other.since),
            until: self.until.max(other.until),
            ..kept
        }
    }
}

/// The proofs of one relay, limited in number: those with the earliest end are evicted.
///
/// Touching windows of one filter are joined, so that a proof of all history with later catch-ups stays one.
///
/// ```
/// use grasp_core::sync::{ProofSet, FilterHash, Proof, build_announcement_filter};
/// use nostr::types::Timestamp;
///
/// let filter = FilterHash::of(&build_announcement_filter(None));
/// let secs = Timestamp::from_secs;
/// let mut covered = ProofSet::with_capacity(100);
/// covered.add(Proof { filter, since: secs(0), until: secs(500), at: secs(510) });
/// covered.add(Proof { filter, since: secs(400), until: secs(900), at: secs(910) });
///
/// let all = covered.since(&filter, None).unwrap();
/// assert_eq!((all.until, all.at), (secs(900), secs(510)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredProofs")]
pub struct ProofSet {
    capacity: usize,
    /// Proofs by filter and start; those of one filter do not touch.
    proofs: Vec<Proof>,
}

/// The stored form of a set. Proofs are added one by one when read, so that an invalid file cannot break the set.
#[derive(Deserialize)]
struct StoredProofs {
    capacity: usize,
    proofs: Vec<Proof>,
}

impl From<StoredProofs> for ProofSet {
    fn from(stored: StoredProofs) -> Self {
        let mut set = Self::with_capacity(stored.capacity);
        stored.proofs.into_iter().for_each(|proof| set.add(proof));
        set
    }
}

impl ProofSet {
    /// Returns an empty set for at most this many proofs.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            capacity,
            proofs: Vec::new(),
        }
    }

    /// Adds a proof. A window that ends before it begins is ignored.
    pub fn add(&mut self, mut proof: Proof) {
        if proof.since > proof.until {
            return;
        }
        self.proofs.retain(|other| {
            let touches = other.touches(&proof);
            if touches {
                proof = proof.joined(*other);
            }
            !touches
        });
        let key = |one: &Proof| (one.filter, one.since);
        let place = self
            .proofs
            .partition_point(|other| key(other) < key(&proof));
        self.proofs.insert(place, proof);
        if self.proofs.len() > self.capacity {
            let first_to_end = self
                .proofs
                .iter()
                .enumerate()
                .min_by_key(|(_, one)| one.until);
            first_to_end
                .map(|(place, _)| place)
                .map(|place| self.proofs.remove(place));
        }
    }

    /// Returns the proof that covers a filter from `since` on, or all history if `None`. Only events after its end have
    /// to be requested.
    pub fn since(&self, filter: &FilterHash, since: Option<Timestamp>) -> Option<Proof> {
        let since = since.unwrap_or(Timestamp::from_secs(0));
        let covers =
            |one: &&Proof| one.filter == *filter && one.since <= since && since <= one.until;
        self.proofs.iter().find(covers).copied()
    }

    /// Returns every proof.
    pub fn iter(&self) -> impl Iterator<Item = &Proof> {
        self.proofs.iter()
    }

    /// Adds proofs for confirmed items that are complete up to `until`.
    ///
    /// Requests hold as many items as fit, in order; one more item moves all that follow into other requests. So items
    /// are not proven by request but by bucket: an item always belongs to the same bucket, and a bucket's proof names
    /// everything in it. A new item changes its own bucket and no other.
    pub fn add_items(&mut self, confirmed: &RelaySyncNeeds, until: Timestamp, at: Timestamp) {
        let since = Timestamp::from_secs(0);
        for items in buckets(confirmed) {
            let filter = bucket_hash(&items);
            self.add(Proof {
                filter,
                since,
                until,
                at,
            });
        }
    }

    /// Returns the items of a target that are proven, by proofs no older than `oldest`.
    pub fn proven_items(&self, target: &RelaySyncNeeds, oldest: Timestamp) -> Option<ProvenItems> {
        let mut found: Option<ProvenItems> = None;
        for items in buckets(target) {
            let proof = self
                .since(&bucket_hash(&items), None)
                .filter(|proof| proof.at >= oldest);
            let Some(Proof { until, at, .. }) = proof else {
                continue;
            };
            let nothing = RelaySyncNeeds::default();
            let all = found.get_or_insert(ProvenItems {
                items: nothing,
                until,
                at,
            });
            all.items.include(items);
            (all.until, all.at) = (all.until.min(until), all.at.min(at));
        }
        found
    }
}

/// Items of a target that are proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenItems {
    /// The proven items.
    pub items: RelaySyncNeeds,
    /// The time up to which all of them are complete.
    pub until: Timestamp,
    /// The time of the oldest proof.
    pub at: Timestamp,
}

/// Proofs kept for each relay.
pub const MAX_PROOFS: usize = 500;

const ROOT_BUCKETS: u8 = 128;
const REPO_BUCKETS: u8 = 32;

/// Returns the items of each bucket: repositories, coordinates or roots.
fn buckets(items: &RelaySyncNeeds) -> impl Iterator<Item = RelaySyncNeeds> {
    let mut repos: BTreeMap<u8, RelaySyncNeeds> = BTreeMap::new();
    for (repo, level) in &items.repos {
        // Hashes the name too: one owner may have many repositories.
        let bytes = repo
            .owner
            .as_bytes()
            .iter()
            .chain(repo.identifier.as_str().as_bytes());
        let bucket = repos.entry(bucket_number(bytes)).or_default();
        bucket.repos.insert(repo.clone(), *level);
    }
    let mut members: BTreeMap<u8, RelaySyncNeeds> = BTreeMap::new();
    for member in &items.coordinates {
        let bucket = members
            .entry(bucket_number(member.to_string().as_bytes()))
            .or_default();
        bucket.coordinates.insert(member.clone());
    }
    let mut roots: BTreeMap<u8, Vec<RootId>> = BTreeMap::new();
    for root in &items.root_events {
        let [first, ..] = *root.event().as_bytes();
        roots.entry(first % ROOT_BUCKETS).or_default().push(*root);
    }
    let roots = roots.into_values().map(|roots| RelaySyncNeeds {
        root_events: roots.into_iter().collect(),
        ..RelaySyncNeeds::default()
    });
    repos
        .into_values()
        .chain(members.into_values())
        .chain(roots)
}

/// Returns the bucket of a repository or coordinate, by its FNV-1a hash.
fn bucket_number<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u8 {
    let mix = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let [first, ..] = bytes.into_iter().fold(0x811c_9dc5, mix).to_be_bytes();
    first % REPO_BUCKETS
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

#[cfg(test)]
mod tests {
    use nostr::event::EventId;
    use nostr::key::PublicKey;

    use super::super::build_announcement_filter;
    use super::*;

    fn secs(n: u64) -> Timestamp {
        Timestamp::from_secs(n)
    }

    fn hash(n: u8) -> FilterHash {
        FilterHash(sha256::Hash::from_byte_array([n; 32]))
    }

    fn proof(n: u8, since: u64, until: u64, at: u64) -> Proof {
        Proof {
            filter: hash(n),
            since: secs(since),
            until: secs(until),
            at: secs(at),
        }
    }

    fn set(proofs: &[Proof]) -> ProofSet {
        let mut set = ProofSet::with_capacity(3);
        proofs.iter().for_each(|proof| set.add(*proof));
        set
    }

    #[test]
    fn the_hash_ignores_the_window() {
        let filter = build_announcement_filter(None);
        let windowed = build_announcement_filter(Some(secs(5)))
            .until(secs(9))
            .limit(3);
        assert_eq!(FilterHash::of(&filter), FilterHash::of(&windowed));
        assert_ne!(
            FilterHash::of(&filter),
            FilterHash::of(&filter.clone().identifier("x"))
        );
    }

    #[test]
    fn the_hash_is_stable() {
        // sha256 of {"kinds":[10317,30617,30618]}
        let known = "62fb3dc122ef4aea1c6a0e72bc754c491c942ad0e2964f1742b8226430062c81";
        let hash = FilterHash::of(&build_announcement_filter(None));
        assert_eq!(serde_json::to_value(hash).unwrap(), known);
        assert_eq!(
            serde_json::from_value::<FilterHash>(known.into()).unwrap(),
            hash
        );
    }

    #[test]
    fn touching_windows_become_one_as_old_as_its_oldest_part() {
        let set = set(&[proof(1, 0, 10, 11), proof(1, 10, 20, 21)]);
        assert_eq!(set.since(&hash(1), None), Some(proof(1, 0, 20, 11)));
    }

    #[test]
    fn a_gap_stays_until_it_is_covered() {
        let mut set = set(&[proof(1, 0, 10, 11), proof(1, 15, 20, 21)]);
        assert_eq!(set.since(&hash(1), None), Some(proof(1, 0, 10, 11)));
        assert_eq!(set.since(&hash(1), Some(secs(12))), None);
        assert_eq!(
            set.since(&hash(1), Some(secs(16))),
            Some(proof(1, 15, 20, 21))
        );
        set.add(proof(1, 9, 16, 30));
        assert_eq!(set.since(&hash(1), None), Some(proof(1, 0, 20, 11)));
        assert_eq!(set.iter().count(), 1);
    }

    #[test]
    fn a_newer_proof_of_the_whole_window_renews_it() {
        let set = set(&[
            proof(1, 5, 10, 11),
            proof(1, 0, 30, 31),
            proof(1, 20, 25, 40),
        ]);
        assert_eq!(set.since(&hash(1), None), Some(proof(1, 0, 30, 31)));
        let again = super::tests::set(&[proof(1, 0, 30, 31), proof(1, 0, 30, 50)]);
        assert_eq!(again.since(&hash(1), None), Some(proof(1, 0, 30, 50)));
    }

    #[test]
    fn all_history_needs_a_proof_from_the_beginning() {
        let set = set(&[proof(1, 1, 10, 11)]);
        assert_eq!(set.since(&hash(1), None), None);
        assert_eq!(set.since(&hash(2), Some(secs(5))), None);
    }

    #[test]
    fn proofs_with_the_earliest_end_are_evicted() {
        let mut set = set(&[proof(1, 0, 10, 1), proof(2, 0, 20, 2), proof(3, 0, 30, 3)]);
        set.add(proof(1, 10, 40, 4));
        set.add(proof(4, 0, 50, 5));
        let left: Vec<_> = set.iter().map(|proof| proof.filter).collect();
        assert_eq!(left, [hash(1), hash(3), hash(4)]);
    }

    #[test]
    fn serialisation_round_trips_and_invalid_proofs_are_dropped() {
        let set = set(&[proof(1, 0, 10, 11), proof(2, 3, 4, 5)]);
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(serde_json::from_str::<ProofSet>(&text).unwrap(), set);
        let reversed = text.replace(r#""since":3"#, r#""since":9"#);
        let read: ProofSet = serde_json::from_str(&reversed).unwrap();
        assert_eq!(read.since(&hash(2), Some(secs(9))), None);
        assert_eq!(read.iter().count(), 1);
    }

    const UNTIL: Timestamp = Timestamp::from_secs(900);
    const AT: Timestamp = Timestamp::from_secs(500);

    fn root(n: u32) -> RootId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&n.wrapping_mul(0x9e37_79b9).to_be_bytes());
        EventId::from_byte_array(id).into()
    }

    fn repo(n: u8) -> RepoId {
        RepoId::new(
            PublicKey::from_byte_array([7; 32]),
            format!("repo-{n}").parse().unwrap(),
        )
    }

    fn items(repos: std::ops::Range<u8>, roots: std::ops::Range<u32>) -> RelaySyncNeeds {
        RelaySyncNeeds {
            repos: repos.map(|n| (repo(n), SyncLevel::Full)).collect(),
            root_events: roots.map(root).collect(),
            ..RelaySyncNeeds::default()
        }
    }

    fn covered(items: &RelaySyncNeeds) -> ProofSet {
        let mut set = ProofSet::with_capacity(500);
        set.add_items(items, UNTIL, AT);
        set
    }

    #[test]
    fn proven_items_are_found_again_with_their_time() {
        let all = items(0..20, 0..3_000);
        let found = ProvenItems {
            items: all.clone(),
            until: UNTIL,
            at: AT,
        };
        assert_eq!(covered(&all).proven_items(&all, AT), Some(found));
        assert_eq!(covered(&all).proven_items(&all, AT + 1u64), None, "too old");
        assert_eq!(
            covered(&all).proven_items(&RelaySyncNeeds::default(), AT),
            None
        );
    }

    #[test]
    fn a_new_item_unproves_only_its_own_bucket() {
        let proofs = covered(&items(0..20, 0..3_000));
        let more = items(0..21, 0..3_001);
        let found = proofs.proven_items(&more, AT).unwrap().items;
        assert!(
            found.root_events.len() > 2_950,
            "{}",
            found.root_events.len()
        );
        assert!(found.repos.len() >= 16, "{}", found.repos.len());
        assert!(!found.root_events.contains(&root(3_000)) && !found.repos.contains_key(&repo(20)));
    }

    #[test]
    fn a_repository_fetched_in_part_is_not_proven_in_full() {
        let mut had = items(0..1, 0..0);
        had.repos.insert(repo(0), SyncLevel::StateOnly);
        assert_eq!(covered(&had).proven_items(&items(0..1, 0..0), AT), None);
    }

    #[test]
    fn all_proofs_fit_a_record() {
        let all = items(0..255, 0..20_000);
        let count = covered(&all).iter().count();
        let buckets = usize::from(ROOT_BUCKETS) + usize::from(REPO_BUCKETS);
        assert!(
            (buckets - 4..=buckets).contains(&count),
            "{count} of {buckets}"
        );
        assert!(2 * count < MAX_PROOFS);
    }
}
