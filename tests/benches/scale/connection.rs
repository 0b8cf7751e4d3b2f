//! A websocket to a relay, for many events at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use nostr::event::{Event, EventId};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

/// Events that are sent before their answers are read.
const MAX_IN_FLIGHT: usize = 200;

/// Client addresses that events are sent from.
const SOURCE_ADDRESSES: usize = 16;

/// Time within which a relay must send a message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a relay.
pub(crate) struct Connection(WebSocketStream<TcpStream>);

impl Connection {
    pub(crate) async fn connect(address: &str) -> Self {
        Self::connect_from("127.0.0.1", address).await
    }

    /// Connects from another address of this machine: relays limit the events of one address.
    async fn connect_from(source: &str, address: &str) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .bind(format!("{source}:0").parse().expect("an address"))
            .expect("a port");
        let stream = socket
            .connect(address.parse().expect("an address"))
            .await
            .expect("a relay");
        stream.set_nodelay(true).expect("a socket");
        Self(
            client_async(format!("ws://{address}"), stream)
                .await
                .expect("a websocket")
                .0,
        )
    }

    /// Publishes events from many client addresses.
    pub(crate) async fn publish_from_many(address: &str, events: &[Event]) {
        let part = events.len().div_ceil(SOURCE_ADDRESSES).max(1);
        let parts = events
            .chunks(part)
            .enumerate()
            .map(|(n, events)| async move {
                let source = format!("127.0.1.{}", n + 1);
                Self::connect_from(&source, address)
                    .await
                    .publish(events)
                    .await;
            });
        futures_util::future::join_all(parts).await;
    }

    async fn send(&mut self, value: &Value) {
        self.0
            .send(Message::text(value.to_string()))
            .await
            .expect("a connected relay");
    }

    async fn receive(&mut self) -> Value {
        loop {
            let message = tokio::time::timeout(MESSAGE_TIMEOUT, self.0.next())
                .await
                .expect("a message");
            if let Message::Text(text) = message.expect("a connection").expect("a frame") {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
    }

    /// Publishes events, all of which must be accepted. Events that the relay rate-limits are sent again.
    pub(crate) async fn publish(&mut self, events: &[Event]) {
        for events in events.chunks(MAX_IN_FLIGHT) {
            let mut open: BTreeMap<EventId, &Event> = events.iter().map(|e| (e.id, e)).collect();
            while !open.is_empty() {
                for event in open.values() {
                    let text = format!(r#"["EVENT",{}]"#, event.as_json());
                    self.0
                        .feed(Message::text(text))
                        .await
                        .expect("a connected relay");
                }
                self.0.flush().await.expect("a connected relay");
                let mut limited = BTreeMap::new();
                while !open.is_empty() {
                    let answer = self.receive().await;
                    if answer[0] != "OK" {
                        continue;
                    }
                    let id = answer[1].as_str().and_then(|id| EventId::from_hex(id).ok());
                    let Some(event) = id.and_then(|id| open.remove(&id)) else {
                        continue;
                    };
                    if answer[2] != true {
                        let text = answer[3].as_str().unwrap_or_default();
                        assert!(text.starts_with("rate-limited:"), "{text}");
                        limited.insert(event.id, event);
                    }
                }
                if !limited.is_empty() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                open = limited;
            }
        }
    }

    /// Counts the events that match a filter.
    pub(crate) async fn count(&mut self, filter: Value) -> u64 {
        self.send(&json!(["COUNT", "count", filter])).await;
        loop {
            let answer = self.receive().await;
            match answer[0].as_str() {
                Some("COUNT") => return answer[2]["count"].as_u64().unwrap_or_default(),
                Some("CLOSED") => panic!("{answer}"),
                _ => {}
            }
        }
    }

    /// Subscribes to events that the relay stores from now on.
    pub(crate) async fn subscribe(&mut self, filter: Value) {
        self.send(&json!(["REQ", "live", filter])).await;
        while self.receive().await[0] != "EOSE" {}
    }

    /// Returns the time at which the last of these events was received.
    pub(crate) async fn until_received(&mut self, mut ids: BTreeSet<EventId>) -> Instant {
        while !ids.is_empty() {
            let message = self.receive().await;
            if message[0] == "EVENT" {
                let id = message[2]["id"]
                    .as_str()
                    .and_then(|id| EventId::from_hex(id).ok());
                id.map(|id| ids.remove(&id));
            }
        }
        Instant::now()
    }
}
