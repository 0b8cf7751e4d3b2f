//! The events of one connection on their way to ingest, in order and in batches.

use std::sync::Arc;

use grasp_core::resources::{Claimant, ClientNetwork};
use grasp_purgatory::resources::{Holding, SharedPool};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use tokio::task::JoinHandle;

use super::super::limits::Limits;
use crate::ingest::{Answer, Ingest, Origin, Outcome};

/// Bytes of queued events, beside the running batch.
const MAX_QUEUED_BYTES: usize = 2 * 1024 * 1024;

/// The answer to one event.
pub(super) type Judged = (EventId, Answer);

/// Queues events while at most one batch is in ingest. A client that sends many events thus fills large batches, and
/// its answers keep their order.
pub(super) struct Intake {
    waiting: Vec<Event>,
    waiting_bytes: usize,
    /// The share of the memory for those bytes.
    held: Option<Holding>,
    running: Option<Batch>,
    most: usize,
}

/// A batch runs in a task of its own: once started, it finishes even if the client disconnects.
struct Batch {
    ids: Vec<EventId>,
    task: JoinHandle<Vec<Outcome>>,
}

impl Intake {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            waiting: Vec::new(),
            waiting_bytes: 0,
            held: None,
            running: None,
            most: limits.ingest_batch.max(1),
        }
    }

    /// Returns whether another event may be queued.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < self.most && self.waiting_bytes < MAX_QUEUED_BYTES
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some() || !self.waiting.is_empty()
    }

    /// Queues an event, if its network has memory left.
    pub(super) fn push(
        &mut self,
        event: Event,
        room: &SharedPool,
        claimant: &Claimant,
    ) -> Result<(), EventId> {
        let bytes = self.waiting_bytes.saturating_add(weight(&event));
        let taken = match &mut self.held {
            Some(held) => held.resize(bytes as u64),
            None => room.try_take(claimant, bytes as u64).map(|held| self.held = Some(held)),
        };
        taken.map_err(|_| event.id)?;
        self.waiting_bytes = bytes;
        self.waiting.push(event);
        Ok(())
    }

    /// Starts the next batch, if none is running.
    pub(super) fn start(
        &mut self,
        ingest: &Arc<dyn Ingest>,
        network: ClientNetwork,
        authenticated: impl FnOnce() -> Vec<PublicKey>,
    ) {
        if self.running.is_some() || self.waiting.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let ids = events.iter().map(|event| event.id).collect();
        let origin = Origin::Client { authenticated: authenticated(), network: Some(network) };
        let ingest = ingest.clone();
        let held = self.held.take();
        let task = tokio::spawn(async move {
            let _held = held;
            ingest.ingest(events, origin).await
        });
        self.running = Some(Batch { ids, task });
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
        let ids = self.running.take().map(|batch| batch.ids).unwrap_or_default();
        let answers = answers.iter().map(Outcome::answer).chain(std::iter::repeat_with(no_answer));
        ids.into_iter().zip(answers).collect()
    }
}

/// Returns the answer for events that ingest failed on, so that the client tries again.
fn no_answer() -> Answer {
    Answer { accepted: false, message: "error: the event could not be judged".into() }
}

fn weight(event: &Event) -> usize {
    let tags = event.tags.iter().flat_map(|tag| tag.as_slice());
    tags.map(|text| text.len() + size_of::<String>()).sum::<usize>() + event.content.len()
}

#[cfg(test)]
mod tests {
    use grasp_core::resources::Bounds;
    use nostr::event::{EventBuilder, FinalizeEvent as _, Kind};

    use super::*;

    #[test]
    fn events_of_one_address_that_wait_take_only_so_much() {
        let room = SharedPool::new(Bounds { reserve: 0, ..Bounds::of(40_000) });
        let at = |address: &str| Claimant::at(ClientNetwork::of(address.parse().unwrap()));
        let keys = nostr::key::Keys::generate();
        let note = || EventBuilder::new(Kind::TextNote, "x".repeat(1_000)).finalize(&keys).unwrap();
        let mut intakes: Vec<_> = (0..20).map(|_| Intake::new(&Limits::default())).collect();
        let eve = at("198.51.100.1");
        let push = |intake: &mut Intake| intake.push(note(), &room, &eve).is_ok();
        let taken = intakes.iter_mut().map(|intake| push(intake) && push(intake));
        assert_eq!(taken.filter(|taken| *taken).count(), 5);
        let mut honest = Intake::new(&Limits::default());
        assert!(honest.push(note(), &room, &at("192.0.2.1")).is_ok());
        drop((intakes, honest));
        assert_eq!(room.usage().all, 0);
    }
}
