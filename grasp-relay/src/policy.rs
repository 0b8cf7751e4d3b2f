//! The policy of a server, as all its parts see it at once: the settings, continued by the entries of the database.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::RepoId;
use grasp_core::admission::Policy;
use grasp_core::policy::PolicySubject;
pub use grasp_purgatory::driver::LivePolicy;
use tokio::sync::watch;

use crate::store::StoreError;
use crate::store::policy::PolicyStore;

/// The owner of the policy: each change is in force at once.
#[derive(Debug)]
pub struct PolicyOwner {
    /// What the settings say.
    settings: Policy,
    current: watch::Sender<Arc<Policy>>,
}

impl PolicyOwner {
    /// Creates a policy that is what the settings say.
    pub fn new(settings: Policy) -> Self {
        let current = watch::Sender::new(Arc::new(settings.clone()));
        Self { settings, current }
    }

    /// Returns the policy for reading.
    pub fn live(&self) -> LivePolicy {
        LivePolicy::new(self.current.subscribe())
    }

    /// Returns what the settings say, which no entry takes back.
    pub const fn settings(&self) -> &Policy {
        &self.settings
    }

    /// Replaces the entries and the held repositories that continue the settings.
    pub fn replace<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a PolicySubject>,
        held: BTreeSet<RepoId>,
    ) {
        let mut policy = self.settings.with(entries);
        policy.held = held;
        self.current.send_replace(Arc::new(policy));
    }

    /// Reads the entries and the held repositories from the database. Returns the version that is in force then.
    pub async fn load(&self, store: &dyn PolicyStore) -> Result<u64, StoreError> {
        // The version first: a change between the reads is read again.
        let version = store.policy_version().await?;
        let entries = store.policy_entries(None).await?;
        let held = store.held_repos().await?;
        self.replace(
            entries.iter().map(|entry| &entry.subject),
            held.into_iter().map(|held| held.repo).collect(),
        );
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
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
        );
        assert_eq!(before.bans.names.len(), 1, "a decision keeps its policy");
        assert_eq!(live.now().bans.names.len(), 2);
        owner.replace(&[], BTreeSet::new());
        assert!(live.now().bans.names.contains("fixed"));
        assert_eq!(live.now().bans.names.len(), 1);
    }
}
