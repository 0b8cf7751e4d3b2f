//! A process that is killed in the middle of writing has kept what it acknowledged.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use grasp_relay::store::sqlite::{Integrity, SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, Saved};
use nostr::event::EventId;
use nostr::filter::Filter;

use crate::store_contract::block_on;
use crate::store_events::*;

/// Tells a process of this very binary to be the one that is killed, and where it writes.
const VICTIM: &str = "GRASP_TEST_STORE_VICTIM";
/// The first number of its events.
const FIRST: &str = "GRASP_TEST_STORE_FIRST";

const WRITERS: u64 = 16;

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let mut acknowledged = BTreeSet::new();
    for round in 0..4 {
        let mut victim = spawn(&path, round * 1_000_000);
        let output = BufReader::new(victim.stdout.take().unwrap());
        let mut lines = output.lines().map_while(Result::ok);
        // Killed after a while, between no particular two writes; what it still said counts too.
        let awaited = 150 + usize::try_from(round).unwrap() * 77;
        acknowledged.extend(ids(&mut lines).take(awaited));
        victim.kill().unwrap();
        victim.wait().unwrap();
        acknowledged.extend(ids(&mut lines));
        assert!(acknowledged.len() >= awaited);
        block_on(check(&path, &acknowledged));
    }
}

fn spawn(path: &Path, first: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store_kill::writes_until_killed", "--ignored", "--nocapture"])
        .env(VICTIM, path)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads acknowledged ids from among what a test binary says.
fn ids(lines: &mut impl Iterator<Item = String>) -> impl Iterator<Item = EventId> {
    lines.filter_map(|line| EventId::from_hex(line.strip_prefix("stored ")?).ok())
}

async fn check(path: &Path, acknowledged: &BTreeSet<EventId>) {
    let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
    assert_eq!(store.integrity_check().await.unwrap(), Integrity::Sound);
    let found = find(&store, Filter::new().ids(acknowledged.iter().copied())).await;
    assert_eq!(BTreeSet::from_iter(found), *acknowledged);
    store.close().await.unwrap();
}

#[test]
#[ignore = "the process that is killed by the test above"]
fn writes_until_killed() {
    let (Some(path), Ok(first)) = (std::env::var_os(VICTIM), std::env::var(FIRST)) else {
        return;
    };
    let first: u64 = first.parse().unwrap();
    let store = SqliteStore::open(Path::new(&path), SqliteOptions::default()).unwrap();
    let write = async |writer: u64| {
        for number in (first + writer..).step_by(WRITERS as usize) {
            let event = ALICE.writes(1621).id(number).tag("t", number).done();
            let saved = store.save(vec![Arc::clone(&event)], time(NOW)).await.unwrap();
            assert_eq!(saved, [Saved::Stored]);
            writeln!(std::io::stdout().lock(), "stored {}", event.id).unwrap();
        }
    };
    block_on(futures_util::future::join_all((0..WRITERS).map(write)));
}
