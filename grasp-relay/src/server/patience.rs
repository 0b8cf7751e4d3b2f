//! A connection that is given up when the other side takes nothing for too long.
//!
//! The kernel takes megabytes for a slow reader at once and then nothing for minutes. So whether the other side still
//! reads is seen by what it acknowledges, which the kernel watches (`TCP_USER_TIMEOUT`); a write that is stuck is given
//! up much later.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use super::UnfinishedMessage;

/// How many times as long a write may be stuck while the other side still acknowledges something: at the default
/// timeout, and with the largest buffer that Linux gives a socket, this is some 3 KB a second.
const SLOW: u32 = 10;

/// Lets the kernel close the connection when nothing is acknowledged for this long; whether it will.
#[cfg(target_os = "linux")]
fn acknowledge_within(stream: &TcpStream, timeout: Duration) -> bool {
    let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(stream, millis).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn acknowledge_within(_: &TcpStream, _: Duration) -> bool {
    false
}

/// A socket whose writes may be stuck for a while and no longer.
///
/// Whoever clones and stops reading would otherwise keep a git process, and a place among the connections, for ever.
pub(super) struct Patient {
    stream: TcpStream,
    patience: Duration,
    stuck: Pin<Box<Sleep>>,
    is_stuck: bool,
    /// Counts what comes in as part of a websocket message.
    message: UnfinishedMessage,
}

impl Patient {
    /// Gives the stream up when the other side acknowledges nothing for this long.
    pub(super) fn new(stream: TcpStream, timeout: Duration, message: UnfinishedMessage) -> Self {
        let patience = if acknowledge_within(&stream, timeout) { timeout * SLOW } else { timeout };
        Self { stream, patience, stuck: Box::pin(sleep(patience)), is_stuck: false, message }
    }

    /// Passes on what a write came to, unless nothing has come of it for too long.
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_stuck = false;
            return written;
        }
        if !self.is_stuck {
            self.is_stuck = true;
            let patience = self.patience;
            self.stuck.as_mut().reset(Instant::now() + patience);
        }
        ready!(self.stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        Poll::Ready(self.message.received(buffer.filled().len() - before))
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.bounded(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
