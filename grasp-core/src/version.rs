//! Which of two versions of a replaceable event wins.

use std::cmp::Ordering;

use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

/// When a version was made, and its id. The greater version wins.
///
/// The newer one is greater; of two made in the same second, the one with the lower id (NIP-01). Clients mine
/// ids to replace within a second, so this order holds everywhere.
///
/// ```
/// use grasp_core::Version;
/// use nostr::event::EventId;
/// use nostr::types::Timestamp;
///
/// let low = Version { created_at: Timestamp::from_secs(7), id: EventId::from_slice(&[0; 32]).unwrap() };
/// let high = Version { created_at: Timestamp::from_secs(7), id: EventId::from_slice(&[1; 32]).unwrap() };
/// assert!(low > high);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    /// When its author says it was made.
    pub created_at: Timestamp,
    /// Its id.
    pub id: EventId,
}

impl Version {
    /// The version that an event is.
    pub fn of(event: &Event) -> Self {
        Self { created_at: event.created_at, id: event.id }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.created_at.cmp(&other.created_at).then_with(|| other.id.cmp(&self.id))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
