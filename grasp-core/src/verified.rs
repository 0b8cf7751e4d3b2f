//! Proof that an event is what its id says and that its author signed it.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use nostr::event::Event;

/// An event whose id and signature were checked here. Made by [`Verified::check`] alone.
///
/// Nothing may be remembered, deduplicated or stored for an event before it has this form: a forged copy must not
/// spoil the genuine id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified<E = Event>(E);

/// The id is not the hash of the event, or the signature is not its author's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id or the signature does not verify")]
pub struct Forged;

impl<E: Borrow<Event>> Verified<E> {
    /// Checks id and signature; costs about 40 µs.
    pub fn check(event: E) -> Result<Self, Forged> {
        event.borrow().verify().map_err(|_| Forged)?;
        Ok(Self(event))
    }
}

impl Verified<Event> {
    /// Shares the event among many without copying it.
    pub fn share(self) -> Verified<Arc<Event>> {
        Verified(Arc::new(self.0))
    }

    #[cfg(test)]
    pub(crate) fn pretend(event: Event) -> Self {
        Self(event)
    }
}

impl<E> Verified<E> {
    /// Gives the event back.
    pub fn into_inner(self) -> E {
        self.0
    }

    /// The same proof for a borrowed event.
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
