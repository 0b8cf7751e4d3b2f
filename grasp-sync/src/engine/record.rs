//! What outlives the process, so that a restart hammers nobody and fetches nothing twice.

use std::collections::BTreeMap;
use std::net::IpAddr;

use grasp_core::limits::BackoffSnapshot;
use grasp_core::sync::CoverageSet;
use grasp_core::{RelayUrl, nostr};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use super::parks::Parked;
use super::report::PeerReliability;

/// What is remembered of one relay, in calendar terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRecord {
    /// Which one.
    pub relay: RelayUrl,
    /// Its failures, if it is not well.
    pub backoff: Option<BackoffSnapshot>,
    /// Until when it is not to be dialled, whatever its failures.
    pub quarantined_until: Option<Timestamp>,
    /// Until when it is to be asked for nothing, having found us too fast.
    #[serde(default)]
    pub paused_until: Option<Timestamp>,
    /// What it does not want to be asked.
    #[serde(default)]
    pub parked: Vec<Parked>,
    /// When everything was last fetched from it anew.
    pub full_pass_at: Option<Timestamp>,
    /// The bytes of subscriptions it has said to remember at most.
    pub retained_bytes: Option<usize>,
    /// Times that something was not listened to since the last full pass.
    #[serde(default)]
    pub interrupted: usize,
    /// The address that it was last found at.
    #[serde(default)]
    pub address: Option<IpAddr>,
    /// Since when it waits for a connection.
    #[serde(default)]
    pub waits_since: Option<Timestamp>,
    /// Whether its last connection was ended for forged events.
    #[serde(default)]
    pub is_forging: bool,
    /// What has been seen of it.
    #[serde(default)]
    pub seen: PeerReliability,
    /// What it has given completely.
    pub coverage: CoverageSet,
}

impl RelayRecord {
    /// Whether the relay never gave anything, so that little is lost with this.
    pub(crate) fn is_empty(&self) -> bool {
        self.coverage.proofs().next().is_none()
    }
}

/// Windows of coverage kept for each relay.
pub(super) const COVERAGE_CAPACITY: usize = 500;

/// Records of relays that are not targets at the moment: restored ones whose repositories have not been told yet,
/// and retired ones, so that dropping and re-adding a relay resets nothing.
#[derive(Debug, Default)]
pub(super) struct Records(BTreeMap<RelayUrl, RelayRecord>);

/// Relays remembered that nobody needs.
const MAX_RECORDS: usize = 1_000;

impl Records {
    pub(super) fn keep(&mut self, record: RelayRecord) {
        if self.0.len() >= MAX_RECORDS && !self.0.contains_key(&record.relay) {
            // Anybody can name relays that never gave anything; they make room for those that did.
            let empty = self.0.values().find(|record| record.is_empty());
            let Some(empty) = empty.map(|record| record.relay.clone()) else { return };
            if record.is_empty() {
                return;
            }
            self.0.remove(&empty);
        }
        self.0.insert(record.relay.clone(), record);
    }

    pub(super) fn take(&mut self, relay: &RelayUrl) -> Option<RelayRecord> {
        self.0.remove(relay)
    }

    /// Nothing was given by anybody.
    pub(super) fn forget_coverage(&mut self) {
        for record in self.0.values_mut() {
            record.coverage = CoverageSet::with_capacity(COVERAGE_CAPACITY);
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &RelayRecord> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::filter::Filter;
    use grasp_core::sync::{FilterHash, Proof, Proven};

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
    fn relays_that_never_gave_anything_take_the_place_of_nobody() {
        let mut records = Records::default();
        for n in 0..MAX_RECORDS {
            records.keep(record(&format!("a{n}"), false));
        }
        let (honest, late) = (record("z", true), record("zz", false));
        records.keep(honest.clone());
        records.keep(late.clone());
        assert_eq!(records.all().count(), MAX_RECORDS);
        assert_eq!(records.take(&late.relay), None);
        assert_eq!(records.take(&honest.relay), Some(honest));
    }
}
