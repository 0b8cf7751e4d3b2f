//! Events of the last minutes, so that an event which ten relays send is verified once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::nostr::event::{Event, EventId};
use grasp_core::{Mono, Verified};

use crate::local::{Lasting, Taken};

/// Shortest time for which an answer is remembered; at most twice as long. A withdrawn event may come back.
const MIN_MEMORY: Duration = Duration::from_secs(5 * 60);
/// Answers of one generation; at most twice as many are remembered.
const MAX_PER_GENERATION: usize = 32_768;

/// What is remembered of an id. Only verified events count: a forged copy changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recalled {
    Unknown,
    /// The event with this id was verified, and is being judged.
    Checked(Verified<Arc<Event>>),
    /// The event with this id was judged, with an answer that holds for further copies.
    Judged(Taken),
}

/// The memory of all connections together, in two generations: a full or old one becomes the previous one.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    checked: HashMap<EventId, Verified<Arc<Event>>>,
    current: HashMap<EventId, Taken>,
    previous: HashMap<EventId, Taken>,
    began: Mono,
}

impl Recent {
    pub(crate) fn recall(&self, id: &EventId) -> Recalled {
        let taken = self.current.get(id).or_else(|| self.previous.get(id));
        match (taken, self.checked.get(id)) {
            // Another offer of a held event may extend the wait.
            (Some(taken), _) if *taken != Taken::Held => Recalled::Judged(*taken),
            (_, Some(event)) => Recalled::Checked(event.clone()),
            _ => Recalled::Unknown,
        }
    }

    /// Adds a verified event that is about to be judged.
    pub(crate) fn checked(&mut self, event: Verified<Arc<Event>>) {
        self.checked.insert(event.id, event);
    }

    /// Adds the answer to an event, unless the next copy is to be judged again.
    pub(crate) fn judged(&mut self, now: Mono, id: EventId, taken: Taken) {
        self.checked.remove(&id);
        if self.current.len() >= MAX_PER_GENERATION || now >= self.began + MIN_MEMORY {
            self.previous = std::mem::take(&mut self.current);
            self.began = now;
        }
        if !matches!(taken, Taken::Refused(Lasting::UntilDependency | Lasting::Briefly)) {
            self.current.insert(id, taken);
        }
    }

    /// Returns whether another relay delivered it lately.
    pub(crate) fn was_delivered(&self, id: &EventId) -> bool {
        [&self.current, &self.previous].iter().any(|known| known.contains_key(id))
            || self.checked.contains_key(id)
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::{EventBuilder, FinalizeEvent, Kind};
    use grasp_core::nostr::key::Keys;

    use super::*;

    fn event() -> Verified<Arc<Event>> {
        let event = EventBuilder::new(Kind::GitIssue, "").finalize(&Keys::generate()).unwrap();
        Verified::check(Arc::new(event)).unwrap()
    }

    #[test]
    fn copies_of_a_verified_event_are_not_verified_again() {
        let (mut recent, event) = (Recent::default(), event());
        assert_eq!(recent.recall(&event.id), Recalled::Unknown);
        recent.checked(event.clone());
        assert_eq!(recent.recall(&event.id), Recalled::Checked(event.clone()));
        recent.judged(Mono::ZERO, event.id, Taken::Stored);
        assert_eq!(recent.recall(&event.id), Recalled::Judged(Taken::Stored));
    }

    #[test]
    fn events_that_may_be_accepted_later_are_judged_again() {
        for taken in [Taken::Refused(Lasting::UntilDependency), Taken::Held] {
            let (mut recent, event) = (Recent::default(), event());
            recent.checked(event.clone());
            recent.judged(Mono::ZERO, event.id, taken);
            assert_eq!(recent.recall(&event.id), Recalled::Unknown);
            assert_eq!(recent.was_delivered(&event.id), taken == Taken::Held);
        }
    }

    #[test]
    fn answers_are_forgotten_in_time_and_in_number() {
        let id = |n: u64| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.to_be_bytes());
            EventId::from_byte_array(id)
        };
        let mut recent = Recent::default();
        recent.judged(Mono::ZERO, id(0), Taken::Stored);
        recent.judged(Mono::ZERO + MIN_MEMORY, id(1), Taken::Stored);
        assert!(recent.was_delivered(&id(0)));
        recent.judged(Mono::ZERO + MIN_MEMORY * 2, id(2), Taken::Stored);
        assert!(!recent.was_delivered(&id(0)) && recent.was_delivered(&id(1)));
        for n in 0..3 * MAX_PER_GENERATION as u64 {
            recent.judged(Mono::ZERO + MIN_MEMORY * 2, id(n), Taken::Stored);
        }
        assert!(recent.current.len() + recent.previous.len() <= 2 * MAX_PER_GENERATION);
    }
}
