//! Websocket messages that have begun and not ended: what they hold, and for how long.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::resources::{Bounds, Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use tokio::time::Instant;

/// Bytes of unfinished messages of all connections together. One IPv4 address has a quarter of what others leave.
const MAX_BYTES: u64 = 128 * 1024 * 1024;

/// Bytes of a message that are not accounted for: most messages are shorter.
const FREE_BYTES: u64 = 16 * 1024;

/// Bytes that are accounted for at once.
const STEP_BYTES: u64 = 64 * 1024;

/// How long a message that is accounted for may take.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// The messages of all connections that have begun and not ended.
#[derive(Clone, Debug)]
pub(crate) struct UnfinishedMessages {
    bytes: SharedPool,
}

/// The message of one connection that has begun and not ended. Counts nothing until the connection is a websocket.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnfinishedMessage {
    state: Arc<Mutex<Option<State>>>,
}

#[derive(Debug)]
struct State {
    all: SharedPool,
    claimant: Claimant,
    bytes: u64,
    /// When the first of them came.
    since: Instant,
    held: Option<Holding>,
}

impl UnfinishedMessages {
    pub(crate) fn new() -> Self {
        let bounds = Bounds { reserve: 0, ..Bounds::of(MAX_BYTES) };
        Self { bytes: SharedPool::new(bounds) }
    }
}

impl UnfinishedMessage {
    /// Counts from now on what comes from this network.
    pub(crate) fn begin(&self, all: &UnfinishedMessages, network: ClientNetwork) {
        *self.lock() = Some(State {
            all: all.bytes.clone(),
            claimant: Claimant::at(network),
            bytes: 0,
            since: Instant::now(),
            held: None,
        });
    }

    /// Counts bytes that were read; fails if there is no room for them, or the message took too long.
    pub(crate) fn received(&self, bytes: usize) -> io::Result<()> {
        self.received_at(Instant::now(), bytes)
    }

    fn received_at(&self, now: Instant, bytes: usize) -> io::Result<()> {
        self.lock().as_mut().map_or(Ok(()), |state| state.received(now, bytes as u64))
    }

    /// Forgets the message: it is whole.
    pub(crate) fn finished(&self) {
        if let Some(state) = self.lock().as_mut() {
            state.bytes = 0;
            state.held = None;
        }
    }

    /// Leaves out a ping or a pong, which may come in the midst of a message.
    pub(crate) fn leave_out(&self, payload: usize) {
        /// Of a masked control frame.
        const HEADER: usize = 6;
        if let Some(state) = self.lock().as_mut() {
            state.bytes = state.bytes.saturating_sub((payload + HEADER) as u64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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
            None => self.all.try_take(&self.claimant, needed).map(|held| self.held = Some(held)),
        };
        granted.map_err(|_| io::ErrorKind::QuotaExceeded.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn connection(all: &UnfinishedMessages, address: &str) -> UnfinishedMessage {
        let message = UnfinishedMessage::default();
        message.begin(all, ClientNetwork::of(address.parse().unwrap()));
        message
    }

    #[tokio::test]
    async fn one_address_holds_a_quarter_and_gives_it_back() {
        let all = UnfinishedMessages::new();
        let eve: Vec<_> = (0..128).map(|_| connection(&all, "198.51.100.1")).collect();
        let held = eve.iter().filter(|message| message.received(4 * MIB).is_ok()).count();
        assert_eq!(held, 8);
        let refused = eve.last().unwrap().received(1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        let alice = connection(&all, "192.0.2.1");
        assert!(alice.received(5 * MIB).is_ok());
        alice.finished();
        drop(eve);
        assert_eq!(all.bytes.usage().all, 0);
    }

    #[tokio::test]
    async fn what_is_no_websocket_and_what_is_short_is_not_counted() {
        let all = UnfinishedMessages::new();
        assert!(UnfinishedMessage::default().received(1_000 * MIB).is_ok());
        let short = connection(&all, "192.0.2.1");
        for _ in 0..1_000 {
            assert!(short.received(1_000).is_ok());
            short.finished();
        }
        assert_eq!(all.bytes.usage().all, 0);
    }

    #[tokio::test]
    async fn a_message_that_never_ends_ends_the_connection_and_pings_do_not() {
        let all = UnfinishedMessages::new();
        let (slow, pinging) = (connection(&all, "192.0.2.1"), connection(&all, "192.0.2.2"));
        assert!(slow.received(100_000).is_ok());
        for _ in 0..1_000 {
            assert!(pinging.received(131).is_ok());
            pinging.leave_out(125);
        }
        let later = Instant::now() + MESSAGE_TIMEOUT + Duration::from_secs(1);
        assert!(pinging.received_at(later, 131).is_ok());
        assert_eq!(slow.received_at(later, 10).unwrap_err().kind(), io::ErrorKind::TimedOut);
        slow.finished();
        assert!(slow.received_at(later, 100_000).is_ok());
    }
}
