//! Settings of admission.

use std::collections::BTreeSet;
use std::time::Duration;

use nostr::key::PublicKey;

use crate::maintainers::MaintainerModel;
use crate::nip34::{Announcement, Proposal};
use crate::repo::{Identifier, RepoId};
use crate::service::ServiceIdentity;

/// Settings of admission.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The address that announcements must list.
    pub service: ServiceIdentity,
    /// The rule that makes maintainer sets.
    pub model: MaintainerModel,
    /// Limits how far in the future an event may be dated. Clocks of clients differ: never below a minute.
    pub max_ahead: Duration,
    /// The operator's key. Its events need no relation to what is stored.
    pub operator: Option<PublicKey>,
    /// Banned authors and repositories.
    pub bans: Bans,
    /// Repositories that are kept although they do not list this service (GRASP-05).
    pub archive: Archive,
    /// Whether contributors may push pull requests to `/prs/` (GRASP-06).
    pub contributor_proposals: bool,
    /// Limits the hosted repositories of an author other than the operator.
    pub repositories_per_author: usize,
}

/// Banned authors and repositories; a ban beats every reason to accept.
#[derive(Clone, Debug, Default)]
pub struct Bans {
    /// Authors whose events are refused.
    pub authors: BTreeSet<PublicKey>,
    /// Repositories whose announcements are refused.
    pub repos: BTreeSet<RepoId>,
}

/// Repositories that are kept although their announcement does not list this service (GRASP-05).
#[derive(Clone, Debug, Default)]
pub struct Archive {
    /// Keeps every repository.
    pub everything: bool,
    /// Owners whose repositories are all kept.
    pub owners: BTreeSet<PublicKey>,
    /// Single repositories.
    pub repos: BTreeSet<RepoId>,
    /// Names whose repositories are kept for every owner.
    pub identifiers: BTreeSet<Identifier>,
    /// Services; repositories that list one of them are kept.
    pub services: Vec<ServiceIdentity>,
}

impl Policy {
    /// Returns the contributor endpoints (`/prs/`, GRASP-06) of this service that a pull request lists under `clone` and
    /// whose owner signed it.
    pub fn own_urls<'a>(&'a self, proposal: &'a Proposal) -> impl Iterator<Item = RepoId> + 'a {
        let endpoints = proposal
            .repos
            .iter()
            .filter(|_| self.contributor_proposals)
            .map(|repo| RepoId::new(proposal.author, repo.identifier.clone()));
        endpoints.filter(|endpoint| {
            proposal.clone.iter().any(|url| self.service.serves_proposals(url, endpoint))
        })
    }

    /// Creates the default policy of a service.
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

    /// Returns whether the repository of this announcement is hosted here: it lists this service, or is archived.
    pub fn hosts(&self, announcement: &Announcement) -> bool {
        !self.bans.repos.contains(&announcement.repo)
            && (announcement.lists(&self.service) || self.archive.takes(announcement))
    }

    /// Returns whether the repository is a read-only copy of one that does not list this service (GRASP-05).
    pub fn archives(&self, announcement: &Announcement) -> bool {
        self.hosts(announcement) && !announcement.lists(&self.service)
    }

    /// Returns whether an author of these announcements has as many hosted repositories as one may have. Archived
    /// repositories and announcements kept for discovery do not count.
    pub fn repository_quota_reached<'a>(
        &self,
        author: &PublicKey,
        announcements: impl IntoIterator<Item = &'a Announcement>,
    ) -> bool {
        let theirs = announcements.into_iter().filter(|a| a.repo.owner == *author);
        let asked_for = theirs.filter(|a| a.lists(&self.service)).count();
        self.operator != Some(*author) && asked_for >= self.repositories_per_author
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
