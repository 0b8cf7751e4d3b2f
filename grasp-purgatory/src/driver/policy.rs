//! The settings of admission, which operators change while the server runs.

use std::sync::Arc;

use grasp_core::admission::Policy;
use grasp_core::maintainers::MaintainerModel;
use grasp_core::service::ServiceIdentity;
use tokio::sync::watch;

/// The policy of a server at this moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LivePolicy {
    /// Those parts that never change are the same in all that follow.
    first: Arc<Policy>,
    current: watch::Receiver<Arc<Policy>>,
}

impl LivePolicy {
    /// Returns the policy that an owner changes.
    pub fn new(current: watch::Receiver<Arc<Policy>>) -> Self {
        let first = Arc::clone(&current.borrow());
        Self { first, current }
    }

    /// Returns the policy. One decision uses one of them.
    pub fn now(&self) -> Arc<Policy> {
        Arc::clone(&self.current.borrow())
    }

    /// Returns the policy, and waits for changes after this one from now on.
    pub fn latest(&mut self) -> Arc<Policy> {
        Arc::clone(&self.current.borrow_and_update())
    }

    /// Returns the policy if it changed since the last look.
    pub(super) fn take_change(&mut self) -> Option<Arc<Policy>> {
        let has_changed = self.current.has_changed().unwrap_or(false);
        has_changed.then(|| self.latest())
    }

    /// Returns the address that announcements must list. It never changes.
    pub fn service(&self) -> &ServiceIdentity {
        &self.first.service
    }

    /// Returns the rule that makes maintainer sets. It never changes.
    pub fn model(&self) -> MaintainerModel {
        self.first.model
    }

    /// Waits for the next change, and returns the policy then.
    pub async fn next(&mut self) -> Arc<Policy> {
        // Without an owner the policy does not change.
        match self.current.changed().await {
            Ok(()) => self.latest(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until a condition holds.
    pub async fn until(mut self, mut holds: impl FnMut(&Policy) -> bool) {
        if self.current.wait_for(|policy| holds(policy)).await.is_err() {
            std::future::pending().await
        }
    }
}

/// A policy that never changes.
impl From<Policy> for LivePolicy {
    fn from(policy: Policy) -> Self {
        Self::new(watch::Sender::new(Arc::new(policy)).subscribe())
    }
}
