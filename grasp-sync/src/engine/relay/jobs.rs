//! The life of a job: queued, backing off, split, ended.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::{Ending, Next, PARK};
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::{BatchProgress, PendingBatch};

use super::super::batch::Purpose;
use super::super::desk::Desk;
use super::super::history::{Job, Method, Phase};
use super::super::ids::{GroupId, JobId};
use super::super::layer::{Layer, bisect, split, split_by_kind};
use super::super::report::Report;
use super::super::retry::Wanting;
use super::live::LivePhase;
use super::session::Session;

/// Splits by time after which a set that is still too large is paged: each costs two requests, and a relay that
/// compares so little is paged through quickly.
const MOST_CUTS: u32 = 8;

/// Jobs of one connection above which full seconds are no longer split: a relay can make them up.
const MOST_JOBS: usize = 20_000;

impl Session {
    /// Adds a job to its queue, or makes it wait if the relay refused this very filter.
    pub(super) fn put_in_line(&mut self, desk: &Desk<'_>, id: JobId, job: Job, method: Method) {
        let refused = desk.standing.parks.refused_until(desk.mono(), || job.hash());
        self.jobs.insert(id, job);
        match refused {
            Some(rest) => self.rest(desk, id, rest, method),
            None => self.queue(id, method),
        }
    }

    /// Puts a job into the queue of a method.
    pub(super) fn queue(&mut self, id: JobId, method: Method) {
        let method = if self.pages_only { Method::Page } else { method };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(group) = self.groups.get(&job.group) else { return };
        job.phase = Phase::Queued(method);
        self.lines.entry(method).or_default().insert((group.purpose, id));
    }

    /// Makes a job wait before it is queued again.
    pub(super) fn rest(&mut self, desk: &Desk<'_>, id: JobId, rest: Duration, then: Method) {
        let until = desk.mono() + rest;
        if let Some(job) = self.jobs.get_mut(&id) {
            job.phase = Phase::Resting { until, then };
            self.resting.insert((until, id));
        }
    }

    /// Handles a failed job: a poll ends with it, any other job is tried again later, less and less often.
    pub(super) fn fail(&mut self, desk: &mut Desk<'_>, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let is_poll = self.groups.get(&job.group).is_none_or(|one| !one.purpose.is_history());
        if is_poll {
            return self.drop_group(desk, id);
        }
        if job.layer == Layer::Whole {
            return self.call_by_name(desk);
        }
        job.failures = job.failures.saturating_add(1);
        let method = if job.pager.is_some() { Method::Page } else { Method::Reconcile };
        let rest = Self::rest_after(job.failures);
        self.rest(desk, id, rest, method);
    }

    /// Gives up a filter that the relay refuses and that cannot be split: it is not sent again for a day.
    pub(super) fn give_up_filter(&mut self, desk: &mut Desk<'_>, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let now = desk.mono();
        desk.standing.parks.refuse(now, job.hash());
        self.rest(desk, id, PARK, Method::Page);
    }

    /// Continues a job with pages.
    pub(super) fn page_instead(&mut self, desk: &mut Desk<'_>, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        (job.left, job.offered, job.missed) = (0, 0, 0);
        desk.standing.wants.abandon(id);
        self.queue(id, Method::Page);
    }

    /// Splits a job by time; continues with pages if that is no longer possible.
    pub(super) fn cut_by_time(&mut self, desk: &mut Desk<'_>, id: JobId, method: Method) {
        if self.jobs.get(&id).is_some_and(|job| job.layer == Layer::Whole) {
            return self.name_histories(desk);
        }
        let now = desk.now.unix;
        let job = self.jobs.get(&id).filter(|job| job.cuts < MOST_CUTS);
        match job.and_then(|job| bisect(&job.filter(), now)) {
            Some(parts) => self.replace(desk, id, parts, method),
            None if method == Method::Reconcile => self.page_instead(desk, id),
            None => self.fail(desk, id),
        }
    }

    /// Splits a job by the values of its filter; gives the filter up if it has only one.
    pub(super) fn cut_by_content(&mut self, desk: &mut Desk<'_>, id: JobId, method: Method) {
        match self.jobs.get(&id).and_then(|job| split(&job.filter())) {
            Some(parts) => self.replace(desk, id, parts, method),
            None => self.give_up_filter(desk, id),
        }
    }

    fn replace(&mut self, desk: &mut Desk<'_>, id: JobId, parts: [Filter; 2], method: Method) {
        let Some(whole) = self.jobs.remove(&id) else { return };
        self.leave_lines(id);
        self.add_parts(desk, &whole, parts, method);
        // The parts are tracked by now, so this completes nothing.
        let _ = self.tracked(desk, whole.group, |batch| batch.ended(id.part()));
    }

    pub(super) fn add_parts(
        &mut self,
        desk: &mut Desk<'_>,
        whole: &Job,
        parts: impl IntoIterator<Item = Filter>,
        method: Method,
    ) {
        for filter in parts {
            let id = desk.shared.ids.job();
            let part = whole.part(filter);
            let _ = self.tracked(desk, whole.group, |batch| batch.grow(id.part()));
            self.put_in_line(desk, id, part, method);
        }
    }

    /// Continues after a page: the next page, the end, or a failure.
    pub(super) fn turn_page(&mut self, desk: &mut Desk<'_>, id: JobId, next: Option<Next>) {
        match next {
            Some(Next::Ask(_)) => self.queue(id, Method::Page),
            Some(Next::Done(Ending::Exhausted)) => self.exhausted(desk, id),
            Some(Next::Done(Ending::PageBound | Ending::NoProgress)) | None => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.pager = None;
                }
                self.fail(desk, id);
            }
        }
    }

    /// Ends a job whose pages are all here. Seconds that held more than a page are fetched in parts.
    fn exhausted(&mut self, desk: &mut Desk<'_>, id: JobId) {
        let has_gap = |job: &Job| job.layer == Layer::Whole && !job.gap_seconds().is_empty();
        if self.jobs.get(&id).is_some_and(has_gap) {
            return self.call_by_name(desk);
        }
        let Some(mut whole) = self.jobs.remove(&id) else { return };
        whole.phase = Phase::Settling;
        for at in whole.gap_seconds() {
            whole.is_partial = true;
            match split(&whole.filter()) {
                _ if self.jobs.len() >= MOST_JOBS => {
                    let relay = desk.relay.clone();
                    desk.report(Report::GapSecond { relay, at });
                }
                Some(parts) => {
                    let parts = parts.map(|part| part.since(at).until(at));
                    self.add_parts(desk, &whole, parts, Method::Page);
                }
                None => {
                    let relay = desk.relay.clone();
                    desk.report(Report::GapSecond { relay, at });
                    // Brings most of the events; the rest stays a gap.
                    let parts = split_by_kind(&whole.filter()).into_iter().flatten();
                    let parts: Vec<_> = parts.map(|part| part.since(at).until(at)).collect();
                    self.add_parts(desk, &whole, parts, Method::Page);
                }
            }
        }
        self.jobs.insert(id, whole);
        self.end_if_settled(desk, id);
    }

    /// Wants the events that a comparison found missing.
    pub(super) fn compared(
        &mut self,
        desk: &mut Desk<'_>,
        id: JobId,
        needed: impl IntoIterator<Item = EventId>,
    ) {
        let now = desk.mono();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.phase = Phase::Settling;
        for event in needed {
            match desk.standing.wants.want(now, event, Some(id)) {
                wanting @ (Wanting::Noted | Wanting::Doubtful) => {
                    job.left += 1;
                    job.offered += 1;
                    job.missed += usize::from(wanting == Wanting::Doubtful);
                }
                Wanting::Already => {}
                Wanting::GivenUp => job.is_partial = true,
            }
        }
        if job.is_led_astray() {
            return self.page_instead(desk, id);
        }
        self.end_if_settled(desk, id);
    }

    /// Tells jobs that an event they waited for is here, or given up.
    pub(in crate::engine) fn settled(
        &mut self,
        desk: &mut Desk<'_>,
        jobs: impl IntoIterator<Item = JobId>,
        is_here: bool,
    ) {
        for id in jobs {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.left = job.left.saturating_sub(1);
            job.is_partial |= !is_here;
            self.end_if_settled(desk, id);
        }
    }

    /// Ends a job if nothing is outstanding.
    pub(super) fn end_if_settled(&mut self, desk: &mut Desk<'_>, id: JobId) {
        if !self.jobs.get(&id).is_some_and(Job::is_settled) {
            return;
        }
        let Some(job) = self.jobs.remove(&id) else { return };
        if let Some(proof) = job.proof(desk.now.unix) {
            desk.standing.coverage.add(proof);
        }
        let progress = self.tracked(desk, job.group, |batch| {
            if job.pager.is_some() {
                batch.paged();
            }
            batch.ended(id.part())
        });
        if progress == Some(BatchProgress::Complete) {
            self.complete(desk, job.group);
        }
        if job.layer == Layer::Whole {
            self.led(desk, id);
        }
    }

    /// Ends a group of which everything is here.
    pub(super) fn complete(&mut self, desk: &mut Desk<'_>, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        desk.note_change();
        match group.purpose {
            Purpose::Batch(batch) => self.confirm(desk, batch),
            Purpose::Poll(live) => {
                let listening = self.live.wanted.get_mut(&live);
                if let Some(LivePhase::Polled { since, .. }) =
                    listening.map(|listening| &mut listening.phase)
                {
                    *since = group.began;
                }
            }
            Purpose::Announcements | Purpose::CatchUp | Purpose::ReachBack(_) => {}
        }
    }

    fn confirm(&mut self, desk: &mut Desk<'_>, batch: grasp_core::sync::BatchId) {
        let Some(pending) = desk.take_batch(batch) else { return };
        let (repos, roots) = (pending.items.repos.len(), pending.items.root_events.len());
        let method = pending.sync_method;
        if let Some(state) = desk.state() {
            state.confirm(pending.items);
        }
        let relay = desk.relay.clone();
        desk.report(Report::BatchConfirmed { relay, batch, repos, roots, method });
    }

    /// Removes a job, and closes its subscription unless others share it.
    pub(super) fn drop_job(&mut self, desk: &mut Desk<'_>, id: JobId) {
        self.forget_inventory(desk, id);
        let Some(job) = self.jobs.remove(&id) else { return };
        if let Some(sub) = job.sub().filter(|sub| !self.is_shared(*sub)) {
            self.close(desk, sub);
        }
        self.leave_lines(id);
        self.resting.retain(|(_, resting)| *resting != id);
        desk.standing.wants.abandon(id);
    }

    /// Releases the inventory of a job, and forgets the request for it.
    pub(super) fn forget_inventory(&self, desk: &mut Desk<'_>, id: JobId) {
        desk.shared.held_items.remove(&id);
        if let Some(Phase::Listing { request, .. }) = self.jobs.get(&id).map(|job| &job.phase) {
            desk.shared.inventories.remove(request);
        }
    }

    /// Removes all jobs of this job's group.
    fn drop_group(&mut self, desk: &mut Desk<'_>, id: JobId) {
        let Some(group) = self.jobs.get(&id).map(|job| job.group) else { return };
        let of_group = self.jobs.iter().filter(|(_, job)| job.group == group);
        let jobs: Vec<JobId> = of_group.map(|(id, _)| *id).collect();
        for id in jobs {
            self.drop_job(desk, id);
        }
        self.groups.remove(&group);
    }

    pub(super) fn leave_lines(&mut self, id: JobId) {
        for line in self.lines.values_mut() {
            line.retain(|(_, waiting)| *waiting != id);
        }
    }

    /// Returns whether a job makes progress, rather than waiting for a backoff or a suspension to end.
    pub(super) fn is_at_work(desk: &Desk<'_>, job: &Job, parked: &BTreeMap<Layer, Mono>) -> bool {
        match job.phase {
            Phase::Resting { .. } => false,
            Phase::Queued(_) => !parked.contains_key(&job.layer),
            Phase::Settling => {
                !job.unjudged.is_empty() || !desk.standing.wants.is_resting(desk.mono())
            }
            Phase::Listing { .. }
            | Phase::Comparing { .. }
            | Phase::Paging { .. }
            | Phase::AwaitingAuth(_) => true,
        }
    }

    /// Changes the tracker of a group, which is in the pending index for batches.
    pub(super) fn tracked<T>(
        &mut self,
        desk: &mut Desk<'_>,
        group: GroupId,
        change: impl FnOnce(&mut PendingBatch) -> T,
    ) -> Option<T> {
        let group = self.groups.get_mut(&group)?;
        match group.purpose {
            Purpose::Batch(batch) => desk.batch(batch).map(change),
            _ => group.tracker.as_mut().map(change),
        }
    }
}
