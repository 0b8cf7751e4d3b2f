//! Acknowledged events survive a kill of the process.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use grasp_core::admission::Outcome;
use grasp_relay::store::EventStore;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::EventId;
use nostr::filter::Filter;

use crate::store_contract::block_on;
use crate::store_events::*;

/// The variable that makes a process of this binary the one that is killed; its value is the path of the store.
const KILLED_PATH_VAR: &str = "GRASP_TEST_STORE_KILLED_PATH";
/// The variable with the first number of its events.
const FIRST_NUMBER_VAR: &str = "GRASP_TEST_STORE_FIRST_NUMBER";

const WRITERS: u64 = 16;

#[test]
fn acknowledged_events_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let mut acknowledged = BTreeSet::new();
    for round in 0..4 {
        let mut child = spawn(&path, round * 1_000_000);
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = output.lines().map_while(Result::ok);
        // Killed at no particular point; acknowledgements that were still in the pipe count too.
        let awaited = 150 + usize::try_from(round).unwrap() * 77;
        acknowledged.extend(ids(&mut lines).take(awaited));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(ids(&mut lines));
        assert!(acknowledged.len() >= awaited);
        block_on(check(&path, &acknowledged));
    }
}

fn spawn(path: &Path, first: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "store_kill::writes_until_killed",
            "--ignored",
            "--nocapture",
        ])
        .env(KILLED_PATH_VAR, path)
        .env(FIRST_NUMBER_VAR, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads acknowledged ids from the output of a test binary.
fn ids(lines: &mut impl Iterator<Item = String>) -> impl Iterator<Item = EventId> {
    lines.filter_map(|line| EventId::from_hex(line.strip_prefix("stored ")?).ok())
}

async fn check(path: &Path, acknowledged: &BTreeSet<EventId>) {
    let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
    assert_eq!(store.integrity_check().await.unwrap(), [""; 0]);
    let found = find(&store, Filter::new().ids(acknowledged.iter().copied())).await;
    assert_eq!(BTreeSet::from_iter(found), *acknowledged);
    store.close().await.unwrap();
}

#[test]
#[ignore = "the process that is killed by the test above"]
fn writes_until_killed() {
    let (Some(path), Ok(first)) = (
        std::env::var_os(KILLED_PATH_VAR),
        std::env::var(FIRST_NUMBER_VAR),
    ) else {
        return;
    };
    let first: u64 = first.parse().unwrap();
    let store = SqliteStore::open(Path::new(&path), SqliteOptions::default()).unwrap();
    let write = async |writer: u64| {
        for number in (first + writer..).step_by(WRITERS as usize) {
            let event = ALICE.writes(1621).id(number).tag("t", number).done();
            let saved = store
                .save(vec![Arc::clone(&event)], time(NOW))
                .await
                .unwrap();
            assert_eq!(saved, [Outcome::Stored]);
            writeln!(std::io::stdout().lock(), "stored {}", event.id).unwrap();
        }
    };
    block_on(futures_util::future::join_all((0..WRITERS).map(write)));
}
