//! What must be known of a repository before a push to it can be judged, and the judgement.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::admission::Presence;
use grasp_core::maintainers::maintainer_lists;
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::push::{
    Candidate, Contribution, KnownProposal, PushRequest, PushVerdict, PushView, RefRefusal,
    authorise, authorise_contribution,
};
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId, kinds};
use grasp_purgatory::Purgatory;
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;

use super::{GitHttp, HttpError, Seat};
use crate::store;

/// Events that are looked for with one question to the store.
const IDS_AT_ONCE: usize = 500;

/// Everything that a judgement rests on but the refs, which are read under the lock.
pub(super) enum Grounds {
    /// At a hosted repository.
    Hosted {
        maintainers: BTreeSet<PublicKey>,
        candidates: Vec<Candidate>,
        proposals: BTreeMap<EventId, KnownProposal>,
    },
    /// At a copy that nobody asked us for.
    Archived,
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
            Self::Archived => PushVerdict::refused(request, &RefRefusal::Archived),
            Self::Contributor(known) => authorise_contribution(request, refs, known),
        }
    }

    /// The branch that a state wants HEAD at.
    pub(super) fn head_of(&self, state: Option<EventId>) -> Option<&RefName> {
        self.state(state)?.head.as_ref()
    }

    /// The author of a state.
    pub(super) fn author_of(&self, state: Option<EventId>) -> Option<PublicKey> {
        Some(self.state(state)?.repo.owner)
    }

    fn state(&self, id: Option<EventId>) -> Option<&State> {
        let Self::Hosted { candidates, .. } = self else { return None };
        let found = candidates.iter().find(|candidate| Some(candidate.state.version.id) == id);
        found.map(|candidate| &candidate.state)
    }
}

impl GitHttp {
    /// Gathers what is stored and what is held.
    pub(super) async fn grounds(
        &self,
        seat: &Seat,
        request: &PushRequest,
    ) -> Result<Grounds, HttpError> {
        match seat.endpoint {
            Endpoint::Repository => self.hosted_grounds(&seat.repo, request).await,
            Endpoint::PullRequests => {
                Ok(Grounds::Contributor(self.contributions(seat, request).await))
            }
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
        let now = self.keeper.clock().now().unix;
        let stored = store::announcements(&**self.keeper.store(), [&repo.identifier], now).await?;
        let announcements: Vec<Announcement> = stored
            .into_iter()
            .map(|(announcement, _)| announcement)
            .chain(held_announcements.into_iter().map(|known| known.announcement))
            .collect();
        let policy = self.keeper.policy();
        let own = announcements.iter().filter(|one| one.repo == *repo).max_by_key(|a| a.version);
        if own.is_some_and(|own| policy.archives(own)) {
            return Ok(Grounds::Archived);
        }
        let maintainers = policy.model.maintainers(&repo.owner, &maintainer_lists(&announcements));
        // Others who announced the name may have states of a megabyte each.
        let states = Filter::new()
            .kind(kinds::STATE)
            .authors(maintainers.iter().copied())
            .identifier(repo.identifier.as_str());
        let served = self.events(states).await?;
        let served = served.iter().filter_map(|event| State::parse(event).ok());
        let served = served.map(|state| Candidate { state, presence: Presence::Stored });
        let candidates = served.chain(held_candidates).collect();
        let proposals = self.known_proposals(request).await;
        Ok(Grounds::Hosted { maintainers, candidates, proposals })
    }

    /// What is known of each event that the push names. Failing to find out is no permission.
    async fn known_proposals(&self, request: &PushRequest) -> BTreeMap<EventId, KnownProposal> {
        let ids = events_of(request);
        let Some((held, stored)) = self.look_up(&ids, Purgatory::tip_of).await else {
            return ids.into_iter().map(|id| (id, KnownProposal::Unavailable)).collect();
        };
        let known = |id| match (held.get(&id), stored.get(&id)) {
            (Some(tip), _) => KnownProposal::Tip(*tip),
            // An event that is no pull request names no commit: nothing equals it.
            (None, Some(event)) => KnownProposal::Tip(
                Proposal::parse(event).map_or(Oid::ZERO, |proposal| proposal.tip),
            ),
            (None, None) => KnownProposal::Unknown,
        };
        ids.into_iter().map(|id| (id, known(id))).collect()
    }

    /// The same at a contributor's place.
    async fn contributions(
        &self,
        seat: &Seat,
        request: &PushRequest,
    ) -> BTreeMap<EventId, Contribution> {
        let ids = events_of(request);
        let held = |purgatory: &Purgatory, id: &EventId| purgatory.proposal(id).cloned();
        let Some((held, stored)) = self.look_up(&ids, held).await else {
            return ids.into_iter().map(|id| (id, Contribution::Unavailable)).collect();
        };
        let policy = self.keeper.policy();
        let known = |id| {
            let (presence, proposal) = match (held.get(&id), stored.get(&id)) {
                (Some(held), _) => (Presence::Held, Some(held.clone())),
                (None, Some(stored)) => (Presence::Stored, Proposal::parse(stored).ok()),
                (None, None) => return Contribution::Unknown,
            };
            let ours = |proposal: &Proposal| policy.own_urls(proposal).any(|own| own == seat.repo);
            let known = |proposal: Proposal| Contribution::Ours(presence, proposal.tip);
            proposal.filter(ours).map_or(Contribution::Foreign, known)
        };
        ids.into_iter().map(|id| (id, known(id))).collect()
    }

    /// What waits of these events, as `held` tells it, and what is stored; `None` if that cannot be found out. A push
    /// may name thousands, which take one question to purgatory and a few to the store.
    async fn look_up<T: Send + 'static>(
        &self,
        ids: &BTreeSet<EventId>,
        held: impl Fn(&Purgatory, &EventId) -> Option<T> + Send + 'static,
    ) -> Option<(BTreeMap<EventId, T>, BTreeMap<EventId, Event>)> {
        let found = self.try_look_up(ids, held).await;
        found
            .inspect_err(|error| tracing::error!(%error, "could not look up the events of a push"))
            .ok()
    }

    async fn try_look_up<T: Send + 'static>(
        &self,
        ids: &BTreeSet<EventId>,
        held: impl Fn(&Purgatory, &EventId) -> Option<T> + Send + 'static,
    ) -> Result<(BTreeMap<EventId, T>, BTreeMap<EventId, Event>), HttpError> {
        if ids.is_empty() {
            return Ok((BTreeMap::new(), BTreeMap::new()));
        }
        let all = ids.clone();
        let waits = move |purgatory: &Purgatory| {
            let found = all.into_iter().filter_map(|id| Some((id, held(purgatory, &id)?)));
            found.collect::<BTreeMap<_, _>>()
        };
        // First what waits: what is released meanwhile is found among what is stored.
        let held = self.keeper.ask(waits).await?;
        let rest: Vec<EventId> = ids.iter().filter(|id| !held.contains_key(id)).copied().collect();
        let mut stored = BTreeMap::new();
        for some in rest.chunks(IDS_AT_ONCE) {
            let events = self.events(Filter::new().ids(some.iter().copied())).await?;
            stored.extend(events.into_iter().map(|event| (event.id, event)));
        }
        Ok((held, stored))
    }

    pub(super) async fn events(&self, filter: Filter) -> Result<Vec<Event>, HttpError> {
        let now = self.keeper.clock().now().unix;
        Ok(store::events(&**self.keeper.store(), filter, now).await?)
    }
}

/// The events that the refs of a push belong to.
fn events_of(request: &PushRequest) -> BTreeSet<EventId> {
    request.commands().iter().filter_map(|command| command.name.event()).collect()
}
