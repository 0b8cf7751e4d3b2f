//! The verdict of a limit that only time can lift.

use crate::Mono;

/// May it start now?
///
/// `Go` is said to one caller for one start; where the machine counts starts, it has counted it.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Yes, once.
    Go,
    /// Not before this point in time; asking earlier gives the same answer.
    Wait(Mono),
}

impl Admit {
    /// `Go` from `at` on.
    pub(super) fn from(at: Mono, now: Mono) -> Self {
        if now >= at { Self::Go } else { Self::Wait(at) }
    }
}
