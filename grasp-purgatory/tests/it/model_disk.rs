//! The durable parts of the model: an event store, a git that knows objects by name only, and the records of purgatory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Needs;
use grasp_core::deletion::{DeletionRequest, coordinate};
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::service::Endpoint;
use grasp_core::{Oid, RefName, RepoId, Version, kinds};
use grasp_purgatory::{CleanupTask, ProposalRef, PushTarget, Record, RefsTarget, StateTarget};
use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;
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
    ever: BTreeMap<EventId, Arc<Event>>,
    deleted: BTreeSet<EventId>,
    deleted_until: BTreeMap<Coordinate, Timestamp>,
    delisted: BTreeMap<Coordinate, Version>,
}

impl Store {
    pub(crate) fn contains(&self, id: &EventId) -> bool {
        self.events.contains_key(id) || self.requests.contains(id)
    }

    /// Takes an event out of service for a while; returns it.
    pub(crate) fn hide(&mut self, id: &EventId) -> Arc<Event> {
        self.events.remove(id).unwrap()
    }

    /// Returns an event that is served, or was before it was deleted or replaced.
    pub(crate) fn ever(&self, id: &EventId) -> Option<&Arc<Event>> {
        self.ever.get(id)
    }

    /// Returns whether a newer version of an event is served, or was.
    pub(crate) fn has_had_newer(&self, event: &Event) -> bool {
        let Some(place) = coordinate(event) else {
            return false;
        };
        let version = Version::of(event);
        let mut ever = self.ever.values();
        ever.any(|other| coordinate(other).as_ref() == Some(&place) && Version::of(other) > version)
    }

    /// Returns whether a newer version has replaced an event.
    pub(crate) fn is_replaced(&self, id: &EventId) -> bool {
        self.replaced.iter().any(|event| event.id == *id)
    }

    pub(crate) fn is_deleted(&self, event: &Event) -> bool {
        let until = coordinate(event).and_then(|place| self.deleted_until.get(&place));
        self.deleted.contains(&event.id) || until.is_some_and(|until| event.created_at <= *until)
    }

    /// Returns the served version at an event's coordinate.
    pub(crate) fn version_at(&self, event: &Event) -> Option<&Arc<Event>> {
        let place = coordinate(event)?;
        self.events
            .values()
            .find(|other| coordinate(other).as_ref() == Some(&place))
    }

    /// Returns the served event at a coordinate of this author and identifier.
    fn head(&self, kind: Kind, repo: &RepoId) -> Option<&Arc<Event>> {
        self.of_kind(kind).find(|event| own_repo(event) == *repo)
    }

    pub(crate) fn announcement(&self, repo: &RepoId) -> Option<&Arc<Event>> {
        self.head(kinds::ANNOUNCEMENT, repo)
    }

    pub(crate) fn state(&self, repo: &RepoId) -> Option<&Arc<Event>> {
        self.head(kinds::STATE, repo)
    }

    /// Returns the version by which a repository was taken out of service.
    pub(crate) fn delisted_by(&self, event: &Event) -> Option<Version> {
        self.delisted.get(&coordinate(event)?).copied()
    }

    /// Returns whether the store refuses an event.
    pub(crate) fn refuses(&self, event: &Event) -> bool {
        let is_delisted = self
            .delisted_by(event)
            .is_some_and(|by| by > Version::of(event));
        self.is_deleted(event) || is_delisted
    }

    /// Saves an event, and returns whether it is served afterwards.
    pub(crate) fn save(&mut self, event: &Arc<Event>) -> bool {
        if self.refuses(event) {
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
        self.ever.insert(event.id, event.clone());
        self.events.insert(event.id, event.clone());
        true
    }

    /// Deletes the events that a request names, and returns those that were served.
    fn delete(&mut self, request: &Event) -> Vec<Arc<Event>> {
        self.requests.insert(request.id);
        let targets = DeletionRequest::parse(request).unwrap();
        for place in targets.coordinates {
            self.deleted_until.insert(place, request.created_at);
        }
        // Ids that are not here yet are remembered too; the model deletes only own events.
        self.deleted.extend(targets.ids);
        let served: Vec<_> = self.events.values().cloned().collect();
        let mut gone = Vec::new();
        for event in served {
            if event.pubkey == request.pubkey && self.is_deleted(&event) {
                self.events.remove(&event.id);
                gone.push(event);
            }
        }
        gone
    }

    /// Returns the state that an author without a served one had before, unless that is deleted.
    pub(crate) fn previous_state(&self, repo: &RepoId) -> Option<Arc<Event>> {
        let states = self
            .replaced
            .iter()
            .filter(|event| event.kind == kinds::STATE);
        let alive = states.filter(|event| own_repo(event) == *repo && !self.is_deleted(event));
        alive.max_by_key(|event| Version::of(event)).cloned()
    }

    /// Returns the authors of announcements that list the owner of a repository under its identifier, newest first.
    pub(crate) fn listing(&self, repo: &RepoId) -> Vec<PublicKey> {
        let mut announced: Vec<_> = self.of_kind(kinds::ANNOUNCEMENT).collect();
        announced.sort_by_key(|event| (Reverse(event.created_at), event.id));
        let mut listing = Vec::new();
        for event in announced {
            let announcement = Announcement::parse(event).unwrap();
            if announcement.repo.identifier == repo.identifier
                && announcement.maintainer_list.lists(&repo.owner)
            {
                listing.push(event.pubkey);
            }
        }
        listing
    }

    /// Returns the pull requests that name one of these repositories.
    pub(crate) fn addressed_to(&self, repos: &BTreeSet<RepoId>) -> Vec<Arc<Event>> {
        let names_one = |event: &&Arc<Event>| {
            Proposal::parse(event)
                .unwrap()
                .repos
                .iter()
                .any(|repo| repos.contains(repo))
        };
        self.of_kind(kinds::PULL_REQUEST)
            .filter(names_one)
            .cloned()
            .collect()
    }

    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Arc<Event>> {
        self.events.values().filter(move |event| event.kind == kind)
    }
}

/// Returns the repository that an event announces, or whose state it is.
fn own_repo(event: &Event) -> RepoId {
    Needs::of(event).repo.unwrap()
}

/// Returns the repositories that an event is about, as the relay reports them when it is removed.
fn repos_of(event: &Event) -> BTreeSet<RepoId> {
    let mut repos: BTreeSet<RepoId> = Needs::of(event).repo.into_iter().collect();
    let Ok(proposal) = Proposal::parse(event) else {
        return repos;
    };
    for named in proposal.repos {
        repos.insert(RepoId::new(proposal.author, named.identifier.clone()));
        repos.insert(named);
    }
    repos
}

/// A repository of one endpoint and its owner.
pub(crate) type Place = (Endpoint, RepoId);

/// One repository on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repo {
    /// The objects that are here with all their history. Those of others are not seen.
    pub(crate) objects: BTreeSet<Oid>,
    pub(crate) view: Option<View>,
}

/// The refs of a repository, and what is remembered with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) refs: Refs,
    /// The state whose branches and tags these are.
    pub(crate) state: Option<EventId>,
    pub(crate) maintainers: BTreeSet<PublicKey>,
    /// The owner of the repository that it is an address of.
    pub(crate) shows: Option<PublicKey>,
}

/// All repositories on disk, and the uploads that wait for their events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Git {
    pub(crate) repos: BTreeMap<Place, Repo>,
    pub(crate) staging: BTreeMap<EventId, BTreeSet<(Oid, PushTarget)>>,
}

/// Returns the place of a repository that is announced.
pub(crate) fn hosted(repo: &RepoId) -> Place {
    (Endpoint::Repository, repo.clone())
}

fn place_of(target: &PushTarget) -> Place {
    match target {
        PushTarget::Repository(repo) => (Endpoint::Repository, repo.clone()),
        PushTarget::Contributor(repo) => (Endpoint::PullRequests, repo.clone()),
    }
}

impl Git {
    pub(crate) fn repo_mut(&mut self, place: &Place) -> &mut Repo {
        self.repos.entry(place.clone()).or_default()
    }

    pub(crate) fn has_all<'a>(
        &self,
        place: &Place,
        oids: impl IntoIterator<Item = &'a Oid>,
    ) -> bool {
        let here = self.repos.get(place).map(|repo| &repo.objects);
        oids.into_iter()
            .all(|oid| here.is_some_and(|here| here.contains(oid)))
    }

    /// Returns whether a repository has all objects of a state.
    pub(crate) fn has_state(&self, repo: &RepoId, state: &State) -> bool {
        state
            .tips()
            .is_some_and(|tips| self.has_all(&hosted(repo), &tips))
    }

    pub(crate) fn view(&self, place: &Place) -> Option<&View> {
        self.repos.get(place)?.view.as_ref()
    }

    /// Returns the views of all announced repositories.
    pub(crate) fn views(&self) -> BTreeMap<RepoId, View> {
        let mut views = BTreeMap::new();
        for ((endpoint, repo), one) in &self.repos {
            if *endpoint == Endpoint::Repository {
                views.extend(one.view.clone().map(|view| (repo.clone(), view)));
            }
        }
        views
    }

    /// Returns the pull requests that have a ref in a repository.
    pub(crate) fn proposals(&self, place: &Place) -> BTreeSet<EventId> {
        let refs = self
            .view(place)
            .into_iter()
            .flat_map(|view| view.refs.keys());
        refs.filter_map(RefName::event).collect()
    }

    pub(crate) fn stage(&mut self, id: EventId, tip: Oid, target: PushTarget) {
        self.staging.entry(id).or_default().insert((tip, target));
    }

    /// Takes the objects of pull requests out of staging.
    pub(crate) fn promote(&mut self, proposals: &[ProposalRef]) {
        for proposal in proposals {
            let Some(staged) = self.staging.get(&proposal.id).cloned() else {
                continue;
            };
            for (tip, target) in staged {
                let place = place_of(&target);
                if tip == proposal.tip && proposal.places.contains(&place) {
                    self.repo_mut(&place).objects.insert(tip);
                    self.unstage(&proposal.id, |one| *one == (tip, target.clone()));
                }
            }
        }
    }

    fn unstage(&mut self, id: &EventId, is_gone: impl Fn(&(Oid, PushTarget)) -> bool) {
        let Some(staged) = self.staging.get_mut(id) else {
            return;
        };
        staged.retain(|one| !is_gone(one));
        if staged.is_empty() {
            self.staging.remove(id);
        }
    }

    /// Returns whether an upload is in staging, or was taken into its repository.
    pub(crate) fn has_upload(&self, id: &EventId, tip: Oid, target: &PushTarget) -> bool {
        let staged = self.staging.get(id);
        staged.is_some_and(|staged| staged.contains(&(tip, target.clone())))
            || self.has_all(&place_of(target), [&tip])
    }

    /// Sets the refs of a repository. Panics if their objects are not here.
    fn set_refs(&mut self, repo: &RepoId, target: &RefsTarget) {
        let place = hosted(repo);
        // The ref of a pull request makes no repository.
        let is_made = target.state != StateTarget::Unchanged || target.shows.is_some();
        if self.view(&place).is_some() || is_made {
            self.set_state(&place, target);
        }
        for proposal in &target.proposals {
            for place in &proposal.places {
                let makes_view = place.0 == Endpoint::PullRequests;
                let is_here = self.has_all(place, [&proposal.tip]);
                if is_here && (makes_view || self.view(place).is_some()) {
                    let view = self.repo_mut(place).view.get_or_insert_default();
                    view.refs.insert(proposal_ref(&proposal.id), proposal.tip);
                }
            }
        }
    }

    fn set_state(&mut self, place: &Place, target: &RefsTarget) {
        if let StateTarget::Show(state) = &target.state {
            let has_all = self.has_state(&place.1, state);
            assert!(has_all, "asked to show a state without its objects");
        }
        let view = self.repo_mut(place).view.get_or_insert_default();
        view.maintainers = target.maintainers.clone();
        view.shows = target.shows;
        if target.shows.is_some() {
            view.refs.clear();
            view.state = None;
            return;
        }
        if target.state == StateTarget::Unchanged {
            return;
        }
        view.refs.retain(|name, _| !name.is_branch_or_tag());
        view.state = None;
        if let StateTarget::Show(state) = &target.state {
            view.refs.extend(declared(state));
            view.state = Some(state.version.id);
        }
    }

    /// Removes the refs that an event signed for: exactly these.
    fn remove_refs_of(&mut self, event: &Event) {
        let own = Needs::of(event).repo;
        for ((endpoint, repo), one) in &mut self.repos {
            let Some(view) = &mut one.view else { continue };
            let is_own = *endpoint == Endpoint::Repository && own.as_ref() == Some(repo);
            let is_announced = event.kind == kinds::ANNOUNCEMENT && is_own;
            let is_shown = view.state == Some(event.id);
            view.shows = view.shows.filter(|_| !is_announced);
            view.refs.retain(|name, _| {
                let is_of_state = is_shown && name.is_branch_or_tag();
                !is_announced && !is_of_state && name.event() != Some(event.id)
            });
            view.state = view.state.filter(|_| !is_announced && !is_shown);
        }
    }

    /// Drops uploads that have no record.
    pub(crate) fn keep_staged(&mut self, known: &BTreeSet<(EventId, Oid)>) {
        for (id, staged) in &mut self.staging {
            staged.retain(|(tip, _)| known.contains(&(*id, *tip)));
        }
        self.staging.retain(|_, staged| !staged.is_empty());
    }

    /// Clears uploads and refs of a pull request at these repositories alone.
    fn clear(
        &mut self,
        id: &EventId,
        keep: &BTreeSet<Oid>,
        repos: &BTreeSet<RepoId>,
        served: Option<Oid>,
    ) {
        self.unstage(id, |(tip, target)| {
            !keep.contains(tip) && repos.contains(&place_of(target).1)
        });
        for ((_, repo), one) in &mut self.repos {
            if let Some(view) = one.view.as_mut().filter(|_| repos.contains(repo)) {
                view.refs.retain(|name, tip| {
                    name.event() != Some(*id) || keep.contains(tip) || served == Some(*tip)
                });
            }
        }
    }
}

impl Disk {
    /// Sets refs, stores and withdraws events and ends their records, in one step; or does nothing and returns the
    /// events that the store refuses.
    pub(crate) fn release(
        &mut self,
        repo: &RepoId,
        refs: &RefsTarget,
        events: &[Arc<Event>],
        withdraw: &[EventId],
    ) -> BTreeSet<EventId> {
        let mut after = self.clone();
        after.git.set_refs(repo, refs);
        for id in withdraw {
            after.store.events.remove(id);
        }
        let mut refused = BTreeSet::new();
        for event in events {
            if !after.store.save(event) {
                refused.insert(event.id);
            }
        }
        let mut required: Vec<EventId> = refs.proposals.iter().map(|it| it.id).collect();
        if let StateTarget::Show(state) = &refs.state {
            required.push(state.version.id);
        }
        refused.extend(required.into_iter().filter(|id| !after.store.contains(id)));
        if !refused.is_empty() {
            return refused;
        }
        after
            .journal
            .extend(events.iter().map(|event| Record::Gone { id: event.id }));
        *self = after;
        refused
    }

    /// Deletes the events that a request names, with their refs. Returns the repositories of which events were removed.
    pub(crate) fn delete(&mut self, request: &Event) -> BTreeSet<RepoId> {
        let mut affected = BTreeSet::new();
        for event in self.store.delete(request) {
            self.git.remove_refs_of(&event);
            affected.extend(repos_of(&event));
        }
        affected
    }

    /// Stops serving an event and its refs.
    pub(crate) fn remove(&mut self, id: &EventId) {
        if let Some(event) = self.store.events.remove(id) {
            self.git.remove_refs_of(&event);
        }
    }

    /// Takes a repository out of service because of an announcement that does not list this server.
    pub(crate) fn delist(&mut self, by: &Event) {
        let older = self
            .store
            .version_at(by)
            .filter(|stored| stored.id != by.id);
        if let Some(id) = older.map(|stored| stored.id) {
            self.remove(&id);
        }
        self.store
            .delisted
            .insert(coordinate(by).unwrap(), Version::of(by));
    }

    /// Performs a task, and checks again before anything is removed.
    pub(crate) fn perform(
        &mut self,
        task: &CleanupTask,
        is_hosted: impl Fn(&Announcement) -> bool,
    ) {
        match task {
            CleanupTask::CreateView { repo } => {
                self.git
                    .repo_mut(&hosted(repo))
                    .view
                    .get_or_insert_default();
            }
            CleanupTask::RemoveView { repo, .. } => {
                let stored = self.store.announcement(repo);
                let stored = stored.and_then(|event| Announcement::parse(event).ok());
                if !stored.is_some_and(|announcement| is_hosted(&announcement)) {
                    self.git.repo_mut(&hosted(repo)).view = None;
                }
            }
            CleanupTask::ClearProposal { id, keep, repos } => {
                let served = self
                    .store
                    .events
                    .get(id)
                    .and_then(|e| Some(Proposal::parse(e).ok()?.tip));
                self.git.clear(id, keep, repos, served);
            }
            // The model keeps every object.
            CleanupTask::ClearObjects { .. } => {}
        }
    }
}

/// The refs that a state declares.
pub(crate) fn declared(state: &State) -> Refs {
    state
        .refs
        .iter()
        .filter_map(|(name, at)| Some((name.clone(), (*at)?)))
        .collect()
}

pub(crate) fn proposal_ref(id: &EventId) -> RefName {
    format!("refs/nostr/{id}").parse().unwrap()
}
