//! What every store agrees on, whatever it is made of.

use std::time::Duration;

use grasp_core::ServiceIdentity;
use nostr::event::{Event, Kind};
use nostr::types::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What an operator decides about deletion, vanishing and rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The address this relay is known by: a request to vanish that names it is obeyed.
    ///
    /// Requests for all relays are obeyed without one too.
    pub service: Option<ServiceIdentity>,
    /// How many superseded versions of one announcement or state are kept for rollback.
    pub kept_versions: usize,
    /// How long a deletion request is served after it was received, or last removed or blocked something.
    pub deletions_served: Duration,
    /// How much longer its targets stay refused after it is no longer served.
    pub deletions_gated: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            service: None,
            kept_versions: 64,
            deletions_served: 30 * DAY,
            deletions_gated: 180 * DAY,
        }
    }
}

impl Rules {
    /// A request last useful at this time or earlier is no longer served.
    pub(crate) fn retired_before(&self, now: Timestamp) -> u64 {
        ago(now, self.deletions_served)
    }

    /// A request last useful at this time or earlier no longer refuses anything.
    pub(crate) fn forgotten_before(&self, now: Timestamp) -> u64 {
        ago(now, self.deletions_served.saturating_add(self.deletions_gated))
    }
}

/// A request that was useful after this time is not noted as useful again: a flood of blocked events stays cheap.
pub(crate) fn noted_before(now: Timestamp) -> u64 {
    ago(now, DAY)
}

fn ago(now: Timestamp, length: Duration) -> u64 {
    now.as_secs().saturating_sub(length.as_secs())
}

/// Says whether an event's time is over.
///
/// NIP-40 names the moment *at* which an event counts as expired, so that second is already too late.
pub(crate) fn is_expired(event: &Event, now: Timestamp) -> bool {
    event.tags.expiration().is_some_and(|at| at <= now)
}

/// Says whether superseded versions of this kind are kept: repository announcements and states.
pub(crate) fn keeps_versions(kind: Kind) -> bool {
    matches!(kind.as_u16(), 30_617 | 30_618)
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventId, Signature, Tag};
    use nostr::key::PublicKey;

    use super::*;

    #[test]
    fn an_event_is_expired_in_the_very_second_it_names() {
        let event = Event::new(
            EventId::from_byte_array([0; 32]),
            PublicKey::from_byte_array([0; 32]),
            Timestamp::from_secs(1),
            Kind::TextNote,
            [Tag::expiration(Timestamp::from_secs(10))],
            "",
            Signature::from_byte_array([0; 64]),
        );
        assert!(!is_expired(&event, Timestamp::from_secs(9)));
        assert!(is_expired(&event, Timestamp::from_secs(10)));
    }
}
