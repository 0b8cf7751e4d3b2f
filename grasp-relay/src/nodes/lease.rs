//! The decisions of a node about the lease of the writer.
//!
//! ```text
//!   reader ──claim: held──▶ starting ──started──▶ writer ──another holds it, or it may have expired──▶ stopping ──stopped──▶ reader
//! ```
//!
//! The database refuses every commit under an old lease, so a node that decides late writes nothing wrong; it only keeps
//! its clients waiting.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::Mono;

use crate::store::postgres::LEASE;

/// The interval of renewals, and of claims while another node holds the lease.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a claim that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The phase of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeasePhase {
    Reader,
    Starting,
    Writer,
    Stopping,
    /// The process is stopping, and claims nothing any more.
    Ended,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The deadline has passed.
    Time,
    /// The answer to a claim: this node holds the lease.
    Held,
    /// The answer to a claim: another node holds the lease for this time.
    HeldBy(Arc<str>, Duration),
    /// The claim could not be made or answered.
    ClaimFailed,
    /// The parts of the writer run.
    Started,
    /// The parts of the writer could not be started.
    StartFailed,
    /// The parts of the writer have stopped.
    Stopped,
    /// The process is stopping.
    Shutdown,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Claim or renew the lease.
    Claim,
    /// Start the parts of the writer.
    Start,
    /// Stop the parts of the writer.
    Stop,
    /// Pass events and pushes to this node, or to none.
    Follow(Option<Arc<str>>),
    /// Give the lease back.
    Release,
}

/// The state of a node. It owns the decision who writes; the database has the last word.
#[derive(Debug)]
pub(crate) struct Lease {
    phase: LeasePhase,
    /// The time of the last claim, while its answer is awaited.
    claimed_at: Option<Mono>,
    next_claim: Mono,
    /// The time at which the lease may have expired; `None` without one.
    held_until: Option<Mono>,
    writer: Option<Arc<str>>,
}

impl Lease {
    pub(crate) fn new(now: Mono) -> Self {
        Self {
            phase: LeasePhase::Reader,
            claimed_at: None,
            next_claim: now,
            held_until: None,
            writer: None,
        }
    }

    /// Returns the time of the next [`Input::Time`].
    pub(crate) fn next_deadline(&self) -> Option<Mono> {
        let claim = (self.may_claim() && self.claimed_at.is_none()).then_some(self.next_claim);
        claim.into_iter().chain(self.held_until).min()
    }

    pub(crate) fn handle(&mut self, now: Mono, input: Input) -> Vec<Output> {
        match input {
            Input::Time => self.time_passed(now),
            Input::Held => self.held(now),
            Input::HeldBy(node, remaining) => self.held_by(now, node, remaining),
            Input::ClaimFailed => {
                self.claimed_at = None;
                self.next_claim = now + RETRY_PAUSE;
                Vec::new()
            }
            Input::Started => self.started(),
            Input::StartFailed => {
                // Another node may be able to.
                self.phase = LeasePhase::Reader;
                self.held_until = None;
                self.next_claim = now + CLAIM_INTERVAL;
                vec![Output::Release]
            }
            Input::Stopped => self.stopped(),
            Input::Shutdown => self.shut_down(),
        }
    }

    fn may_claim(&self) -> bool {
        !matches!(self.phase, LeasePhase::Stopping | LeasePhase::Ended)
    }

    fn time_passed(&mut self, now: Mono) -> Vec<Output> {
        let mut outputs = Vec::new();
        if self.held_until.is_some_and(|until| until <= now) {
            outputs.extend(self.step_back());
        }
        let is_due = self.claimed_at.is_none() && self.next_claim <= now;
        if is_due && self.may_claim() {
            self.claimed_at = Some(now);
            outputs.push(Output::Claim);
        }
        outputs
    }

    fn held(&mut self, now: Mono) -> Vec<Output> {
        // The database may have counted from the moment at which the claim was sent.
        let since = self.claimed_at.take().unwrap_or(now);
        self.next_claim = since + CLAIM_INTERVAL;
        match self.phase {
            LeasePhase::Reader => {
                self.held_until = Some(since + LEASE);
                (self.phase, self.writer) = (LeasePhase::Starting, None);
                vec![Output::Follow(None), Output::Start]
            }
            LeasePhase::Starting | LeasePhase::Writer => {
                self.held_until = Some(since + LEASE);
                Vec::new()
            }
            // Renewed while it was being given up.
            LeasePhase::Stopping | LeasePhase::Ended => vec![Output::Release],
        }
    }

    fn held_by(&mut self, now: Mono, node: Arc<str>, remaining: Duration) -> Vec<Output> {
        self.claimed_at = None;
        self.next_claim = now + remaining.min(CLAIM_INTERVAL);
        let mut outputs = self.step_back();
        if self.writer.as_ref() != Some(&node) {
            self.writer = Some(Arc::clone(&node));
            if self.phase == LeasePhase::Reader {
                outputs.push(Output::Follow(Some(node)));
            }
        }
        outputs
    }

    fn started(&mut self) -> Vec<Output> {
        match self.phase {
            LeasePhase::Starting => {
                self.phase = LeasePhase::Writer;
                Vec::new()
            }
            // The lease was lost, or the process told to stop, meanwhile.
            _ => vec![Output::Stop],
        }
    }

    fn stopped(&mut self) -> Vec<Output> {
        match self.phase {
            LeasePhase::Ended => vec![Output::Release],
            _ => {
                self.phase = LeasePhase::Reader;
                vec![Output::Follow(self.writer.clone())]
            }
        }
    }

    /// Stops writing, if this node writes.
    fn step_back(&mut self) -> Vec<Output> {
        self.held_until = None;
        match self.phase {
            LeasePhase::Writer => {
                (self.phase, self.writer) = (LeasePhase::Stopping, None);
                vec![Output::Stop]
            }
            // [`Output::Stop`] follows once the parts run.
            LeasePhase::Starting => {
                self.phase = LeasePhase::Stopping;
                Vec::new()
            }
            LeasePhase::Reader | LeasePhase::Stopping | LeasePhase::Ended => Vec::new(),
        }
    }

    fn shut_down(&mut self) -> Vec<Output> {
        let before = std::mem::replace(&mut self.phase, LeasePhase::Ended);
        self.held_until = None;
        match before {
            LeasePhase::Writer => vec![Output::Stop],
            LeasePhase::Starting | LeasePhase::Stopping | LeasePhase::Ended => Vec::new(),
            LeasePhase::Reader => vec![Output::Release],
        }
    }
}

#[cfg(test)]
mod tests;
