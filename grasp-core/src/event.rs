//! Events whose signature was checked, and the order of versions of a replaceable event.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use serde::{Deserialize, Serialize};

/// An event whose id and signature were checked. Made by [`Verified::check`] only.
///
/// Only verified events may be remembered, deduplicated or stored: a forged copy must not block the genuine event
/// of the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified<E = Event>(E);

/// The id is not the hash of the event, or the signature is not by its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id or the signature does not verify")]
pub struct VerificationError;

impl<E: Borrow<Event>> Verified<E> {
    /// Checks id and signature; takes about 40 µs.
    pub fn check(event: E) -> Result<Self, VerificationError> {
        event.borrow().verify().map_err(|_| VerificationError)?;
        Ok(Self(event))
    }
}

impl Verified<Event> {
    /// Moves the event into an [`Arc`].
    pub fn share(self) -> Verified<Arc<Event>> {
        Verified(Arc::new(self.0))
    }

    #[cfg(test)]
    pub(crate) fn pretend(event: Event) -> Self {
        Self(event)
    }
}

impl<E> Verified<E> {
    /// Returns the event.
    pub fn into_inner(self) -> E {
        self.0
    }

    /// Borrows the event, still verified.
    pub fn as_ref(&self) -> Verified<&Event>
    where
        E: Borrow<Event>,
    {
        Verified(self.0.borrow())
    }
}

impl<E> Deref for Verified<E> {
    type Target = E;
    fn deref(&self) -> &E {
        &self.0
    }
}

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
        Self {
            created_at: event.created_at,
            id: event.id,
        }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.created_at
            .cmp(&other.created_at)
            .then_with(|| other.id.cmp(&self.id))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
