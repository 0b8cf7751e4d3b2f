//! A server as its clients see it: the relay over a websocket, the repositories with git.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::{RepoId, ServiceIdentity};
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::{Author, Workdir};

/// Time within which a running server must respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Events that are requested at a time.
const PAGE_SIZE: usize = 5_000;

/// A client of the server at an address.
#[derive(Clone, Debug)]
pub struct ServerClient {
    address: SocketAddr,
    /// The member of a private server that it authenticates as.
    member: Option<Author>,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl ServerClient {
    /// Returns a client of the server at this address, which need not run yet.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            member: None,
        }
    }

    /// Returns a client that authenticates as a member of a private server.
    #[must_use]
    pub fn of_member(self, member: &Author) -> Self {
        let member = Some(member.clone());
        Self { member, ..self }
    }

    /// Returns the setting of git that authenticates it for a repository, and changes nothing at a public server.
    pub fn header(&self, url: &str) -> String {
        let authorization = self
            .member
            .as_ref()
            .map(|member| format!("Authorization: {}", member.authorization(url)));
        format!("http.extraHeader={}", authorization.unwrap_or_default())
    }

    /// Returns the service that announcements must list.
    pub fn service(&self) -> ServiceIdentity {
        self.address.to_string().parse().expect("an address")
    }

    /// Returns the URL of the relay.
    pub fn relay_url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Returns the URL that a repository is cloned from.
    pub fn clone_url(&self, repo: &RepoId) -> String {
        format!("http://{}{}", self.address, self.service().repo_path(repo))
    }

    /// Publishes events, all of which must be accepted.
    pub async fn publish_all(&self, events: &[&Event]) {
        for event in events {
            let answer = self.publish(event).await.expect("an OK message");
            assert_eq!(answer, Ok(()), "{}", event.as_json());
        }
    }

    /// Publishes an event and returns the answer: accepted, or refused with a reason; `None` without an answer.
    pub async fn publish(&self, event: &Event) -> Option<Result<(), String>> {
        let mut socket = self.connect().await?;
        let text = format!(r#"["EVENT",{}]"#, event.as_json());
        socket.send(Message::text(text)).await.ok()?;
        loop {
            let message = receive(&mut socket).await?;
            if message[0] == "OK" && message[1] == event.id.to_hex() {
                let reason = message[3].as_str().unwrap_or_default().to_owned();
                return Some(if message[2] == true {
                    Ok(())
                } else {
                    Err(reason)
                });
            }
        }
    }

    /// Returns all events that the server serves; `None` if it does not respond.
    pub async fn events(&self) -> Option<BTreeMap<EventId, Event>> {
        let mut socket = self.connect().await?;
        let mut events: BTreeMap<EventId, Event> = BTreeMap::new();
        loop {
            let until = events
                .values()
                .map(|event| event.created_at.as_secs())
                .min();
            let before = events.len();
            let filter = json!({ "limit": PAGE_SIZE, "until": until.unwrap_or(u32::MAX.into()) });
            let request = json!(["REQ", "all", filter]).to_string();
            socket.send(Message::text(request)).await.ok()?;
            receive_until_eose(&mut socket, &mut events).await?;
            if events.len() == before {
                return Some(events);
            }
        }
    }

    /// Returns the events that match a filter; `None` if the server does not respond.
    pub async fn matching(&self, filter: &Value) -> Option<BTreeMap<EventId, Event>> {
        let (mut socket, mut events) = (self.connect().await?, BTreeMap::new());
        socket
            .send(Message::text(json!(["REQ", "some", filter]).to_string()))
            .await
            .ok()?;
        receive_until_eose(&mut socket, &mut events).await?;
        Some(events)
    }

    /// Returns the refs of a repository as git lists them, with the target of HEAD; `None` if there is no such repository.
    pub async fn refs(&self, repo: &RepoId) -> Option<String> {
        let listed = Workdir::empty()
            .git(&["ls-remote", "--symref", &self.clone_url(repo)])
            .await;
        listed.ok.then_some(listed.out)
    }

    /// Returns the body of a page, such as `/metrics`.
    pub async fn get(&self, path: &str) -> String {
        crate::http(&self.address.to_string(), "GET", path, &[])
            .await
            .body
    }

    async fn connect(&self) -> Option<Socket> {
        let dial = tokio::time::timeout(RESPONSE_TIMEOUT, connect_async(self.relay_url()));
        let mut socket = dial.await.ok()?.ok()?.0;
        if let Some(member) = &self.member {
            self.authenticate(&mut socket, member).await?;
        }
        Some(socket)
    }

    /// Answers the challenge of a private server; `None` if it does not let the member in.
    async fn authenticate(&self, socket: &mut Socket, member: &Author) -> Option<()> {
        let challenge = receive(socket).await?;
        let tags: [&[&str]; 2] = [
            &["relay", &self.relay_url()],
            &["challenge", challenge[1].as_str()?],
        ];
        let now = Timestamp::now().as_secs();
        let event = member.at(now).sign(22_242, "", &tags);
        let text = format!(r#"["AUTH",{}]"#, event.as_json());
        socket.send(Message::text(text)).await.ok()?;
        let answer = receive(socket).await?;
        (answer[0] == "OK" && answer[2] == true).then_some(())
    }
}

/// Receives the next message of a relay; `None` if the connection ends, or on timeout.
async fn receive(socket: &mut Socket) -> Option<Value> {
    loop {
        let frame = tokio::time::timeout(RESPONSE_TIMEOUT, socket.next())
            .await
            .ok()??
            .ok()?;
        if let Message::Text(text) = frame {
            return serde_json::from_str(&text).ok();
        }
    }
}

/// Collects the events of one subscription up to its EOSE.
async fn receive_until_eose(
    socket: &mut Socket,
    events: &mut BTreeMap<EventId, Event>,
) -> Option<()> {
    loop {
        let message = receive(socket).await?;
        match message[0].as_str()? {
            "EVENT" => {
                let event = Event::from_json(message[2].to_string()).expect("an event");
                events.insert(event.id, event);
            }
            "EOSE" => return Some(()),
            "CLOSED" => panic!("{message}"),
            _ => {}
        }
    }
}
