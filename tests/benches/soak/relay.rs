//! A nostr client that publishes.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use nostr::event::Event;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// Time within which a relay must answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a relay.
pub(crate) struct Relay(WebSocketStream<TcpStream>);

impl Relay {
    pub(crate) async fn connect(address: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).await.ok()?;
        let (socket, _) = tokio_tungstenite::client_async(format!("ws://{address}/"), stream)
            .await
            .ok()?;
        Some(Self(socket))
    }

    /// Publishes an event and returns the answer; `None` if the connection ended.
    pub(crate) async fn publish(&mut self, event: &Event) -> Option<(bool, String)> {
        let event: Value = serde_json::from_str(&event.as_json()).ok()?;
        self.send(&json!(["EVENT", event])).await?;
        loop {
            let answer = self.receive().await?;
            if answer[0] == "OK" && answer[1] == event["id"] {
                let text = answer[3].as_str().unwrap_or_default().to_owned();
                return Some((answer[2].as_bool()?, text));
            }
        }
    }

    async fn send(&mut self, message: &Value) -> Option<()> {
        self.0.send(Message::text(message.to_string())).await.ok()
    }

    async fn receive(&mut self) -> Option<Value> {
        loop {
            let next = tokio::time::timeout(ANSWER_TIMEOUT, self.0.next())
                .await
                .ok()?;
            if let Message::Text(text) = next?.ok()? {
                return serde_json::from_str(&text).ok();
            }
        }
    }
}
