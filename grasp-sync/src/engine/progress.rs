//! The progress of a connection's history: its end, the end of the pass, and the comparison after a catch-up.

use grasp_core::limits::Admit;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{
    History, PendingItems, build_announcement_filter, build_layer2_and_layer3_filters,
};

use super::backlog::Purpose;
use super::full_sync::all_events;
use super::history::{CountAs, PassKind, daily_pass};
use super::io::Report;
use super::job::JobMethod;
use super::relay::RelayContext;
use super::session::ConnectionSession;
use super::visits::Scope;

impl ConnectionSession {
    /// Updates the progress of history. Changes nothing while a job is at work. A visit has no history.
    pub(super) fn update_progress(&mut self, ctx: &mut RelayContext<'_>) {
        if ctx.history.scope == Scope::Visits {
            return;
        }
        if self.backlog.jobs.is_empty() && self.ended == Some(History::Complete) {
            return;
        }
        let mut outcome = History::Complete;
        let suspended = ctx.suspended_layers();
        let backs_off = ctx.history.wants.is_backing_off(ctx.mono());
        for (id, job) in &self.backlog.jobs {
            let batch = self.backlog.batches.get(&id.batch);
            let Some(batch) = batch.filter(|batch| batch.purpose.is_history()) else {
                continue;
            };
            if job.is_at_work(suspended.contains_key(&job.layer), backs_off) {
                return;
            }
            let has_failed = batch.purpose.catches_up() || outcome == History::CatchUpFailed;
            outcome = if has_failed {
                History::CatchUpFailed
            } else {
                History::BatchesFailed
            };
        }
        if self.ended == Some(outcome) {
            return;
        }
        self.ended = Some(outcome);
        self.listening_since.get_or_insert(ctx.now.unix);
        self.end_pass(ctx, outcome);
        ctx.history.state.history_ended(outcome);
        ctx.report_status();
        if outcome == History::Complete {
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
            let interrupted = &mut ctx.history.kept.interrupted;
            *interrupted = interrupted.saturating_sub(made_up_for);
        }
        let last = Some(ctx.now.unix);
        let bounds = ctx.shared.config.full_pass;
        ctx.history.kept.full_pass_at = last;
        ctx.history.daily = daily_pass(ctx.now, last, bounds, &mut ctx.shared.rng);
        if ctx.history.pass.kind == PassKind::Daily {
            let seen = ctx.history.health.seen(ctx.mono());
            ctx.report(|relay| Report::Reliability { relay, seen });
        }
    }

    /// Returns the time up to which nothing confirmed can be missing, if that is later than the start.
    pub(super) fn heard_until(&self, now: Timestamp) -> Option<Timestamp> {
        let mut batches = self.backlog.batches.values();
        if self.ended.is_none() || batches.any(|batch| batch.purpose.catches_up()) {
            return None;
        }
        self.live
            .requests
            .values()
            .map(|one| one.covered_until(now))
            .min()
    }

    /// Compares everything once more after a catch-up, if its time has come; returns whether it does. A catch-up asks by
    /// date, and does not find an event that was published during the absence with an older date.
    pub(super) fn recheck_if_due(&mut self, ctx: &mut RelayContext<'_>) -> bool {
        let is_due = ctx.history.recheck_at.is_some_and(|at| ctx.mono() >= at);
        if !is_due || self.ended != Some(History::Complete) {
            return false;
        }
        if self.backlog.pages_only || ctx.history.no_negentropy_reported {
            ctx.history.recheck_at = None;
            return false;
        }
        if let Admit::Wait(until) = ctx.history.neg.admit(ctx.mono()) {
            ctx.history.recheck_at = Some(until);
            return false;
        }
        ctx.history.begin_recheck(ctx.now.mono);
        let confirmed = ctx.history.state.confirmed.clone();
        let mut filters = build_layer2_and_layer3_filters(&confirmed, None, &self.budget);
        if self.covered_by_full_sync(ctx, &filters) {
            filters = vec![all_events()];
        }
        if ctx.history.scope == Scope::Full {
            filters.push(build_announcement_filter(None));
        }
        let nothing = PendingItems::default();
        let purpose = Purpose::Recheck;
        let method = JobMethod::Reconcile;
        self.backlog
            .fetch(ctx, purpose, filters, method, nothing, CountAs::NEW);
        true
    }
}
