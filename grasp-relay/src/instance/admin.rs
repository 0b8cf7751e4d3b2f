//! Requests to a running server over a socket in its data directory, of both sides.
//!
//! A request is one line of JSON, and so is its response. Only the user that the server runs as may connect.

use std::io::{self, BufRead as _, Write as _};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::RepoId;
use grasp_core::quota::QuotaSubject;
use nostr::key::PublicKey;
use rustix::fs::Mode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::instance::Server;
use crate::instance::error::{Explain as _, InstanceError, Result};
use crate::instance::files::create_private_dir;
use crate::instance::overview::Overview;
use crate::management::Management;
use crate::management::rules::Request;

/// A request to a running server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminRequest {
    /// The status.
    Status,
    /// The repositories, the latest active first.
    Repositories,
    /// The repositories whose events wait for git data.
    Waiting,
    /// Salvages damaged packs of a repository, which may take long, starts to fetch what is missing, and tells whether
    /// objects are.
    Repair(RepoId),
    /// Whether a repository is known to lack objects.
    LacksObjects(RepoId),
    /// The git data of all owners, or of one with its repositories.
    Usage(Option<PublicKey>),
    /// Gives an owner or a repository a quota of its own, or takes it back.
    SetQuota {
        /// The owner or the repository.
        subject: QuotaSubject,
        /// The quota; `None` for that of the settings.
        bytes: Option<u64>,
    },
    /// Removes objects that no ref of a repository reaches, which may take long, and tells whether there were some.
    Purge(RepoId),
    /// A call of administration, as over NIP-86.
    Manage(Request),
}

/// Pause after a connection could not be accepted.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Limits concurrent connections; later ones wait.
const MAX_CONNECTIONS: usize = 16;

/// Limits a request: a call of administration, and the name of what is requested.
const MAX_LINE_BYTES: u64 = Request::MAX_BYTES as u64 + 1_024;

/// The bound admin socket. One process per data directory can have it.
pub struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// The task that answers requests; dropping it removes the socket.
pub struct AdminTask {
    task: JoinHandle<()>,
    path: PathBuf,
}

impl AdminSocket {
    /// Binds the socket. Fails if another server listens on it.
    pub fn bind(path: &Path) -> Result<Self> {
        if net::UnixStream::connect(path).is_ok() {
            let socket = path.display();
            return Err(InstanceError::caller(format!(
                "another server is running: it listens on {socket}; stop it, or choose another --data-dir"
            )));
        }
        if let Some(dir) = path.parent() {
            create_private_dir(dir).with_context(|| {
                let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
                let dir = dir.display();
                format!("could not create {dir}; choose another directory with --data-dir")
            })?;
        }
        // No process listens on it: one that was killed has left it behind.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("could not remove {}", path.display()));
            }
            _ => {}
        }
        let listener = bind_private(path)
            .with_context(|| format!("could not open the socket {}", path.display()))?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// Starts to answer requests to a server, those that already wait included.
    pub fn serve(self, server: &Server) -> AdminTask {
        self.answer(server.overview().clone(), Some(server.management().clone()))
    }

    /// Starts to answer requests. A sidecar has no administration.
    pub(super) fn answer(self, overview: Overview, management: Option<Management>) -> AdminTask {
        let Self { listener, path } = self;
        AdminTask {
            task: tokio::spawn(accept_all(
                listener,
                Parts {
                    overview,
                    management,
                },
            )),
            path,
        }
    }
}

impl Drop for AdminTask {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Binds a socket that only its owner can use from the moment it exists.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound
}

/// What requests are answered with.
#[derive(Clone)]
struct Parts {
    overview: Overview,
    management: Option<Management>,
}

async fn accept_all(listener: UnixListener, parts: Parts) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            continue;
        };
        let parts = parts.clone();
        tokio::spawn(async move {
            let _ = serve_connection(stream, &parts).await;
            drop(permit);
        });
    }
}

async fn serve_connection(stream: UnixStream, parts: &Parts) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read);
    loop {
        let mut line = String::new();
        if (&mut lines)
            .take(MAX_LINE_BYTES)
            .read_line(&mut line)
            .await?
            == 0
        {
            return Ok(());
        }
        let response = match serde_json::from_str(&line) {
            Ok(AdminRequest::Manage(request)) => manage(parts, user, &request).await,
            Ok(request) => respond(&parts.overview, request).await,
            Err(error) => Err(error.to_string()),
        };
        let mut text = serde_json::to_string(&response)?;
        text.push('\n');
        write.write_all(text.as_bytes()).await?;
    }
}

/// Makes a call of administration for a user of this machine.
async fn manage(parts: &Parts, user: u32, request: &Request) -> Result<Value, String> {
    match &parts.management {
        Some(management) => management.call_locally(user, request).await,
        None => Err("a sidecar hosts nothing; ask the relay".to_owned()),
    }
}

async fn respond(overview: &Overview, request: AdminRequest) -> Result<Value, String> {
    match request {
        AdminRequest::Status => serde_json::to_value(overview.status().await),
        AdminRequest::Repositories => serde_json::to_value(overview.repositories().await?),
        AdminRequest::Waiting => serde_json::to_value(overview.waiting().await?),
        AdminRequest::Repair(repo) => serde_json::to_value(overview.repair(&repo).await?),
        AdminRequest::LacksObjects(repo) => serde_json::to_value(overview.lacks_objects(&repo)?),
        AdminRequest::Usage(owner) => serde_json::to_value(overview.usage(owner).await?),
        AdminRequest::SetQuota { subject, bytes } => {
            serde_json::to_value(overview.set_quota(subject, bytes).await?)
        }
        AdminRequest::Purge(repo) => serde_json::to_value(overview.purge(&repo).await?),
        // It needs to know who asks.
        AdminRequest::Manage(_) => return Err("not a request about the status".to_owned()),
    }
    .map_err(|error| error.to_string())
}

/// Limits the time that a server takes to answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the response of the server behind a socket.
pub fn request<T: DeserializeOwned>(socket: &Path, request: AdminRequest) -> Result<T> {
    let mut stream =
        net::UnixStream::connect(socket).map_err(|error| connect_error(socket, &error))?;
    let is_long = matches!(request, AdminRequest::Repair(_) | AdminRequest::Purge(_));
    stream.set_read_timeout((!is_long).then_some(RESPONSE_TIMEOUT))?;
    let text = serde_json::to_string(&request)? + "\n";
    stream
        .write_all(text.as_bytes())
        .context("the server closed the connection")?;
    let mut line = String::new();
    io::BufReader::new(stream)
        .read_line(&mut line)
        .context("the server does not respond")?;
    let response: Result<T, String> =
        serde_json::from_str(&line).context("the server has another version")?;
    response.map_err(|why| InstanceError::caller(format!("the server could not answer: {why}")))
}

/// Explains why the socket cannot be connected to, and what to do.
fn connect_error(path: &Path, error: &io::Error) -> InstanceError {
    let socket = path.display();
    let remedy = "start one with `grasp serve`, or name its directory with --data-dir";
    match error.kind() {
        io::ErrorKind::NotFound => InstanceError::caller(format!(
            "no server is running: there is no {socket}; {remedy}"
        )),
        io::ErrorKind::ConnectionRefused => InstanceError::caller(format!(
            "no server is running: no process listens on {socket}; {remedy}"
        )),
        io::ErrorKind::PermissionDenied => InstanceError::caller(format!(
            "no permission to use {socket}; run this as the user that the server runs as"
        )),
        _ => InstanceError::caller(format!("could not connect to {socket}: {error}")),
    }
}
