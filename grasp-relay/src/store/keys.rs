//! The keys of the indexes of a store, and the order in which it serves events.

use bitcoin_hashes::{HashEngine, sha256};
use grasp_core::nip34::Announcement;
use grasp_core::{RepoId, Version, kinds};
use nostr::event::{Event, EventId};
use nostr::filter::SingleLetterTag;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

/// A hash that names a list of events, or a coordinate.
pub(crate) type Digest = [u8; 16];

/// The place of an event in serving order: newest first, ties by lowest id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    newest: i64,
    id: [u8; 32],
}

impl Position {
    /// The place before all events.
    pub(crate) const FIRST: Self = Self {
        newest: i64::MIN,
        id: [0xff; 32],
    };

    /// Returns the place after everything newer than this time and before everything else.
    pub(crate) fn start_of(time: Timestamp) -> Self {
        Self {
            newest: newest(time).saturating_sub(1),
            ..Self::FIRST
        }
    }

    pub(crate) fn of(event: &Event) -> Self {
        Self {
            newest: newest(event.created_at),
            id: event.id.to_bytes(),
        }
    }

    pub(crate) fn of_version(version: Version) -> Self {
        Self {
            newest: newest(version.created_at),
            id: version.id.to_bytes(),
        }
    }

    pub(crate) fn version(&self) -> Version {
        Version {
            created_at: self.created_at(),
            id: self.event_id(),
        }
    }

    /// Returns the place that the columns `newest` and `id` say.
    pub(crate) const fn new(newest: i64, id: [u8; 32]) -> Self {
        Self { newest, id }
    }

    pub(crate) fn newest(&self) -> i64 {
        self.newest
    }

    pub(crate) fn id(&self) -> &[u8; 32] {
        &self.id
    }

    pub(crate) fn event_id(&self) -> EventId {
        EventId::from_byte_array(self.id)
    }

    pub(crate) fn created_at(&self) -> Timestamp {
        Timestamp::from_secs(self.newest.unsigned_abs())
    }
}

/// Returns a time as the indexes order it. Times beyond the databases' range, 292 billion years from now, count as one.
pub(crate) fn newest(created_at: Timestamp) -> i64 {
    -seconds(created_at.as_secs())
}

/// Returns seconds within the databases' range.
pub(crate) fn seconds(secs: u64) -> i64 {
    i64::try_from(secs).unwrap_or(i64::MAX)
}

/// Computes the keys of lists and coordinates, all of one length.
///
/// Keys are 15 or 16 bytes of SHA-256 after a secret block that is drawn when the database is created. Authors of events
/// do not know the secret, so they cannot search for two values with one key, and accidental collisions are out of
/// reach. Therefore a matching key needs no comparison of the value.
#[derive(Clone)]
pub(crate) struct Keys {
    salted: sha256::HashEngine,
}

impl Keys {
    /// Returns the keys of a database with this secret.
    pub(crate) fn new(salt: &[u8; 64]) -> Self {
        let mut salted = sha256::HashEngine::new();
        salted.input(salt);
        Self { salted }
    }

    /// Returns the list of events with this tag.
    ///
    /// The tag's name is the last byte: events often carry one value under two names (`e` and `E`), and those rows
    /// stay neighbours.
    pub(crate) fn tag(&self, name: SingleLetterTag, value: &str) -> Digest {
        let mut digest = self.digest(&[b"#", value.as_bytes()]);
        if let Some(last) = digest.last_mut() {
            *last = name.as_byte();
        }
        digest
    }

    /// Returns the list of events of this kind.
    pub(crate) fn kind(&self, kind: u16) -> Digest {
        self.digest(&[b"k", &kind.to_be_bytes()])
    }

    /// Returns the list of events of this author.
    pub(crate) fn author(&self, author: &PublicKey) -> Digest {
        self.digest(&[b"p", author.as_bytes()])
    }

    /// Returns every list that an event belongs to.
    pub(crate) fn lists<'a>(&'a self, event: &'a Event) -> impl Iterator<Item = Digest> + 'a {
        let tags = event.tags.iter();
        let tags = tags.filter_map(|tag| Some(self.tag(tag.single_letter_tag()?, tag.content()?)));
        let listed = listed(event);
        let listing = listed.into_iter().map(|repo| self.listing(&repo));
        tags.chain(listing)
            .chain([self.kind(event.kind.as_u16()), self.author(&event.pubkey)])
    }

    /// Returns the list of announcements that list the owner of a repository under its identifier.
    pub(crate) fn listing(&self, repo: &RepoId) -> Digest {
        self.digest(&[
            b"l",
            repo.owner.as_bytes(),
            repo.identifier.as_str().as_bytes(),
        ])
    }

    pub(crate) fn coordinate(&self, coordinate: &Coordinate) -> Digest {
        let kind = coordinate.kind.as_u16().to_be_bytes();
        let author = coordinate.public_key.as_bytes();
        self.digest(&[b":", &kind, author, coordinate.identifier.as_bytes()])
    }

    /// Returns the key of an author's event for deletion by id. Requests of other authors have other keys.
    pub(crate) fn own_event(&self, author: &PublicKey, id: &EventId) -> Digest {
        self.digest(&[b"e", author.as_bytes(), id.as_bytes()])
    }

    fn digest(&self, parts: &[&[u8]]) -> Digest {
        let mut engine = self.salted.clone();
        for part in parts {
            engine.input(part);
        }
        let whole = sha256::Hash::from_engine(engine).to_byte_array();
        let mut digest = Digest::default();
        digest.copy_from_slice(&whole[..16]);
        digest
    }
}

/// Returns the keys that an announcement lists, each with its identifier; none for other events.
pub(crate) fn listed(event: &Event) -> Vec<RepoId> {
    if event.kind != kinds::ANNOUNCEMENT {
        return Vec::new();
    }
    let Ok(announcement) = Announcement::parse(event) else {
        return Vec::new();
    };
    let identifier = &announcement.repo.identifier;
    let listed = announcement.maintainer_list.listed.iter();
    listed
        .map(|key| RepoId::new(*key, identifier.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(salt: u8) -> Keys {
        Keys::new(&[salt; 64])
    }

    #[test]
    fn name_value_and_secret_all_matter() {
        let a = keys(1).tag(SingleLetterTag::LOWERCASE_A, "value");
        assert_eq!(a, keys(1).tag(SingleLetterTag::LOWERCASE_A, "value"));
        assert_ne!(a, keys(1).tag(SingleLetterTag::UPPERCASE_A, "value"));
        assert_ne!(a, keys(1).tag(SingleLetterTag::LOWERCASE_A, "values"));
        assert_ne!(a, keys(2).tag(SingleLetterTag::LOWERCASE_A, "value"));
    }

    #[test]
    fn the_newer_comes_first_and_absurd_times_do_not_overflow() {
        let at = |secs| newest(Timestamp::from_secs(secs));
        assert!(at(2) < at(1));
        assert!(at(u64::MAX) < at(2));
    }
}
