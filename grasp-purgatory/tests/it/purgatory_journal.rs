//! What is written down, and what a disk may do to it.

use grasp_purgatory::journal::{Record, RecordError};
use grasp_purgatory::{CleanupTask, EndReason, Phase, PushTarget};
use nostr::types::Timestamp;

use crate::model_events::*;

fn held(n: u8) -> Record {
    let event = state(ALICE, "x", i64::from(n), &[("main", n)]);
    let (since, until) = (Timestamp::from_secs(5), Timestamp::from_secs(7));
    Record::Held { event, phase: Phase::Waiting, since, until }
}

fn records() -> Vec<Record> {
    let (id, until) = (state(ALICE, "x", 1, &[("main", 1)]).id, Timestamp::from_secs(7));
    let task = CleanupTask::ClearProposal {
        id,
        keep: [oid(1)].into(),
        names: [ALICE.repo("x").identifier].into(),
    };
    let target = PushTarget::Contributor(ALICE.repo("a:b 🦀"));
    vec![
        held(1),
        Record::Moved { id, phase: Phase::Expired, until },
        Record::Gone { id, reason: EndReason::Served },
        Record::Staged { id, tip: oid(2), target, bytes: u64::MAX, until },
        Record::Unstaged { id, keep: Some(oid(2)) },
        Record::TaskAdded { task: task.clone() },
        Record::TaskDone { task },
        Record::TaskAdded { task: CleanupTask::CreateView { repo: ALICE.repo("x") } },
    ]
}

#[test]
fn what_is_written_is_what_is_read() {
    for record in records() {
        let line = record.encode().unwrap();
        assert_eq!(Record::decode(&line).unwrap(), record, "{line}");
    }
}

#[test]
fn an_event_is_kept_to_the_letter() {
    let record = held(1);
    let Record::Held { event, .. } = Record::decode(&record.encode().unwrap()).unwrap() else {
        panic!()
    };
    assert!(event.verify().is_ok());
}

#[test]
fn names_on_disk_stay_as_they_were() {
    let written: Vec<_> = records().iter().map(|record| record.encode().unwrap()).collect();
    for (line, name) in [
        (1, r#"{"moved":{"id""#),
        (1, r#""phase":"shelved""#),
        (2, r#""why":"served""#),
        (5, r#"{"owed":{"chore":{"clear_proposal""#),
        (6, r#"{"settled":{"chore":"#),
    ] {
        assert!(written[line].contains(name), "{name} in {}", written[line]);
    }
}

#[test]
fn a_record_from_the_future_is_refused_by_name() {
    let line = r#"{"v":2,"record":{"something_new":{}}}"#;
    assert!(matches!(Record::decode(line), Err(RecordError::Newer(2))));
    assert!(matches!(Record::decode("{}"), Err(RecordError::Malformed(_))));
    let cut = held(1).encode().unwrap();
    assert!(matches!(Record::decode(&cut[..cut.len() / 2]), Err(RecordError::Malformed(_))));
}

#[cfg(feature = "driver")]
mod on_disk {
    use std::path::Path;

    use grasp_purgatory::journal::{Journal, JournalError};

    use super::*;

    fn reopen(path: &Path) -> Vec<Record> {
        Journal::open(path).unwrap().1
    }

    #[test]
    fn what_was_appended_is_read_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, found) = Journal::open(&path).unwrap();
        assert!(found.is_empty());
        let all = records();
        journal.append(&all[..3]).unwrap();
        journal.append(&all[3..]).unwrap();
        drop(journal);
        assert_eq!(reopen(&path), all);
    }

    #[test]
    fn a_snapshot_takes_the_place_of_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let (seven, eight) = (held(7), held(8));
        journal.append(&records()).unwrap();
        journal.compact(std::slice::from_ref(&seven)).unwrap();
        journal.append(std::slice::from_ref(&eight)).unwrap();
        drop(journal);
        assert_eq!(reopen(&path), [seven, eight]);
    }

    #[test]
    fn a_journal_is_long_only_when_shortening_it_pays_and_then_the_file_shrinks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let batch = vec![held(1); 100];
        while !journal.is_long() {
            journal.append(&batch).unwrap();
        }
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        journal.compact(&[held(1)]).unwrap();
        assert!(!journal.is_long());
        assert!(size(&path) < 100_000, "{} bytes", size(&path));
        // What is all needed is not written again and again.
        let needed = vec![held(1); 18_000];
        journal.compact(&needed).unwrap();
        journal.append(&needed).unwrap();
        assert!(!journal.is_long());
    }

    /// Copies a journal as a power cut would leave it: with its log cut off somewhere.
    fn torn(path: &Path, log_bytes: usize, to: &Path) {
        let log = |path: &Path| {
            path.with_file_name(format!("{}-wal", path.file_name().unwrap().to_str().unwrap()))
        };
        std::fs::copy(path, to).unwrap();
        let bytes = std::fs::read(log(path)).unwrap();
        std::fs::write(log(to), &bytes[..log_bytes.min(bytes.len())]).unwrap();
    }

    #[test]
    fn a_batch_is_there_whole_or_not_at_all_wherever_the_power_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let log = dir.path().join("journal-wal");
        let mut ends = Vec::new();
        for n in 1..=6 {
            journal.append(&[held(n), held(n + 100)]).unwrap();
            ends.push(std::fs::metadata(&log).unwrap().len() as usize);
        }
        let longest = *ends.last().unwrap();
        for cut in (0..=longest).step_by(509).chain(ends.iter().copied()) {
            let copy = dir.path().join("torn");
            torn(&path, cut, &copy);
            let found = match Journal::open(&copy) {
                Ok((_, found)) => found,
                Err(error) => panic!("cut at {cut}: {error:?}"),
            };
            let whole = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(found.len(), whole * 2, "cut at {cut} of {longest}");
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other");
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch("CREATE TABLE theirs (x)").unwrap();
        drop(other);
        assert!(matches!(Journal::open(&path), Err(JournalError::NotOurs)));
    }

    #[test]
    fn two_processes_cannot_write_one_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (_first, _) = Journal::open(&path).unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::Database(_))));
    }

    #[test]
    fn a_damaged_record_is_named_and_not_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.append(&records()).unwrap();
        drop(journal);
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.execute("UPDATE record SET line = '{' WHERE number = 3", []).unwrap();
        drop(conn);
        let Err(JournalError::Record { number, .. }) = Journal::open(&path) else { panic!() };
        assert_eq!(number, 3);
    }
}
