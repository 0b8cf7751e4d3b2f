//! Surveys: a reading of store and git about one identifier, under the lock of its family.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::maintainers::{MaintainerSets, maintainer_lists};
use grasp_core::nip34::{Announcement, State};
use grasp_core::resources::Claimant;
use grasp_core::{Identifier, Oid, RefName, RepoId, kinds};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::queue::Executor;
use crate::database::View;
use crate::git::{Completeness, FamilyGuard, GitError};
use crate::{HeldProposal, Input, MAX_OLDEST, Purgatory, Survey};

/// Served pull requests of one identifier, the latest, that are copied to new views; older ones stay where they are.
const MAX_PROPOSALS: usize = 1_000;

/// Authors who have no state stored and may have had one before, looked up in one survey.
const MAX_AUTHORS: usize = 64;

/// Other families that one survey checks for the tips of pull requests. Each has surveys of its own, which find what is
/// complete there.
pub(super) const MAX_OTHER_FAMILIES: usize = 16;

/// Events per query of the store.
const EVENTS_AT_ONCE: usize = 100;

/// Events and the tips that each needs.
type Wanted = BTreeMap<EventId, BTreeSet<Oid>>;

/// The parts of purgatory's state that a survey needs.
pub(super) struct SurveyRequest {
    identifier: Identifier,
    /// Identifiers whose announcements matter.
    scope: BTreeSet<Identifier>,
    /// The states that could be complete.
    states: Vec<Arc<State>>,
    /// Pull requests that could be complete, here or in another family.
    proposals: Vec<HeldProposal>,
    /// Held events, which might have been deleted meanwhile.
    kept: Vec<Arc<Event>>,
}

impl SurveyRequest {
    pub(super) fn of(purgatory: &Purgatory, identifier: Identifier) -> Self {
        let states = purgatory.candidates(&identifier).into_iter();
        Self {
            scope: purgatory.scope(&identifier),
            states: states.map(|candidate| candidate.state).collect(),
            proposals: purgatory.proposals(&identifier),
            kept: purgatory.held_events(&identifier),
            identifier,
        }
    }
}

impl Executor {
    pub(super) async fn survey(&self, request: SurveyRequest) -> Input {
        let identifier = request.identifier.clone();
        if self.damage.is_damaged(&identifier) {
            // A push or a fetch may have brought what is missing.
            for store in self.parts.stores() {
                let checked = self.damage.inspect(store, &identifier, true).await;
                if let Err(error) = checked {
                    tracing::warn!(%error, %identifier, "could not check a repository for missing objects");
                }
            }
        }
        match self.try_survey(request).await {
            Ok(survey) => Input::Surveyed { identifier, survey },
            Err(error) => {
                tracing::error!(%error, %identifier, "could not survey store and git");
                Input::SurveyFailed { identifier }
            }
        }
    }

    /// Returns whether nothing can be released or served under an identifier: it has no git data, and only pull requests
    /// are held for it. They name other repositories too, and are surveyed there. One event may name many such.
    async fn is_vacant(&self, request: &SurveyRequest) -> Result<bool, GitError> {
        let is_ruled =
            |event: &Arc<Event>| [kinds::ANNOUNCEMENT, kinds::STATE].contains(&event.kind);
        if request.kept.is_empty() || request.kept.iter().any(is_ruled) {
            return Ok(false);
        }
        for store in self.parts.stores() {
            if !store.existing(BTreeSet::from([request.identifier.clone()])).await?.is_empty() {
                return Ok(false);
            }
        }
        // Its git data may have been lost.
        let announced = vec![of_kind(kinds::ANNOUNCEMENT, [&request.identifier])];
        Ok(!self.parts.relay.exists(announced).await?.contains(&true))
    }

    async fn try_survey(&self, request: SurveyRequest) -> Result<Survey, GitError> {
        if self.is_vacant(&request).await? {
            return Ok(Survey { is_vacant: true, ..Survey::default() });
        }
        let SurveyRequest { identifier, scope, mut states, proposals: kept_proposals, kept } =
            request;
        // An event may name thousands of repositories that are not here; only existing ones are read.
        let mut scope = self.parts.repos.existing(scope).await?;
        scope.insert(identifier.clone());
        let mut guard = self.parts.repos.lock(&identifier).await?;
        // Only while reading: a survey that waits for a lock or walks a history must not delay others.
        let reading = self.readers.acquire().await;
        let announcements = self.events(of_kind(kinds::ANNOUNCEMENT, &scope)).await?;
        let stored = self.events(of_kind(kinds::STATE, [&identifier])).await?;
        let proposals = self.proposals(&identifier, &announcements).await?;
        let views = guard.row().await?.views;
        let oldest = oldest(&identifier, &views, &announcements);
        let views = views
            .into_iter()
            .map(|(owner, view)| (RepoId::new(owner, identifier.clone()), view.refs.tips()));
        let views: BTreeMap<_, _> = views.collect();
        let previous = self.previous(&identifier, &announcements, &stored).await?;
        states.extend(previous.iter().filter_map(|event| State::parse(event).ok()).map(Arc::new));
        let tips_of_states = states.iter().filter_map(|state| tips(state));
        let wanted: Wanted = tips_of_states.chain(tips_by_event(&kept_proposals)).collect();
        drop(reading);
        let (mut complete, missing) = complete(&mut guard, &wanted).await?;
        let is_incomplete = |state: &&Arc<State>| !complete.contains(&state.version.id);
        let lacking = states.iter().filter(is_incomplete).filter_map(|state| {
            let tips: BTreeSet<_> = tips(state)?.1.intersection(&missing).copied().collect();
            Some((state.repo.owner, tips))
        });
        let known = announcements.iter().chain(&kept);
        if self.restore(&mut guard, &identifier, lacking.collect(), known).await? {
            (complete, _) = self::complete(&mut guard, &wanted).await?;
        }
        // One lock at a time: the survey of the other family may wait for this one.
        drop(guard);
        complete.extend(self.complete_elsewhere(&identifier, kept_proposals, &complete).await?);
        let strays = self.strays(&identifier, &views, &proposals).await?;
        let refused = self.refused(kept).await?;
        Ok(Survey {
            announcements,
            states: stored,
            previous,
            proposals,
            views,
            oldest,
            strays,
            complete,
            is_vacant: false,
            refused,
        })
    }

    /// Brings back retired objects for states that are complete with them. `lacking` are their authors and missing tips,
    /// each of which must have been retired from a repository that the author is a maintainer of. Returns whether there
    /// were some.
    async fn restore(
        &self,
        guard: &mut FamilyGuard,
        identifier: &Identifier,
        lacking: Vec<(PublicKey, BTreeSet<Oid>)>,
        known: impl Iterator<Item = &Arc<Event>>,
    ) -> Result<bool, GitError> {
        let missing: BTreeSet<Oid> = lacking.iter().flat_map(|(_, tips)| tips).copied().collect();
        if missing.is_empty() {
            return Ok(false);
        }
        let retired = guard.retired_refs().await?.into_iter();
        let retired = retired.filter(|retired| missing.contains(&retired.tip));
        let mut owners: BTreeMap<PublicKey, BTreeSet<Oid>> = BTreeMap::new();
        retired.for_each(|retired| {
            owners.entry(retired.owner).or_default().insert(retired.tip);
        });
        if owners.is_empty() {
            return Ok(false);
        }
        let announcements: Vec<_> =
            known.filter_map(|event| Announcement::parse(event).ok()).collect();
        let of_name = announcements.iter().filter(|it| it.repo.identifier == *identifier);
        let lists = maintainer_lists(of_name);
        let sets = MaintainerSets::new(self.parts.policy.model, &lists);
        let authors: BTreeSet<PublicKey> = lacking.iter().map(|(author, _)| *author).collect();
        let mut allowed: BTreeMap<PublicKey, BTreeSet<Oid>> = BTreeMap::new();
        for (owner, tips) in owners {
            let maintainers = &sets.of(&owner) & &authors;
            if !maintainers.is_empty() && !self.has_vanished(&owner).await? {
                maintainers.iter().for_each(|key| allowed.entry(*key).or_default().extend(&tips));
            }
        }
        let may_have = |(author, tips): &(PublicKey, BTreeSet<Oid>)| {
            allowed.get(author).is_some_and(|allowed| tips.is_subset(allowed))
        };
        let wanted = lacking.into_iter().filter(may_have).flat_map(|(_, tips)| tips);
        let wanted: BTreeSet<Oid> = wanted.collect();
        let packs = guard.row().await?.packs.into_iter();
        let attic: u64 = packs.filter(|pack| pack.is_attic).map(|pack| pack.bytes).sum();
        let claimant = Claimant::default();
        let room = self.disk.family_room(&self.parts.repos, identifier, &claimant).await?;
        if wanted.is_empty() || attic > room {
            return Ok(false);
        }
        guard.restore(wanted).await
    }

    /// Returns the pull requests that have a ref in a view or a contributor's repository and are not stored; those of
    /// `found` are known to be.
    async fn strays(
        &self,
        identifier: &Identifier,
        views: &BTreeMap<RepoId, BTreeMap<RefName, Oid>>,
        found: &[Arc<Event>],
    ) -> Result<BTreeSet<EventId>, GitError> {
        let mut shown = self.contributions(identifier).await?;
        shown.extend(views.values().flat_map(BTreeMap::keys).filter_map(RefName::event));
        found.iter().for_each(|event| _ = shown.remove(&event.id));
        self.unstored(shown).await
    }

    /// Retains the events that are not stored.
    async fn unstored(&self, ids: BTreeSet<EventId>) -> Result<BTreeSet<EventId>, GitError> {
        if ids.is_empty() {
            return Ok(ids);
        }
        let questions = ids.iter().map(|id| Filter::new().id(*id)).collect();
        let stored = self.parts.relay.exists(questions).await?;
        Ok(ids.into_iter().zip(stored).filter(|(_, stored)| !stored).map(|(id, _)| id).collect())
    }

    /// Returns the pull requests that are complete in the family of another identifier that they are addressed to.
    async fn complete_elsewhere(
        &self,
        identifier: &Identifier,
        mut proposals: Vec<HeldProposal>,
        here: &BTreeSet<EventId>,
    ) -> Result<BTreeSet<EventId>, GitError> {
        proposals.retain(|proposal| !here.contains(&proposal.id));
        let families = proposals.iter().flat_map(|proposal| &proposal.families);
        let others = families.filter(|family| *family != identifier).cloned().collect();
        let others = self.parts.repos.existing(others).await?;
        let mut found = BTreeSet::new();
        for family in others.into_iter().take(MAX_OTHER_FAMILIES) {
            let there = proposals.iter().filter(|proposal| proposal.families.contains(&family));
            let mut guard = self.parts.repos.lock(&family).await?;
            found.extend(complete(&mut guard, &tips_by_event(there).collect()).await?.0);
        }
        Ok(found)
    }

    /// Returns the held events that the store would refuse now.
    async fn refused(&self, kept: Vec<Arc<Event>>) -> Result<BTreeSet<EventId>, GitError> {
        let mut refused = BTreeSet::new();
        for some in kept.chunks(EVENTS_AT_ONCE) {
            refused.extend(self.parts.relay.refused(some.to_vec()).await?);
        }
        Ok(refused)
    }

    /// Returns the states that were served before ones that their authors have deleted.
    async fn previous(
        &self,
        identifier: &Identifier,
        announcements: &[Arc<Event>],
        stored: &[Arc<Event>],
    ) -> Result<Vec<Arc<Event>>, GitError> {
        let announcements = announcements.iter().filter_map(|e| Announcement::parse(e).ok());
        let of_name = announcements.filter(|a| a.repo.identifier == *identifier);
        let mut authors: BTreeSet<PublicKey> = BTreeSet::new();
        of_name.for_each(|a| {
            authors.extend(a.maintainer_list.listed.iter().copied().chain([a.repo.owner]))
        });
        stored.iter().for_each(|state| _ = authors.remove(&state.pubkey));
        let mut previous = Vec::new();
        for author in authors.into_iter().take(MAX_AUTHORS) {
            let coordinate = Coordinate::new(kinds::STATE, author).identifier(identifier.as_str());
            previous.extend(self.parts.relay.previous(coordinate).await?.map(Arc::new));
        }
        Ok(previous)
    }

    /// Returns the stored pull requests that are addressed to a repository of this identifier.
    async fn proposals(
        &self,
        identifier: &Identifier,
        announcements: &[Arc<Event>],
    ) -> Result<Vec<Arc<Event>>, GitError> {
        let repo = |event: &Arc<Event>| RepoId::new(event.pubkey, identifier.clone());
        self.events(addressed_to(announcements.iter().map(repo))).await
    }

    pub(super) async fn events(&self, filter: Filter) -> Result<Vec<Arc<Event>>, GitError> {
        Ok(self.parts.relay.events(filter).await?)
    }
}

fn of_kind<'a>(kind: Kind, identifiers: impl IntoIterator<Item = &'a Identifier>) -> Filter {
    let identifiers = identifiers.into_iter().map(|identifier| identifier.as_str().to_owned());
    Filter::new().kind(kind).identifiers(identifiers)
}

/// Returns the oldest views of served announcements.
fn oldest(
    identifier: &Identifier,
    views: &BTreeMap<PublicKey, View>,
    announcements: &[Arc<Event>],
) -> BTreeSet<RepoId> {
    let is_own = |event: &&Arc<Event>| {
        event.tags.identifier().is_some_and(|name| name == identifier.as_str())
    };
    let owners: BTreeSet<_> =
        announcements.iter().filter(is_own).map(|event| event.pubkey).collect();
    let served = views.iter().filter(|(owner, _)| owners.contains(owner));
    let mut by_age: Vec<_> = served.map(|(owner, view)| (view.number, *owner)).collect();
    by_age.sort();
    let oldest = by_age.into_iter().take(MAX_OLDEST);
    oldest.map(|(_, owner)| RepoId::new(owner, identifier.clone())).collect()
}

/// Returns a filter for the latest pull requests that are addressed to one of these repositories.
pub(super) fn addressed_to(repos: impl Iterator<Item = RepoId>) -> Filter {
    Filter::new()
        .kinds([kinds::PULL_REQUEST, kinds::PULL_REQUEST_UPDATE])
        .custom_tags(SingleLetterTag::LOWERCASE_A, repos.map(|repo| repo.to_string()))
        .limit(MAX_PROPOSALS)
}

/// Returns the tips that a state needs; `None` if it can never be complete.
fn tips(state: &State) -> Option<(EventId, BTreeSet<Oid>)> {
    Some((state.version.id, state.tips()?.into_iter().collect()))
}

fn tips_by_event<'a>(
    proposals: impl IntoIterator<Item = &'a HeldProposal>,
) -> impl Iterator<Item = (EventId, BTreeSet<Oid>)> {
    proposals.into_iter().map(|proposal| (proposal.id, BTreeSet::from([proposal.tip])))
}

/// Returns the events whose objects are all here, with their whole history, and the tips that are not here.
async fn complete(
    guard: &mut FamilyGuard,
    wanted: &Wanted,
) -> Result<(BTreeSet<EventId>, BTreeSet<Oid>), GitError> {
    let all: BTreeSet<Oid> = wanted.values().flatten().copied().collect();
    let Completeness { missing, broken } = guard.check(&all).await?;
    let mut complete = BTreeSet::new();
    for (id, tips) in wanted.iter().filter(|(_, tips)| tips.is_disjoint(&missing)) {
        // A check of many tips stops at the first broken one; a check of this event alone is exact.
        if tips.is_disjoint(&broken) || guard.check(tips).await?.is_complete() {
            complete.insert(*id);
        }
    }
    Ok((complete, missing))
}
