//! What stands before a server: a proxy that refuses some requests, and an address that never answers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// How long a client is told to wait.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A proxy that answers every third git request with 429.
pub(crate) struct Proxy {
    pub(crate) address: String,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    backend: String,
    requests: usize,
    /// When clients were told to wait.
    refused: Vec<Instant>,
    /// When conversations began.
    begun: Vec<Instant>,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, Arc::clone(&shared)));
            }
        });
        Self { address, seen }
    }

    /// Forwards to this address from now on.
    pub(crate) fn lead_to(&self, backend: &str) {
        lock(&self.seen).backend = backend.to_owned();
    }

    /// How many requests were refused, and the most conversations that began within a wait.
    pub(crate) fn refused(&self) -> (usize, usize) {
        let seen = lock(&self.seen);
        // A refusal is on its way for a moment, and what began before it goes on.
        let slack = Duration::from_millis(100);
        let during = |at: &Instant| {
            let (from, to) = (*at + slack, *at + RETRY_AFTER);
            seen.begun.iter().filter(|begun| **begun > from && **begun < to).count()
        };
        (seen.refused.len(), seen.refused.iter().map(during).max().unwrap_or(0))
    }
}

/// A listener that takes every connection and says nothing.
pub(crate) async fn silent() -> String {
    let listener = TcpListener::bind("127.0.0.2:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((client, _)) = listener.accept().await {
            open.push(client);
        }
    });
    address
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forwards one request and its answer, or refuses it.
async fn forward(mut client: TcpStream, seen: Arc<Mutex<Seen>>) -> Option<()> {
    let head = read_head(&mut client).await?;
    let text = String::from_utf8_lossy(&head).into_owned();
    let line = text.lines().next()?;
    let is_git = line.contains("git-upload-pack");
    let (backend, is_refused) = {
        let mut seen = lock(&seen);
        if is_git {
            seen.requests += 1;
            if line.contains("/info/refs") {
                seen.begun.push(Instant::now());
            }
        }
        let is_refused = is_git && seen.requests.is_multiple_of(3);
        if is_refused {
            seen.refused.push(Instant::now());
        }
        (seen.backend.clone(), is_refused)
    };
    if is_refused {
        let wait = RETRY_AFTER.as_secs();
        let answer = format!(
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After: {wait}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        client.write_all(answer.as_bytes()).await.ok()?;
        return client.shutdown().await.ok();
    }
    let mut server = TcpStream::connect(backend).await.ok()?;
    server.write_all(one_request(&text).as_bytes()).await.ok()?;
    copy_bidirectional(&mut client, &mut server).await.ok().map(drop)
}

/// The head of a request that is the only one of its connection, unless it becomes a websocket.
fn one_request(head: &str) -> String {
    let is_upgrade = head.to_ascii_lowercase().contains("upgrade: websocket");
    if is_upgrade {
        return head.to_owned();
    }
    let lines = head.trim_end().lines();
    let kept = lines.filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let kept: Vec<&str> = kept.collect();
    format!("{}\r\nConnection: close\r\n\r\n", kept.join("\r\n"))
}

async fn read_head(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    Some(head)
}
