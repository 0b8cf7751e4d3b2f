//! Many roots: the bulk of what a relay is wanted for.

use std::slice::Iter;
use std::sync::Arc;

use super::root::RootId;

/// A set of roots, as one sorted list.
///
/// At scale a hundred of these hold thousands of roots each, are built and compared as wholes, and are asked for
/// a few members now and then. A list is built at the cost of a copy and takes no more room than its members; clones
/// share it until one of them changes.
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
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> Iter<'_, RootId> {
        self.0.iter()
    }

    /// Whether this root is among them.
    ///
    /// Ids are hashes, spread evenly, so the first bytes tell about where one must stand. Should somebody have
    /// bred ids that are not, the search widens until it is an ordinary one.
    pub fn contains(&self, root: &RootId) -> bool {
        let roots = self.0.as_slice();
        let at = self.guess(root);
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

    /// Those that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        // Looking each up costs about as much as passing by this many.
        const WORTH_PASSING: usize = 16;
        let left = if self.len() < other.len() / WORTH_PASSING {
            let missing = self.iter().filter(|root| !other.contains(root));
            missing.copied().collect()
        } else {
            self.passing(other)
        };
        Self(Arc::new(left))
    }

    /// Adds all of `other`.
    pub fn include(&mut self, other: &Self) {
        let new = other.without(self);
        if !new.is_empty() {
            let roots = Arc::make_mut(&mut self.0);
            roots.reserve_exact(new.len());
            roots.extend_from_slice(&new.0);
            roots.sort();
        }
    }

    /// Keeps those that are also in `other`.
    pub fn restrict_to(&mut self, other: &Self) {
        Arc::make_mut(&mut self.0).retain(|root| other.contains(root));
    }

    /// About where a root stands, or would: corrected once by who stands there.
    fn guess(&self, root: &RootId) -> usize {
        let share = |head: u64| ((u128::from(head) * self.0.len() as u128) >> u64::BITS) as usize;
        let at = share(root.head());
        let Some(there) = self.0.get(at).map(RootId::head) else {
            return at;
        };
        match root.head().checked_sub(there) {
            Some(further) => (at + share(further)).min(self.len()),
            None => at.saturating_sub(share(there - root.head())),
        }
    }

    /// Those that are not in `other`, found by walking along both.
    fn passing(&self, other: &Self) -> Vec<RootId> {
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
