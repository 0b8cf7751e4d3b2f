//! Which repositories a deletion request is about, found out while its targets are still there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_core::Identifier;
use nostr::event::EventId;

/// Requests between their judgement and their storage, at most. One that is pushed out costs time: the next round
/// finds what it changed.
const MOST: usize = 1_024;

/// The repository names behind the targets of deletion requests.
///
/// A request names events by id, and once it is stored they are gone. Shared by all who judge and store events;
/// nothing waits while it is held.
#[derive(Clone, Debug, Default)]
pub(super) struct Doomed(Arc<Mutex<BTreeMap<EventId, BTreeSet<Identifier>>>>);

impl Doomed {
    /// Remembers what a request is about.
    pub(super) fn note(&self, request: EventId, names: BTreeSet<Identifier>) {
        if names.is_empty() {
            return;
        }
        let mut noted = self.noted();
        noted.insert(request, names);
        if noted.len() > MOST {
            noted.pop_first();
        }
    }

    /// What a request was about; it is forgotten with that.
    pub(super) fn take(&self, request: &EventId) -> BTreeSet<Identifier> {
        self.noted().remove(request).unwrap_or_default()
    }

    fn noted(&self) -> MutexGuard<'_, BTreeMap<EventId, BTreeSet<Identifier>>> {
        // A map is whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_stored_does_not_pile_up() {
        let doomed = Doomed::default();
        let names = BTreeSet::from(["x".parse().unwrap()]);
        let request = |n: u32| {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&n.to_be_bytes());
            EventId::from_byte_array(id)
        };
        (0..5_000).for_each(|n| doomed.note(request(n), names.clone()));
        assert_eq!(doomed.noted().len(), MOST);
        assert_eq!(doomed.take(&request(4_999)), names);
        assert!(doomed.take(&request(4_999)).is_empty());
    }
}
