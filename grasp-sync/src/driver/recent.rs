//! Events of the last minutes, so that an event which ten relays send is verified once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::nostr::event::{Event, EventId};
use grasp_core::{Mono, Verified};

/// Shortest time for which an answer is remembered; at most twice as long. A withdrawn event may come back.
const LASTING: Duration = Duration::from_secs(5 * 60);
/// Answers of one generation; at most twice as many are remembered.
const MOST: usize = 32_768;

/// The outcome of an event, as it holds for further copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is stored, or a version that wins over it.
    Here,
    /// It is held; another offer may extend the wait.
    Waits,
    /// It will never be accepted.
    Never,
}

/// What is remembered of an id. Only verified events count: a forged copy changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recalled {
    Unknown,
    /// The event with this id was verified, and is being judged.
    Checked(Verified<Arc<Event>>),
    /// The event with this id was judged. Copies need not be looked at.
    Settled(Settled),
}

/// The memory of all connections together, in two generations: a full or old one becomes the previous one.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    checked: HashMap<EventId, Verified<Arc<Event>>>,
    younger: HashMap<EventId, Settled>,
    elder: HashMap<EventId, Settled>,
    began: Mono,
}

impl Recent {
    pub(crate) fn recall(&self, id: &EventId) -> Recalled {
        let settled = self.younger.get(id).or_else(|| self.elder.get(id));
        match (settled, self.checked.get(id)) {
            (Some(settled @ (Settled::Here | Settled::Never)), _) => Recalled::Settled(*settled),
            (_, Some(event)) => Recalled::Checked(event.clone()),
            (Some(Settled::Waits) | None, None) => Recalled::Unknown,
        }
    }

    /// Adds a verified event that is about to be judged.
    pub(crate) fn checked(&mut self, event: Verified<Arc<Event>>) {
        self.checked.insert(event.id, event);
    }

    /// Adds the outcome of an event; `None` if the next copy is to be judged again.
    pub(crate) fn settled(&mut self, now: Mono, id: EventId, settled: Option<Settled>) {
        self.checked.remove(&id);
        if self.younger.len() >= MOST || now >= self.began + LASTING {
            self.elder = std::mem::take(&mut self.younger);
            self.began = now;
        }
        if let Some(settled) = settled {
            self.younger.insert(id, settled);
        }
    }

    /// Returns whether another relay delivered it lately.
    pub(crate) fn was_brought(&self, id: &EventId) -> bool {
        [&self.younger, &self.elder].iter().any(|known| known.contains_key(id))
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
    fn a_checked_event_stands_in_for_its_copies_until_it_is_judged() {
        let (mut recent, event) = (Recent::default(), event());
        assert_eq!(recent.recall(&event.id), Recalled::Unknown);
        recent.checked(event.clone());
        assert_eq!(recent.recall(&event.id), Recalled::Checked(event.clone()));
        recent.settled(Mono::ZERO, event.id, Some(Settled::Here));
        assert_eq!(recent.recall(&event.id), Recalled::Settled(Settled::Here));
    }

    #[test]
    fn what_may_be_taken_later_is_judged_anew() {
        for settled in [None, Some(Settled::Waits)] {
            let (mut recent, event) = (Recent::default(), event());
            recent.checked(event.clone());
            recent.settled(Mono::ZERO, event.id, settled);
            assert_eq!(recent.recall(&event.id), Recalled::Unknown);
            assert_eq!(recent.was_brought(&event.id), settled.is_some());
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
        recent.settled(Mono::ZERO, id(0), Some(Settled::Here));
        recent.settled(Mono::ZERO + LASTING, id(1), Some(Settled::Here));
        assert!(recent.was_brought(&id(0)));
        recent.settled(Mono::ZERO + LASTING * 2, id(2), Some(Settled::Here));
        assert!(!recent.was_brought(&id(0)) && recent.was_brought(&id(1)));
        for n in 0..3 * MOST as u64 {
            recent.settled(Mono::ZERO + LASTING * 2, id(n), Some(Settled::Here));
        }
        assert!(recent.younger.len() + recent.elder.len() <= 2 * MOST);
    }
}
