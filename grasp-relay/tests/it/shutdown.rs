//! Shutdown: no new connections, open requests are finished, clients get a close frame.

use std::time::Duration;

use grasp_relay::nostr::Limits;
use nostr::types::Timestamp;
use serde_json::json;

use crate::support::{Client, CloseReason, Relay, note};

fn shutdown_close() -> CloseReason {
    CloseReason {
        code: 1001,
        reason: "the relay is shutting down".into(),
    }
}

#[tokio::test]
async fn pending_events_are_answered_before_the_close_frame() {
    let mut relay = Relay::start().await;
    let mut client = relay.client().await;
    let mut idle = relay.client().await;
    relay.ingest.block();
    let event = note(1, "on its way");
    client
        .send(format!(r#"["EVENT",{}]"#, event.as_json()))
        .await;
    relay.ingest.batch_arrived().await;
    relay.stop();
    assert_eq!(idle.close_reason().await, Some(shutdown_close()));
    relay.ingest.unblock();
    assert_eq!(
        client.next().await,
        json!(["OK", event.id.to_hex(), true, ""])
    );
    assert_eq!(client.close_reason().await, Some(shutdown_close()));
    let address = relay.address;
    relay.ended().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn the_grace_period_ends_although_a_request_is_stuck() {
    let limits = Limits {
        grace: Duration::from_millis(100),
        ..Limits::default()
    };
    let mut relay = Relay::limited(limits).await;
    let mut client = relay.client().await;
    relay.ingest.block();
    client
        .send(format!(r#"["EVENT",{}]"#, note(1, "stuck").as_json()))
        .await;
    relay.ingest.batch_arrived().await;
    relay.stop();
    relay.ended().await;
    assert_eq!(client.close_reason().await, None);
}

#[tokio::test]
async fn an_event_of_a_client_that_disconnects_at_once_is_stored() {
    let relay = Relay::start().await;
    let mut watcher = relay.client().await;
    watcher.req("s", r#"{"kinds":[1]}"#).await;
    let mut sender = Client::connect(relay.address).await;
    let events: Vec<_> = (0..20)
        .map(|nth| note(1, &format!("{nth} {}", Timestamp::now())))
        .collect();
    for event in &events {
        sender
            .send(format!(r#"["EVENT",{}]"#, event.as_json()))
            .await;
    }
    drop(sender);
    for event in &events {
        assert_eq!(watcher.next().await[2]["id"], event.id.to_hex());
    }
}
