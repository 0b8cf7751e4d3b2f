//! The keeper as the relay sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use grasp_core::admission::{Hold, Needs, Origin};
use grasp_core::deletion::{DeletionRequest, VanishScope};
use grasp_core::nip34::{Announcement, Proposal};
use grasp_core::{Identifier, RepoId, Version, kinds};
use grasp_purgatory::{Input, Kept as Purgatorial, Room};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;

use super::{Gone, Keeper, Until};
use crate::ingest::{GitFacts, GitSide, Kept};
use crate::store::{self, StoreError};

/// The kinds that speak of git data.
const WITH_GIT_DATA: [Kind; 4] =
    [kinds::ANNOUNCEMENT, kinds::STATE, kinds::PULL_REQUEST, kinds::PULL_REQUEST_UPDATE];

/// Events that one request is looked through for. What is beyond is found by the next round.
const MOST_TARGETS: usize = 4_096;

/// How long the sender of an event waits to hear whether it is served; then it hears what is true until then.
const PATIENCE: Duration = Duration::from_secs(5);

impl From<Gone> for StoreError {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Stopping => Self::Closed,
            Gone::CannotWrite => Self::Journal(gone),
        }
    }
}

impl GitSide for Keeper {
    fn facts(&self, event: Arc<Event>) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(async move {
            if event.kind == kinds::DELETION || self.is_farewell(&event) {
                self.doomed.note(event.id, self.names_behind(&event).await?);
            }
            if !waits_for_git(&event) {
                return Ok(GitFacts::default());
            }
            let has_enough = self.has_enough(&event).await?;
            let identifier = Needs::of(&event).identifier;
            let facts = move |purgatory: &grasp_purgatory::Purgatory| GitFacts {
                is_held: purgatory.holds(&event.id),
                announcements: identifier.iter().flat_map(|i| purgatory.announcements(i)).collect(),
                over_quota: has_enough || purgatory.room_for(&event) == Room::Full,
            };
            Ok(self.ask(facts).await?)
        })
    }

    fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> BoxFuture<'_, Result<Kept, StoreError>> {
        Box::pin(async move {
            let (id, waits) = (event.id, !origin.is_sync());
            Ok(match Self::hold(self, event, hold, origin).await? {
                Purgatorial::Held if waits => self.outcome(id).await?,
                Purgatorial::Held => Kept::Held,
                Purgatorial::Superseded => Kept::Superseded,
                Purgatorial::Full => Kept::Full,
                Purgatorial::Unreadable => Kept::Servable,
            })
        })
    }

    fn stored(&self, event: Arc<Event>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let names = self.doomed.take(&event.id);
            if let Some(input) = self.consequence(event) {
                self.tell(input).await;
            }
            for identifier in names {
                self.tell(Input::Changed { identifier }).await;
            }
        })
    }

    fn delisted(&self, repo: RepoId, by: Version) -> BoxFuture<'_, ()> {
        Box::pin(self.tell(Input::Delisted { repo, by }))
    }
}

impl Keeper {
    /// What has become of an event that was taken in just now. If its data was here, it is served by the time that
    /// its sender hears of it.
    async fn outcome(&self, id: EventId) -> Result<Kept, StoreError> {
        if tokio::time::timeout(PATIENCE, self.wait(Until::Decided(id))).await.is_err() {
            return Ok(Kept::Held);
        }
        let is_held = self.ask(move |purgatory| purgatory.holds(&id)).await?;
        if is_held {
            return Ok(Kept::Held);
        }
        let now = self.clock().now().unix;
        let stored = self.store().exists(vec![vec![Filter::new().id(id)]], now).await?;
        // What is neither here nor there lost to a newer version, or its author took it back.
        Ok(if stored.contains(&true) { Kept::Released } else { Kept::Superseded })
    }

    /// Whether somebody who announces a repository here is served as many as one may be.
    async fn has_enough(&self, event: &Event) -> Result<bool, StoreError> {
        let (policy, now) = (self.policy(), self.clock().now().unix);
        let asks = event.kind == kinds::ANNOUNCEMENT
            && Announcement::parse(event).is_ok_and(|new| new.lists(&policy.service));
        if !asks {
            return Ok(false);
        }
        let theirs = Filter::new().kind(kinds::ANNOUNCEMENT).author(event.pubkey);
        let known = self.store().count(vec![theirs.clone()], now).await?;
        if usize::try_from(known).is_ok_and(|known| known < policy.repositories_per_author) {
            return Ok(false);
        }
        let theirs = store::events(&**self.store(), theirs, now).await?;
        let announcements: Vec<_> = theirs.iter().flat_map(Announcement::parse).collect();
        Ok(policy.has_enough(&event.pubkey, &announcements))
    }

    /// What a stored event means for what waits.
    fn consequence(&self, event: Arc<Event>) -> Option<Input> {
        if event.kind == kinds::ANNOUNCEMENT {
            let identifier: Identifier = Announcement::parse(&event).ok()?.repo.identifier;
            return Some(Input::Changed { identifier });
        }
        if event.kind == kinds::DELETION {
            return Some(Input::Deleted { request: event });
        }
        let vanishes = self.is_farewell(&event);
        vanishes.then(|| Input::Vanished { author: event.pubkey, until: event.created_at })
    }

    /// Whether its author asks us to forget them.
    fn is_farewell(&self, event: &Event) -> bool {
        let us = Some(&self.policy().service);
        event.kind == kinds::VANISH && VanishScope::parse(event).includes(us)
    }
}

impl Keeper {
    /// The names of repositories whose announcements, states or pull requests a request to delete or to vanish is
    /// about.
    async fn names_behind(&self, request: &Event) -> Result<BTreeSet<Identifier>, StoreError> {
        let theirs = Filter::new().kinds(WITH_GIT_DATA).author(request.pubkey);
        if request.kind == kinds::VANISH {
            return self.names_in(theirs.until(request.created_at)).await;
        }
        let Ok(DeletionRequest { ids, coordinates }) = DeletionRequest::parse(request) else {
            return Ok(BTreeSet::new());
        };
        let ruled = |kind| kind == kinds::ANNOUNCEMENT || kind == kinds::STATE;
        let named = coordinates.into_iter().filter(|coordinate| ruled(coordinate.kind));
        let named: BTreeSet<String> = named.map(|coordinate| coordinate.identifier).collect();
        // It may name thousands; only what is here is worth a look.
        let mut names = BTreeSet::new();
        if !named.is_empty() {
            names.extend(self.names_in(theirs.clone().identifiers(named)).await?);
        }
        if !ids.is_empty() {
            names.extend(self.names_in(theirs.ids(ids)).await?);
        }
        Ok(names)
    }

    /// The names of repositories that stored events are about.
    async fn names_in(&self, filter: Filter) -> Result<BTreeSet<Identifier>, StoreError> {
        let mut names = BTreeSet::new();
        let now = self.clock().now().unix;
        for event in store::events(&**self.store(), filter.limit(MOST_TARGETS), now).await? {
            names.extend(Needs::of(&event).identifier);
            let proposal = Proposal::parse(&event).ok();
            let repos = proposal.iter().flat_map(|proposal| &proposal.repos);
            names.extend(repos.map(|repo| repo.identifier.clone()));
        }
        Ok(names)
    }
}

/// Whether an event of this kind may have to wait for git data.
fn waits_for_git(event: &Event) -> bool {
    WITH_GIT_DATA.contains(&event.kind)
}
