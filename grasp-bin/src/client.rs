//! A nostr client, just large enough to publish what a repository needs.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::RelayUrl;
use grasp_sync::Roots;
use nostr::event::Event;
use nostr::filter::Filter;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::wire::{self, Place};

/// How long a relay may take for one answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stream of bytes, encrypted or not.
trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A conversation with one relay.
pub(crate) struct RelayClient {
    socket: WebSocketStream<Box<dyn Bytes>>,
}

impl RelayClient {
    /// Connects to a relay that the operator named.
    pub(crate) async fn connect(relay: &RelayUrl) -> Result<Self> {
        let place = Place::parse(relay.as_str()).context("no address of a relay")?;
        let stream = place.connect(&Roots::default()).await?;
        let stream: Box<dyn Bytes> = match stream {
            wire::Stream::Plain(stream) => Box::new(stream),
            wire::Stream::Tls(stream) => Box::new(*stream),
        };
        let shake = tokio_tungstenite::client_async(relay.as_str(), stream);
        let (socket, _) = timeout(PATIENCE, shake).await.context("no websocket in time")??;
        Ok(Self { socket })
    }

    /// Publishes an event. That the relay has it already is as good; anything else that it says is an error.
    pub(crate) async fn publish(&mut self, event: &Event) -> Result<()> {
        let json: Value = serde_json::from_str(&event.as_json())?;
        self.say(&json!(["EVENT", json])).await?;
        loop {
            let answer = self.hear().await?;
            if answer[0] != "OK" || answer[1] != event.id.to_hex() {
                continue;
            }
            let said = answer[3].as_str().unwrap_or_default();
            return match answer[2].as_bool() {
                Some(true) => Ok(()),
                _ if said.starts_with("duplicate:") => Ok(()),
                _ => Err(anyhow!("the relay refused a kind {}: {said}", event.kind)),
            };
        }
    }

    /// The newest event that matches.
    pub(crate) async fn newest(&mut self, filter: &Filter) -> Result<Option<Event>> {
        let filter: Value = serde_json::from_str(&filter.clone().limit(1).as_json())?;
        self.say(&json!(["REQ", "grasp", filter])).await?;
        let mut newest = None;
        loop {
            let answer = self.hear().await?;
            match answer[0].as_str() {
                Some("EVENT") => newest = Event::from_json(answer[2].to_string()).ok(),
                Some("EOSE") => break,
                Some("CLOSED") => bail!("the relay does not answer questions: {}", answer[2]),
                _ => {}
            }
        }
        self.say(&json!(["CLOSE", "grasp"])).await?;
        Ok(newest)
    }

    async fn say(&mut self, message: &Value) -> Result<()> {
        self.socket.send(Message::text(message.to_string())).await.context("the relay went away")
    }

    async fn hear(&mut self) -> Result<Value> {
        loop {
            let heard =
                timeout(PATIENCE, self.socket.next()).await.context("the relay is silent")?;
            let message = heard.context("the relay went away")??;
            if let Message::Text(text) = message {
                return Ok(serde_json::from_str(&text)?);
            }
        }
    }
}
