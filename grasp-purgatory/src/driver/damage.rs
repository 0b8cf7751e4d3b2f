//! Repositories that lack objects which their refs need, because files were lost on disk.
//!
//! Maintenance checks the packs and tips of every identifier, at start and every six hours; a fetch that git cannot serve
//! causes a check too. `/health`, the status and a metric report what is found, and the hunt fetches what is missing from
//! the other servers of the repository. Each survey checks again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::service::Endpoint;
use grasp_core::{Identifier, RepoId};
use nostr::key::PublicKey;
use parking_lot::Mutex;

use super::PurgatoryDriver;
use crate::Input;
use crate::git::{GitError, RepoStore};

/// The repositories of one identifier, in one of the two stores.
type Place = (Endpoint, Identifier);

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
    damaged: BTreeMap<Place, BTreeSet<PublicKey>>,
    /// Identifiers that are being checked because a fetch failed.
    suspected: BTreeSet<Place>,
}

impl Damage {
    /// Checks that the objects of an identifier are there, and returns whether some are not. Histories are walked only if
    /// `walk`, if a pack is lost, or if damage is known that a check of the tips may not show.
    pub(super) async fn inspect(
        &self,
        store: &RepoStore,
        identifier: &Identifier,
        walk: bool,
    ) -> Result<bool, GitError> {
        let place = (store.endpoint(), identifier.clone());
        let is_known = self.0.lock().damaged.contains_key(&place);
        let inspection = store.inspect(identifier, walk || is_known).await?;
        let is_damaged = !inspection.broken.is_empty();
        self.found(place, inspection.broken);
        Ok(is_damaged)
    }

    /// Returns whether repositories of an identifier are known to lack objects.
    pub(super) fn is_damaged(&self, identifier: &Identifier) -> bool {
        self.0.lock().damaged.keys().any(|(_, damaged)| damaged == identifier)
    }

    fn found(&self, place: Place, owners: BTreeSet<PublicKey>) {
        let identifier = place.1.clone();
        let mut known = self.0.lock();
        if owners.is_empty() {
            if known.damaged.remove(&place).is_some() {
                tracing::info!(%identifier, "the git objects of a repository are complete again");
            }
            return;
        }
        if known.damaged.get(&place) != Some(&owners) {
            let owners: Vec<_> = owners.iter().map(PublicKey::to_hex).collect();
            tracing::error!(
                %identifier, ?owners,
                "git objects of a repository are missing on disk; they are fetched from its other servers"
            );
        }
        known.damaged.insert(place, owners);
    }

    fn all(&self) -> Vec<DamagedRepo> {
        let known = self.0.lock();
        let repos = known.damaged.iter().flat_map(|((endpoint, identifier), owners)| {
            let repo = |owner: &PublicKey| RepoId::new(*owner, identifier.clone());
            owners.iter().map(move |owner| DamagedRepo { endpoint: *endpoint, repo: repo(owner) })
        });
        repos.collect()
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
        TIP.iter().any(|text| words.contains(text)).then_some(Self::Tip)
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
        let known = self.executor.damage.0.lock();
        let owners = known.damaged.get(&(endpoint, repo.identifier.clone()));
        owners.is_some_and(|owners| owners.contains(&repo.owner))
    }

    /// Checks a repository if git reported a missing object while it served a fetch. One check of an identifier runs at a
    /// time, so that clients cannot queue them by asking for objects that never were here.
    pub fn suspect(&self, endpoint: Endpoint, repo: &RepoId, words: &str) {
        let store = self.executor.parts.store_of(endpoint).cloned();
        let (Some(suspicion), Some(store)) = (Suspicion::read(words), store) else { return };
        let place = (endpoint, repo.identifier.clone());
        let executor = self.executor.clone();
        if !executor.damage.0.lock().suspected.insert(place.clone()) {
            return;
        }
        tokio::spawn(async move {
            executor.inspect(&store, &place.1, suspicion == Suspicion::History).await;
            executor.damage.0.lock().suspected.remove(&place);
        });
    }

    /// Reads all packs of an identifier, salvages the readable objects of damaged ones, and starts to fetch what is missing
    /// from other servers. Returns whether objects are missing.
    pub async fn repair(&self, identifier: &Identifier) -> Result<bool, GitError> {
        let now = self.executor.parts.relay.now().unix;
        for store in self.executor.parts.stores() {
            let damaged = store.verify(identifier, now + CLOCK_RESOLUTION, now).await?;
            if !damaged.is_empty() {
                tracing::error!(%identifier, ?damaged, "packs are damaged; what is unreadable is fetched from other servers");
            }
            self.executor.damage.inspect(store, identifier, true).await?;
        }
        let is_missing = self.lacks_objects(identifier);
        if is_missing {
            self.tell(Input::Damaged { identifier: identifier.clone() }).await;
        }
        Ok(is_missing)
    }

    /// Returns whether repositories of an identifier are known to lack objects.
    pub fn lacks_objects(&self, identifier: &Identifier) -> bool {
        self.executor.damage.is_damaged(identifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_about_missing_objects_are_a_suspicion() {
        for (words, suspicion) in [
            ("fatal: git upload-pack: not our ref 1234", Some(Suspicion::Tip)),
            ("warning: ignoring broken ref refs/heads/main", Some(Suspicion::Tip)),
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
