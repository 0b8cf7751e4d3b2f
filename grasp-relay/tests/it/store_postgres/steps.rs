//! Operations in several steps, pages or chunks.

use std::sync::Arc;

use futures_util::StreamExt as _;
use grasp_core::admission::{Outcome, Rejection};
use grasp_core::nip34::References;
use grasp_relay::store::EventStore;
use grasp_relay::store::postgres::PostgresStore;
use nostr::event::{Event, Kind};
use nostr::filter::Filter;

use super::{claim, expire_lease, on_postgres, open, reader};
use crate::store_contract::block_on;
use crate::store_events::*;
use crate::support::postgres::Postgres;

async fn all_stored(store: &PostgresStore, events: Vec<Arc<Event>>) {
    let count = events.len();
    assert_eq!(
        store.save(events, time(NOW)).await.unwrap(),
        vec![Outcome::Stored; count]
    );
}

fn notes(count: u64) -> Vec<Arc<Event>> {
    (0..count)
        .map(|n| ALICE.writes(1).at(n + 1).id(n).tag("t", n % 50).done())
        .collect()
}

#[test]
fn a_large_deletion_is_completed_in_steps() {
    let tagged = |n: u64| {
        let note = ALICE.writes(1).id(1_000 + n);
        (0..50)
            .fold(note, |note, tag| note.tag("t", format!("{n} {tag}")))
            .done()
    };
    on_postgres(|store| {
        Box::pin(async move {
            let notes: Vec<_> = (0..1_300).map(tagged).collect();
            all_stored(store, notes.clone()).await;
            let of_alice = || Filter::new().author(ALICE.key()).kind(Kind::TextNote);
            let named = notes.iter().take(500);
            let deletion = named.fold(ALICE.writes(5), |request, note| request.tag("e", note.id));
            stored(store, &deletion.done()).await;
            assert_eq!(store.count(vec![of_alice()], time(NOW)).await.unwrap(), 800);
            assert_eq!(save(store, &notes[499]).await, Rejection::Deleted.into());
            let vanish = ALICE.writes(62).tag("relay", "ALL_RELAYS").done();
            stored(store, &vanish).await;
            assert_eq!(find(store, of_alice()).await, []);
            assert_eq!(save(store, &notes[0]).await, Rejection::Vanished.into());
        })
    });
}

#[test]
fn a_request_that_was_interrupted_is_carried_out_by_the_next_writer() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    let vanish = ALICE.writes(62).tag("relay", "wss://us.example").done();
    block_on(async {
        // The request does not apply to a store without a service identity.
        let nameless = PostgresStore::connect(&url, Default::default())
            .await
            .unwrap();
        let _ = claim(&nameless, "a").await;
        all_stored(&nameless, notes(700)).await;
        stored(&nameless, &vanish).await;
        assert_eq!(find(&nameless, Filter::new().hashtag("7")).await.len(), 14);
        let unfinished = [vanish.id, id(7_777)]
            .map(|id| format!("('\\x{id}')"))
            .join(", ");
        server.sql(&url, &format!("INSERT INTO unfinished VALUES {unfinished}"));
        expire_lease(server, &url);
        let next = open(&url).await;
        assert_eq!(find(&next, Filter::new()).await, [vanish.id]);
        assert_eq!(server.sql(&url, "SELECT count(*) FROM unfinished"), "0");
    });
}

#[test]
fn many_expired_events_are_not_served_before_they_are_swept() {
    let ending = |n: u64| ALICE.writes(1).id(1_000 + n).tag("expiration", NOW).done();
    on_postgres(|store| {
        Box::pin(async move {
            let version = |at| ALICE.writes(30_617).at(at).tag("d", "x");
            let mut notes: Vec<_> = (0..1_400).map(ending).collect();
            notes.push(version(20).tag("expiration", NOW).done());
            let saved = store.save(notes, time(NOW - 1)).await.unwrap();
            assert_eq!(saved, vec![Outcome::Stored; 1_401]);
            let (new, older) = (BOB.writes(1).id(1).done(), version(10).done());
            stored(store, &new).await;
            stored(store, &older).await;
            let mut served = find(store, Filter::new()).await;
            served.sort();
            let mut expected = vec![new.id, older.id];
            expected.sort();
            assert_eq!(served, expected);
            let of_alice = Filter::new().author(ALICE.key());
            assert_eq!(store.count(vec![of_alice], time(NOW)).await.unwrap(), 1);
            // Each of the two saves removed some.
            assert_eq!(
                store.sweep(time(NOW)).await.unwrap().events,
                1_400 - 2 * 500
            );
        })
    });
}

#[test]
fn many_values_over_several_pages_give_each_event_once_in_order() {
    let tagged = |n: u64| {
        let note = ALICE.writes(1).at(n % 700 + 1).id(n);
        note.tag("t", n % 97)
            .tag("t", n % 89)
            .tag("r", n % 2)
            .done()
    };
    on_postgres(|store| {
        Box::pin(async move {
            let notes: Vec<_> = (0..3_000).map(tagged).collect();
            all_stored(store, notes.clone()).await;
            let wide = || Filter::new().hashtags((0..5_000).map(|n| n.to_string()));
            let mut expected = notes;
            expected.sort_by_key(|note| (std::cmp::Reverse(note.created_at), note.id));
            let all: Vec<_> = expected.iter().map(|note| note.id).collect();
            assert_eq!(find(store, wide()).await, all);
            assert_eq!(find(store, wide().limit(1_234)).await, all[..1_234]);
            let has_one =
                |note: &&Arc<Event>| note.tags.iter().any(|tag| tag.as_slice() == ["r", "1"]);
            let odd: Vec<_> = expected
                .iter()
                .filter(has_one)
                .map(|note| note.id)
                .collect();
            assert_eq!(find(store, wide().reference("1")).await, odd);
            assert_eq!(store.count(vec![wide()], time(NOW)).await.unwrap(), 3_000);
            let ids = Filter::new().ids((0..4_000).map(id));
            assert_eq!(find(store, ids.clone()).await, all);
            assert_eq!(
                find(store, ids.limit(1_100).until(time(600))).await.len(),
                1_100
            );
        })
    });
}

#[test]
fn chunks_of_long_events_are_bounded_in_bytes() {
    on_postgres(|store| {
        Box::pin(async move {
            let long = |n: u64| {
                let text = format!("{n}").repeat(300_000);
                BOB.writes(1)
                    .at(n)
                    .id(n)
                    .tag("t", "x")
                    .raw_tag(&["long", &text])
                    .done()
            };
            all_stored(store, (1..10).map(long).collect()).await;
            let newest: Vec<_> = (1..10).rev().map(id).collect();
            for filter in [
                Filter::new(),
                Filter::new().hashtag("x"),
                Filter::new().ids((0..10).map(id)),
                Filter::new().ids((0..2_000).map(id)),
                Filter::new()
                    .hashtag("x")
                    .author(BOB.key())
                    .kind(Kind::TextNote),
            ] {
                let (mut found, mut chunks) = (Vec::new(), 0);
                let mut answer = store.query(vec![filter], time(NOW));
                while let Some(chunk) = answer.next().await {
                    let chunk = chunk.unwrap();
                    assert!(chunk.len() <= 4);
                    found.extend(chunk.iter().map(|event| event.id));
                    chunks += 1;
                }
                assert!(found == newest && chunks > 1);
            }
        })
    });
}

#[test]
fn a_filter_uses_its_most_selective_index() {
    let note = |n: u64| {
        let note = if n.is_multiple_of(500) {
            BOB.writes(7)
        } else {
            ALICE.writes(1)
        };
        note.at(n + 1)
            .id(n)
            .tag("t", "common")
            .tag("r", n % 300)
            .done()
    };
    on_postgres(|store| {
        Box::pin(async move {
            all_stored(store, (0..3_000).map(note).collect()).await;
            let common = || Filter::new().hashtag("common");
            let rare: Vec<_> = (0..3_000).rev().filter(|n| n % 500 == 0).map(id).collect();
            assert_eq!(find(store, common().kind(Kind::from_u16(7))).await, rare);
            assert_eq!(find(store, common().author(BOB.key())).await, rare);
            assert_eq!(find(store, common().reference("150")).await.len(), 10);
            let questions = vec![
                vec![common().author(BOB.key()).reference("1")],
                vec![common().author(BOB.key()).reference("200")],
                vec![],
                vec![Filter::new().id(id(9_999)), Filter::new().id(id(1))],
            ];
            assert_eq!(
                store.exists(questions, time(NOW)).await.unwrap(),
                [false, true, false, true]
            );
        })
    });
}

#[test]
fn events_removed_while_an_answer_is_read_are_not_delivered() {
    on_postgres(|store| {
        Box::pin(async move {
            all_stored(store, notes(1_500)).await;
            let mut answer = store.query(vec![Filter::new()], time(NOW));
            let first = answer.next().await.unwrap().unwrap();
            assert_eq!(store.remove((0..500).map(id).collect()).await.unwrap(), 500);
            let mut delivered = first.len();
            while let Some(chunk) = answer.next().await {
                delivered += chunk.unwrap().len();
            }
            assert_eq!(delivered, 1_000);
        })
    });
}

#[test]
fn abandoned_answers_hold_no_connection() {
    let Some(server) = Postgres::shared() else {
        return;
    };
    let url = server.database();
    block_on(async {
        let writer = open(&url).await;
        all_stored(&writer, notes(1_500)).await;
        let store = reader(&url).await;
        let mut begun = Vec::new();
        for _ in 0..100 {
            let mut answer = store.query(vec![Filter::new()], time(NOW));
            assert!(answer.next().await.unwrap().is_ok());
            begun.push(answer);
        }
        assert_eq!(find(&store, Filter::new().id(id(7))).await, [id(7)]);
        let ids = (0..20_000).map(|n| id(1_000_000 + n)).collect();
        let named = References {
            ids,
            coordinates: Default::default(),
        };
        assert!(
            store
                .present(named, time(NOW))
                .await
                .unwrap()
                .ids
                .is_empty()
        );
    });
}
