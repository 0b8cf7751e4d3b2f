//! Events of any shape.

use nostr::event::Event;
use proptest::prelude::*;

use crate::unsigned::Unsigned;
pub(crate) use crate::unsigned::key;

pub(crate) fn event(kind: u16, author: u8, at: u64, id: u8, tags: &[Vec<String>]) -> Event {
    let tags: Vec<Vec<&str>> = tags
        .iter()
        .map(|tag| tag.iter().map(String::as_str).collect())
        .collect();
    let tags: Vec<&[&str]> = tags
        .iter()
        .map(Vec::as_slice)
        .filter(|tag| !tag.is_empty())
        .collect();
    Unsigned::kind(kind)
        .at(at)
        .id(id)
        .tags(&tags)
        .content("")
        .by(key(author))
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
