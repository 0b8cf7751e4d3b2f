//! Our own relay, as sync sees it.

mod threads;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use grasp_core::admission::Origin;
use grasp_core::deletion::DeletionRequest;
use grasp_core::nip34::Announcement;
use grasp_core::{RepoId, Verified, kinds};
use grasp_relay::purgatory::{self, PurgatoryDriver};
use grasp_relay::server::Parts;
use grasp_relay::store::Inventory;
use grasp_relay::{Accepted, Feed};
use grasp_sync::engine::{InventoryFailed, Row};
use grasp_sync::local::{LocalRelay, News, Taken};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use self::threads::Threads;

/// The relay of this process.
#[derive(Clone)]
pub struct OwnRelay {
    parts: Parts,
    purgatory: PurgatoryDriver,
}

impl OwnRelay {
    /// The relay that these parts are.
    pub fn new(parts: Parts, purgatory: PurgatoryDriver) -> Self {
        Self { parts, purgatory }
    }

    /// Waits until a moment of the calendar; for ever without one.
    async fn until(&self, at: Option<Timestamp>) {
        let Some(at) = at else { return std::future::pending().await };
        let left = at.as_secs().saturating_sub(self.parts.clock.now().unix.as_secs());
        tokio::time::sleep(Duration::from_secs(left)).await;
    }

    /// Those of the filters that nothing served matches. What cannot be looked at is taken to be served: too much
    /// is asked for then, never too little.
    async fn unserved(&self, filters: Vec<Filter>) -> Vec<bool> {
        let count = filters.len();
        let questions = filters.into_iter().map(|filter| vec![filter]).collect();
        match self.parts.store.exists(questions, self.parts.clock.now().unix).await {
            Ok(served) => served.into_iter().map(|is_served| !is_served).collect(),
            Err(_) => vec![false; count],
        }
    }
}

impl LocalRelay for OwnRelay {
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        let Parts { store, hub, clock, .. } = &self.parts;
        let feed = Feed::new(Arc::clone(store), hub.clone(), clock.clone());
        let reader = Reader {
            relay: self.clone(),
            feed: feed.accepted_then_all(kinds),
            purgatory: self.purgatory.news(),
            told: BTreeSet::new(),
            served: BTreeSet::new(),
            waiting: VecDeque::new(),
            threads: Threads::default(),
            has_begun: false,
        };
        stream::unfold(reader, |mut reader| async {
            let news = reader.next().await?;
            Some((news, reader))
        })
        .boxed()
    }

    fn ingest(
        &self,
        events: Vec<Verified<Arc<Event>>>,
        origin: Origin,
    ) -> BoxFuture<'_, Vec<Taken>> {
        Box::pin(async move {
            let outcomes = self.parts.ingest.ingest_verified(events, origin).await;
            outcomes.into_iter().map(Taken::from).collect()
        })
    }

    fn inventory(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Row>, InventoryFailed>> {
        Box::pin(async move {
            let now = self.parts.clock.now().unix;
            match self.parts.store.inventory(filter, now, usize::MAX).await {
                Ok(Inventory::Complete(items)) => {
                    Ok(items.into_iter().map(|(at, id)| Row { at, id }).collect())
                }
                Ok(Inventory::TooMany) => Err(InventoryFailed),
                Err(error) => {
                    tracing::error!(%error, "could not take an inventory");
                    Err(InventoryFailed)
                }
            }
        })
    }
}

/// Two feeds made one: what is stored, and what waits.
struct Reader {
    relay: OwnRelay,
    feed: BoxStream<'static, Accepted>,
    purgatory: broadcast::Receiver<purgatory::RepoChange>,
    /// Repositories that were told of and not taken back.
    told: BTreeSet<RepoId>,
    /// Those of them that are served.
    served: BTreeSet<RepoId>,
    waiting: VecDeque<News>,
    threads: Threads,
    has_begun: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<News> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.look_for_held().await;
        }
        loop {
            if let Some(news) = self.waiting.pop_front() {
                return Some(news);
            }
            tokio::select! {
                accepted = self.feed.next() => match accepted? {
                    Accepted::Event(event) => self.stored(event).await,
                    Accepted::CaughtUp => self.waiting.push_back(News::CaughtUp),
                },
                news = self.purgatory.recv() => match news {
                    Ok(purgatory::RepoChange::Held(event)) => self.held(event),
                    Ok(purgatory::RepoChange::Removed(repo)) => self.look_for_gone([repo].into()).await,
                    Err(RecvError::Lagged(_)) => {
                        self.look_for_gone(self.told.clone()).await;
                        self.look_for_held().await;
                    }
                    Err(RecvError::Closed) => return None,
                },
                () = self.relay.until(self.threads.next_expiry()) => {
                    let expired = self.threads.expired(self.relay.parts.clock.now().unix);
                    self.look_for_removed(expired).await;
                }
            }
        }
    }

    async fn stored(&mut self, event: Arc<Event>) {
        if event.kind == kinds::ANNOUNCEMENT {
            if let Ok(announcement) = Announcement::parse(&event) {
                self.told.insert(announcement.repo.clone());
                self.served.insert(announcement.repo);
            }
        }
        self.threads.told(&event);
        let gone = match event.kind {
            kind if kind == kinds::DELETION => {
                let request = DeletionRequest::parse(&event);
                let ids = request.into_iter().flat_map(|request| request.ids);
                ids.map(|id| (event.pubkey, id)).collect()
            }
            kind if kind == kinds::VANISH => self.threads.of(&event.pubkey),
            _ => Vec::new(),
        };
        self.waiting.push_back(News::Accepted(event));
        self.look_for_removed(gone).await;
    }

    fn held(&mut self, event: Arc<Event>) {
        let Ok(announcement) = Announcement::parse(&event) else { return };
        // What is served is wanted whole, whatever else waits beside it.
        if !self.served.contains(&announcement.repo) {
            self.told.insert(announcement.repo);
            self.waiting.push_back(News::Held(event));
        }
    }

    async fn look_for_held(&mut self) {
        let held = self.relay.purgatory.ask(grasp_purgatory::Purgatory::held_announcements).await;
        for event in held.unwrap_or_default() {
            self.held(event);
        }
    }

    /// Takes back those of the repositories that are neither served nor held.
    async fn look_for_gone(&mut self, repos: BTreeSet<RepoId>) {
        let announced = |repo: &RepoId| {
            let identifier = repo.identifier.as_str();
            Filter::new().kind(kinds::ANNOUNCEMENT).author(repo.owner).identifier(identifier)
        };
        let unserved = self.relay.unserved(repos.iter().map(announced).collect()).await;
        for (repo, is_unserved) in repos.into_iter().zip(unserved) {
            let asked = repo.clone();
            let held = self.relay.purgatory.ask(move |purgatory| purgatory.has_view(&asked)).await;
            if is_unserved && held == Ok(false) && self.told.remove(&repo) {
                self.served.remove(&repo);
                self.waiting.push_back(News::Retired(repo));
            }
        }
    }

    /// Takes back those of the authors' events that are no longer served: deleted, expired, or of an author who vanished.
    async fn look_for_removed(&mut self, events: Vec<(PublicKey, EventId)>) {
        if events.is_empty() {
            return;
        }
        let filters = events.iter().map(|(_, id)| Filter::new().id(*id)).collect();
        let unserved = self.relay.unserved(filters).await;
        let gone = events.into_iter().zip(unserved).filter(|(_, is_unserved)| *is_unserved);
        for ((author, id), _) in gone {
            self.threads.removed(&author, &id);
            self.waiting.push_back(News::Removed(id));
        }
    }
}
