//! An ingest that verifies, stores and publishes, and applies few other rules.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use grasp_core::Verified;
use grasp_core::admission::Rejection;
use grasp_relay::ingest::{Ingest, Origin, Outcome};
use grasp_relay::nostr::Hub;
use grasp_relay::store::EventStore;
use nostr::event::Event;
use nostr::types::Timestamp;
use tokio::sync::Semaphore;

use super::in_time;

/// Accepts events of any kind, related to something or not. It can be blocked, so that batches wait.
pub(crate) struct BlockableIngest {
    store: Arc<dyn EventStore>,
    hub: Hub,
    permits: Semaphore,
    arrivals: Semaphore,
}

impl BlockableIngest {
    pub(crate) fn new(store: Arc<dyn EventStore>, hub: Hub) -> Self {
        let (permits, arrivals) = (Semaphore::new(Semaphore::MAX_PERMITS), Semaphore::new(0));
        Self {
            store,
            hub,
            permits,
            arrivals,
        }
    }

    /// Makes batches wait until [`unblock`](Self::unblock).
    pub(crate) fn block(&self) {
        self.permits.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(crate) fn unblock(&self) {
        self.permits.add_permits(1_000);
    }

    /// Waits until a batch has arrived.
    pub(crate) async fn batch_arrived(&self) {
        in_time(self.arrivals.acquire())
            .await
            .expect("never closed")
            .forget();
    }

    /// Stores and publishes events without judging them.
    pub(crate) async fn admit(&self, events: Vec<Arc<Event>>) -> Vec<Outcome> {
        let saved = self
            .store
            .save(events.clone(), Timestamp::now())
            .await
            .expect("a store");
        for (event, saved) in events.into_iter().zip(&saved) {
            if *saved == Outcome::Stored {
                self.hub.publish(event).await;
            }
        }
        saved
    }
}

fn objection(event: &Event, origin: &Origin) -> Option<Rejection> {
    let ahead = event.created_at.as_secs() > Timestamp::now().as_secs() + 900;
    let by_author = matches!(origin, Origin::Client { authenticated, .. } if authenticated.contains(&event.pubkey));
    if ahead {
        Some(Rejection::TooFarAhead)
    } else if event.is_protected() && !by_author {
        Some(Rejection::Protected)
    } else {
        None
    }
}

fn outcome(objection: Option<Rejection>, saved: Option<Outcome>) -> Outcome {
    match (objection, saved) {
        (Some(why), _) => why.into(),
        (None, Some(saved)) => saved,
        (None, None) => Rejection::Internal.into(),
    }
}

impl Ingest for BlockableIngest {
    fn ingest_verified(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            self.arrivals.add_permits(1);
            let _pass = self.permits.acquire().await.expect("never closed");
            let objections: Vec<_> = events
                .iter()
                .map(|event| objection(event, &origin))
                .collect();
            let good = events
                .into_iter()
                .zip(&objections)
                .filter(|(_, no)| no.is_none());
            let good = good.map(|(event, _)| event.into_inner()).collect();
            let mut saved = self.admit(good).await.into_iter();
            let judge = |no: Option<Rejection>| {
                let saved = if no.is_none() { saved.next() } else { None };
                outcome(no, saved)
            };
            objections.into_iter().map(judge).collect()
        })
    }
}
