//! Git's output as a response body.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use grasp_core::resources::{Bounds, Claimant};
use grasp_purgatory::git::{Finished, GitError, GitProcess};
use grasp_purgatory::resources::{Holding, SharedPool};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;
use tokio::sync::mpsc;

use super::progress::Progress;

/// Bytes read from git at once.
const CHUNK: usize = 64 * 1024;

/// Up to here git's own protocol tells a client that something is lacking; beyond, a pack may be on its way.
const SHORT: u64 = 16 * 1024;

/// Bytes that git must write within [`PATIENCE`] of waiting for it. What it sends to keep a connection alive, and to
/// tell of its progress, is less.
const GIT_STEP: u64 = 64 * 1024;

/// Bytes that a client must read within [`PATIENCE`] of waiting for it, while it keeps a git process: 7 KB a second.
const CLIENT_STEP: u64 = 2 * 1024 * 1024;

/// How long each of them is waited for. The socket takes bytes of a slow client in lumps that last for minutes.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// Bytes of one answer that wait in memory for its client, so that git need not wait: most answers are smaller.
const SPOOL: u64 = 2 * 1024 * 1024;

/// The same of all answers.
const SPOOLS: u64 = 16 * SPOOL;

/// Chunks that wait where nothing is spooled.
const UNSPOOLED: usize = 2;

/// Room for answers whose clients read more slowly than git writes.
#[derive(Clone, Debug)]
pub(super) struct Spool(SharedPool);

impl Default for Spool {
    fn default() -> Self {
        Self(SharedPool::new(Bounds { reserve: 0, smallest: SPOOL, ..Bounds::of(SPOOLS) }))
    }
}

impl Spool {
    /// Makes a body of an answer that is in memory already; `None` if it is long and there is no room for it.
    pub(super) fn body(&self, claimant: &Claimant, answer: Vec<u8>) -> Option<Body> {
        if answer.len() <= CHUNK {
            return Some(Body::from(answer));
        }
        let room = self.0.try_take(claimant, answer.len() as u64).ok()?;
        let left = (Bytes::from(answer), room);
        Some(Body::from_stream(stream::unfold(left, |(mut left, room)| async move {
            let next = left.split_to(CHUNK.min(left.len()));
            (!next.is_empty()).then_some((io::Result::Ok(next), (left, room)))
        })))
    }

    /// Takes room for one answer if there is some.
    pub(super) fn room(&self, claimant: &Claimant) -> Option<Holding> {
        self.0.try_take(claimant, SPOOL).ok()
    }
}

/// A process whose output is being sent. Dropped with the response, it is killed.
pub(super) struct Output {
    stdout: ChildStdout,
    process: GitProcess,
    read: u64,
    progress: Progress,
    /// Told what git said, once it has ended.
    on_end: Box<dyn FnOnce(&str) + Send>,
}

impl Output {
    pub(super) fn of(
        mut process: GitProcess,
        on_end: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Self, GitError> {
        let stdout = process.take_stdout().ok_or(GitError::NoView)?;
        let progress = Progress::of(GIT_STEP, PATIENCE);
        Ok(Self { stdout, process, read: 0, progress, on_end: Box::new(on_end) })
    }

    /// The next bytes; none at the end.
    pub(super) async fn next(&mut self) -> io::Result<Bytes> {
        let mut buffer = Vec::with_capacity(CHUNK);
        let read = self.progress.wait(self.stdout.read_buf(&mut buffer)).await??;
        self.progress.moved(read);
        self.read += read as u64;
        Ok(Bytes::from(buffer))
    }

    /// How git ended, once there is nothing more to read.
    pub(super) async fn end(self) -> Result<Finished, GitError> {
        let finished = self.process.finish().await?;
        (self.on_end)(&finished.words);
        Ok(finished)
    }

    /// Sends what git writes, after a few bytes that are known already. Git goes on while there is room for what it
    /// writes.
    ///
    /// A git that fails on the way breaks the body off: what was sent before must not look complete. If it said no
    /// more than why it fails, that is an answer like any other.
    pub(super) fn into_body(self, first: Bytes, room: Option<Holding>) -> Body {
        let chunks = room.as_ref().map_or(UNSPOOLED, |_| (SPOOL as usize) / CHUNK);
        let (sender, receiver) = mpsc::channel(chunks);
        tokio::spawn(self.send(first, sender));
        Body::from_stream(stream::unfold((receiver, room), |(mut receiver, room)| async move {
            let next: io::Result<Bytes> = receiver.recv().await?;
            Some((next, (receiver, room)))
        }))
    }

    /// Hands over what git writes until it ends, or the client is gone.
    async fn send(self, first: Bytes, sender: mpsc::Sender<io::Result<Bytes>>) {
        tokio::select! {
            () = sender.closed() => {}
            sent = self.send_all(first, &sender) => if let Err(error) = sent {
                _ = sender.send(Err(error)).await;
            },
        }
    }

    async fn send_all(
        mut self,
        first: Bytes,
        sender: &mpsc::Sender<io::Result<Bytes>>,
    ) -> io::Result<()> {
        let mut client = Progress::of(CLIENT_STEP, PATIENCE);
        let mut bytes = first;
        loop {
            let length = bytes.len();
            if client.wait(sender.send(Ok(bytes))).await?.is_err() {
                return Ok(());
            }
            client.moved(length);
            bytes = self.next().await?;
            if bytes.is_empty() {
                break;
            }
        }
        let read = self.read;
        let finished = self.end().await.map_err(io::Error::other)?;
        let is_complete = finished.status.success() || read <= SHORT;
        if is_complete { Ok(()) } else { Err(io::Error::other("git failed")) }
    }
}
