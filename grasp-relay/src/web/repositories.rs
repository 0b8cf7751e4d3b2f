//! The repositories of a server with their last activity, looked up at most now and then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::nip34::{Announcement, State};
use grasp_core::service::npub;
use grasp_core::{Identifier, Mono, ServiceIdentity, kinds};
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::key::PublicKey;
use tokio::sync::Mutex;

use super::figures::RepoRow;
use crate::clock::Clock;
use crate::store::{self, EventStore, StoreError};

/// How old an answer may be: a page that is asked for in a loop must not cost more than one that is asked for once.
const FRESH: Duration = Duration::from_secs(10);

/// Repositories that are looked at for one answer, the latest announced first.
const MOST: usize = 2_000;

/// Whether an announcement is of a repository to be listed.
type Hosts = Box<dyn Fn(&Announcement) -> bool + Send + Sync>;

/// The list of repositories. Cheap to clone.
#[derive(Clone)]
pub struct Listing(Arc<Inner>);

struct Inner {
    store: Arc<dyn EventStore>,
    service: ServiceIdentity,
    clock: Clock,
    hosts: Hosts,
    last: Mutex<Option<(Mono, Arc<Listed>)>>,
}

/// The repositories of a server.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// The latest active first.
    pub rows: Vec<RepoRow>,
    /// Whether there may be more, announced longer ago.
    pub is_cut: bool,
}

impl Listing {
    /// A list of what this store serves, of those that `hosts` says are to be listed.
    pub fn new(
        store: Arc<dyn EventStore>,
        service: ServiceIdentity,
        clock: Clock,
        hosts: impl Fn(&Announcement) -> bool + Send + Sync + 'static,
    ) -> Self {
        let hosts = Box::new(hosts);
        Self(Arc::new(Inner { store, service, clock, hosts, last: Mutex::new(None) }))
    }

    /// The repositories, the latest active first. Many who ask at once wait for one answer.
    pub async fn rows(&self) -> Result<Arc<Listed>, StoreError> {
        let mut last = self.0.last.lock().await;
        let now = self.0.clock.now().mono;
        if let Some((at, rows)) = &*last {
            if now - *at < FRESH {
                return Ok(Arc::clone(rows));
            }
        }
        let rows = Arc::new(self.0.look_up().await?);
        *last = Some((now, Arc::clone(&rows)));
        Ok(rows)
    }
}

impl Inner {
    async fn look_up(&self) -> Result<Listed, StoreError> {
        let announced = self.events(Filter::new().kind(kinds::ANNOUNCEMENT)).await?;
        let states = Latest::of(&self.events(Filter::new().kind(kinds::STATE)).await?);
        let is_cut = announced.len() >= MOST;
        let announced = announced.iter().filter_map(|event| Announcement::parse(event).ok());
        let hosted = announced.filter(|announcement| (self.hosts)(announcement));
        let mut rows: Vec<_> =
            hosted.map(|announcement| self.row(&announcement, &states)).collect();
        rows.sort_by(|a, b| b.active_at.cmp(&a.active_at).then_with(|| a.path.cmp(&b.path)));
        Ok(Listed { rows, is_cut })
    }

    async fn events(&self, filter: Filter) -> Result<Vec<Event>, StoreError> {
        store::events(&*self.store, filter.limit(MOST), self.clock.now().unix).await
    }

    fn row(&self, announcement: &Announcement, states: &Latest) -> RepoRow {
        let repo = &announcement.repo;
        let announced = announcement.version.created_at.as_secs();
        let state = states.of_keepers(announcement);
        let name = announcement.name.clone().filter(|name| !name.is_empty());
        RepoRow {
            owner: npub(&repo.owner),
            identifier: repo.identifier.to_string(),
            name: name.unwrap_or_else(|| repo.identifier.to_string()),
            description: announcement.description.clone().unwrap_or_default(),
            path: self.service.repo_path(repo),
            active_at: state.map_or(announced, |(signed, _)| signed.max(announced)),
            refs: state.map_or(0, |(_, refs)| refs),
        }
    }
}

/// When each author last signed a state under each name, and how many refs it has.
struct Latest(BTreeMap<Identifier, BTreeMap<PublicKey, (u64, u64)>>);

impl Latest {
    fn of(states: &[Event]) -> Self {
        let mut latest: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for state in states.iter().filter_map(|event| State::parse(event).ok()) {
            let signed = (state.version.created_at.as_secs(), state.refs.len() as u64);
            latest
                .entry(state.repo.identifier.clone())
                .or_default()
                .entry(state.repo.owner)
                .and_modify(|last: &mut (u64, u64)| *last = (*last).max(signed))
                .or_insert(signed);
        }
        Self(latest)
    }

    /// The newest of the owner and those whom the announcement names as keepers.
    fn of_keepers(&self, announcement: &Announcement) -> Option<(u64, u64)> {
        let authors = self.0.get(&announcement.repo.identifier)?;
        let named = announcement.roster.listed().into_iter().chain([announcement.repo.owner]);
        named.filter_map(|keeper| authors.get(&keeper).copied()).max()
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventId, Signature, Tag};

    use super::*;
    use crate::store::memory::MemoryStore;

    /// The announcement of a repository that nobody signed, as a store has it.
    fn announcement(n: usize) -> Arc<Event> {
        let id = EventId::from_byte_array(std::array::from_fn(|at| n.to_be_bytes()[at % 8]));
        let author = PublicKey::from_byte_array([1; 32]);
        let tags = [Tag::identifier(n.to_string())];
        let signature = Signature::from_slice(&[0; 64]).unwrap();
        let at = nostr::types::Timestamp::from_secs(n as u64);
        Arc::new(Event::new(id, author, at, kinds::ANNOUNCEMENT, tags, "", signature))
    }

    #[tokio::test]
    async fn a_list_that_may_lack_some_says_so() {
        for (count, is_cut) in [(MOST - 1, false), (MOST + 1, true)] {
            let (store, clock) = (Arc::new(MemoryStore::default()), Clock::system());
            let events = (1..=count).map(announcement).collect();
            store.save(events, clock.now().unix).await.unwrap();
            let listing = Listing::new(store, "us.example".parse().unwrap(), clock, |_| true);
            let listed = listing.rows().await.unwrap();
            assert_eq!((listed.rows.len(), listed.is_cut), (count.min(MOST), is_cut));
        }
    }
}
