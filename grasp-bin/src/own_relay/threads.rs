//! Events that threads are made of, by what may take them away: their author's leaving, and time.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::kinds;
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

/// The roots and replies that sync was told of.
#[derive(Debug, Default)]
pub(super) struct Threads {
    by_author: BTreeMap<PublicKey, BTreeSet<EventId>>,
    expiring: BTreeSet<(Timestamp, EventId)>,
}

impl Threads {
    pub(super) fn told(&mut self, event: &Event) {
        if kinds::ROOTS.contains(&event.kind) || kinds::REPLIES.contains(&event.kind) {
            self.by_author.entry(event.pubkey).or_default().insert(event.id);
            let expires = event.tags.expiration();
            self.expiring.extend(expires.map(|at| (at, event.id)));
        }
    }

    /// The events of somebody who asked to vanish (NIP-62).
    pub(super) fn of(&self, author: &PublicKey) -> Vec<EventId> {
        self.by_author.get(author).into_iter().flatten().copied().collect()
    }

    /// When the next event expires (NIP-40).
    pub(super) fn next_expiry(&self) -> Option<Timestamp> {
        self.expiring.first().map(|(at, _)| *at)
    }

    /// Takes out the events that have expired by now.
    pub(super) fn expired(&mut self, now: Timestamp) -> Vec<EventId> {
        let mut gone = Vec::new();
        while self.next_expiry().is_some_and(|at| at <= now) {
            gone.extend(self.expiring.pop_first().map(|(_, id)| id));
        }
        gone
    }

    /// An event is no longer here.
    pub(super) fn removed(&mut self, gone: &BTreeSet<EventId>) {
        self.expiring.retain(|(_, id)| !gone.contains(id));
        self.by_author.retain(|_, events| {
            events.retain(|id| !gone.contains(id));
            !events.is_empty()
        });
    }
}
