//! A relay that speaks NIP-01 and nothing else, for events that no server of this project has.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{SinkExt as _, StreamExt as _};
use nostr::event::Event;
use nostr::filter::{Filter, MatchEventOptions};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::accept_async;
use tokio_tungstenite::tungstenite::Message;

/// A plain relay with some stored events. Ends when dropped.
pub struct PlainRelay {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl PlainRelay {
    /// Starts a relay with these events on a port of its own.
    pub async fn start(stored: Vec<Event>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the port");
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let stored = Arc::new(stored);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(answer(stream, Arc::clone(&stored)));
            }
        });
        Self {
            address,
            connections,
            accepting,
        }
    }

    /// Returns the address of the relay.
    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Returns the number of connections so far, those for the NIP-11 document included.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for PlainRelay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers the requests of one connection; `None` at its end. It has no NIP-11 document.
async fn answer(stream: TcpStream, stored: Arc<Vec<Event>>) -> Option<()> {
    let stream = without_document(stream).await?;
    let mut socket = accept_async(stream).await.ok()?;
    loop {
        let Message::Text(text) = socket.next().await?.ok()? else {
            continue;
        };
        let message: Value = serde_json::from_str(&text).ok()?;
        let mut answers = Vec::new();
        if message[0] == "REQ" {
            let found = matching(&message, &stored);
            answers.extend(
                found
                    .iter()
                    .map(|event| json!(["EVENT", message[1], event])),
            );
            answers.push(json!(["EOSE", message[1]]));
        } else if message[0] == "NEG-OPEN" {
            answers.push(json!(["NEG-ERR", message[1], "error: not supported"]));
        }
        for answer in answers {
            socket.send(Message::text(answer.to_string())).await.ok()?;
        }
    }
}

/// Answers that there is no NIP-11 document if a client asks for it; returns the connection if it asks for a websocket.
pub async fn without_document(mut stream: TcpStream) -> Option<TcpStream> {
    // Clients send the head of their request at once.
    let mut head = [0; 4096];
    let bytes = stream.peek(&mut head).await.ok()?;
    let head = String::from_utf8_lossy(head.get(..bytes)?).to_ascii_lowercase();
    if head.contains("upgrade: websocket") {
        return Some(stream);
    }
    let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let _ = stream.write_all(answer).await;
    None
}

/// Returns the stored events that a REQ asks for, the newest first and up to the limit of each filter.
fn matching(req: &Value, stored: &[Event]) -> Vec<Event> {
    let mut newest: Vec<&Event> = stored.iter().collect();
    newest.sort_by_key(|event| std::cmp::Reverse(event.created_at));
    let mut found: Vec<Event> = Vec::new();
    for filter in req.as_array().into_iter().flatten().skip(2) {
        let Ok(filter) = serde_json::from_value::<Filter>(filter.clone()) else {
            continue;
        };
        let options = MatchEventOptions::default();
        let wanted = newest
            .iter()
            .filter(|event| filter.match_event(event, options));
        for event in wanted.take(filter.limit.unwrap_or(500)) {
            if !found.contains(event) {
                found.push((*event).clone());
            }
        }
    }
    found
}
