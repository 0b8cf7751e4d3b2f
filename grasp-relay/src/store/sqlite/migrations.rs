//! The schema of the file, which moves forward: each release migrates the files of those before it, and copies them first.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, TransactionBehavior};

use super::reader::{copy_file, copy_pages};
use crate::store::{StoreError, failure};

/// How the tables of a file come to be.
struct Schema<'a> {
    /// The steps from each version, by its index, to the next. Released steps never change.
    steps: &'a [&'a str],
    /// What files of the first release need before all else.
    repair: Repair<'a>,
}

/// A step within version 1: the first release had the same number as what came after it, and lacks a table.
struct Repair<'a> {
    lacks: &'a str,
    sql: &'a str,
}

const SCHEMA: Schema<'static> = Schema {
    steps: &[
        include_str!("schema.sql"),
        include_str!("schema_quotas.sql"),
        include_str!("schema_maintained.sql"),
        include_str!("schema_policy.sql"),
        include_str!("schema_states.sql"),
    ],
    repair: Repair {
        lacks: "proposal_refs",
        sql: include_str!("from_0_2_0.sql"),
    },
};

/// What is left to do with a file.
struct Pending<'a> {
    sql: &'a str,
    reached: u32,
}

impl Schema<'_> {
    fn newest(&self) -> u32 {
        u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    /// Fails for a file that a newer release has written.
    fn check(&self, found: u32) -> Result<(), StoreError> {
        let known = self.newest();
        if found > known {
            return Err(StoreError::NewerSchema { found, known });
        }
        Ok(())
    }

    /// Returns the next step of a file of this version; `None` if it is as this release writes it.
    fn next(&self, conn: &Connection, found: u32) -> Result<Option<Pending<'_>>, StoreError> {
        if found == 1 && !has_table(conn, self.repair.lacks)? {
            return Ok(Some(Pending {
                sql: self.repair.sql,
                reached: 1,
            }));
        }
        let step = self.steps.get(found as usize);
        Ok(step.map(|sql| Pending {
            sql,
            reached: found + 1,
        }))
    }
}

fn has_table(conn: &Connection, name: &str) -> Result<bool, StoreError> {
    let tables = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    let count: i64 = conn
        .query_row(tables, [name], |row| row.get(0))
        .map_err(failure)?;
    Ok(count > 0)
}

/// Marks the file as an event store ("grsp"), for `file(1)` and against opening the database of another application.
const APPLICATION_ID: i32 = 0x6772_7370;

/// The file is a database, but not an event store.
#[derive(Debug, thiserror::Error)]
#[error("the file is a database of another application")]
struct ForeignFile;

/// The file of an earlier release could not be copied, so it is not migrated.
#[derive(Debug, thiserror::Error)]
#[error("could not copy the database to {} before its migration; make room there", path.display())]
struct NotCopied {
    path: PathBuf,
    source: StoreError,
}

/// Migrates the file to the newest version that this release knows, after copying what an earlier release has written.
pub(super) fn migrate(conn: &mut Connection) -> Result<(), StoreError> {
    migrate_to(&SCHEMA, conn)
}

fn migrate_to(schema: &Schema<'_>, conn: &mut Connection) -> Result<(), StoreError> {
    let found = version(conn)?;
    schema.check(found)?;
    if found > 0 && schema.next(conn, found)?.is_some() {
        tracing::info!(found, "migrating the database to a newer schema");
        copy_before(conn, found)?;
    }
    apply(schema, conn, found)
}

/// Applies the steps from a version on, each in a transaction.
fn apply(schema: &Schema<'_>, conn: &mut Connection, mut found: u32) -> Result<(), StoreError> {
    while let Some(Pending { sql, reached }) = schema.next(conn, found)? {
        let tx = conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(failure)?;
        tx.execute_batch(sql).map_err(failure)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(failure)?;
        tx.pragma_update(None, "user_version", reached)
            .map_err(failure)?;
        tx.commit().map_err(failure)?;
        found = reached;
    }
    Ok(())
}

/// Copies the file beside itself. A copy of an earlier attempt, or of before a return to the earlier release, is replaced.
fn copy_before(conn: &Connection, found: u32) -> Result<(), StoreError> {
    // A database in memory has no path.
    let Some(file) = conn.path().filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let path = PathBuf::from(format!("{file}.schema-{found}"));
    copy_durably(conn, &path).map_err(|source| failure(NotCopied { path, source }))
}

fn copy_durably(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let _ = fs::remove_file(&unfinished);
    let copied =
        copy_file(conn, &unfinished).and_then(|()| fs::rename(&unfinished, path).map_err(failure));
    if copied.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    copied?;
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(failure)
}

/// Returns a connection to the same content in the version that this release writes: the given one, or one to a temporary
/// copy, which is removed with the connection.
pub(super) fn current(conn: Connection) -> Result<Connection, StoreError> {
    current_by(&SCHEMA, conn)
}

fn current_by(schema: &Schema<'_>, conn: Connection) -> Result<Connection, StoreError> {
    let found = version(&conn)?;
    schema.check(found)?;
    if schema.next(&conn, found)?.is_none() {
        return Ok(conn);
    }
    let mut copy = Connection::open("").map_err(failure)?;
    copy_pages(&conn, &mut copy).map_err(failure)?;
    apply(schema, &mut copy, found)?;
    copy.pragma_update(None, "query_only", true)
        .map_err(failure)?;
    Ok(copy)
}

/// Returns the version of a file; zero for an empty one.
fn version(conn: &Connection) -> Result<u32, StoreError> {
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let owner = pragma("application_id").map_err(failure)?;
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failure)?;
    if tables > 0 && owner != i64::from(APPLICATION_ID) {
        return Err(failure(ForeignFile));
    }
    let version = pragma("user_version").map_err(failure)?;
    Ok(u32::try_from(version).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Schema<'static> = Schema {
        steps: &["CREATE TABLE a (x); INSERT INTO a VALUES (1);"],
        repair: Repair {
            lacks: "a",
            sql: "",
        },
    };
    const SECOND: Schema<'static> = Schema {
        steps: &[FIRST.steps[0], "UPDATE a SET x = x * 10;"],
        ..FIRST
    };

    fn value(conn: &Connection) -> i64 {
        conn.query_row("SELECT x FROM a", [], |row| row.get(0))
            .unwrap()
    }

    /// Returns a file of the first version.
    fn older_file(dir: &Path) -> PathBuf {
        let path = dir.join("grasp.db");
        let mut conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "journal_mode", "WAL").unwrap();
        migrate_to(&FIRST, &mut conn).unwrap();
        path
    }

    #[test]
    fn every_step_is_applied_once_and_in_order() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate_to(&FIRST, &mut conn).unwrap();
        migrate_to(&SECOND, &mut conn).unwrap();
        migrate_to(&SECOND, &mut conn).unwrap();
        assert_eq!(value(&conn), 10);
        assert_eq!(version(&conn).unwrap(), 2);
    }

    #[test]
    fn a_failed_step_leaves_the_version_before_it() {
        let mut conn = Connection::open_in_memory().unwrap();
        let broken = Schema {
            steps: &[FIRST.steps[0], "CREATE TABLE b (x); SELECT nonsense;"],
            ..FIRST
        };
        assert!(migrate_to(&broken, &mut conn).is_err());
        assert_eq!(version(&conn).unwrap(), 1);
        assert!(conn.execute_batch("SELECT * FROM b").is_err());
    }

    #[test]
    fn what_an_earlier_release_wrote_is_copied_first_and_the_copy_opens_with_that_release() {
        let dir = tempfile::tempdir().unwrap();
        let path = older_file(dir.path());
        let copy = dir.path().join("grasp.db.schema-1");
        assert!(!copy.exists(), "a new file is no data to keep");
        let mut conn = Connection::open(&path).unwrap();
        migrate_to(&SECOND, &mut conn).unwrap();
        assert_eq!((value(&conn), version(&conn).unwrap()), (10, 2));
        let refused = migrate_to(&FIRST, &mut conn);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("put back the copy"), "{text}");
        let mut copied = Connection::open(&copy).unwrap();
        migrate_to(&FIRST, &mut copied).unwrap();
        assert_eq!((value(&copied), version(&copied).unwrap()), (1, 1));
        // After a return to the earlier release, the copy of the next migration replaces this one.
        copied.execute_batch("UPDATE a SET x = 2").unwrap();
        drop((conn, copied));
        fs::rename(&copy, &path).unwrap();
        let mut conn = Connection::open(&path).unwrap();
        migrate_to(&SECOND, &mut conn).unwrap();
        assert_eq!(value(&conn), 20);
        assert_eq!(value(&Connection::open(&copy).unwrap()), 2);
    }

    #[test]
    fn without_a_copy_nothing_is_migrated() {
        let dir = tempfile::tempdir().unwrap();
        let path = older_file(dir.path());
        fs::create_dir_all(dir.path().join("grasp.db.schema-1/full")).unwrap();
        let mut conn = Connection::open(&path).unwrap();
        let error = migrate_to(&SECOND, &mut conn).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(
            cause.contains("grasp.db.schema-1 before its migration"),
            "{cause}"
        );
        assert_eq!((value(&conn), version(&conn).unwrap()), (1, 1));
        assert!(!dir.path().join("grasp.db.schema-1.new").exists());
    }

    #[test]
    fn an_older_file_is_read_without_changing_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = older_file(dir.path());
        let read = current_by(&SECOND, Connection::open(&path).unwrap()).unwrap();
        assert_eq!(value(&read), 10);
        let unchanged = Connection::open(&path).unwrap();
        assert_eq!((value(&unchanged), version(&unchanged).unwrap()), (1, 1));
        assert_eq!(
            fs::read_dir(dir.path())
                .unwrap()
                .flatten()
                .filter(|file| { file.file_name().to_string_lossy().contains("schema") })
                .count(),
            0
        );
    }

    /// The tables of 0.2.0, without comments.
    const RELEASE_0_2_0: &str = include_str!("../../../tests/data/schema_0_2_0.sql");

    #[test]
    fn the_tables_of_a_migrated_file_are_those_of_a_new_one() {
        let columns = |conn: &Connection| -> Vec<(String, String, String)> {
            let sql = "SELECT t.name, c.name, c.type || c.\"notnull\" || c.pk FROM sqlite_schema t,
                pragma_table_info(t.name) c WHERE t.type = 'table' ORDER BY 1, 2";
            let mut statement = conn.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
            rows.unwrap().map(Result::unwrap).collect()
        };
        let indexes = |conn: &Connection| -> Vec<String> {
            let sql = "SELECT name FROM sqlite_schema WHERE type = 'index' ORDER BY 1";
            let mut statement = conn.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| row.get(0));
            rows.unwrap().map(Result::unwrap).collect()
        };
        let mut new = Connection::open_in_memory().unwrap();
        migrate(&mut new).unwrap();
        let mut old = Connection::open_in_memory().unwrap();
        old.execute_batch(RELEASE_0_2_0).unwrap();
        migrate(&mut old).unwrap();
        assert_eq!(columns(&old), columns(&new));
        assert_eq!(indexes(&old), indexes(&new));
    }

    #[test]
    fn a_migrated_file_knows_who_maintains_what() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(RELEASE_0_2_0).unwrap();
        apply_before(&mut conn, "maintained");
        let keys = ["00".repeat(32), format!("{}01", "00".repeat(31))];
        let views = format!(
            "INSERT INTO views (endpoint, identifier, owner, generation, head, refs, maintainers, shows)
            VALUES (0, 'x', x'05', 7, '', '', x'{}', NULL), (0, 'x', x'06', 8, '', '', x'{}', x'05'),
                (1, 'x', x'07', 9, '', '', x'', NULL)",
            keys.concat(),
            keys[0]
        );
        conn.execute_batch(&views).unwrap();
        migrate(&mut conn).unwrap();
        let sql = "SELECT hex(maintainer), hex(owner), since FROM maintained ORDER BY 1";
        let mut statement = conn.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let rows: Vec<(String, String, i64)> = rows.unwrap().map(Result::unwrap).collect();
        assert_eq!(rows, keys.map(|key| (key, "05".to_owned(), 7)));
    }

    /// Refs of a row before the migration, and what of them the state and the pull requests have after it.
    struct RefText {
        before: String,
        declared: String,
        proposals: String,
    }

    fn ref_texts() -> [RefText; 6] {
        let short = ["1".repeat(40), "2".repeat(40), "3".repeat(40)];
        let long = ["1".repeat(64), "2".repeat(64), "3".repeat(64)];
        let branch = |[tip, ..]: &[String; 3]| format!("{tip} refs/heads/main\n");
        let proposals = |[_, tip, _]: &[String; 3]| {
            let [a, b] = ["a".repeat(64), "b".repeat(64)];
            format!("{tip} refs/nostr/{a}\n{tip} refs/nostr/{b}\n^{tip}\n")
        };
        let tags = |[tip, _, tag]: &[String; 3]| {
            format!("{tag} refs/tags/v1\n^{tip}\n{tag} refs/tags/v2\n")
        };
        let header = "# pack-refs with: peeled fully-peeled sorted \n".to_owned();
        [
            RefText {
                before: header.clone(),
                declared: header.clone(),
                proposals: String::new(),
            },
            RefText {
                before: header.clone() + &branch(&short),
                declared: header.clone() + &branch(&short),
                proposals: String::new(),
            },
            RefText {
                before: header.clone() + &proposals(&short),
                declared: header.clone(),
                proposals: proposals(&short),
            },
            RefText {
                before: header.clone() + &branch(&short) + &proposals(&short) + &tags(&short),
                declared: header + &branch(&short) + &tags(&short),
                proposals: proposals(&short),
            },
            RefText {
                before: branch(&long) + &proposals(&long) + &tags(&long),
                declared: branch(&long) + &tags(&long),
                proposals: proposals(&long),
            },
            RefText {
                before: proposals(&long) + &tags(&long),
                declared: tags(&long),
                proposals: proposals(&long),
            },
        ]
    }

    #[test]
    fn a_migrated_file_has_what_states_declare_apart_from_pull_requests() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(RELEASE_0_2_0).unwrap();
        apply_before(&mut conn, "states");
        let cases = ref_texts();
        for (number, case) in (0_i64..).zip(&cases) {
            let view = "INSERT INTO views (endpoint, identifier, owner, generation, head, refs, state, maintainers)
                VALUES (0, ?1, x'05', ?1, 'refs/heads/main', ?2, unhex(printf('%02d', ?1)), x'')";
            conn.execute(view, rusqlite::params![number, case.before])
                .unwrap();
        }
        // Another repository that shows the state of the first, and one that shows none.
        conn.execute_batch(&format!(
            "INSERT INTO views (endpoint, identifier, owner, generation, head, refs, state, maintainers)
                SELECT 0, 'other', x'06', 98, head, refs, state, x'' FROM views WHERE generation = 0;
            INSERT INTO views (endpoint, identifier, owner, generation, head, refs, maintainers)
                VALUES (1, 'none', x'06', 99, 'refs/heads/main', '{}', x'')",
            cases[2].proposals
        ))
        .unwrap();
        migrate(&mut conn).unwrap();
        let read = "SELECT coalesce(refs, ''), proposals, coalesce(head, '') FROM repositories WHERE generation = ?1";
        let row = |number: i64| -> (String, String, String) {
            let columns = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            conn.query_row(read, [number], columns).unwrap()
        };
        for (number, case) in (0..).zip(&cases) {
            let wanted = (
                case.declared.clone(),
                case.proposals.clone(),
                "refs/heads/main".to_owned(),
            );
            assert_eq!(row(number), wanted, "{number}");
        }
        assert_eq!(row(98), row(0));
        assert_eq!(
            row(99),
            (String::new(), cases[2].proposals.clone(), String::new())
        );
        let states = conn.query_row("SELECT count(*) FROM states", [], |row| {
            row.get::<_, i64>(0)
        });
        assert_eq!(states.unwrap(), 6, "one for two repositories");
    }

    /// Migrates a file up to the step that makes a table.
    fn apply_before(conn: &mut Connection, table: &str) {
        let makes = format!("CREATE TABLE {table} ");
        let until = SCHEMA.steps.iter().position(|step| step.contains(&makes));
        let before = Schema {
            steps: &SCHEMA.steps[..until.unwrap()],
            ..SCHEMA
        };
        migrate_to(&before, conn).unwrap();
    }

    #[test]
    fn a_newer_file_is_refused_untouched() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn).unwrap();
        conn.pragma_update(None, "user_version", 99).unwrap();
        let refused = migrate(&mut conn);
        assert!(matches!(
            refused,
            Err(StoreError::NewerSchema { found: 99, .. })
        ));
    }

    #[test]
    fn a_database_of_another_application_is_refused() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE theirs (x)").unwrap();
        assert!(migrate(&mut conn).is_err());
    }
}
