//! States that are too large for a server: how many refs it takes, and what to do.

use anyhow::{Error, anyhow};
use grasp_core::outbound::Provenance;
use nostr::event::Event;
use serde_json::Value;

use super::{Refs, Target};
use crate::client::{Refused, outbound};

/// States up to this are taken by every relay.
const SMALL_STATE_BYTES: usize = 32 * 1024;

/// What a server says about the largest event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Bytes(usize),
    Tags(usize),
}

/// A state, as far as its size matters.
struct Size {
    refs: usize,
    bytes: usize,
    tags: usize,
}

impl Size {
    fn of(state: &Event, refs: &Refs) -> Self {
        let (refs, bytes) = (refs.tips.len().max(1), state.as_json().len());
        Self { refs, bytes, tags: state.tags.len() }
    }

    /// About how many of the refs a server takes.
    fn refs_within(&self, limit: Limit) -> usize {
        match limit {
            Limit::Bytes(bytes) => bytes / (self.bytes / self.refs).max(1),
            Limit::Tags(tags) => tags.saturating_sub(self.tags - self.refs.min(self.tags)),
        }
    }

    fn exceeds(&self, limit: Limit) -> bool {
        match limit {
            // The event stands in a message with a few more bytes.
            Limit::Bytes(bytes) => self.bytes + 16 > bytes,
            Limit::Tags(tags) => self.tags > tags,
        }
    }

    fn too_many(&self, server: &Target, limit: Limit) -> Error {
        anyhow!(
            "{} refs are too many for {}, which takes about {} in one state; choose some with --refs, as in \
             --refs 'refs/heads/*' --refs 'refs/tags/v2.*'",
            self.refs,
            server.service,
            self.refs_within(limit)
        )
    }
}

/// Fails if a server says beforehand that a state is too large for it. A relay need not say so, and some end the
/// connection at a message that is too large.
pub(super) async fn check(server: &Target, state: &Event, refs: &Refs) -> anyhow::Result<()> {
    let size = Size::of(state, refs);
    if size.bytes <= SMALL_STATE_BYTES {
        return Ok(());
    }
    let told = outbound().get(&server.relay()?, Provenance::Operator).await;
    let Ok(told) = told else { return Ok(()) };
    match limits(told.body()).into_iter().find(|limit| size.exceeds(*limit)) {
        Some(limit) => Err(size.too_many(server, limit)),
        None => Ok(()),
    }
}

/// What the information document (NIP-11) says about the largest event.
fn limits(document: &[u8]) -> Vec<Limit> {
    let document: Value = serde_json::from_slice(document).unwrap_or_default();
    let number = |name: &str| usize::try_from(document["limitation"][name].as_u64()?).ok();
    let bytes = number("max_message_length").map(Limit::Bytes);
    bytes.into_iter().chain(number("max_event_tags").map(Limit::Tags)).collect()
}

/// Explains why a server did not take a state, if that may be for its size.
pub(super) fn explain(error: Error, server: &Target, state: &Event, refs: &Refs) -> Error {
    let size = Size::of(state, refs);
    let told = error.downcast_ref::<Refused>().and_then(|refused| largest(&refused.said));
    match told {
        Some(limit) => size.too_many(server, limit),
        None if size.bytes <= SMALL_STATE_BYTES => error,
        None => error.context(format!(
            "{} did not take the state of {} refs ({} bytes); if that is too large for it, choose some with --refs",
            server.service, size.refs, size.bytes
        )),
    }
}

/// The limit that a refusal names: `invalid: event larger than 1048576 bytes`, `invalid: event too large: 99 > 65536`.
fn largest(said: &str) -> Option<Limit> {
    let (_, rest) = said.split_once("larger than ").or_else(|| said.rsplit_once("> "))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(Limit::Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_where_relays_tell_them() {
        let document = br#"{"limitation":{"max_message_length":131072,"max_event_tags":2000}}"#;
        assert_eq!(limits(document), [Limit::Bytes(131_072), Limit::Tags(2_000)]);
        assert_eq!(limits(b"<html>"), []);
        let said = "invalid: event larger than 1048576 bytes";
        assert_eq!(largest(said), Some(Limit::Bytes(1_048_576)));
        assert_eq!(largest("invalid: event too large: 99999 > 65536"), Some(Limit::Bytes(65_536)));
        assert_eq!(largest("blocked: no"), None);
    }

    #[test]
    fn a_state_that_is_too_large_is_told_in_refs() {
        let size = Size { refs: 5_000, bytes: 350_000, tags: 5_002 };
        assert!(size.exceeds(Limit::Bytes(262_144)) && !size.exceeds(Limit::Bytes(1 << 20)));
        assert!(size.exceeds(Limit::Tags(2_000)) && !size.exceeds(Limit::Tags(5_002)));
        assert_eq!(size.refs_within(Limit::Bytes(262_144)), 3_744);
        assert_eq!(size.refs_within(Limit::Tags(2_000)), 1_998);
        let server: Target = "git.example.com".parse().unwrap();
        let text = size.too_many(&server, Limit::Bytes(262_144)).to_string();
        assert!(
            text.starts_with("5000 refs are too many for git.example.com, which takes about 3744"),
            "{text}"
        );
        assert!(text.contains("--refs"), "{text}");
    }
}
