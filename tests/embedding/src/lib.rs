//! A relay's storage in a `HashMap`, and the interface that sync needs of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt as _, future, stream};
use grasp_sync::SyncedRelay;
use grasp_sync::core::nostr::filter::MatchEventOptions;
use grasp_sync::local::{
    BoxFuture, BoxStream, Event, EventId, Filter, InventoryFailed, Kind, News, Origin, Row, Taken,
    Verified,
};
use tokio::sync::broadcast;

/// The events, by id. It keeps whatever sync brings.
pub struct MapRelay {
    events: Mutex<HashMap<EventId, Arc<Event>>>,
    news: broadcast::Sender<News>,
}

impl Default for MapRelay {
    fn default() -> Self {
        Self {
            events: Mutex::default(),
            news: broadcast::Sender::new(4_096),
        }
    }
}

impl MapRelay {
    /// Returns the stored events that match.
    pub fn find(&self, filter: &Filter) -> Vec<Arc<Event>> {
        let events = self.events.lock().expect("no holder panics");
        let options = MatchEventOptions::default();
        let matching = events
            .values()
            .filter(|event| filter.match_event(event, options));
        matching.cloned().collect()
    }

    fn take(&self, event: &Arc<Event>) -> Taken {
        let mut events = self.events.lock().expect("no holder panics");
        if events.insert(event.id, Arc::clone(event)).is_some() {
            return Taken::Known;
        }
        let _ = self.news.send(News::Accepted(Arc::clone(event)));
        Taken::Stored
    }
}

// These lines are all that sync needs of a relay. `.ci/release` counts them.
impl SyncedRelay for MapRelay {
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        let later = stream::unfold(self.news.subscribe(), async |mut news| {
            Some((news.recv().await.ok()?, news))
        });
        let stored = self.find(&Filter::new().kinds(kinds.iter().copied()));
        let stored = stored.into_iter().map(News::Accepted);
        Box::pin(stream::iter(stored.chain([News::CaughtUp])).chain(later))
    }

    fn ingest(&self, events: Vec<Verified<Arc<Event>>>, _: Origin) -> BoxFuture<'_, Vec<Taken>> {
        let taken = events.iter().map(|event| self.take(event)).collect();
        Box::pin(future::ready(taken))
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
        let found = self.find(&filter);
        let rows = found.iter().map(|event| Row::of(event)).collect();
        Box::pin(future::ready(Ok(rows)))
    }
}
