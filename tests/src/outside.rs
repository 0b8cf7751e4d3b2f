//! A server as anybody sees it from outside: its relay over a websocket, its repositories with git.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::{RepoId, ServiceIdentity};
use nostr::event::{Event, EventId};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::Workdir;

/// How long a server that is there may take for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most that a relay gives in one answer.
const MOST: usize = 5_000;

/// An address that a server listens on, or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    address: SocketAddr,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Outside {
    /// Whoever listens there.
    pub fn at(address: SocketAddr) -> Self {
        Self { address }
    }

    /// The address that announcements must list.
    pub fn service(&self) -> ServiceIdentity {
        self.address.to_string().parse().expect("an address")
    }

    /// Where the relay is.
    pub fn relay_url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Where a repository is cloned from.
    pub fn clone_url(&self, repo: &RepoId) -> String {
        format!("http://{}{}", self.address, self.service().repo_path(repo))
    }

    /// Sends events over one socket.
    pub async fn send(&self, events: &[&Event]) {
        for event in events {
            let answer = self.offer(event).await.expect("the server answers");
            assert_eq!(answer, Ok(()), "{}", event.as_json());
        }
    }

    /// Offers an event: taken, refused and why, or `None` if nobody says.
    pub async fn offer(&self, event: &Event) -> Option<Result<(), String>> {
        let mut socket = self.connect().await?;
        let text = format!(r#"["EVENT",{}]"#, event.as_json());
        socket.send(Message::text(text)).await.ok()?;
        loop {
            let said = hear(&mut socket).await?;
            if said[0] == "OK" && said[1] == event.id.to_hex() {
                let why = said[3].as_str().unwrap_or_default().to_owned();
                return Some(if said[2] == true { Ok(()) } else { Err(why) });
            }
        }
    }

    /// Everything that it serves; `None` if nobody says.
    pub async fn events(&self) -> Option<BTreeMap<EventId, Event>> {
        let mut socket = self.connect().await?;
        let mut events: BTreeMap<EventId, Event> = BTreeMap::new();
        loop {
            let until = events.values().map(|event| event.created_at.as_secs()).min();
            let before = events.len();
            let filter = json!({ "limit": MOST, "until": until.unwrap_or(u32::MAX.into()) });
            let question = json!(["REQ", "all", filter]).to_string();
            socket.send(Message::text(question)).await.ok()?;
            hear_page(&mut socket, &mut events).await?;
            if events.len() == before {
                return Some(events);
            }
        }
    }

    /// The events that match a filter; `None` if the server does not answer.
    pub async fn matching(&self, filter: &Value) -> Option<BTreeMap<EventId, Event>> {
        let (mut socket, mut events) = (self.connect().await?, BTreeMap::new());
        socket.send(Message::text(json!(["REQ", "some", filter]).to_string())).await.ok()?;
        hear_page(&mut socket, &mut events).await?;
        Some(events)
    }

    /// The refs of a repository as git lists them, with what HEAD means; `None` if there is no such repository.
    pub async fn refs(&self, repo: &RepoId) -> Option<String> {
        let listed = Workdir::empty().git(&["ls-remote", "--symref", &self.clone_url(repo)]).await;
        listed.ok.then_some(listed.out)
    }

    /// What it says at an address, such as `/metrics`.
    pub async fn get(&self, path: &str) -> String {
        crate::http(&self.address.to_string(), "GET", path, &[]).await.body
    }

    async fn connect(&self) -> Option<Socket> {
        let dial = tokio::time::timeout(PATIENCE, connect_async(self.relay_url()));
        Some(dial.await.ok()?.ok()?.0)
    }
}

/// The next thing that a relay says; `None` if it goes away, or says nothing for too long.
async fn hear(socket: &mut Socket) -> Option<Value> {
    loop {
        let heard = tokio::time::timeout(PATIENCE, socket.next()).await.ok()??.ok()?;
        if let Message::Text(text) = heard {
            return serde_json::from_str(&text).ok();
        }
    }
}

/// Hears one answer to its end.
async fn hear_page(socket: &mut Socket, events: &mut BTreeMap<EventId, Event>) -> Option<()> {
    loop {
        let said = hear(socket).await?;
        match said[0].as_str()? {
            "EVENT" => {
                let event = Event::from_json(said[2].to_string()).expect("an event");
                events.insert(event.id, event);
            }
            "EOSE" => return Some(()),
            "CLOSED" => panic!("{said}"),
            _ => {}
        }
    }
}
