//! Who maintains what in the model: announcements by their coordinates, stored and held, from one key outward.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::{KnownAnnouncement, MaintainedRepo, Presence};
use grasp_core::maintainers::{Lookup, Reach, RelatedKeys, RelatedQuestion};
use grasp_core::nip34::Announcement;
use grasp_core::{Identifier, RepoId};
use grasp_purgatory::WakeCause;
use nostr::event::Event;
use nostr::key::PublicKey;

use crate::model_world::World;

/// The announcement of a key, and the event if it is stored.
#[derive(Clone, Debug)]
pub(crate) struct KnownKey {
    pub(crate) known: KnownAnnouncement,
    pub(crate) stored: Option<Arc<Event>>,
}

/// The announcements of one identifier that were read so far.
pub(crate) struct ReachReader<'a> {
    world: &'a World,
    identifier: Identifier,
    read: BTreeMap<PublicKey, Option<KnownKey>>,
}

impl World {
    /// Returns a reader that has read nothing yet.
    pub(crate) fn reach_reader(&self, identifier: &Identifier) -> ReachReader<'_> {
        ReachReader {
            world: self,
            identifier: identifier.clone(),
            read: BTreeMap::new(),
        }
    }

    /// Returns the maintainers of a repository.
    pub(crate) fn maintainers(&self, repo: &RepoId) -> BTreeSet<PublicKey> {
        self.reach_reader(&repo.identifier)
            .reach(&repo.owner)
            .maintainers
    }

    /// Returns the repositories that hunt for a state of this one's owner.
    pub(crate) fn hunting(&self, repo: &RepoId) -> Vec<RepoId> {
        let mut hunting = vec![repo.clone()];
        if !self
            .reach_reader(&repo.identifier)
            .maintains_own(&repo.owner)
        {
            hunting.extend(
                self.maintained_by(repo)
                    .into_iter()
                    .map(|maintained| maintained.repo),
            );
        }
        hunting
    }

    /// Returns the repository that one is an address of, if it is one.
    pub(crate) fn shown_at(&self, repo: &RepoId) -> Option<RepoId> {
        let mut reader = self.reach_reader(&repo.identifier);
        let reach = reader.reach(&repo.owner);
        let lead = reader.shown_by(&repo.owner, &reach)?;
        Some(RepoId::new(lead, repo.identifier.clone()))
    }

    /// Returns the hosted repositories of an identifier that an author maintains.
    pub(crate) fn maintained_by(&self, repo: &RepoId) -> Vec<MaintainedRepo> {
        self.reach_reader(&repo.identifier)
            .maintained_by(&repo.owner)
    }

    /// Returns the winning announcement of a repository, if it is hosted here.
    pub(crate) fn own_announcement(&self, repo: &RepoId) -> Option<KnownAnnouncement> {
        let mut reader = self.reach_reader(&repo.identifier);
        reader.read([repo.owner]);
        let known = reader.get(&repo.owner).map(|known| known.known.clone());
        known.filter(|known| self.policy.hosts(&known.announcement))
    }

    /// Returns the other repositories that an event of this one may concern.
    pub(crate) fn concerned(&self, repo: &RepoId, cause: WakeCause) -> Vec<RepoId> {
        let mut reader = self.reach_reader(&repo.identifier);
        let mut concerned = Vec::new();
        match cause {
            WakeCause::Announcement => {
                for owner in reader.related(&repo.owner) {
                    concerned.push(RepoId::new(owner, repo.identifier.clone()));
                }
            }
            WakeCause::Content => {
                for maintained in reader.maintained_by(&repo.owner) {
                    let owner = maintained.repo.owner;
                    let reach = reader.reach(&owner);
                    if reader.shown_by(&owner, &reach).is_none() {
                        concerned.push(maintained.repo);
                    }
                }
            }
        }
        concerned.retain(|other| other != repo);
        concerned
    }
}

impl ReachReader<'_> {
    /// Reads the announcements of keys that were not read yet.
    pub(crate) fn read(&mut self, keys: impl IntoIterator<Item = PublicKey>) {
        for key in keys {
            if self.read.contains_key(&key) {
                continue;
            }
            let repo = RepoId::new(key, self.identifier.clone());
            let held = self.world.core.announcement(&repo);
            let stored = self.world.disk.store.announcement(&repo).cloned();
            self.read.insert(key, winner(held, stored));
        }
    }

    pub(crate) fn get(&self, key: &PublicKey) -> Option<&KnownKey> {
        self.read.get(key)?.as_ref()
    }

    /// Returns the stored announcements that were read.
    pub(crate) fn stored(&self) -> Vec<Arc<Event>> {
        self.read
            .values()
            .flatten()
            .filter_map(|known| known.stored.clone())
            .collect()
    }

    fn is_hosted(&self, key: &PublicKey) -> bool {
        self.get(key)
            .is_some_and(|known| self.world.policy.hosts(&known.known.announcement))
    }

    /// Returns the reach of the repository of a key.
    pub(crate) fn reach(&mut self, owner: &PublicKey) -> Reach {
        loop {
            let reach = self.resolve(owner, None);
            if reach.unread.is_empty() {
                return reach;
            }
            self.read(reach.unread);
        }
    }

    /// Returns whether the announcement of a key decides on who maintains the repository of another one.
    pub(crate) fn reaches(&self, owner: &PublicKey, key: &PublicKey) -> bool {
        let mut reader = self.world.reach_reader(&self.identifier);
        reader.reach(owner);
        reader.resolve(owner, Some(key)).unread.contains(key)
    }

    /// Returns the reach of the repository of a key as far as it was read, as if one key was not.
    fn resolve(&self, owner: &PublicKey, unread: Option<&PublicKey>) -> Reach {
        let model = self.world.policy.model;
        model.reach(owner, |key| match self.read.get(key) {
            _ if Some(key) == unread => Lookup::Unread,
            None => Lookup::Unread,
            Some(None) => Lookup::Absent,
            Some(Some(known)) => Lookup::Read(&known.known.announcement.maintainer_list),
        })
    }

    /// Returns whether a key has a hosted repository, no mere address, and maintains it.
    pub(crate) fn maintains_own(&mut self, key: &PublicKey) -> bool {
        self.read([*key]);
        let reach = self.reach(key);
        self.is_hosted(key)
            && reach.maintainers.contains(key)
            && self.shown_by(key, &reach).is_none()
    }

    /// Returns the owner of the repository that the hosted one of `owner` is an address of.
    pub(crate) fn shown_by(&self, owner: &PublicKey, reach: &Reach) -> Option<PublicKey> {
        reach
            .lead
            .filter(|lead| self.is_hosted(owner) && self.is_hosted(lead))
    }

    /// Returns the owners of hosted repositories that the announcement of a key may matter for.
    fn related(&mut self, key: &PublicKey) -> Vec<PublicKey> {
        self.read([*key]);
        let known = self.get(key).map(|known| &known.known.announcement);
        let listed = known.map(|announcement| announcement.maintainer_list.listed.clone());
        self.related_by(key, &listed.unwrap_or_default())
    }

    /// Returns the same for a key whose announcement lists others.
    pub(crate) fn related_by(
        &mut self,
        key: &PublicKey,
        listed: &BTreeSet<PublicKey>,
    ) -> Vec<PublicKey> {
        let mut related = RelatedKeys::new(*key, listed);
        while let Some(question) = related.next_question() {
            let found = match question {
                RelatedQuestion::Maintained(of, most) => self.maintained(&of, most),
                RelatedQuestion::Listing(of, most) => self.listing(&of, most),
            };
            related.answer(question, found);
        }
        let mut related = related.into_found();
        self.read(related.iter().copied());
        related.retain(|key| self.is_hosted(key));
        related
    }

    /// Returns the owners of repositories whose view says that a key maintains them.
    fn maintained(&self, key: &PublicKey, most: usize) -> Vec<PublicKey> {
        let mut owners = Vec::new();
        for (repo, view) in self.world.disk.git.views() {
            let is_maintained = view.shows.is_none() && view.maintainers.contains(key);
            if is_maintained && repo.identifier == self.identifier {
                owners.push(repo.owner);
            }
        }
        owners.truncate(most);
        owners
    }

    /// Returns the hosted repositories that a key maintains.
    pub(crate) fn maintained_by(&mut self, key: &PublicKey) -> Vec<MaintainedRepo> {
        let mut maintained = Vec::new();
        for owner in self.related(key) {
            if !self.reach(&owner).maintainers.contains(key) {
                continue;
            }
            let repo = RepoId::new(owner, self.identifier.clone());
            let presence = self
                .get(&owner)
                .map_or(Presence::Held, |known| known.known.presence);
            maintained.push(MaintainedRepo { repo, presence });
        }
        maintained
    }

    /// Returns the authors of announcements that list a key, stored and held ones, up to a number of each.
    fn listing(&self, key: &PublicKey, most: usize) -> Vec<PublicKey> {
        let repo = RepoId::new(*key, self.identifier.clone());
        let mut listing = self.world.disk.store.listing(&repo);
        listing.truncate(most);
        for author in self.world.core.listing(&repo).into_iter().take(most) {
            if !listing.contains(&author) {
                listing.push(author);
            }
        }
        listing
    }
}

/// Returns the winning announcement of a key; one that is both stored and held counts as stored.
fn winner(held: Option<KnownAnnouncement>, stored: Option<Arc<Event>>) -> Option<KnownKey> {
    let parsed = stored
        .as_ref()
        .map(|event| Announcement::parse(event).unwrap());
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
