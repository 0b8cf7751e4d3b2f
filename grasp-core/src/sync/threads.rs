//! The threads of replies, at any depth, and the replies that came before what they answer.
//!
//! A reply is in the threads of all that it answers. What follows from the events here follows in any order of arrival and
//! removal: a reply to an event that is not here, or no longer, waits for it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::RepoId;

use super::SyncIndex;
use super::pairs::Pairs;
use super::roots::RootId;
use super::state::Before;
use super::waiters::Waiters;

/// Maximum number of replies per thread that are requested by id. Events that name the root are requested anyway.
const MAX_REPLIES: usize = 500;

/// Maximum number of threads per reply.
const MAX_THREADS_PER_REPLY: usize = 16;

/// Maximum number of replies that wait for the event that they answer. Relays send new events first, so replies come
/// before their roots. Beyond it, the one that has waited longest is removed.
const MAX_WAITING_REPLIES: usize = 50_000;

/// Roots and their replies.
#[derive(Clone, Debug, Default)]
pub(super) struct Threads {
    /// The roots of the threads that a reply is in. A reply without any is not known.
    roots: Pairs<RootId, RootId>,
    /// Number of replies per root.
    sizes: BTreeMap<RootId, usize>,
    /// The events that a reply answers, known or not.
    answers: Pairs<RootId, RootId>,
    /// The replies to a known event.
    replies: Pairs<RootId, RootId>,
    /// The replies to an unknown event.
    waiting: Waiters<RootId, RootId, (), MAX_WAITING_REPLIES>,
}

impl Threads {
    /// Returns whether an event answers another one.
    pub(super) fn is_reply(&self, event: &RootId) -> bool {
        self.answers.of(event).next().is_some()
    }

    /// Returns whether no reply is known or waits.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let all = [&self.roots, &self.answers, &self.replies];
        all.iter().all(|pairs| pairs.is_empty()) && self.sizes.is_empty() && self.waiting.is_empty()
    }

    fn is_in_any(&self, reply: &RootId) -> bool {
        self.roots.of(reply).next().is_some()
    }

    /// Adds a reply to a thread; false if it cannot be in it because a limit is reached.
    fn join(&mut self, root: RootId, reply: RootId) -> bool {
        if self.roots.contains(&reply, &root) {
            return true;
        }
        let size = self.sizes.get(&root).copied().unwrap_or_default();
        if size >= MAX_REPLIES || self.roots.of(&reply).count() >= MAX_THREADS_PER_REPLY {
            return false;
        }
        self.sizes.insert(root, size + 1);
        self.roots.insert(reply, root);
        true
    }

    /// Removes a reply from all threads.
    fn leave(&mut self, reply: &RootId) {
        for root in self.roots.take(reply) {
            if let Entry::Occupied(mut size) = self.sizes.entry(root) {
                match *size.get() {
                    ..=1 => _ = size.remove(),
                    _ => *size.get_mut() -= 1,
                }
            }
        }
    }

    /// Lets a reply wait for an event.
    fn wait(&mut self, event: RootId, reply: RootId) {
        self.replies.remove(&event, &reply);
        if let Some((event, reply)) = self.waiting.add((), event, reply) {
            self.answers.remove(&reply, &event);
        }
    }

    /// Notes a reply to a known event.
    fn link(&mut self, event: RootId, reply: RootId) {
        self.waiting.remove(&event, &reply);
        self.replies.insert(event, reply);
    }

    fn unlink(&mut self, event: &RootId, reply: &RootId) {
        self.waiting.remove(event, reply);
        self.replies.remove(event, reply);
        self.answers.remove(reply, event);
    }

    /// Returns the replies to an event, those that waited for it included, so that they can be linked.
    fn take_replies(&mut self, event: &RootId) -> Vec<RootId> {
        let mut replies: Vec<RootId> = self.replies.of(event).copied().collect();
        replies.extend(self.waiting.take(event));
        replies
    }

    /// Returns an event and all replies below it.
    fn below(&self, event: RootId) -> BTreeSet<RootId> {
        let mut below = BTreeSet::from([event]);
        let mut open = vec![event];
        while let Some(event) = open.pop() {
            for reply in self.replies.of(&event) {
                if below.insert(*reply) {
                    open.push(*reply);
                }
            }
        }
        below
    }
}

impl SyncIndex {
    /// Adds a reply to the events that it answers.
    pub(super) fn replied(&mut self, reply: RootId, to: Vec<RootId>, before: &mut Before) {
        let is_known = self.root_repos.of(&reply).next().is_some();
        if is_known && !self.threads.is_reply(&reply) {
            // A root stays one.
            return;
        }
        for event in to {
            if event != reply {
                self.threads.answers.insert(reply, event);
            }
        }
        self.join_threads(vec![reply], before);
    }

    /// Adds the replies to a root that came before it, or before its last repository.
    pub(super) fn join_replies(&mut self, root: &RootId, before: &mut Before) {
        let replies = self.threads.take_replies(root);
        self.join_threads(replies, before);
    }

    /// Removes a root or reply. Replies to it that are in no other thread wait for it, as they do after a restart.
    pub(super) fn root_removed(&mut self, root: &RootId, before: &mut Before) {
        let below = self.threads.below(*root);
        for event in &below {
            before.root(self, event);
        }
        for event in &below {
            for repo in self.root_repos.take(event) {
                match self.repos.get_mut(&repo) {
                    Some(needs) => _ = needs.root_events.remove(event),
                    None => self.waiting_roots.0.remove(&repo, event),
                }
            }
            self.threads.leave(event);
        }
        self.user_relays.remove_root(root);
        let answered: Vec<RootId> = self.threads.answers.of(root).copied().collect();
        for event in answered {
            self.threads.unlink(&event, root);
        }
        let replies = below.into_iter().filter(|event| event != root);
        self.join_threads(replies.collect(), before);
    }

    /// Adds replies to the threads of what they answer, and then the replies to these.
    fn join_threads(&mut self, mut open: Vec<RootId>, before: &mut Before) {
        while let Some(reply) = open.pop() {
            // A reply that is not in more threads than before passes nothing on, so that this ends.
            if self.join_threads_of_answered(reply.as_reply(), before) {
                open.extend(self.threads.take_replies(&reply));
            }
        }
    }

    /// Adds a reply to the threads of what it answers; returns whether that made a difference.
    fn join_threads_of_answered(&mut self, reply: RootId, before: &mut Before) -> bool {
        let answered: Vec<RootId> = self.threads.answers.of(&reply).copied().collect();
        let mut is_changed = false;
        for event in answered {
            let roots = self.threads_of(&event);
            if roots.is_empty() {
                self.threads.wait(event, reply);
                continue;
            }
            self.threads.link(event, reply);
            let mut is_in_one = false;
            for root in roots {
                let was_in = self.threads.roots.contains(&reply, &root);
                if self.threads.join(root, reply) {
                    is_in_one = true;
                    is_changed |= !was_in | self.add_to_repos_of(root, reply, before);
                }
            }
            if !is_in_one {
                self.threads.unlink(&event, &reply);
            }
        }
        is_changed
    }

    /// Adds a reply to the repositories of a root; returns whether any is new.
    fn add_to_repos_of(&mut self, root: RootId, reply: RootId, before: &mut Before) -> bool {
        let repos: Vec<RepoId> = self.root_repos.of(&root).cloned().collect();
        let mut is_any_new = false;
        for repo in &repos {
            if !self.root_repos.contains(&reply, repo) {
                before.root(self, &reply);
                is_any_new |= self.root_added(reply, repo);
            }
        }
        is_any_new
    }

    /// Returns the roots of the threads that an event is in; none if it is not known.
    fn threads_of(&self, event: &RootId) -> Vec<RootId> {
        if self.threads.is_in_any(event) {
            return self.threads.roots.of(event).copied().collect();
        }
        let is_root = self.root_repos.of(event).next().is_some();
        is_root.then_some(*event).into_iter().collect()
    }
}
