//! Tests of the SQLite store beyond the contract of all stores.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use futures_util::StreamExt;
use grasp_core::admission::{Outcome, Presence, Rejection};
use grasp_core::nip34::References;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_relay::store::{EventStore, StoreError};
use nostr::event::{Event, Kind};
use nostr::filter::Filter;

use crate::store_contract::block_on;
use crate::store_events::*;

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, SqliteOptions::default()).unwrap()
}

fn notes(count: u64) -> Vec<Arc<Event>> {
    (0..count)
        .map(|n| ALICE.writes(1).at(n + 1).id(n).tag("t", n % 50).done())
        .collect()
}

#[test]
fn stored_and_deleted_events_are_known_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let (kept, deleted) = (ALICE.writes(1).id(1).done(), ALICE.writes(1).id(2).done());
    block_on(async {
        let store = open(&path);
        stored(&store, &kept).await;
        stored(&store, &deleted).await;
        stored(&store, &ALICE.writes(5).tag("e", deleted.id).done()).await;
        store.close().await.unwrap();
    });
    block_on(async {
        let store = open(&path);
        assert_eq!(
            save(&store, &kept).await,
            Outcome::Duplicate(Presence::Stored)
        );
        assert_eq!(save(&store, &deleted).await, Rejection::Deleted.into());
        assert_eq!(find(&store, Filter::new().hashtag("x")).await, []);
    });
}

#[test]
fn a_closed_store_leaves_one_file() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let store = open(&dir.path().join("events.db"));
        let saved = store.save(notes(100), time(NOW)).await.unwrap();
        assert!(saved.iter().all(|saved| *saved == Outcome::Stored));
        store.close().await.unwrap();
    });
    let files = std::fs::read_dir(dir.path()).unwrap();
    let names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, ["events.db"]);
}

#[test]
fn a_file_of_a_newer_release_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    block_on(open(&path).close()).unwrap();
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    let refused = SqliteStore::open(&path, SqliteOptions::default());
    assert!(matches!(
        refused,
        Err(StoreError::NewerSchema { found: 99, .. })
    ));
}

#[test]
fn abandoned_answers_hold_no_reader() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        readers: NonZeroUsize::MIN,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&dir.path().join("events.db"), options).unwrap();
    block_on(async {
        assert_eq!(
            store.save(notes(3_000), time(NOW)).await.unwrap().len(),
            3_000
        );
        // Each has begun and has more to come; there is only one reader for all.
        let mut begun = Vec::new();
        for _ in 0..100 {
            let mut answer = store.query(vec![Filter::new()], time(NOW));
            assert!(answer.next().await.unwrap().is_ok());
            begun.push(answer);
        }
        assert_eq!(find(&store, Filter::new().id(id(7))).await, [id(7)]);
        drop(begun);
        assert_eq!(find(&store, Filter::new().hashtag("7")).await.len(), 60);
    });
}

/// Starts a large query and then one for a single event, and returns which is answered first.
async fn answered_first<T>(store: &SqliteStore, much: impl Future<Output = T>) -> &'static str {
    let little = find(store, Filter::new().id(id(7)));
    tokio::pin!(much, little);
    tokio::select! {
        biased;
        _ = &mut much => "much",
        found = &mut little => {
            assert_eq!(found, [id(7)]);
            "little"
        }
    }
}

#[test]
fn a_query_for_one_event_does_not_wait_for_large_ones() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        readers: NonZeroUsize::MIN,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&dir.path().join("events.db"), options).unwrap();
    block_on(async {
        assert_eq!(store.save(notes(100), time(NOW)).await.unwrap().len(), 100);
        let missing = |n: u64| id(1_000 + n);
        let questions = (0..10_000)
            .map(|n| vec![Filter::new().id(missing(n))])
            .collect();
        assert_eq!(
            answered_first(&store, store.exists(questions, time(NOW))).await,
            "little"
        );
        // A hundred thousand values in one REQ.
        let values = |n: u64| (0..10_000).map(move |m| format!("{n} {m}"));
        let wide: Vec<_> = (0..10).map(|n| Filter::new().hashtags(values(n))).collect();
        let much = async { store.query(wide, time(NOW)).next().await };
        assert_eq!(answered_first(&store, much).await, "little");
        let ids: Vec<_> = (0..10)
            .map(|n| Filter::new().ids((0..10_000).map(|m| missing(n * 10_000 + m))))
            .collect();
        let much = async { store.query(ids, time(NOW)).next().await };
        assert_eq!(answered_first(&store, much).await, "little");
        let named = References {
            ids: (0..20_000).map(missing).collect(),
            coordinates: Default::default(),
        };
        assert_eq!(
            answered_first(&store, store.present(named, time(NOW))).await,
            "little"
        );
    });
}

/// Asserts that the sets that the store keeps are those that it would read.
async fn sets_are_current(store: &SqliteStore, now: u64) {
    for filter in [Filter::new(), Filter::new().kind(Kind::from(1))] {
        let kept = store
            .item_set(filter.clone(), time(now), usize::MAX)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(*kept, inventory_at(store, filter, now).await);
    }
}

#[test]
fn kept_sets_follow_every_change() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("events.db"));
    block_on(async {
        store.save(notes(600), time(NOW)).await.unwrap();
        sets_are_current(&store, NOW).await;
        let set = async |max| store.item_set(Filter::new(), time(NOW), max).await.unwrap();
        let kept = set(600).await.unwrap();
        assert!(Arc::ptr_eq(&kept, &set(600).await.unwrap()), "read again");
        assert_eq!(set(599).await, None);
        stored(&store, &BOB.writes(1).at(300).id(700).done()).await;
        stored(&store, &BOB.writes(7).at(3).id(701).done()).await;
        sets_are_current(&store, NOW).await;
        assert_eq!(set(602).await.unwrap().len(), 602);
        stored(&store, &ALICE.writes(5).tag("e", id(5)).id(702).done()).await;
        sets_are_current(&store, NOW).await;
        let replaced = ALICE.writes(0).at(10).id(703).done();
        stored(&store, &replaced).await;
        sets_are_current(&store, NOW).await;
        stored(&store, &ALICE.writes(0).at(11).id(704).done()).await;
        sets_are_current(&store, NOW).await;
        assert_eq!(store.remove(vec![id(20), id(21)]).await.unwrap(), 2);
        sets_are_current(&store, NOW).await;
        let ending = BOB.writes(1).id(705).tag("expiration", NOW + 60).done();
        stored(&store, &ending).await;
        sets_are_current(&store, NOW).await;
        sets_are_current(&store, NOW + 59).await;
        sets_are_current(&store, NOW + 60).await;
        assert_eq!(store.sweep(time(NOW + 60)).await.unwrap().events, 1);
        sets_are_current(&store, NOW + 60).await;
        // More than are noted.
        let many: Vec<_> = (0..11_000)
            .map(|n| BOB.writes(1).at(n + 1).id(1_000 + n).done())
            .collect();
        store.save(many, time(NOW)).await.unwrap();
        sets_are_current(&store, NOW + 60).await;
        sets_are_current(&store, NOW).await;
    });
}

#[test]
fn an_event_does_not_wait_for_others_with_many_tags() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("events.db"));
    let tagged = |n: u64| {
        let note = ALICE.writes(1).id(1_000 + n);
        (0..2_000)
            .fold(note, |note, tag| note.tag("t", format!("{n} {tag}")))
            .done()
    };
    block_on(async {
        let long: Vec<_> = (0..40).map(tagged).collect();
        let (much, little) = (store.save(long, time(NOW)), store.save(notes(1), time(NOW)));
        tokio::pin!(much, little);
        tokio::select! {
            biased;
            _ = &mut much => panic!("the large batch was stored first"),
            saved = &mut little => assert_eq!(saved.unwrap(), [Outcome::Stored]),
        }
        assert_eq!(much.await.unwrap(), vec![Outcome::Stored; 40]);
    });
}

/// Saves a large batch and then one event, and asserts that the one is stored first.
async fn saved_before_batch(store: &SqliteStore, much: Vec<Arc<Event>>, one: Arc<Event>) {
    let count = much.len();
    let (much, little) = (
        store.save(much, time(NOW)),
        store.save(vec![one], time(NOW)),
    );
    tokio::pin!(much, little);
    tokio::select! {
        biased;
        _ = &mut much => panic!("the large batch was stored first"),
        saved = &mut little => assert_eq!(saved.unwrap(), [Outcome::Stored]),
    }
    assert_eq!(much.await.unwrap(), vec![Outcome::Stored; count]);
}

#[test]
fn a_large_deletion_is_completed_in_steps() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("events.db"));
    let tagged = |n: u64| {
        let note = ALICE.writes(1).id(1_000 + n);
        (0..50)
            .fold(note, |note, tag| note.tag("t", format!("{n} {tag}")))
            .done()
    };
    let of_alice = || {
        Filter::new()
            .author(ALICE.key())
            .kind(nostr::event::Kind::TextNote)
    };
    block_on(async {
        let notes: Vec<_> = (0..1_900).map(tagged).collect();
        assert_eq!(
            store.save(notes.clone(), time(NOW)).await.unwrap().len(),
            1_900
        );
        let named = notes.iter().take(900);
        let deletion = named.fold(ALICE.writes(5), |request, note| request.tag("e", note.id));
        saved_before_batch(&store, vec![deletion.done()], BOB.writes(1).id(1).done()).await;
        assert_eq!(find(&store, of_alice()).await.len(), 1_000);
        assert_eq!(save(&store, &notes[899]).await, Rejection::Deleted.into());
        let vanish = ALICE.writes(62).tag("relay", "ALL_RELAYS").done();
        saved_before_batch(&store, vec![vanish], BOB.writes(1).id(2).done()).await;
        assert_eq!(find(&store, of_alice()).await, []);
        assert_eq!(save(&store, &notes[0]).await, Rejection::Vanished.into());
        assert_eq!(store.integrity_check().await.unwrap(), [""; 0]);
    });
}

#[test]
fn a_request_that_was_interrupted_is_carried_out_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let vanish = ALICE.writes(62).tag("relay", "wss://us.example").done();
    block_on(async {
        let store = open(&path);
        assert_eq!(store.save(notes(700), time(NOW)).await.unwrap().len(), 700);
        // The request does not apply to a store without a service identity.
        stored(&store, &vanish).await;
        assert_eq!(find(&store, Filter::new().hashtag("7")).await.len(), 14);
        store.close().await.unwrap();
    });
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute(
        "INSERT INTO unfinished (id) VALUES (?1)",
        [vanish.id.as_bytes()],
    )
    .unwrap();
    drop(conn);
    let options = || SqliteOptions {
        rules: crate::store_contract::rules(),
        ..SqliteOptions::default()
    };
    block_on(async {
        let store = SqliteStore::open(&path, options()).unwrap();
        assert_eq!(find(&store, Filter::new()).await, [vanish.id]);
        store.close().await.unwrap();
    });
    let conn = rusqlite::Connection::open(&path).unwrap();
    let left: i64 = conn
        .query_row("SELECT count(*) FROM unfinished", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0);
}

#[test]
fn many_expired_events_are_not_served_before_they_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("events.db"));
    let ending = |n: u64| ALICE.writes(1).id(1_000 + n).tag("expiration", NOW).done();
    let version = |at| ALICE.writes(30_617).at(at).tag("d", "x");
    block_on(async {
        let mut notes: Vec<_> = (0..1_400).map(ending).collect();
        notes.push(version(20).tag("expiration", NOW).done());
        let saved = store.save(notes, time(NOW - 1)).await.unwrap();
        assert_eq!(saved, vec![Outcome::Stored; 1_401]);
        let (new, older) = (BOB.writes(1).id(1).done(), version(10).done());
        stored(&store, &new).await;
        stored(&store, &older).await;
        let mut served = find(&store, Filter::new()).await;
        served.sort();
        let mut expected = vec![new.id, older.id];
        expected.sort();
        assert_eq!(served, expected);
        assert_eq!(
            store
                .count(vec![Filter::new().author(ALICE.key())], time(NOW))
                .await
                .unwrap(),
            1
        );
        // Each of the two saves removed some.
        assert_eq!(
            store.sweep(time(NOW)).await.unwrap().events,
            1_400 - 2 * 500
        );
        assert_eq!(store.integrity_check().await.unwrap(), [""; 0]);
    });
}

#[test]
fn many_values_over_several_pages_give_each_event_once_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("events.db"));
    block_on(async {
        let tagged = |n: u64| {
            let note = ALICE.writes(1).at(n % 700 + 1).id(n);
            note.tag("t", n % 97)
                .tag("t", n % 89)
                .tag("r", n % 2)
                .done()
        };
        let notes: Vec<_> = (0..3_000).map(tagged).collect();
        assert_eq!(
            store.save(notes.clone(), time(NOW)).await.unwrap().len(),
            3_000
        );
        let wide = || Filter::new().hashtags((0..5_000).map(|n| n.to_string()));
        let mut expected = notes;
        expected.sort_by_key(|note| (std::cmp::Reverse(note.created_at), note.id));
        let all: Vec<_> = expected.iter().map(|note| note.id).collect();
        assert_eq!(find(&store, wide()).await, all);
        assert_eq!(find(&store, wide().limit(1_234)).await, all[..1_234]);
        let has_one = |note: &&Arc<Event>| note.tags.iter().any(|tag| tag.as_slice() == ["r", "1"]);
        let odd: Vec<_> = expected
            .iter()
            .filter(has_one)
            .map(|note| note.id)
            .collect();
        assert_eq!(find(&store, wide().reference("1")).await, odd);
        assert_eq!(store.count(vec![wide()], time(NOW)).await.unwrap(), 3_000);
    });
}

#[test]
fn events_removed_while_an_answer_is_read_are_not_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("events.db"));
    block_on(async {
        // The oldest are written last, so that their rows are the first to be used again.
        let notes: Vec<_> = notes(1_500).into_iter().rev().collect();
        assert_eq!(store.save(notes, time(NOW)).await.unwrap().len(), 1_500);
        let mut answer = store.query(vec![Filter::new()], time(NOW));
        let first = answer.next().await.unwrap().unwrap();
        assert_eq!(store.remove((0..500).map(id).collect()).await.unwrap(), 500);
        // Their rows are reused by other events, which must not be delivered.
        let later: Vec<_> = (0..500).map(|n| BOB.writes(1).at(NOW - n).done()).collect();
        assert_eq!(store.save(later, time(NOW)).await.unwrap().len(), 500);
        let mut delivered = first.len();
        while let Some(chunk) = answer.next().await {
            delivered += chunk.unwrap().len();
        }
        assert_eq!(delivered, 1_000);
    });
}

#[test]
fn saved_events_are_visible_at_once_and_readers_are_not_blocked() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&dir.path().join("events.db")));
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async {
        let writers = (0..8u64).map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in 0..40 {
                    let event = ALICE.writes(1).id(writer * 1_000 + n).done();
                    stored(store.as_ref(), &event).await;
                    assert!(serves(store.as_ref(), &event).await);
                }
            })
        });
        for writer in futures_util::future::join_all(writers.collect::<Vec<_>>()).await {
            writer.unwrap();
        }
        assert_eq!(find(store.as_ref(), Filter::new()).await.len(), 320);
    });
}

#[test]
fn the_integrity_check_finds_index_rows_without_events() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let store = open(&path);
    block_on(async {
        stored(&store, &ALICE.writes(1).tag("t", "x").done()).await;
        assert_eq!(store.integrity_check().await.unwrap(), [""; 0]);
        let conn = rusqlite::Connection::open(&path).unwrap();
        conn.execute("DELETE FROM events", []).unwrap();
        let damage = store.integrity_check().await.unwrap();
        assert_eq!(damage.len(), 1);
    });
}
