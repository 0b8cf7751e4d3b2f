//! Records of completely fetched history, so that a restart does not fetch it again.

use std::collections::BTreeMap;

use bitcoin_hashes::sha256;
use nostr::filter::Filter;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

/// Identifies a filter independent of its window: the SHA-256 of its JSON without `since`, `until` and `limit`. The
/// lists of a filter are sorted sets, so that equal filters have equal JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FilterHash(sha256::Hash);

impl FilterHash {
    /// Returns the hash of a filter.
    pub fn of(filter: &Filter) -> Self {
        let content = Filter { since: None, until: None, limit: None, ..filter.clone() };
        Self(sha256::Hash::hash(content.as_json().as_bytes()))
    }
}

/// The way in which a fetch was proven complete. A short page or a timeout proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proven {
    /// Pages up to one without new rows, each ended by EOSE.
    Exhausted,
    /// A complete reconciliation, with every missing event fetched or given up by id.
    Reconciled,
}

/// The record that a relay has sent all events for a filter within a time window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Proof {
    pub filter: FilterHash,
    /// Start of the window; zero for all history.
    pub since: Timestamp,
    /// End of the window: the time of the request.
    pub until: Timestamp,
    pub proven: Proven,
    /// The time of the proof.
    pub at: Timestamp,
}

impl Proof {
    fn has_empty_window(&self) -> bool {
        self.since > self.until
    }

    fn touches(&self, other: &Self) -> bool {
        self.since <= other.until && other.since <= self.until
    }

    fn contains(&self, other: &Self) -> bool {
        self.since <= other.since && other.until <= self.until
    }

    /// Joins two windows; the result is as old as its older part.
    fn joined(self, other: Self) -> Self {
        let (older, newer) = if other.at < self.at { (other, self) } else { (self, other) };
        let kept = if newer.contains(&older) { newer } else { older };
        Self { since: self.since.min(other.since), until: self.until.max(other.until), ..kept }
    }
}

/// The coverage of a filter from a given time on.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Covered without a gap to the end of this proof; request later events only.
    Proven(Proof),
    /// No proof reaches back far enough.
    Unproven,
}

/// The proofs of one relay, limited in number: those with the earliest end are evicted.
///
/// Touching windows of one filter are joined, so that a proof of all history with later catch-ups stays one.
///
/// ```
/// use grasp_sync::index::{Coverage, CoverageSet, FilterHash, Proof, Proven, build_announcement_filter};
/// use nostr::types::Timestamp;
///
/// let filter = FilterHash::of(&build_announcement_filter(None));
/// let secs = Timestamp::from_secs;
/// let mut covered = CoverageSet::with_capacity(100);
/// covered.add(Proof { filter, since: secs(0), until: secs(500), proven: Proven::Reconciled, at: secs(510) });
/// covered.add(Proof { filter, since: secs(400), until: secs(900), proven: Proven::Exhausted, at: secs(910) });
///
/// let Coverage::Proven(all) = covered.since(&filter, None) else { panic!() };
/// assert_eq!((all.until, all.at), (secs(900), secs(510)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct CoverageSet {
    capacity: usize,
    /// Proofs by filter and start; those of one filter do not touch.
    proofs: BTreeMap<(FilterHash, Timestamp), Proof>,
}

impl CoverageSet {
    /// Returns an empty set for at most this many proofs.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { capacity, proofs: BTreeMap::new() }
    }

    /// Adds a proof. A window that ends before it begins is ignored.
    pub fn add(&mut self, proof: Proof) {
        if proof.has_empty_window() {
            return;
        }
        let touching: Vec<Proof> =
            self.windows(&proof.filter).filter(|other| other.touches(&proof)).copied().collect();
        for other in &touching {
            self.proofs.remove(&(other.filter, other.since));
        }
        let joined = touching.into_iter().fold(proof, Proof::joined);
        self.proofs.insert((joined.filter, joined.since), joined);
        self.evict();
    }

    /// Returns the coverage from `since` on; of all history, if `None`.
    pub fn since(&self, filter: &FilterHash, since: Option<Timestamp>) -> Coverage {
        let since = since.unwrap_or(Timestamp::from_secs(0));
        self.windows(filter)
            .find(|proof| proof.since <= since && since <= proof.until)
            .map_or(Coverage::Unproven, |proof| Coverage::Proven(*proof))
    }

    /// Returns every proof.
    pub fn proofs(&self) -> impl Iterator<Item = &Proof> {
        self.proofs.values()
    }

    fn windows(&self, filter: &FilterHash) -> impl Iterator<Item = &Proof> {
        let all = Timestamp::from_secs(0)..=Timestamp::from_secs(u64::MAX);
        self.proofs.range((*filter, *all.start())..=(*filter, *all.end())).map(|(_, proof)| proof)
    }

    fn evict(&mut self) {
        while self.proofs.len() > self.capacity {
            let oldest = self.proofs.iter().min_by_key(|(_, proof)| proof.until);
            let Some((key, _)) = oldest else { return };
            let key = *key;
            self.proofs.remove(&key);
        }
    }
}

/// The serialised form of a set. Proofs are added one by one when read, so that an invalid file cannot break the set.
#[derive(Serialize, Deserialize)]
struct Stored {
    capacity: usize,
    proofs: Vec<Proof>,
}

impl From<Stored> for CoverageSet {
    fn from(stored: Stored) -> Self {
        let mut set = Self::with_capacity(stored.capacity);
        stored.proofs.into_iter().for_each(|proof| set.add(proof));
        set
    }
}

impl From<CoverageSet> for Stored {
    fn from(set: CoverageSet) -> Self {
        Self { capacity: set.capacity, proofs: set.proofs.into_values().collect() }
    }
}

#[cfg(test)]
mod tests {
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
            proven: Proven::Exhausted,
            at: secs(at),
        }
    }

    fn set(proofs: &[Proof]) -> CoverageSet {
        let mut set = CoverageSet::with_capacity(3);
        proofs.iter().for_each(|proof| set.add(*proof));
        set
    }

    #[test]
    fn the_hash_ignores_the_window() {
        let filter = build_announcement_filter(None);
        let windowed = build_announcement_filter(Some(secs(5))).until(secs(9)).limit(3);
        assert_eq!(FilterHash::of(&filter), FilterHash::of(&windowed));
        assert_ne!(FilterHash::of(&filter), FilterHash::of(&filter.clone().identifier("x")));
    }

    #[test]
    fn the_hash_is_stable() {
        // sha256 of {"kinds":[10317,30617,30618]}
        let known = "62fb3dc122ef4aea1c6a0e72bc754c491c942ad0e2964f1742b8226430062c81";
        let hash = FilterHash::of(&build_announcement_filter(None));
        assert_eq!(serde_json::to_value(hash).unwrap(), known);
        assert_eq!(serde_json::from_value::<FilterHash>(known.into()).unwrap(), hash);
    }

    #[test]
    fn touching_windows_become_one_as_old_as_its_oldest_part() {
        let set = set(&[proof(1, 0, 10, 11), proof(1, 10, 20, 21)]);
        assert_eq!(set.since(&hash(1), None), Coverage::Proven(proof(1, 0, 20, 11)));
    }

    #[test]
    fn a_gap_stays_until_it_is_covered() {
        let mut set = set(&[proof(1, 0, 10, 11), proof(1, 15, 20, 21)]);
        assert_eq!(set.since(&hash(1), None), Coverage::Proven(proof(1, 0, 10, 11)));
        assert_eq!(set.since(&hash(1), Some(secs(12))), Coverage::Unproven);
        assert_eq!(set.since(&hash(1), Some(secs(16))), Coverage::Proven(proof(1, 15, 20, 21)));
        set.add(proof(1, 9, 16, 30));
        assert_eq!(set.since(&hash(1), None), Coverage::Proven(proof(1, 0, 20, 11)));
        assert_eq!(set.proofs().count(), 1);
    }

    #[test]
    fn a_newer_proof_of_the_whole_window_renews_it() {
        let set = set(&[proof(1, 5, 10, 11), proof(1, 0, 30, 31), proof(1, 20, 25, 40)]);
        assert_eq!(set.since(&hash(1), None), Coverage::Proven(proof(1, 0, 30, 31)));
        let again = super::tests::set(&[proof(1, 0, 30, 31), proof(1, 0, 30, 50)]);
        assert_eq!(again.since(&hash(1), None), Coverage::Proven(proof(1, 0, 30, 50)));
    }

    #[test]
    fn all_history_needs_a_proof_from_the_beginning() {
        let set = set(&[proof(1, 1, 10, 11)]);
        assert_eq!(set.since(&hash(1), None), Coverage::Unproven);
        assert_eq!(set.since(&hash(2), Some(secs(5))), Coverage::Unproven);
    }

    #[test]
    fn proofs_with_the_earliest_end_are_evicted() {
        let mut set = set(&[proof(1, 0, 10, 1), proof(2, 0, 20, 2), proof(3, 0, 30, 3)]);
        set.add(proof(1, 10, 40, 4));
        set.add(proof(4, 0, 50, 5));
        let left: Vec<_> = set.proofs().map(|proof| proof.filter).collect();
        assert_eq!(left, [hash(1), hash(3), hash(4)]);
    }

    #[test]
    fn serialisation_round_trips_and_invalid_proofs_are_dropped() {
        let set = set(&[proof(1, 0, 10, 11), proof(2, 3, 4, 5)]);
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(serde_json::from_str::<CoverageSet>(&text).unwrap(), set);
        let reversed = text.replace(r#""since":3"#, r#""since":9"#);
        let read: CoverageSet = serde_json::from_str(&reversed).unwrap();
        assert_eq!(read.since(&hash(2), Some(secs(9))), Coverage::Unproven);
        assert_eq!(read.proofs().count(), 1);
    }
}
