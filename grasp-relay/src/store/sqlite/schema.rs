//! The schema of the file, its migrations, and the keys of its indexes.

use bitcoin_hashes::{HashEngine, sha256};
use grasp_core::Version;
use nostr::event::{Event, EventId};
use nostr::filter::SingleLetterTag;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;
use rusqlite::{Connection, Row, TransactionBehavior};

use super::failure;
use crate::store::StoreError;

/// The steps from each version, by its index, to the next. Released steps never change.
const MIGRATIONS: &[&str] = &[include_str!("schema.sql")];

/// Marks the file as an event store ("grsp"), for `file(1)` and against opening the database of another application.
const APPLICATION_ID: i32 = 0x6772_7370;

/// The file is a database, but not an event store.
#[derive(Debug, thiserror::Error)]
#[error("the file is a database of another application")]
struct NotOurs;

/// Migrates the file to the newest version that this release knows.
pub(super) fn migrate(conn: &mut Connection) -> Result<(), StoreError> {
    migrate_with(conn, MIGRATIONS)
}

fn migrate_with(conn: &mut Connection, steps: &[&str]) -> Result<(), StoreError> {
    let found = version(conn)?;
    let known = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(StoreError::NewerSchema { found, known });
    }
    let pending = steps.iter().zip(1u32..).skip(found as usize);
    for (step, reached) in pending {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failure)?;
        tx.execute_batch(step).map_err(failure)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(failure)?;
        tx.pragma_update(None, "user_version", reached).map_err(failure)?;
        tx.commit().map_err(failure)?;
    }
    Ok(())
}

/// Returns whether a file has the version that this release writes.
pub(super) fn is_current(conn: &Connection) -> Result<bool, StoreError> {
    let known = u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX);
    match version(conn)? {
        found if found > known => Err(StoreError::NewerSchema { found, known }),
        found => Ok(found == known),
    }
}

/// Returns the version of a file; zero for an empty one.
fn version(conn: &Connection) -> Result<u32, StoreError> {
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let owner = pragma("application_id").map_err(failure)?;
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failure)?;
    if tables > 0 && owner != i64::from(APPLICATION_ID) {
        return Err(StoreError::Engine(Box::new(NotOurs)));
    }
    let version = pragma("user_version").map_err(failure)?;
    Ok(u32::try_from(version).unwrap_or(u32::MAX))
}

/// A hash that names a list of events, or a coordinate.
pub(super) type Digest = [u8; 16];

/// The place of an event in serving order: newest first, ties by lowest id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    newest: i64,
    id: [u8; 32],
}

impl Position {
    /// The place before all events.
    pub(super) const FIRST: Self = Self { newest: i64::MIN, id: [0xff; 32] };

    /// Returns the place after everything newer than this time and before everything else.
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

/// Returns a time as the indexes order it. Times beyond SQLite's range, 292 billion years from now, count as one.
pub(super) fn newest(created_at: Timestamp) -> i64 {
    -seconds(created_at.as_secs())
}

/// Returns seconds within SQLite's range.
pub(super) fn seconds(secs: u64) -> i64 {
    i64::try_from(secs).unwrap_or(i64::MAX)
}

/// Computes the keys of lists and coordinates, all of one length.
///
/// Keys are 15 or 16 bytes of SHA-256 after a secret block that is drawn when the file is created. Authors of events
/// do not know the secret, so they cannot search for two values with one key, and accidental collisions are out of
/// reach. Therefore a matching key needs no comparison of the value.
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

    /// Returns the list of events with this tag.
    ///
    /// The tag's name is the last byte: events often carry one value under two names (`e` and `E`), and those rows
    /// stay neighbours.
    pub(super) fn tag(&self, name: SingleLetterTag, value: &str) -> Digest {
        let mut digest = self.digest(&[b"#", value.as_bytes()]);
        if let Some(last) = digest.last_mut() {
            *last = name.as_byte();
        }
        digest
    }

    /// Returns the list of events of this kind.
    pub(super) fn kind(&self, kind: u16) -> Digest {
        self.digest(&[b"k", &kind.to_be_bytes()])
    }

    /// Returns the list of events of this author.
    pub(super) fn author(&self, author: &PublicKey) -> Digest {
        self.digest(&[b"p", author.as_bytes()])
    }

    /// Returns every list that an event belongs to.
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

    /// Returns the key of an author's event for deletion by id. Requests of other authors have other keys.
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

    #[test]
    fn every_step_is_applied_once_and_in_order() {
        let mut conn = Connection::open_in_memory().unwrap();
        let first = "CREATE TABLE a (x); INSERT INTO a VALUES (1);";
        let second = "UPDATE a SET x = x * 10;";
        migrate_with(&mut conn, &[first]).unwrap();
        migrate_with(&mut conn, &[first, second]).unwrap();
        migrate_with(&mut conn, &[first, second]).unwrap();
        let x: i64 = conn.query_row("SELECT x FROM a", [], |row| row.get(0)).unwrap();
        assert_eq!(x, 10);
        assert_eq!(version(&conn).unwrap(), 2);
    }

    #[test]
    fn a_failed_step_leaves_the_version_before_it() {
        let mut conn = Connection::open_in_memory().unwrap();
        let broken = "CREATE TABLE b (x); SELECT nonsense;";
        assert!(migrate_with(&mut conn, &["CREATE TABLE a (x);", broken]).is_err());
        assert_eq!(version(&conn).unwrap(), 1);
        assert!(conn.execute_batch("SELECT * FROM b").is_err());
    }

    #[test]
    fn a_newer_file_is_refused_untouched() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn).unwrap();
        conn.pragma_update(None, "user_version", 7).unwrap();
        let refused = migrate(&mut conn);
        assert!(matches!(refused, Err(StoreError::NewerSchema { found: 7, known: 1 })));
    }

    #[test]
    fn a_database_of_somebody_else_is_refused() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE theirs (x)").unwrap();
        assert!(migrate(&mut conn).is_err());
    }

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
