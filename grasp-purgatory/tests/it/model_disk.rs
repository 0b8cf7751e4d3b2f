//! The durable parts of the model: an event store, a git that knows objects by name only, and the records of purgatory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::deletion::{DeletionRequest, coordinate};
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::{Identifier, Namespace, Oid, RefName, RepoId, Version, kinds};
use grasp_purgatory::{CleanupTask, ProposalRef, PushTarget, Record, ViewTarget};
use nostr::event::{Event, EventId, Kind};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

pub(crate) type Refs = BTreeMap<RefName, Oid>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) journal: Vec<Record>,
    pub(crate) store: Store,
    pub(crate) git: Git,
}

/// Events that are served, by the rules of NIP-01 and NIP-09.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    events: BTreeMap<EventId, Arc<Event>>,
    /// Replaced versions, which are restored when their replacement is deleted.
    replaced: Vec<Arc<Event>>,
    requests: BTreeSet<EventId>,
    ever: BTreeSet<EventId>,
    deleted: BTreeSet<EventId>,
    deleted_until: BTreeMap<Coordinate, Timestamp>,
}

impl Store {
    pub(crate) fn contains(&self, id: &EventId) -> bool {
        self.events.contains_key(id) || self.requests.contains(id)
    }

    /// Returns whether an event is served, or was before it was deleted or replaced.
    pub(crate) fn has_ever_had(&self, id: &EventId) -> bool {
        self.ever.contains(id)
    }

    pub(crate) fn is_deleted(&self, event: &Event) -> bool {
        let until = coordinate(event).and_then(|place| self.deleted_until.get(&place));
        self.deleted.contains(&event.id) || until.is_some_and(|until| event.created_at <= *until)
    }

    /// Returns the served version at an event's coordinate.
    pub(crate) fn version_at(&self, event: &Event) -> Option<&Arc<Event>> {
        let place = coordinate(event)?;
        self.events.values().find(|other| coordinate(other).as_ref() == Some(&place))
    }

    /// Saves an event, and returns whether it is served afterwards.
    pub(crate) fn save(&mut self, event: &Arc<Event>) -> bool {
        if self.is_deleted(event) {
            return false;
        }
        let before = self.version_at(event).cloned();
        match before {
            Some(other) if other.id == event.id => return true,
            Some(other) if Version::of(&other) > Version::of(event) => return false,
            Some(other) => {
                self.events.remove(&other.id);
                self.replaced.push(other);
            }
            None => {}
        }
        self.ever.insert(event.id);
        self.events.insert(event.id, event.clone());
        true
    }

    pub(crate) fn remove(&mut self, id: &EventId) -> Option<Arc<Event>> {
        self.events.remove(id)
    }

    /// Deletes the events that a request names.
    pub(crate) fn delete(&mut self, request: &Event) {
        self.requests.insert(request.id);
        let targets = DeletionRequest::parse(request).unwrap();
        for place in targets.coordinates {
            self.deleted_until.insert(place, request.created_at);
        }
        let own = |event: &&Arc<Event>| event.pubkey == request.pubkey;
        let known: Vec<_> =
            self.events.values().chain(&self.replaced).filter(own).cloned().collect();
        let known: BTreeSet<_> = known.iter().map(|event| event.id).collect();
        // Ids that are not here yet are remembered too; the model deletes only own events.
        self.deleted.extend(targets.ids);
        let gone: Vec<_> = self.events.values().filter(|e| self.is_deleted(e)).cloned().collect();
        for event in gone.into_iter().filter(|event| known.contains(&event.id)) {
            self.events.remove(&event.id);
        }
    }

    /// The latest replaced state of each author who has none served.
    pub(crate) fn previous_states(&self, of: &Identifier) -> Vec<Arc<Event>> {
        let replaced = self.replaced.iter().filter(|event| event.kind == kinds::STATE);
        let own = replaced.filter(|event| identifier(event) == of.as_str());
        let alive = own.filter(|e| !self.is_deleted(e) && self.version_at(e).is_none());
        let mut latest: BTreeMap<_, &Arc<Event>> = BTreeMap::new();
        for event in alive {
            let best = latest.entry(event.pubkey).or_insert(event);
            if Version::of(event) > Version::of(best) {
                *best = event;
            }
        }
        latest.into_values().cloned().collect()
    }

    pub(crate) fn announcements(&self, of: &BTreeSet<Identifier>) -> Vec<Arc<Event>> {
        let of: Vec<_> = of.iter().map(Identifier::as_str).collect();
        let announcements = self.of_kind(kinds::ANNOUNCEMENT);
        announcements.filter(|event| of.contains(&identifier(event))).cloned().collect()
    }

    pub(crate) fn states(&self, of: &Identifier) -> Vec<Arc<Event>> {
        let states = self.of_kind(kinds::STATE);
        states.filter(|event| identifier(event) == of.as_str()).cloned().collect()
    }

    pub(crate) fn proposals(&self, of: &Identifier) -> Vec<Arc<Event>> {
        let named = |e: &Event| {
            let addressed = |repo: &RepoId| repo.identifier == *of;
            Proposal::parse(e).is_ok_and(|p| p.repos.iter().any(addressed))
        };
        self.of_kind(kinds::PULL_REQUEST).filter(|event| named(event)).cloned().collect()
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Arc<Event>> {
        self.events.values().filter(move |event| event.kind == kind)
    }
}

fn identifier(event: &Event) -> &str {
    let d = event.tags.iter().find(|tag| tag.kind() == "d");
    d.and_then(|tag| tag.content()).unwrap_or_default()
}

/// The objects that are here with all their history, and the refs of views.
#[derive(Clone, Debug, Default)]
pub(crate) struct Git {
    pub(crate) objects: BTreeMap<Identifier, BTreeSet<Oid>>,
    pub(crate) staging: BTreeMap<EventId, BTreeMap<Oid, PushTarget>>,
    pub(crate) views: BTreeMap<RepoId, Refs>,
    /// The states that the branches and tags of views are of.
    states: BTreeMap<RepoId, EventId>,
}

impl Git {
    pub(crate) fn has_all(&self, identifier: &Identifier, oids: &[Oid]) -> bool {
        let here = self.objects.get(identifier);
        oids.iter().all(|oid| here.is_some_and(|here| here.contains(oid)))
    }

    pub(crate) fn has_state(&self, state: &State) -> bool {
        state.tips().is_some_and(|tips| self.has_all(&state.repo.identifier, &tips))
    }

    /// Sets views and refs. Panics if their objects are not here.
    pub(crate) fn apply(
        &mut self,
        identifier: &Identifier,
        views: &[ViewTarget],
        proposals: &[ProposalRef],
    ) {
        for target in views {
            let declared = target.state.as_ref().map(|state| {
                assert!(self.has_state(state), "asked to show a state without its objects");
                declared(state)
            });
            let view = self.views.entry(target.repo.clone()).or_default();
            view.retain(|name, _| !name.is_branch_or_tag());
            view.extend(declared.unwrap_or_default());
            self.states.remove(&target.repo);
            let id = target.state.as_ref().map(|state| (target.repo.clone(), state.version.id));
            self.states.extend(id);
        }
        for proposal in proposals {
            self.set_proposal(identifier, proposal);
        }
    }

    /// Removes the refs that an event signed for.
    fn remove_refs_of(&mut self, event: &Event) {
        if event.kind == kinds::ANNOUNCEMENT {
            let repo = RepoId::new(event.pubkey, identifier(event).parse().unwrap());
            self.states.remove(&repo);
            self.views.remove(&repo);
        }
        for (repo, view) in &mut self.views {
            view.retain(|name, _| name.event() != Some(event.id));
            if self.states.get(repo) == Some(&event.id) {
                self.states.remove(repo);
                view.retain(|name, _| !name.is_branch_or_tag());
            }
        }
    }

    /// Returns whether staged tips are still there; their event may have been deleted meanwhile.
    pub(crate) fn can_apply(&self, proposals: &[ProposalRef]) -> bool {
        proposals.iter().all(|proposal| {
            let tips = self.staging.get(&proposal.id);
            proposal.staged.is_empty() || tips.is_some_and(|tips| tips.contains_key(&proposal.tip))
        })
    }

    fn set_proposal(&mut self, identifier: &Identifier, proposal: &ProposalRef) {
        if !proposal.staged.is_empty() {
            self.objects.entry(identifier.clone()).or_default().insert(proposal.tip);
        }
        let here = proposal.families.iter().any(|family| self.has_all(family, &[proposal.tip]));
        assert!(here, "asked to show a tip that is not here");
        for repo in &proposal.repos {
            self.objects.entry(repo.identifier.clone()).or_default().insert(proposal.tip);
            let view = self.views.entry(repo.clone()).or_default();
            view.insert(proposal_ref(&proposal.id), proposal.tip);
        }
    }

    /// Drops uploads that have no record.
    pub(crate) fn keep_staged(&mut self, known: &BTreeSet<(EventId, Oid)>) {
        for (id, tips) in &mut self.staging {
            tips.retain(|tip, _| known.contains(&(*id, *tip)));
        }
        self.staging.retain(|_, tips| !tips.is_empty());
    }

    /// Clears uploads and refs of a proposal under the given identifiers alone, as the driver does.
    pub(crate) fn clear(
        &mut self,
        id: &EventId,
        keep: &BTreeSet<Oid>,
        names: &BTreeSet<Identifier>,
        served: Option<Oid>,
    ) {
        let stays = |tip: &Oid| keep.contains(tip) || served == Some(*tip);
        let meant = |target: &PushTarget| match target {
            PushTarget::Repository(repo) | PushTarget::Contributor(repo) => {
                names.contains(&repo.identifier)
            }
        };
        if let Some(tips) = self.staging.get_mut(id) {
            tips.retain(|tip, target| keep.contains(tip) || !meant(target));
        }
        self.staging.retain(|_, tips| !tips.is_empty());
        let views = self.views.iter_mut().filter(|(repo, _)| names.contains(&repo.identifier));
        for (_, view) in views {
            view.retain(|name, tip| name.namespace() != Namespace::Nostr(*id) || stays(tip));
        }
    }
}

impl Disk {
    /// Sets refs, stores and withdraws events and ends their records, in one step; or does nothing and returns the
    /// events that the store refuses.
    pub(crate) fn release(
        &mut self,
        identifier: &Identifier,
        (views, proposals): (&[ViewTarget], &[ProposalRef]),
        (events, withdraw): (&[Arc<Event>], &[EventId]),
    ) -> BTreeSet<EventId> {
        let mut after = self.clone();
        let refused = events.iter().filter(|event| !after.store.save(event));
        let mut refused: BTreeSet<_> = refused.map(|event| event.id).collect();
        let states = views.iter().filter_map(|view| Some(view.state.as_ref()?.version.id));
        let required = states.chain(proposals.iter().map(|proposal| proposal.id));
        refused.extend(required.filter(|id| !after.store.contains(id)));
        if !refused.is_empty() {
            return refused;
        }
        withdraw.iter().for_each(|id| _ = after.store.remove(id));
        after.git.apply(identifier, views, proposals);
        let gone = |event: &Arc<Event>| Record::Gone { id: event.id };
        after.journal.extend(events.iter().map(gone));
        *self = after;
        refused
    }

    /// Deletes the events that a request names, with their refs.
    pub(crate) fn delete(&mut self, request: &Event) {
        let before = self.store.events.clone();
        self.store.delete(request);
        let gone = before.values().filter(|event| !self.store.contains(&event.id));
        gone.for_each(|event| self.git.remove_refs_of(event));
    }

    /// Stops serving an event and its refs.
    pub(crate) fn remove(&mut self, id: &EventId) {
        let removed = self.store.remove(id);
        removed.iter().for_each(|event| self.git.remove_refs_of(event));
    }

    /// Performs a task, and checks again before anything is removed.
    pub(crate) fn perform(
        &mut self,
        task: &CleanupTask,
        is_hosted: impl Fn(&Announcement) -> bool,
    ) {
        match task {
            CleanupTask::CreateView { repo } => _ = self.git.views.entry(repo.clone()).or_default(),
            CleanupTask::RemoveView { repo, .. } => {
                let stored = self.store.announcements(&BTreeSet::from([repo.identifier.clone()]));
                let stored = stored.iter().filter_map(|event| Announcement::parse(event).ok());
                if !stored.into_iter().any(|a| a.repo == *repo && is_hosted(&a)) {
                    self.git.views.remove(repo);
                }
            }
            CleanupTask::ClearProposal { id, keep, names } => {
                let served =
                    self.store.events.get(id).and_then(|e| Some(Proposal::parse(e).ok()?.tip));
                self.git.clear(id, keep, names, served);
            }
        }
    }
}

/// The refs that a state declares.
pub(crate) fn declared(state: &State) -> Refs {
    state.refs.iter().filter_map(|(name, at)| Some((name.clone(), (*at)?))).collect()
}

pub(crate) fn proposal_ref(id: &EventId) -> RefName {
    format!("refs/nostr/{id}").parse().unwrap()
}
