//! The replies of each root.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::waiters::Waiters;
use crate::index::RootId;

/// Maximum number of replies per thread that are requested by id. Events that name the root are requested anyway.
const MAX_REPLIES: usize = 500;

/// Maximum number of replies that wait for the event that they answer. Relays send new events first, so replies come
/// before their roots. Beyond it, the one that has waited longest is removed.
const MAX_WAITING: usize = 50_000;

/// Roots and their replies, at any depth.
#[derive(Clone, Debug)]
pub(super) struct Threads {
    roots: BTreeMap<RootId, RootId>,
    /// Number of replies per root.
    sizes: BTreeMap<RootId, usize>,
    /// Replies by the unknown event that they answer.
    waiting: Waiters<RootId, RootId, ()>,
}

impl Default for Threads {
    fn default() -> Self {
        let (roots, sizes) = (BTreeMap::new(), BTreeMap::new());
        Self { roots, sizes, waiting: Waiters::new(MAX_WAITING) }
    }
}

impl Threads {
    /// Returns the root of a reply's thread.
    pub(super) fn root_of(&self, reply: &RootId) -> Option<RootId> {
        self.roots.get(reply).copied()
    }

    /// Adds a reply to a thread; `false` if the thread is full.
    pub(super) fn add(&mut self, root: RootId, reply: RootId) -> bool {
        let size = self.sizes.entry(root).or_default();
        if *size >= MAX_REPLIES {
            return false;
        }
        *size += 1;
        self.roots.insert(reply, root);
        true
    }

    /// Keeps a reply until an event that it answers is known.
    pub(super) fn wait(&mut self, reply: RootId, answered: Vec<RootId>) {
        for to in answered {
            self.waiting.add((), to, reply);
        }
    }

    /// Removes and returns the replies that wait for this event.
    pub(super) fn take_waiting(&mut self, to: &RootId) -> BTreeSet<RootId> {
        self.waiting.take(to)
    }

    /// Removes an event. Replies to it stay, because they may still be served.
    pub(super) fn remove(&mut self, event: &RootId) {
        let Some(root) = self.roots.remove(event) else { return };
        if let Entry::Occupied(mut size) = self.sizes.entry(root) {
            match *size.get() {
                ..=1 => _ = size.remove(),
                _ => *size.get_mut() -= 1,
            }
        }
    }
}
