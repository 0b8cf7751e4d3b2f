//! The version of each repository's announcement that counts.

use std::collections::BTreeMap;

use super::SyncLevel;
use crate::{RepoId, Version};

/// Unlisted announcements whose version is remembered. Of more, an older version that comes later is followed again.
const MAX_UNLISTED: usize = 65_536;

/// The announcements that count, by repository: of all that came, the greatest.
///
/// A served version is greater than every held one, because held announcements are not in force yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Versions {
    latest: BTreeMap<RepoId, Latest>,
    unlisted: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Latest {
    version: (SyncLevel, Version),
    is_listed: bool,
}

impl Versions {
    /// Adds a version that is to be followed. Returns whether it counts.
    pub(super) fn follow(&mut self, repo: &RepoId, version: (SyncLevel, Version)) -> bool {
        self.add(repo, version, true)
    }

    /// Adds a version that is not to be followed. Returns whether it counts.
    pub(super) fn withdraw(&mut self, repo: &RepoId, version: (SyncLevel, Version)) -> bool {
        self.add(repo, version, false)
    }

    /// Forgets the version of a repository, so that any may follow.
    pub(super) fn forget(&mut self, repo: &RepoId) {
        let latest = self.latest.remove(repo);
        self.unlisted -= usize::from(latest.is_some_and(|latest| !latest.is_listed));
    }

    fn add(&mut self, repo: &RepoId, version: (SyncLevel, Version), is_listed: bool) -> bool {
        let known = self.latest.get(repo);
        if known.is_some_and(|known| known.version > version) {
            return false;
        }
        self.forget(repo);
        if is_listed || self.unlisted < MAX_UNLISTED {
            self.unlisted += usize::from(!is_listed);
            let latest = Latest { version, is_listed };
            self.latest.insert(repo.clone(), latest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::EventId;
    use nostr::key::PublicKey;
    use nostr::types::Timestamp;

    use super::*;

    fn repo(n: usize) -> RepoId {
        let owner = PublicKey::from_byte_array([1; 32]);
        RepoId::new(owner, n.to_string().parse().unwrap())
    }

    fn version(seconds: u64) -> (SyncLevel, Version) {
        let version = Version {
            created_at: Timestamp::from_secs(seconds),
            id: EventId::from_byte_array([1; 32]),
        };
        (SyncLevel::Full, version)
    }

    #[test]
    fn a_lesser_version_does_not_count_until_the_repository_is_forgotten() {
        let mut versions = Versions::default();
        assert!(versions.withdraw(&repo(1), version(2)));
        assert!(!versions.follow(&repo(1), version(1)));
        versions.forget(&repo(1));
        assert!(versions.follow(&repo(1), version(1)));
    }

    #[test]
    fn a_held_version_does_not_replace_a_served_one() {
        let mut versions = Versions::default();
        assert!(versions.follow(&repo(1), version(1)));
        let held = (SyncLevel::StateOnly, version(2).1);
        assert!(!versions.follow(&repo(1), held) && !versions.withdraw(&repo(1), held));
    }

    #[test]
    fn unlisted_announcements_are_remembered_up_to_a_limit() {
        let mut versions = Versions::default();
        for n in 0..MAX_UNLISTED + 10 {
            assert!(versions.withdraw(&repo(n), version(1)));
        }
        assert_eq!(versions.latest.len(), MAX_UNLISTED);
        assert!(versions.follow(&repo(0), version(2)));
        assert!(versions.withdraw(&repo(MAX_UNLISTED), version(1)));
        assert_eq!(versions.latest.len(), MAX_UNLISTED + 1);
        assert_eq!(versions.unlisted, MAX_UNLISTED);
    }
}
