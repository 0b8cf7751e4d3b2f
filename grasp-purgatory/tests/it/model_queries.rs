//! Queries of the model: surveys, facts for admission, and permissions.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::{Facts, KnownAnnouncement, Needs, Presence};
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RepoId, Version, kinds};
use grasp_purgatory::{HeldFor, Survey, SurveyedLead, SurveyedView};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;

use crate::model_disk::{Place, Refs, hosted, proposal_ref};
use crate::model_world::World;

impl World {
    /// Reads store and git about one repository, after what other repositories of its maintainers have was copied.
    pub(crate) fn survey(&mut self, repo: &RepoId) -> Survey {
        let mut reader = self.reach_reader(&repo.identifier);
        let reach = reader.reach(&repo.owner);
        if let Some(lead) = reader.shown_by(&repo.owner, &reach) {
            let announcements = reader.stored();
            return self.survey_address(repo, lead, announcements);
        }
        let maintainers = reach.maintainers;
        let mut survey = Survey {
            announcements: reader.stored(),
            ..Survey::default()
        };
        for key in &maintainers {
            if *key != repo.owner && reader.maintains_own(key) {
                survey.peers.insert(*key);
            }
        }
        let store = &self.disk.store;
        let mut authors = maintainers.clone();
        authors.insert(repo.owner);
        for author in authors {
            survey
                .states
                .extend(store.state(&of(author, repo)).cloned());
        }
        let has_state = |key: &PublicKey| survey.states.iter().any(|state| state.pubkey == *key);
        for key in maintainers
            .difference(&survey.peers)
            .filter(|key| !has_state(key))
        {
            survey
                .previous
                .extend(store.previous_state(&of(*key, repo)));
        }
        survey.is_owner_maintainer = maintainers.contains(&repo.owner)
            && reader.maintains_own(&repo.owner)
            || has_state(&repo.owner) && !reader.maintained_by(&repo.owner).is_empty();
        survey.proposals = store.addressed_to(&self.named(repo, &maintainers));
        let held = self.core.held_for(repo, &maintainers);
        survey.strays = self.strays(repo);
        let refused = held.events.iter().filter(|event| store.refuses(event));
        survey.refused = refused.map(|event| event.id).collect();
        survey.complete = self.complete(repo, &held, &survey);
        survey.view = self.surveyed_view(repo);
        survey
    }

    /// Reads store and git about a repository that is an address of another one.
    fn survey_address(
        &self,
        repo: &RepoId,
        lead: PublicKey,
        announcements: Vec<Arc<Event>>,
    ) -> Survey {
        let store = &self.disk.store;
        let shown = self.disk.git.view(&hosted(&of(lead, repo)));
        let is_shown = shown.is_some_and(|view| view.state.is_some());
        let held = self.core.held_for(repo, &BTreeSet::new());
        let refused = held.events.iter().filter(|event| store.refuses(event));
        Survey {
            announcements,
            states: store.state(repo).cloned().into_iter().collect(),
            is_owner_maintainer: !self.maintained_by(repo).is_empty(),
            lead: Some(SurveyedLead {
                owner: lead,
                is_shown,
            }),
            strays: self.strays(repo),
            refused: refused.map(|event| event.id).collect(),
            view: self.surveyed_view(repo),
            ..Survey::default()
        }
    }

    fn surveyed_view(&self, repo: &RepoId) -> Option<SurveyedView> {
        let view = self.disk.git.view(&hosted(repo))?;
        Some(SurveyedView {
            refs: view.refs.clone(),
            state: view.state,
            maintainers: view.maintainers.clone(),
            shows: view.shows,
        })
    }

    /// Returns the repositories by whose names a pull request is addressed to these maintainers.
    pub(crate) fn named(
        &self,
        repo: &RepoId,
        maintainers: &BTreeSet<PublicKey>,
    ) -> BTreeSet<RepoId> {
        maintainers.iter().map(|key| of(*key, repo)).collect()
    }

    /// Returns the pull requests that have a ref here or in the owner's repository for pull requests, and no event.
    fn strays(&self, repo: &RepoId) -> BTreeSet<EventId> {
        let git = &self.disk.git;
        let mut shown = git.proposals(&hosted(repo));
        shown.extend(git.proposals(&(Endpoint::PullRequests, repo.clone())));
        shown.retain(|id| !self.disk.store.contains(id));
        shown
    }

    /// Returns the states and pull requests whose objects are here, after copying.
    fn complete(&mut self, repo: &RepoId, held: &HeldFor, survey: &Survey) -> BTreeSet<EventId> {
        let shown = self
            .disk
            .git
            .view(&hosted(repo))
            .and_then(|view| view.state);
        // Its view may have expired: a state that is complete elsewhere brings it back.
        let is_hosted = self.own_announcement(repo).is_some();
        let mut states: Vec<State> = held.states.iter().map(|state| (**state).clone()).collect();
        for event in survey.states.iter().chain(&survey.previous) {
            states.extend(State::parse(event).ok().filter(|_| shown != Some(event.id)));
        }
        let mut complete = BTreeSet::new();
        for state in &states {
            if is_hosted && !self.disk.git.has_state(repo, state) {
                self.copy_state(repo, state);
            }
        }
        // Checked after copying: what one state brought may complete another.
        for state in &states {
            if self.disk.git.has_state(repo, state) {
                complete.insert(state.version.id);
            }
        }
        for proposal in &held.proposals {
            if self.disk.git.has_all(&hosted(repo), [&proposal.tip]) {
                complete.insert(proposal.id);
            }
        }
        for event in &survey.proposals {
            let proposal = Proposal::parse(event).unwrap();
            let is_here = self.disk.git.has_all(&hosted(repo), [&proposal.tip]);
            if is_here && !self.shows(&hosted(repo), &proposal)
                || !is_here && is_hosted && self.copy_proposal(repo, &proposal)
            {
                complete.insert(proposal.id);
            }
        }
        complete
    }

    /// Copies the objects of a state from another repository here that its author maintains.
    fn copy_state(&mut self, repo: &RepoId, state: &State) {
        let Some(tips) = state.tips() else { return };
        let maintained = self.maintained_by(&state.repo);
        let mut sources: BTreeSet<RepoId> = maintained.into_iter().map(|one| one.repo).collect();
        let shown = self
            .disk
            .git
            .view(&hosted(repo))
            .and_then(|view| view.shows);
        sources.extend(shown.map(|owner| of(owner, repo)));
        sources.remove(repo);
        if sources
            .iter()
            .any(|source| self.disk.git.has_state(source, state))
        {
            self.disk.git.repo_mut(&hosted(repo)).objects.extend(tips);
        }
    }

    /// Copies the objects of a served pull request from a repository here that it names or its author has.
    fn copy_proposal(&mut self, repo: &RepoId, proposal: &Proposal) -> bool {
        let mut places = BTreeSet::new();
        for named in &proposal.repos {
            places.insert(hosted(named));
            places.insert((Endpoint::PullRequests, of(proposal.author, named)));
        }
        places.remove(&hosted(repo));
        let has_it = places
            .iter()
            .any(|place| self.disk.git.has_all(place, [&proposal.tip]));
        if has_it {
            self.disk
                .git
                .repo_mut(&hosted(repo))
                .objects
                .insert(proposal.tip);
        }
        has_it
    }

    /// Returns whether a repository shows a pull request.
    pub(crate) fn shows(&self, place: &Place, proposal: &Proposal) -> bool {
        let view = self.disk.git.view(place);
        let tip = view.and_then(|view| view.refs.get(&proposal_ref(&proposal.id)));
        tip == Some(&proposal.tip)
    }

    pub(crate) fn facts(&self, event: &Arc<Event>) -> Facts {
        let store = &self.disk.store;
        let known = match (store.contains(&event.id), self.core.holds(&event.id)) {
            (true, _) => Some(Presence::Stored),
            (false, true) => Some(Presence::Held),
            (false, false) => None,
        };
        let stored = store.version_at(event).map(|stored| Version::of(stored));
        let mut facts = Facts {
            known,
            latest: stored.max(store.delisted_by(event)),
            is_related: self.is_related(event),
            is_over_quota: !self.core.has_room_for(event),
            ..Facts::default()
        };
        if let Some(repo) = Needs::of(event).repo {
            let announced = Announcement::parse(event).map(|it| it.maintainer_list.listed);
            let listed = announced.unwrap_or_default();
            let mut reader = self.reach_reader(&repo.identifier);
            let related = reader.related_by(&repo.owner, &listed);
            facts.is_listed = related
                .iter()
                .any(|owner| *owner != repo.owner && reader.reaches(owner, &repo.owner));
            if event.kind == kinds::STATE {
                facts.maintained = self.maintained_by(&repo);
            }
            facts.announcements = self.known_announcements(&repo);
        }
        facts
    }

    pub(crate) fn is_related(&self, event: &Event) -> bool {
        let Ok(proposal) = Proposal::parse(event) else {
            return false;
        };
        proposal
            .repos
            .iter()
            .any(|repo| self.disk.store.announcement(repo).is_some())
    }

    /// Returns the announcements of a repository that are here, stored and held.
    fn known_announcements(&self, repo: &RepoId) -> Vec<KnownAnnouncement> {
        let stored = self
            .disk
            .store
            .announcement(repo)
            .map(|event| KnownAnnouncement {
                announcement: Arc::new(Announcement::parse(event).unwrap()),
                presence: Presence::Stored,
            });
        stored
            .into_iter()
            .chain(self.core.announcement(repo))
            .collect()
    }

    /// Returns whether a push of this state is allowed: it is signed by a maintainer, and newer than the served one.
    pub(crate) fn may_push(&self, repo: &RepoId, state: &State) -> bool {
        let maintainers = self.maintainers(repo);
        let stored = self.named(repo, &maintainers);
        let stored = stored
            .iter()
            .filter_map(|of_key| self.disk.store.state(of_key));
        let winner = stored.map(|event| Version::of(event)).max();
        self.view(repo).is_some()
            && maintainers.contains(&state.repo.owner)
            && winner.is_none_or(|winner| state.version > winner)
            && state.tips().is_some()
    }

    /// Returns the winning announcements of a repository's maintainers, which name the servers that have its data.
    pub(crate) fn announcements_of(&self, repo: &RepoId) -> Vec<Arc<Announcement>> {
        let mut reader = self.reach_reader(&repo.identifier);
        let maintainers = reader.reach(&repo.owner).maintainers;
        let known = maintainers.iter().filter_map(|key| reader.get(key));
        known
            .map(|known| known.known.announcement.clone())
            .collect()
    }

    /// Returns the objects that a repository has of its own.
    pub(crate) fn objects(&self, repo: &RepoId) -> BTreeSet<Oid> {
        let repo = self.disk.git.repos.get(&hosted(repo));
        repo.map(|repo| repo.objects.clone()).unwrap_or_default()
    }

    pub(crate) fn serves(&self, event: &Event) -> bool {
        self.disk.store.contains(&event.id)
    }

    pub(crate) fn view(&self, repo: &RepoId) -> Option<&Refs> {
        self.disk.git.view(&hosted(repo)).map(|view| &view.refs)
    }
}

/// Returns the repository of another key with the same identifier.
pub(crate) fn of(key: PublicKey, repo: &RepoId) -> RepoId {
    RepoId::new(key, repo.identifier.clone())
}
