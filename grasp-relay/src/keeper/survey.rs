//! How things stand under one identifier, read under the lock of its family.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::TryStreamExt;
use grasp_core::nip34::{Proposal, State};
use grasp_core::{Identifier, Oid, kinds};
use grasp_purgatory::git::FamilyGuard;
use grasp_purgatory::{Input, Purgatory, Survey};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::{Filter, SingleLetterTag};

use super::git::KeepError;
use super::lane::Hands;

/// Pull requests of one identifier that are carried to new views; older ones stay where they are.
const MOST_PROPOSALS: usize = 1_000;

/// What purgatory wants to see.
pub(super) struct SurveyRequest {
    identifier: Identifier,
    /// Identifiers whose announcements matter.
    scope: BTreeSet<Identifier>,
    /// The tips of each event that could be complete.
    wanted: BTreeMap<EventId, Vec<Oid>>,
    /// What waits, and might have been deleted meanwhile.
    kept: Vec<Arc<Event>>,
}

impl SurveyRequest {
    pub(super) fn of(purgatory: &Purgatory, identifier: Identifier) -> Self {
        let states = purgatory.candidates(&identifier).into_iter();
        let states = states.filter_map(|c| Some((c.state.version.id, c.state.tips()?)));
        let proposals = purgatory.proposals(&identifier).into_iter();
        let proposals = proposals.map(|kept| (kept.id, vec![kept.tip]));
        let wanted = states.chain(proposals).collect();
        Self {
            scope: purgatory.scope(&identifier),
            wanted,
            kept: purgatory.kept(&identifier),
            identifier,
        }
    }
}

impl Hands {
    pub(super) async fn survey(&self, request: SurveyRequest) -> Input {
        let identifier = request.identifier.clone();
        match self.try_survey(request).await {
            Ok(survey) => Input::Surveyed { identifier, survey },
            Err(error) => {
                tracing::error!(%error, %identifier, "could not look at store and git");
                Input::SurveyFailed { identifier }
            }
        }
    }

    async fn try_survey(&self, mut request: SurveyRequest) -> Result<Survey, KeepError> {
        let identifier = request.identifier.clone();
        let mut guard = self.parts.repos.lock(&identifier).await?;
        let announcements = self.events(of_kind(kinds::ANNOUNCEMENT, &request.scope)).await?;
        let states = self.events(of_kind(kinds::STATE, [&identifier])).await?;
        let proposals = self.proposals(&identifier, &announcements).await?;
        request.wanted.extend(tips(&states, &proposals));
        let mut views = BTreeMap::new();
        for owner in guard.owners().await? {
            let refs = guard.refs(&owner).await?;
            views.insert(grasp_core::RepoId::new(owner, identifier.clone()), refs);
        }
        let complete = complete(&mut guard, request.wanted).await?;
        let refused = self.refused(request.kept).await?;
        Ok(Survey { announcements, states, proposals, views, complete, refused })
    }

    /// Those of the waiting events that the event store would not take any more.
    async fn refused(&self, kept: Vec<Arc<Event>>) -> Result<BTreeSet<EventId>, KeepError> {
        let now = self.parts.clock.now().unix;
        let mut refused = BTreeSet::new();
        for event in kept {
            let id = event.id;
            if self.parts.store.refusal(event, now).await?.is_some() {
                refused.insert(id);
            }
        }
        Ok(refused)
    }

    /// Stored pull requests that are addressed to a repository of this name.
    async fn proposals(
        &self,
        identifier: &Identifier,
        announcements: &[Arc<Event>],
    ) -> Result<Vec<Arc<Event>>, KeepError> {
        let coordinates: Vec<String> = announcements
            .iter()
            .map(|event| format!("30617:{}:{identifier}", event.pubkey))
            .collect();
        let filter = Filter::new()
            .kinds([kinds::PULL_REQUEST, kinds::PULL_REQUEST_UPDATE])
            .custom_tags(SingleLetterTag::LOWERCASE_A, coordinates)
            .limit(MOST_PROPOSALS);
        self.events(filter).await
    }

    pub(super) async fn events(&self, filter: Filter) -> Result<Vec<Arc<Event>>, KeepError> {
        let mut found = self.parts.store.query(vec![filter], self.parts.clock.now().unix);
        let mut events = Vec::new();
        while let Some(chunk) = found.try_next().await? {
            for stored in chunk {
                events.push(Arc::new(stored.event()?));
            }
        }
        Ok(events)
    }
}

fn of_kind<'a>(kind: Kind, identifiers: impl IntoIterator<Item = &'a Identifier>) -> Filter {
    let identifiers = identifiers.into_iter().map(|identifier| identifier.as_str().to_owned());
    Filter::new().kind(kind).identifiers(identifiers)
}

/// The tips of stored events.
fn tips<'a>(
    states: &'a [Arc<Event>],
    proposals: &'a [Arc<Event>],
) -> impl Iterator<Item = (EventId, Vec<Oid>)> + 'a {
    let of_state = |event: &Arc<Event>| Some((event.id, State::parse(event).ok()?.tips()?));
    let of_proposal =
        |event: &Arc<Event>| Some((event.id, vec![Proposal::parse(event).ok()?.tip()?]));
    states.iter().filter_map(of_state).chain(proposals.iter().filter_map(of_proposal))
}

/// Those events whose objects are all here, with their whole history.
async fn complete(
    guard: &mut FamilyGuard,
    wanted: BTreeMap<EventId, Vec<Oid>>,
) -> Result<BTreeSet<EventId>, KeepError> {
    let mut complete = BTreeSet::new();
    for (id, tips) in wanted {
        let tips: BTreeSet<Oid> = tips.into_iter().collect();
        if guard.check(&tips).await?.is_complete() {
            complete.insert(id);
        }
    }
    Ok(complete)
}
