//! When each repository name is looked after, one at a time.
//!
//! ```text
//!   Resting ──time──▶ Listing ──names──▶ Between ──time──▶ Visiting
//!      ▲                 │ failed           ▲ │ none left      │
//!      └─────────────────┴──────────────────┼─┘                │
//!                                           └─ visited, late ──┘
//! ```
//!
//! The first round begins at the start: what an earlier run left between a change in the store and its consequence
//! in git is found by it. A visit begins only after the one before has ended, so a server with many repositories is
//! rarely busy with more than one of them on this account. One that takes too long goes on beside the next: a single
//! repository does not keep the others from being looked after.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use futures_util::TryStreamExt;
use grasp_core::nip34::Announcement;
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Mono, Oid, kinds};
use grasp_purgatory::git::FamilyGuard;
use nostr::filter::Filter;

use super::lane::LaneExecutor;
use super::refs::DriverError;

/// From the end of a round to the beginning of the next.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// Until names are asked for again that could not be told.
const LIST_RETRY: Duration = Duration::from_secs(60);

/// From the end of a visit to the beginning of the next, for the disk to do other things.
const PAUSE_BETWEEN_REPOSITORIES: Duration = Duration::from_millis(20);

/// How long one visit is waited for.
const REPOSITORY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Where the round is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MaintenanceSchedule {
    /// None is under way.
    Idle { until: Mono },
    /// The names are being found out.
    Listing,
    /// The next name has its turn at this time.
    Pausing { left: VecDeque<Identifier>, next: Mono },
    /// One is being visited, and waited for until then.
    Maintaining { name: Identifier, left: VecDeque<Identifier>, until: Mono },
}

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Find out all names.
    List,
    /// Look after this one.
    Maintain(Identifier),
}

impl MaintenanceSchedule {
    /// Begins with a round.
    pub(super) fn new(now: Mono) -> Self {
        Self::Idle { until: now }
    }

    /// Ends the rest, if there is one.
    pub(super) fn start_now(&mut self, now: Mono) {
        if let Self::Idle { until } = self {
            *until = now;
        }
    }

    /// When there is something to do, if time is what it takes.
    pub(super) fn deadline(&self) -> Option<Mono> {
        match self {
            Self::Idle { until } => Some(*until),
            Self::Pausing { next, .. } => Some(*next),
            Self::Maintaining { until, .. } => Some(*until),
            Self::Listing => None,
        }
    }

    /// What is to be done now.
    pub(super) fn next_step(&mut self, now: Mono) -> Option<Step> {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return None;
        }
        match std::mem::replace(self, Self::Listing) {
            Self::Pausing { mut left, .. } => {
                let name = left.pop_front()?;
                *self =
                    Self::Maintaining { name: name.clone(), left, until: now + REPOSITORY_TIMEOUT };
                Some(Step::Maintain(name))
            }
            Self::Maintaining { name, left, .. } => {
                tracing::warn!(%name, "the maintenance of a repository takes long; going on");
                *self = Self::next_or_idle(now, left);
                None
            }
            _ => Some(Step::List),
        }
    }

    /// The names are found, or could not be.
    pub(super) fn listed(&mut self, now: Mono, names: Option<VecDeque<Identifier>>) {
        *self = match names {
            Some(left) => Self::next_or_idle(now, left),
            None => Self::Idle { until: now + LIST_RETRY },
        };
    }

    /// A visit has ended, however it did. One that was not waited for any longer changes nothing.
    pub(super) fn maintained(&mut self, now: Mono, visited: &Identifier) {
        match self {
            Self::Maintaining { name, left, .. } if name == visited => {
                *self = Self::next_or_idle(now, std::mem::take(left));
            }
            _ => {}
        }
    }

    /// Whether no round is under way.
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

impl LaneExecutor {
    /// Every name that something is hosted under, on disk or by a stored announcement.
    pub(super) async fn names(&self) -> Option<VecDeque<Identifier>> {
        match self.try_names().await {
            Ok(names) => Some(names.into_iter().collect()),
            Err(error) => {
                tracing::warn!(%error, "could not find out what is hosted here");
                None
            }
        }
    }

    async fn try_names(&self) -> Result<BTreeSet<Identifier>, DriverError> {
        let mut names = BTreeSet::new();
        for store in self.stores() {
            names.extend(store.identifiers().await?);
        }
        let announcements = vec![Filter::new().kind(kinds::ANNOUNCEMENT)];
        let mut found = self.parts.store.query(announcements, self.parts.clock.now().unix);
        while let Some(chunk) = found.try_next().await? {
            for stored in chunk {
                let hosted = Announcement::parse(&stored.event()?).ok();
                let hosted = hosted.filter(|announcement| self.parts.policy.hosts(announcement));
                names.extend(hosted.map(|announcement| announcement.repo.identifier));
            }
        }
        Ok(names)
    }

    /// Forgets what was kept for long enough, and makes few packs of many. Objects that no view needs go, unless they
    /// are for something that is `waiting`, if anything is.
    pub(super) async fn maintain(&self, identifier: &Identifier, waiting: Option<BTreeSet<Oid>>) {
        if let Err(error) = self.try_maintain(identifier, waiting).await {
            tracing::warn!(%error, %identifier, "could not maintain up");
        }
    }

    async fn try_maintain(
        &self,
        identifier: &Identifier,
        waiting: Option<BTreeSet<Oid>>,
    ) -> Result<(), DriverError> {
        let now = self.parts.clock.now().unix;
        self.unrelated.forget(identifier);
        for (endpoint, store) in
            [Endpoint::Repository, Endpoint::PullRequests].into_iter().zip(self.stores())
        {
            if let Err(error) = self.damage.inspect((endpoint, store), identifier, false).await {
                tracing::warn!(%error, %identifier, "could not look for damage");
            }
            let mut guard = store.lock(identifier).await?;
            guard.forget_old_tips(now).await?;
            self.forget_vanished(&mut guard).await?;
            guard.forget_retired(now).await?;
            if waiting.is_none() {
                guard.remove_if_deserted().await?;
            }
            if guard.compact().await? {
                tracing::debug!(%identifier, "made few packs of many");
            }
            drop(guard);
            if store.collect(identifier, &waiting.clone().unwrap_or_default(), now).await? {
                tracing::debug!(%identifier, "removed objects that nothing refers to");
            }
        }
        Ok(())
    }

    /// Forgets what was retired by those who have vanished since.
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

    fn visit(name: &str) -> Option<Step> {
        Some(Step::Maintain(name.parse().unwrap()))
    }

    #[test]
    fn one_name_at_a_time_and_then_a_rest() {
        let mut now = Mono::ZERO;
        let mut maintenance = MaintenanceSchedule::new(now);
        assert_eq!(maintenance.next_step(now), Some(Step::List));
        assert_eq!((maintenance.next_step(now), maintenance.deadline()), (None, None));
        maintenance.listed(now, names(&["a", "b"]));
        assert_eq!(maintenance.next_step(now), None, "not without a pause");
        now = now + PAUSE_BETWEEN_REPOSITORIES;
        assert_eq!(maintenance.next_step(now), visit("a"));
        assert_eq!(maintenance.next_step(now), None, "a is not done");
        maintenance.maintained(now, &name("a"));
        now = now + PAUSE_BETWEEN_REPOSITORIES;
        assert_eq!(maintenance.next_step(now), visit("b"));
        maintenance.maintained(now, &name("b"));
        assert!(maintenance.is_idle());
        assert_eq!(maintenance.deadline(), Some(now + MAINTENANCE_INTERVAL));
        assert_eq!(maintenance.next_step(now + MAINTENANCE_INTERVAL), Some(Step::List));
    }

    #[test]
    fn a_visit_that_takes_too_long_keeps_no_other_name_waiting() {
        let mut maintenance = MaintenanceSchedule::new(Mono::ZERO);
        assert_eq!(maintenance.next_step(Mono::ZERO), Some(Step::List));
        maintenance.listed(Mono::ZERO, names(&["a", "b"]));
        let mut now = Mono::ZERO + PAUSE_BETWEEN_REPOSITORIES;
        assert_eq!(maintenance.next_step(now), visit("a"));
        now = now + REPOSITORY_TIMEOUT;
        assert_eq!(maintenance.deadline(), Some(now));
        assert_eq!(maintenance.next_step(now), None);
        now = now + PAUSE_BETWEEN_REPOSITORIES;
        assert_eq!(maintenance.next_step(now), visit("b"));
        maintenance.maintained(now, &name("a"));
        assert!(!maintenance.is_idle(), "b is still visited");
        maintenance.maintained(now, &name("b"));
        assert!(maintenance.is_idle());
    }

    #[test]
    fn names_that_could_not_be_listed_are_asked_for_again_soon() {
        let mut maintenance = MaintenanceSchedule::new(Mono::ZERO);
        assert_eq!(maintenance.next_step(Mono::ZERO), Some(Step::List));
        maintenance.listed(Mono::ZERO, None);
        assert_eq!(maintenance.next_step(Mono::ZERO), None);
        assert_eq!(maintenance.next_step(Mono::ZERO + LIST_RETRY), Some(Step::List));
    }

    #[test]
    fn whoever_cannot_wait_shortens_the_rest_and_nothing_else() {
        let mut maintenance = MaintenanceSchedule::new(Mono::ZERO);
        maintenance.start_now(Mono::ZERO);
        assert_eq!(maintenance.next_step(Mono::ZERO), Some(Step::List));
        maintenance.start_now(Mono::ZERO);
        assert_eq!(maintenance, MaintenanceSchedule::Listing);
        maintenance.listed(Mono::ZERO, names(&[]));
        assert_eq!(maintenance.next_step(Mono::ZERO), None);
        maintenance.start_now(Mono::ZERO);
        assert_eq!(maintenance.next_step(Mono::ZERO), Some(Step::List));
    }
}
