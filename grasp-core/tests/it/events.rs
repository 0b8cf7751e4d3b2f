//! Unsigned events for tests of the rules, which do not check signatures.

use nostr::event::{Event, EventId, Kind, Signature, Tag};
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use proptest::prelude::*;

pub(crate) fn key(n: u8) -> PublicKey {
    PublicKey::from_byte_array([n; 32])
}

pub(crate) fn event(kind: u16, author: u8, at: u64, id: u8, tags: &[Vec<String>]) -> Event {
    Event::new(
        EventId::from_slice(&[id; 32]).unwrap(),
        key(author),
        Timestamp::from_secs(at),
        Kind::from_u16(kind),
        tags.iter().filter_map(|tag| Tag::parse(tag.clone()).ok()),
        "",
        Signature::from_slice(&[0; 64]).unwrap(),
    )
}

/// Text that is sometimes valid for a parser.
pub(crate) fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<String>(),
        1 => Just("0".repeat(40)),
        1 => "[0-9a-f]{64}",
        1 => "(30617|30618|10317|1):[0-9a-f]{64}(:.{0,12})?",
        1 => "(wss?|https?|ssh|ext)://[a-zA-Z0-9.@:/-]{0,30}",
        1 => "refs/(heads|tags|nostr)/.{0,20}",
        1 => "(ref: )?refs/heads/[a-z/.]{0,12}",
        1 => "(defer|0|[0-9]{1,25})",
    ]
}

/// Tags with names that the parsers read, and others.
pub(crate) fn tags() -> impl Strategy<Value = Vec<Vec<String>>> {
    let name = prop_oneof![
        8 => prop::sample::select(vec!["d", "clone", "relays", "maintainers", "M", "m", "o", "a", "A", "e", "E", "q", "c", "HEAD", "private"])
            .prop_map(str::to_owned),
        1 => "refs/(heads|tags)/.{0,12}",
        1 => any::<String>(),
    ];
    let tag = (name, prop::collection::vec(value(), 0..5)).prop_map(|(name, mut values)| {
        values.insert(0, name);
        values
    });
    prop::collection::vec(tag, 0..12)
}
