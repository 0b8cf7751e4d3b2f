//! NIP-34 events as values. Every parser is total: it returns a value or an error for any event.

mod announcement;
mod state;

pub use announcement::{Announcement, MaintainerList};
pub use state::State;

use std::collections::BTreeSet;

use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use crate::kinds;
use crate::repo::{CloneUrl, Oid, RepoId, parse_coordinate};
use crate::text::{ParseError, invalid, parse_event_id};

/// A pull request, or an update with a new tip.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Proposal {
    pub id: EventId,
    pub author: PublicKey,
    /// The commit that must be here before the event is served.
    pub tip: Oid,
    /// Every repository that it is addressed to.
    pub repos: BTreeSet<RepoId>,
    /// Git servers with the commits according to the author, so tried last.
    pub clone: Vec<CloneUrl>,
}

impl Proposal {
    /// Parses a pull request or an update.
    pub fn parse(event: &Event) -> Result<Self, ParseError> {
        if event.kind != kinds::PULL_REQUEST && event.kind != kinds::PULL_REQUEST_UPDATE {
            return invalid("not a pull request");
        }
        let Some(tip) = tags::first(event, "c").and_then(|value| value.parse().ok()) else {
            return invalid("the pull request has no c tag with a commit id");
        };
        Ok(Self {
            id: event.id,
            author: event.pubkey,
            tip,
            repos: repo_refs(event),
            clone: tags::all_values(event, "clone").filter_map(|url| url.parse().ok()).collect(),
        })
    }
}

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

/// Reading of tags of any shape.
mod tags {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    #[test]
    fn a_pull_request_needs_a_commit_of_either_hash() {
        let with = |c: &str| {
            Proposal::parse(&Unsigned::kind(1618).tags(&[&["c", c]]).by(key(1))).map(|p| p.tip)
        };
        assert!(matches!(with(&"a".repeat(40)), Ok(Oid::Sha1(_))));
        assert!(matches!(with(&"a".repeat(64)), Ok(Oid::Sha256(_))));
        let tipless = "the pull request has no c tag with a commit id";
        assert_eq!(with("abc"), invalid(tipless));
        assert_eq!(Proposal::parse(&Unsigned::kind(1618).by(key(1))), invalid(tipless));
        assert_eq!(Proposal::parse(&Unsigned::kind(1619).by(key(1))), invalid(tipless));
    }

    #[test]
    fn refuses_issues_and_patches() {
        for kind in [1, 1617, 1621] {
            let event = Unsigned::kind(kind).tags(&[&["c", &"a".repeat(40)]]).by(key(1));
            assert_eq!(Proposal::parse(&event), invalid("not a pull request"));
        }
    }

    #[test]
    fn reads_every_repository_that_it_is_addressed_to() {
        let a = format!("30617:{}:a", key(1));
        let b = format!("30617:{}:b:c", key(2));
        let state = format!("30618:{}:a", key(1));
        let c = "a".repeat(40);
        let tags: &[&[&str]] =
            &[&["a", &a], &["a", &b], &["a", &state], &["a", "x"], &["a"], &["A", "y"], &["c", &c]];
        let repos = Proposal::parse(&Unsigned::kind(1619).tags(tags).by(key(3))).unwrap().repos;
        assert_eq!(repos, BTreeSet::from([a.parse().unwrap(), b.parse().unwrap()]));
    }

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
