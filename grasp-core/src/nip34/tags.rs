//! Reading tags without trusting their shape.

use nostr::event::{Event, Tag};

/// The tags of one name, in order.
pub(super) fn named<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a Tag> {
    event.tags.iter().filter(move |tag| tag.kind() == name)
}

/// What follows the name in one tag.
pub(super) fn values(tag: &Tag) -> impl Iterator<Item = &str> {
    tag.as_slice().iter().skip(1).map(String::as_str)
}

/// The values of all tags of one name, in order: several tags mean what one long tag would.
pub(super) fn all_values<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a str> {
    named(event, name).flat_map(values)
}

/// The first value of each tag of one name, in order.
pub(super) fn first_values<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a str> {
    named(event, name).filter_map(Tag::content)
}

/// The first value of the first tag of one name.
pub(super) fn first<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
    named(event, name).next().and_then(Tag::content)
}
