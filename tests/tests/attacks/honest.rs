//! Honest clients: their operations, and the time of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::RepoId;
use grasp_tests::{Author, ServerClient, Workdir};
use nostr::event::EventId;
use serde_json::json;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use crate::server::Server;

const MAIN: &str = "refs/heads/main";

/// Pause between two operations of one client.
const OPERATION_PAUSE: Duration = Duration::from_millis(100);

/// Time after which an operation has failed; it then counts with this time.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// A served repository, its maintainer, and its clients.
pub(crate) struct HonestClients {
    pub(crate) maintainer: Author,
    pub(crate) name: String,
    pub(crate) work: Workdir,
    client: ServerClient,
    announcement: EventId,
    pushes: std::sync::atomic::AtomicU64,
}

/// The times of each honest operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) push: Vec<Duration>,
    pub(crate) request: Vec<Duration>,
    pub(crate) clone: Vec<Duration>,
}

impl Times {
    /// Returns the 95th percentiles of push, request and clone.
    pub(crate) fn p95(&self) -> [Duration; 3] {
        [&self.push, &self.request, &self.clone].map(|times| {
            let mut sorted = times.clone();
            sorted.sort();
            let position = (sorted.len() * 95).div_ceil(100).saturating_sub(1);
            sorted.get(position).copied().unwrap_or_default()
        })
    }
}

impl HonestClients {
    /// Announces, signs and pushes a small repository.
    pub(crate) async fn start(server: &Server) -> Self {
        let (maintainer, name, work) =
            (Author::new().earlier(3_600), "honest", Workdir::init().await);
        let client = server.client();
        let commit = work.commit("first").await;
        let announcement = maintainer.announce(name, &server.service());
        let state = maintainer.state(name, &[(MAIN, &commit)]);
        client.publish_all(&[&announcement, &state]).await;
        let url = client.clone_url(&maintainer.repo(name));
        work.git(&["push", &url, "main"]).await.expect_ok();
        let (id, pushes) = (announcement.id, 0.into());
        Self { maintainer, name: name.to_owned(), work, client, announcement: id, pushes }
    }

    pub(crate) fn repo(&self) -> RepoId {
        self.maintainer.repo(&self.name)
    }

    /// Repeats each operation at least `rounds` times, and until `stop` is set.
    pub(crate) async fn work(self: &Arc<Self>, rounds: usize, stop: &Arc<AtomicBool>) -> Times {
        let is_needed = |done: usize| done < rounds || !stop.load(Ordering::Relaxed);
        let push = async {
            let mut times = Vec::new();
            while is_needed(times.len()) {
                times.push(timed(self.push()).await);
            }
            times
        };
        let request = async {
            let mut times = Vec::new();
            while is_needed(times.len()) {
                times.push(timed(self.request()).await);
            }
            times
        };
        let clone = async {
            let mut times = Vec::new();
            while is_needed(times.len()) {
                times.push(timed(self.clone_once()).await);
            }
            times
        };
        let (push, request, clone) = tokio::join!(push, request, clone);
        Times { push, request, clone }
    }

    /// Signs a new commit and pushes it; returns whether both were accepted.
    async fn push(&self) -> bool {
        let number = self.pushes.fetch_add(1, Ordering::Relaxed) + 1;
        let commit = self.work.commit(&format!("change {number}")).await;
        let state = self.maintainer.later(number).state(&self.name, &[(MAIN, &commit)]);
        let accepted = matches!(self.client.publish(&state).await, Some(Ok(())));
        let url = self.client.clone_url(&self.repo());
        accepted && self.work.git(&["push", "-q", &url, "main"]).await.ok
    }

    /// Requests the announcement by its id, and returns whether it was received.
    async fn request(&self) -> bool {
        let Ok((mut socket, _)) = connect_async(self.client.relay_url()).await else {
            return false;
        };
        let request = json!(["REQ", "a", { "ids": [self.announcement.to_hex()] }]).to_string();
        if socket.send(Message::text(request)).await.is_err() {
            return false;
        }
        let mut found = false;
        while let Some(Ok(message)) = socket.next().await {
            let text = message.to_string();
            found |= text.starts_with(r#"["EVENT""#);
            if text.starts_with(r#"["EOSE""#) {
                return found;
            }
        }
        false
    }

    /// Clones the repository, and returns whether that succeeded.
    async fn clone_once(&self) -> bool {
        let url = self.client.clone_url(&self.repo());
        Workdir::empty().git(&["clone", "-q", &url, "copy"]).await.ok
    }
}

/// Executes an operation and returns its time.
async fn timed(operation: impl Future<Output = bool>) -> Duration {
    tokio::time::sleep(OPERATION_PAUSE).await;
    let start = Instant::now();
    let succeeded = tokio::time::timeout(OPERATION_TIMEOUT, operation).await;
    if succeeded == Ok(true) { start.elapsed() } else { OPERATION_TIMEOUT }
}
