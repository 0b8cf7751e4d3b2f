//! Pages of several jobs in one request, each with a cursor of its own.

use std::mem::{Discriminant, discriminant};

use crate::limits::{Next, Refusal, SlotClass};
use grasp_core::limits::{Admit, EoseHint};
use grasp_core::nostr::filter::Filter;

use super::super::context::RelayContext;
use super::super::ids::{JobId, SubId};
use super::super::io::{Delivered, Frame};
use super::super::job::{JobPhase, Method, Purpose};
use super::super::layer::{self, Layer};
use super::super::suspended::RequestMode;
use super::gaps::CountAs;
use super::live::REQ_BYTES;
use super::pump::{StartResult, has_room};
use super::session::Session;
use super::subs::SubKind;

/// Queued pages that are considered for sharing a request.
const LOOK_AHEAD: usize = 100;

/// Pages that share a request.
#[derive(Debug, Default)]
struct PageBatch {
    jobs: Vec<JobId>,
    filters: Vec<Filter>,
    bytes: usize,
}

impl Session {
    /// Sends the first queued page, with other queued pages that fit the same request: relays truncate their answer
    /// to each filter separately, and count requests.
    pub(super) fn start_pages(&mut self, ctx: &mut RelayContext<'_>, first: JobId) -> StartResult {
        let now = ctx.mono();
        if ctx.history.pace.reopens_at() > now {
            return StartResult::NotYet;
        }
        if !has_room(&ctx.history.ledger, SlotClass::Fetch) {
            return StartResult::NoSlot;
        }
        let Some(job) = self.jobs.get(&first) else { return StartResult::Done };
        let layer = job.layer;
        // Full sync compares; it pages only what came lately.
        if layer == Layer::All && job.window().0.is_none() {
            self.fall_back_to_filters(ctx);
            return StartResult::Done;
        }
        let PageBatch { jobs, filters, bytes } = self.collect_pages(ctx, first);
        if jobs.is_empty() {
            return StartResult::Done;
        }
        let Some(slot) = ctx.history.ledger.take(SlotClass::Fetch, bytes) else {
            return StartResult::NoSlot;
        };
        if ctx.history.pace.admit(now) != Admit::Go {
            ctx.history.ledger.free(slot);
            return StartResult::NotYet;
        }
        let sub = ctx.shared.ids.sub();
        for id in &jobs {
            self.unqueue(*id);
            if let Some(job) = self.jobs.get_mut(id) {
                job.phase = JobPhase::Paging { sub, rows: Vec::new() };
            }
        }
        let path = self.count_as_of_jobs(&jobs).path;
        ctx.history.suspended.sent(now, layer, RequestMode::History);
        self.subs.insert(now, sub, slot, SubKind::Pages(jobs.into()), ctx.shared.config.watchdog);
        ctx.send(self.conn, Frame::Subscribe { sub, filters, path });
        StartResult::Done
    }

    /// Collects the first queued page and others that fit: of the same layer, since relays refuse whole layers, and
    /// for the same purpose. Empty if the first job is at its end.
    fn collect_pages(&mut self, ctx: &mut RelayContext<'_>, first: JobId) -> PageBatch {
        let mut batch = PageBatch { bytes: REQ_BYTES, ..PageBatch::default() };
        let max_pages = self.budget.filters_per_req().min(self.pages_per_req);
        for id in self.compatible_jobs(first) {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(page) = job.next_page(ctx.history.profile.page) else {
                job.pager = None;
                self.unqueue(id);
                self.fail(ctx, id);
                continue;
            };
            let bytes = page.as_json().len() + 1;
            let is_full = batch.bytes + bytes > self.budget.message_bytes();
            if !batch.jobs.is_empty() && is_full {
                break;
            }
            batch.bytes += bytes;
            batch.jobs.push(id);
            batch.filters.push(page);
            if batch.jobs.len() >= max_pages {
                break;
            }
        }
        batch
    }

    /// Returns the first queued job, and those behind it that may share a request with it.
    fn compatible_jobs(&self, first: JobId) -> Vec<JobId> {
        let key = |id: &JobId| -> Option<(Layer, Discriminant<Purpose>, CountAs)> {
            let job = self.jobs.get(id)?;
            let group = self.groups.get(&job.group)?;
            Some((job.layer, discriminant(&group.purpose), group.count_as))
        };
        let wanted = key(&first);
        let queue = self.queues.get(&Method::Page).into_iter().flatten().map(|(_, id)| *id);
        let behind = queue.skip_while(|id| *id != first).take(LOOK_AHEAD);
        behind.filter(|id| key(id) == wanted).collect()
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
            let Some(job) = self.jobs.get_mut(id) else { continue };
            let its = rows.iter().filter(|one| one.places.has(place)).map(|one| one.row);
            is_flood |= !job.delivered(its, limit);
        }
        if is_flood {
            self.close(ctx, sub);
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
        self.close(ctx, sub);
        // A hint that there is more may be about any of them; that there is no more is about all.
        let hint = hint.filter(|hint| *hint == EoseHint::Finish || jobs.len() == 1);
        for id in jobs {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            ctx.history.suspended.answered(job.layer, RequestMode::History);
            let next = job.page_ended(hint);
            let is_long = job.is_long(ctx.history.profile.page);
            match next {
                Some(Next::Ask(_)) if is_long => self.split_long_job(ctx, *id),
                _ => self.advance_page(ctx, *id, next),
            }
        }
    }

    /// Splits a job that keeps getting full pages into parts that share requests.
    fn split_long_job(&mut self, ctx: &mut RelayContext<'_>, id: JobId) {
        let limit = ctx.history.profile.page;
        let max_pages = self.budget.filters_per_req().min(self.pages_per_req);
        let page = self.jobs.get_mut(&id).and_then(|job| job.next_page(limit));
        let Some(rest) = page.map(|page| Filter { limit: None, ..page }) else { return };
        let parts = layer::split_into(&rest, max_pages);
        if parts.len() < 2 {
            return self.queue(id, Method::Page);
        }
        let Some(mut job) = self.jobs.remove(&id) else { return };
        job.phase = JobPhase::AwaitingJudgement;
        job.is_partial = true;
        self.add_parts(ctx, &job, parts, Method::Page);
        self.jobs.insert(id, job);
        self.end_if_complete(ctx, id);
    }

    /// Returns whether other jobs still use a request.
    pub(super) fn is_shared(&self, sub: SubId) -> bool {
        match self.subs.kind(sub) {
            Some(SubKind::Pages(jobs)) => jobs.iter().any(|id| self.is_open_for(sub, *id)),
            _ => false,
        }
    }

    pub(super) fn is_open_for(&self, sub: SubId, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.sub() == Some(sub))
    }

    /// Notes that all rows of a page were judged.
    pub(super) fn page_judged(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.unjudged.remove(&sub);
            self.end_if_complete(ctx, id);
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
        let Some(fewer) = together.filter(|_| jobs.len() > 1) else {
            return jobs.iter().for_each(|id| self.page_refused(ctx, *id, refusal));
        };
        self.pages_per_req = self.pages_per_req.min(fewer.max(1));
        for id in jobs {
            let next = self.jobs.get_mut(id).and_then(|job| job.page_failed());
            self.advance_page(ctx, *id, next);
        }
    }
}
