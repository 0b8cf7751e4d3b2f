//! Git's output as a response body.

use axum::body::{Body, Bytes};
use futures_util::stream;
use grasp_purgatory::git::{GitError, GitProcess};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;

/// Bytes read from git at once.
const CHUNK: usize = 64 * 1024;

/// A process whose output is being sent. Dropped with the response, it is killed.
struct Running {
    output: ChildStdout,
    process: GitProcess,
}

/// Sends what git writes, after a few bytes of our own. A git that fails breaks the body off: what was sent before
/// must not look complete.
pub(super) fn body(mut process: GitProcess, prefix: &'static [u8]) -> Result<Body, GitError> {
    let Some(output) = process.take_stdout() else { return Err(GitError::NoView) };
    let running = (Some(Running { output, process }), prefix);
    Ok(Body::from_stream(stream::try_unfold(running, |(running, prefix)| async move {
        if !prefix.is_empty() {
            return Ok(Some((Bytes::from_static(prefix), (running, &b""[..]))));
        }
        let Some(mut running) = running else { return Ok(None) };
        let mut buffer = Vec::with_capacity(CHUNK);
        if running.output.read_buf(&mut buffer).await? > 0 {
            return Ok(Some((Bytes::from(buffer), (Some(running), prefix))));
        }
        match running.process.finish().await {
            Ok(finished) if finished.status.success() => Ok(None),
            Ok(_) => Err(std::io::Error::other("git failed")),
            Err(error) => Err(std::io::Error::other(error)),
        }
    })))
}
