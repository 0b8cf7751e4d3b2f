//! Reads who maintains what: announcements by their coordinates, stored and held, from one key outward.
//!
//! Nothing is read by identifier, so it makes no difference how many others use the same one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::{KnownAnnouncement, MaintainedRepo, Presence};
use grasp_core::maintainers::{Lookup, MAX_MAINTAINERS, Reach, RelatedKeys, RelatedQuestion};
use grasp_core::nip34::Announcement;
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, RepoId, kinds};
use nostr::event::Event;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::queue::Executor;
use crate::git::GitError;

/// The announcement of a key, and the event if it is stored.
#[derive(Clone, Debug)]
pub(super) struct KnownKey {
    pub(super) known: KnownAnnouncement,
    pub(super) stored: Option<Arc<Event>>,
}

/// The announcements of one identifier that were read so far, each once.
pub(super) struct ReachReader<'a> {
    executor: &'a Executor,
    identifier: Identifier,
    read: BTreeMap<PublicKey, Option<KnownKey>>,
}

impl Executor {
    /// Returns a reader that has read nothing yet.
    pub(super) fn reach_reader(&self, identifier: &Identifier) -> ReachReader<'_> {
        ReachReader {
            executor: self,
            identifier: identifier.clone(),
            read: BTreeMap::new(),
        }
    }
}

impl ReachReader<'_> {
    /// Reads the announcements of keys that were not read yet.
    pub(super) async fn read(
        &mut self,
        keys: impl IntoIterator<Item = PublicKey>,
    ) -> Result<(), GitError> {
        let keys = keys.into_iter().filter(|key| !self.read.contains_key(key));
        let keys: BTreeSet<PublicKey> = keys.collect();
        if keys.is_empty() {
            return Ok(());
        }
        let identifier = self.identifier.clone();
        let asked = keys.clone();
        // Purgatory first: an announcement that is released meanwhile is found in the store.
        let held = self.executor.ask(move |purgatory| {
            let mut held: BTreeMap<PublicKey, KnownAnnouncement> = BTreeMap::new();
            for key in asked {
                let found = purgatory.announcement(&RepoId::new(key, identifier.clone()));
                held.extend(found.map(|found| (key, found)));
            }
            held
        });
        let held = held.await?;
        let coordinates = keys.iter().map(|key| {
            Coordinate::new(kinds::ANNOUNCEMENT, *key).identifier(self.identifier.as_str())
        });
        let mut stored: BTreeMap<PublicKey, Arc<Event>> = BTreeMap::new();
        for event in self
            .executor
            .parts
            .relay
            .heads(coordinates.collect())
            .await?
        {
            stored.insert(event.pubkey, event);
        }
        for key in keys {
            let held = held.get(&key).cloned();
            let known = winner(held, stored.remove(&key));
            self.read.insert(key, known);
        }
        Ok(())
    }

    /// Returns the announcement of a key that was read.
    pub(super) fn get(&self, key: &PublicKey) -> Option<&KnownKey> {
        self.read.get(key)?.as_ref()
    }

    /// Returns all announcements that were read.
    pub(super) fn all(&self) -> impl Iterator<Item = &KnownKey> {
        self.read.values().flatten()
    }

    /// Returns whether a key announced a repository that is hosted here.
    pub(super) fn is_hosted(&self, key: &PublicKey) -> bool {
        let policy = self.executor.parts.policy.now();
        self.get(key)
            .is_some_and(|known| policy.hosts(&known.known.announcement))
    }

    /// Returns the reach of the repository of a key, with all announcements of it read.
    pub(super) async fn reach(&mut self, owner: &PublicKey) -> Result<Reach, GitError> {
        loop {
            let reach = self.resolve(owner, None);
            if reach.unread.is_empty() {
                return Ok(reach);
            }
            self.read(reach.unread).await?;
        }
    }

    /// Returns whether a key has a hosted repository, no mere address, and maintains it.
    pub(super) async fn maintains_own(&mut self, key: &PublicKey) -> Result<bool, GitError> {
        self.read([*key]).await?;
        if !self.is_hosted(key) {
            return Ok(false);
        }
        let reach = self.reach(key).await?;
        Ok(reach.maintainers.contains(key) && self.shown_by(key, &reach).is_none())
    }

    /// Returns the owner of the repository that the hosted one of `owner` is an address of.
    pub(super) fn shown_by(&self, owner: &PublicKey, reach: &Reach) -> Option<PublicKey> {
        reach
            .lead
            .filter(|lead| self.is_hosted(owner) && self.is_hosted(lead))
    }

    /// Returns the owners of hosted repositories that the announcement of a key may matter for: the key itself, those
    /// that it lists, the owners whose repositories one of these maintains, and those who list it, directly or by others.
    pub(super) async fn related(&mut self, key: &PublicKey) -> Result<Vec<PublicKey>, GitError> {
        self.read([*key]).await?;
        let known = self.get(key).map(|known| &known.known.announcement);
        let listed = known.map(|announcement| announcement.maintainer_list.listed.clone());
        self.related_by(key, &listed.unwrap_or_default()).await
    }

    /// Returns the same for a key whose announcement lists others.
    async fn related_by(
        &mut self,
        key: &PublicKey,
        listed: &BTreeSet<PublicKey>,
    ) -> Result<Vec<PublicKey>, GitError> {
        let mut related = RelatedKeys::new(*key, listed);
        while let Some(question) = related.next_question() {
            let found = match question {
                RelatedQuestion::Maintained(of, most) => {
                    let repo = RepoId::new(of, self.identifier.clone());
                    let database = self.executor.parts.repos.database();
                    database
                        .maintained(Endpoint::Repository, repo, most)
                        .await?
                }
                RelatedQuestion::Listing(of, most) => self.listing(&of, most).await?,
            };
            related.answer(question, found);
        }
        let mut related = related.into_found();
        self.read(related.iter().copied()).await?;
        related.retain(|key| self.is_hosted(key));
        Ok(related)
    }

    /// Returns whether an announcement of a key matters for who maintains a hosted repository of another owner. Such announcements
    /// are kept although they list other servers; the reach of a repository bounds their number.
    ///
    /// It is not known yet, so what it lists is given.
    pub(super) async fn is_in_reach(
        &mut self,
        key: &PublicKey,
        listed: &BTreeSet<PublicKey>,
    ) -> Result<bool, GitError> {
        for owner in self.related_by(key, listed).await? {
            if owner == *key {
                continue;
            }
            let mut reader = self.executor.reach_reader(&self.identifier);
            reader.reach(&owner).await?;
            let is_full = reader.all().count() >= MAX_MAINTAINERS && reader.get(key).is_none();
            if !is_full && reader.resolve(&owner, Some(key)).unread.contains(key) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the reach of the repository of a key as far as it was read, as if one key was not.
    fn resolve(&self, owner: &PublicKey, unread: Option<&PublicKey>) -> Reach {
        let model = self.executor.parts.policy.model();
        model.reach(owner, |key| match self.read.get(key) {
            _ if Some(key) == unread => Lookup::Unread,
            None => Lookup::Unread,
            Some(None) => Lookup::Absent,
            Some(Some(known)) => Lookup::Read(&known.known.announcement.maintainer_list),
        })
    }

    /// Returns the hosted repositories that a key maintains.
    pub(super) async fn maintained_by(
        &mut self,
        key: &PublicKey,
    ) -> Result<Vec<MaintainedRepo>, GitError> {
        let mut maintained = Vec::new();
        for owner in self.related(key).await? {
            if !self.reach(&owner).await?.maintainers.contains(key) {
                continue;
            }
            let repo = RepoId::new(owner, self.identifier.clone());
            let presence = self
                .get(&owner)
                .map_or(Presence::Held, |known| known.known.presence);
            maintained.push(MaintainedRepo { repo, presence });
        }
        Ok(maintained)
    }

    /// Returns the authors of announcements that list a key, stored and held ones, up to a number of each.
    async fn listing(&self, key: &PublicKey, most: usize) -> Result<Vec<PublicKey>, GitError> {
        let repo = RepoId::new(*key, self.identifier.clone());
        let asked = repo.clone();
        let held = self
            .executor
            .ask(move |purgatory| purgatory.listing(&asked))
            .await?;
        let mut listing = self.executor.parts.relay.listing(repo, most).await?;
        for author in held.into_iter().take(most) {
            if !listing.contains(&author) {
                listing.push(author);
            }
        }
        Ok(listing)
    }
}

/// Returns the winning announcement of a key; one that is both stored and held counts as stored.
fn winner(held: Option<KnownAnnouncement>, stored: Option<Arc<Event>>) -> Option<KnownKey> {
    let parsed = stored
        .as_ref()
        .and_then(|event| Announcement::parse(event).ok());
    let known = match (held, parsed) {
        (Some(held), Some(parsed)) if held.announcement.version > parsed.version => held,
        (Some(held), None) => held,
        (_, Some(parsed)) => KnownAnnouncement {
            announcement: Arc::new(parsed),
            presence: Presence::Stored,
        },
        (None, None) => return None,
    };
    Some(KnownKey { known, stored })
}
