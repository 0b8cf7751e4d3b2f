//! Handles the messages of a relay. A message about an unknown subscription changes nothing.

use std::collections::BTreeSet;

use crate::limits::{Heard, Refusal};
use grasp_core::admission::{Lasting, SyncPath};
use grasp_core::limits::EoseHint;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::FilterHash;

use super::super::context::RelayContext;
use super::super::ids::{InventoryId, JobId, LiveId, SubId};
use super::super::io::{Delivered, InventoryFailed, Judged, Outcome, Row, Said};
use super::super::job::{JobPhase, Method, NegMessage};
use super::super::layer::Layer;
use super::super::missing;
use super::super::reconcile::{ReconcileStep, Reconciliation};
use super::super::report::Report;
use super::super::retry::{IdsEnded, Missed, WantResult};
use super::super::suspended::RequestMode;
use super::full_sync::max_offered;
use super::gaps::CountAs;
use super::refusals::ClosedBy;
use super::session::Session;
use super::subs::{NEG_IDLE_TIMEOUT, SubKind, Unjudged};

impl Session {
    pub(in crate::engine) fn handle_message(&mut self, ctx: &mut RelayContext<'_>, said: Said) {
        match said {
            Said::Delivered { sub, rows } => self.delivered(ctx, sub, &rows),
            Said::Eose { sub, hint } => self.eose(ctx, sub, hint),
            Said::Closed { sub, text } => self.closed(ctx, sub, &text),
            Said::NegMsg { sub, message } => self.neg_msg(ctx, sub, &message),
            Said::NegErr { sub, text } => {
                if matches!(self.subs.kind(sub), Some(SubKind::Neg(_))) {
                    let refusal = Refusal::read(Heard::NegErr, &text);
                    self.refused(ctx, sub, refusal, &text, ClosedBy::Relay);
                }
            }
            Said::Notice { text } => self.notice(ctx, &text),
            Said::Challenge => self.challenged(ctx),
            Said::Authenticated { accepted } => self.authenticated(ctx, accepted),
        }
    }

    fn delivered(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, rows: &[Delivered]) {
        let Some(kind) = self.subs.kind(sub) else { return };
        let count_as = match &kind {
            SubKind::Live(_) => CountAs::LIVE,
            SubKind::Pages(jobs) => self.count_as_of_jobs(jobs),
            SubKind::Neg(_) | SubKind::Ids => CountAs::NEW,
        };
        self.subs.answered(ctx.mono(), sub, ctx.shared.config.watchdog);
        self.subs.delivered(sub, rows.len(), count_as);
        match kind {
            SubKind::Live(id) => self.live_delivered(ctx, id, rows),
            SubKind::Ids => {
                rows.iter().for_each(|one| ctx.history.wants.delivered(sub, one.row.id));
            }
            SubKind::Pages(jobs) => self.pages_delivered(ctx, sub, &jobs, rows),
            SubKind::Neg(_) => {}
        }
    }

    /// Handles live events: nothing is missing up to the latest of them.
    fn live_delivered(&mut self, ctx: &mut RelayContext<'_>, id: LiveId, rows: &[Delivered]) {
        self.fetch_missed(ctx, id);
        let latest = rows.iter().map(|one| one.row.at.min(ctx.now.unix)).max();
        if let Some(request) = self.live.requests.get_mut(&id) {
            request.delivered_until =
                request.delivered_until.max(latest.unwrap_or(request.delivered_until));
        }
    }

    fn eose(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, hint: Option<EoseHint>) {
        let Some(kind) = self.subs.kind(sub) else { return };
        match kind {
            SubKind::Live(id) => self.live_established(ctx, sub, id),
            SubKind::Pages(jobs) => self.pages_ended(ctx, sub, &jobs, hint),
            SubKind::Ids => {
                self.close(ctx, sub);
                let IdsEnded { missed, truncated_at } = ctx.history.wants.ended(ctx.now.mono, sub);
                self.ids_per_fetch = self.ids_per_fetch.min(truncated_at.unwrap_or(usize::MAX));
                self.missed(ctx, missed);
            }
            SubKind::Neg(_) => {}
        }
    }

    /// Notes that a live request is in force.
    fn live_established(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, id: LiveId) {
        self.subs.answered(ctx.mono(), sub, ctx.shared.config.watchdog);
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        request.delivered_until = request.delivered_until.max(ctx.now.unix);
        ctx.history.suspended.answered(request.layer, RequestMode::Live);
        self.fetch_missed(ctx, id);
    }

    fn closed(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, text: &str) {
        let heard = match self.subs.kind(sub) {
            None | Some(SubKind::Neg(_)) => return,
            Some(SubKind::Live(_)) => Heard::LiveClosed,
            Some(SubKind::Pages(_) | SubKind::Ids) => Heard::Closed,
        };
        self.refused(ctx, sub, Refusal::read(heard, text), text, ClosedBy::Relay);
    }

    /// Counts offered events that were not delivered; jobs of which hardly any were are paged instead.
    pub(super) fn missed(&mut self, ctx: &mut RelayContext<'_>, missed: Vec<Missed>) {
        let mut undelivered: Vec<JobId> = Vec::new();
        for one in missed {
            if one.is_given_up {
                let event = one.event;
                ctx.report(|relay| Report::GaveUp { relay, event });
                self.event_resolved(ctx, one.jobs, false);
                continue;
            }
            for id in one.jobs.iter().filter(|_| one.is_first) {
                let Some(job) = self.jobs.get_mut(id) else { continue };
                job.missed += 1;
                if job.delivers_too_little() {
                    undelivered.push(*id);
                }
            }
        }
        for id in undelivered {
            self.switch_to_pages(ctx, id);
        }
    }

    /// Starts a comparison with the inventory of the local relay.
    pub(in crate::engine) fn inventory(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: JobId,
        answered: InventoryId,
        items: Result<Vec<Row>, InventoryFailed>,
    ) {
        let full_sync = self.full_sync;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let JobPhase::Listing { sub, request } = job.phase else { return };
        if request != answered {
            return;
        }
        // With nothing to compare, pages bring more for each request, and requests are limited here.
        if ctx.history.profile.counts_frames && items.as_ref().is_ok_and(Vec::is_empty) {
            self.close(ctx, sub);
            return self.queue(id, Method::Page);
        }
        let (since, until) = job.window();
        let is_within = |row: &Row| {
            since.is_none_or(|since| row.at >= since) && until.is_none_or(|until| row.at <= until)
        };
        let (original, layer) = (job.original_hash(), job.layer);
        let refused = ctx.shared.rejected.rows(&original).filter(is_within);
        let frame = ctx.history.profile.neg_frame;
        let (max_ids, max_items) =
            (max_offered(full_sync, layer), ctx.shared.config.inventory_items);
        let opened =
            items.ok().filter(|items| layer != Layer::All || items.len() <= max_items).and_then(
                |items| Reconciliation::open(items.into_iter().chain(refused), frame, max_ids),
            );
        let Some((reconciliation, first)) = opened else {
            self.close(ctx, sub);
            return self.fail(ctx, id);
        };
        ctx.shared.held_items.insert(id, reconciliation.items());
        let outgoing = Some(NegMessage::Open(first));
        job.phase = JobPhase::Comparing { sub, reconciliation: Box::new(reconciliation), outgoing };
    }

    fn neg_msg(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, message: &[u8]) {
        let Some(SubKind::Neg(id)) = self.subs.kind(sub) else { return };
        self.subs.answered(ctx.mono(), sub, NEG_IDLE_TIMEOUT);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let layer = job.layer;
        // A message out of turn is ignored.
        let JobPhase::Comparing { reconciliation, outgoing: outgoing @ None, .. } = &mut job.phase
        else {
            return;
        };
        match reconciliation.receive(message) {
            ReconcileStep::Reply(reply) => *outgoing = Some(NegMessage::Reply(reply)),
            ReconcileStep::Done { needed, lacking } => {
                ctx.history.suspended.answered(layer, RequestMode::History);
                ctx.history.neg.worked();
                if std::mem::take(&mut ctx.history.no_negentropy_reported) {
                    ctx.report(|relay| Report::Negentropy { relay });
                }
                let (items, ids) = (reconciliation.items(), reconciliation.take_lacking_ids());
                let filter = job.filter();
                // Polls compare every few minutes, and would dominate the count.
                let group = self.groups.get(&job.group);
                if group.is_some_and(|group| group.purpose.is_history()) {
                    note_lacking(ctx, layer, &filter, ComparisonResult { items, lacking, ids });
                }
                if layer == Layer::All {
                    let (now, took) = (ctx.mono(), self.subs.lasted(ctx.mono(), sub));
                    self.full_comparison_ended(now, took);
                }
                self.end_session(ctx, id, sub);
                self.compared(ctx, id, needed);
            }
            ReconcileStep::TooMuch => {
                self.end_session(ctx, id, sub);
                self.split_by_time(ctx, id, Method::Reconcile);
            }
            ReconcileStep::Broken => self.refused(ctx, sub, Refusal::NegProtocol, "", ClosedBy::Us),
        }
    }

    fn end_session(&mut self, ctx: &mut RelayContext<'_>, id: JobId, sub: SubId) {
        self.close(ctx, sub);
        self.forget_inventory(ctx, id);
    }

    /// Returns the way in which each judged row arrived under a subscription.
    pub(in crate::engine) fn arrivals(
        &self,
        ctx: &RelayContext<'_>,
        sub: SubId,
        judged: &[Judged],
    ) -> Option<Arrivals> {
        let Unjudged { kind, count_as, .. } = self.subs.unjudged(sub)?;
        let filters = match kind {
            // The same for all, and expensive.
            SubKind::Live(id) => vec![self.sole_filter(id); judged.len()],
            _ => judged.iter().map(|one| self.filter_of(ctx, &kind, one.row.id)).collect(),
        };
        let arrivals = judged.iter().map(|one| {
            let by_id = kind == SubKind::Ids;
            let count_as = if by_id { self.count_as_of_id(ctx, one.row.id) } else { count_as };
            let is_gap =
                ctx.history.listening_times.is_gap(count_as, self.listening_since, one.row.at);
            Arrival { path: count_as.path, is_gap }
        });
        Some(Arrivals { arrivals: arrivals.collect(), filters })
    }

    /// Returns the way in which a page of these jobs is counted.
    pub(super) fn count_as_of_jobs(&self, jobs: &[JobId]) -> CountAs {
        let group = jobs.iter().find_map(|id| self.groups.get(&self.jobs.get(id)?.group));
        group.map_or(CountAs::NEW, |group| group.count_as)
    }

    /// Returns the way in which an event fetched by id is counted.
    pub(super) fn count_as_of_id(&self, ctx: &RelayContext<'_>, event: EventId) -> CountAs {
        let job = ctx.history.wants.job_waiting_for(event);
        self.count_as_of_jobs(job.as_slice())
    }

    /// Handles the judgement of rows that arrived under a subscription.
    pub(in crate::engine) fn judged(
        &mut self,
        ctx: &mut RelayContext<'_>,
        sub: SubId,
        judged: &[Judged],
        filters: &[Option<FilterHash>],
    ) {
        self.count_full_sync(ctx, judged, filters);
        self.give_up_forged(ctx, judged);
        let Some(Unjudged { kind, rows, .. }) = self.subs.judged(sub, judged.len()) else {
            return;
        };
        match kind {
            SubKind::Pages(jobs) => {
                self.retry_failed(ctx, judged, &jobs);
                if rows == 0 {
                    jobs.iter().for_each(|id| self.page_judged(ctx, sub, *id));
                }
            }
            SubKind::Ids => self.retry_failed(ctx, judged, &[]),
            SubKind::Live(_) => self.fetch_failed_live(ctx, judged),
            SubKind::Neg(_) => {}
        }
    }

    /// Gives up events that this relay forged: a relay that has the genuine event will offer it.
    fn give_up_forged(&mut self, ctx: &mut RelayContext<'_>, judged: &[Judged]) {
        let now = ctx.mono();
        for one in judged.iter().filter(|one| matches!(one.outcome, Outcome::Forged)) {
            let waiting = ctx.history.wants.forged(now, one.row.id);
            self.event_resolved(ctx, waiting, false);
        }
    }

    /// Fetches live events that the local relay could not accept at the time, within their budget: no other request
    /// brings them.
    fn fetch_failed_live(&mut self, ctx: &mut RelayContext<'_>, judged: &[Judged]) {
        let now = ctx.mono();
        let is_brief = |one: &&Judged| {
            matches!(one.outcome, Outcome::Refused { lasting: Lasting::Briefly, .. })
        };
        for one in judged.iter().filter(is_brief) {
            if ctx.history.wants.want(now, one.row.id, None) != WantResult::GivenUp {
                let missed = ctx.history.wants.failed(now, one.row.id);
                self.missed(ctx, vec![missed]);
            }
        }
    }

    /// Returns the hash of the filter that brought an event, if it was a single one.
    fn filter_of(
        &self,
        ctx: &RelayContext<'_>,
        kind: &SubKind,
        event: EventId,
    ) -> Option<FilterHash> {
        let job = match kind {
            SubKind::Live(_) => None,
            SubKind::Neg(id) => Some(*id),
            SubKind::Pages(jobs) => jobs.first().filter(|_| jobs.len() == 1).copied(),
            SubKind::Ids => ctx.history.wants.job_waiting_for(event),
        };
        Some(self.jobs.get(&job?)?.original_hash())
    }

    /// Fetches events again that could not be accepted, within their budget. Any of the jobs may be the one that an
    /// event belongs to, so all of them wait for it.
    fn retry_failed(&mut self, ctx: &mut RelayContext<'_>, judged: &[Judged], jobs: &[JobId]) {
        let now = ctx.mono();
        if judged.iter().any(|one| matches!(one.outcome, Outcome::Forged)) {
            let affected = jobs.iter().copied();
            affected.for_each(|id| _ = self.jobs.get_mut(&id).map(|job| job.is_partial = true));
        }
        for one in judged.iter().filter(|one| one.outcome.is_worth_retrying()) {
            let mut is_wanted = jobs.is_empty();
            for id in jobs {
                let Some(job) = self.jobs.get_mut(id) else { continue };
                match ctx.history.wants.want(now, one.row.id, Some(*id)) {
                    WantResult::Queued | WantResult::QueuedAfterFailure => {
                        job.outstanding += 1;
                        is_wanted = true;
                    }
                    WantResult::Already => {}
                    WantResult::GivenUp => job.is_partial = true,
                }
            }
            if is_wanted {
                let missed = ctx.history.wants.failed(now, one.row.id);
                self.missed(ctx, vec![missed]);
            }
        }
    }

    fn sole_filter(&self, id: LiveId) -> Option<FilterHash> {
        match self.live.requests.get(&id)?.filters.as_slice() {
            [only] => Some(FilterHash::of(&only.filter())),
            _ => None,
        }
    }

    /// Ends the wait for an event that is here, from any relay.
    pub(in crate::engine) fn event_arrived(&mut self, ctx: &mut RelayContext<'_>, event: EventId) {
        let jobs = ctx.history.wants.resolve(event);
        self.event_resolved(ctx, jobs, true);
    }
}

/// The result of a comparison, on our side.
struct ComparisonResult {
    /// Our events that were compared.
    items: usize,
    /// Those of them that the relay lacks.
    lacking: usize,
    /// Ids of some of these.
    ids: BTreeSet<EventId>,
}

/// Notes our events that a relay lacks. In full sync it need not have all of them: those of its own repositories
/// count once they are attributed to one.
fn note_lacking(
    ctx: &mut RelayContext<'_>,
    layer: Layer,
    filter: &Filter,
    compared: ComparisonResult,
) {
    let ComparisonResult { items, lacking, ids } = compared;
    let health = &mut ctx.history.health;
    match layer {
        Layer::All => health.compared(items.saturating_sub(lacking), 0),
        Layer::Announcements | Layer::Repos | Layer::Roots => health.compared(items, lacking),
    }
    ctx.schedule_write();
    if !ids.is_empty() {
        let asked = missing::questions(&ctx.shared.index, ctx.relay, layer, filter, ids);
        missing::ask(ctx.shared, ctx.out, asked);
    }
}

/// The way in which judged events arrived.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Arrivals {
    pub(in crate::engine) arrivals: Vec<Arrival>,
    /// The filter that brought each, if it was a single one.
    pub(in crate::engine) filters: Vec<Option<FilterHash>>,
}

/// The way in which one event arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct Arrival {
    pub(in crate::engine) path: SyncPath,
    /// True if a live subscription should have brought it before.
    pub(in crate::engine) is_gap: bool,
}

impl Outcome {
    /// Returns whether fetching the event again may help.
    pub(in crate::engine) fn is_worth_retrying(&self) -> bool {
        match self {
            Self::Refused { lasting: Lasting::Briefly, .. } => true,
            Self::Stored | Self::Held | Self::Known | Self::Forged | Self::Refused { .. } => false,
        }
    }
}
