//! What the operator decided beforehand.

use std::collections::BTreeSet;
use std::time::Duration;

use nostr::event::Event;
use nostr::key::PublicKey;

use crate::maintainers::MaintainerModel;
use crate::nip34::{Announcement, Proposal};
use crate::repo::{Identifier, RepoId};
use crate::service::ServiceIdentity;

/// The settings of the rulebook.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The address that announcements must list.
    pub service: ServiceIdentity,
    /// How maintainers are made.
    pub model: MaintainerModel,
    /// How far ahead of our clock an event may be dated. Clients may legally run ahead: never below a minute.
    pub max_ahead: Duration,
    /// The operator's key: what it signs is welcome unless its kind has rules of its own.
    pub operator: Option<PublicKey>,
    /// Who and what is not welcome.
    pub bans: Bans,
    /// Repositories that are kept without being asked to (GRASP-05).
    pub archive: Archive,
    /// Whether contributors may push pull requests to `/prs/` (GRASP-06).
    pub contributor_proposals: bool,
    /// Repositories that one author may have served here for the asking. The operator may have more.
    pub repositories_per_author: usize,
}

/// Who and what is not welcome; beats every reason to accept.
#[derive(Clone, Debug, Default)]
pub struct Bans {
    /// Authors whose events are refused.
    pub authors: BTreeSet<PublicKey>,
    /// Repositories whose announcements are refused.
    pub repos: BTreeSet<RepoId>,
}

/// Which repositories are kept although their announcement does not list us (GRASP-05).
#[derive(Clone, Debug, Default)]
pub struct Archive {
    /// Every one.
    pub everything: bool,
    /// All of an owner.
    pub owners: BTreeSet<PublicKey>,
    /// Single ones.
    pub repos: BTreeSet<RepoId>,
    /// All of a name, whoever owns them.
    pub identifiers: BTreeSet<Identifier>,
    /// All that list another service.
    pub services: Vec<ServiceIdentity>,
}

impl Policy {
    /// The contributor's places (`/prs/`, GRASP-06) that a pull request names as its own: signed by their owner, for a
    /// repository of that name, with that very place under `clone`.
    pub fn own_urls<'a>(&'a self, proposal: &'a Proposal) -> impl Iterator<Item = RepoId> + 'a {
        let places = proposal
            .repos
            .iter()
            .filter(|_| self.contributor_proposals)
            .map(|repo| RepoId::new(proposal.author, repo.identifier.clone()));
        places.filter(|place| {
            proposal.clone.iter().any(|url| self.service.serves_proposals(url, place))
        })
    }

    /// The defaults for a service.
    pub fn new(service: ServiceIdentity) -> Self {
        Self {
            service,
            model: MaintainerModel::default(),
            max_ahead: Duration::from_secs(900),
            operator: None,
            bans: Bans::default(),
            archive: Archive::default(),
            contributor_proposals: false,
            repositories_per_author: 10_000,
        }
    }

    /// Whether the repository of this announcement is hosted here: asked for, or archived.
    pub fn hosts(&self, announcement: &Announcement) -> bool {
        !self.bans.repos.contains(&announcement.repo)
            && (announcement.lists(&self.service) || self.archive.takes(announcement))
    }

    /// Whether it is hosted here without having been asked for: a copy that nobody may push to (GRASP-05).
    pub fn archives(&self, announcement: &Announcement) -> bool {
        self.hosts(announcement) && !announcement.lists(&self.service)
    }

    /// Whether an author of these announcements is served as many repositories for the asking as one may be. What is
    /// kept without having been asked for, or known for discovery alone, does not count.
    pub fn repository_quota_reached<'a>(
        &self,
        author: &PublicKey,
        announcements: impl IntoIterator<Item = &'a Announcement>,
    ) -> bool {
        let theirs = announcements.into_iter().filter(|a| a.repo.owner == *author);
        let asked_for = theirs.filter(|a| a.lists(&self.service)).count();
        self.operator != Some(*author) && asked_for >= self.repositories_per_author
    }

    /// Whether the operator signed this event.
    pub(super) fn is_operators(&self, event: &Event) -> bool {
        self.operator == Some(event.pubkey)
    }
}

impl Archive {
    fn takes(&self, announcement: &Announcement) -> bool {
        let repo = &announcement.repo;
        let lists = |service: &ServiceIdentity| {
            announcement.clone.iter().any(|url| service.is_own_url(url.as_str()))
        };
        self.everything
            || self.owners.contains(&repo.owner)
            || self.repos.contains(repo)
            || self.identifiers.contains(&repo.identifier)
            || self.services.iter().any(lists)
    }
}
