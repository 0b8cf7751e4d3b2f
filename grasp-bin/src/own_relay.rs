//! The relay of this process, as grasp-sync's [`LocalRelay`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use grasp_core::admission::Origin;
use grasp_core::deletion::DeletionRequest;
use grasp_core::nip34::{Announcement, References};
use grasp_core::{RepoId, Verified, kinds};
use grasp_purgatory::driver::{PurgatoryDriver, RepoNews};
use grasp_relay::server::Parts;
use grasp_relay::store::{Inventory, StoreError};
use grasp_relay::{Accepted, Feed};
use grasp_sync::engine::{InventoryFailed, Row};
use grasp_sync::local::{LocalRelay, News, Taken};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

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

    /// Waits until a time of the wall clock; without one, forever.
    async fn until(&self, at: Option<Timestamp>) {
        let Some(at) = at else {
            return std::future::pending().await;
        };
        let left = at
            .as_secs()
            .saturating_sub(self.parts.clock.now().unix.as_secs());
        tokio::time::sleep(Duration::from_secs(left)).await;
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

impl LocalRelay for OwnRelay {
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
            reported: BTreeSet::new(),
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
                    tracing::error!(%error, "could not list the stored events for a comparison");
                    Err(InventoryFailed)
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
    /// Repositories that were reported and not retired.
    reported: BTreeSet<RepoId>,
    /// Those of them that are served.
    served: BTreeSet<RepoId>,
    waiting: VecDeque<News>,
    threads: Threads,
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
                    Accepted::Event(event) => self.stored(event).await,
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
                () = self.relay.until(self.threads.next_expiry()) => {
                    let expired = self.threads.expired(self.relay.parts.clock.now().unix);
                    self.report_removed(expired).await;
                }
            }
        }
    }

    async fn stored(&mut self, event: Arc<Event>) {
        if event.kind == kinds::ANNOUNCEMENT {
            if let Ok(announcement) = Announcement::parse(&event) {
                self.reported.insert(announcement.repo.clone());
                self.served.insert(announcement.repo);
            }
        }
        self.threads.stored(&event);
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
        self.report_removed(gone).await;
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

    /// Reports those of the events that are no longer served: deleted, expired, or of an author who vanished.
    async fn report_removed(&mut self, events: Vec<(PublicKey, EventId)>) {
        if events.is_empty() {
            return;
        }
        let filters = events.iter().map(|(_, id)| Filter::new().id(*id)).collect();
        let unserved = self.relay.unserved(filters).await;
        let gone = events
            .into_iter()
            .zip(unserved)
            .filter(|(_, is_unserved)| *is_unserved);
        for ((author, id), _) in gone {
            self.threads.removed(&author, &id);
            self.waiting.push_back(News::Removed(id));
        }
    }
}

/// Limits the remembered events. Beyond it, events of the author with the most are forgotten: if they vanish or expire,
/// sync asks for them until the next start.
const MAX_EVENTS: usize = 250_000;

/// The roots and replies that were reported to sync, by author and by expiration: both can remove them.
#[derive(Debug, Default)]
struct Threads {
    /// With the time at which each expires.
    by_author: BTreeMap<PublicKey, BTreeMap<EventId, Option<Timestamp>>>,
    /// Authors by number of events.
    sizes: BTreeSet<(usize, PublicKey)>,
    expiring: BTreeSet<(Timestamp, PublicKey, EventId)>,
    count: usize,
}

impl Threads {
    fn stored(&mut self, event: &Event) {
        if kinds::ROOT_KINDS.contains(&event.kind) || kinds::REPLY_KINDS.contains(&event.kind) {
            self.add(event.pubkey, event.id, event.tags.expiration(), MAX_EVENTS);
        }
    }

    /// Returns the events of an author who asked to vanish (NIP-62).
    fn of(&self, author: &PublicKey) -> Vec<(PublicKey, EventId)> {
        let events = self
            .by_author
            .get(author)
            .into_iter()
            .flat_map(BTreeMap::keys);
        events.map(|id| (*author, *id)).collect()
    }

    /// Returns the time at which the next event expires (NIP-40).
    fn next_expiry(&self) -> Option<Timestamp> {
        self.expiring.first().map(|(at, ..)| *at)
    }

    /// Removes and returns the events that have expired by now.
    fn expired(&mut self, now: Timestamp) -> Vec<(PublicKey, EventId)> {
        let mut gone = Vec::new();
        while self.next_expiry().is_some_and(|at| at <= now) {
            gone.extend(
                self.expiring
                    .pop_first()
                    .map(|(_, author, id)| (author, id)),
            );
        }
        gone
    }

    /// Forgets an event that is no longer served.
    fn removed(&mut self, author: &PublicKey, id: &EventId) {
        let Some(events) = self.by_author.get_mut(author) else {
            return;
        };
        let before = events.len();
        let Some(expires) = events.remove(id) else {
            return;
        };
        if events.is_empty() {
            self.by_author.remove(author);
        }
        self.resized(*author, before, before - 1);
        if let Some(at) = expires {
            self.expiring.remove(&(at, *author, *id));
        }
    }

    fn add(&mut self, author: PublicKey, id: EventId, expires: Option<Timestamp>, most: usize) {
        if self
            .by_author
            .get(&author)
            .is_some_and(|events| events.contains_key(&id))
        {
            return;
        }
        if self.count >= most {
            self.forget_one();
        }
        let events = self.by_author.entry(author).or_default();
        events.insert(id, expires);
        let after = events.len();
        self.resized(author, after - 1, after);
        self.expiring.extend(expires.map(|at| (at, author, id)));
    }

    /// Forgets an event of the author that has most.
    fn forget_one(&mut self) {
        let Some((_, author)) = self.sizes.last().copied() else {
            return;
        };
        let first = self
            .by_author
            .get(&author)
            .and_then(|events| events.keys().next().copied());
        if let Some(id) = first {
            self.removed(&author, &id);
        }
    }

    fn resized(&mut self, author: PublicKey, before: usize, after: usize) {
        self.sizes.remove(&(before, author));
        if after > 0 {
            self.sizes.insert((after, author));
        }
        self.count = self.count + after - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(n: u8) -> PublicKey {
        PublicKey::from_byte_array([n; 32])
    }

    fn id(n: u32) -> EventId {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(bytes)
    }

    #[test]
    fn one_author_makes_the_others_forgotten_in_no_number() {
        let mut threads = Threads::default();
        threads.add(author(1), id(0), Some(9.into()), 100);
        for n in 1..1_000 {
            threads.add(author(2), id(n), Some(7.into()), 100);
        }
        assert_eq!((threads.count, threads.expiring.len()), (100, 100));
        assert_eq!(threads.of(&author(1)), [(author(1), id(0))]);
        assert_eq!(threads.of(&author(2)).len(), 99);
    }

    #[test]
    fn what_is_removed_is_gone_from_everywhere() {
        let mut threads = Threads::default();
        threads.add(author(1), id(1), Some(9.into()), 100);
        threads.add(author(1), id(1), Some(9.into()), 100);
        threads.add(author(1), id(2), None, 100);
        threads.removed(&author(2), &id(1));
        assert_eq!((threads.count, threads.next_expiry()), (2, Some(9.into())));
        threads.removed(&author(1), &id(1));
        assert_eq!(
            (threads.of(&author(1)), threads.next_expiry()),
            (vec![(author(1), id(2))], None)
        );
        threads.removed(&author(1), &id(2));
        assert!(threads.by_author.is_empty() && threads.sizes.is_empty() && threads.count == 0);
    }

    #[test]
    fn what_has_expired_is_told_with_its_author() {
        let mut threads = Threads::default();
        threads.add(author(1), id(1), Some(9.into()), 100);
        threads.add(author(2), id(2), Some(5.into()), 100);
        assert_eq!(threads.expired(4.into()), []);
        assert_eq!(threads.expired(5.into()), [(author(2), id(2))]);
        assert_eq!(threads.next_expiry(), Some(9.into()));
    }
}
