//! Events that threads are made of, by what may take them away: their author's vanishing, and time.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::kinds;
use nostr::event::{Event, EventId};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

/// Events that are remembered. Of more, those of the author that has most are forgotten: if they vanish or expire, they
/// are asked for until the next start.
const MAX_EVENTS: usize = 250_000;

/// The roots and replies that sync was told of.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// With the time at which each expires.
    by_author: BTreeMap<PublicKey, BTreeMap<EventId, Option<Timestamp>>>,
    /// Authors by how many events they have.
    sizes: BTreeSet<(usize, PublicKey)>,
    expiring: BTreeSet<(Timestamp, PublicKey, EventId)>,
    count: usize,
}

impl Threads {
    pub(super) fn told(&mut self, event: &Event) {
        if kinds::ROOT_KINDS.contains(&event.kind) || kinds::REPLY_KINDS.contains(&event.kind) {
            self.add(event.pubkey, event.id, event.tags.expiration(), MAX_EVENTS);
        }
    }

    /// The events of an author who asked to vanish (NIP-62).
    pub(super) fn of(&self, author: &PublicKey) -> Vec<(PublicKey, EventId)> {
        let events = self.by_author.get(author).into_iter().flat_map(BTreeMap::keys);
        events.map(|id| (*author, *id)).collect()
    }

    /// When the next event expires (NIP-40).
    pub(super) fn next_expiry(&self) -> Option<Timestamp> {
        self.expiring.first().map(|(at, ..)| *at)
    }

    /// Takes out the events that have expired by now.
    pub(super) fn expired(&mut self, now: Timestamp) -> Vec<(PublicKey, EventId)> {
        let mut gone = Vec::new();
        while self.next_expiry().is_some_and(|at| at <= now) {
            gone.extend(self.expiring.pop_first().map(|(_, author, id)| (author, id)));
        }
        gone
    }

    /// An author's event is no longer here.
    pub(super) fn removed(&mut self, author: &PublicKey, id: &EventId) {
        let Some(events) = self.by_author.get_mut(author) else { return };
        let before = events.len();
        let Some(expires) = events.remove(id) else { return };
        if events.is_empty() {
            self.by_author.remove(author);
        }
        self.resized(*author, before, before - 1);
        if let Some(at) = expires {
            self.expiring.remove(&(at, *author, *id));
        }
    }

    fn add(&mut self, author: PublicKey, id: EventId, expires: Option<Timestamp>, most: usize) {
        if self.by_author.get(&author).is_some_and(|events| events.contains_key(&id)) {
            return;
        }
        if self.count >= most {
            self.forget_one();
        }
        let events = self.by_author.entry(author).or_default();
        events.insert(id, expires);
        let after = events.len();
        self.resized(author, after - 1, after);
        self.expiring.extend(expires.map(|at| (at, author, id)));
    }

    /// Forgets an event of the author that has most.
    fn forget_one(&mut self) {
        let Some((_, author)) = self.sizes.last().copied() else { return };
        let first = self.by_author.get(&author).and_then(|events| events.keys().next().copied());
        if let Some(id) = first {
            self.removed(&author, &id);
        }
    }

    fn resized(&mut self, author: PublicKey, before: usize, after: usize) {
        self.sizes.remove(&(before, author));
        if after > 0 {
            self.sizes.insert((after, author));
        }
        self.count = self.count + after - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(n: u8) -> PublicKey {
        PublicKey::from_byte_array([n; 32])
    }

    fn id(n: u32) -> EventId {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(bytes)
    }

    #[test]
    fn one_author_makes_the_others_forgotten_in_no_number() {
        let mut threads = Threads::default();
        threads.add(author(1), id(0), Some(9.into()), 100);
        for n in 1..1_000 {
            threads.add(author(2), id(n), Some(7.into()), 100);
        }
        assert_eq!((threads.count, threads.expiring.len()), (100, 100));
        assert_eq!(threads.of(&author(1)), [(author(1), id(0))]);
        assert_eq!(threads.of(&author(2)).len(), 99);
    }

    #[test]
    fn what_is_removed_is_gone_from_everywhere() {
        let mut threads = Threads::default();
        threads.add(author(1), id(1), Some(9.into()), 100);
        threads.add(author(1), id(1), Some(9.into()), 100);
        threads.add(author(1), id(2), None, 100);
        threads.removed(&author(2), &id(1));
        assert_eq!((threads.count, threads.next_expiry()), (2, Some(9.into())));
        threads.removed(&author(1), &id(1));
        assert_eq!(
            (threads.of(&author(1)), threads.next_expiry()),
            (vec![(author(1), id(2))], None)
        );
        threads.removed(&author(1), &id(2));
        assert!(threads.by_author.is_empty() && threads.sizes.is_empty() && threads.count == 0);
    }

    #[test]
    fn what_has_expired_is_told_with_its_author() {
        let mut threads = Threads::default();
        threads.add(author(1), id(1), Some(9.into()), 100);
        threads.add(author(2), id(2), Some(5.into()), 100);
        assert_eq!(threads.expired(4.into()), []);
        assert_eq!(threads.expired(5.into()), [(author(2), id(2))]);
        assert_eq!(threads.next_expiry(), Some(9.into()));
    }
}
