//! How events, lists and coordinates are spelled in the indexes.

use bitcoin_hashes::{HashEngine, sha256};
use grasp_core::Version;
use nostr::event::{Event, EventId};
use nostr::filter::SingleLetterTag;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::{Connection, Row};

/// A hash that names a list of events or stands for a coordinate.
pub(super) type Digest = [u8; 16];

/// Where an event stands in serving order: newest first, ties by lowest id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    newest: i64,
    id: [u8; 32],
}

impl Position {
    /// Before everything.
    pub(super) const FIRST: Self = Self { newest: i64::MIN, id: [0xff; 32] };

    /// The place after everything newer than this time and before everything else.
    pub(super) fn start_of(time: Timestamp) -> Self {
        Self { newest: newest(time).saturating_sub(1), ..Self::FIRST }
    }

    pub(super) fn of(event: &Event) -> Self {
        Self { newest: newest(event.created_at), id: event.id.to_bytes() }
    }

    pub(super) fn of_version(version: Version) -> Self {
        Self { newest: newest(version.created_at), id: version.id.to_bytes() }
    }

    pub(super) fn version(&self) -> Version {
        Version { created_at: self.created_at(), id: self.event_id() }
    }

    /// Reads the columns `newest, id`, which come first in every statement that has them.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { newest: row.get(0)?, id: row.get(1)? })
    }

    pub(super) fn newest(&self) -> i64 {
        self.newest
    }

    pub(super) fn id(&self) -> &[u8; 32] {
        &self.id
    }

    pub(super) fn event_id(&self) -> EventId {
        EventId::from_byte_array(self.id)
    }

    pub(super) fn created_at(&self) -> Timestamp {
        Timestamp::from_secs(self.newest.unsigned_abs())
    }
}

/// A time as the indexes order it. Times beyond what SQLite can hold, 292 billion years from now, count as one.
pub(super) fn newest(created_at: Timestamp) -> i64 {
    -seconds(created_at.as_secs())
}

/// Seconds as SQLite can hold them.
pub(super) fn seconds(secs: u64) -> i64 {
    i64::try_from(secs).unwrap_or(i64::MAX)
}

/// Names lists and coordinates, whatever they are made of, by keys of one length.
///
/// Keys are 15 or 16 bytes of SHA-256 after a secret block that is drawn when the file is made. Whoever writes events
/// does not know the secret, so nobody can search for two values with one key; by chance it takes more values than
/// there will ever be events. That is why a key found is a value found, without reading the event again.
#[derive(Clone)]
pub(super) struct Keys {
    salted: sha256::HashEngine,
}

impl Keys {
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let salt: [u8; 64] = conn.query_row("SELECT salt FROM secret", [], |row| row.get(0))?;
        let mut salted = sha256::HashEngine::new();
        salted.input(&salt);
        Ok(Self { salted })
    }

    /// The list of events with this tag.
    ///
    /// The name comes last: events often carry one value under two names (`e` and `E`), and those stay neighbours.
    pub(super) fn tag(&self, name: SingleLetterTag, value: &str) -> Digest {
        let mut digest = self.digest(&[b"#", value.as_bytes()]);
        if let Some(last) = digest.last_mut() {
            *last = name.as_byte();
        }
        digest
    }

    /// The list of events of this kind.
    pub(super) fn kind(&self, kind: u16) -> Digest {
        self.digest(&[b"k", &kind.to_be_bytes()])
    }

    /// The list of events of this author.
    pub(super) fn author(&self, author: &PublicKey) -> Digest {
        self.digest(&[b"p", author.as_bytes()])
    }

    /// Every list an event belongs to.
    pub(super) fn lists<'a>(&'a self, event: &'a Event) -> impl Iterator<Item = Digest> + 'a {
        let tags = event.tags.iter();
        let tags = tags.filter_map(|tag| Some(self.tag(tag.single_letter_tag()?, tag.content()?)));
        tags.chain([self.kind(event.kind.as_u16()), self.author(&event.pubkey)])
    }

    pub(super) fn coordinate(&self, coordinate: &Coordinate) -> Digest {
        let kind = coordinate.kind.as_u16().to_be_bytes();
        let author = coordinate.public_key.as_bytes();
        self.digest(&[b":", &kind, author, coordinate.identifier.as_bytes()])
    }

    /// An event as its author would delete it by id. Nobody else's request has anything to do with it.
    pub(super) fn own_event(&self, author: &PublicKey, id: &EventId) -> Digest {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(salt: u8) -> Keys {
        let mut salted = sha256::HashEngine::new();
        salted.input(&[salt; 64]);
        Keys { salted }
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
