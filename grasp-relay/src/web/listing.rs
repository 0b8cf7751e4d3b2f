//! The list of hosted repositories.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bitcoin_hashes::{HashEngine as _, sha256};
use grasp_core::nip34::{Announcement, State};
use grasp_core::service::npub;
use grasp_core::{Mono, RepoId, ServiceIdentity, kinds};
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::key::PublicKey;
use tokio::sync::Mutex;

use super::figures::RepositoryRow;
use crate::clock::Clock;
use crate::store::{self, EventStore, StoreError};

/// Limits the age of a cached list.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The age of a cached list, as a multiple of the time that it took: a page that is requested in a loop costs a hundredth
/// of a core, and a new server shows a new repository at once.
const MAX_AGE_PER_DURATION: u32 = 100;

fn fresh_for(took: Duration) -> Duration {
    took.saturating_mul(MAX_AGE_PER_DURATION).min(MAX_AGE)
}

/// Limits the announcements, and the states, that a list is made from; the newest are used.
const MAX_EVENTS: usize = 2_000;

/// Limits the announcements of one owner that are listed.
const MAX_OWNED: usize = 100;

/// Decides whether the repository of an announcement is listed.
type IsHosted = Box<dyn Fn(&Announcement) -> bool + Send + Sync>;

/// Lists the hosted repositories. Cheap to clone.
#[derive(Clone)]
pub struct Listing(Arc<ListingInner>);

struct ListingInner {
    store: Arc<dyn EventStore>,
    service: ServiceIdentity,
    clock: Clock,
    is_hosted: IsHosted,
    /// The last list, and the end of its use.
    last: Mutex<Option<(Mono, Arc<RepositoryList>)>>,
}

/// The hosted repositories of a server.
#[derive(Clone, Debug, Default)]
pub struct RepositoryList {
    /// One row per repository, the latest active first.
    pub rows: Vec<RepositoryRow>,
    /// There may be more, announced longer ago.
    pub is_cut: bool,
    /// A text that changes with the rows.
    pub(crate) version: String,
}

impl RepositoryList {
    /// Creates a list of these rows.
    pub(crate) fn new(rows: Vec<RepositoryRow>, is_cut: bool) -> Self {
        let mut engine = sha256::HashEngine::default();
        for row in &rows {
            engine.input(row.path.as_bytes());
            engine.input(&row.active_at.to_be_bytes());
            if let Some(id) = &row.announcement {
                engine.input(id.as_bytes());
            }
        }
        let hash = engine.finalize().to_string();
        Self {
            rows,
            is_cut,
            version: hash.get(..16).unwrap_or_default().to_owned(),
        }
    }
}

impl Listing {
    /// Creates a list of the announced repositories in a store that satisfy `is_hosted`.
    pub fn new(
        store: Arc<dyn EventStore>,
        service: ServiceIdentity,
        clock: Clock,
        is_hosted: impl Fn(&Announcement) -> bool + Send + Sync + 'static,
    ) -> Self {
        let is_hosted = Box::new(is_hosted);
        Self(Arc::new(ListingInner {
            store,
            service,
            clock,
            is_hosted,
            last: Mutex::new(None),
        }))
    }

    /// Returns the list; concurrent calls wait for one lookup.
    pub async fn rows(&self) -> Result<Arc<RepositoryList>, StoreError> {
        let mut last = self.0.last.lock().await;
        let now = self.0.clock.now().mono;
        if let Some((_, rows)) = last.as_ref().filter(|(end, _)| now < *end) {
            return Ok(Arc::clone(rows));
        }
        let rows = Arc::new(self.0.look_up().await?);
        let then = self.0.clock.now().mono;
        *last = Some((then + fresh_for(then - now), Arc::clone(&rows)));
        Ok(rows)
    }

    /// Has the next call look up the list again, because what is hosted has changed.
    pub async fn forget(&self) {
        *self.0.last.lock().await = None;
    }

    /// Looks up the repositories of one owner, however long ago they were announced.
    pub async fn of_owner(&self, owner: PublicKey) -> Result<RepositoryList, StoreError> {
        self.0.look_up_owner(owner).await
    }
}

impl ListingInner {
    async fn look_up(&self) -> Result<RepositoryList, StoreError> {
        let announced = Filter::new().kind(kinds::ANNOUNCEMENT);
        let announced = self.announced(announced, MAX_EVENTS).await?;
        let states = self
            .events(Filter::new().kind(kinds::STATE).limit(MAX_EVENTS))
            .await?;
        Ok(self.list(&announced, &states))
    }

    async fn look_up_owner(&self, owner: PublicKey) -> Result<RepositoryList, StoreError> {
        let announced = Filter::new().kind(kinds::ANNOUNCEMENT).author(owner);
        let announced = self.announced(announced, MAX_OWNED).await?;
        let mut authors = BTreeSet::from([owner]);
        for announcement in &announced.hosted {
            authors.extend(announcement.maintainer_list.listed.iter().copied());
        }
        let names = announced
            .hosted
            .iter()
            .map(|it| it.repo.identifier.as_str());
        let states = Filter::new().kind(kinds::STATE).authors(authors);
        let states = self
            .events(states.identifiers(names).limit(MAX_EVENTS))
            .await?;
        Ok(self.list(&announced, &states))
    }

    /// Reads the announcements of hosted repositories, of the newest that a filter matches.
    async fn announced(
        &self,
        filter: Filter,
        max: usize,
    ) -> Result<HostedAnnouncements, StoreError> {
        let events = self.events(filter.limit(max)).await?;
        let parsed = events
            .iter()
            .filter_map(|event| Announcement::parse(event).ok());
        Ok(HostedAnnouncements {
            is_cut: events.len() >= max,
            hosted: parsed.filter(|it| (self.is_hosted)(it)).collect(),
        })
    }

    fn list(&self, announced: &HostedAnnouncements, states: &[Event]) -> RepositoryList {
        let signed = |state: &State| (state.version.created_at.as_secs(), state.refs.len() as u64);
        let states = states.iter().filter_map(|event| State::parse(event).ok());
        let states = states
            .map(|state| (state.repo.clone(), signed(&state)))
            .collect();
        let rows = announced.hosted.iter().map(|it| self.row(it, &states));
        let mut rows: Vec<RepositoryRow> = rows.collect();
        rows.sort_by(|a, b| {
            b.active_at
                .cmp(&a.active_at)
                .then_with(|| a.path.cmp(&b.path))
        });
        RepositoryList::new(rows, announced.is_cut)
    }

    async fn events(&self, filter: Filter) -> Result<Vec<Event>, StoreError> {
        store::events(&*self.store, filter, self.clock.now().unix).await
    }

    fn row(&self, announcement: &Announcement, states: &States) -> RepositoryRow {
        let repo = &announcement.repo;
        let announced = announcement.version.created_at.as_secs();
        // The newest state by the owner and the listed maintainers.
        let authors = announcement
            .maintainer_list
            .listed
            .iter()
            .copied()
            .chain([repo.owner]);
        let of = |author| {
            states
                .get(&RepoId::new(author, repo.identifier.clone()))
                .copied()
        };
        let state = authors.filter_map(of).max();
        let name = announcement.name.clone().filter(|name| !name.is_empty());
        RepositoryRow {
            owner: npub(&repo.owner),
            identifier: repo.identifier.to_string(),
            name: name.unwrap_or_else(|| repo.identifier.to_string()),
            description: announcement.description.clone().unwrap_or_default(),
            topics: announcement.topics.clone(),
            path: self.service.repo_path(repo),
            active_at: state.map_or(announced, |(signed, _)| signed.max(announced)),
            refs: state.map_or(0, |(_, refs)| refs),
            announcement: Some(announcement.version.id),
        }
    }
}

/// The announcements of hosted repositories, perhaps not all.
struct HostedAnnouncements {
    hosted: Vec<Announcement>,
    is_cut: bool,
}

/// The date and the number of refs of each author's state.
type States = BTreeMap<RepoId, (u64, u64)>;

#[cfg(test)]
mod tests {
    use nostr::event::{EventId, Signature, Tag};

    use super::*;
    use crate::store::sqlite::{SqliteOptions, SqliteStore};

    #[test]
    fn a_list_is_kept_for_a_time_that_depends_on_its_cost() {
        let milliseconds = Duration::from_millis;
        assert_eq!(fresh_for(milliseconds(1)), milliseconds(100));
        assert_eq!(fresh_for(milliseconds(500)), MAX_AGE);
    }

    /// Returns an announcement without a valid signature, the newer the higher its number.
    fn announcement(n: usize) -> Arc<Event> {
        announcement_by(PublicKey::from_byte_array([1; 32]), n)
    }

    fn announcement_by(author: PublicKey, n: usize) -> Arc<Event> {
        let id = EventId::from_byte_array(std::array::from_fn(|at| n.to_be_bytes()[at % 8]));
        let tags = [Tag::identifier(n.to_string())];
        let signature = Signature::from_slice(&[0; 64]).unwrap();
        let at = nostr::types::Timestamp::from_secs(n as u64);
        Arc::new(Event::new(
            id,
            author,
            at,
            kinds::ANNOUNCEMENT,
            tags,
            "",
            signature,
        ))
    }

    #[tokio::test]
    async fn a_list_that_may_be_incomplete_is_cut() {
        for (count, is_cut) in [(MAX_EVENTS - 1, false), (MAX_EVENTS + 1, true)] {
            let dir = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(&dir.path().join("events.db"), SqliteOptions::default());
            let (store, clock) = (Arc::new(store.unwrap()), Clock::system());
            let events = (1..=count).map(announcement).collect();
            store.save(events, clock.now().unix).await.unwrap();
            let listing = Listing::new(store, "us.example".parse().unwrap(), clock, |_| true);
            let listed = listing.rows().await.unwrap();
            assert_eq!(
                (listed.rows.len(), listed.is_cut),
                (count.min(MAX_EVENTS), is_cut)
            );
        }
    }

    #[tokio::test]
    async fn repositories_of_an_owner_are_found_behind_many_newer_ones() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("events.db"), SqliteOptions::default());
        let (store, clock) = (Arc::new(store.unwrap()), Clock::system());
        let owner = PublicKey::from_byte_array([2; 32]);
        let mut events: Vec<_> = (10..MAX_EVENTS + 10).map(announcement).collect();
        events.extend([announcement_by(owner, 1), announcement_by(owner, 2)]);
        store.save(events, clock.now().unix).await.unwrap();
        let is_hosted = |it: &Announcement| it.repo.identifier.as_str() != "2";
        let listing = Listing::new(store, "us.example".parse().unwrap(), clock, is_hosted);
        let all = listing.rows().await.unwrap();
        assert!(all.rows.iter().all(|row| row.owner != npub(&owner)));
        let owned = listing.of_owner(owner).await.unwrap();
        assert_eq!((owned.rows.len(), owned.is_cut), (1, false));
        assert_eq!(owned.rows[0].identifier, "1");
    }
}
