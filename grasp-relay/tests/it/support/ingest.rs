//! A way in that verifies, stores and publishes, and judges nothing else.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use grasp_relay::ingest::{Ingest, OkAnswer, Origin};
use grasp_relay::nostr::Hub;
use nostr::event::Event;
use nostr::types::Timestamp;
use tokio::sync::Semaphore;

use super::{Shelf, in_time};

/// Verifies, stores and publishes. It can be held shut, to see what waits.
pub(crate) struct Door {
    store: Arc<Shelf>,
    hub: Hub,
    open: Semaphore,
    knocks: Semaphore,
}

impl Door {
    pub(crate) fn new(store: Arc<Shelf>, hub: Hub) -> Self {
        Self {
            store,
            hub,
            open: Semaphore::new(Semaphore::MAX_PERMITS),
            knocks: Semaphore::new(0),
        }
    }

    /// Nothing gets through until [`open`](Self::open).
    pub(crate) fn shut(&self) {
        self.open.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(crate) fn open(&self) {
        self.open.add_permits(1_000);
    }

    /// Waits until an event stands before the door.
    pub(crate) async fn knocked(&self) {
        in_time(self.knocks.acquire())
            .await
            .expect("never closed")
            .forget();
    }

    async fn judge(&self, event: Event, origin: &Origin) -> OkAnswer {
        let answer = |accepted, message: &str| OkAnswer {
            accepted,
            message: message.into(),
        };
        if event.verify().is_err() {
            return answer(false, "invalid: bad id or signature");
        }
        if event.created_at.as_secs() > Timestamp::now().as_secs() + 900 {
            return answer(false, "invalid: created_at is too far in the future");
        }
        let Origin::Client { authenticated } = origin else {
            return answer(false, "blocked: clients only");
        };
        if event.is_protected() && !authenticated.contains(&event.pubkey) {
            return answer(false, "auth-required: a protected event wants its author");
        }
        let event = Arc::new(event);
        if !self.store.put(event.clone()) {
            return answer(true, "duplicate: already have this event");
        }
        self.hub.publish(event).await;
        answer(true, "")
    }
}

impl Ingest for Door {
    fn ingest(&self, events: Vec<Event>, origin: Origin) -> BoxFuture<'_, Vec<OkAnswer>> {
        Box::pin(async move {
            let mut answers = Vec::new();
            for event in events {
                self.knocks.add_permits(1);
                let pass = self.open.acquire().await.expect("never closed");
                answers.push(self.judge(event, &origin).await);
                drop(pass);
            }
            answers
        })
    }
}
