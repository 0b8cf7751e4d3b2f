//! The relay of this process, as grasp-sync's [`SyncedRelay`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use grasp_core::admission::{Origin, Policy};
use grasp_core::nip34::{Announcement, References};
use grasp_core::{RepoId, Verified, kinds};
use grasp_purgatory::driver::{PurgatoryDriver, RepoNews};
use grasp_sync::engine::{InventoryFailed, Row};
use grasp_sync::local::{News, SyncedRelay, Taken};
use nostr::event::{Event, Kind};
use nostr::filter::Filter;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::policy::LivePolicy;
use crate::server::Parts;
use crate::store::{Inventory, StoreError};
use crate::{Accepted, Feed};

/// The relay of this process.
#[derive(Clone)]
pub struct OwnRelay {
    parts: Parts,
    purgatory: PurgatoryDriver,
}

impl OwnRelay {
    /// Wraps the parts of a relay.
    pub fn new(parts: Parts, purgatory: PurgatoryDriver) -> Self {
        Self { parts, purgatory }
    }

    /// Returns for each filter whether no served event matches it. If the store fails, all count as served: sync then
    /// asks for too much, never for too little.
    async fn unserved(&self, filters: Vec<Filter>) -> Vec<bool> {
        let count = filters.len();
        let queries = filters.into_iter().map(|filter| vec![filter]).collect();
        match self
            .parts
            .store
            .exists(queries, self.parts.clock.now().unix)
            .await
        {
            Ok(served) => served.into_iter().map(|is_served| !is_served).collect(),
            Err(_) => vec![false; count],
        }
    }
}

impl SyncedRelay for OwnRelay {
    fn accepted(&self, kinds: &[Kind]) -> BoxStream<'static, News> {
        let Parts {
            store, hub, clock, ..
        } = &self.parts;
        let feed = Feed::new(Arc::clone(store), hub.clone(), clock.clone());
        let reader = Reader {
            relay: self.clone(),
            feed: feed.accepted_then_all(kinds),
            members: members_beside(kinds),
            purgatory: self.purgatory.news(),
            policy: self.parts.config.policy.clone(),
            reported: BTreeSet::new(),
            served: BTreeSet::new(),
            waiting: VecDeque::new(),
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
                Ok(Inventory::TooMany) => Err(InventoryFailed::TooLarge),
                Err(error) => {
                    tracing::error!(%error, "could not list the stored events for a comparison");
                    Err(InventoryFailed::Unreadable)
                }
            }
        })
    }
}

/// The pause after a failed read.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Returns a filter for events that have a coordinate, without these kinds. States have one too, and nothing names them.
fn members_beside(kinds: &[Kind]) -> Filter {
    let mut others = Vec::new();
    for kind in (0..=u16::MAX).map(Kind::from) {
        let has_coordinate = kind.is_addressable() || kinds::is_replaceable(kind);
        if has_coordinate && kind != kinds::STATE && !kinds.contains(&kind) {
            others.push(kind);
        }
    }
    Filter::new().kinds(others)
}

/// Merges two feeds: stored events and held announcements.
struct Reader {
    relay: OwnRelay,
    feed: BoxStream<'static, Accepted>,
    /// Addressable and replaceable events of kinds that the feed does not read from the store.
    members: Filter,
    purgatory: broadcast::Receiver<RepoNews>,
    policy: LivePolicy,
    /// Repositories that were reported and not retired.
    reported: BTreeSet<RepoId>,
    /// Those of them that are served.
    served: BTreeSet<RepoId>,
    waiting: VecDeque<News>,
    has_begun: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<News> {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.report_held().await;
        }
        loop {
            if let Some(news) = self.waiting.pop_front() {
                return Some(news);
            }
            tokio::select! {
                accepted = self.feed.next() => match accepted? {
                    Accepted::Event(event) => self.stored(event),
                    Accepted::Removed(events) => {
                        self.waiting.extend(events.iter().map(|id| News::Removed(*id)));
                    }
                    Accepted::CaughtUp => {
                        self.report_members().await;
                        self.waiting.push_back(News::CaughtUp);
                    }
                },
                news = self.purgatory.recv() => match news {
                    Ok(RepoNews::Held(event)) => self.held(event),
                    Ok(RepoNews::Removed(repo)) => self.report_retired([repo].into()).await,
                    Err(RecvError::Lagged(_)) => {
                        self.report_retired(self.reported.clone()).await;
                        self.report_held().await;
                    }
                    Err(RecvError::Closed) => return None,
                },
                policy = self.policy.next() => self.retire_withheld(&policy),
            }
        }
    }

    /// Reports that repositories which operators took out of service are followed no longer. One that comes back is stored
    /// again.
    fn retire_withheld(&mut self, policy: &Policy) {
        let reported = std::mem::take(&mut self.reported);
        for repo in reported {
            if policy.withholds(&repo) {
                self.served.remove(&repo);
                self.waiting.push_back(News::Retired(repo));
            } else {
                self.reported.insert(repo);
            }
        }
    }

    fn stored(&mut self, event: Arc<Event>) {
        if event.kind == kinds::ANNOUNCEMENT {
            if let Ok(announcement) = Announcement::parse(&event) {
                self.reported.insert(announcement.repo.clone());
                self.served.insert(announcement.repo);
            }
        }
        self.waiting.push_back(News::Accepted(event));
    }

    fn held(&mut self, event: Arc<Event>) {
        let Ok(announcement) = Announcement::parse(&event) else {
            return;
        };
        // A served repository is synced whole already, even if a newer announcement of it is held.
        if !self.served.contains(&announcement.repo) {
            self.reported.insert(announcement.repo);
            self.waiting.push_back(News::Held(event));
        }
    }

    async fn report_held(&mut self) {
        let held = self
            .relay
            .purgatory
            .ask(grasp_purgatory::Purgatory::held_announcements)
            .await;
        for event in held.unwrap_or_default() {
            self.held(event);
        }
    }

    /// Reports stored addressable and replaceable events that name a repository or another such event: events that name
    /// only these are followed by them.
    async fn report_members(&mut self) {
        let Parts { store, clock, .. } = self.relay.parts.clone();
        let mut pages = store.query(vec![self.members.clone()], clock.now().unix);
        while let Some(page) = pages.next().await {
            match page {
                Ok(page) => page.iter().for_each(|stored| self.member(&stored.json)),
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::error!(%error, "could not read addressable events; trying again");
                    tokio::time::sleep(RETRY_DELAY).await;
                    pages = store.query(vec![self.members.clone()], clock.now().unix);
                }
            }
        }
    }

    fn member(&mut self, json: &str) {
        let Ok(event) = Event::from_json(json) else {
            return;
        };
        if !References::of(&event).coordinates.is_empty() {
            self.waiting.push_back(News::Accepted(Arc::new(event)));
        }
    }

    /// Reports those of the repositories that are neither served nor held any more.
    async fn report_retired(&mut self, repos: BTreeSet<RepoId>) {
        let announced = |repo: &RepoId| {
            let identifier = repo.identifier.as_str();
            Filter::new()
                .kind(kinds::ANNOUNCEMENT)
                .author(repo.owner)
                .identifier(identifier)
        };
        let unserved = self
            .relay
            .unserved(repos.iter().map(announced).collect())
            .await;
        for (repo, is_unserved) in repos.into_iter().zip(unserved) {
            let asked = repo.clone();
            let held = self
                .relay
                .purgatory
                .ask(move |purgatory| purgatory.has_view(&asked))
                .await;
            if is_unserved && held == Ok(false) && self.reported.remove(&repo) {
                self.served.remove(&repo);
                self.waiting.push_back(News::Retired(repo));
            }
        }
    }
}
