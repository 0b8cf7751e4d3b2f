//! Surveys: a reading of store and git about one repository, under its lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::{MaintainedRepo, Presence};
use grasp_core::nip34::{Proposal, State};
use grasp_core::resources::Claimant;
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId, kinds};
use nostr::event::{Event, EventId};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::queue::Executor;
use super::reach::ReachReader;
use crate::database::{DataSource, RepoRow, View};
use crate::git::{Completeness, CopySource, GitError, RepoGuard};
use crate::{HeldFor, Input, Survey, SurveyedLead, SurveyedView};

/// Served pull requests of one repository, the latest, that get a ref where it is missing; older ones stay as they are.
const MAX_PROPOSALS: usize = 1_000;

/// Maintainers who have no state stored and may have had one before, looked up in one survey.
const MAX_PREVIOUS: usize = 64;

/// Served pull requests whose objects are looked for in other repositories, in one survey.
const MAX_COPIED_PROPOSALS: usize = 16;

/// Events per query of the store.
const EVENTS_AT_ONCE: usize = 100;

/// Events and the tips that each needs.
type HuntedEvents = BTreeMap<EventId, BTreeSet<Oid>>;

impl Executor {
    pub(super) async fn survey(&self, repo: RepoId) -> Input {
        if self.damage.is_damaged(&repo) {
            // A push or a fetch may have brought what is missing.
            for store in self.parts.stores() {
                let checked = self.damage.inspect(store, &repo, true).await;
                if let Err(error) = checked {
                    tracing::warn!(%error, %repo, "could not check a repository for missing objects");
                }
            }
        }
        match self.try_survey(&repo).await {
            Ok(survey) => Input::Surveyed {
                repo,
                survey: Box::new(survey),
            },
            Err(error) => {
                tracing::error!(%error, %repo, "could not survey store and git");
                Input::SurveyFailed { repo }
            }
        }
    }

    async fn try_survey(&self, repo: &RepoId) -> Result<Survey, GitError> {
        // Only while reading: a survey that waits for a lock or walks a history must not delay others.
        let reading = self.readers.acquire().await;
        let mut reader = self.reach_reader(&repo.identifier);
        let reach = reader.reach(&repo.owner).await?;
        if let Some(lead) = reader.shown_by(&repo.owner, &reach) {
            return self.survey_address(&reader, repo, lead).await;
        }
        let maintainers = reach.maintainers;
        if self.is_vacant(&reader, repo).await? {
            return Ok(Survey::default());
        }
        let asked = repo.clone();
        let keys = maintainers.clone();
        let held = self
            .ask(move |purgatory| purgatory.held_for(&asked, &keys))
            .await?;
        let announcements = reader
            .all()
            .filter_map(|known| known.stored.clone())
            .collect();
        drop(reading);
        let mut guard = self.parts.repos.lock(repo).await?;
        let reading = self.readers.acquire().await;
        let row = guard.row().await?;
        let mut survey = Survey {
            announcements,
            ..Survey::default()
        };
        survey.states = self.states(repo, &maintainers).await?;
        survey.peers = self.peers(&mut reader, repo, &maintainers).await?;
        survey.previous = self.previous(repo, &maintainers, &survey).await?;
        survey.proposals = self.events(addressed_to(&maintainers, repo)).await?;
        survey.is_owner_maintainer = maintainers.contains(&repo.owner)
            && reader.maintains_own(&repo.owner).await?
            || self.has_state(repo, &survey)
                && !reader.maintained_by(&repo.owner).await?.is_empty();
        drop(reading);
        survey.complete = self
            .complete(&mut guard, &mut reader, &row, &held, &survey)
            .await?;
        drop(guard);
        survey.strays = self.strays(repo, &row, &survey.proposals).await?;
        survey.refused = self.refused(held.events).await?;
        survey.view = row.view.map(surveyed);
        Ok(survey)
    }

    /// Surveys a repository that is an address of another one: its announcement, and what its owner left.
    async fn survey_address(
        &self,
        reader: &ReachReader<'_>,
        repo: &RepoId,
        lead: PublicKey,
    ) -> Result<Survey, GitError> {
        // Without its refs: each of hundreds of addresses asks.
        let shown = RepoId::new(lead, repo.identifier.clone());
        let shown = self.parts.repos.view_head(&shown).await?;
        let is_shown = shown.is_some_and(|view| view.state.is_some());
        let row = self.parts.repos.row(repo).await?;
        let asked = repo.clone();
        let held = self
            .ask(move |purgatory| purgatory.held_for(&asked, &BTreeSet::new()))
            .await?;
        let mut survey = Survey {
            announcements: reader
                .all()
                .filter_map(|known| known.stored.clone())
                .collect(),
            lead: Some(SurveyedLead {
                owner: lead,
                is_shown,
            }),
            ..Survey::default()
        };
        survey.states = self.states(repo, &BTreeSet::new()).await?;
        if !survey.states.is_empty() {
            let mut reader = self.reach_reader(&repo.identifier);
            survey.is_owner_maintainer = !reader.maintained_by(&repo.owner).await?.is_empty();
        }
        survey.strays = self.strays(repo, &row, &[]).await?;
        survey.refused = self.refused(held.events).await?;
        survey.view = row.view.map(surveyed);
        Ok(survey)
    }

    /// Returns whether a repository is neither announced nor here: a pull request may name many such.
    async fn is_vacant(&self, reader: &ReachReader<'_>, repo: &RepoId) -> Result<bool, GitError> {
        if reader.get(&repo.owner).is_some() {
            return Ok(false);
        }
        for store in self.parts.stores() {
            if store.row(repo).await? != RepoRow::default() {
                return Ok(false);
            }
        }
        let asked = repo.clone();
        if self
            .ask(move |purgatory| purgatory.has_other_than_named(&asked))
            .await?
        {
            return Ok(false);
        }
        let state = self
            .parts
            .relay
            .heads(vec![state_of(repo, &repo.owner)])
            .await?;
        Ok(state.is_empty())
    }

    fn has_state(&self, repo: &RepoId, survey: &Survey) -> bool {
        survey.states.iter().any(|state| state.pubkey == repo.owner)
    }

    /// Returns the stored states of the maintainers and of the owner.
    async fn states(
        &self,
        repo: &RepoId,
        maintainers: &BTreeSet<PublicKey>,
    ) -> Result<Vec<Arc<Event>>, GitError> {
        let mut authors = maintainers.clone();
        authors.insert(repo.owner);
        let coordinates = authors
            .iter()
            .map(|author| state_of(repo, author))
            .collect();
        Ok(self.parts.relay.heads(coordinates).await?)
    }

    /// Returns the other maintainers who have a hosted repository here that they maintain.
    async fn peers(
        &self,
        reader: &mut ReachReader<'_>,
        repo: &RepoId,
        maintainers: &BTreeSet<PublicKey>,
    ) -> Result<BTreeSet<PublicKey>, GitError> {
        let mut peers = BTreeSet::new();
        for key in maintainers {
            if *key != repo.owner && reader.maintains_own(key).await? {
                peers.insert(*key);
            }
        }
        Ok(peers)
    }

    /// Returns the states that were served before ones that their authors have deleted.
    async fn previous(
        &self,
        repo: &RepoId,
        maintainers: &BTreeSet<PublicKey>,
        survey: &Survey,
    ) -> Result<Vec<Arc<Event>>, GitError> {
        let mut authors = maintainers - &survey.peers;
        for state in &survey.states {
            authors.remove(&state.pubkey);
        }
        let mut previous = Vec::new();
        for author in authors.iter().take(MAX_PREVIOUS) {
            let state = self.parts.relay.previous(state_of(repo, author)).await?;
            previous.extend(state.map(Arc::new));
        }
        Ok(previous)
    }

    /// Returns the states and pull requests whose objects are here, after what other repositories here have was copied.
    async fn complete(
        &self,
        guard: &mut RepoGuard,
        reader: &mut ReachReader<'_>,
        row: &RepoRow,
        held: &HeldFor,
        survey: &Survey,
    ) -> Result<BTreeSet<EventId>, GitError> {
        let shown = row.view.as_ref().and_then(|view| view.state);
        let mut states: Vec<Arc<State>> = held.states.clone();
        for event in survey.states.iter().chain(&survey.previous) {
            if let Some(state) = State::parse(event).ok().filter(|_| shown != Some(event.id)) {
                states.push(Arc::new(state));
            }
        }
        let served = survey
            .proposals
            .iter()
            .filter_map(|event| Proposal::parse(event).ok());
        let served: Vec<Proposal> = served.filter(|proposal| lacks_ref(row, proposal)).collect();
        let mut wanted: HuntedEvents = BTreeMap::new();
        for state in &states {
            if let Some(tips) = state.tips() {
                wanted.insert(state.version.id, tips.into_iter().collect());
            }
        }
        for proposal in held.proposals.iter().chain(&served) {
            wanted.insert(proposal.id, BTreeSet::from([proposal.tip]));
        }
        let mut complete = check(guard, &wanted).await?;
        let is_hosted = reader.is_hosted(&guard.repo().owner);
        let mut is_copied = false;
        for state in &states {
            let Some(tips) = wanted.get(&state.version.id) else {
                continue;
            };
            if !is_hosted || complete.contains(&state.version.id) {
                continue;
            }
            if self.copy_state(guard, reader, row, state, tips).await? {
                complete.insert(state.version.id);
                is_copied = true;
            }
        }
        let lacking = served
            .iter()
            .filter(|proposal| !complete.contains(&proposal.id));
        let lacking: Vec<&Proposal> = lacking.filter(|_| is_hosted).collect();
        for proposal in lacking.into_iter().take(MAX_COPIED_PROPOSALS) {
            if self.copy_proposal(guard, proposal).await? {
                complete.insert(proposal.id);
                is_copied = true;
            }
        }
        if is_copied {
            // What was copied for one event may complete another.
            complete = check(guard, &wanted).await?;
        }
        Ok(complete)
    }

    /// Copies the objects of a state from another repository here that its author maintains. Returns whether there is
    /// one.
    async fn copy_state(
        &self,
        guard: &mut RepoGuard,
        reader: &mut ReachReader<'_>,
        row: &RepoRow,
        state: &State,
        tips: &BTreeSet<Oid>,
    ) -> Result<bool, GitError> {
        let author = state.repo.owner;
        let mut sources = reader.maintained_by(&author).await?;
        if let Some(owner) = row.view.as_ref().and_then(|view| view.shows) {
            // What this was an address of may no longer be hosted, and is kept for a while.
            let repo = RepoId::new(owner, guard.repo().identifier.clone());
            sources.push(MaintainedRepo {
                repo,
                presence: Presence::Held,
            });
        }
        for maintained in sources {
            if maintained.repo == *guard.repo() {
                continue;
            }
            if let Some(source) = self
                .parts
                .repos
                .repository(&maintained.repo)
                .source(tips)
                .await?
            {
                let claimant = Claimant::default().signed_by(author);
                let claimant = match maintained.presence {
                    Presence::Stored => claimant.with_authority(),
                    Presence::Held => claimant,
                };
                return self.copy(guard, &source, tips, claimant).await;
            }
        }
        Ok(false)
    }

    /// Copies the objects of a served pull request from a repository here that it names or its author has. Returns whether
    /// one has them.
    async fn copy_proposal(
        &self,
        guard: &mut RepoGuard,
        proposal: &Proposal,
    ) -> Result<bool, GitError> {
        if self.unavailable.contains(guard.repo(), proposal.tip) {
            return Ok(false);
        }
        let tips = BTreeSet::from([proposal.tip]);
        let claimant = Claimant::default().signed_by(proposal.author);
        for (endpoint, place) in places_of(proposal) {
            let Some(store) = self.parts.store_of(endpoint) else {
                continue;
            };
            if endpoint == Endpoint::Repository && place == *guard.repo() {
                continue;
            }
            if let Some(source) = store.repository(&place).source(&tips).await? {
                if self.copy(guard, &source, &tips, claimant).await? {
                    return Ok(true);
                }
            }
        }
        self.unavailable.note(guard.repo(), proposal.tip);
        Ok(false)
    }

    /// Copies tips from another repository, if the limits of the claimant allow it.
    async fn copy(
        &self,
        guard: &mut RepoGuard,
        source: &CopySource,
        tips: &BTreeSet<Oid>,
        claimant: Claimant,
    ) -> Result<bool, GitError> {
        let repo = guard.repo().clone();
        let incoming = guard.copy(source, tips).await?;
        let bytes = incoming.bytes().await?;
        if bytes > self.hunted_room(&repo, &claimant).await? {
            tracing::debug!(%repo, "no room for objects of another repository");
            return Ok(false);
        }
        guard.promote(incoming).await?;
        self.charge_hunted(&repo, &claimant, bytes);
        Ok(true)
    }

    /// Returns the bytes by which a repository may grow on the account of a claimant, other than by a push.
    pub(super) async fn hunted_room(
        &self,
        repo: &RepoId,
        claimant: &Claimant,
    ) -> Result<u64, GitError> {
        let today = self.disk.room(
            self.parts.relay.now().mono,
            repo,
            claimant,
            DataSource::Hunted,
        );
        Ok(today.min(self.quota.room(repo, claimant).await?))
    }

    /// Counts bytes that were added to a repository other than by a push.
    pub(super) fn charge_hunted(&self, repo: &RepoId, claimant: &Claimant, bytes: u64) {
        let now = self.parts.relay.now();
        self.disk
            .charge(now, repo, claimant, (DataSource::Hunted, bytes));
        self.quota.added(bytes);
    }

    /// Returns the pull requests that have a ref here or in the owner's repository for pull requests and are not stored;
    /// those of `found` are known to be.
    async fn strays(
        &self,
        repo: &RepoId,
        row: &RepoRow,
        found: &[Arc<Event>],
    ) -> Result<BTreeSet<EventId>, GitError> {
        let mut shown = self.contributions(repo).await?;
        let refs = row.view.iter().flat_map(|view| view.refs.refs.keys());
        shown.extend(refs.filter_map(RefName::event));
        for event in found {
            shown.remove(&event.id);
        }
        self.unstored(shown).await
    }

    /// Retains the events that are not stored.
    async fn unstored(&self, ids: BTreeSet<EventId>) -> Result<BTreeSet<EventId>, GitError> {
        if ids.is_empty() {
            return Ok(ids);
        }
        let questions = ids.iter().map(|id| Filter::new().id(*id)).collect();
        let stored = self.parts.relay.exists(questions).await?;
        Ok(ids
            .into_iter()
            .zip(stored)
            .filter(|(_, stored)| !stored)
            .map(|(id, _)| id)
            .collect())
    }

    /// Returns the held events that the store would refuse now.
    async fn refused(&self, held: Vec<Arc<Event>>) -> Result<BTreeSet<EventId>, GitError> {
        let mut refused = BTreeSet::new();
        for some in held.chunks(EVENTS_AT_ONCE) {
            refused.extend(self.parts.relay.refused(some.to_vec()).await?);
        }
        Ok(refused)
    }

    pub(super) async fn events(&self, filter: Filter) -> Result<Vec<Arc<Event>>, GitError> {
        Ok(self.parts.relay.events(filter).await?)
    }
}

/// Returns what a survey has of a view.
fn surveyed(view: View) -> SurveyedView {
    SurveyedView {
        refs: view.refs.tips(),
        state: view.state,
        maintainers: view.maintainers,
        shows: view.shows,
    }
}

/// Returns the coordinate of the state of an author for a repository.
fn state_of(repo: &RepoId, author: &PublicKey) -> Coordinate {
    Coordinate::new(kinds::STATE, *author).identifier(repo.identifier.as_str())
}

/// Returns a filter for the latest pull requests that are addressed to one of these maintainers.
pub(super) fn addressed_to(maintainers: &BTreeSet<PublicKey>, repo: &RepoId) -> Filter {
    let named = maintainers
        .iter()
        .map(|key| RepoId::new(*key, repo.identifier.clone()));
    Filter::new()
        .kinds([kinds::PULL_REQUEST, kinds::PULL_REQUEST_UPDATE])
        .custom_tags(
            SingleLetterTag::LOWERCASE_A,
            named.map(|repo| repo.to_string()),
        )
        .limit(MAX_PROPOSALS)
}

/// Returns the repositories that may show a pull request: those that it names, and its author's.
fn places_of(proposal: &Proposal) -> BTreeSet<(Endpoint, RepoId)> {
    let mut places = BTreeSet::new();
    for named in proposal.repos.iter().take(MAX_COPIED_PROPOSALS) {
        places.insert((Endpoint::Repository, named.clone()));
        let own = RepoId::new(proposal.author, named.identifier.clone());
        places.insert((Endpoint::PullRequests, own));
    }
    places
}

/// Returns whether a repository does not show a pull request.
fn lacks_ref(row: &RepoRow, proposal: &Proposal) -> bool {
    let shown = row
        .view
        .as_ref()
        .and_then(|view| view.refs.refs.get(&RefName::nostr(proposal.id)));
    shown.map(|target| target.oid) != Some(proposal.tip)
}

/// Returns the events whose objects are all here, with their whole history.
async fn check(
    guard: &mut RepoGuard,
    wanted: &HuntedEvents,
) -> Result<BTreeSet<EventId>, GitError> {
    let all: BTreeSet<Oid> = wanted.values().flatten().copied().collect();
    let Completeness { missing, broken } = guard.check(&all).await?;
    let mut complete = BTreeSet::new();
    for (id, tips) in wanted.iter().filter(|(_, tips)| tips.is_disjoint(&missing)) {
        // A check of many tips stops at the first broken one; a check of this event alone is exact.
        if tips.is_disjoint(&broken) || guard.check(tips).await?.is_complete() {
            complete.insert(*id);
        }
    }
    Ok(complete)
}
