//! The end: nobody new, everybody finishes, everybody is told.

use std::time::Duration;

use grasp_relay::nostr::Limits;
use nostr::types::Timestamp;
use serde_json::json;

use crate::support::{Client, Farewell, Relay, note};

fn goodbye() -> Farewell {
    Farewell { code: 1001, reason: "the relay is shutting down".into() }
}

#[tokio::test]
async fn events_on_their_way_are_answered_before_the_goodbye() {
    let mut relay = Relay::start().await;
    let mut client = relay.client().await;
    let mut idle = relay.client().await;
    relay.endpoint.shut();
    let event = note(1, "on its way");
    client.send(format!(r#"["EVENT",{}]"#, event.as_json())).await;
    relay.endpoint.knocked().await;
    relay.stop();
    assert_eq!(idle.farewell().await, Some(goodbye()));
    relay.endpoint.open();
    assert_eq!(client.next().await, json!(["OK", event.id.to_hex(), true, ""]));
    assert_eq!(client.farewell().await, Some(goodbye()));
    let address = relay.address;
    relay.ended().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn the_grace_period_ends_even_if_something_does_not() {
    let limits = Limits { grace: Duration::from_millis(100), ..Limits::default() };
    let mut relay = Relay::limited(limits).await;
    let mut client = relay.client().await;
    relay.endpoint.shut();
    client.send(format!(r#"["EVENT",{}]"#, note(1, "stuck").as_json())).await;
    relay.endpoint.knocked().await;
    relay.stop();
    relay.ended().await;
    assert_eq!(client.farewell().await, None);
}

#[tokio::test]
async fn an_event_sent_by_somebody_who_left_at_once_is_still_taken() {
    let relay = Relay::start().await;
    let mut watcher = relay.client().await;
    watcher.req("s", r#"{"kinds":[1]}"#).await;
    let mut hasty = Client::connect(relay.address).await;
    let events: Vec<_> =
        (0..20).map(|nth| note(1, &format!("{nth} {}", Timestamp::now()))).collect();
    for event in &events {
        hasty.send(format!(r#"["EVENT",{}]"#, event.as_json())).await;
    }
    drop(hasty);
    for event in &events {
        assert_eq!(watcher.next().await[2]["id"], event.id.to_hex());
    }
}
