//! Pages of several jobs in one request, each with a cursor of its own.

use std::mem::{Discriminant, discriminant};

use grasp_core::limits::{Action, Admit, EoseHint, Next, SlotClass};
use grasp_core::nostr::filter::Filter;

use super::super::batch::Purpose;
use super::super::desk::Desk;
use super::super::history::{Method, Phase};
use super::super::ids::{JobId, SubId};
use super::super::io::{Delivered, Frame};
use super::super::layer::{self, Layer};
use super::super::parks::Way;
use super::gaps::Course;
use super::pump::{Start, has_room};
use super::session::Session;
use super::subs::Serves;

/// Bytes of REQ, subscription id and brackets around the filters.
const REQ_BYTES: usize = 80;
/// Queued pages that are considered for sharing a request.
const LOOK_AHEAD: usize = 100;

/// Pages that share a request.
#[derive(Debug, Default)]
struct Pack {
    jobs: Vec<JobId>,
    filters: Vec<Filter>,
    bytes: usize,
}

impl Session {
    /// Sends the first queued page, with other queued pages that fit the same request: relays truncate their answer
    /// to each filter separately, and count requests.
    pub(super) fn start_pages(&mut self, desk: &mut Desk<'_>, first: JobId) -> Start {
        let now = desk.mono();
        if desk.standing.pace.reopens_at() > now {
            return Start::NotYet;
        }
        if !has_room(&desk.standing.ledger, SlotClass::Fetch) {
            return Start::NoSlot;
        }
        let Some(job) = self.jobs.get(&first) else { return Start::Done };
        let layer = job.layer;
        // Full sync compares; it pages only what came lately.
        if layer == Layer::Whole && job.window().0.is_none() {
            self.call_by_name(desk);
            return Start::Done;
        }
        let Pack { jobs, filters, bytes } = self.pack(desk, first);
        if jobs.is_empty() {
            return Start::Done;
        }
        let Some(slot) = desk.standing.ledger.take(SlotClass::Fetch, bytes) else {
            return Start::NoSlot;
        };
        if desk.standing.pace.admit(now) != Admit::Go {
            desk.standing.ledger.free(slot);
            return Start::NotYet;
        }
        let sub = desk.shared.ids.sub();
        for id in &jobs {
            self.leave_lines(*id);
            if let Some(job) = self.jobs.get_mut(id) {
                job.phase = Phase::Paging { sub, rows: Vec::new() };
            }
        }
        let path = self.course_of_jobs(&jobs).path;
        desk.standing.parks.sent(now, layer, Way::History);
        self.subs.insert(now, sub, slot, Serves::Pages(jobs.into()), desk.shared.config.watchdog);
        desk.send(self.conn, Frame::Subscribe { sub, filters, path });
        Start::Done
    }

    /// Collects the first queued page and others that fit: of the same layer, since relays refuse whole layers, and
    /// for the same purpose. Empty if the first job is at its end.
    fn pack(&mut self, desk: &mut Desk<'_>, first: JobId) -> Pack {
        let mut pack = Pack { bytes: REQ_BYTES, ..Pack::default() };
        let most = self.budget.filters_per_req().min(self.pages_per_req);
        for id in self.like(first) {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let Some(page) = job.next_page(desk.standing.manners.page) else {
                job.pager = None;
                self.leave_lines(id);
                self.fail(desk, id);
                continue;
            };
            let bytes = page.as_json().len() + 1;
            let is_full = pack.bytes + bytes > self.budget.message_bytes();
            if !pack.jobs.is_empty() && is_full {
                break;
            }
            pack.bytes += bytes;
            pack.jobs.push(id);
            pack.filters.push(page);
            if pack.jobs.len() >= most {
                break;
            }
        }
        pack
    }

    /// Returns the first queued job, and those behind it that may share a request with it.
    fn like(&self, first: JobId) -> Vec<JobId> {
        let sort = |id: &JobId| -> Option<(Layer, Discriminant<Purpose>, Course)> {
            let job = self.jobs.get(id)?;
            let group = self.groups.get(&job.group)?;
            Some((job.layer, discriminant(&group.purpose), group.course))
        };
        let wanted = sort(&first);
        let line = self.lines.get(&Method::Page).into_iter().flatten().map(|(_, id)| *id);
        let behind = line.skip_while(|id| *id != first).take(LOOK_AHEAD);
        behind.filter(|id| sort(id) == wanted).collect()
    }

    pub(super) fn pages_delivered(
        &mut self,
        desk: &mut Desk<'_>,
        sub: SubId,
        jobs: &[JobId],
        rows: &[Delivered],
    ) {
        let limit = desk.standing.manners.page;
        let mut is_flood = false;
        for (place, id) in jobs.iter().enumerate() {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            let its = rows.iter().filter(|one| one.places.has(place)).map(|one| one.row);
            is_flood |= !job.delivered(its, limit);
        }
        if is_flood {
            self.close(desk, sub);
            jobs.iter().for_each(|id| self.fail(desk, *id));
        }
    }

    pub(super) fn pages_ended(
        &mut self,
        desk: &mut Desk<'_>,
        sub: SubId,
        jobs: &[JobId],
        hint: Option<EoseHint>,
    ) {
        self.close(desk, sub);
        // A hint that there is more may be about any of them; that there is no more is about all.
        let hint = hint.filter(|hint| *hint == EoseHint::Finish || jobs.len() == 1);
        for id in jobs {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            desk.standing.parks.answered(job.layer, Way::History);
            let next = job.page_ended(hint);
            let is_long = job.is_long(desk.standing.manners.page);
            match next {
                Some(Next::Ask(_)) if is_long => self.spread(desk, *id),
                _ => self.turn_page(desk, *id, next),
            }
        }
    }

    /// Splits a job that keeps getting full pages into parts that share requests.
    fn spread(&mut self, desk: &mut Desk<'_>, id: JobId) {
        let limit = desk.standing.manners.page;
        let most = self.budget.filters_per_req().min(self.pages_per_req);
        let page = self.jobs.get_mut(&id).and_then(|job| job.next_page(limit));
        let Some(rest) = page.map(|page| Filter { limit: None, ..page }) else { return };
        let parts = layer::spread(&rest, most);
        if parts.len() < 2 {
            return self.queue(id, Method::Page);
        }
        let Some(mut whole) = self.jobs.remove(&id) else { return };
        whole.phase = Phase::Settling;
        whole.is_partial = true;
        self.add_parts(desk, &whole, parts, Method::Page);
        self.jobs.insert(id, whole);
        self.end_if_settled(desk, id);
    }

    /// Returns whether other jobs still use a request.
    pub(super) fn is_shared(&self, sub: SubId) -> bool {
        match self.subs.serves(sub) {
            Some(Serves::Pages(jobs)) => jobs.iter().any(|id| self.is_open_for(sub, *id)),
            _ => false,
        }
    }

    pub(super) fn is_open_for(&self, sub: SubId, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.sub() == Some(sub))
    }

    /// Notes that all rows of a page were judged.
    pub(super) fn page_judged(&mut self, desk: &mut Desk<'_>, sub: SubId, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.unjudged.remove(&sub);
            self.end_if_settled(desk, id);
        }
    }

    /// Handles a refused request. If it may be about one filter only, the pages are sent one by one from now on.
    pub(super) fn pages_refused(&mut self, desk: &mut Desk<'_>, jobs: &[JobId], action: Action) {
        let together = match action {
            Action::HalveFilters => Some(jobs.len() / 2),
            Action::NeverResend | Action::Bisect | Action::ParkAndSurface(_) => Some(1),
            _ => None,
        };
        let Some(fewer) = together.filter(|_| jobs.len() > 1) else {
            return jobs.iter().for_each(|id| self.page_refused(desk, *id, action));
        };
        self.pages_per_req = self.pages_per_req.min(fewer.max(1));
        for id in jobs {
            let next = self.jobs.get_mut(id).and_then(|job| job.page_failed());
            self.turn_page(desk, *id, next);
        }
    }
}
