//! The asking end of the socket.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use grasp_relay::web::figures::{RepoRow, Status, WaitingRow};

use super::{Answer, Question};

/// How long a server may think.
const PATIENCE: Duration = Duration::from_secs(30);

/// Somebody who asks a running server.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Goes to the server whose socket this is.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| unanswered(path, &error))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// How everything stands.
    pub(crate) fn status(&mut self) -> Result<Status> {
        match self.ask(Question::Status)? {
            Answer::Status(status) => Ok(*status),
            other => bail!("an answer to something else: {other:?}"),
        }
    }

    /// Which repositories there are.
    pub(crate) fn repositories(&mut self) -> Result<Vec<RepoRow>> {
        match self.ask(Question::Repositories)? {
            Answer::Repositories(rows) => Ok(rows),
            other => bail!("an answer to something else: {other:?}"),
        }
    }

    /// What waits for git data.
    pub(crate) fn waiting(&mut self) -> Result<Vec<WaitingRow>> {
        match self.ask(Question::Waiting)? {
            Answer::Waiting(rows) => Ok(rows),
            other => bail!("an answer to something else: {other:?}"),
        }
    }

    fn ask(&mut self, question: Question) -> Result<Answer> {
        let mut text = serde_json::to_string(&question)?;
        text.push('\n');
        self.stream.get_mut().write_all(text.as_bytes()).context("the server went away")?;
        let mut line = String::new();
        self.stream.read_line(&mut line).context("the server does not answer")?;
        let answer = serde_json::from_str(&line).context("the server is of another version")?;
        match answer {
            Answer::Failed(why) => bail!("the server could not say: {why}"),
            answer => Ok(answer),
        }
    }
}

/// Why nobody can be asked, and what to do about it.
fn unanswered(path: &Path, error: &io::Error) -> Error {
    let (place, remedy) = (path.display(), "start one with `grasp serve`, or say its --data-dir");
    match error.kind() {
        io::ErrorKind::NotFound => anyhow!("no server is running: there is no {place}; {remedy}"),
        io::ErrorKind::ConnectionRefused => {
            anyhow!("no server is running: nobody answers at {place}; {remedy}")
        }
        io::ErrorKind::PermissionDenied => {
            anyhow!("{place} is not for you; ask as the user that the server runs as")
        }
        _ => anyhow!("no server can be asked at {place}: {error}"),
    }
}
