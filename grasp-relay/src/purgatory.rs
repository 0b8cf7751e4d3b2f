//! Purgatory and the rest of the relay, as they use each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use futures_util::future::BoxFuture;
use grasp_core::admission::{Hold, Origin, Outcome, Policy, Rejection, Verdict};
use grasp_core::nip34::Announcement;
use grasp_core::{Now, RepoId, Version, kinds};
use grasp_purgatory::database::DatabaseFuture;
use grasp_purgatory::driver::{LocalRelay, PurgatoryDriver, Unavailable};
use grasp_purgatory::git::GitError;
use grasp_purgatory::{HoldOutcome, Input, Purgatory};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use crate::clock::Clock;
use crate::ingest::{GitBackend, GitFacts};
use crate::nostr::Hub;
use crate::policy::LivePolicy;
use crate::private::Members;
use crate::store::{self, EventStore, REPOSITORY_KINDS, StoreError, failure};

/// The served events of this relay, for the driver of purgatory.
pub struct ServedEvents {
    /// The store of the events.
    pub store: Arc<dyn EventStore>,
    /// Publishes released events.
    pub hub: Hub,
    /// The clock of the server.
    pub clock: Clock,
    /// The members, if the service is private (GRASP-08).
    pub members: Option<Members>,
    /// The settings of admission.
    pub policy: LivePolicy,
}

impl ServedEvents {
    /// Returns whether an event may not be released because its author is no member any more.
    fn is_of_stranger(&self, event: &Event) -> bool {
        let members = self.members.as_ref();
        event.kind == kinds::ANNOUNCEMENT
            && members.is_some_and(|members| !members.contains(&event.pubkey))
    }
}

impl LocalRelay for ServedEvents {
    fn now(&self) -> Now {
        self.clock.now()
    }

    fn events(&self, filter: Filter) -> DatabaseFuture<'_, Vec<Arc<Event>>> {
        Box::pin(async move {
            let found = store::events(&*self.store, filter, self.now().unix).await?;
            Ok(found.into_iter().map(Arc::new).collect())
        })
    }

    fn count(&self, filter: Filter) -> DatabaseFuture<'_, u64> {
        Box::pin(async move { Ok(self.store.count(vec![filter], self.now().unix).await?) })
    }

    fn exists(&self, filters: Vec<Filter>) -> DatabaseFuture<'_, Vec<bool>> {
        let questions = filters.into_iter().map(|filter| vec![filter]).collect();
        Box::pin(async move { Ok(self.store.exists(questions, self.now().unix).await?) })
    }

    fn hosted(&self, policy: &Policy) -> DatabaseFuture<'_, BTreeSet<RepoId>> {
        let policy = policy.clone();
        Box::pin(async move {
            let mut repos = BTreeSet::new();
            let announcements = vec![Filter::new().kind(kinds::ANNOUNCEMENT)];
            let mut found = self.store.query(announcements, self.now().unix);
            while let Some(chunk) = found.try_next().await? {
                for stored in chunk {
                    let hosted = Announcement::parse(&stored.event()?).ok();
                    let hosted = hosted.filter(|announcement| policy.hosts(announcement));
                    repos.extend(hosted.map(|announcement| announcement.repo));
                }
            }
            Ok(repos)
        })
    }

    fn heads(&self, coordinates: Vec<Coordinate>) -> DatabaseFuture<'_, Vec<Arc<Event>>> {
        Box::pin(async move {
            let found = self.store.heads(coordinates, self.now().unix).await?;
            Ok(found.into_iter().map(Arc::new).collect())
        })
    }

    fn listing(&self, repo: RepoId, most: usize) -> DatabaseFuture<'_, Vec<PublicKey>> {
        Box::pin(async move { Ok(self.store.listing(repo, most).await?) })
    }

    fn keeps(&self, coordinate: Coordinate) -> DatabaseFuture<'_, bool> {
        Box::pin(async move { Ok(self.store.keeps(coordinate).await?) })
    }

    fn refused(&self, events: Vec<Arc<Event>>) -> DatabaseFuture<'_, BTreeSet<EventId>> {
        Box::pin(async move {
            let refusals = self.store.refusals(events.clone(), self.now().unix).await?;
            let refused = events
                .iter()
                .zip(refusals)
                .filter(|(event, refusal)| refusal.is_some() || self.is_of_stranger(event));
            Ok(refused.map(|(event, _)| event.id).collect())
        })
    }

    fn previous(&self, coordinate: Coordinate) -> DatabaseFuture<'_, Option<Event>> {
        Box::pin(async move {
            let policy = self.policy.now();
            if policy.bans.authors.contains(&coordinate.public_key) {
                return Ok(None);
            }
            let mut versions = self.store.superseded(coordinate).await?;
            versions.retain(|event| !policy.bans.events.contains(&event.id));
            Ok(versions.into_iter().next())
        })
    }

    fn publish(&self, event: Arc<Event>) -> BoxFuture<'_, ()> {
        Box::pin(self.hub.publish_stored(event))
    }

    fn removed(&self, events: BTreeSet<EventId>) -> BoxFuture<'_, ()> {
        Box::pin(self.hub.publish_removed(events))
    }
}

impl From<Unavailable> for StoreError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Stopping => Self::Closed,
            Unavailable::CannotWrite => Self::Journal(unavailable),
        }
    }
}

impl GitBackend for PurgatoryDriver {
    fn facts(
        &self,
        event: Arc<Event>,
        repo: Option<RepoId>,
    ) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(async move {
            if !REPOSITORY_KINDS.contains(&event.kind) {
                return Ok(GitFacts::default());
            }
            let mut facts = GitFacts {
                is_repository_quota_reached: self.repository_quota_reached(&event).await?,
                ..GitFacts::default()
            };
            if let Some(repo) = repo {
                if event.kind == kinds::STATE {
                    facts.maintained = self.maintained_by(&repo).await.map_err(git_failure)?;
                }
                // For a state it only decides on the text of a refusal.
                if facts.maintained.is_empty() {
                    let announced = Announcement::parse(&event).map(|it| it.maintainer_list.listed);
                    let listed = announced.unwrap_or_default();
                    facts.is_listed = self.is_listed(&repo, &listed).await.map_err(git_failure)?;
                }
                facts.announcements = self.announcements(&repo).await.map_err(git_failure)?;
            }
            let question = move |purgatory: &Purgatory| {
                (purgatory.holds(&event.id), !purgatory.has_room_for(&event))
            };
            (facts.is_held, facts.is_over_quota) = self.ask(question).await?;
            Ok(facts)
        })
    }

    fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> BoxFuture<'_, Result<Verdict, StoreError>> {
        Box::pin(async move {
            let id = event.id;
            let is_proposal = hold == Hold::Proposal;
            Ok(match Self::hold(self, event, hold, origin).await? {
                HoldOutcome::Stored => {
                    if is_proposal {
                        self.settle_proposals(BTreeSet::from([id])).await;
                    }
                    Verdict::Done(Outcome::Stored)
                }
                HoldOutcome::Held => Verdict::Done(Outcome::Held),
                HoldOutcome::Superseded => Verdict::Done(Outcome::Superseded),
                HoldOutcome::Full => Rejection::Quota.into(),
                HoldOutcome::Unreadable => Verdict::Store { is_related: false },
            })
        })
    }

    fn stored(&self, event: Arc<Event>) -> BoxFuture<'_, ()> {
        Box::pin(Self::stored(self, event))
    }

    fn is_maintainer(
        &self,
        repo: RepoId,
        key: PublicKey,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let (_, maintainers) = self.maintainers(&repo).await.map_err(git_failure)?;
            Ok(maintainers.contains(&key))
        })
    }

    fn affected(&self, repos: BTreeSet<RepoId>) -> BoxFuture<'_, ()> {
        Box::pin(Self::affected(self, repos))
    }

    fn delisted(&self, repo: RepoId, by: Version) -> BoxFuture<'_, ()> {
        Box::pin(self.tell(Input::Delisted { repo, by }))
    }
}

/// Returns the failure of a reading of purgatory and store.
fn git_failure(error: GitError) -> StoreError {
    match error {
        GitError::Stopping => StoreError::Closed,
        GitError::Database(error) => error.into(),
        error => failure(error),
    }
}
