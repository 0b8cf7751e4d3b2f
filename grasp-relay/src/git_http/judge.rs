//! What must be known of a repository before a push to it can be judged, and the judgement.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt;
use grasp_core::maintainers::rosters;
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::push::{
    Candidate, Contribution, KnownProposal, PushRequest, PushVerdict, PushView, Standing,
    authorise, authorise_contribution,
};
use grasp_core::service::Door;
use grasp_core::{Oid, RefName, RepoId, kinds};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;

use super::push::event_of;
use super::{GitHttp, HttpError, Seat};

/// Everything that a judgement rests on but the refs, which are read under the lock.
pub(super) enum Grounds {
    /// At a hosted repository.
    Hosted {
        maintainers: BTreeSet<PublicKey>,
        candidates: Vec<Candidate>,
        proposals: BTreeMap<EventId, KnownProposal>,
    },
    /// At a contributor's place.
    Contributor(BTreeMap<EventId, Contribution>),
}

impl Grounds {
    pub(super) fn judge(
        &self,
        request: &PushRequest,
        refs: &BTreeMap<RefName, Oid>,
    ) -> PushVerdict {
        match self {
            Self::Hosted { maintainers, candidates, proposals } => {
                authorise(request, &PushView { refs, maintainers, candidates, proposals })
            }
            Self::Contributor(known) => authorise_contribution(request, refs, known),
        }
    }

    /// The branch that a state wants HEAD at.
    pub(super) fn head_of(&self, state: Option<EventId>) -> Option<&RefName> {
        let Self::Hosted { candidates, .. } = self else { return None };
        let realised = candidates.iter().find(|c| Some(c.state.version.id) == state)?;
        realised.state.head.as_ref()
    }
}

impl GitHttp {
    /// Gathers what is stored and what is held.
    pub(super) async fn grounds(
        &self,
        seat: &Seat,
        request: &PushRequest,
    ) -> Result<Grounds, HttpError> {
        match seat.door {
            Door::Hosted => self.hosted_grounds(&seat.repo, request).await,
            Door::Proposals => Ok(Grounds::Contributor(self.contributions(seat, request).await)),
        }
    }

    async fn hosted_grounds(
        &self,
        repo: &RepoId,
        request: &PushRequest,
    ) -> Result<Grounds, HttpError> {
        let identifier = repo.identifier.clone();
        let (held_announcements, held_candidates) = self
            .keeper
            .ask(move |p| (p.announcements(&identifier), p.candidates(&identifier)))
            .await?;
        let stored = Filter::new()
            .kinds([kinds::ANNOUNCEMENT, kinds::STATE])
            .identifier(repo.identifier.as_str());
        let stored = self.events(stored).await?;
        let announcements: Vec<Announcement> = stored
            .iter()
            .filter_map(|event| Announcement::parse(event).ok())
            .chain(held_announcements.into_iter().map(|known| known.announcement))
            .collect();
        let model = self.keeper.policy().model;
        let maintainers = model.maintainers(&repo.owner, &rosters(&announcements)).confirmed;
        let served = stored.iter().filter_map(|event| State::parse(event).ok());
        let served = served.map(|state| Candidate { state, standing: Standing::Stored });
        let candidates = served.chain(held_candidates).collect();
        let proposals = self.known_proposals(request).await;
        Ok(Grounds::Hosted { maintainers, candidates, proposals })
    }

    /// What is known of each event that the push names. Failing to find out is no permission.
    async fn known_proposals(&self, request: &PushRequest) -> BTreeMap<EventId, KnownProposal> {
        let mut known = BTreeMap::new();
        for id in events_of(request) {
            let found = self.known_proposal(id).await.unwrap_or_else(|error| {
                tracing::error!(%error, "could not look up the event of a push");
                KnownProposal::Unavailable
            });
            known.insert(id, found);
        }
        known
    }

    async fn known_proposal(&self, id: EventId) -> Result<KnownProposal, HttpError> {
        if let Some(tip) = self.keeper.ask(move |purgatory| purgatory.tip_of(&id)).await? {
            return Ok(KnownProposal::Tip(tip));
        }
        let stored = self.events(Filter::new().id(id)).await?;
        Ok(match stored.first() {
            // An event that is no pull request names no commit: nothing equals it.
            Some(event) => {
                let tip = Proposal::parse(event).ok().and_then(|proposal| proposal.tip());
                KnownProposal::Tip(tip.unwrap_or(Oid::ZERO))
            }
            None => KnownProposal::Unknown,
        })
    }

    /// The same at a contributor's place.
    async fn contributions(
        &self,
        seat: &Seat,
        request: &PushRequest,
    ) -> BTreeMap<EventId, Contribution> {
        let mut known = BTreeMap::new();
        for id in events_of(request) {
            let found = self.contribution(&seat.repo, id).await.unwrap_or_else(|error| {
                tracing::error!(%error, "could not look up the event of a push");
                Contribution::Unavailable
            });
            known.insert(id, found);
        }
        known
    }

    async fn contribution(&self, place: &RepoId, id: EventId) -> Result<Contribution, HttpError> {
        let held = self.keeper.ask(move |purgatory| purgatory.proposal(&id).cloned()).await?;
        let (standing, proposal) = match held {
            Some(held) => (Standing::Held, Some(held)),
            None => match self.events(Filter::new().id(id)).await?.first() {
                Some(stored) => (Standing::Stored, Proposal::parse(stored).ok()),
                None => return Ok(Contribution::Unknown),
            },
        };
        let policy = self.keeper.policy();
        let ours = proposal.filter(|proposal| policy.own_places(proposal).any(|own| own == *place));
        Ok(ours.map_or(Contribution::Foreign, |proposal| {
            Contribution::Ours(standing, proposal.tip().unwrap_or(Oid::ZERO))
        }))
    }

    async fn events(&self, filter: Filter) -> Result<Vec<Event>, HttpError> {
        let mut found = self.keeper.store().query(vec![filter], self.keeper.clock().now().unix);
        let mut events = Vec::new();
        while let Some(chunk) = found.try_next().await? {
            for stored in chunk {
                events.push(stored.event()?);
            }
        }
        Ok(events)
    }
}

/// The events that the refs of a push belong to.
fn events_of(request: &PushRequest) -> BTreeSet<EventId> {
    request.commands().iter().filter_map(|command| event_of(&command.name)).collect()
}
