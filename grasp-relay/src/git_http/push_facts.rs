//! The facts that a push is judged by, and the judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Presence;
use grasp_core::nip34::{Proposal, State};
use grasp_core::push::{
    Candidate, KnownProposal, PushRequest, PushVerdict, PushView, RefRefusal, authorise,
    authorise_contribution,
};
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId, kinds};
use grasp_purgatory::Purgatory;
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::{GitHttp, HttpError, RepoRequest};

/// Events that are read from the store at once.
const IDS_PER_QUERY: usize = 500;

/// Everything that a judgement depends on but the refs, which are read under the lock.
pub(super) enum PushFacts {
    /// Of a hosted repository.
    Hosted {
        maintainers: BTreeSet<PublicKey>,
        candidates: Vec<Candidate>,
        proposals: BTreeMap<EventId, KnownProposal>,
    },
    /// Of an archived repository, which takes no pushes.
    Archived,
    /// Of a repository that the operator took out of service since the push began.
    Withheld,
    /// Of a contributor's repository.
    Contributor(BTreeMap<EventId, KnownProposal>),
}

impl PushFacts {
    pub(super) fn judge(
        &self,
        request: &PushRequest,
        refs: &BTreeMap<RefName, Oid>,
    ) -> PushVerdict {
        match self {
            Self::Hosted {
                maintainers,
                candidates,
                proposals,
            } => authorise(
                request,
                &PushView {
                    refs,
                    maintainers,
                    candidates,
                    proposals,
                },
            ),
            Self::Archived => PushVerdict::refused(request, &RefRefusal::Archived),
            Self::Withheld => PushVerdict::refused(request, &RefRefusal::Withheld),
            Self::Contributor(known) => authorise_contribution(request, refs, known),
        }
    }

    /// Returns whether the event of a pull request has not been received yet.
    pub(super) fn is_unknown(&self, id: &EventId) -> bool {
        let proposals = match self {
            Self::Hosted { proposals, .. } | Self::Contributor(proposals) => proposals,
            Self::Archived | Self::Withheld => return false,
        };
        matches!(proposals.get(id), Some(KnownProposal::Unknown))
    }

    /// Returns whether a key maintains the repository.
    pub(super) fn is_maintainer(&self, key: &PublicKey) -> bool {
        matches!(self, Self::Hosted { maintainers, .. } if maintainers.contains(key))
    }

    /// Returns the author of a state.
    pub(super) fn author_of(&self, state: Option<EventId>) -> Option<PublicKey> {
        let Self::Hosted { candidates, .. } = self else {
            return None;
        };
        let found = candidates
            .iter()
            .find(|candidate| Some(candidate.state.version.id) == state);
        found.map(|candidate| candidate.state.repo.owner)
    }
}

impl GitHttp {
    /// Reads the facts about a push from purgatory and the store.
    pub(super) async fn facts(
        &self,
        target: &RepoRequest,
        request: &PushRequest,
    ) -> Result<PushFacts, HttpError> {
        if self.is_withheld(&self.host.policy.now(), target) {
            return Ok(PushFacts::Withheld);
        }
        match target.endpoint {
            Endpoint::Repository => self.hosted_facts(&target.repo, request).await,
            Endpoint::PullRequests => {
                let policy = self.host.policy.now();
                let is_ours =
                    |proposal: &Proposal| policy.own_urls(proposal).any(|own| own == target.repo);
                Ok(PushFacts::Contributor(
                    self.known_proposals(request, is_ours).await,
                ))
            }
        }
    }

    async fn hosted_facts(
        &self,
        repo: &RepoId,
        request: &PushRequest,
    ) -> Result<PushFacts, HttpError> {
        let purgatory = self.purgatory()?;
        let (own, maintainers) = purgatory.maintainers(repo).await?;
        let policy = self.host.policy.now();
        if own.is_some_and(|own| policy.archives(&own.announcement)) {
            return Ok(PushFacts::Archived);
        }
        let asked = repo.clone();
        let keys = maintainers.clone();
        let held_candidates = purgatory.ask(move |p| p.candidates(&asked, &keys)).await?;
        let states = maintainers
            .iter()
            .map(|key| Coordinate::new(kinds::STATE, *key).identifier(repo.identifier.as_str()));
        let now = self.host.clock.now().unix;
        let served = self.host.store.heads(states.collect(), now).await?;
        let served = served.iter().filter_map(|event| State::parse(event).ok());
        let served = served.map(|state| Candidate {
            state: Arc::new(state),
            presence: Presence::Stored,
        });
        let candidates = served.chain(held_candidates).collect();
        let is_ours = |proposal: &Proposal| {
            let is_maintainers = maintainers.contains(&proposal.author);
            let is_addressed = |named: &RepoId| {
                let is_ours = is_maintainers || maintainers.contains(&named.owner);
                named.identifier == repo.identifier && is_ours
            };
            proposal.repos.iter().any(is_addressed)
        };
        let proposals = self.known_proposals(request, is_ours).await;
        Ok(PushFacts::Hosted {
            maintainers,
            candidates,
            proposals,
        })
    }

    /// Returns the authors of those of these events that are stored.
    pub(super) async fn stored(
        &self,
        ids: &BTreeSet<EventId>,
    ) -> Result<BTreeMap<EventId, PublicKey>, HttpError> {
        let (_, stored) = self.look_up(ids).await?;
        let stored = stored.into_iter();
        Ok(stored.map(|(id, event)| (id, event.pubkey)).collect())
    }

    /// Looks up each event that a push names; events that are no pull requests of this kind are foreign. A failed lookup
    /// permits nothing.
    async fn known_proposals(
        &self,
        request: &PushRequest,
        is_ours: impl Fn(&Proposal) -> bool,
    ) -> BTreeMap<EventId, KnownProposal> {
        let ids = events_of(request);
        let found = self
            .look_up(&ids)
            .await
            .inspect_err(|error| tracing::error!(%error, "could not look up the events of a push"));
        let Ok((held, stored)) = found else {
            return ids
                .into_iter()
                .map(|id| (id, KnownProposal::Unavailable))
                .collect();
        };
        let known = |id| {
            let (presence, proposal) = match (held.get(&id), stored.get(&id)) {
                (Some(held), _) => (Presence::Held, Some(held.clone())),
                (None, Some(stored)) => (Presence::Stored, Proposal::parse(stored).ok()),
                (None, None) => return KnownProposal::Unknown,
            };
            let tip = |proposal: Proposal| KnownProposal::Tip(presence, proposal.tip);
            proposal
                .filter(&is_ours)
                .map_or(KnownProposal::Foreign, tip)
        };
        ids.into_iter().map(|id| (id, known(id))).collect()
    }

    /// Returns those of these events that purgatory holds as pull requests, and the other ones that are stored. A push
    /// may name thousands, which take one question to purgatory and a few queries of the store.
    async fn look_up(
        &self,
        ids: &BTreeSet<EventId>,
    ) -> Result<(BTreeMap<EventId, Proposal>, BTreeMap<EventId, Event>), HttpError> {
        if ids.is_empty() {
            return Ok((BTreeMap::new(), BTreeMap::new()));
        }
        let all = ids.clone();
        let waits = move |purgatory: &Purgatory| {
            let held = all
                .into_iter()
                .filter_map(|id| Some((id, purgatory.proposal(&id)?.clone())));
            held.collect::<BTreeMap<_, _>>()
        };
        // Purgatory first: an event that is released meanwhile is found in the store.
        let held = self.purgatory()?.ask(waits).await?;
        let rest: Vec<EventId> = ids
            .iter()
            .filter(|id| !held.contains_key(id))
            .copied()
            .collect();
        let mut stored = BTreeMap::new();
        for some in rest.chunks(IDS_PER_QUERY) {
            let events = self.events(Filter::new().ids(some.iter().copied())).await?;
            stored.extend(events.into_iter().map(|event| (event.id, event)));
        }
        Ok((held, stored))
    }
}

/// Returns the events that the refs of a push belong to.
pub(super) fn events_of(request: &PushRequest) -> BTreeSet<EventId> {
    request
        .commands()
        .iter()
        .filter_map(|command| command.name.event())
        .collect()
}
