//! A nostr client, just large enough to publish what a repository needs.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::{RelayUrl, Version};
use grasp_sync::Roots;
use nostr::event::{Event, Kind};
use nostr::filter::{Filter, MatchEventOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::wire::{self, Place};

/// How long a relay may take for a handshake, and for all of its answer to one question or event.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream of bytes, encrypted or not.
trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A relay did not take an event.
#[derive(Debug, thiserror::Error)]
#[error("the relay refused a kind {kind}: {said}")]
pub(crate) struct Refused {
    kind: Kind,
    /// Why, in its words.
    pub(crate) said: String,
}

/// A conversation with one relay.
pub(crate) struct RelayClient {
    socket: WebSocketStream<Box<dyn Bytes>>,
    timeout: Duration,
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
        let (socket, _) =
            timeout(EXCHANGE_TIMEOUT, shake).await.context("no websocket in time")??;
        Ok(Self { socket, timeout: EXCHANGE_TIMEOUT })
    }

    /// Publishes an event. That the relay has it already, or a newer version of it, is as good; anything else that it
    /// says is an error.
    pub(crate) async fn publish(&mut self, event: &Event) -> Result<()> {
        let (limit, published) = (self.timeout, self.publish_and_wait(event));
        timeout(limit, published).await.context("the relay did not answer an event in time")?
    }

    async fn publish_and_wait(&mut self, event: &Event) -> Result<()> {
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
                _ if said.starts_with("duplicate:") || said.starts_with("replaced:") => Ok(()),
                _ => Err(Refused { kind: event.kind, said: said.to_owned() }.into()),
            };
        }
    }

    /// The newest event that matches. A relay may say anything; what does not match, or was not signed by its author,
    /// is passed over.
    pub(crate) async fn newest(&mut self, filter: &Filter) -> Result<Option<Event>> {
        let (limit, found) = (self.timeout, self.newest_of_all(filter));
        timeout(limit, found).await.context("the relay did not answer a question in time")?
    }

    async fn newest_of_all(&mut self, filter: &Filter) -> Result<Option<Event>> {
        let asked: Value = serde_json::from_str(&filter.clone().limit(1).as_json())?;
        self.say(&json!(["REQ", "grasp", asked])).await?;
        let mut newest: Option<Event> = None;
        loop {
            let answer = self.hear().await?;
            match answer[0].as_str() {
                Some("EVENT") => {
                    let told = Event::from_json(answer[2].to_string()).ok();
                    let told = told.filter(|event| is_asked_for(filter, event));
                    newest = newest.into_iter().chain(told).max_by_key(Version::of);
                }
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
            let message = self.socket.next().await.context("the relay went away")??;
            if let Message::Text(text) = message {
                return Ok(serde_json::from_str(&text)?);
            }
        }
    }
}

fn is_asked_for(filter: &Filter, event: &Event) -> bool {
    filter.match_event(event, MatchEventOptions::default()) && event.verify().is_ok()
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventBuilder, FinalizeEvent as _, Tag};
    use nostr::key::Keys;
    use nostr::types::Timestamp;
    use tokio::net::TcpListener;

    use super::*;

    fn event(keys: &Keys, name: &str, at: u64) -> Event {
        let event = EventBuilder::new(Kind::GitRepoAnnouncement, "").tag(Tag::identifier(name));
        event.custom_created_at(Timestamp::from_secs(at)).finalize(keys).unwrap()
    }

    /// A relay that answers its first question with these.
    async fn relay_that_says(told: Vec<Value>) -> RelayUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            socket.next().await;
            let events = told.into_iter().map(|event| json!(["EVENT", "grasp", event]));
            for answer in events.chain([json!(["EOSE", "grasp"])]) {
                socket.send(Message::text(answer.to_string())).await.unwrap();
            }
            while socket.next().await.is_some() {}
        });
        url
    }

    /// A relay that answers every event with this.
    async fn relay_that_answers(accepted: bool, text: &'static str) -> RelayUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            while let Some(Ok(Message::Text(said))) = socket.next().await {
                let said: Value = serde_json::from_str(&said).unwrap();
                let answer = json!(["OK", said[1]["id"], accepted, text]);
                socket.send(Message::text(answer.to_string())).await.unwrap();
            }
        });
        url
    }

    #[tokio::test]
    async fn a_relay_that_has_the_event_or_a_newer_version_is_as_good_as_one_that_takes_it() {
        let event = event(&Keys::generate(), "hello", 1);
        for (accepted, text, is_ok) in [
            (true, "", true),
            (true, "purgatory: waits", true),
            (false, "duplicate: have it", true),
            (false, "replaced: have a newer version", true),
            (false, "blocked: no", false),
        ] {
            let url = relay_that_answers(accepted, text).await;
            let published = RelayClient::connect(&url).await.unwrap().publish(&event).await;
            assert_eq!(published.is_ok(), is_ok, "{accepted} {text}");
        }
    }

    /// A relay that talks without end and answers nothing.
    async fn relay_that_talks() -> RelayUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            while socket.send(Message::text(r#"["NOTICE","wait"]"#)).await.is_ok() {}
        });
        url
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_that_talks_without_an_answer_is_not_waited_for() {
        let event = event(&Keys::generate(), "hello", 1);
        let mut relay = RelayClient::connect(&relay_that_talks().await).await.unwrap();
        relay.timeout = Duration::from_millis(200);
        let both = async {
            let published = relay.publish(&event).await.unwrap_err();
            let asked = relay.newest(&Filter::new()).await.unwrap_err();
            [published, asked].map(|error| error.to_string())
        };
        let told = timeout(Duration::from_secs(20), both).await.expect("an end");
        assert!(told.iter().all(|text| text.contains("in time")), "{told:?}");
    }

    #[tokio::test]
    async fn the_newest_event_is_one_that_was_asked_for_and_that_its_author_signed() {
        let (own, other) = (Keys::generate(), Keys::generate());
        let json = |event: &Event| serde_json::from_str::<Value>(&event.as_json()).unwrap();
        let mut forged = json(&event(&own, "hello", 9));
        forged["tags"].as_array_mut().unwrap().push(json!(["maintainers", "mallory"]));
        let newest = event(&own, "hello", 3);
        let told = vec![
            json(&newest),
            json(&event(&own, "hello", 2)),
            forged,
            json(&event(&other, "hello", 9)),
            json(&event(&own, "another", 9)),
        ];
        let mut relay = RelayClient::connect(&relay_that_says(told).await).await.unwrap();
        let filter = Filter::new()
            .kind(Kind::GitRepoAnnouncement)
            .author(own.public_key())
            .identifier("hello");
        assert_eq!(relay.newest(&filter).await.unwrap(), Some(newest));
    }
}
