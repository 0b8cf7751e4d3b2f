//! Waiting rules and texts that every kind of connection to another server shares.
//!
//! | type | decides |
//! |---|---|
//! | [`Backoff`] | when a failed peer may be tried again, and whether it is dead |
//! | [`ConnectionStatus`] | whether requests can be sent to a relay |
//! | [`EoseHint`] | whether a page of stored events was the last |
//! | [`PeerText`] | the part of a peer's text that may enter a log |
//!
//! ```
//! use std::time::Duration;
//! use grasp_core::limits::{Admit, Backoff, BackoffPolicy, BackoffSnapshot, ConnectionStatus, EoseHint, Health, PeerText};
//! use grasp_core::{Mono, Now};
//! use nostr::types::Timestamp;
//!
//! let mut backoff = Backoff::new(BackoffPolicy::RELAY);
//! let retry_at = backoff.failed(Mono::ZERO);
//! assert_eq!(backoff.admit(Mono::ZERO), Admit::Wait(retry_at));
//! assert_eq!(backoff.health(Mono::ZERO), Health::Degraded);
//!
//! // It survives a restart.
//! let now = Now::new(Mono::ZERO, Timestamp::from_secs(1_700_000_000));
//! let snapshot: BackoffSnapshot = backoff.snapshot(now).expect("it has failed");
//! let restored = Backoff::restore(BackoffPolicy::RELAY, now.after(Duration::from_secs(60)), &snapshot);
//! assert_eq!(restored.admit(now.after(Duration::from_secs(60)).mono), Admit::Go);
//!
//! assert!(ConnectionStatus::Syncing.is_connected() && !ConnectionStatus::Connecting.is_connected());
//! assert_eq!(EoseHint::read(EoseHint::Finish.as_str()), Some(EoseHint::Finish));
//! assert_eq!(PeerText::new("two\nlines").as_str().lines().count(), 1);
//! ```

mod backoff;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::backoff::{Backoff, BackoffPolicy, BackoffSnapshot, Health};
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
        if now >= start {
            Self::Go
        } else {
            Self::Wait(start)
        }
    }
}

/// The phase of a connection to another relay.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionStatus {
    /// Not connected.
    #[default]
    Disconnected,
    /// Connecting.
    Connecting,
    /// Connected; history is still being fetched.
    Syncing,
    /// Connected, history complete.
    Connected,
    /// Connected and live, but some history could not be fetched.
    #[serde(rename = "incomplete")]
    ConnectedHistoricSyncFailures,
}

impl ConnectionStatus {
    /// Returns whether requests can be sent.
    pub fn is_connected(self) -> bool {
        match self {
            Self::Disconnected | Self::Connecting => false,
            Self::Syncing | Self::Connected | Self::ConnectedHistoricSyncFailures => true,
        }
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
        [Self::Finish, Self::More]
            .into_iter()
            .find(|hint| hint.as_str() == text)
    }

    /// Returns the hint as it is written in the message.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::More => "more",
        }
    }
}

/// Text from a peer that is safe in a log line or on a status page.
///
/// At most [`PeerText::MAX_CHARS`] characters; control characters, line breaks and characters that
/// change the writing direction are replaced. It is never a metric label, and no decision depends on it.
///
/// ```
/// use grasp_core::limits::PeerText;
///
/// let text = PeerText::new("blocked:\n\u{1b}[31mno");
/// assert_eq!(text.as_str(), "blocked:\u{fffd}\u{fffd}[31mno");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct PeerText(String);

impl PeerText {
    /// Maximum length in characters.
    pub const MAX_CHARS: usize = 200;

    /// Shortens and sanitises a text; a shortened text ends in an ellipsis.
    pub fn new(text: &str) -> Self {
        let mut chars = text.chars();
        let mut kept: String = chars
            .by_ref()
            .take(Self::MAX_CHARS)
            .map(sanitised)
            .collect();
        if chars.next().is_some() {
            kept.pop();
            kept.push('…');
        }
        Self(kept)
    }

    /// Returns the sanitised text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Sanitises again, because a stored text may have been edited.
impl From<String> for PeerText {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl fmt::Display for PeerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn sanitised(c: char) -> char {
    let is_invisible = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}');
    if c.is_control() || is_invisible {
        char::REPLACEMENT_CHARACTER
    } else {
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_ordinary_text_of_any_script() {
        let text = "restricted: nur für Mitglieder 会员 🦀";
        assert_eq!(PeerText::new(text).as_str(), text);
    }

    #[test]
    fn shortens_a_long_text_with_an_ellipsis() {
        let text = PeerText::new(&"é".repeat(10_000));
        assert_eq!(text.as_str().chars().count(), PeerText::MAX_CHARS);
        assert!(text.as_str().ends_with("é…"));
    }

    #[test]
    fn keeps_a_text_of_the_maximum_length() {
        let text = "x".repeat(PeerText::MAX_CHARS);
        assert_eq!(PeerText::new(&text).as_str(), text);
    }

    #[test]
    fn replaces_line_breaks_and_direction_marks() {
        for bad in ["\r", "\n", "\0", "\u{7f}", "\u{85}", "\u{2028}", "\u{202e}"] {
            assert_eq!(PeerText::new(bad).as_str(), "\u{fffd}", "{bad:?}");
        }
    }

    #[test]
    fn sanitises_again_when_deserialised() {
        let text: PeerText = serde_json::from_str(r#""a\nb""#).unwrap();
        assert_eq!(text, PeerText::new("a\nb"));
    }
}
