//! What authors may take back: deletion requests (NIP-09) and requests to vanish (NIP-62).
//!
//! Pure reading of the requests. Which events are here, and what was refused before, is the store's knowledge.
//!
//! ```
//! use grasp_core::deletion::{DeletionRequest, MAX_TARGETS, TooManyTargets, coordinate, is_deletable, vanishes_from};
//! use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
//! use nostr::key::Keys;
//!
//! let keys = Keys::generate();
//! let issue = EventBuilder::new(Kind::GitIssue, "it fails").finalize(&keys)?;
//! assert!(is_deletable(issue.kind) && !is_deletable(Kind::EventDeletion));
//! assert_eq!(coordinate(&issue), None, "it is not addressable");
//! let named = Tag::parse(["e", &issue.id.to_hex()])?;
//! let request = EventBuilder::new(Kind::EventDeletion, "").tag(named.clone()).finalize(&keys)?;
//! assert!(DeletionRequest::parse(&request)?.ids.contains(&issue.id));
//! let too_many = vec![named; MAX_TARGETS + 1];
//! let request = EventBuilder::new(Kind::EventDeletion, "").tags(too_many).finalize(&keys)?;
//! assert_eq!(DeletionRequest::parse(&request), Err(TooManyTargets));
//!
//! let everywhere = Tag::parse(["relay", "ALL_RELAYS"])?;
//! let request = EventBuilder::new(Kind::RequestToVanish, "").tag(everywhere).finalize(&keys)?;
//! assert!(vanishes_from(&request, Some(&"grasp.example".parse()?)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeSet;

use nostr::event::{Event, EventId, Kind};
use nostr::nips::nip01::Coordinate;

use crate::kinds::is_replaceable;
use crate::repo::{RelayUrl, parse_coordinate};
use crate::service::ServiceIdentity;

/// Limits the `e` and `a` tags of one deletion request.
pub const MAX_TARGETS: usize = 2_048;

/// The word that makes a request to vanish reach every relay.
const ALL_RELAYS: &str = "ALL_RELAYS";

/// The targets of a deletion request that its author may delete.
///
/// An id may turn out to be of another author once the event is read. Coordinates name their author, so only the
/// requester's own are here; others are left out rather than held against the request, because clients also use
/// `a` to say which repository a deletion belongs to.
///
/// ```
/// use grasp_core::deletion::DeletionRequest;
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
/// use nostr::key::Keys;
///
/// let keys = Keys::generate();
/// let coordinate = format!("30617:{}:my:repo", keys.public_key());
/// let event = EventBuilder::new(Kind::EventDeletion, "by accident")
///     .tags([Tag::parse(["a", &coordinate]).unwrap()])
///     .finalize(&keys)
///     .unwrap();
///
/// let request = DeletionRequest::parse(&event).unwrap();
/// assert_eq!(request.coordinates.first().unwrap().identifier, "my:repo");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionRequest {
    /// Events named by id (`e` tags).
    pub ids: BTreeSet<EventId>,
    /// The author's own replaceable and addressable events (`a` tags), up to the request's `created_at`.
    pub coordinates: BTreeSet<Coordinate>,
}

/// A deletion request names more than [`MAX_TARGETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a deletion request may name at most {MAX_TARGETS} targets")]
pub struct TooManyTargets;

impl DeletionRequest {
    /// Reads the targets of a kind 5 event; tags that name nothing are skipped.
    pub fn parse(request: &Event) -> Result<Self, TooManyTargets> {
        let targets = || {
            let named = |tag| matches!(tag, "e" | "a");
            request.tags.iter().filter(move |tag| named(tag.kind()))
        };
        if targets().count() > MAX_TARGETS {
            return Err(TooManyTargets);
        }
        let mut parsed = Self::default();
        for tag in targets() {
            let value = tag.content().unwrap_or_default();
            if tag.kind() == "e" {
                parsed.ids.extend(EventId::from_hex(value));
            } else {
                let own = parse_coordinate(value)
                    .ok()
                    .filter(|c| c.public_key == request.pubkey);
                parsed.coordinates.extend(own);
            }
        }
        Ok(parsed)
    }
}

/// Says whether a deletion request can do anything to events of this kind.
///
/// Taking back a deletion, or a wish to vanish, does nothing.
pub fn is_deletable(kind: Kind) -> bool {
    kind != Kind::EventDeletion && kind != Kind::RequestToVanish
}

/// The coordinate under which at most one event is served, for kinds that have one (NIP-01).
///
/// The identifier of a plain replaceable event is always empty, even if it has a `d` tag.
pub fn coordinate(event: &Event) -> Option<Coordinate> {
    let identifier = if is_replaceable(event.kind) {
        String::new()
    } else if event.kind.is_addressable() {
        let d = event.tags.iter().find(|tag| tag.kind() == "d");
        d.and_then(|tag| tag.content())
            .unwrap_or_default()
            .to_owned()
    } else {
        return None;
    };
    Some(Coordinate {
        kind: event.kind,
        public_key: event.pubkey,
        identifier,
    })
}

/// Returns whether a request to vanish (kind 62) names a service in its `relay` tags. `None` is named by a request to all
/// relays only.
///
/// Deletion is final, so a path below the service's address does not count as the service.
pub fn vanishes_from(request: &Event, service: Option<&ServiceIdentity>) -> bool {
    let named = request.tags.iter().filter(|tag| tag.kind() == "relay");
    let is_service = |url: RelayUrl| service.is_some_and(|own| own.is_relay(&url));
    named
        .filter_map(|tag| tag.content())
        .any(|value| value == ALL_RELAYS || value.parse().is_ok_and(is_service))
}

#[cfg(test)]
mod tests {
    use nostr::event::{Signature, Tag};
    use nostr::key::PublicKey;
    use nostr::types::Timestamp;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const ME: PublicKey = PublicKey::from_byte_array([1; 32]);
    const OTHER: PublicKey = PublicKey::from_byte_array([2; 32]);

    fn event(kind: u16, tags: impl IntoIterator<Item = Vec<String>>) -> Event {
        Event::new(
            EventId::from_byte_array([9; 32]),
            ME,
            Timestamp::from_secs(100),
            Kind::from_u16(kind),
            tags.into_iter().map(|tag| Tag::parse(tag).unwrap()),
            "",
            Signature::from_byte_array([0; 64]),
        )
    }

    fn tag(name: &str, value: impl ToString) -> Vec<String> {
        vec![name.to_owned(), value.to_string()]
    }

    fn vanishes(relays: &[&str], service: Option<&str>) -> bool {
        let request = event(62, relays.iter().map(|value| tag("relay", value)));
        vanishes_from(&request, service.map(us).as_ref())
    }

    fn us(address: &str) -> ServiceIdentity {
        address.parse().unwrap()
    }

    #[test]
    fn foreign_coordinates_are_left_out_and_ids_kept() {
        let id = EventId::from_byte_array([7; 32]);
        let request = DeletionRequest::parse(&event(
            5,
            [
                tag("e", id),
                tag("e", "not an id"),
                tag("a", format!("30617:{OTHER}:repo")),
                tag("a", format!("30617:{ME}:a:b")),
                tag("a", format!("10002:{ME}")),
                tag("a", format!("1621:{ME}:")),
                tag("k", "1621"),
            ],
        ))
        .unwrap();
        assert_eq!(request.ids, BTreeSet::from([id]));
        let named: Vec<_> = request
            .coordinates
            .iter()
            .map(|c| (c.kind.as_u16(), c.identifier.as_str()))
            .collect();
        assert_eq!(named, [(10_002, ""), (30_617, "a:b")]);
    }

    #[test]
    fn the_cap_counts_every_named_target() {
        let at = |count: usize| event(5, (0..count).map(|n| tag("e", format!("{n:064x}"))));
        assert_eq!(
            DeletionRequest::parse(&at(MAX_TARGETS)).map(|request| request.ids.len()),
            Ok(MAX_TARGETS)
        );
        assert_eq!(
            DeletionRequest::parse(&at(MAX_TARGETS + 1)),
            Err(TooManyTargets)
        );
    }

    #[test]
    fn a_plain_replaceable_event_has_no_identifier() {
        let named = |kind| coordinate(&event(kind, [tag("d", "x")])).map(|c| c.identifier);
        assert_eq!(named(10_002).as_deref(), Some(""));
        assert_eq!(named(30_617).as_deref(), Some("x"));
        assert_eq!(named(41), None);
        assert_eq!(named(1_621), None);
    }

    #[test]
    fn the_first_d_tag_identifies_even_without_a_value() {
        let both = event(30_617, [vec!["d".to_owned()], tag("d", "x")]);
        assert_eq!(coordinate(&both).unwrap().identifier, "");
    }

    #[test]
    fn deletions_and_vanishings_cannot_be_deleted() {
        assert!(!is_deletable(Kind::EventDeletion));
        assert!(!is_deletable(Kind::RequestToVanish));
        assert!(is_deletable(Kind::from_u16(30_618)));
    }

    #[test]
    fn one_mention_of_all_relays_is_enough() {
        assert!(vanishes(&["wss://elsewhere.example", "ALL_RELAYS"], None));
        assert!(!vanishes(&["all_relays"], None));
        assert!(!vanishes(&["wss://us.example"], None));
        assert!(!vanishes(&[], Some("us.example")));
    }

    #[test]
    fn our_address_is_known_in_every_spelling_and_no_other_is() {
        for (ours, same) in [
            ("us.example", "wss://us.example/"),
            ("us.example", "ws://US.example"),
            ("us.example", "wss://us.example.:443"),
            ("us.example:7334/git", "ws://us.example:7334//git/"),
        ] {
            assert!(
                vanishes(&["wss://other.example", same], Some(ours)),
                "{same}"
            );
        }
        for (ours, other) in [
            ("us.example", "wss://us.example.evil.org"),
            ("us.example", "wss://evil.org/us.example"),
            ("us.example", "wss://us.example:7334"),
            ("us.example", "wss://us.example/git"),
            ("us.example", "wss://us.example/?other=1"),
            ("us.example", "wss://not us"),
            ("us.example:7334/git", "wss://us.example:7334"),
            ("us.example:7334/git", "wss://us.example/git"),
        ] {
            assert!(!vanishes(&[other], Some(ours)), "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_tags_are_read_without_a_panic_and_yield_only_own_targets(
            tags in vec(vec("[ea]|relay|ALL_RELAYS|[0-9:a-f]{0,80}|.{0,20}", 1..4), 0..20),
        ) {
            let request = event(5, tags);
            vanishes_from(&request, Some(&us("us.example")));
            let parsed = DeletionRequest::parse(&request).unwrap();
            prop_assert!(parsed.coordinates.iter().all(|c| c.public_key == ME));
        }

        #[test]
        fn a_coordinate_written_is_the_coordinate_read(
            kind in prop_oneof![30_000u16..40_000, 10_000u16..20_000],
            identifier in ".{0,20}",
        ) {
            let version = event(kind, [tag("d", identifier)]);
            let wanted = coordinate(&version).unwrap();
            let request = event(5, [tag("a", &wanted)]);
            let parsed = DeletionRequest::parse(&request).unwrap();
            prop_assert_eq!(parsed.coordinates, BTreeSet::from([wanted]));
        }
    }
}
