//! The events and repositories that an event refers to.

use std::collections::BTreeSet;

use nostr::event::{Event, EventId};
use nostr::nips::nip01::Coordinate;

use super::tags;
use crate::repo::{RepoId, parse_coordinate};
use crate::text::parse_event_id;

/// The events that an event refers to by the first value of its `a`, `A`, `e`, `E` and `q` tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Events referred to by id.
    pub ids: BTreeSet<EventId>,
    /// Replaceable and addressable events referred to by coordinate.
    pub coordinates: BTreeSet<Coordinate>,
}

impl References {
    /// Reads the references of an event; ignores values that are neither id nor coordinate.
    pub fn of(event: &Event) -> Self {
        let mut references = Self::default();
        for name in ["a", "A", "q"] {
            let parsed = tags::first_values(event, name).filter_map(|v| parse_coordinate(v).ok());
            references.coordinates.extend(parsed);
        }
        for name in ["e", "E", "q"] {
            references.ids.extend(tags::first_values(event, name).filter_map(parse_event_id));
        }
        references
    }
}

/// Returns every repository that an event is addressed to by its `a` tags.
pub fn repo_refs(event: &Event) -> BTreeSet<RepoId> {
    tags::first_values(event, "a").filter_map(|value| value.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    #[test]
    fn reads_first_values_and_both_forms_of_quotes() {
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
