//! Groups of jobs that complete together.

use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{BatchId, PendingBatch};

use super::ids::LiveId;
use super::relay::CountAs;

/// The purpose of a group of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Layer 1, once per connection.
    Announcements,
    /// Confirmed items, from the loss of the connection on.
    CatchUp,
    /// New repositories and roots; the batch is in the pending index.
    Batch(BatchId),
    /// Events published while a live request was not open.
    MissedLive(LiveId),
    /// Events of a live request for which there is no room.
    Poll(LiveId),
}

impl Purpose {
    /// Returns whether history is complete only when it is.
    pub(super) fn is_history(self) -> bool {
        !matches!(self, Self::Poll(_))
    }
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) purpose: Purpose,
    pub(super) began: Timestamp,
    /// The way in which its events are counted.
    pub(super) count_as: CountAs,
    /// What is outstanding; in the pending index for a [`Purpose::Batch`].
    pub(super) tracker: Option<PendingBatch>,
}
