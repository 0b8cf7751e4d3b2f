//! The held events, with their indexes and accounts. Only journal records change them, so replaying the records of a
//! run gives the held events of that run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Origin, Presence};
use grasp_core::nip34::{Announcement, Proposal, State};
use grasp_core::resources::Claimant;
use grasp_core::{Oid, RepoId, Version, kinds};
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::io::{Bound, Config, HoldOutcome, Outputs, Record};
use super::shares::Shares;

/// Repositories of one pull request at which it is handled; honest ones name one or two.
pub(super) const MAX_REPOS: usize = 16;

/// Memory of the largest event: any network may have that much waiting, while it is free.
const LARGEST_EVENT: u64 = 5 * 1024 * 1024;

/// The phase of a held event.
///
/// An event begins as [`Waiting`](Self::Waiting). Release, deletion or a newer version end it; the end of its time makes
/// it [`Expired`](Self::Expired). An expired event is released if its data appears, waits again if a user sends it or
/// a new state is signed for it, and is dropped at the end of its second term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Acknowledged and hunted for.
    Waiting,
    /// Remembered. An announcement has lost its view. A state or pull request is looked for once an hour, and a push
    /// may still bring its data.
    Expired,
}

/// One held event.
#[derive(Clone, Debug)]
pub(super) struct HeldEvent {
    pub(super) event: Arc<Event>,
    pub(super) content: Content,
    pub(super) phase: Phase,
    pub(super) since: Timestamp,
    /// End of the phase.
    pub(super) until: Timestamp,
    /// Approximate memory.
    pub(super) bytes: u64,
    /// Delay of the hunt for it: a user who sent it is about to push. Not remembered across restarts.
    pub(super) hunt_delay: Option<Duration>,
    /// Repositories whose next survey decides about it. Not remembered across restarts, when all are surveyed.
    pub(super) concerned: BTreeSet<RepoId>,
}

/// The parsed event.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Announcement(Arc<Announcement>),
    State(Arc<State>),
    Proposal(Proposal),
}

impl HeldEvent {
    /// Returns `None` if the event is none that waits for git data.
    pub(super) fn new(
        event: Arc<Event>,
        phase: Phase,
        since: Timestamp,
        until: Timestamp,
    ) -> Option<Self> {
        let content = match event.kind {
            kind if kind == kinds::ANNOUNCEMENT => {
                Content::Announcement(Arc::new(Announcement::parse(&event).ok()?))
            }
            kind if kind == kinds::STATE => Content::State(Arc::new(State::parse(&event).ok()?)),
            _ => Content::Proposal(Proposal::parse(&event).ok()?),
        };
        let bytes = memory_of(&event);
        let mut held = Self {
            event,
            content,
            phase,
            since,
            until,
            bytes,
            hunt_delay: None,
            concerned: BTreeSet::new(),
        };
        held.concerned = held.repos();
        Some(held)
    }

    pub(super) fn id(&self) -> EventId {
        self.event.id
    }

    pub(super) fn author(&self) -> PublicKey {
        self.event.pubkey
    }

    pub(super) fn version(&self) -> Version {
        Version::of(&self.event)
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.phase == Phase::Waiting
    }

    /// Returns the repositories that the event is about: the one that it announces or whose state it is; those that a
    /// pull request names, and its author's own for pull requests.
    pub(super) fn repos(&self) -> BTreeSet<RepoId> {
        match &self.content {
            Content::Announcement(announcement) => BTreeSet::from([announcement.repo.clone()]),
            Content::State(state) => BTreeSet::from([state.repo.clone()]),
            Content::Proposal(proposal) => repos_of(proposal),
        }
    }

    pub(super) fn announcement(&self) -> Option<&Arc<Announcement>> {
        if let Content::Announcement(announcement) = &self.content {
            Some(announcement)
        } else {
            None
        }
    }

    pub(super) fn state(&self) -> Option<&Arc<State>> {
        if let Content::State(state) = &self.content {
            Some(state)
        } else {
            None
        }
    }

    pub(super) fn proposal(&self) -> Option<&Proposal> {
        if let Content::Proposal(proposal) = &self.content {
            Some(proposal)
        } else {
            None
        }
    }

    /// Returns the objects that it waits for.
    pub(super) fn tips(&self) -> BTreeSet<Oid> {
        match &self.content {
            Content::State(state) => state.tips().into_iter().flatten().collect(),
            Content::Proposal(proposal) => BTreeSet::from([proposal.tip]),
            Content::Announcement(_) => BTreeSet::new(),
        }
    }

    /// Returns the keys that an announcement lists, each with the identifier.
    fn listed(&self) -> Vec<RepoId> {
        let Some(announcement) = self.announcement() else {
            return Vec::new();
        };
        let listed = announcement.maintainer_list.listed.iter();
        listed
            .map(|key| RepoId::new(*key, announcement.repo.identifier.clone()))
            .collect()
    }

    /// Returns the claimant of the event's memory. Events from other relays are accounted to their author alone.
    pub(super) fn claimant(&self, presence: Presence, origin: &Origin) -> Claimant {
        let claimant = Claimant::maybe_at(origin.claimant().network).signed_by(self.author());
        if presence == Presence::Stored {
            claimant.with_authority()
        } else {
            claimant
        }
    }
}

/// Returns the repositories at which a pull request is handled.
pub(super) fn repos_of(proposal: &Proposal) -> BTreeSet<RepoId> {
    let mut repos = BTreeSet::new();
    let has_own = proposal
        .clone
        .iter()
        .any(|url| url.as_str().contains("/prs/"));
    for named in proposal.repos.iter().take(MAX_REPOS) {
        repos.insert(named.clone());
        if has_own {
            repos.insert(RepoId::new(proposal.author, named.identifier.clone()));
        }
    }
    repos
}

/// Returns the approximate memory of an event and its parsed form.
pub(super) fn memory_of(event: &Event) -> u64 {
    const FIXED: usize = 512;
    const PER_VALUE: usize = 48;
    let values = event.tags.iter().flat_map(|tag| tag.as_slice());
    let tags: usize = values.map(|value| value.len() + PER_VALUE).sum();
    (FIXED + event.content.len() + 2 * tags) as u64
}

/// A number of items and their size.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    pub(super) count: usize,
    pub(super) bytes: u64,
}

impl Total {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn subtract(&mut self, bytes: u64) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(super) fn is_within(self, bound: Bound) -> bool {
        self.count <= bound.count && self.bytes <= bound.bytes
    }
}

/// The waiting events by author and by repository; and the expired ones.
#[derive(Debug, Default)]
struct HeldUsage {
    authors: BTreeMap<PublicKey, Total>,
    repos: BTreeMap<RepoId, Total>,
    expired: Total,
}

impl HeldUsage {
    fn add(&mut self, held: &HeldEvent) {
        if !held.is_waiting() {
            return self.expired.add(held.bytes);
        }
        self.authors
            .entry(held.author())
            .or_default()
            .add(held.bytes);
        for repo in held.repos() {
            self.repos.entry(repo).or_default().add(held.bytes);
        }
    }

    fn remove(&mut self, held: &HeldEvent) {
        if !held.is_waiting() {
            return self.expired.subtract(held.bytes);
        }
        subtract(&mut self.authors, &held.author(), held.bytes);
        for repo in held.repos() {
            subtract(&mut self.repos, &repo, held.bytes);
        }
    }

    /// Checks a new event against the limits of its author and repositories, without the event that it displaces.
    ///
    /// Any client can send pull requests, so states of served repositories are not counted against a repository.
    fn has_room(
        &self,
        config: &Config,
        new: &HeldEvent,
        displaced: Option<&HeldEvent>,
        presence: Presence,
    ) -> bool {
        let freed = displaced.filter(|held| held.is_waiting());
        let fits = |before: Option<&Total>, bound: Bound| {
            let mut total = before.copied().unwrap_or_default();
            if let Some(held) = freed {
                total.subtract(held.bytes);
            }
            total.add(new.bytes);
            total.is_within(bound)
        };
        let fits_repo = |repo: &RepoId| fits(self.repos.get(repo), config.per_repo);
        (presence == Presence::Stored || new.repos().iter().all(fits_repo))
            && fits(self.authors.get(&new.author()), config.per_author)
    }
}

/// Subtracts one item from an account, and removes the account with its last item.
fn subtract<K: Ord>(accounts: &mut BTreeMap<K, Total>, key: &K, bytes: u64) {
    if let Some(total) = accounts.get_mut(key) {
        total.subtract(bytes);
        if total.count == 0 {
            accounts.remove(key);
        }
    }
}

/// All held events.
#[derive(Debug)]
pub(super) struct HeldEvents {
    events: BTreeMap<EventId, HeldEvent>,
    by_repo: BTreeMap<RepoId, BTreeSet<EventId>>,
    /// Authors of announcements by the keys that they list, each with the identifier.
    listing: BTreeMap<RepoId, BTreeSet<PublicKey>>,
    /// Events by the end of their phase.
    deadlines: BTreeMap<Phase, BTreeSet<(Timestamp, EventId)>>,
    usage: HeldUsage,
    /// Shares of the memory for waiting events.
    memory: Shares<Option<PublicKey>>,
}

impl HeldEvents {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            events: BTreeMap::new(),
            by_repo: BTreeMap::new(),
            listing: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            usage: HeldUsage::default(),
            memory: Shares::new(config.total, config.total.bytes / 4, LARGEST_EVENT, |one| {
                one.author
            }),
        }
    }

    /// Makes one change. Events that cannot be parsed can never be released, and are skipped.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Held {
                event,
                phase,
                since,
                until,
            } => {
                self.take(&event.id);
                if let Some(held) = HeldEvent::new(event.clone(), *phase, *since, *until) {
                    self.insert(held);
                }
            }
            Record::Moved { id, phase, until } => {
                if let Some(held) = self.take(id) {
                    self.insert(HeldEvent {
                        phase: *phase,
                        until: *until,
                        ..held
                    });
                }
            }
            Record::Gone { id } => _ = self.take(id),
            _ => {}
        }
    }

    fn record(&mut self, out: &mut Outputs, id: &EventId, record: Record) {
        self.apply(&record);
        self.account(id);
        out.write(record);
    }

    pub(super) fn hold(
        &mut self,
        out: &mut Outputs,
        event: &Arc<Event>,
        since: Timestamp,
        until: Timestamp,
    ) {
        let record = Record::Held {
            event: event.clone(),
            phase: Phase::Waiting,
            since,
            until,
        };
        self.record(out, &event.id, record);
    }

    pub(super) fn set_phase(
        &mut self,
        out: &mut Outputs,
        id: EventId,
        phase: Phase,
        until: Timestamp,
    ) {
        self.record(out, &id, Record::Moved { id, phase, until });
    }

    /// Ends an event whose record is gone already.
    pub(super) fn released(&mut self, id: EventId) {
        self.apply(&Record::Gone { id });
        self.account(&id);
    }

    pub(super) fn remove(&mut self, out: &mut Outputs, id: EventId) {
        self.record(out, &id, Record::Gone { id });
    }

    /// Makes the memory shares agree with an event.
    fn account(&mut self, id: &EventId) {
        match self.events.get(id).filter(|held| held.is_waiting()) {
            Some(held) => {
                let claimant = Claimant::default().signed_by(held.author());
                self.memory.add(*id, claimant, held.bytes);
            }
            None => self.memory.release(id),
        }
    }

    /// Accounts the events of an earlier run to their authors: the networks that sent them are no longer known.
    pub(super) fn account_all(&mut self) {
        let ids: Vec<EventId> = self.events.keys().copied().collect();
        ids.iter().for_each(|id| self.account(id));
    }

    pub(super) fn get(&self, id: &EventId) -> Option<&HeldEvent> {
        self.events.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &HeldEvent> {
        self.events.values()
    }

    /// Returns the events that are about a repository.
    pub(super) fn of(&self, repo: &RepoId) -> impl Iterator<Item = &HeldEvent> {
        let ids = self.by_repo.get(repo).into_iter().flatten();
        ids.filter_map(|id| self.events.get(id))
    }

    pub(super) fn announcement(&self, repo: &RepoId) -> Option<&HeldEvent> {
        self.of(repo).find(|held| held.announcement().is_some())
    }

    /// Returns the authors of announcements that list the owner of a repository under its identifier.
    pub(super) fn listing(&self, repo: &RepoId) -> BTreeSet<PublicKey> {
        self.listing.get(repo).cloned().unwrap_or_default()
    }

    /// Returns whether a waiting announcement asks for the view of a repository.
    pub(super) fn has_view(&self, repo: &RepoId) -> bool {
        self.announcement(repo).is_some_and(HeldEvent::is_waiting)
    }

    /// Returns the states of a repository that its owner signed.
    pub(super) fn states(&self, repo: &RepoId) -> impl Iterator<Item = &HeldEvent> {
        self.of(repo).filter(|held| held.state().is_some())
    }

    pub(super) fn repos(&self) -> impl Iterator<Item = &RepoId> {
        self.by_repo.keys()
    }

    /// Returns the events of a phase with its end, the next to end first.
    pub(super) fn deadlines(&self, phase: Phase) -> impl Iterator<Item = (Timestamp, &HeldEvent)> {
        let ends = self.deadlines.get(&phase).into_iter().flatten();
        ends.filter_map(|(until, id)| Some((*until, self.events.get(id)?)))
    }

    pub(super) fn expired(&self) -> Total {
        self.usage.expired
    }

    /// Returns the event that a new one displaces, or the reason why the new one is not held. Changes nothing.
    pub(super) fn check(
        &self,
        config: &Config,
        new: &HeldEvent,
        presence: Presence,
    ) -> Result<Option<EventId>, HoldOutcome> {
        let displaced = self.displaced(config, new)?;
        match self.usage.has_room(config, new, displaced, presence) {
            true => Ok(displaced.map(HeldEvent::id)),
            false => Err(HoldOutcome::Full),
        }
    }

    fn displaced(
        &self,
        config: &Config,
        new: &HeldEvent,
    ) -> Result<Option<&HeldEvent>, HoldOutcome> {
        let others = match &new.content {
            Content::Announcement(announcement) => {
                self.announcement(&announcement.repo).into_iter().collect()
            }
            Content::State(state) => {
                let states = self.states(&state.repo);
                let others = states.filter(|held| held.is_waiting() && held.id() != new.id());
                let others: Vec<_> = others.collect();
                if others.len() < config.states_per_author {
                    return Ok(None);
                }
                others
            }
            Content::Proposal(_) => Vec::new(),
        };
        match others.into_iter().min_by_key(|held| held.version()) {
            Some(oldest) if oldest.version() > new.version() => Err(HoldOutcome::Superseded),
            oldest => Ok(oldest.filter(|held| held.id() != new.id())),
        }
    }

    /// Reserves memory for a new event in place of the displaced one. Returns the events that must be evicted, and
    /// whether there is room.
    pub(super) fn reserve(
        &mut self,
        new: &HeldEvent,
        claimant: Claimant,
        displaced: Option<EventId>,
    ) -> (Vec<EventId>, bool) {
        if let Some(id) = &displaced {
            self.memory.release(id);
        }
        let is_spared = |id: &EventId| Some(*id) == displaced;
        let reserved = self
            .memory
            .reserve(new.id(), claimant, new.bytes, is_spared);
        if let (false, Some(id)) = (reserved.1, displaced) {
            self.account(&id);
        }
        reserved
    }

    /// Sets the delay of the hunt for an event.
    pub(super) fn set_hunt_delay(&mut self, id: EventId, delay: Option<Duration>) {
        if let Some(held) = self.events.get_mut(&id) {
            held.hunt_delay = delay;
        }
    }

    /// Sets the repositories whose next survey decides about an event.
    pub(super) fn set_concerned(&mut self, id: EventId, repos: BTreeSet<RepoId>) {
        if let Some(held) = self.events.get_mut(&id) {
            held.concerned = repos;
        }
    }

    /// Accounts an event to the claimants with authority from now on.
    pub(super) fn authorise(&mut self, id: EventId) {
        self.memory.authorise(id);
    }

    pub(super) fn has_authority(&self, id: &EventId) -> bool {
        self.memory.has_authority(id)
    }

    fn insert(&mut self, held: HeldEvent) {
        let id = held.id();
        self.usage.add(&held);
        self.deadlines
            .entry(held.phase)
            .or_default()
            .insert((held.until, id));
        for repo in held.repos() {
            self.by_repo.entry(repo).or_default().insert(id);
        }
        for listed in held.listed() {
            self.listing
                .entry(listed)
                .or_default()
                .insert(held.author());
        }
        self.events.insert(id, held);
    }

    fn take(&mut self, id: &EventId) -> Option<HeldEvent> {
        let held = self.events.remove(id)?;
        self.usage.remove(&held);
        remove_from(&mut self.deadlines, &held.phase, &(held.until, *id));
        for repo in held.repos() {
            remove_from(&mut self.by_repo, &repo, id);
        }
        for listed in held.listed() {
            remove_from(&mut self.listing, &listed, &held.author());
        }
        Some(held)
    }
}

/// Removes a value from the set of a key, and the set with its last value.
fn remove_from<K: Ord, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}
