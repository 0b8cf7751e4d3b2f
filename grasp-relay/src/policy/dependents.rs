//! Hiding what depends on a repository that is announced no longer, and bringing it back once it is announced again.
//!
//! The store notes an announcement that goes in the transaction that removes it, so that a process that ends in the middle
//! leaves the rest to the next. What goes is decided by `component`.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt as _;
use grasp_core::admission::Needs;
use grasp_core::deletion::coordinate;
use grasp_core::nip34::References;
use grasp_core::policy::HiddenCause;
use grasp_core::{RepoId, kinds};
use nostr::event::{EventId, Kind};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;
use tokio::time::Instant;

use super::component::{Component, Progress, Standing, standing};
use super::enforcer::{Enforcer, KEEP_HIDDEN, RETRY_DELAY, SECOND_LOOK};
use crate::ingest::{naming_by_coordinate, naming_by_id};
use crate::nostr::hub::{Capacity, HubMessage, Listener};
use crate::store::{StoreError, events};

/// Events that are connected with each other and are read for one decision. More of them stay.
const MAX_CONNECTED: usize = 100_000;

/// Events whose neighbours are looked up at once.
const READ_AT_ONCE: usize = 200;

/// Events that are hidden at once.
const HIDDEN_AT_ONCE: usize = 250;

/// Events that are remembered to stay, of one repository.
const MAX_KEPT: usize = 100_000;

/// Announcements that wait; beyond it all repositories are looked at.
const QUEUE: Capacity = Capacity {
    events: 256,
    bytes: 4 * 1024 * 1024,
};

/// The only subscription of the listener.
const SUBSCRIPTION: u64 = 0;

/// The repositories that are noted as not announced and were looked at.
#[derive(Debug, Default)]
pub struct Seen(BTreeMap<RepoId, Look>);

#[derive(Debug)]
struct Look {
    /// The announcement that went.
    announcement: EventId,
    /// The time of the second look, which finds what was judged before the announcement went.
    next: Option<Instant>,
}

impl Enforcer {
    /// Follows which repositories are announced.
    pub(super) async fn follow_announcements(&self) {
        let _counted = self.hub.feed();
        let mut listener = self.hub.listen(QUEUE).with_removals();
        subscribe(&listener).await;
        let mut seen = Seen::default();
        loop {
            if let Err(error) = self.look_at_unannounced(&mut seen).await {
                tracing::warn!(%error, "could not hide or restore what depends on repositories; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
            match seen.0.values().filter_map(|look| look.next).min() {
                Some(at) => {
                    let change = wait_for_change(&mut listener, &seen);
                    // After the wait all are looked at, also if it was cut short.
                    let _ = tokio::time::timeout_at(at, change).await;
                }
                None => wait_for_change(&mut listener, &seen).await,
            }
        }
    }

    /// Hides or restores what depends on the repositories that are noted as not announced.
    pub async fn look_at_unannounced(&self, seen: &mut Seen) -> Result<(), StoreError> {
        let noted = self.store.unannounced().await?;
        seen.0.retain(|repo, _| noted.contains_key(repo));
        let announced = self.announced(noted.keys()).await?;
        for (repo, announcement) in noted {
            if announced.contains(&repo) {
                self.restore_dependents(&repo).await?;
                seen.0.remove(&repo);
                continue;
            }
            let now = Instant::now();
            let known = seen
                .0
                .get(&repo)
                .filter(|look| look.announcement == announcement);
            let next = match known.map(|look| look.next) {
                Some(None) => continue,
                Some(Some(at)) if at > now => continue,
                Some(Some(_)) => None,
                None => Some(now + SECOND_LOOK),
            };
            self.hide_dependents(&repo, announcement).await?;
            if next.is_none() {
                self.store.forget_unannounced(repo.clone()).await?;
            }
            seen.0.insert(repo, Look { announcement, next });
        }
        Ok(())
    }

    /// Returns which of these repositories are announced.
    async fn announced(
        &self,
        repos: impl Iterator<Item = &RepoId>,
    ) -> Result<BTreeSet<RepoId>, StoreError> {
        let coordinates = repos.map(|repo| coordinate_of(repo, kinds::ANNOUNCEMENT));
        let heads = self.store.heads(coordinates.collect(), self.now()).await?;
        Ok(heads
            .iter()
            .filter_map(|event| Needs::of(event).repo)
            .collect())
    }

    /// Restores what was hidden because a repository was not announced.
    async fn restore_dependents(&self, repo: &RepoId) -> Result<(), StoreError> {
        let cause = HiddenCause::Unannounced(repo.clone());
        let mut affected = BTreeSet::new();
        loop {
            let policy = self.policy.live().now();
            let step = self
                .store
                .restore(cause.clone(), policy, self.now())
                .await?;
            for event in step.restored {
                self.hub.publish_stored(event).await;
            }
            self.hub.publish_removed(step.removed).await;
            affected.extend(step.affected);
            if step.is_done {
                break;
            }
        }
        if !affected.is_empty() {
            // Their pull requests get their refs.
            self.git.affected(affected).await;
        }
        Ok(())
    }

    /// Hides the events that are here for the sake of a repository alone.
    async fn hide_dependents(
        &self,
        repo: &RepoId,
        announcement: EventId,
    ) -> Result<(), StoreError> {
        let coordinates = [kinds::ANNOUNCEMENT, kinds::STATE].map(|kind| coordinate_of(repo, kind));
        let mut naming = naming_by_id([announcement]);
        naming.extend(coordinates.into_iter().flat_map(naming_by_coordinate));
        let mut kept = BTreeSet::new();
        let mut found = self.store.query(naming, self.now());
        while let Some(chunk) = found.try_next().await? {
            for stored in chunk {
                let event = stored.event()?;
                let policy = self.policy.live().now();
                let is_dependent = standing(&policy, repo, &event) == Standing::Dependent;
                if !is_dependent || kept.contains(&event.id) {
                    continue;
                }
                match self.component(repo, event.id).await? {
                    Progress::Unneeded(events) => self.hide_events(repo, events).await?,
                    Progress::Kept(events) | Progress::Read(events) => {
                        if kept.len() > MAX_KEPT {
                            kept.clear();
                        }
                        kept.extend(events);
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the events that are connected with one, until it is known whether they stay.
    async fn component(&self, repo: &RepoId, first: EventId) -> Result<Progress, StoreError> {
        let mut component = Component::new(first, MAX_CONNECTED);
        loop {
            match component.next(READ_AT_ONCE) {
                Progress::Read(ids) => self.read_neighbours(repo, &mut component, ids).await?,
                end => {
                    if component.is_too_large() {
                        tracing::warn!(%repo, "too many events are connected to know which depend on it; they stay");
                    }
                    return Ok(end);
                }
            }
        }
    }

    /// Adds the events that these name, or that name these.
    async fn read_neighbours(
        &self,
        repo: &RepoId,
        component: &mut Component,
        ids: BTreeSet<EventId>,
    ) -> Result<(), StoreError> {
        let policy = self.policy.live().now();
        let mut named = References::default();
        let mut filters = naming_by_id(ids.iter().copied());
        let members = Filter::new().ids(ids);
        for event in events(&*self.store, members, self.now()).await? {
            let References { ids, coordinates } = Needs::of(&event).references;
            named.ids.extend(ids);
            named.coordinates.extend(coordinates);
            if let Some(at) = coordinate(&event) {
                filters.extend(naming_by_coordinate(at));
            }
        }
        let coordinates = named.coordinates.into_iter().collect();
        for event in self.store.heads(coordinates, self.now()).await? {
            component.add(event.id, standing(&policy, repo, &event));
        }
        filters.push(Filter::new().ids(named.ids));
        let mut found = self.store.query(filters, self.now());
        while let Some(chunk) = found.try_next().await? {
            for stored in chunk {
                let event = stored.event()?;
                component.add(event.id, standing(&policy, repo, &event));
            }
            if component.is_decided() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn hide_events(
        &self,
        repo: &RepoId,
        events: BTreeSet<EventId>,
    ) -> Result<(), StoreError> {
        let events: Vec<EventId> = events.into_iter().collect();
        for some in events.chunks(HIDDEN_AT_ONCE) {
            loop {
                let now = self.now();
                let step =
                    self.store
                        .hide_dependents(repo.clone(), some.to_vec(), now + KEEP_HIDDEN, now);
                let step = step.await?;
                self.hub.publish_removed(step.removed).await;
                self.git.affected(step.affected).await;
                if step.is_done {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Waits until an event was removed, or a repository is announced that was looked at.
async fn wait_for_change(listener: &mut Listener, seen: &Seen) {
    loop {
        let mut matters = concerns(seen, &listener.next().await);
        while let Some(message) = listener.try_next() {
            matters |= concerns(seen, &message);
        }
        if matters {
            // After more announcements than the queue takes there is no subscription any more.
            return subscribe(listener).await;
        }
    }
}

async fn subscribe(listener: &Listener) {
    let announcements = [Filter::new().kind(kinds::ANNOUNCEMENT)];
    listener.subscribe(SUBSCRIPTION, announcements.into()).await;
}

/// Returns whether a message may change what is noted or announced.
fn concerns(seen: &Seen, message: &HubMessage) -> bool {
    match message {
        HubMessage::Event { published, .. } => {
            let repo = Needs::of(&published.event).repo;
            repo.is_some_and(|repo| seen.0.contains_key(&repo))
        }
        HubMessage::Removed(_) | HubMessage::Overflow { .. } => true,
        HubMessage::Subscribed { .. } => false,
    }
}

fn coordinate_of(repo: &RepoId, kind: Kind) -> Coordinate {
    Coordinate::new(kind, repo.owner).identifier(repo.identifier.as_str())
}
