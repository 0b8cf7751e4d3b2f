//! How things should be under one identifier, compared with how they are.
//!
//! Three rules decide everything that purgatory releases:
//!
//! - A view shows the winning state among those signed by whoever may sign for it now, stored or kept, of which all
//!   objects are here. Without one it shows nothing.
//! - A hosted announcement is served exactly while its view shows a state.
//! - A complete state is served exactly while its author may sign for anything here and it is that author's latest;
//!   whether it moves any ref is the first rule's business.
//!
//! They speak of what is known, not of the order in which it came. So neither does the outcome.

mod proposals;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Policy;
use grasp_core::admission::Presence;
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{Identifier, Oid, RefName, RepoId, Version};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;

use super::entry::{Entry, What, Why};
use super::family::Family;
use super::input::Survey;
use super::ledger::Ledger;
use super::output::{ProposalRef, ViewTarget};

/// What has to be done until things are as they should be.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Entries with nothing left to wait for.
    pub(super) gone: Vec<(EventId, Why)>,
    /// Views of repositories that nobody announces here.
    pub(super) orphans: Vec<RepoId>,
    /// Pull requests with refs that are neither kept nor stored.
    pub(super) strays: Vec<EventId>,
    /// Views that must change.
    pub(super) views: Vec<ViewTarget>,
    /// Pull requests whose refs must be set.
    pub(super) proposals: Vec<ProposalRef>,
    /// Events to be stored, in order.
    pub(super) store: Vec<Arc<Event>>,
    /// Kept states of those who may sign for something served.
    pub(super) authorised: Vec<EventId>,
    /// Stored announcements that have lost their state, and states whose author has lost their say.
    pub(super) withdraw: Vec<Arc<Event>>,
}

/// Compares what is kept and what was surveyed with the rules.
pub(super) fn plan(
    policy: &Policy,
    ledger: &Ledger,
    identifier: &Identifier,
    survey: &Survey,
) -> Plan {
    let stored = Stored::read(survey);
    let scene = Scene::new(policy, ledger, identifier, survey, &stored);
    let proposals = scene.proposals();
    Plan {
        gone: scene.gone(),
        orphans: scene.orphans(),
        strays: scene.strays(),
        views: scene.views(),
        store: scene.releases(&proposals),
        withdraw: scene.withdrawals(),
        authorised: scene.authorised(),
        proposals,
    }
}

/// What is stored, read.
struct Stored {
    announcements: Vec<(Announcement, Arc<Event>)>,
    states: Vec<State>,
    proposals: Vec<Proposal>,
}

impl Stored {
    fn read(survey: &Survey) -> Self {
        let announcement =
            |event: &Arc<Event>| Some((Announcement::parse(event).ok()?, event.clone()));
        let proposal = |event: &Arc<Event>| Proposal::parse(event).ok();
        Self {
            announcements: survey.announcements.iter().filter_map(announcement).collect(),
            states: survey.states.iter().filter_map(|event| State::parse(event).ok()).collect(),
            proposals: survey.proposals.iter().filter_map(proposal).collect(),
        }
    }
}

/// A state that could be shown.
#[derive(Clone, Copy)]
struct Signed<'a> {
    state: &'a State,
    presence: Presence,
}

/// Everything that bears on one identifier.
struct Scene<'a> {
    policy: &'a Policy,
    ledger: &'a Ledger,
    identifier: &'a Identifier,
    survey: &'a Survey,
    stored: &'a Stored,
    /// By identifier: this one, and those that pull requests kept here are also addressed to.
    families: BTreeMap<&'a Identifier, Family>,
    /// Each author's latest state whose objects are here.
    latest: BTreeMap<PublicKey, Signed<'a>>,
    /// What each hosted view should show.
    winners: BTreeMap<RepoId, Signed<'a>>,
}

impl<'a> Scene<'a> {
    fn new(
        policy: &'a Policy,
        ledger: &'a Ledger,
        identifier: &'a Identifier,
        survey: &'a Survey,
        stored: &'a Stored,
    ) -> Self {
        let families = families(policy, ledger, identifier, stored);
        let latest = latest(ledger, identifier, survey, stored);
        let places = families.get(identifier).into_iter().flat_map(|family| &family.places);
        let winners = places
            .filter_map(|(repo, place)| {
                let signed = place.confirmed.iter().filter_map(|key| latest.get(key));
                let winner = signed.max_by_key(|signed| signed.state.version)?;
                Some((repo.clone(), *winner))
            })
            .collect();
        Self { policy, ledger, identifier, survey, stored, families, latest, winners }
    }

    fn family(&self) -> Option<&Family> {
        self.families.get(self.identifier)
    }

    /// Entries that are served already, or can never be.
    fn gone(&self) -> Vec<(EventId, Why)> {
        let settled = |entry: &Entry| Some((entry.id(), self.settles(entry)?));
        self.ledger.family(self.identifier).filter_map(settled).collect()
    }

    fn settles(&self, entry: &Entry) -> Option<Why> {
        match &entry.what {
            What::State(state) => {
                let of_author = self.stored.states.iter().filter(|other| other.repo == state.repo);
                superseded(entry.version(), of_author.map(|state| state.version))
            }
            What::Announcement(new) => {
                let own = self.stored.announcements.iter().map(|(announcement, _)| announcement);
                let own = own.filter(|stored| stored.repo == new.repo);
                superseded(entry.version(), own.map(|stored| stored.version))
            }
            What::Proposal(_) => {
                let stored = self.stored.proposals.iter().any(|p| p.id == entry.id());
                stored.then_some(Why::Served)
            }
        }
    }

    /// Views of this identifier that exist although nobody announces them here.
    fn orphans(&self) -> Vec<RepoId> {
        let announced = |repo: &RepoId| self.family().is_some_and(|f| f.places.contains_key(repo));
        let views = self.survey.views.keys().filter(|repo| repo.identifier == *self.identifier);
        views.filter(|repo| !announced(repo)).cloned().collect()
    }

    /// Pull requests whose refs have stayed although they are gone: their author took them back.
    fn strays(&self) -> Vec<EventId> {
        let strays = self.survey.strays.iter();
        strays.filter(|id| self.ledger.entry(id).is_none()).copied().collect()
    }

    /// Views that do not show what they should. A state that is about to be served is applied even where its refs
    /// are in place: HEAD is part of it.
    fn views(&self) -> Vec<ViewTarget> {
        let places = self.family().into_iter().flat_map(|family| family.places.keys());
        places
            .filter_map(|repo| {
                let refs = self.survey.views.get(repo);
                let state = match self.winners.get(repo) {
                    Some(Signed { state, presence: Presence::Held }) => Some((*state).clone()),
                    Some(Signed { state, .. }) if !refs.is_some_and(|refs| shows(refs, state)) => {
                        Some((*state).clone())
                    }
                    None if refs.is_some_and(|refs| ruled(refs).next().is_some()) => None,
                    _ => return None,
                };
                Some(ViewTarget { repo: repo.clone(), state })
            })
            .collect()
    }

    /// Events whose data is here: announcements, states from the oldest, pull requests.
    fn releases(&self, proposals: &[ProposalRef]) -> Vec<Arc<Event>> {
        let places = self.family().into_iter().flat_map(|family| &family.places);
        let announcements = places
            .filter(|(repo, place)| {
                place.presence == Presence::Held && self.winners.contains_key(repo)
            })
            .filter_map(|(_, place)| self.ledger.entry(&place.announced_by));
        let mut states: Vec<_> =
            self.latest.values().filter(|signed| self.is_released(signed)).collect();
        states.sort_by_key(|signed| signed.state.version);
        let states = states.into_iter().filter_map(|s| self.ledger.entry(&s.state.version.id));
        // Stored ones are among them where another view must get their ref; those are no entries.
        let proposals = proposals.iter().filter_map(|proposal| self.ledger.entry(&proposal.id));
        announcements.chain(states).chain(proposals).map(|entry| entry.event.clone()).collect()
    }

    fn authorised(&self) -> Vec<EventId> {
        let places = || self.family().into_iter().flat_map(|family| family.places.values());
        let rules = |author: PublicKey| {
            places().any(|p| p.presence == Presence::Stored && p.confirmed.contains(&author))
        };
        let states = self.ledger.family(self.identifier).filter(|entry| entry.state().is_some());
        states.filter(|entry| rules(entry.author())).map(Entry::id).collect()
    }

    fn is_released(&self, signed: &Signed<'_>) -> bool {
        let author = &signed.state.repo.owner;
        signed.presence == Presence::Held
            && self.family().is_some_and(|family| family.is_ruled_by(author))
    }

    /// Whatever is served and should no longer be. It is kept: what it lacks may come back.
    fn withdrawals(&self) -> Vec<Arc<Event>> {
        self.unfilled().chain(self.unruling()).collect()
    }

    /// States that are served although their author may sign for nothing here.
    fn unruling(&self) -> impl Iterator<Item = Arc<Event>> {
        let rules = |author| self.family().is_some_and(|family| family.is_ruled_by(author));
        let own = |event: &Arc<Event>| {
            State::parse(event).is_ok_and(|state| state.repo.identifier == *self.identifier)
        };
        let states = self.survey.states.iter();
        states.filter(move |event| own(event) && !rules(&event.pubkey)).cloned()
    }

    /// Announcements that are served although nobody who may has signed what their view should show.
    fn unfilled(&self) -> impl Iterator<Item = Arc<Event>> {
        let places = self.family().into_iter().flat_map(|family| &family.places);
        let unfilled: BTreeSet<EventId> = places
            .filter(|(repo, place)| {
                place.presence == Presence::Stored && !self.winners.contains_key(repo)
            })
            .map(|(_, place)| place.announced_by)
            .collect();
        let stored = self.stored.announcements.iter().map(|(_, event)| event);
        stored.filter(move |event| unfilled.contains(&event.id)).cloned()
    }
}

fn families<'a>(
    policy: &Policy,
    ledger: &'a Ledger,
    identifier: &'a Identifier,
    stored: &'a Stored,
) -> BTreeMap<&'a Identifier, Family> {
    let mut known: BTreeMap<&Identifier, Vec<(&Announcement, Presence)>> = BTreeMap::new();
    for (announcement, _) in &stored.announcements {
        let family = known.entry(&announcement.repo.identifier).or_default();
        family.push((announcement, Presence::Stored));
    }
    known.entry(identifier).or_default();
    let kept = |identifier| ledger.family(identifier).filter_map(Entry::announcement);
    known
        .into_iter()
        .map(|(identifier, mut known)| {
            known.extend(kept(identifier).map(|announcement| (announcement, Presence::Held)));
            (identifier, Family::new(policy, known))
        })
        .collect()
}

/// Each author's latest state among the stored ones and the kept ones that are complete.
fn latest<'a>(
    ledger: &'a Ledger,
    identifier: &'a Identifier,
    survey: &'a Survey,
    stored: &'a Stored,
) -> BTreeMap<PublicKey, Signed<'a>> {
    let of_family = stored.states.iter().filter(|state| state.repo.identifier == *identifier);
    let stored = of_family.map(|state| Signed { state, presence: Presence::Stored });
    let kept = ledger.family(identifier).filter_map(Entry::state);
    let complete = kept
        .filter(|state| survey.complete.contains(&state.version.id) && state.tips().is_some())
        .map(|state| Signed { state, presence: Presence::Held });
    let mut latest: BTreeMap<PublicKey, Signed<'a>> = BTreeMap::new();
    for signed in stored.chain(complete) {
        let author = signed.state.repo.owner;
        let best = latest.entry(author).or_insert(signed);
        if signed.state.version > best.state.version {
            *best = signed;
        }
    }
    latest
}

/// Whether a version is stored, or a better one is.
fn superseded(version: Version, stored: impl Iterator<Item = Version>) -> Option<Why> {
    let best = stored.max()?;
    match best.cmp(&version) {
        std::cmp::Ordering::Greater => Some(Why::Superseded),
        std::cmp::Ordering::Equal => Some(Why::Served),
        std::cmp::Ordering::Less => None,
    }
}

/// The refs that states rule.
fn ruled(refs: &BTreeMap<RefName, Oid>) -> impl Iterator<Item = (&RefName, &Oid)> {
    refs.iter().filter(|(name, _)| name.is_branch_or_tag())
}

/// Whether a view shows exactly what a state declares.
fn shows(refs: &BTreeMap<RefName, Oid>, state: &State) -> bool {
    let ruled = ruled(refs).map(|(name, oid)| (name.clone(), *oid)).collect();
    state.is_realised_by(&ruled)
}
