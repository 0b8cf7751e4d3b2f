//! What is proven to have been fetched completely, so that a restart does not fetch it all again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use bitcoin_hashes::sha256;
use nostr::filter::Filter;
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::text::{hex_bytes, serde_as_text};

/// Names a filter by what it matches, whatever its window: the SHA-256 of its JSON without `since`, `until` and
/// `limit`. A filter's lists are sorted sets, so one content has one JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterHash([u8; 32]);

impl FilterHash {
    /// The name of a filter.
    pub fn of(filter: &Filter) -> Self {
        let content = Filter { since: None, until: None, limit: None, ..filter.clone() };
        Self(sha256::Hash::hash(content.as_json().as_bytes()).to_byte_array())
    }
}

/// A text that is not 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a filter hash of 64 hex digits")]
pub struct FilterHashError;

impl FromStr for FilterHash {
    type Err = FilterHashError;
    fn from_str(text: &str) -> Result<Self, FilterHashError> {
        hex_bytes(text).map(Self).ok_or(FilterHashError)
    }
}

impl fmt::Display for FilterHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FilterHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilterHash({self})")
    }
}

serde_as_text!(FilterHash);

/// What makes a fetch complete. Nothing less does: not a short page, not silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proven {
    /// Pages to the last, which brought nothing new, each ended by EOSE.
    Exhausted,
    /// A reconciliation to its end, and everything it found missing fetched or given up by name.
    Reconciled,
}

/// A relay has given us all it had for a filter within a window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// What was asked for.
    pub filter: FilterHash,
    /// Where the window begins; zero is the beginning of everything.
    pub since: Timestamp,
    /// Where it ends: when the relay was asked.
    pub until: Timestamp,
    /// How we know.
    pub proven: Proven,
    /// When we came to know.
    pub at: Timestamp,
}

impl Proof {
    fn is_void(&self) -> bool {
        self.since > self.until
    }

    fn meets(&self, other: &Self) -> bool {
        self.since <= other.until && other.since <= self.until
    }

    fn contains(&self, other: &Self) -> bool {
        self.since <= other.since && other.until <= self.until
    }

    /// One proof of both windows, no younger than its older part.
    fn joined(self, other: Self) -> Self {
        let (older, newer) = if other.at < self.at { (other, self) } else { (self, other) };
        let kept = if newer.contains(&older) { newer } else { older };
        Self { since: self.since.min(other.since), until: self.until.max(other.until), ..kept }
    }
}

/// Whether a filter need be asked again.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// It is covered without a gap to the end of this proof; ask from there on.
    Proven(Proof),
    /// There is no proof that reaches back so far.
    Unproven,
}

/// The proofs one relay has earned, bounded: the least recently extended make room.
///
/// Windows of one filter that meet are joined, so that a proof of all history followed by catch-ups stays one.
///
/// ```
/// use grasp_core::sync::{Coverage, CoverageSet, FilterHash, Proof, Proven, build_announcement_filter};
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
    /// Windows by where they begin; those of one filter do not meet.
    proofs: BTreeMap<(FilterHash, Timestamp), Proof>,
}

impl CoverageSet {
    /// A set without proofs, and with room for this many windows.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { capacity, proofs: BTreeMap::new() }
    }

    /// Takes a proof in. One whose window ends before it begins proves nothing.
    pub fn add(&mut self, proof: Proof) {
        if proof.is_void() {
            return;
        }
        let met: Vec<Proof> =
            self.windows(&proof.filter).filter(|other| other.meets(&proof)).copied().collect();
        for other in &met {
            self.proofs.remove(&(other.filter, other.since));
        }
        let joined = met.into_iter().fold(proof, Proof::joined);
        self.proofs.insert((joined.filter, joined.since), joined);
        self.make_room();
    }

    /// Whether everything from `since` on is proven; from the beginning, if `None`.
    pub fn since(&self, filter: &FilterHash, since: Option<Timestamp>) -> Coverage {
        let since = since.unwrap_or(Timestamp::from_secs(0));
        self.windows(filter)
            .find(|proof| proof.since <= since && since <= proof.until)
            .map_or(Coverage::Unproven, |proof| Coverage::Proven(*proof))
    }

    /// Every proof in it.
    pub fn proofs(&self) -> impl Iterator<Item = &Proof> {
        self.proofs.values()
    }

    fn windows(&self, filter: &FilterHash) -> impl Iterator<Item = &Proof> {
        let all = Timestamp::from_secs(0)..=Timestamp::from_secs(u64::MAX);
        self.proofs.range((*filter, *all.start())..=(*filter, *all.end())).map(|(_, proof)| proof)
    }

    fn make_room(&mut self) {
        while self.proofs.len() > self.capacity {
            let oldest = self.proofs.iter().min_by_key(|(_, proof)| proof.until);
            let Some((key, _)) = oldest else { return };
            let key = *key;
            self.proofs.remove(&key);
        }
    }
}

/// How a set is written down. What is read back is taken in proof by proof, whatever the file says.
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
        FilterHash([n; 32])
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
    fn the_name_is_of_the_content_and_not_of_the_window() {
        let filter = build_announcement_filter(None);
        let windowed = build_announcement_filter(Some(secs(5))).until(secs(9)).limit(3);
        assert_eq!(FilterHash::of(&filter), FilterHash::of(&windowed));
        assert_ne!(FilterHash::of(&filter), FilterHash::of(&filter.clone().identifier("x")));
    }

    #[test]
    fn the_name_outlives_the_program() {
        // sha256 of {"kinds":[10317,30617,30618]}
        let known = "62fb3dc122ef4aea1c6a0e72bc754c491c942ad0e2964f1742b8226430062c81";
        assert_eq!(FilterHash::of(&build_announcement_filter(None)).to_string(), known);
        assert_eq!(known.parse(), Ok(FilterHash::of(&build_announcement_filter(None))));
    }

    #[test]
    fn windows_that_meet_become_one_as_old_as_its_oldest_part() {
        let set = set(&[proof(1, 0, 10, 11), proof(1, 10, 20, 21)]);
        assert_eq!(set.since(&hash(1), None), Coverage::Proven(proof(1, 0, 20, 11)));
    }

    #[test]
    fn a_gap_stays_a_gap_until_it_is_closed() {
        let mut set = set(&[proof(1, 0, 10, 11), proof(1, 15, 20, 21)]);
        assert_eq!(set.since(&hash(1), None), Coverage::Proven(proof(1, 0, 10, 11)));
        assert_eq!(set.since(&hash(1), Some(secs(12))), Coverage::Unproven);
        assert_eq!(set.since(&hash(1), Some(secs(16))), Coverage::Proven(proof(1, 15, 20, 21)));
        set.add(proof(1, 9, 16, 30));
        assert_eq!(set.since(&hash(1), None), Coverage::Proven(proof(1, 0, 20, 11)));
        assert_eq!(set.proofs().count(), 1);
    }

    #[test]
    fn a_newer_proof_of_all_of_it_makes_it_young() {
        let set = set(&[proof(1, 5, 10, 11), proof(1, 0, 30, 31), proof(1, 20, 25, 40)]);
        assert_eq!(set.since(&hash(1), None), Coverage::Proven(proof(1, 0, 30, 31)));
        let again = super::tests::set(&[proof(1, 0, 30, 31), proof(1, 0, 30, 50)]);
        assert_eq!(again.since(&hash(1), None), Coverage::Proven(proof(1, 0, 30, 50)));
    }

    #[test]
    fn a_proof_without_a_beginning_is_needed_for_all_of_history() {
        let set = set(&[proof(1, 1, 10, 11)]);
        assert_eq!(set.since(&hash(1), None), Coverage::Unproven);
        assert_eq!(set.since(&hash(2), Some(secs(5))), Coverage::Unproven);
    }

    #[test]
    fn the_least_recently_extended_make_room() {
        let mut set = set(&[proof(1, 0, 10, 1), proof(2, 0, 20, 2), proof(3, 0, 30, 3)]);
        set.add(proof(1, 10, 40, 4));
        set.add(proof(4, 0, 50, 5));
        let left: Vec<_> = set.proofs().map(|proof| proof.filter).collect();
        assert_eq!(left, [hash(1), hash(3), hash(4)]);
    }

    #[test]
    fn what_is_written_is_read_back_and_nonsense_is_not() {
        let set = set(&[proof(1, 0, 10, 11), proof(2, 3, 4, 5)]);
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(serde_json::from_str::<CoverageSet>(&text).unwrap(), set);
        let reversed = text.replace(r#""since":3"#, r#""since":9"#);
        let read: CoverageSet = serde_json::from_str(&reversed).unwrap();
        assert_eq!(read.since(&hash(2), Some(secs(9))), Coverage::Unproven);
        assert_eq!(read.proofs().count(), 1);
    }
}
