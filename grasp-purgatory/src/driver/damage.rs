//! Repositories that lack objects which their refs need, because files were lost on disk.
//!
//! Maintenance checks the packs and tips of every repository, at start and every six hours; a fetch that git cannot serve
//! causes a check too. `/health`, the status and a metric report what is found, and the hunt fetches what is missing from
//! the other servers of the repository. Each survey checks again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::RepoId;
use grasp_core::service::Endpoint;
use parking_lot::Mutex;

use super::PurgatoryDriver;
use crate::Input;
use crate::git::{GitError, RepoStore};

/// A repository, in one of the two stores.
type Place = (Endpoint, RepoId);

/// Added to the time of a repair, so that packs are read again that were read in the same second.
const CLOCK_RESOLUTION: Duration = Duration::from_secs(1);

/// A repository that lacks objects which its refs need.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedRepo {
    /// The endpoint that it is served at.
    pub endpoint: Endpoint,
    /// Its id; at [`Endpoint::PullRequests`] the owner is the contributor.
    pub repo: RepoId,
}

/// The damage that is known. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Damage(Arc<Mutex<DamageState>>);

#[derive(Debug, Default)]
struct DamageState {
    damaged: BTreeSet<Place>,
    /// Repositories that are being checked because a fetch failed.
    suspected: BTreeSet<Place>,
}

impl Damage {
    /// Checks that the objects of a repository are there, and returns whether some are not. Histories are walked only if
    /// `walk`, if a pack is lost, or if damage is known that a check of the tips may not show.
    pub(super) async fn inspect(
        &self,
        store: &RepoStore,
        repo: &RepoId,
        walk: bool,
    ) -> Result<bool, GitError> {
        let place = (store.endpoint(), repo.clone());
        let is_known = self.0.lock().damaged.contains(&place);
        let inspection = store.repository(repo).inspect(walk || is_known).await?;
        self.found(place, inspection.is_broken);
        Ok(inspection.is_broken)
    }

    /// Returns whether a repository is known to lack objects.
    pub(super) fn is_damaged(&self, repo: &RepoId) -> bool {
        self.0
            .lock()
            .damaged
            .iter()
            .any(|(_, damaged)| damaged == repo)
    }

    fn found(&self, place: Place, is_broken: bool) {
        let repo = place.1.clone();
        let mut known = self.0.lock();
        if !is_broken {
            if known.damaged.remove(&place) {
                tracing::info!(%repo, "the git objects of a repository are complete again");
            }
            return;
        }
        if known.damaged.insert(place) {
            tracing::error!(
                %repo,
                "git objects of a repository are missing on disk; they are fetched from its other servers"
            );
        }
    }

    fn all(&self) -> Vec<DamagedRepo> {
        let known = self.0.lock();
        let damaged = known.damaged.iter().cloned();
        damaged
            .map(|(endpoint, repo)| DamagedRepo { endpoint, repo })
            .collect()
    }
}

/// An object that git reports as missing while it serves a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspicion {
    /// A tip may be gone, or a client asked for what was never there.
    Tip,
    /// Git began to send a history and did not find all of it.
    History,
}

impl Suspicion {
    fn read(words: &str) -> Option<Self> {
        const TIP: [&str; 6] = [
            "not our ref",
            "broken ref",
            "does not point to a valid object",
            "not a git repository",
            "does not appear to be a git repository",
            "bad object",
        ];
        if words.contains("possible repository corruption") {
            return Some(Self::History);
        }
        TIP.iter()
            .any(|text| words.contains(text))
            .then_some(Self::Tip)
    }
}

/// Returns whether git's error output is about a history that is not all here.
pub fn lacks_objects(words: &str) -> bool {
    Suspicion::read(words) == Some(Suspicion::History)
}

impl PurgatoryDriver {
    /// Returns the repositories that are known to lack objects.
    pub fn damaged(&self) -> Vec<DamagedRepo> {
        self.executor.damage.all()
    }

    /// Returns whether a repository is known to lack objects.
    pub fn is_damaged(&self, endpoint: Endpoint, repo: &RepoId) -> bool {
        self.executor
            .damage
            .0
            .lock()
            .damaged
            .contains(&(endpoint, repo.clone()))
    }

    /// Checks a repository if git reported a missing object while it served a fetch. One check of a repository runs at a
    /// time, so that clients cannot queue them by asking for objects that never were here.
    pub fn suspect(&self, endpoint: Endpoint, repo: &RepoId, words: &str) {
        let store = self.executor.parts.store_of(endpoint).cloned();
        let (Some(suspicion), Some(store)) = (Suspicion::read(words), store) else {
            return;
        };
        let place = (endpoint, repo.clone());
        let executor = self.executor.clone();
        if !executor.damage.0.lock().suspected.insert(place.clone()) {
            return;
        }
        tokio::spawn(async move {
            executor
                .inspect(&store, &place.1, suspicion == Suspicion::History)
                .await;
            executor.damage.0.lock().suspected.remove(&place);
        });
    }

    /// Reads all packs of a repository, salvages the readable objects of damaged ones, and starts to fetch what is missing
    /// from other servers. Returns whether objects are missing.
    pub async fn repair(&self, repo: &RepoId) -> Result<bool, GitError> {
        let now = self.executor.parts.relay.now().unix;
        for store in self.executor.parts.stores() {
            let damaged = store
                .repository(repo)
                .verify(now + CLOCK_RESOLUTION, now)
                .await?;
            if !damaged.is_empty() {
                tracing::error!(%repo, ?damaged, "packs are damaged; what is unreadable is fetched from other servers");
            }
            self.executor.damage.inspect(store, repo, true).await?;
        }
        let is_missing = self.lacks_objects(repo);
        if is_missing {
            self.tell(Input::Damaged { repo: repo.clone() }).await;
        }
        Ok(is_missing)
    }

    /// Removes objects that no ref of a repository reaches, replaced commits included. Returns whether it became smaller.
    pub async fn purge(&self, repo: &RepoId) -> Result<bool, GitError> {
        let now = self.executor.parts.relay.now().unix;
        let mut is_purged = false;
        for store in self.executor.parts.stores() {
            is_purged |= store.repository(repo).purge(now).await?;
        }
        Ok(is_purged)
    }

    /// Returns whether a repository is known to lack objects.
    pub fn lacks_objects(&self, repo: &RepoId) -> bool {
        self.executor.damage.is_damaged(repo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_about_missing_objects_are_a_suspicion() {
        for (words, suspicion) in [
            (
                "fatal: git upload-pack: not our ref 1234",
                Some(Suspicion::Tip),
            ),
            (
                "warning: ignoring broken ref refs/heads/main",
                Some(Suspicion::Tip),
            ),
            (
                "fatal: unable to read tree (1234)\nfatal: git upload-pack: aborting due to possible repository \
                 corruption on the remote side.",
                Some(Suspicion::History),
            ),
            ("fatal: the remote end hung up unexpectedly", None),
            ("", None),
        ] {
            assert_eq!(Suspicion::read(words), suspicion, "{words}");
        }
    }
}
