//! Set reconciliation (NIP-77) between the events of one filter here and those of the peer.
//!
//! The set is read and sorted once per session, unless the store keeps it; each message is answered from it alone. Both run on blocking threads,
//! of which a limited number works at the same time, so that sessions cannot starve the sockets. The algorithm checks
//! every count against the bytes of the message before it allocates, visits each item a bounded number of times per
//! message, and cuts its answer at the frame limit.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::neg;
use grasp_core::resources::Claimant;
use grasp_purgatory::resources::{Holding, SharedPool};
use negentropy::{Bound, Error, Id, Item, Negentropy, NegentropyStorageBase, Storage};
use nostr::event::EventId;
use nostr::filter::Filter;
use nostr::types::Timestamp;

use super::codec::{Reply, SubId};
use super::delivery::store_failed;
use super::limits::Limits;
use crate::server::shared_pool;
use crate::store::{EventStore, ItemSet};

/// The first byte of every message, the protocol's version.
const VERSION: u8 = 0x61;

/// Largest answer in bytes, before hex: every peer can read it.
const FRAME_BYTES: u64 = 500_000;

/// Sets that are built or compared at the same time, on threads of their own. One address has at most a quarter.
const MAX_JOBS: usize = 8;

/// The time that a message waits for a thread.
const JOB_TIMEOUT: Duration = Duration::from_secs(60);

/// The refusal of a session that finds no thread or no memory.
pub(super) const AT_CAPACITY: &str = "rate-limited: negentropy memory is in use, try again later";

/// The threads and memory that the sessions of all connections share.
#[derive(Debug)]
pub(crate) struct NegentropyPool {
    jobs: SharedPool,
    items: SharedPool,
    waiting: SharedPool,
    most_items: usize,
}

impl NegentropyPool {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            jobs: shared_pool(MAX_JOBS),
            items: shared_pool(limits.neg_total_items),
            waiting: shared_pool(limits.neg_waiting_bytes),
            most_items: limits.neg_items,
        }
    }

    /// Builds the set for a filter and answers the first message.
    pub(super) async fn open(
        &self,
        claimant: &Claimant,
        store: &dyn EventStore,
        now: Timestamp,
        id: &SubId,
        filter: Filter,
        message: Vec<u8>,
    ) -> Result<(Arc<Snapshot>, Reply), Reply> {
        let refuse = |reason: &'static str| Reply::neg_err(id, reason);
        let job = self
            .start_job(claimant, message)
            .await
            .ok_or_else(|| refuse(AT_CAPACITY))?;
        let items = match store.item_set(filter, now, self.most_items).await {
            Ok(Some(items)) => items,
            Ok(None) => {
                let reason = "blocked: this query is too big".into();
                return Err(Reply::NegErr(id.clone(), reason, Some(self.most_items)));
            }
            Err(error) => return Err(refuse(store_failed(&error))),
        };
        let share = self.items.try_take(claimant, items.len() as u64);
        let share = share.map_err(|_| refuse(AT_CAPACITY))?;
        let snapshot = Arc::new(Snapshot {
            items,
            _share: share,
        });
        match compare(id, snapshot.clone(), job).await {
            refusal @ Reply::NegErr(..) => Err(refusal),
            reply => Ok((snapshot, reply)),
        }
    }

    /// Answers a later message.
    pub(super) async fn answer(
        &self,
        claimant: &Claimant,
        id: &SubId,
        snapshot: Arc<Snapshot>,
        message: Vec<u8>,
    ) -> Reply {
        match self.start_job(claimant, message).await {
            Some(job) => compare(id, snapshot, job).await,
            None => Reply::neg_err(id, AT_CAPACITY),
        }
    }

    /// Waits for a thread, if there is memory for the message meanwhile.
    async fn start_job(&self, claimant: &Claimant, message: Vec<u8>) -> Option<Job> {
        let waiting = self.waiting.try_take(claimant, message.len() as u64).ok()?;
        let job = self.jobs.wait(claimant, 1, JOB_TIMEOUT).await.ok()?;
        Some(Job {
            message,
            _waiting: waiting,
            _job: job,
        })
    }
}

/// A message that has its thread, with what it holds until it is answered.
struct Job {
    message: Vec<u8>,
    _waiting: Holding,
    _job: Holding,
}

/// Compares on a thread, which is occupied until it has finished even if the session ends.
async fn compare(id: &SubId, snapshot: Arc<Snapshot>, job: Job) -> Reply {
    let comparing = tokio::task::spawn_blocking(move || snapshot.answer(&job.message, FRAME_BYTES));
    let answer = comparing.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a negentropy comparison panicked");
        None
    });
    match answer {
        Some(answer) => Reply::NegMsg(id.clone(), answer),
        None => Reply::neg_err(id, "invalid: not a negentropy message"),
    }
}

/// The set of one session, oldest first, ties by lowest id, as the store's inventory returns it; and its share of the
/// memory.
#[derive(Debug)]
pub(crate) struct Snapshot {
    items: ItemSet,
    _share: Holding,
}

impl Snapshot {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

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

impl NegentropyStorageBase for Snapshot {
    fn size(&self) -> Result<usize, Error> {
        Ok(self.items.len())
    }

    fn get_item(&self, i: usize) -> Result<Option<Item>, Error> {
        Ok(self.items.get(i).map(item))
    }

    fn iterate(
        &self,
        begin: usize,
        end: usize,
        visit: &mut dyn FnMut(Item, usize) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let items = self.items.get(begin..end).ok_or(Error::BadRange)?;
        for (index, at) in (begin..end).zip(items) {
            if !visit(item(at), index)? {
                break;
            }
        }
        Ok(())
    }

    fn find_lower_bound(&self, first: usize, last: usize, value: &Bound) -> usize {
        let items = self.items.get(first..last).unwrap_or_default();
        first + items.partition_point(|at| item(at) < value.item)
    }
}

#[cfg(test)]
pub(super) mod tests;
