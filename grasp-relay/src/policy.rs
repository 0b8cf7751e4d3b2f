//! The policy of a server, as all its parts see it at once: the settings, continued by the entries of the database.

mod component;
mod dependents;
mod enforcer;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::RepoId;
use grasp_core::admission::Policy;
use grasp_core::policy::{HiddenCause, PolicySubject};
pub use grasp_purgatory::driver::LivePolicy;
use tokio::sync::{Mutex, watch};
use tokio::time::MissedTickBehavior;

pub use self::dependents::Seen;
pub use self::enforcer::{Enforced, Enforcer, KEEP_HIDDEN};
use crate::store::StoreError;
use crate::store::policy::PolicyStore;

/// The time between two looks for changes of other processes.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

/// The owner of the policy: each change is in force at once.
#[derive(Debug)]
pub struct PolicyOwner {
    /// What the settings say.
    settings: Policy,
    current: watch::Sender<Arc<Policy>>,
    /// Of two that load at the same time, the second reads what the first has read or later.
    loading: Mutex<()>,
}

impl PolicyOwner {
    /// Creates a policy that is what the settings say.
    pub fn new(settings: Policy) -> Self {
        let current = watch::Sender::new(Arc::new(settings.clone()));
        Self {
            settings,
            current,
            loading: Mutex::default(),
        }
    }

    /// Returns the policy for reading.
    pub fn live(&self) -> LivePolicy {
        LivePolicy::new(self.current.subscribe())
    }

    /// Returns what the settings say, which no entry takes back.
    pub const fn settings(&self) -> &Policy {
        &self.settings
    }

    /// Replaces what continues the settings: the entries, the held repositories, and the causes for which events are
    /// hidden.
    pub fn replace<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a PolicySubject>,
        held: BTreeSet<RepoId>,
        hidden: BTreeSet<HiddenCause>,
    ) {
        let mut policy = self.settings.with(entries);
        policy.held = held;
        let over = hidden.into_iter().filter(|cause| !policy.upholds(cause));
        policy.restoring = over.collect();
        self.current.send_replace(Arc::new(policy));
    }

    /// Reads the entries and the held repositories from the database. Returns the version that is in force then.
    pub async fn load(&self, store: &dyn PolicyStore) -> Result<u64, StoreError> {
        let _loading = self.loading.lock().await;
        // The version first: a change between the reads is read again.
        let version = store.policy_version().await?;
        let entries = store.policy_entries(None).await?;
        let held = store.held_repos().await?;
        self.replace(
            entries.iter().map(|entry| &entry.subject),
            held.into_iter().map(|held| held.repo).collect(),
            store.hidden_causes().await?,
        );
        Ok(version)
    }

    /// Follows the changes of other processes for as long as it is polled.
    pub async fn follow(&self, store: &dyn PolicyStore) {
        let mut known = None;
        let mut interval = tokio::time::interval(FOLLOW_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let followed = async {
                if Some(store.policy_version().await?) != known {
                    known = Some(self.load(store).await?);
                }
                Ok::<_, StoreError>(())
            };
            if let Err(error) = followed.await {
                tracing::debug!(%error, "could not read what operators decided");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;

    fn settings() -> Policy {
        Policy::new("grasp.example".parse().unwrap())
    }

    #[test]
    fn a_change_is_seen_at_once_and_leaves_what_the_settings_say() {
        let mut fixed = settings();
        fixed.bans.names.insert("fixed".parse().unwrap());
        let owner = PolicyOwner::new(fixed);
        let live = owner.live();
        let before = live.now();
        owner.replace(
            &[PolicySubject::BannedName("spam".parse().unwrap())],
            BTreeSet::new(),
            BTreeSet::new(),
        );
        assert_eq!(before.bans.names.len(), 1, "a decision keeps its policy");
        assert_eq!(live.now().bans.names.len(), 2);
        owner.replace(&[], BTreeSet::new(), BTreeSet::new());
        assert!(live.now().bans.names.contains("fixed"));
        assert_eq!(live.now().bans.names.len(), 1);
    }

    #[test]
    fn a_repository_is_withheld_until_all_of_it_is_restored() {
        let owner = PolicyOwner::new(settings());
        let live = owner.live();
        let author = PublicKey::from_byte_array([1; 32]);
        let repo = RepoId::new(author, "x".parse().unwrap());
        let hidden = BTreeSet::from([HiddenCause::Author(author)]);
        let ban = [PolicySubject::BannedAuthor(author)];
        owner.replace(&ban, BTreeSet::new(), hidden.clone());
        assert!(live.now().withholds(&repo) && live.now().restoring.is_empty());
        owner.replace(&[], BTreeSet::new(), hidden);
        assert!(live.now().withholds(&repo), "its events are hidden still");
        owner.replace(&[], BTreeSet::new(), BTreeSet::new());
        assert!(!live.now().withholds(&repo));
    }
}
