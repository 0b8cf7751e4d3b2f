//! The progress of history, and the end of a pass.

use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::History;

use super::super::batch::{Group, Purpose};
use super::super::desk::Desk;
use super::super::report::Report;
use super::resume::Sort;
use super::session::Session;

impl Session {
    /// Updates the progress of history. Changes nothing while a job is at work.
    pub(super) fn settle(&mut self, desk: &mut Desk<'_>) {
        if self.jobs.is_empty() && self.ended == Some(History::Complete) {
            return;
        }
        let mut outcome = History::Complete;
        let parked = self.parked_layers(desk);
        for job in self.jobs.values() {
            let Some(group) = self.groups.get(&job.group) else { continue };
            if !group.purpose.is_history() {
                continue;
            }
            if Self::is_at_work(desk, job, &parked) {
                return;
            }
            outcome = match (group.purpose, outcome) {
                (Purpose::Announcements | Purpose::CatchUp | Purpose::ReachBack(_), _) => {
                    History::CatchUpFailed
                }
                (_, History::CatchUpFailed) => History::CatchUpFailed,
                _ => History::BatchesFailed,
            };
        }
        if self.ended == Some(outcome) {
            return;
        }
        self.ended = Some(outcome);
        self.listening_since.get_or_insert(desk.now.unix);
        self.end_pass(desk, outcome);
        if let Some(state) = desk.state() {
            state.history_ended(outcome);
        }
        self.report_status(desk);
        if outcome == History::Complete {
            desk.note_change();
        }
    }

    /// Reports the number of interruptions since the last full pass, if it has changed.
    pub(super) fn report_interruptions(desk: &mut Desk<'_>) {
        let times = desk.standing.interrupted;
        if std::mem::replace(&mut desk.standing.interrupted_reported, times) != times {
            let relay = desk.relay.clone();
            desk.report(Report::Interrupted { relay, times });
            desk.note_change();
        }
    }

    /// Ends the pass: everything has been requested. Failed jobs have their own retries; repeating the whole pass for
    /// them would never end if one refusal is permanent.
    fn end_pass(&mut self, desk: &mut Desk<'_>, outcome: History) {
        if std::mem::replace(&mut desk.standing.pass.is_over, true) {
            return;
        }
        if outcome == History::Complete {
            let made_up_for = std::mem::take(&mut desk.standing.pass.interrupted_before);
            desk.standing.interrupted = desk.standing.interrupted.saturating_sub(made_up_for);
        }
        let bounds = desk.shared.config.full_pass;
        desk.standing.daily.done(desk.now, bounds, &mut desk.shared.rng);
        if desk.standing.pass.sort == Sort::Daily {
            let (relay, seen) = (desk.relay.clone(), desk.standing.health.seen(desk.mono()));
            desk.report(Report::Reliability { relay, seen });
        }
    }

    /// Returns the time up to which nothing confirmed can be missing, if that is later than the start.
    pub(super) fn heard_until(&self, now: Timestamp) -> Option<Timestamp> {
        let catches_up = |group: &Group| match group.purpose {
            Purpose::Announcements | Purpose::CatchUp | Purpose::ReachBack(_) => true,
            Purpose::Batch(_) | Purpose::Poll(_) => false,
        };
        if self.ended.is_none() || self.groups.values().any(catches_up) {
            return None;
        }
        self.live.wanted.values().map(|one| one.covered_until(now)).min()
    }
}
