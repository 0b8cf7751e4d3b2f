//! Items that were requested and are not complete yet.

use std::collections::{BTreeMap, BTreeSet};

use super::RelaySyncNeeds;
use grasp_core::RelayUrl;

/// The batches in progress at each relay. Cleared for a relay when its connection is lost.
pub type PendingSyncIndex = BTreeMap<RelayUrl, Vec<PendingBatch>>;

/// The items of a batch.
pub type PendingItems = RelaySyncNeeds;

/// Identifies a batch in logs and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Identifies a part of a batch: the history of one filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u64);

/// The way in which the history of a batch was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncMethod {
    /// At least one part by pages that end with EOSE.
    ReqEose,
    /// All of it by set reconciliation (NIP-77).
    Negentropy,
}

/// Items that become confirmed together, once all of its parts are complete.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PendingBatch {
    pub batch_id: BatchId,
    pub items: PendingItems,
    pub outstanding: BTreeSet<PartId>,
    /// Reconciliation, unless a part was fetched by pages.
    pub sync_method: SyncMethod,
}

/// The progress of a batch when a part ends.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchProgress {
    /// The part does not belong to the batch.
    NotOurs,
    /// Other parts are not complete.
    Waiting,
    /// The last part is complete: confirm the items.
    Complete,
}

impl PendingBatch {
    /// Returns a batch of these parts.
    pub fn new(
        batch_id: BatchId,
        items: PendingItems,
        parts: impl IntoIterator<Item = PartId>,
    ) -> Self {
        let outstanding = parts.into_iter().collect();
        Self { batch_id, items, outstanding, sync_method: SyncMethod::Negentropy }
    }

    /// Records that a part was fetched by pages.
    pub fn paged(&mut self) {
        self.sync_method = SyncMethod::ReqEose;
    }

    /// Adds a part that resulted from splitting another.
    pub fn grow(&mut self, part: PartId) {
        self.outstanding.insert(part);
    }

    /// Records that a part is complete: its last page ended, or it was compared and missing events were fetched.
    pub fn ended(&mut self, part: PartId) -> BatchProgress {
        match (self.outstanding.remove(&part), self.outstanding.is_empty()) {
            (false, _) => BatchProgress::NotOurs,
            (true, false) => BatchProgress::Waiting,
            (true, true) => BatchProgress::Complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BatchProgress::{Complete, NotOurs, Waiting};

    #[test]
    fn a_batch_completes_with_its_last_own_part() {
        let [a, b, c, d] = [1, 2, 3, 4].map(PartId);
        let mut batch = PendingBatch::new(BatchId(1), PendingItems::default(), [a, b]);
        assert_eq!(batch.ended(d), NotOurs);
        assert_eq!(batch.ended(a), Waiting);
        assert_eq!(batch.ended(a), NotOurs);
        batch.grow(c);
        assert_eq!(batch.ended(b), Waiting);
        assert_eq!(batch.ended(c), Complete);
    }
}
