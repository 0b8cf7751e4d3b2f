//! Reading the file of a database without its server, whether that runs or not: checks, and copies for backups.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_purgatory::database::{Commit, Committed};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{BUSY_TIMEOUT, examine, migrations, tables};
use crate::store::engine::{DatabaseEngine, EngineStore, Query};
use crate::store::{StoreError, failure};

/// Times that a copy is begun while the file is locked, each after [`BUSY_TIMEOUT`].
const MAX_COPY_ATTEMPTS: usize = 3;

/// The file of a database, for reading. A server may use it at the same time.
pub type SqliteReader = EngineStore<SqliteFile>;

/// A SQLite file that is open for reading.
pub struct SqliteFile(Mutex<Connection>);

/// A write to a database that is open for reading.
#[derive(Debug, thiserror::Error)]
#[error("the database is open for reading only")]
struct ReadOnly;

impl SqliteReader {
    /// Opens a file, which must exist. Nothing is changed, and a log that a killed server left stays as it is. Of a file
    /// with an earlier schema a temporary copy is migrated and read.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let has_log = log_of(path).metadata().is_ok_and(|log| log.len() > 0);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags).map_err(failure)?;
        let set = || {
            conn.busy_timeout(BUSY_TIMEOUT)?;
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log)?;
            conn.pragma_update(None, "wal_autocheckpoint", 0)?;
            conn.pragma_update(None, "query_only", true)
        };
        set().map_err(failure)?;
        let conn = migrations::current(conn)?;
        Ok(Self(Arc::new(SqliteFile(Mutex::new(conn)))))
    }

    /// Checks the whole file: its pages, its indexes, and whether they name the same events. Returns one line per
    /// fault.
    pub fn integrity_check(&self) -> Result<Vec<String>, StoreError> {
        match examine(&self.0.lock()) {
            Err(error) if is_corruption(&error) => Ok(vec![error.to_string()]),
            examined => examined.map_err(failure),
        }
    }

    /// Copies the database as it is at one moment into a new file, which replaces one that is there. The copy needs no
    /// log, and is on disk when this returns.
    pub fn copy_to(&self, path: &Path) -> Result<(), StoreError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failure(error)),
            _ => {}
        }
        copy_file(&self.0.lock(), path)
    }
}

/// Copies a database into a new file, which needs no log and is on disk when this returns.
pub(super) fn copy_file(from: &Connection, path: &Path) -> Result<(), StoreError> {
    let mut copy = Connection::open(path).map_err(failure)?;
    copy_pages(from, &mut copy).map_err(failure)?;
    copy.pragma_update(None, "journal_mode", "DELETE")
        .map_err(failure)?;
    copy.close().map_err(|(_, error)| failure(error))?;
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(failure)
}

/// Copies all pages in one step, which is one snapshot: a server that writes meanwhile does not make it begin again.
pub(super) fn copy_pages(from: &Connection, to: &mut Connection) -> rusqlite::Result<()> {
    let backup = Backup::new(from, to)?;
    for _ in 0..MAX_COPY_ATTEMPTS {
        if backup.step(-1)? == StepResult::Done {
            return Ok(());
        }
    }
    let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
    Err(rusqlite::Error::SqliteFailure(
        busy,
        Some("the file is locked".into()),
    ))
}

fn log_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Returns whether an error, or one that it is caused by, says that the file of a database is damaged.
pub fn is_damage(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        cause
            .downcast_ref::<rusqlite::Error>()
            .is_some_and(is_corruption)
    })
}

fn is_corruption(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

impl DatabaseEngine for SqliteFile {
    async fn rows<T: Send + 'static>(&self, query: Query<T>) -> Result<Vec<T>, StoreError> {
        let conn = self.lock();
        let snapshot = conn.unchecked_transaction().map_err(failure)?;
        tables::rows(&snapshot, query)
    }

    async fn commit(&self, _: Commit) -> Result<Committed, StoreError> {
        Err(failure(ReadOnly))
    }
}

impl SqliteFile {
    fn lock(&self) -> MutexGuard<'_, Connection> {
        // Reads leave nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::connect;

    /// A database with one event-like row, and a connection that uses it.
    fn database(path: &Path) -> Connection {
        let mut conn = connect(path, 0).unwrap();
        migrations::migrate(&mut conn).unwrap();
        conn.execute_batch("CREATE TABLE notes (text); INSERT INTO notes VALUES ('one')")
            .unwrap();
        conn
    }

    fn notes(path: &Path) -> i64 {
        let conn = Connection::open(path).unwrap();
        conn.query_row("SELECT count(*) FROM notes", [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn a_copy_of_a_database_in_use_is_one_file_that_later_writes_do_not_reach() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (
            dir.path().join("grasp.db"),
            dir.path().join("copy/grasp.db"),
        );
        fs::create_dir(dir.path().join("copy")).unwrap();
        let conn = database(&path);
        let reader = SqliteReader::open(&path).unwrap();
        reader.copy_to(&copy).unwrap();
        conn.execute("INSERT INTO notes VALUES ('two')", [])
            .unwrap();
        let copied = SqliteReader::open(&copy).unwrap();
        assert_eq!(copied.integrity_check().unwrap(), [""; 0]);
        drop(copied);
        assert_eq!(notes(&copy), 1);
        assert_eq!(fs::read_dir(dir.path().join("copy")).unwrap().count(), 1);
        // A second copy takes the place of the first.
        reader.copy_to(&copy).unwrap();
        assert_eq!(notes(&copy), 2);
    }

    #[test]
    fn reading_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grasp.db");
        let conn = database(&path);
        let reader = SqliteReader::open(&path).unwrap();
        let written = reader
            .0
            .lock()
            .execute("INSERT INTO notes VALUES ('two')", []);
        assert!(written.is_err());
        drop((reader, conn));
        assert_eq!(notes(&path), 1);
    }

    #[test]
    fn damage_is_distinguished_from_other_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("grasp.db");
        fs::write(&path, [0xa5; 8_192]).unwrap();
        assert!(is_damage(&SqliteReader::open(&path).unwrap_err()));
        assert!(!is_damage(
            &SqliteReader::open(&dir.path().join("none")).unwrap_err()
        ));
    }
}
