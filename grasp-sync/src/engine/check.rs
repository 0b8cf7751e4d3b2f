//! Invariants of the engine, checked in tests.

use crate::limits::SlotClass;

use super::relay::Link;
use super::{SyncEngine, connections};

impl SyncEngine {
    /// Panics if an invariant is broken. Visits the whole state.
    pub fn check_invariants(&self) {
        assert!(self.handshakes() <= connections::MAX_HANDSHAKES, "too many handshakes");
        for (url, relay) in &self.relays {
            match &relay.link {
                Link::Idle | Link::Dialing { .. } => {
                    assert!(relay.history.wants.len() == 0, "{url}: wants without a connection");
                }
                Link::Up(session) => {
                    session.check(url, &relay.history);
                    let is_counted = self.connections.is_held(url);
                    assert!(
                        is_counted != self.connections.is_exempt(url),
                        "{url}: not accounted for"
                    );
                }
            }
            let is_left = relay.link.is_idle() && self.connections.is_held(url);
            assert!(!is_left, "{url}: counted without a connection");
            relay.history.wants.check();
        }
        self.connections.check();
        let places = self.relays.values().filter(|relay| relay.place.is_some()).count();
        assert_eq!(self.followed.usage().all, places as u64, "followed relays are miscounted");
        let wanted: usize = self.wanted().map(|(_, wanted)| wanted).sum();
        assert_eq!(self.shared.wanted, wanted, "what relays have offered is miscounted");
        for job in self.shared.held_items.keys() {
            let is_known = self.relays.values().any(|relay| match &relay.link {
                Link::Up(session) => session.has_job(*job),
                Link::Idle | Link::Dialing { .. } => false,
            });
            assert!(is_known, "an inventory is held for an unknown job");
        }
    }

    /// Returns the open subscriptions of a relay, and their limit.
    pub fn slots(&self, relay: &grasp_core::RelayUrl) -> Option<(usize, usize)> {
        let ledger = &self.relays.get(relay)?.history.ledger;
        Some((ledger.in_use(), ledger.total()))
    }
}

pub(super) const CLASSES: [SlotClass; 3] =
    [SlotClass::Live, SlotClass::Fetch, SlotClass::Reconcile];
