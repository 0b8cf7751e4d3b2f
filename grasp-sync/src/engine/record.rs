//! Records of relays, which survive restarts: backoff and pauses go on, and nothing is fetched twice.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::index::CoverageSet;
use grasp_core::limits::BackoffSnapshot;
use grasp_core::{RelayUrl, nostr};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::report::PeerReliability;
use super::suspended::Parked;

/// The record of one relay, in calendar time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRecord {
    /// The address of the relay.
    pub relay: RelayUrl,
    /// Its failures, if it is not healthy.
    pub backoff: Option<BackoffSnapshot>,
    /// The end of its quarantine, in which it is not dialled.
    pub quarantined_until: Option<Timestamp>,
    /// The end of the pause that its rate limit made necessary.
    #[serde(default)]
    pub paused_until: Option<Timestamp>,
    /// Requests that it refuses.
    #[serde(default)]
    pub parked: Vec<Parked>,
    /// The end of the last full pass.
    pub full_pass_at: Option<Timestamp>,
    /// Bytes of subscriptions that it remembers at most, as it said.
    pub retained_bytes: Option<usize>,
    /// Interruptions of live subscriptions since the last full pass.
    #[serde(default)]
    pub interrupted: usize,
    /// The address that it was last found at.
    #[serde(default)]
    pub address: Option<IpAddr>,
    /// Since when it waits for a connection.
    #[serde(default)]
    pub waits_since: Option<Timestamp>,
    /// True if its last connection was ended for forged events.
    #[serde(default)]
    pub is_forging: bool,
    /// Its reliability so far.
    #[serde(default)]
    pub seen: PeerReliability,
    /// What it has delivered completely.
    pub coverage: CoverageSet,
}

impl RelayRecord {
    /// Returns whether the relay never delivered anything, so that little is lost with this.
    pub(crate) fn is_empty(&self) -> bool {
        self.coverage.proofs().next().is_none()
    }
}

/// Proofs kept for each relay.
pub(crate) const COVERAGE_CAPACITY: usize = 500;

/// Records of relays that are not targets at the moment: restored ones whose repositories are not known yet, and
/// retired ones, so that removing and adding a relay resets nothing.
#[derive(Debug, Default)]
pub(super) struct Records(pub(super) BTreeMap<RelayUrl, RelayRecord>);

const MAX_RECORDS: usize = 1_000;

impl Records {
    pub(super) fn keep(&mut self, record: RelayRecord) {
        if self.0.len() >= MAX_RECORDS && !self.0.contains_key(&record.relay) {
            // Relays that never delivered anything make room for those that did: any event can name a relay.
            let empty = self.0.values().find(|record| record.is_empty());
            let Some(empty) = empty.map(|record| record.relay.clone()) else { return };
            if record.is_empty() {
                return;
            }
            self.0.remove(&empty);
        }
        self.0.insert(record.relay.clone(), record);
    }
}

#[cfg(test)]
mod tests {
    use crate::index::{FilterHash, Proof, Proven};
    use grasp_core::nostr::filter::Filter;

    use super::*;

    fn record(relay: &str, gave: bool) -> RelayRecord {
        let mut coverage = CoverageSet::with_capacity(COVERAGE_CAPACITY);
        if gave {
            let filter = FilterHash::of(&Filter::new());
            let (since, until, at) = (0.into(), 9.into(), 9.into());
            coverage.add(Proof { filter, since, until, proven: Proven::Exhausted, at });
        }
        RelayRecord {
            relay: format!("wss://{relay}.example").parse().unwrap(),
            backoff: None,
            quarantined_until: None,
            paused_until: None,
            parked: Vec::new(),
            full_pass_at: None,
            retained_bytes: None,
            interrupted: 0,
            address: None,
            waits_since: None,
            is_forging: false,
            seen: PeerReliability::default(),
            coverage,
        }
    }

    #[test]
    fn empty_records_displace_no_others() {
        let mut records = Records::default();
        for n in 0..MAX_RECORDS {
            records.keep(record(&format!("a{n}"), false));
        }
        let (honest, late) = (record("z", true), record("zz", false));
        records.keep(honest.clone());
        records.keep(late.clone());
        assert_eq!(records.0.len(), MAX_RECORDS);
        assert_eq!(records.0.remove(&late.relay), None);
        assert_eq!(records.0.remove(&honest.relay), Some(honest));
    }
}
