//! Maintenance of all identifiers, one at a time: the schedule, and the work for each.
//!
//! ```text
//!   Idle ──time──▶ Listing ──names──▶ Pausing ──time──▶ Maintaining
//!     ▲               │ failed           ▲ │ none left      │
//!     └───────────────┴──────────────────┼─┘                │
//!                                        └─ done, timeout ──┘
//! ```
//!
//! It runs when the server starts, which finds what an earlier run left between a change in the store and its effect in
//! git. The maintenance of an identifier begins after that of the one before has ended, so that a server with many
//! repositories is rarely busy with more than one of them. One that takes too long goes on beside the next.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use grasp_core::{Identifier, Mono, Oid};
use nostr::types::Timestamp;

use super::Order;
use super::queue::Executor;
use super::refs::DriverError;
use crate::Input;
use crate::git::{FamilyGuard, RepoStore};

/// Time from the end of maintenance to its next start.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// Time after which a pack is read as a whole again, to find damage.
const VERIFY_INTERVAL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Time after which identifiers are listed again if that failed.
const LIST_RETRY: Duration = Duration::from_secs(60);

/// Time between two identifiers, for the disk to do other things.
const PAUSE_BETWEEN_REPOSITORIES: Duration = Duration::from_millis(20);

/// Time that the maintenance of one identifier is waited for.
const REPOSITORY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The phase of maintenance.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MaintenanceSchedule {
    /// Not running.
    Idle { until: Mono },
    /// The identifiers are being read.
    Listing,
    /// The next identifier follows at this time.
    Pausing { left: VecDeque<Identifier>, next: Mono },
    /// An identifier is being maintained, and waited for until then.
    Maintaining { name: Identifier, left: VecDeque<Identifier>, until: Mono },
}

/// A step that is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MaintenanceStep {
    /// Read all identifiers.
    List,
    /// Maintain this identifier.
    Maintain(Identifier),
}

impl MaintenanceSchedule {
    /// Creates a schedule that starts at once.
    pub(super) fn new(now: Mono) -> Self {
        Self::Idle { until: now }
    }

    /// Makes the start due now, if maintenance is not running.
    pub(super) fn start_now(&mut self, now: Mono) {
        if let Self::Idle { until } = self {
            *until = now;
        }
    }

    /// Returns the time of the next step, unless it waits for the list of identifiers.
    pub(super) fn deadline(&self) -> Option<Mono> {
        match self {
            Self::Idle { until } => Some(*until),
            Self::Pausing { next, .. } => Some(*next),
            Self::Maintaining { until, .. } => Some(*until),
            Self::Listing => None,
        }
    }

    /// Returns the step that is due.
    pub(super) fn next_step(&mut self, now: Mono) -> Option<MaintenanceStep> {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return None;
        }
        match std::mem::replace(self, Self::Listing) {
            Self::Pausing { mut left, .. } => {
                let name = left.pop_front()?;
                *self =
                    Self::Maintaining { name: name.clone(), left, until: now + REPOSITORY_TIMEOUT };
                Some(MaintenanceStep::Maintain(name))
            }
            Self::Maintaining { name, left, .. } => {
                tracing::warn!(%name, "the maintenance of a repository takes long; going on");
                *self = Self::next_or_idle(now, left);
                None
            }
            _ => Some(MaintenanceStep::List),
        }
    }

    /// Continues with these identifiers; without them the list is read again later.
    pub(super) fn listed(&mut self, now: Mono, names: Option<VecDeque<Identifier>>) {
        *self = match names {
            Some(left) => Self::next_or_idle(now, left),
            None => Self::Idle { until: now + LIST_RETRY },
        };
    }

    /// Continues after the maintenance of an identifier has ended; ignored if it was no longer waited for.
    pub(super) fn maintained(&mut self, now: Mono, ended: &Identifier) {
        match self {
            Self::Maintaining { name, left, .. } if name == ended => {
                *self = Self::next_or_idle(now, std::mem::take(left));
            }
            _ => {}
        }
    }

    /// Returns whether maintenance is not running.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle { .. })
    }

    fn next_or_idle(now: Mono, left: VecDeque<Identifier>) -> Self {
        match left.is_empty() {
            true => Self::Idle { until: now + MAINTENANCE_INTERVAL },
            false => Self::Pausing { left, next: now + PAUSE_BETWEEN_REPOSITORIES },
        }
    }
}

impl Executor {
    /// Returns every identifier that is hosted, on disk or by a stored announcement.
    pub(super) async fn names(&self) -> Option<VecDeque<Identifier>> {
        match self.try_names().await {
            Ok(names) => Some(names.into_iter().collect()),
            Err(error) => {
                tracing::warn!(%error, "could not list the hosted repositories");
                None
            }
        }
    }

    async fn try_names(&self) -> Result<BTreeSet<Identifier>, DriverError> {
        let mut names = BTreeSet::new();
        for store in self.parts.stores() {
            names.extend(store.identifiers().await?);
        }
        names.extend(self.parts.relay.hosted(&self.parts.policy).await?);
        Ok(names)
    }

    /// Removes packs from the pack storage that nothing has named for a day.
    pub(super) async fn sweep(&self) {
        for store in self.parts.stores() {
            match store.sweep(self.parts.relay.now().mono).await {
                Ok(0) => {}
                Ok(deleted) => {
                    tracing::info!(deleted, "deleted unused packs from the pack storage")
                }
                Err(error) => tracing::warn!(%error, "could not delete unused packs"),
            }
        }
    }

    /// Removes retired data whose time is over, and repacks. Objects that no view needs are removed, but for the tips that
    /// held events are `waiting` for, if there are any.
    pub(super) async fn maintain(&self, identifier: &Identifier, waiting: Option<BTreeSet<Oid>>) {
        if let Err(error) = self.try_maintain(identifier, waiting).await {
            tracing::warn!(%error, %identifier, "maintenance of a repository failed");
        }
    }

    async fn try_maintain(
        &self,
        identifier: &Identifier,
        waiting: Option<BTreeSet<Oid>>,
    ) -> Result<(), DriverError> {
        let now = self.parts.relay.now().unix;
        self.unrelated.forget(identifier);
        for store in self.parts.stores() {
            self.inspect(store, identifier).await;
            self.verify(store, identifier, now).await;
            let mut guard = store.lock(identifier).await?;
            self.forget_vanished(&mut guard).await?;
            if waiting.is_none() {
                guard.remove_if_deserted().await?;
            }
            if guard.compact().await? {
                tracing::debug!(%identifier, "repacked a repository");
            }
            drop(guard);
            if store.collect(identifier, &waiting.clone().unwrap_or_default(), now).await? {
                tracing::debug!(%identifier, "removed objects that nothing refers to");
            }
        }
        Ok(())
    }

    /// Checks that the objects of an identifier are there, and hunts for those that are not.
    pub(super) async fn inspect(&self, store: &RepoStore, identifier: &Identifier) {
        match self.damage.inspect(store, identifier, false).await {
            Ok(true) => {
                let damaged = Input::Damaged { identifier: identifier.clone() };
                self.tell(Order::Tell(damaged)).await;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, %identifier, "could not check a repository for missing objects");
            }
        }
    }

    /// Reads the packs of an identifier that were not read for a month.
    async fn verify(&self, store: &RepoStore, identifier: &Identifier, now: Timestamp) {
        match store.verify(identifier, now - VERIFY_INTERVAL, now).await {
            Ok(damaged) if damaged.is_empty() => {}
            Ok(damaged) => {
                tracing::error!(%identifier, ?damaged, "packs are damaged; what is unreadable is fetched from other servers");
                self.inspect(store, identifier).await;
            }
            Err(error) => {
                tracing::warn!(%error, %identifier, "could not read the packs of a repository")
            }
        }
    }

    /// Removes retired views of owners who have vanished since (NIP-62).
    async fn forget_vanished(&self, guard: &mut FamilyGuard) -> Result<(), DriverError> {
        for owner in guard.retired_owners().await? {
            if self.has_vanished(&owner).await? {
                guard.forget_retired_of(&owner).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Option<VecDeque<Identifier>> {
        Some(names.iter().map(|name| name.parse().unwrap()).collect())
    }

    fn name(text: &str) -> Identifier {
        text.parse().unwrap()
    }

    fn maintain(name: &str) -> Option<MaintenanceStep> {
        Some(MaintenanceStep::Maintain(name.parse().unwrap()))
    }

    #[test]
    fn maintains_one_identifier_at_a_time() {
        let mut now = Mono::ZERO;
        let mut maintenance = MaintenanceSchedule::new(now);
        assert_eq!(maintenance.next_step(now), Some(MaintenanceStep::List));
        assert_eq!((maintenance.next_step(now), maintenance.deadline()), (None, None));
        maintenance.listed(now, names(&["a", "b"]));
        assert_eq!(maintenance.next_step(now), None, "not without a pause");
        now = now + PAUSE_BETWEEN_REPOSITORIES;
        assert_eq!(maintenance.next_step(now), maintain("a"));
        assert_eq!(maintenance.next_step(now), None, "a is not done");
        maintenance.maintained(now, &name("a"));
        now = now + PAUSE_BETWEEN_REPOSITORIES;
        assert_eq!(maintenance.next_step(now), maintain("b"));
        maintenance.maintained(now, &name("b"));
        assert!(maintenance.is_idle());
        assert_eq!(maintenance.deadline(), Some(now + MAINTENANCE_INTERVAL));
        assert_eq!(maintenance.next_step(now + MAINTENANCE_INTERVAL), Some(MaintenanceStep::List));
    }

    #[test]
    fn continues_after_a_timeout() {
        let mut maintenance = MaintenanceSchedule::new(Mono::ZERO);
        assert_eq!(maintenance.next_step(Mono::ZERO), Some(MaintenanceStep::List));
        maintenance.listed(Mono::ZERO, names(&["a", "b"]));
        let mut now = Mono::ZERO + PAUSE_BETWEEN_REPOSITORIES;
        assert_eq!(maintenance.next_step(now), maintain("a"));
        now = now + REPOSITORY_TIMEOUT;
        assert_eq!(maintenance.deadline(), Some(now));
        assert_eq!(maintenance.next_step(now), None);
        now = now + PAUSE_BETWEEN_REPOSITORIES;
        assert_eq!(maintenance.next_step(now), maintain("b"));
        maintenance.maintained(now, &name("a"));
        assert!(!maintenance.is_idle(), "b is still running");
        maintenance.maintained(now, &name("b"));
        assert!(maintenance.is_idle());
    }

    #[test]
    fn lists_again_after_a_failure() {
        let mut maintenance = MaintenanceSchedule::new(Mono::ZERO);
        assert_eq!(maintenance.next_step(Mono::ZERO), Some(MaintenanceStep::List));
        maintenance.listed(Mono::ZERO, None);
        assert_eq!(maintenance.next_step(Mono::ZERO), None);
        assert_eq!(maintenance.next_step(Mono::ZERO + LIST_RETRY), Some(MaintenanceStep::List));
    }

    #[test]
    fn starts_early_on_request_only_when_idle() {
        let mut maintenance = MaintenanceSchedule::new(Mono::ZERO);
        maintenance.start_now(Mono::ZERO);
        assert_eq!(maintenance.next_step(Mono::ZERO), Some(MaintenanceStep::List));
        maintenance.start_now(Mono::ZERO);
        assert_eq!(maintenance, MaintenanceSchedule::Listing);
        maintenance.listed(Mono::ZERO, names(&[]));
        assert_eq!(maintenance.next_step(Mono::ZERO), None);
        maintenance.start_now(Mono::ZERO);
        assert_eq!(maintenance.next_step(Mono::ZERO), Some(MaintenanceStep::List));
    }
}
