//! Jobs that complete together, and what completing means.

use grasp_core::nostr::message::SubscriptionId;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{BatchId, BatchProgress, PendingBatch, PendingItems, SyncMethod};

use super::history::Method;
use super::ids::{JobId, LiveId};

/// What a group of jobs is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Layer 1, once per connection.
    Announcements,
    /// What was confirmed before the connection was lost, from then on.
    CatchUp,
    /// New repositories and roots; the batch is in the pending index.
    Batch(BatchId),
    /// What could not be subscribed to.
    Poll(LiveId),
}

impl Purpose {
    /// Whether anybody waits for it to call history complete.
    pub(super) fn is_history(self) -> bool {
        !matches!(self, Self::Poll(_))
    }
}

/// Jobs under way together.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) purpose: Purpose,
    /// When it began.
    pub(super) began: Timestamp,
    /// What is outstanding; for a [`Purpose::Batch`] the pending index has it.
    pub(super) tracker: Option<PendingBatch>,
}

/// What a job is called in a batch.
pub(super) fn name(job: JobId) -> SubscriptionId {
    SubscriptionId::new(format!("h{}", job.0))
}

/// A batch that waits for these jobs.
pub(super) fn pending(
    batch: BatchId,
    items: PendingItems,
    method: Method,
    jobs: &[JobId],
) -> PendingBatch {
    let names = jobs.iter().map(|job| name(*job));
    match method {
        Method::Reconcile => PendingBatch::reconciling(batch, items, names),
        Method::Page => PendingBatch::requesting(batch, items, names),
    }
}

/// A job of it has ended properly, with everything it brought.
pub(super) fn ended(batch: &mut PendingBatch, job: JobId) -> BatchProgress {
    match batch.sync_method {
        SyncMethod::ReqEose { .. } => batch.eose(&name(job)),
        SyncMethod::Negentropy { .. } => batch.reconciled(&name(job), []),
    }
}

/// A job of it has been cut into several.
pub(super) fn grow(batch: &mut PendingBatch, job: JobId) {
    let waited_for = match &mut batch.sync_method {
        SyncMethod::ReqEose { outstanding } => outstanding,
        SyncMethod::Negentropy { sessions, .. } => sessions,
    };
    waited_for.insert(name(job));
}

/// The relay turned out not to speak NIP-77: the rest comes by plain requests.
pub(super) fn fall_back(batch: &mut PendingBatch) {
    if let SyncMethod::Negentropy { sessions, .. } = &mut batch.sync_method {
        let left = std::mem::take(sessions);
        batch.fall_back(left);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::Ids;
    use super::*;

    #[test]
    fn a_batch_completes_with_the_last_of_its_jobs_however_they_were_done() {
        let mut ids = Ids::default();
        let jobs = [ids.job(), ids.job()];
        let items = PendingItems::default();
        let mut batch = pending(ids.batch(), items, Method::Reconcile, &jobs);
        let third = ids.job();
        grow(&mut batch, third);
        assert_eq!(ended(&mut batch, jobs[0]), BatchProgress::Waiting);
        fall_back(&mut batch);
        assert!(matches!(batch.sync_method, SyncMethod::ReqEose { .. }));
        assert_eq!(ended(&mut batch, jobs[0]), BatchProgress::NotOurs);
        assert_eq!(ended(&mut batch, third), BatchProgress::Waiting);
        assert_eq!(ended(&mut batch, jobs[1]), BatchProgress::Complete);
    }
}
