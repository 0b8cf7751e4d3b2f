//! The feed of commits: what any node has stored reaches the subscriptions of this one, in commit order and once.

use std::sync::Arc;
use std::time::Duration;

use nostr::event::Event;
use tokio::sync::watch;

use crate::nostr::Hub;
use crate::store::StoredEvent;
use crate::store::postgres::PostgresStore;

/// Events that are read at once; of the largest, 25 MB.
const PAGE_EVENTS: usize = 100;

/// The time after which commits are looked for although the database has announced none.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a failed read.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The position of a node in the feed of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedPosition {
    /// The last event that was published here.
    pub seq: u64,
    /// The database answered when it was last asked.
    pub is_connected: bool,
}

impl FeedPosition {
    pub(super) fn at(seq: u64) -> Self {
        Self { seq, is_connected: true }
    }
}

/// Publishes what is committed after the given position, for as long as the process runs.
pub(super) async fn follow(
    store: Arc<PostgresStore>,
    hub: Hub,
    position: watch::Sender<FeedPosition>,
) {
    let mut commits = store.commits();
    let mut seq = position.borrow().seq;
    loop {
        commits.mark_unchanged();
        let page = match store.stored_after(seq, PAGE_EVENTS).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "could not read the commits of the other nodes; trying again");
                position.send_modify(|position| position.is_connected = false);
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        let is_last = page.len() < PAGE_EVENTS;
        for (at, stored) in page {
            publish(&hub, &stored).await;
            seq = at;
        }
        position.send_replace(FeedPosition::at(seq));
        if is_last {
            // A commit since the read has marked the receiver as changed.
            let _ = tokio::time::timeout(LOOK_INTERVAL, commits.changed()).await;
        }
    }
}

async fn publish(hub: &Hub, stored: &StoredEvent) {
    match Event::from_json(stored.json.as_bytes()) {
        Ok(event) => hub.publish(Arc::new(event)).await,
        Err(error) => tracing::error!(%error, id = %stored.id, "a stored event cannot be parsed"),
    }
}
