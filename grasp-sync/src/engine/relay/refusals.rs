//! Reactions to refusals: budgets are lowered, and what was refused is retried, split, suspended or given up.

use std::time::Duration;

use crate::limits::{Heard, PARK, RETRY_DELAY, Refusal, SlotClass};
use grasp_core::limits::PeerText;

use super::super::context::RelayContext;
use super::super::ids::{JobId, LiveId, SubId};
use super::super::io::Frame;
use super::super::job::{Job, JobPhase, Method};
use super::super::report::Report;
use super::super::suspended::RequestMode;
use super::auth::AuthDecision;
use super::live::LivePhase;
use super::session::Session;
use super::subs::{OpenSub, SubKind};

/// The party that ended a refused subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedBy {
    /// The relay named the subscription, so it is closed.
    Relay,
    /// We concluded it, so we have to close it.
    Us,
}

/// Duration of a live request after which earlier losses are forgotten.
const STABLE_AFTER: Duration = Duration::from_secs(5 * 60);
const MIN_IDS_PER_FETCH: usize = 10;

impl Session {
    /// Handles a subscription that was refused, or is taken for refused.
    pub(super) fn refused(
        &mut self,
        ctx: &mut RelayContext<'_>,
        sub: SubId,
        refusal: Refusal,
        text: &str,
        closed_by: ClosedBy,
    ) {
        let Some(open) = self.subs.remove(sub) else { return };
        let kind = open.kind.clone();
        let lasted = open.lasted(ctx.mono());
        self.report_refusal(ctx, refusal, text);
        if closed_by == ClosedBy::Us && open.is_sent {
            let frame = match kind {
                SubKind::Neg(_) => Frame::NegClose { sub },
                _ => Frame::Unsubscribe { sub },
            };
            ctx.send(self.conn, frame);
        }
        self.release_slot(ctx, open, refusal);
        if refusal == Refusal::Rate {
            ctx.pause_starts();
        }
        match kind {
            SubKind::Live(id) => self.live_refused(ctx, id, refusal, lasted),
            SubKind::Pages(jobs) => self.pages_refused(ctx, &jobs, refusal),
            SubKind::Neg(id) => {
                self.forget_inventory(ctx, id);
                self.neg_refused(ctx, id, refusal, text);
            }
            SubKind::Ids => self.ids_refused(ctx, sub, refusal),
        }
    }

    fn release_slot(&mut self, ctx: &mut RelayContext<'_>, open: OpenSub, refusal: Refusal) {
        let ledger = &mut ctx.history.ledger;
        match refusal {
            Refusal::SlotCount | Refusal::DroppedStart => ledger.refused_by_count(open.slot),
            Refusal::RetainedBytes { stated } => {
                ledger.refused_by_bytes(open.slot, stated);
                ctx.history.retained = Some(ledger.byte_ceiling());
                ctx.schedule_write();
            }
            _ => ledger.free(open.slot),
        }
        self.poll_excess_live(ctx);
    }

    /// Polls the newest live requests that exceed a lowered budget.
    fn poll_excess_live(&mut self, ctx: &mut RelayContext<'_>) {
        while ctx.history.ledger.excess_live() > 0 && self.close_one_replaced(ctx) {}
        let excess = ctx.history.ledger.excess_live();
        let open = self.live.requests.iter().filter_map(|(id, one)| Some((*id, one.sub()?)));
        let mut open: Vec<(LiveId, SubId)> =
            open.filter(|(_, sub)| self.subs.kind(*sub).is_some()).collect();
        // Announcements were subscribed to first, and are polled last.
        let newest = open.split_off(open.len().saturating_sub(excess));
        for (id, sub) in newest {
            self.close(ctx, sub);
            self.poll_live(ctx, id);
        }
    }

    fn live_refused(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: LiveId,
        refusal: Refusal,
        lasted: Duration,
    ) {
        let now = ctx.mono();
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        if request.is_replaced() {
            self.live.requests.remove(&id);
            return self.live.mark_missed(ctx.now.unix);
        }
        if lasted >= STABLE_AFTER {
            request.failures = 0;
        }
        let is_one = request.filters.len() == 1;
        if Self::is_refusal_of_full_sync(request.layer, refusal) {
            request.interrupt(LivePhase::Queued);
            return self.fall_back_to_filters(ctx);
        }
        match refusal {
            Refusal::Rate => request.interrupt(LivePhase::Queued),
            Refusal::SlotCount
            | Refusal::DroppedStart
            | Refusal::NegSessions
            | Refusal::RetainedBytes { .. } => request.refused_for_room(now),
            Refusal::LimitZero if request.uses_limit_zero => {
                self.live.refuses_limit_zero = true;
                request.interrupt(LivePhase::Queued);
            }
            Refusal::FilterCount if !is_one => self.halve_filters(id),
            Refusal::Malformed if !is_one => self.live.halve(&mut ctx.shared.ids, id),
            Refusal::FilterCount | Refusal::Malformed | Refusal::Unknown => {
                request.interrupt(LivePhase::BackingOff(now + PARK));
            }
            Refusal::AuthRequired => self.live_wants_auth(ctx, id),
            Refusal::Policy => {
                request.interrupt(LivePhase::Queued);
                let layer = request.layer;
                self.suspend(ctx, layer, RequestMode::Live);
            }
            // One drop is a gap to be closed; repeated drops mean that the relay cannot keep up.
            Refusal::LiveOverflow => {
                match request.failures {
                    0 => request.interrupt(LivePhase::Queued),
                    _ => request.back_off(now),
                }
                request.failures = request.failures.max(1);
                request.has_dropped = true;
            }
            _ => request.back_off(now),
        }
    }

    /// Lowers the filters per request, because the relay accepts fewer.
    fn halve_filters(&mut self, id: LiveId) {
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        let half = (request.filters.len() / 2).max(1);
        request.interrupt(LivePhase::Queued);
        self.budget = self.budget.lowered_to_filters_per_req(half);
        self.live.needs_rebuild = true;
    }

    pub(super) fn page_refused(&mut self, ctx: &mut RelayContext<'_>, id: JobId, refusal: Refusal) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let layer = job.layer;
        let next = job.page_failed();
        if Self::is_refusal_of_full_sync(layer, refusal) {
            return self.fall_back_to_filters(ctx);
        }
        match refusal {
            Refusal::Rate => self.advance_page(ctx, id, next),
            Refusal::SlotCount
            | Refusal::DroppedStart
            | Refusal::NegSessions
            | Refusal::RetainedBytes { .. }
                if job.may_retry_for_room() =>
            {
                self.advance_page(ctx, id, next);
            }
            Refusal::Transient if !job.once.retried => {
                job.once.retried = true;
                self.delay(ctx, id, RETRY_DELAY, Method::Page);
            }
            Refusal::AuthRequired => self.job_wants_auth(ctx, id, Method::Page),
            Refusal::Policy => {
                self.suspend(ctx, layer, RequestMode::History);
                self.queue(id, Method::Page);
            }
            Refusal::Malformed => self.split_by_content(ctx, id, Method::Page),
            Refusal::SetTooLarge => self.split_by_time(ctx, id, Method::Page),
            Refusal::FilterCount | Refusal::Unknown => self.give_up_filter(ctx, id),
            _ => self.fail(ctx, id),
        }
    }

    fn neg_refused(&mut self, ctx: &mut RelayContext<'_>, id: JobId, refusal: Refusal, text: &str) {
        let now = ctx.mono();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match refusal {
            Refusal::Rate => self.queue(id, Method::Reconcile),
            Refusal::SlotCount | Refusal::DroppedStart | Refusal::RetainedBytes { .. }
                if job.may_retry_for_room() =>
            {
                self.queue(id, Method::Reconcile);
            }
            Refusal::NegSessions if job.may_retry_for_room() => {
                let open = ctx.history.ledger.in_use_by(SlotClass::Reconcile);
                self.max_neg_sessions = self.max_neg_sessions.min(open.max(1));
                self.queue(id, Method::Reconcile);
            }
            Refusal::SetTooLarge => self.split_by_time(ctx, id, Method::Reconcile),
            Refusal::NegClosed if !job.once.reopened => {
                job.once.reopened = true;
                self.queue(id, Method::Reconcile);
            }
            Refusal::AuthRequired => self.job_wants_auth(ctx, id, Method::Reconcile),
            Refusal::NegUnsupported => {
                self.queue(id, Method::Page);
                self.use_pages_only(ctx);
                self.report_no_negentropy(ctx, refusal, text);
            }
            // This is about the filter, or about reconciling it; its pages will show.
            Refusal::NegClosed | Refusal::NegProtocol | Refusal::Malformed | Refusal::Policy => {
                self.queue(id, Method::Page);
            }
            _ => {
                ctx.history.neg.failed(now);
                self.queue(id, Method::Page);
                self.report_no_negentropy(ctx, refusal, text);
            }
        }
    }

    /// Switches the connection to pages: the relay does not support NIP-77.
    fn use_pages_only(&mut self, ctx: &mut RelayContext<'_>) {
        self.pages_only = true;
        let waiting = self.queues.remove(&Method::Reconcile).unwrap_or_default();
        waiting.into_iter().for_each(|(_, id)| self.queue(id, Method::Page));
        self.close_all(ctx, |kind| matches!(kind, SubKind::Neg(_)));
        let is_reconciling =
            |job: &Job| matches!(job.phase, JobPhase::Listing { .. } | JobPhase::Comparing { .. });
        for id in self.jobs_where(is_reconciling) {
            self.forget_inventory(ctx, id);
            self.queue(id, Method::Page);
        }
    }

    fn report_no_negentropy(&mut self, ctx: &mut RelayContext<'_>, refusal: Refusal, text: &str) {
        if !std::mem::replace(&mut ctx.history.no_negentropy_reported, true) {
            let text = PeerText::new(text);
            ctx.report(|relay| Report::NoNegentropy { relay, refusal, text });
        }
    }

    fn ids_refused(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, refusal: Refusal) {
        let now = ctx.mono();
        // With nothing else open, a free slot is not to be expected soon.
        let is_alone = ctx.history.ledger.in_use() == 0;
        match refusal {
            Refusal::SlotCount | Refusal::DroppedStart if is_alone => self.ids_missed(ctx, sub),
            Refusal::Rate
            | Refusal::SlotCount
            | Refusal::DroppedStart
            | Refusal::NegSessions
            | Refusal::RetainedBytes { .. } => ctx.history.wants.returned(now, sub),
            Refusal::Malformed | Refusal::SetTooLarge if self.ids_per_fetch > MIN_IDS_PER_FETCH => {
                self.ids_per_fetch = (self.ids_per_fetch / 2).max(MIN_IDS_PER_FETCH);
                ctx.history.wants.returned(now, sub);
            }
            Refusal::AuthRequired => {
                let again = std::mem::replace(&mut self.ids_authenticated, true);
                match self.require_auth(ctx, again) {
                    AuthDecision::Policy => self.ids_missed(ctx, sub),
                    _ => ctx.history.wants.returned(now, sub),
                }
            }
            _ => self.ids_missed(ctx, sub),
        }
    }

    fn ids_missed(&mut self, ctx: &mut RelayContext<'_>, sub: SubId) {
        let missed = ctx.history.wants.refused(ctx.now.mono, sub);
        self.missed(ctx, missed);
    }

    /// Handles a NOTICE, which names no subscription. If it can only be about a request that was just sent, the
    /// newest is refused.
    pub(super) fn notice(&mut self, ctx: &mut RelayContext<'_>, text: &str) {
        let refusal = Refusal::read(Heard::Notice, text);
        self.report_refusal(ctx, refusal, text);
        let unanswered = self.subs.unanswered();
        let newest = |is_it: fn(&SubKind) -> bool| {
            unanswered.iter().find(|(_, kind)| is_it(kind)).map(|(sub, _)| *sub)
        };
        let blamed: Vec<SubId> = match refusal {
            Refusal::Remark => return,
            Refusal::Rate => return ctx.pause_starts(),
            Refusal::DroppedStart => return self.refuse_unanswered(ctx, refusal, text),
            Refusal::NegUnsupported
            | Refusal::NegSessions
            | Refusal::SetTooLarge
            | Refusal::NegClosed
            | Refusal::NegProtocol => newest(|kind| matches!(kind, SubKind::Neg(_))),
            Refusal::LimitZero | Refusal::LiveOverflow => {
                newest(|kind| matches!(kind, SubKind::Live(_)))
            }
            _ => newest(|_| true),
        }
        .into_iter()
        .collect();
        for sub in blamed {
            self.refused(ctx, sub, refusal, text, ClosedBy::Us);
        }
    }

    /// Handles word of a dropped request, which will never be answered. The newest is the likeliest and lowers the
    /// budget; the other unanswered ones are sent again. Further notices are ignored for as long as the oldest
    /// request has waited: they are about the same requests.
    fn refuse_unanswered(&mut self, ctx: &mut RelayContext<'_>, refusal: Refusal, text: &str) {
        let now = ctx.mono();
        let Some(oldest) = self.subs.oldest_unanswered().filter(|_| now >= self.ignore_drops_until)
        else {
            return;
        };
        self.ignore_drops_until = now + (now - oldest);
        let mut unanswered = self.subs.unanswered().into_iter();
        if let Some((newest, _)) = unanswered.next() {
            self.refused(ctx, newest, refusal, text, ClosedBy::Us);
        }
        for (sub, _) in unanswered {
            // Frees the slot and sends it again, without lowering a limit further.
            self.refused(ctx, sub, Refusal::NegSessions, text, ClosedBy::Us);
        }
    }

    /// Returns whether a session waits for us: for the inventory of the local relay, or for permission to send.
    fn waits_for_us(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        matches!(job.phase, JobPhase::Listing { .. }) || job.has_neg_message()
    }

    /// Starts a session again that took too long by our own fault.
    fn restart_session(&mut self, ctx: &mut RelayContext<'_>, id: JobId, sub: SubId) {
        self.close(ctx, sub);
        self.forget_inventory(ctx, id);
        self.fail(ctx, id);
    }

    /// Refuses requests that are overdue, and ends an authentication that took too long.
    pub(in crate::engine) fn check_timeouts(&mut self, ctx: &mut RelayContext<'_>) {
        for sub in self.subs.overdue(ctx.mono()) {
            // While rows are being judged the socket is not read, so the relay is not silent.
            if self.subs.extend_deadline(ctx.mono(), sub) {
                continue;
            }
            match self.subs.kind(sub) {
                Some(SubKind::Neg(id)) if self.waits_for_us(id) => {
                    self.restart_session(ctx, id, sub)
                }
                _ => self.refused(ctx, sub, Refusal::Silent, "", ClosedBy::Us),
            }
        }
        if self.auth.timed_out(ctx.mono()) {
            self.auth_ended(ctx, false);
        }
    }
}
