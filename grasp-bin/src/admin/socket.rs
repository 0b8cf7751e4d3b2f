//! The server of the admin socket.

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

use super::{AdminHandler, AdminResponse};
use crate::files::create_private_dir;

/// Limits concurrent connections; later ones wait.
const MAX_CONNECTIONS: usize = 16;

const MAX_REQUEST_BYTES: u64 = 1_024;

/// The bound admin socket. One process per data directory can have it.
pub(crate) struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// The task that answers requests; dropping it removes the socket.
pub(crate) struct AdminTask {
    task: JoinHandle<()>,
    path: PathBuf,
}

impl AdminSocket {
    /// Binds the socket. Fails if another server listens on it.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        if Probe::connect(path).is_ok() {
            let socket = path.display();
            bail!(
                "another server is running: it listens on {socket}; stop it, or choose another --data-dir"
            );
        }
        if let Some(dir) = path.parent() {
            create_private_dir(dir)
                .with_context(|| format!("could not create {}", dir.display()))?;
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
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Starts to answer requests, those that already wait included.
    pub(crate) fn serve(self, handler: impl AdminHandler) -> AdminTask {
        let Self { listener, path } = self;
        AdminTask { task: tokio::spawn(accept_all(listener, handler)), path }
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

async fn accept_all(listener: UnixListener, handler: impl AdminHandler) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let handler = handler.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let _ = serve_connection(stream, &handler).await;
        });
    }
}

async fn serve_connection(stream: UnixStream, handler: &impl AdminHandler) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read);
    loop {
        let mut line = String::new();
        if (&mut lines).take(MAX_REQUEST_BYTES).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let response = match serde_json::from_str(&line) {
            Ok(request) => handler.handle(request).await,
            Err(error) => AdminResponse::Failed(error.to_string()),
        };
        let mut text = serde_json::to_string(&response)?;
        text.push('\n');
        write.write_all(text.as_bytes()).await?;
    }
}
