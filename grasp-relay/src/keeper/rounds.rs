//! When each repository name is looked after, one at a time.
//!
//! ```text
//!   Resting ──time──▶ Listing ──names──▶ Between ──time──▶ Visiting
//!      ▲                 │ failed           ▲ │ none left      │
//!      └─────────────────┴──────────────────┼─┘                │
//!                                           └─ visited, late ──┘
//! ```
//!
//! The first round begins at the start: what an earlier run left between a change in the store and its consequence
//! in git is found by it. A visit begins only after the one before has ended, so a server with many repositories is
//! rarely busy with more than one of them on this account. One that takes too long goes on beside the next: a single
//! repository does not keep the others from being looked after.

use std::collections::VecDeque;
use std::time::Duration;

use grasp_core::{Identifier, Mono};

/// From the end of a round to the beginning of the next.
const REST: Duration = Duration::from_secs(6 * 60 * 60);

/// Until names are asked for again that could not be told.
const RETRY: Duration = Duration::from_secs(60);

/// From the end of a visit to the beginning of the next, for the disk to do other things.
const PAUSE: Duration = Duration::from_millis(20);

/// How long one visit is waited for.
const VISIT_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Where the round is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rounds {
    /// None is under way.
    Resting { until: Mono },
    /// The names are being found out.
    Listing,
    /// The next name has its turn at this time.
    Between { left: VecDeque<Identifier>, next: Mono },
    /// One is being visited, and waited for until then.
    Visiting { name: Identifier, left: VecDeque<Identifier>, until: Mono },
}

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// Find out all names.
    List,
    /// Look after this one.
    Visit(Identifier),
}

impl Rounds {
    /// Begins with a round.
    pub(super) fn new(now: Mono) -> Self {
        Self::Resting { until: now }
    }

    /// Ends the rest, if there is one.
    pub(super) fn hurry(&mut self, now: Mono) {
        if let Self::Resting { until } = self {
            *until = now;
        }
    }

    /// When there is something to do, if time is what it takes.
    pub(super) fn deadline(&self) -> Option<Mono> {
        match self {
            Self::Resting { until } => Some(*until),
            Self::Between { next, .. } => Some(*next),
            Self::Visiting { until, .. } => Some(*until),
            Self::Listing => None,
        }
    }

    /// What is to be done now.
    pub(super) fn errand(&mut self, now: Mono) -> Option<Errand> {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return None;
        }
        match std::mem::replace(self, Self::Listing) {
            Self::Between { mut left, .. } => {
                let name = left.pop_front()?;
                *self = Self::Visiting { name: name.clone(), left, until: now + VISIT_TIMEOUT };
                Some(Errand::Visit(name))
            }
            Self::Visiting { name, left, .. } => {
                tracing::warn!(%name, "the maintenance of a repository takes long; going on");
                *self = Self::after_visit(now, left);
                None
            }
            _ => Some(Errand::List),
        }
    }

    /// The names are found, or could not be.
    pub(super) fn listed(&mut self, now: Mono, names: Option<VecDeque<Identifier>>) {
        *self = match names {
            Some(left) => Self::after_visit(now, left),
            None => Self::Resting { until: now + RETRY },
        };
    }

    /// A visit has ended, however it did. One that was not waited for any longer changes nothing.
    pub(super) fn visited(&mut self, now: Mono, visited: &Identifier) {
        match self {
            Self::Visiting { name, left, .. } if name == visited => {
                *self = Self::after_visit(now, std::mem::take(left));
            }
            _ => {}
        }
    }

    /// Whether no round is under way.
    pub(super) fn is_resting(&self) -> bool {
        matches!(self, Self::Resting { .. })
    }

    fn after_visit(now: Mono, left: VecDeque<Identifier>) -> Self {
        match left.is_empty() {
            true => Self::Resting { until: now + REST },
            false => Self::Between { left, next: now + PAUSE },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Option<VecDeque<Identifier>> {
        Some(names.iter().map(|name| name.parse().unwrap()).collect())
    }

    fn name(text: &str) -> Identifier {
        text.parse().unwrap()
    }

    fn visit(name: &str) -> Option<Errand> {
        Some(Errand::Visit(name.parse().unwrap()))
    }

    #[test]
    fn one_name_at_a_time_and_then_a_rest() {
        let mut now = Mono::ZERO;
        let mut rounds = Rounds::new(now);
        assert_eq!(rounds.errand(now), Some(Errand::List));
        assert_eq!((rounds.errand(now), rounds.deadline()), (None, None));
        rounds.listed(now, names(&["a", "b"]));
        assert_eq!(rounds.errand(now), None, "not without a pause");
        now = now + PAUSE;
        assert_eq!(rounds.errand(now), visit("a"));
        assert_eq!(rounds.errand(now), None, "a is not done");
        rounds.visited(now, &name("a"));
        now = now + PAUSE;
        assert_eq!(rounds.errand(now), visit("b"));
        rounds.visited(now, &name("b"));
        assert!(rounds.is_resting());
        assert_eq!(rounds.deadline(), Some(now + REST));
        assert_eq!(rounds.errand(now + REST), Some(Errand::List));
    }

    #[test]
    fn a_visit_that_takes_too_long_keeps_no_other_name_waiting() {
        let mut rounds = Rounds::new(Mono::ZERO);
        assert_eq!(rounds.errand(Mono::ZERO), Some(Errand::List));
        rounds.listed(Mono::ZERO, names(&["a", "b"]));
        let mut now = Mono::ZERO + PAUSE;
        assert_eq!(rounds.errand(now), visit("a"));
        now = now + VISIT_TIMEOUT;
        assert_eq!(rounds.deadline(), Some(now));
        assert_eq!(rounds.errand(now), None);
        now = now + PAUSE;
        assert_eq!(rounds.errand(now), visit("b"));
        rounds.visited(now, &name("a"));
        assert!(!rounds.is_resting(), "b is still visited");
        rounds.visited(now, &name("b"));
        assert!(rounds.is_resting());
    }

    #[test]
    fn names_that_could_not_be_listed_are_asked_for_again_soon() {
        let mut rounds = Rounds::new(Mono::ZERO);
        assert_eq!(rounds.errand(Mono::ZERO), Some(Errand::List));
        rounds.listed(Mono::ZERO, None);
        assert_eq!(rounds.errand(Mono::ZERO), None);
        assert_eq!(rounds.errand(Mono::ZERO + RETRY), Some(Errand::List));
    }

    #[test]
    fn whoever_cannot_wait_shortens_the_rest_and_nothing_else() {
        let mut rounds = Rounds::new(Mono::ZERO);
        rounds.hurry(Mono::ZERO);
        assert_eq!(rounds.errand(Mono::ZERO), Some(Errand::List));
        rounds.hurry(Mono::ZERO);
        assert_eq!(rounds, Rounds::Listing);
        rounds.listed(Mono::ZERO, names(&[]));
        assert_eq!(rounds.errand(Mono::ZERO), None);
        rounds.hurry(Mono::ZERO);
        assert_eq!(rounds.errand(Mono::ZERO), Some(Errand::List));
    }
}
