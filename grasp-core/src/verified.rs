//! Events with a checked id and signature.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use nostr::event::Event;

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
