//! The changes of purgatory that survive a restart.

use std::sync::Arc;

use grasp_core::Oid;
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;

use crate::purgatory::{CleanupTask, EndReason, Phase, PushTarget};

/// One change of purgatory, written before its effects.
///
/// A database keeps what the records lead to: applying all records in their order gives the same purgatory as applying
/// the rows that are left of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are documented where the name does not say it all")]
pub enum Record {
    /// An event is held until then. It is written whole: no other server may have it.
    Held { event: Arc<Event>, phase: Phase, since: Timestamp, until: Timestamp },
    /// The phase of an event changed, or its end.
    Moved { id: EventId, phase: Phase, until: Timestamp },
    /// An event is no longer held.
    Gone { id: EventId, reason: EndReason },
    /// An upload of this size waits for an event. All uploads for the event wait until then.
    Staged { id: EventId, tip: Oid, target: PushTarget, bytes: u64, until: Timestamp },
    /// The uploads for an event wait no longer, but for the tip to keep.
    Unstaged { id: EventId, keep: Option<Oid> },
    /// A task is pending, also after a restart.
    TaskAdded { task: CleanupTask },
    /// A task is no longer pending.
    TaskDone { task: CleanupTask },
}
