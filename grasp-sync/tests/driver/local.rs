//! A small local relay that accepts announcements that list it, and events related to stored ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::StreamExt as _;
use futures_util::stream;
use grasp_core::admission::{Origin, Retry};
use grasp_core::nip34::{Announcement, References};
use grasp_core::nostr::event::{Event, EventId, Kind};
use grasp_core::nostr::filter::{Filter, MatchEventOptions};
use grasp_core::{RelayUrl, Verified, kinds};
use grasp_sync::SyncedRelay;
use grasp_sync::driver::{RelayStatus, Settings, Syncer};
use grasp_sync::engine::{InventoryFailed, Row};
use grasp_sync::local::{News, Taken};
use tokio::sync::watch;

/// Timeout of each step in these tests.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

type Events = BTreeMap<EventId, Arc<Event>>;

#[derive(Clone)]
pub(crate) struct Local {
    stored: Arc<watch::Sender<Vec<Arc<Event>>>>,
    /// Every event that was offered, and its origin.
    pub(crate) offered: Arc<Mutex<Vec<(EventId, Origin)>>>,
}

impl Local {
    pub(crate) fn new() -> Self {
        Self {
            stored: Arc::new(watch::channel(Vec::new()).0),
            offered: Arc::default(),
        }
    }

    pub(crate) fn us() -> RelayUrl {
        "wss://us.example".parse().unwrap()
    }

    /// Keeps this relay complete from these relays, which an operator configured; events may name loopback addresses.
    pub(crate) async fn sync(&self, bootstrap: &[RelayUrl]) -> Syncer {
        Syncer::start(Arc::new(self.clone()), Self::settings(bootstrap))
            .await
            .unwrap()
    }

    pub(crate) fn settings(bootstrap: &[RelayUrl]) -> Settings {
        let mut settings = Settings::new("us.example".parse().unwrap());
        settings.engine.bootstrap = bootstrap.to_vec();
        settings.engine.discovery_quiet = Duration::from_millis(20);
        settings.outbound.allow_private = true;
        settings
    }

    /// Publishes an event as a client.
    pub(crate) fn publish(&self, event: &Event) -> Taken {
        self.take(&Arc::new(event.clone()))
    }

    pub(crate) fn has(&self, event: &Event) -> bool {
        self.stored
            .borrow()
            .iter()
            .any(|stored| stored.id == event.id)
    }

    /// Waits until all of these events are stored.
    pub(crate) async fn until_has(&self, events: &[&Event]) {
        let mut stored = self.stored.subscribe();
        let all_here = stored.wait_for(|stored| {
            let here: Events = stored
                .iter()
                .map(|event| (event.id, event.clone()))
                .collect();
            events.iter().all(|event| here.contains_key(&event.id))
        });
        let waited = tokio::time::timeout(TEST_TIMEOUT, all_here).await;
        waited.expect("in time").expect("the store is open");
    }

    /// Waits until the status of a relay is as wanted.
    pub(crate) async fn until_status(
        syncer: &Syncer,
        relay: &RelayUrl,
        mut is_wanted: impl FnMut(&RelayStatus) -> bool,
    ) -> RelayStatus {
        let asking = async {
            loop {
                let status = syncer.status().await.relays.remove(relay);
                if let Some(status) = status.filter(|status| is_wanted(status)) {
                    return status;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, asking)
            .await
            .expect("in time")
    }

    fn take(&self, event: &Arc<Event>) -> Taken {
        let mut taken = Taken::Known;
        self.stored.send_if_modified(|stored| {
            if stored.iter().any(|known| known.id == event.id) {
                return false;
            }
            if !is_related(event, stored) {
                taken = Taken::Refused(Retry::AfterDependency);
                return false;
            }
            stored.push(event.clone());
            taken = Taken::Stored;
            true
        });
        taken
    }
}

fn is_related(event: &Event, stored: &[Arc<Event>]) -> bool {
    if let Ok(announcement) = Announcement::parse(event) {
        return announcement.relays.contains(&Local::us());
    }
    if kinds::PROFILE_KINDS.contains(&event.kind) {
        return stored.iter().any(|known| known.pubkey == event.pubkey);
    }
    let references = References::of(event);
    let repos: Vec<_> = stored
        .iter()
        .filter_map(|event| Announcement::parse(event).ok())
        .collect();
    let names_repo = references.coordinates.iter().any(|named| {
        repos.iter().any(|one| {
            one.repo.owner == named.public_key && one.repo.identifier.as_str() == named.identifier
        })
    });
    names_repo
        || references
            .ids
            .iter()
            .any(|id| stored.iter().any(|known| known.id == *id))
}

impl SyncedRelay for Local {
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        let mut stored = self.stored.subscribe();
        let kinds = kinds.to_vec();
        let before = stored.borrow_and_update().clone();
        let delivered = before.len();
        let before = before
            .into_iter()
            .filter(move |event| kinds.contains(&event.kind));
        let before: Vec<_> = before.map(News::Accepted).chain([News::CaughtUp]).collect();
        let later = stream::unfold((stored, delivered), |(mut stored, delivered)| async move {
            stored
                .wait_for(|stored| stored.len() > delivered)
                .await
                .ok()?;
            let news: Vec<_> = stored.borrow()[delivered..]
                .iter()
                .cloned()
                .map(News::Accepted)
                .collect();
            let delivered = delivered + news.len();
            Some((stream::iter(news), (stored, delivered)))
        });
        stream::iter(before).chain(later.flatten()).boxed()
    }

    fn ingest(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Taken>> {
        let mut offered = self.offered.lock().unwrap();
        offered.extend(events.iter().map(|event| (event.id, origin.clone())));
        Box::pin(async move { events.iter().map(|event| self.take(event)).collect() })
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
        Box::pin(async move {
            let stored = self.stored.borrow();
            let matching = stored
                .iter()
                .filter(|event| filter.match_event(event, MatchEventOptions::default()));
            Ok(matching.map(|event| Row::of(event)).collect())
        })
    }
}
