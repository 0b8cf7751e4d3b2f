//! Events that arrived before the events that they name.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::Named;

/// Maximum number of events that wait. A relay streams new events first, so answers come before what they answer.
/// Beyond it, the one that has waited longest is removed.
const MAX_WAITING: usize = 50_000;

/// An event that belongs to the thread of an event that it names.
#[derive(Clone, Debug)]
pub(super) struct Descendant {
    pub(super) id: EventId,
    pub(super) author: PublicKey,
    pub(super) coordinate: Option<Box<Coordinate>>,
}

/// Events that wait for any of those that they name.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingEvents {
    events: BTreeMap<u64, (Descendant, Vec<Named>)>,
    numbers: BTreeMap<EventId, u64>,
    by_name: BTreeSet<(Named, u64)>,
    arrivals: u64,
}

impl WaitingEvents {
    pub(super) fn add(&mut self, event: Descendant, names: Vec<Named>) {
        if self.numbers.contains_key(&event.id) {
            return;
        }
        if self.events.len() >= MAX_WAITING {
            let oldest = self.events.keys().next().copied();
            oldest.map(|number| self.take(number));
        }
        self.arrivals += 1;
        self.numbers.insert(event.id, self.arrivals);
        let by_name = names.iter().map(|name| (name.clone(), self.arrivals));
        self.by_name.extend(by_name);
        self.events.insert(self.arrivals, (event, names));
    }

    /// Removes and returns the events that wait for this one.
    pub(super) fn take_for(&mut self, name: &Named) -> Vec<Descendant> {
        let range = (name.clone(), 0)..=(name.clone(), u64::MAX);
        let numbers: Vec<u64> = self.by_name.range(range).map(|(_, n)| *n).collect();
        let taken = numbers.into_iter().filter_map(|number| self.take(number));
        taken.collect()
    }

    pub(super) fn remove(&mut self, id: &EventId) {
        if let Some(number) = self.numbers.get(id).copied() {
            self.take(number);
        }
    }

    fn take(&mut self, number: u64) -> Option<Descendant> {
        let (event, names) = self.events.remove(&number)?;
        self.numbers.remove(&event.id);
        for name in names {
            self.by_name.remove(&(name, number));
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    fn id(n: u32) -> EventId {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(bytes)
    }

    fn event(n: u32) -> Descendant {
        Descendant {
            id: id(n),
            author: key(1),
            coordinate: None,
        }
    }

    fn is_empty(waiting: &WaitingEvents) -> bool {
        waiting.events.is_empty() && waiting.numbers.is_empty() && waiting.by_name.is_empty()
    }

    #[test]
    fn an_event_is_taken_once_by_any_name() {
        let mut waiting = WaitingEvents::default();
        let names = [8, 9].map(|n| Named::Event(id(n)));
        waiting.add(event(1), names.to_vec());
        waiting.add(event(1), names.to_vec());
        assert_eq!(waiting.take_for(&names[1]).len(), 1);
        assert!(waiting.take_for(&names[0]).is_empty());
        assert!(is_empty(&waiting));
    }

    #[test]
    fn a_removed_event_does_not_wait() {
        let mut waiting = WaitingEvents::default();
        waiting.add(event(1), vec![Named::Event(id(9))]);
        waiting.remove(&id(1));
        assert!(is_empty(&waiting));
    }

    #[test]
    fn the_number_is_limited_and_the_oldest_leaves() {
        let mut waiting = WaitingEvents::default();
        for n in 0..=MAX_WAITING as u32 {
            waiting.add(event(n), vec![Named::Event(id(n + 1))]);
        }
        assert_eq!(waiting.events.len(), MAX_WAITING);
        assert!(waiting.take_for(&Named::Event(id(1))).is_empty());
        assert_eq!(waiting.take_for(&Named::Event(id(2))).len(), 1);
    }
}
