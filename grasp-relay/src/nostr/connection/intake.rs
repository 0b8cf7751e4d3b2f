//! The events of one connection on their way to ingest, in order and in batches.

use std::collections::VecDeque;
use std::sync::Arc;

use grasp_core::resources::Claimant;
use grasp_purgatory::resources::{Holding, SharedPool};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use tokio::task::JoinHandle;

use crate::ingest::{Answer, Ingest, Origin, Outcome, Turn, weight};

/// Events that are queued for the next batch; then the socket is not read.
const MAX_QUEUED_EVENTS: usize = 256;

/// Batches that run at the same time: one is stored while the next one is verified.
const MAX_BATCHES: usize = 2;

/// Events of a batch that is verified while another one is stored: a smaller one would save less than it costs to store
/// it by itself.
const MIN_EVENTS_AHEAD: usize = 128;

/// Bytes of queued events, beside the running batches.
const MAX_QUEUED_BYTES: u64 = 2 * 1024 * 1024;

/// The answer to one event.
pub(super) type Judged = (EventId, Answer);

/// Queues events while batches are in ingest. A client that sends many events thus fills large batches, and its answers
/// keep their order: a batch is judged once the one before has ended.
pub(super) struct Intake {
    ingest: Arc<dyn Ingest>,
    claimant: Claimant,
    waiting: Vec<Event>,
    /// The share of the memory for the waiting events.
    held: Option<Holding>,
    room: SharedPool,
    /// The oldest first.
    running: VecDeque<Batch>,
    /// The turn of the next batch.
    turn: Turn,
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
            running: VecDeque::new(),
            turn: Turn::default(),
        }
    }

    /// Returns whether another event may be queued.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < MAX_QUEUED_EVENTS && self.waiting_bytes() < MAX_QUEUED_BYTES
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
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
        match self.running.len() {
            0 => !self.waiting.is_empty(),
            running => running < MAX_BATCHES && self.waiting.len() >= MIN_EVENTS_AHEAD,
        }
    }

    /// Starts the next batch, if it is ready.
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
        let (end, next) = Turn::after_another();
        let turn = std::mem::replace(&mut self.turn, next);
        let task = tokio::spawn(async move {
            let _held = held;
            let _end = end;
            ingest.ingest_in_turn(events, origin, turn).await
        });
        self.running.push_back(Batch { ids, task });
    }

    fn waiting_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, Holding::amount)
    }

    /// Waits for the oldest running batch; for ever, if there is none. Cancel-safe.
    pub(super) async fn judged(&mut self) -> Vec<Judged> {
        let Some(batch) = self.running.front_mut() else {
            return std::future::pending().await;
        };
        let answers = (&mut batch.task).await.unwrap_or_else(|error| {
            tracing::error!(%error, "ingest panicked; its events are answered with an error");
            Vec::new()
        });
        let ids = self
            .running
            .pop_front()
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
    use tokio::sync::{Semaphore, mpsc};

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

    /// An ingest that tells which batches are verified and which are judged, and ends each when it is told to.
    struct Watched {
        /// Sizes of batches, as they are judged.
        judged: mpsc::UnboundedSender<usize>,
        ends: Semaphore,
    }

    impl Ingest for Watched {
        fn ingest_verified(
            &self,
            events: Vec<Verified<Arc<Event>>>,
            _: Origin,
        ) -> BoxFuture<'_, Vec<Outcome>> {
            Box::pin(async move {
                self.judged.send(events.len()).unwrap();
                self.ends.acquire().await.unwrap().forget();
                vec![Outcome::Stored; events.len()]
            })
        }
    }

    #[tokio::test]
    async fn a_batch_is_verified_while_another_is_stored_and_judged_after_it() {
        let (sender, mut judged) = mpsc::unbounded_channel();
        let ingest = Arc::new(Watched {
            judged: sender,
            ends: Semaphore::new(0),
        });
        let claimant = Claimant::at(ClientNetwork::of("192.0.2.1".parse().unwrap()));
        let mut intake = Intake::new(ingest.clone(), shared_pool(1 << 30), claimant);
        let keys = nostr::key::Keys::generate();
        let push = |intake: &mut Intake, count: usize| {
            let mut ids = Vec::new();
            for nth in 0..count {
                let note = EventBuilder::new(Kind::TextNote, nth.to_string());
                let note = note.finalize(&keys).unwrap();
                ids.push(note.id);
                assert!(intake.push(note));
            }
            intake.start(Vec::new);
            ids
        };
        let mut sent = push(&mut intake, 3);
        assert_eq!(judged.recv().await, Some(3));
        // Too few to be verified ahead.
        sent.extend(push(&mut intake, MIN_EVENTS_AHEAD - 1));
        assert!(!intake.waiting.is_empty() && intake.running.len() == 1);
        sent.extend(push(&mut intake, 1));
        assert!(intake.waiting.is_empty() && intake.running.len() == 2);
        sent.extend(push(&mut intake, MIN_EVENTS_AHEAD));
        assert_eq!(intake.running.len(), MAX_BATCHES);
        // The second batch waits for the end of the first one, however long it takes.
        tokio::task::yield_now().await;
        assert!(judged.try_recv().is_err());
        let mut answered = Vec::new();
        for size in [3, MIN_EVENTS_AHEAD, MIN_EVENTS_AHEAD] {
            ingest.ends.add_permits(1);
            let answers = intake.judged().await;
            assert_eq!(answers.len(), size);
            answered.extend(answers.into_iter().map(|(id, _)| id));
            intake.start(Vec::new);
        }
        assert_eq!(answered, sent);
        assert!(!intake.is_busy());
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
