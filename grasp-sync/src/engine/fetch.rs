//! Fetches history: jobs are sent as pages or as NIP-77 sessions, split, retried and ended; offered events are fetched by
//! id.

use std::cell::OnceCell;

use crate::limits::{Refusal, SUSPENDED_FOR, SlotClass, SlotLedger};
use grasp_core::limits::{Admit, EoseHint, PeerText};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::build_layer2_and_layer3_filters;

use super::backlog::Purpose;
use super::filter::{CompactFilter, Layer, bisect, split, split_by_kind, split_into, wire_len};
use super::full_sync::{FALLBACK_FOR, max_offered};
use super::io::{
    Delivered, Frame, InventoryFailed, InventoryId, JobId, Output, Report, Row, SubId,
};
use super::job::{FilterJob, JobMethod, JobPhase, JobStep, MAX_TIME_SPLITS, by_ids};
use super::live::REQ_BYTES;
use super::missing;
use super::reconcile::{Comparison, MAX_NEEDED, ReconcileStep, Reconciliation};
use super::relay::{InventoryRequest, RelayContext};
use super::session::{ClosedBy, ConnectionSession};
use super::subs::{Blocked, NEG_IDLE_TIMEOUT, NEG_OPEN_TIMEOUT, SubKind};
use super::suspended::RequestMode;
use super::visits::Scope;

/// Items of local inventories held in memory; above it, history is fetched by pages. An item is 40 bytes.
const MAX_INVENTORY_ITEMS: usize = 1_000_000;
/// Ids offered by all relays and not fetched yet above which histories are paged instead of compared.
const MAX_WANTED_TOTAL: usize = 1_000_000;
/// Jobs of one connection above which full seconds are no longer split: a relay can make them up.
const MAX_JOBS: usize = 20_000;

impl ConnectionSession {
    /// Sends what history asks for and may be sent now.
    pub(super) fn send_history(&mut self, ctx: &mut RelayContext<'_>) {
        self.send_neg_messages(ctx);
        self.send_fetches(ctx);
        self.send_jobs(ctx);
    }

    /// Fetches offered events by id.
    fn send_fetches(&mut self, ctx: &mut RelayContext<'_>) {
        let now = ctx.mono();
        while ctx.history.wants.is_due(now) && !self.auth.is_pending() {
            if ctx.history.pace.reopens_at() > now {
                return;
            }
            // All are this size or smaller; the limit is about what the relay remembers, not what is sent.
            let bytes = 256 + 67 * self.ids_per_fetch;
            let sub = self.subs.open(ctx, SlotClass::Fetch, bytes, SubKind::Ids);
            let Ok(sub) = sub else { return };
            let ids = ctx.history.wants.take_due(now, sub, self.ids_per_fetch);
            let job = ids
                .first()
                .and_then(|id| ctx.history.wants.job_waiting_for(*id));
            let path = self.backlog.count_as(job.as_slice()).path;
            let filters = vec![by_ids(ids)];
            ctx.send(self.subs.conn, Frame::Subscribe { sub, filters, path });
        }
    }

    /// Starts jobs in queue order, as far as slots and pace allow.
    fn send_jobs(&mut self, ctx: &mut RelayContext<'_>) {
        let mut methods = vec![JobMethod::Page, JobMethod::Reconcile];
        while ctx.history.pace.reopens_at() <= ctx.mono() {
            let suspended = ctx.suspended_layers();
            let has_other_work = OnceCell::new();
            let may_start = |purpose: Purpose, job: &FilterJob| {
                let pauses = self
                    .full_sync
                    .is_some_and(|one| one.pauses_comparison(ctx.mono(), purpose));
                let waits = job.is_queued_comparison()
                    && (pauses || *has_other_work.get_or_init(|| self.backlog.has_other_work(ctx)));
                let awaits_auth = job.needs_auth() && self.auth.is_pending();
                !suspended.contains_key(&job.layer) && !waits && !awaits_auth
            };
            let heads = methods
                .iter()
                .filter_map(|method| self.backlog.next_queued(*method, may_start));
            let Some((_, id, method)) = heads.min() else {
                return;
            };
            let start = match method {
                JobMethod::Page => self.start_pages(ctx, id),
                JobMethod::Reconcile => self.start_reconciliation(ctx, id),
            };
            match start {
                Ok(()) => {}
                Err(Blocked::BySlots) => methods.retain(|other| *other != method),
                Err(Blocked::ByPace) => return,
            }
        }
    }

    /// Lets a job decide, and takes the step that follows.
    fn step(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        decide: impl FnOnce(&mut FilterJob) -> JobStep,
    ) {
        if let Some(step) = self.backlog.get_mut(id).map(decide) {
            self.take_step(ctx, id, step);
        }
    }

    pub(super) fn take_step(&mut self, ctx: &mut RelayContext<'_>, id: JobId, step: JobStep) {
        match step {
            JobStep::Check => self.backlog.end_if_complete(ctx, id),
            JobStep::Queue(method) => self.backlog.queue(id, method),
            JobStep::NoNegentropy => self.backlog.queue(id, JobMethod::Page),
            JobStep::BackOff(wait, method) => self.backlog.delay(ctx.mono(), id, wait, method),
            JobStep::Fail => self.fail(ctx, id),
            JobStep::Authenticate(method) => {
                let again = self
                    .backlog
                    .get_mut(id)
                    .is_some_and(FilterJob::authenticate);
                match self.auth.require(ctx, self.subs.conn, again) {
                    true => self.backlog.queue(id, method),
                    false => self.suspend_and_queue(ctx, id, method),
                }
            }
            JobStep::Suspend(method) => self.suspend_and_queue(ctx, id, method),
            JobStep::SwitchToPages => self.switch_to_pages(ctx, id),
            JobStep::SplitByTime(method) => self.split_by_time(ctx, id, method),
            JobStep::SplitByContent => match self.backlog.get(id).map(|job| split(&job.filter())) {
                Some(Some(parts)) => self.replace(ctx, id, parts, JobMethod::Page),
                _ => self.give_up_filter(ctx, id),
            },
            JobStep::SplitPages => self.split_pages(ctx, id),
            JobStep::GiveUpFilter => self.give_up_filter(ctx, id),
            JobStep::FallBackToFilters => self.fall_back_to_filters(ctx),
            JobStep::FillGaps(gaps) => self.fill_gaps(ctx, id, gaps),
        }
    }

    /// Handles a failed job: a poll ends with it, any other job is tried again later, less and less often.
    pub(super) fn fail(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        if self
            .backlog
            .batch_of(id)
            .is_none_or(|one| !one.purpose.is_history())
        {
            return self.backlog.drop_batch(ctx, &mut self.subs, id.batch);
        }
        self.step(ctx, id, FilterJob::failed);
    }

    /// Gives up a filter that the relay refuses and that cannot be split: it is not sent again for a day.
    fn give_up_filter(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let Some(job) = self.backlog.get(id) else {
            return;
        };
        ctx.history
            .suspended
            .suspend_filter(ctx.now.mono, job.hash());
        self.backlog
            .delay(ctx.mono(), id, SUSPENDED_FOR, JobMethod::Page);
    }

    /// Continues a job with pages. A recheck ends instead: by pages it would fetch everything again.
    pub(super) fn switch_to_pages(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        if self
            .backlog
            .batch_of(id)
            .is_some_and(|batch| batch.purpose == Purpose::Recheck)
        {
            return self.backlog.drop_batch(ctx, &mut self.subs, id.batch);
        }
        let Some(job) = self.backlog.get_mut(id) else {
            return;
        };
        job.forget_offers();
        ctx.history.wants.abandon(id);
        self.backlog.queue(id, JobMethod::Page);
    }

    /// Splits a job by time; continues with pages if that is no longer possible.
    pub(super) fn split_by_time(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        method: JobMethod,
    ) {
        if self
            .backlog
            .get(id)
            .is_some_and(|job| job.layer == Layer::All)
        {
            return self.fetch_histories_by_filters(ctx);
        }
        let job = self
            .backlog
            .get(id)
            .filter(|job| job.splits < MAX_TIME_SPLITS);
        match job.and_then(|job| bisect(&job.filter(), ctx.now.unix)) {
            Some(parts) => self.replace(ctx, id, parts, method),
            None if method == JobMethod::Reconcile => self.switch_to_pages(ctx, id),
            None => self.fail(ctx, id),
        }
    }

    fn replace(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        parts: [Filter; 2],
        method: JobMethod,
    ) {
        self.backlog.add_parts(ctx, id, parts, method);
        // The parts belong to the batch by now, so this completes nothing.
        let _ = self.backlog.end(id);
    }

    /// Splits a job that keeps getting full pages into parts that share requests.
    fn split_pages(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let limit = ctx.history.profile.page;
        let max_pages = self.budget.filters_per_req.min(self.pages_per_req);
        let page = self
            .backlog
            .get_mut(id)
            .and_then(|job| job.next_page(limit));
        let Some(rest) = page.map(|page| Filter {
            limit: None,
            ..page
        }) else {
            return;
        };
        let parts = split_into(&rest, max_pages);
        if parts.len() < 2 {
            return self.backlog.queue(id, JobMethod::Page);
        }
        self.backlog.set_phase(id, JobPhase::AwaitingJudgement);
        // The rest is left to parts, which prove it.
        self.backlog
            .get_mut(id)
            .into_iter()
            .for_each(|job| job.is_partial = true);
        self.backlog.add_parts(ctx, id, parts, JobMethod::Page);
        self.backlog.end_if_complete(ctx, id);
    }

    /// Fetches seconds in parts that held more than a page, then ends the job if that was all.
    fn fill_gaps(&mut self, ctx: &mut RelayContext<'_>, id: JobId, gaps: Vec<Timestamp>) {
        let Some(filter) = self.backlog.get(id).map(FilterJob::filter) else {
            return;
        };
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
            self.backlog.add_parts(ctx, id, parts, JobMethod::Page);
        }
        self.backlog.end_if_complete(ctx, id);
    }

    /// Sends the first queued page, with other queued pages that fit the same request: relays truncate their answer
    /// to each filter separately, and count requests.
    fn start_pages(&mut self, ctx: &mut RelayContext<'_>, first: JobId) -> Result<(), Blocked> {
        if !has_room(&ctx.history.ledger, SlotClass::Fetch) {
            return Err(Blocked::BySlots);
        }
        let Some(job) = self.backlog.get(first) else {
            return Ok(());
        };
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
            self.backlog.set_phase(
                *id,
                JobPhase::Paging {
                    sub,
                    rows: Vec::new(),
                },
            );
        }
        let path = self.backlog.count_as(&jobs).path;
        ctx.history
            .suspended
            .sent(ctx.mono(), layer, RequestMode::History);
        ctx.send(self.subs.conn, Frame::Subscribe { sub, filters, path });
        Ok(())
    }

    /// Collects the first queued page and others that fit, and returns their jobs, filters and bytes. Empty if the first
    /// job is at its end.
    fn collect_pages(
        &mut self,
        ctx: &mut RelayContext<'_>,
        first: JobId,
    ) -> (Vec<JobId>, Vec<Filter>, usize) {
        let mut jobs = Vec::new();
        let mut filters = Vec::new();
        let mut bytes = REQ_BYTES;
        let max_pages = self.budget.filters_per_req.min(self.pages_per_req);
        for id in self.backlog.compatible_pages(first) {
            let Some(job) = self.backlog.get_mut(id) else {
                continue;
            };
            let Some(page) = job.next_page(ctx.history.profile.page) else {
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
        ctx: &mut RelayContext<'_>,
        sub: SubId,
        jobs: &[JobId],
        rows: &[Delivered],
    ) {
        let limit = ctx.history.profile.page;
        let mut is_flood = false;
        for (place, id) in jobs.iter().enumerate() {
            let Some(job) = self.backlog.get_mut(*id) else {
                continue;
            };
            let its = rows
                .iter()
                .filter(|one| one.places.has(place))
                .map(|one| one.row);
            is_flood |= !job.delivered(its, limit);
        }
        if is_flood {
            self.subs.close(ctx, sub);
            jobs.iter().for_each(|id| self.fail(ctx, *id));
        }
    }

    pub(super) fn pages_ended(
        &mut self,
        ctx: &mut RelayContext<'_>,
        sub: SubId,
        jobs: &[JobId],
        hint: Option<EoseHint>,
    ) {
        self.subs.close(ctx, sub);
        // A hint that there is more may be about any of them; that there is no more is about all.
        let hint = hint.filter(|hint| *hint == EoseHint::Finish || jobs.len() == 1);
        let limit = ctx.history.profile.page;
        for id in jobs {
            let Some(job) = self.backlog.get(*id) else {
                continue;
            };
            ctx.history
                .suspended
                .answered(job.layer, RequestMode::History);
            self.step(ctx, *id, |job| job.page_ended(hint, limit));
        }
    }

    /// Handles a refused request. If it may be about one filter only, the pages are sent one by one from now on.
    pub(super) fn pages_refused(
        &mut self,
        ctx: &mut RelayContext<'_>,
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

    /// Suspends the layer of a job, which waits for the end of that in its queue.
    fn suspend_and_queue(&mut self, ctx: &mut RelayContext<'_>, id: JobId, method: JobMethod) {
        let layer = self.backlog.get(id).map(|job| job.layer);
        layer
            .into_iter()
            .for_each(|layer| self.suspend(ctx, layer, RequestMode::History));
        self.backlog.queue(id, method);
    }

    /// Suspends a layer that the relay refuses; falls back to filters if it refuses full sync.
    pub(super) fn suspend(&mut self, ctx: &mut RelayContext<'_>, layer: Layer, mode: RequestMode) {
        match layer {
            Layer::All => self.fall_back_to_filters(ctx),
            Layer::Announcements | Layer::Repos | Layer::Roots => ctx.suspend(layer, mode),
        }
    }

    /// Fetches the histories that waited for a full comparison by filters, because too much differs.
    fn fetch_histories_by_filters(&mut self, ctx: &mut RelayContext<'_>) {
        if let Some(full_sync) = &mut self.full_sync {
            full_sync.differs_too_much(ctx.mono());
        }
        self.replace_by_filters(ctx, |job| job.window().0.is_none());
    }

    /// Falls back to filters: full sync is refused, or not worth it.
    pub(super) fn fall_back_to_filters(&mut self, ctx: &mut RelayContext<'_>) {
        if self.full_sync.take().is_some() {
            ctx.history.filters_until = ctx.mono() + FALLBACK_FOR;
            self.live.needs_rebuild = true;
            ctx.report(|relay| Report::FullSyncEnded { relay });
        }
        // The live set may bring on such jobs until it is rebuilt.
        self.replace_by_filters(ctx, |_| true);
    }

    /// Replaces jobs for everything by jobs for filters. Polls end, and start again with the live set.
    fn replace_by_filters(
        &mut self,
        ctx: &mut RelayContext<'_>,
        which: impl Fn(&FilterJob) -> bool,
    ) {
        for id in self
            .backlog
            .jobs_where(|job| job.layer == Layer::All && which(job))
        {
            match self.backlog.batch_of(id).map(|batch| batch.purpose) {
                Some(poll @ Purpose::Poll(_)) => {
                    self.backlog.drop_batch_for(ctx, &mut self.subs, poll);
                }
                _ => self.replace_job_by_filters(ctx, id),
            }
        }
    }

    fn replace_job_by_filters(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let job = self.backlog.get(id).zip(self.backlog.batch_of(id));
        let Some((job, its_batch)) = job else { return };
        let items = match its_batch.purpose {
            Purpose::Items => its_batch.items.clone(),
            Purpose::CatchUp | Purpose::MissedLive(_) | Purpose::Recheck => {
                ctx.history.state.confirmed.clone()
            }
            Purpose::Announcements | Purpose::Poll(_) | Purpose::Visit(_) => return,
        };
        let (began, (since, _)) = (job.began, job.window());
        let method = if since.is_some() {
            JobMethod::Page
        } else {
            JobMethod::Reconcile
        };
        for filter in build_layer2_and_layer3_filters(&items, since, &self.budget) {
            let part = FilterJob::new(CompactFilter::new(filter, None), began);
            self.backlog.add(ctx, id.batch, part, method);
        }
        self.backlog.drop_job(ctx, &mut self.subs, id);
        self.backlog.end_batch_if_complete(ctx, id.batch);
    }
}

/// Returns whether a class has a free slot; checked before anything is built that needs one.
pub(super) fn has_room(ledger: &SlotLedger, class: SlotClass) -> bool {
    ledger.in_use_by(class) < ledger.class_limit(class)
}

/// Comparisons of sets with a relay (NIP-77): a session for each job, from our inventory to the ids that are missing here.
impl ConnectionSession {
    /// Starts a reconciliation by asking the local relay for its inventory.
    pub(super) fn start_reconciliation(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
    ) -> Result<(), Blocked> {
        let now = ctx.mono();
        let is_memory_full = ctx.shared.held_items.values().sum::<usize>() >= MAX_INVENTORY_ITEMS
            || ctx.shared.wanted >= MAX_WANTED_TOTAL;
        if ctx.history.neg.admit(now) != Admit::Go || is_memory_full {
            self.switch_to_pages(ctx, id);
            return Ok(());
        }
        let ledger = &ctx.history.ledger;
        let is_full = ledger.in_use_by(SlotClass::Reconcile) >= self.max_neg_sessions;
        // What one comparison found is fetched before the next finds more.
        let is_behind = ctx.history.wants.len() >= MAX_NEEDED;
        if is_full || is_behind || !has_room(ledger, SlotClass::Reconcile) {
            return Err(Blocked::BySlots);
        }
        let Some(job) = self.backlog.get(id) else {
            return Ok(());
        };
        let filter = job.filter();
        let layer = job.layer;
        let bytes = wire_len(&filter) + 80;
        let sub = self
            .subs
            .open(ctx, SlotClass::Reconcile, bytes, SubKind::Neg(id))?;
        self.backlog.set_phase(id, JobPhase::Listing(sub));
        let request = ctx.shared.ids.next(InventoryId);
        ctx.history.suspended.sent(now, layer, RequestMode::History);
        ctx.shared
            .inventories
            .insert(request, InventoryRequest::Job(ctx.relay.clone(), id));
        ctx.out.push(Output::FetchInventory {
            request,
            filter: Box::new(filter),
        });
        self.backlog.merge_comparisons(id);
        Ok(())
    }

    /// Starts a comparison with the inventory of the local relay.
    pub(super) fn inventory(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        items: Result<Vec<Row>, InventoryFailed>,
    ) {
        let full_sync = self.full_sync;
        let Some(job) = self.backlog.get_mut(id) else {
            return;
        };
        let JobPhase::Listing(sub) = job.phase else {
            return;
        };
        // With nothing to compare, pages bring more for each request, and requests are limited here.
        if ctx.history.profile.counts_frames && items.as_ref().is_ok_and(Vec::is_empty) {
            self.subs.close(ctx, sub);
            return self.backlog.queue(id, JobMethod::Page);
        }
        let (since, until) = job.window();
        let is_within = |row: &Row| {
            since.is_none_or(|since| row.at >= since) && until.is_none_or(|until| row.at <= until)
        };
        let original = job.original_hash();
        let layer = job.layer;
        let refused = ctx.shared.rejected.rows(&original).filter(is_within);
        let frame = ctx.history.profile.neg_frame;
        let max_ids = max_offered(full_sync, layer);
        let max_items = MAX_INVENTORY_ITEMS;
        let failed = items.as_ref().err().copied();
        let opened = items
            .ok()
            .filter(|items| layer != Layer::All || items.len() <= max_items)
            .and_then(|items| {
                Reconciliation::open(items.into_iter().chain(refused), frame, max_ids)
            });
        let Some((reconciliation, first)) = opened else {
            self.subs.close(ctx, sub);
            return self.not_listed(ctx, id, failed);
        };
        ctx.shared.held_items.insert(id, reconciliation.items());
        let reconciliation = Box::new(reconciliation);
        let outgoing = Some(first);
        job.phase = JobPhase::Comparing {
            sub,
            reconciliation,
            outgoing,
        };
    }

    /// Continues without the list of what is stored here. A poll or a recheck ends: by pages it would fetch everything
    /// again.
    fn not_listed(&mut self, ctx: &mut RelayContext<'_>, id: JobId, why: Option<InventoryFailed>) {
        let purpose = self.backlog.batch_of(id).map(|batch| batch.purpose);
        let goes_on = purpose.is_some_and(|it| it.is_history() || matches!(it, Purpose::Visit(_)));
        match goes_on {
            true => self.step(ctx, id, |job| job.not_listed(why)),
            false => self.fail(ctx, id),
        }
    }

    pub(super) fn neg_msg(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, message: &[u8]) {
        let Some(SubKind::Neg(id)) = self.subs.kind(sub) else {
            return;
        };
        self.subs.answered(ctx.mono(), sub, NEG_IDLE_TIMEOUT);
        match self
            .backlog
            .get_mut(id)
            .and_then(|job| job.receive(message))
        {
            None | Some(ReconcileStep::Reply(_)) => {}
            Some(ReconcileStep::Done(found)) => self.compared(ctx, id, sub, found),
            Some(ReconcileStep::TooMuch) => {
                self.end_session(ctx, id, sub);
                self.split_by_time(ctx, id, JobMethod::Reconcile);
            }
            Some(ReconcileStep::Broken) => {
                self.refused(ctx, sub, Refusal::NegProtocol, "", ClosedBy::Us);
            }
        }
    }

    /// Ends a session whose sets are compared, and wants the events that are missing here.
    fn compared(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        sub: SubId,
        mut found: Comparison,
    ) {
        let Some(job) = self.backlog.get(id) else {
            return;
        };
        let layer = job.layer;
        ctx.history.suspended.answered(layer, RequestMode::History);
        ctx.history.neg.fresh_start();
        if std::mem::take(&mut ctx.history.no_negentropy_reported) {
            ctx.report(|relay| Report::Negentropy { relay });
        }
        let needed = std::mem::take(&mut found.needed);
        // Polls compare every few minutes, and would dominate the count. Relays of authors need not have our events.
        if ctx.history.scope == Scope::Full
            && self
                .backlog
                .batch_of(id)
                .is_some_and(|batch| batch.purpose.is_history())
        {
            note_lacking(ctx, layer, &job.filter(), found);
        }
        if let Some(full_sync) = self.full_sync.as_mut().filter(|_| layer == Layer::All) {
            let took = self
                .subs
                .get(sub)
                .map(|open| open.lasted(ctx.mono()))
                .unwrap_or_default();
            full_sync.compared(ctx.mono(), took);
        }
        self.end_session(ctx, id, sub);
        let now = ctx.mono();
        let wants = &mut ctx.history.wants;
        let results = needed
            .into_iter()
            .map(|event| wants.want(now, event, Some(id)));
        let step = self.backlog.get_mut(id).map(|job| job.wants(results));
        step.into_iter()
            .for_each(|step| self.take_step(ctx, id, step));
    }

    /// Closes the session of a job, and releases its inventory.
    pub(super) fn end_session(&mut self, ctx: &mut RelayContext<'_>, id: JobId, sub: SubId) {
        self.subs.close(ctx, sub);
        self.backlog.forget_inventory(ctx, id);
    }

    pub(super) fn neg_refused(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        refusal: Refusal,
        text: &str,
    ) {
        self.backlog.forget_inventory(ctx, id);
        let Some(job) = self.backlog.get_mut(id) else {
            return;
        };
        let step = job.refused(refusal);
        match (&step, refusal) {
            (JobStep::NoNegentropy, _) => {
                self.backlog
                    .drop_batch_for(ctx, &mut self.subs, Purpose::Recheck);
                if refusal == Refusal::NegUnsupported {
                    self.backlog.use_pages_only(ctx);
                    self.subs
                        .close_all(ctx, |kind| matches!(kind, SubKind::Neg(_)));
                } else {
                    ctx.history.neg.failed(ctx.now.mono);
                }
                if !std::mem::replace(&mut ctx.history.no_negentropy_reported, true) {
                    let text = PeerText::new(text);
                    ctx.report(|relay| Report::NoNegentropy {
                        relay,
                        refusal,
                        text,
                    });
                }
            }
            (JobStep::Queue(JobMethod::Reconcile), Refusal::NegSessions) => {
                let open = ctx.history.ledger.in_use_by(SlotClass::Reconcile);
                self.max_neg_sessions = self.max_neg_sessions.min(open.max(1));
            }
            _ => {}
        }
        self.take_step(ctx, id, step);
    }

    /// Sends the next messages of the NIP-77 sessions under way.
    pub(super) fn send_neg_messages(&mut self, ctx: &mut RelayContext<'_>) {
        let now = ctx.mono();
        for id in self.backlog.jobs_where(FilterJob::has_neg_message) {
            let Some(job) = self.backlog.get_mut(id) else {
                continue;
            };
            let is_opening = job
                .sub()
                .and_then(|sub| self.subs.get(sub))
                .is_some_and(|open| !open.is_sent);
            let is_paced = is_opening || ctx.history.profile.counts_frames;
            if is_paced && ctx.history.pace.admit(now) != Admit::Go {
                return;
            }
            let Some((sub, message)) = job.take_neg_message() else {
                continue;
            };
            let (frame, wait) = match is_opening {
                true => {
                    let filter = Box::new(job.filter());
                    (
                        Frame::NegOpen {
                            sub,
                            filter,
                            message,
                        },
                        NEG_OPEN_TIMEOUT,
                    )
                }
                false => (Frame::NegMsg { sub, message }, NEG_IDLE_TIMEOUT),
            };
            self.subs.sent(now, sub, wait);
            ctx.send(self.subs.conn, frame);
        }
    }
}

/// Notes our events that a relay lacks. In full sync it need not have all of them: those of its own repositories
/// count once they are attributed to one.
fn note_lacking(ctx: &mut RelayContext<'_>, layer: Layer, filter: &Filter, found: Comparison) {
    let Comparison {
        items,
        lacking,
        lacking_ids,
        ..
    } = found;
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
