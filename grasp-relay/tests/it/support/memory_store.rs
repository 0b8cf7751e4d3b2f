//! An event store in memory that applies every rule by a scan of a list.
//!
//! It shares no code with the stores of this crate except the parsers of requests in `grasp-core`, so the model tests
//! can compare those stores with it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future;
use futures_util::stream;
use grasp_core::admission::{Needs, Outcome, Presence, Rejection, is_expired};
use grasp_core::deletion::{self, DeletionRequest, vanishes_from};
use grasp_core::nip34::{Announcement, Proposal, References};
use grasp_core::{RepoId, Version, kinds};
use grasp_relay::store::{
    EventChunks, EventStore, Inventory, Present, SaveReport, StoreError, StoreFuture, StoreRules,
    StoredEvent, SweepReport,
};
use nostr::event::{Event, EventId, Kind};
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

/// An [`EventStore`] whose events last as long as the value.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    rules: StoreRules,
    state: Mutex<State>,
    uses: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    served: Vec<Arc<Event>>,
    superseded: Vec<Arc<Event>>,
    requests: Vec<Request>,
    vanished: BTreeMap<PublicKey, Timestamp>,
    delisted: BTreeMap<Coordinate, Version>,
    /// Repositories that lost events, until a commit reports them.
    affected: BTreeSet<RepoId>,
    /// Events that were removed without a replacement, until it is reported.
    removed: BTreeSet<EventId>,
    closed: bool,
}

/// A deletion request, remembered beyond its event.
#[derive(Debug)]
struct Request {
    event: Arc<Event>,
    targets: DeletionRequest,
    clock: u64,
    retired: bool,
}

impl MemoryStore {
    /// An empty store under these rules.
    pub(crate) fn new(rules: StoreRules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// Returns how often it was read or written.
    pub(crate) fn uses(&self) -> usize {
        self.uses.load(Ordering::SeqCst)
    }

    fn open(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        self.uses.fetch_add(1, Ordering::SeqCst);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.closed {
            true => Err(StoreError::Closed),
            false => Ok(state),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&StoreRules, &mut State) -> T) -> StoreFuture<'_, T>
    where
        T: Send + 'static,
    {
        let done = self.open().map(|mut state| work(&self.rules, &mut state));
        Box::pin(future::ready(done))
    }
}

impl EventStore for MemoryStore {
    fn save_events(&self, events: Vec<Arc<Event>>, now: Timestamp) -> StoreFuture<'_, SaveReport> {
        self.with(|rules, state| {
            state.expire(now);
            let saved = events
                .into_iter()
                .map(|event| state.save(rules, event, now))
                .collect();
            SaveReport {
                saved,
                affected: std::mem::take(&mut state.affected),
                removed: std::mem::take(&mut state.removed),
            }
        })
    }

    fn refusals(
        &self,
        events: Vec<Arc<Event>>,
        now: Timestamp,
    ) -> StoreFuture<'_, Vec<Option<Rejection>>> {
        self.with(|_, state| {
            events
                .iter()
                .map(|event| state.known_refusal(event, now))
                .collect::<Vec<_>>()
        })
    }

    fn query(&self, filters: Vec<Filter>, now: Timestamp) -> EventChunks {
        let found = self.open().map(|state| state.find(&filters, now));
        let stored = |event: &Arc<Event>| StoredEvent {
            id: event.id,
            created_at: event.created_at,
            json: event.as_json().into(),
        };
        let chunks: Vec<_> = match found {
            Ok(events) => events
                .chunks(100)
                .map(|chunk| Ok(chunk.iter().map(stored).collect()))
                .collect(),
            Err(error) => vec![Err(error)],
        };
        stream::iter(chunks).boxed()
    }

    fn count(&self, filters: Vec<Filter>, now: Timestamp) -> StoreFuture<'_, u64> {
        self.with(|_, state| state.find(&filters, now).len() as u64)
    }

    fn exists(&self, questions: Vec<Vec<Filter>>, now: Timestamp) -> StoreFuture<'_, Vec<bool>> {
        self.with(|_, state| {
            questions
                .iter()
                .map(|filters| !state.find(filters, now).is_empty())
                .collect()
        })
    }

    fn present(&self, named: References, now: Timestamp) -> StoreFuture<'_, Present> {
        self.with(|_, state| {
            let found = state.find(&[Filter::new()], now);
            let ids = found
                .iter()
                .map(|event| event.id)
                .filter(|id| named.ids.contains(id));
            let versions = found.iter().filter_map(|event| {
                let at = deletion::coordinate(event).filter(|at| named.coordinates.contains(at))?;
                Some((at, Version::of(event)))
            });
            Present {
                ids: ids.collect(),
                versions: versions.collect(),
            }
        })
    }

    fn heads(&self, coordinates: Vec<Coordinate>, now: Timestamp) -> StoreFuture<'_, Vec<Event>> {
        self.with(|_, state| {
            let found = state.find(&[Filter::new()], now);
            let mut heads = Vec::new();
            for event in found {
                if deletion::coordinate(&event).is_some_and(|at| coordinates.contains(&at)) {
                    heads.push(Event::clone(&event));
                }
            }
            heads
        })
    }

    fn listing(&self, repo: RepoId, most: usize) -> StoreFuture<'_, Vec<PublicKey>> {
        self.with(|_, state| {
            let mut served: Vec<_> = state.served.iter().collect();
            served.sort_by_key(|event| (Reverse(event.created_at), event.id));
            let mut authors = Vec::new();
            for event in served {
                let Ok(announcement) = Announcement::parse(event) else {
                    continue;
                };
                let is_same_name = announcement.repo.identifier == repo.identifier;
                if is_same_name && announcement.maintainer_list.lists(&repo.owner) {
                    authors.push(event.pubkey);
                }
            }
            authors.truncate(most);
            authors
        })
    }

    fn inventory(&self, filter: Filter, now: Timestamp, max: usize) -> StoreFuture<'_, Inventory> {
        self.with(|_, state| {
            let found = state.find(&[filter], now);
            if found.len() > max {
                return Inventory::TooMany;
            }
            let mut items: Vec<_> = found
                .iter()
                .map(|event| (event.created_at, event.id))
                .collect();
            items.sort();
            Inventory::Complete(items)
        })
    }

    fn superseded(&self, coordinate: Coordinate) -> StoreFuture<'_, Vec<Event>> {
        self.with(|_, state| {
            let mut kept: Vec<_> = versions(&state.superseded, &coordinate).collect();
            kept.sort_by_key(|event| serving_order(event));
            kept.into_iter().map(|event| Event::clone(event)).collect()
        })
    }

    fn remove(&self, ids: Vec<EventId>) -> StoreFuture<'_, u64> {
        self.with(|_, state| {
            let ids: BTreeSet<EventId> = ids.into_iter().collect();
            state.erase(|event| ids.contains(&event.id))
        })
    }

    fn delist(&self, coordinate: Coordinate, by: Version, _: Timestamp) -> StoreFuture<'_, u64> {
        self.with(|_, state| {
            let older: Vec<_> = versions(&state.served, &coordinate)
                .filter(|served| Version::of(served) < by)
                .map(|served| served.id)
                .collect();
            state.served.retain(|served| !older.contains(&served.id));
            let known = state.delisted.entry(coordinate).or_insert(by);
            *known = by.max(*known);
            older.len() as u64
        })
    }

    fn delisted(
        &self,
        coordinates: Vec<Coordinate>,
    ) -> StoreFuture<'_, BTreeMap<Coordinate, Version>> {
        self.with(|_, state| {
            let by = |at: Coordinate| Some((at.clone(), *state.delisted.get(&at)?));
            coordinates.into_iter().filter_map(by).collect()
        })
    }

    fn sweep(&self, now: Timestamp) -> StoreFuture<'_, SweepReport> {
        self.with(|rules, state| {
            let expired = state.expire(now);
            let retired = ago(now, rules.deletions_served);
            let forgotten = ago(now, rules.deletions_served + rules.deletions_gated);
            let mut due = BTreeSet::new();
            for request in state
                .requests
                .iter_mut()
                .filter(|r| !r.retired && r.clock <= retired)
            {
                request.retired = true;
                due.insert(request.event.id);
            }
            state.requests.retain(|request| request.clock > forgotten);
            SweepReport {
                events: expired + state.erase(|event| due.contains(&event.id)),
                removed: std::mem::take(&mut state.removed),
            }
        })
    }

    fn probe(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        if let Ok(mut state) = self.open() {
            state.closed = true;
        }
        Box::pin(future::ready(Ok(())))
    }
}

impl State {
    fn save(&mut self, rules: &StoreRules, event: Arc<Event>, now: Timestamp) -> Outcome {
        if self.knows(&event) && !is_expired(&event, now) {
            return Outcome::Duplicate(Presence::Stored);
        }
        if let Some(refusal) = self.refusal(&event, now) {
            if refusal == Rejection::Deleted {
                self.note_use(&event, now);
            }
            return refusal.into();
        }
        let delisted = deletion::coordinate(&event).and_then(|at| self.delisted.get(&at));
        if delisted.is_some_and(|by| Version::of(&event) < *by) {
            return Outcome::Superseded;
        }
        match event.kind {
            Kind::EventDeletion => self.delete(&event, now),
            Kind::RequestToVanish => self.vanish(rules, &event),
            _ => {}
        }
        match deletion::coordinate(&event) {
            None => self.served.push(event),
            Some(coordinate) => return self.save_version(rules, &coordinate, event),
        }
        Outcome::Stored
    }

    /// Serves the winner of a version and the one served so far, and keeps the other as superseded.
    fn save_version(
        &mut self,
        rules: &StoreRules,
        coordinate: &Coordinate,
        event: Arc<Event>,
    ) -> Outcome {
        let head = versions(&self.served, coordinate).next().cloned();
        match head {
            Some(head) if serving_order(&head) < serving_order(&event) => {
                self.keep_superseded(rules, coordinate, event);
                return Outcome::Superseded;
            }
            Some(head) => {
                self.served.retain(|served| served.id != head.id);
                self.keep_superseded(rules, coordinate, head);
            }
            None => {}
        }
        self.superseded.retain(|kept| kept.id != event.id);
        self.served.push(event);
        Outcome::Stored
    }

    fn keep_superseded(&mut self, rules: &StoreRules, coordinate: &Coordinate, event: Arc<Event>) {
        let known = self.superseded.iter().any(|kept| kept.id == event.id);
        if !keeps_versions(event.kind) || known {
            return;
        }
        self.superseded.push(event);
        let mut kept: Vec<_> = versions(&self.superseded, coordinate)
            .map(serving_order)
            .collect();
        kept.sort();
        for (_, id) in kept.into_iter().skip(rules.kept_versions) {
            self.superseded.retain(|kept| kept.id != id);
        }
    }

    fn known_refusal(&mut self, event: &Event, now: Timestamp) -> Option<Rejection> {
        if self.knows(event) && !is_expired(event, now) {
            return None;
        }
        let refusal = self.refusal(event, now);
        if refusal == Some(Rejection::Deleted) {
            self.note_use(event, now);
        }
        refusal
    }

    fn refusal(&self, event: &Event, now: Timestamp) -> Option<Rejection> {
        if event.kind.is_ephemeral() {
            return Some(Rejection::NeverStored);
        }
        if is_expired(event, now) {
            return Some(Rejection::Expired);
        }
        let vanished = self.vanished.get(&event.pubkey);
        if vanished.is_some_and(|until| is_vanishable(event, *until)) {
            return Some(Rejection::Vanished);
        }
        if self.requests.iter().any(|request| request.deletes(event)) {
            return Some(Rejection::Deleted);
        }
        if event.kind != Kind::EventDeletion {
            return None;
        }
        let Ok(targets) = DeletionRequest::parse(event) else {
            return Some(Rejection::TooManyTargets);
        };
        let foreign = |held: &Arc<Event>| {
            targets.ids.contains(&held.id) && held.pubkey != event.pubkey && !is_expired(held, now)
        };
        let names_others = self.served.iter().any(foreign) || self.superseded.iter().any(foreign);
        names_others.then_some(Rejection::ForeignDeletion)
    }

    fn knows(&self, event: &Event) -> bool {
        self.served.iter().any(|served| served.id == event.id)
            || self
                .requests
                .iter()
                .any(|r| r.retired && r.event.id == event.id)
    }

    /// Notes that a request was used: one that names the event itself, if there is one.
    fn note_use(&mut self, event: &Event, now: Timestamp) {
        let deleting = self
            .requests
            .iter_mut()
            .filter(|request| request.deletes(event));
        let named = |request: &&mut Request| request.targets.ids.contains(&event.id);
        if let Some(request) = deleting.max_by_key(named) {
            if request.clock <= ago(now, DAY) {
                request.clock = now.as_secs();
            }
        }
    }

    fn delete(&mut self, event: &Arc<Event>, now: Timestamp) {
        let mut request = Request {
            event: Arc::clone(event),
            targets: DeletionRequest::parse(event).unwrap_or_default(),
            clock: now.as_secs(),
            retired: false,
        };
        self.take_away(|event| request.deletes(event));
        self.requests.retain(|other| other.event.id != event.id);
        let own = self
            .requests
            .iter_mut()
            .filter(|other| other.event.pubkey == event.pubkey);
        own.for_each(|other| request.take_over(other));
        self.requests.push(request);
    }

    fn vanish(&mut self, rules: &StoreRules, request: &Event) {
        if vanishes_from(request, rules.service.as_ref()) {
            let until = request.created_at;
            let gone =
                |event: &Event| event.pubkey == request.pubkey && is_vanishable(event, until);
            self.take_away(gone);
            self.requests.retain(|request| !gone(&request.event));
            let known = self.vanished.entry(request.pubkey).or_insert(until);
            *known = until.max(*known);
        }
    }

    fn expire(&mut self, now: Timestamp) -> u64 {
        self.take_away(|event| is_expired(event, now))
    }

    /// Erases events that no other version replaces, and notes the repositories whose git data they were about.
    fn take_away(&mut self, gone: impl Fn(&Event) -> bool) -> u64 {
        for event in self.served.iter().filter(|event| gone(event)) {
            self.affected.extend(repositories_of(event));
            self.removed.insert(event.id);
        }
        self.erase(gone)
    }

    fn erase(&mut self, gone: impl Fn(&Event) -> bool) -> u64 {
        let before = self.served.len() + self.superseded.len();
        self.served.retain(|event| !gone(event));
        self.superseded.retain(|event| !gone(event));
        (before - self.served.len() - self.superseded.len()) as u64
    }

    /// Returns the events that match any of the filters, each within its own limit, in serving order.
    fn find(&self, filters: &[Filter], now: Timestamp) -> Vec<Arc<Event>> {
        let mut found = BTreeMap::new();
        for filter in filters {
            let mut matching: Vec<_> = self
                .served
                .iter()
                .filter(|event| !is_expired(event, now) && matches(filter, event))
                .collect();
            matching.sort_by_key(|event| serving_order(event));
            for event in matching
                .into_iter()
                .take(filter.limit.unwrap_or(usize::MAX))
            {
                found.insert(serving_order(event), Arc::clone(event));
            }
        }
        found.into_values().collect()
    }
}

impl Request {
    /// Leaves each target to one of two requests: the one that deletes more, else the later one.
    fn take_over(&mut self, other: &mut Self) {
        other
            .targets
            .ids
            .retain(|id| !self.targets.ids.contains(id));
        let both = |coordinate: &Coordinate| {
            self.targets.coordinates.contains(coordinate)
                && other.targets.coordinates.contains(coordinate)
        };
        let shared: Vec<_> = self
            .targets
            .coordinates
            .iter()
            .filter(|c| both(c))
            .cloned()
            .collect();
        for coordinate in shared {
            if other.event.created_at > self.event.created_at {
                self.targets.coordinates.remove(&coordinate);
                other.clock = other.clock.max(self.clock);
            } else {
                other.targets.coordinates.remove(&coordinate);
            }
        }
    }

    fn deletes(&self, event: &Event) -> bool {
        let covered = deletion::coordinate(event).is_some_and(|coordinate| {
            self.targets.coordinates.contains(&coordinate)
                && event.created_at <= self.event.created_at
        });
        deletion::is_deletable(event.kind)
            && event.pubkey == self.event.pubkey
            && (covered || self.targets.ids.contains(&event.id))
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn ago(now: Timestamp, length: Duration) -> u64 {
    now.as_secs().saturating_sub(length.as_secs())
}

/// Returns whether superseded versions of this kind are kept.
fn keeps_versions(kind: Kind) -> bool {
    kind == kinds::ANNOUNCEMENT || kind == kinds::STATE
}

/// Returns the repositories whose git data an event is about: its own, those that a pull request names, and its author's
/// of the same names.
fn repositories_of(event: &Event) -> BTreeSet<RepoId> {
    let kinds = [
        kinds::ANNOUNCEMENT,
        kinds::STATE,
        kinds::PULL_REQUEST,
        kinds::PULL_REQUEST_UPDATE,
    ];
    if !kinds.contains(&event.kind) {
        return BTreeSet::new();
    }
    let mut repos: BTreeSet<RepoId> = Needs::of(event).repo.into_iter().collect();
    for named in Proposal::parse(event)
        .map(|proposal| proposal.repos)
        .unwrap_or_default()
    {
        repos.insert(RepoId::new(event.pubkey, named.identifier.clone()));
        repos.insert(named);
    }
    repos
}

/// Returns the sort key of an event: newest first, ties by lowest id.
fn serving_order(event: &Arc<Event>) -> (Reverse<Timestamp>, EventId) {
    (Reverse(event.created_at), event.id)
}

fn versions<'a>(
    events: &'a [Arc<Event>],
    coordinate: &'a Coordinate,
) -> impl Iterator<Item = &'a Arc<Event>> {
    let same = |event: &&Arc<Event>| deletion::coordinate(event).as_ref() == Some(coordinate);
    events.iter().filter(same)
}

fn is_vanishable(event: &Event, until: Timestamp) -> bool {
    event.kind != Kind::RequestToVanish && event.created_at <= until
}

/// NIP-01's matching: an empty list matches nothing, and neither does `search`, which is not supported.
fn matches(filter: &Filter, event: &Event) -> bool {
    let has_tag = |name, values: &BTreeSet<String>| {
        let mut named = event
            .tags
            .iter()
            .filter(|tag| tag.single_letter_tag() == Some(name));
        named.any(|tag| tag.content().is_some_and(|value| values.contains(value)))
    };
    filter
        .generic_tags
        .iter()
        .all(|(name, values)| has_tag(*name, values))
        && filter.search.is_none()
        && filter
            .ids
            .as_ref()
            .is_none_or(|ids| ids.contains(&event.id))
        && filter
            .authors
            .as_ref()
            .is_none_or(|authors| authors.contains(&event.pubkey))
        && filter
            .kinds
            .as_ref()
            .is_none_or(|kinds| kinds.contains(&event.kind))
        && filter.since.is_none_or(|since| event.created_at >= since)
        && filter.until.is_none_or(|until| event.created_at <= until)
}
