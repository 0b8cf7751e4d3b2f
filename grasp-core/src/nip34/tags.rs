//! Reading of tags of any shape.

use nostr::event::{Event, Tag};

/// Returns the tags of one name, in order.
pub(super) fn named<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a Tag> {
    event.tags.iter().filter(move |tag| tag.kind() == name)
}

/// Returns the values of a tag.
pub(super) fn values(tag: &Tag) -> impl Iterator<Item = &str> {
    tag.as_slice().iter().skip(1).map(String::as_str)
}

/// Returns the values of all tags of one name, in order, as if they were one tag.
pub(super) fn all_values<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a str> {
    named(event, name).flat_map(values)
}

/// Returns the first value of each tag of one name, in order.
pub(super) fn first_values<'a>(event: &'a Event, name: &str) -> impl Iterator<Item = &'a str> {
    named(event, name).filter_map(Tag::content)
}

/// Returns the first value of the first tag of one name.
pub(super) fn first<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
    named(event, name).next().and_then(Tag::content)
}
