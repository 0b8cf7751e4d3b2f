//! Ids of roots and sets of them; roots of repositories that are not announced.

use std::cmp::Ordering;
use std::slice::Iter;
use std::sync::Arc;

use crate::RepoId;
use nostr::event::EventId;

use super::pairs::Pairs;

/// The id of a root (patch, pull request or issue), or of a reply in a thread.
///
/// A reply is marked as such, because answers name it by `e` only, while roots are named in more ways. The mark does
/// not affect equality or order.
///
/// Ordered like event ids, but faster: the first eight bytes are compared as a number, and nearly always differ.
/// Most of the work of the sync index is comparing roots.
///
/// ```
/// use grasp_core::sync::RootId;
/// use nostr::event::EventId;
///
/// let event = EventId::from_byte_array([7; 32]);
/// assert_eq!(RootId::from(event).event(), event);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RootId {
    event: EventId,
    is_reply: bool,
}

impl RootId {
    /// Returns the event id.
    pub fn event(&self) -> EventId {
        self.event
    }

    /// Marks the id as that of a reply.
    #[must_use]
    pub fn as_reply(self) -> Self {
        Self {
            is_reply: true,
            ..self
        }
    }

    /// Returns whether the id is marked as that of a reply.
    pub fn is_reply(&self) -> bool {
        self.is_reply
    }

    /// Returns the first eight bytes, which sort like the whole id.
    fn head(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *self.event.as_bytes();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl From<EventId> for RootId {
    fn from(event: EventId) -> Self {
        Self {
            event,
            is_reply: false,
        }
    }
}

impl PartialEq for RootId {
    fn eq(&self, other: &Self) -> bool {
        self.event == other.event
    }
}

impl Eq for RootId {}

impl Ord for RootId {
    fn cmp(&self, other: &Self) -> Ordering {
        let head = self.head().cmp(&other.head());
        head.then_with(|| self.event.cmp(&other.event))
    }
}

impl PartialOrd for RootId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A set of roots as a sorted list.
///
/// At scale a hundred of these hold thousands of roots each. They are built and compared as a whole, and looked up
/// rarely. A list is built at the cost of a copy and needs no more memory than its members; clones share it until one
/// of them changes.
///
/// ```
/// use grasp_core::sync::{RootId, RootSet};
/// use nostr::event::EventId;
///
/// let [a, b] = [1, 2].map(|n| RootId::from(EventId::from_byte_array([n; 32])));
/// let both: RootSet = [b, a, b].into();
/// assert_eq!(both.iter().collect::<Vec<_>>(), [&a, &b]);
/// assert_eq!(both.without(&[b].into()), [a].into());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootSet(Arc<Vec<RootId>>);

impl RootSet {
    /// Returns the number of roots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no roots.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the roots in order.
    pub fn iter(&self) -> Iter<'_, RootId> {
        self.0.iter()
    }

    /// Returns whether a root is in the set.
    ///
    /// Ids are hashes and so spread evenly: the first bytes predict the position. If crafted ids are not, the search
    /// widens until it is an ordinary binary search.
    pub fn contains(&self, root: &RootId) -> bool {
        let roots = self.0.as_slice();
        let at = self.approximate_position(root);
        let mut reach = 8;
        loop {
            let from = at.saturating_sub(reach);
            let to = at.saturating_add(reach).min(roots.len());
            let window = &roots[from..to];
            let not_before = from == 0 || window.first() <= Some(root);
            let not_after = to == roots.len() || window.last() >= Some(root);
            if not_before && not_after {
                return window.binary_search(root).is_ok();
            }
            reach *= 4;
        }
    }

    /// Returns the roots that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        // One lookup costs about as much as passing this many entries.
        const ENTRIES_PER_LOOKUP: usize = 16;
        let left = if self.len() < other.len() / ENTRIES_PER_LOOKUP {
            let missing = self.iter().filter(|root| !other.contains(root));
            missing.copied().collect()
        } else {
            self.without_by_merge(other)
        };
        Self(Arc::new(left))
    }

    /// Adds all roots of `other`.
    pub fn include(&mut self, other: &Self) {
        let new = other.without(self);
        if !new.is_empty() {
            let roots = Arc::make_mut(&mut self.0);
            roots.reserve_exact(new.len());
            roots.extend_from_slice(&new.0);
            roots.sort();
        }
    }

    /// Keeps the roots that are also in `other`.
    pub fn restrict_to(&mut self, other: &Self) {
        Arc::make_mut(&mut self.0).retain(|root| other.contains(root));
    }

    /// Returns the approximate position of a root, corrected once by the root at that position.
    fn approximate_position(&self, root: &RootId) -> usize {
        let position_of =
            |head: u64| ((u128::from(head) * self.0.len() as u128) >> u64::BITS) as usize;
        let at = position_of(root.head());
        let Some(there) = self.0.get(at).map(RootId::head) else {
            return at;
        };
        match root.head().checked_sub(there) {
            Some(offset) => (at + position_of(offset)).min(self.len()),
            None => at.saturating_sub(position_of(there - root.head())),
        }
    }

    /// Returns the roots that are not in `other`, by walking along both lists.
    fn without_by_merge(&self, other: &Self) -> Vec<RootId> {
        let mut others = other.iter().peekable();
        let missing = |root: &&RootId| {
            while others.next_if(|other| other < root).is_some() {}
            others.peek() != Some(root)
        };
        self.iter().filter(missing).copied().collect()
    }
}

impl FromIterator<RootId> for RootSet {
    fn from_iter<I: IntoIterator<Item = RootId>>(roots: I) -> Self {
        let mut roots: Vec<_> = roots.into_iter().collect();
        roots.sort();
        roots.dedup();
        roots.shrink_to_fit();
        Self(Arc::new(roots))
    }
}

impl<const N: usize> From<[RootId; N]> for RootSet {
    fn from(roots: [RootId; N]) -> Self {
        roots.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a RootSet {
    type Item = &'a RootId;
    type IntoIter = Iter<'a, RootId>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Maximum number of waiting roots. Any client can name repositories that are not announced; a replay of a relay's
/// events with announcements first stays far below.
pub(super) const MAX_WAITING_ROOTS: usize = 250_000;

/// Roots of repositories that are not announced, limited in number.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRoots(pub(super) Pairs<RepoId, RootId>);

impl WaitingRoots {
    /// Keeps a root; `false` if the limit is reached.
    pub(super) fn add(&mut self, repo: &RepoId, root: RootId) -> bool {
        if self.0.len() >= MAX_WAITING_ROOTS {
            return self.0.contains(repo, &root);
        }
        self.0.insert(repo.clone(), root);
        true
    }
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;

    #[test]
    fn sorts_like_event_ids() {
        let bytes = |places: &[(usize, u8)]| {
            let mut bytes = [9; 32];
            places
                .iter()
                .for_each(|(place, byte)| bytes[*place] = *byte);
            EventId::from_byte_array(bytes)
        };
        let ids = [
            bytes(&[]),
            bytes(&[(0, 200)]),
            bytes(&[(7, 8), (8, 255)]),
            bytes(&[(8, 1)]),
            bytes(&[(31, 10)]),
        ];
        for one in ids {
            for other in ids {
                assert_eq!(RootId::from(one).cmp(&other.into()), one.cmp(&other));
            }
        }
    }

    fn repo(n: u8) -> RepoId {
        RepoId::new(PublicKey::from_byte_array([n; 32]), "r".parse().unwrap())
    }

    fn root(n: usize) -> RootId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(bytes).into()
    }

    #[test]
    fn the_number_is_limited_and_removal_makes_room() {
        let mut waiting = WaitingRoots::default();
        assert!((0..MAX_WAITING_ROOTS).all(|n| waiting.add(&repo(1), root(n))));
        assert!(waiting.add(&repo(1), root(0)), "it is there already");
        assert!(!waiting.add(&repo(2), root(0)));
        waiting.0.remove(&repo(1), &root(0));
        waiting.0.remove(&repo(1), &root(0));
        assert!(waiting.add(&repo(2), root(0)));
        assert!(!waiting.add(&repo(2), root(1)));
        assert_eq!(waiting.0.take(&repo(1)).len(), MAX_WAITING_ROOTS - 1);
        assert!(waiting.add(&repo(2), root(1)));
    }
}
