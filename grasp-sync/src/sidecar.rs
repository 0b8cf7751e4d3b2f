//! Sync for a relay of another kind, over its websocket.
//!
//! ```text
//!   relay ──REQ: stored and new events──▶ feed ────▶ ┌────────┐
//!                              held events ▲          │        │
//!   relay ◀─EVENT, OK─▶ publisher ──────────┘ ◀─────────│ Syncer │ ⇄ other relays
//!   relay ◀─REQ, page by page─▶ inventory ──▶           └────────┘
//! ```
//!
//! Any relay that speaks NIP-01 will do; its own rules decide what it keeps. Feed, publisher and inventory have a
//! connection each, which is made again when it is lost.

mod feed;
mod publisher;

use std::sync::Arc;

use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::StreamExt as _;
use futures_util::stream;
use grasp_core::admission::{Origin, Retry};
use grasp_core::kinds::REPLY_KINDS;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::filter::Filter;
use grasp_core::outbound::{OutboundPolicy, Provenance};
use grasp_core::{RelayUrl, Verified};
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use self::publisher::Publication;
use crate::driver::{Client, Limits, Outbound, Roots, Task, Unanswered};
use crate::engine::{InventoryFailed, Row};
use crate::local::{LocalRelay, News, Taken};

/// News that may wait for the syncer.
const NEWS_QUEUE: usize = 1_024;
/// Batches that may wait for the relay.
const BATCH_QUEUE: usize = 4;

/// The address of the relay, and the means to connect.
struct Remote {
    relay: RelayUrl,
    outbound: Outbound,
    limits: Limits,
}

impl Remote {
    async fn connect(&self) -> Result<Client, Unanswered> {
        let Self { relay, outbound, limits } = self;
        Client::connect(relay, outbound, limits).await.map_err(|fault| {
            tracing::warn!(%relay, "cannot connect to the local relay: {fault}");
            Unanswered::Lost
        })
    }
}

/// A relay of another kind that is kept complete over its websocket.
///
/// ```
/// use std::sync::Arc;
/// use grasp_sync::{Settings, Sidecar, Syncer};
///
/// async fn run() -> Result<Syncer, Box<dyn std::error::Error>> {
///     let relay = Sidecar::start("ws://127.0.0.1:7777".parse()?);
///     // The name that others know that relay by, so that it is never asked for its own events.
///     let mut settings = Settings::new("relay.example.com".parse()?);
///     settings.engine.bootstrap.push("wss://other.example.com".parse()?);
///     Ok(Syncer::start(Arc::new(relay), settings).await?)
/// }
/// ```
pub struct Sidecar {
    remote: Arc<Remote>,
    batches: mpsc::Sender<Publication>,
    /// A connection that the last inventory left open.
    spare: Mutex<Option<Client>>,
    /// Where the publisher sends held announcements: to the latest feed.
    held: watch::Sender<Option<mpsc::Sender<Arc<Event>>>>,
    _publisher: Task,
}

impl Sidecar {
    /// Connects to the relay at this address when there is something to publish.
    ///
    /// The operator configured it, so it may be at any address.
    pub fn start(relay: RelayUrl) -> Self {
        Self::trusting(relay, &Roots::default())
    }

    /// The same, for a relay whose certificate was issued by one of these roots.
    pub fn trusting(relay: RelayUrl, roots: &Roots) -> Self {
        let outbound = Outbound::new(OutboundPolicy::default(), roots);
        let remote = Arc::new(Remote { relay, outbound, limits: Limits::default() });
        let (batches, queued) = mpsc::channel(BATCH_QUEUE);
        let (held, follower) = watch::channel(None);
        let publisher = Task::spawn(publisher::publish(Arc::clone(&remote), queued, follower));
        Self { remote, batches, spare: Mutex::default(), held, _publisher: publisher }
    }

    /// Returns whether a connection to the relay can be made.
    pub async fn is_reachable(&self) -> bool {
        let Remote { relay, outbound, .. } = &*self.remote;
        match outbound.route(relay, Provenance::Operator).await {
            Ok(route) => route.connect().await.is_ok(),
            Err(_) => false,
        }
    }

    async fn list_rows(&self, filter: Filter) -> Result<Vec<Row>, Unanswered> {
        let spare = self.spare.lock().await.take();
        if let Some(mut client) = spare {
            // The spare connection may have been lost since, which says nothing about the relay.
            if let Ok(rows) = self.list_rows_over(&mut client, filter.clone()).await {
                *self.spare.lock().await = Some(client);
                return Ok(rows);
            }
        }
        let mut client = self.remote.connect().await?;
        let rows = self.list_rows_over(&mut client, filter).await?;
        *self.spare.lock().await = Some(client);
        Ok(rows)
    }

    async fn list_rows_over(
        &self,
        client: &mut Client,
        filter: Filter,
    ) -> Result<Vec<Row>, Unanswered> {
        let mut rows = Vec::new();
        let mut reading = client.read(filter);
        while let Some(page) = reading.next().await? {
            rows.extend(page.iter().map(Row::of));
        }
        rows.sort_unstable();
        rows.dedup();
        Ok(rows)
    }
}

impl LocalRelay for Sidecar {
    /// Streams everything of these kinds but replies: the relay may have many that belong to no repository of ours.
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        let (sender, news) = mpsc::channel(NEWS_QUEUE);
        let ours = kinds.iter().copied().filter(|kind| !REPLY_KINDS.contains(kind)).collect();
        let (held, held_events) = mpsc::channel(NEWS_QUEUE);
        self.held.send_replace(Some(held));
        let task = Task::spawn(feed::follow(Arc::clone(&self.remote), ours, held_events, sender));
        stream::unfold((news, task), |(mut news, task)| async {
            let next = news.recv().await?;
            Some((next, (news, task)))
        })
        .boxed()
    }

    /// Returns `false`: held events are known only from the relay's answers to offers.
    fn tells_held(&self) -> bool {
        false
    }

    fn ingest(&self, events: Vec<Verified<Arc<Event>>>, _: Origin) -> BoxFuture<'_, Vec<Taken>> {
        Box::pin(async move {
            let failed = vec![Taken::Refused(Retry::Soon); events.len()];
            let (reply, taken) = oneshot::channel();
            let _ = self.batches.send(Publication { events, reply }).await;
            taken.await.unwrap_or(failed)
        })
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
        Box::pin(async move {
            self.list_rows(filter).await.map_err(|error| {
                tracing::warn!(%error, "cannot list the events of the local relay");
                InventoryFailed
            })
        })
    }
}
