//! The judgement of one identifier: the wanted state of store and git, compared with the present one.
//!
//! Three rules decide every release:
//!
//! - A view shows the winning state among those signed by its present maintainers, stored or held, of which all
//!   objects are here. Without one it shows nothing.
//! - A hosted announcement is served exactly while its view shows a state.
//! - A complete state is served exactly while its author is a maintainer of a hosted repository and it is that author's
//!   latest; whether it moves any ref is decided by the first rule.
//!
//! The rules depend on what is known and not on the order in which it arrived. So does the outcome, within the limits of
//! an identifier ([`room`]): beyond them, what is served stays.

mod room;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::{Policy, Presence};
use grasp_core::maintainers::{MaintainerSets, maintainer_lists};
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{Identifier, Oid, RefName, RepoId, Version};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;

use super::held::{Content, HeldEvent, HeldEvents, MAX_IDENTIFIERS, memory_of};
use super::io::{Config, ProposalRef, Survey, ViewTarget};
use super::staging::{PushTarget, Staging};

use self::room::{ProposalRoom, oversized_states, oversized_views};

/// The changes that lead from the present state to the wanted one.
#[derive(Debug)]
pub(super) struct ReleasePlan {
    /// Held events that are served already or can never be.
    pub(super) gone: Vec<EventId>,
    /// Views of repositories without an announcement.
    pub(super) orphans: Vec<RepoId>,
    /// Pull requests that have refs and are neither held nor stored: their author withdrew them.
    pub(super) strays: Vec<EventId>,
    pub(super) views: Vec<ViewTarget>,
    pub(super) proposals: Vec<ProposalRef>,
    /// Events to store, in order.
    pub(super) store: Vec<Arc<Event>>,
    /// Held states of maintainers of served repositories.
    pub(super) authorised: Vec<EventId>,
    /// Stored announcements without a state, and stored states of authors who are no longer maintainers. They are
    /// held: what they lack may come back.
    pub(super) withdraw: Vec<Arc<Event>>,
    /// Stored announcements that a held one replaces. They are removed.
    pub(super) outdated: Vec<EventId>,
    /// Some complete states stay held because there is no room for them.
    pub(super) has_waiting_for_room: bool,
}

/// Compares the held events and the survey with the rules.
pub(super) fn plan(
    (config, policy): (&Config, &Policy),
    (held, staging): (&HeldEvents, &Staging),
    identifier: &Identifier,
    survey: &Survey,
) -> ReleasePlan {
    let stored = StoredEvents::parse(survey);
    let families = families(policy, held, identifier, &stored);
    let complete = complete_states(held, identifier, survey, &stored);
    let nothing = BTreeMap::new();
    let repos = families.get(identifier).map_or(&nothing, |family| &family.repos);
    let limit = config.state_bytes_per_identifier;
    let oversized = oversized_states(limit, &complete, repos, &survey.oldest);
    let fits = |signed: &&CompleteState<'_>| !oversized.contains(&signed.state.version.id);
    let latest = latest(complete.iter().filter(fits));
    let winners = repos.iter().filter_map(|(id, repo)| {
        let signed = repo.maintainers.iter().filter_map(|key| latest.get(key));
        Some((id.clone(), *signed.max_by_key(|signed| signed.state.version)?))
    });
    let mut winners: BTreeMap<RepoId, CompleteState<'_>> = winners.collect();
    let beyond = oversized_views(config.refs_per_identifier, &winners, repos, survey);
    // A served announcement stays, or gives way to a newer one. Others wait for room.
    winners.retain(|id, _| !beyond.contains(id) || stored.announced.contains_key(id));
    let judgement = Judgement {
        config,
        policy,
        held,
        staging,
        identifier,
        survey,
        stored: &stored,
        latest,
        winners,
        beyond,
        families,
    };
    let proposals = judgement.proposals();
    ReleasePlan {
        gone: judgement.gone(),
        orphans: judgement.orphans(),
        strays: survey.strays.iter().filter(|id| held.get(id).is_none()).copied().collect(),
        views: judgement.views(),
        store: judgement.releases(&proposals),
        withdraw: judgement.unfilled().chain(judgement.unauthorised()).collect(),
        authorised: judgement.authorised(),
        outdated: judgement.outdated(),
        has_waiting_for_room: !oversized.is_empty(),
        proposals,
    }
}

/// The parsed stored events of a survey.
struct StoredEvents {
    announcements: Vec<(Announcement, Arc<Event>)>,
    states: Vec<(Arc<State>, Arc<Event>)>,
    proposals: Vec<Proposal>,
    /// Versions of the announcements and of the states, by repository.
    announced: BTreeMap<RepoId, Version>,
    stated: BTreeMap<RepoId, Version>,
}

impl StoredEvents {
    fn parse(survey: &Survey) -> Self {
        let announcement =
            |event: &Arc<Event>| Some((Announcement::parse(event).ok()?, event.clone()));
        let state = |event: &Arc<Event>| Some((Arc::new(State::parse(event).ok()?), event.clone()));
        let proposal = |event: &Arc<Event>| Proposal::parse(event).ok();
        let announcements: Vec<_> = survey.announcements.iter().filter_map(announcement).collect();
        let states: Vec<_> = survey.states.iter().filter_map(state).collect();
        let announced = announcements.iter().map(|(one, _)| (one.repo.clone(), one.version));
        let stated = states.iter().map(|(one, _)| (one.repo.clone(), one.version));
        Self {
            announced: announced.collect(),
            stated: stated.collect(),
            proposals: survey.proposals.iter().filter_map(proposal).collect(),
            announcements,
            states,
        }
    }
}

/// The hosted repositories of one identifier, by the winning announcement of each author. Stored and held announcements
/// count alike.
struct HostedRepos {
    repos: BTreeMap<RepoId, HostedRepo>,
    /// The maintainers of all of them.
    maintainers: BTreeSet<PublicKey>,
}

struct HostedRepo {
    announced_by: EventId,
    presence: Presence,
    maintainers: BTreeSet<PublicKey>,
}

impl HostedRepos {
    fn new<'a>(
        policy: &Policy,
        known: impl IntoIterator<Item = (&'a Announcement, Presence)>,
    ) -> Self {
        let winners = winners(known);
        let lists = maintainer_lists(winners.values().map(|(announcement, _)| *announcement));
        let sets = MaintainerSets::new(policy.model, &lists);
        let hosted = winners.values().filter(|(announcement, _)| policy.hosts(announcement));
        let repos = hosted.map(|(announcement, presence)| {
            let repo = HostedRepo {
                announced_by: announcement.version.id,
                presence: *presence,
                maintainers: sets.of(&announcement.repo.owner),
            };
            (announcement.repo.clone(), repo)
        });
        let repos: BTreeMap<RepoId, HostedRepo> = repos.collect();
        let maintainers = repos.values().flat_map(|repo| &repo.maintainers).copied().collect();
        Self { repos, maintainers }
    }

    /// Returns the repositories whose maintainers a pull request is addressed to.
    fn addressed_by(
        &self,
        identifier: &Identifier,
        proposal: &Proposal,
    ) -> impl Iterator<Item = (&RepoId, &HostedRepo)> {
        let named = proposal.repos.iter().filter(|repo| repo.identifier == *identifier);
        let named: BTreeSet<_> = named.map(|repo| repo.owner).collect();
        self.repos.iter().filter(move |(_, repo)| !repo.maintainers.is_disjoint(&named))
    }
}

/// Returns each author's winning announcement; one that is both stored and held counts as stored.
fn winners<'a>(
    known: impl IntoIterator<Item = (&'a Announcement, Presence)>,
) -> BTreeMap<PublicKey, (&'a Announcement, Presence)> {
    let rank = |(announcement, presence): &(&Announcement, Presence)| {
        (announcement.version, *presence == Presence::Stored)
    };
    let mut winners: BTreeMap<PublicKey, (&Announcement, Presence)> = BTreeMap::new();
    for new in known {
        let winner = winners.entry(new.0.repo.owner).or_insert(new);
        if rank(&new) > rank(winner) {
            *winner = new;
        }
    }
    winners
}

/// A stored state, or a held one whose objects are here.
#[derive(Clone, Copy)]
struct CompleteState<'a> {
    state: &'a Arc<State>,
    presence: Presence,
    /// Approximate memory.
    bytes: u64,
}

/// Everything that matters for one identifier.
struct Judgement<'a> {
    config: &'a Config,
    policy: &'a Policy,
    held: &'a HeldEvents,
    staging: &'a Staging,
    identifier: &'a Identifier,
    survey: &'a Survey,
    stored: &'a StoredEvents,
    /// This identifier, and those that held pull requests are also addressed to.
    families: BTreeMap<&'a Identifier, HostedRepos>,
    /// Each author's latest complete state.
    latest: BTreeMap<PublicKey, CompleteState<'a>>,
    /// The state that each hosted view should show.
    winners: BTreeMap<RepoId, CompleteState<'a>>,
    /// Views for whose state there is no room. They show nothing.
    beyond: BTreeSet<RepoId>,
}

impl Judgement<'_> {
    fn repos(&self) -> impl Iterator<Item = (&RepoId, &HostedRepo)> {
        self.families.get(self.identifier).into_iter().flat_map(|family| &family.repos)
    }

    fn has_maintainer(&self, author: &PublicKey) -> bool {
        let family = self.families.get(self.identifier);
        family.is_some_and(|family| family.maintainers.contains(author))
    }

    fn gone(&self) -> Vec<EventId> {
        let held = self.held.of(self.identifier).filter(|held| self.is_over(held));
        held.map(HeldEvent::id).collect()
    }

    /// Returns whether a held event is stored, or a version that wins over it.
    fn is_over(&self, held: &HeldEvent) -> bool {
        let is_won_by = |stored: &Version| *stored >= held.version();
        match &held.content {
            Content::State(state) => self.stored.stated.get(&state.repo).is_some_and(is_won_by),
            Content::Announcement(new) => {
                self.stored.announced.get(&new.repo).is_some_and(is_won_by)
            }
            Content::Proposal(_) => self.stored.proposals.iter().any(|p| p.id == held.id()),
        }
    }

    fn orphans(&self) -> Vec<RepoId> {
        let announced: BTreeSet<&RepoId> = self.repos().map(|(id, _)| id).collect();
        let views = self.survey.views.keys().filter(|repo| repo.identifier == *self.identifier);
        views.filter(|repo| !announced.contains(repo)).cloned().collect()
    }

    /// Returns the views that must change. A state that is about to be served is applied even where its refs are in
    /// place: HEAD is part of it.
    fn views(&self) -> Vec<ViewTarget> {
        let target = |repo: &RepoId| {
            let refs = self.survey.views.get(repo);
            let winner = self.winners.get(repo).filter(|_| !self.beyond.contains(repo));
            let state = match winner {
                Some(CompleteState { state, presence: Presence::Held, .. }) => {
                    Some(Arc::clone(state))
                }
                Some(CompleteState { state, .. })
                    if !refs.is_some_and(|refs| state.is_realised_by(&branches_and_tags(refs))) =>
                {
                    Some(Arc::clone(state))
                }
                None if refs.is_some_and(|refs| refs.keys().any(RefName::is_branch_or_tag)) => None,
                _ => return None,
            };
            Some(ViewTarget { repo: repo.clone(), state })
        };
        self.repos().filter_map(|(repo, _)| target(repo)).collect()
    }

    /// Returns the held events whose data is here: announcements, states from the oldest, pull requests.
    fn releases(&self, proposals: &[ProposalRef]) -> Vec<Arc<Event>> {
        let announcements = self
            .repos()
            .filter(|(id, repo)| repo.presence == Presence::Held && self.winners.contains_key(id));
        let announcements = announcements.map(|(_, repo)| repo.announced_by);
        let is_released = |signed: &&CompleteState<'_>| {
            signed.presence == Presence::Held && self.has_maintainer(&signed.state.repo.owner)
        };
        let states = self.latest.values().filter(is_released);
        let mut states: Vec<_> = states.map(|signed| signed.state.version).collect();
        states.sort();
        // Stored pull requests are among these where another view must get their ref; they are not held.
        let proposals = proposals.iter().map(|proposal| proposal.id);
        let ids = announcements.chain(states.into_iter().map(|version| version.id));
        let held = ids.chain(proposals).filter_map(|id| self.held.get(&id));
        held.map(|held| held.event.clone()).collect()
    }

    fn authorised(&self) -> Vec<EventId> {
        let served = self.repos().filter(|(_, repo)| repo.presence == Presence::Stored);
        let maintainers: BTreeSet<_> = served.flat_map(|(_, repo)| &repo.maintainers).collect();
        let states = self.held.of(self.identifier).filter(|held| held.state().is_some());
        states.filter(|held| maintainers.contains(&held.author())).map(HeldEvent::id).collect()
    }

    /// Returns the stored states whose author maintains nothing here.
    fn unauthorised(&self) -> impl Iterator<Item = Arc<Event>> {
        let states = self.stored.states.iter();
        let is_own = |state: &State| state.repo.identifier == *self.identifier;
        let is_unauthorised = move |(state, _): &&(Arc<State>, Arc<Event>)| {
            is_own(state) && !self.has_maintainer(&state.repo.owner)
        };
        states.filter(is_unauthorised).map(|(_, event)| event.clone())
    }

    /// Returns the stored announcements whose view has no state to show.
    fn unfilled(&self) -> impl Iterator<Item = Arc<Event>> {
        self.stored_of_unfilled(Presence::Stored).cloned()
    }

    /// Returns the stored announcements that a held one without a state replaces. A release has stored them while that
    /// one came.
    fn outdated(&self) -> Vec<EventId> {
        self.stored_of_unfilled(Presence::Held).map(|event| event.id).collect()
    }

    /// Returns the stored announcements of repositories without a state whose winning announcement has this presence.
    fn stored_of_unfilled(&self, presence: Presence) -> impl Iterator<Item = &Arc<Event>> {
        let unfilled = self
            .repos()
            .filter(move |(id, repo)| repo.presence == presence && !self.winners.contains_key(id));
        let unfilled: BTreeSet<&RepoId> = unfilled.map(|(id, _)| id).collect();
        let stored = self.stored.announcements.iter();
        let stored = stored.filter(move |(announcement, _)| unfilled.contains(&announcement.repo));
        stored.map(|(_, event)| event)
    }
}

/// Pull requests: served once their tip is in a view that they are addressed to, and from there in all of them.
impl Judgement<'_> {
    /// Returns the refs to set: for pull requests that can be released, and for stored ones where a view lacks them.
    fn proposals(&self) -> Vec<ProposalRef> {
        let held = self.held.of(self.identifier).filter_map(|held| self.release(held));
        let spread = self.stored.proposals.iter().filter_map(|proposal| self.spread(proposal));
        let nothing = BTreeMap::new();
        let repos = self.families.get(self.identifier).map_or(&nothing, |family| &family.repos);
        let limit = self.config.proposals_per_identifier;
        let mut room = ProposalRoom::new(limit, repos, self.survey, &self.stored.proposals);
        held.chain(spread).filter_map(|proposal| room.limited(proposal)).collect()
    }

    fn release(&self, held: &HeldEvent) -> Option<ProposalRef> {
        let proposal = held.proposal()?;
        let (id, author, tip) = (proposal.id, proposal.author, proposal.tip);
        let uploads = self.staging.of(&id).into_iter();
        let staged = uploads.flat_map(|uploads| uploads.targets_of(self.policy, proposal));
        let staged: Vec<PushTarget> = staged.cloned().collect();
        let is_here = !staged.is_empty() || self.survey.complete.contains(&id);
        if !is_here || self.is_over(held) {
            return None;
        }
        let repos = self.served_and_addressed(proposal);
        // A contributor's repository has only what was pushed to it.
        let is_contributors = |target: &PushTarget| matches!(target, PushTarget::Contributor(_));
        let has_place = !repos.is_empty() || staged.iter().any(is_contributors);
        let families = held.identifiers().into_iter().cloned().collect();
        has_place.then_some(ProposalRef { id, author, tip, repos, families, staged })
    }

    /// Returns the refs of a stored pull request in views that have become relevant since.
    fn spread(&self, proposal: &Proposal) -> Option<ProposalRef> {
        let (id, author, tip) = (proposal.id, proposal.author, proposal.tip);
        let mut repos = self.served_and_addressed(proposal);
        repos.retain(|repo| {
            let view = self.survey.views.get(repo);
            repo.identifier == *self.identifier
                && view.is_none_or(|refs| tip_of(refs, id) != Some(tip))
        });
        let named = proposal.repos.iter().map(|repo| &repo.identifier).take(MAX_IDENTIFIERS);
        let families = named.chain([self.identifier]).cloned().collect();
        let staged = Vec::new();
        (!repos.is_empty()).then_some(ProposalRef { id, author, tip, repos, families, staged })
    }

    /// Returns the repositories that a pull request is addressed to and that are served, or will be with this plan.
    fn served_and_addressed(&self, proposal: &Proposal) -> BTreeSet<RepoId> {
        let families = self.families.iter();
        let addressed = families.flat_map(|(name, family)| family.addressed_by(name, proposal));
        let served = addressed.filter(|(id, repo)| match id.identifier == *self.identifier {
            true => self.winners.contains_key(id),
            false => repo.presence == Presence::Stored,
        });
        served.map(|(id, _)| id.clone()).collect()
    }
}

fn families<'a>(
    policy: &Policy,
    held: &'a HeldEvents,
    identifier: &'a Identifier,
    stored: &'a StoredEvents,
) -> BTreeMap<&'a Identifier, HostedRepos> {
    let mut known: BTreeMap<&Identifier, Vec<(&Announcement, Presence)>> = BTreeMap::new();
    for (announcement, _) in &stored.announcements {
        let family = known.entry(&announcement.repo.identifier).or_default();
        family.push((announcement, Presence::Stored));
    }
    known.entry(identifier).or_default();
    let held = |identifier| held.of(identifier).filter_map(HeldEvent::announcement);
    let family = |(identifier, mut known): (&'a Identifier, Vec<_>)| {
        known.extend(held(identifier).map(|announcement| (&**announcement, Presence::Held)));
        (identifier, HostedRepos::new(policy, known))
    };
    known.into_iter().map(family).collect()
}

/// Returns the stored states and the held ones that are complete.
fn complete_states<'a>(
    held: &'a HeldEvents,
    identifier: &'a Identifier,
    survey: &'a Survey,
    stored: &'a StoredEvents,
) -> Vec<CompleteState<'a>> {
    let of_family = stored.states.iter().filter(|(state, _)| state.repo.identifier == *identifier);
    let stored = of_family.map(|(state, event)| CompleteState {
        state,
        presence: Presence::Stored,
        bytes: memory_of(event),
    });
    let complete = held.of(identifier).filter_map(|held| {
        let state = held.state()?;
        let is_complete = survey.complete.contains(&state.version.id) && state.tips().is_some();
        let complete = CompleteState { state, presence: Presence::Held, bytes: held.bytes };
        is_complete.then_some(complete)
    });
    stored.chain(complete).collect()
}

/// Returns each author's latest state.
fn latest<'a>(
    complete: impl Iterator<Item = &'a CompleteState<'a>>,
) -> BTreeMap<PublicKey, CompleteState<'a>> {
    let mut latest: BTreeMap<PublicKey, CompleteState<'a>> = BTreeMap::new();
    for signed in complete {
        let best = latest.entry(signed.state.repo.owner).or_insert(*signed);
        if signed.state.version > best.state.version {
            *best = *signed;
        }
    }
    latest
}

/// Returns the refs that states decide about.
fn branches_and_tags(refs: &BTreeMap<RefName, Oid>) -> Cow<'_, BTreeMap<RefName, Oid>> {
    if refs.keys().all(RefName::is_branch_or_tag) {
        return Cow::Borrowed(refs);
    }
    let decided = refs.iter().filter(|(name, _)| name.is_branch_or_tag());
    Cow::Owned(decided.map(|(name, oid)| (name.clone(), *oid)).collect())
}

fn tip_of(refs: &BTreeMap<RefName, Oid>, id: EventId) -> Option<Oid> {
    refs.get(&RefName::nostr(id)).copied()
}
