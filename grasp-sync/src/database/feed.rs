//! The feed of a database: what is stored, page by page, then what is saved and removed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_core::stream::Stream;
use futures_util::stream;
use grasp_core::RepoId;
use grasp_core::admission::is_expired;
use grasp_core::nostr::event::{Event, EventId, Kind};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use nostr_database::NostrDatabase;
use nostr_database::error::Error;
use tokio::sync::broadcast;

use super::{DatabaseRelay, announced_repo};
use crate::local::News;

/// Events of one page.
const PAGE: usize = 2_000;
/// The pause after a failed read.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Events with an expiration that are watched. Of more, some are followed until the next start.
const MAX_EXPIRING: usize = 65_536;

/// Begins a feed. `live` was subscribed before anything is read, so that no event is missed in between.
pub(super) fn begin<D: NostrDatabase>(
    relay: DatabaseRelay<D>,
    live: broadcast::Receiver<News>,
    kinds: Vec<Kind>,
) -> impl Stream<Item = News> {
    let reader = FeedReader {
        relay,
        live,
        stored: Some(FilterPages::new(Filter::new().kinds(kinds))),
        waiting: VecDeque::new(),
        expiring: BTreeMap::new(),
    };
    stream::unfold(reader, async |mut reader| {
        let news = reader.next().await?;
        Some((news, reader))
    })
}

struct FeedReader<D> {
    relay: DatabaseRelay<D>,
    live: broadcast::Receiver<News>,
    /// The stored events that were not read yet; `None` when all were.
    stored: Option<FilterPages>,
    waiting: VecDeque<News>,
    /// The events that expire, which the database does not tell.
    expiring: BTreeMap<(Timestamp, EventId), Expiring>,
}

struct Expiring {
    event: Arc<Event>,
    /// The repository, of an announcement.
    repo: Option<RepoId>,
}

impl<D: NostrDatabase> FeedReader<D> {
    async fn next(&mut self) -> Option<News> {
        loop {
            if let Some(news) = self.waiting.pop_front() {
                return Some(news);
            }
            if self.stored.is_some() {
                self.read_page().await;
                continue;
            }
            tokio::select! {
                // Ends if the reader fell behind; the feed is then begun anew.
                news = self.live.recv() => self.stream(news.ok()?),
                () = until(self.expiring.keys().next().map(|(at, _)| *at)) => self.expire(),
            }
        }
    }

    async fn read_page(&mut self) {
        let Some(pages) = &mut self.stored else {
            return;
        };
        match pages.next(self.relay.database()).await {
            Ok(Some(events)) => {
                for event in events {
                    self.stream(News::Accepted(Arc::new(event)));
                }
            }
            Ok(None) => self.caught_up(),
            Err(error) => {
                tracing::error!(%error, "could not read the stored events; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    fn caught_up(&mut self) {
        self.stored = None;
        self.waiting.push_back(News::CaughtUp);
    }

    fn stream(&mut self, news: News) {
        if let News::Accepted(event) = &news {
            if is_expired(event, Timestamp::now()) {
                return;
            }
            self.watch(event);
        }
        self.waiting.push_back(news);
    }

    /// Watches the expiration of an event, in place of that of an announcement which it replaces.
    fn watch(&mut self, event: &Arc<Event>) {
        let repo = announced_repo(event);
        if repo.is_some() {
            self.expiring.retain(|_, other| other.repo != repo);
        }
        let Some(at) = event.tags.expiration() else {
            return;
        };
        if self.expiring.len() < MAX_EXPIRING {
            let event = Arc::clone(event);
            self.expiring
                .insert((at, event.id), Expiring { event, repo });
        }
    }

    fn expire(&mut self) {
        let now = Timestamp::now();
        while let Some(entry) = self.expiring.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let expired = entry.remove();
            let news = News::removed(&expired.event);
            self.relay.0.rules.gone(&news);
            self.waiting.push_back(news);
        }
    }
}

/// Sleeps until a time of the wall clock; for ever without one.
async fn until(at: Option<Timestamp>) {
    let Some(at) = at else {
        return std::future::pending().await;
    };
    let left = at.as_secs().saturating_sub(Timestamp::now().as_secs());
    tokio::time::sleep(Duration::from_secs(left)).await;
}

/// The pages of all stored events that match a filter, newest first.
#[derive(Debug)]
pub(super) struct FilterPages {
    matching: Filter,
    limit: usize,
    until: Option<Timestamp>,
    /// Ids of the second at which the last page ended: the next one begins with it.
    seen: BTreeSet<EventId>,
}

impl FilterPages {
    pub(super) fn new(matching: Filter) -> Self {
        Self {
            limit: PAGE,
            until: matching.until,
            seen: BTreeSet::new(),
            matching,
        }
    }

    /// Reads the next page; returns its new events, or `None` after the last. A failed read can be repeated.
    pub(super) async fn next(
        &mut self,
        database: &impl NostrDatabase,
    ) -> Result<Option<Vec<Event>>, Error> {
        let page = database.query(self.filter()).await?;
        Ok(self.page(page))
    }

    fn filter(&self) -> Filter {
        let mut filter = self.matching.clone();
        filter.until = self.until;
        filter.limit(self.limit)
    }

    /// Takes a page; returns its new events, or `None` if it was the last and brings none.
    fn page(&mut self, page: BTreeSet<Event>) -> Option<Vec<Event>> {
        let is_full = page.len() >= self.limit;
        let oldest = page.iter().map(|event| event.created_at).min();
        let mut new = Vec::new();
        for event in page {
            if !self.seen.contains(&event.id) {
                new.push(event);
            }
        }
        if new.is_empty() && !is_full {
            return None;
        }
        if new.is_empty() {
            // One second has more events than a page.
            self.limit = self.limit.saturating_mul(2);
            return Some(new);
        }
        if oldest != self.until {
            self.seen.clear();
            self.limit = PAGE;
        }
        self.until = oldest;
        let last = new.iter().filter(|event| Some(event.created_at) == oldest);
        self.seen.extend(last.map(|event| event.id));
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::Signature;
    use grasp_core::nostr::key::PublicKey;

    use super::*;

    fn event(n: u16, second: u64) -> Event {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&n.to_be_bytes());
        Event::new(
            EventId::from_byte_array(id),
            PublicKey::from_byte_array([1; 32]),
            Timestamp::from_secs(second),
            Kind::GitIssue,
            [],
            "",
            Signature::from_slice(&[0; 64]).unwrap(),
        )
    }

    #[test]
    fn every_event_is_read_once_even_if_one_second_has_many() {
        // Half of the events were signed in one second.
        let second = |n: u16| if n < 5_000 { 7 } else { u64::from(n / 3) };
        let stored: BTreeSet<Event> = (0..10_000).map(|n| event(n, second(n))).collect();
        let mut pages = FilterPages::new(Filter::new().kind(Kind::GitIssue));
        let mut read = Vec::new();
        loop {
            let filter = pages.filter();
            let matching = stored
                .iter()
                .filter(|event| filter.until.is_none_or(|until| event.created_at <= until));
            let page = matching.take(filter.limit.unwrap()).cloned().collect();
            match pages.page(page) {
                Some(events) => read.extend(events),
                None => break,
            }
        }
        let distinct: BTreeSet<EventId> = read.iter().map(|event| event.id).collect();
        assert_eq!((read.len(), distinct.len()), (10_000, 10_000));
    }
}
