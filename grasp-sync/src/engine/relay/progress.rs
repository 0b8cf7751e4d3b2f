//! The progress of history, and the end of a pass.

use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::History;

use super::super::context::RelayContext;
use super::super::job::{Group, Purpose};
use super::super::report::Report;
use super::resume::PassKind;
use super::session::Session;

impl Session {
    /// Updates the progress of history. Changes nothing while a job is at work.
    pub(super) fn update_progress(&mut self, ctx: &mut RelayContext<'_>) {
        if self.jobs.is_empty() && self.ended == Some(History::Complete) {
            return;
        }
        let mut outcome = History::Complete;
        let suspended = self.suspended_layers(ctx);
        for job in self.jobs.values() {
            let Some(group) = self.groups.get(&job.group) else { continue };
            if !group.purpose.is_history() {
                continue;
            }
            if Self::is_at_work(ctx, job, &suspended) {
                return;
            }
            outcome = match (group.purpose, outcome) {
                (Purpose::Announcements | Purpose::CatchUp | Purpose::MissedLive(_), _) => {
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
        self.listening_since.get_or_insert(ctx.now.unix);
        self.end_pass(ctx, outcome);
        if let Some(state) = ctx.state() {
            state.history_ended(outcome);
        }
        self.report_status(ctx);
        if outcome == History::Complete {
            ctx.schedule_write();
        }
    }

    /// Reports the number of interruptions since the last full pass, if it has changed.
    pub(super) fn report_interruptions(ctx: &mut RelayContext<'_>) {
        let times = ctx.history.interrupted;
        if std::mem::replace(&mut ctx.history.interrupted_reported, times) != times {
            ctx.report(|relay| Report::Interrupted { relay, times });
            ctx.schedule_write();
        }
    }

    /// Ends the pass: everything has been requested. Failed jobs have their own retries; repeating the whole pass for
    /// them would never end if one refusal is permanent.
    fn end_pass(&mut self, ctx: &mut RelayContext<'_>, outcome: History) {
        if std::mem::replace(&mut ctx.history.pass.is_over, true) {
            return;
        }
        if outcome == History::Complete {
            let made_up_for = std::mem::take(&mut ctx.history.pass.interrupted_before);
            ctx.history.interrupted = ctx.history.interrupted.saturating_sub(made_up_for);
        }
        let bounds = ctx.shared.config.full_pass;
        ctx.history.daily.done(ctx.now, bounds, &mut ctx.shared.rng);
        if ctx.history.pass.kind == PassKind::Daily {
            let seen = ctx.history.health.seen(ctx.mono());
            ctx.report(|relay| Report::Reliability { relay, seen });
        }
    }

    /// Returns the time up to which nothing confirmed can be missing, if that is later than the start.
    pub(super) fn heard_until(&self, now: Timestamp) -> Option<Timestamp> {
        let catches_up = |group: &Group| match group.purpose {
            Purpose::Announcements | Purpose::CatchUp | Purpose::MissedLive(_) => true,
            Purpose::Batch(_) | Purpose::Poll(_) => false,
        };
        if self.ended.is_none() || self.groups.values().any(catches_up) {
            return None;
        }
        self.live.requests.values().map(|one| one.covered_until(now)).min()
    }
}
