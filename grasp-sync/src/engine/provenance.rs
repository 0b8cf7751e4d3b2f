//! The origin of events that the local relay has not stored yet.

use std::collections::BTreeMap;

use grasp_core::RelayUrl;
use grasp_core::nostr::event::EventId;

use super::relay::Arrival;

const MAX_EVENTS: usize = 20_000;

/// The relay and path of events, until they are stored.
///
/// Git data may take hours to arrive. Without this, an event that was held until then would count as published by a
/// client.
#[derive(Debug, Default)]
pub(super) struct Provenance {
    origins: BTreeMap<EventId, (u64, RelayUrl, Arrival)>,
    by_age: BTreeMap<u64, EventId>,
    next: u64,
}

impl Provenance {
    /// Notes the origin of an event. The first relay counts.
    pub(super) fn note(&mut self, event: EventId, relay: &RelayUrl, arrival: Arrival) {
        if self.origins.contains_key(&event) {
            return;
        }
        if self.origins.len() >= MAX_EVENTS {
            let oldest = self.by_age.pop_first();
            oldest.map(|(_, event)| self.origins.remove(&event));
        }
        self.next += 1;
        self.by_age.insert(self.next, event);
        self.origins.insert(event, (self.next, relay.clone(), arrival));
    }

    /// Takes the origin of an event, if it is known.
    pub(super) fn take(&mut self, event: &EventId) -> Option<(RelayUrl, Arrival)> {
        let (age, relay, arrival) = self.origins.remove(event)?;
        self.by_age.remove(&age);
        Some((relay, arrival))
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::admission::SyncPath;

    use super::*;

    fn event(n: usize) -> EventId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(bytes)
    }

    #[test]
    fn the_first_relay_counts_and_the_oldest_events_are_forgotten() {
        let mut provenance = Provenance::default();
        let relays = ["wss://a.example", "wss://b.example"].map(|url| url.parse().unwrap());
        let arrival = Arrival { path: SyncPath::Live, is_gap: false };
        let later = Arrival { path: SyncPath::Daily, is_gap: true };
        provenance.note(event(0), &relays[0], arrival);
        provenance.note(event(0), &relays[1], later);
        assert_eq!(provenance.take(&event(0)), Some((relays[0].clone(), arrival)));
        assert_eq!(provenance.take(&event(0)), None);
        (0..=MAX_EVENTS).for_each(|n| provenance.note(event(n), &relays[0], arrival));
        assert_eq!((provenance.origins.len(), provenance.by_age.len()), (MAX_EVENTS, MAX_EVENTS));
        assert_eq!(provenance.take(&event(0)), None);
        assert!(provenance.take(&event(1)).is_some());
    }
}
