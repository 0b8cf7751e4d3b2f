//! Requests above a limit get the right answer and do not affect other clients.

use std::time::Duration;

use futures_util::StreamExt as _;
use grasp_relay::nostr::Limits;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{CloseReason, Relay, bulk, in_time, note};

#[tokio::test]
async fn a_slow_client_loses_its_subscription_and_others_lose_no_event() {
    const EVENTS: usize = 2_000;
    let limits = Limits {
        live_queue_events: 100,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let mut slow = relay.client().await;
    let mut quick = relay.client().await;
    slow.req("s", r#"{"kinds":[1],"limit":0}"#).await;
    quick.req("q", r#"{"kinds":[1],"limit":0}"#).await;
    let events = bulk(1, EVENTS as u32, 20_000);
    let ids: Vec<_> = events.iter().map(|event| event.id.to_hex()).collect();
    for event in &events {
        relay.accept(event).await;
        let received = quick.next().await;
        assert_eq!(received[2]["id"], event.id.to_hex());
    }
    // The slow one receives the first events without a gap, and then the reason for the end.
    let mut received = Vec::new();
    let reason = loop {
        let message = slow.next().await;
        match message[0].as_str() {
            Some("EVENT") => received.push(message[2]["id"].as_str().expect("an id").to_owned()),
            Some("CLOSED") => break message,
            _ => panic!("unexpected {message}"),
        }
    };
    assert!(
        received.len() < EVENTS && received[..] == ids[..received.len()],
        "{}",
        received.len()
    );
    assert_eq!(reason[1], "s");
    let why = reason[2].as_str().expect("a reason");
    assert!(
        why.starts_with("error: ") && why.contains("overflow"),
        "{why}"
    );
    // The connection itself works, and may subscribe again.
    assert_eq!(
        slow.req("again", r#"{"kinds":[1],"limit":3}"#).await.len(),
        3
    );
}

#[tokio::test]
async fn a_client_that_never_reads_is_disconnected() {
    let limits = Limits {
        write_timeout: Duration::from_millis(200),
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    for event in bulk(1, 100, 200_000) {
        relay.accept(&event).await;
    }
    let mut stuck = relay.client().await;
    stuck.send(r#"["REQ","s",{"kinds":[1]}]"#).await;
    let mut other = relay.client().await;
    assert_eq!(
        other.ask(r#"["COUNT","c",{}]"#).await,
        json!(["COUNT", "c", {"count": 100}])
    );
    // The relay closes the connection after what it had written.
    in_time(async { while relay.hub.stats().await.listeners > 0 {} }).await;
    let mut socket = stuck.into_inner();
    let mut frames = 0;
    while let Some(Ok(_)) = in_time(socket.next()).await {
        frames += 1;
    }
    assert!(
        frames < 100,
        "{frames} frames were written to a client that did not read"
    );
}

#[tokio::test]
async fn live_events_during_history_are_bounded() {
    let limits = Limits {
        live_queue_events: 5,
        max_limit: 10_000,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    for event in bulk(1, 1_000, 20_000) {
        relay.accept(&event).await;
    }
    let mut client = relay.client().await;
    client
        .send(r#"["REQ","s",{"kinds":[1,2],"limit":10000}]"#)
        .await;
    // The first event shows that history is being sent; it is far too long for the socket's buffers.
    assert_eq!(client.next().await[0], "EVENT");
    for nth in 0..50 {
        relay.accept(&note(2, &nth.to_string())).await;
    }
    let closed = loop {
        let message = client.next().await;
        match message[0].as_str() {
            Some("EVENT") => assert_eq!(message[2]["kind"], 1, "a gap before this one"),
            Some("CLOSED") => break message,
            _ => panic!("unexpected {message}"),
        }
    };
    assert!(
        closed[2]
            .as_str()
            .is_some_and(|why| why.contains("overflow")),
        "{closed}"
    );
}

#[tokio::test]
async fn pages_have_the_limits_of_the_nip11_document() {
    let limits = Limits {
        max_limit: 20,
        default_limit: 10,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    for nth in 0..30 {
        relay.accept(&note(1, &nth.to_string())).await;
    }
    let mut client = relay.client().await;
    assert_eq!(client.req("s", r#"{"kinds":[1]}"#).await.len(), 10);
    assert_eq!(
        client.req("s", r#"{"kinds":[1],"limit":15}"#).await.len(),
        15
    );
    assert_eq!(
        client.req("s", r#"{"kinds":[1],"limit":9999}"#).await.len(),
        20
    );
}

#[tokio::test]
async fn the_filters_of_all_connections_are_bounded_in_bytes() {
    let limits = Limits {
        total_subscription_bytes: 4 * 1_500,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let (mut alice, mut bob) = (relay.client().await, relay.client().await);
    alice.req("s", r#"{"kinds":[1,2,3]}"#).await;
    let full = bob.ask(r#"["REQ","s",{"kinds":[1,2,3]}]"#).await;
    assert_eq!(full[0], "CLOSED");
    assert!(
        full[2]
            .as_str()
            .is_some_and(|why| why.starts_with("rate-limited: ")),
        "{full}"
    );
    alice.send(r#"["CLOSE","s"]"#).await;
    alice.ask(r#"["COUNT","c",{}]"#).await;
    bob.req("s", r#"{"kinds":[1,2,3]}"#).await;
}

#[tokio::test]
async fn a_history_counts_as_bytes_of_its_subscription_until_it_is_forgotten() {
    let limits = Limits {
        total_subscription_bytes: 4 * 25_000,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    for nth in 0..400 {
        relay.accept(&note(1, &nth.to_string())).await;
    }
    let (mut alice, mut bob) = (relay.client().await, relay.client().await);
    for client in [&mut alice, &mut bob] {
        assert_eq!(client.req("s", r#"{"kinds":[1]}"#).await.len(), 400);
    }
    let mut carol = relay.client().await;
    carol.send(r#"["REQ","s",{"kinds":[1]}]"#).await;
    let mut last = carol.next().await;
    while last[0] == "EVENT" {
        last = carol.next().await;
    }
    assert_eq!(last[0], "CLOSED", "{last}");
    assert!(
        last[2]
            .as_str()
            .is_some_and(|why| why.starts_with("rate-limited: ")),
        "{last}"
    );
    // No live event comes.
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(carol.req("s", r#"{"kinds":[1]}"#).await.len(), 400);
}

#[tokio::test]
async fn the_event_rate_limit_is_shared_by_the_connections_of_an_address() {
    let limits = Limits {
        events_per_minute_per_ip: 3,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let mut answers = Vec::new();
    for nth in 0..4 {
        let mut client = relay.client().await;
        let event = note(1, &nth.to_string());
        answers.push(
            client
                .ask(format!(r#"["EVENT",{}]"#, event.as_json()))
                .await,
        );
        // A new connection does not reset the limit.
        drop(client);
    }
    for (nth, answer) in answers.iter().enumerate() {
        let (accepted, why) = (answer[2].as_bool().unwrap(), answer[3].as_str().unwrap());
        assert_eq!(accepted, nth < 3, "{answer}");
        assert!(
            accepted || why == "rate-limited: too many events from this address",
            "{answer}"
        );
    }
    // It may still read.
    assert_eq!(
        relay
            .client()
            .await
            .req("s", r#"{"kinds":[1]}"#)
            .await
            .len(),
        3
    );
}

#[tokio::test]
async fn an_idle_client_is_pinged_and_closed_if_it_does_not_answer() {
    let limits = Limits {
        ping_after: Duration::from_millis(50),
        idle_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let mut client = relay.client().await;
    assert!(matches!(client.frame().await, Message::Ping(_)));
    // Reading answered that ping; only a client that does not read is silent.
    assert!(matches!(client.frame().await, Message::Ping(_)));
    let mut silent = relay.client().await;
    silent.req("s", "{}").await;
    in_time(async { while relay.hub.stats().await.listeners > 0 {} }).await;
    let end = CloseReason {
        code: 1001,
        reason: "closed: idle for too long".into(),
    };
    assert_eq!(silent.close_reason().await, Some(end));
}

#[tokio::test]
async fn a_flood_of_messages_is_answered_with_errors_and_then_closed() {
    let limits = Limits {
        messages_per_minute: 50,
        ..Limits::default()
    };
    let relay = Relay::limited(limits).await;
    let mut client = relay.client().await;
    for nth in 0..100 {
        let answer = client.ask(r#"["COUNT","c",{}]"#).await;
        assert_eq!(answer[0], if nth < 50 { "COUNT" } else { "CLOSED" });
    }
    client.send(r#"["COUNT","c",{}]"#).await;
    let end = CloseReason {
        code: 1008,
        reason: "rate-limited: too many messages".into(),
    };
    assert_eq!(client.close_reason().await, Some(end));
}

#[tokio::test]
async fn the_subscriptions_of_a_lost_connection_are_removed() {
    let relay = Relay::start().await;
    let mut client = relay.client().await;
    client.req("a", r#"{"kinds":[1]}"#).await;
    client.req("b", "{}").await;
    assert_eq!(relay.hub.stats().await.subscriptions, 2);
    drop(client);
    in_time(async { while relay.hub.stats().await.listeners > 0 {} }).await;
    assert_eq!(relay.hub.stats().await.subscriptions, 0);
}

/// Begins a message of 4 MiB, and leaves it one byte short.
async fn unfinished(client: crate::support::Client) -> tokio::net::TcpStream {
    use tokio::io::AsyncWriteExt as _;
    const LENGTH: usize = 4 * 1024 * 1024;
    let mut stream = client.into_inner().into_inner();
    let mut frame = vec![0x81, 0xff];
    frame.extend((LENGTH as u64).to_be_bytes());
    frame.resize(frame.len() + 4 + LENGTH - 1, 0);
    // The relay may close the connection before all is written.
    let _ = in_time(stream.write_all(&frame)).await;
    stream
}

#[tokio::test]
async fn unfinished_messages_per_address_are_bounded() {
    use tokio::io::AsyncReadExt as _;
    let relay = Relay::start().await;
    let mut waiting = Vec::new();
    for _ in 0..8 {
        waiting.push(unfinished(relay.client().await).await);
    }
    let mut refused = unfinished(relay.client().await).await;
    let mut answer = Vec::new();
    let _ = in_time(refused.read_to_end(&mut answer)).await;
    assert!(
        waiting[0].try_read(&mut [0; 100]).is_err(),
        "the others got no message"
    );
    // Short messages are still read, and the memory of closed connections is given back.
    relay.client().await.req("s", r#"{"kinds":[1]}"#).await;
    drop(waiting);
    let mut client = relay.client().await;
    let long = format!(
        r#"["REQ","s",{{"kinds":[1]}},"{}"]"#,
        " ".repeat(4 * 1024 * 1024)
    );
    assert_eq!(client.ask(long).await[0], "CLOSED");
}
