//! Which events are here for the sake of a repository alone.
//!
//! Admission accepts an event that names a served one, or that a served one names. So two events that name each other in one
//! way or the other are a reason for each other, and events that are connected by such reasons stay or go together: they
//! stay if one of them has a reason of its own. Pure: the caller reads the events.

use std::collections::BTreeSet;

use grasp_core::admission::{Needs, Policy};
use grasp_core::nip34::Proposal;
use grasp_core::{RepoId, kinds};
use nostr::event::{Event, EventId};

/// What an event is to those that are connected with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has a reason of its own to be served, and is one for them.
    Independent,
    /// It is served because of others.
    Dependent,
    /// It is no reason for others: it is stored whatever it names.
    Unrelated,
}

/// Returns what an event is while a repository is not announced.
pub(super) fn standing(policy: &Policy, unannounced: &RepoId, event: &Event) -> Standing {
    if kinds::UNCONDITIONAL_KINDS.contains(&event.kind)
        || kinds::PROFILE_KINDS.contains(&event.kind)
    {
        return Standing::Unrelated;
    }
    if event.kind == kinds::ANNOUNCEMENT || event.kind == kinds::STATE {
        // The state of its owner is about to be withdrawn.
        return match Needs::of(event).repo.as_ref() == Some(unannounced) {
            true => Standing::Unrelated,
            false => Standing::Independent,
        };
    }
    let is_own = [policy.operator, policy.service_key].contains(&Some(event.pubkey));
    let has_endpoint = || {
        let proposal = Proposal::parse(event);
        proposal.is_ok_and(|proposal| policy.own_urls(&proposal).next().is_some())
    };
    match is_own || has_endpoint() {
        true => Standing::Independent,
        false => Standing::Dependent,
    }
}

/// Events that are connected with each other, as far as they were read.
#[derive(Debug)]
pub(super) struct Component {
    members: BTreeSet<EventId>,
    unread: BTreeSet<EventId>,
    max: usize,
    has_reason: bool,
}

/// What is left to do about a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Events that are connected with these are to be looked up.
    Read(BTreeSet<EventId>),
    /// The events stay: one of them has a reason, or there are too many to know.
    Kept(BTreeSet<EventId>),
    /// Nothing else that is served is a reason for any of the events.
    Unneeded(BTreeSet<EventId>),
}

impl Component {
    /// Begins with one dependent event. More events than `max` are not read.
    pub(super) fn new(first: EventId, max: usize) -> Self {
        Self {
            members: BTreeSet::from([first]),
            unread: BTreeSet::from([first]),
            max,
            has_reason: false,
        }
    }

    /// Adds an event that is connected with one of the component.
    pub(super) fn add(&mut self, id: EventId, standing: Standing) {
        match standing {
            Standing::Independent => self.has_reason = true,
            Standing::Dependent if self.members.insert(id) => _ = self.unread.insert(id),
            Standing::Dependent | Standing::Unrelated => {}
        }
    }

    /// Returns whether the limit of events is exceeded.
    pub(super) fn is_too_large(&self) -> bool {
        self.members.len() > self.max
    }

    /// Returns whether no more events need to be read.
    pub(super) fn is_decided(&self) -> bool {
        self.has_reason || self.is_too_large()
    }

    /// Returns the next events to read, a number at most, or the end.
    pub(super) fn next(&mut self, most: usize) -> Progress {
        if self.is_decided() {
            return Progress::Kept(self.members.clone());
        }
        let mut next = BTreeSet::new();
        while next.len() < most {
            let Some(id) = self.unread.pop_first() else {
                break;
            };
            next.insert(id);
        }
        match next.is_empty() {
            true => Progress::Unneeded(self.members.clone()),
            false => Progress::Read(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const EVENTS: u8 = 24;

    fn id(n: u8) -> EventId {
        EventId::from_byte_array([n; 32])
    }

    /// Which event names which, and what each is.
    #[derive(Clone, Debug)]
    struct Graph {
        names: BTreeSet<(u8, u8)>,
        standings: Vec<Standing>,
    }

    impl Graph {
        fn neighbours(&self, n: u8) -> impl Iterator<Item = u8> {
            self.names.iter().filter_map(move |pair| match *pair {
                (a, b) if a == n => Some(b),
                (a, b) if b == n => Some(a),
                _ => None,
            })
        }

        fn standing(&self, n: u8) -> Standing {
            self.standings[usize::from(n)]
        }

        /// Returns what admission would accept, one event after the other, were nothing here but what has a reason.
        fn accepted(&self) -> BTreeSet<u8> {
            let independent = |n: &u8| self.standing(*n) == Standing::Independent;
            let mut accepted: BTreeSet<u8> = (0..EVENTS).filter(independent).collect();
            loop {
                let mut more = accepted.clone();
                for n in (0..EVENTS).filter(|n| self.standing(*n) == Standing::Dependent) {
                    if self.neighbours(n).any(|other| accepted.contains(&other)) {
                        more.insert(n);
                    }
                }
                if more == accepted {
                    return accepted;
                }
                accepted = more;
            }
        }

        /// Returns the events that are found to be unneeded, from this one.
        fn unneeded(&self, first: u8, max: usize, at_once: usize) -> Option<BTreeSet<EventId>> {
            let mut component = Component::new(id(first), max);
            loop {
                match component.next(at_once) {
                    Progress::Read(ids) => {
                        for read in ids {
                            for other in self.neighbours(read.as_bytes()[0]) {
                                component.add(id(other), self.standing(other));
                            }
                        }
                    }
                    Progress::Kept(_) => return None,
                    Progress::Unneeded(ids) => return Some(ids),
                }
            }
        }
    }

    fn graph() -> impl Strategy<Value = Graph> {
        let standing = prop_oneof![
            1 => Just(Standing::Independent),
            12 => Just(Standing::Dependent),
            2 => Just(Standing::Unrelated),
        ];
        let names = vec((0..EVENTS, 0..EVENTS), 0..30);
        let standings = vec(standing, usize::from(EVENTS));
        (names, standings).prop_map(|(names, standings)| Graph {
            names: names.into_iter().collect(),
            standings,
        })
    }

    proptest! {
        #[test]
        fn exactly_what_admission_would_not_accept_again_is_unneeded(
            graph in graph(),
            first in 0..EVENTS,
            at_once in 1..5_usize,
        ) {
            prop_assume!(graph.standing(first) == Standing::Dependent);
            let accepted = graph.accepted();
            let unneeded = graph.unneeded(first, usize::MAX, at_once);
            prop_assert_eq!(unneeded.is_none(), accepted.contains(&first));
            for gone in unneeded.into_iter().flatten() {
                prop_assert!(!accepted.contains(&gone.as_bytes()[0]));
            }
        }

        #[test]
        fn a_limit_keeps_more_and_never_removes_what_has_a_reason(
            graph in graph(),
            first in 0..EVENTS,
            max in 1..10_usize,
        ) {
            prop_assume!(graph.standing(first) == Standing::Dependent);
            let accepted = graph.accepted();
            let unneeded = graph.unneeded(first, max, 3).unwrap_or_default();
            prop_assert!(unneeded.len() <= max);
            for gone in unneeded {
                prop_assert!(!accepted.contains(&gone.as_bytes()[0]));
            }
        }
    }
}
