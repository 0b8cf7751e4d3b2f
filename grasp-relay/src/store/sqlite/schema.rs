//! The schema of the file, its migrations, and its secret.

use rusqlite::{Connection, Row, TransactionBehavior};

use super::failure;
use crate::store::StoreError;
use crate::store::keys::{Keys, Position};

/// The steps from each version, by its index, to the next. Released steps never change.
const MIGRATIONS: &[&str] = &[include_str!("schema.sql")];

/// Marks the file as an event store ("grsp"), for `file(1)` and against opening the database of another application.
const APPLICATION_ID: i32 = 0x6772_7370;

/// The file is a database, but not an event store.
#[derive(Debug, thiserror::Error)]
#[error("the file is a database of another application")]
struct ForeignFile;

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
        return Err(StoreError::Engine(Box::new(ForeignFile)));
    }
    let version = pragma("user_version").map_err(failure)?;
    Ok(u32::try_from(version).unwrap_or(u32::MAX))
}

/// Reads the secret of the file, from which the keys of its indexes are made.
pub(super) fn load_keys(conn: &Connection) -> rusqlite::Result<Keys> {
    let salt: [u8; 64] = conn.query_row("SELECT salt FROM secret", [], |row| row.get(0))?;
    Ok(Keys::new(&salt))
}

/// Reads the columns `newest, id`, which come first in every statement that has them.
pub(super) fn position(row: &Row<'_>) -> rusqlite::Result<Position> {
    Ok(Position::new(row.get(0)?, row.get(1)?))
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
}
