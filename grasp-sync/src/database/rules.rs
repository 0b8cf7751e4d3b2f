//! Which events of other relays are saved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use grasp_core::admission::Retry;
use grasp_core::nip34::{Announcement, References};
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::key::PublicKey;
use grasp_core::{Identifier, RepoId, ServiceIdentity, kinds};
use nostr_database::error::Error;
use nostr_database::{DatabaseEventStatus, NostrDatabase};
use tokio::sync::OnceCell;

use super::announced_repo;
use super::feed::FilterPages;
use crate::local::News;

type OwnRule = Box<dyn Fn(&Event) -> Result<(), Retry> + Send + Sync>;

/// The rules of a relay for events of other relays.
pub(super) struct RelayRules {
    own: ServiceIdentity,
    /// True if repositories are kept that do not list this relay.
    pub(super) follows_unlisted: bool,
    pub(super) own_rule: Option<OwnRule>,
    /// The owners of the stored repositories, by name; read from the database when first needed.
    repos: Mutex<BTreeMap<Identifier, BTreeSet<PublicKey>>>,
    is_read: OnceCell<()>,
}

impl RelayRules {
    pub(super) fn new(own: ServiceIdentity) -> Self {
        Self {
            own,
            follows_unlisted: false,
            own_rule: None,
            repos: Mutex::default(),
            is_read: OnceCell::new(),
        }
    }

    /// Judges an event that is not expired: announcements must list this relay, unless unlisted ones are followed; other
    /// events must be related.
    pub(super) async fn judge(
        &self,
        database: &impl NostrDatabase,
        event: &Event,
    ) -> Result<Result<(), Retry>, Error> {
        self.is_read.get_or_try_init(|| self.read(database)).await?;
        if !self.is_wanted(database, event).await? {
            return Ok(Err(Retry::AfterDependency));
        }
        Ok(match &self.own_rule {
            Some(rule) => rule(event),
            None => Ok(()),
        })
    }

    async fn is_wanted(&self, database: &impl NostrDatabase, event: &Event) -> Result<bool, Error> {
        if event.kind == kinds::ANNOUNCEMENT {
            let announcement = Announcement::parse(event);
            return Ok(announcement.is_ok_and(|announcement| {
                let mut relays = announcement.relays.iter();
                self.follows_unlisted || relays.any(|relay| self.own.is_own_url(relay.as_str()))
            }));
        }
        if event.kind == kinds::STATE {
            let name = event.tags.identifier().and_then(|d| d.parse().ok());
            return Ok(name.is_some_and(|name: Identifier| self.repos().contains_key(&name)));
        }
        if event.kind == kinds::DELETION || event.kind == kinds::VANISH {
            return Ok(true);
        }
        let named = References::of(event);
        let mut repos = named
            .coordinates
            .iter()
            .filter_map(|one| RepoId::try_from(one).ok());
        if repos.any(|repo| self.has(&repo)) {
            return Ok(true);
        }
        for id in &named.ids {
            if database.check_id(id).await? == DatabaseEventStatus::Saved {
                return Ok(true);
            }
        }
        let others = named
            .coordinates
            .iter()
            .filter(|one| one.kind != kinds::ANNOUNCEMENT);
        for other in others {
            let filter = Filter::new().kind(other.kind).author(other.public_key);
            let filter = match other.identifier.is_empty() {
                true => filter,
                false => filter.identifier(&other.identifier),
            };
            if !database.query(filter.limit(1)).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn read(&self, database: &impl NostrDatabase) -> Result<(), Error> {
        let mut pages = FilterPages::new(Filter::new().kind(kinds::ANNOUNCEMENT));
        while let Some(events) = pages.next(database).await? {
            events.iter().for_each(|event| self.saved(event));
        }
        Ok(())
    }

    pub(super) fn saved(&self, event: &Event) {
        if let Some(repo) = announced_repo(event) {
            let mut repos = self.repos();
            let owners = repos.entry(repo.identifier).or_default();
            owners.insert(repo.owner);
        }
    }

    /// Forgets a repository that was retired.
    pub(super) fn gone(&self, news: &News) {
        let News::Retired(repo) = news else { return };
        let mut repos = self.repos();
        if let Some(owners) = repos.get_mut(&repo.identifier) {
            owners.remove(&repo.owner);
            if owners.is_empty() {
                repos.remove(&repo.identifier);
            }
        }
    }

    fn has(&self, repo: &RepoId) -> bool {
        let repos = self.repos();
        let owners = repos.get(&repo.identifier);
        owners.is_some_and(|owners| owners.contains(&repo.owner))
    }

    fn repos(&self) -> MutexGuard<'_, BTreeMap<Identifier, BTreeSet<PublicKey>>> {
        self.repos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
