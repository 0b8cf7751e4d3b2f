//! Which replies belong to which root.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::waiters::Waiters;
use crate::sync::root::RootId;

/// Replies of one thread that are asked for by name. Whatever names the root is had in any case.
const MAX_REPLIES: usize = 500;

/// Replies that may wait for what they answer. A relay that tells its newest events first tells replies first. Of more,
/// those that have waited longest give way.
const MAX_WAITING: usize = 50_000;

/// Threads: roots, and the replies that came of them, however deep.
#[derive(Clone, Debug)]
pub(super) struct Threads {
    roots: BTreeMap<RootId, RootId>,
    /// Replies by their root, for as long as there are any.
    sizes: BTreeMap<RootId, usize>,
    /// Replies by what they answer and nobody has told of yet.
    waiting: Waiters<RootId, RootId, ()>,
}

impl Default for Threads {
    fn default() -> Self {
        let (roots, sizes) = (BTreeMap::new(), BTreeMap::new());
        Self { roots, sizes, waiting: Waiters::new(MAX_WAITING) }
    }
}

impl Threads {
    /// The root that a reply came of.
    pub(super) fn root_of(&self, reply: &RootId) -> Option<RootId> {
        self.roots.get(reply).copied()
    }

    /// Adds a reply to a thread; `false` if the thread is full.
    pub(super) fn join(&mut self, root: RootId, reply: RootId) -> bool {
        let size = self.sizes.entry(root).or_default();
        if *size >= MAX_REPLIES {
            return false;
        }
        *size += 1;
        self.roots.insert(reply, root);
        true
    }

    /// Keeps a reply until something that it answers is told of.
    pub(super) fn wait(&mut self, reply: RootId, answered: Vec<RootId>) {
        for to in answered {
            self.waiting.add((), to, reply);
        }
    }

    /// The replies that waited for this event.
    pub(super) fn take_waiting(&mut self, to: &RootId) -> BTreeSet<RootId> {
        self.waiting.take(to)
    }

    /// Forgets an event. What has come of a root or a reply stays: it may still be served.
    pub(super) fn leave(&mut self, event: &RootId) {
        let Some(root) = self.roots.remove(event) else { return };
        if let Entry::Occupied(mut size) = self.sizes.entry(root) {
            match *size.get() {
                ..=1 => _ = size.remove(),
                _ => *size.get_mut() -= 1,
            }
        }
    }
}
