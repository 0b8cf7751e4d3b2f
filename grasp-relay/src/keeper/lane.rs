//! What purgatory wants done, done: in order for one repository name, at the same time for different ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::Identifier;
use grasp_purgatory::{Chore, Input, Kept, Output, ProposalRef, ViewTarget};
use nostr::event::{Event, EventId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::at_work::Workers;
use super::survey::SurveyRequest;
use super::{KeeperParts, Order};
use crate::store::{Saved, StoreError};

/// Ended lanes are looked for when there are more than this.
const MANY: usize = 1_024;

/// One thing to do.
pub(super) enum Op {
    Do(Chore),
    Answer { reply: oneshot::Sender<Kept>, kept: Kept },
    Survey(SurveyRequest),
    Apply { identifier: Identifier, views: Vec<ViewTarget>, proposals: Vec<ProposalRef> },
    Store { identifier: Identifier, events: Vec<Arc<Event>>, withdraw: Vec<EventId> },
    Publish(Vec<Arc<Event>>),
    Tidy { identifier: Identifier, waits: bool },
}

/// Which lane an output belongs to, if it says.
pub(super) fn identifier_of(output: &Output) -> Option<&Identifier> {
    match output {
        Output::Survey { identifier }
        | Output::Apply { identifier, .. }
        | Output::Store { identifier, .. } => Some(identifier),
        Output::Do(Chore::CreateView { repo } | Chore::RemoveView { repo }) => {
            Some(&repo.identifier)
        }
        _ => None,
    }
}

/// The lanes: each new task of a lane waits for the one before it.
pub(super) struct Lanes {
    hands: Hands,
    tails: BTreeMap<Option<Identifier>, JoinHandle<()>>,
}

impl Lanes {
    pub(super) fn new(hands: Hands) -> Self {
        Self { hands, tails: BTreeMap::new() }
    }

    pub(super) fn run(&mut self, lane: Option<Identifier>, ops: Vec<Op>) {
        if self.tails.len() > MANY {
            self.tails.retain(|_, tail| !tail.is_finished());
        }
        let before = self.tails.remove(&lane);
        let hands = self.hands.clone();
        let tail = tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            for op in ops {
                if let Some(order) = hands.perform(op).await {
                    hands.tell(order).await;
                }
            }
        });
        self.tails.insert(lane, tail);
    }

    /// Finds out all names, beside all lanes.
    pub(super) fn list(&self) {
        let hands = self.hands.clone();
        tokio::spawn(async move {
            let names = hands.names().await;
            hands.tell(Order::Listed(names)).await;
        });
    }
}

/// Those who work in the lanes.
#[derive(Clone)]
pub(super) struct Hands {
    pub(super) parts: Arc<KeeperParts>,
    pub(super) workers: Workers,
    orders: mpsc::WeakSender<Order>,
}

impl Hands {
    pub(super) fn new(
        parts: Arc<KeeperParts>,
        workers: Workers,
        orders: mpsc::WeakSender<Order>,
    ) -> Self {
        Self { parts, workers, orders }
    }

    async fn tell(&self, order: Order) {
        if let Some(orders) = self.orders.upgrade() {
            let _ = orders.send(order).await;
        }
    }

    /// Does one thing; what there is to tell about its end.
    async fn perform(&self, op: Op) -> Option<Order> {
        let input = match op {
            Op::Do(chore) => self.chore(chore).await,
            Op::Answer { reply, kept } => {
                let _ = reply.send(kept);
                return None;
            }
            Op::Survey(request) => self.survey(request).await,
            Op::Apply { identifier, views, proposals } => {
                match self.apply(&identifier, views, proposals).await {
                    Ok(()) => Input::Applied { identifier },
                    Err(error) => {
                        tracing::error!(%error, %identifier, "refs could not be set");
                        Input::ApplyFailed { identifier }
                    }
                }
            }
            Op::Store { identifier, events, withdraw } => {
                match self.store(events, withdraw).await {
                    Ok(stored) => Input::Stored { identifier, stored },
                    Err(error) => {
                        tracing::error!(%error, %identifier, "events could not be stored");
                        Input::StoreFailed { identifier }
                    }
                }
            }
            Op::Publish(events) => {
                for event in events {
                    self.parts.hub.publish(event).await;
                }
                return None;
            }
            Op::Tidy { identifier, waits } => {
                self.tidy(&identifier, waits).await;
                return Some(Order::Tidied(identifier));
            }
        };
        Some(Order::Tell(input))
    }

    /// Stores what is to be served and withdraws what is not; which of them are served now.
    async fn store(
        &self,
        events: Vec<Arc<Event>>,
        withdraw: Vec<EventId>,
    ) -> Result<BTreeSet<EventId>, StoreError> {
        let now = self.parts.clock.now().unix;
        let ids: Vec<_> = events.iter().map(|event| event.id).collect();
        if !withdraw.is_empty() {
            self.parts.store.remove(withdraw).await?;
        }
        let saved = self.parts.store.save(events, now).await?;
        let served = ids.into_iter().zip(saved);
        let served = served.filter(|(_, saved)| matches!(saved, Saved::Stored | Saved::Duplicate));
        Ok(served.map(|(id, _)| id).collect())
    }

    async fn chore(&self, chore: Chore) -> Input {
        match self.try_chore(&chore).await {
            Ok(()) => Input::Done(chore),
            Err(error) => {
                tracing::warn!(%error, ?chore, "a chore must be done later");
                Input::ChoreFailed(chore)
            }
        }
    }
}
