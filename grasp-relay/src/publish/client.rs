//! A nostr client, just large enough to publish what a repository needs.

use std::path::Path;
use std::time::Duration;

use grasp_core::outbound::OutboundPolicy;
use grasp_core::service::npub;
use grasp_core::{RelayUrl, Version};
use grasp_sync::Roots;
use grasp_sync::driver::{Client, Limits, Outbound, Unanswered};
use nostr::event::{Event, Kind};
use nostr::filter::{Filter, MatchEventOptions};
use nostr::key::Keys;
use tokio::time::timeout;

use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::files;

/// Time for the whole answer of a relay to one request or event.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// A relay did not take an event.
#[derive(Debug, thiserror::Error)]
#[error("the relay refused a kind {kind}: {message}")]
pub(crate) struct Refused {
    kind: Kind,
    /// The relay's message.
    pub(super) message: String,
}

/// The variable that names a file with certificate authorities for git.
const GIT_AUTHORITIES: &str = "GIT_SSL_CAINFO";

/// Returns the means to connect to servers that the user named. Authorities that git trusts by its variable are trusted in
/// addition to the public ones.
pub(super) fn outbound() -> Result<Outbound> {
    let roots = match std::env::var_os(GIT_AUTHORITIES) {
        Some(file) => files::roots_with(Path::new(&file)).with_context(|| {
            format!("could not use the authorities that {GIT_AUTHORITIES} names")
        })?,
        None => Roots::default(),
    };
    Ok(Outbound::new(OutboundPolicy::default(), &roots))
}

/// A connection to one relay.
pub struct RelayClient {
    client: Client,
    timeout: Duration,
    /// The user, at relays that ask who it is.
    keys: Option<Keys>,
}

/// The prefix of a refusal that authentication may change (NIP-42).
const AUTH_REQUIRED: &str = "auth-required:";

impl RelayClient {
    /// Connects to a relay that the user named.
    pub async fn connect(relay: &RelayUrl) -> Result<Self> {
        Self::connect_by(relay, &outbound()?).await
    }

    /// Connects to a relay that the operator named, by these means.
    pub(crate) async fn connect_by(relay: &RelayUrl, outbound: &Outbound) -> Result<Self> {
        let client = Client::connect(relay, outbound, &Limits::default()).await;
        let client = client.map_err(|fault| InstanceError::other_server(format!("{fault}")))?;
        Ok(Self {
            client,
            timeout: EXCHANGE_TIMEOUT,
            keys: None,
        })
    }

    /// Authenticates with these keys when the relay asks for that.
    #[must_use]
    pub fn with_keys(self, keys: &Keys) -> Self {
        let keys = Some(keys.clone());
        Self { keys, ..self }
    }

    /// Authenticates, if there are keys and that was not done before; returns whether to repeat the request.
    async fn authenticate(&mut self) -> Result<bool> {
        let Some(keys) = self.keys.take() else {
            return Ok(false);
        };
        let answered = timeout(self.timeout, self.client.authenticate(&keys)).await;
        let (accepted, message) =
            answered.context("the relay did not answer an authentication in time")??;
        if !accepted {
            return Err(InstanceError::other_server(format!(
                "the relay refused to authenticate {}: {message}",
                npub(&keys.public_key())
            )));
        }
        Ok(true)
    }

    /// Publishes an event. A relay that has it already, or a newer version of it, counts as success; any other refusal
    /// is an error.
    pub async fn publish(&mut self, event: &Event) -> Result<()> {
        let (mut accepted, mut message) = self.publish_once(event).await?;
        if !accepted && message.starts_with(AUTH_REQUIRED) && self.authenticate().await? {
            (accepted, message) = self.publish_once(event).await?;
        }
        if accepted || message.starts_with("duplicate:") || message.starts_with("replaced:") {
            return Ok(());
        }
        Err(Refused {
            kind: event.kind,
            message,
        }
        .into())
    }

    async fn publish_once(&mut self, event: &Event) -> Result<(bool, String)> {
        let published = timeout(self.timeout, self.client.publish(event)).await;
        Ok(published.context("the relay did not answer an event in time")??)
    }

    async fn page(&mut self, filter: &Filter) -> Result<Result<Vec<Event>, Unanswered>> {
        let page = timeout(self.timeout, self.client.page(filter)).await;
        page.context("the relay did not answer a request in time")
    }

    /// Returns the newest event of a relay that matches. Events that do not match, or have a wrong signature, are
    /// ignored.
    pub async fn newest(&mut self, filter: &Filter) -> Result<Option<Event>> {
        let asked = filter.clone().limit(1);
        let mut page = self.page(&asked).await?;
        let is_locked = |text: &str| text.starts_with(AUTH_REQUIRED);
        if matches!(&page, Err(Unanswered::Closed(text)) if is_locked(text))
            && self.authenticate().await?
        {
            page = self.page(&asked).await?;
        }
        let page = page?;
        let is_asked_for = |event: &Event| {
            filter.match_event(event, MatchEventOptions::default()) && event.verify().is_ok()
        };
        Ok(page
            .into_iter()
            .filter(is_asked_for)
            .max_by_key(Version::of))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt as _, StreamExt as _};
    use nostr::event::{EventBuilder, FinalizeEvent as _, Tag};
    use nostr::types::Timestamp;
    use serde_json::{Value, json};
    use tokio::net::TcpListener;
    use tokio_tungstenite::tungstenite::Message;

    use super::*;

    fn event(keys: &Keys, name: &str, at: u64) -> Event {
        let event = EventBuilder::new(Kind::GitRepoAnnouncement, "").tag(Tag::identifier(name));
        event
            .custom_created_at(Timestamp::from_secs(at))
            .finalize(keys)
            .unwrap()
    }

    /// Starts a relay that answers its first request with these events.
    async fn relay_with(events: Vec<Value>) -> RelayUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            socket.next().await;
            let events = events
                .into_iter()
                .map(|event| json!(["EVENT", "g1", event]));
            for answer in events.chain([json!(["EOSE", "g1"])]) {
                socket
                    .send(Message::text(answer.to_string()))
                    .await
                    .unwrap();
            }
            while socket.next().await.is_some() {}
        });
        url
    }

    /// Starts a relay that answers every event with this message.
    async fn relay_that_answers(accepted: bool, message: &'static str) -> RelayUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            while let Some(Ok(Message::Text(text))) = socket.next().await {
                let published: Value = serde_json::from_str(&text).unwrap();
                let answer = json!(["OK", published[1]["id"], accepted, message]);
                socket
                    .send(Message::text(answer.to_string()))
                    .await
                    .unwrap();
            }
        });
        url
    }

    #[tokio::test]
    async fn a_duplicate_or_newer_version_counts_as_accepted() {
        let event = event(&Keys::generate(), "hello", 1);
        for (accepted, text, is_ok) in [
            (true, "", true),
            (true, "purgatory: waits", true),
            (false, "duplicate: have it", true),
            (false, "replaced: have a newer version", true),
            (false, "blocked: no", false),
        ] {
            let url = relay_that_answers(accepted, text).await;
            let published = RelayClient::connect(&url)
                .await
                .unwrap()
                .publish(&event)
                .await;
            assert_eq!(published.is_ok(), is_ok, "{accepted} {text}");
        }
    }

    /// Starts a relay that sends messages without end and no answer.
    async fn relay_that_talks() -> RelayUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            while socket
                .send(Message::text(r#"["NOTICE","wait"]"#))
                .await
                .is_ok()
            {}
        });
        url
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_that_sends_messages_without_an_answer_times_out() {
        let event = event(&Keys::generate(), "hello", 1);
        let mut relay = RelayClient::connect(&relay_that_talks().await)
            .await
            .unwrap();
        relay.timeout = Duration::from_millis(200);
        let both = async {
            let published = relay.publish(&event).await.unwrap_err();
            let asked = relay.newest(&Filter::new()).await.unwrap_err();
            [published, asked].map(|error| error.to_string())
        };
        let errors = timeout(Duration::from_secs(20), both)
            .await
            .expect("an end");
        assert!(
            errors.iter().all(|text| text.contains("in time")),
            "{errors:?}"
        );
    }

    #[tokio::test]
    async fn the_newest_event_is_one_that_was_asked_for_and_that_its_author_signed() {
        let (own, other) = (Keys::generate(), Keys::generate());
        let json = |event: &Event| serde_json::from_str::<Value>(&event.as_json()).unwrap();
        let mut forged = json(&event(&own, "hello", 9));
        forged["tags"]
            .as_array_mut()
            .unwrap()
            .push(json!(["maintainers", "mallory"]));
        let newest = event(&own, "hello", 3);
        let events = vec![
            json(&newest),
            json(&event(&own, "hello", 2)),
            forged,
            json(&event(&other, "hello", 9)),
            json(&event(&own, "another", 9)),
        ];
        let mut relay = RelayClient::connect(&relay_with(events).await)
            .await
            .unwrap();
        let filter = Filter::new()
            .kind(Kind::GitRepoAnnouncement)
            .author(own.public_key())
            .identifier("hello");
        assert_eq!(relay.newest(&filter).await.unwrap(), Some(newest));
    }
}
