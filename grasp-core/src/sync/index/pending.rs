//! What has been asked for and not yet been had.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::EventId;
use nostr::message::SubscriptionId;

use super::RelaySyncNeeds;
use crate::RelayUrl;

/// The batches under way at each relay. Cleared for a relay when its connection is lost.
pub type PendingSyncIndex = BTreeMap<RelayUrl, Vec<PendingBatch>>;

/// What a batch is fetching.
pub type PendingItems = RelaySyncNeeds;

/// Names a batch in logs and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// How a batch is fetched, and what it still waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncMethod {
    /// Plain requests, each of which must end with EOSE.
    ReqEose {
        /// The subscriptions without one so far.
        outstanding: BTreeSet<SubscriptionId>,
    },
    /// Set reconciliation, then a fetch of what it found missing.
    Negentropy {
        /// The sessions still comparing.
        sessions: BTreeSet<SubscriptionId>,
        /// Events the relay has and we do not, yet.
        missing: BTreeSet<EventId>,
    },
}

/// Items that become confirmed together, once everything asked for them has ended properly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingBatch {
    /// Its name.
    pub batch_id: BatchId,
    /// What it is fetching.
    pub items: PendingItems,
    /// How, and what is outstanding.
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
    /// A batch of plain requests.
    pub fn requesting(
        batch_id: BatchId,
        items: PendingItems,
        outstanding: impl IntoIterator<Item = SubscriptionId>,
    ) -> Self {
        Self {
            batch_id,
            items,
            sync_method: SyncMethod::ReqEose {
                outstanding: outstanding.into_iter().collect(),
            },
        }
    }

    /// A batch of reconciliations.
    pub fn reconciling(
        batch_id: BatchId,
        items: PendingItems,
        sessions: impl IntoIterator<Item = SubscriptionId>,
    ) -> Self {
        Self {
            batch_id,
            items,
            sync_method: SyncMethod::Negentropy {
                sessions: sessions.into_iter().collect(),
                missing: BTreeSet::new(),
            },
        }
    }

    /// A request of it has been exhausted, its last page ended by EOSE.
    pub fn eose(&mut self, subscription: &SubscriptionId) -> BatchProgress {
        let ours = match &mut self.sync_method {
            SyncMethod::ReqEose { outstanding } => outstanding.remove(subscription),
            SyncMethod::Negentropy { .. } => false,
        };
        self.progress(ours)
    }

    /// A session has compared everything, and these events are to be fetched.
    pub fn reconciled(
        &mut self,
        session: &SubscriptionId,
        found: impl IntoIterator<Item = EventId>,
    ) -> BatchProgress {
        let ours = match &mut self.sync_method {
            SyncMethod::Negentropy { sessions, missing } if sessions.contains(session) => {
                missing.extend(found);
                sessions.remove(session)
            }
            _ => false,
        };
        self.progress(ours)
    }

    /// A missing event has arrived, or was given up for good.
    pub fn settled(&mut self, event: &EventId) -> BatchProgress {
        let ours = match &mut self.sync_method {
            SyncMethod::Negentropy { missing, .. } => missing.remove(event),
            SyncMethod::ReqEose { .. } => false,
        };
        self.progress(ours)
    }

    /// Reconciliation cannot be had here: the batch starts over with plain requests.
    pub fn fall_back(&mut self, outstanding: impl IntoIterator<Item = SubscriptionId>) {
        self.sync_method = SyncMethod::ReqEose {
            outstanding: outstanding.into_iter().collect(),
        };
    }

    fn progress(&self, ours: bool) -> BatchProgress {
        let waits = match &self.sync_method {
            SyncMethod::ReqEose { outstanding } => !outstanding.is_empty(),
            SyncMethod::Negentropy { sessions, missing } => {
                !sessions.is_empty() || !missing.is_empty()
            }
        };
        match (ours, waits) {
            (false, _) => BatchProgress::NotOurs,
            (true, true) => BatchProgress::Waiting,
            (true, false) => BatchProgress::Complete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BatchProgress::{Complete, NotOurs, Waiting};

    fn sub(name: &str) -> SubscriptionId {
        SubscriptionId::new(name)
    }

    fn event(n: u8) -> EventId {
        EventId::from_byte_array([n; 32])
    }

    #[test]
    fn a_batch_completes_with_its_last_eose_and_only_its_own() {
        let subs = [sub("a"), sub("b")];
        let mut batch = PendingBatch::requesting(BatchId(1), PendingItems::default(), subs);
        assert_eq!(batch.eose(&sub("c")), NotOurs);
        assert_eq!(batch.eose(&sub("a")), Waiting);
        assert_eq!(batch.eose(&sub("a")), NotOurs);
        assert_eq!(batch.eose(&sub("b")), Complete);
    }

    #[test]
    fn reconciliation_is_complete_when_the_missing_have_come() {
        let sessions = [sub("a"), sub("b")];
        let mut batch = PendingBatch::reconciling(BatchId(1), PendingItems::default(), sessions);
        assert_eq!(batch.eose(&sub("a")), NotOurs);
        assert_eq!(batch.reconciled(&sub("a"), [event(1)]), Waiting);
        assert_eq!(batch.settled(&event(1)), Waiting);
        assert_eq!(batch.reconciled(&sub("b"), [event(2)]), Waiting);
        assert_eq!(batch.settled(&event(1)), NotOurs);
        assert_eq!(batch.settled(&event(2)), Complete);
    }

    #[test]
    fn nothing_missing_completes_at_once() {
        let mut batch = PendingBatch::reconciling(BatchId(1), PendingItems::default(), [sub("a")]);
        assert_eq!(batch.reconciled(&sub("a"), []), Complete);
    }

    #[test]
    fn a_fallen_back_batch_waits_for_its_requests() {
        let mut batch = PendingBatch::reconciling(BatchId(1), PendingItems::default(), [sub("n")]);
        batch.fall_back([sub("r")]);
        assert_eq!(batch.reconciled(&sub("n"), []), NotOurs);
        assert_eq!(batch.eose(&sub("r")), Complete);
    }
}
