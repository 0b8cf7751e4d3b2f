//! The life of a job: queued, backing off, split, ended.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{Ending, Next, PARK};
use grasp_core::Mono;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::{BatchProgress, PendingBatch};

use super::super::context::RelayContext;
use super::super::ids::{GroupId, JobId};
use super::super::job::{Job, JobPhase, Method, Purpose};
use super::super::layer::{Layer, bisect, split, split_by_kind};
use super::super::report::Report;
use super::super::retry::WantResult;
use super::live::{LivePhase, backoff_after};
use super::session::Session;

/// Splits by time after which a set that is still too large is paged: each costs two requests, and a relay that
/// compares so little is paged through quickly.
const MAX_TIME_SPLITS: u32 = 8;

/// Jobs of one connection above which full seconds are no longer split: a relay can make them up.
const MAX_JOBS: usize = 20_000;

impl Session {
    /// Adds a job to its queue, or makes it wait if the relay refused this very filter.
    pub(super) fn enqueue(&mut self, ctx: &RelayContext<'_>, id: JobId, job: Job, method: Method) {
        let refused = ctx.history.suspended.filter_suspended_for(ctx.mono(), || job.hash());
        self.jobs.insert(id, job);
        match refused {
            Some(wait) => self.delay(ctx, id, wait, method),
            None => self.queue(id, method),
        }
    }

    /// Puts a job into the queue of a method.
    pub(super) fn queue(&mut self, id: JobId, method: Method) {
        let method = if self.pages_only { Method::Page } else { method };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(group) = self.groups.get(&job.group) else { return };
        job.phase = JobPhase::Queued(method);
        self.queues.entry(method).or_default().insert((group.purpose, id));
    }

    /// Makes a job wait before it is queued again.
    pub(super) fn delay(
        &mut self,
        ctx: &RelayContext<'_>,
        id: JobId,
        wait: Duration,
        then: Method,
    ) {
        let until = ctx.mono() + wait;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.phase = JobPhase::BackingOff { until, then };
            self.backing_off.insert((until, id));
        }
    }

    /// Handles a failed job: a poll ends with it, any other job is tried again later, less and less often.
    pub(super) fn fail(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let is_poll = self.groups.get(&job.group).is_none_or(|one| !one.purpose.is_history());
        if is_poll {
            return self.drop_group(ctx, id);
        }
        if job.layer == Layer::All {
            return self.fall_back_to_filters(ctx);
        }
        job.failures = job.failures.saturating_add(1);
        let method = if job.pager.is_some() { Method::Page } else { Method::Reconcile };
        let wait = backoff_after(job.failures);
        self.delay(ctx, id, wait, method);
    }

    /// Gives up a filter that the relay refuses and that cannot be split: it is not sent again for a day.
    pub(super) fn give_up_filter(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let now = ctx.mono();
        ctx.history.suspended.suspend_filter(now, job.hash());
        self.delay(ctx, id, PARK, Method::Page);
    }

    /// Continues a job with pages.
    pub(super) fn switch_to_pages(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        (job.outstanding, job.offered, job.missed) = (0, 0, 0);
        ctx.history.wants.abandon(id);
        self.queue(id, Method::Page);
    }

    /// Splits a job by time; continues with pages if that is no longer possible.
    pub(super) fn split_by_time(&mut self, ctx: &mut RelayContext<'_>, id: JobId, method: Method) {
        if self.jobs.get(&id).is_some_and(|job| job.layer == Layer::All) {
            return self.fetch_histories_by_filters(ctx);
        }
        let now = ctx.now.unix;
        let job = self.jobs.get(&id).filter(|job| job.splits < MAX_TIME_SPLITS);
        match job.and_then(|job| bisect(&job.filter(), now)) {
            Some(parts) => self.replace(ctx, id, parts, method),
            None if method == Method::Reconcile => self.switch_to_pages(ctx, id),
            None => self.fail(ctx, id),
        }
    }

    /// Splits a job by the values of its filter; gives the filter up if it has only one.
    pub(super) fn split_by_content(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        method: Method,
    ) {
        match self.jobs.get(&id).and_then(|job| split(&job.filter())) {
            Some(parts) => self.replace(ctx, id, parts, method),
            None => self.give_up_filter(ctx, id),
        }
    }

    fn replace(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        parts: [Filter; 2],
        method: Method,
    ) {
        let Some(job) = self.jobs.remove(&id) else { return };
        self.unqueue(id);
        self.add_parts(ctx, &job, parts, method);
        // The parts are tracked by now, so this completes nothing.
        let _ = self.tracked(ctx, job.group, |batch| batch.ended(id.part()));
    }

    pub(super) fn add_parts(
        &mut self,
        ctx: &mut RelayContext<'_>,
        job: &Job,
        parts: impl IntoIterator<Item = Filter>,
        method: Method,
    ) {
        for filter in parts {
            let id = ctx.shared.ids.job();
            let part = job.part(filter);
            let _ = self.tracked(ctx, job.group, |batch| batch.grow(id.part()));
            self.enqueue(ctx, id, part, method);
        }
    }

    /// Continues after a page: the next page, the end, or a failure.
    pub(super) fn advance_page(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        next: Option<Next>,
    ) {
        match next {
            Some(Next::Ask(_)) => self.queue(id, Method::Page),
            Some(Next::Done(Ending::Exhausted)) => self.exhausted(ctx, id),
            Some(Next::Done(Ending::PageBound | Ending::NoProgress)) | None => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.pager = None;
                }
                self.fail(ctx, id);
            }
        }
    }

    /// Ends a job whose pages are all here. Seconds that held more than a page are fetched in parts.
    fn exhausted(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let has_gap = |job: &Job| job.layer == Layer::All && !job.gap_seconds().is_empty();
        if self.jobs.get(&id).is_some_and(has_gap) {
            return self.fall_back_to_filters(ctx);
        }
        let Some(mut job) = self.jobs.remove(&id) else { return };
        job.phase = JobPhase::AwaitingJudgement;
        for at in job.gap_seconds() {
            job.is_partial = true;
            match split(&job.filter()) {
                _ if self.jobs.len() >= MAX_JOBS => {
                    ctx.report(|relay| Report::GapSecond { relay, at })
                }
                Some(parts) => {
                    let parts = parts.map(|part| part.since(at).until(at));
                    self.add_parts(ctx, &job, parts, Method::Page);
                }
                None => {
                    ctx.report(|relay| Report::GapSecond { relay, at });
                    // Brings most of the events; the rest stays a gap.
                    let parts = split_by_kind(&job.filter()).into_iter().flatten();
                    let parts: Vec<_> = parts.map(|part| part.since(at).until(at)).collect();
                    self.add_parts(ctx, &job, parts, Method::Page);
                }
            }
        }
        self.jobs.insert(id, job);
        self.end_if_complete(ctx, id);
    }

    /// Wants the events that a comparison found missing.
    pub(super) fn compared(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        needed: impl IntoIterator<Item = EventId>,
    ) {
        let now = ctx.mono();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.phase = JobPhase::AwaitingJudgement;
        for event in needed {
            match ctx.history.wants.want(now, event, Some(id)) {
                result @ (WantResult::Queued | WantResult::QueuedAfterFailure) => {
                    job.outstanding += 1;
                    job.offered += 1;
                    job.missed += usize::from(result == WantResult::QueuedAfterFailure);
                }
                WantResult::Already => {}
                WantResult::GivenUp => job.is_partial = true,
            }
        }
        if job.delivers_too_little() {
            return self.switch_to_pages(ctx, id);
        }
        self.end_if_complete(ctx, id);
    }

    /// Tells jobs that an event they waited for is here, or given up.
    pub(in crate::engine) fn event_resolved(
        &mut self,
        ctx: &mut RelayContext<'_>,
        jobs: impl IntoIterator<Item = JobId>,
        is_here: bool,
    ) {
        for id in jobs {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.outstanding = job.outstanding.saturating_sub(1);
            job.is_partial |= !is_here;
            self.end_if_complete(ctx, id);
        }
    }

    /// Ends a job if nothing is outstanding.
    pub(super) fn end_if_complete(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        if !self.jobs.get(&id).is_some_and(Job::is_complete) {
            return;
        }
        let Some(job) = self.jobs.remove(&id) else { return };
        if let Some(proof) = job.proof(ctx.now.unix) {
            ctx.history.coverage.add(proof);
        }
        let progress = self.tracked(ctx, job.group, |batch| {
            if job.pager.is_some() {
                batch.paged();
            }
            batch.ended(id.part())
        });
        if progress == Some(BatchProgress::Complete) {
            self.complete(ctx, job.group);
        }
        if job.layer == Layer::All {
            self.comparison_ended(ctx, id);
        }
    }

    /// Ends a group of which everything is here.
    pub(super) fn complete(&mut self, ctx: &mut RelayContext<'_>, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        ctx.schedule_write();
        match group.purpose {
            Purpose::Batch(batch) => self.confirm(ctx, batch),
            Purpose::Poll(live) => {
                let request = self.live.requests.get_mut(&live);
                if let Some(LivePhase::Polled { since, .. }) =
                    request.map(|request| &mut request.phase)
                {
                    *since = group.began;
                }
            }
            Purpose::Announcements | Purpose::CatchUp | Purpose::MissedLive(_) => {}
        }
    }

    fn confirm(&mut self, ctx: &mut RelayContext<'_>, batch: grasp_core::sync::BatchId) {
        let Some(pending) = ctx.take_batch(batch) else { return };
        let (repos, roots) = (pending.items.repos.len(), pending.items.root_events.len());
        let method = pending.sync_method;
        if let Some(state) = ctx.state() {
            state.confirm(pending.items);
        }
        ctx.report(|relay| Report::BatchConfirmed { relay, batch, repos, roots, method });
    }

    /// Removes a job, and closes its subscription unless others share it.
    pub(super) fn drop_job(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        self.forget_inventory(ctx, id);
        let Some(job) = self.jobs.remove(&id) else { return };
        if let Some(sub) = job.sub().filter(|sub| !self.is_shared(*sub)) {
            self.close(ctx, sub);
        }
        self.unqueue(id);
        self.backing_off.retain(|(_, backing_off)| *backing_off != id);
        ctx.history.wants.abandon(id);
    }

    /// Releases the inventory of a job, and forgets the request for it.
    pub(super) fn forget_inventory(&self, ctx: &mut RelayContext<'_>, id: JobId) {
        ctx.shared.held_items.remove(&id);
        if let Some(JobPhase::Listing { request, .. }) = self.jobs.get(&id).map(|job| &job.phase) {
            ctx.shared.inventories.remove(request);
        }
    }

    pub(super) fn jobs_where(&self, is_it: impl Fn(&Job) -> bool) -> Vec<JobId> {
        self.jobs.iter().filter(|(_, job)| is_it(job)).map(|(id, _)| *id).collect()
    }

    /// Removes all jobs of this job's group.
    fn drop_group(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let Some(group) = self.jobs.get(&id).map(|job| job.group) else { return };
        for id in self.jobs_where(|job| job.group == group) {
            self.drop_job(ctx, id);
        }
        self.groups.remove(&group);
    }

    pub(super) fn unqueue(&mut self, id: JobId) {
        for queue in self.queues.values_mut() {
            queue.retain(|(_, waiting)| *waiting != id);
        }
    }

    /// Returns whether a job makes progress, rather than waiting for a backoff or a suspension to end.
    pub(super) fn is_at_work(
        ctx: &RelayContext<'_>,
        job: &Job,
        suspended: &BTreeMap<Layer, Mono>,
    ) -> bool {
        match job.phase {
            JobPhase::BackingOff { .. } => false,
            JobPhase::Queued(_) => !suspended.contains_key(&job.layer),
            JobPhase::AwaitingJudgement => {
                !job.unjudged.is_empty() || !ctx.history.wants.is_backing_off(ctx.mono())
            }
            JobPhase::Listing { .. }
            | JobPhase::Comparing { .. }
            | JobPhase::Paging { .. }
            | JobPhase::AwaitingAuth(_) => true,
        }
    }

    /// Changes the tracker of a group, which is in the pending index for batches.
    pub(super) fn tracked<T>(
        &mut self,
        ctx: &mut RelayContext<'_>,
        group: GroupId,
        change: impl FnOnce(&mut PendingBatch) -> T,
    ) -> Option<T> {
        let group = self.groups.get_mut(&group)?;
        match group.purpose {
            Purpose::Batch(batch) => ctx.batch(batch).map(change),
            _ => group.tracker.as_mut().map(change),
        }
    }
}
