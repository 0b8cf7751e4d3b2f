//! The server's end of the socket.

use std::io;
use std::os::unix::net::UnixStream as Probe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustix::fs::Mode;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::{Answer, Answers};
use crate::place::create_privately;

/// Those who ask at the same time; more wait.
const MOST_GUESTS: usize = 16;

/// The longest question.
const LONGEST: u64 = 1_024;

/// The place where questions are asked; whoever has it is the only server of its data directory.
pub(crate) struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// Answers questions until it is dropped.
pub(crate) struct Answering {
    task: JoinHandle<()>,
    path: PathBuf,
}

impl AdminSocket {
    /// Takes the place. Fails if another server has it.
    pub(crate) fn claim(path: &Path) -> Result<Self> {
        if Probe::connect(path).is_ok() {
            let place = path.display();
            bail!(
                "another server is running here: {place} answers; stop it, or say another --data-dir"
            );
        }
        if let Some(dir) = path.parent() {
            create_privately(dir).with_context(|| format!("could not create {}", dir.display()))?;
        }
        // Whoever left it behind is gone.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("could not remove {}", path.display()));
            }
            _ => {}
        }
        let listener = bind_privately(path)
            .with_context(|| format!("could not open the socket {}", path.display()))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Begins to answer. Whoever asked before has waited for this.
    pub(crate) fn answer(self, desk: impl Answers) -> Answering {
        let Self { listener, path } = self;
        Answering { task: tokio::spawn(answer_all(listener, desk)), path }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The socket is nobody else's from its first moment on.
fn bind_privately(path: &Path) -> io::Result<UnixListener> {
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound
}

async fn answer_all(listener: UnixListener, desk: impl Answers) {
    let seats = Arc::new(Semaphore::new(MOST_GUESTS));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let desk = desk.clone();
        tokio::spawn(async move {
            let _seat = seat;
            let _ = converse(stream, &desk).await;
        });
    }
}

async fn converse(stream: UnixStream, desk: &impl Answers) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read);
    loop {
        let mut line = String::new();
        if (&mut lines).take(LONGEST).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_str(&line) {
            Ok(question) => desk.answer(question).await,
            Err(error) => Answer::Failed(error.to_string()),
        };
        let mut text = serde_json::to_string(&answer)?;
        text.push('\n');
        write.write_all(text.as_bytes()).await?;
    }
}
