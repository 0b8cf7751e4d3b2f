//! The client of the admin socket.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use grasp_relay::web::figures::{RepoRow, Status, WaitingRow};

use super::{AdminRequest, AdminResponse};

/// Limits the time that a server takes to answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the admin socket of a running server.
pub(crate) struct AdminClient {
    stream: BufReader<UnixStream>,
}

impl AdminClient {
    /// Connects to the socket of a server.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| connect_error(path, &error))?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Requests the status of the server.
    pub(crate) fn status(&mut self) -> Result<Status> {
        match self.send(AdminRequest::Status)? {
            AdminResponse::Status(status) => Ok(*status),
            other => bail!("unexpected response: {other:?}"),
        }
    }

    /// Requests the hosted repositories.
    pub(crate) fn repositories(&mut self) -> Result<Vec<RepoRow>> {
        match self.send(AdminRequest::Repositories)? {
            AdminResponse::Repositories(rows) => Ok(rows),
            other => bail!("unexpected response: {other:?}"),
        }
    }

    /// Requests the repository names whose events wait for git data.
    pub(crate) fn waiting(&mut self) -> Result<Vec<WaitingRow>> {
        match self.send(AdminRequest::Waiting)? {
            AdminResponse::Waiting(rows) => Ok(rows),
            other => bail!("unexpected response: {other:?}"),
        }
    }

    fn send(&mut self, request: AdminRequest) -> Result<AdminResponse> {
        let mut text = serde_json::to_string(&request)?;
        text.push('\n');
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .context("the server closed the connection")?;
        let mut line = String::new();
        self.stream.read_line(&mut line).context("the server does not respond")?;
        let response = serde_json::from_str(&line).context("the server has another version")?;
        match response {
            AdminResponse::Failed(why) => bail!("the server could not answer: {why}"),
            response => Ok(response),
        }
    }
}

/// Explains why the socket cannot be connected to, and what to do.
fn connect_error(path: &Path, error: &io::Error) -> Error {
    let socket = path.display();
    let remedy = "start one with `grasp serve`, or name its directory with --data-dir";
    match error.kind() {
        io::ErrorKind::NotFound => anyhow!("no server is running: there is no {socket}; {remedy}"),
        io::ErrorKind::ConnectionRefused => {
            anyhow!("no server is running: no process listens on {socket}; {remedy}")
        }
        io::ErrorKind::PermissionDenied => {
            anyhow!("no permission to use {socket}; run this as the user that the server runs as")
        }
        _ => anyhow!("could not connect to {socket}: {error}"),
    }
}
