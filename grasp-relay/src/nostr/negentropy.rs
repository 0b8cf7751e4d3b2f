//! Set reconciliation (NIP-77) between the events of one filter here and those of the peer.
//!
//! The set is read and sorted once per session; each message is answered from it alone. Both run on blocking threads,
//! of which a limited number works at the same time, so that sessions cannot starve the sockets. The algorithm checks
//! every count against the bytes of the message before it allocates, visits each item a bounded number of times per
//! message, and cuts its answer at the frame limit.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::neg;
use grasp_core::resources::{Bounds, Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use negentropy::{Bound, Error, Id, Item, Negentropy, NegentropyStorageBase, Storage};
use nostr::event::EventId;
use nostr::filter::Filter;
use nostr::types::Timestamp;

use super::limits::Limits;
use super::session::NegOutcome;
use crate::store::{EventStore, Inventory};

/// The first byte of every message, the protocol's version.
const VERSION: u8 = 0x61;

/// The time that a message waits for a thread.
const JOB_TIMEOUT: Duration = Duration::from_secs(60);

/// The threads and memory that the sessions of all connections share.
#[derive(Clone, Debug)]
pub(crate) struct NegentropyPool {
    jobs: SharedPool,
    items: SharedPool,
    waiting: SharedPool,
    most_items: usize,
    frame: u64,
}

/// The set of one session, and its share of the memory.
#[derive(Debug)]
pub(crate) struct Snapshot {
    set: SortedSet,
    _share: Holding,
}

/// The set for a NEG-OPEN, and the result for the session.
pub(crate) type Opened = (Option<Arc<Snapshot>>, NegOutcome);

impl NegentropyPool {
    pub(crate) fn new(limits: &Limits) -> Self {
        let pool =
            |total: usize| SharedPool::new(Bounds { reserve: 0, ..Bounds::of(total as u64) });
        Self {
            jobs: pool(limits.neg_jobs.max(1)),
            items: pool(limits.neg_total_items),
            waiting: pool(limits.neg_waiting_bytes),
            most_items: limits.neg_items,
            frame: limits.neg_frame(),
        }
    }

    /// Builds the set for a filter and answers the first message.
    pub(crate) async fn open(
        self,
        network: ClientNetwork,
        store: Arc<dyn EventStore>,
        filter: Filter,
        now: Timestamp,
        message: Vec<u8>,
    ) -> Opened {
        let Some(job) = self.start_job(network, message).await else {
            return (None, NegOutcome::AtCapacity);
        };
        let items = match store.inventory(filter, now, self.most_items).await {
            Ok(Inventory::Complete(items)) => items,
            Ok(Inventory::TooMany) => return (None, NegOutcome::TooBig),
            Err(error) => {
                tracing::error!(%error, "the event store failed to list the items of a negentropy session");
                return (None, NegOutcome::StoreFailed);
            }
        };
        let share = self.items.try_take(&Claimant::at(network), items.len() as u64);
        let Ok(share) = share else {
            return (None, NegOutcome::AtCapacity);
        };
        let held = items.len();
        let snapshot = Arc::new(Snapshot { set: SortedSet(items), _share: share });
        match self.compare(snapshot.clone(), job).await {
            NegOutcome::Answered(answer) => {
                (Some(snapshot), NegOutcome::Opened { items: held, answer })
            }
            other => (None, other),
        }
    }

    /// Answers a later message.
    pub(crate) async fn answer(
        self,
        network: ClientNetwork,
        snapshot: Arc<Snapshot>,
        message: Vec<u8>,
    ) -> NegOutcome {
        match self.start_job(network, message).await {
            Some(job) => self.compare(snapshot, job).await,
            None => NegOutcome::AtCapacity,
        }
    }

    /// Waits for a thread, if there is memory for the message meanwhile.
    async fn start_job(&self, network: ClientNetwork, message: Vec<u8>) -> Option<Job> {
        let claimant = Claimant::at(network);
        let waiting = self.waiting.try_take(&claimant, message.len() as u64).ok()?;
        let job = self.jobs.wait(&claimant, 1, JOB_TIMEOUT).await.ok()?;
        Some(Job { message, _waiting: waiting, _job: job })
    }

    /// Compares on a thread, which is occupied until it has finished even if the session ends.
    async fn compare(&self, snapshot: Arc<Snapshot>, job: Job) -> NegOutcome {
        let frame = self.frame;
        let job = tokio::task::spawn_blocking(move || snapshot.set.answer(&job.message, frame));
        match job.await {
            Ok(Some(answer)) => NegOutcome::Answered(answer),
            Ok(None) => NegOutcome::Invalid,
            Err(error) => {
                tracing::error!(%error, "a negentropy comparison panicked");
                NegOutcome::Invalid
            }
        }
    }
}

/// A message that has its thread, with what it holds until it is answered.
struct Job {
    message: Vec<u8>,
    _waiting: Holding,
    _job: Holding,
}

/// Items oldest first, ties by lowest id, as the store's inventory returns them.
#[derive(Debug)]
struct SortedSet(Vec<(Timestamp, EventId)>);

impl SortedSet {
    /// Returns the answer to one message; `None` if it is not well-formed.
    fn answer(&self, message: &[u8], frame: u64) -> Option<Vec<u8>> {
        // A peer of another version gets ours and may start again with it.
        if *message.first()? != VERSION {
            return Some(vec![VERSION]);
        }
        if !neg::is_well_formed(message) {
            return None;
        }
        let mut negentropy = Negentropy::new(Storage::Borrowed(self), frame).ok()?;
        negentropy.reconcile(message).ok()
    }
}

fn item((at, id): &(Timestamp, EventId)) -> Item {
    Item::with_timestamp_and_id(at.as_secs(), Id::from_byte_array(id.to_bytes()))
}

impl NegentropyStorageBase for SortedSet {
    fn size(&self) -> Result<usize, Error> {
        Ok(self.0.len())
    }

    fn get_item(&self, i: usize) -> Result<Option<Item>, Error> {
        Ok(self.0.get(i).map(item))
    }

    fn iterate(
        &self,
        begin: usize,
        end: usize,
        visit: &mut dyn FnMut(Item, usize) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let items = self.0.get(begin..end).ok_or(Error::BadRange)?;
        for (index, at) in (begin..end).zip(items) {
            if !visit(item(at), index)? {
                break;
            }
        }
        Ok(())
    }

    fn find_lower_bound(&self, first: usize, last: usize, value: &Bound) -> usize {
        let items = self.0.get(first..last).unwrap_or_default();
        first + items.partition_point(|at| item(at) < value.item)
    }
}

#[cfg(test)]
mod tests;
