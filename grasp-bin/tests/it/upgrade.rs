//! Data of an earlier release, and of a later one.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use bitcoin_hashes::sha256;
use rusqlite::Connection;

use crate::commands::{clone_url, git, push, working_copy};
use crate::operations::free_address;
use crate::signals::send_signal;
use crate::support::{Server, command, grasp, run_to_end};

/// The tables of 0.2.0.
const TABLES_0_2_0: &str = include_str!("../../../grasp-relay/tests/data/schema_0_2_0.sql");

/// Moves what is in these tables as it is.
const SAME_TABLES: [&str; 14] = [
    "secret",
    "events",
    "lists",
    "heads",
    "expirations",
    "superseded",
    "requests",
    "gates",
    "vanished",
    "delisted",
    "unfinished",
    "generations",
    "retired_refs",
    "held",
];

fn stop(mut server: Server) {
    send_signal(&server.child, "-TERM");
    assert!(server.child.wait().unwrap().success());
}

/// Turns the data of a server that is stopped into what 0.2.0 would have written: its tables, and its files, in which the
/// repositories of an identifier shared their packs.
fn rewrite_as_0_2_0(data: &Path, identifier: &str) {
    let database = data.join("grasp.db");
    let newer = data.join("newer.db");
    std::fs::rename(&database, &newer).unwrap();
    let conn = Connection::open(&database).unwrap();
    conn.execute_batch(TABLES_0_2_0).unwrap();
    let attach = format!("ATTACH '{}' AS newer", newer.display());
    conn.execute_batch(&attach).unwrap();
    for table in SAME_TABLES {
        let copy = format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM newer.{table}");
        conn.execute_batch(&copy).unwrap();
    }
    conn.execute_batch(
        "INSERT INTO views (endpoint, identifier, owner, generation, head, refs, state)
            SELECT endpoint, identifier, owner, generation, coalesce(head, 'refs/heads/main'),
                coalesce(refs, '') || proposals, state FROM newer.repositories;
        INSERT INTO packs SELECT DISTINCT endpoint, identifier, name, 0, bytes, verified FROM newer.packs;
        DETACH newer",
    )
    .unwrap();
    drop(conn);
    std::fs::remove_file(newer).unwrap();
    let root = data.join("git");
    let key = sha256::Hash::hash(identifier.as_bytes()).to_string();
    let family = root.join("families").join(&key[..2]).join(&key[2..]);
    std::fs::create_dir_all(family.join("objects/pack")).unwrap();
    for file in packs(&root.join("repositories")) {
        let target = family.join("objects/pack").join(file.file_name().unwrap());
        std::fs::rename(file, target).unwrap();
    }
    std::fs::remove_dir_all(root.join("repositories")).unwrap();
    std::fs::write(root.join("version"), "grasp repositories 2\n").unwrap();
}

/// Returns the files of packs below a directory.
fn packs(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(packs(&path));
        } else if path.parent().unwrap().ends_with("objects/pack") {
            found.push(path);
        }
    }
    found
}

#[test]
fn data_of_0_2_0_is_copied_and_migrated_and_served() {
    let dir = tempfile::tempdir().unwrap();
    let (data, work) = (dir.path().join("data"), dir.path().join("hello"));
    let address = free_address();
    working_copy(&work);
    git(&work, &["tag", "-a", "-m", "first", "v1"]);
    let server = Server::start_at(&address, &data);
    let url = clone_url(&push(&work, dir.path(), &server));
    stop(server);
    rewrite_as_0_2_0(&data, "hello");

    let server = Server::start_at(&address, &data);
    let copy = dir.path().join("copy");
    git(dir.path(), &["clone", "-q", &url, copy.to_str().unwrap()]);
    let head = git(&work, &["rev-parse", "HEAD"]);
    assert_eq!(git(&copy, &["rev-parse", "HEAD"]), head);
    let checked = grasp(&["check", "--data-dir", data.to_str().unwrap()]);
    assert!(checked.ok, "{checked:?}");
    let tag = git(&work, &["rev-parse", "v1"]);
    assert_eq!(git(&copy, &["rev-parse", "v1"]), tag);
    git(&work, &["commit", "-q", "--allow-empty", "-m", "second"]);
    assert!(push(&work, dir.path(), &server).ok);
    assert!(!data.join("git/families").exists());
    let before = Connection::open(data.join("grasp.db.schema-1")).unwrap();
    let owners: i64 = before
        .query_row("SELECT count(*) FROM packs WHERE is_attic = 0", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert!(owners > 0, "the copy is what 0.2.0 reads");
}

#[test]
fn data_of_a_later_release_is_refused_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data);
    stop(server);
    let conn = Connection::open(data.join("grasp.db")).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    let mut serve = command();
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .stdin(Stdio::null());
    let refused = run_to_end(&mut serve);
    assert!(!refused.ok, "{refused:?}");
    assert!(
        refused.err.contains("start the newer release again"),
        "{refused:?}"
    );
}
