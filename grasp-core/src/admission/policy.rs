//! The settings of admission, with what the operator changes while the server runs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;

use super::Needs;
use crate::kinds;
use crate::maintainers::MaintainerModel;
use crate::nip34::{Announcement, Proposal};
use crate::policy::{HiddenCause, PolicySubject};
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
    /// The key that the service itself signs with. Its events need no relation to what is stored.
    pub service_key: Option<PublicKey>,
    /// What is refused, whatever the reason to accept it.
    pub bans: Bans,
    /// The authors and repositories that are hosted, if not all are.
    pub allowed: Allowed,
    /// Repositories that are stored and not served, until they are restored.
    pub held: BTreeSet<RepoId>,
    /// Causes that hold no longer, whose events are not all back in service: until then their repositories are withheld.
    pub restoring: BTreeSet<HiddenCause>,
    /// Networks whose connections are closed.
    pub blocked: Vec<IpNet>,
    /// Repositories that are kept although they do not list this service (GRASP-05).
    pub archive: Archive,
    /// Whether contributors may push pull requests to `/prs/` (GRASP-06).
    pub contributor_proposals: bool,
    /// Limits the hosted repositories of an author other than the operator.
    pub repositories_per_author: usize,
    /// Whether only members may announce repositories, since the service is private (GRASP-08).
    pub members_only: bool,
}

/// Banned authors, repositories, names, events and kinds; a ban beats every reason to accept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bans {
    /// Authors whose events are refused, and whose repositories are not hosted.
    pub authors: BTreeSet<PublicKey>,
    /// Repositories whose announcements are refused.
    pub repos: BTreeSet<RepoId>,
    /// Names that are refused for every owner but the operator and the service.
    pub names: BTreeSet<Identifier>,
    /// Events that are refused.
    pub events: BTreeSet<EventId>,
    /// Kinds that are refused.
    pub kinds: BTreeSet<Kind>,
}

impl Bans {
    /// Returns whether a repository is banned: itself, its owner or its name.
    pub fn cover(&self, repo: &RepoId) -> bool {
        self.authors.contains(&repo.owner)
            || self.repos.contains(repo)
            || self.names.contains(&repo.identifier)
    }
}

/// The authors, repositories and names that a server with an allow list hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Hosts only what is listed, and the repositories of the operator.
    pub only: bool,
    /// Owners whose repositories are all hosted.
    pub authors: BTreeSet<PublicKey>,
    /// Single repositories.
    pub repos: BTreeSet<RepoId>,
    /// Names that are hosted for every owner.
    pub names: BTreeSet<Identifier>,
}

impl Allowed {
    /// Returns whether a repository is listed: itself, its owner or its name.
    pub fn cover(&self, repo: &RepoId) -> bool {
        self.authors.contains(&repo.owner)
            || self.repos.contains(repo)
            || self.names.contains(&repo.identifier)
    }
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
    /// Stores the requests of authors to delete or to vanish without carrying them out.
    pub ignores_deletions: bool,
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
            proposal
                .clone
                .iter()
                .any(|url| self.service.serves_proposals(url, endpoint))
        })
    }

    /// Creates the default policy of a service.
    pub fn new(service: ServiceIdentity) -> Self {
        Self {
            service,
            model: MaintainerModel::default(),
            max_ahead: Duration::from_secs(900),
            operator: None,
            service_key: None,
            bans: Bans::default(),
            allowed: Allowed::default(),
            held: BTreeSet::new(),
            restoring: BTreeSet::new(),
            blocked: Vec::new(),
            archive: Archive::default(),
            contributor_proposals: false,
            repositories_per_author: 10_000,
            members_only: false,
        }
    }

    /// Returns the same policy with more entries.
    #[must_use]
    pub fn with<'a>(&self, entries: impl IntoIterator<Item = &'a PolicySubject>) -> Self {
        let mut policy = self.clone();
        for entry in entries {
            policy.add(entry.clone());
        }
        policy
    }

    fn add(&mut self, entry: PolicySubject) {
        let bans = &mut self.bans;
        let allowed = &mut self.allowed;
        match entry {
            PolicySubject::BannedAuthor(author) => _ = bans.authors.insert(author),
            PolicySubject::BannedRepo(repo) => _ = bans.repos.insert(repo),
            PolicySubject::BannedName(name) => _ = bans.names.insert(name),
            PolicySubject::BannedEvent(id) => _ = bans.events.insert(id),
            PolicySubject::RefusedKind(kind) => _ = bans.kinds.insert(kind),
            PolicySubject::BlockedNetwork(network) => self.blocked.push(network),
            PolicySubject::AllowedAuthor(author) => _ = allowed.authors.insert(author),
            PolicySubject::AllowedRepo(repo) => _ = allowed.repos.insert(repo),
            PolicySubject::AllowedName(name) => _ = allowed.names.insert(name),
        }
    }

    /// Returns whether a repository may be hosted by the allow list, if there is one. Those of the operator always may.
    pub fn allows(&self, repo: &RepoId) -> bool {
        let is_everything_allowed = !self.allowed.only;
        is_everything_allowed || self.operator == Some(repo.owner) || self.allowed.cover(repo)
    }

    /// Returns whether a repository is kept out of service: it is banned, not allowed, held, or not fully restored.
    pub fn withholds(&self, repo: &RepoId) -> bool {
        self.is_refused(repo)
            || self.restoring.contains(&HiddenCause::Author(repo.owner))
            || self.restoring.contains(&HiddenCause::Repo(repo.clone()))
    }

    /// Returns whether a repository is banned. No name is banned for the operator and the service itself.
    pub(super) fn bans_repo(&self, repo: &RepoId) -> bool {
        let is_own = [self.operator, self.service_key].contains(&Some(repo.owner));
        match is_own {
            true => self.bans.authors.contains(&repo.owner) || self.bans.repos.contains(repo),
            false => self.bans.cover(repo),
        }
    }

    /// Returns whether a repository is banned, not allowed, or held.
    fn is_refused(&self, repo: &RepoId) -> bool {
        self.bans_repo(repo) || !self.allows(repo) || self.held.contains(repo)
    }

    /// Returns whether events of a kind are refused. What repositories are made of never is.
    pub fn refuses(&self, kind: Kind) -> bool {
        self.bans.kinds.contains(&kind) && !kinds::NEVER_REFUSED_KINDS.contains(&kind)
    }

    /// Returns the cause for which a stored event is out of service.
    pub fn hides(&self, event: &Event) -> Option<HiddenCause> {
        if self.bans.authors.contains(&event.pubkey) {
            return Some(HiddenCause::Author(event.pubkey));
        }
        if self.bans.events.contains(&event.id) {
            return Some(HiddenCause::Event(event.id));
        }
        let repo = Needs::of(event).repo.filter(|repo| self.is_refused(repo));
        repo.map(HiddenCause::Repo)
    }

    /// Returns whether a cause still holds, as far as the policy decides on it.
    pub fn upholds(&self, cause: &HiddenCause) -> bool {
        match cause {
            HiddenCause::Author(key) => self.bans.authors.contains(key),
            HiddenCause::Event(id) => self.bans.events.contains(id),
            HiddenCause::Repo(repo) => self.is_refused(repo),
            HiddenCause::Unannounced(_) => true,
        }
    }

    /// Returns whether connections from an address are closed.
    pub fn blocks(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.blocked
            .iter()
            .any(|network| network.contains(&address))
    }

    /// Returns whether the repository of this announcement is hosted here: it lists this service, or is archived, and is
    /// not withheld.
    pub fn hosts(&self, announcement: &Announcement) -> bool {
        !self.withholds(&announcement.repo)
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
        let theirs = announcements
            .into_iter()
            .filter(|a| a.repo.owner == *author);
        let asked_for = theirs.filter(|a| a.lists(&self.service)).count();
        self.operator != Some(*author) && asked_for >= self.repositories_per_author
    }
}

impl Archive {
    fn takes(&self, announcement: &Announcement) -> bool {
        let repo = &announcement.repo;
        let lists = |service: &ServiceIdentity| {
            announcement
                .clone
                .iter()
                .any(|url| service.is_own_url(url.as_str()))
        };
        self.everything
            || self.owners.contains(&repo.owner)
            || self.repos.contains(repo)
            || self.identifiers.contains(&repo.identifier)
            || self.services.iter().any(lists)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banned_name_is_not_banned_for_operator_and_service() {
        let [operator, service, other] = [1, 2, 3].map(|n| PublicKey::from_byte_array([n; 32]));
        let mut policy = Policy::new("grasp.example".parse().unwrap());
        policy.operator = Some(operator);
        policy.service_key = Some(service);
        policy.bans.names.insert("x".parse().unwrap());
        let repo = |owner| RepoId::new(owner, "x".parse().unwrap());
        assert!(policy.withholds(&repo(other)));
        for owner in [operator, service] {
            assert!(!policy.withholds(&repo(owner)));
            assert!(!policy.upholds(&HiddenCause::Repo(repo(owner))));
        }
    }
}
