//! Damaged events are found and dropped, in every database.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_relay::store::EventStore;
use grasp_relay::store::check::{DropEvents as _, EventFault, EventTable, StoredEvents as _};
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::{Event, EventBuilder, EventId, FinalizeEvent as _, Kind, Tag};
use nostr::filter::Filter;
use nostr::key::Keys;

use crate::store_contract::block_on;
use crate::store_events::*;

/// Returns three notes and two versions of an announcement, the older one first, signed by a real key.
fn signed_events() -> Vec<Arc<Event>> {
    let keys = Keys::generate();
    let note = |n: u64| {
        EventBuilder::new(Kind::from_u16(1), "text")
            .custom_created_at(time(n))
            .tag(Tag::hashtag("x"))
    };
    let version = |at: u64| {
        let clone = Tag::parse(["clone", "https://us.example/moved.git"]).unwrap();
        EventBuilder::new(Kind::from_u16(30_617), "")
            .custom_created_at(time(at))
            .tags([Tag::identifier("x"), clone])
    };
    let drafts = [note(1), note(2), note(3), version(1), version(2)];
    let sign = |draft: EventBuilder| Arc::new(draft.finalize(&keys).unwrap());
    drafts.map(sign).into()
}

/// Statements that change the text of a note, cut that of another, and change a replaced version.
fn damage(events: &[Arc<Event>], literal: impl Fn(EventId) -> String) -> [String; 3] {
    [
        format!(
            "UPDATE events SET json = replace(json, 'text', 'tuxt') WHERE id = {}",
            literal(events[0].id)
        ),
        format!(
            "UPDATE events SET json = '{{' WHERE id = {}",
            literal(events[1].id)
        ),
        format!(
            "UPDATE superseded SET json = replace(json, 'moved', 'lost') WHERE id = {}",
            literal(events[3].id)
        ),
    ]
}

/// Finds and drops the damaged events of an open store.
macro_rules! find_and_drop {
    ($store:expr, $events:expr) => {{
        let (store, events) = ($store, $events);
        let mut found: BTreeMap<EventTable, BTreeMap<EventId, EventFault>> = BTreeMap::new();
        for table in EventTable::ALL {
            for row in store.events_after(table, None).await.unwrap() {
                if let Some(fault) = row.fault() {
                    found.entry(table).or_default().insert(row.id, fault);
                }
            }
        }
        let served = [
            (events[0].id, EventFault::Forged),
            (events[1].id, EventFault::Unreadable),
        ];
        let replaced = [(events[3].id, EventFault::Forged)];
        let expected = [
            (EventTable::Served, BTreeMap::from(served)),
            (EventTable::Replaced, BTreeMap::from(replaced)),
        ];
        assert_eq!(found, BTreeMap::from(expected));
        for (table, faults) in found {
            let ids = faults.into_keys().collect();
            store.drop_events(table, ids).await.unwrap();
        }
        let replaced = store
            .events_after(EventTable::Replaced, None)
            .await
            .unwrap();
        assert!(replaced.is_empty(), "{replaced:?}");
        let left = find(store, Filter::new()).await;
        assert_eq!(left, [events[2].id, events[4].id]);
        assert_eq!(
            find(store, Filter::new().hashtag("x")).await,
            [events[2].id]
        );
        // Nothing is remembered about them.
        stored(store, &events[0]).await;
        stored(store, &events[1]).await;
        let mut after = None;
        let mut in_order = Vec::new();
        loop {
            let rows = store.events_after(EventTable::Served, after).await.unwrap();
            let Some(last) = rows.last() else { break };
            after = Some(last.id);
            in_order.extend(rows.into_iter().map(|row| row.id));
        }
        let mut expected: Vec<_> = [0, 1, 2, 4].map(|n: usize| events[n].id).into();
        expected.sort();
        assert_eq!(in_order, expected);
    }};
}

#[test]
fn sqlite_finds_and_drops_damaged_events() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let events = signed_events();
    block_on(async {
        store.save(events.clone(), time(NOW)).await.unwrap();
        let conn = rusqlite::Connection::open(&path).unwrap();
        for statement in damage(&events, |id| format!("x'{id}'")) {
            assert_eq!(conn.execute(&statement, []).unwrap(), 1, "{statement}");
        }
        drop(conn);
        find_and_drop!(&store, &events);
        assert_eq!(store.integrity_check().await.unwrap(), [""; 0]);
    });
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_finds_and_drops_damaged_events() {
    let Some(server) = crate::support::postgres::Postgres::shared() else {
        return;
    };
    let url = server.database();
    let events = signed_events();
    block_on(async {
        let store = crate::store_postgres::open(&url).await;
        store.save(events.clone(), time(NOW)).await.unwrap();
        for statement in damage(&events, |id| format!("'\\x{id}'")) {
            server.sql(&url, &statement);
        }
        find_and_drop!(&store, &events);
    });
}
