//! Waiting rules and texts that every kind of conversation with another server shares.
//!
//! | type | decides |
//! |---|---|
//! | [`Backoff`] | when a failed peer may be tried again, and whether it is dead |
//! | [`EoseHint`] | whether a page of stored events was the last |
//! | [`PeerText`] | the part of a peer's text that may enter a log |

mod backoff;
mod peer_text;

pub use backoff::{Backoff, BackoffPolicy, BackoffSnapshot, Health};
pub use peer_text::PeerText;

use crate::Mono;

/// The answer of a limit that only time can lift.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Start once, now. A limit that counts starts has counted this one.
    Go,
    /// Do not start before this time.
    Wait(Mono),
}

impl Admit {
    /// Returns whether `now` has reached the earliest `start`.
    pub fn not_before(start: Mono, now: Mono) -> Self {
        if now >= start { Self::Go } else { Self::Wait(start) }
    }
}

/// The completeness hint of an EOSE (NIP-67).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EoseHint {
    /// All matching events were sent.
    Finish,
    /// There may be more events.
    More,
}

impl EoseHint {
    /// Parses a hint; `None` for an unknown one.
    pub fn read(text: &str) -> Option<Self> {
        [Self::Finish, Self::More].into_iter().find(|hint| hint.as_str() == text)
    }

    /// Returns the hint as it is written in the message.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::More => "more",
        }
    }
}
