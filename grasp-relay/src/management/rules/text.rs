//! Texts in requests.

use std::borrow::Cow;

use grasp_core::ParseError;
use nostr::event::EventId;
use nostr::key::PublicKey;

/// Returns a [`ParseError`] with this reason.
pub(super) fn invalid<T>(why: impl Into<Cow<'static, str>>) -> Result<T, ParseError> {
    Err(ParseError::new(why))
}

/// Decodes exactly `2 * N` hex digits.
pub(super) fn hex_bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    faster_hex::hex_decode(text.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

/// Parses a public key in lower-case hex.
pub(super) fn parse_pubkey(text: &str) -> Option<PublicKey> {
    match is_lower_hex(text) {
        true => PublicKey::from_hex(text).ok(),
        false => None,
    }
}

/// Parses an event id in lower-case hex.
pub(super) fn parse_event_id(text: &str) -> Option<EventId> {
    match is_lower_hex(text) {
        true => EventId::from_hex(text).ok(),
        false => None,
    }
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
