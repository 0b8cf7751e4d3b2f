//! The judgement of one repository: the wanted state of store and git, compared with the present one.
//!
//! Four rules decide every release:
//!
//! - A repository shows the winning state among those signed by its present maintainers, stored or held, of which all
//!   objects are here. Without one it shows nothing.
//! - Its announcement is served exactly while it shows a state.
//! - A repository whose lead has a hosted repository is an address of that one: it has no refs, and its announcement is
//!   served exactly while the lead's repository shows a state.
//! - A complete state is served exactly while its author maintains a hosted repository and it is that author's latest;
//!   whether it moves any ref is decided by the first rule. The repository of its author releases it, if that is hosted
//!   here; others follow.
//!
//! The rules depend on what is known and not on the order in which it arrived, and only on events of the maintainers and
//! of those who are asked to be ones. What others publish under the same identifier is not read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::{Policy, Presence};
use grasp_core::maintainers::Lookup;
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId, Version};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;

use super::held::{Content, HeldEvent, HeldEvents, memory_of, repos_of};
use super::io::{Config, ProposalRef, RefsTarget, StateTarget, Survey};
use super::staging::{PushTarget, Staging};

/// Pull requests of one author in a repository that the author does not maintain.
const MAX_PROPOSALS_PER_AUTHOR: usize = 200;

/// Pull requests in a repository, but for those of its maintainers: each is a line of every advertisement.
const MAX_PROPOSALS: usize = 5_000;

/// The changes that lead from the present state to the wanted one.
#[derive(Debug, Default)]
pub(super) struct ReleasePlan {
    /// Held events that are served already or can never be.
    pub(super) gone: Vec<EventId>,
    /// The repository has a view and no announcement.
    pub(super) is_orphan: bool,
    /// Pull requests that have refs and are neither held nor stored: their author withdrew them.
    pub(super) strays: Vec<EventId>,
    pub(super) refs: RefsTarget,
    /// The refs, or the maintainers that are remembered with them, change.
    pub(super) changes_refs: bool,
    /// It begins or ceases to show a state, which decides about its addresses.
    pub(super) changes_service: bool,
    /// Events to store, in order.
    pub(super) store: Vec<Arc<Event>>,
    /// Held states of maintainers of the served repository.
    pub(super) authorised: Vec<EventId>,
    /// The stored announcement without a state, and the stored state of an owner who maintains nothing here. They are
    /// held: what they lack may come back.
    pub(super) withdraw: Vec<Arc<Event>>,
    /// A stored announcement that a held one replaces. It is removed.
    pub(super) outdated: Vec<EventId>,
    /// Repositories whose owner's state is complete here, and who release it themselves.
    pub(super) releasing: BTreeSet<RepoId>,
    /// Repositories that what is released or gets a ref is about.
    pub(super) followers: BTreeSet<RepoId>,
    /// Repositories of keys that are no longer maintainers: their states may have lost their place.
    pub(super) left: BTreeSet<RepoId>,
    pub(super) wanted: HuntedEvents,
}

/// The events whose objects a repository lacks and hunts for.
#[derive(Debug, Default)]
pub(super) struct HuntedEvents {
    /// Held states and pull requests.
    pub(super) held: BTreeSet<EventId>,
    /// A served state that the repository should show.
    pub(super) served: Option<Arc<State>>,
}

/// Compares the held events and the survey with the rules.
pub(super) fn plan(
    config: &Config,
    policy: &Policy,
    held: &HeldEvents,
    staging: &Staging,
    repo: &RepoId,
    survey: &Survey,
) -> ReleasePlan {
    // What is withheld stays as it is, also if its announcement is hidden.
    if policy.withholds(repo) {
        return ReleasePlan::default();
    }
    let stored = SurveyedEvents::parse(survey);
    let maintainers = maintainers(policy, held, repo, &stored);
    let own = Own::find(policy, held, repo, &stored);
    let mut judgement = Judgement {
        config,
        policy,
        held,
        staging,
        repo,
        survey,
        stored: &stored,
        maintainers: match own.is_some() && survey.lead.is_none() {
            true => maintainers,
            false => BTreeSet::new(),
        },
        own,
        latest: BTreeMap::new(),
        winner: None,
    };
    judgement.latest = judgement.latest();
    judgement.winner = judgement.winner();
    judgement.plan()
}

/// The parsed stored events of a survey.
struct SurveyedEvents {
    announcements: BTreeMap<PublicKey, (Announcement, Arc<Event>)>,
    states: BTreeMap<PublicKey, (Arc<State>, Arc<Event>)>,
    proposals: Vec<Proposal>,
}

impl SurveyedEvents {
    fn parse(survey: &Survey) -> Self {
        let mut announcements = BTreeMap::new();
        for event in &survey.announcements {
            if let Ok(announcement) = Announcement::parse(event) {
                announcements.insert(event.pubkey, (announcement, event.clone()));
            }
        }
        let mut states = BTreeMap::new();
        for event in &survey.states {
            if let Ok(state) = State::parse(event) {
                states.insert(event.pubkey, (Arc::new(state), event.clone()));
            }
        }
        let proposals = survey
            .proposals
            .iter()
            .filter_map(|event| Proposal::parse(event).ok());
        Self {
            announcements,
            states,
            proposals: proposals.collect(),
        }
    }

    fn announcement(&self, author: &PublicKey) -> Option<&Announcement> {
        self.announcements
            .get(author)
            .map(|(announcement, _)| announcement)
    }
}

/// Returns the maintainers of a repository. Stored and held announcements count alike.
fn maintainers(
    policy: &Policy,
    held: &HeldEvents,
    repo: &RepoId,
    stored: &SurveyedEvents,
) -> BTreeSet<PublicKey> {
    let reach = policy.model.reach(&repo.owner, |key| {
        let coordinate = RepoId::new(*key, repo.identifier.clone());
        let held = held
            .announcement(&coordinate)
            .and_then(HeldEvent::announcement);
        let winner = match (held, stored.announcement(key)) {
            (Some(held), Some(stored)) if held.version > stored.version => Some(&**held),
            (Some(held), None) => Some(&**held),
            (_, stored) => stored,
        };
        winner.map_or(Lookup::Absent, |winner| {
            Lookup::Read(&winner.maintainer_list)
        })
    });
    reach.maintainers
}

/// The winning announcement of a hosted repository.
struct Own {
    announced_by: EventId,
    /// One that is both stored and held counts as stored.
    presence: Presence,
}

impl Own {
    fn find(
        policy: &Policy,
        held: &HeldEvents,
        repo: &RepoId,
        stored: &SurveyedEvents,
    ) -> Option<Self> {
        let held = held.announcement(repo).and_then(HeldEvent::announcement);
        let (announcement, presence) = match (held, stored.announcement(&repo.owner)) {
            (Some(held), Some(stored)) if held.version > stored.version => {
                (&**held, Presence::Held)
            }
            (Some(held), None) => (&**held, Presence::Held),
            (_, Some(stored)) => (stored, Presence::Stored),
            (None, None) => return None,
        };
        let announced_by = announcement.version.id;
        policy.hosts(announcement).then_some(Self {
            announced_by,
            presence,
        })
    }
}

/// A stored state, or a held one, whose objects are here.
#[derive(Clone)]
struct CompleteState {
    state: Arc<State>,
    presence: Presence,
}

/// Everything that matters for one repository.
struct Judgement<'a> {
    config: &'a Config,
    policy: &'a Policy,
    held: &'a HeldEvents,
    staging: &'a Staging,
    repo: &'a RepoId,
    survey: &'a Survey,
    stored: &'a SurveyedEvents,
    /// Empty unless the repository is hosted, and for an address.
    maintainers: BTreeSet<PublicKey>,
    /// `None` if the repository is not hosted.
    own: Option<Own>,
    /// Each maintainer's latest state whose objects are here.
    latest: BTreeMap<PublicKey, CompleteState>,
    /// The state that it should show.
    winner: Option<CompleteState>,
}

impl Judgement<'_> {
    fn plan(&self) -> ReleasePlan {
        let proposals = self.proposals();
        let state = self.state_target();
        let view = self.survey.view.as_ref();
        let before = view.map(|view| &view.maintainers);
        let shows = self
            .survey
            .lead
            .map(|lead| lead.owner)
            .filter(|_| self.own.is_some());
        let is_other =
            view.is_some_and(|view| view.maintainers != self.maintainers || view.shows != shows);
        let left = before
            .into_iter()
            .flatten()
            .filter(|key| !self.maintainers.contains(key));
        let strays = self
            .survey
            .strays
            .iter()
            .filter(|id| self.held.get(id).is_none());
        ReleasePlan {
            gone: self.gone(),
            is_orphan: self.own.is_none() && self.survey.view.is_some(),
            strays: strays.copied().collect(),
            changes_refs: state != StateTarget::Unchanged
                || !proposals.is_empty()
                || (self.own.is_some() && is_other),
            changes_service: view.is_some_and(|view| view.state.is_some()) != self.winner.is_some(),
            followers: self.followers(&proposals),
            store: self.releases(&proposals),
            authorised: self.authorised(),
            withdraw: self.withdrawn(),
            outdated: self.outdated(),
            releasing: self.releasing(),
            left: left.map(|key| self.repo_of(key)).collect(),
            wanted: self.wanted(),
            refs: RefsTarget {
                state,
                proposals,
                maintainers: self.maintainers.clone(),
                shows,
            },
        }
    }

    /// Returns whether a state is shown, here or by the repository that this one is an address of.
    fn shows_state(&self) -> bool {
        self.survey
            .lead
            .map_or(self.winner.is_some(), |lead| lead.is_shown)
    }

    /// Returns the repository of another key with the same identifier.
    fn repo_of(&self, key: &PublicKey) -> RepoId {
        RepoId::new(*key, self.repo.identifier.clone())
    }

    /// Returns whether states of this author are released by the author's own repository.
    fn is_released_elsewhere(&self, author: &PublicKey) -> bool {
        *author != self.repo.owner && self.survey.peers.contains(author)
    }

    /// Returns whether a held event may be released. It may have been banned since it was accepted.
    fn may_release(&self, held: &HeldEvent) -> bool {
        let bans = &self.policy.bans;
        !bans.authors.contains(&held.author()) && !bans.events.contains(&held.id())
    }

    /// Returns the held states of the maintainers.
    fn held_states(&self) -> impl Iterator<Item = (&HeldEvent, &Arc<State>)> {
        let repos = self.maintainers.iter().map(|key| self.repo_of(key));
        let held = repos.flat_map(|repo| self.held.states(&repo).collect::<Vec<_>>());
        let held = held.filter(|held| self.may_release(held));
        held.filter_map(|held| Some((held, held.state()?)))
    }

    /// Returns whether all objects of a state are here. What is shown was complete when it came to be shown.
    fn is_complete(&self, state: &State) -> bool {
        let shown = self.survey.view.as_ref().and_then(|view| view.state);
        let id = state.version.id;
        state.tips().is_some() && (self.survey.complete.contains(&id) || shown == Some(id))
    }

    /// Returns each maintainer's latest state whose objects are here, and for which there is room.
    fn latest(&self) -> BTreeMap<PublicKey, CompleteState> {
        let mut latest: BTreeMap<PublicKey, CompleteState> = BTreeMap::new();
        let mut bytes = 0;
        for (author, (state, event)) in &self.stored.states {
            if !self.maintainers.contains(author) {
                continue;
            }
            bytes += memory_of(event);
            if self.is_complete(state) {
                let state = Arc::clone(state);
                latest.insert(
                    *author,
                    CompleteState {
                        state,
                        presence: Presence::Stored,
                    },
                );
            }
        }
        let mut held: Vec<_> = self.held_states().collect();
        held.sort_by_key(|(held, state)| (held.bytes, state.version));
        for (held, state) in held {
            // A state beyond the limit waits until others have gone. That of the owner always fits.
            let has_room = bytes + held.bytes <= self.config.state_bytes_per_repo;
            if !self.is_complete(state) || !(has_room || held.author() == self.repo.owner) {
                continue;
            }
            bytes += held.bytes;
            let complete = CompleteState {
                state: Arc::clone(state),
                presence: Presence::Held,
            };
            let best = latest
                .entry(held.author())
                .or_insert_with(|| complete.clone());
            if state.version > best.state.version {
                *best = complete;
            }
        }
        latest
    }

    /// Returns the state that the repository should show.
    fn winner(&self) -> Option<CompleteState> {
        let shown = self.latest.iter().filter(|(author, signed)| {
            signed.presence == Presence::Stored || !self.is_released_elsewhere(author)
        });
        let winner = shown.max_by_key(|(_, signed)| signed.state.version);
        winner.map(|(_, signed)| signed.clone())
    }

    fn gone(&self) -> Vec<EventId> {
        let own = self.held.of(self.repo);
        let states = self.held_states().map(|(held, _)| held);
        let over = own.chain(states).filter(|held| self.is_over(held));
        let ids: BTreeSet<EventId> = over.map(HeldEvent::id).collect();
        ids.into_iter().collect()
    }

    /// Returns whether a held event is stored, or a version that wins over it.
    fn is_over(&self, held: &HeldEvent) -> bool {
        let is_won_by = |stored: Version| stored >= held.version();
        match &held.content {
            Content::State(state) => {
                let stored = self.stored.states.get(&state.repo.owner);
                let is_ours = state.repo.identifier == self.repo.identifier;
                is_ours && stored.is_some_and(|(stored, _)| is_won_by(stored.version))
            }
            Content::Announcement(new) => {
                let stored = self.stored.announcement(&new.repo.owner);
                stored.is_some_and(|stored| is_won_by(stored.version))
            }
            Content::Proposal(_) => self.stored.proposals.iter().any(|p| p.id == held.id()),
        }
    }

    /// Returns the change of branches and tags. A state that is about to be served is applied even where its refs are in
    /// place: HEAD is part of it.
    fn state_target(&self) -> StateTarget {
        if self.own.is_none() {
            return StateTarget::Unchanged;
        }
        let view = self.survey.view.as_ref();
        let Some(winner) = &self.winner else {
            // A state may have neither branches nor tags.
            let shows_some = view.is_some_and(|view| {
                view.state.is_some() || view.refs.keys().any(RefName::is_branch_or_tag)
            });
            return if shows_some {
                StateTarget::Nothing
            } else {
                StateTarget::Unchanged
            };
        };
        let is_shown = winner.presence == Presence::Stored
            && view.is_some_and(|view| {
                let id = winner.state.version.id;
                view.state == Some(id) && winner.state.is_realised_by(&ruled(&view.refs))
            });
        match is_shown {
            true => StateTarget::Unchanged,
            false => StateTarget::Show(Arc::clone(&winner.state)),
        }
    }

    /// Returns the held events whose data is here: the announcement, states from the oldest, pull requests.
    fn releases(&self, proposals: &[ProposalRef]) -> Vec<Arc<Event>> {
        let mut ids = Vec::new();
        if let Some(own) = &self.own {
            if own.presence == Presence::Held && self.shows_state() {
                ids.push(own.announced_by);
            }
        }
        let mut states: Vec<Version> = Vec::new();
        for (author, signed) in &self.latest {
            if signed.presence == Presence::Held && !self.is_released_elsewhere(author) {
                states.push(signed.state.version);
            }
        }
        states.sort();
        ids.extend(states.into_iter().map(|version| version.id));
        // Stored pull requests are among these where the ref is missing; they are not held.
        ids.extend(proposals.iter().map(|proposal| proposal.id));
        let held = ids.into_iter().filter_map(|id| self.held.get(&id));
        held.map(|held| held.event.clone()).collect()
    }

    /// Returns the repositories that release a state whose objects are here.
    fn releasing(&self) -> BTreeSet<RepoId> {
        let mut releasing = BTreeSet::new();
        for (author, signed) in &self.latest {
            if signed.presence == Presence::Held && self.is_released_elsewhere(author) {
                releasing.insert(self.repo_of(author));
            }
        }
        releasing
    }

    /// Returns the repositories that a released state, or a pull request that gets a ref, is about.
    fn followers(&self, proposals: &[ProposalRef]) -> BTreeSet<RepoId> {
        let mut followers = BTreeSet::new();
        for (author, signed) in &self.latest {
            if signed.presence == Presence::Held && !self.is_released_elsewhere(author) {
                followers.insert(self.repo_of(author));
            }
        }
        for set in proposals {
            let held = self.held.get(&set.id).and_then(HeldEvent::proposal);
            let stored = self
                .stored
                .proposals
                .iter()
                .find(|stored| stored.id == set.id);
            followers.extend(held.or(stored).map(repos_of).unwrap_or_default());
        }
        followers
    }

    fn authorised(&self) -> Vec<EventId> {
        let is_served = self
            .own
            .as_ref()
            .is_some_and(|own| own.presence == Presence::Stored);
        let states = self.held_states().filter(|_| is_served);
        states.map(|(held, _)| held.id()).collect()
    }

    fn withdrawn(&self) -> Vec<Arc<Event>> {
        let mut withdrawn = Vec::new();
        let is_unfilled = !self.shows_state()
            && self
                .own
                .as_ref()
                .is_some_and(|own| own.presence == Presence::Stored);
        if let (true, Some((_, event))) =
            (is_unfilled, self.stored.announcements.get(&self.repo.owner))
        {
            withdrawn.push(event.clone());
        }
        if let (false, Some((_, event))) = (
            self.survey.is_owner_maintainer,
            self.stored.states.get(&self.repo.owner),
        ) {
            withdrawn.push(event.clone());
        }
        withdrawn
    }

    /// Returns the stored announcement that a held one without a state replaces. A release has stored it while that one
    /// came.
    fn outdated(&self) -> Vec<EventId> {
        let is_replaced = !self.shows_state()
            && self
                .own
                .as_ref()
                .is_some_and(|own| own.presence == Presence::Held);
        let stored = self
            .stored
            .announcements
            .get(&self.repo.owner)
            .filter(|_| is_replaced);
        stored.map(|(_, event)| event.id).into_iter().collect()
    }

    /// Returns what is to be hunted for here.
    fn wanted(&self) -> HuntedEvents {
        let mut wanted = HuntedEvents::default();
        if self.own.is_none() {
            return wanted;
        }
        for (held, state) in self.held_states() {
            let is_lacking = !self.is_complete(state) && state.tips().is_some();
            if is_lacking && !self.is_released_elsewhere(&held.author()) && !self.is_over(held) {
                wanted.held.insert(held.id());
            }
        }
        for held in self.addressed() {
            let id = held.id();
            let is_here = self.survey.complete.contains(&id) || !self.staged(held).is_empty();
            if !is_here && !self.is_over(held) {
                wanted.held.insert(id);
            }
        }
        let shown = self.winner.as_ref().map(|winner| winner.state.version);
        let mut newer: Vec<&Arc<State>> = Vec::new();
        for (author, (state, _)) in &self.stored.states {
            let is_newer = shown.is_none_or(|shown| state.version > shown);
            if self.maintainers.contains(author) && is_newer && !self.is_complete(state) {
                newer.push(state);
            }
        }
        wanted.served = newer.into_iter().max_by_key(|state| state.version).cloned();
        wanted
    }

    // Pull requests: served once their tip is in a repository that they are addressed to, and from there in all of them.

    /// Returns the held pull requests that are addressed to a maintainer.
    fn addressed(&self) -> Vec<&HeldEvent> {
        let mut addressed: BTreeMap<EventId, &HeldEvent> = BTreeMap::new();
        for key in &self.maintainers {
            for held in self.held.of(&self.repo_of(key)) {
                if !self.may_release(held) {
                    continue;
                }
                let names_it = held.proposal().is_some_and(|proposal| {
                    proposal.repos.iter().any(|named| {
                        named.owner == *key && named.identifier == self.repo.identifier
                    })
                });
                if names_it {
                    addressed.insert(held.id(), held);
                }
            }
        }
        addressed.into_values().collect()
    }

    /// Returns the places that have the tip of a pull request in staging: this repository, and its author's.
    fn staged(&self, held: &HeldEvent) -> BTreeSet<(Endpoint, RepoId)> {
        let Some(proposal) = held.proposal() else {
            return BTreeSet::new();
        };
        let Some(staged) = self.staging.of(&held.id()) else {
            return BTreeSet::new();
        };
        let mut places = BTreeSet::new();
        for target in staged.targets_of(self.policy, proposal) {
            match target {
                PushTarget::Repository(repo) if repo == self.repo => {
                    places.insert((Endpoint::Repository, repo.clone()));
                }
                PushTarget::Repository(_) => {}
                // A contributor's repository has only what was pushed to it.
                PushTarget::Contributor(repo) => {
                    places.insert((Endpoint::PullRequests, repo.clone()));
                }
            }
        }
        places
    }

    /// Returns the refs to set: for pull requests that can be released, and for stored ones whose ref is missing.
    fn proposals(&self) -> Vec<ProposalRef> {
        let mut found = Vec::new();
        let here = (Endpoint::Repository, self.repo.clone());
        let mut room = ProposalRoom::new(self);
        if self.winner.is_some() {
            for held in self.addressed() {
                let Some(proposal) = held.proposal() else {
                    continue;
                };
                let mut places = self.staged(held);
                if self.survey.complete.contains(&proposal.id) {
                    places.insert(here.clone());
                }
                let is_here = places.contains(&here);
                if is_here && !self.is_over(held) && room.takes(proposal) {
                    found.push(ProposalRef {
                        id: proposal.id,
                        tip: proposal.tip,
                        places,
                    });
                }
            }
            for proposal in &self.stored.proposals {
                let id = proposal.id;
                let tip = proposal.tip;
                let is_missing = self.tip_of(id) != Some(tip);
                if is_missing && self.survey.complete.contains(&id) && room.takes(proposal) {
                    let places = BTreeSet::from([here.clone()]);
                    found.push(ProposalRef { id, tip, places });
                }
            }
        }
        found.extend(self.contributions(&found));
        found
    }

    /// Returns the pull requests that were pushed to the owner's repository for pull requests, but for those that are
    /// released anyway.
    fn contributions(&self, others: &[ProposalRef]) -> Vec<ProposalRef> {
        let place = (Endpoint::PullRequests, self.repo.clone());
        let mut found = Vec::new();
        for held in self.held.of(self.repo) {
            let Some(proposal) = held.proposal() else {
                continue;
            };
            let is_released = others.iter().any(|other| other.id == proposal.id);
            let is_here = self.may_release(held) && self.staged(held).contains(&place);
            if !is_released && is_here && !self.is_over(held) {
                let places = BTreeSet::from([place.clone()]);
                found.push(ProposalRef {
                    id: proposal.id,
                    tip: proposal.tip,
                    places,
                });
            }
        }
        found
    }

    fn tip_of(&self, id: EventId) -> Option<Oid> {
        self.survey
            .view
            .as_ref()?
            .refs
            .get(&RefName::nostr(id))
            .copied()
    }
}

/// The room for refs of pull requests in a repository.
struct ProposalRoom<'a> {
    maintainers: &'a BTreeSet<PublicKey>,
    /// Refs of pull requests that the repository has.
    count: usize,
    by_author: BTreeMap<PublicKey, usize>,
}

impl<'a> ProposalRoom<'a> {
    fn new(judgement: &'a Judgement<'_>) -> Self {
        let refs = judgement
            .survey
            .view
            .iter()
            .flat_map(|view| view.refs.keys());
        let count = refs.filter(|name| name.event().is_some()).count();
        let mut by_author: BTreeMap<PublicKey, usize> = BTreeMap::new();
        for proposal in &judgement.stored.proposals {
            if judgement.tip_of(proposal.id).is_some() {
                *by_author.entry(proposal.author).or_default() += 1;
            }
        }
        Self {
            maintainers: &judgement.maintainers,
            count,
            by_author,
        }
    }

    /// Returns whether there is room for a further pull request, and counts it.
    fn takes(&mut self, proposal: &Proposal) -> bool {
        let of_author = self.by_author.entry(proposal.author).or_default();
        let has_room = *of_author < MAX_PROPOSALS_PER_AUTHOR && self.count < MAX_PROPOSALS;
        let fits = has_room || self.maintainers.contains(&proposal.author);
        if fits {
            *of_author += 1;
            self.count += 1;
        }
        fits
    }
}

/// Returns the refs that states decide about.
fn ruled(refs: &BTreeMap<RefName, Oid>) -> BTreeMap<RefName, Oid> {
    let ruled = refs.iter().filter(|(name, _)| name.is_branch_or_tag());
    ruled.map(|(name, oid)| (name.clone(), *oid)).collect()
}
