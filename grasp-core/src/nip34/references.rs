//! What an event points at.

use std::collections::BTreeSet;

use nostr::event::{Event, EventId};
use nostr::nips::nip01::Coordinate;

use super::tags;
use crate::repo::{RepoId, parse_coordinate};
use crate::text::is_lower_hex;

/// Everything an event names by the first value of its `a`, `A`, `e`, `E` and `q` tags.
///
/// A coordinate is one exact triple; the key of one tag never meets the identifier of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Events named by id.
    pub ids: BTreeSet<EventId>,
    /// Replaceable and addressable events named by coordinate.
    pub coordinates: BTreeSet<Coordinate>,
}

impl References {
    /// Reads them all; what is neither an id nor a coordinate is passed over.
    pub fn of(event: &Event) -> Self {
        let mut references = Self::default();
        for name in ["a", "A", "q"] {
            let parsed = tags::first_values(event, name).filter_map(|v| parse_coordinate(v).ok());
            references.coordinates.extend(parsed);
        }
        for name in ["e", "E", "q"] {
            references.ids.extend(tags::first_values(event, name).filter_map(event_id));
        }
        references
    }
}

/// An event id in the only spelling that relays index.
fn event_id(text: &str) -> Option<EventId> {
    if is_lower_hex(text) { EventId::from_hex(text).ok() } else { None }
}

/// Every repository that an event is addressed to by its `a` tags, not just the first.
pub fn repo_refs(event: &Event) -> BTreeSet<RepoId> {
    tags::first_values(event, "a").filter_map(|value| value.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    #[test]
    fn only_first_values_count_and_a_quote_may_be_either() {
        let (id, coordinate) = ("ab".repeat(32), format!("30617:{}:x", key(1)));
        let event = Unsigned::kind(1)
            .tags(&[&["e", "wss://x", &id], &["q", &coordinate], &["q", &id], &["p", &id]])
            .by(key(1));
        let references = References::of(&event);
        assert_eq!(references.ids.len(), 1);
        assert_eq!(
            references.coordinates,
            BTreeSet::from([parse_coordinate(&coordinate).unwrap()])
        );
        assert_eq!(References::of(&Unsigned::kind(1).by(key(1))), References::default());
    }
}
