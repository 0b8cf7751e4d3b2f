//! Text forms of types, and the error of all parsers.

use std::borrow::Cow;

use nostr::event::EventId;
use nostr::key::PublicKey;

/// The reason for which an input is not valid: a text, the commands of a push, or an event of its kind.
///
/// There is one type for all of them, because the reaction is the same: the sender is told the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(Cow<'static, str>);

impl ParseError {
    /// Creates an error with this reason.
    pub fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self(why.into())
    }
}

/// Returns a [`ParseError`] with this reason.
pub(crate) fn invalid<T>(why: impl Into<Cow<'static, str>>) -> Result<T, ParseError> {
    Err(ParseError(why.into()))
}

/// Implements `as_str`, `FromStr`, `Display` and serde for a type that wraps a text which its `new` validates.
macro_rules! validated_text {
    ($($type:ident),+) => {$(
        impl $type {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::ParseError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        $crate::text::serde_as_text!($type);
    )+};
}

/// Implements serde for a type by its `Display` and `FromStr`.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use {serde_as_text, validated_text};

/// Decodes exactly `2 * N` hex digits, in either case.
pub(crate) fn hex_bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let is_long_enough = text.len() == 2 * N;
    let decoded = is_long_enough && faster_hex::hex_decode(text.as_bytes(), &mut bytes).is_ok();
    decoded.then_some(bytes)
}

/// Parses a public key in lower-case hex, the spelling that tags and filters use.
pub(crate) fn parse_pubkey(text: &str) -> Option<PublicKey> {
    if is_lower_hex(text) {
        PublicKey::from_hex(text).ok()
    } else {
        None
    }
}

/// Parses an event id in lower-case hex, the spelling that relays index.
pub(crate) fn parse_event_id(text: &str) -> Option<EventId> {
    if is_lower_hex(text) {
        EventId::from_hex(text).ok()
    } else {
        None
    }
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
