//! A relay on loopback that follows a script.
//!
//! ```text
//!   let relay = Scripted::start(|mut client| async move {
//!       while let Some(message) = client.next().await { client.send(json!(["NOTICE", "no"])).await; }
//!   }).await;
//! ```
//!
//! The script runs once for every websocket; when it returns, the socket is closed. Messages of clients are counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::RelayUrl;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::{Filter, MatchEventOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};

/// All messages of clients, in order, by connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) connections: usize,
    /// Requests for the NIP-11 document.
    pub(crate) documents: usize,
    /// The number of these before each websocket.
    pub(crate) documents_before: Vec<usize>,
    pub(crate) messages: Vec<(usize, Value)>,
    /// Subscriptions that the relay ended: the number of messages before, the connection, and the id.
    pub(crate) ended: Vec<(usize, usize, String)>,
}

impl Received {
    /// Returns how often a message type came, such as `REQ`.
    pub(crate) fn count(&self, message_type: &str) -> usize {
        self.messages
            .iter()
            .filter(|(_, message)| message[0] == message_type)
            .count()
    }
}

/// A relay that follows a script. Ends when dropped.
pub(crate) struct Scripted {
    address: SocketAddr,
    received: watch::Receiver<Received>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Scripted {
    /// Starts a relay without a NIP-11 document.
    pub(crate) async fn start<F, Life>(script: F) -> Self
    where
        F: Fn(ClientSocket) -> Life + Send + Sync + 'static,
        Life: Future<Output = ()> + Send + 'static,
    {
        Self::with_info(None, script).await
    }

    /// Starts a relay with this NIP-11 document.
    pub(crate) async fn with_info<F, Life>(info: Option<Value>, script: F) -> Self
    where
        F: Fn(ClientSocket) -> Life + Send + Sync + 'static,
        Life: Future<Output = ()> + Send + 'static,
    {
        let answer = match info {
            Some(info) => ("200 OK", info.to_string()),
            None => ("404 Not Found", String::new()),
        };
        Self::answering(Some(answer), script).await
    }

    /// Starts a relay that answers requests for its document with this status and text, or not at all.
    pub(crate) async fn answering<F, Life>(
        answer: Option<(&'static str, String)>,
        script: F,
    ) -> Self
    where
        F: Fn(ClientSocket) -> Life + Send + Sync + 'static,
        Life: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (record, received) = watch::channel(Received::default());
        let (record, info, script) = (Arc::new(record), Arc::new(answer), Arc::new(script));
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (record, info, script) = (record.clone(), info.clone(), script.clone());
                tokio::spawn(async move {
                    if let Some(client) = ClientSocket::accept(stream, &info, record).await {
                        script(client).await;
                    }
                });
            }
        });
        Self {
            address,
            received,
            accepting,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> RelayUrl {
        format!("ws://{}", self.address).parse().unwrap()
    }

    /// Returns the messages received so far.
    pub(crate) fn received(&self) -> Received {
        self.received.borrow().clone()
    }

    /// Waits until the messages received are enough.
    pub(crate) async fn until(&mut self, is_wanted: impl FnMut(&Received) -> bool) -> Received {
        let waiting = self.received.wait_for(is_wanted);
        let received = tokio::time::timeout(super::local::TEST_TIMEOUT, waiting).await;
        received.expect("in time").expect("the relay runs").clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// One websocket, as the relay sees it.
pub(crate) struct ClientSocket {
    /// Its number, counted from 0.
    pub(crate) number: usize,
    socket: WebSocketStream<TcpStream>,
    record: Arc<watch::Sender<Received>>,
}

impl ClientSocket {
    async fn accept(
        mut stream: TcpStream,
        info: &Option<(&'static str, String)>,
        record: Arc<watch::Sender<Received>>,
    ) -> Option<Self> {
        let mut head = [0; 2048];
        let seen = stream.peek(&mut head).await.ok()?;
        if head[..seen]
            .windows(22)
            .any(|part| part == b"application/nostr+json")
        {
            record.send_modify(|received| received.documents += 1);
            let (status, body) = info.as_ref()?;
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            return None;
        }
        let socket = accept_async(stream).await.ok()?;
        let mut number = 0;
        record.send_modify(|received| {
            number = received.connections;
            received.connections += 1;
            received.documents_before.push(received.documents);
        });
        Some(Self {
            number,
            socket,
            record,
        })
    }

    /// Returns the next message of the client; `None` after its end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            match self.socket.next().await?.ok()? {
                Message::Text(text) => {
                    let message: Value = serde_json::from_str(&text).expect("JSON");
                    let number = self.number;
                    self.record
                        .send_modify(|received| received.messages.push((number, message.clone())));
                    return Some(message);
                }
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    /// Sends a message; returns whether it could be sent.
    pub(crate) async fn send(&mut self, answer: Value) -> bool {
        if answer[0] == "CLOSED" || answer[0] == "NEG-ERR" {
            let (number, name) = (self.number, answer[1].to_string());
            self.record.send_modify(|received| {
                received.ended.push((received.messages.len(), number, name));
            });
        }
        self.send_text(answer.to_string()).await
    }

    /// Sends a text that need not be JSON.
    pub(crate) async fn send_text(&mut self, text: String) -> bool {
        self.socket.send(Message::text(text)).await.is_ok()
    }

    /// Answers a REQ from these events: newest first, each filter up to its limit.
    pub(crate) async fn answer(&mut self, req: &Value, events: &[Event]) {
        for event in matching(req, events) {
            self.send(json!(["EVENT", req[1], event])).await;
        }
        self.send(json!(["EOSE", req[1]])).await;
    }
}

/// Returns the filters of a REQ.
pub(crate) fn filters(req: &Value) -> Vec<Filter> {
    let filters = req.as_array().unwrap().iter().skip(2);
    filters
        .map(|filter| serde_json::from_value(filter.clone()).unwrap())
        .collect()
}

/// Returns the events that a REQ asks for.
pub(crate) fn matching(req: &Value, events: &[Event]) -> Vec<Event> {
    let mut found = BTreeMap::new();
    for filter in filters(req) {
        let is_wanted = |event: &&Event| filter.match_event(event, MatchEventOptions::default());
        let mut wanted: Vec<_> = events.iter().filter(is_wanted).collect();
        wanted.sort_by_key(|event| std::cmp::Reverse(event.created_at));
        for event in wanted.into_iter().take(filter.limit.unwrap_or(500)) {
            found.insert(
                (std::cmp::Reverse(event.created_at), event.id),
                event.clone(),
            );
        }
    }
    found.into_values().collect()
}

/// A well-behaved relay that supports EVENT, REQ, CLOSE and live subscriptions, and nothing else.
#[derive(Clone)]
pub(crate) struct HonestRelay {
    events: Arc<watch::Sender<Vec<Event>>>,
    news: broadcast::Sender<Event>,
    cuts: Arc<watch::Sender<()>>,
    holds: bool,
    quirks: Quirks,
}

/// How a relay differs from one that does what NIP-01 says and no more.
#[derive(Clone, Copy)]
pub(crate) struct Quirks {
    /// The most events that it returns for a filter.
    pub(crate) max_limit: usize,
    /// The most subscriptions of one connection. A REQ beyond it is refused by this notice, and never answered.
    pub(crate) max_subs: (usize, &'static str),
    /// Sent when a client connects.
    pub(crate) greeting: Option<fn() -> Value>,
    /// The whole answer to a REQ that it refuses.
    pub(crate) refuse: fn(&Value) -> Option<Value>,
    /// The answer to an event that it refuses.
    pub(crate) reject: fn(&Event) -> Option<&'static str>,
    /// The answer to an event that it has.
    pub(crate) duplicate: (bool, &'static str),
}

impl Quirks {
    pub(crate) const NONE: Self = Self {
        max_limit: usize::MAX,
        max_subs: (usize::MAX, ""),
        greeting: None,
        refuse: |_| None,
        reject: |_| None,
        duplicate: (true, "duplicate: already have this event"),
    };
}

impl HonestRelay {
    pub(crate) fn new(events: impl IntoIterator<Item = Event>) -> Self {
        let events = Arc::new(watch::channel(events.into_iter().collect()).0);
        let cuts = Arc::new(watch::channel(()).0);
        Self {
            events,
            news: broadcast::channel(1_024).0,
            cuts,
            holds: false,
            quirks: Quirks::NONE,
        }
    }

    /// Returns a relay with these quirks.
    pub(crate) fn quirky(quirks: Quirks) -> Self {
        Self {
            quirks,
            ..Self::new([])
        }
    }

    /// Returns a relay that holds announcements until they are published by other means.
    pub(crate) fn holding() -> Self {
        Self {
            holds: true,
            ..Self::new([])
        }
    }

    pub(crate) fn has(&self, event: &Event) -> bool {
        self.events.borrow().iter().any(|stored| stored == event)
    }

    /// Publishes an event; returns whether it is new.
    pub(crate) fn publish(&self, event: Event) -> bool {
        let is_new = self.events.send_if_modified(|events| {
            let is_new = events.iter().all(|known| known.id != event.id);
            if is_new {
                events.push(event.clone());
            }
            is_new
        });
        if is_new {
            let _ = self.news.send(event);
        }
        is_new
    }

    fn take(&self, event: Event) -> (bool, &'static str) {
        if let Some(text) = (self.quirks.reject)(&event) {
            return (false, text);
        }
        match self.publish(event) {
            true => (true, ""),
            false => self.quirks.duplicate,
        }
    }

    /// Deletes all events and closes all connections.
    pub(crate) fn lose_everything(&self) {
        self.events.send_modify(Vec::clear);
        self.cuts.send_replace(());
    }

    /// Waits until all of these events are stored.
    pub(crate) async fn until_has(&self, events: &[&Event]) {
        let mut stored = self.events.subscribe();
        let is_here = |stored: &Vec<Event>, event: &Event| stored.iter().any(|one| one == event);
        let all = stored.wait_for(|stored| events.iter().all(|event| is_here(stored, event)));
        let waited = tokio::time::timeout(super::local::TEST_TIMEOUT, all).await;
        waited.expect("in time").expect("the relay runs");
    }

    pub(crate) async fn start(&self) -> Scripted {
        let honest = self.clone();
        Scripted::start(move |client| honest.clone().serve(client)).await
    }

    async fn serve(self, mut client: ClientSocket) {
        let mut news = self.news.subscribe();
        let mut cuts = self.cuts.subscribe();
        let mut open: BTreeMap<String, Value> = BTreeMap::new();
        if let Some(greeting) = self.quirks.greeting {
            client.send(greeting()).await;
        }
        loop {
            tokio::select! {
                _ = cuts.changed() => return,
                message = client.next() => {
                    let Some(message) = message else { return };
                    self.answer(&mut client, message, &mut open).await;
                }
                Ok(event) = news.recv() => {
                    for sub in open.iter().filter(|(_, req)| wants(req, &event)).map(|(sub, _)| sub) {
                        client.send(json!(["EVENT", sub, event])).await;
                    }
                }
            }
        }
    }

    async fn answer(
        &self,
        client: &mut ClientSocket,
        message: Value,
        open: &mut BTreeMap<String, Value>,
    ) {
        let sub = message[1].as_str().unwrap_or_default().to_owned();
        match message[0].as_str() {
            Some("REQ") => {
                if let Some(refusal) = (self.quirks.refuse)(&message) {
                    client.send(refusal).await;
                    return;
                }
                let (max_subs, notice) = self.quirks.max_subs;
                if !open.contains_key(&sub) && open.len() >= max_subs {
                    client.send(json!(["NOTICE", notice])).await;
                    return;
                }
                let mut limited = message.clone();
                for filter in limited.as_array_mut().unwrap().iter_mut().skip(2) {
                    let limit = filter["limit"].as_u64().unwrap_or(u64::MAX);
                    filter["limit"] = json!(limit.min(self.quirks.max_limit as u64));
                }
                let stored = self.events.borrow().clone();
                client.answer(&limited, &stored).await;
                open.insert(sub, message);
            }
            Some("CLOSE") => _ = open.remove(&sub),
            Some("EVENT") if self.holds && message[1]["kind"] == 30617 => {
                let text = "purgatory: won't be served until git data arrives";
                client
                    .send(json!(["OK", message[1]["id"], true, text]))
                    .await;
            }
            Some("EVENT") => {
                let event: Event = serde_json::from_value(message[1].clone()).unwrap();
                let (accepted, text) = self.take(event);
                client
                    .send(json!(["OK", message[1]["id"], accepted, text]))
                    .await;
            }
            _ => {
                _ = client
                    .send(json!(["NOTICE", "ERROR: bad msg: unknown cmd"]))
                    .await
            }
        }
    }
}

fn wants(req: &Value, event: &Event) -> bool {
    filters(req)
        .iter()
        .any(|filter| filter.match_event(event, MatchEventOptions::default()))
}
