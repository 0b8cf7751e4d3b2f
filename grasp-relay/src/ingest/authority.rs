//! Authors for whom part of every budget is reserved: those who sign for served repositories, and the operator.
//!
//! Strangers who use up all that a network, or everybody, may have looked up do not lock them out. That is known only
//! once a signature was verified, and it costs a look at the store: whoever has a state stored here was a confirmed
//! maintainer when it came. Authors that were found to be are remembered.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use grasp_core::admission::{Origin, Verdict};
use grasp_core::kinds;
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::key::PublicKey;

use super::Pipeline;
use super::round::Pending;

/// Authors that are remembered; beyond it the one that was found first is forgotten.
const MAX_REMEMBERED: usize = 1 << 14;

/// Authors that were found to have authority.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    authors: Mutex<Authors>,
}

#[derive(Debug, Default)]
struct Authors {
    known: BTreeSet<PublicKey>,
    /// The same, the first one first.
    order: VecDeque<PublicKey>,
}

impl Remembered {
    fn contains(&self, author: &PublicKey) -> bool {
        self.authors().known.contains(author)
    }

    fn add(&self, author: PublicKey) {
        let mut authors = self.authors();
        if authors.known.insert(author) {
            authors.order.push_back(author);
        }
        if authors.order.len() > MAX_REMEMBERED {
            let first = authors.order.pop_front();
            first.map(|first| authors.known.remove(&first));
        }
    }

    fn authors(&self) -> MutexGuard<'_, Authors> {
        self.authors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pipeline {
    /// Pays for what must be looked up before an event can be judged: its sender's network, or the reserve if the author
    /// has authority.
    pub(super) async fn pay_lookups(&self, event: &Event, origin: &Origin) -> bool {
        let now = self.clock.now().mono;
        if origin.is_sync() || self.budgets.pay_lookups(now, event, &origin.claimant()) {
            return true;
        }
        let has_authority = self.is_known_authority(&event.pubkey)
            || self.budgets.pay_inquiry(now, origin) && self.inquire(event.pubkey).await;
        has_authority && self.budgets.pay_lookups(now, event, &origin.claimant().with_authority())
    }

    /// Whether an author is known to have authority.
    pub(super) fn is_known_authority(&self, author: &PublicKey) -> bool {
        self.policy.operator == Some(*author) || self.budgets.authorities.contains(author)
    }

    /// Looks whether the authors of states that are taken in have authority, so that it is known when it matters.
    pub(super) async fn note_authorities(&self, round: &[Pending], verdicts: &[Verdict]) {
        for (pending, verdict) in round.iter().zip(verdicts) {
            let is_taken = matches!(verdict, Verdict::Accept(_) | Verdict::Hold(_));
            let (kind, author) = (pending.event.kind, pending.event.pubkey);
            if is_taken && kind == kinds::STATE && !self.is_known_authority(&author) {
                self.inquire(author).await;
            }
        }
    }

    /// Whether a state of this author is stored. If the store cannot say, nothing is reserved.
    async fn inquire(&self, author: PublicKey) -> bool {
        let question = vec![vec![Filter::new().author(author).kind(kinds::STATE)]];
        let answer = self.store.exists(question, self.clock.now().unix).await;
        let has_authority = answer.is_ok_and(|answers| answers == [true]);
        if has_authority {
            self.budgets.authorities.add(author);
        }
        has_authority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_author_that_was_found_first_is_forgotten_first() {
        let author = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_be_bytes());
            PublicKey::from_byte_array(bytes)
        };
        let remembered = Remembered::default();
        (0..=MAX_REMEMBERED).for_each(|n| remembered.add(author(n)));
        remembered.add(author(5));
        assert!(!remembered.contains(&author(0)));
        assert!((1..=MAX_REMEMBERED).all(|n| remembered.contains(&author(n))));
    }
}
