//! The events of one connection on their way to ingest, in order and in batches.

use std::sync::Arc;

use grasp_core::resources::Claimant;
use grasp_purgatory::resources::{Holding, SharedPool};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use tokio::task::JoinHandle;

use crate::ingest::{Answer, Ingest, Origin, Outcome, weight};

/// Events per batch of ingest; as many again may be queued, then the socket is not read.
const MAX_BATCH_EVENTS: usize = 256;

/// Bytes of queued events, beside the running batch.
const MAX_QUEUED_BYTES: u64 = 2 * 1024 * 1024;

/// The answer to one event.
pub(super) type Judged = (EventId, Answer);

/// Queues events while at most one batch is in ingest. A client that sends many events thus fills large batches, and
/// its answers keep their order.
pub(super) struct Intake {
    ingest: Arc<dyn Ingest>,
    claimant: Claimant,
    waiting: Vec<Event>,
    /// The share of the memory for the waiting events.
    held: Option<Holding>,
    room: SharedPool,
    running: Option<Batch>,
}

/// A batch runs in a task of its own: once started, it finishes even if the client disconnects.
struct Batch {
    ids: Vec<EventId>,
    task: JoinHandle<Vec<Outcome>>,
}

impl Intake {
    pub(super) fn new(ingest: Arc<dyn Ingest>, room: SharedPool, claimant: Claimant) -> Self {
        Self {
            ingest,
            claimant,
            waiting: Vec::new(),
            held: None,
            room,
            running: None,
        }
    }

    /// Returns whether another event may be queued.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < MAX_BATCH_EVENTS && self.waiting_bytes() < MAX_QUEUED_BYTES
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some() || !self.waiting.is_empty()
    }

    /// Queues an event; returns whether its network had memory left for it.
    #[must_use]
    pub(super) fn push(&mut self, event: Event) -> bool {
        let bytes = self.waiting_bytes().saturating_add(weight(&event) as u64);
        let taken = match &mut self.held {
            Some(held) => held.resize(bytes),
            None => self
                .room
                .try_take(&self.claimant, bytes)
                .map(|held| self.held = Some(held)),
        };
        if taken.is_ok() {
            self.waiting.push(event);
        }
        taken.is_ok()
    }

    /// Returns whether the next batch could start.
    pub(super) fn is_ready(&self) -> bool {
        self.running.is_none() && !self.waiting.is_empty()
    }

    /// Starts the next batch, if none is running.
    pub(super) fn start(&mut self, authenticated: impl FnOnce() -> Vec<PublicKey>) {
        if !self.is_ready() {
            return;
        }
        let (events, held) = (std::mem::take(&mut self.waiting), self.held.take());
        let ids = events.iter().map(|event| event.id).collect();
        let network = self.claimant.network;
        let origin = Origin::Client {
            authenticated: authenticated(),
            network,
        };
        let ingest = self.ingest.clone();
        let task = tokio::spawn(async move {
            let _held = held;
            ingest.ingest(events, origin).await
        });
        self.running = Some(Batch { ids, task });
    }

    fn waiting_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, Holding::amount)
    }

    /// Waits for the running batch; for ever, if there is none. Cancel-safe.
    pub(super) async fn judged(&mut self) -> Vec<Judged> {
        let Some(batch) = &mut self.running else {
            return std::future::pending().await;
        };
        let answers = (&mut batch.task).await.unwrap_or_else(|error| {
            tracing::error!(%error, "ingest panicked; its events are answered with an error");
            Vec::new()
        });
        let ids = self
            .running
            .take()
            .map(|batch| batch.ids)
            .unwrap_or_default();
        let answers = answers
            .iter()
            .map(Outcome::answer)
            .chain(std::iter::repeat_with(no_answer));
        ids.into_iter().zip(answers).collect()
    }
}

/// Returns the answer for events that ingest failed on, so that the client tries again.
fn no_answer() -> Answer {
    Answer {
        is_accepted: false,
        message: "error: the event could not be judged".into(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use grasp_core::Verified;
    use grasp_core::resources::ClientNetwork;
    use nostr::event::{EventBuilder, FinalizeEvent as _, Kind};

    use super::*;
    use crate::server::shared_pool;

    /// An ingest that is never reached.
    struct Unreached;

    impl Ingest for Unreached {
        fn ingest_verified(
            &self,
            _: Vec<Verified<Arc<Event>>>,
            _: Origin,
        ) -> BoxFuture<'_, Vec<Outcome>> {
            unreachable!("no batch is started")
        }
    }

    #[test]
    fn queued_events_per_address_are_bounded() {
        let room = shared_pool(40_000);
        let at = |address: &str| {
            let claimant = Claimant::at(ClientNetwork::of(address.parse().unwrap()));
            Intake::new(Arc::new(Unreached), room.clone(), claimant)
        };
        let keys = nostr::key::Keys::generate();
        let note = || {
            EventBuilder::new(Kind::TextNote, "x".repeat(1_000))
                .finalize(&keys)
                .unwrap()
        };
        let mut intakes: Vec<_> = (0..20).map(|_| at("198.51.100.1")).collect();
        let taken = intakes
            .iter_mut()
            .map(|intake| intake.push(note()) && intake.push(note()));
        assert_eq!(taken.filter(|taken| *taken).count(), 5);
        let mut honest = at("192.0.2.1");
        assert!(honest.push(note()));
        drop((intakes, honest));
        assert_eq!(room.usage().all, 0);
    }
}
