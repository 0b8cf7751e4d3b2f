//! Fetches history: batches of jobs are started, sent as pages or sessions, split, retried and ended.

use crate::index::{FilterHash, PendingItems, RETENTION};
use crate::limits::{PARK, Refusal, SlotClass};
use grasp_core::limits::{Admit, EoseHint, PeerText};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;

use super::auth::AuthDecision;
use super::context::{Context, InventoryRequest};
use super::filter::{Layer, bisect, compact_all, split, split_by_kind, split_into, wire_len};
use super::full_sync::{COMPARISON_PAUSE_FACTOR, max_offered};
use super::gaps::CountAs;
use super::ids::{BatchId, InventoryId, JobId, SubId};
use super::io::{Delivered, Frame, InventoryFailed, Output, Row};
use super::job::{Job, JobPhase, JobStep, MAX_TIME_SPLITS, Method, PendingBatch, Purpose};
use super::live::REQ_BYTES;
use super::missing;
use super::reconcile::{Comparison, MAX_NEEDED, ReconcileStep, Reconciliation};
use super::report::{Report, SyncMethod};
use super::session::{ClosedBy, Session, has_room};
use super::subs::{Blocked, NEG_IDLE_TIMEOUT, NEG_OPEN_TIMEOUT, SubKind};
use super::suspended::RequestMode;

/// Jobs of one connection above which full seconds are no longer split: a relay can make them up.
const MAX_JOBS: usize = 20_000;
/// Items of local inventories held in memory; above it, history is fetched by pages. An item is 40 bytes.
const MAX_INVENTORY_ITEMS: usize = 1_000_000;
/// Ids offered by all relays and not fetched yet above which histories are paged instead of compared.
const MAX_WANTED_TOTAL: usize = 1_000_000;

impl Session {
    /// Starts a batch of jobs, one for each filter.
    pub(super) fn fetch(
        &mut self,
        ctx: &mut Context<'_>,
        purpose: Purpose,
        filters: Vec<Filter>,
        method: Method,
        items: PendingItems,
        count_as: CountAs,
    ) {
        if filters.is_empty() {
            return;
        }
        let (id, began) = (ctx.shared.ids.next(BatchId), ctx.now.unix);
        let planned = filters.into_iter().map(|filter| plan(ctx, purpose, filter, method));
        let (filters, methods): (Vec<Filter>, Vec<Method>) = planned.unzip();
        let (outstanding, sync_method) = (0, SyncMethod::Negentropy);
        let batch = PendingBatch { purpose, items, outstanding, sync_method, began, count_as };
        self.backlog.batches.insert(id, batch);
        for (filter, method) in compact_all(filters).into_iter().zip(methods) {
            let job = ctx.shared.ids.next(JobId);
            self.backlog.add(ctx, job, Job::new(id, filter, began), method);
        }
    }

    /// Lets a job decide, and takes the step that follows.
    fn step(&mut self, ctx: &mut Context<'_>, id: JobId, decide: impl FnOnce(&mut Job) -> JobStep) {
        if let Some(step) = self.backlog.get_mut(id).map(decide) {
            self.take_step(ctx, id, step);
        }
    }

    fn take_step(&mut self, ctx: &mut Context<'_>, id: JobId, step: JobStep) {
        match step {
            JobStep::Check => self.end_if_complete(ctx, id),
            JobStep::Queue(method) => self.backlog.queue(id, method),
            JobStep::NoNegentropy => self.backlog.queue(id, Method::Page),
            JobStep::BackOff(wait, method) => self.backlog.delay(ctx.mono(), id, wait, method),
            JobStep::Fail => self.fail(ctx, id),
            JobStep::Authenticate(method) => self.job_wants_auth(ctx, id, method),
            JobStep::Suspend(method) => {
                let layer = self.backlog.get(id).map(|job| job.layer);
                layer.into_iter().for_each(|one| self.suspend(ctx, one, RequestMode::History));
                self.backlog.queue(id, method);
            }
            JobStep::SwitchToPages => self.switch_to_pages(ctx, id),
            JobStep::SplitByTime(method) => self.split_by_time(ctx, id, method),
            JobStep::SplitByContent => match self.backlog.get(id).map(|job| split(&job.filter())) {
                Some(Some(parts)) => self.replace(ctx, id, parts, Method::Page),
                _ => self.give_up_filter(ctx, id),
            },
            JobStep::SplitPages => self.split_pages(ctx, id),
            JobStep::GiveUpFilter => self.give_up_filter(ctx, id),
            JobStep::FallBackToFilters => self.fall_back_to_filters(ctx),
            JobStep::FillGaps(gaps) => self.fill_gaps(ctx, id, gaps),
        }
    }

    /// Handles a failed job: a poll ends with it, any other job is tried again later, less and less often.
    pub(super) fn fail(&mut self, ctx: &mut Context<'_>, id: JobId) {
        let Some(job) = self.backlog.get(id) else { return };
        let batch = job.batch;
        if self.backlog.batch_of(id).is_none_or(|one| !one.purpose.is_history()) {
            return self.drop_batch(ctx, batch);
        }
        self.step(ctx, id, Job::failed);
    }

    /// Gives up a filter that the relay refuses and that cannot be split: it is not sent again for a day.
    fn give_up_filter(&mut self, ctx: &mut Context<'_>, id: JobId) {
        let Some(job) = self.backlog.get(id) else { return };
        ctx.history.suspended.suspend_filter(ctx.now.mono, job.hash());
        self.backlog.delay(ctx.mono(), id, PARK, Method::Page);
    }

    /// Continues a job with pages.
    pub(super) fn switch_to_pages(&mut self, ctx: &mut Context<'_>, id: JobId) {
        let Some(job) = self.backlog.get_mut(id) else { return };
        job.forget_offers();
        ctx.history.wants.abandon(id);
        self.backlog.queue(id, Method::Page);
    }

    /// Splits a job by time; continues with pages if that is no longer possible.
    fn split_by_time(&mut self, ctx: &mut Context<'_>, id: JobId, method: Method) {
        if self.backlog.get(id).is_some_and(|job| job.layer == Layer::All) {
            return self.fetch_histories_by_filters(ctx);
        }
        let job = self.backlog.get(id).filter(|job| job.splits < MAX_TIME_SPLITS);
        match job.and_then(|job| bisect(&job.filter(), ctx.now.unix)) {
            Some(parts) => self.replace(ctx, id, parts, method),
            None if method == Method::Reconcile => self.switch_to_pages(ctx, id),
            None => self.fail(ctx, id),
        }
    }

    fn replace(&mut self, ctx: &mut Context<'_>, id: JobId, parts: [Filter; 2], method: Method) {
        self.backlog.unqueue(id);
        self.backlog.add_parts(ctx, id, parts, method);
        // The parts belong to the batch by now, so this completes nothing.
        let _ = self.backlog.end(id);
    }

    /// Splits a job that keeps getting full pages into parts that share requests.
    fn split_pages(&mut self, ctx: &mut Context<'_>, id: JobId) {
        let limit = ctx.history.profile.page;
        let max_pages = self.budget.filters_per_req.min(self.pages_per_req);
        let page = self.backlog.get_mut(id).and_then(|job| job.next_page(limit));
        let Some(rest) = page.map(|page| Filter { limit: None, ..page }) else { return };
        let parts = split_into(&rest, max_pages);
        if parts.len() < 2 {
            return self.backlog.queue(id, Method::Page);
        }
        if let Some(job) = self.backlog.get_mut(id) {
            // The rest is left to parts, which prove it.
            (job.phase, job.is_partial) = (JobPhase::AwaitingJudgement, true);
        }
        self.backlog.add_parts(ctx, id, parts, Method::Page);
        self.end_if_complete(ctx, id);
    }

    /// Fetches seconds in parts that held more than a page, then ends the job if that was all.
    fn fill_gaps(&mut self, ctx: &mut Context<'_>, id: JobId, gaps: Vec<Timestamp>) {
        let Some(filter) = self.backlog.get(id).map(Job::filter) else { return };
        for at in gaps {
            let parts: Vec<Filter> = match split(&filter) {
                _ if self.backlog.jobs.len() >= MAX_JOBS => {
                    ctx.report(|relay| Report::GapSecond { relay, at });
                    continue;
                }
                Some(parts) => parts.into(),
                None => {
                    ctx.report(|relay| Report::GapSecond { relay, at });
                    // Brings most of the events; the rest stays a gap.
                    split_by_kind(&filter).into_iter().flatten().collect()
                }
            };
            let parts = parts.into_iter().map(|part| part.since(at).until(at));
            self.backlog.add_parts(ctx, id, parts, Method::Page);
        }
        self.end_if_complete(ctx, id);
    }

    /// Tells jobs that an event they waited for is here, or given up.
    pub(super) fn event_resolved(
        &mut self,
        ctx: &mut Context<'_>,
        jobs: impl IntoIterator<Item = JobId>,
        is_here: bool,
    ) {
        for id in jobs {
            let Some(job) = self.backlog.get_mut(id) else { continue };
            job.outstanding = job.outstanding.saturating_sub(1);
            job.is_partial |= !is_here;
            self.end_if_complete(ctx, id);
        }
    }

    /// Ends a job if nothing is outstanding.
    pub(super) fn end_if_complete(&mut self, ctx: &mut Context<'_>, id: JobId) {
        if !self.backlog.get(id).is_some_and(Job::is_complete) {
            return;
        }
        let Some(job) = self.backlog.end(id) else { return };
        if let Some(proof) = job.proof(ctx.now.unix) {
            ctx.history.coverage.add(proof);
        }
        if let Some(batch) = self.backlog.batches.get_mut(&job.batch).filter(|_| job.is_paged()) {
            batch.sync_method = SyncMethod::ReqEose;
        }
        self.end_batch_if_complete(ctx, job.batch);
        if job.layer != Layer::All {
            return;
        }
        // Jobs that waited for this comparison end with it.
        let jobs: Vec<JobId> = self.backlog.jobs.keys().copied().collect();
        for other in jobs {
            if self
                .backlog
                .get_mut(other)
                .is_some_and(|job| job.waits_for.take_if(|leader| *leader == id).is_some())
            {
                self.end_if_complete(ctx, other);
            }
        }
    }

    /// Ends a batch of which all jobs have ended.
    pub(super) fn end_batch_if_complete(&mut self, ctx: &mut Context<'_>, id: BatchId) {
        let batches = &mut self.backlog.batches;
        let complete = batches.get(&id).filter(|batch| batch.outstanding == 0).map(|_| id);
        let Some(batch) = complete.and_then(|id| batches.remove(&id)) else { return };
        ctx.schedule_write();
        match batch.purpose {
            Purpose::Items => confirm(ctx, id, batch),
            Purpose::Poll(live) => self.live.polled(live, batch.began),
            Purpose::Announcements | Purpose::CatchUp | Purpose::MissedLive(_) => {}
        }
    }

    /// Removes a job, and closes its subscription unless others share it.
    pub(super) fn drop_job(&mut self, ctx: &mut Context<'_>, id: JobId) {
        let Some(sub) = self.backlog.remove(ctx, id).and_then(|job| job.sub()) else { return };
        if !self.backlog.jobs.values().any(|job| job.sub() == Some(sub)) {
            self.subs.close(ctx, sub);
        }
    }

    /// Removes a batch and its jobs.
    fn drop_batch(&mut self, ctx: &mut Context<'_>, id: BatchId) {
        for id in self.backlog.jobs_where(|job| job.batch == id) {
            self.drop_job(ctx, id);
        }
        self.backlog.batches.remove(&id);
    }

    /// Removes the batch of a purpose; returns the start of its window, if it has any.
    pub(super) fn drop_batch_for(
        &mut self,
        ctx: &mut Context<'_>,
        purpose: Purpose,
    ) -> Option<Timestamp> {
        let batch = self.backlog.batch_for(purpose)?;
        let since = self.backlog.jobs_of(batch).filter_map(|(_, job)| job.window().0).min();
        self.drop_batch(ctx, batch);
        since
    }

    /// Sends the first queued page, with other queued pages that fit the same request: relays truncate their answer
    /// to each filter separately, and count requests.
    pub(super) fn start_pages(
        &mut self,
        ctx: &mut Context<'_>,
        first: JobId,
    ) -> Result<(), Blocked> {
        let now = ctx.mono();
        if ctx.history.pace.reopens_at() > now {
            return Err(Blocked::ByPace);
        }
        if !has_room(&ctx.history.ledger, SlotClass::Fetch) {
            return Err(Blocked::BySlots);
        }
        let Some(job) = self.backlog.get(first) else { return Ok(()) };
        let layer = job.layer;
        // Full sync compares; it pages only what came lately.
        if layer == Layer::All && job.window().0.is_none() {
            self.fall_back_to_filters(ctx);
            return Ok(());
        }
        let (jobs, filters, bytes) = self.collect_pages(ctx, first);
        if jobs.is_empty() {
            return Ok(());
        }
        let kind = SubKind::Pages(jobs.clone().into());
        let sub = self.subs.open(ctx, SlotClass::Fetch, bytes, kind)?;
        for id in &jobs {
            self.backlog.unqueue(*id);
            if let Some(job) = self.backlog.get_mut(*id) {
                job.phase = JobPhase::Paging { sub, rows: Vec::new() };
            }
        }
        let path = self.backlog.count_as(&jobs).path;
        ctx.history.suspended.sent(now, layer, RequestMode::History);
        ctx.send(self.subs.conn, Frame::Subscribe { sub, filters, path });
        Ok(())
    }

    /// Collects the first queued page and others that fit, and returns their jobs, filters and bytes. Empty if the first
    /// job is at its end.
    fn collect_pages(
        &mut self,
        ctx: &mut Context<'_>,
        first: JobId,
    ) -> (Vec<JobId>, Vec<Filter>, usize) {
        let (mut jobs, mut filters, mut bytes) = (Vec::new(), Vec::new(), REQ_BYTES);
        let max_pages = self.budget.filters_per_req.min(self.pages_per_req);
        for id in self.backlog.compatible_pages(first) {
            let Some(job) = self.backlog.get_mut(id) else { continue };
            let Some(page) = job.next_page(ctx.history.profile.page) else {
                self.backlog.unqueue(id);
                self.fail(ctx, id);
                continue;
            };
            let len = page.as_json().len() + 1;
            if !jobs.is_empty() && bytes + len > self.budget.message_bytes {
                break;
            }
            bytes += len;
            jobs.push(id);
            filters.push(page);
            if jobs.len() >= max_pages {
                break;
            }
        }
        (jobs, filters, bytes)
    }

    pub(super) fn pages_delivered(
        &mut self,
        ctx: &mut Context<'_>,
        sub: SubId,
        jobs: &[JobId],
        rows: &[Delivered],
    ) {
        let limit = ctx.history.profile.page;
        let mut is_flood = false;
        for (place, id) in jobs.iter().enumerate() {
            let Some(job) = self.backlog.get_mut(*id) else { continue };
            let its = rows.iter().filter(|one| one.places.has(place)).map(|one| one.row);
            is_flood |= !job.delivered(its, limit);
        }
        if is_flood {
            self.subs.close(ctx, sub);
            jobs.iter().for_each(|id| self.fail(ctx, *id));
        }
    }

    pub(super) fn pages_ended(
        &mut self,
        ctx: &mut Context<'_>,
        sub: SubId,
        jobs: &[JobId],
        hint: Option<EoseHint>,
    ) {
        self.subs.close(ctx, sub);
        // A hint that there is more may be about any of them; that there is no more is about all.
        let hint = hint.filter(|hint| *hint == EoseHint::Finish || jobs.len() == 1);
        let limit = ctx.history.profile.page;
        for id in jobs {
            let Some(job) = self.backlog.get(*id) else { continue };
            ctx.history.suspended.answered(job.layer, RequestMode::History);
            self.step(ctx, *id, |job| job.page_ended(hint, limit));
        }
    }

    /// Handles a refused request. If it may be about one filter only, the pages are sent one by one from now on.
    pub(super) fn pages_refused(
        &mut self,
        ctx: &mut Context<'_>,
        jobs: &[JobId],
        refusal: Refusal,
    ) {
        let together = match refusal {
            Refusal::FilterCount => Some(jobs.len() / 2),
            Refusal::Malformed | Refusal::SetTooLarge | Refusal::Unknown => Some(1),
            _ => None,
        };
        let fewer = together.filter(|_| jobs.len() > 1);
        if let Some(fewer) = fewer {
            self.pages_per_req = self.pages_per_req.min(fewer.max(1));
        }
        for id in jobs {
            self.step(ctx, *id, |job| match fewer {
                Some(_) => job.page_returned(),
                None => job.refused(refusal),
            });
        }
    }

    /// Starts a reconciliation by asking the local relay for its inventory.
    pub(super) fn start_reconciliation(
        &mut self,
        ctx: &mut Context<'_>,
        id: JobId,
    ) -> Result<(), Blocked> {
        let now = ctx.mono();
        if ctx.history.pace.reopens_at() > now {
            return Err(Blocked::ByPace);
        }
        let is_memory_full = ctx.shared.held_items.values().sum::<usize>() >= MAX_INVENTORY_ITEMS
            || ctx.shared.wanted >= MAX_WANTED_TOTAL;
        if ctx.history.neg.admit(now) != Admit::Go || is_memory_full {
            self.backlog.queue(id, Method::Page);
            return Ok(());
        }
        let ledger = &ctx.history.ledger;
        let is_full = ledger.in_use_by(SlotClass::Reconcile) >= self.max_neg_sessions;
        // What one comparison found is fetched before the next finds more.
        let is_behind = ctx.history.wants.len() >= MAX_NEEDED;
        if is_full || is_behind || !has_room(ledger, SlotClass::Reconcile) {
            return Err(Blocked::BySlots);
        }
        let Some(filter) = self.backlog.get(id).map(Job::filter) else {
            return Ok(());
        };
        let bytes = wire_len(&filter) + 80;
        let sub = self.subs.open(ctx, SlotClass::Reconcile, bytes, SubKind::Neg(id))?;
        let Some(job) = self.backlog.get_mut(id) else { return Ok(()) };
        let request = ctx.shared.ids.next(InventoryId);
        job.phase = JobPhase::Listing(sub);
        ctx.history.suspended.sent(now, job.layer, RequestMode::History);
        ctx.shared.inventories.insert(request, InventoryRequest::Job(ctx.relay.clone(), id));
        ctx.out.push(Output::FetchInventory { request, filter: Box::new(filter) });
        self.backlog.serve_other_comparisons(id);
        Ok(())
    }

    /// Starts a comparison with the inventory of the local relay.
    pub(super) fn inventory(
        &mut self,
        ctx: &mut Context<'_>,
        id: JobId,
        items: Result<Vec<Row>, InventoryFailed>,
    ) {
        let full_sync = self.full_sync;
        let Some(job) = self.backlog.get_mut(id) else { return };
        let JobPhase::Listing(sub) = job.phase else { return };
        // With nothing to compare, pages bring more for each request, and requests are limited here.
        if ctx.history.profile.counts_frames && items.as_ref().is_ok_and(Vec::is_empty) {
            self.subs.close(ctx, sub);
            return self.backlog.queue(id, Method::Page);
        }
        let (since, until) = job.window();
        let is_within = |row: &Row| {
            since.is_none_or(|since| row.at >= since) && until.is_none_or(|until| row.at <= until)
        };
        let (original, layer) = (job.original_hash(), job.layer);
        let refused = ctx.shared.rejected.rows(&original).filter(is_within);
        let frame = ctx.history.profile.neg_frame;
        let (max_ids, max_items) = (max_offered(full_sync, layer), MAX_INVENTORY_ITEMS);
        let opened =
            items.ok().filter(|items| layer != Layer::All || items.len() <= max_items).and_then(
                |items| Reconciliation::open(items.into_iter().chain(refused), frame, max_ids),
            );
        let Some((reconciliation, first)) = opened else {
            self.subs.close(ctx, sub);
            return self.fail(ctx, id);
        };
        ctx.shared.held_items.insert(id, reconciliation.items());
        let (reconciliation, outgoing) = (Box::new(reconciliation), Some(first));
        job.phase = JobPhase::Comparing { sub, reconciliation, outgoing };
    }

    pub(super) fn neg_msg(&mut self, ctx: &mut Context<'_>, sub: SubId, message: &[u8]) {
        let Some(SubKind::Neg(id)) = self.subs.kind(sub) else { return };
        self.subs.answered(ctx.mono(), sub, NEG_IDLE_TIMEOUT);
        match self.backlog.get_mut(id).and_then(|job| job.receive(message)) {
            None | Some(ReconcileStep::Reply(_)) => {}
            Some(ReconcileStep::Done(found)) => self.compared(ctx, id, sub, found),
            Some(ReconcileStep::TooMuch) => {
                self.end_session(ctx, id, sub);
                self.split_by_time(ctx, id, Method::Reconcile);
            }
            Some(ReconcileStep::Broken) => {
                self.refused(ctx, sub, Refusal::NegProtocol, "", ClosedBy::Us);
            }
        }
    }

    /// Ends a session whose sets are compared, and wants the events that are missing here.
    fn compared(&mut self, ctx: &mut Context<'_>, id: JobId, sub: SubId, mut found: Comparison) {
        let Some(job) = self.backlog.get(id) else { return };
        let layer = job.layer;
        ctx.history.suspended.answered(layer, RequestMode::History);
        ctx.history.neg.fresh_start();
        if std::mem::take(&mut ctx.history.no_negentropy_reported) {
            ctx.report(|relay| Report::Negentropy { relay });
        }
        let needed = std::mem::take(&mut found.needed);
        // Polls compare every few minutes, and would dominate the count.
        if self.backlog.batch_of(id).is_some_and(|batch| batch.purpose.is_history()) {
            note_lacking(ctx, layer, &job.filter(), found);
        }
        if let Some(full_sync) = self.full_sync.as_mut().filter(|_| layer == Layer::All) {
            let took = self.subs.get(sub).map(|open| open.lasted(ctx.mono())).unwrap_or_default();
            full_sync.compare_at = ctx.mono() + took.saturating_mul(COMPARISON_PAUSE_FACTOR);
        }
        self.end_session(ctx, id, sub);
        let (now, wants) = (ctx.mono(), &mut ctx.history.wants);
        let results = needed.into_iter().map(|event| wants.want(now, event, Some(id)));
        let step = self.backlog.get_mut(id).map(|job| job.wants(results));
        step.into_iter().for_each(|step| self.take_step(ctx, id, step));
    }

    /// Closes the session of a job, and releases its inventory.
    pub(super) fn end_session(&mut self, ctx: &mut Context<'_>, id: JobId, sub: SubId) {
        self.subs.close(ctx, sub);
        self.backlog.forget_inventory(ctx, id);
    }

    pub(super) fn neg_refused(
        &mut self,
        ctx: &mut Context<'_>,
        id: JobId,
        refusal: Refusal,
        text: &str,
    ) {
        self.backlog.forget_inventory(ctx, id);
        let Some(job) = self.backlog.get_mut(id) else { return };
        let step = job.refused(refusal);
        match (&step, refusal) {
            (JobStep::NoNegentropy, _) => {
                if refusal == Refusal::NegUnsupported {
                    self.backlog.use_pages_only(ctx);
                    self.subs.close_all(ctx, |kind| matches!(kind, SubKind::Neg(_)));
                } else {
                    ctx.history.neg.failed(ctx.now.mono);
                }
                if !std::mem::replace(&mut ctx.history.no_negentropy_reported, true) {
                    let text = PeerText::new(text);
                    ctx.report(|relay| Report::NoNegentropy { relay, refusal, text });
                }
            }
            (JobStep::Queue(Method::Reconcile), Refusal::NegSessions) => {
                let open = ctx.history.ledger.in_use_by(SlotClass::Reconcile);
                self.max_neg_sessions = self.max_neg_sessions.min(open.max(1));
            }
            _ => {}
        }
        self.take_step(ctx, id, step);
    }

    /// Sends the next messages of the NIP-77 sessions under way.
    pub(super) fn send_neg_messages(&mut self, ctx: &mut Context<'_>) {
        let now = ctx.mono();
        for id in self.backlog.jobs_where(Job::has_neg_message) {
            let Some(job) = self.backlog.get_mut(id) else { continue };
            let is_opening =
                job.sub().and_then(|sub| self.subs.get(sub)).is_some_and(|open| !open.is_sent);
            let is_paced = is_opening || ctx.history.profile.counts_frames;
            if is_paced && ctx.history.pace.admit(now) != Admit::Go {
                return;
            }
            let Some((sub, message)) = job.take_neg_message() else { continue };
            let (frame, wait) = match is_opening {
                true => {
                    let filter = Box::new(job.filter());
                    (Frame::NegOpen { sub, filter, message }, NEG_OPEN_TIMEOUT)
                }
                false => (Frame::NegMsg { sub, message }, NEG_IDLE_TIMEOUT),
            };
            self.subs.sent(now, sub, wait);
            ctx.send(self.subs.conn, frame);
        }
    }

    fn job_wants_auth(&mut self, ctx: &mut Context<'_>, id: JobId, method: Method) {
        let Some(job) = self.backlog.get_mut(id) else { return };
        let (again, layer) = (job.authenticates(), job.layer);
        match self.auth.require(ctx, self.subs.conn, again) {
            AuthDecision::Answer | AuthDecision::Wait => {
                job.phase = JobPhase::AwaitingAuth(method);
            }
            AuthDecision::Resend => self.backlog.queue(id, method),
            AuthDecision::Policy => {
                self.suspend(ctx, layer, RequestMode::History);
                self.backlog.queue(id, method);
            }
        }
    }
}

/// Chooses the window and method of a filter. What was proven in this pass is not compared again, only continued.
/// Polled filters are always fetched as asked: nothing was received for them in between.
fn plan(ctx: &Context<'_>, purpose: Purpose, filter: Filter, method: Method) -> (Filter, Method) {
    let is_rechecked = ctx.shared.config.recheck_announcements
        && ctx.history.is_resumed()
        && Layer::of(&filter) == Layer::Announcements;
    // A proof says nothing about events that the relay dropped since.
    let is_reach_back = matches!(purpose, Purpose::MissedLive(_));
    if method == Method::Page || is_rechecked || is_reach_back || !purpose.is_history() {
        return (filter, method);
    }
    match ctx.history.coverage.since(&FilterHash::of(&filter), None) {
        Some(proof) if proof.at >= ctx.history.pass.began => {
            (filter.since(proof.until - RETENTION), Method::Page)
        }
        _ => (filter, method),
    }
}

/// Confirms the items of a batch that is complete.
fn confirm(ctx: &mut Context<'_>, batch: BatchId, complete: PendingBatch) {
    let PendingBatch { items, sync_method: method, .. } = complete;
    let (repos, roots) = (items.repos.len(), items.root_events.len());
    ctx.history.state.confirm(items);
    ctx.report(|relay| Report::BatchConfirmed { relay, batch, repos, roots, method });
}

/// Notes our events that a relay lacks. In full sync it need not have all of them: those of its own repositories
/// count once they are attributed to one.
fn note_lacking(ctx: &mut Context<'_>, layer: Layer, filter: &Filter, found: Comparison) {
    let Comparison { items, lacking, lacking_ids, .. } = found;
    let health = &mut ctx.history.health;
    match layer {
        Layer::All => health.compared(items.saturating_sub(lacking), 0),
        Layer::Announcements | Layer::Repos | Layer::Roots => health.compared(items, lacking),
    }
    ctx.schedule_write();
    if !lacking_ids.is_empty() {
        let asked = missing::questions(&ctx.shared.index, ctx.relay, layer, filter, lacking_ids);
        missing::ask(ctx.shared, ctx.out, asked);
    }
}
