//! The history that one connection still has to fetch: batches of jobs and their queues.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::Admit;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{CONFIRMED_RETENTION, FilterHash, PendingItems};

use super::filter::{Layer, compact_all};
use super::history::CountAs;
use super::io::{BatchId, JobId, LiveId, Report, SyncMethod, VisitId, VisitOutcome};
use super::job::{FilterJob, JobMethod, JobPhase};
use super::relay::{InventoryRequest, RelayContext};
use super::subs::Subs;

/// Queued pages that are considered for sharing a request.
const LOOK_AHEAD: usize = 100;

/// The purpose of a batch of jobs; queued jobs are sent in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// Layer 1, once per connection.
    Announcements,
    /// Confirmed items, from the loss of the connection on.
    CatchUp,
    /// New repositories and roots, which the batch confirms.
    Items,
    /// Events published while a live request was not open.
    MissedLive(LiveId),
    /// Events of a live request for which there is no room.
    Poll(LiveId),
    /// Everything once more by comparison, after a catch-up by date.
    Recheck,
    /// What a visit asks for.
    Visit(VisitId),
}

impl Purpose {
    /// Returns whether history is complete only when it is.
    pub(super) fn is_history(self) -> bool {
        !matches!(self, Self::Poll(_) | Self::Recheck | Self::Visit(_))
    }

    /// Returns whether it fetches what a live subscription did not bring.
    pub(super) fn catches_up(self) -> bool {
        matches!(
            self,
            Self::Announcements | Self::CatchUp | Self::MissedLive(_)
        )
    }
}

/// Items that become confirmed together, once all of its jobs have ended.
#[derive(Debug)]
pub(super) struct PendingBatch {
    pub(super) purpose: Purpose,
    pub(super) items: PendingItems,
    /// Reconciliation, unless a job was fetched by pages.
    pub(super) sync_method: SyncMethod,
    pub(super) began: Timestamp,
    /// The way in which its events are counted.
    pub(super) count_as: CountAs,
}

/// The batches of jobs of one connection, and the queues that jobs wait in.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) batches: BTreeMap<BatchId, PendingBatch>,
    pub(super) jobs: BTreeMap<JobId, FilterJob>,
    /// Queued jobs by method: announcements first, polls last. Kept by [`set_phase`](Self::set_phase).
    pub(super) queues: BTreeMap<JobMethod, BTreeSet<(Purpose, JobId)>>,
    /// Jobs that back off, kept likewise.
    pub(super) backing_off: BTreeSet<(Mono, JobId)>,
    /// True if the relay is known not to support NIP-77.
    pub(super) pages_only: bool,
    /// Live requests whose poll has ended, and the time up to which each was fetched.
    pub(super) polled: Vec<(LiveId, Timestamp)>,
}

impl Backlog {
    pub(super) fn get(&self, id: JobId) -> Option<&FilterJob> {
        self.jobs.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: JobId) -> Option<&mut FilterJob> {
        self.jobs.get_mut(&id)
    }

    /// Starts a batch of jobs, one for each filter.
    pub(super) fn fetch(
        &mut self,
        ctx: &mut RelayContext<'_>,
        purpose: Purpose,
        filters: Vec<Filter>,
        method: JobMethod,
        items: PendingItems,
        count_as: CountAs,
    ) {
        if filters.is_empty() {
            return;
        }
        let id = ctx.shared.ids.next(BatchId);
        let began = ctx.now.unix;
        let planned = filters
            .into_iter()
            .map(|filter| plan(ctx, purpose, filter, method));
        let (filters, methods): (Vec<Filter>, Vec<JobMethod>) = planned.unzip();
        let sync_method = SyncMethod::Negentropy;
        let batch = PendingBatch {
            purpose,
            items,
            sync_method,
            began,
            count_as,
        };
        self.batches.insert(id, batch);
        for (filter, method) in compact_all(filters).into_iter().zip(methods) {
            self.add(ctx, id, FilterJob::new(filter, began), method);
        }
    }

    /// Returns the batch of a job.
    pub(super) fn batch_of(&self, id: JobId) -> Option<&PendingBatch> {
        self.batches.get(&id.batch)
    }

    /// Adds a job to a batch: queued, or waiting if the relay refused this very filter.
    pub(super) fn add(
        &mut self,
        ctx: &mut RelayContext<'_>,
        batch: BatchId,
        job: FilterJob,
        method: JobMethod,
    ) {
        let refused = ctx
            .history
            .suspended
            .filter_suspended_for(ctx.mono(), || job.hash());
        let id = JobId {
            batch,
            number: ctx.shared.ids.next(|number| number),
        };
        self.jobs.insert(id, job);
        match refused {
            Some(wait) => self.delay(ctx.mono(), id, wait, method),
            None => self.queue(id, method),
        }
    }

    /// Changes the phase of a job, and what it waits in.
    pub(super) fn set_phase(&mut self, id: JobId, phase: JobPhase) {
        self.unindex(id);
        let (Some(job), Some(batch)) = (self.jobs.get_mut(&id), self.batches.get(&id.batch)) else {
            return;
        };
        match phase {
            JobPhase::Queued(method) => {
                self.queues
                    .entry(method)
                    .or_default()
                    .insert((batch.purpose, id));
            }
            JobPhase::BackingOff { until, .. } => _ = self.backing_off.insert((until, id)),
            _ => {}
        }
        job.phase = phase;
    }

    /// Removes a job from what it waits in.
    fn unindex(&mut self, id: JobId) {
        let (Some(job), Some(batch)) = (self.jobs.get(&id), self.batches.get(&id.batch)) else {
            return;
        };
        match job.phase {
            JobPhase::Queued(method) => {
                self.queues
                    .entry(method)
                    .or_default()
                    .remove(&(batch.purpose, id));
            }
            JobPhase::BackingOff { until, .. } => _ = self.backing_off.remove(&(until, id)),
            _ => {}
        }
    }

    /// Puts a job into the queue of a method.
    pub(super) fn queue(&mut self, id: JobId, method: JobMethod) {
        let method = if self.pages_only {
            JobMethod::Page
        } else {
            method
        };
        self.set_phase(id, JobPhase::Queued(method));
    }

    /// Makes a job wait before it is queued again.
    pub(super) fn delay(&mut self, now: Mono, id: JobId, wait: Duration, then: JobMethod) {
        self.set_phase(
            id,
            JobPhase::BackingOff {
                until: now + wait,
                then,
            },
        );
    }

    /// Queues the jobs whose backoff has ended.
    pub(super) fn wake(&mut self, now: Mono) {
        while let Some((_, id)) = self
            .backing_off
            .first()
            .copied()
            .filter(|(at, _)| *at <= now)
        {
            match self.jobs.get(&id).map(|job| &job.phase) {
                Some(JobPhase::BackingOff { then, .. }) => self.queue(id, *then),
                _ => _ = self.backing_off.pop_first(),
            }
        }
    }

    /// Returns the first job in the queue of a method that may start.
    pub(super) fn next_queued(
        &self,
        method: JobMethod,
        may_start: impl Fn(Purpose, &FilterJob) -> bool,
    ) -> Option<(Purpose, JobId, JobMethod)> {
        let may_start = |(purpose, id): &&(Purpose, JobId)| {
            self.jobs
                .get(id)
                .is_some_and(|job| may_start(*purpose, job))
        };
        let (purpose, id) = *self.queues.get(&method)?.iter().find(may_start)?;
        Some((purpose, id, method))
    }

    /// Returns the first queued page, and those behind it that may share a request with it: of the same layer, since
    /// relays refuse whole layers, and for the same purpose. Authentication is waited for by those that need it.
    pub(super) fn compatible_pages(&self, first: JobId) -> Vec<JobId> {
        let key = |id: JobId| {
            let job = self.jobs.get(&id)?;
            let batch = self.batch_of(id)?;
            Some((
                job.layer,
                discriminant(&batch.purpose),
                batch.count_as,
                job.needs_auth(),
            ))
        };
        let wanted = key(first);
        let queue = self
            .queues
            .get(&JobMethod::Page)
            .into_iter()
            .flatten()
            .map(|(_, id)| *id);
        let behind = queue.skip_while(|id| *id != first).take(LOOK_AHEAD);
        behind.filter(|id| key(*id) == wanted).collect()
    }

    pub(super) fn jobs_where(&self, is_it: impl Fn(&FilterJob) -> bool) -> Vec<JobId> {
        self.jobs
            .iter()
            .filter(|(_, job)| is_it(job))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Removes a job that is not wanted any more.
    pub(super) fn remove(&mut self, ctx: &mut RelayContext<'_>, id: JobId) -> Option<FilterJob> {
        self.forget_inventory(ctx, id);
        ctx.history.wants.abandon(id);
        self.end(id)
    }

    /// Takes out a job that has ended.
    pub(super) fn end(&mut self, id: JobId) -> Option<FilterJob> {
        self.unindex(id);
        self.jobs.remove(&id)
    }

    /// Tells jobs that an event they waited for is here, or given up.
    pub(super) fn event_resolved(
        &mut self,
        ctx: &mut RelayContext<'_>,
        jobs: impl IntoIterator<Item = JobId>,
        is_here: bool,
    ) {
        for id in jobs {
            let Some(job) = self.get_mut(id) else {
                continue;
            };
            job.outstanding = job.outstanding.saturating_sub(1);
            job.is_partial |= !is_here;
            self.end_if_complete(ctx, id);
        }
    }

    /// Ends a job if nothing is outstanding.
    pub(super) fn end_if_complete(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        if !self.get(id).is_some_and(FilterJob::is_complete) {
            return;
        }
        let Some(job) = self.end(id) else { return };
        let batch = self.batch_of(id);
        let is_visit = batch.is_some_and(|batch| matches!(batch.purpose, Purpose::Visit(_)));
        if let Some(proof) = job.proof(ctx.now.unix).filter(|_| !is_visit) {
            ctx.history.kept.proofs.add(proof);
        }
        if let Some(batch) = self.batches.get_mut(&id.batch).filter(|_| job.is_paged()) {
            batch.sync_method = SyncMethod::ReqEose;
        }
        self.end_batch_if_complete(ctx, id.batch);
    }

    /// Ends a batch of which all jobs have ended.
    pub(super) fn end_batch_if_complete(&mut self, ctx: &mut RelayContext<'_>, id: BatchId) {
        if self.jobs_of(id).next().is_some() {
            return;
        }
        let Some(batch) = self.batches.remove(&id) else {
            return;
        };
        ctx.schedule_write();
        match batch.purpose {
            Purpose::Items => confirm(ctx, id, batch),
            Purpose::Poll(live) => self.polled.push((live, batch.began)),
            Purpose::Recheck => ctx.history.rechecked(),
            Purpose::Visit(visit) => ctx.visited(visit, VisitOutcome::Complete),
            Purpose::Announcements | Purpose::CatchUp | Purpose::MissedLive(_) => {}
        }
    }

    /// Removes a job, and closes its subscription unless others share it.
    pub(super) fn drop_job(&mut self, ctx: &mut RelayContext<'_>, subs: &mut Subs, id: JobId) {
        let Some(sub) = self.remove(ctx, id).and_then(|job| job.sub()) else {
            return;
        };
        if !self.jobs.values().any(|job| job.sub() == Some(sub)) {
            subs.close(ctx, sub);
        }
    }

    /// Removes a batch and its jobs.
    pub(super) fn drop_batch(&mut self, ctx: &mut RelayContext<'_>, subs: &mut Subs, id: BatchId) {
        for job in self.jobs_of(id).map(|(job, _)| job).collect::<Vec<_>>() {
            self.drop_job(ctx, subs, job);
        }
        self.batches.remove(&id);
    }

    /// Removes the batch of a purpose; returns the start of its window, if it has any.
    pub(super) fn drop_batch_for(
        &mut self,
        ctx: &mut RelayContext<'_>,
        subs: &mut Subs,
        purpose: Purpose,
    ) -> Option<Timestamp> {
        let batch = self.batch_for(purpose)?;
        let since = self
            .jobs_of(batch)
            .filter_map(|(_, job)| job.window().0)
            .min();
        self.drop_batch(ctx, subs, batch);
        since
    }

    /// Releases the inventory of a job, and forgets the request for it.
    pub(super) fn forget_inventory(&self, ctx: &mut RelayContext<'_>, id: JobId) {
        ctx.shared.held_items.remove(&id);
        let is_its =
            |asker: &InventoryRequest| matches!(asker, InventoryRequest::Job(_, job) if *job == id);
        if matches!(
            self.jobs.get(&id).map(|job| &job.phase),
            Some(JobPhase::Listing(_))
        ) {
            ctx.shared.inventories.retain(|_, asker| !is_its(asker));
        }
    }

    /// Fetches everything by pages from now on. The caller closes the open NIP-77 sessions.
    pub(super) fn use_pages_only(&mut self, ctx: &mut RelayContext<'_>) {
        self.pages_only = true;
        let is_to_be_paged = |job: &FilterJob| {
            let is_queued = matches!(job.phase, JobPhase::Queued(JobMethod::Reconcile));
            is_queued || matches!(job.phase, JobPhase::Listing(_) | JobPhase::Comparing { .. })
        };
        for id in self.jobs_where(is_to_be_paged) {
            self.forget_inventory(ctx, id);
            self.queue(id, JobMethod::Page);
        }
    }

    /// Returns whether sets can be compared with the relay: it supports NIP-77 and no backoff of it is in force.
    pub(super) fn can_compare(&self, ctx: &RelayContext<'_>) -> bool {
        !self.pages_only && ctx.history.neg.admit(ctx.mono()) == Admit::Go
    }

    /// Adds jobs for parts of a job to its batch.
    pub(super) fn add_parts(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        parts: impl IntoIterator<Item = Filter>,
        method: JobMethod,
    ) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let parts: Vec<FilterJob> = parts.into_iter().map(|filter| job.part(filter)).collect();
        for part in parts {
            self.add(ctx, id.batch, part, method);
        }
    }

    /// Adds the items that wait for a full comparison to the batch of the one that starts, which serves them too.
    pub(super) fn merge_comparisons(&mut self, leader: JobId) {
        let has_items = |id: &JobId| {
            self.batch_of(*id)
                .is_some_and(|batch| batch.purpose == Purpose::Items)
        };
        let is_full = self.get(leader).is_some_and(|job| job.layer == Layer::All);
        if !is_full || !has_items(&leader) {
            return;
        }
        let mut others = self.jobs_where(FilterJob::is_queued_comparison);
        others.retain(has_items);
        for id in others {
            let _ = self.end(id);
            let merged = self.batches.remove(&id.batch).map(|batch| batch.items);
            let batch = self.batches.get_mut(&leader.batch);
            batch
                .zip(merged)
                .into_iter()
                .for_each(|(batch, items)| batch.items.include(items));
        }
    }

    /// Returns the running batch of a purpose.
    pub(super) fn batch_for(&self, purpose: Purpose) -> Option<BatchId> {
        self.batches
            .iter()
            .find(|(_, batch)| batch.purpose == purpose)
            .map(|(id, _)| *id)
    }

    pub(super) fn jobs_of(&self, batch: BatchId) -> impl Iterator<Item = (JobId, &FilterJob)> {
        let jobs = self.jobs.range(JobId { batch, number: 0 }..);
        jobs.take_while(move |(id, _)| id.batch == batch)
            .map(|(id, job)| (*id, job))
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
    pub(super) fn has_other_work(&self, ctx: &RelayContext<'_>) -> bool {
        let suspended = ctx.suspended_layers();
        let backs_off = ctx.history.wants.is_backing_off(ctx.mono());
        let mut others = self.jobs.values().filter(|job| job.layer != Layer::All);
        others.any(|job| job.is_at_work(suspended.contains_key(&job.layer), backs_off))
    }

    /// Returns whether a job waits to be sent, or a message of its session.
    pub(super) fn wants_to_send(&self) -> bool {
        self.queues.values().any(|queue| !queue.is_empty())
            || self.jobs.values().any(FilterJob::has_neg_message)
    }

    /// Returns whether a full comparison waits to start.
    pub(super) fn has_queued_comparison(&self) -> bool {
        let mut queue = self.queues.get(&JobMethod::Reconcile).into_iter().flatten();
        queue.any(|(_, id)| {
            self.jobs
                .get(id)
                .is_some_and(FilterJob::is_queued_comparison)
        })
    }
}

/// Chooses the window and method of a filter. What was proven in this pass is not compared again, only continued.
/// Polled filters are always fetched as asked: nothing was received for them in between.
fn plan(
    ctx: &RelayContext<'_>,
    purpose: Purpose,
    filter: Filter,
    method: JobMethod,
) -> (Filter, JobMethod) {
    let is_rechecked = ctx.shared.config.recheck_announcements
        && ctx.history.is_resumed()
        && Layer::of(&filter) == Layer::Announcements;
    // A proof says nothing about events that the relay dropped since.
    let is_reach_back = matches!(purpose, Purpose::MissedLive(_));
    if method == JobMethod::Page || is_rechecked || is_reach_back || !purpose.is_history() {
        return (filter, method);
    }
    match ctx
        .history
        .kept
        .proofs
        .since(&FilterHash::of(&filter), None)
    {
        Some(proof) if proof.at >= ctx.history.pass.began => (
            filter.since(proof.until - CONFIRMED_RETENTION),
            JobMethod::Page,
        ),
        _ => (filter, method),
    }
}

/// Confirms the items of a batch that is complete.
fn confirm(ctx: &mut RelayContext<'_>, batch: BatchId, complete: PendingBatch) {
    let PendingBatch {
        items,
        sync_method: method,
        ..
    } = complete;
    let repos = items.repos.len();
    let roots = items.root_events.len();
    ctx.history.state.confirm(items);
    ctx.report(|relay| Report::BatchConfirmed {
        relay,
        batch,
        repos,
        roots,
        method,
    });
}
