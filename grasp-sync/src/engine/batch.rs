//! Jobs that complete together, and what completing means.

use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{BatchId, PendingBatch};

use super::ids::LiveId;
use super::relay::Course;

/// What a group of jobs is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Layer 1, once per connection.
    Announcements,
    /// What was confirmed before the connection was lost, from then on.
    CatchUp,
    /// New repositories and roots; the batch is in the pending index.
    Batch(BatchId),
    /// What was published while a request of the live set was not open.
    ReachBack(LiveId),
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
    /// How what it brings is counted.
    pub(super) course: Course,
    /// What is outstanding; for a [`Purpose::Batch`] the pending index has it.
    pub(super) tracker: Option<PendingBatch>,
}
