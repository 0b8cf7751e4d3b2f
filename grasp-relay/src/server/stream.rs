//! A TCP stream that times out when the peer stops reading, and that limits unfinished websocket messages.
//!
//! The kernel takes megabytes for a slow reader at once and then nothing for minutes. So the kernel watches what the
//! peer acknowledges (`TCP_USER_TIMEOUT`); a write without progress times out much later.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use grasp_core::resources::Claimant;
use grasp_purgatory::resources::{Holding, SharedPool};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// The factor by which a write may take longer while the peer still acknowledges data. At the default timeout, and
/// with the largest buffer that Linux gives a socket, this allows some 3 KB a second.
pub(super) const SLOW_READER_FACTOR: u32 = 10;

/// Lets the kernel close the connection when nothing is acknowledged for this long; returns whether it will.
#[cfg(target_os = "linux")]
fn acknowledge_within(stream: &TcpStream, timeout: Duration) -> bool {
    let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(stream, millis).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn acknowledge_within(_: &TcpStream, _: Duration) -> bool {
    false
}

/// A TCP stream whose writes time out.
///
/// Otherwise a client that clones and stops reading would keep a git process and a connection for ever.
pub(super) struct WriteTimeoutStream {
    stream: TcpStream,
    timeout: Duration,
    stuck: Pin<Box<Sleep>>,
    is_stuck: bool,
    /// Counts received bytes as part of a websocket message.
    message: UnfinishedMessage,
}

impl WriteTimeoutStream {
    /// Closes the stream when the peer acknowledges nothing for this long.
    pub(super) fn new(stream: TcpStream, timeout: Duration, message: UnfinishedMessage) -> Self {
        let is_watched = acknowledge_within(&stream, timeout);
        let timeout = if is_watched {
            timeout * SLOW_READER_FACTOR
        } else {
            timeout
        };
        Self {
            stream,
            timeout,
            stuck: Box::pin(sleep(timeout)),
            is_stuck: false,
            message,
        }
    }

    /// Returns the result of a write, or an error if it made no progress for too long.
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
            let timeout = self.timeout;
            self.stuck.as_mut().reset(Instant::now() + timeout);
        }
        ready!(self.stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeoutStream {
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

impl AsyncWrite for WriteTimeoutStream {
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

/// Bytes of unfinished messages of all connections together. One IPv4 address has a quarter of what others leave.
pub(crate) const MAX_UNFINISHED_BYTES: usize = 128 * 1024 * 1024;

/// Bytes of a message that are not counted: most messages are shorter.
const FREE_BYTES: u64 = 16 * 1024;

/// Bytes that are reserved at once.
const STEP_BYTES: u64 = 64 * 1024;

/// The time that a counted message may take.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// The unfinished message of one connection. Counts nothing until the connection is a websocket.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnfinishedMessage {
    state: Arc<Mutex<Option<MessageState>>>,
}

#[derive(Debug)]
struct MessageState {
    all: SharedPool,
    claimant: Claimant,
    bytes: u64,
    /// The arrival of the first byte.
    since: Instant,
    held: Option<Holding>,
}

impl UnfinishedMessage {
    /// Starts to count the bytes, within those of all connections.
    pub(crate) fn begin(&self, all: &SharedPool, claimant: Claimant) {
        let all = all.clone();
        let since = Instant::now();
        *self.lock() = Some(MessageState {
            all,
            claimant,
            bytes: 0,
            since,
            held: None,
        });
    }

    /// Counts received bytes; fails if the network's share is used up, or the message took too long.
    pub(crate) fn received(&self, bytes: usize) -> io::Result<()> {
        self.received_at(Instant::now(), bytes)
    }

    fn received_at(&self, now: Instant, bytes: usize) -> io::Result<()> {
        self.lock()
            .as_mut()
            .map_or(Ok(()), |state| state.received(now, bytes as u64))
    }

    /// Ends the message.
    pub(crate) fn finished(&self) {
        if let Some(state) = self.lock().as_mut() {
            state.bytes = 0;
            state.held = None;
        }
    }

    /// Excludes a ping or pong, which may come within a message.
    pub(crate) fn exclude(&self, payload: usize) {
        /// Bytes of the header of a masked control frame.
        const HEADER: usize = 6;
        if let Some(state) = self.lock().as_mut() {
            state.bytes = state.bytes.saturating_sub((payload + HEADER) as u64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<MessageState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MessageState {
    fn received(&mut self, now: Instant, bytes: u64) -> io::Result<()> {
        if self.bytes == 0 {
            self.since = now;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes <= FREE_BYTES {
            return Ok(());
        }
        if now - self.since > MESSAGE_TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let needed = self.bytes.next_multiple_of(STEP_BYTES);
        let granted = match &mut self.held {
            Some(held) if held.amount() >= needed => Ok(()),
            Some(held) => held.resize(needed),
            None => self
                .all
                .try_take(&self.claimant, needed)
                .map(|held| self.held = Some(held)),
        };
        granted.map_err(|_| io::ErrorKind::QuotaExceeded.into())
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::resources::ClientNetwork;

    use super::*;
    use crate::server::shared_pool;

    const MIB: usize = 1024 * 1024;

    fn connection(all: &SharedPool, address: &str) -> UnfinishedMessage {
        let message = UnfinishedMessage::default();
        message.begin(
            all,
            Claimant::at(ClientNetwork::of(address.parse().unwrap())),
        );
        message
    }

    #[tokio::test]
    async fn one_address_holds_a_quarter_and_gives_it_back() {
        let all = shared_pool(MAX_UNFINISHED_BYTES);
        let eve: Vec<_> = (0..128).map(|_| connection(&all, "198.51.100.1")).collect();
        let held = eve
            .iter()
            .filter(|message| message.received(4 * MIB).is_ok())
            .count();
        assert_eq!(held, 8);
        let refused = eve.last().unwrap().received(1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        let alice = connection(&all, "192.0.2.1");
        assert!(alice.received(5 * MIB).is_ok());
        alice.finished();
        drop(eve);
        assert_eq!(all.usage().all, 0);
    }

    #[tokio::test]
    async fn plain_http_and_short_messages_are_not_counted() {
        let all = shared_pool(MAX_UNFINISHED_BYTES);
        assert!(UnfinishedMessage::default().received(1_000 * MIB).is_ok());
        let short = connection(&all, "192.0.2.1");
        for _ in 0..1_000 {
            assert!(short.received(1_000).is_ok());
            short.finished();
        }
        assert_eq!(all.usage().all, 0);
    }

    #[tokio::test]
    async fn a_message_that_never_ends_ends_the_connection_and_pings_do_not() {
        let all = shared_pool(MAX_UNFINISHED_BYTES);
        let (slow, pinging) = (connection(&all, "192.0.2.1"), connection(&all, "192.0.2.2"));
        assert!(slow.received(100_000).is_ok());
        for _ in 0..1_000 {
            assert!(pinging.received(131).is_ok());
            pinging.exclude(125);
        }
        let later = Instant::now() + MESSAGE_TIMEOUT + Duration::from_secs(1);
        assert!(pinging.received_at(later, 131).is_ok());
        assert_eq!(
            slow.received_at(later, 10).unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        slow.finished();
        assert!(slow.received_at(later, 100_000).is_ok());
    }
}
