//! The order of versions of a replaceable event.

use std::cmp::Ordering;

use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

/// Date and id of a version of a replaceable event. The greater version wins.
///
/// The newer one is greater; of two with the same date, the one with the lower id (NIP-01). Clients mine ids to
/// replace an event within a second, so this order is used everywhere.
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
#[allow(missing_docs)]
pub struct Version {
    pub created_at: Timestamp,
    pub id: EventId,
}

impl Version {
    /// Returns the version that an event is.
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
