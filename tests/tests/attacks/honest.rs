//! Honest clients: their operations, and the time of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use grasp_core::RepoId;
use grasp_tests::{Author, GitOutput, ServerClient, Workdir};
use nostr::event::EventId;
use serde_json::json;

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

/// The results of all honest operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    pub(crate) push: Vec<Operation>,
    pub(crate) request: Vec<Operation>,
    pub(crate) clone: Vec<Operation>,
}

/// One honest operation.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// Its duration; [`OPERATION_TIMEOUT`] if it failed.
    time: Duration,
    /// The reason why it failed.
    failure: Option<String>,
}

impl Operations {
    /// Returns the 95th percentiles of push, request and clone.
    pub(crate) fn p95(&self) -> [Duration; 3] {
        [&self.push, &self.request, &self.clone].map(|operations| {
            let mut times: Vec<Duration> = operations.iter().map(|one| one.time).collect();
            times.sort();
            let position = (times.len() * 95).div_ceil(100).saturating_sub(1);
            times.get(position).copied().unwrap_or_default()
        })
    }

    /// Describes the failures of each kind of operation: their number, and the reason of the first.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut descriptions = Vec::new();
        for (name, operations) in [
            ("push", &self.push),
            ("request", &self.request),
            ("clone", &self.clone),
        ] {
            let failures: Vec<&String> = operations
                .iter()
                .filter_map(|one| one.failure.as_ref())
                .collect();
            if let Some(first) = failures.first() {
                let failed = failures.len();
                let all = operations.len();
                descriptions.push(format!("{name}: {failed} of {all} failed: {first}"));
            }
        }
        descriptions
    }
}

impl HonestClients {
    /// Announces, signs and pushes a small repository of this maintainer.
    pub(crate) async fn start(client: ServerClient, maintainer: Author) -> Self {
        let maintainer = maintainer.earlier(3_600);
        let name = "honest";
        let work = Workdir::init().await;
        let commit = work.commit("first").await;
        let announcement = maintainer.announce(name, &client.service());
        let state = maintainer.state(name, &[(MAIN, &commit)]);
        client.publish_all(&[&announcement, &state]).await;
        let url = client.clone_url(&maintainer.repo(name));
        let header = client.header(&url);
        work.git(&["-c", &header, "push", &url, "main"])
            .await
            .expect_ok();
        let (id, pushes) = (announcement.id, 0.into());
        Self {
            maintainer,
            name: name.to_owned(),
            work,
            client,
            announcement: id,
            pushes,
        }
    }

    pub(crate) fn repo(&self) -> RepoId {
        self.maintainer.repo(&self.name)
    }

    /// Repeats each operation at least `rounds` times, and until `stop` is set.
    pub(crate) async fn work(
        self: &Arc<Self>,
        rounds: usize,
        stop: &Arc<AtomicBool>,
    ) -> Operations {
        let is_needed = |done: usize| done < rounds || !stop.load(Ordering::Relaxed);
        let push = async {
            let mut done = Vec::new();
            while is_needed(done.len()) {
                done.push(timed(self.push()).await);
            }
            done
        };
        let request = async {
            let mut done = Vec::new();
            while is_needed(done.len()) {
                done.push(timed(self.request()).await);
            }
            done
        };
        let clone = async {
            let mut done = Vec::new();
            while is_needed(done.len()) {
                done.push(timed(self.clone_once()).await);
            }
            done
        };
        let (push, request, clone) = tokio::join!(push, request, clone);
        Operations {
            push,
            request,
            clone,
        }
    }

    /// Signs a new commit and pushes it.
    async fn push(&self) -> Result<(), String> {
        let number = self.pushes.fetch_add(1, Ordering::Relaxed) + 1;
        let commit = self.work.commit(&format!("change {number}")).await;
        let state = self
            .maintainer
            .later(number)
            .state(&self.name, &[(MAIN, &commit)]);
        self.client
            .publish(&state)
            .await
            .ok_or("the state is not answered")??;
        let url = self.client.clone_url(&self.repo());
        let header = self.client.header(&url);
        let push = ["-c", &header, "push", "-q", &url, "main"];
        succeeded(self.work.git(&push).await)
    }

    /// Requests the announcement by its id.
    async fn request(&self) -> Result<(), String> {
        let filter = json!({ "ids": [self.announcement.to_hex()] });
        let found = self.client.matching(&filter).await;
        match found.ok_or("there is no answer")?.is_empty() {
            true => Err("the event is not served".to_owned()),
            false => Ok(()),
        }
    }

    /// Clones the repository.
    async fn clone_once(&self) -> Result<(), String> {
        let url = self.client.clone_url(&self.repo());
        let header = self.client.header(&url);
        let clone = ["-c", &header, "clone", "-q", &url, "copy"];
        succeeded(Workdir::empty().git(&clone).await)
    }
}

/// Returns the errors of a command that failed.
fn succeeded(output: GitOutput) -> Result<(), String> {
    if output.ok { Ok(()) } else { Err(output.err) }
}

/// Executes an operation and measures it.
async fn timed(operation: impl Future<Output = Result<(), String>>) -> Operation {
    tokio::time::sleep(OPERATION_PAUSE).await;
    let start = Instant::now();
    let failure = match tokio::time::timeout(OPERATION_TIMEOUT, operation).await {
        Ok(Ok(())) => {
            return Operation {
                time: start.elapsed(),
                failure: None,
            };
        }
        Ok(Err(reason)) => reason,
        Err(_) => format!("no result after {OPERATION_TIMEOUT:?}"),
    };
    Operation {
        time: OPERATION_TIMEOUT,
        failure: Some(failure),
    }
}
