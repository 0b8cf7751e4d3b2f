//! What an event says about who takes part.

use std::collections::BTreeSet;

use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use crate::nip34::{Announcement, References};
use crate::{RepoId, Version, kinds};

/// References of one event that are followed; honest events have fewer.
const MAX_REFERENCES: usize = 8;
/// Listed maintainers of one announcement that count; honest ones list fewer.
const MAX_MAINTAINERS: usize = 64;
/// Bytes of the identifier in a coordinate; longer ones are ignored.
const MAX_IDENTIFIER_BYTES: usize = 256;

/// The name by which one event refers to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// An event by its id.
    Event(EventId),
    /// A replaceable or addressable event by its coordinate.
    Coordinate(Box<Coordinate>),
}

/// What a served event says about who takes part in repositories.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fact {
    /// A repository is served. The greatest version counts, in whichever order versions come.
    Announced {
        repo: RepoId,
        version: Version,
        /// The owner and the listed maintainers, of whom the first 64 count.
        maintainers: BTreeSet<PublicKey>,
    },
    /// A repository is no longer served.
    Retired { repo: RepoId },
    /// A patch, a pull request or an issue.
    Root {
        id: EventId,
        author: PublicKey,
        at: Timestamp,
        /// All repositories that it names.
        repos: Vec<RepoId>,
    },
    /// Another event that names events.
    Descendant {
        id: EventId,
        author: PublicKey,
        /// Its own coordinate, if it is replaceable or addressable.
        coordinate: Option<Box<Coordinate>>,
        /// The events that it names, which are no announcements.
        names: Vec<Named>,
    },
    /// An event was deleted or has expired.
    Removed { id: EventId },
}

impl Fact {
    /// Returns what a served event says; `None` if it says nothing.
    ///
    /// Kinds that a relay need not deliver at the start of its feed say nothing, so that a restart changes nothing: a
    /// label, a zap or a deletion does not show that its author takes part. Neither does a profile.
    pub fn of(event: &Event) -> Option<Self> {
        if event.kind == kinds::ANNOUNCEMENT {
            let announcement = Announcement::parse(event).ok()?;
            let listed = announcement.maintainer_list.listed.into_iter();
            let mut maintainers: BTreeSet<PublicKey> = listed.take(MAX_MAINTAINERS).collect();
            maintainers.insert(announcement.repo.owner);
            return Some(Self::Announced {
                repo: announcement.repo,
                version: announcement.version,
                maintainers,
            });
        }
        if event.kind == Kind::RelayList || !kinds::OUTBOX_KINDS.contains(&event.kind) {
            return None;
        }
        let named = References::of(event);
        if ROOT_KINDS.contains(&event.kind) {
            let repos = named.coordinates.iter().filter_map(repo);
            let repos: Vec<RepoId> = repos.take(MAX_REFERENCES).collect();
            if !repos.is_empty() {
                return Some(Self::Root {
                    id: event.id,
                    author: event.pubkey,
                    at: event.created_at,
                    repos,
                });
            }
        }
        let is_event = |at: &Coordinate| at.kind != kinds::ANNOUNCEMENT && is_short(at);
        let coordinates = named.coordinates.into_iter().filter(is_event);
        let coordinates = coordinates.map(|at| Named::Coordinate(Box::new(at)));
        let ids = named.ids.into_iter().map(Named::Event);
        let names: Vec<Named> = ids.chain(coordinates).take(MAX_REFERENCES).collect();
        (!names.is_empty()).then(|| Self::Descendant {
            id: event.id,
            author: event.pubkey,
            coordinate: coordinate(event),
            names,
        })
    }
}

/// Kinds that begin a thread of which the author is asked for. An update of a pull request belongs to that.
const ROOT_KINDS: [Kind; 3] = [kinds::PATCH, kinds::PULL_REQUEST, kinds::ISSUE];

fn repo(at: &Coordinate) -> Option<RepoId> {
    RepoId::try_from(at).ok()
}

fn is_short(at: &Coordinate) -> bool {
    at.identifier.len() <= MAX_IDENTIFIER_BYTES
}

/// Returns the coordinate of a replaceable or addressable event, unless its identifier is too long.
fn coordinate(event: &Event) -> Option<Box<Coordinate>> {
    let identifier = if event.kind.is_addressable() {
        event.tags.identifier()?.to_string()
    } else if kinds::is_replaceable(event.kind) {
        String::new()
    } else {
        return None;
    };
    let at = Coordinate {
        kind: event.kind,
        public_key: event.pubkey,
        identifier,
    };
    is_short(&at).then(|| Box::new(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    fn at(owner: u8) -> String {
        format!("30617:{}:x", key(owner))
    }

    fn id(n: u8) -> String {
        EventId::from_byte_array([n; 32]).to_hex()
    }

    #[test]
    fn an_announcement_names_owner_and_maintainers() {
        let other = key(2).to_string();
        let tags: [&[&str]; 2] = [&["d", "x"], &["maintainers", &other]];
        let event = Unsigned::kind(30_617).tags(&tags).by(key(1));
        let Some(Fact::Announced {
            repo, maintainers, ..
        }) = Fact::of(&event)
        else {
            panic!()
        };
        assert_eq!(repo.to_string(), at(1));
        assert_eq!(maintainers, [key(1), key(2)].into());
    }

    #[test]
    fn an_announcement_names_a_limited_number_of_maintainers_and_its_owner() {
        let mut tag = vec!["maintainers".to_owned()];
        tag.extend((2..=200).map(|n| key(n).to_string()));
        let tag: Vec<&str> = tag.iter().map(String::as_str).collect();
        let tags: [&[&str]; 2] = [&["d", "x"], &tag];
        let event = Unsigned::kind(30_617).tags(&tags).by(key(1));
        let Some(Fact::Announced { maintainers, .. }) = Fact::of(&event) else {
            panic!()
        };
        assert!(maintainers.contains(&key(1)));
        let others = maintainers.iter().filter(|one| **one != key(1));
        assert_eq!(others.count(), MAX_MAINTAINERS);
    }

    #[test]
    fn a_root_names_repositories_by_each_tag() {
        for kind in [1_617, 1_618, 1_621] {
            for tag in ["a", "A", "q"] {
                let event = Unsigned::kind(kind).tags(&[&[tag, &at(1)]]).by(key(2));
                let fact = Fact::of(&event);
                let is_root = matches!(&fact, Some(Fact::Root { repos, .. }) if repos.len() == 1);
                assert!(is_root, "{kind} {tag}: {fact:?}");
            }
        }
        assert_eq!(Fact::of(&Unsigned::kind(1_621).by(key(2))), None);
        let of_a_series = Unsigned::kind(1_617).tags(&[&["e", &id(7)]]).by(key(2));
        assert!(matches!(
            Fact::of(&of_a_series),
            Some(Fact::Descendant { .. })
        ));
    }

    #[test]
    fn descendants_name_events_by_id_and_coordinate_but_not_repositories() {
        let app = format!("32267:{}:app", key(3));
        let tags: [&[&str]; 3] = [&["E", &id(7)], &["a", &at(1)], &["q", &app]];
        for kind in [1_111, 1_619, 1_631, 7, 1_622] {
            let event = Unsigned::kind(kind).tags(&tags).by(key(2));
            let Some(Fact::Descendant {
                names, coordinate, ..
            }) = Fact::of(&event)
            else {
                panic!("{kind}")
            };
            assert_eq!((names.len(), coordinate), (2, None), "{kind}");
        }
        let about_the_repository = Unsigned::kind(1_111).tags(&[&["a", &at(1)]]).by(key(2));
        assert_eq!(Fact::of(&about_the_repository), None);
    }

    #[test]
    fn an_addressable_descendant_has_a_coordinate() {
        let event = Unsigned::kind(30_063)
            .tags(&[&["d", "app@1"], &["e", &id(7)]])
            .by(key(3));
        let Some(Fact::Descendant { coordinate, .. }) = Fact::of(&event) else {
            panic!()
        };
        assert_eq!(coordinate.unwrap().identifier, "app@1");
    }

    #[test]
    fn long_identifiers_are_ignored() {
        for (length, is_read) in [(256, true), (257, false)] {
            let identifier = "x".repeat(length);
            let other = format!("32267:{}:{identifier}", key(4));
            let event = Unsigned::kind(30_063)
                .tags(&[&["d", &identifier], &["e", &id(7)], &["a", &other]])
                .by(key(3));
            let Some(Fact::Descendant {
                coordinate, names, ..
            }) = Fact::of(&event)
            else {
                panic!()
            };
            assert_eq!(coordinate.is_some(), is_read);
            assert_eq!(names.len(), 1 + usize::from(is_read));
        }
    }

    #[test]
    fn profiles_labels_zaps_and_deletions_make_nobody_take_part() {
        for kind in [0, 5, 1_985, 9_735, 10_002, 10_317] {
            let tags: [&[&str]; 2] = [&["e", &id(7)], &["a", &at(1)]];
            let event = Unsigned::kind(kind).tags(&tags).by(key(2));
            assert_eq!(Fact::of(&event), None, "{kind}");
        }
    }
}
