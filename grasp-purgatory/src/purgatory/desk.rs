//! What is going on under one identifier right now. Nothing of it outlives the process.

use std::sync::Arc;

use grasp_core::Mono;
use nostr::event::{Event, EventId};
use nostr::types::Timestamp;

use super::output::Stage;

/// Work on one identifier: one step at a time, in a circle from `Idle` to `Idle`.
///
/// A crash forgets the step and loses nothing. What is kept is in the ledger until it is served, and the survey after
/// the restart finds again what was left to do.
#[derive(Debug, Default)]
pub(super) struct Desk {
    pub(super) step: Step,
    /// The pass that runs, or ran last.
    pub(super) pass: Pass,
    /// The pass that follows, if something changed after the survey that the current step builds on.
    pub(super) next: Option<Pass>,
    /// Fetches that are running.
    pub(super) fetches: usize,
    /// When to try again after a failure.
    pub(super) retry: Option<Mono>,
    /// When a git server first gave an answer in the hunt that is in line, if it did.
    pub(super) first_answer: Option<Timestamp>,
}

/// The number of one survey with all that follows from it. Whatever begins later has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pass(pub(super) u64);

/// The step that was asked for and has not come back.
#[derive(Debug, Default)]
pub(super) enum Step {
    /// None.
    #[default]
    Idle,
    /// Store and git are being looked at.
    Surveying,
    /// Refs are being set, for these events.
    Applying(Job),
    /// Events are being stored.
    Storing(Job),
}

/// What a release stores and withdraws once git is ready for it.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) events: Vec<Arc<Event>>,
    pub(super) withdraw: Vec<EventId>,
}

impl Job {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.withdraw.is_empty()
    }
}

impl Desk {
    /// Whether something is going on that may yet release what waits here.
    pub(super) fn is_busy(&self) -> bool {
        self.fetches > 0 || !matches!(self.step, Step::Idle)
    }

    /// Ends a stage, if it is the one that runs, and hands over what it was for.
    pub(super) fn end(&mut self, stage: Stage) -> Option<Job> {
        match std::mem::take(&mut self.step) {
            Step::Surveying if stage == Stage::Survey => Some(Job::default()),
            Step::Applying(job) if stage == Stage::Apply => Some(job),
            Step::Storing(job) if stage == Stage::Store => Some(job),
            running => {
                self.step = running;
                None
            }
        }
    }

    /// The pass that sees all that has happened so far, if one runs or follows.
    pub(super) fn awaited(&self) -> Option<Pass> {
        match self.step {
            Step::Idle => None,
            _ => Some(self.next.unwrap_or(self.pass)),
        }
    }

    /// Whether a pass has ended: nothing runs, or a later one does.
    pub(super) fn has_ended(&self, pass: Pass) -> bool {
        matches!(self.step, Step::Idle) || self.pass > pass
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_clear(&self) -> bool {
        !self.is_busy() && self.retry.is_none() && self.first_answer.is_none()
    }
}
