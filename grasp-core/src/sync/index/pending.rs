//! What has been asked for and not yet been had.

use std::collections::{BTreeMap, BTreeSet};

use super::RelaySyncNeeds;
use crate::RelayUrl;

/// The batches under way at each relay. Cleared for a relay when its connection is lost.
pub type PendingSyncIndex = BTreeMap<RelayUrl, Vec<PendingBatch>>;

/// What a batch is fetching.
pub type PendingItems = RelaySyncNeeds;

/// Names a batch in logs and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Names a part of a batch: one filter's history, whether compared or paged through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u64);

/// How a batch was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncMethod {
    /// By requests that end with EOSE, page after page; some of it at least.
    ReqEose,
    /// By set reconciliation (NIP-77), all of it.
    Negentropy,
}

/// Items that become confirmed together, once everything asked for them has ended properly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingBatch {
    /// Its name.
    pub batch_id: BatchId,
    /// What it is fetching.
    pub items: PendingItems,
    /// What it still waits for.
    pub outstanding: BTreeSet<PartId>,
    /// How it is had: by reconciliation, as long as no part of it was paged through.
    pub sync_method: SyncMethod,
}

/// What an ending meant to a batch.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchProgress {
    /// Nothing: the batch does not wait for it.
    NotOurs,
    /// The batch waits for more.
    Waiting,
    /// That was the last: confirm the items.
    Complete,
}

impl PendingBatch {
    /// A batch of these parts.
    pub fn new(
        batch_id: BatchId,
        items: PendingItems,
        parts: impl IntoIterator<Item = PartId>,
    ) -> Self {
        let outstanding = parts.into_iter().collect();
        Self { batch_id, items, outstanding, sync_method: SyncMethod::Negentropy }
    }

    /// A part was paged through.
    pub fn paged(&mut self) {
        self.sync_method = SyncMethod::ReqEose;
    }

    /// A part has been cut into several, this among them.
    pub fn grow(&mut self, part: PartId) {
        self.outstanding.insert(part);
    }

    /// A part has ended properly: its last page by EOSE, or everything compared and the missing fetched.
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
    fn a_batch_completes_with_its_last_part_and_only_its_own() {
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
