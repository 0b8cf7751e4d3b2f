//! NIP-01 and NIP-45 over the wire.

use std::sync::Arc;

use grasp_relay::nostr::Limits;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use serde_json::json;

use crate::support::{Relay, bulk, note, tagged};

fn event_message(event: &nostr::event::Event) -> String {
    format!(r#"["EVENT",{}]"#, event.as_json())
}

#[tokio::test]
async fn an_event_is_acknowledged_stored_and_found_again() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    let event = note(1, "hello");
    let id = event.id.to_hex();
    assert_eq!(
        client.ask(event_message(&event)).await,
        json!(["OK", id, true, ""])
    );
    assert_eq!(
        client.ask(event_message(&event)).await,
        json!(["OK", id, true, "duplicate: already have this event"])
    );
    client.send(r#"["REQ","s",{"kinds":[1]}]"#).await;
    let found = client.next().await;
    assert_eq!(found[0], "EVENT");
    assert_eq!(found[1], "s");
    assert_eq!(
        found[2],
        serde_json::from_str::<serde_json::Value>(&event.as_json()).expect("JSON")
    );
    assert_eq!(client.next().await, json!(["EOSE", "s", ["finish"]]));
}

#[tokio::test]
async fn an_empty_answer_ends_with_eose_too() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    assert_eq!(
        client.ask(r#"["REQ","s",{"kinds":[1],"limit":1}]"#).await,
        json!(["EOSE", "s", ["finish"]])
    );
}

#[tokio::test]
async fn live_events_follow_eose_on_every_matching_subscription() {
    let relay = Relay::start().await;
    let mut alice = relay.client().await;
    let mut bob = relay.client().await;
    assert!(
        alice
            .req("a", r#"{"kinds":[1]},{"kinds":[2]}"#)
            .await
            .is_empty()
    );
    assert!(alice.req("b", r##"{"#t":["x"]}"##).await.is_empty());
    assert!(
        alice
            .req("c", r#"{"kinds":[7],"limit":0}"#)
            .await
            .is_empty()
    );
    let event = tagged(2, "", &[["t", "x"]]);
    assert_eq!(bob.ask(event_message(&event)).await[2], true);
    let mut received = [alice.next().await[1].clone(), alice.next().await[1].clone()];
    received.sort_by_key(|id| id.to_string());
    assert_eq!(received, ["a", "b"]);
    // No other message was sent: the next one answers the next request.
    assert_eq!(
        alice.ask(r#"["COUNT","n",{}]"#).await,
        json!(["COUNT", "n", {"count": 1}])
    );
}

#[tokio::test]
async fn limit_zero_gives_no_history_but_live_events() {
    let relay = Relay::start().await;
    relay.accept(&note(1, "old")).await;
    let mut client = relay.client().await;
    assert!(
        client
            .req("s", r#"{"kinds":[1],"limit":0}"#)
            .await
            .is_empty()
    );
    let fresh = note(1, "new");
    relay.accept(&fresh).await;
    assert_eq!(client.next().await[2]["id"], fresh.id.to_hex());
}

#[tokio::test]
async fn a_closed_subscription_gets_no_events_and_a_replaced_one_uses_the_new_filter() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    client.req("s", r#"{"kinds":[1]}"#).await;
    client.req("s", r#"{"kinds":[2]}"#).await;
    client.req("gone", r#"{"kinds":[1]}"#).await;
    client.send(r#"["CLOSE","gone"]"#).await;
    // The answer shows that the CLOSE was handled.
    client.ask(r#"["COUNT","n",{}]"#).await;
    let (one, two) = (note(1, ""), note(2, ""));
    relay.accept(&one).await;
    relay.accept(&two).await;
    let received = client.next().await;
    assert_eq!(
        (&received[1], &received[2]["id"]),
        (&json!("s"), &json!(two.id.to_hex()))
    );
    assert_eq!(client.ask(r#"["COUNT","n",{}]"#).await[0], "COUNT");
}

#[tokio::test]
async fn a_refused_replacement_closes_the_old_subscription() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    client.req("s", r#"{"kinds":[1]}"#).await;
    let refusal = client.ask(r#"["REQ","s",{"kinds":"x"}]"#).await;
    assert_eq!((&refusal[0], &refusal[1]), (&json!("CLOSED"), &json!("s")));
    relay.accept(&note(1, "")).await;
    assert_eq!(client.ask(r#"["COUNT","n",{}]"#).await[0], "COUNT");
}

#[tokio::test]
async fn several_filters_give_each_event_once_newest_first() {
    let relay = Relay::start().await;
    let now = nostr::types::Timestamp::now().as_secs();
    let mut expected = Vec::new();
    for age in 0..120 {
        let when = nostr::types::Timestamp::from_secs(now - age);
        let event = crate::support::at(1, "", &[["t", "x"]], when);
        relay.accept(&event).await;
        expected.push(event.id.to_hex());
    }
    let mut client = relay.client().await;
    let found = client
        .req("s", r##"{"kinds":[1]},{"#t":["x"]},{"kinds":[5]}"##)
        .await;
    assert_eq!(found, expected);
}

#[tokio::test]
async fn history_and_live_events_have_no_gap_and_no_duplicate() {
    check_no_gap_and_no_duplicate(&Relay::start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_and_live_events_have_no_gap_and_no_duplicate_on_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("events.db");
    let store = SqliteStore::open(&file, SqliteOptions::default()).expect("a store");
    let relay = Relay::on(Arc::new(store), Limits::default(), |_| {}).await;
    check_no_gap_and_no_duplicate(&relay).await;
}

/// Publishes events from one client while others subscribe, and checks that each gets every event once.
async fn check_no_gap_and_no_duplicate(relay: &Relay) {
    const EVENTS: usize = 400;
    let mut writer = relay.client().await;
    let events: Vec<_> = (0..EVENTS).map(|nth| note(1, &nth.to_string())).collect();
    let mut readers = Vec::new();
    for (nth, event) in events.iter().enumerate() {
        writer.send(event_message(event)).await;
        if nth % 40 == 20 {
            let mut reader = relay.client().await;
            reader
                .send(r#"["REQ","s",{"kinds":[1],"limit":5000}]"#)
                .await;
            readers.push(reader);
        }
    }
    let mut wanted: Vec<_> = events.iter().map(|event| event.id.to_hex()).collect();
    wanted.sort();
    for mut reader in readers {
        let mut received = Vec::new();
        while received.len() < EVENTS {
            let message = reader.next().await;
            match message[0].as_str() {
                Some("EVENT") => {
                    received.push(message[2]["id"].as_str().expect("an id").to_owned())
                }
                Some("EOSE") => {}
                _ => panic!("unexpected {message}"),
            }
        }
        received.sort();
        assert_eq!(received, wanted);
        assert_eq!(
            reader.ask(r#"["COUNT","n",{}]"#).await[0],
            "COUNT",
            "an event was delivered twice"
        );
    }
}

#[tokio::test]
async fn a_burst_is_delivered_completely_and_in_order() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    client.req("s", r#"{"kinds":[1]}"#).await;
    let events: Vec<_> = (0..1_000).map(|nth| note(1, &nth.to_string())).collect();
    for event in &events {
        relay.accept(event).await;
    }
    for event in &events {
        assert_eq!(client.next().await[2]["id"], event.id.to_hex());
    }
}

#[tokio::test]
async fn eose_without_history_follows_every_event_that_was_published_before() {
    const COUNT: u32 = 4_000;
    let limits = Limits {
        live_queue_bytes: 256 * 1024 * 1024,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let mut client = relay.client().await;
    client.req("old", r#"{"kinds":[1],"limit":0}"#).await;
    // More than the buffers of the socket take: most of them wait for a client that does not read yet.
    for event in bulk(1, COUNT, 10_000) {
        relay.hub.publish(Arc::new(event)).await;
    }
    relay.hub.stats().await;
    client
        .send(r#"["REQ","new",{"kinds":[1],"limit":0}]"#)
        .await;
    let mut received = 0;
    loop {
        let message = client.next().await;
        if message[0] == "EOSE" {
            break;
        }
        assert_eq!(message[1], "old");
        received += 1;
    }
    // A client that ends the older subscription now has missed nothing.
    assert_eq!(received, COUNT);
}
