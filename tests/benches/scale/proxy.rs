//! A proxy that refuses some requests, and a listener that never responds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// The `Retry-After` of a refusal.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A proxy that responds to every third git request with 429.
pub(crate) struct Proxy {
    pub(crate) address: String,
    state: Arc<Mutex<ProxyState>>,
}

#[derive(Default)]
struct ProxyState {
    backend: String,
    requests: usize,
    /// The times of the refusals.
    refused: Vec<Instant>,
    /// The times at which git requests began.
    begun: Vec<Instant>,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::<Mutex<ProxyState>>::default();
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, Arc::clone(&shared)));
            }
        });
        Self { address, state }
    }

    /// Forwards to this address from now on.
    pub(crate) fn forward_to(&self, backend: &str) {
        lock(&self.state).backend = backend.to_owned();
    }

    /// Returns the number of refusals, and the highest number of git requests that began within one `Retry-After`.
    pub(crate) fn refused(&self) -> (usize, usize) {
        let state = lock(&self.state);
        // A refusal takes a moment to arrive, and git requests that began before it continue.
        let slack = Duration::from_millis(100);
        let during = |at: &Instant| {
            let (from, to) = (*at + slack, *at + RETRY_AFTER);
            state
                .begun
                .iter()
                .filter(|begun| **begun > from && **begun < to)
                .count()
        };
        (
            state.refused.len(),
            state.refused.iter().map(during).max().unwrap_or(0),
        )
    }
}

/// Starts a listener that accepts every connection and sends nothing; returns its address.
pub(crate) async fn unresponsive_listener() -> String {
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

fn lock(state: &Mutex<ProxyState>) -> std::sync::MutexGuard<'_, ProxyState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forwards one request and its response, or refuses it.
async fn forward(mut client: TcpStream, state: Arc<Mutex<ProxyState>>) -> Option<()> {
    let head = read_head(&mut client).await?;
    let text = String::from_utf8_lossy(&head).into_owned();
    let line = text.lines().next()?;
    let is_git = line.contains("git-upload-pack");
    let (backend, is_refused) = {
        let mut state = lock(&state);
        if is_git {
            state.requests += 1;
            if line.contains("/info/refs") {
                state.begun.push(Instant::now());
            }
        }
        let is_refused = is_git && state.requests.is_multiple_of(3);
        if is_refused {
            state.refused.push(Instant::now());
        }
        (state.backend.clone(), is_refused)
    };
    if is_refused {
        let wait = RETRY_AFTER.as_secs();
        let response = format!(
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After: {wait}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        client.write_all(response.as_bytes()).await.ok()?;
        return client.shutdown().await.ok();
    }
    let mut server = TcpStream::connect(backend).await.ok()?;
    server.write_all(one_request(&text).as_bytes()).await.ok()?;
    copy_bidirectional(&mut client, &mut server)
        .await
        .ok()
        .map(drop)
}

/// Returns the head of a request that is the only one of its connection, unless it becomes a websocket.
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
