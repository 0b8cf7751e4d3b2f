//! The keeper as the relay sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use grasp_core::admission::{Acceptance, Hold, Known, Needs, Origin, Rejection, Verdict};
use grasp_core::deletion::VanishScope;
use grasp_core::nip34::Announcement;
use grasp_core::{Identifier, RepoId, Version, kinds};
use grasp_purgatory::{HoldOutcome, Input};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;

use super::{Gone, Keeper, Until};
use crate::ingest::{GitBackend, GitFacts};
use crate::store::{self, REPOSITORY_KINDS, StoreError};

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

impl GitBackend for Keeper {
    fn facts(&self, event: Arc<Event>) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(async move {
            if !waits_for_git(&event) {
                return Ok(GitFacts::default());
            }
            let repository_quota_reached = self.repository_quota_reached(&event).await?;
            let identifier = Needs::of(&event).identifier;
            let facts = move |purgatory: &grasp_purgatory::Purgatory| GitFacts {
                is_held: purgatory.holds(&event.id),
                announcements: identifier.iter().flat_map(|i| purgatory.announcements(i)).collect(),
                over_quota: repository_quota_reached || !purgatory.has_room_for(&event),
            };
            Ok(self.ask(facts).await?)
        })
    }

    fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> BoxFuture<'_, Result<Verdict, StoreError>> {
        Box::pin(async move {
            let (id, waits) = (event.id, !origin.is_sync());
            Ok(match Self::hold(self, event, hold.clone(), origin).await? {
                HoldOutcome::Held if waits => self.outcome(id, hold).await?,
                HoldOutcome::Held => Verdict::Hold(hold),
                HoldOutcome::Superseded => Verdict::Known(Known::Superseded),
                HoldOutcome::Full => Verdict::Reject(Rejection::Quota),
                HoldOutcome::Unreadable => Verdict::Accept(Acceptance::Promoted),
            })
        })
    }

    fn stored(&self, event: Arc<Event>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(input) = self.consequence(event) {
                self.tell(input).await;
            }
        })
    }

    fn affected(&self, names: BTreeSet<Identifier>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for identifier in self.with_git_data(names).await {
                self.tell(Input::Changed { identifier }).await;
            }
        })
    }

    fn delisted(&self, repo: RepoId, by: Version) -> BoxFuture<'_, ()> {
        Box::pin(self.tell(Input::Delisted { repo, by }))
    }
}

impl Keeper {
    /// Those of these names that there is git data of. An event may name hundreds that nobody ever announced.
    async fn with_git_data(&self, names: BTreeSet<Identifier>) -> BTreeSet<Identifier> {
        let mut found = BTreeSet::new();
        for store in std::iter::once(self.repos()).chain(self.contributors()) {
            match store.existing(names.clone()).await {
                Ok(some) => found.extend(some),
                Err(error) => {
                    tracing::warn!(%error, "could not tell which repositories exist");
                    return names;
                }
            }
        }
        found
    }

    /// What has become of an event that was taken in just now. If its data was here, it is served by the time that
    /// its sender hears of it.
    async fn outcome(&self, id: EventId, hold: Hold) -> Result<Verdict, StoreError> {
        if tokio::time::timeout(PATIENCE, self.wait(Until::Decided(id))).await.is_err() {
            return Ok(Verdict::Hold(hold));
        }
        let is_held = self.ask(move |purgatory| purgatory.holds(&id)).await?;
        if is_held {
            return Ok(Verdict::Hold(hold));
        }
        let now = self.clock().now().unix;
        let stored = self.store().exists(vec![vec![Filter::new().id(id)]], now).await?;
        // What is neither here nor there lost to a newer version, or its author took it back.
        Ok(match stored.contains(&true) {
            true => Verdict::Accept(Acceptance::Released),
            false => Verdict::Known(Known::Superseded),
        })
    }

    /// Whether somebody who announces a repository here is served as many as one may be.
    async fn repository_quota_reached(&self, event: &Event) -> Result<bool, StoreError> {
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
        Ok(policy.repository_quota_reached(&event.pubkey, &announcements))
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

/// Whether an event of this kind may have to wait for git data.
fn waits_for_git(event: &Event) -> bool {
    REPOSITORY_KINDS.contains(&event.kind)
}
