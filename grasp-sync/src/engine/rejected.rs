//! Events that the local relay has refused: recent ones complete, older ones by id.

use std::sync::Arc;

use crate::memory::Memory;
use grasp_core::nip34::References;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::sync::FilterHash;
use grasp_core::sync::Pairs;
use grasp_core::{Identifier, Mono, RelayUrl, RepoId, kinds};

use super::io::Row;

/// Time that complete events wait for their dependencies.
const EVENT_MEMORY_SECS: u64 = 2 * 60;
/// Time that ids are excluded from reconciliation.
const ID_MEMORY_SECS: u64 = 7 * 24 * 60 * 60;
const MAX_EVENTS: usize = 1_024;
const MAX_TOTAL_BYTES: usize = 8 * 1024 * 1024;
const MAX_EVENT_BYTES: usize = 128 * 1024;
const MAX_IDS: usize = 50_000;
/// Time that an arrival is remembered: a judgement may come in after the dependency it lacked.
const ARRIVAL_MEMORY_SECS: u64 = 60;
/// Arrivals remembered, the newest.
const MAX_ARRIVALS: usize = 8_192;
/// Dependencies of one event that are tracked.
const MAX_DEPENDENCIES: usize = 16;

/// A dependency that a refused event may have lacked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Dependency {
    Event(EventId),
    /// The announcement of a repository.
    Repo(RepoId),
    /// Any announcement with this name: it may name new maintainers.
    Name(Identifier),
}

impl Dependency {
    fn of(event: &Event) -> Vec<Self> {
        if event.kind == kinds::ANNOUNCEMENT || event.kind == kinds::STATE {
            let name = event
                .tags
                .identifier()
                .and_then(|d| Identifier::new(&d).ok());
            return name.map(Self::Name).into_iter().collect();
        }
        let references = References::of(event);
        let repos = references
            .coordinates
            .iter()
            .filter_map(|one| RepoId::try_from(one).ok());
        repos
            .map(Self::Repo)
            .chain(references.ids.into_iter().map(Self::Event))
            .take(MAX_DEPENDENCIES)
            .collect()
    }
}

/// The events released by the arrival of a dependency.
#[must_use]
#[derive(Debug, Default)]
pub(super) struct Released {
    /// To be offered again as they are.
    pub(super) reoffer: Vec<Arc<Event>>,
    /// To be fetched again from the relay that brought them.
    pub(super) refetch: Vec<(RelayUrl, EventId)>,
}

/// The memory of refused events.
///
/// Complete events wait for a short time, since what arrives in the wrong order arrives soon after. Ids are kept for
/// days, by the filter that brought them, and count as ours when sets are compared: otherwise every pass would
/// download them again. Events refused for want of a dependency are removed, and fetched again, when that arrives.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    /// Complete events, and their approximate sizes.
    events: Memory<EventId, (Arc<Event>, usize), MAX_EVENTS, EVENT_MEMORY_SECS>,
    event_bytes: usize,
    /// All events.
    ids: Memory<EventId, RejectedId, MAX_IDS, ID_MEMORY_SECS>,
    by_filter: Pairs<FilterHash, EventId>,
    awaited: Pairs<Dependency, EventId>,
    arrivals: Memory<Dependency, (), MAX_ARRIVALS, ARRIVAL_MEMORY_SECS>,
}

#[derive(Debug)]
struct RejectedId {
    row: Row,
    relay: RelayUrl,
    filter: Option<FilterHash>,
    awaits: Vec<Dependency>,
}

impl Rejected {
    /// Notes the arrival of a dependency. Events refused for want of it from now on were judged before it came.
    pub(super) fn note_arrival(&mut self, now: Mono, what: &Dependency) {
        // An event is reported twice, by the relay that brought it and by the local relay, but arrives once.
        let is_repeated = matches!(what, Dependency::Event(_)) && self.has_arrived(now, what);
        if !is_repeated {
            self.arrivals.put(now, what.clone(), ());
        }
    }

    /// Adds a refused event. `event` is set if a dependency could change that. If the dependency has arrived in the
    /// meantime, the event is returned, to be offered again at once.
    pub(super) fn refused(
        &mut self,
        now: Mono,
        relay: &RelayUrl,
        filter: Option<FilterHash>,
        row: Row,
        event: Option<Arc<Event>>,
    ) -> Option<Arc<Event>> {
        self.forget(row.id);
        let awaits = event.as_deref().map(Dependency::of).unwrap_or_default();
        for dependency in &awaits {
            self.awaited.insert(dependency.clone(), row.id);
        }
        if let Some(hash) = filter {
            self.by_filter.insert(hash, row.id);
        }
        let is_late = awaits.iter().any(|what| self.has_arrived(now, what));
        let rejected = RejectedId {
            row,
            relay: relay.clone(),
            filter,
            awaits,
        };
        if let Some((oldest, rejected)) = self.ids.put(now, row.id, rejected) {
            self.unindex(oldest, &rejected);
        }
        if let Some(event) = event.filter(|event| event.id == row.id) {
            self.keep_event(now, event);
        }
        if is_late {
            self.take_event(row.id)
        } else {
            None
        }
    }

    /// Releases the events that waited for a dependency.
    pub(super) fn release(&mut self, what: &Dependency) -> Released {
        let mut released = Released::default();
        for id in self.awaited.of(what).copied().collect::<Vec<_>>() {
            // An event that is offered again stays until it is accepted; it may lack another dependency.
            match self.take_event(id) {
                Some(event) => released.reoffer.push(event),
                None => {
                    let rejected = self.forget(id);
                    released
                        .refetch
                        .extend(rejected.map(|rejected| (rejected.relay, id)));
                }
            }
        }
        released
    }

    /// Returns the refused events that a filter would bring again.
    pub(super) fn rows(&self, filter: &FilterHash) -> impl Iterator<Item = Row> {
        let ids = self.by_filter.of(filter);
        ids.filter_map(|id| self.ids.get(id))
            .map(|rejected| rejected.row)
    }

    /// Removes an event that was accepted after all.
    pub(super) fn accepted(&mut self, id: EventId) {
        self.forget(id);
    }

    /// Removes what is too old.
    pub(super) fn expire(&mut self, now: Mono) {
        while let Some((_, (_, bytes))) = self.events.expire(now) {
            self.event_bytes -= bytes;
        }
        while let Some((id, rejected)) = self.ids.expire(now) {
            self.unindex(id, &rejected);
        }
    }

    /// Returns when something will be too old.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.events
            .deadline()
            .into_iter()
            .chain(self.ids.deadline())
            .min()
    }

    fn has_arrived(&self, now: Mono, what: &Dependency) -> bool {
        self.arrivals.time_left(now, what).is_some()
    }

    fn keep_event(&mut self, now: Mono, event: Arc<Event>) {
        let bytes = size_of_event(&event);
        let is_full = self.events.len() >= MAX_EVENTS || self.event_bytes + bytes > MAX_TOTAL_BYTES;
        if !is_full && bytes <= MAX_EVENT_BYTES {
            self.event_bytes += bytes;
            self.events.put(now, event.id, (event, bytes));
        }
    }

    fn take_event(&mut self, id: EventId) -> Option<Arc<Event>> {
        let (event, bytes) = self.events.remove(&id)?;
        self.event_bytes -= bytes;
        Some(event)
    }

    fn forget(&mut self, id: EventId) -> Option<RejectedId> {
        let rejected = self.ids.remove(&id)?;
        self.unindex(id, &rejected);
        Some(rejected)
    }

    /// Removes what else is kept of an event that is forgotten.
    fn unindex(&mut self, id: EventId, rejected: &RejectedId) {
        self.take_event(id);
        for dependency in &rejected.awaits {
            self.awaited.remove(dependency, &id);
        }
        if let Some(hash) = rejected.filter {
            self.by_filter.remove(&hash, &id);
        }
    }
}

/// Returns the approximate memory that an event takes.
fn size_of_event(event: &Event) -> usize {
    let tags = event
        .tags
        .iter()
        .flat_map(|tag| tag.as_slice())
        .map(|value| value.len() + 24);
    256 + event.content.len() + tags.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use grasp_core::nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
    use grasp_core::nostr::filter::Filter;
    use grasp_core::nostr::key::Keys;

    use super::*;

    const T0: Mono = Mono::from_secs(100);
    const EVENT_MEMORY: Duration = Duration::from_secs(EVENT_MEMORY_SECS);
    const ID_MEMORY: Duration = Duration::from_secs(ID_MEMORY_SECS);
    const ARRIVAL_MEMORY: Duration = Duration::from_secs(ARRIVAL_MEMORY_SECS);

    fn relay() -> RelayUrl {
        "wss://a.example".parse().unwrap()
    }

    fn hash() -> FilterHash {
        FilterHash::of(&Filter::new().kind(Kind::Comment))
    }

    fn comment_on(id: EventId, content: &str) -> Arc<Event> {
        let tag = Tag::parse(["E".to_owned(), id.to_hex()]).unwrap();
        let comment = EventBuilder::new(Kind::Comment, content).tag(tag);
        Arc::new(comment.finalize(&Keys::generate()).unwrap())
    }

    fn refuse(rejected: &mut Rejected, now: Mono, event: &Arc<Event>) {
        let row = Row {
            at: event.created_at,
            id: event.id,
        };
        rejected.refused(now, &relay(), Some(hash()), row, Some(Arc::clone(event)));
    }

    fn root() -> EventId {
        EventId::from_byte_array([1; 32])
    }

    #[test]
    fn a_recent_event_is_offered_again_when_its_dependency_arrives() {
        let mut rejected = Rejected::default();
        let comment = comment_on(root(), "early");
        refuse(&mut rejected, T0, &comment);
        let other = EventId::from_byte_array([2; 32]);
        assert!(
            rejected
                .release(&Dependency::Event(other))
                .reoffer
                .is_empty()
        );
        let id = comment.id;
        assert_eq!(
            rejected.release(&Dependency::Event(root())).reoffer,
            [comment]
        );
        rejected.accepted(id);
        let released = rejected.release(&Dependency::Event(root()));
        assert!(
            released.reoffer.is_empty() && released.refetch.is_empty(),
            "once"
        );
        assert_eq!(rejected.rows(&hash()).count(), 0);
    }

    #[test]
    fn an_event_refused_after_its_dependency_arrived_is_offered_again_at_once() {
        let mut rejected = Rejected::default();
        let comment = comment_on(root(), "late");
        let row = Row {
            at: comment.created_at,
            id: comment.id,
        };
        let mut refused = |now| {
            let event = Some(Arc::clone(&comment));
            rejected.note_arrival(T0, &Dependency::Event(root()));
            rejected.refused(now, &relay(), Some(hash()), row, event)
        };
        assert_eq!(refused(T0), Some(Arc::clone(&comment)));
        assert_eq!(refused(T0 + ARRIVAL_MEMORY), None, "that was long ago");
    }

    #[test]
    fn the_newest_arrivals_are_remembered() {
        let mut rejected = Rejected::default();
        let arrival = |n: u32| {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&n.to_be_bytes());
            EventId::from_byte_array(id)
        };
        let max = MAX_ARRIVALS as u32;
        let all = 2 * max;
        for n in 0..all {
            for _ in 0..2 {
                rejected.note_arrival(T0, &Dependency::Event(arrival(n)));
            }
        }
        assert_eq!(rejected.arrivals.len(), MAX_ARRIVALS);
        let mut is_late = |n: u32| {
            let comment = comment_on(arrival(n), "late");
            let row = Row {
                at: comment.created_at,
                id: comment.id,
            };
            rejected
                .refused(T0, &relay(), Some(hash()), row, Some(comment))
                .is_some()
        };
        assert!(is_late(all - 1) && is_late(all - max));
        assert!(!is_late(all - max - 1));
        assert!(!rejected.has_arrived(T0 + ARRIVAL_MEMORY, &Dependency::Event(arrival(all - 1))));
    }

    #[test]
    fn after_two_minutes_an_event_is_fetched_again() {
        let mut rejected = Rejected::default();
        let comment = comment_on(root(), "old");
        refuse(&mut rejected, T0, &comment);
        assert_eq!(rejected.deadline(), Some(T0 + EVENT_MEMORY));
        rejected.expire(T0 + EVENT_MEMORY);
        let released = rejected.release(&Dependency::Event(root()));
        assert!(released.reoffer.is_empty());
        assert_eq!(released.refetch, [(relay(), comment.id)]);
    }

    #[test]
    fn refused_ids_count_as_ours_for_seven_days_and_for_their_filter_only() {
        let mut rejected = Rejected::default();
        let row = Row {
            at: 5.into(),
            id: root(),
        };
        rejected.refused(T0, &relay(), Some(hash()), row, None);
        assert_eq!(rejected.rows(&hash()).collect::<Vec<_>>(), [row]);
        assert_eq!(rejected.rows(&FilterHash::of(&Filter::new())).count(), 0);
        rejected.expire(T0 + (ID_MEMORY - Duration::from_secs(1)));
        assert_eq!(rejected.rows(&hash()).count(), 1);
        rejected.expire(T0 + ID_MEMORY);
        assert_eq!(rejected.rows(&hash()).count(), 0);
        assert_eq!(rejected.deadline(), None);
    }

    #[test]
    fn an_announcement_waits_for_any_announcement_of_its_name() {
        let mut rejected = Rejected::default();
        let event = EventBuilder::new(kinds::ANNOUNCEMENT, "").tag(Tag::identifier("grasp"));
        let event = Arc::new(event.finalize(&Keys::generate()).unwrap());
        refuse(&mut rejected, T0, &event);
        let name = Dependency::Name("grasp".parse().unwrap());
        assert_eq!(rejected.release(&name).reoffer, [event]);
    }

    #[test]
    fn memory_is_bounded_in_events_bytes_and_ids() {
        let mut rejected = Rejected::default();
        refuse(
            &mut rejected,
            T0,
            &comment_on(root(), &"x".repeat(MAX_EVENT_BYTES)),
        );
        assert_eq!(
            (rejected.events.len(), rejected.ids.len()),
            (0, 1),
            "too large to be kept whole"
        );
        let keys = Keys::generate();
        for n in 0..MAX_EVENTS + 10 {
            let event = EventBuilder::new(Kind::Comment, n.to_string())
                .finalize(&keys)
                .unwrap();
            refuse(&mut rejected, T0, &Arc::new(event));
        }
        assert_eq!(rejected.events.len(), MAX_EVENTS);
        for n in 0..MAX_IDS as u32 + 10 {
            let mut id = [9; 32];
            id[..4].copy_from_slice(&n.to_be_bytes());
            let row = Row {
                at: 5.into(),
                id: EventId::from_byte_array(id),
            };
            rejected.refused(T0 + EVENT_MEMORY, &relay(), None, row, None);
        }
        assert_eq!(rejected.ids.len(), MAX_IDS);
        assert_eq!(
            rejected.events.len(),
            0,
            "the oldest make room, whole events with their ids"
        );
        assert_eq!(rejected.event_bytes, 0);
        assert_eq!(rejected.awaited.len(), 0);
    }
}
