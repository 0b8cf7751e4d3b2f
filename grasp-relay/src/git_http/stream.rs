//! Git's output as a response body.

use axum::body::{Body, Bytes};
use futures_util::stream;
use grasp_purgatory::git::{Finished, GitError, GitProcess};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;

/// Bytes read from git at once.
const CHUNK: usize = 64 * 1024;

/// Up to here git's own protocol tells a client that something is lacking; beyond, a pack may be on its way.
const SHORT: u64 = 16 * 1024;

/// A process whose output is being sent. Dropped with the response, it is killed.
pub(super) struct Output {
    stdout: ChildStdout,
    process: GitProcess,
    read: u64,
    /// Told what git said, once it has ended.
    on_end: Box<dyn FnOnce(&str) + Send>,
}

impl Output {
    pub(super) fn of(
        mut process: GitProcess,
        on_end: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Self, GitError> {
        let stdout = process.take_stdout().ok_or(GitError::NoView)?;
        Ok(Self { stdout, process, read: 0, on_end: Box::new(on_end) })
    }

    /// The next bytes; none at the end.
    pub(super) async fn next(&mut self) -> std::io::Result<Bytes> {
        let mut buffer = Vec::with_capacity(CHUNK);
        self.read += self.stdout.read_buf(&mut buffer).await? as u64;
        Ok(Bytes::from(buffer))
    }

    /// How git ended, once there is nothing more to read.
    pub(super) async fn end(self) -> Result<Finished, GitError> {
        let finished = self.process.finish().await?;
        (self.on_end)(&finished.words);
        Ok(finished)
    }

    /// Sends what git writes, after a few bytes that are known already.
    ///
    /// A git that fails on the way breaks the body off: what was sent before must not look complete. If it said no
    /// more than why it fails, that is an answer like any other.
    pub(super) fn into_body(self, first: Bytes) -> Body {
        Body::from_stream(stream::try_unfold((Some(self), first), |(output, first)| async move {
            if !first.is_empty() {
                return Ok(Some((first, (output, Bytes::new()))));
            }
            let Some(mut output) = output else { return Ok(None) };
            let bytes = output.next().await?;
            if !bytes.is_empty() {
                return Ok(Some((bytes, (Some(output), Bytes::new()))));
            }
            let read = output.read;
            match output.end().await.map_err(std::io::Error::other)? {
                finished if finished.status.success() || read <= SHORT => Ok(None),
                _ => Err(std::io::Error::other("git failed")),
            }
        }))
    }
}
