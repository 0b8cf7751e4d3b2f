//! Turns at the event store for clients' questions.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use grasp_core::resources::{Bounds, Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::store::{StoreError, StoredEvent};

/// Questions of all clients that the store works on at once, each in short turns. One address has a quarter of what
/// others leave, so that a newcomer waits for a few turns and no more.
const READS_AT_ONCE: u64 = 32;

/// Questions of one connection that the store works on at once.
const READS_PER_CONNECTION: usize = 2;

/// How long a question waits for its turn.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The reads of all connections.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    turns: SharedPool,
}

/// The reads of one connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionReads {
    turns: SharedPool,
    own: Arc<Semaphore>,
    claimant: Claimant,
}

/// A turn at the store, given back when it is dropped.
pub(super) struct ReadTurn {
    _own: OwnedSemaphorePermit,
    _turn: Holding,
}

/// A question that got no turn in time, or failed.
pub(super) enum ReadFailure {
    Busy,
    Store(StoreError),
}

impl Reads {
    pub(crate) fn new() -> Self {
        let bounds = Bounds { reserve: 0, ..Bounds::of(READS_AT_ONCE) };
        Self { turns: SharedPool::new(bounds) }
    }

    pub(super) fn of_connection(&self, network: ClientNetwork) -> ConnectionReads {
        ConnectionReads {
            turns: self.turns.clone(),
            own: Arc::new(Semaphore::new(READS_PER_CONNECTION)),
            claimant: Claimant::at(network),
        }
    }
}

impl ConnectionReads {
    /// Waits for a turn.
    pub(super) async fn turn(&self) -> Option<ReadTurn> {
        let own = self.own.clone().acquire_owned().await.ok()?;
        let turn = self.turns.wait(&self.claimant, 1, READ_TIMEOUT).await.ok()?;
        Some(ReadTurn { _own: own, _turn: turn })
    }

    /// Reads a history page by page, each in a turn of its own.
    pub(super) fn paged(
        &self,
        pages: BoxStream<'static, Result<Vec<StoredEvent>, StoreError>>,
    ) -> impl Stream<Item = Result<Vec<StoredEvent>, ReadFailure>> + use<> {
        stream::unfold(Some((pages, self.clone())), |reading| async move {
            let (mut pages, reads) = reading?;
            let Some(turn) = reads.turn().await else {
                return Some((Err(ReadFailure::Busy), None));
            };
            let page = pages.next().await?;
            drop(turn);
            Some(match page {
                Ok(events) => (Ok(events), Some((pages, reads))),
                Err(error) => (Err(ReadFailure::Store(error)), None),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn at(address: &str) -> ClientNetwork {
        ClientNetwork::of(address.parse().unwrap())
    }

    #[tokio::test]
    async fn one_address_leaves_turns_for_others() {
        let reads = Reads::new();
        let mut held = Vec::new();
        for _ in 0..20 {
            let connection = reads.of_connection(at("198.51.100.1"));
            held.extend(connection.turn().now_or_never().flatten());
            held.extend(connection.turn().now_or_never().flatten());
        }
        assert_eq!(held.len(), 8);
        let other = reads.of_connection(at("192.0.2.1"));
        assert!(other.turn().now_or_never().flatten().is_some());
        drop(held);
        assert_eq!(reads.turns.usage().all, 0);
    }

    #[tokio::test]
    async fn one_connection_reads_two_pages_at_once() {
        let connection = Reads::new().of_connection(at("192.0.2.1"));
        let first = connection.turn().now_or_never().flatten();
        let second = connection.turn().now_or_never().flatten();
        assert!(first.is_some() && second.is_some());
        assert!(connection.turn().now_or_never().is_none());
        drop(first);
        assert!(connection.turn().now_or_never().flatten().is_some());
    }
}
