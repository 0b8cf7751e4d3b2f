//! The history that one connection still has to fetch.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::Admit;
use grasp_core::nostr::filter::Filter;

use super::context::{Context, InventoryRequest};
use super::filter::Layer;
use super::gaps::CountAs;
use super::ids::{BatchId, JobId, LiveId};
use super::job::{Job, JobPhase, Method, PendingBatch, Purpose};

/// Queued pages that are considered for sharing a request.
const LOOK_AHEAD: usize = 100;

/// The batches of jobs of one connection, and the queues that jobs wait in.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) batches: BTreeMap<BatchId, PendingBatch>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    /// Queued jobs by method: announcements first, polls last.
    pub(super) queues: BTreeMap<Method, BTreeSet<(Purpose, BatchId, JobId)>>,
    pub(super) backing_off: BTreeSet<(Mono, JobId)>,
    /// True if the relay is known not to support NIP-77.
    pub(super) pages_only: bool,
}

impl Backlog {
    pub(super) fn get(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id)
    }

    /// Returns the batch of a job.
    pub(super) fn batch_of(&self, id: JobId) -> Option<&PendingBatch> {
        self.batches.get(&self.jobs.get(&id)?.batch)
    }

    /// Adds a job to its queue, or makes it wait if the relay refused this very filter.
    pub(super) fn add(&mut self, ctx: &Context<'_>, id: JobId, job: Job, method: Method) {
        let refused = ctx.history.suspended.filter_suspended_for(ctx.mono(), || job.hash());
        if let Some(batch) = self.batches.get_mut(&job.batch) {
            batch.outstanding += 1;
        }
        self.jobs.insert(id, job);
        match refused {
            Some(wait) => self.delay(ctx.mono(), id, wait, method),
            None => self.queue(id, method),
        }
    }

    /// Puts a job into the queue of a method.
    pub(super) fn queue(&mut self, id: JobId, method: Method) {
        let method = if self.pages_only { Method::Page } else { method };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(batch) = self.batches.get(&job.batch) else { return };
        job.phase = JobPhase::Queued(method);
        self.queues.entry(method).or_default().insert((batch.purpose, job.batch, id));
    }

    /// Makes a job wait before it is queued again.
    pub(super) fn delay(&mut self, now: Mono, id: JobId, wait: Duration, then: Method) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.phase = JobPhase::BackingOff { until: now + wait, then };
            self.backing_off.insert((now + wait, id));
        }
    }

    /// Queues the jobs whose backoff has ended.
    pub(super) fn wake(&mut self, now: Mono) {
        while let Some((_, id)) = self.backing_off.first().copied().filter(|(at, _)| *at <= now) {
            self.backing_off.pop_first();
            let Some(job) = self.jobs.get(&id) else { continue };
            if let JobPhase::BackingOff { then, .. } = job.phase {
                self.queue(id, then);
            }
        }
    }

    pub(super) fn unqueue(&mut self, id: JobId) {
        for queue in self.queues.values_mut() {
            queue.retain(|(.., waiting)| *waiting != id);
        }
    }

    /// Returns the first job in the queue of a method that may start.
    pub(super) fn next_queued(
        &self,
        method: Method,
        may_start: impl Fn(&Job) -> bool,
    ) -> Option<((Purpose, BatchId, JobId), Method)> {
        let may_start = |id: &JobId| self.jobs.get(id).is_none_or(&may_start);
        let entry = self.queues.get(&method)?.iter().find(|(.., id)| may_start(id))?;
        Some((*entry, method))
    }

    /// Returns the first queued page, and those behind it that may share a request with it: of the same layer, since
    /// relays refuse whole layers, and for the same purpose.
    pub(super) fn compatible_pages(&self, first: JobId) -> Vec<JobId> {
        let key = |id: JobId| {
            let (job, batch) = (self.jobs.get(&id)?, self.batch_of(id)?);
            Some((job.layer, discriminant(&batch.purpose), batch.count_as))
        };
        let wanted = key(first);
        let queue = self.queues.get(&Method::Page).into_iter().flatten().map(|(.., id)| *id);
        let behind = queue.skip_while(|id| *id != first).take(LOOK_AHEAD);
        behind.filter(|id| key(*id) == wanted).collect()
    }

    pub(super) fn jobs_where(&self, is_it: impl Fn(&Job) -> bool) -> Vec<JobId> {
        self.jobs.iter().filter(|(_, job)| is_it(job)).map(|(id, _)| *id).collect()
    }

    /// Removes a job that is not wanted any more.
    pub(super) fn remove(&mut self, ctx: &mut Context<'_>, id: JobId) -> Option<Job> {
        self.forget_inventory(ctx, id);
        let job = self.end(id)?;
        self.unqueue(id);
        self.backing_off.retain(|(_, backing_off)| *backing_off != id);
        ctx.history.wants.abandon(id);
        Some(job)
    }

    /// Takes a job that has ended out of its batch.
    pub(super) fn end(&mut self, id: JobId) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        if let Some(batch) = self.batches.get_mut(&job.batch) {
            batch.outstanding -= 1;
        }
        Some(job)
    }

    /// Releases the inventory of a job, and forgets the request for it.
    pub(super) fn forget_inventory(&self, ctx: &mut Context<'_>, id: JobId) {
        ctx.shared.held_items.remove(&id);
        let is_its =
            |asker: &InventoryRequest| matches!(asker, InventoryRequest::Job(_, job) if *job == id);
        if matches!(self.jobs.get(&id).map(|job| &job.phase), Some(JobPhase::Listing(_))) {
            ctx.shared.inventories.retain(|_, asker| !is_its(asker));
        }
    }

    /// Fetches everything by pages from now on. The caller closes the open NIP-77 sessions.
    pub(super) fn use_pages_only(&mut self, ctx: &mut Context<'_>) {
        self.pages_only = true;
        let waiting = self.queues.remove(&Method::Reconcile).unwrap_or_default();
        waiting.into_iter().for_each(|(.., id)| self.queue(id, Method::Page));
        let is_reconciling =
            |job: &Job| matches!(job.phase, JobPhase::Listing(_) | JobPhase::Comparing { .. });
        for id in self.jobs_where(is_reconciling) {
            self.forget_inventory(ctx, id);
            self.queue(id, Method::Page);
        }
    }

    /// Returns whether sets can be compared with the relay: it supports NIP-77 and no backoff of it is in force.
    pub(super) fn can_compare(&self, ctx: &Context<'_>) -> bool {
        !self.pages_only && ctx.history.neg.admit(ctx.mono()) == Admit::Go
    }

    /// Adds jobs for parts of a job to its batch.
    pub(super) fn add_parts(
        &mut self,
        ctx: &mut Context<'_>,
        id: JobId,
        parts: impl IntoIterator<Item = Filter>,
        method: Method,
    ) {
        let Some(job) = self.jobs.get(&id) else { return };
        let parts: Vec<Job> = parts.into_iter().map(|filter| job.part(filter)).collect();
        for part in parts {
            let id = ctx.shared.ids.next(JobId);
            self.add(ctx, id, part, method);
        }
    }

    /// Makes other queued full comparisons wait for the one that starts, which serves them too.
    pub(super) fn serve_other_comparisons(&mut self, leader: JobId) {
        if self.jobs.get(&leader).is_none_or(|job| job.layer != Layer::All) {
            return;
        }
        let queued = self.jobs_where(Job::is_queued_comparison);
        for id in queued.into_iter().filter(|id| *id != leader) {
            self.unqueue(id);
            if let Some(job) = self.jobs.get_mut(&id) {
                (job.phase, job.waits_for) = (JobPhase::AwaitingJudgement, Some(leader));
            }
        }
    }

    /// Returns the running batch of a purpose.
    pub(super) fn batch_for(&self, purpose: Purpose) -> Option<BatchId> {
        self.batches.iter().find(|(_, batch)| batch.purpose == purpose).map(|(id, _)| *id)
    }

    pub(super) fn jobs_of(&self, batch: BatchId) -> impl Iterator<Item = (JobId, &Job)> {
        let jobs = self.jobs.iter().filter(move |(_, job)| job.batch == batch);
        jobs.map(|(id, job)| (*id, job))
    }

    /// Returns whether a comparison, which has no window, is finding what a live request missed.
    pub(super) fn is_comparing_missed(&self, id: LiveId) -> bool {
        let batch = self.batch_for(Purpose::MissedLive(id));
        batch.is_some_and(|batch| self.jobs_of(batch).any(|(_, job)| job.window().0.is_none()))
    }

    /// Returns the way in which events of these jobs are counted.
    pub(super) fn count_as(&self, jobs: &[JobId]) -> CountAs {
        let batch = jobs.iter().find_map(|id| self.batch_of(*id));
        batch.map_or(CountAs::NEW, |batch| batch.count_as)
    }

    /// Returns whether anything but full sync is being fetched.
    pub(super) fn has_other_work(&self, ctx: &Context<'_>) -> bool {
        let suspended = ctx.suspended_layers();
        let backs_off = ctx.history.wants.is_backing_off(ctx.mono());
        let mut others = self.jobs.values().filter(|job| job.layer != Layer::All);
        others.any(|job| job.is_at_work(suspended.contains_key(&job.layer), backs_off))
    }

    /// Returns whether a job waits to be sent, or a message of its session.
    pub(super) fn wants_to_send(&self) -> bool {
        self.queues.values().any(|queue| !queue.is_empty())
            || self.jobs.values().any(Job::has_neg_message)
    }

    /// Returns whether a full comparison waits to start.
    pub(super) fn has_queued_comparison(&self) -> bool {
        let mut queue = self.queues.get(&Method::Reconcile).into_iter().flatten();
        queue.any(|(.., id)| self.jobs.get(id).is_some_and(Job::is_queued_comparison))
    }
}
