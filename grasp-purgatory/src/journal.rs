//! What purgatory remembers across a crash: every change, written down before anything is done about it.
//!
//! A [`Record`] is one change. Replaying all of them gives the same purgatory, and so does a shorter list that
//! [`Purgatory::snapshot`](crate::Purgatory::snapshot) makes of the outcome.

#[cfg(feature = "driver")]
pub mod sqlite;

use std::sync::Arc;

use grasp_core::Oid;
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

use crate::purgatory::{Chore, Phase, PushTarget, Why};

/// The version of the records that this release writes, and the newest that it reads.
const VERSION: u32 = 1;

/// One change of what is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// An event is kept from now on.
    Held {
        /// The event, whole: nobody else may have it.
        #[serde(with = "shared")]
        event: Arc<Event>,
        /// Where it stands.
        phase: Phase,
        /// When it came in; unknown in records of an earlier release, which are not held for longer.
        #[serde(default = "epoch")]
        since: Timestamp,
        /// Until when.
        until: Timestamp,
    },
    /// An event stands elsewhere, or for longer.
    Moved {
        /// The event.
        id: EventId,
        /// Where it stands.
        phase: Phase,
        /// Until when.
        until: Timestamp,
    },
    /// An event is kept no longer.
    Gone {
        /// The event.
        id: EventId,
        /// Why.
        why: Why,
    },
    /// An upload waits for an event.
    Staged {
        /// The event.
        id: EventId,
        /// The tip.
        tip: Oid,
        /// Where it came in.
        target: PushTarget,
        /// How large its objects are.
        bytes: u64,
        /// Until when all uploads for this event wait.
        until: Timestamp,
    },
    /// Uploads for an event wait no longer.
    Unstaged {
        /// The event.
        id: EventId,
        /// But for this one.
        keep: Option<Oid>,
    },
    /// Something must be done, now or after a restart.
    Owed {
        /// What.
        chore: Chore,
    },
    /// It need not be done any more.
    Settled {
        /// What.
        chore: Chore,
    },
}

fn epoch() -> Timestamp {
    Timestamp::from_secs(0)
}

/// Why a line is no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not what any release ever wrote.
    #[error("not a journal record")]
    Malformed(#[from] serde_json::Error),
    /// Written by a release that knows more than this one.
    #[error("a journal record of version {0}; this release reads up to {VERSION}")]
    Newer(u32),
}

#[derive(Serialize)]
struct Written<'a> {
    v: u32,
    record: &'a Record,
}

#[derive(Deserialize)]
struct Read {
    record: Record,
}

#[derive(Deserialize)]
struct Peek {
    v: u32,
}

impl Record {
    /// The event that a change is about, if it is about one.
    pub(crate) fn event(&self) -> Option<EventId> {
        match self {
            Self::Held { event, .. } => Some(event.id),
            Self::Moved { id, .. }
            | Self::Gone { id, .. }
            | Self::Staged { id, .. }
            | Self::Unstaged { id, .. } => Some(*id),
            Self::Owed { .. } | Self::Settled { .. } => None,
        }
    }

    /// The record as one line of text.
    pub fn encode(&self) -> Result<String, RecordError> {
        Ok(serde_json::to_string(&Written { v: VERSION, record: self })?)
    }

    /// Reads a line that this or an earlier release wrote.
    pub fn decode(line: &str) -> Result<Self, RecordError> {
        let Peek { v } = serde_json::from_str(line)?;
        if v > VERSION {
            return Err(RecordError::Newer(v));
        }
        let Read { record } = serde_json::from_str(line)?;
        Ok(record)
    }
}

/// A shared event travels as the event it is.
mod shared {
    use std::sync::Arc;

    use nostr::event::Event;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(event: &Arc<Event>, to: S) -> Result<S::Ok, S::Error> {
        event.as_ref().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Event>, D::Error> {
        Event::deserialize(from).map(Arc::new)
    }
}
